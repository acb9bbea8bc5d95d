"""Who may attend to whom, by the code itself and by a mask that is handed over."""

from __future__ import annotations

import functools
from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor, nn

from attention_styles import heads_call
from property_cases import WIDTH, Case, drawn, joined, of_module, of_q_k_v, of_x, of_x_and_context, split
from regard.check.target import Invocation, Stream, invocations
from regard.check.target.sizes import COINCIDENT_SIZES

EARLIER = torch.ones(3, 3, dtype=torch.bool).tril()


def hides_what_came_before(q: Tensor, k: Tensor, v: Tensor) -> Tensor:
    scores = q @ k.mT / 2  # here
    return scores.masked_fill(~EARLIER.T, -torch.inf).softmax(-1) @ v


def hides_all_but_the_next(q: Tensor, k: Tensor, v: Tensor) -> Tensor:
    scores = q @ k.mT / 2  # here
    return scores.masked_fill(torch.ones(3, 3).triu(2) == 1, -torch.inf).softmax(-1) @ v


def _window(q: Tensor, k: Tensor, v: Tensor, own: int) -> Tensor:
    """Row by row; no row reads the last key unless a token sees itself."""
    scores = q @ k.mT / 2  # here
    rows = [v[..., 0, :]]
    for i in range(1, q.shape[-2]):
        seen = slice(max(0, i - 1), i + own)
        rows.append((scores[..., i, None, seen].softmax(-1) @ v[..., seen, :]).squeeze(-2))
    return torch.stack(rows, -2)


def window_without_itself(q: Tensor, k: Tensor, v: Tensor) -> Tensor:
    return _window(q, k, v, own=0)


def window_with_itself(q: Tensor, k: Tensor, v: Tensor) -> Tensor:
    return _window(q, k, v, own=1)


def hides_what_comes_later(q: Tensor, k: Tensor, v: Tensor) -> Tensor:
    scores = q @ k.mT / 2
    return scores.masked_fill(~EARLIER, -torch.inf).softmax(-1) @ v


def masks_the_first_head(q: Tensor, k: Tensor, v: Tensor) -> Tensor:
    scores = q @ k.mT / 2  # here
    scores[:, 0, ~EARLIER] = -torch.inf
    return scores.softmax(-1) @ v


def masks_the_first_sample(q: Tensor, k: Tensor, v: Tensor) -> Tensor:
    scores = q @ k.mT / 2  # here
    scores[0, :, ~EARLIER] = -torch.inf
    return scores.softmax(-1) @ v


def masks_everywhere(q: Tensor, k: Tensor, v: Tensor) -> Tensor:
    scores = q @ k.mT / 2
    scores[:, :, ~EARLIER] = -torch.inf
    return scores.softmax(-1) @ v


def fills_with_zero(q: Tensor, k: Tensor, v: Tensor, mask: Tensor | None = None) -> Tensor:
    scores = q @ k.mT / 2  # here
    if mask is not None:
        scores = scores.masked_fill(mask == 0, 0.0)
    return scores.softmax(-1) @ v


def throws_the_mask_away(q: Tensor, k: Tensor, v: Tensor, mask: Tensor | None = None) -> Tensor:
    scores = q @ k.mT / 2
    if mask is not None:
        scores.masked_fill(mask == 0, -torch.inf)  # here
    return scores.softmax(-1) @ v


def masks_after_the_softmax(q: Tensor, k: Tensor, v: Tensor, mask: Tensor | None = None) -> Tensor:
    scores = q @ k.mT / 2  # here
    weights = scores.softmax(-1)
    if mask is not None:
        weights = weights.masked_fill(mask == 0, 0.0)
    return weights @ v


def flag_without_effect(q: Tensor, k: Tensor, v: Tensor, causal: bool = False) -> Tensor:
    scores = q @ k.mT / 2  # here
    if causal:
        torch.where(EARLIER, scores, -torch.inf)
    return scores.softmax(-1) @ v


def flag_turned_round(q: Tensor, k: Tensor, v: Tensor, causal: bool = False) -> Tensor:
    scores = q @ k.mT / 2  # here
    if causal:
        scores = torch.where(EARLIER.T, scores, -torch.inf)
    return scores.softmax(-1) @ v


