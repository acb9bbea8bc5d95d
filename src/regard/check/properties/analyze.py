"""Hold every attention of a call against the properties that define it."""

from __future__ import annotations

from dataclasses import replace

import torch
from torch import Tensor

from regard.check.properties.analysis import OPEN_QUESTIONS, Analysis
from regard.check.properties.attention import attention_findings
from regard.check.properties.caches.handed_over import state_findings
from regard.check.properties.centered_tokens import CENTERED, centers_of
from regard.check.properties.code import code_of
from regard.check.properties.designs import channel_gate, learned_memory, location_weights
from regard.check.properties.empty_parts import with_whole_parts
from regard.check.properties.evidence import evidence_of, evidence_of_tables, with_equal_tokens, with_fresh_tokens
from regard.check.properties.finding import Evidence, Finding
from regard.check.properties.judge_once import judge_once, kept_state_findings
from regard.check.properties.kinds import kind_of, kind_of_rows
from regard.check.properties.loops import judged_of_loops, loop_findings
from regard.check.properties.masks.arguments import (
    mask_argument_findings,
    shared_mask_findings,
    those_sharing,
)
from regard.check.properties.masks.closing_tokens import closing_token_findings
from regard.check.properties.masks.emptied import emptied_findings
from regard.check.properties.masks.flag_influence import flag_of_columns
from regard.check.properties.masks.flags import flag_findings
from regard.check.properties.masks.hidden_keys import hidden_key_findings
from regard.check.properties.masks.interleaved_steps import interleaved_mask_findings
from regard.check.properties.masks.key_arguments import key_argument_findings, stacked_key_argument_findings
from regard.check.properties.masks.normalizers import masked_normalizer_findings
from regard.check.properties.masks.packed_sequences import packed_sequence_findings
from regard.check.properties.masks.padded_queries import padded_query_findings
from regard.check.properties.masks.part_sizes import chunk_findings, part_size_findings
from regard.check.properties.masks.shifted_windows import shifted_window_findings
from regard.check.properties.masks.unasked import unasked_mask_findings
from regard.check.properties.masks.unread import lost_fill_findings
from regard.check.properties.masks.unread_arguments import documented_unread_findings
from regard.check.properties.masks.whole_blocks import whole_block_findings
from regard.check.properties.masks.windows import stacked_window_findings, window_findings
from regard.check.properties.modules.backward import backward_findings
from regard.check.properties.modules.block_wiring import block_findings
from regard.check.properties.modules.call_effects import call_effect_findings
from regard.check.properties.modules.constant_outputs import (
    constant_output_findings,
    single_weight_findings,
    summed_weight_findings,
    values_apart_findings,
)
from regard.check.properties.modules.parameters import cut_off_findings, parameter_findings
from regard.check.properties.modules.residuals import ACTIVATIONS
from regard.check.properties.modules.surroundings import surrounding_findings
from regard.check.properties.modules.unread_sequences import unread_sequence_findings
from regard.check.properties.outputs.heads import weights_of
from regard.check.properties.positions.grids import has_two_axes
from regard.check.properties.positions.rotations_alone import rotation_alone_findings
from regard.check.properties.read_weights import linear_findings, read_findings
from regard.check.properties.running_sums import running_state_findings, running_sum_findings
from regard.check.properties.scores.cancelled_queries import cancelled_query
from regard.check.properties.scores.distance_signs import distance_sign_findings
from regard.check.properties.scores.equal_scores import equal_scores
from regard.check.properties.scores.paired_attentions import open_paired_queries
from regard.check.properties.scores.tied_scales import tied_scale_findings
from regard.check.properties.summaries import summary_of, with_summaries
from regard.check.properties.together import judge_together
from regard.check.properties.tokens import seen_from_both_sides
from regard.check.properties.weights.appended_values import is_of_values, with_appended_values
from regard.check.properties.weights.attention_free import attention_free_findings
from regard.check.properties.weights.channel_weights import channel_weight_findings, weight_sum_finding
from regard.check.properties.weights.detached_normalizers import detached_normalizer_findings
from regard.check.properties.weights.divided_values import divided_output_findings
from regard.check.properties.weights.feature_maximum import feature_maximum_findings
from regard.check.properties.weights.mixed_weights import GATED, MIXED
from regard.check.properties.weights.normalizers import normalizer_findings
from regard.check.properties.weights.own_denominators import own_denominator_findings
from regard.check.properties.weights.place_biases import place_bias_findings
from regard.check.properties.weights.pooling import pooling_findings
from regard.check.properties.weights.random_features import random_feature_findings
from regard.check.properties.weights.scores_alone import returned_scores
from regard.check.properties.weights.token_shares import token_share_findings
from regard.check.properties.weights.weights_alone import returned_weights, weights_alone
from regard.check.properties.whole_outputs import judge_by_output
from regard.check.roles.contractions import has_too_many_terms
from regard.check.roles.influence import Influence, influence_of, record_invocation, selections, stream_sizes
from regard.check.roles.instances import AttentionInstance, TaggedRun, attentions_of, tagged_run
from regard.check.roles.local import are_rows_alike
from regard.check.roles.local_influence import rows_inside
from regard.check.roles.separate_axes import by_axes
from regard.check.target import Invocation
from regard.check.trace.operation import Trace, axis_of

