"""`Shard`: the share of the texts that one of several processes embeds."""

from __future__ import annotations

import os
import re
from dataclasses import dataclass
from pathlib import Path

from regard.errors import InputError


@dataclass(frozen=True)
class Shard:
    """Share ``index`` of ``count``, counted from 0: consecutive texts, as many as in each other share."""

    index: int
    count: int

    @classmethod
    def parse(cls, text: str) -> Shard:
        """Parse ``2/8``.

        Raises:
            InputError: another format, or a number out of range.
        """
        match = re.fullmatch(r"(\d{1,5})/(\d{1,5})", text, re.ASCII)
        if match is None or not int(match[1]) < int(match[2]):
            raise InputError(f"shard={text}: it is I/N, share I of N, and I is 0 to N - 1")
        return cls(int(match[1]), int(match[2]))

    @classmethod
    def from_environment(cls, option: str | None) -> Shard | None:
        """The given share, or under torchrun that of this process; None for all texts.

        Raises:
            InputError: both, or no valid share.
        """
        world_size = os.environ.get("WORLD_SIZE", "1")
        if not world_size.isdecimal() or int(world_size) < 2:
            return None if option is None else cls.parse(option)
        if option is not None:
            raise InputError(f"shard={option}: under torchrun each of the {world_size} processes has its own share")
        rank = os.environ.get("RANK", "")
        if not rank.isdecimal() or int(rank) >= int(world_size):
            raise InputError(f"RANK={rank!r} in the environment is no number below WORLD_SIZE={world_size}")
        return cls(int(rank), int(world_size))

    def span(self, num_texts: int) -> tuple[int, int]:
        """The indices of the first text of the share and of the first text after it."""
        return num_texts * self.index // self.count, num_texts * (self.index + 1) // self.count

    def path(self, out: Path) -> Path:
        """The share's own file, such as ``vectors-00002-of-00008.npy``; sorted by name, the files are in order."""
        return out.with_name(f"{out.stem}-{self.index:05}-of-{self.count:05}{out.suffix}")
