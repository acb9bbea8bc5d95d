"""The shapes of the arguments of a call as far as they are known: an axis that nothing tells of has its own size."""

from __future__ import annotations

from collections.abc import Collection, Iterable, Iterator
from dataclasses import dataclass, field, replace
from typing import Any

import torch

__all__ = ["ShapeGuess"]

OWN = (7, 11, 13, 17, 19, 23, 29, 31, 37, 41, 43, 47, 53, 59, 61, 67, 71, 73, 79, 83, 89, 97)
"""Sizes that tell an axis from all others."""
LARGEST = 1 << 17
"""Numbers in one argument."""
MOST_AXES = 6


@dataclass(frozen=True, eq=False)
class ShapeGuess:
    """Shapes and kinds of arguments."""

    axes: dict[str, list[int]]
    """Of each argument that is a tensor, its sizes; `batch` in front where it may have samples."""
    kinds: dict[str, str]
    """"numbers", "ids", "marks", "lengths" or "number" of each argument; "plain" of what is no tensor."""
    absent: tuple[str, ...] = ()
    """Arguments that may be left out, and are."""
    batch: int = 5
    """How many samples there are: a number that no code unpacks or looks up by accident."""
    kinds_of_absent: dict[str, str] = field(default_factory=dict)
    """Of those that are no sequences."""
    taken: frozenset[int] = frozenset()
    """Sizes that stand for something else: those of the module."""
    widths: tuple[int, ...] = ()
    """Sizes of the module that a token may be as wide as, the likeliest first."""
    vocab: dict[str, int] = field(default_factory=dict)
    """Of arguments of ids, how many there are."""

    @property
    def key(self) -> tuple[Any, ...]:
        """Two guesses with the same key are the same."""
        return (
            tuple((name, tuple(axes)) for name, axes in self.axes.items()),
            tuple(self.kinds.items()),
            tuple(self.vocab.items()),
        )

    @property
    def are_known(self) -> bool:
        """Whether the size of each axis is its own, or one of the module."""
        sizes = {size for axes in self.axes.values() for size in axes}
        return all(size == 1 or self.is_own(size) or size in self.taken for size in sizes)

    def is_own(self, size: int) -> bool:
        """Whether a size is that of an axis of which nothing is known, or of the samples."""
        return (size in OWN and size not in self.taken) or size == self.batch

    def fresh(self, count: int, besides: Collection[int] = ()) -> list[int]:
        """Sizes that no axis has yet."""
        used = {size for axes in self.axes.values() for size in axes} | self.taken | set(besides)
        return [size for size in OWN if size not in used][:count]

    def with_axes(self, name: str, count: int) -> ShapeGuess:
        """With another number of axes of one argument; it itself where that is too many or too few."""
        if not 0 < count <= MOST_AXES or name not in self.axes:
            return self
        has = self.axes[name]
        if count < len(has) and has[0] == 1:  # where samples stood
            axes = has[len(has) - count :]
        elif count < len(has):
            axes = [*has[: max(1, count - 1)], *(has[-1:] if count > 1 else [])]
        else:
            axes = [*has[:1], *self.fresh(count - len(has)), *has[1:]]
        return self.of_axes(name, axes)

    def with_size(self, name: str, axis: int, size: int) -> ShapeGuess:
        """With another size of one axis of one argument, and of no other."""
        axes = list(self.axes[name])
        axes[axis] = size
        return self.of_axes(name, axes)

    def of_axes(self, name: str, axes: list[int]) -> ShapeGuess:
        """With other axes of one argument."""
        return replace(self, axes={**self.axes, name: axes})

    def factors(self, size: int) -> tuple[int, int] | None:
        """The two sizes of axes that a size is the product of; None of any other."""
        known = sorted({each for axes in self.axes.values() for each in axes if self.is_own(each)})
        return next(((one, size // one) for one in known if size % one == 0 and size // one in known), None)

    def with_equal(self, one: int, other: int) -> Iterator[ShapeGuess]:
        """With the axes of one size as long as those of another; that of the samples last."""
        pairs = [(one, other), (other, one)]
        if self.is_own(other):  # the later axis is as long as the earlier one
            pairs.sort(key=lambda pair: (pair[0] == self.batch, pair[0] < pair[1]))
        for changed, size in pairs:
            if not self.is_own(changed) or size < 1 or changed == size:
                continue
            if changed == self.batch:  # of one argument alone, whose first axis is something else
                firsts = [name for name, axes in self.axes.items() if axes and axes[0] == self.batch]
                yield from (self.with_size(name, 0, size) for name in firsts)
            else:
                several = self.axes.items()
                axes = {name: [size if each == changed else each for each in sizes] for name, sizes in several}
                yield replace(self, axes=axes)

    def of_kind(self, name: str, kind: str, vocab: int = 0) -> ShapeGuess:
        """With other numbers in one argument: ids have an axis less than vectors, and one number has none."""
        if name in self.absent:
            return self.given([name]).of_kind(name, kind, vocab)
        axes = dict(self.axes)
        if kind == "number":
            axes.pop(name, None)
        elif kind == "lengths":
            axes[name] = [self.batch]
        elif kind == "numbers" and name not in axes:
            axes[name] = [self.batch, *self.fresh(2)]
        elif kind == "ids" and self.kinds.get(name) == "numbers" and len(axes.get(name, ())) == len("btd"):
            axes[name] = axes[name][:-1]
        of_ids = {**self.vocab, name: vocab or self.vocab.get(name, 2)} if kind == "ids" else self.vocab
        return replace(self, axes=axes, kinds={**self.kinds, name: kind}, vocab=of_ids)

    def given(self, names: Iterable[str]) -> ShapeGuess:
        """With some arguments that were left out, as sequences of vectors."""
        found = self
        for name in names:
            if name in found.absent:
                kind = found.kinds_of_absent.get(name, "numbers")
                count = {"marks": 2, "lengths": 1}.get(kind, 3)
                axes = {**found.axes, name: [found.batch, *found.fresh(count - 1)]}
                left = tuple(each for each in found.absent if each != name)
                found = replace(found, axes=axes, kinds={**found.kinds, name: kind}, absent=left)
        return found

    @property
    def rows(self) -> frozenset[str]:
        """The arguments of vectors whose first axis is that of the samples and another one in one."""
        first = {name: axes[0] for name, axes in self.axes.items() if self.kinds[name] == "numbers" and len(axes) == 2}
        pairs = {name: None if self.is_own(size) else self.factors(size) for name, size in first.items()}
        return frozenset(name for name, pair in pairs.items() if pair is not None and self.batch in pair)

    def values(self) -> dict[str, Any] | None:
        """Arguments of these shapes; None where one would be too large."""
        found: dict[str, Any] = {}
        for number, (name, kind) in enumerate(self.kinds.items()):
            generator = torch.Generator().manual_seed(number)
            shape = self.axes.get(name, [])
            if torch.Size(shape).numel() > LARGEST:
                return None
            if kind == "number":
                found[name] = 1
            elif kind == "ids":
                found[name] = torch.randint(max(1, self.vocab.get(name, 2)), shape, generator=generator)
            elif kind == "plain":
                continue
            elif kind == "lengths":
                found[name] = torch.full(shape, OWN[0])
            elif kind == "marks":
                found[name] = torch.ones(shape, dtype=torch.bool)
            else:
                found[name] = torch.randn(shape, generator=generator, dtype=torch.float64)
        return found

    def of_one_token(self) -> ShapeGuess:
        """With one id, and one slice wherever there were samples: of code that goes on by one token of one sample."""
        axes = {
            name: [1 if size == self.batch or self.kinds[name] == "ids" else size for size in sizes]
            for name, sizes in self.axes.items()
        }
        return replace(self, axes=axes)

    def of_samples(self, count: int) -> ShapeGuess:
        """With another number of samples, and of rows of all samples."""

        def changed(size: int) -> int:
            pair = self.factors(size)
            if size == self.batch or self.is_own(size) or pair is None or self.batch not in pair:
                return count if size == self.batch else size
            return size // self.batch * count

        return replace(
            self, axes={name: [changed(each) for each in axes] for name, axes in self.axes.items()}, batch=count
        )
