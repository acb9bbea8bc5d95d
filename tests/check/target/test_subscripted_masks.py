"""Masks whose elements a call takes: they have to be given, with as many axes; and tables of a part of each head."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from target_calls import Packed, first
from torch import Tensor, nn

from property_cases import joined, split
from regard.check import check
from regard.check.target.documented_shapes import documented_role
from regard.check.target.written_masks import axes_added, axes_subscripted, is_read_unasked, zeroes_tokens


class Choosing(nn.Module):
    """The keys that an indexer likes best are read, of those that the mask lets through."""

    def __init__(self, dim: int, heads: int, best: int = 4) -> None:
        super().__init__()
        self.heads, self.best, self.qkv, self.like = heads, best, nn.Linear(dim, 3 * dim), nn.Linear(dim, dim)

    def forward(self, x: Tensor, attention_mask: Tensor) -> Tensor:
        q, k, v = (split(each, self.heads) for each in self.qkv(x).chunk(3, -1))
        liked = self.like(x) @ x.mT + attention_mask[:, 0, :, :]
        chosen = liked.topk(min(self.best, liked.shape[-1]), -1).indices
        hidden = torch.ones_like(liked, dtype=torch.bool).scatter(-1, chosen, False)[:, None]
        scores = q @ k.mT / q.shape[-1] ** 0.5 + attention_mask.masked_fill(hidden, -torch.inf)
        return joined(scores.softmax(-1) @ v)


def of_the_last_query(x: Tensor, mask: Tensor) -> Tensor:
    scores = (x @ x.mT / x.shape[-1] ** 0.5).masked_fill(~mask, -torch.inf)
    return scores.softmax(-1) @ x * mask[:, -1, :].any(-1)[:, None, None]


@pytest.mark.parametrize(("target", "name", "axes"), [(Choosing, "attention_mask", 4), (of_the_last_query, "mask", 3)])
def test_a_mask_has_the_axes_along_which_its_elements_are_taken(target: Any, name: str, axes: int) -> None:
    call = first(target)
    assert call.arguments[name].ndim == axes
    assert call.arguments[name].shape[-2:] == (5, 5)


def test_a_mask_that_has_to_be_given_does_not_keep_attention_from_being_judged() -> None:
    assert check(Choosing).verdict == "different by design"


def test_axes_that_are_added_are_not_taken_and_what_may_be_none_is_asked() -> None:
    assert axes_subscripted("m = mask[:, None, ..., 0]", "mask") == 2
    assert axes_subscripted("m = mask[0] + other[:, 0, 0]", "mask") == 0
    assert is_read_unasked("m = mask[:, 0, :, :]", "mask")
    assert not is_read_unasked("m = None if mask is None else mask[:, 0, :, :]", "mask")
    assert not is_read_unasked("m = mask.unsqueeze(1)", "mask")


class TurnsTheRest(Packed):
    """A part of each wide head is turned; a layer inside keeps another width by the name of a head's."""

    def __init__(self, width: int, heads: int, qk_rope_head_dim: int) -> None:
        super().__init__(width, heads)
        self.qk_rope_head_dim, self.inside = qk_rope_head_dim, nn.Identity()
        self.inside.head_dim = 6  # type: ignore[assignment]

    def forward(self, x: Tensor, position_embeddings: tuple[Tensor, Tensor], attention_mask: Tensor) -> Tensor:
        q, k, v = (split(each, self.heads) for each in self.qkv(x).chunk(3, -1))
        cos, sin = (each[:, None] for each in position_embeddings)
        q, k = (self.turned(each, cos, sin) for each in (q, k))
        scores = q @ k.mT / q.shape[-1] ** 0.5 + attention_mask[:, :, : q.shape[2], : k.shape[2]]
        return joined(scores.softmax(-1) @ v)

    def turned(self, x: Tensor, cos: Tensor, sin: Tensor) -> Tensor:
        part, rest = x[..., : self.qk_rope_head_dim], x[..., self.qk_rope_head_dim :]
        one, other = part.chunk(2, -1)
        return torch.cat([part * cos + torch.cat([-other, one], -1) * sin, rest], -1)


def test_what_is_turned_tells_first_how_wide_a_table_is() -> None:
    call = first(TurnsTheRest, width=64, heads=2, qk_rope_head_dim=8)
    assert call.arguments["position_embeddings"][0].shape[-1] == 8


class WithRepeatedMask(nn.Module):
    """Heads beside the samples: a mask is repeated for each of them, and has to be given."""

    def __init__(self, d_model: int, n_head: int) -> None:
        super().__init__()
        self.n_head, self.qkv, self.fc = n_head, nn.Linear(d_model, 3 * d_model), nn.Linear(d_model, d_model)

    def forward(self, x: Tensor, mask: Tensor | None = None) -> Tensor:
        q, k, v = (split(each, self.n_head).transpose(0, 1).flatten(0, 1) for each in self.qkv(x).chunk(3, -1))
        mask = mask.repeat(self.n_head, 1, 1)
        scores = torch.bmm(q, k.mT) / q.shape[-1] ** 0.5
        read = torch.bmm(scores.masked_fill(mask, -torch.inf).softmax(-1), v)
        return self.fc(joined(read.unflatten(0, (self.n_head, -1)).transpose(0, 1)))


