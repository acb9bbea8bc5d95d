"""Attention that a model computes by itself: a softmax between two products, however it is written."""

from __future__ import annotations

import inspect

import pytest
import torch
from torch import nn
from torch.nn import functional
from torch.nn.functional import scaled_dot_product_attention as sdpa

import regard
from grids import grid
from lens.watching import MODES, FunctionModel, FunctionModule, assert_map, random_qkv, record, sharpen
from regard.lens import AttentionMap, AttentionSummary
from regard.lens.capture.unseen import unseen_attentions

EYE = torch.eye(7).expand(2, 4, 7, 7)
"""Values with which an attention returns its weights."""


def grouped_einsum(q, k, v):
    """Two heads of queries for each head of keys, which have an axis of their own."""
    q = q.unflatten(1, (2, 2))
    weights = torch.einsum("bkgqd,bksd->bkgqs", q, k[:, ::2]).softmax(-1)
    return torch.einsum("bkgqs,bksd->bqkgd", weights, v[:, ::2]).flatten(2, 3).transpose(1, 2)


def one_key_head(q, k, v):
    """The queries of all heads side by side, and the keys once."""
    scores = torch.bmm(q.flatten(1, 2), k[:, 0].mT).unflatten(1, (4, 5)).softmax(-1)
    return torch.bmm(scores.flatten(1, 2), v[:, 0]).unflatten(1, (4, 5))


def flat_heads(q, k, v):
    scores = torch.bmm(q.flatten(0, 1), k.flatten(0, 1).mT).view(2, 4, 5, 7).softmax(-1)
    return torch.bmm(scores.view(8, 5, 7), v.flatten(0, 1)).view(2, 4, 5, -1)


def written_out(q, k, v):
    scores = q @ k.mT
    exponentials = (scores - scores.amax(-1, keepdim=True)).exp()
    return (exponentials / exponentials.sum(-1, keepdim=True)) @ v


def with_sinks(q, k, v):
    """A column of scores of its own for each head, cut off after the softmax."""
    sinks = torch.linspace(-2, 2, 4).view(1, 4, 1, 1).expand(2, 4, 5, 1)
    return torch.cat([q @ k.mT / 3, sinks], -1).softmax(-1)[..., :-1] @ v


def keyword_factors(q, k, v):
    zeros = torch.zeros(8, 5, 7)
    scores = torch.baddbmm(zeros, batch1=q.flatten(0, 1), batch2=k.flatten(0, 1).mT, beta=0, alpha=0.3)
    return torch.matmul(input=scores.view(2, 4, 5, 7).softmax(-1), other=v)


def two_products(q, k, v):
    """Content and positions, as in relative attention, the second shifted into place."""
    positions = q @ torch.linspace(-1, 1, 8 * 8).view(8, 8)
    return (q @ k.mT + torch.nn.functional.pad(positions, (1, 0))[..., 1:8]).softmax(-1) @ v


def by_head(mask):
    return lambda q, k, v: ((q @ k.mT).softmax(-1) * mask.view(1, 4, 1, 1)) @ v


