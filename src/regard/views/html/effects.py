"""The facts of the view *Effect*: what was looked at beside what mattered, as static/core/data.js reads them."""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping, Sequence
from importlib.metadata import version
from typing import Any

from torch import Tensor

from regard.lens.effects.effects import Effects
from regard.lens.effects.table import ABLATIONS, METHODS, summary
from regard.views.html.draft import write_page
from regard.views.html.facts import PageTexts

MAX_PARTS = 1_000
"""Of more heads, tokens or edges a page has those with the strongest effects."""

DIGITS = 6
"""The significant digits of a number."""

EFFECT_VIEW = "effect"
"""The name of the view in the page's links."""


def as_list(effects: Effects | Sequence[Effects]) -> list[Effects]:
    """One or several results of `regard.effect`, as a list.

    Raises:
        TypeError: something else.
    """
    found = [effects] if isinstance(effects, Effects) else list(effects)
    for each in found:
        if not isinstance(each, Effects):
            raise TypeError(f"effects are results of regard.effect, one or a list; got {type(each).__name__}")
    return found


def text_of_page(effects: Effects, batch: int, rows: int) -> int | None:
    """Which text of the effects a page shows; None for the mean over all.

    Args:
        effects: of some texts.
        batch: the batch row that the page shows.
        rows: how many batch rows the recording has.
    """
    texts = len(effects.baseline)
    return batch if texts == rows else 0 if texts == 1 else None


def effect_facts(
    effects: Effects, heads: Mapping[str, tuple[int, Sequence[int]]], texts: PageTexts, text: int | None
) -> dict[str, Any]:
    """`EffectFacts` in static/core/data.js.

    Args:
        effects: what mattered.
        heads: for the paths in the page the index of the attention, and the numbers of its heads.
        texts: the texts of the page; that of the tokens is added.
        text: which text of the effects; None for the mean over all.

    Raises:
        ValueError: the page has attentions, and none of those that the effects are of.
    """
    if heads and effects.over != "tokens" and not set(effects.paths) & set(heads):
        raise ValueError(
            f"these effects are of {', '.join(effects.paths[:3])}, and the recording has {', '.join(list(heads)[:3])}: "
            "give the recording of the same model"
        )
    tokens = effects.tokens[text or 0] if effects.tokens else ()
    has_tokens = effects.over == "tokens"
    count = effects.values.shape[1] if has_tokens else 0
    parts = list(_parts(effects, heads, text))
    mean_of = len(effects.baseline) if text is None and effects.over in ("heads", "layers") else 1
    return {
        "over": effects.over,
        "metric": effects.metric,
        "ablation": ABLATIONS.get(effects.ablation, effects.ablation),
        "method": METHODS[effects.method],
        "looked_at": None if effects.looked_at is None else effects.looked_at_name,
        "baseline": _number(effects.of_text(effects.baseline, text).mean()),
        "num_texts": mean_of,
        "summary": summary(effects, text),
        "notes": list(effects.notes),
        "text": texts.number([*tokens] or None, count) if has_tokens else None,
        "has_exact": effects.method != "gradient",
        "has_estimates": effects.estimates is not None,
        "parts": parts,
        "num_parts": _count(effects, text),
    }


def _count(effects: Effects, text: int | None) -> int:
    """How many parts have an effect or an estimate of it."""
    known = ~effects.of_text(effects.values, text).isnan()
    if effects.estimates is not None:
        known = known | ~effects.of_text(effects.estimates, text).isnan()
    return int(known.sum())


def _parts(
    effects: Effects, heads: Mapping[str, tuple[int, Sequence[int]]], text: int | None
) -> Iterator[dict[str, Any]]:
    """The strongest parts, in the order of their indices: those of a model from its first layer on."""
    for ranked in sorted(effects.top(MAX_PARTS, text=text), key=lambda each: each.index):
        index = ranked.index[1:]
        place = _place(effects, index, heads)
        yield {
            "name": ranked.name,
            **place,
            "effect": _number(ranked.effect),
            "estimate": _number(ranked.estimate),
            "looked_at": _number(ranked.looked_at),
        }


def _place(
    effects: Effects, index: tuple[int, ...], heads: Mapping[str, tuple[int, Sequence[int]]]
) -> dict[str, int | None]:
    """Where the page shows a part: an attention, a head, a token; None for what a part does not have."""
    place: dict[str, int | None] = {"attention": None, "head": None, "token": None}
    if effects.over == "tokens":
        return place | {"token": index[0]}
    number = effects.windows[index[0]][0] if effects.over == "edges" else index[0]
    if effects.paths[number] in heads:
        place["attention"], numbers = heads[effects.paths[number]]
        if effects.over == "heads" and index[1] in numbers:
            place["head"] = list(numbers).index(index[1])
    return place


def _number(value: float | Tensor) -> float | None:
    number = float(value)
    return float(f"{number:.{DIGITS}g}") if math.isfinite(number) else None


def render_effects_page(effects: Effects | Sequence[Effects], *, text: int | None = None, title: str = "") -> str:
    """A page of effects alone, without a recording: the view *Effect* and no other.

    Args:
        effects: one or several results of `regard.effect`.
        text: which text of them; by default the mean over all, as `Effects.top` describes it.
        title: the title; by default the tokens, or the metric.

    Raises:
        TypeError: something else than effects.
        ValueError: no effects.
        IndexError: no such text.
    """
    every, texts = as_list(effects), PageTexts()
    if not every:
        raise ValueError("there is no effect to show: give a result of regard.effect")
    tokens = next((each.tokens[text or 0] for each in every if each.tokens), ())
    facts = {
        "title": title or "".join(tokens)[:120] or every[0].metric,
        "model": "a model of yours",
        "generator": f"regard {version('regard')}",
        "effects": [effect_facts(each, {}, texts, text) for each in every],
        "texts": texts.facts(),
        "notes": [],
        "image": None,
        "context": None,
        "attentions": [],
        "omitted": [],
        "num_int16": 0,
        "view": EFFECT_VIEW,
        "initial": {"attention": 0, "head": 0, "query": 0},
    }
    return write_page(facts, b"").text
