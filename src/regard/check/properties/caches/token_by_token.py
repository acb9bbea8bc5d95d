"""Caches: token by token through a cache gives what all tokens at once give, and nothing is kept unasked."""

from __future__ import annotations

import re
from collections.abc import Iterator
from contextlib import suppress
from dataclasses import dataclass, replace
from itertools import pairwise
from typing import Any

from torch import Tensor

from regard.check.properties.caches.beam_states import beam_state_findings
from regard.check.properties.caches.beams import beam_findings
from regard.check.properties.caches.causes import HiddenKeys, cache_causes, remembering_line
from regard.check.properties.caches.chunks import hidden_past
from regard.check.properties.caches.comparison import recorded
from regard.check.properties.caches.evicted import full_cache_findings
from regard.check.properties.caches.forgotten import forgotten_past
from regard.check.properties.caches.handed_over import empty_cache_findings
from regard.check.properties.caches.kept_memories import kept_memory_findings
from regard.check.properties.caches.padded_texts import padded_text_findings
from regard.check.properties.caches.places import kept_writes, misplaced, reads_of, reads_own_place
from regard.check.properties.caches.promised_memory import promises_memory
from regard.check.properties.caches.unread_lengths import unread_length_findings
from regard.check.properties.documentation import documentation_of
from regard.check.properties.finding import Finding
from regard.check.roles.instances import AttentionInstance
from regard.check.target import Invocation
from regard.check.target.cache_forms import CacheForm, CacheNames, cache_forms, cache_names, parameters_of
from regard.check.target.cache_room import with_room
from regard.check.target.cache_runs import CachedCall, Part, masks_left_out, optional_positions
from regard.check.target.cache_search import JoinedByTheCaller, cached_calls, other_tokens
from regard.check.target.errors import Failed
from regard.check.target.names import call_meaning
from regard.check.target.preparation import copied

__all__ = ["cache_findings"]

TOLERANCE = 1e-9
"""Of the largest number of an output."""
MIN_TOKENS = 3
MAX_FORMS = 30
"""Ways to hand a cache over that are tried."""
_MEMORIES = re.compile(r"(?:^|_)mems(?:_|$)|^xl_mem")
"""Arguments for what the layers read of the text before, which they may read otherwise than as a whole on purpose."""
_OF_POSITIONS = re.compile(r"(?:^|_)(?:rel|relative|pos|position)_")
"""Arguments for a bias that is of positions: it hides no key, and none that is hidden is seen by it."""
_AS_ONE_TEXT = re.compile(
    r"\bas if\b|\bTransformer[- ]?XL\b|\b(?:equals?|identical|equivalent|same)\b[^.]*\b(?:whole|at once|one segment)\b"
    r"|\b(?:inputs?|states?)\b[^.]*\b(?:layers?|it)(?: \w)? (?:reads?|takes?|saw)\b",
    re.I,
)
"""In a documentation: a layer's memory holds what the layer read, as in Transformer-XL, and not what it returned."""
OF_MEMORIES = frozenset({"cache-of-new-tokens", "cache-order", "cache-values"})
"""What is wrong with a memory that holds the states of each token before, however many it keeps."""
SURE_OF_MASKS = frozenset({"cache-mask", "cache-of-new-tokens", "cache-order", "cache-places", "cache-values"})
"""What tables of positions that were cut into parts cannot be the reason of."""


@dataclass(frozen=True, eq=False)
class _Difference:
    """Where parts part from the whole."""

    token: int
    gap: float
    expected: float
    found: float


