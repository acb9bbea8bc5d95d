"""Text in, text out: stop strings, streams that take nothing back, spaces, and words as constraints."""

from __future__ import annotations

import copy
import re
from dataclasses import replace

import pytest
import torch
from tiny_models import tiny
from tokenizers import Tokenizer, decoders, models, pre_tokenizers, trainers

import regard
from regard import Beam, Greedy, InputError, Sample
from regard.generation import beam_search
from regard.generation.streaming import StopStrings, TextStreamer
from weights import random_checkpoint, sentences

CORPUS = [*sentences(300), *["crème brûlée 🙂 déjà vu 🚀🙂 naïve café 日本語"] * 30]
PROMPTS = ["The river bank", "A man", "crème 🙂", "1 + 1"]


def train_tokenizer(kind):
    """A real BPE tokenizer: of bytes as GPT-2's, or with a mark for the space and a few bytes as Llama's."""
    tokenizer = Tokenizer(models.BPE(unk_token=None, byte_fallback=kind == "marks"))
    if kind == "bytes":
        tokenizer.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
        tokenizer.decoder = decoders.ByteLevel()
        special, alphabet = ["<end>"], pre_tokenizers.ByteLevel.alphabet()
    else:
        tokenizer.pre_tokenizer = pre_tokenizers.Metaspace(prepend_scheme="first")
        tokenizer.decoder = decoders.Sequence([decoders.ByteFallback(), decoders.Metaspace(prepend_scheme="first")])
        special, alphabet = ["<end>", *(f"<0x{byte:02X}>" for byte in range(256))], []
    size = {"bytes": 400, "marks": 700}[kind]
    options = {"vocab_size": size, "special_tokens": special, "initial_alphabet": alphabet, "show_progress": False}
    tokenizer.train_from_iterator(CORPUS, trainers.BpeTrainer(**options))
    return tokenizer


@pytest.fixture(scope="module", params=["bytes", "marks"])
def model(request, tmp_path_factory):
    """A decoder with a tokenizer that was trained here."""
    folder, tokenizer = tmp_path_factory.mktemp(request.param), train_tokenizer(request.param)
    family, positions = {"bytes": ("gpt2", "n_positions"), "marks": ("llama", "max_position_embeddings")}[request.param]
    special = {"bos_token_id": 0, "eos_token_id": 0, "pad_token_id": None}
    random_checkpoint(folder, family, vocab_size=tokenizer.get_vocab_size(), **special, **{positions: 200})
    tokenizer.save(str(folder / "tokenizer.json"))
    return regard.load(folder)


def encode(model, text):
    return list(model.encode(text).ids)


def new_tokens(model, prompt, **options):
    """The new tokens that are written to a text."""
    read = encode(model, prompt)
    return regard.generate(model, read, **options)[len(read) :]


# What a text is.


def test_a_word_keeps_its_space(model):
    """The token of a word with its space before it, written right behind the prompt."""
    read, size = encode(model, "a"), model.config.vocab_size
    (the,) = [token for token in range(size) if model.decode([*read, token]) == "a the"]
    text = regard.generate(model, "a", max_new_tokens=1, strategy=Beam(force_words=[[the]]))
    assert text == " the"


@pytest.mark.parametrize("strategy", [Greedy(), Beam(num_beams=3)])
def test_several_texts_are_each_alone(model, strategy):
    together = regard.generate(model, PROMPTS, max_new_tokens=8, strategy=strategy)
    assert together == [regard.generate(model, prompt, max_new_tokens=8, strategy=strategy) for prompt in PROMPTS]
    assert regard.generate(model, PROMPTS[:1], max_new_tokens=8, strategy=strategy) == together[:1]
    if isinstance(strategy, Beam):
        several = regard.generate(model, PROMPTS, max_new_tokens=8, strategy=replace(strategy, num_return_sequences=2))
        assert [len(texts) for texts in several] == [2] * len(PROMPTS)
        assert [texts[0] for texts in several] == together


@pytest.mark.parametrize("strategy", [Greedy(), Beam(num_beams=3), Sample(seed=3)])
def test_a_translators_text(tmp_path, strategy):
    random_checkpoint(tmp_path, "marian")
    translator = regard.load(tmp_path)
    for text in ("the river bank", "a man"):
        target = regard.generate(translator, encode(translator, text), max_new_tokens=9, strategy=strategy)
        assert target[0] == translator.config.special_tokens.decoder_start
        text_of_ids = regard.generate(translator, text, max_new_tokens=9, strategy=strategy)
        assert text_of_ids == translator.decode(target)
        if not isinstance(strategy, Beam):
            streamed = regard.stream(translator, text, max_new_tokens=9, strategy=strategy)
            assert "".join(streamed) == text_of_ids


