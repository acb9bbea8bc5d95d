"""What kind of head a head is: where it looks, whatever the words mean."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from typing import NamedTuple

import torch
from torch import Tensor

from regard._shapes import Bool, Float, Int
from regard.attention import mask as masks
from regard.attention.mask import Mask
from regard.lens.maps.map import AttentionMap, Tokens
from regard.lens.maps.prepared import prepare

__all__ = ["DELIMITERS", "HeadTypes", "detect_heads", "is_delimiter"]

PATTERN = 0.5
"""A head is of a kind when this share of its attention, on average, goes where the kind says."""

ENOUGH = 0.25
"""It is named after it only where this share of the rows could show it: two words that come twice are no induction."""

BROAD = 0.9
"""A head is broad from this share of the largest entropy on."""

DELIMITERS = frozenset(
    [".", ",", ";", ":", "!", "?", "[SEP]", "</s>", "<eos>", "<|endoftext|>", "<|im_end|>", "<|eot_id|>"]
)
"""Tokens that end something; the first token of a text counts as that alone."""

CHUNK_SCORES = 2**20
"""So many scores of pairs of the same token stand in memory at once."""

_SPACES = "Ġ▁ "
"""What tokenizers write for the space before a token."""


@dataclass(frozen=True, eq=False)
class HeadTypes:
    """The kind of each head, and how much of each kind it has."""

    names: tuple[str, ...]
    """For each head the pattern with the largest score of at least a half, if a quarter of the rows could show it; else
    "uniform" from 0.9 on; else "mixed"."""
    scores: dict[str, Float[Tensor, " heads"] | None]
    """For each kind a score from 0 to 1 per head. NaN where no row could show it; None where it cannot be known:
    without tokens, or between two texts."""

    def __repr__(self) -> str:
        return f"HeadTypes({', '.join(self.names)})"


@torch.no_grad()
def detect_heads(m: AttentionMap, *, cross: bool = False) -> HeadTypes:
    """The kind of each head of a map, exact and in memory linear in the tokens.

    Each score is a mean over the rows that could show the kind: those that may attend to at least two keys, one of
    which is such a key. Rows of padding, whose own key is masked away, do not count.

    - "previous token": the weight on the token before.
    - "attention sink": the weight on the first token, or the first that is no padding; the query there does not count.
      Many heads rest there: "Efficient Streaming Language Models with Attention Sinks", Xiao et al. 2024.
    - "same token": the weight on the query's own token, where it stands and wherever else it stands.
    - "induction": the weight on tokens before the query that follow an earlier occurrence of the query's token
      ("In-context Learning and Induction Heads", Olsson et al. 2022).
    - "delimiter": the weight on `DELIMITERS`, punctuation and what ends a text.
    - "uniform": the entropy, as a share of that of equal weights on every key that the row may attend to.

    Args:
        m: the map; "same token", "induction" and "delimiter" need its tokens.
        cross: whether its keys are another text; positions then say nothing, and of the kinds only "attention sink",
            "delimiter" and "uniform" are left.
    """
    rows = _Rows(m, cross)
    kinds: dict[str, _Score | None] = dict.fromkeys(
        ("previous token", "attention sink", "same token", "induction", "delimiter")
    )
    if not rows.cross:
        kinds["previous token"] = rows.mean(*rows.on(masks.window(1, offset=rows.offset - 1)))
    delimiters = rows.delimiters()
    first, last = rows.on_groups(delimiters)
    kinds["attention sink"] = first
    if delimiters is not None:
        kinds["delimiter"] = last
    if m.tokens is not None and not rows.cross:
        own, others = rows.on(masks.window(1, offset=rows.offset)), rows.on_same(0)
        kinds["same token"] = rows.mean(own[0] + others[0], own[1] | others[1])
        kinds["induction"] = rows.mean(*rows.on_same(1))
    broad = rows.breadth()
    names = []
    for head in range(m.shape[1]):
        shown = {
            name: float(score.mean[head])
            for name, score in kinds.items()
            if score is not None and bool(score.enough[head]) and float(score.mean[head]) >= PATTERN
        }
        rest = "uniform" if float(broad.mean[head]) >= BROAD else "mixed"
        names.append(max(shown, key=shown.__getitem__, default=rest))
    every = {**kinds, "uniform": broad}
    return HeadTypes(tuple(names), {name: None if score is None else score.mean for name, score in every.items()})


class _Score(NamedTuple):
    """A score of each head, and whether enough rows could show it."""

    mean: Float[Tensor, " heads"]
    enough: Bool[Tensor, " heads"]


def is_delimiter(token: str) -> bool:
    """Whether a token ends something."""
    return token.lstrip(_SPACES) in DELIMITERS


class _Rows:
    """The rows of a map, and which of them can show something."""

    def __init__(self, m: AttentionMap, cross: bool) -> None:
        self.m = m
        self.batch, self.heads, self.queries, self.keys = m.shape
        self.cross = cross or self.queries > self.keys
        self.offset = 0 if self.cross else self.keys - self.queries
        self.entropy = m.entropy()
        self.asked = prepare(m).call
        self.mask = self.asked.mask  # with what a bias of -inf blocks
        self.norm = m.lse if m.sinks is None else torch.logaddexp(m.lse, m.sinks.to(m.lse.dtype)[:, None])
        self.position = torch.arange(self.queries, device=m.device) + self.offset
        self.own = self._own()
        # How many keys each row may attend to: with equal scores, the sum of their exponentials.
        self.visible = self._equal(self.mask).lse.expand(self.batch, self.heads, -1)
        self.counts = self.visible > 0.5  # log 1 = 0, log 2 = 0.69
        if self.own is not None:
            self.counts = self.counts & self.own

    def _own(self) -> Bool[Tensor, "batch heads queries"] | None:
        """Rows whose own key is open to them; None where that says nothing about padding, as nobody sees itself."""
        if self.mask is None or self.cross:
            return None
        sees = self.mask.predicate(self.queries, self.keys, self.m.device)
        b, h, i = (torch.arange(n, device=self.m.device) for n in (self.batch, self.heads, self.queries))
        own = sees(b[:, None, None], h[None, :, None], i[None, None, :], self.position[None, None, :])
        return own.expand(self.batch, self.heads, -1) if bool(own.any()) else None

    def _equal(self, mask: Mask | None, batch: int = 1) -> AttentionMap:
        """The same rows and keys with equal scores; as few batch rows and heads as the mask tells apart."""
        rows, heads = (None, None) if mask is None else mask.batch_heads(self.queries, self.keys)
        zeros = torch.zeros(rows or batch, heads or 1, self.keys, 8, device=self.m.device)
        return AttentionMap(zeros[:, :, -1:].expand(-1, -1, self.queries, -1), zeros, None, mask)

    def mean(self, share: Tensor, could: Tensor) -> _Score:
        """The mean over the rows that could show it; NaN where there is none."""
        counts = self.counts & could
        sums, rows = share.double().where(counts, 0.0).sum((0, 2)), counts.sum((0, 2))
        return _Score(sums.div(rows).clamp(0.0, 1.0), rows >= ENOUGH * self.counts.sum((0, 2)))

    def on(self, where: Mask) -> tuple[Tensor, Tensor]:
        """Each row's weight on some pairs, and whether it may attend to any of them."""
        m = self.m
        part = AttentionMap(m.q, m.k, None, where if m.mask is None else m.mask & where, **m.score_options)
        able = self._equal(where if self.mask is None else self.mask & where)
        # Rows without any key have lse -inf in both; they do not count.
        return (part.lse - self.norm).exp(), able.lse > -torch.inf

    def on_same(self, step: int) -> tuple[Tensor, Tensor]:
        """Likewise on the keys that stand so many places behind the other occurrences of the row's token.

        For a step of 0 these are all others, for 1 the earlier ones, and keys before the row. Only such pairs are
        computed: tokens that come equally often at a time.
        """
        share = torch.zeros(self.batch, self.heads, self.queries, dtype=torch.float64, device=self.m.device)
        able = torch.zeros_like(share, dtype=torch.bool)
        heads = torch.arange(self.heads, device=self.m.device)[:, None, None, None]
        sees = None if self.mask is None else self.mask.predicate(self.queries, self.keys, self.m.device)
        for b, text in enumerate(self.ids()):
            for places, looking in _repeated(text, self.offset):
                count = max(1, CHUNK_SCORES // (self.heads * places.shape[1]))
                several = max(1, count // looking)
                for alike in torch.split(places, several):
                    keys = (alike + step).clamp(max=self.keys - 1)
                    for here in torch.split(alike[:, -looking:], count, dim=1):
                        rows, towards = here - self.offset, (alike + step)[:, None]
                        may = (towards < here[..., None] if step else towards != here[..., None])[None]
                        if sees is not None:
                            row = torch.tensor(b, device=keys.device)
                            may = may & sees(row, heads, rows[..., None], keys[:, None])
                        weights = (self._scores(b, rows, keys) - self.norm[b][:, rows, None]).exp()
                        share[b][:, rows] = weights.where(may, 0.0).sum(-1)
                        able[b][:, rows] = may.any(-1).expand(self.heads, -1, -1)
        return share, able

    def _scores(self, b: int, rows: Tensor, keys: Tensor) -> Float[Tensor, "heads tokens rows keys"]:
        """What the softmax takes in float64, for some rows (tokens, rows) and keys (tokens, keys) of a text."""
        call = self.asked
        q, k = (t[b][:, at].double() for t, at in ((self.m.q, rows), (self.m.k, keys)))
        # Heads that share keys stand side by side.
        scores = (q.view(len(k), -1, *q.shape[1:]) @ k.mT[:, None]).flatten(0, 1) * call.scale
        if call.softcap is not None:
            scores = call.softcap * torch.tanh(scores / call.softcap)
        if isinstance(call.bias, Tensor):
            bias = call.bias[b if len(call.bias) > 1 else 0]
            at = (rows[..., None] if bias.shape[1] > 1 else 0, keys[:, None] if bias.shape[2] > 1 else 0)
            bias = bias[(slice(None), *at)]
            scores = scores + (bias if bias.ndim > 1 else bias[:, None, None, None])
        elif call.bias is not None:
            each = zip(rows + self.offset, keys, strict=True)
            scores = scores + torch.stack([call.bias(query, key) for query, key in each], 1)
        return scores

    def delimiters(self) -> Bool[Tensor, "#batch keys"] | None:
        """Which keys are delimiters; None without tokens."""
        if self.m.tokens is None:
            return None
        return torch.tensor([[is_delimiter(token) for token in text] for text in _texts(self.m.tokens[1])])

    def on_groups(self, delimiters: Tensor | None) -> tuple[_Score, _Score]:
        """The mean weight on the first token, and on delimiters behind it."""
        first = torch.zeros(self.batch, dtype=torch.long, device=self.m.device)
        if self.own is not None and self.offset == 0:
            first = self.own.any(1).to(torch.uint8).argmax(-1)
        group = torch.zeros(self.batch, self.keys, dtype=torch.long, device=self.m.device)
        if delimiters is not None:
            group[delimiters.to(group.device).expand_as(group)] = 1
        group.scatter_(1, first[:, None], 2)
        sums = self.m.mass(group)
        may = self._equal(self.mask, self.batch).mass(group) > 0
        own = self.position == first[:, None]
        on_first = self.mean(sums[..., 2], may[..., 2] & ~own[:, None] if not self.cross else may[..., 2])
        return on_first, self.mean(sums[..., 1], may[..., 1])

    def ids(self) -> Tensor:
        """Each key's token as a number, (batch, keys); the same for the same token."""
        assert self.m.tokens is not None
        known: dict[str, int] = {}
        texts = [[known.setdefault(token, len(known)) for token in text] for text in _texts(self.m.tokens[1])]
        return torch.tensor(texts, device=self.m.device)

    def breadth(self) -> _Score:
        """The mean entropy, as a share of the largest that there could be."""
        return self.mean(self.entropy / self.visible, self.counts)


def _texts(tokens: Tokens) -> list[list[str]]:
    """The tokens of each text, where there may be one."""
    return [tokens] if not tokens or isinstance(tokens[0], str) else tokens  # type: ignore[list-item]


def _repeated(text: Int[Tensor, " keys"], offset: int) -> Iterator[tuple[Int[Tensor, "tokens places"], int]]:
    """Where the tokens stand that come more than once, and how many of these places are rows: the last so many.

    Together are those of which both are the same. There are few such kinds: n different ones need n^2 / 2 tokens.
    """
    order = text.argsort(stable=True)
    counts = torch.unique_consecutive(text[order], return_counts=True)[1]
    start = counts.cumsum(0) - counts
    token = torch.arange(len(counts), device=text.device).repeat_interleave(counts)
    rows = torch.zeros_like(counts).index_add_(0, token, (order >= offset).long())
    for places, looking in torch.unique(torch.stack([counts, rows], 1)[(counts > 1) & (rows > 0)], dim=0).tolist():
        alike = start[(counts == places) & (rows == looking)]
        yield order[alike[:, None] + torch.arange(places, device=text.device)], looking
