"""Hold every attention of a call against the properties that define it."""

from __future__ import annotations

import inspect
import re
from collections import Counter
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field, replace
from typing import Any

import torch
from torch import Tensor, nn

from regard.check.properties.caches import cache_findings
from regard.check.properties.designs import differential, learned_memory, summarized_keys
from regard.check.properties.documented_axes import documented_axes_findings
from regard.check.properties.finding import Evidence, Finding
from regard.check.properties.key_arguments import key_argument_findings
from regard.check.properties.kinds import kind_of
from regard.check.properties.mask_arguments import flag_findings, mask_argument_findings
from regard.check.properties.masks import mask_findings
from regard.check.properties.not_a_number import nan_findings
from regard.check.properties.output import output_findings, projected_once
from regard.check.properties.parameters import parameter_findings
from regard.check.properties.positions import position_findings
from regard.check.properties.read_weights import BY_HAND, confirmed, linear_findings, read_findings
from regard.check.properties.relative_logits import relative_logit_findings
from regard.check.properties.residuals import ACTIVATIONS, residual_findings
from regard.check.properties.scales import scale_design
from regard.check.properties.scores import fit_scores, score_findings
from regard.check.properties.surroundings import surrounding_findings
from regard.check.properties.token_ids import target_findings, token_padding_findings
from regard.check.properties.tokens import token_findings
from regard.check.properties.weights import weight_findings
from regard.check.properties.weights_alone import weights_alone
from regard.check.properties.windows import window_findings
from regard.check.roles.influence import Influence, influence_of, record_invocation, selections
from regard.check.roles.instances import AttentionInstance, TaggedRun, attentions_of, tagged_run
from regard.check.roles.local import are_tokens_mixed, are_tokens_summed, local_influence
from regard.check.roles.table import AttentionTable, table_of
from regard.check.target import Invocation
from regard.check.target.token_ids import other_ids
from regard.check.trace.operation import Trace

__all__ = ["Analysis", "analyze"]

OPEN_QUESTIONS = frozenset({"mask-unknown", "scores-bilinear"}) | BY_HAND
"""Notes that leave open whether it is attention."""
MIXED_TOKENS = frozenset({"key-of-one-token", "value-of-one-token"})
"""Violations that keys made of several tokens on purpose have as well."""
UNLIKE_UNMASKED = frozenset(
    {"sparse-by-content", "talking-heads", "differential", "weights-divided-later", "weights-sum-later"}
)
"""Designs whose weights of allowed keys a mask changes among themselves, as they are seen here."""
HIDDEN = -50.0
"""A number of a mask from here down hides a key; Swin writes -100."""


@dataclass(eq=False)
class Analysis:
    """What the properties say of one call."""

    invocation: Invocation
    findings: list[Finding] = field(default_factory=list)
    num_attentions: int = 0
    has_feed_forward: bool = False
    """Whether it is more than an attention: an activation stands in it."""
    has_batch: bool = False
    """Whether it was called with several samples."""
    has_context: bool = False
    """Whether it had to be given a sequence of its own for keys and values."""
    modules: list[str] = field(default_factory=list)
    """The path of each attention, in the order of the run; empty for what was handed over itself."""
    guessed: list[str] = field(default_factory=list)
    """Arguments of the call that may mean anything."""
    assumptions: list[str] = field(default_factory=list)
    """What was assumed in order to call it."""
    asked_masks: bool = False
    """Whether its masks and flags were judged as well."""
    is_first: bool = True
    """Whether it was the first call of its target."""
    missing: list[str] = field(default_factory=list)
    """What could not be looked at, and why."""

    @property
    def complete(self) -> bool:
        """Whether every attention in it was held against every property."""
        return self.num_attentions > 0 and not self.missing

    @property
    def violations(self) -> list[Finding]:
        """What is wrong."""
        return [each for each in self.findings if each.kind == "violation"]

    @property
    def designs(self) -> list[Finding]:
        """What is different by design."""
        return [each for each in self.findings if each.kind == "design"]


