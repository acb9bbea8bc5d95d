"""Models of transformers as they come: what `watch` shows is what the model gives out itself when told to be eager."""

from __future__ import annotations

import copy
from dataclasses import dataclass
from typing import Any

import pytest
import torch
import transformers
from torch import Tensor
from watched import CASES, GROUPED, KINDS, WIDTHS, each_mode, eager, inputs, known, made, real, rows, sharpened, tensors

import regard


@dataclass
class Run:
    """One model that was watched once, and its own maps."""

    name: str
    padding: str
    seen: Any
    expected: dict[str, Tensor]

    def counted(self, path: str) -> Tensor:
        """(batch, 1, queries, 1), True for the rows that count."""
        place = next(p for p in KINDS[self.name].places if p.path == path)
        found = rows(place, self.padding)
        if found is None:
            return torch.tensor(True)
        return found[:, None, :, None]

    def dense(self, path: str) -> Tensor:
        """The model's own map in float64; in rows that do not count, where models differ, the one that was seen."""
        return torch.where(self.counted(path), self.expected[path], self.seen[path].dense()).double()


@pytest.fixture(scope="module", params=CASES, ids="-".join)
def run(request):
    name, padding = request.param
    given = inputs(name, padding)
    with torch.no_grad(), regard.watch(made(name)) as seen:
        made(name)(**given)
    return Run(name, padding, seen, known(name, padding))


def test_every_attention_is_there_once_and_in_order(run):
    model, places = made(run.name), KINDS[run.name].places
    assert list(run.seen) == [place.path for place in places]
    for place in places:
        assert model.get_submodule(place.path) is not None
        assert run.seen[place.path].shape == run.expected[place.path].shape
    assert not run.seen.notes
    shown = str(run.seen)
    assert all(place.path in shown for place in places)


def test_cross_attention_is_told_apart_from_self_attention(run):
    for kind in ("self", "cross"):
        expected = [place.path for place in KINDS[run.name].places if place.kind == kind]
        assert [path for path in run.seen if run.seen.entry(path).kind == kind] == expected
        if expected:
            assert list(run.seen.subset(kind)) == expected


def test_maps_are_those_that_the_eager_model_gives_out(run):
    for path, expected in run.expected.items():
        got = run.seen[path].dense()
        assert got.dtype == torch.float32
        assert ((got - expected) * run.counted(path)).abs().max() <= 1e-5, path


def test_every_map_proves_itself(run):
    for path in run.seen:
        assert run.seen[path].error < 1e-4, path
        assert run.seen[path].verified


def test_tiles_are_those_of_the_dense_map(run):
    for path in run.seen:
        m, dense = run.seen[path], run.dense(path).float()
        for at in [(0, 1, 2), (2, 3), (-1, -1, -1), (slice(None), 0, [0, 3], slice(1, 5)), (1, slice(1, 3), 5, 2), 0]:
            torch.testing.assert_close(m[at], dense[at], atol=1e-5, rtol=0)


@pytest.mark.usefixtures("as_a_user_runs_it")
def test_every_question_is_answered_as_the_dense_map_answers_it(run):
    for path in run.seen:
        m, w = run.seen[path], run.dense(path)
        queries, keys = w.shape[-2:]
        self_attention = run.seen.entry(path).kind == "self"

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
    model, given = made(name), inputs(name, padding)
    with mode():
        expected = list(tensors(model(**given, output_hidden_states=True)))
        with regard.watch(model) as seen:
            got = list(tensors(model(**given, output_hidden_states=True)))
    assert len(expected) == len(got) > 1
    assert all(torch.equal(a, b) for a, b in zip(expected, got, strict=True))
    assert all(a.requires_grad == b.requires_grad for a, b in zip(expected, got, strict=True))
    for place in KINDS[name].places:
        counted = rows(place, padding)
        off = (seen[place.path].dense() - known(name, padding)[place.path]).abs()
        assert (off if counted is None else off * counted[:, None, :, None]).max() <= 1e-5


