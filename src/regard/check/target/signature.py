"""The arguments of a call, and what each of them may mean."""

from __future__ import annotations

import inspect
import re
from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from typing import Any

from torch import Tensor, nn

from regard.check.names import is_plain
from regard.check.target.argument import (
    ADDED,
    BESIDE,
    OUTPUT_GRADIENT,
    PLAIN,
    STREAMS,
    WEIGHTS,
    Argument,
    is_output_gradient,
    role_of_bias,
    source_of,
)
from regard.check.target.argument_parts import parts_by_place, parts_of_argument
from regard.check.target.axes_inside import is_sequence_inside, told_inside
from regard.check.target.beside_tokens import AXES_WITH_HEADS
from regard.check.target.cache_buffers import is_filled
from regard.check.target.classes import handed_up, parameters_of
from regard.check.target.conditions import is_condition, is_sequence
from regard.check.target.decoder_steps import documented_step_roles, documented_vector_roles, step_roles
from regard.check.target.documented_shapes import documented_letters, documented_shape
from regard.check.target.feed_forward_arguments import feed_forward_roles
from regard.check.target.first_layers import role_by_layer
from regard.check.target.fixed_arguments import fixed_tensors
from regard.check.target.graphs import are_links, are_of_pairs, hold_vectors_of_pairs, with_vectors_of_pairs
from regard.check.target.looked_up import are_compared_alone, fields_of, table_of
from regard.check.target.masks_of_sequences import documents_alone, masks_of_sequences, numbers_of_texts
from regard.check.target.names import call_meaning, constructor_meaning, is_bias
from regard.check.target.other_readings import (
    beside_named_queries,
    beside_projected_keys,
    beside_what_was_encoded,
    other_readings,
)
from regard.check.target.preparation import embeds
from regard.check.target.relative_tables import of_relative_positions, with_distances
from regard.check.target.size_values import has_to_be_given
from regard.check.target.time_series import of_a_series
from regard.check.target.token_ids import is_of_a_text
from regard.check.target.usage import (
    added_to,
    begins_a_cache,
    counts_heads,
    is_bound,
    is_looked_up,
    is_measured,
    is_tensor,
    is_two_sides,
    role_by_use,
)

__all__ = ["readings"]

_OF_AN_ENCODER = re.compile(r"enc|mem|src|source|context|ctx|cond")
_OF_QUERIES = re.compile(r"(?:tgt|trg|target|dec|decoder|query|q)_")
_CACHED = re.compile(r"(?:k|v|key|value)s?_(?:cache|past)|(?:past|cached?)_(?:k|v|key|value)s?")
"""What is cached of keys, or of values."""
_UNTOLD = (None, "x", "context", "positions")
"""Roles of what may be ids all the same: pos are positions, or the items that a recommender has to tell from neg."""
_CAUSAL = re.compile("causal|auto_?regressive|look_?ahead|hide_?future")
"""In the name of a flag that hides later keys."""


def readings(target: Callable[..., Any], inputs: Mapping[str, Any] | None = None) -> list[list[Argument]]:
    """What the arguments of a call may mean: the likeliest reading first.

    Args:
        target: a module, or anything else that can be called.
        inputs: what the user hands over: of those, only tensors may be sequences.
    """
    named = _arguments(target)
    if named is not None and not inputs:
        named = [part for each in named for part in parts_of_argument(each, target, named)]
    elif named is not None and inputs:
        source = source_of(target)
        told = beside_what_was_encoded([_by_use(each, source) for each in named], source)
        named = _with_inputs(told, inputs)
    elif inputs:
        return [_with_inputs([Argument(name, call_meaning(name), True, positional=True) for name in inputs], inputs)]
    if named is None:
        return [_unnamed("q", "k", "v"), _unnamed("x"), _unnamed("x", "context")]
    source = source_of(target)
    named = [_by_use(_by_layer(target, each, named), source) for each in with_distances(named, source)]
    named = with_vectors_of_pairs([_of_a_graph(target, each, named) for each in named], source)
    named = _with_looked_up(target, named)
    named = [_filled(_added(each, named, source), source) for each in named]
    named = [of_relative_positions(target, _of_each_head(each, named, source)) for each in named]
    named = of_a_series(target, [told_inside(target, each) for each in named])
    roles = feed_forward_roles({each.name: each.role for each in named})
    roles |= numbers_of_texts({each.name: each.role for each in named if each.required}, source)
    roles |= documents_alone({each.name: each.role for each in named if each.required}) if embeds(target) else {}
    roles |= documented_step_roles([each.name for each in named if each.required], source)
    roles |= documented_vector_roles({each.name: each.role for each in named if each.required}, source)
    roles |= step_roles({each.name: is_looked_up(source, each.name) for each in named if each.required}, source)
    named = [replace(each, role=roles.get(each.name, each.role)) for each in named]
    named = beside_what_was_encoded(beside_projected_keys(beside_named_queries(named, source)), source)
    named = _with_ids_of_padding(target, [_in_the_place_of_another(target, each, named) for each in named])
    alone = {"token types"} if not any(each.role in STREAMS for each in named) else set()  # a segment of a text
    if alone or any(each.required and each.role is None for each in named):
        named = [replace(each, role=None) if _is_bare(each) or each.role in alone else each for each in named]
    if [each.role for each in named if each.required and each.role in STREAMS] == ["x"]:
        others = [each for each in named if _may_be_a_sequence(each) and is_sequence_inside(target, source, each.name)]
        named = [replace(each, role="context", guessed=True) if [each] == others else each for each in named]
    in_a_list = [] if inputs else parts_by_place(named, source)
    further = (*other_readings(named, source), *_of_an_image(target, named))
    return [*map(_settled, in_a_list), *_of_a_condition(target, named), *_read(named), *map(_settled, further)]


