"""Linear attention that is computed chunk by chunk: scores within a chunk, and sums of keys times values between them.

Retention (Sun et al. 2023, section 2.4) and gated linear attention (Yang et al. 2024, section 4) are trained so.
"""

from __future__ import annotations

import inspect
import re
from collections.abc import Iterator, Mapping, Sequence

from torch import Tensor

from regard.check.properties.documentation import documentation_of
from regard.check.properties.finding import Finding
from regard.check.roles.contractions import Contraction
from regard.check.roles.influence import record_invocation
from regard.check.roles.instances import AttentionInstance
from regard.check.target import Invocation
from regard.check.target.preparation import modules_in
from regard.check.target.told_numbers import numbers_told
from regard.check.trace.operation import Trace

__all__ = ["NON_LINEAR", "chunkwise"]

CHUNK = re.compile(r"_*(?:chunk|block|segment)(?:_?(?:size|len|length))?")
"""Names of how many tokens a chunk has."""
SAME_AS_ONE = re.compile(
    r"\b(?:equals?|equivalent|identical|same)\b[^.;]*\b(?:parallel|recurrent|quadratic|chunk(?: size)?s?)\b"
    r"|\b(?:any|every|each|all) chunk[- _]?(?:size|length)s?\b|\bindependent of the (?:size of the )?chunks?\b",
    re.I,
)
"""In a documentation: the chunks are a way to compute it. Of others, chunks may be a part of what is meant."""
NON_LINEAR = frozenset({"exp", "exp2", "relu", "gelu", "silu", "pow", "sigmoid", "tanh"})
TOLERANCE = 1e-6
"""Of the largest number of the output."""


def chunkwise(
    instances: Sequence[AttentionInstance], over_tokens: Sequence[Sequence[bool]], invocation: Invocation, base: Trace
) -> Finding | None:
    """What attentions are of which some multiply keys by values, and others the same queries by the same keys.

    With one chunk for all tokens it has to give the same.

    Args:
        instances: the attentions of a call.
        over_tokens: for each of them, which of its scores sum over tokens.
        invocation: the call.
        base: its run.

    Returns:
        None where they are no linear attention in chunks; a finding that is open where this cannot be asked.
    """
    both = list(zip(instances, over_tokens, strict=True))
    between = [each for each, over in both if over and all(over)]
    within = [each for each, over in both if over and not any(over)]
    if not between or not within or len(between) + len(within) < len(instances):
        return None
    if any(each.softmaxes or NON_LINEAR & {name.rstrip("_") for name in each.steps} for each in instances):
        return None
    known = [_made_of(each) for each in within]
    if not all(any(_made_of(each) <= one for one in known) for each in between):
        return None
    line = between[0].sums_location
    for name, chunk, whole in _in_one_chunk(invocation, base):
        gap = float((base.outputs[0].data - whole).abs().max())
        if gap <= TOLERANCE * float(whole.abs().max()):
            message = (
                "scores within a chunk and sums of keys times values between chunks (linear attention in chunks), the "
                "same as in one chunk"
            )
            return Finding("design", "chunkwise", "scores", message, line)
        if SAME_AS_ONE.search(" ".join(documentation_of(invocation.target).split())):
            message = f"with {name}={chunk} the output differs by up to {gap:.3g} from that of all tokens in one chunk"
            return Finding("violation", "chunks-joined", "mask", message, line)
    message = "linear attention in chunks, whose output was not found to be that of one chunk: not judged"
    return Finding("open", "chunkwise", "scores", message, line)


def _made_of(instance: AttentionInstance) -> set[int]:
    """The projections that queries, keys and values are made of."""
    run = instance.run

    def owners(several: Sequence[Contraction], places: Sequence[tuple[int, int]]) -> Iterator[int]:
        own = {each.operation.index for each in several}
        for index, number in places:
            yield from run.owner_of(run.tags.inputs[index][number]) - own

    factors = [place for each in instance.scores for place in each.places]
    values = [instance.values_place(each) for each in instance.sums]
    return {*owners(instance.scores, factors), *owners(instance.scores, values)}


def _in_one_chunk(invocation: Invocation, base: Trace) -> Iterator[tuple[str, int, Tensor]]:
    """The name and the number of tokens of a chunk, and what is returned with one that has all tokens."""
    tokens = max(
        int(invocation.arguments[each.argument].shape[axis]) for each in invocation.streams for axis in each.token_axes
    )
    if not base.outputs:
        return
    try:
        called = getattr(invocation.target, "forward", invocation.target)
        parameters: Mapping[str, inspect.Parameter] = inspect.signature(called).parameters
    except (ValueError, TypeError):
        parameters = {}
    for name, value in numbers_told(invocation):
        if name in parameters and CHUNK.fullmatch(name) and value < tokens:
            run = record_invocation(invocation, {**invocation.arguments, name: tokens})
            yield from ((name, value, each) for each in _others(run, base))
    for owner in modules_in(invocation.target):
        for module in owner.modules():
            for name, value in [*vars(module).items()]:
                if not CHUNK.fullmatch(name) or type(value) is not int or value >= tokens:
                    continue
                setattr(module, name, tokens)
                try:
                    run = record_invocation(invocation)
                finally:
                    setattr(module, name, value)
                yield from ((name, value, each) for each in _others(run, base))


def _others(run: Trace, base: Trace) -> Iterator[Tensor]:
    """What a run returned that took other steps, or tensors of other shapes, and gave something of the same shape."""
    if run.error or not run.outputs or run.outputs[0].shape != base.outputs[0].shape:
        return
    shapes = [[[record.shape for record in each.outputs] for each in trace] for trace in (run, base)]
    if shapes[0] != shapes[1] and bool(run.outputs[0].data.isfinite().all()):
        yield run.outputs[0].data
