"""What a config.json says of rotary positions and of windows, in the spellings of transformers 4 and 5."""

from __future__ import annotations

import math
from collections.abc import Mapping
from typing import Any

from regard.attention.positions import DynamicNTK, Linear, Llama3, YaRN
from regard.attention.positions.scaling import Scaling
from regard.errors import InputError
from regard.pretrained.config_json import Settings

__all__ = ["ROTARY", "WINDOWS", "rotary", "windows"]

ROTARY = frozenset(
    {"max_position_embeddings", "partial_rotary_factor", "rope_parameters", "rope_scaling", "rope_theta"}
)
"""The settings that `rotary` reads."""

WINDOWS = frozenset({"layer_types", "sliding_window"})
"""The settings that `windows` reads."""

KINDS: dict[str, frozenset[str]] = {
    "default": frozenset(),
    "linear": frozenset({"factor"}),
    "dynamic": frozenset({"factor"}),
    "llama3": frozenset({"factor", "low_freq_factor", "high_freq_factor"}),
    "yarn": frozenset({"factor", "beta_fast", "beta_slow", "attention_factor", "mscale", "mscale_all_dim", "truncate"}),
}
"""The kinds of scaling, and what each says beside the kind, the base and the length of training."""


def rotary(settings: Settings) -> dict[str, Any]:
    """The fields of `Config` for rotary positions.

    transformers 4 has ``rope_theta`` and ``rope_scaling``, 5 has both in ``rope_parameters``. A scaling that reaches
    beyond ``max_position_embeddings`` raises the limit: by its factor where that is the length of training (linear,
    dynamic), to factor times ``original_max_position_embeddings`` for YaRN.

    Raises:
        InputError: a kind of scaling or a part of one that regard does not have.
    """
    if settings.get("partial_rotary_factor") not in (None, 1):
        settings.refuse("partial_rotary_factor", "regard turns whole heads only (1.0)")
    both = settings.get("rope_scaling"), settings.get("rope_parameters")
    if both[0] and both[1] and both[0] != both[1]:
        settings.refuse("rope_scaling", f"rope_parameters say something else: {both[1]!r}")
    name = "rope_scaling" if both[0] else "rope_parameters"
    rope = both[0] or both[1] or {}
    if not isinstance(rope, dict):
        settings.refuse(name, "it must be an object or null")
    kind = rope.get("rope_type", rope.get("type", "default"))
    if kind not in KINDS:
        settings.refuse(name, f"of these scalings regard has {', '.join(KINDS)}")
    for key, value in rope.items():
        if key not in {"rope_type", "type", "rope_theta", "original_max_position_embeddings", *KINDS[kind]}:
            settings.refuse(name, f"regard does not know its {key!r}")
        if key == "type" and value != kind:
            settings.refuse(name, "its type and its rope_type differ")
    length = settings.whole("max_position_embeddings")
    theta = rope.get("rope_theta", settings.get("rope_theta"))
    base = 10_000.0 if theta is None else theta
    try:
        scaling, reach = _scaling(kind, rope, length)
    except KeyError as error:
        settings.refuse(name, f"{error} is missing")
    except (TypeError, ValueError) as error:
        raise InputError(f"{settings.source}: {name}: {error}") from error
    if type(base) not in (int, float) or not 1 < base < math.inf:
        raise InputError(f"{settings.source}: rope_theta is {base!r}; it must be a number above 1")
    return {"positions": "rotary", "rotary_base": base, "rotary_scaling": scaling, "max_positions": reach}


def _scaling(kind: str, rope: Mapping[str, Any], length: int) -> tuple[Scaling | None, int]:
    """The scaling, and how many positions there are with it."""
    if kind == "default":
        return None, length
    factor, original = rope["factor"], rope.get("original_max_position_embeddings") or length
    if kind == "linear":
        return Linear(factor), int(length * factor)
    if kind == "dynamic":
        if original != length:
            raise ValueError(f"dynamic: original_max_position_embeddings={original} is not {length}, the positions")
        return DynamicNTK(factor, length), int(length * factor)
    if kind == "llama3":
        return Llama3(factor, rope["low_freq_factor"], rope["high_freq_factor"], original), length
    mscale = rope.get("mscale"), rope.get("mscale_all_dim")
    if rope.get("attention_factor") is not None or not all(mscale):
        mscale = None, None  # so the reference: one alone counts for nothing
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


def windows(settings: Settings, *, otherwise: list[str] | None = None) -> dict[str, Any]:
    """The field of `Config` for windows: ``sliding_window`` in the layers that ``layer_types`` calls sliding.

    A window of W sees a token and the W - 1 before it, here as there.

    Args:
        settings: of the file.
        otherwise: the layers' types where the file says none; all sliding by default.

    Raises:
        InputError: another type of layer, types for another number of layers, no window for those that slide.
    """
    layers = settings.whole("num_hidden_layers", most=10_000)
    window = settings.get("sliding_window")
    types = settings.get("layer_types") or otherwise
    if types is None:
        types = ["sliding_attention" if window is not None else "full_attention"] * layers
    if not isinstance(types, list) or not set(map(str, types)) <= {"sliding_attention", "full_attention"}:
        settings.refuse("layer_types", "regard has sliding_attention and full_attention")
    if len(types) != layers:
        settings.refuse("layer_types", f"there are {layers} layers")
    if "sliding_attention" not in types:
        return {}
    width = settings.whole("sliding_window")
    return {"windows": tuple(width if kind == "sliding_attention" else None for kind in types)}