EAGER = {
    "torch.softmax": lambda q, k, v: torch.softmax(q @ k.transpose(-1, -2) / 3, -1) @ v,
    "a method": lambda q, k, v: (q @ k.mT).softmax(dim=-1) @ v,
    "F.softmax": lambda q, k, v: torch.matmul(functional.softmax(torch.matmul(q, k.mT), dim=-1), v),
    "einsum": lambda q, k, v: torch.einsum(
        "bhij,bhjd->bhid", functional.softmax(torch.einsum("bhid,bhjd->bhij", q, k), -1), v
    ),
    "masked": lambda q, k, v: torch.softmax((q @ k.mT / 3).masked_fill(torch.ones(5, 7).triu(1).bool(), -1e9), -1) @ v,
    "dropped": lambda q, k, v: functional.dropout(torch.softmax(q @ k.mT, -1), 0.1) @ v,
    "bmm": lambda q, k, v: torch.bmm(torch.bmm(q.flatten(0, 1), k.flatten(0, 1).mT).softmax(-1), v.flatten(0, 1)),
    "baddbmm": lambda q, k, v: torch.bmm(
        torch.baddbmm(torch.zeros(8, 5, 7), q.flatten(0, 1), k.flatten(0, 1).mT).softmax(-1), v.flatten(0, 1)
    ),
    "a module": lambda q, k, v: nn.Softmax(dim=-1)(q @ k.mT) @ v,
    "in place": lambda q, k, v: (q @ k.mT).div_(3).softmax(-1) @ v,
    "in float32": lambda q, k, v: torch.softmax(q @ k.mT, -1, dtype=torch.float32).to(q.dtype) @ v,
    "grouped einsum": grouped_einsum,
    "einsum with an ellipsis": lambda q, k, v: torch.einsum("...qk,...kd", (q @ k.mT).softmax(-1), v).mT,
    "one head of keys": one_key_head,
    "flat heads": flat_heads,
    "written out": written_out,
    "sinks": with_sinks,
    "keyword factors": keyword_factors,
    "two products": two_products,
    "values first": lambda q, k, v: (v.mT @ (q @ k.mT).softmax(-1).mT).mT,
    "a group's own axis": lambda q, k, v: (
        (q.unflatten(1, (2, 2)) @ k[:, ::2, None].mT).softmax(-1) @ v[:, ::2, None]
    ).flatten(1, 2),
    "values without a batch": lambda q, k, v: (q @ k.mT).softmax(-1) @ v[0, 0],
    "one query": lambda q, k, v: (q[:, :, :1] @ k.mT).softmax(-1) @ v,
    "no query axis": lambda q, k, v: torch.einsum("bhk,bhkd->bhd", (q[:, :, :1] @ k.mT).squeeze(2).softmax(-1), v),
    "a head mask": by_head(torch.tensor([1.0, 0.5, 0.0, 1.0])),
    "cut in place": lambda q, k, v: (q @ k.mT).index_fill_(-1, torch.tensor([2, 3]), -torch.inf).softmax(-1) @ v,
}


@grid(name=EAGER, mode=MODES)
def test_eager_attention_is_recorded_with_its_own_weights_however_it_is_written(name, mode):
    """They are what it makes of values that are the rows of the identity."""
    q, k, v = random_qkv()
    expected = EAGER[name.replace("dropped", "a method")](q, k, EYE)
    model = FunctionModel(EAGER[name])
    model.attn.num_heads = 4
    with mode():
        recording, _ = record(model, q, k, v)
    assert not recording.notes
    m = recording["attn"]
    assert_map(m, expected.view(m.shape))
    assert m.shape[:2] == (2, 4)
    assert recording.entry("attn").kernel == "eager, weights kept"


def test_a_learned_query_and_one_text():
    """Attention pooling: the query is a parameter; and attention of two axes, as one learns it first."""
    pool = FunctionModule(lambda x: (pool.query @ x.mT / 4).softmax(-1) @ x)
    pool.query = nn.Parameter(torch.randn(1, 3, 16))
    x = torch.randn(2, 6, 16)
    recording, _ = record(pool, x)
    assert_map(recording[""], (pool.query @ x.mT / 4).softmax(-1).detach())
    recording, _ = record(FunctionModel(lambda q, k, v: (q @ k.T).softmax(1) @ v), *torch.randn(3, 6, 4))
    assert recording["attn"].shape == (1, 1, 6, 6)
    assert not recording.notes


def test_attention_to_values_of_one_number_a_key_is_recorded():
    """Attention over numbers, such as the times of frames: einsum sums them without an axis of their own."""
    q, k, _ = random_qkv()
    times = torch.randn(2, 4, 7)
    model = FunctionModel(lambda q, k, times: torch.einsum("bhqk,bhk->bhq", (q @ k.mT).softmax(-1), times))
    recording, _ = record(model, q, k, times)
    assert not recording.notes
    assert_map(recording["attn"], (q @ k.mT).softmax(-1))
    torch.testing.assert_close(recording["attn"].v, times[..., None])


def mix(heads, t):
    return torch.einsum("gh,...hqk->...gqk", heads, t)


@pytest.mark.parametrize("batch", [0, ...], ids=["one text", "a batch"])
@pytest.mark.parametrize("place", ["before", "after"])
def test_talking_heads(place, batch):
    """A parameter that mixes the heads of the scores, or those of the weights: then its rows are probabilities."""

    def attend(q, k, v):
        if place == "before":
            return mix(model.mixing, q @ k.mT).softmax(-1) @ v
        return mix(model.mixing, (q @ k.mT).softmax(-1)) @ v

    q, k, v, eye = (t[batch] for t in (*random_qkv(), EYE))
    model, mixing = FunctionModule(attend), torch.randn(4, 4)
    model.mixing = nn.Parameter(mixing if place == "before" else mixing.softmax(-1))
    recording, _ = record(model, q, k, v)
    assert not recording.notes
    assert_map(recording[""], model(q, k, eye).detach())


