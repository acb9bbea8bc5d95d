"""The command line: parses, calls, prints."""

from __future__ import annotations

import json
import os
import sys
from contextlib import suppress
from pathlib import Path
from typing import Annotated, Any

import typer

import regard
from regard.errors import InputError
from regard.views.visible import visible

__all__ = ["app", "main"]

app = typer.Typer(
    help="Attention for transformers that you can run, see and check.",
    no_args_is_help=True,
    add_completion=False,
    pretty_exceptions_enable=False,
    context_settings={"help_option_names": ["-h", "--help"]},
)

# Typer keeps the base class of all its usage errors in a place of its own in each version.
USAGE_ERROR: type[Any] = typer.BadParameter.__bases__[0]


def main() -> None:
    """Run the command line and leave with its exit code: 0, 2 for input that cannot be used, 130 for Ctrl-C."""
    # A stream that was closed swallows what it gets; one that cannot show a character gets its code, not a traceback.
    sys.stdout = sys.stdout or open(os.devnull, "w")  # noqa: SIM115
    sys.stderr = sys.stderr or open(os.devnull, "w")  # noqa: SIM115
    for stream in (sys.stdout, sys.stderr):
        stream.reconfigure(errors="backslashreplace")  # type: ignore[union-attr]
    code, message = _run()
    for stream, text in ((sys.stderr, message), (sys.stdout, "")):
        try:
            stream.write(text)
            stream.flush()
        except OSError as error:
            # Whoever read our output may have seen enough. Nothing more can be written, not even when Python ends.
            os.dup2(os.open(os.devnull, os.O_WRONLY), stream.fileno())
            if stream is sys.stdout and not message and not isinstance(error, BrokenPipeError):
                code = 2
                with suppress(OSError):
                    print(f"regard: cannot write the output: {error.strerror}", file=sys.stderr, flush=True)
    sys.exit(code)


def _run() -> tuple[int, str]:
    """The exit code of the command, and what to say about it."""
    try:
        code = app(standalone_mode=False)
    except InputError as error:
        return 2, f"regard: {visible(str(error))}\n"
    except USAGE_ERROR as error:
        said = visible(error.format_message()).rstrip(".?")  # nothing where the help was shown instead
        return 2, f"regard: {said}. See regard explain --help\n" if said else ""
    except (typer.Abort, KeyboardInterrupt):
        return 130, ""
    except (BrokenPipeError, SystemExit):  # rich turns the one into the other
        return 0, ""
    except OSError as error:
        return 2, f"regard: {error.filename or 'cannot write the output'}: {error.strerror or error}\n"
    return code if isinstance(code, int) else 0, ""


def _version(wanted: bool) -> None:
    if wanted:
        print(f"regard {regard.__version__}")
        raise typer.Exit


@app.callback()
def _regard(
    version: Annotated[
        bool, typer.Option("--version", callback=_version, is_eager=True, help="Print the version and stop.")
    ] = False,
) -> None:
    """Attention for transformers that you can run, see and check."""


@app.command(
    help="Show what attention does with a word of a sentence, on real trained weights.\n\n"
    "The tokens and the input; where the word looks; the arithmetic of that row, number by number; how context "
    "changes the word (with --compare); and the proof: the row by the definition in float64, held against what the "
    "model itself computed.\n\n"
    "In an encoder a word looks at all words of the text, in a decoder at itself and those before it. With an "
    "encoder-decoder TEXT is the source, and the word is one that is written for it, the last by default: shown is "
    "which words of the source it came from (cross-attention).",
    epilog='Example: regard explain "Write a poem about a man fishing on a river bank." --token bank '
    '--compare "Write a poem about a man applying for a loan in a bank."\n\n'
    'Which word of a sentence a translated word came from: regard explain "Das Haus ist alt." --token house '
    "--model Helsinki-NLP/opus-mt-de-en",
)
def explain(
    text: Annotated[str, typer.Argument(help="A sentence, in quotes.", show_default=False)],
    token: Annotated[
        str | None,
        typer.Option(
            metavar="WORD",
            help="The word to explain; of a word that stands there twice, the first. A number that is no word of the "
            "text is a token's position. By default the last word that all sentences share.",
            show_default=False,
        ),
    ] = None,
    layer: Annotated[
        int | None,
        typer.Option(
            metavar="N",
            help="Which layer, from 0. By default layer and head are those in which one other token of the text gets "
            "its largest share from the word.",
            show_default=False,
        ),
    ] = None,
    head: Annotated[int | None, typer.Option(metavar="N", help="Which head, from 0.", show_default=False)] = None,
    compare: Annotated[
        list[str] | None,
        typer.Option(
            metavar="TEXT",
            help="Another sentence with the same word, to see how context changes it. May be given several times.",
            show_default=False,
        ),
    ] = None,
    target: Annotated[
        str | None,
        typer.Option(
            metavar="TEXT",
            help="What an encoder-decoder writes for TEXT. By default what it writes by itself, the likeliest token "
            "each time.",
            show_default=False,
        ),
    ] = None,
    attention: Annotated[
        str | None,
        typer.Option(
            metavar="KIND",
            help="Of an encoder-decoder: cross (the default: a word of the target looks at the source), decoder (it "
            "looks at itself and those before it) or encoder (a word of the source looks at the source).",
            show_default=False,
        ),
    ] = None,
    model: Annotated[
        str,
        typer.Option(
            metavar="NAME",
            help="A folder with config.json, tokenizer.json and model.safetensors, or a name on the Hugging Face Hub. "
            "Families: BERT, RoBERTa; GPT-2, Llama, Mistral, Qwen2, Qwen3, Gemma 2; Marian, BART, T5.",
        ),
    ] = "sentence-transformers/all-MiniLM-L6-v2",
    json_path: Annotated[
        Path | None,
        typer.Option(
            "--json", metavar="PATH", help="Also write every fact as JSON; - prints only that.", show_default=False
        ),
    ] = None,
) -> None:
    """Show what attention does with a word of a sentence, on real trained weights."""
    from rich.console import Console

    with Console(stderr=True).status("reading the model"):
        explanation = regard.explain(
            text, token, model, compare, layer=layer, head=head, target=target, attention=attention
        )
    if json_path == Path("-"):
        print(json.dumps(explanation.to_dict(), allow_nan=False))
        return
    if json_path is not None:
        explanation.save(json_path)

    from regard.views.terminal import console_for, draw

    draw(explanation, console_for(sys.stdout))
