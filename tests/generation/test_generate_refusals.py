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


def generate(ids, model=None, **options):
    return regard.generate(model or tiny(9), ids, **{"max_new_tokens": 3, **options})


@pytest.mark.parametrize(
    ("ids", "kind", "message"),
    [
        ([], InputError, r"prompt is empty: a model continues at least one token"),
        ([[1], []], InputError, r"prompt 1 is empty"),
        (torch.empty(0, dtype=torch.long), InputError, r"prompt is empty"),
        (torch.empty(0, 3, dtype=torch.long), InputError, r"there is no prompt: ids has no rows"),
        (torch.empty(2, 0, dtype=torch.long), InputError, r"prompt 0 is empty"),
        ([1, 9], InputError, r"prompt has the id 9; the vocabulary has ids 0 to 8"),
        ([[1], [2, -1]], InputError, r"prompt 1 has the id -1; the vocabulary has ids 0 to 8"),
        (torch.tensor([1, 9]), InputError, r"prompt has the id 9; the vocabulary has ids 0 to 8"),
        (torch.tensor([1.0, 2.0]), TypeError, r"ids must be whole numbers .*; got torch.float32 \(2,\)"),
        (torch.tensor([True]), TypeError, r"ids must be whole numbers .*; got torch.bool \(1,\)"),
        (torch.zeros(2, 2, 2, dtype=torch.long), TypeError, r"\(tokens,\) or \(batch, tokens\); got .* \(2, 2, 2\)"),
        (torch.tensor(3), TypeError, r"\(tokens,\) or \(batch, tokens\); got torch.int64 \(\)"),
        ([[1.5]], InputError, r"prompt has the id 1.5; the vocabulary has ids 0 to 8"),
        ([[1], 2.5], TypeError, r"lists of token ids; got a list with 2.5 in it"),
        ([None, 1], TypeError, r"lists of token ids; got a list with None in it"),
        (["a", 1], TypeError, r"lists of token ids; got a list with 'a' in it"),
        (None, TypeError, r"ids must be a tensor, a list of token ids or a text; got NoneType"),
        (7, TypeError, r"ids must be a tensor, a list of token ids or a text; got int"),
        ("text", TypeError, r"a bare model reads token ids; for the text 'text' hand over what regard.load returned"),
        (["text"], TypeError, r"a bare model reads token ids"),
    ],
)
def test_prompts(ids, kind, message):
    with pytest.raises(kind, match=message):
        generate(ids)


def test_positions():
    """As many new tokens as fit are written; of one more the message tells how many would."""
    for kind in ("learned", "rotary"):
        model = tiny(9, positions=kind, max_positions=8)
        assert len(generate([1, 2, 3], model, max_new_tokens=6)) == 9
        with pytest.raises(
            InputError, match=r"has 3 tokens.* 7 more .* 9 positions.* has 8: max_new_tokens=6 at the m"
        ):
            generate([1, 2, 3], model, max_new_tokens=7)
        with pytest.raises(InputError, match=r"prompt has 9 tokens, and the model has positions for 8: shorten it"):
            generate([1] * 9, model, max_new_tokens=1)
        assert len(generate([1] * 8, model, max_new_tokens=1)) == 9
        with pytest.raises(InputError, match=r"max_new_tokens=2 at the most"):
            generate([[1] * 7, [1]], model)
    model = tiny_translator(9, positions="learned", max_positions=6)
    assert len(generate([1] * 6, model, max_new_tokens=6)) == 7
    with pytest.raises(InputError, match=r"source has 7 tokens, and the model has positions for 6: shorten it"):
        generate([1] * 7, model)
    with pytest.raises(InputError, match=r"with 7 more .* max_new_tokens=6 at the most"):
        generate([1], model, max_new_tokens=7)


@pytest.mark.parametrize("number", [0, -1, 2.0, None, True, "3"])
def test_max_new_tokens(number):
    with pytest.raises(ValueError, match=r"max_new_tokens=.* must be a whole number, at least 1"):
        generate([1], max_new_tokens=number)


@pytest.mark.parametrize(
    ("facts", "message"),
    [
        ({"num_beams": 0}, r"num_beams=0 must be at least 1"),
        ({"num_beams": 2, "num_return_sequences": 3}, r"num_return_sequences=3 must be 1 to num_beams=2"),
        ({"num_return_sequences": 0}, r"num_return_sequences=0 must be 1 to num_beams=4"),
        (
            {"num_beams": 4, "num_beam_groups": 3, "diversity_penalty": 1.0},
            r"num_beam_groups=3 must divide num_beams=4 evenly",
        ),
        ({"num_beam_groups": 0}, r"num_beam_groups=0 must divide num_beams=4 evenly"),
        ({"diversity_penalty": 1.0}, r"diversity_penalty=1.0 sets groups apart, and num_beam_groups=1"),
        ({"num_beam_groups": 2, "diversity_penalty": -1.0}, r"diversity_penalty=-1.0 must be at least 0"),
        ({"num_beam_groups": 2, "diversity_penalty": float("nan")}, r"diversity_penalty=nan must be at least 0"),
        (
            {"num_beam_groups": 2, "force_words": [[1]]},
            r"num_beam_groups=2 and force_words=\[\[1\]\]: the beams can be divided in one way only",
        ),
        ({"length_penalty": float("inf")}, r"length_penalty=inf must be a finite number"),
        ({"length_penalty": float("nan")}, r"length_penalty=nan must be a finite number"),
    ],
)
def test_beams(facts, message):
    with pytest.raises(ValueError, match=message):
        Beam(**facts)


