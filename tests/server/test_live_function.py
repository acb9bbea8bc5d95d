"""`regard.live`: a server from Python, and its page in a notebook."""

import threading
from functools import partial
from http.server import SimpleHTTPRequestHandler, ThreadingHTTPServer

import pytest

import regard
from server.live_client import ask, request
from weights import random_checkpoint


def test_it_answers_when_it_returns_and_no_more_when_its_block_has_ended(small_decoder):
    with regard.live(small_decoder, texts="a b", name="mine") as server:
        facts = request(server, "GET", "model").json
    assert (facts["name"], facts["texts"]) == ("mine", ["a b"])
    with pytest.raises(ConnectionRefusedError):
        request(server, "GET", "model")


def test_a_model_is_named_as_for_load(tmp_path):
    random_checkpoint(tmp_path / "gpt2", "gpt2")
    with regard.live(tmp_path / "gpt2") as server:
        assert ask(server, "a b")["texts"][0]["next"]
        assert request(server, "GET", "model").json["name"] == str(tmp_path / "gpt2")


@pytest.fixture
def notebook(tmp_path):
    """A function that serves HTML from another origin of this machine, as a notebook's server does: its address."""

    class Quiet(SimpleHTTPRequestHandler):
        def log_message(self, *_):
            """Nothing."""

    with ThreadingHTTPServer(("127.0.0.1", 0), partial(Quiet, directory=tmp_path)) as server:
        thread = threading.Thread(target=server.serve_forever)
        thread.start()

        def call(html):
            page = f"<!doctype html><link rel=icon href=data:,>{html}"
            (tmp_path / "notebook.html").write_text(page, encoding="utf-8")
            return f"http://localhost:{server.server_port}/notebook.html"

        yield call
        server.shutdown()
        thread.join()


@pytest.mark.more
def test_a_notebook_shows_the_page_in_a_frame_and_its_plain_address(chromium, notebook, small_decoder):
    count = len(small_decoder.encode("b a b a").ids)
    with (
        regard.live(small_decoder, texts="a") as server,
        chromium.served(notebook(server._repr_html_())) as (page, log),
    ):
        page.frame_locator("iframe").locator("#text-1").fill("b a b a")
        page.frame_locator("iframe").locator(f".live-status .words:text-matches('^{count} tokens')").wait_for()
        assert page.locator("a").get_attribute("href") == server.url
    assert {line for line in log if not line.startswith(f"request: {server.url}")} == set()
