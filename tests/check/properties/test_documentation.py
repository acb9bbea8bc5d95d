"""What documentation says of masks is read where it is plain, and nowhere else."""

from __future__ import annotations

import pytest

from regard.check.properties.documentation import is_inclusive, mask_meaning, promises_causality

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
}


@pytest.mark.parametrize("text", MEANINGS)
def test_what_one_in_a_mask_means(text: str) -> None:
    assert mask_meaning(text, "mask", is_only=True) == MEANINGS[text]


def test_of_several_masks_each_has_its_own_sentence() -> None:
    text = "The mask is True at hidden keys. pad_mask: 1 for tokens."
    assert mask_meaning(text, "pad_mask", is_only=False) == "allowed"
    assert mask_meaning(text, "mask", is_only=False) == "blocked"
    assert mask_meaning(text, "causal_mask", is_only=False) is None


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
    ],
)
def test_whether_it_is_causal_without_a_condition(text: str, said: bool) -> None:
    assert promises_causality(text) == said


@pytest.mark.parametrize(
    ("text", "said"),
    [
        ("Token i sees the `window` most recent tokens, itself included.", True),
        ("The last window_size keys, including the current one.", True),
        ("A window of 4 tokens and itself.", False),
        ("Causal, the own position included.", False),
    ],
)
def test_whether_a_window_has_the_token_itself(text: str, said: bool) -> None:
    assert is_inclusive(text) == said
