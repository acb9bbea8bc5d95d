"""An overview in the terminal: the layers, the heads, and the most attended words; plain text when piped."""

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
    WordAttention,
)
from regard.views.terminal.console import full_block, marker_notes, print_heading, print_line
from regard.views.terminal.table import FittingTable

MAX_WORDS = 15
"""The most words that are listed."""

MAX_CHARACTERS = 200
"""The most characters of a text that are printed."""

WORD_BAR_WIDTH, MIN_BAR_WIDTH = 30, 8
"""The columns of a weight of 1; of a narrow console the least."""

OTHER_COLUMNS = 62
"""The width of the table of heads without the two tokens of a pair."""

HEAD_TYPES = {
    "previous token": "looks at the token before",
    "attention sink": "rests on the first token",
    "same token": "looks at its own token, where it stands and wherever else",
    "induction": "looks at what followed an earlier occurrence of its token",
    "delimiter": "looks at punctuation and the end",
    "uniform": "looks at everything about evenly",
    "mixed": "nothing of that",
}


def draw(overview: Overview, console: Console) -> None:
    """Draw an overview part by part."""
    o = overview
    console.print(Text.assemble(("regard watch", "bold"), f"  {visible(o.model)}"))
    print_line(console, _first_characters(o.text))
    if o.target is not None:
        print_line(console, f"-> {_first_characters(o.target)}")
    decoder_tokens = "" if o.target_tokens is None else f"; {len(o.target_tokens)} of what the decoder reads"
    print_line(console, f"{len(o.tokens)} tokens{decoder_tokens}")
    console.print()
    _layers(o, console)
    console.print()
    _heads(o, console)
    if o.word is not None:
        console.print()
        _word(o.word, console)
    if max(len(o.tokens), len(o.target_tokens or ())) >= LONG_TEXT_TOKENS:
        for most in o.most_attended:
            console.print()
            _most_attended(o, most, console)


