"""One generation is one map per attention, however the model is called and whatever cache holds the keys."""

import copy
from contextlib import nullcontext, suppress
from dataclasses import replace
from functools import cache, partial
from itertools import product
from typing import Any

import pytest
import torch
import transformers
from torch.nn.functional import scaled_dot_product_attention as sdpa

import regard
from grids import grid
from lens.explained import pretrained
from lens.model_cases import GPT2, GROUPED, LATENT, MODEL_CASES, ModelCase, eager_maps, make_inputs, token_mask
from lens.watching import FunctionModel, FunctionModule, assert_map, definition, random_qkv
from regard import mask

LAYER_TYPES = {"layer_types": ["sliding_attention", "full_attention"]}
CONFIGS = {
    "gpt2": ("GPT2", GPT2),
    "llama": ("Llama", GROUPED),
    "deepseek v2": ("DeepseekV2", LATENT),
    "deepseek v3": ("DeepseekV3", LATENT),
    "window that is full at once": ("Mistral", {**GROUPED, "sliding_window": 4}),
    "window that fills": ("Mistral", {**GROUPED, "sliding_window": 11}),
    "windows in some layers": ("Qwen3", {**GROUPED, "sliding_window": 11, "use_sliding_window": True, **LAYER_TYPES}),
}
KERNELS, STORAGES = ["sdpa", "eager"], ["static", "dynamic"]
CACHES = {"dynamic": transformers.DynamicCache, "static": partial(transformers.StaticCache, max_cache_len=20)}
FAST = [
    ("gpt2", "sdpa", "dynamic"),
    ("gpt2", "eager", "static"),
    ("llama", "sdpa", "static"),
    ("llama", "eager", "dynamic"),
]
every_cache = pytest.mark.parametrize(
    ("name", "kernel", "storage"),
    [
        pytest.param(*case, marks=() if case in FAST else pytest.mark.more)
        for case in product(CONFIGS, KERNELS, STORAGES)
    ],
)
PROMPT = torch.tensor([[5, 9, 7, 5, 9, 7, 5, 9], [9, 9, 9, 9, 8, 31, 7, 6]])
IDS = PROMPT[:1]
PADDINGS = {"even": torch.ones(2, 8, dtype=torch.long), "left": torch.tensor([[1] * 8, [0] * 3 + [1] * 5])}
NEW = 6
GREEDY: dict[str, Any] = {"do_sample": False, "pad_token_id": 0, "max_new_tokens": NEW, "min_new_tokens": NEW}


@cache
@torch.inference_mode(False)  # whatever the mode of the first test that asks for it
def language_model(name, kernel="sdpa"):
    """To be left as it is."""
    model = ModelCase(*CONFIGS[name], []).build("LMHeadModel" if name == "gpt2" else "ForCausalLM")
    model.set_attn_implementation(kernel)
    return model


def watch_generation(model, ids=IDS, **options):
    """The recording and the text, which is that of an unwatched generation."""
    expected = model.generate(ids, **{**GREEDY, **options})
    with regard.watch(model) as recording:
        text = model.generate(ids, **{**GREEDY, **options})
    assert torch.equal(text, expected)
    assert not recording.notes
    return recording, text


def maps_of(name, text, mask=None):
    """What the eager model gives out in one pass over a text."""
    mask = torch.ones_like(text) if mask is None else mask
    positions = (mask.cumsum(-1) - 1).clamp(min=0)
    with torch.no_grad():
        model = language_model(name, "eager")
        return model(text, attention_mask=mask, position_ids=positions, output_attentions=True).attentions


def assert_in_order(recording, expected, rows=None):
    for m, own in zip(recording.values(), expected, strict=True):
        assert_map(m, own, rows)


def pass_of(recording, number):
    """The maps of one of several passes, by path."""
    return {path: m for path, m in recording.items() if path.partition("#")[2] == ("" if not number else str(number))}


def assert_beams(m, expected):
    """Each row of the map is one beam from its first token on: the texts that are returned are among them."""
    assert m.verified
    differences = (m.dense()[None] - expected[:, None]).abs().amax((2, 3, 4))
    assert (differences.amin(1) < 1e-5).all()


