"""Scores that are said to be formed in float32: a product that is rounded to float16 first may be infinite there."""

from __future__ import annotations

import re
from collections.abc import Iterator
from typing import Any

import torch
from torch import Tensor, nn
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils._pytree import tree_leaves

from regard.check.properties.documentation import documentation_of
from regard.check.properties.finding import Finding
from regard.check.properties.half_runs import run_in_half
from regard.check.roles.instances import AttentionInstance
from regard.check.target import Invocation

__all__ = ["wide_score_findings"]

_WIDE = re.compile(
    r"\b(?:scores?|attention logits?|products? of queries(?: and keys)?)\b[^.;]{0,40}?"
    r"\b(?:formed|computed|calculated|multiplied|accumulated|made) +in +(?:torch\.)?(?:float32|fp32|full|single)",
    re.I,
)
_CONDITION = re.compile(r"\b(?:not|no|never|if|unless|optional\w*|after\w*|then|\w*cast|convert\w*)\b|n't", re.I)
FACTORS = (1.0, 30.0, 1e3, 3e4)
"""By which the numbers of a sequence are multiplied, until a product overflows."""
PRODUCTS = frozenset({"bmm", "mm", "matmul", "baddbmm"})


def wide_score_findings(invocation: Invocation, instances: list[AttentionInstance]) -> Iterator[Finding]:
    """Scores of finite queries and keys that are infinite in float16, where the documentation has them in float32.

    Args:
        invocation: a call of a module whose documentation says that its scores are formed in float32.
        instances: its attentions.
    """
    target = invocation.target
    said = re.split(r"(?<=[.;])\s", " ".join(documentation_of(target).split()))
    if not isinstance(target, nn.Module) or invocation.arrays or len(instances) != 1:
        return
    if not any(_WIDE.search(each) and not _CONDITION.search(each) for each in said):
        return
    if not instances[0].scores:
        return
    score = instances[0].scores[0].operation
    for factor in FACTORS:
        watch = _Overflows(score.outputs[0].data.numel(), score.outputs[0].shape[-1])
        if not run_in_half(invocation, watch, lambda each, factor=factor: each * factor):  # type: ignore[misc]
            return
        if watch.found:
            message = (
                "its documentation says that scores are formed in float32: the product of queries and keys is rounded "
                f"to float16 before, and infinite where the numbers of the input are {factor:g} times as large"
            )
            line = score.location
            yield Finding("violation", "scores-in-float32", "scores", message, line, instances[0].module)
            return
        if watch.ended:
            return


class _Overflows(TorchDispatchMode):  # type: ignore[no-untyped-call]
    """Notices the first operation that makes infinite numbers of finite ones, and whether it is a product of scores."""

    def __init__(self, numbers: int, keys: int) -> None:
        super().__init__()  # type: ignore[no-untyped-call]
        self.numbers, self.keys = numbers, keys
        self.found = self.ended = False

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        returned = func(*args, **(kwargs or {}))
        if not self.ended:
            before, after = (
                [one for one in tree_leaves(each) if isinstance(one, Tensor) and one.is_floating_point()]
                for each in ((args, kwargs), returned)
            )
            if not all(bool(each.isfinite().all()) for each in after):
                self.ended = True
                name = func.overloadpacket.__name__
                is_score = name in PRODUCTS and (after[0].numel(), after[0].shape[-1]) == (self.numbers, self.keys)
                is_finite = all(bool(each.isfinite().all()) for each in before)
                self.found = is_score and is_finite and after[0].dtype == torch.float16
        return returned
