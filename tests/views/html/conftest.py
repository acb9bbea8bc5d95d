"""The page in a real browser, and its modules in node."""

import json
import shutil
import subprocess
from functools import partial
from pathlib import Path
from threading import Timer

import pytest
import torch

import regard
from regard.attention.positions import ALiBi
from views.html import browsing
from views.html.page_encoders import PageEncoder, minilm_8_bits
from views.html.rows import Attends, watched
from views.recordings import river
from weights import RIVER

HERE = Path(__file__).parent
OLDEST_NODE = 20


@pytest.fixture
def open_page(chromium):
    """A function that opens an HTML file in a state, as a link to it says, and answers the page when it is ready.

    All pages share a tab, so a test is done with a page when it opens the next one.
    """
    yield from browsing.sound_pages(partial(browsing.opened, chromium))


@pytest.fixture(scope="session")
def river_page(tmp_path_factory):
    """What the default model attends to in a sentence, and its page."""
    path = tmp_path_factory.mktemp("river") / "page.html"
    river().to_html(path)
    return river(), path


@pytest.fixture
def open_head(open_page, river_page):
    """A function that opens river_page at a head: the page, and the head's weights."""

    def call(layer, head, *, width=1280, **state):
        recording, path = river_page
        page = open_page(path, {"attention": layer, "head": head, **state}, width=width)
        return page, recording[recording.layers[layer]][0, head]

    return call


@pytest.fixture(scope="session")
def model_page(tmp_path_factory):
    """A page that carries the default model, in 8 bits, and opens with one text."""
    path = tmp_path_factory.mktemp("model") / "page.html"
    regard.see(RIVER, path, with_model=True)
    return path


@pytest.fixture
def open_live(open_page, model_page):
    """A function that opens model_page in a state and types texts: the page when its model has answered."""
    answered = ".live-status:not(.computing)"

    def call(state=None, *, text=None, second=None, **options):
        page = open_page(model_page, state, ready="html[data-model=ready]", **options)
        page.wait_for_selector(answered)
        if text is not None:
            page.fill("#text-1", text)
            page.wait_for_selector(answered)
        if second is not None:
            page.click(".compare")
            page.fill("#text-2", second)
            page.wait_for_selector(answered)
        return page

    return call


@pytest.fixture(scope="session")
def odd_page(tmp_path_factory):
    """Two heads with every step that there is, over 40 tokens, and their page."""
    path = tmp_path_factory.mktemp("odd") / "page.html"
    options = {"scale": 0.25, "softcap": 3.0, "bias": ALiBi(2), "sinks": torch.tensor([0.5, 2.0])}
    return watched(path, Attends(2, **options), 40), path


@pytest.fixture(scope="session", params=[2560, pytest.param(32_768, marks=pytest.mark.slow)])
def long_page(request, tmp_path_factory):
    """A causal head over more tokens than a page computes all weights of, and its page."""
    path = tmp_path_factory.mktemp("long") / "page.html"
    return watched(path, Attends(1, 8), request.param), path


@pytest.fixture(scope="session")
def node_executable():
    if not (found := shutil.which("node")):
        pytest.skip("no node here: the page's modules are not tested outside a browser")
    version = subprocess.run([found, "--version"], capture_output=True, text=True, check=True).stdout.strip()
    if int(version.removeprefix("v").partition(".")[0]) < OLDEST_NODE:
        pytest.skip(f"node here is {version}; the page's modules are tested with {OLDEST_NODE} or newer")
    return found


@pytest.fixture(scope="session")
def node(node_executable):
    """A function that calls one of bridge.js's with an argument, in one process for all tests."""
    pipes = {"stdin": subprocess.PIPE, "stdout": subprocess.PIPE, "encoding": "utf-8"}
    with subprocess.Popen([node_executable, str(HERE / "bridge.js")], **pipes) as process:

        def call(name, argument):
            watchdog = Timer(60, process.kill)
            watchdog.start()
            process.stdin.write(json.dumps([name, argument]) + "\n")
            process.stdin.flush()
            answer = json.loads(process.stdout.readline())
            watchdog.cancel()
            assert "error" not in answer, answer["error"]
            return answer

        yield call


@pytest.fixture(scope="session")
def page_encoder(node, tmp_path_factory):
    """The default model as a page has it, in node, and regard's own with the same 8-bit weights."""
    return PageEncoder(node, tmp_path_factory.mktemp("page_encoder"), minilm_8_bits(), "minilm")
