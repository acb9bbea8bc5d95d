"""The rotary positions of a GGUF file, as the keys of a config.json."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from contextlib import suppress
from typing import Any

import torch

from regard.attention.positions import Llama3
from regard.attention.positions.scaling import inverse_frequencies
from regard.errors import InputError
from regard.pretrained.gguf.header import Header, shown
from regard.pretrained.gguf.tensors import dequantize

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
"""The settings that `rope_config` reads."""

LLAMA3_FACTORS = "rope_freqs.weight"
"""What Llama 3's scaling divides each frequency by; llama.cpp stores it in place of the numbers that it comes from."""
LLAMA3: dict[str, Any] = {"low_freq_factor": 1.0, "high_freq_factor": 4.0, "original_max_position_embeddings": 8192}
"""The scaling of every Llama 3 (https://huggingface.co/meta-llama/Llama-3.1-8B/blob/main/config.json), but its factor,
which differs."""


def rope_config(name: str, settings: Mapping[str, Any], config: Mapping[str, Any], header: Header) -> dict[str, Any]:
    """The keys of config.json for the width of a head and for rotary positions.

    Args:
        name: of the architecture.
        settings: the file's, without the architecture's name.
        config: the keys of config.json so far, with valid sizes.
        header: of the file.

    Raises:
        InputError: a width or a scaling that regard does not support.
    """
    path, heads = header.path, config["num_attention_heads"]
    head_dim, kv_heads = (
        config.get("head_dim", config["hidden_size"] // heads),
        config.get("num_key_value_heads", heads),
    )
    for key, value in (("attention.key_length", head_dim), ("attention.head_count_kv", kv_heads)):
        if type(value) is not int or value < 1:
            raise InputError(f"{path}: {name}.{key} is {shown(value)}; it must be a whole number from 1")
    for key in ("attention.value_length", "rope.dimension_count"):
        if settings.get(key, head_dim) != head_dim:
            raise InputError(
                f"{path}: {name}.{key} is {shown(settings[key])}; regard supports the width of a head, {head_dim}"
            )
    scaling = dict(_rope_scaling(name, settings, header))
    if LLAMA3_FACTORS in header.tensors:
        if scaling:
            raise InputError(f"{path}: {name}.rope.scaling.type and {LLAMA3_FACTORS} are two scalings of one position")
        scaling = _llama3_scaling(config.get("rope_theta", 10_000.0), head_dim, header)
    return {"head_dim": head_dim, "num_key_value_heads": kv_heads, **({"rope_scaling": scaling} if scaling else {})}


def _rope_scaling(name: str, settings: Mapping[str, Any], header: Header) -> Iterator[tuple[str, Any]]:
    """The items of config.json's ``rope_scaling``."""
    for key in (ROPE_SETTINGS & settings.keys()) - {"rope.scaling.type"}:
        if not isinstance(settings[key], (int, float)):
            raise InputError(f"{header.path}: {name}.{key} is {shown(settings[key])}; it must be a number")
    scaling_type = settings.get("rope.scaling.type", "linear")  # so llama.cpp: without a factor it is none
    if scaling_type not in ("none", "linear", "yarn"):
        raise InputError(
            f"{header.path}: {name}.rope.scaling.type is {shown(scaling_type)}; regard reads none, linear and yarn"
        )
    factor = settings.get("rope.scaling.factor", settings.get("rope.scale_linear", 1.0))
    for key in ("rope.scaling.attn_factor", "rope.scaling.yarn_attn_factor", "rope.scaling.yarn_ext_factor"):
        if settings.get(key, 1.0) != 1:
            text = shown(settings[key])
            raise InputError(f"{header.path}: {name}.{key} is {text}; regard supports 1.0 there")
    if scaling_type == "none" or factor in (0, 1):
        return
    yield "rope_type", scaling_type
    yield "factor", factor
    for key, config_key in (
        ("original_context_length", "original_max_position_embeddings"),
        ("yarn_beta_fast", "beta_fast"),
        ("yarn_beta_slow", "beta_slow"),
    ):
        if scaling_type == "yarn" and f"rope.scaling.{key}" in settings:
            yield config_key, settings[f"rope.scaling.{key}"]


def _llama3_scaling(base: float, head_dim: int, header: Header) -> dict[str, Any]:
    """The scaling of a Llama 3 by what it divides the frequencies by."""
    info, one_position = header.tensors[LLAMA3_FACTORS], torch.zeros(1)
    if info.shape == (head_dim // 2,):
        factors = torch.empty(info.shape)
        dequantize(header, info, factors)
        factor = round(float(factors.max()), 3)
        with suppress(TypeError, ValueError):  # a factor or a base that makes no positions
            scaling = Llama3(factor, *LLAMA3.values())
            unscaled = inverse_frequencies(base, head_dim, one_position)
            if torch.allclose(factors, unscaled / scaling.frequencies(base, head_dim, one_position), rtol=1e-3):
                return {"rope_type": "llama3", "factor": factor, **LLAMA3}
    raise InputError(
        f"{header.path}: {LLAMA3_FACTORS} is not the scaling of any Llama 3 with heads of {head_dim}; regard knows no "
        "other"
    )
