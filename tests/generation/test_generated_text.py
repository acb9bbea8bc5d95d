"""Text in, text out: stop strings, streams that take nothing back, spaces, and words as constraints."""

from __future__ import annotations

import re

import pytest
import torch
from tokenizers import Tokenizer, decoders, models, pre_tokenizers, trainers

import regard
from regard import Beam, Greedy, Sample
from regard.errors import InputError
from regard.generation import beam_search
from regard.generation.streaming import StopStrings, TextStreamer
from weights import random_checkpoint, sentences

CORPUS = [*sentences(300), *["crème brûlée 🙂 déjà vu 🚀🙂 naïve café 日本語"] * 30]
PROMPTS = ["The river bank", "A man", "crème 🙂", "1 + 1"]


def train_tokenizer(folder, kind):
    """A real BPE tokenizer of 400 tokens: byte-level as GPT-2's, or with a mark for the space as Llama's."""
    tokenizer = Tokenizer(models.BPE(unk_token=None, byte_fallback=kind == "marks"))
    special, alphabet = ["<end>"], []
    if kind == "bytes":
        tokenizer.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
        tokenizer.decoder = decoders.ByteLevel()
        alphabet = pre_tokenizers.ByteLevel.alphabet()
    else:
        tokenizer.pre_tokenizer = pre_tokenizers.Metaspace(prepend_scheme="first")
        tokenizer.decoder = decoders.Sequence([decoders.ByteFallback(), decoders.Metaspace(prepend_scheme="first")])
        special += [f"<0x{byte:02X}>" for byte in range(256)]
    size = 400 if kind == "bytes" else 700
    trainer = trainers.BpeTrainer(
        vocab_size=size, special_tokens=special[:1], initial_alphabet=alphabet, show_progress=False
    )
    if kind == "marks":
        trainer = trainers.BpeTrainer(vocab_size=size, special_tokens=special, show_progress=False)
    tokenizer.train_from_iterator(CORPUS, trainer)
    tokenizer.save(str(folder / "tokenizer.json"))
    return tokenizer.get_vocab_size()


@pytest.fixture(scope="module", params=["bytes", "marks"])
def model(request, tmp_path_factory):
    """A decoder with a tokenizer that was trained here."""
    folder = tmp_path_factory.mktemp(request.param)
    size = train_tokenizer(folder, request.param)
    tokenizer = (folder / "tokenizer.json").read_bytes()
    family, facts = {"bytes": ("gpt2", {"n_positions": 200}), "marks": ("llama", {"max_position_embeddings": 200})}[
        request.param
    ]
    random_checkpoint(folder, family, vocab_size=size, bos_token_id=0, eos_token_id=0, pad_token_id=None, **facts)
    (folder / "tokenizer.json").write_bytes(tokenizer)
    return regard.load(folder)


@pytest.fixture(scope="module")
def translator(tmp_path_factory):
    """An encoder-decoder that reads and writes text."""
    folder = tmp_path_factory.mktemp("marian")
    random_checkpoint(folder, "marian")
    return regard.load(folder)


def encode(model, text):
    return list(model.encode(text).ids)


def new_tokens(model, prompt, **options):
    """The new tokens that are written to a text."""
    read = encode(model, prompt)
    return regard.generate(model, read, **options)[len(read) :]


# What a text is.


@pytest.mark.parametrize("prompt", PROMPTS)
def test_the_text_is_what_stands_behind_the_prompt(model, prompt):
    """The spaces between them included."""
    for seed in range(5):
        strategy = Sample(seed=seed, temperature=0.8)
        new = new_tokens(model, prompt, max_new_tokens=12, strategy=strategy)
        text = regard.generate(model, prompt, max_new_tokens=12, strategy=strategy)
        assert model.decode(encode(model, prompt)) + text == model.decode([*encode(model, prompt), *new])


def test_a_word_keeps_its_space(model):
    """The token of a word with its space before it, written right behind the prompt."""
    read, size = encode(model, "a"), model.config.vocab_size
    (the,) = [token for token in range(size) if model.decode([*read, token]) == "a the"]
    text = regard.generate(model, "a", max_new_tokens=1, strategy=Beam(force_words=[[the]]))
    assert text == " the"


