"""Tables of rotary positions, and position ids, in the shapes in which code takes them."""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator
from dataclasses import replace
from typing import Any

import torch
from torch import Tensor, nn

from regard.check.target.documented_shapes import documented_shape
from regard.check.target.draft import Draft
from regard.check.target.errors import Failed
from regard.check.target.preparation import modules_in
from regard.check.target.rotations import are_neighbours_turned, are_parts_read

__all__ = [
    "QUERY_BIAS",
    "ROPE_FORMS",
    "ROPE_SHAPES",
    "check_rotated",
    "distance_candidates",
    "position_candidates",
    "query_bias_candidates",
    "rope_candidates",
    "rope_widths",
    "rotary_angles",
]

ROPE_FORMS = ("rope", "cos", "sin")
"""The roles of arguments that hold such tables."""
QUERY_BIAS = "bias of queries"
"""The role of a vector of each head that is added to queries, beside such vectors."""
ROPE_SHAPES = ("1td", "td", "11td", "1t1d", "btd", "t1d", "t11d")
"""One letter an axis, as in a layout."""
_NUMBERS_OF_KEYS: dict[str, Callable[[Draft], int]] = {
    "keys": lambda draft: draft.keys,
    "keys of both": lambda draft: draft.keys + draft.tokens,
}
"""What asks may be joined with what it is handed beside it, as the segments before (Transformer-XL)."""
BASE = 10_000.0
ROTATED = ("rotary_ndims", "rotary_dim", "rope_n_elem", "rot_dim", "qk_rope_head_dim", "rope_head_dim", "rope_dim")
"""Attributes that say how many channels of a head are turned."""
OF_HEADS = ("head_dim", "d_head", "dim_head", "head_size", "head_width", "d_k")
"""Attributes that say how wide a head is."""
_OF_KEYS = re.compile("^(?:context|memory|keys?)_|_k(?:ey|eys|v)?$")
_COMPLEX = re.compile(r"view_as_complex|complex|polar|view_as_real|cis")

Candidate = Callable[[Draft], Any]


def rotary_angles(tokens: int, width: int, first: int = 0) -> Tensor:
    """(tokens, width / 2): position times frequency; `first` is the position of the first token."""
    frequencies = BASE ** (-torch.arange(0, width, 2, dtype=torch.float64) / width)
    return torch.arange(first, first + tokens, dtype=torch.float64)[:, None] * frequencies


