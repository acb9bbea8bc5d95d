"""Steps of a recurrent decoder: the id of the last token, a state that asks, and what an encoder returned."""

from __future__ import annotations

import ast
import re
from collections.abc import Callable, Iterable, Iterator, Mapping
from functools import partial
from typing import Any

import torch
from torch import nn

from regard.check.target.argument import nodes_of
from regard.check.target.documented_shapes import documented_letters, said_of
from regard.check.target.names import is_encoded, is_state
from regard.check.target.preparation import modules_in
from regard.check.target.usage import parts_of

__all__ = [
    "CELL_STATE",
    "LAST_TOKEN",
    "LAST_VECTOR",
    "OF_STEPS",
    "PAST_WEIGHTS",
    "asks_in_steps",
    "documented_step_roles",
    "documented_vector_roles",
    "has_cell",
    "is_state_of_two",
    "last_token_candidates",
    "layers_of_states",
    "loses_first_axis",
    "past_weight_candidates",
    "state_widths",
    "step_candidates_of",
    "step_roles",
]

LAST_TOKEN = "last token"
"""The role of the ids of one token of each sample."""
LAST_VECTOR = "last token as a vector"
"""The role of the same as a row of ones and zeros."""
CELL_STATE = "cell state"
"""The role of what an LSTM keeps beside what it returns."""
OF_STEPS = (LAST_VECTOR, CELL_STATE)
PAST_WEIGHTS = "past weights"
"""The role of what each key was given in the steps before."""
_ANNOTATIONS = re.compile(r"annotations|keys", re.I)
"""In other names of what is attended to (Bahdanau et al. 2015)."""
_ONE_HOT = re.compile(r"one_?hot", re.I)
_GETS_AN_AXIS = re.compile(r"\b\w*emb\w*\(\s*\w+\s*\)\.unsqueeze\(")
"""What an embedding returns gets the axis of one token then: the ids have none."""
_SAID_STATE = re.compile(r"\bdecoder(?:'s)? (?:hidden )?state\b", re.I)
_SAID_ENCODED = re.compile(r"\bencoder(?:'s)? (?:hidden )?(?:states|outputs)\b", re.I)
_SAID_PAST = re.compile(
    r"\b(?:sum\w*|accumulat\w*|cumulative|previous)\b.{,20}\battention (?:weights|distributions)\b", re.I
)
_CELL = re.compile(r"\b(?:GRU|LSTM|RNN)Cell\b")
_SAMPLES_FIRST = re.compile(r"\bbatch_first\s*=\s*True\b")
_RECURRENT = re.compile(r"\b(?:nn\.)?(?:GRU|LSTM|RNN)(?:Cell)?\b")


def step_roles(named: Mapping[str, bool], source: str) -> dict[str, str]:
    """The roles of the arguments of such a step, by name; none where the three are not all there.

    Args:
        named: the arguments that have to be given, and whether an embedding looks them up.
        source: the text of the class.
    """
    ids = [name for name, is_looked_up in named.items() if is_looked_up]
    of_states = [name for name in named if name not in ids and is_state(name.partition("[")[0])]
    states = [name for name in of_states if not name.endswith("[1]")]
    others = [name for name in named if name not in (*ids, *of_states)]
    encoded = [name for name in others if is_encoded(name) or _ANNOTATIONS.search(name)]
    vectors = [name for name in others if _ONE_HOT.search(name)]
    if _RECURRENT.search(source) and (len(states), len(vectors), len(others), len(ids)) == (1, 1, 2, 0):
        (context,) = (name for name in others if name not in vectors)
        return {vectors[0]: LAST_VECTOR, states[0]: "x", context: "context"}
    if not _RECURRENT.search(source) or (len(ids), len(states), len(encoded)) != (1, 1, 1):
        return {}
    return {ids[0]: LAST_TOKEN, states[0]: "x", encoded[0]: "context"}


def documented_step_roles(named: Iterable[str], source: str) -> dict[str, str]:
    """The roles of a decoder's state and of an encoder's states by what is said of them, whatever their names are.

    As ":param st_hat: decoder hidden state at current time step" beside ":param h: encoder hidden states"; and those of
    the weights of the steps before.

    Args:
        named: the arguments that have to be given.
        source: the text of the class.
    """
    said = {name: said_of(source, name) for name in named}
    states = [name for name, each in said.items() if _SAID_STATE.search(each)]
    encoded = [name for name, each in said.items() if _SAID_ENCODED.search(each)]
    if len(states) != 1 or len(encoded) != 1 or states == encoded:
        return {}
    past = {name: PAST_WEIGHTS for name, each in said.items() if _SAID_PAST.search(each)}
    return {**past, states[0]: "x", encoded[0]: "context"}


def documented_vector_roles(roles: Mapping[str, str | None], source: str) -> dict[str, str]:
    """The roles of one vector of each sample, named as a sequence is, and of the sequence that it asks.

    As of forward(input, hids), "input: batch x width" and "hids: length x batch x width".

    Args:
        roles: by name, of the arguments that have to be given.
        source: the text of the class.
    """
    letters = {name: documented_letters(source, name) for name in roles}
    vectors = [name for name, role in roles.items() if role == "x" and letters[name] == "bd"]
    sequences = [name for name, role in roles.items() if role is None and sorted(letters[name]) == ["b", "d", "t"]]
    is_named = any(role in ("q", "k", "v", "context") for role in roles.values())
    if len(vectors) != 1 or len(sequences) != 1 or is_named:
        return {}
    return {vectors[0]: "x", sequences[0]: "context"}


