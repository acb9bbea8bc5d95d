"""`ModelMask`: a mask of regard with the sizes of the model call that it is made for."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor

from regard._shapes import Bool
from regard.attention.mask import Mask, allowed
from regard.attention.mask.geometry import Predicate, Tile, TileBounds, TileGrid

BOOLEAN_FUNCTIONS = (
    torch.where,
    torch.logical_and,
    torch.logical_or,
    torch.logical_not,
    torch.bitwise_and,
    torch.bitwise_or,
    Tensor.__and__,
    Tensor.__or__,
)
"""Functions of torch that read a mask as True = may attend."""


@dataclass(frozen=True, eq=False, repr=False)
class ModelMask(Mask):
    """The mask of one model call: who may attend, and the sizes of the call.

    Models pass their mask through code that is written for a tensor ``(batch, 1, queries, keys)``. What such code does
    without its numbers works here. Slices give a `ModelMask`, an index gives a boolean tensor, and so do the functions
    that take a condition, such as ``torch.where``. Other functions of torch raise: a model that computes its scores
    itself would ADD the mask, and a boolean must not be added.
    """

    mask: Mask | None
    """Who may attend; None blocks nothing."""
    batch: int
    queries: int
    keys: int
    device: torch.device

    ndim = 4
    dtype = torch.bool

    @property
    def shape(self) -> tuple[int | None, int | None]:  # type: ignore[override]
        return self.queries, self.keys

    @property
    def batch_size(self) -> int | None:  # type: ignore[override]
        return None if self.mask is None else self.mask.batch_size

    @property
    def min_keys(self) -> int:  # type: ignore[override]
        return self.keys

    def contiguous(self) -> ModelMask:
        """Itself, as of a tensor that is contiguous."""
        return self

    def dim(self) -> int:
        """4, as of the tensor that it stands for."""
        return self.ndim

    def evaluate(self, tile: Tile) -> Bool[Tensor, "*batch_heads #rows #columns"]:
        if self.mask is None:
            return torch.ones(1, 1, dtype=torch.bool, device=tile.device or self.device)
        return self.mask.evaluate(tile)

    def predicate(self, queries: int, keys: int, device: torch.device | str | None = None) -> Predicate:
        if self.mask is None:
            return lambda b, h, i, j: j >= 0
        return self.mask.predicate(queries, keys, device)

    def bounds(self, grid: TileGrid) -> TileBounds:
        return TileBounds.full() if self.mask is None else self.mask.bounds(grid)

    def validate(self, queries: int, keys: int) -> None:
        if (queries, keys) != (self.queries, self.keys):
            raise ValueError(
                f"the model made its mask for {self.queries} queries and {self.keys} keys ({self!r}), and an attention "
                f"has {queries} queries and {keys} keys: the model adds keys of its own to a mask that is a tensor. "
                'Load it with attn_implementation="eager"'
            )
        if self.mask is not None:
            self.mask.validate(queries, keys)

    def __getitem__(self, index: Any) -> Any:
        index = index if isinstance(index, tuple) else (index,)
        if any(part is ... for part in index):
            at = next(n for n, part in enumerate(index) if part is ...)
            index = *index[:at], *[slice(None)] * (5 - len(index)), *index[at + 1 :]
        index = *index, *[slice(None)] * (4 - len(index))
        if all(isinstance(part, slice) for part in index[2:]) and len(index) == 4:
            # Only what the slices name is evaluated: a model may slice off the last query of many thousands.
            rows, columns = (_span(part, size) for part, size in zip(index[2:], (self.queries, self.keys), strict=True))
            if rows is not None and columns is not None:
                return self._part(index, rows, columns)
        return self._dense()[index]

    def _part(self, index: tuple[Any, ...], rows: tuple[int, int], columns: tuple[int, int]) -> Any:
        part = self.evaluate(Tile(self.queries, self.keys, rows, columns, self.device))
        lead = (1,) * (4 - part.ndim) + tuple(part.shape[:-2])
        part = part.expand(self.batch, lead[-1], rows[1] - rows[0], columns[1] - columns[0])[index[:2]]
        if part.ndim < 4:
            return part
        return ModelMask(allowed(part), len(part), part.shape[-2], part.shape[-1], self.device)

    def _dense(self) -> Tensor:
        dense = self.dense(self.queries, self.keys, device=self.device)
        return dense.expand(self.batch, *(1,) * (3 - dense.ndim), *dense.shape[-3:])

    @classmethod
    def __torch_function__(cls, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        if func in BOOLEAN_FUNCTIONS:
            return func(*(arg._dense() if isinstance(arg, ModelMask) else arg for arg in args), **(kwargs or {}))
        name = getattr(func, "__name__", str(func))
        # Not a TypeError: the operators of Tensor drop one, and Python's own says nothing of the way out.
        raise NotImplementedError(
            f"the model passes its attention mask, a regard.mask.Mask, to {name} of torch, so it computes its "
            'attention itself and not through the attention interface of transformers: attn_implementation="regard" '
            'cannot serve it. Load it with attn_implementation="eager"; regard.watch records its attention there'
        )

    def __repr__(self) -> str:
        return "no mask" if self.mask is None else repr(self.mask)


def _span(part: slice, size: int) -> tuple[int, int] | None:
    """The (start, stop) of a slice; None if it skips or is empty."""
    start, stop, step = part.indices(size)
    return (start, stop) if step == 1 and start < stop else None
