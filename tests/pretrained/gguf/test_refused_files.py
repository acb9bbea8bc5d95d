"""What a GGUF file is refused for that has a sound header; and files with any byte changed."""

import struct

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

import regard
from gguf_files import SENTENCEPIECE_SIZE, sentencepiece_settings, train_sentencepiece, write_gguf
from regard import InputError
from regard.pretrained.gguf.header import read_header
from weights import random_checkpoint

GEMMA2 = {"query_pre_attn_scalar": 10}


@pytest.fixture(scope="session")
def folders(tmp_path_factory):
    """Small checkpoints to write files of, by family."""
    changes = {"llama": {}, "gpt2": {}, "gemma2": GEMMA2, "qwen2": {"use_sliding_window": False}}
    found = {}
    for family, settings in changes.items():
        found[family] = tmp_path_factory.mktemp(family)
        random_checkpoint(found[family], family, **settings)
    return found


def refused(path, message):
    with pytest.raises(InputError, match=f"(?s){message}") as raised:
        regard.load(path)
    assert "\n" not in str(raised.value)
    assert len(str(raised.value)) < 500
    assert str(path) in str(raised.value)


LONG = "x" * 10_000
SETTINGS = {
    "no architecture": ({"general.architecture": "clip"}, "general.architecture is 'clip'; regard reads llama, qwen2"),
    "adapter": ({"general.type": "adapter"}, "holds no model: its general.type is 'adapter'"),
    "part": ({"split.count": 3}, "is one of 3 parts of a model; .* llama-gguf-split --merge"),
    "unknown": ({"llama.attention.scale": 0.5}, r"does not know the setting llama\.attention\.scale \(here 0\.5\)"),
    "long value": ({"llama.new": LONG}, r"does not know the setting llama\.new \(here 'xxx"),
    "no layers": ({"llama.block_count": 0}, r"llama\.block_count is 0; it must be a whole number from 1"),
    "fewer layers": ({"llama.block_count": 2}, r"has no place for: layers\.2\.input_layernorm\.weight"),
    "absurd layers": ({"llama.block_count": 2**31 - 1}, r"lacks layers\.2147483646\.mlp\.down_proj\.weight"),
    "no width": ({"llama.embedding_length": ...}, r"lacks the setting llama\.embedding_length"),
    "absurd width": ({"llama.embedding_length": 6 * 2**27}, r"embed_tokens\.weight has shape \(61, 36\), the config"),
    "absurd feed-forward": ({"llama.feed_forward_length": 2**31 - 1}, r"gate_proj\.weight has shape \(50, 36\), the"),
    "text for a number": ({"llama.rope.freq_base": LONG}, r"llama\.rope\.freq_base is 'xxx.*; it must be a number"),
    "no epsilon": ({"llama.attention.layer_norm_rms_epsilon": ...}, r"lacks the setting .*layer_norm_rms_epsilon"),
    "layers differ": ({"llama.attention.head_count_kv": [2, 2, 1]}, "head_count_kv differs from layer to layer"),
    "empty heads": ({"llama.attention.head_count_kv": 0}, "head_count_kv is 0; it must be a whole number from 1"),
    "value width": ({"llama.attention.value_length": 5}, "value_length is 5; regard supports the width of a head, 6"),
    "part of a head": ({"llama.rope.dimension_count": 4}, "dimension_count is 4; regard supports the width of a head"),
    "vocabulary": ({"llama.vocab_size": 62}, r"llama\.vocab_size is 62, token_embd\.weight has rows for 61 tokens"),
    "experts": ({"llama.expert_count": 8}, r"llama\.expert_count is 8; regard supports 0 there"),
    "not causal": ({"llama.attention.causal": False}, r"llama\.attention\.causal is False; regard supports True"),
    "old layout": ({"llama.tensor_data_layout": "rows"}, r"is 'rows'; regard supports 'Meta AI original pth' there"),
    "long rope": ({"llama.rope.scaling.type": "longrope"}, "is 'longrope'; regard reads none, linear and yarn"),
    "rope factor": ({"llama.rope.scaling.factor": LONG}, r"llama\.rope\.scaling\.factor is 'xxx.*must be a number"),
    "mscale": ({"llama.rope.scaling.attn_factor": 1.5}, r"attn_factor is 1\.5; regard supports 1\.0 there"),
    "chat template": ({"tokenizer.chat_template": 7}, r"tokenizer\.chat_template is 7; it must be a text"),
    "eos": ({"tokenizer.ggml.eos_token_id": 61}, r"eos_token_id is 61; the model's tokens are 0 to 60"),
    "pad": ({"tokenizer.ggml.padding_token_id": 2**32 - 1}, "pad_token_id is 4294967295; the model's tokens are 0"),
    "bos": ({"tokenizer.ggml.bos_token_id": 99}, r"tokenizer\.ggml\.bos_token_id is 99; the tokens are 0 to 60"),
    "end of a turn": ({"tokenizer.ggml.eot_token_id": [2]}, r"eot_token_id is \[2\]; it must be a whole number"),
    "flag": ({"tokenizer.ggml.add_bos_token": 1}, r"add_bos_token is 1; it must be true or false"),
    "no tokens": ({"tokenizer.ggml.tokens": 5}, r"tokenizer\.ggml\.tokens is 5; it must be a list of texts"),
    "types": ({"tokenizer.ggml.token_type": [1, 1]}, "61 tokens have 2 types"),
    "merges": ({"tokenizer.ggml.merges": ["q zz"]}, "its tokenizer cannot be read: .*zz"),
    "no merge": ({"tokenizer.ggml.merges": ["th"]}, "a merge is two tokens with a space between; one is 'th'"),
}


