"""Models of transformers on regard give the numbers of their own eager code."""

from __future__ import annotations

import pytest
import torch

from integrations.tiny_models import CASES, HEADS, TinyModel, compare, logits, of_type, real_tokens

TOLERANCE = 2e-5
QUICK = ["mistral", "gemma2", "gpt_oss", "llama4_text", "deepseek_v3", "gemma3_text", "bert", "bart", "t5", "vit"]


def of_kinds(*kinds):
    """A test of every type of these kinds, the quick ones in the fast tier."""
    cases = [case for case in CASES if case.kind in kinds]
    marks = [[] if case.model_type in QUICK else pytest.mark.more for case in cases]
    params = [pytest.param(case, id=case.model_type, marks=m) for case, m in zip(cases, marks, strict=True)]
    return pytest.mark.parametrize("case", params)


@of_kinds(*HEADS)
def test_logits_are_those_of_the_eager_code(case):
    comparison = compare(case)
    assert comparison.num_calls
    assert comparison.largest_difference < TOLERANCE


def test_at_least_40_types_of_models_are_compared():
    assert len({case.model_type for case in CASES}) >= 40


@of_kinds("causal", "texts")
def test_greedy_ids_are_those_of_the_eager_code(case):
    model, inputs = case.build(), case.inputs("left" if case.kind == "causal" else "right")
    inputs.pop("decoder_input_ids", None)
    ids = {}
    for implementation in ("eager", "regard"):
        model.set_attn_implementation(implementation)
        ids[implementation] = model.generate(**inputs, max_new_tokens=8, do_sample=False, eos_token_id=None)
    assert torch.equal(ids["eager"], ids["regard"])


@pytest.mark.parametrize("cache", ["static", "dynamic"])
@pytest.mark.parametrize("model_type", ["llama", "mistral", "gemma3_text", "llama4_text", "gpt_oss"])
@pytest.mark.parametrize("padding", ["", "left"])
def test_every_cache_gives_the_ids_of_the_eager_code(model_type, cache, padding):
    case = of_type(model_type)
    model, inputs = case.build(), case.inputs(padding)
    ids = {}
    for implementation in ("eager", "regard"):
        model.set_attn_implementation(implementation)
        ids[implementation] = model.generate(
            **inputs, max_new_tokens=8, do_sample=False, eos_token_id=None, cache_implementation=cache
        )
    assert torch.equal(ids["eager"], ids["regard"])


@pytest.mark.parametrize("model_type", ["mistral", "gemma2", "gpt_oss", "llama4_text", "t5", "deepseek_v3"])
def test_gradients_are_those_of_the_eager_code(model_type):
    case = of_type(model_type)
    model, inputs = case.build(), case.inputs("right")
    gradients = {}
    for implementation in ("eager", "regard"):
        model.set_attn_implementation(implementation)
        model.zero_grad()
        found = model(**inputs).logits
        (found[real_tokens("right")] if case.kind == "causal" else found).square().mean().backward()
        gradients[implementation] = {name: p.grad for name, p in model.named_parameters() if p.grad is not None}
    assert gradients["eager"].keys() == gradients["regard"].keys()
    for name, expected in gradients["eager"].items():
        torch.testing.assert_close(gradients["regard"][name], expected, atol=2e-5, rtol=1e-3, msg=name)


def test_packed_documents_are_read_from_positions_that_begin_again():
    case = of_type("mistral")
    model, ids = case.build(), case.inputs()["input_ids"]
    positions = torch.tensor([[0, 1, 2, 3, 4, 5, 6, 0, 1, 2, 3, 4]]).expand(3, -1)
    packed = {"input_ids": ids, "position_ids": positions, "use_cache": False}
    expected = logits(model, "eager", packed)
    torch.testing.assert_close(logits(model, "regard", packed), expected, atol=TOLERANCE, rtol=0)
    # The second document alone.
    alone = logits(model, "regard", {"input_ids": ids[:, 7:]})
    torch.testing.assert_close(expected[:, 7:], alone, atol=TOLERANCE, rtol=0)


def test_a_dense_mask_that_is_handed_in_is_taken_as_it_is():
    case = of_type("llama")
    model, ids = case.build(), case.inputs()["input_ids"]
    every_other = (torch.arange(12)[:, None] - torch.arange(12)) % 2 == 0
    allowed = every_other[None, None].expand(3, 1, 12, 12)
    added = torch.zeros(allowed.shape).masked_fill(~allowed, torch.finfo(torch.float32).min)
    expected = logits(model, "eager", {"input_ids": ids, "attention_mask": added})
    for given in (allowed, added):
        found = logits(model, "regard", {"input_ids": ids, "attention_mask": given})
        torch.testing.assert_close(found, expected, atol=TOLERANCE, rtol=0)


def test_dropout_is_applied_in_training():
    case = of_type("llama")
    model = TinyModel("llama", "causal", config={"attention_dropout": 0.5}).build()
    model.set_attn_implementation("regard")
    inputs = case.inputs()
    without = model(**inputs).logits
    assert not torch.equal(model.train()(**inputs).logits, without)
