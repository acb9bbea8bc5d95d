"""Calls of an attention whose output no token changes."""

from __future__ import annotations

import math

import torch

from regard.check.location import CodeLocation
from regard.check.properties.evidence import with_fresh_tokens
from regard.check.properties.finding import Finding
from regard.check.properties.scores.unsummed_products import are_of_sums
from regard.check.roles.influence import is_changed, record_invocation
from regard.check.roles.instances import SOFTMAXES, TaggedRun
from regard.check.target import Invocation
from regard.check.target.classes import own_classes, parameters_of
from regard.check.target.preparation import modules_in, numbers_of
from regard.check.trace.operation import Operation, axis_of

__all__ = [
    "constant_output_findings",
    "single_weight_findings",
    "summed_weight_findings",
    "values_apart_findings",
]


def constant_output_findings(invocation: Invocation, run: TaggedRun) -> list[Finding]:
    """That the values which the weights meet are of no token, as places of a cache that nothing was written to.

    Or that not even scores are, as in a model that writes its positions over the vectors of the tokens.

    Args:
        invocation: the call.
        run: of it.
    """
    attends = any(each.name in SOFTMAXES for each in run.trace)
    are_numbers = bool(run.trace.outputs) and all(each.data.is_floating_point() for each in run.trace.outputs)
    if not are_numbers or not (run.bilinear or attends) or not _is_of_several_tokens(invocation, run):
        return []
    other = record_invocation(invocation, with_fresh_tokens(invocation))
    if other.error or not other.same_operations(run.trace):
        return []
    pairs = zip(run.trace.outputs, other.outputs, strict=True)
    if any(is_changed(one.data, two.data) for one, two in pairs):
        return []
    if not run.bilinear:
        message = "no token changes the output: what is attended to is made of none"
        return [Finding("violation", "value-of-the-key", "weighted sum", message)]
    message = "scores are made of the tokens, but no token changes the output: the values are of none"
    return [Finding("violation", "value-of-the-key", "weighted sum", message, _weighted_sum(run))]


def summed_weight_findings(run: TaggedRun) -> list[Finding]:
    """Weights that are added up over their keys before they meet a value, and read by nothing else: each sum is 1.

    As by an einsum that gives the keys one letter in the weights, and another one in the values.

    Args:
        run: in which no weights were found that meet values.
    """
    of_scores = run.trace.made_of({each.operation.outputs[0].storage for each in run.bilinear})
    for softmax in run.trace:
        if softmax.name not in SOFTMAXES or softmax.inputs[0].storage not in of_scores:
            continue
        weights = softmax.outputs[0]
        readers = [
            each
            for each in run.trace.operations[softmax.index + 1 :]
            if not each.is_view and any(one.storage == weights.storage for one in each.inputs)
        ]
        is_returned = any(each.storage == weights.storage for each in run.trace.outputs)
        # One value for all keys, as in a broadcast of what was handed over, has no letter of its own.
        are_values_summed = any(
            each.name == "sum" and each.inputs[0].storage not in of_scores
            for each in run.trace.operations[softmax.index + 1 :]
        )
        if len(readers) != 1 or readers[0].name != "sum" or is_returned:
            continue
        if are_values_summed or _meets_own_values(run, readers[0], of_scores):
            total = readers[0].outputs[0].data
            if total.numel() < weights.data.numel() and bool(torch.isclose(total, torch.ones_like(total)).all()):
                message = (
                    "the weights of a query are added up over its keys, to 1, before they meet a value: whatever the "
                )
                message += "scores are, the output is the same"
                return [Finding("violation", "value-of-the-key", "weighted sum", message, readers[0].location)]
    return []


def _meets_own_values(run: TaggedRun, total: Operation, of_scores: set[int]) -> bool:
    """Whether the einsum that adds the weights up multiplies each sum by a value of the query's own place.

    One that gives the values the letter of the queries, where the weights alone have that of the keys. A value that is
    the same for all queries is as large as the output only where there is one query.

    Args:
        run: of the call.
        total: the sum of the weights.
        of_scores: where what was made of scores lies.
    """
    line, made = total.location, total.outputs[0].storage
    if line is None or "einsum" not in line.text:
        return False
    for product in run.trace.operations[total.index + 1 :]:
        if product.name != "mul" or product.location != line or len(product.inputs) != 2:
            continue
        for one, other in (product.inputs, product.inputs[::-1]):
            is_whole = other.data.numel() == product.outputs[0].data.numel() > one.data.numel()
            if one.storage == made and other.storage not in of_scores and is_whole:
                return True
    return False


def single_weight_findings(invocation: Invocation, run: TaggedRun) -> list[Finding]:
    """A softmax over an axis of one number, beside an axis of the tokens: each weight is 1, whatever the scores are.

    Not where a setting is 1: the axis may be of heads or experts, of which there is one.

    Args:
        invocation: the call.
        run: of it, in which no weights were found that meet values.
    """
    own = [each for outer in modules_in(invocation.target) for each in outer.modules() if own_classes(type(each))]
    defaults = (each.default for part in own for each in parameters_of(type(part)).values())
    settings = [*defaults, *(each for part in own for each in numbers_of(part).values())]
    if not own or any(type(each) is int and each == 1 for each in settings):
        return []
    tokens = {invocation.tokens_of(each) for each in invocation.streams if each.token_axes}
    for softmax in run.trace:
        if softmax.name not in SOFTMAXES:
            continue
        made, axis = softmax.outputs[0], axis_of(softmax.function, softmax.args, softmax.kwargs)
        if axis is None or made.shape[axis] > 1 or not tokens & {*made.shape} - {1}:
            continue
        later = run.trace.operations[softmax.index + 1 :]
        if any(each.name == "mul" and made.storage in {one.storage for one in each.inputs} for each in later):
            message = (
                "the softmax runs over an axis of one number: each weight is 1, whatever the scores are, and the "
                "tokens are summed"
            )
            return [Finding("violation", "softmax-over-keys", "weights", message, softmax.location)]
    return []


def values_apart_findings(run: TaggedRun) -> list[Finding]:
    """Keys and values that an einsum sums with a letter for each, and only then multiplies.

    Args:
        run: in which no weights were found that meet values.
    """
    for product in run.trace:
        line = product.location
        if product.name not in ("mul", "bmm") or line is None or "einsum" not in line.text:
            continue
        if are_of_sums(run.trace, product):
            message = (
                "einsum has a letter for the tokens of one factor and another for those of the other: both are summed "
                "alone, and which value a key stands beside has no effect"
            )
            return [Finding("violation", "values-summed", "weighted sum", message, line)]
    return []


def _is_of_several_tokens(invocation: Invocation, run: TaggedRun) -> bool:
    """Whether it reads a sequence of several tokens; one alone may be shifted out, as behind the token of a start."""
    read = {each.storage for operation in run.trace for each in operation.inputs}
    given = [(each, run.trace.arguments.get(each.argument)) for each in invocation.streams]
    several = [made for each, made in given if made and math.prod(made.shape[axis] for axis in each.token_axes) > 1]
    return any(each.storage in read for each in several)


def _weighted_sum(run: TaggedRun) -> CodeLocation | None:
    """The first product of what was made of scores and something that was not."""
    scores = {each.operation.index for each in run.bilinear}
    made = run.trace.made_of({run.trace.operations[each].outputs[0].storage for each in scores})
    for each in run.products:
        places = each.places
        sides = [run.trace.taken(each).storage in made for each in places]
        if each.operation.index not in scores and sum(sides) == 1:
            return each.operation.location
    return None
