"""Marian's tokenizer against transformers', on models that sentencepiece trains here."""

import json
import shutil
import sys
import warnings

import pytest
import sentencepiece

import regard
from regard import InputError
from regard.pretrained.hub import LocalFiles
from regard.pretrained.marian_tokenizer import MARIAN_TOKENIZER_FILES, MarianTokenizer
from weights import random_checkpoint, sentences, token_ids

TEXTS = ["The river bank.", "  two  spaces, and a tab\there", "", " ", ">>de<< The river bank", ">>de<<no space"]
TEXTS += [">> no code", "x << y", "unknown: 雪 ☃ é", "ﬁne ＷＩＤＥ half½", "a\u200bb \u00a0 c"]


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    """A Marian checkpoint as the Hub has them: two models of different texts, and one vocabulary for both."""
    folder = tmp_path_factory.mktemp("marian")
    pieces = {"</s>": 0, "<unk>": 1}
    for name, texts in (("source", sentences(300)[:150]), ("target", [t.upper() for t in sentences(300)[150:]])):
        model = folder / name
        options = {"vocab_size": 120, "minloglevel": 2, "hard_vocab_limit": False, "model_prefix": str(model)}
        sentencepiece.SentencePieceTrainer.train(sentence_iterator=iter(texts), **options)
        model.with_suffix(".model").rename(model.with_suffix(".spm"))
        model.with_suffix(".vocab").unlink()
        processor = sentencepiece.SentencePieceProcessor(model_file=str(model.with_suffix(".spm")))
        for i in range(processor.get_piece_size()):
            if not processor.is_control(i) and i % 17:  # the vocabulary lacks a few pieces, as real ones do
                pieces.setdefault(processor.id_to_piece(i), len(pieces))
    pieces |= {">>de<<": len(pieces), "<pad>": len(pieces) + 1}
    special = token_ids(pad=pieces["<pad>"], decoder_start=pieces["<pad>"])
    random_checkpoint(folder, "marian", vocab_size=len(pieces), max_position_embeddings=256, **special)
    for file in ("tokenizer.json", "tokenizer_config.json"):
        (folder / file).unlink()
    (folder / "vocab.json").write_text(json.dumps(pieces))
    return folder


@pytest.fixture(scope="module")
def theirs(folder):
    from transformers import MarianTokenizer as ReferenceTokenizer

    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # it would like sacremoses, and does not use it
        return ReferenceTokenizer(*(str(folder / file) for file in MARIAN_TOKENIZER_FILES))


def test_texts_to_ids_and_back(folder, theirs):
    pretrained = regard.load(folder)
    assert isinstance(pretrained.tokenizer, MarianTokenizer)
    for text in (*TEXTS, *sentences(300)[::50]):
        encoded = pretrained.encode(text)
        assert encoded.ids == theirs(text).input_ids
        assert encoded.tokens == [*theirs.tokenize(text), "</s>"]
        bare = pretrained.tokenizer.encode(text, add_special_tokens=False)
        assert (bare.ids, bare.tokens) == (encoded.ids[:-1], encoded.tokens[:-1])
        assert pretrained.decode(encoded.ids) == theirs.decode(encoded.ids, skip_special_tokens=True)
        raw = pretrained.tokenizer.decode(encoded.ids, skip_special_tokens=False)
        assert raw.replace(" ", "") == theirs.decode(encoded.ids).replace(" ", "")


def test_offsets_and_words_of_pieces(folder):
    text = ">>de<< The river, a bank"
    encoded = regard.load(folder).encode(text)
    assert len(encoded.ids) == len(encoded.tokens) == len(encoded.offsets) == len(encoded.word_ids)
    assert encoded.type_ids == [0] * len(encoded.ids)
    for token, (start, end) in zip(encoded.tokens[:-1], encoded.offsets[:-1], strict=True):
        assert text[start:end].replace(" ", "") == token.replace("▁", "")
    words = {}
    for token, word in zip(encoded.tokens, encoded.word_ids, strict=True):
        words.setdefault(word, []).append(token)
    assert ["".join(words[word]).strip("▁") for word in words] == [">>de<<", "The", "river,", "a", "bank", "</s>"]


def test_every_id_of_the_target_comes_back_as_text(folder, theirs):
    ids = list(json.loads((folder / "vocab.json").read_text()).values())
    assert regard.load(folder).decode(ids) == theirs.decode(ids, skip_special_tokens=True)


def test_the_tokenizer_is_saved_with_the_model(folder, tmp_path):
    regard.load(folder).save(tmp_path)
    assert {path.name for path in tmp_path.iterdir()} == {path.name for path in folder.iterdir()}
    assert regard.load(tmp_path).encode("The river").ids == regard.load(folder).encode("The river").ids


def test_a_second_vocabulary_is_not_taken_for_the_first(tmp_path):
    random_checkpoint(tmp_path, "marian", share_encoder_decoder_embeddings=False)
    for file in ("tokenizer.json", "tokenizer_config.json"):
        (tmp_path / file).unlink()
    for file in (*MARIAN_TOKENIZER_FILES, "target_vocab.json"):
        (tmp_path / file).write_text("{}")
    pretrained = regard.load(tmp_path)
    with pytest.raises(InputError, match=r"works with ids only: .*target_vocab\.json is a second vocabulary"):
        pretrained.encode("The river")
    pretrained.save(tmp_path / "copy")
    assert (tmp_path / "copy" / "target_vocab.json").is_file()


class TestDamage:
    @pytest.mark.parametrize(
        ("file", "content", "message"),
        [
            *((file, None, f"{file} is missing") for file in MARIAN_TOKENIZER_FILES),
            ("target.spm", "not a model", r"target\.spm cannot be read as a SentencePiece model"),
            ("vocab.json", '{"<unk>": 0}', "lacks '</s>'"),
            ("vocab.json", '{"</s>": 0}', "lacks '<unk>'"),
            ("vocab.json", '{"</s>": 0, "<unk>": "1"}', "'<unk>' has the id '1'"),
            ("vocab.json", '{"</s>": 0, "<unk>": -1}', "'<unk>' has the id -1"),
        ],
    )
    def test_a_damaged_file_is_named(self, folder, tmp_path, file, content, message):
        shutil.copytree(folder, tmp_path, dirs_exist_ok=True)
        (tmp_path / file).unlink()
        if content is not None:
            (tmp_path / file).write_text(content)
        with pytest.raises(InputError, match=message):
            MarianTokenizer(LocalFiles(tmp_path))

    def test_a_folder_without_tokenizer_files_works_with_ids(self, folder, tmp_path):
        shutil.copytree(folder, tmp_path, ignore=shutil.ignore_patterns(*MARIAN_TOKENIZER_FILES), dirs_exist_ok=True)
        pretrained = regard.load(tmp_path)
        assert pretrained.tokenizer is None
        with pytest.raises(InputError, match=r"tokenizer\.json is missing .*vocab\.json is missing"):
            pretrained.encode("The river")

    def test_without_sentencepiece_the_error_names_the_install(self, folder, monkeypatch):
        monkeypatch.setitem(sys.modules, "sentencepiece", None)
        with pytest.raises(InputError, match=r"is not installed: pip install '\.\[marian\]'"):
            regard.load(folder)