def flag(q: Tensor, k: Tensor, v: Tensor, causal: bool = False) -> Tensor:
    scores = q @ k.mT / 2
    if causal:
        scores = torch.where(EARLIER, scores, -torch.inf)
    return scores.softmax(-1) @ v


def fills_with_infinity(q: Tensor, k: Tensor, v: Tensor, mask: Tensor | None = None) -> Tensor:
    scores = q @ k.mT / 2
    if mask is not None:
        scores = scores.masked_fill(mask == 0, -torch.inf)
    return scores.softmax(-1) @ v


def caps_what_is_blocked(q: Tensor, k: Tensor, v: Tensor) -> Tensor:
    scores = (q @ k.mT / 2).masked_fill(~EARLIER, -torch.inf)  # here
    return (5 * torch.tanh(scores / 5)).softmax(-1) @ v


def blocks_what_is_capped(q: Tensor, k: Tensor, v: Tensor) -> Tensor:
    scores = 5 * torch.tanh(q @ k.mT / 2 / 5)
    return scores.masked_fill(~EARLIER, -torch.inf).softmax(-1) @ v


def _padded(x: Tensor, keep: Tensor) -> Tensor:
    """Self-attention of one head in which a token sees what `keep` allows."""
    scores = x @ x.mT / WIDTH**0.5  # here
    return scores.masked_fill(~keep, -torch.inf).softmax(-1) @ x


def padding_in_the_place_of_causal(x: Tensor, mask: Tensor | None = None) -> Tensor:
    length = x.shape[1]
    keep = torch.ones(length, length, dtype=torch.bool).tril()
    return _padded(x, keep if mask is None else mask.bool()[:, None, :].expand(-1, length, -1))


def padding_beside_causal(x: Tensor, mask: Tensor | None = None) -> Tensor:
    """A token of padding sees itself, so that no row is empty."""
    length = x.shape[1]
    keep = torch.ones(length, length, dtype=torch.bool).tril()
    itself = torch.eye(length, dtype=torch.bool)
    return _padded(x, keep if mask is None else keep & mask.bool()[:, None, :].expand(-1, length, -1) | itself)


def flag_beside_no_mask_alone(
    q: Tensor, k: Tensor, v: Tensor, mask: Tensor | None = None, causal: bool = False
) -> Tensor:
    scores = q @ k.mT / 2  # here
    if mask is not None:
        scores = scores.masked_fill(~mask[:, None, None], -torch.inf)
    elif causal:
        scores = scores.masked_fill(~EARLIER, -torch.inf)
    return scores.softmax(-1) @ v


def flag_beside_a_mask(q: Tensor, k: Tensor, v: Tensor, mask: Tensor | None = None, causal: bool = False) -> Tensor:
    scores = q @ k.mT / 2
    if mask is not None:
        scores = scores.masked_fill(~mask[:, None, None], -1e9)
    if causal:
        scores = scores.masked_fill(~EARLIER, -1e9)
    return scores.softmax(-1) @ v


def more_than_its_window(q: Tensor, k: Tensor, v: Tensor, window: int = 4) -> Tensor:
    """A query sees the last `window` keys, itself included."""
    scores = q @ k.mT / q.shape[-1] ** 0.5  # here
    keep = torch.ones(scores.shape[-2:], dtype=torch.bool).tril().triu(-window)
    return scores.masked_fill(~keep, -torch.inf).softmax(-1) @ v


def in_a_band(q: Tensor, k: Tensor, v: Tensor, back: int, ahead: int) -> Tensor:
    scores = q @ k.mT / 2  # here
    keep = torch.ones(scores.shape[-2:], dtype=torch.bool).tril(ahead).triu(-back)
    return scores.masked_fill(~keep, -torch.inf).softmax(-1) @ v


def farther_ahead_than_back(q: Tensor, k: Tensor, v: Tensor, radius: int = 2) -> Tensor:
    """Local attention with `radius` keys on either side."""
    return in_a_band(q, k, v, radius - 1, radius)


def as_far_ahead_as_back(q: Tensor, k: Tensor, v: Tensor, radius: int = 2) -> Tensor:
    """Local attention with `radius` keys on either side."""
    return in_a_band(q, k, v, radius, radius)


