"""Beam search against every possible text; groups; forced and banned words."""

from __future__ import annotations

import pytest
import torch
from hypothesis import assume, given
from hypothesis import strategies as st
from tiny_models import best_of, contains, every_text, scores_of, tiny

import regard
from grids import grid, some_examples
from regard import Beam
from regard.errors import InputError
from regard.generation import beam, beam_search

PROMPT = [2, 0, 1]


def search(model, strategy, limit, prompt=PROMPT, **options):
    (hypotheses,) = beam_search(model, [prompt], max_new_tokens=limit, strategy=strategy, **options)
    return hypotheses


@grid(
    size=[(4, 4, ()), (5, 4, (3,)), (4, 5, (0,)), (6, 3, (1, 4))],
    length_penalty=[-1.0, 0, 1.0, 2.5],
    seed=range(4),
)
def test_a_beam_wider_than_all_texts_finds_the_best_ones(size, length_penalty, seed):
    """With as many beams as texts the search loses no text, so its first result is the best text.

    By its documented end the search stops where no text that goes on has a higher score at its present length: with
    so many beams it never does before the limit.
    """
    vocab_size, limit, stop = size
    texts, model = list(every_text(vocab_size, limit, stop)), tiny(vocab_size, seed=seed, stop=stop)
    expected = best_of(model, PROMPT, texts, length_penalty)
    hypotheses = search(model, Beam(num_beams=len(texts), length_penalty=length_penalty), limit)
    assert [h.ids for h in hypotheses[:5]] == [text for _, text in expected[:5]]
    assert [h.score for h in hypotheses] == pytest.approx([score for score, _ in expected], rel=1e-5, abs=1e-5)


@pytest.mark.parametrize("token", [0, 31, 32, 511, 512, 529])
def test_the_likeliest_tokens_of_a_large_vocabulary_are_found(token):
    """530 tokens: 16 groups of 32 whose maxima are compared first, and 18 more."""
    model = tiny(530, seed=token, lm_head_bias=True)
    with torch.no_grad():
        model.lm_head_bias[token] += 100
        best = model(torch.tensor(PROMPT))[-1].topk(2).indices.tolist()
    assert [h.ids for h in search(model, Beam(num_beams=2), 1)] == [[n] for n in best]
    assert best[0] == token


@pytest.mark.parametrize("num_logits", [1, 100, 250])
def test_chunks_of_rows_change_nothing(monkeypatch, num_logits):
    """One row, one row of 97 logits and two rows at a time; with forced and banned words."""
    model = tiny(97, seed=2, stop=(4,))
    for words in ({}, {"force_words": [[3, 5]], "bad_words": [[7], [6, 8]]}):
        with monkeypatch.context() as patch:
            expected = beam_search(model, [PROMPT, [8]], max_new_tokens=6, strategy=Beam(num_beams=3, **words))
            patch.setattr(beam, "CHUNK_LOGITS", num_logits)
            chunked = beam_search(model, [PROMPT, [8]], max_new_tokens=6, strategy=Beam(num_beams=3, **words))
        assert chunked == expected


def test_the_returned_texts_are_the_best_first():
    model = tiny(9, seed=1, stop=(4,))
    hypotheses = search(model, Beam(num_beams=6, num_return_sequences=6), 6)
    assert [h.score for h in hypotheses] == sorted((h.score for h in hypotheses), reverse=True)
    assert len({tuple(h.ids) for h in hypotheses}) == 6
    strategy = Beam(num_beams=6, num_return_sequences=4)
    texts = regard.generate(model, PROMPT, max_new_tokens=6, strategy=strategy)
    assert texts == [[*PROMPT, *h.ids] for h in hypotheses[:4]]
    rows = regard.generate(model, torch.tensor([PROMPT] * 2), max_new_tokens=6, strategy=strategy, pad=8)
    assert rows.shape[:2] == (2, 4)
    for row, text in zip(rows[1].tolist(), texts, strict=True):
        assert row == text + [8] * (len(row) - len(text))


