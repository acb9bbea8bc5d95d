"""What the definition and the kernel refuse alike: tensors that do not fit one another."""

import pytest
import torch

import regard
from regard import mask

pytestmark = [
    pytest.mark.usefixtures("as_a_user_runs_it"),
    pytest.mark.parametrize("compute", [regard.attend, regard.steps]),
]

Q, K, V = torch.zeros(2, 4, 3, 8), torch.zeros(2, 2, 5, 8), torch.zeros(2, 2, 5, 6)


@pytest.mark.parametrize(
    ("q", "k", "v", "message"),
    [
        (Q[..., :7], K, V, "one width d_key"),
        (Q[..., :0], K[..., :0], V, "at least 1"),
        (Q, K, V[:, :, :4], "every key needs one value"),
        (Q, K, V[:, :1], "every key needs one value"),
        (Q[:1], K, V, "same batch dimensions"),
        (Q[:, :3], K, V, "3 query heads cannot share 2 key heads"),
        (Q[:, :1], K, V, "1 query heads cannot share 2 key heads"),
        (Q, K[:, :0], V[:, :0], "4 query heads cannot share 0 key heads"),
        (Q[0], K, V, r"\(\.\.\., heads, tokens, width\), or all \(tokens, width\)"),
        (Q[0, 0, 0], K[0, 0, 0], V[0, 0, 0], r"\(\.\.\., heads, tokens, width\), or all \(tokens, width\)"),
    ],
)
def test_shapes_that_do_not_fit_are_named(compute, q, k, v, message):
    with pytest.raises(ValueError, match=message) as refusal:
        compute(q, k, v)
    for name, t in (("q", q), ("k", k), ("v", v)):
        assert f"{name} {tuple(t.shape)}" in str(refusal.value)


@pytest.mark.parametrize(
    ("q", "k", "v", "message"),
    [
        (Q.half(), K, V, "float16, torch.float32, torch.float32"),
        (Q, K, V.double(), "float32, torch.float32, torch.float64"),
        (Q.long(), K.long(), V.long(), "int64"),
        (Q.bool(), K.bool(), V.bool(), "bool"),
    ],
)
def test_dtypes_that_do_not_fit_are_named(compute, q, k, v, message):
    with pytest.raises(TypeError, match=message):
        compute(q, k, v)


def test_devices_that_do_not_fit_are_named(compute):
    with pytest.raises(ValueError, match="cpu, meta, cpu"):
        compute(Q, K.to("meta"), V)


@pytest.mark.parametrize(
    "t", [torch.ones(3, 5).bool(), torch.ones(3, 5), torch.ones(3, 5).long()], ids=["bool", "float", "int"]
)
def test_a_bare_tensor_is_no_mask__rasbt_llms_from_scratch_1061(compute, t):
    with pytest.raises(TypeError, match=r"mask\.allowed\(t\) where True = may attend.*mask\.blocked\(t\)"):
        compute(Q, K, V, t)


@pytest.mark.parametrize("who", ["causal", True, mask.causal])
def test_only_a_mask_is_a_mask(compute, who):
    with pytest.raises(TypeError, match=r"mask must be made by regard\.mask, or None"):
        compute(Q, K, V, who)


@pytest.mark.parametrize(
    ("who", "shape"),
    [
        (mask.allowed(torch.ones(2, 3, 3, 5).bool()), r"allowed.* of shape \(2, 3, 3, 5\)"),
        (mask.allowed(torch.ones(2, 2, 4, 3, 5).bool()), r"allowed.* of shape \(2, 2, 4, 3, 5\)"),
    ],
)
def test_a_mask_that_does_not_fit_the_scores(compute, who, shape):
    with pytest.raises(ValueError, match=shape + r" does not broadcast to the scores, shape \(2, 4, 3, 5\)"):
        compute(Q, K, V, who)


@pytest.mark.parametrize(
    "who",
    [mask.padding([6, 1]), mask.allowed(torch.ones(3, 4).bool()), mask.blocked(torch.ones(2, 5).bool())],
    ids=repr,
)
def test_a_mask_for_other_tokens(compute, who):
    with pytest.raises(ValueError, match=r"padding|allowed|blocked"):
        compute(Q, K, V, who)


@pytest.mark.parametrize("shape", [(3, 4), (3, 1, 1), (3, 1, 1, 1), (1, 2, 4, 3, 5)])
def test_a_bias_that_does_not_fit_the_scores(compute, shape):
    with pytest.raises(ValueError, match=r"bias of shape .* does not broadcast to the scores, shape \(2, 4, 3, 5\)"):
        compute(Q, K, V, bias=torch.zeros(shape))


@pytest.mark.parametrize("dtype", [torch.bool, torch.int64, torch.float64])
def test_a_bias_of_another_dtype_may_be_a_mask__pytorch_21518(compute, dtype):
    with pytest.raises(TypeError, match=r"A mask is not a bias.*mask\.allowed.*mask\.blocked"):
        compute(Q, K, V, bias=torch.ones(3, 5, dtype=dtype))


def test_a_bias_on_another_device(compute):
    with pytest.raises(ValueError, match="meta"):
        compute(Q, K, V, bias=torch.zeros(3, 5, device="meta"))


@pytest.mark.parametrize("shape", [(), (1,), (2,), (4, 1)])
def test_sinks_are_one_score_per_head(compute, shape):
    with pytest.raises(ValueError, match=r"sinks must hold one score per head, shape \(4,\)"):
        compute(Q, K, V, sinks=torch.zeros(shape))


def test_sinks_of_another_dtype(compute):
    with pytest.raises(TypeError, match="sinks"):
        compute(Q.half(), K.half(), V.half(), sinks=torch.zeros(4))


def test_a_mask_for_a_batch_of_one_fits_input_without_a_batch(compute):
    def output(*qkv):
        result = compute(*qkv, mask.padding([3]))
        return getattr(result, "output", result)

    q, k, v = torch.randn(3, 4, 5, 8)
    torch.testing.assert_close(output(q, k, v), output(q[None], k[None], v[None])[0])


@pytest.mark.parametrize("name", ["q", "k", "v", "bias", "sinks"])
def test_what_is_no_tensor(compute, name):
    given = {"q": Q, "k": K, "v": V, name: [[1.0]]}
    with pytest.raises(TypeError, match=f"{name} must be a tensor; got list"):
        compute(**given)


@pytest.mark.parametrize("lengths", [[5], [5, 5, 5]])
@pytest.mark.parametrize(
    "who", [mask.padding, lambda n: mask.causal() & mask.padding(n), lambda n: mask.padding(n) & mask.causal()]
)
def test_padding_has_one_length_for_each_row(compute, who, lengths):
    with pytest.raises(ValueError, match=rf"padding.* is for {len(lengths)} batch rows, but q of shape \(2, 4, 3, 8\)"):
        compute(Q, K, V, who(lengths))
