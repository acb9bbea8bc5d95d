"""Models of GGUF files against transformers: on the same file, and on the checkpoint from which the file was made."""

from dataclasses import replace
from functools import cache

import pytest
import torch
import transformers

import regard
from gguf_files import write_gguf
from regard.pretrained.offline import SMOLLM2, SMOLLM2_FILE
from weights import random_checkpoint, smollm2

BLOCKS = {"hidden_size": 64, "intermediate_size": 96, "num_attention_heads": 4, "num_key_value_heads": 2}
UNTIED = {"tie_word_embeddings": False}
FULL = {"use_sliding_window": False}
LLAMA3 = {"rope_type": "llama3", "rope_theta": 5e5, "low_freq_factor": 1.0, "high_freq_factor": 4.0}
LLAMA3 |= {"factor": 32.0, "original_max_position_embeddings": 8192}
LINEAR = {"rope_type": "linear", "factor": 3.0, "rope_theta": 500.0}
YARN = {"rope_type": "yarn", "factor": 4.0, "original_max_position_embeddings": 16, "beta_fast": 4.0, "rope_theta": 1e2}
GEMMA2 = {"head_dim": 256, "query_pre_attn_scalar": 256, "final_logit_softcapping": 30.0}
GEMMA2_CAPS = {"query_pre_attn_scalar": 10, "attn_logit_softcapping": 3.0}

# What the reader of transformers 5 takes from a file. It knows no biases, no scaling of positions, no soft-caps, no
# width of Qwen 3's heads but 128, and no number of GPT-2's positions but 1,024. A Mistral is a llama to it as well.
ON_THE_SAME_FILE = {
    "llama": ("llama", {}, "F32"),
    "llama tied": ("llama", {"tie_word_embeddings": True}, "F32"),
    "llama F16": ("llama", {}, "F16"),
    "llama BF16": ("llama", {}, "BF16"),
    "llama Q8_0": ("llama", BLOCKS, "Q8_0"),
    "llama Q4_0": ("llama", BLOCKS, "Q4_0"),
    "mistral": ("mistral", {"sliding_window": None}, "F32"),
    "mistral Q5_1": ("mistral", {**BLOCKS, "sliding_window": None, "head_dim": 16}, "Q5_1"),
    "qwen2": ("qwen2", {**FULL, **UNTIED}, "F32"),
    "qwen2 Q4_1": ("qwen2", {**FULL, **BLOCKS}, "Q4_1"),
    "qwen3": ("qwen3", {"head_dim": 128}, "F32"),
    "gemma2": ("gemma2", GEMMA2, "F32"),
    "gemma2 Q8_0": ("gemma2", {**GEMMA2, **BLOCKS}, "Q8_0"),
    "gpt2": ("gpt2", {"n_positions": 1024}, "F32"),
    "gpt2 Q8_0": ("gpt2", {"n_positions": 1024, "n_embd": 64, "n_head": 4, **UNTIED}, "Q8_0"),
}
AS_THE_CHECKPOINT = {
    **{name: case for name, case in ON_THE_SAME_FILE.items() if case[2] == "F32"},
    "llama head width": ("llama", {"head_dim": 8}, "F32"),
    "llama biases": ("llama", {"attention_bias": True, "mlp_bias": True}, "F32"),
    "llama biases of the feed-forward layer": ("llama", {"mlp_bias": True}, "F32"),
    "llama biases of the attention": ("llama", {"attention_bias": True}, "F32"),
    "llama 3": ("llama", {"rope_parameters": LLAMA3, "head_dim": 16}, "F32"),
    "llama linear": ("llama", {"rope_parameters": LINEAR}, "F32"),
    "llama yarn": ("llama", {"rope_parameters": YARN}, "F32"),
    "qwen2 tied": ("qwen2", FULL, "F32"),
    "qwen2 yarn": ("qwen2", {**FULL, "rope_parameters": YARN}, "F32"),
    "qwen3 head width": ("qwen3", {"tie_word_embeddings": True}, "F32"),
    "gemma2 caps": ("gemma2", GEMMA2_CAPS, "F32"),
    "gpt2 untied": ("gpt2", UNTIED, "F32"),
}


