"""Anything callable is called, with the axes of its tensors known."""

from __future__ import annotations

import copy
import functools
import math
import time
from typing import Any

import numpy as np
import pytest
import torch
from target_calls import Packed, attention, axes, first
from torch import Tensor, nn

import regard
from regard.check.properties.analyze import analyze
from regard.check.target import Failed, NotCallable, invocations
from regard.check.target.names import call_meaning
from regard.check.target.parse import parse_inputs
from regard.check.target.preparation import copied
from regard.errors import InputError

pytestmark = pytest.mark.more  # seconds a test: it is run by make test-more

# The axes. ------------------------------------------------------------------------------------------------------------


def heads_second(one, two, three):
    return attention(one, two, three)


def heads_third(query, key, value):
    return attention(*(each.transpose(1, 2) for each in (query, key, value))).transpose(1, 2)


def with_einsum(q, k, v):
    return torch.einsum("bhts,bshd->bthd", torch.einsum("bthd,bshd->bhts", q, k).softmax(-1), v)


def single(X):
    return torch.softmax(X @ X.T, dim=1) @ X


def tokens_first(x):
    return attention(*[x.transpose(0, 1)] * 3).transpose(0, 1)


def channels_first(x):
    B, C, H, W = x.shape
    tokens = x.flatten(2).transpose(1, 2)
    return attention(tokens, tokens, tokens).transpose(1, 2).reshape(B, C, H, W)


def with_weights(x, W_q, W_k, W_v, W_o):
    return attention(x @ W_q, x @ W_k, x @ W_v) @ W_o


def causal_one(x):
    return (x @ x.mT).masked_fill(torch.ones(x.shape[1], x.shape[1]).triu(1).bool(), -torch.inf).softmax(-1) @ x


AXES = {
    heads_second: [("q", 0, (2,), 1), ("k", 0, (2,), 1), ("v", 0, (2,), 1)],
    heads_third: [("q", 0, (1,), 2), ("k", 0, (1,), 2), ("v", 0, (1,), 2)],
    with_einsum: [("q", 0, (1,), 2), ("k", 0, (1,), 2), ("v", 0, (1,), 2)],
    single: [("x", None, (0,), None)],
    tokens_first: [("x", 1, (0,), None)],
    channels_first: [("x", 0, (2, 3), None)],
    with_weights: [("x", 0, (1,), None)],
    causal_one: [("x", 0, (1,), None)],
}


@pytest.mark.parametrize("function", AXES, ids=lambda each: each.__name__)
def test_axes_are_found_by_influence(function: Any) -> None:
    assert axes(first(function)) == AXES[function]


def test_the_first_call_has_sizes_that_differ_and_a_later_one_sizes_that_coincide() -> None:
    calls = list(invocations(attention, args={}))
    assert calls[0].arguments["q"].shape == (2, 3, 5, 4)
    assert calls[0].arguments["k"].shape == (2, 3, 7, 4)
    assert any(each.arguments["q"].shape == (4, 4, 4, 4) for each in calls)


def test_pytorch_s_module_has_its_tokens_first() -> None:
    assert axes(first(nn.MultiheadAttention))[0] == ("q", 1, (0,), None)
    assert axes(first(nn.MultiheadAttention, batch_first=True))[0] == ("q", 0, (1,), None)


def test_self_attention_that_takes_keys_and_reads_its_queries_alone() -> None:
    def tokens_first_of_the_query(query: Tensor, key: Tensor, value: Tensor) -> Tensor:
        return tokens_first(query)

    x = torch.randn(5, 2, 8)
    call = first(tokens_first_of_the_query, {"query": x, "key": x, "value": x})
    assert axes(call)[0] == ("q", 1, (0,), None)


def test_a_long_list_of_numbers_is_copied_as_a_whole() -> None:
    module = nn.Linear(2, 2)
    module.distances = [*range(1_000_000)]
    begin = time.perf_counter()
    copy.deepcopy(module.distances)
    one_by_one, lasted, others = time.perf_counter() - begin, list[float](), list[list[int]]()
    for _ in range(5):
        begin = time.perf_counter()
        others.append(copied(module).distances)
        lasted.append(time.perf_counter() - begin)
    assert min(lasted) < one_by_one / 4  # a hundredth, on a calm machine
    assert others[0] == module.distances
    assert others[0] is not module.distances


def test_what_a_call_left_behind_is_copied_without_its_history() -> None:
    module = nn.Linear(4, 4)
    module.last = {"weights": [module(torch.randn(2, 4))]}
    (kept,) = copied(module).last["weights"]
    assert kept.is_leaf
    assert torch.equal(kept, module.last["weights"][0])


