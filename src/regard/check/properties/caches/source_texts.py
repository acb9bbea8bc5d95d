"""Methods that write what a source is translated to: each step sees what the whole text would show it."""

from __future__ import annotations

import inspect
from collections.abc import Iterator
from typing import Any

import torch
from torch import Tensor, nn
from torch.utils._pytree import tree_leaves

from regard.check.properties.caches.written_texts import (
    FEWEST_STEPS,
    ends_of,
    first_apart,
    is_of_ids,
    last_logits,
    writing_methods,
    written_apart,
)
from regard.check.properties.finding import Finding
from regard.check.properties.other_methods import needs_of
from regard.check.target import Invocation
from regard.check.target.double_precision import double_precision
from regard.check.target.preparation import copied

__all__ = ["source_text_findings"]


def source_text_findings(invocation: Invocation) -> Iterator[Finding]:
    """A method that writes the likeliest tokens by other logits than the call of the source and the text so far gives.

    As where a step is handed the newest token alone, and nothing is kept of those before.

    Args:
        invocation: a call of a module with the ids of a source and of a text.
    """
    target, streams = invocation.target, invocation.streams
    texts = {each.argument: invocation.arguments[each.argument] for each in streams if each.batch_axis == 0}
    if not isinstance(target, nn.Module) or len(streams) != 2 or not all(map(is_of_ids, texts.values())):
        return
    for name, method in inspect.getmembers(type(target), inspect.isfunction):
        sources = [each for each in texts if each in needs_of(method)] if len(texts) == 2 else []
        for told in writing_methods(name, method, sources[0], texts[sources[0]][:1]) if len(sources) == 1 else ():
            found = _first_other(target, name, told, sources[0], list(invocation.arguments))
            if found is not None:
                yield written_apart(name, method, *found)
                return


def _first_other(
    target: nn.Module, method: str, told: dict[str, Any], source: str, order: list[str]
) -> tuple[int, float] | None:
    """The first token with other logits than the call gives, and how far apart these are; None where all are the same.

    Or where that is not known: each token that is written has to be the likeliest by the logits that are compared.
    """
    given, logits = told[source], list[Tensor]()

    def of_both(text: Tensor) -> list[Tensor]:
        return [given if each == source else text for each in order]

    model = copied(target)
    _, making = ends_of(copied(target), of_both(given))
    parts = dict(model.named_modules())
    if len(order) != 2 or making not in parts:
        return None
    parts[making].register_forward_hook(
        lambda _, __, output: logits.extend(each for each in [last_logits(output)] if each is not None)
    )
    try:
        with torch.no_grad(), torch.random.fork_rng(devices=[]), double_precision():
            (text, *_) = filter(is_of_ids, tree_leaves(getattr(model, method)(**told)))
            if len(logits) < FEWEST_STEPS or text.shape != (len(given), len(logits) + 1):
                return None
            if any(not torch.equal(each.argmax(-1), text[:, at + 1]) for at, each in enumerate(logits)):
                return None
            whole = [last_logits(copied(target)(*of_both(text[:, : at + 1]))) for at in range(len(logits))]
    except Exception:  # code of others may raise anything
        return None
    found = first_apart(logits, whole)
    return found if found is not None and found[0] else None
