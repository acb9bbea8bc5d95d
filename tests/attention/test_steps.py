"""The definition against the same definition written with plain Python loops, and against what the papers claim."""

import itertools
import math

import pytest
import torch

import regard
from grids import grid
from regard import mask


def randn(*shape):
    return torch.randn(*shape, dtype=torch.float64)


def by_loops(q, k, v, allowed=None, *, scale=None, bias=None, softcap=None, sinks=None):
    """Weights and output of every query of every head, one number at a time."""
    shape = (*q.shape[:-1], k.shape[-2])
    allowed = torch.ones(shape).bool() if allowed is None else allowed.expand(shape)
    bias = torch.zeros(shape) if bias is None else bias.expand(shape)
    scale = 1 / math.sqrt(q.shape[-1]) if scale is None else scale
    weights, output = torch.zeros(shape).double(), torch.zeros(*q.shape[:-1], v.shape[-1]).double()

    for *head, i in itertools.product(*map(range, q.shape[:-1])):
        # Query heads that stand side by side share one head of keys and values.
        shared = (*head[:-1], head[-1] // (q.shape[-3] // k.shape[-3])) if head else ()
        query, keys, values = q[(*head, i)].tolist(), k[shared].tolist(), v[shared].tolist()
        row, may = bias[(*head, i)].tolist(), allowed[(*head, i)].tolist()
        exps = [0.0] * len(keys)
        for j, key in enumerate(keys):
            score = scale * sum(a * b for a, b in zip(query, key, strict=True))
            if softcap is not None:
                score = softcap * math.tanh(score / softcap)
            if may[j]:
                exps[j] = math.exp(score + row[j])
        total = sum(exps) + (math.exp(sinks[head[-1]]) if sinks is not None else 0.0)
        shares = [e / total if e else 0.0 for e in exps]
        weights[(*head, i)] = torch.tensor(shares, dtype=torch.float64)
        for c in range(v.shape[-1]):
            output[(*head, i, c)] = sum(share * value[c] for share, value in zip(shares, values, strict=True))
    return weights, output


# Query heads, key heads, queries, keys, d_key, d_value; None = no such axis.
SHAPES = {
    "one token": ((), 1, 1, 1, 1, 1, 1),
    "tokens x width": ((), None, None, 3, 3, 4, 4),
    "batch": ((2,), 2, 2, 3, 3, 4, 4),
    "two batch axes": ((2, 3), 2, 2, 2, 2, 3, 3),
    "grouped heads": ((2,), 6, 2, 3, 3, 4, 4),
    "one key head": ((2,), 3, 1, 3, 3, 4, 4),
    "d_value wider": ((2,), 2, 2, 3, 3, 2, 5),
    "fewer queries": ((2,), 2, 2, 2, 5, 4, 4),
    "more queries": ((2,), 2, 2, 5, 2, 4, 4),
    "everything": ((2, 1), 4, 2, 2, 4, 3, 5),
}


def inputs(lead, heads, kv_heads, queries, keys, d_key, d_value):
    q_lead, kv_lead = ((), ()) if heads is None else ((*lead, heads), (*lead, kv_heads))
    return randn(*q_lead, queries, d_key), randn(*kv_lead, keys, d_key), randn(*kv_lead, keys, d_value)


OPTIONS = {
    "plain": lambda scores: {},
    "scale": lambda scores: {"scale": 0.7},
    "negative scale": lambda scores: {"scale": -0.7},
    "bias": lambda scores: {"bias": randn(*scores)},
    "bias for every query": lambda scores: {"bias": randn(scores[-1])},
    "softcap": lambda scores: {"softcap": 0.8},
    "mask": lambda scores: {"mask": mask.allowed(torch.rand(scores) < 0.6)},
    "causal": lambda scores: {"mask": mask.causal()},
    "sinks": lambda scores: {"sinks": randn(scores[-3])},
    "padding": lambda scores: {"mask": mask.padding([scores[-1] - 1, 0, 1][: scores[-4]])},
    "all": lambda scores: {
        "mask": mask.allowed(torch.rand(scores) < 0.6),
        "scale": 0.7,
        "bias": randn(*scores),
        "softcap": 0.8,
        "sinks": randn(scores[-3]),
    },
}
NEEDS_AXES = {"sinks": 3, "all": 3, "padding": 4}


@grid(
    shape=SHAPES,
    option=OPTIONS,
    where=lambda shape, option: inputs(*SHAPES[shape])[0].ndim >= NEEDS_AXES.get(option, 2),
)
def test_the_definition_by_loops(shape, option):
    q, k, v = inputs(*SHAPES[shape])
    keywords = OPTIONS[option]((*q.shape[:-1], k.shape[-2]))
    who = keywords.pop("mask", None)
    kept = regard.steps(q, k, v, who, **keywords)
    allowed = None if who is None else who.dense(q.shape[-2], k.shape[-2])
    weights, output = by_loops(q, k, v, allowed, **keywords)
    torch.testing.assert_close(kept.weights, weights, rtol=0, atol=1e-14)
    torch.testing.assert_close(kept.output, output, rtol=0, atol=1e-14)


def test_each_step_follows_from_the_one_before():
    q, k, v = inputs((2,), 4, 2, 3, 5, 4, 6)
    bias, sinks, softcap, who = randn(3, 5), randn(4), 1.5, mask.causal()
    kept = regard.steps(q, k, v, who, scale=0.3, bias=bias, softcap=softcap, sinks=sinks)
    keys, values = k[:, [0, 0, 1, 1]], v[:, [0, 0, 1, 1]]
    expected = {
        "scores": torch.einsum("bhid,bhjd->bhij", q, keys),
        "scaled": kept.scores * 0.3,
        "capped": softcap * torch.tanh(kept.scaled / softcap),
        "biased": kept.capped + bias,
        "masked": torch.where(who.dense(3, 5), kept.biased, -torch.inf),
        "weights": kept.masked.exp() / (kept.masked.exp().sum(-1, keepdim=True) + sinks[:, None, None].exp()),
        "output": torch.einsum("bhij,bhjd->bhid", kept.weights, values),
    }
    for name, value in expected.items():
        torch.testing.assert_close(getattr(kept, name), value, msg=lambda text, name=name: f"{name}: {text}")


def test_a_step_not_asked_for_is_the_step_before():
    kept = regard.steps(*inputs((), 2, 2, 3, 3, 4, 4))
    assert kept.capped is kept.biased is kept.masked is kept.scaled


def test_repr_tells_the_shapes_of_what_was_kept():
    text = repr(regard.steps(*inputs((2,), 4, 2, 3, 5, 4, 6)))
    assert text.startswith("Steps(scores (2, 4, 3, 5), scaled (2, 4, 3, 5), ")
    assert text.endswith("weights (2, 4, 3, 5), output (2, 4, 3, 6))")


@pytest.mark.parametrize("dtype", [torch.float64, torch.float32, torch.bfloat16, torch.float16])
def test_every_step_keeps_the_dtype(dtype):
    q, k, v = (t.to(dtype) for t in inputs((2,), 4, 2, 3, 5, 4, 6))
    options = {"bias": randn(3, 5).to(dtype), "softcap": 2.0, "sinks": torch.zeros(4, dtype=dtype)}
    kept = regard.steps(q, k, v, mask.causal(), **options)
    assert {value.dtype for value in vars(kept).values() if value is not None} == {dtype}


EMPTY = {
    "causal before the first key": {"mask": mask.causal(offset=-1)},
    "padding of length 0": {"mask": mask.padding([3, 0])},
    "blocked row": {"mask": mask.blocked(torch.tensor([[False] * 3, [True] * 3, [False] * 3]))},
    "bias of -inf": {"bias": torch.tensor([0.0, -torch.inf, 0.0]).double()[:, None].expand(3, 3)},
    "everything blocked": {"mask": mask.blocked(torch.ones(3, 3).bool())},
}


@grid(option=EMPTY, with_sinks=[False, True])
def test_nothing_to_attend_to__pytorch_41508_160064(option, with_sinks):
    q, k, v = (t.requires_grad_() for t in inputs((2,), 2, 2, 3, 3, 4, 4))
    kept = regard.steps(q, k, v, **EMPTY[option], sinks=randn(2) if with_sinks else None)
    empty = (kept.masked == -torch.inf).all(dim=-1)
    dq, dk, dv = torch.autograd.grad(kept.output.sum(), (q, k, v))
    assert empty.any()
    assert all((t[empty] == 0).all() for t in (kept.weights, kept.output, dq))
    assert all(t.isfinite().all() for t in (kept.weights, kept.output, dq, dk, dv))


@pytest.mark.parametrize(("queries", "keys"), [(0, 3), (3, 0), (0, 0)])
@pytest.mark.parametrize("who", [None, mask.causal()], ids=repr)
def test_no_queries_or_no_keys(queries, keys, who):
    q, k, v = (t.requires_grad_() for t in inputs((2,), 4, 2, queries, keys, 4, 6))
    kept = regard.steps(q, k, v, who)
    assert (kept.weights.shape, kept.output.shape) == ((2, 4, queries, keys), (2, 4, queries, 6))
    assert all((t == 0).all() for t in (kept.output, *torch.autograd.grad(kept.output.sum(), (q, k, v))))


def test_one_sink_without_a_heads_axis():
    q, k, v = inputs((), None, None, 3, 3, 4, 4)
    kept = regard.steps(q, k, v, sinks=torch.tensor(0.5).double())
    of_one_head = regard.steps(q[None], k[None], v[None], sinks=torch.tensor([0.5]).double())
    torch.testing.assert_close(kept.weights, of_one_head.weights[0])