def analyze(invocation: Invocation, *, masks: bool = False, is_first: bool = True) -> Analysis:
    """Run a call, changed in every way that tells tokens, samples and heads apart, and judge each attention in it.

    Args:
        invocation: the call.
        masks: whether the masks and flags that it may be given are judged as well.
        is_first: whether it is the first call of its target: what does not hang on sizes is judged once.
    """
    analysis = Analysis(
        invocation,
        guessed=invocation.guessed,
        assumptions=invocation.assumptions,
        asked_masks=masks,
        is_first=is_first,
    )
    base = record_invocation(invocation, lines=True)
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
    if not any(each in run.bilinear for instance in instances for each in instance.scores):
        instances = attentions_of(tagged_run(first, given, additive=True)) or instances
    kind = kind_of(instances, invocation, base)
    if kind is not None:
        analysis.num_attentions = len(instances)
        analysis.findings.append(kind)
        if kind.property == "linear-attention":
            analysis.findings += linear_findings(invocation, run, _fresh(invocation, 77), _evidence_of(invocation))
        return analysis
    if not instances:
        _judge_unseen(analysis, run)
        return analysis
    analysis.num_attentions = len(instances)
    analysis.modules = list(dict.fromkeys(each.module for each in instances))
    frozen = {each.operation.index: each.output.data for instance in instances for each in instance.sums}
    influence = influence_of(invocation, base, frozen=frozen)
    first_scores = min(each.operation.index for instance in instances for each in instance.scores)
    chosen = {index: places for index, places in selections(base).items() if index < first_scores}
    fresh = record_invocation(invocation, _fresh(invocation, 77), frozen=chosen)
    equal = record_invocation(invocation, _equal(invocation), frozen=chosen)
    streams = [each.argument for each in invocation.streams]
    are_tried = False
    several: list[Evidence] = []
    for instance in instances:
        try:
            local = None
            is_mixed = are_tokens_mixed(instance, influence, streams)
            if is_mixed and not are_tokens_summed(instance, influence, streams):
                local = local_influence(invocation, instance, influence, frozen)
            if local is None:
                evidence = _evidence(instance, influence, streams, fresh, equal, invocation)
            else:
                evidence = _evidence(instance, local[0], local[1], fresh, None, invocation)
        except (RuntimeError, IndexError, ValueError) as error:
            analysis.missing.append(f"{type(error).__name__}: {error}")
            analysis.findings.append(Finding("open", "not-seen", "scores", str(error), module=instance.module))
            continue
        several.append(evidence)
        judged = list(_judged(invocation, evidence, frozen, is_only=len(instances) == 1))
        if is_mixed and local is None and any(each.property in MIXED_TOKENS for each in judged):
            summary = summarized_keys(evidence.base)
            judged = judged if summary is None else [summary]
        for found in judged:
            if found.property in OPEN_QUESTIONS:
                analysis.missing.append(found.message)
            analysis.findings.append(replace(found, module=instance.module))
        if masks and len(instances) == 1 and evidence.base.whole and not analysis.violations:
            if any(each.property in UNLIKE_UNMASKED for each in analysis.findings):
                continue
            are_tried = True
            analysis.findings += mask_argument_findings(invocation, evidence)
            analysis.findings += flag_findings(invocation, evidence)
            analysis.findings += key_argument_findings(invocation, evidence)
            analysis.findings += window_findings(invocation, evidence)
    analysis.findings += _unasked(invocation, are_tried=are_tried)
    analysis.findings += nan_findings(base)
    if not analysis.violations:
        analysis.findings += token_padding_findings(invocation, several)
        analysis.findings += target_findings(invocation, several, base)
    analysis.findings += surrounding_findings(invocation, base, first, run, holds=not analysis.violations)
    analysis.findings += residual_findings(run, instances)
    if invocation.square and not analysis.violations:
        analysis.missing.append("it runs only with as many tokens as channels: what holds so may hold by accident")
    if is_first and analysis.complete and not analysis.violations:
        analysis.findings += documented_axes_findings(invocation)
    if is_first and not analysis.violations:
        analysis.findings += parameter_findings(invocation, instances)
    if is_first and not analysis.violations:
        analysis.findings += cache_findings(invocation, instances)
    return analysis


def _judge_unseen(analysis: Analysis, run: TaggedRun) -> None:
    """What is found of a call in whose steps no weights meet values."""
    invocation = analysis.invocation
    analysis.findings += weights_alone(run, invocation)
    memory = learned_memory(run) if not analysis.findings else None
    if memory is not None:
        analysis.findings.append(memory)
    if not analysis.findings:
        found = read_findings(invocation, run, _fresh(invocation, 77), _evidence_of(invocation))
        analysis.missing += [each.message for each in found if each.property in OPEN_QUESTIONS]
        if found:
            masks = list(_unasked(invocation, are_tried=False))
            analysis.missing += [each.message for each in masks if each.property == "mask-open"]
            found += masks
        analysis.findings += found
    if analysis.findings:
        analysis.num_attentions = 1
    else:
        analysis.missing.append("no attention was found in it: no product of weights that were made of scores")


