"""Where the patches of a page's image are: for each attention among its queries, and among its keys.

What the caller says comes first, then what the recording knows. Of an attention of which neither tells, nothing is
painted as image.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from typing import Any

from regard.lens.maps.patches import NO_PATCHES, AttentionPatches, ImagePatches
from regard.lens.recording.entry import RecordingEntry
from regard.lens.recording.recording import Recording

MAX_EXTRA_TOKENS = 8
"""The most tokens before the patches that (rows, columns) alone admit: class and register tokens."""

EXAMPLE = '(rows, columns), (first token, rows, columns), or {"path": one of these}'

SIDES = "queries", "keys"

Grid = tuple[int, ...]


class PagePatches:
    """The patches of one image in each attention of a recording.

    Args:
        recording: what the page shows.
        batch: the text of the batch.
        image_index: the number of the image among those of that text.
        patches: what the caller says; see `Recording.to_html`.

    Raises:
        TypeError: patches of another form.
        ValueError: patches that no attention, or not the named one, has.
        IndexError: the text has no such image.
    """

    def __init__(self, recording: Recording, batch: int, image_index: int = 0, patches: Any = None) -> None:
        entries = [recording.entry(path) for path in recording]
        numbers = _images_of_text(entries, batch)
        if type(image_index) is not int or not 0 <= image_index < max(1, len(numbers)):
            raise IndexError(f"image_index={image_index}: text {batch} has {len(numbers)} images, counted from 0")
        self.num_images = len(numbers)
        self._rows: dict[str, int] = {}
        self._found: dict[str, AttentionPatches] = {}
        for entry in entries:
            image = numbers[image_index] if numbers else -1
            self._rows[entry.path] = row = _row_of_image(entry.patches, image, batch)
            sides = [
                tuple(each for each in getattr(entry.patches, side) if (each.batch, each.image) == (row, image))
                for side in SIDES
            ]
            self._found[entry.path] = AttentionPatches(*sides)
        if isinstance(patches, Mapping):
            for name, grid in patches.items():
                self._assign(name, grid, [entry for entry in entries if entry.matches(name)])
        elif patches is not None:
            self._assign_where_it_fits(_grid(patches), entries)

    def row(self, path: str) -> int:
        """The batch row of an attention that has the image: a vision tower has a row for each image of a text."""
        return self._rows[path]

    def facts(self, path: str) -> dict[str, dict[str, int] | None]:
        """``query_patches`` and ``key_patches`` of `Attention` in static/core/data.js."""
        found = self._found[path]
        return {"query_patches": _side_facts(found.queries), "key_patches": _side_facts(found.keys)}

    def _assign(self, name: str, grid: Any, entries: list[RecordingEntry]) -> None:
        """What the caller says about the attentions of a name."""
        if not entries:
            raise ValueError(f"patches={{{name!r}: ...}}: no attention has that path or a part of that name")
        for entry in entries:
            by_side = grid if isinstance(grid, Mapping) else dict.fromkeys(SIDES, grid)
            if not set(by_side) <= set(SIDES):
                raise TypeError(
                    f'patches={{{name!r}: {grid!r}}}: of one attention "queries" and "keys" may be told apart'
                )
            placed = {
                side: self._place(entry, side, None if value is None else _grid(value))
                for side, value in by_side.items()
            }
            missing = [side for side, value in by_side.items() if value is not None and not placed[side]]
            if missing and (isinstance(grid, Mapping) or len(missing) == len(by_side)):
                raise ValueError(f"patches={{{name!r}: {grid!r}}}: {_size(entry)}")
            if entry.kind == "cross" and not isinstance(grid, Mapping) and all(placed.values()):
                raise ValueError(
                    f"patches={{{name!r}: {grid!r}}} fits the queries and the keys of a cross-attention: say which by "
                    f'{{{name!r}: {{"keys": {grid!r}}}}}'
                )
            self._found[entry.path] = replace(self._found[entry.path], **placed)

    def _assign_where_it_fits(self, grid: Grid, entries: list[RecordingEntry]) -> None:
        """What the caller says about no attention by name.

        Where the recording knows patches, the caller can say how as many are laid out. Where it knows none, the keys of
        cross-attention may be the image, and the self-attention of stacks without it.
        """
        fits = False
        if any(found != NO_PATCHES for found in self._found.values()):
            rows, columns = grid[-2:]
            for path, found in self._found.items():
                sides = {side: _laid_out(getattr(found, side), rows, columns) for side in SIDES}
                fits = fits or any(sides.values())
                self._found[path] = AttentionPatches(**{side: sides[side] or getattr(found, side) for side in SIDES})
        else:
            decoders = {entry.stack for entry in entries if entry.kind == "cross"}
            for entry in entries:
                if entry.kind == "cross" or entry.stack not in decoders:
                    placed = {side: self._place(entry, side, grid) for side in SIDES}
                    if any(placed.values()) and (entry.kind != "cross" or not all(placed.values())):
                        self._found[entry.path], fits = AttentionPatches(**placed), True
        if not fits:
            sizes = dict.fromkeys(_size(entry) for entry in entries)
            raise ValueError(f"patches={grid} fit no attention without doubt: {'; '.join(sizes)}; {EXAMPLE}")

    def _place(self, entry: RecordingEntry, side: str, grid: Grid | None) -> tuple[ImagePatches, ...]:
        """The patches at one side of an attention; () where it has not as many tokens."""
        if grid is None:
            return ()
        rows, columns = grid[-2:]
        size = entry.shape[2 + SIDES.index(side)]
        first = grid[0] if len(grid) == 3 else size - rows * columns
        if first < 0 or first + rows * columns > size or (len(grid) == 2 and first > MAX_EXTRA_TOKENS):
            return ()
        return (ImagePatches(self._rows[entry.path], 0, first, rows, columns, columns),)


def name_patches(tokens: list[str], patches: tuple[ImagePatches, ...], batch: int) -> list[str]:
    """The tokens of a batch row, where patches that all have one label, the image token's, say which they are."""
    named = list(tokens)
    for each in patches:
        places = {
            each.first + row * each.stride + column: f"{row},{column}"
            for row in range(each.rows)
            for column in range(each.columns)
        }
        if each.batch == batch and len(places) > 1 and len({tokens[token] for token in places}) == 1:
            for token, place in places.items():
                named[token] = f"{tokens[token]} {place}"
    return named


