"""Anything callable is constructed: configs, lazy layers, temperatures."""

from __future__ import annotations

from dataclasses import dataclass
from enum import Enum
from types import SimpleNamespace
from typing import Any

import pytest
import torch
from target_calls import Packed, attention, first
from torch import Tensor, nn

from regard.check import check
from regard.check.properties.analyze import analyze
from regard.check.target import invocations
from regard.check.target.configs import number
from regard.check.target.sizes import COINCIDENT_SIZES, DISTINCT_SIZES

pytestmark = pytest.mark.more  # seconds a test: it is run by make test-more


@dataclass
class TinyConfig:
    n_embd: int = 768
    n_head: int = 12
    bias: bool = True
    strange: str = "yes"


class FromDataclass(Packed):
    def __init__(self, config: TinyConfig) -> None:
        super().__init__(config.n_embd, config.n_head, config.strange == "yes")


class FromDict(Packed):
    def __init__(self, cfg) -> None:
        super().__init__(cfg["emb_dim"], cfg["n_heads"], cfg.get("mystery", True))


class FromNames(Packed):
    def __init__(self, cfg) -> None:
        super().__init__(cfg.hidden_size, cfg.num_attention_heads, getattr(cfg, "mystery", True))


@pytest.mark.parametrize("kind", [FromDataclass, FromDict, FromNames])
def test_configs_are_made_by_name(kind: type) -> None:
    assert first(kind).arguments["x"].shape == (2, 5, 12)


@pytest.mark.parametrize(
    ("kind", "args"),
    [
        (FromDataclass, {"n_embd": 20, "n_head": 2}),
        (FromDict, {"emb_dim": 20, "n_heads": 2}),
        (FromNames, {"hidden_size": 20, "num_attention_heads": 2}),
    ],
)
def test_the_user_s_arguments_reach_the_fields_of_a_config(kind: type, args: dict[str, int]) -> None:
    invocation = first(kind, **args)
    assert invocation.arguments["x"].shape[-1] == 20
    assert invocation.target.heads == 2


class MaskKind(Enum):
    NONE = "none"
    CAUSAL = "causal"


class Masked(Packed):
    def __init__(self, d_model: int, mask_kind) -> None:
        super().__init__(d_model, 1)
        self.is_causal = {MaskKind.NONE: False, MaskKind.CAUSAL: True}[mask_kind]


class MaskedAsAnnotated(Masked):
    def __init__(self, d_model: int, kept: MaskKind) -> None:
        super().__init__(d_model, kept)


@pytest.mark.parametrize("kind", [Masked, MaskedAsAnnotated])
def test_a_member_of_the_enumeration_that_an_argument_names_is_given(kind: type) -> None:
    assert first(kind).target.is_causal is False


KINDS = {"plain": nn.Identity, "other": nn.Identity}


class FromATable(Packed):
    def __init__(self, width: int, heads: int, kind_of_norm: str) -> None:
        super().__init__(width, heads)
        self.norm = KINDS[kind_of_norm]()


def test_a_text_that_is_looked_up_in_a_table_of_the_file_is_one_of_its_keys() -> None:
    assert isinstance(first(FromATable).target.norm, nn.Identity)


class Wide(Packed):
    def __init__(self, input_size: int, hidden_layer_size: int = 4096) -> None:
        super().__init__(input_size, 1)
        self.hidden_layer_size = hidden_layer_size


def test_a_large_default_of_a_width_is_replaced() -> None:
    assert first(Wide).target.hidden_layer_size < 64


@dataclass
class WholeConfig:
    """Of a model of several parts: it has no sizes of its own."""

    tie_parts: bool = True


@dataclass
class WholeTextConfig:
    hidden_size: int = 768
    num_attention_heads: int = 12
    strange_rate: int = 1


