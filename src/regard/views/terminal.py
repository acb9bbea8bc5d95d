"""An explanation in the terminal: tables and bars, plain text when piped."""

from __future__ import annotations

import os
import unicodedata
from collections.abc import Iterable
from typing import TextIO

from rich import box
from rich.console import Console
from rich.table import Table
from rich.text import Text
from torch import Tensor

from regard.lens import Explanation

__all__ = ["console_for", "draw", "visible"]

PIPED_WIDTH = 110
BAR_WIDTH = 30
PARTNERS = 8
FIRST_NUMBERS = 4

# Marks that turn the writing direction of what follows could rearrange a whole table.
_TURNING = {*range(0x202A, 0x202F), *range(0x2066, 0x206A), 0x200E, 0x200F, 0x061C}


def console_for(stream: TextIO) -> Console:
    """A console that writes to a stream: styled on a terminal, plain text elsewhere."""
    width = None if stream.isatty() or "COLUMNS" in os.environ else PIPED_WIDTH
    return Console(file=stream, width=width, highlight=False, markup=False, emoji=False)


def visible(text: str) -> str:
    """A text with its control characters, line breaks and writing-direction marks written as escapes."""
    return "".join(
        c.encode("unicode_escape").decode()
        if unicodedata.category(c) in ("Cc", "Cs", "Zl", "Zp") or ord(c) in _TURNING
        else c
        for c in text
    )


def draw(explanation: Explanation, console: Console) -> None:
    """Show an explanation in its five parts."""
    _title(explanation, console)
    _tokens(explanation, console)
    _where(explanation, console)
    _arithmetic(explanation, console)
    if explanation.compare:
        _context(explanation, console)
    _proof(explanation, console)


def _title(e: Explanation, console: Console) -> None:
    console.print(Text.assemble(("regard explain", "bold"), f"  {visible(e.model)}"))
    console.print(Text(visible(e.text)))


def _tokens(e: Explanation, console: Console) -> None:
    tokens, d_model = e.input.shape
    _heading(console, 1, "The tokens, and what goes in")
    table = _table(("position", "right"), ("token", "left"), ("id", "right"), ("", "left"))
    for i, (token, id_) in enumerate(zip(e.tokens, e.ids, strict=True)):
        table.add_row(str(i), _token(e, i, token), str(id_), Text(_remark(e, i)))
    console.print(table)
    if len(e.occurrences) > 1:
        places = ", ".join(str(place[0]) for place in e.occurrences)
        _line(console, f"{_quoted(e.token)} stands at {places}; this is the first. For another: --token POSITION.")
    _line(console, f"The input of the first layer: {tokens} tokens x {d_model} numbers. For each token, three vectors")
    _line(
        console, f"are added and the sum is normed. The first {FIRST_NUMBERS} numbers of each for {_quoted(e.token)}:"
    )
    names = {"token": "  token", "position": "+ position", "segment": "+ segment", "sum": "= sum", "normed": "  normed"}
    table = _table(("", "left"), *((e.tokens[i], "left") for i in e.token_index))
    for name, label in names.items():
        table.add_row(label, *(_numbers(row) for row in getattr(e.input, name)))
    console.print(table)


def _remark(e: Explanation, index: int) -> str:
    """That a token is explained, and what it stands for where that cannot be seen in it: an accent, an emoji."""
    written = e.written[index]
    differs = written.casefold() not in e.tokens[index].casefold()
    return ("<- explained " if index in e.token_index else "") + (f"for {_quoted(written)}" if differs else "")


def _where(e: Explanation, console: Console) -> None:
    _heading(console, 2, f"Where {_quoted(e.token)} looks: layer {e.layer}, head {e.head}")
    table = _table(("token", "left"), ("weight", "right"), ("", "left"))
    weights = e.weights.mean(dim=0)
    full = _full_block(console)
    for i, (token, weight) in enumerate(zip(e.tokens, weights.tolist(), strict=True)):
        table.add_row(_token(e, i, token), f"{weight:.4f}", full * round(weight * BAR_WIDTH))
    console.print(table)
    if len(e.token_index) > 1:
        _line(console, f"The mean over the {len(e.token_index)} tokens of the word.")
    if e.habit:
        _line(console, f"In this head {e.habit}: it looks at places more than at meaning.")
    if not e.partners:
        _line(console, "The text has no other token of its own.")
        return
    _line(console, f"The largest share that {_quoted(e.token)} gives to each other token, over all layers and heads:")
    table = _table(("token", "left"), ("position", "right"), ("weight", "right"), ("layer", "right"), ("head", "right"))
    for p in e.partners[:PARTNERS]:
        table.add_row(Text(visible(p.token)), str(p.index), f"{p.weight:.4f}", str(p.layer), str(p.head))
    console.print(table)


