"""The commands that show attention: explain, watch, see."""

from __future__ import annotations

import sys
from pathlib import Path
from typing import Annotated

import typer

import regard
from regard.cli.door import app
from regard.cli.shared import (
    ANY_FAMILY,
    DEFAULT_MODEL,
    MODEL_HELP,
    import_torch,
    loaded,
    on_stderr,
    option,
    status,
    tell,
)
from regard.errors import InputError
from regard.views.visible import visible

__all__ = ["explain", "see", "watch"]


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
        option(
            "WORD",
            "The word to explain; of a word that stands there twice, the first. A number that is no word of the text "
            "is a token's position. By default the last word that all sentences share.",
        ),
    ] = None,
    layer: Annotated[
        int | None,
        option(
            "N",
            "Which layer, from 0. By default layer and head are those in which one other token of the text gets its "
            "largest share from the word.",
        ),
    ] = None,
    head: Annotated[int | None, option("N", "Which head, from 0.")] = None,
    compare: Annotated[
        list[str] | None,
        option(
            "TEXT",
            "Another sentence with the same word, to see how context changes it. May be given several times.",
        ),
    ] = None,
    target: Annotated[
        str | None,
        option(
            "TEXT",
            "What an encoder-decoder writes for TEXT. By default what it writes by itself, the likeliest token each "
            "time.",
        ),
    ] = None,
    attention: Annotated[
        str | None,
        option(
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
        Path | None, option("PATH", "Also write every fact as JSON; - prints only that.", "--json")
    ] = None,
) -> None:
    """Show what attention does with a word of a sentence, on real trained weights."""
    import_torch()
    with status("reading the model"):
        explanation = regard.explain(
            text, token, model, compare, layer=layer, head=head, target=target, attention=attention
        )

    from regard.views.terminal import draw

    tell(explanation, json_path, draw)


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
    file: Annotated[Path | None, option("PATH", "A file with the text, in place of TEXT; UTF-8.")] = None,
    model: Annotated[str, typer.Option(metavar="NAME", help=MODEL_HELP + ANY_FAMILY)] = DEFAULT_MODEL,
    layers: Annotated[
        str | None, option("LIST", "These layers only: numbers from 0 and ranges, such as 0,3-5. By default all.")
    ] = None,
    save: Annotated[
        Path | None, option("PATH", "Also keep the recording: a file of safetensors for regard.Recording.load.")
    ] = None,
    json_path: Annotated[
        Path | None, option("PATH", "Also write every fact as JSON; - prints only that.", "--json")
    ] = None,
) -> None:
    """See what a model attends to in a text."""
    from rich.progress import track

    if (text is None) == (file is None):
        raise InputError("give a TEXT or --file PATH, one of them")
    import_torch()
    from regard.lens import kept, look
    from regard.lens.overview import LONG

    numbers = None if layers is None else look.layers_of(layers)
    words = look.read_text(file) if text is None and file is not None else str(text)
    if save is not None:
        if save == json_path:
            raise InputError(f"--save and --json both name {save}: give each a file of its own")
        kept.room_for(save)
    pretrained = loaded(model)
    with status("running the model"):
        seen = look.run(words, pretrained, numbers)
    hidden = not sys.stderr.isatty() or seen.tokens < LONG
    facts = seen.overview(
        lambda paths: track(paths, "asking each layer", console=on_stderr(), transient=True, disable=hidden)
    )
    if save is not None:
        seen.recording.save(save)

    from regard.views.heads import draw

    tell(facts, json_path, draw)


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
    file: Annotated[Path | None, option("PATH", "A file with the text, in place of TEXT; UTF-8.")] = None,
    recording: Annotated[
        Path | None, option("PATH", "What regard watch --save or Recording.save kept, in place of TEXT.")
    ] = None,
    model: Annotated[
        str | None, option("NAME", f"{MODEL_HELP}{ANY_FAMILY} By default {DEFAULT_MODEL}.", "--model")
    ] = None,
    compare: Annotated[
        list[str] | None,
        option("TEXT", "Another sentence, to see how context changes the words in both. May be given several times."),
    ] = None,
    target: Annotated[
        str | None, option("TEXT", "What an encoder-decoder writes for TEXT. By default what it writes by itself.")
    ] = None,
    layers: Annotated[
        str | None, option("LIST", "These layers only: numbers from 0 and ranges, such as 0,3-5. By default all.")
    ] = None,
    heads: Annotated[
        str | None,
        option(
            "LIST",
            "LAYER.HEAD, such as 3.5,4.0: these heads are in the page whole, and the others as pictures. By default "
            "all that fit. In the terminal: these are drawn.",
        ),
    ] = None,
    limit: Annotated[float, typer.Option(metavar="MB", min=0.5, help="The most that the page may take.")] = 5.0,
    out: Annotated[Path | None, option("PATH", "Where to write the page; by default regard.html.")] = None,
    open_: Annotated[bool, typer.Option("--open", help="Open the page in your browser.")] = False,
    terminal: Annotated[bool, typer.Option("--terminal", help="Draw one head here, and write no page.")] = False,
) -> None:
    """Write a page on which you can look at the attention of a model in a text."""
    from rich.progress import track

    if sum(given is not None for given in (text, file, recording)) != 1:
        raise InputError("give a TEXT, --file PATH or --recording PATH, one of them")
    if recording is not None and any(given is not None for given in (model, compare, target, layers)):
        raise InputError("--recording shows what was kept: --model, --compare, --target and --layers belong to a TEXT")
    if terminal and (open_ or compare or out is not None):
        raise InputError("--terminal draws here and writes no page: leave --out, --open and --compare out")
    if out == Path("-"):
        raise InputError("--out -: a page is a file; give it a name, such as regard.html")
    if not limit < 1e9:
        raise InputError(f"--limit {limit}: a number of megabytes")
    import_torch()
    from regard.lens import look
    from regard.lens.chosen import choose, named
    from regard.lens.context import context as context_of

    wanted = None if heads is None else look.heads_of(heads)
    if recording is not None:
        kept, title, name, context = regard.Recording.load(recording), recording.name, "a recording", None
    else:
        numbers = None if layers is None else look.layers_of(layers)
        words = look.read_text(file) if text is None and file is not None else str(text)
        pretrained = loaded(model or DEFAULT_MODEL)
        with status("running the model"):
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
            each=lambda paths: track(paths, "asking each layer", console=on_stderr(), transient=True, disable=hidden),
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
