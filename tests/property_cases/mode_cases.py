"""What a call gives in another mode, with a log asked for, and after other calls."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from property_cases import WIDTH, Case, joined, of_module, of_x_and_context, of_x_and_lengths, split
from regard.check.target import Invocation
from regard.check.target.preparation import prepare


class Attention(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.qkv, self.out = nn.Linear(WIDTH, 3 * WIDTH), nn.Linear(WIDTH, WIDTH)

    def projected(self, x: Tensor) -> tuple[Tensor, ...]:
        return tuple(map(split, self.qkv(x).chunk(3, -1)))

    def forward(self, x: Tensor) -> Tensor:
        q, k, v = self.projected(x)
        return self.out(joined(self.read(q, k, v)))

    def read(self, q: Tensor, k: Tensor, v: Tensor) -> Tensor:
        return F.scaled_dot_product_attention(q, k, v)


class HidesWhileItTrains(Attention):
    p = 0.1

    def read(self, q: Tensor, k: Tensor, v: Tensor) -> Tensor:
        p = self.p if self.training else 0.0
        return F.scaled_dot_product_attention(q, k, v, dropout_p=p, is_causal=p > 0)


class HidesInBoth(HidesWhileItTrains):
    def read(self, q: Tensor, k: Tensor, v: Tensor) -> Tensor:
        return F.scaled_dot_product_attention(q, k, v, dropout_p=self.p if self.training else 0.0, is_causal=True)


class LeftOutWhileItTrains(Attention):
    """A whole branch of a sample may be left out: then no token sees any other."""

    def forward(self, x: Tensor) -> Tensor:
        y = super().forward(x)
        return x + (y * (torch.rand(len(y), 1, 1) < 0.2) * 5 if self.training else y)


class Logged(Attention):
    def forward(self, x: Tensor, log: dict[str, Tensor] | None = None) -> Tensor:
        q, k, v = self.projected(x)
        if log is not None:
            weights = (q @ k.mT / q.shape[-1] ** 0.5).softmax(-1)
            log["entropy"] = -(weights * weights.log()).sum(-1)
        return self.out(joined(self.read(q, k, v)))


class LoggedOfScaledQueries(Attention):
    def forward(self, x: Tensor, log: dict[str, Tensor] | None = None) -> Tensor:
        q, k, v = self.projected(x)
        if log is not None:
            q = q / q.shape[-1] ** 0.5
            log["entropy"] = -((weights := (q @ k.mT).softmax(-1)) * weights.log()).sum(-1)
        return self.out(joined(self.read(q, k, v)))


class ReturnsItsWeights(Attention):
    is_scaled = True

    def forward(self, x: Tensor, need_weights: bool = False) -> Tensor | tuple[Tensor, Tensor]:
        q, k, v = self.projected(x)
        if not need_weights:
            return self.out(joined(self.read(q, k, v)))
        weights = (q @ k.mT / (q.shape[-1] ** 0.5 if self.is_scaled else 1)).softmax(-1)
        return self.out(joined(weights @ v)), weights


class ReturnsOthers(ReturnsItsWeights):
    is_scaled = False


class CausalBesideItsWeights(Attention):
    forgets = False

    def forward(
        self, x: Tensor, causal: bool = False, return_attention_scores: bool = False
    ) -> Tensor | tuple[Tensor, Tensor]:
        q, k, v = self.projected(x)
        if not return_attention_scores:
            return self.out(joined(F.scaled_dot_product_attention(q, k, v, is_causal=causal)))
        scores = q @ k.mT / q.shape[-1] ** 0.5
        if causal and not self.forgets:
            scores = scores.masked_fill(torch.ones(scores.shape[-2:]).triu(1).bool(), -torch.inf)
        return self.out(joined(scores.softmax(-1) @ v)), scores.softmax(-1)


class ForgetsCausalBesideItsWeights(CausalBesideItsWeights):
    forgets = True


class RaisesBesideCausal(CausalBesideItsWeights):
    """It returns no weights of a causal attention."""

    def forward(
        self, x: Tensor, causal: bool = False, return_attention_scores: bool = False
    ) -> Tensor | tuple[Tensor, Tensor]:
        if causal and return_attention_scores:
            raise ValueError("one of both")
        return super().forward(x, causal, return_attention_scores)


class SumWithoutGradient(Attention):
    """A softmax by hand, whose largest score needs no gradient."""

    def read(self, q: Tensor, k: Tensor, v: Tensor) -> Tensor:
        scores = q @ k.mT / q.shape[-1] ** 0.5
        exponentials = (scores - scores.amax(-1, keepdim=True).detach()).exp()
        return (exponentials / exponentials.detach().sum(-1, keepdim=True)) @ v


class LargestWithoutGradient(Attention):
    """A softmax by hand, whose largest score needs no gradient."""

    def read(self, q: Tensor, k: Tensor, v: Tensor) -> Tensor:
        scores = q @ k.mT / q.shape[-1] ** 0.5
        exponentials = (scores - scores.amax(-1, keepdim=True).detach()).exp()
        return (exponentials / exponentials.sum(-1, keepdim=True)) @ v


class SumWithoutGradientOnPurpose(SumWithoutGradient):
    """Weights learn by the numerator alone."""

    def read(self, q: Tensor, k: Tensor, v: Tensor) -> Tensor:
        exponentials = (q @ k.mT / q.shape[-1] ** 0.5).exp()
        # the total is a constant for the backward pass
        return (exponentials / exponentials.sum(-1, keepdim=True).detach()) @ v


class Remembering(nn.Module):
    """The keys and values of a context are kept as long as it is the same."""

    def __init__(self) -> None:
        super().__init__()
        self.q, self.kv = nn.Linear(WIDTH, WIDTH), nn.Linear(WIDTH, 2 * WIDTH)
        self.memo: dict[str, Tensor] = {}

    def is_same(self, context: Tensor) -> bool:
        return self.memo["context"] is context

    def forward(self, x: Tensor, context: Tensor) -> Tensor:
        if not self.memo or not self.is_same(context):
            k, v = map(split, self.kv(context).chunk(2, -1))
            self.memo = {"context": context, "k": k, "v": v}
        return joined(F.scaled_dot_product_attention(split(self.q(x)), self.memo["k"], self.memo["v"]))


class RememberingByTheShape(Remembering):
    def is_same(self, context: Tensor) -> bool:
        return self.memo["context"].shape == context.shape


MASKS: dict[Any, Tensor] = {}


def remembered(key: Callable[[int, int], Any]) -> Callable[[int, int], Tensor]:
    def mask(rows: int, columns: int) -> Tensor:
        if key(rows, columns) not in MASKS:
            MASKS[key(rows, columns)] = torch.ones(rows, columns, dtype=torch.bool).tril(columns - rows)
        return MASKS[key(rows, columns)]

    return mask


by_columns = remembered(lambda rows, columns: columns)
by_both = remembered(lambda rows, columns: (rows, columns))


class MaskByColumns(Attention):
    def read(self, q: Tensor, k: Tensor, v: Tensor) -> Tensor:
        return F.scaled_dot_product_attention(q, k, v, attn_mask=by_columns(q.shape[-2], k.shape[-2]))


class MaskByBoth(Attention):
    def read(self, q: Tensor, k: Tensor, v: Tensor) -> Tensor:
        return F.scaled_dot_product_attention(q, k, v, attn_mask=by_both(q.shape[-2], k.shape[-2]))


class ReadAtTheLength(Attention):
    behind = 0

    def forward(self, x: Tensor, lengths: Tensor) -> Tensor:
        q, k, v = self.projected(x)
        read = self.out(joined(F.scaled_dot_product_attention(q, k, v, is_causal=True)))
        at = (lengths - self.behind).clamp(0, x.shape[1] - 1)
        return read[torch.arange(len(x)), at]


class ReadAtTheLastToken(ReadAtTheLength):
    behind = 1


class LastStateAsks(nn.Module):
    """The state behind the last real token asks all states."""

    def __init__(self) -> None:
        super().__init__()
        self.states, self.out = nn.GRU(WIDTH, WIDTH, batch_first=True), nn.Linear(2 * WIDTH, WIDTH)

    def asking(self, states: Tensor, lengths: Tensor) -> Tensor:
        return states[torch.arange(len(states)), lengths - 1]

    def forward(self, x: Tensor, lengths: Tensor) -> Tensor:
        states, _ = self.states(x)
        asking = self.asking(states, lengths)
        hidden = torch.arange(x.shape[1]) >= lengths[:, None]
        scores = (states @ asking[..., None]).squeeze(-1) / WIDTH**0.5
        weights = scores.masked_fill(hidden, -torch.inf).softmax(-1)
        return self.out(torch.cat([(weights[:, None] @ states).squeeze(1), asking], -1))


class LastOfAllAsks(LastStateAsks):
    """The last state asks all states."""

    def asking(self, states: Tensor, lengths: Tensor) -> Tensor:
        return states[:, -1]


class BothEndsAsk(LastOfAllAsks):
    """A layer from both ends carries padding to all tokens, whoever asks."""

    def __init__(self) -> None:
        super().__init__()
        self.states = nn.GRU(WIDTH, WIDTH // 2, batch_first=True, bidirectional=True)


def of_both(kind: Any) -> Invocation:
    module = kind()
    prepare(module, 1)
    return of_x_and_context(module)


def that_may_be_causal(kind: Any) -> Invocation:
    call = of_module(kind)
    call.causal_flags = ["causal"]
    return call


def after_a_call(kind: Any) -> Invocation:
    """A call of what has been called before, as a search for calls does."""
    call = of_module(kind)
    call.run()
    return call


CASES = [
    Case("hidden-in-both-modes", HidesWhileItTrains, HidesInBoth, of_module, has_line=False),
    Case("hidden-in-both-modes", HidesWhileItTrains, LeftOutWhileItTrains, of_module, has_line=False),
    Case("read-outs-change-nothing", LoggedOfScaledQueries, Logged, of_module, has_line=False),
    Case("read-outs-change-nothing", ReturnsOthers, ReturnsItsWeights, of_module, has_line=False),
    Case("mask-pattern", ForgetsCausalBesideItsWeights, CausalBesideItsWeights, that_may_be_causal, has_line=False),
    Case("mask-pattern", ForgetsCausalBesideItsWeights, RaisesBesideCausal, that_may_be_causal, has_line=False),
    Case("gradient-of-the-whole", SumWithoutGradient, LargestWithoutGradient, of_module, has_line=False),
    Case("gradient-of-the-whole", SumWithoutGradient, SumWithoutGradientOnPurpose, of_module, has_line=False),
    Case("kept-of-its-input", RememberingByTheShape, Remembering, of_both, has_line=False),
    Case("remembered-by-all", MaskByColumns, MaskByBoth, after_a_call, has_line=False),
    *(
        Case("read-at-the-last-token", LastOfAllAsks, right, partial(of_x_and_lengths, tokens=5), has_line=False)
        for right in (LastStateAsks, BothEndsAsk)
    ),
    Case(
        "read-at-the-last-token",
        ReadAtTheLength,
        ReadAtTheLastToken,
        partial(of_x_and_lengths, tokens=5),
        has_line=False,
    ),
]