@pytest.mark.parametrize("name", SETTINGS)
def test_settings_that_make_no_model_are_refused_in_one_line(folders, tmp_path, name):
    settings, message = SETTINGS[name]
    refused(write_gguf(tmp_path / "model.gguf", folders["llama"], settings=settings), message)


def test_too_many_tokens_for_the_model_are_refused(folders, tmp_path):
    tokenizer = sentencepiece_settings(train_sentencepiece())
    path = write_gguf(tmp_path / "model.gguf", folders["llama"], tokenizer=tokenizer)
    refused(path, f"has tokens up to id {SENTENCEPIECE_SIZE - 1}, the model has 61 of them")


def test_a_token_that_is_in_the_vocabulary_twice_is_refused(folders, tmp_path):
    tokens = ["a"] * 61
    path = write_gguf(tmp_path / "model.gguf", folders["llama"], settings={"tokenizer.ggml.tokens": tokens})
    refused(path, "the token 'a' is in the vocabulary twice")


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"tokenizer.ggml.scores": [0.5]}, f"{SENTENCEPIECE_SIZE} tokens have 1 scores"),
        ({"tokenizer.ggml.scores": ...}, r"tokenizer\.ggml\.scores is None; it must be a list of numbers"),
        ({"tokenizer.ggml.unknown_token_id": 500}, "unknown_token_id is 500; the tokens are 0 to 499"),
    ],
)
def test_a_sentencepiece_tokenizer_that_is_none_is_refused(folders, tmp_path, changes, message):
    tokenizer = sentencepiece_settings(train_sentencepiece())
    refused(write_gguf(tmp_path / "model.gguf", folders["llama"], tokenizer=tokenizer, settings=changes), message)


