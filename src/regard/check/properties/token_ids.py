"""Models that take token ids: padding is hidden in every attention, and a target does not see its later tokens."""

from __future__ import annotations

import re
from collections.abc import Iterator, Sequence
from typing import Any

import torch
from torch import Tensor
from torch.utils._pytree import tree_leaves

from regard.check.properties.documentation import documentation_of
from regard.check.properties.finding import Evidence, Finding
from regard.check.properties.saturation import BLOCKED, ZERO_WEIGHT
from regard.check.roles.influence import record_invocation
from regard.check.roles.table import AttentionTable
from regard.check.target import Invocation, Stream
from regard.check.target.token_ids import side_of
from regard.check.trace.operation import Trace

__all__ = ["PADDED", "asking_text", "padded", "target_findings", "token_padding_findings", "with_padding"]

_PADDING = re.compile(r"\bpad(?:s|ded|ding)?\b", re.I)
_OF_ATTENTION = re.compile(r"\b(?:keys?|attention|attend(?:s|ed)?)\b", re.I)
_HIDDEN = re.compile(r"\b(?:mask(?:s|ed)?|hid(?:den|es?)|ignored?|blocked|excluded|(?:not|never) attended)\b", re.I)
_OF_OTHERS = re.compile(
    r"\b(?:loss|labels?|callers?|optional\w*|(?:not|never|un)\s?-?(?:masked|hidden|ignored)|no mask)\b|n't\b", re.I
)
"""What else may be said of padding: that who calls hides it, or nobody."""
PADDED = 2
"""Tokens of the first sample that become padding, the last ones."""


def token_padding_findings(invocation: Invocation, several: Sequence[Evidence]) -> Iterator[Finding]:
    """Whether padding that only the ids show is hidden in all attentions, or in none and no mask is made of it.

    Args:
        invocation: the call.
        several: of each attention in it.
    """
    read = {each for one in several for each in one.base.key.stream.tolist() if each >= 0}
    for number, stream in enumerate(invocation.streams):
        if (given := padded(invocation, stream)) is None:
            continue
        tokens = _by_sample(invocation, stream).shape[1]
        run = record_invocation(invocation, given)
        if run.error:
            continue
        is_left = not _returns_a_mask(invocation, given)
        crossed = _of_another_text(several, run, number, invocation.paddings[stream.argument])
        if crossed is not None:
            yield crossed
            return
        if is_left and _is_seen_in_rows(several, run, tokens):
            unread = _thrown_away(several[0], run, stream, invocation)
            if unread is not None:
                yield unread
                return
        if number in read:
            yield from _of_stream(several, run, number, stream, tokens, invocation, is_left)
            continue
        for beside, other in enumerate(invocation.streams):  # ids of tokens whose vectors are handed over as well
            shape, ids = invocation.arguments[other.argument].shape, invocation.arguments[stream.argument]
            if beside in read and other.batch_axis == 0 and other.token_axes == (1,) and shape[:2] == ids.shape:
                yield from _of_stream(several, run, beside, stream, tokens, invocation, is_left)


def _is_seen_in_rows(several: Sequence[Evidence], run: Trace, tokens: int) -> bool:
    """Whether the keys of all attentions are rows inside of a model, as many as tokens in some; padding is read there.

    As of the states of a recurrent encoder, which are each of several tokens.
    """
    is_seen = False
    for evidence in several:
        base = evidence.base
        if base.streams == tuple(evidence.roles) or not run.same_operations(base.instance.run.trace):
            return False
        if int(base.key.token.max()) + 1 == tokens:
            keys = (base.key.sample == 0) & (base.key.token >= tokens - PADDED)
            if not bool((base.of_run(run).weight[keys] > ZERO_WEIGHT).all()):
                return False
            is_seen = is_seen or bool(keys.any())
    return is_seen


def with_padding(invocation: Invocation) -> Iterator[tuple[str, dict[str, Any]]]:
    """For each sequence of ids its name, and the arguments with padding at the end of its first sample."""
    for stream in invocation.streams:
        if (given := padded(invocation, stream)) is not None:
            yield stream.argument, given


def padded(invocation: Invocation, stream: Stream, padding: int | None = None) -> dict[str, Any] | None:
    """The arguments with padding in a sequence; None where it is none of ids, too short, or has some.

    Args:
        invocation: the call.
        stream: the sequence.
        padding: an id to pad with; the sequence's own unless another is given.
    """
    ids = invocation.arguments[stream.argument]
    if ids.is_floating_point() or ids.ndim != 2 or {stream.batch_axis, *stream.token_axes} != {0, 1}:
        return None
    whole = ids.clone()
    by_sample = _by_sample(invocation, stream, whole)
    own = invocation.paddings[stream.argument]
    if by_sample.shape[1] < PADDED + 2 or bool((ids == own).any()):
        return None
    by_sample[0, -PADDED:] = own if padding is None else padding
    return {**invocation.arguments, stream.argument: whole}


