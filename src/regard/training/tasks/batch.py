"""Batches: examples of different lengths packed into one row of tokens, without padding."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, NamedTuple

import torch
from torch import Tensor

from regard._shapes import Int
from regard.training.loss import IGNORE_INDEX

Example = Mapping[str, Any]
"""What a model reads and predicts in one text: ``ids``, ``targets``, ``location`` and more, by the task."""


@dataclass(frozen=True)
class Batch:
    """Examples as the model reads them."""

    tensors: dict[str, Tensor]
    """The input of `Task.predict`."""
    num_predicted: int
    """Tokens that are predicted."""
    num_tokens: int
    """Tokens, or patches, that go through the model."""
    locations: tuple[str, ...]
    """The rows of the data that the examples come from."""


class PackedTexts(NamedTuple):
    """Texts one after the other, as one row."""

    ids: Int[Tensor, "1 tokens"]
    """Token ids."""
    documents: Int[Tensor, "1 tokens"]
    """The number of each token's text, for `regard.mask.documents`."""
    positions: Int[Tensor, "1 tokens"]
    """The position of each token in its text."""


def pack(texts: Sequence[Sequence[int]]) -> PackedTexts:
    """Pack the token ids of some texts. Sort them by length: neighbours of one length are computed together."""
    lengths = torch.tensor([len(text) for text in texts])
    ids = torch.tensor([token for text in texts for token in text])
    documents = torch.arange(len(texts)).repeat_interleave(lengths)
    starts = (lengths.cumsum(0) - lengths).repeat_interleave(lengths)
    return PackedTexts(ids[None], documents[None], (torch.arange(len(ids)) - starts)[None])


def pack_examples(examples: Sequence[Example]) -> Batch:
    """Pack examples that have a target for each of their ``ids``, shortest first."""
    examples = sorted(examples, key=lambda example: len(example["ids"]))
    row = pack([example["ids"] for example in examples])
    targets = torch.tensor([token for example in examples for token in example["targets"]])
    locations = tuple(example["location"] for example in examples)
    num_predicted = int((targets != IGNORE_INDEX).sum())
    return Batch({**row._asdict(), "targets": targets}, num_predicted, row.ids.numel(), locations)
