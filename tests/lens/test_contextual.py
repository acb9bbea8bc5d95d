"""Words in several sentences, against `explain`, which compares one word, and against the definition of a plane."""

import json

import pytest
import torch

import regard
from lens.explained import ENCODER_DECODERS, pretrained
from regard import InputError
from regard.lens.text.contextual import MAX_WORDS, contextual_vectors
from regard.lens.text.hidden_states import text_hidden_states, word_hidden_states
from regard.lens.text.words import Words
from weights import LOAN, RIVER, minilm, random_bert, sentences

THIRD, FOURTH = "The BANK gave a man of Vladivostok a loan.", "A loan in Vladivostok: applying for it is a poem."


def parts_of_word(parts, number):
    return [part.text for part in parts if part.word == number]


@pytest.fixture(scope="module")
def banks():
    return contextual_vectors([RIVER, LOAN], minilm())


def test_every_shared_word_is_there_and_the_last_one_is_first(banks):
    first, *rest = (word.word for word in banks.words)
    assert (first, set(rest)) == ("bank", {"Write", "a", "poem", "about", "man"})
    assert [word.word for word in banks.other_words] == ["fishing", "on", "river", "applying", "for", "loan", "in"]
    changes = [1 - word.cosines[0].cosine[-1] for word in banks.words[1:]]
    assert changes == sorted(changes, reverse=True)
    assert (banks.num_shared, banks.num_layers) == (6, 6)


@pytest.mark.parametrize(
    ("family", "options"),
    [("minilm", {}), ("gpt2", {}), ("llama", {}), *((name, {"attention": "encoder"}) for name in ENCODER_DECODERS)],
)
@pytest.mark.parametrize("texts", [[RIVER, LOAN, THIRD, FOURTH], [LOAN, "Nothing here.", THIRD, RIVER]])
def test_the_cosines_are_those_that_explain_gives(family, options, texts):
    """For a decoder, and for the encoder of an encoder-decoder, as for an encoder."""
    model = minilm() if family == "minilm" else pretrained(family)
    study = contextual_vectors(texts, model)
    for word in (study.words[0], study.words[-1]):
        first, *others = (i for i, points in enumerate(word.points) if points is not None)
        in_others = [texts[i] for i in others]
        comparisons = regard.explain(texts[first], word.word, model, in_others, **options).comparisons
        assert [other.sentence for other in word.cosines] == others
        for ours, expected in zip(word.cosines, comparisons, strict=True):
            assert ours.cosine == pytest.approx(expected.cosine, abs=1e-6)
            assert len(ours.cosine) == study.num_layers + 1


def test_a_word_of_several_tokens_is_shared_and_case_is_not_looked_at():
    study = contextual_vectors([RIVER, THIRD, FOURTH], minilm())
    assert {"bank", "Vladivostok"} <= {word.word for word in study.words}
    assert len(Words.of(THIRD, minilm()).find("vladivostok")[0]) > 1
    number = [word.word for word in study.words].index("bank")
    assert [parts_of_word(parts, number) for parts in study.sentences] == [["bank"], ["BANK"], []]


def test_sentences_are_cut_and_lose_nothing():
    texts = [
        "  a  Cafe\u0301 \U0001f44d\U0001f3fd, a\tbank.",
        "bank <b>a</b> Café \U0001f44d\U0001f3fd\n",
        "שלום bank, עולם café",
    ]
    study = contextual_vectors(texts, minilm())
    assert ["".join(part.text for part in parts) for parts in study.sentences] == texts
    for number, word in enumerate(study.words):
        found = [len(parts_of_word(parts, number)) for parts in study.sentences]
        assert found == [points is not None for points in word.points]
    cafe = [word.word for word in study.words].index("Cafe\u0301")
    assert [parts_of_word(parts, cafe) for parts in study.sentences] == [["Cafe\u0301"], ["Café"], ["café"]]


