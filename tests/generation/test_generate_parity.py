"""Greedy and beam search give the ids that `generate` of transformers gives, for every family."""

from __future__ import annotations

import pytest
import torch
from transformers import GenerationConfig

import regard
from regard import Beam, Greedy
from regard.generation import hypotheses
from weights import random_checkpoint

VARIANTS = {
    "gpt2": ("gpt2", {}),
    "llama": ("llama", {}),
    "mistral": ("mistral", {}),
    "qwen2": ("qwen2", {}),
    "qwen3": ("qwen3", {}),
    "gemma2": ("gemma2", {}),
    "marian": ("marian", {}),
    "bart": ("bart", {}),
    "t5": ("t5", {}),
    "t5 1.1": ("t5", {"feed_forward_proj": "gated-gelu", "tie_word_embeddings": False}),
}
NEW = 14
LENGTHS = (1, 3, 5, 8, 12)
EACH = 10
"""Prompts of each length: 50 in all."""
BEAMS = {
    "width 4": {"width": 4},
    "width 1": {"width": 1},
    "width 2, all": {"width": 2, "n_best": 2},
    "width 7, three": {"width": 7, "n_best": 3},
    "short ones": {"width": 4, "length_penalty": -1.5, "n_best": 4},
    "sums": {"width": 4, "length_penalty": 0},
    "long ones": {"width": 3, "length_penalty": 2.0, "n_best": 2},
}


def prompts():
    generator = torch.Generator().manual_seed(7)
    return [torch.randint(3, 59, (EACH, length), generator=generator) for length in LENGTHS]


def theirs_greedy(model, **options):
    """What transformers writes for every prompt: new tokens, up to the stop token."""
    return [texts[0] for texts, _ in theirs_beam(model, num_beams=1, **options)]


def theirs_beam(model, *, num_return_sequences=1, stop, **options):
    config = GenerationConfig(
        **{
            **model.generation_config.to_dict(),
            "max_new_tokens": NEW,
            "max_length": None,
            "min_length": 0,
            "do_sample": False,
            "early_stopping": False,
            "eos_token_id": stop or [10**6],  # None would be the model's own
            "pad_token_id": 60,
            "num_return_sequences": num_return_sequences,
            "output_scores": True,
            "return_dict_in_generate": True,
            **options,
        }
    )
    found = []
    for ids in prompts():
        mask = torch.ones_like(ids)
        output = model.generate(ids, attention_mask=mask, generation_config=config)
        read = 1 if model.config.is_encoder_decoder else ids.shape[1]
        scores = output.get("sequences_scores", torch.zeros(len(ids)))
        for rows, row_scores in zip(
            output.sequences.split(num_return_sequences), scores.split(num_return_sequences), strict=True
        ):
            found.append(([cut(row[read:].tolist(), stop) for row in rows], row_scores.tolist()))
    return found


def cut(ids, stop):
    """Up to the first stop token, which counts; transformers fills with it, or with padding, behind."""
    return next((ids[: i + 1] for i, token in enumerate(ids) if token in stop), ids)


@pytest.fixture(scope="module", params=VARIANTS)
def pair(request, tmp_path_factory):
    """One model, theirs and ours, and the prompts as one ragged batch."""
    family, changes = VARIANTS[request.param]
    folder = tmp_path_factory.mktemp("family")
    theirs = random_checkpoint(folder, family, **changes)
    return theirs, regard.load(folder), [row for group in prompts() for row in group.tolist()]


def stops(texts, share):
    """The token that stands in so many of the texts, about: one that ends some of them early."""
    counts = {token: sum(token in text[:-1] for text in texts) for token in range(3, 59)}
    return min(counts, key=lambda token: abs(counts[token] - share * len(texts)))


def new_of(ours, ids, **options):
    """The new tokens of a batch."""
    written = regard.generate(ours, ids, max_new_tokens=NEW, **options)
    start = [None] * len(ids) if not hasattr(ours.model, "encoder") else [1] * len(ids)
    return [text[n or len(prompt) :] for text, prompt, n in zip(written, ids, start, strict=True)]


