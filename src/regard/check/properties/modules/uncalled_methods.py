"""Methods of a module that hold an attention of their own and that a call of the module does not reach."""

from __future__ import annotations

import inspect
import re
from collections.abc import Iterator
from typing import Any

from torch import nn

from regard.check.properties.finding import Finding
from regard.check.target.argument import source_of

__all__ = ["uncalled_method_findings"]

ATTENDS = re.compile(r"softmax\(|scaled_dot_product_attention\(")


def uncalled_method_findings(target: Any) -> Iterator[Finding]:
    """Says which methods were not judged, such as a decoder's step beside its call for a whole sequence."""
    if not isinstance(target, nn.Module):
        return
    whole = source_of(target)
    for name, method in vars(type(target)).items():
        name = name.removeprefix(f"_{type(target).__name__.lstrip('_')}") if "__" in name.lstrip("_") else name
        is_own = inspect.isfunction(method) and name not in ("forward", "__call__")
        if not is_own or not ATTENDS.search(source_of(method)) or re.search(rf"\.{name}\b", whole):
            continue  # an attribute that is read is called, or handed on
        message = f"{name}() is not judged: a call of the module does not reach it"
        yield Finding("note", "uncalled-method", "scores", message)