def around_the_first(q: Tensor, k: Tensor, v: Tensor, back: int, ahead: int) -> Tensor:
    tokens = torch.arange(q.shape[-2])
    apart = tokens - tokens[:, None]
    seen = ((apart >= -back) & (apart <= ahead)) | (tokens == 0) | (tokens[:, None] == 0)
    scores = (q @ k.mT / q.shape[-1] ** 0.5).masked_fill(~seen, -torch.inf)  # here
    return scores.softmax(-1) @ v


def all_that_comes_later(q: Tensor, k: Tensor, v: Tensor, radius: int = 1) -> Tensor:
    """Not causal: a token sees the tokens within `radius` on both sides; the first one sees all and is seen by all."""
    return around_the_first(q, k, v, radius, 9)


def both_sides_alike(q: Tensor, k: Tensor, v: Tensor, radius: int = 1) -> Tensor:
    """Not causal: a token sees the tokens within `radius` on both sides; the first one sees all and is seen by all."""
    return around_the_first(q, k, v, radius, radius)


def all_before_it(q: Tensor, k: Tensor, v: Tensor, sliding_window: int = 2) -> Tensor:
    """Made of a mask that no window is cut from."""
    tokens = torch.arange(q.shape[-2])
    scores = q @ k.mT / 2  # here
    return scores.masked_fill(tokens > tokens[:, None], -torch.inf).softmax(-1) @ v


def all_before_it_in_its_window(q: Tensor, k: Tensor, v: Tensor, sliding_window: int = 2) -> Tensor:
    tokens = torch.arange(q.shape[-2])
    apart = tokens[:, None] - tokens
    return (q @ k.mT / 2).masked_fill((apart < 0) | (apart >= sliding_window), -torch.inf).softmax(-1) @ v


def farther_than_it_has_tokens(q: Tensor, k: Tensor, v: Tensor, window: int = 6) -> Tensor:
    """A query reads `window` keys on each side."""
    return in_a_band(q, k, v, window, window - 1)


def as_far_as_it_says(q: Tensor, k: Tensor, v: Tensor, window: int = 6) -> Tensor:
    """A query reads `window` keys on each side."""
    return in_a_band(q, k, v, window, window)


def of_five_tokens(function: Any) -> Invocation:
    """A call of a function of queries, keys and values."""
    return heads_call(function, *(drawn(2, 2, 5, 4, seed=seed) for seed in range(3)))


def as_many_as_its_window(q: Tensor, k: Tensor, v: Tensor, window: int = 4) -> Tensor:
    """A query sees the last `window` keys, itself included."""
    scores = q @ k.mT / q.shape[-1] ** 0.5
    keep = torch.ones(scores.shape[-2:], dtype=torch.bool).tril().triu(1 - window)
    return scores.masked_fill(~keep, -torch.inf).softmax(-1) @ v


def last_keys(tokens: int, window: int) -> Tensor:
    """A query sees the last `window` keys, itself included."""
    return torch.ones(tokens, tokens, dtype=torch.bool).tril().triu(1 - window)


def one_key_too_many(q: Tensor, k: Tensor, v: Tensor, window: int = 4) -> Tensor:
    scores = q @ k.mT / q.shape[-1] ** 0.5  # here
    return scores.masked_fill(~last_keys(q.shape[-2], window + 1), -torch.inf).softmax(-1) @ v


def as_many_keys_as_said(q: Tensor, k: Tensor, v: Tensor, window: int = 4) -> Tensor:
    return one_key_too_many(q, k, v, window - 1)


def says_1_is_hidden(q: Tensor, k: Tensor, v: Tensor, mask: Tensor | None = None) -> Tensor:
    """The mask is 1 at the keys to hide."""
    scores = q @ k.mT / 2  # here
    return (scores if mask is None else scores + (1.0 - mask.to(q.dtype)) * -1e9).softmax(-1) @ v


def says_1_is_seen(q: Tensor, k: Tensor, v: Tensor, mask: Tensor | None = None) -> Tensor:
    """The mask is 1 at the keys to attend to."""
    return says_1_is_hidden(q, k, v, mask)


