"""Arguments that are several in one: tuples, dicts and objects that the code takes apart."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

from regard.check.names import role as weight_role
from regard.check.target.argument import MATRICES, STREAMS, Argument, role_of_bias, source_of
from regard.check.target.decoder_steps import CELL_STATE, is_state_of_two
from regard.check.target.graphs import with_nodes
from regard.check.target.names import call_meaning, first_word
from regard.check.target.preparation import embeds
from regard.check.target.records import is_record, layers_beside
from regard.check.target.usage import fields_of, has_fields, parts_of, places_of

__all__ = ["parts_by_place", "parts_of_argument"]


def parts_of_argument(argument: Argument, target: Any, named: list[Argument]) -> list[Argument]:
    """The argument, or what it is made of where the code takes it apart into a sequence and its mask, or by names."""
    source = source_of(target)
    fields = fields_of(source, argument.name) if argument.required else []
    if fields:
        is_beside = any(each.role in STREAMS for each in named if each is not argument)
        found = [
            Argument(f"{argument.name}.{each}", _of_field(each, is_beside=is_beside), True, within=argument.name)
            for each in fields
        ]
        if (is_dict := has_fields(source, argument.name)) and embeds(target) and not any(each.role for each in found):
            found = [replace(each, role="ids") for each in found]
        if not is_dict and is_record(target, argument.annotation):
            return _of_record(found)
        return found if all(each.role if is_dict else _is_weight(each) for each in found) else [argument]
    if argument.required and argument.role in (None, "context") and (count := layers_beside(target, argument.name)):
        return [Argument(f"{argument.name}[{place}]", "context", True, within=argument.name) for place in range(count)]
    if argument.required and is_state_of_two(target, source, argument.name):
        return [
            Argument(f"{argument.name}[{place}]", role, True, within=argument.name)
            for place, role in enumerate(("x", CELL_STATE))
        ]
    names = parts_of(source, argument.name) if argument.required and argument.role in (None, "x") else []
    roles = with_nodes([call_meaning(each) or first_word(each) for each in names])
    parts = [Argument(each, role, True, within=argument.name) for each, role in zip(names, roles, strict=True)]
    is_told = any(each in ("mask", "padding", "edge index") for each in roles)
    is_told = is_told or len({*roles} & {"x", "q", "k", "v", "context"}) == len(roles) > 1
    return parts if is_told else [argument]


def parts_by_place(named: list[Argument], source: str) -> list[list[Argument]]:
    """The readings by which all that has to be given is a list, of which the code reads inputs[0] and so on.

    Two are a sequence and what asks it, a vector of each sample or a sequence; three are queries, keys and values.
    """
    given = [each for each in named if each.required]
    is_tensor = any("Tensor" in each.annotation and "[" not in each.annotation for each in given)
    if len(given) != 1 or given[0].role not in (None, "x") or given[0].within or is_tensor:
        return []
    name, roles = given[0].name, {2: (("x", "condition"), ("x", "context")), 3: (("q", "k", "v"),)}
    return [
        [Argument(f"{name}[{place}]", role, True, within=name) for place, role in enumerate(several)]
        + [each for each in named if not each.required]
        for several in roles.get(places_of(source, name), ())
    ]


def _of_field(name: str, *, is_beside: bool) -> str | None:
    """The role of a part of a dict; beside a sequence it is a matrix."""
    matrix = {"q": "w_q", "k": "w_k", "v": "w_v", "out": "w_o", "qkv": "w_qkv"}.get(weight_role(name) or "")
    if (vector := role_of_bias(name)) is not None:
        return vector
    return (matrix if is_beside else None) or call_meaning(name) or matrix


def _of_record(parts: list[Argument]) -> list[Argument]:
    """The parts of a record of tensors; of two that nothing tells, the first asks the second."""
    told = [each.role for each in parts if each.role not in (None, "image")]
    if len(parts) == len("xy") and not told:
        return [replace(each, role=role) for each, role in zip(parts, ("x", "context"), strict=True)]
    return parts


def _is_weight(part: Argument) -> bool:
    """Whether a part of an object is a matrix or a vector; an object of anything else is made of its class."""
    return part.role in MATRICES or part.role in ("vector", "packed vector")
