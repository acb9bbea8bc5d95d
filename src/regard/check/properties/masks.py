"""Who may attend to whom: which weights are exactly zero, whatever the tokens are."""

from __future__ import annotations

from collections.abc import Iterator

import torch
from torch import Tensor
from torch.nn.functional import pad

from regard.check.properties.finding import Evidence, Finding
from regard.check.properties.sums import query_numbers
from regard.check.roles.influence import is_chosen

__all__ = ["Pattern", "built_in_pattern", "mask_findings", "square"]

ZERO_WEIGHT = 1e-30
BLOCKED = -1e4
"""Scores from here down were put there in order to block."""
NOTICEABLE = 1e-3
"""Of the largest weight of a query: a smaller one was meant to be none."""
FROM_FIRST_KEY = "causal, from the first key on"
"""With more keys than queries, the first query stands at the first key, as in PyTorch, not the last at the last."""
BOTH_WAYS = frozenset({"blocks", "window"})
"""Masks of which each has a causal half: a query sees as much of what comes later as of what came before."""
Pattern = str


def allowed_of(evidence: Evidence) -> Tensor:
    """(samples, heads, queries, keys): which scores have a weight, in either of two runs.

    A query whose weights are equal in both runs has nothing to attend to: where blocked scores are a large number, the
    softmax shares among them. It counts as having none, unless all queries are so.
    """
    tables = [evidence.base]
    if evidence.fresh.num_heads == evidence.base.num_heads and len(evidence.fresh.weight) == len(evidence.base.weight):
        tables.append(evidence.fresh)
    dense = torch.stack([evidence.base.dense(each.weight, 0.0) for each in tables])
    allowed = (dense.abs() > ZERO_WEIGHT).any(0)
    equal = (dense.amax(-1) - dense.amin(-1) < 1e-12).all(0) & (allowed.sum(-1) > 1)
    if not bool(equal.all()):
        allowed = allowed & ~equal[..., None]
    return square(evidence, allowed)


def square(evidence: Evidence, allowed: Tensor) -> Tensor:
    """With a column for each of the last tokens too, where no query of the same tokens sees those.

    Tokens that no query sees, while all queries see all others, are no keys at all.
    """
    missing = evidence.num_tokens - allowed.shape[-1]
    if missing <= 0 or allowed.shape[-2] != evidence.num_tokens or bool(allowed.all()):
        return allowed
    return pad(allowed, (0, missing))


def built_in_pattern(allowed: Tensor) -> tuple[str, str]:
    """The name of a (queries, keys) pattern, and of the violation where it is none that attention has."""
    queries, keys = allowed.shape
    if bool(allowed.all()):
        return "full", ""
    rows, columns = torch.arange(queries)[:, None], torch.arange(keys)[None, :]
    if queries == keys and not bool(allowed[0].any()) and bool(allowed.diagonal()[1:].all()):
        # The first token has only itself to attend to: its value may be copied, without a score.
        return built_in_pattern(allowed | (rows + columns == 0))
    for offset in dict.fromkeys((keys - queries, 0)):
        distance = rows + offset - columns
        if torch.equal(allowed, distance >= 0):
            return "causal" if offset == keys - queries else FROM_FIRST_KEY, ""
        reach = distance[allowed] if bool(allowed.any()) else None
        if reach is None:
            return "empty", "no key has a weight"
        low, high = int(reach.min()), int(reach.max())
        if torch.equal(allowed, (distance >= low) & (distance <= high)):
            if low == 0:
                return "causal window", ""
            if low == -high or (low < 0 < high and queries == keys and low > -(keys - 1) and high < queries - 1):
                return "window", ""
            if queries == keys:
                return _band(low, high, keys)
    if queries == keys and bool(allowed.diagonal().all()) and torch.equal(allowed, allowed.t()):
        return "blocks", ""
    if queries == keys and bool(allowed.diagonal().all()) and not bool(allowed.triu(1).any()):
        return "sparse causal", ""
    if queries == keys > 2 and torch.equal(allowed, ~torch.eye(keys, dtype=torch.bool)):
        return "every key but the query's own", ""
    if queries == keys and not bool(allowed.diagonal().any()):
        return "gap", "no query sees itself: the mask is the wrong way round"
    if queries == keys and not bool(allowed.diagonal().all()) and not bool(allowed.triu(1).any()):
        blind = (~allowed.diagonal()).nonzero().flatten().tolist()
        listed = ", ".join(map(str, blind))
        return "gap", f"queries {listed} do not see themselves: they see what is before them, and not all of that"
    if queries == keys and torch.equal(allowed, (rows >= columns) | allowed[0]) and bool(allowed[0].diff().sum() == 1):
        return "causal after a prefix that all see", ""
    last = int(allowed.any(0).nonzero().max()) + 1 if bool(allowed.any()) else keys
    if last < keys and bool(allowed[:, :last].all()):
        listed = ", ".join(map(str, range(last, keys)))
        return "cut", f"no query sees the last keys, {listed} of {keys}: every query sees all others"
    if torch.equal(allowed.tril(), torch.ones_like(allowed).tril()):
        later = allowed.triu(1).nonzero()
        return "causal by blocks", f"query {int(later[0, 0])} sees a later position, {int(later[0, 1])}"
    return "unknown", ""


