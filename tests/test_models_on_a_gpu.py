"""Models, watching, generation and training on a GPU, against the same on the CPU in float64."""

import copy

import pytest
import torch

import regard
from regard import mask
from regard.lens.maps.map import AttentionMap
from regard.transformer import Config, Decoder, Encoder
from training.runs import TINY, write_pairs

pytestmark = [
    pytest.mark.skipif(not torch.cuda.is_available(), reason="no GPU here: torch.cuda.is_available() is False"),
    # PyTorch's own, of the first product in a backward pass and of its compiler.
    pytest.mark.filterwarnings("ignore:Attempting to run cuBLAS, but there was no current CUDA context"),
    pytest.mark.filterwarnings("ignore:The .grad attribute of a Tensor that is not a leaf Tensor"),
    pytest.mark.filterwarnings("ignore:.torch.jit.script_method. is deprecated:DeprecationWarning"),
]

SIZES = {"vocab_size": 50, "d_model": 32, "num_layers": 2, "num_heads": 4, "d_ff": 64, "dropout": 0.0}
DECODERS = {
    "rotary, grouped heads": {"positions": "rotary", "num_kv_heads": 2, "norm": "rms", "gated": True},
    "learned positions": {"positions": "learned", "max_positions": 64},
    "ALiBi": {"positions": "alibi"},
    "T5": {"positions": "t5"},
    "windows": {"positions": "rotary", "windows": (4, None)},
    "soft-cap": {"positions": "rotary", "softcap": 5.0},
    "sinks": {"positions": "rotary", "sinks": True},
}


def ids(*shape):
    return torch.randint(50, shape, generator=torch.Generator().manual_seed(0))


def decoder(name):
    torch.manual_seed(0)
    return Decoder(Config(**{**SIZES, **DECODERS[name]})).eval()


@pytest.mark.parametrize("name", DECODERS)
def test_a_decoder_gives_the_same_logits(name):
    model, texts = decoder(name), ids(2, 24)
    with torch.no_grad():
        expected = copy.deepcopy(model).double()(texts)
        output = model.cuda()(texts.cuda())
    torch.testing.assert_close(output.cpu().double(), expected, rtol=0, atol=2e-5)


@pytest.mark.parametrize("name", DECODERS)
def test_a_decoder_generates_the_same_tokens(name):
    model, texts = decoder(name).double(), ids(2, 9)
    expected = regard.generate(model, texts, max_new_tokens=20)
    generated = regard.generate(model.cuda(), texts.cuda(), max_new_tokens=20)
    assert [row.tolist() for row in generated] == [row.tolist() for row in expected]


@pytest.mark.parametrize("name", DECODERS)
def test_watching_changes_nothing_and_keeps_every_weight(name):
    model, texts = decoder(name), ids(2, 24)
    exact = copy.deepcopy(model).double()
    with torch.no_grad(), regard.watch(exact) as expected:
        exact(texts)
    model, texts = model.cuda(), texts.cuda()
    with torch.no_grad():
        alone = model(texts)
        with regard.watch(model) as seen:
            watched = model(texts)
    assert torch.equal(watched, alone)
    for ours, theirs in zip(seen.values(), expected.values(), strict=True):
        torch.testing.assert_close(ours[:].cpu().double(), theirs[:], rtol=0, atol=1e-5)


@pytest.mark.parametrize("m", [None, mask.causal(), mask.window(9), mask.padding([40, 64])], ids=repr)
def test_every_question_has_the_answer_of_the_cpu(m):
    generator = torch.Generator().manual_seed(0)
    q, k, v = (torch.randn(2, heads, 64, 16, generator=generator) for heads in (4, 2, 2))
    groups = torch.arange(64) % 5
    questions = {"mass": groups, "top": 3, "pooled": (8, 8)}
    names = ("entropy", "received", "distance")
    expected = AttentionMap(q.double(), k.double(), v.double(), m).ask(*names, **questions)
    found = AttentionMap(q.cuda(), k.cuda(), v.cuda(), m).ask(*names, **questions)
    for name, answer in found.items():
        for ours, theirs in zip(
            *((a if isinstance(a, tuple) else (a,)) for a in (answer, expected[name])), strict=True
        ):
            torch.testing.assert_close(ours.cpu().to(theirs), theirs, rtol=1e-4, atol=1e-5, msg=name)


@pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16])
def test_autocast_computes_in_half_precision(dtype):
    torch.manual_seed(0)
    module = regard.MultiHeadAttention(32, 4).eval()
    x = torch.randn(2, 24, 32)
    expected = copy.deepcopy(module).double()(x.double(), mask=mask.causal())
    module, x = module.cuda(), x.cuda()
    with torch.autocast("cuda", dtype=dtype):
        output = module(x, mask=mask.causal())
    assert output.dtype == dtype
    torch.testing.assert_close(output.cpu().double(), expected, rtol=0, atol=40 * torch.finfo(dtype).eps)


def test_more_masks_than_pytorch_recompiles_for_stay_exact():
    # PyTorch compiles FlexAttention anew for each function of positions, and gives up after eight.
    q = torch.randn(1, 2, 2048, 32, device="cuda")
    for width in range(1, 13):
        m = mask.where(eval(f"lambda i, j: (i - j) % {width + 1} != {width}"))
        output = regard.attend(q, q, q, m)
        expected = regard.steps(*(t.double() for t in (q, q, q)), m).output
        torch.testing.assert_close(output.double(), expected, rtol=0, atol=2e-5)


def test_an_encoder_learns_in_half_precision():
    torch.manual_seed(0)
    model = Encoder(Config(**SIZES)).cuda()
    head = torch.nn.Linear(32, 50).cuda()
    texts = ids(8, 16).cuda()
    optimizer = torch.optim.AdamW([*model.parameters(), *head.parameters()], lr=1e-2)
    losses = []
    for _ in range(30):
        with torch.autocast("cuda", dtype=torch.bfloat16):
            logits = head(model(texts))
        loss = torch.nn.functional.cross_entropy(logits.float().flatten(0, 1), texts.flatten())
        loss.backward()
        optimizer.step()
        optimizer.zero_grad()
        losses.append(float(loss.detach()))
    assert losses[-1] < losses[0] / 10


@pytest.mark.parametrize("precision", ["32-true", "bf16-mixed"])
def test_a_run_on_a_gpu_can_be_loaded_on_a_cpu(tmp_path, precision):
    pytest.importorskip("lightning_fabric")
    pytest.importorskip("datasets")
    path = write_pairs(tmp_path / "pairs.tsv")
    result = regard.train("translate", [path], out=tmp_path / "run", accelerator="cuda", precision=precision, **TINY)
    assert result.progress.step == TINY["max_steps"]
    assert {p.device.type for p in regard.load(tmp_path / "run").model.parameters()} == {"cpu"}