@pytest.mark.parametrize("batch", [0, ...], ids=["one text", "a batch"])
def test_talking_heads_that_cannot_be_followed_are_noted(batch):
    """A sum of products in place of a product of matrices."""

    def attend(q, k, v):
        weights = mix(model.attn.mixing, q @ k.mT).softmax(-1)
        return (weights[..., None] * v.unsqueeze(-3)).sum(-2)

    model = FunctionModel(attend)
    model.attn.mixing = nn.Parameter(torch.randn(4, 4))
    recording, _ = record(model, *(t[batch] for t in random_qkv()))
    assert len(recording) == 0
    (note,) = recording.notes
    assert note.startswith("attn: ")


@pytest.mark.parametrize("axes", [2, 3, 4])
def test_learned_values(axes):
    q, k = (t[(0,) * (4 - axes)] for t in random_qkv()[:2])
    model = FunctionModule(lambda q, k: (q @ k.mT).softmax(-1) @ model.values)
    model.values = nn.Parameter(torch.randn(7, 7))
    recording, _ = record(model, q, k)
    assert not recording.notes
    assert_map(recording[""], (q @ k.mT).softmax(-1))


def test_weights_of_zero_are_its_mask():
    def causal(q, k, v):
        return (q @ k.mT).masked_fill(torch.ones(7, 7).triu(1).bool(), -torch.inf).softmax(-1) @ v

    recording, _ = record(FunctionModel(causal), *random_qkv(queries=7))
    assert recording["attn"].mask == regard.mask.causal()
    assert recording.entry("attn").mask == "causal()"


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float64])
def test_eager_attention_in_another_dtype(dtype):
    q, k, v = random_qkv(dtype=dtype)
    recording, _ = record(FunctionModel(EAGER["torch.softmax"]), q, k, v)
    m = recording["attn"]
    assert m.verified
    expected = (q @ k.mT / 3).softmax(-1)
    assert (m.dense() - expected.to(m.dense().dtype)).abs().max() < (4e-3 if dtype == torch.bfloat16 else 1e-15)


def test_eager_attention_beside_one_that_is_fused():
    model = FunctionModule(lambda *qkv: model.fused(*qkv) + model.manual(*qkv))
    model.fused, model.manual = FunctionModule(sdpa), FunctionModule(EAGER["torch.softmax"])
    recording, _ = record(model, *random_qkv())
    assert [recording.entry(path).kernel for path in ("fused", "manual")] == ["sdpa", "eager, weights kept"]


def in_chunks(q, k, v):
    """Queries in pairs, whose rows are shifted against one another, as in Longformer."""
    weights = (q[:, :, :4] @ k.mT).softmax(-1)
    shifted = functional.pad(weights, (0, 1)).flatten(-2)[..., : 4 * 7].unflatten(-1, (2, 2, 7))
    return shifted @ v.unsqueeze(2)


def in_two_parts(q, k, v):
    """The keys of the text and some global ones, of which each part of the weights has its own product."""
    weights = (q @ k.mT).softmax(-1)
    return weights[..., :3] @ v[:, :, :3] + weights[..., 3:] @ v[:, :, 3:]


UNSEEN = {
    "in two parts": in_two_parts,
    "in chunks": in_chunks,
    "a sum of products": lambda q, k, v: ((q @ k.mT).softmax(-1).unsqueeze(-1) * v.unsqueeze(2)).sum(-2),
    "weights cut in pieces": lambda q, k, v: sum(
        w @ v[:, :, 2 * n : 2 * n + 3] for n, w in enumerate((q @ k.mT).softmax(-1).unfold(-1, 3, 2).unbind(-2))
    ),
    "no probabilities": lambda q, k, v: ((q @ k.mT).softmax(-1) * 3 - 1) @ v,
    "additive": lambda q, k, v: ((q.unsqueeze(-2) + k.unsqueeze(-3)).tanh().sum(-1)).softmax(-1) @ v,
}


@grid(name=UNSEEN, mode=MODES)
def test_what_cannot_be_followed_is_noted_by_the_name_of_its_module(name, mode):
    with mode():
        recording, _ = record(FunctionModel(UNSEEN[name]), *random_qkv())
    assert len(recording) == 0
    (note,) = recording.notes
    assert note.startswith("attn: ")
    assert "not" in note
    with pytest.raises(KeyError, match="attn: "):
        recording["attn"]


