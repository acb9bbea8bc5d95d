"""A model of a GGUF file, saved as a checkpoint: transformers and regard read the same numbers and texts from there."""

import json

import pytest
import torch
import transformers

import regard
from gguf_files import (
    BYTE_LEVEL_SIZE,
    SENTENCEPIECE_SIZE,
    byte_level_settings,
    sentencepiece_settings,
    train_byte_level,
    train_sentencepiece,
    write_gguf,
)
from weights import random_checkpoint, same_weights, sentences

LLAMA3 = {"rope_type": "llama3", "rope_theta": 5e5, "low_freq_factor": 1.0, "high_freq_factor": 4.0}
LLAMA3 |= {"factor": 32.0, "original_max_position_embeddings": 8192}
YARN = {"rope_type": "yarn", "factor": 4.0, "original_max_position_embeddings": 16, "beta_fast": 4.0, "rope_theta": 1e2}
BLOCKS = {"hidden_size": 64, "intermediate_size": 96, "num_attention_heads": 4, "num_key_value_heads": 2}
CASES = {
    "llama Q4_0": ("llama", {**BLOCKS, "attention_bias": True}, "Q4_0"),
    "llama 3": ("llama", {"rope_parameters": LLAMA3, "head_dim": 16, "tie_word_embeddings": True}, "F32"),
    "qwen2 yarn": ("qwen2", {"use_sliding_window": False, "rope_parameters": YARN}, "F32"),
    "qwen3": ("qwen3", {}, "F16"),
    "gemma2": ("gemma2", {"query_pre_attn_scalar": 10}, "F32"),
    "gpt2": ("gpt2", {"tie_word_embeddings": False}, "F32"),
}
CHAT = "{% for message in messages %}{{ message.content }}{% endfor %}"


@pytest.fixture(scope="session")
def saved(tmp_path_factory):
    """A function that loads a file and saves it: what was loaded, and the folder."""

    def save(name, dtype=torch.float32):
        family, changes, quantization = CASES[name]
        folder, path = tmp_path_factory.mktemp("checkpoint"), tmp_path_factory.mktemp("gguf") / "model.gguf"
        is_gemma = family == "gemma2"
        size = SENTENCEPIECE_SIZE if is_gemma else BYTE_LEVEL_SIZE
        config = random_checkpoint(folder, family, vocab_size=size, **changes).config
        (folder / "tokenizer.json").write_text(train_byte_level())
        tokenizer = sentencepiece_settings(train_sentencepiece()) if is_gemma else byte_level_settings(folder, config)
        settings = {"tokenizer.chat_template": CHAT}
        write_gguf(path, folder, quantization=quantization, tokenizer=tokenizer, settings=settings)
        pretrained, copy = regard.load(path, dtype=dtype), tmp_path_factory.mktemp("saved")
        pretrained.save(copy)
        return pretrained, copy

    return save


@pytest.mark.parametrize("name", CASES)
@torch.inference_mode()
def test_transformers_computes_the_same_numbers_from_a_saved_model(saved, name):
    pretrained, folder = saved(name)
    theirs = transformers.AutoModelForCausalLM.from_pretrained(folder, attn_implementation="eager").eval()
    ids = torch.randint(4, 500, (2, 13))
    assert (pretrained.model(ids) - theirs(ids).logits).abs().max() < 1e-4
    assert type(theirs).__name__ in theirs.config.architectures


@pytest.mark.parametrize("name", CASES)
def test_transformers_reads_the_same_texts_from_a_saved_model(saved, name):
    pretrained, folder = saved(name)
    theirs = transformers.AutoTokenizer.from_pretrained(folder)
    for text in [*sentences(10), "two  spaces\n"]:
        ids = pretrained.tokenizer.encode(text).ids
        assert theirs.encode(text) == ids
        assert theirs.decode(ids, skip_special_tokens=True) == pretrained.decode(ids)
    assert theirs.apply_chat_template([{"role": "user", "content": "the river"}], tokenize=False) == "the river"


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
@pytest.mark.parametrize("name", CASES)
def test_a_saved_model_is_the_same_model(saved, name, dtype):
    pretrained, folder = saved(name, dtype)
    again = regard.load(folder, dtype=dtype)
    assert again.config == pretrained.config
    assert same_weights(again, pretrained)
    assert json.loads((folder / "config.json").read_text())["dtype"] == str(dtype).removeprefix("torch.")
    assert again.tokenizer.to_str() == pretrained.tokenizer.to_str()
    assert again.checkpoint.quantization == ""
    assert pretrained.checkpoint.quantization == ("Q4_0" if name == "llama Q4_0" else "")


def test_a_models_name_says_that_its_weights_were_dequantised(saved):
    assert "dequantised from Q4_0" in repr(saved("llama Q4_0")[0])
    assert "dequantised" not in repr(saved("qwen3")[0])
