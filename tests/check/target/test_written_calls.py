"""Calls whose sequences are no plain ones: what the code, its patterns of einops or its documentation write of them."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from target_calls import attention, axes, first
from torch import Tensor, nn

from property_cases import joined, split
from regard.check import check
from regard.check.target import invocations
from regard.check.target.names import call_meaning, constructor_meaning
from regard.check.target.sizes import DISTINCT_SIZES
from regard.check.target.usage import is_bound
from regard.check.target.written_axes import written_map

pytestmark = pytest.mark.more  # seconds a test: it is run by make test-more

# Sequences and ids. ---------------------------------------------------------------------------------------------------


class OfPatches(nn.Module):
    """What is read as far as it is long is no number of a place; ids are needed, whatever their default."""

    def __init__(self, d_model: int, vocab_size: int, patch_dim: int = 6) -> None:
        super().__init__()
        self.places = nn.Parameter(torch.zeros(1, 16, d_model))
        self.cut, self.words = nn.Linear(patch_dim, d_model), nn.Embedding(vocab_size, d_model)
        self.q, self.kv = nn.Linear(d_model, d_model), nn.Linear(d_model, 2 * d_model)

    def encode(self, patches: Tensor) -> Tensor:
        return self.cut(patches) + self.places[:, : patches.size(1)]

    def forward(self, patches: Tensor, input_ids: Tensor | None = None) -> Tensor:
        x = self.words(input_ids) + self.places[:, : input_ids.size(1)]  # type: ignore[union-attr, arg-type]
        return attention(self.q(x), *self.kv(self.encode(patches)).chunk(2, -1))


def test_what_is_read_as_far_as_it_is_long_is_a_sequence() -> None:
    call = first(OfPatches)
    assert {each.argument: each.role for each in call.streams} == {"patches": "x", "input_ids": "ids"}
    assert is_bound("def f(x, n):\n    return x[:, :n + 1]", "n")
    assert not is_bound("def f(x, y):\n    return x[:, :y.shape[1]]", "y")


class OfFields(nn.Module):
    """x: LongTensor (batch, fields)"""

    def __init__(self, d_model: int = 12, fields: int = 4) -> None:
        super().__init__()
        self.register_buffer("offsets", 3 * torch.arange(fields))
        self.table, self.out = nn.Embedding(20, d_model), nn.Linear(fields * d_model, 1)

    def forward(self, x: Tensor) -> Tensor:
        x = self.table(x + self.offsets)
        return self.out((attention(x, x, x) + x).flatten(1))


def test_there_are_as_many_tokens_as_a_layer_takes_side_by_side() -> None:
    call = first(OfFields)
    assert call.arguments["x"].shape[1] == 4
    assert not call.arguments["x"].is_floating_point()
    assert check(OfFields).verdict != "wrong"  # ids that are moved are no rotation


# Configs and constructors. --------------------------------------------------------------------------------------------


class Inner(nn.Module):
    def __init__(self, dims: Any) -> None:
        super().__init__()
        self.heads = dims.n_text_head
        self.qkv = nn.Linear(dims.n_text_state, 3 * dims.n_text_state)

    def forward(self, x: Tensor) -> Tensor:
        q, k, v = (split(each, self.heads) for each in self.qkv(x).chunk(3, -1))
        return joined((q @ k.mT / q.shape[-1] ** 0.5).softmax(-1) @ v)


class OfDims(nn.Module):
    def __init__(self, dims: Any) -> None:
        super().__init__()
        self.inner = Inner(dims)

    def forward(self, x: Tensor) -> Tensor:
        return self.inner(x)


def test_an_argument_whose_fields_are_sizes_is_a_config() -> None:
    assert constructor_meaning("n_text_head") == "heads"
    assert first(OfDims, n_text_head=4, n_text_state=16).arguments["x"].shape[-1] == 16
    assert check(OfDims).verdict == "right"


class OfLatents(nn.Module):
    def __init__(self, d_model: int, num_latents: int = 256, latent_dim: int = 256) -> None:
        super().__init__()
        self.latents = nn.Parameter(torch.randn(num_latents, latent_dim))
        self.q, self.kv = nn.Linear(latent_dim, latent_dim), nn.Linear(d_model, 2 * latent_dim)

    def forward(self, x: Tensor) -> Tensor:
        return attention(self.q(self.latents).expand(len(x), -1, -1), *self.kv(x).chunk(2, -1))


def test_latents_are_few() -> None:
    (call, *_) = invocations(OfLatents, args={})
    assert call.run().shape == (2, 6, 24)


# Pictures and videos. -------------------------------------------------------------------------------------------------


OF_A_LAYER = """
class Cut:
    def __init__(self):
        self.cut = nn.Sequential(
            Rearrange('b t c (h p1) (w p2) -> b t (h w) (p1 p2 c)', p1=8, p2=8),
            nn.Linear(192, 32),
        )

    def forward(self, x):
        return self.cut(x)
