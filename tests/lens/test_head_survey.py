"""All heads of a model on one word: positional patterns, and the head and the keys that an explanation names."""

import pytest
import torch

from lens.explained import pretrained
from lens.recordings import planted_map, to
from regard.lens.text.activations import ActivationCache, LayerActivations
from regard.lens.text.head_survey import HeadSurvey
from regard.lens.text.streams import Streams
from weights import minilm

BEFORE, OWN, AFTER = to(0, *range(7)), to(*range(8)), to(*range(1, 8), 7)
CLS, SEP = to(*[0] * 8), to(*[7] * 8)
VARIED, FAINT = to(3, 4, 5, 6, 1, 2, 3, 4), to(3, 5, 6, 2, 1, 3, 4, 5, share=0.5)


def survey(*layers, position=4, streams=None):
    """Of planted heads, by default on "a bank in the river ran": [CLS], six words, [SEP]."""
    streams = streams or Streams.of("a bank in the river ran", minilm(), None, None)
    attention, output = minilm().model.blocks[0].attention, torch.zeros(len(streams.query_words.tokens), 1)
    layers = [LayerActivations(attention, planted_map(*heads), output) for heads in layers]
    return HeadSurvey.of(ActivationCache([], layers), streams, [position])


@pytest.mark.parametrize(
    ("head", "pattern"),
    [
        (BEFORE, "5 of the text's 6 tokens give most to the token just before them"),
        (OWN, "6 of the text's 6 tokens give most to themselves"),
        (AFTER, "5 of the text's 6 tokens give most to the token just after them"),
        (CLS, "6 of the text's 6 tokens give most to [CLS]"),
        (SEP, "6 of the text's 6 tokens give most to [SEP]"),
        (VARIED, None),
        (to(0, 1, 2, 3, 4, 1, 3, 7), None),
    ],
)
def test_a_positional_pattern_is_what_four_fifths_of_the_text_s_tokens_do(head, pattern):
    assert survey([head]).patterns == [[pattern]]


A_B = "a b a b a b"


@pytest.mark.parametrize(
    ("model", "texts", "pattern"),
    [
        (minilm, ("a b c", None, None), None),
        (lambda: pretrained("gpt2"), (A_B, None, None), "most to themselves"),
        (lambda: pretrained("bart"), (A_B, "cross", A_B), "most to the source's token at their own position"),
    ],
    ids=["a short text", "a decoder", "cross-attention"],
)
def test_a_pattern_needs_some_tokens_and_is_named_after_the_streams(model, texts, pattern):
    text, attention, target = texts
    streams = Streams.of(text, model(), attention, target)
    (((found,),)) = survey([to(*range(len(streams.query_words.tokens)))], streams=streams).patterns
    assert found is None if pattern is None else found.endswith(pattern)


def test_in_a_decoder_the_first_token_is_a_place():
    streams = Streams.of(A_B, pretrained("gpt2"), None, None)
    count = len(streams.query_words.tokens)
    (((pattern,),)) = survey([to(*[0] * count)], streams=streams).patterns
    assert pattern == f"{count} of the text's {count} tokens give most to the first token"


def test_each_key_is_listed_with_the_head_that_gives_it_most_by_weight():
    found = survey([BEFORE, FAINT], [OWN, VARIED])
    assert sorted(key.index for key in found.top_keys()) == [1, 2, 3, 5, 6]
    assert found.top_keys() == sorted(found.top_keys(), key=lambda key: -key.weight)
    first = found.top_keys()[0]
    assert (first.index, first.token, first.layer, first.head) == (3, "in", 0, 0)
    for key in found.top_keys():
        of_heads = found.weights[:, :, key.index]
        assert key.weight == of_heads.max() == of_heads[key.layer, key.head]
        assert key.mean == pytest.approx(of_heads.mean().item())


def test_the_content_head_has_no_pattern():
    found = survey([BEFORE, CLS], [FAINT, OWN], position=3).content_head()
    assert (found.layer, found.head, found.index) == (1, 0, 2)
    assert survey([BEFORE, OWN]).content_head() is None


@pytest.mark.parametrize(
    ("fixed", "chosen"), [((None, None), (1, 1)), ((0, None), (0, 0)), ((None, 1), (1, 1)), ((1, 0), (1, 0))]
)
def test_the_most_informative_head_among_those_of_a_layer_or_of_a_number(fixed, chosen):
    """At position 4: the head of a word far away; where all have a pattern, that of another word."""
    assert survey([BEFORE, CLS], [OWN, FAINT], position=4).most_informative_head(*fixed) == chosen


def test_without_another_word_the_delimiters_count():
    found = survey([to(1, 1, 1), to(2, 2, 2)], position=1, streams=Streams.of("bank", minilm(), None, None))
    assert found.most_informative_head(None, None) == (0, 1)
    assert found.top_keys() == []
    assert torch.isclose(found.weights.sum(-1), torch.ones(1, 2).double()).all()


def test_the_survey_of_maps_is_that_of_the_definition():
    """Each head is a layer of its own, since maps may have different numbers of heads."""
    layers, streams = (
        ([BEFORE, FAINT], [OWN], [VARIED, CLS]),
        Streams.of("a bank in the river ran", minilm(), None, None),
    )
    by_head = survey(*([head] for layer in layers for head in layer), position=4)
    found = HeadSurvey.of_maps([planted_map(*heads) for heads in layers], streams, [4])
    assert found.patterns == by_head.patterns
    torch.testing.assert_close(found.weights, by_head.weights, atol=1e-6, rtol=0)
    assert found.most_informative_head(None, None) == by_head.most_informative_head(None, None) == (3, 0)