def test_what_cannot_be_copied_is_shared() -> None:
    module = nn.Linear(4, 4)
    module.rotate = staticmethod(torch.flip)  # as rotary-embedding-torch keeps its function
    module.library = [math]
    other = copied(module)
    assert other.rotate is module.rotate
    assert other.library == [math]
    assert other.weight is not module.weight


# What is called. ------------------------------------------------------------------------------------------------------


class Callable_:
    def __call__(self, x):
        return attention(x, x, x)

    def attend(self, x):
        return attention(x, x, x)


def in_numpy(Q, K, V):
    scores = Q @ np.swapaxes(K, -1, -2)
    weights = np.exp(scores - scores.max(-1, keepdims=True))
    return weights / weights.sum(-1, keepdims=True) @ V


CALLABLES = {
    "an object": Callable_(),
    "a class with __call__": Callable_,
    "a bound method": Callable_().attend,
    "a partial": functools.partial(lambda scale, a, b, c: attention(a * scale, b, c), 0.5),
    "without names": lambda *tensors: attention(*tensors),
    "built in": torch.nn.functional.scaled_dot_product_attention,
    "with a module's width unknown": nn.Sequential(nn.Linear(9, 9)),
}


@pytest.mark.parametrize("name", CALLABLES)
def test_whatever_can_be_called_is_called(name: str) -> None:
    invocation = first(CALLABLES[name])
    assert invocation.outputs(invocation.run())


def compares_with_one(Q, K, V, mask):
    scores = np.where(mask == 1, Q @ K.T / np.sqrt(Q.shape[-1]), -1e9)
    weights = np.exp(scores - scores.max(-1, keepdims=True))
    return weights / weights.sum(-1, keepdims=True) @ V


def test_a_mask_that_numpy_would_compare_as_none_is_handed_over() -> None:
    assert first(compares_with_one).arguments["mask"] is not None


def test_numpy_is_handed_arrays_and_said() -> None:
    invocation = first(in_numpy)
    assert invocation.outputs(invocation.run())[0].shape == (2, 3, 5, 4)
    assert "numpy" in invocation.assumptions[-1]


# What a call leaves. --------------------------------------------------------------------------------------------------


