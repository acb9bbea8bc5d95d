"""The site as `make docs` builds it, once for all processes: executed pages are taken from its cache."""

import fcntl
import subprocess
import sys
from pathlib import Path

import pytest

DOCS = Path(__file__).parents[2] / "docs"
BUILD = DOCS / "_build"

sys.path.insert(0, str(DOCS / "extensions"))


@pytest.fixture(scope="session")
def site():
    """The folder of the site. Pages whose cells or whose library changed are executed, which takes minutes."""
    pytest.importorskip("myst_nb", reason="myst-nb is not installed: make install")
    BUILD.mkdir(exist_ok=True)
    with (BUILD / "lock").open("w") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)  # two builders would execute the same page twice
        options = ["--fail-on-warning", "--keep-going", "--quiet", "--jobs", "2"]
        call = [sys.executable, "-m", "sphinx", *options, str(DOCS), str(BUILD / "html")]
        done = subprocess.run(call, capture_output=True, text=True)
    assert done.returncode == 0, done.stdout + done.stderr
    return BUILD / "html"
