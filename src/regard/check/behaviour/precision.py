"""Precision: float16 and bfloat16, and float32 where float64 was given."""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor, nn
from torch.overrides import TorchFunctionMode

from regard.check.behaviour.calls import first_line_of, joined, output_tensor
from regard.check.behaviour.dropout import without_dropout
from regard.check.behaviour.examination import Examination
from regard.check.sandbox.answer import error_text
from regard.check.search.calls import Failed
from regard.check.target.preparation import copied

__all__ = ["half_precision", "single_precision"]

OWN_LIMITS = ("not implemented for", "unsupported ScalarType")
"""What PyTorch says where it is PyTorch that cannot, on this machine or in numpy."""
PRODUCTS = frozenset(
    {
        "softmax",
        "_softmax",
        "matmul",
        "__matmul__",
        "bmm",
        "einsum",
        "baddbmm",
        "scaled_dot_product_attention",
        "linear",
        "exp",
    }
)


def half_precision(examination: Examination) -> None:
    """In float16 and in bfloat16."""
    call, case, _ = examination.pairs[0]
    asked = [(call, case)] + [(each, observed.case) for _, each, observed in examination.masked_calls()]
    for dtype in (torch.float16, torch.bfloat16):
        name = str(dtype).removeprefix("torch.")
        for call, case in asked:
            given = {n: _cast(value, dtype) for n, value in call.arguments(case).items()}
            with without_dropout():
                try:
                    module = None if call.module is None else _moved(call.module, dtype)
                    result = call.output(case, call.result_of(module, given))
                except Failed as error:
                    if not any(limit in str(error) for limit in OWN_LIMITS):
                        examination.add_note(f"in {name} it raises {first_line_of(error)}")
                        break
                    continue
            rows = call(case).isnan()
            if bool((result.isnan() & ~rows).any()):
                examination.add_note(f"in {name} its output is NaN")
                break


def _moved(module: nn.Module, dtype: torch.dtype) -> nn.Module:
    """A copy in that precision; `Failed` where a method of its own hides nn.Module's `_apply`, which moves it."""
    try:
        moved: nn.Module = copied(module).to(dtype)
    except TypeError as error:
        raise Failed(error_text(error)) from error
    return moved


def _cast(value: Any, dtype: torch.dtype) -> Any:
    if isinstance(value, Tensor):
        return value.to(dtype) if value.is_floating_point() else value
    return tuple(_cast(each, dtype) for each in value) if isinstance(value, tuple) else value


class _SinglePrecisionWatch(TorchFunctionMode):
    """Which products and softmaxes are computed in float32."""

    def __init__(self) -> None:
        super().__init__()
        self.names: dict[str, None] = {}

    def __torch_function__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        result = func(*args, **(kwargs or {}))
        name = getattr(func, "__name__", "")
        if name in PRODUCTS and isinstance(result, Tensor) and result.dtype == torch.float32:
            self.names[name.strip("_")] = None
        return result


def single_precision(examination: Examination) -> None:
    """Given float64, what does it compute in?"""
    found = [stage.found for stage in examination.diagnosis.stages if stage.found is not None]
    if any(each.kind == "precision" for one in found for each in one.otherwise):  # said already
        return
    call, case, _ = examination.pairs[0]
    watch = _SinglePrecisionWatch()
    with without_dropout(), watch:
        result = call.result(call.arguments(case))
    if watch.names:
        examination.add_note(f"given float64, it computes in float32: {joined(list(watch.names))}")
    elif output_tensor(call, case, result).dtype == torch.float32:
        examination.add_note("given float64, it returns float32")
