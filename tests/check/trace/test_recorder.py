"""Every operation of a call is kept, with its tensors as they were, its line and its module."""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Any

import pytest
import torch
import torch.nn.functional as F
from torch import Tensor, nn

import regard.check.trace.recorder
from regard.check.trace.operation import Trace
from regard.check.trace.recorder import record


def recorded(function: Callable[..., Any], *given: Tensor, **options: Any) -> Trace:
    def call(watch):
        with watch({f"x{number}": each for number, each in enumerate(given)}):
            return function(*given)

    return record(call, outputs=lambda result: [each for each in (result,) if isinstance(each, Tensor)], **options)


def drawn(*sizes: int, dtype: torch.dtype = torch.float64) -> Tensor:
    return torch.randn(sizes, generator=torch.Generator().manual_seed(0), dtype=torch.float64).to(dtype)


def by_hand(x: Tensor) -> Tensor:
    return (x @ x.mT / math.sqrt(x.shape[-1])).softmax(-1) @ x


def rotated(x: Tensor) -> Tensor:
    pairs = torch.view_as_complex(x.unflatten(-1, (-1, 2)))
    return torch.view_as_real(pairs * torch.polar(torch.ones(3, 1), torch.arange(3.0)[:, None])).flatten(-2)


def expanded_in_place(x: Tensor) -> Tensor:
    out = torch.zeros(1, dtype=x.dtype).expand(4).contiguous()
    out[1:] += x[0, 0, :3]
    out.view(2, 2).t().mul_(2)
    return out


CALLS = {
    "by hand": by_hand,
    "einsum": lambda x: torch.einsum("bid,bjd->jbi", x, x),
    "with loops": lambda x: torch.stack([each @ each.t() for each in x]),
    "complex": rotated,
    "in place": expanded_in_place,
    "norms": lambda x: F.layer_norm(x, (4,)) + F.normalize(x, dim=-1),
    "dropout": lambda x: F.dropout(x, 0.5),
    "sorted": lambda x: x.sort(-1).values.topk(2).values,
}


@pytest.mark.parametrize("name", CALLS)
@pytest.mark.parametrize("dtype", [torch.float64, torch.float32])
def test_a_recorded_run_returns_the_same_bits(name: str, dtype: torch.dtype) -> None:
    x = drawn(2, 3, 4, dtype=dtype)
    torch.manual_seed(1)
    wanted = CALLS[name](x.clone())
    torch.manual_seed(1)
    trace = recorded(CALLS[name], x.clone())
    assert not trace.error
    assert trace.outputs[0].data.dtype == wanted.dtype
    assert torch.equal(trace.outputs[0].data, wanted)


def test_every_operation_computes_what_it_is_said_to_return() -> None:
    trace = recorded(by_hand, drawn(2, 3, 4))
    assert [each.name for each in trace if not each.is_view] == ["bmm", "div", "_softmax", "bmm"]
    for operation in trace:
        args = [getattr(each, "data", each) for each in operation.args]
        again = operation.function(*args, **operation.kwargs)
        assert torch.equal(again, operation.outputs[0].data), operation.name


def test_tensors_are_kept_as_they_were_before_something_was_written_into_them() -> None:
    def call(x: Tensor) -> Tensor:
        y = x * 2
        y.t()[0] = 0
        return y

    trace = recorded(call, torch.ones(2, 3))
    made, *_, fill = trace
    assert made.outputs[0].data.tolist() == [[2, 2, 2]] * 2
    assert fill.inputs[0].data.tolist() == [2, 2]
    assert fill.written[0].data.tolist() == [0, 0]
    assert trace.outputs[0].data.tolist() == [[0, 2, 2]] * 2
    assert trace.arguments["x0"].data.tolist() == [[1, 1, 1]] * 2


def test_views_share_their_memory_and_copies_do_not() -> None:
    trace = recorded(lambda x: x.t()[1:].clone(), drawn(3, 4))
    transposed, sliced, cloned = trace
    assert transposed.is_view
    assert sliced.is_view
    assert not cloned.is_view
    assert (sliced.outputs[0].stride, sliced.outputs[0].offset) == ((1, 4), 1)
    assert sliced.outputs[0].storage == trace.arguments["x0"].storage


