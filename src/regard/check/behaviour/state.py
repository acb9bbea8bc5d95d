"""State that is kept: a call that changes what the next one gives."""

from __future__ import annotations

import ast
import inspect
import textwrap
from collections.abc import Callable
from contextlib import suppress
from typing import Any

from torch import Tensor

from regard.check.behaviour.calls import (
    first_line_of,
    output_gap,
    output_of_object,
    with_other_numbers,
    with_tensors,
)
from regard.check.behaviour.dropout import without_dropout
from regard.check.behaviour.examination import Examination
from regard.check.search.calls import Failed
from regard.check.target.argument import source_of
from regard.check.target.seeds import seeded

__all__ = ["state_kept"]


def state_kept(examination: Examination) -> None:
    """The same input twice, and once more after another, of one object and with the same seed."""
    if examination.diagnosis.is_random:
        return
    call, case, _ = examination.pairs[0]
    _empty_defaults(call.module.forward if call.module is not None else call.subject.function)
    with without_dropout():
        module = call.copied_module()
        other = with_tensors(case, with_other_numbers)
        outputs: list[Tensor] = []
        for each in (case, case, other, case):
            try:
                with seeded():
                    output = output_of_object(call, module, each)
            except Failed as error:
                if outputs:
                    examination.diagnosis.why.append(f"a second call with the same sizes raises {first_line_of(error)}")
                    return
                raise
            if each is case:
                outputs.append(output)
    gap = max(output_gap(outputs[0], output) for output in outputs[1:])
    if gap:
        examination.add_mistake("stateful", number=gap)


def _empty_defaults(function: Callable[..., Any] | None) -> None:
    """Empty the lists and dicts that are defaults of a function and written as empty: other calls may have grown them.

    Python makes a default once, so that every call without the argument goes on with the same one.
    """
    names: set[str] = set()
    with suppress(SyntaxError):
        tree = ast.parse(textwrap.dedent(source_of(function)))
        for each in ast.walk(tree):
            if isinstance(each, ast.arguments):
                given = [*zip(reversed(each.posonlyargs + each.args), reversed(each.defaults), strict=False)]
                given += [(name, value) for name, value in zip(each.kwonlyargs, each.kw_defaults, strict=True) if value]
                names |= {name.arg for name, value in given if ast.unparse(value) in ("[]", "{}")}
    with suppress(TypeError, ValueError):
        for name, parameter in inspect.signature(function or _empty_defaults).parameters.items():
            if name in names and isinstance(parameter.default, list | dict):
                parameter.default.clear()
