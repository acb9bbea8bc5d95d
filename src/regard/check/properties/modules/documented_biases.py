"""Layers that a comment says to have no bias, and of which one has it beside others that have none."""

from __future__ import annotations

import re
from collections.abc import Iterator, Sequence
from typing import Any

from torch import nn

from regard.check.properties.code import line_in
from regard.check.properties.finding import Finding
from regard.check.target.argument import text_of
from regard.check.target.preparation import modules_in

__all__ = ["documented_bias_findings"]

_NO_BIAS = re.compile(r"\bbias\s*=\s*False\b|\b(?:no|without(?: a| any)?) bias(?:es)?\b|\bbias-?(?:free|less)\b", re.I)
_OF_SOME = re.compile(
    r"\b(?:except|only|but|unlike|instead|not|never|unless|if|when|where|while|whereas|paper|original\w*"
    r"|quer(?:y|ies)|keys?|values?|[qkvo]|output|true)\b",
    re.I,
)
"""What may make of a comment one of some of the layers below it, or of other code."""
_LAYER = re.compile(r"\s*self\.(?P<name>\w+)\s*=\s*(?:\w+\.)*(?:Linear|Conv[123]d)\(.*\)\s*(?:#.*)?$")


def documented_bias_findings(target: Any) -> Iterator[Finding]:
    """A layer with a bias among those right below a comment that says `bias=False`, where others have none.

    The lines below the comment are all that follow without an empty line or another statement between them.

    Args:
        target: what is judged.
    """
    for outer in modules_in(target):
        for path, module in outer.named_modules():
            kind: type = type(module)
            if kind.__module__.partition(".")[0] == "torch":
                continue
            for names in _below_comments(text_of(kind).splitlines()):
                layers = [(*each, getattr(module, each[1], None)) for each in names]
                known = [each for each in layers if isinstance(each[2], nn.Linear | nn.modules.conv._ConvNd)]
                biased = [(number, name) for number, name, layer in known if getattr(layer, "bias", None) is not None]
                if known != layers or not 0 < len(biased) < len(known) - len(biased):
                    continue
                number, name = biased[0]
                where = f"{path}.{name}" if path else name
                message = (
                    f"{where} has a bias, and the comment above the {len(known)} layers says that they have none, "
                    f"as the {len(known) - len(biased)} others"
                )
                yield Finding("violation", "bias-as-documented", "projections", message, line_in(kind, number), path)
                return


def _below_comments(lines: Sequence[str]) -> Iterator[list[tuple[int, str]]]:
    """The layers, each with the number of its line from 1, below each comment that says that they have no bias."""
    said, layers = "", list[tuple[int, str]]()
    for number, line in enumerate([*lines, ""], 1):
        layer = _LAYER.match(line)
        if layer is not None:
            layers.append((number, layer["name"]))
            continue
        if _NO_BIAS.search(said) and not _OF_SOME.search(said) and len(layers) > 2:
            yield layers
        is_comment = line.lstrip().startswith("#")
        said = (f"{said} " if is_comment and not layers else "") + line.lstrip("# ") if is_comment else ""
        layers = []
