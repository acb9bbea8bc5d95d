"""The recording of a model: every attention by the path of its module."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

from torch import Tensor

from regard._shapes import Float
from regard.attention.mask import Mask
from regard.lens import display
from regard.lens.maps.head_types import HeadTypes
from regard.lens.maps.map import AttentionMap
from regard.lens.maps.patches import NO_PATCHES, AttentionPatches
from regard.lens.maps.rollout import rollout
from regard.lens.maps.summary import AttentionSummary
from regard.lens.maps.tokens import Tokens, token_counts
from regard.lens.recording.entry import RecordingEntry
from regard.lens.recording.serialization import (
    damage_as_input_error,
    map_from_json,
    map_to_json,
    read_recording,
    require_type,
    validate_entry,
    write_recording,
)
from regard.lens.recording.tensors import RecordingWriter

if TYPE_CHECKING:
    from matplotlib.figure import Figure

    Maps = Mapping[str, AttentionMap | AttentionSummary]
else:
    Maps = Mapping  # a type checker at run time would read the items, and each map costs time


class Recording(Maps):
    """Every attention that was recorded, by the path of its module, in the order in which they ran.

    ``print(recording)`` is a table of them. A map costs nothing until its first statistic. With
    ``watch(keep="summary")`` each value is an `AttentionSummary`, which has the same statistics without queries and
    keys.
    """

    def __init__(self) -> None:
        self._entries: dict[str, RecordingEntry] = {}
        self._notes: list[str] = []
        self.has_all_layers = True
        """Whether every layer of the model is here; False after ``watch(layers=...)``."""
        self.model_class = ""
        """The name of the watched model's class."""

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
        patches: AttentionPatches = NO_PATCHES,
    ) -> None:
        """Add an attention; `regard.watch` calls it.

        Args:
            path: the path of its module.
            source: its map, or a function that makes the map, which is called once, at the first use.
            shape: (batch, heads, queries, keys).
            mask: its mask, for the table.
            kernel: the kernel that the model used.
            kind: "self", "cross", or "" if it is not known.
            layer: its number among those of its kind.
            heads: the heads of the model that it has, if not all.
            patches: which of its queries and keys are patches of an image.

        Raises:
            ValueError: there is an attention of that path already; patches that it does not have.
        """
        if path in self._entries:
            raise ValueError(f"{path!r} is in this recording already; each attention has a path of its own")
        patches.validate(shape)
        if isinstance(source, AttentionSummary):
            mask = source.mask
        mask_text = mask if isinstance(mask, str) else "none" if mask is None else repr(mask)
        numbers = None if heads is None else tuple(heads)
        self._entries[path] = RecordingEntry(
            path, source, shape, mask_text, kernel, kind, layer, numbers, patches=patches
        )

    def add_note(self, text: str) -> None:
        """Add a note about the model, which the table shows."""
        self._notes.append(text)

    @property
    def notes(self) -> tuple[str, ...]:
        """The notes about the model: attentions that could not be recorded, and what to change."""
        return tuple(self._notes)

    @property
    def layers(self) -> tuple[str, ...]:
        """The paths in the order of the layers; those without a number last."""
        numbers = {path: math.inf if entry.layer is None else entry.layer for path, entry in self._entries.items()}
        return tuple(sorted(self._entries, key=numbers.__getitem__))

    def entry(self, path: str) -> RecordingEntry:
        """The entry of an attention: its kind, layer, shape, mask, kernel, heads, known before anything is computed.

        Raises:
            KeyError: no such path.
        """
        if path not in self._entries:
            reason = "; ".join(self._notes) or "the model was not run while it was watched"
            paths = ", ".join(self._entries) or f"nothing: {reason}"
            raise KeyError(f"no attention was recorded at {path!r}; there is {paths}")
        return self._entries[path]

    def subset(self, name: str) -> Recording:
        """A part of the recording.

        Args:
            name: "self" or "cross" for the attentions of that kind; any other word for those whose path has that part,
                such as "encoder", "decoder" or "layers.3".

        Raises:
            KeyError: there are none.
        """
        part = self._without_entries()
        for path, entry in self._entries.items():
            if entry.matches(name):
                part._entries[path] = entry
        if not part:
            kinds = (
                ", ".join(sorted({entry.kind for entry in self._entries.values()} - {""})) or "no kind that is known"
            )
            raise KeyError(
                f"no attention here is {name!r}; there is {kinds}, and the paths are {', '.join(self._entries)}"
            )
        return part

    def select(self, layers: Sequence[int] | None = None, heads: Sequence[tuple[str, int]] | None = None) -> Recording:
        """The part of the recording with some layers or some heads only.

        Args:
            layers: their numbers; of each stack. All by default.
            heads: paths, and indices of heads in their maps, as `head_selection.resolve_heads` returns them.

        Raises:
            KeyError: no such layer.
        """
        part = self._without_entries()
        part.has_all_layers = False
        numbers = sorted({entry.layer for entry in self._entries.values() if entry.layer is not None})
        for layer in layers or ():
            if layer not in numbers:
                raise KeyError(f"there is no layer {layer} here; there is {', '.join(map(str, numbers)) or 'none'}")
        for path, entry in self._entries.items():
            if layers is not None and entry.layer not in layers:
                continue
            if heads is None:
                part._entries[path] = entry
            elif indices := sorted({head for at, head in heads if at == path}):
                part._entries[path] = entry if len(indices) == entry.shape[1] else entry.select(indices)
        return part

    def label(self, queries: Tokens, keys: Tokens | None = None) -> None:
        """Attach tokens to every map that they fit.

        Self-attention takes ``queries`` for queries and keys; with fewer queries than keys, its queries are the last of
        them. Cross-attention takes both. In a model that has cross-attention, the self-attention of the stacks without
        it, its encoder, takes ``keys``.

        Args:
            queries: a list of tokens; for a batch of several texts a list of lists.
            keys: the tokens of the source, where there is cross-attention.

        Raises:
            ValueError: they fit no map.
        """
        decoders = {entry.stack for entry in self._entries.values() if entry.kind == "cross"}
        matches = {}
        for path, entry in self._entries.items():
            reads_keys = bool(decoders) and entry.stack not in decoders
            if (tokens := entry.matching_tokens(queries, keys, reads_keys=reads_keys)) is not None:
                matches[path] = tokens
        if not matches:
            raise ValueError(f"{token_counts(queries, keys)} fit no map here: {self._sizes()}")
        for path, tokens in matches.items():
            self._entries[path].label(tokens)

    def without_padding(self, valid: Tensor) -> Recording:
        """The recording in which queries that are padding count in no statistic; see `AttentionMap.without_padding`.

        Args:
            valid: ``(batch, tokens)``, True or 1 for tokens, as the ``attention_mask`` of tokenizers. With fewer
                queries than tokens, as in a generation, the queries are the last tokens.

        Raises:
            ValueError: they fit an attention not, such as those of the other stack: take `subset` first; or, when the
                map is read, it is a summary.
        """
        part = self._without_entries()
        for path, entry in self._entries.items():
            batch, _, queries, _ = entry.shape
            if valid.ndim != 2 or len(valid) != batch or entry.num_tokens != valid.shape[1]:
                raise ValueError(
                    f"{path} has {batch} texts and {entry.num_tokens} tokens, and valid is {tuple(valid.shape)}: "
                    'choose those that it fits by recording.subset("encoder") or the like'
                )
            part._entries[path] = entry.without_padding(valid[:, -queries:])
        return part

    def head_types(self) -> dict[str, HeadTypes]:
        """The types of the heads, by path; see `regard.lens.maps.head_types`."""
        return {path: entry.head_types() for path, entry in self._entries.items()}

    def rollout(self, token: int, batch: int = 0, *, stack: str | None = None) -> Float[Tensor, " tokens"]:
        """Attention rollout: the share of each input token in a token's vector after the last layer.

        Args:
            token: the position of the token.
            batch: the batch row.
            stack: the self-attentions, as for `subset`, if the model has several stacks: "encoder".

        Returns:
            ``(tokens,)``, the share of each token at the input; see `regard.lens.maps.rollout`.

        Raises:
            KeyError: no such stack.
            ValueError: several stacks and none is named; missing layers; maps of different sizes; summaries.
            IndexError: no such token or batch row.
        """
        entries = list(self._entries.values())
        if stack is not None:
            entries = [entry for entry in entries if entry.stack == stack] or [*self.subset(stack)._entries.values()]
        entries = [entry for entry in entries if entry.kind != "cross"]
        stacks = list(dict.fromkeys(entry.stack for entry in entries))
        if len(stacks) != 1:
            choices = " or ".join(f"stack={name!r}" for name in stacks)
            raise ValueError(
                f"rollout follows one stack, and there are {len(stacks)}: say {choices}"
                if stacks
                else "rollout follows self-attention, and there is none here"
            )
        numbers = [entry.layer for entry in entries]
        if not self.has_all_layers or (None not in numbers and numbers != list(range(len(entries)))):
            raise ValueError(
                f"rollout needs every layer of the stack, and there are {numbers} here: watch without layers="
            )
        sizes = {(entry.shape[0], *entry.shape[2:]) for entry in entries}
        if len(sizes) > 1 or any(queries != keys for _, queries, keys in sizes):
            raise ValueError(
                f"rollout needs layers with as many queries as keys, all of one size: {self._sizes(entries)}"
            )
        batch_size, num_tokens, _ = sizes.pop()
        for name, number, count in (("token", token, num_tokens), ("batch row", batch, batch_size)):
            if not 0 <= number < count:
                raise IndexError(f"there is no {name} {number}: there are {count}, counted from 0")
        maps = []
        for entry in entries:
            if entry.heads is not None:
                raise ValueError(f"rollout takes all heads of a layer, and {entry.path} was watched with heads= alone")
            m = entry.map()
            if isinstance(m, AttentionSummary):
                raise ValueError(m.refusal("rollout"))
            maps.append(m)
        return rollout(maps, token, batch)

    def plot_heads(self, stack: str | None = None, *, batch: int = 0) -> Figure:
        """Layers x heads as small pictures, each with the type of its head: a matplotlib figure.

        `regard.lens.display` draws it, as it does `to_html`.

        Args:
            stack: the layers, if there are several stacks: "encoder", "decoder", "cross"; the first by default.
            batch: the batch row.

        Raises:
            ImportError: matplotlib is not installed.
            IndexError: no such batch row.
            KeyError: no such stack.
            ValueError: there is nothing to draw; NaN or infinity in queries or keys.
        """
        return display.plot_heads(self, stack, batch=batch)

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
        image_index: int = 0,
        patches: Sequence[int] | Mapping[str, Any] | None = None,
        context: Mapping[str, Any] | None = None,
        effects: Any = (),
    ) -> str:
        """An interactive page of the attention: one file that needs no network.

        It contains queries, keys and values, no maps: the page computes each row by itself, within 1e-3 of a weight.
        For heads that do not fit it contains pictures and the strongest pairs, and lists what it left out. Call `label`
        first, so that it shows tokens and not positions.

        Args:
            path: the file to write, by an atomic write.
            title: the title; by default the tokens.
            model: the model's name.
            max_size: the largest size of the page in bytes; math.inf for any size.
            batch: the text of a batch.
            heads: (layer or path, head) of the heads that the page must contain; by default all that fit, first the one
                of `regard.lens.recording.head_selection.most_informative_head`.
            image: the image that a vision model read, on which its patches are drawn: a path, the bytes of a PNG, JPEG,
                GIF or WebP file, or a ``PIL.Image``.
            image_index: which image of the text it is, where the model read several.
            patches: where its patches are, if the recording does not know: (rows, columns), or with the token that is
                the first patch (first, rows, columns). For some attentions {path: (rows, columns)}, with a path or a
                word as for `subset`; None for one that has none, {"queries": (rows, columns)} for one side of it.
            context: words in several sentences, to be compared: the ``to_dict()`` of a study from
                `regard.lens.text.contextual`.
            effects: what mattered to a metric: a result of `regard.effect` for the same text, or several.

        Returns:
            The page as a text.

        Raises:
            InputError: the path cannot be written; an image that cannot be read.
            TypeError: an argument of another type.
            ValueError: there is nothing to show; max_size too small for any page; patches that do not fit.
            IndexError: no such batch row, head or image.
            KeyError: no such layer or path.
        """
        options: dict[str, Any] = {"title": title, "model": model, "max_size": max_size, "batch": batch, "heads": heads}
        options |= {"image": image, "image_index": image_index, "patches": patches}
        return display.render_page(self, path, context=context, effects=effects, **options)

    def _repr_html_(self) -> str | None:
        """The page in a frame, for notebooks; None if there is nothing to show: they then print the recording."""
        return display.render_notebook(self)

    def save(self, path: str | Path) -> None:
        """Write the recording to a safetensors file by an atomic write; `load` reads it.

        Queries, keys, values, masks and biases are kept bit for bit. Tensors that layers share are written once. A
        `mask.where` is written as the tensor of its results.

        Raises:
            InputError: the path cannot be written; a mask or bias that is too large as a tensor.
            RuntimeError: tensors were changed in place since the model ran.
        """
        writer = RecordingWriter()
        attentions = []
        for entry in self._entries.values():
            m = entry.map()
            fields = {name: getattr(entry, name) for name in _ENTRY_FIELDS} | {"tokens": m.tokens}
            attentions.append({**fields, "patches": entry.patches.to_json(), "data": map_to_json(m, writer)})
        header = {"notes": self._notes, "has_all_layers": self.has_all_layers, "model_class": self.model_class}
        write_recording(path, header | {"attentions": attentions}, writer)

    @classmethod
    def load(cls, path: str | Path) -> Recording:
        """Read a file that `save` wrote; its maps give the same answers.

        Raises:
            InputError: the file is missing, truncated, or something else; a newer regard wrote it.
        """
        header, reader = read_recording(path)
        recording = cls()
        with damage_as_input_error(path):
            recording.has_all_layers = bool(header["has_all_layers"])
            recording.model_class = header.get("model_class", "")
            require_type("model_class", recording.model_class, str)
            for text in header["notes"]:
                require_type("notes", text, str)
                recording.add_note(text)
            for attention in header["attentions"]:
                fields = {name: attention[name] for name in _ENTRY_FIELDS}
                fields |= {name: None if fields[name] is None else tuple(fields[name]) for name in ("shape", "heads")}
                tokens = fields.pop("tokens")
                source = map_from_json(attention["data"], reader)
                validate_entry(fields, source)
                patches = AttentionPatches.from_json(attention.get("patches", {}))
                patches.validate(fields["shape"])
                entry = RecordingEntry(**fields, source=source, patches=patches)
                if tokens is not None:
                    entry.label(tuple(tokens))
                recording._entries[entry.path] = entry
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
        for path, entry in self._entries.items():
            batch, heads, queries, keys = entry.shape
            size = f"{queries} x {keys}" if batch == 1 else f"{batch} x {queries} x {keys}"
            error = entry.error_text()
            rows.append((path, entry.kind or "?", str(heads), size, entry.mask, entry.kernel or "?", error))
        widths = [max(map(len, column)) for column in zip(*rows, strict=True)]
        lines = ["  ".join(f"{cell:{width}}" for cell, width in zip(row, widths, strict=True)).rstrip() for row in rows]
        return "\n".join([*lines, *self._notes])

    def _without_entries(self) -> Recording:
        part = Recording()
        part._notes, part.has_all_layers, part.model_class = self._notes, self.has_all_layers, self.model_class
        return part

    def _sizes(self, entries: Sequence[RecordingEntry] | None = None) -> str:
        """The numbers of queries and keys, for a message: each size once."""
        sizes: dict[tuple[int, int, int], list[str]] = {}
        for entry in self._entries.values() if entries is None else entries:
            batch, _, queries, keys = entry.shape
            sizes.setdefault((batch, queries, keys), []).append(entry.path)
        return "; ".join(
            f"{paths[0]}{f' and {len(paths) - 1} more' if len(paths) > 1 else ''} "
            f"{'has' if len(paths) == 1 else 'have'} {queries} queries x {keys} keys"
            f"{f' in each of {batch} texts, which take a list of lists' if batch > 1 else ''}"
            for (batch, queries, keys), paths in sizes.items()
        )


_ENTRY_FIELDS = ("path", "shape", "mask", "kernel", "kind", "layer", "heads", "tokens")
