"""What a model attends to in the terminal: its layers and heads, and what was looked at most; plain text when piped."""

from __future__ import annotations

import math

from rich.console import Console
from rich.text import Text

from regard.escape import visible
from regard.lens.text.overview import (
    LONG_TEXT_TOKENS,
    HeadOverview,
    LayerOverview,
    MostAttended,
    Overview,
    ReceivedWord,
)
from regard.views.terminal.console import full_block, marker_notes, new_table, print_heading, print_line

SHOWN = 15
"""So many words of those."""

FIRST_CHARACTERS = 200
"""So much of a text is shown."""

REST = 62
"""The columns that the table of heads needs beside the two tokens of a pair."""

KINDS = {
    "previous token": "looks at the token before",
    "attention sink": "rests on the first token",
    "same token": "looks at its own token, where it stands and wherever else",
    "induction": "looks at what followed an earlier occurrence of its token",
    "delimiter": "looks at punctuation and the end",
    "uniform": "looks at everything about evenly",
    "mixed": "nothing of that",
}


def draw(overview: Overview, console: Console) -> None:
    """Show an overview part by part."""
    o = overview
    console.print(Text.assemble(("regard watch", "bold"), f"  {visible(o.model)}"))
    print_line(console, _beginning(o.text))
    if o.target is not None:
        print_line(console, f"-> {_beginning(o.target)}")
    beside = "" if o.target_tokens is None else f"; {len(o.target_tokens)} of what the decoder reads"
    print_line(console, f"{len(o.tokens)} tokens{beside}")
    console.print()
    _layers(o, console)
    console.print()
    _heads(o, console)
    if max(len(o.tokens), len(o.target_tokens or ())) >= LONG_TEXT_TOKENS:
        for most in o.most_attended:
            console.print()
            _most(o, most, console)


def _layers(o: Overview, console: Console) -> None:
    print_heading(console, "The layers")
    table = new_table(
        ("path", "left"),
        ("", "left"),
        ("queries x keys", "left"),
        ("mask", "left"),
        ("error", "right"),
        compact=True,
    )
    for layer in o.layers:
        error = Text(_error(layer), style="" if layer.verified else "bold red")
        table.add_row(
            Text(visible(layer.path)),
            layer.kind,
            f"{layer.num_queries} x {layer.num_keys}",
            Text(visible(layer.mask)),
            error,
        )
    console.print(table)
    print_line(console, "error: weights @ v by regard, against what the model itself computed.")
    if not all(layer.verified for layer in o.layers):
        print_line(console, "DO NOT TRUST layers in red: their maps are not what the model computed.", style="bold red")


def _error(layer: LayerOverview) -> str:
    return "unknown" if math.isnan(layer.error) else f"{layer.error:.1e}"


def _heads(o: Overview, console: Console) -> None:
    print_heading(console, "The heads, on average over the tokens that look")
    table = new_table(
        ("layer", "right"),
        ("head", "right"),
        ("kind", "left"),
        ("entropy", "right"),
        ("first", "right"),
        ("distance", "right"),
        ("strongest pair", "left"),
        compact=True,
    )
    longest = min(max((console.width - REST) // 2, 6), 24)
    above = None
    stacks = list(dict.fromkeys(map(_stack, o.layers)))
    for layer in sorted(o.layers, key=lambda layer: stacks.index(_stack(layer))):
        table.add_section()
        if len(stacks) > 1 and _stack(layer) != above:
            above = _stack(layer)
            table.add_row("", "", Text(above, style="bold cyan"))
        for head in layer.heads:
            pair = head.pair
            table.add_row(
                str(layer.layer) if head.head == 0 else "",
                str(head.head),
                Text(_short(head.head_type), style="" if head.head_type in ("mixed", "uniform") else "bold yellow"),
                f"{head.entropy:.2f}",
                _first(head),
                _distance(head),
                Text(f"{pair.weight:.2f} {_token(pair.query, longest)} -> {_token(pair.key, longest)}"),
            )
    console.print(table)
    seen = {head.head_type for layer in o.layers for head in layer.heads}
    for kind, says in KINDS.items():
        if kind in seen:
            print_line(console, f"{_short(kind)}: {says}.")
    print_line(
        console,
        "Entropy: in nats, 0 looks at one token. First: the weight on the first token. Distance: how far back it "
        "looks, and the spread. Strongest pair: the largest weight from one token of the text to another.",
    )
    every = [*o.tokens, *(o.target_tokens or ())]
    for note in marker_notes(every):
        print_line(console, note)


def _short(kind: str) -> str:
    return kind.removesuffix(" token")


def _distance(head: HeadOverview) -> str:
    if head.distance is None or head.spread is None:
        return ""
    digits = 1 if abs(head.distance) < 10 and head.spread < 10 else 0
    return f"{head.distance:+.{digits}f} ±{head.spread:4.{digits}f}"


def _stack(layer: LayerOverview) -> str:
    """Which attention of an encoder-decoder it is."""
    return "cross" if layer.kind == "cross" else layer.path.partition(".")[0]


def _first(head: HeadOverview) -> str:
    score = head.scores.get("attention sink")
    return "" if score is None or math.isnan(score) else f"{score:.2f}"


def _most(o: Overview, most: MostAttended, console: Console) -> None:
    which = "" if o.target is None else f": {'cross-attention' if most.kind == 'cross' else most.stack}"
    print_heading(console, f"What it looked at most{which}")
    words = [word for word in most.words if word.is_text and any(c.isalnum() for c in word.word)]
    marks = [word for word in most.words if word.is_text and not any(c.isalnum() for c in word.word)]
    around = [word for word in most.words if not word.is_text]
    parts = [
        f"{_percent(sum(word.received_share for word in some))} to {name}"
        for some, name in ((words, "words"), (marks, "marks"), (around, _names(around)))
        if some
    ]
    print_line(console, f"Of all attention, over all layers and heads, it gave {', '.join(parts)}.")
    table = new_table(
        ("word", "left"), ("position", "right"), ("share", "right"), ("most in", "left"), ("", "left"), compact=True
    )
    even = 1 / sum(len(word.token_index) for word in most.words)
    largest = max((word.received_share for word in words), default=1.0)
    for word in words[:SHOWN]:
        table.add_row(
            _token(word.word),
            str(word.token_index[0]),
            _percent(word.received_share),
            f"layer {word.layer} head {word.head}: {_percent(word.max_share)}",
            Text(full_block(console) * max(1, round(12 * word.received_share / largest)), style="cyan"),
        )
    console.print(table)
    print_line(console, f"Evenly spread, each token would have {_percent(even)}.")
    if any("causal()" in layer.mask or "window(" in layer.mask for layer in o.layers if layer.kind == most.kind):
        print_line(
            console, "A token sees only the tokens before it, so more tokens can look at the first than at the last."
        )


def _names(around: list[ReceivedWord]) -> str:
    return " and ".join(dict.fromkeys(_token(word.word) for word in around))


def _percent(share: float) -> str:
    return f"{100 * share:.1f} %" if share >= 0.001 else f"{100 * share:.2f} %"


def _token(token: str, longest: int = 24) -> str:
    shown = visible(token)
    return shown if len(shown) <= longest else f"{shown[: longest - 3]}..."


def _beginning(text: str) -> str:
    start = " ".join(text[: 4 * FIRST_CHARACTERS].split())[:FIRST_CHARACTERS].rstrip()
    return visible(start) + ("" if len(text) <= FIRST_CHARACTERS else " ...")
