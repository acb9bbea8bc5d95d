"""What is shown by how implementations behave: over the bank, and with functions that do one thing each."""

import itertools
import math
import random
import sys
import time
from pathlib import Path

import pytest
import torch
import torch.nn.functional as F
from torch import nn

sys.path.insert(0, str(Path(__file__).resolve().parents[1]))

import bank
from regard.check import behaviour
from regard.check.behaviour import behave, quiet
from regard.check.diagnose import diagnose
from regard.check.search import Deadline, Search
from regard.check.settings import settings_of
from regard.check.stage import Diagnosis, Stage
from regard.check.subject import subject_of

SHOWN = {"dropout-in-eval", "dropout-before-softmax", "detached", "inputs-changed", "stateful", "absolute-axes"}
WRONG = [each for each in bank.entries() if SHOWN & set(each.causes)]
RIGHT = [each for each in bank.entries() if each.verdict != "wrong" and "positions" not in each.name]


def by_name(entry):
    return entry.name


def examined(what, args=None):
    """A diagnosis whose recipe is the definition's, or right in one other way; wrong is what is around it."""
    subject = subject_of(what, args or {})
    diagnosis = Diagnosis(subject)
    with quiet():
        settings, _ = settings_of(subject)
        for most, setting, built_in in itertools.product((0, 1), settings, (False, True)):
            observed = setting.observed(built_in)
            search = Search(Deadline(math.inf), functions=setting.functions, packed=setting.packed)
            found = search.right(observed, most=most) if observed else None
            if found is not None:
                diagnosis.setting = setting
                diagnosis.stages.append(Stage("built-in" if built_in else "none", "", observed, found))
                break
    if diagnosis.setting is None and settings:
        diagnosis.setting = settings[0]
        diagnosis.stages.append(Stage("none", "", settings[0].observed(False)))
    behave(diagnosis)
    return diagnosis


def whole(what):
    """A diagnosis with its masks."""
    with quiet():
        diagnosis = diagnose(subject_of(what, {}), deadline=Deadline(20.0))
    behave(diagnosis)
    return diagnosis


def named(diagnosis):
    return {known.id: numbers for known, numbers in diagnosis.behaviour}


@pytest.fixture(autouse=True)
def unhurried(monkeypatch):
    monkeypatch.setattr(behaviour, "MAX_CPU_SECONDS", 60.0)
    monkeypatch.setattr(behaviour, "MAX_WALL_SECONDS", math.inf)


@pytest.mark.parametrize("entry", WRONG, ids=by_name)
def test_what_the_bank_has_is_named(entry):
    diagnosis = examined(entry.what, entry.args)
    assert set(named(diagnosis)) == SHOWN & set(entry.causes)
    for known, numbers in diagnosis.behaviour:
        assert "{" not in known.message.format(**numbers)


@pytest.mark.parametrize("entry", RIGHT, ids=by_name)
def test_nothing_right_is_blamed(entry):
    diagnosis = examined(entry.what, entry.args)
    assert not named(diagnosis)
    if diagnosis.setting is not None:
        assert not diagnosis.why


@pytest.mark.parametrize(
    ("name", "cause", "what"),
    [
        ("attention_no_grad", "detached", "queries and keys"),
        ("FrozenWeights", "detached", "wq.weight, wq.bias and wk.weight"),
        ("NoGradScores", "detached", "in_proj.weight[0:60] and in_proj.bias[0:60]"),
        ("attention_inplace", "inputs-changed", "q"),
        ("attention_boolean_mask", "inputs-changed", "mask"),
        ("PaddingEraser", "inputs-changed", "value"),
    ],
)
def test_it_says_what_is_meant(name, cause, what):
    entry = next(each for each in WRONG if each.what.__name__ == name)
    assert named(examined(entry.what, entry.args))[cause]["what"] == what


def test_the_axes_of_the_document_are_said():
    entry = next(each for each in WRONG if each.name == "modules_documents.SelfAttention")
    numbers = named(examined(entry.what))["absolute-axes"]
    assert numbers["named"] == " (row_dim=0, col_dim=1)"


# Quiet. ---------------------------------------------------------------------------------------------------------------


