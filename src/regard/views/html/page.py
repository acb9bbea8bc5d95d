"""Writing a page: what is told, what is carried, and the whole of it as one text."""

from __future__ import annotations

import html
from collections.abc import Callable, Iterable, Mapping, Sequence
from importlib.metadata import version
from typing import Any

from regard.lens.maps.map import AttentionMap
from regard.lens.maps.prepared import no_grad_no_autocast
from regard.lens.maps.summary import SUMMARY_CELLS
from regard.lens.recording.head_selection import most_informative_head, resolve_heads
from regard.lens.recording.recording import Recording
from regard.views.html.budget import Plan, Wanted, planned
from regard.views.html.facts import Texts, Told, groups_of, read
from regard.views.html.image import PageImage
from regard.views.html.payload import cannot
from regard.views.html.quantization import COARSEST, Fineness
from regard.views.html.render import Draft

__all__ = ["DEFAULT_MAX_SIZE", "PageImage", "notebook_frame", "render_page"]

DEFAULT_MAX_SIZE = 5_000_000
"""A page has at most so many bytes, unless somebody says otherwise."""

TRIES = 5
"""What fits is guessed from how well it should pack, so it may take some tries to stay below the limit."""

SPARE = 0.985
"""Of the room that a wrong guess leaves, so much is filled the next time."""

Progress = Callable[[Iterable[str]], Iterable[str]]


@no_grad_no_autocast
def render_page(
    recording: Recording,
    *,
    title: str | None = None,
    model: str = "",
    max_size: float | int = DEFAULT_MAX_SIZE,
    batch: int = 0,
    heads: Sequence[tuple[str | int, int]] | None = None,
    image: PageImage | None = None,
    context: Mapping[str, Any] | None = None,
    each: Progress = lambda paths: paths,
) -> str:
    """The page of a recording; `Recording.to_html` says what the arguments are.

    Args:
        recording: what is shown.
        title: see there.
        model: see there.
        max_size: see there.
        batch: see there.
        heads: see there.
        image: whose patches are the tokens.
        context: what `regard.lens.text.contextual` found, as its `to_dict` says.
        each: what the paths go through while they are asked one by one: a progress bar.

    Raises:
        TypeError: an argument of another type.
        ValueError: nothing to show; a limit that is too small for any page.
        IndexError: a batch row or a head that is not there.
        KeyError: a path that is not there.
    """
    _refuse_types(title=title, model=model, max_size=max_size, batch=batch)
    asked = None if heads is None else resolve_heads(recording, heads)
    rows = max((recording.entry(path).shape[0] for path in recording), default=1)
    if not 0 <= batch < rows:
        raise IndexError(f"batch={batch}: the recording has {rows} texts, counted from 0")
    groups, texts, notes = groups_of(recording), Texts(), list(recording.notes)
    told: list[Told] = []
    finenesses: dict[int, Fineness] = {}
    refused: dict[str, str] = {}
    for path in each(list(recording)):
        try:
            one = read(recording, path, groups[path], batch, texts)
        except (RuntimeError, ValueError, IndexError) as error:
            notes.append(f"{path}: {error}")
            continue
        if reason := _refusal(one):
            refused[path] = reason
        elif isinstance(one.made, AttentionMap):
            fineness = finenesses[len(told)] = Fineness(one.made, one.answers.weights)
            fineness.settle(COARSEST)
        one.answers.picture(SUMMARY_CELLS)
        one.answers.forget()
        told.append(one)
    if not told:
        raise ValueError(f"there is no attention to show: {'; '.join(notes) or 'the recording is empty'}")
    if rows > 1:
        notes.append(f"This is text {batch} of a batch of {rows}: to_html(batch=...) shows another.")
    paths = [one.path for one in told]
    whole = None if asked is None else [(paths.index(path), head) for path, head in asked if path in paths]
    first = whole[0] if whole else _worth_seeing(told, finenesses or range(len(told)))
    order = _by_layer(told, first) if whole is None else list(dict.fromkeys(whole))
    facts = {
        "title": title or _titled(texts, told[first[0]]),
        "model": model or "a model of yours",
        "made": f"regard {version('regard')}",
        "texts": texts.facts(),
        "notes": notes,
        "image": None if image is None else image.facts(_may_look(told)),
        "context": context,
    }
    draft = Draft(told, finenesses, refused, asked is not None, max_size, facts)
    return _filled(draft, first, [wanted for wanted in order if wanted[0] in finenesses])