def test_points_are_the_plane_in_which_the_words_differ_most(banks):
    """Distances and share of the plane from the eigenvectors of the covariance, which is another way to it."""
    texts = [Words.of(text, minilm()) for text in (RIVER, LOAN)]
    states = [text_hidden_states(minilm().model, text) for text in texts]
    pairs = [
        (at, word_hidden_states(states[i], texts[i].find(word.word)[0]))
        for word in banks.words + banks.other_words
        for i, at in enumerate(word.points)
        if at is not None
    ]
    assert len(pairs) == 6 * 2 + 7
    for state in range(7):
        x = torch.stack([vectors[state] for _, vectors in pairs]).detach()
        x = x - x.mean(0)
        values, axes = torch.linalg.eigh(x.T @ x)
        there = x @ axes[:, -2:].flip(1)
        here = torch.tensor([at[state] for at, _ in pairs], dtype=torch.float64)
        torch.testing.assert_close(torch.cdist(here, here), torch.cdist(there, there), atol=1e-5, rtol=1e-5)
        torch.testing.assert_close(here.abs(), there.abs(), atol=1e-5, rtol=1e-5)
        assert banks.explained_variance[state] == pytest.approx((values[-2:].sum() / values.sum()).item(), abs=1e-9)


def test_neighbouring_layers_do_not_flip(banks):
    points = torch.tensor([at for word in banks.words + banks.other_words for at in word.points if at is not None])
    assert ((points[:, 1:] * points[:, :-1]).sum(0) >= 0).all()


@pytest.mark.more
def test_of_many_words_those_that_change_most_are_kept():
    many, others = (" ".join(map(str, range(first, first + MAX_WORDS + 20))) for first in (0, 1000))
    study = contextual_vectors([many, f"0 {many}"], minilm())
    assert (len(study.words), study.num_shared) == (MAX_WORDS, MAX_WORDS + 20)
    assert len(json.dumps(study.to_dict())) < 200_000
    assert len(contextual_vectors([many, f"{others} 0"], minilm()).other_words) == MAX_WORDS


def test_the_places_of_words_are_those_that_find_gives():
    for text in sentences(8):
        words = Words.of(text, minilm())
        places = words.first_positions()
        assert places == {word: words.find(word)[0] for word in places}
        assert {word.casefold() for word in words.word_list()} == {word.casefold() for word in places}


def test_the_facts_are_what_the_page_reads(banks):
    facts = banks.to_dict()
    assert json.loads(json.dumps(facts, allow_nan=False)) == facts
    assert list(facts) == ["sentences", "words", "other_words", "num_shared", "explained_variance", "num_layers"]
    assert {"text": "bank", "word": 0} in facts["sentences"][0]
    bank, fishing = facts["words"][0], facts["other_words"][0]
    assert bank["cosines"][0]["cosine"] == pytest.approx(banks.words[0].cosines[0].cosine, abs=1e-7)
    here, there = (torch.tensor(word["points"][0]) for word in (bank, {"points": banks.words[0].points}))
    torch.testing.assert_close(here, there, rtol=1e-3, atol=0)
    assert fishing == {"word": "fishing", "cosines": [], "points": [fishing["points"][0], None]}


def test_marks_count_only_where_no_word_is_shared():
    assert [word.word for word in contextual_vectors(["A river!", "Some loan!"], minilm()).words] == ["!"]


@pytest.mark.parametrize(
    ("texts", "model", "error", "message"),
    [
        (["a river", "the loan"], minilm, InputError, "Their words are, text by text: a, river; the, loan"),
        (["a river", " "], minilm, InputError, "the text is empty"),
        (["a river", "word " * 600], minilm, InputError, "the text has 602 tokens"),
        ([RIVER], minilm, ValueError, "between two texts or more; got 1"),
        (RIVER, minilm, TypeError, "contextual_vectors wants a list of texts"),
        ([RIVER, LOAN], lambda: minilm().model, TypeError, "contextual_vectors wants a list of texts"),
    ],
)
def test_what_cannot_be_compared_is_named(texts, model, error, message, as_a_user_runs_it):
    with pytest.raises(error, match=message):
        contextual_vectors(texts, model())


def test_a_model_whose_numbers_leave_their_range_is_named(tmp_path):
    random_bert(tmp_path)
    model = regard.load(tmp_path)
    torch.nn.init.constant_(model.model.blocks[0].feed_forward_norm.weight, torch.inf)
    with pytest.raises(InputError, match="not finite"):
        contextual_vectors(["the river bank", "a bank"], model)
