"""What a recipe calls a mistake and is none, as the properties of the same code show."""

from __future__ import annotations

from collections.abc import Sequence
from collections.abc import Set as AbstractSet
from dataclasses import replace

from regard.check.mistakes.catalog import MISTAKES
from regard.check.properties.analysis import Analysis, said_by
from regard.check.properties.masks.settings import is_of_another_setting
from regard.check.properties.unused_arguments import is_said_unused
from regard.check.report.findings import Findings
from regard.check.target import Invocation
from regard.check.target.cache_forms import parameters_of
from regard.check.target.names import call_meaning

__all__ = ["may_read_context", "without_excused"]

AROUND = frozenset({"residual-missing"})
"""A mistake of a block: an attention that norms its input leaves the residual to the code that calls it."""
MIXED = frozenset({"batch-mixed", "batch-as-tokens", "absolute-axes"})
"""Mistakes that a property shows by itself: where it holds, the recipe took other axes for the samples."""
OF_TOKENS_APART = frozenset(
    {
        "attends-to-tokens",
        "axes-as-documented",
        "key-of-one-token",
        "output-of-the-token",
        "query-of-one-token",
        "samples-alike",
        "samples-apart",
        "softmax-over-keys",
        "sum-of-one-of-heads",
        "sum-of-one-of-queries",
        "value-of-one-token",
        "value-of-the-key",
        "value-of-the-sample",
    }
)
"""Properties that are violated where samples and tokens are taken for each other."""
WITHOUT_THE_ROOT = frozenset({"no-scale", "scale-multiplied"})
"""Mistakes of a scale that is not 1/sqrt(width) for any sizes; others are where other widths are the same."""
NOTHING_READ = "output-v"
"""A mistake of an output that nothing is read for: where a property saw it, the recipe took values for the output."""
MASKING = frozenset({"mask-dropped", "mask-not-passed"})
"""Mistakes that are none where a mask in another form does hide keys."""
SCALES = frozenset(name for name, each in MISTAKES.items() if each.step == "scaled")
"""Mistakes that are none where something says that the scale is meant."""
WITHOUT_A_SOFTMAX = frozenset({"softmax-missing"})
"""Mistakes that are none of linear attention."""
REMEMBERING = frozenset({"stateful"})
"""Mistakes that are none where a call goes on from the one before, and that is right and can be cleared."""
DECODING = frozenset({"cache-always", "cache-equals-whole"})
BIASES = frozenset({"bias-ignored"})
"""Mistakes that are none where a bias is read by another setting of the module."""
CONTEXT = frozenset({"context-ignored"})
"""Mistakes that are none where a context need not be given: it is for another configuration, as a decoder's."""


def without_excused(searched: Findings, analyses: Sequence[Analysis], *, is_given: bool) -> Findings:
    """What recipes say, less their mistakes where each of them is excused.

    Args:
        searched: it.
        analyses: what the properties say.
        is_given: whether inputs were handed over.
    """
    excused: set[str] = set()
    if analyses and not any(each.has_feed_forward for each in analyses):
        excused |= AROUND
    violated = {each.property for one in analyses for each in one.violations}
    is_found = any(each.num_attentions for each in analyses)
    is_seen = is_found and not violated
    is_batch = is_given or any(each.has_batch for each in analyses)  # else it may not be meant for one
    if is_found and is_batch and not violated & OF_TOKENS_APART:
        excused |= MIXED
    if is_seen and (_is_refuted(searched, analyses) or any(each.is_relaid for each in analyses)):
        excused |= {each.id for each in searched.mistakes}
    if analyses and not violated and _is_context_unused(analyses[0].invocation):
        excused |= CONTEXT
    if analyses and not violated and _is_context_of_another_setting(analyses[0].invocation):
        excused |= CONTEXT | MASKING
    if any(each.step == "scale" for one in analyses for each in one.designs):
        excused |= SCALES
    if said_by(analyses) == "right":
        excused |= _excused_where_right(searched, analyses)
    return _without(searched, excused)


def _is_context_unused(call: Invocation) -> bool:
    """Whether the documentation says of each context that a call may be given that it is not used."""
    names = [name for name in parameters_of(call.target) if call_meaning(name) == "context"]
    return bool(names) and all(is_said_unused(call.target, name) for name in names)


def _is_context_of_another_setting(call: Invocation) -> bool:
    """Whether each context that a call may be given is read by a part alone that was not made, as in an encoder."""
    names = [name for name in parameters_of(call.target) if call_meaning(name) == "context"]
    return bool(names) and all(is_of_another_setting(call, name) for name in names)


def may_read_context(searched: Findings, analyses: Sequence[Analysis]) -> bool:
    """Whether a context without effect is what recipes say, and nothing else is wrong: another setting may read it."""
    is_ignored = any(each.id in CONTEXT for each in searched.mistakes)
    return is_ignored and said_by(analyses) == "right" and not any(each.reads_context for each in analyses)


def _excused_where_right(searched: Findings, analyses: Sequence[Analysis]) -> set[str]:
    """Those that are excused where no property is violated, and all were judged."""
    excused: set[str] = set()
    if any(each.is_in_chunks for each in analyses):
        excused |= SCALES | WITHOUT_A_SOFTMAX
    if {each.property for one in analyses for each in one.findings} >= DECODING:
        excused |= REMEMBERING
    call = analyses[0].invocation
    biases = [name for name in parameters_of(call.target) if call_meaning(name) == "bias"]
    if biases and all(is_of_another_setting(call, name) for name in biases):
        excused |= BIASES
    held = {each.property for one in analyses for each in one.findings if each.kind in ("holds", "open")}
    if held & {"mask-form", "mask-flag", "mask-pattern", "mask-given", "mask-switch"}:
        excused |= MASKING
    if any(each.id in CONTEXT for each in searched.mistakes):
        if not any(each.has_context for each in analyses):
            excused |= CONTEXT | MASKING
        elif any(each.reads_context for each in analyses):
            excused |= CONTEXT
    return excused


def _without(searched: Findings, mistakes: AbstractSet[str]) -> Findings:
    """What a recipe says less some mistakes; without any left, it says nothing."""
    if not searched.mistakes or not all(each.id in mistakes for each in searched.mistakes):
        return searched
    return replace(searched, mistakes=(), measurements=(), example=None, steps=())


def _is_refuted(searched: Findings, analyses: Sequence[Analysis]) -> bool:
    """Whether a property holds that one of the recipe's mistakes violates: it explains another output then."""
    held = {each.property for one in analyses for each in one.findings if each.kind == "holds"}
    refuted = {NOTHING_READ} if "output-of-the-token" in held else set()
    if "scale" in held:
        refuted |= WITHOUT_THE_ROOT
    return any(each.id in refuted for each in searched.mistakes)
