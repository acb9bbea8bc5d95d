"""`torch.compile(fullgraph=True)` and `torch.export`: a graph gives what eager mode gives, gradients included."""

import warnings

import pytest
import test_gpu as gpu
import torch
from torch import nn
from torch._dynamo.testing import CompileCounterWithBackend
from torch.export import Dim, export

import regard
from regard import mask, positions
from regard.attention.kernels import band, flex
from regard.attention.kernels.call import AttentionCall

SHAPES_ENFORCED = hasattr(regard.attend, "__wrapped__")
outside_checks = pytest.mark.skipif(
    SHAPES_ENFORCED, reason="no graph can hold shape checks: make test-more runs it apart"
)

TOKENS = 160
KERNELS = ["full", "causal", "padding", "window"]  # what a graph has kernels for
OPTIONS = {**gpu.OPTIONS, "bias": {"bias": torch.linspace(-1, 1, TOKENS)}, "ALiBi": {"bias": positions.ALiBi(4)}}


def cases(every, fast):
    """Every case, those outside of the fast ones in `make test-more`: tracing takes a second each."""
    return [pytest.param(*case, marks=[] if case in fast else pytest.mark.more) for case in every]


class Attend(nn.Module):
    def __init__(self, m, options):
        super().__init__()
        self.m, self.options = m, options

    def forward(self, q, k, v):
        return regard.attend(q, k, v, self.m, **self.options)


def qkv(tokens=TOKENS):
    return [torch.randn(2, heads, tokens, 8) for heads in (4, 2, 2)]


def compiled(function, **options):
    torch._dynamo.reset()
    # The graph and its gradient are made as for any backend; no C++ compiler is needed.
    return torch.compile(function, fullgraph=True, backend="aot_eager", **options)


@outside_checks
@pytest.mark.parametrize(
    ("name", "option"),
    cases(
        [(name, option) for name in gpu.MASKS for option in OPTIONS if not option or name in KERNELS],
        fast=[("window", ""), ("algebra", ""), ("full", "soft-cap"), ("causal", "ALiBi")],
    ),
)
def test_attend_compiles_to_one_graph(name, option):
    attend, inputs = Attend(gpu.MASKS[name], OPTIONS[option]), qkv()

    def run(function):
        leaves = [t.clone().requires_grad_() for t in inputs]
        output = function(*leaves)
        return [output, *torch.autograd.grad(output, leaves, output.detach().cos())]

    for result, expected in zip(run(compiled(attend)), run(attend), strict=True):
        torch.testing.assert_close(result, expected)


@pytest.mark.parametrize("heads", [4, 2], ids=["heads of their own", "heads in groups"])
@pytest.mark.parametrize(
    ("m", "queries", "keys"),
    [
        (mask.window(20, 3), TOKENS, TOKENS),
        (mask.window(20, 3), 130, 300),
        (mask.window(3, 20), 300, 130),
        (mask.window(9) & mask.causal(offset=-4), 128, 128),
        (mask.window(200, 100), 300, 300),
    ],
    ids=repr,
)
def test_the_kernel_of_a_graph_for_windows_is_the_definition(m, queries, keys, heads):
    """Only graphs use it; here it runs by itself."""
    q, k, v = torch.randn(2, 4, queries, 8), torch.randn(2, heads, keys, 8), torch.randn(2, heads, keys, 6)
    expected = regard.steps(q, k, v, m, scale=0.3).output
    output = band.run(AttentionCall.from_inputs(q, k, v, m, scale=0.3))
    torch.testing.assert_close(output, expected, rtol=1e-5, atol=1e-5)


@outside_checks
@pytest.mark.parametrize("name", cases([(name,) for name in gpu.MASKS], fast=[("causal and padding",), ("where",)]))
def test_attend_exports(name):
    attend, inputs = Attend(gpu.MASKS[name], {}), qkv()
    torch.testing.assert_close(export(attend, tuple(inputs)).module()(*inputs), attend(*inputs))