def _band(low: int, high: int, keys: int) -> tuple[str, str]:
    """A band of distances from `low` to `high` that is neither causal nor symmetric."""
    if high <= 0 and low <= -(keys - 1):
        which = "itself and later positions" if high == 0 else "later positions only"
        return "future", f"a query sees {which}: the causal mask is the wrong way round"
    if low > 0 and high >= keys - 1:
        return "strict", f"a query does not see itself: it sees what is {low} or more positions before it"
    if low < 0 and high >= keys - 1:
        return "leak", f"a query sees up to {-low} later positions: the causal mask is off by {-low}"
    if high == 0:
        return "future window", f"a query sees itself and {-low} later positions: the window is on the wrong side"
    if high < 0 or low > 0:
        return "gap", "a query does not see itself"
    return "window", ""


def _depends_on_content(evidence: Evidence) -> bool:
    """Whether a score is blocked for some tokens and not for others, at the same places."""
    base, fresh = evidence.base, evidence.fresh
    if len(base.weight) != len(fresh.weight):
        return True
    return bool(((base.weight.abs() > ZERO_WEIGHT) != (fresh.weight.abs() > ZERO_WEIGHT)).any())


def _are_chosen(evidence: Evidence) -> bool:
    """Whether queries or keys were chosen by their numbers, after they were projected."""
    instance = evidence.base.instance
    if not instance.scores:
        return False  # no step shows them
    run, scores = instance.run, instance.scores[0]
    projections: set[int] = set()
    for operation, number in (scores.left_place, scores.right_place):
        projections |= run.owner_of(run.tags.inputs[operation][number])
    return is_chosen(run.trace, scores.operation.index, min(projections, default=0))


def _unblocked(evidence: Evidence) -> Finding | None:
    """A key that some operation blocked for a query, and that has a weight all the same."""
    table = evidence.base
    layout, run = table.layout, table.instance.run
    last = max((each.operation.index for each in table.instance.scores), default=len(run.trace))
    kept = torch.full((len(layout.used) + 1,), -1)
    kept[:-1][layout.used] = torch.arange(int(layout.used.sum()))
    for operation in run.trace.operations[last + 1 :]:
        for record, tags in zip(operation.outputs[:1], run.tags.outputs[operation.index], strict=False):
            if not record.data.is_floating_point() or not bool((record.data <= BLOCKED).any()):
                continue
            rows = kept[layout.row_of[tags]]
            blocked = torch.zeros(len(table.weight), dtype=torch.bool)
            blocked[rows[(rows >= 0) & (record.data <= BLOCKED)]] = True
            free = torch.zeros_like(blocked)
            free[rows[(rows >= 0) & (record.data > BLOCKED)]] = True
            queries = query_numbers(evidence)
            with_a_key = torch.zeros(int(queries.max()) + 1, dtype=torch.bool).index_put_(
                (queries[free],), torch.tensor(True)
            )
            seen = blocked & with_a_key[queries] & (table.weight > ZERO_WEIGHT)
            if bool(seen.any()):
                at = int(seen.nonzero()[0])
                key, query, weight = table.key.token[at], table.query.token[at], float(table.weight[at])
                message = (
                    f"{int(seen.sum())} of {int(blocked.sum())} blocked scores have a weight all the same: "
                    f"key {int(key)} has {weight:.4g} of query {int(query)}"
                )
                return Finding("violation", "blocked-scores", "mask", message, operation.location)
    return None


