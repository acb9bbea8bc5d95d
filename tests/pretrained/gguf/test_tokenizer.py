"""The tokenizer of a GGUF file: against transformers on the same file, and against SentencePiece itself."""

from functools import cache

import pytest
import torch
import transformers
from hypothesis import given
from hypothesis import strategies as st

import regard
from gguf_files import (
    BYTE_LEVEL_SIZE,
    SENTENCEPIECE_SIZE,
    byte_level_settings,
    sentencepiece_settings,
    train_byte_level,
    train_sentencepiece,
    write_gguf,
)
from regard import InputError
from regard.pretrained.offline import SMOLLM2, SMOLLM2_FILE
from weights import random_checkpoint, sentences, smollm2

TEXTS = [
    *sentences(40),
    *("", "a", " the river", "two  spaces   three", "trailing  ", "\n\nnew\n lines\r\n\ttabs"),
    *("I'll don't WE'VE it'S", "naïve café Ünïcödé", "日本語のテキスト 中文", "🙂🙃 👩‍👩‍👧", "x" * 50),
    *("def f(x):\n    return x ** y  # comment", "a_b-c/d\\e", "'''\"\"\"...!!!???", "<s> hi </s>"),
]
NUMBERS = "3.14159 is 1000000 at version 2"


@pytest.fixture(scope="session")
def file_with(tmp_path_factory):
    """A function that writes a file with a byte-level tokenizer, or with SentencePiece's."""

    @cache
    def write(pre=None, *, prefix=True, **settings):
        folder = tmp_path_factory.mktemp("tokenizer")
        size = SENTENCEPIECE_SIZE if pre is None else BYTE_LEVEL_SIZE + 1  # and one that nothing uses
        theirs = random_checkpoint(folder, "llama", vocab_size=size, bos_token_id=0, eos_token_id=1)
        if pre is None:
            tokenizer = sentencepiece_settings(train_sentencepiece(prefix), prefix=prefix)
        else:
            (folder / "tokenizer.json").write_text(train_byte_level())
            tokenizer = byte_level_settings(folder, theirs.config, pre)
        changed = {f"tokenizer.{key.replace('ggml_', 'ggml.')}": value for key, value in settings.items()}
        # In a folder of its own: transformers would take a tokenizer.json beside it.
        path = tmp_path_factory.mktemp("gguf") / "model.gguf"
        return write_gguf(path, folder, tokenizer=tokenizer, settings=changed)

    return write


def read_by_transformers(path):
    return transformers.AutoTokenizer.from_pretrained(path.parent, gguf_file=path.name)


def ids_of(tokenizer, text):
    return tokenizer.encode(text, add_special_tokens=False).ids


@pytest.mark.parametrize("pre", ["gpt-2", "llama-bpe", "qwen2", "tekken"])
def test_byte_level_ids_and_texts_are_those_of_transformers(file_with, pre):
    path = file_with(pre)
    ours, theirs = regard.load(path), read_by_transformers(path)
    for text in [*TEXTS, NUMBERS]:
        ids = ids_of(ours.tokenizer, text)
        assert ids == theirs.encode(text, add_special_tokens=False), text
        assert ours.decode(ids) == theirs.decode(ids, skip_special_tokens=True)


# transformers does not know the digits of `smollm`: it cuts as GPT-2 does.
@pytest.mark.more
def test_smollm2s_ids_are_those_of_transformers():
    theirs = read_by_transformers(SMOLLM2.path / SMOLLM2_FILE)
    for text in (text for text in TEXTS if not any(character.isdigit() for character in text)):
        assert ids_of(smollm2().tokenizer, text) == theirs.encode(text, add_special_tokens=False), text


def test_smollm2_reads_each_digit_for_itself():
    tokens = smollm2().tokenizer.encode("in 1989, 3.5").tokens
    assert tokens == ["in", "Ġ", "1", "9", "8", "9", ",", "Ġ", "3", ".", "5"]
    assert smollm2().decode(smollm2().encode(NUMBERS).ids) == NUMBERS


@pytest.mark.parametrize(
    ("pre", "pieces"), [("llama-bpe", [3, 3, 1]), ("qwen2", [1] * 7), ("smollm", [1] * 7), ("gpt-2", [7])]
)
def test_numbers_are_cut_as_the_file_says(file_with, pre, pieces):
    cut = regard.load(file_with(pre)).tokenizer.pre_tokenizer.pre_tokenize_str("1234567")
    assert [len(piece) for piece, _ in cut] == pieces


def test_qwens_characters_are_composed_as_its_own_tokenizer_does(file_with):
    tokenizer = regard.load(file_with("qwen2")).tokenizer
    assert ids_of(tokenizer, "e\u0301") == ids_of(tokenizer, "\u00e9")


