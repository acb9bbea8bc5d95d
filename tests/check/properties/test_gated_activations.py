"""Feed-forward networks that are said to be SwiGLU, behind an attention whose numbers are not followed further."""

from __future__ import annotations

from dataclasses import replace

import pytest
import torch
from torch import nn

from property_cases import of_module
from property_cases.block_cases import BentAsAWhole, GatedBlock, GatedByHand
from regard.check.properties.modules.gated_activations import gated_activation_findings
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
