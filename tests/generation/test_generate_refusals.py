"""What cannot be generated is refused with a message that names the value, what was expected, and the way out."""

from __future__ import annotations

import pytest
import torch
from tiny_models import SMALL, tiny, tiny_translator

import regard
from regard import Beam, Greedy, Sample
from regard.errors import InputError
from regard.generation import beam_search
from regard.transformer import Config, Encoder, EncoderDecoder
from weights import minilm, random_checkpoint

pytestmark = pytest.mark.usefixtures("as_a_user_runs_it")
NAN = float("nan")


def generate(ids, model=None, **options):
    return regard.generate(model or tiny(9), ids, **{"max_new_tokens": 3, **options})


@pytest.mark.parametrize(
    ("ids", "kind", "message"),
    [
        ([], InputError, r"prompt is empty: a model continues at least one token"),
        ([[1], []], InputError, r"prompt 1 is empty"),
        (torch.empty(0, 3, dtype=torch.long), InputError, r"there is no prompt: ids has no rows"),
        (torch.empty(2, 0, dtype=torch.long), InputError, r"prompt 0 is empty"),
        ([1, 9], InputError, r"prompt has the id 9; the vocabulary has ids 0 to 8"),
        ([[1], [2, -1]], InputError, r"prompt 1 has the id -1; the vocabulary has ids 0 to 8"),
        (torch.tensor([1.0, 2.0]), TypeError, r"ids must be whole numbers .*; got torch.float32 \(2,\)"),
        (torch.tensor([True]), TypeError, r"ids must be whole numbers .*; got torch.bool \(1,\)"),
        (torch.zeros(2, 2, 2, dtype=torch.long), TypeError, r"\(tokens,\) or \(batch, tokens\); got .* \(2, 2, 2\)"),
        ([[1.5]], InputError, r"prompt has the id 1.5; the vocabulary has ids 0 to 8"),
        ([[1], 2.5], TypeError, r"token ids, texts, messages or lists of those; got a list with 2.5 in it"),
        ([None, 1], TypeError, r"messages or lists of those; got a list with None in it"),
        (None, TypeError, r"ids must be a tensor, a list of token ids, a text or a list of .*; got NoneType"),
        ("text", TypeError, r"a bare model reads token ids; for the text 'text' hand over what regard.load returned"),
        (["text"], TypeError, r"a bare model reads token ids"),
    ],
)
def test_prompts(ids, kind, message):
    with pytest.raises(kind, match=message):
        generate(ids)


@pytest.mark.parametrize("kind", ["learned", "rotary"])
@pytest.mark.parametrize(
    ("make", "ids", "count", "message"),
    [
        (tiny, [1, 2, 3], 7, r"has 3 tokens.* 7 more .* 9 positions.* has 8: max_new_tokens=6 at the m"),
        (tiny, [1] * 9, 1, r"prompt has 9 tokens, and the model has positions for 8: shorten it"),
        (tiny, [[1] * 7, [1]], 3, r"max_new_tokens=2 at the most"),
        (tiny_translator, [1], 9, r"with 9 more .* max_new_tokens=8 at the most"),
        (tiny_translator, [1] * 9, 1, r"source has 9 tokens, and the model has positions for 8: shorten it"),
    ],
)
def test_as_many_new_tokens_as_fit_are_written_and_of_one_more_the_message_tells(make, ids, count, message, kind):
    model = make(9, positions=kind, max_positions=8)
    with pytest.raises(InputError, match=message):
        generate(ids, model, max_new_tokens=count)
    fitting = {"max_new_tokens": count - 1} if count > 1 else {"ids": [1] * 8, "max_new_tokens": 1}
    assert generate(**{"ids": ids, "model": model, **fitting})


@pytest.mark.parametrize("number", [0, -1, 2.0, None, True, "3"])
def test_max_new_tokens(number):
    with pytest.raises(ValueError, match=r"max_new_tokens=.* must be a whole number, at least 1"):
        generate([1], max_new_tokens=number)


