"""Feed-forward networks that are said to be SwiGLU, behind an attention whose numbers are not followed further."""

from __future__ import annotations

from dataclasses import replace

import pytest
import torch
from torch import Tensor, nn

from property_cases import WIDTH, of_module
from property_cases.block_cases import BentAsAWhole, GatedBlock, GatedByHand
from property_cases.half_gate_cases import AddsTheOtherHalf, BentByHand, GatesItself, OpensItself, TwoHalves
from regard.check.properties.analyze import analyze
from regard.check.properties.modules.gated_activations import (
    added_gate_findings,
    gated_activation_findings,
    half_gate_findings,
)
from regard.check.roles.influence import influence_of, record_invocation
from regard.check.roles.instances import TaggedRun, tagged_run


def untagged(kind: type[nn.Module]) -> tuple[nn.Module, TaggedRun]:
    """A module and a run of it in which no element of any result was followed."""
    call = of_module(kind)
    run = tagged_run(influence_of(call, record_invocation(call)), ["x"])
    nothing = [[torch.zeros_like(each) for each in given] for given in run.tags.inputs]
    return call.target, replace(run, tags=replace(run.tags, inputs=nothing))


@pytest.mark.parametrize("kind", [GatedBlock, GatedByHand])
def test_a_gate_is_seen_where_no_number_is_followed(kind: type[nn.Module]) -> None:
    assert not list(gated_activation_findings(*untagged(kind)))


def test_a_network_without_a_gate_is_named_there_as_well() -> None:
    (found,) = gated_activation_findings(*untagged(BentAsAWhole))
    assert found.property == "gate-as-documented"


class GatedPooling(nn.Module):
    """The weights of the tokens of a bag, by what each channel lets through."""

    def __init__(self) -> None:
        super().__init__()
        self.v, self.u, self.w = nn.Linear(WIDTH, WIDTH), nn.Linear(WIDTH, WIDTH), nn.Linear(WIDTH, 1)

    def forward(self, x: Tensor) -> Tensor:
        weights = self.w(self.joined(self.v(x).tanh(), self.u(x).sigmoid())).softmax(1)
        return (weights * x).sum(1)

    def joined(self, bent: Tensor, opened: Tensor) -> Tensor:
        return bent * opened


class OpensItAlways(GatedPooling):
    """It never closes."""

    def joined(self, bent: Tensor, opened: Tensor) -> Tensor:
        return bent + bent * opened


class GateAdded(GatedPooling):
    def joined(self, bent: Tensor, opened: Tensor) -> Tensor:
        return bent + opened


class SumOfTwo(nn.Module):
    """An activation of its own."""

    def forward(self, x: Tensor) -> Tensor:
        return x.tanh() + x.sigmoid()


@pytest.mark.parametrize(
    ("kind", "is_right"), [(GatedPooling, True), (OpensItAlways, True), (SumOfTwo, True), (GateAdded, False)]
)
def test_a_gate_is_multiplied(kind: type[nn.Module], is_right: bool) -> None:
    call = of_module(kind)
    found = list(added_gate_findings(call.target, record_invocation(call)))
    assert (not found) is is_right
    assert [each.property for each in analyze(call).violations] == [each.property for each in found]


@pytest.mark.parametrize(
    ("kind", "is_right"),
    [(TwoHalves, True), (AddsTheOtherHalf, True), (BentByHand, True), (GatesItself, False), (OpensItself, False)],
)
def test_each_half_of_a_matrix_has_a_side_of_the_gate(kind: type[nn.Module], is_right: bool) -> None:
    call = of_module(kind)
    found = list(half_gate_findings(record_invocation(call)))
    assert (not found) is is_right
    told = [each.property for each in analyze(call).violations]
    assert told == [] if is_right else "gate-of-the-other-half" in told
