"""One head in the terminal: the strongest keys of each query, and the heatmap; plain text when piped."""

from __future__ import annotations

import math

from rich.cells import cell_len
from rich.console import Console
from rich.text import Text

from regard.escape import visible
from regard.lens.maps.map import AttentionMap
from regard.lens.maps.summary import AttentionSummary
from regard.lens.recording.entry import RecordingEntry
from regard.lens.recording.recording import Recording
from regard.views.figures.cells import map_tokens, validate_location
from regard.views.terminal.console import can_encode, print_heading, print_line
from regard.views.terminal.head_facts import (
    MAX_QUERIES,
    TOP_KEYS,
    TOP_KEYS_OF_ONE,
    DrawnHeads,
    head_type_of,
    strongest_keys,
)
from regard.views.terminal.heatmap import Names, draw_heatmap, percent, token_at
from regard.views.terminal.table import FittingTable

BAR_WIDTH, LONG_BAR_WIDTH = 5, 30
"""The columns of a weight of 1; for one chosen query."""

LEFT = ("", "left")
RIGHT = ("", "right")
BAR = ("", "bar")
EIGHTHS = "▏▎▍▌▋▊▉█"


def draw_heads(heads: DrawnHeads, console: Console) -> None:
    """Draw heads, one below the other."""
    for path, head in heads.heads:
        draw(heads.recording, console, path=path, head=head, query=heads.query)


def draw(
    recording: Recording, console: Console, *, path: str, head: int, query: int | None = None, batch: int = 0
) -> None:
    """Draw one head of one attention.

    Args:
        recording: maps or summaries.
        console: from `regard.views.terminal.console.console_for`.
        path: of the attention.
        head: the index of the head in the map.
        query: list the keys of this query alone, and more of them.
        batch: the batch row.

    Raises:
        KeyError: there is no such path.
        IndexError: there is no such head, query or batch row.
        ValueError: the map is empty; a map that is pooled has NaN or infinity.
    """
    entry = recording.entry(path)
    validate_location(entry.shape, batch, head, query)
    m = entry.map()
    _print_summary(entry, console, head, batch)
    console.print()
    if query is None:
        _print_queries(m, console, head, batch)
    else:
        _print_query(m, console, head, query, batch)
    console.print()
    draw_heatmap(m, console, head, query, batch)


def _print_summary(entry: RecordingEntry, console: Console, head: int, batch: int) -> None:
    """Print the head, its type, its attention and the max error."""
    m = entry.map()
    number = entry.head_numbers[head]
    layer = "" if entry.layer is None else f"layer {entry.layer}, "
    head_type = head_type_of(entry, head)
    type_text = "" if head_type is None else f": {head_type}"
    console.print(Text.assemble(("regard see", "bold"), f"  {layer}head {number}{type_text}"))
    kind = f"{entry.kind}-attention, " if entry.kind else ""
    text = f", text {batch} of {entry.shape[0]}" if entry.shape[0] > 1 else ""
    print_line(
        console,
        f"{visible(entry.path)}: {kind}{entry.shape[2]:,} queries x {entry.shape[3]:,} keys{text}, mask "
        f"{visible(entry.mask)}, error {'unknown' if math.isnan(m.error) else f'{m.error:.1e}'}",
    )
    if not m.verified:
        why = "nothing proves it" if math.isnan(m.error) else "it is not what the model computed"
        print_line(console, f"DO NOT TRUST this map: {why}.", style="bold red")


def _print_queries(m: AttentionMap | AttentionSummary, console: Console, head: int, batch: int) -> None:
    """Print each query with its strongest keys, side by side."""
    queries, keys = m.shape[2:]
    names = map_tokens(m, batch)
    print_heading(console, f"What each {'query' if names is None else 'token'} looks at")
    rows = range(min(queries, MAX_QUERIES))
    longest = 0 if names is None else max(cell_len(token_at(names, 1, key)) for key in range(keys))
    # A number, a bar and a token, with two columns between each.
    count = max(1, min(TOP_KEYS, keys, (console.width - 6 - longest) // (BAR_WIDTH + 12 + max(longest, 5))))
    table = FittingTable(RIGHT, LEFT, *(RIGHT, BAR, LEFT) * count, labels=2, header=False, compact=True)
    for row, weights, at in zip(rows, *strongest_keys(m, head, rows, count, batch), strict=True):
        cells = [Text(str(row)), _token(names, 0, row)]
        for weight, key in zip(weights, at, strict=True):
            filled = (Text(percent(weight)), _bar(weight, BAR_WIDTH, console), Text(token_at(names, 1, key)))
            cells += filled if key >= 0 else [Text()] * 3
        table.add_row(*cells)
    console.print(table)
    if len(rows) < queries:
        print_line(console, f"The first {len(rows)} of {queries:,} queries. For another one: --token WORD.")


def _print_query(m: AttentionMap | AttentionSummary, console: Console, head: int, query: int, batch: int) -> None:
    """Print one query with more of its keys, one below the other."""
    names = map_tokens(m, batch)
    token = "" if names is None else f" '{token_at(names, 0, query)}'"
    print_heading(console, f"What query {query}{token} looks at")
    [weights], [at] = strongest_keys(m, head, range(query, query + 1), TOP_KEYS_OF_ONE, batch)
    table = FittingTable(RIGHT, LEFT, RIGHT, BAR, labels=2, header=False, compact=True)
    width = max(BAR_WIDTH, min(LONG_BAR_WIDTH, console.width - 40))
    pairs = [(weight, key) for weight, key in zip(weights, at, strict=True) if key >= 0]
    for weight, key in pairs:
        table.add_row(Text(str(key)), _token(names, 1, key), Text(percent(weight)), _bar(weight, width, console))
    console.print(table)
    if isinstance(m, AttentionMap) and len(pairs) < m.shape[3]:
        rest = float(m[batch, head, query].double().sum()) - sum(weight for weight, _ in pairs)
        print_line(console, f"The other {m.shape[3] - len(pairs):,} keys: {percent(max(0.0, rest))} together.")


def _token(names: Names, side: int, place: int) -> Text:
    """A token for a table; empty where the tokens are unknown."""
    return Text("" if names is None else token_at(names, side, place))


def _bar(weight: float, width: int, console: Console) -> Text:
    if math.isnan(weight):
        return Text()
    full, rest = divmod(round(8 * width * weight), 8)
    bar = EIGHTHS[-1] * full + (EIGHTHS[rest - 1] if rest else "")
    return Text(bar if can_encode(console, EIGHTHS) else "#" * round(width * weight), style="cyan")
