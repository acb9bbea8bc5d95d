"""One file of many: modules, styles and what the page carries, joined so that it needs nothing else.

The modules in static/ are plain ES modules. In a page they stand in one script, in the order in which they need each
other, without their import lines; so their names must differ.
"""

from __future__ import annotations

import hashlib
import html
import re
from base64 import b64encode
from collections.abc import Iterator
from functools import cache
from graphlib import TopologicalSorter
from importlib.resources import files
from importlib.resources.abc import Traversable
from string import Template

from regard.views.html.codec import packed, seven_bits

__all__ = ["linked", "page"]

STATIC = files("regard.views.html") / "static"
IMPORT = re.compile(r'^import \{\s*\w+(?:,\s*\w+)*,?\s*\} from "\.\.?/(?:\w+/)?(\w+)\.js";\n', re.MULTILINE)
EXPORT = re.compile(r"^export (?=(?:async )?(?:function|const|let|class)\b)", re.MULTILINE)
STRAY = re.compile(r"^(?:import|export)\b.*|\bimport\s*[(.]", re.MULTILINE)
END = re.compile(r"</script|<!--", re.IGNORECASE)
BLOCK = re.compile(r"/\*.*?\*/", re.DOTALL)
"""A comment, in which types may be imported as they like."""

COMMENT = re.compile(r"^[ \t]*(?:/\*\*(?:(?!\*/).)*\*/|//[^\n]*)\n", re.MULTILINE | re.DOTALL)
"""A comment with lines of its own: static/ is where to read the code, and a page has to be small."""

NAMED = re.compile(r"^(?:export )?(?:async )?(?:function\*?|const|let|class) (\w+)", re.MULTILINE)


def page(title: str, facts: bytes, numbers: bytes) -> str:
    """A page that shows some facts and numbers, as one file.

    Args:
        title: for the window.
        facts: JSON, what `static/core/data.js` calls Facts.
        numbers: what the facts point into.
    """
    script, style = linked("main"), styles()
    policy = (
        f"default-src 'none'; script-src '{_sha(script)}'; style-src '{_sha(style)}'; img-src data:; "
        "base-uri 'none'; form-action 'none'"
    )
    carried = {"facts": packed(facts), "numbers": packed(numbers)}
    sizes = {f"{name}_bytes": len(data) for name, data in carried.items()}
    texts = {name: seven_bits(data) for name, data in carried.items()}
    frame = Template((STATIC / "page.html").read_text(encoding="utf-8"))
    return frame.substitute(policy=policy, title=html.escape(title), style=style, script=script, **sizes, **texts)


@cache
def linked(main: str) -> str:
    """A module and all that it needs, as one.

    Raises:
        ValueError: two modules use a name, or need each other; an import of another form than
            ``import { a } from "./b.js";``, an export that is no declaration, or what would end the script.
    """
    modules = {file.name.removesuffix(".js"): file for file in _files(".js")}
    sources: dict[str, str] = {}
    needs: dict[str, list[str]] = {}
    waiting = [main]
    while waiting:
        name = waiting.pop()
        if name in sources:
            continue
        sources[name] = modules[name].read_text(encoding="utf-8")
        needs[name] = IMPORT.findall(sources[name])
        waiting += needs[name]
    owner: dict[str, str] = {}
    parts = []
    for name in TopologicalSorter(needs).static_order():
        source = sources[name]
        for used in NAMED.findall(source):
            if owner.setdefault(used, name) != name:
                raise ValueError(f"{used} stands in {owner[used]}.js and in {name}.js: one script has room for one")
        text = EXPORT.sub("", IMPORT.sub("", source))
        bare = re.sub(r"^ +", "", COMMENT.sub("", text), flags=re.MULTILINE)
        # A page's script ends at the first end tag, in a comment too.
        if stray := STRAY.search(BLOCK.sub("", text)) or END.search(bare):
            raise ValueError(f"{name}.js: {stray.group()!r} cannot be linked")
        parts.append(f"// {name}.js\n{bare.strip()}\n")
    return "\n" + "\n".join(parts)


@cache
def styles() -> str:
    """The styles of all views, those that they share first."""
    sheets = sorted(_files(".css"), key=lambda file: (file.name != "style.css", file.name))
    return "\n" + "\n".join(file.read_text(encoding="utf-8").strip() for file in sheets) + "\n"


def _files(ending: str) -> Iterator[Traversable]:
    """All files of static/ and of its folders, one for each view."""
    for file in STATIC.iterdir():
        yield from (each for each in (file.iterdir() if file.is_dir() else [file]) if each.name.endswith(ending))


def _sha(text: str) -> str:
    return f"sha256-{b64encode(hashlib.sha256(text.encode()).digest()).decode()}"
