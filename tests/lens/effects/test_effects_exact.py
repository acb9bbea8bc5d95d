"""Exact effects: the same numbers as one ablation at a time, written out by hand."""

from functools import cache
from types import SimpleNamespace

import pytest
import torch
from torch import nn

import regard
from lens.effects.toy_decoder import (
    HEADS,
    LAYERS,
    PATHS,
    TOKENS,
    ToyDecoder,
    by_hand,
    difference,
    replaced,
    texts,
    without_head,
)
from lens.model_cases import MODEL_CASES
from lens.watching import FunctionModule
from regard import metrics

METRIC = metrics.logit_difference(3, 5)


@cache
@torch.inference_mode(False)
def toy() -> ToyDecoder:
    return ToyDecoder()


def fall(ids, **changes):
    """How far the metric falls with these changes, by hand."""
    with torch.no_grad():
        return difference(by_hand(toy(), ids)) - difference(by_hand(toy(), ids, **changes))


def of_each_head(ids, value=lambda layer, head: 0.0):
    """How far the metric falls with each head's output replaced by a value."""
    return [[fall(ids, replace=replaced(n, h, value(n, h))) for h in range(HEADS)] for n in range(LAYERS)]


def pairs(*cells):
    blocked = torch.zeros(TOKENS, TOKENS, dtype=torch.bool)
    for query, key in cells:
        blocked[query, key] = True
    return blocked


def assert_same(effects, expected):
    torch.testing.assert_close(effects, torch.tensor(expected, dtype=torch.float64), rtol=0, atol=1e-10)


def test_every_head_is_ablated_alone():
    effects = regard.effect(toy(), texts(), METRIC)
    assert effects.paths == tuple(PATHS)
    assert (effects.over, effects.ablation, effects.method, effects.notes) == ("heads", "zero", "exact", ())
    assert_same(effects.values, [of_each_head(ids) for ids in texts()])
    assert_same(effects.baseline, [difference(by_hand(toy(), ids)) for ids in texts()])


def test_a_layer_is_all_of_its_heads():
    effects = regard.effect(toy(), texts(), METRIC, "layers")
    assert_same(effects.values, [[fall(ids, replace=replaced(n, None, 0.0)) for n in range(LAYERS)] for ids in texts()])


def test_a_hidden_token_is_seen_by_itself_only():
    effects = regard.effect(toy(), texts(), METRIC, "tokens")
    others = [pairs(*[(i, j) for i in range(TOKENS) if i != j]) for j in range(TOKENS)]
    assert_same(effects.values, [[fall(ids, blocked=lambda _, o=o: o) for o in others] for ids in texts()])
    assert effects.ablation == "block"
    assert effects.values[:, -1].abs().max() < 1e-12  # nobody comes after the last token


def test_an_edge_is_one_query_that_may_not_see_one_key_in_one_layer():
    effects = regard.effect(toy(), texts(), METRIC, "edges", queries=[2, -1])
    expected = [
        [
            [
                [
                    fall(ids, blocked=lambda layer, n=n, i=i, j=j: pairs((i, j)) if layer == n else None)
                    for j in range(TOKENS)
                ]
                for i in (2, -1)
            ]
            for n in range(LAYERS)
        ]
        for ids in texts()
    ]
    assert_same(effects.values, expected)
    assert effects.windows == ((0,), (1,))
    assert effects.keys == tuple((j,) for j in range(TOKENS))


def test_a_group_of_keys_is_blocked_at_once_in_all_layers():
    effects = regard.effect(toy(), texts(1), METRIC, "edges", keys=[[1, 3], 0], window=None)
    groups = [pairs((-1, 1), (-1, 3)), pairs((-1, 0))]
    assert_same(effects.values, [[[[fall(texts()[0], blocked=lambda _, g=g: g) for g in groups]]]])


@pytest.mark.parametrize(
    ("width", "windows"),
    [
        (1, [[0], [1], [2], [3]]),
        (2, [[0], [0, 1], [1, 2], [2, 3]]),
        (3, [[0, 1], [0, 1, 2], [1, 2, 3], [2, 3]]),
        (9, [[0, 1, 2, 3]] * 4),
        (None, [[0, 1, 2, 3]]),
    ],
)
def test_a_window_is_centred_and_cut_at_both_ends(width, windows):
    from regard.lens.effects.parts import centred_windows

    assert centred_windows(4, width) == windows


def heads_outputs(ids, at):
    """The output of a layer, (heads, tokens, width)."""
    found = []
    by_hand(toy(), ids, replace=lambda layer, heads: found.append(heads) or heads)
    return found[at]