def rope_widths(draft: Draft) -> dict[str, int]:
    """How many channels a table may have, the likeliest first; those of half the width hold each angle once."""
    whole = draft.d_head
    inside = {f"{name} of a layer": value for name, value in _widths_of_heads(draft.target)}
    rotated = dict(_rotated(draft.target))
    found = rotated | inside | {"whole": whole} | {f"{name} half": value // 2 for name, value in rotated.items()}
    rest = {"half": whole // 2, "quarter": whole // 4, "model": draft.width, "model half": draft.width // 2}
    return {name: value for name, value in (found | rest).items() if value > 0}


def _widths_of_heads(target: Any) -> Iterator[tuple[str, int]]:
    """How wide the layers inside of a target say that a head is: a block does not say it itself."""
    for module in modules_in(target):
        for part in module.modules():
            numbers = ((name, vars(part).get(name)) for name in OF_HEADS)
            yield from ((name, value) for name, value in numbers if isinstance(value, int) and value > 1)


def check_rotated(target: Any) -> None:
    """Refuse sizes with which the target turns an odd number of channels, as a quarter of a narrow head.

    Raises:
        Failed: there is no such rotation: whatever table is handed over, channels are stretched.
    """
    for name, value in _rotated(target):
        if value % 2:
            raise Failed(f"its {name} is {value}: an odd number of channels cannot be rotated")


def _rotated(target: Any) -> Iterator[tuple[str, int]]:
    """How many channels of a head the target says that it turns."""
    for name in ROTATED:
        for owner in (target, getattr(target, "config", None)):
            value = getattr(owner, name, None)
            if isinstance(value, int) and value > 0:
                yield name, value


def rope_candidates(
    role: str, name: str, source: str, told: tuple[str, ...] = (), *, target: Any = None
) -> Iterator[tuple[str, Candidate]]:
    """Of cos, of sin, or of both in one argument; for the keys, where its name says so; `told` is its written shape."""
    told = told or documented_shape(source, name)
    if _OF_KEYS.search(name.lower()):
        for form, make in rope_candidates(role, _OF_KEYS.sub("", name.lower()), source, told, target=target):
            yield form, lambda draft, make=make: make(replace(draft, rope_tokens=draft.keys))  # type: ignore[misc]
        return
    if role != "rope":
        yield role, lambda draft: _table(draft, role)
        return
    forms: dict[str, Candidate] = {
        "pair": lambda draft: (_table(draft, "cos"), _table(draft, "sin")),
        "complex": _complex,
        "angles": lambda draft: _table(draft, "angles"),
        "stacked": lambda draft: torch.view_as_real(_complex(draft)).clone(),
        "matrices": _matrices,
        "sines and cosines": lambda draft: torch.cat((_table(draft, "sin"), _table(draft, "cos")), -1),
        "relative": lambda draft: _vectors(draft, draft.tokens - 1, -draft.tokens),
        "relative, of each sample": lambda draft: _vectors(draft, draft.tokens - 1, -draft.tokens).repeat(
            draft.sizes.batch, 1, 1
        ),
        "of each key": lambda draft: _vectors(draft, draft.keys - 1, -1),
        "none": lambda draft: None,
    }
    complex_first = "cis" in name or "complex" in name or _COMPLEX.search(source) is not None
    is_twice = bool(told) and re.match(r"2\s*\*", told[-1]) is not None
    first = "sines and cosines" if is_twice else "complex" if complex_first else "angles" if "freq" in name else "pair"
    if not is_twice and are_parts_read(target, source):
        first = "stacked"
        del forms["complex"]  # it would run where a view has as many numbers
    yield first, forms.pop(first)
    yield from forms.items()


def distance_candidates() -> Iterator[tuple[str, Candidate]]:
    """A vector for each key's distance from the last query, with an axis of samples behind, without, or in front."""
    for keys, count in _NUMBERS_OF_KEYS.items():
        yield f"({keys}, 1, width)", lambda draft, count=count: _distances(draft, count).transpose(0, 1)  # type: ignore[misc]
        yield f"({keys}, width)", lambda draft, count=count: _distances(draft, count)[0]  # type: ignore[misc]
        yield f"(1, {keys}, width)", lambda draft, count=count: _distances(draft, count)  # type: ignore[misc]


def _distances(draft: Draft, count: Callable[[Draft], int]) -> Tensor:
    return _vectors(draft, count(draft) - 1, -1)


def query_bias_candidates() -> Iterator[tuple[str, Candidate]]:
    """A vector of each head, or those of all heads side by side."""
    yield "vector of each head", lambda draft: draft.draw(draft.sizes.heads, _width_of_layers(draft))
    yield "vector", lambda draft: draft.draw(draft.sizes.heads * draft.d_head)
    yield "vector of each head, as wide as the tokens tell", lambda draft: draft.draw(draft.sizes.heads, draft.d_head)
    yield "vector of each head, of its own width", lambda draft: draft.draw(draft.sizes.heads, _width_of_its_own(draft))


def _width_of_layers(draft: Draft) -> int:
    """How wide a head is; where layers make heads that together are not as wide as the tokens, as they say."""
    layers = (each for module in modules_in(draft.target) for each in module.modules())
    made = [each.out_features for each in layers if isinstance(each, nn.Linear)]
    others = [each for each in made if each % draft.sizes.heads == 0 and each % draft.width]
    return min(others) // draft.sizes.heads if others else draft.d_head


def _width_of_its_own(draft: Draft) -> int:
    """The same where all heads together may be some times as wide as the tokens, as 4 heads of 8 for tokens of 16."""
    layers = (each for module in modules_in(draft.target) for each in module.modules())
    made = [each.out_features for each in layers if isinstance(each, nn.Linear)]
    others = [each for each in made if each % draft.sizes.heads == 0 and each != draft.width]
    return min(others) // draft.sizes.heads if others else draft.d_head


def position_candidates() -> Iterator[tuple[str, Candidate]]:
    """Position ids."""
    yield "row", lambda draft: torch.arange(draft.tokens)[None]
    yield "vector", lambda draft: torch.arange(draft.tokens)
    yield "of each sample", lambda draft: torch.arange(draft.tokens).expand(draft.sizes.batch, -1).clone()
    yield "rows and columns", lambda draft: _places(draft).expand(draft.sizes.batch, -1, -1).clone()
    yield "none", lambda draft: None


def _places(draft: Draft) -> Tensor:
    """(tokens, 2): the row and the column of each token in a picture."""
    places, columns = torch.arange(draft.tokens), draft.grid[1]
    return torch.stack([places // columns, places % columns], -1)


def _table(draft: Draft, kind: str) -> Tensor:
    """Cos, sin or angles: each angle twice where the table is as wide as what is rotated."""
    check_rotated(draft.target)
    label, width = draft.rope
    shape, _, size = label.partition(" ")
    if size.endswith("half"):
        angles = rotary_angles(draft.places, 2 * width, draft.first)
    else:
        angles = rotary_angles(draft.places, max(2, width), draft.first)
        said = "neighbours" if are_neighbours_turned(draft.target, draft.source) else "halves"
        pairs = draft.pairs or said
        if pairs == "halves of two parts" and width % 4 == 0:  # of rows and of columns, as if both were the position
            angles = rotary_angles(draft.places, width // 2, draft.first).repeat(1, 2)
        angles = angles.repeat_interleave(2, -1) if pairs == "neighbours" else torch.cat((angles, angles), -1)
    return _shaped(draft, {"cos": angles.cos(), "sin": angles.sin()}.get(kind, angles), shape)


def _complex(draft: Draft) -> Tensor:
    label, width = draft.rope
    shape, _, size = label.partition(" ")
    angles = rotary_angles(draft.places, 2 * width if size.endswith("half") else max(2, width), draft.first)
    return _shaped(draft, torch.polar(torch.ones_like(angles), angles), shape)


def _matrices(draft: Draft) -> Tensor:
    """The same with a matrix (2, 2) for each angle: it turns a pair of channels."""
    pair = torch.view_as_real(_complex(draft))
    cos, sin = pair[..., 0], pair[..., 1]
    return torch.stack((torch.stack((cos, -sin), -1), torch.stack((sin, cos), -1)), -2)


def _vectors(draft: Draft, first: int, end: int) -> Tensor:
    """(1, distances, width): a vector for each distance, as from the farthest key before a query to that after it."""
    distance = torch.arange(first, end, -1, dtype=torch.float64)
    width = draft.width + draft.width % 2
    angles = distance[:, None] * BASE ** (-torch.arange(0, width, 2, dtype=torch.float64) / width)
    return torch.stack((angles.sin(), angles.cos()), -1).flatten(1)[None, :, : draft.width]


def _shaped(draft: Draft, table: Tensor, shape: str) -> Tensor:
    index = tuple(slice(None) if letter in "td" else None for letter in shape)
    sizes = [draft.sizes.batch if letter == "b" else -1 for letter in shape]
    return table[index].expand(sizes).clone()
