"""The command `regard embed`."""

from __future__ import annotations

import sys
from pathlib import Path
from typing import Annotated, Any, Literal, cast

import typer

from regard.cli.app import app
from regard.cli.options import DEFAULT_MODEL, MODEL_HELP, import_torch, loaded, on_stderr, option
from regard.errors import InputError

__all__ = ["embed"]


@app.command(
    help="Make a vector of each text of a file, for search, clustering, classification.\n\n"
    "INPUT is a .txt file with a text on each line; a .jsonl, .csv, .tsv or .parquet file with the texts in the column "
    "text, or in that of --column; or - for lines from standard input. The n-th vector belongs to the n-th text, empty "
    "ones included.\n\n"
    "What is written depends on the name of --out. .parquet: the columns index, text and vector. .npy: one array, for "
    "numpy.load. .safetensors: index and vectors. With --pool none there is a vector for each token: in Parquet the "
    "columns tokens and vectors; in safetensors the vectors of text n are vectors[offsets[n]:offsets[n + 1]], and ids "
    "their tokens.\n\n"
    "A job that was stopped or killed goes on where it was, by the same command: finished parts are kept in OUT.parts "
    "beside the output. An output that is there already is never overwritten.\n\n"
    "Several machines: each does a share, --shard 0/2, --shard 1/2, ..., and writes a file of its own, such as "
    "vectors-00000-of-00002.parquet. In the order of their names the files are the whole. Under torchrun each process "
    "has its share by itself.",
    epilog="Examples:\n\n"
    "regard embed sentences.txt --out vectors.npy\n\n"
    "regard embed reviews.csv --column review --out vectors.parquet --cut\n\n"
    "Two machines, four processes each: torchrun --nnodes 2 --nproc-per-node 4 --rdzv-backend c10d --rdzv-endpoint "
    "HOST:29500 -m regard embed /shared/texts.jsonl --out /shared/vectors.parquet",
)
def embed(
    source: Annotated[str, typer.Argument(metavar="INPUT", help="The texts; which files is told above.")],
    out: Annotated[Path, typer.Option(metavar="PATH", help="A .parquet, .npy or .safetensors file.")],
    model: Annotated[str, typer.Option(metavar="NAME", help=MODEL_HELP + "BERT, RoBERTa.")] = DEFAULT_MODEL,
    pool: Annotated[
        str | None,
        option(
            "KIND",
            "mean: the mean of the tokens' vectors; cls: that of the first token; none: all of them. By default what "
            "the model was trained for.",
        ),
    ] = None,
    column: Annotated[str | None, option("NAME", "The texts' column.")] = None,
    cut: Annotated[
        bool, typer.Option("--cut", help="Cut texts that are longer than the model's positions; else one ends the job.")
    ] = False,
    shard: Annotated[str | None, option("I/N", "Only share I of N, counted from 0.")] = None,
) -> None:
    """Make a vector of each text of a file."""
    from regard.embedding import Job, Shard, Texts

    if pool not in (None, "mean", "cls", "none"):
        raise InputError(f"--pool {pool}: it is mean, cls or none")
    share = Shard.of_this_process(shard)
    job = Job(
        Texts(source, column), out, pool=cast('Literal["mean", "cls", "none"] | None', pool), cut=cut, shard=share
    )
    import_torch()
    pretrained = loaded(model)
    quiet = not sys.stderr.isatty() or (share is not None and share.index > 0 and shard is None)
    with _bar(disable=quiet) as bar:
        task = bar.add_task("embedding", total=None)

        def tell(done: int, total: int | None, earlier: bool) -> None:
            if earlier:  # what another run did says nothing of this one's speed
                bar.reset(task, completed=done, total=total)
            else:
                bar.update(task, completed=done, total=total)

        try:
            made = job.run(pretrained, tell)
        except KeyboardInterrupt:
            print("regard: stopped; the same command goes on from here", file=sys.stderr)
            raise
    were_cut = f"; {made.cut:,} texts were cut to what {pretrained.name} reads" if made.cut else ""
    what = "the tokens' vectors of" if pool == "none" else "vectors of"
    print(f"{made.path}: {what} {made.texts:,} texts, {made.width} numbers each{were_cut}")


def _bar(*, disable: bool) -> Any:
    """How far it is, how fast, how long it will take."""
    from rich.progress import BarColumn, MofNCompleteColumn, Progress, ProgressColumn, TextColumn, TimeRemainingColumn
    from rich.text import Text

    class Speed(ProgressColumn):
        """Texts each second."""

        def render(self, task: Any) -> Text:
            return Text("" if task.speed is None else f"{task.speed:,.0f} texts/s")

    return Progress(
        TextColumn("{task.description}"),
        BarColumn(),
        MofNCompleteColumn(),
        Speed(),
        TimeRemainingColumn(),
        console=on_stderr(),
        transient=True,
        disable=disable,
    )