def test_the_line_and_the_module_of_each_operation_are_known() -> None:
    class Inner(nn.Module):
        def forward(self, x: Tensor) -> Tensor:
            return x.exp()

    class Outer(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.layers = nn.ModuleList([Inner(), nn.Linear(4, 4)])

        def forward(self, x: Tensor) -> Tensor:
            for layer in self.layers:
                x = layer(x)
            return x.sin()

    trace = recorded(Outer(), drawn(3, 4, dtype=torch.float32))
    said = {each.name: (each.module, each.location.text) for each in trace if each.name in ("exp", "addmm", "sin")}
    assert said == {
        "exp": ("layers.0", "return x.exp()"),
        "addmm": ("layers.1", "x = layer(x)"),
        "sin": ("", "return x.sin()"),
    }
    assert {each.location.file for each in trace} == {__file__}


def test_fused_attention_is_kept_step_by_step() -> None:
    q = drawn(2, 2, 3, 4)
    trace = recorded(lambda q: F.scaled_dot_product_attention(q, q, q, is_causal=True), q)
    names = [each.name.rpartition("_")[2] for each in trace]
    assert [each for each in names if each in ("bmm", "softmax")] == ["bmm", "softmax", "bmm"]
    torch.testing.assert_close(trace.outputs[0].data, F.scaled_dot_product_attention(q, q, q, is_causal=True))


def test_an_output_that_is_held_is_what_the_rest_computes_with() -> None:
    x = drawn(2, 3, 4)
    base = recorded(by_hand, x)
    softmax = next(each.index for each in base if each.name == "_softmax")
    even = torch.full((2, 3, 3), 1 / 3).double()
    trace = recorded(by_hand, x, frozen={softmax: even})
    torch.testing.assert_close(trace.outputs[0].data, x.mean(1, keepdim=True).expand(2, 3, 4))
    assert trace.same_operations(base)


def test_a_run_that_raises_keeps_what_it_computed() -> None:
    def call(x: Tensor) -> Tensor:
        x = x * 2
        raise ValueError("three tokens at least")

    trace = recorded(call, drawn(2, 2))
    assert trace.error == "ValueError: three tokens at least"
    assert [each.name for each in trace] == ["mul"]
    assert trace.outputs == []


def test_tensors_that_are_too_large_are_left_out(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(regard.check.trace.recorder, "MAX_NUMBERS", 10)
    trace = recorded(lambda x: (x[:2] * 2).sum() + (x @ x.t()).sum(), drawn(4, 4))
    assert "mul" in {each.name for each in trace}
    assert "mm" not in {each.name for each in trace}


def test_other_steps_are_not_the_same_operations() -> None:
    x = drawn(2, 3, 4)
    assert recorded(by_hand, x).same_operations(recorded(by_hand, x + 1))
    assert not recorded(by_hand, x).same_operations(recorded(lambda x: by_hand(x).exp(), x))


def test_gradients_and_hooks_are_as_before() -> None:
    x = drawn(3, 4).requires_grad_()
    recorded(lambda x: x * 2, x)
    with torch.no_grad():
        recorded(lambda x: x * 2, x)
        assert not torch.is_grad_enabled()
    assert not nn.modules.module._global_forward_hooks
    (x * 2).sum().backward()
    assert x.grad is not None


def test_tensors_are_kept_where_a_view_of_them_is_overwritten_later() -> None:
    def call(x: Tensor) -> Tensor:
        y = x + 1
        seen = y[0] * 1
        torch._foreach_mul_([y.view(-1)[:2]], 3)
        torch.mul(y, 2, out=y)
        return seen

    trace = recorded(call, torch.zeros(2, 2))
    kept = [each.inputs[0].data.tolist() for each in trace]
    assert kept == [
        [[0, 0], [0, 0]],
        [[1, 1], [1, 1]],
        [1, 1],
        [[1, 1], [1, 1]],
        [1, 1, 1, 1],
        [1, 1],
        [[3, 3], [1, 1]],
    ]


def test_without_gradients_every_step_is_recorded_as_well() -> None:
    @torch.inference_mode()
    def attends(x: Tensor) -> Tensor:
        return by_hand(F.linear(x, drawn(4, 4)))

    names = [each.name for each in recorded(attends, drawn(2, 3, 4))]
    assert {"mm", "bmm", "_softmax"} <= {*names}
