"""The type of each head: where it attends, whatever the words mean."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from typing import NamedTuple

import torch
from torch import Tensor

from regard._shapes import Bool, Float, Int
from regard.attention import mask as masks
from regard.attention.kernels.schedule import band_ranges
from regard.attention.mask import Mask
from regard.lens.maps.map import AttentionMap
from regard.lens.maps.prepared import apply_softcap_, prepare
from regard.lens.maps.tokens import token_lists

PATTERNS = ("previous token", "attention sink", "same token", "induction", "delimiter")
HEAD_TYPES = (*PATTERNS, "uniform")

MIN_PATTERN_SCORE = 0.5
"""A head has the type of a pattern if this share of its attention, on average, follows the pattern."""

MIN_ROW_SHARE = 0.25
"""And only if this share of the rows could show it: two words that occur twice are not enough for induction."""

MIN_UNIFORM_SCORE = 0.9
"""A head is uniform from this share of the largest entropy on."""

DELIMITERS = frozenset(
    [".", ",", ";", ":", "!", "?", "[SEP]", "</s>", "<eos>", "<|endoftext|>", "<|im_end|>", "<|eot_id|>"]
)
"""Tokens that end a sentence or a part of it. The first token of a text counts as attention sink, never as these."""

CHUNK_PAIRS = 2**20
"""The number of scores of pairs of the same token that are in memory at once."""

_SPACES = "Ġ▁ "
"""The characters by which tokenizers write the space before a token."""


@dataclass(frozen=True, eq=False)
class HeadTypes:
    """The type of each head, and its score for each type."""

    names: tuple[str, ...]
    """For each head the pattern with the largest score of at least a half, if a quarter of the rows could show it; else
    "uniform" from 0.9 on; else "mixed"."""
    scores: dict[str, Float[Tensor, " heads"] | None]
    """For each type a score from 0 to 1 per head. NaN where no row could show it; None where it cannot be computed:
    without tokens, or between two texts."""

    def __repr__(self) -> str:
        return f"HeadTypes({', '.join(self.names)})"


@torch.no_grad()
def detect_heads(m: AttentionMap, *, cross: bool = False) -> HeadTypes:
    """The type of each head of a map, exact and in memory linear in the tokens.

    Each score is a mean over the rows that could show the type: those that may attend to at least two keys, one of
    which matches the type. Rows of padding, whose own key is masked, do not count.

    - "previous token": the weight on the token before.
    - "attention sink": the weight on the first token, or the first that is no padding; its own query does not count
      ("Efficient Streaming Language Models with Attention Sinks", Xiao et al. 2024).
    - "same token": the weight on the query's own token, at its position and at every other occurrence.
    - "induction": the weight on tokens before the query that follow an earlier occurrence of the query's token
      ("In-context Learning and Induction Heads", Olsson et al. 2022).
    - "delimiter": the weight on `DELIMITERS`, punctuation and tokens that end a text.
    - "uniform": the entropy, as a share of that of equal weights on every key that the row may attend to.

    Args:
        m: the map; "same token", "induction" and "delimiter" need its tokens.
        cross: whether its keys are another text. Positions then have no meaning, and only "attention sink",
            "delimiter" and "uniform" are computed.
    """
    rows = _Rows(m, cross)
    scores: dict[str, _Score | None] = dict.fromkeys(PATTERNS)
    if not rows.cross:
        scores["previous token"] = rows.mean(*rows.weight_within(masks.window(1, offset=rows.offset - 1)))
    delimiters = rows.delimiters()
    scores["attention sink"], on_delimiters = rows.sink_and_delimiters(delimiters)
    if delimiters is not None:
        scores["delimiter"] = on_delimiters
    if m.tokens is not None and not rows.cross:
        own = rows.weight_within(masks.window(1, offset=rows.offset))
        others = rows.weight_after_repeats(0)
        scores["same token"] = rows.mean(own[0] + others[0], own[1] | others[1])
        scores["induction"] = rows.mean(*rows.weight_after_repeats(1))
    uniform = rows.uniform()
    names = []
    for head in range(m.shape[1]):
        patterns = {
            name: float(score.mean[head])
            for name, score in scores.items()
            if score is not None and bool(score.enough_rows[head]) and float(score.mean[head]) >= MIN_PATTERN_SCORE
        }
        default = "uniform" if float(uniform.mean[head]) >= MIN_UNIFORM_SCORE else "mixed"
        names.append(max(patterns, key=patterns.__getitem__, default=default))
    scores["uniform"] = uniform
    return HeadTypes(tuple(names), {name: None if score is None else score.mean for name, score in scores.items()})


class _Score(NamedTuple):
    """A score of each head, and whether enough rows could show it."""

    mean: Float[Tensor, " heads"]
    enough_rows: Bool[Tensor, " heads"]


def is_delimiter(token: str) -> bool:
    """Whether a token is a delimiter."""
    return token.lstrip(_SPACES) in DELIMITERS


class _Rows:
    """The rows of a map, and which of them can show a type."""

    def __init__(self, m: AttentionMap, cross: bool) -> None:
        self.m = m
        self.batch_size, self.heads, self.queries, self.keys = m.shape
        self.cross = cross or self.queries > self.keys
        self.offset = 0 if self.cross else self.keys - self.queries
        self.entropy = m.entropy()
        self.call = prepare(m).call
        self.mask = self.call.mask  # includes the pairs that a bias of -inf blocks
        self.log_denominator = m.lse if m.sinks is None else torch.logaddexp(m.lse, m.sinks.to(m.lse.dtype)[:, None])
        self.position = torch.arange(self.queries, device=m.device) + self.offset
        self.own_key_allowed = self._own_key_allowed()
        # The logarithm of the number of keys that each row may attend to: the lse of equal scores.
        self.key_ranges = band_ranges(self.mask, self.queries, self.keys, m.device)
        self.log_num_keys = self._log_num_keys().expand(self.batch_size, self.heads, -1)
        self.counts = self.log_num_keys > 0.5  # log 1 = 0, log 2 = 0.69
        if self.own_key_allowed is not None:
            self.counts = self.counts & self.own_key_allowed

    def _own_key_allowed(self) -> Bool[Tensor, "batch heads queries"] | None:
        """Rows that may attend to their own key; None if no row may, which then says nothing about padding."""
        if self.mask is None or self.cross:
            return None
        allowed = self.mask.predicate(self.queries, self.keys, self.m.device)
        b, h, i = (torch.arange(n, device=self.m.device) for n in (self.batch_size, self.heads, self.queries))
        own = allowed(b[:, None, None], h[None, :, None], i[None, None, :], self.position[None, None, :])
        return own.expand(self.batch_size, self.heads, -1) if bool(own.any()) else None

    def _equal_scores(self, mask: Mask | None, batch_size: int = 1) -> AttentionMap:
        """The same rows and keys with equal scores; with a batch and heads axis only as large as the mask needs."""
        mask_batch, mask_heads = (None, None) if mask is None else mask.batch_heads(self.queries, self.keys)
        zeros = torch.zeros(mask_batch or batch_size, mask_heads or 1, self.keys, 8, device=self.m.device)
        return AttentionMap(zeros[:, :, -1:].expand(-1, -1, self.queries, -1), zeros, None, mask)

    def _log_num_keys(self) -> Tensor:
        if self.key_ranges is None:
            return self._equal_scores(self.mask).lse
        first, end = self.key_ranges
        return (end - first).to(self.m.answer_dtype).log()[None, None]

    def _may_attend(self, groups: Tensor, count: int) -> Tensor:
        """Whether each row may attend to any key of each group, (batch, heads or 1, queries, groups)."""
        if self.key_ranges is None:
            return self._equal_scores(self.mask, self.batch_size).mass(groups) > 0
        before = torch.nn.functional.pad(torch.nn.functional.one_hot(groups, count).cumsum(1), (0, 0, 1, 0))
        first, end = self.key_ranges
        return (before[:, end] > before[:, first])[:, None]

    def mean(self, share: Tensor, possible: Tensor) -> _Score:
        """The mean over the rows where it is possible; NaN if there is none."""
        counts = self.counts & possible
        sums, rows = share.double().where(counts, 0.0).sum((0, 2)), counts.sum((0, 2))
        return _Score(sums.div(rows).clamp(0.0, 1.0), rows >= MIN_ROW_SHARE * self.counts.sum((0, 2)))

    def weight_within(self, pairs: Mask) -> tuple[Tensor, Tensor]:
        """Each row's weight on the pairs of a mask, and whether it may attend to any of them."""
        m = self.m
        part = AttentionMap(m.q, m.k, None, pairs if m.mask is None else m.mask & pairs, **m.score_options)
        equal = self._equal_scores(pairs if self.mask is None else self.mask & pairs)
        # Rows without any key have lse -inf in both; they do not count.
        return (part.lse - self.log_denominator).exp(), equal.lse > -torch.inf

    def weight_after_repeats(self, step: int) -> tuple[Tensor, Tensor]:
        """Each row's weight on the keys `step` places after other occurrences of its token; whether there are any.

        For a step of 0 these are all other occurrences; for 1 the earlier ones, and keys before the row. Only such
        pairs are computed, for tokens with equally many occurrences at once.
        """
        device = self.m.device
        share = torch.zeros(self.batch_size, self.heads, self.queries, dtype=torch.float64, device=device)
        possible = torch.zeros_like(share, dtype=torch.bool)
        heads = torch.arange(self.heads, device=device)[:, None, None, None]
        predicate = None if self.mask is None else self.mask.predicate(self.queries, self.keys, device)
        for b, text in enumerate(self.token_ids()):
            for places, num_rows in _repeated_tokens(text, self.offset):
                count = max(1, CHUNK_PAIRS // (self.heads * places.shape[1]))
                for chunk in torch.split(places, max(1, count // num_rows)):
                    keys = (chunk + step).clamp(max=self.keys - 1)
                    for queries in torch.split(chunk[:, -num_rows:], count, dim=1):
                        rows, targets = queries - self.offset, (chunk + step)[:, None]
                        allowed = (targets < queries[..., None] if step else targets != queries[..., None])[None]
                        if predicate is not None:
                            row = torch.tensor(b, device=device)
                            allowed = allowed & predicate(row, heads, rows[..., None], keys[:, None])
                        log_denominator = self.log_denominator[b][:, rows, None]
                        weights = (self._scores(b, rows, keys) - log_denominator).exp()
                        share[b][:, rows] = weights.where(allowed, 0.0).sum(-1)
                        possible[b][:, rows] = allowed.any(-1).expand(self.heads, -1, -1)
        return share, possible

    def _scores(self, b: int, rows: Tensor, keys: Tensor) -> Float[Tensor, "heads tokens rows keys"]:
        """The softmax's input in float64, for some rows (tokens, rows) and keys (tokens, keys) of a text."""
        call = self.call
        q, k = (t[b][:, at].double() for t, at in ((self.m.q, rows), (self.m.k, keys)))
        # Heads with the same keys are adjacent.
        scores = (q.view(len(k), -1, *q.shape[1:]) @ k.mT[:, None]).flatten(0, 1) * call.scale
        apply_softcap_(scores, call.softcap)
        if isinstance(call.bias, Tensor):
            bias = call.bias[b if len(call.bias) > 1 else 0]
            at = (rows[..., None] if bias.shape[1] > 1 else 0, keys[:, None] if bias.shape[2] > 1 else 0)
            bias = bias[(slice(None), *at)]
            scores = scores + (bias if bias.ndim > 1 else bias[:, None, None, None])
        elif call.bias is not None:
            pairs = zip(rows + self.offset, keys, strict=True)
            scores = scores + torch.stack([call.bias(query, key) for query, key in pairs], 1)
        return scores

    def delimiters(self) -> Bool[Tensor, "#batch keys"] | None:
        """Which keys are delimiters; None without tokens."""
        if self.m.tokens is None:
            return None
        return torch.tensor([[is_delimiter(token) for token in text] for text in token_lists(self.m.tokens[1])])

    def sink_and_delimiters(self, delimiters: Tensor | None) -> tuple[_Score, _Score]:
        """The mean weight on the first token, and on delimiters after it."""
        first = torch.zeros(self.batch_size, dtype=torch.long, device=self.m.device)
        if self.own_key_allowed is not None and self.offset == 0:
            first = self.own_key_allowed.any(1).to(torch.uint8).argmax(-1)
        group = torch.zeros(self.batch_size, self.keys, dtype=torch.long, device=self.m.device)
        if delimiters is not None:
            group[delimiters.to(group.device).expand_as(group)] = 1
        group.scatter_(1, first[:, None], 2)
        mass = self.m.mass(group)
        possible = self._may_attend(group, 3)
        not_first = self.position != first[:, None]
        on_first = possible[..., 2] if self.cross else possible[..., 2] & not_first[:, None]
        return self.mean(mass[..., 2], on_first), self.mean(mass[..., 1], possible[..., 1])

    def token_ids(self) -> Tensor:
        """A number for each key's token, (batch, keys); equal tokens have equal numbers."""
        assert self.m.tokens is not None
        numbers: dict[str, int] = {}
        texts = [[numbers.setdefault(token, len(numbers)) for token in text] for text in token_lists(self.m.tokens[1])]
        return torch.tensor(texts, device=self.m.device)

    def uniform(self) -> _Score:
        """The mean entropy, as a share of the largest possible entropy."""
        return self.mean(self.entropy / self.log_num_keys, self.counts)


def _repeated_tokens(text: Int[Tensor, " keys"], offset: int) -> Iterator[tuple[Int[Tensor, "tokens places"], int]]:
    """The places of the tokens that occur more than once, and how many of the last places are rows.

    Tokens with equal counts of both are returned together. There are few different counts: n of them need n^2 / 2
    tokens.
    """
    order = text.argsort(stable=True)
    counts = torch.unique_consecutive(text[order], return_counts=True)[1]
    start = counts.cumsum(0) - counts
    token = torch.arange(len(counts), device=text.device).repeat_interleave(counts)
    rows = torch.zeros_like(counts).index_add_(0, token, (order >= offset).long())
    for places, num_rows in torch.unique(torch.stack([counts, rows], 1)[(counts > 1) & (rows > 0)], dim=0).tolist():
        first = start[(counts == places) & (rows == num_rows)]
        yield order[first[:, None] + torch.arange(places, device=text.device)], num_rows
