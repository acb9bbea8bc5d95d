"""Rotary positions against the paper's equation in loops, and against the numbers of transformers."""

import copy
import dataclasses
import math

import pytest
import torch
import torch._dynamo.testing
import transformers
from hypothesis import given, settings
from hypothesis import strategies as st
from transformers.modeling_rope_utils import ROPE_INIT_FUNCTIONS
from transformers.models.cohere import modeling_cohere
from transformers.models.gpt_neox import modeling_gpt_neox
from transformers.models.gptj import modeling_gptj
from transformers.models.llama import modeling_llama
from transformers.models.phi import modeling_phi

from regard.attention.positions import DynamicNTK, Linear, Llama3, Rotary, YaRN

ORIGINAL = 32
"""The length of training in every scaling of these tests."""

HUGGING_FACE = {
    "default": (None, {}),
    "linear": (Linear(3.7), {"factor": 3.7}),
    "dynamic": (DynamicNTK(3.7, ORIGINAL), {"factor": 3.7}),
    "llama3": (
        Llama3(8.0, 1.0, 4.0, ORIGINAL),
        {
            "factor": 8.0,
            "low_freq_factor": 1.0,
            "high_freq_factor": 4.0,
            "original_max_position_embeddings": ORIGINAL,
        },
    ),
    "yarn": (YaRN(40.0, ORIGINAL), {"factor": 40.0, "original_max_position_embeddings": ORIGINAL}),
}
SCALINGS = {name: scaling for name, (scaling, _) in HUGGING_FACE.items()}
every_scaling = pytest.mark.parametrize("scaling", SCALINGS.values(), ids=SCALINGS)


def config_of(kind, width, rope, *, base=10_000.0, config=transformers.LlamaConfig, **more):
    # A model made for more positions than the original ones; dynamic NTK has no such number and counts from the first.
    longest = ORIGINAL if kind == "dynamic" else 64 * ORIGINAL
    return config(
        hidden_size=2 * width,
        num_attention_heads=2,
        max_position_embeddings=longest,
        rope_parameters={"rope_type": kind, "rope_theta": base, **rope},
        **more,
    )


def randn(*shape):
    return torch.randn(*shape, dtype=torch.float64)


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


# The definition.


@pytest.mark.parametrize("interleaved", [False, True])
@pytest.mark.parametrize(("width", "rotary_dim"), [(2, None), (8, None), (10, 4), (9, 2), (9, 8)])
@pytest.mark.parametrize("positions", [[0, 1, 2, 3, 4], [7, 7, 0, 100_000, -3]])
@pytest.mark.parametrize("base", [10_000.0, 50.0])
def test_the_papers_equation(interleaved, width, rotary_dim, positions, base):
    x = randn(2, 3, 5, width)
    rotary = Rotary(width, base=base, rotary_dim=rotary_dim, interleaved=interleaved)
    expected = by_loops(x, positions, base=base, rotary_dim=rotary_dim, interleaved=interleaved)
    torch.testing.assert_close(rotary(x, torch.tensor(positions)), expected, rtol=0, atol=1e-10)


def test_positions_count_from_0():
    x = randn(2, 5, 8)
    assert torch.equal(Rotary(8)(x), Rotary(8)(x, torch.arange(5)))


# Against transformers.


@pytest.mark.parametrize("length", [1, 7, ORIGINAL, ORIGINAL + 1, 5 * ORIGINAL])
@pytest.mark.parametrize("base", [10_000.0, 500_000.0])
@pytest.mark.parametrize("kind", HUGGING_FACE)
def test_llama_below_and_above_the_length_of_training(kind, base, length):
    scaling, rope = HUGGING_FACE[kind]
    q, k, positions = torch.randn(2, 4, length, 16), torch.randn(2, 2, length, 16), torch.arange(length)[None]
    cos_sin = modeling_llama.LlamaRotaryEmbedding(config_of(kind, 16, rope, base=base))(q, positions)
    expected = modeling_llama.apply_rotary_pos_emb(q, k, *cos_sin)
    rotary = Rotary(16, base=base, scaling=scaling)
    for x, turned in zip((q, k), expected, strict=True):
        torch.testing.assert_close(rotary(x), turned, rtol=0, atol=1e-6)
        torch.testing.assert_close(rotary(x, positions), turned, rtol=0, atol=1e-6)


