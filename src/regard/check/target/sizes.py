"""Sizes of one call: all different, or all the same, on purpose."""

from __future__ import annotations

import re
import sys
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, replace
from typing import Any

from regard.check.target.names import constructor_meaning, side_names

__all__ = ["COINCIDENT_SIZES", "DISTINCT_SIZES", "SQUARE_SIZES", "WINDOWED_SIZES", "Sizes", "both_sides"]


_VARIABLES = re.compile(r"enc_in|n_?vars|n(?:um)?_(?:vars|variables|series)")
"""Names of how many numbers are measured at each time of a series."""


@dataclass(frozen=True)
class Sizes:
    """Of a target and its inputs."""

    batch: int
    tokens: int
    context: int
    heads: int
    kv_heads: int
    d_head: int
    given: tuple[tuple[str, int], ...] = ()
    """What the user's arguments of the constructor fixed, by meaning: ("d_model", 64)."""
    beyond_window: bool = False
    """Whether there are to be more tokens than a window that the user asked for."""
    dropout: float = 0.1
    """What constructors are told that take none by default: not 0, so that dropout left on shows."""
    positions: bool = False
    """Whether options that ask for rotary positions, or others, are switched on."""

    grid: tuple[int, int] | None = None
    """Height and width of a map of features, where a user's argument says them."""
    named: tuple[tuple[str, int], ...] = ()
    """The same by the names of the arguments, whatever they mean: a documentation may write these as sizes of axes."""

    @property
    def frames(self) -> int:
        """Of a video."""
        return dict(self.given).get("frames", 3)

    @property
    def d_model(self) -> int:
        """The width of the tokens."""
        return dict(self.given).get("d_model", self.heads * self.d_head)

    @property
    def d_context(self) -> int:
        """The width of the context, where a constructor is told one."""
        return dict(self.given).get("d_context", self.d_model)

    @property
    def image(self) -> int:
        """Height and width of an image: it has 9 patches."""
        return 3 * self.patch

    @property
    def patch(self) -> int:
        """Height and width of a patch of an image."""
        return dict(self.given).get("patch", 2)

    @property
    def window(self) -> int:
        """Height and width of a window of an image, or a number of tokens."""
        return dict(self.given).get("window", 3)

    @property
    def length(self) -> int:
        """The largest number of tokens."""
        return dict(self.given).get("length", 16)

    def names_length(self, axes: Iterable[str]) -> bool:
        """Whether the user says the largest number of tokens, and one of some axes is called after it."""
        words = (each for each in axes if len(each) > 1)  # a letter may be any number
        return "length" in dict(self.given) and any(constructor_meaning(each) == "length" for each in words)

    @property
    def vocab(self) -> int:
        """The number of token ids."""
        return dict(self.given).get("vocab", 11)

    def with_arguments(self, args: Mapping[str, Any]) -> Sizes:
        """The sizes that hold where a user gave some arguments of the constructor, or fields of its config."""
        given: dict[str, int] = {}
        grid: tuple[int, int] | None = None
        fields = [
            (_of_its_owner(name, field), each)
            for name, value in args.items()
            if isinstance(value, Mapping)
            for field, each in value.items()
        ]
        sides = side_names(args)
        if sides and all(type(args[each]) is int for each in sides):
            grid = (args[sides[0]], args[sides[1]])
        for name, value in (*args.items(), *fields):
            means = None if name in sides else constructor_meaning(name)
            if means in ("image", "grid") and grid is None:
                grid = both_sides(value)
            if means == "patch" and (both := both_sides(value)) is not None and both[0] == both[1]:
                value = both[0]
            if means is not None and isinstance(value, int) and not isinstance(value, bool):
                given.setdefault(means, value)
            if _VARIABLES.fullmatch(name) and type(value) is int:
                given.setdefault("variables", value)
        heads = given.get("heads", self.heads if "heads" in given or "d_model" not in given else 0)
        if not heads:
            heads = next(n for n in (self.heads, 4, 2, 1) if given["d_model"] % n == 0)
        d_head = given.get("d_head", self.d_head)
        if "d_model" in given and "d_head" not in given:
            d_head = max(1, given["d_model"] // heads)
        kv_heads = given.get("kv_heads", heads // 2 if self.kv_heads != self.heads and heads % 2 == 0 else heads)
        window = self.context if self.beyond_window else given.get("window", self.context)
        shortest = min(given.get("length", self.context), window)
        named = tuple((name, value) for name, value in args.items() if type(value) is int)
        sizes = replace(self, heads=heads, d_head=d_head, kv_heads=kv_heads, given=tuple(given.items()), grid=grid)
        sizes = replace(sizes, named=named)
        tokens, context = (min(each, max(2, shortest)) for each in (self.tokens, self.context))
        return replace(sizes, tokens=tokens, context=context, batch=min(self.batch, _most_samples(args)))


def _most_samples(args: Mapping[str, Any]) -> int:
    """How many samples a cache is made for, by an argument or by a field of an object that a user gave."""
    objects = [vars(each) for each in args.values() if hasattr(each, "__dict__") and not isinstance(each, type)]
    fields = [each for each in args.values() if isinstance(each, Mapping)]
    several = [
        value
        for each in (args, *fields, *objects)
        for name, value in each.items()
        if type(name) is str and constructor_meaning(name) == "batch" and type(value) is int and value > 0
    ]
    return max(2, min(several, default=sys.maxsize))  # of one sample alone it would not show that samples are mixed


def _of_its_owner(name: str, field: str) -> str:
    """The name of a field of a config that is a part of another, as patch_size of the size of patches."""
    joined = f"{re.sub('(?<=ch)es$|s$', '', name)}_{field}"
    return joined if field == "size" and constructor_meaning(joined) is not None else field


def both_sides(value: Any) -> tuple[int, int] | None:
    """Height and width, where a value is two numbers, or one that is both; None where it is neither."""
    sides = value if isinstance(value, tuple | list) else (value, value)
    return (sides[0], sides[1]) if len(sides) == 2 and all(type(each) is int for each in sides) else None


DISTINCT_SIZES = (
    Sizes(batch=2, tokens=5, context=7, heads=3, kv_heads=3, d_head=4),
    Sizes(batch=3, tokens=5, context=7, heads=4, kv_heads=2, d_head=8),
    Sizes(batch=2, tokens=5, context=7, heads=3, kv_heads=3, d_head=16),
    Sizes(batch=3, tokens=5, context=7, heads=4, kv_heads=4, d_head=16),
)
"""No two coincide, nor do their products. Later ones are for targets that need an even number of heads, groups of heads
or a wide head."""
COINCIDENT_SIZES = (
    Sizes(batch=4, tokens=4, context=4, heads=4, kv_heads=4, d_head=4),
    Sizes(batch=8, tokens=8, context=8, heads=8, kv_heads=4, d_head=8),
    Sizes(batch=16, tokens=16, context=16, heads=4, kv_heads=4, d_head=16),
)
"""What is right by accident is right with these alone."""
WINDOWED_SIZES = Sizes(batch=2, tokens=5, context=7, heads=4, kv_heads=4, d_head=4)
"""As many heads as a map has windows that is twice as high and twice as wide as one."""
SQUARE_SIZES = (
    Sizes(batch=2, tokens=5, context=5, heads=3, kv_heads=3, d_head=5),
    Sizes(batch=2, tokens=12, context=12, heads=3, kv_heads=3, d_head=4),
)
"""As many tokens as channels, of a head or of all: for what runs with no other sizes."""