# Groups.


@pytest.mark.parametrize("seed", range(3))
def test_the_first_group_is_a_beam_search_of_its_own(seed):
    model = tiny(9, seed=seed, stop=(4,))
    single = search(model, Beam(num_beams=2), 5)
    grouped = search(model, Beam(num_beams=6, num_beam_groups=3, diversity_penalty=1.5), 5)
    assert {tuple(h.ids) for h in single} <= {tuple(h.ids) for h in grouped}
    scores = [h.score for h in grouped]
    assert scores == sorted(scores, reverse=True)
    # Without what diversity took off.
    assert scores == pytest.approx(scores_of(model, PROMPT, [h.ids for h in grouped]), rel=1e-4)


@grid(strength=[0, 0.8, 1000], seed=range(3))
def test_groups_by_the_papers_equation(strength, seed):
    """Groups of one beam are greedy, on log-probabilities less what the groups before have taken in the same step.

    With 0 all texts are alike; with more than any log-probability can differ by, each begins with another token.
    """
    model, texts = tiny(7, seed=seed), [[], [], []]
    for _ in range(4):
        taken = torch.zeros(7)
        for text in texts:
            with torch.no_grad():
                log_probs = model(torch.tensor([*PROMPT, *text]))[-1].float().log_softmax(-1)
            text.append(int((log_probs - strength * taken).argmax()))
            taken[text[-1]] += 1
    # The last token is chosen by the score alone: texts that end are not set apart from one another.
    hypotheses = search(model, Beam(num_beams=3, num_beam_groups=3, diversity_penalty=strength), 5)
    assert sorted(h.ids[:-1] for h in hypotheses) == sorted(texts)
    assert len({text[0] for text in texts}) == {0: 1, 1000: 3}.get(strength, len({text[0] for text in texts}))


@pytest.mark.parametrize("kind", [regard.transformer.Decoder, regard.transformer.EncoderDecoder])
def test_a_ragged_batch_is_each_prompt_alone(kind):
    """Also where some prompts end early: the others go on as if alone."""
    model = tiny(11, seed=7, kind=kind, stop=(4, 6))
    prompts = [[5, 2, 3, 7, 7], [1], [8, 8, 3], [2, 9], [7]]
    strategy = Beam(num_beams=4, num_beam_groups=2, diversity_penalty=0.5)
    together = beam_search(model, prompts, max_new_tokens=8, strategy=strategy)
    for prompt, hypotheses in zip(prompts, together, strict=True):
        alone = search(model, strategy, 8, prompt)
        assert [h.ids for h in hypotheses] == [h.ids for h in alone]
        assert [h.score for h in hypotheses] == pytest.approx([h.score for h in alone])
    assert len({len(h.ids) for hypotheses in together for h in hypotheses}) > 1


# Forced and banned words.


PHRASES = st.lists(st.lists(st.integers(0, 5), min_size=1, max_size=3), max_size=3)


