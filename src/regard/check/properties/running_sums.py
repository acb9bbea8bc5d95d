"""Causal linear attention: queries meet sums of keys times values that run over the tokens."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

import torch
from torch import Tensor

from regard.check.location import CodeLocation
from regard.check.properties.finding import Finding
from regard.check.properties.saturation import ZERO_WEIGHT
from regard.check.roles.influence import record_invocation
from regard.check.roles.instances import TaggedRun
from regard.check.roles.owners import are_of_own_tokens
from regard.check.target import Invocation
from regard.check.trace.operation import Operation, TensorRecord, Trace, axis_of, reached

__all__ = ["running_state_findings", "running_sum_findings"]

SUM_TOLERANCE = 1e-4
"""Of the weights of a query: a small number in its denominator is larger beside its small features."""

DIVIDED = 0.05
"""How far from 1 the weights of a query sum that are divided by something else than their sum."""

SEVERAL = 0.2
"""The share of queries: of a few the sum may be next to nothing, so that a small number beside it is not."""

BOUNDING = frozenset({"abs", "clamp", "clamp_", "clamp_min", "max", "maximum"})
"""Operations of a denominator that is bounded on purpose, as in mLSTM (Beck et al. 2024, "xLSTM", section 2.3)."""

OF_SUMS = frozenset({"add", "bmm", "clone", "clamp", "cumsum", "mm", "mul", "sum", "_unsafe_view"})
"""Operations that make the sum of a query's weights of sums of keys."""

OF_BOTH_SIGNS = frozenset({"cos", "sin"})
"""Random features whose products are positive on average alone."""


@dataclass(frozen=True)
class _Sum:
    """A sum of keys times values that runs over the tokens."""

    operation: Operation
    axis: int
    factors: tuple[TensorRecord, TensorRecord]


def running_sum_findings(invocation: Invocation, run: TaggedRun) -> Iterator[Finding]:
    """What is found of the weights of such an attention, read off its output for values of ones.

    Katharopoulos et al. 2020, "Transformers are RNNs": out_i = phi(q_i) S_i / (phi(q_i) z_i).
    """
    trace = run.trace
    is_of_several = all(invocation.tokens_of(each) > 1 for each in invocation.streams)
    for each in _sums(trace):
        line = each.operation.location
        if is_of_several and are_of_own_tokens(invocation, trace, (each.operation.index, 0), output=True):
            message = (
                "the sums of keys times values run over another axis than that of the tokens: each is of one token, "
                "and no query reads another token than its own"
            )
            yield Finding("violation", "running-sums-of-tokens", "masked", message, line)
            return
        for values in each.factors:
            weights = _weights(invocation, trace, each, values)
            if weights is None:
                continue
            if not float((weights.sum(-1) - 1).abs().max()) <= SUM_TOLERANCE:  # NaN, of keys that are zero, as well
                continue
            is_positive = not any(one.name in OF_BOTH_SIGNS for one in trace)
            yield from _of_weights(weights, line, is_positive=is_positive)
            return
        for keys, values in (each.factors, each.factors[::-1]):
            if (divided := _divided(trace, each.operation, keys)) is None:
                continue
            weights = _weights(invocation, trace, each, values)
            if weights is not None and (total := _other_sum(weights)) is not None:
                message = f"what a query reads is divided, and its weights sum to {total:.4g}, not to 1"
                yield Finding("violation", "weights-sum-to-one", "weights", message, divided.location)
                return
        for keys, values in (each.factors, each.factors[::-1]):
            if (multiplied := _multiplied(trace, each.operation, keys)) is None:
                continue
            weights = _weights(invocation, trace, each, values)
            if weights is not None and _other_sum(weights) is not None:
                message = "what a query reads is multiplied by the sum of its weights, not divided by it"
                yield Finding("violation", "weights-sum-to-one", "weights", message, multiplied.location)
                return
        unused = next((one for keys in each.factors if (one := _unused_sum(trace, keys)) is not None), None)
        if unused is not None:
            message = "the sum of the keys so far is computed and not used: no query is divided by its weights' sum"
            yield Finding("violation", "weights-sum-to-one", "weights", message, unused.location)
            return
        message = "queries meet sums of keys times values that run over the tokens (linear attention, not divided)"
        yield Finding("design", "linear-attention", "scores", message, line)
        return