@pytest.mark.usefixtures("as_a_user_runs_it")
def test_translate_takes_a_beam_of_4_and_as_many_tokens_as_there_are_positions(tmp_path):
    random_checkpoint(tmp_path, "bart")
    translator, texts = regard.load(tmp_path), ["a man", "the river bank"]
    expected = regard.generate(translator, texts, max_new_tokens=64, strategy=Beam(num_beams=4))
    assert list(regard.translate(translator, texts)) == expected
    with pytest.raises(ValueError, match="batch_size=0 must be at least 1"):
        regard.translate(translator, texts, batch_size=0)
    with pytest.raises(InputError, match=r"text 2 \('a a a .*\): the text has .* tokens, and .* has positions for 64"):
        list(regard.translate(translator, [*texts, "a " * 70]))
    with pytest.raises(InputError, match=r"translating needs an encoder-decoder .*: Decoder"):
        regard.translate(tiny(), texts)


def test_the_end_token_is_no_text(model):
    """Of a token that is written, the model's own stop token ends the text and is not shown."""
    model, options = copy.deepcopy(model), {"max_new_tokens": 30, "strategy": Sample(seed=3, temperature=2)}
    lm_head = model.model.lm_head or model.model.embeddings.token
    longest = new_tokens(model, "A man", **options, stop=())
    with torch.no_grad():  # where a token of the text is likely, the end token becomes as likely
        lm_head.weight[0] = lm_head.weight[longest[4]]
    new, text = new_tokens(model, "A man", **options), regard.generate(model, "A man", **options)
    assert (new[-1], 1 < len(new) < 30, "<end>" in text) == (0, True, False)
    assert "".join(regard.stream(model, "A man", **options)) == text


# Streams.


@pytest.mark.parametrize("seed", [pytest.param(n, marks=() if n in (1, 2) else pytest.mark.more) for n in range(4)])
def test_a_stream_is_what_generate_returns(model, seed):
    """Random tokens: letters cut in the middle, bytes that are no letter. Nothing shown is ever taken back."""
    prompt = PROMPTS[seed]
    options = {"max_new_tokens": 25, "strategy": Sample(seed=seed, temperature=1 + seed / 2), "stop": ()}
    text = regard.generate(model, prompt, **options)
    pieces = list(regard.stream(model, prompt, **options))
    assert ("".join(pieces), all(pieces), len(pieces) > 6) == (text, True, True)
    read, ids = encode(model, prompt), new_tokens(model, prompt, **options)
    assert model.decode(read) + text == model.decode([*read, *ids])
    assert list(regard.stream(model, read if seed % 2 else torch.tensor(read), **options)) == ids


@pytest.mark.parametrize(
    ("data", "stop", "expected", "num_read"),
    [
        ("aé🙂b".encode(), [], [(1, "a"), (3, "é"), (7, "🙂"), (8, "b")], 8),  # a letter is shown when it is whole
        # Bytes that are no letter are shown when that is certain.
        (b"a\xc3b\xf0\x9f", [], [(1, "a"), (3, "\ufffdb"), (5, "\ufffd")], 5),
        # The beginning of a stop string is held back, and nothing behind the string is computed.
        (b"a ST STO STOP more", ["STOP", " STOPS"], [(1, "a"), (5, " ST"), (9, " STO"), (13, " ")], 13),
        (b"a ST", ["STOP"], [(1, "a"), (2, " "), (4, "ST")], 4),
        (b"aaab", ["aab"], [(3, "a"), (4, "")], 4),
    ],
)
def test_a_piece_comes_as_soon_as_nothing_can_change_it(data, stop, expected, num_read):
    read = []
    streamer = TextStreamer(lambda ids: bytes(ids).decode("utf-8", errors="replace"), StopStrings(stop))
    pieces = streamer.pieces(read.append(byte) or byte for byte in data)
    assert [(len(read), piece) for piece in pieces] == expected
    assert len(read) == num_read


# Stop strings.


