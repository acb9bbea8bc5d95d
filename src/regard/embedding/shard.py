"""A share of the texts, for one of several processes."""

from __future__ import annotations

import os
import re
from dataclasses import dataclass
from pathlib import Path

from regard.errors import InputError

__all__ = ["Shard"]


@dataclass(frozen=True)
class Shard:
    """Share number ``index`` of ``count``, counted from 0: a run of the texts, as long as the others."""

    index: int
    count: int

    @classmethod
    def of(cls, text: str) -> Shard:
        """Read ``2/8``.

        Raises:
            InputError: something else, or a number outside.
        """
        found = re.fullmatch(r"(\d{1,5})/(\d{1,5})", text, re.ASCII)
        if found is None or not int(found[1]) < int(found[2]):
            raise InputError(f"--shard {text}: it is I/N, share I of N, and I is 0 to N - 1")
        return cls(int(found[1]), int(found[2]))

    @classmethod
    def of_this_process(cls, said: str | None) -> Shard | None:
        """The share that was asked for, or under torchrun that of this process; None for all texts.

        Raises:
            InputError: both, or a share that is none.
        """
        processes = os.environ.get("WORLD_SIZE", "1")
        if not processes.isdecimal() or int(processes) < 2:
            return None if said is None else cls.of(said)
        if said is not None:
            raise InputError(f"--shard {said}: under torchrun each of the {processes} processes has its share already")
        rank = os.environ.get("RANK", "")
        if not rank.isdecimal() or int(rank) >= int(processes):
            raise InputError(f"RANK={rank!r} in the environment is no number below WORLD_SIZE={processes}")
        return cls(int(rank), int(processes))

    def span(self, texts: int) -> tuple[int, int]:
        """The first of its texts, and the first that is no longer one.

        Args:
            texts: how many there are in all.
        """
        return texts * self.index // self.count, texts * (self.index + 1) // self.count

    def path(self, out: Path) -> Path:
        """Its own file, such as ``vectors-00002-of-00008.npy``; in the order of these names shards are in order."""
        return out.with_name(f"{out.stem}-{self.index:05}-of-{self.count:05}{out.suffix}")
