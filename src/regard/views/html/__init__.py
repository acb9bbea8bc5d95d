"""The page: the attention of a recording as one file that needs nothing else, neither a network nor a server."""

from regard.views.html.page import DEFAULT_MAX_SIZE, PageImage, notebook_frame, render_page

__all__ = ["DEFAULT_MAX_SIZE", "PageImage", "notebook_frame", "render_page"]
