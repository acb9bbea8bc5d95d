"""What an intervention leaves behind: nothing, after exceptions and after a thousand of them."""

from __future__ import annotations

import copy
import gc
import weakref
from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch import Tensor, nn

import regard
from lens.interventions.architectures import architecture, sites
from lens.interventions.by_hand import Edit
from lens.interventions.comparing import assert_same
from lens.interventions.edits import KINDS
from lens.interventions.written_out import written_out
from lens.watching import output_tensors
from regard.attention.hooks import hook_state
from regard.lens.interventions import editor

GLOBAL_HOOKS = [name for name in vars(nn.modules.module) if name.startswith("_global_") and name.endswith("_hooks")]
FUNCTIONS = ("scaled_dot_product_attention", "multi_head_attention_forward", "softmax", "dropout", "linear")


def state_of(model: nn.Module) -> dict[str, Any]:
    """All that an intervention could leave in a model, in PyTorch and in regard, in this thread."""
    held: dict[str, Any] = {
        "function modes": torch._C._len_torch_function_stack(),
        "dispatch modes": torch._C._len_torch_dispatch_stack(),
        "gradients": torch.is_grad_enabled(),
        "functions": [id(getattr(nn.functional, name)) for name in FUNCTIONS],
        "global hooks": [len(getattr(nn.modules.module, name)) for name in GLOBAL_HOOKS],
        "regard": (copy.copy(vars(hook_state)), editor._active.editors),
    }
    for path, module in model.named_modules():
        held[path] = {name: (id(value), _content(value)) for name, value in vars(module).items()}
    for path, p in model.named_parameters():
        held[f"{path} as tensor"] = (p.data_ptr(), p._version, p.requires_grad, p.grad is None, p._backward_hooks)
    return held


def _content(value: Any) -> Any:
    """Names and objects in a dictionary of a module, such as its hooks."""
    return {key: id(item) for key, item in value.items()} if isinstance(value, dict) else None


def live_tensors() -> int:
    gc.collect()
    return sum(issubclass(type(o), Tensor) for o in gc.get_objects())


def edited_passes(count: int) -> None:
    """So many interventions in a model, of one kind of edit after another."""
    this = architecture("llama")
    inputs, (site,) = this.inputs("left"), sites("llama", "left")
    kinds = list(KINDS.values())
    for n in range(count):
        with torch.no_grad(), regard.intervene(this.model) as edit:
            kinds[n % len(kinds)](edit[site.path], site)
            this.model(**inputs)
            edit.report()


@pytest.mark.parametrize("count", [len(KINDS), pytest.param(1000, marks=pytest.mark.more)])
def test_many_interventions_leave_nothing(count):
    this = architecture("llama")
    inputs = this.inputs("left")
    edited_passes(len(KINDS))  # what is made once, at the first call
    with torch.no_grad():
        expected = list(output_tensors(this.model(**inputs)))
        before, tensors = state_of(this.model), live_tensors()
        edited_passes(count)
        assert state_of(this.model) == before
        assert live_tensors() == tensors
        assert all(map(torch.equal, output_tensors(this.model(**inputs)), expected))


class StopHere(Exception):
    """Raised by the test."""


class Stops(nn.Module):
    """A layer that raises instead of running."""

    def forward(self, *args: Any, **kwargs: Any) -> Tensor:
        raise StopHere


def stop_in_the_block(edit: Any, model: nn.Module, inputs: dict[str, Any]) -> None:
    model(**inputs)
    raise StopHere


def stop_in_the_model(edit: Any, model: nn.Module, inputs: dict[str, Any]) -> None:
    hook = model.layers[1].register_forward_pre_hook(Stops())
    try:
        model(**inputs)
    finally:
        hook.remove()


def stop_in_an_edit(edit: Any, model: nn.Module, inputs: dict[str, Any]) -> None:
    edit["layers.1.self_attn"].heads[9].ablate("zero")
    model(**inputs)


def stop_without_a_call(edit: Any, model: nn.Module, inputs: dict[str, Any]) -> None:
    """An edit that met no call raises when the block ends."""


def run_until_it_stops(model: nn.Module, inputs: dict[str, Any], stop: Callable[..., None]) -> None:
    with regard.intervene(model) as edit:
        edit["layers.0.self_attn"].heads[1].ablate("zero")
        stop(edit, model, inputs)


@pytest.mark.parametrize(
    ("stop", "error"),
    [
        (stop_in_the_block, StopHere),
        (stop_in_the_model, StopHere),
        (stop_in_an_edit, IndexError),
        (stop_without_a_call, ValueError),
    ],
)
def test_an_exception_passes_and_leaves_nothing(stop, error):
    this = architecture("llama")
    inputs = this.inputs("left")
    with torch.no_grad():
        expected = list(output_tensors(this.model(**inputs)))
        before = state_of(this.model)
        with pytest.raises(error):
            run_until_it_stops(this.model, inputs, stop)
        assert state_of(this.model) == before
        assert all(map(torch.equal, output_tensors(this.model(**inputs)), expected))


@pytest.mark.parametrize("name", ["regard Decoder", "nn.TransformerEncoder"])
def test_interventions_in_layers_leave_nothing(name):
    this = written_out(name)
    inputs = this.make_inputs(0)
    path = next(path for path, _ in this.model.named_modules() if path.endswith(("self_attn", "attention")))
    with torch.no_grad():
        expected, before = this.model(**inputs), state_of(this.model)
        with regard.intervene(this.model) as edit:
            edit[path].block(keys=[1])
            assert not torch.equal(this.model(**inputs), expected)
        assert state_of(this.model) == before
        assert torch.equal(this.model(**inputs), expected)


def test_an_intervention_that_has_ended_holds_no_tensor_of_the_model():
    """A recording that was patched in, the edited output, and what the model computed are freed with their names."""
    this = architecture("llama")
    with torch.no_grad():
        with regard.watch(this.model) as recording:
            this.model(**this.inputs("even", 7))
        with regard.intervene(this.model) as edit:
            edit["layers.0.self_attn"].heads[1].patch(recording)
            output = this.model(**this.inputs("even")).last_hidden_state
    held = [weakref.ref(t) for t in (recording["layers.0.self_attn"].q, output)]
    del recording, edit, output
    gc.collect()
    assert [reference() for reference in held] == [None, None]


def nested_blocks(outer_path: str, inner_path: str) -> tuple[Tensor, Tensor]:
    """The output of a model under two blocks, and of the same by hand."""
    this = architecture("llama")
    inputs = this.inputs("left")
    with torch.no_grad(), regard.intervene(this.model) as outer:
        outer[outer_path].heads[1].ablate("zero")
        with regard.intervene(this.model) as inner:
            inner[inner_path].block(keys=[6])
            got = this.model(**inputs)
        edits = Edit(outer_path, heads=[1], zero=True), Edit(inner_path, blocked=(None, [6]))
        return got.last_hidden_state, this.by_hand(*edits, **inputs).last_hidden_state


def test_nested_blocks_edit_different_attentions():
    assert_same(*nested_blocks("layers.0.self_attn", "layers.1.self_attn"), 1e-10)


def test_nested_blocks_that_edit_one_attention_are_refused():
    """Each would compute it from what the model has, and lose what the other did."""
    with pytest.raises(ValueError, match=r"layers\.0\.self_attn: two nested regard\.intervene blocks"):
        nested_blocks("layers.0.self_attn", "layers.0.self_attn")
