"""A search among choices of which each has several candidates: what fails latest is closest to what runs."""

from __future__ import annotations

import heapq
import itertools
from collections.abc import Callable, Collection, Iterator, Mapping
from typing import Generic, TypeVar

from regard.check.target.errors import Failed
from regard.check.time_limit import is_over

__all__ = ["best_first"]

Result = TypeVar("Result")


class BestFirst(Generic[Result]):
    """The search; it counts its tries and remembers the error of the try that came farthest."""

    def __init__(
        self,
        options: Mapping[str, int],
        attempt: Callable[[dict[str, int]], Result],
        max_tries: int,
        sizes: Collection[str] = (),
    ) -> None:
        self._options = {name: count for name, count in options.items() if count > 1}
        self._attempt, self._max_tries, self._sizes = attempt, max_tries, sizes
        self.tries = 0
        self.failure: Failed | None = None
        """Of the first try, or of one that came farther."""
        self.farthest = -1

    def results(self) -> Iterator[Result]:
        """What the tries give that do not fail, the likeliest choices first.

        A try that fails opens those that differ from it in one choice; of those that are open, the one is next whose
        origin came farthest, and among equals one that changes what the error names, then the one with the fewest
        changes, then with the likeliest candidates.
        """
        order = itertools.count()
        start = dict.fromkeys(self._options, 0)
        waiting = [(0, False, 0, 0, next(order), start)]
        best: dict[tuple[int, ...], int] = {}
        tried: set[tuple[int, ...]] = set()
        while waiting and self.tries < self._max_tries and not (self.tries and is_over()):
            *_, choices = heapq.heappop(waiting)
            if tuple(choices.values()) in tried:
                continue
            tried.add(tuple(choices.values()))
            self.tries += 1
            named: frozenset[str] = frozenset()
            idle: Collection[str] = ()
            try:
                yield self._attempt(dict(choices))
                progress = max(self.farthest, 0)
            except Failed as failed:
                progress, named = failed.progress, failed.named
                idle = self._sizes if failed.of_axes else ()
                if progress > self.farthest:
                    self.farthest, self.failure = progress, failed
            for name, count in self._options.items():
                for index in range(0 if name in idle else count):
                    other = {**choices, name: index}
                    key = tuple(other.values())
                    if key not in tried and best.get(key, -1) < progress:
                        best[key] = progress
                        rank = (-progress, name not in named, _changes(other), sum(other.values()), next(order), other)
                        heapq.heappush(waiting, rank)


def _changes(choices: Mapping[str, int]) -> int:
    return sum(index > 0 for index in choices.values())


def best_first(
    options: Mapping[str, int],
    attempt: Callable[[dict[str, int]], Result],
    max_tries: int,
    sizes: Collection[str] = (),
) -> BestFirst[Result]:
    """Search among choices.

    Args:
        options: for each choice, how many candidates it has.
        attempt: gives the result for a candidate of each choice, or raises `Failed`.
        max_tries: when to end.
        sizes: the choices of sizes, which are not changed where a number of axes is wrong.
    """
    return BestFirst(options, attempt, max_tries, sizes)
