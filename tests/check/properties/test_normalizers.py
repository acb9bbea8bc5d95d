"""What linear attention of projected tokens is divided by: the sum of a query's weights, in all ways to write it."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
import torch
import torch.nn.functional as F
from torch import Tensor

from property_cases import drawn, joined, of_x, split
from property_cases.position_cases import rotated
from regard.check.properties.analyze import analyze

pytestmark = pytest.mark.more  # seconds a test: it is run by make test-more

Heads = Callable[[Tensor, Tensor, Tensor], Tensor]


def attention(
    heads: Heads, features: Callable[[Tensor], Tensor] = lambda x: F.elu(x) + 1
) -> Callable[[Tensor], Tensor]:
    def forward(x: Tensor) -> Tensor:
        q, k, v = (split(each) for each in (x @ drawn(8, 24, seed=3) / 8**0.5).chunk(3, -1))
        return joined(heads(features(q), features(k), v)) @ drawn(8, 8, seed=4)

    return forward


def summed(q: Tensor, k: Tensor, v: Tensor) -> Tensor:
    return q @ (k.mT @ v) / (torch.einsum("bhtd,bhd->bht", q, k.sum(2))[..., None] + 1e-6)


def inverted(q: Tensor, k: Tensor, v: Tensor) -> Tensor:
    z = 1 / (torch.einsum("bhtd,bhd->bht", q, k.sum(2)) + 1e-6)
    return torch.einsum("bhtd,bhdm,bht->bhtm", q, torch.einsum("bhsd,bhsm->bhdm", k, v), z)


def of_the_mean(q: Tensor, k: Tensor, v: Tensor) -> Tensor:
    """Each factor takes its share of the number of tokens."""
    share = k.shape[2] ** -0.5
    z = 1 / (q @ k.mean(2, keepdim=True).mT + 1e-6)
    return q @ ((k.mT * share) @ (v * share)) * z


def times_the_root(q: Tensor, k: Tensor, v: Tensor) -> Tensor:
    """Scaled besides: the same number for all."""
    return (q * 0.5) @ (k.mT @ v) / (q * k.sum(2, keepdim=True)).sum(-1, keepdim=True)


def at_least_one(q: Tensor, k: Tensor, v: Tensor) -> Tensor:
    """Of retention: what a query is divided by is at least 1."""
    return q @ (k.mT @ v) / (q @ k.sum(2)[..., None]).abs().clamp(min=1)


def of_small_features(q: Tensor, k: Tensor, v: Tensor) -> Tensor:
    """What keeps the sums from zero is larger than they are."""
    q, k = q * 1e-7, k * 1e-7
    return q @ (k.mT @ v) / ((q * k.sum(2, keepdim=True)).sum(-1, keepdim=True).repeat(1, 1, 1, v.shape[-1]) + 1e-8)


def by_the_number_of_tokens(q: Tensor, k: Tensor, v: Tensor) -> Tensor:
    return q @ (k.mT @ v) / k.shape[2]


def gated(q: Tensor, k: Tensor, v: Tensor) -> Tensor:
    return q @ (k.mT @ v) * (q @ q.mean(2, keepdim=True).mT).sigmoid()


def gated_by_its_own_key(q: Tensor, k: Tensor, v: Tensor) -> Tensor:
    """Divided by the sum, and times a number of the token itself."""
    return summed(q, k, v) * (q * k).sum(-1, keepdim=True).sigmoid()


def gated_by_hand(q: Tensor, k: Tensor, v: Tensor) -> Tensor:
    return summed(q, k, v) / (1 + (-(q.sum(-1, keepdim=True) * k.sum(-1, keepdim=True))).exp())


def over_the_length_of_the_query(q: Tensor, k: Tensor, v: Tensor) -> Tensor:
    """Divided by the sum of its weights for the unit vector of the query."""
    unit = q / q.norm(dim=-1, keepdim=True)
    return q @ (k.mT @ v) / q.norm(dim=-1, keepdim=True) / (unit @ k.sum(2)[..., None])


def gated_by_a_part(q: Tensor, k: Tensor, v: Tensor) -> Tensor:
    """Divided, and by a number; not by the product."""
    return q @ (k.mT @ v) * ((q @ q.mean(2, keepdim=True).mT) / 8)


def rotated_above_alone(q: Tensor, k: Tensor, v: Tensor) -> Tensor:
    """RoFormer, section 3.3: what is divided by has queries and keys without positions, and stays positive."""
    angles = torch.arange(5.0).double()[:, None] * torch.tensor([1.0, 0.1]).double().repeat(2)
    turned = rotated(q, angles) @ (rotated(k, angles).mT @ v)
    return turned / (q @ k.sum(2)[..., None])


RIGHT: list[Any] = [
    attention(each)
    for each in (
        summed,
        inverted,
        of_the_mean,
        times_the_root,
        of_small_features,
        at_least_one,
        by_the_number_of_tokens,
        gated,
        gated_by_a_part,
        gated_by_its_own_key,
        gated_by_hand,
        over_the_length_of_the_query,
        rotated_above_alone,
    )
]
RIGHT += [attention(summed, torch.relu), attention(summed, torch.exp), attention(at_least_one, lambda x: x)]


@pytest.mark.parametrize("function", RIGHT)
def test_what_is_divided_by_the_sum_of_its_weights_is_a_design(function: Any) -> None:
    analysis = analyze(of_x(function, tokens=5))
    assert [each.property for each in analysis.findings if each.kind in ("violation", "design")] == ["linear-attention"]


def by_all_keys_of_a_head(q: Tensor, k: Tensor, v: Tensor) -> Tensor:
    return q @ (k.mT @ v) / (q * k.sum(-1, keepdim=True)).sum(-1, keepdim=True)  # here


def by_the_keys_of_the_other_head(q: Tensor, k: Tensor, v: Tensor) -> Tensor:
    z = 1 / (q @ k.sum(2).roll(1, 1)[..., None])
    return q @ (k.mT @ v) * z  # here


def by_the_mean_of_small_features(q: Tensor, k: Tensor, v: Tensor) -> Tensor:
    q, k = q * 1e-7, k * 1e-7
    z = torch.einsum("bhtd,bhd->bht", q, k.mean(2))[..., None]
    return q @ (k.mT @ v) / (z.repeat(1, 1, 1, v.shape[-1]) + 1e-8)  # here


def by_the_inverse_mean_of_small_features(q: Tensor, k: Tensor, v: Tensor) -> Tensor:
    q, k = q * 1e-6, k * 1e-6
    z = (1e-9 + torch.einsum("bhtd,bhd->bht", q, k.mean(2))).reciprocal()
    return (q @ (k.mT @ v)) * z.unsqueeze(-1)  # here


def by_the_first_key_of_small_features(q: Tensor, k: Tensor, v: Tensor) -> Tensor:
    q, k = q * 1e-7, k * 1e-7
    return q @ (k.mT @ v) / ((q * k[:, :, :1]).sum(-1, keepdim=True) + 1e-8)  # here


def by_the_channels_of_its_own_key(q: Tensor, k: Tensor, v: Tensor) -> Tensor:
    z = 1 / (torch.einsum("bhtd,bht->bht", q, k.sum(-1)) + 1e-6)
    return torch.einsum("bhtd,bhdm,bht->bhtm", q, torch.einsum("bhsd,bhsm->bhdm", k, v), z)  # here


def over_its_own_key(q: Tensor, k: Tensor, v: Tensor) -> Tensor:
    return q @ (k.mT @ v) / (q.sum(-1, keepdim=True) * k.sum(-1, keepdim=True) + 1e-6)  # here


@pytest.mark.parametrize(
    "heads",
    [
        by_all_keys_of_a_head,
        by_the_channels_of_its_own_key,
        over_its_own_key,
        by_the_keys_of_the_other_head,
        by_the_mean_of_small_features,
        by_the_inverse_mean_of_small_features,
        by_the_first_key_of_small_features,
    ],
)
def test_what_is_divided_by_another_sum_is_named_with_its_line(heads: Heads) -> None:
    (found,) = analyze(of_x(attention(heads), tokens=5)).violations
    assert found.property == "weights-sum-to-one"
    assert found.location is not None
    assert found.location.text.endswith("# here")


def masked(*parts: str) -> Callable[..., Tensor]:
    """Linear attention whose mask sets some of keys and values to 0."""

    def forward(x: Tensor, mask: Tensor | None = None) -> Tensor:
        q, k, v = (split(each) for each in (x @ drawn(8, 24, seed=3) / 8**0.5).chunk(3, -1))
        q, k = F.elu(q) + 1, F.elu(k) + 1
        if mask is not None:
            k, v = (each * mask[:, None, :, None] if name in parts else each for name, each in (("k", k), ("v", v)))
        return joined(q @ (k.mT @ v) / (q @ k.sum(2)[..., None] + 1e-6)) @ drawn(8, 8, seed=4)

    return forward


@pytest.mark.parametrize("parts", ["k", "kv"])
def test_a_mask_that_sets_keys_to_0_hides_them(parts: str) -> None:
    analysis = analyze(of_x(masked(*parts), tokens=5, masks=("mask",)), masks=True)
    assert analysis.violations == []


def masked_before_the_features(*, of_x_as_well: bool) -> Callable[..., Tensor]:
    """Keys that are set to 0 where the mask hides them; the features of the kernel make 1 of these."""

    def forward(x: Tensor, mask: Tensor | None = None) -> Tensor:
        q, k, v = (split(each) for each in (x @ drawn(8, 24, seed=3) / 8**0.5).chunk(3, -1))
        if mask is not None:
            k = k * mask[:, None, :, None]
        q, k = F.elu(q) + 1, F.elu(k) + 1
        if mask is not None and of_x_as_well:
            k = k * mask[:, None, :, None]
        return joined(q @ (k.mT @ v) / (q @ k.sum(2)[..., None] + 1e-6)) @ drawn(8, 8, seed=4)

    return forward


def test_keys_that_a_mask_sets_to_0_before_their_features_are_not_hidden() -> None:
    wrong, right = (
        analyze(of_x(masked_before_the_features(of_x_as_well=each), tokens=5, masks=("mask",)), masks=True)
        for each in (False, True)
    )
    assert [each.property for each in wrong.violations] == ["mask-argument"]
    assert right.violations == []
    assert "tokens that mask hides reach no others" in {each.message for each in right.findings}


def test_a_mask_of_what_is_returned_is_none_of_keys() -> None:
    def forward(x: Tensor, mask: Tensor | None = None) -> Tensor:
        found = masked()(x)
        return found if mask is None else found * mask[..., None]

    analysis = analyze(of_x(forward, tokens=5, masks=("mask",)), masks=True)
    assert analysis.violations == []


def test_a_mask_that_sets_values_alone_to_0_leaves_their_keys_in_the_sum() -> None:
    (found,) = analyze(of_x(masked("v"), tokens=5, masks=("mask",)), masks=True).violations
    assert found.property == "weights-sum-to-one"
    assert found.message.endswith("keys that the mask hides still count")


def among_channels(joined_back: Callable[[Tensor], Tensor]) -> Callable[[Tensor], Tensor]:
    """The channels of a head attend to one another (XCiT, El-Nouby et al. 2021)."""

    def forward(x: Tensor) -> Tensor:
        q, k, v = (split(each).mT for each in (x @ drawn(8, 24, seed=3) / 8**0.5).chunk(3, -1))
        read = (q @ k.mT / 5**0.5).softmax(-1) @ v  # (batch, heads, channels, tokens)
        return joined_back(read) @ drawn(8, 8, seed=4)  # here

    return forward


def by_channel(read: Tensor) -> Tensor:
    return read.permute(0, 3, 1, 2).flatten(2)


def as_it_lies(read: Tensor) -> Tensor:
    return read.reshape(read.shape[0], read.shape[3], -1)


def mixed_over_the_tokens(read: Tensor) -> Tensor:
    return (read @ drawn(5, 5, seed=5)).permute(0, 3, 1, 2).flatten(2)


def test_a_row_of_joined_heads_is_of_one_token() -> None:
    for each in (by_channel, mixed_over_the_tokens):
        assert analyze(of_x(among_channels(each), tokens=5)).violations == []
    (found,) = analyze(of_x(among_channels(as_it_lies), tokens=5)).violations
    assert found.property == "output-of-the-token"
    assert found.location is not None
    assert found.location.text.endswith("# here")


# Random features. -----------------------------------------------------------------------------------------------------


def random_features(x: Tensor, axes: tuple[int, ...], *, at_once: bool = False) -> Tensor:
    """Exponentials of projections less half the squared norm, and less the largest over some axes."""
    projected = x @ drawn(4, 32, seed=5)
    half, largest = x.square().sum(-1, keepdim=True) / 2, projected.amax(axes, keepdim=True)
    return (projected - (half + largest) if at_once else projected - half - largest).exp() + 1e-6


def less_the_largest_of_all_keys(x: Tensor) -> Tensor:
    """FAVOR+: what is subtracted from keys is the same for all of them."""
    return attention_with_features(x, (-1, -2))


def less_the_largest_of_each_key(x: Tensor) -> Tensor:
    """FAVOR+."""
    return attention_with_features(x, (-1,))


def less_the_largest_of_each_key_at_once(x: Tensor) -> Tensor:
    """FAVOR+."""
    return attention_with_features(x, (-1,), at_once=True)


def attention_with_features(x: Tensor, axes: tuple[int, ...], *, at_once: bool = False) -> Tensor:
    q, k, v = (split(each) for each in (x @ drawn(8, 24, seed=3) / 8**0.5).chunk(3, -1))
    q, k = random_features(q / 2**0.5, (-1,)), random_features(k / 2**0.5, axes, at_once=at_once)
    return joined(summed(q, k, v)) @ drawn(8, 8, seed=4)


@pytest.mark.parametrize("wrong", [less_the_largest_of_each_key, less_the_largest_of_each_key_at_once])
def test_what_is_subtracted_from_the_features_of_keys_is_the_same_for_all(wrong: Callable[..., Tensor]) -> None:
    assert [each.property for each in analyze(of_x(wrong, tokens=5)).violations] == ["softmax-maximum"]
    assert analyze(of_x(less_the_largest_of_all_keys, tokens=5)).violations == []
