"""Models of transformers as they come: what `watch` shows is what the model gives out itself when told to be eager."""

from __future__ import annotations

import copy
from dataclasses import dataclass
from typing import Any

import pytest
import torch
import transformers
from model_cases import (
    CASES,
    GROUPED,
    MODEL_CASES,
    WIDTHS,
    cached_eager_maps,
    counted_rows,
    each_mode,
    eager_maps,
    load_model,
    make_inputs,
    output_tensors,
    sharpen,
    token_mask,
)
from torch import Tensor

import regard


@dataclass
class Run:
    """One model that was watched once, and its own maps."""

    name: str
    padding: str
    recording: Any
    expected: dict[str, Tensor]

    def counted(self, path: str) -> Tensor:
        """(batch, 1, queries, 1), True for the rows that count."""
        spec = next(p for p in MODEL_CASES[self.name].attentions if p.path == path)
        result = counted_rows(spec, self.padding)
        if result is None:
            return torch.tensor(True)
        return result[:, None, :, None]

    def dense(self, path: str) -> Tensor:
        """The model's own map in float64; in rows that do not count, where models differ, the one that was seen."""
        return torch.where(self.counted(path), self.expected[path], self.recording[path].dense()).double()


@pytest.fixture(scope="module", params=CASES, ids="-".join)
def run(request):
    name, padding = request.param
    model_inputs = make_inputs(name, padding)
    with torch.no_grad(), regard.watch(load_model(name)) as recording:
        load_model(name)(**model_inputs)
    return Run(name, padding, recording, cached_eager_maps(name, padding))


def test_every_attention_is_there_once_and_in_order(run):
    model, places = load_model(run.name), MODEL_CASES[run.name].attentions
    assert list(run.recording) == [spec.path for spec in places]
    for spec in places:
        assert model.get_submodule(spec.path) is not None
        assert run.recording[spec.path].shape == run.expected[spec.path].shape
    assert not run.recording.notes
    shown = str(run.recording)
    assert all(spec.path in shown for spec in places)


def test_cross_attention_is_told_apart_from_self_attention(run):
    for kind in ("self", "cross"):
        expected = [spec.path for spec in MODEL_CASES[run.name].attentions if spec.kind == kind]
        assert [path for path in run.recording if run.recording.entry(path).kind == kind] == expected
        if expected:
            assert list(run.recording.subset(kind)) == expected


def test_maps_are_those_that_the_eager_model_gives_out(run):
    for path, expected in run.expected.items():
        got = run.recording[path].dense()
        assert got.dtype == torch.float32
        assert ((got - expected) * run.counted(path)).abs().max() <= 1e-5, path


def test_every_map_proves_itself(run):
    for path in run.recording:
        assert run.recording[path].error < 1e-4, path
        assert run.recording[path].verified


def test_tiles_are_those_of_the_dense_map(run):
    for path in run.recording:
        m, dense = run.recording[path], run.dense(path).float()
        for at in [(0, 1, 2), (2, 3), (-1, -1, -1), (slice(None), 0, [0, 3], slice(1, 5)), (1, slice(1, 3), 5, 2), 0]:
            torch.testing.assert_close(m[at], dense[at], atol=1e-5, rtol=0)


@pytest.mark.usefixtures("as_a_user_runs_it")
def test_every_question_is_answered_as_the_dense_map_answers_it(run):
    for path in run.recording:
        m, w = run.recording[path], run.dense(path)
        queries, keys = w.shape[-2:]
        self_attention = run.recording.entry(path).kind == "self"

        def near(got, expected, what, path=path):
            torch.testing.assert_close(
                got.double(), expected, atol=1e-4, rtol=0, msg=lambda text: f"{what} of {path}: {text}"
            )

        near(m.entropy(), -torch.special.xlogy(w, w).sum(-1), "entropy")
        near(m.received(), w.sum(-2), "received")
        groups = torch.arange(keys) % 3
        near(m.mass(groups), torch.stack([w[..., groups == g].sum(-1) for g in range(3)], -1), "mass")
        # A row that attends to nothing has no position.
        some = w.sum(-1) > 0.5
        key = torch.arange(keys).double()
        query = torch.arange(queries) + (keys - queries if self_attention else 0)
        mean = (w * key).sum(-1)
        spread = (w * (key - mean[..., None]) ** 2).sum(-1).sqrt()
        distance = m.distance()
        if self_attention:
            near(distance.mean[some], (query - mean)[some], "distance")
        near(distance.spread[some], spread[some], "spread")
        top, weights = m.top(3), w.topk(3, -1).values
        near(top.weights, weights, "top")
        near(w.gather(-1, top.keys.clamp(min=0)) * (top.keys >= 0), weights, "keys of top")
        for cells in [(1, 1), (1, keys), (queries, 1), (queries, keys)]:
            tall, wide = queries // cells[0], keys // cells[1]
            expected = w.unflatten(-1, (cells[1], wide)).sum(-1).unflatten(-2, (cells[0], tall)).mean(-2)
            near(m.pooled(*cells), expected, f"pooled to {cells}")