class Remembers(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.calls = 0

    def forward(self, x: Tensor) -> Tensor:
        self.calls += 1
        return attention(x, x, x) + self.calls + x.add_(1).sum() * 0


def test_a_call_changes_neither_the_target_nor_its_inputs() -> None:
    invocation = first(Remembers())
    before = invocation.arguments["x"].clone()
    assert torch.equal(invocation.run(), invocation.run())
    assert torch.equal(invocation.arguments["x"], before)


def test_an_error_of_a_call_is_told() -> None:
    invocation = first(attention)
    with pytest.raises(Failed, match="TypeError"):
        invocation.run({"q": invocation.arguments["q"]})


@pytest.mark.usefixtures("as_a_user_runs_it")
def test_what_cannot_be_called_says_what_to_hand_over() -> None:
    with pytest.raises(NotCallable) as refused:
        first(lambda one, two: one.unheard_of(two))
    assert "unheard_of" in str(refused.value)
    assert '--args "one=(B,T,D), two=(B,S,D)"' in str(refused.value)


@pytest.mark.usefixtures("as_a_user_runs_it")
def test_an_argument_that_the_constructor_does_not_take_is_named() -> None:
    with pytest.raises(InputError, match="Packed takes no widht; it takes width, heads, bias"):
        first(Packed, widht=12)


def test_a_function_that_groups_heads_is_called_with_fewer_heads_of_keys() -> None:
    def grouped(q: Tensor, k: Tensor, v: Tensor) -> Tensor:
        k, v = (each.repeat_interleave(q.shape[1] // each.shape[1], 1) for each in (k, v))
        return (q @ k.mT / 2).softmax(-1) @ v

    heads = [(each.arguments["q"].shape[1], each.arguments["k"].shape[1]) for each in invocations(grouped, args={})]
    assert any(keys < queries for queries, keys in heads)


@pytest.mark.parametrize("name", ["enc_src", "encoder_src", "encoder_features", "memory_states", "memory_bank"])
def test_what_another_module_made_is_the_context(name: str) -> None:
    assert call_meaning(name) == "context"


@pytest.mark.parametrize("name", ["encoder_mask", "enc_lens", "encoder", "memory_size", "context_position"])
def test_what_tells_of_another_sequence_is_not_it(name: str) -> None:
    assert call_meaning(name) != "context"


@pytest.mark.parametrize(
    ("name", "is_rope"),
    [("image_rotary_emb", True), ("text_rotary_emb", True), ("use_rotary_emb", False), ("apply_rotary_pos_emb", False)],
)
def test_rotary_positions_may_be_of_an_image_and_are_no_flag(name: str, is_rope: bool) -> None:
    assert (call_meaning(name) == "rope") == is_rope


@pytest.mark.parametrize(
    ("name", "means"),
    [
        ("src_mask", "mask"),
        ("presence_k", "padding"),
        ("valid_keys", "padding"),
        ("presence_q", None),
        ("present_k", None),
        ("masks", "mask"),
        ("position_mask", None),
        ("conv_mask", None),
        ("loss_mask", "loss mask"),
        ("lossy_mask", "mask"),
    ],
)
def test_a_mask_of_positions_of_a_convolution_or_of_the_loss_hides_no_keys(name: str, means: str | None) -> None:
    assert call_meaning(name) == means


class ScaledDotProduct(nn.Module):
    """Its constructor is told the width of a head, by a name that says nothing, and it keeps the root."""

    def __init__(self, n):
        super().__init__()
        self.divisor = n**0.5

    def forward(self, q, k, v):
        return (q @ k.mT / self.divisor).softmax(-1) @ v


@pytest.mark.more
@pytest.mark.parametrize("args", [{"n": 8}, {"n": 10}])
def test_a_module_that_keeps_the_root_of_a_width_is_called_with_heads_of_that_width(args):
    for call in invocations(ScaledDotProduct, args=args):
        assert call.arguments["q"].shape[-1] == args["n"]
    assert regard.check(ScaledDotProduct, args=args).ok


class KeepsAnotherRoot(ScaledDotProduct):
    def forward(self, q, k, v):
        return (q @ k.mT / self.divisor / 2).softmax(-1) @ v


def test_a_scale_that_is_not_the_root_of_the_width_is_wrong_all_the_same():
    assert regard.check(KeepsAnotherRoot, args={"n": 8}).step == "scaled"


class Features(nn.Module):
    """Reads vectors, and calls them ids."""

    def __init__(self) -> None:
        super().__init__()
        self.head = nn.Linear(10, 4)

    def forward(self, idx: Tensor) -> Tensor:
        return self.head(idx).softmax(1)


def test_ids_without_a_table_are_vectors_of_the_width_that_is_read() -> None:
    call = next(invocations(Features(), args={}))
    assert call.arguments["idx"].shape[-1] == 10


class EitherWay(nn.Module):
    """Takes x, or queries, keys and values; it runs with x alone."""

    def __init__(self) -> None:
        super().__init__()
        self.qkv = nn.Linear(12, 36)

    def forward(
        self, x: Tensor | None = None, q: Tensor | None = None, k: Tensor | None = None, v: Tensor | None = None
    ) -> Tensor:
        q, k, v = self.qkv(x).chunk(3, -1)
        return (q @ k.mT).softmax(-1) @ v


def test_x_is_given_alone_where_queries_keys_and_values_may_be_left_out() -> None:
    call = next(invocations(EitherWay(), args={}))
    assert {each.argument for each in call.streams} == {"x"}


def with_samples_masked_in_place(q: Tensor, k: Tensor, v: Tensor) -> Tensor:
    scores = (q @ k.mT) * torch.ones(1, requires_grad=True)
    for sample in scores:
        sample[..., -1] = -torch.inf
    return scores.softmax(-1) @ v


def test_what_pytorch_refuses_with_gradients_is_called_without_and_said() -> None:
    call = next(invocations(with_samples_masked_in_place, args={}))
    assert not call.gradients
    assert call.assumptions == ["it is called without gradients: with them, PyTorch refuses what it writes in place"]


def without_a_transpose(q: Tensor, k: Tensor, v: Tensor) -> Tensor:
    return (q @ k).softmax(-1) @ v


def test_what_runs_with_no_other_sizes_has_as_many_tokens_as_channels() -> None:
    (call,) = invocations(without_a_transpose, args={})
    assert call.square
    assert call.arguments["q"].shape[-1] == call.arguments["q"].shape[-2]


def test_a_product_without_a_transpose_is_wrong_though_it_runs() -> None:
    (call,) = invocations(without_a_transpose, args={})
    assert {each.property for each in analyze(call).violations} == {"key-of-one-token"}


class ProjectedWithoutATranspose(nn.Module):
    def __init__(self, d_model: int, num_heads: int) -> None:
        super().__init__()
        self.heads = num_heads
        self.w_q, self.w_k, self.w_v = (nn.Linear(d_model, d_model) for _ in range(3))

    def forward(self, x: Tensor) -> Tensor:
        q, k, v = (each(x).unflatten(-1, (self.heads, -1)).transpose(1, 2) for each in (self.w_q, self.w_k, self.w_v))
        return (q @ k).softmax(-1) @ v


def test_heads_without_a_transpose_are_called_with_as_many_tokens_as_they_are_wide() -> None:
    (call,) = invocations(ProjectedWithoutATranspose, args={"d_model": 32, "num_heads": 4})
    assert call.square
    assert any("as many tokens as channels" in each for each in call.assumptions)
    assert {each.property for each in analyze(call).violations} == {"key-of-one-token"}


class OfFixedTokens(nn.Module):
    def __init__(self, d_model: int) -> None:
        super().__init__()
        self.along_tokens = nn.Linear(13, 13)
        self.project = nn.Linear(d_model, d_model)

    def forward(self, x: Tensor) -> Tensor:
        return self.project(self.along_tokens(x.mT).mT)


def test_parameters_of_a_fixed_number_of_tokens_are_no_product_without_a_transpose() -> None:
    call = next(invocations(OfFixedTokens, args={}))
    assert not call.square
    assert call.by_errors == "x=(B, 13, D,)"


def test_what_holds_only_with_as_many_tokens_as_channels_is_left_open() -> None:
    call = next(invocations(plain_attention, args={}))
    call.square = True
    found = analyze(call)
    assert not found.violations
    assert found.missing == ["it runs only with as many tokens as channels: what holds so may hold by accident"]


def plain_attention(q: Tensor, k: Tensor, v: Tensor) -> Tensor:
    return (q @ k.mT / q.shape[-1] ** 0.5).softmax(-1) @ v


class RotatedInPart(nn.Module):
    """The first four channels of each head are turned by the position of their token."""

    def __init__(self, hidden_size: int = 32, num_heads: int = 2, rotary_dim: int = 4) -> None:
        super().__init__()
        self.heads, self.turned = num_heads, rotary_dim
        self.qkv = nn.Linear(hidden_size, 3 * hidden_size)

    def forward(self, x: Tensor) -> Tensor:
        q, k, v = (each.unflatten(-1, (self.heads, -1)).transpose(1, 2) for each in self.qkv(x).chunk(3, -1))
        angles = torch.arange(x.shape[1])[:, None] * torch.tensor([1.0, 0.1], dtype=x.dtype)
        q, k = (self.rotated(each, angles.cos(), angles.sin()) for each in (q, k))
        return torch.nn.functional.scaled_dot_product_attention(q, k, v).transpose(1, 2).flatten(2)

    def rotated(self, x: Tensor, cos: Tensor, sin: Tensor) -> Tensor:
        turned, rest = x[..., : self.turned], x[..., self.turned :]
        one, two = turned.chunk(2, -1)
        return torch.cat((one * cos - two * sin, one * sin + two * cos, rest), -1)


def test_no_part_of_the_channels_is_empty_in_what_is_judged() -> None:
    call = first(RotatedInPart, rotary_dim=4)
    assert call.sizes["d_head"] == 4
    assert analyze(call).invocation.sizes["d_head"] > 4


def test_inputs_in_letters_are_made_for_each_size() -> None:
    calls = list(invocations(single, args={}, inputs=parse_inputs("X=(T,D)")))
    assert [tuple(each.arguments["X"].shape) for each in calls] == [(5, 12), (4, 16)]


def of_several_heads(x: Tensor, num_heads: int, causal: bool = False) -> Tensor:
    q = x.unflatten(-1, (num_heads, -1)).transpose(1, 2)
    return (q @ q.mT / q.shape[-1] ** 0.5).softmax(-1) @ q


def test_arguments_of_a_function_may_be_fixed() -> None:
    call = first(of_several_heads, num_heads=4)
    assert call.run().shape == (2, 4, 5, 4)
    with pytest.raises(
        InputError, match=r"of_several_heads is already constructed and takes no arguments: \['heads'\]"
    ):
        first(of_several_heads, heads=4)


class OfTenTokens(nn.Module):
    """A table of distances is made for as many tokens, and never cut."""

    def __init__(self):
        super().__init__()
        self.qkv = nn.Linear(16, 48)
        self.register_buffer("distances", -(torch.arange(10)[:, None] - torch.arange(10)).abs() / 9)

    def forward(self, x):
        q, k, v = self.qkv(x).chunk(3, -1)
        return (q @ k.mT / 4 + self.distances).softmax(-1) @ v


def test_a_table_of_a_fixed_number_of_tokens_tells_how_many_there_are():
    call = first(OfTenTokens)
    assert call.arguments["x"].shape[1:] == (10, 16)
    assert any(each.startswith("10 tokens: ") for each in call.assumptions)


def of_heads(q: Tensor, k: Tensor, v: Tensor) -> Tensor:
    n_heads, length, width = q.shape
    slopes = 2.0 ** (-8 * torch.arange(1, n_heads + 1) / n_heads)
    distance = torch.arange(length)[:, None] - torch.arange(length)
    scores = q @ k.mT / width**0.5 - slopes[:, None, None] * distance.abs()
    return scores.softmax(-1) @ v


def test_axes_that_a_line_calls_heads_are_heads() -> None:
    call = first(of_heads)
    assert axes(call) == [(role, None, (1,), 0) for role in "qkv"]
    assert analyze(call).violations == []
