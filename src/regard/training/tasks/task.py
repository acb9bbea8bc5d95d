"""What a task is: which model it begins with, what it makes of data, and how it is judged."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, ClassVar

import torch
from torch import Tensor, nn

from regard.lens import Recording
from regard.pretrained import Pretrained
from regard.pretrained.marian_tokenizer import MarianTokenizer
from regard.training.config import Settings
from regard.training.data import Data
from regard.training.loss import Logits
from regard.training.packing import NOTHING, packed
from regard.training.shuffling import Example

__all__ = ["Batch", "Sample", "Task", "beginning", "exact", "in_one_row", "tokens"]


@dataclass(frozen=True)
class Batch:
    """Examples as the model reads them."""

    tensors: dict[str, Tensor]
    """What `Task.predict` takes."""
    predicted: int
    """How many tokens are predicted."""
    tokens: int
    """How many tokens, or patches, go through the model."""
    where: tuple[str, ...]
    """The rows of the data that it comes from."""


@dataclass(frozen=True)
class Sample:
    """What a model made of a held-out example."""

    source: str
    wanted: str
    """What stands in the data; empty where nothing does."""
    written: str


class Task(ABC):
    """One kind of training. A task knows nothing of steps, processes and files.

    Args:
        settings: of the run.
    """

    name: ClassVar[str]
    kind: ClassVar[str]
    """Of the model: ``encoder``, ``decoder`` or ``encoder-decoder``."""
    reads: ClassVar[str] = "text"
    """Or ``images``."""
    defaults: ClassVar[Mapping[str, Any]]
    """Of `Settings`."""

    def __init__(self, settings: Settings) -> None:
        self.settings = settings

    @staticmethod
    @abstractmethod
    def data(paths: Sequence[str | Path], held_out: str | Path | None) -> Data:
        """The data of these files, or what is always there.

        Raises:
            InputError: files that cannot be used.
        """

    @abstractmethod
    def begin(self, folder: Path, data: Data) -> Pretrained:
        """A tokenizer trained on the data and a model with random weights, written to a folder."""

    def unfit(self, model: Pretrained) -> str | None:
        """Why a model that is there already cannot be trained by this task; None where it can."""
        if model.kind != self.kind:
            return f"of the kind {model.kind}"
        if model.modality != self.reads:
            return f"one that reads {model.modality}"
        return "without a tokenizer" if model.tokenizer is None else None

    @abstractmethod
    def encode(self, row: Mapping[str, Any], epoch: int, model: Pretrained) -> Sequence[Example]:
        """The examples that a row of the data makes.

        Raises:
            InputError: a row that is too long.
        """

    @abstractmethod
    def held_out(self, row: Mapping[str, Any], model: Pretrained) -> Sequence[Example]:
        """The examples by which a held-out row is judged: every token of it is predicted once."""

    @abstractmethod
    def batch(self, examples: Sequence[Example]) -> Batch:
        """Examples as one batch."""

    @abstractmethod
    def predict(self, model: nn.Module, tensors: Mapping[str, Tensor]) -> tuple[Logits | Tensor, Tensor]:
        """Logits ``(predicted, vocab_size)``, multiplied out or not, and targets ``(predicted,)`` of a batch."""

    def judge(self, model: Pretrained, rows: Sequence[Mapping[str, Any]], loss: float, most: int) -> dict[str, float]:
        """What is told of the held-out rows beside the loss.

        Args:
            model: in evaluation mode.
            rows: all of them.
            loss: mean over every predicted token of theirs, in nats.
            most: write texts for so many of them.
        """
        return {}

    @abstractmethod
    def samples(self, model: Pretrained, rows: Sequence[Mapping[str, Any]]) -> list[Sample]:
        """What the model makes of held-out rows."""

    @abstractmethod
    def watched(self, model: Pretrained, row: Mapping[str, Any]) -> Recording:
        """The attention of one held-out row, with its tokens."""


def in_one_row(examples: Sequence[Example]) -> Batch:
    """Examples with ``ids`` and a target for each of them, packed, the short ones first."""
    examples = sorted(examples, key=lambda example: len(example["ids"]))
    row = packed([example["ids"] for example in examples])
    targets = torch.tensor([token for example in examples for token in example["targets"]])
    where = tuple(example["where"] for example in examples)
    return Batch({**row._asdict(), "targets": targets}, int((targets != NOTHING).sum()), row.ids.numel(), where)


def exact(samples: Sequence[Sample]) -> float:
    """The share of samples that are what was wanted, but for space around them."""
    return sum(sample.written.strip() == sample.wanted.strip() for sample in samples) / max(1, len(samples))


def tokens(model: Pretrained, text: str, *, target: bool = False) -> list[int]:
    """The ids of a text of any length, with the special tokens that the model reads around it.

    Args:
        model: with a tokenizer.
        text: any text.
        target: whether it is what an encoder-decoder writes.
    """
    tokenizer = model.tokenizer
    if isinstance(tokenizer, MarianTokenizer):
        return tokenizer.encode(text, target=target).ids
    assert tokenizer is not None
    return list(tokenizer.encode(text).ids)


def beginning(text: str, model: Pretrained, tokens: int) -> str:
    """So much of a text as has that many tokens."""
    encoding = model.tokenizer.encode(text[: 32 * tokens])  # type: ignore[union-attr]
    ends = [stop for _, stop in encoding.offsets[:tokens]]
    return text[: max(ends, default=0)]
