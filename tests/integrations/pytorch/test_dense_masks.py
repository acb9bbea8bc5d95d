"""Dense masks, read as what they are."""

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from regard import mask
from regard.integrations.pytorch.dense_masks import find_band, read_masks


def band(queries, keys, nearest, farthest):
    distance = torch.arange(keys) - torch.arange(queries)[:, None]
    return (distance >= nearest) & (distance <= farthest)


@given(st.integers(1, 9), st.integers(1, 9), st.integers(-9, 9), st.integers(-9, 9))
def test_what_is_found_is_the_mask(queries, keys, nearest, farthest):
    allowed = band(queries, keys, nearest, farthest)
    found = find_band(allowed)
    assert found is None or torch.equal(found.dense(queries, keys), allowed)


@given(st.lists(st.lists(st.booleans(), min_size=4, max_size=4), min_size=1, max_size=4))
def test_no_other_mask_is_taken_for_a_band(rows):
    allowed = torch.tensor(rows)
    found = find_band(allowed)
    assert found is None or torch.equal(found.dense(*allowed.shape), allowed)


@pytest.mark.parametrize(
    ("allowed", "found"),
    [
        (band(6, 6, -6, 0), mask.causal(offset=0)),
        (band(6, 6, -2, 0), mask.window(3, offset=0)),
        (band(6, 6, -2, 1), mask.window(4, offset=1)),
        (band(4, 6, -6, 2), mask.causal(offset=2)),
        (band(6, 6, -6, -1), None),  # the first query has no key, from which its limit could be read
    ],
)
def test_causal_masks_and_windows_are_found(allowed, found):
    assert find_band(allowed) == found


def read(attn_mask=None, key_padding_mask=None, num_heads=2, extra_keys=0):
    return read_masks(
        attn_mask, key_padding_mask, num_heads=num_heads, extra_keys=extra_keys, dtype=torch.get_default_dtype()
    )


def test_numbers_of_zero_and_minus_infinity_are_a_mask_and_no_bias():
    causal = torch.nn.Transformer.generate_square_subsequent_mask(5)
    assert read(causal) == (mask.causal(offset=0), None)


def test_other_numbers_are_a_bias_and_their_infinities_a_mask_as_well():
    numbers = torch.randn(5, 5)
    assert read(numbers) == (None, numbers)
    both, bias = read(numbers.masked_fill(~band(5, 5, -5, 0), -torch.inf))
    assert both == mask.causal(offset=0)
    assert bias is not None


def test_what_blocks_nothing_is_no_mask():
    assert read(torch.zeros(5, 5), torch.zeros(2, 5).bool()) == (None, None)


def test_a_mask_that_learns_stays_a_bias():
    learned = torch.zeros(5, 5, requires_grad=True)
    assert read(learned)[1] is learned


def test_every_query_may_attend_to_the_keys_that_are_appended():
    found, bias = read(torch.ones(3, 3).bool().triu(1), extra_keys=2)
    assert bias is None
    assert found.dense(3, 5).tolist() == [
        [True, False, False, True, True],
        [True, True, False, True, True],
        [True, True, True, True, True],
    ]