def _by_sample(invocation: Invocation, stream: Stream, ids: Tensor | None = None) -> Tensor:
    """(samples, tokens): ids of a sequence, those of a call unless others are given."""
    ids = invocation.arguments[stream.argument] if ids is None else ids
    return ids.mT if stream.batch_axis == 1 else ids


def _of_stream(
    several: Sequence[Evidence],
    run: Trace,
    stream: int,
    of_ids: Stream,
    tokens: int,
    invocation: Invocation,
    is_left: bool,
) -> Iterator[Finding]:
    hidden, seen, of_queries = [], [], list[Evidence]()
    name, padding = of_ids.argument, invocation.paddings[of_ids.argument]
    for evidence in several:
        base = evidence.base
        if not run.same_operations(base.instance.run.trace):
            return
        before, after = (table.weight > ZERO_WEIGHT for table in (base, base.of_run(run)))
        if (mixed := _in_other_samples(base, stream, before & ~after)) is not None:
            message = f"where {name} of sample 0 ends with {padding}, tokens of sample {mixed} are hidden"
            line = base.instance.scores_location
            yield Finding("violation", "padding-by-ids", "mask", message, line, base.instance.module)
            return
        if not bool(before.any()) and _is_of_padding_alone(base, stream, tokens, after):
            message = f"where no id in {name} is {padding}, every key is blocked; where some are, they are attended to"
            line = base.instance.scores_location
            yield Finding("violation", "padding-by-ids", "mask", message, line, base.instance.module)
            return
        of_first = (base.key.stream == stream) & (base.key.sample == 0) & before & ~_of_padding(base, stream, tokens)
        keys, real = of_first & (base.key.token >= tokens - PADDED), of_first & (base.key.token < tokens - PADDED)
        if not bool(keys.any()):
            continue
        line = base.instance.scores_location
        if bool(after[keys].all()) and bool(real.any()) and not bool(after[real].any()):
            message = f"where {name} is {padding}, padding is attended to, and the real tokens are hidden"
            yield Finding("violation", "padding-by-ids", "mask", message, line, base.instance.module)
            return
        if not bool(after[keys].any()):
            hidden.append(evidence)
        elif bool(after[keys].all()):
            seen.append(evidence)
            if not invocation.masks and _is_of_queries(evidence, run, stream, tokens):
                of_queries.append(evidence)
    if of_queries:
        first = of_queries[0].base.instance
        message = (
            f"where {name} is {padding}, all scores of padding's own queries are blocked, and those of its "
            "keys are not: the tokens before it attend to padding"
        )
        yield Finding("violation", "padding-by-ids", "mask", message, first.scores_location, first.module)
        return
    if not hidden:
        # Causal attention alone hides padding at the end, and not at the begin: the mask is missed there.
        unread = _thrown_away((*seen, *several)[0], run, of_ids, invocation) if several and is_left else None
        if unread is None and seen and not invocation.masks and _says_that_padding_is_hidden(invocation):
            first = seen[0].base.instance
            message = f"by the documentation padding is hidden; where {name} is {padding}, it is attended to"
            unread = Finding("violation", "padding-by-ids", "mask", message, first.scores_location, first.module)
        if unread is not None:
            yield unread
        return
    first = hidden[0].base.instance
    if seen:
        other = seen[0].base.instance
        message = (
            f"padding ({name} is {padding}) is hidden in {first.module or 'one attention'}, and is attended to in "
            f"{other.module or 'another'}"
        )
        yield Finding("violation", "padding-by-ids", "mask", message, other.scores_location, other.module)
    else:
        message = f"padding ({name} is {padding}) is hidden"
        yield Finding("holds", "padding-by-ids", "mask", message, first.scores_location)


def _is_of_padding_alone(table: AttentionTable, stream: int, tokens: int, seen: Tensor) -> bool:
    """Whether the keys that are seen are those of padding, at the end of sample 0, and all of these."""
    of_padding = (table.key.stream == stream) & (table.key.sample == 0) & (table.key.token >= tokens - PADDED)
    return bool(of_padding.any()) and torch.equal(seen, of_padding)


def _in_other_samples(table: AttentionTable, stream: int, hidden: Tensor) -> int | None:
    """The first other sample whose own keys padding of sample 0 hides, as where samples and heads are mixed up."""
    of_others = hidden & (table.key.stream == stream) & (table.key.sample > 0) & (table.query.sample > 0)
    return int(table.key.sample[of_others].min()) if bool(of_others.any()) else None