class OfAPart(Packed):
    def __init__(self, config: WholeConfig) -> None:
        super().__init__(config.hidden_size // config.strange_rate, config.num_attention_heads)


@dataclass
class DecoderConfig:
    hidden_size: int = 768

    def told(self, memory_width: int) -> None:
        """What the model that holds both parts tells its decoder of the encoder."""
        self.cross_attention_hidden_size = memory_width


class OfADecoder(Packed):
    def __init__(self, config: DecoderConfig) -> None:
        super().__init__(config.hidden_size, 3)
        self.memory = nn.Linear(config.cross_attention_hidden_size, config.hidden_size)


@dataclass
class StrictConfig:
    hidden_size: int = 768
    num_attention_heads: int = 64
    num_key_value_heads: int = 64
    num_hidden_layers: int = 4
    layer_types: tuple[str, ...] = ("full",) * 4

    def __post_init__(self) -> None:
        if self.num_key_value_heads != self.num_attention_heads or self.num_hidden_layers != len(self.layer_types):
            raise ValueError("its sizes do not fit together")


class OfStrictSizes(Packed):
    def __init__(self, config: StrictConfig) -> None:
        super().__init__(config.hidden_size, config.num_attention_heads)
        assert config.layer_types[0] == "full"


class PretrainedConfig:
    """What a config of a part may be: it knows nothing of the part."""


@dataclass
class OfSoundConfig:
    hidden_size: int = 768
    num_attention_heads: int = 12
    sound_config: PretrainedConfig | None = None
    num_codes: int | None = None

    def __post_init__(self) -> None:
        if self.sound_config is not None:
            self.num_codes = self.sound_config.num_codes  # type: ignore[attr-defined]


class BesideSound(Packed):
    def __init__(self, config: OfSoundConfig) -> None:
        super().__init__(config.hidden_size, config.num_attention_heads)
        assert isinstance(config, OfSoundConfig)


@pytest.mark.parametrize("kind", [OfAPart, OfADecoder, OfStrictSizes, BesideSound])
def test_a_config_has_the_fields_that_its_module_reads_and_sizes_that_fit_together(kind: type) -> None:
    assert first(kind).arguments["x"].shape == (2, 5, 12)


class Scaled(nn.Module):
    def __init__(self, temperature: float, attn_dropout: float = 0.1) -> None:
        super().__init__()
        self.temperature = temperature

    def forward(self, q: Tensor, k: Tensor, v: Tensor, mask: Tensor | None = None) -> Any:
        weights = (q / self.temperature @ k.mT).softmax(-1)
        return weights @ v, weights


class ScaledBack(Scaled):
    def __init__(self, scale: float) -> None:
        super().__init__(1 / scale)

    def forward(self, q: Tensor, k: Tensor, v: Tensor, mask: Tensor | None = None) -> Any:
        return super().forward(q * self.temperature, k, v)[0]


def test_a_temperature_is_the_root_of_the_width() -> None:
    assert first(Scaled).target.temperature == 2.0


def test_a_lazy_layer_takes_its_width_from_the_call() -> None:
    class Lazy(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.q, self.v = nn.LazyLinear(6), nn.LazyLinear(6)

        def forward(self, x: Tensor) -> Tensor:
            return attention(self.q(x), self.q(x), self.v(x))

    invocation = first(Lazy)
    assert torch.equal(invocation.run(), invocation.run())


class OfOneKind(Packed):
    """fairseq's way: one of two has to be said, and neither is by default."""

    def __init__(self, args, embed_dim, num_heads, self_attention=False, cross_attention=False) -> None:
        assert self_attention ^ cross_attention
        super().__init__(embed_dim, num_heads)
        self.norm = nn.LayerNorm(embed_dim) if args.subln_inside else None


def test_of_options_that_are_all_off_one_is_switched_on_where_a_class_cannot_be_made_without() -> None:
    invocation = first(OfOneKind)
    assert invocation.arguments["x"].shape == (2, 5, 12)
    assert {"self_attention=True", "config.subln_inside=False"} <= {*invocation.assumptions}


class OfAGrid(Packed):
    """TinyViT's: a bias for each offset within a map of features of one size."""

    def __init__(self, dim: int, num_heads: int, resolution: tuple[int, int] = (14, 14)) -> None:
        super().__init__(dim, num_heads)
        self.bias = nn.Parameter(torch.zeros(num_heads, resolution[0] * resolution[1], resolution[0] * resolution[1]))

    def forward(self, x: Tensor) -> Tensor:
        q, k, v = self.qkv(x).unflatten(-1, (3, self.heads, -1)).permute(2, 0, 3, 1, 4)
        return ((q @ k.mT + self.bias).softmax(-1) @ v).transpose(1, 2).flatten(2)


def test_a_map_of_features_is_small() -> None:
    assert first(OfAGrid).arguments["x"].shape == (2, 24, 12)


class TurnedInPairs(nn.Module):
    """Each angle stands twice in the table, side by side, for channels that stand side by side."""

    def __init__(self, dim: int, heads: int, rotary_dim: int = 16, halves: bool = False) -> None:
        super().__init__()
        self.heads, self.rotary_dim, self.halves = heads, rotary_dim, halves
        self.qkv = nn.Linear(dim, 3 * dim)

    def turned(self, x: Tensor) -> Tensor:
        part, rest = x[..., : self.rotary_dim], x[..., self.rotary_dim :]
        pairs = torch.arange(self.rotary_dim // 2, dtype=x.dtype)
        angles = torch.arange(x.shape[2])[:, None] * (10000 ** (-2 * pairs / self.rotary_dim)).repeat_interleave(2)
        one, other = part.chunk(2, -1) if self.halves else (part[..., ::2], part[..., 1::2])
        across = torch.cat((-other, one), -1) if self.halves else torch.stack((-other, one), -1).flatten(-2)
        return torch.cat((part * angles.cos() + across * angles.sin(), rest), -1)

    def forward(self, x: Tensor) -> Tensor:
        q, k, v = (each.unflatten(-1, (self.heads, -1)).transpose(1, 2) for each in self.qkv(x).chunk(3, -1))
        return attention(self.turned(q), self.turned(k), v).transpose(1, 2).flatten(2)


@pytest.mark.parametrize("halves", [False, True])
def test_so_many_channels_are_rotated_that_their_order_shows(halves: bool) -> None:
    violated = {each.property for each in analyze(first(TurnedInPairs, halves=halves)).violations}
    assert violated == ({"rotation-keeps-lengths"} if halves else set())


def test_rotated_channels_beside_others_are_of_two_pairs_at_least() -> None:
    sizes = DISTINCT_SIZES[0]
    assert (number("rotary", "qk_rope_head_dim", sizes), number("rotary", "rotary_dim", sizes)) == (6, 4)
    assert number("rotary", "rotary_dim", COINCIDENT_SIZES[0]) == 2


class OfAnyNames(nn.Module):
    """All that a constructor takes is named by who calls it."""

    def __init__(self, **params: int) -> None:
        super().__init__()
        self.packed = Packed(params["embedding_dim"], params["head_num"])

    def forward(self, x: Tensor) -> Tensor:
        return self.packed(x)


def test_arguments_by_any_name_reach_a_constructor_that_names_none() -> None:
    assert first(OfAnyNames, embedding_dim=16, head_num=2).arguments["x"].shape == (2, 5, 16)


class Around(nn.Module):
    """Of an attention that is made before, and that a call of its own would fail with."""

    def __init__(self, inner: nn.Module) -> None:
        super().__init__()
        self.inner = inner

    def forward(self, x: Tensor) -> Tensor:
        return self.inner(x)


def test_a_module_that_a_user_makes_is_handed_over_as_a_copy_and_not_called() -> None:
    inner = Packed(16, 2)
    call = first(Around, inner=inner)
    assert call.arguments["x"].shape[-1] == 16
    assert call.target.inner is not inner


class OfSoManySamples(nn.Module):
    """It keeps keys of as many samples as its config says."""

    def __init__(self, config: SimpleNamespace) -> None:
        super().__init__()
        self.packed, self.kept = Packed(config.dim, config.n_heads), torch.zeros(config.max_batch_size, 8, 1)

    def forward(self, x: Tensor) -> Tensor:
        self.kept[: len(x), : x.shape[1]] = x[..., :1]
        return self.packed(x)


def test_a_cache_that_an_object_of_the_user_s_sizes_holds_as_many_samples_as_it_says() -> None:
    calls = [*invocations(OfSoManySamples, args={"config": SimpleNamespace(dim=16, n_heads=4, max_batch_size=2)})]
    assert {len(each.arguments["x"]) for each in calls} == {2}


class SaysNothing(Packed):
    """Its own train() returns nothing, and so does eval() then."""

    def train(self, mode: bool = True) -> None:  # type: ignore[override]
        super().train(mode)


def test_a_module_whose_train_returns_nothing_is_judged() -> None:
    report = check(SaysNothing, args={"width": 12, "heads": 3})
    assert (report.verdict, report.reasons) == ("different by design", ())
