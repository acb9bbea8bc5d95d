"""The page's tokenizer against the library tokenizers: ids, tokens, offsets and words, character by character."""

import copy
import dataclasses
import json
import re
import unicodedata

import pytest
from tokenizers import Tokenizer

from regard.errors import InputError
from regard.lens.text.words import Words, normalize_word
from regard.views.html.bundle import bundle_modules
from regard.views.html.wordpiece import SEPARATOR, character_classes, wordpiece_settings
from views.html import browsing
from views.html.page_tokens import made_texts, page_encoding
from weights import LOAN, RIVER, minilm, sentences, smollm2

CODES = [code for code in range(0x110000) if not 0xD800 <= code < 0xE000]
UNIFORM = [range(0x4E00, 0xA000), range(0xAC00, 0xD7A4), range(0x13000, 0x14680), range(0x16800, 0x18D00)]
UNIFORM += [range(0x20000, 0xE0000), range(0xE1000, 0x110000)]
"""Ideographs, syllables and private characters, which are many of a kind."""


@pytest.fixture
def tokenizer(node):
    """The page's tokenizer, as MiniLM's."""
    node("tokenizer", wordpiece_settings(minilm()))


@pytest.fixture
def assert_same(node):
    """A function that holds what the page makes of texts against what the library makes of them."""

    def call(texts, tokenizer=None):
        tokenizer = tokenizer or minilm().tokenizer
        node("tokenizer", {**settings_of(tokenizer), "max_tokens": None})
        found = node("encode", texts)
        assert found == [page_encoding(tokenizer.encode(text), text) for text in texts]
        return found

    return call


def settings_of(tokenizer):
    return wordpiece_settings(dataclasses.replace(minilm(), tokenizer=tokenizer))


def changed(**parts):
    """MiniLM's tokenizer with some parts changed."""
    return Tokenizer.from_str(json.dumps(json.loads(minilm().tokenizer.to_str()) | parts))


def characters(between, *, every=False):
    """Texts of all characters, or of all but those that are uniform."""
    codes = [code for code in CODES if every or not any(code in uniform for uniform in UNIFORM)]
    return [between.join(map(chr, codes[at : at + 2000])) for at in range(0, len(codes), 2000)]


TEXTS = {
    "sentences": lambda: [RIVER, LOAN, *sentences(600)],
    "every sentence": lambda: [RIVER, LOAN, *sentences(1800)],
    "every script, sign and length": lambda: made_texts(500),
    "more of them": lambda: made_texts(2000),
    "60 000 words": lambda: [f"{RIVER} " * 5_000],
    "characters apart": lambda: characters(" "),
    "characters within a word": lambda: characters("x"),
    "characters side by side": lambda: characters(""),
    "every character apart": lambda: characters(" ", every=True),
    "every character within a word": lambda: characters("x", every=True),
}
MORE = {"characters within a word", *(name for name in TEXTS if name.startswith(("every ch", "every sen", "more")))}


@pytest.mark.parametrize(
    "name", [pytest.param(name, marks=[pytest.mark.more] if name in MORE else []) for name in TEXTS]
)
def test_texts_are_read_as_the_library_reads_them(assert_same, name):
    assert_same(TEXTS[name]())


@pytest.mark.more
@pytest.mark.parametrize(
    "options",
    [
        {"lowercase": False},
        {"lowercase": False, "strip_accents": True},
        {"strip_accents": False},
        {"clean_text": False},
        {"handle_chinese_chars": False},
    ],
    ids=str,
)
def test_each_step_of_the_normalizer_can_be_off(assert_same, options):
    normalizer = json.loads(minilm().tokenizer.to_str())["normalizer"]
    assert_same(made_texts(100, seed=1), changed(normalizer=normalizer | options))


@pytest.mark.parametrize("processor", [{"type": "BertProcessing", "sep": ["[SEP]", 102], "cls": ["[CLS]", 101]}, None])
def test_the_processor_of_bert_adds_the_same_tokens(assert_same, processor):
    assert_same([RIVER, ""], changed(post_processor=processor))


def test_of_two_special_tokens_that_begin_together_the_longer_one_is_found(assert_same):
    tokenizer = copy.deepcopy(minilm().tokenizer)
    tokenizer.add_special_tokens(["[SEP]]", "[S", "a.c|"])
    found = assert_same(["[SEP]] [SEP] [S [SE a.c| abc|", "[SEP]]]"], tokenizer)
    assert "[SEP]]" in found[0]["tokens"]


@pytest.mark.more
def test_chromium_reads_texts_as_the_library_reads_them(chromium, tmp_path):
    """Its tables of Unicode are others than node's; the script is the one that a page carries."""
    (tmp_path / "empty.html").write_text("<!doctype html>")
    script = bundle_modules("model/tokenizer")
    (tokenizer,) = re.findall(r"^// model/tokenizer\.js\nconst (\w+)", script, re.MULTILINE)
    texts = [*made_texts(200, seed=4), *characters(" ")]
    with browsing.opened(chromium, tmp_path / "empty.html") as (page, log):
        found = page.evaluate(
            f"(json) => {{ {script}; const [settings, texts] = JSON.parse(json);"
            f"const tokenizer = new {tokenizer}.WordPieceTokenizer(settings);"
            "return JSON.stringify(texts.map((text) => tokenizer.encode(text))); }",
            json.dumps([wordpiece_settings(minilm()) | {"max_tokens": None}, texts]),
        )
    assert log == []
    assert json.loads(found) == [page_encoding(minilm().tokenizer.encode(text), text) for text in texts]


