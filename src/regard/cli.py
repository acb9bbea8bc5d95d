"""The command line: parses, calls, prints."""

from __future__ import annotations

import json
import os
import signal
import sys
from collections.abc import Callable
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
        command = f" {error.ctx.info_name}" if error.ctx is not None and error.ctx.parent is not None else ""
        return 2, f"regard: {said}. See regard{command} --help\n" if said else ""
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


def _option(metavar: str, help_: str, *names: str, **more: Any) -> Any:
    """An option whose default is in its help, if anywhere."""
    return typer.Option(*names, metavar=metavar, help=help_, show_default=False, **more)


def _most_tokens(help_: str) -> Any:
    return _option("N", help_, "--max-new-tokens", "-n", min=1)


MODEL_HELP = (
    "A folder with config.json, tokenizer.json and model.safetensors, or a name on the Hugging Face Hub. Families: "
)
ANY_FAMILY = "BERT, RoBERTa; GPT-2, Llama, Mistral, Qwen2, Qwen3, Gemma 2; Marian, BART, T5."
DEFAULT_MODEL = "sentence-transformers/all-MiniLM-L6-v2"
LengthPenalty = Annotated[
    float,
    typer.Option(
        metavar="P", help="With a beam: scores are divided by length ** P; above 0 favours long texts, below 0 short."
    ),
]
Must = Annotated[
    list[str] | None, _option("WORD", "With a beam: a word that has to appear. May be given several times.")
]
Never = Annotated[
    list[str] | None, _option("WORD", "With a beam: a word that may not appear. May be given several times.")
]


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
        _option(
            "WORD",
            "The word to explain; of a word that stands there twice, the first. A number that is no word of the text "
            "is a token's position. By default the last word that all sentences share.",
        ),
    ] = None,
    layer: Annotated[
        int | None,
        _option(
            "N",
            "Which layer, from 0. By default layer and head are those in which one other token of the text gets its "
            "largest share from the word.",
        ),
    ] = None,
    head: Annotated[int | None, _option("N", "Which head, from 0.")] = None,
    compare: Annotated[
        list[str] | None,
        _option(
            "TEXT",
            "Another sentence with the same word, to see how context changes it. May be given several times.",
        ),
    ] = None,
    target: Annotated[
        str | None,
        _option(
            "TEXT",
            "What an encoder-decoder writes for TEXT. By default what it writes by itself, the likeliest token each "
            "time.",
        ),
    ] = None,
    attention: Annotated[
        str | None,
        _option(
            "KIND",
            "Of an encoder-decoder: cross (the default: a word of the target looks at the source), decoder (it looks "
            "at itself and those before it) or encoder (a word of the source looks at the source).",
        ),
    ] = None,
    model: Annotated[
        str,
        typer.Option(
            metavar="NAME",
            help=MODEL_HELP + ANY_FAMILY,
        ),
    ] = DEFAULT_MODEL,
    json_path: Annotated[
        Path | None, _option("PATH", "Also write every fact as JSON; - prints only that.", "--json")
    ] = None,
) -> None:
    """Show what attention does with a word of a sentence, on real trained weights."""
    _import_torch()
    with _status("reading the model"):
        explanation = regard.explain(
            text, token, model, compare, layer=layer, head=head, target=target, attention=attention
        )

    from regard.views.terminal import draw

    _tell(explanation, json_path, draw)


