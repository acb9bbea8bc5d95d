"""A file of texts to a file of vectors: part by part, so that memory is bounded and what is done stays done."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, replace
from itertools import islice
from pathlib import Path
from typing import TYPE_CHECKING, Literal

import torch

from regard.embedding.readers import Texts
from regard.embedding.resume import Folder, fingerprint
from regard.embedding.shard import Shard
from regard.embedding.writers import Part, format_of
from regard.errors import InputError

if TYPE_CHECKING:
    from regard.pretrained import Pretrained
    from regard.pretrained.embedder import Embedder
    from regard.pretrained.pooling import Pooling

__all__ = ["Done", "Job", "Pool", "windows"]

Pool = Literal["mean", "cls", "none"]
Tell = Callable[[int, int | None, bool], None]
"""Told how many texts are done, of how many (None: nobody knows), and whether they were done by an earlier run."""

TEXTS = 4096
"""So many texts are sorted by length together, and are a part."""
CHARACTERS, EACH_TOKEN = 2**20, 2**18
"""A part ends before, where its texts have so many characters; fewer where each token's vector is kept."""


@dataclass(frozen=True)
class Done:
    """What came of a job."""

    path: Path
    """The file."""
    texts: int
    """How many there were."""
    width: int
    """Numbers of a vector."""
    cut: int
    """Texts that were cut."""


@dataclass(frozen=True)
class Job:
    """Vectors of the texts of a file, written to another file.

    Args:
        texts: where from.
        out: where to; a `shard` goes to a file of its own, named after this one.
        pool: how the vectors of a text's tokens become one, or ``none`` for one of each; as the model says by default.
        cut: whether texts that are too long are cut, rather than refused.
        shard: which share of the texts; all by default.

    Raises:
        InputError: a format that cannot be written; a file that is there already; a folder that is not.
    """

    texts: Texts
    out: Path
    pool: Pool | None = None
    cut: bool = False
    shard: Shard | None = None

    def __post_init__(self) -> None:
        format_of(self.out, each_token=self.pool == "none")
        if not self.path.parent.is_dir():
            raise InputError(f"{self.path.parent} is no folder: make it, or name another place")
        if self.path.exists():
            raise InputError(f"{self.path} is there already: remove it, or name another file")

    @property
    def path(self) -> Path:
        """The file that is written."""
        return self.out if self.shard is None else self.shard.path(self.out)

    def run(self, pretrained: Pretrained, tell: Tell = lambda *_: None) -> Done:
        """Embed what an earlier run of the same job has not, and join the parts.

        Args:
            pretrained: an encoder.
            tell: is told how far it is.

        Raises:
            InputError: a text that cannot be read or is too long, an input without texts, a disk that is full; parts of
                another job. Parts that are finished stay.
        """
        embedder = pretrained.embedder()
        pooling = self._pooling(embedder)
        total = None if self.texts.path == "-" and self.shard is None else self.texts.count()
        first, stop = (0, total) if self.shard is None or total is None else self.shard.span(total)
        facts = {
            "weights": fingerprint(pretrained),
            "pool": "none" if pooling is None else f"{pooling.mode}{', length 1' if pooling.normalize else ''}",
            "format": self.out.suffix.lower(),
            "texts": "all" if self.shard is None else f"{first} to {stop}",
        }
        folder = Folder(self.path, format_of(self.out, each_token=pooling is None), pretrained.name, facts)
        done = first

        def told(now: int, *, earlier: bool = False) -> None:
            tell(now - first, None if stop is None else stop - first, earlier)

        with folder.writing():
            for window in windows(islice(self.texts, first, stop), EACH_TOKEN if pooling is None else CHARACTERS):
                kept = folder.has(done, window, cut=self.cut)
                if not kept:
                    folder.add(*self._part(embedder, pooling, done, window, told))
                done += len(window)
                told(done, earlier=kept)
            if done == first and not total:
                raise InputError(f"{self.texts.name} holds no texts")
            if stop is not None and done != stop:
                raise InputError(f"{self.texts.name} has changed while it was read: begin again")
            if done == first:  # a share of fewer texts than there are processes
                folder.add(*self._part(embedder, pooling, done, [], told))
            cut = folder.join()
        return Done(self.path, done - first, pretrained.config.d_model, cut)

    def _pooling(self, embedder: Embedder) -> Pooling | None:
        if self.pool == "none":
            return None
        own = embedder.pooling()
        return own if self.pool is None else replace(own, mode=self.pool)

    def _part(
        self,
        embedder: Embedder,
        pooling: Pooling | None,
        first: int,
        texts: Sequence[str],
        told: Callable[[int], None],
    ) -> tuple[Part, int]:
        """The vectors of some texts, and how many of these were cut. Equal texts are embedded once."""
        from regard.pretrained.embedder import TextError

        each = {text: n for n, text in enumerate(dict.fromkeys(texts))}
        chosen = [each[text] for text in texts]
        try:
            encodings, shortened = embedder.tokenize(list(each), truncate=self.cut)
        except TextError as error:
            way_out = "" if self.cut else ", or give --cut"
            raise InputError(
                f"{self.texts.where(first + chosen.index(error.index))}: {error}{way_out if error.too_long else ''}"
            ) from error
        cut = sum(map(chosen.count, shortened))
        vectors = torch.empty(len(each), embedder.model.config.d_model)
        of_tokens: list[torch.Tensor] = [vectors] * len(each)
        seen = 0
        for places, states, lengths in embedder.hidden_states(encodings):
            if pooling is None:
                for place, found in zip(places, torch.split(states.float().cpu(), lengths.tolist()), strict=True):
                    of_tokens[place] = found
            else:
                vectors[places] = pooling(states, lengths).float().cpu()
            seen += len(places)
            told(first + seen)
        if pooling is not None:
            return Part(first, texts, vectors[chosen].numpy()), cut
        joined = torch.cat([of_tokens[n] for n in chosen]) if chosen else vectors
        ids, tokens = [encodings[n].ids for n in chosen], [encodings[n].tokens for n in chosen]
        return Part(first, texts, joined.numpy(), ids, tokens), cut


def windows(texts: Iterator[str], characters: int) -> Iterator[list[str]]:
    """Texts that are a part together; where one begins and ends depends on the texts alone.

    Args:
        texts: of the whole job.
        characters: the most of a part that has more than one text.
    """
    window: list[str] = []
    held = 0
    for text in texts:
        if window and (len(window) == TEXTS or held + len(text) > characters):
            yield window
            window, held = [], 0
        window.append(text)
        held += len(text)
    if window:
        yield window
