"""The page of `regard live`: the shell of live pages with the engine that asks this server, and its policy."""

from __future__ import annotations

from regard.views.html.bundle import assemble

ENTRY = "live/server_page"
"""The module that opens the page."""


def live_page(name: str, frame_ancestors: str) -> tuple[str, str]:
    """The page, and its Content-Security-Policy for the header.

    It may run its one script, and ask the server that it comes from. What may frame it only a header can say.

    Args:
        name: of the model.
        frame_ancestors: the sources that may show the page in a frame.
    """
    page, policy = assemble(ENTRY, f"{name}: regard live", requests="; connect-src 'self'", needs="JavaScript")
    return page, f"{policy}; frame-ancestors {frame_ancestors}"
