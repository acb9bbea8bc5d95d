"""The command `regard effect`."""

from __future__ import annotations

import re
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

import regard
from regard.cli.app import app
from regard.cli.options import (
    ANY_FAMILY,
    DEFAULT_DECODER,
    DEFAULT_MODEL,
    MODEL_HELP,
    ensure_json_writable,
    errors_of_options,
    import_torch,
    json_option,
    load_model,
    option,
    read_argument,
    require_choice,
    status,
    write_json,
)
from regard.errors import InputError, errors_of_argument
from regard.escape import visible
from regard.files import ensure_writable, read_text

if TYPE_CHECKING:
    from regard.lens.effects.effects import Effects
    from regard.lens.effects.metrics import Metric
    from regard.pretrained import Pretrained

METRICS = ("log-prob", "logit-difference", "loss", "kl", "cosine")
NUM_TOKENS = {"log-prob": 1, "logit-difference": 2}
"""How many tokens a metric names; the others name none."""

OVER = ("heads", "layers", "tokens", "edges")
ABLATIONS = ("zero", "mean", "resample")
METHODS = ("exact", "gradient", "both")
DEFAULT_TOP = 20

INTERRUPTED = 130
"""The exit code after Ctrl-C, also where a part of the result was shown."""

IN_OPTIONS = {
    r"source= with": "--source with",
    r"name its first token by its id, or another word": "name another word",
    r"""\b(ablation|method)=['"](\w+)['"]""": r"--\1 \2",
}
"""Parts of the library's messages as patterns, and how the command says them."""


@app.command(
    help="Show what mattered, beside what was looked at.\n\n"
    "An attention map says where a head looks, not whether that mattered. Here each head, layer, token or edge is "
    "removed, all others run as ever, and a metric of the model's answer is computed again: the difference is the "
    "effect. Above 0 the part raises the metric, below 0 it lowers it.\n\n"
    "The metric is by default the log-probability of the model's own likeliest next token; of an encoder the distance "
    "(1 - cosine) that the text's vector moves; of an encoder-decoder the loss of the translation that it writes. Long "
    "work shows its progress; Ctrl-C stops it and shows what is known so far.",
    epilog='Example: regard effect "When Mary and John went to the store, John gave a drink to" --tokens Mary,John\n\n'
    'Which words the answer needs: regard effect "The capital of France is" --over tokens\n\n'
    'As a page, in which a click on a head opens its map: regard effect "The capital of France is" --html effects.html'
    '\n\nAn encoder: regard effect "a man fishing on a river bank" --metric cosine',
)
def effect(
    text: Annotated[str, typer.Argument(help="A text, in quotes.", show_default=False)],
    metric: Annotated[
        str | None,
        option(
            "NAME",
            "log-prob of a token as the next one; logit-difference of two tokens; loss, the mean cross-entropy of the "
            "text; kl, how far the next token's distribution moves; cosine, how far the text's vector moves. By "
            "default what --tokens says, or else what the model is for, see above.",
        ),
    ] = None,
    tokens: Annotated[
        str | None,
        option(
            "A,B",
            "The tokens of the metric, such as Mary,John: with one the log-probability of A, with two the logit of A "
            "minus the logit of B. Each is a single token, looked up with a space before it first.",
        ),
    ] = None,
    over: Annotated[
        str,
        typer.Option(
            metavar="PARTS",
            help="What is removed, one at a time: heads; layers, all heads of an attention; tokens, each hidden from "
            "all others; edges, the last token may not look at one token in one layer.",
        ),
    ] = "heads",
    ablation: Annotated[
        str | None,
        option(
            "NAME",
            "What a removed head gives: zero (the default); mean, its mean output over the texts of --source, or over "
            "this text; resample, its output for another text of --source.",
        ),
    ] = None,
    source: Annotated[
        Path | None, option("PATH", "With --ablation mean or resample: a file with a text in each line; UTF-8.")
    ] = None,
    method: Annotated[
        str | None,
        option(
            "NAME",
            "exact; gradient, all effects estimated to first order by one backward pass; both, all estimated and the "
            "strongest computed exactly. By default exact for up to 300 parts, and both for more.",
        ),
    ] = None,
    window: Annotated[
        int | None,
        typer.Option(
            metavar="N", min=1, help="With --over edges: block N layers at once, around each layer; by default 1."
        ),
    ] = None,
    top: Annotated[
        int, typer.Option(metavar="N", min=1, help="How many are shown; with --method both, how many are exact.")
    ] = DEFAULT_TOP,
    model: Annotated[
        str | None,
        option(
            "NAME",
            f"{MODEL_HELP}{ANY_FAMILY} By default {DEFAULT_DECODER}, and for --metric cosine {DEFAULT_MODEL}.",
            "--model",
        ),
    ] = None,
    html: Annotated[
        Path | None, option("PATH", "Also write a page that opens with the effects and has every head's map.", "--html")
    ] = None,
    json_path: Annotated[
        Path | None, json_option("all effects, for regard.Effects.load and regard see --effects,")
    ] = None,
) -> None:
    """Show what mattered, beside what was looked at."""
    require_choice("--metric", metric, METRICS)
    require_choice("--over", over, OVER)
    require_choice("--ablation", ablation, ABLATIONS)
    require_choice("--method", method, METHODS)
    names = _tokens(metric, tokens)
    _refuse_unread_options(over, ablation, source, window)
    if html is not None:
        if html == Path("-") or html == json_path:
            raise InputError(f"--html {html}: give the page a file of its own, such as effects.html")
        ensure_writable(html)
    ensure_json_writable(json_path)
    source_texts = None if source is None else [line for line in read_text(source).splitlines() if line.strip()]
    if source_texts == []:
        raise InputError(f"--source {source}: there is no text in it")
    text = read_argument(text, f"regard effect - < {text}")
    import_torch()
    pretrained = load_model(model or (DEFAULT_MODEL if metric == "cosine" else DEFAULT_DECODER))
    options: dict[str, Any] = {"method": method, "top": top}
    options |= {} if ablation is None else {"ablation": ablation}
    options |= {} if window is None else {"window": window}
    options |= {} if source_texts is None else {"source": source_texts}
    with errors_of_options(text=None, metric=metric, tokens=tokens), _errors_in_options():
        with status("running the model"):
            computed = _metric(metric, names, pretrained, text)
        effects = regard.effect(pretrained, text, computed, over, **options)
    if json_path is None or not write_json(effects.to_json(), json_path):
        _draw(effects, top)
    if html is not None:
        size = len(effects.to_html(html, model=pretrained.name).encode())
        if json_path != Path("-"):
            print(f"{visible(str(html))}: {size / 1e6:.2f} MB")
    if effects.is_partial:
        raise typer.Exit(INTERRUPTED)


