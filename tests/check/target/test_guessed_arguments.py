"""What is guessed for a constructor or a call, by names, by the code's text and by trying, is what the code means."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

import pytest
import torch
from target_calls import Packed, attention, axes, first
from torch import Tensor, nn

from property_cases import joined, split
from regard.check import check
from regard.check.target import invocations

# Constructors. --------------------------------------------------------------------------------------------------------


@dataclass
class ImageConfig:
    hidden_size: int = 768


@dataclass
class TextConfig:
    hidden_size: int = 768


@dataclass
class TextPoolerConfig:
    hidden_size: int = 768


class Text(nn.Module):
    def __init__(self, config) -> None:  # type: ignore[no-untyped-def]
        super().__init__()
        self.made_from, self.project = type(config), nn.Linear(config.hidden_size, config.hidden_size)

    def forward(self, x: Tensor) -> Tensor:
        return attention(*[self.project(x)] * 3)


def test_a_config_without_an_annotation_is_of_the_class_beside_it_whose_name_is_most_alike() -> None:
    assert first(Text).target.made_from is TextConfig


class NHeads(nn.Module):
    def __init__(self, dim: int, n: int = 2) -> None:
        super().__init__()
        self.heads, self.qkv, self.out = n, nn.Linear(dim, 3 * n * dim), nn.Linear(n * dim, dim)

    def forward(self, x: Tensor) -> Tensor:
        return self.out(joined(attention(*(split(each, self.heads) for each in self.qkv(x).chunk(3, -1)))))


def test_a_letter_that_may_count_heads_keeps_its_default() -> None:
    assert first(NHeads).target.heads == 2


@dataclass
class GroupedConfig:
    hidden_size: int = 768
    num_heads: int = 12
    num_key_value_heads: int = 12


class Grouped(nn.Module):
    def __init__(self, config: GroupedConfig) -> None:
        super().__init__()
        self.heads, self.kv_heads = config.num_heads, config.num_key_value_heads
        each = config.hidden_size // self.heads
        self.q = nn.Linear(config.hidden_size, self.heads * each)
        self.kv = nn.Linear(config.hidden_size, 2 * self.kv_heads * each)

    def forward(self, x: Tensor) -> Tensor:
        k, v = (split(each, self.kv_heads) for each in self.kv(x).chunk(2, -1))
        shared = (each.repeat_interleave(self.heads // self.kv_heads, 1) for each in (k, v))
        return joined(attention(split(self.q(x), self.heads), *shared))


def test_a_config_with_heads_of_keys_is_made_with_fewer_of_them_once_more() -> None:
    heads = [(call.target.heads, call.target.kv_heads) for call in invocations(Grouped, args={})]
    assert heads == [(3, 3), (4, 4), (4, 2)]


@dataclass
class LatentConfig(GroupedConfig):
    num_key_value_heads: int = 128
    n_group: int = 1
    topk_group: int = 1
    num_experts: int = 8
    v_head_dim: int = 128
    kv_lora_rank: int = 512

    def __post_init__(self) -> None:
        if self.num_experts % self.n_group:
            raise ValueError("experts are in equal groups")


class Latent(Grouped):
    """Keys and values of a narrow vector of each token; beside heads of keys, n_group is of experts."""

    def __init__(self, config: LatentConfig) -> None:
        super().__init__(config)
        self.groups, self.width = config.num_heads // config.num_key_value_heads, config.v_head_dim
        self.down = nn.Linear(config.hidden_size, config.kv_lora_rank)
        self.up = nn.Linear(config.kv_lora_rank, config.num_heads * (config.hidden_size // config.num_heads))
        self.v = nn.Linear(config.kv_lora_rank, config.num_heads * self.width)
        self.out = nn.Linear(config.num_heads * self.width, config.hidden_size)

    def forward(self, x: Tensor) -> Tensor:
        k, v = (split(each(self.down(x)), self.heads).repeat_interleave(self.groups, 1) for each in (self.up, self.v))
        return self.out(joined(attention(split(self.q(x), self.heads), k, v)))


def test_heads_share_no_more_keys_than_there_are_heads_and_ranks_are_small() -> None:
    made = first(Latent).target
    assert (made.groups, made.width, made.down.out_features) == (1, 4, 6)


class OfAResolution(Packed):
    """A bias for each distance of a map of tokens, which are as many as its places."""

    def __init__(self, width: int, heads: int, resolution_in: int, stride: int) -> None:
        super().__init__(width, heads)
        self.stride = stride
        places = torch.arange(resolution_in**2)
        self.register_buffer("distances", (places[:, None] - places).abs())
        self.biases = nn.Parameter(torch.zeros(resolution_in**2))

    def forward(self, x: Tensor) -> Tensor:
        q, k, v = self.qkv(x).unflatten(-1, (3, self.heads, -1)).permute(2, 0, 3, 1, 4)
        scores = q[..., :: self.stride, :] @ k.mT / q.shape[-1] ** 0.5 + self.biases[self.distances][:: self.stride]
        return (scores.softmax(-1) @ v).transpose(1, 2).flatten(2)


def test_as_many_tokens_are_tried_as_a_table_of_distances_has() -> None:
    assert first(OfAResolution).arguments["x"].shape[1] == 36


# Sequences. -----------------------------------------------------------------------------------------------------------


def of_tokens_called_ids(idx: Tensor) -> Tensor:
    return attention(idx, idx, idx)


def test_a_function_of_vectors_that_are_called_ids_is_given_tokens_without_heads() -> None:
    assert axes(first(of_tokens_called_ids)) == [("ids", 0, (1,), None)]


class Captioner(nn.Module):
    def __init__(self, vocab_size: int, d_model: int) -> None:
        super().__init__()
        self.words, self.patches = nn.Embedding(vocab_size, d_model), nn.Conv2d(3, d_model, 2, 2)

    def forward(self, images: Tensor, input_ids: Tensor) -> Tensor:
        seen = self.patches(images).flatten(2).mT
        return attention(self.words(input_ids), seen, seen)


def test_a_picture_beside_token_ids_has_rows_and_columns() -> None:
    assert axes(first(Captioner)) == [("x", 0, (2, 3), None), ("ids", 0, (1,), None)]


class TextForPicture(nn.Module):
    """Each place of a map of features reads a text, as in a UNet."""

    def __init__(self, channels: int, context_dim: int) -> None:
        super().__init__()
        self.keys, self.queries = nn.Linear(context_dim, channels), nn.Conv2d(channels, channels, 1)

    def forward(self, x: Tensor, context: Tensor) -> Tensor:
        b, c, h, w = x.shape
        keys = self.keys(context)
        return attention(self.queries(x).flatten(2).mT, keys, keys).mT.reshape(b, c, h, w)


def test_the_text_beside_a_picture_is_a_sequence() -> None:
    assert axes(first(TextForPicture)) == [("x", 0, (2, 3), None), ("context", 0, (1,), None)]


class Recommender(nn.Module):
    def __init__(self, item_num: int, d_model: int, group_num: int) -> None:
        super().__init__()
        self.groups, self.items = group_num, nn.Embedding(item_num, d_model)

    def forward(self, input_ids: Tensor) -> Tensor:
        return attention(*[self.items(input_ids)] * 3)


def test_items_are_a_vocabulary_and_groups_are_heads_of_keys() -> None:
    made = first(Recommender).target
    assert (made.items.num_embeddings, made.groups) == (11, 3)


class InWindow(nn.Module):
    """As many tokens as its window has, which is no square."""

    def __init__(self, d_model: int) -> None:
        super().__init__()
        self.window_size, self.project = (2, 4), nn.Linear(d_model, d_model)
        self.bias = nn.Parameter(torch.zeros(8, 8))

    def forward(self, x: Tensor) -> Tensor:
        x = self.project(x)
        return ((x @ x.mT / x.shape[-1] ** 0.5) + self.bias).softmax(-1) @ x


def test_a_window_of_rows_and_columns_has_their_product_of_tokens() -> None:
    assert first(InWindow).arguments["x"].shape[1] == 8


def of_one_thing(thing: Tensor) -> Tensor:
    return attention(thing, thing, thing)


def test_a_matrix_that_is_handed_over_is_a_sequence_whatever_its_name() -> None:
    assert axes(first(of_one_thing, {"thing": torch.randn(5, 8)})) == [("x", None, (0,), None)]


def of_x_or_its_heads(
    x: Tensor | None = None, q: Tensor | None = None, k: Tensor | None = None, v: Tensor | None = None
) -> Tensor:
    return attention(x, x, x) if q is None else attention(q, k, v)


def of_one_thing_or_its_heads(
    q: Tensor | None = None, k: Tensor | None = None, v: Tensor | None = None, thing: Tensor | None = None
) -> Tensor:
    return of_x_or_its_heads(thing, q, k, v)


@pytest.mark.parametrize(("function", "name"), [(of_x_or_its_heads, "x"), (of_one_thing_or_its_heads, "thing")])
def test_a_sequence_that_is_handed_over_is_the_only_one_where_none_has_to_be_given(
    function: Callable[..., Tensor], name: str
) -> None:
    call = first(function, {name: torch.randn(2, 5, 8)})
    assert [(each.argument, each.role) for each in call.streams] == [(name, "x")]
    assert list(call.arguments) == [name]


# Numbers. -------------------------------------------------------------------------------------------------------------


def weights_of_matrices(x: Tensor, W_q: Tensor, W_k: Tensor, W_v: Tensor) -> tuple[Tensor, Tensor]:
    weights = (x @ W_q @ (x @ W_k).mT / W_q.shape[-1] ** 0.5).softmax(-1)
    return weights @ (x @ W_v), weights


def test_matrices_that_are_made_leave_no_weight_zero() -> None:
    _, weights = first(weights_of_matrices).run()
    assert weights.min() > 1e-3


def of_matrices_by_head(x: Tensor, W_q: Tensor, W_k: Tensor, W_v: Tensor, W_o: Tensor) -> Tensor:
    q, k, v = (torch.einsum("btd,hde->bhte", x, weight) for weight in (W_q, W_k, W_v))
    return torch.einsum("bhte,hed->btd", attention(q, k, v), W_o)


def test_matrices_by_head_make_heads_that_are_narrower_than_the_tokens() -> None:
    given = first(of_matrices_by_head).arguments
    heads, width, each = given["W_q"].shape
    assert (given["x"].shape[-1], given["W_o"].shape) == (width, (heads, each, width))
    assert each < width


def with_axes(x: Tensor, row_dim: int, col_dim: int) -> Tensor:
    return (x @ x.transpose(row_dim, col_dim) / x.shape[col_dim] ** 0.5).softmax(col_dim) @ x


def test_the_axes_of_rows_and_columns_are_the_last_two_of_tokens_without_heads() -> None:
    assert axes(first(with_axes)) == [("x", 0, (1,), None)]


def of_a_layer(q: Tensor, k: Tensor, v: Tensor, which: int) -> Tensor:
    return [attention][which](q, k, v)


def test_a_whole_number_of_which_nothing_is_known_may_be_zero() -> None:
    assert first(of_a_layer).arguments["which"] == 0


def of_a_window(q: Tensor, k: Tensor, v: Tensor, window_size: int) -> Tensor:
    far = torch.arange(q.shape[-2])[:, None] - torch.arange(k.shape[-2]) >= window_size
    return (q @ k.mT / q.shape[-1] ** 0.5).masked_fill(far, -torch.inf).softmax(-1) @ v


def test_a_window_that_a_call_is_told_is_shorter_than_the_sequence() -> None:
    given = first(of_a_window).arguments
    assert 1 < given["window_size"] < given["q"].shape[-2]


def divided(q: Tensor, k: Tensor, v: Tensor, scale: float) -> Tensor:
    return (q @ k.mT / scale).softmax(-1) @ v


def multiplied(q: Tensor, k: Tensor, v: Tensor, scale: float) -> Tensor:
    return (q @ k.mT * scale).softmax(-1) @ v


def tempered(q: Tensor, k: Tensor, v: Tensor, temperature: float) -> Tensor:
    return (q @ k.mT / temperature).softmax(-1) @ v


@pytest.mark.parametrize(
    ("function", "name", "power"),
    [(divided, "scale", 0.5), (multiplied, "scale", -0.5), (tempered, "temperature", 0.5)],
)
def test_a_scale_that_is_handed_over_is_the_root_of_the_width_as_the_code_takes_it(
    function: Callable[..., Tensor], name: str, power: float
) -> None:
    given = first(function).arguments
    assert given[name] == given["q"].shape[-1] ** power


def of_packed_texts(q: Tensor, k: Tensor, v: Tensor, doc_ids: Tensor) -> Tensor:
    _, _, width = q.shape
    apart = doc_ids[:, None] != doc_ids
    return (q @ k.mT / width**0.5).masked_fill(apart, -torch.inf).softmax(-1) @ v


def test_the_texts_of_one_sequence_have_an_axis_of_tokens_alone() -> None:
    call = first(of_packed_texts)
    assert (call.documents, call.arguments["doc_ids"].shape) == (["doc_ids"], call.arguments["q"].shape[1:2])


def with_global_tokens(x: Tensor, is_global: Tensor) -> Tensor:
    allowed = torch.eye(x.shape[1]).bool() | is_global[:, None] | is_global[:, :, None]
    return (x @ x.mT / x.shape[-1] ** 0.5).masked_fill(~allowed, -torch.inf).softmax(-1) @ x


def test_some_tokens_of_each_sample_may_be_marked() -> None:
    assert first(with_global_tokens).arguments["is_global"].tolist() == [[True, *[False] * 4]] * 2


class Pooled(nn.Module):
    def __init__(self, hidden_size: int) -> None:
        super().__init__()
        self.score = nn.Linear(hidden_size, 1)

    def forward(self, x: Tensor, attention_mask: Tensor) -> Tensor:
        scores = self.score(x) + (1.0 - attention_mask.unsqueeze(-1).to(x.dtype)) * -1e9
        return (scores.softmax(1) * x).sum(1)


def test_a_mask_of_keys_has_no_axis_that_the_output_would_have_of_it() -> None:
    given = first(Pooled).arguments
    assert given["attention_mask"].shape == given["x"].shape[:2]


class OfTwoModalities(nn.Module):
    def __init__(self, d_model: int) -> None:
        super().__init__()
        self.q, self.k = nn.Linear(d_model, d_model), nn.Linear(d_model, d_model)

    def forward(self, in_audio: Tensor, in_words: Tensor, audio_mask: Tensor, words_mask: Tensor) -> Tensor:
        hidden = audio_mask[:, :, None] & ~words_mask[:, None, :]
        scores = self.q(in_audio) @ self.k(in_words).mT / in_audio.shape[-1] ** 0.5
        return scores.masked_fill(hidden, -torch.inf).softmax(-1) @ in_words


def test_masks_are_of_the_sequences_that_they_share_a_word_with() -> None:
    call = first(OfTwoModalities)
    assert call.masks == ["words_mask"]
    for name, mask in (("in_audio", "audio_mask"), ("in_words", "words_mask")):
        assert call.arguments[mask].shape == call.arguments[name].shape[:2]
    assert check(OfTwoModalities).verdict == "right"


# Flags. ---------------------------------------------------------------------------------------------------------------


def with_a_cache_unless_told(
    q: Tensor, k: Tensor, v: Tensor, cache: list[Tensor] | None = None, use_cache: bool = True
) -> Tensor:
    if use_cache:
        assert cache is not None
        cache.append(k)
    return attention(q, k, v)


def test_a_flag_that_is_on_is_turned_off_where_the_call_does_not_run_with_it() -> None:
    assert first(with_a_cache_unless_told).arguments["use_cache"] is False


class ThreeAlike(nn.Module):
    """One name with three numbers: nothing says that they are queries, keys and values."""

    def __init__(self, dim: int) -> None:
        super().__init__()
        self.q, self.k, self.v = (nn.Linear(dim, dim) for _ in "qkv")

    def forward(self, x_1: Tensor, x_2: Tensor, x_3: Tensor) -> list[Tensor]:
        each = [x_1, x_2, x_3]
        return [x + (self.q(x) @ self.k(x).mT / x.shape[-1] ** 0.5).softmax(-1) @ self.v(x) for x in each]


def test_three_names_that_differ_by_a_number_are_three_sequences() -> None:
    assert [each.role for each in first(ThreeAlike, dim=8).streams] == ["x", "x", "x"]
