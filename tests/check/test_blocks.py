"""Blocks and decoders: their wiring, their masks, time and the batch; the bank's, PyTorch's own, and broken ones."""

import sys
from pathlib import Path

import pytest
import torch
from torch import nn

sys.path.insert(0, str(Path(__file__).parents[1]))

import bank
from regard.check.blocks import is_block, judge_block
from regard.check.search import Deadline
from regard.check.subject import subject_of

ENTRIES = {entry.name: entry for entry in bank.entries()}
AROUND = {"residual-missing", "residual-of-norm", "ffn-skipped", "mask-not-passed", "context-ignored", "inputs-changed"}
WRONG = [name for name, e in ENTRIES.items() if name.startswith("modules_blocks.") and set(e.causes) & AROUND]
RIGHT = [name for name in ENTRIES if name.startswith("right_blocks.")]
ARGS = {"modules_blocks.TransformerEncoderLayer": {"ffn_embed_dim": 120}}


def judged(what, **args):
    return judge_block(subject_of(what, args), deadline=Deadline(8.0))


def around(diagnosis):
    return {known.id for known, _ in diagnosis.behaviour}


def nothing(subject, deadline):
    """Leaves the attentions inside unjudged: what is around them is in question."""
    from regard.check.stage import Diagnosis, Stage

    diagnosis = Diagnosis(subject)
    diagnosis.stages.append(Stage("none", "", []))
    return diagnosis


@pytest.mark.parametrize("name", WRONG)
def test_what_is_wrong_around_an_attention_is_named(name):
    entry = ENTRIES[name]
    subject = subject_of(entry.what, {**entry.args, **ARGS.get(name, {})})
    found = judge_block(subject, deadline=Deadline(8.0), judge=nothing)
    assert around(found) == set(entry.causes) & AROUND
    for known, numbers in found.behaviour:
        assert known.message.format_map(numbers)


@pytest.mark.parametrize("name", RIGHT)
def test_nothing_is_wrong_around_a_right_one(name):
    found = judge_block(subject_of(ENTRIES[name].what, ENTRIES[name].args), deadline=Deadline(8.0), judge=nothing)
    assert not found.behaviour
    assert not found.why
    assert any("each added to its input" in note for note in found.notes)


@pytest.mark.parametrize("norm_first", [True, False])
@pytest.mark.parametrize("kind", [nn.TransformerEncoderLayer, nn.TransformerDecoderLayer])
def test_pytorchs_own_layers_are_right(kind, norm_first):
    layer = kind(12, 3, 20, norm_first=norm_first, batch_first=True)
    assert is_block(layer)
    found = judge_block(subject_of(layer, {}), deadline=Deadline(8.0), judge=nothing)
    assert not found.behaviour
    assert [note for note in found.notes if note.startswith("pre-norm" if norm_first else "post-norm")]


def test_an_attention_is_no_block():
    assert not is_block(nn.MultiheadAttention(12, 3))
    assert not is_block(nn.Sequential(nn.Linear(4, 4), nn.LayerNorm(4)))
    assert is_block(nn.Sequential(nn.Embedding(5, 12), nn.TransformerEncoderLayer(12, 3, 20)))


class LeakyDecoder(nn.Module):
    """Its attention is right and is given no mask."""

    def __init__(self, vocab_size, d_model, num_heads):
        super().__init__()
        self.embedding = nn.Embedding(vocab_size, d_model)
        self.layer = nn.TransformerEncoderLayer(d_model, num_heads, 20, batch_first=True)
        self.head = nn.Linear(d_model, vocab_size)

    def forward(self, idx):
        return self.head(self.layer(self.embedding(idx)))


def test_a_decoder_that_reads_the_future_is_told_from_the_positions():
    found = judge_block(subject_of(LeakyDecoder, {}), deadline=Deadline(8.0), judge=nothing)
    (known, numbers) = next(each for each in found.behaviour)
    assert known.id == "future-leak"
    assert numbers["query"] < numbers["key"]
    assert numbers["number"] > 1e-3


class BatchNormed(nn.Module):
    """Normed over the batch, in eval too."""

    def __init__(self, d_model, num_heads):
        super().__init__()
        self.attn = nn.MultiheadAttention(d_model, num_heads, batch_first=True)
        self.norm = nn.LayerNorm(d_model)

    def forward(self, x):
        x = x - x.mean(0, keepdim=True)
        return self.norm(x + self.attn(x, x, x)[0])


def test_a_batch_that_mixes_is_told_with_its_size():
    found = judge_block(subject_of(BatchNormed, {}), deadline=Deadline(8.0), judge=nothing)
    (numbers,) = [numbers for known, numbers in found.behaviour if known.id == "batch-mixed"]
    assert numbers["number"] > 1e-3


class Raising(nn.Module):
    def __init__(self, d_model, num_heads):
        super().__init__()
        self.attn = nn.MultiheadAttention(d_model, num_heads, batch_first=True)
        self.norm = nn.LayerNorm(d_model)

    def forward(self, x):
        raise ValueError("no GPU")


def test_one_that_does_not_run_stays_undetermined_and_says_why():
    found = judge_block(subject_of(Raising, {}), deadline=Deadline(8.0))
    assert not found.behaviour
    assert "no GPU" in found.why[0]


class Random(Raising):
    def forward(self, x):
        return self.norm(torch.dropout(x, 0.5, True) + self.attn(x, x, x)[0])


def test_one_that_is_random_is_not_judged_by_its_wiring():
    found = judge_block(subject_of(Random, {}), deadline=Deadline(8.0), judge=nothing)
    assert not found.behaviour
    assert any("differ" in why for why in found.why)