@pytest.mark.parametrize(
    ("strategy", "options", "message"),
    [
        (Beam, {"num_beams": 0}, r"num_beams=0 must be at least 1"),
        (Beam, {"num_beams": 2, "num_return_sequences": 3}, r"num_return_sequences=3 must be 1 to num_beams=2"),
        (Beam, {"num_beam_groups": 3, "diversity_penalty": 1.0}, r"num_beam_groups=3 must divide num_beams=4 evenly"),
        (Beam, {"num_beam_groups": 0}, r"num_beam_groups=0 must divide num_beams=4 evenly"),
        (Beam, {"diversity_penalty": 1.0}, r"diversity_penalty=1.0 sets groups apart, and num_beam_groups=1"),
        (Beam, {"num_beam_groups": 2, "diversity_penalty": -1.0}, r"diversity_penalty=-1.0 must be at least 0"),
        (Beam, {"num_beam_groups": 2, "diversity_penalty": NAN}, r"diversity_penalty=nan must be at least 0"),
        (Beam, {"num_beam_groups": 2, "force_words": [[1]]}, r"groups=2 and force_words=\[\[1\]\]: the beams can be"),
        (Beam, {"length_penalty": float("inf")}, r"length_penalty=inf must be from -50 to 50"),
        (Beam, {"length_penalty": NAN}, r"length_penalty=nan must be from -50 to 50"),
        (Beam, {"length_penalty": -400}, r"length_penalty=-400 must be from -50 to 50"),
        (Sample, {"seed": 2**64}, r"seed=18446744073709551616 must be a number of 64 bits"),
        (
            Sample,
            {"temperature": 0},
            r"temperature=0 must be above 0 and finite; for the likeliest .* Greedy\(\)",
        ),
        (Sample, {"temperature": NAN}, r"temperature=nan must be above 0"),
        (Sample, {"top_k": 0}, r"top_k=0 must be at least 1$"),
        (Sample, {"top_p": 0}, r"top_p=0 must be above 0 and at most 1"),
        (Sample, {"top_p": 2}, r"top_p=2 must be above 0 and at most 1"),
        (Sample, {"min_p": -0.1}, r"min_p=-0.1 must be from 0 to 1"),
        (Sample, {"min_p": 1.1}, r"min_p=1.1 must be from 0 to 1"),
        (Sample, {"repetition_penalty": 0}, r"repetition_penalty=0 must be above 0; 1 changes nothing"),
    ],
)
def test_strategies_out_of_range(strategy, options, message):
    with pytest.raises(ValueError, match=message):
        strategy(**options)


@pytest.mark.parametrize(
    ("call", "options", "kind", "message"),
    [
        (regard.generate, {"strategy": None}, TypeError, r"strategy must be a Greedy, Sample or Beam; got None"),
        (regard.generate, {"strategy": Beam}, TypeError, r"strategy must be a Greedy, Sample or Beam; got"),
        (beam_search, {"strategy": Greedy()}, TypeError, r"strategy must be a Beam: other strategies have one text"),
        (regard.stream, {"strategy": Beam()}, TypeError, r"a beam search knows its text only at its end: use generate"),
        (regard.stream, {"strategy": "greedy"}, TypeError, r"strategy must be a Greedy or a Sample; got 'greedy'"),
        (regard.stream, {"ids": [[1], [2]]}, ValueError, r"stream writes one text; got 2 prompts"),
        # At once, not at the first token, when nobody may look.
        (regard.stream, {"ids": []}, InputError, r"prompt is empty"),
    ],
)
def test_calls_that_do_not_fit_their_strategy(call, options, kind, message):
    with pytest.raises(kind, match=message):
        call(tiny(9), **{"ids": [1], "max_new_tokens": 3, **options})


def test_models():
    bare = EncoderDecoder(Config(**SMALL, vocab_size=9)).eval()
    start = r": the vocabulary has ids 0 to 8"
    for model, options, kind, message in (
        (Encoder(Config(**SMALL, vocab_size=9)), {}, TypeError, r"an encoder reads text and writes none: a decoder or"),
        (minilm(), {"ids": "a text"}, InputError, r"all-MiniLM-L6-v2 is an encoder; an encoder reads text and writes"),
        (torch.nn.Linear(2, 2), {}, TypeError, r"must be a regard Decoder, EncoderDecoder or what regard.load"),
        (bare, {}, InputError, r"does not say its decoder's start token: give decoder_start=ID"),
        (bare, {"decoder_start": 9}, InputError, "decoder_start=9" + start),
        (bare, {"decoder_start": -1}, InputError, "decoder_start=-1" + start),
        (tiny(9), {"decoder_start": 4}, ValueError, r"decoder_start=4: a decoder-only model begins with its prompt"),
    ):
        with pytest.raises(kind, match=message):
            generate(**{"ids": [1], "model": model, **options})
    assert generate([1], bare, decoder_start=4)[0] == 4


@pytest.mark.parametrize(
    ("stops", "kind", "message"),
    [
        ([[None], [1.5], True, [[1]]], TypeError, r"stop=.* wants token ids and strings"),
        (["", ["x", ""]], InputError, r"stop='' is empty: give the text that generation ends before"),
        (["end", [1, "end"]], TypeError, r"stop strings need a tokenizer, and a bare model has none; use reg"),
        ([9, -1, [1, 9]], InputError, r"stop=.*: the vocabulary has ids 0 to 8"),
    ],
)
def test_stops(stops, kind, message):
    for stop in stops:
        with pytest.raises(kind, match=message):
            generate([1], stop=stop)


@pytest.mark.parametrize(
    "options", [{"ids": "text"}, {"ids": [3], "stop": "end"}, {"ids": [3], "strategy": Beam(force_words=["a"])}]
)
def test_a_model_without_a_tokenizer_works_with_ids_only(tmp_path, options):
    random_checkpoint(tmp_path, "llama")
    (tmp_path / "tokenizer.json").unlink()
    model = regard.load(tmp_path)
    with pytest.raises(InputError, match="has no tokenizer, so it works with ids only"):
        regard.generate(model, **options, max_new_tokens=3)
    assert len(regard.generate(model, [3], max_new_tokens=3, stop=())) == 4
