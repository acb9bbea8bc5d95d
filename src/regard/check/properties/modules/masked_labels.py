"""What a method of a masked language model returns for training: tokens that are hidden, and which ones stood there."""

from __future__ import annotations

import inspect
import re
from collections.abc import Iterator, Mapping
from typing import Any

import torch
from torch import Tensor, nn

from regard.check.properties.code import line_of
from regard.check.properties.finding import Finding
from regard.check.properties.other_methods import needs_of
from regard.check.target import Invocation
from regard.check.target.names import call_meaning
from regard.check.target.preparation import copied
from regard.check.trace.operation import Trace

__all__ = ["masked_label_findings"]

_HIDES = re.compile(r"(?:^|_)(?:mask|corrupt|noise|mlm|cloze)", re.I)
"""In the names of methods that hide tokens."""
IGNORED = -100
"""The label of a token that no loss is taken of (PyTorch's ``ignore_index``)."""
FIRST_WORD = 8
"""Smaller ids may be of tokens that are never hidden."""
SHAPE = (4, 48)
"""Samples, tokens: so many that some are hidden."""


def masked_label_findings(invocation: Invocation, base: Trace) -> Iterator[Finding]:
    """Labels that are the tokens put in the place of the hidden ones, and not these.

    As where tokens are exchanged in place, and the labels are taken from the same memory afterwards. Devlin et al.
    2019, "BERT", section 3.1: the tokens that stood there are predicted.

    Args:
        invocation: a call of ids.
        base: its run.
    """
    target = invocation.target
    ids = [each for each in invocation.streams if not invocation.arguments[each.argument].is_floating_point()]
    if not isinstance(target, nn.Module) or len(ids) != 1:
        return
    given = invocation.arguments[ids[0].argument]
    tables = [each.inputs[0] for each in base if each.name == "embedding" and torch.equal(each.inputs[1].data, given)]
    vocab = min((each.shape[0] for each in tables), default=0)
    if vocab < 2 * FIRST_WORD:
        return
    for name, method in inspect.getmembers(type(target), inspect.isfunction):
        if not _HIDES.search(name) or method.__module__.startswith("torch."):
            continue
        needs = needs_of(method)
        if len(needs) != 1 or not (needs[0] == ids[0].argument or call_meaning(needs[0]) == "ids"):
            continue
        original = torch.randint(FIRST_WORD, vocab, SHAPE, generator=torch.Generator().manual_seed(0))
        exchanged = _exchanged(target, name, original)
        if exchanged is not None:
            at = tuple(exchanged[0].tolist())
            message = (
                f"{name}() puts {int(exchanged[1])} in the place of token {int(original[at])}, and its label is "
                f"{int(exchanged[1])} too: what the model reads is what it is to tell"
            )
            line = line_of(method)
            yield Finding("violation", "labels-of-what-stood-there", "output", message, line)
            return


def _exchanged(target: nn.Module, name: str, original: Tensor) -> tuple[Tensor, Tensor] | None:
    """The first place where a method hides a token, and its label, where all such labels are what stands there now."""
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(0)
        try:
            returned = getattr(copied(target), name)(original.clone())
        except Exception:  # code of others may raise anything
            return None
    values = [*returned.values()] if isinstance(returned, Mapping) else returned
    several: list[Any] = [*values] if isinstance(values, list | tuple) else []
    found = [each for each in several if isinstance(each, Tensor) and each.shape == original.shape]
    found = [each for each in found if each.dtype == torch.long]
    labels = [each for each in found if bool((each == IGNORED).any())]
    inputs = [each for each in found if not bool((each == IGNORED).any())]
    if len(labels) != 1 or len(inputs) != 1:
        return None
    hidden = (labels[0] != IGNORED) & (inputs[0] != original)
    if not bool(hidden.any()) or not torch.equal(labels[0][hidden], inputs[0][hidden]):
        return None
    return hidden.nonzero()[0], labels[0][hidden][0]
