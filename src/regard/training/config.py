"""The configuration of a run: sizes of the model, the optimizer, the schedule."""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import asdict, dataclass, fields
from typing import Any

from regard.errors import InputError
from regard.training.defaults import TASK_DEFAULTS

MODEL_FIELDS = frozenset({"num_layers", "d_model", "num_heads", "d_ff", "vocab_size", "image_size", "patch_size"})
"""Fields of `TrainingConfig` that only a model with random weights has."""


@dataclass(frozen=True, kw_only=True)
class TrainingConfig:
    """The numbers of a run. Tasks have their own defaults for most of them.

    Raises:
        InputError: a value is out of range.
    """

    # The model, where training starts from random weights.
    num_layers: int
    """Blocks of each stack."""
    d_model: int
    """Width of the token vectors."""
    num_heads: int
    """Heads of each attention."""
    d_ff: int
    """Width of the feed-forward networks."""
    max_length: int
    """The longest text, in tokens; longer documents are split into chunks, longer pairs are refused."""
    vocab_size: int
    """The largest vocabulary of a tokenizer that is trained."""

    image_size: int | None = None
    """The side of the square that images are resized to; by default that of the first image, at most 224."""
    patch_size: int | None = None
    """The side of the patches of an image; by default a quarter of the image's side, at most 16."""

    # The optimizer: AdamW (Loshchilov and Hutter 2019).
    max_steps: int
    """Updates of the weights."""
    batch_size: int
    """Examples of one update, over all processes."""
    gradient_accumulation_steps: int = 1
    """Micro-batches that each process computes one after the other for one update."""
    learning_rate: float
    """The learning rate at its peak."""
    warmup_steps: int
    """Updates until the learning rate is at its peak; from there it falls along a cosine."""
    min_learning_rate: float | None = None
    """What the learning rate falls to; by default a tenth of its peak."""
    dropout: float
    """Share of each sub-layer's output that is dropped in training."""
    token_noise: float = 0.0
    """Share of the input tokens of ``lm`` that are replaced in training, for small data sets (Xie et al. 2017)."""
    weight_decay: float = 0.1
    """Of matrices; biases and norms have none."""
    max_grad_norm: float = 1.0
    """The gradient of all weights together is clipped to this norm."""
    label_smoothing: float = 0.0
    """The share of probability spread over all tokens (paper, section 5.4)."""
    seed: int = 0
    """Of the weights, of the order of the examples and of dropout."""
    eval_steps: int
    """Updates between two evaluations; each evaluation saves a checkpoint."""
    patience: int | None = None
    """Stop after this many evaluations without a better loss."""
    skip_long: bool = False
    """Skip pairs that are longer than ``max_length``, and count them, instead of refusing them."""

    def __post_init__(self) -> None:
        counts = ("num_layers", "d_model", "num_heads", "d_ff", "max_length", "vocab_size", "max_steps", "batch_size")
        optional = [name for name in ("patience", "image_size", "patch_size") if getattr(self, name) is not None]
        for name in (*counts, "gradient_accumulation_steps", "eval_steps", *optional):
            self._require(name, getattr(self, name) >= 1, "at least 1")
        for name in ("warmup_steps", "weight_decay"):
            self._require(name, getattr(self, name) >= 0 and math.isfinite(getattr(self, name)), "at least 0")
        self._require("seed", 0 <= self.seed < 2**63, "at least 0 and below 2**63")
        for name in ("learning_rate", "max_grad_norm"):
            self._require(name, getattr(self, name) > 0 and math.isfinite(getattr(self, name)), "above 0")
        lowest = self.min_learning_rate
        is_below = lowest is None or 0 <= lowest <= self.learning_rate
        self._require("min_learning_rate", is_below, f"at least 0, at most learning_rate={self.learning_rate:g}")
        for name in ("dropout", "label_smoothing", "token_noise"):
            self._require(name, 0 <= getattr(self, name) < 1, "at least 0 and below 1")
        self._require("d_model", self.d_model % self.num_heads == 0, f"a multiple of num_heads={self.num_heads}")
        self._require("max_length", self.max_length >= 4, "at least 4")
        self._require("warmup_steps", self.warmup_steps < self.max_steps, f"below max_steps={self.max_steps}")

    def _require(self, name: str, is_valid: bool, requirement: str) -> None:
        if not is_valid:
            raise InputError(f"{name}={getattr(self, name)}: it must be {requirement}")

    def micro_batch_size(self, world_size: int) -> int:
        """The number of examples that a process computes at once.

        Raises:
            InputError: the batch does not divide.
        """
        micro_batches = world_size * self.gradient_accumulation_steps
        if self.batch_size % micro_batches:
            raise InputError(
                f"batch_size={self.batch_size} does not divide among {world_size} processes with "
                f"gradient_accumulation_steps={self.gradient_accumulation_steps}; "
                f"{math.ceil(self.batch_size / micro_batches) * micro_batches} would"
            )
        return self.batch_size // micro_batches

    def learning_rate_at(self, step: int) -> float:
        """The learning rate of an update, counted from 0: a straight line up, then a cosine down."""
        if step < self.warmup_steps:
            return self.learning_rate * (step + 1) / self.warmup_steps
        share = (step - self.warmup_steps) / max(1, self.max_steps - self.warmup_steps)
        lowest = self.learning_rate / 10 if self.min_learning_rate is None else self.min_learning_rate
        left = (1 + math.cos(math.pi * share)) / 2
        return self.learning_rate * left + lowest * (1 - left)

    def to_dict(self) -> dict[str, Any]:
        """The fields, as ``run.json`` stores them."""
        return asdict(self)


def build_config(task: str, overrides: Mapping[str, Any]) -> TrainingConfig:
    """The default configuration of a task with some fields changed.

    Raises:
        InputError: there is no such task; a value is out of range, or not one of the task.
        TypeError: there is no such field.
    """
    if task not in TASK_DEFAULTS:
        raise InputError(f"there is no task {task!r}; there are {', '.join(TASK_DEFAULTS)}")
    defaults = TASK_DEFAULTS[task]
    names = [field.name for field in fields(TrainingConfig)]
    for name in overrides:
        if name not in names:
            raise TypeError(f"{name}: training has no such option; it has {', '.join(names)}")
    if overrides.get("token_noise") and "token_noise" not in defaults:
        raise InputError(f"token_noise={overrides['token_noise']} is an option of lm; {task} has no token noise")
    config = {**defaults, **overrides}
    if "warmup_steps" not in overrides and config["max_steps"] > 0:
        config["warmup_steps"] = min(config["warmup_steps"], (config["max_steps"] - 1) // 2)  # of a short run, half
    return TrainingConfig(**config)


def task_defaults(name: str) -> dict[str, Any]:
    """The default of a field in each task; None where a task has none."""
    (field,) = (field for field in fields(TrainingConfig) if field.name == name)
    return {task: defaults.get(name, field.default) for task, defaults in TASK_DEFAULTS.items()}
