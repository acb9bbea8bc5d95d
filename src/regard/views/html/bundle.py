"""The file of a page: the ES modules of static/ in one script, the styles, and the encoded facts and numbers.

In the script each module is a function with a scope of its own, after the modules that it imports. It returns its
exports; an import takes names from what that function returned.
"""

from __future__ import annotations

import hashlib
import html
import posixpath
import re
from base64 import b64encode
from collections.abc import Iterable
from functools import cache
from graphlib import TopologicalSorter
from importlib.resources import files
from importlib.resources.abc import Traversable
from string import Template

from regard.views.html.codec import encode_seven_bits, gzip_bytes, valid_unicode

STATIC = files("regard.views.html") / "static"
IMPORT = re.compile(r'^import \{\s*(\w+(?:,\s*\w+)*),?\s*\} from "(\.\.?/(?:\w+/)?\w+)\.js";\n', re.MULTILINE)
EXPORT = re.compile(r"^export (?=(?:(?:async )?function\*?|const|class) (\w+))", re.MULTILINE)
UNSUPPORTED = re.compile(r"^(?:import|export)\b.*|\bimport\s*[(.]", re.MULTILINE)
END_OF_SCRIPT = re.compile(r"</script|<!--", re.IGNORECASE)
BLOCK_COMMENT = re.compile(r"/\*.*?\*/", re.DOTALL)
"""A comment; it may import types in any form."""

COMMENT_LINES = re.compile(r"^[ \t]*(?:/\*\*(?:(?!\*/).)*\*/|//[^\n]*)?\n", re.MULTILINE | re.DOTALL)
"""An empty line, or a comment on lines of its own. The page omits them to be small: the code is read in static/."""

TYPE_COMMENT = re.compile(r"/\*\* @(?:type|param) (?:(?!\*/).)*\*/ ?")
"""The type of an expression, within a line of code."""

STYLE_SPACE = re.compile(r"/\*.*?\*/|\s*(?=[{};])|(?<=[{};:,])\s+", re.DOTALL)
"""What a style sheet does not need: comments, line ends, and spaces beside punctuation."""


def assemble(
    main: str,
    title: str,
    elements: Iterable[str] = (),
    *,
    scripts: str = "",
    requests: str = "",
    needs: str = "JavaScript, the whole file, and no network",
) -> tuple[str, str]:
    """A page as one file, and its Content-Security-Policy: it runs its one script, and no text can add to that.

    Args:
        main: the module that opens the page.
        title: of the window.
        elements: the rest of the body: `data_elements`, or any that do not run.
        scripts: what else may run, as the policy says it after the script's hash.
        requests: what else may be loaded, as it says it after the images.
        needs: what the page says that it needs, until its script runs.
    """
    script, style = bundle_modules(main), styles(main)
    policy = (
        f"default-src 'none'; script-src '{sha256_source(script)}'{scripts}; style-src '{sha256_source(style)}'; "
        f"img-src data:{requests}; base-uri 'none'; form-action 'none'"
    )
    texts = {"title": html.escape(valid_unicode(title)), "elements": "\n".join(elements), "needs": needs}
    template = Template((STATIC / "page.html").read_text(encoding="utf-8"))
    return template.substitute(policy=policy, style=style, script=script, **texts), policy


def data_elements(**data: bytes) -> list[str]:
    """Data as elements of a page: `readEncoded` in static/core/data.js finds each by its name."""
    packed = {name: gzip_bytes(each) for name, each in data.items()}
    return [
        f'<script type="text/plain" id="{name}" data-bytes="{len(each)}">{encode_seven_bits(each)}</script>'
        for name, each in packed.items()
    ]


@cache
def bundle_modules(main: str, folder: Traversable = STATIC) -> str:
    """A module and all modules that it needs, as one script.

    Args:
        main: its name, without ``.js``.
        folder: where the modules are.

    Raises:
        ValueError: two modules import each other; an import of another form than ``import { a } from "./b.js";``; an
            export that is no declaration of a function, a constant or a class; code that would end the script element.
    """
    sources = _sources(main, folder)
    needed = {name: [_resolve(name, path) for _, path in IMPORT.findall(text)] for name, text in sources.items()}
    order = list(TopologicalSorter(needed).static_order())
    variables = {name: f"m{number}" for number, name in enumerate(order)}
    return "\n" + "\n".join(_scoped(name, sources[name], variables) for name in order)


def _sources(main: str, folder: Traversable = STATIC) -> dict[str, str]:
    """A module and all modules that it needs, by name."""
    sources: dict[str, str] = {}
    queue = [main]
    while queue:
        name = queue.pop()
        if name not in sources:
            sources[name] = (folder / f"{name}.js").read_text(encoding="utf-8")
            queue += [_resolve(name, path) for _, path in IMPORT.findall(sources[name])]
    return sources


def _scoped(name: str, source: str, variables: dict[str, str]) -> str:
    """A module as a function that returns its exports.

    Args:
        name: of the module.
        source: its text.
        variables: for each module the variable that holds its exports.
    """
    exports = EXPORT.findall(source)
    text = EXPORT.sub("", IMPORT.sub("", source))
    code = re.sub(r"^ +", "", TYPE_COMMENT.sub("", COMMENT_LINES.sub("", text)), flags=re.MULTILINE).strip()
    # A script element ends at the first end tag, even inside a comment.
    if found := UNSUPPORTED.search(BLOCK_COMMENT.sub("", text)) or END_OF_SCRIPT.search(code):
        raise ValueError(f"{name}.js: {found.group()!r} cannot be linked")
    imports = [
        f"{{{''.join(names.split())}}}={variables[_resolve(name, path)]}" for names, path in IMPORT.findall(source)
    ]
    lines = [f"const {variables[name]} = (() => {{", code, f"return {{{','.join(exports)}}};", "})();"]
    if imports:
        lines.insert(1, f"const {','.join(imports)};")
    return f"// {name}.js\n" + "\n".join(lines) + "\n"


def _resolve(name: str, path: str) -> str:
    """The module that another imports by a relative path."""
    return posixpath.normpath(posixpath.join(posixpath.dirname(name), path))


@cache
def styles(main: str) -> str:
    """The shared style.css, and the styles of the folders whose modules a page has."""
    folders = sorted({posixpath.dirname(name) for name in _sources(main)} - {""})
    sheets = [STATIC / "style.css"]
    for folder in folders:
        sheets += sorted(
            (file for file in (STATIC / folder).iterdir() if file.name.endswith(".css")), key=lambda file: file.name
        )
    return "\n" + "\n".join(STYLE_SPACE.sub("", file.read_text(encoding="utf-8")).strip() for file in sheets) + "\n"


def sha256_source(text: str) -> str:
    """A script or a style as a Content-Security-Policy names it (CSP level 3, section 2.3.1)."""
    return f"sha256-{b64encode(hashlib.sha256(text.encode()).digest()).decode()}"