@grid(
    name=["gpt2", "llama", "deepseek v3", "window that is full at once", "window that fills"],
    kernel=KERNELS,
    storage=STORAGES,
    padding=PADDINGS,
)
def test_a_generation_is_the_map_of_one_pass(name, kernel, storage, padding):
    mask = PADDINGS[padding]
    options = {"attention_mask": mask, "cache_implementation": storage}
    recording, text = watch_generation(language_model(name, kernel), PROMPT, **options)
    mask = torch.cat([mask, torch.ones(2, NEW - 1, dtype=torch.long)], 1)
    assert_in_order(recording, maps_of(name, text[:, :-1], mask), mask.bool())


@every_cache
def test_beams_that_change_places_are_followed(name, kernel, storage):
    options = {"num_beams": 4, "num_return_sequences": 4, "cache_implementation": storage}
    recording, text = watch_generation(language_model(name, kernel), IDS[:, :3], **options)
    for m, expected in zip(recording.values(), maps_of(name, text[:, :-1].unique(dim=0)), strict=True):
        assert_beams(m, expected)


@every_cache
def test_a_prompt_in_chunks_and_a_second_turn(name, kernel, storage):
    model, text = language_model(name, kernel), PROMPT.view(1, 16)
    with torch.no_grad(), regard.watch(model) as recording:
        storing = CACHES[storage](config=model.config)
        for chunk in text.split([5, 1, 1, 4, *[1] * 5], 1):
            model(chunk, past_key_values=storing)
    assert_in_order(recording, maps_of(name, text))


def test_keys_that_are_computed_anew_from_latents_are_those_of_the_call_before():
    """With few tokens the product that makes them rounds otherwise than with more."""
    model, text = language_model("deepseek v3", "sdpa"), PROMPT.view(1, 16)
    with torch.no_grad(), regard.watch(model) as recording:
        storing = CACHES["dynamic"](config=model.config)
        for chunk in text.split([1, 1, 14], 1):
            model(chunk, past_key_values=storing)
    assert_in_order(recording, maps_of("deepseek v3", text))


@pytest.mark.more
@grid(name=CONFIGS, kernel=KERNELS)
def test_a_second_text_in_one_static_cache_has_a_map_of_its_own(name, kernel):
    """What it wrote over, the first map refuses to show."""
    model, texts = language_model(name, kernel), PROMPT.split(1)
    with torch.no_grad(), regard.watch(model) as recording:
        storage = CACHES["static"](config=model.config)
        for text in texts:
            storage.reset()
            for part in text.split([6, 1, 1], 1):
                model(part, past_key_values=storage)
    assert [path.count("#") for path in recording] == [0, 0, 1, 1]
    for path, expected in zip(recording, [m for text in texts for m in maps_of(name, text)], strict=True):
        with suppress(RuntimeError) if "#" not in path else nullcontext():
            assert_map(recording[path], expected)


def test_a_quantized_cache_is_noted():
    """Its keys are not those that the prompt computed, so the steps are no part of the prompt's map."""
    model = language_model("llama", "sdpa")
    options = {**GREEDY, "cache_implementation": "quantized", "cache_config": {"backend": "fp8"}}
    with regard.watch(model) as recording:
        model.generate(PROMPT, **options)
    assert [m.shape[2:] for m in recording.values()] == [(8, 8), (8, 8), (5, 13), (5, 13)]
    assert all(m.verified for m in recording.values())
    (note,) = recording.notes
    assert "a quantized cache" in note


def test_a_cache_that_was_filled_before_is_continued_from_there():
    model, text = language_model("deepseek v3", "sdpa"), IDS
    storage = CACHES["static"](config=model.config)
    with torch.no_grad():
        model(text[:, :5], past_key_values=storage)
        with regard.watch(model) as recording:
            for part in text[:, 5:].split(1, 1):
                model(part, past_key_values=storage)
    assert_in_order(recording, [expected[:, :, 5:] for expected in maps_of("deepseek v3", text)])


HEADS = {"t5": "ForConditionalGeneration", "bart": "ForConditionalGeneration", "marian": "MTModel"}


NO_END = {"eos_token_id": None, "forced_eos_token_id": None, "min_new_tokens": None, "num_beams": 1}


