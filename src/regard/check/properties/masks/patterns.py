"""Who may attend to whom: which weights are exactly zero, whatever the tokens are."""

from __future__ import annotations

from collections.abc import Iterator

import torch
from torch import Tensor
from torch.nn.functional import pad

from regard.check.properties.finding import Evidence, Finding
from regard.check.properties.masks.barred_keys import BARRED, bars_keys_evenly, whole_mask
from regard.check.properties.masks.blocked_scores import replaced, unblocked
from regard.check.properties.masks.by_head import pattern_of_each_head
from regard.check.properties.masks.joined_sequences import joined_order
from regard.check.properties.masks.orders import encoded_sequence, later_key, unaligned
from regard.check.properties.masks.overlapping_windows import overlapping_windows
from regard.check.properties.masks.query_groups import (
    are_blocks_beside_others,
    are_groups,
    are_windows_with_a_halo,
    is_last_segment,
    rows_of_a_later_step,
)
from regard.check.properties.masks.silent_vectors import silent_queries
from regard.check.properties.masks.strictly_before import sees_what_is_before_on_purpose
from regard.check.properties.saturation import BLOCKED, ZERO_WEIGHT, is_saturated, weights_without_steepness
from regard.check.roles.influence import is_chosen, selections
from regard.check.roles.instances import AttentionInstance
from regard.check.roles.table import AttentionTable

__all__ = ["are_of_others", "built_in_pattern", "mask_findings", "own_keys", "square"]

FROM_FIRST_KEY = "causal, from the first key on"
"""With more keys than queries, the first query stands at the first key, as in PyTorch, not the last at the last."""
AFTER_PREFIX = "causal after a prefix that all see"
ITSELF_LAST = "causal, and a token sees itself only where it sees no other"
"""As in Reformer (Kitaev et al. 2020, section 2), whose queries are its keys."""
HALOS = "windows, each with a halo of the keys around it"
NOT_CAUSAL = {
    "blocks": "one of blocks",
    "window": "a window on both sides",
    AFTER_PREFIX: AFTER_PREFIX,
    HALOS: f"one of {HALOS}",
}
"""Masks that are meant by who does not say that all is causal: a query sees some of what comes later."""
MIN_TOKENS = 3
"""Of one sequence, which a causal mask would show in."""
Pattern = str


def allowed_of(evidence: Evidence, *, of_own: bool = False) -> Tensor:
    """(samples, heads, queries, keys): which scores have a weight, in either of two runs.

    A query whose weights are equal in both runs has nothing to attend to: where blocked scores are a large number, the
    softmax shares among them. It counts as having none, unless all queries are so.

    Args:
        evidence: of the attention.
        of_own: with the keys of the sequence that asks alone, where those of a memory or another sequence are beside.
    """
    rows = own_keys(evidence.base) if of_own else None
    tables = [evidence.base]
    if evidence.fresh.num_heads == evidence.base.num_heads and len(evidence.fresh.weight) == len(evidence.base.weight):
        tables.append(evidence.fresh)
    if is_saturated(evidence):  # the weights do not tell, the scores do
        live = (evidence.base.masked > BLOCKED) | (evidence.fresh.masked > BLOCKED)
        return _of_those_that_ask(evidence, evidence.base.dense(live, False, rows))
    dense = torch.stack([evidence.base.dense(weights_without_steepness(each), 0.0, rows) for each in tables])
    if rows is not None and bool(rows.any()):
        dense = dense[..., int(evidence.base.key.token[rows].min()) :]  # keys of another sequence may stand before
    allowed = (dense.abs() > ZERO_WEIGHT).any(0)
    equal = (dense.amax(-1) - dense.amin(-1) < 1e-12).all(0) & (allowed.sum(-1) > 1) & ~silent_queries(tables, rows)
    if not bool(equal.all()):
        allowed = allowed & ~equal[..., None]
    return _of_those_that_ask(evidence, allowed)


def _of_those_that_ask(evidence: Evidence, allowed: Tensor) -> Tensor:
    """The same with a column for each token, and nothing hidden where all that ask see all."""
    asks = torch.zeros(allowed.shape[-2], dtype=torch.bool).index_fill(0, evidence.base.query.token, True)
    # Tokens that ask nothing, as all but the last, are hidden from by nothing.
    return square(evidence, torch.ones_like(allowed) if bool(allowed[..., asks, :].all()) else allowed)


