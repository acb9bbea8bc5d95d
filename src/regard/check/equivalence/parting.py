"""The first step at which two implementations that give other numbers part."""

from __future__ import annotations

import math
from dataclasses import dataclass, replace

import torch
from torch import Tensor

from regard.check.equivalence.calls import CallPlan, random_inputs
from regard.check.equivalence.cores import AttentionCore, attention_cores
from regard.check.equivalence.proof import TOLERANCE, modes, relative_difference
from regard.check.recipes.case import Case

__all__ = ["STEPS", "Parting", "first_parting"]

STEPS = (
    "projections",
    "scores",
    "scale",
    "mask",
    "weights",
    "weighted sum",
    "heads joined",
    "output projection",
    "output",
)
"""Where they may part, in their order; "output" where the steps of one were not found."""
BLOCKED = -5e3
"""Scores below this are what masks write."""


@dataclass(frozen=True)
class Parting:
    """The first step at which two implementations differ."""

    step: str
    says: str
    """In one sentence, with numbers."""
    difference: float
    """The largest, of the numbers of the step."""


@dataclass(frozen=True, eq=False)
class _Steps:
    """The steps of one call on one sample, by head."""

    q: Tensor
    k: Tensor
    v: Tensor
    logits: Tensor
    weights: Tensor
    summed: Tensor
    output: Tensor


def first_parting(a: CallPlan, b: CallPlan) -> Parting | None:
    """The first step at which two implementations part; None where they do not."""
    found: Parting | None = None
    for causal in modes(a, b):
        for tokens in (5, 1):
            inputs = random_inputs(a, 60, batch=1, tokens=tokens)
            if inputs.q is not None:
                one = min(a.heads, b.heads)
                inputs = replace(
                    inputs,
                    q=inputs.q[:, :one],
                    k=inputs.k[:, :one, :tokens],  # type: ignore[index]
                    v=inputs.v[:, :one, :tokens],  # type: ignore[index]
                )
            parting = _parting(_call(a, inputs, causal), _call(b, inputs, causal))
            if parting is not None and (found is None or STEPS.index(parting.step) < STEPS.index(found.step)):
                found = parting
    return found


def _call(plan: CallPlan, inputs: Case, causal: bool) -> tuple[_Steps | None, Tensor]:
    trace, output = plan.traced(inputs, causal=causal)
    cores = attention_cores(trace)
    queries = inputs.x.shape[1] if inputs.x is not None else inputs.q.shape[2]  # type: ignore[union-attr]
    try:
        return (_steps(cores, output, queries) if cores else None), output
    except RuntimeError:  # heads of different shapes
        return None, output


def _steps(cores: list[AttentionCore], output: Tensor, queries: int) -> _Steps:
    def joined(name: str) -> Tensor:
        return torch.cat([_heads(getattr(core, name), queries) for core in cores])

    return _Steps(
        joined("left"),
        joined("right"),
        joined("values"),
        joined("logits"),
        joined("weights"),
        joined("summed"),
        output,
    )


def _heads(tensor: Tensor, tokens: int) -> Tensor:
    """(heads, tokens, width)."""
    return tensor.reshape(-1, tokens, tensor.shape[-1])


def _parting(a: tuple[_Steps | None, Tensor], b: tuple[_Steps | None, Tensor]) -> Parting | None:
    (one, output_a), (other, output_b) = a, b
    whole = relative_difference(output_a, output_b)
    if whole <= TOLERANCE:
        return None
    if output_a.shape != output_b.shape:
        says = f"A returns {output_a.shape[-1]} numbers for a token, B {output_b.shape[-1]}"
        return Parting("output projection", says, math.inf)
    if one is None or other is None:
        who = " and ".join(name for name, steps in (("A", one), ("B", other)) if steps is None)
        says = f"their outputs differ by {whole:.2g} of the largest; the steps inside {who} were not found"
        return Parting("output", says, whole)
    if len(one.weights) != len(other.weights):
        return Parting("projections", f"A has {len(one.weights)} heads, B {len(other.weights)}", math.inf)
    if one.weights.shape != other.weights.shape:
        says = f"a query of A has weights for {one.weights.shape[-1]} keys, of B for {other.weights.shape[-1]}"
        return Parting("scores", f"{says} (of {one.weights.shape[-2]} tokens)", math.inf)
    return (
        _projections_part(one, other)
        or _scores_part(one, other)
        or _plain("weights", one.weights, other.weights)
        or _plain("weighted sum", one.summed, other.summed)
        or _output_part(one, other, whole)
    )