@outside_checks
@pytest.mark.parametrize("name", cases([(name,) for name in (*KERNELS, "algebra")], fast=[]))
def test_one_graph_for_any_number_of_tokens(name):
    attend = Attend(gpu.MASKS[name], {})
    any_length = compiled(attend, dynamic=True)
    for tokens in (TOKENS, 333) if name == "padding" else (TOKENS, 333, 150):
        inputs = [torch.cat([t, t], dim=-2)[:, :, :tokens] for t in qkv()]
        torch.testing.assert_close(any_length(*inputs), attend(*inputs))


@outside_checks
def test_a_graph_for_any_sizes_with_as_many_heads_as_queries():
    attend = Attend(mask.causal(), {"bias": positions.ALiBi(4)})
    q, kv = torch.randn(2, 4, 4, 8), torch.randn(2, 4, 7, 8)
    torch.testing.assert_close(compiled(attend, dynamic=True)(q, kv, kv), attend(q, kv, kv))


@outside_checks
@pytest.mark.parametrize("name", cases([("full",), ("causal",), ("window",)], fast=[("causal",)]))
def test_exported_for_any_number_of_tokens(name):
    attend = Attend(gpu.MASKS[name], {})
    # A window is cut into blocks of 128 rows, and a graph must know that they are whole.
    tokens = 128 * Dim("blocks", min=3, max=64) if name == "window" else Dim("tokens", min=8, max=8192)
    graph = export(attend, tuple(qkv(384)), dynamic_shapes=({2: tokens},) * 3).module()
    for n in (512, 1024):
        inputs = qkv(n)
        torch.testing.assert_close(graph(*inputs), attend(*inputs))


@outside_checks
def test_a_window_in_a_graph_makes_no_square_of_tokens():
    graph = export(Attend(mask.window(16), {}), tuple(qkv(1024))).graph
    sizes = [node.meta["val"].shape for node in graph.nodes if isinstance(node.meta.get("val"), torch.Tensor)]
    assert max(shape.numel() for shape in sizes) < 1024 * 1024 / 2


class Padded(nn.Module):
    def forward(self, q, k, v, lengths):
        return regard.attend(q, k, v, mask.padding(lengths))


@outside_checks
def test_a_graph_takes_lengths_as_an_input():
    inputs = qkv()
    exported = export(Padded(), (*inputs, torch.tensor([TOKENS, 9]))).module()
    graph = compiled(Padded())
    for lengths in ([5, 3], [TOKENS, 0]):
        expected = regard.attend(*inputs, mask.padding(lengths))
        torch.testing.assert_close(exported(*inputs, torch.tensor(lengths)), expected)
        torch.testing.assert_close(graph(*inputs, torch.tensor(lengths)), expected)
    for wrong in ([TOKENS + 1, 3], [4, -1]):
        with pytest.raises(RuntimeError, match="a length beyond the keys"):
            exported(*inputs, torch.tensor(wrong))


MODULES = {
    "plain": {},
    "grouped": {"num_kv_heads": 2},
    "values of another width": {"d_value": 6, "bias": True},
    "rotary": {"positions": positions.Rotary(8)},
    "ALiBi": {"positions": positions.ALiBi(4)},
    "T5": {"positions": positions.T5Relative(4)},
}


class Masked(nn.Module):
    def __init__(self, attention, m):
        super().__init__()
        self.attention, self.m = attention, m

    def forward(self, x):
        return self.attention(x, mask=self.m)


@outside_checks
@pytest.mark.parametrize(
    ("kind", "name"),
    cases(
        [(kind, name) for kind in MODULES for name in KERNELS if kind == "plain" or name in ("causal", "window")],
        fast=[("rotary", "causal")],
    ),
)
def test_the_module_compiles_and_exports(kind, name):
    module, x = Masked(regard.MultiHeadAttention(32, 4, **MODULES[kind]), gpu.MASKS[name]), torch.randn(2, TOKENS, 32)
    expected = module(x)
    torch.testing.assert_close(compiled(module)(x), expected)
    torch.testing.assert_close(export(module, (x,)).module()(x), expected)


@outside_checks
@pytest.mark.filterwarnings("ignore:flex_attention called without torch.compile")
@pytest.mark.parametrize(("d_key", "d_value"), [(8, 24), (24, 8)])
def test_flex_attention_takes_any_width(d_key, d_value):
    q, k, v = torch.randn(1, 2, 64, d_key), torch.randn(1, 2, 64, d_key), torch.randn(1, 2, 64, d_value)
    output = flex.run(AttentionCall.from_inputs(q, k, v, mask.causal(), scale=0.25))
    torch.testing.assert_close(output, regard.steps(q, k, v, mask.causal(), scale=0.25).output, rtol=1e-5, atol=1e-5)


