"""The mask function of regard: what transformers composes is read as the mask that it means."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from transformers import masking_utils as mu

from regard import mask
from regard.attention.mask.kinds import Where
from regard.integrations.transformers import ModelMask, attention_mask

SIZES = {"batch_size": 2, "q_length": 12, "kv_length": 12}
WITH_CACHE = {"batch_size": 2, "q_length": 3, "kv_length": 10, "q_offset": 7}
ROLLED = {"batch_size": 2, "q_length": 3, "kv_length": 8, "q_offset": 17, "kv_offset": 12}
STATIC = {"batch_size": 2, "q_length": 5, "kv_length": 16}
PLACES = {"square": SIZES, "cache": WITH_CACHE, "rolled": ROLLED, "static": STATIC}
DOCUMENTS = torch.tensor([[0, 0, 0, 0, 1, 1, 1, 1, 1, 2, 2, 2], [0, 0, 0, 0, 0, 0, 0, 1, 1, 1, 1, 1]])
POSITIONS = torch.tensor([[0, 1, 2, 3, 0, 1, 2, 3, 4, 0, 1, 2], [0, 1, 2, 3, 4, 5, 6, 0, 1, 2, 3, 4]])
BLOCKS = torch.tensor([[-1, 0, 0, 0, -1, -1, 1, 1, -1, -1] + [-1] * 10, [-1] * 20])
PADDED = torch.tensor([0, 5])
FUNCTIONS = {
    "causal": mu.causal_mask_function,
    "full": mu.bidirectional_mask_function,
    "window": mu.sliding_window_causal_mask_function(4),
    "wide window": mu.sliding_window_causal_mask_function(400),
    "two-sided window": mu.sliding_window_bidirectional_mask_function(3),
    "chunks": mu.chunked_causal_mask_function(4, torch.zeros(2, dtype=torch.int64)),
    "chunks after padding": mu.chunked_causal_mask_function(4, PADDED),
    "blocks": mu.or_masks(mu.causal_mask_function, mu.blockwise_overlay(BLOCKS)),
    "bare window": mu.sliding_window_overlay(4),
    "nothing": mu.sliding_window_causal_mask_function(0),
    "strided": mu.and_masks(mu.causal_mask_function, lambda b, h, i, j: (i - j) % 3 == 0),
    "by row": mu.or_masks(mu.sliding_window_causal_mask_function(2), lambda b, h, i, j: j < b),
}
PACKED = {
    name: mu.packed_sequence_compatibility_function(function, POSITIONS, DOCUMENTS)
    for name, function in FUNCTIONS.items()
    if name not in ("blocks", "full")
}


def dense_of_transformers(function: Any, place: dict[str, int], real: Any = None, use_vmap: bool = False) -> Any:
    return mu.sdpa_mask(
        **place, mask_function=function, attention_mask=real, allow_is_causal_skip=False, use_vmap=use_vmap
    )


def assert_same(function: Any, place: dict[str, int], real: Any = None, use_vmap: bool = False) -> ModelMask:
    found = attention_mask(**place, mask_function=function, attention_mask=real, use_vmap=use_vmap)
    assert isinstance(found, mask.Mask)
    dense = found.dense(place["q_length"], place["kv_length"])
    expected = dense_of_transformers(function, place, real, use_vmap)
    assert torch.equal(dense.expand(expected.shape), expected)
    return found


@pytest.mark.parametrize("place", PLACES.values(), ids=PLACES)
@pytest.mark.parametrize("function", FUNCTIONS.values(), ids=FUNCTIONS)
def test_the_mask_is_that_of_transformers(function, place):
    assert_same(function, place)


@pytest.mark.parametrize("function", PACKED.values(), ids=PACKED)
def test_the_mask_of_packed_documents_is_that_of_transformers(function):
    assert_same(function, SIZES)


@given(
    st.sampled_from([*FUNCTIONS.values(), *PACKED.values()]),
    st.sampled_from(["left", "right", "both", "none"]),
    st.tuples(st.integers(1, 12), st.integers(1, 12)),
    st.booleans(),
)
def test_padding_on_either_side_is_that_of_transformers(function, side, lengths, short):
    lengths, at = torch.tensor(lengths)[:, None], torch.arange(12)
    real = {
        "left": at >= 12 - lengths,
        "right": at < lengths,
        "both": (at < lengths) & (at > 1),
        "none": torch.ones(2, 12, dtype=torch.bool),
    }[side]
    packed = any(function is other for other in PACKED.values())
    # The mask of a static cache may be shorter than its room.
    place = {"batch_size": 2, "q_length": 12, "kv_length": 15} if short and not packed else SIZES
    assert_same(function, place, real)


READ = {
    "causal": mask.causal(),
    "window": mask.window(4),
    "wide window": mask.causal(),
    "two-sided window": mask.window(4, 3),
    "chunks": mask.documents([0] * 4 + [1] * 4 + [2] * 4) & mask.causal(),
}


@pytest.mark.parametrize("name", READ)
def test_a_mask_stays_what_it_is(name):
    found = attention_mask(**SIZES, mask_function=FUNCTIONS[name])
    assert found.mask == READ[name]


def test_packed_documents_stay_documents():
    found = attention_mask(**SIZES, mask_function=PACKED["window"])
    assert found.mask == mask.documents(DOCUMENTS) & mask.window(4)


def test_documents_that_are_the_same_in_every_text_are_kept_once():
    documents, positions = (each[:1].expand(2, -1) for each in (DOCUMENTS, POSITIONS))
    function = mu.packed_sequence_compatibility_function(mu.causal_mask_function, positions, documents)
    assert attention_mask(**SIZES, mask_function=function).mask == mask.documents(DOCUMENTS[0]) & mask.causal()


def test_chunks_of_packed_documents_are_one_mask_of_documents():
    found = attention_mask(**SIZES, mask_function=PACKED["chunks"])
    assert repr(found).count("documents") == 1


def test_padding_on_the_right_is_a_mask_of_lengths():
    real = torch.arange(12) < torch.tensor([[12], [7]])
    found = attention_mask(**SIZES, attention_mask=real)
    assert found.mask == mask.padding([12, 7]) & mask.causal()


def test_texts_without_padding_have_no_mask_of_padding():
    found = attention_mask(**SIZES, attention_mask=torch.ones(2, 12, dtype=torch.bool))
    assert found.mask == mask.causal()


def test_one_query_that_sees_every_key_has_no_mask():
    assert attention_mask(batch_size=1, q_length=1, kv_length=9, q_offset=8).mask is None


def test_the_room_of_a_static_cache_is_not_padding():
    real = torch.ones(2, 5, dtype=torch.bool)
    assert attention_mask(**STATIC, attention_mask=real).mask == mask.causal(offset=0)


def test_a_function_that_cannot_be_read_becomes_a_where_and_the_rest_is_read():
    found = attention_mask(**SIZES, mask_function=FUNCTIONS["by row"]).mask
    assert found.left == mask.window(2)
    assert isinstance(found.right, Where)


def test_a_function_for_one_pair_is_called_for_one_pair():
    numbers = torch.tensor([[0, 3, 1], [2, 2, 0]])

    def by_pair(b, h, i, j):
        assert i.ndim == 0
        return numbers[b, j % 3] <= i

    assert_same(mu.and_masks(mu.causal_mask_function, by_pair), SIZES, use_vmap=True)


def test_a_function_that_cannot_be_read_is_called_once_for_all_layers():
    calls = []

    def strided(b, h, i, j):
        calls.append(1)
        return (i - j) % 3 == 0

    found = attention_mask(**SIZES, mask_function=strided)
    for _ in range(5):
        found.dense(12, 12)
    assert len(calls) == 1


def test_positions_that_do_not_fit_their_documents_are_not_read_as_a_window():
    odd = POSITIONS * 2  # two apart within a document: a window of 4 holds two tokens
    assert_same(mu.packed_sequence_compatibility_function(FUNCTIONS["window"], odd, DOCUMENTS), SIZES)


def test_a_long_window_has_no_tensor_of_pairs():
    found = attention_mask(1, 2**20, 2**20, mask_function=mu.sliding_window_causal_mask_function(1024))
    assert found.mask == mask.window(1024)


def test_a_mask_of_this_function_is_returned():
    made = attention_mask(**SIZES)
    assert attention_mask(**SIZES, attention_mask=made) is made
    with pytest.raises(ValueError, match=r"made its mask for 12 queries and 12 keys"):
        attention_mask(**WITH_CACHE, attention_mask=made)


def test_slices_and_an_index_are_those_of_a_dense_mask():
    made = attention_mask(**SIZES, mask_function=FUNCTIONS["chunks after padding"])
    dense = dense_of_transformers(FUNCTIONS["chunks after padding"], SIZES)
    part = made[:, :, -3:, :7]
    assert isinstance(part, ModelMask)
    assert torch.equal(part.dense(3, 7), dense[:, :, -3:, :7])
    assert torch.equal(made[:, 0, :, :], dense[:, 0])
    assert torch.equal(made[1, 0, 5], dense[1, 0, 5])
    assert torch.equal(made[..., :4].dense(12, 4), dense[..., :4])


def test_a_condition_of_torch_reads_the_mask_as_booleans():
    made = attention_mask(**SIZES)
    dense = dense_of_transformers(mu.causal_mask_function, SIZES)
    assert torch.equal(torch.where(made, 1.0, 0.0), dense.float())
    assert torch.equal(dense.logical_not() & made, torch.zeros_like(dense))


@pytest.mark.parametrize(
    "use", [lambda m: torch.zeros(12, 12) + m, lambda m: torch.cat([m, m]), lambda m: torch.exp(m)]
)
def test_a_model_that_adds_the_mask_itself_is_refused(use):
    with pytest.raises(NotImplementedError, match='attn_implementation="eager"'):
        use(attention_mask(**SIZES))


@pytest.mark.usefixtures("as_a_user_runs_it")
def test_a_mask_of_other_axes_is_refused():
    with pytest.raises(ValueError, match=r"must be \(batch, tokens\).*\(2, 12, 12\)"):
        attention_mask(**SIZES, attention_mask=torch.ones(2, 12, 12, dtype=torch.bool))
