"""Edits in a generation, whatever cache holds the keys: the logits of every step are those of one pass by hand."""

import copy
from dataclasses import replace
from functools import cache, partial
from typing import Any

import torch
import transformers
from torch import Tensor

import regard
from grids import grid
from lens.interventions.by_hand import ByHand, Edit
from lens.interventions.comparing import assert_same, largest_difference
from lens.interventions.edits import KINDS as EDITS
from lens.interventions.edits import Kind, Site
from lens.model_cases import GPT2, GROUPED, MODEL_CASES, WIDTHS, ModelCase
from regard import positions

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

EXACT_BUCKETS = 16
"""Of 32 buckets, those of the distances 0 to 15 hold one distance each."""
QUERY, KEY = torch.arange(TOTAL)[:, None], torch.arange(TOTAL)


@cache
@torch.inference_mode(False)
def decoder(name: str) -> tuple[Any, ByHand]:
    """A language model and the same by hand, to be left as they are."""
    architecture, config = DECODERS[name]
    family = next(family for family in SPLIT.values() if architecture.startswith(family))
    model = ModelCase(family, config, []).build(architecture.removeprefix(family)).double()
    return model, ByHand(model)


def relative_bias() -> positions.T5Relative:
    """Raffel et al. 2020, section 2.1: a number for each bucket of distances."""
    bias = positions.T5Relative(4, bidirectional=False).double()
    torch.nn.init.normal_(bias.weight, generator=torch.Generator().manual_seed(1))
    return bias


def relative_by_hand(site: Site) -> Edit:
    by_distance = relative_bias().weight.detach()[(QUERY - KEY).clamp(0, EXACT_BUCKETS - 1)]
    return site.edit(bias=by_distance.permute(2, 0, 1))


