"""Issue 17, D8: the first tokens of a long text are those of the whole text, though only its beginning is tokenized."""

from __future__ import annotations

from functools import partial

import pytest
from hypothesis import given
from hypothesis import strategies as st
from tokenizers import AddedToken, Tokenizer, models, normalizers, pre_tokenizers, processors, trainers

from grids import some_examples
from regard import InputError
from regard.pretrained.beginnings import encode_beginnings
from weights import minilm


def bert(**options: object) -> Tokenizer:
    """The default model's tokenizer, with tokens that were added: words with spaces inside and spaces around them."""
    tokenizer = Tokenizer.from_str(minilm().tokenizer.to_str())
    tokenizer.normalizer = normalizers.BertNormalizer(**options)
    tokenizer.add_tokens([AddedToken("new york", single_word=True), AddedToken("river bank", lstrip=True, rstrip=True)])
    return tokenizer


def roberta(*, add_prefix_space: bool = False, use_regex: bool = True) -> Tokenizer:
    tokenizer = Tokenizer(models.BPE())
    tokenizer.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=add_prefix_space, use_regex=use_regex)
    special = ["<s>", "<pad>", "</s>", "<unk>"]
    alphabet = pre_tokenizers.ByteLevel.alphabet()
    trainer = trainers.BpeTrainer(
        vocab_size=320, special_tokens=special, initial_alphabet=alphabet, show_progress=False
    )
    tokenizer.train_from_iterator(["the river bank's they're we'll new york   money\n\n"] * 3, trainer)
    tokenizer.add_special_tokens([AddedToken("<mask>", lstrip=True)])
    tokenizer.post_processor = processors.RobertaProcessing(("</s>", 2), ("<s>", 0), add_prefix_space=add_prefix_space)
    return tokenizer


VARIANTS = {
    "bert, cased": partial(bert, lowercase=False, strip_accents=False),
    "roberta, prefix space": partial(roberta, add_prefix_space=True),
    "bytes, no words": partial(roberta, use_regex=False),
}
TOKENIZERS = {"bert": bert, "roberta": roberta, **VARIANTS}
PIECES = ["the", "river", "bank", "'re", "'", "re", "new york", "york", "[SEP]", "[MASK]", "<mask>", "<ma", "sk>", "é"]
PIECES += [" ", "   ", "\n", "\t", "\u00a0", "\x00", "\u0301", "e\u0301", "河", "한국", "😀", "!", "...", "12", "İ"]
PIECES += ["a" * 150, " " * 400, "\u0301" * 300, "!" * 50, "x" * 3000]


@pytest.mark.parametrize(
    "kind", ["bert", "roberta", *(pytest.param(kind, marks=pytest.mark.more) for kind in VARIANTS)]
)
def test_the_first_tokens_are_those_of_the_whole_text(kind):
    tokenizer, truncating, num_beginnings = TOKENIZERS[kind](), TOKENIZERS[kind](), 0

    @some_examples(0.3)
    @given(
        st.lists(st.sampled_from(PIECES), min_size=1, max_size=8),
        st.randoms(use_true_random=False),
        st.integers(3, 40),
    )
    def check(pieces, random, max_tokens):
        nonlocal num_beginnings
        text = "".join(random.choice(pieces) for _ in range(random.randint(1, 600)))[:20_000]
        ((read, encoding),) = encode_beginnings(tokenizer, [text], max_tokens)
        whole = tokenizer.encode(text)
        if read == text:
            assert encoding.ids == whole.ids
            return
        num_beginnings += 1
        assert len(whole.ids) > max_tokens
        truncating.enable_truncation(max_tokens)
        found, expected = truncating.encode(read), truncating.encode(text)
        assert (found.ids, found.type_ids, found.tokens) == (expected.ids, expected.type_ids, expected.tokens)

    check()
    assert num_beginnings or kind == "bytes, no words"


@pytest.mark.parametrize(
    ("text", "length"),
    [
        ("word " * 2_000_000, 8192),
        ("河" * 2_000_000, 8192),
        (" " * 20_000 + "word " * 500_000, 32_768),
        ("a" * 20_000, 20_000),
        ("word " * 600, 3000),
    ],
    ids=["words", "characters", "after spaces", "one word", "little more than can be read"],
)
def test_no_more_of_a_text_is_tokenized_than_decides(text, length):
    (short, (read, _)) = encode_beginnings(minilm().tokenizer, ["a river", text], 512)
    assert short[0] == "a river"
    assert len(read) == length


@pytest.mark.parametrize("limit", [None, 5])
def test_other_tokenizers_read_the_whole_text(limit):
    tokenizer = roberta()
    if limit:
        tokenizer.normalizer = normalizers.NFC()  # puts marks in an order, however many there are
    assert encode_beginnings(tokenizer, ["word " * 1000], limit)[0][0] == "word " * 1000


def test_a_text_that_is_far_too_long_is_refused():
    message = r"the text has more than 256 tokens, and .* makes a vector of 256 .*'word .*\(1000000 characters\)"
    with pytest.raises(InputError, match=message):
        minilm().embed(["fine", "word " * 200_000])


@pytest.mark.parametrize("texts", [["word " * 600, "half: \udce9"], ["fine", "word " * 9000 + "\udce9"]])
def test_a_text_that_is_not_valid_is_the_one_that_is_named(texts):
    with pytest.raises(InputError, match="is not valid text") as refused:
        minilm().embedder().tokenize(texts, truncate=True)
    assert refused.value.index == 1
