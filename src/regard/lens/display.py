"""Drawing of maps and recordings: the only file of the lens that uses `regard.views`, which stands above it.

The views are imported by name, and only when somebody draws, as pandas does with its plotting backends. So importing
the lens does not import them.
"""

from __future__ import annotations

from collections.abc import Mapping
from importlib import import_module
from pathlib import Path
from typing import TYPE_CHECKING, Any

from regard.files import write_text

if TYPE_CHECKING:
    from matplotlib.figure import Figure


def plot_map(m: Any, **options: Any) -> Figure:
    """See `AttentionMap.plot`."""
    return import_module("regard.views.figures.maps").plot_map(m, **options)  # type: ignore[no-any-return]


def plot_heads(recording: Any, stack: str | None, **options: Any) -> Figure:
    """See `Recording.plot_heads`."""
    return import_module("regard.views.figures.maps").plot_heads(recording, stack, **options)  # type: ignore[no-any-return]


def plot_effects(effects: Any, **options: Any) -> Figure:
    """See `Effects.plot`."""
    return import_module("regard.views.figures.effects").plot_effects(effects, **options)  # type: ignore[no-any-return]


def map_html(m: Any) -> str | None:
    """A map for a notebook; see there."""
    return import_module("regard.views.html.picture").map_html(m)  # type: ignore[no-any-return]


def show_explanation(explanation: Any, **options: Any) -> str:
    """See `Explanation.show`."""
    draw = import_module("regard.views.terminal.explanation").draw
    return import_module("regard.views.terminal.console_text").drawn_text(draw, explanation, **options)  # type: ignore[no-any-return]


def explanation_html(explanation: Any, **options: Any) -> str:
    """The same view for a notebook."""
    draw = import_module("regard.views.terminal.explanation").draw
    return import_module("regard.views.terminal.console_text").drawn_html(draw, explanation, **options)  # type: ignore[no-any-return]


def effects_html(effects: Any, **options: Any) -> str:
    """The table of `regard effect` for a notebook."""
    draw = import_module("regard.views.terminal.effects_table").draw
    return import_module("regard.views.terminal.console_text").drawn_html(draw, effects, **options)  # type: ignore[no-any-return]


def render_page(
    recording: Any, path: str | Path | None, *, image: Any, image_index: int, patches: Any, context: Any, **options: Any
) -> str:
    """See `Recording.to_html`."""
    html = import_module("regard.views.html")
    if context is not None and not isinstance(context, Mapping):
        raise TypeError(
            f"context is the to_dict() of what regard.lens.text.contextual returns; got {type(context).__name__}"
        )
    if patches is not None and image is None:
        raise ValueError(f"patches={patches} are those of an image: give image= too")
    image = None if image is None else html.PageImage.load(image)
    text: str = html.render_page(
        recording, image=image, image_index=image_index, patches=patches, context=context, **options
    )
    if path is not None:
        write_text(text, path)
    return text


def render_effects(effects: Any, path: str | Path | None, *, text: int | None, **options: Any) -> str:
    """See `Effects.to_html`."""
    page: str = import_module("regard.views.html").render_effects_page(effects, text=text, **options)
    if path is not None:
        write_text(page, path)
    return page


def render_notebook(recording: Any) -> str | None:
    """The page in a frame for a notebook; None if there is nothing to show."""
    try:
        return import_module("regard.views.html").render_notebook(recording)  # type: ignore[no-any-return]
    except ValueError:
        return None
