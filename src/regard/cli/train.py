"""The command `regard train`."""

from __future__ import annotations

import shlex
import signal
import sys
from pathlib import Path
from typing import Annotated, Any

import typer

from regard.cli.app import app
from regard.cli.options import ensure_json_writable, import_torch, json_option, option, status, write_json
from regard.errors import InputError
from regard.training.config import build_config, task_defaults
from regard.training.defaults import PrecisionName, StrategyName, TaskName

MODEL, OPTIMIZER, HARDWARE = "The model", "The optimizer", "The hardware"


def _number(name: str, metavar: str, help_: str, panel: str) -> Any:
    """The option of a field of the configuration, with its default in each task."""
    defaults = {task: "none" if value is None else f"{value:g}" for task, value in task_defaults(name).items()}
    shown = ", ".join(f"{task} {value}" for task, value in defaults.items())
    if len(set(defaults.values())) == 1:
        shown = defaults["lm"]
    return option(metavar, help_ if shown == "none" else f"{help_} [default: {shown}]", rich_help_panel=panel)


@app.command(
    help="Train a transformer.\n\n"
    "TASK is one of\n\n"
    "translate: an encoder-decoder, on pairs of texts (TSV, JSONL, Parquet with source and target). Without DATA: "
    "dates in 12 languages, written by Babel, to ISO.\n\n"
    "lm: a decoder, on texts (text files, JSONL, Parquet with text, globs). Without DATA: Python's own "
    "documentation.\n\n"
    "mlm: an encoder that predicts masked tokens, on the same data.\n\n"
    "caption: an image encoder and a decoder, on a folder of images and a CSV with file_name and text. Without DATA: "
    "scikit-learn's handwritten digits, spelled.\n\n"
    "DIR holds the best model so far, which every other command takes as --model, a plot of the loss, "
    "metrics.jsonl, the attention of one eval row at each evaluation, and checkpoints. --resume continues a run that "
    "was stopped or killed; the run ends as it would have ended without the stop.",
    epilog="Examples:\n\n"
    "Learn to read dates, in some minutes: regard train translate --out dates\n\n"
    "Your own pairs: regard train translate pairs.tsv --out en-de --max-steps 20000 --d-model 512 --num-layers 6 "
    "--num-heads 8 --d-ff 2048 --vocab-size 16000\n\n"
    "Two processes on this machine: regard train lm 'corpus/**/*.txt' --out lm --devices 2 --strategy fsdp\n\n"
    "Two machines: torchrun --nnodes 2 --nproc-per-node 8 --rdzv-backend c10d --rdzv-endpoint HOST:29500 -m regard "
    "train lm 'corpus/*.parquet' --out /shared/lm --strategy fsdp --precision bf16-mixed --resume",
)
def train(
    task: Annotated[TaskName, typer.Argument(metavar="TASK", help="One of the tasks above.")],
    out: Annotated[Path, typer.Option(metavar="DIR", help="The directory of the run.")],
    data: Annotated[
        list[str] | None, typer.Argument(metavar="DATA", help="Files or globs of the formats named above.")
    ] = None,
    eval_file: Annotated[
        Path | None,
        option("PATH", "Examples for the evaluations, in the same format; by default every twentieth of DATA."),
    ] = None,
    model: Annotated[
        str | None, option("NAME", "Start from this model, a folder or a name on the Hub, with its tokenizer.")
    ] = None,
    resume: Annotated[
        bool, typer.Option("--resume", help="Continue the run in DIR; start one where there is none.")
    ] = False,
    max_steps: Annotated[int | None, _number("max_steps", "N", "Updates of the weights.", OPTIMIZER)] = None,
    batch_size: Annotated[
        int | None, _number("batch_size", "N", "Examples of an update, over all processes.", OPTIMIZER)
    ] = None,
    gradient_accumulation_steps: Annotated[
        int | None,
        _number(
            "gradient_accumulation_steps",
            "N",
            "Compute each batch as N micro-batches, one after the other, to save memory.",
            OPTIMIZER,
        ),
    ] = None,
    learning_rate: Annotated[
        float | None, _number("learning_rate", "R", "The learning rate at its peak.", OPTIMIZER)
    ] = None,
    warmup_steps: Annotated[
        int | None,
        _number(
            "warmup_steps",
            "N",
            "Updates until that peak; then a cosine down. In a short run less than half of it.",
            OPTIMIZER,
        ),
    ] = None,
    min_learning_rate: Annotated[
        float | None,
        _number("min_learning_rate", "R", "Where that cosine ends; none: at a tenth of the peak.", OPTIMIZER),
    ] = None,
    weight_decay: Annotated[float | None, _number("weight_decay", "W", "Of AdamW, on matrices.", OPTIMIZER)] = None,
    max_grad_norm: Annotated[
        float | None, _number("max_grad_norm", "L", "The gradient is clipped to this norm.", OPTIMIZER)
    ] = None,
    label_smoothing: Annotated[
        float | None,
        _number("label_smoothing", "E", "Probability spread over all tokens (paper, section 5.4).", OPTIMIZER),
    ] = None,
    eval_steps: Annotated[
        int | None, _number("eval_steps", "N", "Updates between two evaluations; each saves a checkpoint.", OPTIMIZER)
    ] = None,
    patience: Annotated[
        int | None,
        _number("patience", "N", "Stop after N evaluations without a better loss; by default never.", OPTIMIZER),
    ] = None,
    seed: Annotated[int | None, _number("seed", "N", "Of weights, order and dropout.", OPTIMIZER)] = None,
    num_layers: Annotated[int | None, _number("num_layers", "N", "Blocks of each stack.", MODEL)] = None,
    d_model: Annotated[int | None, _number("d_model", "N", "Width of the token vectors.", MODEL)] = None,
    num_heads: Annotated[int | None, _number("num_heads", "N", "Heads of each attention.", MODEL)] = None,
    d_ff: Annotated[int | None, _number("d_ff", "N", "Width of the feed-forward networks.", MODEL)] = None,
    max_length: Annotated[
        int | None,
        _number("max_length", "N", "The longest text in tokens; longer documents are split into chunks.", MODEL),
    ] = None,
    vocab_size: Annotated[
        int | None, _number("vocab_size", "N", "The largest vocabulary of the tokenizer that is trained.", MODEL)
    ] = None,
    dropout: Annotated[
        float | None, _number("dropout", "P", "Share of each sub-layer's output that is dropped.", OPTIMIZER)
    ] = None,
    token_noise: Annotated[
        float | None,
        _number("token_noise", "P", "Share of input tokens replaced in training; lm, for small data sets.", OPTIMIZER),
    ] = None,
    image_size: Annotated[
        int | None,
        _number(
            "image_size",
            "N",
            "Images are resized to N x N pixels; by default to the size of the first, at most 224.",
            MODEL,
        ),
    ] = None,
    patch_size: Annotated[
        int | None,
        _number(
            "patch_size",
            "N",
            "Images are split into patches of N x N pixels; by default a quarter of the image's side, at most 16.",
            MODEL,
        ),
    ] = None,
    skip_long: Annotated[
        bool, typer.Option("--skip-long", help="Skip pairs longer than --max-length.", rich_help_panel=MODEL)
    ] = False,
    devices: Annotated[
        int | None,
        option("N", "Processes on each machine; by default one for each GPU, or one.", rich_help_panel=HARDWARE, min=1),
    ] = None,
    nodes: Annotated[int, typer.Option(metavar="N", min=1, help="Machines.", rich_help_panel=HARDWARE)] = 1,
    strategy: Annotated[
        StrategyName,
        typer.Option(
            metavar="S",
            rich_help_panel=HARDWARE,
            help="ddp: every process has all weights; fsdp: each has its share; auto: ddp for several.",
        ),
    ] = "auto",
    precision: Annotated[
        PrecisionName, typer.Option(metavar="P", rich_help_panel=HARDWARE, help="32-true, bf16-mixed or bf16-true.")
    ] = "32-true",
    accelerator: Annotated[
        str, typer.Option(metavar="A", rich_help_panel=HARDWARE, help="cpu, cuda, ...; auto takes the best there is.")
    ] = "auto",
    json_path: Annotated[
        Path | None,
        json_option("task, out, stop_reason, step, best_step, best_loss, metrics (of the last evaluation)"),
    ] = None,
) -> int:
    """Train a transformer."""
    overrides = {
        "max_steps": max_steps,
        "batch_size": batch_size,
        "gradient_accumulation_steps": gradient_accumulation_steps,
        "learning_rate": learning_rate,
        "warmup_steps": warmup_steps,
        "min_learning_rate": min_learning_rate,
        "weight_decay": weight_decay,
        "max_grad_norm": max_grad_norm,
        "label_smoothing": label_smoothing,
        "eval_steps": eval_steps,
        "patience": patience,
        "seed": seed,
        "num_layers": num_layers,
        "d_model": d_model,
        "num_heads": num_heads,
        "d_ff": d_ff,
        "max_length": max_length,
        "vocab_size": vocab_size,
        "dropout": dropout,
        "token_noise": token_noise,
        "image_size": image_size,
        "patch_size": patch_size,
        "skip_long": skip_long or None,
    }
    config = {name: value for name, value in overrides.items() if value is not None}
    if not resume:
        build_config(task, config)  # what is out of range is refused before PyTorch is imported
    ensure_json_writable(json_path)
    import_torch()
    with status("starting"):
        from regard.training.console import ConsoleCallback, format_metrics
        from regard.training.distributed import is_rank_zero
        from regard.training.train import train as run_training
    console = ConsoleCallback()
    try:
        with console.handle_signals():
            result = run_training(
                task,
                data or (),
                out=out,
                eval_file=eval_file,
                model=model,
                resume=resume,
                devices=devices,
                nodes=nodes,
                strategy=strategy,
                precision=precision,
                accelerator=accelerator,
                callback=console,
                command=["regard", *sys.argv[1:]],
                **config,
            )
    except InputError:
        if is_rank_zero():
            raise
        return 0  # the process of rank 0 prints the same error
    if not is_rank_zero():
        return 0
    progress = result.progress
    facts = {
        "task": task,
        "out": str(out),
        "stop_reason": result.stop_reason,
        "step": progress.step,
        "best_step": progress.best_step,
        "best_loss": progress.best_loss,
        "metrics": result.metrics,
    }
    is_all = write_json(facts, json_path)
    if result.stop_reason == "interrupted":
        console.print_line(
            f"saved a checkpoint after update {progress.step:,}; continue with: regard train {task} "
            f"--out {shlex.quote(str(out))} --resume"
        )
        return 128 + (console.signal_number or signal.SIGTERM)
    if is_all:
        return 0
    stopped = ", stopped early" if result.stop_reason == "patience" else ""
    best = f"the best was update {progress.best_step:,}, with an eval loss of {progress.best_loss:.3f}"
    print(f"{format_metrics(result.metrics) or 'the run was complete already'}{stopped}; {best}. The model is in {out}")
    return 0
