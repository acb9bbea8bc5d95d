"""What train() and eval() have in common: dropout is on or off, and what is hidden is hidden in both."""

from __future__ import annotations

from collections.abc import Iterator

import torch
from torch import Tensor, nn

from regard.check.properties.finding import Finding
from regard.check.target import Invocation
from regard.check.target.errors import Failed
from regard.check.target.preparation import copied, in_mode

__all__ = ["mode_findings"]

MOVED = 1e-9
"""The smallest change of an output that is one."""
SEEDS = 5
"""Of what is dropped, that are tried."""
MIN_TOKENS = 3
_MIXING = (nn.modules.batchnorm._NormBase,)
"""Modules that mix tokens while they train, and not afterwards."""


def mode_findings(invocation: Invocation) -> Iterator[Finding]:
    """Later tokens that are hidden in one of train() and eval(), and seen in the other.

    With the same seed the same numbers are dropped, so that a change of one token shows which others see it.

    Args:
        invocation: a call of a module, of one sequence.
    """
    target, streams = invocation.target, invocation.streams
    if not isinstance(target, nn.Module) or len(streams) != 1 or len(streams[0].token_axes) != 1:
        return
    if any(isinstance(each, _MIXING) for each in target.modules()):
        return
    stream = streams[0]
    given, (axis,) = invocation.arguments[stream.argument], stream.token_axes
    if given.shape[axis] < MIN_TOKENS:
        return
    others = _others(invocation, stream.argument)
    first, last = given.clone(), given.clone()
    for changed, at in ((first, 0), (last, -1)):
        changed.select(axis, at).copy_(others.select(axis, at))
    several = (given, first, last)
    try:
        seen = [_are_earlier_moved(invocation, stream.argument, several, axis, training=mode) for mode in (False, True)]
    except (Failed, RuntimeError, IndexError):
        return
    if None in seen or seen[0] == seen[1]:
        return
    hiding, seeing = ("train()", "eval()") if seen[0] else ("eval()", "train()")
    message = (
        f"in {hiding} the last token has no influence on those before it, and in {seeing} it has: what hides later "
        "tokens hangs on the mode"
    )
    yield Finding("violation", "hidden-in-both-modes", "mask", message)


def _others(invocation: Invocation, name: str) -> Tensor:
    """Another vector, or another id, for each token."""
    given, generator = invocation.arguments[name], torch.Generator().manual_seed(17)
    if not given.is_floating_point():
        return invocation.other_ids(name, generator)
    return torch.randn(given.shape, generator=generator, dtype=torch.float64).to(given.dtype)


def _are_earlier_moved(
    invocation: Invocation, name: str, several: tuple[Tensor, Tensor, Tensor], axis: int, *, training: bool
) -> bool | None:
    """Whether the outputs of earlier tokens change with the last one in a mode; None where that is not seen.

    A branch may be left out while it trains: it is there where the first token has an influence on the last one.

    Args:
        invocation: the call.
        name: of the sequence.
        several: the sequence, with another first token, and with another last one.
        axis: of its tokens.
        training: the mode.
    """
    for seed in range(SEEDS):
        outputs = []
        for each in several:
            live = in_mode(copied(invocation.target), training=training)
            result = invocation.run({**invocation.arguments, name: each}, target=live, seed=seed)
            outputs.append(invocation.outputs(result)[0].detach())
        one, *others = outputs
        if any(one.shape != two.shape for two in others) or one.ndim <= axis:
            return None
        if one.shape[axis] != several[0].shape[axis] or not all(bool(each.isfinite().all()) for each in outputs):
            return None
        by_first, by_last = (((one - two).abs() > MOVED).movedim(axis, 0).flatten(1).any(1) for two in others)
        if bool(by_first[-1]):
            return bool(by_last[:-1].any())
    return None