__all__ = ["analyze"]

NO_ATTENTION = "no attention was found in it: no product of weights that were made of scores"
TOO_LARGE = "its products have more terms than are followed: hand over smaller inputs, or fewer samples"
OF_ONE_SAMPLE = frozenset({"samples-apart", "output-of-the-token"})
"""What no attention promises beside one in which samples are tokens."""
UNLIKE_UNMASKED = frozenset(
    {
        "sparse-by-content",
        "talking-heads",
        "differential",
        "weights-divided-later",
        "weights-sum-later",
        "heads-unknown",
        "samples-attend",
        GATED,
        MIXED,
    }
)
"""Designs whose weights of allowed keys a mask changes among themselves, as they are seen here."""

MASKINGS = (
    mask_argument_findings,
    flag_findings,
    key_argument_findings,
    packed_sequence_findings,
    closing_token_findings,
    emptied_findings,
    padded_query_findings,
    shifted_window_findings,
    window_findings,
    whole_block_findings,
    part_size_findings,
    chunk_findings,
)
"""What is asked of masks and flags that a call may be given."""


def analyze(invocation: Invocation, *, masks: bool = False, is_first: bool = True) -> Analysis:
    """Run a call, changed in every way that tells tokens, samples and heads apart, and judge each attention in it.

    Args:
        invocation: the call.
        masks: whether the masks and flags that it may be given are judged as well.
        is_first: whether it is the first call of its target: what does not hang on sizes is judged once.
    """
    invocation = invocation.watched()
    base = record_invocation(invocation, lines=True)
    if is_first and not base.error:
        invocation, base = with_whole_parts(invocation, base)
    analysis = Analysis(
        invocation,
        guessed=invocation.guessed,
        assumptions=invocation.assumptions,
        asked_masks=masks,
        is_first=is_first,
    )
    if base.error:
        analysis.missing.append(f"it could not be run: {base.error}")
        return analysis
    analysis.has_feed_forward = any(each.name.rstrip("_") in ACTIVATIONS for each in base)
    alone = {each.argument for each in invocation.streams if each.batch_axis is None}
    analysis.has_batch = len(alone) < len(invocation.streams)
    analysis.has_context = any(each.role in ("context", "k") for each in invocation.streams)
    first = influence_of(
        invocation,
        base,
        keep=lambda source: source.kind == "sample" or (source.kind == "token" and source.stream in alone),
    )
    given = [each.argument for each in invocation.streams]
    run = tagged_run(first, given)
    instances = attentions_of(run)
    added = run
    if not any(each in run.bilinear for instance in instances for each in instance.scores):
        added = tagged_run(first, given, additive=True)
        unsummed = tagged_run(first, given, unsummed=True)
        found = (_among(each, attentions_of(each)) for each in (added, unsummed))
        instances = next((each for each in found if each), instances)
    instances = by_axes(instances, invocation) if has_two_axes(invocation) else instances
    kind = kind_of(instances, invocation, base)
    if kind is not None:
        analysis.num_attentions = len(instances)
        analysis.findings.append(kind)
        analysis.missing += [kind.message] if kind.kind == "open" else ()
        if kind.property == "tied-rows":
            analysis.findings += tied_scale_findings(invocation, instances)
            unlike_one = (weight_sum_finding(each, "query", "keys") for each in instances)
            analysis.findings += [each for each in unlike_one if each is not None][:1]
            analysis.findings += flag_of_columns(invocation, kind.location) if masks else ()
        if kind.property == "flow-attention":
            analysis.findings += surrounding_findings(invocation, base, first, run, holds=not analysis.violations)
        if kind.property == "linear-attention":
            fresh = with_fresh_tokens(invocation)
            sums = linear_findings(invocation, run, fresh, evidence_of_tables(invocation))
            sums = sums or list(channel_weight_findings(instances, invocation))
            sums = sums or list(normalizer_findings(invocation, instances))
            analysis.findings += sums or own_denominator_findings(invocation, instances)
            analysis.findings += feature_maximum_findings(invocation, instances)
            if not analysis.violations:
                analysis.findings += random_feature_findings(invocation, instances)
                analysis.findings += detached_normalizer_findings(invocation) if is_first else ()
            if masks and not analysis.violations:
                analysis.findings += masked_normalizer_findings(invocation, base)
            if masks and not analysis.violations:
                analysis.findings += hidden_key_findings(invocation, base, instances)
                analysis.findings += documented_unread_findings(invocation)
            analysis.findings += surrounding_findings(invocation, base, first, run, holds=not analysis.violations)
            analysis.findings += kept_state_findings(invocation) if is_first and not analysis.violations else ()
        if is_first and not analysis.violations:
            analysis.findings += parameter_findings(invocation, instances)
    elif not instances:
        _judge_unseen(analysis, run, added)
    else:
        analysis.num_attentions = len(instances)
        analysis.modules = list(dict.fromkeys(each.module for each in instances))
        judged = judged_of_loops(instances)
        analysis.findings += loop_findings(instances, judged)
        frozen = {each.operation.index: each.output.data for instance in instances for each in instance.sums}
        _judge_attentions(analysis, base, judged, first, frozen)
        judge_by_output(analysis, run)
        analysis.findings += surrounding_findings(invocation, base, first, run, holds=not analysis.violations)
        analysis.findings += block_findings(invocation.target, run, instances)
        analysis.findings += divided_output_findings(run, instances)
        judge_once(analysis, instances, lambda other: analyze(other, is_first=False))
        if any(each.property == "samples-attend" for each in analysis.findings):
            analysis.findings = [each for each in analysis.findings if each.property not in OF_ONE_SAMPLE]
    return analysis