def test_the_mean_is_over_the_texts_and_their_tokens_where_no_source_is_given():
    effects = regard.effect(toy(), texts(), METRIC, ablation="mean")
    means = [torch.stack([heads_outputs(ids, n) for ids in texts()]).mean((0, 2)) for n in range(LAYERS)]
    assert_same(effects.values, [of_each_head(ids, lambda n, h: means[n][h]) for ids in texts()])


def test_the_mean_of_a_source_is_that_of_its_texts():
    with torch.no_grad(), regard.watch(toy()) as recording:
        toy()(texts(3, 8))
    mean = torch.stack([heads_outputs(ids, 1) for ids in texts(3, 8)]).mean((0, 2))
    expected = [fall(texts()[0], replace=replaced(1, h, mean[h])) for h in range(HEADS)]
    for source in (recording, [recording], texts(3, 8)):
        effects = regard.effect(toy(), texts(1), METRIC, ablation="mean", source=source)
        assert_same(effects.values[0, 1], expected)


def test_a_source_is_resampled_by_the_seed():
    """Every text of the source that has as many tokens can be drawn, each of them by some seed."""
    source, ids = texts(5)[2:], texts(1)[0]
    of_each = [fall(ids, replace=replaced(1, 2, heads_outputs(other, 1)[2])) for other in source]
    found = set()
    for seed in range(20):
        effects = regard.effect(toy(), texts(1), METRIC, ablation="resample", source=source, seed=seed)
        again = regard.effect(toy(), texts(1), METRIC, ablation="resample", source=source, seed=seed)
        assert torch.equal(effects.values, again.values)
        found |= {n for n, value in enumerate(of_each) if abs(value - float(effects.values[0, 1, 2])) < 1e-10}
    assert found == {0, 1, 2}


def test_resampling_takes_the_output_of_the_other_text():
    effects = regard.effect(toy(), texts(), METRIC, ablation="resample")
    for ids, other, own in zip(texts(), texts().flip(0), effects.values, strict=True):
        assert_same(own, of_each_head(ids, lambda n, h, other=other: heads_outputs(other, n)[h]))


def around(change, model=None):
    """A model whose output is made of the toy's logits, or that of another model."""
    wrapped = FunctionModule(lambda ids: change(wrapped.inner(ids)["logits"]))
    wrapped.inner = model or toy()
    return wrapped.eval()


def one_text_only(logits):
    if len(logits) > 1:
        raise RuntimeError("one text only")
    return logits


@pytest.mark.parametrize("over", ["heads", "layers", "tokens", "edges"])
def test_where_a_text_cannot_be_repeated_one_part_a_pass_gives_the_same_numbers(over):
    expected = regard.effect(toy(), texts(), METRIC, over).values
    effects = regard.effect(around(one_text_only), texts(), METRIC, over)
    torch.testing.assert_close(effects.values, expected, rtol=0, atol=1e-10)
    assert "cannot be repeated along the batch (one text only)" in effects.notes[0]


def test_two_rows_a_pass_give_the_same_numbers():
    """So many go through the model together at 512 tokens."""
    model, ids = ToyDecoder(positions=512), texts(1, 512)
    expected = regard.effect(around(one_text_only, model), ids, METRIC).values
    torch.testing.assert_close(regard.effect(model, ids, METRIC).values, expected, rtol=0, atol=1e-10)


def test_a_model_whose_rows_influence_one_another_is_seen_and_run_alone():
    effects = regard.effect(around(lambda t: t + t.mean(0) * (len(t) - 1)), texts(1), METRIC)
    assert "repeated along the batch the text has the metric" in effects.notes[0]
    expected = regard.effect(toy(), texts(1), METRIC).values
    torch.testing.assert_close(effects.values, expected, rtol=0, atol=1e-10)


def test_rows_that_know_one_another_by_their_output_are_run_alone():
    """As CLIP's logits do, texts x images: row r of the batch is text r, and image 0 would be another row's."""
    effects = regard.effect(around(lambda t: t[:, -1] @ t[:, -1].T), texts(1), lambda output: output[0, 0])
    assert "an output of the shape (1, 1) becomes (7, 7) for 7 rows" in effects.notes[0]
    ids = texts()[0]
    squares = [float(by_hand(toy(), ids, replace=replaced(1, head, 0.0))[-1].square().sum()) for head in range(HEADS)]
    assert_same(effects.values[0, 1], [float(by_hand(toy(), ids)[-1].square().sum()) - square for square in squares])


