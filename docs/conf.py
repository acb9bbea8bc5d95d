"""The site: Sphinx with MyST pages that are executed when it is built. `make docs` writes it to docs/_build/html."""

import importlib
import os
import sys
from hashlib import sha256
from pathlib import Path
from shutil import rmtree

from jupyter_cache import get_cache

DOCS = Path(__file__).parent
SOURCE = DOCS.parent / "src"
BUILD = DOCS / "_build"
sys.path.insert(0, str(DOCS / "extensions"))

# Two builders work side by side, and the kernels that execute pages inherit this.
os.environ.setdefault("OMP_NUM_THREADS", "1")
os.environ.setdefault("HF_HUB_OFFLINE", "1")
# The commands on a page are shown at the width of its text, without colours.
os.environ |= {"COLUMNS": "88", "NO_COLOR": "1"}
os.environ["PATH"] = f"{Path(sys.executable).parent}{os.pathsep}{os.environ['PATH']}"
# tqdm, which transformers and datasets import, says so in a notebook without ipywidgets.
os.environ["PYTHONWARNINGS"] = "ignore:IProgress not found"


def _digest_of_source() -> str:
    """What the pages' outputs depend on besides their own cells: the library, its packages and its models."""
    root = DOCS.parent
    # Pages quote BENCHMARKS.md, and assert what they quote.
    files = [root / name for name in ("constraints.txt", "models.txt", "BENCHMARKS.md")]
    files += sorted(path for path in SOURCE.rglob("*") if path.is_file() and path.suffix != ".pyc")
    digest = sha256()
    for path in files:
        digest.update(path.relative_to(root).as_posix().encode())
        digest.update(path.read_bytes())
    return digest.hexdigest()[:16]


def _execution_cache() -> Path:
    """A folder of outputs for this state of the library; those of other states are removed."""
    folder = BUILD / "executed" / _digest_of_source()
    folder.mkdir(parents=True, exist_ok=True)
    for other in folder.parent.iterdir():
        if other != folder:
            rmtree(other)
    get_cache(folder).db  # noqa: B018  made now, since two builders that both find none would both make it
    return folder


# Where jaxtyping is imported before regard, the signatures show the shapes of tensors.
importlib.import_module("jaxtyping")

project = "regard"
copyright = "2026, the regard developers"
author = "the regard developers"
html_title = "regard"

extensions = [
    "myst_nb",
    "sphinx.ext.autodoc",
    "sphinx.ext.napoleon",
    "sphinx_copybutton",
    "sphinx_design",
    "command_line",
    "course_notebooks",
    "docstrings",
    "live_figures",
    "mathml",
]
exclude_patterns = ["_build", "extensions"]
smartquotes = False  # they turn "--" into a dash, in options too
root_doc = "index"

myst_enable_extensions = ["amsmath", "attrs_inline", "colon_fence", "deflist", "dollarmath", "fieldlist"]
myst_heading_anchors = 3
myst_url_schemes = ("http", "https", "mailto")

nb_execution_mode = "cache"
nb_execution_cache_path = str(_execution_cache())
# A page that fails is a warning with its traceback, and a warning fails the build when every page was tried. An
# exception would leave Sphinx waiting for its other builder.
nb_execution_raise_on_error = False
nb_execution_show_tb = True
nb_execution_timeout = 240
nb_execution_in_temp = True
nb_merge_streams = True
nb_number_source_lines = False
nb_ipywidgets_js: dict[str, dict[str, str]] = {}  # they would come from a network
# A warning in a page is an error of the build: a learner should see none.
nb_output_stderr = "error"

autodoc_typehints = "signature"
autodoc_typehints_format = "short"
autodoc_member_order = "bysource"
napoleon_google_docstring = True
napoleon_numpy_docstring = False
napoleon_use_rtype = False

default_role = "code"  # the docstrings write names in single backticks

html_theme = "furo"
html_static_path = ["static"]
html_css_files = ["course.css"]
html_theme_options = {"source_repository": "", "sidebar_hide_name": False}
html_show_sourcelink = False
html_show_sphinx = False
html_show_search_summary = False  # it would fetch each page found, which a browser refuses to a file on disk
html_copy_source = False
html_math_renderer = "mathml"
copybutton_prompt_text = r">>> |\.\.\. |\$ "
copybutton_prompt_is_regexp = True

# Links to other places are not followed: a build needs no network. `make docs` checks the internal ones by -W.
linkcheck_ignore = [r"https?://.*"]
