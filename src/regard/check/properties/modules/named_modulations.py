"""Parts of a condition by their names: a shift is added, a scale multiplies, and a gate stands behind its own sublayer.

Peebles and Xie 2022, "Scalable Diffusion Models with Transformers" (arXiv:2212.09748), section 3.2.
"""

from __future__ import annotations

import ast
import linecache
import re
from collections.abc import Iterator, Sequence
from typing import Any

from regard.check.location import CodeLocation
from regard.check.properties.finding import Finding
from regard.check.properties.modules.gated_streams import normed_by, products_of, splits_in
from regard.check.properties.modules.modulations import is_of, numbers_of
from regard.check.roles.instances import AttentionInstance, TaggedRun
from regard.check.trace.operation import Operation, TensorRecord, Trace

__all__ = ["named_modulation_findings"]

_KINDS = {"shift": re.compile("shift", re.I), "scale": re.compile("scale", re.I), "gate": re.compile("gate", re.I)}
_OF_ATTENTION = re.compile(r"(?:^|_)(?:msa|mha|sa|attn?|attention)\d*(?:_|$)", re.I)
_OF_NETWORK = re.compile(r"(?:^|_)(?:mlp|ffn?|feed_?forward)\d*(?:_|$)", re.I)


def named_modulation_findings(target: Any, run: TaggedRun, instances: Sequence[AttentionInstance]) -> Iterator[Finding]:
    """A scale that is added or a shift that multiplies a norm, where another one does what its name says.

    Or the gate of the network behind the attention, by the names of both. The names alone would say nothing: the parts
    of one half are used in another order than those of the other half, too.

    Args:
        target: what was called.
        run: the run.
        instances: its attentions.
    """
    trace = run.trace
    for split in splits_in(trace):
        names = _names(split.location, len(split.outputs))
        if not names:
            continue
        normed, _ = normed_by(target, trace)
        kinds = [_kind(trace, split, each, normed) for each in split.outputs]
        told = [next((kind for kind, word in _KINDS.items() if word.search(name)), "") for name in names]
        pairs = [(name, mine, said) for name, mine, said in zip(names, kinds, told, strict=True) if mine and said]
        others = [(name, mine, said) for name, mine, said in pairs if mine != said]
        if len(others) == 2 and len(pairs) > 2 and {each[1] for each in others} == {each[2] for each in others}:
            (one, mine, _), (other, its, _) = others
            message = f"{one} is used as a {mine} and {other} as a {its}, and the others are used as their names say"
            yield Finding("violation", "modulations-used", "block", message, split.location)
            return
        crossed = [
            name
            for name, part in zip(names, split.outputs, strict=True)
            if _is_of_other(run, split, part, name, instances)
        ]
        if len(crossed) == 1:
            message = f"{crossed[0]} multiplies what the attention returned, and by its name it is of the network"
            yield Finding("violation", "modulations-used", "block", message, split.location)
            return


def _names(location: CodeLocation | None, count: int) -> list[str]:
    """The names that a line gives to the parts; none where it gives them others."""
    if location is None:
        return []
    try:
        tree = ast.parse("".join(linecache.getlines(location.file)))
    except SyntaxError:
        return []
    for each in ast.walk(tree):
        if isinstance(each, ast.Assign) and each.lineno <= location.line <= (each.end_lineno or 0):
            targets = each.targets[0]
            several = targets.elts if isinstance(targets, ast.Tuple) else []
            if len(several) == count and all(isinstance(one, ast.Name) for one in several):
                return [one.id for one in several if isinstance(one, ast.Name)]
    return []


def _kind(trace: Trace, split: Operation, part: TensorRecord, normed: set[int]) -> str:
    """What is done with a part: it scales a norm, is added to what was scaled, or multiplies anything else."""
    products = products_of(trace, split, part)
    if len(products) == 1:
        return "scale" if products[0].given.storage in normed else "gate" if products[0].is_plain else ""
    numbers = numbers_of(part)
    added = [
        each
        for each in trace.operations[split.index + 1 :]
        if each.is_addition
        and [is_of(one, part, numbers, False) for one in each.inputs].count(True) == 1
        and each.outputs[0].data.numel() > part.data.numel()
    ]
    return "shift" if not products and len(added) == 1 else ""


def _is_of_other(
    run: TaggedRun, split: Operation, part: TensorRecord, name: str, instances: Sequence[AttentionInstance]
) -> bool:
    """Whether a gate that is named after the network multiplies what an attention returned alone."""
    if len(instances) != 1 or not _OF_NETWORK.search(name) or not _KINDS["gate"].search(name):
        return False
    if _OF_ATTENTION.search(name):
        return False
    alone = {each.operation.outputs[0].storage for each in instances[0].sums}
    for operation in run.trace.operations[instances[0].sums[-1].operation.index + 1 :]:
        are_its = [each.storage in alone for each in operation.inputs]
        is_total = operation.is_addition and not all(are_its) and min(each.data.ndim for each in operation.inputs) > 1
        if any(are_its) and not is_total:
            alone.update(each.storage for each in (*operation.outputs, *operation.written))
    return any(each.given.storage in alone for each in products_of(run.trace, split, part))
