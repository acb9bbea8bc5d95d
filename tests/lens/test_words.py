from dataclasses import replace
from functools import cache

import pytest
from tokenizers import Tokenizer, models, normalizers, pre_tokenizers, processors, trainers

from regard import InputError
from regard.lens.text.words import Words
from weights import LOAN, RIVER, minilm


def words(text, kind=None):
    return Words.of(text, minilm() if kind is None else train_tokenizer(kind))


def test_a_long_list_of_words_is_cut():
    assert words(" ".join(f"w{i}" for i in range(60))).describe().endswith("w39 and 20 more")
    assert words("x" * 80).describe() == "x" * 60 + "..."


def test_the_documents_sentence_has_11_words_and_bank_is_the_last():
    river = words(RIVER)
    assert river.word_list()[:-1] == ["Write", "a", "poem", "about", "a", "man", "fishing", "on", "a", "river", "bank"]
    assert [token for i, token in enumerate(river.tokens) if river.is_text(i)].index("bank") == 10


@pytest.mark.parametrize(
    ("text", "word", "occurrences"),
    [
        (RIVER, " BANK ", [[11]]),
        ("the river  bank", "river bank", [[2, 3]]),
        (RIVER, "a", [[2], [5], [9]]),
        (RIVER, ".", [[12]]),
        (RIVER, "[CLS]", [[0]]),
        (LOAN, 13, [[13]]),
        (RIVER, "11", [[11]]),
        ("In 11 days the bank opens", "11", [[2]]),
        ("tokenization", "tokenization", [[1, 2]]),
        ("tokenization", "##ization", [[2]]),
        ("I don't know", "don't", [[2, 3, 4]]),
        ("a well-known bank", "well-known", [[2, 3, 4]]),
        ("New York is big", "new york", [[1, 2]]),
        ("Ein Café am Fluss", "café", [[2]]),
        ("Ein Cafe\u0301 am Fluss", "caf\u00e9", [[2]]),
        ("das caf\u00e9", "CAFE\u0301", [[2]]),
        ("good 🙂 morning", "🙂", [[2]]),
        ("שלום עולם", "עולם", [[5, 6, 7, 8]]),
        ("بنك النهر", "بنك", [[1, 2, 3]]),
        ("nul\u200bl width", "width", [[2]]),
    ],
)
def test_a_word_is_all_its_pieces_wherever_it_stands(text, word, occurrences):
    assert words(text).resolve(word) == occurrences


NOT_THERE = r"is not in the text .* Its words are: Write, a, poem, about, man, fishing, on, river, bank, \."


@pytest.mark.parametrize(
    ("text", "word", "message"),
    [
        *((RIVER, word, NOT_THERE) for word in ("ban", "ization", "river bank fishing", "", " ", "riverbank", "xyz")),
        *((RIVER, position, r"no token .*: the text has tokens 0 to 13") for position in (14, -1, "14", "9" * 5000)),
        *((text, 0, "the text is empty") for text in ("", "   ", "\n\t")),
        *((text, 0, "has no tokens") for text in ("\x00\x01", "\u200b", "\ufffd")),
    ],
)
def test_a_word_that_is_not_there_is_refused_with_those_that_are(text, word, message):
    with pytest.raises(InputError, match=message):
        words(text).resolve(word)


@pytest.mark.parametrize(
    ("text", "positions", "written"),
    [("Ein Cafe\u0301", [2], "Cafe\u0301"), ("Ein Café!", [2], "Café"), ("Ein Café!", [0], "[CLS]")],
)
def test_what_is_written_is_the_texts_own(text, positions, written):
    """Also an accent that the tokenizer strips."""
    assert words(text).surface_form(positions) == written


@cache
def train_tokenizer(kind):
    """A tokenizer of another family's kind, trained here: it cuts this text into whole words, and others into bytes."""
    corpus = ["the man sits on the river bank in the sun .", "a loan from a bank , do n't you know", "tokens"] * 20
    tokenizer = Tokenizer(models.BPE(unk_token=None if kind.startswith("bytes") else "<unk>"))
    alphabet = []
    if kind.startswith("bytes"):  # GPT-2, RoBERTa, Llama 3
        tokenizer.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=kind == "bytes, trimmed")
        tokenizer.post_processor = processors.ByteLevel(trim_offsets=kind == "bytes, trimmed")
        alphabet = pre_tokenizers.ByteLevel.alphabet()
    elif kind == "metaspace":  # T5
        tokenizer.pre_tokenizer = pre_tokenizers.Metaspace()
    else:  # Llama 2, Gemma: the whole text is one word
        tokenizer.normalizer = normalizers.Sequence([normalizers.Prepend("▁"), normalizers.Replace(" ", "▁")])
        corpus = [word for text in corpus for word in text.split()]
    trainer = trainers.BpeTrainer(vocab_size=360, initial_alphabet=alphabet, special_tokens=["<unk>"])
    tokenizer.train_from_iterator(corpus, trainer)
    return replace(minilm(), tokenizer=tokenizer)


TOKENIZERS = ["bytes", "bytes, trimmed", "metaspace", "one word"]


@pytest.mark.parametrize("kind", TOKENIZERS)
@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("the river bank.", ["the", "river", "bank", "."]),
        ("the  river\n bank", ["the", "river", "bank"]),
        ("a bank, a loan!", ["a", "bank", ",", "a", "loan", "!"]),
        ("xyz (bank)", ["xyz", "(", "bank", ")"]),
        (" bank ", ["bank"]),
    ],
)
def test_every_kind_of_tokenizer_has_the_same_words(kind, text, expected):
    text_words = words(text, kind)
    assert text_words.word_list() == expected
    for word in expected:
        occurrences = text_words.find(word)
        assert [text_words.surface_form(positions) for positions in occurrences] == [word] * expected.count(word)
        assert all(positions == list(range(positions[0], positions[-1] + 1)) for positions in occurrences)


@pytest.mark.parametrize("kind", TOKENIZERS)
def test_letters_with_digits_are_found_however_they_are_cut(kind):
    (positions,) = words("a tokens2know", kind).find("tokens2know")
    assert words("a tokens2know", kind).surface_form(positions) == "tokens2know"


@pytest.mark.parametrize("kind", TOKENIZERS)
@pytest.mark.parametrize("word", ["ban", "iver", "thé", "k."])
def test_a_part_of_a_word_is_no_word_to_any_of_them(kind, word):
    with pytest.raises(InputError, match=r"Its words are: the, river, bank, \.$"):
        words("the river bank.", kind).find(word)


@pytest.mark.parametrize("kind", ["bytes", "bytes, trimmed"])
def test_the_bytes_of_a_character_are_one_word(kind):
    text_words = words("a 🙂 é bank", kind)
    assert text_words.word_list() == ["a", "🙂", "é", "bank"]
    assert len(text_words.find("🙂")[0]) >= 4
    assert len(text_words.find("é")) == 1


@pytest.mark.parametrize("kind", TOKENIZERS)
def test_what_a_decoder_reads_first_is_no_word(kind):
    plain = words("the river bank.", kind)
    text_words = plain.prepend("<s>", 7)
    assert (text_words.tokens[0], text_words.ids[0], text_words.is_text(0)) == ("<s>", 7, False)
    assert text_words.word_list() == ["the", "river", "bank", "."]
    assert text_words.find("<s>") == [[0]]
    assert text_words.find("river") == [[i + 1 for i in plain.find("river")[0]]]
    assert text_words.truncate(2).tokens == text_words.tokens[:2]
