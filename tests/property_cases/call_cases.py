"""What a call of a module leaves as it was: train() and eval(), and the parameters that it was made with."""

from __future__ import annotations

from dataclasses import replace

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from property_cases import WIDTH, Case, joined, of_module, split
from regard.check.target import Invocation


class ReadsItsMode(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.qkv, self.p = nn.Linear(WIDTH, 3 * WIDTH), 0.1

    def forward(self, x: Tensor) -> Tensor:
        q, k, v = map(split, self.qkv(x).chunk(3, -1))
        weights = (q @ k.mT / q.shape[-1] ** 0.5).softmax(-1)
        return joined(F.dropout(weights, self.p, training=self.training) @ v)


class SetsItsMode(ReadsItsMode):
    def __init__(self) -> None:
        super().__init__()
        self.p = 0.0  # what is on drops nothing here

    def forward(self, x: Tensor, training: bool = True) -> Tensor:
        self.training = training
        return super().forward(x)


class TakesItsMode(ReadsItsMode):
    def forward(self, x: Tensor, training: bool = True) -> Tensor:
        return super().forward(x)


def of_module_not_in_training(kind: type[nn.Module]) -> Invocation:
    """A call that is told that nothing is trained, where the call's own default is that it is."""
    call = of_module(kind)
    return replace(call, arguments={**call.arguments, "training": False})


class AddsPositions(ReadsItsMode):
    """Vectors of positions may be added to the tokens."""

    def forward(self, x: Tensor, pos: Tensor | None = None) -> Tensor:
        return super().forward(x if pos is None else x + pos)


class AddsPositionsInPlace(ReadsItsMode):
    def forward(self, x: Tensor, pos: Tensor | None = None) -> Tensor:
        if pos is not None:
            x += pos  # here
        return super().forward(x)


class AddsWhatIsNotAnnotated(ReadsItsMode):
    def forward(self, x, pos=None):  # type: ignore[no-untyped-def]
        if pos is not None:
            x += pos  # here
        return super().forward(x)


class MadeAtTheFirstCall(nn.Module):
    def forward(self, x: Tensor) -> Tensor:
        if not hasattr(self, "qkv"):
            self.qkv = nn.Linear(WIDTH, 3 * WIDTH).to(x)
        q, k, v = map(split, self.qkv(x).chunk(3, -1))
        return joined((q @ k.mT / q.shape[-1] ** 0.5).softmax(-1) @ v)


class MadeAtEachCall(nn.Module):
    def forward(self, x: Tensor) -> Tensor:
        q, k, v = map(split, nn.Linear(WIDTH, 3 * WIDTH).to(x)(x).chunk(3, -1))  # here
        return joined((q @ k.mT / q.shape[-1] ** 0.5).softmax(-1) @ v)


class MixedByShares(ReadsItsMode):
    """Two shares, which are a softmax of parameters."""

    def __init__(self) -> None:
        super().__init__()
        self.shares = nn.Parameter(torch.tensor([0.2, 0.7]))

    def forward(self, x: Tensor) -> Tensor:
        one, two = self.shares.softmax(0)
        return super().forward(x) * one + x * two


class KeepsItsShares(MixedByShares):
    def forward(self, x: Tensor) -> Tensor:
        self.shares = nn.Parameter(self.shares.softmax(0))  # here
        return super().forward(x)


class PositiveAlone(ReadsItsMode):
    """Twice what is positive."""

    def forward(self, x: Tensor) -> Tensor:
        return self.twice(super().forward(x).relu())

    def twice(self, y: Tensor) -> Tensor:
        return y * 2


class WrittenOver(PositiveAlone):
    def twice(self, y: Tensor) -> Tensor:
        return y.mul_(2)


class DropsACopy(ReadsItsMode):
    """Layers that drop numbers of weights, in training."""

    in_place = False

    def __init__(self) -> None:
        super().__init__()
        self.drop = nn.Dropout(0.1, inplace=self.in_place)

    def forward(self, x: Tensor) -> Tensor:
        q, k, v = map(split, self.qkv(x).chunk(3, -1))
        return joined(self.drop((q @ k.mT / q.shape[-1] ** 0.5).softmax(-1)) @ v)


class DropsInPlace(DropsACopy):
    in_place = True


class HoldsHeadsApart(ReadsItsMode):
    """A penalty beside the output, of queries that read the same keys."""

    def __init__(self) -> None:
        super().__init__()
        self.unit = torch.zeros(1, 1, dtype=torch.float64)

    def count(self, weights: Tensor) -> int:
        return len(weights)

    def forward(self, x: Tensor) -> tuple[Tensor, Tensor]:
        q, k, v = map(split, self.qkv(x).chunk(3, -1))
        weights = (q @ k.mT / q.shape[-1] ** 0.5).softmax(-1)
        penalty = (weights @ weights.mT).square().sum() / self.count(weights)
        return joined(weights @ v), penalty


class HoldsThemApartByTheLast(HoldsHeadsApart):
    def count(self, weights: Tensor) -> int:
        before = len(self.unit)
        self.unit = self.unit[:1].expand(len(weights), -1)
        return before


class KeepsItsAngles(nn.Module):
    """Rotary positions from an offset; tables are kept for the calls to come."""

    def __init__(self) -> None:
        super().__init__()
        self.qkv, self.kept = nn.Linear(WIDTH, 3 * WIDTH), dict[object, Tensor]()

    def known_by(self, length: int, offset: int) -> object:
        return length, offset

    def rotated(self, x: Tensor, offset: int) -> Tensor:
        key = self.known_by(x.shape[-2], offset)
        if key not in self.kept:
            places = torch.arange(x.shape[-2]).to(x) + offset
            self.kept[key] = places[:, None] * torch.tensor([1.0, 0.1]).to(x).repeat(2)
        left, right = x.chunk(2, -1)
        angles = self.kept[key][: x.shape[-2]]
        return x * angles.cos() + torch.cat((-right, left), -1) * angles.sin()

    def forward(self, x: Tensor, offset: int = 0) -> Tensor:
        q, k, v = map(split, self.qkv(x).chunk(3, -1))
        scores = self.rotated(q, offset) @ self.rotated(k, offset).mT / q.shape[-1] ** 0.5  # here
        return joined(scores.softmax(-1) @ v)


class KeepsThemByTheLength(KeepsItsAngles):
    def known_by(self, length: int, offset: int) -> object:
        return length


class KeepsThoseOfTheFirstCall(KeepsItsAngles):
    def known_by(self, length: int, offset: int) -> object:
        return offset


class LearnedTemperature(nn.Module):
    """Queries and keys of length one, times a learned number."""

    def __init__(self) -> None:
        super().__init__()
        self.qkv, self.temperature = nn.Linear(WIDTH, 3 * WIDTH), nn.Parameter(torch.tensor(3.0))

    def forward(self, x: Tensor) -> Tensor:
        q, k, v = map(split, self.qkv(x).chunk(3, -1))
        scores = F.normalize(q, dim=-1) @ F.normalize(k, dim=-1).mT * self.factor()
        return joined(scores.softmax(-1) @ v)

    def factor(self) -> Tensor | float:
        return self.temperature


class TemperatureAsANumber(LearnedTemperature):
    def factor(self) -> float:
        return self.temperature.item()


class LearnedBias(nn.Module):
    """A learned number for each distance is added to the scores."""

    def __init__(self) -> None:
        super().__init__()
        self.qkv, self.rel_bias = nn.Linear(WIDTH, 3 * WIDTH), nn.Parameter(torch.linspace(0.0, 2.0, 15))

    def forward(self, x: Tensor) -> Tensor:
        q, k, v = map(split, self.qkv(x).chunk(3, -1))
        places = torch.arange(x.shape[1])
        scores = q @ k.mT / q.shape[-1] ** 0.5 + self.table()[places[:, None] - places + 7]
        return joined(scores.softmax(-1) @ v)

    def table(self) -> Tensor:
        return self.rel_bias


class BiasAsData(LearnedBias):
    def table(self) -> Tensor:
        return self.rel_bias.data


class OfSegments(nn.Module):
    """The vector of each token's segment is added; that of segment 0 is padding's, and the call has no other."""

    def __init__(self) -> None:
        super().__init__()
        self.qkv, self.segments = nn.Linear(WIDTH, 3 * WIDTH), nn.Embedding(3, WIDTH, padding_idx=0)

    def forward(self, x: Tensor) -> Tensor:
        q, k, v = map(split, self.qkv(x + self.of(torch.zeros(x.shape[:2], dtype=torch.long))).chunk(3, -1))
        return joined((q @ k.mT / q.shape[-1] ** 0.5).softmax(-1) @ v)

    def of(self, segments: Tensor) -> Tensor:
        return self.segments(segments)


class SegmentsAsData(OfSegments):
    def of(self, segments: Tensor) -> Tensor:
        return self.segments.weight.data[segments + 1]


class ReadInSteps(ReadsItsMode):
    """A sequence at once, or token by token after begin()."""

    def __init__(self) -> None:
        super().__init__()
        self.first: Tensor | None = None
        self.past: list[Tensor] = []

    def begin(self) -> None:
        self.first, self.past = None, []

    def step(self, x: Tensor) -> Tensor:
        self.first = x if self.first is None else self.first
        self.past.append(x)
        return super().forward(torch.cat((self.first, *self.past), 1))[:, -1:]


class KeepsTheFirst(ReadInSteps):
    def begin(self) -> None:
        self.past = []


class EmptiesTheRest(KeepsTheFirst):
    """Another method empties what begin() leaves."""

    def reset_state(self) -> None:
        self.first = None


class AnswersEach(ReadsItsMode):
    """Some numbers are read from each of several texts."""

    def __init__(self) -> None:
        super().__init__()
        self.kept: Tensor | None = None

    def answers(self, x: Tensor) -> Tensor:
        self.kept = None
        return torch.cat([self._one(x) for _ in range(2)], 1)

    def _one(self, x: Tensor) -> Tensor:
        if self.kept is None:
            self.kept = self(x)
        return x[:, :1] + self.kept.mean(1, keepdim=True)


class AnswersByTheFirst(AnswersEach):
    def answers(self, x: Tensor) -> Tensor:
        return torch.cat([self._one(x) for _ in range(2)], 1)


class AnswersByTheShape(ReadsItsMode):
    """What is kept is not there at first, and is known by the shape of its text."""

    def answers(self, x: Tensor) -> Tensor:
        if getattr(self, "shape", None) != x.shape:
            self.shape, self.read = x.shape, self(x)
        return x[:, :1] + self.read.mean(1, keepdim=True)


class KeptUntilReset(AnswersByTheFirst):
    """Answers are by the first text until reset() is called."""

    def reset(self) -> None:
        self.kept = None


class GoesOn(AnswersEach):
    """A sum of all that was read."""

    def _one(self, x: Tensor) -> Tensor:
        self.kept = self(x) if self.kept is None else self.kept + self(x)
        return x[:, :1] + self.kept.mean(1, keepdim=True)

    def answers(self, x: Tensor) -> Tensor:
        return self._one(x)


CASES = [
    *(
        Case("kept-of-its-input", AnswersByTheFirst, right, of_module, has_line=False)
        for right in (AnswersEach, KeptUntilReset, GoesOn)
    ),
    Case("kept-of-its-input", AnswersByTheShape, AnswersEach, of_module, has_line=False),
    Case("begun-anew", KeepsTheFirst, ReadInSteps, of_module, has_line=False),
    Case("begun-anew", KeepsTheFirst, EmptiesTheRest, of_module, has_line=False),
    Case("gradient", BiasAsData, LearnedBias, of_module, has_line=False),
    Case("gradient", SegmentsAsData, OfSegments, of_module, has_line=False),
    Case("calls-apart", KeepsThemByTheLength, KeepsItsAngles, of_module),
    Case("calls-apart", KeepsThoseOfTheFirstCall, KeepsItsAngles, of_module, has_line=False),
    Case("gradient", TemperatureAsANumber, LearnedTemperature, of_module, has_line=False),
    Case("stays-in-eval", SetsItsMode, ReadsItsMode, of_module, has_line=False),
    Case("stays-in-eval", SetsItsMode, TakesItsMode, of_module_not_in_training, has_line=False),
    Case("inputs-kept", AddsPositionsInPlace, AddsPositions, of_module),
    Case("inputs-kept", AddsWhatIsNotAnnotated, AddsPositions, of_module),
    Case("parameters-kept", MadeAtEachCall, MadeAtTheFirstCall, of_module),
    Case("parameters-kept", KeepsItsShares, MixedByShares, of_module),
    Case("gradients-computed", WrittenOver, PositiveAlone, of_module, has_line=False),
    Case("gradients-computed", DropsInPlace, DropsACopy, of_module, has_line=False),
    Case("calls-alike", HoldsThemApartByTheLast, HoldsHeadsApart, of_module, has_line=False),
]