def _tokens(metric: str | None, tokens: str | None) -> list[str]:
    """The tokens of the metric.

    Raises:
        InputError: too many or too few of them.
    """
    names = [] if tokens is None else tokens.split(",")
    if metric is None and (tokens is None or len(names) in NUM_TOKENS.values()):
        wanted = len(names)
    else:
        wanted = NUM_TOKENS.get(metric or "logit-difference", 0)
    if metric == "log-prob" and tokens is None:  # of the model's own next token
        return []
    if any(not name.strip() for name in names) or len(names) != wanted:
        if wanted == 0:
            raise InputError(f"--tokens {tokens}: --metric {metric} names no token: leave --tokens out")
        example = "Mary,John" if wanted == 2 else "Paris"
        shown = "" if tokens is None else f" {tokens}"
        name = metric or "logit-difference"
        raise InputError(f"--tokens{shown}: {name} takes {wanted} token{'s' * (wanted > 1)}, such as {example}")
    return names


def _refuse_unread_options(over: str, ablation: str | None, source: Path | None, window: int | None) -> None:
    """Refuse options that nothing would read.

    Raises:
        InputError: one of them was given.
    """
    if over in ("tokens", "edges") and (ablation is not None or source is not None):
        raise InputError(f"--over {over} blocks attention and replaces nothing: leave --ablation and --source out")
    if source is not None and ablation not in ("mean", "resample"):
        raise InputError("--source belongs to --ablation mean or resample")
    if ablation == "resample" and source is None:
        raise InputError("--ablation resample takes outputs from other texts: give --source PATH, a text in each line")
    if window is not None and over != "edges":
        raise InputError("--window belongs to --over edges")


@contextmanager
def _errors_in_options() -> Iterator[None]:
    """Say errors of the library in the command's words.

    Raises:
        InputError: for any `ValueError`.
    """
    try:
        yield
    except ValueError as error:
        message = str(error)
        for part, words in IN_OPTIONS.items():
            message = re.sub(part, words, message)
        raise InputError(message, error.argument if isinstance(error, InputError) else None) from error


def _metric(name: str | None, tokens: list[str], pretrained: Pretrained, text: str) -> Metric:
    """The metric of the options."""
    from regard.lens.effects import metrics
    from regard.lens.effects.default_metric import default_metric, likeliest_token
    from regard.transformer import Decoder

    with errors_of_argument("tokens"):
        for token in tokens:
            metrics.token_id(token, pretrained.encode_continuation)
    if tokens:
        return metrics.log_prob(tokens[0]) if len(tokens) == 1 else metrics.logit_difference(tokens[0], tokens[1])
    if name == "log-prob":
        if not isinstance(pretrained.model, Decoder):
            raise InputError(f"--metric log-prob: {pretrained.name} is no decoder: name a token with --tokens")
        return metrics.log_prob(likeliest_token(pretrained, text))
    return default_metric(pretrained, text) if name is None else getattr(metrics, name)()


def _draw(effects: Effects, top: int) -> None:
    from regard.views.terminal.console import console_for
    from regard.views.terminal.effects_table import draw

    draw(effects, console_for(sys.stdout), top)
