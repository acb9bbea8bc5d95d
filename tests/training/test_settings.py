"""The numbers of a run: what cannot be, how batches divide, and the learning rate."""

import math

import pytest
from runs import TINY

from regard import InputError
from regard.training.config import Settings
from regard.training.tasks import TASKS

FULL = {**TINY, "dropout": 0.1}


@pytest.mark.parametrize("task", TASKS)
def test_the_defaults_of_every_task_can_be(task):
    settings = Settings(**TASKS[task].defaults)
    assert Settings(**settings.to_dict()) == settings


@pytest.mark.parametrize(
    ("name", "value", "message"),
    [
        ("steps", 0, "--steps 0: it must be at least 1"),
        ("d_model", -16, "--d-model -16: it must be at least 1"),
        ("evaluate_every", 0, "--evaluate-every 0: it must be at least 1"),
        ("patience", 0, "--patience 0: it must be at least 1"),
        ("image_size", 0, "--image-size 0: it must be at least 1"),
        ("lr", 0.0, "--lr 0.0: it must be above 0"),
        ("lr", math.nan, "--lr nan: it must be above 0"),
        ("clip", math.inf, "--clip inf: it must be above 0"),
        ("weight_decay", math.inf, "--weight-decay inf: it must be at least 0"),
        ("dropout", 1.0, "--dropout 1.0: it must be at least 0 and below 1"),
        ("label_smoothing", -0.1, "--label-smoothing -0.1: it must be at least 0 and below 1"),
        ("heads", 3, "--d-model 16: it must be a multiple of --heads 3"),
        ("context", 3, "--context 3: it must be at least 4"),
        ("warm_up", 10, "--warm-up 10: it must be below --steps 10"),
        ("seed", 2**63, f"--seed {2**63}: it must be at least 0 and below 2\\*\\*63"),
    ],
)
def test_numbers_that_cannot_be(name, value, message):
    with pytest.raises(InputError, match=f"^{message}$"):
        Settings(**{**FULL, name: value})


def test_a_batch_divides_among_processes_and_parts():
    assert Settings(**FULL, accumulate=2).share(2) == 2
    with pytest.raises(
        InputError, match=r"--batch-size 8 does not divide among 3 processes with --accumulate 1; 9 would"
    ):
        Settings(**FULL).share(3)
    with pytest.raises(InputError, match=r"among 2 processes with --accumulate 3; 12 would"):
        Settings(**FULL, accumulate=3).share(2)


def test_warm_up_and_cosine():
    settings = Settings(**{**FULL, "steps": 104, "warm_up": 4, "lr": 0.8})
    rates = [settings.rate(step) for step in range(104)]
    assert rates[:5] == pytest.approx([0.2, 0.4, 0.6, 0.8, 0.8])
    assert rates[54] == pytest.approx(0.8 * 0.55)  # half way between all and a tenth
    assert rates[29] == pytest.approx(0.8 * (0.1 + 0.9 * (1 + math.sqrt(0.5)) / 2))
    assert rates[4:] == sorted(rates[4:], reverse=True)
    assert 0.08 < rates[-1] < 0.0803
    assert Settings(**{**FULL, "warm_up": 0}).rate(0) == 1e-2
