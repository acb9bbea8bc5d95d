"""Edits in a generation, whatever cache holds the keys: the logits of every step are those of one pass by hand."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from functools import cache
from typing import Any

import torch
from torch import Tensor

import regard
from grids import grid
from lens.interventions.by_hand import ByHand, Edit
from lens.interventions.comparing import assert_same, largest_difference
from lens.model_cases import GPT2, GROUPED, MODEL_CASES, WIDTHS, ModelCase
from regard import mask, positions

PROMPT = torch.tensor([[5, 9, 7, 5, 9, 7, 5, 9], [9, 9, 9, 9, 8, 31, 7, 6]])
PROMPT_TOKENS, NEW = 8, 6
LIMIT = 1e-6
"""Relative: generations round logits to float32."""
TOTAL = PROMPT_TOKENS + NEW - 1
"""The tokens that the model reads: all but the last one."""
PADDINGS = {"even": torch.ones(2, 8, dtype=torch.long), "left": torch.tensor([[1] * 8, [0] * 3 + [1] * 5])}
GREEDY: dict[str, Any] = {"do_sample": False, "pad_token_id": 0, "max_new_tokens": NEW, "min_new_tokens": NEW}
GREEDY |= {"eos_token_id": None, "output_logits": True, "return_dict_in_generate": True}
LAYER_TYPES = {"layer_types": ["sliding_attention", "full_attention"]}
DECODERS = {
    "llama": ("LlamaForCausalLM", GROUPED),
    "gpt2": ("GPT2LMHeadModel", GPT2),
    "one head of keys for each": ("LlamaForCausalLM", WIDTHS),
    "window that is full at once": ("MistralForCausalLM", {**GROUPED, "sliding_window": 4}),
    "window that fills": ("MistralForCausalLM", {**GROUPED, "sliding_window": 11}),
    "windows in some layers": (
        "Qwen3ForCausalLM",
        {**GROUPED, "sliding_window": 6, "use_sliding_window": True, **LAYER_TYPES},
    ),
}
SPLIT = {"llama": "Llama", "gpt2": "GPT2", "mistral": "Mistral", "qwen3": "Qwen3"}

QUERY, KEY = torch.arange(TOTAL)[:, None], torch.arange(TOTAL)


@cache
@torch.inference_mode(False)
def decoder(name: str) -> tuple[Any, ByHand]:
    """A language model and the same by hand, to be left as they are."""
    architecture, config = DECODERS[name]
    family = next(family for family in SPLIT.values() if architecture.startswith(family))
    model = ModelCase(family, config, []).build(architecture.removeprefix(family)).double()
    return model, ByHand(model)


def _zero(at: Any, path: str) -> list[Edit]:
    at.heads[1].ablate("zero")
    return [Edit(path, heads=[1], zero=True)]


def _block_a_key(at: Any, path: str) -> list[Edit]:
    at.heads[2:].block(keys=[PROMPT_TOKENS - 2])
    return [Edit(path, heads=[2, 3], blocked=(None, [PROMPT_TOKENS - 2]))]


def _block_a_later_query(at: Any, path: str) -> list[Edit]:
    """A pair of two tokens of the answer."""
    at.block(queries=[PROMPT_TOKENS + 2], keys=[PROMPT_TOKENS, PROMPT_TOKENS + 1])
    return [Edit(path, blocked=([PROMPT_TOKENS + 2], [PROMPT_TOKENS, PROMPT_TOKENS + 1]))]


def _block_the_key_before(at: Any, path: str) -> list[Edit]:
    """The last query of each call: of the prompt, and of each step."""
    at.block(queries=[-1], keys=[-2])
    return [Edit(path, allowed=~((QUERY >= PROMPT_TOKENS - 1) & (KEY == QUERY - 1)))]


def _window(at: Any, path: str) -> list[Edit]:
    at.mask(mask.window(3))
    return [Edit(path, allowed=(KEY <= QUERY) & (QUERY - KEY < 3))]


def _scale(at: Any, path: str) -> list[Edit]:
    at.batch[1].heads[0].scale(0.5)
    return [Edit(path, batch=[1], heads=[0], factor=0.5)]


def _alibi(at: Any, path: str) -> list[Edit]:
    """Press et al. 2022, section 3."""
    at.bias(positions.ALiBi(4))
    slopes = torch.tensor([2.0 ** (-2 * (head + 1)) for head in range(4)], dtype=torch.float64)
    return [Edit(path, bias=-slopes[:, None, None] * (QUERY - KEY).abs())]


def _several(at: Any, path: str) -> list[Edit]:
    return [edit for function in (_window, _scale, _zero) for edit in function(at, path)]


KINDS: dict[str, Callable[[Any, str], list[Edit]]] = {
    function.__name__.strip("_").replace("_", " "): function
    for function in (
        _zero,
        _block_a_key,
        _block_a_later_query,
        _block_the_key_before,
        _window,
        _scale,
        _alibi,
        _several,
    )
}


def self_attention(model: Any) -> str:
    """The path of the first layer's attention."""
    return next(path for path, _ in model.named_modules() if path.endswith(("self_attn", "h.0.attn")))


