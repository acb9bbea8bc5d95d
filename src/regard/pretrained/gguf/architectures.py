"""The architectures of GGUF files: their settings as a config.json, and their tensors as a checkpoint's.

llama.cpp's converter writes the checkpoints of transformers under names of its own. This turns them back, so that each
family's own table reads both.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, field
from typing import Any

import numpy as np
import torch
from torch import Tensor

from regard.attention.positions import Llama3
from regard.attention.positions.scaling import inverse_frequencies
from regard.errors import InputError, short_repr
from regard.pretrained.gguf.header import Header, TensorInfo

NO_VALUE = (None, 0, False)

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

ROPE_SETTINGS = frozenset(
    {
        "rope.dimension_count",
        "rope.scale_linear",
        "rope.scaling.attn_factor",
        "rope.scaling.factor",
        "rope.scaling.finetuned",
        "rope.scaling.original_context_length",
        "rope.scaling.type",
        "rope.scaling.yarn_attn_factor",
        "rope.scaling.yarn_beta_fast",
        "rope.scaling.yarn_beta_slow",
        "rope.scaling.yarn_ext_factor",
    }
)
"""The settings that `_rope_config` reads."""

REQUIRED_VALUES: dict[str, tuple[object, ...]] = {
    "attention.causal": (True,),
    "expert_count": NO_VALUE,
    "expert_used_count": NO_VALUE,
    "pooling_type": NO_VALUE,
    "use_parallel_residual": NO_VALUE,
    "tensor_data_layout": ("Meta AI original pth",),
}
"""Settings of any architecture that change the numbers, with the values that regard supports."""

READ_ELSEWHERE = frozenset({"attention.value_length", "vocab_size"})

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

LLAMA3_FACTORS = "rope_freqs.weight"
"""What Llama 3's scaling divides each frequency by; llama.cpp stores it in place of the numbers that it comes from."""
LLAMA3: dict[str, Any] = {"low_freq_factor": 1.0, "high_freq_factor": 4.0, "original_max_position_embeddings": 8192}
"""The scaling of every Llama 3 (https://huggingface.co/meta-llama/Llama-3.1-8B/blob/main/config.json), but its factor,
which differs."""

GEMMA2_27B_LAYERS = 46
"""Only the Gemma 2 with so many layers divides its scores by sqrt(d_model / heads), not by sqrt(head width). No setting
says so: llama.cpp looks at the number of layers as well."""


@dataclass(frozen=True, kw_only=True)
class Architecture:
    """How one architecture of GGUF files corresponds to a family of checkpoints."""

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
    transform: Callable[[str, Tensor, Mapping[str, Any]], Tensor] = lambda name, tensor, config: tensor
    """A tensor as transformers stores it: its name in the file, its values, the config."""
    finish: Callable[[dict[str, Any], Header], None] = lambda config, header: None
    """Adds what no single setting says."""


def _unpermuted(name: str, tensor: Tensor, config: Mapping[str, Any]) -> Tensor:
    """Rows of queries and keys in transformers' order.

    Rotary positions turn pairs of channels. transformers pairs channel i with i + d/2; llama.cpp, as Meta's own files,
    pairs 2i with 2i + 1, and its converter reorders the rows of each head for it.
    """
    if not (".attn_q." in name or ".attn_k." in name):
        return tensor
    heads = config["num_attention_heads" if ".attn_q." in name else "num_key_value_heads"]
    if len(tensor) % (2 * heads):
        return tensor  # of another shape than the config wants: the loader names it
    return tensor.reshape(heads, -1, 2, *tensor.shape[1:]).transpose(1, 2).reshape(tensor.shape)


def _norm_minus_one(name: str, tensor: Tensor, config: Mapping[str, Any]) -> Tensor:
    """Gemma multiplies by 1 + the weight of a norm; the file has the sum."""
    return tensor - 1 if name.endswith("norm.weight") else tensor


def _inputs_first(name: str, tensor: Tensor, config: Mapping[str, Any]) -> Tensor:
    """GPT-2's checkpoints store the inputs of a linear layer before its outputs."""
    return tensor.T if re.search(r"\.(attn_qkv|attn_output|ffn_up|ffn_down)\.weight$", name) else tensor


def _finish_llama(config: dict[str, Any], header: Header) -> None:
    config["attention_bias"] = "blk.0.attn_q.bias" in header.tensors
    config["mlp_bias"] = "blk.0.ffn_gate.bias" in header.tensors


