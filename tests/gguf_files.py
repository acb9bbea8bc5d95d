"""GGUF files that the package `gguf` writes from a checkpoint of transformers, as llama.cpp's converter does."""

from __future__ import annotations

import io
import json
import math
from collections.abc import Callable, Iterator, Mapping
from functools import cache
from pathlib import Path
from typing import Any

import gguf
import numpy as np
import sentencepiece
import torch
import transformers
from gguf import GGMLQuantizationType, GGUFValueType, Keys, TokenType
from tokenizers import Tokenizer, decoders, models, pre_tokenizers, processors, trainers

from weights import sentences, weights_of

SPECIAL_IDS = {Keys.Tokenizer.BOS_ID: "bos", Keys.Tokenizer.EOS_ID: "eos", Keys.Tokenizer.PAD_ID: "pad"}
SENTENCEPIECE_SIZE, BYTE_LEVEL_SIZE = 500, 600
"""Tokens of `train_sentencepiece` and of `train_byte_level`."""


def write_gguf(
    path: Path,
    folder: Path,
    *,
    quantization: str = "F32",
    settings: Mapping[str, Any] | None = None,
    change: Callable[[dict[str, np.ndarray]], Mapping[str, Any]] = lambda tensors: {},
    tokenizer: Mapping[str, Any] | None = None,
) -> Path:
    """Write the decoder of a folder as one GGUF file.

    Args:
        path: of the file.
        folder: holds config.json, model.safetensors, tokenizer.json.
        quantization: the type of every matrix whose rows have whole blocks; vectors stay float32.
        settings: entries of the metadata beside or instead of the converter's; ... leaves one out.
        change: a function of the tensors, under llama.cpp's names, that gives those to replace; ... leaves one out.
        tokenizer: the entries for it, `sentencepiece_settings` for instance; by default those of tokenizer.json.
    """
    config = transformers.AutoConfig.from_pretrained(folder)
    entries = {**model_settings(config), **(byte_level_settings(folder, config) if tokenizer is None else tokenizer)}
    tensors = model_tensors(folder, config)
    entries, tensors = entries | dict(settings or {}), tensors | dict(change(tensors))
    write_file(path, entries, {name: (tensor, quantization) for name, tensor in tensors.items() if tensor is not ...})
    return path


def write_file(path: Path, entries: Mapping[str, Any], tensors: Mapping[str, tuple[np.ndarray, str]]) -> Path:
    """Write any metadata and any tensors with `gguf`'s writer, each tensor with the type that it is stored in."""
    writer = gguf.GGUFWriter(path, entries[Keys.General.ARCHITECTURE])
    writer.data_alignment = entries.get(Keys.General.ALIGNMENT, writer.data_alignment)
    for key, value in entries.items():
        value = list(value) if isinstance(value, tuple) else value
        if value is not ... and key != Keys.General.ARCHITECTURE:
            kind = GGUFValueType.UINT32 if type(value) is int and value >= 0 else GGUFValueType.get_type(value)
            writer.add_key_value(key, value, kind)
    for name, (tensor, quantization) in tensors.items():
        kind = GGMLQuantizationType[quantization]
        if tensor.ndim < 2 or tensor.shape[-1] % gguf.GGML_QUANT_SIZES[kind][0]:
            kind = GGMLQuantizationType.F32
        writer.add_tensor(name, gguf.quantize(np.ascontiguousarray(tensor), kind), raw_dtype=kind)
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.write_tensors_to_file()
    writer.close()
    return path


def architecture_of(config: transformers.PreTrainedConfig) -> str:
    """The architecture's name in a file: a Mistral is a llama."""
    return {"mistral": "llama"}.get(config.model_type, config.model_type)


