"""The configuration of a run: values out of range, how batches divide, and the learning rate."""

import math

import pytest
from runs import TINY

from regard import InputError
from regard.training.config import TrainingConfig

FULL = {**TINY, "dropout": 0.1}


@pytest.mark.parametrize(
    ("name", "value", "message"),
    [
        ("max_steps", 0, "--max-steps 0: it must be at least 1"),
        ("d_model", -16, "--d-model -16: it must be at least 1"),
        ("eval_steps", 0, "--eval-steps 0: it must be at least 1"),
        ("patience", 0, "--patience 0: it must be at least 1"),
        ("image_size", 0, "--image-size 0: it must be at least 1"),
        ("learning_rate", 0.0, "--learning-rate 0.0: it must be above 0"),
        ("learning_rate", math.nan, "--learning-rate nan: it must be above 0"),
        ("max_grad_norm", math.inf, "--max-grad-norm inf: it must be above 0"),
        ("weight_decay", math.inf, "--weight-decay inf: it must be at least 0"),
        ("dropout", 1.0, "--dropout 1.0: it must be at least 0 and below 1"),
        ("label_smoothing", -0.1, "--label-smoothing -0.1: it must be at least 0 and below 1"),
        ("num_heads", 3, "--d-model 16: it must be a multiple of --num-heads 3"),
        ("max_length", 3, "--max-length 3: it must be at least 4"),
        ("warmup_steps", 6, "--warmup-steps 6: it must be below --max-steps 6"),
        ("seed", 2**63, f"--seed {2**63}: it must be at least 0 and below 2\\*\\*63"),
    ],
)
def test_values_out_of_range(name, value, message):
    with pytest.raises(InputError, match=f"^{message}$"):
        TrainingConfig(**{**FULL, name: value})


def test_a_batch_divides_among_processes_and_micro_batches():
    assert TrainingConfig(**FULL, gradient_accumulation_steps=2).micro_batch_size(2) == 2
    with pytest.raises(
        InputError,
        match=r"--batch-size 8 does not divide among 3 processes with --gradient-accumulation-steps 1; 9 would",
    ):
        TrainingConfig(**FULL).micro_batch_size(3)
    with pytest.raises(InputError, match=r"among 2 processes with --gradient-accumulation-steps 3; 12 would"):
        TrainingConfig(**FULL, gradient_accumulation_steps=3).micro_batch_size(2)


def test_warm_up_and_cosine():
    config = TrainingConfig(**{**FULL, "max_steps": 104, "warmup_steps": 4, "learning_rate": 0.8})
    rates = [config.learning_rate_at(step) for step in range(104)]
    assert rates[:5] == pytest.approx([0.2, 0.4, 0.6, 0.8, 0.8])
    assert rates[54] == pytest.approx(0.8 * 0.55)  # half way between all and a tenth
    assert rates[29] == pytest.approx(0.8 * (0.1 + 0.9 * (1 + math.sqrt(0.5)) / 2))
    assert rates[4:] == sorted(rates[4:], reverse=True)
    assert 0.08 < rates[-1] < 0.0803
    assert TrainingConfig(**{**FULL, "warmup_steps": 0}).learning_rate_at(0) == 1e-2
