"""What is asked of a call as a whole, once each of its attentions has been held against the properties."""

from __future__ import annotations

import itertools
from collections.abc import Mapping, Sequence

from torch import Tensor

from regard.check.properties.analysis import Analysis
from regard.check.properties.caches.places import cache_place_findings
from regard.check.properties.caches.steps import step_position_findings
from regard.check.properties.finding import Evidence
from regard.check.properties.finite_outputs import left_padded_nan_findings, low_precision_nan_findings
from regard.check.properties.masks.compared_numbers import compared_with_itself_findings
from regard.check.properties.masks.convolved_padding import convolved_padding_findings
from regard.check.properties.masks.crossed import crossed_mask_findings
from regard.check.properties.masks.global_tokens import global_token_findings
from regard.check.properties.masks.graph_edges import edge_findings
from regard.check.properties.masks.map_axes import map_axis_findings
from regard.check.properties.masks.masked_means import (
    masked_mean_findings,
    pooled_mask_findings,
    pooled_method_findings,
)
from regard.check.properties.masks.masks_of_windows import mask_of_window_findings
from regard.check.properties.masks.media import media_findings
from regard.check.properties.masks.packed_texts import packed_text_findings
from regard.check.properties.masks.paddings_of_texts import paddings_of_texts_findings
from regard.check.properties.masks.restarted_positions import restarted_position_findings
from regard.check.properties.masks.shifted_windows import masks_without_a_shift, shifted_windows_within
from regard.check.properties.masks.source_masks import source_mask_findings
from regard.check.properties.masks.space_time import column_findings, frame_findings
from regard.check.properties.masks.subsampled_lengths import subsampled_length_findings
from regard.check.properties.masks.unread import lost_fill_findings, unread_mask_findings
from regard.check.properties.masks.zeros_of_others import zeros_of_others_findings
from regard.check.properties.modules.added_to_itself import added_to_itself_findings
from regard.check.properties.modules.beam_histories import beam_history_findings
from regard.check.properties.modules.channels_apart import channels_apart_findings
from regard.check.properties.modules.class_probabilities import class_probability_findings
from regard.check.properties.modules.class_tokens import class_token_findings
from regard.check.properties.modules.co_attention import co_attention_findings
from regard.check.properties.modules.field_rows import field_row_findings
from regard.check.properties.modules.gated_activations import added_gate_findings, squashed_twice_findings
from regard.check.properties.modules.inner_sequences import inner_sequence_findings
from regard.check.properties.modules.later_tokens import later_token_findings
from regard.check.properties.modules.losses import known_label_findings, loss_findings, skipped_label_findings
from regard.check.properties.modules.masked_labels import masked_label_findings
from regard.check.properties.modules.masked_places import masked_place_findings
from regard.check.properties.modules.named_matrices import named_matrix_findings
from regard.check.properties.modules.named_norms import named_norm_findings
from regard.check.properties.modules.one_tensor import one_tensor_findings
from regard.check.properties.modules.packed_order import packed_by_head_findings, packed_order_findings
from regard.check.properties.modules.policies import known_action_findings
from regard.check.properties.modules.prefixed_losses import prefixed_loss_findings
from regard.check.properties.modules.projected_residuals import projected_residual_findings
from regard.check.properties.modules.query_residuals import query_residual_findings
from regard.check.properties.modules.recurrent_steps import recurrent_step_findings
from regard.check.properties.modules.scored_logits import scored_logit_findings
from regard.check.properties.modules.two_streams import two_stream_findings
from regard.check.properties.modules.unprojected_heads import unprojected_head_findings
from regard.check.properties.not_a_number import nan_findings
from regard.check.properties.outputs.axes import output_axis_findings
from regard.check.properties.outputs.documented_gates import documented_gate_findings
from regard.check.properties.outputs.documented_norms import head_factor_findings, head_norm_findings
from regard.check.properties.outputs.documented_values import documented_value_findings
from regard.check.properties.outputs.output_matrices import output_matrix_findings
from regard.check.properties.outputs.restored_orders import restored_order_findings, rolled_back_findings
from regard.check.properties.outputs.returned_weights import returned_weight_findings
from regard.check.properties.outputs.values_of_others import value_residual_findings
from regard.check.properties.outputs.vectors_of_texts import text_vector_findings
from regard.check.properties.positions.given_positions import given_position_findings
from regard.check.properties.positions.left_padded_read_outs import left_padded_read_out_findings
from regard.check.properties.positions.left_padding import left_padding_findings
from regard.check.properties.positions.sinusoids import sinusoid_findings
from regard.check.properties.positions.tables import position_table_findings
from regard.check.properties.scores.clamped_biases import clamped_bias_findings
from regard.check.properties.scores.handed_on import dropped_bias_findings, handed_on_findings
from regard.check.properties.scores.told_heads import unsplit_head_findings
from regard.check.properties.token_ids import target_findings, token_padding_findings
from regard.check.properties.weights.pooling import deviation_findings
from regard.check.roles.influence import Influence
from regard.check.trace.operation import Trace