def model_settings(config: transformers.PreTrainedConfig) -> dict[str, Any]:
    """The entries that the converter writes for a config."""
    name = architecture_of(config)
    values = {
        Keys.LLM.BLOCK_COUNT: config.num_hidden_layers,
        Keys.LLM.CONTEXT_LENGTH: config.max_position_embeddings,
        Keys.LLM.EMBEDDING_LENGTH: config.hidden_size,
        Keys.LLM.FEED_FORWARD_LENGTH: getattr(config, "intermediate_size", None) or 4 * config.hidden_size,
        Keys.Attention.HEAD_COUNT: config.num_attention_heads,
        Keys.Attention.LAYERNORM_EPS: getattr(config, "layer_norm_epsilon", ...),
        Keys.Attention.LAYERNORM_RMS_EPS: getattr(config, "rms_norm_eps", ...),
        Keys.Attention.HEAD_COUNT_KV: getattr(config, "num_key_value_heads", ...),
    }
    if head_dim := getattr(config, "head_dim", None):
        values |= {Keys.Attention.KEY_LENGTH: head_dim, Keys.Attention.VALUE_LENGTH: head_dim}
    if name == "llama":
        head_dim = head_dim or config.hidden_size // config.num_attention_heads
        values |= {Keys.LLM.VOCAB_SIZE: config.vocab_size, Keys.Rope.DIMENSION_COUNT: head_dim}
    if name == "gemma2":
        values |= {
            Keys.LLM.ATTN_LOGIT_SOFTCAPPING: config.attn_logit_softcapping,
            Keys.LLM.FINAL_LOGIT_SOFTCAPPING: config.final_logit_softcapping,
            Keys.Attention.SLIDING_WINDOW: config.sliding_window,
        }
    elif name != "gpt2":
        values |= rope_settings(config.rope_parameters)
    entries = {key.format(arch=name): value for key, value in values.items()}
    return {Keys.General.ARCHITECTURE: name, Keys.General.TYPE: "model", Keys.General.FILE_TYPE: 0, **entries}


def rope_settings(rope: Mapping[str, Any]) -> dict[str, Any]:
    """The entries for rotary positions; those of Llama 3 are a tensor."""
    values = {Keys.Rope.FREQ_BASE: float(rope["rope_theta"])}
    if rope["rope_type"] in ("linear", "yarn"):
        values |= {Keys.Rope.SCALING_TYPE: rope["rope_type"], Keys.Rope.SCALING_FACTOR: float(rope["factor"])}
    if rope["rope_type"] == "yarn":
        values |= {
            Keys.Rope.SCALING_ORIG_CTX_LEN: rope["original_max_position_embeddings"],
            Keys.Rope.SCALING_YARN_BETA_FAST: float(rope["beta_fast"]),
        }
    return values


def model_tensors(folder: Path, config: transformers.PreTrainedConfig) -> dict[str, np.ndarray]:
    """The checkpoint's tensors as they stand in a file."""
    name = architecture_of(config)
    arch = next(key for key, value in gguf.MODEL_ARCH_NAMES.items() if value == name)
    names = gguf.get_tensor_name_map(arch, config.num_hidden_layers)
    tensors = {}
    for key, tensor in weights_of(folder).items():
        stem, _, part = key.rpartition(".")
        tensors[f"{names.get_name(stem)}.{part}"] = converted(key, tensor, config).float().numpy()
    rope = getattr(config, "rope_parameters", None) or {}
    if rope.get("rope_type") == "llama3":
        tensors["rope_freqs.weight"] = np.array(list(llama3_factors(config, rope)), np.float32)
    return tensors