def own_keys(table: AttentionTable) -> Tensor | None:
    """(scores): those whose key is of the sequence that asks, where other keys are of another one; None elsewhere."""
    asking, asked = set(table.query.stream.tolist()), set(table.key.stream.tolist())
    if len(asking) > 1 or len(asked) == 1 or not asking <= asked:
        return None
    return table.key.stream == table.query.stream


def are_of_others(table: AttentionTable) -> bool:
    """Whether keys are of several sequences, none of which asks: these have no one order."""
    return len(set(table.key.stream.tolist())) > 1 and own_keys(table) is None


def square(evidence: Evidence, allowed: Tensor) -> Tensor:
    """With a column for each of the last tokens too, where no query of the same tokens sees those.

    Tokens that no query sees, while all queries see all others, are no keys at all; those that were handed over as keys
    are.
    """
    if evidence.num_keys > allowed.shape[-1]:
        return pad(allowed, (0, evidence.num_keys - allowed.shape[-1]))
    missing = evidence.num_tokens - allowed.shape[-1]
    if missing <= 0 or allowed.shape[-2] != evidence.num_tokens or bool(allowed.all()):
        return allowed
    padded = pad(allowed, (0, missing))
    if _has_chunks_of_one_key(evidence.base.instance):
        padded[..., -missing:] = torch.ones(padded.shape[-2:], dtype=torch.bool).tril()[:, -missing:]
    return padded


def _has_chunks_of_one_key(instance: AttentionInstance) -> bool:
    """Whether some chunks of keys hold a single one: less their maximum its score is 0, and no token changes it."""
    own = {each.operation.index for each in instance.scores}
    lines = {(each.operation.name, each.operation.location) for each in instance.scores}
    return any(
        (each.name, each.location) in lines and each.index not in own and each.outputs[0].shape[-2:] == (1, 1)
        for each in instance.run.trace
        if each.location is not None
    )


