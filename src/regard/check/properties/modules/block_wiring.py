"""How a block is wired: what its norms take, what is added to what, and what stands between its matrices."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Any

from regard.check.properties.documentation import name_and_documentation
from regard.check.properties.finding import Finding
from regard.check.properties.modules.block_residuals import block_residual_findings
from regard.check.properties.modules.feed_forward import feed_forward_findings
from regard.check.properties.modules.gated_activations import gated_activation_findings, half_gate_findings
from regard.check.properties.modules.gated_streams import gated_stream_findings
from regard.check.properties.modules.layer_residuals import layer_residual_findings
from regard.check.properties.modules.modulations import modulation_findings, scale_from_zero_findings
from regard.check.properties.modules.named_modulations import named_modulation_findings
from regard.check.properties.modules.norm_places import norm_place_findings
from regard.check.properties.modules.normed_alone import (
    norm_of_sum_findings,
    normed_alone_findings,
    passed_norm_residual_findings,
    passed_over_findings,
)
from regard.check.properties.modules.norms_passed import passed_norm_findings
from regard.check.properties.modules.parallel_branches import network_past_the_sum_findings, parallel_branch_findings
from regard.check.properties.modules.promised_residuals import promised_residual_findings
from regard.check.properties.modules.repeated_residuals import repeated_residual_findings
from regard.check.properties.modules.residuals import forgotten_findings, residual_findings
from regard.check.properties.modules.self_mixed_gates import self_mixed_gate_findings
from regard.check.properties.modules.set_blocks import set_block_findings
from regard.check.roles.instances import AttentionInstance, TaggedRun

__all__ = ["block_findings"]


def block_findings(target: Any, run: TaggedRun, instances: Sequence[AttentionInstance]) -> Iterator[Finding]:
    """All that is found of the residuals, norms and feed-forward networks around some attentions.

    Args:
        target: what was called.
        run: the run.
        instances: its attentions.
    """
    yield from residual_findings(run, instances, name_and_documentation(target))
    yield from repeated_residual_findings(run, instances)
    yield from promised_residual_findings(target, run, instances)
    yield from set_block_findings(target, run, instances)
    yield from layer_residual_findings(run, instances)
    yield from normed_alone_findings(target, run, instances)
    yield from block_residual_findings(target, run, instances)
    yield from passed_over_findings(run, instances)
    yield from forgotten_findings(run, instances)
    yield from passed_norm_findings(run, instances)
    yield from norm_of_sum_findings(target, run, instances)
    yield from passed_norm_residual_findings(target, run, instances)
    yield from norm_place_findings(target, run, instances)
    yield from parallel_branch_findings(target, run, instances)
    yield from network_past_the_sum_findings(target, run, instances)
    yield from modulation_findings(run.trace)
    yield from gated_stream_findings(target, run)
    yield from self_mixed_gate_findings(run.trace)
    yield from named_modulation_findings(target, run, instances)
    yield from scale_from_zero_findings(target, run.trace)
    yield from feed_forward_findings(run)
    yield from gated_activation_findings(target, run)
    yield from half_gate_findings(run.trace)
