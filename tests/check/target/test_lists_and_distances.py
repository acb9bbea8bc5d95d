"""Calls with lists that the code reads by their places, vectors of pairs, and vectors of distances."""

from __future__ import annotations

import itertools
from typing import Any

import pytest
import torch
from target_calls import attention, axes, first
from torch import Tensor, nn

from regard.check import check
from regard.check.target.argument import Argument
from regard.check.target.names import constructor_meaning
from regard.check.target.relative_tables import with_distances

pytestmark = pytest.mark.more  # seconds a test: it is run by make test-more

RIGHT = ("right", "different by design")


class OfAList(nn.Module):
    """A text is pooled by a question."""

    def __init__(self, hidden_size: int) -> None:
        super().__init__()
        self.text, self.question = (nn.Linear(hidden_size, hidden_size) for _ in range(2))
        self.score = nn.Linear(hidden_size, 1)

    def forward(self, inputs):  # type: ignore[no-untyped-def]
        scores = self.score((self.text(inputs[0]) + self.question(inputs[1]).unsqueeze(1)).tanh())
        return (inputs[0] * scores.softmax(1)).sum(1)


class OverTheText(OfAList):
    """The softmax runs over the one score of a token."""

    def forward(self, inputs):  # type: ignore[no-untyped-def]
        scores = self.score((self.text(inputs[0]) + self.question(inputs[1]).unsqueeze(1)).tanh())
        return (inputs[0] * scores.softmax(-1)).sum(1)


def test_what_is_read_by_places_alone_is_a_list() -> None:
    call = first(OfAList, hidden_size=12)
    assert {name: tuple(each.shape) for name, each in call.arguments.items()} == {
        "inputs[0]": (2, 5, 12),
        "inputs[1]": (2, 12),
    }
    assert check(OfAList, args={"hidden_size": 12}).verdict in RIGHT
    assert check(OverTheText, args={"hidden_size": 12}).verdict not in RIGHT


def of_rows(x: Tensor) -> Tensor:
    return attention(x[0], x[1], x[2]) + x.mean()


def test_what_is_read_otherwise_as_well_is_a_tensor() -> None:
    assert all(each.argument == "x" for each in first(of_rows).streams)


class WithPairs(nn.Module):
    """z (B, N, N, c_z) has what two rows of s have in common."""

    def __init__(self, c_s: int, c_z: int, num_heads: int) -> None:
        super().__init__()
        self.num_heads, self.qkv = num_heads, nn.Linear(c_s, 3 * c_s)
        self.of_pairs = nn.Sequential(nn.LayerNorm(c_z), nn.Linear(c_z, num_heads))

    def forward(self, s: Tensor, z: Tensor, mask: Tensor) -> Tensor:
        B, N, _ = s.shape
        q, k, v = self.qkv(s).unflatten(-1, (3, self.num_heads, -1)).permute(2, 0, 3, 1, 4)
        scores = q @ k.mT / q.shape[-1] ** 0.5 + self.of_pairs(z).permute(0, 3, 1, 2)
        scores = scores - 1e6 * (1 - mask[:, None, None].to(scores.dtype))
        return (scores.softmax(-1) @ v).transpose(1, 2).reshape(B, N, -1)


def test_vectors_of_pairs_stand_beside_what_has_their_tokens() -> None:
    call = first(WithPairs, c_s=12, c_z=6, num_heads=3)
    assert (call.arguments["s"].shape, call.arguments["z"].shape) == ((2, 5, 12), (2, 5, 5, 6))
    assert axes(call) == [("x", 0, (1,), None)]
    assert check(WithPairs, args={"c_s": 12, "c_z": 6, "num_heads": 3}).verdict in RIGHT


class OfDistances(nn.Module):
    """Transformer-XL: r has a vector for each distance, from that of the farthest key on."""

    def __init__(self, n_head: int, d_model: int, first: int = 1) -> None:
        super().__init__()
        self.n_head, self.first, self.qkv = n_head, first, nn.Linear(d_model, 3 * d_model, bias=False)
        self.of_r, self.out = (nn.Linear(d_model, d_model, bias=False) for _ in range(2))

    def forward(self, w, r, r_w_bias, r_r_bias, attn_mask=None):  # type: ignore[no-untyped-def]
        q, k, v = self.qkv(w).unflatten(-1, (3, self.n_head, -1)).unbind(2)
        places = self.of_r(r).view(r.size(0), self.n_head, -1)
        moved = torch.einsum("ibnd,jnd->ijbn", q + r_r_bias, places)
        moved = torch.cat([torch.zeros_like(moved[:, :1]), moved], 1).reshape(-1, len(w), *moved.shape[2:])
        start = self.first
        moved = moved[start : len(moved) - 1 + start].reshape(len(w), r.size(0), *moved.shape[2:])
        scores = (torch.einsum("ibnd,jbnd->ijbn", q + r_w_bias, k) + moved) / q.shape[-1] ** 0.5
        if attn_mask is not None:
            scores = scores.masked_fill(attn_mask[:, :, None, None], -torch.inf)
        return self.out(torch.einsum("ijbn,jbnd->ibnd", scores.softmax(1), v).flatten(2))


