"""The properties of one attention, in the order of the steps of the definition."""

from __future__ import annotations

from collections.abc import Iterator
from functools import partial

from torch import Tensor

from regard.check.properties.designs import averaged_heads, differential, learned_keys, subtracted_scores
from regard.check.properties.documentation import documentation_of, lets_samples_attend, name_and_documentation
from regard.check.properties.evidence import with_fresh_tokens
from regard.check.properties.finding import Evidence, Finding
from regard.check.properties.masks.chosen_keys import chosen_key_findings
from regard.check.properties.masks.later_keys import may_hide_later_keys
from regard.check.properties.masks.mixed_parts import unmasked_part
from regard.check.properties.masks.nearest_keys import farthest_key_findings
from regard.check.properties.masks.padded_keys import padded_key
from regard.check.properties.masks.patterns import mask_findings
from regard.check.properties.masks.unread_keys import unread_key_findings
from regard.check.properties.masks.whole_frames import by_whole_frames
from regard.check.properties.optional_scales import optional_scale_design
from regard.check.properties.outputs.heads import output_findings, projected_once
from regard.check.properties.outputs.inner_tokens import inner_output_findings
from regard.check.properties.outputs.joint import joint_output_findings
from regard.check.properties.outputs.parts_of_matrices import matrix_of_head_findings
from regard.check.properties.outputs.rows import query_row_findings
from regard.check.properties.positions.equal_tokens import position_findings
from regard.check.properties.positions.grids import grid_of, kept_grid
from regard.check.properties.read_weights import confirmed
from regard.check.properties.scores.chained_projections import chained_projection_findings
from regard.check.properties.scores.distance_buckets import bucket_findings
from regard.check.properties.scores.distance_vectors import distance_vector_findings
from regard.check.properties.scores.documented_groups import documented_group_findings
from regard.check.properties.scores.documented_scales import documented_scale_findings, unused_cap_findings
from regard.check.properties.scores.documented_temperatures import documented_temperature_findings
from regard.check.properties.scores.formula import ScoreFit, fit_scores, score_findings
from regard.check.properties.scores.head_channels import head_channel_findings
from regard.check.properties.scores.learned_tables import (
    documented_table_findings,
    table_entry_findings,
    table_head_findings,
)
from regard.check.properties.scores.norm_axes import norm_axis_findings, one_sided_norm_findings
from regard.check.properties.scores.numbers_of_heads import learned_logarithm_findings, number_of_head_findings
from regard.check.properties.scores.packed_groups import packed_group_findings
from regard.check.properties.scores.pair_biases import pair_bias
from regard.check.properties.scores.relative_logits import relative_logit_findings
from regard.check.properties.scores.scales import scale_design
from regard.check.properties.scores.shared_heads import shared_head_findings
from regard.check.properties.scores.told_heads import told_head_findings
from regard.check.properties.scores.unread_scales import unread_cosine_scale
from regard.check.properties.scores.unsummed_products import unsummed_products
from regard.check.properties.scores.wrapped_tables import wrapped_table_findings
from regard.check.properties.tokens import (
    samples_attend,
    token_findings,
    with_samples_as_tokens,
)
from regard.check.properties.weights.competing_slots import competing_slots
from regard.check.properties.weights.documented_weights import as_documented
from regard.check.properties.weights.looked_up import looked_up_findings
from regard.check.properties.weights.mixed_weights import GATED, MIXED, mixed_weights, of_the_softmax
from regard.check.properties.weights.softmax import weight_findings
from regard.check.properties.weights.squared_weights import squared_weights
from regard.check.roles.influence import Influence
from regard.check.target import Invocation

__all__ = ["attention_findings"]

ORIGINS = frozenset(
    {"queries-from-their-input", "keys-from-their-input", "values-from-their-input", "values-from-the-keys-input"}
)
"""Properties of the sequence that something is made of: the steps after it may be right all the same."""
OF_THE_SOFTMAX = frozenset({"sinks", "hard-weights"})
"""Designs of weights beside which a softmax takes the scores as ever."""
NO_WEIGHTS = frozenset({"softmax-over-keys", "softmax-of-scores", "weights-are-numbers"})
"""Properties without which weights are none: the steps after them are not judged."""


