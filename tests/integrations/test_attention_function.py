"""The attention function of regard: what it serves, what it refuses, and how watch and torch.compile see it."""

from __future__ import annotations

import subprocess
import sys

import pytest
import torch
from torch import nn
from torch.nn.attention.flex_attention import create_block_mask
from transformers import AttentionInterface, AttentionMaskInterface

import regard
from integrations.tiny_models import logits, of_type
from regard import mask
from regard.integrations.transformers import attention, attention_mask


class Layer(nn.Module):
    """A module without a configuration, as a model's attention is one."""

    def __init__(self, is_causal: bool = True) -> None:
        super().__init__()
        self.is_causal = is_causal


@pytest.fixture
def qkv():
    torch.manual_seed(0)
    return torch.randn(2, 4, 6, 8), torch.randn(2, 2, 6, 8), torch.randn(2, 2, 6, 5)


def test_the_output_is_that_of_attend_with_tokens_before_heads(qkv):
    sinks, bias = torch.randn(4), torch.randn(1, 4, 6, 6)
    made = attention_mask(2, 6, 6)
    output, weights = attention(
        Layer(), *qkv, made, scaling=0.3, softcap=2.0, s_aux=sinks, position_bias=bias, dropout=0.0
    )
    expected = regard.attend(*qkv, mask.causal(), scale=0.3, softcap=2.0, sinks=sinks, bias=bias)
    assert weights is None
    assert torch.equal(output, expected.transpose(1, 2))


def test_without_a_mask_the_module_says_whether_it_is_causal(qkv):
    for module, flag, who in (
        (Layer(), None, mask.causal()),
        (Layer(False), None, None),
        (Layer(), False, None),
        (Layer(False), True, mask.causal()),
    ):
        output, _ = attention(module, *qkv, None, is_causal=flag)
        assert torch.equal(output, regard.attend(*qkv, who).transpose(1, 2))


def test_the_keys_behind_the_last_query_are_not_read(qkv):
    q, k, v = qkv
    room = torch.full((2, 2, 4, 8), torch.nan), torch.full((2, 2, 4, 5), torch.nan)
    k, v = (torch.cat([t, more], 2) for t, more in zip((k, v), room, strict=True))
    output, _ = attention(Layer(), q, k, v, attention_mask(2, 6, 10))
    assert torch.equal(output, regard.attend(*qkv, mask.causal()).transpose(1, 2))


def test_selected_keys_are_the_only_ones_that_are_seen(qkv):
    indices = torch.tensor([0, 2, 3]).expand(2, 6, 3)
    output, _ = attention(Layer(), *qkv, attention_mask(2, 6, 6), indices=indices)
    chosen = mask.where(lambda i, j: (j == 0) | (j == 2) | (j == 3))
    torch.testing.assert_close(output, regard.attend(*qkv, mask.causal() & chosen).transpose(1, 2))


def test_the_documents_of_flash_attention_are_documents(qkv):
    starts = torch.tensor([0, 2, 6], dtype=torch.int32)
    output, _ = attention(Layer(), *qkv, attention_mask(2, 6, 6), cu_seq_lens_q=starts, cu_seq_lens_k=starts)
    who = mask.documents([0, 0, 1, 1, 1, 1]) & mask.causal()
    torch.testing.assert_close(output, regard.attend(*qkv, who).transpose(1, 2))


def test_a_block_mask_is_a_mask(qkv):
    block_mask = create_block_mask(lambda b, h, i, j: i >= j, None, None, 6, 6, device="cpu")
    output, _ = attention(Layer(), *qkv, block_mask)
    torch.testing.assert_close(output, regard.attend(*qkv, mask.causal()).transpose(1, 2))


@pytest.mark.parametrize("name", ["block_indices", "cache", "head_mask", "sinks"])
def test_what_is_not_served_is_refused_by_name(qkv, name):
    with pytest.raises(ValueError, match=rf'passes {name} .*attn_implementation="eager"'):
        attention(Layer(), *qkv, None, **{name: torch.ones(2)})


