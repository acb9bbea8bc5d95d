"""`torch.compile(fullgraph=True)` and `torch.export`: a graph gives what eager mode gives, gradients included.

`test_graphs.py` runs this file in a process of its own, without the test run's shape checks: these are code that no
graph can hold.
"""

import warnings

import pytest
import test_gpu as gpu
import torch
from torch import nn
from torch.export import Dim, export

import regard
from regard import mask, positions
from regard.attention.kernels import flex
from regard.attention.kernels.call import AttentionCall

TOKENS = 200

MASKS = {
    "full": None,
    "causal": mask.causal(),
    "padding": mask.padding([TOKENS, 70]),
    "window": mask.window(16),
    "window on both sides": mask.window(9, 8),
    "causal and padding": mask.causal() & mask.padding([TOKENS, 70]),
    "padding on the left": mask.causal() & mask.allowed((torch.arange(TOKENS) > 30)[None, None, None]),
    "documents": mask.documents(torch.arange(TOKENS) // 50),
    "pairs": mask.documents(torch.arange(TOKENS) // 50, torch.arange(TOKENS) // 70),
    "prefix": mask.prefix(9),
    "where": mask.where(lambda i, j: (i - j) % 3 == 0),
    "algebra": ~mask.window(4) | mask.causal(),
}
KERNELS = ["full", "causal", "padding", "window"]  # what a graph has kernels for
OPTIONS = {
    "": {},
    "soft-cap": {"softcap": 2.0},
    "sinks": {"sinks": torch.tensor([0.3, -1.0, 0.0, 2.0])},
    "bias": {"bias": torch.linspace(-1, 1, TOKENS)},
    "ALiBi": {"bias": positions.ALiBi(4)},
}


class Attend(nn.Module):
    def __init__(self, who, options):
        super().__init__()
        self.who, self.options = who, options

    def forward(self, q, k, v):
        return regard.attend(q, k, v, self.who, **self.options)


def qkv(tokens=TOKENS):
    return [torch.randn(2, heads, tokens, 8) for heads in (4, 2, 2)]


def compiled(function, **options):
    torch._dynamo.reset()
    # The graph and its gradient are made as for any backend; no C++ compiler is needed.
    return torch.compile(function, fullgraph=True, backend="aot_eager", **options)


CASES = [(name, option) for name in MASKS for option in OPTIONS if not option or name in KERNELS]


@pytest.mark.parametrize(("name", "option"), CASES)
def test_attend_compiles_to_one_graph(name, option):
    attend = Attend(MASKS[name], OPTIONS[option])

    def run(function):
        leaves = [t.clone().requires_grad_() for t in inputs]
        output = function(*leaves)
        return [output, *torch.autograd.grad(output, leaves, output.detach().cos())]

    inputs = qkv()
    for ours, eager in zip(run(compiled(attend)), run(attend), strict=True):
        torch.testing.assert_close(ours, eager)


@pytest.mark.parametrize("who", MASKS.values(), ids=MASKS)
def test_attend_exports(who):
    attend, inputs = Attend(who, {}), qkv()
    torch.testing.assert_close(export(attend, tuple(inputs)).module()(*inputs), attend(*inputs))


@pytest.mark.parametrize("name", [*KERNELS, "algebra"])
def test_one_graph_for_any_number_of_tokens(name):
    attend = Attend(MASKS[name], {})
    any_length = compiled(attend, dynamic=True)
    for tokens in (TOKENS, 333, 150):
        inputs = [torch.cat([t, t], dim=-2)[:, :, :tokens] for t in qkv()]
        if name != "padding" or tokens >= TOKENS:
            torch.testing.assert_close(any_length(*inputs), attend(*inputs))


@pytest.mark.parametrize("name", ["full", "causal", "window"])
def test_exported_for_any_number_of_tokens(name):
    attend = Attend(MASKS[name], {})
    # A window is cut into blocks of 128 rows, and a graph must know that they are whole.
    tokens = 128 * Dim("blocks", min=3, max=64) if name == "window" else Dim("tokens", min=8, max=8192)
    graph = export(attend, tuple(qkv(384)), dynamic_shapes=({2: tokens},) * 3).module()
    for n in (512, 1024):
        inputs = qkv(n)
        torch.testing.assert_close(graph(*inputs), attend(*inputs))


def test_a_window_in_a_graph_makes_no_square_of_tokens():
    graph = export(Attend(mask.window(16), {}), tuple(qkv(1024))).graph
    sizes = [node.meta["val"].shape for node in graph.nodes if isinstance(node.meta.get("val"), torch.Tensor)]
    assert max(shape.numel() for shape in sizes) < 1024 * 1024 / 2


class Padded(nn.Module):
    def forward(self, q, k, v, lengths):
        return regard.attend(q, k, v, mask.padding(lengths))


def test_lengths_that_a_graph_does_not_know_yet():
    inputs, lengths = qkv(), torch.tensor([TOKENS, 9])
    graph = export(Padded(), (*inputs, lengths)).module()
    for other in ([5, 3], [TOKENS, 0]):
        expected = regard.attend(*inputs, mask.padding(other))
        torch.testing.assert_close(graph(*inputs, torch.tensor(other)), expected)
        torch.testing.assert_close(compiled(Padded())(*inputs, torch.tensor(other)), expected)


@pytest.mark.parametrize("wrong", [[TOKENS + 1, 3], [4, -1]])
def test_wrong_lengths_are_found_when_the_graph_runs(wrong):
    inputs = qkv()
    graph = export(Padded(), (*inputs, torch.tensor([9, 9]))).module()
    with pytest.raises(RuntimeError, match="a length beyond the keys"):
        graph(*inputs, torch.tensor(wrong))


MODULES = {
    "plain": {},
    "grouped": {"num_kv_heads": 2},
    "values of another width": {"d_value": 6, "bias": True},
    "rotary": {"positions": positions.Rotary(8)},
    "ALiBi": {"positions": positions.ALiBi(4)},
    "T5": {"positions": positions.T5Relative(4)},
}


@pytest.mark.parametrize(
    ("kind", "name"), [(kind, name) for kind in MODULES for name in KERNELS if kind == "plain" or name == "window"]
)
def test_the_module_compiles_and_exports(kind, name):
    attention = regard.MultiHeadAttention(32, 4, **MODULES[kind])
    x, who = torch.randn(2, TOKENS, 32), MASKS[name]
    eager = attention(x, mask=who)
    torch.testing.assert_close(compiled(attention)(x, mask=who), eager)

    class Masked(nn.Module):
        def __init__(self):
            super().__init__()
            self.attention = attention

        def forward(self, x):
            return self.attention(x, mask=who)

    torch.testing.assert_close(export(Masked(), (x,)).module()(x), eager)


@pytest.mark.parametrize("who", gpu.MASKS.values(), ids=gpu.MASKS)
@pytest.mark.parametrize("options", gpu.OPTIONS.values(), ids=gpu.OPTIONS)
def test_flex_attention_run_eagerly_is_the_definition(who, options):
    q, k, v = gpu.qkv()
    call = AttentionCall.from_inputs(q, k, v, who, **{"scale": 0.25, **options})
    with warnings.catch_warnings():
        # PyTorch warns that it is slow when it is not compiled: here it is only to be right.
        warnings.filterwarnings("ignore", message="flex_attention called without torch.compile")
        output = flex.run(call)
    expected = regard.steps(q, k, v, who, **{"scale": 0.25, **options}).output
    torch.testing.assert_close(output, expected, rtol=1e-5, atol=1e-5)