class OneRowOff(OfDistances):
    def __init__(self, n_head: int, d_model: int) -> None:
        super().__init__(n_head, d_model, first=0)


def test_two_biases_are_named_after_vectors_of_distances() -> None:
    call = first(OfDistances, n_head=2, d_model=12)
    assert (call.arguments["r"].shape, call.arguments["r_w_bias"].shape) == ((5, 1, 12), (2, 6))
    assert (axes(call), call.guessed) == ([("x", 1, (0,), None)], [])
    assert check(OfDistances, args={"n_head": 2, "d_model": 12}).verdict in RIGHT
    assert {each.id for each in check(OneRowOff, args={"n_head": 2, "d_model": 12}).causes} == {"logits-of-the-query"}


class OfItsOwnBiases(OfDistances):
    """The same, whose two biases are its own parameters."""

    def __init__(self, n_head: int, d_model: int, first: int = 1) -> None:
        super().__init__(n_head, d_model, first)
        self.r_w_bias, self.r_r_bias = (nn.Parameter(torch.randn(n_head, d_model // n_head)) for _ in range(2))

    def forward(self, w, r, attn_mask=None):  # type: ignore[no-untyped-def, override]
        return super().forward(w, r, self.r_w_bias, self.r_r_bias, attn_mask)


def test_two_biases_of_a_module_may_be_named_after_vectors_of_distances() -> None:
    call = first(OfItsOwnBiases, n_head=2, d_model=12)
    assert (call.arguments["r"].shape, axes(call), call.guessed) == ((5, 1, 12), [("x", 1, (0,), None)], [])
    assert check(OfItsOwnBiases, args={"n_head": 2, "d_model": 12}).verdict in RIGHT
    off = check(OfItsOwnBiases, args={"n_head": 2, "d_model": 12, "first": 0})
    assert {each.id for each in off.causes} == {"logits-of-the-query"}


class OfSegments(nn.Module):
    """The same with the tokens of the segment before, and the paper's names of the two biases."""

    def __init__(self, d_model: int, d_inner: int, n_heads: int = 4, axis: int = 1) -> None:
        super().__init__()
        self.n_heads, self.axis = n_heads, axis
        self.of_q, self.of_k, self.of_v, self.of_r = (nn.Linear(d_model, n_heads * d_inner) for _ in range(4))
        self.out = nn.Linear(n_heads * d_inner, d_model)

    def forward(self, x, pos_emb, memory, u, v, mask=None):  # type: ignore[no-untyped-def]
        both = torch.cat([memory, x], 0)
        q, k, values, places = (
            of(each).unflatten(-1, (self.n_heads, -1))
            for of, each in zip(
                (self.of_q, self.of_k, self.of_v, self.of_r), (x, both, both, pos_emb.flatten(0, 1)), strict=True
            )
        )
        moved = torch.einsum("ibhd,jhd->ijbh", q + v, places)
        moved = torch.cat([torch.zeros_like(moved[:, :1]), moved], 1).reshape(-1, len(x), *moved.shape[2:])
        moved = moved[1:].reshape(len(x), len(both), *moved.shape[2:])
        scores = (torch.einsum("ibhd,jbhd->ijbh", q + u, k) + moved) / q.shape[-1] ** 0.5
        if mask is not None:
            scores = scores.masked_fill(mask[..., None], -torch.inf)
        return self.out(torch.einsum("ijbh,jbhd->ibhd", scores.softmax(self.axis), values).flatten(2))


class WithNamedBiases(OfSegments):
    def forward(self, x, r, memory, bias_u, bias_v, mask=None):  # type: ignore[no-untyped-def]
        return super().forward(x, r, memory, bias_u, bias_v, mask)


class WithBiasesCalledSo(OfSegments):
    def forward(self, x, pos_encodings, memory, u_bias, v_bias, mask=None):  # type: ignore[no-untyped-def]
        return super().forward(x, pos_encodings, memory, u_bias, v_bias, mask)


def test_heads_may_be_wider_together_than_the_tokens() -> None:
    u, v = (tuple(each.shape) for each in list(first(OfSegments, d_model=16, d_inner=8).arguments.values())[3:5])
    assert u == v == (4, 8)


def test_the_width_of_the_input_is_that_of_the_tokens() -> None:
    assert constructor_meaning("d_input") == constructor_meaning("d_model") == "d_model"


@pytest.mark.parametrize("kind", [OfSegments, WithNamedBiases, WithBiasesCalledSo])
def test_u_and_v_are_biases_beside_vectors_of_distances(kind: type[nn.Module]) -> None:
    sizes = {"d_model": 32, "d_inner": 6}
    call = first(kind, **sizes)
    x, places, memory, *biases = (tuple(each.shape) for each in list(call.arguments.values())[:5])
    assert (places[0], biases) == (x[0] + memory[0], [(4, 6), (4, 6)])
    assert [(each.role, each.token_axes) for each in call.streams] == [("x", (0,)), ("context", (0,))]
    assert check(kind, args=sizes).verdict in RIGHT
    assert check(kind, args={**sizes, "axis": 2}).verdict == "wrong"


def test_v_without_u_are_values() -> None:
    named = [Argument(name, role, True) for name, role in (("x", "x"), ("pos_emb", "rope"), ("v", "v"))]
    assert with_distances(named, "") == named


class WithoutATranspose(nn.Module):
    def __init__(self, hidden_dim: int) -> None:
        super().__init__()
        self.q, self.k, self.v = (nn.Linear(hidden_dim, hidden_dim) for _ in range(3))

    def forward(self, q: Tensor, k: Tensor, v: Tensor) -> Tensor:
        return (self.q(q) @ self.k(k) / q.shape[-1] ** 0.5).softmax(-1) @ self.v(v)


def test_keys_without_a_transpose_are_as_many_as_channels() -> None:
    assert first(WithoutATranspose, hidden_dim=12).arguments["k"].shape == (2, 12, 12)
    assert check(WithoutATranspose, args={"hidden_dim": 12}).verdict == "wrong"


class OfAVideo(nn.Module):
    """Patches of a picture that is wider than high, over all frames."""

    def __init__(self, frames: int, channels: int, height: int, width: int, dim: int, patch_size: int) -> None:
        super().__init__()
        self.patch_size, self.shape = patch_size, (frames, height // patch_size, width // patch_size)
        self.embed = nn.Linear(channels * patch_size**2, dim)
        self.places = nn.Parameter(torch.zeros(frames * height * width // patch_size**2, dim))
        self.qkv = nn.Linear(dim, 3 * dim)

    def forward(self, video: Tensor) -> Tensor:
        """video: (b, f, c, h, w)"""
        f, h, w = self.shape
        b, p = len(video), self.patch_size
        cut = video.reshape(b, f, -1, h, p, w, p).permute(0, 1, 3, 5, 2, 4, 6)
        x = self.embed(cut.reshape(b, f * h * w, -1)) + self.places
        return attention(*self.qkv(x).chunk(3, -1))


@pytest.mark.parametrize(("height", "width"), [(4, 6), (6, 4)])
def test_pictures_of_a_video_are_as_high_and_as_wide_as_the_constructor_is_told(height: int, width: int) -> None:
    call = first(OfAVideo, frames=3, channels=3, height=height, width=width, dim=8, patch_size=2)
    assert call.arguments["video"].shape == (2, 3, 3, height, width)


class OfPairs(nn.Module):
    """A score for the product of each two fields (attentional factorization machine, Xiao et al. 2017)."""

    def __init__(self, dim: int) -> None:
        super().__init__()
        self.made, self.score = nn.Linear(dim, dim), nn.Linear(dim, 1)

    def forward(self, inputs: Any) -> Tensor:
        fields = inputs
        pairs = torch.cat([one * other for one, other in itertools.combinations(fields, 2)], dim=1)
        weights = self.score(self.made(pairs).relu()).softmax(1)
        return (weights * pairs).sum(1)


def test_a_list_whose_elements_are_paired_is_no_tensor_that_is_taken_apart() -> None:
    report = check(OfPairs)
    assert report.verdict == "undetermined"
    assert any("inputs is a list of tensors" in each for each in report.reasons)
