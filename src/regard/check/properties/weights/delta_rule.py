"""Linear attention by the delta rule: each token writes what its key does not return yet."""

from __future__ import annotations

import re
from dataclasses import replace
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor

from regard.check.properties.code import code_of
from regard.check.properties.finding import Finding
from regard.check.target import Invocation
from regard.check.target.errors import Failed

__all__ = ["delta_rule_findings", "says_delta_rule"]

_DELTA = re.compile(r"delta[\s_-]*(?:rule|net)", re.I)
_DECAYS = re.compile(r"\bgat(?:e[ds]?|ing)\b|decay|\bforget|log_g\b|alpha", re.I)
"""In code whose memory fades as well (Yang et al. 2025, "Gated Delta Networks")."""
FEWEST_TOKENS = 4
SAME = 1e-6


def says_delta_rule(target: Any) -> bool:
    """Whether the code of a target says that its memory is written by the delta rule: then weights may be negative."""
    return _DELTA.search(code_of(target)) is not None


def delta_rule_findings(invocation: Invocation) -> list[Finding]:
    """What is found of a function of q, k, v and of the share that each token writes, in what says that it is one.

    Schlag et al. 2021, "Linear Transformers Are Secretly Fast Weight Programmers", section 4.2, and Yang et al. 2024,
    "Parallelizing Linear Transformers with the Delta Rule". Of keys of length 1: a memory that is written to in full
    returns for a key the value that was written last, and a token that writes nothing changes no other's output.

    Args:
        invocation: a call of a function of q, k and v with heads.
    """
    code = code_of(invocation.target)
    streams = {each.role: each for each in invocation.streams}
    if {"q", "k", "v"} != streams.keys() or not _DELTA.search(code) or _DECAYS.search(code) or invocation.arrays:
        return []
    if any(len(each.token_axes) != 1 for each in streams.values()):
        return []
    names = {role: each.argument for role, each in streams.items()}
    (axis,) = streams["k"].token_axes
    others = [
        name for name, each in invocation.arguments.items() if isinstance(each, Tensor) and name not in names.values()
    ]
    tokens = min(invocation.arguments[each].shape[axis] for each in names.values())
    if len(others) != 1 or tokens < FEWEST_TOKENS or invocation.arguments[others[0]].ndim <= axis:
        return []
    cut = {each: invocation.arguments[each].narrow(axis, 0, tokens) for each in (*names.values(), others[0])}
    is_of_tokens = cut[others[0]].shape[: axis + 1] == cut[names["k"]].shape[: axis + 1]
    try:
        arguments = {**invocation.arguments, **cut}
        return _judged(replace(invocation, arguments=arguments), names, others[0], axis) if is_of_tokens else []
    except (Failed, RuntimeError, IndexError):
        return []


def _judged(invocation: Invocation, names: dict[str, str], share: str, axis: int) -> list[Finding]:
    arguments = invocation.arguments
    k = F.normalize(arguments[names["k"]], dim=-1)
    v, written = arguments[names["v"]], torch.ones_like(arguments[share])

    def output(**changed: Any) -> Tensor:
        given = {names.get(name, share): value for name, value in changed.items()}
        found: Tensor = invocation.outputs(invocation.run({**arguments, **given}))[0].detach()
        return found

    read = output(q=k, k=k, v=v, share=written)
    if read.shape != v.shape:
        return []
    first, value = read.select(axis, 0), v.select(axis, 0)
    scale = float((first * value).sum() / value.square().sum())
    is_known = any(abs(scale - each) < SAME for each in (1.0, k.shape[-1] ** -0.5))
    if not is_known or float((first - scale * value).abs().max()) > SAME:
        return []  # its keys are others than those that are handed over, or what is written is

    gap = float((read - scale * v).abs().max())
    if gap > SAME:
        message = (
            f"with keys of length 1 and shares of 1 a query that is its token's key reads something that differs by up "
            f"to {gap:.2g} from the value that was written last: what the memory returns for a key is not taken away"
        )
        return [Finding("violation", "delta-rule", "weights", message)]
    none = arguments[share].clone()
    none.select(axis, 1).zero_()
    moved_k, moved_v = k.clone(), v.clone()
    moved_k.select(axis, 1).copy_(k.select(axis, 1).roll(1, -1))
    moved_v.select(axis, 1).neg_()
    before = output(k=k, v=v, share=none)  # queries that are no keys read all that is kept
    after = output(k=moved_k, v=moved_v, share=none)
    gaps = (before - after).abs().movedim(axis, 0).flatten(1).amax(1)
    if float(gaps[2:].max()) > SAME:
        message = (
            f"a token whose share is 0 changes the output of later ones by up to {float(gaps[2:].max()):.2g}: the "
            "share multiplies a part of what is written, and not the whole difference of the value and what the key "
            "returns"
        )
        return [Finding("violation", "delta-rule", "weights", message)]
    message = "each token writes the difference of its value and what the memory returns for its key (delta rule)"
    return [Finding("design", "delta-rule", "weights", message)]