def cache_findings(invocation: Invocation, instances: list[AttentionInstance]) -> Iterator[Finding]:
    """What is found of the cache of a call; nothing where it has none.

    Args:
        invocation: the call, which hands no cache over.
        instances: the attentions in it.
    """
    yield from beam_state_findings(invocation)
    names = cache_names(invocation)
    if not names or invocation.arrays or invocation.in_steps:
        return  # in steps, it is judged with its cache as it is
    if len(invocation.streams) > 1:
        yield from empty_cache_findings(invocation, names)
        yield from kept_memory_findings(invocation, names)
    call = _of_one_sequence(with_room(_turned(_beside_context(_without_context(invocation))), names))
    if call is None:
        if names.is_certain:
            yield _not_exercised(names, "it is called with several sequences")
        return
    if _is_random(call):
        yield _not_exercised(names, "the same call gives another output with another seed")
        return
    yield from _unasked(call, names)
    if (of_beams := beam_findings(call, names)) is not None:
        yield of_beams
    prefix = 2 if call.tokens_of(call.streams[0]) > MIN_TOKENS else 1
    failed: list[tuple[CachedCall, _Difference]] = []
    for number, form in enumerate(cache_forms(call, names)):
        if number == MAX_FORMS:
            break
        for cached in cached_calls(call, form, prefix):
            try:
                difference = _difference(cached, _one_by_one(prefix, cached.tokens))
            except (Failed, RuntimeError, IndexError, ValueError):
                continue
            if difference is None:
                yield from _held(cached, form, prefix, instances)
                yield from _untold(cached, prefix)
                return
            failed.append((cached, difference))
    if not failed:
        unread = _unread(call, names, prefix)
        if unread is not None:
            yield unread
        elif names.is_certain:
            yield _not_exercised(names, "it was not found out how it is handed over")
        return
    for cached, _ in failed:
        told = {call_meaning(name) for name in call.arguments} & {"start", "positions"}
        if told or cached.start or cached.position:
            continue  # told that they are the first tokens, it would compute all of them anew
        whole = replace(cached, from_first=True)
        try:
            if _difference(whole, _one_by_one(prefix, cached.tokens)) is None:
                yield from _held(whole, whole.form, prefix, instances)
                return
        except (Failed, RuntimeError, IndexError, ValueError):
            continue
    with_mask = any(cached.mask is not None for cached, _ in failed)
    yield from _differs(*failed[0], names, prefix, instances, with_mask=with_mask)


def _unread(invocation: Invocation, names: CacheNames, prefix: int) -> Finding | None:
    """A cache that the next token's keys are written into, told where it stands, and no earlier token is read from."""
    optional = any(kind == "start" for _, kind in optional_positions(invocation))
    if not names.attributes or not (optional or any(call_meaning(name) == "start" for name in invocation.arguments)):
        return None
    cuts = [(0, prefix), (prefix, prefix + 1)]
    call = CachedCall(invocation, CacheForm("", flags=dict.fromkeys(names.flags, True)), start=optional)
    try:
        part = recorded(call, cuts)
        difference = None if part.error else _difference(call, cuts)
    except (Failed, RuntimeError, IndexError, ValueError):
        return None
    writes = kept_writes(part, len(part))
    if difference is None or not writes:
        return None
    reads = any(reads_of(part, storage, several[0].index, len(part)) for storage, several in writes.items())
    if reads and not all(reads_own_place(part, each, prefix) for each in writes.items()):
        return None
    said = f"read at place {prefix} alone, which it is written to" if reads else "written and never read"
    message = f"{names.attributes[0]} is {said}: token {prefix} does not see the tokens before it"
    return Finding("violation", "cache-places", "k", message, next(iter(writes.values()))[0].location)


def _is_random(invocation: Invocation) -> bool:
    """Whether its output depends on the seed, as with dropout that is always on."""
    try:
        one, other = (_first(invocation, invocation.run(seed=seed)) for seed in (0, 1))
    except (Failed, IndexError):
        return True
    return one.shape != other.shape or _gap(one, other) > 0.0


