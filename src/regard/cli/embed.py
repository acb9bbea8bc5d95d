"""The command `regard embed`."""

from __future__ import annotations

import sys
from pathlib import Path
from typing import Annotated, Any, Literal

import typer

from regard.cli.app import app
from regard.cli.options import (
    DEFAULT_MODEL,
    MODEL_HELP,
    ensure_json_writable,
    import_torch,
    json_option,
    load_model,
    option,
    stderr_console,
    write_json,
)
from regard.errors import InputError


@app.command(
    help="Embed each text of a file as a vector, for search, clustering, classification.\n\n"
    "INPUT is a .txt file with a text on each line; a .jsonl, .csv, .tsv or .parquet file with the texts in the column "
    "text, or in that of --column; or - for lines from standard input. The n-th vector belongs to the n-th text, also "
    "where texts are empty.\n\n"
    "The name of --out decides the format. .parquet: the columns index, text and vector. .npy: one array, for "
    "numpy.load. .safetensors: index and vectors. With --pooling none there is a vector for each token: in Parquet the "
    "columns tokens and vectors; in safetensors the vectors of text n are vectors[offsets[n]:offsets[n + 1]], and ids "
    "their tokens.\n\n"
    "A job that was stopped or killed continues where it was, by the same command: finished parts are in OUT.parts "
    "next to the output, where one run works at a time. An output that exists is never overwritten, and files of yours "
    "in OUT.parts are neither read nor deleted.\n\n"
    "Memory is bounded by the longest text, not by how many there are. Of a text with more tokens than the model reads "
    "a tokenizer like BERT's or RoBERTa's takes the beginning; a long text of few tokens, such as a line of spaces, "
    "needs about 70 bytes for each character.\n\n"
    "Several machines: each embeds a share, --shard 0/2, --shard 1/2, ..., and writes a file of its own, such as "
    "vectors-00000-of-00002.parquet. Sorted by name, the files are in order. Under torchrun each process has its share "
    "by itself.",
    epilog="Examples:\n\n"
    "regard embed sentences.txt --out vectors.npy\n\n"
    "regard embed reviews.csv --column review --out vectors.parquet --truncate\n\n"
    "Two machines, four processes each: torchrun --nnodes 2 --nproc-per-node 4 --rdzv-backend c10d --rdzv-endpoint "
    "HOST:29500 -m regard embed /shared/texts.jsonl --out /shared/vectors.parquet",
)
def embed(
    source: Annotated[str, typer.Argument(metavar="INPUT", help="The texts; see above for the file types.")],
    out: Annotated[Path, typer.Option(metavar="PATH", help="A .parquet, .npy or .safetensors file.")],
    model: Annotated[str, typer.Option(metavar="NAME", help=MODEL_HELP + "BERT, RoBERTa.")] = DEFAULT_MODEL,
    pooling: Annotated[
        Literal["mean", "cls", "none"] | None,
        option(
            "MODE",
            "mean: the mean of the tokens' vectors; cls: the vector of the first token; none: the vectors of all "
            "tokens. By default as the model was trained.",
        ),
    ] = None,
    column: Annotated[str | None, option("NAME", "The texts' column; by default text.")] = None,
    truncate: Annotated[
        bool,
        typer.Option(
            "--truncate",
            help="Cut texts that have more tokens than the model's max_seq_length (256 in the default model), or than "
            "it has positions, as sentence-transformers does. By default they are refused.",
        ),
    ] = False,
    shard: Annotated[str | None, option("I/N", "Only share I of N, counted from 0; by default all.")] = None,
    json_path: Annotated[
        Path | None,
        json_option("path, model, pooling, num_texts, dim, num_truncated, num_damaged, max_tokens"),
    ] = None,
) -> None:
    """Embed each text of a file as a vector."""
    from regard.embedding import EmbeddingJob  # needs no PyTorch, which a refused job does not wait for

    job = EmbeddingJob.create(source, out, pooling=pooling, column=column, truncate=truncate, shard=shard)
    if json_path is not None and json_path != Path("-") and job.shard is not None:
        json_path = job.shard.path(json_path)  # as with --out: no process overwrites another's
    if json_path == job.path:
        raise InputError(f"--out and --json both name {json_path}: give two different files")
    ensure_json_writable(json_path)
    import_torch()
    pretrained = load_model(model)
    is_first = job.shard is None or job.shard.index == 0 or shard is not None
    with _progress_bar(disable=not sys.stderr.isatty() or not is_first) as bar:
        task = bar.add_task("embedding", total=None)

        def on_progress(num_done: int, num_texts: int | None, resumed: bool) -> None:
            if resumed:  # the speed of an earlier run is not the speed of this one
                bar.reset(task, completed=num_done, total=num_texts)
            else:
                bar.update(task, completed=num_done, total=num_texts)

        try:
            result = job.run(pretrained, on_progress)
        except KeyboardInterrupt:
            print("regard: stopped; the same command continues from here", file=sys.stderr)
            raise
    if write_json({"model": model, **result.to_dict()}, json_path):
        return
    what = "the tokens' vectors of" if pooling == "none" else "vectors of"
    truncated = f"; {result.num_truncated:,} texts were cut to {result.max_tokens} tokens"
    damaged = f"; {result.num_damaged:,} damaged parts of an earlier run were computed again"
    print(
        f"{result.path}: {what} {result.num_texts:,} texts, {result.dim} numbers each"
        f"{truncated if result.num_truncated else ''}{damaged if result.num_damaged else ''}"
    )


def _progress_bar(*, disable: bool) -> Any:
    """The number of finished texts, the speed, and the time that is left."""
    from rich.progress import BarColumn, MofNCompleteColumn, Progress, ProgressColumn, TextColumn, TimeRemainingColumn
    from rich.text import Text

    class SpeedColumn(ProgressColumn):
        """Texts per second."""

        def render(self, task: Any) -> Text:
            return Text("" if task.speed is None else f"{task.speed:,.0f} texts/s")

    return Progress(
        TextColumn("{task.description}"),
        BarColumn(),
        MofNCompleteColumn(),
        SpeedColumn(),
        TimeRemainingColumn(),
        console=stderr_console(),
        transient=True,
        disable=disable,
    )
