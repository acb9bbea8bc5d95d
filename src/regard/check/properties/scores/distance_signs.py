"""Softmaxes of distances that are computed as such, of which no product of a query and a key shows anything."""

from __future__ import annotations

import re
from collections.abc import Iterator

from torch import Tensor

from regard.check.properties.finding import Finding
from regard.check.roles.instances import SOFTMAXES
from regard.check.trace.operation import Trace

__all__ = ["distance_sign_findings"]

SAME = 1e-9
"""Of the largest score: how far one may be from a number times the distance."""
_FAR = re.compile(r"\bfar(?:thest|ther)?\b|repel|repuls|dissimilar|divers|contrast", re.I)
"""In code whose queries are to read what is unlike them."""
_CDIST = frozenset({"_cdist_forward", "_euclidean_dist"})


def distance_sign_findings(trace: Trace, code: str) -> Iterator[Finding]:
    """A softmax of distances that are not negative: the farthest key weighs most.

    Kim, Papamakarios and Mnih 2021, "The Lipschitz Constant of Self-Attention", section 4: scores are -|q - k|^2.

    Args:
        trace: a run.
        code: the text of what is called.
    """
    if _FAR.search(code):
        return
    distances = list(_distances(trace))
    for operation in trace:
        if operation.name not in SOFTMAXES:
            continue
        scores = operation.inputs[0].data
        for each in distances:
            if each.shape == scores.shape and _slope(scores, each) > 0:
                message = (
                    "scores grow with the distance of query and key: the farthest key weighs most, and one that equals "
                    "the query least"
                )
                yield Finding("violation", "distance-falls", "scores", message, operation.location)
                return


def _distances(trace: Trace) -> Iterator[Tensor]:
    """Distances, or squared ones, of each two rows: of cdist, or summed squares of differences."""
    squares = dict[int, Tensor]()
    pairs = set[int]()
    for operation in trace:
        name, made = operation.name.rstrip("_"), operation.outputs[:1]
        if name in _CDIST:
            yield from (operation.outputs[0].data, operation.outputs[0].data.square())
        elif name == "sub" and len(operation.inputs) == 2:
            sizes = [each.data.numel() for each in operation.inputs]
            if max(sizes) < operation.outputs[0].data.numel():
                pairs.update(each.storage for each in made)
        elif name in ("pow", "square", "mul") and {each.storage for each in operation.inputs} <= pairs and made:
            difference = operation.inputs[0].data
            if made[0].data.equal(difference.square()):
                squares[made[0].storage] = made[0].data
        elif name == "sum" and operation.inputs[0].storage in squares:
            whole, total = squares[operation.inputs[0].storage], operation.outputs[0].data
            if total.shape == whole.shape[:-1]:
                yield total
                yield total.sqrt()


def _slope(scores: Tensor, distances: Tensor) -> float:
    """What distances are multiplied by in scores, of which a number may be taken; 0.0 where there is no such number."""
    live = scores.isfinite()
    one, other = scores[live].double(), distances[live].double()
    if len(one) < 2:
        return 0.0
    one, other = one - one.mean(), other - other.mean()
    slope = float((one * other).sum() / (other * other).sum().clamp(min=1e-300))
    is_linear = float((one - slope * other).abs().max()) <= SAME * max(float(one.abs().max()), 1e-300)
    return slope if is_linear else 0.0
