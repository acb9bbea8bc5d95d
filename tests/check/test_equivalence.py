"""`regard.check(a, against=b)`: whether two attentions compute the same, and how the weights are reordered."""

import json
import math
from importlib import import_module

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import nn
from torch.nn import functional as F

import regard
from regard.check import convert
from regard.check.equivalence import Equivalence
from regard.check.equivalence.comparison import compare
from regard.check.sandbox.torch_settings import UserSettings
from regard.errors import InputError
from terminals import refusal

WIDTH, HEADS = 12, 3
EACH = WIDTH // HEADS


def compared(a, b):
    return compare(a, b, {}, {}, UserSettings())


def attended(q, k, v, mask=None):
    scores = q @ k.mT / math.sqrt(q.shape[-1])
    if mask is not None:
        scores = scores + mask
    return scores.softmax(-1) @ v


def joined(heads):
    return heads.transpose(1, 2).flatten(2)


class Plain(nn.Module):
    """Four `nn.Linear`, as BERT's."""

    def __init__(self, bias=True, width=WIDTH, heads=HEADS):
        super().__init__()
        self.heads = heads
        self.q, self.k, self.v, self.o = (nn.Linear(width, width, bias=bias) for _ in range(4))

    def split(self, x):
        return x.unflatten(-1, (self.heads, -1)).transpose(1, 2)

    def positions(self, x):
        return x

    def forward(self, x, mask=None):
        q, k, v = self.split(self.q(x)), self.split(self.k(x)), self.split(self.v(x))
        return self.o(joined(attended(self.positions(q), self.positions(k), v, mask)))


class ChannelsFirst(Plain):
    """Channel c of head h is number c * heads + h: the heads stand beside one another."""

    def split(self, x):
        return x.unflatten(-1, (-1, self.heads)).permute(0, 3, 1, 2)


class Timm(nn.Module):
    """One `nn.Linear` for (3, heads, width of a head), and the fused attention."""

    def __init__(self):
        super().__init__()
        self.qkv, self.proj = nn.Linear(WIDTH, 3 * WIDTH), nn.Linear(WIDTH, WIDTH)

    def forward(self, x):
        q, k, v = self.qkv(x).unflatten(-1, (3, HEADS, EACH)).permute(2, 0, 3, 1, 4).unbind(0)
        return self.proj(joined(F.scaled_dot_product_attention(q, k, v)))


class ByHead(nn.Module):
    """q, k and v of each head beside one another, as GPT-NeoX's, stored (in, out), as Conv1D does."""

    def __init__(self):
        super().__init__()
        self.packed = nn.Parameter(torch.randn(WIDTH, 3 * WIDTH))
        self.packed_bias = nn.Parameter(torch.randn(3 * WIDTH))
        self.out = nn.Linear(WIDTH, WIDTH)

    def forward(self, x):
        packed = torch.addmm(self.packed_bias, x.flatten(0, 1), self.packed).unflatten(0, x.shape[:2])
        q, k, v = packed.unflatten(-1, (HEADS, 3 * EACH)).transpose(1, 2).chunk(3, -1)
        return self.out(joined(attended(q, k, v)))


class HeadModules(nn.Module):
    """One module for each head."""

    class Head(nn.Module):
        def __init__(self):
            super().__init__()
            self.key, self.query, self.value = (nn.Linear(WIDTH, EACH) for _ in range(3))

        def forward(self, x):
            q, k, v = self.query(x), self.key(x), self.value(x)
            return (q @ k.transpose(-2, -1) * EACH**-0.5).softmax(-1) @ v

    def __init__(self):
        super().__init__()
        self.heads = nn.ModuleList(self.Head() for _ in range(HEADS))
        self.proj = nn.Linear(WIDTH, WIDTH)

    def forward(self, x):
        return self.proj(torch.cat([head(x) for head in self.heads], -1))