def _of_each_head(argument: Argument, named: list[Argument], source: str) -> Argument:
    """The argument, or a number of each token and head: it is written to have all axes of a sequence but the last."""
    shape = documented_shape(source, argument.name) if argument.required and argument.role is None else ()
    others = {documented_shape(source, each.name)[:-1] for each in named if each.role in STREAMS}
    return replace(argument, role=BESIDE) if len(shape) == AXES_WITH_HEADS and shape in others else argument


def _filled(argument: Argument, source: str) -> Argument:
    """The argument, or a dict that a call fills, as with the keys and values of the tokens so far."""
    is_dict = argument.required and argument.role is None and is_filled(source, argument.name)
    return replace(argument, role="absent") if is_dict else argument


def _of_a_graph(target: Any, argument: Argument, named: list[Argument]) -> Argument:
    """The argument, where it tells of the nodes of a graph what hides nothing."""
    source = source_of(target)
    if are_links(source, argument.name, argument.role):
        return replace(argument, role="edges")
    is_open = argument.required and argument.role in (None, "added", "rope", "ids")
    others = [each.name for each in named if each is not argument and each.role in (None, *STREAMS)]
    if hold_vectors_of_pairs(target, source, argument, others):
        return replace(argument, role="pair vectors")
    return replace(argument, role="pairs") if is_open and are_of_pairs(target, source, argument.name) else argument


def _with_looked_up(target: Any, named: list[Argument]) -> list[Argument]:
    """The arguments; what nothing tells is ids where a part looks it up, as is pos beside others of the same table."""
    if not embeds(target):
        return named
    tables = {each.name: table_of(target, each.name) for each in named if each.required and each.role in _UNTOLD}
    items = {id(tables[each.name]) for each in named if each.role == "positions" and tables.get(each.name)}
    items = {each for each in items if sum(id(table) == each for table in tables.values()) > 1}

    def are_ids(argument: Argument) -> bool:
        if argument.role is None and argument.required and fields_of(target, argument.name)[0]:
            return True
        table = tables.get(argument.name)
        return table is not None and (argument.role is None or id(table) in items)

    return [replace(each, role="ids") if are_ids(each) else each for each in named]


def _by_layer(target: Any, argument: Argument, named: list[Argument]) -> Argument:
    """The argument, where the layer that takes it says more than its name; of two sequences it says which is which."""
    source, unknown = source_of(target), [each for each in named if each.required and each.role is None]
    role = role_by_layer(target, source, argument.name, argument.role) if argument.required else None
    is_guessed = len(unknown) < 3 and not is_looked_up(source, argument.name)
    is_named = any(each.required and each.role in STREAMS for each in named)
    if role is None or (role == "x" and argument.role is None and (is_guessed or is_named)):
        return argument
    return replace(argument, role=role)


