"""Masks that say by their names who is there, windows that say how far they reach, and keys that nobody reads."""

from __future__ import annotations

from functools import partial
from typing import Any

import torch
from torch import Tensor, nn

from attention_styles import heads_call
from property_cases import Case, drawn, joined, of_module, of_q_k_v, of_x, split
from property_cases.mask_cases import in_a_band, square_call
from regard.check.target import Invocation, invocations

W_Q, W_K = (drawn(8, 8, seed=seed) / 3 for seed in (60, 61))


def _hiding(x: Tensor, hidden: Tensor | None) -> Tensor:
    """Self-attention of one head without the keys of hidden tokens."""
    scores = x @ x.mT / x.shape[-1] ** 0.5  # here
    if hidden is not None:
        scores = scores.masked_fill(hidden[:, None], -torch.inf)
    return scores.softmax(-1) @ x


def hides_who_is_present(x: Tensor, present: Tensor | None = None) -> Tensor:
    return _hiding(x, None if present is None else present.bool())


def hides_who_is_not_present(x: Tensor, present: Tensor | None = None) -> Tensor:
    return _hiding(x, None if present is None else ~present.bool())


def needs_to_know_who_is_hidden(x: Tensor, exists: Tensor) -> Tensor:
    return _hiding(x, exists.bool())


def needs_to_know_who_is_there(x: Tensor, exists: Tensor) -> Tensor:
    return _hiding(x, ~exists.bool())


def _hiding_later(x: Tensor, first: int | None) -> Tensor:
    scores = x @ x.mT / x.shape[-1] ** 0.5  # here
    if first is not None:
        scores = scores.masked_fill(torch.ones(scores.shape[-2:]).triu(first).bool(), -torch.inf)
    return scores.softmax(-1) @ x


def next_is_not_subsequent(x: Tensor, mask: str | None = None) -> Tensor:
    return _hiding_later(x, 2 if mask == "subsequent" else None)


def next_is_subsequent(x: Tensor, mask: str | None = None) -> Tensor:
    return _hiding_later(x, 1 if mask == "subsequent" else None)


def another_name_is_no_mask(x: Tensor, sees: str | None = None) -> Tensor:
    return _hiding_later(x, 2 if sees == "future" else None)


def later_hidden_by_name(x: Tensor, kind: str = "full") -> Tensor:
    return _hiding_later(x, 1 if kind == "causal" else None)


def two_later_by_name(x: Tensor, kind: str = "full") -> Tensor:
    return _hiding_later(x, 3 if kind == "causal" else None)


def _decodes(x: Tensor, memory: Tensor, allowed: Tensor | None) -> Tensor:
    """A causal attention, and one to a memory, of which some tokens may be padding."""
    later = torch.ones(x.shape[1], x.shape[1], dtype=torch.bool).triu(1)
    x = x + (x @ x.mT / x.shape[-1] ** 0.5).masked_fill(later, -torch.inf).softmax(-1) @ x
    scores = x @ memory.mT / x.shape[-1] ** 0.5  # here
    if allowed is not None:
        scores = scores.masked_fill(~allowed[:, None], -torch.inf)
    return x + scores.softmax(-1) @ memory


def sees_the_padding_of_the_memory(x: Tensor, memory: Tensor, src_pad: Tensor | None = None) -> Tensor:
    """src_pad: (batch, keys), True on padding tokens."""
    return _decodes(x, memory, src_pad)


def hides_the_padding_of_the_memory(x: Tensor, memory: Tensor, src_pad: Tensor | None = None) -> Tensor:
    """src_pad: (batch, keys), True on padding tokens."""
    return _decodes(x, memory, None if src_pad is None else ~src_pad)


def as_found(function: object) -> Invocation:
    """The first call that is found."""
    return next(invocations(function, args={}))


def one_less_on_each_side(q: Tensor, k: Tensor, v: Tensor, window: int = 3) -> Tensor:
    """A query sees `window` keys on each side, and its own."""
    return in_a_band(q, k, v, window - 1, window - 1)


def as_many_on_each_side(q: Tensor, k: Tensor, v: Tensor, window: int = 3) -> Tensor:
    """A query sees `window` keys on each side, and its own."""
    return in_a_band(q, k, v, window, window)


def on_one_side_alone(q: Tensor, k: Tensor, v: Tensor, window: int = 3) -> Tensor:
    """A query sees `window` keys on each side, and its own."""
    return in_a_band(q, k, v, window, 0)


def itself_among_those_before(q: Tensor, k: Tensor, v: Tensor, window: int = 4) -> Tensor:
    """A query sees itself and the `window` keys before it."""
    scores = q @ k.mT / q.shape[-1] ** 0.5  # here
    keep = torch.ones(scores.shape[-2:], dtype=torch.bool).tril().triu(1 - window)
    return scores.masked_fill(~keep, -torch.inf).softmax(-1) @ v