def attention_findings(
    invocation: Invocation, evidence: Evidence, influence: Influence, frozen: dict[int, Tensor], *, is_only: bool
) -> Iterator[Finding]:
    """The properties, in the order of the steps; after a violation of who is who, no numbers are compared.

    Args:
        invocation: the call.
        evidence: one of its attentions.
        influence: of the tokens of the input, with the weighted sums of all held.
        frozen: these, and the weights of all, by the index of their operation.
        is_only: whether there are no others.
    """
    if samples_attend(evidence.base) and lets_samples_attend(invocation.target):
        message = "the samples of a batch attend to each other, as it says (intersample attention)"
        yield Finding("design", "samples-attend", "scores", message, evidence.base.instance.scores_location)
        evidence = with_samples_as_tokens(evidence)
    found = list(token_findings(evidence))
    if any(each.property == "heads-unknown" for each in found):
        looked_up = looked_up_findings(invocation, evidence, frozen)
        if looked_up:
            yield from (each for each in found if each.kind != "open")
            yield from looked_up
            return
    found += documented_group_findings(evidence, invocation.target)
    if not any(each.kind == "violation" for each in found):
        found += packed_group_findings(evidence)
    if not any(each.kind == "violation" for each in found):
        text = name_and_documentation(invocation.target)
        found += head_channel_findings(evidence, text)
        found += chained_projection_findings(evidence, text)
    yield from found
    if not found and not is_only and not evidence.base.whole and (asked := learned_keys(evidence)) is not None:
        yield asked
    is_unclear = any(
        each.kind == "open" or (each.kind == "violation" and each.property not in ORIGINS) for each in found
    )
    if is_unclear or not evidence.base.whole:
        return
    if int(evidence.base.query.token.max()) > 0 and bool((evidence.base.query.token == evidence.base.key.token).all()):
        yield Finding(
            "violation",
            "attends-to-tokens",
            "scores",
            "a query is multiplied by keys of its own token alone: attention runs over the heads, not over the tokens",
            evidence.base.instance.scores_location,
        )
        return
    found = list(norm_axis_findings(invocation, evidence))
    found = found or list(one_sided_norm_findings(evidence, name_and_documentation(invocation.target)))
    yield from found
    if found:
        return
    mixed = mixed_weights(invocation, evidence) or squared_weights(evidence)
    found, numbers = list(weight_findings(evidence)), evidence
    if mixed is not None:
        numbers = of_the_softmax(evidence)
        found = [mixed, *(each for each in weight_findings(numbers) if each.kind == "violation")]
        unmasked = unmasked_part(invocation, evidence) if mixed.property == MIXED else None
        found += [unmasked] if unmasked is not None else []
    elif is_only:
        found, numbers = confirmed(invocation, evidence, found, with_fresh_tokens(invocation))
    padded = padded_key(invocation, evidence) if any(each.property == "sinks" for each in found) else None
    text = name_and_documentation(invocation.target)
    found = as_documented(found if padded is None else [padded], text)
    if [each.property for each in found] == ["weights-sum-to-one"] and (slots := competing_slots(evidence, text)):
        found = [slots]
    yield from found
    is_wrong = any(each.kind == "violation" for each in found)
    if any(each.property in NO_WEIGHTS for each in found):
        yield from _scores(invocation, evidence, fit_scores(evidence, before_softmax=True))
        return
    masked = list(by_whole_frames(invocation, numbers, list(mask_findings(numbers))))
    yield from masked
    yield from unread_key_findings(invocation, evidence) if is_only else ()
    if any(each.property == "sparse-by-content" for each in masked):
        yield from chosen_key_findings(invocation, numbers)
        yield from farthest_key_findings(invocation, evidence)
    yield from _mixed_heads(evidence)
    yield from shared_head_findings(invocation, evidence)
    yield from told_head_findings(invocation, evidence)
    yield from number_of_head_findings(invocation, evidence)
    yield from learned_logarithm_findings(invocation, evidence)
    unsummed = unsummed_products(invocation, evidence)
    if unsummed is not None:
        yield unsummed
    elif evidence.base.instance.run.additive:
        message = "w . f(q + k): queries and keys are added, not multiplied (additive attention)"
        if evidence.base.width == 1:
            message = "a number of the query and one of the key are added, not multiplied (graph attention)"
        yield Finding("design", "additive-scores", "scores", message, evidence.base.instance.scores_location)
    elif (
        mixed is not None or all(each.kind == "holds" or each.property in OF_THE_SOFTMAX for each in found)
    ) and not evidence.base.instance.are_scores_mixed:
        subtracted = subtracted_scores(numbers.base.instance, name_and_documentation(invocation.target))
        if subtracted is not None:
            yield subtracted
        else:
            yield from _scores(invocation, numbers, fit_scores(numbers))
    elif mixed is None and is_wrong and not evidence.base.instance.are_scores_mixed:
        yield from _scores(invocation, evidence, fit_scores(evidence, before_softmax=True))
    if not evidence.base.instance.run.additive and (mixed is None or mixed.property != GATED):
        may_hide = partial(may_hide_later_keys, invocation, evidence)
        learned = list(relative_logit_findings(invocation, evidence, may_hide))
        told, grid = documentation_of(invocation.target), grid_of(invocation)
        if [each.property for each in learned] == ["relative-logits"]:
            yield from distance_vector_findings(evidence)
        yield from learned or position_findings(evidence, told, grid, kept_grid(invocation))
    yield from wrapped_table_findings(invocation, evidence)
    averaged = averaged_heads(evidence.base)
    if averaged is not None:
        yield averaged
    yield from projected_once(evidence)
    yield from _outputs(invocation, evidence, influence, frozen)