def test_a_mask_of_other_sizes_is_refused(qkv):
    with pytest.raises(ValueError, match=r"for 5 queries and 5 keys.*has 6 queries and 6 keys"):
        attention(Layer(), *qkv, attention_mask(2, 5, 5))


@pytest.mark.parametrize("given", [torch.ones(2, 6), torch.ones(2, 1, 6, 6, dtype=torch.int64)])
def test_a_tensor_that_is_no_mask_is_refused(qkv, given):
    with pytest.raises(ValueError, match="boolean with True = may attend"):
        attention(Layer(), *qkv, given)


@pytest.fixture
def attention_alone():
    """An implementation with the attention of regard and no mask function."""
    AttentionInterface.register("attention_alone", attention)
    yield "attention_alone"
    del AttentionInterface._global_mapping["attention_alone"]


def test_a_model_without_a_registered_mask_function_is_refused(attention_alone):
    """transformers#45811: transformers then makes no mask, and a decoder sees the tokens that it is to predict."""
    case = of_type("llama")
    with pytest.raises(ValueError, match="no mask function is registered for attn_implementation='attention_alone'"):
        logits(case.build(), attention_alone, case.inputs())


@pytest.mark.parametrize("model_type", ["llama", "bert", "t5", "vit", "gpt2"])
def test_output_attentions_is_refused_and_names_watch(model_type):
    case = of_type(model_type)
    model = case.build()
    model.set_attn_implementation("regard")
    with pytest.raises(ValueError, match=r"output_attentions.*regard\.watch"), torch.no_grad():
        model(**case.inputs(), output_attentions=True)


def test_a_model_that_adds_its_mask_itself_is_refused():
    case = of_type("llama")
    git = type(case)("git", "causal")
    with pytest.raises(NotImplementedError, match="computes its attention itself"):
        logits(git.build(), "regard", git.inputs())


@pytest.mark.parametrize("model_type", ["mistral", "gpt_oss", "gemma2", "t5", "llama4_text"])
def test_watch_records_the_maps_of_the_eager_code(model_type):
    case = of_type(model_type)
    model, inputs = case.build(), case.inputs()
    with torch.no_grad():
        eager = model(**inputs, output_attentions=True)
        model.set_attn_implementation("regard")
        with regard.watch(model) as recording:
            model(**inputs)
    layers = [eager[name] for name in eager if name.endswith("attentions")]
    expected = [weights for stack in layers for weights in stack]
    found = [recording[path].dense() for path in recording]
    assert {recording.entry(path).kernel for path in recording} == {"regard.attend"}
    assert len(found) == len(expected)
    for weights in expected:
        fitting = [m for m in found if m.shape == weights.shape]
        assert min(float((m - weights).abs().max()) for m in fitting) < 1e-5


def test_intervene_edits_the_model_as_on_the_eager_code():
    case = of_type("mistral")
    model, inputs = case.build(), case.inputs()
    found = {}
    for implementation in ("eager", "regard"):
        model.set_attn_implementation(implementation)
        with regard.intervene(model) as edit:
            edit["model.layers.0.self_attn"].heads[1].ablate("zero")
            found[implementation] = logits(model, implementation, inputs)
    torch.testing.assert_close(found["regard"], found["eager"], atol=2e-5, rtol=0)
    assert not torch.allclose(found["regard"], logits(model, "regard", inputs), atol=1e-3)


def test_the_import_registers_both_functions():
    assert AttentionInterface()["regard"] is attention
    assert AttentionMaskInterface()["regard"] is attention_mask


def test_without_transformers_the_import_says_what_to_install():
    code = "import sys; sys.modules['transformers'] = None; import regard.integrations.transformers"
    found = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=False)
    assert found.returncode == 1
    assert "ModuleNotFoundError: regard.integrations.transformers registers" in found.stderr
    assert "pip install 'transformers>=5.0'" in found.stderr
