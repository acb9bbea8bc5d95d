"""The page of `regard live`: the scripts and styles in one text. Its data come from the server that it came from."""

from __future__ import annotations

import html
from string import Template
from typing import NamedTuple

from regard.views.html.bundle import STATIC, bundle_modules, source_hash, styles

ENTRY = "live/server_page"
"""The module that the page begins with."""


class ServerPage(NamedTuple):
    """A page as a text, and what it may load."""

    text: str
    policy: str
    """The content-security policy; the text says it, too. A server adds who may show the page in a frame."""


def server_page(title: str) -> ServerPage:
    """The page of a server; it asks the addresses below its own, and no other.

    Args:
        title: of the window.
    """
    script, style = bundle_modules(ENTRY), styles(ENTRY)
    policy = (
        f"default-src 'none'; script-src '{source_hash(script)}'; style-src '{source_hash(style)}'; "
        "connect-src 'self'; img-src data:; base-uri 'none'; form-action 'none'"
    )
    template = Template((STATIC / "server.html").read_text(encoding="utf-8"))
    text = template.substitute(policy=policy, title=html.escape(title), style=style, script=script)
    return ServerPage(text, policy)