@some_examples(1 / 2)
@given(
    seed=st.integers(0, 10**6),
    force_words=PHRASES,
    bad_words=st.lists(st.lists(st.integers(0, 5), min_size=1, max_size=3), max_size=2),
    num_beams=st.integers(1, 6),
    spare_tokens=st.integers(0, 4),
    stop=st.sampled_from([(), (6,), (6, 7)]),
    last=st.sampled_from([None, None, 6]),
    length_penalty=st.sampled_from([1, -1.0, 0, 0.7, 3.0]),
)
def test_every_text_has_the_forced_words_no_banned_word_and_its_own_score(
    seed, force_words, bad_words, num_beams, spare_tokens, stop, last, length_penalty
):
    """Also where phrases overlap, where the limit is tight, and where stop tokens tempt."""
    assume(not any(contains(phrase, blocked) for phrase in force_words for blocked in bad_words))
    limit = max(1, sum(map(len, force_words)) + spare_tokens + (last is not None))
    model = tiny(8, seed=seed, stop=stop, last=last)
    strategy = Beam(num_beams=num_beams, length_penalty=length_penalty, force_words=force_words, bad_words=bad_words)
    try:
        hypotheses = search(model, strategy, limit)
    except InputError as error:
        # Between phrases that must appear and those that may not, no text need be left; a wide search finds one if so.
        if not bad_words or "the search found 0 texts" not in str(error):
            raise
        return
    scores = scores_of(model, PROMPT, [h.ids for h in hypotheses], length_penalty)
    for h, score in zip(hypotheses, scores, strict=True):
        new = h.ids[:-1] if h.ids[-1] in stop else h.ids
        assert all(contains(new, phrase) for phrase in force_words)
        assert not any(contains(h.ids, phrase) for phrase in bad_words)
        assert not set(new) & set(stop)
        assert len(h.ids) == limit or h.ids[-1] in stop
        if last is None or len(h.ids) < limit:
            assert h.score == pytest.approx(score, rel=1e-4, abs=1e-4)


WORDS = [([[1]], []), ([], [[1]]), ([[1, 2]], [[0], [3, 3]]), ([[0, 1], [2]], []), ([[1], [0]], [[0, 1]])]


@grid(words=WORDS, stop=[(), (3,)], seed=range(2))
def test_a_wide_search_finds_the_best_text_that_meets_the_constraints(words, stop, seed):
    force_words, bad_words = words
    texts, model = list(every_text(4, 4, stop)), tiny(4, seed=seed, stop=stop)
    meets = [
        text
        for text in texts
        if all(contains(text[:-1] if text[-1] in stop else text, phrase) for phrase in force_words)
        and not any(contains(text, phrase) for phrase in bad_words)
    ]
    score, best = best_of(model, PROMPT, meets)[0]
    strategy = Beam(num_beams=2 * len(texts), force_words=force_words, bad_words=bad_words)
    hypothesis = search(model, strategy, 4)[0]
    assert (hypothesis.ids, hypothesis.score) == (best, pytest.approx(score, rel=1e-5))


@pytest.mark.parametrize(
    ("force_words", "bad_words", "message"),
    [
        ([[1, 2]], [[1, 2]], r"force_words=\[1, 2\] and bad_words=\[1, 2\] contradict each other"),
        ([[1, 2, 3]], [[2]], r"force_words=\[1, 2, 3\] and bad_words=\[2\] contradict each other"),
        ([[1, 2, 3], [5, 6]], [], r"have 5 tokens, and max_new_tokens=4 is fewer"),
        ([[1, 4]], [], r"force_words=\[1, 4\] holds a stop token, one of \[4\]: it ends the text"),
        ([[1, 9]], [], r"force_words=\[1, 9\] has the id 9; the vocabulary has 0 to 8"),
        ([], [[-1]], r"bad_words=\[-1\] has the id -1; the vocabulary has 0 to 8"),
        ([], [[n] for n in range(9)], r"found 0 texts of up to 4 tokens.*num_return_sequences=1: allow more"),
    ],
)
def test_constraints_that_no_text_can_meet_are_refused_by_name(force_words, bad_words, message):
    with pytest.raises(InputError, match=message):
        search(tiny(9, stop=(4,)), Beam(force_words=force_words, bad_words=bad_words), 4)


@pytest.mark.parametrize("name", ["force_words", "bad_words"])
def test_phrases_that_are_none(name):
    with pytest.raises(ValueError, match=rf"{name}=\[\] is empty: leave it out"):
        Beam(**{name: [[]]})
    with pytest.raises(ValueError, match=rf"{name}='river' wants a list of words"):
        Beam(**{name: "river"})
    with pytest.raises(TypeError, match=r"words need a tokenizer, and a bare model has none; use regard.load"):
        search(tiny(9), Beam(**{name: ["river"]}), 4)