def learned(model, given, watched):
    """Loss and gradients of one pass in training, with the same draws of dropout each time."""
    model.zero_grad()
    torch.manual_seed(1)
    if watched:
        with regard.watch(model) as seen:
            out = model(**given)
            loss = sum(t.square().sum() for t in tensors(out) if t.requires_grad)
            loss.backward()
    else:
        seen = None
        out = model(**given)
        loss = sum(t.square().sum() for t in tensors(out) if t.requires_grad)
        loss.backward()
    return seen, loss.detach(), {n: p.grad.clone() for n, p in model.named_parameters() if p.grad is not None}


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
        for n, name in enumerate(KINDS)
        for p in (0.0, 0.1)
    ],
)
def test_gradients_have_the_same_bits(name, p):
    """Every draw of dropout included."""
    model, given = copy.deepcopy(made(name)).train(), inputs(name, KINDS[name].paddings[-1])
    if not p:
        model = without_dropout_but_in_attention(model, 0.0)
    _, loss, gradients = learned(model, given, watched=False)
    seen, same_loss, same = learned(model, given, watched=True)
    assert torch.equal(loss, same_loss)
    assert gradients.keys() == same.keys()
    assert len(gradients) > 10
    assert all(torch.equal(gradients[n], same[n]) for n in gradients)
    assert len(seen) == len(KINDS[name].places)
    assert all(seen[path].error < 1e-4 for path in seen)


@pytest.mark.parametrize("name", ["bert", "gpt2", "llama", "bart", "vit"])
def test_a_map_is_the_one_before_dropout(name):
    """And proves itself against the output behind it."""
    model, given = copy.deepcopy(made(name)).train(), inputs(name, "even")
    model = without_dropout_but_in_attention(model, 0.5)
    torch.manual_seed(1)
    with regard.watch(model) as seen:
        model(**given)
    place = KINDS[name].places[0]
    m = seen[place.path]
    assert m.dropout == 0.5
    torch.testing.assert_close(m.dense(), known(name, "even")[place.path], atol=1e-5, rtol=0)
    assert all(seen[path].error < 1e-4 and seen[path].verified for path in seen)


@pytest.mark.parametrize("name", ["llama", "bert", "t5"])
@pytest.mark.parametrize("dtype", [torch.float64, torch.bfloat16, torch.float16])
def test_other_widths_of_numbers(name, dtype):
    model = copy.deepcopy(made(name)).to(dtype)
    given = inputs(name, "right")
    with torch.no_grad():
        expected = list(tensors(model(**given)))
        with regard.watch(model) as seen:
            got = list(tensors(model(**given)))
    assert all(torch.equal(a, b) for a, b in zip(expected, got, strict=True))
    maps = eager(name, given, model)
    for place in KINDS[name].places:
        m, counted = seen[place.path], rows(place, "right")
        off = ((m.dense() - maps[place.path]) * counted[:, None, :, None]).abs().max()
        # The eager model rounds scores and weights to its own few bits; Llama's turns and softmax are float32 always.
        if place.layer == 0 or dtype == torch.float64:
            exact = 1e-6 if name == "llama" else 1e-12
            assert off < {torch.float64: exact, torch.bfloat16: 0.08, torch.float16: 0.01}[dtype]
        assert m.dense().dtype == (torch.float64 if dtype == torch.float64 else torch.float32)
        assert m.error < (1e-10 if dtype == torch.float64 else 2e-2)
        assert m.verified


@pytest.mark.parametrize("name", ["llama", "mistral", "t5", "bart", "bert"])
def test_one_text_alone_without_a_mask(name):
    """No mask at all, or the kernel's own flag for causal."""
    given = {key: value[:1] for key, value in inputs(name, "even").items()}
    with torch.inference_mode(), regard.watch(made(name)) as seen:
        made(name)(**given)
    for path, expected in eager(name, given).items():
        torch.testing.assert_close(seen[path].dense(), expected, atol=1e-5, rtol=0)
        assert seen[path].error < 1e-4


