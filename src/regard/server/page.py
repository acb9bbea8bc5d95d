"""The page of `regard live`: the shell of live pages with the engine that asks this server, and its policy."""

from __future__ import annotations

import html
from string import Template

from regard.views.html.bundle import STATIC, bundle_modules, sha256_source, styles

ENTRY = "live/server_page"
"""The module that opens the page."""


def live_page(name: str, frame_ancestors: str) -> tuple[str, str]:
    """The page, and its Content-Security-Policy for the header.

    It may run its one script, and ask the server that it comes from; no text and no model's name can add to that.

    Args:
        name: of the model.
        frame_ancestors: the sources that may show the page in a frame.
    """
    script, style = bundle_modules(ENTRY), styles(ENTRY)
    policy = (
        f"default-src 'none'; script-src '{sha256_source(script)}'; style-src '{sha256_source(style)}'; "
        f"img-src data:; connect-src 'self'; base-uri 'none'; form-action 'none'; frame-ancestors {frame_ancestors}"
    )
    template = Template((STATIC / "live" / "server_page.html").read_text(encoding="utf-8"))
    return template.substitute(title=html.escape(f"{name}: regard live"), style=style, script=script), policy
