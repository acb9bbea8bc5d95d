"""Keys that each query looks up by their numbers, some of them more than once, as by hashes in several rounds (LSH).

Which scores are of which head cannot be counted there: a query may meet a key in one round and not in another. What
holds of any such attention is shown instead: among the keys that are read together the weights are a softmax of q . k,
and what a query read at several places is merged as by one softmax over all of them.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass, replace

import torch
from torch import Tensor

from regard.check.properties.finding import Evidence, Finding
from regard.check.properties.outputs.heads import output_findings
from regard.check.properties.outputs.joint import joint_output_findings
from regard.check.roles.table import AttentionTable
from regard.check.target import Invocation

__all__ = ["looked_up_findings"]

MIN_WEIGHT = 1e-9
"""Logarithms of smaller weights are not compared: their rounding is too large."""
SAME = 1e-6


@dataclass(frozen=True, eq=False)
class _Reads:
    """The weighted sums, a row each."""

    score: Tensor
    """(rows, terms): which row of the table each weight is of."""
    weight: Tensor
    result: Tensor
    """(rows, width of a value)."""
    live: Tensor
    """(rows, terms): whether a weight is one of a score."""


def looked_up_findings(invocation: Invocation, evidence: Evidence, frozen: Mapping[int, Tensor]) -> list[Finding]:
    """What holds of an attention to keys that were looked up; nothing where any of it cannot be shown.

    Args:
        invocation: the call.
        evidence: of an attention in which heads are not told apart.
        frozen: the weights and weighted sums of all attentions, by the index of their operation.
    """
    table = evidence.base
    reads = _reads(table)
    scale = table.width**-0.5
    if reads is None or not _is_softmax(table, reads, scale) or not _are_merged(table, reads, scale):
        return []
    of_one_head = replace(evidence, base=replace(table, head=torch.zeros_like(table.head)))
    several = sum(each >= 0 for each in set(table.query.stream.tolist())) > 1
    outputs = list((joint_output_findings if several else output_findings)(invocation, of_one_head, frozen))
    told = "what a query read, wherever it looked, reaches its token's output"
    outputs = [replace(each, message=told) if each.kind == "holds" else each for each in outputs]
    return [*_told(table, scale), *outputs]


def _told(table: AttentionTable, scale: float) -> Iterator[Finding]:
    line, sums_line = table.instance.scores_location, table.instance.sums_location
    yield Finding("holds", "scores-of-two-tokens", "scores", "q . k of one query and one key", line)
    yield Finding("holds", "scale", "scale", f"1/sqrt({table.width}) = {scale:.4g}", line)
    message = "each query reads keys that were looked up by their numbers: its weights are a softmax among these alone"
    yield Finding("design", "sparse-by-content", "mask", message, line)
    message = "over the keys that a query looked up: none negative, sum 1, also where it looked them up several times"
    yield Finding("holds", "weights-sum-to-one", "weights", message, sums_line)


def _reads(table: AttentionTable) -> _Reads | None:
    """The weighted sums by row; None where their last axis is not that of the values' channels."""
    values, start, rows, results = table.values, 0, list[Tensor](), list[Tensor]()
    weights = list[Tensor]()
    for each in table.instance.sums:
        shape, count = each.output.data.shape, each.output.data.numel()
        score = values.score[start : start + count].reshape(*shape, -1).flatten(0, -3)
        if not bool((score == score[:, :1]).all()):
            return None
        rows.append(score[:, 0])
        weights.append(values.weight[start : start + count].reshape(*shape, -1).flatten(0, -3)[:, 0])
        results.append(values.result[start : start + count].reshape(-1, shape[-1]))
        start += count
    score, weight = torch.cat(rows), torch.cat(weights).double()
    return _Reads(score, weight, torch.cat(results).double(), (score >= 0) & (weight > MIN_WEIGHT))


def _is_softmax(table: AttentionTable, reads: _Reads, scale: float) -> bool:
    """Whether each row's weights sum to 1 and are exponentials of q . k times the scale, up to one number."""
    one = torch.where(reads.score >= 0, reads.weight, 0.0).sum(-1)
    if float((one - 1).abs().max()) > SAME or bool((reads.weight[reads.score >= 0] < 0).any()):
        return False
    number = reads.weight.clamp(min=MIN_WEIGHT).log() - scale * table.product[reads.score.clamp(min=0)]
    top, low = (torch.where(reads.live, number, sign * torch.inf) for sign in (-1, 1))
    gap = top.amax(-1) - low.amin(-1)
    several = reads.live.sum(-1) > 1
    return bool(several.any()) and float(gap[several].max()) < SAME


def _are_merged(table: AttentionTable, reads: _Reads, scale: float) -> bool:
    """Whether some tensor of the run holds, for each query, what one softmax over all that it looked up would read."""
    first = reads.score[torch.arange(len(reads.score)), reads.live.to(torch.uint8).argmax(-1)]
    asking = torch.stack([table.query.sample[first], table.query.token[first]], -1).double()
    query = torch.unique(torch.cat([asking, table.q[first].double()], -1), dim=0, return_inverse=True)[1]
    score = torch.where(reads.live, scale * table.product[reads.score.clamp(min=0)], -torch.inf)
    alone = reads.live.sum(-1) == 1  # a token that found none but itself: its own score was put far below all others
    itself = alone & (table.query.token[first] == table.key.token[first])
    shared = torch.zeros(int(query.max()) + 1).index_add_(0, query, (~itself).float()) > 0
    total = torch.where(itself & shared[query], -torch.inf, score.logsumexp(-1))
    top = torch.full((len(shared),), -torch.inf, dtype=total.dtype).scatter_reduce(0, query, total, "amax")
    share = (total - top[query]).exp()
    read = torch.zeros(len(shared), reads.result.shape[-1], dtype=torch.float64)
    read.index_add_(0, query, share[:, None] * reads.result)
    read /= torch.zeros(len(shared), dtype=torch.float64).index_add_(0, query, share)[:, None]
    stream = torch.full((len(read),), -1).scatter(0, query, table.query.stream[first])
    since = min(each.operation.index for each in table.instance.sums)
    for operation in table.instance.run.trace.operations[since:]:
        made = operation.outputs[0].data if operation.outputs else read[:0]
        if made.is_floating_point() and 0 < made.numel() <= read.numel() and made.shape[-1] == read.shape[-1]:
            gap, place = torch.cdist(made.reshape(-1, read.shape[-1]).double(), read).min(-1)
            wanted = torch.isin(stream, stream[place]).nonzero().flatten()  # what a context's tokens read may be left
            if float(gap.max()) < SAME and torch.equal(place.sort().values, wanted):
                return True
    return False