def built_in_pattern(allowed: Tensor) -> tuple[str, str]:
    """The name of a (queries, keys) pattern, and of the violation where it is none that attention has."""
    queries, keys = allowed.shape
    if bool(allowed.all()):
        return "full", ""
    rows, columns = torch.arange(queries)[:, None], torch.arange(keys)[None, :]
    if keys > queries > 1 and keys % queries == 0 and torch.equal(allowed, columns // (keys // queries) == rows):
        return f"each query sees {keys // queries} keys of its own, as the neighbours of a node", ""
    if queries == keys and not bool(allowed[0].any()) and bool(allowed.diagonal()[1:].all()):
        # The first token has only itself to attend to: its value may be copied, without a score.
        return built_in_pattern(allowed | (rows + columns == 0))
    if queries != keys and are_groups(allowed):
        return "each query sees the keys of its own group", ""
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
            if low == -high:
                return "window", ""
            if queries == keys:
                return _band(low, high, keys)
    if queries == keys and bool(allowed.diagonal().all()) and torch.equal(allowed, allowed.t()):
        return "blocks", ""
    if queries == keys and bool(allowed.diagonal().all()) and are_windows_with_a_halo(allowed):
        return HALOS, ""
    if queries == keys and bool(allowed.diagonal().all()) and not bool(allowed.triu(1).any()):
        return "sparse causal", ""
    if queries == keys > 2 and torch.equal(allowed, ~torch.eye(keys, dtype=torch.bool)):
        return "every key but the query's own", ""
    if queries == keys > 2 and torch.equal(allowed, (rows > columns) | (rows + columns == 0)):
        return ITSELF_LAST, ""
    if queries == keys > 2 and torch.equal(allowed, (rows > columns) | (rows == 0)):
        # Where all scores of a query are less the same number, as 1e9, they are as if none were.
        return "strict", "a query does not see itself, but what is before it; the first has nothing there, and sees all"
    if bars_keys_evenly(allowed):
        return BARRED, ""
    if queries == keys and not bool(allowed.diagonal().any()):
        return "gap", "no query sees itself: the mask is the wrong way round"
    if queries == keys and not bool(allowed.diagonal().all()) and not bool(allowed.triu(1).any()):
        blind = (~allowed.diagonal()).nonzero().flatten().tolist()
        listed = ", ".join(map(str, blind))
        return "gap", f"queries {listed} do not see themselves: they see what is before them, and not all of that"
    if queries == keys and torch.equal(allowed, (rows >= columns) | allowed[0]) and bool(allowed[0].diff().sum() == 1):
        return AFTER_PREFIX, ""
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
    return not is_saturated(evidence) and bool(
        ((base.weight.abs() > ZERO_WEIGHT) != (fresh.weight.abs() > ZERO_WEIGHT)).any()
    )


def _are_chosen(evidence: Evidence) -> bool:
    """Whether queries or keys were chosen by their numbers, after they were projected, or values by the scores."""
    instance = evidence.base.instance
    if not instance.scores:
        return False  # no step shows them
    run, scores = instance.run, instance.scores[0]
    projections: set[int] = set()
    for operation, number in scores.places:
        projections |= run.owner_of(run.tags.inputs[operation][number])
    first, last = scores.operation.index, instance.sums[0].operation.index
    if is_chosen(run.trace, first, min(projections, default=0)) or is_chosen(run.trace, last, first):
        return True
    return _is_mask_chosen(instance, first, last)


def _are_tokens_chosen(evidence: Evidence) -> bool:
    """Whether something was chosen by its numbers before there were scores, as the tokens of a router."""
    instance = evidence.base.instance
    return any(index < instance.scores[0].operation.index for index in selections(instance.run.trace))


def _is_mask_chosen(instance: AttentionInstance, first: int, last: int) -> bool:
    """Whether scores meet a mask, two numbers at most, that was made of places which the run chose by its numbers."""
    run = instance.run
    places = {record.storage for index in selections(run.trace) for record in run.trace.operations[index].outputs}
    chosen = run.trace.made_of(places) if places else set()
    scores = {each.operation.index for each in instance.scores}
    for operation in run.trace.operations[first + 1 : last + 1] if chosen else ():
        of_scores = [bool(run.owner_of(tags) & scores) for tags in run.tags.inputs[operation.index]]
        beside = [record for record, is_score in zip(operation.inputs, of_scores, strict=False) if not is_score]
        masks = [each for each in beside if each.storage in chosen and len(set(each.data.flatten().tolist())) <= 2]
        if any(of_scores) and masks:
            return True
    return False


def _says_causal(evidence: Evidence, pattern: Pattern) -> str | None:
    """What says of an attention that is not causal that it is; None where nothing does."""
    if pattern in NOT_CAUSAL and evidence.promises_causal:
        return "documentation"
    if pattern == "window" and (evidence.names_causal or evidence.comments_causal):
        return "name, or a comment in it,"
    is_alone = len({*evidence.base.query.stream.tolist(), *evidence.base.key.stream.tolist()}) == 1
    is_short = evidence.num_tokens < MIN_TOKENS
    if pattern in ("full", "blocks", "window", HALOS) and evidence.set_causal and not is_short:
        asking = {evidence.roles.get(evidence.base.streams[each]) for each in set(evidence.base.query.stream.tolist())}
        if is_alone or asking == {"q"}:
            return f"setting {evidence.set_causal}"
    if pattern != "full" or not is_alone or is_short or evidence.hides_on_demand:
        return None
    return "name" if evidence.names_causal else "documentation" if evidence.documents_causal else None


def _is_a_head_open(evidence: Evidence, allowed: Tensor) -> bool:
    """Whether all keys have a weight in some head, or all that are in one window with their query."""
    if bool(allowed.flatten(2).all(-1).any()):
        return True
    base = evidence.base
    computed = base.dense(torch.ones_like(base.weight, dtype=torch.bool), False)
    is_same = bool((computed == computed[:1, :1]).all()) and computed.shape == allowed.shape
    return is_same and bool((allowed == computed).flatten(2).all(-1).any())


def mask_findings(evidence: Evidence) -> Iterator[Finding]:
    """What the mask of the code itself allows."""
    allowed = allowed_of(evidence, of_own=True)
    line = evidence.base.instance.scores_location
    seen_all_the_same = unblocked(evidence) or replaced(evidence)
    if seen_all_the_same is not None:
        yield seen_all_the_same
        return
    first = allowed[0, 0]
    if not bool(allowed.any()) and bool((evidence.base.masked <= BLOCKED).all()):
        message = "every key of every query is blocked in this call, and no weight is left: nothing is told by it"
        yield Finding("open", "mask-unknown", "mask", message, line)
        return
    if evidence.is_masked and bool(allowed.all()):
        yield Finding("open", "mask-handed-over", "mask", "the mask that was handed over hides no key", line)
        return
    if evidence.is_masked:
        yield Finding("open", "mask-given", "mask", "judged with the mask that was handed over", line)
        return
    if _depends_on_content(evidence):
        yield Finding("design", "sparse-by-content", "mask", "which keys have a weight depends on the tokens", line)
        return
    if _are_chosen(evidence):
        message = "which queries, keys or values take part is chosen by their numbers"
        yield Finding("design", "sparse-by-content", "mask", message, line)
        return
    if not bool((allowed == allowed[:, :1]).all()) and len(set(evidence.base.query.stream.tolist())) > 1:
        message = "which keys are blocked is not told: tokens of several sequences ask together, and their heads mix"
        yield Finding("open", "mask-unknown", "mask", message, line)
        return
    if not bool((allowed == allowed[:, :1]).all()) and (many := overlapping_windows(evidence.base)):
        message = (
            f"windows of {many} tokens that overlap: a token asks once in each that it stands in, and sees all of it"
        )
        yield Finding("design", "mask-pattern", "mask", f"its own mask: {message}", line)
        return
    if not bool((allowed == allowed[:, :1]).all()) and not _is_a_head_open(evidence, allowed):
        yield pattern_of_each_head(allowed, built_in_pattern, line)
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
    if not bool((allowed == allowed[:1]).all()) and _are_tokens_chosen(evidence):
        message = "which tokens take part is chosen by their numbers"
        yield Finding("design", "sparse-by-content", "mask", message, line)
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
    if are_of_others(evidence.base) and not bool(first.all()):
        message = "which keys are blocked is not told: they are of several sequences, none of which asks"
        yield joined_order(evidence) or Finding("open", "mask-unknown", "mask", message, line)
        return
    pattern, wrong = built_in_pattern(first)
    if pattern in ("gap", "unknown") and bars_keys_evenly(whole_mask(evidence.base.instance.run.trace, first)):
        pattern, wrong = BARRED, ""
    if pattern == "gap" and (rows := rows_of_a_later_step(evidence.base, first)) is not None:
        pattern, wrong = built_in_pattern(rows)
    if pattern == "unknown" and are_blocks_beside_others(first, evidence.base.query.token):
        pattern = "blocks"
    if pattern == "unknown" and is_last_segment(first, evidence.base.query.token):
        pattern = "a segment of the tokens, which see one another"
    if pattern == "unknown" and evidence.num_keys and built_in_pattern(first.flip(-1))[0] == "cut":
        unseen = int(first[0].to(torch.uint8).argmax())
        wrong = f"no query sees the first {unseen} of {evidence.num_keys} keys: every query sees all others"
        pattern = "cut"
    if pattern == "cut":
        yield Finding("violation", "keys-seen", "scores", wrong, line)
    elif wrong and pattern == "gap" and bool(evidence.base.with_sink.any()):
        message = "no query sees itself here: it does in other scores that its softmax runs over as well"
        yield Finding("design", "mask-pattern", "mask", message, line)
    elif wrong and pattern == "causal by blocks" and not evidence.says_causal:
        yield Finding("design", "mask-pattern", "mask", f"its own mask: {pattern}; {wrong}", line)
    elif wrong and pattern == "strict" and (why := sees_what_is_before_on_purpose(evidence, first)):
        yield Finding("design", "mask-pattern", "mask", f"{wrong}: {why}", line)
    elif wrong:
        yield Finding("violation", "mask-pattern", "mask", wrong, line)
    elif (who := _says_causal(evidence, pattern)) is not None:
        query, key = (int(each) for each in first.triu(1).nonzero()[0])
        name = NOT_CAUSAL.get(pattern)
        mask = f"its own mask is {name}, in which" if name else "every query sees every key:"
        message = f"its {who} says that it is causal; {mask} query {query} sees key {key}, a later one"
        yield Finding("violation", "mask-pattern", "mask", message, line)
    elif pattern in ("causal", FROM_FIRST_KEY) and (source := encoded_sequence(evidence)):
        message = (
            f"a query sees no key of {source} that comes later than its own place: {source} is another sequence, and "
            "is there as a whole"
        )
        yield Finding("violation", "mask-pattern", "mask", message, line)
    elif pattern == "causal":
        yield Finding("holds", "mask-pattern", "mask", "causal: a query sees keys up to its own position", line)
    elif pattern == "full":
        yield Finding("absent", "mask-pattern", "mask", "none of its own: every query sees every key", line)
    elif pattern == "unknown":
        message = "its own mask is no pattern that is known"
        yield later_key(evidence, first) or Finding("open", "mask-unknown", "mask", message, line)
    else:
        yield unaligned(evidence, pattern) or Finding(
            "design", "mask-pattern", "mask", f"its own mask: {pattern}", line
        )
