"""Positions against the paper's formula, written out as loops."""

import math

import pytest
import torch

from grids import grid
from regard import positions

MODULES = {"sinusoidal": lambda: positions.Sinusoidal(6, base=50.0), "learned": lambda: positions.Learned(9, 6)}
every_module = pytest.mark.parametrize("kind", MODULES)


def by_loops(places, d_model, base=10_000.0):
    """PE(k, 2i) = sin(k / base^(2i / d_model)); PE(k, 2i + 1) is the cosine of the same angle."""
    rows = [
        [(math.sin if j % 2 == 0 else math.cos)(k / base ** (2 * (j // 2) / d_model)) for j in range(d_model)]
        for k in places
    ]
    return torch.tensor(rows, dtype=torch.float64).reshape(-1, d_model)


@grid(size=[(0, 4), (1, 1), (7, 2), (7, 4), (7, 5), (600, 32)], base=[10_000.0, 100.0, 1.0])
def test_the_papers_formula__E_16(size, base):
    tokens, d_model = size
    found = positions.sinusoidal(tokens, d_model, base=base, dtype=torch.float64)
    torch.testing.assert_close(found, by_loops(range(tokens), d_model, base), rtol=0, atol=1e-12)


def test_far_positions_keep_the_accuracy_of_the_default_dtype():
    far = positions.sinusoidal(100_001, 2)[-1:]
    torch.testing.assert_close(far, by_loops([100_000], 2).float(), rtol=0, atol=1e-7)


@pytest.mark.parametrize(("tokens", "d_model", "base"), [(-1, 4, 10.0), (3, 0, 10.0), (3, 4, 0.0), (3, 4, 10**30)])
def test_sizes_that_make_no_sense(tokens, d_model, base):
    with pytest.raises(ValueError, match=r"tokens >= 0, d_model >= 1, 0 < base <= 4\.6e"):
        positions.sinusoidal(tokens, d_model, base=base)


def test_of_any_positions():
    """Left padding: each row of a batch stands elsewhere."""
    at = torch.tensor([[0, 1, 2, 3], [7, 0, 0, 599]])
    found = positions.sinusoidal(at, 5, base=100.0, dtype=torch.float64)
    torch.testing.assert_close(found, by_loops(range(600), 5, 100.0)[at], rtol=0, atol=1e-12)
    assert torch.equal(positions.sinusoidal(torch.arange(7), 5), positions.sinusoidal(7, 5))
    assert positions.sinusoidal(torch.zeros(2, 0, dtype=torch.long), 5).shape == (2, 0, 5)


@pytest.mark.parametrize("d_model", [1, 2, 5, 8])
def test_all_sines_before_all_cosines(d_model):
    halves = positions.sinusoidal(9, d_model, halves=True, dtype=torch.float64)
    pairs = by_loops(range(9), d_model)
    torch.testing.assert_close(halves, torch.cat([pairs[:, ::2], pairs[:, 1::2]], dim=1))


@every_module
@pytest.mark.parametrize("shape", [(5, 6), (2, 3, 5, 6), (0, 6), (0, 5, 6)])
def test_row_k_is_added_to_token_k_of_every_sequence(kind, shape):
    module, x = MODULES[kind](), torch.randn(shape)
    rows = module.weight if kind == "learned" else positions.sinusoidal(9, 6, base=50.0)
    assert torch.equal(module(x), x + rows[: shape[-2]])


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16, torch.float64])
def test_sinusoidal_is_as_exact_as_the_tokens(dtype):
    added = positions.Sinusoidal(4)(torch.zeros(30, 4, dtype=dtype))
    torch.testing.assert_close(added, by_loops(range(30), 4).to(dtype), rtol=0, atol=torch.finfo(dtype).eps)


def test_what_there_is_to_learn_and_to_save():
    """Nothing of sinusoidal positions; a weight for learned ones, drawn as an embedding is."""
    assert [*positions.Sinusoidal(4).parameters(), *positions.Sinusoidal(4).state_dict()] == []
    torch.manual_seed(3)
    expected = torch.nn.Embedding(7, 4).weight
    torch.manual_seed(3)
    module = positions.Learned(7, 4)
    assert torch.equal(module.weight, expected)
    module(torch.randn(2, 5, 4)).sum().backward()
    assert torch.equal(module.weight.grad, torch.tensor([2.0] * 5 + [0.0] * 2)[:, None].expand(7, 4))


def test_learned_has_no_position_beyond_the_last():
    module = positions.Learned(7, 4)
    assert module(torch.zeros(7, 4)).shape == (7, 4)
    with pytest.raises(ValueError, match="8 tokens, but only 7 learned positions"):
        module(torch.zeros(8, 4))


def test_learned_at_any_positions():
    module, at = positions.Learned(7, 4), torch.tensor([[0, 1, 6], [3, 3, 0]])
    assert torch.equal(module.embed(at), module.weight[at])
    module.embed(at).sum().backward()
    assert torch.equal(module.weight.grad[:, 0], torch.tensor([2.0, 1.0, 0.0, 2.0, 0.0, 0.0, 1.0]))
    for wrong in ([0, 7], [-1, 3]):
        with pytest.raises(ValueError, match=f"positions {wrong[0]} to {wrong[1]}, but only 7 learned ones"):
            module.embed(torch.tensor(wrong))


@every_module
@pytest.mark.parametrize("width", [1, 5, 7])
def test_positions_of_another_width(kind, width):
    with pytest.raises(ValueError, match=rf"positions of width 6 cannot be added to vectors of shape \(3, {width}\)"):
        MODULES[kind]()(torch.zeros(3, width))