def _among(run: TaggedRun, instances: list[AttentionInstance]) -> list[AttentionInstance]:
    """The attentions, where a score of one of them is what the run took for one; none of others."""
    return instances if any(each in run.bilinear for instance in instances for each in instance.scores) else []


def _judge_attentions(
    analysis: Analysis,
    base: Trace,
    instances: list[AttentionInstance],
    samples: Influence,
    frozen: dict[int, Tensor],
) -> None:
    """Each attention by itself, and the masks that may be given where there is one alone. Frozen are all of the run."""
    invocation, several = analysis.invocation, list[Evidence]()
    centers = centers_of(invocation, base, instances)
    influence = influence_of(invocation, base, frozen=frozen | centers)
    spans = [(each.scores[0].operation.index, each.sums[-1].operation.index) for each in instances]
    chosen = {
        index: places
        for index, places in selections(base).items()
        if not any(start < index < end for start, end in spans) or any(each.takes_chosen(index) for each in instances)
    }
    fresh = record_invocation(invocation, with_fresh_tokens(invocation), frozen=chosen)
    equal = record_invocation(
        invocation, with_equal_tokens(invocation), frozen=_chosen_tokens(invocation, base, chosen)
    )
    streams = [each.argument for each in invocation.streams]
    count, *_ = stream_sizes(invocation, invocation.streams[0])
    seen: list[tuple[AttentionInstance, bool, Finding | None]] = []
    of_channels: list[AttentionInstance] = []
    equal_keys = [equal_scores(each, base, fresh) for each in instances]
    told = list(zip(instances, equal_keys, strict=True))
    analysis.findings += [replace(equal, module=instance.module) for instance, equal in told if equal is not None]
    unlike = [instance for instance, equal in told if equal is None]
    for instance, inside in zip(unlike, rows_inside(invocation, unlike, influence, frozen, samples), strict=True):
        try:
            if isinstance(inside, Exception):
                raise inside
            is_mixed, local = inside
            kind = kind_of_rows(instance, local.influence, local.streams) if local is not None else None
            if kind is not None:
                of_channels.append(instance)
                weights = channel_weight_findings([instance], invocation)
                analysis.findings += [kind, *(replace(each, module=instance.module) for each in weights)]
                continue
            if local is None:
                evidence = evidence_of(instance, influence, streams, fresh, equal, invocation)
            else:
                is_same = len(streams) == 1 and equal.same_operations(base) and are_rows_alike(instance, equal, count)
                evidence = evidence_of(
                    instance, local.influence, local.streams, fresh, equal if is_same else None, invocation
                )
            summary = summary_of(evidence, influence, streams)
        except (RuntimeError, IndexError, ValueError) as error:
            analysis.missing.append(f"{type(error).__name__}: {error}")
            analysis.findings.append(Finding("open", "not-seen", "scores", str(error), module=instance.module))
            continue
        several.append(evidence)
        seen.append((instance, is_mixed, summary))
    several, are_tried, held = seen_from_both_sides(several), False, frozen | weights_of(instances)
    asking = set[str]().union(*(_names_of_streams(each) for each in several))
    analysis.reads_context = any(each.role == "context" and each.argument in asking for each in invocation.streams)
    analysis.guessed = [name for name in analysis.guessed if name not in asking]  # they are sequences, as was guessed
    for (instance, is_mixed, summary), evidence in zip(seen, several, strict=True):
        judged = list(attention_findings(invocation, evidence, influence, held, is_only=len(instances) == 1))
        if is_mixed:
            judged = with_summaries(judged, evidence, summary)
        cancelled = cancelled_query(evidence, influence)
        if cancelled is not None:
            judged = [*(each for each in judged if each.step != cancelled.step), cancelled]
        analysis.missing += [found.message for found in judged if found.property in OPEN_QUESTIONS]
        if not judged and (of_places := location_weights(evidence)) is not None:
            judged = [of_places]
        elif not judged and not evidence.base.whole:
            analysis.missing.append("its scores are not each of one query token and one key token: not judged")
        analysis.findings += [replace(found, module=instance.module) for found in judged]
        if analysis.asked_masks and len(instances) == 1 and _can_be_masked(analysis, evidence):
            are_tried = True
            for of_masks in MASKINGS:
                analysis.findings += of_masks(invocation, evidence)
    open_paired_queries(analysis, [each for each, *_ in seen], of_channels)
    shared: dict[str, list[Finding]] = {}
    sharing = those_sharing(several, is_one=len(streams) == 1) if 1 < len(several) == len(instances) else []
    if analysis.asked_masks and sharing and all(_can_be_masked(analysis, each) for each in several):
        shared = dict(shared_mask_findings(invocation, sharing))
    if analysis.asked_masks and len(several) == len(instances) > 1 and _can_be_masked(analysis, several[0]):
        shared |= dict(stacked_key_argument_findings(invocation, several))
        analysis.findings += stacked_window_findings(invocation, several[0])
        shared |= dict(interleaved_mask_findings(invocation, several))
    analysis.findings += [found for judged in shared.values() for found in judged]
    if analysis.asked_masks:  # else another call was asked
        analysis.findings += unasked_mask_findings(invocation, are_tried=are_tried, others=shared)
    judge_together(analysis, base, samples, several, frozen)
    if centers:  # their products with queries and keys are no positions
        analysis.findings = [each for each in analysis.findings if each.step != "positions"]
        analysis.findings.append(Finding("design", "query-of-one-token", "projections", CENTERED))