class Einsum(nn.Module):
    """Matrices (heads, in, width of a head), biases (heads, width of a head), in the style of einsum."""

    def __init__(self):
        super().__init__()
        self.W_Q, self.W_K, self.W_V = (nn.Parameter(torch.randn(HEADS, WIDTH, EACH)) for _ in range(3))
        self.b_Q, self.b_K, self.b_V = (nn.Parameter(torch.randn(HEADS, EACH)) for _ in range(3))
        self.W_O, self.b_O = nn.Parameter(torch.randn(HEADS, EACH, WIDTH)), nn.Parameter(torch.randn(WIDTH))

    def forward(self, x):
        q, k, v = (
            torch.einsum("btd,hde->bthe", x, weight) + bias
            for weight, bias in ((self.W_Q, self.b_Q), (self.W_K, self.b_K), (self.W_V, self.b_V))
        )
        scores = torch.einsum("bqhe,bkhe->bhqk", q, k) / math.sqrt(EACH)
        mixed = torch.einsum("bhqk,bkhe->bqhe", scores.softmax(-1), v)
        return torch.einsum("bqhe,hed->bqd", mixed, self.W_O) + self.b_O


class Unnamed(nn.Module):
    """Names that tell nothing, k before q, and a softmax written out."""

    def __init__(self):
        super().__init__()
        self.a = nn.Parameter(torch.randn(2, WIDTH, WIDTH))
        self.b = nn.Parameter(torch.randn(2, WIDTH))
        self.c, self.d = nn.Linear(WIDTH, WIDTH), nn.Linear(WIDTH, WIDTH)

    def forward(self, x):
        k, q = (x @ self.a[n] + self.b[n] for n in (0, 1))
        q, k, v = (each.view(*x.shape[:2], HEADS, EACH).permute(0, 2, 1, 3) for each in (q, k, self.c(x)))
        scores = k @ q.mT / math.sqrt(EACH)  # (keys, queries)
        weights = (scores - scores.amax(-2, keepdim=True)).exp()
        return self.d(joined((weights / weights.sum(-2, keepdim=True)).mT @ v))


def torch_own():
    return nn.MultiheadAttention(WIDTH, HEADS, batch_first=True)


LAYOUTS = (torch_own, Plain, Timm, ByHead, HeadModules, Einsum, Unnamed, ChannelsFirst)
PAIRS = [(a, b) for n, a in enumerate(LAYOUTS) for b in (LAYOUTS[n - 1], LAYOUTS[n - 3])]


@pytest.mark.parametrize(
    ("a", "b"), [pytest.param(a, b, marks=() if b is torch_own else pytest.mark.more) for a, b in PAIRS]
)
def test_every_layout_is_filled_from_another_one(a, b):
    a, b = a(), b()
    x = torch.randn(2, 5, WIDTH)
    mapping = convert(a, b)
    assert mapping.unused == mapping.unset == ()
    torch.testing.assert_close(_output(b, x), _output(a, x), rtol=1e-4, atol=1e-5)


def _output(module, x):
    return module.eval()(x, x, x)[0] if isinstance(module, nn.MultiheadAttention) else module.eval()(x)


@pytest.mark.more
@pytest.mark.parametrize(("a", "b"), [(Timm, ByHead), (HeadModules, torch_own), (ChannelsFirst, Einsum)])
def test_the_code_does_what_the_mapping_does(a, b):
    a, b = a(), b()
    found = compared(a, b)
    assert found.verdict == "same after reordering"
    scope = {}
    exec(found.code, scope)
    scope["convert"](a, b)
    wanted = {name: each.clone() for name, each in b.named_parameters()}
    for each in b.parameters():
        each.data.fill_(torch.nan)
    found.mapping.apply(a, b)
    for name, each in b.named_parameters():
        assert torch.equal(each, wanted[name])


def test_the_same_class_is_the_same():
    found = compared(Plain(), Plain())
    assert (found.verdict, found.exit_code, bool(found)) == ("same", 0, True)
    assert found.compared == ("without a mask", "with a causal mask")
    assert found.difference < 1e-12


@pytest.mark.more
@settings(max_examples=25)
@given(heads=st.integers(1, 5), width=st.integers(1, 4))
def test_any_sizes(heads, width):
    found = compared(Plain(width=heads * width, heads=heads), ChannelsFirst(width=heads * width, heads=heads))
    assert found.ok


# Rotary positions. ----------------------------------------------------------------------------------------------------


