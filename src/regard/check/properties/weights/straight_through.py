"""Hard weights whose gradient is that of the softmax (straight-through): with its sign."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import torch
from torch import Tensor, nn
from torch.overrides import TorchFunctionMode

from regard.check.properties.finding import Finding
from regard.check.target import Invocation
from regard.check.target.errors import Failed
from regard.check.target.preparation import copied, drawn_like

__all__ = ["straight_through_findings"]

SAME = 1e-6
"""Of the largest number of a gradient."""
_PRODUCTS = frozenset({"__matmul__", "__mul__", "bmm", "einsum", "linear", "matmul", "mul"})
"""Functions by which weights meet values."""


def straight_through_findings(invocation: Invocation) -> Iterator[Finding]:
    """A softmax that gets the gradient of the hard weights with the other sign.

    Bengio et al. 2013, "Estimating or Propagating Gradients Through Stochastic Neurons" (arXiv:1308.3432), section 4:
    the gradient of the hard choice is taken for that of the soft one: hard - soft.detach() + soft.

    Args:
        invocation: a call of hard attention.
    """
    live = copied(invocation.target) if isinstance(invocation.target, nn.Module) else invocation.target
    given = dict(invocation.arguments)
    for each in invocation.streams:
        value = given[each.argument]
        if isinstance(value, Tensor) and value.is_floating_point():
            given[each.argument] = value.detach().clone().requires_grad_()
    watch = _Watch()
    try:
        with torch.enable_grad(), watch:
            outputs = [each for each in invocation.outputs(invocation.run(given, target=live)) if each.requires_grad]
            if not outputs:
                return
            loss = (outputs[0] * drawn_like(outputs[0], seed=11)).sum()
            several = [
                torch.autograd.grad(loss, [soft, hard], retain_graph=True, allow_unused=True)
                for soft, hard in watch.pairs()
            ]
    except (Failed, RuntimeError):
        return
    for one, other in several:
        if one is None or other is None or not float(other.abs().max()) > 0.0:
            continue
        if float((one + other).abs().max()) <= SAME * float(other.abs().max()):
            message = (
                "the softmax behind the hard weights gets their gradient with the other sign: training moves it away "
                "from what lowers the loss"
            )
            yield Finding("violation", "gradient-of-the-choice", "weights", message)
            return


class _Watch(TorchFunctionMode):
    """The softmaxes of a run, and what is multiplied that is 1 at the largest of each row of one, and 0 elsewhere."""

    def __init__(self) -> None:
        super().__init__()
        self._softmaxes: list[Tensor] = []
        self._multiplied: list[Tensor] = []

    def __torch_function__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        name = getattr(func, "__name__", "")
        if name in _PRODUCTS:
            several = (one for each in args for one in (each if isinstance(each, list | tuple) else (each,)))
            self._keep(self._multiplied, several)
        result = func(*args, **(kwargs or {}))
        if name == "softmax":
            self._keep(self._softmaxes, (result,))
        return result

    @staticmethod
    def _keep(kept: list[Tensor], several: Any) -> None:
        for each in several:
            if isinstance(each, Tensor) and each.requires_grad:
                kept.append(each)

    def pairs(self) -> Iterator[tuple[Tensor, Tensor]]:
        """Each softmax, and the hard weights of it."""
        for soft in self._softmaxes:
            for hard in self._multiplied:
                if hard is not soft and hard.shape == soft.shape and _is_choice(soft, hard):
                    yield soft, hard


def _is_choice(soft: Tensor, hard: Tensor) -> bool:
    largest = soft == soft.amax(-1, keepdim=True)
    return torch.allclose(hard.detach(), largest.to(hard.dtype))
