"""NaN for real tokens: of batches padded on the left, and in float16, where code is meant for these."""

from __future__ import annotations

import re
from collections.abc import Iterator
from typing import Any

import torch
from torch import Tensor, nn
from torch.utils._pytree import tree_leaves, tree_map

from regard.check.properties.code import comments_of_file, documentation_of_file
from regard.check.properties.documentation import documentation_of, works_in_low_precision
from regard.check.properties.evidence import with_fresh_tokens
from regard.check.properties.finding import Finding
from regard.check.properties.masks.documented import documented_forms
from regard.check.properties.masks.settings import NOT_OF_KEYS
from regard.check.properties.positions.left_padding import PADDED, is_left_padded
from regard.check.roles.influence import record_invocation
from regard.check.target import Invocation, Stream
from regard.check.target.mask_values import MASK_FORMS, write_mask
from regard.check.target.preparation import copied

__all__ = ["left_padded_nan_findings", "low_precision_nan_findings"]

SHAPES = ("bk", "b11k", "b1k")
"""Axes of a mask of padding: samples, keys."""
SMALL = 0.1
"""By which tokens are multiplied."""
HIDDEN = 1
"""The token by which the form of a mask is known: others stand before and behind it, so that no row is empty."""
LEAST = 1e-9
"""Of what an output changes by; less is rounding."""
PRECISIONS = {
    torch.float16: re.compile(r"\bfloat16\b|\bfp16\b|\bhalf\b", re.I),
    torch.bfloat16: re.compile(r"\bbfloat16\b|\bbf16\b", re.I),
}
"""By the names that a documentation has for them."""
OVERFLOWS = re.compile(r"overflow", re.I)
"""In what PyTorch raises where a number is too large for a precision."""


def left_padded_nan_findings(invocation: Invocation) -> Iterator[Finding]:
    """NaN for real tokens behind padding, in code whose documentation says that batches are padded on the left.

    A causal mask leaves the first rows no key; what these get may not reach the others, as 0 * NaN does.

    Args:
        invocation: a call of one sequence, which may be given a mask.
    """
    target = invocation.target
    told = "\n\n".join((documentation_of_file(target), comments_of_file(target), documentation_of(target)))
    if not is_left_padded(told) or (stream := _stream(invocation)) is None:
        return
    for name, form, shape in _forms(invocation, stream):
        allowed = torch.ones(invocation.arguments[stream.argument].shape[:2], dtype=torch.bool)
        allowed[:, :PADDED] = False
        returned = _returned(invocation, {name: _written(allowed, form, shape)})
        if returned is not None and bool(returned[:, PADDED:].isnan().any()):
            message = (
                f"by its documentation batches are padded on the left: behind {PADDED} tokens of padding, which {name} "
                "hides, what comes out for real tokens is NaN, as the first rows have nothing to attend to"
            )
            yield Finding("violation", "weights-are-numbers", "weights", message)
            return


def low_precision_nan_findings(invocation: Invocation) -> Iterator[Finding]:
    """NaN in float16 or bfloat16, in code that says that it runs in it, where in float64 all are numbers.

    As of 0 * -inf, where a mask is made with -1e9, which is no number of float16. The tokens are small, so that nothing
    else is infinite there.

    Args:
        invocation: a call of a module.
    """
    target, text = invocation.target, documentation_of(invocation.target)
    if not isinstance(target, nn.Module) or not works_in_low_precision(text):
        return
    stream = _stream(invocation)
    if stream is None or not invocation.arguments[stream.argument].is_floating_point():
        return
    given = SMALL * invocation.arguments[stream.argument]
    allowed = torch.ones(given.shape[:2], dtype=torch.bool)
    allowed[:, HIDDEN] = False
    several: list[tuple[str, dict[str, Any]]] = [("", {})]
    several += [(f" with {name}", {name: _written(allowed, *form)}) for name, *form in _forms(invocation, stream)]
    for dtype in (each for each, names in PRECISIONS.items() if names.search(text)):
        says = f"in {str(dtype).removeprefix('torch.')}, which it says that it runs in,"
        for what, mask in several:
            told = {stream.argument: given, **mask}
            wide = _returned(invocation, told)
            if wide is None or not bool(wide.isfinite().all()):
                continue
            found, raised = _in_precision(invocation, dtype, told)
            message = ""
            if OVERFLOWS.search(raised):
                message = f"{says} it raises{what}: {raised}"
            elif found is not None and bool(found.isnan().any()):
                message = (
                    f"{says} its output{what} holds NaN, and none in float64: a number that is added to the scores is "
                    "infinite there"
                )
            if message:
                yield Finding("violation", "finite-in-low-precision", "masked", message)
                return