class Interleaved(Plain):
    """Rotary pairs are channels 2i and 2i + 1, as in Meta's Llama."""

    def positions(self, x):
        angles = torch.arange(x.shape[-2])[:, None] * 10_000 ** (-torch.arange(0, EACH, 2).double() / EACH)
        turned = torch.view_as_complex(x.double().unflatten(-1, (-1, 2))) * torch.polar(torch.ones_like(angles), angles)
        return torch.view_as_real(turned).flatten(-2).to(x.dtype)


class Halves(Plain):
    """Rotary pairs are channels i and i + width / 2, as in transformers' Llama."""

    def positions(self, x):
        angles = torch.arange(x.shape[-2])[:, None] * 10_000 ** (-torch.arange(0, EACH, 2).double() / EACH)
        one, other = x.chunk(2, -1)
        cos, sin = angles.cos(), angles.sin()
        return torch.cat((one * cos - other * sin, other * cos + one * sin), -1).to(x.dtype)


@pytest.mark.more
def test_rotary_pairs_are_brought_into_the_order_of_the_other():
    found = compared(Interleaved(bias=False), Halves(bias=False))
    assert found.verdict == "same after reordering"
    assert 'b["q.weight"].view(3, 2, 2, 12).copy_(a["q.weight"].view(3, 2, 2, 12).permute(0, 2, 1, 3))' in found.code
    assert 'b["v.weight"].copy_(a["v.weight"])' in found.code


