"""What is asked of a call once, whatever its sizes: of its documentation, its parameters, its caches and modes."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from itertools import chain, islice

from regard.check.properties.analysis import Analysis
from regard.check.properties.caches.generation import generation_findings
from regard.check.properties.caches.handed_over import memory_gradient_findings, state_findings
from regard.check.properties.caches.kept_steps import kept_step_findings
from regard.check.properties.caches.memory_masks import memory_mask_findings
from regard.check.properties.caches.memory_order import memory_order_findings
from regard.check.properties.caches.memory_queries import memory_query_findings
from regard.check.properties.caches.next_tokens import next_token_findings
from regard.check.properties.caches.renewed_memory import renewed_memory_findings
from regard.check.properties.caches.second_texts import second_text_findings
from regard.check.properties.caches.source_texts import source_text_findings
from regard.check.properties.caches.step_methods import step_method_findings
from regard.check.properties.caches.token_by_token import cache_findings
from regard.check.properties.finding import Finding
from regard.check.properties.lines import line_findings
from regard.check.properties.masks.filled_weights import filled_weight_findings
from regard.check.properties.masks.nearest_keys import farthest_of_more_findings
from regard.check.properties.masks.switched_settings import switched_setting_findings
from regard.check.properties.modules.begun_anew import begun_anew_findings
from regard.check.properties.modules.call_effects import call_effect_findings
from regard.check.properties.modules.carried_states import carried_state_findings
from regard.check.properties.modules.documented_biases import documented_bias_findings
from regard.check.properties.modules.earlier_calls import earlier_call_findings, first_call_findings
from regard.check.properties.modules.first_token_methods import first_token_findings
from regard.check.properties.modules.half_norms import half_norm_findings
from regard.check.properties.modules.kept_inputs import kept_input_findings
from regard.check.properties.modules.memo_answers import memo_answer_findings
from regard.check.properties.modules.memo_keys import memo_key_findings
from regard.check.properties.modules.moving_weights import moving_weight_findings
from regard.check.properties.modules.norm_settings import norm_setting_findings
from regard.check.properties.modules.normed_inputs import normed_input_findings
from regard.check.properties.modules.norms import norm_findings
from regard.check.properties.modules.parameters import parameter_findings
from regard.check.properties.modules.plain_tensors import plain_tensor_findings
from regard.check.properties.modules.query_residuals import optional_context_findings
from regard.check.properties.modules.repeated_layers import repeated_layer_findings
from regard.check.properties.modules.repeated_projections import repeated_projection_findings
from regard.check.properties.modules.repeated_samples import repeated_sample_findings
from regard.check.properties.modules.sizes_of_others import size_of_others_findings
from regard.check.properties.modules.uncalled_methods import uncalled_method_findings
from regard.check.properties.modules.unread_parameters import unread_parameter_findings
from regard.check.properties.modules.unread_sequences import unread_sequence_findings
from regard.check.properties.modules.unread_settings import unread_setting_findings
from regard.check.properties.modules.unregistered_parameters import unregistered_parameter_findings
from regard.check.properties.modules.untied_weights import untied_weight_findings
from regard.check.properties.modules.unused_parameters import unread_matrix_findings, unread_scale_findings
from regard.check.properties.modules.written_inputs import written_input_findings
from regard.check.properties.optional_arguments import optional_argument_findings
from regard.check.properties.other_modes import other_mode_findings
from regard.check.properties.outputs.documented_axes import documented_axes_findings
from regard.check.properties.outputs.documented_functions import documented_function_findings
from regard.check.properties.outputs.fused_kernels import fused_kernel_findings
from regard.check.properties.outputs.other_sizes import other_size_findings
from regard.check.properties.outputs.repeated_biases import repeated_bias_findings
from regard.check.properties.outputs.returned_gradients import returned_gradient_findings
from regard.check.properties.outputs.siblings import sibling_findings
from regard.check.properties.positions.handed_to_values import handed_position_findings
from regard.check.properties.positions.low_precision import rounded_position_findings, rounded_table_findings
from regard.check.properties.positions.unordered_series import unordered_series_findings
from regard.check.properties.positions.unused_classes import unused_position_findings
from regard.check.properties.scores.wide_scores import wide_score_findings
from regard.check.properties.summaries import MIXED_TOKENS
from regard.check.properties.weights.dropped_scores import dropped_score_findings
from regard.check.properties.weights.straight_through import straight_through_findings
from regard.check.roles.instances import AttentionInstance
from regard.check.target import Invocation

__all__ = ["judge_once", "kept_state_findings"]

OF_OTHER_TOKENS = MIXED_TOKENS | {"query-of-one-token", "later-tokens-hidden"}
"""Violations that a norm over the tokens may be the cause of."""


def judge_once(
    analysis: Analysis, instances: list[AttentionInstance], analyze: Callable[[Invocation], Analysis]
) -> None:
    """Add what does not hang on the sizes of the call: the documentation, the parameters, the cache.

    Args:
        analysis: of a call.
        instances: its attentions.
        analyze: asks the properties of another call.
    """
    invocation = analysis.invocation
    if invocation.square and not analysis.violations:
        analysis.missing.append("it runs only with as many tokens as channels: what holds so may hold by accident")
    are_grouped = invocation.sizes.get("kv_heads") != invocation.sizes.get("heads")
    if not analysis.is_first and are_grouped and not analysis.violations:  # repeated for several heads by other lines
        analysis.findings += parameter_findings(invocation, instances)
    if not analysis.is_first:
        return
    if analysis.complete and not analysis.violations:
        analysis.findings += documented_axes_findings(invocation)
    analysis.findings += uncalled_method_findings(invocation.target)
    if not analysis.violations:
        analysis.findings += unread_sequence_findings(invocation, instances[0].run.trace, instances)
    if not analysis.violations:
        for of_calls in (
            optional_argument_findings,
            call_effect_findings,
            moving_weight_findings,
            begun_anew_findings,
            kept_input_findings,
            memo_answer_findings,
            memo_key_findings,
            sibling_findings,
        ):
            analysis.findings += of_calls(invocation)
        analysis.findings += documented_function_findings(invocation)
        analysis.findings += fused_kernel_findings(invocation)
        analysis.findings += [] if analysis.violations else unread_parameter_findings(invocation)
        analysis.findings += unread_setting_findings(invocation.target)
        analysis.findings += documented_bias_findings(invocation.target)
        analysis.findings += size_of_others_findings(invocation.target)
        analysis.findings += line_findings(invocation.target)
        analysis.findings += written_input_findings(invocation, instances[0].run.trace)
        analysis.findings += repeated_bias_findings(invocation, instances[0].run.trace)
        analysis.findings += unread_scale_findings(invocation, analysis.findings)
        analysis.findings += unused_position_findings(invocation, analysis.findings)
        analysis.findings += unordered_series_findings(invocation, analysis.findings)
        analysis.findings += handed_position_findings(invocation)
    if not analysis.violations and analysis.complete:
        for of_others in (
            other_size_findings,
            switched_setting_findings,
            farthest_of_more_findings,
            optional_context_findings,
        ):
            analysis.findings += of_others(analysis, analyze)
        analysis.findings += earlier_call_findings(invocation, instances)
        analysis.findings += first_call_findings(invocation, instances)
    if not analysis.violations:
        analysis.findings += parameter_findings(invocation, instances)
    if not analysis.violations:
        analysis.findings += unread_matrix_findings(invocation)
        analysis.findings += unregistered_parameter_findings(invocation)
        analysis.findings += plain_tensor_findings(invocation)
        analysis.findings += norm_setting_findings(invocation)
        analysis.findings += normed_input_findings(invocation)
        analysis.findings += repeated_layer_findings(invocation.target)
        analysis.findings += repeated_projection_findings(invocation.target)
        analysis.findings += untied_weight_findings(invocation.target)
        analysis.findings += carried_state_findings(invocation)
        analysis.findings += other_mode_findings(invocation)
        analysis.findings += dropped_score_findings(invocation, instances)
        analysis.findings += repeated_sample_findings(invocation)
        analysis.findings += rounded_position_findings(invocation)
        analysis.findings += rounded_table_findings(invocation.target)
        analysis.findings += wide_score_findings(invocation, instances)
        analysis.findings += half_norm_findings(invocation)
        analysis.findings += filled_weight_findings(invocation, instances)
        is_hard = any(each.property == "hard-weights" for each in analysis.designs)
        analysis.findings += straight_through_findings(invocation) if is_hard else ()
    if {each.property for each in analysis.violations} <= OF_OTHER_TOKENS:
        norms = [*norm_findings(invocation)]
        if norms:  # they are the cause
            analysis.findings = [each for each in analysis.findings if each.kind != "violation"] + norms
    if not analysis.violations:
        analysis.findings += cache_findings(invocation, instances)
        analysis.findings += memory_gradient_findings(invocation)
        analysis.findings += renewed_memory_findings(invocation)
        analysis.findings += memory_order_findings(invocation)
        analysis.findings += memory_query_findings(invocation)
        analysis.findings += [] if analysis.violations else memory_mask_findings(invocation)
        analysis.findings += generation_findings(invocation)
        analysis.findings += next_token_findings(invocation)
        analysis.findings += source_text_findings(invocation)
        analysis.findings += first_token_findings(invocation)
        analysis.findings += returned_gradient_findings(invocation)
        analysis.findings += state_findings(invocation)
        analysis.findings += [] if analysis.violations else kept_state_findings(invocation)


def kept_state_findings(invocation: Invocation) -> Iterator[Finding]:
    """The first thing that is wrong with what a module, or a method for one token, keeps of the tokens before.

    Args:
        invocation: the call.
    """
    several = (each(invocation) for each in (second_text_findings, step_method_findings, kept_step_findings))
    yield from islice(chain.from_iterable(several), 1)
