"""Queries and keys that are multiplied channel by channel, and each channel given a softmax of its own."""

from __future__ import annotations

import re
from collections.abc import Iterator
from contextlib import suppress

from torch import nn

from regard.check.properties.documentation import comments_of, name_and_documentation
from regard.check.properties.finding import Evidence, Finding
from regard.check.roles.instances import AttentionInstance
from regard.check.target import Invocation
from regard.check.target.names import constructor_meaning
from regard.check.target.preparation import modules_in, numbers_of
from regard.check.trace.operation import Operation, Trace

__all__ = ["are_of_sums", "unsummed_products"]

MEANT = re.compile(
    r"\bvector (?:self-?)?attention|channel-?wise|(?:per|each|every)[\s-]channel|element-?wise|hadamard",
    re.I,
)


def _owners(outermost: nn.Module, path: str) -> Iterator[nn.Module]:
    """A module, and those on the way to the one that computes the scores: their settings are of these."""
    names = path.split(".") if path else []
    for count in range(len(names) + 1):
        with suppress(AttributeError):
            yield outermost.get_submodule(".".join(names[:count]))


def unsummed_products(invocation: Invocation, evidence: Evidence) -> Finding | None:
    """A violation where nothing says that this is meant; None of scores that are no such products.

    Args:
        invocation: the call.
        evidence: of the attention.
    """
    table = evidence.base
    instance = table.instance
    if not instance.run.additive or instance.scores[0].operation.name != "mul":
        return None
    own = (module for owner in modules_in(invocation.target) for module in _owners(owner, instance.module))
    numbers = [each for module in own for each in numbers_of(module).items()]
    heads = [value for name, value in numbers if constructor_meaning(name) == "heads"]
    text = [name_and_documentation(invocation.target), *comments_of(invocation.target)]
    line = instance.scores_location
    if are_of_sums(instance.run.trace, instance.scores[0].operation) and not any(map(MEANT.search, text)):
        message = (
            "the channels of a query and those of a key are summed apart, and then multiplied: a score is a product "
            "of two sums, as of an einsum with another letter for each, not q . k"
        )
        return Finding("violation", "products-summed", "scores", message, line)
    if table.num_heads > 1 and table.num_heads in heads:
        message = f"each of {table.num_heads} heads has a width of 1, as its settings say: a score is one product"
        return Finding("design", "vector-scores", "scores", message, line)
    if table.num_heads == 1 or any(map(MEANT.search, text)):
        message = "each channel of a query times that of a key is a score by itself (vector attention)"
        return Finding("design", "vector-scores", "scores", message, line)
    if _are_modulated(invocation, instance):
        message = (
            "each channel of a query times that of a key is a score by itself, beside as many channels of the two "
            "tokens' relation (vector attention)"
        )
        return Finding("design", "vector-scores", "scores", message, line)
    message = (
        f"queries and keys are multiplied channel by channel and never summed: each of {table.num_heads} channels has "
        "a softmax of its own"
    )
    return Finding("violation", "products-summed", "scores", message, line)


def _are_modulated(invocation: Invocation, instance: AttentionInstance) -> bool:
    """Whether the products are multiplied by, or added to, what a layer made of as many channels for each two tokens.

    As of the edges of a graph, which are handed over (Vignac et al. 2023, "DiGress"). What is the same for all channels
    says nothing of them, nor does a table of the module's own.
    """
    run, product = instance.run, instance.scores[0].operation
    streams = {each.argument for each in invocation.streams}
    given = run.trace.made_of(each.storage for name, each in run.trace.arguments.items() if name not in streams)
    shape = product.outputs[0].shape
    for each in run.trace.operations[product.index + 1 : instance.sums[0].operation.index]:
        if each.name.rstrip("_") not in ("mul", "add") or len(each.inputs) != 2:
            continue
        for number, other in enumerate(each.inputs[::-1]):
            is_of_scores = run.owner_of(run.tags.inputs[each.index][number]) == {product.index}
            if is_of_scores and other.storage in given and other.shape == each.inputs[number].shape == shape:
                made = run.owner_of(run.tags.inputs[each.index][1 - number]) - {product.index}
                channels = other.data.movedim(-1, 0)
                if made and bool((channels != channels[:1]).any()):
                    return True
    return False


def are_of_sums(trace: Trace, product: Operation) -> bool:
    """Whether both factors are sums that the line of the product makes itself: an einsum sums a letter of one alone.

    A sum on a line of its own may be meant.

    Args:
        trace: a run.
        product: of two factors in it.
    """
    summed = {
        each.outputs[0].storage
        for each in trace.operations[: product.index]
        if each.name == "sum" and each.location == product.location
        if each.outputs[0].data.numel() < each.inputs[0].data.numel()
    }
    return len(product.inputs) == 2 and all(each.storage in summed for each in product.inputs)
