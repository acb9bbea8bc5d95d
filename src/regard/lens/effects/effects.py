"""`Effects`: how much each head, layer, token or edge of a model changed a metric, and how much was looked at it."""

from __future__ import annotations

import json
import math
from dataclasses import dataclass, field, fields
from pathlib import Path
from typing import TYPE_CHECKING, Any

import torch
from torch import Tensor

from regard.errors import InputError
from regard.files import read_text, write_json
from regard.lens import display
from regard.lens.effects.columns import TENSORS, EffectColumns
from regard.lens.effects.table import effects_table
from regard.lens.recording.recording import Recording

if TYPE_CHECKING:
    from matplotlib.figure import Figure

FORMAT = "regard effects"
VERSION = 1

MAX_RECORDING_BYTES = 2**27
"""A recording whose queries, keys and values take more memory is not kept with the effects."""


@dataclass(frozen=True, eq=False)
class Effects(EffectColumns):
    """The effect of each head, layer, token or edge on a metric; `regard.effect` makes it.

    An effect is the metric of the model as it is, minus the metric of the model without that part. Above 0 the part
    raises the metric. The shapes of the tensors follow `over`:

    - heads: ``(texts, attentions, heads)``
    - layers: ``(texts, attentions)``
    - tokens: ``(texts, tokens)``
    - edges: ``(texts, windows, queries, keys)``

    NaN stands where there is nothing: behind the last token of a shorter text, for a head that an attention does not
    have, and in `values` for what was not computed exactly.

    ::

        effects = regard.effect(model, text, regard.metrics.logit_difference("Mary", "John"))
        print(effects)
        effects.values[0, 24, 4], effects.looked_at[0, 24, 4]
    """

    recording: Recording | None = field(default=None, repr=False)
    """The attention of the first text, for `to_html`, if it takes at most `MAX_RECORDING_BYTES`; no file has it."""

    is_partial: bool = False
    """Whether the computation was stopped early, by Ctrl-C."""

    def table(self, k: int = 10, *, text: int | None = None) -> str:
        """The k strongest: looked at beside mattered, a bar each, and the sentence that sums it up.

        Args:
            k: how many rows.
            text: see `top`.

        Raises:
            ValueError: k below 1.
            IndexError: no such text.
        """
        return effects_table(self, k, text)

    def plot(self, *, text: int | None = None, title: str | None = None) -> Figure:
        """A figure for papers: what was looked at beside what mattered. `regard.lens.display` draws it.

        Heads and layers become a picture each, tokens bars, edges a curve over the windows for each query.

        Args:
            text: see `top`.
            title: the title; by default the metric and the ablation.

        Raises:
            ImportError: matplotlib is not installed.
            IndexError: no such text.
        """
        return display.plot_effects(self, text=text, title=title)

    def to_html(
        self,
        path: str | Path | None = None,
        *,
        text: int | None = None,
        title: str | None = None,
        model: str = "",
        max_size: float | int = 5_000_000,
    ) -> str:
        """A page that opens with these effects, and leads from each head to its map: one file that needs no network.

        It is the page of `recording`, as `Recording.to_html` writes it. Without a recording, which effects from a file
        do not have, and for another text than the first, it has the effects alone.

        Args:
            path: the file to write, by an atomic write.
            text: see `top`.
            title: the title; by default the tokens.
            model: the model's name.
            max_size: the largest size of the page in bytes.

        Returns:
            The page as a text.

        Raises:
            InputError: the path cannot be written; max_size is too small for any page.
            IndexError: no such text.
        """
        return display.render_effects(self, path, text=text, title=title, model=model, max_size=max_size)

    def __str__(self) -> str:
        return self.table()

    def __repr__(self) -> str:
        return f"Effects(over {self.over} {tuple(self.values.shape)}, {self.metric}, {self.ablation}, {self.method})"

    def _repr_html_(self) -> str:
        """The ten strongest, for notebooks."""
        return display.effects_html(self, top=10)

    # Files.

    def to_json(self) -> dict[str, Any]:
        """All of it as JSON has it: lists, numbers, texts; None for NaN."""
        return {"format": FORMAT, "version": VERSION} | {name: _to_json(getattr(self, name)) for name in _json_names()}

    @classmethod
    def from_json(cls, facts: dict[str, Any]) -> Effects:
        """The effects of what `to_json` returned.

        Raises:
            ValueError: it is something else, or a newer regard wrote it.
        """
        if not isinstance(facts, dict) or facts.get("format") != FORMAT:
            raise ValueError("this is no file of Effects.save")
        if facts.get("version") != VERSION:
            raise ValueError(f"it has version {facts.get('version')!r}, and this regard reads {VERSION}: update regard")
        try:
            given = {name: facts[name] for name in _json_names()}
            for name, value in given.items():
                given[name] = _tensor(value) if name in TENSORS else _tuples(value)
            return cls(**given)
        except (KeyError, TypeError, RuntimeError) as error:
            raise ValueError(f"it is damaged: {error!r}") from error

    def save(self, path: str | Path) -> None:
        """Write it to a JSON file by an atomic write; `load` reads it.

        Raises:
            InputError: the path cannot be written.
        """
        write_json(self.to_json(), path)

    @classmethod
    def load(cls, path: str | Path) -> Effects:
        """Read a file that `save` wrote.

        Raises:
            InputError: the file is missing, damaged or something else; a newer regard wrote it.
        """
        try:
            return cls.from_json(json.loads(read_text(Path(path))))
        except InputError:
            raise
        except ValueError as error:
            raise InputError(f"{path} cannot be read as effects: {error}") from error


def _json_names() -> list[str]:
    """What a file holds: everything but the recording, which has files of its own."""
    return [each.name for each in fields(Effects) if each.name != "recording"]


def _to_json(value: Any) -> Any:
    if isinstance(value, Tensor):
        return _to_json(value.double().tolist())
    if isinstance(value, tuple | list):
        return [_to_json(item) for item in value]
    return None if isinstance(value, float) and math.isnan(value) else value


def _tuples(value: Any) -> Any:
    return tuple(_tuples(item) for item in value) if isinstance(value, list) else value


def _tensor(value: Any) -> Tensor | None:
    if value is None:
        return None

    def numbers(item: Any) -> Any:
        return [numbers(part) for part in item] if isinstance(item, list) else math.nan if item is None else item

    return torch.tensor(numbers(value), dtype=torch.float64)
