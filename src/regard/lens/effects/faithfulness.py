"""Faithfulness of rankings: whether what a ranking puts first is what the model uses.

"ERASER: A Benchmark to Evaluate Rationalized NLP Models" (DeYoung et al. 2020, arXiv:1911.03429, section 4.2):

- comprehensiveness: how far the metric falls if the top of the ranking is removed; high if all that matters is in it;
- sufficiency: how far it falls if only the top is left; low if the top is enough.

Each is the mean over some fractions of the ranking, the area over the perturbation curve (AOPC).
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor, nn

from regard._shapes import Float
from regard.lens.effects.ablate import numbers
from regard.lens.effects.effect import prepare_run
from regard.lens.effects.effect_run import EffectRequest, EffectRun
from regard.lens.effects.metrics import Metric
from regard.lens.effects.parts import Index, Parts
from regard.lens.intervene import intervene
from regard.pretrained import Pretrained

FRACTIONS = (0.01, 0.05, 0.1, 0.2, 0.5)


@dataclass(frozen=True, eq=False)
class Faithfulness:
    """Comprehensiveness and sufficiency of rankings; `regard.faithfulness` makes it, ``print`` shows a table."""

    over: str
    """``heads`` or ``tokens``."""
    metric: str
    ablation: str
    """``zero``, ``mean`` or ``resample``; ``block`` for tokens."""
    fractions: tuple[float, ...]
    baseline: float
    """The metric of the model as it is, mean over the texts."""
    removed: dict[str, Float[Tensor, " fractions"]]
    """For each ranking how far the metric falls without the top, by the fraction of the ranking that the top is."""
    kept: dict[str, Float[Tensor, " fractions"]]
    """The same with only the top left."""

    @property
    def comprehensiveness(self) -> dict[str, float]:
        """The mean of `removed`: higher is better."""
        return {name: float(t.mean()) for name, t in self.removed.items()}

    @property
    def sufficiency(self) -> dict[str, float]:
        """The mean of `kept`: lower is better."""
        return {name: float(t.mean()) for name, t in self.kept.items()}

    def __str__(self) -> str:
        shares = [f"{100 * fraction:.3g}%" for fraction in self.fractions]
        rows = [("ranking", "comprehensiveness", *shares, "sufficiency", *shares)]
        for name in self.removed:
            columns = (self.comprehensiveness[name], *self.removed[name].tolist())
            columns += (self.sufficiency[name], *self.kept[name].tolist())
            rows.append((name, *(f"{number:.3g}" for number in columns)))
        widths = [max(map(len, column)) for column in zip(*rows, strict=True)]
        lines = [
            "  ".join(
                cell.rjust(w) if n else cell.ljust(w) for n, (cell, w) in enumerate(zip(row, widths, strict=True))
            )
            for row in rows
        ]
        return "\n".join(
            [
                f"How far {self.metric}, {self.baseline:.3g} as the model is, falls without the top {self.over} of a "
                "ranking (comprehensiveness, higher is better) and with the top only (sufficiency, lower is better): "
                f"the mean, and by the share of the {self.over} that the top is. Ablation: {self.ablation}.",
                *lines,
            ]
        )


def faithfulness(
    model: Pretrained | nn.Module,
    inputs: Any,
    metric: Metric | Callable[[Any], Any],
    rankings: Mapping[str, Tensor],
    over: str = "heads",
    fractions: Sequence[float] = FRACTIONS,
    *,
    ablation: str = "zero",
    source: Any = None,
    tokenizer: Any = None,
    seed: int = 0,
) -> Faithfulness:
    """Hold rankings of heads or tokens against one another: does what they put first matter to the model?

    ::

        effects = regard.effect(model, text, metric, method="both", top=270)
        print(regard.faithfulness(model, text, metric, {
            "attention": effects.looked_at,
            "gradient": effects.estimates,
            "exact": effects.values,
            "random": torch.rand_like(effects.values),
        }))

    Comprehensiveness and sufficiency of ERASER (DeYoung et al. 2020, section 4.2), with heads ablated or tokens hidden
    in place of words deleted: the top of a ranking is removed all at once, or everything but the top.

    Args:
        model: as for `regard.effect`, and so are inputs, metric, ablation, source, tokenizer and seed.
        inputs: see there.
        metric: see there; higher should be better.
        rankings: for each name the scores, highest first: ``(texts, attentions, heads)`` or ``(texts, tokens)`` as in
            `Effects`, or without the texts, the same for all of them. What is NaN comes last.
        over: ``heads`` or ``tokens``.
        fractions: how much of a ranking is its top, above 0 and up to 1; at least one part.
        ablation: see there.
        source: see there.
        tokenizer: see there.
        seed: see there.

    Raises:
        ValueError: no ranking, one of another shape, or fractions outside of 0 to 1; as `regard.effect` does.
        TypeError: a ranking that is no tensor; as `regard.effect` does.
    """
    if over not in ("heads", "tokens"):
        raise ValueError(f'over={over!r}: rankings are of "heads" or "tokens"')
    fractions = tuple(float(fraction) for fraction in fractions)
    if not fractions or any(not 0 < fraction <= 1 for fraction in fractions):
        raise ValueError(f"fractions={fractions!r}: shares of a ranking above 0 and up to 1, such as {FRACTIONS}")
    if not rankings:
        raise ValueError('rankings={} holds none: give one at least, such as {"exact": effects.values}')
    request = EffectRequest(over, "exact")
    run = prepare_run(model, inputs, metric, request, ablation=ablation, source=source, tokenizer=tokenizer, seed=seed)
    run.read()
    removed = {name: torch.zeros(len(fractions), dtype=torch.float64) for name in rankings}
    kept = {name: torch.zeros(len(fractions), dtype=torch.float64) for name in rankings}
    texts = len(run.states)
    for number in range(texts):
        parts, falls = run.parts_of(number), _Falls(run, number)
        for name, ranking in rankings.items():
            order = _order(name, ranking, number, texts, parts)
            for n, fraction in enumerate(fractions):
                top = max(1, round(fraction * len(order)))
                removed[name][n] += falls(parts, order[:top]) / texts
                kept[name][n] += falls(parts, order[top:]) / texts
    baseline = sum(state.baseline for state in run.states) / texts
    return Faithfulness(
        over, run.subject.metric.name, ablation if over == "heads" else "block", fractions, baseline, removed, kept
    )


@dataclass
class _Falls:
    """How far the metric of one text falls without some parts."""

    run: EffectRun
    number: int

    def __call__(self, parts: Parts, indices: Sequence[Index]) -> float:
        if not indices:
            return 0.0
        subject, state = self.run.subject, self.run.states[self.number]
        with torch.no_grad(), intervene(subject.model, verify=False) as edit:
            parts.write_all(edit, indices)
            output = subject.run(state.text)
        (metric,) = numbers(subject.metric(output, state.context), 1, subject.metric.name)
        return state.baseline - metric


def _order(name: str, ranking: Tensor, number: int, texts: int, parts: Parts) -> list[Index]:
    """The parts of a text by their scores, highest first."""
    if not isinstance(ranking, Tensor):
        raise TypeError(f"rankings[{name!r}] must be a tensor of scores; got {type(ranking).__name__}")
    scores = ranking.detach().double().cpu()
    axes = len(parts.shape)
    if scores.ndim == axes + 1 and len(scores) == texts:
        scores = scores[number]
    # A shorter text has fewer tokens than the ranking of all texts has room for.
    if scores.ndim != axes or any(has < needs for has, needs in zip(scores.shape, parts.shape, strict=True)):
        raise ValueError(
            f"rankings[{name!r}] has the shape {tuple(ranking.shape)}, and {parts.shape} or {(texts, *parts.shape)} is "
            "needed, as Effects.values has"
        )

    def score(index: Index) -> float:
        value = float(scores[index])
        return -math.inf if math.isnan(value) else value

    return sorted(parts.indices(), key=score, reverse=True)