def test_several_texts_are_each_alone(model):
    for strategy in (Greedy(), Beam(num_beams=3)):
        together = regard.generate(model, PROMPTS, max_new_tokens=10, strategy=strategy)
        single = [regard.generate(model, prompt, max_new_tokens=10, strategy=strategy) for prompt in PROMPTS]
        assert together == single
        assert all(isinstance(text, str) for text in together)
    assert regard.generate(model, PROMPTS[:1], max_new_tokens=10, strategy=Beam(num_beams=3)) == single[:1]
    several = regard.generate(model, PROMPTS[:2], max_new_tokens=6, strategy=Beam(num_beams=3, num_return_sequences=2))
    assert [len(texts) for texts in several] == [2, 2]
    assert (
        regard.generate(model, PROMPTS[0], max_new_tokens=6, strategy=Beam(num_beams=3, num_return_sequences=2))
        == several[0]
    )


def test_a_translators_text(translator):
    for text in ("the river bank", "a man"):
        source = encode(translator, text)
        for strategy in (Greedy(), Beam(num_beams=3), Sample(seed=3)):
            target = regard.generate(translator, source, max_new_tokens=9, strategy=strategy)
            assert target[0] == translator.config.special_tokens.decoder_start
            text_of_ids = regard.generate(translator, text, max_new_tokens=9, strategy=strategy)
            assert text_of_ids == translator.decode(target)
            if not isinstance(strategy, Beam):
                streamed = regard.stream(translator, text, max_new_tokens=9, strategy=strategy)
                assert "".join(streamed) == text_of_ids


def test_the_end_token_is_no_text(model):
    """Of a token that is written, the model's own stop token ends the text and is not shown."""
    with torch.no_grad():
        weight = model.model.embeddings.token.weight
        before = weight.clone()
        head = model.model.lm_head.weight if model.model.lm_head is not None else weight
        head[0] = head[0] * 8
    try:
        for seed in range(40):
            strategy = Sample(seed=seed, temperature=3)
            new = new_tokens(model, "A man", max_new_tokens=30, strategy=strategy)
            if new[-1] == 0 and len(new) > 1:
                break
        text = regard.generate(model, "A man", max_new_tokens=30, strategy=strategy)
        assert len(new) < 30
        assert "<end>" not in text
        assert "".join(regard.stream(model, "A man", max_new_tokens=30, strategy=strategy)) == text
    finally:
        with torch.no_grad():
            head[0] = head[0] / 8
            weight.copy_(before)


# Streams.


@pytest.mark.parametrize("seed", range(8))
def test_a_stream_is_what_generate_returns(model, seed):
    """Random tokens: letters cut in the middle, bytes that are no letter. Nothing shown is ever taken back."""
    prompt = PROMPTS[seed % len(PROMPTS)]
    options = {"max_new_tokens": 40, "strategy": Sample(seed=seed, temperature=1 + seed / 3), "stop": ()}
    text = regard.generate(model, prompt, **options)
    pieces = list(regard.stream(model, prompt, **options))
    assert "".join(pieces) == text
    assert all(pieces)
    assert len(pieces) > 10
    ids = new_tokens(model, prompt, **options)
    assert list(regard.stream(model, encode(model, prompt), **options)) == ids
    assert list(regard.stream(model, torch.tensor(encode(model, prompt)), **options)) == ids


def stream_bytes(data, stop=()):
    """The pieces of bytes that come one by one, and how many bytes were asked for at each."""
    num_read = 0

    def tokens():
        nonlocal num_read
        for byte in data:
            num_read += 1
            yield byte

    streamer = TextStreamer(lambda ids: bytes(ids).decode("utf-8", errors="replace"), StopStrings(stop))
    return [(num_read, piece) for piece in streamer.pieces(tokens())], lambda: num_read


def test_a_letter_is_shown_when_it_is_whole():
    pieces, _ = stream_bytes("aé🙂b".encode())
    assert pieces == [(1, "a"), (3, "é"), (7, "🙂"), (8, "b")]