def _names_of_streams(evidence: Evidence) -> set[str]:
    """The arguments that queries, keys and values are made of."""
    table = evidence.base
    of_values = table.values.stream[table.values.score >= 0]
    places = torch.unique(torch.cat([table.query.stream, table.key.stream, of_values])).tolist()
    return {table.streams[each] for each in places if each >= 0}


def _chosen_tokens(invocation: Invocation, base: Trace, chosen: dict[int, Tensor]) -> dict[int, Tensor]:
    """Those of the choices of a run that are of tokens. Tokens that are alike choose alike, as among experts."""
    arguments = invocation.arguments
    sizes = {arguments[each.argument].shape[axis] for each in invocation.streams for axis in each.token_axes}
    found = {}
    for index, places in chosen.items():
        operation = base.operations[index]
        axis = axis_of(operation.function, operation.args, operation.kwargs)
        if axis is None or operation.inputs[0].data.shape[axis] in sizes:
            found[index] = places
    return found


def _can_be_masked(analysis: Analysis, evidence: Evidence) -> bool:
    """Whether weights with a mask can be compared with those without one."""
    is_unlike = any(each.property in UNLIKE_UNMASKED for each in analysis.findings)
    return evidence.base.whole and not analysis.violations and not is_unlike


def _judge_unseen(analysis: Analysis, run: TaggedRun, added: TaggedRun) -> None:
    """What is found of a call in whose steps no weights meet values, where scores are multiplied, or else added."""
    invocation = analysis.invocation
    analysis.findings += list(weights_alone(run, invocation)) or list(weights_alone(added, invocation))
    if [each.property for each in analysis.findings if each.kind == "design"] == ["weights-alone"]:
        _judge_with_values(analysis, run)
    if not analysis.findings:
        _judge_scores_alone(analysis, added)
    if not analysis.findings:
        found = summed_weight_findings(run) or single_weight_findings(invocation, run)
        analysis.findings += found or values_apart_findings(run)
    if not analysis.findings:
        analysis.findings += token_share_findings(invocation, run)
    if not analysis.findings:
        of_tokens = influence_of(invocation, run.trace, keep=lambda source: source.kind == "token")
        known = learned_memory(run) or channel_gate(run, of_tokens, invocation)
        analysis.findings += pooling_findings(invocation, run.trace, of_tokens) if known is None else [known]
    if not analysis.findings:
        found = read_findings(invocation, run, with_fresh_tokens(invocation), evidence_of_tables(invocation))
        analysis.missing += [each.message for each in found if each.property in OPEN_QUESTIONS]
        if found:
            masks = list(unasked_mask_findings(invocation, are_tried=False))
            analysis.missing += [each.message for each in masks if each.property == "mask-open"]
            found += masks
        analysis.findings += found
    if not analysis.findings:
        analysis.findings += running_sum_findings(invocation, run)
    if not analysis.findings:
        analysis.findings += attention_free_findings(invocation, run.trace)
        analysis.findings += place_bias_findings(invocation, run.trace) if analysis.findings else ()
    if not analysis.findings:
        analysis.findings += running_state_findings(invocation, run)
    if analysis.findings and not analysis.violations and analysis.is_first:
        analysis.findings += state_findings(invocation)
        analysis.findings += [] if analysis.violations else kept_state_findings(invocation)
        analysis.findings += [] if analysis.violations else call_effect_findings(invocation)
        analysis.findings += [] if analysis.violations else cut_off_findings(invocation)
        if analysis.asked_masks and any(each.property == "linear-attention" for each in analysis.findings):
            analysis.findings += hidden_key_findings(invocation, run.trace, [])
    if not analysis.findings:
        analysis.findings += constant_output_findings(invocation, run)
    if not analysis.findings:
        analysis.findings += distance_sign_findings(run.trace, code_of(invocation.target))
    if not analysis.findings:
        analysis.findings += rotation_alone_findings(invocation)
    if analysis.findings and not analysis.violations:
        unread = unread_sequence_findings(invocation, run.trace, ())
        has_values = all(each.property != "weights-alone" for each in analysis.findings)
        analysis.findings += [each for each in unread if has_values or not is_of_values(each)]
        analysis.findings += [] if analysis.violations else lost_fill_findings(run.trace)
        analysis.findings += [] if analysis.violations else backward_findings(invocation)
        analysis.findings += [] if analysis.violations else detached_normalizer_findings(invocation)
    if analysis.findings:
        analysis.num_attentions = 1
    else:
        analysis.missing.append(TOO_LARGE if any(map(has_too_many_terms, run.trace)) else NO_ATTENTION)


