"""`regard.check`, as it is called: in a process of its own, by name, with modules of other libraries."""

import json
import linecache
from importlib import import_module

import pytest
import torch
import transformers
from torch import nn

import regard
from regard.check import Report
from regard.check.diagnosis.judge import judge
from regard.check.search.budget import SearchBudget
from regard.check.search.subject import subject_of
from regard.errors import InputError

MINE = """
import math
from torch import nn


class SelfAttention(nn.Module):
    def __init__(self, d_model):
        super().__init__()
        self.q, self.k, self.v = (nn.Linear(d_model, d_model) for _ in range(3))

    def forward(self, x):
        scores = self.q(x) @ self.k(x).mT
        scores = scores / math.sqrt(x.size(1))
        return scores.softmax(-1) @ self.v(x)
"""


def test_the_step_the_number_and_the_line(tmp_path):
    path = tmp_path / "mine.py"
    path.write_text(MINE)
    report = regard.check.check_file(f"{path}:SelfAttention", {}, timeout=200.0)
    assert (report.verdict, report.step) == ("wrong", "scaled")
    (cause,) = report.causes
    assert cause.id == "scale-tokens"
    assert "you divide by 2.45 = sqrt(6 tokens); the definition divides by 5.48 = sqrt(30)" in cause.message
    assert cause.location.text.strip() == "scores = scores / math.sqrt(x.size(1))"
    assert "yours" in str(report)
    assert Report.from_json(report.to_json()) == report


@pytest.mark.parametrize("cell", ["/tmp/ipykernel_1/2.py", "<ipython-input-1-2>"])
def test_the_line_of_a_class_from_a_notebooks_cell(cell):
    # There is no such file: a notebook's cells are known to linecache only.
    linecache.cache[cell] = len(MINE), None, MINE.splitlines(keepends=True), cell
    names = {"__name__": "a_notebook"}
    exec(compile(MINE, cell, "exec"), names)
    (cause,) = regard.check(names["SelfAttention"], timeout=200.0).causes
    assert cause.location.text == "scores = scores / math.sqrt(x.size(1))"


@pytest.mark.more
def test_what_is_handed_over_is_not_changed():
    module = nn.MultiheadAttention(12, 3, batch_first=True)
    before = {name: parameter.clone() for name, parameter in module.named_parameters()}
    report = regard.check(module, timeout=200.0)
    assert report.ok, str(report)
    assert report
    assert all(torch.equal(before[name], parameter) for name, parameter in module.named_parameters())
    assert module.training


@pytest.mark.parametrize(
    ("implementation", "verdict"),
    [
        pytest.param(regard.MultiHeadAttention, "right", marks=pytest.mark.more),
        pytest.param(regard.attend, "right", marks=pytest.mark.more),
        pytest.param(regard.course.SelfAttention, "different by design", marks=pytest.mark.more),
        # Its is_causal counts from the first position.
        (torch.nn.functional.scaled_dot_product_attention, "right in another layout or convention"),
    ],
)
def test_our_own_and_pytorchs_are_right(implementation, verdict):
    report = regard.check(implementation, timeout=200.0)
    assert report.ok, str(report)
    assert report.verdict.startswith(verdict)
    assert "convention" not in verdict or "first" in str(report)


class OfPairs(nn.Module):
    """Its `layer_index` is known by name, what its call takes is not."""

    def __init__(self, layer_index):
        super().__init__()
        self.project = nn.Linear(12, 12)

    def forward(self, x, pairs):
        return self.project(x) * pairs["of the other"]


def test_what_can_be_constructed_but_not_called_is_asked_for_its_inputs():
    with pytest.raises(InputError, match=r"does not run with guessed inputs.*hand over its inputs: --args"):
        regard.check(OfPairs, timeout=200.0)


class OfFlavour(OfPairs):
    """Its `flavour` is guessed from its place alone."""

    def __init__(self, flavour):
        super().__init__(0)


def test_an_argument_of_the_constructor_that_means_nothing_known_is_asked_for():
    with pytest.raises(InputError, match=r"flavour of its constructor has no known meaning: give --arg flavour=VALUE$"):
        regard.check(OfFlavour, timeout=200.0)


class Refuses(nn.Module):
    def __init__(self, layer_index):
        raise RuntimeError("there is no such layer")


def test_what_a_constructor_says_is_told_where_all_its_arguments_are_known():
    with pytest.raises(InputError, match=r"Refuses\(layer_index=0\) cannot be constructed: .*there is no such layer$"):
        regard.check(Refuses, timeout=200.0)


class HasNoBias(nn.Module):
    def __init__(self, d_model, bias=False):
        super().__init__()
        self.out = nn.Linear(d_model, d_model, bias=bias)
        self.out.bias.data.zero_()


def test_where_a_constructor_fails_is_told_with_its_line():
    with pytest.raises(InputError, match=r"cannot be constructed: .* in line \d+, self\.out\.bias\.data\.zero_\(\)$"):
        regard.check(HasNoBias, timeout=200.0)


def test_our_own_module_is_seen_step_by_step():
    """It hands a view of one product to the fused kernel: with heads that are shared, to fewer of them."""
    report = regard.check(regard.MultiHeadAttention(24, 4, num_kv_heads=2), timeout=200.0)
    steps = {each.step: each for each in report.steps}
    assert (steps["projections"].status, steps["scaled"].status) == ("holds", "holds")
    assert steps["scaled"].text == "1/sqrt(6) = 0.4082"


