"""The architectures of GGUF files: their settings as a config.json, and their tensors as a checkpoint's.

llama.cpp's converter writes the checkpoints of transformers under names of its own. This turns them back, so that each
family's own table reads both.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np
from torch import Tensor

from regard.errors import InputError, short_repr
from regard.pretrained.gguf.header import Header, shown
from regard.pretrained.gguf.rope import LLAMA3_FACTORS, ROPE_SETTINGS, rope_config
from regard.pretrained.gguf.tensors import StoredTensor, Transform

COMMON_SETTINGS = {
    "block_count": "num_hidden_layers",
    "context_length": "max_position_embeddings",
    "embedding_length": "hidden_size",
    "feed_forward_length": "intermediate_size",
    "attention.head_count": "num_attention_heads",
    "attention.head_count_kv": "num_key_value_heads",
    "attention.key_length": "head_dim",
    "attention.layer_norm_rms_epsilon": "rms_norm_eps",
    "rope.freq_base": "rope_theta",
}
"""Keys of config.json by the settings of a GGUF file, which stand there behind the architecture's name."""

SIZES = ("block_count", "context_length", "embedding_length", "feed_forward_length", "attention.head_count")
"""Settings that every file has, whole numbers from 1."""

REQUIRED_VALUES: dict[str, object] = {
    "attention.causal": True,
    "expert_count": 0,
    "expert_used_count": 0,
    "pooling_type": 0,
    "use_parallel_residual": False,
    "tensor_data_layout": "Meta AI original pth",
}
"""Settings of any architecture that change the numbers, with the only value that regard supports."""

COMPARED_SETTINGS = frozenset({"attention.value_length", "vocab_size"})
"""Settings that must agree with others: the width of a head, the rows of the embedding."""

LAYERS = {
    "attn_q": "self_attn.q_proj",
    "attn_k": "self_attn.k_proj",
    "attn_v": "self_attn.v_proj",
    "attn_output": "self_attn.o_proj",
    "attn_q_norm": "self_attn.q_norm",
    "attn_k_norm": "self_attn.k_norm",
    "attn_norm": "input_layernorm",
    "ffn_norm": "post_attention_layernorm",
    "ffn_gate": "mlp.gate_proj",
    "ffn_up": "mlp.up_proj",
    "ffn_down": "mlp.down_proj",
}
"""Names in a Llama's layer by those in a GGUF file."""

GEMMA2_27B_LAYERS = 46
"""Only the Gemma 2 with so many layers divides its scores by sqrt(d_model / heads), not by sqrt(head width). No setting
says so: llama.cpp looks at the number of layers as well."""


@dataclass(frozen=True, kw_only=True)
class Architecture:
    """How one architecture of GGUF files corresponds to a family of checkpoints."""

    model: str
    """The model of transformers, which a saved config.json names."""
    settings: Mapping[str, str] = field(default_factory=lambda: COMMON_SETTINGS)
    """Keys of config.json by the file's settings."""
    extra_settings: frozenset[str] = ROPE_SETTINGS
    """Settings that `config_json` reads."""
    prefix: str = "model."
    layer_prefix: str = "layers"
    names: Mapping[str, str] = field(
        default_factory=lambda: {"token_embd": "model.embed_tokens", "output_norm": "model.norm", "output": "lm_head"}
    )
    """Names outside the layers."""
    layers: Mapping[str, str] = field(default_factory=lambda: LAYERS)
    """Names in a layer."""
    transform: Callable[[str, Mapping[str, Any]], Transform | None] = lambda name, config: None
    """What makes a tensor as transformers stores it, by its name in the file and the config; None for nothing."""
    finish: Callable[[dict[str, Any], Header], None] = lambda config, header: None
    """Adds what no single setting says."""


def _unpermuted(name: str, config: Mapping[str, Any]) -> Transform | None:
    """Rows of queries and keys in transformers' order.

    Rotary positions turn pairs of channels. transformers pairs channel i with i + d/2; llama.cpp, as Meta's own files,
    pairs 2i with 2i + 1, and its converter reorders the rows of each head for it.
    """
    if not (".attn_q." in name or ".attn_k." in name):
        return None
    heads = config["num_attention_heads" if ".attn_q." in name else "num_key_value_heads"]

    def transform(tensor: Tensor) -> Tensor:
        if len(tensor) % (2 * heads):
            return tensor  # of another shape than the config wants: the loader names it
        return tensor.reshape(heads, -1, 2, *tensor.shape[1:]).transpose(1, 2).reshape(tensor.shape)

    return transform