def adds_ones_and_zeros(q: Tensor, k: Tensor, v: Tensor, mask: Tensor | None = None) -> Tensor:
    """mask: 1 for tokens, 0 for padding."""
    scores = q @ k.mT / 2  # here
    return (scores if mask is None else scores + mask.to(q.dtype)).softmax(-1) @ v


def adds_its_mask(q: Tensor, k: Tensor, v: Tensor, mask: Tensor | None = None) -> Tensor:
    """mask: 0 for allowed keys, a very small number for the others."""
    return adds_ones_and_zeros(q, k, v, mask)


def square_call(function: Any) -> Invocation:
    """A call of a function, as it is found, of as many keys as queries."""
    (call, *_) = next(invocations(function, args={})).resized(COINCIDENT_SIZES[0])
    return call


def _blocked(x: Tensor, mask: Tensor | None, joined: Callable[[Tensor, Tensor], Tensor]) -> Tensor:
    """A mask of 1 at padding, joined with one of 1 at what comes later."""
    later = torch.ones(x.shape[1], x.shape[1], dtype=x.dtype).triu(1)
    blocked = later if mask is None else joined(mask.to(x.dtype)[:, None, :], later)
    scores = x @ x.mT / WIDTH**0.5  # here
    return (scores - 1e9 * blocked).softmax(-1) @ x


def hides_what_both_hide(x: Tensor, mask: Tensor | None = None) -> Tensor:
    return _blocked(x, mask, torch.minimum)


def hides_what_either_hides(x: Tensor, mask: Tensor | None = None) -> Tensor:
    return _blocked(x, mask, torch.maximum)


def padding_of_queries(x: Tensor, mask: Tensor | None = None) -> Tensor:
    length = x.shape[1]
    keep = torch.ones(len(x), length, dtype=torch.bool) if mask is None else mask.bool()
    return _padded(x, keep[:, :, None].expand(-1, -1, length))


def padding_of_queries_and_keys(x: Tensor, mask: Tensor | None = None) -> Tensor:
    """A token of padding sees nothing: its weights are all equal."""
    scores = x @ x.mT / WIDTH**0.5
    if mask is not None:
        scores = scores.masked_fill(~(mask[:, :, None].bool() & mask[:, None, :].bool()), -1e9)
    return scores.softmax(-1) @ x


class KeepsLengths(nn.Module):
    """The mask is made once for each number of tokens."""

    def __init__(self) -> None:
        super().__init__()
        self.kept: dict[int, Tensor] = {}

    def forward(self, x: Tensor, lengths: Tensor | None = None) -> Tensor:
        places = torch.arange(x.shape[1])
        if lengths is None:
            lengths = torch.full((len(x),), x.shape[1])
        keep = self.kept.setdefault(x.shape[1], places < lengths[:, None])
        return _padded(x, keep[:, None, :].expand(-1, x.shape[1], -1))


class ReadsLengths(KeepsLengths):
    def forward(self, x: Tensor, lengths: Tensor | None = None) -> Tensor:
        self.kept.clear()
        return super().forward(x, lengths)


