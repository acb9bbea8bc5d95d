"""The command `regard train`."""

from __future__ import annotations

import shlex
import signal
import sys
from pathlib import Path
from typing import Annotated, Any

import typer

from regard.cli.app import app
from regard.cli.options import import_torch, option, status
from regard.errors import InputError

__all__ = ["train"]

MODEL, RATE, WHERE = "The model", "The optimizer", "Where it runs"


def _number(metavar: str, help_: str, panel: str, **more: Any) -> Any:
    return option(metavar, help_, rich_help_panel=panel, **more)


@app.command(
    help="Train a transformer.\n\n"
    "TASK is one of\n\n"
    "translate: an encoder-decoder, on pairs of texts (TSV, JSONL, Parquet with source and target). Without DATA: "
    "dates in 12 languages, written by Babel, to ISO.\n\n"
    "lm: a decoder, on texts (text files, JSONL, Parquet with text, globs). Without DATA: Python's own "
    "documentation.\n\n"
    "mlm: an encoder that guesses masked tokens, on the same.\n\n"
    "caption: an image encoder and a decoder, on a folder of images and a CSV with file_name and text. Without DATA: "
    "scikit-learn's handwritten digits, spelled.\n\n"
    "DIR holds the best model so far, which every other command takes as --model, a picture of the loss, "
    "metrics.jsonl, the attention of one held-out example at each look, and checkpoints. A run that was stopped or "
    "killed goes on with --resume, and ends as it would have ended.",
    epilog="Examples:\n\n"
    "Learn to read dates, in some minutes: regard train translate --out dates\n\n"
    "Your own pairs: regard train translate pairs.tsv --out en-de --steps 20000 --d-model 512 --layers 6 --heads 8 "
    "--d-ff 2048 --vocab-size 16000\n\n"
    "Two processes on this machine: regard train lm 'corpus/**/*.txt' --out lm --devices 2 --strategy fsdp\n\n"
    "Two machines: torchrun --nnodes 2 --nproc-per-node 8 --rdzv-backend c10d --rdzv-endpoint HOST:29500 -m regard "
    "train lm 'corpus/*.parquet' --out /shared/lm --strategy fsdp --precision bf16-mixed --resume",
)
def train(
    task: Annotated[str, typer.Argument(help="translate, lm, mlm or caption.")],
    out: Annotated[Path, typer.Option(metavar="DIR", help="The run's folder.")],
    data: Annotated[
        list[str] | None, typer.Argument(metavar="[DATA]...", help="Files or globs; what they may be is told above.")
    ] = None,
    held_out: Annotated[
        Path | None,
        option("PATH", "Examples to judge the model by, in the same format; by default every twentieth of DATA."),
    ] = None,
    model: Annotated[
        str | None, option("NAME", "Go on from this model, a folder or a name on the Hub, with its tokenizer.")
    ] = None,
    resume: Annotated[
        bool, typer.Option("--resume", help="Go on with the run in DIR; begin one where there is none.")
    ] = False,
    steps: Annotated[int | None, _number("N", "Updates of the weights.", RATE)] = None,
    batch_size: Annotated[int | None, _number("N", "Examples of an update, over all processes.", RATE)] = None,
    accumulate: Annotated[
        int | None, _number("N", "Compute each batch in N parts, one after the other, to save memory.", RATE)
    ] = None,
    lr: Annotated[float | None, _number("R", "The learning rate at its peak.", RATE)] = None,
    warm_up: Annotated[int | None, _number("N", "Updates until that peak; then a cosine down.", RATE)] = None,
    weight_decay: Annotated[float | None, _number("W", "Of AdamW, on matrices.", RATE)] = None,
    clip: Annotated[float | None, _number("L", "The longest gradient.", RATE)] = None,
    label_smoothing: Annotated[
        float | None, _number("E", "Probability spread over all tokens (paper, section 5.4).", RATE)
    ] = None,
    evaluate_every: Annotated[
        int | None, _number("N", "Updates between two looks at the held-out examples, and checkpoints.", RATE)
    ] = None,
    patience: Annotated[int | None, _number("N", "Stop after N looks without a better one.", RATE)] = None,
    seed: Annotated[int | None, _number("N", "Of weights, order and dropout.", RATE)] = None,
    layers: Annotated[int | None, _number("N", "Blocks of each stack.", MODEL)] = None,
    d_model: Annotated[int | None, _number("N", "Width of the token vectors.", MODEL)] = None,
    heads: Annotated[int | None, _number("N", "Heads of each attention.", MODEL)] = None,
    d_ff: Annotated[int | None, _number("N", "Width of the feed-forward networks.", MODEL)] = None,
    context: Annotated[
        int | None, _number("N", "The longest text in tokens; longer documents are read in pieces.", MODEL)
    ] = None,
    vocab_size: Annotated[int | None, _number("N", "Tokens of the tokenizer that is trained, at most.", MODEL)] = None,
    dropout: Annotated[float | None, _number("P", "Share of each sub-layer's output dropped.", RATE)] = None,
    noise: Annotated[
        float | None, _number("P", "Share of tokens read as others while it learns; lm, where texts are few.", RATE)
    ] = None,
    image_size: Annotated[
        int | None, _number("N", "Images are resized to N x N pixels; by default to the first one's size.", MODEL)
    ] = None,
    patch_size: Annotated[int | None, _number("N", "They are read in patches of N x N pixels.", MODEL)] = None,
    skip_long: Annotated[
        bool, typer.Option("--skip-long", help="Leave out pairs longer than the context.", rich_help_panel=MODEL)
    ] = False,
    devices: Annotated[
        int | None, _number("N", "Processes on each machine; by default one for each GPU, or one.", WHERE, min=1)
    ] = None,
    nodes: Annotated[int, typer.Option(metavar="N", min=1, help="Machines.", rich_help_panel=WHERE)] = 1,
    strategy: Annotated[
        str,
        typer.Option(
            metavar="S",
            rich_help_panel=WHERE,
            help="ddp: every process has all weights; fsdp: each has its share; auto: ddp for several.",
        ),
    ] = "auto",
    precision: Annotated[
        str, typer.Option(metavar="P", rich_help_panel=WHERE, help="32-true, bf16-mixed or bf16-true.")
    ] = "32-true",
    accelerator: Annotated[
        str, typer.Option(metavar="A", rich_help_panel=WHERE, help="cpu, cuda, ...; auto takes the best there is.")
    ] = "auto",
) -> int:
    """Train a transformer."""
    import_torch()
    asked = {
        "steps": steps,
        "batch_size": batch_size,
        "accumulate": accumulate,
        "lr": lr,
        "warm_up": warm_up,
        "weight_decay": weight_decay,
        "clip": clip,
        "label_smoothing": label_smoothing,
        "evaluate_every": evaluate_every,
        "patience": patience,
        "seed": seed,
        "layers": layers,
        "d_model": d_model,
        "heads": heads,
        "d_ff": d_ff,
        "context": context,
        "vocab_size": vocab_size,
        "dropout": dropout,
        "noise": noise,
        "image_size": image_size,
        "patch_size": patch_size,
        "skip_long": skip_long or None,
    }
    with status("getting ready"):
        from regard.training.console import Terminal, told
        from regard.training.distributed import engine
        from regard.training.train import train as begin

        fabric = engine(devices=devices, nodes=nodes, strategy=strategy, precision=precision, accelerator=accelerator)
    terminal = Terminal()
    try:
        with terminal.listening():
            ended = begin(
                task,
                data or (),
                out=out,
                fabric=fabric,
                held_out=held_out,
                model=model,
                resume=resume,
                settings={name: value for name, value in asked.items() if value is not None},
                command=["regard", *sys.argv[1:]],
                watcher=terminal,
            )
    except InputError:
        if fabric.is_global_zero:
            raise
        return 0  # the process of rank 0 says the same
    if not fabric.is_global_zero:
        return 0
    if ended.why == "asked to leave":
        terminal.say(
            f"saved after update {ended.progress.step:,}; go on with: regard train {task} "
            f"--out {shlex.quote(str(out))} --resume"
        )
        return 128 + (terminal.asked or signal.SIGTERM)
    why = ", stopped early" if ended.why == "patience" else ""
    best = f"the best was update {ended.progress.best_step:,}, with a held-out loss of {ended.progress.best:.3f}"
    print(f"{told(ended.metrics) or 'nothing was left to do'}{why}; {best}. The model is in {out}")
    return 0
