"""What documentation says of masks is read where it is plain, and nowhere else."""

from __future__ import annotations

import pytest

from regard.check.properties.documentation import (
    groups_are_consecutive,
    index_direction,
    is_exclusive,
    is_inclusive,
    is_of_each_side,
    is_two_sided,
    keeps_positions_from_values,
    mask_meaning,
    promises_causal_attention,
    promises_causality,
    promises_parts,
    rotates_values,
    says_unused,
)

OF_EARLIER = {
    "Causal: a token's output depends on itself and earlier tokens only.": True,
    "Each position attends only to itself and to previous ones.": True,
    "If causal, a token depends on itself and earlier tokens only.": False,
    "A token depends on itself and on earlier tokens, or on all of them.": False,
}


@pytest.mark.parametrize("text", OF_EARLIER)
def test_what_a_token_depends_on_says_that_it_is_causal(text: str) -> None:
    assert promises_causal_attention(text) is OF_EARLIER[text]


MEANINGS = {
    "A boolean mask with True = take part.": "allowed",
    "mask is 1 at the positions to hide (look-ahead or padding)": "blocked",
    "mask: (batch, time), 1 for tokens, 0 for pads.": "allowed",
    "mask: (B, 1, T, T), True = masked": "blocked",
    "mask: 1 for tokens that are **not masked**, 0 for tokens that are **masked**": "allowed",
    "mask: a True value indicates that the key will be ignored": "blocked",
    "Args:\n    x: (B, T, D)\n    mask: 0 where a token is padding": "allowed",
    "mask: 0 for allowed and -inf for blocked": None,
    "mask: 1 in each row of the mask": None,
    "mask: True if it is masked. mask: True if it is visible": None,
    "mask: (batch, 1, 1, keys)": None,
    "heads: 1 for hidden": None,
    "mask: True means not masked": None,
    "mask: bool, of the shape of the scores; True where the query may attend": "allowed",
    "mask: bool. False where a key is hidden": "allowed",
    "mask: (batch, places) bool, True at places that lie inside the room": "allowed",
    "mask: True where a sensor is missing": "blocked",
    "mask: 1 for non-padding frames": "allowed",
    "mask: True for keys that must not be attended to": "blocked",
    "mask: True for invalid frames": "blocked",
    "mask: True for padding inside of a batch": None,
    "mask: True where nothing is missing": None,
    "mask: of the shape of the ids, 1 represents non-padding tokens, 0 represents padding": "allowed",
    "mask: floats, with ones for tokens to attend to, zeros for tokens to ignore": "allowed",
    "mask: zeros indicating frames to skip": "allowed",
    "mask: True stands for a padded key": "blocked",
    "mask: True positions are ignored": "blocked",
    "mask: (batch, keys), valid tokens are 1 and padding is 0": "allowed",
    "mask: (batch, keys) bool, padded positions are True": "blocked",
    "mask: boolean, padding set to False": "allowed",
    "mask: (batch, keys), pad=1": "blocked",
    "mask: padded keys have weight 0, the others are ones with weight": None,
    "mask: the loss of masked tokens is 0": None,
    "mask: attention weights of padding are 0": None,
    "mask: where it is set, scores of hidden keys are 0": None,
}


@pytest.mark.parametrize("text", MEANINGS)
def test_what_one_in_a_mask_means(text: str) -> None:
    assert mask_meaning(text, "mask", is_only=True) == MEANINGS[text]


def test_of_several_masks_each_has_its_own_sentence() -> None:
    text = "The mask is True at hidden keys. pad_mask: 1 for tokens."
    assert mask_meaning(text, "pad_mask", is_only=False) == "allowed"
    assert mask_meaning(text, "mask", is_only=False) == "blocked"
    assert mask_meaning(text, "causal_mask", is_only=False) is None


def test_what_is_said_of_zero_alone_leaves_open_what_one_does() -> None:
    text = "mask: 0 for allowed keys, a very small number for the others"
    assert mask_meaning(text, "mask", is_only=True) == "blocked"
    assert mask_meaning(text, "mask", is_only=True, of_one=True) is None