def _by_use(argument: Argument, source: str) -> Argument:
    """The argument, where the code says more of it than its signature."""
    if has_to_be_given(argument, source):
        return replace(argument, required=True)
    is_size = str(argument.role).startswith("size ") and argument.role != "size length"  # of each sample, it may be one
    if argument.required and is_size and is_tensor(source, argument.name):
        argument = replace(argument, role=None)
    if counts_heads(source, argument.name, argument.role, argument.default):
        return replace(argument, role="size heads", required=True)  # which divides no other width
    if argument.required and argument.role is None and is_output_gradient(argument.name):
        return replace(argument, role=OUTPUT_GRADIENT)
    if argument.required and (role := role_by_use(source, argument.name, argument.role)) is not None:
        return replace(argument, role=role)
    is_cache = argument.role == "absent" or (argument.role is None and _CACHED.fullmatch(argument.name.lower()))
    if argument.required and is_cache and len(documented_letters(source, argument.name)) > 2:
        return replace(argument, role="context")  # a cache that is filled
    if argument.required and argument.role in ("positions", "start", None) and is_bound(source, argument.name):
        is_first = argument.role == "start" and begins_a_cache(source, argument.name)
        return argument if is_first else replace(argument, role="place")
    if argument.required and argument.role in ("positions", None) and is_measured(source, argument.name):
        return replace(argument, role="coordinates")
    return replace(argument, role="grid") if argument.role is None and is_two_sides(source, argument.name) else argument


def _added(argument: Argument, named: list[Argument], source: str) -> Argument:
    """The argument, or what is added to a sequence that is another one, as positions are to tokens."""
    if not argument.required or argument.role not in (None, "positions", "rope"):
        return argument
    other = added_to(source, argument.name)
    is_sequence = any(each.name == other and each.role in STREAMS for each in named)
    return replace(argument, role=f"{ADDED}{other}") if is_sequence else argument


def _with_ids_of_padding(target: Any, named: list[Argument]) -> list[Argument]:
    """The arguments; ids beside vectors that are compared with one id, and looked up nowhere, are a mask of padding."""
    if embeds(target) or not any(each.required and each.role in STREAMS and each.role != "ids" for each in named):
        return named
    source = source_of(target)

    def is_compared(name: str) -> bool:
        found = re.findall(rf"\b{re.escape(name)}\s*(?:[!=]=\s*|\.(?:ne|eq)\(\s*)(?:\w+\.)*(\w*)", source)
        return bool(found) and not all(is_of_a_text(each) for each in found)

    def is_of_padding(argument: Argument) -> bool:
        if argument.role == "ids":
            return is_compared(argument.name)
        return argument.role is None and argument.required and are_compared_alone(target, argument.name)

    return [replace(each, role="padding") if is_of_padding(each) else each for each in named]


def _in_the_place_of_another(target: Any, argument: Argument, named: list[Argument]) -> Argument:
    """The argument; one that is another one where it is not given, as m that is x, is a context, not a mask."""
    if argument.role != "mask" or argument.required or argument.default is not None:
        return argument
    others = "|".join(re.escape(each.name) for each in named if each.role in STREAMS)
    name = re.escape(argument.name)
    stands = rf"\b{name} = (?:{name} if {name} is not None else (?:{others})|default\({name}, (?:{others})\))\s*$"
    return replace(argument, role="context") if others and re.search(stands, source_of(target), re.M) else argument


def _of_a_condition(target: Any, named: list[Argument]) -> list[list[Argument]]:
    """The reading by which what may be a context is one vector of each sample instead."""
    given = [each.name for each in named if each.required and each.role == "context"]
    found = [each for each in given if is_condition(source_of(target), each)]
    read = [replace(each, role="condition", guessed=False) if each.name in found else each for each in named]
    return _read(read) if found else []


def _of_an_image(target: Any, named: list[Argument]) -> list[list[Argument]]:
    """The reading by which x is an image, where the constructor is told how large a patch or a picture is."""
    given = [each for each in named if each.required]
    kind: type = type(target)
    is_told = any(constructor_meaning(each) in ("patch", "image") for each in parameters_of(kind))
    if not is_told or not isinstance(target, nn.Module) or [each.role for each in given] != ["x"]:
        return []
    return [[replace(each, role="image") if each in given else each for each in named]]