class ZeroedLayer(nn.Module):
    """One mask hides keys where it is True, and one keeps the tokens where it is 1."""

    def __init__(self, d_model: int, n_head: int) -> None:
        super().__init__()
        self.slf_attn = WithRepeatedMask(d_model, n_head)

    def forward(
        self, enc_input: Tensor, non_pad_mask: Tensor | None = None, slf_attn_mask: Tensor | None = None
    ) -> Tensor:
        enc_output = self.slf_attn(enc_input, mask=slf_attn_mask) + enc_input
        enc_output *= non_pad_mask
        return enc_output


class ZeroedLayerWithoutScale(ZeroedLayer):
    def __init__(self, d_model: int, n_head: int) -> None:
        super().__init__(d_model, n_head)
        self.slf_attn = Unscaled(d_model, n_head)


class Unscaled(WithRepeatedMask):
    def forward(self, x: Tensor, mask: Tensor | None = None) -> Tensor:
        q, k, v = (split(each, self.n_head).transpose(0, 1).flatten(0, 1) for each in self.qkv(x).chunk(3, -1))
        mask = mask.repeat(self.n_head, 1, 1)
        read = torch.bmm(torch.bmm(q, k.mT).masked_fill(mask, -torch.inf).softmax(-1), v)
        return self.fc(joined(read.unflatten(0, (self.n_head, -1)).transpose(0, 1)))


def test_masks_that_are_repeated_or_keep_tokens_have_axes_and_forms_of_their_own() -> None:
    call = first(ZeroedLayer, d_model=16, n_head=2)
    samples, tokens, _ = call.arguments["enc_input"].shape
    assert call.arguments["non_pad_mask"].shape == (samples, tokens, 1)
    assert call.arguments["slf_attn_mask"].shape == (samples, tokens, tokens)
    assert bool(call.arguments["non_pad_mask"].all())
    assert not bool(call.arguments["slf_attn_mask"].any())
    assert check(ZeroedLayer, args={"d_model": 16, "n_head": 2}).verdict == "right"
    assert check(ZeroedLayerWithoutScale, args={"d_model": 16, "n_head": 2}).verdict == "wrong"


def test_what_zeroes_tokens_is_filled_with_nothing_else() -> None:
    assert zeroes_tokens("    net.masked_fill_(src_mask, 0.0)", "src_mask")
    assert zeroes_tokens("    x *= mask", "mask")
    assert not zeroes_tokens("a.masked_fill(mask, -1e9)\na.masked_fill(mask, 0)", "mask")
    assert not zeroes_tokens("    x = scores * mask", "mask")


class KeepsReal(Packed):
    """What is told of the mask stands in the arithmetic around it: two axes are added."""

    def forward(self, x: Tensor, keep: Tensor) -> Tensor:
        q, k, v = (split(each, self.heads) for each in self.qkv(x).chunk(3, -1))
        scores = q @ k.mT / q.shape[-1] ** 0.5 + (1 - keep)[:, None, None, :] * -1e9
        return joined(scores.softmax(-1) @ v)


def test_axes_are_added_to_what_is_computed_of_a_mask_as_well() -> None:
    assert first(KeepsReal, width=16, heads=2).arguments["keep"].ndim == 2
    assert axes_added("keep", None, "hide = (1 - keep)[:, None, None, :]") == 2
    assert axes_added("keep", None, "hide = (~keep).unsqueeze(1).unsqueeze(2)") == 2
    assert axes_added("keep", None, "hide = (q @ k.mT)[:, None] + told(k, keep)[:, None]") == 0


def of_real_tokens(q: Tensor, k: Tensor, v: Tensor, real: Tensor) -> Tensor:
    """q, k, v: (b, h, n, d).  real: (b, n), True where there is a token."""
    scores = q @ k.mT / q.shape[-1] ** 0.5
    return scores.masked_fill(~real[:, None, None, :], -torch.inf).softmax(-1) @ v


def test_what_true_means_for_tokens_by_the_documentation_is_a_mask() -> None:
    assert first(of_real_tokens).arguments["real"].ndim == 2
    assert check(of_real_tokens).verdict == "right"


@pytest.mark.parametrize(
    ("said", "role"),
    [
        ("real: (b, n), True where there is a token", "padding"),
        ("seen: (b, n, n), 1 for each key that may be attended to", "mask"),
        ("known: True means padding", "mask"),
        ("known: True for training", None),
        ("known: the number of tokens, 1 by default", None),
    ],
)
def test_what_is_written_of_a_mask_says_its_axes(said: str, role: str | None) -> None:
    assert (
        documented_role(f'def call(x, {said.partition(":")[0]}):\n    """{said}"""\n', said.partition(":")[0]) == role
    )
