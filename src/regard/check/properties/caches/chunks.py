"""Several new tokens at once through a cache that is right for one at a time: what they do not read, and later ones."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace
from itertools import product

import torch
from torch import Tensor

from regard.check.properties.caches.causes import cache_causes
from regard.check.properties.caches.comparison import line_key, recorded
from regard.check.properties.documentation import documentation_of, promises_parts
from regard.check.properties.finding import Finding
from regard.check.roles.influence import differs
from regard.check.roles.instances import SOFTMAXES, AttentionInstance
from regard.check.target.cache_runs import CachedCall, masks_left_out
from regard.check.target.cache_search import other_tokens
from regard.check.target.errors import Failed
from regard.check.target.mask_values import MASK_FORMS
from regard.check.target.names import call_meaning
from regard.check.trace.operation import Trace

__all__ = ["hidden_past"]

COPIES = frozenset({"_reshape_copy", "_unsafe_view", "clone", "contiguous"})
"""Operations that a tensor may need in one shape and not in another."""

MAKES_MASKS = frozenset({"cat", "full", "ge", "gt", "le", "lt", "ones", "tril", "triu"})
"""Operations that make a mask out of numbers of positions."""
LOW = -1e3
"""What a score is lowered by to hide it, at least."""
MASKS_OF_PARTS = [f"{shape}{form}" for shape, form in product(("", "square ", "row "), MASK_FORMS)]
"""Masks that allow a new token all tokens before it."""


def hidden_past(call: CachedCall, prefix: int, instances: list[AttentionInstance]) -> Iterator[Finding]:
    """An old token that has no influence on one of several new tokens, because it is masked; or a later one that has.

    Code that is meant for one new token takes other steps with several, as a causal mask that is made for a prompt
    alone, or makes no mask at all: then nothing is found, unless its documentation promises several, or it makes a
    mask that has a row for each new token and a column for each one so far. Nor is a later token that is read, without
    that, or where the caller may have to hand a mask over; nor an old one that is hidden, unless it is with every mask
    that the call takes and that allows it.

    Args:
        call: with its cache, right for one new token at a time.
        prefix: how many tokens the first call is given.
        instances: the attentions of the call without a cache.

    Raises:
        Failed: it raised.
    """
    if (call.is_guessed and _is_given_masks(call)) or call.from_first or not instances:
        return
    one, several = (recorded(call, [(0, prefix), (prefix, end)]) for end in (prefix + 1, call.tokens))
    if one.error or several.error:
        return
    is_promised = promises_parts(documentation_of(call.invocation.target)) or _has_masks_of_all(several, call, prefix)
    if _steps(one) != _steps(several) and not is_promised:
        return
    if not _are_all_there(several, instances, call.tokens):
        return
    new, what = _hidden(call, prefix) or (0, "")
    if what and not _is_hidden_with_masks(call, prefix):
        return
    is_open = call.is_guessed or bool(masks_left_out(call.invocation))
    if not what and not is_open and is_promised:
        new, what = _reads_later(call, prefix) or (0, "")
    if not what:
        return
    message = f"of several new tokens at once {call.form.name}, {what}; one new token at a time is right"
    causes = list(cache_causes(call, new, prefix, instances, together=True))
    found = [each for each in causes if each.property == "cache-order"]
    found = found or [each for each in causes if each.property == "cache-mask"]
    # A fused attention may be for a prompt alone.
    weighted = (each.location for each in reversed(several.operations) if each.name in SOFTMAXES)
    line = next(weighted, instances[0].sums_location)
    for each in found or [Finding("violation", "cache-mask", "mask", "not the tokens up to its own are read", line)]:
        yield replace(each, message=f"{each.message}: {message}")


def _is_given_masks(call: CachedCall) -> bool:
    """Whether something that the call is given besides its tokens may hide some: no table of positions does."""
    names = {each.argument for each in call.invocation.streams} | set(call.form.arguments)
    others = {name: value for name, value in call.invocation.arguments.items() if name not in names}
    return any(
        call_meaning(name) in ("mask", "padding", "bias") or each.dtype == torch.bool or bool((each < LOW).any())
        for name, value in others.items()
        for each in (value if isinstance(value, list | tuple) else [value])
        if isinstance(each, Tensor) and not each.is_complex()
    )


def _is_hidden_with_masks(call: CachedCall, prefix: int) -> bool:
    """Whether the call takes no mask, or hides an old token from a new one with each that it takes and allows it."""
    names = masks_left_out(call.invocation)
    if not names:
        return True
    taken, shape = 0, _rows(call, prefix, {})[0].shape
    for name, form in product(names, MASKS_OF_PARTS):
        masked = replace(call, mask=(name, form))
        try:
            if _rows(masked, prefix, {})[0].shape != shape:
                continue  # a mask with more axes than are meant
            hidden = _hidden(masked, prefix)
        except (Failed, RuntimeError, IndexError, ValueError):
            continue
        if hidden is None:
            return False
        taken += 1
    return taken > 0


def _has_masks_of_all(trace: Trace, call: CachedCall, prefix: int) -> bool:
    """Whether a line makes a mask of the new tokens by all tokens so far: it is meant for several new ones.

    A fused attention makes one on its own line where it is told no more than that it is causal.
    """
    size = (call.tokens - prefix, call.tokens)
    fused = {each.location for each in trace if each.name in SOFTMAXES}
    return any(
        each.name in MAKES_MASKS and each.location not in {None, *fused} and tuple(record.shape[-2:]) == size
        for each in trace
        for record in each.outputs
        if record.data.ndim > 1 and set(record.shape[:-2]) <= {1}
    )


def _steps(trace: Trace) -> set[object]:
    """The operations that it took, each once."""
    return {line_key(each) for each in trace if not each.is_view and each.name not in COPIES}


def _are_all_there(trace: Trace, instances: list[AttentionInstance], tokens: int) -> bool:
    """Whether the weights have a place for each token: none was dropped from the cache.

    Of a fused attention, q . k stands on the same line: its keys have a place for each token as well. Where the fused
    one is for a prompt alone, with a cache it is a softmax on another line.
    """
    softmaxes = [each for each in trace if each.name in SOFTMAXES and each.outputs[0].shape[-1] == tokens]
    if len(softmaxes) >= len(instances):
        return True
    keys = {line_key(each.operation) for instance in instances for each in instance.sums}
    factors = [each.inputs for each in trace if line_key(each) in keys]
    return bool(factors) and all(any(tokens in each.data.shape for each in several) for several in factors)


def _hidden(call: CachedCall, prefix: int) -> tuple[int, str] | None:
    """The first new token on which an old one has no influence, though it has all at once; and that in words."""
    for old in range(prefix):
        for new, moved in enumerate(_moved(call, prefix, old)):
            if moved == (False, True):
                return prefix + new, f"token {prefix + new} does not read token {old}"
    return None


def _reads_later(call: CachedCall, prefix: int) -> tuple[int, str] | None:
    """The first new token on which a later one has an influence, though it has none all at once; and that in words."""
    for later in range(prefix + 1, call.tokens):
        for new, moved in enumerate(_moved(call, prefix, later)[: later - prefix]):
            if moved == (True, False):
                return prefix + new, f"token {prefix + new} reads token {later}, a later one"
    return None


def _moved(call: CachedCall, prefix: int, token: int) -> list[tuple[bool, bool]]:
    """For each new token whether another token has an influence on it, through the cache and all at once."""
    drawn = other_tokens(call.invocation)
    other: dict[str, Tensor] = {}
    for stream in call.invocation.streams:
        value = call.invocation.arguments[stream.argument].clone()
        value.select(stream.token_axes[0], token).copy_(drawn[stream.argument].select(stream.token_axes[0], token))
        other[stream.argument] = value
    sides = [*zip(_rows(call, prefix, {}), _rows(call, prefix, other), strict=True)]
    parts, whole = ([bool(differs(one, two).any()) for one, two in zip(*each, strict=True)] for each in sides)
    return [*zip(parts, whole, strict=True)]


def _rows(call: CachedCall, prefix: int, tokens: dict[str, Tensor]) -> tuple[Tensor, Tensor]:
    """The outputs of the new tokens, through the cache and all at once: (new tokens, ...)."""
    new = call.tokens - prefix
    invocation = replace(call.invocation, arguments={**call.invocation.arguments, **tokens})
    other = replace(call, invocation=invocation)
    *_, (result, _) = other.parts([(0, prefix), (prefix, call.tokens)])
    part, whole = (invocation.outputs(each)[0].detach() for each in (result, other.whole(call.tokens)))
    axes = [axis for axis in range(part.ndim) if (part.shape[axis], whole.shape[axis]) == (new, call.tokens)]
    return part.movedim(axes[0], 0), whole.narrow(axes[0], prefix, new).movedim(axes[0], 0)
