"""The properties of one attention, in the order of the steps of the definition."""

from __future__ import annotations

from collections.abc import Iterator

from torch import Tensor

from regard.check.properties.designs import averaged_heads, differential, subtracted_scores
from regard.check.properties.documentation import documentation_of, name_and_documentation
from regard.check.properties.evidence import with_fresh_tokens
from regard.check.properties.finding import Evidence, Finding
from regard.check.properties.masks.chosen_keys import chosen_key_findings
from regard.check.properties.masks.patterns import mask_findings
from regard.check.properties.outputs.heads import output_findings, projected_once
from regard.check.properties.positions import position_findings
from regard.check.properties.read_weights import confirmed
from regard.check.properties.scores.formula import fit_scores, score_findings
from regard.check.properties.scores.learned_tables import documented_table_findings, table_head_findings
from regard.check.properties.scores.norm_axes import norm_axis_findings
from regard.check.properties.scores.relative_logits import relative_logit_findings
from regard.check.properties.scores.scales import scale_design
from regard.check.properties.tokens import documented_group_findings, token_findings
from regard.check.properties.weights.mixed_weights import GATED, mixed_weights, of_the_softmax
from regard.check.properties.weights.softmax import weight_findings
from regard.check.target import Invocation

__all__ = ["attention_findings"]


def attention_findings(
    invocation: Invocation, evidence: Evidence, frozen: dict[int, Tensor], *, is_only: bool
) -> Iterator[Finding]:
    """The properties, in the order of the steps; after a violation of who is who, no numbers are compared.

    Args:
        invocation: the call.
        evidence: one of its attentions.
        frozen: the weighted sums of all of them, by the index of their operation.
        is_only: whether there are no others.
    """
    found = list(token_findings(evidence))
    found += documented_group_findings(evidence, documentation_of(invocation.target))
    yield from found
    if any(each.kind == "violation" for each in found) or not evidence.base.whole:
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
    yield from found
    if found:
        return
    mixed = mixed_weights(invocation, evidence)
    found = list(weight_findings(evidence)) if mixed is None else [mixed]
    numbers = evidence
    if mixed is not None:
        numbers = of_the_softmax(evidence)
    elif is_only:
        found, numbers = confirmed(invocation, evidence, found, with_fresh_tokens(invocation))
    yield from found
    if any(each.property in ("softmax-over-keys", "softmax-of-scores", "weights-are-numbers") for each in found):
        return
    masked = list(mask_findings(numbers))
    yield from masked
    if any(each.property == "sparse-by-content" for each in masked):
        yield from chosen_key_findings(invocation, numbers)
    yield from _mixed_heads(evidence)
    if evidence.base.instance.run.additive:
        message = "w . f(q + k): queries and keys are added, not multiplied (additive attention)"
        if evidence.base.width == 1:
            message = "a number of the query and one of the key are added, not multiplied (graph attention)"
        yield Finding("design", "additive-scores", "scores", message, evidence.base.instance.scores_location)
    elif (
        mixed is not None or all(each.kind == "holds" or each.property == "sinks" for each in found)
    ) and not evidence.base.instance.are_scores_mixed:
        fit = fit_scores(numbers)
        subtracted = subtracted_scores(numbers.base.instance, name_and_documentation(invocation.target))
        if subtracted is not None:
            yield subtracted
        elif fit is not None:
            for each in score_findings(numbers, fit):
                is_scale = each.kind == "violation" and each.property == "scale"
                yield (scale_design(invocation, evidence, fit) if is_scale else None) or each
                if each.property == "relative-bias":
                    yield from documented_table_findings(invocation, evidence)
                    yield from table_head_findings(invocation, evidence)
    if not evidence.base.instance.run.additive and (mixed is None or mixed.property != GATED):
        learned = list(relative_logit_findings(invocation, evidence))
        yield from learned or position_findings(evidence, documentation_of(invocation.target))
    averaged = averaged_heads(evidence.base)
    if averaged is not None:
        yield averaged
    yield from projected_once(evidence)
    if evidence.base.streams == tuple(evidence.roles):
        yield from output_findings(invocation, evidence, frozen)


def _mixed_heads(evidence: Evidence) -> Iterator[Finding]:
    """Talking heads, and differential attention."""
    instance = evidence.base.instance
    sides = {"before": instance.are_scores_mixed, "after": instance.are_weights_mixed}
    if any(sides.values()):
        listed = " and ".join(side for side, is_mixed in sides.items() if is_mixed)
        message = f"heads are mixed {listed} the softmax (talking heads)"
        yield Finding("design", "talking-heads", "scores", message, instance.scores_location)
    if instance.are_weights_subtracted:
        yield differential(instance)
    if instance.are_scores_mixed:
        yield Finding("open", "scale-open", "scale", "heads are mixed after it: not judged", instance.scores_location)