@pytest.mark.parametrize(
    ("text", "said"),
    [
        ("Causal attention inside blocks of `block` tokens; nothing is seen of other blocks.", True),
        ("Sliding windows.\n\nAutoregressive, for generation.", True),
        ("Block attention, non-causal.", False),
        ("Blocks; causal if `causal` is set.", False),
        ("causal: whether later tokens are hidden", False),
        ("Attention that is causal across frames.", False),
        ("Bidirectional blocks of an autoregressive model.", False),
        ("Blocks.", False),
        ("Causal; all tokens see the prefix.", False),
    ],
)
def test_whether_it_is_causal_without_a_condition(text: str, said: bool) -> None:
    assert promises_causality(text) == said


@pytest.mark.parametrize(
    ("text", "said"),
    [
        ("Causal self attention with a cache.\n\nPrompts come in chunks.", True),
        ("A multi-head causal attention.", True),
        ("Causal attention after a prefix.", False),
        ("Attention with a cache, for autoregressive decoding.", False),
        ("Supports causal self-attention.", False),
        ("Mask for causal attention.", False),
        ("Causal attention if `causal` is set.", False),
        ("(q . k) D v, D_ij = g^(i - j) for j <= i, else 0", True),
        ("weights (i, j); 0 if j > i", True),
        ("weights are 0 if j > i and `causal` is set", False),
        ("the distance is i - j for j <= i, else j - i", False),
        ("mask: 0 where j > i", False),
    ],
)
def test_whether_it_begins_with_a_causal_attention(text: str, said: bool) -> None:
    assert promises_causal_attention(text) == said


@pytest.mark.parametrize(
    ("text", "said"),
    [
        ("Prompts may be fed in chunks.", True),
        ("Appends one or more new tokens to the cache.", True),
        ("A long prompt may be given in several pieces.", True),
        ("Fills the cache chunk by chunk.", True),
        ("Prefill takes one chunk at a time.", True),
        ("x: the new tokens (b, t, d); past: keys and values of the earlier ones", True),
        ("x: the new tokens (b, 1, d); past: keys and values of the earlier ones", False),
        ("x: new tokens (b, t, d)", False),
        ("Runs as one chunk where the prompt is short.", False),
        ("No prompt is handed over one chunk at a time.", False),
        ("The cache cannot be filled in chunks.", False),
        ("Scores are computed in chunks.", False),
    ],
)
def test_whether_a_cache_is_filled_in_parts(text: str, said: bool) -> None:
    assert promises_parts(text) == said


@pytest.mark.parametrize(
    ("text", "said"),
    [
        ("Token i sees the `window` most recent tokens, itself included.", True),
        ("The last window_size keys, including the current one.", True),
        ("A query sees itself and the `window` - 1 keys before it.", True),
        ("Token i sees the tokens i - sliding_window + 1 .. i.", True),
        ("A window of 4 tokens and itself.", False),
        ("Token i sees the tokens i - window .. i.", False),
        ("Token i sees no token before i - window - 1.", False),
        ("Causal, the own position included.", False),
    ],
)
def test_whether_a_window_has_the_token_itself(text: str, said: bool) -> None:
    assert is_inclusive(text) == said


@pytest.mark.parametrize(
    ("text", "said"),
    [
        ("Rotary embeddings of queries, keys and values.", True),
        ("RoPE; the values are rotated as well.", True),
        ("q, k, v = map(rotary_values, qkv)", True),
        ("Rotary embeddings on queries and keys; values stay as they are.", False),
        ("Rotates queries and keys, never values.", False),
        ("Rotary embeddings.", False),
        ("v = apply_rotary(v, freqs)", False),
    ],
)
def test_whether_rotary_positions_are_of_values_as_well(text: str, said: bool) -> None:
    assert rotates_values(text) == said


@pytest.mark.parametrize(
    ("text", "said"),
    [
        ("Each position sees those with |i - j| <= radius.", True),
        ("Local attention: abs(j - i) < reach", True),
        ("A window of `radius` tokens on either side.", True),
        ("Keys are read to both sides, `radius` of them.", True),
        ("A window of past tokens, |i - j| < size.", False),
        ("Causal: a query attends to keys with |i - j| < size.", False),
        ("A bias of its own for keys with |i - j| <= 8.", False),
        ("Sees `left` tokens before and `right` tokens after itself.", False),
        ("Position i sees the keys at most `window` steps before or behind it.", True),
        ("A token reads up to 3 tokens to the left and to the right.", True),
        ("A query sees up to `left` keys before and `right` keys after it.", False),
        ("Padding on both sides.", False),
        ("A window on both sides if `causal` is off.", False),
    ],
)
def test_whether_a_window_reaches_as_far_ahead_as_back(text: str, said: bool) -> None:
    assert is_two_sided(text) == said


