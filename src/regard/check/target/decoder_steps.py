"""Steps of a recurrent decoder: the id of the last token, a state that asks, and what an encoder returned."""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator, Mapping
from functools import partial
from typing import Any

import torch
from torch import nn

from regard.check.target.names import is_encoded, is_state
from regard.check.target.preparation import modules_in

__all__ = [
    "LAST_TOKEN",
    "PAST_WEIGHTS",
    "asks_in_steps",
    "has_cell",
    "last_token_candidates",
    "layers_of_states",
    "past_weight_candidates",
    "state_widths",
    "step_roles",
]

LAST_TOKEN = "last token"
"""The role of the ids of one token of each sample."""
PAST_WEIGHTS = "past weights"
"""The role of what each key was given in the steps before."""
_ANNOTATIONS = re.compile(r"annotations|keys", re.I)
"""In other names of what is attended to (Bahdanau et al. 2015)."""
_GETS_AN_AXIS = re.compile(r"\b\w*emb\w*\(\s*\w+\s*\)\.unsqueeze\(")
"""What an embedding returns gets the axis of one token then: the ids have none."""
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
    states = [name for name in named if name not in ids and is_state(name)]
    encoded = [
        name for name in named if name not in (*ids, *states) and (is_encoded(name) or _ANNOTATIONS.search(name))
    ]
    if not _RECURRENT.search(source) or (len(ids), len(states), len(encoded)) != (1, 1, 1):
        return {}
    return {ids[0]: LAST_TOKEN, states[0]: "x", encoded[0]: "context"}


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
    return is_state(name) and _RECURRENT.search(source) is not None


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