def _says_that_padding_is_hidden(invocation: Invocation) -> bool:
    """Whether a sentence of its documentation says that keys which are padding are hidden from attention."""
    sentences = re.split(r"(?<=[.!?])\s+|\n\s*\n", documentation_of(invocation.target))
    return any(
        all(each.search(sentence) for each in (_PADDING, _OF_ATTENTION, _HIDDEN)) and not _OF_OTHERS.search(sentence)
        for sentence in sentences
    )


def _of_another_text(several: Sequence[Evidence], run: Trace, number: int, padding: int) -> Finding | None:
    """Keys of the source that padding of the target hides, or the other way round, by their names.

    Args:
        several: of each attention.
        run: with padding in one of the two.
        number: which of the sequences has it.
        padding: its id.
    """
    for evidence in several:
        base, names = evidence.base, evidence.base.streams
        sides = [side_of(each) for each in names]
        if sorted(sides) != [-1, 1] or not run.same_operations(base.instance.run.trace):
            continue
        other = 1 - number
        of_other = (base.key.stream == other) & (base.key.sample == 0) & (base.weight > ZERO_WEIGHT)
        hidden = of_other & (base.of_run(run).weight <= ZERO_WEIGHT)
        if (base.query.stream == number).any():
            hidden &= base.query.token < int(base.query.token.max()) + 1 - PADDED  # of padding itself nothing is asked
        if bool(hidden.any()) and not bool(hidden[of_other].all()):
            message = (
                f"where {names[number]} is {padding}, tokens of {names[other]} are hidden: the mask is made of the "
                "other sequence"
            )
            instance = base.instance
            return Finding("violation", "padding-by-ids", "mask", message, instance.scores_location, instance.module)
    return None


def _is_of_queries(evidence: Evidence, run: Trace, stream: int, tokens: int) -> bool:
    """Whether padding blocks its queries, which no one reads, in the place of its keys."""
    table = evidence.base.of_run(run)
    of_first = (table.query.stream == stream) & (table.query.sample == 0)
    queries = of_first & (table.query.token >= tokens - PADDED)
    blocked = table.masked <= BLOCKED
    return bool(queries.any()) and bool(blocked[queries].all()) and not bool(blocked[~queries].any())


def _returns_a_mask(invocation: Invocation, given: dict[str, Any]) -> bool:
    """Whether a call returns something besides numbers that has more than one entry, as the mask of its padding."""
    leaves = tree_leaves(invocation.run(given))
    return any(isinstance(each, Tensor) and not each.is_floating_point() and each.numel() > 1 for each in leaves)


def _thrown_away(evidence: Evidence, run: Trace, stream: Stream, invocation: Invocation) -> Finding | None:
    """The mask of padding that a call makes of its ids, and that no operation takes.

    Args:
        evidence: an attention in which padding is seen.
        run: with padding in the first sample.
        stream: the ids.
        invocation: the call.
    """
    trace = evidence.base.instance.run.trace
    scored = {each.storage for one in evidence.base.instance.scores for each in one.operation.inputs}
    if not scored & trace.made_of([trace.arguments[stream.argument].storage]):
        return None  # ids that went through numpy, as their mask may have
    used = {each.storage for each in run.outputs}
    ids = _by_sample(invocation, stream, run.arguments[stream.argument].data)
    pairs = list(zip(trace, run, strict=True))
    for before, after in reversed(pairs):
        is_dead = not after.is_view and not after.written and not {each.storage for each in after.outputs} & used
        if is_dead:
            made = [(one.data, other.data) for one, other in zip(before.outputs, after.outputs, strict=True)][:1]
            if any(_tells_padding(one, other, ids) for one, other in made):
                name, padding = stream.argument, invocation.paddings[stream.argument]
                message = (
                    f"a mask of the padding is made ({name} is {padding}), and nothing is "
                    "done with it: padding is attended to"
                )
                return Finding("violation", "mask-read", "mask", message, before.location)
        elif not after.is_view or (after.is_in_place and after.outputs[0].storage in used):
            # What is not used uses nothing either, as masked scores that are thrown away.
            used |= {each.storage for each in after.inputs}
    return None


def _tells_padding(before: Tensor, after: Tensor, ids: Tensor) -> bool:
    """Whether two numbers, or yes and no, of each sample and key changed where padding came, and nowhere else."""
    shape = (len(ids), ids.shape[1])
    if after.ndim < 2 or (after.shape[0], after.shape[-1]) != shape or after.shape != before.shape:
        return False
    if after.dtype != torch.bool and len(torch.unique(after)) != 2:
        return False
    changed = (before != after).flatten(1, -2).any(1) if after.ndim > 2 else before != after
    wanted = torch.zeros_like(changed)
    wanted[0, -PADDED:] = True
    return torch.equal(changed, wanted)