def itself_besides(q: Tensor, k: Tensor, v: Tensor, window: int = 4) -> Tensor:
    """A query sees itself and the `window` keys before it."""
    scores = q @ k.mT / q.shape[-1] ** 0.5
    keep = torch.ones(scores.shape[-2:], dtype=torch.bool).tril().triu(-window)
    return scores.masked_fill(~keep, -torch.inf).softmax(-1) @ v


def says_so_in_a_comment(q: Tensor, k: Tensor, v: Tensor) -> Tensor:
    # Causal attention to the last two tokens.
    return in_a_band(q, k, v, 1, 1)


def says_nothing(q: Tensor, k: Tensor, v: Tensor) -> Tensor:
    return in_a_band(q, k, v, 1, 1)


def scored(x: Tensor) -> Tensor:
    return split(x @ W_Q) @ split(x @ W_K).mT / 2  # here


def causal_attention(x: Tensor) -> Tensor:
    """Its name says which keys are seen."""
    return joined(scored(x).softmax(-1) @ split(x))


def attention_of_all(x: Tensor) -> Tensor:
    return causal_attention(x)


def says_causal_at_first(x: Tensor) -> Tensor:
    """Causal self-attention of two heads.

    A prompt is read at once.
    """
    return joined(scored(x).softmax(-1) @ split(x))


def says_what_it_is_for(x: Tensor) -> Tensor:
    """Self-attention of two heads, for causal attention to be masked by its caller."""
    return attention_of_all(x)


class OfHiddenByNone(nn.Module):
    """Has a setting that says that later tokens are hidden."""

    def __init__(self, is_causal: bool = True) -> None:
        super().__init__()
        self.is_causal = is_causal

    def forward(self, x: Tensor) -> Tensor:
        return joined(scored(x).softmax(-1) @ split(x))


class SetToSeeAll(OfHiddenByNone):
    def __init__(self, is_causal: bool = False) -> None:
        super().__init__(is_causal)


class NeighboursOfBothSides(OfHiddenByNone):
    """A token sees its neighbours, and with the setting the later one as well."""

    later = 1

    def forward(self, x: Tensor) -> Tensor:
        places = torch.arange(x.shape[1])
        distance = places[:, None] - places
        hidden = (distance > 1) | (distance < -self.later)
        return joined(scored(x).masked_fill(hidden, -torch.inf).softmax(-1) @ split(x))  # here


class NeighboursBefore(NeighboursOfBothSides):
    later = 0


class OfHiddenBySetting(OfHiddenByNone):
    def forward(self, x: Tensor) -> Tensor:
        return mask_kept(x) if self.is_causal else super().forward(x)


def later_keys(x: Tensor) -> Tensor:
    return torch.ones(x.shape[1], x.shape[1], dtype=torch.bool).triu(1)


def masked_scores_thrown_away(x: Tensor) -> Tensor:
    scores = scored(x)
    scores.masked_fill(later_keys(x), -torch.inf)  # here
    return joined(scores.softmax(-1) @ split(x))


def mask_thrown_away(x: Tensor) -> Tensor:
    later_keys(x)
    return joined(scored(x).softmax(-1) @ split(x))


def mask_kept(x: Tensor) -> Tensor:
    return joined(scored(x).masked_fill(later_keys(x), -torch.inf).softmax(-1) @ split(x))


def along_the_edges(x: Tensor, adj: Tensor, other: float = -9e15) -> Tensor:
    """Where there is no edge stands one large number, below all scores."""
    scores = scored(x)
    return joined(torch.where(adj > 0, scores, other * torch.ones_like(scores)).softmax(-1) @ split(x))


def where_no_edge_is(x: Tensor, adj: Tensor) -> Tensor:
    return along_the_edges(x, adj, 9e15)


def along_all_that_may_be_edges(x: Tensor, adj: Tensor) -> Tensor:
    return joined(torch.where(adj >= 0, scored(x), -9e15).softmax(-1) @ split(x))


def of_a_graph(function: object) -> Invocation:
    call = of_x(function, masks=("adj",))
    call.arguments["adj"] = torch.ones(4, 4, dtype=torch.float64)
    call.positional.append("adj")
    return call


def without_the_last_key(q: Tensor, k: Tensor, v: Tensor) -> Tensor:
    k, v = k[..., :-1, :], v[..., :-1, :]
    scores = q @ k.mT / 2  # here
    return scores.softmax(-1) @ v


def without_the_first_key(q: Tensor, k: Tensor, v: Tensor) -> Tensor:
    k, v = k[..., 1:, :], v[..., 1:, :]
    scores = q @ k.mT / 2  # here
    return scores.softmax(-1) @ v