@outside_checks
@pytest.mark.filterwarnings("ignore:flex_attention called without torch.compile")
def test_flex_attention_takes_several_batch_axes():
    """A mask by batch row and head of one axis after another; the kernel has one axis of rows."""
    q, k, v = torch.randn(3, 2, 3, 2, 9, 16)
    m = mask.allowed(torch.rand(2, 3, 1, 9, 9) < 0.6)
    output = flex.run(AttentionCall.from_inputs(q, k, v, m, scale=0.25))
    torch.testing.assert_close(output.view(v.shape), regard.steps(q, k, v, m, scale=0.25).output, rtol=1e-5, atol=1e-5)


FLEX = [(name, option) for name in gpu.MASKS for option in gpu.OPTIONS]


@outside_checks
@pytest.mark.parametrize(("name", "option"), cases(FLEX, fast=FLEX[::14]))
def test_flex_attention_run_eagerly_is_the_definition(name, option):
    q, k, v = gpu.qkv()
    options = {"scale": 0.25, **gpu.OPTIONS[option]}
    call = AttentionCall.from_inputs(q, k, v, gpu.MASKS[name], **options)
    with warnings.catch_warnings():
        # PyTorch warns that it is slow when it is not compiled: here it is only to be right.
        warnings.filterwarnings("ignore", message="flex_attention called without torch.compile")
        output = flex.run(call)
    expected = regard.steps(q, k, v, gpu.MASKS[name], **options).output
    torch.testing.assert_close(output, expected, rtol=1e-5, atol=1e-5)


def compiled_flex(monkeypatch):
    """FlexAttention compiled as on a GPU, but for a backend that needs none; its calls are counted."""
    from torch.nn.attention.flex_attention import flex_attention

    torch._dynamo.reset()
    counter = CompileCounterWithBackend("aot_eager")
    attention = torch.compile(flex_attention, backend=counter, fullgraph=True)
    monkeypatch.setattr(flex, "_flex", lambda compiled: attention)
    return counter


NEW_MASKS = {
    "causal": mask.causal,
    "window": lambda: mask.window(20, 3),
    "padding": lambda: mask.padding([160, 31]),
    "documents": lambda: mask.documents(gpu.IDS.clone()) & mask.causal(),
    "pairs": lambda: mask.documents(gpu.IDS.clone(), gpu.IDS.flip(0)),
    "prefix": lambda: mask.prefix([5, 40]),
    "where": lambda: mask.where(lambda i, j: (i - j) % 3 == 0),
    "per head": lambda: mask.allowed(torch.rand(1, 4, 160, 160) < 0.5),
    "algebra": lambda: ~(mask.window(9) | mask.padding([100, 7])) & mask.causal(),
}


@outside_checks
@pytest.mark.parametrize("name", cases([(name,) for name in NEW_MASKS], fast=[("documents",)]))
def test_flex_attention_is_compiled_once_for_a_kind_of_mask(name, monkeypatch):
    q, k, v = gpu.qkv()
    counter = compiled_flex(monkeypatch)
    for _ in range(2):
        m = NEW_MASKS[name]()
        output = flex.run(AttentionCall.from_inputs(q, k, v, m, scale=0.25))
        torch.testing.assert_close(output, regard.steps(q, k, v, m, scale=0.25).output, rtol=1e-5, atol=1e-5)
    assert counter.frame_count == 1


@outside_checks
def test_a_function_that_cannot_be_compiled_is_evaluated_before(monkeypatch):
    q, k, v = gpu.qkv()
    counter = compiled_flex(monkeypatch)
    steps = {0: 2, 1: 3}
    m = mask.where(lambda i, j: (i - j) % steps[int((j.max() > 0).item())] == 0)
    output = flex.run(AttentionCall.from_inputs(q, k, v, m, scale=0.25))
    torch.testing.assert_close(output, regard.steps(q, k, v, m, scale=0.25).output, rtol=1e-5, atol=1e-5)
    assert counter.frame_count == 1
