"""Rotary positions and attention windows of a config.json, in the keys of transformers 4 and 5."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from regard.attention.positions import DynamicNTK, Linear, Llama3, YaRN
from regard.attention.positions.scaling import MAX_NUMBER, Scaling
from regard.errors import InputError
from regard.pretrained.config_json import ConfigJSON

ROPE_KEYS = frozenset(
    {"max_position_embeddings", "partial_rotary_factor", "rope_parameters", "rope_scaling", "rope_theta"}
)
"""The keys that `rope_fields` reads."""

WINDOW_KEYS = frozenset({"layer_types", "sliding_window"})
"""The keys that `window_fields` reads."""

SCALING_KEYS: dict[str, frozenset[str]] = {
    "default": frozenset(),
    "linear": frozenset({"factor"}),
    "dynamic": frozenset({"factor"}),
    "llama3": frozenset({"factor", "low_freq_factor", "high_freq_factor"}),
    "yarn": frozenset({"factor", "beta_fast", "beta_slow", "attention_factor", "mscale", "mscale_all_dim", "truncate"}),
}
"""The types of scaling, and the keys that each has besides the type, the base and the training length."""


def rope_fields(config_json: ConfigJSON) -> dict[str, Any]:
    """The fields of `Config` for rotary positions.

    transformers 4 has ``rope_theta`` and ``rope_scaling``, 5 has both in ``rope_parameters``. A scaling that goes
    beyond ``max_position_embeddings`` raises the limit: linear and dynamic scaling multiply it by their factor; with
    YaRN it is the factor times ``original_max_position_embeddings``.

    Raises:
        InputError: a type of scaling, or a key of one, that regard does not support.
    """
    if config_json.get("partial_rotary_factor") not in (None, 1):
        config_json.refuse("partial_rotary_factor", "regard turns whole heads only (1.0)")
    old_rope, new_rope = config_json.get("rope_scaling"), config_json.get("rope_parameters")
    if old_rope and new_rope and old_rope != new_rope:
        config_json.refuse("rope_scaling", f"rope_parameters say something else: {new_rope!r}")
    name = "rope_scaling" if old_rope else "rope_parameters"
    rope = old_rope or new_rope or {}
    if not isinstance(rope, dict):
        config_json.refuse(name, "it must be an object or null")
    rope_type = rope.get("rope_type", rope.get("type", "default"))
    if not isinstance(rope_type, str) or rope_type not in SCALING_KEYS:
        config_json.refuse(name, f"of these scalings regard has {', '.join(SCALING_KEYS)}")
    for key, value in rope.items():
        if key not in {"rope_type", "type", "rope_theta", "original_max_position_embeddings", *SCALING_KEYS[rope_type]}:
            config_json.refuse(name, f"regard does not know its {key!r}")
        if key == "type" and value != rope_type:
            config_json.refuse(name, "its type and its rope_type differ")
    length = config_json.positive_int("max_position_embeddings")
    theta = rope.get("rope_theta", config_json.get("rope_theta"))
    base = 10_000.0 if theta is None else theta
    try:
        scaling, max_positions = _scaling(rope_type, rope, length)
    except KeyError as error:
        config_json.refuse(name, f"{error} is missing")
    except (TypeError, ValueError) as error:
        raise InputError(f"{config_json.path}: {name}: {error}") from error
    if type(base) not in (int, float) or not 1 < base <= MAX_NUMBER:
        raise InputError(
            f"{config_json.path}: rope_theta is {base!r}; it must be a number above 1 and at most {MAX_NUMBER:.1e}"
        )
    return {"positions": "rotary", "rotary_base": base, "rotary_scaling": scaling, "max_positions": max_positions}


def _scaling(rope_type: str, rope: Mapping[str, Any], length: int) -> tuple[Scaling | None, int]:
    """The scaling, and the number of positions that the model then has."""
    if rope_type == "default":
        return None, length
    factor, original = rope["factor"], rope.get("original_max_position_embeddings") or length
    if rope_type == "linear":
        return Linear(factor), int(length * factor)
    if rope_type == "dynamic":
        if original != length:
            raise ValueError(f"dynamic: original_max_position_embeddings={original} is not {length}, the positions")
        return DynamicNTK(factor, length), int(length * factor)
    if rope_type == "llama3":
        return Llama3(factor, rope["low_freq_factor"], rope["high_freq_factor"], original), length
    mscale = rope.get("mscale"), rope.get("mscale_all_dim")
    if rope.get("attention_factor") is not None or not all(mscale):
        mscale = None, None  # as in the reference, which ignores one without the other
    yarn = YaRN(
        factor,
        original,
        beta_fast=rope.get("beta_fast") or 32,
        beta_slow=rope.get("beta_slow") or 1,
        attention_factor=rope.get("attention_factor"),
        mscale=mscale[0],
        mscale_all_dim=mscale[1],
        truncate=rope.get("truncate", True),
    )
    return yarn, max(length, int(original * factor))


def window_fields(config_json: ConfigJSON, *, default_layer_types: list[str] | None = None) -> dict[str, Any]:
    """The field of `Config` for windows: ``sliding_window`` in the layers that ``layer_types`` calls sliding.

    In the file as in `Config`, a window of W holds a token and the W - 1 before it.

    Args:
        config_json: the values of the file.
        default_layer_types: the types of the layers if the file has none; by default all are sliding.

    Raises:
        InputError: another type of layer; types for another number of layers; no ``sliding_window``.
    """
    num_layers = config_json.positive_int("num_hidden_layers", maximum=10_000)
    window = config_json.get("sliding_window")
    types = config_json.get("layer_types") or default_layer_types
    if types is None:
        types = ["sliding_attention" if window is not None else "full_attention"] * num_layers
    if not isinstance(types, list) or not set(map(str, types)) <= {"sliding_attention", "full_attention"}:
        config_json.refuse("layer_types", "regard has sliding_attention and full_attention")
    if len(types) != num_layers:
        config_json.refuse("layer_types", f"there are {num_layers} layers")
    if "sliding_attention" not in types:
        return {}
    window = config_json.positive_int("sliding_window")
    return {"windows": tuple(window if each == "sliding_attention" else None for each in types)}
