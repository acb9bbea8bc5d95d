"""Exercise 20: a decoder with a cache, fed in parts."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor, nn

from regard.attention import mask as masks
from regard.attention.steps import steps
from regard.check.mistakes.catalog import MISTAKES
from regard.exercises.problems.numbers import course_call
from regard.exercises.problems.problem import Call, OwnMistake, Problem, made, no_trail, variants_of

__all__ = ["DECODER", "WrongResult"]

PARTS = {
    "token_embedding": nn.Embedding,
    "position_embedding": nn.Embedding,
    **dict.fromkeys(("W_q", "W_k", "W_v", "W_o", "lm_head"), nn.Linear),
}


class WrongResult(Exception):
    """The learner's forward returned something else than logits and a cache."""


def _run(learner: Any, call: Call) -> tuple[Callable[[], Any], tuple[Any, ...]]:
    """Calls of the learner's decoder with the parts of a text; the definition reads the weights of the same module."""
    decoder = made(learner, call, PARTS)
    ids, parts = call.args

    def work() -> Tensor:
        logits, cache = [], None
        for part in torch.split(ids, list(parts)):
            returned = decoder(part) if cache is None else decoder(part, cache)
            if not isinstance(returned, tuple | list) or len(returned) != 2 or not isinstance(returned[0], Tensor):
                raise WrongResult(
                    f"the forward returned {type(returned).__name__}; it has to return two things, logits and cache"
                )
            logits.append(returned[0])
            cache = returned[1]
            if cache is None:
                raise WrongResult("the cache that the forward returned is None: nothing is remembered")
        return torch.cat(logits)

    return work, (decoder, ids, parts)


def _right(decoder: Any, ids: Tensor, _parts: tuple[int, ...]) -> Tensor:
    """The logits of one call with all tokens, by `regard.steps`."""
    h = decoder.token_embedding(ids) + decoder.position_embedding(torch.arange(len(ids)))
    q, k, v = (layer(h)[None, None] for layer in (decoder.W_q, decoder.W_k, decoder.W_v))
    attended = steps(q, k, v, masks.causal()).output[0, 0]
    return decoder.lm_head(h + decoder.W_o(attended))  # type: ignore[no-any-return]


@dataclass(frozen=True)
class _Choices:
    """What a decoder with a mistake does otherwise."""

    first_position: Callable[[int], int] = lambda past: past
    """Of the new tokens, by how many there were."""
    mask: str = "by past"
    kept: str = "all"
    """What is returned as the cache."""
    read: str = "all"
    """What is attended to."""
    fill: float = -torch.inf
    scale: str = "width"
    projected: bool = True
    residual: bool = True


