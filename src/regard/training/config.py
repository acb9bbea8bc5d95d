"""The numbers of a run."""

from __future__ import annotations

import math
from dataclasses import asdict, dataclass
from typing import Any

from regard.errors import InputError

__all__ = ["Settings"]


@dataclass(frozen=True, kw_only=True)
class Settings:
    """What a run is asked to do. Tasks have defaults of their own for most of it.

    Raises:
        InputError: a number that cannot be.
    """

    # The model, where it begins from nothing.
    layers: int
    """Blocks of each stack."""
    d_model: int
    """Width of the token vectors."""
    heads: int
    """Heads of each attention."""
    d_ff: int
    """Width of the feed-forward networks."""
    context: int
    """The longest text, in tokens; longer documents are read in pieces, longer pairs are refused."""
    vocab_size: int
    """Tokens that the tokenizer is trained to have, at most."""

    image_size: int | None = None
    """The side of the square that images are resized to; by default that of the first one, at most 224."""
    patch_size: int | None = None
    """The side of the patches that they are cut into; by default a quarter of that, at most 16."""

    # The optimizer: AdamW (Loshchilov and Hutter 2019).
    steps: int
    """Updates of the weights."""
    batch_size: int
    """Examples of one update, over all processes."""
    accumulate: int = 1
    """Parts that each process computes its share of a batch in, one after the other."""
    lr: float
    """The learning rate at its peak."""
    warm_up: int
    """Updates until the learning rate is at its peak; from there it falls to a tenth along a cosine."""
    dropout: float
    """Share of each sub-layer's output dropped while it learns."""
    noise: float = 0.0
    """Share of the tokens of ``lm`` that are read as others while it learns, where texts are few (Xie et al. 2017)."""
    weight_decay: float = 0.1
    """Of matrices; biases and norms have none."""
    clip: float = 1.0
    """The longest gradient, over all weights."""
    label_smoothing: float = 0.0
    """The share of probability spread over the other tokens (paper, section 5.4)."""
    seed: int = 0
    """Of the weights, of the order of the examples and of dropout."""
    evaluate_every: int
    """Updates between two looks at the held-out examples; each saves a checkpoint."""
    patience: int | None = None
    """Stop after so many looks without a better one."""
    skip_long: bool = False
    """Leave out pairs that are longer than the context, and say how many, instead of refusing them."""

    def __post_init__(self) -> None:
        counts = ("layers", "d_model", "heads", "d_ff", "context", "vocab_size", "steps", "batch_size", "accumulate")
        optional = [name for name in ("patience", "image_size", "patch_size") if getattr(self, name) is not None]
        for name in (*counts, "evaluate_every", *optional):
            self._hold(name, getattr(self, name) >= 1, "at least 1")
        for name in ("warm_up", "weight_decay"):
            self._hold(name, getattr(self, name) >= 0 and math.isfinite(getattr(self, name)), "at least 0")
        self._hold("seed", 0 <= self.seed < 2**63, "at least 0 and below 2**63")
        for name in ("lr", "clip"):
            self._hold(name, getattr(self, name) > 0 and math.isfinite(getattr(self, name)), "above 0")
        for name in ("dropout", "label_smoothing", "noise"):
            self._hold(name, 0 <= getattr(self, name) < 1, "at least 0 and below 1")
        self._hold("d_model", self.d_model % self.heads == 0, f"a multiple of --heads {self.heads}")
        self._hold("context", self.context >= 4, "at least 4")
        self._hold("warm_up", self.warm_up < self.steps, f"below --steps {self.steps}")

    def _hold(self, name: str, is_right: bool, what: str) -> None:
        if not is_right:
            raise InputError(f"--{name.replace('_', '-')} {getattr(self, name)}: it must be {what}")

    def share(self, world: int) -> int:
        """How many examples of a batch a process computes at once.

        Raises:
            InputError: the batch does not divide.
        """
        parts = world * self.accumulate
        if self.batch_size % parts:
            raise InputError(
                f"--batch-size {self.batch_size} does not divide among {world} processes with --accumulate "
                f"{self.accumulate}; {math.ceil(self.batch_size / parts) * parts} would"
            )
        return self.batch_size // parts

    def rate(self, step: int) -> float:
        """The learning rate of an update, counted from 0: a straight line up, then a cosine down to a tenth."""
        if step < self.warm_up:
            return self.lr * (step + 1) / self.warm_up
        share = (step - self.warm_up) / max(1, self.steps - self.warm_up)
        return self.lr * (0.1 + 0.9 * (1 + math.cos(math.pi * share)) / 2)

    def to_dict(self) -> dict[str, Any]:
        """As JSON writes it."""
        return asdict(self)
