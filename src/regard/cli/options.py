"""Shared by the commands: options, model loading, JSON output, progress on standard error."""

from __future__ import annotations

import gc
import json
import signal
import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Any

import typer

import regard
from regard import files
from regard.errors import InputError
from regard.files import ensure_writable

MODEL_HELP = (
    "A folder with config.json, tokenizer.json and model.safetensors, or a name on the Hugging Face Hub. Families: "
)
ANY_FAMILY = "BERT, RoBERTa; GPT-2, Llama, Mistral, Qwen2, Qwen3, Gemma 2; Marian, BART, T5."
DEFAULT_MODEL = "sentence-transformers/all-MiniLM-L6-v2"
DEFAULT_DECODER = "smollm2"
DEFAULT_DECODER_HELP = (
    "By default smollm2, which needs no network: SmolLM2-135M-Instruct with weights of 4 bits, dequantised; the "
    "numbers of HuggingFaceTB/SmolLM2-135M-Instruct on the Hub are others."
)


def option(metavar: str, help_: str, *names: str, **more: Any) -> Any:
    """An option whose help states the default in words."""
    return typer.Option(*names, metavar=metavar, help=help_, show_default=False, **more)


def json_option(facts: str) -> Any:
    """The option `--json`; each command names the facts that it writes."""
    return option("PATH", f"Also write {facts} as JSON; - prints only the JSON.", "--json")


def ensure_json_writable(path: Path | None) -> None:
    """Refuse a path of `--json` before anything is computed. A pipe or a device is written as it is."""
    if path is None or path == Path("-"):
        return
    with suppress(OSError, ValueError):  # a name that no file can have
        if path.exists() and not path.is_file() and not path.is_dir():
            return
    ensure_writable(path)


def write_json(facts: Any, path: Path | None) -> bool:
    """Write facts to the path of `--json`, if there is one; whether they are all that the command shall print."""
    if path == Path("-"):
        print(json.dumps(facts, indent=1, ensure_ascii=False, allow_nan=False))
        return True
    if path is not None:
        files.write_json(facts, path)
    return False


@contextmanager
def errors_of_options(**values: object) -> Iterator[None]:
    """Name the option in the error of a function: ``--token x: ...``.

    Args:
        values: what the options were given, by the names of the function's arguments.
    """
    try:
        yield
    except InputError as error:
        if error.argument not in values:
            raise
        # A layer that --layer did not give is that of --head LAYER.HEAD.
        is_in_head = error.argument == "layer" and values["layer"] is None
        argument = "head" if is_in_head else error.argument
        value, name = values.get(argument), f"--{argument.replace('_', '-')}"
        shown = "" if value is None or isinstance(value, list) else f" {value}"
        raise InputError(f"{name}{shown}: {error}") from error


def require_choice(name: str, value: str | None, choices: tuple[str, ...]) -> None:
    """Refuse a value of an option that is none of its choices.

    Raises:
        InputError: the value is another one.
    """
    if value is not None and value not in choices:
        raise InputError(f"{name} {value}: it is {', '.join(choices[:-1])} or {choices[-1]}")


def show_or_save(facts: Any, json_path: Path | None, draw: Callable[[Any, Any], None]) -> None:
    """Draw the facts, and write them as JSON if there is a path; the path - prints only the JSON."""
    if json_path is not None and write_json(facts.to_dict(), json_path):
        return

    from regard.views.terminal.console import console_for

    draw(facts, console_for(sys.stdout))


def read_argument(text: str, command: str) -> str:
    """A text that was given as an argument: itself, or for - the standard input, without a line break at its end.

    Args:
        text: the argument.
        command: how the command reads a file, for the message where the text is the name of one.

    Raises:
        InputError: the text is the name of a file; standard input is no UTF-8.
    """
    if text == "-":
        try:
            return sys.stdin.read().removeprefix("\ufeff").removesuffix("\n")
        except UnicodeDecodeError as error:
            raise InputError(f"standard input is no text in {error.encoding}: byte {error.start}") from error
    is_file = False
    with suppress(OSError, ValueError):  # a text that no file can be called
        is_file = Path(text).is_file()
    if is_file:
        raise InputError(f"{text} is a file here, and was given as a text: {command}")
    return text


def load_model(model: str) -> Any:
    """Load a model by its name or folder."""
    with status("reading the model"):
        return regard.load(model)


def import_torch() -> None:
    """Import PyTorch. Ctrl-C during the import would abort the process, so it takes effect after the import."""
    interrupted = []
    if "torch" in sys.modules:
        return
    if signal.getsignal(signal.SIGINT) is not signal.default_int_handler:
        return  # the process that started this one handles Ctrl-C
    before = signal.signal(signal.SIGINT, lambda *_: interrupted.append(True))
    # What an import makes stays: to look for garbage in it, now and at every later collection, takes time for nothing.
    gc.disable()
    try:
        import torch  # noqa: F401
    finally:
        gc.freeze()
        gc.enable()
        signal.signal(signal.SIGINT, before)
    if interrupted:
        raise KeyboardInterrupt


def status(doing: str) -> Any:
    """A line on standard error that names the work in progress."""
    return stderr_console().status(doing)


def stderr_console() -> Any:
    """The console for progress: standard output may be a pipe."""
    from rich.console import Console

    return Console(stderr=True)
