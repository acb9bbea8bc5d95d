"""The inputs of one call while they are made: which sizes hold, and which axes the sequences have."""

from __future__ import annotations

import functools
import inspect
import itertools
import math
import re
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from typing import Any

import torch
from torch import Tensor, nn

from regard.check.target.argument import source_of
from regard.check.target.documented_shapes import documented_shape
from regard.check.target.errors import Failed
from regard.check.target.facts import read_once
from regard.check.target.first_layers import width_taken
from regard.check.target.fixed_arguments import fixed_matrices
from regard.check.target.layouts import GRID, Layout
from regard.check.target.names import constructor_meaning, is_of_a_picture
from regard.check.target.picture_sides import sides_of
from regard.check.target.preparation import modules_in
from regard.check.target.sizes import Sizes, both_sides
from regard.check.target.usage import PARTS, squared

__all__ = [
    "FRAMED",
    "MAX_TOKENS",
    "SMALL_GRID",
    "Draft",
    "grids",
    "pictures_of_frames",
    "sides_of_pictures",
    "token_counts",
    "widths",
]

MAX_TOKENS = 64
"""Of an input: the calls are many."""
MAX_NUMBERS = 2**22
"""Of an argument: they take 32 MiB."""
FRAMED = "frames of"
"""In the name of a number of tokens that are those of several maps of features."""
SMALL_GRID = (3, 4)
"""Height and width of its frames: so small that each token of all frames can be changed alone."""
MAX_PIXELS = 1024
"""Of a picture whose patches are the tokens."""
OF_ROWS = re.compile(r"(?:^|[._])rel(?:ative)?_(h|height)$")
OF_COLUMNS = {"h": "w", "height": "width"}
"""The ends of names of tables of the distances of two rows, and of two columns."""
LARGEST_SIDE = 256
"""Of a picture of any patches."""
KEY_ROLES = ("k", "v", "context")


@dataclass(eq=False)
class Draft:
    """What the arguments of one call share."""

    target: Any
    source: str
    """Its text."""
    sizes: Sizes
    layout: Layout
    tokens: int
    keys: int
    """How many tokens keys and values are made of."""
    width: int
    context_width: int
    rope: tuple[str, int] = ("1td", 0)
    """The axes of the tables of rotary positions, and their width."""
    rope_tokens: int = 0
    """How many places they have; 0 for those of the tokens."""
    pairs: str = ""
    """Which channels such a table turns together: "neighbours", "halves", "halves of two parts", one for rows and one
    for columns; or "" for what the text says."""
    first: int = 0
    """The position of the first token in such a table."""
    grouped: bool = False
    """Whether several heads of the queries share one of keys and values."""
    weights: str = "in-out"
    """How matrices that are arguments are stored."""
    matrix_heads: int = 0
    """How many heads the columns of such matrices are; 0 where none is an argument."""
    grid: tuple[int, int] = GRID
    """Height and width of a map of features."""
    axes: dict[str, Layout] = field(default_factory=dict)
    """Of each sequence that was made."""
    shapes: dict[str, tuple[int, ...]] = field(default_factory=dict)
    """Of each sequence that was made."""
    drawn: int = 0

    def draw(self, *shape: int) -> Tensor:
        """Normal numbers, others for each argument.

        Raises:
            Failed: there would be too many, as where a size was taken for another one.
        """
        self.drawn += 1
        if math.prod(shape) > MAX_NUMBERS:
            raise Failed(f"an argument of shape {shape} is too large to be tried")
        generator = torch.Generator().manual_seed(self.sizes.tokens * 100 + self.drawn)
        return torch.randn(*shape, generator=generator, dtype=torch.float64)

    def shape(self, role: str, layout: Layout, name: str = "") -> tuple[int, ...]:
        """Of a sequence; as wide as the layer takes that is called with it."""
        keys = role in KEY_ROLES
        image = self.tokens if role == "image" else 0
        taken = self.width_of(name) if layout.letters in ("btd", "td") and name else None
        width = taken or (self.context_width if keys else self.width)
        heads = "h" in layout.letters and "t" in layout.letters
        size = {
            "b": self.sizes.batch,
            "h": self.sizes.kv_heads if self.grouped and role in ("k", "v") else self.sizes.heads,
            "t": self.keys if keys else self.tokens,
            "d": self.d_head if heads else width,
            "f": (dict(self.sizes.given).get("kv_heads", self.sizes.heads) if keys else self.sizes.heads) * self.d_head,
            "1": 1,
            "2": 2,
            "3": 3,
            "p": 3 * self.sizes.heads * self.d_head,
            "y": image or self.grid[0],
            "x": image or self.grid[1],
            "z": self.sizes.frames,
        }
        size |= dict(layout.sizes)
        return tuple(size[letter] for letter in layout.letters)

    def width_of(self, name: str) -> int | None:
        """How wide the layer takes a sequence that is called with it, or how wide the documentation writes it."""
        written = documented_shape(self.source, name)
        told = dict(self.sizes.named).get(written[-1]) if written else None
        return width_taken(self.target, self.source, name) or told

    @property
    def places(self) -> int:
        """Of the tables of rotary positions."""
        return self.rope_tokens or self.tokens

    @property
    def matrix_columns(self) -> int:
        """Of such a matrix."""
        return self.sizes.heads * (self.sizes.d_head + 1) if self.weights.startswith("rectangular") else self.width

    @property
    def d_head(self) -> int:
        """The width of a head."""
        if self.matrix_heads:
            return self.matrix_columns // self.matrix_heads
        for name in ("head_dim", "d_head", "dim_head", "head_size", "d_k", "attention_head_size", "depth"):
            value = getattr(self.target, name, None)
            if isinstance(value, int) and value > 0:
                return value
        return self.sizes.d_head

    def known(self) -> dict[str, int]:
        """The sizes by name."""
        return {
            "batch": self.sizes.batch,
            "tokens": self.tokens,
            "context": self.keys,
            "heads": self.sizes.heads,
            "kv_heads": self.sizes.kv_heads,
            "d_head": self.d_head,
            "d_model": self.width,
        }