@pytest.mark.parametrize(
    ("facts", "message"),
    [
        ({"temperature": 0}, r"temperature=0 must be above 0; for the likeliest token take Greedy\(\)"),
        ({"temperature": -1.0}, r"temperature=-1.0 must be above 0"),
        ({"temperature": float("nan")}, r"temperature=nan must be above 0"),
        ({"top_k": 0}, r"top_k=0 must be at least 1, or None for all"),
        ({"top_p": 0}, r"top_p=0 must be above 0 and at most 1"),
        ({"top_p": 2}, r"top_p=2 must be above 0 and at most 1"),
        ({"min_p": -0.1}, r"min_p=-0.1 must be from 0 to 1"),
        ({"min_p": 1.1}, r"min_p=1.1 must be from 0 to 1"),
        ({"repetition_penalty": 0}, r"repetition_penalty=0 must be above 0; 1 changes nothing"),
    ],
)
def test_samples(facts, message):
    with pytest.raises(ValueError, match=message):
        Sample(**facts)


def test_strategies():
    for other in ("greedy", None, Beam):
        with pytest.raises(TypeError, match=r"strategy must be a Greedy, Sample or Beam; got"):
            generate([1], strategy=other)
    with pytest.raises(TypeError, match=r"a beam search knows its text only at its end: use generate, or stream"):
        regard.stream(tiny(9), [1], max_new_tokens=3, strategy=Beam())
    with pytest.raises(ValueError, match=r"stream writes one text; got 2 prompts"):
        regard.stream(tiny(9), [[1], [2]], max_new_tokens=3)
    with pytest.raises(TypeError, match=r"strategy must be a Greedy or a Sample; got 'greedy'"):
        regard.stream(tiny(9), [1], max_new_tokens=3, strategy="greedy")
    for other in ("beam", Greedy()):
        with pytest.raises(TypeError, match=r"strategy must be a Beam: other strategies have one text and no score"):
            beam_search(tiny(9), [1], max_new_tokens=3, strategy=other)


def test_models():
    encoder = Encoder(Config(**SMALL, vocab_size=9))
    with pytest.raises(TypeError, match=r"an encoder reads text and writes none: a decoder or an encoder-decoder is"):
        generate([1], encoder)
    with pytest.raises(InputError, match=r"all-MiniLM-L6-v2 is an encoder; an encoder reads text and writes none"):
        generate("a text", minilm())
    with pytest.raises(TypeError, match=r"model must be a regard Decoder, EncoderDecoder or what regard.load returned"):
        generate([1], torch.nn.Linear(2, 2))
    bare = EncoderDecoder(Config(**SMALL, vocab_size=9)).eval()
    with pytest.raises(InputError, match=r"does not say its decoder's start token: give decoder_start=ID"):
        generate([1], bare)
    assert generate([1], bare, decoder_start=4)[0] == 4
    for start in (9, -1):
        with pytest.raises(InputError, match=rf"decoder_start={start}: the vocabulary has ids 0 to 8"):
            generate([1], bare, decoder_start=start)
    with pytest.raises(ValueError, match=r"decoder_start=4: a decoder-only model begins with its prompt"):
        generate([1], decoder_start=4)


@pytest.mark.parametrize("stop", ["", ["x", ""], [None], [1.5], True, [[1]]])
def test_stops_that_are_none(stop):
    with pytest.raises(TypeError, match=r"stop=.* wants token ids and strings, none of them empty"):
        generate([1], stop=stop)


def test_stops(tmp_path):
    for stop in ("end", [1, "end"]):
        with pytest.raises(
            TypeError, match=r"stop=.* stop strings need a tokenizer, and a bare model has none; use reg"
        ):
            generate([1], stop=stop)
    for stop in (9, -1, [1, 9]):
        with pytest.raises(InputError, match=r"stop=.*: the vocabulary has ids 0 to 8"):
            generate([1], stop=stop)
    random_checkpoint(tmp_path, "llama")
    (tmp_path / "tokenizer.json").unlink()
    (tmp_path / "tokenizer_config.json").unlink()
    without = regard.load(tmp_path)
    for options in ({"ids": "text"}, {"ids": [3], "stop": "end"}, {"ids": [3], "strategy": Beam(force_words=["a"])}):
        with pytest.raises(InputError, match="has no tokenizer, so it works with ids only"):
            regard.generate(without, **options, max_new_tokens=3)
    assert len(regard.generate(without, [3], max_new_tokens=3, strategy=Greedy(), stop=())) == 4


def test_a_stream_refuses_at_once():
    """Not at its first token, when nobody may look."""
    with pytest.raises(InputError, match="prompt is empty"):
        regard.stream(tiny(9), [], max_new_tokens=3)
