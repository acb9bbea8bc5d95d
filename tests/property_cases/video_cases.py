"""Attention over the frames of a video, and over the places of each frame."""

from __future__ import annotations

from torch import Tensor, nn

from property_cases import WIDTH, Case, drawn, joined, split
from regard.check.target import Invocation, Stream
from regard.check.target.preparation import prepare

FRAMES, PLACES = 3, 4


class OverTime(nn.Module):
    """Of (batch, frames, height, width, channels): each place reads itself in all frames."""

    def __init__(self) -> None:
        super().__init__()
        self.q, self.k, self.v, self.out = (nn.Linear(WIDTH, WIDTH) for _ in range(4))

    def forward(self, x: Tensor) -> Tensor:
        tokens = self.grouped(x.flatten(1, 3))
        q, k, v = (split(each(tokens)) for each in (self.q, self.k, self.v))
        return self.out(joined((q @ k.mT / (WIDTH // 2) ** 0.5).softmax(-1) @ v)).sum(1)  # here

    def grouped(self, tokens: Tensor) -> Tensor:
        """(groups, tokens, width), of tokens that are laid out frame by frame."""
        return tokens.unflatten(1, (FRAMES, PLACES)).transpose(1, 2).flatten(0, 1)


class OverTimeTakenApart(OverTime):
    def grouped(self, tokens: Tensor) -> Tensor:
        return tokens.unflatten(1, (PLACES, FRAMES)).flatten(0, 1)


def of_a_video(kind: type[nn.Module]) -> Invocation:
    module = kind()
    prepare(module, 1)
    x = drawn(2, FRAMES, 2, PLACES // 2, WIDTH, seed=0)
    return Invocation(module, {"x": x}, ["x"], [Stream("x", "x", 0, (1, 2, 3))])


CASES = [Case("frames-whole", OverTimeTakenApart, OverTime, of_a_video)]