@read_once
def widths(target: Any, sizes: Sizes) -> dict[str, int]:
    """The widths that its tokens may have, the likeliest first."""
    variables = dict(sizes.given).get("variables")
    found = {**({} if variables is None else {"variables": variables}), "d_model": sizes.d_model}
    for module in modules_in(target):
        for name in ("d_model", "embed_dim", "hidden_size", "dim", "n_embd", "d_in", "in_features"):
            for owner in (module, getattr(module, "config", None)):
                value = getattr(owner, name, None)
                if isinstance(value, int) and value > 0:
                    found.setdefault(f"attribute {name}", value)
        for path, each in module.named_modules():
            if isinstance(each, nn.Linear):
                found[f"input of {path}"] = each.in_features
            elif isinstance(each, nn.LayerNorm):
                found[f"width of {path}"] = each.normalized_shape[-1]
            elif isinstance(each, nn.Conv1d | nn.Conv2d):
                found[f"channels of {path}"] = each.in_channels
            for name, parameter in each.named_parameters(recurse=False):
                if parameter.ndim == 2 and not isinstance(each, nn.Embedding) and not nn.parameter.is_lazy(parameter):
                    found[f"rows of {path}.{name}"] = parameter.shape[0]
                    found[f"columns of {path}.{name}"] = parameter.shape[1]
    for path, matrix in fixed_matrices(target).items():
        found[f"rows of {path}"], found[f"columns of {path}"] = matrix.shape
    found["d_head"] = sizes.d_head
    if "cat(" in source_of(target):  # a layer may take two tokens side by side
        halves = {f"half of the {name}": n // 2 for name, n in found.items() if name.startswith("input of") and n > 2}
        found |= {name: n for name, n in halves.items() if n not in found.values()}
    return found


@read_once
def grids(target: Any, sizes: Sizes) -> list[tuple[int, int]]:
    """The heights and widths that a map of features may have, the likeliest first, some of whole windows or parts."""
    told: list[tuple[int, int]] = [] if sizes.grid is None else [sizes.grid, sizes.grid[::-1]]
    windows: list[tuple[int, int]] = []
    pictures: list[tuple[int, int]] = []
    single: list[tuple[int, int]] = []
    for module in modules_in(target):
        named = {constructor_meaning(name) for part in module.modules() for name, _ in _constructed_with(part)}
        pictures += [(side, side) for side in sides_of_pictures(module, sizes)[0]] if "patch" in named else []
        pictures += _of_patches(module)
        told += _of_distances(module)
        for name in squared(source_of(module)):
            if isinstance(length := getattr(module, name, None), int) and length > 1:
                # A map of one window shows nothing of how windows are cut.
                (single if constructor_meaning(name) == "window" else told).append((length, length))
        for name, value in _constructed_with(module):
            means, sides = constructor_meaning(name), both_sides(value)
            if sides is None or min(sides) < 2:
                continue
            if means in ("window", "patch") or PARTS.search(name):
                windows += [(2 * sides[0], 3 * sides[1]), (2 * sides[0], 2 * sides[1])]
            elif means in ("image", "grid"):
                told.append(sides)
    others = [(GRID[0], GRID[0]), (sizes.image, sizes.image)]
    several = dict.fromkeys((*told, GRID, GRID[::-1], *windows, *single, *others))
    found = [each for each in several if each[0] * each[1] <= MAX_TOKENS]
    return [*(each for each in pictures if each[0] * each[1] <= MAX_PIXELS), *found]


@read_once
def sides_of_pictures(target: Any, sizes: Sizes) -> tuple[list[int], list[int]]:
    """The heights, and widths, that a square picture may have, the likeliest first.

    Returns:
        What the user says, and what the table of its positions says; and what constructors are told of pictures.
    """
    told = [side for name, side in sizes.given if name == "image"]
    told += [height for module in modules_in(target) for height, width in _of_patches(module) if height == width]
    parts = [each for module in modules_in(target) for each in module.modules()]
    named = [
        sides[0]
        for part in parts
        for constructed in [dict(_constructed_with(part))]
        for name, value in constructed.items()
        if constructor_meaning(name) == "image" or is_of_a_picture(name, constructed)
        if (sides := both_sides(value)) and sides[0] == sides[1]
    ]
    first, others = ([each for each in dict.fromkeys(several) if 1 < each <= LARGEST_SIDE] for several in (told, named))
    return first, others


@read_once
def pictures_of_frames(target: Any, sizes: Sizes) -> list[tuple[int, int]]:
    """The sides of the pictures of a video, where these are cut into patches; first those that the user says."""
    named = {constructor_meaning(name) for module in modules_in(target) for name, _ in _constructed_with(module)}
    if "patch" not in named:
        return []
    told = [] if sizes.grid is None else [sizes.grid]
    squares = [(side, side) for side in (*itertools.chain(*sides_of_pictures(target, sizes)), sizes.image)]
    return [each for each in dict.fromkeys((*told, *squares)) if each[0] * each[1] <= MAX_PIXELS]


def _of_distances(module: nn.Module) -> Iterator[tuple[int, int]]:
    """The sides of the map whose distances along either side a table has a row for, as key_rel_h and key_rel_w."""
    tables = {name: each for name, each in module.named_parameters() if each.ndim == 2 and len(each) % 2}
    for name, table in tables.items():
        of_rows = OF_ROWS.search(name)
        other = tables.get(name[: of_rows.start(1)] + OF_COLUMNS[of_rows[1]]) if of_rows is not None else None
        if other is not None:
            yield (len(table) + 1) // 2, (len(other) + 1) // 2


def _of_patches(module: nn.Module) -> Iterator[tuple[int, int]]:
    """The sides of the square picture whose patches, and a class token or two, a table has places for.

    First those of tables of vectors that are as wide as what the patches are made.
    """
    convolutions = [each for each in module.modules() if isinstance(each, nn.Conv2d)]
    cuts = [(*each.kernel_size, each.out_channels) for each in convolutions if each.kernel_size == each.stride]
    cuts = [each for each in cuts if min(each[:2]) > 1] or ([] if convolutions else [(1, 1, 0)])  # a map is not cut
    named = itertools.chain(module.named_parameters(), module.named_buffers())
    tables = [each for name, each in named if each.ndim in (2, 3) and "pos" in name.lower()]
    for height, width, channels in cuts:
        for table in sorted(tables, key=lambda each: each.shape[-1] != channels):
            for beside in (0, 1, 2):
                side = math.isqrt(max(0, table.shape[-2] - beside))
                if side > 1 and side**2 == table.shape[-2] - beside:
                    yield side * height, side * width


def _constructed_with(module: nn.Module) -> Iterator[tuple[str, Any]]:
    """The arguments of a module's constructor: what it keeps under their names, or their defaults."""
    kind: Any = type(module)
    for name, default in _defaults(kind):
        yield name, getattr(module, name, default)


@functools.lru_cache(maxsize=1024)
def _defaults(kind: Callable[..., object]) -> tuple[tuple[str, Any], ...]:
    """The names of a constructor's arguments, and their defaults; none of one whose arguments are not known."""
    try:
        return tuple((name, each.default) for name, each in inspect.signature(kind).parameters.items())
    except (ValueError, TypeError):
        return ()


@read_once
def token_counts(target: Any, sizes: Sizes) -> dict[str, int]:
    """The numbers of tokens that it may take, the likeliest first."""
    of_frames = sizes.frames * SMALL_GRID[0] * SMALL_GRID[1]
    found = {"tokens": sizes.tokens}
    for module in modules_in(target):  # the likeliest: it has a number for each two tokens
        for name, table in module.named_buffers(recurse=False):
            if table.dtype == torch.long and table.ndim == 2 and 1 < table.shape[0] == table.shape[1] <= MAX_TOKENS:
                found[f"columns of its {name}"] = table.shape[0]
        for each in module.modules():
            found |= {f"places of its {name}": count for name, count in _places_of_pairs(each)}
    found |= {"grid": GRID[0] * GRID[1], "window": sizes.window**2, "length": sizes.length}
    of_maps = grids(target, sizes)
    found |= {f"grid {height}x{width}": height * width for height, width in of_maps}
    found |= {f"grid {height}x{width}, and one": height * width + 1 for height, width in of_maps[:2]}
    found |= {f"{FRAMED} {SMALL_GRID[0]}x{SMALL_GRID[1]}{one}": of_frames + bool(one) for one in ("", ", and one")}
    found = {name: count for name, count in found.items() if count <= MAX_TOKENS}
    for module in modules_in(target):
        found |= _before_strides(module)
        for each in module.modules():
            window = getattr(each, "window_size", None)
            for name in ("window_size", "input_resolution", "grid_size", "resolution"):
                value = getattr(each, name, None)
                if not isinstance(value, int) and (sides := both_sides(value)) is not None:
                    found[f"tokens of its {name}"] = sides[0] * sides[1]
                    found[f"tokens of its {name}, and one"] = sides[0] * sides[1] + 1
            if (sides := sides_of(each)) is not None:
                found["places of its sides"] = sides[0] * sides[1]
            if isinstance(window, int):
                found["tokens of its window"] = window**2
                found = {name: count for name, count in found.items() if count <= MAX_TOKENS}
            for name, buffer in each.named_buffers(recurse=False):
                if buffer.dtype == torch.long and buffer.ndim == 2 and 1 < buffer.shape[-1] <= MAX_TOKENS:
                    found.setdefault(f"columns of its {name}", buffer.shape[-1])  # as of the distances of all tokens
            for name in (
                "seq_len",
                "num_patches",
                "block_size",
                "n_tokens",
                "num_tokens",
                "max_len",
                "num_nodes",
                "n_nodes",
            ):
                value = getattr(each, name, None)
                if isinstance(value, int) and 1 < value <= MAX_TOKENS:
                    found.setdefault(f"its {name}", value)
    return found


def _places_of_pairs(module: nn.Module) -> Iterator[tuple[str, int]]:
    """How many tokens the pairs are of that a module keeps, as those of its diagonal, (pairs, 2)."""
    kept = [*module.named_buffers(recurse=False), *vars(module).items()]
    for name, value in kept:
        if isinstance(value, Tensor) and value.dtype == torch.long and value.ndim == 2 and value.shape[1] == 2:
            count = int(value.max()) + 1 if len(value) else 0
            # Each place is the first of some pair: edges of a graph need not be of all its nodes.
            if 1 < count <= MAX_TOKENS and torch.unique(value[:, 0]).numel() == count and bool((value >= 0).all()):
                yield name, count


def _before_strides(module: nn.Module) -> dict[str, int]:
    """How many frames convolutions make as many tokens of as a table of positions has places for."""
    stride = math.prod(each.stride[0] for each in module.modules() if isinstance(each, nn.Conv1d))
    tables = (*module.named_buffers(), *module.named_parameters())
    rows = {each.shape[-2] for name, each in tables if each.ndim in (2, 3) and "pos" in name.lower()}
    counts = {f"before strides to {count}": stride * count for count in sorted(rows)} if stride > 1 else {}
    return {name: count for name, count in counts.items() if count <= MAX_TOKENS}
