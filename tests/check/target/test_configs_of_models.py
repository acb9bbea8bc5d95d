"""Configs as models have them: of the model that inherits, of as many layers as are counted, of parts' heads."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from target_calls import Packed, first
from torch import Tensor


@dataclass
class OtherConfig:
    n_embd: int = 768
    n_head: int = 12


class OtherAttention(Packed):
    def __init__(self, config: OtherConfig) -> None:
        super().__init__(config.n_embd, config.n_head)
        self.config = config


@dataclass
class StretchedConfig(OtherConfig):
    stretch: float = 2.0


class StretchedAttention(OtherAttention):
    config: Any

    def forward(self, x: Tensor) -> Tensor:
        return super().forward(self.config.stretch * x)


def test_an_inherited_constructor_is_given_the_config_of_the_class_s_own_model() -> None:
    assert type(first(StretchedAttention).target.config) is StretchedConfig
    assert type(first(OtherAttention).target.config) is OtherConfig


@dataclass
class DeepConfig(OtherConfig):
    num_layers: int = 12
    num_shared_layers: int = 8
    linear_num_heads: int = 64
    linear_head_dim: int = 128
    rotary_dim: int = 0

    def __post_init__(self) -> None:
        if self.rotary_dim:
            raise ValueError("this model has no rotary positions")

    @property
    def kinds(self) -> list[str]:
        if self.num_shared_layers >= self.num_layers:
            raise ValueError("every layer is shared")
        return ["own"] * (self.num_layers - self.num_shared_layers) + ["shared"] * self.num_shared_layers


class ShallowAttention(Packed):
    def __init__(self, config: DeepConfig) -> None:
        super().__init__(config.n_embd, config.n_head)
        self.config = config


class DeepAttention(ShallowAttention):
    def __init__(self, config: DeepConfig, layer_idx: int) -> None:
        super().__init__(config)
        self.kind = config.kinds[layer_idx]


def test_a_config_has_the_layers_that_its_other_fields_count_and_small_heads_of_every_part() -> None:
    shallow, deep = first(ShallowAttention).target.config, first(DeepAttention).target.config
    assert (shallow.num_layers, deep.num_layers) == (2, 12)
    assert (deep.linear_num_heads, deep.linear_head_dim, deep.rotary_dim) == (3, 4, 0)
