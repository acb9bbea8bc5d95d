"""The calls of one attention module as one map: a forward pass, or all steps of a generation with a cache."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import replace
from typing import Any

import torch
from torch import Tensor

from regard.lens.capture.call import CapturedCall, MaskParser, VersionGuard
from regard.lens.capture.merge import CallStep, is_causal, merge_steps
from regard.lens.maps.map import AttentionMap
from regard.lens.maps.patches import NO_PATCHES, AttentionPatches
from regard.lens.maps.summary import AttentionSummary


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
        self.last_keys = call.k
        """The keys of the last call."""
        self.last_order: Tensor | None = None
        """How the batch rows changed places at the last call."""
        self.shares_buffer = False
        """Whether several calls read one tensor of keys, which may be written again."""
        self.checksums = _checksums(call.k) if _may_grow_in_place(call) else None
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
        """Append a call if its keys begin with the former keys, number for number; returns whether they do.

        The batch rows may have changed places, as the beams of a search do; and the last keys may be missing that the
        former call wrote, as where guessed tokens were refused.

        Args:
            call: the call.
            order: for cross-attention, which batch row each row was in the former call; None if all stay.
        """
        first = self.first_call
        if self.summary is not None or call.from_weights != first.from_weights:
            return False
        if (call.sinks is None) != (first.sinks is None):
            return False
        if first.project is not None or call.project is not None or call.q.shape[:2] != first.q.shape[:2]:
            return False
        call = _once_per_group(call, self.last_keys.shape[1])
        if self.last_keys.shape[1] % call.k.shape[1] or call.k.shape[0] != first.k.shape[0]:
            return False
        # Keys that were repeated for each head of a group in the prompt may come once per group now.
        former = self.last_keys[:, :: self.last_keys.shape[1] // call.k.shape[1]]
        same_source = self.kind == "cross" and call.k.shape == former.shape and torch.equal(call.k, former)
        if same_source or self._is_same_buffer(call) or self._is_copied_static_cache(call, former):
            self.shares_buffer, self.num_keys, self.key_value_parts = True, call.shape[3], [(call.k, call.v)]
            self._append(call, 0, order if self.kind == "cross" else None)
            return True
        if self.shares_buffer or self.kind == "cross" or call.k.data_ptr() == former.data_ptr():
            return False  # the same memory with other numbers shows nothing of the former keys
        queries, keys = call.shape[2:]
        if self._is_growing_cache(call, former):
            self._grow(call, None)
        elif self._is_sliding_window(call, former):
            self.num_keys += queries
            step = self.key_value_parts[0][0].shape[1] // call.k.shape[1]
            self.key_value_parts = [(k[:, ::step], v[:, ::step]) for k, v in self.key_value_parts]
            self.key_value_parts.append((call.k[:, :, -queries:].clone(), call.v[:, :, -queries:].clone()))
            self._append(call, self.num_keys - keys)
        elif self._is_shortened_cache(call, former):
            self.steps[-1].num_rows -= self.num_keys - (keys - queries)
            self._grow(call, None)
        elif (order := self._find_order(call, former)) is not None:
            self._grow(call, order)
        else:
            return False
        return True

    def _grow(self, call: CapturedCall, order: Tensor | None) -> None:
        self.num_keys, self.key_value_parts = call.shape[3], [(call.k, call.v)]
        self._append(call, 0, order)

    def _is_shortened_cache(self, call: CapturedCall, former: Tensor) -> bool:
        """All former keys but the last ones, which the former call wrote for several tokens at once."""
        count = call.shape[3] - call.shape[2]
        dropped = self.num_keys - count
        is_whole = former.shape[2] == self.num_keys == self.num_queries
        return (
            is_whole
            and 0 < dropped < self.steps[-1].num_rows
            and torch.equal(call.k[:, :, :count], former[:, :, :count])
        )

    def _find_order(self, call: CapturedCall, former: Tensor) -> Tensor | None:
        """Which batch row each row was, where a cache that grows has all former keys in other rows; None if not."""
        count, batch = former.shape[2], len(former)
        if batch == 1 or not count == self.num_keys == call.shape[3] - call.shape[2]:
            return None
        now = call.k[:, :, :count]
        # Of equal rows the one in its old place is taken.
        sums, former_sums = (t.double().sum((1, 2, 3)) for t in (now, former))
        same = (sums[:, None] == former_sums).double() + torch.eye(batch, device=now.device) / 2
        order = same.argmax(-1)
        return order if torch.equal(now, former[order]) else None

    def _is_growing_cache(self, call: CapturedCall, former: Tensor) -> bool:
        """A cache that is concatenated for each call: all former keys, then those of the new queries."""
        count = former.shape[2]
        return count == self.num_keys == call.shape[3] - call.shape[2] and torch.equal(call.k[:, :, :count], former)

    def _is_sliding_window(self, call: CapturedCall, former: Tensor) -> bool:
        """A window: the last of the former keys, then those of the new queries."""
        count = call.shape[3] - call.shape[2]
        return 0 < count <= former.shape[2] and torch.equal(
            call.k[:, :, :count], former[:, :, former.shape[2] - count :]
        )

    def _is_copied_static_cache(self, call: CapturedCall, former: Tensor) -> bool:
        """A cache of full length that is copied for each call: the mask tells which keys are written."""
        filled, (queries, keys) = self.num_queries, call.shape[2:]
        if self.kind == "cross" or len(self.key_value_parts) > 1 or keys != self.num_keys or filled + queries > keys:
            return False
        return call.has_mask and torch.equal(call.k[:, :, :filled], former[:, :, :filled])

    def _is_same_buffer(self, call: CapturedCall) -> bool:
        """The memory of the last call's keys, with more keys in it; or the same keys of a source."""
        k, former = call.k, self.last_keys
        place, former_place = ((t.data_ptr(), t.stride(), t.shape[:2]) for t in (k, former))
        if len(self.key_value_parts) > 1 or place != former_place or former.shape[2] > k.shape[2]:
            return False
        filled = self.num_queries
        now = filled + call.shape[2]
        if self.kind == "self" and now != k.shape[2] and (now > k.shape[2] or not call.has_mask):
            return False
        count = former.shape[2] if self.kind == "cross" else filled
        return self.checksums is None or torch.equal(_checksums(k[:, :, :count]), self.checksums[:, :count])

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
        self.checksums = _checksums(call.k) if self.shares_buffer else None
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
        )


def _once_per_group(call: CapturedCall, num_heads: int) -> CapturedCall:
    """The call with so many heads of keys, if it repeats each for the heads of a group."""
    times, rest = divmod(call.k.shape[1], num_heads)
    if times < 2 or rest:
        return call
    k, v = (t[:, ::times] for t in (call.k, call.v))
    is_repeated = all(torch.equal(t, few.repeat_interleave(times, 1)) for t, few in ((call.k, k), (call.v, v)))
    return replace(call, k=k, v=v) if is_repeated else call


def _checksums(k: Tensor) -> Tensor:
    """(batch, keys): one number per key, which shows whether the key was changed."""
    return k.sum((1, 3))


def _may_grow_in_place(call: CapturedCall) -> bool:
    """Whether the memory behind these keys may receive more keys."""
    k = call.k
    return call.project is None and (call.shape[2] < k.shape[2] or k.stride(1) > k.shape[2] * k.stride(2))


def _without_keys(call: CapturedCall) -> CapturedCall:
    """The call with the shapes of its keys and values only."""
    k, v = (torch.empty((), dtype=t.dtype, device=t.device).expand(t.shape) for t in (call.k, call.v))
    return replace(call, k=k, v=v)
