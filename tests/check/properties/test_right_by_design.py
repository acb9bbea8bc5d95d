"""Unusual attentions that are right: what they do otherwise is a design, and no violation."""

from __future__ import annotations

import inspect
from collections.abc import Callable

import pytest
import torch
from torch import Tensor, nn

from property_cases import WIDTH, drawn, joined, of_module, of_x, split
from property_cases.decoder_cases import ForgetsTheFirst, LayerThatReadsTwice, ReturnsBoth, of_layer_and_memory
from property_cases.expert_cases import Experts
from regard.check import check
from regard.check.properties.analyze import analyze
from regard.check.target import Invocation, Stream, invocations

pytestmark = pytest.mark.more  # seconds a test: it is run by make test-more

W_Q, W_K, W_V = (drawn(WIDTH, WIDTH, seed=seed) / 3 for seed in (80, 81, 82))


def names(call: Invocation) -> set[tuple[str, str]]:
    analysis = analyze(call, masks=True)
    assert not analysis.missing
    return {(each.kind, each.property) for each in analysis.findings if each.kind in ("violation", "design")}


SLOTS = drawn(4, WIDTH, seed=83)


def slots(x: Tensor) -> Tensor:
    """As many slots as tokens: each token goes to one of them, and what a slot gets is divided by its sum."""
    scores = SLOTS @ W_Q @ (x @ W_K).mT / WIDTH**0.5
    weights = scores.softmax(1) + 1e-8
    return weights / weights.sum(-1, keepdim=True) @ (x @ W_V) @ W_Q


def test_slots_compete_for_tokens() -> None:
    assert names(of_x(slots)) == {("design", "slot-attention")}


def mask_as_a_flag(x: Tensor, mask: Tensor | None = None) -> Tensor:
    """Whisper: what a mask holds is not read where the kernel is told that it is causal."""
    q, k, v = (split(x @ each) for each in (W_Q, W_K, W_V))
    return joined(nn.functional.scaled_dot_product_attention(q, k, v, is_causal=mask is not None))


def test_a_mask_that_only_says_that_all_is_causal_is_a_flag() -> None:
    assert names(of_x(mask_as_a_flag, masks=("mask",))) == {("design", "mask-flag")}


