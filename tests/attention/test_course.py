"""The classes of the five source documents: their face is the documents' own, their mistakes are not."""

import copy
import inspect

import pytest
import torch

import regard
from golden import BLOCKED, X
from grids import grid
from regard import course, mask

ONE_HEAD = [course.SelfAttention, course.MaskedSelfAttention, course.Attention]
TAKE_A_MASK = [course.MaskedSelfAttention, course.Attention]
JOINED = [course.MultiHeadAttention, course.MultiHeadedAttention]


def call(module, x, *mask):
    """Self-attention, whatever the number of encodings that the class asks for."""
    wants_three = isinstance(module, course.Attention | course.MultiHeadedAttention)
    return module(*[x] * (3 if wants_three else 1), *mask)


@pytest.mark.parametrize(
    ("cls", "parameters"),
    [
        (course.SelfAttention, ["token_encodings"]),
        (course.MaskedSelfAttention, ["token_encodings", "mask"]),
        (course.Attention, ["encodings_for_q", "encodings_for_k", "encodings_for_v", "mask"]),
        *((cls, ["encodings_for_q", "encodings_for_k", "encodings_for_v", "mask"]) for cls in JOINED),
        (course.AttentionHead, ["x", "mask"]),
        (course.MultiHeadSelfAttention, ["x", "mask"]),
    ],
)
def test_call_signatures(cls, parameters):
    assert list(inspect.signature(cls.forward).parameters) == ["self", *parameters]


@pytest.mark.parametrize("cls", [*ONE_HEAD, *JOINED])
def test_attributes_of_000_001_and_004(cls):
    module = cls(d_model=4)
    assert (module.d_model, module.row_dim, module.col_dim) == (4, 0, 1)
    assert (cls(4, -2, -1).row_dim, cls(4, -2, -1).col_dim) == (-2, -1)
    head = module.heads[0] if cls in JOINED else module
    names = ["W_q.weight", "W_k.weight", "W_v.weight"]
    assert {name: tuple(p.shape) for name, p in head.named_parameters()} == dict.fromkeys(names, (4, 4))


def test_call_of_004_by_its_own_names():
    for module in (course.Attention(2), course.MultiHeadedAttention(2, num_heads=2)):
        by_name = module(q_encodings_matrix=X[:2], k_encodings_matrix=X, v_encodings_matrix=-X, mask=None)
        assert torch.equal(by_name, module(encodings_for_q=X[:2], encodings_for_k=X, encodings_for_v=-X))
        assert torch.equal(by_name, module(X[:2], X, -X))


def test_attributes_of_003():
    head = course.AttentionHead(embed_dim=32, head_size=8)
    assert [name for name, _ in head.named_parameters()] == ["query.weight", "key.weight", "value.weight"]
    heads = course.MultiHeadAttention(embed_dim=32, num_heads=4)
    assert (head.head_size, heads.head_size) == (8, 8)
    assert [type(head) for head in heads.heads] == [course.AttentionHead] * 4
    assert (heads.output_linear.weight.shape, heads.output_linear.bias.shape) == ((32, 32), (32,))


@pytest.mark.parametrize(
    ("positional", "named", "cls"),
    [
        ((), {}, course.MultiHeadAttention),
        ((2, 0, 1), {}, course.MultiHeadAttention),
        ((2, -2, -1), {"num_heads": 8}, course.MultiHeadAttention),
        ((), {"d_model": 2, "row_dim": 0, "col_dim": 1, "num_heads": 8}, course.MultiHeadAttention),
        ((32,), {"num_heads": 4}, course.MultiHeadAttention),
        ((32, 4), {}, course.MultiHeadSelfAttention),
        ((), {"embed_dim": 32, "num_heads": 4}, course.MultiHeadSelfAttention),
    ],
)
def test_two_documents_gave_a_class_this_name(positional, named, cls):
    made = course.MultiHeadAttention(*positional, **named)
    assert type(made) is type(copy.deepcopy(made)) is cls


@pytest.mark.parametrize("batch", [(), (4,), (4, 5)])
def test_steps_of_several_heads_have_an_axis_of_heads(batch):
    x = torch.randn(*batch, 3, 6)
    headed = course.MultiHeadedAttention(6, row_dim=-2, col_dim=-1, num_heads=2)
    kept = headed.steps(x, x, x, BLOCKED)
    assert kept.weights.shape == (*batch, 2, 3, 3)
    assert kept.q.shape == kept.output.shape == (*batch, 2, 3, 6)
    assert torch.equal(kept.heads, headed(x, x, x, BLOCKED))
    assert torch.equal(kept.output[..., 1, :, :], headed.heads[1](x, x, x, BLOCKED))

    projecting = course.MultiHeadSelfAttention(6, 2)
    kept = projecting.steps(x, BLOCKED)
    assert kept.weights.shape == (*batch, 2, 3, 3)
    assert torch.equal(kept.projected, projecting(x, BLOCKED))
    assert torch.equal(kept.heads, torch.cat([head(x, BLOCKED) for head in projecting.heads], dim=-1))


@pytest.mark.parametrize("cls", [*TAKE_A_MASK, *JOINED])
def test_everything_blocked_gives_zeros_and_no_gradient__E_08(cls):
    module = cls()
    x = X.clone().requires_grad_()
    output = call(module, x, torch.ones(3, 3).bool())
    output.sum().backward()
    assert all((t == 0).all() for t in (output, x.grad, *(p.grad for p in module.parameters())))


