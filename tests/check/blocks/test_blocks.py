"""Blocks and decoders: their wiring, their masks, time and the batch; the bank's, PyTorch's own, and broken ones."""

import pytest
import torch
from torch import nn

import bank
from bank import modules_blocks
from regard.check.blocks.attentions import is_block
from regard.check.blocks.call import BlockCall
from regard.check.blocks.judgement import judge_block
from regard.check.search.budget import SearchBudget
from regard.check.search.stage import Diagnosis, Stage
from regard.check.search.subject import subject_of

AROUND = {"residual-missing", "residual-of-norm", "ffn-skipped", "mask-not-passed", "context-ignored", "inputs-changed"}
BLOCKS = [entry for entry in bank.entries() if entry.name.startswith(("modules_blocks.", "right_blocks."))]
BLOCKS = [entry for entry in BLOCKS if entry.verdict != "wrong" or AROUND & set(entry.causes)]
ARGS = {"modules_blocks.TransformerEncoderLayer": {"ffn_embed_dim": 120}}


def wiring(what, args=None):
    """What is found around the attentions, which stay unjudged."""

    def unjudged(subject, budget):
        return Diagnosis(subject, stages=[Stage("none", "", [])])

    return judge_block(subject_of(what, args or {}), budget=SearchBudget(), judge=unjudged)


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


class NormedAttention(nn.Module):
    """As of vit-pytorch: the norm inside, the residual outside."""

    def __init__(self):
        super().__init__()
        self.norm, self.qkv, self.out = nn.LayerNorm(12), nn.Linear(12, 36), nn.Linear(12, 12)

    def forward(self, x):
        q, k, v = self.qkv(self.norm(x)).unflatten(-1, (3, 3, 4)).permute(2, 0, 3, 1, 4)
        return self.out(((q @ k.mT / 2).softmax(-1) @ v).transpose(1, 2).flatten(2))


class NormedLayer(nn.Module):
    def __init__(self, adds):
        super().__init__()
        self.attention, self.adds = NormedAttention(), adds
        self.mlp = nn.Sequential(nn.LayerNorm(12), nn.Linear(12, 24), nn.GELU(), nn.Linear(24, 12))

    def forward(self, x):
        x = self.attention(x) + x if self.adds else self.attention(x)
        return self.mlp(x) + x


@pytest.mark.parametrize("adds", [True, False])
def test_a_residual_may_stand_around_an_attention_that_norms_its_input(adds):
    found = {mistake.id for mistake, _ in wiring(NormedLayer(adds)).behaviour}
    assert found == (set() if adds else {"residual-missing"})


class Residual(nn.Module):
    """Adds what it reads to what the module inside makes of it, as SkipConnection of Kool et al. (2019)."""

    def __init__(self, inner, adds):
        super().__init__()
        self.inner, self.adds = inner, adds

    def forward(self, x):
        return x + self.inner(x) if self.adds else self.inner(x)


class AttentionAlone(NormedAttention):
    def __init__(self):
        super().__init__()
        self.norm = nn.Identity()


class LayerOfResiduals(nn.Module):
    def __init__(self, adds):
        super().__init__()
        self.attention, self.normed = Residual(AttentionAlone(), adds), nn.LayerNorm(12)
        self.mlp = Residual(nn.Sequential(nn.Linear(12, 24), nn.GELU(), nn.Linear(24, 12)), True)

    def forward(self, x):
        return self.mlp(self.normed(self.attention(x)))


@pytest.mark.parametrize("adds", [True, False])
def test_a_residual_may_be_added_by_a_module_around_the_attention(adds):
    found = {mistake.id for mistake, _ in wiring(LayerOfResiduals(adds)).behaviour}
    assert found == (set() if adds else {"residual-missing"})


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


class OfTokenIds(Block):
    def __init__(self, vocab_size, d_model, num_heads):
        super().__init__(d_model, num_heads)
        self.embed = nn.Embedding(vocab_size, d_model)

    def forward(self, ids):
        x = self.norm(self.embed(ids))
        return self.attn(x, x, x)[0]


def test_a_residual_that_is_missing_is_shown_by_other_token_ids_as_well():
    assert [(mistake.id, numbers["what"]) for mistake, numbers in wiring(OfTokenIds).behaviour] == [
        ("residual-missing", "attention")
    ]


