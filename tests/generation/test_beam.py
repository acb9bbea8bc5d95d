"""Beam search against every possible text; groups; forced and banned words."""

from __future__ import annotations

import pytest
import torch
from hypothesis import assume, example, given, settings
from hypothesis import strategies as st
from tiny_models import best_of, contains, every_text, log_probability, tiny, tiny_translator

import regard
from regard import Beam
from regard.errors import InputError
from regard.generation import beam_search

PROMPT = [2, 0, 1]


def search(model, strategy, limit, prompt=PROMPT, **options):
    (hypotheses,) = beam_search(model, [prompt], max_new_tokens=limit, strategy=strategy, **options)
    return hypotheses


# Brute force.


@pytest.mark.parametrize("length_penalty", [-1.0, 0, 1.0, 2.5])
@pytest.mark.parametrize(("vocab_size", "limit", "stop"), [(4, 4, ()), (5, 4, (3,)), (4, 5, (0,)), (6, 3, (1, 4))])
def test_a_beam_wider_than_all_texts_finds_the_best_ones(vocab_size, limit, stop, length_penalty):
    """With as many beams as texts the search loses no text, so its first result is the best text.

    By its documented end the search stops where no text that goes on has a higher score at its present length: with
    so many beams it never does before the limit.
    """
    texts = list(every_text(vocab_size, limit, stop))
    for seed in range(4):
        model = tiny(vocab_size, seed=seed, stop=stop)
        expected = best_of(model, PROMPT, texts, length_penalty)
        hypotheses = search(model, Beam(num_beams=len(texts), length_penalty=length_penalty), limit)
        assert [h.ids for h in hypotheses[:5]] == [text for _, text in expected[:5]]
        assert [h.score for h in hypotheses] == pytest.approx([score for score, _ in expected], rel=1e-5, abs=1e-5)


def test_the_returned_texts_are_the_best_first():
    model = tiny(9, seed=1, stop=(4,))
    hypotheses = search(model, Beam(num_beams=6, num_return_sequences=6), 6)
    assert [h.score for h in hypotheses] == sorted((h.score for h in hypotheses), reverse=True)
    texts = regard.generate(model, PROMPT, max_new_tokens=6, strategy=Beam(num_beams=6, num_return_sequences=4))
    assert texts == [[*PROMPT, *h.ids] for h in hypotheses[:4]]
    assert len({tuple(h.ids) for h in hypotheses}) == 6
    rows = regard.generate(
        model, torch.tensor([PROMPT] * 2), max_new_tokens=6, strategy=Beam(num_beams=6, num_return_sequences=4), pad=8
    )
    assert rows.shape[:2] == (2, 4)
    for row, h in zip(rows[1], hypotheses, strict=False):
        assert row.tolist() == [*PROMPT, *h.ids] + [8] * (rows.shape[2] - 3 - len(h.ids))


@settings(deadline=None, max_examples=20)
@given(
    seed=st.integers(0, 10**6),
    vocab_size=st.integers(3, 12),
    num_beams=st.integers(1, 6),
    limit=st.integers(1, 8),
    length_penalty=st.sampled_from([-1.0, 0, 0.7, 1, 3.0]),
    stop=st.lists(st.integers(0, 2), unique=True, max_size=2),
)
def test_a_score_is_the_texts_own_log_probability(seed, vocab_size, num_beams, limit, length_penalty, stop):
    model = tiny(vocab_size, seed=seed)
    hypotheses = search(model, Beam(num_beams=num_beams, length_penalty=length_penalty), limit, stop=stop)
    assert hypotheses
    for h in hypotheses:
        expected = log_probability(model, PROMPT, h.ids) / len(h.ids) ** length_penalty
        assert h.score == pytest.approx(expected, rel=1e-4, abs=1e-4)
        assert not set(h.ids[:-1]) & set(stop)
        assert len(h.ids) == limit or h.ids[-1] in stop


def test_a_width_of_1_is_greedy():
    for seed in range(5):
        model = tiny(9, seed=seed, stop=(4,))
        assert regard.generate(model, PROMPT, max_new_tokens=9, strategy=Beam(num_beams=1)) == regard.generate(
            model, PROMPT, max_new_tokens=9
        )