@each_mode(case=list(map("-".join, CASES)))
def test_outputs_have_the_same_bits(case, mode):
    name, padding = case.split("-")
    model, model_inputs = load_model(name), make_inputs(name, padding)
    with mode():
        expected = list(output_tensors(model(**model_inputs, output_hidden_states=True)))
        with regard.watch(model) as recording:
            got = list(output_tensors(model(**model_inputs, output_hidden_states=True)))
    assert len(expected) == len(got) > 1
    assert all(torch.equal(a, b) for a, b in zip(expected, got, strict=True))
    assert all(a.requires_grad == b.requires_grad for a, b in zip(expected, got, strict=True))
    for spec in MODEL_CASES[name].attentions:
        counted = counted_rows(spec, padding)
        off = (recording[spec.path].dense() - cached_eager_maps(name, padding)[spec.path]).abs()
        assert (off if counted is None else off * counted[:, None, :, None]).max() <= 1e-5


def train_once(model, model_inputs, watched):
    """Loss and gradients of one pass in training, with the same draws of dropout each time."""
    model.zero_grad()
    torch.manual_seed(1)
    if watched:
        with regard.watch(model) as recording:
            out = model(**model_inputs)
            loss = sum(t.square().sum() for t in output_tensors(out) if t.requires_grad)
            loss.backward()
    else:
        recording = None
        out = model(**model_inputs)
        loss = sum(t.square().sum() for t in output_tensors(out) if t.requires_grad)
        loss.backward()
    return recording, loss.detach(), {n: p.grad.clone() for n, p in model.named_parameters() if p.grad is not None}


def without_dropout_but_in_attention(model, p):
    """Dropout only where weights are multiplied by it, so that nothing before the first layer's map is drawn."""
    for module in model.modules():
        if isinstance(module, torch.nn.Dropout):
            module.p = 0.0
        for name in ("dropout", "attention_dropout"):
            if isinstance(getattr(module, name, None), float):
                setattr(module, name, p if "ttention" in type(module).__name__ else 0.0)
    for module in model.modules():
        for name in ("dropout", "attn_dropout"):
            if "Attention" in type(module).__name__ and isinstance(getattr(module, name, None), torch.nn.Dropout):
                getattr(module, name).p = p
    return model


@pytest.mark.parametrize(
    ("name", "p"),
    [
        pytest.param(name, p, marks=pytest.mark.slow if n % 2 and not p else ())
        for n, name in enumerate(MODEL_CASES)
        for p in (0.0, 0.1)
    ],
)
def test_gradients_have_the_same_bits(name, p):
    """Every draw of dropout included."""
    model, model_inputs = copy.deepcopy(load_model(name)).train(), make_inputs(name, MODEL_CASES[name].paddings[-1])
    if not p:
        model = without_dropout_but_in_attention(model, 0.0)
    _, loss, gradients = train_once(model, model_inputs, watched=False)
    recording, same_loss, same = train_once(model, model_inputs, watched=True)
    assert torch.equal(loss, same_loss)
    assert gradients.keys() == same.keys()
    assert len(gradients) > 10
    assert all(torch.equal(gradients[n], same[n]) for n in gradients)
    assert len(recording) == len(MODEL_CASES[name].attentions)
    assert all(recording[path].error < 1e-4 for path in recording)


@pytest.mark.parametrize("name", ["bert", "gpt2", "llama", "bart", "vit"])
def test_a_map_is_the_one_before_dropout(name):
    """And proves itself against the output behind it."""
    model, model_inputs = copy.deepcopy(load_model(name)).train(), make_inputs(name, "even")
    model = without_dropout_but_in_attention(model, 0.5)
    torch.manual_seed(1)
    with regard.watch(model) as recording:
        model(**model_inputs)
    spec = MODEL_CASES[name].attentions[0]
    m = recording[spec.path]
    assert m.dropout == 0.5
    torch.testing.assert_close(m.dense(), cached_eager_maps(name, "even")[spec.path], atol=1e-5, rtol=0)
    assert all(recording[path].error < 1e-4 and recording[path].verified for path in recording)


