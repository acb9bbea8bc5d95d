"""The ground that browser tests stand on: what a page may not do is seen."""

import time

import pytest

pytest.importorskip("playwright.sync_api", reason="playwright is not installed: make install")

from playwright.sync_api import Error, TimeoutError

from views.html.browsing import WHOLE, Seen, opened

POLICY = """<meta http-equiv="Content-Security-Policy" content="default-src 'none'; script-src 'unsafe-inline'">"""


@pytest.fixture
def written(tmp_path):
    """A function that writes the body of a page, and answers where."""

    def write(body, head=""):
        path = tmp_path / "page.html"
        path.write_text(f'<!doctype html><meta charset="utf-8"><title>t</title>{head}<body>{body}', encoding="utf-8")
        return path

    return write


@pytest.fixture
def seen(chromium, written):
    """A function from a page's body to what it did."""

    def look(body, head=""):
        with opened(chromium, written(body, head)) as (_, did):
            pass
        return did

    return look


def test_a_page_that_keeps_to_itself_is_sound(seen):
    image = "data:image/gif;base64,R0lGODlhAQABAIAAAP///wAAACH5BAEAAAAALAAAAAABAAEAAAICRAEAOw=="
    blob = "fetch(URL.createObjectURL(new Blob(['x']))).then((answer) => answer.text()).then(console.log)"
    assert seen(f'<img src="{image}"><script>{blob}</script><a href="#there">there</a>') == Seen()


@pytest.mark.parametrize(
    ("body", "url"),
    [
        ('<img src="http://127.0.0.1:9/a.png">', "http://127.0.0.1:9/a.png"),
        ('<img src="other.png">', "/other.png"),
        ("<script>fetch('http://127.0.0.1:9/b').catch(() => {})</script>", "http://127.0.0.1:9/b"),
        ("<script>navigator.sendBeacon('http://127.0.0.1:9/c')</script>", "http://127.0.0.1:9/c"),
        ("<script>new WebSocket('ws://127.0.0.1:9/d')</script>", "ws://127.0.0.1:9/d"),
        ('<link rel="stylesheet" href="https://127.0.0.1:9/e.css">', "https://127.0.0.1:9/e.css"),
        ('<iframe src="http://127.0.0.1:9/f"></iframe>', "http://127.0.0.1:9/f"),
        (
            "<script>new Worker(URL.createObjectURL(new Blob(['fetch(\"http://127.0.0.1:9/g\").catch(() => {})'])))"
            "</script><script>const end = Date.now() + 200; while (Date.now() < end);</script>",
            "http://127.0.0.1:9/g",
        ),
    ],
    ids=["image", "neighbour", "fetch", "beacon", "socket", "style", "frame", "worker"],
)
def test_a_request_is_seen(seen, body, url):
    assert any(asked.endswith(url) for asked in seen(body).requests)


def test_what_is_thrown_is_seen(seen):
    did = seen("<script>setTimeout(() => { throw new Error('a loose end'); })</script>")
    assert [error for error in did.errors if "a loose end" in error]
    did = seen("<script>Promise.reject(new Error('nobody caught it'))</script>")
    assert [error for error in did.errors if "nobody caught it" in error]


def test_errors_and_warnings_of_the_console_are_seen_and_the_rest_is_not(seen):
    did = seen("<script>console.error('e'); console.warn('w'); console.log('l'); console.info('i')</script>")
    assert did == Seen(messages=["error: e", "warning: w"])


def test_markup_that_runs_is_seen(seen):
    assert seen("<img src='data:,' onerror='alert(1)'>").errors == ["alert: 1"]


@pytest.mark.parametrize(
    ("body", "directive"),
    [
        ("<p style='color: red'>", "style-src-attr"),
        ('<img src="data:image/gif;base64,R0lGODlhAQABAIAAAP///wAAACH5BAEAAAAALAAAAAABAAEAAAICRAEAOw==">', "img-src"),
        ("<script>try { eval('1') } catch {}</script>", "script-src"),
        ("<script>fetch('http://127.0.0.1:9/').catch(() => {})</script>", "connect-src"),
    ],
    ids=["style", "image", "eval", "fetch"],
)
def test_what_the_policy_refuses_is_seen(seen, body, directive):
    did = seen(body, POLICY)
    assert [violation.split(":")[0] for violation in did.violations] == [directive]
    assert not did.requests


def test_a_strict_policy_does_not_hinder_the_tests(open_page, written):
    page = open_page(
        written("<button>one</button><script>setTimeout(() => { document.title = 'ready' }, 100)</script>", POLICY)
    )
    page.wait_for_function("() => document.title === 'ready'")
    assert page.evaluate("document.querySelector('button').textContent") == "one"
    page.get_by_role("button", name="one").click()


def test_width_height_scheme_and_hash_are_what_was_asked_for(open_page, written):
    path = written("<p>text")
    told = "[innerWidth, innerHeight, matchMedia('(prefers-color-scheme: dark)').matches, location.hash]"
    assert open_page(path).evaluate(told) == [1280, 900, False, ""]
    assert open_page(path, width=360, height=640, dark=True, hash="a=1").evaluate(told) == [360, 640, True, "#a=1"]


def test_a_page_that_never_ends_fails_in_time_and_the_next_one_opens(chromium, written):
    begun = time.perf_counter()
    with pytest.raises(TimeoutError), opened(chromium, written("<script>for (;;);</script>"), wait=0.5):
        pass
    # Around all of it: where the machine is slow, the second is over before the page is open.
    with pytest.raises(Error), opened(chromium, written("<p>text"), whole=1) as (page, _):
        page.evaluate("() => { for (;;); }")
    assert time.perf_counter() - begun < WHOLE
    with opened(chromium, written("<p>text")) as (page, did):
        assert page.inner_text("p") == "text"
    assert did == Seen()


def test_a_browser_that_is_gone_is_no_sound_page(chromium, written):
    with opened(chromium, written("<p>text")) as (page, did):
        chromium.kill()
        with pytest.raises(Error):
            page.inner_text("p")
    assert "the browser ended before the test did" in str(did)
