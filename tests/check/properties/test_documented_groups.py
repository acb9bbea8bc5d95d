"""Groups of heads that share keys, where comments or the axes of patterns say which heads stand side by side."""

from __future__ import annotations

import pytest
import torch
from einops import rearrange, repeat
from torch import Tensor, nn

from property_cases import WIDTH, of_module
from regard.check import check
from regard.check.properties.analyze import analyze

pytestmark = pytest.mark.more  # seconds a test: it is run by make test-more


class Grouped(nn.Module):
    """Attention whose queries are more than its keys."""

    def __init__(self, width: int = WIDTH, many: int = 4, few: int = 2) -> None:
        super().__init__()
        self.many, self.few = many, few
        self.of_q = nn.Linear(width, width)
        self.of_k, self.of_v = (nn.Linear(width, width // many * few) for _ in range(2))
        self.out = nn.Linear(width, width)

    @property
    def matrices(self) -> tuple[nn.Linear, ...]:
        return self.of_q, self.of_k, self.of_v

    @property
    def heads(self) -> tuple[int, ...]:
        return self.many, self.few, self.few

    def split(self, x: Tensor, heads: int) -> Tensor:
        return x.unflatten(-1, (heads, -1)).transpose(1, 2)

    def read(self, q: Tensor, k: Tensor, v: Tensor) -> Tensor:
        weights = (q @ k.transpose(-2, -1) * q.shape[-1] ** -0.5).softmax(-1)
        return self.out((weights @ v).transpose(1, 2).flatten(2))


class WithAComment(Grouped):
    is_tiled = False

    def forward(self, x: Tensor) -> Tensor:
        q, k, v = (self.split(each(x), n) for each, n in zip(self.matrices, self.heads, strict=True))
        times = self.many // self.few
        # the query heads of a group are side by side
        if self.is_tiled:
            k, v = k.repeat(1, times, 1, 1), v.repeat(1, times, 1, 1)
        else:
            k, v = (each[:, :, None].expand(-1, -1, times, -1, -1).flatten(1, 2) for each in (k, v))
        return self.read(q, k, v)


def repeat_kv(x: Tensor, n_rep: int, *, is_tiled: bool) -> Tensor:
    if is_tiled:
        return x[:, None].expand(-1, n_rep, -1, -1, -1).flatten(1, 2)
    return x[:, :, None].expand(-1, -1, n_rep, -1, -1).flatten(1, 2)


class ByItsName(Grouped):
    is_tiled = False

    def forward(self, x: Tensor) -> Tensor:
        q, k, v = (self.split(each(x), n) for each, n in zip(self.matrices, self.heads, strict=True))
        k, v = (repeat_kv(each, self.many // self.few, is_tiled=self.is_tiled) for each in (k, v))
        return self.read(q, k, v)


def tiled_heads(x: Tensor, times: int) -> Tensor:
    return x.repeat(1, times, 1, 1)


class TiledByItsName(Grouped):
    def forward(self, x: Tensor) -> Tensor:
        q, k, v = (self.split(each(x), n) for each, n in zip(self.matrices, self.heads, strict=True))
        return self.read(q, *(tiled_heads(each, self.many // self.few) for each in (k, v)))


class Tiled(Grouped):
    def forward(self, x: Tensor) -> Tensor:
        # adjacent channels are of one head
        q, k, v = (self.split(each(x), n) for each, n in zip(self.matrices, self.heads, strict=True))
        k, v = (torch.cat([each] * (self.many // self.few), 1) for each in (k, v))
        return self.read(q, k, v)


class ByPatterns(Grouped):
    is_tiled = False

    def forward(self, x: Tensor) -> Tensor:
        q = rearrange(self.of_q(x), "b t (kv n d) -> b (kv n) t d", kv=self.few, n=self.many // self.few)
        k, v = (rearrange(each(x), "b t (kv d) -> b kv t d", kv=self.few) for each in (self.of_k, self.of_v))
        if self.is_tiled:
            k, v = (repeat(each, "b kv t d -> b (n kv) t d", n=self.many // self.few) for each in (k, v))
        else:
            k, v = (repeat(each, "b kv t d -> b (kv n) t d", n=self.many // self.few) for each in (k, v))
        return self.read(q, k, v)


class ByPatternsThatAgree(Grouped):
    def forward(self, x: Tensor) -> Tensor:
        q = rearrange(self.of_q(x), "b t (n kv d) -> b (n kv) t d", kv=self.few, n=self.many // self.few)
        k, v = (rearrange(each(x), "b t (kv d) -> b kv t d", kv=self.few) for each in (self.of_k, self.of_v))
        k, v = (repeat(each, "b kv t d -> b (n kv) t d", n=self.many // self.few) for each in (k, v))
        return self.read(q, k, v)


class WithValuesInTwoParts(Grouped):
    """As many heads of keys as of queries, in consecutive groups; each head's weights read two halves of the values."""

    def __init__(self) -> None:
        super().__init__(few=4)

    def forward(self, x: Tensor) -> Tensor:
        # the query heads of a group are side by side
        q, k, v = (self.split(each(x), n) for each, n in zip(self.matrices, self.heads, strict=True))
        parts = []
        for part in v.chunk(2, -1):
            parts.append((q @ k.transpose(-2, -1) * q.shape[-1] ** -0.5).softmax(-1) @ part)
        return self.out(torch.cat(parts, -1).transpose(1, 2).flatten(2))


class ByAShape(Grouped):
    is_tiled = False

    def forward(self, x: Tensor) -> Tensor:
        q, k, v = (self.split(each(x), n) for each, n in zip(self.matrices, self.heads, strict=True))
        if self.is_tiled:
            return self.read(q, *map(self.tiled, (k, v)))
        return self.read(q, *map(self.repeated, (k, v)))

    def repeated(self, k: Tensor) -> Tensor:
        b, kv_heads, t, d, n_rep = *k.shape, self.many // self.few
        # (B, KV_Heads, N_Rep, T, D)
        k = k[:, :, None].expand(b, kv_heads, n_rep, t, d)
        return k.flatten(1, 2)

    def tiled(self, k: Tensor) -> Tensor:
        b, kv_heads, t, d, n_rep = *k.shape, self.many // self.few
        # (B, KV_Heads, N_Rep, T, D)
        k = k[:, None].expand(b, n_rep, kv_heads, t, d)
        return k.flatten(1, 2)


class ByAShapeThatAgrees(Grouped):
    def forward(self, x: Tensor) -> Tensor:
        q, k, v = (self.split(each(x), n) for each, n in zip(self.matrices, self.heads, strict=True))
        return self.read(q, *map(self.tiled, (k, v)))

    def tiled(self, k: Tensor) -> Tensor:
        b, kv_heads, t, d, n_rep = *k.shape, self.many // self.few
        # (B, N_Rep, KV_Heads, T, D)
        k = k[:, None].expand(b, n_rep, kv_heads, t, d)
        return k.flatten(1, 2)


@pytest.mark.parametrize(
    ("kind", "says"),
    [
        (WithAComment, "a comment"),
        (ByPatterns, "the pattern of the queries, (kv n),"),
        (ByAShape, "a comment"),
        (ByItsName, "the name of repeat_kv"),
    ],
)
def test_keys_are_not_tiled_where_the_code_says_that_heads_of_a_group_are_side_by_side(
    kind: type[Grouped], says: str
) -> None:
    kind.is_tiled = True
    try:
        found = analyze(of_module(kind)).violations
    finally:
        kind.is_tiled = False
    assert [(each.property, says in each.message) for each in found] == [("heads-paired", True)]
    assert not analyze(of_module(kind)).violations


def test_keys_may_be_tiled_where_nothing_says_of_which_heads_a_group_is() -> None:
    assert not analyze(of_module(ByPatternsThatAgree)).violations
    assert not analyze(of_module(ByAShapeThatAgrees)).violations
    assert not analyze(of_module(Tiled)).violations
    assert not analyze(of_module(TiledByItsName)).violations


def test_heads_with_the_same_queries_and_keys_are_one_whose_values_are_read_in_parts() -> None:
    assert not analyze(of_module(WithValuesInTwoParts)).violations


class FieldsOfAClass:
    hidden_size = 64
    num_attention_heads = 8
    num_key_value_heads = 2


class OfAConfig(Grouped):
    """Its config has no constructor: fields are attributes of the class."""

    is_right = True

    def __init__(self, config: FieldsOfAClass = FieldsOfAClass()) -> None:  # noqa: B008
        super().__init__(config.hidden_size, config.num_attention_heads, config.num_key_value_heads)

    def forward(self, x: Tensor) -> Tensor:
        q, k, v = (self.split(each(x), n) for each, n in zip(self.matrices, self.heads, strict=True))
        return self.read(q, *(repeat_kv(each, self.many // self.few, is_tiled=not self.is_right) for each in (k, v)))


class OfAConfigTiled(OfAConfig):
    is_right = False


def test_fields_of_a_class_without_a_constructor_are_told_that_heads_share_keys() -> None:
    assert [check(each).verdict for each in (OfAConfig, OfAConfigTiled)] == ["right", "wrong"]