@pytest.mark.parametrize("name", ["gpt2", "llama", "mistral"])
@pytest.mark.parametrize("padding", ["even", "left"])
def test_a_generation_is_one_map_per_layer(name, padding):
    """Prefill and steps: the map of one forward pass over the whole text."""
    base = {"gpt2": "GPT2LMHeadModel", "llama": "LlamaForCausalLM", "mistral": "MistralForCausalLM"}[name]
    model = getattr(transformers, base)(copy.deepcopy(made(name).config))
    model.base_model.load_state_dict(made(name).state_dict())
    model.eval()
    prompt = inputs(name, padding)
    mask = prompt.get("attention_mask", real("even").long())
    options: dict[str, Any] = {"max_new_tokens": 6, "do_sample": False, "pad_token_id": 0, "eos_token_id": None}
    ids, mask = prompt["input_ids"], mask
    expected_text = model.generate(ids, attention_mask=mask, **options)
    with regard.watch(model) as seen:
        text = model.generate(ids, attention_mask=mask, **options)
    assert torch.equal(text, expected_text)
    whole = {"input_ids": text[:, :-1], "attention_mask": torch.cat([mask, torch.ones(3, 5, dtype=torch.long)], 1)}
    whole["position_ids"] = (whole["attention_mask"].cumsum(-1) - 1).clamp(min=0)
    expected = eager(name, whole, model.base_model)
    assert list(seen) == [f"{model.base_model_prefix}.{path}" for path in expected]
    for path, dense in expected.items():
        m = seen[f"{model.base_model_prefix}.{path}"]
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
    config = copy.deepcopy(made(name).config)
    config.decoder_start_token_id = 3
    model = sharpened(getattr(transformers, base)(config), KINDS[name].spread)
    given = inputs(name, "right")
    source = {key: given[key] for key in ("input_ids", "attention_mask")}
    options: dict[str, Any] = {"max_new_tokens": 6, "do_sample": False, "num_beams": 1}
    options |= {"pad_token_id": 0, "eos_token_id": None, "forced_eos_token_id": None}
    expected_text = model.generate(**source, **options)
    with regard.watch(model) as seen:
        text = model.generate(**source, **options)
    assert torch.equal(text, expected_text)
    prefix = "" if name == "t5" else "model."
    expected = eager(name, {**source, "decoder_input_ids": text[:, :-1]}, model)
    assert sorted(seen) == sorted(prefix + path for path in expected)
    for place in KINDS[name].places:
        m, dense = seen[prefix + place.path], expected[place.path]
        assert m.shape == dense.shape, place.path
        counted = real("right")[:, None, :, None] if place.rows == "source" else torch.tensor(True)
        assert ((m.dense() - dense) * counted).abs().max() <= 1e-5, place.path
        assert m.error < 1e-4
        assert seen.entry(prefix + place.path).kind == place.kind


def test_layers_that_share_their_weights_have_a_map_each():
    """ALBERT runs one module as often as it has layers."""
    config = transformers.AlbertConfig(**{**WIDTHS, "num_hidden_layers": 3}, embedding_size=16)
    model = sharpened(transformers.AlbertModel(config))
    given = inputs("bert", "right")
    with torch.no_grad(), regard.watch(model) as seen:
        model(**given)
    model.set_attn_implementation("eager")
    with torch.no_grad():
        expected = model(**given, output_attentions=True).attentions
    assert len(seen) == len(expected) == 3
    for path, dense in zip(seen, expected, strict=True):
        off = (seen[path].dense() - dense) * real("right")[:, None, :, None]
        assert off.abs().max() <= 1e-5
        assert seen[path].error < 1e-4


def test_two_passes_in_one_block():
    """The second is not taken for a continuation of the first; nothing is mixed."""
    model, first, second = made("bert"), inputs("bert", "right"), inputs("bert", "right", seed=1)
    second = {key: value[:2, :9] for key, value in second.items()}
    with torch.no_grad(), regard.watch(model) as seen:
        model(**first)
        model(**second)
    assert len(seen) == 4
    for given, suffix in ((first, ""), (second, "#1")):
        for path, expected in eager("bert", given).items():
            counted = given["attention_mask"].bool()[:, None, :, None]
            assert ((seen[path + suffix].dense() - expected) * counted).abs().max() <= 1e-5


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
    given = {"input_ids": inputs("bert", "even")["input_ids"]}
    with torch.no_grad():
        expected = model(**given).last_hidden_state
        with regard.watch(model) as seen:
            got = model(**given).last_hidden_state
    assert torch.equal(expected, got)
    assert len(seen) == 0
    notes = "\n".join(seen.notes)
    assert all(path.format(layer) in notes for layer in range(2))
    assert "by hand" in notes
    assert all(path.format(layer) in str(seen) for layer in range(2))
    assert "attn_implementation" in notes or "scaled_dot_product_attention" in notes  # what to change
    with pytest.raises(KeyError, match="by hand"):
        seen[path.format(0)]