@pytest.mark.parametrize(
    ("name", "sizes", "more"),
    [
        pytest.param("BertSelfAttention", {"hidden_size": 30, "num_attention_heads": 3}, {}, marks=pytest.mark.more),
        ("GPT2Attention", {"n_embd": 30, "n_head": 3}, {"layer_idx": 0}),
        pytest.param(
            "LlamaAttention",
            {"hidden_size": 32, "num_attention_heads": 4, "num_key_value_heads": 2},
            {"layer_idx": 0},
            marks=pytest.mark.more,
        ),
    ],
)
def test_attentions_of_transformers_as_they_are(name, sizes, more):
    family = name.removesuffix("Attention").removesuffix("Self")
    modeling = import_module(f"transformers.models.{family.lower()}.modeling_{family.lower()}")
    config = getattr(transformers, f"{family}Config")(**sizes, attn_implementation="eager")
    report = regard.check(getattr(modeling, name)(config, **more), timeout=200.0)
    assert report.ok, str(report)


@pytest.mark.more
@pytest.mark.filterwarnings("ignore:`torch.jit.script` is deprecated:DeprecationWarning")
def test_x_transformers_as_it_is():
    report = regard.check(import_module("x_transformers").Attention(dim=30, heads=3, dim_head=10), timeout=200.0)
    assert report.ok, str(report)


def test_a_mistake_is_found_in_few_calls():
    calls = 0

    def attention(q, k, v):
        nonlocal calls
        calls += 1
        return (q @ k.mT).softmax(-1) @ v

    diagnosis = judge(subject_of(attention, {}), budget=SearchBudget())
    assert [mistake.id for mistake, _ in diagnosis.stages[0].found.causes] == ["no-scale"]
    assert calls < 200


@pytest.mark.parametrize(
    ("body", "word"),
    [
        ("while True: pass", "did not end within 1 s"),
        ("print('flood ' * 200); return v", "output-v"),
        ("raise RuntimeError('the model is on fire')", "the model is on fire"),
        pytest.param("return (q @ k.mT / 2).softmax(-1) @ v + torch.rand(())", "random", marks=pytest.mark.more),
        ("return v.cuda()", "CUDA"),
        ("return torch.zeros(2**36) + q.sum()", "memory"),
    ],
)
def test_what_misbehaves_ends_in_a_clear_word(tmp_path, body, word):
    path = tmp_path / "mine.py"
    path.write_text(f"import torch\n\n\ndef attention(q, k, v):\n    {body}\n")
    report = regard.check.check_file(f"{path}:attention", {}, timeout=1.0 if "while" in body else 20.0)
    assert word.lower() in str(report).lower(), str(report)
    assert json.loads(report.to_json())["name"] == "attention"
    assert report.exit_code == (1 if word == "output-v" else 3)


NUMPY = """
import numpy as np


def arrays(q, k, v, mask=None):
    scores = np.matmul(q, np.swapaxes(k, -1, -2)) / np.sqrt(q.shape[-1])
    if mask is not None:
        scores = np.where(mask, scores, -np.inf)
    weights = np.exp(scores - scores.max(axis=-1, keepdims=True))
    return weights / weights.sum(axis=-1, keepdims=True) @ v


def tensors_in_arrays_out(q, k, v):
    return arrays(np.asarray(q), np.asarray(k), np.asarray(v))


def through_numpy(q, k, v):
    return arrays(*(each.detach().numpy() for each in (q, k, v)))
"""


@pytest.mark.parametrize(
    ("name", "verdict"),
    [
        ("arrays", "right in another layout or convention"),
        pytest.param("tensors_in_arrays_out", "right", marks=pytest.mark.more),
        pytest.param("through_numpy", "right", marks=pytest.mark.more),
    ],
)
def test_a_function_in_numpy_is_right_and_has_no_gradients(tmp_path, name, verdict):
    path = tmp_path / "mine.py"
    path.write_text(NUMPY)
    report = regard.check.check_file(f"{path}:{name}", {}, timeout=200.0)
    assert report.verdict == verdict, str(report)
    assert "it computes in numpy, which has no gradients: no model learns through it" in report.notes
    assert report.conventions == (("it takes numpy arrays",) if name == "arrays" else ())


def test_a_sequence_that_numpy_turns_round_is_no_mistake(tmp_path):
    path = tmp_path / "mine.py"
    path.write_text(NUMPY.replace("np.swapaxes(k, -1, -2)", "k.T"))
    report = regard.check.check_file(f"{path}:arrays", {}, timeout=200.0)
    assert (report.causes, report.exit_code) == ((), 0)


def test_bad_input():
    with pytest.raises(InputError, match="not a function, class or module"):
        regard.check(3)
    with pytest.raises(InputError, match="takes no width"):
        regard.check(nn.MultiheadAttention, args={"width": 3})


def states_to_states(dec, enc, lengths=None):
    """Luong's: it runs with tokens and channels in either order, and there is attention in one of them alone."""
    scores = dec @ enc.mT
    if lengths is not None:
        scores = scores.masked_fill(torch.arange(enc.shape[1]) >= lengths[:, None, None], -torch.inf)
    return scores.softmax(-1) @ enc


def states_to_states_masked_late(dec, enc, lengths=None):
    weights = (dec @ enc.mT).softmax(-1)
    if lengths is not None:
        weights = weights * (torch.arange(enc.shape[1]) < lengths[:, None, None])
    return weights @ enc


def test_of_two_orders_of_the_axes_the_one_with_attention_is_judged():
    assert regard.check(states_to_states).ok
    assert regard.check(states_to_states_masked_late).step == "weights"
