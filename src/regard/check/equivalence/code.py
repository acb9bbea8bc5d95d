"""A mapping of weights as a function of Python that can be run."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from regard.check.equivalence.mapping import CopiedBlock, WeightMapping

__all__ = ["code_of"]

Shape = tuple[int, ...]

HEAD = '''import torch


@torch.no_grad()
def convert(a, b):
    """Set the parameters of b so that it computes what a does."""
    a, b = dict(a.named_parameters()), dict(b.named_parameters())
'''


def code_of(mapping: WeightMapping, shapes_a: Mapping[str, Shape], shapes_b: Mapping[str, Shape]) -> str:
    """A function `convert(a, b)` that does what a mapping says.

    Args:
        mapping: the reordering.
        shapes_a: of a's parameters.
        shapes_b: of b's.
    """
    lines = [_line(block, shapes_a, shapes_b) for block in mapping.blocks] or ["pass  # no weights"]
    return HEAD + "".join(f"    {line}\n" for line in lines)


def _line(block: CopiedBlock, shapes_a: Mapping[str, Shape], shapes_b: Mapping[str, Shape]) -> str:
    shape = shapes_b[block.target]
    target = f'b["{block.target}"]'
    if block.source is None:
        if _covers(block.sizes, block.target_strides, shape):
            return f"{target}.fill_({block.value})"
        place = block.sizes, block.target_strides, block.target_offset
        return f"{_view(target, shape, *place) or _as_strided(target, *place)}.fill_({block.value})"
    source, from_shape = f'a["{block.source}"]', shapes_a[block.source]
    same = block.target_strides == block.source_strides and shape == from_shape
    if same and _covers(block.sizes, block.target_strides, shape):
        return f"{target}.copy_({source})"
    one = _view(target, shape, block.sizes, block.target_strides, block.target_offset)
    other = _ordered_view(source, from_shape, block.sizes, block.source_strides, block.source_offset)
    if one is None or other is None:
        one = _as_strided(target, block.sizes, block.target_strides, block.target_offset)
        other = _as_strided(source, block.sizes, block.source_strides, block.source_offset)
    return f"{one}.copy_({other})"


def _as_strided(name: str, sizes: Shape, strides: Shape, offset: int) -> str:
    return f"{name}.as_strided({sizes}, {strides}, {offset})"


def _covers(sizes: Shape, strides: Shape, shape: Shape) -> bool:
    """Whether it is all of a parameter, in its order."""
    expected = 1
    for size, stride in zip(reversed(sizes), reversed(strides), strict=True):
        if stride != expected:
            return False
        expected *= size
    return expected == _product(shape)


def _product(sizes: Sequence[int]) -> int:
    total = 1
    for size in sizes:
        total *= size
    return total


def _view(name: str, shape: Shape, sizes: Shape, strides: Shape, offset: int) -> str | None:
    """A view with axes in the order of their strides, largest first; None where there is no such view."""
    total = _product(shape)
    viewed: list[int] = []
    index: list[str] = []
    above = total
    for size, stride in zip(sizes, strides, strict=True):
        if stride <= 0 or above % stride or above // stride < size:
            return None
        full = above // stride
        start = offset // stride % full
        if size == full:
            viewed.append(full)
            index.append(":")
        elif full % size == 0 and start % size == 0:
            viewed += [full // size, size]
            index += [str(start // size), ":"]
        elif start + size <= full:
            viewed.append(full)
            index.append(f"{start}:{start + size}")
        else:
            return None
        above = stride
    if above > 1:
        viewed.append(above)
        index.append(str(offset % above))
    while index and index[-1] == ":":
        index.pop()
    reached = name if tuple(viewed) == shape else f"{name}.view{_written(viewed)}"
    return reached + (f"[{', '.join(index)}]" if index else "")


def _ordered_view(name: str, shape: Shape, sizes: Shape, strides: Shape, offset: int) -> str | None:
    """The same for strides in any order; an axis of stride 0 repeats."""
    order = sorted((at for at in range(len(sizes)) if strides[at]), key=lambda at: -strides[at])
    viewed = _view(name, shape, tuple(sizes[at] for at in order), tuple(strides[at] for at in order), offset)
    if viewed is None:
        return None
    kept = [at for at in range(len(sizes)) if strides[at]]
    moved = [order.index(at) for at in kept]
    if moved == [1, 0]:
        viewed += ".T"
    elif moved != sorted(moved):
        viewed += f".permute{_written(moved)}"
    if len(kept) < len(sizes):
        at = ", ".join(":" if stride else "None" for stride in strides)
        viewed += f"[{at}]"
    return viewed


def _written(sizes: Sequence[int]) -> str:
    return f"({', '.join(map(str, sizes))})"
