"""Writing a page: what is told, what is carried, and the whole of it as one text."""

from __future__ import annotations

import html
import json
from collections.abc import Callable, Iterable, Mapping, Sequence
from importlib.metadata import version
from typing import Any

import torch

from regard.lens.chosen import choose, named
from regard.lens.map import AttentionMap
from regard.lens.recording import Recording
from regard.lens.summary import CELLS
from regard.views.page.carried import WHOLE, Carrier, cannot
from regard.views.page.codec import Numbers
from regard.views.page.contents import THUMBNAIL, Texts, Told, groups_of, read
from regard.views.page.fineness import Fineness
from regard.views.page.image import Image
from regard.views.page.linked import linked, page, styles
from regard.views.page.room import Plan, Wanted, planned

__all__ = ["LIMIT", "Image", "notebook", "written"]

LIMIT = 5_000_000
"""A page has at most so many bytes, unless somebody says otherwise."""

FAR = 512
"""The picture of a large map that is carried whole has so many rows and columns, to begin with."""

FACTS = 1_200
"""About so many bytes of a page tell of a head, its small picture included."""

TRIES = 4
"""What is carried is guessed from how well it packs, so it may take some tries to stay below the limit."""

Progress = Callable[[Iterable[str]], Iterable[str]]


def written(
    recording: Recording,
    *,
    title: str | None = None,
    model: str = "",
    limit: int = LIMIT,
    batch: int = 0,
    heads: Sequence[tuple[str | int, int]] | None = None,
    image: Image | None = None,
    context: Mapping[str, Any] | None = None,
    each: Progress = lambda paths: paths,
) -> str:
    """The page of a recording; `Recording.to_html` says what the arguments are.

    Args:
        recording: what is shown.
        title: see there.
        model: see there.
        limit: see there.
        batch: see there.
        heads: see there.
        image: whose patches are the tokens.
        context: what `regard.lens.context` found, as its `to_dict` says.
        each: what the paths go through while they are asked one by one: a progress bar.

    Raises:
        ValueError: nothing to show; a limit that is too small for any page.
        IndexError: a batch row or a head that is not there.
        KeyError: a path that is not there.
    """
    groups, texts, notes = groups_of(recording), Texts(), list(recording.notes)
    told: list[Told] = []
    for path in each(list(recording)):
        try:
            told.append(read(recording, path, groups[path], batch, texts))
        except RuntimeError as error:
            notes.append(f"{path}: {error}")
    if not told:
        raise ValueError(f"there is no attention to show: {'; '.join(notes) or 'the recording is empty'}")
    if told[0].entry.shape[0] > 1:
        notes.append(f"This is text {batch} of a batch of {told[0].entry.shape[0]}: to_html(batch=...) shows another.")
    opened = _opened(recording, told)
    finenesses, refused = _carriable(told)
    order = _order(recording, told, opened, heads)
    opened = order[0] if heads else opened
    facts: dict[str, Any] = {
        "title": title or _titled(texts, told[opened[0]]),
        "model": model or "a model of yours",
        "made": f"regard {version('regard')}",
        "texts": texts.facts(),
        "notes": notes,
        "image": None if image is None else image.facts(told),
        "context": context,
    }
    fixed = len(linked("main")) + len(styles()) + len(json.dumps([facts["image"], facts["texts"], context])) + 5_000
    room = float(limit - fixed - FACTS * sum(len(each.facts["heads"]) for each in told))
    for _ in range(TRIES):
        plan = planned(finenesses, order, room)
        text = _page(facts, told, plan, finenesses, refused, opened, limit)
        size = len(text.encode())
        if size <= limit:
            return text
        if not plan.heads:
            break
        room -= 1.05 * (size - limit)
    raise ValueError(
        f"a page of this recording takes {size:,} bytes without any head carried whole, and limit={limit:,}: "
        "watch fewer layers, or give a larger limit"
    )


def notebook(text: str) -> str:
    """A page as a notebook shows it: in a frame of its own, which may run its script and nothing else."""
    return (
        f'<iframe srcdoc="{html.escape(text)}" sandbox="allow-scripts allow-downloads" title="attention" '
        'style="width: 100%; height: 760px; border: 0"></iframe>'
    )


def _page(
    facts: Mapping[str, Any],
    told: Sequence[Told],
    plan: Plan,
    finenesses: Mapping[int, Fineness],
    refused: Mapping[str, str],
    opened: Wanted,
    limit: int,
) -> str:
    numbers = Numbers()
    attentions = [
        _attention(each, plan, numbers, finenesses.get(place), [head for at, head in plan.heads if at == place])
        for place, each in enumerate(told)
    ]
    attention, head = opened
    pairs = attentions[attention]["heads"][head]["pairs"]
    query = pairs[0]["query"] if pairs else attentions[attention]["queries"] - 1
    if plan.rows is not None and query not in plan.rows:
        query = int(plan.rows[-1])
    facts = {
        **facts,
        "attentions": attentions,
        "left": _left(told, plan, refused, limit),
        "shorts": numbers.shorts,
        "open": {"attention": attention, "head": head, "query": query},
    }
    said = json.dumps(facts, ensure_ascii=False, separators=(",", ":"), allow_nan=False)
    return page(facts["title"], said.encode(), numbers.bytes())


