"""What the commands share: options, reading a model, and what is said meanwhile."""

from __future__ import annotations

import json
import signal
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import typer

import regard

__all__ = [
    "ANY_FAMILY",
    "DEFAULT_MODEL",
    "MODEL_HELP",
    "import_torch",
    "loaded",
    "on_stderr",
    "option",
    "status",
    "tell",
]

MODEL_HELP = (
    "A folder with config.json, tokenizer.json and model.safetensors, or a name on the Hugging Face Hub. Families: "
)
ANY_FAMILY = "BERT, RoBERTa; GPT-2, Llama, Mistral, Qwen2, Qwen3, Gemma 2; Marian, BART, T5."
DEFAULT_MODEL = "sentence-transformers/all-MiniLM-L6-v2"


def option(metavar: str, help_: str, *names: str, **more: Any) -> Any:
    """An option whose default is in its help, if anywhere."""
    return typer.Option(*names, metavar=metavar, help=help_, show_default=False, **more)


def tell(facts: Any, json_path: Path | None, draw: Callable[[Any, Any], None]) -> None:
    """Print facts: as JSON where that goes to -, else drawn, with the JSON in a file where one is named."""
    if json_path == Path("-"):
        print(json.dumps(facts.to_dict(), allow_nan=False))
        return
    if json_path is not None:
        facts.save(json_path)

    from regard.views.terminal.console import console_for

    draw(facts, console_for(sys.stdout))


def loaded(model: str) -> Any:
    """The model of a name or a folder."""
    with status("reading the model"):
        return regard.load(model)


def import_torch() -> None:
    """Import PyTorch; Ctrl-C in the midst of that would abort the process, so it is heard when it is done."""
    interrupted = []
    if signal.getsignal(signal.SIGINT) is not signal.default_int_handler:
        return  # whoever started this process wants Ctrl-C to be somebody else's affair
    before = signal.signal(signal.SIGINT, lambda *_: interrupted.append(True))
    try:
        import torch  # noqa: F401
    finally:
        signal.signal(signal.SIGINT, before)
    if interrupted:
        raise KeyboardInterrupt


def status(doing: str) -> Any:
    """A line on standard error that says what takes so long, while it does."""
    return on_stderr().status(doing)


def on_stderr() -> Any:
    """Where progress is shown: beside the output, which somebody may pipe."""
    from rich.console import Console

    return Console(stderr=True)
