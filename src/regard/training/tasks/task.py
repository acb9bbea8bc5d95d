"""The interface of a task: the model it starts from, the examples it makes of data, and its metrics."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, ClassVar

from torch import Tensor, nn

from regard.lens import Recording
from regard.pretrained import Pretrained
from regard.pretrained.marian_tokenizer import MarianTokenizer
from regard.training.config import TrainingConfig
from regard.training.data import TrainingData
from regard.training.loss import LinearLogits
from regard.training.tasks.batch import Batch, Example


@dataclass(frozen=True)
class EvalSample:
    """What a model generates for an eval row."""

    source: str
    target: str
    """The text of the data; empty where there is none."""
    prediction: str


class Task(ABC):
    """One kind of training. A task knows nothing of steps, processes and files.

    Args:
        config: of the run.
    """

    name: ClassVar[str]
    kind: ClassVar[str]
    """Of the model: ``encoder``, ``decoder`` or ``encoder-decoder``."""
    modality: ClassVar[str] = "text"
    """What the model reads: ``text`` or ``images``."""

    def __init__(self, config: TrainingConfig) -> None:
        self.config = config

    @staticmethod
    @abstractmethod
    def load_data(paths: Sequence[str | Path], eval_file: str | Path | None) -> TrainingData:
        """The data of these files, or the built-in data.

        Raises:
            InputError: files that cannot be used.
        """

    @abstractmethod
    def init_model(self, folder: Path, data: TrainingData) -> Pretrained:
        """A tokenizer trained on the data and a model with random weights, written to a folder."""

    def incompatibility(self, pretrained: Pretrained) -> str | None:
        """Why this task cannot train a model; None where it can."""
        if pretrained.kind != self.kind:
            return f"is of the kind {pretrained.kind}"
        if pretrained.modality != self.modality:
            return f"reads {pretrained.modality}"
        return "has no tokenizer" if pretrained.tokenizer is None else None

    @abstractmethod
    def encode(self, row: Mapping[str, Any], epoch: int, pretrained: Pretrained) -> Sequence[Example]:
        """The examples of a row of the data.

        Raises:
            InputError: a row that is too long.
        """

    @abstractmethod
    def encode_eval(self, row: Mapping[str, Any], pretrained: Pretrained) -> Sequence[Example]:
        """The examples of an eval row: every token of it is predicted once."""

    @abstractmethod
    def batch(self, examples: Sequence[Example]) -> Batch:
        """Examples as one batch."""

    @abstractmethod
    def predict(self, model: nn.Module, tensors: Mapping[str, Tensor]) -> tuple[LinearLogits | Tensor, Tensor]:
        """Logits ``(num_predicted, vocab_size)`` and targets ``(num_predicted,)`` of a batch."""

    def metrics(
        self, pretrained: Pretrained, rows: Sequence[Mapping[str, Any]], loss: float, max_samples: int
    ) -> dict[str, float]:
        """The metrics of the eval rows other than the loss.

        Args:
            pretrained: its model is in evaluation mode.
            rows: all eval rows.
            loss: mean over every predicted token of the rows, in nats.
            max_samples: generate texts for this many rows at most.
        """
        return {}

    @abstractmethod
    def samples(self, pretrained: Pretrained, rows: Sequence[Mapping[str, Any]]) -> list[EvalSample]:
        """What the model generates for eval rows."""

    @abstractmethod
    def record_attention(self, pretrained: Pretrained, row: Mapping[str, Any]) -> Recording:
        """The attention of one eval row, with its tokens."""


def exact_match(samples: Sequence[EvalSample]) -> float:
    """The share of samples whose prediction is the target, without the space around both."""
    return sum(sample.prediction.strip() == sample.target.strip() for sample in samples) / max(1, len(samples))


def encode_text(pretrained: Pretrained, text: str, *, target: bool = False) -> list[int]:
    """The token ids of a text of any length, with the special tokens that the model reads around it.

    Args:
        pretrained: with a tokenizer.
        text: any text.
        target: whether it is what an encoder-decoder generates.
    """
    tokenizer = pretrained.tokenizer
    if isinstance(tokenizer, MarianTokenizer):
        return tokenizer.encode(text, target=target).ids
    assert tokenizer is not None
    return list(tokenizer.encode(text).ids)


def text_prefix(pretrained: Pretrained, text: str, num_tokens: int) -> str:
    """The first tokens of a text, as text."""
    encoding = pretrained.tokenizer.encode(text[: 32 * num_tokens])  # type: ignore[union-attr]
    ends = [stop for _, stop in encoding.offsets[:num_tokens]]
    return text[: max(ends, default=0)]
