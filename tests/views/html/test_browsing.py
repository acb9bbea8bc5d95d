"""The ground that browser tests stand on: what a page may not do is seen."""

import pytest

pytest.importorskip("playwright.sync_api", reason="playwright is not installed: make install")

from playwright.sync_api import TimeoutError

from views.html.browsing import opened

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


def look(chromium, path):
    """What a page does."""
    with opened(chromium, path) as (_, log):
        pass
    return log


def test_a_page_that_keeps_to_itself_is_sound(chromium, written):
    blob = "fetch(URL.createObjectURL(new Blob(['x']))).then((answer) => answer.text()).then(console.log)"
    path = written(f'<img src="{GIF}"><script>{blob}</script><a href="#there">there</a>')
    assert look(chromium, path) == []


def test_every_kind_of_request_is_seen(chromium, written):
    path = written(
        """
        <img src="http://127.0.0.1:9/image"><img src="neighbour.png"><iframe src="http://127.0.0.1:9/frame"></iframe>
        <link rel="stylesheet" href="https://127.0.0.1:9/style">
        <script>
          fetch("http://127.0.0.1:9/fetch").catch(() => {});
          navigator.sendBeacon("http://127.0.0.1:9/beacon");
          new WebSocket("ws://127.0.0.1:9/socket");
          const worker = new Worker(URL.createObjectURL(new Blob([
            'fetch("http://127.0.0.1:9/worker").catch(() => postMessage("refused"))'])));
          worker.onmessage = () => document.documentElement.dataset.refused = "";
        </script>"""
    )
    with opened(chromium, path) as (page, log):
        page.wait_for_selector("[data-refused]")  # a worker runs beside the page
    kinds = {"image", "neighbour.png", "frame", "style", "fetch", "beacon", "socket", "worker"}
    assert kinds <= {line.rpartition("/")[2] for line in log if line.startswith("request: ")}


def test_what_a_page_says_and_throws_is_seen(chromium, written):
    path = written(
        """
        <img src="data:," onerror="alert(1)">
        <script>
          console.error("e"); console.warn("w"); console.log("l");
          setTimeout(() => { throw new Error("thrown") });
          Promise.reject(new Error("rejected"));
        </script>"""
    )
    lines = [line.partition("\n")[0] for line in look(chromium, path)]
    assert sorted(lines) == ["alert: 1", "error: e", "thrown: rejected", "thrown: thrown", "warning: w"]


def test_what_the_policy_refuses_is_seen(chromium, written):
    script = "<script>try { eval('1') } catch {} fetch('http://127.0.0.1:9/').catch(() => {})</script>"
    log = look(chromium, written(f"<p style='color: red'><img src='{GIF}'>{script}", POLICY))
    directives = [line.split(": ")[1].split(":")[0] for line in log if line.startswith("violation: ")]
    assert sorted(directives) == ["connect-src", "img-src", "script-src", "style-src-attr"]
    assert not [line for line in log if line.startswith("request: ")]


@pytest.mark.more
def test_a_page_that_never_ends_fails_and_the_next_one_opens(chromium, written):
    with pytest.raises(TimeoutError), opened(chromium, written("<script>for (;;);</script>"), timeout=0.5):
        pass
    with opened(chromium, written("<p>text")) as (page, log):
        assert page.inner_text("p") == "text"
    assert log == []