def converted(name: str, tensor: torch.Tensor, config: transformers.PreTrainedConfig) -> torch.Tensor:
    """A tensor as llama.cpp wants it."""
    if config.model_type == "gpt2":
        is_conv1d = name.endswith(("c_attn.weight", "c_proj.weight", "c_fc.weight"))
        return tensor.T if is_conv1d else tensor
    if config.model_type == "gemma2":
        return tensor + 1 if name.endswith("norm.weight") else tensor
    if architecture_of(config) == "llama":
        heads = {"q_proj": config.num_attention_heads, "k_proj": config.num_key_value_heads}.get(name.split(".")[-2])
        if heads:  # pairs of channels side by side, not half a head apart
            halves = tensor.reshape(heads, 2, len(tensor) // heads // 2, *tensor.shape[1:])
            return halves.transpose(1, 2).reshape(tensor.shape)
    return tensor


def llama3_factors(config: transformers.PreTrainedConfig, rope: Mapping[str, Any]) -> Iterator[float]:
    """What Llama 3 divides each frequency by (https://github.com/meta-llama/llama-models, `apply_scaling`)."""
    length, low, high = (rope[k] for k in ("original_max_position_embeddings", "low_freq_factor", "high_freq_factor"))
    for channel in range(0, config.head_dim, 2):
        wavelength = 2 * math.pi * rope["rope_theta"] ** (channel / config.head_dim)
        share = min(max((length / wavelength - low) / (high - low), 0.0), 1.0)
        yield 1 / ((1 - share) / rope["factor"] + share)


def byte_level_settings(folder: Path, config: transformers.PreTrainedConfig, pre: str = "gpt-2") -> dict[str, Any]:
    """The entries for a byte-level tokenizer.json; ids without a token are unused ones."""
    content = json.loads((folder / "tokenizer.json").read_text())
    tokens = [f"[PAD{i}]" for i in range(config.vocab_size)]
    types = [int(TokenType.UNUSED)] * config.vocab_size
    for token, index in content["model"]["vocab"].items():
        tokens[index], types[index] = token, int(TokenType.NORMAL)
    for added in content["added_tokens"]:
        types[added["id"]] = int(TokenType.CONTROL if added["special"] else TokenType.USER_DEFINED)
    return {
        Keys.Tokenizer.MODEL: "gpt2",
        Keys.Tokenizer.PRE: pre,
        Keys.Tokenizer.LIST: tokens,
        Keys.Tokenizer.TOKEN_TYPE: types,
        Keys.Tokenizer.MERGES: [" ".join(pair) for pair in content["model"]["merges"]],
        **({Keys.Tokenizer.ADD_BOS: True} if "SpecialToken" in str(content["post_processor"]["single"]) else {}),
        Keys.Tokenizer.UNK_ID: content["model"]["vocab"]["<unk>"],
        **special_ids(config),
    }


def special_ids(config: transformers.PreTrainedConfig) -> dict[str, int]:
    """The entries for a config's special tokens."""
    ids = {key: getattr(config, f"{name}_token_id") for key, name in SPECIAL_IDS.items()}
    if isinstance(ids[Keys.Tokenizer.EOS_ID], list):  # the end of a text, and the end of a turn
        ids[Keys.Tokenizer.EOS_ID], ids[Keys.Tokenizer.EOT_ID] = ids[Keys.Tokenizer.EOS_ID]
    return {key: id_ for key, id_ in ids.items() if id_ is not None}


@cache
def train_byte_level() -> str:
    """A tokenizer.json that the library `tokenizers` trained on real sentences, with the tokens of a chat."""
    tokenizer = Tokenizer(models.BPE())
    tokenizer.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    tokenizer.decoder = decoders.ByteLevel()
    tokenizer.post_processor = processors.TemplateProcessing(single="$A", special_tokens=[])
    trainer = trainers.BpeTrainer(
        vocab_size=BYTE_LEVEL_SIZE,
        special_tokens=["<s>", "</s>", "<unk>", "<|im_end|>"],
        initial_alphabet=pre_tokenizers.ByteLevel.alphabet(),
        show_progress=False,
    )
    tokenizer.train_from_iterator(sentences(400), trainer)
    return str(tokenizer.to_str())


@cache
def train_sentencepiece(prefix: bool = True) -> sentencepiece.SentencePieceProcessor:
    """A tokenizer that SentencePiece trained on real sentences.

    It has the 256 bytes, a token that is found whole in a text, and one that no text can give.
    """
    model = io.BytesIO()
    sentencepiece.SentencePieceTrainer.train(
        sentence_iterator=iter(sentences(400)),
        model_writer=model,
        vocab_size=SENTENCEPIECE_SIZE,
        model_type="bpe",
        byte_fallback=True,
        split_digits=True,
        add_dummy_prefix=prefix,
        normalization_rule_name="identity",
        remove_extra_whitespaces=False,
        control_symbols=["<|turn|>"],
        user_defined_symbols=["<tool>"],
        minloglevel=2,
        num_threads=1,
    )
    return sentencepiece.SentencePieceProcessor(model_proto=model.getvalue())


def sentencepiece_settings(processor: sentencepiece.SentencePieceProcessor, *, prefix: bool = True) -> dict[str, Any]:
    """The entries for a tokenizer of SentencePiece."""
    kinds = (
        (processor.is_unknown, TokenType.UNKNOWN),
        (processor.is_control, TokenType.CONTROL),
        (processor.is_unused, TokenType.UNUSED),
        (processor.is_byte, TokenType.BYTE),
        (lambda index: processor.id_to_piece(index) == "<tool>", TokenType.USER_DEFINED),
    )
    ids = range(processor.vocab_size())
    return {
        Keys.Tokenizer.MODEL: "llama",
        Keys.Tokenizer.PRE: "default",
        Keys.Tokenizer.LIST: [processor.id_to_piece(index) for index in ids],
        Keys.Tokenizer.SCORES: [float(processor.get_score(index)) for index in ids],
        Keys.Tokenizer.TOKEN_TYPE: [
            int(next((kind for is_kind, kind in kinds if is_kind(index)), TokenType.NORMAL)) for index in ids
        ],
        Keys.Tokenizer.UNK_ID: processor.unk_id(),
        Keys.Tokenizer.BOS_ID: processor.bos_id(),
        Keys.Tokenizer.EOS_ID: processor.eos_id(),
        **({} if prefix else {Keys.Tokenizer.ADD_PREFIX: False}),
    }