@pytest.mark.parametrize("kind", HUGGING_FACE)
def test_far_positions_have_the_angles_of_the_checkpoints_own_code(kind):
    """Float32 rounds a frequency by 6e-8 of it, which is 6e-3 of a turn at position 100,000 unless both round alike."""
    scaling, rope = HUGGING_FACE[kind]
    q, positions = torch.randn(1, 1, 6, 64), torch.tensor([[0, 1, 4095, 32_768, 99_999, 100_000]])
    cos_sin = modeling_llama.LlamaRotaryEmbedding(config_of(kind, 64, rope))(q, positions)
    expected, _ = modeling_llama.apply_rotary_pos_emb(q, q, *cos_sin)
    torch.testing.assert_close(Rotary(64, scaling=scaling)(q, positions), expected, rtol=0, atol=1e-6)


def test_a_padded_batch_of_llama():
    q, positions = torch.randn(3, 4, 6, 16), torch.tensor([[0, 1, 2, 3, 4, 5], [1, 1, 1, 0, 1, 2], [9, 8, 7, 6, 5, 4]])
    cos_sin = modeling_llama.LlamaRotaryEmbedding(config_of("default", 16, {}))(q, positions)
    expected, _ = modeling_llama.apply_rotary_pos_emb(q, q, *cos_sin)
    torch.testing.assert_close(Rotary(16)(q, positions), expected, rtol=0, atol=1e-6)


def theirs(kind, width, rope, *, base, positions=None):
    config = config_of(kind, width, rope, base=base)
    return ROPE_INIT_FUNCTIONS[kind](config, seq_len=None if positions is None else positions.max() + 1)


numbers = {
    "width": st.integers(2, 70).map(lambda pairs: 2 * pairs),
    "base": st.sampled_from([100.0, 10_000.0, 500_000.0, 1e6]),
    "factor": st.floats(1, 64, width=32),
}


@settings(deadline=None)
@given(**numbers)
def test_linear_frequencies(width, base, factor):
    expected, amplitude = theirs("linear", width, {"factor": factor}, base=base)
    assert torch.equal(Linear(factor).frequencies(base, width, torch.zeros(1)), expected)
    assert Linear(factor).amplitude == amplitude


@settings(deadline=None)
@given(**numbers, length=st.integers(1, 40 * ORIGINAL))
def test_dynamic_frequencies(width, base, factor, length):
    scaling, positions = DynamicNTK(factor, ORIGINAL), torch.arange(length)
    if length > ORIGINAL:
        expected, _ = theirs("dynamic", width, {"factor": factor}, base=base, positions=positions)
    else:
        expected = Linear(1.0).frequencies(base, width, positions.float())
    assert torch.equal(scaling.frequencies(base, width, positions.float()), expected)
    assert torch.equal(scaling.frequencies(base, width, torch.zeros(1), length), expected)
    assert scaling.amplitude == 1.0


@settings(deadline=None)
@given(**numbers, low=st.floats(0.5, 3, width=32), more=st.floats(0.5, 60, width=32), original=st.integers(1, 8192))
def test_llama3_frequencies(width, base, factor, low, more, original):
    rope = {
        "factor": factor,
        "low_freq_factor": low,
        "high_freq_factor": low + more,
        "original_max_position_embeddings": original,
    }
    expected, amplitude = theirs("llama3", width, rope, base=base)
    scaling = Llama3(factor, low, low + more, original)
    # One rounding: where their ramp ends and ours is exactly 0 or 1.
    torch.testing.assert_close(scaling.frequencies(base, width, torch.zeros(1)), expected, rtol=2**-22, atol=0)
    assert scaling.amplitude == amplitude


