"""The page: the attention of a recording as one file that needs nothing else, neither a network nor a server."""

from regard.views.html.page import LIMIT, Image, notebook, written

__all__ = ["LIMIT", "Image", "notebook", "written"]
