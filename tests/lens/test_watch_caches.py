"""One generation is one map per attention, whatever cache of transformers holds the keys."""

from contextlib import nullcontext, suppress
from functools import cache

import pytest
import torch
import transformers

import regard
from grids import grid
from lens.model_cases import GROUPED, WIDTHS, ModelCase
from lens.watching import assert_map

LATENT = {**WIDTHS, "num_key_value_heads": 4, "q_lora_rank": 16, "kv_lora_rank": 16, "qk_nope_head_dim": 8}
LATENT |= {"qk_rope_head_dim": 4, "v_head_dim": 6, "first_k_dense_replace": 2, "n_routed_experts": 4, "n_group": 1}
LATENT |= {"topk_group": 1, "num_experts_per_tok": 2, "moe_intermediate_size": 8}
"""Multi-head latent attention: keys and values of two widths, made anew from the cache in each call."""

LAYER_TYPES = {"layer_types": ["sliding_attention", "full_attention"]}
CONFIGS = {
    "llama": ("Llama", GROUPED),
    "deepseek v2": ("DeepseekV2", LATENT),
    "deepseek v3": ("DeepseekV3", LATENT),
    "window that is full at once": ("Mistral", {**GROUPED, "sliding_window": 4}),
    "window that fills": ("Mistral", {**GROUPED, "sliding_window": 11}),
    "windows in some layers": ("Qwen3", {**GROUPED, "sliding_window": 11, "use_sliding_window": True, **LAYER_TYPES}),
}
KERNELS, STORAGES = ["sdpa", "eager"], ["static", "dynamic"]
PROMPT = torch.tensor([[5, 9, 7, 5, 9, 7, 5, 9], [9, 9, 9, 9, 8, 31, 7, 6]])
PADDINGS = {"even": torch.ones(2, 8, dtype=torch.long), "left": torch.tensor([[1] * 8, [0] * 3 + [1] * 5])}
GREEDY = {"do_sample": False, "pad_token_id": 0, "max_new_tokens": 6, "min_new_tokens": 6}


@cache
@torch.inference_mode(False)
def language_model(name, kernel):
    model = ModelCase(*CONFIGS[name], []).build("ForCausalLM")
    model.set_attn_implementation(kernel)
    return model


def maps_of(name, text, mask=None):
    """What the eager model gives out in one pass over a text."""
    mask = torch.ones_like(text) if mask is None else mask
    positions = (mask.cumsum(-1) - 1).clamp(min=0)
    with torch.no_grad():
        model = language_model(name, "eager")
        return model(text, attention_mask=mask, position_ids=positions, output_attentions=True).attentions


@grid(name=["llama", "deepseek v3", "window that fills"], kernel=KERNELS, storage=STORAGES, padding=PADDINGS)
def test_a_generation_is_the_map_of_one_pass(name, kernel, storage, padding):
    model, mask = language_model(name, kernel), PADDINGS[padding]
    options = {**GREEDY, "attention_mask": mask, "cache_implementation": storage}
    expected = model.generate(PROMPT, **options)
    with regard.watch(model) as recording:
        text = model.generate(PROMPT, **options)
    assert torch.equal(text, expected)
    assert not recording.notes
    mask = torch.cat([mask, torch.ones(2, 5, dtype=torch.long)], 1)
    for m, expected in zip(recording.values(), maps_of(name, text[:, :-1], mask), strict=True):
        assert_map(m, expected, mask.bool())


@pytest.mark.more
@grid(name=CONFIGS, kernel=KERNELS, storage=STORAGES)
def test_beams_in_every_cache(name, kernel, storage):
    """Each row of the map is one beam from its first token on: the texts that are returned are among them."""
    model = language_model(name, kernel)
    with regard.watch(model) as recording:
        text = model.generate(PROMPT[:1], **GREEDY, num_beams=3, num_return_sequences=3, cache_implementation=storage)
    for m, expected in zip(recording.values(), maps_of(name, text[:, :-1].unique(dim=0)), strict=True):
        assert m.verified
        differences = (m.dense()[None] - expected[:, None]).abs().amax((2, 3, 4))
        assert (differences.amin(1) < 1e-5).all()


@pytest.mark.more
@grid(name=CONFIGS, kernel=KERNELS)
def test_chunks_and_then_tokens_in_a_static_cache(name, kernel):
    model, text = language_model(name, kernel), PROMPT.view(1, 16)
    with torch.no_grad(), regard.watch(model) as recording:
        storage = transformers.StaticCache(config=model.config, max_cache_len=20)
        for part in text.split([5, 3, 1, 1, 1, 1, 1, 1, 1, 1], 1):
            model(part, past_key_values=storage)
    for m, expected in zip(recording.values(), maps_of(name, text), strict=True):
        assert_map(m, expected)


@pytest.mark.more
@grid(name=CONFIGS, kernel=KERNELS)
def test_a_second_text_in_one_static_cache_has_a_map_of_its_own(name, kernel):
    """What it wrote over, the first map refuses to show."""
    model, texts = language_model(name, kernel), PROMPT.split(1)
    with torch.no_grad(), regard.watch(model) as recording:
        storage = transformers.StaticCache(config=model.config, max_cache_len=20)
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
    """The calls that were watched are one map, over all keys."""
    model, text = language_model("deepseek v3", "sdpa"), PROMPT[:1]
    storage = transformers.StaticCache(config=model.config, max_cache_len=20)
    with torch.no_grad():
        model(text[:, :5], past_key_values=storage)
        with regard.watch(model) as recording:
            for part in text[:, 5:].split(1, 1):
                model(part, past_key_values=storage)
    for m, expected in zip(recording.values(), maps_of("deepseek v3", text), strict=True):
        assert_map(m, expected[:, :, 5:])
