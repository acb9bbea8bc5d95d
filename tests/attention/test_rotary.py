"""Rotary positions against the paper's equation in loops, and against the numbers of transformers."""

import dataclasses
import math

import pytest
import torch
import torch._dynamo.testing
import transformers
from hypothesis import given
from hypothesis import strategies as st
from transformers.modeling_rope_utils import ROPE_INIT_FUNCTIONS
from transformers.models.llama import modeling_llama

from grids import grid
from regard.attention.positions import DynamicNTK, Linear, Llama3, Rotary, YaRN

ORIGINAL = 32
"""The length of training in every scaling of these tests."""

SCALINGS = {
    "default": None,
    "linear": Linear(3.7),
    "dynamic": DynamicNTK(3.7, ORIGINAL),
    "llama3": Llama3(8.0, 1.0, 4.0, ORIGINAL),
    "yarn": YaRN(40.0, ORIGINAL),
}
every_scaling = pytest.mark.parametrize("scaling", SCALINGS.values(), ids=SCALINGS)


def config_of(kind, width, rope, *, base):
    # A model made for more positions than the original ones; dynamic NTK has no such number and counts from the first.
    return transformers.LlamaConfig(
        hidden_size=2 * width,
        num_attention_heads=2,
        max_position_embeddings=ORIGINAL if kind == "dynamic" else 64 * ORIGINAL,
        rope_parameters={"rope_type": kind, "rope_theta": base, **rope},
    )


def rope_of(scaling):
    """The settings of a scaling as transformers names them."""
    rope = {} if scaling is None else dataclasses.asdict(scaling)
    original = rope.pop("original_max_positions", None)
    if isinstance(scaling, Llama3 | YaRN):
        rope["original_max_position_embeddings"] = original
    return {name: value for name, value in rope.items() if value is not None}


