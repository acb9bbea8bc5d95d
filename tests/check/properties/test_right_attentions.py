"""No property is violated by attentions that are right: those of the bank, and whole models of transformers."""

from __future__ import annotations

from typing import Any

import pytest
import torch
import transformers
from torch import nn

from bank import Entry, entries
from regard.check.conclusion import analyses_of
from regard.check.properties.analyze import analyze
from regard.check.sandbox.torch_settings import UserSettings
from regard.check.target import Invocation, Stream

pytestmark = pytest.mark.usefixtures("as_a_user_runs_it")

FEW = {
    "right_function_masks.fills_minus_infinity",
    "right_designs.RotaryByPairs",
    "right_designs.one_in_the_denominator",
    "right_designs.softcapped",
    "right_function_masks.causal_for_the_first_queries",
    "right_function_masks.ones_are_kept",
    "right_functions.baddbmm_attention",
    "right_functions.fused",
    "right_layouts.tokens_first_with_mask",
    "right_blocks.FusedCausalBlock",
    "LlamaModel",
}
"""What is judged in the fast tier."""
RIGHT = [each for each in entries() if each.verdict != "wrong" and not each.what.__module__.endswith("positions")]


def marks(name: str) -> list[pytest.MarkDecorator]:
    return [] if name in FEW else [pytest.mark.more]


@pytest.mark.more
@pytest.mark.parametrize("entry", [pytest.param(each, id=each.name, marks=marks(each.name)) for each in RIGHT])
def test_the_bank_s_right_attentions_violate_nothing(entry: Entry) -> None:
    several, refused = analyses_of(entry.what, entry.args, {}, UserSettings())
    assert [each for one in several for each in one.violations] == []
    assert not refused
    assert any(each.num_attentions for each in several)


BATCH, TOKENS, WORDS = 2, 4, 11
IDS = torch.randint(3, WORDS, (BATCH, TOKENS), generator=torch.Generator().manual_seed(0))
SIZES: dict[str, Any] = {
    "hidden_size": 8,
    "num_hidden_layers": 1,
    "num_attention_heads": 2,
    "intermediate_size": 8,
    "max_position_embeddings": 8,
}
TABLE: dict[str, Any] = {"vocab_size": WORDS, "pad_token_id": 0, "bos_token_id": 1, "eos_token_id": 2}
GROUPED = {**SIZES, **TABLE, "num_key_value_heads": 1}
MODELS: dict[str, tuple[str, dict[str, Any], set[str]]] = {
    "GPT2Model": ("GPT2Config", {"n_embd": 8, "n_layer": 1, "n_head": 2, "n_positions": 8, **TABLE}, set()),
    "LlamaModel": ("LlamaConfig", GROUPED, {"rotary"}),
    "Qwen3Model": ("Qwen3Config", {**GROUPED, "head_dim": 4}, {"rotary", "qk-norm"}),
    "GPTNeoXModel": ("GPTNeoXConfig", {**SIZES, **TABLE}, {"rotary"}),
    "BertModel": ("BertConfig", {**SIZES, **TABLE}, set()),
    "T5EncoderModel": (
        "T5Config",
        {"d_model": 8, "d_kv": 4, "d_ff": 8, "num_layers": 1, "num_heads": 2, **TABLE},
        {"relative-bias", "no-scale"},
    ),
    "Gemma2Model": (
        "Gemma2Config",
        {**GROUPED, "num_hidden_layers": 2, "head_dim": 4, "sliding_window": 2},
        {"rotary", "softcap", "mask-pattern"},
    ),
}
"""By model: its configuration, and the designs that it follows."""


def made(model: str, config: str, sizes: dict[str, Any], kernel: str) -> nn.Module:
    """A small model in float64 each of whose parameters has an effect."""
    built = getattr(transformers, model)._from_config(
        getattr(transformers, config)(**sizes), attn_implementation=kernel
    )
    for parameter in built.double().eval().parameters():
        nn.init.normal_(parameter, 0.0 if parameter.ndim > 1 else 1.0, 0.4 if parameter.ndim > 1 else 0.2)
    return built


def with_ids(module: nn.Module) -> Invocation:
    return Invocation(module, {"input_ids": IDS}, [], [Stream("input_ids", "ids", 0, (1,))], sizes={"vocab": WORDS})


def assert_violates_nothing(call: Invocation, attentions: int, designs: set[str]) -> None:
    analysis = analyze(call)
    assert analysis.violations == []
    assert analysis.missing == []
    assert analysis.num_attentions == attentions
    assert {each.property for each in analysis.designs} == designs


@pytest.mark.parametrize("model", [pytest.param(each, marks=marks(each)) for each in MODELS])
@pytest.mark.parametrize("kernel", ["eager", pytest.param("sdpa", marks=pytest.mark.more)])
def test_models_of_transformers_violate_nothing(model: str, kernel: str) -> None:
    config, sizes, designs = MODELS[model]
    if (model, kernel) == ("Gemma2Model", "sdpa"):
        pytest.skip("transformers has none")
    built = made(model, config, sizes, kernel)
    assert_violates_nothing(with_ids(built), sizes.get("num_hidden_layers", 1), designs)


@pytest.mark.more
@pytest.mark.parametrize("kernel", ["eager", "sdpa"])
def test_a_model_of_sounds_and_words_violates_nothing(kernel: str) -> None:
    each = {"layers": 1, "attention_heads": 2, "ffn_dim": 8}
    sizes = {f"{side}_{name}": value for side in ("encoder", "decoder") for name, value in each.items()}
    ends = {"num_mel_bins": 4, "max_source_positions": 3, "max_target_positions": 8, "decoder_start_token_id": 1}
    module = made("WhisperModel", "WhisperConfig", {"d_model": 8, **sizes, **ends, **TABLE}, kernel)
    sounds = torch.randn(BATCH, 4, 6, dtype=torch.float64)
    streams = [Stream("input_features", "context", 0, (2,)), Stream("decoder_input_ids", "ids", 0, (1,))]
    given = {"input_features": sounds, "decoder_input_ids": IDS}
    assert_violates_nothing(Invocation(module, given, [], streams, sizes={"vocab": WORDS}), 3, set())


def test_a_mistake_inside_of_a_model_is_named_with_its_module() -> None:
    config, sizes, _ = MODELS["BertModel"]
    module = made("BertModel", config, sizes, "eager")
    inner = module.get_submodule("encoder.layer.0.attention.self")
    inner.scaling = 1 / inner.attention_head_size
    (found,) = analyze(with_ids(module)).violations
    assert (found.property, found.module) == ("scale", "encoder.layer.0.attention.self")
    assert found.location.file.endswith("modeling_bert.py")
    assert "matmul(query, key.transpose" in found.location.text
