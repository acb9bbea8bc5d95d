"""`EmbeddingJob`: a file of texts to a file of vectors, in parts, so that memory is bounded and a stop loses little."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass, replace
from itertools import islice
from pathlib import Path
from typing import Literal

import torch

from regard.embedding.readers import TextSource
from regard.embedding.resume import ensure_new, fingerprint, open_parts
from regard.embedding.shard import Shard
from regard.embedding.writers import VectorPart, output_format
from regard.errors import InputError
from regard.pretrained import Pretrained
from regard.pretrained.embedder import Embedder, TextError
from regard.pretrained.pooling import Pooling

PoolingMode = Literal["mean", "cls", "none"]
OnProgress = Callable[[int, int | None, bool], None]
"""Called with the number of finished texts, the number of all texts (None if unknown), and whether an earlier run
embedded the latest ones."""

MAX_PART_CHARACTERS, MAX_TOKEN_PART_CHARACTERS = 2**20, 2**18
"""The most characters of a part with several texts; fewer where each token has a vector."""


@dataclass(frozen=True)
class JobResult:
    """What a job wrote."""

    path: Path
    num_texts: int
    dim: int
    """The numbers of one vector."""
    num_truncated: int
    """The number of texts that were truncated."""
    num_damaged: int
    """The number of parts from an earlier run that were damaged, and whose texts were embedded again."""


@dataclass(frozen=True)
class EmbeddingJob:
    """Vectors of the texts of a file, written to another file.

    Args:
        source: the texts.
        out: the file to write; a `shard` writes a file of its own, named after this one.
        pooling: how the vectors of a text's tokens become one vector, or ``none`` for a vector of each token; by
            default as the model was trained.
        truncate: whether texts that are too long are truncated; by default they are refused.
        shard: which share of the texts; by default all.
        max_part_texts: the texts of a part are sorted by length together, and a stop loses at most one part.

    Raises:
        InputError: a format that cannot be written; an output that exists; a folder that does not; something that is
            not regard's where the parts are to be kept.
    """

    source: TextSource
    out: Path
    pooling: PoolingMode | None = None
    truncate: bool = False
    shard: Shard | None = None
    max_part_texts: int = 4096

    def __post_init__(self) -> None:
        output_format(self.out, per_token=self.pooling == "none")
        if not self.path.parent.is_dir():
            raise InputError(f"{self.path.parent} is no folder: make it, or name another place")
        ensure_new(self.path)

    @property
    def path(self) -> Path:
        """The file that is written."""
        return self.out if self.shard is None else self.shard.path(self.out)

    def run(self, pretrained: Pretrained, on_progress: OnProgress = lambda *_: None) -> JobResult:
        """Embed the texts that no earlier run of the same job has embedded, and join the parts.

        Args:
            pretrained: an encoder.
            on_progress: see `OnProgress`.

        Raises:
            InputError: a text that cannot be read or is too long, an input without texts, a full disk; parts of
                another job; another run of this job at the same time. Finished parts stay.
        """
        embedder = pretrained.embedder()
        pooling = self._pooling(embedder)
        total = None if self.source.path == "-" and self.shard is None else self.source.count()
        first, stop = (0, total) if self.shard is None or total is None else self.shard.span(total)
        settings = {
            "weights": fingerprint(pretrained),
            "pooling": "none" if pooling is None else f"{pooling.mode}{', length 1' if pooling.normalize else ''}",
            "format": self.out.suffix.lower(),
            "texts": "all" if self.shard is None else f"{first} to {stop}",
        }
        file_format = output_format(self.out, per_token=pooling is None)
        index = first

        def report(current: int, *, resumed: bool = False) -> None:
            on_progress(current - first, None if stop is None else stop - first, resumed)

        with open_parts(self.path, file_format, settings) as folder:
            max_characters = MAX_TOKEN_PART_CHARACTERS if pooling is None else MAX_PART_CHARACTERS
            for texts in split_into_parts(islice(self.source, first, stop), self.max_part_texts, max_characters):
                resumed = folder.has(index, texts, truncate=self.truncate)
                if not resumed:
                    folder.add(*self._embed(embedder, pooling, index, texts, report))
                index += len(texts)
                report(index, resumed=resumed)
            if index == first and not total:
                raise InputError(f"{self.source.name} holds no texts")
            if stop is not None and index != stop:
                raise InputError(f"{self.source.name} has changed while it was read: begin again")
            if index == first:  # the share of one of more processes than texts
                folder.add(*self._embed(embedder, pooling, index, [], report))
            num_truncated = folder.join({"model": pretrained.name, "pooling": settings["pooling"]})
        return JobResult(self.path, index - first, pretrained.config.d_model, num_truncated, folder.num_damaged)

    def _pooling(self, embedder: Embedder) -> Pooling | None:
        if self.pooling == "none":
            return None
        own = embedder.pooling()
        return own if self.pooling is None else replace(own, mode=self.pooling)

    def _embed(
        self,
        embedder: Embedder,
        pooling: Pooling | None,
        first: int,
        texts: Sequence[str],
        report: Callable[[int], None],
    ) -> tuple[VectorPart, int]:
        """The vectors of some texts, and the number of truncated ones. Equal texts are embedded once."""
        unique = {text: n for n, text in enumerate(dict.fromkeys(texts))}
        order = [unique[text] for text in texts]
        try:
            encodings, truncated = embedder.tokenize(list(unique), truncate=self.truncate)
        except TextError as error:
            hint = ", or give --truncate" if error.too_long and not self.truncate else ""
            raise InputError(f"{self.source.location(first + order.index(error.index))}: {error}{hint}") from error
        num_truncated = sum(map(order.count, truncated))
        vectors = torch.empty(len(unique), embedder.model.config.d_model)
        token_vectors: list[torch.Tensor] = [vectors] * len(unique)
        num_done = 0
        for indices, hidden_states, lengths in embedder.hidden_states(encodings):
            if pooling is None:
                split = torch.split(hidden_states.float().cpu(), lengths.tolist())
                for index, states in zip(indices, split, strict=True):
                    token_vectors[index] = states
            else:
                vectors[indices] = pooling(hidden_states, lengths).float().cpu()
            num_done += len(indices)
            report(first + num_done)
        if pooling is not None:
            return VectorPart(first, texts, vectors[order].numpy()), num_truncated
        joined = torch.cat([token_vectors[n] for n in order]) if order else vectors
        ids, tokens = [encodings[n].ids for n in order], [encodings[n].tokens for n in order]
        return VectorPart(first, texts, joined.numpy(), ids, tokens), num_truncated


def split_into_parts(texts: Iterable[str], max_texts: int, max_characters: int) -> Iterator[list[str]]:
    """The texts of each part; the borders depend on the texts alone.

    Args:
        texts: of the whole job.
        max_texts: the most of a part.
        max_characters: the most characters of a part that has several texts.
    """
    part: list[str] = []
    num_characters = 0
    for text in texts:
        if part and (len(part) == max_texts or num_characters + len(text) > max_characters):
            yield part
            part, num_characters = [], 0
        part.append(text)
        num_characters += len(text)
    if part:
        yield part
