"""Settings that are kept, and that nothing reads."""

from __future__ import annotations

from torch import Tensor, nn

from property_cases import WIDTH, Case, of_module, split


class Read(nn.Module):
    """Attention over the keys of a text.

    scales_queries=True divides queries by the root of the width, and scales_queries=False the scores.
    """

    def __init__(self, scales_queries: bool = False) -> None:
        super().__init__()
        self.scales_queries = scales_queries
        self.qkv = nn.Linear(WIDTH, 3 * WIDTH)

    def forward(self, x: Tensor) -> Tensor:
        q, k, v = map(split, self.qkv(x).chunk(3, -1))
        root = q.shape[-1] ** 0.5
        scores = (q / root) @ k.mT if self.scales_queries else q @ k.mT / root
        return (scores.softmax(-1) @ v).transpose(1, 2).flatten(2)


class Kept(nn.Module):
    """Attention over the keys of a text.

    in_pairs=True computes it for two heads at once, and in_pairs=False for one after the other.
    """

    def __init__(self, in_pairs: bool = False) -> None:
        super().__init__()
        self.in_pairs = in_pairs
        self.qkv = nn.Linear(WIDTH, 3 * WIDTH)

    def forward(self, x: Tensor) -> Tensor:
        q, k, v = map(split, self.qkv(x).chunk(3, -1))
        return ((q @ k.mT / q.shape[-1] ** 0.5).softmax(-1) @ v).transpose(1, 2).flatten(2)


def chosen() -> nn.Module:
    """As it is not by default."""
    return Kept(in_pairs=True)


def read() -> nn.Module:
    """The same of one that asks for it."""
    return Read(scales_queries=True)


CASES = [Case("settings-read", chosen, right, of_module, has_line=False) for right in (read, Kept)]
