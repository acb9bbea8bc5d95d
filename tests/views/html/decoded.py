"""Pages as their own data.js reads them, in node, and held against the recordings that they were written of."""

import json
from base64 import b64decode
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch
from torch import Tensor

from regard.lens.maps.map import AttentionMap
from regard.lens.recording.recording import Recording

STEEP = 500.0


@dataclass
class Head:
    """What a page computes of one head."""

    facts: dict[str, Any]
    rows: list[int]
    """The queries that were computed; none where the page has a picture alone."""
    weights: Tensor
    outputs: Tensor | None
    map: Tensor | None
    picture: Tensor
    entropy: Tensor | None
    received: Tensor | None


@dataclass
class Page:
    facts: dict[str, Any]
    attentions: dict[str, list[Head]]
    """The heads of each path."""

    @property
    def whole(self) -> list[tuple[str, int]]:
        """The heads that are carried, by path and place."""
        return [
            (path, place) for path, heads in self.attentions.items() for place, head in enumerate(heads) if head.rows
        ]

    def about(self, path: str) -> dict[str, Any]:
        return next(each for each in self.facts["attentions"] if each["path"] == path)


def opened(node, *texts: str, every: int = 1) -> list[Page]:
    """Read pages, all in one process; of each head every n-th row."""
    said = json.dumps([{"text": text, "every": every} for text in texts])
    return [_page(each) for each in json.loads(node("decode.js", said=said))]


def recorded(*maps: AttentionMap, kind: str = "self", heads: list[int] | None = None) -> Recording:
    """Maps as the layers of a recording."""
    recording = Recording()
    for layer, m in enumerate(maps):
        batch, count, queries, keys = m.shape
        shape = (batch, count, queries, keys)
        recording.add(f"layers.{layer}", m, shape=shape, mask=m.mask, kernel="", kind=kind, layer=layer, heads=heads)
    return recording


def holds(page: Page, recording: Recording, batch: int = 0) -> int:
    """Hold every row of a page against the recording's own; how many rows these were."""
    count = 0
    for path, heads in page.attentions.items():
        within = page.about(path)["max_weight_error"]
        m = recording[path]
        largest = [float(t.double().norm(dim=-1).max()) for t in (m.q, m.k)]
        # Scores of many hundreds are off by more than that in any number of 16 bits; the page says by how much.
        most = 1e-3 if largest[0] * largest[1] * abs(m.scale) < STEEP else within + 1e-6
        assert within < most
        for place, head in enumerate(heads):
            if not head.rows:
                continue
            exact = recording[path][batch, place, torch.tensor(head.rows)].double()
            off = float((head.weights - exact).abs().max())
            assert off < most, (path, place, off)
            assert off <= within + 1e-6, (path, place, off, within)
            if head.map is not None:
                torch.testing.assert_close(head.map[head.rows], head.weights, atol=1e-6, rtol=1e-5)
            count += len(head.rows)
    return count


def _page(said: dict[str, Any]) -> Page:
    facts = said["facts"]
    attentions = {
        about["path"]: [_head(head, about, place) for place, head in enumerate(heads)]
        for about, heads in zip(facts["attentions"], said["attentions"], strict=True)
    }
    return Page(facts, attentions)


def _head(said: dict[str, Any], about: dict[str, Any], place: int) -> Head:
    rows = said["rows"]
    outputs = [_numbers(each) for each in said["outputs"] if each is not None]
    picture = said["picture"]
    return Head(
        about["heads"][place],
        rows,
        torch.stack([_numbers(each) for each in said["weights"]]) if rows else torch.zeros(0, about["keys"]),
        torch.stack(outputs) if outputs else None,
        None if said["map"] is None else _numbers(said["map"]).view(about["queries"], about["keys"]),
        _numbers(picture["cells"]).view(picture["high"], picture["wide"]),
        *(None if said[name] is None else _numbers(said[name]) for name in ("entropy", "received")),
    )


def _numbers(coded: str) -> Tensor:
    return torch.from_numpy(np.frombuffer(b64decode(coded), np.float64).copy())