def _of_padding(table: AttentionTable, stream: int, tokens: int) -> Tensor:
    """(scores): whether the query is of padding itself: what it sees does not matter."""
    return (table.query.stream == stream) & (table.query.token >= tokens - PADDED)


def _asked_by_the_source(several: Sequence[Evidence]) -> Finding | None:
    """A violation where, of a source and a target by their names, the source asks the target and is never asked."""
    tables = [each.base for each in several if len(each.base.weight)]
    for table in tables:
        names = table.streams
        sources, targets = ({at for at, name in enumerate(names) if side_of(name) == side} for side in (1, -1))
        pairs = {(int(each.query.stream[0]), int(each.key.stream[0])) for each in tables}
        if len(sources) != 1 or len(targets) != 1 or (*sources, *targets) not in pairs or (*targets, *sources) in pairs:
            continue
        asking = next(
            each for each in tables if (int(each.query.stream[0]), int(each.key.stream[0])) == (*sources, *targets)
        )
        message = (
            f"queries are made of {names[min(sources)]}, keys of {names[min(targets)]}: the source asks the target"
        )
        instance = asking.instance
        return Finding("violation", "queries-from-x", "q", message, instance.scores_location, instance.module)
    return None


def asking_text(invocation: Invocation, several: Sequence[Evidence]) -> int | None:
    """Which of two sequences of ids asks the other one, and is not asked by it; None where neither does.

    Args:
        invocation: the call.
        several: of each attention in it.
    """
    ids = [invocation.arguments[each.argument] for each in invocation.streams]
    if len(ids) != 2 or any(each.is_floating_point() or each.ndim != 2 for each in ids):
        return None
    tables = [each.base for each in several if len(each.base.weight)]
    pairs = {(each.streams[int(each.query.stream[0])], each.streams[int(each.key.stream[0])]) for each in tables}
    names = [each.argument for each in invocation.streams]
    asking = [at for at, name in enumerate(names) if (name, names[1 - at]) in pairs]
    return asking[0] if len(asking) == 1 else None


def _is_in_order(table: AttentionTable, stream: int) -> bool:
    """Whether an attention is of one sequence to itself, in which a token sees itself and all earlier ones alone."""
    of_it = (table.query.stream == stream) & (table.key.stream == stream)
    later = table.key.token > table.query.token
    seen = table.weight > ZERO_WEIGHT
    return bool(of_it.all()) and bool(later.any()) and torch.equal(seen, ~later)


def target_findings(invocation: Invocation, several: Sequence[Evidence], base: Trace) -> Iterator[Finding]:
    """Whether a model of two sequences of ids lets a token of the one that it predicts see later ones.

    Args:
        invocation: the call.
        several: of each attention in it.
        base: its run.
    """
    ids = {each.argument: invocation.arguments[each.argument] for each in invocation.streams}
    if len(ids) != 2 or any(each.is_floating_point() or each.ndim != 2 for each in ids.values()) or not base.outputs:
        return
    if invocation.masks or invocation.causal_flags:
        return  # it is for who calls it to say
    asked = _asked_by_the_source(several)
    if asked is not None:
        yield asked
        return
    output, target = base.outputs[0], asking_text(invocation, several)
    if target is None or len(output.shape) != 3 or output.shape[:2] != tuple([*ids.values()][target].shape):
        return
    tables = [each.base for each in several if len(each.base.weight)]
    in_order = [each for each in tables if _is_in_order(each, 1 - target)]
    if in_order:
        message = (
            f"a token of {invocation.streams[1 - target].argument} sees no later one: it is there as a whole, and what "
            "is predicted is the other"
        )
        instance = in_order[0].instance
        yield Finding("violation", "source-whole", "mask", message, instance.scores_location, instance.module)
        return
    for table in tables:
        of_target = (table.query.stream == target) & (table.key.stream == target)
        later = of_target & (table.key.token > table.query.token) & (table.weight > ZERO_WEIGHT)
        if bool(of_target.all()) and bool(later.any()):
            name = invocation.streams[target].argument
            at = int(later.nonzero()[0])
            message = (
                f"token {int(table.query.token[at])} of {name} sees token {int(table.key.token[at])}: what is "
                "predicted is known"
            )
            instance = table.instance
            yield Finding("violation", "target-causal", "mask", message, instance.scores_location, instance.module)
            return