@pytest.mark.more
def test_the_permutation_of_gguf_files():
    """llama.cpp stores q and k of transformers' Llama with the pairs beside one another."""
    a, b = Halves(bias=False), Interleaved(bias=False)
    convert(a, b)
    for name in "qk":
        stored = getattr(a, name).weight.reshape(HEADS, 2, EACH // 2, WIDTH).swapaxes(1, 2).reshape(WIDTH, WIDTH)
        assert torch.equal(getattr(b, name).weight, stored)


@pytest.mark.more
def test_positions_against_none_part_at_the_scores():
    found = compared(Halves(), Plain())
    assert (found.verdict, found.step, found.exit_code) == ("different", "scores", 1)


# More than projections. -----------------------------------------------------------------------------------------------


class Normed(Halves):
    """Queries and keys are normed, with a gain for each channel of a head."""

    def __init__(self):
        super().__init__(bias=False)
        self.norm_q, self.norm_k = nn.RMSNorm(EACH, eps=1e-6), nn.RMSNorm(EACH, eps=1e-6)

    def forward(self, x, mask=None):
        q, k, v = self.split(self.q(x)), self.split(self.k(x)), self.split(self.v(x))
        q, k = self.positions(self.norm_q(q)), self.positions(self.norm_k(k))
        return self.o(joined(attended(q, k, v, mask)))


class NormedPairs(Normed):
    positions = Interleaved.positions


class Sink(Plain):
    """A number for each head takes part in the softmax."""

    def __init__(self):
        super().__init__()
        self.sinks = nn.Parameter(torch.zeros(HEADS))

    def forward(self, x):
        q, k, v = self.split(self.q(x)), self.split(self.k(x)), self.split(self.v(x))
        sink = self.sinks[:, None, None].expand(len(x), -1, x.shape[1], 1)
        scores = torch.cat((q @ k.mT / math.sqrt(EACH), sink), -1)
        return self.o(joined(scores.softmax(-1)[..., :-1] @ v))


class ChannelsFirstSink(Sink):
    split = ChannelsFirst.split


class Residual(Plain):
    """Norms its input, and adds it."""

    def __init__(self):
        super().__init__()
        self.norm = nn.LayerNorm(WIDTH)

    def forward(self, x):
        return x + super().forward(self.norm(x))


class ChannelsFirstResidual(Residual):
    split = ChannelsFirst.split


class ALiBi(Plain):
    slopes = (0.5, 0.25, 0.125)

    def forward(self, x):
        at = torch.arange(x.shape[1])
        return super().forward(x, -torch.tensor(self.slopes)[:, None, None] * (at[:, None] - at).abs())


class OtherHeadsFirst(ALiBi):
    slopes = (0.25, 0.125, 0.5)


@pytest.mark.more
@pytest.mark.parametrize(
    ("a", "b"),
    [
        (Normed, NormedPairs),
        (Sink, ChannelsFirstSink),
        (Residual, ChannelsFirstResidual),
        (ALiBi, OtherHeadsFirst),
    ],
)
def test_norms_sinks_residuals_and_slopes_go_along(a, b):
    assert compared(a(), b()).verdict == "same after reordering"


# Where they part. -----------------------------------------------------------------------------------------------------


class Unscaled(Plain):
    """Nothing is left of the division by the root of the width."""

    def positions(self, x):
        return x * EACH**0.25


class Future(Plain):
    """Causal, and one key too far."""

    def forward(self, x):
        return super().forward(x, torch.full((x.shape[1], x.shape[1]), -torch.inf).triu(2))


class Causal(Plain):
    def forward(self, x):
        return super().forward(x, torch.full((x.shape[1], x.shape[1]), -torch.inf).triu(1))


class Halved(Plain):
    """Weights that sum to one half."""

    def forward(self, x):
        q, k, v = self.split(self.q(x)), self.split(self.k(x)), self.split(self.v(x))
        weights = (q @ k.mT / math.sqrt(EACH)).softmax(-1)
        return self.o(joined(weights.square() @ v))


class NoOutput(Plain):
    def __init__(self):
        super().__init__()
        self.o = nn.Identity()


class Fewer(Plain):
    def __init__(self):
        super().__init__(heads=2)


PARTINGS = [
    (Plain, Fewer, "projections", "A has 3 heads, B 2"),
    (Plain, Unscaled, "scale", "B's scaled scores are 2 times A's"),
    (Causal, Future, "mask", "B lets query 0 attend to key 1 (head 0), A does not"),
    (Plain, Halved, "weighted sum", "their weighted sums differ"),
    (Plain, NoOutput, "output projection", "their outputs differ"),
    (Plain, Sink, "scores", "a query of A has weights for 5 keys, of B for 6"),
    (ALiBi, Plain, "scores", "their scores differ"),
]


@pytest.mark.parametrize(
    ("a", "b", "step", "says"),
    [pytest.param(*each, marks=() if each[2] == "scale" else pytest.mark.more) for each in PARTINGS],
)
def test_the_first_step_at_which_they_part(a, b, step, says):
    found = compared(a(), b())
    assert (found.verdict, found.step, found.mapping, found.code) == ("different", step, None, None)
    assert says in found.reason


@pytest.mark.more
def test_without_an_output_projection_the_other_one_is_the_identity():
    a, b = NoOutput(), Plain()
    convert(a, b)
    assert torch.equal(b.o.weight, torch.eye(WIDTH))
    assert not b.o.bias.any()


def test_a_bias_that_changes_no_output_may_be_lost():
    """A bias of the keys adds the same to all scores of a query."""
    a, b = Plain(), Plain()
    b.k = nn.Linear(WIDTH, WIDTH, bias=False)
    found = compared(a, b)
    assert found.ok
    assert "k.bias" in found.notes[0]


@pytest.mark.more
def test_a_causal_mask_that_is_built_in_against_one_that_is_given():
    found = compared(Causal(), torch_own())
    assert (found.ok, found.compared) == (True, ("with a causal mask",))


def test_causal_against_never_causal_part_at_the_mask():
    found = compared(Causal(), Timm())
    assert (found.step, found.exit_code) == ("mask", 1)
    assert "A is causal, and no way to make B so was found" in found.notes


@pytest.mark.more
def test_shared_heads_fill_those_of_their_own_and_not_the_other_way():
    class Shared(Plain):
        def __init__(self):
            super().__init__()
            self.k, self.v = nn.Linear(WIDTH, EACH), nn.Linear(WIDTH, EACH)

        def split(self, x):
            return x.unflatten(-1, (-1, EACH)).transpose(1, 2)

    assert compared(Shared(), Plain()).ok
    found = compared(Plain(), Shared())
    assert (found.verdict, found.step) == ("different", "projections")
    assert "B has one number where A has several" in " ".join(found.notes)


# Functions. -----------------------------------------------------------------------------------------------------------


def tokens_second(q, k, v):
    """(batch, tokens, heads, width)."""
    scores = torch.einsum("bqhd,bkhd->bhqk", q, k) / q.shape[-1] ** 0.5
    return torch.einsum("bhqk,bkhd->bqhd", scores.softmax(-1), v)


def scaled_by_keys(q, k, v):
    return (q @ k.mT / math.sqrt(k.shape[-2])).softmax(-1) @ v


def test_functions():
    assert compared(attended, tokens_second).verdict == "same"
    assert compared(F.scaled_dot_product_attention, attended).verdict == "same"
    found = compared(attended, scaled_by_keys)
    assert (found.verdict, found.step) == ("different", "scale")


def test_what_cannot_be_compared_is_said():
    found = compared(attended, Plain())
    assert (found.verdict, found.exit_code) == ("undetermined", 3)
    assert "one is a module" in found.reason


# The interface. -------------------------------------------------------------------------------------------------------


def test_convert_leaves_b_as_it_is_if_they_differ():
    a, b = Plain(), Fewer()
    before = [each.clone() for each in b.parameters()]
    with pytest.raises(InputError, match="Fewer cannot compute what Plain does: different at the step projections"):
        convert(a, b)
    assert all(torch.equal(one, other) for one, other in zip(before, b.parameters(), strict=True))


@pytest.mark.usefixtures("as_a_user_runs_it")
def test_convert_takes_modules():
    with pytest.raises(InputError, match="b is a type; convert takes two modules that are constructed"):
        convert(Plain(), Plain)


def test_check_against_in_a_process_of_its_own():
    a, b = Plain(), torch_own()
    before = a.q.weight.clone()
    found = regard.check(a, against=b, timeout=200.0)
    assert found.verdict == "same after reordering"
    assert torch.equal(a.q.weight, before)
    assert Equivalence.from_json(found.to_json()) == found
    assert len(str(found).split("\n")) <= 40


FILE = """
import math
from importlib import import_module
from torch import nn

class Mine(nn.Module):
    def __init__(self, d_model, heads, scaled=True):
        super().__init__()
        self.heads, self.scaled = heads, scaled
        self.qkv, self.out = nn.Linear(d_model, 3 * d_model), nn.Linear(d_model, d_model)

    def forward(self, x):
        q, k, v = (each.unflatten(-1, (self.heads, -1)).transpose(1, 2) for each in self.qkv(x).chunk(3, -1))
        scores = q @ k.mT / (math.sqrt(q.size(-1)) if self.scaled else 1)
        return self.out((scores.softmax(-1) @ v).transpose(1, 2).flatten(2))
"""


@pytest.mark.more
@pytest.mark.parametrize(
    ("scaled", "code", "says"),
    [("True", 0, "Mine against MultiheadAttention: same"), ("False", 1, "first step at which they part: scale")],
)
def test_the_command(command, tmp_path, scaled, code, says):
    path = tmp_path / "mine.py"
    path.write_text(FILE)
    against = ["--against", "torch.nn:MultiheadAttention", "--against-arg", "batch_first=True"]
    exit_code, out, _ = command("check", f"{path}:Mine", "--arg", f"scaled={scaled}", *against, "--timeout", "200")
    assert exit_code == code
    assert says in out
    assert ("def convert(a, b):" in out) == (code == 0)


@pytest.mark.more
def test_the_json_of_the_command(command, tmp_path):
    path = tmp_path / "mine.py"
    path.write_text(FILE)
    exit_code, out, _ = command("check", f"{path}:Mine", "--against", f"{path}:Mine", "--json", "-", "--timeout", "200")
    assert exit_code == 0
    assert json.loads(out)["verdict"] == "same"


def test_against_arg_wants_against(command):
    exit_code, _, error = command("check", "a.py:B", "--against-arg", "heads=3")
    assert exit_code == 2
    assert "--against-arg is for the constructor of --against" in error


@pytest.mark.parametrize(
    "arguments",
    [
        *(("a.py:A", "--against", "b.py:B", *more) for more in (["--all"], ["--format", "github"])),
        *((a, "--against", b) for a, b in (("a.py", "b.py:B"), ("a.py:A", "b.py"), ("a.py:A", "b.ipynb"))),
    ],
    ids=" ".join,
)
def test_against_compares_two_implementations_and_nothing_else(command, arguments):
    assert "--against compares two implementations: FILE.py:NAME each" in refusal(command, "check", *arguments)


class Meta(nn.Module):
    """Llama as Meta published it: (x, start_pos, freqs_cis, mask), pairs of neighbours, in float32 on the way."""

    def __init__(self):
        super().__init__()
        self.wq, self.wo = (nn.Linear(WIDTH, WIDTH, bias=False) for _ in range(2))
        self.wk, self.wv = (nn.Linear(WIDTH, EACH, bias=False) for _ in range(2))

    def forward(self, x, start_pos, freqs_cis, mask):
        q, k, v = (each.unflatten(-1, (-1, EACH)) for each in (self.wq(x), self.wk(x), self.wv(x)))
        q, k = (
            torch.view_as_real(torch.view_as_complex(each.float().unflatten(-1, (-1, 2))) * freqs_cis[:, None])
            .flatten(3)
            .type_as(x)
            for each in (q, k)
        )
        k, v = (each.repeat_interleave(HEADS, 2).transpose(1, 2) for each in (k, v))
        scores = q.transpose(1, 2) @ k.mT / math.sqrt(EACH)
        scores = scores if mask is None else scores + mask
        return self.wo(joined(scores.float().softmax(-1).type_as(q) @ v))


def of_transformers(name, **sizes):
    def made():
        package, kind = {
            "Bert": ("bert", "BertSelfAttention"),
            "GPT2": ("gpt2", "GPT2Attention"),
            "Llama": ("llama", "LlamaAttention"),
            "GPTNeoX": ("gpt_neox", "GPTNeoXAttention"),
            "Falcon": ("falcon", "FalconAttention"),
            "Phi3": ("phi3", "Phi3Attention"),
            "T5": ("t5", "T5Attention"),
        }[name]
        import transformers

        config = getattr(transformers, f"{name}Config")(**sizes)
        kind = getattr(import_module(f"transformers.models.{package}.modeling_{package}"), kind)
        return kind(config, layer_idx=0)

    made.__name__ = name
    return made


HF = {"hidden_size": WIDTH, "num_attention_heads": HEADS}
BERT, GPT2 = of_transformers("Bert", **HF), of_transformers("GPT2", n_embd=WIDTH, n_head=HEADS)
LLAMA = of_transformers("Llama", **HF, num_key_value_heads=1)
FULL_ROTARY = {"rope_type": "default", "rope_theta": 1e4, "partial_rotary_factor": 1.0}
NEOX = of_transformers("GPTNeoX", **HF, attention_bias=False, rope_parameters=FULL_ROTARY)
FALCON = of_transformers("Falcon", **HF)
PHI3 = of_transformers("Phi3", **HF, num_key_value_heads=1, pad_token_id=0)
T5 = of_transformers("T5", d_model=WIDTH, num_heads=HEADS, d_kv=EACH)
PUBLISHED = [
    (torch_own, GPT2),
    (GPT2, Timm),
    (BERT, torch_own),
    (LLAMA, NEOX),
    (LLAMA, FALCON),
    (PHI3, LLAMA),
    (Meta, LLAMA),
    (PHI3, Meta),
]


@pytest.mark.more
@pytest.mark.parametrize(("a", "b"), PUBLISHED)
def test_published_layouts(a, b):
    found = compared(a(), b())
    assert found.verdict == "same after reordering", str(found)
    assert "with a causal mask" in found.compared or Timm in (a, b)


@pytest.mark.more
def test_t5_does_not_scale():
    a = torch_own()
    a.in_proj_bias = None
    a.out_proj.bias = None
    found = compared(a, T5())
    assert (found.verdict, found.step) == ("different", "scale")
    assert "B's scaled scores are 2 times A's" in found.reason


@pytest.mark.more
def test_keys_of_the_wrong_sequence_are_found_with_two_sequences():
    class Cross(Plain):
        def forward(self, x, context):
            q, k, v = self.split(self.q(x)), self.split(self.k(context)), self.split(self.v(context))
            return self.o(joined(attended(q, k, v)))

    class Self(Cross):
        def forward(self, x, context):
            return super().forward(x, x)

    assert compared(Cross(), Cross()).ok
    assert not compared(Cross(), Self()).ok