@grid(name=HEADS, kernel=["sdpa", "eager"])
def test_a_generation_of_an_encoder_decoder(name, kernel):
    """The encoder's maps once; the decoder's and the cross-attention's rows of every step, one below the other."""
    case = MODEL_CASES[name]
    model = replace(case, config={**case.config, "decoder_start_token_id": 3}).build(HEADS[name])
    model.set_attn_implementation(kernel)
    source = {key: make_inputs(name, "right")[key] for key in ("input_ids", "attention_mask")}
    ids = source.pop("input_ids")
    recording, text = watch_generation(model, ids, **source, **NO_END)
    prefix = "" if name == "t5" else "model."
    maps = eager_maps(name, {"input_ids": ids, **source, "decoder_input_ids": text[:, :-1]}, model)
    assert sorted(recording) == sorted(prefix + path for path in maps)
    for spec in case.attentions:
        rows = token_mask("right") if spec.rows == "source" else None
        assert_map(recording[prefix + spec.path], maps[spec.path], rows)
        assert recording.entry(prefix + spec.path).kind == spec.kind


def test_beams_of_a_translation():
    """The cross-attention's rows follow the decoder's beams, whose source has the same keys."""
    model = MODEL_CASES["bart"].build("ForConditionalGeneration")
    recording, text = watch_generation(model, num_beams=4, num_return_sequences=4, decoder_start_token_id=3)
    read = text[:, :-1].unique(dim=0)
    source = {"input_ids": IDS.expand(len(read), -1), "decoder_input_ids": read}
    for path, expected in eager_maps("bart", source, model).items():
        m = recording[f"model.{path}"]
        assert m.verified
        if m.shape[2:] == expected.shape[2:]:
            assert_beams(m, expected)
    assert len(recording) == 6


each_model = pytest.mark.parametrize("name", ["gpt2", "llama"])


@each_model
def test_guessed_tokens_that_were_refused_are_no_rows(name):
    """Prompt lookup: several tokens at once, of which the cache keeps those that are right."""
    recording, text = watch_generation(
        language_model(name), prompt_lookup_num_tokens=3, max_new_tokens=8, min_new_tokens=8
    )
    for m, expected in zip(recording.values(), maps_of(name, text), strict=True):
        assert m.shape[2] >= text.shape[1] - 1
        part = min(m.shape[2], text.shape[1])
        torch.testing.assert_close(m.dense()[:, :, :part, :part], expected[:, :, :part, :part], atol=1e-5, rtol=0)


@each_model
def test_an_assistants_layers_are_not_the_models(name):
    model, assistant = language_model(name), copy.deepcopy(language_model(name))
    with torch.no_grad():
        for p in assistant.parameters():
            p.mul_(1.01)
    recording, _ = watch_generation(model, assistant_model=assistant)
    assert len(recording) == 2
    assert all(m.verified for m in recording.values())


@each_model
def test_several_answers_to_one_prompt(name):
    """On copies of its cache: the first continues the prompt's map, each other has a map of its own."""
    model, answers = language_model(name), torch.tensor([[[11, 12, 13]], [[21, 22, 23]], [[31, 12, 14]]])
    with torch.no_grad(), regard.watch(model) as recording:
        prompt = model(IDS, use_cache=True).past_key_values
        caches = [copy.deepcopy(prompt) for _ in answers]
        for step in range(3):  # in turns
            for answer, storing in zip(answers, caches, strict=True):
                model(answer[:, step : step + 1], past_key_values=storing)
    first, *others = (maps_of(name, torch.cat([IDS, answer], 1)) for answer in answers)
    for number, own in enumerate([first, *([m[:, :, -3:] for m in each] for each in others)]):
        assert_in_order(pass_of(recording, number), own)
    assert len(recording) == 6


@each_model
def test_classifier_free_guidance_is_two_texts(name):
    other = IDS.flip(1)
    recording, text = watch_generation(language_model(name), guidance_scale=1.5, negative_prompt_ids=other)
    assert_in_order(pass_of(recording, 0), maps_of(name, text[:, :-1]))
    assert_in_order(pass_of(recording, 1), maps_of(name, torch.cat([other, text[:, 8:-1]], 1)))
    assert len(recording) == 4