@settings(deadline=None)
@given(
    **numbers,
    original=st.integers(1, 8192),
    slow=st.sampled_from([0.5, 1, 2]),
    fast=st.sampled_from([2, 20, 32]),
    truncate=st.booleans(),
    attention=st.sampled_from(
        [{}, {"attention_factor": 1.25}, {"mscale": 0.7, "mscale_all_dim": 1.3}, {"mscale": 1.0, "mscale_all_dim": 1.0}]
    ),
)
def test_yarn_frequencies_and_attention_factor(width, base, factor, original, slow, fast, truncate, attention):
    more = {"beta_fast": fast, "beta_slow": slow, "truncate": truncate, **attention}
    rope = {"factor": factor, "original_max_position_embeddings": original, **more}
    expected, amplitude = theirs("yarn", width, rope, base=base)
    scaling = YaRN(factor, original, **more)
    assert torch.equal(scaling.frequencies(base, width, torch.zeros(1)), expected)
    assert scaling.amplitude == pytest.approx(amplitude, rel=1e-12)


def test_interleaved_and_partial_as_gpt_j():
    x = torch.randn(2, 7, 3, 16)  # batch, tokens, heads, width
    sin, cos = modeling_gptj.create_sinusoidal_positions(7, 12)[None].chunk(2, dim=-1)
    turned = modeling_gptj.apply_rotary_pos_emb(x[..., :12], sin, cos)
    expected = torch.cat([turned, x[..., 12:]], dim=-1).transpose(1, 2)
    actual = Rotary(16, rotary_dim=12, interleaved=True)(x.transpose(1, 2))
    torch.testing.assert_close(actual, expected, rtol=0, atol=1e-6)


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16, torch.float16])
def test_interleaved_as_cohere(dtype):
    x, positions = torch.randn(2, 3, 40, 16).to(dtype), torch.arange(40)[None]
    config = config_of("default", 16, {}, config=transformers.CohereConfig)
    # In float32, as the model asks for its table; then Cohere, too, rounds once, at the end.
    cos_sin = modeling_cohere.CohereRotaryEmbedding(config)(x.float(), positions)
    expected, _ = modeling_cohere.apply_rotary_pos_emb(x, x, *cos_sin)
    # The same float32 numbers, up to their own rounding, may round to neighbours in half precision.
    tolerance = {"rtol": 0, "atol": 1e-6} if dtype == torch.float32 else {}
    torch.testing.assert_close(Rotary(16, interleaved=True)(x), expected, **tolerance)


@pytest.mark.parametrize("share", [0.25, 0.5, 1.0])
def test_partial_as_gpt_neox(share):
    x, positions = torch.randn(2, 3, 40, 16), torch.arange(40)[None]
    config = config_of("default", 16, {"partial_rotary_factor": share}, config=transformers.GPTNeoXConfig)
    cos_sin = modeling_gpt_neox.GPTNeoXRotaryEmbedding(config)(x, positions)
    expected, _ = modeling_gpt_neox.apply_rotary_pos_emb(x, x, *cos_sin)
    torch.testing.assert_close(Rotary(16, rotary_dim=int(16 * share))(x), expected, rtol=0, atol=1e-6)


def test_partial_as_phi():
    x, positions = torch.randn(2, 3, 40, 20), torch.arange(40)[None]
    config = config_of("default", 20, {"partial_rotary_factor": 0.4}, config=transformers.PhiConfig)
    cos_sin = modeling_phi.PhiRotaryEmbedding(config)(x, positions)
    expected, _ = modeling_phi.apply_rotary_pos_emb(x[..., :8], x[..., :8], *cos_sin)
    expected = torch.cat([expected, x[..., 8:]], dim=-1)
    torch.testing.assert_close(Rotary(20, rotary_dim=8)(x), expected, rtol=0, atol=1e-6)


# What the paper claims.

kinds = {
    "scaling": st.sampled_from(list(SCALINGS.values())),
    "rotary_dim": st.sampled_from([4, 8, 12]),
    "interleaved": st.booleans(),
}