def _of_one_sequence(invocation: Invocation) -> Invocation | None:
    """The call, of the same tokens as queries, keys and values; None where there are several sequences."""
    streams = invocation.streams
    if (
        not streams
        or any(len(each.token_axes) != 1 for each in streams)
        or invocation.tokens_of(streams[0]) < MIN_TOKENS
    ):
        return None
    if len(streams) == 1:
        return invocation if streams[0].role in ("x", "ids", "q") else None
    if not {each.role for each in streams} <= {"q", "k", "v", "x", "context"}:
        return None
    first = streams[0]
    tokens = invocation.arguments[first.argument]
    for each in streams[1:]:
        other = invocation.arguments[each.argument]
        if each.token_axes != first.token_axes or other.ndim != tokens.ndim or other.shape[-1] != tokens.shape[-1]:
            return None
    same = {each.argument: tokens for each in streams}
    call = replace(invocation, arguments={**invocation.arguments, **same})
    try:
        call.run()
    except Failed:
        return None
    return call


def _without_context(invocation: Invocation) -> Invocation:
    """The call without what its tokens attend to, where that may be left out: then they attend to themselves."""
    if [each.role for each in invocation.streams] != ["x", "context"] or len(invocation.streams[0].token_axes) != 1:
        return invocation
    asking, other = invocation.streams
    parameter = parameters_of(invocation.target).get(other.argument)
    if parameter is None or parameter.default is not None or len(other.token_axes) != 1:
        return invocation
    tokens, keys = invocation.tokens_of(asking), invocation.tokens_of(other)
    given = {**invocation.arguments, other.argument: None}
    for name in invocation.masks:
        mask = given.get(name)
        if isinstance(mask, Tensor) and mask.shape[-1] == keys >= tokens:
            given[name] = mask.narrow(-1, 0, tokens)
    call = replace(invocation, arguments=given, streams=[asking])
    try:
        call.run()
    except Failed:
        return invocation
    return call


def _beside_context(invocation: Invocation) -> Invocation:
    """The call with what its tokens attend to besides as an argument like others, which is whole in each part.

    It has another number of tokens, so that it is not what the tokens of a part are cut from.
    """
    if [each.role for each in invocation.streams] not in (["x", "context"], ["ids", "context"]):
        return invocation
    asking, other = invocation.streams
    if len(asking.token_axes) != 1 or invocation.tokens_of(asking) in invocation.arguments[other.argument].shape:
        return invocation
    return replace(invocation, streams=[asking])


def _turned(invocation: Invocation) -> Invocation:
    """The call with as many tokens as it had samples, and the other way round, where these are more."""
    stream = invocation.streams[0] if len(invocation.streams) == 1 else None
    if stream is None or stream.batch_axis is None or len(stream.token_axes) != 1:
        return invocation
    given = invocation.arguments[stream.argument]
    (token,), batch = stream.token_axes, stream.batch_axis
    if given.shape[token] >= MIN_TOKENS or given.shape[batch] <= given.shape[token]:
        return invocation
    call = replace(
        invocation, arguments={**invocation.arguments, stream.argument: given.transpose(token, batch).clone()}
    )
    try:
        call.run()
    except Failed:
        return invocation
    return call


def _reads_another(invocation: Invocation) -> bool:
    """Whether it has a context, which need not be the sequence itself."""
    return any(each.role == "context" for each in invocation.streams)


def _one_by_one(prefix: int, tokens: int) -> list[Part]:
    """The first tokens together, then each by itself."""
    return [(0, prefix), *pairwise(range(prefix, tokens + 1))]


def _difference(call: CachedCall, cuts: list[Part]) -> _Difference | None:
    """The first token of which parts give another output than the whole.

    Raises:
        Failed: it raised, or the outputs have no axis of tokens in common.
    """
    for (first, end), (result, _) in zip(cuts, call.parts(cuts), strict=True):
        part = _first(call.invocation, result)
        whole = _first(call.invocation, call.whole(end))
        rows = _rows(whole, part, first, end)
        gap = (rows - part).abs()
        worst = float(gap.max())
        if not worst <= TOLERANCE * max(1.0, float(whole.abs().max())):
            at = int(gap.flatten().argmax())
            return _Difference(
                _token(gap, whole, first), worst, float(rows.flatten()[at].real), float(part.flatten()[at].real)
            )
    return None