def _arithmetic(e: Explanation, console: Console) -> None:
    d_key, d_value = e.q.shape[-1], e.v.shape[-1]
    _heading(console, 3, f"The arithmetic of that row: softmax(q . k / sqrt({d_key})) @ v")
    for row, i in enumerate(e.token_index):
        _line(console, f"q of {_named(e, i)}, {d_key} numbers: {_numbers(e.q[row])} ...")
        table = _table(
            ("key", "left"),
            ("q . k", "right"),
            (f"x {e.scale:.4f} = scaled", "right"),
            ("softmax = weight", "right"),
            (f"v, {d_value} numbers", "left"),
        )
        facts = zip(e.tokens, e.scores[row].tolist(), e.scaled[row].tolist(), e.weights[row].tolist(), strict=True)
        for j, (token, score, scaled, weight) in enumerate(facts):
            table.add_row(
                _token(e, j, token), f"{score:.4f}", f"{scaled:.4f}", f"{weight:.4f}", f"{_numbers(e.v[j])} ..."
            )
        total = f"{e.weights[row].sum().item():.4f}"
        table.add_section()
        table.add_row("weights @ v", "", "", total, f"{_numbers(e.output[row])} ...")
        console.print(table)


def _context(e: Explanation, console: Console) -> None:
    _heading(console, 4, f"How context changes {_quoted(e.token)}: cosine of its vectors in two sentences")
    for n, comparison in enumerate(e.compare):
        places = ", ".join(str(i) for i in comparison.token_index)
        _line(console, f"{_letter(n)}  {visible(comparison.text)}  (position {places})")
    table = _table(("", "left"), *((_letter(n), "right") for n in range(len(e.compare))))
    for step, cosines in enumerate(zip(*(comparison.cosine for comparison in e.compare), strict=True)):
        name = "at the input" if step == 0 else f"after layer {step - 1}"
        table.add_row(name, *(f"{cosine:.4f}" for cosine in cosines))
    console.print(table)


def _proof(e: Explanation, console: Console) -> None:
    proof = e.proof
    _heading(console, 5, "The proof")
    table = _table(("weights @ v", "left"), (f"the first {FIRST_NUMBERS} of {proof.numbers} numbers", "left"))
    table.add_row("the model, in its own forward pass", _numbers(proof.model_output[0]))
    table.add_row("regard.steps, in float64", _numbers(e.output[0]))
    console.print(table)
    _line(
        console,
        f"Largest difference over all {proof.numbers}: {proof.largest_difference:.1e} "
        f"(the largest number is {proof.largest_output:.4f}).",
    )


def _heading(console: Console, number: int, text: str) -> None:
    console.print()
    console.print(Text(f"{number}. {text}", style="bold cyan"))


def _line(console: Console, text: str) -> None:
    console.print(Text(text))


def _table(*columns: tuple[str, str]) -> Table:
    table = Table(box=box.SIMPLE_HEAD, show_edge=False, pad_edge=False)
    for name, justify in columns:
        table.add_column(Text(visible(name)), justify=justify, overflow="fold")  # type: ignore[arg-type]
    return table


def _token(e: Explanation, index: int, token: str) -> Text:
    return Text(visible(token), style="bold yellow" if index in e.token_index else "")


def _named(e: Explanation, index: int) -> str:
    return f"{_quoted(e.tokens[index])}, position {index}"


def _quoted(word: str) -> str:
    return f"'{visible(word)}'"


def _numbers(row: Tensor | Iterable[float]) -> str:
    return "  ".join(f"{float(x):8.4f}" for x, _ in zip(row, range(FIRST_NUMBERS), strict=False))


def _letter(n: int) -> str:
    return chr(ord("A") + n) if n < 26 else str(n)


def _full_block(console: Console) -> str:
    try:
        "█".encode(console.encoding)
    except UnicodeEncodeError:
        return "#"
    return "█"