NAN = np.full((36,), np.nan, np.float32)
TENSORS = {
    "missing": ({"blk.1.attn_q.weight": ...}, r"lacks layers\.1\.self_attn\.q_proj\.weight"),
    "no embedding": ({"token_embd.weight": ...}, r"lacks the tensor token_embd\.weight"),
    "unknown": ({"blk.0.attn_sinks.weight": np.ones(6, np.float32)}, r"know the tensor 'blk\.0\.attn_sinks\.weight'"),
    "unknown part": ({"blk.0.attn_q.scale": np.ones(6, np.float32)}, r"no place for: layers\.0\.self_attn\.q_proj\.s"),
    "shape": ({"blk.2.ffn_up.weight": np.ones((50, 37), np.float32)}, r"has shape \(50, 37\), the config wants \(50"),
    "rows of queries": ({"blk.0.attn_q.weight": np.ones((35, 36), np.float32)}, r"has shape \(35, 36\), the config"),
    "axes": ({"output_norm.weight": np.ones((6, 6), np.float32)}, r"has shape \(6, 6\), the config wants \(36,\)"),
    "not finite": ({"output_norm.weight": NAN}, "is damaged: norm.weight holds numbers that are not finite"),
    "not Llama 3's": ({"rope_freqs.weight": np.array([1, 2, 4], np.float32)}, "is not the scaling of any Llama 3"),
    "of other heads": ({"rope_freqs.weight": np.ones(9, np.float32)}, "is not the scaling of any Llama 3 with heads"),
}


@pytest.mark.parametrize("name", TENSORS)
def test_tensors_that_make_no_model_are_refused_in_one_line(folders, tmp_path, name):
    tensors, message = TENSORS[name]
    refused(write_gguf(tmp_path / "model.gguf", folders["llama"], change=lambda _: tensors), message)


def test_llama_3s_factors_beside_another_scaling_are_refused(folders, tmp_path):
    settings = {"llama.rope.scaling.type": "linear", "llama.rope.scaling.factor": 2.0}
    factors = {"rope_freqs.weight": np.ones(3, np.float32)}
    path = write_gguf(tmp_path / "model.gguf", folders["llama"], settings=settings, change=lambda _: factors)
    refused(path, "are two scalings of one position")


def test_a_type_that_the_package_cannot_dequantise_is_named(folders, tmp_path):
    path = write_gguf(tmp_path / "model.gguf", folders["llama"])
    described = b"output_norm.weight" + struct.pack("<IQ", 1, 36)
    content, float32, whole_number = path.read_bytes(), struct.pack("<I", 0), struct.pack("<I", 26)
    path.write_bytes(content.replace(described + float32, described + whole_number))
    refused(path, r"output_norm\.weight is stored as I32, which the package gguf cannot dequantise")


@pytest.fixture(scope="session")
def sound_files(folders, tmp_path_factory):
    """Files of each kind of tokenizer and architecture."""
    folder, spm = tmp_path_factory.mktemp("sound"), tmp_path_factory.mktemp("spm")
    template = {"tokenizer.chat_template": "{{ messages }}"}
    random_checkpoint(spm, "llama", vocab_size=SENTENCEPIECE_SIZE)
    tokenizer = sentencepiece_settings(train_sentencepiece())
    files = [write_gguf(folder / f"{name}.gguf", path, settings=template) for name, path in folders.items()]
    return [*files, write_gguf(folder / "spm.gguf", spm, tokenizer=tokenizer, settings=template)]


@given(st.data())
def test_any_changed_byte_gives_an_input_error_or_a_model(sound_files, tmp_path_factory, data):
    file = data.draw(st.sampled_from(sound_files))
    content = bytearray(file.read_bytes())
    end_of_header = min(tensor.start for tensor in read_header(file).tensors.values())
    places = st.integers(0, end_of_header - 1) | st.integers(0, len(content) - 1)
    for place in data.draw(st.lists(places, min_size=1, max_size=3)):
        content[place] = data.draw(st.integers(0, 255))
    path = tmp_path_factory.mktemp("changed") / "model.gguf"
    path.write_bytes(content)
    assert "\n" not in loaded_or_refused(path)


def loaded_or_refused(path):
    """Why a file is refused; nothing if it is not."""
    try:
        regard.load(path)
    except InputError as error:
        return str(error)
    return ""