@app.command(
    help="See what a model attends to in a text: every head of every layer, exactly, on real trained weights.\n\n"
    "A table of layers and heads: what kind of head it is (previous token, first token, same token, induction, "
    "delimiter, broad), its entropy, its weight on the first token, how far it looks, and the strongest pair of words. "
    "Of a longer text also which words were looked at most. The model runs once, on its own fast kernels; each layer "
    "says by how much the attention shown differs from what the model computed.\n\n"
    "With an encoder-decoder TEXT is the source, and what it writes for it is watched too.",
    epilog='Example: regard watch "Write a poem about a man fishing on a river bank."\n\n'
    "A file, two layers, kept for regard.Recording.load: regard watch --file story.txt --layers 0,5 "
    "--save story.safetensors",
)
def watch(
    text: Annotated[str | None, typer.Argument(help="A text, in quotes.", show_default=False)] = None,
    file: Annotated[Path | None, _option("PATH", "A file with the text, in place of TEXT; UTF-8.")] = None,
    model: Annotated[str, typer.Option(metavar="NAME", help=MODEL_HELP + ANY_FAMILY)] = DEFAULT_MODEL,
    layers: Annotated[
        str | None, _option("LIST", "These layers only: numbers from 0 and ranges, such as 0,3-5. By default all.")
    ] = None,
    save: Annotated[
        Path | None, _option("PATH", "Also keep the recording: a file of safetensors for regard.Recording.load.")
    ] = None,
    json_path: Annotated[
        Path | None, _option("PATH", "Also write every fact as JSON; - prints only that.", "--json")
    ] = None,
) -> None:
    """See what a model attends to in a text."""
    from rich.progress import track

    if (text is None) == (file is None):
        raise InputError("give a TEXT or --file PATH, one of them")
    _import_torch()
    from regard.lens import kept, look
    from regard.lens.overview import LONG

    numbers = None if layers is None else look.layers_of(layers)
    words = look.read_text(file) if text is None and file is not None else str(text)
    if save is not None:
        if save == json_path:
            raise InputError(f"--save and --json both name {save}: give each a file of its own")
        kept.room_for(save)
    pretrained = _loaded(model)
    with _status("running the model"):
        seen = look.run(words, pretrained, numbers)
    hidden = not sys.stderr.isatty() or seen.tokens < LONG
    facts = seen.overview(
        lambda paths: track(paths, "asking each layer", console=_on_stderr(), transient=True, disable=hidden)
    )
    if save is not None:
        seen.recording.save(save)

    from regard.views.heads import draw

    _tell(facts, json_path, draw)


@app.command(
    help="Write a page on which you can look at the attention of a model in a text, touch it, and follow its "
    "arithmetic.\n\n"
    "One file that opens in any browser and asks nothing of a network: the sentence with its weights as lines, every "
    "head as a small picture, the map down to single cells, the numbers of each row, and what would change if a score, "
    "the scale, the temperature or the mask were another. With --compare also how context changes a word's vector.",
    epilog='Example: regard see "Write a poem about a man fishing on a river bank." --open\n\n'
    'In the terminal: regard see "The animal was too tired." --terminal\n\n'
    "What regard watch --save kept: regard see --recording story.safetensors",
)
def see(
    text: Annotated[str | None, typer.Argument(help="A text, in quotes.", show_default=False)] = None,
    file: Annotated[Path | None, _option("PATH", "A file with the text, in place of TEXT; UTF-8.")] = None,
    recording: Annotated[
        Path | None, _option("PATH", "What regard watch --save or Recording.save kept, in place of TEXT.")
    ] = None,
    model: Annotated[str, typer.Option(metavar="NAME", help=MODEL_HELP + ANY_FAMILY)] = DEFAULT_MODEL,
    compare: Annotated[
        list[str] | None,
        _option("TEXT", "Another sentence, to see how context changes the words in both. May be given several times."),
    ] = None,
    target: Annotated[
        str | None, _option("TEXT", "What an encoder-decoder writes for TEXT. By default what it writes by itself.")
    ] = None,
    layers: Annotated[
        str | None, _option("LIST", "These layers only: numbers from 0 and ranges, such as 0,3-5. By default all.")
    ] = None,
    heads: Annotated[
        str | None,
        _option(
            "LIST",
            "LAYER.HEAD, such as 3.5,4.0: these heads are in the page whole, and the others as pictures. By default "
            "all that fit. In the terminal: these are drawn.",
        ),
    ] = None,
    limit: Annotated[float, typer.Option(metavar="MB", min=0.5, help="The most that the page may take.")] = 5.0,
    out: Annotated[Path | None, _option("PATH", "Where to write the page; by default regard.html.")] = None,
    open_: Annotated[bool, typer.Option("--open", help="Open the page in your browser.")] = False,
    terminal: Annotated[bool, typer.Option("--terminal", help="Draw one head here, and write no page.")] = False,
) -> None:
    """Write a page on which you can look at the attention of a model in a text."""
    from rich.progress import track

    if sum(given is not None for given in (text, file, recording)) != 1:
        raise InputError("give a TEXT, --file PATH or --recording PATH, one of them")
    if recording is not None and (
        model != DEFAULT_MODEL or any(given is not None for given in (compare, target, layers))
    ):
        raise InputError("--recording shows what was kept: --model, --compare, --target and --layers belong to a TEXT")
    if terminal and (open_ or compare or out is not None):
        raise InputError("--terminal draws here and writes no page: leave --out, --open and --compare out")
    if out == Path("-"):
        raise InputError("--out -: a page is a file; give it a name, such as regard.html")
    if not limit < 1e9:
        raise InputError(f"--limit {limit}: a number of megabytes")
    _import_torch()
    from regard.lens import look
    from regard.lens.chosen import choose, named
    from regard.lens.context import context as context_of

    wanted = None if heads is None else look.heads_of(heads)
    if recording is not None:
        kept, title, name, context = regard.Recording.load(recording), recording.name, "a recording", None
    else:
        numbers = None if layers is None else look.layers_of(layers)
        words = look.read_text(file) if text is None and file is not None else str(text)
        pretrained = _loaded(model)
        with _status("running the model"):
            seen = look.run(words, pretrained, numbers, target)
            seen.show_words()
            context = context_of([words, *compare], pretrained).to_dict() if compare else None
        kept, title, name = seen.recording, words if text is not None else str(file), pretrained.name
    try:
        asked = named(kept, wanted) if wanted else None
    except LookupError as error:  # no such layer or head
        raise InputError(str(error.args[0])) from error
    try:
        if terminal:
            from regard.views.square import draw
            from regard.views.terminal import console_for

            for path, head in asked or [choose(kept)]:
                draw(kept, console_for(sys.stdout), path=path, head=head)
            return

        from regard.lens.facts import write_text
        from regard.views.page import written

        hidden = not sys.stderr.isatty()
        page = written(
            kept,
            title=title,
            model=name,
            limit=int(limit * 1e6),
            heads=wanted,
            context=context,
            each=lambda paths: track(paths, "asking each layer", console=_on_stderr(), transient=True, disable=hidden),
        )
    except ValueError as error:  # nothing to show; a limit that is too small
        raise InputError(str(error)) from error
    out = out or Path("regard.html")
    write_text(page, out)
    print(f"{visible(str(out))}: {len(page.encode()) / 1e6:.2f} MB")
    if open_:
        import webbrowser

        if not webbrowser.open(out.resolve().as_uri()):
            print("no browser could be opened: open the file yourself", file=sys.stderr)