@pytest.mark.usefixtures("tokenizer")
def test_half_a_character_is_refused_as_python_refuses_it(node):
    for text in ("a\ud800b", "\udfff", "\ude00\ud83d"):
        with pytest.raises(InputError, match="is not valid text"):
            minilm().encode(text)
        (error,) = node("encode", [text])
        assert error["name"] == "InputError"
        assert "is not valid text: it holds half a character" in error["message"]


@pytest.mark.usefixtures("tokenizer")
def test_a_text_too_long_for_the_model_is_refused_with_pythons_words(node):
    fits, too_long = node("encode", ["word " * 510, "word " * 511])
    assert len(fits["ids"]) == 512
    with pytest.raises(InputError, match="the text has 513 tokens") as refused:
        minilm().encode("word " * 511)
    says = str(refused.value).replace("sentence-transformers/all-MiniLM-L6-v2", "the model")
    assert too_long["message"] == says.replace("'", '"')


@pytest.mark.usefixtures("tokenizer")
def test_words_and_labels_are_those_of_python(node):
    every = ["embed\x1cding a\u2122\x1c\u2122", RIVER, *made_texts(300, seed=2), *sentences(200)]
    texts = [text for text in every if len(minilm().tokenizer.encode(text).ids) <= 512]
    for text, found in zip(texts, node("words", texts), strict=True):
        words = Words.of(text, minilm())
        assert found == {
            "display": words.display_tokens(),
            "surface": words.surface_forms(),
            "words": words.word_list(),
            "positions": words.word_positions(),
            "first": list(words.first_positions().values()),
            "listed": words.describe(),
        }, text


@pytest.mark.usefixtures("tokenizer")
@pytest.mark.parametrize("text", ["", " \t\u3000\x1c", "\u200b\x07"], ids=ascii)
def test_a_text_without_words_is_refused_as_python_refuses_it(node, text):
    with pytest.raises(InputError) as refused:
        Words.of(text, minilm())
    (error,) = node("words", [text])
    assert error["name"] == "InputError"
    assert error["message"].partition("has no")[2] == str(refused.value).partition("has no")[2]
    assert ("the text is empty" in error["message"]) == ("the text is empty" in str(refused.value))


def test_two_characters_are_the_same_word_where_python_says_so(node):
    """Of the characters that this Python's tables know."""
    characters = [chr(code) for code in CODES if unicodedata.category(chr(code)) not in ("Cn", "Co")]
    changing = [c for c in characters if normalize_word(c) != c or c.lower() != c or c.upper() != c]
    words = changing + [normalize_word(c) for c in changing]
    pairs = {}
    for word, found in zip(words, node("normalize", words), strict=True):
        pairs.setdefault(found, set()).add(normalize_word(word))
    assert [same for same in pairs.values() if len(same) > 1] == []
    assert len(pairs) == len({normalize_word(word) for word in words})


def test_the_classes_of_characters_leave_none_out():
    classes = character_classes()
    assert {name: len(ranges) % 2 for name, ranges in classes.items()} == dict.fromkeys(classes, 0)
    assert all(ranges == sorted(ranges) for ranges in classes.values())
    pairs = [pair for ranges in classes.values() for pair in zip(ranges[::2], ranges[1::2], strict=True)]
    assert not any(first <= ord(SEPARATOR) <= last for first, last in pairs)


def test_the_settings_are_plain_data_of_the_size_of_the_vocabulary():
    settings = wordpiece_settings(minilm())
    assert json.loads(json.dumps(settings)) == settings | {"special_tokens": [*map(list, settings["special_tokens"])]}
    assert settings["vocab"].split("\n") == [minilm().tokenizer.id_to_token(id_) for id_ in range(30_522)]
    assert len(json.dumps(settings)) < 300_000


ROBERTA = {"type": "RobertaProcessing", "sep": ["[SEP]", 102], "cls": ["[CLS]", 101]}
ROBERTA |= {"trim_offsets": True, "add_prefix_space": False}
REFUSED = {
    "no tokenizer.json": lambda d: None,
    "the model Unigram": lambda d: d | {"model": {"type": "Unigram", "vocab": [["a", 0.0]], "unk_id": 0}},
    "the normalizer NFC": lambda d: d | {"normalizer": {"type": "NFC"}},
    "the normalizer None": lambda d: d | {"normalizer": None},
    "the pre_tokenizer Whitespace": lambda d: d | {"pre_tokenizer": {"type": "Whitespace"}},
    "the added token '[UNK]' with lstrip": lambda d: d["added_tokens"][1].update(lstrip=True) or d,
    "the post_processor RobertaProcessing": lambda d: d | {"post_processor": ROBERTA},
    "token types other than 0": lambda d: d["post_processor"]["single"][0]["SpecialToken"].update(type_id=1) or d,
    "a template that has the text 0 times": lambda d: d["post_processor"]["single"].pop(1) and d,
    "ids that do not follow one another": lambda d: d["model"]["vocab"].update(more=40_000) or d,
    "with a line end": lambda d: d["model"]["vocab"].update({"a\nb": 30_522}) or d,
    "no token '[none]'": lambda d: d["model"].update(unk_token="[none]") or d,
}


@pytest.mark.parametrize("named", REFUSED)
def test_a_tokenizer_that_the_page_does_not_know_is_refused_by_name(named):
    description = REFUSED[named](json.loads(minilm().tokenizer.to_str()))
    tokenizer = None if description is None else Tokenizer.from_str(json.dumps(description))
    with pytest.raises(InputError) as refused:
        settings_of(tokenizer)
    assert named in str(refused.value)


def test_the_tokenizer_of_a_decoder_is_refused_by_name():
    with pytest.raises(InputError, match="the tokenizer of smollm2 has the pre_tokenizer"):
        wordpiece_settings(smollm2())