class TestBudget:
    def watch_two(self, budget, keep="maps"):
        model = FunctionModule(lambda *qkv: model.first(*qkv) + model.second(*qkv))
        model.first, model.second = (FunctionModule(EAGER["torch.softmax"]) for _ in range(2))
        with regard.watch(model, budget=budget, keep=keep) as recording:
            model(*random_qkv())
        return recording

    def test_beyond_it_summaries_are_kept_and_a_note_tells_so(self):
        size = 2 * 4 * 5 * 7 * 4
        whole = self.watch_two(size * 2)
        assert not whole.notes
        part = self.watch_two(size * 2 - 1)
        assert isinstance(part["first"], AttentionMap)
        assert isinstance(part["second"], AttentionSummary)
        assert torch.equal(part["second"].entropy(), whole["second"].entropy())
        assert part.entry("second").shape == (2, 4, 5, 7)
        (note,) = part.notes
        assert f"{size:,} bytes" in note
        assert f"budget of {size * 2 - 1:,}" in note

    def test_it_is_a_gibibyte_by_default(self):
        assert inspect.signature(regard.watch).parameters["budget"].default == 1024**3

    def test_none_is_no_limit_and_a_summary_needs_none(self):
        assert not self.watch_two(None).notes
        assert not self.watch_two(0, keep="summary").notes

    @pytest.mark.usefixtures("as_a_user_runs_it")
    @pytest.mark.parametrize("budget", [-1, 1.5, True, "1 GiB"])
    def test_a_wrong_one_is_refused(self, budget):
        with pytest.raises(ValueError, match=r"budget=.*bytes"):
            self.watch_two(budget)


@pytest.mark.parametrize("mode", MODES)
def test_a_softmax_that_is_no_attention_is_not_noted(mode):
    """A classifier's, a router's; and the one inside PyTorch's own attention."""

    def classify(x):
        x = model.attn(x, x, x, need_weights=True)[0]
        gates = functional.softmax(model.router(x), -1)
        x = sum(gates[..., i : i + 1] * (x + i) for i in range(3))
        return torch.softmax(model.head(x.mean(1)), -1)

    model = FunctionModule(classify)
    model.attn, model.router, model.head = (
        nn.MultiheadAttention(16, 4, batch_first=True),
        nn.Linear(16, 3),
        nn.Linear(16, 5),
    )
    with mode():
        recording, _ = record(sharpen(model), torch.randn(2, 6, 16))
    assert list(recording) == ["attn"]
    assert not recording.notes


class DeltaAttention(nn.Module):
    """A linear attention: products of queries and keys, and no softmax."""

    def forward(self, q, k, v):
        return functional.elu(q) @ (functional.elu(k).mT @ v)


class Hybrid(nn.Module):
    """Layers of linear attention, and perhaps one of softmax attention."""

    def __init__(self, softmax: bool) -> None:
        super().__init__()
        self.linear = nn.ModuleList(DeltaAttention() for _ in range(2))
        self.softmax = FunctionModule(sdpa if softmax else lambda q, k, v: v)

    def forward(self, q, k, v):
        return sum(layer(q, k, v) for layer in self.linear) + self.softmax(q, k, v)


def test_a_module_named_as_an_attention_is_never_left_out_in_silence():
    qkv = random_qkv(queries=7)
    recording, _ = record(Hybrid(softmax=True), *qkv)
    assert list(recording) == ["softmax"]
    (note,) = recording.notes
    assert note.startswith(
        "no attention was seen in linear.0 (DeltaAttention) and 1 more: not called in this block, or"
    )
    model = Hybrid(softmax=False)
    why = r"its linear\.0 \(DeltaAttention\) and 1 more take no softmax over products of queries and keys"
    with pytest.raises(ValueError, match=why), regard.watch(model):
        model(*qkv)


@pytest.mark.parametrize(
    ("seen", "unseen"),
    [
        ([], ["a.self", "a.output", "b"]),
        (["a.self"], ["b"]),  # the output of this attention is a part of it
        (["a.self.inner"], ["b"]),
        (["b"], ["a.self", "a.output"]),
        (["a"], ["b"]),
        ([""], []),  # the model itself
    ],
)
def test_which_attentions_were_not_seen(seen, unseen):
    class SelfAttention(nn.Module):
        """An attention by its name."""

    part = nn.ModuleDict({"self": SelfAttention(), "output": SelfAttention(), "dense": nn.Linear(1, 1)})
    part.__class__ = type("AttentionLayer", (nn.ModuleDict,), {})
    model = nn.ModuleDict({"a": part, "b": SelfAttention(), "c": nn.Linear(1, 1)})
    assert unseen_attentions(model.named_modules(), set(seen)) == [f"{path} (SelfAttention)" for path in unseen]
