"""Dropout and other chance: dropout that stays on in eval(), dropout of the scores, and output that is random."""

from __future__ import annotations

import inspect
import itertools
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import replace
from typing import Any

import torch
from torch import Tensor
from torch.overrides import TorchFunctionMode

from regard.check.behaviour.calls import output_gap
from regard.check.behaviour.examination import Examination
from regard.check.recipes.case import Case
from regard.check.search.calls import ProbeCall
from regard.check.search.lines import same_numbers
from regard.check.target.seeds import seeded

__all__ = ["dropout_in_eval", "dropout_of_scores", "is_repeatable", "without_dropout"]

DROPOUTS = frozenset(
    f"{kind}dropout{end}" for kind in ("", "alpha_", "feature_", "feature_alpha_", "native_") for end in ("", "_")
) | {"dropout1d", "dropout2d", "dropout3d"}


class _WithoutDropout(TorchFunctionMode):
    """Dropout is the identity, whoever calls it, and keeps what it is given if somebody wants to know."""

    def __init__(self) -> None:
        super().__init__()
        self.dropped: list[Tensor] = []

    def __torch_function__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        kwargs = dict(kwargs or {})
        name = getattr(func, "__name__", "")
        if name in DROPOUTS:
            given = args[0] if args else kwargs["input"]
            self.dropped.append(given.detach().clone())
            return (given, torch.ones_like(given, dtype=torch.bool)) if name.startswith("native") else given
        if name == "bernoulli_":  # as dropout and stochastic depth are written by hand
            return args[0].fill_(1)
        if name == "bernoulli":
            return torch.ones_like(args[0] if args else kwargs["input"])
        if name == "scaled_dot_product_attention":
            if len(args) > 4:
                args = (*args[:4], 0.0, *args[5:])
            elif "dropout_p" in kwargs:
                kwargs["dropout_p"] = 0.0
        elif name == "multi_head_attention_forward":
            bound = inspect.signature(func).bind(*args, **kwargs)
            bound.arguments.update(dropout_p=0.0)
            args, kwargs = bound.args, bound.kwargs
        return func(*args, **kwargs)


@contextmanager
def without_dropout() -> Iterator[list[Tensor]]:
    """Inside, every dropout is the identity: what else is wrong can be found beneath one that is left on.

    One that is written with `bernoulli_` keeps everything, and still divides by the share that it would have kept.

    Yields:
        What was given to each dropout, as it was then.
    """
    mode = _WithoutDropout()
    with mode:
        yield mode.dropped


def is_repeatable(call: ProbeCall, case: Case) -> bool:
    """Whether the same input gives the same output; else no comparison of two calls shows anything."""
    outputs = []
    for _ in range(2):
        with without_dropout(), seeded():
            outputs.append(call(case))
    return not output_gap(*outputs)


def dropout_in_eval(examination: Examination) -> None:
    """Two calls in eval(): do they differ, and is it dropout?"""
    call, case, _ = examination.pairs[0]
    with seeded(1):
        first = call(case)
    with seeded(2):
        second = call(case)
    with seeded(1):
        third = call(case)
    gap = output_gap(first, second)
    if not gap or output_gap(first, third):  # the same seed gives another output: it is no chance
        return
    with without_dropout():
        with seeded(1):
            first = call(case)
        with seeded(2):
            second = call(case)
    if not output_gap(first, second):
        examination.add_mistake("dropout-in-eval", number=gap)
        return
    examination.diagnosis.is_random = True
    examination.diagnosis.why.append(
        f"its output is random: two calls with the same input differ by up to {gap:.2g}, and dropout is not the cause"
    )


def dropout_of_scores(examination: Examination) -> None:
    """What train() drops, beside the recipe's scores and its weights."""
    for explained in itertools.islice(examination.explained_calls(), 2):
        with without_dropout() as dropped:
            replace(explained.call, training=True)(explained.observed.case)
        state = explained.state
        for given in dropped:
            if state.weights is not None and same_numbers(given, state.weights):
                continue
            steps = (state.scores, state.scaled, state.biased, state.masked)
            if any(step is not None and same_numbers(given, step) for step in steps):
                examination.add_mistake("dropout-before-softmax")
                return
