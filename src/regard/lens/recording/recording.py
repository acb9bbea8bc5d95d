"""What was seen of a model: every attention of it by its module's path."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

from torch import Tensor

from regard._shapes import Float
from regard.attention.mask import Mask
from regard.files import write_text
from regard.lens.maps.head_types import HeadTypes
from regard.lens.maps.map import AttentionMap, Tokens
from regard.lens.maps.rollout import rollout
from regard.lens.maps.summary import AttentionSummary
from regard.lens.recording.entry import RecordingEntry, is_single_text, lengths
from regard.lens.recording.serialization import damage_as_input_error, map_from_json, map_to_json, read, write
from regard.lens.recording.tensors import RecordingWriter
from regard.lens.text.contextual import ContextualVectors

__all__ = ["Recording"]


if TYPE_CHECKING:
    from matplotlib.figure import Figure

    Maps = Mapping[str, AttentionMap | AttentionSummary]
else:
    Maps = Mapping  # who checks types while the program runs would take items out, and a map costs something


class Recording(Maps):
    """Every attention that was seen, by the path of its module, in the order in which they ran.

    ``print(recording)`` is a table of them. A map costs nothing until it is asked a question. With
    ``watch(keep="summary")`` each value is an `AttentionSummary`, which answers the
    same questions without queries and keys.
    """

    def __init__(self) -> None:
        self._entries: dict[str, RecordingEntry] = {}
        self._notes: list[str] = []
        self.has_all_layers = True
        """Whether every layer that was seen is here, and not those of ``watch(layers=...)`` alone."""

    def add(
        self,
        path: str,
        source: Callable[[], AttentionMap | AttentionSummary] | AttentionMap | AttentionSummary,
        *,
        shape: tuple[int, int, int, int],
        mask: Mask | str | None,
        kernel: str,
        kind: str,
        layer: int | None,
        heads: Sequence[int] | None = None,
    ) -> None:
        """Add an attention; what `regard.watch` calls.

        Args:
            path: of its module.
            source: its map, or a function that makes it, which is called once, when somebody asks.
            shape: (batch, heads, queries, keys).
            mask: its mask, for the table.
            kernel: what the model computed it with.
            kind: "self", "cross", or "" where that is not known.
            layer: its number among those of its kind.
            heads: which heads of the model it has, where they are not all.

        Raises:
            ValueError: there is an attention of that path.
        """
        if path in self._entries:
            raise ValueError(f"{path!r} is in this recording already; each attention has a path of its own")
        if isinstance(source, AttentionSummary):
            mask = source.mask
        said = mask if isinstance(mask, str) else "none" if mask is None else repr(mask)
        numbers = None if heads is None else tuple(heads)
        self._entries[path] = RecordingEntry(path, source, shape, said, kernel, kind, layer, numbers)

    def add_note(self, text: str) -> None:
        """Say something about the model that the table shows."""
        self._notes.append(text)

    @property
    def notes(self) -> tuple[str, ...]:
        """What was said about the model: attentions that could not be seen, and what to change."""
        return tuple(self._notes)

    @property
    def layers(self) -> tuple[str, ...]:
        """The paths by layer: the first layer's first, those without a number last."""
        numbers = {path: math.inf if seen.layer is None else seen.layer for path, seen in self._entries.items()}
        return tuple(sorted(self._entries, key=numbers.__getitem__))

    def entry(self, path: str) -> RecordingEntry:
        """What is known of an attention before anything is computed: kind, layer, shape, mask, kernel, heads.

        Raises:
            KeyError: no such path.
        """
        if path not in self._entries:
            nothing = "; ".join(self._notes) or "the model was not run while it was watched"
            there = ", ".join(self._entries) or f"nothing: {nothing}"
            raise KeyError(f"no attention was seen at {path!r}; there is {there}")
        return self._entries[path]

    def subset(self, what: str) -> Recording:
        """A part of the recording.

        Args:
            what: "self" or "cross" for the attentions of that kind; any other word for those whose path has that part,
                such as "encoder", "decoder" or "layers.3".

        Raises:
            KeyError: there are none.
        """
        part = Recording()
        part._notes, part.has_all_layers = self._notes, self.has_all_layers
        for path, seen in self._entries.items():
            if seen.kind == what if what in ("self", "cross") else f".{what}." in f".{path}.":
                part._entries[path] = seen
        if not part:
            kinds = ", ".join(sorted({seen.kind for seen in self._entries.values()} - {""})) or "no kind that is known"
            raise KeyError(
                f"no attention here is {what!r}; there is {kinds}, and the paths are {', '.join(self._entries)}"
            )
        return part

    def label(self, queries: Tokens, keys: Tokens | None = None) -> None:
        """Attach tokens to every map that they fit.

        Self-attention takes ``queries`` for both sides; with fewer queries than keys, its queries are the last of
        them. Cross-attention takes both. In a model that has cross-attention, the self-attention of the stacks without
        it, its encoder, takes ``keys``.

        Args:
            queries: a list of tokens; for a batch of several texts a list of lists.
            keys: the tokens of the source, where there is cross-attention.

        Raises:
            ValueError: they fit no map.
        """
        decoders = {seen.stack for seen in self._entries.values() if seen.kind == "cross"}
        fitting = {
            path: tokens
            for path, seen in self._entries.items()
            if (tokens := seen.tokens_of(queries, keys, reads_keys=bool(decoders) and seen.stack not in decoders))
        }
        if not fitting:
            raise ValueError(f"{_said(queries, keys)} fit no map here: {self._sizes()}")
        for path, tokens in fitting.items():
            self._entries[path].label(tokens)

    def head_types(self) -> dict[str, HeadTypes]:
        """What kind each head is of, by path; see `regard.lens.maps.head_types`."""
        return {path: entry.head_types() for path, entry in self._entries.items()}

    def rollout(self, token: int, batch: int = 0, *, stack: str | None = None) -> Float[Tensor, " tokens"]:
        """Where a token's vector after the last layer comes from: attention rollout; see `regard.lens.maps.rollout`.

        Args:
            token: the position of the token.
            batch: in which batch row.
            stack: which self-attentions, as for `of`, where the model has several stacks: "encoder".

        Returns:
            ``(tokens,)``, the share of each token at the input.

        Raises:
            KeyError: no such stack.
            ValueError: several stacks and none is named; layers that are missing; maps of different sizes; summaries.
            IndexError: no such token or batch row.
        """
        every = list(self._entries.values())
        if stack is not None:
            every = [seen for seen in every if seen.stack == stack] or list(self.subset(stack)._entries.values())
        chosen = [seen for seen in every if seen.kind != "cross"]
        stacks = list(dict.fromkeys(seen.stack for seen in chosen))
        if len(stacks) != 1:
            named = " or ".join(f"stack={name!r}" for name in stacks)
            raise ValueError(
                f"rollout follows one stack, and there are {len(stacks)}: say {named}"
                if stacks
                else "rollout follows self-attention, and there is none here"
            )
        numbers = [seen.layer for seen in chosen]
        if not self.has_all_layers or (None not in numbers and numbers != list(range(len(chosen)))):
            raise ValueError(
                f"rollout needs every layer of the stack, and there are {numbers} here: watch without layers="
            )
        sizes = {(seen.shape[0], *seen.shape[2:]) for seen in chosen}
        if len(sizes) > 1 or any(rows != columns for _, rows, columns in sizes):
            raise ValueError(
                f"rollout needs layers with as many queries as keys, all of one size: {self._sizes([*chosen])}"
            )
        rows, count, _ = sizes.pop()
        for what, number, limit in (("token", token, count), ("batch row", batch, rows)):
            if not 0 <= number < limit:
                raise IndexError(f"there is no {what} {number}: there are {limit}, counted from 0")
        maps = []
        for seen in chosen:
            if seen.heads is not None:
                raise ValueError(f"rollout takes all heads of a layer, and {seen.path} was watched with heads= alone")
            made = seen.map()
            if isinstance(made, AttentionSummary):
                raise ValueError(made.refusal("rollout"))
            maps.append(made)
        return rollout(maps, token, batch)

    def plot_heads(self, stack: str | None = None, *, batch: int = 0) -> Figure:
        """Layers x heads as small pictures, each with the kind of its head: a matplotlib figure.

        Args:
            stack: which layers, where there are several stacks: "encoder", "decoder", "cross"; by default the first.
            batch: which batch row.

        Raises:
            ImportError: matplotlib is not installed.
            IndexError: no such batch row.
            KeyError: no such stack.
            ValueError: there is nothing to draw; NaN or infinity in queries or keys.
        """
        from regard.views.figures.maps import plot_heads

        return plot_heads(self, stack, batch=batch)

    def to_html(
        self,
        path: str | Path | None = None,
        *,
        title: str | None = None,
        model: str = "",
        max_size: float | int = 5_000_000,
        batch: int = 0,
        heads: Sequence[tuple[str | int, int]] | None = None,
        image: Any = None,
        patches: tuple[int, int] | None = None,
        context: ContextualVectors | None = None,
    ) -> str:
        """A page on which anybody can look at the attention, and change it: one file that needs no network.

        It carries queries, keys and values, no maps: the page computes each row by itself, within 1e-3 of a weight. Of
        what does not fit it carries pictures and the strongest pairs, and says what it left out. `label` first, so that
        it shows tokens and not positions.

        Args:
            path: where to write it, whole or not at all.
            title: what stands on top; by default the tokens.
            model: the model's name.
            max_size: the largest size of the page in bytes; math.inf for any size.
            batch: which text of a batch.
            heads: (layer or path, head) of the heads to carry whole; by default all that fit, the one that is most
                worth seeing first.
            image: what a vision model saw, for its patches to be drawn over: a path, the bytes of a PNG, JPEG, GIF or
                WebP file, or a ``PIL.Image``.
            patches: (rows, columns) of its patches; by default a square.
            context: from `regard.lens.text.contextual`: words in several sentences, to be compared.

        Returns:
            The page as a text.

        Raises:
            InputError: the path cannot be written; an image that cannot be read.
            TypeError: an argument of another type.
            ValueError: there is nothing to show; max_size too small for any page; patches that are no square.
            IndexError: no such batch row or head.
            KeyError: no such layer or path.
        """
        from regard.views.html import PageImage, render_page

        if context is not None and not isinstance(context, ContextualVectors):
            raise TypeError(f"context is what regard.lens.text.contextual answers; got {type(context).__name__}")
        if patches is not None and image is None:
            raise ValueError(f"patches={patches} are those of an image: give image= too")
        text = render_page(
            self,
            title=title,
            model=model,
            max_size=max_size,
            batch=batch,
            heads=heads,
            image=None if image is None else PageImage.load(image, patches),
            context=None if context is None else context.to_dict(),
        )
        if path is not None:
            write_text(text, path)
        return text

    def _repr_html_(self) -> str | None:
        """The page in a frame, for notebooks; None where there is nothing to show: they then print the recording."""
        from regard.views.html import notebook_frame, render_page

        try:
            return notebook_frame(render_page(self))
        except ValueError:
            return None

    def save(self, path: str | Path) -> None:
        """Write the recording to a file of safetensors, whole or not at all; `load` reads it.

        Queries, keys, values, masks and biases are kept bit for bit. What layers share is written once. Of `mask.where`
        the file keeps what the function said.

        Raises:
            InputError: the path cannot be written; a mask or bias that is too large to be written out.
            RuntimeError: tensors were changed in place since the model ran.
        """
        writer = RecordingWriter()
        attentions = []
        for seen in self._entries.values():
            made = seen.map()
            known = {name: getattr(seen, name) for name in _ENTRY_FIELDS} | {"tokens": made.tokens}
            attentions.append({**known, "made": map_to_json(made, writer)})
        write(path, {"notes": self._notes, "has_all_layers": self.has_all_layers, "attentions": attentions}, writer)

    @classmethod
    def load(cls, path: str | Path) -> Recording:
        """What `save` wrote; its maps answer like the ones that were saved.

        Raises:
            InputError: the file is missing, truncated, or something else; a newer regard wrote it.
        """
        facts, reader = read(path)
        recording = cls()
        with damage_as_input_error(path):
            recording.has_all_layers = bool(facts["has_all_layers"])
            for text in facts["notes"]:
                recording.add_note(text)
            for known in facts["attentions"]:
                entry = {name: known[name] for name in _ENTRY_FIELDS}
                entry |= {name: None if entry[name] is None else tuple(entry[name]) for name in ("shape", "heads")}
                tokens = entry.pop("tokens")
                seen = RecordingEntry(**entry, source=map_from_json(known["made"], reader))
                if tokens is not None:
                    seen.label(tuple(tokens))
                recording._entries[seen.path] = seen
        return recording

    def __getitem__(self, path: str) -> AttentionMap | AttentionSummary:
        return self.entry(path).map()

    def __contains__(self, path: object) -> bool:
        return path in self._entries

    def __iter__(self) -> Iterator[str]:
        return iter(self._entries)

    def __len__(self) -> int:
        return len(self._entries)

    def __repr__(self) -> str:
        return f"Recording({len(self)} attentions)"

    def __str__(self) -> str:
        rows = [("path", "kind", "heads", "queries x keys", "mask", "kernel", "error")]
        for path, seen in self._entries.items():
            batch, heads, queries, keys = seen.shape
            size = f"{queries} x {keys}" if batch == 1 else f"{batch} x {queries} x {keys}"
            rows.append((path, seen.kind or "?", str(heads), size, seen.mask, seen.kernel or "?", seen.error_text()))
        widths = [max(map(len, column)) for column in zip(*rows, strict=True)]
        lines = ["  ".join(f"{cell:{width}}" for cell, width in zip(row, widths, strict=True)).rstrip() for row in rows]
        return "\n".join([*lines, *self._notes])

    def _sizes(self, some: Sequence[RecordingEntry] | None = None) -> str:
        """How many queries and keys there are, for a message: each size once."""
        sizes: dict[tuple[int, int, int], list[str]] = {}
        for seen in self._entries.values() if some is None else some:
            batch, _, queries, keys = seen.shape
            sizes.setdefault((batch, queries, keys), []).append(seen.path)
        return "; ".join(
            f"{paths[0]}{f' and {len(paths) - 1} more' if len(paths) > 1 else ''} "
            f"{'has' if len(paths) == 1 else 'have'} {queries} queries x {keys} keys"
            f"{f' in each of {batch} texts, which take a list of lists' if batch > 1 else ''}"
            for (batch, queries, keys), paths in sizes.items()
        )


_ENTRY_FIELDS = ("path", "shape", "mask", "kernel", "kind", "layer", "heads", "tokens")


def _said(queries: Tokens, keys: Tokens | None) -> str:
    sides = [queries] if keys is None else [queries, keys]
    said = " and ".join(
        f"{lengths(side)[0]} tokens" if is_single_text(side) else f"{lengths(side)} tokens of {len(side)} texts"
        for side in sides
    )
    return said
