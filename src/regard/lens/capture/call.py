"""One attention call of a model: its arguments, sampled rows of its output, and the map that they make."""

from __future__ import annotations

import operator
from collections.abc import Callable, Iterator
from dataclasses import dataclass, replace
from functools import lru_cache, reduce
from typing import Any, NamedTuple

import torch
from torch import Tensor

from regard.attention import mask as masks
from regard.attention.bias import PositionBias
from regard.attention.kernels.call import mask_tensors
from regard.attention.mask import Mask
from regard.attention.mask.geometry import Tile
from regard.lens.capture.eager_pattern import EagerAttention
from regard.lens.maps.inputs import OutputSample
from regard.lens.maps.map import AttentionMap
from regard.lens.maps.verify import HIDING_SCORE

NUM_SAMPLED_ROWS = 8
"""The number of output rows that are kept to verify a map."""
MAX_UNSAMPLED_ROWS = 64
"""Up to this many rows, all of them are kept."""


class MaskAndBias(NamedTuple):
    """An ``attn_mask`` in regard's form."""

    mask: Mask | None
    bias: Tensor | PositionBias | None
    uniform_rows: Tensor | None = None
    """(batch, heads, queries, 1): queries that attend to all keys with equal weights, whatever their scores."""


MaskParser = Callable[[Tensor, int, int], MaskAndBias]
"""Called with an ``attn_mask`` and the numbers of queries and keys."""


class VersionGuard:
    """Detects in-place changes of tensors. Tensors of inference mode have no version, and are not checked."""

    def __init__(self, *tensors: Tensor | None) -> None:
        self.versions = [(t, _version(t)) for t in tensors if t is not None]

    def __call__(self) -> None:
        """Raise if a tensor was changed.

        Raises:
            RuntimeError: a tensor was changed in place.
        """
        for t, version in self.versions:
            if _version(t) != version:
                raise RuntimeError(
                    f"a tensor {tuple(t.shape)} that this map is computed from was changed in place after the model "
                    "used it (a static cache that was written again, an optimizer's step): read the map before "
                    'that, or watch with keep="summary", which computes the answers while the model runs'
                )


def _version(t: Tensor) -> int:
    return 0 if t.is_inference() else t._version


