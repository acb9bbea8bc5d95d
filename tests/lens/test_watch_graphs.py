"""Models that are scripted, traced or exported, and kernels that are called by their names in `torch.ops`."""

import pytest
import torch
from torch import nn
from torch.nn.functional import scaled_dot_product_attention

import regard
from lens.watching import record

aten = torch.ops.aten
X = torch.randn(2, 5, 8)

pytestmark = pytest.mark.filterwarnings("ignore:.*torch.jit:DeprecationWarning")


class Fused(nn.Module):
    def __init__(self):
        super().__init__()
        self.projection = nn.Linear(8, 24)

    def forward(self, x):
        q, k, v = self.projection(x)[:, None].chunk(3, -1)
        return scaled_dot_product_attention(q, k, v, is_causal=True)


class ByHand(Fused):
    def forward(self, x):
        q, k, v = self.projection(x)[:, None].chunk(3, -1)
        scores = (q @ k.transpose(-2, -1) * 8**-0.5).masked_fill(torch.ones(5, 5).triu(1) > 0, -torch.inf)
        return scores.softmax(-1) @ v


class ByName(Fused):
    """Calls a kernel as exported programs do."""

    def __init__(self, kernel):
        super().__init__()
        self.kernel = kernel

    def forward(self, x):
        q, k, v = self.projection(x)[:, None].chunk(3, -1)
        return self.kernel(q, k, v, is_causal=True)


def eager_by_name(q, k, v, is_causal):
    scores = aten.mul.Tensor(aten.matmul.default(q, aten.transpose.int(k, -1, -2)), 8**-0.5)
    scores = aten.masked_fill.Scalar(scores, torch.ones(5, 5).triu(1) > 0, -torch.inf)
    return aten.matmul.default(aten.softmax.int(scores, -1), v)


KERNELS = {
    "an operation": aten.scaled_dot_product_attention.default,
    "an operation without its overload": aten.scaled_dot_product_attention,
    "the kernel of the CPU": lambda *qkv, is_causal: aten._scaled_dot_product_flash_attention_for_cpu(
        *qkv, is_causal=is_causal
    )[0],
    "the math kernel": lambda *qkv, is_causal: aten._scaled_dot_product_attention_math(*qkv, is_causal=is_causal)[0],
    "operation by operation": eager_by_name,
}

GRAPHS = {
    "scripted": torch.jit.script,
    "traced": lambda model: torch.jit.trace(model, X),
    "exported": lambda model: torch.export.export(model, (X,)).module(),
    "symbolically traced": torch.fx.symbolic_trace,
    "a scripted part": lambda model: nn.Sequential(torch.jit.script(model), nn.Identity()),
}


@pytest.mark.parametrize("make", [Fused, ByHand])
@pytest.mark.parametrize("name", GRAPHS)
def test_a_graph_shows_what_the_model_shows(name, make):
    model = make()
    with torch.no_grad():
        assert_same_map(GRAPHS[name](model), model)


@pytest.mark.parametrize("name", KERNELS)
@pytest.mark.parametrize("mode", [torch.enable_grad, torch.no_grad, torch.inference_mode])
def test_kernels_by_their_names(name, mode):
    with mode():
        model = ByName(KERNELS[name])
        plain = Fused()
        plain.load_state_dict(model.state_dict())
        assert_same_map(model, plain)


def assert_same_map(model, plain):
    (m,) = record(model, X)[0].values()
    assert m.verified
    torch.testing.assert_close(m.dense(), record(plain, X)[0][""].dense(), atol=1e-6, rtol=0)


def test_an_exported_program_without_attention_has_none():
    program = torch.export.export(nn.Linear(8, 8), (X,)).module()
    with pytest.raises(ValueError, match="no attention was seen in GraphModule"), regard.watch(program):
        program(X)