def test_an_output_that_is_no_nest_of_tensors_is_given_whole():
    def metric(output):
        return output.scores[0, -1, 3] - output.scores[0, -1, 5]

    effects = regard.effect(around(lambda t: SimpleNamespace(scores=t)), texts(), metric)
    torch.testing.assert_close(effects.values, regard.effect(toy(), texts(), METRIC).values, rtol=0, atol=1e-10)


@pytest.mark.parametrize(
    ("name", "projection"),
    [("gpt2", "transformer.h.{}.attn.c_proj"), ("llama", "model.layers.{}.self_attn.o_proj")],
)
@pytest.mark.parametrize("attention", ["sdpa", "eager"])
def test_a_model_of_transformers_has_the_effects_of_a_hook_at_the_output_projection(name, projection, attention):
    model = MODEL_CASES[name].build("LMHeadModel" if name == "gpt2" else "ForCausalLM").double()
    model.set_attn_implementation(attention)
    inputs = {"input_ids": torch.randint(5, 40, (2, 7))}
    effects = regard.effect(model, inputs, metrics.log_prob(9))

    def log_prob(output):
        return output.logits[:, -1].log_softmax(-1)[:, 9]

    with torch.no_grad():
        baseline = log_prob(model(**inputs))
    for layer in range(2):
        for head in range(4):
            without = log_prob(without_head(model, projection.format(layer), head, 8, **inputs))
            torch.testing.assert_close(effects.values[:, layer, head], baseline - without, rtol=0, atol=1e-9)


def test_padding_is_no_token():
    model = MODEL_CASES["gpt2"].build("LMHeadModel").double()
    ids = torch.randint(5, 40, (2, 7))
    mask = torch.ones_like(ids)
    mask[1, 5:] = 0
    for metric in (metrics.log_prob(9), metrics.loss()):
        both = regard.effect(model, {"input_ids": ids, "attention_mask": mask}, metric, "tokens")
        alone = regard.effect(model, {"input_ids": ids[1:, :5]}, metric, "tokens")
        torch.testing.assert_close(both.values[1, :5], alone.values[0], rtol=0, atol=1e-9)
        torch.testing.assert_close(both.looked_at[1, :5], alone.looked_at[0], rtol=0, atol=1e-6)
        assert both.values[1, 5:].isnan().all()


def test_an_encoder_decoder_hides_the_tokens_of_its_source():
    model = MODEL_CASES["bart"].build("ForConditionalGeneration")
    ids = torch.randint(5, 40, (1, 7))
    inputs = {"input_ids": ids, "decoder_input_ids": torch.randint(5, 40, (1, 4))}
    effects = regard.effect(model, inputs, metrics.log_prob(9), "tokens")
    assert effects.values.shape == (1, 7)
    assert all(path.startswith("model.encoder") or path.endswith("encoder_attn") for path in effects.paths)
    cross = regard.effect(model, inputs, metrics.log_prob(9), "edges", window=None)
    assert cross.values.shape == (1, 1, 1, 7)
    assert all(path.endswith("encoder_attn") for path in cross.paths)


@pytest.mark.parametrize("batch_first", [True, False])
def test_pytorch_s_own_layers_count_texts_on_their_own_axis(batch_first):
    torch.manual_seed(0)
    layer = nn.TransformerEncoderLayer(16, 4, 32, batch_first=batch_first)
    model = nn.TransformerEncoder(layer, 2, enable_nested_tensor=False).eval()
    x = torch.randn(3, 5, 16)
    effects = regard.effect(model, x if batch_first else x.transpose(0, 1), metrics.cosine(), "tokens")
    assert effects.values.shape == (3, 5)
    alone = regard.effect(model, x[1:2] if batch_first else x[1:2].transpose(0, 1), metrics.cosine(), "tokens")
    torch.testing.assert_close(effects.values[1], alone.values[0], rtol=0, atol=1e-6)
    assert (effects.values.sum(1) < -1e-3).all()


def test_nothing_is_left_behind():
    model = ToyDecoder()
    before = {name: p.clone() for name, p in model.named_parameters()}
    output = model(texts())["logits"]
    regard.effect(model, texts(), METRIC, method="both", top=2)
    assert torch.equal(model(texts())["logits"], output)
    assert all(torch.equal(p, before[name]) and p.grad is None for name, p in model.named_parameters())
    assert not any(module._forward_hooks or module._forward_pre_hooks for module in model.modules())
