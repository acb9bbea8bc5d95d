"""The defaults of each task, and the choices of a run; `regard train --help` shows them without PyTorch."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, Literal, get_args

TaskName = Literal["translate", "lm", "mlm", "caption"]
StrategyName = Literal["auto", "ddp", "fsdp"]
PrecisionName = Literal["32-true", "bf16-mixed", "bf16-true"]
STRATEGIES: tuple[str, ...] = get_args(StrategyName)
PRECISIONS: tuple[str, ...] = get_args(PrecisionName)

TASK_DEFAULTS: Mapping[str, Mapping[str, Any]] = {
    "translate": {
        "num_layers": 2,
        "d_model": 128,
        "num_heads": 4,
        "d_ff": 512,
        "max_length": 128,
        "vocab_size": 2_000,
        "dropout": 0.1,
        "max_steps": 1_000,
        "batch_size": 128,
        "learning_rate": 2e-3,
        "warmup_steps": 100,
        "weight_decay": 0.01,
        "label_smoothing": 0.1,
        "eval_steps": 250,
    },
    "lm": {
        "num_layers": 4,
        "d_model": 256,
        "num_heads": 4,
        "d_ff": 704,
        "max_length": 256,
        "vocab_size": 1_200,
        "dropout": 0.25,
        "token_noise": 0.2,
        "max_steps": 1_400,
        "batch_size": 16,
        "learning_rate": 2e-3,
        "min_learning_rate": 0.0,
        "warmup_steps": 60,
        "weight_decay": 1.0,
        "eval_steps": 100,
    },
    "mlm": {
        "num_layers": 4,
        "d_model": 256,
        "num_heads": 4,
        "d_ff": 1024,
        "max_length": 128,
        "vocab_size": 2_000,
        "dropout": 0.1,
        "max_steps": 2_000,
        "batch_size": 32,
        "learning_rate": 5e-4,
        "warmup_steps": 200,
        "weight_decay": 0.01,
        "eval_steps": 250,
    },
    "caption": {
        "num_layers": 3,
        "d_model": 96,
        "num_heads": 4,
        "d_ff": 384,
        "max_length": 32,
        "vocab_size": 300,
        "dropout": 0.2,
        "max_steps": 1_000,
        "batch_size": 64,
        "learning_rate": 1e-3,
        "warmup_steps": 50,
        "weight_decay": 0.05,
        "eval_steps": 250,
    },
}
"""Fields of `TrainingConfig` by task."""