class _Simulation:
    """A decoder with a mistake, fed in the same parts; the tensors of each call are kept."""

    def __init__(self, decoder: Any, choices: _Choices) -> None:
        self.decoder, self.choices = decoder, choices
        self.trail: list[Tensor] = []

    def logits(self, ids: Tensor, parts: tuple[int, ...]) -> Tensor:
        """Of all parts."""
        found, cache = [], None
        for part in torch.split(ids, list(parts)):
            logits, cache = self.forward(part, cache)
            found.append(logits)
        return torch.cat(found)

    def forward(self, ids: Tensor, cache: tuple[Tensor, Tensor, int] | None) -> tuple[Tensor, Any]:
        d, choices = self.decoder, self.choices
        past = 0 if cache is None else cache[2]
        first = choices.first_position(past)
        positions = torch.arange(first, first + len(ids))
        h = d.token_embedding(ids) + d.position_embedding(positions)
        q, k, v = d.W_q(h), d.W_k(h), d.W_v(h)
        new = (k, v)
        if cache is not None:
            k, v = self._joined(cache[:2], new)
        scores = q @ k.T
        scores = scores / {"width": q.shape[-1], "tokens": len(k), "none": 1}[choices.scale] ** 0.5
        may = self._mask(len(q), len(k), past)
        scores = scores.masked_fill(~may, choices.fill)
        attended = scores.softmax(-1) @ v
        attended = d.W_o(attended) if choices.projected else attended
        logits = d.lm_head(h + attended if choices.residual else attended)
        if past:
            self.trail += [positions.double(), k, scores, attended]
        kept = {"all": (k, v), "new": new, "swapped": (v, k), "first": cache[:2] if cache is not None else (k, v)}
        return logits, (*kept[choices.kept], self._counted(past, len(ids), kept[choices.kept]))

    def _counted(self, past: int, new: int, kept: tuple[Tensor, Tensor]) -> int:
        """How many tokens the next call believes there were: a learner reads it off the cached keys."""
        return len(kept[0])

    def _joined(self, cache: Any, new: tuple[Tensor, Tensor]) -> tuple[Tensor, Tensor]:
        read = self.choices.read
        pairs = zip(cache, new, strict=True)
        if read == "new":
            return new
        if read == "new first":
            k, v = (torch.cat((now, before)) for before, now in pairs)
        elif read == "old":
            k, v = cache
        elif read == "twice":
            k, v = (torch.cat((before, now, now)) for before, now in pairs)
        else:
            k, v = (torch.cat((before, now)) for before, now in pairs)
        return k, v

    def _mask(self, queries: int, keys: int, past: int) -> Tensor:
        ones = torch.ones(queries, keys, dtype=torch.bool)
        kind = self.choices.mask
        if kind == "none" or (kind == "none later" and past) or (kind == "none at first" and not past):
            return ones
        if kind == "first-aligned":
            return ones.tril()
        if kind == "inverted":
            return ~ones.tril(past)
        if kind == "strict":
            return ones.tril(past - 1)
        if kind == "ahead":
            return ones.tril(past + 1)
        return ones.tril(keys - queries if kind == "by keys" else past)


def _mistake(id_: str, step: str, message: str, impact: str, pattern: str = "", **choices: Any) -> OwnMistake:
    made_ = _Choices(**choices)

    def compute(decoder: Any, ids: Tensor, parts: tuple[int, ...]) -> Tensor:
        return _Simulation(decoder, made_).logits(ids, parts)

    return OwnMistake(id_, step, message, impact, compute, no_trail, pattern)