@settings(deadline=None)
@given(**kinds, at=st.integers(0, 500), apart=st.integers(-500, 500), shift=st.integers(-500, 100_000))
def test_scores_depend_on_the_distance_alone(scaling, rotary_dim, interleaved, at, apart, shift):
    rotary = Rotary(12, scaling=scaling, rotary_dim=rotary_dim, interleaved=interleaved)
    q, k = randn(1, 12), randn(1, 12)

    def score(query, key):
        # Dynamic NTK keeps this for one length of the whole sequence.
        turned = [rotary(x, torch.tensor([p]), length=200) for x, p in ((q, query), (k, key))]
        return (turned[0] * turned[1]).sum()

    torch.testing.assert_close(score(at, at + apart), score(at + shift, at + apart + shift), rtol=0, atol=1e-8)


@settings(deadline=None)
@given(**kinds, position=st.integers(0, 1_000_000))
def test_a_rotation_keeps_the_norm(scaling, rotary_dim, interleaved, position):
    rotary = Rotary(12, scaling=scaling, rotary_dim=rotary_dim, interleaved=interleaved)
    amplitude = 1.0 if scaling is None else scaling.amplitude
    x = randn(3, 12)
    y = rotary(x, torch.tensor([position, 1, 0]))
    torch.testing.assert_close(y[:, :rotary_dim].norm(dim=-1), amplitude * x[:, :rotary_dim].norm(dim=-1))
    assert torch.equal(y[:, rotary_dim:], x[:, rotary_dim:])


@pytest.mark.parametrize("interleaved", [False, True])
@every_scaling
def test_position_0_is_not_turned(scaling, interleaved):
    amplitude = 1.0 if scaling is None else scaling.amplitude
    x = torch.randn(2, 3, 8)
    y = Rotary(8, scaling=scaling, interleaved=interleaved)(x, torch.zeros(3, dtype=torch.int64))
    torch.testing.assert_close(y, x * amplitude, rtol=1e-6, atol=0)


def test_only_yarn_has_an_amplitude():
    assert {name for name, scaling in SCALINGS.items() if scaling and scaling.amplitude != 1.0} == {"yarn"}
    assert YaRN(1.0, 32).amplitude == 1.0
    assert YaRN(math.e, 32).amplitude == pytest.approx(1.1)


@pytest.mark.parametrize("name", ["linear", "dynamic", "llama3", "yarn"])
def test_a_scaling_slows_some_pairs_and_speeds_none_up(name):
    far = torch.arange(ORIGINAL + 1).float()
    plain = Linear(1.0).frequencies(10_000.0, 64, far)
    scaled = SCALINGS[name].frequencies(10_000.0, 64, far)
    assert (scaled <= plain * (1 + 1e-6)).all()
    assert scaled[-1] < 0.9 * plain[-1]


@pytest.mark.parametrize(
    "scaling",
    [Linear(1.0), DynamicNTK(1.0, 4), Llama3(1.0, 1.0, 4.0, 32), YaRN(1.0, 32)],
    ids=lambda s: type(s).__name__,
)
def test_a_factor_of_1_below_the_original_length_changes_nothing(scaling):
    x = randn(4, 8)
    torch.testing.assert_close(Rotary(8, scaling=scaling)(x), Rotary(8)(x), rtol=0, atol=1e-14)


def test_gradients_turn_back():
    for options in ({}, {"interleaved": True}, {"rotary_dim": 4}, {"scaling": SCALINGS["yarn"]}):
        rotary = Rotary(6, **options)
        assert torch.autograd.gradcheck(rotary, randn(2, 3, 6).requires_grad_())


# Dynamic NTK: the length decides.


def test_dynamic_leaves_the_original_length_alone():
    x = torch.randn(ORIGINAL + 1, 8)
    assert torch.equal(Rotary(8, scaling=DynamicNTK(3.7, ORIGINAL))(x[:-1]), Rotary(8)(x[:-1]))
    assert not torch.allclose(Rotary(8, scaling=DynamicNTK(3.7, ORIGINAL))(x), Rotary(8)(x), atol=1e-3)


def test_dynamic_keeps_nothing_of_a_longer_call():
    rotary, x = Rotary(8, scaling=DynamicNTK(2.0, 8)), torch.randn(40, 8)
    before = rotary(x[:20])
    rotary(x)
    assert torch.equal(rotary(x[:20]), before)