def _replaced(evidence: Evidence) -> Finding | None:
    """Scores in whose place the same number stands whatever the tokens are, one that leaves them a weight."""
    base, fresh, rows = evidence.base, evidence.fresh, query_numbers(evidence)
    if len(base.weight) != len(fresh.weight) or not bool(base.masked.isfinite().any()):
        return None
    same = (base.masked == fresh.masked) & base.masked.isfinite() & (base.product != fresh.product)
    numbers = torch.unique(base.masked[same])
    if (
        len(numbers) != 1
        or not torch.equal(same, base.masked == numbers)
        or not torch.equal(same, fresh.masked == numbers)
    ):
        return None  # as where scores are clamped
    largest = torch.zeros(int(rows.max()) + 1, dtype=torch.float64).scatter_reduce(
        0, rows[~same], base.weight[~same], "amax"
    )
    seen = same & (largest[rows] > 0) & (base.weight > NOTICEABLE * largest[rows])
    if not bool(seen.any()):
        return None
    at = int(seen.nonzero()[0])
    message = (
        f"{int(same.sum())} of {len(same)} scores are {float(numbers):.4g} whatever the tokens are, and have a weight: "
        f"key {int(base.key.token[at])} has {float(base.weight[at]):.4g} of query {int(base.query.token[at])}"
    )
    return Finding("violation", "blocked-scores", "mask", message, base.instance.scores_location)


def mask_findings(evidence: Evidence) -> Iterator[Finding]:
    """What the mask of the code itself allows."""
    allowed = allowed_of(evidence)
    line = evidence.base.instance.scores_location
    unblocked = _unblocked(evidence) or _replaced(evidence)
    if unblocked is not None:
        yield unblocked
        return
    first = allowed[0, 0]
    if evidence.is_masked and bool(allowed.all()):
        yield Finding("open", "mask-open", "mask", "the mask that was handed over hides no key", line)
        return
    if evidence.is_masked:
        yield Finding("open", "mask-given", "mask", "judged with the mask that was handed over", line)
        return
    if _depends_on_content(evidence) or _are_chosen(evidence):
        yield Finding("design", "sparse-by-content", "mask", "which keys have a weight depends on the tokens", line)
        return
    if not bool((allowed == allowed[:, :1]).all()) and len(set(evidence.base.query.stream.tolist())) > 1:
        message = "which keys are blocked is not told: tokens of several sequences ask together, and their heads mix"
        yield Finding("open", "mask-unknown", "mask", message, line)
        return
    if not bool((allowed == allowed[:, :1]).all()) and not bool(allowed.flatten(2).all(-1).any()):
        yield Finding("open", "mask-unknown", "mask", "which keys are blocked differs among heads", line)
        return
    if not bool((allowed == allowed[:, :1]).all()):
        yield Finding(
            "violation",
            "mask-same-for-heads",
            "mask",
            "without a mask argument, another set of keys is blocked in one head than in another",
            line,
        )
        return
    if not bool((allowed == allowed[:1]).all()):
        yield Finding(
            "violation",
            "mask-same-for-samples",
            "mask",
            "without a mask argument, another set of keys is blocked in one sample than in another",
            line,
        )
        return
    pattern, wrong = built_in_pattern(first)
    if pattern == "cut":
        yield Finding("violation", "keys-seen", "scores", wrong, line)
    elif wrong and pattern == "causal by blocks" and not evidence.says_causal:
        yield Finding("design", "mask-pattern", "mask", f"its own mask: {pattern}; {wrong}", line)
    elif wrong:
        yield Finding("violation", "mask-pattern", "mask", wrong, line)
    elif pattern in BOTH_WAYS and evidence.promises_causal:
        query, key = (int(each) for each in first.triu(1).nonzero()[0])
        message = (
            f"its documentation says that it is causal; its own mask is one of {pattern}, in which query {query} sees "
            f"key {key}, a later one"
        )
        yield Finding("violation", "mask-pattern", "mask", message, line)
    elif pattern == "causal":
        message = "causal: a query sees keys up to its own position"
        yield Finding("holds", "mask-pattern", "mask", message, line)
    elif pattern == "full":
        yield Finding("absent", "mask-pattern", "mask", "none of its own: every query sees every key", line)
    elif pattern == "unknown":
        yield Finding("open", "mask-unknown", "mask", "its own mask is no pattern that is known", line)
    else:
        yield Finding("design", "mask-pattern", "mask", f"its own mask: {pattern}", line)