"""


def test_axes_that_a_first_layer_of_einops_takes_are_written() -> None:
    assert written_map(OF_A_LAYER, "x") == "bzdyx"
    assert written_map(OF_A_LAYER.replace("self.cut(x)", "self.other(x)"), "x") == ""


@pytest.mark.parametrize(
    ("text", "letters"),
    [
        ('rearrange(x, "b f c (h p) (w q) -> b (f h w) (p q c)", p=2, q=2)', "bzdyx"),
        ('rearrange(x, "b c h w -> b (h w) c")', "bdyx"),
        ('rearrange(x, "b n (h d) -> b h n d", h=4)', ""),
        ("# x: (batch, channels, frames, height, width)", "bdzyx"),
        ("# x: (batch, height, width, channels)", "byxd"),
        ("# x: (batch, tokens, channels)", ""),
    ],
)
def test_axes_of_maps_are_written(text: str, letters: str) -> None:
    assert written_map(f"def f(x):\n    {text}\n    return x", "x") == letters


class OfAVideo(nn.Module):
    """Of each patch of each frame one token."""

    def __init__(self, image_size: int, patch_size: int, num_frames: int, dim: int = 12) -> None:
        super().__init__()
        self.patch_size, self.places = patch_size, (image_size // patch_size) ** 2
        self.cut = nn.Linear(3 * patch_size**2, dim)
        self.of_place = nn.Parameter(torch.zeros(num_frames, self.places, dim))

    def forward(self, video: Tensor) -> Tensor:
        # video: (batch, frames, channels, height, width)
        size = self.patch_size
        x = video.unflatten(4, (-1, size)).unflatten(3, (-1, size)).permute(0, 1, 3, 5, 4, 6, 2)
        x = self.cut(x.flatten(4).flatten(2, 3)) + self.of_place
        return attention(*[x.flatten(1, 2)] * 3)


@pytest.mark.parametrize("frames", [3, 5])
def test_a_video_that_is_cut_into_patches(frames: int) -> None:
    call = first(OfAVideo, image_size=4, patch_size=2, num_frames=frames)
    assert call.arguments["video"].shape == (2, frames, 3, 4, 4)
    assert axes(call) == [("x", 0, (1, 3, 4), None)]


def test_the_size_of_a_patch_is_told_by_a_field() -> None:
    sizes = DISTINCT_SIZES[0].with_arguments({"patches": {"size": (8, 8)}, "heads": {"size": 2}})
    assert sizes.patch == 8
    assert sizes.image == 24


# Pairs. ---------------------------------------------------------------------------------------------------------------


class OfPairs(nn.Module):
    """
    input_q: (B, N, C)
    input_k: (B, M, C)
    input_v: (B, M, C)
    embed_qk: (B, N, M, C)
    """

    def __init__(self, d_model: int) -> None:
        super().__init__()
        self.q, self.k, self.v, self.p = (nn.Linear(d_model, d_model) for _ in range(4))

    def forward(self, input_q: Tensor, input_k: Tensor, input_v: Tensor, embed_qk: Tensor) -> Tensor:
        q, k, v, p = self.q(input_q), self.k(input_k), self.v(input_v), self.p(embed_qk)
        scale = q.shape[-1] ** -0.5
        return (self.scores(q, k, scale) + torch.einsum("bnc,bnmc->bnm", q, p) * scale).softmax(-1) @ v

    def scores(self, q: Tensor, k: Tensor, scale: float) -> Tensor:
        return q @ k.mT * scale


class OfPairsThatAreScaledAlone(OfPairs):
    """
    input_q: (B, N, C)
    input_k: (B, M, C)
    input_v: (B, M, C)
    embed_qk: (B, N, M, C)
    """

    def scores(self, q: Tensor, k: Tensor, scale: float) -> Tensor:
        return q @ k.mT

    def forward(self, input_q: Tensor, input_k: Tensor, input_v: Tensor, embed_qk: Tensor) -> Tensor:
        return super().forward(input_q, input_k, input_v, embed_qk)


def test_vectors_of_each_query_and_key_are_documented() -> None:
    call = first(OfPairs, d_model=8)
    assert [each.role for each in call.streams] == ["q", "k", "v"]
    assert call.arguments["embed_qk"].shape == (2, 5, 7, 8)
    assert not call.guessed
    assert [each.id for each in check(OfPairsThatAreScaledAlone, args={"d_model": 8}).causes] == ["scale"]
    assert check(OfPairs, args={"d_model": 8}).verdict == "different by design"
    assert [call_meaning(each) for each in ("input_key", "x_value")] == ["k", "v"]


class OfAtoms(nn.Module):
    """
    atoms: (B, N) kinds of atoms
    spatial_pos: (B, N, N) lengths of paths
    """

    def __init__(self, num_types: int = 12, d_model: int = 12, heads: int = 3, *, mixed: bool = False) -> None:
        super().__init__()
        self.heads, self.mixed = heads, mixed
        self.kinds, self.paths = nn.Embedding(num_types, d_model), nn.Embedding(16, 1)
        self.attend = nn.MultiheadAttention(d_model, heads, batch_first=True)

    def forward(self, atoms: Tensor, spatial_pos: Tensor) -> Tensor:
        x, bias = self.kinds(atoms), self.paths(spatial_pos.clamp(max=15)).squeeze(-1)
        bias = bias.repeat(self.heads, 1, 1) if self.mixed else bias.repeat_interleave(self.heads, 0)
        return self.attend(x, x, x, attn_mask=bias)[0]


def test_distances_of_one_sample_change_no_other() -> None:
    distances = first(OfAtoms).arguments["spatial_pos"]
    assert not torch.equal(distances[0], distances[1])
    assert check(OfAtoms).verdict == "different by design"
    assert [each.id for each in check(OfAtoms, args={"mixed": True}).causes] == ["samples-apart"]


# Steps of a decoder. --------------------------------------------------------------------------------------------------


class LocationSensitive(nn.Module):
    """A layer for its caller, what was read of the weights so far, and a mask of padding."""

    def __init__(self, embedding_dim: int, *, kept: bool = True) -> None:
        super().__init__()
        self.kept, self.memory_layer = kept, nn.Linear(embedding_dim, embedding_dim)
        self.query_layer, self.v = nn.Linear(embedding_dim, embedding_dim), nn.Linear(embedding_dim, 1, bias=False)
        self.places, self.read = nn.Conv1d(2, 3, 3, padding=1), nn.Linear(3, embedding_dim)

    def forward(
        self,
        attention_hidden_state: Tensor,
        memory: Tensor,
        processed_memory: Tensor,
        attn_weights_cat: Tensor,
        mask: Tensor,
    ) -> Tensor:
        asked = self.query_layer(attention_hidden_state.unsqueeze(1)) + self.read(self.places(attn_weights_cat).mT)
        scores = self.v((asked + processed_memory).tanh()).squeeze(-1)
        if mask is not None:
            hidden = scores.masked_fill(mask, -torch.inf)
            scores = hidden if self.kept else scores
        return (scores.softmax(1).unsqueeze(1) @ memory).squeeze(1)


def test_a_state_asks_with_what_was_read_of_the_weights_before() -> None:
    call = first(LocationSensitive)
    assert axes(call)[0] == ("x", 0, (), None)
    assert call.arguments["attn_weights_cat"].shape[:2] == (2, 2)
    assert check(LocationSensitive).verdict == "different by design"
    assert check(LocationSensitive, args={"kept": False}).verdict == "wrong"