def test_quiet_makes_every_dropout_the_identity():
    x = torch.randn(2, 3, 5, 4)
    mask = nn.MultiheadAttention(4, 2, dropout=0.9)
    with quiet() as dropped:
        for function in (F.dropout, F.dropout1d, F.dropout2d, F.alpha_dropout, F.feature_alpha_dropout):
            given = x[0] if function is F.dropout1d else x
            assert torch.equal(function(given, 0.9, True), given)
        assert torch.equal(torch.dropout(x, 0.9, True), x)
        assert torch.equal(nn.Dropout(0.9, inplace=True)(x), x)
        one = [F.scaled_dot_product_attention(x, x, x, None, 0.9) for _ in range(2)]
        other = F.scaled_dot_product_attention(x, x, x, dropout_p=0.9)
        heads = [mask(x[0], x[0], x[0])[0] for _ in range(2)]
    assert torch.equal(one[0], one[1])
    assert torch.equal(one[0], other)
    assert torch.equal(heads[0], heads[1])
    assert len(dropped) == 7
    assert not torch.equal(F.dropout(x, 0.9), x)


def softmax_attention(q, k, v):
    return torch.softmax(q @ k.mT / q.shape[-1] ** 0.5, -1) @ v


def test_what_is_random_and_no_dropout_is_undetermined_and_nothing_else():
    def noisy(q, k, v):
        return softmax_attention(q, k, v) + 0.01 * torch.randn_like(q)

    diagnosis = examined(noisy)
    assert not named(diagnosis)
    assert "random" in diagnosis.why[0]


def test_a_random_that_torch_does_not_know_is_seen():
    def noisy(q, k, v):
        return softmax_attention(q, k, v) * random.random()

    assert "random" in examined(noisy).why[0]


def test_the_randomness_of_others_is_left_as_it_was():
    torch.manual_seed(5)  # Python's own is not compared: beartype, which watches the tests, draws from it
    wanted = torch.rand(2)
    torch.manual_seed(5)
    examined(softmax_attention)
    assert torch.equal(torch.rand(2), wanted)


# One thing each. ------------------------------------------------------------------------------------------------------


def test_a_second_call_that_raises_is_told():
    class Once(nn.Module):
        def forward(self, q, k, v):
            assert not hasattr(self, "called"), "only once"
            self.called = True
            return softmax_attention(q, k, v)

    diagnosis = examined(Once)
    assert not named(diagnosis)
    assert "only once" in diagnosis.why[0]


def test_samples_that_are_mixed_are_told_where_no_recipe_says_how():
    def mixed(q, k, v):
        return softmax_attention(q, k, v - 0.3 * v.mean(0, keepdim=True).sin())

    assert named(examined(mixed))["batch-mixed"]["number"] > 0.01


def test_the_future_is_told_where_no_recipe_says_how():
    def causal_peek(q, k, v):
        future = torch.ones(q.shape[-2], k.shape[-2]).triu(1).bool()
        scores = (q @ k.mT / q.shape[-1] ** 0.5).masked_fill(future, -math.inf)
        return scores.softmax(-1) @ (v + 0.1 * v.roll(-1, -2).sin())

    numbers = named(examined(causal_peek))["future-leak"]
    assert numbers["named"] == "its name, causal_peek"
    assert (numbers["query"], numbers["key"]) == (4, 5)


def test_a_flag_that_leaks_is_told():
    def peek(q, k, v, is_causal=False):
        if is_causal:
            v = v + 0.1 * v.roll(-1, -2).sin()
        return softmax_attention(q, k, v + 0.2 * v.abs().sqrt())

    assert named(examined(peek))["future-leak"]["named"] == "its flag is_causal"


def test_dropped_weights_and_outputs_are_right():
    class Usual(nn.Module):
        def __init__(self, d_model, num_heads, dropout=0.1):
            super().__init__()
            self.heads, self.dropout = num_heads, nn.Dropout(dropout)
            self.q, self.k, self.v, self.o = (nn.Linear(d_model, d_model) for _ in range(4))

        def forward(self, x):
            q, k, v = (
                f(self.dropout(x)).unflatten(-1, (self.heads, -1)).transpose(1, 2) for f in (self.q, self.k, self.v)
            )
            weights = self.dropout(torch.softmax(q @ k.mT / q.shape[-1] ** 0.5, -1))
            return self.dropout(self.o((weights @ v).transpose(1, 2).flatten(2)))

    assert not named(examined(Usual))


