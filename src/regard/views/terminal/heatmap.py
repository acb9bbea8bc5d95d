"""The square of all weights of a head in the terminal: letters by how much ink they have, or half blocks in colours."""

from __future__ import annotations

import math
import unicodedata
from collections.abc import Iterable, Iterator, Sequence

from rich.cells import cell_len, set_cell_size
from rich.color import Color
from rich.console import Console
from rich.style import Style
from rich.text import Text

from regard.escape import visible
from regard.lens.maps.map import AttentionMap
from regard.lens.maps.summary import AttentionSummary
from regard.views.figures.cells import COLOURS, Cells, cells_of, texts_of
from regard.views.terminal.console import can_encode, print_heading, print_line

__all__ = ["Names", "draw_heatmap", "percent", "token_at"]

Names = tuple[list[str], list[str]] | None
"""The tokens at the queries and at the keys, if they are known."""

LONGEST = 14
"""The columns of a token."""

LARGEST_SQUARE = 120
"""The most columns of a square."""

HEIGHT = 8
"""The lines of a token that is written from top to bottom."""

SHARES = (0.02, 0.1, 0.3, 0.6)
"""From these shares of the largest weight on, a shade is darker."""

SHADES, PLAIN_SHADES = " ░▒▓█", " .:+#"
MASKED, PLAIN_MASKED = "·", "-"
BROKEN = "?"

MASKED_COLOUR = Color.parse("#4a4640")
BROKEN_COLOUR = Color.parse("#d62728")
LIGHT = [Color.parse(colour).get_truecolor() for colour in reversed(COLOURS)]


def draw_heatmap(
    m: AttentionMap | AttentionSummary, console: Console, head: int, query: int | None, batch: int
) -> None:
    """Weight by weight where there is room, else pooled; a query that was asked for is marked."""
    queries, keys = m.shape[2:]
    names = texts_of(m, batch)
    print_heading(console, "The square: queries from top to bottom, keys from left to right")
    numbers = [f"{row:>{len(str(queries - 1))}}" for row in range(min(queries, LARGEST_SQUARE))]
    labels = numbers if names is None else [f"{n} {token_at(names, 0, row)}" for row, n in enumerate(numbers)]
    margin = max(map(cell_len, labels)) + 3
    if queries <= LARGEST_SQUARE and margin + 2 * keys <= console.width:
        cells = cells_of(m, batch, head, queries, keys)
        if cells.single:
            _weight_by_weight(cells, names, labels, console, query)
            return
    margin = len(f"{queries - 1}") + 3
    kept = m.pooled().shape[3] if isinstance(m, AttentionSummary) else keys
    columns = max(1, min(kept, LARGEST_SQUARE, console.width - margin))
    coloured = console.color_system is not None and can_encode(console, "▀")
    # A letter is twice as high as wide.
    rows = columns * queries / keys if coloured else columns * queries / keys / 2
    cells = cells_of(m, batch, head, min(LARGEST_SQUARE, max(1, round(rows))), columns)
    _axis(cells, margin, console)
    (_halves if coloured else _letters)(cells, margin, console, query)
    if not cells.single:
        high, wide = cells.weights.shape
        print_line(
            console,
            f"Pooled to {high} x {wide} cells: what a query of the cell gives, on average, to all keys of the cell.",
        )


def _weight_by_weight(cells: Cells, names: Names, labels: Sequence[str], console: Console, query: int | None) -> None:
    """A cell of two columns for each weight, tokens on both sides."""
    margin = max(map(cell_len, labels)) + 3
    for line in _upright([token_at(names, 1, key) for key in range(cells.keys[-1])]):
        _row(console, Text(" " * margin + line))
    for row, (label, shades) in enumerate(zip(labels, _shaded(cells, console), strict=True)):
        asked = row == query
        mark = "> " if asked else "  "
        start = mark + set_cell_size(label, margin - 2)
        _row(console, Text.assemble((start, "bold yellow" if asked else ""), "".join(2 * shade for shade in shades)))
    _shades_mean(cells, console)


def _letters(cells: Cells, margin: int, console: Console, query: int | None) -> None:
    """A letter for each cell."""
    for row, shades in enumerate(_shaded(cells, console)):
        _row(console, Text(_position(cells, row, row + 1, margin, query) + "".join(shades)))
    _shades_mean(cells, console)


def _halves(cells: Cells, margin: int, console: Console, query: int | None) -> None:
    """Two cells in a letter, one above the other, in colours: the larger the lighter."""
    colours = [[_colour(cells, weight) for weight in row] for row in cells.weights.tolist()]
    for row in range(0, len(colours), 2):
        text = Text(_position(cells, row, min(row + 2, len(colours)), margin, query))
        below: Iterable[Color | None] = colours[row + 1] if row + 1 < len(colours) else [None] * len(colours[row])
        for upper, lower in zip(colours[row], below, strict=True):
            text.append("▀", Style(color=upper, bgcolor=lower))
        _row(console, text)
    scale = Text("0 % ")
    for step in range(24):
        scale.append("█", Style(color=_colour(cells, cells.high * _back(cells, (step + 0.5) / 24))))
    scale.append(f" {percent(cells.high)}{_more(cells)}; halfway {percent(cells.high * _back(cells, 0.5))}")
    if bool((cells.weights == 0).any()):
        scale.append("; ")
        scale.append("█", Style(color=MASKED_COLOUR))
        scale.append(" no weight, masked")
    _row(console, scale)