def test_bytes_that_are_no_letter_are_shown_when_that_is_certain():
    pieces, _ = stream_bytes(b"a\xc3b\xf0\x9f")
    assert pieces == [(1, "a"), (3, "\N{REPLACEMENT CHARACTER}b"), (5, "\N{REPLACEMENT CHARACTER}")]


def test_the_beginning_of_a_stop_string_is_held_back():
    pieces, num_read = stream_bytes(b"a ST STO STOP more", ["STOP", " STOPS"])
    assert pieces == [(1, "a"), (5, " ST"), (9, " STO"), (13, " ")]
    assert num_read() == 13  # nothing behind it is computed
    pieces, _ = stream_bytes(b"a ST", ["STOP"])
    assert pieces == [(1, "a"), (2, " "), (4, "ST")]
    pieces, _ = stream_bytes(b"aaab", ["aab"])
    assert "".join(piece for _, piece in pieces) == "a"


# Stop strings.


@pytest.mark.parametrize("strategy", [Greedy(), Sample(seed=5), Sample(seed=6, temperature=2)])
def test_a_text_ends_before_a_stop_string(model, strategy):
    """Of any two or three letters of the text: often over the border of two tokens."""
    prompt = "The river"
    options = {"max_new_tokens": 16, "strategy": strategy}
    full = regard.generate(model, prompt, **options)
    ids, cut = new_tokens(model, prompt, **options), 0
    for at in range(0, min(24, len(full) - 3), 3):
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
            cut += len(shorter) < len(ids)
    assert cut


def test_a_beam_ends_at_a_stop_string(model):
    full = regard.generate(model, "The river", max_new_tokens=12, strategy=Beam(num_beams=4))
    letters = [letter for letter in dict.fromkeys(full) if letter.isalnum()]
    ended = 0
    for string in letters[:4]:
        hypotheses = beam_search(model, "The river", max_new_tokens=12, strategy=Beam(num_beams=4), stop=string)[0]
        ended += sum(string in model.decode(h.ids) for h in hypotheses)
        assert all(string not in model.decode(h.ids[:-1]) for h in hypotheses)
        assert all(len(h.ids) == 12 or string in model.decode(h.ids) for h in hypotheses)
        for text in regard.generate(
            model, "The river", max_new_tokens=12, strategy=Beam(num_beams=4, num_return_sequences=4), stop=[string]
        ):
            assert string not in text
    assert ended


def test_stop_ids_and_strings_together(model):
    """Strings come beside the model's own stop tokens, ids instead of them; and both may be given."""
    new = new_tokens(model, "The river", max_new_tokens=20, stop=())
    token = new[4]
    assert new_tokens(model, "The river", max_new_tokens=20, stop=token) == new[: new.index(token) + 1]
    assert new_tokens(model, "The river", max_new_tokens=20, stop=[token, "\x00"]) == new[: new.index(token) + 1]


# Words.


def test_a_word_that_must_appear(model):
    for words in (["river"], ["the bank", "loan"], ["café", "🙂"]):
        texts = regard.generate(model, PROMPTS[:2], max_new_tokens=20, strategy=Beam(num_beams=4, force_words=words))
        for text in texts:
            for word in words:
                assert word in text


def test_a_word_that_may_not_appear(model):
    """Of the words that a search writes, each is forbidden in turn; however it could be spelled in tokens."""
    strategy = Beam(num_beams=4)
    full = regard.generate(model, "The river", max_new_tokens=14, strategy=strategy)
    words = list(dict.fromkeys(re.findall(r"\w+", full)))[:4]
    assert words
    for word in words:
        texts = regard.generate(
            model, "The river", max_new_tokens=14, strategy=Beam(num_beams=4, num_return_sequences=4, bad_words=[word])
        )
        for text in texts:
            assert word not in re.findall(r"\w+", text)
            assert text != full


def test_words_that_contradict_each_other(model):
    with pytest.raises(InputError, match="contradict each other"):
        regard.generate(model, "A man", max_new_tokens=9, strategy=Beam(force_words=["river"], bad_words=["river"]))
    with pytest.raises(InputError, match=r"tokens, and max_new_tokens=2 is fewer"):
        regard.generate(model, "A man", max_new_tokens=2, strategy=Beam(force_words=["crocodiles and hippopotami"]))