def state_widths(target: Any) -> set[int]:
    """How wide the states of its recurrent layers are.

    Args:
        target: what is called.
    """
    layers = (each for module in modules_in(target) for each in module.modules())
    return {each.hidden_size for each in layers if isinstance(each, nn.RNNBase | nn.RNNCellBase)}


def layers_of_states(target: Any) -> int:
    """How many layers its one recurrent layer has; 1 where there are several such layers, or none.

    Args:
        target: what is called.
    """
    layers = (each for module in modules_in(target) for each in module.modules())
    found = [each.num_layers for each in layers if isinstance(each, nn.RNNBase)]
    return found[0] if len(found) == 1 else 1


def asks_in_steps(source: str, name: str) -> bool:
    """Whether an argument is a state by its name, of code that has a recurrent layer.

    Args:
        source: the text of the class.
        name: of the argument.
    """
    return is_state(name.partition("[")[0]) and _RECURRENT.search(source) is not None


def loses_first_axis(source: str, name: str) -> bool:
    """Whether the first axis of an argument is squeezed out: it is one of layers, and in front of the samples.

    Args:
        source: the text of the class.
        name: of the argument.
    """
    named, axis = re.escape(name), r"(?:(?:dim|axis)\s*=\s*)?0\s*\)"
    squeezed = rf"(?<![\w.]){named}\.squeeze\(\s*|\bsqueeze\(\s*{named}\s*,\s*"
    return re.search(f"(?:{squeezed}){axis}", source) is not None


def is_state_of_two(target: Any, source: str, name: str) -> bool:
    """Whether an argument is the state of an LSTM, two tensors: it is taken apart in two, or handed on to the layer.

    Args:
        target: what is called.
        source: its text.
        name: of the argument.
    """
    layers = {
        attribute
        for module in modules_in(target)
        for attribute, each in module.named_children()
        if isinstance(each, nn.LSTM | nn.LSTMCell)
    }
    if not layers or not is_state(name):
        return False
    handed_on = (
        each
        for each in nodes_of(source, ast.Call)
        if isinstance(each.func, ast.Attribute) and each.func.attr in layers
        for each in (*each.args, *(keyword.value for keyword in each.keywords))
    )
    return len(parts_of(source, name)) == 2 or any(isinstance(each, ast.Name) and each.id == name for each in handed_on)


def step_candidates_of(role: str, target: Any, source: str) -> dict[str, Callable[[Any], Any]]:
    """What may be given for an argument of one of these roles, by a name for each.

    Args:
        role: one of `OF_STEPS`.
        target: what is called.
        source: its text.
    """
    if role == LAST_VECTOR:
        return {"row of ones and zeros": _one_hot}
    (width, *_) = (*state_widths(target), 0)
    cell = {"of a cell": lambda draft: draft.draw(draft.sizes.batch, width or draft.width)}
    layers = {
        "of layers": lambda draft: draft.draw(layers_of_states(target), draft.sizes.batch, width or draft.width),
    }
    return {**cell, **layers} if has_cell(source) else {**layers, **cell}


def _one_hot(draft: Any) -> Any:
    """(samples, ids): as wide as what a recurrent cell takes beside the context, or as there are ids."""
    cells = (each for module in modules_in(draft.target) for each in module.modules())
    taken = [each.input_size for each in cells if isinstance(each, nn.RNNBase | nn.RNNCellBase)]
    rest = next((each - draft.context_width for each in taken if each > draft.context_width), draft.sizes.vocab)
    return torch.eye(rest, dtype=torch.float64)[(torch.arange(draft.sizes.batch) + 1) % rest]


def has_cell(source: str) -> bool:
    """Whether the code has a recurrent cell: its states have no axis of layers, and its tokens none of steps."""
    return _CELL.search(source) is not None


def last_token_candidates(source: str) -> Iterator[tuple[str, Callable[[Any], Any]]]:
    """One id for each sample, with an axis of one token behind it, without, or in front; the likeliest first.

    Args:
        source: the text of the class, which tells what its recurrent layer takes.
    """
    shapes = {"(samples, 1)": (-1, 1), "(samples,)": (-1,), "(1, samples)": (1, -1)}
    has_no_axis = has_cell(source) or _GETS_AN_AXIS.search(source) is not None
    first = "(samples,)" if has_no_axis else "(samples, 1)" if _SAMPLES_FIRST.search(source) else "(1, samples)"
    for name in sorted(shapes, key=lambda each: each != first):
        yield name, partial(_ids, shape=shapes[name])


def past_weight_candidates(target: Any) -> Iterator[tuple[str, Callable[[Any], Any]]]:
    """A weight of each key, or as many as a convolution over the keys takes: the last ones, and their sum so far.

    Args:
        target: what is called.
    """
    layers = [layer for module in modules_in(target) for layer in module.modules() if isinstance(layer, nn.Conv1d)]
    for channels in dict.fromkeys(each.in_channels for each in layers):
        yield f"{channels} of each key", partial(_weights, channels=channels)
    yield "of each key", lambda draft: _weights(draft, 1)[:, 0]


def _weights(draft: Any, channels: int) -> Any:
    return draft.draw(draft.sizes.batch, channels, draft.keys).softmax(-1)


def _ids(draft: Any, shape: tuple[int, ...]) -> Any:
    return (torch.arange(draft.sizes.batch) + 1).reshape(shape)