class KeepsMask(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.kept: Tensor | None = None

    def forward(self, x: Tensor, mask: Tensor | None = None) -> Tensor:
        if self.kept is None and mask is not None:
            self.kept = mask.bool()[:, None, :]
        keep = torch.ones(len(x), x.shape[1], x.shape[1], dtype=torch.bool)
        return _padded(x, keep if self.kept is None else keep & self.kept)


class ReadsMask(KeepsMask):
    def forward(self, x: Tensor, mask: Tensor | None = None) -> Tensor:
        self.kept = None
        return super().forward(x, mask)


class KeepsFlag(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.kept = False

    def forward(self, x: Tensor, causal: bool = False) -> Tensor:
        self.kept = self.kept or causal
        keep = torch.ones(x.shape[1], x.shape[1], dtype=torch.bool)
        return _padded(x, keep.tril() if self.kept else keep)


class ReadsFlag(KeepsFlag):
    def forward(self, x: Tensor, causal: bool = False) -> Tensor:
        self.kept = False
        return super().forward(x, causal)


def in_two_windows() -> Tensor:
    """Of four tokens, in windows that are not neighbours."""
    window = torch.arange(4) // 2
    return torch.zeros(4, 4, dtype=torch.float64).masked_fill(window[:, None] != window, -100.0)


class MakesMask(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.register_buffer("window_mask", in_two_windows())

    def forward(self, x: Tensor) -> Tensor:
        return (x @ x.mT / WIDTH**0.5).softmax(-1) @ x


class HoldsMask(nn.Module):
    """It leaves the mask to what is derived from it."""

    def __init__(self) -> None:
        super().__init__()
        self.register_buffer("given_mask", in_two_windows())

    def forward(self, x: Tensor) -> Tensor:
        return (x @ x.mT / WIDTH**0.5).softmax(-1) @ x


class AddsMask(HoldsMask):
    def forward(self, x: Tensor) -> Tensor:
        return (x @ x.mT / WIDTH**0.5 + self.given_mask).softmax(-1) @ x


def module_with(kind: Any, *, masks: tuple[str, ...] = (), lengths: bool = False, causal: bool = False) -> Invocation:
    """A call of a module that may be given a mask, lengths or a flag."""
    call = of_x(kind(), masks=masks)
    call.lengths = ["lengths"] * lengths
    call.causal_flags = ["causal"] * causal
    return call


with_padding = functools.partial(of_x, masks=("mask",))
with_flag = functools.partial(of_q_k_v, causal_flags=("causal",))
with_mask = functools.partial(of_q_k_v, masks=("mask",))


def _in_pairs(x: Tensor, later: float) -> Tensor:
    """Attention inside pairs of tokens; a score of a later one has a number added."""
    pairs = x.unflatten(1, (-1, 2))
    scores = pairs @ pairs.mT / WIDTH**0.5  # here
    return ((scores + torch.ones(2, 2).triu(1) * later).softmax(-1) @ pairs).flatten(1, 2)


def pairs_that_see_both(x: Tensor) -> Tensor:
    """Causal attention inside pairs of tokens."""
    return _in_pairs(x, 0.0)


def pairs_that_see_one(x: Tensor) -> Tensor:
    """Causal attention inside pairs of tokens."""
    return _in_pairs(x, -1e9)


def sinks_that_all_see(q: Tensor, k: Tensor, v: Tensor) -> Tensor:
    """Causal attention to the first 2 tokens and itself."""
    scores = q @ k.mT / 2  # here
    return scores.masked_fill(~(EARLIER | (torch.arange(3) < 2)), -torch.inf).softmax(-1) @ v


def sinks_that_come_before(q: Tensor, k: Tensor, v: Tensor) -> Tensor:
    """Causal attention to the first 2 tokens and itself."""
    scores = q @ k.mT / 2
    return scores.masked_fill(~((torch.eye(3) == 1) | (torch.arange(3) < 2) & EARLIER), -torch.inf).softmax(-1) @ v


def of_texts(x: Tensor, docs: Tensor, same: Callable[[Tensor, Tensor], Tensor]) -> Tensor:
    length = x.shape[1]
    return _padded(x, same(docs[:, :, None], docs[:, None, :]) & torch.ones(length, length, dtype=torch.bool).tril())


def later_texts_see_earlier(x: Tensor, docs: Tensor) -> Tensor:
    return of_texts(x, docs, torch.ge)


def texts_see_themselves(x: Tensor, docs: Tensor) -> Tensor:
    return of_texts(x, docs, torch.eq)


def with_texts(function: Any) -> Invocation:
    """A call with the number of the text of each token."""
    call = of_x(function)
    call.arguments["docs"], call.documents = torch.zeros(2, 4, dtype=torch.long), ["docs"]
    return call


def causal_mask_added(q: Tensor, k: Tensor, v: Tensor) -> Tensor:
    return (q @ k.mT / 2 + torch.ones(3, 3).tril()).softmax(-1) @ v  # here


def bias_of_equal_places_added(q: Tensor, k: Tensor, v: Tensor) -> Tensor:
    return (q @ k.mT / 2 + 0.5 * torch.eye(3)).softmax(-1) @ v


def without_itself_by_a_large_number(q: Tensor, k: Tensor, v: Tensor) -> Tensor:
    return (q @ k.mT / 2 + torch.full((3, 3), -1e9).triu(0)).softmax(-1) @ v  # here


def with_itself_by_a_large_number(q: Tensor, k: Tensor, v: Tensor) -> Tensor:
    return (q @ k.mT / 2 + torch.full((3, 3), -1e9).triu(1)).softmax(-1) @ v


def causal_to_an_encoder(x: Tensor, encoded: Tensor, *, is_causal: bool = True) -> Tensor:
    q, k, v = split(x), split(encoded), split(encoded)
    scores = q @ k.mT / 2  # here
    later = torch.ones(x.shape[1], encoded.shape[1]).triu(1) == 1
    return joined(scores.masked_fill(later & is_causal, -torch.inf).softmax(-1) @ v)


def open_to_an_encoder(x: Tensor, encoded: Tensor) -> Tensor:
    return causal_to_an_encoder(x, encoded, is_causal=False)


def of_encoded(function: Any) -> Invocation:
    call = of_x_and_context(function)
    call.arguments = {"x": call.arguments["x"], "encoded": drawn(2, 4, 8, seed=1)}
    call.positional, call.streams = ["x", "encoded"], [call.streams[0], Stream("encoded", "context", 0, (1,))]
    return call


CASES = [
    Case("blocked-scores", causal_mask_added, bias_of_equal_places_added),
    Case("mask-pattern", without_itself_by_a_large_number, with_itself_by_a_large_number),
    Case("mask-pattern", causal_to_an_encoder, open_to_an_encoder, of_encoded, has_line=False),
    Case("mask-pattern", pairs_that_see_both, pairs_that_see_one, of_x),
    Case("mask-argument", later_texts_see_earlier, texts_see_themselves, with_texts),
    Case("mask-pattern", hides_what_came_before, hides_what_comes_later),
    Case("mask-pattern", hides_all_but_the_next, hides_what_comes_later),
    Case("mask-pattern", sinks_that_all_see, sinks_that_come_before),
    Case("mask-pattern", window_without_itself, window_with_itself),
    Case("mask-pattern", flag_without_effect, flag, with_flag),
    Case("mask-pattern", flag_turned_round, flag, with_flag),
    Case("blocked-scores", caps_what_is_blocked, blocks_what_is_capped),
    Case("mask-same-for-heads", masks_the_first_head, masks_everywhere),
    Case("mask-same-for-samples", masks_the_first_sample, masks_everywhere),
    Case("mask-argument", fills_with_zero, fills_with_infinity, with_mask),
    Case("mask-argument", throws_the_mask_away, fills_with_infinity, with_mask),
    Case("mask-argument", padding_of_queries, padding_of_queries_and_keys, with_padding),
    Case("mask-argument", hides_what_both_hide, hides_what_either_hides, with_padding),
    Case("mask-as-documented", says_1_is_hidden, says_1_is_seen, with_mask),
    Case("mask-as-documented", adds_ones_and_zeros, adds_its_mask, with_mask),
    Case("window-as-documented", more_than_its_window, as_many_as_its_window, square_call),
    Case("window-as-documented", one_key_too_many, as_many_keys_as_said, square_call),
    Case("window-as-documented", farther_ahead_than_back, as_far_ahead_as_back, of_five_tokens),
    Case("window-as-documented", all_that_comes_later, both_sides_alike, of_five_tokens),
    Case("window-as-documented", all_before_it, all_before_it_in_its_window, square_call),
    Case("window-as-documented", farther_than_it_has_tokens, as_far_as_it_says, square_call),
    Case(
        "masks-joined",
        flag_beside_no_mask_alone,
        flag_beside_a_mask,
        functools.partial(with_flag, masks=("mask",)),
    ),
    Case("masks-joined", padding_in_the_place_of_causal, padding_beside_causal, with_padding),
    Case("mask-of-its-call", KeepsLengths, ReadsLengths, functools.partial(module_with, lengths=True), has_line=False),
    Case("mask-of-its-call", KeepsMask, ReadsMask, functools.partial(module_with, masks=("mask",)), has_line=False),
    Case("mask-of-its-call", KeepsFlag, ReadsFlag, functools.partial(module_with, causal=True), has_line=False),
    Case("mask-read", MakesMask, AddsMask, of_module, has_line=False),
    Case("mask-read", MakesMask, HoldsMask, of_module, has_line=False),
    Case("weights-sum-to-one", masks_after_the_softmax, fills_with_infinity, with_mask),
]