@app.command(
    help="Write on from a prompt, and show the text while it is written.\n\n"
    "By default the likeliest token each time. With --temperature, --top-k, --top-p, --min-p, --repetition-penalty or "
    "--seed tokens are drawn; with --beam the best of several texts is found, and shown at the end. What is printed is "
    "what is new.",
    epilog='Example: regard generate "Once upon a time" --model openai-community/gpt2 --temperature 0.8 --top-p 0.95 '
    "--seed 1",
)
def generate(
    prompt: Annotated[str, typer.Argument(help="The text to go on from, in quotes; - reads it from standard input.")],
    model: Annotated[
        str,
        typer.Option(
            metavar="NAME", help=MODEL_HELP + "GPT-2, Llama, Mistral, Qwen2, Qwen3, Gemma 2; Marian, BART, T5."
        ),
    ],
    max_new_tokens: Annotated[
        int | None,
        _most_tokens("The most tokens that are written; by default 128, or as many as the model has positions for."),
    ] = None,
    temperature: Annotated[float | None, _option("T", "Draw: below 1 the likely become likelier.")] = None,
    top_k: Annotated[int | None, _option("K", "Draw among the K likeliest.")] = None,
    top_p: Annotated[float | None, _option("P", "Draw among the likeliest that together have probability P.")] = None,
    min_p: Annotated[
        float | None, _option("P", "Draw among those at least P times as likely as the likeliest.")
    ] = None,
    repetition_penalty: Annotated[
        float | None, _option("R", "Draw: above 1, tokens that the text has become less likely.")
    ] = None,
    seed: Annotated[int | None, _option("N", "Draw the same again next time.")] = None,
    beam: Annotated[int | None, _option("WIDTH", "Follow so many texts at once and keep the best.", "--beam")] = None,
    length_penalty: LengthPenalty = 1.0,
    n_best: Annotated[
        int, typer.Option(metavar="N", min=1, help="With a beam: print the N best texts, the best first.")
    ] = 1,
    must: Must = None,
    never: Never = None,
    stop: Annotated[list[str] | None, _option("TEXT", "End before this text. May be given several times.")] = None,
) -> None:
    """Write on from a prompt, and show the text while it is written."""
    _import_torch()
    drawn = {
        "temperature": temperature,
        "top_k": top_k,
        "top_p": top_p,
        "min_p": min_p,
        "repetition_penalty": repetition_penalty,
        "seed": seed,
    }
    draws = {name: value for name, value in drawn.items() if value is not None}
    strategy = _strategy(draws, beam, length_penalty, n_best, must, never)
    text = sys.stdin.read() if prompt == "-" else prompt
    pretrained = _loaded(model)
    if max_new_tokens is None:
        from regard.generation import room

        max_new_tokens = min(128, room(pretrained, text))
    options: dict[str, Any] = {"max_new_tokens": max_new_tokens, "stop": stop or None}
    if isinstance(strategy, regard.Beam):
        with _status("searching"):
            found = regard.generate(pretrained, text, strategy=strategy, **options)
        for written in [found] if n_best == 1 else found:
            print(_shown(str(written)))
        return
    for piece in regard.stream(pretrained, text, strategy=strategy, **options):
        print(_shown(str(piece)), end="", flush=True)
    print()