@dataclass(frozen=True)
class CapturedCall:
    """The arguments of one attention, by reference, and sampled rows of its output.

    q, k and v are (batch, heads, tokens, width). Where only the layer's input is known, they have the right shapes and
    no data, and `project` computes them.
    """

    q: Tensor
    k: Tensor
    v: Tensor
    kernel: str
    scale: float | int | None = None
    attn_mask: Tensor | None = None
    """As PyTorch defines it: boolean, True = may attend, or added to the scores."""
    is_causal: bool = False
    """PyTorch's flag: the first query is aligned with the first key."""
    mask: Mask | None = None
    """The mask in regard's form, where it is known."""
    bias: Tensor | PositionBias | None = None
    softcap: float | int | None = None
    sinks: Tensor | None = None
    dropout: float | int = 0.0
    lse: Tensor | None = None
    sample: OutputSample | None = None
    dependencies: tuple[Tensor, ...] = ()
    """Other tensors that the map is computed from."""
    project: Callable[[], tuple[Tensor, Tensor, Tensor]] | None = None
    cross: bool | None = None
    """Whether the keys come from another sequence, where that is known."""
    submodule: str = ""
    """The path, inside the module that was running, of the attention that it computed."""
    from_weights: bool = False
    """Whether the bias and the mask hold the weights that the model itself computed, queries x keys numbers."""

    @property
    def shape(self) -> tuple[int, int, int, int]:
        """(batch, heads, queries, keys)."""
        return (*self.q.shape[:3], self.k.shape[2])

    @property
    def mask_label(self) -> str:
        """The mask in words; nothing is computed for it."""
        labels = []
        if self.mask is not None:
            labels.append(repr(self.mask))
        if self.is_causal:
            labels.append("causal(offset=0)")
        if self.attn_mask is not None:
            labels.append("boolean mask" if self.attn_mask.dtype == torch.bool else "float mask or bias")
        return " & ".join(labels) or "none"

    @property
    def has_mask(self) -> bool:
        """Whether the caller gave a mask, apart from PyTorch's flag."""
        return self.mask is not None or self.attn_mask is not None

    @property
    def num_written_keys(self) -> int:
        """The number of keys up to the last one that the last query may attend to; a cache may hold room behind it."""
        queries, keys = self.shape[2:]
        if self.is_causal:
            return queries
        rows = []
        if self.mask is not None:
            rows.append(self.mask.evaluate(Tile(queries, keys, (queries - 1, queries), (0, keys))))
        if self.attn_mask is not None:
            row = self.attn_mask[..., -1:, :]
            rows.append(row if row.dtype == torch.bool else row > HIDING_SCORE)
        written = keys
        for row in rows:
            attended = row.expand(*row.shape[:-1], keys).reshape(-1, keys).any(0).nonzero()
            if len(attended):
                written = min(written, int(attended[-1]) + 1)
        return written

    @property
    def weights_size(self) -> int:
        """The bytes of the weights that it holds, and of their mask."""
        if not (self.from_weights and isinstance(self.bias, Tensor)):
            return 0
        return self.bias.nbytes + sum(t.nbytes for t in mask_tensors(self.mask))

    @property
    def has_float_mask(self) -> bool:
        """Whether the ``attn_mask`` is added to the scores."""
        return self.attn_mask is not None and self.attn_mask.dtype != torch.bool

    def tensors(self) -> Iterator[Tensor]:
        """Every tensor that the map is computed from."""
        yield from (
            t for t in (self.q, self.k, self.v, self.attn_mask, self.sinks, *self.dependencies) if t is not None
        )
        if isinstance(self.bias, Tensor):
            yield self.bias
        elif self.bias is not None:
            yield from self.bias.parameters()
            yield from self.bias.buffers()
        yield from mask_tensors(self.mask)

    def detach(self) -> CapturedCall:
        """The call without the graphs of its tensors."""

        def detached(t: Tensor | None) -> Tensor | None:
            return None if t is None else t.detach()

        return replace(
            self,
            q=self.q.detach(),
            k=self.k.detach(),
            v=self.v.detach(),
            attn_mask=detached(self.attn_mask),
            bias=self.bias.detach() if isinstance(self.bias, Tensor) else self.bias,
            sinks=detached(self.sinks),
        )

    def unfold_heads(self) -> CapturedCall:
        """The call with (batch, heads, 1, width), where the heads of a group stood on the axis of queries."""

        def unfold(t: Tensor | None) -> Tensor | None:
            return t if t is None or t.ndim < 3 or t.shape[2] == 1 else t.flatten(1, 2).unsqueeze(2)

        sample = self.sample
        if sample is not None:
            batch, group = self.q.shape[0], self.q.shape[2]
            output = sample.output.view(batch, group, *sample.output.shape[1:])  # so few rows that all were kept
            sample = OutputSample(
                torch.arange(batch), torch.zeros(batch, dtype=torch.int64), output.transpose(1, 2).flatten(1, 2)
            )
        q = self.q.flatten(1, 2).unsqueeze(2)
        return replace(self, q=q, attn_mask=unfold(self.attn_mask), lse=unfold(self.lse), sample=sample)

    def mask_and_bias(self, parse: MaskParser) -> MaskAndBias:
        """The masks and biases of the call in regard's form.

        Args:
            parse: reads an ``attn_mask``, as `parse_attn_mask` does.
        """
        parsed = MaskAndBias(None, self.bias) if self.attn_mask is None else parse(self.attn_mask, *self.shape[2:])
        parts = (masks.causal(offset=0) if self.is_causal else None, self.mask, parsed.mask)
        present = [part for part in parts if part is not None]
        return parsed._replace(mask=reduce(operator.and_, present) if present else None)

    def map(self, parse: MaskParser, ensure_unchanged: Callable[[], None] | None = None) -> AttentionMap:
        """The call's attention map. Only the projections are computed now, where they are needed."""
        mask, bias, uniform_rows = self.mask_and_bias(parse)
        q, k, v = (self.q, self.k, self.v) if self.project is None else self.project()
        return AttentionMap(
            q if uniform_rows is None else q.masked_fill(uniform_rows, 0),
            k,
            v,
            mask,
            scale=self.scale,
            bias=bias,
            softcap=self.softcap,
            sinks=self.sinks,
            dropout=self.dropout,
            lse=self.lse if uniform_rows is None else None,
            sample=self.sample,
            kernel=self.kernel,
            ensure_unchanged=ensure_unchanged,
        )


