"""Parameters that all begin as zeros, and whose gradients are times one another: none of them ever learns."""

from __future__ import annotations

import re
from collections.abc import Iterator

import torch
from torch import Tensor, nn

from regard.check.properties.finding import Finding
from regard.check.target import Invocation
from regard.check.target.argument import text_of
from regard.check.target.classes import own_classes
from regard.check.target.errors import Failed
from regard.check.target.preparation import began_as_zeros, copied, drawn_like

__all__ = ["begun_as_zeros_findings", "is_written_as_zeros"]

ZERO = 1e-13
"""A gradient that is none."""
_OF_ZEROS = r"(?:zeros?_?(?:_like)?\(|zero_\(|(?:fill_|constant_)\(.*\b0(?:\.0*)?\s*\))"
"""What writes zeros: memory that nothing was written to may hold zeros as well."""


def begun_as_zeros_findings(invocation: Invocation) -> Iterator[Finding]:
    """Parameters that no update can move away from zero, as both factors of a product, where both begin there.

    One that begins as zero beside others gets a gradient by these, and is no more zero then: what is left when nothing
    moves any more stays for ever. With other numbers each of them has a gradient.

    Args:
        invocation: the call.
    """
    target = invocation.target
    if not isinstance(target, nn.Module) or not began_as_zeros(target):
        return
    live = copied(target)
    learned = {name: each for name, each in live.named_parameters() if each.requires_grad}
    stuck = [name for name in learned if name in began_as_zeros(target) and is_written_as_zeros(live, name)]
    if len(stuck) < 2:
        return
    written = {*stuck}
    stuck += [name for name in learned if name in began_as_zeros(target) - written and learned[name].ndim == 1]
    drawn = {name: learned[name].detach().clone() for name in stuck}
    stuck = _moving(invocation, live, {name: learned[name] for name in stuck})
    while len(stuck) > 1:
        for name, numbers in drawn.items():
            with torch.no_grad():
                learned[name].copy_(torch.zeros_like(numbers) if name in stuck else numbers)
        moving = _moving(invocation, live, {name: learned[name] for name in stuck})
        if not moving:
            break
        stuck = [name for name in stuck if name not in moving]
    stuck = [name for name in stuck if name in written]
    if len(stuck) > 1:
        first, *others = stuck
        other = next((each for each in others if each.rpartition(".")[0] == first.rpartition(".")[0]), others[0])
        message = (
            f"{first} and {other} begin as zeros, and the gradient of each is times the other: neither ever learns"
        )
        yield Finding("violation", "begins-to-learn", "projections", message)


def _moving(invocation: Invocation, live: nn.Module, parameters: dict[str, nn.Parameter]) -> list[str]:
    """Those of some parameters that have a gradient; all where that is not known."""
    if not parameters:
        return []
    try:
        with torch.enable_grad():
            outputs = [each for each in invocation.outputs(invocation.run(target=live)) if each.requires_grad]
            total = sum((each * drawn_like(each, seed=3)).sum() for each in outputs)
            if not isinstance(total, Tensor):
                return []
            found = torch.autograd.grad(total, [*parameters.values()], allow_unused=True)
    except (Failed, RuntimeError):
        return [*parameters]
    pairs = zip(parameters, found, strict=True)
    return [name for name, each in pairs if each is not None and not float(each.abs().max()) <= ZERO]


def is_written_as_zeros(live: nn.Module, path: str) -> bool:
    """Whether a line of the class of a parameter's owner, or of a class around it, writes zeros by its name.

    A class may go through all matrices at once, as by `nn.init.zeros_(module.weight)`.

    Args:
        live: what the parameter is of.
        path: of the parameter.
    """
    parts = path.split(".")
    is_matrix = live.get_parameter(path).ndim > 1
    for count in range(len(parts)):
        name = re.escape(parts[count]) + (rf"|(?<=\w\.){parts[-1]}" if is_matrix and parts[-1] == "weight" else "")
        for kind in own_classes(type(live.get_submodule(".".join(parts[:count])))):
            if re.search(rf"^.*{_OF_ZEROS}.*\b(?:{name})\b|^.*\b(?:{name})\b.*{_OF_ZEROS}", text_of(kind), re.M):
                return True
    return False
