"""Weights of channels by channels: what their softmax runs over, and what queries and keys are normalized over."""

from __future__ import annotations

import re
from collections.abc import Iterator, Sequence

import torch
from torch import Tensor, nn

from regard.check.properties.documentation import name_and_documentation
from regard.check.properties.finding import Finding
from regard.check.properties.scores.norm_axes import crossed_norm_finding, shared_norm_finding
from regard.check.roles.instances import AttentionInstance
from regard.check.target import Invocation
from regard.check.target.argument import source_of
from regard.check.target.classes import own_classes

__all__ = ["channel_weight_findings", "weight_sum_finding"]

TOLERANCE = 1e-6
_OF_CHANNELS = re.compile(
    r"channel|covarian|xca\b|spectral|spectrum|mdta|transposed|variate|variable|inverted|\bgram|frequenc|efficient"
    r"|linear[\s_-]?att|features?[\s_-]?(?:attention|attn|wise|maps?)|slices?\b|regions?\b"
    r"|spatial|sensor|modalit"
    r"|(?:over|across|between|among|of) (?:the |all )*(?:features|embeddings?|hidden|dimensions)",
    re.I,
)
"""How code says that it means channels, or whatever else is not the tokens."""


def channel_weight_findings(instances: Sequence[AttentionInstance], invocation: Invocation) -> Iterator[Finding]:
    """Whether the weights of each weighted sum sum to 1, where they are what a softmax made of the scores.

    And whether anything says that it attends to channels: q.T @ k for q @ k.T runs as well. Queries and keys that are
    normalized are over one axis.

    El-Nouby et al. 2021, "XCiT: Cross-Covariance Image Transformers", section 3.2. What is changed after the softmax,
    as weights that are gated or mixed, is left out.

    Args:
        instances: whose scores are sums over the tokens.
        invocation: their call.
    """
    is_meant = any(len(each.token_axes) != 1 for each in invocation.streams) or _says_channels(invocation.target)
    are_known = bool(instances)
    for instance in instances:
        crossed = crossed_norm_finding(instance) or shared_norm_finding(instance)
        if crossed is not None:
            yield crossed
            return
        sums = _sums_of_weights(instance)
        are_known = are_known and sums is not None
        if sums is not None and not is_meant:
            message = (
                "scores are sums over the tokens, one for each two channels, as of q.T @ k: no token attends to "
                "another, and nothing says that it is the channels that attend to each other"
            )
            yield Finding("violation", "attends-to-tokens", "scores", message, instance.scores_location)
            return
        found = weight_sum_finding(instance, "channel", "channels")
        if found is not None:
            yield found
            return
    if are_known:
        message = "over the channels that a channel reads: none negative, sum 1"
        yield Finding("holds", "softmax-over-keys", "weights", message, instances[0].softmaxes[0].location)


def weight_sum_finding(instance: AttentionInstance, asks: str, read: str) -> Finding | None:
    """Weights that a softmax made, and that do not sum to 1 where they are summed over; None where they do.

    Args:
        instance: an attention.
        asks: what it is that reads, in the singular.
        read: what it reads, in the plural.
    """
    sums = _sums_of_weights(instance)
    if sums is None or float((sums - 1).abs().max()) <= TOLERANCE:
        return None
    worst = float(sums.flatten()[(sums - 1).abs().argmax()])
    message = f"the weights of a {asks} sum to {worst:.4g} over the {read} that it reads: the softmax runs over others"
    line = instance.softmaxes[0].location or instance.sums_location
    return Finding("violation", "softmax-over-keys", "weights", message, line)


def _says_channels(target: object) -> bool:
    """Whether the code of a function, or of a module and those in it, names them, or its documentation does."""
    several = list(target.modules()) if isinstance(target, nn.Module) else [target]
    several = [each for each in several if not type(each).__module__.startswith("torch.")]  # a norm's speaks of them
    texts = [name_and_documentation(each) for each in several] + [source_of(target)]
    kinds = {kind for each in several if isinstance(each, nn.Module) for kind in own_classes(type(each))}
    texts += map(source_of, kinds)
    return any(map(_OF_CHANNELS.search, texts))


def _sums_of_weights(instance: AttentionInstance) -> Tensor | None:
    """(weighted sums): the sum of the weights of each; None where these are not what a softmax returned."""
    run, found = instance.run, list[Tensor]()
    softmax_of = torch.full((run.num_tags + 1,), torch.nan, dtype=torch.float64)
    for operation in instance.softmaxes:
        softmax_of[run.tags.outputs[operation.index][0].flatten()] = operation.outputs[0].data.flatten().double()
    for each in instance.sums:
        index, number = instance.weights_place(each)
        weights = run.trace.operations[index].inputs[number].data.flatten().double()
        if not torch.equal(softmax_of[run.tags.inputs[index][number].flatten()], weights):
            return None
        found.append(weights[instance.weight_terms(each)].sum(-1))
    return torch.cat(found) if found else None
