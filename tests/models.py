"""Small random transformers, and what every one of them promises."""

from __future__ import annotations

from collections.abc import Collection
from contextlib import nullcontext
from dataclasses import dataclass
from typing import Any, TypeVar

import pytest
import torch
from hypothesis import strategies as st
from torch import Tensor, nn

from regard import positions

Model = TypeVar("Model", bound=nn.Module)

SMALL: dict[str, Any] = {"vocab_size": 13, "d_model": 8, "num_layers": 2, "num_heads": 2, "d_ff": 10}
MODES = {"gradients": nullcontext, "no_grad": torch.no_grad, "inference_mode": torch.inference_mode}
LONGEST = 6 * 66
"""The tokens of the longest texts of `cache_steps`."""
POSITIONS = ["sinusoidal", "learned", "rotary", "alibi", "t5", "none"]
SCALINGS = [
    positions.Linear(3.0),
    positions.Llama3(factor=8.0, low_freq_factor=1.0, high_freq_factor=4.0, original_max_positions=16),
    positions.YaRN(factor=4.0, original_max_positions=16),
]
FLAGS = ["gated", "attention_bias", "out_bias", "feed_forward_bias", "qk_norm", "sinks", "tie_word_embeddings"]
FLAGS += ["lm_head_bias", "embedding_norm", "scale_embedding", "scale_by_inverse_layer"]
every_mode = pytest.mark.parametrize("mode", MODES.values(), ids=MODES)


@dataclass
class Step:
    """Some tokens for a cache, and then perhaps a new order of the rows."""

    tokens: int
    mode: str
    rows: list[int] | None
    """For each new row, the old row that it continues."""


@st.composite
def cache_steps(draw: st.DrawFn, batch: int, *, least: int, most: int) -> list[Step]:
    """Up to so many steps, of at least so many tokens: a few, or enough to fill any buffer and turn any ring."""
    one_mode, steps, rows = draw(st.sampled_from([*MODES, None])), [], batch
    sizes = st.integers(least, 3) | st.sampled_from([1, 1, 9, 40, 66])
    for tokens in draw(st.lists(sizes, min_size=1, max_size=most)):
        order = None
        if draw(st.integers(0, 2)) == 0:
            # As many rows as before, as beams are, or another number of them.
            size = draw(st.just(rows) | st.integers(1, 4))
            order = draw(st.lists(st.integers(0, rows - 1), min_size=size, max_size=size))
            rows = size
        steps.append(Step(tokens, one_mode or draw(st.sampled_from([*MODES])), order))
    return steps


@st.composite
def decoder_configs(draw: st.DrawFn) -> dict[str, Any]:
    """What makes the config of any decoder."""
    layers, heads = draw(st.integers(1, 3)), draw(st.sampled_from([1, 2, 4]))
    norm, kind = draw(st.sampled_from(["layer", "rms"])), draw(st.sampled_from(POSITIONS))
    return {
        **SMALL,
        "num_layers": layers,
        "num_heads": heads,
        "num_kv_heads": draw(st.sampled_from([n for n in (1, 2, 4) if heads % n == 0])),
        "d_key": draw(st.sampled_from([None, 4, 6] if heads < 4 else [4, 6])),
        "positions": kind,
        "max_positions": LONGEST if kind == "learned" else None,
        "first_position": draw(st.sampled_from([0, 2])) if kind == "learned" else 0,
        "rotary_scaling": draw(st.sampled_from([None, *SCALINGS])) if kind == "rotary" else None,
        "sinusoidal_halves": kind == "sinusoidal" and draw(st.booleans()),
        "windows": draw(st.none() | st.tuples(*[st.sampled_from([None, 1, 2, 3, 5])] * layers)),
        "norm": norm,
        "norm_plus_one": norm == "rms" and draw(st.booleans()),
        "norm_position": draw(st.sampled_from(["post", "pre", "both"])),
        "softcap": draw(st.sampled_from([None, 4.0])),
        "logit_softcap": draw(st.sampled_from([None, 9.0])),
        "logit_scale": draw(st.sampled_from([None, 0.4])),
        "attention_scale": draw(st.sampled_from([None, 1])),
        "activation": draw(st.sampled_from(["relu", "gelu", "gelu_tanh", "silu"])),
        **{flag: draw(st.booleans()) for flag in FLAGS},
    }


def randomized(model: Model) -> Model:
    """The model in float64 and evaluation mode, no parameter at a zero or a one that would hide it."""
    with torch.no_grad():
        for p in model.parameters():
            p.add_(torch.randn_like(p), alpha=0.3)
    return model.double().eval()


def assert_every_parameter_learns(model: nn.Module, output: Tensor, *, but: Collection[str] = ()) -> None:
    """A gradient reaches every parameter, but those of these names."""
    (output * torch.randn_like(output)).sum().backward()
    for name, p in model.named_parameters():
        assert p.grad is not None, name
        assert name in but or p.grad.abs().sum() > 0, name


def assert_same_gradients(model: nn.Module, ours: Tensor, expected: Tensor) -> None:
    """Two outputs of a model are equal, and so is the gradient of every parameter."""
    torch.testing.assert_close(ours, expected, rtol=1e-9, atol=1e-9)
    cotangent, parameters = torch.randn_like(expected), list(model.parameters())
    for a, b in zip(
        *(torch.autograd.grad(t, parameters, cotangent, materialize_grads=True) for t in (ours, expected)), strict=True
    ):
        torch.testing.assert_close(a, b, rtol=1e-8, atol=1e-8)
