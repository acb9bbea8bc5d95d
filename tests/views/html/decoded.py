"""Pages as their own data.js reads them, in node, and held against the recordings that they were written of."""

from base64 import b64decode
from collections.abc import Callable
from dataclasses import dataclass
from math import tanh
from typing import Any

import numpy as np
import torch
from torch import Tensor

from regard.lens.maps.map import AttentionMap
from regard.lens.recording.recording import Recording
from regard.views.html.codec import MAX_INT16
from regard.views.html.quantization import MAX_WEIGHT_ERROR


@dataclass
class Head:
    """What a page computes of one head; no rows where it has a picture alone."""

    facts: dict[str, Any]
    rows: list[int]
    weights: Tensor
    outputs: Tensor | None
    map: Tensor | None
    picture: Tensor
    entropy: Tensor | None
    received: Tensor | None
    lse: Tensor | None
    """Of the rows."""


@dataclass
class Page:
    facts: dict[str, Any]
    attentions: dict[str, list[Head]]
    """The heads of each path."""

    @property
    def whole(self) -> list[tuple[str, int]]:
        """The heads that are carried, by path and place."""
        return [(path, i) for path, heads in self.attentions.items() for i, head in enumerate(heads) if head.rows]

    def about(self, path: str) -> dict[str, Any]:
        return next(facts for facts in self.facts["attentions"] if facts["path"] == path)


def decode(node: Callable[[str, Any], Any], text: str, stride: int = 1) -> Page:
    """Read a page; of each head every n-th row."""
    answer = node("page", {"text": text, "stride": stride})
    attentions = {
        facts["path"]: [_head(head, facts, i) for i, head in enumerate(heads)]
        for facts, heads in zip(answer["facts"]["attentions"], answer["attentions"], strict=True)
    }
    return Page(answer["facts"], attentions)


def assert_rows_are_the_maps(page: Page, recording: Recording, batch: int = 0) -> int:
    """Hold every row of a page against the recording's own; how many rows these were."""
    count = 0
    for path, heads in page.attentions.items():
        bound, m = page.about(path)["max_weight_error"], recording[path]
        assert bound <= max(MAX_WEIGHT_ERROR, _largest_error_of_16_bits(m)), path
        for i, head in enumerate(heads):
            if head.rows:
                error = float((head.weights - m[batch, i, torch.tensor(head.rows)].double()).abs().max())
                assert error <= bound + 1e-6, (path, i)
                if head.map is not None:
                    torch.testing.assert_close(head.map[head.rows], head.weights, atol=1e-6, rtol=1e-5)
                count += len(head.rows)
    return count


def _largest_error_of_16_bits(m: AttentionMap) -> float:
    """By how much a weight may change where queries and keys are rounded to the nearest numbers of 16 bits."""
    half_step = max(float(t.abs().max()) for t in (m.q, m.k)) / MAX_INT16 / 2
    change = half_step * sum(float(t.double().abs().sum(-1).max()) for t in (m.q, m.k)) * abs(m.scale)
    # One score up and all others down by as much: the logit of its weight changes by twice that, at most across 1/2.
    return tanh(change / 2)


def _head(answer: dict[str, Any], facts: dict[str, Any], i: int) -> Head:
    weights, outputs = ([_numbers(row) for row in answer[name] if row] for name in ("weights", "outputs"))
    m, picture = _numbers(answer["map"]), answer["picture"]
    return Head(
        facts["heads"][i],
        answer["rows"],
        torch.stack(weights) if weights else torch.zeros(0, facts["keys"]),
        torch.stack(outputs) if outputs else None,
        None if m is None else m.view(facts["queries"], facts["keys"]),
        _numbers(picture["cells"]).view(picture["high"], picture["wide"]),
        *(_numbers(answer[name]) for name in ("entropy", "received", "lse")),
    )


def _numbers(coded: str | None) -> Tensor | None:
    return None if coded is None else torch.from_numpy(np.frombuffer(b64decode(coded), np.float64).copy())
