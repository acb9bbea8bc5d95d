"""The page's context of two texts against contextual_vectors, for the same hidden states."""

import base64

import pytest
import torch

from regard.errors import InputError
from regard.lens.text.contextual import contextual_vectors
from regard.lens.text.hidden_states import NOT_FINITE, text_hidden_states
from regard.lens.text.streams import Streams
from regard.lens.text.word_selection import select_word
from regard.lens.text.words import Words, normalize_word
from regard.views.html.wordpiece import wordpiece_settings
from views.html.page_tokens import made_texts
from weights import LOAN, PIZZA, RIVER, minilm, sentences


@pytest.fixture
def page_context(node):
    """A function that gives the page's context of texts with some hidden states."""
    node("tokenizer", wordpiece_settings(minilm()))

    def call(texts, states, first=None):
        packed = [[base64.b64encode(state.numpy().tobytes()).decode() for state in each] for each in states]
        return node("context", {"texts": texts, "states": packed, "first": first})

    return call


@pytest.fixture
def assert_context_is_pythons(page_context):
    """A function that holds the page's context of texts, from Python's hidden states, against Python's own."""

    @torch.no_grad()
    def call(*texts, first=None):
        states = [text_hidden_states(minilm().model, Words.of(text, minilm())) for text in texts]
        found = page_context(texts, states, first)
        assert_same(found, contextual_vectors(texts, minilm(), first).to_dict())
        return found["context"]

    return call


def assert_same(found, expected):
    """The same words, numbers and parts; the axes of the plane may be turned round, in all layers together."""
    assert found["reason"] is None
    found = found["context"]
    for words in ("words", "other_words"):
        assert [word["word"] for word in found[words]] == [word["word"] for word in expected[words]]
        for one, other in zip(found[words], expected[words], strict=True):
            assert [c["sentence"] for c in one["cosines"]] == [c["sentence"] for c in other["cosines"]]
            for c, d in zip(one["cosines"], other["cosines"], strict=True):
                assert c["cosine"] == pytest.approx(d["cosine"], abs=2e-7)
            assert [points is None for points in one["points"]] == [points is None for points in other["points"]]
    assert found["explained_variance"] == pytest.approx(expected["explained_variance"], abs=2e-4)
    for name in ("sentences", "num_shared", "num_layers"):
        assert found[name] == expected[name]
    one, other = points_of(found), points_of(expected)
    for axis in (0, 1):
        sign = (one[..., axis] * other[..., axis]).sum().sign()
        error = (sign * one[..., axis] - other[..., axis]).abs()
        # Both are rounded to four digits; an axis in which nothing differs is the rounding of float64.
        assert (error <= 1e-3 * other[..., axis].abs() + 1e-5 * other.abs().max()).all(), axis


def points_of(context):
    """All points, (words of texts, states, 2)."""
    words = context["words"] + context["other_words"]
    return torch.tensor([points for word in words for points in word["points"] if points], dtype=torch.float64)


@pytest.mark.parametrize("count", [20, pytest.param(100, marks=pytest.mark.more)])
def test_the_context_of_any_two_sentences_is_pythons(assert_context_is_pythons, count):
    pairs = zip(sentences(1800)[:count:2], sentences(1800)[1:count:2], strict=True)
    words = {pair: [set(Words.of(text, minilm()).first_positions()) for text in pair] for pair in pairs}
    sharing = [pair for pair, (one, other) in words.items() if not one.isdisjoint(other)]
    assert len(sharing) > count / 5
    for pair in sharing:
        assert_context_is_pythons(*pair)


@pytest.mark.parametrize("count", [10, pytest.param(60, marks=pytest.mark.more)])
def test_the_context_of_texts_of_every_script_is_pythons(assert_context_is_pythons, count):
    for text in made_texts(count, seed=3):
        if len(minilm().tokenizer.encode(text).ids) <= 512:
            assert_context_is_pythons(f"a {text}", RIVER)


@pytest.mark.parametrize(
    "texts",
    [
        (PIZZA, RIVER, LOAN, "The bank"),
        ("Bank", "bank"),
        ("a cat", "A dog"),
        ("Yes.", "No!."),
        ("x = 1", "y = 2"),
        ("caf\u00e9", "CAFE\u0301 \u00df"),
        ("!\u0903 a", "!\u0903 b"),  # the sign is a word, and part of the mark before it as well
    ],
    ids=ascii,
)
def test_the_context_of_several_and_of_very_short_texts_is_pythons(assert_context_is_pythons, texts):
    assert_context_is_pythons(*texts)