LATER = [PROMPT_TOKENS, PROMPT_TOKENS + 1]
KINDS: dict[str, Kind] = {
    "zero": EDITS["zero"],
    "window": EDITS["mask"],
    "block a key": Kind(
        lambda at, s: at.heads[2:].block(keys=[PROMPT_TOKENS - 2]),
        lambda s: s.edit(heads=[2, 3], blocked=(None, [PROMPT_TOKENS - 2])),
    ),
    # Pairs of two tokens of the answer.
    "block a later query": Kind(
        lambda at, s: at.block([PROMPT_TOKENS + 2], LATER),
        lambda s: s.edit(blocked=([PROMPT_TOKENS + 2], LATER)),
    ),
    # For the last query of each call: of the prompt, and of each step.
    "block the key before": Kind(
        lambda at, s: at.block([-1], [-2]),
        lambda s: s.edit(allowed=~((QUERY >= PROMPT_TOKENS - 1) & (KEY == QUERY - 1))),
    ),
    "scale": Kind(
        lambda at, s: at.batch[1].heads[0].scale(0.5),
        lambda s: s.edit(batch=[1], heads=[0], factor=0.5),
    ),
    "alibi": EDITS["position bias"],
    "relative": Kind(lambda at, s: at.bias(relative_bias()), relative_by_hand),
    "several": Kind(
        lambda at, s: [KINDS[name].write(at, s) for name in ("window", "scale", "zero")],
        lambda s: [KINDS[name].by_hand(s) for name in ("window", "scale", "zero")],
    ),
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
            edits = KINDS[kind](edit[path], Site(path, (2, 4, TOTAL, TOTAL)))
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


def test_two_answers_to_one_cached_prompt_are_edited_at_the_same_positions():
    """The second one goes on from a copy of the prompt's cache; it is no window that dropped keys."""
    (model, by_hand), answers = decoder("llama"), ([11, 12, 13, 14, 15], [21, 22, 23, 24, 25])
    path = self_attention(model)
    with torch.no_grad():
        cached = model(PROMPT).past_key_values
        with regard.intervene(model) as edit:
            edit[path].block(queries=[PROMPT_TOKENS + 2], keys=[PROMPT_TOKENS + 1])
            got = [
                model(torch.tensor([answer] * 2), past_key_values=copy.deepcopy(cached)).logits for answer in answers
            ]
        blocked = Edit(path, blocked=([PROMPT_TOKENS + 2], [PROMPT_TOKENS + 1]))
        for answer, logits in zip(answers, got, strict=True):
            whole = torch.cat([PROMPT, torch.tensor([answer] * 2)], 1)
            assert_same(logits, by_hand(blocked, input_ids=whole).logits[:, PROMPT_TOKENS:], LIMIT)


@grid(name=["llama", "window that is full at once", "windows in some layers"], storage=["dynamic", "static"])
def test_a_text_in_chunks_has_the_logits_of_one_pass_by_hand(name, storage):
    (model, by_hand), text = decoder(name), PROMPT.view(1, 16)
    path = self_attention(model)
    caches = {"dynamic": transformers.DynamicCache, "static": partial(transformers.StaticCache, max_cache_len=20)}
    with torch.no_grad():
        storing = caches[storage](config=model.config)
        with regard.intervene(model) as edit:
            edit[path].block(queries=[6, 10, 13], keys=[5, 9, 12])
            got = [model(part, past_key_values=storing).logits for part in text.split([5, 3, 1, 4, 1, 2], 1)]
        expected = by_hand(Edit(path, blocked=([6, 10, 13], [5, 9, 12])), input_ids=text)
    assert_same(torch.cat(got, 1), expected.logits, LIMIT)


BEAMS = {"num_beams": 3, "num_return_sequences": 3, "output_scores": True}


@grid(name=["llama", "gpt2", "windows in some layers"], storage=["dynamic", "static"])
def test_beams_are_those_of_the_edited_model_by_hand(name, storage):
    model, by_hand = decoder(name)
    path = self_attention(model)
    options = {**GREEDY, **BEAMS, "cache_implementation": storage, "attention_mask": PADDINGS["left"]}
    with torch.no_grad():
        plain = model.generate(PROMPT, **options)
        with regard.intervene(model) as edit:
            edit[path].heads[1].ablate("zero")
            edit[path].heads[2].scale(-1.0)
            got = model.generate(PROMPT, **options)
        expected = by_hand.generate(
            Edit(path, heads=[1], zero=True), Edit(path, heads=[2], factor=-1.0), inputs=PROMPT, **options
        )
    assert torch.equal(got.sequences, expected.sequences)
    assert_same(got.sequences_scores, expected.sequences_scores, LIMIT)
    assert not torch.equal(got.sequences_scores, plain.sequences_scores)


def test_the_prompt_of_a_static_cache_takes_the_values_of_a_recording():
    """Which has as many keys as the prompt, and not the room behind them."""
    model, by_hand = decoder("llama")
    path, other = self_attention(model), PROMPT.flip(1)
    with torch.no_grad():
        with regard.watch(model) as recording:
            model(other)
        attended = by_hand.attended(input_ids=other)[path]
        with regard.intervene(model) as edit:
            edit[path].patch(recording, "values")
            cache = transformers.StaticCache(config=model.config, max_cache_len=20)
            got = model(PROMPT, past_key_values=cache).logits
        expected = by_hand(Edit(path, v=attended.v), input_ids=PROMPT).logits
    assert_same(got, expected, LIMIT)


CROSS: dict[str, str] = {
    "t5": "decoder.block.0.layer.1.EncDecAttention",
    "bart": "model.decoder.layers.0.encoder_attn",
}


@cache
@torch.inference_mode(False)
def translator(name: str) -> tuple[Any, ByHand]:
    """An encoder-decoder and the same by hand, to be left as they are."""
    case = MODEL_CASES[name]
    case = replace(case, config={**case.config, "decoder_start_token_id": 3})
    model = case.build("ForConditionalGeneration").double()
    return model, ByHand(model)


CROSS_KINDS = {
    "zero": KINDS["zero"],
    "scale": KINDS["scale"],
    "block keys": Kind(lambda at, s: at.block(keys=[1, -1]), lambda s: s.edit(blocked=(None, [1, -1]))),
    "block a step": Kind(lambda at, s: at.block([3], [0, 1]), lambda s: s.edit(blocked=([3], [0, 1]))),
}


@grid(name=CROSS, kind=CROSS_KINDS, storage=["dynamic", "static"])
def test_every_step_of_a_translation_has_the_logits_of_one_pass_by_hand(name, kind, storage):
    (model, by_hand), path = translator(name), CROSS[name]
    options = {**GREEDY, "num_beams": 1, "forced_eos_token_id": None, "cache_implementation": storage}
    source = {"input_ids": PROMPT, "attention_mask": PADDINGS["even"]}
    with torch.no_grad():
        with regard.intervene(model) as edit:
            edits = CROSS_KINDS[kind](edit[path], Site(path, (2, 4, TOTAL, PROMPT_TOKENS)))
            got = model.generate(**source, **options)
        one_pass = {**source, "decoder_input_ids": got.sequences[:, :-1], "use_cache": False}
        expected = by_hand(*edits, **one_pass).logits
        assert largest_difference(by_hand(**one_pass).logits, expected) > 1e-4
    assert_same(torch.stack(got.logits, 1), expected, LIMIT)
