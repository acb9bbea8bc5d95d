"""A recording as one HTML page: `render_page` collects the facts and fills the page up to its largest size."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from importlib.metadata import version
from typing import Any

from regard.errors import InputError
from regard.lens.effects.effects import Effects
from regard.lens.maps.map import AttentionMap
from regard.lens.maps.prepared import no_grad_no_autocast
from regard.lens.maps.summary import SUMMARY_CELLS
from regard.lens.recording.head_selection import most_informative_head, resolve_heads
from regard.lens.recording.recording import Recording
from regard.views.html.budget import HeadRef, PagePlan, plan_page
from regard.views.html.draft import PageContents, PageDraft, RenderedPage
from regard.views.html.effects import EFFECT_VIEW, as_list, effect_facts, effects_of_page, one_text, render_alone
from regard.views.html.facts import AttentionFacts, PageTexts, attention_facts, group_names
from regard.views.html.image import PageImage
from regard.views.html.notebook import notebook_frame
from regard.views.html.patches import PagePatches
from regard.views.html.payload import unsupported_reason
from regard.views.html.picture import describe, draw_picture
from regard.views.html.quantization import MAX_WEIGHT_ERROR, MapQuantization

DEFAULT_MAX_SIZE = 5_000_000
"""The largest size of a page in bytes, unless the caller gives another."""

MAX_ATTEMPTS = 5
"""The size of a payload is an estimate, so it may take several attempts to stay below the limit."""

REFILL = 0.985
"""The share of the corrected room that the next attempt fills."""

NOT_PATCHES = {"query_patches": None, "key_patches": None}
"""The facts of an attention in a page without an image."""

Progress = Callable[[Iterable[str]], Iterable[str]]


@no_grad_no_autocast
def build_page(recording: Recording, **options: Any) -> RenderedPage:
    """The page of a recording.

    Args:
        recording: what the page shows.
        options: those of `_draft`, which describes them and the errors.

    Raises:
        ValueError: max_size is too small for any page; so are the errors of `_draft`.
    """
    return _fill(*_draft(recording, **options))


@no_grad_no_autocast
def build_contents(recording: Recording, **options: Any) -> PageContents:
    """The facts and numbers of a page, without the rest of the file.

    ``max_size`` is about that of the payload: heads that do not fit have pictures.

    Args:
        recording: what the page shows.
        options: those of `build_page`.

    Raises:
        ValueError: there is nothing to show; effects of another model.
    """
    draft, first, order = _draft(recording, **options)
    return draft.contents(plan_page(draft.quantizations, order, draft.max_size, draft.query), first)


def _draft(
    recording: Recording,
    *,
    title: str | None = None,
    model: str = "",
    max_size: float | int = DEFAULT_MAX_SIZE,
    batch: int = 0,
    heads: Sequence[tuple[str | int, int] | int] | None = None,
    image: PageImage | None = None,
    image_index: int = 0,
    patches: Any = None,
    context: Mapping[str, Any] | None = None,
    effects: Effects | Sequence[Effects] = (),
    view: str | None = None,
    initial: tuple[str, int, int] | None = None,
    progress: Progress = lambda paths: paths,
) -> tuple[PageDraft, HeadRef, list[HeadRef]]:
    """The page of a recording, the head that it shows first, and the heads for its payload by preference.

    `Recording.to_html` describes the arguments.

    Args:
        recording: what the page shows.
        title: see there.
        model: see there.
        max_size: see there.
        batch: see there.
        heads: see there.
        image: the image whose patches are tokens.
        image_index: see there.
        patches: see there.
        context: the contextual study as plain data: the `to_dict` of the result of `regard.lens.text.contextual`.
        effects: results of `regard.effect`, for the view Effect.
        view: the name of the view that opens first; by default the first one.
        initial: the path, the index of the head in its map, and the query that the page shows first; by default the
            strongest pair of the first of the heads, or of the most informative one.
        progress: wraps the paths that are read one by one: a progress bar.

    Raises:
        TypeError: an argument of another type.
        ValueError: there is nothing to show; max_size is too small for any page; patches that do not fit; effects of
            another model.
        IndexError: there is no such batch row, head or image.
        KeyError: there is no such path.
    """
    _check_types(title=title, model=model, max_size=max_size, batch=batch)
    every_effect = as_list(effects)
    given_heads = None if heads is None else resolve_heads(recording, heads)
    rows = max((recording.entry(path).shape[0] for path in recording), default=1)
    if not 0 <= batch < rows:
        raise IndexError(f"batch={batch}: the recording has {rows} texts, counted from 0")
    page_patches = None if image is None else PagePatches(recording, batch, image_index, patches)
    groups, texts, notes = group_names(recording), PageTexts(), list(recording.notes)
    attentions: list[AttentionFacts] = []
    quantizations: dict[int, MapQuantization] = {}
    unsupported: dict[str, str] = {}
    for path in progress(list(recording)):
        try:
            row = batch if page_patches is None else page_patches.row(path)
            attention = attention_facts(recording, path, groups[path], row, texts)
        except (RuntimeError, ValueError, IndexError) as error:
            notes.append(f"{path}: {error}")
            continue
        if reason := _unsupported_reason(attention):
            unsupported[path] = reason
        elif isinstance(attention.source, AttentionMap):
            quantization = MapQuantization(attention.source, attention.statistics.weights)
            quantization.fit(MAX_WEIGHT_ERROR)
            quantizations[len(attentions)] = quantization
        attention.statistics.pooled(SUMMARY_CELLS)
        attention.statistics.release_weights()
        attention.facts |= NOT_PATCHES if page_patches is None else page_patches.facts(path)
        attentions.append(attention)
    if not attentions:
        raise ValueError(f"there is no attention to show: {'; '.join(notes) or 'the recording is empty'}")
    if rows > 1:
        notes.append(f"This is text {batch} of a batch of {rows}: to_html(batch=...) shows another.")
    if page_patches is not None and page_patches.num_images > 1:
        notes.append(
            f"This is image {image_index} of the {page_patches.num_images} of text {batch}: "
            "to_html(image=..., image_index=...) shows another."
        )
    paths = [attention.path for attention in attentions]
    order = list(dict.fromkeys((paths.index(path), head) for path, head in given_heads or () if path in paths))
    first, query = order[0] if order else None, None
    if initial is not None and initial[0] in paths:
        first, query = (paths.index(initial[0]), initial[1]), initial[2]
    first = first or _informative_head(attentions, quantizations or range(len(attentions)))
    if given_heads is None:
        order = _by_layer(attentions, first)
    elif first in order:
        order = [first, *(ref for ref in order if ref != first)]
    shown = {
        attention.path: (index, [head["number"] for head in attention.facts["heads"]])
        for index, attention in enumerate(attentions)
    }
    facts = {
        "effects": [effect_facts(effects_of_page(each, batch, rows), shown, texts) for each in every_effect],
        "view": view,
        "title": title or _default_title(recording, texts, attentions[first[0]]),
        "model": model or recording.model_class or "a model of yours",
        "generator": f"regard {version('regard')}",
        "texts": texts.facts(),
        "notes": notes,
        "image": None if image is None else {"source": image.source},
        "context": context,
    }
    draft = PageDraft(attentions, quantizations, unsupported, given_heads is not None, max_size, facts, query)
    return draft, first, [ref for ref in order if ref[0] in quantizations]


def render_page(recording: Recording, **options: Any) -> str:
    """The page as a text; see `build_page`."""
    return build_page(recording, **options).text


def render_effects_page(
    effects: Effects, *, text: int | None = None, title: str | None = None, model: str = "", max_size: float | int
) -> str:
    """The page of `Effects.to_html`; see there."""
    shown = effects if text is None else one_text(effects, text)
    if effects.recording is None or text not in (None, 0):
        return render_alone(shown, title=title, model=model)
    options: dict[str, Any] = {"title": title, "model": model, "max_size": max_size}
    return render_page(effects.recording, effects=shown, view=EFFECT_VIEW, **options)


def _fill(draft: PageDraft, initial: HeadRef, order: Sequence[HeadRef]) -> RenderedPage:
    """The page with the largest payload that fits.

    Args:
        draft: of the page.
        initial: the head that the page shows first.
        order: the heads for the payload by preference.
    """
    max_size = draft.max_size
    bare = draft.render(PagePlan(), initial, thumbnails=True).size
    room = all_room = float(max_size - bare)
    for _ in range(MAX_ATTEMPTS):
        plan = plan_page(draft.quantizations, order, room, draft.query)
        page = draft.render(plan, initial)
        size = page.size
        if size <= max_size:
            return page
        if not plan.heads:
            break
        # The payload was larger than its estimate by the factor (size - bare) / all_room.
        room = min(plan.size, room) * REFILL * max(all_room, 0) / (size - bare)
    page = draft.render(PagePlan(), initial)
    if (size := page.size) <= max_size:
        return page
    image = draft.facts["image"]
    image_size = f", {len(image['source']):,} of them the image" if image is not None else ""
    raise InputError(
        f"a page of this recording takes {size:,} bytes without any head carried whole{image_size}, and the limit is "
        f"{max_size:,}: {'give a smaller image, ' if image is not None else ''}fewer layers, or a larger limit",
        "max_size",
    )


def render_notebook(recording: Recording) -> str:
    """The page of a recording in a frame for a notebook, with a picture beside it."""
    page = build_page(recording)
    return notebook_frame(page.text, draw_picture(recording, page.facts), describe(page.facts))


def _check_types(**arguments: Any) -> None:
    """Refuse arguments of another type.

    Raises:
        TypeError: an argument has another type.
    """
    expected = {
        "title": (str, "a text"),
        "model": (str, "a text"),
        "max_size": (int | float, "bytes"),
        "batch": (int, "a number"),
    }
    for name, value in arguments.items():
        type_, description = expected[name]
        wrong = not isinstance(value, type_) or isinstance(value, bool) or value != value
        if wrong and not (name == "title" and value is None):
            raise TypeError(f"{name}={value!r}: {description}, please; got {type(value).__name__}")


def _unsupported_reason(attention: AttentionFacts) -> str | None:
    """Why a page cannot compute the rows of an attention; None where it can."""
    if isinstance(attention.source, AttentionMap):
        return unsupported_reason(attention.source)
    return 'this recording keeps summaries; watch with keep="maps"'


def _informative_head(attentions: Sequence[AttentionFacts], indices: Iterable[int]) -> HeadRef:
    """The most informative head of some attentions."""
    by_path = {attentions[index].path: index for index in indices}
    recording = Recording()
    for path, index in by_path.items():
        entry, source = attentions[index].entry, attentions[index].source
        shape = (source.shape[0], source.shape[1], source.shape[2], source.shape[3])
        recording.add(path, source, shape=shape, mask="", kernel="", kind=entry.kind, layer=entry.layer)
    try:
        path, head = most_informative_head(recording)
    except ValueError:  # no weight anywhere
        return next(iter(by_path.values())), 0
    return by_path[path], head


def _by_layer(attentions: Sequence[AttentionFacts], first: HeadRef) -> list[HeadRef]:
    """Every head: the first, the others of its attention, then all others."""
    indices = sorted(range(len(attentions)), key=lambda index: index != first[0])
    refs = [(index, head) for index in indices for head in range(len(attentions[index].facts["heads"]))]
    return [first, *(ref for ref in refs if ref != first)]


def _default_title(recording: Recording, texts: PageTexts, attention: AttentionFacts) -> str:
    text = " ".join(texts.tokens(attention.facts["key_text"])[:30]) if attention.source.tokens else ""
    return (text or recording.model_class)[:120] or "attention"
