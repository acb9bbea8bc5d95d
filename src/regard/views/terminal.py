"""An explanation in the terminal: tables and bars, plain text when piped."""

from __future__ import annotations

import os
from collections.abc import Iterable
from typing import TextIO

from rich import box
from rich.console import Console
from rich.table import Table
from rich.text import Text
from torch import Tensor

from regard.lens import Explanation
from regard.views.visible import visible

__all__ = ["console_for", "draw"]

PIPED_WIDTH = 110
BAR_WIDTH = 30
PARTNERS = 8
FIRST_NUMBERS = 4


def console_for(stream: TextIO) -> Console:
    """A console that writes to a stream: styled on a terminal, plain text elsewhere."""
    columns = os.environ.get("COLUMNS", "")
    given = int(columns) if columns.isdecimal() and int(columns[:9]) > 0 else None
    return Console(
        file=stream,
        width=given or (None if stream.isatty() else PIPED_WIDTH),
        highlight=False,
        markup=False,
        emoji=False,
    )


def draw(explanation: Explanation, console: Console) -> None:
    """Show an explanation part by part."""
    e = explanation
    console.print(Text.assemble(("regard explain", "bold"), f"  {visible(e.model)}"))
    _line(console, visible(e.text))
    parts = [_tokens, _where, _arithmetic, *([_context] if e.compare else []), _proof]
    for number, part in enumerate(parts, 1):
        console.print()
        part(e, console, number)


def _tokens(e: Explanation, console: Console, number: int) -> None:
    tokens, d_model = e.input.shape
    _heading(console, number, "The tokens, and what goes in")
    table = _table(("position", "right"), ("token", "left"), ("id", "right"), ("", "left"))
    for i, (token, id_) in enumerate(zip(e.tokens, e.ids, strict=True)):
        table.add_row(str(i), _token(e, i, token), str(id_), Text(_remark(e, i)))
    console.print(table)
    around = list(dict.fromkeys(t for t, written in zip(e.tokens, e.written, strict=True) if not written))
    if around:
        _line(console, f"{' and '.join(map(visible, around))} are put around the text by the tokenizer.")
    if any(token.startswith("##") for token in e.tokens):
        _line(console, "## marks a piece that continues a word.")
    if len(e.occurrences) > 1:
        places = ", ".join(str(place[0]) for place in e.occurrences)
        _line(console, f"{_quoted(e.token)} stands at {places}; this is the first. For another: --token POSITION.")
    _line(
        console,
        f"The input of the first layer: {tokens} tokens x {d_model} numbers. For each token three vectors are added, "
        f"and the sum is normed. The first {FIRST_NUMBERS} numbers of each:",
    )
    names = {"token": "  token", "position": "+ position", "segment": "+ segment", "sum": "= sum", "normed": "  normed"}
    for row, i in enumerate(e.token_index):
        table = _table((e.tokens[i], "left"), ("", "left"))
        for name, label in names.items():
            table.add_row(label, _numbers(getattr(e.input, name)[row]))
        console.print(table)


def _where(e: Explanation, console: Console, number: int) -> None:
    _heading(console, number, f"Where {_quoted(e.token)} looks: layer {e.layer}, head {e.head}")
    _line(console, f"The model has {e.num_layers} layers of {e.num_heads} heads, both counted from 0.")
    table = _table(("token", "left"), ("weight", "right"), ("", "left"))
    weights = e.weights.mean(dim=0)
    full = _full_block(console)
    for i, (token, weight) in enumerate(zip(e.tokens, weights.tolist(), strict=True)):
        table.add_row(_token(e, i, token), f"{weight:.4f}", full * round(weight * BAR_WIDTH))
    console.print(table)
    if len(e.token_index) > 1:
        _line(console, f"The mean over the {len(e.token_index)} tokens of the word.")
    if e.habit:
        _line(console, f"A habit: in this head {e.habit}, whatever they mean.")
        if e.without_habit:
            p = e.without_habit
            _line(
                console,
                f"Among heads without one, {_quoted(e.token)} gives most to {_quoted(p.token)}, {p.weight:.4f}: "
                f"--layer {p.layer} --head {p.head}",
            )
    if not e.partners:
        _line(console, "The text has no other token of its own.")
        return
    shown = e.partners[:PARTNERS]
    cut = "" if len(shown) == len(e.partners) else f" (the first {len(shown)} of {len(e.partners)})"
    console.print()
    _line(
        console,
        f"The largest share that {_quoted(e.token)} gives to each other token of the text, over all layers and "
        f"heads{cut}:",
    )
    table = _table(("token", "left"), ("position", "right"), ("weight", "right"), ("layer", "right"), ("head", "right"))
    for p in shown:
        table.add_row(Text(visible(p.token)), str(p.index), f"{p.weight:.4f}", str(p.layer), str(p.head))
    console.print(table)