_OFFSET = "A token means another place in each call: the text that is generated differs from the one that was trained."
_FORGOTTEN = "Every token is generated as if most of the text had not been there."
MISTAKES_WITH_CACHES = (
    _mistake(
        "cache-position",
        "positions",
        "the positions of new tokens are counted from 0 in every call; they go on where the cache ends",
        _OFFSET,
        r"position|arange",
        first_position=lambda past: 0,
    ),
    _mistake(
        "cache-position",
        "positions",
        "the positions of new tokens begin one too late: the first new token stands right behind the cached ones",
        _OFFSET,
        r"position|arange|\+\s*1",
        first_position=lambda past: past + 1 if past else 0,
    ),
    _mistake(
        "cache-position",
        "positions",
        "the positions of new tokens begin one too early: they take the last cached token's place",
        _OFFSET,
        r"position|arange|-\s*1",
        first_position=lambda past: past - 1 if past else 0,
    ),
    _mistake(
        "cache-not-appended",
        "cache",
        "the cache that is returned holds the new keys and values alone: the old ones are lost after one call",
        _FORGOTTEN,
        r"return|cache\s*=",
        kept="new",
    ),
    _mistake(
        "cache-not-appended",
        "cache",
        "the cache stays as the first call left it: new keys and values are never added to what is returned",
        _FORGOTTEN,
        r"return|cache",
        kept="first",
    ),
    *(
        _mistake(
            "cache-ignored",
            "cache",
            "cached keys and values are not read: new tokens attend to one another alone",
            _FORGOTTEN,
            r"cache",
            read="new",
            kept="new",
            mask=mask,
        )
        for mask in ("by past", "by keys", "none")
    ),
    *(
        _mistake(
            "cache-ignored",
            "cache",
            "cached keys and values are not read, and positions are counted from 0 in every call: each call begins "
            "anew",
            _FORGOTTEN,
            r"cache",
            read="new",
            kept="new",
            first_position=lambda past: 0,
            mask=mask,
        )
        for mask in ("by keys", "by past", "none")
    ),
    _mistake(
        "cache-position",
        "positions",
        "positions are counted from 1: the first token of the text stands at 1",
        _OFFSET,
        r"position|arange|\+\s*1",
        first_position=lambda past: past + 1,
    ),
    _mistake(
        "cache-order",
        "cache",
        "new keys and values stand before the old ones: keys are no longer in the order of the text",
        "The mask hides other tokens than it means to.",
        r"cat",
        read="new first",
    ),
    _mistake(
        "cache-twice",
        "cache",
        "new keys and values are added twice",
        "New tokens count double, and all later positions are wrong.",
        r"cat",
        read="twice",
    ),
    _mistake(
        "cache-swapped",
        "cache",
        "keys and values have changed places in the cache: they are returned in another order than they are read",
        "Old keys are read as values.",
        r"return|cache",
        kept="swapped",
    ),
    _mistake(
        "cache-mask",
        "masked",
        "the mask does not count the cached keys: query i of this call sees the first i + 1 keys of the text, not "
        "those up "
        "to its own",
        "A new token sees only the beginning of the text, and not itself.",
        r"tril|triu|mask",
        mask="first-aligned",
    ),
    _mistake(
        "cache-mask",
        "masked",
        "there is no mask once there is a cache: of several new tokens, the first ones see the later ones",
        "It shows where a call has several new tokens, as in speculative decoding or a long prompt in parts.",
        r"tril|triu|masked_fill|mask",
        mask="none later",
    ),
    _mistake(
        "future-leak",
        "masked",
        "there is no mask: tokens of one call see the later ones",
        "The prompt is read as it is never read in training.",
        r"softmax",
        mask="none",
    ),
    *(
        _mistake(
            "mask-strict",
            "masked",
            "a token does not see itself; the mask allows keys up to and including its own position",
            "The first token has nothing to attend to.",
            r"tril|triu",
            mask="strict",
            fill=fill,
        )
        for fill in (-torch.inf, -1e9)
    ),
    *(
        _mistake(
            "mask-inverted",
            "masked",
            "the mask is inverted: tokens see later positions only",
            "In training it reads the answer; when it generates, there is no answer to read.",
            r"tril|triu|masked_fill",
            mask="inverted",
            fill=fill,
        )
        for fill in (-torch.inf, -1e9)
    ),
    _mistake(
        "scale-tokens",
        "scaled",
        "scores are divided by the root of the number of keys; the definition divides by that of the width",
        "With every token the same scores weigh less.",
        r"len|shape\[0|size\(0",
        scale="tokens",
    ),
    _mistake(
        "mask-one-ahead",
        "masked",
        "a token sees the one after it",
        "In training it reads the answer; when it generates, there is no answer to read.",
        r"tril|triu",
        mask="ahead",
    ),
    _mistake(
        "no-scale",
        "scaled",
        "scores are not divided by sqrt(d_model)",
        MISTAKES["no-scale"].impact,
        r"@|matmul",
        scale="none",
    ),
    _mistake(
        "out-projection-skipped",
        "projected",
        "W_o is there and has no effect",
        MISTAKES["out-projection-skipped"].impact,
        r"@ v|matmul|lm_head",
        projected=False,
    ),
    _mistake(
        "residual-missing",
        "block",
        "what the attention computes replaces h; it has to be added to it",
        MISTAKES["residual-missing"].impact,
        r"lm_head|W_o",
        residual=False,
    ),
)


def _calls() -> list[Call]:
    generator = torch.Generator().manual_seed(151)
    calls = [
        course_call(torch.tensor([0, 1, 2]), (2, 1), init=(3, 2, 8), setting="the course's tokens, two and then one")
    ]
    for seed, parts in ((1, (3, 1, 1, 1)), (2, (2, 3, 2)), (3, (1, 4)), (4, (6,))):
        tokens = sum(parts)
        ids = torch.randint(7, (tokens,), generator=generator)
        told = f"other tokens, {tokens} in parts of {', '.join(map(str, parts))}"
        calls.append(Call(told, (ids, parts), (7, 4, 12), seed))
    return calls


DECODER = Problem(calls=_calls, right=_right, variants=variants_of(*MISTAKES_WITH_CACHES), run=_run)