def _attention(
    told: Told, plan: Plan, numbers: Numbers, fineness: Fineness | None, whole: Sequence[int]
) -> dict[str, Any]:
    """What static/data.js calls Attention."""
    facts = {**told.facts, "heads": [dict(head) for head in told.facts["heads"]]}
    if whole and fineness is not None and isinstance(told.made, AttentionMap):
        facts["within"] = fineness.settle(plan.bound)
        carrier = Carrier(told.made, numbers, plan.bound, fineness)
        for head in whole:
            facts["heads"][head]["carried"] = carrier.head(head, plan.rows, values=plan.values)
        facts["kv"] = carrier.kv
        facts["low"], facts["high"] = carrier.ranges()
    large = told.facts["queries"] * told.facts["keys"] > WHOLE
    small = len(whole) == len(facts["heads"]) and not large
    pictures = told.picture(THUMBNAIL if small else CELLS)
    far = told.picture(FAR) if large and whole else pictures
    for place, head in enumerate(facts["heads"]):
        cells = (far if place in whole else pictures)[place]
        head["most"] = max(float(cells.max()), 1e-12)
        head["picture"] = numbers.shares((cells / head["most"]).clamp(0, 1).sqrt())
    return facts


def _opened(recording: Recording, told: Sequence[Told]) -> Wanted:
    """What is shown first."""
    paths = [each.path for each in told]
    try:
        path, head = choose(recording)
    except (ValueError, RuntimeError):  # no weight anywhere; or tensors that were changed
        return 0, 0
    return (paths.index(path), head) if path in paths else (0, 0)


def _carriable(told: Sequence[Told]) -> tuple[dict[int, Fineness], dict[str, str]]:
    """The attentions whose rows a page can compute, and why not the others."""
    finenesses: dict[int, Fineness] = {}
    refused: dict[str, str] = {}
    for place, each in enumerate(told):
        if not isinstance(each.made, AttentionMap):
            refused[each.path] = 'this recording keeps summaries; watch with keep="maps"'
        elif not bool(torch.isfinite(each.made.q).all() & torch.isfinite(each.made.k).all()):
            refused[each.path] = "its queries or keys are not finite"
        elif reason := cannot(each.made):
            refused[each.path] = reason
        else:
            finenesses[place] = Fineness(each.made)
    return finenesses, refused


def _order(
    recording: Recording, told: Sequence[Told], opened: Wanted, heads: Sequence[tuple[str | int, int]] | None
) -> list[Wanted]:
    """The heads to carry whole: those that are asked for; else the one shown first, its layer, and then all others."""
    if heads is None:
        layers = sorted(range(len(told)), key=lambda place: place != opened[0])
        every = [(place, head) for place in layers for head in range(len(told[place].facts["heads"]))]
        return [opened, *(wanted for wanted in every if wanted != opened)]
    paths = [each.path for each in told]
    return [(paths.index(path), head) for path, head in named(recording, heads) if path in paths]


def _titled(texts: Texts, told: Told) -> str:
    words = " ".join(texts.tokens(told.facts["keyText"])[:30]) if told.made.tokens else told.path
    return f"{words[:120]}" or "attention"


def _left(told: Sequence[Told], plan: Plan, refused: Mapping[str, str], limit: int) -> list[str]:
    """What a page leaves out, and how to get it."""
    lines = [f"{path}: pictures only: {why}." for path, why in refused.items()]
    every = sum(len(each.facts["heads"]) for each in told if each.path not in refused)
    if len(plan.heads) < every:
        lines.append(
            f"{every - len(plan.heads)} of {every} heads are here as pictures, not whole: there was no room within "
            f"{limit / 1e6:g} MB. A larger page holds more: to_html(limit={4 * limit:_}) or regard see --limit "
            f"{4 * limit / 1e6:g}; to_html(heads=[(layer, head)]) or regard see --heads LAYER.HEAD says which come "
            "first."
        )
    if plan.heads and not plan.values:
        lines.append("The values, and so weights @ v, of the head that is whole: a larger limit brings them.")
    if plan.rows is not None:
        attention = told[plan.heads[0][0]]
        lines.append(
            f"Of the head that is whole, {len(plan.rows):,} of {attention.facts['queries']:,} rows: those that look at "
            "the fewest keys, and the last."
        )
    return lines
