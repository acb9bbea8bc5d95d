"""The attention that replaces ``nn.MultiheadAttention``, against the original in float64."""

import warnings

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from torch import nn

from grids import grid, some_examples
from multihead_calls import (
    ATTN_MASKS,
    KINDS,
    PADDINGS,
    WEIGHTS,
    MultiheadCall,
    assert_same,
    replaced,
)

OPTIONS = {
    "batch_first": st.booleans(),
    "bias": st.booleans(),
    "add_bias_kv": st.booleans(),
    "add_zero_attn": st.booleans(),
}
WIDTHS = {"one width": {}, "kdim": {"kdim": 6}, "kdim and vdim": {"kdim": 6, "vdim": 4}}


def assert_call_is_same(call):
    args, kwargs = call.arguments()
    with warnings.catch_warnings():
        # PyTorch's own, about a boolean and a float mask together.
        warnings.filterwarnings("ignore", message="Support for mismatched")
        assert_same(call.module(), args, kwargs)


@grid(
    batch_first=[False, True],
    bias=[False, True],
    add_bias_kv=[False, True],
    add_zero_attn=[False, True],
    batched=[False, True],
    kind=KINDS,
)
def test_every_option_gives_the_numbers_of_pytorch(batch_first, bias, add_bias_kv, add_zero_attn, batched, kind):
    options = {"batch_first": batch_first, "bias": bias, "add_bias_kv": add_bias_kv, "add_zero_attn": add_zero_attn}
    assert_call_is_same(MultiheadCall(options, kind, batched, attn_mask="window", padding="boolean"))


@grid(attn_mask=ATTN_MASKS, padding=PADDINGS, weights=list(WEIGHTS), kind=["self", "all differ"])
def test_every_mask_gives_the_numbers_of_pytorch(attn_mask, padding, weights, kind):
    assert_call_is_same(MultiheadCall({"batch_first": True}, kind, True, attn_mask, padding, weights))


@grid(widths=list(WIDTHS), bias=[False, True], add_bias_kv=[False, True], batch_first=[False, True])
def test_keys_and_values_of_other_widths(widths, bias, add_bias_kv, batch_first):
    options = {**WIDTHS[widths], "bias": bias, "add_bias_kv": add_bias_kv, "batch_first": batch_first}
    assert_call_is_same(MultiheadCall(options, "all differ", attn_mask="numbers"))


@st.composite
def calls(draw):
    return MultiheadCall(
        {name: draw(values) for name, values in OPTIONS.items()},
        draw(st.sampled_from(KINDS)),
        draw(st.booleans()),
        draw(st.sampled_from(ATTN_MASKS)),
        draw(st.sampled_from(PADDINGS)),
        draw(st.sampled_from(list(WEIGHTS))),
        draw(st.integers(0, 9)),
    )


@some_examples(0.5)
@given(calls())
def test_any_call_gives_the_numbers_of_pytorch(call):
    assert_call_is_same(call)


@grid(
    extra=[{}, {"add_zero_attn": True}, {"add_bias_kv": True}], need_weights=[False, True], kind=["self", "all differ"]
)
def test_the_hint_is_causal_counts_as_in_pytorch(extra, need_weights, kind):
    call = MultiheadCall({"batch_first": True, **extra}, kind, attn_mask="causal")
    args, kwargs = call.arguments()
    assert_same(call.module(), args, {**kwargs, "is_causal": True, "need_weights": need_weights})


@pytest.mark.parametrize("mode", [torch.no_grad, torch.inference_mode])
@pytest.mark.parametrize("masks", ["none", "window"])
def test_inference_gives_the_numbers_of_pytorchs_fast_path(mode, masks):
    call = MultiheadCall({"batch_first": True}, attn_mask=masks, padding="boolean")
    (x, *_), kwargs = call.arguments()
    module, x = call.module(), x.detach()
    with mode():
        expected, weights = module(x, x, x, **kwargs)
        ours, our_weights = replaced(module)(x, x, x, **kwargs)
    torch.testing.assert_close(ours, expected, rtol=1e-9, atol=1e-11)
    torch.testing.assert_close(our_weights, weights, rtol=1e-9, atol=1e-11)


@pytest.mark.parametrize("need_weights", [False, True])
def test_a_query_that_may_attend_to_nothing_gets_zeros_and_a_finite_gradient(need_weights):
    module = replaced(MultiheadCall({"batch_first": True, "bias": False}).module())
    x = torch.randn(1, 4, 8, dtype=torch.double, requires_grad=True)
    blocked = torch.tensor([[True] * 4] + [[False] * 4] * 3)
    output, weights = module(x, x, x, attn_mask=blocked, need_weights=need_weights)
    output.sum().backward()
    assert output[0, 0].eq(0).all()
    assert output[0, 1:].ne(0).all()
    assert x.grad.isfinite().all()
    assert weights is None or weights[0, 0].eq(0).all()


