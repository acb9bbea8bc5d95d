"""The calls of one attention module as one map: a forward pass, or all steps of a generation with a cache."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import replace
from typing import Any

import torch
from torch import Tensor

from regard.lens.capture.call import CapturedCall, MaskParser, VersionGuard
from regard.lens.capture.keys import (
    are_computed_anew,
    checksums,
    is_same_place,
    match_rows,
    may_grow_in_place,
    once_per_group,
)
from regard.lens.capture.merge import CallStep, is_causal, merge_steps
from regard.lens.maps.map import AttentionMap
from regard.lens.maps.patches import NO_PATCHES, AttentionPatches
from regard.lens.maps.summary import AttentionSummary

MAX_ROUNDING = 0.25
"""By how much a quantized cache may change keys, as a share of their norm; 2 bits change it by about 0.2."""


class CallSequence:
    """A call of a module, and the later calls that continue it.

    A call continues the sequence if its keys begin with the keys of the calls before; see `extend`.

    Args:
        path: the path in the recording.
        kind: "self" or "cross".
        layer: the layer's number among the attentions of its kind.
        call: the first call.
        parse: reads an ``attn_mask``.
        heads: the heads to show; None for all.
        patches: which of its tokens are patches of an image.
    """

    def __init__(
        self,
        path: str,
        kind: str,
        layer: int,
        call: CapturedCall,
        parse: MaskParser,
        heads: Sequence[int] | None = None,
        patches: AttentionPatches = NO_PATCHES,
    ) -> None:
        self.path, self.kind, self.layer, self.parse, self.patches = path, kind, layer, parse, patches
        self.heads = None if heads is None else [head for head in heads if head < call.shape[1]]
        self.steps = [CallStep(call, 0, call.shape[2])]
        self.key_value_parts = [(call.k, call.v)]
        """All keys and values, in parts."""
        self.num_keys = call.shape[3]
        is_growing = kind == "cross" or call.shape[2] >= call.shape[3]
        self.num_earlier_keys = 0 if is_growing else max(0, call.num_written_keys - call.shape[2])
        """The keys in the cache before the first query."""
        self.last_keys = call.k
        """The keys of the last call."""
        self.last_order: Tensor | None = None
        """How the batch rows changed places at the last call."""
        self.shares_buffer = False
        """Whether several calls read one tensor of keys, which may be written again."""
        self.checksums = checksums(call.k) if may_grow_in_place(call) else None
        self.first_key_value: tuple[Tensor, Tensor] | None = None
        """The first key and value of a buffer that is full: a window's next call drops them."""
        self.ensure_versions = VersionGuard(*call.tensors())
        self.summary: AttentionSummary | None = None
        """The answers, where the call itself is not kept."""

    @property
    def shape(self) -> tuple[int, int, int, int]:
        """(batch, heads, queries, keys)."""
        batch, heads = self.first_call.shape[:2]
        return batch, heads if self.heads is None else len(self.heads), self.num_queries, self.num_keys

    @property
    def first_call(self) -> CapturedCall:
        """The call that the others continue."""
        return self.steps[0].call

    @property
    def num_queries(self) -> int:
        """The number of queries of all calls."""
        return sum(step.num_rows for step in self.steps)

    @property
    def num_written_keys(self) -> int:
        """The keys in the cache after the last call: the earlier ones, and one of each query."""
        return self.num_earlier_keys + self.num_queries

    @property
    def mask_label(self) -> str:
        """The mask in words; nothing is computed for it."""
        if len(self.steps) > 1 and is_causal(self.steps, cross=self.kind == "cross"):
            return "causal()"
        labels = list(dict.fromkeys(step.call.mask_label for step in self.steps))
        return labels[0] if len(labels) == 1 else "of each step"

    def summarize(self) -> None:
        """Compute the usual answers now, and drop the tensors."""
        self.summary = AttentionSummary.from_map(self.map(), cross=self.kind == "cross")
        call, empty = self.first_call, self.last_keys.new_empty(())
        q, k, v = (empty.expand(t.shape) for t in (call.q, call.k, call.v))
        self.steps = [replace(self.steps[0], call=replace(call, q=q, k=k, v=v, bias=None, sinks=None, sample=None))]
        self.last_keys, self.key_value_parts, self.checksums = k, [(k, v)], None
        self.ensure_versions = VersionGuard()

    def extend(self, call: CapturedCall, order: Tensor | None = None) -> bool:
        """Append a call if its keys begin with the former keys; returns whether they do.

        They are equal number for number, or but for the rounding of keys that are computed anew. The batch rows
        may have changed places, as the beams of a search do; and the last keys may be missing that the former call
        wrote, as where guessed tokens were refused.

        Args:
            call: the call.
            order: for cross-attention, which batch row each row was in the former call; None if all stay.
        """
        first = self.first_call
        if self.summary is not None or call.from_weights != first.from_weights:
            return False
        if (call.sinks is None) != (first.sinks is None) or not _scores_alike(call, first):
            return False
        if first.project is not None or call.project is not None or call.q.shape[:2] != first.q.shape[:2]:
            return False
        call = once_per_group(call, self.last_keys.shape[1])
        if self.last_keys.shape[1] % call.k.shape[1] or call.k.shape[0] != first.k.shape[0]:
            return False
        self._restore_rolled_buffer(call)
        # Keys that were repeated for each head of a group in the prompt may come once per group now.
        former = self.last_keys[:, :: self.last_keys.shape[1] // call.k.shape[1]]
        same_source = self.kind == "cross" and call.k.shape == former.shape and torch.equal(call.k, former)
        if same_source or self._is_same_buffer(call):
            self._read_buffer(call, order if self.kind == "cross" else None)
            return True
        if self.kind == "cross" or call.k.data_ptr() == former.data_ptr():
            return False  # the same memory with other numbers shows nothing of the former keys
        count = call.shape[3] - call.shape[2]
        """The former keys, where the last keys are those of the queries."""
        is_whole, is_free = former.shape[2] == self.num_keys, not self.shares_buffer
        has_grown = is_free and is_whole and count == self.num_keys
        ways = (
            (self._grow, former, has_grown),
            (self._read_copy, former[:, :, : self.num_written_keys], self._has_room_for(call)),
            (self._slide, former[:, :, -count:], is_free and 0 < count <= former.shape[2]),
            (self._shorten, former[:, :, :count], is_free and is_whole and self._drops_last_rows(count)),
        )
        for append, former_keys, is_possible in ways:
            if is_possible:
                is_same, order = match_rows(call.k, former_keys)
                if is_same:
                    append(call, order)
                    return True
        if has_grown and are_computed_anew(call.k, former):
            self._grow(call, None)
            return True
        return False

    def resembles(self, call: CapturedCall) -> bool:
        """Whether the call has nearly the keys of the former calls, rounded, and those of its own queries."""
        count, former = call.shape[3] - call.shape[2], self.last_keys
        k = call.k[:, :, :count]
        is_continued = self.summary is None and count == self.num_written_keys and former.shape == k.shape
        if not is_continued or not _scores_alike(call, self.first_call):
            return False
        return bool((k - former).norm() < MAX_ROUNDING * former.norm())

    def _read_buffer(self, call: CapturedCall, order: Tensor | None) -> None:
        """Append a call that reads the tensor of the former ones, which may hold room behind the written keys."""
        self.shares_buffer, self.num_keys, self.key_value_parts = True, call.shape[3], [(call.k, call.v)]
        self._append(call, 0, order)

    def _read_copy(self, call: CapturedCall, order: Tensor | None) -> None:
        """Append a call that reads a copy of the buffer; once it is full, nothing of it has to be cut off."""
        self._read_buffer(call, order)
        self.shares_buffer = self.num_written_keys < self.num_keys

    def _grow(self, call: CapturedCall, order: Tensor | None) -> None:
        """Append a call that has all keys, those of the new queries last."""
        self.num_keys, self.key_value_parts = call.shape[3], [(call.k, call.v)]
        self._append(call, 0, order)

    def _slide(self, call: CapturedCall, order: Tensor | None) -> None:
        """Append a call with a window: the last of the former keys, then those of the new queries."""
        queries, keys = call.shape[2:]
        self.num_keys += queries
        step = self.key_value_parts[0][0].shape[1] // call.k.shape[1]
        rows = slice(None) if order is None else order
        self.key_value_parts = [(k[rows, ::step], v[rows, ::step]) for k, v in self.key_value_parts]
        self.key_value_parts.append((call.k[:, :, -queries:].clone(), call.v[:, :, -queries:].clone()))
        self._append(call, self.num_keys - keys, order)

    def _shorten(self, call: CapturedCall, order: Tensor | None) -> None:
        """Append a call whose cache lacks the last keys of the former call, as those of refused tokens."""
        self.steps[-1].num_rows -= self.num_keys - (call.shape[3] - call.shape[2])
        self._grow(call, order)

    def _drops_last_rows(self, count: int) -> bool:
        """Whether a cache of so many keys lacks some that the last call wrote for several tokens at once."""
        return self.num_keys == self.num_queries and 0 < self.num_keys - count < self.steps[-1].num_rows

    def _has_room_for(self, call: CapturedCall) -> bool:
        """Whether the keys may be those of a cache of full length, which is copied for each call or made anew.

        Its mask tells which keys are written. The first call may have got the written keys only.
        """
        written = self.num_written_keys + call.shape[2]
        is_larger = len(self.key_value_parts) == 1 and self.num_keys <= call.shape[3] >= written
        return is_larger and call.num_written_keys == written

    def _restore_rolled_buffer(self, call: CapturedCall) -> None:
        """Where the keys of a full buffer moved by one place, for a key after a window's last: make the former ones."""
        if self.first_key_value is None or self.checksums is None or not is_same_place(call.k, self.last_keys):
            return
        if call.shape[2] == 1 and torch.equal(checksums(call.k)[:, :-1], self.checksums[:, 1:]):
            first_k, first_v = self.first_key_value
            k, v = torch.cat([first_k, call.k[:, :, :-1]], 2), torch.cat([first_v, call.v[:, :, :-1]], 2)
            self.last_keys, self.key_value_parts, self.shares_buffer = k, [(k, v)], False

    def _is_same_buffer(self, call: CapturedCall) -> bool:
        """The memory of the last call's keys, with more keys in it; or the same keys of a source."""
        k, former = call.k, self.last_keys
        if len(self.key_value_parts) > 1 or not is_same_place(k, former) or former.shape[2] > k.shape[2]:
            return False
        filled = self.num_written_keys
        now = filled + call.shape[2]
        if self.kind == "self" and now != k.shape[2] and (now > k.shape[2] or not call.has_mask):
            return False
        count = former.shape[2] if self.kind == "cross" else filled
        return self.checksums is None or torch.equal(checksums(k[:, :, :count]), self.checksums[:, :count])

    def _append(self, call: CapturedCall, first_key: int, order: Tensor | None = None) -> None:
        """Append a call without its keys, which `key_value_parts` holds for all calls."""
        if len(self.steps) == 1:
            self.steps[0].call = _without_keys(self.first_call)
        self.last_order = order
        if order is not None:
            for step in self.steps:
                step.move(order)
        self.steps.append(CallStep(_without_keys(call), first_key, call.shape[2]))
        # The buffer of a window may be written again.
        self.last_keys = call.k if call.shape[3] == self.num_keys else call.k.clone()
        self.checksums = checksums(call.k) if self.shares_buffer else None
        is_full = self.shares_buffer and self.num_written_keys == call.shape[3]
        self.first_key_value = (call.k[:, :, :1].clone(), call.v[:, :, :1].clone()) if is_full else None
        self.ensure_versions = VersionGuard(*self.tensors())

    def tensors(self) -> Iterator[Tensor]:
        """Every tensor that the map is computed from."""
        for pair in self.key_value_parts:
            yield from pair
        for step in self.steps:
            yield from step.call.tensors()

    def replace_tensors(self, copies: dict[int, Tensor]) -> None:
        """Use copies instead of some tensors, which are given by their id."""
        self.key_value_parts = [(copies.get(id(k), k), copies.get(id(v), v)) for k, v in self.key_value_parts]
        for step in self.steps:
            changes: dict[str, Any] = {
                name: copies[id(t)]
                for name in ("q", "k", "v", "attn_mask")
                if (t := getattr(step.call, name)) is not None and id(t) in copies
            }
            step.call = replace(step.call, **changes)
        self.ensure_versions = VersionGuard(*self.tensors())

    def map(self) -> AttentionMap:
        """All calls as one map.

        Raises:
            RuntimeError: a tensor that it is computed from was changed in place.
        """
        self.ensure_unchanged()
        # Projections belong to this map only, so nobody changes them.
        m = self._make_map(self.ensure_unchanged if self.first_call.project is None else None)
        return m if self.heads is None else m.select(heads=self.heads)

    def ensure_unchanged(self) -> None:
        """Raise if a tensor was changed in place.

        Raises:
            RuntimeError: it was.
        """
        self.ensure_versions()
        if len(self.steps) == 1 and not any(t.is_inference() for t in self.tensors()):
            return
        # Tensors of inference mode have no version, and caches are meant to be changed. So the map itself is checked.
        m = self._make_map(None)
        if m.sample is not None and not m.verified:
            raise RuntimeError(
                f"{self.path}: this map does not give what the model computed (error {m.error:.2g}). A tensor that it "
                "is computed from was changed in place: a ring or a static cache, the reordering of a beam search. "
                'Watch with keep="summary", or give the model a growing cache'
            )

    def _make_map(self, ensure_unchanged: Callable[[], None] | None) -> AttentionMap:
        if len(self.steps) == 1:
            return self.first_call.map(self.parse, ensure_unchanged)
        cross = self.kind == "cross"
        return merge_steps(
            self.steps,
            self.key_value_parts,
            self.parse,
            ensure_unchanged,
            cross=cross,
            shares_buffer=self.shares_buffer,
            num_earlier_keys=self.num_earlier_keys,
        )


def _scores_alike(a: CapturedCall, b: CapturedCall) -> bool:
    """Whether products of queries and keys become scores in the same way: a map has one scale and one softcap."""
    scales = (call.q.shape[-1] ** -0.5 if call.scale is None else call.scale for call in (a, b))
    return a.softcap == b.softcap and len(set(scales)) == 1


def _without_keys(call: CapturedCall) -> CapturedCall:
    """The call with the shapes of its keys and values only."""
    k, v = (torch.empty((), dtype=t.dtype, device=t.device).expand(t.shape) for t in (call.k, call.v))
    return replace(call, k=k, v=v)
