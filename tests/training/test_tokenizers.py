"""Tokenizers trained on texts: lossless, reproducible, and no character is split."""

import pytest
from hypothesis import example, given
from hypothesis import strategies as st
from tokenizers import Tokenizer

from regard.training.data import pairs
from regard.training.tokenizers import NUM_BYTES, train_bpe

SPECIAL_TOKENS = ("<|start|>", "<|end|>", "<|pad|>")
TEXTS = ["The river bank, 1987: 36 días.\n\n\tdef f(x):\n        return x  # größer"] * 3
TEXTS += ["Она сказала: «да».", "मार्च"] * 5


@pytest.fixture(scope="module")
def tokenizer():
    return train_bpe(TEXTS, vocab_size=400, special_tokens=SPECIAL_TOKENS)


@pytest.fixture(scope="module")
def dates():
    return [side for row in pairs().train.take(6_000) for side in (row["source"], row["target"])]


@pytest.fixture(scope="module")
def dates_tokenizer(dates):
    return train_bpe(dates, vocab_size=2_000, special_tokens=("</s>",))


@given(text=st.text(st.characters(exclude_categories=["Cs"]), max_size=60) | st.sampled_from(TEXTS))
@example(text="雪☃🏔️ e\u0301\r\n\r\n\x00")
@example(text="a" * 5_000)
def test_any_text_comes_back(tokenizer, text):
    encoded = tokenizer.encode(text)
    assert tokenizer.decode(encoded.ids) == text
    assert Tokenizer.from_str(tokenizer.to_str()).encode(text).ids == encoded.ids


def test_special_tokens_come_first(tokenizer):
    assert [tokenizer.token_to_id(token) for token in SPECIAL_TOKENS] == [0, 1, 2]
    ids = tokenizer.encode("river").ids
    assert min(ids) > 2
    assert tokenizer.decode([0, *ids, 1]) == "river"
    assert tokenizer.decode([0, *ids, 1], skip_special_tokens=False) == "<|start|>river<|end|>"


@pytest.mark.parametrize(
    ("frame", "before", "behind"),
    [
        ({}, [], []),
        ({"bos_token": "<|start|>"}, [0], []),
        ({"eos_token": "<|end|>"}, [], [1]),
        ({"bos_token": "<|start|>", "eos_token": "<|end|>"}, [0], [1]),
        ({"bos_token": "<|end|>", "eos_token": "<|end|>"}, [1], [1]),
    ],
)
def test_what_is_added_around_a_text(frame, before, behind):
    tokenizer = train_bpe(TEXTS, vocab_size=300, special_tokens=SPECIAL_TOKENS, **frame)
    bare = tokenizer.encode("The bank", add_special_tokens=False).ids
    assert not set(bare) & {0, 1, 2}
    assert tokenizer.encode("The bank").ids == [*before, *bare, *behind]
    assert tokenizer.encode("").ids == [*before, *behind]
    assert Tokenizer.from_str(tokenizer.to_str()).encode("The bank").ids == [*before, *bare, *behind]


def test_digits_are_tokens_one_by_one(dates_tokenizer):
    for text in ("1987-03-05", "  1234567 x12 ১৯৮৭ ۱۹۸۷ ½²"):
        spans = dates_tokenizer.encode(text).offsets
        assert {(i, i + 1) for i, letter in enumerate(text) if letter.isdecimal()} <= set(spans)


@pytest.mark.parametrize("size", [700, 2_000])
def test_no_character_is_split(size, dates):
    """Plain byte pairs split 58 of the 250 characters of the dates at any size, and join halves of two."""
    tokenizer = train_bpe(dates, vocab_size=size, special_tokens=("</s>",))
    assert tokenizer.get_vocab_size() <= size
    for letter in {letter for text in dates for letter in text}:
        assert len(tokenizer.encode(letter).ids) == 1, letter
    for text in dates[:1_000:2]:
        offsets = tokenizer.encode(text).offsets
        assert [start for start, _ in offsets[1:]] == [stop for _, stop in offsets[:-1]]


def test_a_small_vocabulary_has_the_frequent_letters():
    letters = [chr(0x4E00 + i) for i in range(300)]
    texts = [letter * (2 + 300 - i) for i, letter in enumerate(letters)]
    tokenizer = train_bpe(texts, vocab_size=NUM_BYTES + 200, special_tokens=())
    is_one_token = [len(tokenizer.encode(letter).ids) == 1 for letter in letters]
    assert 80 < sum(is_one_token) <= 100
    assert is_one_token == sorted(is_one_token, reverse=True)
    assert tokenizer.decode(tokenizer.encode("".join(letters)).ids) == "".join(letters)


def test_a_letter_that_takes_all_space_for_letters_is_one_token():
    """Half of the space is for letters: here one merge, which the two bytes of the letter need."""
    assert len(train_bpe(["é b é b é"], vocab_size=NUM_BYTES + 2, special_tokens=()).encode("é").ids) == 1


def test_a_month_is_one_token(dates_tokenizer):
    """In Hindi and Bengali too, where most vowels are marks."""
    for text in (" Dezember", " декабря", " दिसंबर", " ডিসেম্বর", " دسامبر"):
        assert len(dates_tokenizer.encode(text).ids) == 1, text


def test_a_vocabulary_is_no_larger_than_asked():
    for size in (NUM_BYTES + 3, NUM_BYTES + 4, NUM_BYTES + 20, 300):
        assert train_bpe(TEXTS, vocab_size=size, special_tokens=SPECIAL_TOKENS).get_vocab_size() == size
    assert train_bpe(["ab ab"], vocab_size=5_000, special_tokens=()).get_vocab_size() == NUM_BYTES + 2  # "ab", " ab"


def test_the_same_texts_give_the_same_tokenizer(tokenizer, dates, dates_tokenizer):
    assert train_bpe(iter(TEXTS), vocab_size=400, special_tokens=SPECIAL_TOKENS).to_str() == tokenizer.to_str()
    assert train_bpe(dates, vocab_size=2_000, special_tokens=("</s>",)).to_str() == dates_tokenizer.to_str()


@pytest.mark.parametrize(
    ("texts", "options", "message"),
    [
        (TEXTS, {"vocab_size": 258}, "258 is too small for 256 bytes and 3 special tokens: give at least 259"),
        (TEXTS, {"special_tokens": ("<s>", "<s>")}, r"tokens must differ, and none may be empty; not \['<s>', '<s>'\]"),
        (TEXTS, {"special_tokens": ("<s>", "")}, "none may be empty"),
        (TEXTS, {"bos_token": "<s>"}, r"bos_token='<s>' is not one of the special tokens"),
        (TEXTS, {"eos_token": "<s>"}, r"eos_token='<s>' is not one of the special tokens"),
        ([""], {}, "there is no text to train a tokenizer on"),
        ("one", {}, r"texts is a list of texts: pass \[text\]"),
    ],
)
def test_what_is_refused(texts, options, message):
    with pytest.raises(TypeError if texts == "one" else ValueError, match=message):
        train_bpe(texts, **{"vocab_size": 300, "special_tokens": SPECIAL_TOKENS} | options)