def _filled(draft: Draft, first: Wanted, order: Sequence[Wanted]) -> str:
    """The page with as much as there is room for.

    Args:
        draft: of the page.
        first: the head that is shown first.
        order: the heads that are wanted whole, the first first.
    """
    max_size = draft.max_size
    bare = len(draft.page(Plan(), first, small=True).encode())
    room = all_room = float(max_size - bare)
    for _ in range(TRIES):
        plan = planned(draft.finenesses, order, room)
        text = draft.page(plan, first)
        size = len(text.encode())
        if size <= max_size:
            return text
        if not plan.heads:
            break
        # What is carried took more than was thought, by this factor.
        room = min(plan.size, room) * SPARE * max(all_room, 0) / (size - bare)
    text = draft.page(Plan(), first)
    if (size := len(text.encode())) <= max_size:
        return text
    image = draft.facts["image"]
    much = f", {len(image['source']):,} of them the image" if image is not None else ""
    raise ValueError(
        f"a page of this recording takes {size:,} bytes without any head carried whole{much}, and "
        f"max_size={max_size:,}: {'give a smaller image, ' if image is not None else ''}watch fewer "
        "layers, or give a larger limit"
    )


def notebook_frame(text: str) -> str:
    """A page as a notebook shows it: in a frame of its own, which may run its script and nothing else."""
    return (
        f'<iframe srcdoc="{html.escape(text)}" sandbox="allow-scripts allow-downloads" title="attention" '
        'style="width: 100%; height: 760px; border: 0"></iframe>'
    )


def _refuse_types(**given: Any) -> None:
    """Say which argument is of the wrong type.

    Raises:
        TypeError: one is.
    """
    wanted = {
        "title": (str, "a text"),
        "model": (str, "a text"),
        "max_size": (int | float, "bytes"),
        "batch": (int, "a number"),
    }
    for name, value in given.items():
        kind, said = wanted[name]
        wrong = not isinstance(value, kind) or isinstance(value, bool) or value != value
        if wrong and not (name == "title" and value is None):
            raise TypeError(f"{name}={value!r}: {said}, please; got {type(value).__name__}")


def _refusal(told: Told) -> str | None:
    """Why a page cannot compute the rows of an attention; None where it can."""
    if isinstance(told.made, AttentionMap):
        return cannot(told.made)
    return 'this recording keeps summaries; watch with keep="maps"'


def _may_look(told: Sequence[Told]) -> dict[int, int]:
    """The attentions whose keys may be an image's patches, and how many keys each has.

    Where a model has cross-attention, what it looks at is the image, and the stack around it reads its own text.
    """
    decoders = {one.entry.stack for one in told if one.entry.kind == "cross"}
    return {
        place: one.facts["keys"]
        for place, one in enumerate(told)
        if one.entry.kind == "cross" or one.entry.stack not in decoders
    }


def _worth_seeing(told: Sequence[Told], some: Iterable[int]) -> Wanted:
    """The head that is worth seeing first, of some attentions."""
    places = {told[place].path: place for place in some}
    recording = Recording()
    for path, place in places.items():
        entry, made = told[place].entry, told[place].made
        shape = (made.shape[0], made.shape[1], made.shape[2], made.shape[3])
        recording.add(path, made, shape=shape, mask="", kernel="", kind=entry.kind, layer=entry.layer)
    try:
        path, head = most_informative_head(recording)
    except ValueError:  # no weight anywhere
        return next(iter(places.values())), 0
    return places[path], head


def _by_layer(told: Sequence[Told], first: Wanted) -> list[Wanted]:
    """Every head: one, the others of its layer, and all others."""
    layers = sorted(range(len(told)), key=lambda place: place != first[0])
    every = [(place, head) for place in layers for head in range(len(told[place].facts["heads"]))]
    return [first, *(wanted for wanted in every if wanted != first)]


def _titled(texts: Texts, told: Told) -> str:
    words = " ".join(texts.tokens(told.facts["keyText"])[:30]) if told.made.tokens else told.path
    return words[:120] or "attention"