class MappedTwice(Block):
    """Two linear maps follow its attention, as if it had two output projections, and then it reads the context."""

    def __init__(self, d_model, num_heads):
        super().__init__(d_model, num_heads)
        self.inner, self.outer = nn.Linear(d_model, d_model), nn.Linear(d_model, d_model)
        self.cross = nn.MultiheadAttention(d_model, num_heads, batch_first=True)

    def forward(self, x, context):
        normed = self.norm(x)
        x = x + self.outer(self.inner(self.attn(normed, normed, normed)[0]))
        return x + self.cross(x, context, context)[0]


def test_maps_of_what_an_attention_returned_are_no_feed_forward_network():
    assert wiring(MappedTwice).notes == ["pre-norm: attention, cross-attention, each added to its input"]


class Raising(Block):
    def forward(self, x):
        raise ValueError("no GPU")


class Random(Block):
    def forward(self, x):
        return self.norm(torch.dropout(x, 0.5, True) + self.attn(x, x, x)[0])


class HidingNothing(Block):
    def forward(self, x, attn_mask=None):
        biases = None if attn_mask is None else attn_mask.to(x.dtype).clamp(-1, 1)
        return self.norm(x + self.attn(x, x, x, attn_mask=biases)[0])


class Scored(Block):
    def __init__(self, d_model, num_heads):
        super().__init__(d_model, num_heads)
        self.head = nn.Linear(d_model, 7)

    def forward(self, x):
        return self.head(torch.tanh(self.norm(x + self.attn(x, x, x)[0])))


@pytest.mark.parametrize(
    ("kind", "word"),
    [
        (Raising, "no GPU"),
        (Random, "differ"),
        (HidingNothing, "attn_mask has an effect"),
        (Scored, "its output is not the last sum"),
    ],
)
def test_one_that_cannot_be_followed_stays_undetermined_and_says_why(kind, word):
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


class BlockOfAnLM(Block):
    def __init__(self, d_model, num_heads, causal=False):
        super().__init__(d_model, num_heads)
        self.causal = causal

    def forward(self, x):
        later = torch.ones(x.shape[1], x.shape[1], dtype=torch.bool).triu(1)
        return self.norm(x + self.attn(x, x, x, attn_mask=later if self.causal else None)[0])


class LeakyBlockOfAnLM(BlockOfAnLM):
    def __init__(self, d_model, num_heads, causal=True):
        super().__init__(d_model, num_heads, False)


@pytest.mark.parametrize(("kind", "causes"), [(BlockOfAnLM, []), (LeakyBlockOfAnLM, ["future-leak"])])
def test_a_setting_that_says_that_it_is_not_causal_outweighs_its_name(kind, causes):
    assert [mistake.id for mistake, _ in wiring(kind).behaviour] == causes


class DecoderBlockWithAWholeStart(Block):
    """Nothing is said of tokens that see one another."""

    def forward(self, x):
        places = torch.arange(x.shape[1])
        hidden = (places > places[:, None]) & (places >= 2)
        return self.norm(x + self.attn(x, x, x, attn_mask=hidden)[0])


class DecoderBlockWithAStart(DecoderBlockWithAWholeStart):
    def __init__(self, d_model, num_heads, prefix_len=2):
        super().__init__(d_model, num_heads)


class BlockOfAPrefixLM(DecoderBlockWithAWholeStart):
    """The first tokens see one another; those behind them see what came before them."""


@pytest.mark.parametrize(
    ("kind", "causes"),
    [(BlockOfAPrefixLM, []), (DecoderBlockWithAStart, []), (DecoderBlockWithAWholeStart, ["future-leak"])],
)
def test_what_speaks_of_a_prefix_is_not_causal_by_its_name(kind, causes):
    assert [mistake.id for mistake, _ in wiring(kind).behaviour] == causes


class DecoderBlockOfOneToken(Block):
    """x: (beams, 1, width), the newest token of each beam."""

    def forward(self, x):
        return self.norm(x + self.attn(x, x, x)[0])


class DecoderBlockOfTokens(DecoderBlockOfOneToken):
    """x: (beams, tokens, width), the newest tokens of each beam."""


@pytest.mark.parametrize(("kind", "causes"), [(DecoderBlockOfOneToken, []), (DecoderBlockOfTokens, ["future-leak"])])
def test_what_is_given_one_token_has_no_later_one(kind, causes):
    assert [mistake.id for mistake, _ in wiring(kind).behaviour] == causes


class DecoderBlockOfObjects(Block):
    def forward(self, x, query_pos=None):
        asked = x if query_pos is None else x + query_pos
        return self.norm(x + self.attn(asked, asked, x)[0])


class DecoderBlockOfWords(Block):
    def forward(self, x, pos=None):
        asked = x if pos is None else x + pos
        return self.norm(x + self.attn(asked, asked, x)[0])


