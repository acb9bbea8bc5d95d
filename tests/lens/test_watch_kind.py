"""Self- or cross-attention: what the model computed queries and keys from, whatever their sizes and names."""

import inspect
from copy import deepcopy

import pytest
import torch
from torch import nn
from torch.nn.functional import scaled_dot_product_attention

import regard
from lens.watching import FunctionModule
from regard.lens.capture.kind import _by_name

X, MEMORY, POSITION = torch.randn(3, 2, 6, 8)


class Attention(nn.Module):
    """Attention as many write it; `core` computes it from what is projected."""

    def __init__(self, core):
        super().__init__()
        self.projections, self.core = nn.ModuleList(nn.Linear(8, 8) for _ in range(3)), deepcopy(core)

    def forward(self, x, context=None, cond=None):
        keys = x if context is None else context
        q, k, v = (f(t).unflatten(-1, (2, 4)) for f, t in zip(self.projections, (x, keys, keys), strict=True))
        return self.core(*(t.transpose(1, 2) for t in (q, k, v)))


class Core(nn.Module):
    """What gets queries and keys that are projected already: they are three tensors in either kind."""

    def forward(self, q, k, v):
        return scaled_dot_product_attention(q, k, v)


def by_hand(q, k, v):
    return (q @ k.mT).softmax(-1) @ v


class PyTorchs(nn.Module):
    def __init__(self):
        super().__init__()
        self.attn = nn.MultiheadAttention(8, 2, batch_first=True)

    def forward(self, *inputs):
        return self.attn(*inputs, need_weights=False)


def kind(model, *args, **kwargs):
    with torch.no_grad(), regard.watch(model) as seen:
        model(*args, **kwargs)
    return seen.entry(next(iter(seen))).kind


def test_regards_own():
    model = regard.MultiHeadAttention(8, 2)
    assert kind(model, X) == "self"
    assert kind(model, X, MEMORY) == "cross"


CORES = [scaled_dot_product_attention, Core(), by_hand]


@pytest.mark.parametrize("core", CORES, ids=["sdpa", "module", "by hand"])
@pytest.mark.parametrize(
    ("arguments", "expected"),
    [
        ({}, "self"),
        ({"context": MEMORY}, "cross"),
        ({"context": X}, "self"),
        ({"context": X.clone()}, "self"),
        ({"cond": POSITION[:, :1]}, "self"),
    ],
    ids=["alone", "another of the same size", "the same", "a copy", "a condition"],
)
def test_the_arguments_tell(core, arguments, expected):
    assert kind(Attention(core), X, **arguments) == expected


@pytest.mark.parametrize("core", CORES, ids=["sdpa", "module", "by hand"])
def test_what_the_layer_around_it_reads_is_not_what_it_reads(core):
    """A decoder's layer gets the encoder's output too; its self-attention does not."""

    class Layer(nn.Module):
        def __init__(self):
            super().__init__()
            self.own, self.other = Attention(core), Attention(core)

        def forward(self, x, encoder_hidden_states):
            return self.own(x), self.other(x, encoder_hidden_states)

    with torch.no_grad(), regard.watch(layer := Layer()) as seen:
        layer(X, MEMORY)
    assert [seen.entry(path).kind for path in seen] == ["self", "cross"]


def test_one_query_over_another_sequence():
    assert kind(Attention(scaled_dot_product_attention), X[:, :1], MEMORY) == "cross"
    assert kind(Attention(scaled_dot_product_attention), X[:, :1]) == "self"


@pytest.mark.parametrize(
    ("inputs", "expected"),
    [((X, X, X), "self"), ((X, MEMORY, MEMORY), "cross"), ((X + POSITION, X + POSITION, X), "self")],
    ids=["self", "cross", "positions added to queries and keys"],
)
def test_pytorchs_own(inputs, expected):
    assert kind(PyTorchs(), *inputs) == expected


def test_a_function_without_names_is_told_by_its_sizes():
    model = FunctionModule(scaled_dot_product_attention)
    assert kind(model, *torch.randn(3, 1, 2, 5, 4)) == "self"
    assert kind(model, torch.randn(1, 2, 5, 4), *torch.randn(2, 1, 2, 3, 4)) == "cross"


class Signatures(nn.Module):
    """Methods with the parameters that a ``forward`` may have."""

    def plain(self, x, context=None): ...
    def keyword_only(self, x, *, mask, scale=1.0): ...
    def more(self, hidden_states, mask=None, **options): ...
    def several(self, *tensors, mask=None): ...
    def positional_only(self, x, /, context=None): ...


@pytest.mark.parametrize("name", ["plain", "keyword_only", "more", "several", "positional_only"])
@pytest.mark.parametrize("count", [0, 1, 2, 3])
@pytest.mark.parametrize("names", [(), ("x",), ("mask",), ("mask", "scale"), ("context",), ("hidden_states", "other")])
def test_arguments_have_the_names_that_python_gives_them(name, count, names):
    module, args, kwargs = Signatures(), tuple(torch.randn(count, 2)), {name: torch.ones(3) for name in names}
    module.forward = getattr(module, name)
    try:
        bound = inspect.signature(module.forward).bind(*args, **kwargs)
        bound.apply_defaults()
        expected = {"self": module, **bound.arguments, **kwargs}
    except TypeError:
        expected = {}

    found = _by_name(type(name, (Signatures,), {"forward": getattr(Signatures, name)})(), args, kwargs)
    found = {**found, "self": module} if found else {}
    assert list(found) == list(expected)
    assert all(found[name] is expected[name] or found[name] == expected[name] for name in expected)