@app.command(
    help="Translate texts, or whatever else an encoder-decoder was trained to make of them: one line for each.",
    epilog='Example: regard translate --model Helsinki-NLP/opus-mt-en-de "The house is old." "It rains."\n\n'
    "A file, line by line: regard translate --model NAME - < in.txt > out.txt",
)
def translate(
    texts: Annotated[
        list[str], typer.Argument(metavar="TEXT...", help="Texts, each in quotes; - reads lines from standard input.")
    ],
    model: Annotated[str, typer.Option(metavar="NAME", help=MODEL_HELP + "Marian, BART, T5.")],
    beam: Annotated[
        int, typer.Option("--beam", metavar="WIDTH", min=1, help="Follow so many texts at once and keep the best.")
    ] = 4,
    length_penalty: LengthPenalty = 1.0,
    must: Must = None,
    never: Never = None,
    max_new_tokens: Annotated[
        int | None,
        _most_tokens("The most tokens of one text; by default 512, or as many as the model has positions."),
    ] = None,
    batch_size: Annotated[int, typer.Option(metavar="N", min=1, help="Texts that go through the model together.")] = 16,
) -> None:
    """Translate texts, one line for each."""
    from rich.progress import track

    _import_torch()
    strategy = _strategy({}, beam, length_penalty, 1, must, never)
    lines = [line.rstrip("\n") for text in texts for line in (sys.stdin if text == "-" else [text])]
    translated = regard.translate(
        _loaded(model), lines, strategy=strategy, max_new_tokens=max_new_tokens, batch_size=batch_size
    )
    # Where lines appear one after the other on a terminal, they are progress enough.
    hidden = sys.stdout.isatty() or not sys.stderr.isatty() or len(lines) <= batch_size
    bar = track(translated, "translating", len(lines), console=_on_stderr(), transient=True, disable=hidden)
    for written in bar:
        print(visible(written), flush=True)


def _strategy(
    draws: dict[str, Any],
    beam: int | None,
    length_penalty: float,
    n_best: int,
    must: list[str] | None,
    never: list[str] | None,
) -> Any:
    """The strategy that the options ask for."""
    try:
        if beam is not None:
            if draws:
                first = next(iter(draws)).replace("_", "-")
                raise InputError(f"--beam searches and --{first} draws: give one of them")
            return regard.Beam(
                width=beam, length_penalty=length_penalty, n_best=n_best, must=must or (), never=never or ()
            )
        if must or never or n_best != 1:
            name = "must" if must else "never" if never else "n-best"
            raise InputError(f"--{name} needs a search: give --beam WIDTH too")
        return regard.Sample(**draws) if draws else regard.Greedy()
    except ValueError as error:
        raise InputError(str(error)) from error


def _tell(facts: Any, json_path: Path | None, draw: Callable[[Any, Any], None]) -> None:
    """Print facts: as JSON where that goes to -, else drawn, with the JSON in a file where one is named."""
    if json_path == Path("-"):
        print(json.dumps(facts.to_dict(), allow_nan=False))
        return
    if json_path is not None:
        facts.save(json_path)

    from regard.views.terminal import console_for

    draw(facts, console_for(sys.stdout))


def _loaded(model: str) -> Any:
    with _status("reading the model"):
        return regard.load(model)


def _import_torch() -> None:
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


def _status(doing: str) -> Any:
    return _on_stderr().status(doing)


def _on_stderr() -> Any:
    from rich.console import Console

    return Console(stderr=True)


def _shown(text: str) -> str:
    """A text as it is, but for what could steer the terminal."""
    return "".join(c if c in "\n\t" else visible(c) for c in text)