@pytest.mark.parametrize(
    ("first", "word"), [(None, "bank"), ("MAN", "man"), ("poem", "poem"), ("river", "bank"), ("nowhere", "bank")]
)
def test_the_word_that_was_asked_for_comes_first_where_several_texts_have_it(assert_context_is_pythons, first, word):
    assert assert_context_is_pythons(RIVER, LOAN, first=first)["words"][0]["word"] == word


SHARED = [
    (RIVER, LOAN),
    ("The bank of the river.", "the bank."),
    ("a b!", "c d!"),
    ("Caf\u00e9 x", "CAFE\u0301"),
    ("one", "two"),
    ("!", "?!"),
    *zip(sentences(60)[::2], sentences(60)[1::2], strict=True),
]


def test_the_word_to_begin_with_is_that_of_see(node):
    node("tokenizer", wordpiece_settings(minilm()))
    for texts in SHARED:
        try:
            expected = select_word(None, Streams.of(texts[0], minilm()), [Words.of(texts[1], minilm())]).text
        except InputError:
            expected = None
        found = node("shared", texts)["word"]
        assert (found and normalize_word(found)) == (expected and normalize_word(expected)), texts


@pytest.mark.more
def test_only_the_words_that_change_most_are_listed_of_long_texts(assert_context_is_pythons):
    every = dict.fromkeys(word for sentence in sentences(300) for word in sentence.split() if word.isalpha())
    words = [word for word in every if len(minilm().tokenizer.encode(word).ids) == 3][:500]
    half, others = words[:230], words[230:]
    texts = ([*half, *others[:130]], [*reversed(half), *others[130:]])
    found = assert_context_is_pythons(*map(" ".join, texts))
    assert found["num_shared"] > len(found["words"]) == 200


def test_texts_without_a_shared_word_are_told_so_in_pythons_words(page_context):
    texts = ["one two two", " ".join(sentences(20)[3:8]).replace("two", "").replace("one", "")]
    with pytest.raises(InputError) as refused:
        contextual_vectors(texts, minilm())
    assert page_context(texts, [[torch.zeros(1)]] * 2) == {"context": None, "reason": str(refused.value)}


def test_hidden_states_that_are_not_finite_are_refused_by_name(page_context):
    states = torch.full((len(minilm().tokenizer.encode("bank").ids), 4), torch.nan)
    assert page_context(["bank", "bank"], [[states]] * 2) == {"name": "InputError", "message": NOT_FINITE}


def symmetric(values):
    """A matrix with some eigenvalues."""
    q, _ = torch.linalg.qr(torch.randn(len(values), len(values), dtype=torch.float64))
    return q @ torch.diag(torch.tensor(values, dtype=torch.float64)) @ q.T


MATRICES = {
    "random": lambda: symmetric(torch.randn(60).tolist()),
    "large": lambda: symmetric(torch.rand(300).tolist()),
    "equal eigenvalues": lambda: symmetric([3.0, 3.0, 3.0, 1.0, 0.0, 0.0]),
    "nearly equal eigenvalues": lambda: symmetric([1.0, 1 - 1e-12, 1 - 1e-9, 0.5, 0.1]),
    "rank 1": lambda: symmetric([5.0] + [0.0] * 9),
    "zero": lambda: torch.zeros(4, 4, dtype=torch.float64),
    "identity": lambda: torch.eye(5, dtype=torch.float64),
    "diagonal": lambda: torch.diag(torch.tensor([1.0, 5.0, 2.0, 4.0], dtype=torch.float64)),
    "two blocks": lambda: torch.block_diag(symmetric([2.0, 1.0]), symmetric([2.0, 1.0, 0.5])),
    "of one": lambda: torch.tensor([[3.0]], dtype=torch.float64),
    "of two": lambda: torch.tensor([[1.0, -1.0], [-1.0, 1.0]], dtype=torch.float64),
    "tiny": lambda: symmetric([1e-200, 5e-201, 1e-201]),
    "huge": lambda: symmetric([1e150, 5e149, 1e149]),
}


@pytest.mark.parametrize("name", MATRICES)
def test_the_largest_eigenvalues_and_their_vectors_are_found(node, name):
    matrix = MATRICES[name]()
    found = node("eigenpairs", {"matrix": matrix.tolist(), "count": 2})
    values, vectors = (torch.tensor(found[key], dtype=torch.float64) for key in ("values", "vectors"))
    expected = torch.linalg.eigvalsh(matrix).flip(0)[:2]
    size = matrix.abs().max().clamp(min=1e-300)
    assert ((values - expected).abs() <= 1e-12 * size).all()
    assert ((vectors @ matrix - values[:, None] * vectors).abs() <= 1e-11 * size).all()
    torch.testing.assert_close(vectors @ vectors.T, torch.eye(len(values), dtype=torch.float64), rtol=0, atol=1e-12)
