"""Positions that a layer is handed beside its tokens, and adds to queries and keys: values have none of them.

As in DETR (Carion et al. 2020, "End-to-End Object Detection with Transformers", appendix A.3): each layer gets them
again, so that what tokens read need not hold them. Layers that add them to values as well, everywhere, mean it
(Liu et al. 2021, "Group-Free 3D Object Detection").
"""

from __future__ import annotations

import inspect
import re
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

import torch
from torch import Tensor, nn

from regard.check.location import CodeLocation
from regard.check.properties.documentation import documentation_of, keeps_positions_from_values
from regard.check.properties.finding import Finding
from regard.check.roles.influence import influence_of, record_invocation
from regard.check.roles.instances import AttentionInstance, attentions_of, tagged_run
from regard.check.target import Invocation
from regard.check.target.argument import source_of
from regard.check.target.classes import own_classes
from regard.check.target.preparation import copied, drawn_like
from regard.check.trace.operation import Trace

__all__ = ["handed_position_findings"]

_POSITIONS = re.compile(
    r"(?:\w+_)?pos(?:_?(?:emb\w*|enc\w*|ition\w*))?|position(?:s|al_\w+|_emb\w*|_enc\w*)?|(?:\w+_)?pe", re.I
)
"""Names of arguments that hold a vector of each token's position."""
MAX_SETTINGS = 3
"""Settings of a layer that are tried otherwise."""


@dataclass(frozen=True)
class _Reader:
    """An attention, and which of its parts positions reach."""

    query: bool
    key: bool
    value: bool
    line: CodeLocation | None
    module: str


def handed_position_findings(invocation: Invocation) -> Iterator[Finding]:
    """Values with positions in one attention or one setting of a layer, and without in another, or by documentation.

    Args:
        invocation: a call.
    """
    target = invocation.target
    if not isinstance(target, nn.Module) or invocation.arrays or invocation.in_steps:
        return
    names = [*_position_arguments(invocation)]
    if not names:
        return
    readers = _readers(invocation, names)
    moved = [each for each in readers if each.query and each.key and each.value]
    if not moved:
        return
    mine, listed = moved[0], " and ".join(names)
    where = f" of {mine.module}" if mine.module else ""

    def found(reason: str) -> Finding:
        message = f"values{where} hold {listed}, which is handed over beside the tokens: {reason}"
        return Finding("violation", "values-without-positions", "positions", message, mine.line)

    still = [each for each in readers if each.query and each.key and not each.value]
    if keeps_positions_from_values(documentation_of(target)):
        yield found("by the documentation queries and keys have it alone")
    elif still:
        other = f"those of {still[0].module}" if still[0].module else "those of the other attention"
        yield found(f"{other} do not")
    elif (setting := _setting_without(invocation, names)) is not None:
        yield found(f"with {setting} they do not")


def _position_arguments(invocation: Invocation) -> Iterator[str]:
    """The arguments that may hold positions, are not handed over, and need not be."""
    streams = {each.argument for each in invocation.streams}
    try:
        parameters = inspect.signature(invocation.target.forward).parameters
    except (ValueError, TypeError):
        return
    for name, each in parameters.items():
        is_open = name not in invocation.arguments and each.default is None
        if is_open and name not in streams and _POSITIONS.fullmatch(name):
            yield name


def _readers(invocation: Invocation, names: Sequence[str]) -> list[_Reader]:
    """The attentions of a call with positions, and what of each changes with others; none where it does not run."""
    base: Trace | None = None
    given: Mapping[str, Any] = {}
    for given in _shaped(invocation, names):
        base = record_invocation(replace(invocation, arguments={**given}), lines=True)
        if not base.error:
            break
    if base is None or base.error:
        return []
    call = replace(invocation, arguments={**given})
    first = influence_of(call, base, keep=lambda source: source.kind == "sample")
    run = tagged_run(first, [each.argument for each in call.streams])
    instances = attentions_of(run)
    frozen = {each.operation.index: each.output.data for instance in instances for each in instance.sums}
    others = {name: drawn_like(given[name], 5 + number) for number, name in enumerate(names)}
    other = record_invocation(call, {**given, **others}, frozen=frozen)
    if other.error or not other.same_operations(base):
        return []

    def is_moved(places: Sequence[tuple[int, int]]) -> bool:
        pairs = [(base.taken(each).data, other.taken(each).data) for each in places]
        return any(not torch.allclose(one, two, rtol=1e-9, atol=1e-9) for one, two in pairs)

    return [_reader(each, is_moved) for each in instances]


def _reader(instance: AttentionInstance, is_moved: Callable[[Sequence[tuple[int, int]]], bool]) -> _Reader:
    left, right = ([pair[side] for pair in (each.places for each in instance.scores)] for side in (0, 1))
    values = [instance.values_place(each) for each in instance.sums]
    query, key, value = (is_moved(each) for each in (left, right, values))
    return _Reader(query, key, value, instance.sums_location, instance.module)


def _shaped(invocation: Invocation, names: Sequence[str]) -> Iterator[Mapping[str, Any]]:
    """The arguments of a call with positions: each of the shape of a sequence, first of that of its name."""
    streams = [invocation.arguments[each.argument] for each in invocation.streams]
    vectors = [each for each in streams if isinstance(each, Tensor) and each.is_floating_point()]
    if not vectors:
        return
    asking, asked = vectors[0], vectors[-1]
    of_one = dict.fromkeys(names, asking)
    of_each = {name: asking if re.match("query|tgt|x_|q_", name) else asked for name in names}
    for shapes in (of_each, of_one):
        yield {
            **invocation.arguments,
            **{name: drawn_like(each, 3 + number) for number, (name, each) in enumerate(shapes.items())},
        }


def _setting_without(invocation: Invocation, names: Sequence[str]) -> str | None:
    """A setting of the layer with whose other value queries and keys have positions, and values do not."""
    target = invocation.target
    source = "\n".join(map(source_of, own_classes(type(target))))
    settings = [name for name, value in vars(target).items() if type(value) is bool and name != "training"]
    read = [name for name in settings if re.search(rf"\bif\b[^\n]*\bself\.{re.escape(name)}\b", source)]
    for name in read[:MAX_SETTINGS]:
        other = copied(target)
        setattr(other, name, not getattr(other, name))
        readers = _readers(replace(invocation, target=other), names)
        if any(each.query and each.key and not each.value for each in readers):
            return f"{name}={getattr(other, name)}"
    return None
