"""Constructors say by annotations, by longer names and by their errors what they take."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch
from target_calls import Packed, attention, first
from torch import Tensor, nn

from regard.check.target.best_first import best_first
from regard.check.target.errors import Failed


class OfPairs(Packed):
    """A map of features that is rolled before it is cut into windows of a bias."""

    def __init__(self, dim: int, window_size: list[int], shift_size: list[int], num_heads: int) -> None:
        if len(window_size) != 2 or len(shift_size) != 2:
            raise ValueError("two sides each")
        super().__init__(dim, num_heads)
        self.window_size, self.shift_size = window_size, shift_size
        self.bias = nn.Parameter(torch.zeros(window_size[0] * window_size[1], window_size[0] * window_size[1]))

    def forward(self, x: Tensor) -> Tensor:
        q, k, v = self.qkv(x).unflatten(-1, (3, self.heads, -1)).permute(2, 0, 3, 1, 4)
        return ((q @ k.mT / q.shape[-1] ** 0.5 + self.bias).softmax(-1) @ v).transpose(1, 2).flatten(2)


def test_what_is_annotated_as_a_list_is_given_a_list() -> None:
    target = first(OfPairs).target
    assert (target.window_size, target.shift_size) == ([3, 3], [0, 0])


class OfALayer(nn.Module):
    """A layer that is handed its attention, a class of another file."""

    def __init__(self, attn: Packed, expand_ratio: float, norm_layer: Callable[..., nn.Module]) -> None:
        super().__init__()
        self.attn, self.norm = attn, norm_layer(attn.qkv.in_features)

    def forward(self, x: Tensor) -> Tensor:
        return x + self.attn(self.norm(x))


def test_a_module_of_another_file_is_made_and_a_class_is_given_where_one_is_called() -> None:
    target = first(OfALayer).target
    assert isinstance(target.attn, Packed)
    assert isinstance(target.norm, nn.LayerNorm)


class OfFieldsWithAPrefix(Packed):
    def __init__(self, args: dict[str, Any]) -> None:
        super().__init__(args["td_sa_d_model"], args["td_sa_nhead"])
        self.wide = nn.Linear(args["td_sa_d_model"], args["td_sa_h"])


def test_fields_of_a_config_may_begin_alike() -> None:
    invocation = first(OfFieldsWithAPrefix)
    assert {"config.td_sa_d_model=12", "config.td_sa_nhead=3"} <= {*invocation.assumptions}


class OfAName(Packed):
    """All but one of many options may be left out, and the error names it."""

    def __init__(self, dim: int, depth: int | None = None, a=None, b=None, c: int = 2, **more: int) -> None:
        assert depth is not None, "`depth` must be passed in"
        super().__init__(dim, 3)


class OfKeywords(OfAName):
    def __init__(self, **kwargs: int) -> None:
        super().__init__(**kwargs)


def test_what_an_error_names_is_given() -> None:
    for kind in (OfAName, OfKeywords):
        assert {"dim=12", "depth=2"} <= {*first(kind).assumptions}


class OfASide(nn.Module):
    """CLIP's: a learned vector for each place of a square map, and one for their mean."""

    def __init__(self, side_dim: int, embed_dim: int) -> None:
        super().__init__()
        self.places = nn.Parameter(torch.randn(side_dim**2 + 1, embed_dim))

    def forward(self, x: Tensor) -> Tensor:
        x = x.flatten(start_dim=2).permute(0, 2, 1)
        x = torch.cat([x.mean(dim=1, keepdim=True), x], dim=1) + self.places
        return attention(x[:, :1], x, x)


def test_rows_that_are_the_square_of_a_number_are_places_of_a_map() -> None:
    assert first(OfASide).arguments["x"].shape == (2, 12, 4, 4)


def test_what_an_error_names_is_changed_first() -> None:
    tried = []

    def attempt(choices: dict[str, int]) -> bool:
        tried.append(dict(choices))
        if choices["last"] == 0:
            raise Failed("last has to be another", named=frozenset({"last"}))
        return True

    assert next(best_first({"first": 5, "second": 5, "last": 2}, attempt, 9).results())
    assert tried == [{"first": 0, "second": 0, "last": 0}, {"first": 0, "second": 0, "last": 1}]


def test_no_other_size_is_tried_where_a_number_of_axes_is_wrong() -> None:
    def attempt(choices: dict[str, int]) -> bool:
        raise Failed("not enough values to unpack", of_axes=True)

    search = best_first({"width": 5, "argument x": 2}, attempt, 9, {"width"})
    assert list(search.results()) == []
    assert search.tries == 2
