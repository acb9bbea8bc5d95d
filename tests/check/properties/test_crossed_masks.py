"""Causal masks between two sequences are right where the source is read step by step, or the caller wants it so."""

from __future__ import annotations

from collections.abc import Callable

import pytest
import torch
from torch import Tensor

from property_cases import of_x_and_context
from property_cases.surrounding_cases import seeing, translated
from regard.check.properties.analyze import analyze


def read_while_it_goes_on(x: Tensor, context: Tensor) -> Tensor:
    return translated(x, context, causal_encoder=True, causal_between=True)


def simultaneous(x: Tensor, context: Tensor) -> Tensor:
    """Translates while it listens (wait-k)."""
    return translated(x, context, causal_encoder=False, causal_between=True)


def of_one_memory(x: Tensor, context: Tensor) -> Tensor:
    """Two sequences in step, without an encoder."""
    later = torch.ones(x.shape[1], x.shape[1], dtype=torch.bool).triu(1)
    return seeing(seeing(x, x, later), context, later)


def of_a_decoder_that_sees_all(x: Tensor, context: Tensor) -> Tensor:
    shown = torch.zeros(x.shape[1], x.shape[1], dtype=torch.bool)
    return seeing(seeing(x, x, shown), seeing(context, context, shown), torch.ones_like(shown).triu(1))


@pytest.mark.more
@pytest.mark.parametrize(
    "function",
    [read_while_it_goes_on, simultaneous, of_one_memory, of_a_decoder_that_sees_all],
    ids=lambda each: each.__name__,
)
def test_a_source_that_is_read_in_step_may_be_hidden(function: Callable[..., Tensor]) -> None:
    assert analyze(of_x_and_context(function), masks=True).violations == []
