"""Masks in train(): what is hidden from attention where a model is evaluated is hidden where it learns."""

from __future__ import annotations

import re
from collections.abc import Iterator
from dataclasses import replace

import torch
from torch import nn

from regard.check.properties.code import code_of
from regard.check.properties.finding import Finding
from regard.check.properties.masks.drawn import padding_mask
from regard.check.properties.masks.hidden_keys import LEAST, OF_NEIGHBOURS, hiding_values, moved_by
from regard.check.roles.influence import record_invocation, selections
from regard.check.target import Invocation
from regard.check.target.preparation import copied, in_mode

__all__ = ["trained_mask_findings"]

_ASKS_WHETHER_IT_TRAINS = re.compile(
    r"\bif\b[^\n]*\.training\b|\.training\s+(?:and|or|if|else)\b|\bnot\s+\w+\.training\b"
)
"""Code that takes other steps in train(), beside dropout, which is told."""
OF_OTHER_SAMPLES = frozenset({"randperm", "randint", "multinomial", "rand", "randn", "rand_like", "randn_like"})
"""Random numbers by which tokens may be chosen, or samples mixed, while a model is trained."""


def trained_mask_findings(invocation: Invocation) -> Iterator[Finding]:
    """Tokens that a mask, or lengths, hide in eval() and that reach the others in train().

    Args:
        invocation: a call of a module that takes masks, of one sequence.
    """
    streams, target = invocation.streams, invocation.target
    if not isinstance(target, nn.Module) or not _ASKS_WHETHER_IT_TRAINS.search(code_of(target)):
        return
    if len(streams) != 1 or streams[0].batch_axis != 0 or streams[0].token_axes != (1,):
        return
    name = streams[0].argument
    given = invocation.arguments[name]
    if not given.is_floating_point() or not (invocation.masks or invocation.lengths):
        return
    trained = replace(invocation, target=in_mode(copied(target), training=True))
    run = record_invocation(trained)
    if run.error or any(each.name in OF_NEIGHBOURS | OF_OTHER_SAMPLES for each in run) or selections(run):
        return
    samples, tokens = given.shape[:2]
    keys = padding_mask([samples, tokens], "end")
    drawn = torch.randn(given.shape, generator=torch.Generator().manual_seed(7), dtype=given.dtype)
    other = {name: torch.where(keys.reshape(samples, tokens, *[1] * (given.ndim - 2)), given, drawn)}
    free = moved_by(invocation, other, {}, keys)
    if free is None or free[0] <= LEAST:
        return
    for argument, values in hiding_values(invocation, keys):
        for value in values:
            moved = moved_by(invocation, other, {argument: value}, keys)
            if moved is None or moved[0] > LEAST:
                continue
            learned = moved_by(trained, other, {argument: value}, keys)
            if learned is not None and learned[0] > LEAST:
                message = (
                    f"tokens that {argument} hides in eval() reach the others in train(): exchanged, they change an "
                    f"output there by up to {learned[0]:.2g}"
                )
                yield Finding("violation", "hidden-in-training", "mask", message)
                return
            break