def test_another_text_of_the_same_length_and_end_is_not_stitched_on():
    """Keys of layer 0 depend on token and position only, so the last ones of two texts can be equal.

    The third call continues the first text.
    """
    model, a, b = language_model("gpt2"), torch.tensor([[1, 2, 3, 4, 9]]), torch.tensor([[5, 6, 7, 8, 9]])
    with torch.no_grad(), regard.watch(model) as recording:
        first = model(a, use_cache=True)
        model(b)
        model(torch.tensor([[11]]), past_key_values=first.past_key_values)
    assert_in_order(pass_of(recording, 0), maps_of("gpt2", torch.tensor([[1, 2, 3, 4, 9, 11]])))
    assert_in_order(pass_of(recording, 1), maps_of("gpt2", b))
    assert len(recording) == 4


def test_heads_of_a_generation_with_folded_heads():
    """transformers folds heads that share keys into the queries of one token, where there is padding."""
    model = language_model("llama")
    model_inputs = {**make_inputs("llama", "left"), "max_new_tokens": 4, "min_new_tokens": 4, "do_sample": False}

    def generate(**options):
        with torch.no_grad(), regard.watch(model, **options) as recording:
            model.generate(**model_inputs, pad_token_id=0)
        return recording

    whole, some = generate(), generate(heads=[3, 1])
    for path, m in some.items():
        assert whole[path].shape == (3, 4, 15, 15)
        assert torch.equal(m.dense(), whole[path].dense()[:, [3, 1]])
        assert m.error < 1e-4
    steps = generate(keep="summary")
    assert [m.shape[1:3] for m in steps.values()] == [(4, 12)] * 2 + [(4, 1)] * 6
    assert steps.notes == ()


def test_keys_that_were_rewritten_between_two_calls_are_not_continued():
    """In a buffer made beforehand, of which each call reads what is written."""
    q, k, v = random_qkv(queries=16, keys=16)
    model = FunctionModel()
    with torch.no_grad(), regard.watch(model) as recording:
        model(q[:, :, :5], k[:, :, :5], v[:, :, :5])
        k[:, :, :5] = 1
        model(q[:, :, 5:6], k[:, :, :6], v[:, :, :6])
    assert list(recording) == ["attn", "attn#1"]
    assert_map(recording["attn#1"], definition(q[:, :, 5:6], k[:, :, :6]))
    with pytest.raises(RuntimeError, match="changed in place"):
        recording["attn"].dense()


def test_a_row_that_the_mask_hides_from_every_key_is_uniform_in_a_generation_too():
    """The lowest number of the dtype on every key: the scores are lost in the sum."""
    q, k, v = random_qkv(queries=4, keys=4)
    mask = torch.zeros(3, 3).masked_fill(torch.ones(3, 3).triu(1).bool(), torch.finfo(torch.float32).min)
    mask[0] = torch.finfo(torch.float32).min
    model = FunctionModel()
    with torch.no_grad(), regard.watch(model) as recording:
        model(q[:, :, :3], k[:, :, :3], v[:, :, :3], mask)
        model(q[:, :, 3:], k, v, torch.zeros(1, 4))
    expected = definition(q, k, allowed=torch.ones(4, 4).tril().bool())
    expected[:, :, 0] = torch.tensor([1 / 3, 1 / 3, 1 / 3, 0])
    assert list(recording) == ["attn"]
    assert_map(recording["attn"], expected)


def test_a_text_that_the_mask_hides_whole_is_uniform_in_a_generation_too():
    """One row of the mask for all queries, as transformers expands it: the second text is all padding."""
    q, k, v = random_qkv(queries=4, keys=4)
    hidden = torch.zeros(2, 1, 1, 4)
    hidden[1] = torch.finfo(torch.float32).min
    model = FunctionModel()
    with torch.no_grad(), regard.watch(model) as recording:
        model(q[:, :, :3], k[:, :, :3], v[:, :, :3], hidden[..., :3].expand(2, 1, 3, 3))
        model(q[:, :, 3:], k, v, hidden)
    m = recording["attn"].dense()
    torch.testing.assert_close(m[1, :, 3], torch.full((4, 4), 0.25))
    torch.testing.assert_close(m[1, :, 0], torch.tensor([1 / 3, 1 / 3, 1 / 3, 0]).expand(4, 4))