def early(texts):
    """How many ended before the limit."""
    return sum(len(text) < NEW for text in texts)


def test_greedy(pair):
    """All of 50 texts, with no stop token, with one that ends about a third, and with three at once."""
    theirs, ours, ids = pair
    endless = theirs_greedy(theirs, stop=[])
    assert new_of(ours, ids, strategy=Greedy(), stop=()) == endless
    one = stops(endless, 1 / 3)
    three = sorted({one, stops(endless, 1 / 4), stops(endless, 1 / 5), 9, 10})[:3]
    for stop in ([one], three):
        expected = theirs_greedy(theirs, stop=stop)
        assert new_of(ours, ids, stop=stop) == expected
        assert 5 <= early(expected) <= 45
    if len(set(map(tuple, endless))) < 25:
        pytest.fail("texts that are all alike prove little")


@pytest.mark.parametrize("name", BEAMS)
def test_beam(pair, name):
    theirs, ours, ids = pair
    facts = BEAMS[name]
    n_best = facts.get("n_best", 1)
    options = {
        "num_beams": facts["width"],
        "length_penalty": float(facts.get("length_penalty", 1.0)),
        "num_return_sequences": n_best,
    }
    endless = [texts[0] for texts, _ in theirs_beam(theirs, **options, stop=[])]
    one = stops(endless, 1 / 3)
    # A stop token is likelier to come up in one of several beams than in the best.
    for stop in ([one], [one, 9, 17]):
        expected = theirs_beam(theirs, **options, stop=stop)
        found = hypotheses(ours, ids, max_new_tokens=NEW, strategy=Beam(**facts), stop=stop)
        for (texts, scores), row in zip(expected, found, strict=True):
            assert [h.ids for h in row[:n_best]] == texts
            if facts["width"] > 1:
                assert [h.score for h in row[:n_best]] == pytest.approx(scores, rel=1e-4, abs=1e-4)
        assert early(texts[0] for texts, _ in expected) >= 5
    if name == "width 4":
        assert new_of(ours, ids, strategy=Beam(), stop=[one, 9, 17]) == [texts[0] for texts, _ in expected]


def test_what_is_said_by_the_checkpoint_holds(pair, tmp_path):
    """Stop, start, first and last tokens of config.json, one of them a stop token that ends texts."""
    theirs, ours, ids = pair
    config = theirs.config
    own = config.eos_token_id if isinstance(config.eos_token_id, list) else [config.eos_token_id]
    for width in (1, 4):
        expected = [texts[0] for texts, _ in theirs_beam(theirs, num_beams=width, stop=own)]
        strategy = Beam() if width == 4 else Greedy()
        assert new_of(ours, ids, strategy=strategy) == expected
        forced = [theirs.generation_config.forced_bos_token_id, theirs.generation_config.forced_eos_token_id]
        if forced[0] is not None:
            assert {text[0] for text in expected} == {forced[0]}
        if forced[1] is not None:
            assert {text[NEW - 1] for text in expected if len(text) == NEW} == {forced[1]}
            assert len([text for text in expected if len(text) == NEW]) > 5
    assert ours.config.special.stop == tuple(own) or ours.config.decoder.special.stop == tuple(own)


@pytest.mark.parametrize("strategy", [Greedy(), Beam(), Beam(width=3, length_penalty=0.0, groups=3, diversity=0.5)])
def test_a_ragged_batch_is_each_prompt_alone(pair, strategy):
    """Also where some rows end early: the others go on as if alone."""
    theirs, ours, ids = pair
    ids = ids[::5]
    stop = [stops(new_of(ours, ids, stop=()), 1 / 2), 9]
    together = new_of(ours, ids, strategy=strategy, stop=stop)
    assert together == [new_of(ours, [prompt], strategy=strategy, stop=stop)[0] for prompt in ids]
    assert 0 < early(together) < len(ids)