@grid(cls=[*TAKE_A_MASK, *JOINED], dtype=[torch.float16, torch.bfloat16])
def test_half_precision_takes_a_mask__E_08_darts_3081(cls, dtype):
    module, x = cls().to(dtype), X.to(dtype)
    output = call(module, x, BLOCKED)
    own_value = torch.cat([head.W_v(x)[0] for head in getattr(module, "heads", [module])])
    assert output.dtype == dtype
    assert output.isfinite().all()
    assert torch.equal(output[0], own_value)


@pytest.mark.parametrize("cls", ONE_HEAD)
def test_the_scale_is_exact_in_float64__E_08b(cls):
    head = cls().double()
    kept = head.steps(*[X.double()] * (3 if cls is course.Attention else 1))
    torch.testing.assert_close(kept.scaled, kept.scores / 2.0**0.5, rtol=1e-15, atol=0)


@grid(
    cls=[*ONE_HEAD, *JOINED],
    dims=[(0, 1), (1, 0), (0, 0), (-1, -2), (1, 2)],
    shape=[(3, 2), (2, 2, 2), (5, 4, 3, 2)],
    where=lambda cls, dims, shape: dims not in ((len(shape) - 2, len(shape) - 1), (-2, -1)),
)
def test_dims_that_are_not_tokens_and_features_are_refused__E_06(cls, dims, shape):
    named = rf"row_dim={dims[0]}, col_dim={dims[1]} do not name the tokens and features.*row_dim=-2, col_dim=-1 fit any"
    with pytest.raises(ValueError, match=named):
        call(cls(2, *dims), torch.randn(shape))


@grid(cls=[*ONE_HEAD, *JOINED], dims=[(-2, -1), (1, 2)], shape=[(2, 2, 2), (4, 3, 2)])
def test_named_dims_give_what_each_sample_gives__E_06(cls, dims, shape):
    module, alone = cls(2, *dims), cls()
    alone.load_state_dict(module.state_dict())
    x = torch.randn(shape)
    torch.testing.assert_close(call(module, x), torch.stack([call(alone, sample) for sample in x]))


@pytest.mark.parametrize("cls", TAKE_A_MASK)
def test_a_mask_for_each_sample(cls):
    module, x, blocked = cls(2, -2, -1), torch.randn(4, 3, 2), torch.rand(4, 3, 3) < 0.5
    each = torch.stack([call(module, sample, of_sample) for sample, of_sample in zip(x, blocked, strict=True)])
    torch.testing.assert_close(call(module, x, blocked), each)


@pytest.mark.parametrize("cls", TAKE_A_MASK)
def test_a_mask_that_does_not_fit_is_named_by_the_shape_it_was_given(cls):
    with pytest.raises(ValueError, match=r"^blocked\(<bool \(2, 3\)>\) does not fit 3 queries and 3 keys"):
        call(cls(), X, torch.zeros(2, 3).bool())


@pytest.mark.parametrize("cls", TAKE_A_MASK)
@pytest.mark.usefixtures("as_a_user_runs_it")
def test_a_mask_of_numbers_is_refused__pytorch_21518(cls):
    with pytest.raises(TypeError, match="wants a boolean tensor"):
        call(cls(), X, torch.tril(torch.ones(3, 3)))


@pytest.mark.parametrize(("embed_dim", "num_heads"), [(32, 5), (4, 8), (32, -4)])
def test_the_number_of_heads_divides_the_width__E_33(embed_dim, num_heads):
    with pytest.raises(ValueError, match=rf"embed_dim={embed_dim} must be divisible by num_heads={num_heads}"):
        course.MultiHeadAttention(embed_dim=embed_dim, num_heads=num_heads)
    with pytest.raises(ValueError, match="num_heads=0 must be at least 1"):
        course.MultiHeadedAttention(num_heads=0)


def test_003_is_the_module_with_the_same_weights__E_30():
    theirs = course.MultiHeadAttention(embed_dim=12, num_heads=3)
    ours = regard.MultiHeadAttention(12, 3)
    with torch.no_grad():
        packed = [head.get_submodule(which).weight for which in ("query", "key", "value") for head in theirs.heads]
        ours.qkv.weight.copy_(torch.cat(packed))
        ours.out_proj.weight.copy_(theirs.output_linear.weight)
        theirs.output_linear.bias.zero_()
    x, future = torch.randn(2, 5, 12), torch.ones(5, 5).triu(1).bool()
    torch.testing.assert_close(ours(x), theirs(x))
    torch.testing.assert_close(ours(x, mask=mask.causal()), theirs(x, future))


@pytest.mark.parametrize("cls", [course.Attention, *JOINED])
def test_keys_and_values_from_their_own_encodings__E_37(cls):
    module, blocked = cls(), torch.rand(4, 5) < 0.4
    head = getattr(module, "heads", [module])[0]
    q, k, v = torch.randn(4, 2), torch.randn(5, 2), torch.randn(5, 2)
    expected = regard.steps(head.W_q(q), head.W_k(k), head.W_v(v), mask.blocked(blocked))
    torch.testing.assert_close(module(q, k, v, blocked), expected.output)
    kept = module.steps(q, k, v, blocked)
    axis = (1,) if cls in JOINED else ()
    assert kept.weights.shape == kept.masked.shape == (*axis, 4, 5)
    assert torch.equal(kept.heads if axis else kept.output, module(q, k, v, blocked))