@pytest.mark.parametrize("strategy", [Greedy(), Sample(seed=6, temperature=2)])
def test_a_text_ends_before_a_stop_string(model, strategy):
    """Of any two or three letters of the text: often over the border of two tokens."""
    prompt = "The river"
    options = {"max_new_tokens": 12, "strategy": strategy}
    full = regard.generate(model, prompt, **options)
    ids, num_cut = new_tokens(model, prompt, **options), 0
    for at in range(0, min(16, len(full) - 3), 3):
        string = full[at : at + 2 + at % 3]
        if "\N{REPLACEMENT CHARACTER}" in string:
            continue
        text = regard.generate(model, prompt, **options, stop=string)
        assert text == full[: full.find(string)]
        assert "".join(regard.stream(model, prompt, **options, stop=[string, "never there"])) == text
        if string[0] != " ":  # alone, a text's first space may not be there
            shorter = new_tokens(model, prompt, **options, stop=[string])
            assert shorter == ids[: len(shorter)]
            assert string in model.decode(shorter)
            assert string not in model.decode(shorter[:-1])
            num_cut += len(shorter) < len(ids)
    assert num_cut


def test_a_beam_ends_at_a_stop_string(model):
    strategy = Beam(num_beams=4, num_return_sequences=4)
    full = regard.generate(model, "The river", max_new_tokens=10, strategy=strategy)[0]
    ended = 0
    for string in [letter for letter in dict.fromkeys(full) if letter.isalnum()][:2]:
        options = {"max_new_tokens": 10, "strategy": strategy, "stop": string}
        (hypotheses,) = beam_search(model, "The river", **options)
        ended += sum(string in model.decode(h.ids) for h in hypotheses)
        assert all(string not in model.decode(h.ids[:-1]) for h in hypotheses)
        assert all(len(h.ids) == 10 or string in model.decode(h.ids) for h in hypotheses)
        assert not any(string in text for text in regard.generate(model, "The river", **options))
    assert ended


def test_stop_ids_and_strings_together(model):
    """Strings come beside the model's own stop tokens, ids instead of them; and both may be given."""
    new = new_tokens(model, "The river", max_new_tokens=12, stop=())
    token = new[4]
    assert new_tokens(model, "The river", max_new_tokens=12, stop=token) == new[: new.index(token) + 1]
    assert new_tokens(model, "The river", max_new_tokens=12, stop=[token, "\x00"]) == new[: new.index(token) + 1]


# Words.


@pytest.mark.parametrize("words", [["the bank", "loan"], ["café", "🙂"]])
def test_a_word_that_must_appear(model, words):
    strategy = Beam(num_beams=4, force_words=words)
    for text in regard.generate(model, PROMPTS[:2], max_new_tokens=20, strategy=strategy):
        assert all(word in text for word in words)


def test_a_word_that_may_not_appear(model):
    """Of the words that a search writes, each is forbidden in turn; however it could be spelled in tokens."""
    full = regard.generate(model, "The river", max_new_tokens=12, strategy=Beam(num_beams=4))
    words = list(dict.fromkeys(re.findall(r"\w+", full)))[:2]
    assert words
    for word in words:
        strategy = Beam(num_beams=4, num_return_sequences=4, bad_words=[word])
        texts = regard.generate(model, "The river", max_new_tokens=12, strategy=strategy)
        assert full not in texts
        assert not any(word in re.findall(r"\w+", text) for text in texts)


def test_each_of_several_translations_has_its_score(tmp_path):
    random_checkpoint(tmp_path, "t5")
    translator, strategy = regard.load(tmp_path), Beam(num_beams=4, num_return_sequences=2)
    sources, options = ["the river bank", "", "a man"], {"strategy": strategy, "max_new_tokens": 6}
    first, empty, last = regard.translate(translator, sources, batch_size=1, **options, return_hypotheses=True)
    assert empty == [([], None, "", None)] * 2
    for source, found in (("the river bank", first), ("a man", last)):
        assert found == regard.generate(translator, source, **options, return_hypotheses=True)
        assert [h.score for h in found] == sorted((h.score for h in found), reverse=True)
    texts = [[h.text for h in found] for found in (first, empty, last)]
    assert list(regard.translate(translator, sources, **options)) == texts


def test_a_text_ends_for_a_reason(tmp_path):
    random_checkpoint(tmp_path, "gpt2")
    writer = regard.load(tmp_path)
    ids = regard.generate(writer, "the river", max_new_tokens=6, stop=(), return_hypotheses=True).ids
    piece = writer.decode(ids)[2:4]
    for stop, reason in (((), "max_new_tokens"), (ids[2], "eos_token"), (piece, "stop_string")):
        ended = regard.generate(writer, "the river", max_new_tokens=6, stop=stop, return_hypotheses=True)
        assert (ended.stop_reason, ended.score) == (reason, None)
        assert ended.text == regard.generate(writer, "the river", max_new_tokens=6, stop=stop)