def test_a_whole_piece_is_its_token_in_llama_3_whatever_the_merges_give(file_with):
    tokens = regard.load(file_with("gpt-2")).tokenizer.get_vocab()
    unreachable = (*sorted(tokens, key=tokens.get)[:-1], "Ġriverbank")  # no merge makes it
    for pre, is_whole in (("gpt-2", False), ("llama-bpe", True)):
        tokenizer = regard.load(file_with(pre, ggml_tokens=unreachable)).tokenizer
        assert (tokenizer.encode(" riverbank", add_special_tokens=False).tokens == ["Ġriverbank"]) == is_whole


@pytest.mark.parametrize("prefix", [True, False])
def test_sentencepiece_ids_and_texts_are_those_of_sentencepiece_itself(file_with, prefix):
    ours, theirs = regard.load(file_with(prefix=prefix)), train_sentencepiece(prefix)
    for text in [*TEXTS[:-1], NUMBERS]:  # not the one with the tokens <s> and </s>
        ids = ids_of(ours.tokenizer, text)
        assert ids == theirs.encode(text), text
        assert ours.decode(ids) == theirs.decode(ids)


@given(text=st.text("abein rst.\n1é日", max_size=30))
def test_any_text_has_sentencepieces_own_ids(file_with, text):
    assert ids_of(loaded(file_with()).tokenizer, text) == train_sentencepiece().encode(text)


@cache
def loaded(path):
    return regard.load(path)


# But for texts that begin with a space, where the reader of transformers leaves out the space that is put before them.
def test_sentencepiece_ids_are_those_of_transformers(file_with):
    path = file_with()
    ours, theirs = regard.load(path), read_by_transformers(path)
    for text in (text for text in TEXTS[:-1] if not text.startswith(" ")):
        assert ids_of(ours.tokenizer, text) == theirs.encode(text, add_special_tokens=False), text


def test_tokens_of_the_kinds_control_and_user_defined_are_found_whole(file_with):
    tokenizer = regard.load(file_with()).tokenizer
    assert tokenizer.encode("a<|turn|><tool>", add_special_tokens=False).tokens == ["▁a", "<|turn|>", "<tool>"]
    assert tokenizer.decode(ids_of(tokenizer, "a<|turn|><tool>"), skip_special_tokens=True) == "a<tool>"


@pytest.mark.parametrize(
    ("pre", "settings", "expected"),
    [
        ("gpt-2", {}, ["a"]),
        ("llama-bpe", {}, ["<s>", "a"]),
        ("llama-bpe", {"ggml_add_bos_token": False}, ["a"]),
        ("gpt-2", {"ggml_add_bos_token": True}, ["<s>", "a"]),
        ("gpt-2", {"ggml_add_eos_token": True}, ["a", "</s>"]),
        (None, {}, ["<s>", "▁a"]),
        (None, {"ggml_add_bos_token": False, "ggml_add_eos_token": True}, ["▁a", "</s>"]),
    ],
)
def test_a_text_begins_and_ends_with_the_tokens_that_the_file_says(file_with, pre, settings, expected):
    assert regard.load(file_with(pre, **settings)).encode("a").tokens == expected


@pytest.mark.parametrize("pre", ["default", ...])
def test_a_llama_file_that_names_no_way_to_cut_is_cut_as_llama_3(file_with, pre):
    cut = regard.load(file_with("gpt-2", ggml_pre=pre)).tokenizer.pre_tokenizer.pre_tokenize_str("1234567")
    assert [len(piece) for piece, _ in cut] == [3, 3, 1]


@pytest.mark.parametrize(
    ("settings", "reason"),
    [
        ({"ggml_pre": "command-r"}, r"cuts texts as 'command-r' does; of GGUF, regard knows gpt-2, smollm"),
        ({"ggml_model": "bert"}, "has a tokenizer of the kind 'bert'; of GGUF, regard reads gpt2 and llama"),
        ({"ggml_model": ...}, "has a tokenizer of the kind 'no_vocab'"),
    ],
)
def test_with_an_unknown_tokenizer_the_model_works_with_ids(file_with, settings, reason):
    pretrained = regard.load(file_with("gpt-2", **settings))
    assert pretrained.model(torch.tensor([[1, 2]])).shape == (1, 2, BYTE_LEVEL_SIZE + 1)
    with pytest.raises(InputError, match=f"works with ids only: .*{reason}"):
        pretrained.encode("the river")


@pytest.mark.parametrize(
    ("settings", "expected"),
    [
        ({}, (1,)),
        ({"ggml_eot_token_id": 5, "ggml_eom_token_id": 6}, (1, 5, 6)),
        ({"ggml_eot_token_id": -1}, (1,)),
        ({"chat_template": "{{ messages }}"}, (1, 3)),
        ({"chat_template": "{{ messages }}", "ggml_eot_token_id": 5}, (1, 5)),
    ],
)
def test_the_end_of_a_turn_ends_a_text_of_a_model_that_chats(file_with, settings, expected):
    assert regard.load(file_with("gpt-2", **settings)).config.special_tokens.eos == expected
