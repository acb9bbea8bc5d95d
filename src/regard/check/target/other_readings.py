"""What the arguments of a call may mean besides, where it does not run as it is likeliest read."""

from __future__ import annotations

import ast
import re
from collections.abc import Iterator
from dataclasses import replace

from regard.check.target.argument import PLAIN, STREAMS, Argument, nodes_of
from regard.check.target.axes_inside import OF_NO_SAMPLE
from regard.check.target.documented_shapes import is_unpacked_sequence
from regard.check.target.graph_values import NUMBERS_OF_PAIRS
from regard.check.target.graphs import OF_PAIRS
from regard.check.target.names import call_meaning, first_word, is_encoded, is_state
from regard.check.target.usage import is_tensor

__all__ = ["beside_named_queries", "beside_projected_keys", "beside_what_was_encoded", "other_readings"]

_PROJECTED = re.compile(
    r"(?:p|proj|projected|processed)_(?P<of>\w{4,})|(?P<before>\w{2,})_(?:p|proj|projected|processed)"
)
"""What was made of another argument before the call, as p_att_feats of att_feats."""
_ADDITIVE = re.compile(r"tanh.*softmax|softmax.*tanh", re.I | re.S)


def beside_named_queries(named: list[Argument], source: str) -> list[Argument]:
    """The arguments; beside what is named after queries, the one that is named after an encoder is what is asked.

    Or the one whose axes are unpacked as those of a sequence, as by b, length, _ = passage.shape.

    As in forward(self, encoder_seq_proj, query, t): by their places alone the three would be queries, keys and values.
    They are where the queries come first and all three are read.

    Args:
        named: the arguments.
        source: the text of what is called.
    """
    given = [each for each in named if each.required]
    streams = [each for each in given if each.role in STREAMS]
    untold = [each for each in given if each.role is None and each.annotation not in PLAIN]
    encoded = [each for each in untold if is_encoded(each.name) or is_unpacked_sequence(source, each.name)]
    if [each.role for each in streams] != ["q"] or len(encoded) != 1:
        return named
    is_by_place = given[0] is streams[0] and all(_is_read(each.name, source) for each in untold)
    return named if is_by_place else [replace(each, role="context") if each is encoded[0] else each for each in named]


def beside_projected_keys(named: list[Argument]) -> list[Argument]:
    """The arguments; beside a state, of features and the same features projected already, both are what is asked.

    As in forward(self, h, att_feats, p_att_feats), of which the keys are made once for all steps (Xu et al. 2015,
    "Show, Attend and Tell"): by their places alone the three would be queries, keys and values.

    Args:
        named: the arguments.
    """
    given = [each for each in named if each.required and each.annotation not in PLAIN]
    open_ones = [each.name for each in given if each.role in (None, "x", "context", "q")]
    pairs = [(match["of"] or match["before"], name) for name in open_ones if (match := _PROJECTED.fullmatch(name))]
    pairs = [pair for pair in pairs if pair[0] in open_ones]
    asking = [each for each in given if pairs and each.name not in pairs[0]]
    if len(pairs) != 1 or len(given) != 3 or asking[0].name not in open_ones:
        return named
    if not is_state(asking[0].name) and asking[0].role not in ("x", "q"):
        return named
    roles = {asking[0].name: "x", **dict.fromkeys(pairs[0], "context")}
    return [replace(each, role=roles.get(each.name, each.role)) for each in named]


def beside_what_was_encoded(named: list[Argument], source: str) -> list[Argument]:
    """The arguments; beside two that an encoder made, what the code gives the axis of the keys is a state that asks.

    As s of forward(self, s, encoder_outputs, encoder_feature), whose projection is seen beside each key by
    .unsqueeze(1): without it one of the two would be taken for what asks the other one.

    Args:
        named: the arguments.
        source: the text of what is called.
    """
    given = [each for each in named if each.required]
    encoded = [each for each in given if each.role in ("context", "k", "v") and is_encoded(each.name)]
    open_ones = [each for each in given if each.role is None and each.annotation not in PLAIN]
    asking = [each for each in open_ones if _stands_beside_keys(each.name, source)]
    if len(encoded) != 2 or len(asking) != 1 or any(each.role in ("x", "q", "ids") for each in given):
        return _beside_what_is_summed(named, source)
    return [replace(each, role="x") if each is asking[0] else each for each in named]


