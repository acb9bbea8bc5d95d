"""What is shown by how implementations behave: with functions that do one thing each; the bank has all of them."""

import itertools
import math
import random
import warnings

import pytest
import torch
import torch.nn.functional as F
from torch import nn

import bank
from bank import right_functions
from regard.check.behaviour.dropout import without_dropout
from regard.check.behaviour.gradients import BY_DECORATOR
from regard.check.behaviour.questions import QUESTIONS, examine
from regard.check.search.budget import SearchBudget
from regard.check.search.call_configs import call_configs
from regard.check.search.diagnose import diagnose
from regard.check.search.recipe_search import RecipeSearch
from regard.check.search.stage import Diagnosis, Stage
from regard.check.search.subject import subject_of

ENTRIES = {entry.name: entry for entry in bank.entries()}


def examined(what, args=None):
    """A diagnosis whose recipe is the definition's, or right in one other way; wrong is what is around it."""
    subject = subject_of(what, args or {})
    diagnosis = Diagnosis(subject)
    with without_dropout():
        settings, _ = call_configs(subject)
        for most, setting, built_in in itertools.product((0, 1), settings, (False, True)):
            observed = setting.observed(built_in)
            search = RecipeSearch(SearchBudget(), packed=setting.packed)
            found = search.match_convention(observed, most=most) if observed else None
            if found is not None:
                diagnosis.setting = setting
                diagnosis.stages.append(Stage("built-in" if built_in else "none", "", observed, found))
                break
    if diagnosis.setting is None and settings:
        diagnosis.setting = settings[0]
        diagnosis.stages.append(Stage("none", "", settings[0].observed(False)))
    examine(diagnosis, seconds=math.inf)
    return diagnosis


def named(diagnosis):
    return {known.id: numbers for known, numbers in diagnosis.behaviour}


@pytest.mark.parametrize(
    ("name", "cause", "key", "words"),
    [
        ("functions_behaviour.attention_no_grad", "detached", "what", "queries and keys"),
        ("modules_output.FrozenWeights", "detached", "what", "wq.weight, wq.bias and wk.weight"),
        ("modules_output.NoGradScores", "detached", "what", "in_proj.weight[0:60] and in_proj.bias[0:60]"),
        ("functions_behaviour.attention_inplace", "inputs-changed", "what", "q"),
        ("functions_behaviour.attention_boolean_mask", "inputs-changed", "what", "mask"),
        ("modules_output.PaddingEraser", "inputs-changed", "what", "value"),
        ("modules_documents.SelfAttention", "absolute-axes", "named", " (row_dim=0, col_dim=1)"),
    ],
)
def test_it_says_what_is_meant(name, cause, key, words):
    entry = ENTRIES[name]
    assert named(examined(entry.what, entry.args))[cause][key] == words


def turned_whole(x):
    """Of one sequence without a batch."""
    return (x @ x.T / x.shape[-1] ** 0.5).softmax(-1) @ x


def turned_from_the_front(x):
    return (x @ x.transpose(0, -1) / x.shape[-1] ** 0.5).softmax(-1) @ x


def of_one_sequence(x):
    seq_len = x.shape[0]
    weights = (x @ x.transpose(0, -1) / x.shape[-1] ** 0.5).softmax(-1)
    return weights.view(seq_len, -1) @ x if x.ndim == 2 else weights @ x


def of_one_video(x):
    n = x.size(0)  # sequence length
    return turned_from_the_front(x * torch.ones(n, *[1] * (x.ndim - 1)))


def of_one_batch(x):
    n = x.size(0)  # batch size
    return turned_from_the_front(x * torch.ones(n, *[1] * (x.ndim - 1)))


def test_what_says_that_its_first_axis_are_the_tokens_is_called_without_a_batch():
    assert "absolute-axes" not in named(examined(of_one_sequence))
    assert "absolute-axes" not in named(examined(of_one_video))
    assert "absolute-axes" in named(examined(of_one_batch))


def test_pytorch_objects_to_a_batch_that_is_turned_whole_also_where_it_has_objected_before():
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        assert torch.zeros(2, 2, 2).T.shape == (2, 2, 2)
    assert "absolute-axes" not in named(examined(turned_whole))
    assert "absolute-axes" in named(examined(turned_from_the_front))
    assert not torch.is_warn_always_enabled()


@torch.no_grad()
def without_any_gradient(q, k, v):
    return (q @ k.mT / q.size(-1) ** 0.5).softmax(-1) @ v


@torch.no_grad()
def without_any_gradient_and_detached(q, k, v):
    return (q @ k.mT / q.size(-1) ** 0.5).softmax(-1).detach() @ v


