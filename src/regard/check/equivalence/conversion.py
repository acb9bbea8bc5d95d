"""The weights of one module moved into another."""

from __future__ import annotations

from torch import nn

from regard.check.equivalence.comparison import compare
from regard.check.equivalence.mapping import WeightMapping
from regard.check.sandbox.torch_settings import UserSettings
from regard.errors import InputError

__all__ = ["convert"]


def convert(a: nn.Module, b: nn.Module) -> WeightMapping:
    """Set the parameters of an attention so that it computes what another one does.

    How the weights have to be reordered is found and proved on copies in float64, with numbers drawn at random; b is
    changed only then. Both run in this process.

    Args:
        a: the module whose weights are taken; it is not changed.
        b: the module whose parameters are set, of the same sizes.

    Returns:
        The reordering.

    Raises:
        InputError: they do not compute the same, whatever b's weights are; the message names the step at which they
            part. Or they are no modules, or could not be compared.
    """
    for name, module in (("a", a), ("b", b)):
        if not isinstance(module, nn.Module):
            raise InputError(f"{name} is a {type(module).__name__}; convert takes two modules that are constructed")
    settings = UserSettings()
    with settings.adopted():
        found = compare(a, b, {}, {}, settings)
    if found.mapping is None:
        at = "" if found.step is None else f" at the step {found.step}"
        raise InputError(f"{found.against} cannot compute what {found.name} does: {found.verdict}{at}: {found.reason}")
    found.mapping.apply(a, b)
    return found.mapping