def test_parameters_that_are_frozen_are_no_mistake():
    class Frozen(nn.Module):
        def __init__(self, d_model):
            super().__init__()
            self.q, self.k, self.v = (nn.Linear(d_model, d_model) for _ in range(3))
            self.q.weight.requires_grad_(False)

        def forward(self, x):
            return softmax_attention(self.q(x), self.k(x), self.v(x))

    diagnosis = examined(Frozen)
    assert diagnosis.stages[0].found is not None
    assert not named(diagnosis)


def test_an_error_of_the_users_in_train_does_not_escape():
    class Eval(nn.Module):
        def forward(self, q, k, v):
            if self.training or q.requires_grad or q.dtype != torch.float64:
                raise KeyError("not here")
            return softmax_attention(q, k, v)

    diagnosis = examined(Eval)
    assert not named(diagnosis)
    assert "in float16 it raises KeyError: 'not here'" in diagnosis.notes


def test_nothing_is_asked_of_what_could_not_be_called():
    diagnosis = Diagnosis(subject_of(softmax_attention, {}))
    behave(diagnosis)
    assert not diagnosis.behaviour
    assert not diagnosis.notes


# Notes. ---------------------------------------------------------------------------------------------------------------


def filled(number):
    def attention(q, k, v, mask=None):
        scores = q @ k.mT / q.shape[-1] ** 0.5
        if mask is not None:
            scores = scores.masked_fill(~mask, number)
        return scores.softmax(-1) @ v

    return attention


@pytest.mark.parametrize(("number", "gets"), [(-math.inf, "NaN"), (-1e9, "the mean of all values")])
def test_what_a_query_with_nothing_gets(number, gets):
    notes = whole(filled(number)).notes
    assert any(f"nothing to attend to gets {gets}" in note for note in notes)


def test_zeros_for_a_query_with_nothing():
    def attention(q, k, v, mask=None):
        return F.scaled_dot_product_attention(q, k, v, mask)

    assert any("gets zeros" in note for note in whole(attention).notes)


@pytest.mark.parametrize("number", [-1e4, -65504.0])
def test_a_fill_that_large_scores_pass_is_noted(number):
    notes = whole(filled(number)).notes
    assert any(f"blocked scores become about {number:g}" in note for note in notes)


def test_a_fill_that_they_do_not_pass_is_not():
    for number in (-math.inf, -1e9):
        assert not any("leak" in note for note in whole(filled(number)).notes)


def test_a_fill_of_its_own_mask_is_noted():
    def attention(q, k, v):
        future = torch.ones(q.shape[-2], k.shape[-2], dtype=q.dtype).triu(k.shape[-2] - q.shape[-2] + 1)
        return (q @ k.mT / q.shape[-1] ** 0.5 - 1e4 * future).softmax(-1) @ v

    assert any("blocked scores become about -10000" in note for note in examined(attention).notes)


def test_half_precision_that_raises_is_noted():
    assert any(note.startswith("in float16 it raises") for note in whole(filled(-1e9)).notes)
    assert not any("float16 it" in note for note in whole(filled(-math.inf)).notes)


def test_scores_in_the_thousands():
    def plain(q, k, v):
        weights = (q @ k.mT / q.shape[-1] ** 0.5).exp()
        return weights / weights.sum(-1, keepdim=True) @ v

    assert any("overflow" in note for note in examined(plain).notes)
    assert not any("overflow" in note for note in examined(softmax_attention).notes)


def test_single_precision_is_noted():
    def single(q, k, v):
        return softmax_attention(q.float(), k.float(), v.float())

    assert any("float32" in note and "softmax" in note for note in examined(single).notes)
    assert not any("float32" in note for note in examined(softmax_attention).notes)


def test_it_is_soon_done(monkeypatch):
    monkeypatch.setattr(behaviour, "MAX_CPU_SECONDS", 1.5)
    start = time.process_time()
    subject = subject_of(softmax_attention, {})
    diagnosis = Diagnosis(subject, setting=settings_of(subject)[0][0])
    before = time.process_time()
    behave(diagnosis)
    assert time.process_time() - before < 1.5
    assert before - start < 10
