"""Series of several channels, each of which is a sequence by itself."""

from __future__ import annotations

from torch import Tensor, nn

from property_cases import WIDTH, Case, drawn
from property_cases.surrounding_cases import Attention
from regard.check.target import Invocation, Stream
from regard.check.target.preparation import prepare

STEPS, PATCH, CHANNELS = 8, 4, 3


class EachByItself(Attention):
    """Channel independence: each channel is predicted from its own past alone."""

    def __init__(self) -> None:
        super().__init__()
        self.positions = nn.Embedding(3, WIDTH)
        self.first, self.last = nn.Linear(PATCH, WIDTH), nn.Linear(WIDTH, 1)

    def forward(self, x: Tensor) -> Tensor:
        out = self.last(super().forward(self.first(self.rows(x).unfold(-1, PATCH, 2)))).squeeze(-1)
        return out.unflatten(0, (len(x), CHANNELS)).mT  # type: ignore[no-any-return]

    def rows(self, x: Tensor) -> Tensor:
        return x.mT.flatten(0, 1)


class Interleaved(EachByItself):
    """Channel independence: each channel is predicted from its own past alone."""

    def rows(self, x: Tensor) -> Tensor:
        return x.reshape(-1, STEPS)


class AsAChoice(Interleaved):
    """Channel independence, where it is asked for."""


def of_series(kind: type[nn.Module]) -> Invocation:
    """A call of a series of channels."""
    module = kind()
    prepare(module, 1)
    return Invocation(module, {"x": drawn(2, STEPS, CHANNELS, seed=0)}, ["x"], [Stream("x", "x", 0, (1,))])


CASES = [
    Case("channels-apart", Interleaved, EachByItself, of_series, has_line=False),
    Case("channels-apart", Interleaved, AsAChoice, of_series, has_line=False),
]