def test_two_passes_over_the_keys_of_one_source():
    q, k, v = random_qkv()
    model = FunctionModule(lambda q: model.cross_attn(q, k, v))
    model.cross_attn = FunctionModule(sdpa)
    with regard.watch(model) as recording:
        model(q)
        model(q.flip(2))
    assert list(recording) == ["cross_attn", "cross_attn#1"]
    assert_map(recording["cross_attn#1"], definition(q.flip(2), k))


@pytest.mark.parametrize("family", ["gpt2", "llama", "gemma2"])
@pytest.mark.parametrize("strategy", [regard.Greedy(), regard.Sample(seed=1)], ids=["greedy", "sample"])
def test_a_generation_of_regard_itself_is_one_map(family, strategy):
    """Its decoding steps call no module of the model, so under `watch` the model's own forward takes their place."""
    model = pretrained(family).model
    expected = regard.generate(model, IDS, max_new_tokens=8, strategy=strategy)
    with regard.watch(model) as recording:
        text = regard.generate(model, IDS, max_new_tokens=8, strategy=strategy)
    assert torch.equal(text, expected)
    assert not recording.notes
    with regard.watch(model) as at_once, torch.inference_mode():
        model(text[:, :-1])
    assert list(recording) == list(at_once)
    for path, m in at_once.items():
        assert (recording[path].dense() - m.dense()).abs().max() < 1e-5


def test_the_beams_of_regard_itself_are_a_map_behind_that_of_their_prompt():
    """The prompt is read once for all beams; then each beam is a row."""
    model, beams = pretrained("llama").model, regard.Beam(num_beams=2)
    with regard.watch(model) as recording:
        text = regard.generate(model, IDS, max_new_tokens=8, strategy=beams)
    assert not recording.notes
    with regard.watch(model) as at_once, torch.inference_mode():
        model(text[:, :-1])
    prompt = IDS.shape[1]
    for path, expected in at_once.items():
        rows, steps = expected.dense().split([prompt, text.shape[1] - 1 - prompt], dim=2)
        assert (recording[path].dense() - rows[..., :prompt]).abs().max() < 1e-5
        differences = (recording[f"{path}#1"].dense() - steps).abs().amax((1, 2, 3))
        assert differences.shape == (2,)
        assert differences.min() < 1e-5


def test_a_stream_is_recorded_from_where_the_watching_begins():
    model = pretrained("llama").model
    pieces = regard.stream(model, IDS[0].tolist(), max_new_tokens=8)
    first = [next(pieces) for _ in range(3)]
    with regard.watch(model) as recording:
        rest = list(pieces)
    assert first + rest == regard.generate(model, IDS, max_new_tokens=8)[0, IDS.shape[1] :].tolist()
    (path, m), *_ = recording.items()
    assert (path, m.shape[2]) == ("blocks.0.attention", len(rest))


def watch_two_calls(prompt, step):
    """The recording of an attention that reads five tokens with one function, then the next one with another."""
    q, k, v = random_qkv(queries=6, keys=6)
    model = FunctionModule(lambda attend, n, m: model.attn(attend, q[:, :, n:m], k[:, :, :m], v[:, :, :m]))
    model.attn = FunctionModule(lambda attend, *qkv: attend(*qkv))
    with regard.watch(model) as recording:
        model(prompt, 0, 5)
        model(step, 5, 6)
    return recording


@pytest.mark.parametrize("options", [{"scale": 0.5}, {"softcap": 2.0}], ids=str)
def test_a_step_with_another_scale_or_softcap_is_a_map_of_its_own(options):
    recording = watch_two_calls(partial(regard.attend, mask=mask.causal()), partial(regard.attend, **options))
    assert list(recording) == ["attn", "attn#1"]
    assert all(m.verified for m in recording.values())
    assert not recording.notes


def test_a_scale_that_is_written_out_is_the_default():
    recording = watch_two_calls(partial(sdpa, is_causal=True), partial(sdpa, scale=8**-0.5))
    assert recording["attn"].shape == (2, 4, 6, 6)


def test_a_generation_has_the_kernel_of_its_prompt():
    recording = watch_two_calls(partial(sdpa, is_causal=True), regard.attend)
    assert recording["attn"].kernel == recording.entry("attn").kernel == "sdpa"