def running_state_findings(invocation: Invocation, run: TaggedRun) -> Iterator[Finding]:
    """The same of sums that are made in a loop, one token after the other: what is read of values that are all 1.

    Args:
        invocation: the call.
        run: of it.
    """
    trace, stream = run.trace, next(iter(invocation.streams), None)
    if stream is None or len(stream.token_axes) != 1:
        return
    steps = _steps(trace)
    read = _read(trace, trace.operations[steps[-1][0]]) if steps else None
    if len(steps) != invocation.tokens_of(stream) or read is None:
        return
    line = trace.operations[steps[-1][0]].location
    for side in range(2):
        values = [_maker(trace, index, factors[side]) for index, factors in steps]
        ones = {each.index: torch.ones_like(each.outputs[0].data) for each in values if each is not None}
        again = record_invocation(invocation, frozen=ones) if len(ones) == len(steps) else trace
        if again.error or len(again) != len(trace):
            continue
        output = again.taken(read).data if read[0] >= 0 else again.outputs[0].data
        if float((output - 1).abs().max()) <= SUM_TOLERANCE:
            message = (
                "queries meet sums of keys times values that a loop makes over the tokens (causal linear attention)"
            )
            yield Finding("design", "linear-attention", "scores", message, line)
            return


def _steps(trace: Trace) -> list[tuple[int, tuple[TensorRecord, TensorRecord]]]:
    """Of each step of a loop the sum to which a product of two vectors is added, and the two: each by each number."""
    made: dict[int, Operation] = {}
    states = dict[int, int]()
    found: list[tuple[int, tuple[TensorRecord, TensorRecord]]] = []
    for operation in trace:
        if operation.name.rstrip("_") == "add" and len(operation.inputs) == 2:
            for state, added in (operation.inputs, operation.inputs[::-1]):
                product = made.get(added.storage)
                is_outer = product is not None and all(each.shape != added.shape for each in product.inputs)
                if product is None or not is_outer or state.shape != added.shape:
                    continue
                if found and states.get(state.storage) != len(found):
                    found.clear()
                found.append((product.index, (product.inputs[0], product.inputs[1])))
                states[operation.outputs[0].storage] = len(found)
                break
        if operation.name == "mul" and len(operation.inputs) == 2:
            made[operation.outputs[0].storage] = operation
    return found


def _of_weights(weights: Tensor, line: CodeLocation | None, *, is_positive: bool) -> Iterator[Finding]:
    if is_positive and float(weights.min()) < -ZERO_WEIGHT:
        message = f"weights are negative, down to {float(weights.min()):.3g}: the features of queries and keys are"
        yield Finding("violation", "weights-not-negative", "weights", message, line)
        return
    message = "queries meet sums of keys times values that run over the tokens (causal linear attention)"
    yield Finding("design", "linear-attention", "scores", message, line)


def _sums(trace: Trace) -> Iterator[_Sum]:
    """Every sum that runs over an axis of products of two vectors, each number of one with each of the other."""
    made: dict[int, Operation] = {}
    for operation in trace:
        if operation.name == "cumsum" and (product := made.get(operation.inputs[0].storage)) is not None:
            factors = product.inputs[:2]
            axis = axis_of(operation.function, operation.args, operation.kwargs)
            shape = operation.inputs[0].shape
            is_outer = len(factors) == 2 and all(each.data.ndim == len(shape) for each in factors)
            if axis is not None and is_outer and all(each.shape != shape for each in factors):
                yield _Sum(operation, axis % len(shape), (factors[0], factors[1]))
        if not operation.is_view:
            made.pop(operation.outputs[0].storage if operation.outputs else -1, None)
            if operation.name == "mul":
                made[operation.outputs[0].storage] = operation


def _weights(invocation: Invocation, trace: Trace, each: _Sum, values: TensorRecord) -> Tensor | None:
    """(samples, queries, keys): what becomes of values of ones at one token; None where channels differ."""
    made = _maker(trace, each.operation.index, values)
    read = _read(trace, each.operation)
    stream = invocation.streams[0]
    if made is None or read is None or stream.batch_axis != 0 or stream.token_axes != (1,):
        return None
    samples, tokens = invocation.arguments[stream.argument].shape[:2]
    found = []
    for token in range(tokens):
        alone = torch.zeros_like(values.data)
        if alone.shape[each.axis] != tokens:
            return None
        alone.select(each.axis, token).fill_(1.0)
        run = record_invocation(invocation, frozen={made.index: alone.view(made.outputs[0].shape)})
        if run.error or len(run) != len(trace):
            return None
        output = run.taken(read).data if read[0] >= 0 else run.outputs[0].data
        if output.numel() % (samples * tokens):
            return None
        found.append(output.reshape(samples, tokens, -1).double())
    weights = torch.stack(found, -1)  # (samples, queries, channels, keys)
    return weights.movedim(2, 1).flatten(0, 1)