def _layers(o: Overview, console: Console) -> None:
    print_heading(console, "The layers")
    table = FittingTable(
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
    table = FittingTable(
        ("layer", "right"),
        ("head", "right"),
        ("type", "left"),
        ("entropy", "right"),
        ("first", "right"),
        ("distance", "right"),
        ("strongest pair", "left"),
        labels=2,
        compact=True,
    )
    longest = min(max((console.width - OTHER_COLUMNS) // 2, 6), 24)
    previous_stack = None
    stacks = list(dict.fromkeys(map(_stack, o.layers)))
    for layer in sorted(o.layers, key=lambda layer: stacks.index(_stack(layer))):
        table.add_section()
        if len(stacks) > 1 and _stack(layer) != previous_stack:
            previous_stack = _stack(layer)
            table.add_row("", "", Text(previous_stack, style="bold cyan"))
        for head in layer.heads:
            pair = head.pair
            table.add_row(
                str(layer.layer) if head is layer.heads[0] else "",
                str(head.head),
                Text(_short(head.head_type), style="" if head.head_type in ("mixed", "uniform") else "bold yellow"),
                f"{head.entropy:.2f}",
                _first(head),
                _distance(head),
                Text(f"{pair.weight:.2f} {_token(pair.query, longest)} -> {_token(pair.key, longest)}"),
            )
    console.print(table)
    present = {head.head_type for layer in o.layers for head in layer.heads}
    for head_type, description in HEAD_TYPES.items():
        if head_type in present:
            print_line(console, f"{_short(head_type)}: {description}.")
    print_line(
        console,
        "Entropy: in nats, 0 looks at one token. First: the weight on the first token. Distance: how far back it "
        "looks, and the spread. Strongest pair: the largest weight from one token of the text to another.",
    )
    for note in marker_notes([*o.tokens, *(o.target_tokens or ())]):
        print_line(console, note)


def _word(word: WordAttention, console: Console) -> None:
    where = "cross-attention, " if word.kind == "cross" else ""
    print_heading(console, f"What {_quoted(word.word)} looks at: {where}layer {word.layer}, head {word.head}")
    table = FittingTable(("position", "right"), ("token", "left"), ("weight", "right"), ("", "bar"), compact=True)
    width = min(WORD_BAR_WIDTH, max(MIN_BAR_WIDTH, console.width - WORD_BAR_WIDTH))
    for key in word.keys:
        bar = Text(full_block(console) * round(width * key.weight), style="cyan")
        table.add_row(str(key.index), Text(_token(key.token)), f"{key.weight:.4f}", bar)
    if word.rest > 0:
        table.add_row("", "all others", f"{word.rest:.4f}", "")
    console.print(table)
    if len(word.token_index) > 1:
        print_line(console, f"The mean over the {len(word.token_index)} tokens of the word.")
    if word.positional_pattern is None:
        print_line(
            console,
            "Of the heads shown this one gives another token of the text most, among those in which tokens look to "
            "different places.",
        )
    else:
        print_line(console, f"A habit: in this head {word.positional_pattern}, whatever they mean.")


def _quoted(word: str) -> str:
    return f"'{visible(word)}'"


def _short(head_type: str) -> str:
    return head_type.removesuffix(" token")


def _distance(head: HeadOverview) -> str:
    if head.distance is None or head.spread is None:
        return ""
    digits = 1 if abs(head.distance) < 10 and head.spread < 10 else 0
    return f"{head.distance:+.{digits}f} ±{head.spread:4.{digits}f}"


def _stack(layer: LayerOverview) -> str:
    """The stack of a layer, or "cross"."""
    return "cross" if layer.kind == "cross" else layer.path.partition(".")[0]


def _first(head: HeadOverview) -> str:
    score = head.scores.get("attention sink")
    return "" if score is None or math.isnan(score) else f"{score:.2f}"


def _most_attended(o: Overview, most: MostAttended, console: Console) -> None:
    which = "" if o.target is None else f": {'cross-attention' if most.kind == 'cross' else most.stack}"
    print_heading(console, f"What it looked at most{which}")
    words = [word for word in most.words if word.is_text and any(c.isalnum() for c in word.word)]
    marks = [word for word in most.words if word.is_text and not any(c.isalnum() for c in word.word)]
    special = [word for word in most.words if not word.is_text]
    parts = [
        f"{_percent(sum(word.received_share for word in group))} to {name}"
        for group, name in ((words, "words"), (marks, "marks"), (special, _names(special)))
        if group
    ]
    print_line(console, f"Of all attention, over all layers and heads, it gave {', '.join(parts)}.")
    table = FittingTable(
        ("word", "left"), ("position", "right"), ("share", "right"), ("most in", "left"), ("", "bar"), compact=True
    )
    uniform = 1 / sum(len(word.token_index) for word in most.words)
    largest = max((word.received_share for word in words), default=1.0)
    for word in words[:MAX_WORDS]:
        table.add_row(
            _token(word.word),
            str(word.token_index[0]),
            _percent(word.received_share),
            f"layer {word.layer} head {word.head}: {_percent(word.max_share)}",
            Text(full_block(console) * max(1, round(12 * word.received_share / largest)), style="cyan"),
        )
    console.print(table)
    print_line(console, f"Evenly spread, each token would have {_percent(uniform)}.")
    if any("causal()" in layer.mask or "window(" in layer.mask for layer in o.layers if layer.kind == most.kind):
        print_line(
            console, "A token sees only the tokens before it, so more tokens can look at the first than at the last."
        )


def _names(words: list[ReceivedWord]) -> str:
    return " and ".join(dict.fromkeys(_token(word.word) for word in words))


def _percent(share: float) -> str:
    return f"{100 * share:.1f} %" if share >= 0.001 else f"{100 * share:.2f} %"


def _token(token: str, longest: int = 24) -> str:
    text = visible(token)
    return text if len(text) <= longest else f"{text[: longest - 3]}..."


def _first_characters(text: str) -> str:
    start = " ".join(text[: 4 * MAX_CHARACTERS].split())[:MAX_CHARACTERS].rstrip()
    return visible(start) + ("" if len(text) <= MAX_CHARACTERS else " ...")