@pytest.mark.parametrize("name", ["llama", "bert", "t5"])
@pytest.mark.parametrize("dtype", [torch.float64, torch.bfloat16, torch.float16])
def test_other_widths_of_numbers(name, dtype):
    model = copy.deepcopy(load_model(name)).to(dtype)
    model_inputs = make_inputs(name, "right")
    with torch.no_grad():
        expected = list(output_tensors(model(**model_inputs)))
        with regard.watch(model) as recording:
            got = list(output_tensors(model(**model_inputs)))
    assert all(torch.equal(a, b) for a, b in zip(expected, got, strict=True))
    maps = eager_maps(name, model_inputs, model)
    for spec in MODEL_CASES[name].attentions:
        m, counted = recording[spec.path], counted_rows(spec, "right")
        off = ((m.dense() - maps[spec.path]) * counted[:, None, :, None]).abs().max()
        # The eager model rounds scores and weights to its own few bits; Llama's turns and softmax are float32 always.
        if spec.layer == 0 or dtype == torch.float64:
            exact = 1e-6 if name == "llama" else 1e-12
            assert off < {torch.float64: exact, torch.bfloat16: 0.08, torch.float16: 0.01}[dtype]
        assert m.dense().dtype == (torch.float64 if dtype == torch.float64 else torch.float32)
        assert m.error < (1e-10 if dtype == torch.float64 else 2e-2)
        assert m.verified


@pytest.mark.parametrize("name", ["llama", "mistral", "t5", "bart", "bert"])
def test_one_text_alone_without_a_mask(name):
    """No mask at all, or the kernel's own flag for causal."""
    model_inputs = {key: value[:1] for key, value in make_inputs(name, "even").items()}
    with torch.inference_mode(), regard.watch(load_model(name)) as recording:
        load_model(name)(**model_inputs)
    for path, expected in eager_maps(name, model_inputs).items():
        torch.testing.assert_close(recording[path].dense(), expected, atol=1e-5, rtol=0)
        assert recording[path].error < 1e-4


@pytest.mark.parametrize("name", ["gpt2", "llama", "mistral"])
@pytest.mark.parametrize("padding", ["even", "left"])
def test_a_generation_is_one_map_per_layer(name, padding):
    """Prefill and steps: the map of one forward pass over the whole text."""
    base = {"gpt2": "GPT2LMHeadModel", "llama": "LlamaForCausalLM", "mistral": "MistralForCausalLM"}[name]
    model = getattr(transformers, base)(copy.deepcopy(load_model(name).config))
    model.base_model.load_state_dict(load_model(name).state_dict())
    model.eval()
    prompt = make_inputs(name, padding)
    mask = prompt.get("attention_mask", token_mask("even").long())
    options: dict[str, Any] = {"max_new_tokens": 6, "do_sample": False, "pad_token_id": 0, "eos_token_id": None}
    ids, mask = prompt["input_ids"], mask
    expected_text = model.generate(ids, attention_mask=mask, **options)
    with regard.watch(model) as recording:
        text = model.generate(ids, attention_mask=mask, **options)
    assert torch.equal(text, expected_text)
    whole = {"input_ids": text[:, :-1], "attention_mask": torch.cat([mask, torch.ones(3, 5, dtype=torch.long)], 1)}
    whole["position_ids"] = (whole["attention_mask"].cumsum(-1) - 1).clamp(min=0)
    expected = eager_maps(name, whole, model.base_model)
    assert list(recording) == [f"{model.base_model_prefix}.{path}" for path in expected]
    for path, dense in expected.items():
        m = recording[f"{model.base_model_prefix}.{path}"]
        assert m.shape == dense.shape
        counted = whole["attention_mask"].bool()[:, None, :, None]
        assert ((m.dense() - dense) * counted).abs().max() <= 1e-5
        assert m.error < 1e-4
        torch.testing.assert_close(
            (m.entropy().double()[..., None] * counted),
            (-torch.special.xlogy(dense.double(), dense.double()).sum(-1, keepdim=True) * counted),
            atol=1e-4,
            rtol=0,
        )