def _read(named: list[Argument]) -> list[list[Argument]]:
    given = [each for each in named if each.required]
    unknown = [each for each in given if each.role is None and not is_bias(each.name)]
    if not unknown:
        told = {each.name: "x" if each.role == "q" else str(each.role) for each in given if each.role in STREAMS}
        told = masks_of_sequences(told, [each.name for each in given if each.role in ("mask", "padding")])
        named = [replace(each, role=told.get(each.name, each.role)) for each in named]
        alone = None if given else _of_x_alone(named)
        return [_settled(named), *([] if alone is None else [alone])]
    streams = [each for each in given if each.role in STREAMS]
    found = []
    tensors = [each for each in unknown if each.annotation not in PLAIN]
    guesses = _guesses(len(unknown), [each.role for each in streams])
    if len(unknown) == 3 and not streams and _are_numbered([each.name for each in unknown]):
        guesses = [("x", "x", "x"), *guesses]
    if len(unknown) == 2 and not streams and [_is_of_an_encoder(each) for each in unknown] == [True, False]:
        guesses = [("context", "x"), *guesses]
    masks = [each.name for each in named if each.role in ("mask", "padding")]
    if masks:
        guesses = [each for each in guesses if "mask" not in each]
    if [each.role for each in streams] == ["x"] and len(unknown) == 1:
        pair = {streams[0].name: "x", unknown[0].name: "context"}
        guesses = [("context",), *guesses] if masks_of_sequences(pair, masks) else guesses
    if len(unknown) == len(tensors) == 1 and streams and {each.role for each in streams} <= {"k", "v", "context"}:
        guesses = [("q",) if streams[0].role in ("k", "v") else ("x",), *guesses]  # keys alone: something asks them
    for roles in guesses:
        told = dict(zip((each.name for each in unknown), roles, strict=False))
        sequences = {each.name: str(each.role) for each in streams} | told
        told |= masks_of_sequences(sequences, masks)
        if len(unknown) + len(streams) == 3 and len(unknown) >= 2 and roles == ("q", "k", "v"):
            first = [each for each in given if each in unknown or each in streams]
            told = dict(zip((each.name for each in first), roles, strict=True))
        found.append(_settled([replace(each, role=told.get(each.name, each.role)) for each in named]))
    return found or [_settled(named)]


def _are_numbered(names: Sequence[str]) -> bool:
    """Whether they are one name with the numbers 1, 2, ... or 0, 1, ..., as x_1, x_2, x_3: each is as the others."""
    found = [re.fullmatch(r"(\D*?)_?(\d+)", each) for each in names]
    numbers = [int(each[2]) for each in found if each is not None]
    stems = {each[1] for each in found if each is not None}
    return len(stems) == 1 and numbers in ([*range(len(names))], [*range(1, len(names) + 1)])


def _of_x_alone(arguments: list[Argument]) -> list[Argument] | None:
    """The reading by which x is given and queries, keys and values are not, where there are all and each may be."""
    if not {"x", "q", "k", "v"} <= {each.role for each in arguments}:
        return None
    others = [replace(each, role=None) if each.role in ("q", "k", "v") else each for each in arguments]
    return _settled(others)


def _is_of_an_encoder(argument: Argument) -> bool:
    """Whether the name says that it is what a decoder attends to."""
    return _OF_AN_ENCODER.search(argument.name.lower()) is not None


def _is_bare(argument: Argument) -> bool:
    """Whether the name is one letter that may mean a size, among names that mean nothing."""
    size = argument.role is not None and argument.role.startswith("size ")
    return argument.required and size and len(argument.name) == 1 and "int" not in argument.annotation


def _may_be_a_sequence(argument: Argument) -> bool:
    """Whether it has to be given, and its name says nothing, or is one letter that may mean a size."""
    unknown = argument.required and argument.role is None and argument.annotation not in PLAIN
    return unknown or _is_bare(argument)


def _with_inputs(arguments: list[Argument], inputs: Mapping[str, Any]) -> list[Argument]:
    """The arguments, where the user hands over some: of those, tensors are sequences by name, or by their axes."""
    found = []
    arguments = [
        replace(each, role=None)
        if (each.role or "").startswith("size ") and is_sequence(inputs.get(each.name))
        else each
        for each in arguments
    ]
    sequences = [each.name for each in arguments if each.role in STREAMS and isinstance(inputs.get(each.name), Tensor)]
    named = bool(sequences) or any(each.required and each.role in STREAMS for each in arguments)
    others = [each.name for each in arguments if each.role is None and is_sequence(inputs.get(each.name))]
    asking = {each.role for each in arguments if each.role in STREAMS and (each.name in sequences or each.required)}
    for each in arguments:
        value = inputs.get(each.name)
        if [each.name] == others and asking == {"x"}:
            each = replace(each, role="context", required=True)  # beside x: what it attends to
        elif each.name in inputs and (each.name not in sequences or not isinstance(value, Tensor)):
            unnamed = not named and isinstance(value, Tensor) and value.is_floating_point() and value.ndim > 1
            role = "x" if unnamed and each.role is None else "given"
            each = replace(each, role=role, required=role == "x" or each.required)
        elif each.name in sequences:
            each = replace(each, required=True)
        found.append(each)
    return found