def _judged(
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
    found = list(weight_findings(evidence))
    numbers, by_hand = evidence, any(each.property in BY_HAND for each in found)
    if is_only:
        found, numbers = confirmed(invocation, evidence, found, _fresh(invocation, 77))
    yield from found
    if any(each.property in ("softmax-over-keys", "weights-are-numbers") for each in found):
        return
    yield from mask_findings(numbers)
    yield from _mixed_heads(evidence)
    if evidence.base.instance.run.additive:
        message = "w . f(q + k): queries and keys are added, not multiplied (additive attention)"
        yield Finding("design", "additive-scores", "scores", message, evidence.base.instance.scores_location)
    elif all(each.kind == "holds" for each in found) and not evidence.base.instance.are_scores_mixed:
        fit = fit_scores(numbers)
        if fit is not None:
            for each in score_findings(numbers, fit):
                is_scale = each.kind == "violation" and each.property == "scale"
                yield (scale_design(invocation, evidence, fit) if is_scale else None) or each
    if not evidence.base.instance.run.additive:
        learned = list(relative_logit_findings(invocation, evidence))
        yield from learned or position_findings(evidence)
    yield from projected_once(evidence)
    by_hand = by_hand or numbers is not evidence
    if evidence.base.streams == tuple(evidence.roles) and not by_hand:
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


def _evidence(
    instance: AttentionInstance,
    influence: Influence,
    streams: list[str],
    fresh: Trace,
    equal: Trace | None,
    invocation: Invocation,
) -> Evidence:
    base = table_of(instance, influence, streams)
    made = _evidence_of(invocation)(base, base.of_run(fresh))
    made = replace(made, num_tokens=_num_tokens(base, influence))
    is_same = equal is not None and not equal.error and equal.same_operations(influence.base)
    return replace(made, equal=base.of_run(equal)) if is_same and equal is not None else made


def _evidence_of(invocation: Invocation) -> Callable[[AttentionTable, AttentionTable], Evidence]:
    """What makes evidence of the tables of a call and of the same with all tokens drawn anew."""
    return lambda base, fresh: Evidence(
        base,
        fresh,
        None,
        any(_hides(value) for name, value in invocation.arguments.items() if name not in _streams(invocation)),
        {each.role: _may_be_none(invocation, each.argument) for each in invocation.streams},
        _says_causal(invocation.target),
        {each.argument: each.role for each in invocation.streams},
        0,
    )


def _num_tokens(base: AttentionTable, influence: Influence) -> int:
    """How many tokens queries and keys are of; 0 where these are not as many."""
    counts = Counter(source.stream for source, _ in influence.runs if source.kind == "token")
    read = {*base.query.stream.tolist(), *base.key.stream.tolist()}
    several = {counts[base.streams[each]] for each in read if each >= 0}
    return several.pop() if len(several) == 1 else 0


def _says_causal(target: Any) -> bool:
    kind = type(target) if isinstance(target, nn.Module) else target
    return re.search("causal|autoregress", f"{getattr(kind, '__name__', '')} {inspect.getdoc(kind)}", re.I) is not None


def _may_be_none(invocation: Invocation, name: str) -> bool:
    target = invocation.target
    call = target.forward if isinstance(target, nn.Module) else target
    try:
        parameter = inspect.signature(call).parameters[name]
    except (ValueError, TypeError, KeyError):
        return False
    return parameter.default is None or re.search("Optional|None", str(parameter.annotation)) is not None


def _hides(mask: Any) -> bool:
    """Whether it is a mask, or lengths, that are not the same for all."""
    if not isinstance(mask, Tensor) or mask.numel() < 2 or mask.is_complex():
        return False
    if not bool((mask != mask.flatten()[0]).any()):
        return False
    return not mask.is_floating_point() or not bool(((mask > HIDDEN) & (mask != 0) & (mask != 1)).any())


def _streams(invocation: Invocation) -> set[str]:
    return {each.argument for each in invocation.streams}


def _unasked(invocation: Invocation, *, are_tried: bool) -> Iterator[Finding]:
    """Masks that were not tried."""
    names = [*invocation.masks, *invocation.causal_flags, *invocation.lengths, *invocation.documents]
    if not names:
        message = "no mask argument: masking by an argument not exercised"
        yield Finding("open", "no-mask-argument", "mask", message)
    elif not are_tried:
        yield Finding("open", "mask-open", "mask", f"{', '.join(names)}: not exercised")


def _fresh(invocation: Invocation, seed: int) -> dict[str, Any]:
    """All tokens drawn anew."""
    arguments = dict(invocation.arguments)
    generator = torch.Generator().manual_seed(seed)
    for stream in invocation.streams:
        tensor = arguments[stream.argument]
        if tensor.is_floating_point():
            arguments[stream.argument] = torch.randn(tensor.shape, generator=generator, dtype=tensor.dtype)
        else:
            arguments[stream.argument] = other_ids(tensor, int(invocation.sizes.get("vocab", 0)), generator)
    return arguments


def _equal(invocation: Invocation) -> dict[str, Any]:
    """The first token in the place of all tokens of its sample."""
    arguments = dict(invocation.arguments)
    for stream in invocation.streams:
        tensor = arguments[stream.argument]
        for axis in stream.token_axes:
            tensor = tensor.narrow(axis, 0, 1).expand(tensor.shape)
        arguments[stream.argument] = tensor.clone()
    return arguments