@pytest.mark.parametrize("name", ["t5", "bart", "marian"])
def test_a_generation_of_an_encoder_decoder(name):
    """The encoder's maps once; the decoder's and the cross-attention's rows of every step, one below the other."""
    base = {
        "t5": "T5ForConditionalGeneration",
        "bart": "BartForConditionalGeneration",
        "marian": "MarianMTModel",
    }[name]
    config = copy.deepcopy(load_model(name).config)
    config.decoder_start_token_id = 3
    model = sharpen(getattr(transformers, base)(config), MODEL_CASES[name].weight_scale)
    model_inputs = make_inputs(name, "right")
    source = {key: model_inputs[key] for key in ("input_ids", "attention_mask")}
    options: dict[str, Any] = {"max_new_tokens": 6, "do_sample": False, "num_beams": 1}
    options |= {"pad_token_id": 0, "eos_token_id": None, "forced_eos_token_id": None}
    expected_text = model.generate(**source, **options)
    with regard.watch(model) as recording:
        text = model.generate(**source, **options)
    assert torch.equal(text, expected_text)
    prefix = "" if name == "t5" else "model."
    expected = eager_maps(name, {**source, "decoder_input_ids": text[:, :-1]}, model)
    assert sorted(recording) == sorted(prefix + path for path in expected)
    for spec in MODEL_CASES[name].attentions:
        m, dense = recording[prefix + spec.path], expected[spec.path]
        assert m.shape == dense.shape, spec.path
        counted = token_mask("right")[:, None, :, None] if spec.rows == "source" else torch.tensor(True)
        assert ((m.dense() - dense) * counted).abs().max() <= 1e-5, spec.path
        assert m.error < 1e-4
        assert recording.entry(prefix + spec.path).kind == spec.kind


def test_layers_that_share_their_weights_have_a_map_each():
    """ALBERT runs one module as often as it has layers."""
    config = transformers.AlbertConfig(**{**WIDTHS, "num_hidden_layers": 3}, embedding_size=16)
    model = sharpen(transformers.AlbertModel(config))
    model_inputs = make_inputs("bert", "right")
    with torch.no_grad(), regard.watch(model) as recording:
        model(**model_inputs)
    model.set_attn_implementation("eager")
    with torch.no_grad():
        expected = model(**model_inputs, output_attentions=True).attentions
    assert len(recording) == len(expected) == 3
    for path, dense in zip(recording, expected, strict=True):
        off = (recording[path].dense() - dense) * token_mask("right")[:, None, :, None]
        assert off.abs().max() <= 1e-5
        assert recording[path].error < 1e-4


def test_two_passes_in_one_block():
    """The second is not taken for a continuation of the first; nothing is mixed."""
    model, first, second = load_model("bert"), make_inputs("bert", "right"), make_inputs("bert", "right", seed=1)
    second = {key: value[:2, :9] for key, value in second.items()}
    with torch.no_grad(), regard.watch(model) as recording:
        model(**first)
        model(**second)
    assert len(recording) == 4
    for model_inputs, suffix in ((first, ""), (second, "#1")):
        for path, expected in eager_maps("bert", model_inputs).items():
            counted = model_inputs["attention_mask"].bool()[:, None, :, None]
            assert ((recording[path + suffix].dense() - expected) * counted).abs().max() <= 1e-5


HAND = {
    "eager bert": (
        lambda: transformers.BertModel(transformers.BertConfig(**WIDTHS)),
        "encoder.layer.{}.attention.self",
    ),
    "eager llama": (lambda: transformers.LlamaModel(transformers.LlamaConfig(**GROUPED)), "layers.{}.self_attn"),
    "gemma2": (
        lambda: transformers.Gemma2Model(transformers.Gemma2Config(**GROUPED, query_pre_attn_scalar=8)),
        "layers.{}.self_attn",
    ),
    "gpt-oss": (
        lambda: transformers.GptOssModel(
            transformers.GptOssConfig(**GROUPED, num_local_experts=2, num_experts_per_tok=1, sliding_window=4)
        ),
        "layers.{}.self_attn",
    ),
    "deberta": (
        lambda: transformers.DebertaV2Model(
            transformers.DebertaV2Config(**WIDTHS, relative_attention=True, pos_att_type=["c2p", "p2c"])
        ),
        "encoder.layer.{}.attention.self",
    ),
}


@pytest.mark.parametrize("name", HAND)
def test_attention_by_hand_is_said_by_the_name_of_its_module(name):
    build, path = HAND[name]
    torch.manual_seed(0)
    model = build().eval()
    if name.startswith("eager"):
        model.set_attn_implementation("eager")
    assert model.config._attn_implementation == "eager"
    model_inputs = {"input_ids": make_inputs("bert", "even")["input_ids"]}
    with torch.no_grad():
        expected = model(**model_inputs).last_hidden_state
        with regard.watch(model) as recording:
            got = model(**model_inputs).last_hidden_state
    assert torch.equal(expected, got)
    assert len(recording) == 0
    notes = "\n".join(recording.notes)
    assert all(path.format(layer) in notes for layer in range(2))
    assert "by hand" in notes
    assert all(path.format(layer) in str(recording) for layer in range(2))
    assert "attn_implementation" in notes or "scaled_dot_product_attention" in notes  # what to change
    with pytest.raises(KeyError, match="by hand"):
        recording[path.format(0)]
