"""Recurrent layers that are called token by token: each call goes on from the state that the one before it left."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import torch
from torch import Tensor, nn

from regard.check.properties.finding import Finding
from regard.check.roles.contractions import MATRICES
from regard.check.trace.operation import Operation, TensorRecord, Trace

__all__ = ["recurrent_step_findings"]

FEWEST_STEPS = 3
"""A first step begins with a state of zeros in right code as well."""


def recurrent_step_findings(target: Any, trace: Trace) -> Iterator[Finding]:
    """A layer whose recurrent matrix meets nothing but zeros, in steps that read what it returned in earlier ones.

    Such a layer is not recurrent: what it knows of the steps before comes by its input alone.

    Args:
        target: what was called.
        trace: its run.
    """
    for name, layer in target.named_modules() if isinstance(target, nn.Module) else ():
        if not isinstance(layer, nn.RNNBase | nn.RNNCellBase):
            continue
        of_states, of_inputs = ([*_products(trace, weight)] for weight in _first_matrices(layer))
        if len(of_states) < FEWEST_STEPS or any(bool(given.data.any()) for _, given in of_states):
            continue
        made = trace.made_of([of_states[0][0].outputs[0].storage])
        if all(given.storage in made for _, given in of_inputs[1:]):
            message = (
                f"{name or 'the recurrent layer'} is called {len(of_states)} times, begins each time with a state of "
                "zeros, and its input alone is made of what it returned before: its recurrent matrix has no effect"
            )
            yield Finding("violation", "state-handed-on", "block", message, of_states[-1][0].location, name)
            return


def _first_matrices(layer: nn.RNNBase | nn.RNNCellBase) -> tuple[Tensor, Tensor]:
    """The matrices of the state, and of the input, of its first layer."""
    names = ("weight_hh", "weight_ih") if isinstance(layer, nn.RNNCellBase) else ("weight_hh_l0", "weight_ih_l0")
    of_state, of_input = (layer.get_parameter(each).detach() for each in names)
    return of_state, of_input


def _products(trace: Trace, weight: Tensor) -> Iterator[tuple[Operation, TensorRecord]]:
    """Each product with a matrix, and what it takes beside this."""
    for operation in trace:
        if operation.name in MATRICES and len(operation.inputs) > 1:
            *_, given, matrix = operation.inputs
            is_matrix = matrix.learned and matrix.data.ndim > 1  # else a vector, as what pooling asks with
            if is_matrix and torch.equal(matrix.data.mT, weight.to(matrix.data.dtype)):
                yield operation, given
