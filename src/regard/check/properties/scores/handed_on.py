"""A bias of positions that one attention computes and hands on: the others add that, and not its weights, nor nothing.

Raffel et al. 2020, "Exploring the Limits of Transfer Learning" (arXiv:1910.10683), section 2.1: "we share the position
embedding parameters across all layers".
"""

from __future__ import annotations

import inspect
import re
from collections.abc import Iterator, Sequence
from typing import Any

import torch
from torch import Tensor, nn
from torch.utils._pytree import tree_leaves

from regard.check.properties.finding import Evidence, Finding
from regard.check.properties.scores.bias import added_to_scores
from regard.check.target import Invocation
from regard.check.target.errors import Failed
from regard.check.target.preparation import copied
from regard.check.trace.operation import TensorRecord

__all__ = ["dropped_bias_findings", "handed_on_findings"]


_BIAS = re.compile(
    r"(?!.*mask)(?:\w*bias\w*|(?:rel\w*|alibi)_?(?:pos\w*|emb\w*)?|pos\w*_(?:emb\w*|enc\w*|score\w*))", re.I
)
"""The name of an argument for what depends on positions and is added to the scores."""
LARGEST = 1e3
"""Of a bias: larger numbers are masks."""
SMALLEST = 1e-7


def dropped_bias_findings(invocation: Invocation, several: Sequence[Evidence]) -> Iterator[Finding]:
    """A bias of positions that the first attention returns and no other of its kind is given, though each takes one.

    Args:
        invocation: the call of a model.
        several: the evidence of its attentions.
    """
    several = _alike(several)
    target, modules = invocation.target, [each.base.instance.module for each in several]
    if not isinstance(target, nn.Module) or len({*modules}) < 2 or len({*modules}) != len(modules):
        return
    kinds = {type(target.get_submodule(each)) for each in modules}
    biases = [_bias_of(each) for each in several]
    if len(kinds) > 1 or biases[0] is None or any(each is not None for each in biases[1:]):
        return
    names = [each for each in inspect.signature(kinds.pop().forward).parameters if _BIAS.fullmatch(each)]
    calls = _calls(invocation, modules) if names else {}
    first, *others = (calls.get(each) for each in modules)
    if first is None or None in others:
        return
    shape, numbers = biases[0].shape, biases[0].data
    returned = [each for each in tree_leaves(first[1]) if isinstance(each, Tensor)]
    is_returned = any(each.shape == shape and torch.equal(each, numbers) for each in returned)
    lacking = [name for name in names if all(each is not None and each[0].get(name) is None for each in others)]
    if is_returned and lacking:
        message = (
            f"{lacking[0]} is given to none of {', '.join(modules[1:])}: the bias of positions that {modules[0]} "
            "returned is handed on to no other layer, and these have no positions"
        )
        line = next((each for _, record, each in added_to_scores(several[0]) if record is biases[0]), None)
        yield Finding("violation", "bias-handed-on", "bias", message, line, modules[1])


def _alike(several: Sequence[Evidence]) -> list[Evidence]:
    """Those that stand where the first stands in its layer, and attend to the tokens that ask: others need no bias."""

    def place(evidence: Evidence) -> str:
        return re.sub(r"\d+", "", evidence.base.instance.module)

    own = [each for each in several if set(each.base.query.stream.tolist()) == set(each.base.key.stream.tolist())]
    return [each for each in own if place(each) == place(several[0])]


def _bias_of(evidence: Evidence) -> TensorRecord | None:
    """What is added to the scores, is no mask, and differs from key to key; None where nothing is."""
    for _, record, _ in added_to_scores(evidence):
        numbers = record.data
        usual = numbers[numbers.abs() < LARGEST] if numbers.is_floating_point() else numbers[:0]
        if len(usual) and float(usual.max() - usual.min()) > SMALLEST:
            return record
    return None


def _calls(invocation: Invocation, modules: Sequence[str]) -> dict[str, tuple[dict[str, Any], Any]]:
    """The arguments of the first call of each module, and what it returned; none where the model raises."""
    target, found = copied(invocation.target), dict[str, tuple[dict[str, Any], Any]]()
    hooks = []
    for path in modules:
        module = target.get_submodule(path)
        signature = inspect.signature(module.forward)

        def note(
            _: nn.Module,
            args: tuple[Any, ...],
            kwargs: dict[str, Any],
            result: Any,
            path: str = path,
            signature: inspect.Signature = signature,
        ) -> None:
            found.setdefault(path, (dict(signature.bind(*args, **kwargs).arguments), result))

        hooks.append(module.register_forward_hook(note, with_kwargs=True))
    try:
        invocation.run(target=target)
    except Failed:
        return {}
    finally:
        for hook in hooks:
            hook.remove()
    return found


def handed_on_findings(several: Sequence[Evidence]) -> Iterator[Finding]:
    """A line that adds positions to the scores of one attention, and the weights of another attention to its own.

    Scores of the layer before, added to those of the next (He et al. 2021, "RealFormer"), are no weights.

    Args:
        several: the evidence of the attentions of a call.
    """
    if len(several) < 2:
        return
    trace = several[0].base.instance.run.trace
    weights = {
        record.storage: each.base.instance.module
        for each in several
        for softmax in each.base.instance.softmaxes
        for record in softmax.outputs
    }
    names = {stream for each in several for stream in each.roles}
    of_tokens = trace.made_of(trace.arguments[each].storage for each in names if each in trace.arguments)
    added = [(each.base.instance, record, line) for each in several for _, record, line in added_to_scores(each)]
    of_positions = {line for _, record, line in added if line is not None and record.storage not in of_tokens}
    for instance, record, line in added:
        if line in of_positions and record.storage in weights:
            message = (
                f"the weights of {weights[record.storage] or 'another attention'} are added to the scores, where "
                "another attention adds a bias of positions"
            )
            yield Finding("violation", "bias-handed-on", "bias", message, line, instance.module)
            return