def test_dynamic_reads_the_length_from_the_last_position():
    rotary, x = Rotary(8, scaling=DynamicNTK(2.0, 8)), torch.randn(40, 8)
    torch.testing.assert_close(rotary(x[-3:], torch.arange(37, 40)), rotary(x)[-3:], rtol=0, atol=1e-6)


def test_dynamic_takes_the_length_of_a_sequence_of_which_it_sees_a_part():
    rotary, x = Rotary(8, scaling=DynamicNTK(2.0, 8)), torch.randn(40, 8)
    torch.testing.assert_close(rotary(x[:12], length=40), rotary(x)[:12], rtol=0, atol=1e-6)
    assert not torch.allclose(rotary(x[:12]), rotary(x)[:12], atol=1e-3)


@pytest.mark.parametrize("name", ["default", "linear", "llama3", "yarn"])
def test_no_other_scaling_depends_on_the_length(name):
    rotary, x = Rotary(8, scaling=SCALINGS[name]), torch.randn(4, 8)
    assert torch.equal(rotary(x, length=1000), rotary(x))


# Shapes and positions.


@every_scaling
def test_each_sequence_of_a_batch_by_its_own_positions(scaling):
    rotary, x = Rotary(6, scaling=scaling), torch.randn(3, 2, 4, 6)
    positions = torch.tensor([[0, 1, 2, 3], [50, 50, 51, 52], [9, 2, 0, 4]])
    # Length: one for the batch.
    each = [rotary(row, at, length=53) for row, at in zip(x, positions, strict=True)]
    torch.testing.assert_close(rotary(x, positions), torch.stack(each), rtol=0, atol=1e-6)


def test_one_row_of_positions_serves_the_whole_batch():
    rotary, x, positions = Rotary(6), torch.randn(3, 2, 4, 6), torch.tensor([4, 2, 9, 0])
    assert torch.equal(rotary(x, positions), rotary(x, positions[None]))
    assert torch.equal(rotary(x, positions), rotary(x, positions.expand(3, -1)))


def test_any_number_of_batch_axes():
    rotary, x = Rotary(6), torch.randn(5, 3, 2, 4, 6)
    assert torch.equal(rotary(x)[3, 1], rotary(x[3, 1]))
    assert torch.equal(rotary(x)[3, 1, 1], rotary(x[3, 1, 1]))
    positions = torch.randint(0, 50, (5, 3, 4))
    assert torch.equal(rotary(x, positions)[3, 1], rotary(x[3, 1], positions[3, 1]))


@every_scaling
@pytest.mark.parametrize("shape", [(0, 6), (2, 0, 6), (0, 2, 4, 6), (3, 2, 0, 6)])
def test_nothing_to_turn(scaling, shape):
    rotary, x = Rotary(6, scaling=scaling), torch.zeros(shape)
    assert rotary(x).shape == shape
    assert rotary(x, torch.arange(shape[-2])).shape == shape


@pytest.mark.parametrize("dtype", [torch.int8, torch.int16, torch.int32, torch.int64])
def test_positions_of_any_whole_number_type(dtype):
    rotary, x = Rotary(6), torch.randn(4, 6)
    assert torch.equal(rotary(x, torch.tensor([3, 99, 0, 1], dtype=dtype)), rotary(x, torch.tensor([3, 99, 0, 1])))


@every_scaling
@pytest.mark.parametrize("interleaved", [False, True])
def test_one_cos_sin_serves_queries_and_keys(scaling, interleaved):
    rotary = Rotary(8, scaling=scaling, rotary_dim=4, interleaved=interleaved)
    q, k, positions = torch.randn(2, 6, 5, 8), torch.randn(2, 2, 5, 8), torch.randint(0, 99, (2, 5))
    cos_sin = rotary.cos_sin(positions)
    assert torch.equal(rotary.rotate(q, *cos_sin), rotary(q, positions))
    assert torch.equal(rotary.rotate(k, *cos_sin), rotary(k, positions))


# Precision.