def _projections_part(one: _Steps, other: _Steps) -> Parting | None:
    """Of the first token, which positions leave alone; q and k up to a factor and the order of their channels."""
    difference = relative_difference(one.v, other.v)
    if difference > TOLERANCE:
        return Parting("projections", f"their values differ{_place(one.v, other.v)}", difference)
    for of_a, of_b in ((one.q, other.q), (one.k, other.k)):
        if of_a.shape != of_b.shape or relative_difference(_direction(of_a), _direction(of_b)) > TOLERANCE:
            swapped = of_a.shape == other.k.shape and (
                relative_difference(_direction(one.q), _direction(other.k)) <= TOLERANCE
                and relative_difference(_direction(one.k), _direction(other.q)) <= TOLERANCE
            )
            if swapped:
                return None
            which = "queries" if of_a is one.q else "keys"
            a, b = _direction(of_a), _direction(of_b)
            return Parting("projections", f"their {which} of the first token differ", relative_difference(a, b))
    return None


def _direction(rows: Tensor) -> Tensor:
    """The first token's numbers, sorted, with a length of one over all heads."""
    first = rows[:, 0]
    in_order: Tensor = first.sort(-1).values
    return in_order / float(in_order.norm().clamp_min(1e-30))


def _scores_part(one: _Steps, other: _Steps) -> Parting | None:
    blocked_a, blocked_b = _blocked(one), _blocked(other)
    both = ~blocked_a & ~blocked_b
    a, b = _centred(one.logits, both), _centred(other.logits, both)
    difference = relative_difference(a, b)
    if difference > TOLERANCE:
        factor = float((a * b).sum() / (b * b).sum().clamp_min(1e-30))
        if factor > 0 and relative_difference(a, factor * b) <= TOLERANCE:
            more, less, times = ("A", "B", factor) if factor > 1 else ("B", "A", 1 / factor)
            known = _scales(one, other)
            says = f"{more}'s scaled scores are {times:.6g} times {less}'s{known}"
            return Parting("scale", says, difference)
        return Parting("scores", f"their scores differ{_place(a, b)}, up to a constant of each query", difference)
    if not torch.equal(blocked_a, blocked_b):
        head, query, key = (blocked_a != blocked_b).nonzero()[0].tolist()
        lets, blocks = ("B", "A") if blocked_a[head, query, key] else ("A", "B")
        count = int((blocked_a != blocked_b).sum())
        says = (
            f"{lets} lets query {query} attend to key {key} (head {head}), {blocks} does not; "
            f"{count} of {both.numel()} pairs differ"
        )
        return Parting("mask", says, 1.0)
    return None


def _scales(one: _Steps, other: _Steps) -> str:
    """What each multiplies the product of queries and keys by, where it is one number."""
    factors: dict[str, float] = {}
    for name, steps in (("A", one), ("B", other)):
        allowed = ~_blocked(steps)
        for product in (steps.q @ steps.k.mT, steps.k @ steps.q.mT):
            if product.shape != steps.logits.shape:
                continue
            a, b = _centred(steps.logits, allowed), _centred(product, allowed)
            factor = float((a * b).sum() / (b * b).sum().clamp_min(1e-30))
            if relative_difference(a, factor * b) <= TOLERANCE:
                factors[name] = factor
                break
    if len(factors) < 2 or math.isclose(*factors.values(), rel_tol=TOLERANCE):  # one: they scale the queries before
        return ""
    said = (f"{name} multiplies the product of queries and keys by {factor:.6g}" for name, factor in factors.items())
    return f": {', '.join(said)}"


def _blocked(steps: _Steps) -> Tensor:
    return (steps.logits < BLOCKED) & (steps.weights == 0)


def _centred(logits: Tensor, allowed: Tensor) -> Tensor:
    """Scores less the mean of their row: a softmax sees no more of them."""
    filled = torch.where(allowed, logits, 0.0)
    mean = filled.sum(-1, keepdim=True) / allowed.sum(-1, keepdim=True).clamp_min(1)
    return torch.where(allowed, logits - mean, 0.0)


def _plain(step: str, a: Tensor, b: Tensor) -> Parting | None:
    difference = relative_difference(a, b)
    if difference <= TOLERANCE:
        return None
    what = "weights" if step == "weights" else "weighted sums"
    return Parting(step, f"their {what} differ{_place(a, b)}", difference)


def _place(a: Tensor, b: Tensor) -> str:
    """Where the largest difference is, and both numbers."""
    if a.shape != b.shape:
        return f": {tuple(a.shape)} and {tuple(b.shape)}"
    at = tuple(int(each) for each in torch.unravel_index((a - b).nan_to_num(0.0).abs().argmax(), a.shape))
    return f": at {list(at)} A has {float(a[at]):.4g}, B {float(b[at]):.4g}"


def _output_part(one: _Steps, other: _Steps, whole: float) -> Parting:
    same_numbers = (
        relative_difference(one.output.flatten().sort().values, other.output.flatten().sort().values) <= TOLERANCE
    )
    step = "heads joined" if same_numbers else "output projection"
    return Parting(step, f"their outputs differ{_place(one.output, other.output)}", whole)
