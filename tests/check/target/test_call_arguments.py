"""What a call takes beside its sequences is given in the form that the code reads."""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Any

import pytest
import torch
from target_calls import Packed, attention, axes, first
from torch import Tensor, nn

from property_cases import joined
from regard.check import check
from regard.check.properties.analyze import analyze
from regard.check.sandbox.torch_settings import UserSettings
from regard.check.target import NotCallable, invocations
from regard.check.target.factories import from_factory
from regard.check.target.feed_forward_arguments import feed_forward_roles

pytestmark = pytest.mark.more  # seconds a test: it is run by make test-more


def rotated(x: Tensor, cos: Tensor, sin: Tensor) -> Tensor:
    one, two = x.chunk(2, -1)
    return x * cos + torch.cat((-two, one), -1) * sin


class Rotary(Packed):
    """The tables are handed over as a pair, (1, tokens, width of a head)."""

    def __init__(self, width: int, heads: int) -> None:
        super().__init__(width, heads)

    def forward(self, x: Tensor, position_embeddings: Any = None, past_key_value: Any = None) -> Tensor:
        q, k, v = self.qkv(x).unflatten(-1, (3, self.heads, -1)).permute(2, 0, 3, 1, 4)
        cos, sin = position_embeddings
        q, k = (rotated(each, cos.unsqueeze(1), sin.unsqueeze(1)) for each in (q, k))
        return attention(q, k, v).transpose(1, 2).flatten(2)


def rotated_in_pairs(x: Tensor, cos: Tensor, sin: Tensor) -> Tensor:
    one, two = x[..., 0::2], x[..., 1::2]
    return x * cos + torch.stack((-two, one), -1).flatten(-2) * sin


class RotaryInPairs(Packed):
    """Turns channels 0 and 1, 2 and 3, ..., in a function of its own: its tables repeat each angle beside itself."""

    def forward(self, x: Tensor, position_embeddings: tuple[Tensor, Tensor]) -> Tensor:
        q, k, v = self.qkv(x).unflatten(-1, (3, self.heads, -1)).permute(2, 0, 3, 1, 4)
        cos, sin = position_embeddings
        q, k = (rotated_in_pairs(each, cos.unsqueeze(1), sin.unsqueeze(1)) for each in (q, k))
        return attention(q, k, v).transpose(1, 2).flatten(2)


class PartlyRotary(Packed):
    """A quarter of each head is rotated."""

    def __init__(self, width: int, heads: int) -> None:
        super().__init__(width, heads)
        self.rotary_ndims = width // heads // 4

    def forward(self, x: Tensor, position_embeddings: tuple[Tensor, Tensor]) -> Tensor:
        q, k, v = self.qkv(x).unflatten(-1, (3, self.heads, -1)).permute(2, 0, 3, 1, 4)
        cos, sin = (each.unsqueeze(1) for each in position_embeddings)
        q, k = (
            torch.cat((rotated(each[..., : self.rotary_ndims], cos, sin), each[..., self.rotary_ndims :]), -1)
            for each in (q, k)
        )
        return attention(q, k, v).transpose(1, 2).flatten(2)


class HalfRotary(PartlyRotary):
    """As many channels as a table has that holds each angle of a whole head once."""

    def __init__(self, width: int, heads: int) -> None:
        super().__init__(width, heads)
        self.rotary_ndims = width // heads // 2


class ComplexRotary(Packed):
    """Llama's reference: complex numbers, one for each pair of channels."""

    def forward(self, x: Tensor, start_pos: int, freqs_cis: Tensor, mask: Tensor | None) -> Tensor:
        q, k, v = self.qkv(x).unflatten(-1, (3, self.heads, -1)).permute(2, 0, 1, 3, 4)
        turn = freqs_cis.view(1, x.shape[1], 1, -1)
        q, k = (torch.view_as_real(torch.view_as_complex(e.float().unflatten(-1, (-1, 2))) * turn) for e in (q, k))
        q, k, v = (each.flatten(3).transpose(1, 2) if each.ndim == 5 else each.transpose(1, 2) for each in (q, k, v))
        return attention(q, k, v).transpose(1, 2).flatten(2)


