"""One attention that a model computed, as it was called."""

from __future__ import annotations

import operator
from collections.abc import Callable, Iterator
from dataclasses import dataclass, replace
from functools import lru_cache, reduce
from typing import NamedTuple

import torch
from torch import Tensor

from regard.attention import mask as masks
from regard.attention.bias import PositionBias
from regard.attention.kernels.call import mask_tensors
from regard.attention.mask import Mask
from regard.lens.capture.eager_pattern import WrittenOut
from regard.lens.maps.inputs import OutputSample
from regard.lens.maps.map import AttentionMap

__all__ = ["Changed", "Masked", "Seen", "four_axes", "masked", "rows", "sampled"]


class Spoken(NamedTuple):
    """What an ``attn_mask`` says."""

    mask: Mask | None
    bias: Tensor | PositionBias | None
    even: Tensor | None = None
    """Queries that attend to all keys alike, whatever their scores; (batch, heads, queries, 1)."""


Masked = Callable[[Tensor, int, int], Spoken]
"""Takes an ``attn_mask`` apart, for so many queries and keys."""

ROWS = 8
"""So many rows of the model's own output are kept, to prove a map by."""
FEW = 64
"""Where there are no more than these, all of them are."""


class Changed:
    """Whether tensors were changed in place since; tensors of inference mode do not count changes, and are let pass."""

    def __init__(self, *tensors: Tensor | None) -> None:
        self.held = [(t, _version(t)) for t in tensors if t is not None]

    def __call__(self) -> None:
        """Refuse to go on.

        Raises:
            RuntimeError: a tensor was changed in place.
        """
        for t, version in self.held:
            if _version(t) != version:
                raise RuntimeError(
                    f"a tensor {tuple(t.shape)} that this map is computed from was changed in place after the model "
                    "used it (a static cache that was written again, an optimizer's step): read the map before "
                    'that, or watch with keep="summary", which computes the answers while the model runs'
                )


def _version(t: Tensor) -> int:
    return 0 if t.is_inference() else t._version


@dataclass(frozen=True)
class Seen:
    """What was called and what came out, nothing copied but a few rows of the output.

    q, k and v are (batch, heads, tokens, width). Where only the layer's input is known, `projected` makes them.
    """

    q: Tensor
    k: Tensor
    v: Tensor
    kernel: str
    scale: float | int | None = None
    attn_mask: Tensor | None = None
    """As PyTorch has it: boolean, True = may attend, or added to the scores."""
    causal: bool = False
    """PyTorch's flag: aligned at the first key."""
    mask: Mask | None = None
    """In regard's own form, where that is known."""
    bias: Tensor | PositionBias | None = None
    softcap: float | int | None = None
    sinks: Tensor | None = None
    dropout: float | int = 0.0
    lse: Tensor | None = None
    sample: OutputSample | None = None
    also: tuple[Tensor, ...] = ()
    """What else it is computed from."""
    projected: Callable[[], tuple[Tensor, Tensor, Tensor]] | None = None
    cross: bool | None = None
    """Whether keys come from another sequence, where that is known."""
    within: str = ""
    """The module that it stands for inside the one that is running."""

    @property
    def shape(self) -> tuple[int, int, int, int]:
        """(batch, heads, queries, keys)."""
        return (*self.q.shape[:3], self.k.shape[2])

    @property
    def mask_in_words(self) -> str:
        """What the caller said of who may attend, nothing computed."""
        said = []
        if self.mask is not None:
            said.append(repr(self.mask))
        if self.causal:
            said.append("causal(offset=0)")
        if self.attn_mask is not None:
            said.append("boolean mask" if self.attn_mask.dtype == torch.bool else "float mask or bias")
        return " & ".join(said) or "none"

    @property
    def is_masked(self) -> bool:
        """Whether its caller said who may attend."""
        return self.mask is not None or self.attn_mask is not None

    @property
    def has_numbers(self) -> bool:
        """Whether its ``attn_mask`` is added to the scores."""
        return self.attn_mask is not None and self.attn_mask.dtype != torch.bool

    def tensors(self) -> Iterator[Tensor]:
        """Every tensor that its map is computed from."""
        yield from (t for t in (self.q, self.k, self.v, self.attn_mask, self.sinks, *self.also) if t is not None)
        if isinstance(self.bias, Tensor):
            yield self.bias
        elif self.bias is not None:
            yield from self.bias.parameters()
            yield from self.bias.buffers()
        yield from mask_tensors(self.mask)

    def unfolded(self) -> Seen:
        """The same of (batch, heads, 1, width), where heads that share keys stood on the axis of queries."""

        def unfold(t: Tensor | None) -> Tensor | None:
            return t if t is None or t.ndim < 3 or t.shape[2] == 1 else t.flatten(1, 2).unsqueeze(2)

        sample = self.sample
        if sample is not None:
            batch, folded = self.q.shape[0], self.q.shape[2]
            each = sample.output.view(batch, folded, *sample.output.shape[1:])  # so few rows that all were kept
            sample = OutputSample(
                torch.arange(batch), torch.zeros(batch, dtype=torch.int64), each.transpose(1, 2).flatten(1, 2)
            )
        q = self.q.flatten(1, 2).unsqueeze(2)
        return replace(self, q=q, attn_mask=unfold(self.attn_mask), lse=unfold(self.lse), sample=sample)

    def spoken(self, masked: Masked) -> Spoken:
        """Who may attend to whom, in regard's own form.

        Args:
            masked: takes an ``attn_mask`` apart, as `masked` does.
        """
        said = Spoken(self.mask, self.bias)
        if self.attn_mask is not None:
            said = masked(self.attn_mask, *self.shape[2:])
        parts = [
            masks.causal(offset=0) if self.causal else None,
            self.mask,
            said.mask if self.attn_mask is not None else None,
        ]
        mask = reduce(operator.and_, some) if (some := [part for part in parts if part is not None]) else None
        return said._replace(mask=mask)

    def map(self, masked: Masked, fresh: Callable[[], None] | None = None) -> AttentionMap:
        """What it attended to; nothing is computed yet but projections, where there are any."""
        mask, bias, even = self.spoken(masked)
        q, k, v = (self.q, self.k, self.v) if self.projected is None else self.projected()
        return AttentionMap(
            q if even is None else q.masked_fill(even, 0),
            k,
            v,
            mask,
            scale=self.scale,
            bias=bias,
            softcap=self.softcap,
            sinks=self.sinks,
            dropout=self.dropout,
            lse=self.lse if even is None else None,
            sample=self.sample,
            kernel=self.kernel,
            ensure_unchanged=fresh,
        )