def test_an_encoder_decoders_beams():
    model = tiny_translator(seed=2, stop=(3,))
    sources = [[4, 5, 6], [7], [8, 9, 2, 2, 5]]
    together = beam_search(model, sources, max_new_tokens=6, strategy=Beam(num_beams=5))
    for source, hypotheses in zip(sources, together, strict=True):
        for h in hypotheses:
            with torch.no_grad():
                logits = model(torch.tensor(source), torch.tensor([1, *h.ids[:-1]])).float()
            total = logits.log_softmax(-1).gather(-1, torch.tensor(h.ids)[:, None]).sum()
            assert h.score == pytest.approx(float(total) / len(h.ids), rel=1e-4)


# Groups.


def test_the_first_group_is_a_beam_search_of_its_own():
    for seed in range(6):
        model = tiny(9, seed=seed, stop=(4,))
        single = search(model, Beam(num_beams=2), 5)
        grouped = search(model, Beam(num_beams=6, num_beam_groups=3, diversity_penalty=1.5), 5)
        assert {tuple(h.ids) for h in single} <= {tuple(h.ids) for h in grouped}
        scores = [h.score for h in grouped]
        assert scores == sorted(scores, reverse=True)
        for h in grouped:  # without what diversity took off
            assert h.score == pytest.approx(log_probability(model, PROMPT, h.ids) / len(h.ids), rel=1e-4)


def test_diversity_sets_groups_apart():
    """With more than any log-probability can differ by, every group begins with another token; with none, all alike."""
    for seed in range(6):
        model = tiny(9, seed=seed)
        diverse = search(model, Beam(num_beams=4, num_beam_groups=4, diversity_penalty=1000), 5)
        assert len({h.ids[0] for h in diverse}) == 4
        equal = search(model, Beam(num_beams=4, num_beam_groups=4, diversity_penalty=0), 5)
        assert len({tuple(h.ids) for h in equal}) == 1


def test_groups_by_the_papers_equation():
    """Groups of one beam are greedy, on log-probabilities less what the groups before have taken in the same step."""
    for seed in range(6):
        model, strength = tiny(7, seed=seed), 0.8
        texts: list[list[int]] = [[], [], []]
        for _ in range(5):
            taken = torch.zeros(7)
            for text in texts:
                with torch.no_grad():
                    log_probs = model(torch.tensor([*PROMPT, *text]))[-1].float().log_softmax(-1)
                text.append(int((log_probs - strength * taken).argmax()))
                taken[text[-1]] += 1
        # The last token is chosen by the score alone: texts that end are not set apart from one another.
        hypotheses = search(model, Beam(num_beams=3, num_beam_groups=3, diversity_penalty=strength), 6)
        assert sorted(h.ids[:-1] for h in hypotheses) == sorted(texts)


# Forced and banned words.


PHRASES = st.lists(st.lists(st.integers(0, 5), min_size=1, max_size=3), max_size=3)


@settings(deadline=None, max_examples=60)
@given(
    seed=st.integers(0, 10**6),
    force_words=PHRASES,
    bad_words=st.lists(st.lists(st.integers(0, 5), min_size=1, max_size=3), max_size=2),
    num_beams=st.integers(1, 6),
    spare_tokens=st.integers(0, 4),
    stop=st.sampled_from([(), (6,), (6, 7)]),
    last=st.sampled_from([None, None, 6]),
)
@example(seed=0, force_words=[[1, 2], [2, 1], [1, 1, 2]], bad_words=[], num_beams=1, spare_tokens=0, stop=(), last=None)
@example(
    seed=1, force_words=[[1, 2, 3], [2, 3, 4], [3]], bad_words=[[4, 5]], num_beams=2, spare_tokens=1, stop=(6,), last=6
)
def test_forced_words_are_always_in_the_text_and_banned_words_never(
    seed, force_words, bad_words, num_beams, spare_tokens, stop, last
):
    """Also where phrases overlap, where the limit is tight, and where stop tokens tempt."""
    assume(not any(contains(phrase, blocked) for phrase in force_words for blocked in bad_words))
    limit = max(1, sum(map(len, force_words)) + spare_tokens + (last is not None))
    model = tiny(8, seed=seed, stop=stop, last=last)
    try:
        hypotheses = search(model, Beam(num_beams=num_beams, force_words=force_words, bad_words=bad_words), limit)
    except InputError as error:
        # Between phrases that must appear and those that may not, no text need be left; a wide search finds one if so.
        if not bad_words or "the search found 0 texts" not in str(error):
            raise
        return
    for h in hypotheses:
        new = h.ids[:-1] if h.ids[-1] in stop else h.ids
        assert all(contains(new, phrase) for phrase in force_words)
        assert not any(contains(h.ids, phrase) for phrase in bad_words)
        if last is None or len(h.ids) < limit:
            assert h.score == pytest.approx(log_probability(model, PROMPT, h.ids) / len(h.ids), rel=1e-4, abs=1e-4)


