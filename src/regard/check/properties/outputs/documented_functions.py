"""Functions that a formula of the documentation names, and that nothing computes: a gate without its sigmoid."""

from __future__ import annotations

import io
import re
import tokenize
from collections.abc import Iterator
from typing import Any

from torch import nn

from regard.check.properties.documentation import documentation_of
from regard.check.properties.finding import Finding
from regard.check.properties.outputs.documented_layers import documented_layer_findings
from regard.check.roles.influence import record_invocation
from regard.check.target import Invocation
from regard.check.target.argument import source_of

__all__ = ["documented_function_findings"]

_COMPUTED_BY = {
    "sigmoid": {"sigmoid", "silu", "glu", "hardsigmoid", "log_sigmoid_forward", "special_expit", "tanh", "exp"},
    "tanh": {"tanh", "hardtanh", "sigmoid", "exp", "expm1"},
    "softplus": {"softplus", "exp", "logaddexp", "log1p", "log_sigmoid_forward"},
    "elu": {"elu", "exp", "expm1"},
    "gelu": {"gelu", "erf", "tanh", "sigmoid"},
    "silu": {"silu", "sigmoid", "exp"},
}
"""The operations of PyTorch's core by which each may be computed."""
_FORMULA = re.compile(rf"=\s*(?:[\w.^{{}}]+\s*[*·⊙]\s*)?(?:torch\.|F\.)?(?P<name>{'|'.join(_COMPUTED_BY)})\s*\(", re.I)
_QUALIFIED = re.compile(
    r"\b(?:if|when|whether|where|optional(?:ly)?|defaults?|either|or|instead|unlike|not|no|without|loss|logits?|paper"
    r"|original(?:ly)?|else|otherwise|apply|applies|caller|outside|e\.g)\b",
    re.I,
)
"""What makes of a formula a choice, or another's."""


def documented_function_findings(invocation: Invocation) -> Iterator[Finding]:
    """Says which function of a formula no operation of the call computes, and no line of the code names.

    Else which network of layers in a row ends otherwise than it is written.

    Args:
        invocation: a call.
    """
    for paragraph in re.split(r"\n\s*\n", documentation_of(invocation.target)):
        for said in _FORMULA.finditer(paragraph):
            name = said["name"].lower()
            line = next(each for each in paragraph.splitlines() if said["name"] in each)
            if _QUALIFIED.search(line) or name in _names_in(invocation.target):
                continue
            run = record_invocation(invocation)
            if run.error or any(each.name.rstrip("_") in _COMPUTED_BY[name] for each in run):
                continue
            formula = line[line.index(said["name"]) :].strip()
            message = f"the documentation has {formula}, and nothing computes a function {name}"
            yield Finding("violation", "function-as-documented", "output", message)
            return
    yield from documented_layer_findings(invocation)


def _names_in(target: Any) -> str:
    """The names in the code of a target and of its parts, without strings and comments."""
    parts = [*target.modules()] if isinstance(target, nn.Module) else []
    kinds = {type(each): each for each in parts if not type(each).__module__.startswith("torch.")}
    names = []
    for each in kinds.values() or [target]:
        try:
            tokens = [*tokenize.generate_tokens(io.StringIO(source_of(each)).readline)]
        except (tokenize.TokenError, IndentationError, SyntaxError):
            continue
        names += [token.string.lower() for token in tokens if token.type == tokenize.NAME]
    return " ".join(names)