@pytest.mark.parametrize("rotary_dim", [None, 4])
@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16])
def test_half_precision_is_rounded_once_at_the_end(dtype, rotary_dim):
    rotary, x, positions = Rotary(8, rotary_dim=rotary_dim), torch.randn(6, 8).to(dtype), torch.arange(5000, 5006)
    y = rotary(x, positions)
    assert y.dtype == dtype
    assert torch.equal(y, rotary(x.float(), positions).to(dtype))


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
def test_the_dtype_of_x_is_kept(dtype):
    assert Rotary(8)(torch.randn(6, 8, dtype=dtype)).dtype == dtype


@every_scaling
def test_a_cast_of_the_module_changes_no_angle(scaling):
    rotary, x = Rotary(8, scaling=scaling), torch.randn(50, 8)
    before = rotary(x)
    assert torch.equal(rotary.to(torch.bfloat16)(x), before)
    assert torch.equal(rotary.double()(x), before)


def test_the_default_dtype_changes_no_angle():
    rotary, x = Rotary(8, scaling=SCALINGS["dynamic"]), torch.randn(50, 8)
    before = rotary(x)
    torch.set_default_dtype(torch.float64)
    try:
        after = rotary(x)
    finally:
        torch.set_default_dtype(torch.float32)
    assert torch.equal(after, before)


# A module among modules.


@every_scaling
def test_nothing_to_learn_or_to_save(scaling):
    rotary = Rotary(8, scaling=scaling)
    rotary(torch.randn(3, 8))
    assert rotary.state_dict() == {}
    assert [*rotary.parameters(), *rotary.buffers()] == []


def test_a_module_made_without_memory_works_once_it_is_filled():
    with torch.device("meta"):
        rotary = Rotary(8, scaling=YaRN(4.0, 8))
    x = torch.randn(9, 8)
    assert torch.equal(rotary.to_empty(device="cpu")(x), Rotary(8, scaling=YaRN(4.0, 8))(x))


@every_scaling
def test_a_call_without_gradients_leaves_nothing_behind(scaling):
    rotary, x = Rotary(8, scaling=scaling), torch.randn(40, 8)
    with torch.inference_mode():
        expected = rotary(x)
    again = copy.deepcopy(rotary)(x.clone().requires_grad_())
    again.square().sum().backward()
    assert torch.equal(again, expected)


@pytest.mark.usefixtures("as_a_user_runs_it")
@every_scaling
def test_compiles_as_one_graph_for_any_length(scaling):
    torch._dynamo.reset()
    counter = torch._dynamo.testing.CompileCounter()
    rotary = Rotary(8, scaling=scaling, rotary_dim=4)
    compiled = torch.compile(rotary, fullgraph=True, backend=counter)
    for tokens in (5, 20, 33, 64, 100):
        x = torch.randn(2, 3, tokens, 8)
        assert torch.equal(compiled(x), rotary(x))
    assert counter.frame_count == 2  # the first length, then every other
    positions = torch.randint(0, 100, (2, 100))
    assert torch.equal(compiled(x, positions), rotary(x, positions))


@pytest.mark.usefixtures("as_a_user_runs_it")
@every_scaling
def test_exports_for_any_length(scaling):
    rotary, tokens = Rotary(8, scaling=scaling, interleaved=True), torch.export.Dim("tokens")
    x = torch.randn(2, 3, 12, 8)
    exported = torch.export.export(rotary, (x,), dynamic_shapes=({2: tokens},)).module()
    batch = torch.export.Dim("batch")
    shapes = ({0: batch, 2: tokens}, {0: batch, 1: tokens})
    positioned = torch.export.export(rotary, (x, torch.arange(12).repeat(2, 1)), dynamic_shapes=shapes).module()
    for length in (5, 33, 100):
        x, positions = torch.randn(2, 3, length, 8), torch.randint(0, 100, (2, length))
        assert torch.equal(exported(x), rotary(x))
        assert torch.equal(positioned(x, positions), rotary(x, positions))


