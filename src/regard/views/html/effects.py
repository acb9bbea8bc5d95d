"""The facts of the view *Effect*: what was looked at beside what mattered, as static/core/data.js reads them."""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import replace
from importlib.metadata import version
from typing import Any

from torch import Tensor

from regard.lens.effects.columns import TENSORS
from regard.lens.effects.effects import Effects
from regard.lens.effects.table import ABLATION_TEXTS, METHOD_TEXTS, summary
from regard.views.html.draft import write_page
from regard.views.html.facts import PageTexts

MAX_PARTS = 1_000
"""Of more heads, tokens or edges a page has those with the strongest effects."""

HeadsOfPaths = Mapping[str, tuple[int, Sequence[int]]]
"""For the path of each attention in a page its index there, and the numbers of its heads."""

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


def one_text(effects: Effects, text: int) -> Effects:
    """The effects of one text.

    Raises:
        IndexError: no such text.
    """
    if not 0 <= text < len(effects.baseline):
        raise IndexError(f"there is no text {text}: there are {len(effects.baseline)}, counted from 0")
    columns: dict[str, Any] = {
        name: None if (t := getattr(effects, name)) is None else t[text : text + 1] for name in TENSORS
    }
    tokens: dict[str, Any] = {name: getattr(effects, name)[text : text + 1] for name in ("tokens", "query_tokens")}
    return replace(effects, **columns, **tokens)


def effects_of_page(effects: Effects, batch: int, rows: int) -> Effects:
    """The effects of the batch row that a page shows; as they are where they are not of as many texts.

    Args:
        effects: of some texts.
        batch: the batch row that the page shows.
        rows: how many batch rows the recording has.
    """
    return one_text(effects, batch) if len(effects.baseline) == rows else effects


def effect_facts(effects: Effects, heads: HeadsOfPaths, texts: PageTexts) -> dict[str, Any]:
    """`EffectFacts` in static/core/data.js: of one text, or the mean over several, as `Effects.top` describes it.

    Args:
        effects: what mattered.
        heads: for the paths in the page the index of the attention, and the numbers of its heads.
        texts: the texts of the page; that of the tokens is added.

    Raises:
        ValueError: the page has attentions, and none of those that the effects are of.
    """
    if heads and not set(effects.paths) & set(heads):
        raise ValueError(
            f"these effects are of {', '.join(effects.paths[:3])}, and the recording has {', '.join(list(heads)[:3])}: "
            "give the recording of the same model"
        )
    has_tokens = effects.over == "tokens"
    tokens = effects.tokens[0] if has_tokens and effects.tokens else ()
    return {
        "over": effects.over,
        "metric": effects.metric,
        "ablation": ABLATION_TEXTS.get(effects.ablation, effects.ablation),
        "method": METHOD_TEXTS[effects.method],
        "looked_at": None if effects.looked_at is None else effects.looked_at_name,
        "baseline": _number(effects.of_text(effects.baseline)),
        "num_texts": 1 if effects.over in ("tokens", "edges") else len(effects.baseline),
        "summary": summary(effects),
        "notes": list(effects.notes),
        "text": texts.number(tokens or None, effects.values.shape[1]) if has_tokens else None,
        "has_exact": effects.method != "gradient",
        "has_estimates": effects.estimates is not None,
        "parts": list(_parts(effects, heads)),
        "num_parts": int((~effects.best().isnan()).sum()),
    }


def _parts(effects: Effects, heads: HeadsOfPaths) -> Iterator[dict[str, Any]]:
    """The strongest parts, in the order of their indices: those of a model from its first layer on."""
    for ranked in sorted(effects.top(MAX_PARTS), key=lambda each: each.index):
        index = ranked.index[1:]
        place = _place(effects, index, heads)
        yield {
            "name": ranked.name,
            **place,
            "effect": _number(ranked.effect),
            "estimate": _number(ranked.estimate),
            "looked_at": _number(ranked.looked_at),
        }


def _place(effects: Effects, index: tuple[int, ...], heads: HeadsOfPaths) -> dict[str, int | None]:
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


def render_alone(effects: Effects, *, title: str | None = None, model: str = "") -> str:
    """A page of effects without a recording: the view *Effect* and no other.

    Args:
        effects: of one text, or the mean over several.
        title: the title; by default the tokens, or the metric.
        model: the model's name.
    """
    texts = PageTexts()
    tokens = "".join(effects.tokens[0]) if effects.tokens else ""
    facts = {
        "title": title or tokens[:120] or effects.metric,
        "model": model or "a model of yours",
        "generator": f"regard {version('regard')}",
        "effects": [effect_facts(effects, {}, texts)],
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