@pytest.mark.parametrize(
    ("text", "direction"),
    [
        ("Row far + step of the table belongs to a key that stands `step` positions after the query.", 1),
        ("table[far - 1 - lag]: of keys lag tokens back.", 1),
        ("Index lag + far is of the key lag tokens before.", -1),
        ("Entry `far - d` is for keys d places later.", -1),
        ("Row far + step is of a query that stands step tokens after the key.", 0),
        ("Row far + step of the table is of a key at a distance of step.", 0),
        ("A key that stands step tokens after the query has a bias.", 0),
        ("Entry far + step is a key other tokens after the query.", 0),
        ("Row far + d is of a key d tokens after, row far - d of a key d tokens before.", 1),
        ("Row far + d is of a key d tokens after.\n\nRow far - e is of a key e tokens after.", 0),
        ("A table of biases, one for each distance.", 0),
    ],
)
def test_in_which_order_the_entries_of_a_table_are(text: str, direction: int) -> None:
    assert index_direction(text) == direction


@pytest.mark.parametrize(
    ("text", "said"),
    [
        ("A query sees itself and the `window` keys before it.", True),
        ("Each token attends to the window_size previous tokens and to itself.", True),
        ("Each token sees the `window` tokens before it, and itself.", True),
        ("Each token sees the last `window` tokens, including itself.", False),
        ("Each token sees itself and the last `window` tokens.", False),
        ("Each token sees itself and its `window`.", False),
    ],
)
def test_whether_a_window_has_a_token_besides_those_before_it(text: str, said: bool) -> None:
    assert is_exclusive(text) == said


@pytest.mark.parametrize(
    ("text", "said"),
    [
        ("A query sees `window` keys on each side.", True),
        ("Local attention: window_size tokens to either side.", True),
        ("Each token attends to window_size // 2 tokens on each side.", False),
        ("Each token attends to `window` tokens, half of them on each side.", False),
        ("Each token attends to `window` tokens on both sides.", False),
        ("A causal window of `window` tokens on each side.", False),
    ],
)
def test_whether_a_window_reaches_as_far_to_each_side_as_it_is_told(text: str, said: bool) -> None:
    assert is_of_each_side(text) == said


@pytest.mark.parametrize(
    ("text", "said"),
    [
        ("`pos` is added to keys and queries of every attention, never to the values.", True),
        ("Positions are added to queries and keys only.", True),
        ("The position embedding is added only to q and k", True),
        ("Positions are added to queries, keys and values.", False),
        ("pos: added to x.", False),
        ("The mask is applied to the scores, not to the values.", False),
    ],
)
def test_whether_positions_are_kept_from_values(text: str, said: bool) -> None:
    assert keeps_positions_from_values(text) == said


UNUSED = """Attention.

Args:
    x: tokens.
    mask: not used if it is None.
    pad (Tensor): ignored positions are True.
    bias: Not used. Only for what else has this signature.
    rows : Tensor, optional
        Unused.
    kept: (B, T). Ignored, whatever it is
    last (Tensor): as a mask; it has no effect here
"""


@pytest.mark.parametrize("name", ["x", "mask", "pad", "bias", "rows", "kept", "last", "other"])
def test_an_argument_is_unused_where_its_own_entry_says_so_without_a_condition(name: str) -> None:
    assert says_unused(UNUSED, name) == (name in ("bias", "rows", "kept", "last"))


@pytest.mark.parametrize(
    ("text", "found"),
    [
        ("Query head ``i`` reads key head ``i // group``.", True),
        ("Query head h reads head h // r of the keys.", True),
        ("Query head i belongs to key head i // (heads / groups).", True),
        ("Heads of one group are neighbours.", True),
        ("Query heads 0..g-1 share kv head 0, g..2g-1 share kv head 1.", True),
        ("Heads 0 to 3 read key head 0.", True),
        ("Heads 0 and 1 share one head of keys.", True),
        ("Heads 0 and 2 share one head of keys.", False),
        ("Heads 0 to 3 are causal.", False),
        ("Each head sees its nearest neighbors.", False),
        ("Head i reads key head i % groups.", False),
    ],
)
def test_groups_of_heads_are_read_where_their_numbers_are_written(text: str, found: bool) -> None:
    assert groups_are_consecutive(text) is found