__all__ = ["judge_together"]


def judge_together(
    analysis: Analysis, base: Trace, samples: Influence, several: Sequence[Evidence], frozen: Mapping[int, Tensor]
) -> None:
    """Add to an analysis what its attentions show together: masks, positions and caches of the whole call, its outputs.

    Args:
        analysis: of the call; what each attention violates by itself stands in it.
        base: a run.
        samples: what its samples have an influence on.
        several: the evidence of its attentions.
        frozen: the weighted sums of each, which are held while tokens are changed.
    """
    invocation = analysis.invocation
    analysis.findings += handed_on_findings(several)
    if unsplit := list(unsplit_head_findings(invocation, several)):
        analysis.findings = [*(each for each in analysis.findings if each.property != "scale"), *unsplit]
    misplaced = list(cache_place_findings(invocation, several, is_wrong=bool(analysis.violations)))
    if misplaced:
        analysis.findings = [*(each for each in analysis.findings if each.kind != "violation"), *misplaced]
    restored = list(restored_order_findings(base))
    if restored:  # it is the cause of all else that comes out in other places
        analysis.findings = [*(each for each in analysis.findings if each.kind != "violation"), *restored]
    analysis.findings += nan_findings(base)
    if not analysis.violations and analysis.is_first:
        analysis.findings += output_axis_findings(invocation, several, frozen)
        analysis.findings += one_tensor_findings(invocation)
    if not analysis.violations and several:
        analysis.findings += sinusoid_findings(base, several[0])
        analysis.findings += position_table_findings(base, several, analysis.findings)
        analysis.findings += step_position_findings(invocation, base)
        analysis.findings += given_position_findings(invocation, base, analysis.findings)
    if not analysis.violations:
        analysis.findings += rolled_back_findings(base, several)
        for of_one in (returned_weight_findings, documented_gate_findings):
            analysis.findings += of_one(invocation, several[0]) if len(several) == 1 else ()
        analysis.findings += deviation_findings(base)
        analysis.findings += value_residual_findings(several)
        analysis.findings += dropped_bias_findings(invocation, several)
        analysis.findings += clamped_bias_findings(base, several)
        analysis.findings += packed_order_findings(invocation, several[0]) if len(several) == 1 else ()
        analysis.findings += packed_by_head_findings(invocation, several[0]) if len(several) == 1 else ()
        analysis.findings += named_matrix_findings(invocation, several[0]) if len(several) == 1 else ()
        analysis.findings += named_norm_findings(invocation, several[0]) if len(several) == 1 else ()
        analysis.findings += crossed_mask_findings(invocation, samples, several)
        analysis.findings += unread_mask_findings(invocation, several)
        analysis.findings += zeros_of_others_findings(invocation, several)
        analysis.findings += lost_fill_findings(base)
        analysis.findings += compared_with_itself_findings(invocation, base)
        analysis.findings += source_mask_findings(invocation, several) if analysis.asked_masks else ()
        analysis.findings += token_padding_findings(invocation, several)
        analysis.findings += paddings_of_texts_findings(invocation, several)
        analysis.findings += edge_findings(invocation, several)
        analysis.findings += global_token_findings(invocation, several)
        analysis.findings += masked_mean_findings(invocation, analysis.holding)
        analysis.findings += pooled_mask_findings(invocation, base, several) if analysis.asked_masks else ()
        analysis.findings += pooled_method_findings(invocation, several) if analysis.asked_masks else ()
        analysis.findings += mask_of_window_findings(invocation) if analysis.asked_masks else ()
        analysis.findings += restarted_position_findings(invocation) if analysis.asked_masks else ()
        analysis.findings += left_padding_findings(invocation) if analysis.asked_masks else ()
        analysis.findings += left_padded_read_out_findings(invocation) if analysis.asked_masks else ()
        analysis.findings += left_padded_nan_findings(invocation) if analysis.asked_masks else ()
        analysis.findings += low_precision_nan_findings(invocation) if analysis.asked_masks else ()
        analysis.findings += target_findings(invocation, several, base)
        analysis.findings += co_attention_findings(invocation, base, several)
        analysis.findings += two_stream_findings(invocation, several)
        analysis.findings += added_to_itself_findings(invocation, several)
        analysis.findings += query_residual_findings(invocation, several)
        analysis.findings += projected_residual_findings(invocation, several)
        analysis.findings += added_gate_findings(invocation.target, base)
        analysis.findings += squashed_twice_findings(base)
        analysis.findings += unprojected_head_findings(invocation, several)
        analysis.findings += output_matrix_findings(invocation, several)
        analysis.findings += documented_value_findings(invocation, several)
    if not analysis.violations and analysis.is_first:
        analysis.findings += inner_sequence_findings(invocation, several)
        analysis.findings += frame_findings(invocation, several)
        analysis.findings += channels_apart_findings(invocation, base)
        analysis.findings += column_findings(invocation, several)
        analysis.findings += map_axis_findings(invocation, several) if len(several) == analysis.num_attentions else ()
        analysis.findings += media_findings(invocation, several)
        analysis.findings += class_token_findings(invocation.target, base)
        analysis.findings += text_vector_findings(invocation, base, several, analysis.holding)
        analysis.findings += packed_text_findings(invocation, several)
        windows = (found for each in several for found in shifted_windows_within(invocation, each))
        analysis.findings += itertools.islice(windows, 1)
        analysis.findings += masks_without_a_shift(invocation, several)
        for of_heads in (head_norm_findings, head_factor_findings):
            analysis.findings += of_heads(invocation, several[0]) if len(several) == 1 else ()
        of_classes = [*class_probability_findings(invocation, base)]
        analysis.findings += of_classes
        analysis.findings += loss_findings(invocation)
        analysis.findings += scored_logit_findings(invocation)
        if not of_classes:  # else each logit knows all labels by the sum over the tokens
            analysis.findings += known_label_findings(invocation)
        analysis.findings += masked_label_findings(invocation, base)
        analysis.findings += masked_place_findings(invocation)
        analysis.findings += beam_history_findings(invocation)
        analysis.findings += prefixed_loss_findings(invocation)
        analysis.findings += known_action_findings(invocation, base)
        analysis.findings += skipped_label_findings(invocation)
        analysis.findings += field_row_findings(invocation, base)
        analysis.findings += convolved_padding_findings(invocation)
        analysis.findings += subsampled_length_findings(invocation, base, several)
        analysis.findings += recurrent_step_findings(invocation.target, base)
    if not analysis.violations and analysis.is_first:
        are_all_seen = not analysis.missing
        analysis.findings += later_token_findings(invocation, base, several, are_all_seen=are_all_seen)