class BlockedMask(Packed):
    """Its mask has to be given, and True is blocked."""

    def forward(self, x: Tensor, mask: Tensor) -> Tensor:
        q, k, v = self.qkv(x).unflatten(-1, (3, self.heads, -1)).permute(2, 0, 3, 1, 4)
        return ((q @ k.mT).masked_fill(mask.unsqueeze(1), -1e9).softmax(-1) @ v).transpose(1, 2).flatten(2)


class Model(nn.Module):
    """Of token ids."""

    def __init__(self, vocab_size: int, n_embd: int, block_size: int) -> None:
        super().__init__()
        self.tokens, self.places = nn.Embedding(vocab_size, n_embd), nn.Embedding(block_size, n_embd)

    def forward(self, idx: Tensor, targets: Tensor | None = None) -> Any:
        x = self.tokens(idx) + self.places(torch.arange(idx.shape[1]))
        return attention(x, x, x), None


def test_rotary_tables_are_given_in_the_shape_that_runs() -> None:
    cos, _ = first(Rotary).arguments["position_embeddings"]
    assert cos.shape[-2:] == (5, 4)
    assert first(ComplexRotary).arguments["freqs_cis"].is_complex()


def test_rotary_tables_repeat_angles_for_the_channels_that_are_turned_together() -> None:
    for kind, places in ((Rotary, (0, 2)), (HalfRotary, (0, 2)), (RotaryInPairs, (0, 1))):
        for invocation in invocations(kind, args={}):
            cos, _ = invocation.arguments["position_embeddings"]
            assert torch.equal(cos[..., places[0]], cos[..., cos.shape[-1] // 2 if places[1] == 2 else 1]), kind


@dataclass
class Returned:
    output: Tensor
    cache: tuple[Tensor, Tensor]
    length: int


class ReturnsAnObject(Packed):
    def forward(self, x: Tensor) -> Returned:
        q, k, v = self.qkv(x).unflatten(-1, (3, self.heads, -1)).permute(2, 0, 3, 1, 4)
        return Returned(attention(q, k, v).transpose(1, 2).flatten(2), (k, v), x.shape[1])


def test_an_object_with_fields_is_returned_as_its_tensors() -> None:
    call = first(ReturnsAnObject)
    output, *cached = call.outputs(call.run())
    assert (output.shape, len(cached)) == (call.arguments["x"].shape, 2)


def of_cosines_and_sines(x: Tensor, table: Tensor) -> Tensor:
    """Of neighbours; a table of as many numbers may have other axes, and is viewed."""
    cos, sin = table[: x.shape[2]].view(1, 1, x.shape[2], -1, 2).unbind(-1)
    one, other = x.unflatten(-1, (-1, 2)).unbind(-1)
    return torch.stack((one * cos - other * sin, other * cos + one * sin), -1).flatten(-2)


class StackedRotary(Packed):
    def forward(self, x: Tensor, freqs_cis: Tensor) -> Tensor:
        q, k, v = self.qkv(x).unflatten(-1, (3, self.heads, -1)).permute(2, 0, 3, 1, 4)
        q, k = (of_cosines_and_sines(each, freqs_cis) for each in (q, k))
        return attention(q, k, v).transpose(1, 2).flatten(2)


def test_cosines_and_sines_may_stand_side_by_side() -> None:
    table = first(StackedRotary).arguments["freqs_cis"]
    assert table.shape[-1] == 2
    assert torch.allclose(table.square().sum(-1), torch.ones(table.shape[:-1], dtype=table.dtype))


def test_an_odd_number_of_channels_is_never_rotated() -> None:
    for invocation in invocations(PartlyRotary, args={}):
        assert invocation.target.rotary_ndims % 2 == 0
        assert invocation.arguments["position_embeddings"][0].shape[-1] == invocation.target.rotary_ndims


def test_a_constructor_that_refuses_dropout_is_told_none() -> None:
    class WithoutDropout(Packed):
        def __init__(self, config: Any) -> None:
            super().__init__(config.hidden_size, config.num_heads)
            if config.attention_dropout > 0:
                raise ValueError("no dropout")

        def forward(self, x: Tensor) -> Tensor:
            q, k, v = self.qkv(x).unflatten(-1, (3, self.heads, -1)).permute(2, 0, 3, 1, 4)
            return attention(q, k, v).transpose(1, 2).flatten(2)

    assert first(WithoutDropout).sizes["heads"] == 3


def test_a_layer_that_computes_with_its_number_is_told_one() -> None:
    class Numbered(Packed):
        def __init__(self, width: int, heads: int, layer_idx: int | None = None) -> None:
            super().__init__(width, heads)
            self.share = 0.8 - 0.6 * 2.0**-layer_idx  # type: ignore[operator]

        def forward(self, x: Tensor) -> Tensor:
            q, k, v = self.qkv(x).unflatten(-1, (3, self.heads, -1)).permute(2, 0, 3, 1, 4)
            return attention(q, k, v * self.share).transpose(1, 2).flatten(2)

    assert "layer_idx=0" in first(Numbered).assumptions


def test_a_required_mask_is_open_in_the_form_that_the_code_reads() -> None:
    invocation = first(BlockedMask)
    assert invocation.masks == ["mask"]
    assert not invocation.arguments["mask"].any()


class CaptionedFilm(nn.Module):
    """Tokens of a film see the film, words see it and the words before; padding is hidden in the same product."""

    def __init__(self, d_model: int, heads: int, film: int, words: int) -> None:
        super().__init__()
        self.heads, self.film, self.words = heads, film, words
        self.q, self.k, self.v, self.out = (nn.Linear(d_model, d_model) for _ in range(4))

    def forward(self, x: Tensor, attention_mask: Tensor) -> Tensor:
        seen = attention_mask.new_ones(self.film + self.words, self.film + self.words).tril()
        seen[:, : self.film] = 1
        hidden = (1 - (seen * attention_mask[:, None])[:, None]) * -10000.0
        q, k, v = (layer(x).unflatten(-1, (self.heads, -1)).transpose(1, 2) for layer in (self.q, self.k, self.v))
        weights = (q @ k.mT / q.shape[-1] ** 0.5 + hidden).softmax(-1)
        return self.out((weights @ v).transpose(1, 2).flatten(2))


def test_a_mask_that_is_multiplied_by_the_codes_own_is_none_that_is_added() -> None:
    args = {"d_model": 32, "heads": 4, "film": 4, "words": 5}
    call = first(CaptionedFilm, **args)
    assert bool((call.arguments["attention_mask"] == 1).all())
    analysis = analyze(call, masks=True)
    assert not analysis.violations
    assert any("hides exactly" in each.message for each in analysis.findings)


def test_token_ids_are_within_the_table() -> None:
    invocation = first(Model)
    assert axes(invocation) == [("ids", 0, (1,), None)]
    assert "targets" not in invocation.arguments


def test_what_the_user_hands_over_is_used_as_it_is() -> None:
    handed_over = torch.randn(3, 6, 12)
    invocation = first(Packed, {"x": handed_over}, width=12, heads=3)
    assert torch.equal(invocation.arguments["x"], handed_over.double())
    assert axes(invocation) == [("x", 0, (1,), None)]


def test_a_factory_gives_the_module_and_its_inputs() -> None:
    def make():
        return Packed(10, 2), {"x": torch.randn(2, 4, 10)}

    assert first(make).arguments["x"].shape == (2, 4, 10)


def causal_by_a_flag(x, causal_mask=False):
    scores = x @ x.mT
    later = torch.ones_like(scores).triu(1) == 1
    return (scores.masked_fill(later, -torch.inf) if causal_mask else scores).softmax(-1) @ x


def causal_by_a_mask(x, causal_mask=None):
    return (x @ x.mT if causal_mask is None else x @ x.mT + causal_mask).softmax(-1) @ x


def test_an_argument_that_is_a_mask_by_its_name_and_a_flag_by_its_default_is_a_flag() -> None:
    call = first(causal_by_a_flag)
    assert (call.causal_flags, call.masks) == (["causal_mask"], [])
    call = first(causal_by_a_mask)
    assert (call.causal_flags, call.masks) == ([], ["causal_mask"])


def test_a_flag_is_told_by_its_name_to_hide_later_keys():
    def attention(q, k, v, autoregressive_mask=False):
        scores = q @ k.mT / q.shape[-1] ** 0.5
        return (scores + torch.full_like(scores, -torch.inf).triu(1) if autoregressive_mask else scores).softmax(-1) @ v

    assert first(attention).causal_flags == ["autoregressive_mask"]


def hides_padding(q: Tensor, k: Tensor, v: Tensor, hidden: Tensor) -> Tensor:
    return (q @ k.mT / q.shape[-1] ** 0.5).masked_fill(hidden, -1e4).softmax(-1) @ v


def of_ids_of_keys(q: Tensor, k: Tensor, v: Tensor, token_ids: Tensor, pad: int = 0) -> Tensor:
    return hides_padding(q, k, v, (token_ids == pad)[:, None, None, :])


def of_ids_beside_x(x: Tensor, input_ids: Tensor) -> Tensor:
    return hides_padding(x, x, x, input_ids.eq(0)[:, None, :])


def of_ids_of_queries(q: Tensor, k: Tensor, v: Tensor, token_ids: Tensor, pad: int = 0) -> Tensor:
    return hides_padding(q, k, v, (token_ids == pad)[:, None, :, None])


@pytest.mark.parametrize(
    ("function", "violated"),
    [(of_ids_of_keys, []), (of_ids_beside_x, []), (of_ids_of_queries, ["mask-argument"])],
)
def test_ids_beside_vectors_that_are_compared_with_one_id_are_a_mask(function: Any, violated: list[str]) -> None:
    analysis = analyze(first(function), masks=True)
    assert ([each.property for each in analysis.violations], analysis.missing) == (violated, [])
    assert violated or "mask-form" in {each.property for each in analysis.findings}


# Sizes. ---------------------------------------------------------------------------------------------------------------


def by_the_root_of_a_width_that_is_told(q: Tensor, k: Tensor, v: Tensor, d_model: int) -> Tensor:
    return (q @ k.mT / math.sqrt(d_model)).softmax(-1) @ v


def of_matrices_and_their_width(x: Tensor, W_q: Tensor, W_k: Tensor, W_v: Tensor, d_model: int) -> Tensor:
    return by_the_root_of_a_width_that_is_told(x @ W_q, x @ W_k, x @ W_v, d_model)


def of_matrices_and_the_width_of_a_head(x: Tensor, W_q: Tensor, W_k: Tensor, W_v: Tensor, d_k: int) -> Tensor:
    return by_the_root_of_a_width_that_is_told(x @ W_q, x @ W_k, x @ W_v, d_k)


def heads_of_matrices(x: Tensor, W_q: Tensor, W_k: Tensor, W_v: Tensor, heads: int, divisor: int) -> Tensor:
    q, k, v = ((x @ weight).unflatten(-1, (heads, -1)).transpose(1, 2) for weight in (W_q, W_k, W_v))
    return by_the_root_of_a_width_that_is_told(q, k, v, divisor).transpose(1, 2).flatten(2)


def of_matrices_and_heads(
    x: Tensor, W_q: Tensor, W_k: Tensor, W_v: Tensor, d_model: int, num_heads: int, d_k: int
) -> Tensor:
    assert x.shape[-1] == d_model
    return heads_of_matrices(x, W_q, W_k, W_v, num_heads, d_k)


def by_the_width_of_all_heads(x: Tensor, W_q: Tensor, W_k: Tensor, W_v: Tensor, d_model: int, num_heads: int) -> Tensor:
    return heads_of_matrices(x, W_q, W_k, W_v, num_heads, d_model)


@pytest.mark.parametrize(
    ("function", "violated"),
    [
        (by_the_root_of_a_width_that_is_told, []),
        (of_matrices_and_their_width, []),
        (of_matrices_and_the_width_of_a_head, []),
        (of_matrices_and_heads, []),
        (by_the_width_of_all_heads, ["scale"]),
    ],
)
def test_the_width_that_a_function_is_told_is_the_one_that_it_means(function: Any, violated: list[str]) -> None:
    assert [each.property for each in analyze(first(function)).violations] == violated


class Sharp(Packed):
    """Without a scale, and so sharp that many a key has next to no weight."""

    def forward(self, x: Tensor, mask: Tensor) -> Tensor:
        q, k, v = self.qkv(x).unflatten(-1, (3, self.heads, -1)).permute(2, 0, 3, 1, 4)
        return ((q @ k.mT * self.sharpness + mask).softmax(-1) @ v).transpose(1, 2).flatten(2)


@pytest.mark.parametrize("sharpness", [1.0, 30.0, 100.0, 300.0])
def test_a_mask_that_is_added_is_told_from_one_that_allows_also_where_weights_are_nearly_zero(sharpness: float) -> None:
    kind = type("Sharp", (Sharp,), {"sharpness": sharpness})
    assert first(kind).arguments["mask"].tolist() == [[0.0] * 5] * 5


def turned_by_positions(q: Tensor, k: Tensor, v: Tensor, positions: Tensor) -> Tensor:
    """q, k, v: [tokens, heads, width]; positions: [tokens]."""
    angle = positions.to(q.dtype)[:, None, None] * torch.tensor([1.0, 0.1], dtype=q.dtype).repeat(q.shape[-1] // 4)
    q, k = (rotated(each, angle.repeat(1, 1, 2).cos(), angle.repeat(1, 1, 2).sin()) for each in (q, k))
    scores = torch.einsum("qhd,khd->hqk", q, k) / q.shape[-1] ** 0.5
    later = positions[None, None, :] > positions[None, :, None]
    return torch.einsum("hqk,khd->qhd", scores.masked_fill(later, -torch.inf).softmax(-1), v)


def test_positions_beside_queries_and_keys_may_be_a_vector() -> None:
    call = first(turned_by_positions)
    assert call.arguments["positions"].shape == (call.arguments["q"].shape[0],)
    assert analyze(call).violations == []


class WithPlaces(nn.Module):
    """As DETR's decoder: positions of queries and keys are added inside, and the code goes on without those alone."""

    def __init__(self, dim: int) -> None:
        super().__init__()
        self.q, self.k, self.v, self.place = (nn.Linear(dim, dim) for _ in range(4))

    def forward(
        self, x: Tensor, memory: Tensor, query_pos: Tensor, object_queries: Tensor | None = None, mask: Any = None
    ) -> Tensor:
        return attention(self.q(x) + self.place(query_pos), self.k(memory) + self.place(object_queries), self.v(memory))


def test_positions_of_queries_and_keys_are_added_to_as_many_tokens() -> None:
    call = first(WithPlaces)
    assert [each.role for each in call.streams] == ["x", "context"]
    assert call.arguments["query_pos"].shape == call.arguments["x"].shape
    assert call.arguments["object_queries"].shape == call.arguments["memory"].shape


def of_two_tables(q: Tensor, k: Tensor, v: Tensor, rope_emb: Any, rope_emb_k: Any) -> Tensor:
    return attention(rotated(q, *rope_emb), rotated(k, *rope_emb_k), v)


def test_the_table_of_the_keys_has_as_many_positions_as_they() -> None:
    arguments = first(of_two_tables).arguments
    for name, tokens in (("rope_emb", "q"), ("rope_emb_k", "k")):
        assert arguments[name][0].shape[-2] == arguments[tokens].shape[-2]
    assert arguments["q"].shape != arguments["k"].shape


class RotaryOfAGrid(Rotary):
    """One half of the channels is turned by the row, and the other by the column, each in halves of its own."""

    def forward(self, x: Tensor, position_embeddings: Any, position_ids: Tensor) -> Tensor:
        assert position_ids.shape[-1] == 2
        q, k, v = self.qkv(x).unflatten(-1, (3, self.heads, -1)).permute(2, 0, 3, 1, 4)
        tables = [each.unsqueeze(1).chunk(2, -1) for each in position_embeddings]
        q, k = (
            torch.cat([rotated(*each) for each in zip(one.chunk(2, -1), *tables, strict=True)], -1) for one in (q, k)
        )
        return attention(q, k, v).transpose(1, 2).flatten(2)


def test_tables_may_be_of_rows_and_of_columns() -> None:
    analysis = analyze(first(RotaryOfAGrid))
    assert (analysis.designs[-1].property, analysis.violations) == ("rotary", [])


def reads_its_mask(x: Tensor, attention_mask: Tensor | None = None) -> Tensor:
    hidden = attention_mask[:, None] == 0 if attention_mask.dim() == 2 else attention_mask == 0
    return ((x @ x.mT / x.shape[-1] ** 0.5).masked_fill(hidden, -torch.inf)).softmax(-1) @ x


def test_a_mask_that_is_read_without_a_question_is_given() -> None:
    assert first(reads_its_mask).arguments["attention_mask"] is not None


class Masked(Packed):
    def forward(self, x: Tensor, mask: Tensor | None = None) -> Tensor:
        q, k, v = self.qkv(x).unflatten(-1, (3, self.heads, -1)).permute(2, 0, 3, 1, 4)
        v = v if mask is None else v * mask
        return attention(q, k, v).transpose(1, 2).flatten(2)


class HandsAllUp(Masked):
    def forward(self, *args: Any, context: Tensor | None = None, **kwargs: Any) -> Tensor:
        assert context is None
        return super().forward(*args, **kwargs)


def test_a_call_that_hands_all_that_it_is_given_to_the_class_above_has_the_arguments_of_that() -> None:
    call = first(HandsAllUp)
    assert (call.arguments.keys(), call.masks) == ({"x"}, ["mask"])


def made_of(width: int, heads: int = 2) -> Packed:
    return Packed(width, heads)


def made_of_a_config(config: Any) -> Packed:
    return Packed(config.width, config.heads)


@pytest.mark.parametrize(("factory", "args"), [(made_of, {"width": 8}), (made_of_a_config, {"width": 8, "heads": 2})])
def test_a_function_that_makes_a_module_of_its_arguments_is_a_factory(factory: Any, args: dict[str, int]) -> None:
    call = first(factory, **args)
    assert type(call.target) is Packed
    assert call.arguments["x"].shape[-1] == 8


def of_four_sizes(vocab: int, N: int = 6, d_model: int = 512, h: int = 8) -> nn.Module:
    return nn.ModuleList(Packed(d_model, h) for _ in range(N))


def of_another_width(vocab: int, d_model: int = 512) -> nn.Module:
    assert d_model % 64 == 0
    return Packed(d_model, 64)


def test_a_factory_is_told_small_sizes_where_it_takes_them() -> None:
    def sizes(factory: Any, **args: int) -> Any:
        return from_factory(factory, args, UserSettings()).sizes

    assert sizes(of_four_sizes, vocab=9) == {"N": 2, "d_model": 24, "h": 3}
    assert sizes(of_four_sizes, vocab=9, d_model=512) == {"N": 2}
    assert sizes(of_another_width, vocab=9) == {}
    assert sizes(attention, d_model=512) == {}


def test_a_factory_that_raises_is_told_so() -> None:
    with pytest.raises(NotCallable, match="made_of_a_config raises AttributeError"):
        first(made_of_a_config, width=8)


class ReadsGlobalTokensToo(nn.Module):
    """Tokens read themselves and as many global ones; a mask that is added hides some of the first alone."""

    def __init__(self, embed_dim: int) -> None:
        super().__init__()
        self.q, self.k, self.v = (nn.Linear(embed_dim, embed_dim) for _ in range(3))

    def forward(self, x: Tensor, context: Tensor, attention_mask: Tensor) -> Tensor:
        assert x.shape == context.shape
        keys, added = torch.cat([context, x], 1), nn.functional.pad(attention_mask, (context.shape[1], 0))
        scores = self.q(x) @ self.k(keys).mT / x.shape[-1] ** 0.5 + added[:, None]
        return scores.softmax(-1) @ self.v(keys)


def test_a_mask_of_one_of_two_sequences_is_open_as_a_number_that_is_added() -> None:
    mask = first(ReadsGlobalTokensToo).arguments["attention_mask"]
    assert mask.is_floating_point()
    assert not mask.any()


def test_the_matrices_of_a_feed_forward_network_are_known_beside_those_of_an_attention():
    def block(x, w_q, w_k, w_v, w_o, w_1, b_1, w_2, b_2):
        q, k, v = x @ w_q, x @ w_k, x @ w_v
        x = x + (q @ k.mT / q.shape[-1] ** 0.5).softmax(-1) @ v @ w_o
        return x + (x @ w_1 + b_1).relu() @ w_2 + b_2

    call = next(invocations(block, args={}))
    width = call.arguments["x"].shape[-1]
    assert [tuple(call.arguments[name].shape) for name in ("w_1", "b_1", "w_2", "b_2")] == [
        (width, 4 * width),
        (4 * width,),
        (4 * width, width),
        (width,),
    ]
    assert not call.square


def test_two_numbered_matrices_alone_may_be_those_of_additive_attention():
    assert feed_forward_roles({"query": "q", "keys": "k", "w_1": None, "w_2": None}) == {}


class WritesIntoBuffers(nn.Module):
    """Keys and values are written into what was handed over for them; another mask stands in where it is local."""

    def __init__(self, d_model: int, num_heads: int, is_local: bool = False) -> None:
        super().__init__()
        self.num_heads, self.head_dim, self.is_local = num_heads, d_model // num_heads, is_local
        self.qkv = nn.Linear(d_model, 3 * d_model)

    def forward(
        self, x: Tensor, write_indices: Tensor, kv_cache: Any, mask: Tensor, local_mask: Tensor | None = None
    ) -> Tensor:
        q, k, v = self.qkv(x).unflatten(-1, (3, self.num_heads, -1)).unbind(2)
        keys, values = kv_cache
        keys.index_copy_(1, write_indices, k)
        values.index_copy_(1, write_indices, v)
        q, k, v = (each.transpose(1, 2) for each in (q, keys, values))
        if self.is_local and local_mask is not None:
            mask = local_mask
        return ((q @ k.mT / self.head_dim**0.5 + mask).softmax(-1) @ v).transpose(1, 2).flatten(2)


def test_two_buffers_are_handed_over_where_keys_and_values_are_written_into_them() -> None:
    call = first(WritesIntoBuffers)
    assert call.arguments["write_indices"].tolist() == list(range(call.arguments["x"].shape[1]))
    analysis = analyze(call, masks=True)
    assert analysis.violations == []
    assert any("local_mask stands in the place of mask where" in each.message for each in analysis.findings)


def of_matrices(query, key, value, query_dense, key_dense, value_dense, output_dense):  # type: ignore[no-untyped-def]
    """query_dense, key_dense, value_dense: (heads, dim, head_dim); output_dense: (heads * head_dim, dim)"""
    heads = [
        attention(query @ w_q, key @ w_k, value @ w_v)
        for w_q, w_k, w_v in zip(query_dense, key_dense, value_dense, strict=True)
    ]
    return torch.cat(heads, -1) @ output_dense


def test_matrices_of_heads_and_one_of_all_are_as_documented() -> None:
    shapes = {name: each.ndim for name, each in first(of_matrices).arguments.items()}
    assert shapes == dict(zip(shapes, (3, 3, 3, 3, 3, 3, 2), strict=True))


def of_eight_heads(x: Tensor, w_q: Tensor, w_k: Tensor, w_v: Tensor, h: int = 8) -> Tensor:
    width = x.shape[-1]
    assert width % h == 0, "the width must be divisible by h"
    q, k, v = (y.reshape(*x.shape[:-1], h, width // h).transpose(-3, -2) for y in (x @ w_q, x @ w_k, x @ w_v))
    return joined(attention(q, k, v))


def of_a_hidden_layer(x: Tensor, h: int = 8) -> Tensor:
    return attention(x, x, x) * h


def test_a_number_of_heads_with_a_default_is_handed_over_where_it_divides_the_width() -> None:
    call = first(of_eight_heads)
    assert call.arguments["h"] != 8
    assert call.arguments["x"].shape[-1] % call.arguments["h"] == 0
    assert check(of_eight_heads).ok
    assert "h" not in first(of_a_hidden_layer).arguments
