"""The heatmap of a head in the terminal: characters from light to dark, or half blocks in colours."""

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
from regard.views.figures.cells import COLOURS, MapCells, head_cells, map_tokens
from regard.views.terminal.console import can_encode, print_heading, print_line

Names = tuple[list[str], list[str]] | None
"""The tokens of the queries and of the keys, if they are known."""

MAX_TOKEN_WIDTH = 14
"""The most columns of a token."""

MAX_CELLS = 120
"""The most cells of a side."""

MAX_TOKEN_HEIGHT = 8
"""The most lines of a token that is written from top to bottom."""

THRESHOLDS = (0.02, 0.1, 0.3, 0.6)
"""The shares of the largest weight at which a shade gets darker."""

SHADES, PLAIN_SHADES = " ░▒▓█", " .:+#"
MASKED, PLAIN_MASKED = "·", "-"
NAN = "?"

MASKED_COLOUR = Color.parse("#4a4640")
NAN_COLOUR = Color.parse("#d62728")
LIGHT = [Color.parse(colour).get_truecolor() for colour in reversed(COLOURS)]


def draw_heatmap(
    m: AttentionMap | AttentionSummary, console: Console, head: int, query: int | None, batch: int
) -> None:
    """Draw all weights where there is room, else pooled weights; with a query, its row is marked."""
    queries, keys = m.shape[2:]
    names = map_tokens(m, batch)
    print_heading(console, "The heatmap: queries from top to bottom, keys from left to right")
    numbers = [f"{row:>{len(str(queries - 1))}}" for row in range(min(queries, MAX_CELLS))]
    labels = numbers if names is None else [f"{n} {token_at(names, 0, row)}" for row, n in enumerate(numbers)]
    margin = max(map(cell_len, labels)) + 3
    if queries <= MAX_CELLS and margin + 2 * keys <= console.width:
        cells = head_cells(m, batch, head, queries, keys)
        if cells.exact:
            _draw_exact(cells, names, labels, console, query)
            return
    margin = len(f"{queries - 1}") + 3
    largest = m.pooled().shape[3] if isinstance(m, AttentionSummary) else keys
    columns = max(1, min(largest, MAX_CELLS, console.width - margin))
    coloured = console.color_system is not None and can_encode(console, "▀")
    # A character is twice as high as wide.
    rows = columns * queries / keys if coloured else columns * queries / keys / 2
    cells = head_cells(m, batch, head, min(MAX_CELLS, max(1, round(rows))), columns)
    _print_axis(cells, margin, console)
    (_draw_half_blocks if coloured else _draw_shades)(cells, margin, console, query)
    if not cells.exact:
        high, wide = cells.weights.shape
        print_line(
            console,
            f"Pooled to {high} x {wide} cells: what a query of the cell gives, on average, to all keys of the cell.",
        )


def _draw_exact(cells: MapCells, names: Names, labels: Sequence[str], console: Console, query: int | None) -> None:
    """Draw a cell of two columns for each weight, with the tokens."""
    margin = max(map(cell_len, labels)) + 3
    for line in _vertical([token_at(names, 1, key) for key in range(cells.keys[-1])]):
        _print_row(console, Text(" " * margin + line))
    for row, (label, shades) in enumerate(zip(labels, _shade_rows(cells, console), strict=True)):
        chosen = row == query
        mark = "> " if chosen else "  "
        start = mark + set_cell_size(label, margin - 2)
        _print_row(
            console, Text.assemble((start, "bold yellow" if chosen else ""), "".join(2 * shade for shade in shades))
        )
    _print_legend(cells, console)


def _draw_shades(cells: MapCells, margin: int, console: Console, query: int | None) -> None:
    """Draw a character for each cell."""
    for row, shades in enumerate(_shade_rows(cells, console)):
        _print_row(console, Text(_row_label(cells, row, row + 1, margin, query) + "".join(shades)))
    _print_legend(cells, console)


def _draw_half_blocks(cells: MapCells, margin: int, console: Console, query: int | None) -> None:
    """Draw two cells in a character, one above the other, in colours: a larger weight is lighter."""
    colours = [[_colour(cells, weight) for weight in row] for row in cells.weights.tolist()]
    for row in range(0, len(colours), 2):
        text = Text(_row_label(cells, row, min(row + 2, len(colours)), margin, query))
        below: Iterable[Color | None] = colours[row + 1] if row + 1 < len(colours) else [None] * len(colours[row])
        for upper, lower in zip(colours[row], below, strict=True):
            text.append("▀", Style(color=upper, bgcolor=lower))
        _print_row(console, text)
    scale = Text("0 % ")
    for step in range(24):
        scale.append("█", Style(color=_colour(cells, cells.vmax * _share_at(cells, (step + 0.5) / 24))))
    scale.append(f" {percent(cells.vmax)}{_overflow(cells)}; halfway {percent(cells.vmax * _share_at(cells, 0.5))}")
    if bool((cells.weights == 0).any()):
        scale.append("; ")
        scale.append("█", Style(color=MASKED_COLOUR))
        scale.append(" no weight, masked")
    _print_row(console, scale)


