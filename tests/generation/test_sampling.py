"""Sampling: the distribution by its definitions, and random generators."""

from __future__ import annotations

import math

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from tiny_models import tiny

import regard
from grids import some_examples
from regard import Sample
from regard.generation.sampling import Sampler, sampling_distribution


def by_definition(logits, text, *, temperature=1.0, top_k=None, top_p=None, min_p=None, repetition_penalty=1.0):
    """The probability of every token, by plain loops over numbers."""
    logits = [float(x) for x in logits]
    for token in set(text):
        logits[token] *= repetition_penalty if logits[token] < 0 else 1 / repetition_penalty
    order = sorted(range(len(logits)), key=lambda token: -logits[token])
    allowed = order[:top_k]

    def normalised(tokens):
        powers = {token: math.exp((logits[token] - logits[order[0]]) / temperature) for token in tokens}
        total = sum(powers.values())
        return {token: power / total for token, power in powers.items()}

    if top_p not in (None, 1):
        share, nucleus = 0.0, []
        for token, probability in normalised(allowed).items():
            if share >= top_p:
                break
            nucleus.append(token)
            share += probability
        allowed = nucleus
    if min_p is not None:
        probabilities = normalised(allowed)
        allowed = [token for token in allowed if probabilities[token] >= min_p * probabilities[order[0]]]
    return [normalised(allowed).get(token, 0.0) for token in range(len(logits))]


def p_value(samples, probabilities):
    """Pearson's chi-square test: how likely draws at least as far from the distribution are."""
    counts = torch.bincount(torch.tensor(samples), minlength=len(probabilities)).double()
    expected = torch.tensor(probabilities, dtype=torch.float64) * len(samples)
    possible = expected > 0
    if counts[~possible].any():
        return 0.0
    statistic = ((counts - expected)[possible] ** 2 / expected[possible]).sum()
    freedom = torch.tensor((int(possible.sum()) - 1) / 2, dtype=torch.float64)
    return float(torch.special.gammaincc(freedom, statistic / 2)) if freedom > 0 else 1.0


ALL = {"temperature": 1.4, "top_k": 7, "top_p": 0.9, "min_p": 0.1, "repetition_penalty": 1.3}


@pytest.mark.parametrize("options", [{}, {"temperature": 3}, {"top_k": 3}, {"repetition_penalty": 1.8}, ALL])
def test_draws_have_the_distribution_of_the_definitions(options):
    """2,000 rows with one prompt: 2,000 draws of one distribution, each from a stream of its own."""
    model, prompt, strategy = tiny(12, seed=3), [3, 5, 5, 1], Sample(**options, seed=11)
    with torch.no_grad():
        logits = model(torch.tensor(prompt))[-1]
    generated = regard.generate(model, [prompt] * 2000, max_new_tokens=1, strategy=strategy)
    samples = [text[-1] for text in generated]
    assert p_value(samples, by_definition(logits, prompt, **options)) > 0.001
    assert not options or p_value(samples, by_definition(logits, prompt)) < 1e-6  # the test can tell


def test_draws_of_one_stream_are_independent():
    """Neighbours of 2,000 tokens one after the other in a row have the distribution of pairs."""
    logits, sampler = torch.randn(1, 5, generator=torch.Generator().manual_seed(5)), Sampler(Sample(seed=3), 1)
    samples = [sampler(logits, [[]], [0])[0] for _ in range(2000)]
    pairs = [5 * a + b for a, b in zip(samples[::2], samples[1::2], strict=True)]
    each = by_definition(logits[0], [])
    assert p_value(pairs, [a * b for a in each for b in each]) > 0.001


@some_examples(1 / 2)
@given(
    temperature=st.sampled_from([1.0, 0.3, 2.5]),
    top_k=st.none() | st.integers(1, 40),
    top_p=st.none() | st.just(1) | st.floats(1e-9, 0.99),
    min_p=st.none() | st.just(1) | st.floats(0.0, 0.9),
    repetition_penalty=st.sampled_from([1.0, 1.2, 0.7]),
)
def test_the_distribution_is_the_definitions(**options):
    logits, texts = 3 * torch.randn(3, 30), torch.randint(30, (3, 6)).tolist()
    probabilities, tokens = sampling_distribution(logits, Sample(**options, seed=0), texts)
    ours = torch.zeros(3, 30).scatter(1, tokens, probabilities)
    expected = torch.tensor([by_definition(*row, **options) for row in zip(logits, texts, strict=True)])
    torch.testing.assert_close(ours, expected, rtol=1e-4, atol=1e-6)
    assert torch.equal(ours > 0, expected > 0)


def test_a_seed_gives_the_same_text_again_and_leaves_pytorchs_generator_alone():
    model = tiny(12, seed=3)
    before = torch.get_rng_state()
    texts = [regard.generate(model, [3, 5], max_new_tokens=20, strategy=Sample(seed=seed)) for seed in (1, 1, 2)]
    assert texts[0] == texts[1] != texts[2]
    assert torch.equal(torch.get_rng_state(), before)
    streamed = list(regard.stream(model, [3, 5], max_new_tokens=20, strategy=Sample(seed=1)))
    assert [3, 5, *streamed] == texts[0]


def test_no_seed_follows_pytorchs_generator():
    model, texts = tiny(12, seed=3), []
    for seed in (1, 1, 2):
        torch.manual_seed(seed)
        texts += [regard.generate(model, [3, 5], max_new_tokens=20, strategy=Sample()) for _ in range(2)]
    assert texts[0] == texts[2] != texts[4]
    assert texts[1] == texts[3] != texts[5]
    assert texts[0] != texts[1]


def test_a_row_draws_the_same_alone_and_beside_others():
    """Its stream hangs on its number only, and goes on where other rows have ended."""
    model = tiny(12, seed=3)
    prompts, strategy = [[3, 5], [1, 2, 9, 4], [7]], Sample(seed=4, temperature=1.5)
    for stop in ((), (0, 6)):
        together = regard.generate(model, prompts, max_new_tokens=20, strategy=strategy, stop=stop)
        for count in (1, 2):
            fewer = regard.generate(model, prompts[:count], max_new_tokens=20, strategy=strategy, stop=stop)
            assert fewer == together[:count]
    assert len({len(text) for text in together}) > 1
    same = regard.generate(model, [[3, 5]] * 3, max_new_tokens=20, strategy=strategy)
    assert len({tuple(text) for text in same}) == 3


def test_repetition_counts_the_prompt_and_what_was_written():
    """A penalty beyond measure: no token comes twice while there are others."""
    model = tiny(12, seed=3)
    with torch.no_grad():
        model.lm_head.weight.mul_(0.1)
    text = regard.generate(model, [3, 5], max_new_tokens=8, strategy=Sample(repetition_penalty=1e6, top_k=1, seed=0))
    with torch.no_grad():
        for length in range(2, 10):
            expected = by_definition(model(torch.tensor(text[:length]))[-1], text[:length], repetition_penalty=1e6)
            assert text[length] == max(range(12), key=expected.__getitem__)
