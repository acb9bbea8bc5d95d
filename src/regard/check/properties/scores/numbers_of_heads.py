"""Numbers that are learned for the scores: one of each head reaches that head alone, a logarithm goes through exp."""

from __future__ import annotations

import re
from collections.abc import Iterator
from dataclasses import replace

import torch
from torch import Tensor, nn

from regard.check.properties.finding import Evidence, Finding
from regard.check.properties.own_tensors import OF_HEADS, own_tensors
from regard.check.properties.sums import query_numbers, sums_by
from regard.check.roles.influence import record_invocation
from regard.check.roles.table import AttentionTable
from regard.check.target import Invocation
from regard.check.target.preparation import copied

__all__ = ["learned_logarithm_findings", "number_of_head_findings"]

CHANGED = 1e-9
"""A number that differs by more is another one."""
STEP = 0.5
"""By which a learned number is changed."""
_LOGARITHM = re.compile(r"\blog\(")
_SCALE = re.compile(r"scale|temp|tau", re.IGNORECASE)


def number_of_head_findings(invocation: Invocation, evidence: Evidence) -> Iterator[Finding]:
    """A sink, a temperature or a slope of each head, the first of which changes the weights of several heads.

    As where (heads) is viewed or broadcast along the tokens or the samples. Each such tensor costs a run.

    Args:
        invocation: the call.
        evidence: one of its attentions.
    """
    table, heads = evidence.base, evidence.base.num_heads
    if heads < 2 or table.width == heads or _are_heads_mixed(table):
        return
    for path, each, text in own_tensors(invocation, evidence):
        if each.numel() != heads or not OF_HEADS.search(text):
            continue
        other = _with_another_number(invocation, table, path, STEP)
        if other is None:
            continue
        changed = sorted(set(table.head[(other.weight - table.weight).abs() > CHANGED].tolist()))
        if len(changed) > 1:
            listed = ", ".join(map(str, changed))
            message = f"{path} has a number for each of {heads} heads, and its first changes weights of heads {listed}"
            yield Finding("violation", "number-of-its-head", "heads", message, table.instance.scores_location)
            return


def learned_logarithm_findings(invocation: Invocation, evidence: Evidence) -> Iterator[Finding]:
    """A scale that begins as a logarithm and multiplies the scores as it is, without the exponential.

    It is small then, and may become negative: Liu et al. 2022, "Swin Transformer V2", whose scale begins as log 10 and
    is at most e^(log 100). Each such scale costs two runs.

    Args:
        invocation: the call.
        evidence: one of its attentions.
    """
    table = evidence.base
    if _are_heads_mixed(table):
        return
    for path, each, text in own_tensors(invocation, evidence):
        if not (isinstance(each, nn.Parameter) and _LOGARITHM.search(text) and _SCALE.search(path)):
            continue
        others = [_with_another_number(invocation, table, path, step) for step in (STEP, 2 * STEP)]
        once, twice = (None if one is None else _moved(evidence, one) for one in others)
        if once is None or twice is None or not bool((once.abs() > CHANGED).any()):
            continue
        if torch.allclose(twice, 2 * once, rtol=1e-6, atol=CHANGED):
            message = f"{path} begins as a logarithm, and scores are times the number itself, not its exponential"
            yield Finding("violation", "scale-of-its-logarithm", "scale", message, table.instance.scores_location)
            return


def _are_heads_mixed(table: AttentionTable) -> bool:
    instance = table.instance
    return instance.are_scores_mixed or instance.are_weights_mixed or instance.are_weights_subtracted


def _with_another_number(
    invocation: Invocation, table: AttentionTable, path: str, step: float
) -> AttentionTable | None:
    """The attention with another first number in a tensor; None where that changes what the attention reads.

    As in a layer that is called twice.
    """
    other: nn.Module = copied(invocation.target)
    owner, _, name = path.rpartition(".")
    with torch.no_grad():
        numbers = getattr(other.get_submodule(owner), name).data
        numbers[(0,) * numbers.ndim] += step
    run = record_invocation(replace(invocation, target=other))
    if run.error or not run.same_operations(table.instance.run.trace):
        return None
    found = table.of_run(run)
    is_kept = _are_the_same(found.q_source, table.q_source) and _are_the_same(found.k_source, table.k_source)
    return found if is_kept else None


def _moved(evidence: Evidence, other: AttentionTable) -> Tensor:
    """(scores): by how much each score changed, but for what all keys of its query have in common."""
    change = (other.masked - evidence.base.masked).nan_to_num(0, 0, 0)
    rows = query_numbers(evidence)
    live = evidence.base.masked.isfinite().to(change.dtype)
    return (change - (sums_by(rows, change) / sums_by(rows, live).clamp(min=1))[rows]) * live


def _are_the_same(one: Tensor, other: Tensor) -> bool:
    return one.shape == other.shape and torch.allclose(one, other, rtol=0, atol=CHANGED, equal_nan=True)