def _judge_scores_alone(analysis: Analysis, added: TaggedRun) -> None:
    """Scores that are returned alone, by what their softmax would read of values."""
    found = returned_scores(analysis.invocation, added)
    if found is None:
        return
    number, line = found
    scores = added.trace.outputs[number].data
    completed = with_appended_values(analysis.invocation, number, scores, are_scores=True)
    if completed is None:
        return
    judged = analyze(completed, masks=analysis.asked_masks, is_first=analysis.is_first)
    if judged.complete:
        message = "scores alone: w . f(q + k) is returned, and whoever calls takes the softmax"
        alone = Finding("design", "weights-alone", "weighted sum", message, line)
        own = (each for each in judged.findings if not is_of_values(each) and each.step != "weights")
        analysis.findings = [alone, *own]


def _judge_with_values(analysis: Analysis, run: TaggedRun) -> None:
    """Weights that are returned alone, by what they would read of values."""
    number = returned_weights(run)
    if analysis.violations or number is None or analysis.invocation.completion is not None:
        return
    completed = with_appended_values(analysis.invocation, number, run.trace.outputs[number].data)
    if completed is None:
        return
    judged = analyze(completed, masks=analysis.asked_masks, is_first=analysis.is_first)
    if judged.complete:
        alone = [each for each in analysis.findings if each.kind == "design"]
        analysis.findings = [*alone, *(each for each in judged.findings if not is_of_values(each))]