def _norm_minus_one(name: str, config: Mapping[str, Any]) -> Transform | None:
    """Gemma multiplies by 1 + the weight of a norm; the file has the sum."""
    return (lambda tensor: tensor - 1) if name.endswith("norm.weight") else None


def _inputs_first(name: str, config: Mapping[str, Any]) -> Transform | None:
    """GPT-2's checkpoints store the inputs of a linear layer before its outputs."""
    is_linear = re.search(r"\.(attn_qkv|attn_output|ffn_up|ffn_down)\.weight$", name)
    return (lambda tensor: tensor.mT if tensor.ndim > 1 else tensor) if is_linear else None


def _finish_llama(config: dict[str, Any], header: Header) -> None:
    config["attention_bias"] = "blk.0.attn_q.bias" in header.tensors
    config["mlp_bias"] = "blk.0.ffn_gate.bias" in header.tensors


def _finish_gemma2(config: dict[str, Any], header: Header) -> None:
    is_27b = config["num_hidden_layers"] == GEMMA2_27B_LAYERS
    width = config["hidden_size"] // config["num_attention_heads"] if is_27b else config["head_dim"]
    config |= {"query_pre_attn_scalar": width, "attention_bias": False, "head_dim": config["head_dim"]}


ARCHITECTURES = {
    # Mistral's files say that they are a llama.
    "llama": Architecture(model="LlamaForCausalLM", transform=_unpermuted, finish=_finish_llama),
    "qwen2": Architecture(model="Qwen2ForCausalLM"),
    "qwen3": Architecture(model="Qwen3ForCausalLM"),
    "gemma2": Architecture(
        model="Gemma2ForCausalLM",
        settings={
            **COMMON_SETTINGS,
            "attn_logit_softcapping": "attn_logit_softcapping",
            "final_logit_softcapping": "final_logit_softcapping",
            "attention.sliding_window": "sliding_window",
        },
        layers={
            **LAYERS,
            "post_attention_norm": "post_attention_layernorm",
            "ffn_norm": "pre_feedforward_layernorm",
            "post_ffw_norm": "post_feedforward_layernorm",
        },
        transform=_norm_minus_one,
        finish=_finish_gemma2,
    ),
    "gpt2": Architecture(
        model="GPT2LMHeadModel",
        settings={
            "block_count": "n_layer",
            "context_length": "n_positions",
            "embedding_length": "n_embd",
            "feed_forward_length": "n_inner",
            "attention.head_count": "n_head",
            "attention.layer_norm_epsilon": "layer_norm_epsilon",
        },
        extra_settings=frozenset(),
        prefix="transformer.",
        layer_prefix="h",
        names={
            "token_embd": "transformer.wte",
            "position_embd": "transformer.wpe",
            "output_norm": "transformer.ln_f",
            "output": "lm_head",
        },
        layers={
            "attn_norm": "ln_1",
            "attn_qkv": "attn.c_attn",
            "attn_output": "attn.c_proj",
            "ffn_norm": "ln_2",
            "ffn_up": "mlp.c_fc",
            "ffn_down": "mlp.c_proj",
        },
        transform=_inputs_first,
    ),
}
"""By the ``general.architecture`` of a file, which is also the ``model_type`` of a config.json."""


def config_json(header: Header) -> dict[str, Any]:
    """The config.json of a checkpoint with the file's settings, without the special tokens.

    Raises:
        InputError: an architecture, a setting or a value that regard does not know; no settings of a model.
    """
    name = _architecture_name(header)
    architecture = ARCHITECTURES[name]
    prefix = f"{name}."
    settings = {key.removeprefix(prefix): _shortest(v) for key, v in header.metadata.items() if key.startswith(prefix)}
    _refuse_unknown(name, architecture, settings, header)
    if "token_embd.weight" not in header.tensors:
        raise InputError(f"{header.path} lacks the tensor token_embd.weight")
    config: dict[str, Any] = {"model_type": name, "architectures": [architecture.model], "dtype": "float32"}
    config["vocab_size"] = header.tensors["token_embd.weight"].shape[0]
    for key, config_key in architecture.settings.items():
        if key in settings:
            config[config_key] = _number(f"{name}.{key}", settings[key], header)
        elif key.endswith("epsilon") or key in SIZES:
            raise InputError(f"{header.path} lacks the setting {name}.{key}")
    for key in SIZES:
        value = config[architecture.settings[key]]
        if type(value) is not int or value < 1:
            raise InputError(f"{header.path}: {name}.{key} is {shown(value)}; it must be a whole number from 1")
    if settings.get("vocab_size", config["vocab_size"]) != config["vocab_size"]:
        text, rows = shown(settings["vocab_size"]), config["vocab_size"]
        raise InputError(f"{header.path}: {name}.vocab_size is {text}, token_embd.weight has rows for {rows} tokens")
    config["tie_word_embeddings"] = "output.weight" not in header.tensors
    if architecture.extra_settings >= ROPE_SETTINGS:
        config |= rope_config(name, settings, config, header)
    architecture.finish(config, header)
    return config


