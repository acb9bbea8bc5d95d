"""The page in a real browser, and its modules in node."""

import re
import shutil
import subprocess
from collections.abc import Callable, Iterator
from contextlib import ExitStack
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest

if TYPE_CHECKING:
    from playwright.sync_api import Page

    from views.html.browsing import Chromium

HERE = Path(__file__).parent
OLDEST_NODE = 20


@pytest.fixture(scope="session")
def chromium(tmp_path_factory: pytest.TempPathFactory) -> "Iterator[Chromium]":
    """One browser for all tests of a process."""
    sync_api = pytest.importorskip("playwright.sync_api", reason="playwright is not installed: make install")
    from views.html import browsing

    if not (executable := browsing.executable()):
        pytest.skip("no Chromium here: make install-browser")
    with sync_api.sync_playwright() as playwright:
        browser = browsing.Chromium(playwright, executable, tmp_path_factory.mktemp("chromium"))
        yield browser
        browser.close()


@pytest.fixture
def open_page(chromium: "Chromium") -> "Iterator[Callable[..., Page]]":
    """A function that opens an HTML file and answers the page: see `browsing.opened` for what it takes.

    After the test every page that it opened has made no request, said no error or warning, raised nothing and kept to
    its content-security policy.
    """
    from views.html.browsing import Seen, opened

    seen: list[Seen] = []
    with ExitStack() as pages:

        def call(path: Path, **options: Any) -> "Page":
            page, did = pages.enter_context(opened(chromium, path, **options))
            seen.append(did)
            return page

        yield call
    for did in seen:
        assert did == Seen(), str(did)


@pytest.fixture(scope="session")
def node() -> Callable[..., str]:
    """A function that runs a script of this folder on a text, and answers what it printed."""
    if not (found := shutil.which("node")):
        pytest.skip("no node here: the page's modules are not tested outside a browser")
    version = subprocess.run([found, "--version"], capture_output=True, text=True, check=True).stdout.strip()
    if int(re.findall(r"\d+", version)[0]) < OLDEST_NODE:
        pytest.skip(f"node here is {version}; the page's modules are tested with {OLDEST_NODE} or newer")

    def call(*arguments: str | Path, said: str = "") -> str:
        command = [found, *map(str, arguments)]
        ended = subprocess.run(command, input=said, capture_output=True, encoding="utf-8", cwd=HERE, timeout=60)
        assert ended.returncode == 0, ended.stdout + ended.stderr
        return ended.stdout

    return call