def test_says_what_it_is():
    said = str(Rotary(8, base=500_000.0, scaling=Linear(2.0), rotary_dim=4, interleaved=True))
    assert said == "Rotary(8, base=500000.0, scaling=Linear(factor=2.0), rotary_dim=4, interleaved=True)"


def test_whole_numbers_do_as_well():
    """As checkpoints' settings write them."""
    x = torch.randn(40, 8)
    for whole, point in (
        (Linear(4), Linear(4.0)),
        (DynamicNTK(4, 8), DynamicNTK(4.0, 8)),
        (Llama3(8, 1, 4, 8), Llama3(8.0, 1.0, 4.0, 8)),
        (YaRN(4, 8, beta_fast=20), YaRN(4.0, 8, beta_fast=20.0, beta_slow=1.0)),
    ):
        assert torch.equal(Rotary(8, base=500_000, scaling=whole)(x), Rotary(8, base=500_000.0, scaling=point)(x))


def test_a_scaling_is_a_value():
    assert Llama3(8, 1, 4, 8192) == Llama3(
        factor=8.0, low_freq_factor=1.0, high_freq_factor=4.0, original_max_positions=8192
    )
    assert len({Linear(2.0), Linear(2.0), Linear(3.0)}) == 2
    with pytest.raises(dataclasses.FrozenInstanceError):
        Linear(2.0).factor = 3.0


# What is refused.


@pytest.mark.parametrize(
    ("width", "options", "message"),
    [
        (7, {}, "width=7 is odd and dimensions are rotated in pairs: give rotary_dim=6 or fewer"),
        (8, {"rotary_dim": 3}, "rotary_dim=3 must be an even number from 2 to width=8"),
        (8, {"rotary_dim": 10}, "rotary_dim=10 must be an even number from 2 to width=8"),
        (8, {"rotary_dim": 0}, "rotary_dim=0 must be"),
        (8, {"rotary_dim": -2}, "rotary_dim=-2 must be"),
        (0, {}, "rotary_dim=0 must be an even number from 2 to width=0"),
        (8, {"base": 1.0}, r"base=1.0 must be a number above 1"),
        (8, {"base": -5.0}, r"base=-5.0 must be"),
        (8, {"base": math.nan}, "base=nan must be"),
        (8, {"base": math.inf}, "base=inf must be"),
        (
            2,
            {"scaling": DynamicNTK(2.0, 8)},
            r"DynamicNTK\(factor=2.0, original_max_positions=8\).*rotary_dim=2 must be at least 4",
        ),
        (8, {"scaling": DynamicNTK(2.0, 8), "rotary_dim": 2}, "rotary_dim=2 must be at least 4"),
    ],
)
def test_sizes_that_make_no_sense(width, options, message):
    with pytest.raises(ValueError, match=message):
        Rotary(width, **options)


@pytest.mark.usefixtures("as_a_user_runs_it")
@pytest.mark.parametrize("scaling", [{"rope_type": "linear", "factor": 2.0}, 2.0, Linear])
def test_a_scaling_of_another_kind(scaling):
    with pytest.raises(TypeError, match="must be a Linear, DynamicNTK, Llama3 or YaRN"):
        Rotary(8, scaling=scaling)


