"""The ground that browser tests stand on: what a page may not do is seen."""

from threading import Timer

import pytest

pytest.importorskip("playwright.sync_api", reason="playwright is not installed: make install")

from playwright.sync_api import Error, TimeoutError

from views.html.browsing import PageLog, opened

POLICY = """<meta http-equiv="Content-Security-Policy" content="default-src 'none'; script-src 'unsafe-inline'">"""
GIF = "data:image/gif;base64,R0lGODlhAQABAIAAAP///wAAACH5BAEAAAAALAAAAAABAAEAAAICRAEAOw=="


@pytest.fixture
def written(tmp_path):
    """A function that writes the body of a page, and answers where."""

    def write(body, head=""):
        path = tmp_path / "page.html"
        path.write_text(f'<!doctype html><meta charset="utf-8"><title>t</title>{head}<body>{body}', encoding="utf-8")
        return path

    return write


@pytest.fixture
def log_of(chromium, written):
    """A function from a page's body to what it did."""

    def look(body, head=""):
        with opened(chromium, written(body, head)) as (_, log):
            pass
        return log

    return look


def test_a_page_that_keeps_to_itself_is_sound(log_of):
    blob = "fetch(URL.createObjectURL(new Blob(['x']))).then((answer) => answer.text()).then(console.log)"
    assert log_of(f'<img src="{GIF}"><script>{blob}</script><a href="#there">there</a>') == PageLog()


def test_every_kind_of_request_is_seen(log_of):
    log = log_of(
        """
        <img src="http://127.0.0.1:9/image"><img src="neighbour.png"><iframe src="http://127.0.0.1:9/frame"></iframe>
        <link rel="stylesheet" href="https://127.0.0.1:9/style">
        <script>
          fetch("http://127.0.0.1:9/fetch").catch(() => {});
          navigator.sendBeacon("http://127.0.0.1:9/beacon");
          new WebSocket("ws://127.0.0.1:9/socket");
          new Worker(URL.createObjectURL(new Blob(['fetch("http://127.0.0.1:9/worker").catch(() => {})'])));
          const end = Date.now() + 200;
          while (Date.now() < end);
        </script>"""
    )
    kinds = ["image", "neighbour.png", "frame", "style", "fetch", "beacon", "socket", "worker"]
    assert [kind for kind in kinds if not any(url.endswith(f"/{kind}") for url in log.requests)] == []


def test_what_a_page_says_and_throws_is_seen(log_of):
    log = log_of(
        """
        <img src="data:," onerror="alert(1)">
        <script>
          console.error("e"); console.warn("w"); console.log("l");
          setTimeout(() => { throw new Error("thrown") });
          Promise.reject(new Error("rejected"));
        </script>"""
    )
    assert log.messages == ["error: e", "warning: w"]
    for error in ("alert: 1", "thrown", "rejected"):
        assert error in " ".join(log.errors)
    assert len(log.errors) == 3


def test_what_the_policy_refuses_is_seen(log_of):
    fetch = "fetch('http://127.0.0.1:9/').catch(() => {})"
    log = log_of(
        f"<p style='color: red'><img src='{GIF}'><script>try {{ eval('1') }} catch {{}} {fetch}</script>", POLICY
    )
    directives = [violation.split(":")[0] for violation in log.violations]
    assert sorted(directives) == ["connect-src", "img-src", "script-src", "style-src-attr"]
    assert not log.requests


def test_a_strict_policy_does_not_hinder_the_tests(open_page, written):
    later = "<script>setTimeout(() => { document.title = 'ready' })</script>"
    page = open_page(written(f"<button>one</button>{later}", POLICY), ready="button")
    page.wait_for_function("() => document.title === 'ready'")
    assert page.evaluate("document.querySelector('button').textContent") == "one"
    page.get_by_role("button", name="one").click()


def test_width_height_scheme_and_hash_are_those_of_the_call(open_page, written):
    path = written("<p>text")
    state = "[innerWidth, innerHeight, matchMedia('(prefers-color-scheme: dark)').matches, location.hash]"
    page = open_page(path, [1], ready="p", width=360, height=640, dark=True)
    assert page.evaluate(state) == [360, 640, True, "#%5B1%5D"]
    assert open_page(path, ready="p").evaluate(state) == [1280, 900, False, ""]


def test_a_page_that_never_ends_fails_and_the_next_one_opens(chromium, written):
    with pytest.raises(TimeoutError), opened(chromium, written("<script>for (;;);</script>"), timeout=0.5):
        pass
    with opened(chromium, written("<p>text")) as (page, log):
        assert page.inner_text("p") == "text"
    assert log == PageLog()


def test_a_browser_that_is_killed_is_no_sound_page(chromium, written):
    with opened(chromium, written("<p>text")) as (page, log):
        Timer(0.1, chromium.kill).start()
        with pytest.raises(Error):
            page.evaluate("() => { for (;;); }")
    assert "the browser ended before the test did" in str(log)