def with_all_keys(q: Tensor, k: Tensor, v: Tensor) -> Tensor:
    return (q @ k.mT / 2).softmax(-1) @ v


def of_samples_and_queries(q: Tensor, k: Tensor, v: Tensor, mask: Tensor | None = None) -> Tensor:
    """mask (batch, keys): False hides a key."""
    scores = q @ k.mT / 2  # here
    if mask is not None:
        scores = scores.masked_fill(~mask[:, None], -torch.inf)
    return scores.softmax(-1) @ v


def of_samples_and_keys(q: Tensor, k: Tensor, v: Tensor, mask: Tensor | None = None) -> Tensor:
    """mask (batch, keys): False hides a key."""
    scores = q @ k.mT / 2
    if mask is not None:
        scores = scores.masked_fill(~mask[:, None, None], -torch.inf)
    return scores.softmax(-1) @ v


def of_keys_or_more(q: Tensor, k: Tensor, v: Tensor, mask: Tensor | None = None) -> Tensor:
    """mask (batch, keys) or (batch, 1, 1, keys): False hides a key."""
    scores = q @ k.mT / 2
    if mask is not None:
        scores = scores.masked_fill(~(mask[:, None, None] if mask.ndim == 2 else mask), -torch.inf)
    return scores.softmax(-1) @ v


def of_more_axes(q: Tensor, k: Tensor, v: Tensor, mask: Tensor | None = None) -> Tensor:
    """mask (batch, keys) or (batch, 1, 1, keys): False hides a key."""
    scores = q @ k.mT / 2  # here
    if mask is not None:
        scores = scores.masked_fill(~(mask[:, None] if mask.ndim == 3 else mask), -torch.inf)
    return scores.softmax(-1) @ v


def reads_it_as_samples_first(q: Tensor, k: Tensor, v: Tensor, mask: Tensor | None = None) -> Tensor:
    """mask (time, batch): False hides a key."""
    scores = q @ k.mT / 2  # here
    if mask is not None:
        scores = scores.masked_fill(~mask.reshape(len(q), 1, 1, -1), -torch.inf)
    return scores.softmax(-1) @ v


def turns_it(q: Tensor, k: Tensor, v: Tensor, mask: Tensor | None = None) -> Tensor:
    """mask (time, batch): False hides a key."""
    scores = q @ k.mT / 2
    if mask is not None:
        scores = scores.masked_fill(~mask.mT[:, None, None], -torch.inf)
    return scores.softmax(-1) @ v


def of_three_heads(function: Any) -> Invocation:
    """More heads than samples, so that a mask of samples meets no heads by accident."""
    call = heads_call(function, *(drawn(2, 3, 4, 4, seed=seed) for seed in range(3)))
    call.masks = ["mask"]
    return call


class JoinsMaskInPlace(nn.Module):
    """One mask for all samples, which is written into the causal one."""

    def __init__(self) -> None:
        super().__init__()
        self.register_buffer("visible", torch.ones(1, 9, 9, dtype=torch.bool).tril())

    def forward(self, x: Tensor, padding_mask: Tensor | None = None) -> Tensor:
        visible = self.of_length(x.shape[1])
        if padding_mask is not None:
            visible &= ~padding_mask
        scores = x @ x.mT / x.shape[-1] ** 0.5
        return scores.masked_fill(~visible, -1e9).softmax(-1) @ x

    def of_length(self, tokens: int) -> Tensor:
        return self.visible[:, :tokens, :tokens]


class JoinsMaskInACopy(JoinsMaskInPlace):
    def of_length(self, tokens: int) -> Tensor:
        return super().of_length(tokens).clone()


def unread(x: Tensor, mask: Tensor | None = None) -> Tensor:
    """Self-attention.

    Args:
        x: (batch, tokens, width).
        mask: not used if it is None.
    """
    return _hiding(x, None)


def unread_as_it_says(x: Tensor, mask: Tensor | None = None) -> Tensor:
    """Self-attention.

    Args:
        x: (batch, tokens, width).
        mask: not used, for other layers take one.
    """
    return _hiding(x, None)


def of_queries_alone(
    q: Tensor, k: Tensor, v: Tensor, q_mask: Tensor | None = None, kv_mask: Tensor | None = None
) -> Tensor:
    scores = q @ k.mT / 2  # here
    if q_mask is not None and kv_mask is not None:
        scores = scores.masked_fill(~(q_mask[:, None, :, None] & q_mask[:, None, :, None]), -1e9)
    return scores.softmax(-1) @ v


def of_queries_and_keys(
    q: Tensor, k: Tensor, v: Tensor, q_mask: Tensor | None = None, kv_mask: Tensor | None = None
) -> Tensor:
    scores = q @ k.mT / 2
    if q_mask is not None and kv_mask is not None:
        scores = scores.masked_fill(~(q_mask[:, None, :, None] & kv_mask[:, None, None]), -1e9)
    return scores.softmax(-1) @ v