def _rows(whole: Tensor, part: Tensor, first: int, end: int) -> Tensor:
    """Of the whole's output, the tokens of a part."""
    if whole.shape == part.shape:
        return whole
    axes = [axis for axis, sizes in enumerate(zip(whole.shape, part.shape, strict=False)) if sizes[0] != sizes[1]]
    if whole.ndim != part.ndim or len(axes) != 1:
        raise Failed("the outputs of a part and of the whole do not fit")
    (axis,) = axes
    if (whole.shape[axis], part.shape[axis]) != (end, end - first):
        raise Failed("the outputs of a part and of the whole do not fit")
    return whole.narrow(axis, first, end - first)


def _token(gap: Tensor, whole: Tensor, first: int) -> int:
    """The first token that differs."""
    axes = [axis for axis, sizes in enumerate(zip(whole.shape, gap.shape, strict=True)) if sizes[0] != sizes[1]]
    if not axes:
        return first
    rows = gap.movedim(axes[0], 0).flatten(1).amax(1) > TOLERANCE * max(1.0, float(whole.abs().max()))
    return first + int(rows.nonzero()[0])


def _is_causal(call: CachedCall) -> bool:
    """Whether the first tokens give the same with the later ones after them as without."""
    whole = _first(call.invocation, call.whole(call.tokens))
    for end in range(1, call.tokens):
        first = _first(call.invocation, call.whole(end))
        if first.ndim != whole.ndim:
            return False
        axes = [axis for axis in range(whole.ndim) if whole.shape[axis] != first.shape[axis]]
        if len(axes) != 1 or (whole.shape[axes[0]], first.shape[axes[0]]) != (call.tokens, end):
            return False  # the output of one token alone does not say
        if _gap(whole.narrow(axes[0], 0, end), first) > TOLERANCE * max(1.0, float(whole.abs().max())):
            return False
    return True


def _first(invocation: Invocation, result: Any) -> Tensor:
    """The first tensor of a result: the output."""
    return invocation.outputs(result)[0].detach()


def _gap(one: Tensor, other: Tensor) -> float:
    return float((one - other).abs().max())


def _held(call: CachedCall, form: CacheForm, prefix: int, instances: list[AttentionInstance]) -> Iterator[Finding]:
    joined = ", to which its caller joins what is returned," if isinstance(call.place, JoinedByTheCaller) else ""
    message = f"token by token {form.name}{joined} equals all at once"
    yield Finding("holds", "cache-equals-whole", "output", message)
    with suppress(Failed, RuntimeError, IndexError, ValueError):
        yield from full_cache_findings(call, instances)
    yield from padded_text_findings(call, _one_by_one(prefix, call.tokens))
    try:
        causal = _is_causal(call)
        several = _difference(call, [(0, prefix), (prefix, call.tokens)])
    except (Failed, RuntimeError, IndexError, ValueError):
        return
    if causal and several is not None:
        message = (
            f"{form.name} one new token at a time is right; of several new tokens at once, token "
            f"{several.token} differs by up to {several.gap:.2g} from all at once"
        )
        try:
            hidden = list(hidden_past(call, prefix, instances))
        except (Failed, RuntimeError, IndexError, ValueError):
            hidden = []
        if hidden:
            yield from hidden
            return
        yield Finding("note", "cache-chunks", "output", message)


def _untold(call: CachedCall, prefix: int) -> Iterator[Finding]:
    """What is wrong where positions that may be left out are left out; nothing where each call is to be told them."""
    if not call.position:
        return
    with suppress(Failed, RuntimeError, IndexError, ValueError):
        if _difference(replace(call, position=""), _one_by_one(prefix, call.tokens)) is not None:
            yield from unread_length_findings(call)


