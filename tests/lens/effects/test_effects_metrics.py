"""The metrics: each by its definition, on every kind of output."""

from types import SimpleNamespace

import pytest
import torch
import torch.nn.functional as F
import transformers

from regard import InputError, metrics
from regard.lens.effects.metrics import TextContext, as_metric, token_id

LOGITS = torch.randn(2, 5, 7, generator=torch.Generator().manual_seed(0))
IDS = torch.tensor([3, 1, 4, 1, 5])


def test_a_logit_difference_is_the_first_minus_the_second():
    torch.testing.assert_close(metrics.logit_difference(2, 6)(LOGITS), LOGITS[:, -1, 2] - LOGITS[:, -1, 6])
    torch.testing.assert_close(metrics.logit_difference(2, 6, 1)(LOGITS), LOGITS[:, 1, 2] - LOGITS[:, 1, 6])


def test_a_log_prob_is_the_log_softmax():
    torch.testing.assert_close(metrics.log_prob(4, -2)(LOGITS), LOGITS[:, -2].log_softmax(-1)[:, 4])


def test_the_loss_is_that_of_the_text_s_own_next_tokens():
    expected = torch.stack([F.cross_entropy(row[:-1], IDS[1:]) for row in LOGITS])
    torch.testing.assert_close(metrics.loss()(LOGITS, TextContext(IDS)), expected)


def test_the_loss_of_labels_leaves_out_minus_100():
    labels = torch.tensor([-100, 2, -100, 0, -100])
    expected = torch.stack([F.cross_entropy(row, labels) for row in LOGITS])
    torch.testing.assert_close(metrics.loss(labels)(LOGITS), expected)


def test_padding_counts_in_no_loss_and_is_no_last_token():
    context = TextContext(IDS, torch.tensor([1, 2, 3]))
    expected = torch.stack([F.cross_entropy(row[1:3], IDS[2:4]) for row in LOGITS])
    torch.testing.assert_close(metrics.loss()(LOGITS, context), expected)
    torch.testing.assert_close(metrics.log_prob(4)(LOGITS, context), LOGITS[:, 3].log_softmax(-1)[:, 4])


@pytest.mark.parametrize("position", [-1, 2, None])
def test_kl_is_from_the_unedited_to_the_edited_distribution(position):
    unedited, edited = LOGITS[:1], LOGITS[1:]
    p, q = (t[0].softmax(-1) for t in (unedited, edited))
    every = (p * (p / q).log()).sum(-1)
    expected = every.mean() if position is None else every[position]
    torch.testing.assert_close(metrics.kl(position)(edited, TextContext(unedited=unedited))[0], expected)
    assert metrics.kl(position)(unedited, TextContext(unedited=unedited)).abs() < 1e-6


@pytest.mark.parametrize(
    ("pooling", "pool"), [("mean", lambda t: t.mean(1)), ("first", lambda t: t[:, 0]), ("last", lambda t: t[:, -1])]
)
def test_cosine_is_how_far_the_vector_of_the_text_moved(pooling, pool):
    unedited, edited = LOGITS[:1], LOGITS[1:]
    expected = 1 - F.cosine_similarity(pool(edited), pool(unedited))
    torch.testing.assert_close(metrics.cosine(pooling)(edited, TextContext(unedited=unedited)), expected)


@pytest.mark.parametrize(
    "output",
    [
        LOGITS,
        (LOGITS, None),
        {"logits": LOGITS},
        SimpleNamespace(logits=LOGITS),
        transformers.modeling_outputs.CausalLMOutput(logits=LOGITS),
    ],
    ids=["tensor", "tuple", "dict", "object", "ModelOutput"],
)
def test_every_kind_of_output_is_read(output):
    torch.testing.assert_close(metrics.log_prob(4)(output), LOGITS[:, -1].log_softmax(-1)[:, 4])


def test_vectors_are_read_beside_logits():
    output = {"last_hidden_state": LOGITS, "logits": torch.zeros(2, 5, 1)}
    context = TextContext(unedited=output)
    assert metrics.cosine()(output, context).abs().max() < 1e-6
    with pytest.raises(TypeError, match="the metric reads logits, and the model's output has none: it is vectors"):
        metrics.log_prob(1)({"vectors": None})


def test_a_function_gets_each_text_with_a_batch_axis_of_1():
    shapes = []

    def spread(output):
        shapes.append((output["logits"].shape, output["name"]))
        return output["logits"].std()

    metric = as_metric(spread)
    expected = torch.stack([row.std() for row in LOGITS])
    torch.testing.assert_close(metric({"logits": LOGITS, "name": "x"}), expected)
    assert shapes == [((1, 5, 7), "x")] * 2
    assert metric.name == "spread"


def test_a_string_is_the_next_word_first():
    words = {" Mary": [7], "Mary": [3], "to": [4], " give up": [1, 2], "give up": [1, 2]}
    assert token_id("Mary", lambda text: words[text]) == 7
    assert token_id("to", lambda text: words.get(text, [8, 9])) == 4
    assert token_id(5, None) == 5
    with pytest.raises(InputError, match="'give up' is 2 tokens of this model, the ids 1, 2"):
        token_id("give up", lambda text: words[text])
    with pytest.raises(InputError, match="there is no tokenizer to look it up: give tokenizer=, or the id"):
        token_id("Mary", None)


def test_looked_up_tokens_keep_the_name_of_the_metric():
    metric = metrics.logit_difference("b", "c").with_ids(lambda text: [{" b": 2, " c": 6}[text]])
    assert metric.name == "logit_difference('b', 'c')"
    assert metric.tokens == (2, 6)
    torch.testing.assert_close(metric(LOGITS), LOGITS[:, -1, 2] - LOGITS[:, -1, 6])


@pytest.mark.parametrize(
    ("call", "error", "says"),
    [
        (lambda: metrics.log_prob("b")(LOGITS), ValueError, "names tokens by strings: use ids"),
        (lambda: metrics.log_prob(7)(LOGITS), IndexError, "there is no token 7: the output has 7, counted from 0"),
        (lambda: metrics.log_prob(1, 5)(LOGITS), IndexError, "there is no position 5: the output has 5"),
        (lambda: metrics.loss()(LOGITS), ValueError, "the 5 positions of the output, and none are known: give labels"),
        (lambda: metrics.loss()(LOGITS, TextContext(IDS[:3])), ValueError, "and the inputs have 3: give labels"),
        (lambda: metrics.loss([1, 2])(LOGITS), ValueError, r"of shape \(2,\): the output has 5 positions"),
        (lambda: metrics.loss()(LOGITS[:, :1], TextContext(IDS[:1])), ValueError, "a text of two tokens or more"),
        (lambda: metrics.kl()(LOGITS), ValueError, "compares with the output of the model as it is"),
        (lambda: metrics.cosine("max"), ValueError, "pooling='max': it is one of mean, first, last"),
        (lambda: as_metric(metrics.kl), TypeError, r"metric=kl: call it, such as regard.metrics.kl\(...\)"),
        (lambda: as_metric("loss"), TypeError, "metric='loss': a metric of regard.metrics"),
        (lambda: as_metric(lambda out: out[0, 0])(LOGITS), ValueError, "returned 7 numbers, of the shape"),
    ],
)
@pytest.mark.usefixtures("as_a_user_runs_it")
def test_what_cannot_be_measured_is_refused(call, error, says):
    with pytest.raises(error, match=says):
        call()
