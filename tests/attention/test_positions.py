"""Positions against the paper's formula, written out as loops."""

import math

import pytest
import torch

from regard import positions


def by_loops(tokens, d_model, base):
    """PE(k, 2i) = sin(k / base^(2i / d_model)); PE(k, 2i + 1) is the cosine of the same angle."""
    return [
        [(math.sin if j % 2 == 0 else math.cos)(k / base ** (2 * (j // 2) / d_model)) for j in range(d_model)]
        for k in range(tokens)
    ]


@pytest.fixture
def float64_by_default():
    torch.set_default_dtype(torch.float64)
    yield
    torch.set_default_dtype(torch.float32)


@pytest.mark.usefixtures("float64_by_default")
@pytest.mark.parametrize("base", [10_000.0, 100.0, 1.0])
@pytest.mark.parametrize(("tokens", "d_model"), [(0, 4), (1, 1), (7, 2), (7, 4), (7, 5), (600, 32)])
def test_the_papers_formula__E_16(tokens, d_model, base):
    expected = torch.tensor(by_loops(tokens, d_model, base)).reshape(tokens, d_model)
    torch.testing.assert_close(positions.sinusoidal(tokens, d_model, base=base), expected, rtol=0, atol=1e-12)


def test_far_positions_keep_the_accuracy_of_the_default_dtype():
    expected = torch.tensor(by_loops(100_001, 2, 10_000.0)[-1])
    torch.testing.assert_close(positions.sinusoidal(100_001, 2)[-1], expected, rtol=0, atol=1e-7)


def test_bounded_by_one():
    assert positions.sinusoidal(1000, 64).abs().max() <= 1


def test_no_wavelength_is_longer_than_the_longest__E_16():
    """Each pair of dimensions turns by base^(-2i / d_model) a position, the slowest by more than 1 / base."""
    first, second = positions.sinusoidal(2, 512)
    turn = torch.atan2(second[0::2] * first[1::2], second[1::2])
    assert (turn > 1 / 10_000).all()
    assert (turn[1:] < turn[:-1]).all()


def test_a_shift_is_the_same_rotation_everywhere():
    """Section 3.5: for a fixed offset, PE(k + offset) is a linear function of PE(k)."""
    pairs = positions.sinusoidal(60, 8).unflatten(-1, (4, 2))
    (s, c), (s7, c7) = pairs.unbind(-1), pairs[7].unbind(-1)
    shifted = torch.stack([s * c7 + c * s7, c * c7 - s * s7], dim=-1)
    torch.testing.assert_close(shifted[:-7], pairs[7:])


def test_every_position_has_its_own_vector():
    table = positions.sinusoidal(500, 8)
    assert torch.cdist(table, table).fill_diagonal_(1).min() > 1e-3


@pytest.mark.parametrize(("tokens", "d_model", "base"), [(-1, 4, 10.0), (3, 0, 10.0), (3, 4, 0.0), (3, 4, -1.0)])
def test_sizes_that_make_no_sense(tokens, d_model, base):
    with pytest.raises(ValueError, match="tokens >= 0, d_model >= 1, base > 0"):
        positions.sinusoidal(tokens, d_model, base=base)


@pytest.mark.usefixtures("float64_by_default")
def test_of_any_positions():
    """Left padding: each row of a batch stands elsewhere."""
    at = torch.tensor([[0, 1, 2, 3], [7, 0, 0, 599]])
    rows = torch.tensor(by_loops(600, 5, 100.0))
    found = positions.sinusoidal(at, 5, base=100.0)
    torch.testing.assert_close(found, rows[at], rtol=0, atol=1e-12)
    assert torch.equal(positions.sinusoidal(torch.arange(7), 5), positions.sinusoidal(7, 5))
    assert positions.sinusoidal(torch.zeros(2, 0, dtype=torch.long), 5).shape == (2, 0, 5)


@pytest.mark.usefixtures("float64_by_default")
@pytest.mark.parametrize("d_model", [1, 2, 5, 8])
def test_all_sines_before_all_cosines(d_model):
    beside, halves = positions.sinusoidal(9, d_model), positions.sinusoidal(9, d_model, halves=True)
    sines = (d_model + 1) // 2
    for i in range(d_model):
        assert torch.equal(halves[:, i // 2 + (sines if i % 2 else 0)], beside[:, i])


def test_halves_as_transformers_has_them_for_marian():
    from transformers.models.marian.modeling_marian import MarianSinusoidalPositionalEmbedding

    theirs = MarianSinusoidalPositionalEmbedding(40, 12)
    weight = theirs.create_weight() if hasattr(theirs, "create_weight") else theirs.weight
    torch.testing.assert_close(positions.sinusoidal(40, 12, halves=True), weight.detach().float())


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float64])
def test_in_another_dtype(dtype):
    assert positions.sinusoidal(torch.arange(3), 4, dtype=dtype).dtype == dtype
    assert positions.sinusoidal(3, 4, halves=True, dtype=dtype).dtype == dtype


# The modules.


@pytest.mark.parametrize("kind", ["sinusoidal", "learned"])
@pytest.mark.parametrize("shape", [(5, 6), (3, 5, 6), (2, 3, 5, 6), (0, 6), (0, 5, 6)])
def test_row_k_is_added_to_token_k_of_every_sequence(kind, shape):
    module = positions.Learned(9, 6) if kind == "learned" else positions.Sinusoidal(6, base=50.0)
    rows = module.weight if kind == "learned" else positions.sinusoidal(9, 6, base=50.0)
    x = torch.randn(shape)
    assert torch.equal(module(x), x + rows[: shape[-2]])


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16, torch.float64])
def test_sinusoidal_keeps_the_dtype_of_the_tokens(dtype):
    assert positions.Sinusoidal(4)(torch.zeros(3, 4, dtype=dtype)).dtype == dtype


def test_sinusoidal_is_exact_for_float64_tokens():
    added = positions.Sinusoidal(4)(torch.zeros(30, 4, dtype=torch.float64))
    expected = torch.tensor(by_loops(30, 4, 10_000.0), dtype=torch.float64)
    torch.testing.assert_close(added, expected, rtol=0, atol=1e-12)


def test_sinusoidal_has_nothing_to_learn_or_to_save():
    module = positions.Sinusoidal(4)
    assert list(module.parameters()) == []
    assert module.state_dict() == {}


def test_learned_are_drawn_as_an_embedding_is():
    torch.manual_seed(3)
    expected = torch.nn.Embedding(7, 4).weight
    torch.manual_seed(3)
    assert torch.equal(positions.Learned(7, 4).weight, expected)


def test_learned_learns_the_positions_that_were_used():
    module = positions.Learned(7, 4)
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


@pytest.mark.parametrize("module", [positions.Sinusoidal(4), positions.Learned(7, 4)], ids=["sinusoidal", "learned"])
@pytest.mark.parametrize("width", [1, 3, 5])
def test_positions_of_another_width(module, width):
    with pytest.raises(ValueError, match=rf"positions of width 4 cannot be added to vectors of shape \(3, {width}\)"):
        module(torch.zeros(3, width))
