"""One head in the terminal: what each token looks at, and the square of all weights; plain text when piped."""

from __future__ import annotations

import math

import torch
from rich.cells import cell_len
from rich.console import Console
from rich.text import Text

from regard.escape import visible
from regard.lens.maps.map import AttentionMap
from regard.lens.maps.summary import AttentionSummary
from regard.lens.recording.entry import RecordingEntry
from regard.lens.recording.recording import Recording
from regard.views.figures.cells import check_place, texts_of
from regard.views.terminal.console import can_encode, new_table, print_heading, print_line
from regard.views.terminal.heatmap import Names, draw_heatmap, percent, token_at

__all__ = ["draw"]

SENTENCE = 40
"""So many queries of a longer text are shown with their keys."""

STRONGEST, KEYS = 3, 12
"""The keys that are shown of each query; of one that was asked for."""

BAR, LONG_BAR = 5, 30
"""The columns of a whole weight, likewise."""

LEFT = ("", "left")
RIGHT = ("", "right")
EIGHTHS = "▏▎▍▌▋▊▉█"


def draw(
    recording: Recording, console: Console, *, path: str, head: int, query: int | None = None, batch: int = 0
) -> None:
    """Show one head of one attention.

    Args:
        recording: maps or summaries.
        console: where; see `regard.views.terminal.console.console_for`.
        path: which attention.
        head: which of the map's heads.
        query: show the keys of this query alone, and more of them.
        batch: which batch row.

    Raises:
        KeyError: no such path.
        IndexError: no such head, query or batch row.
        ValueError: the map is empty; NaN or infinity in a map that is pooled.
    """
    entry = recording.entry(path)
    check_place(entry.shape, batch, head, query)
    m = entry.map()
    _what(entry, console, head, batch)
    console.print()
    if query is None:
        _sentence(m, console, head, batch)
    else:
        _one_query(m, console, head, query, batch)
    console.print()
    draw_heatmap(m, console, head, query, batch)


def _what(entry: RecordingEntry, console: Console, head: int, batch: int) -> None:
    """The line that says what is shown."""
    m = entry.map()
    number = head if entry.heads is None else entry.heads[head]
    layer = "" if entry.layer is None else f"layer {entry.layer}, "
    console.print(Text.assemble(("regard see", "bold"), f"  {layer}head {number}{_kind(entry, head)}"))
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


def _sentence(m: AttentionMap | AttentionSummary, console: Console, head: int, batch: int) -> None:
    """Every query with its strongest keys, side by side."""
    queries, keys = m.shape[2:]
    names = texts_of(m, batch)
    print_heading(console, f"What each {'query' if names is None else 'token'} looks at")
    rows = range(min(queries, SENTENCE))
    longest = 0 if names is None else max(cell_len(token_at(names, 1, key)) for key in range(keys))
    # A number, a bar and a token, with two columns between each.
    count = max(1, min(STRONGEST, keys, (console.width - 6 - longest) // (BAR + 12 + max(longest, 5))))
    table = new_table(RIGHT, LEFT, *(RIGHT, LEFT, LEFT) * count, header=False, compact=True)
    for row, weights, at in zip(rows, *_strongest(m, batch, head, rows, count), strict=True):
        cells = [Text(str(row)), _token(names, 0, row)]
        for weight, key in zip(weights, at, strict=True):
            shown = (Text(percent(weight)), _bar(weight, BAR, console), Text(token_at(names, 1, key)))
            cells += shown if key >= 0 else [Text()] * 3
        table.add_row(*cells)
    console.print(table)
    if len(rows) < queries:
        print_line(console, f"The first {len(rows)} of {queries:,} queries. Any other: --query POSITION.")


def _one_query(m: AttentionMap | AttentionSummary, console: Console, head: int, query: int, batch: int) -> None:
    """A query with more of its keys, one below the other."""
    names = texts_of(m, batch)
    token = "" if names is None else f" '{token_at(names, 0, query)}'"
    print_heading(console, f"What query {query}{token} looks at")
    [weights], [at] = _strongest(m, batch, head, range(query, query + 1), min(KEYS, m.shape[3]))
    table = new_table(RIGHT, LEFT, RIGHT, LEFT, header=False, compact=True)
    bar = max(BAR, min(LONG_BAR, console.width - 40))
    shown = [(weight, key) for weight, key in zip(weights, at, strict=True) if key >= 0]
    for weight, key in shown:
        table.add_row(Text(str(key)), _token(names, 1, key), Text(percent(weight)), _bar(weight, bar, console))
    console.print(table)
    if isinstance(m, AttentionMap) and len(shown) < m.shape[3]:
        rest = float(m[batch, head, query].double().sum()) - sum(weight for weight, _ in shown)
        print_line(console, f"The other {m.shape[3] - len(shown):,} keys: {percent(max(0.0, rest))} together.")


def _strongest(
    m: AttentionMap | AttentionSummary, batch: int, head: int, rows: range, count: int
) -> tuple[list[list[float]], list[list[int]]]:
    """The largest weights of some rows and their keys; -1 where there is none."""
    if isinstance(m, AttentionSummary):
        top = m.top(min(count, m.answers["top.weights"].shape[-1]))
        weights, keys = (t[batch, head, rows.start : rows.stop] for t in top)
        return weights.tolist(), keys.tolist()
    weights, keys = m[batch, head, rows.start : rows.stop].topk(count)
    return weights.tolist(), torch.where(weights == 0, -1, keys).tolist()


def _kind(entry: RecordingEntry, head: int) -> str:
    try:
        return f": {entry.head_types().names[head]}"
    except ValueError:  # NaN or infinity in q or k
        return ""


def _token(names: Names, side: int, place: int) -> Text:
    """The token beside a position; nothing where tokens are not known."""
    return Text("" if names is None else token_at(names, side, place))


def _bar(weight: float, width: int, console: Console) -> Text:
    if math.isnan(weight):
        return Text()
    full, rest = divmod(round(8 * width * weight), 8)
    drawn = EIGHTHS[-1] * full + (EIGHTHS[rest - 1] if rest else "")
    return Text(drawn if can_encode(console, EIGHTHS) else "#" * round(width * weight), style="cyan")