@pytest.mark.parametrize(("kind", "causes"), [(DecoderBlockOfObjects, []), (DecoderBlockOfWords, ["future-leak"])])
def test_object_queries_with_positions_of_their_own_see_one_another(kind, causes):
    assert [mistake.id for mistake, _ in wiring(kind).behaviour] == causes


class CausalWhereTold(Block):
    def forward(self, x, is_causal=False):
        later = torch.ones(x.shape[1], x.shape[1], dtype=torch.bool).triu(1) if is_causal else None
        return self.norm(x + self.attn(x, x, x, attn_mask=later)[0])


class AloneWhereTold(Block):
    """Nothing that comes later is seen, and nothing that came before either."""

    def forward(self, x, is_causal=False):
        others = ~torch.eye(x.shape[1], dtype=torch.bool) if is_causal else None
        return self.norm(x + self.attn(x, x, x, attn_mask=others)[0])


def test_a_causal_flag_hides_what_comes_later_and_nothing_else():
    assert wiring(CausalWhereTold).why == []
    assert wiring(AloneWhereTold).why == [
        "its is_causal has an effect, but no mask format blocks later tokens or padding"
    ]


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


class ReadsTheRest(nn.Module):
    """An attention in which the first token alone asks, and all are keys."""

    def __init__(self, dim, num_heads):
        super().__init__()
        self.num_heads = num_heads
        self.q, self.k, self.v, self.proj = (nn.Linear(dim, dim) for _ in range(4))

    def forward(self, tokens):
        q, k, v = (
            each.unflatten(-1, (self.num_heads, -1)).transpose(1, 2)
            for each in (self.q(tokens[:, :1]), self.k(tokens), self.v(tokens))
        )
        return self.proj(nn.functional.scaled_dot_product_attention(q, k, v).transpose(1, 2).flatten(2))


class OfAClassToken(nn.Module):
    """It is added to the class token, which stands beside the tokens (CaiT)."""

    def __init__(self, d_model, num_heads):
        super().__init__()
        self.norm, self.attn = nn.LayerNorm(d_model), ReadsTheRest(d_model, num_heads)
        self.norm2 = nn.LayerNorm(d_model)
        self.mlp = nn.Sequential(nn.Linear(d_model, 20), nn.GELU(), nn.Linear(20, d_model))
        self.gamma = nn.Parameter(torch.full((d_model,), 0.1))

    def forward(self, x, token):
        token = token + self.gamma * self.attn(self.norm(torch.cat([token, x], 1)))
        return token + self.gamma * self.mlp(self.norm2(token))


class OverClassTokens(nn.Module):
    def __init__(self, d_model, num_heads):
        super().__init__()
        self.token = nn.Parameter(torch.randn(1, 1, d_model))
        self.blocks = nn.ModuleList(OfAClassToken(d_model, num_heads) for _ in range(2))
        self.head = nn.Linear(d_model, 6)

    def forward(self, x):
        token = self.token.expand(len(x), -1, -1)
        for block in self.blocks:
            token = block(x, token)
        return self.head(token[:, 0])


def test_what_a_class_token_alone_reads_is_added_elsewhere():
    assert wiring(OverClassTokens(12, 3)).behaviour == []


class PaddedInFront(nn.Module):
    """A decoder of padded ids: a query all of whose keys are hidden has equal weights, of later ones as well."""

    def __init__(self, pad_id=0):
        super().__init__()
        self.pad_id, self.embed, self.qkv = pad_id, nn.Embedding(9, 8), nn.Linear(8, 24)
        self.register_buffer("causal", torch.ones(16, 16, dtype=torch.bool).tril())

    def forward(self, ids):
        keep = self.causal[: ids.shape[1], : ids.shape[1]] & (ids != self.pad_id)[:, None]
        q, k, v = self.qkv(self.embed(ids)).chunk(3, -1)
        scores = (q @ k.mT / 8**0.5).masked_fill(~keep, torch.finfo(q.dtype).min)
        return scores.softmax(-1) @ v


@pytest.mark.parametrize("padding", [0, 8])
def test_no_token_that_is_drawn_is_padding(padding):
    module = PaddedInFront(padding).double()
    block = BlockCall(subject_of(module, {}), module, 8, ids=True)
    ids = block.x(tokens=200)
    assert set(ids.flatten().tolist()) == {*range(9)} - {padding}
    moved = block.moved(ids, slice(None), slice(None))
    assert padding not in moved
    assert bool((moved != ids).all())
