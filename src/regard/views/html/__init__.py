"""The page: a recording as one HTML file that needs neither a network nor a server.

- `page`: `build_page`: collects the facts, and fills the page up to its largest size
- `facts`: texts, attentions and heads
- `payload`: queries, keys, values, mask and bias of a head
- `quantization`: the steps to which queries, keys and values are rounded
- `budget`: the heads whose payload fits, and notes on what is omitted
- `effects`: what was looked at beside what mattered
- `draft`: the page with a given payload
- `codec`: numbers as bytes, and bytes as text
- `model_page`: the page that carries its model, in which it answers what the reader types
- `bundle`: the JavaScript modules and the styles in one file
- `image`: an image whose patches are tokens
- `patches`: where they are in each attention
- `quantized_model`: an encoder in 8 bits, for a page in which it runs
- `picture`: the head that a page opens with, as SVG
- `notebook`: the page in the output of a notebook's cell: the picture, and a frame
- `wordpiece`: a BERT tokenizer's settings, for the page that reads texts itself
- `static/`: the JavaScript modules and the styles: `core/`, `row/` and one folder for each view
"""

from regard.views.html.draft import RenderedPage
from regard.views.html.image import PageImage
from regard.views.html.page import DEFAULT_MAX_SIZE, build_page, render_effects_page, render_notebook, render_page

__all__ = [
    "DEFAULT_MAX_SIZE",
    "PageImage",
    "RenderedPage",
    "build_page",
    "render_effects_page",
    "render_notebook",
    "render_page",
]
