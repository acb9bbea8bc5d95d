"""Networks of layers in a row, which their documentation writes one by one."""

from __future__ import annotations

from torch import Tensor, nn

from property_cases import WIDTH, Case, joined, of_module, split


class EndsWithAReLU(nn.Module):
    """Linear + ReLU + Linear for each token."""

    def __init__(self) -> None:
        super().__init__()
        self.layers = nn.ModuleList([nn.Linear(WIDTH, 16), nn.Linear(16, WIDTH)])

    def forward(self, x: Tensor) -> Tensor:
        for each in self.layers:
            x = each(x).relu()
        return x


class EndsWithAMatrix(EndsWithAReLU):
    """Linear + ReLU + Linear for each token."""

    def forward(self, x: Tensor) -> Tensor:
        return self.layers[1](self.layers[0](x).relu())


class EndsWithAReLUAsItSays(EndsWithAReLU):
    """Linear + ReLU + Linear + ReLU for each token."""


class Block(nn.Module):
    """Attention, and then a network for each token."""

    network: type[nn.Module] = EndsWithAReLU

    def __init__(self) -> None:
        super().__init__()
        self.qkv = nn.Linear(WIDTH, 3 * WIDTH, bias=False)
        self.feed_forward = self.network()

    def forward(self, x: Tensor) -> Tensor:
        q, k, v = (split(each) for each in self.qkv(x).chunk(3, -1))
        x = x + joined((q @ k.mT / 2).softmax(-1) @ v)
        return x + self.feed_forward(x)


class BlockOfAMatrix(Block):
    """The same whose network ends with a matrix."""

    network = EndsWithAMatrix


class BlockAsItSays(Block):
    """The same whose network ends otherwise, and says so."""

    network = EndsWithAReLUAsItSays


CASES = [
    Case("ends-as-documented", Block, BlockOfAMatrix, of_module, has_line=False),
    Case("ends-as-documented", Block, BlockAsItSays, of_module, has_line=False),
]
