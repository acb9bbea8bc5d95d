"""Greedy and beam search give the ids that `generate` of transformers gives, for every family."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import pytest
import torch
from transformers import GenerationConfig

import regard
from regard import Beam
from regard.pretrained import Pretrained
from weights import FAMILIES, random_checkpoint

VARIANTS = {name: (name, {}) for name in FAMILIES if name not in ("bert", "roberta")}
VARIANTS["t5 1.1"] = ("t5", {"feed_forward_proj": "gated-gelu", "tie_word_embeddings": False})
NEW = 10
LENGTHS, EACH = (1, 9), 12
"""The prompts: 12 of each length, which make one ragged batch of 24 for regard."""
GENERATOR = torch.Generator().manual_seed(7)
PROMPTS = [torch.randint(3, 59, (EACH, length), generator=GENERATOR) for length in LENGTHS]
ROWS = [row.tolist() for group in PROMPTS for row in group]
BEAMS = {
    "width 4": {"num_beams": 4},
    "width 2, sums": {"num_beams": 2, "num_return_sequences": 2, "length_penalty": 0},
    "width 7, three": {"num_beams": 7, "num_return_sequences": 3},
    "short ones": {"num_beams": 4, "length_penalty": -1.5, "num_return_sequences": 4},
    "long ones": {"num_beams": 3, "length_penalty": 2.0, "num_return_sequences": 2},
}


def cut(ids, stop):
    """Up to the first stop token, which counts; transformers fills with it, or with padding, behind."""
    return next((ids[: i + 1] for i, token in enumerate(ids) if token in stop), ids)


def differences(ours, theirs):
    """The first few texts that differ: pytest would compare all of them for minutes."""
    return [pair for pair in zip(ours, theirs, strict=True) if pair[0] != pair[1]][:3]


@dataclass
class Pair:
    """One model, theirs and ours."""

    theirs: Any
    ours: Pretrained
    endless: list[list[int]]
    """What it writes to every prompt where nothing stops it."""

    def stop(self, share: float) -> int:
        """The token that first stands in the middle of so many of those texts: as a stop token it ends them early."""
        counts = {token: sum(token in text[2 : NEW - 1] for text in self.endless) for token in range(3, 59)}
        return min(counts, key=lambda token: abs(counts[token] - share * len(self.endless)))

    def new(self, **options: Any) -> list[list[int]]:
        """The new tokens that regard writes."""
        read = [1 if self.ours.kind == "encoder-decoder" else len(row) for row in ROWS]
        texts = regard.generate(self.ours, ROWS, max_new_tokens=NEW, **options)
        return [text[start:] for text, start in zip(texts, read, strict=True)]


@torch.inference_mode()
def theirs_search(model, stop, *, num_beams=1, num_return_sequences=1, length_penalty=1):
    """What transformers finds: for every prompt the best texts, and their scores."""
    settings = model.generation_config.to_dict()
    settings |= {"max_new_tokens": NEW, "max_length": None, "do_sample": False, "early_stopping": False}
    settings |= {"eos_token_id": stop or [10**6], "pad_token_id": 60}
    settings |= {"num_beams": num_beams, "num_return_sequences": num_return_sequences}
    settings |= {"length_penalty": float(length_penalty), "output_scores": True, "return_dict_in_generate": True}
    config = GenerationConfig(**settings)
    texts, scores = [], []
    for ids in PROMPTS:
        output = model.generate(ids, attention_mask=torch.ones_like(ids), generation_config=config)
        read = 1 if model.config.is_encoder_decoder else ids.shape[1]
        rows = output.sequences[:, read:].view(EACH, num_return_sequences, -1).tolist()
        texts += [[cut(text, stop) for text in row] for row in rows]
        scores += output.get("sequences_scores", torch.zeros(len(rows))).view(EACH, -1).tolist()
    return texts, scores


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


@pytest.fixture(scope="module", params=VARIANTS)
def pair(request, tmp_path_factory):
    """A small random checkpoint of each family."""
    family, changes = VARIANTS[request.param]
    folder = tmp_path_factory.mktemp("family")
    theirs = random_checkpoint(folder, family, **changes)
    enliven(theirs, family)
    theirs.save_pretrained(folder)
    return Pair(theirs, regard.load(folder), [text for (text,) in theirs_search(theirs, [])[0]])


def test_greedy(pair):
    """All prompts in one ragged batch, with no stop token, and with two at once."""
    assert differences(pair.new(stop=()), pair.endless) == []
    assert len(set(map(tuple, pair.endless))) >= 12  # texts that are all alike would prove little
    stop = [pair.stop(1 / 3), 9]
    expected = [cut(text, stop) for text in pair.endless]
    assert differences(pair.new(stop=stop), expected) == []
    assert 2 <= sum(len(text) < NEW for text in expected) <= 22


# In the fast tier width 4 is of one family of each kind of cache and mask, and each other kind of beam of one family.
FAST = {(family, "width 4") for family in ("mistral", "gemma2", "marian")}
FAST |= {(("gpt2", "t5")[i % 2], name) for i, name in enumerate(BEAMS) if i}


@pytest.mark.parametrize(
    ("pair", "name"),
    [
        pytest.param(family, name, marks=() if (family, name) in FAST else mark)
        for family in VARIANTS
        for name in BEAMS
        for mark in [pytest.mark.more if family in ("gpt2", "t5") or name == "width 4" else pytest.mark.slow]
    ],
    indirect=["pair"],
)
def test_beams(pair, name):
    """All texts, and their scores (`sequences_scores`); with several stop tokens, which widen what is looked at."""
    stop, count = [pair.stop(1 / 2), 9, 17], BEAMS[name].get("num_return_sequences", 1)
    texts, scores = theirs_search(pair.theirs, stop, **BEAMS[name])
    options = {"max_new_tokens": NEW, "strategy": Beam(**BEAMS[name]), "stop": stop}
    results = regard.generate(pair.ours, ROWS, return_hypotheses=True, **options)
    results = [[row] for row in results] if count == 1 else results
    assert differences([[h.ids for h in row] for row in results], texts) == []
    ours = torch.tensor([[h.score for h in row] for row in results])
    torch.testing.assert_close(ours, torch.tensor(scores), rtol=1e-5, atol=1e-5)
    assert name == "long ones" or any(len(text) < NEW for row in texts for text in row)


# In the fast tier the families whose checkpoints say more than a stop token, and one decoder.
@pytest.mark.parametrize("num_beams", [1, pytest.param(4, marks=pytest.mark.more)])
@pytest.mark.parametrize(
    "pair",
    [name if name in ("llama", "marian", "bart") else pytest.param(name, marks=pytest.mark.more) for name in VARIANTS],
    indirect=True,
)
def test_what_the_checkpoint_says_holds(pair, num_beams):
    """Its own stop, start, first and last tokens."""
    config = pair.theirs.generation_config
    own = config.eos_token_id if isinstance(config.eos_token_id, list) else [config.eos_token_id]
    expected = [texts[0] for texts in theirs_search(pair.theirs, own, num_beams=num_beams)[0]]
    assert differences(pair.new(strategy=Beam(num_beams=num_beams)), expected) == []
    if num_beams == 1:
        assert differences(pair.new(), expected) == []
    if config.forced_bos_token_id is not None:
        assert {text[0] for text in expected} == {config.forced_bos_token_id}
    if config.forced_eos_token_id is not None:
        assert {text[-1] for text in expected if len(text) == NEW} == {config.forced_eos_token_id}