def by_loops(x, positions, *, base=10_000.0, rotary_dim=None, interleaved=False):
    """RoFormer's equation 34, one pair of one token at a time."""
    rotary_dim = x.shape[-1] if rotary_dim is None else rotary_dim
    result = x.clone()
    for vectors, turned in zip(x.flatten(0, -3), result.flatten(0, -3), strict=True):
        for t, position in enumerate(positions):
            for i in range(rotary_dim // 2):
                first, second = (2 * i, 2 * i + 1) if interleaved else (i, i + rotary_dim // 2)
                angle = position * base ** (-2 * i / rotary_dim)
                a, b = vectors[t, first].item(), vectors[t, second].item()
                turned[t, first] = a * math.cos(angle) - b * math.sin(angle)
                turned[t, second] = a * math.sin(angle) + b * math.cos(angle)
    return result


@grid(
    width=[(2, None), (8, None), (10, 4), (9, 2), (9, 8)],
    interleaved=[False, True],
    positions=[[0, 1, 2, 3, 4], [7, 7, 0, 100_000, -3]],
    base=[10_000.0, 50.0],
)
def test_the_papers_equation(width, interleaved, positions, base):
    (width, rotary_dim), options = width, {"base": base, "interleaved": interleaved}
    x, rotary = torch.randn(2, 3, 5, width).double(), Rotary(width, rotary_dim=rotary_dim, **options)
    expected = by_loops(x, positions, rotary_dim=rotary_dim, **options)
    torch.testing.assert_close(rotary(x, torch.tensor(positions)), expected, rtol=0, atol=1e-10)
    if positions == [0, 1, 2, 3, 4]:
        torch.testing.assert_close(rotary(x), expected, rtol=0, atol=1e-10)


FAR = torch.tensor([[0, 1, 4095, 32_768, 99_999, 100_000]])
PADDED = torch.tensor([[0, 1, 2, 3, 4, 5], [1, 1, 1, 0, 1, 2], [9, 8, 7, 6, 5, 4]])


@grid(kind=SCALINGS, base=[10_000.0, 500_000.0], length=[1, 7, ORIGINAL, ORIGINAL + 1, 5 * ORIGINAL, "far", "padded"])
def test_the_numbers_of_llama(kind, base, length):
    """Below and above the length of training, and far away.

    Float32 rounds a frequency by 6e-8 of it, which is 6e-3 of a turn at position 100,000 unless both round alike.
    """
    positions = {"far": FAR, "padded": PADDED}.get(length)
    positions = torch.arange(length)[None] if positions is None else positions
    scaling, x = SCALINGS[kind], torch.randn(len(positions), 4, positions.shape[1], 64)
    config = config_of(kind, 64, rope_of(scaling), base=base)
    cos_sin = modeling_llama.LlamaRotaryEmbedding(config)(x, positions)
    expected, _ = modeling_llama.apply_rotary_pos_emb(x, x, *cos_sin)
    rotary = Rotary(64, base=base, scaling=scaling)
    torch.testing.assert_close(rotary(x, positions), expected, rtol=0, atol=1e-6)
    if isinstance(length, int):
        torch.testing.assert_close(rotary(x), expected, rtol=0, atol=1e-6)


widths, bases = st.integers(2, 70).map(lambda pairs: 2 * pairs), st.sampled_from([100.0, 10_000.0, 500_000.0, 1e6])
factors, lengths = st.floats(1, 64, width=32), st.integers(1, 8192)
low_and_more = st.floats(0.5, 3, width=32), st.floats(0.5, 60, width=32)
attention_factors = [{}, {"attention_factor": 1.25}, *({"mscale": m, "mscale_all_dim": 1.0} for m in (0.7, 1.0))]
scalings = st.one_of(
    st.builds(Linear, factors),
    st.builds(lambda factor, low, more, *n: Llama3(factor, low, low + more, *n), factors, *low_and_more, lengths),
    st.builds(
        lambda attention, *numbers, truncate: YaRN(*numbers, truncate=truncate, **attention),
        st.sampled_from(attention_factors),
        factors,
        lengths,
        st.sampled_from([2, 20, 32]),
        st.sampled_from([0.5, 1, 2]),
        truncate=st.booleans(),
    ),
)


@given(widths, bases, scalings)
def test_frequencies_and_attention_factor(width, base, scaling):
    kind = type(scaling).__name__.lower()
    expected, amplitude = ROPE_INIT_FUNCTIONS[kind](config_of(kind, width, rope_of(scaling), base=base))
    # One rounding: where the ramp of transformers ends and ours is exactly 0 or 1.
    tolerance = 2**-22 if kind == "llama3" else 0
    frequencies = scaling.frequencies(base, width, torch.zeros(1))
    torch.testing.assert_close(frequencies, expected, rtol=tolerance, atol=0)
    assert scaling.amplitude == pytest.approx(amplitude, rel=1e-12)


def test_dynamic_takes_the_length_of_each_call():
    """Of the last position, or the caller's for a part of a sequence; nothing is kept of a longer call."""
    rotary, x = Rotary(8, scaling=DynamicNTK(2.0, 8)), torch.randn(40, 8)
    before, whole = rotary(x[:20]), rotary(x)
    assert torch.equal(rotary(x[:20]), before)
    torch.testing.assert_close(rotary(x[-3:], torch.arange(37, 40)), whole[-3:], rtol=0, atol=1e-6)
    torch.testing.assert_close(rotary(x[:12], length=40), whole[:12], rtol=0, atol=1e-6)
    assert not torch.allclose(rotary(x[:12]), whole[:12], atol=1e-3)


def test_any_number_of_batch_axes():
    rotary, x, positions = Rotary(6), torch.randn(5, 3, 2, 4, 6), torch.randint(0, 50, (5, 3, 4))
    assert torch.equal(rotary(x)[3, 1], rotary(x[3, 1]))
    assert torch.equal(rotary(x)[3, 1, 1], rotary(x[3, 1, 1]))
    assert torch.equal(rotary(x, positions)[3, 1], rotary(x[3, 1], positions[3, 1]))


@grid(scaling=SCALINGS, shape=[(0, 6), (2, 0, 6), (0, 2, 4, 6), (3, 2, 0, 6)])
def test_nothing_to_turn(scaling, shape):
    rotary, x = Rotary(6, scaling=SCALINGS[scaling]), torch.zeros(shape)
    assert rotary(x).shape == rotary(x, torch.arange(shape[-2])).shape == shape


@pytest.mark.parametrize("dtype", [torch.int8, torch.int16, torch.int32])
def test_positions_of_any_whole_number_type(dtype):
    rotary, x, positions = Rotary(6), torch.randn(4, 6), torch.tensor([3, 99, 0, 1])
    assert torch.equal(rotary(x, positions.to(dtype)), rotary(x, positions))


@grid(scaling=SCALINGS, interleaved=[False, True])
def test_one_cos_sin_serves_queries_and_keys(scaling, interleaved):
    rotary = Rotary(8, scaling=SCALINGS[scaling], rotary_dim=4, interleaved=interleaved)
    positions = torch.randint(0, 99, (2, 5))
    for x in (torch.randn(2, 6, 5, 8), torch.randn(2, 2, 5, 8)):
        assert torch.equal(rotary.rotate(x, *rotary.cos_sin(positions)), rotary(x, positions))


@grid(rotary_dim=[None, 4], dtype=[torch.bfloat16, torch.float16])
def test_half_precision_is_rounded_once_at_the_end(rotary_dim, dtype):
    rotary, x, positions = Rotary(8, rotary_dim=rotary_dim), torch.randn(6, 8).to(dtype), torch.arange(5000, 5006)
    y = rotary(x, positions)
    assert y.dtype == dtype
    assert torch.equal(y, rotary(x.float(), positions).to(dtype))


@every_scaling
def test_a_cast_of_the_module_changes_no_angle(scaling):
    rotary, x = Rotary(8, scaling=scaling), torch.randn(50, 8)
    before = rotary(x)
    for dtype in (torch.bfloat16, torch.float64):
        torch.testing.assert_close(rotary.to(dtype)(x), before, rtol=0, atol=0)


@every_scaling
def test_nothing_to_learn_or_to_save(scaling):
    rotary = Rotary(8, scaling=scaling)
    rotary(torch.randn(3, 8))
    assert [*rotary.state_dict(), *rotary.parameters(), *rotary.buffers()] == []


FAST_GRAPHS = {("dynamic", "compile")}


@pytest.mark.usefixtures("as_a_user_runs_it")
@pytest.mark.parametrize(
    ("scaling", "how"),
    [
        pytest.param(scaling, how, marks=() if (name, how) in FAST_GRAPHS else pytest.mark.more, id=f"{name}-{how}")
        for name, scaling in SCALINGS.items()
        for how in ("compile", "export")
    ],
)
def test_one_graph_serves_any_length(scaling, how):
    """With positions and without."""
    torch._dynamo.reset()
    rotary = Rotary(8, scaling=scaling, rotary_dim=4, interleaved=how == "export")
    counter = torch._dynamo.testing.CompileCounter()
    if how == "compile":
        plain = positioned = torch.compile(rotary, fullgraph=True, backend=counter)
    else:
        batch, tokens = torch.export.Dim("batch"), torch.export.Dim("tokens")
        x, shapes = torch.randn(2, 3, 12, 8), ({0: batch, 2: tokens}, {0: batch, 1: tokens})
        plain = torch.export.export(rotary, (x,), dynamic_shapes=({2: tokens},)).module()
        positioned = torch.export.export(rotary, (x, torch.arange(12).repeat(2, 1)), dynamic_shapes=shapes).module()
    inputs = [(torch.randn(2, 3, length, 8), torch.randint(0, 100, (2, length))) for length in (5, 20, 33, 100)]
    assert all(torch.equal(plain(x), rotary(x)) for x, _ in inputs)
    assert counter.frame_count == (2 if how == "compile" else 0)  # the first length, then every other
    assert all(torch.equal(positioned(x, positions), rotary(x, positions)) for x, positions in inputs)


def test_says_what_it_is():
    rotary = Rotary(8, base=500_000.0, scaling=Linear(2.0), rotary_dim=4, interleaved=True)
    assert str(rotary) == "Rotary(8, base=500000.0, scaling=Linear(factor=2.0), rotary_dim=4, interleaved=True)"


def test_a_scaling_is_a_value():
    """Whole numbers, as checkpoints' settings write them, do as well."""
    whole, point = YaRN(4, 8, beta_fast=20), YaRN(4.0, 8, beta_fast=20.0, beta_slow=1.0)
    x = torch.randn(40, 8)
    assert torch.equal(Rotary(8, base=500_000, scaling=whole)(x), Rotary(8, base=500_000.0, scaling=point)(x))
    assert (whole, hash(whole)) == (point, hash(point))
    with pytest.raises(dataclasses.FrozenInstanceError):
        whole.factor = 3.0


NTK = DynamicNTK(2.0, 8)
KIND = "must be a Linear, DynamicNTK, Llama3 or YaRN"


def turned(x, positions):
    return Rotary(8)(torch.zeros(x), torch.zeros(positions, dtype=torch.int64))


@pytest.mark.usefixtures("as_a_user_runs_it")
@pytest.mark.parametrize(
    ("make", "error", "message"),
    [
        (lambda: Rotary(7), ValueError, "width=7 is odd and .* rotated in pairs: give rotary_dim=6 or fewer"),
        (lambda: Rotary(8, rotary_dim=3), ValueError, "rotary_dim=3 must be an even number from 2 to width=8"),
        (lambda: Rotary(8, rotary_dim=-2), ValueError, "rotary_dim=-2 must be"),
        (lambda: Rotary(0), ValueError, "rotary_dim=0 must be an even number from 2 to width=0"),
        *((lambda base=base: Rotary(8, base=base), ValueError, f"base={base} must be a number above 1")
          for base in (1.0, -5.0, math.nan, math.inf, 10**30)),
        (lambda: Rotary(2, scaling=NTK), ValueError, r"DynamicNTK\(.*=8\).*rotary_dim=2 must be at least 4"),
        (lambda: Rotary(8, scaling=NTK, rotary_dim=2), ValueError, "rotary_dim=2 must be at least 4"),
        *((lambda scaling=scaling: Rotary(8, scaling=scaling), TypeError, KIND) for scaling in ({}, 2.0, Linear)),
        (lambda: Linear(0.5), ValueError, r"Linear\(factor=0.5\): factor=0.5 must be a number from 1 to"),
        *((lambda factor=factor: Linear(factor), ValueError, f"factor={factor} must be")
          for factor in (math.nan, 10**30, 10**400)),
        (lambda: DynamicNTK(0.0, 8), ValueError, "factor=0.0 must be"),
        (lambda: DynamicNTK(2.0, 0), ValueError, "original_max_positions=0 must be a number from 1 to"),
        (lambda: Llama3(0.0, 1.0, 4.0, 8), ValueError, "factor=0.0 must be"),
        (lambda: Llama3(2.0, 1.0, 4.0, 0), ValueError, "original_max_positions=0 must be"),
        (lambda: Llama3(2.0, 4.0, 4.0, 8), ValueError, "low_freq_factor=4.0 must be above 0 and below high_.*=4.0"),
        (lambda: Llama3(2.0, 0.0, 4.0, 8), ValueError, "low_freq_factor=0.0 must be"),
        (lambda: Llama3(2.0, 1.0, math.inf, 8), ValueError, "low_freq_factor=1.0 must .* below high_freq_factor=inf"),
        (lambda: YaRN(-1.0, 8), ValueError, "factor=-1.0 must be"),
        (lambda: YaRN(2.0, 10**30), ValueError, "original_max_positions=10+ must be a number from 1 to"),
        (lambda: YaRN(2.0, -8), ValueError, "original_max_positions=-8 must be"),
        (lambda: YaRN(2.0, 8, 1.0, 2.0), ValueError, "beta_slow=2.0 must be above 0 and not above beta_fast=1.0"),
        (lambda: YaRN(2.0, 8, beta_slow=0.0), ValueError, "beta_slow=0.0 must be"),
        (lambda: YaRN(2.0, 8, attention_factor=0.0), ValueError, "attention_factor=0.0 must be above 0"),
        (lambda: YaRN(2.0, 8, mscale=0.0, mscale_all_dim=1.0), ValueError, "mscale=0.0 must be above 0"),
        (lambda: YaRN(2.0, 8, mscale=1.0), ValueError, "mscale=1.0 and mscale_all_dim=None .*: give both or neither"),
        (lambda: YaRN(2.0, 8, attention_factor=1.5, mscale=1.0, mscale_all_dim=1.0), ValueError,
         "attention_factor=1.5 and mscale=1.0 set the same factor: give one"),
        *((lambda x=x: Rotary(8)(torch.zeros(x)), ValueError, r"x must be \(..., tokens, width=8\); got \(")
          for x in ((8,), (3, 7), (2, 3, 16))),
        (lambda: Rotary(8)(torch.ones(3, 8).long()), TypeError, "queries and keys are floating point; got torch.int64"),
        *((lambda dtype=dtype: Rotary(8)(torch.zeros(3, 8), torch.ones(3, dtype=dtype)), TypeError,
           f"positions are whole numbers; got {dtype}") for dtype in (torch.float32, torch.bool)),
        # One position for three tokens is no position of any.
        *((lambda at=at: turned((2, 4, 3, 8), at), ValueError, r"positions of shape \(.*\) do not fit x of shape")
          for at in ((4,), (1,), (2, 2), (4, 3), (2, 4, 3))),
        (lambda: turned((2, 3, 8), (2, 3)), ValueError, "do not fit"),  # heads, not a batch
        (lambda: turned((3, 8), (1, 3)), ValueError, "do not fit"),
        (lambda: turned((3, 8), ()), ValueError, "do not fit"),
    ],
)  # fmt: skip
def test_what_makes_no_sense_is_named(make, error, message):
    with pytest.raises(error, match=message):
        make()