def _axis(cells: Cells, margin: int, console: Console) -> None:
    """The first and the last key above the columns."""
    first, last = "0", str(cells.keys[-1] - 1)
    gap = cells.weights.shape[1] - len(first) - len(last)
    _row(console, Text(" " * margin + (first + " " * gap + last if gap > 0 else first)))


def _position(cells: Cells, start: int, stop: int, margin: int, query: int | None) -> str:
    """What stands before a line: the query that it begins with, in some lines, and a mark on the one asked for."""
    inside = query is not None and cells.queries[start] <= query < cells.queries[stop]
    shown = query if inside else cells.queries[start] if start % 10 == 0 else ""
    return f"{'> ' if inside else '  '}{shown:>{margin - 3}} "


def _shaded(cells: Cells, console: Console) -> Iterator[list[str]]:
    shades, masked = _signs(console)
    for row in cells.weights.tolist():
        yield [
            BROKEN
            if math.isnan(weight)
            else masked
            if weight == 0
            else shades[sum(_strength(cells, weight) >= share for share in SHARES)]
            for weight in row
        ]


def _shades_mean(cells: Cells, console: Console) -> None:
    shades, masked = _signs(console)
    parts = [
        f"{shade} from {percent(cells.high * _back(cells, share))}"
        for shade, share in zip(shades[1:], SHARES, strict=True)
    ]
    parts += [f"{masked} no weight, masked"] if bool((cells.weights == 0).any()) else []
    parts += [f"{BROKEN} not a number"] if bool(cells.weights.isnan().any()) else []
    print_line(console, f"{', '.join(parts)}.")
    print_line(console, f"The largest: {percent(float(cells.weights.nan_to_num().max()))}.")


def _strength(cells: Cells, weight: float) -> float:
    """How dark a weight is, 0 to 1: of cells of many weights the small ones are told apart better."""
    share = min(1.0, weight / cells.high)
    return share if cells.single else math.sqrt(share)


def _back(cells: Cells, strength: float) -> float:
    """What share of the darkest a strength stands for."""
    return strength if cells.single else strength**2


def _more(cells: Cells) -> str:
    return " and more" if bool((cells.weights > cells.high).any()) else ""


def _colour(cells: Cells, weight: float) -> Color:
    if math.isnan(weight):
        return BROKEN_COLOUR
    if weight == 0:
        return MASKED_COLOUR
    place = _strength(cells, weight) * (len(LIGHT) - 1)
    low = min(int(place), len(LIGHT) - 2)
    parts = zip(LIGHT[low], LIGHT[low + 1], strict=True)
    return Color.from_rgb(*(round(a + (b - a) * (place - low)) for a, b in parts))


def _upright(tokens: Sequence[str]) -> Iterator[str]:
    """Tokens written from top to bottom, two columns each."""
    pieces = [_pieces(token) for token in tokens]
    height = max(map(len, pieces))
    for line in range(height):
        places = (line - height + len(some) for some in pieces)
        yield "".join(
            set_cell_size(some[place] if place >= 0 else "", 2) for some, place in zip(pieces, places, strict=True)
        ).rstrip()


def _pieces(token: str) -> list[str]:
    """Its characters, each with the marks that stand on it, as many as there are lines for."""
    pieces: list[str] = []
    for c in token:
        if pieces and (unicodedata.category(c) in ("Mn", "Me", "Mc", "Cf") or pieces[-1][-1] == "\u200d"):
            pieces[-1] += c
        else:
            pieces.append(c)
    return pieces if len(pieces) <= HEIGHT else [*pieces[: HEIGHT - 1], "."]


def token_at(names: Names, side: int, place: int) -> str:
    """The token of a query (side 0) or a key (side 1), no wider than there is room for; its position without tokens."""
    if names is None:
        return str(place)
    shown = visible(names[side][place])
    return shown if cell_len(shown) <= LONGEST else f"{set_cell_size(shown, LONGEST - 3)}..."


def percent(weight: float) -> str:
    """A weight in per cent, with as many digits as say something."""
    if math.isnan(weight):
        return "?"
    digits = 0 if weight >= 0.995 else 1 if weight >= 0.001 or weight == 0 else 2 if weight >= 0.0001 else 3
    return f"{100 * weight:.{digits}f} %"


def _signs(console: Console) -> tuple[str, str]:
    return (SHADES, MASKED) if can_encode(console, SHADES + MASKED) else (PLAIN_SHADES, PLAIN_MASKED)


def _row(console: Console, text: Text) -> None:
    """A line that is cut where the console ends."""
    console.print(text, no_wrap=True, overflow="crop", crop=True)