@pytest.mark.parametrize(
    ("force_words", "bad_words"),
    [
        ([[1]], []),
        ([], [[1]]),
        ([[1, 2]], [[0], [3, 3]]),
        ([[0, 1], [2]], []),
        ([[1], [0]], [[0, 1]]),
        ([[2, 2]], [[1, 0], [0]]),
    ],
)
@pytest.mark.parametrize("stop", [(), (3,)])
def test_a_wide_search_finds_the_best_text_that_meets_the_constraints(force_words, bad_words, stop):
    if any(token in stop for phrase in force_words for token in phrase):
        pytest.skip("a phrase that holds a stop token is refused")
    limit = 4
    everything = list(every_text(4, limit, stop))
    meets = [
        text
        for text in everything
        if all(contains(text[:-1] if text[-1] in stop else text, phrase) for phrase in force_words)
        and not any(contains(text, phrase) for phrase in bad_words)
    ]
    for seed in range(2):
        model = tiny(4, seed=seed, stop=stop)
        expected = best_of(model, PROMPT, meets, 1)
        strategy = Beam(num_beams=2 * len(everything), force_words=force_words, bad_words=bad_words)
        hypotheses = search(model, strategy, limit)
        assert hypotheses[0].ids == expected[0][1]
        assert hypotheses[0].score == pytest.approx(expected[0][0], rel=1e-5)


def test_no_constraint_changes_nothing():
    model = tiny(9, seed=1, stop=(4,))
    plain = search(model, Beam(num_beams=4), 6)
    best = plain[0].ids
    assert search(model, Beam(num_beams=4, force_words=[best[:1]]), 6)[0].ids == best
    assert search(model, Beam(num_beams=4, bad_words=[[8] * 6]), 6) == plain


@pytest.mark.parametrize(
    ("force_words", "bad_words", "message"),
    [
        ([[1, 2]], [[1, 2]], r"force_words=\[1, 2\] and bad_words=\[1, 2\] contradict each other"),
        ([[1, 2, 3]], [[2]], r"force_words=\[1, 2, 3\] and bad_words=\[2\] contradict each other"),
        ([[1, 2, 3], [5, 6]], [], r"have 5 tokens, and max_new_tokens=4 is fewer"),
        ([[1, 4]], [], r"force_words=\[1, 4\] holds a stop token, one of \[4\]: it ends the text"),
        ([[1, 9]], [], r"force_words=\[1, 9\] has the id 9; the vocabulary has 0 to 8"),
        ([], [[-1]], r"bad_words=\[-1\] has the id -1; the vocabulary has 0 to 8"),
    ],
)
def test_constraints_that_no_text_can_meet_are_refused_by_name(force_words, bad_words, message):
    with pytest.raises(InputError, match=message):
        search(tiny(9, stop=(4,)), Beam(force_words=force_words, bad_words=bad_words), 4)


def test_phrases_that_are_none():
    for name in ("force_words", "bad_words"):
        with pytest.raises(ValueError, match=rf"{name}=\[\[\]\] wants a list of words or of token ids, none of them"):
            Beam(**{name: [[]]})
        with pytest.raises(ValueError, match=rf"{name}='river' wants a list of words"):
            Beam(**{name: "river"})
        with pytest.raises(TypeError, match=r"words need a tokenizer, and a bare model has none; use regard.load"):
            search(tiny(9), Beam(**{name: ["river"]}), 4)


def test_where_nothing_is_left_to_write():
    with pytest.raises(InputError, match=r"found 0 texts of up to 3 tokens.*num_return_sequences=1: allow more"):
        search(tiny(4), Beam(num_beams=2, bad_words=[[0], [1], [2], [3]]), 3)
