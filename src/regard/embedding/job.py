"""`EmbeddingJob`: a file of texts to a file of vectors, in parts, so that memory is bounded and a stop loses little."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator
from dataclasses import asdict, dataclass
from itertools import islice
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal, get_args

from regard.embedding.readers import TextSource
from regard.embedding.resume import ensure_new, open_parts
from regard.embedding.shard import Shard
from regard.embedding.writers import output_format
from regard.errors import InputError

if TYPE_CHECKING:
    from regard.pretrained import Pretrained

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
    max_tokens: int | None
    """The most tokens of a text that the model takes."""
    pooling: str
    """``mean``, ``cls`` or ``none``; with ``, length 1`` where the vectors are normalized."""

    def to_dict(self) -> dict[str, Any]:
        """The facts as JSON has them."""
        return {**asdict(self), "path": str(self.path)}


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
        InputError: a pooling or a format that does not exist; an output that exists; a folder that does not; something
            that is not regard's where the parts are to be kept.
    """

    source: TextSource
    out: Path
    pooling: PoolingMode | None = None
    truncate: bool = False
    shard: Shard | None = None
    max_part_texts: int = 4096

    def __post_init__(self) -> None:
        if self.pooling not in (None, *get_args(PoolingMode)):
            raise InputError(f"pooling={self.pooling}: it is one of {', '.join(get_args(PoolingMode))}")
        output_format(self.out, per_token=self.pooling == "none")
        if not self.path.parent.is_dir():
            raise InputError(f"{self.path.parent} is no folder: make it, or name another place")
        ensure_new(self.path)

    @classmethod
    def create(
        cls,
        source: str | Path,
        out: str | Path,
        *,
        pooling: PoolingMode | None = None,
        column: str | None = None,
        truncate: bool = False,
        shard: str | None = None,
    ) -> EmbeddingJob:
        """The job of the arguments of `embed`, which documents them."""
        share = Shard.from_environment(shard)
        return cls(TextSource(str(source), column), Path(out), pooling=pooling, truncate=truncate, shard=share)

    @property
    def path(self) -> Path:
        """The file that is written."""
        return self.out if self.shard is None else self.shard.path(self.out)

    def run(self, pretrained: Pretrained, on_progress: OnProgress | None = None) -> JobResult:
        """Embed the texts that no earlier run of the same job has embedded, and join the parts.

        Args:
            pretrained: an encoder.
            on_progress: see `OnProgress`.

        Raises:
            InputError: a text that cannot be read or is too long, an input without texts, a full disk; parts of
                another job; another run of this job at the same time. Finished parts stay.
        """
        from regard.embedding.vectors import PartEmbedder  # PyTorch, which a refused job does not wait for

        embedder = PartEmbedder(pretrained, self.source, self.pooling, truncate=self.truncate)
        total = None if self.source.path == "-" and self.shard is None else self.source.count()
        first, stop = (0, total) if self.shard is None or total is None else self.shard.span(total)
        settings = {
            **embedder.settings,
            "format": self.out.suffix.lower(),
            "texts": "all" if self.shard is None else f"{first} to {stop}",
        }
        file_format = output_format(self.out, per_token=self.pooling == "none")
        index = first

        def report(current: int, *, resumed: bool = False) -> None:
            if on_progress is not None:
                on_progress(current - first, None if stop is None else stop - first, resumed)

        with open_parts(self.path, file_format, settings) as folder:
            max_characters = MAX_TOKEN_PART_CHARACTERS if self.pooling == "none" else MAX_PART_CHARACTERS
            for texts in split_into_parts(islice(self.source, first, stop), self.max_part_texts, max_characters):
                resumed = folder.has(index, texts, truncate=self.truncate)
                if not resumed:
                    folder.add(*embedder.embed(index, texts, report))
                index += len(texts)
                report(index, resumed=resumed)
            if index == first and not total:
                raise InputError(f"{self.source.name} holds no texts")
            if stop is not None and index != stop:
                raise InputError(f"{self.source.name} has changed while it was read: begin again")
            if index == first:  # the share of one of more processes than texts
                folder.add(*embedder.embed(index, [], report))
            num_truncated = folder.join({"model": pretrained.name, "pooling": settings["pooling"]})
        return JobResult(
            self.path,
            num_texts=index - first,
            dim=pretrained.config.d_model,
            num_truncated=num_truncated,
            num_damaged=folder.num_damaged,
            max_tokens=embedder.max_tokens,
            pooling=settings["pooling"],
        )


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


def embed(
    source: str | Path,
    out: str | Path,
    *,
    model: str | Path | Pretrained | None = None,
    pooling: PoolingMode | None = None,
    column: str | None = None,
    truncate: bool = False,
    shard: str | None = None,
    on_progress: OnProgress | None = None,
) -> JobResult:
    """Embed each text of a file as a vector, as the command ``regard embed`` does.

    A job that was stopped continues where it was, by the same call. Texts in memory: `Pretrained.embed`.

    >>> import regard
    >>> result = regard.embed("reviews.csv", "vectors.npy", column="review", truncate=True)  # doctest: +SKIP
    >>> numpy.load(result.path).shape == (result.num_texts, result.dim)  # doctest: +SKIP

    Args:
        source: ``.txt`` with a text on each line; ``.jsonl``, ``.csv``, ``.tsv`` or ``.parquet`` with a column of
            texts; ``-`` for lines from standard input.
        out: the ``.parquet``, ``.npy`` or ``.safetensors`` file to write.
        model: the name or folder of an encoder, or what `regard.load` returned; by default its default model.
        pooling: ``mean``, ``cls``, or ``none`` for a vector of each token; by default as the model was trained.
        column: of the texts; ``text`` by default.
        truncate: whether texts that are too long are cut, as sentence-transformers does; by default they are refused.
        shard: ``0/2`` for the first of two shares of the texts; by default all, and under torchrun the share of this
            process. A share has a file of its own, such as ``vectors-00000-of-00002.npy``.
        on_progress: is called with the number of finished texts, of all (None if unknown), and whether an earlier run
            embedded the latest ones.

    Returns:
        The file, how many texts it has, how many of them were truncated, and the numbers of a vector.

    Raises:
        InputError: an argument, a text, a model or a file that cannot be used.
    """
    job = EmbeddingJob.create(source, out, pooling=pooling, column=column, truncate=truncate, shard=shard)
    return job.run(_load(model), on_progress)


def _load(model: str | Path | Pretrained | None) -> Pretrained:
    from regard.pretrained import Pretrained, load

    return model if isinstance(model, Pretrained) else load() if model is None else load(model)