def _guesses(unknown: int, streams: list[str | None]) -> list[tuple[str, ...]]:
    """Roles for the arguments that have to be given and whose names say nothing."""
    if streams == ["x"] and unknown >= 3:
        return [WEIGHTS[:unknown]]
    if unknown + len(streams) == 3 and unknown >= 2:
        return [("q", "k", "v")]
    if streams:
        return [()]
    guesses: dict[int, list[tuple[str, ...]]] = {
        2: [("x", "context"), ("x", "mask")],
        4: [("x", *WEIGHTS[:3]), ("q", "k", "v", "mask")],
        5: [("x", *WEIGHTS)],
    }
    return guesses.get(unknown, [("x",)])


def _unnamed(*roles: str) -> list[Argument]:
    return [Argument(str(index), role, required=True, positional=True) for index, role in enumerate(roles)]


def _settled(arguments: list[Argument]) -> list[Argument]:
    """The roles that hold together: queries alone are an x, and where nothing has to be given the first stream has."""
    roles = {each.role for each in arguments}
    required = {each.role for each in arguments if each.required}
    if {"q", "k", "v"} <= roles:
        arguments = [
            replace(each, role=None) if each.role in ("x", "context") and not each.required else each
            for each in arguments
        ]
    elif "q" in required and not roles & {"k", "v", "x"}:
        arguments = [replace(each, role="x") if each.role == "q" else each for each in arguments]
    names = {each.name.lower() for each in arguments}
    if {"h", "w"} <= names:
        axes = {"h": "height", "w": "width"}
        arguments = [
            replace(each, role=axes[each.name.lower()], required=each.required or type(each.default) is int)
            if each.name.lower() in axes
            else each
            for each in arguments
        ]  # what a size is by default fits no other map
    contexts = [each for each in arguments if each.role == "context" and each.required]
    if len(contexts) == 2 and not roles & {"x", "q", "k", "ids", "image"}:  # y and memory: one of them asks
        asks = next((each for each in contexts if not _is_of_an_encoder(each)), contexts[0])
        arguments = [replace(each, role="x") if each is asks else each for each in arguments]
    sequences = [each for each in arguments if each.role == "x" and each.required]
    if len(sequences) == 2:
        source = next((each for each in sequences if re.match("src|source|enc", each.name)), sequences[1])
        arguments = [replace(each, role="context") if each is source else each for each in arguments]
    if not required & set(STREAMS):
        first = next((each for each in arguments if each.role in STREAMS), None)
        wanted = {"q", "k", "v"} if {"q", "k", "v"} <= roles else {first.role if first is not None else None}
        arguments = [
            replace(each, required=True) if each.role is not None and each.role in wanted else each
            for each in arguments
        ]
    if any(each.role in ("context", "k") and each.required for each in arguments):
        asking = tuple(f"{each.name}_" for each in arguments if each.role in ("x", "q"))
        arguments = [
            replace(each, role="query lengths")
            if each.role == "lengths" and (_OF_QUERIES.match(each.name.lower()) or each.name.startswith(asking))
            else each
            for each in arguments
        ]
    return arguments


def _arguments(target: Callable[..., Any]) -> list[Argument] | None:
    """The arguments by name; None where no name is known."""
    call = target.forward if isinstance(target, nn.Module) else target
    try:
        parameters: Mapping[str, inspect.Parameter] = inspect.signature(call).parameters
    except (ValueError, TypeError):
        return None
    if isinstance(target, nn.Module):
        parameters = handed_up(type(target), parameters)
    named = [each for each in parameters.values() if each.kind not in (each.VAR_POSITIONAL, each.VAR_KEYWORD)]
    fixed = fixed_tensors(target)
    named = [each for each in named if each.name not in fixed]
    if all(each.kind is each.KEYWORD_ONLY and each.default is not each.empty for each in named):
        return None
    return [
        Argument(
            each.name,
            _role(each),
            each.default is inspect.Parameter.empty,
            each.kind is each.POSITIONAL_ONLY,
            "" if each.annotation is inspect.Parameter.empty else str(each.annotation),
            None if each.default is inspect.Parameter.empty else each.default,
        )
        for each in named
    ]


def _role(parameter: inspect.Parameter) -> str | None:
    name, role = parameter.name.lower(), call_meaning(parameter.name)
    if (vector := role_of_bias(name)) is not None:
        return vector
    if role in ("mask", "padding") and is_plain(parameter):  # as pad, the id of padding; or the name of a mask
        return None
    is_flag = isinstance(parameter.default, bool) or parameter.annotation in (bool, "bool")
    return "causal" if role in ("mask", None) and is_flag and _CAUSAL.search(name) else role