class WithoutAnyGradient(nn.Module):
    def __init__(self, d_model, num_heads):
        super().__init__()
        self.heads, self.qkv, self.out = num_heads, nn.Linear(d_model, 3 * d_model), nn.Linear(d_model, d_model)

    @torch.inference_mode()
    def forward(self, x):
        q, k, v = (each.unflatten(-1, (self.heads, -1)).transpose(1, 2) for each in self.qkv(x).chunk(3, -1))
        return self.out(F.scaled_dot_product_attention(q, k, v).transpose(1, 2).flatten(2))


@pytest.mark.parametrize(
    ("what", "causes"),
    [(without_any_gradient, []), (without_any_gradient_and_detached, ["detached"]), (WithoutAnyGradient, [])],
)
def test_a_decorator_that_keeps_all_gradients_away_is_a_note(what, causes):
    diagnosis = examined(what, {})
    assert [*named(diagnosis)] == causes
    assert BY_DECORATOR in diagnosis.notes


# Without dropout. -----------------------------------------------------------------------------------------------------


def test_dropout_that_is_written_by_hand_keeps_everything():
    x = torch.ones(3)
    with without_dropout():
        assert torch.equal(torch.empty(3, 1).bernoulli_(0.5), torch.ones(3, 1))
        assert torch.equal(torch.bernoulli(0.5 * x), x)
        assert torch.equal(torch.bernoulli(input=0.5 * x), x)


def test_without_dropout_makes_every_dropout_the_identity():
    x = torch.randn(2, 3, 5, 4)
    attention = nn.MultiheadAttention(4, 2, dropout=0.9)
    with without_dropout() as dropped:
        for function in (F.dropout, F.dropout1d, F.dropout2d, F.alpha_dropout, F.feature_alpha_dropout, torch.dropout):
            dropout_input = x[0] if function is F.dropout1d else x
            assert torch.equal(function(dropout_input, 0.9, True), dropout_input)
        assert torch.equal(nn.Dropout(0.9, inplace=True)(x), x)
        fused = [F.scaled_dot_product_attention(x, x, x, None, 0.9) for _ in range(2)]
        fused.append(F.scaled_dot_product_attention(x, x, x, dropout_p=0.9))
        heads = [attention(x[0], x[0], x[0])[0] for _ in range(2)]
    assert all(torch.equal(each, fused[0]) for each in fused)
    assert torch.equal(*heads)
    assert len(dropped) == 7
    assert not torch.equal(F.dropout(x, 0.9), x)


def softmax_attention(q, k, v):
    return torch.softmax(q @ k.mT / q.shape[-1] ** 0.5, -1) @ v


def in_single_precision(q, k, v):
    return softmax_attention(q.float(), k.float(), v.float())


def noisy(draw):
    return lambda q, k, v: softmax_attention(q, k, v) + draw()


class Once(nn.Module):
    def forward(self, q, k, v):
        assert not hasattr(self, "called"), "only once"
        self.called = True
        return softmax_attention(q, k, v)


@pytest.mark.parametrize(
    ("what", "why"),
    [(noisy(lambda: 0.01 * torch.randn(())), "random"), (noisy(random.random), "random"), (Once, "only once")],
)
def test_what_is_random_or_cannot_be_called_again_is_undetermined_and_nothing_else(what, why):
    diagnosis = examined(what)
    assert not named(diagnosis)
    assert why in diagnosis.why[0]


def test_the_randomness_of_others_is_left_as_it_was():
    before = torch.get_rng_state()  # Python's own is not compared: beartype, which watches the tests, draws from it
    examined(softmax_attention)
    assert torch.equal(torch.get_rng_state(), before)


# One thing each. ------------------------------------------------------------------------------------------------------


def test_samples_that_are_mixed_are_told_where_no_recipe_says_how():
    def mixed(q, k, v):
        return softmax_attention(q, k, v - 0.3 * v.mean(0, keepdim=True).sin())

    assert named(examined(mixed))["batch-mixed"]["number"] > 0.01


def causal_peek(q, k, v):
    future = torch.ones(q.shape[-2], k.shape[-2]).triu(1).bool()
    scores = (q @ k.mT / q.shape[-1] ** 0.5).masked_fill(future, -math.inf)
    return scores.softmax(-1) @ (v + 0.1 * v.roll(-1, -2).sin())


def peek(q, k, v, is_causal=False):
    if is_causal:
        v = v + 0.1 * v.roll(-1, -2).sin()
    return softmax_attention(q, k, v + 0.2 * v.abs().sqrt())


@pytest.mark.parametrize(
    ("what", "by", "query"), [(causal_peek, "its name, causal_peek", 4), (peek, "its flag is_causal", 0)]
)
def test_the_future_is_told_where_no_recipe_says_how(what, by, query):
    numbers = named(examined(what))["future-leak"]
    assert (numbers["named"], numbers["query"], numbers["key"]) == (by, query, 5)