def inputs_of_pass(text: Tensor, padding: Tensor) -> dict[str, Any]:
    """What one pass over a generated text reads."""
    padding = torch.cat([padding, torch.ones(2, NEW - 1, dtype=torch.long)], 1)
    places = (padding.cumsum(-1) - 1).clamp(min=0)
    return {"input_ids": text[:, :-1], "attention_mask": padding, "position_ids": places, "use_cache": False}


@grid(name=DECODERS, kind=KINDS, storage=["dynamic", "static"], padding=PADDINGS)
def test_every_step_has_the_logits_of_one_pass_by_hand(name, kind, storage, padding):
    model, by_hand = decoder(name)
    options = {**GREEDY, "attention_mask": PADDINGS[padding], "cache_implementation": storage}
    path = self_attention(model)
    with torch.no_grad():
        with regard.intervene(model) as edit:
            edits = KINDS[kind](edit[path], path)
            got = model.generate(PROMPT, **options)
        one_pass = inputs_of_pass(got.sequences, PADDINGS[padding])
        expected = by_hand(*edits, **one_pass).logits[:, PROMPT_TOKENS - 1 :]
        assert largest_difference(by_hand(**one_pass).logits[:, PROMPT_TOKENS - 1 :], expected) > 1e-4
    assert_same(torch.stack(got.logits, 1), expected, LIMIT)


def test_a_patched_token_of_the_prompt_is_seen_by_every_step():
    """The recording has the prompt only; so the steps compute their own outputs."""
    model, by_hand = decoder("llama")
    path, other = self_attention(model), PROMPT.flip(1)
    with torch.no_grad():
        with regard.watch(model) as recording:
            model(other)
        (attended,) = [call for at, call in by_hand.attended(input_ids=other).items() if at == path]
        with regard.intervene(model) as edit:
            edit[path].heads[[0, 2]].patch(recording, "output", queries=[2, 5])
            got = model.generate(PROMPT, **GREEDY, attention_mask=PADDINGS["even"])
        output = torch.cat([attended.output, attended.output[:, :, :1].expand(-1, -1, NEW - 1, -1)], 2)
        edits = [Edit(path, heads=[0, 2], output=output, rows=[2, 5])]
        expected = by_hand(*edits, **inputs_of_pass(got.sequences, PADDINGS["even"])).logits[:, PROMPT_TOKENS - 1 :]
    assert_same(torch.stack(got.logits, 1), expected, LIMIT)


CROSS = {"t5": ("decoder.block.0.layer.1.EncDecAttention", "ForConditionalGeneration")}
CROSS |= {"bart": ("model.decoder.layers.0.encoder_attn", "ForConditionalGeneration")}


@cache
@torch.inference_mode(False)
def translator(name: str) -> tuple[Any, ByHand]:
    """An encoder-decoder and the same by hand, to be left as they are."""
    case = MODEL_CASES[name]
    model = replace(case, config={**case.config, "decoder_start_token_id": 3}).build(CROSS[name][1]).double()
    return model, ByHand(model)


CROSS_EDITS: dict[str, Callable[[Any], dict[str, Any]]] = {
    "zero": lambda at: {"zero": True, "heads": [1]} if at.heads[1].ablate("zero") is None else {},
    "block keys": lambda at: {"blocked": (None, [1, -1])} if at.block(keys=[1, -1]) is None else {},
    "block a step": lambda at: {"blocked": ([3], [0, 1])} if at.block(queries=[3], keys=[0, 1]) is None else {},
    "scale": lambda at: {"factor": 0.3} if at.scale(0.3) is None else {},
}


@grid(name=CROSS, kind=CROSS_EDITS, storage=["dynamic", "static"])
def test_every_step_of_a_translation_has_the_logits_of_one_pass_by_hand(name, kind, storage):
    (model, by_hand), path = translator(name), CROSS[name][0]
    options = {**GREEDY, "num_beams": 1, "forced_eos_token_id": None, "cache_implementation": storage}
    source = {"input_ids": PROMPT, "attention_mask": PADDINGS["even"]}
    with torch.no_grad():
        with regard.intervene(model) as edit:
            fields = CROSS_EDITS[kind](edit[path])
            got = model.generate(**source, **options)
        one_pass = {**source, "decoder_input_ids": got.sequences[:, :-1], "use_cache": False}
        expected = by_hand(Edit(path, **fields), **one_pass).logits
        assert largest_difference(by_hand(**one_pass).logits, expected) > 1e-4
    assert_same(torch.stack(got.logits, 1), expected, LIMIT)
