"""What runs on a GPU. The same masks and options go through FlexAttention on the CPU, eagerly, in test_graphs.py."""

import pytest
import torch

import regard
from cases import LIMITS, Attention
from grids import grid
from regard import mask

gpu = pytest.mark.skipif(not torch.cuda.is_available(), reason="no GPU here: torch.cuda.is_available() is False")

# PyTorch's own, of the first product in a backward pass and of its compiler.
pytestmark = [
    pytest.mark.filterwarnings("ignore:Attempting to run cuBLAS, but there was no current CUDA context"),
    pytest.mark.filterwarnings("ignore:The .grad attribute of a Tensor that is not a leaf Tensor"),
    pytest.mark.filterwarnings("ignore:.torch.jit.script_method. is deprecated:DeprecationWarning"),
]

IDS = torch.arange(160) // 50
MASKS = {
    "full": None,
    "causal": mask.causal(),
    "window": mask.window(20, 3),
    "padding": mask.padding([160, 31]),
    "causal and padding": mask.causal() & mask.padding([160, 31]),
    "documents": mask.documents(IDS),
    "causal documents": mask.documents(IDS) & mask.causal(),
    "documents per row": mask.documents(torch.stack([IDS, IDS.flip(0)])) & mask.window(30),
    "pairs": mask.documents(IDS, IDS.flip(0)),
    "prefix": mask.prefix([5, 40]),
    "where": mask.where(lambda i, j: (i - j) % 3 == 0),
    "per head": mask.allowed(torch.rand(1, 4, 160, 160, generator=torch.Generator().manual_seed(0)) < 0.5),
    "algebra": ~(mask.window(9) | mask.padding([100, 7])) & mask.causal(),
}
OPTIONS = {
    "": {},
    "soft-cap": {"softcap": 3.0},
    "sinks": {"sinks": torch.tensor([0.5, -1.0, 2.0, 0.0])},
    "scale": {"scale": 0.7},
}


def qkv(dtype=torch.float32, device="cpu"):
    return [torch.randn(2, heads, 160, 16, dtype=dtype, device=device) for heads in (4, 2, 2)]


@gpu
@grid(name=MASKS, option=OPTIONS, dtype=[torch.float32, torch.float16, torch.bfloat16], limits=LIMITS)
def test_attend_on_a_gpu_is_the_definition(name, option, dtype, limits):
    q, k, v = (t.requires_grad_() for t in qkv(dtype, "cuda"))
    options = {key: value.to(q) if isinstance(value, torch.Tensor) else value for key, value in OPTIONS[option].items()}
    attention = Attention(q, k, v, MASKS[name], options)
    with LIMITS[limits].apply():  # with small ones, FlexAttention takes few tokens too
        output = attention.attend()
    exact = attention.in_float64()
    expected = exact.steps().output
    eps = torch.finfo(dtype).eps
    torch.testing.assert_close(output.double(), expected, rtol=0, atol=20 * eps)
    expected_gradients = exact.gradients(expected, torch.ones_like(expected))
    for leaf, gradient in attention.gradients(output, torch.ones_like(output)).items():
        # A gradient of v is a sum over all queries: some are above 30.
        torch.testing.assert_close(gradient.double(), expected_gradients[leaf], rtol=10 * eps, atol=100 * eps)


@gpu
@pytest.mark.parametrize(
    ("m", "dtype", "kernel"),
    [
        (None, torch.float16, "fused"),
        (mask.causal(), torch.float16, "fused"),
        (mask.documents(torch.arange(4096) // 100) & mask.causal(), torch.bfloat16, "varlen"),
        (mask.documents(torch.arange(4096) // 100) & mask.causal(), torch.float32, "flex"),
        (mask.window(64), torch.float16, "flex"),
        (mask.prefix(64), torch.float16, "flex"),
    ],
)
def test_the_kernel_on_a_gpu(m, dtype, kernel):
    q = torch.randn(1, 4, 4096, 64, dtype=dtype, device="cuda")
    assert regard.plan(q, q, q, m).kernel == kernel


@gpu
def test_memory_on_a_gpu_does_not_hold_the_square():
    q = torch.randn(1, 4, 16_384, 64, dtype=torch.float16, device="cuda")
    regard.attend(q[:, :, :1024], q[:, :, :1024], q[:, :, :1024], mask.window(256))
    torch.cuda.reset_peak_memory_stats()
    before = torch.cuda.memory_allocated()
    regard.attend(q, q, q, mask.window(256))
    assert torch.cuda.max_memory_allocated() - before < 16_384**2
