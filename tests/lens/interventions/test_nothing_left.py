"""What an intervention leaves behind: nothing, after exceptions and after a thousand of them."""

import gc
import weakref
from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch import Tensor, nn

import regard
from lens.interventions.architectures import ARCHITECTURES, Architecture, architecture, sites
from lens.interventions.by_hand import Edit
from lens.interventions.comparing import assert_same
from lens.interventions.edits import KINDS, Site
from lens.left_behind import live_tensors, state_of
from lens.watching import output_tensors


def edited_passes(this: Architecture, inputs: dict[str, Any], site: Site, count: int) -> None:
    """So many interventions in a model, of one kind of edit after another."""
    kinds = list(KINDS.values())
    for n in range(count):
        with torch.no_grad(), regard.intervene(this.model) as edit:
            kinds[n % len(kinds)](edit[site.path], site)
            this.model(**inputs)
            edit.report()


@pytest.mark.parametrize("name", ["llama", "regard Decoder", "nn.TransformerEncoder"])
@pytest.mark.parametrize("count", [len(KINDS), pytest.param(1000, marks=pytest.mark.more)])
def test_many_interventions_leave_nothing(name, count):
    this, padding = architecture(name), ARCHITECTURES[name].paddings[-1]
    inputs, (site,) = this.inputs(padding), sites(name, padding)
    edited_passes(this, inputs, site, len(KINDS))  # what is made once, at the first call
    with torch.no_grad():
        expected = list(output_tensors(this.model(**inputs)))
        before, tensors = state_of(this.model), len(live_tensors())
        edited_passes(this, inputs, site, count)
        assert state_of(this.model) == before
        assert len(live_tensors()) == tensors
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
