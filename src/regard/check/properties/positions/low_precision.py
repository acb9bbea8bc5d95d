"""Angles of positions in bfloat16: integers above 256 are rounded there, and neighbours get the same angles."""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping
from typing import Any

import torch
from torch import Tensor, nn
from torch.overrides import TorchFunctionMode

from regard.check.properties.code import code_of
from regard.check.properties.documentation import documentation_of, works_in_low_precision
from regard.check.properties.finding import Finding
from regard.check.properties.other_lengths import with_tokens
from regard.check.target import Invocation
from regard.check.target.preparation import copied, modules_in

__all__ = ["rounded_position_findings", "rounded_table_findings"]

TOKENS = 300
"""More than bfloat16 tells apart, whose numbers have 8 bits."""
ROUNDED_FROM = (256, 2048)
"""The first whole number after which bfloat16, and float16, have the even ones alone."""
FEWEST = 32
"""Rows after it that say something."""
MARGIN = 0.1
_NARROW = re.compile(r"\bb?float16\b|\.half\b")
"""In code that may count in low precision whatever its parameters have."""


def rounded_position_findings(invocation: Invocation) -> Iterator[Finding]:
    """Tokens whose sines and cosines are those of the token before, as positions in bfloat16 give them.

    In float32, where code says itself that positions are to be in bfloat16; and in bfloat16, where in float32 the same
    tokens have angles of their own: code that does not say that it works in bfloat16 may be meant for float32 alone.

    Args:
        invocation: a call of a module.
    """
    target = invocation.target
    if not isinstance(target, nn.Module):
        return
    is_meant = works_in_low_precision(documentation_of(target))
    if not is_meant and not _NARROW.search(code_of(target)):
        return
    stream = invocation.streams[0]
    if len(stream.token_axes) != 1 or invocation.packed or invocation.arrays or invocation.in_steps:
        return
    given = with_tokens(invocation, TOKENS - invocation.tokens_of(stream))
    if given is None:
        return
    wide = _angles(invocation, given, torch.float32)
    for each in wide:
        token = _first_rounded(each.movedim(each.shape.index(TOKENS), 0).flatten(1))
        if token is not None:
            message = (
                f"in float32 the angles of token {token} are those of token {token - 1}, and so is half of those after "
                "it: positions were counted in low precision, not in float32"
            )
            yield Finding("violation", "positions-unrounded", "positions", message)
            return
    if not is_meant:
        return
    low = _angles(invocation, given, torch.bfloat16)
    for mine, other in zip(low, wide, strict=False):
        if mine.shape != other.shape or mine.dtype != torch.bfloat16:
            continue
        same = _like_the_one_before(mine) & ~_like_the_one_before(other)
        if bool(same.any()):
            first = int(same.nonzero()[0])
            message = (
                f"it says that it works in low precision: in bfloat16 the angles of token {first + 1} are those of "
                f"token {first}, and of {int(same.sum())} of {TOKENS} tokens those of the one before, since positions "
                "are not kept in float32"
            )
            yield Finding("violation", "positions-unrounded", "positions", message)
            return


def rounded_table_findings(target: object) -> Iterator[Finding]:
    """A table of positions that a module keeps, in which every other row is the one before, from 256 on, or from 2048.

    So far bfloat16, or float16, tells whole numbers apart, and to twice as many the even ones alone. Tables that learn,
    and those that end with one row again and again, are left out.

    Args:
        target: what was called.
    """
    for path, module in (each for owner in modules_in(target) for each in owner.named_modules()):
        for name, table in (*module.named_buffers(recurse=False), *vars(module).items()):
            if not isinstance(table, Tensor) or isinstance(table, nn.Parameter) or table.ndim < 2:
                continue
            rows = table.detach().flatten(0, -2) if max(table.shape[:-1]) == table[..., 0].numel() else table[:0]
            row = _first_rounded(rows)
            if row is not None:
                whole = f"{path}.{name}" if path else name
                message = (
                    f"of {whole}, row {row} is the one before, and so is half of those after it: positions were "
                    "counted in low precision, not in float32"
                )
                yield Finding("violation", "positions-unrounded", "positions", message, module=path)
                return


def _first_rounded(rows: Tensor) -> int | None:
    """The first row that is the one before, where from 256 or 2048 on every other one is; None elsewhere."""
    for first in (each for each in ROUNDED_FROM if len(rows) >= each + FEWEST):
        same = (rows[1 : 2 * first] == rows[: 2 * first][:-1]).all(-1)
        # Ties go to the even one: 257 becomes 256, and 259 becomes 260, so that of four numbers two are new.
        later = same[first:]
        share = float(later.double().mean())
        is_one_row = bool((later[2:] & later[1:-1] & later[:-2]).any())  # again and again
        if not bool(same[:first].any()) and not is_one_row and abs(share - 1 / 2) < MARGIN:
            return first + int(later.nonzero()[0]) + 1
    return None


class _AngleWatch(TorchFunctionMode):
    """What sines and cosines are taken of, where it has a row for each token."""

    def __init__(self) -> None:
        super().__init__()
        self.found: list[Tensor] = []

    def __torch_function__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        if getattr(func, "__name__", "") in ("cos", "sin") and args and TOKENS in args[0].shape:
            self.found.append(args[0].detach().clone())
        return func(*args, **(kwargs or {}))


def _angles(invocation: Invocation, given: Mapping[str, Any], dtype: torch.dtype) -> list[Tensor]:
    """The angles of a call in a precision; none where it does not run."""
    named = {name: each.to(dtype) if _is_float(each) else each for name, each in given.items()}
    positional = [named.pop(name) for name in invocation.positional if name in named]
    watch = _AngleWatch()
    try:
        live = copied(invocation.target).to(dtype)
        with torch.no_grad(), watch:
            live(*positional, **named)
    except Exception:  # the code's own may raise anything
        return []
    return watch.found


def _is_float(value: Any) -> bool:
    return isinstance(value, Tensor) and value.is_floating_point()


def _like_the_one_before(angles: Tensor) -> Tensor:
    """(tokens - 1): whether all angles of a token are those of the token before."""
    rows = angles.movedim(angles.shape.index(TOKENS), 0).flatten(1)
    return (rows[1:] == rows[:-1]).all(1)