def _finish_gemma2(config: dict[str, Any], header: Header) -> None:
    is_27b = config["num_hidden_layers"] == GEMMA2_27B_LAYERS
    width = config["hidden_size"] // config["num_attention_heads"] if is_27b else config["head_dim"]
    config |= {"query_pre_attn_scalar": width, "attention_bias": False, "head_dim": config["head_dim"]}


ARCHITECTURES = {
    # Mistral's files say that they are a llama.
    "llama": Architecture(transform=_unpermuted, finish=_finish_llama),
    "qwen2": Architecture(),
    "qwen3": Architecture(),
    "gemma2": Architecture(
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
    name, path = header.metadata.get("general.architecture"), header.path
    if not isinstance(name, str) or name not in ARCHITECTURES:
        raise InputError(f"{path}: general.architecture is {name!r}; regard reads {', '.join(ARCHITECTURES)} of GGUF")
    if (kind := header.metadata.get("general.type", "model")) != "model":
        raise InputError(f"{path} holds no model: its general.type is {kind!r}")
    if header.metadata.get("split.count", 0) not in (0, 1):
        raise InputError(
            f"{path} is one of {header.metadata['split.count']} parts of a model; put them together with llama.cpp: "
            "llama-gguf-split --merge FIRST_PART WHOLE.gguf"
        )
    architecture = ARCHITECTURES[name]
    settings = {key.removeprefix(f"{name}."): v for key, v in header.metadata.items() if key.startswith(f"{name}.")}
    _refuse_unknown(name, architecture, settings, header)
    if "token_embd.weight" not in header.tensors:
        raise InputError(f"{path} lacks the tensor token_embd.weight")
    embedding = header.tensors["token_embd.weight"]
    config: dict[str, Any] = {"model_type": name, "vocab_size": embedding.shape[0] if embedding.shape else 0}
    for key, config_key in architecture.settings.items():
        if key in settings:
            config[config_key] = _of_every_layer(f"{name}.{key}", settings[key], header)
    config["tie_word_embeddings"] = "output.weight" not in header.tensors
    if architecture.extra_settings >= ROPE_SETTINGS:
        config |= _rope_config(name, settings, config, header)
    architecture.finish(config, header)
    return config


def checkpoint_tensors(header: Header, config: Mapping[str, Any], dtype: torch.dtype) -> dict[str, Tensor]:
    """Every tensor of a file, dequantised, under its name in a checkpoint of transformers.

    Args:
        header: of the file.
        config: its `config_json`.
        dtype: of the tensors. Each is dequantised in float32, one after the other.

    Raises:
        InputError: a tensor of a type that `gguf` cannot dequantise.
    """
    architecture = ARCHITECTURES[config["model_type"]]
    tensors = {}
    for name, info in header.tensors.items():
        if name != LLAMA3_FACTORS:
            tensor = architecture.transform(name, _dequantised(header, info), config)
            tensors[_checkpoint_name(architecture, name)] = tensor.to(dtype).contiguous()
    return tensors


def _dequantised(header: Header, info: TensorInfo) -> Tensor:
    import gguf

    rows = header.data(info).reshape(*info.shape[:-1], -1)
    try:
        values = gguf.dequantize(rows, info.type)
    except NotImplementedError as error:
        raise InputError(
            f"{header.path}: {info.name} is stored as {info.type.name}, which the package gguf cannot dequantise"
        ) from error
    return torch.from_numpy(np.array(values, np.float32).reshape(info.shape))  # a copy: the bytes are the file's


def _checkpoint_name(architecture: Architecture, name: str) -> str:
    """The name in a checkpoint; an unknown one stays as it is, and the loader refuses it."""
    stem, _, part = name.rpartition(".")
    if stem in architecture.names:
        return f"{architecture.names[stem]}.{part}"
    in_layer = re.fullmatch(r"blk\.(\d+)\.(\w+)", stem)
    if in_layer is None or in_layer[2] not in architecture.layers:
        return name
    return f"{architecture.prefix}{architecture.layer_prefix}.{in_layer[1]}.{architecture.layers[in_layer[2]]}.{part}"


def _refuse_unknown(name: str, architecture: Architecture, settings: Mapping[str, Any], header: Header) -> None:
    """Refuse settings that would change the numbers, and settings that are unknown."""
    known = {*architecture.settings, *architecture.extra_settings, *READ_ELSEWHERE}
    for key, value in settings.items():
        if key in REQUIRED_VALUES and value not in REQUIRED_VALUES[key]:
            raise InputError(
                f"{header.path}: {name}.{key} is {value!r}; regard supports {REQUIRED_VALUES[key][-1]!r} there"
            )
        if key not in known and key not in REQUIRED_VALUES:
            raise InputError(
                f"{header.path}: regard does not know the setting {name}.{key} (here {short_repr(str(value))}), so it "
                "cannot tell whether the model would be right without it"
            )


def _of_every_layer(key: str, value: Any, header: Header) -> Any:
    """A setting that may be a list with a value for each layer, where all are the same."""
    if isinstance(value, list):
        if len(set(map(str, value))) != 1:
            raise InputError(f"{header.path}: {key} differs from layer to layer, which regard does not support")
        value = value[0]
    # The file has float32: 9.999999747378752e-06 was 1e-05.
    return float(str(np.float32(value))) if isinstance(value, float) else value


def _rope_config(name: str, settings: Mapping[str, Any], config: Mapping[str, Any], header: Header) -> dict[str, Any]:
    """The keys of config.json for the width of a head and for rotary positions."""
    path = header.path
    numbers = {key: config.get(key) for key in ("hidden_size", "num_attention_heads", "max_position_embeddings")}
    for key, value in numbers.items():
        if type(value) is not int or value < 1:
            setting = next(gguf_key for gguf_key, each in COMMON_SETTINGS.items() if each == key)
            raise InputError(f"{path}: {name}.{setting} is {value!r}; it must be a whole number from 1")
    heads = config["num_attention_heads"]
    head_dim = config.get("head_dim", config["hidden_size"] // heads)
    for key in ("attention.value_length", "rope.dimension_count"):
        if settings.get(key, head_dim) != head_dim:
            raise InputError(
                f"{path}: {name}.{key} is {settings[key]!r}; regard supports the width of a head, {head_dim}"
            )
    kv_heads = config.get("num_key_value_heads", heads)
    if type(kv_heads) is not int or kv_heads < 1:
        raise InputError(f"{path}: {name}.attention.head_count_kv is {kv_heads!r}; it must be a whole number from 1")
    scaling = dict(_rope_scaling(name, settings, header))
    if LLAMA3_FACTORS in header.tensors:
        if scaling:
            raise InputError(f"{path}: {name}.rope.scaling.type and {LLAMA3_FACTORS} are two scalings of one position")
        scaling = _llama3_scaling(config.get("rope_theta", 10_000.0), head_dim, header)
    return {"head_dim": head_dim, "num_key_value_heads": kv_heads, **({"rope_scaling": scaling} if scaling else {})}


def _rope_scaling(name: str, settings: Mapping[str, Any], header: Header) -> Iterator[tuple[str, Any]]:
    """The items of config.json's ``rope_scaling``."""
    scaling_type = settings.get("rope.scaling.type", "linear" if "rope.scale_linear" in settings else "none")
    if scaling_type not in ("none", "linear", "yarn"):
        raise InputError(
            f"{header.path}: {name}.rope.scaling.type is {scaling_type!r}; regard reads none, linear and yarn"
        )
    factor = settings.get("rope.scaling.factor", settings.get("rope.scale_linear", 1.0))
    for key in ("rope.scaling.attn_factor", "rope.scaling.yarn_attn_factor", "rope.scaling.yarn_ext_factor"):
        if settings.get(key, 1.0) != 1:
            raise InputError(f"{header.path}: {name}.{key} is {settings[key]!r}; regard supports 1.0 there")
    if scaling_type == "none" or factor in (0, 1):
        return
    yield "rope_type", scaling_type
    yield "factor", _of_every_layer("", factor, header)
    for key, config_key in (
        ("original_context_length", "original_max_position_embeddings"),
        ("yarn_beta_fast", "beta_fast"),
        ("yarn_beta_slow", "beta_slow"),
    ):
        if scaling_type == "yarn" and f"rope.scaling.{key}" in settings:
            yield config_key, settings[f"rope.scaling.{key}"]


def _llama3_scaling(base: float, head_dim: int, header: Header) -> dict[str, Any]:
    """The scaling of a Llama 3 by what it divides the frequencies by."""
    factors = _dequantised(header, header.tensors[LLAMA3_FACTORS])
    factor = round(float(factors.max()), 3)
    scaling = Llama3(factor, *LLAMA3.values())
    one_position = torch.zeros(1)
    expected = inverse_frequencies(base, head_dim, one_position) / scaling.frequencies(base, head_dim, one_position)
    if factors.shape != expected.shape or not torch.allclose(factors, expected, rtol=1e-3):
        raise InputError(
            f"{header.path}: {LLAMA3_FACTORS} is not the scaling of Llama 3 with factor {factor}; regard knows no other"
        )
    return {"rope_type": "llama3", "factor": factor, **LLAMA3}