def _architecture_name(header: Header) -> str:
    path, metadata = header.path, header.metadata
    if metadata.get("split.count", 0) not in (0, 1):
        raise InputError(
            f"{path} is one of {shown(metadata['split.count'])} parts of a model; put them together with llama.cpp: "
            "llama-gguf-split --merge FIRST_PART WHOLE.gguf"
        )
    if (kind := metadata.get("general.type", "model")) != "model":
        raise InputError(f"{path} holds no model: its general.type is {shown(kind)}")
    name = metadata.get("general.architecture")
    if not isinstance(name, str) or name not in ARCHITECTURES:
        known = ", ".join(ARCHITECTURES)
        raise InputError(f"{path}: general.architecture is {shown(name)}; regard reads {known} of GGUF")
    return name


def stored_tensors(header: Header, config: Mapping[str, Any]) -> dict[str, StoredTensor]:
    """Every tensor of a file by its name in a checkpoint of transformers.

    Args:
        header: of the file.
        config: its `config_json`.

    Raises:
        InputError: a tensor whose name regard does not know.
    """
    architecture = ARCHITECTURES[config["model_type"]]
    return {
        _checkpoint_name(architecture, name, header.path): StoredTensor(
            header, info, architecture.transform(name, config)
        )
        for name, info in header.tensors.items()
        if name != LLAMA3_FACTORS
    }


def _checkpoint_name(architecture: Architecture, name: str, path: Path) -> str:
    """The name in a checkpoint of transformers for a tensor of a file.

    Raises:
        InputError: a name that the architecture does not have.
    """
    stem, _, part = name.rpartition(".")
    in_layer = re.fullmatch(r"blk\.(\d+)\.(\w+)", stem)
    if stem in architecture.names:
        stem = architecture.names[stem]
    elif in_layer and in_layer[2] in architecture.layers:
        stem = f"{architecture.prefix}{architecture.layer_prefix}.{in_layer[1]}.{architecture.layers[in_layer[2]]}"
    else:
        raise InputError(
            f"{path}: regard does not know the tensor {short_repr(name)}, so it cannot tell whether the model would be "
            "right without it"
        )
    return f"{stem}.{part}"


def _refuse_unknown(name: str, architecture: Architecture, settings: Mapping[str, Any], header: Header) -> None:
    """Refuse settings that would change the numbers, and settings that are unknown."""
    known = {*architecture.settings, *architecture.extra_settings, *COMPARED_SETTINGS, *REQUIRED_VALUES}
    for key, value in settings.items():
        text = shown(value)
        if key in REQUIRED_VALUES and value != REQUIRED_VALUES[key]:
            supported = REQUIRED_VALUES[key]
            raise InputError(f"{header.path}: {name}.{key} is {text}; regard supports {supported!r} there")
        if key not in known:
            raise InputError(
                f"{header.path}: regard does not know the setting {name}.{key} (here {text}), so it cannot tell "
                "whether the model would be right without it"
            )


def _shortest(value: Any) -> Any:
    """The shortest number that float32 stores so: where a file has 9.999999747378752e-06, the config said 1e-05."""
    if not isinstance(value, float):
        return value
    with np.errstate(over="ignore"):
        single = np.float32(value)
    return float(str(single)) if float(single) == value else value


def _number(key: str, value: Any, header: Header) -> int | float:
    """A setting that is a number, or a list with the same number for each layer."""
    first = value[0] if isinstance(value, list) and value else value
    if isinstance(first, bool) or not isinstance(first, (int, float)):
        raise InputError(f"{header.path}: {key} is {shown(value)}; it must be a number")
    if isinstance(value, list) and any(each != first for each in value):
        raise InputError(f"{header.path}: {key} differs from layer to layer, which regard does not support")
    return first