def adds_booleans(q: Tensor, k: Tensor, v: Tensor, mask: Tensor | None = None) -> Tensor:
    """mask: added to the scores (0 and -inf), or boolean, True where a key may be seen."""
    scores = q @ k.mT / 2  # here
    return (scores if mask is None else scores + mask).softmax(-1) @ v


def tells_booleans(q: Tensor, k: Tensor, v: Tensor, mask: Tensor | None = None) -> Tensor:
    """mask: added to the scores (0 and -inf), or boolean, True where a key may be seen."""
    if mask is not None and mask.dtype == torch.bool:
        mask = torch.zeros(mask.shape, dtype=q.dtype).masked_fill(~mask, -torch.inf)
    return adds_booleans(q, k, v, mask)


def hides_what_may_be_seen(q: Tensor, k: Tensor, v: Tensor, mask: Tensor | None = None) -> Tensor:
    """mask: bool, True = may be seen; or float, which is added to the scores."""
    scores = q @ k.mT / 2  # here
    if mask is not None and mask.dtype == torch.bool:
        scores = scores.masked_fill(mask, -torch.inf)
    elif mask is not None:
        scores = scores + mask
    return scores.softmax(-1) @ v


def hides_what_may_not_be_seen(q: Tensor, k: Tensor, v: Tensor, mask: Tensor | None = None) -> Tensor:
    """mask: bool, True = hidden; or float, which is added to the scores."""
    return hides_what_may_be_seen(q, k, v, mask)


def of_a_padded_module(kind: type[nn.Module]) -> Invocation:
    return of_x(kind(), masks=("padding_mask",))


with_mask = partial(of_q_k_v, masks=("mask",))
with_present = partial(of_x, masks=("present",))
CASES = [
    Case("mask-as-documented", hides_who_is_present, hides_who_is_not_present, with_present),
    Case("mask-as-documented", adds_booleans, tells_booleans, with_mask),
    Case("mask-as-documented", hides_what_may_be_seen, hides_what_may_not_be_seen, with_mask),
    Case("mask-as-documented", needs_to_know_who_is_hidden, needs_to_know_who_is_there, as_found),
    Case(
        "mask-as-documented",
        sees_the_padding_of_the_memory,
        hides_the_padding_of_the_memory,
        as_found,
        attentions=2,
    ),
    Case("mask-shape-as-documented", of_samples_and_queries, of_samples_and_keys, of_three_heads),
    *(
        Case("mask-shape-as-documented", reads_it_as_samples_first, right, of_three_heads)
        for right in (turns_it, of_samples_and_keys)
    ),
    Case("mask-pattern", next_is_not_subsequent, next_is_subsequent, of_x),
    Case("mask-pattern", next_is_not_subsequent, another_name_is_no_mask, of_x),
    Case("mask-pattern", two_later_by_name, later_hidden_by_name, of_x),
    Case("mask-of-its-call", JoinsMaskInPlace, JoinsMaskInACopy, of_a_padded_module, has_line=False),
    Case("window-as-documented", one_less_on_each_side, as_many_on_each_side, square_call),
    Case("window-as-documented", on_one_side_alone, as_many_on_each_side, square_call),
    Case("window-as-documented", itself_among_those_before, itself_besides, square_call),
    Case("mask-pattern", says_so_in_a_comment, says_nothing),
    Case("mask-argument", where_no_edge_is, along_the_edges, of_a_graph),
    Case("mask-argument", along_all_that_may_be_edges, along_the_edges, of_a_graph),
    Case("mask-pattern", causal_attention, attention_of_all, of_x),
    Case("mask-pattern", says_causal_at_first, says_what_it_is_for, of_x),
    Case("mask-pattern", OfHiddenByNone, OfHiddenBySetting, of_module, has_line=False),
    Case("mask-pattern", OfHiddenByNone, SetToSeeAll, of_module, has_line=False),
    Case("mask-pattern", NeighboursOfBothSides, NeighboursBefore, of_module),
    Case("blocked-scores", masked_scores_thrown_away, mask_kept, of_x),
    Case("mask-read", mask_thrown_away, mask_kept, of_x, has_line=False),
    Case("mask-argument", unread, unread_as_it_says, partial(of_x, masks=("mask",))),
    Case("mask-argument", of_queries_alone, of_queries_and_keys, partial(of_q_k_v, masks=("q_mask", "kv_mask"))),
    Case("keys-seen", without_the_last_key, with_all_keys, of_q_k_v),
    Case("keys-seen", without_the_first_key, with_all_keys, of_q_k_v),
]