def _outputs(
    invocation: Invocation, evidence: Evidence, influence: Influence, frozen: dict[int, Tensor]
) -> Iterator[Finding]:
    """Where what is attended to goes; where the output does not tell it, to which row that the next matrix reads."""
    found: list[Finding] = []
    if evidence.base.streams == tuple(evidence.roles):
        several = sum(each >= 0 for each in set(evidence.base.query.stream.tolist())) > 1
        found += (joint_output_findings if several else output_findings)(invocation, evidence, frozen)
    else:
        found += inner_output_findings(invocation, evidence, influence, frozen)
    yield from found or query_row_findings(evidence)
    if all(each.kind != "violation" for each in found):
        yield from matrix_of_head_findings(invocation, evidence, frozen)


def _scores(invocation: Invocation, evidence: Evidence, fit: ScoreFit | None) -> Iterator[Finding]:
    """What scores are, where their numbers are known."""
    if evidence.base.instance.run.additive:
        return
    for each in score_findings(evidence, fit, name_and_documentation(invocation.target)) if fit is not None else ():
        if each.property == "relative-bias" and (of_pairs := pair_bias(invocation, evidence)) is not None:
            yield of_pairs
            continue
        is_scale = each.kind == "violation" and each.property == "scale"
        meant = scale_design(invocation, evidence, fit) if is_scale and fit is not None else None
        if meant is None and is_scale and fit is not None:
            meant = optional_scale_design(invocation, evidence, fit)
        yield meant or each
        if each.property == "relative-bias":
            yield from documented_table_findings(invocation, evidence)
            yield from table_head_findings(invocation, evidence)
            yield from table_entry_findings(invocation, evidence)
            yield from bucket_findings(invocation, evidence)
    if fit is not None:
        yield from documented_scale_findings(invocation, evidence, fit)
        yield from unused_cap_findings(invocation, evidence, fit)
        yield from documented_temperature_findings(invocation, evidence)
        yield from unread_cosine_scale(invocation, evidence, fit)


def _mixed_heads(evidence: Evidence) -> Iterator[Finding]:
    """Talking heads, and differential attention."""
    instance = evidence.base.instance
    sides = {"before": instance.are_scores_mixed, "after": instance.are_weights_mixed}
    if any(sides.values()):
        listed = " and ".join(side for side, is_mixed in sides.items() if is_mixed)
        message = f"heads are mixed {listed} the softmax (talking heads)"
        yield Finding("design", "talking-heads", "scores", message, instance.scores_location)
    if instance.are_weights_mixed and not instance.weights_of_softmaxes:
        message = "what is mixed after the softmax are the scores: nothing reads the weights that the softmax returned"
        yield Finding("violation", "weights-sum-to-one", "weights", message, instance.softmaxes[0].location)
    if instance.are_weights_subtracted:
        yield differential(instance)
    if instance.are_scores_mixed:
        yield Finding("open", "scale-open", "scale", "heads are mixed after it: not judged", instance.scores_location)