@pytest.fixture(scope="session")
def written(tmp_path_factory):
    """A function that writes a checkpoint and a GGUF file of it: the model of transformers, the folder and the file."""

    @cache
    def write(name):
        family, changes, quantization = (ON_THE_SAME_FILE | AS_THE_CHECKPOINT)[name]
        folder = tmp_path_factory.mktemp("checkpoint")
        theirs = random_checkpoint(folder, family, **changes)
        theirs.set_attn_implementation("eager")  # sdpa drops Gemma 2's soft-cap
        path = tmp_path_factory.mktemp("gguf") / "model.gguf"
        return theirs, folder, write_gguf(path, folder, quantization=quantization)

    return write


def read_by_transformers(path):
    model = transformers.AutoModelForCausalLM.from_pretrained(path.parent, gguf_file=path.name, dtype=torch.float32)
    model.set_attn_implementation("eager")
    return model.eval()


def error(ours, theirs):
    assert theirs.std() > 0.01
    return (ours - theirs).abs().max().item()


@pytest.mark.parametrize("name", ON_THE_SAME_FILE)
@torch.inference_mode()
def test_logits_and_greedy_ids_are_those_of_transformers_on_the_same_file(written, name):
    path = written(name)[2]
    ours, theirs = regard.load(path), read_by_transformers(path)
    ids = torch.randint(4, 52, (2, 13))
    assert error(ours.model(ids), theirs(ids).logits) < 1e-4
    new = theirs.generate(ids[:1], max_new_tokens=20, do_sample=False, eos_token_id=ours.config.special_tokens.eos)
    assert regard.generate(ours.model, ids[:1], max_new_tokens=20)[0].tolist() == new[0].tolist()


@pytest.mark.parametrize("name", AS_THE_CHECKPOINT)
@torch.inference_mode()
def test_an_unquantised_file_is_the_checkpoint_that_it_was_made_from(written, name):
    theirs, folder, path = written(name)
    ours, original = regard.load(path), regard.load(folder)
    ids = torch.randint(4, 52, (2, 13))
    assert error(ours.model(ids), theirs(ids).logits) < 1e-4
    assert ours.config.head_dim == original.config.head_dim
    assert replace(ours.config, d_key=original.config.d_key) == original.config  # a file always has the width
    for key, tensor in original.model.state_dict().items():
        rounding = 1e-6 if "norm" in key else 0.0  # Gemma's file has 1 + the weight
        torch.testing.assert_close(ours.model.state_dict()[key], tensor, atol=rounding, rtol=0)


CAPITAL = "The capital of France is"


@torch.inference_mode()
def test_smollm2_says_paris():
    pretrained = smollm2()
    ids = torch.tensor([pretrained.encode(CAPITAL).ids])
    probabilities = pretrained.model(ids)[0, -1].softmax(dim=-1)
    assert ids.tolist() == [[504, 3575, 282, 4649, 314]]
    assert pretrained.decode([probabilities.argmax().item()]) == " Paris"
    assert probabilities.max().item() == pytest.approx(0.7725, abs=1e-4)


@pytest.mark.more
@torch.inference_mode()
def test_smollm2_gives_the_logits_and_greedy_ids_of_transformers():
    pretrained, theirs = smollm2(), read_by_transformers(SMOLLM2.path / SMOLLM2_FILE)
    for text in (CAPITAL, "Once upon a time", "def add(a, b):\n    return", "<|im_start|>user\nHello<|im_end|>\n"):
        ids = torch.tensor([pretrained.encode(text).ids])
        assert error(pretrained.model(ids), theirs(ids).logits) < 1e-4
        new = theirs.generate(ids, max_new_tokens=24, do_sample=False)
        assert regard.generate(pretrained.model, ids, max_new_tokens=24)[0].tolist() == new[0].tolist()
