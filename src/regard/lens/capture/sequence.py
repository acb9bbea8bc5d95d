"""The calls of one attention module: one forward pass, or all steps of a generation stitched together."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import replace

import torch
from torch import Tensor
from torch.nn.functional import pad

from regard.attention import mask as masks
from regard.attention.bias import PositionBias
from regard.lens.capture.call import Changed, Masked, Seen, Spoken
from regard.lens.maps.inputs import OutputSample
from regard.lens.maps.map import AttentionMap

__all__ = ["Track"]


class Track:
    """One forward pass of a module, with what later calls add to it.

    A call goes on where the last one ended if its keys say so; see `goes_on`.

    Args:
        path: name in the recording.
        kind: "self" or "cross".
        layer: running number among those of its kind.
        seen: the first call.
        masked: takes an ``attn_mask`` apart.
        heads: which heads are asked for; None for all.
    """

    def __init__(
        self, path: str, kind: str, layer: int, seen: Seen, masked: Masked, heads: Sequence[int] | None = None
    ) -> None:
        self.path, self.kind, self.layer, self.masked = path, kind, layer, masked
        self.heads = None if heads is None else [head for head in heads if head < seen.shape[1]]
        self.calls = [seen]
        self.firsts = [0]
        """The number of the first key of each call, among all keys."""
        self.keys = [(seen.k, seen.v)]
        """All keys and values, in pieces."""
        self.total = seen.shape[3]
        self.last = seen.k
        """The keys of the last call."""
        self.fixed = False
        """Whether several calls read one tensor, in which keys may be written again."""
        self.sums = _sums(seen.k) if _has_room(seen) else None
        self.fresh = Changed(*seen.tensors())

    @property
    def shape(self) -> tuple[int, int, int, int]:
        """(batch, heads, queries, keys)."""
        batch, heads = self.calls[0].shape[:2]
        return batch, heads if self.heads is None else len(self.heads), self.filled, self.total

    @property
    def filled(self) -> int:
        """How many queries there were."""
        return sum(call.shape[2] for call in self.calls)

    @property
    def mask(self) -> str:
        """The mask in a word, for which nothing is computed."""
        if len(self.calls) > 1 and self._is_causal():
            return "causal()"
        said = list(dict.fromkeys(call.mask_in_words for call in self.calls))
        return said[0] if len(said) == 1 else "of each step"

    def goes_on(self, seen: Seen) -> bool:
        """Take a call if it goes on from the last one: if its keys are the former keys, to the last number."""
        first = self.calls[0]
        if first.projected is not None or seen.projected is not None or seen.q.shape[:2] != first.q.shape[:2]:
            return False
        if self.last.shape[1] % seen.k.shape[1] or seen.k.shape[0] != first.k.shape[0]:
            return False
        # What was repeated for each of its heads in the prompt may no longer be.
        before = self.last[:, :: self.last.shape[1] // seen.k.shape[1]]
        if self._written_in_place(seen) or self._static(seen, before):
            self.fixed, self.total, self.keys = True, seen.shape[3], [(seen.k, seen.v)]
            self._take(seen, 0)
            return True
        queries, keys = seen.shape[2:]
        if self.fixed or self.kind == "cross" or not (self._grown(seen, before) or self._slid(seen, before)):
            return False
        self.total += queries
        if keys == self.total:
            self.keys = [(seen.k, seen.v)]
        else:
            step = self.keys[0][0].shape[1] // seen.k.shape[1]
            self.keys = [(k[:, ::step], v[:, ::step]) for k, v in self.keys]
            self.keys.append((seen.k[:, :, -queries:].clone(), seen.v[:, :, -queries:].clone()))
        self._take(seen, self.total - keys)
        return True

    def _grown(self, seen: Seen, before: Tensor) -> bool:
        """A cache that is joined anew for each call: all former keys, and those of the new queries."""
        known = before.shape[2]
        return known == self.total == seen.shape[3] - seen.shape[2] and torch.equal(seen.k[:, :, :known], before)

    def _slid(self, seen: Seen, before: Tensor) -> bool:
        """A window: the last of the former keys, and those of the new queries."""
        old = seen.shape[3] - seen.shape[2]
        return 0 < old <= before.shape[2] and torch.equal(seen.k[:, :, :old], before[:, :, before.shape[2] - old :])

    def _static(self, seen: Seen, before: Tensor) -> bool:
        """A cache of full length that is copied for each call: the mask says what is written."""
        filled, (queries, keys) = self.filled, seen.shape[2:]
        if self.kind == "cross" or len(self.keys) > 1 or keys != self.total or filled + queries > keys:
            return False
        return seen.is_masked and torch.equal(seen.k[:, :, :filled], before[:, :, :filled])

    def _written_in_place(self, seen: Seen) -> bool:
        """The memory of the last call, with more keys in it; or the keys of a source, as they were."""
        k, before = seen.k, self.last
        here, there = ((t.data_ptr(), t.stride(), t.shape[:2]) for t in (k, before))
        if len(self.keys) > 1 or here != there or before.shape[2] > k.shape[2]:
            return False
        filled = self.filled
        now = filled + seen.shape[2]
        if self.kind == "self" and now != k.shape[2] and (now > k.shape[2] or not seen.is_masked):
            return False
        known = before.shape[2] if self.kind == "cross" else filled
        return self.sums is None or torch.equal(_sums(k[:, :, :known]), self.sums[:, :known])

    def _take(self, seen: Seen, first: int) -> None:
        """Its keys are held by the track: each call has those of all before it."""
        if len(self.calls) == 1:
            self.calls[0] = _without_keys(self.calls[0])
        self.calls.append(_without_keys(seen))
        self.firsts.append(first)
        # A window may be a ring that is written again.
        self.last = seen.k if seen.shape[3] == self.total else seen.k.clone()
        self.sums = _sums(seen.k) if self.fixed else None
        self.fresh = Changed(*self.held())

    def held(self) -> Iterator[Tensor]:
        """Every tensor that the map is computed from."""
        for pair in self.keys:
            yield from pair
        for call in self.calls:
            yield from call.tensors()

    def swap(self, copies: dict[int, Tensor]) -> None:
        """Hold copies in place of some tensors, which are named by their id."""
        self.keys = [(copies.get(id(k), k), copies.get(id(v), v)) for k, v in self.keys]
        self.calls = [
            replace(
                call,
                **{
                    name: copies.get(id(t), t)
                    for name in ("q", "k", "v", "attn_mask")
                    if (t := getattr(call, name)) is not None
                },
            )
            for call in self.calls
        ]
        self.fresh = Changed(*self.held())

    def map(self) -> AttentionMap:
        """All of it as one map.

        Raises:
            RuntimeError: a tensor that it is computed from was changed since.
        """
        self._check()
        made = self._made(self._check if self.calls[0].projected is None else None)  # projections are no one else's
        return made if self.heads is None else made.select(heads=self.heads)

    def _made(self, fresh: Callable[[], None] | None) -> AttentionMap:
        return self.calls[0].map(self.masked, fresh) if len(self.calls) == 1 else self._stitched(fresh)

    def _check(self) -> None:
        """Refuse to go on if anything was changed since.

        Raises:
            RuntimeError: it was.
        """
        self.fresh()
        if len(self.calls) == 1 and not any(t.is_inference() for t in self.held()):
            return
        # Tensors of inference mode count no changes, and caches are there to be changed: does the map still give what
        # the model computed?
        made = self._made(None)
        if made.sample is not None and not made.verified:
            raise RuntimeError(
                f"{self.path}: this map does not give what the model computed (error {made.error:.2g}). What it is "
                "computed from was changed in place since: a ring or a static cache, the reordering of a beam search. "
                'Watch with keep="summary", or give the model a growing cache'
            )

    def _stitched(self, fresh: Callable[[], None] | None) -> AttentionMap:
        first = self.calls[0]
        queries, keys = self.shape[2:]
        k, v = (torch.cat(pieces, 2) if len(pieces) > 1 else pieces[0] for pieces in zip(*self.keys, strict=True))
        q = torch.cat([call.q for call in self.calls], 2)
        mask, bias, even = self._spoken(queries, keys)
        if self.fixed and self.kind == "self" and mask is not None and mask != masks.causal():
            # A static cache is as long as it may become; what nobody may attend to yet is no key.
            may = mask.dense(queries, keys)
            used = int(may.flatten(0, -2).any(0).nonzero().max()) + 1
            mask, k, v = masks.allowed(may[..., :used]), k[:, :, :used], v[:, :, :used]
            bias = bias[..., :used] if isinstance(bias, Tensor) else bias
        lse = [call.lse for call in self.calls]
        return AttentionMap(
            q if even is None else q.masked_fill(even, 0),
            k,
            v,
            mask,
            scale=first.scale,
            bias=bias,
            softcap=first.softcap,
            sinks=first.sinks,
            lse=torch.cat([t for t in lse if t is not None], 2)
            if even is None and all(t is not None for t in lse)
            else None,
            sample=self._sample(),
            kernel=first.kernel,
            ensure_unchanged=fresh,
        )

    def _spoken(self, queries: int, keys: int) -> Spoken:
        """What the calls' masks and biases say together."""
        if self._is_causal() and not any(isinstance(call.bias, Tensor) for call in self.calls):
            bias = self.calls[0].bias
            return Spoken(masks.causal(), bias if isinstance(bias, PositionBias) else None)
        allowed, biases, even = [], [], []
        biased = any(isinstance(call.bias, Tensor) or call.has_numbers for call in self.calls)
        for call, at in zip(self.calls, self.firsts, strict=True):
            said = call.spoken(self.masked)
            height, width = call.shape[2:]
            beside = (at, keys - at - width)
            may = torch.ones(height, width, dtype=torch.bool) if said.mask is None else said.mask.dense(height, width)
            allowed.append(pad(may, beside))
            if biased:
                added = said.bias if isinstance(said.bias, Tensor) else call.q.new_zeros(())
                biases.append(pad(added.expand(*added.shape[:-2], height, width), beside))
            even.append(torch.zeros(height, 1, dtype=torch.bool) if said.even is None else said.even)
        may, alike, bias = _below(allowed), _below(even), self.calls[0].bias
        if biased:
            added = _below(biases)
            bias = added if bool(added.any()) else None
        mask = None if bool(may.all()) else masks.allowed(may)
        return Spoken(mask, bias, alike if bool(alike.any()) else None)

    def _is_causal(self) -> bool:
        """Whether the queries of every call see all keys up to their own."""
        filled = 0
        for call, first in zip(self.calls, self.firsts, strict=True):
            queries, keys = call.shape[2:]
            filled += queries
            if self.kind == "cross" or first or keys != filled or call.attn_mask is not None:
                return False
            one = queries == 1 and call.mask is None and not call.causal
            square = call.causal and queries == keys and call.mask is None
            if not (one or square or call.mask == masks.causal()):
                return False
        return True

    def _sample(self) -> OutputSample | None:
        parts, row = [], 0
        for call in self.calls:
            if call.sample is not None:
                parts.append((call.sample.batch, call.sample.query + row, call.sample.output))
            row += call.shape[2]
        if not parts:
            return None
        batch, query, output = (torch.cat(t) for t in zip(*parts, strict=True))
        return OutputSample(batch, query, output)


def _below(parts: list[Tensor]) -> Tensor:
    """(batch, heads, queries, keys) below one another; batch and heads may be 1 or absent in some."""
    parts = [part[(None,) * (4 - part.ndim)] for part in parts]
    batch, heads = (max(part.shape[axis] for part in parts) for axis in (0, 1))
    return torch.cat([part.expand(batch, heads, -1, -1) for part in parts], 2)


def _sums(k: Tensor) -> Tensor:
    """A number for each key, by which a change of it is noticed; (batch, keys)."""
    return k.sum((1, 3))


def _has_room(seen: Seen) -> bool:
    """Whether keys may come to stand behind these, in the same memory."""
    k = seen.k
    return seen.projected is None and (seen.shape[2] < k.shape[2] or k.stride(1) > k.shape[2] * k.stride(2))


def _without_keys(seen: Seen) -> Seen:
    """The same, its keys and values of their shapes only."""
    k, v = (torch.empty((), dtype=t.dtype, device=t.device).expand(t.shape) for t in (seen.k, seen.v))
    return replace(seen, k=k, v=v)