def _stream(invocation: Invocation) -> Stream | None:
    """The sequence of a call of (samples, tokens, ...) alone; None of others."""
    if len(invocation.streams) != 1 or invocation.packed or invocation.arrays or invocation.in_steps:
        return None
    (stream,) = invocation.streams
    is_plain = stream.batch_axis == 0 and stream.token_axes == (1,)
    return stream if is_plain and invocation.arguments[stream.argument].shape[1] >= PADDED + 2 else None


def _forms(invocation: Invocation, stream: Stream) -> Iterator[tuple[str, str, str]]:
    """Each mask of padding with a form and a shape in which it hides the token that it blocks, and nothing else."""
    given = invocation.arguments[stream.argument]
    allowed = torch.ones(given.shape[:2], dtype=torch.bool)
    allowed[:, HIDDEN] = False
    others = given.clone()
    others[:, HIDDEN] = with_fresh_tokens(invocation)[stream.argument][:, HIDDEN]
    free = [_returned(invocation, {stream.argument: each}) for each in (given, others)]
    if _gap(free, allowed) <= LEAST:
        return
    for name in [each for each in invocation.masks if not NOT_OF_KEYS.search(each)]:
        for form in documented_forms(invocation, name) or MASK_FORMS:
            for shape in SHAPES:
                mask = {name: _written(allowed, form, shape)}
                hidden = [_returned(invocation, {stream.argument: each, **mask}) for each in (given, others)]
                if _gap(hidden, allowed) <= LEAST and _gap([free[0], hidden[0]], allowed) > LEAST:
                    yield name, form, shape
                    break
            else:
                continue
            break


def _written(allowed: Tensor, form: str, shape: str) -> Tensor:
    samples, tokens = allowed.shape
    return write_mask(allowed.reshape([{"b": samples, "k": tokens, "1": 1}[each] for each in shape]), form)


def _gap(several: list[Tensor | None], allowed: Tensor) -> float:
    """How far apart two outputs are for the tokens that are allowed; infinite where these are no numbers."""
    one, other = several
    if one is None or other is None or one.shape != other.shape or one.shape[:2] != allowed.shape:
        return torch.inf
    gap = (one - other)[allowed].abs().max()
    return float(gap) if bool(gap.isfinite()) else torch.inf


def _returned(invocation: Invocation, given: dict[str, Any]) -> Tensor | None:
    """The first thing that a call returns; None where it does not run, or returns no vectors."""
    run = record_invocation(invocation, {**invocation.arguments, **given})
    found = run.outputs[0].data if not run.error and run.outputs else None
    return found if found is not None and found.ndim > 1 and found.is_floating_point() else None


def _in_precision(invocation: Invocation, dtype: torch.dtype, given: dict[str, Any]) -> tuple[Tensor | None, str]:
    """What a call returns in a precision, and what it raises instead."""
    cast = tree_map(
        lambda each: each.to(dtype) if isinstance(each, Tensor) and each.is_floating_point() else each,
        {**invocation.arguments, **given},
    )
    positional = [cast.pop(name) for name in invocation.positional if name in cast]
    try:
        live = copied(invocation.target).to(dtype)
        with torch.no_grad():
            returned = live(*positional, **cast)
    except Exception as error:  # the code's own may raise anything
        return None, str(error).splitlines()[0] if str(error) else ""
    found = [each for each in tree_leaves(returned) if isinstance(each, Tensor) and each.is_floating_point()]
    return (found[0], "") if found else (None, "")