def _beside_what_is_summed(named: list[Argument], source: str) -> list[Argument]:
    """The arguments; of two sequences, the one whose projection is seen beside each of the other is a state that asks.

    As h1 of forward(self, image_features, h1), where scores are made by a tanh of self.h(h1).unsqueeze(1) and of
    self.v(image_features) (additive attention): by their places alone the features would ask.

    Args:
        named: the arguments.
        source: the text of what is called.
    """
    given = [each for each in named if each.required and each.annotation not in PLAIN]
    asking = [each for each in given if _stands_beside_keys(each.name, source)]
    are_open = len(given) == 2 and {each.role for each in given} <= {None, "x", "context"}
    if not are_open or len(asking) != 1 or not _ADDITIVE.search(source):
        return named
    roles = {each.name: "x" if each is asking[0] else "context" for each in given}
    return [replace(each, role=roles.get(each.name, each.role)) for each in named]


def _stands_beside_keys(name: str, source: str) -> bool:
    """Whether it, or what a layer makes of it, gets an axis behind the samples."""
    projected = rf"self\.\w+\(\s*{re.escape(name)}\s*\)"
    made = re.findall(rf"^\s*(\w+)\s*=\s*{projected}", source, re.M)
    several = "|".join((projected, *map(re.escape, (name, *made))))
    behind = r"\.unsqueeze\(\s*(?:dim\s*=\s*)?1\s*\)|\[:,\s*None"
    return re.search(rf"(?<![\w.])(?:{several})(?:{behind})", source) is not None


def _is_read(name: str, source: str) -> bool:
    """Whether a line of the code reads an argument at all."""
    return any(each.id == name and isinstance(each.ctx, ast.Load) for each in nodes_of(source, ast.Name))


def other_readings(named: list[Argument], source: str) -> Iterator[list[Argument]]:
    """Further readings of the arguments of a call, the likelier ones first.

    Args:
        named: the arguments.
        source: the text of what is called.
    """
    yield from _of_a_context(named)
    yield from _asked_by_others(named, source)
    yield from _of_a_graph(named)


def _of_a_context(named: list[Argument]) -> list[list[Argument]]:
    """The reading by which m, beside an x alone, is no mask but a memory."""
    given = [each for each in named if each.required]
    if not any(each.name.lower() == "m" and each.role == "mask" for each in given) or len(given) != 2:
        return []
    return [[replace(each, role="context") if each.name.lower() == "m" else each for each in named]]


def _asked_by_others(named: list[Argument], source: str) -> list[list[Argument]]:
    """The reading by which an optional argument named after queries, as q_global, asks the tokens."""
    sequences = [each for each in named if each.required and each.role in STREAMS]
    asking = [each for each in named if not each.required and each.default is None and _is_of_queries(each, source)]
    if len(asking) != 1 or [each.role for each in sequences] != ["x"]:
        return []
    roles = {sequences[0].name: "context", asking[0].name: "x"}
    return [[replace(each, role=roles[each.name], required=True) if each.name in roles else each for each in named]]


def _is_of_queries(argument: Argument, source: str) -> bool:
    """Whether a tensor is named after queries, alone or by its first word."""
    name = argument.name
    return argument.role in (None, "q") and "q" in (first_word(name), call_meaning(name)) and is_tensor(source, name)


def _of_a_graph(named: list[Argument]) -> list[list[Argument]]:
    """The reading by which all that is named after pairs of nodes are numbers of these, and none of it hides a key.

    As the distances of atoms and the bonds between them, which are weights of their own beside those of attention.
    """
    untold = [each.name for each in named if each.required and each.role in (None, OF_NO_SAMPLE)]
    of_pairs = {name for name in untold if OF_PAIRS.search(name.lower())}
    if not of_pairs or not any(each.required and each.role in STREAMS for each in named):
        return []
    of_pairs |= {each.name for each in named if each.required and each.role == "mask" and each.name.startswith("adj")}
    return [[replace(each, role=NUMBERS_OF_PAIRS) if each.name in of_pairs else each for each in named]]
