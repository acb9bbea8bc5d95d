"""`regard.check(a, against=b)`: whether two attentions compute the same, and how the weights are reordered."""

import json
import math

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import nn
from torch.nn import functional as F

import regard
from compared_attentions import (
    BERT,
    EACH,
    FALCON,
    GPT2,
    HEADS,
    LLAMA,
    NEOX,
    PHI3,
    T5,
    WIDTH,
    ALiBi,
    ByHead,
    Causal,
    ChannelsFirst,
    ChannelsFirstResidual,
    ChannelsFirstSink,
    Einsum,
    Fewer,
    Future,
    GivenTurns,
    Halved,
    Halves,
    HeadModules,
    Interleaved,
    Meta,
    MultiQuery,
    NoOutput,
    Normed,
    NormedPairs,
    OneHead,
    OtherHeadsFirst,
    Plain,
    Residual,
    SharedHeads,
    Sink,
    Timm,
    Unnamed,
    Unscaled,
    attended,
    joined,
    scaled_by_keys,
    tokens_second,
    torch_own,
)
from regard.check import convert
from regard.check.equivalence import Equivalence
from regard.check.equivalence.comparison import compare
from regard.check.sandbox.torch_settings import UserSettings
from regard.errors import InputError
from terminals import refusal


def compared(a, b):
    return compare(a, b, {}, {}, UserSettings())


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


@pytest.mark.parametrize("shared", [HEADS, 1])
def test_a_library_s_own_kernel_is_seen_through(shared):
    """`regard.MultiHeadAttention` calls the fused kernel itself, with as many heads of keys as it has."""
    a, b = regard.MultiHeadAttention(WIDTH, HEADS, num_kv_heads=shared, bias=True), Plain()
    x = torch.randn(2, 5, WIDTH)
    assert convert(a, b).unset == ()
    torch.testing.assert_close(b(x), a(x), rtol=1e-4, atol=1e-5)


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


def test_rotary_angles_may_be_handed_over():
    assert compared(GivenTurns(), Halves()).verdict == "same"


@pytest.mark.more
def test_positions_against_none_part_at_the_scores():
    found = compared(Halves(), Plain())
    assert (found.verdict, found.step, found.exit_code) == ("different", "scores", 1)


# More than projections. -----------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("a", "b"),
    [
        pytest.param(Normed, NormedPairs, marks=pytest.mark.more),
        pytest.param(Sink, ChannelsFirstSink, marks=pytest.mark.more),
        (Residual, ChannelsFirstResidual),
        (ALiBi, OtherHeadsFirst),
    ],
)
def test_norms_sinks_residuals_and_slopes_go_along(a, b):
    assert compared(a(), b()).verdict == "same after reordering"


# Where they part. -----------------------------------------------------------------------------------------------------


PARTINGS = [
    (Plain, Fewer, "projections", "A has 3 heads, B 2"),
    (Plain, Unscaled, "scale", "B's scaled scores are 2 times A's; difference"),  # both divide the scores by the same
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


@pytest.mark.parametrize(("a", "b"), [(Causal, torch_own), (torch_own, Causal)])
def test_a_causal_mask_that_is_built_in_against_one_that_is_given(a, b):
    found = compared(a(), b())
    assert (found.ok, found.compared) == (True, ("with a causal mask",))


def test_causal_against_never_causal_part_at_the_mask():
    found = compared(Causal(), Timm())
    assert (found.step, found.exit_code) == ("mask", 1)
    assert "A is causal, and no way to make B so was found" in found.notes


def test_queries_of_all_heads_in_one_matrix_are_told_apart():
    assert compared(MultiQuery(), Plain()).verdict == "same after reordering"


def test_classes_that_have_one_head_alone_are_built_with_one():
    assert compared(OneHead, OneHead).verdict == "same"


@pytest.mark.more
def test_shared_heads_fill_those_of_their_own_and_not_the_other_way():
    assert compared(SharedHeads(), Plain()).ok
    found = compared(Plain(), SharedHeads())
    assert (found.verdict, found.step) == ("different", "projections")
    assert "B has one number where A has several" in " ".join(found.notes)


# Functions. -----------------------------------------------------------------------------------------------------------


def test_functions():
    assert compared(attended, tokens_second).verdict == "same"
    assert compared(F.scaled_dot_product_attention, attended).verdict == "same"


def test_two_scales_are_told_where_they_multiply_the_scores():
    found = compared(attended, scaled_by_keys)
    assert (found.verdict, found.step) == ("different", "scale")
    assert (
        "A multiplies the product of queries and keys by 0.316228, B multiplies the product of queries and keys by "
        "0.447214; difference"
    ) in found.reason


def attended_where_allowed(q, k, v, mask):
    """Its mask, which says where to attend, has to be handed over."""
    return (q @ k.mT / math.sqrt(q.shape[-1])).masked_fill(~mask, -torch.inf).softmax(-1) @ v


def test_a_mask_that_has_to_be_handed_over_lets_all_attend_or_is_causal():
    found = compared(attended_where_allowed, attended)
    assert (found.verdict, found.compared) == ("same", ("without a mask", "with a causal mask"))


def linear(q, k, v):
    """Without a softmax."""
    return q @ (k.mT @ v)


@pytest.mark.parametrize(
    ("a", "b", "who"),
    [(linear, attended, "A"), (attended, linear, "B"), (linear, lambda q, k, v: 2 * linear(q, k, v), "A and B")],
    ids=["A", "B", "both"],
)
def test_without_steps_to_compare_it_is_said_whose_were_not_found(a, b, who):
    found = compared(a, b)
    assert (found.verdict, found.step) == ("different", "output")
    assert f"; the steps inside {who} were not found" in found.reason


def test_what_cannot_be_compared_is_said():
    found = compared(attended, Plain())
    assert (found.name, found.against, found.verdict, found.exit_code) == ("attended", "Plain", "undetermined", 3)
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


class OfThree(Plain):
    """Queries, keys and values are made of a sequence each."""

    def forward(self, q, k, v):
        return self.o(joined(attended(self.split(self.q(q)), self.split(self.k(k)), self.split(self.v(v)))))


class ValuesOfKeys(OfThree):
    def forward(self, q, k, v):
        return super().forward(q, k, k)


def test_values_of_the_wrong_sequence_are_found_with_three_sequences():
    assert not compared(OfThree(), ValuesOfKeys()).ok
