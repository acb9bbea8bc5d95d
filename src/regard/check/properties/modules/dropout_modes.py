"""Dropout from call to call: train() turns it on and eval() turns it off, whatever was called before."""

from __future__ import annotations

import re
from collections.abc import Iterator, Sequence

from torch import Tensor, nn

from regard.check.properties.finding import Finding
from regard.check.target import Invocation
from regard.check.target.classes import own_classes, parameters_of
from regard.check.target.errors import Failed
from regard.check.target.preparation import copied

__all__ = ["SHARE", "SHARE_NAME", "drop_some", "dropout_mode_findings", "is_drawn"]

SHARE_NAME = re.compile(r"_?(?:\w+_)?(?:dropout|drop)(?:_?(?:p|rate|prob|probability))?|_?\w*pdrop", re.I)
"""Names of the share of numbers that dropout sets to 0."""
_OF_WEIGHTS = re.compile(r"_?(?:att\w*?_?)?(?:dropout|drop)(?:_?(?:p|rate|prob|probability))?|attn_pdrop", re.I)
"""The same of dropout that is PyTorch's: not of layers, tokens or conditions that are left out."""
SHARE = 0.4
"""Of what is dropped where a module was told to drop nothing."""
SAME = 1e-9
EVAL_SEEDS = range(1, 6)
"""Of calls in eval(): of layers that are left out whole, two calls may by chance leave out the same."""


def dropout_mode_findings(invocation: Invocation) -> Iterator[Finding]:
    """A call in eval() after which nothing is dropped in training any more, or one in training after which eval() does.

    As where a call writes into the attribute that holds the share of what is dropped.

    Args:
        invocation: a call of a module that is in eval().
    """
    if not isinstance(invocation.target, nn.Module):
        return
    target = copied(invocation.target)
    if any(each.training for each in target.modules()):
        return
    drop_some(target)
    try:
        if not is_drawn(invocation, target, [True]):
            return
        if is_drawn(invocation, target, [False], seeds=EVAL_SEEDS):
            yield from _drawn_in_eval(invocation)
            return
        silent = is_drawn(invocation, target, [True, True]) and not is_drawn(invocation, target, [False, True])
        if silent:
            message = (
                "after a call in eval() nothing is dropped in training any more: that call turns dropout off for good"
            )
            yield Finding("violation", "dropout-switched", "call", message)
        elif is_drawn(invocation, target, [True, False]):
            message = "after a call in training dropout stays on in eval(): that call turns it on for good"
            yield Finding("violation", "dropout-switched", "call", message)
    except (Failed, RuntimeError):
        return


def _drawn_in_eval(invocation: Invocation) -> Iterator[Finding]:
    """Weights that are dropped in eval() too, which nobody sees by the default of a share that is 0.

    Not of a share that no constructor takes: nothing is ever dropped by that.

    Args:
        invocation: a call in eval() that hangs on the seed, where a share is dropped instead of each that is 0.
    """
    kinds = dict.fromkeys(each for part in invocation.target.modules() for each in own_classes(type(part))[:1])
    told = [name for kind in kinds for name in parameters_of(kind) if _OF_WEIGHTS.fullmatch(name)]
    target = copied(invocation.target)
    if not told or is_drawn(invocation, target, [False], seeds=EVAL_SEEDS):
        return
    drop_some(target, _OF_WEIGHTS)
    if is_drawn(invocation, target, [False]):
        message = f"where {told[0]} is {SHARE} instead of 0, two calls in eval() differ: nothing turns dropout off"
        yield Finding("violation", "dropout-switched", "call", message)


def drop_some(target: nn.Module, names: re.Pattern[str] = SHARE_NAME) -> None:
    """Put a share that is dropped in the place of each that is 0.

    Args:
        target: whose modules are changed.
        names: of the attributes that hold one.
    """
    for each in target.modules():
        if isinstance(each, nn.modules.dropout._DropoutNd) and each.p == 0:
            each.p = SHARE
        for name, value in vars(each).items():
            if isinstance(value, float) and value == 0 and names.fullmatch(name):
                vars(each)[name] = SHARE


def is_drawn(invocation: Invocation, target: nn.Module, modes: Sequence[bool], seeds: Sequence[int] = (1, 2)) -> bool:
    """Whether the last of several calls of one module, each in training or in eval(), hangs on the seed."""
    first = _last(invocation, copied(target), modes, seeds[0])
    for seed in seeds[1:]:
        other = _last(invocation, copied(target), modes, seed)
        if len(first) == len(other) and any(
            a.shape == b.shape and a.numel() > 0 and float((a - b).abs().max()) > SAME
            for a, b in zip(first, other, strict=True)
        ):
            return True
    return False


def _last(invocation: Invocation, live: nn.Module, modes: Sequence[bool], seed: int) -> list[Tensor]:
    for number, mode in enumerate(modes):
        live.train(mode)
        result = invocation.run(target=live, seed=seed if number == len(modes) - 1 else 0)
    return [each.detach().clone() for each in invocation.outputs(result)]