def _print_axis(cells: MapCells, margin: int, console: Console) -> None:
    """Print the first and the last key above the columns."""
    first, last = "0", str(cells.keys[-1] - 1)
    gap = cells.weights.shape[1] - len(first) - len(last)
    _print_row(console, Text(" " * margin + (first + " " * gap + last if gap > 0 else first)))


def _row_label(cells: MapCells, start: int, stop: int, margin: int, query: int | None) -> str:
    """The label of a line: its first query, in every tenth line, and a mark on the line of the chosen query."""
    inside = query is not None and cells.queries[start] <= query < cells.queries[stop]
    first = query if inside else cells.queries[start] if start % 10 == 0 else ""
    return f"{'> ' if inside else '  '}{first:>{margin - 3}} "


def _shade_rows(cells: MapCells, console: Console) -> Iterator[list[str]]:
    shades, masked = _shades_for(console)
    for row in cells.weights.tolist():
        yield [
            NAN
            if math.isnan(weight)
            else masked
            if weight == 0
            else shades[sum(_darkness(cells, weight) >= share for share in THRESHOLDS)]
            for weight in row
        ]


def _print_legend(cells: MapCells, console: Console) -> None:
    shades, masked = _shades_for(console)
    parts = [
        f"{shade} from {percent(cells.vmax * _share_at(cells, share))}"
        for shade, share in zip(shades[1:], THRESHOLDS, strict=True)
    ]
    parts += [f"{masked} no weight, masked"] if bool((cells.weights == 0).any()) else []
    parts += [f"{NAN} not a number"] if bool(cells.weights.isnan().any()) else []
    print_line(console, f"{', '.join(parts)}.")
    print_line(console, f"The largest: {percent(float(cells.weights.nan_to_num().max()))}.")


def _darkness(cells: MapCells, weight: float) -> float:
    """The darkness of a weight, 0 to 1; the square root for pooled cells, which shows differences of small weights."""
    share = min(1.0, weight / cells.vmax)
    return share if cells.exact else math.sqrt(share)


def _share_at(cells: MapCells, strength: float) -> float:
    """The share of the largest weight at a darkness."""
    return strength if cells.exact else strength**2


def _overflow(cells: MapCells) -> str:
    return " and more" if bool((cells.weights > cells.vmax).any()) else ""


def _colour(cells: MapCells, weight: float) -> Color:
    if math.isnan(weight):
        return NAN_COLOUR
    if weight == 0:
        return MASKED_COLOUR
    place = _darkness(cells, weight) * (len(LIGHT) - 1)
    low = min(int(place), len(LIGHT) - 2)
    parts = zip(LIGHT[low], LIGHT[low + 1], strict=True)
    return Color.from_rgb(*(round(a + (b - a) * (place - low)) for a, b in parts))


def _vertical(tokens: Sequence[str]) -> Iterator[str]:
    """Tokens written from top to bottom, two columns each."""
    characters = [_characters(token) for token in tokens]
    height = max(map(len, characters))
    for line in range(height):
        places = (line - height + len(column) for column in characters)
        yield "".join(
            set_cell_size(column[place] if place >= 0 else "", 2)
            for column, place in zip(characters, places, strict=True)
        ).rstrip()


def _characters(token: str) -> list[str]:
    """The first characters of a token, each with its combining marks."""
    characters: list[str] = []
    for c in token:
        if characters and (unicodedata.category(c) in ("Mn", "Me", "Mc", "Cf") or characters[-1][-1] == "\u200d"):
            characters[-1] += c
        else:
            characters.append(c)
    return characters if len(characters) <= MAX_TOKEN_HEIGHT else [*characters[: MAX_TOKEN_HEIGHT - 1], "."]


def token_at(names: Names, side: int, place: int) -> str:
    """The token of a query (side 0) or a key (side 1), shortened; without tokens, its position."""
    if names is None:
        return str(place)
    token = visible(names[side][place])
    return token if cell_len(token) <= MAX_TOKEN_WIDTH else f"{set_cell_size(token, MAX_TOKEN_WIDTH - 3)}..."


def percent(weight: float) -> str:
    """A weight in per cent; a small one has more digits."""
    if math.isnan(weight):
        return "?"
    digits = 0 if weight >= 0.995 else 1 if weight >= 0.001 or weight == 0 else 2 if weight >= 0.0001 else 3
    return f"{100 * weight:.{digits}f} %"


def _shades_for(console: Console) -> tuple[str, str]:
    return (SHADES, MASKED) if can_encode(console, SHADES + MASKED) else (PLAIN_SHADES, PLAIN_MASKED)


def _print_row(console: Console, text: Text) -> None:
    """Print a line, cut at the width of the console."""
    console.print(text, no_wrap=True, overflow="crop", crop=True)