def masked_in_parts(x: Tensor, mask: Tensor | None = None) -> Tensor:
    """The mask has an axis of samples and one of keys, and each row of it is for as many heads as there may be."""
    q, k, v = (split(x @ each).flatten(0, 1) for each in (W_Q, W_K, W_V))
    scores = q @ k.mT / 2
    if mask is not None:
        scores = scores.masked_fill(~mask.repeat_interleave(len(q) // len(mask), 0)[:, None], -torch.inf)
    return joined((scores.softmax(-1) @ v).view(len(x), -1, *v.shape[1:]))


def test_a_mask_of_samples_and_keys_may_run_as_one_of_queries_and_keys_and_mean_nothing() -> None:
    assert names(of_x(masked_in_parts, masks=("mask",))) == set()


class CrissCross(nn.Module):
    """A place attends to its row and its column at once, to itself in its row alone (Huang et al. 2019)."""

    def __init__(self) -> None:
        super().__init__()
        self.q, self.k, self.v = (nn.Conv2d(6, 6, 1) for _ in range(3))
        self.gamma = nn.Parameter(torch.ones(1))

    def forward(self, image: Tensor) -> Tensor:
        q, k, v = (each(image).permute(0, 2, 3, 1) for each in (self.q, self.k, self.v))
        rows = q.shape[1]
        hidden = torch.eye(rows, dtype=torch.bool)
        up = (q.transpose(1, 2) @ k.transpose(1, 2).mT).masked_fill(hidden, -torch.inf).transpose(1, 2)
        along = q @ k.mT
        weights = torch.cat([up, along], -1).softmax(-1)
        read = (weights[..., :rows].transpose(1, 2) @ v.transpose(1, 2)).transpose(1, 2)
        return (self.gamma * (read + weights[..., rows:] @ v)).permute(0, 3, 1, 2) + image


def test_rows_and_columns_share_a_softmax() -> None:
    call = of_module(CrissCross)
    call.arguments, call.streams = {"x": drawn(2, 6, 4, 5, seed=84)}, [Stream("x", "x", 0, (2, 3))]
    assert {kind for kind, _ in names(call)} == {"design"}


class WithAMemory(nn.Module):
    """One letter for a memory, which is x itself where there is none."""

    def __init__(self, dim: int) -> None:
        super().__init__()
        self.q, self.kv = nn.Linear(dim, dim), nn.Linear(dim, 2 * dim)

    def forward(self, x: Tensor, m: Tensor | None = None) -> Tensor:
        m = m if m is not None else x
        k, v = self.kv(m).chunk(2, -1)
        return (self.q(x) @ k.mT / x.shape[-1] ** 0.5).softmax(-1) @ v


def test_what_is_x_where_it_is_not_given_is_no_mask() -> None:
    for call in invocations(WithAMemory, args={}):
        assert call.masks == []
        assert analyze(call, masks=True).violations == []


class StateAsksASource(nn.Module):
    """Nothing tells what two of its arguments are; a third one is a mask."""

    def __init__(self, dim: int) -> None:
        super().__init__()
        self.q = nn.Linear(dim, dim)

    def forward(self, of_src: Tensor, of_t: Tensor, mask: Tensor | None = None) -> Tensor:
        scores = torch.bmm(of_src, self.q(of_t.squeeze(1)).unsqueeze(-1)).squeeze(-1) / of_src.shape[-1] ** 0.5
        if mask is not None:
            scores = scores.masked_fill(mask, -torch.inf)
        return torch.bmm(scores.softmax(-1).unsqueeze(1), of_src)


def test_where_an_argument_is_named_a_mask_none_without_a_meaning_is_one() -> None:
    assert next(invocations(StateAsksASource, args={})).masks == ["mask"]
    for inputs in (None, "of_src=(B,T,D), of_t=(B,1,D)"):
        assert check(StateAsksASource, inputs=inputs).verdict != "wrong"


GATES = torch.tensor([0.3, -0.6], dtype=torch.float64).sigmoid()[:, None, None]
OF_PLACES = drawn(2, 4, 4, seed=88)


def gated(x: Tensor, of_places: Tensor) -> Tensor:
    """ConViT: each head has a gate between what the tokens say and what the places say."""
    q, k, v = (split(x @ each) for each in (W_Q, W_K, W_V))
    weights = (1 - GATES) * (q @ k.mT / 2).softmax(-1) + GATES * of_places
    return joined(weights / weights.sum(-1, keepdim=True) @ v)


def test_a_gate_may_stand_between_a_softmax_of_tokens_and_one_of_places() -> None:
    assert names(of_x(lambda x: gated(x, OF_PLACES.softmax(-1)))) == {("design", "gated-positions")}


@pytest.mark.parametrize("of_places", [OF_PLACES.exp(), OF_PLACES.softmax(0), OF_PLACES.softmax(1)])
def test_a_bias_that_is_added_after_the_softmax_is_none_of_places(of_places: Tensor) -> None:
    assert {kind for kind, _ in names(of_x(lambda x: gated(x, of_places)))} == {"violation"}


def test_places_that_a_mask_hides_have_no_share_of_a_softmax_of_places_either() -> None:
    later = torch.ones(4, 4).triu(1) > 0

    def causal(x: Tensor, of_places: Tensor) -> Tensor:
        q, k, v = (split(x @ each) for each in (W_Q, W_K, W_V))
        scores = (q @ k.mT / 2).masked_fill(later, -torch.inf)
        return joined(((1 - GATES) * scores.softmax(-1) + GATES * of_places.softmax(-1)) @ v)

    hidden = OF_PLACES.masked_fill(later, -torch.inf)
    assert names(of_x(lambda x: causal(x, hidden))) == {("design", "gated-positions")}
    assert ("violation", "weights-kept") in names(of_x(lambda x: causal(x, OF_PLACES)))


class Backwards(torch.autograd.Function):
    """What an old version of PyTorch took, and today's refuses."""

    @staticmethod
    def forward(ctx: object, scores: Tensor) -> Tensor:
        return scores.softmax(-1)

    @staticmethod
    def backward(ctx: object, gradient: Tensor) -> Tensor:
        return torch.softmax(gradient)


class OfItsOwnSoftmax(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.qkv = nn.Linear(WIDTH, 3 * WIDTH)

    def forward(self, x: Tensor) -> Tensor:
        q, k, v = map(split, self.qkv(x).chunk(3, -1))
        return joined(Backwards.apply(q @ k.mT / q.shape[-1] ** 0.5) @ v)


class LessTheLargest(OfItsOwnSoftmax):
    """Its text speaks of what has no gradient, so that slopes are compared with gradients."""

    def forward(self, x: Tensor) -> Tensor:
        q, k, v = map(split, self.qkv(x).chunk(3, -1))
        scores = q @ k.mT / q.shape[-1] ** 0.5
        return joined(Backwards.apply(scores - scores.amax(-1, keepdim=True).detach()) @ v)


@pytest.mark.parametrize("kind", [OfItsOwnSoftmax, LessTheLargest])
def test_a_backward_pass_that_raises_leaves_the_gradients_open(kind: type[nn.Module]) -> None:
    found = analyze(of_module(kind))
    assert not found.violations
    (message,) = (each.message for each in found.findings if each.property == "gradient")
    assert message.startswith("its backward pass raises TypeError")


class DisentangledAttention(OfItsOwnSoftmax):
    """DeBERTa's scale, of scores that are sums of two products."""

    def forward(self, x: Tensor) -> Tensor:
        q, k, v = map(split, self.qkv(x).chunk(3, -1))
        return joined((q @ k.mT / (2 * q.shape[-1]) ** 0.5).softmax(-1) @ v)


def test_a_scale_of_sums_is_told_by_the_name_of_a_class() -> None:
    assert names(of_module(DisentangledAttention)) == {("design", "scale-of-sums")}
    kind = type("PlainAttention", (OfItsOwnSoftmax,), {"forward": DisentangledAttention.forward})
    assert names(of_module(kind)) == {("violation", "scale")}


class DifferentialByHead(nn.Module):
    """Ye et al. 2025: what is subtracted is times a number of each head, a product of learned vectors."""

    def __init__(self) -> None:
        super().__init__()
        self.qk, self.v = nn.Linear(WIDTH, 4 * WIDTH), nn.Linear(WIDTH, WIDTH)
        self.of_q, self.of_k = (nn.Parameter(torch.randn(2, 4)) for _ in range(2))

    def forward(self, x: Tensor) -> Tensor:
        one, two, three, four = map(split, self.qk(x).chunk(4, -1))
        share = (self.of_q * self.of_k).sum(-1).exp()[None, :, None, None]
        first, second = (q @ k.mT / 2 for q, k in ((one, two), (three, four)))
        return joined((first.softmax(-1) - share * second.softmax(-1)) @ split(self.v(x)))


def test_a_number_of_each_head_stands_before_the_weights_that_are_subtracted() -> None:
    assert names(of_module(DifferentialByHead)) == {("design", "differential")}


class NormalizedAfterRotation(nn.Module):
    """TimesFM: rotary positions, then a norm with a gain for each channel."""

    def __init__(self) -> None:
        super().__init__()
        self.qkv, self.of_q, self.of_k = nn.Linear(WIDTH, 3 * WIDTH), nn.RMSNorm(4), nn.RMSNorm(4)

    def forward(self, x: Tensor) -> Tensor:
        q, k, v = map(split, self.qkv(x).chunk(3, -1))
        q, k = self.of_q(self.turned(q)), self.of_k(self.turned(k))
        return joined((q @ k.mT / q.shape[-1] ** 0.5).softmax(-1) @ v)

    def turned(self, x: Tensor) -> Tensor:
        angles = torch.outer(torch.arange(float(x.shape[-2])).to(x), torch.tensor([1.0, 0.3]).to(x))
        one, two = x.chunk(2, -1)
        return torch.cat((one * angles.cos() - two * angles.sin(), two * angles.cos() + one * angles.sin()), -1)


def test_a_norm_after_rotary_positions_is_a_design() -> None:
    assert ("design", "normalized-positions") in names(of_module(NormalizedAfterRotation))
    assert "violation" not in {kind for kind, _ in names(of_module(NormalizedAfterRotation))}


class WithASwitch(nn.Module):
    """A constructor's argument says whether its mask is read at all."""

    def __init__(self, mask_flag: bool = True, causal: bool = False) -> None:
        super().__init__()
        self.mask_flag, self.causal = mask_flag, causal

    def forward(self, queries: Tensor, keys: Tensor, values: Tensor, attn_mask: Tensor | None = None) -> Tensor:
        scores = torch.einsum("blhe,bshe->bhls", queries, keys) / queries.shape[-1] ** 0.5
        if self.mask_flag:
            if attn_mask is None:
                attn_mask = torch.ones(scores.shape[-2:], dtype=torch.bool).triu(1)
            scores = scores.masked_fill(attn_mask, -torch.inf)
        return torch.einsum("bhls,bshd->blhd", scores.softmax(-1), values)


class DroppedUnlessCausal(WithASwitch):
    """What hides padding is read where it is causal alone."""

    def forward(self, queries: Tensor, keys: Tensor, values: Tensor, attn_mask: Tensor | None = None) -> Tensor:
        scores = torch.einsum("blhe,bshe->bhls", queries, keys) / queries.shape[-1] ** 0.5
        if self.causal and attn_mask is not None:
            scores = scores.masked_fill(attn_mask | torch.ones(scores.shape[-2:]).triu(1).bool(), -torch.inf)
        return torch.einsum("bhls,bshd->blhd", scores.softmax(-1), values)


class SwitchedInside(WithASwitch):
    """A switch of its own, which no argument sets."""

    def __init__(self) -> None:
        super().__init__(mask_flag=False)


class AroundASwitch(nn.Module):
    """The part that takes the mask has the switch."""

    def __init__(self, inner: nn.Module, width: int = 8, heads: int = 2) -> None:
        super().__init__()
        self.inner, self.heads = inner, heads
        self.projections = nn.ModuleList(nn.Linear(width, width) for _ in range(4))

    def forward(self, queries: Tensor, keys: Tensor, values: Tensor, attn_mask: Tensor | None = None) -> Tensor:
        parts = zip(self.projections, (queries, keys, values), strict=False)
        q, k, v = (made(each).unflatten(-1, (self.heads, -1)) for made, each in parts)
        return self.projections[3](self.inner(q, k, v, attn_mask).flatten(2))


def switched_off_inside() -> nn.Module:
    return AroundASwitch(WithASwitch(mask_flag=False))


def lost_on_the_way() -> nn.Module:
    return AroundASwitch(DroppedUnlessCausal())


@pytest.mark.parametrize(
    ("made", "args", "is_wrong"),
    [
        (WithASwitch, {"mask_flag": False}, False),
        (DroppedUnlessCausal, {}, True),
        (SwitchedInside, {}, True),
        (switched_off_inside, {}, False),
        (lost_on_the_way, {}, True),
    ],
)
def test_a_mask_that_a_constructor_s_argument_switches_off_is_not_dropped(
    made: type, args: dict, is_wrong: bool
) -> None:
    assert (check(made, args=args).verdict == "wrong") == is_wrong


class NormedWeights(nn.Module):
    """ResT: what the softmax returns goes through a norm of each head."""

    axis = -1

    def __init__(self) -> None:
        super().__init__()
        self.q, self.k, self.v = (nn.Linear(WIDTH, WIDTH) for _ in range(3))
        self.norm = nn.InstanceNorm2d(2)

    def forward(self, x: Tensor) -> Tensor:
        q, k, v = (split(each(x)) for each in (self.q, self.k, self.v))
        return joined(self.norm((q @ k.mT / 2).softmax(self.axis)) @ v)


class NormedOverQueries(NormedWeights):
    axis = -2


def test_weights_may_go_through_a_norm() -> None:
    assert names(of_module(NormedWeights)) == {("design", "weights-normed")}
    assert ("violation", "softmax-over-keys") in names(of_module(NormedOverQueries))


class BothAxes(nn.Module):
    """The sum of attention along rows and attention along columns, by one function."""

    def __init__(self) -> None:
        super().__init__()
        self.qkv = nn.ModuleList([nn.Linear(WIDTH, 3 * WIDTH) for _ in range(2)])

    def forward(self, x: Tensor) -> Tensor:
        rows = self.along(x.flatten(0, 1), 0).view(x.shape)
        columns = self.along(x.transpose(1, 2).flatten(0, 1), 1)
        return rows + self.turned(columns, x)

    def along(self, x: Tensor, axis: int) -> Tensor:
        q, k, v = map(split, self.qkv[axis](x).chunk(3, -1))
        return joined((q @ k.mT / 2).softmax(-1) @ v)

    def turned(self, columns: Tensor, x: Tensor) -> Tensor:
        samples, height, width, _ = x.shape
        return columns.view(samples, width, height, WIDTH).transpose(1, 2)


class ColumnsLeftTurned(BothAxes):
    def turned(self, columns: Tensor, x: Tensor) -> Tensor:
        return columns.view(x.shape)


class BothAxesInLoops(BothAxes):
    def forward(self, x: Tensor) -> Tensor:
        rows = torch.stack([self.along(each, 0) for each in x.unbind(1)], 1)
        return rows + torch.stack([self.along(each, 1) for each in x.unbind(2)], 2)


@pytest.mark.parametrize(
    ("kind", "wanted"),
    [
        (BothAxes, set()),
        (BothAxesInLoops, set()),
        (ColumnsLeftTurned, {("violation", "output-of-the-token")}),
    ],
)
def test_rows_and_columns_of_one_line_are_two_attentions(kind: type[BothAxes], wanted: set[tuple[str, str]]) -> None:
    call = of_module(kind)
    call.arguments["x"], call.streams = drawn(2, 3, 4, WIDTH, seed=0), [Stream("x", "x", 0, (1, 2))]
    assert analyze(call, masks=True).num_attentions == 2
    assert names(call) == wanted | {("design", "mask-pattern")}


def test_a_second_attention_of_the_same_class_may_have_no_positions() -> None:
    assert not {each for each in names(of_layer_and_memory(LayerThatReadsTwice)) if each[0] == "violation"}


def test_a_stream_beside_another_keeps_what_it_read() -> None:
    wrong = ("violation", "residual-of-the-sum")
    assert wrong in names(of_layer_and_memory(ForgetsTheFirst))
    assert wrong not in names(of_layer_and_memory(ReturnsBoth))


def asked_by_the_last(x: Tensor, past: Tensor, future: Tensor) -> Tensor:
    """As of GMAN: what is read stands first, and what asks last (arXiv:1911.08415, section 3.4)."""
    return joined((split(future @ W_Q) @ split(past @ W_K).mT / 2).softmax(-1) @ split(x @ W_V))


def asked_by_the_values(query: Tensor, key: Tensor, value: Tensor) -> Tensor:
    return asked_by_the_last(query, key, value)


@pytest.mark.parametrize(("function", "is_right"), [(asked_by_the_last, True), (asked_by_the_values, False)])
def test_the_order_of_three_sequences_does_not_say_which_asks(
    function: Callable[[Tensor, Tensor, Tensor], Tensor], is_right: bool
) -> None:
    arguments = inspect.signature(function).parameters
    given = {name: drawn(2, 5, WIDTH, seed=seed) for seed, name in enumerate(arguments)}
    streams = [Stream(name, role, 0, (1,)) for name, role in zip(arguments, "qkv", strict=True)]
    found = {each.property for each in analyze(Invocation(function, given, [*arguments], streams)).violations}
    assert found == (set() if is_right else {"queries-from-their-input", "values-from-their-input"})


class ManyExperts(Experts):
    count = 16


class TwoLayersOfExperts(nn.Module):
    """The second attention reads what experts returned, and other tokens go to others."""

    def __init__(self) -> None:
        super().__init__()
        self.layers = nn.ModuleList([ManyExperts(), ManyExperts()])

    def forward(self, x: Tensor) -> Tensor:
        for layer in self.layers:
            x = layer(x)
        return x


def test_tokens_may_go_to_experts_between_attentions() -> None:
    assert names(of_module(TwoLayersOfExperts)) == set()