def four_axes(t: Tensor) -> Tensor:
    """(..., heads, tokens, width) as four axes. With three, the first is the batch, as PyTorch has it."""
    if t.ndim == 4:
        return t
    if t.ndim == 3:
        return t.unsqueeze(1)
    return t[None, None] if t.ndim == 2 else t.flatten(0, -4)


def sampled(output: Tensor, written: WrittenOut | None = None, keys: int = 0) -> OutputSample:
    """Some rows of an attention's output (batch, heads, queries, width), the last query of all among them.

    Args:
        output: weights @ v.
        written: what dropout did to the weights, where it is known.
        keys: how many there are.
    """
    batch, query = rows(output.shape[0], output.shape[2], output.device)
    factor = None
    if written is not None and written.used is not None and written.softened is not None:
        used, softened = (
            t.reshape(*output.shape[:-1], keys)[batch, :, query] for t in (written.used, written.softened)
        )
        factor = (used / softened).nan_to_num(1.0)
    return OutputSample(batch, query, output.detach()[batch, :, query], factor)


@lru_cache(64)
def rows(batch: int, queries: int, device: torch.device) -> tuple[Tensor, Tensor]:
    """Which rows are kept: all of few, else evenly over batch and queries."""
    count = batch * queries if batch * queries <= FEW else min(max(ROWS, batch), batch * queries)
    places = (torch.arange(1, count + 1) * (batch * queries)).div(count, rounding_mode="floor") - 1
    return places.div(queries, rounding_mode="floor").to(device), (places % queries).to(device)


def masked(t: Tensor, queries: int, keys: int) -> Spoken:
    """What an ``attn_mask`` of four axes says, as a mask and a bias.

    A float mask is taken apart where that changes no weight: below half of the lowest number of its dtype a key is
    blocked, unless a whole row is. In that number the scores are lost, and the softmax spreads the row evenly.
    """
    small = t[tuple(slice(0, 1) if stride == 0 else slice(None) for stride in t.stride())]
    if small.dtype == torch.bool:
        return Spoken(_allowed(small, queries, keys), None)
    blocked = small <= torch.finfo(small.dtype).min / 2
    if not bool(blocked.any()):
        return Spoken(None, small)
    finite = small > -torch.inf
    even = blocked.all(-1, keepdim=True) & finite.any(-1, keepdim=True)
    rest = small.masked_fill(blocked, 0)
    may = torch.where(even, finite, ~blocked)
    return Spoken(_allowed(may, queries, keys), rest if bool(rest.any()) else None, even if bool(even.any()) else None)


def _allowed(t: Tensor, queries: int, keys: int) -> Mask:
    return masks.allowed(t.expand(*t.shape[:2], queries, keys))