def _differs(
    call: CachedCall,
    difference: _Difference,
    names: CacheNames,
    prefix: int,
    instances: list[AttentionInstance],
    *,
    with_mask: bool,
) -> Iterator[Finding]:
    """What is wrong where the cache was handed over as its code hands it over."""
    try:
        causal = _is_causal(call)
    except (Failed, RuntimeError, IndexError, ValueError):
        causal = False
    if _reads_another(call.invocation):
        yield _not_exercised(names, "it is called with several sequences")
        return
    numbers = (
        f"token by token {call.form.name}, the output of token {difference.token} differs by up to "
        f"{difference.gap:.2g} from all at once (expected {difference.expected:.4g}, found {difference.found:.4g})"
    )
    is_memory = any(_MEMORIES.search(each) for each in call.form.arguments)
    forgotten = forgotten_past(call, prefix, instances) if causal and not is_memory else None
    if forgotten is not None:
        yield replace(forgotten, message=f"{forgotten.message}: {numbers}")
        return
    if not causal:
        # Of one attention, the last token's query meets the same keys and values all the same.
        is_one = len(instances) == 1 and not is_memory
        causes = list(cache_causes(call, difference.token, prefix, instances)) if is_one else []
        mistaken = [each for each in causes if each.property in OF_MEMORIES]
        yield from mistaken
        if not mistaken:
            yield _not_exercised(names, "without a causal mask of its own, token by token need not equal all at once")
        return
    first, second = [(0, prefix)], [(0, prefix), (prefix, prefix + 1)]
    lost = misplaced(recorded(call, first), recorded(call, second), prefix)
    found = list(cache_causes(call, difference.token, prefix, instances)) if lost is None else [lost]
    unsure = call.is_guessed or bool(masks_left_out(call.invocation))
    if call.is_guessed:
        found = [each for each in found if each.property in SURE_OF_MASKS]
    hiding = [each for each in masks_left_out(call.invocation) if not _OF_POSITIONS.search(each)]
    if hiding and not with_mask:  # its caller may have to hand over the mask of a part
        found = [each for each in found if each.property != "cache-mask"]
    if is_memory:
        is_promised = _AS_ONE_TEXT.search(documentation_of(call.invocation.target)) is not None
        own: list[Finding] = [each for each in found if isinstance(each, HiddenKeys) and each.is_own]
        found, unsure = own or [each for each in found if is_promised and each.property in OF_MEMORIES], True
    if not found and unsure:
        yield _not_exercised(names, "it was not found out which positions and masks a part of the tokens needs")
        return
    if not found:
        line = instances[0].scores_location if instances else None
        yield Finding("violation", "cache-equals-whole", "output", numbers, line)
    for each in found:
        yield replace(each, message=f"{each.message}: {numbers}")


def _unasked(invocation: Invocation, names: CacheNames) -> Iterator[Finding]:
    """Whether a call, without having been told to, depends on the one before."""
    try:
        alone = _first(invocation, invocation.run())
        target = copied(invocation.target)
        invocation.run({**invocation.arguments, **other_tokens(invocation)}, target=target)
        after = _first(invocation, invocation.run(target=target))
    except (Failed, IndexError):
        return
    if alone.shape == after.shape and _gap(alone, after) <= TOLERANCE * max(1.0, float(alone.abs().max())):
        return
    kept = ", ".join(names.attributes) or "something"
    if (names.is_reset or promises_memory(invocation.target)) and not names.flags:
        message = f"every call goes on from the one before until it is cleared: {kept} is kept"
        yield Finding("note", "cache-always", "call", message)
        return
    gap = f" by up to {_gap(alone, after):.2g}" if alone.shape == after.shape else ""
    off = f", though {names.flags[0]} is off" if names.flags else ""
    message = f"the output of a call changes{gap} with the call before it{off}: {kept} is kept"
    yield Finding("violation", "cache-unasked", "call", message, remembering_line(invocation))


def _not_exercised(names: CacheNames, why: str) -> Finding:
    return Finding("note", "cache-open", "output", f"cache {names.text}: not exercised: {why}")