def _images_of_text(entries: list[RecordingEntry], batch: int) -> list[int]:
    """The images of a text; of a vision tower, which has a row for each image, only where nothing has rows of texts."""
    with_rows = [entry for entry in entries if entry.patches != NO_PATCHES and entry.shape[0] > batch]
    if not with_rows:
        return []
    patches = min(with_rows, key=lambda entry: entry.shape[0]).patches
    return sorted({each.image for each in (*patches.queries, *patches.keys) if each.batch == batch})


def _row_of_image(patches: AttentionPatches, image: int, batch: int) -> int:
    rows = [each.batch for each in (*patches.queries, *patches.keys) if each.image == image]
    return batch if batch in rows or not rows else rows[0]


def _grid(value: Any) -> Grid:
    """The numbers of a grid.

    Raises:
        TypeError: something else.
        ValueError: numbers below those of a grid.
    """
    if not isinstance(value, tuple | list) or len(value) not in (2, 3) or any(type(n) is not int for n in value):
        raise TypeError(f"patches={value!r}: {EXAMPLE}")
    if min(value[-2:]) < 1 or value[0] < 0:
        raise ValueError(f"patches={tuple(value)}: at least one row and one column, and tokens counted from 0")
    return tuple(value)


def _laid_out(found: tuple[ImagePatches, ...], rows: int, columns: int) -> tuple[ImagePatches, ...]:
    """As many patches in other rows and columns."""
    return tuple(
        replace(each, rows=rows, columns=columns, stride=columns)
        for each in found
        if each.rows * each.columns == rows * columns and each.end - each.first == rows * columns
    )


def _size(entry: RecordingEntry) -> str:
    return f"{entry.path} has {entry.shape[2]} queries x {entry.shape[3]} keys"


def _side_facts(patches: tuple[ImagePatches, ...]) -> dict[str, int] | None:
    return {name: getattr(patches[0], name) for name in ("first", "rows", "columns", "stride")} if patches else None