def test_dropped_weights_are_those_that_are_returned():
    module = replaced(MultiheadCall({"batch_first": True, "dropout": 0.5}).module()).train()
    x = torch.randn(2, 6, 8).double()
    output, weights = module(x, x, x, average_attn_weights=False)
    assert 0.2 < weights.eq(0).double().mean() < 0.8
    v = nn.functional.linear(x, module.in_proj_weight[16:], module.in_proj_bias[16:]).view(2, 6, 2, 4).transpose(1, 2)
    torch.testing.assert_close(output, module.out_proj((weights @ v).transpose(1, 2).flatten(-2)))


@pytest.mark.parametrize("need_weights", [False, True])
def test_dropout_counts_in_training_alone_and_keeps_the_mean(need_weights):
    module = replaced(MultiheadCall({"batch_first": True, "dropout": 0.3}).module())
    x = torch.randn(1, 6, 8).double()
    whole = module(x, x, x, need_weights=need_weights)[0]
    assert torch.equal(whole, module(x, x, x, need_weights=need_weights)[0])
    module.train()
    many = module(*[x.expand(4000, -1, -1)] * 3, need_weights=need_weights)[0]
    assert not torch.equal(many[0], many[1])
    standard_error = many.std(0) / 4000**0.5
    assert ((many.mean(0) - whole[0]).abs() < 5 * standard_error + 1e-12).all()


def test_a_nested_tensor_gives_each_text_alone():
    call = MultiheadCall({"batch_first": True})
    module = call.module()
    texts = [torch.randn(n, 8).double() for n in (3, 5, 1)]
    expected = [module(t, t, t)[0] for t in texts]
    nested = torch.nested.nested_tensor(texts, layout=torch.jagged)
    output, weights = replaced(module)(nested, nested, nested, need_weights=False)
    assert weights is None
    for ours, theirs in zip(output.unbind(), expected, strict=True):
        torch.testing.assert_close(ours, theirs, rtol=1e-9, atol=1e-11)


@pytest.mark.parametrize(
    ("arguments", "named"),
    [
        ({"need_weights": True}, "need_weights=True"),
        ({"key_padding_mask": torch.zeros(2, 5).bool(), "need_weights": False}, "key_padding_mask"),
        ({"attn_mask": torch.zeros(5, 5).bool(), "need_weights": False}, "attn_mask"),
    ],
)
def test_a_nested_tensor_with_what_it_does_not_support_names_it(arguments, named):
    module = replaced(MultiheadCall({"batch_first": True}).module())
    x = torch.nested.nested_tensor([torch.randn(n, 8).double() for n in (3, 5)], layout=torch.jagged)
    with pytest.raises(ValueError, match=f"together with {named}: pad it"):
        module(x, x, x, **arguments)


X = torch.randn(2, 6, 8).double()
WRONG = {
    "is_causal=True says": ((X, X, X), {"is_causal": True}),
    "query must be 8 wide": ((X[..., :7], X, X), {}),
    "must all have 3 axes": ((X, X[0], X[0]), {}),
    "every key needs one value": ((X, X, X[:, :5]), {}),
    r"in the order \(batch, tokens, width\)": ((X, X[:1], X[:1]), {}),
    r"attn_mask must have the shape \(6, 6\) or \(4, 6, 6\); got \(6, 5\)": ((X, X, X), {"attn_mask": X[0] < 0}),
    r"key_padding_mask must have the shape \(2, 6\)": ((X, X, X), {"key_padding_mask": torch.ones(6).bool()}),
}


@pytest.mark.parametrize("message", WRONG)
def test_wrong_arguments_are_named(message):
    args, kwargs = WRONG[message]
    if "got (6, 5)" in message.replace("\\", ""):
        kwargs = {"attn_mask": torch.zeros(6, 5).bool()}
    module = replaced(MultiheadCall({"batch_first": True}).module())
    with pytest.raises(ValueError, match=message):
        module(*args, **kwargs)


def test_a_mask_of_whole_numbers_is_refused():
    module = replaced(MultiheadCall({"batch_first": True}).module())
    with pytest.raises(TypeError, match=r"attn_mask must be boolean, True = may NOT attend, or floating point"):
        module(X, X, X, attn_mask=torch.ones(6, 6).long())


def test_autocast_gives_pytorchs_dtype_and_numbers():
    module = MultiheadCall({"batch_first": True}).module().float()
    x, numbers = X.float(), torch.randn(6, 6)
    results = []
    for _ in range(2):
        with torch.autocast("cpu", torch.bfloat16):
            results.append(module(x, x, x, attn_mask=numbers, need_weights=False)[0])
        replaced(module) if len(results) == 1 else None
    assert results[0].dtype == results[1].dtype == torch.bfloat16
    exact = module.double()(X, X, X, attn_mask=numbers.double(), need_weights=False)[0]
    theirs, ours = ((t.double() - exact).abs().max() for t in results)
    assert ours < 2 * theirs + 1e-2