def test_a_flag_is_judged_where_it_is_set():
    def causal_by_flag(q, k, v, is_causal=False):
        scores = q @ k.mT / q.shape[-1] ** 0.5
        scores = scores + scores.sin()  # that no recipe has
        future = torch.ones(q.shape[-2], k.shape[-2]).triu(1).bool()
        return (scores.masked_fill(future, -math.inf) if is_causal else scores).softmax(-1) @ v

    assert "future-leak" not in named(examined(causal_by_flag))


def test_a_prefix_that_all_tokens_see_is_no_leak():
    def prefix_decoder(q, k, v):
        allowed = torch.ones(q.shape[-2], k.shape[-2]).tril().bool()
        allowed[:, :2] = True
        return (q @ k.mT / q.shape[-1] ** 0.5).masked_fill(~allowed, -math.inf).softmax(-1) @ v

    def decoder(q, k, v):
        return prefix_decoder(q, k, v)

    assert "future-leak" in named(examined(decoder))
    assert "future-leak" not in named(examined(prefix_decoder))


def test_parameters_that_are_frozen_are_no_mistake():
    class Frozen(nn.Module):
        def __init__(self, d_model):
            super().__init__()
            self.q, self.k, self.v = (nn.Linear(d_model, d_model) for _ in range(3))
            self.q.weight.requires_grad_(False)

        def forward(self, x):
            return softmax_attention(self.q(x), self.k(x), self.v(x))

    diagnosis = examined(Frozen)
    assert (diagnosis.stages[0].found is None, named(diagnosis)) == (False, {})


def test_an_error_of_the_users_in_train_does_not_escape():
    class Eval(nn.Module):
        def forward(self, q, k, v):
            if self.training or q.requires_grad or q.dtype != torch.float64:
                raise KeyError("not here")
            return softmax_attention(q, k, v)

    diagnosis = examined(Eval)
    assert not named(diagnosis)
    assert "in float16 it raises KeyError: 'not here'" in diagnosis.notes


@pytest.mark.parametrize("called", [False, True])
def test_nothing_is_asked_of_what_could_not_be_called_nor_after_its_time_which_a_note_tells(called):
    subject = subject_of(in_single_precision, {})
    diagnosis = Diagnosis(subject, setting=call_configs(subject)[0][0] if called else None)
    examine(diagnosis, seconds=0.0)
    assert not diagnosis.behaviour
    assert [note.partition(":")[0] for note in diagnosis.notes] == ["not examined for lack of time"] * called
    assert all(subject in "".join(diagnosis.notes) for _, subject in QUESTIONS if called)


def test_what_could_not_be_asked_is_a_note_with_the_reason():
    calls = []

    def twice_only(q, k, v):
        calls.append(1)
        if len(calls) > 2:
            raise RuntimeError("only twice")
        return softmax_attention(q, k, v)

    subject = subject_of(softmax_attention, {})
    setting = call_configs(subject)[0][0]
    subject.function = twice_only
    diagnosis = Diagnosis(subject, setting=setting)
    examine(diagnosis, seconds=math.inf)
    says = "not examined: whether two calls give the same output; a call raises RuntimeError: only twice"
    assert says in diagnosis.notes


# Notes. ---------------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("name", "says", "says_not"),
    [
        ("fills_minus_infinity", ["nothing to attend to gets NaN"], ["leak", "float16 it"]),
        (
            "fills_minus_a_billion",
            ["attend to gets the mean of all values", "in float16 it raises"],
            ["leak"],
        ),
        ("fused_with_a_mask", ["nothing to attend to gets zeros"], ["leak"]),
    ],
)
def test_what_is_noted_of_a_mask(name, says, says_not):
    with without_dropout():
        diagnosis = diagnose(subject_of(ENTRIES[f"right_function_masks.{name}"].what, {}), budget=SearchBudget())
    examine(diagnosis, seconds=math.inf)
    notes = "\n".join(diagnosis.notes)
    assert [words for words in says if words not in notes] == []
    assert [words for words in says_not if words in notes] == []


def weak_causal(fill):
    def causal(q, k, v):
        future = torch.ones(q.shape[-2], k.shape[-2], dtype=q.dtype).triu(k.shape[-2] - q.shape[-2] + 1)
        return (q @ k.mT / q.shape[-1] ** 0.5 + fill * future).softmax(-1) @ v

    return causal


@pytest.mark.parametrize(
    ("attention", "words"),
    [
        (right_functions.broadcast_and_sum, ["overflow"]),
        (weak_causal(-1e4), ["blocked scores become about -10000,"]),
        (weak_causal(-1e5), ["blocked scores become about -100000,"]),
        (in_single_precision, ["float32", "softmax"]),
    ],
)
def test_what_is_noted_without_a_mask(attention, words):
    assert any(all(word in note for word in words) for note in examined(attention).notes)
    assert not any(words[0] in note for note in examined(softmax_attention).notes)
