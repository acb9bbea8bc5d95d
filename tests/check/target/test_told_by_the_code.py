"""Calls that the names of arguments alone do not tell: the code, its documentation or its comments do."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from target_calls import Packed, attention, axes, first
from torch import Tensor, nn

from property_cases import joined, split
from regard.check import check
from regard.check.target import invocations
from regard.errors import InputError

pytestmark = pytest.mark.more  # seconds a test: it is run by make test-more

RIGHT = ("right", "different by design")


# Masks. ---------------------------------------------------------------------------------------------------------------


class Graph(nn.Module):
    """Nodes attend to those that an edge leads to; one graph, without a batch."""

    def __init__(self, in_features: int, n_heads: int) -> None:
        super().__init__()
        self.heads, self.v = n_heads, nn.Linear(in_features, in_features * n_heads, bias=False)
        self.of_query, self.of_key = (nn.Parameter(torch.ones(n_heads, in_features)) for _ in range(2))

    def forward(self, h: Tensor, adj_mat: Tensor) -> Tensor:
        v = self.v(h).unflatten(-1, (self.heads, -1))
        scores = nn.functional.leaky_relu((v * self.of_query).sum(-1)[:, None] + (v * self.of_key).sum(-1)[None])
        assert adj_mat.shape[2] in (1, self.heads)
        weights = scores.masked_fill(adj_mat == 0, -torch.inf).softmax(1)
        return torch.einsum("ijh,jhf->ihf", weights, v).flatten(1)


def test_a_mask_of_one_graph_has_an_axis_for_the_heads() -> None:
    call = first(Graph)
    assert (call.arguments["h"].ndim, call.arguments["adj_mat"].shape) == (2, (5, 5, 1))
    report = check(Graph)
    assert report.verdict in RIGHT
    assert any("adj_mat hides exactly" in each.text for each in report.steps)


class TokensFirst(nn.Module):
    """Slopes by the distance; it cannot do without a mask, whatever its signature says."""

    def __init__(self, d_model: int, heads: int) -> None:
        super().__init__()
        self.heads, self.slopes = heads, 0.5 ** torch.arange(1.0, heads + 1)
        self.q, self.k, self.v, self.out = (nn.Linear(d_model, d_model) for _ in range(4))

    def forward(self, *, query: Tensor, key: Tensor, value: Tensor, mask: Tensor | None = None) -> Tensor:
        """
        `query`, `key` and `value` have shape `[seq_len, batch_size, d_model]`,
        `mask` has shape `[seq_len, seq_len, batch_size]`.
        """
        # The biases are right only with causal masks.
        assert mask is not None
        assert mask.shape == (len(mask), len(mask), 1)
        q, k, v = (each.unflatten(-1, (self.heads, -1)) for each in (self.q(query), self.k(key), self.v(value)))
        assert mask.shape[:2] == (len(q), len(k))
        scores = torch.einsum("ibhd,jbhd->ijbh", q, k) / q.shape[-1] ** 0.5
        scores = scores + self.slopes * mask.cumsum(1).unsqueeze(-1)
        weights = scores.masked_fill(mask.unsqueeze(-1) == 0, -torch.inf).softmax(1)
        return self.out(torch.einsum("ijbh,jbhd->ibhd", weights, v).flatten(2))


def test_a_mask_that_the_code_asserts_is_given_with_the_axes_that_the_documentation_writes() -> None:
    call = first(TokensFirst)
    assert call.arguments["mask"].shape == (5, 5, 1)
    assert axes(call)[0] == ("q", 1, (0,), None)


def test_a_mask_is_causal_where_a_comment_says_that_no_other_is_meant() -> None:
    report = check(TokensFirst)
    assert report.verdict in RIGHT
    assert any("mask hides exactly" in each.text for each in report.steps)


def rotated(x: Tensor, cos: Tensor, sin: Tensor) -> Tensor:
    one, two = x.chunk(2, -1)
    return x * cos[: x.shape[-2]] + torch.cat((-two, one), -1) * sin[: x.shape[-2]]


class OfTwoKinds(Packed):
    """A layer of a model whose other layers take the other mask and the other tables."""

    def __init__(self, width: int, heads: int, attn_type: str) -> None:
        super().__init__(width, heads)
        self.attn_type, self.is_local = attn_type, attn_type == "local_attention"

    def forward(
        self,
        x: Tensor,
        mask_global: Tensor,
        mask_local: Tensor,
        cos_global: Tensor,
        sin_global: Tensor,
        cos_local: Tensor,
        sin_local: Tensor,
    ) -> Tensor:
        q, k, v = (split(each, self.heads) for each in self.qkv(x).chunk(3, -1))
        if self.attn_type == "local_attention":
            mask, cos, sin = mask_local, cos_local, sin_local
        else:
            mask, cos, sin = mask_global, cos_global, sin_global
        q, k = rotated(q, cos, sin), rotated(k, cos, sin)
        scores = (q @ k.mT / q.shape[-1] ** 0.5).masked_fill(mask, -torch.inf)
        return joined(scores.softmax(-1) @ v)


class AlwaysGlobal(OfTwoKinds):
    """Takes one mask whatever its kind is."""

    def forward(self, x: Tensor, mask_global: Tensor, mask_local: Tensor) -> Tensor:  # type: ignore[override]
        q, k, v = (split(each, self.heads) for each in self.qkv(x).chunk(3, -1))
        mask = mask_global
        return joined((q @ k.mT / q.shape[-1] ** 0.5).masked_fill(mask, -torch.inf).softmax(-1) @ v)


def test_of_masks_and_tables_of_two_kinds_those_that_a_setting_does_not_choose_are_not_exercised() -> None:
    report = check(OfTwoKinds, args={"attn_type": "local_attention"})
    assert report.verdict in RIGHT
    (masked,) = [each.text for each in report.steps if each.step == "masked"]
    assert "mask_local hides exactly" in masked
    assert "mask_global was not exercised" in masked


def test_a_mask_that_is_never_read_is_wrong() -> None:
    report = check(AlwaysGlobal, args={"attn_type": "local_attention"})
    assert [each.id for each in report.causes] == ["mask-argument"]


# Windows and maps. ----------------------------------------------------------------------------------------------------


class Windowed(Packed):
    """Its window says how many keys come before a query, and how many after it."""

    def forward(self, x: Tensor, window_size: Any) -> Tensor:
        q, k, v = (split(each, self.heads) for each in self.qkv(x).chunk(3, -1))
        distance = torch.arange(x.shape[1])[:, None] - torch.arange(x.shape[1])
        allowed = (distance >= 0) & (distance <= window_size[0])
        return joined((q @ k.mT / q.shape[-1] ** 0.5).masked_fill(~allowed, -torch.inf).softmax(-1) @ v)


def test_a_window_of_two_numbers_reaches_back_alone() -> None:
    assert first(Windowed).arguments["window_size"] == (3, 0)
    assert check(Windowed).verdict in RIGHT


class OfAWindow(Packed):
    """A bias for each two places of a window."""

    def __init__(self, dim: int, num_heads: int, window_size: Any) -> None:
        super().__init__(dim, num_heads)
        self.window_size = window_size
        count = window_size[0] * window_size[1]
        self.table = nn.Parameter(torch.zeros(num_heads, count, count))

    def forward(self, x: Tensor) -> Tensor:
        q, k, v = (split(each, self.heads) for each in self.qkv(x).chunk(3, -1))
        return joined((q @ k.mT / q.shape[-1] ** 0.5 + self.table).softmax(-1) @ v)


class WithAToken(OfAWindow):
    """The window, and a token of the class before it."""

    def __init__(self, dim: int, num_heads: int, window_size: Any) -> None:
        super().__init__(dim, num_heads, window_size)
        count = window_size[0] * window_size[1] + 1
        self.table = nn.Parameter(torch.zeros(num_heads, count, count))


class OfAResolution(Packed):
    def __init__(self, dim: int, num_heads: int, input_resolution: Any) -> None:
        super().__init__(dim, num_heads)
        self.input_resolution = input_resolution

    def forward(self, x: Tensor) -> Tensor:
        assert x.shape[1] == self.input_resolution[0] * self.input_resolution[1]
        return super().forward(x)


def test_a_window_and_a_resolution_of_two_numbers_say_how_many_tokens_there_are() -> None:
    assert first(OfAWindow, window_size=[3, 4]).arguments["x"].shape[1] == 12
    assert first(WithAToken, window_size=[3, 4]).arguments["x"].shape[1] == 13
    assert first(OfAResolution, input_resolution=(2, 4)).arguments["x"].shape[1] == 8


class OfAMap(nn.Module):
    """It does not keep how large its map is."""

    def __init__(self, dim: int, fmap_size: int) -> None:
        super().__init__()
        self.q, self.k, self.v = (nn.Conv2d(dim, dim, 1) for _ in range(3))
        self.bias = nn.Parameter(torch.zeros(fmap_size**2, fmap_size**2))

    def forward(self, x: Tensor) -> Tensor:
        q, k, v = (each(x).flatten(2).mT for each in (self.q, self.k, self.v))
        return ((q @ k.mT / q.shape[-1] ** 0.5 + self.bias).softmax(-1) @ v).mT.unflatten(2, x.shape[2:])


class InBlocks(OfAMap):
    """Blocks of the map attend to themselves."""

    def __init__(self, dim: int, block_size: int) -> None:
        super().__init__(dim, 1)
        self.block_size = block_size

    def forward(self, x: Tensor) -> Tensor:
        side = self.block_size
        assert [each % side for each in x.shape[2:]] == [0, 0]
        parts = x.unflatten(3, (-1, side)).unflatten(2, (-1, side)).permute(0, 2, 4, 1, 3, 5)
        found = super().forward(parts.flatten(0, 2)).view(parts.shape)
        return found.permute(0, 3, 1, 4, 2, 5).flatten(4).flatten(2, 3)


def test_a_map_is_as_large_as_the_constructor_is_told() -> None:
    assert first(OfAMap, fmap_size=3).arguments["x"].shape[2:] == (3, 3)
    assert first(InBlocks, block_size=3).arguments["x"].shape[2:] == (6, 9)


class Flattened(Packed):
    """Its keys are means of the map that its tokens are."""

    def forward(self, x: Tensor, feat_size: Any) -> Tensor:
        H, W = feat_size
        kept = nn.functional.avg_pool2d(x.mT.unflatten(2, (H, W)), 2).flatten(2).mT
        q, (k, v) = self.qkv(x).chunk(3, -1)[0], self.qkv(kept).chunk(3, -1)[1:]
        return joined(attention(*(split(each, self.heads) for each in (q, k, v))))


def test_what_is_taken_apart_into_height_and_width_is_these() -> None:
    call = first(Flattened)
    height, width = call.arguments["feat_size"]
    assert call.arguments["x"].shape[1] == height * width
    assert check(Flattened).verdict in RIGHT


def in_patches(x: Tensor, side: int) -> Tensor:
    return x.unflatten(3, (-1, side)).unflatten(2, (-1, side)).permute(0, 2, 4, 1, 3, 5).flatten(3).flatten(1, 2)


class OfPatches(nn.Module):
    def __init__(self, embed_dim: int, num_channels: int, patch_size: int) -> None:
        super().__init__()
        self.patch_size, self.embed = patch_size, nn.Linear(num_channels * patch_size**2, embed_dim)
        self.attention = Packed(embed_dim, 3)

    def forward(self, x: Tensor) -> Tensor:
        return self.attention(self.embed(in_patches(x, self.patch_size)))


def test_x_is_an_image_where_the_constructor_is_told_of_patches() -> None:
    _, channels, *sides = first(OfPatches, num_channels=3, patch_size=4).arguments["x"].shape
    assert (channels, [each % 4 for each in sides]) == (3, [0, 0])


# Sequences. -----------------------------------------------------------------------------------------------------------


class Conditioned(nn.Module):
    def __init__(self, d_model: int, d_cond: int) -> None:
        super().__init__()
        self.q, self.k, self.v = nn.Linear(d_model, d_model), nn.Linear(d_cond, d_model), nn.Linear(d_cond, d_model)

    def forward(self, x: Tensor, cond: Tensor | None = None) -> Tensor:
        cond = x if cond is None else cond
        return attention(self.q(x), self.k(cond), self.v(cond))


def test_what_conditions_is_a_context() -> None:
    call = first(Conditioned, d_model=12, d_cond=20)
    assert call.arguments["cond"].shape[-1] == 20
    assert [each[0] for each in axes(call)] == ["x", "context"]


class OneQuery(nn.Module):
    """Each key and the query are added; several queries would each meet one key."""

    def __init__(self, hidden_dim: int) -> None:
        super().__init__()
        self.q, self.v = (nn.Linear(hidden_dim, hidden_dim, bias=False) for _ in range(2))
        self.score = nn.Linear(hidden_dim, 1)

    def forward(self, query: Tensor, value: Tensor, last_attn: Tensor) -> Tensor:
        weights = self.score(torch.tanh(self.q(query) + self.v(value))).squeeze(-1).softmax(-1)
        return (weights.unsqueeze(1) @ value).squeeze(1)


def test_a_query_beside_values_alone_may_be_one() -> None:
    call = first(OneQuery)
    assert (call.arguments["query"].shape[1], call.arguments["value"].shape[1]) == (1, 7)
    assert check(OneQuery).verdict in RIGHT


class SourceFirst(nn.Module):
    """What is attended to comes first."""

    def __init__(self, hidden_size: int) -> None:
        super().__init__()
        self.q = nn.Linear(hidden_size, hidden_size, bias=False)

    def forward(self, h_src: Tensor, h_tgt: Tensor) -> Tensor:
        weights = (h_src @ self.q(h_tgt.squeeze(1)).unsqueeze(-1)).squeeze(-1).softmax(-1)
        return weights.unsqueeze(1) @ h_src


def test_of_two_sequences_the_one_that_is_named_a_source_is_asked() -> None:
    assert [(each[0], each[1]) for each in axes(first(SourceFirst))] == [("context", 0), ("x", 0)]


class OneStep(nn.Module):
    """A step of a recurrent model, over what it remembers."""

    def __init__(self, d_model: int, heads: int) -> None:
        super().__init__()
        self.heads, (self.q, self.k, self.v) = heads, (nn.Linear(d_model, d_model) for _ in range(3))

    def forward(self, *, query: Tensor, key: Tensor, value: Tensor) -> Tensor:
        """
        * `query` has shape `[batch_size, d_model]`
        * `key` and `value` have shape `[seq_len, batch_size, d_model]`
        """
        q, k, v = (each.unflatten(-1, (self.heads, -1)) for each in (self.q(query), self.k(key), self.v(value)))
        weights = (torch.einsum("bhd,jbhd->jbh", q, k) / q.shape[-1] ** 0.5).softmax(0)
        return torch.einsum("jbh,jbhd->bhd", weights, v).flatten(1)


def test_a_query_is_a_vector_of_each_sample_where_the_documentation_says_so() -> None:
    call = first(OneStep)
    assert (call.arguments["query"].ndim, call.arguments["key"].ndim) == (2, 3)
    assert check(OneStep).verdict in RIGHT


class OfATuple(Graph):
    """Nodes and edges are handed over as one."""

    def forward(self, data: tuple[Tensor, Tensor]) -> tuple[Tensor, Tensor]:  # type: ignore[override]
        nodes, connectivity_mask = data
        v = self.v(nodes).unflatten(-1, (self.heads, -1))
        scores = nn.functional.leaky_relu((v * self.of_query).sum(-1)[:, None] + (v * self.of_key).sum(-1)[None])
        weights = (scores + connectivity_mask[..., None]).softmax(1)
        return torch.einsum("ijh,jhf->ihf", weights, v).flatten(1), connectivity_mask


def test_what_the_code_takes_apart_is_handed_over_as_a_tuple() -> None:
    call = first(OfATuple)
    assert (list(call.arguments), call.packed) == (
        ["nodes", "connectivity_mask"],
        {"data": ["nodes", "connectivity_mask"]},
    )
    assert check(OfATuple).verdict in RIGHT


def test_a_factory_hands_over_a_tuple_as_it_is() -> None:
    def make() -> tuple[nn.Module, Any]:
        return OfATuple(12, 3), {"data": (torch.randn(5, 12), torch.zeros(5, 5))}

    call = next(invocations(make, args={}))
    assert list(call.arguments) == ["data"]


# Constructors. --------------------------------------------------------------------------------------------------------


class HandsOver(Packed):
    def __init__(self, *args: Any, **kwargs: Any) -> None:
        super().__init__(*args, **kwargs)


def test_a_constructor_that_hands_over_all_that_it_is_given_takes_what_its_base_takes() -> None:
    assert first(HandsOver, width=24, heads=2).target.heads == 2
    with pytest.raises(InputError, match="takes no depth; it takes width, heads, bias"):
        first(HandsOver, depth=2)


class OfAConfig(Packed):
    def __init__(self, cfg: dict[str, int]) -> None:
        super().__init__(cfg["n_heads"] * cfg["head_dim"], cfg["n_heads"])
        self.enter = nn.Linear(cfg["emb_dim"], cfg["n_heads"] * cfg["head_dim"])

    def forward(self, x: Tensor, cos: Tensor, sin: Tensor) -> Tensor:
        q, k, v = (split(each, self.heads) for each in self.qkv(self.enter(x)).chunk(3, -1))
        return joined(attention(rotated(q, cos, sin), rotated(k, cos, sin), v))


def test_sizes_that_a_config_was_given_are_those_of_the_call() -> None:
    call = first(OfAConfig, cfg={"emb_dim": 20, "n_heads": 2, "head_dim": 16})
    assert (call.arguments["x"].shape[-1], call.arguments["cos"].shape[-1]) == (20, 16)
    assert [call.sizes[each] for each in ("heads", "d_head")] == [2, 16]


class TurnsAPart(Packed):
    """Of each head a few channels, whose number it keeps, are turned."""

    def __init__(self, width: int, heads: int, qk_rope_head_dim: int) -> None:
        super().__init__(width, heads)
        self.qk_rope_head_dim = qk_rope_head_dim

    def forward(self, x: Tensor, freqs_cis: Tensor) -> Tensor:
        q, k, v = (split(each, self.heads) for each in self.qkv(x).chunk(3, -1))
        turn, count = freqs_cis.view(1, 1, x.shape[1], -1), self.qk_rope_head_dim
        q, k = (
            torch.cat((torch.view_as_real(torch.view_as_complex(part) * turn).flatten(3), each[..., count:]), -1)
            for each in (q, k)
            for part in [each[..., :count].unflatten(-1, (-1, 2)).contiguous()]
        )
        return joined(attention(q, k, v))


def test_a_table_is_as_wide_as_the_channels_that_are_turned() -> None:
    call = first(TurnsAPart, width=48, heads=2, qk_rope_head_dim=4)
    assert call.arguments["freqs_cis"].shape[-1] == 2


class OfPictures(nn.Module):
    """Text attends to the latents of pictures.

    pictures: (batch, pictures, latents, width), marks: bool (batch, text), True where a picture stands in the text
    """

    def __init__(self, dim: int, heads: int, width: int = 10) -> None:
        super().__init__()
        self.heads, self.q, self.kv = heads, nn.Linear(dim, dim), nn.Linear(width, 2 * dim)

    def forward(self, x: Tensor, pictures: Tensor, marks: Tensor) -> Tensor:
        pictures = pictures.flatten(1, 2)
        q, (k, v) = self.q(x), self.kv(pictures).chunk(2, -1)
        q, k, v = (split(each, self.heads) for each in (q, k, v))
        return joined(attention(q, k, v)) * marks.cumsum(-1)[..., None].clamp(max=1)


def test_booleans_of_each_token_and_pictures_of_several_latents_are_as_documented() -> None:
    call = first(OfPictures)
    assert axes(call) == [("x", 0, (1,), None), ("context", 0, (1, 2), None)]
    assert call.arguments["marks"].dtype == torch.bool
    assert call.arguments["marks"].shape == call.arguments["x"].shape[:2]


class FromADiagonalOn(Packed):
    def forward(self, x: Tensor, mask: int) -> Tensor:
        q, k, v = self.qkv(x).unflatten(-1, (3, self.heads, -1)).permute(2, 0, 3, 1, 4)
        hidden = torch.triu(torch.ones(x.shape[1], x.shape[1]), diagonal=mask) == 1
        return joined((q @ k.mT / q.shape[-1] ** 0.5).masked_fill(hidden, -1e9).softmax(-1) @ v)


def test_a_mask_that_is_the_number_of_a_diagonal_begins_behind_the_token() -> None:
    assert first(FromADiagonalOn).arguments["mask"] == 1


class OfIdsByName(nn.Module):
    """What was asked, and whether it was answered rightly: 0 or 1."""

    def __init__(self) -> None:
        super().__init__()
        self.asked, self.answered = nn.Embedding(20, 8), nn.Embedding(40, 8)

    def forward(self, batch: dict[str, Tensor]) -> Tensor:
        asked = batch["asked"]
        keys = self.answered(asked + 20 * batch["answers"])
        return joined(attention(split(self.asked(asked)), split(keys), split(keys)))


def test_what_is_read_from_a_dict_by_what_embeds_is_ids() -> None:
    call = first(OfIdsByName)
    assert axes(call) == [("ids", 0, (1,), None), ("ids", 0, (1,), None)]
    assert int(call.arguments["batch.answers"].max()) <= 1


class HidesZeros(nn.Module):
    """Queries of no token; what marks padding is named by nothing but what is done with it."""

    def __init__(self, width: int = 12, hops: int = 3) -> None:
        super().__init__()
        self.inner, self.ask, self.hops = nn.Linear(width, 8), nn.Linear(8, hops, bias=False), hops

    def forward(self, x: Tensor, x_origin: Tensor) -> Tensor:
        x_origin = x_origin.expand(self.hops, -1, -1)
        x_origin = x_origin.transpose(0, 1).contiguous()
        scores = self.ask(self.inner(x).tanh()).mT - 1e9 * (x_origin == 0).float()
        return scores.softmax(-1) @ x


def test_what_is_compared_with_0_alone_is_a_mask_of_padding() -> None:
    report = check(HidesZeros)
    assert report.verdict in RIGHT
    assert any("x_origin hides exactly" in each.text for each in report.steps)


class WithTwoMasksOfPadding(nn.Module):
    """One mask hides keys, and of another one tokens are set to zero; both are True for padding."""

    def __init__(self, width: int = 12) -> None:
        super().__init__()
        self.qkv, self.near = nn.Linear(width, 3 * width), nn.Conv1d(width, width, 9, padding=4)

    def forward(self, x: Tensor, mask: Tensor | None = None, attn_mask: Tensor | None = None) -> Tensor:
        q, k, v = self.qkv(x).chunk(3, -1)
        scores = q @ k.mT / q.shape[-1] ** 0.5
        read = scores.masked_fill(attn_mask.repeat(1, 1, 1), -torch.inf).softmax(-1) @ v
        read = read.masked_fill(mask.unsqueeze(-1), 0)
        return self.near(read.mT).mT.masked_fill(mask.unsqueeze(-1), 0)


class HiddenByNone(WithTwoMasksOfPadding):
    def forward(self, x: Tensor, mask: Tensor | None = None, attn_mask: Tensor | None = None) -> Tensor:
        assert attn_mask is not None
        return super().forward(x, mask, torch.zeros_like(attn_mask))


def test_a_mask_may_set_outputs_to_zero_beside_the_one_that_hides_keys() -> None:
    report = check(WithTwoMasksOfPadding)
    assert report.verdict in RIGHT
    assert any("attn_mask hides exactly" in each.text for each in report.steps)
    assert any("mask sets what is returned of a token to zero" in each for each in report.notes)
    assert check(HiddenByNone).verdict == "wrong"


class ByDistances(nn.Module):
    """Vectors of the distances are handed over by another name, and a query is multiplied by each."""

    def __init__(self, width: int = 12, heads: int = 3) -> None:
        super().__init__()
        self.heads, self.qkv, self.of_places = heads, nn.Linear(width, 3 * width), nn.Linear(width, width, bias=False)

    def forward(self, x: Tensor, pos_embs: Tensor) -> Tensor:
        q, k, v = map(self.parted, self.qkv(x).chunk(3, -1))
        logits = q @ self.parted(self.of_places(pos_embs)).mT
        tokens = x.shape[1]
        places = torch.arange(tokens)
        distances = tokens - 1 - (places[:, None] - places)
        added = logits.gather(-1, distances.expand(*logits.shape[:3], tokens))
        return ((q @ k.mT + added) / q.shape[-1] ** 0.5).softmax(-1).matmul(v).transpose(1, 2).flatten(2)

    def parted(self, one: Tensor) -> Tensor:
        return one.unflatten(-1, (self.heads, -1)).transpose(1, 2)


def test_vectors_of_distances_may_have_another_name() -> None:
    assert first(ByDistances).arguments["pos_embs"].shape == (1, 9, 12)


def turn_halfway(x: Tensor) -> Tensor:
    left, right = x.unflatten(-1, (-1, 2)).unbind(-1)
    return torch.stack((-right, left), -1).flatten(-2)


def rotate_by(table: Tensor, x: Tensor) -> Tensor:
    return x * table[0] + rotate_pairs(x) * table[1]


def rotate_pairs(x: Tensor) -> Tensor:
    return turn_halfway(x)


class OfATableForTheRotation(nn.Module):
    """Its table has a name that says nothing."""

    def __init__(self, d_model: int, num_heads: int) -> None:
        super().__init__()
        self.num_heads, self.qkv = num_heads, nn.Linear(d_model, 3 * d_model)

    def forward(self, x: Tensor, encoding: Tensor) -> Tensor:
        q, k, v = (each.unflatten(-1, (self.num_heads, -1)).transpose(1, 2) for each in self.qkv(x).chunk(3, -1))
        return joined(attention(rotate_by(encoding, q), rotate_by(encoding, k), v))


def test_what_is_handed_to_what_rotates_is_a_table_of_rotary_positions() -> None:
    call = first(OfATableForTheRotation)
    assert [tuple(each.shape)[:2] for each in call.arguments["encoding"]] == [(1, 5), (1, 5)]
    assert check(OfATableForTheRotation).verdict == "different by design"


def with_relative_positions(q: Tensor, k: Tensor, v: Tensor, rel_pos: Tensor) -> Tensor:
    _, _, _, width = rel_pos.size()
    scores = q @ k.mT + torch.einsum("bqd,bqkd->bqk", q, rel_pos)
    return (scores / width**0.5).softmax(-1) @ v


def with_relative_positions_over_queries(q: Tensor, k: Tensor, v: Tensor, rel_pos: Tensor) -> Tensor:
    _, _, _, width = rel_pos.size()
    scores = q @ k.mT + torch.einsum("bqd,bqkd->bqk", q, rel_pos)
    return (scores / width**0.5).softmax(1) @ v


def test_four_axes_that_a_line_unpacks_are_of_queries_and_keys() -> None:
    given = first(with_relative_positions).arguments
    assert given["rel_pos"].shape == (*given["q"].shape[:2], *given["k"].shape[1:])
    assert check(with_relative_positions).verdict in ("right", "different by design")
    assert check(with_relative_positions_over_queries).verdict == "wrong"


class AskedByOneVector(nn.Module):
    """The axis of the one query is added where it meets the keys."""

    axis = -1

    def __init__(self, temperature: float) -> None:
        super().__init__()
        self.temperature = temperature

    def forward(self, q: Tensor, k: Tensor, v: Tensor, pad_mask: Tensor | None = None) -> Tensor:
        scores = torch.matmul(q.unsqueeze(1), k.transpose(1, 2)) / self.temperature
        if pad_mask is not None:
            scores = scores.masked_fill(pad_mask.unsqueeze(1), -1e3)
        return torch.matmul(scores.softmax(self.axis), v)


class NormalizedOverTheQuery(AskedByOneVector):
    axis = 1


def test_a_query_that_gets_its_axis_in_the_code_is_one_vector_of_each_sample() -> None:
    call = first(AskedByOneVector)
    assert (call.arguments["q"].ndim, call.arguments["k"].ndim) == (2, 3)
    assert check(AskedByOneVector).verdict in RIGHT
    assert check(NormalizedOverTheQuery).verdict == "wrong"


def divided_by_a_width_of_its_own(q: Tensor, k: Tensor, v: Tensor, dk: int = 128) -> Tensor:
    return torch.bmm((torch.bmm(q, k.transpose(1, 2)) / dk**0.5).softmax(-1), v)


def divided_by_the_width_itself(q: Tensor, k: Tensor, v: Tensor, dk: int = 128) -> Tensor:
    return torch.bmm((torch.bmm(q, k.transpose(1, 2)) / dk**0.5 / dk**0.5).softmax(-1), v)


def test_a_default_of_the_width_is_that_of_its_author_s_heads() -> None:
    assert check(divided_by_a_width_of_its_own).verdict in (*RIGHT, "right in another layout or convention")
    assert check(divided_by_the_width_itself).verdict == "wrong"


class SumOfFeaturesAndState(nn.Module):
    """Additive attention to the parts of a picture, of which what stands beside them asks."""

    axis = 1

    def __init__(self, dim_features: int, dim_state: int, hidden: int) -> None:
        super().__init__()
        self.of_features, self.of_state = nn.Linear(dim_features, hidden), nn.Linear(dim_state, hidden)
        self.score = nn.Linear(hidden, 1)

    def forward(self, image_features: Tensor, h1: Tensor) -> Tensor:
        state = self.of_state(h1).unsqueeze(1)
        made = self.of_features(image_features) + state.repeat(1, image_features.size(1), 1)
        weights = self.score(made.tanh()).softmax(self.axis)
        return (weights * image_features).sum(1)


class OfOneWeight(SumOfFeaturesAndState):
    axis = 2


def test_what_is_seen_beside_each_feature_asks() -> None:
    args: dict[str, Any] = dict.fromkeys(("dim_features", "dim_state", "hidden"), 32)
    call = first(SumOfFeaturesAndState, **args)
    assert (call.arguments["image_features"].ndim, call.arguments["h1"].ndim) == (3, 2)
    assert check(SumOfFeaturesAndState, args=args).verdict in RIGHT
    assert check(OfOneWeight, args=args).verdict == "wrong"