def attend_call(q: Tensor, k: Tensor, v: Tensor, mask: Mask | None, output: Tensor, **options: Any) -> CapturedCall:
    """A call of `regard.attend`.

    Args:
        q: as in `regard.attend`, and so are k, v, the mask and the options.
        k: see `regard.attend`.
        v: see `regard.attend`.
        mask: see `regard.attend`.
        output: what it returned.
        options: scale, bias, softcap, sinks and dropout.
    """
    dropout, bias = options.pop("dropout"), options.pop("bias")
    is_tensor = isinstance(bias, Tensor)
    q, k, v = (attend_axes(t) for t in (q, k, v))
    return CapturedCall(
        q,
        k,
        v,
        "regard.attend",
        mask=mask,
        bias=None if is_tensor else bias,
        attn_mask=bias[(None,) * (4 - bias.ndim)] if is_tensor else None,
        dropout=dropout,
        sample=None if dropout else sample_output(attend_axes(output)),
        **options,
    )


def attend_axes(t: Tensor) -> Tensor:
    """(batch, heads, tokens, width); of three axes the first is the heads, as in `attend`."""
    return t[None] if t.ndim == 3 else to_four_axes(t)


def memory_address(t: Tensor) -> int:
    """The address of a tensor's memory; 0 if it has none of its own."""
    try:
        return t.untyped_storage().data_ptr()
    except (RuntimeError, NotImplementedError):
        return 0


def to_four_axes(t: Tensor) -> Tensor:
    """(..., heads, tokens, width) with exactly four axes. Of three axes the first is the batch, as in PyTorch."""
    if t.ndim == 4:
        return t
    if t.ndim == 3:
        return t.unsqueeze(1)
    return t[None, None] if t.ndim == 2 else t.flatten(0, -4)


def sample_output(output: Tensor, eager: EagerAttention | None = None, keys: int = 0) -> OutputSample:
    """Some rows of an attention's output (batch, heads, queries, width), with the last query among them.

    Args:
        output: weights @ v.
        eager: the attention's tensors, where they are known: they tell what dropout did to the weights.
        keys: the number of keys.
    """
    batch, query = sample_rows(output.shape[0], output.shape[2], output.device)
    factor = None
    if eager is not None and eager.dropped_weights is not None and eager.weights is not None:
        after, before = (
            t.reshape(*output.shape[:-1], keys)[batch, :, query] for t in (eager.dropped_weights, eager.weights)
        )
        factor = (after / before).nan_to_num(1.0)
    return OutputSample(batch, query, output.detach()[batch, :, query], factor)


@lru_cache(64)
def sample_rows(batch: int, queries: int, device: torch.device) -> tuple[Tensor, Tensor]:
    """The batch index and the query of each row that is kept: spread evenly over all rows."""
    total = batch * queries
    count = total if total <= MAX_UNSAMPLED_ROWS else min(max(NUM_SAMPLED_ROWS, batch), total)
    rows = (torch.arange(1, count + 1) * total).div(count, rounding_mode="floor") - 1
    return rows.div(queries, rounding_mode="floor").to(device), (rows % queries).to(device)


def parse_attn_mask(t: Tensor, queries: int, keys: int) -> MaskAndBias:
    """An ``attn_mask`` of four axes as a mask and a bias.

    A float mask is split where that changes no weight: below half of the dtype's lowest number a key is blocked. A row
    of such numbers only is not blocked: the scores are lost in the sum, and the softmax makes the weights equal.
    """
    small = t[tuple(slice(0, 1) if stride == 0 else slice(None) for stride in t.stride())]
    if small.dtype == torch.bool:
        return MaskAndBias(_expanded_mask(small, queries, keys), None)
    blocked = small <= torch.finfo(small.dtype).min / 2
    if not bool(blocked.any()):
        return MaskAndBias(None, small)
    finite = small > -torch.inf
    uniform_rows = blocked.all(-1, keepdim=True) & finite.any(-1, keepdim=True)
    bias = small.masked_fill(blocked, 0)
    allowed = torch.where(uniform_rows, finite, ~blocked)
    return MaskAndBias(
        _expanded_mask(allowed, queries, keys),
        bias if bool(bias.any()) else None,
        uniform_rows if bool(uniform_rows.any()) else None,
    )


def _expanded_mask(t: Tensor, queries: int, keys: int) -> Mask:
    return masks.allowed(t.expand(*t.shape[:2], queries, keys))