@pytest.mark.parametrize(
    ("scaling", "numbers", "message"),
    [
        (Linear, {"factor": 0.5}, r"Linear\(factor=0.5\): factor=0.5 must be a number from 1 up"),
        (Linear, {"factor": math.nan}, "factor=nan must be"),
        (Linear, {"factor": math.inf}, "factor=inf must be"),
        (DynamicNTK, {"factor": 0.0, "original_max_positions": 8}, "factor=0.0 must be"),
        (
            DynamicNTK,
            {"factor": 2.0, "original_max_positions": 0},
            "original_max_positions=0 must be a number from 1 up",
        ),
        (
            Llama3,
            {"factor": 0.0, "low_freq_factor": 1.0, "high_freq_factor": 4.0, "original_max_positions": 8},
            "factor=0.0 must be",
        ),
        (
            Llama3,
            {"factor": 2.0, "low_freq_factor": 1.0, "high_freq_factor": 4.0, "original_max_positions": 0},
            "original_max_positions=0 must be",
        ),
        (
            Llama3,
            {"factor": 2.0, "low_freq_factor": 4.0, "high_freq_factor": 4.0, "original_max_positions": 8},
            "low_freq_factor=4.0 must be above 0 and below high_freq_factor=4.0",
        ),
        (
            Llama3,
            {"factor": 2.0, "low_freq_factor": 0.0, "high_freq_factor": 4.0, "original_max_positions": 8},
            "low_freq_factor=0.0 must be",
        ),
        (YaRN, {"factor": -1.0, "original_max_positions": 8}, "factor=-1.0 must be"),
        (YaRN, {"factor": 2.0, "original_max_positions": -8}, "original_max_positions=-8 must be"),
        (
            YaRN,
            {"factor": 2.0, "original_max_positions": 8, "beta_fast": 1.0, "beta_slow": 2.0},
            "beta_slow=2.0 must be above 0 and not above beta_fast=1.0",
        ),
        (YaRN, {"factor": 2.0, "original_max_positions": 8, "beta_slow": 0.0}, "beta_slow=0.0 must be"),
        (
            YaRN,
            {"factor": 2.0, "original_max_positions": 8, "attention_factor": 0.0},
            "attention_factor=0.0 must be above 0",
        ),
        (
            YaRN,
            {"factor": 2.0, "original_max_positions": 8, "mscale": 0.0, "mscale_all_dim": 1.0},
            "mscale=0.0 must be above 0",
        ),
        (
            YaRN,
            {"factor": 2.0, "original_max_positions": 8, "mscale": 1.0},
            "mscale=1.0 and mscale_all_dim=None work together: give both or neither",
        ),
        (YaRN, {"factor": 2.0, "original_max_positions": 8, "mscale_all_dim": 1.0}, "give both or neither"),
        (
            YaRN,
            {"factor": 2.0, "original_max_positions": 8, "attention_factor": 1.5, "mscale": 1.0, "mscale_all_dim": 1.0},
            "attention_factor=1.5 and mscale=1.0 set the same factor: give one",
        ),
    ],
)
def test_scalings_that_make_no_sense(scaling, numbers, message):
    with pytest.raises(ValueError, match=message):
        scaling(**numbers)


@pytest.mark.usefixtures("as_a_user_runs_it")
@pytest.mark.parametrize("shape", [(8,), (3, 7), (2, 3, 16)])
def test_x_of_another_width(shape):
    with pytest.raises(ValueError, match=r"x must be \(..., tokens, width=8\); got \("):
        Rotary(8)(torch.zeros(shape))


@pytest.mark.usefixtures("as_a_user_runs_it")
def test_x_of_whole_numbers():
    with pytest.raises(TypeError, match=r"queries and keys are floating point; got torch.int64"):
        Rotary(8)(torch.zeros(3, 8, dtype=torch.int64))


@pytest.mark.usefixtures("as_a_user_runs_it")
@pytest.mark.parametrize("dtype", [torch.float32, torch.bool])
def test_positions_that_are_not_whole_numbers(dtype):
    with pytest.raises(TypeError, match=f"positions are whole numbers; got {dtype}"):
        Rotary(8)(torch.zeros(3, 8), torch.ones(3, dtype=dtype))


@pytest.mark.usefixtures("as_a_user_runs_it")
@pytest.mark.parametrize(
    ("x", "positions"),
    [
        ((2, 4, 3, 8), (4,)),
        ((2, 4, 3, 8), (1,)),  # one position for three tokens is no position of any
        ((2, 4, 3, 8), (2, 2)),
        ((2, 4, 3, 8), (4, 3)),
        ((2, 4, 3, 8), (2, 4, 3)),
        ((2, 3, 8), (2, 3)),  # heads, not a batch
        ((3, 8), (1, 3)),
        ((3, 8), ()),
    ],
)
def test_positions_of_another_shape(x, positions):
    with pytest.raises(ValueError, match=r"positions of shape \(.*\) do not fit x of shape"):
        Rotary(8)(torch.zeros(x), torch.zeros(positions, dtype=torch.int64))
