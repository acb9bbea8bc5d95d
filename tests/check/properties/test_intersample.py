"""Samples of a batch that attend to each other: meant so only where names or documentation say so."""

from __future__ import annotations

import pytest
from torch import Tensor, nn

from property_cases import WIDTH, drawn, split
from property_cases import joined as merged
from regard.check.properties.analyze import analyze
from regard.check.properties.documentation import lets_samples_attend
from regard.check.target import Invocation, Stream
from regard.check.target.preparation import prepare

TOKENS = 5


class Attention(nn.Module):
    axis = -1

    def __init__(self, width: int = WIDTH * TOKENS) -> None:
        super().__init__()
        self.q, self.k, self.v, self.out = (nn.Linear(width, width) for _ in range(4))
        self.root = (width / 2) ** 0.5

    def forward(self, x: Tensor) -> Tensor:
        q, k, v = (split(each(x)) for each in (self.q, self.k, self.v))
        return self.out(merged((q @ k.mT / self.root).softmax(self.axis) @ v))


class Intersample(nn.Module):
    """Intersample attention: each sample of the batch is one token."""

    def __init__(self) -> None:
        super().__init__()
        self.attention = Attention()

    def forward(self, x: Tensor) -> Tensor:
        return self.attention(x.flatten(1)[None])[0].view(x.shape)


class ByColumnsAndRows(Intersample):
    """Features attend to each other, and then there is attention between samples."""

    def __init__(self) -> None:
        super().__init__()
        self.columns = Attention(WIDTH)

    def forward(self, x: Tensor) -> Tensor:
        return super().forward(x + self.columns(x))


class OverQueries(Intersample):
    def __init__(self) -> None:
        super().__init__()
        self.attention.axis = -2


class Unsaid(Intersample):
    """Attention of a vector for each sample."""


def found(kind: type[nn.Module]) -> set[tuple[str, str]]:
    module = kind()
    prepare(module, 1)
    call = Invocation(module, {"x": drawn(3, TOKENS, WIDTH, seed=0)}, ["x"], [Stream("x", "x", 0, (1,))])
    return {(each.kind, each.property) for each in analyze(call).findings if each.kind in ("violation", "design")}


@pytest.mark.parametrize("kind", [Intersample, ByColumnsAndRows])
def test_samples_may_attend_to_each_other_where_it_says_so(kind: type[nn.Module]) -> None:
    assert found(kind) == {("design", "samples-attend")}


def test_a_mistake_among_samples_is_found() -> None:
    assert ("violation", "softmax-over-keys") in found(OverQueries)


def test_samples_stay_apart_where_nothing_is_said() -> None:
    assert ("violation", "samples-apart") in found(Unsaid)


def told(text: str) -> bool:
    return lets_samples_attend(type("Told", (nn.Module,), {"__doc__": text})())


@pytest.mark.parametrize(
    "text", ["Attention across the batch.", "Samples attend to each other; data points interact among instances."]
)
def test_words_for_it(text: str) -> None:
    assert told(text)


@pytest.mark.parametrize(
    "text", ["There is no attention across samples.", "The mask is shared across the batch.", "x: b n d -> b d"]
)
def test_other_words(text: str) -> None:
    assert not told(text)