def _arithmetic(e: Explanation, console: Console, number: int) -> None:
    d_key, d_value = e.q.shape[-1], e.v.shape[-1]
    _heading(console, number, f"The arithmetic of that row: softmax(q . k / sqrt({d_key})) @ v")
    _line(
        console,
        f"q, k and v are the vectors that go into layer {e.layer}, times the weights of head {e.head}. Scaled is q . k "
        f"times {e.scale:.4f} = 1 / sqrt({d_key}); a weight is e^scaled, divided by the sum of e^scaled over all keys.",
    )
    for row, i in enumerate(e.token_index):
        console.print()
        _line(console, f"q of {_quoted(e.tokens[i])}, position {i}, {d_key} numbers: {_numbers(e.q[row])} ...")
        table = _table(
            ("key", "left"),
            ("q . k", "right"),
            ("scaled", "right"),
            ("weight", "right"),
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


def _context(e: Explanation, console: Console, number: int) -> None:
    _heading(console, number, f"How context changes {_quoted(e.token)}: cosine of its vectors in two sentences")
    _line(
        console,
        "1 is the same direction. At the input the word's vector differs by its position alone; each layer mixes in "
        "the other words.",
    )
    for n, comparison in enumerate(e.compare):
        places = ", ".join(str(i) for i in comparison.token_index)
        _line(console, f"{_letter(n)}  {visible(comparison.text)}  (position {places})")
    table = _table(("", "left"), *((_letter(n), "right") for n in range(len(e.compare))))
    for step, cosines in enumerate(zip(*(comparison.cosine for comparison in e.compare), strict=True)):
        name = "at the input" if step == 0 else f"after layer {step - 1}"
        table.add_row(name, *(f"{cosine:.4f}" for cosine in cosines))
    console.print(table)


def _proof(e: Explanation, console: Console, number: int) -> None:
    proof = e.proof
    _heading(console, number, "The proof")
    _line(
        console,
        "The same row twice, from the same input of the layer: by the model in its own forward pass, on PyTorch's "
        "fused kernel, and by the definition, regard.steps, in float64.",
    )
    table = _table(("weights @ v", "left"), (f"the first {FIRST_NUMBERS} of {e.v.shape[-1]} numbers", "left"))
    table.add_row("the model", _numbers(proof.model_output[0]))
    table.add_row("the definition", _numbers(e.output[0]))
    console.print(table)
    verdict = "The proof holds" if proof.holds else "THE PROOF FAILS, do not trust these numbers"
    _line(
        console,
        f"{verdict}: the largest difference of all {proof.numbers} numbers is {proof.largest_difference:.1e}; "
        f"up to {proof.tolerance:.1e} can be rounding.",
        style="" if proof.holds else "bold red",
    )


def _remark(e: Explanation, index: int) -> str:
    """That a token is explained, and what it stands for where that cannot be seen in it: an accent, an emoji."""
    written = e.written[index]
    differs = written.casefold() not in e.tokens[index].casefold()
    return ("<- explained " if index in e.token_index else "") + (f"for {_quoted(written)}" if differs else "")


def _heading(console: Console, number: int, text: str) -> None:
    console.print(Text(f"{number}. {text}", style="bold cyan"))


def _line(console: Console, text: str, style: str = "") -> None:
    console.print(Text(text, style=style))


def _table(*columns: tuple[str, str]) -> Table:
    table = Table(box=box.SIMPLE_HEAD, show_edge=False, pad_edge=False)
    for name, justify in columns:
        table.add_column(Text(visible(name)), justify=justify, overflow="fold")  # type: ignore[arg-type]
    return table


def _token(e: Explanation, index: int, token: str) -> Text:
    return Text(visible(token), style="bold yellow" if index in e.token_index else "")


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
