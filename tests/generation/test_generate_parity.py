"""Greedy and beam search give the ids that `generate` of transformers gives, for every family."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import pytest
import torch
from transformers import GenerationConfig

import regard
from regard import Beam, Greedy
from regard.generation import beam_search
from regard.pretrained import Pretrained
from regard.transformer import EncoderDecoder
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
NEW = 10
LENGTHS = (1, 3, 5, 8, 12)
EACH = 10
"""Prompts of each length: 50 in all."""
BEAMS = {
    "width 2, sums": {"num_beams": 2, "num_return_sequences": 2, "length_penalty": 0},
    "width 7, three": {"num_beams": 7, "num_return_sequences": 3},
    "short ones": {"num_beams": 4, "length_penalty": -1.5, "num_return_sequences": 4},
    "long ones": {"num_beams": 3, "length_penalty": 2.0, "num_return_sequences": 2},
}


def prompts(every=True):
    """Token ids, by their lengths: all 50, or 10 of them."""
    generator = torch.Generator().manual_seed(7)
    groups = [torch.randint(3, 59, (EACH, length), generator=generator) for length in LENGTHS]
    return groups if every else [groups[1][:5], groups[3][:5]]


def theirs_greedy(model, stop, **options):
    """What transformers writes for every prompt: new tokens, up to the stop token."""
    return [texts[0] for texts, _ in theirs_beam(model, {"num_beams": 1}, stop, **options)]


def theirs_beam(model, facts, stop, every=True):
    """What transformers finds by a beam search: for every prompt the best texts, and their scores."""
    num_return_sequences = facts.get("num_return_sequences", 1)
    config = GenerationConfig(
        **{
            **model.generation_config.to_dict(),
            "max_new_tokens": NEW,
            "max_length": None,
            "do_sample": False,
            "early_stopping": False,
            "eos_token_id": stop or [10**6],  # None would be the model's own
            "pad_token_id": 60,
            "num_beams": facts["num_beams"],
            "num_return_sequences": num_return_sequences,
            "length_penalty": float(facts.get("length_penalty", 1)),
            "output_scores": True,
            "return_dict_in_generate": True,
        }
    )
    results = []
    for ids in prompts(every):
        output = model.generate(ids, attention_mask=torch.ones_like(ids), generation_config=config)
        read = 1 if model.config.is_encoder_decoder else ids.shape[1]
        scores = output.get("sequences_scores")
        scores = torch.zeros(len(output.sequences)) if scores is None else scores
        for rows, row_scores in zip(
            output.sequences.split(num_return_sequences), scores.split(num_return_sequences), strict=True
        ):
            results.append(([cut(row[read:].tolist(), stop) for row in rows], row_scores.tolist()))
    return results


def cut(ids, stop):
    """Up to the first stop token, which counts; transformers fills with it, or with padding, behind."""
    return next((ids[: i + 1] for i, token in enumerate(ids) if token in stop), ids)


@dataclass
class Pair:
    """One model, theirs and ours."""

    theirs: Any
    ours: Pretrained
    endless: list[list[int]]
    """What it writes to every prompt where nothing stops it."""

    def stop(self, share):
        """The token that first stands in the middle of so many of those texts: as a stop token it ends them early."""
        counts = {token: sum(2 <= first(text, token) < NEW - 1 for text in self.endless) for token in range(3, 59)}
        return min(counts, key=lambda token: abs(counts[token] - share * len(self.endless)))


def first(text, token):
    """Where a token first stands in a text; behind the end if nowhere."""
    return text.index(token) if token in text else len(text)


@pytest.fixture(scope="module", params=VARIANTS)
def pair(request, tmp_path_factory):
    """A small random checkpoint of each family."""
    family, changes = VARIANTS[request.param]
    folder = tmp_path_factory.mktemp("family")
    theirs = random_checkpoint(folder, family, **changes)
    enliven(theirs, family)
    theirs.save_pretrained(folder)
    return Pair(theirs, regard.load(folder), theirs_greedy(theirs, []))


def enliven(model, family):
    """Let a model with random weights and tied token vectors not say the same token for ever.

    Signs of the last norm's gain are turned, so that a token's vector is not the likeliest answer to itself; and where
    a decoder hears more of the source than of its own text, less of it.
    """
    last = {"gemma2": "model.norm.weight"}.get(family, "model.decoder.layers.1.final_layer_norm.weight")
    generator = torch.Generator().manual_seed(0)
    with torch.no_grad():
        for name, p in model.named_parameters():
            if name == last:
                turned = torch.rand(p.shape, generator=generator) < 0.5
                p[turned] = -2 - p[turned] if family == "gemma2" else -p[turned]  # Gemma multiplies by 1 + weight
            if family in ("marian", "bart") and name.startswith("model.decoder.layers"):
                if name.endswith("encoder_attn.out_proj.weight"):
                    p.mul_(0.6 if family == "marian" else 0.3)
                if name.endswith("fc2.weight"):
                    p.mul_(0.3)
                if family == "marian" and name.endswith("norm.bias"):
                    p.zero_()


def listed(groups):
    """Prompts of every length as one ragged batch."""
    return [row for group in groups for row in group.tolist()]


def new_of(ours, ids, **options):
    """The new tokens of a batch."""
    generated = regard.generate(ours, ids, max_new_tokens=NEW, **options)
    is_answer = isinstance(ours.model, EncoderDecoder)
    return [text[1 if is_answer else len(prompt) :] for text, prompt in zip(generated, ids, strict=True)]


def same_texts(ours, theirs):
    """Every text, token by token; the first few that differ are told (pytest would compare them for minutes)."""
    differ = [(n, a, b) for n, (a, b) in enumerate(zip(ours, theirs, strict=True)) if a != b]
    if differ:
        differences = "\n".join(f"{n}: {a}, theirs {b}" for n, a, b in differ[:3])
        pytest.fail(f"{len(differ)} of {len(ours)} differ\n{differences}")


def num_finished_early(texts):
    """The number of texts that ended before the limit."""
    return sum(len(text) < NEW for text in texts)


def test_greedy(pair):
    """50 prompts in one ragged batch, with no stop token, and with two at once."""
    ids = listed(prompts())
    same_texts(new_of(pair.ours, ids, strategy=Greedy(), stop=()), pair.endless)
    assert len(set(map(tuple, pair.endless))) >= 20  # texts that are all alike would prove little
    stop = [pair.stop(1 / 3), 9]
    expected = theirs_greedy(pair.theirs, stop)
    same_texts(new_of(pair.ours, ids, stop=stop), expected)
    assert 5 <= num_finished_early(expected) <= 45


def test_beam_of_width_4(pair):
    """50 prompts in one ragged batch, with a stop token that ends a fair share of them."""
    ids, stop = listed(prompts()), [pair.stop(1 / 2)]
    expected = [texts[0] for texts, _ in theirs_beam(pair.theirs, {"num_beams": 4}, stop)]
    same_texts(new_of(pair.ours, ids, strategy=Beam(num_beams=4), stop=stop), expected)
    assert 5 <= num_finished_early(expected) < 50


# Two families stand for the others here: what differs between families is theirs in the tests above.
@pytest.mark.parametrize(
    "pair",
    [name if name in ("gpt2", "t5") else pytest.param(name, marks=pytest.mark.slow) for name in VARIANTS],
    indirect=True,
)
@pytest.mark.parametrize("name", BEAMS)
def test_beams_of_other_kinds(pair, name):
    """All texts that are returned, and their scores; with several stop tokens, which widen what is looked at."""
    facts, ids = BEAMS[name], listed(prompts(every=False))
    num_return_sequences, stop = facts.get("num_return_sequences", 1), [pair.stop(1 / 2), 9, 17]
    expected = theirs_beam(pair.theirs, facts, stop, every=False)
    results = beam_search(pair.ours, ids, max_new_tokens=NEW, strategy=Beam(**facts), stop=stop)
    same_texts([[h.ids for h in row[:num_return_sequences]] for row in results], [texts for texts, _ in expected])
    ours = torch.tensor([[h.score for h in row[:num_return_sequences]] for row in results])
    torch.testing.assert_close(ours, torch.tensor([scores for _, scores in expected]), rtol=1e-5, atol=1e-5)
    if name != "long ones":
        assert num_finished_early(text for texts, _ in expected for text in texts) >= 1


def test_what_the_checkpoint_says_holds(pair):
    """Its own stop, start, first and last tokens."""
    theirs, ours = pair.theirs, pair.ours
    config = theirs.generation_config
    own = config.eos_token_id if isinstance(config.eos_token_id, list) else [config.eos_token_id]
    for facts, strategy in (({"num_beams": 1}, Greedy()), ({"num_beams": 4}, Beam(num_beams=4))):
        expected = [texts[0] for texts, _ in theirs_beam(theirs, facts, own, every=False)]
        same_texts(new_of(ours, listed(prompts(every=False)), strategy=strategy), expected)
        if config.forced_bos_token_id is not None:
            assert {text[0] for text in expected} == {config.forced_bos_token_id}
        if config.forced_eos_token_id is not None:
            full = {text[-1] for text in expected if len(text) == NEW}
            assert full == {config.forced_eos_token_id}


@pytest.mark.parametrize(
    "strategy", [Greedy(), Beam(), Beam(num_beams=3, length_penalty=0.0, num_beam_groups=3, diversity_penalty=0.5)]
)
def test_a_ragged_batch_is_each_prompt_alone(pair, strategy):
    """Also where some rows end early: the others go on as if alone."""
    token, ids = pair.stop(1 / 3), listed(prompts())
    is_early = [token in text[:-1] for text in pair.endless]
    ids = [p for p, e in zip(ids, is_early, strict=True) if e][:3] + ids[::17]
    together = new_of(pair.ours, ids, strategy=strategy, stop=[token, 9])
    same_texts(together, [new_of(pair.ours, [prompt], strategy=strategy, stop=[token, 9])[0] for prompt in ids])
    if isinstance(strategy, Greedy):
        assert num_finished_early(together) >= 3
        assert len(set(map(len, together))) > 1
