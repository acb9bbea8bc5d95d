"""Blocks and decoders: their wiring, their masks, time and the batch; the bank's, PyTorch's own, and broken ones."""

import pytest
import torch
from torch import nn

import bank
from bank import modules_blocks
from regard.check.blocks.attentions import is_block
from regard.check.blocks.judgement import judge_block
from regard.check.search.deadline import Deadline
from regard.check.search.stage import Diagnosis, Stage
from regard.check.search.subject import subject_of

AROUND = {"residual-missing", "residual-of-norm", "ffn-skipped", "mask-not-passed", "context-ignored", "inputs-changed"}
BLOCKS = [entry for entry in bank.entries() if entry.name.startswith(("modules_blocks.", "right_blocks."))]
BLOCKS = [entry for entry in BLOCKS if entry.verdict != "wrong" or AROUND & set(entry.causes)]
ARGS = {"modules_blocks.TransformerEncoderLayer": {"ffn_embed_dim": 120}}


def wiring(what, args=None):
    """What is found around the attentions, which stay unjudged."""

    def unjudged(subject, deadline):
        return Diagnosis(subject, stages=[Stage("none", "", [])])

    return judge_block(subject_of(what, args or {}), deadline=Deadline(20.0), judge=unjudged)


@pytest.mark.parametrize("entry", BLOCKS, ids=lambda entry: entry.name)
def test_what_is_around_an_attention_is_named_where_it_is_wrong(entry):
    found = wiring(entry.what, {**entry.args, **ARGS.get(entry.name, {})})
    assert {mistake.id for mistake, _ in found.behaviour} == AROUND & set(entry.causes)
    assert all("{" not in mistake.message.format_map(numbers) for mistake, numbers in found.behaviour)
    if entry.verdict != "wrong":
        assert not found.why
        assert any("each added to its input" in note for note in found.notes)


@pytest.mark.parametrize("norm_first", [True, False])
@pytest.mark.parametrize("kind", [nn.TransformerEncoderLayer, nn.TransformerDecoderLayer])
def test_pytorchs_own_layers_are_right(kind, norm_first):
    layer = kind(12, 3, 20, norm_first=norm_first, batch_first=True)
    assert is_block(layer)
    found = wiring(layer)
    assert not found.behaviour
    assert [note for note in found.notes if note.startswith("pre-norm" if norm_first else "post-norm")]


def test_a_decoder_with_tokens_first_gets_its_context_so_as_well():
    found = wiring(nn.TransformerDecoderLayer(12, 3, 20))
    assert found.conventions[0] == "tokens first: (tokens, batch, d_model)"
    assert not found.why


def test_an_attention_is_no_block():
    assert not is_block(nn.MultiheadAttention(12, 3))
    assert not is_block(nn.Sequential(nn.Linear(4, 4), nn.LayerNorm(4)))
    assert is_block(nn.Sequential(nn.Embedding(5, 12), nn.TransformerEncoderLayer(12, 3, 20)))


def test_a_decoder_that_reads_the_future_is_told_from_the_positions():
    ((mistake, numbers),) = wiring(modules_blocks.LeakyGPT).behaviour
    assert mistake.id == "future-leak"
    assert numbers["query"] < numbers["key"]
    assert numbers["number"] > 1e-3


class Block(nn.Module):
    def __init__(self, d_model, num_heads):
        super().__init__()
        self.attn = nn.MultiheadAttention(d_model, num_heads, batch_first=True)
        self.norm = nn.LayerNorm(d_model)


class BatchNormed(Block):
    """Normed over the batch, in eval too."""

    def forward(self, x):
        x = x - x.mean(0, keepdim=True)
        return self.norm(x + self.attn(x, x, x)[0])


def test_a_batch_that_mixes_is_told_with_its_size():
    (numbers,) = [numbers for mistake, numbers in wiring(BatchNormed).behaviour if mistake.id == "batch-mixed"]
    assert numbers["number"] > 1e-3


class Raising(Block):
    def forward(self, x):
        raise ValueError("no GPU")


class Random(Block):
    def forward(self, x):
        return self.norm(torch.dropout(x, 0.5, True) + self.attn(x, x, x)[0])


@pytest.mark.parametrize(("kind", "word"), [(Raising, "no GPU"), (Random, "differ")])
def test_one_that_raises_or_is_random_stays_undetermined_and_says_why(kind, word):
    found = wiring(kind)
    assert not found.behaviour
    assert any(word in why for why in (*found.why, *found.unexplained))


class DecoderBlock(Block):
    def forward(self, x, self_attention_mask=None):
        return self.norm(x + self.attn(x, x, x, attn_mask=self_attention_mask)[0])


class DecoderBlockOfPadding(Block):
    def forward(self, x, key_padding_mask_of_x=None):
        return self.norm(x + self.attn(x, x, x, key_padding_mask=key_padding_mask_of_x)[0])


@pytest.mark.parametrize(("kind", "causes"), [(DecoderBlock, []), (DecoderBlockOfPadding, ["future-leak"])])
def test_a_decoder_whose_causal_mask_is_handed_over_does_not_leak(kind, causes):
    assert [mistake.id for mistake, _ in wiring(kind).behaviour] == causes


class NormedQueries(nn.Module):
    """SASRec's block; with normed keys it is a pre-norm block whose residual is the norm."""

    def __init__(self, d_model, num_heads):
        super().__init__()
        self.norm1, self.norm2 = nn.LayerNorm(d_model), nn.LayerNorm(d_model)
        self.attention = nn.MultiheadAttention(d_model, num_heads, batch_first=True)
        self.mlp = nn.Sequential(nn.Linear(d_model, 20), nn.GELU(), nn.Linear(20, d_model))

    def forward(self, x):
        queries = self.norm1(x)
        keys = self.keys(x, queries)
        x = self.norm2(queries + self.attention(queries, keys, keys, need_weights=False)[0])
        return x + self.mlp(x)

    def keys(self, x, queries):
        return x


class NormedKeys(NormedQueries):
    def keys(self, x, queries):
        return queries


def test_queries_that_alone_are_normed_are_a_design():
    found = wiring(NormedQueries(12, 3))
    assert not found.behaviour
    assert not found.why
    assert found.designs == ["the queries alone are normalized, and what is attended to is added to them (SASRec)"]


def test_a_norm_of_all_that_an_attention_reads_is_no_residual():
    assert {mistake.id for mistake, _ in wiring(NormedKeys(12, 3)).behaviour} == {"residual-of-norm"}