def _other_sum(weights: Tensor) -> float | None:
    """What the weights of a query sum to, where those of several sum to another number than 1; else None.

    Args:
        weights: (samples times channels, queries, keys); the channels of a head have the same, or they are none.
    """
    alike = len(torch.unique(weights.round(decimals=6), dim=0))
    excess = (weights.sum(-1) - 1).abs()
    if 2 * alike > len(weights) or not bool((excess > DIVIDED).double().mean() > SEVERAL):
        return None
    return float(weights.sum(-1).flatten()[excess.argmax()])


def _divided(trace: Trace, running: Operation, keys: TensorRecord) -> Operation | None:
    """The division of what queries read by a number that is made of keys alone; None where there is none."""
    read, of_keys = trace.made_of({running.outputs[0].storage}), trace.made_of({keys.storage})
    for operation in trace.operations[running.index + 1 :]:
        if operation.name.rstrip("_") != "div" or len(operation.inputs) != 2:
            continue
        above, below = (each.storage for each in operation.inputs)
        if above in read and below in of_keys - read:
            made = [each for each in trace.operations[: operation.index] if each.outputs]
            is_bounded = any(each.name in BOUNDING and each.outputs[0].storage in of_keys for each in made)
            return None if is_bounded else operation
    return None


def _multiplied(trace: Trace, running: Operation, keys: TensorRecord) -> Operation | None:
    """The product of what queries read with one number of each, the sum of the keys so far times the query; else None.

    A number that is one over that sum, or another function of it, is none of these.
    """
    sums = {
        each.outputs[0].storage for each in trace if each.name == "cumsum" and each.inputs[0].storage == keys.storage
    }
    read, totals = trace.made_of({running.outputs[0].storage}), trace.made_of(sums)
    for operation in trace.operations[running.index + 1 :]:
        if operation.name.rstrip("_") != "mul" or len(operation.inputs) != 2:
            continue
        for what, factor in (operation.inputs, operation.inputs[::-1]):
            is_total = factor.storage in totals - read and factor.shape[-1:] == (1,) and factor.shape != what.shape
            if what.storage in read - totals and is_total:
                makers = [each for each in trace.operations[: operation.index] if each.outputs]
                made = [each for each in makers if each.outputs[0].storage in totals - read]
                is_sum = all(each.is_view or each.name.rstrip("_") in OF_SUMS for each in made)
                return operation if is_sum else None
    return None


def _maker(trace: Trace, before: int, record: TensorRecord) -> Operation | None:
    """The last operation whose output a tensor is, or which has the same numbers of the same memory."""
    for operation in reversed(trace.operations[:before]):
        for made in operation.outputs[:1]:
            is_same = made.storage == record.storage and made.offset == record.offset
            if is_same and made.data.numel() == record.data.numel():
                return operation
    return None


def _read(trace: Trace, after: Operation) -> tuple[int, int] | None:
    """Where the first matrix after an operation takes what was made of it; the output of the whole is (-1, 0)."""
    reached = trace.made_of({after.outputs[0].storage})
    for operation in trace.operations[after.index + 1 :]:
        for number, each in enumerate(operation.inputs):
            beside = [one for one in operation.inputs if one is not each]
            is_projected = any(one.learned and one.data.ndim == 2 for one in beside)
            if operation.name in ("mm", "addmm", "bmm") and each.storage in reached and is_projected:
                return operation.index, number
    return (-1, 0) if trace.outputs and trace.outputs[0].storage in reached else None


def _unused_sum(trace: Trace, keys: TensorRecord) -> Operation | None:
    """A running sum of the keys of which nothing is made that is returned, or written into what was there before."""
    for operation in trace:
        if operation.name != "cumsum" or operation.inputs[0].storage != keys.storage:
            continue
        new = {each.outputs[0].storage for each in trace if each.outputs}
        made = reached({operation.outputs[0].storage}, trace.operations[operation.index + 1 :])
        is_kept = any(each.storage in made - new for later in trace for each in later.written)
        if not is_kept and not any(each.storage in made for each in trace.outputs):
            return operation
    return None
