"""Models of two blocks: where their norms stand, and what is added to what, how often."""

from __future__ import annotations

from torch import Tensor, nn

from property_cases import WIDTH, Case, of_module


class PreNormBlock(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.attention = nn.MultiheadAttention(WIDTH, 2, batch_first=True)
        self.norm1, self.norm2 = nn.LayerNorm(WIDTH), nn.LayerNorm(WIDTH)
        self.mlp = nn.Sequential(nn.Linear(WIDTH, 3 * WIDTH), nn.GELU(), nn.Linear(3 * WIDTH, WIDTH))

    def attended(self, x: Tensor) -> Tensor:
        return self.attention(x, x, x, need_weights=False)[0]

    def forward(self, x: Tensor) -> Tensor:
        x = x + self.attended(self.norm1(x))
        return x + self.mlp(self.norm2(x))


class PostNormBlock(PreNormBlock):
    def forward(self, x: Tensor) -> Tensor:
        x = self.norm1(x + self.attended(x))
        return self.norm2(x + self.mlp(x))


class NormsBehindTheSublayers(PreNormBlock):
    """As in Swin Transformer V2."""

    def forward(self, x: Tensor) -> Tensor:
        x = x + self.norm1(self.attended(x))
        return x + self.norm2(self.mlp(x))


class PreNormAndPostNorm(PreNormBlock):
    def forward(self, x: Tensor) -> Tensor:
        x = x + self.attended(self.norm1(x))  # here
        return self.norm2(x + self.mlp(x))


class PreNormAndBehind(PreNormBlock):
    def forward(self, x: Tensor) -> Tensor:
        x = x + self.attended(self.norm1(x))  # here
        return x + self.norm2(self.mlp(x))


class NetworkOfTheFirstNorm(PreNormBlock):
    def forward(self, x: Tensor) -> Tensor:
        normed = self.norm1(x)
        return x + self.attended(normed) + self.mlp(self.norm2(normed))  # here


class BesideEachOther(PreNormBlock):
    """The attention and the network read the same vectors, as in GPT-NeoX."""

    def forward(self, x: Tensor) -> Tensor:
        return x + self.attended(self.norm1(x)) + self.mlp(self.norm2(x))


class BothAroundTheAttention(PreNormBlock):
    """As in compact convolutional transformers (CCT): the network reads what the second norm returned."""

    def forward(self, x: Tensor) -> Tensor:
        x = self.norm2(x + self.attended(self.norm1(x)))
        return x + self.mlp(x)


class Model(nn.Module):
    kind: type[nn.Module] = PreNormBlock

    def __init__(self) -> None:
        super().__init__()
        self.blocks = nn.ModuleList(self.kind() for _ in range(2))

    def forward(self, x: Tensor) -> Tensor:
        first = x
        for block in self.blocks:
            x = self.passed(block, x)
        return self.ended(first, x)

    def passed(self, block: nn.Module, x: Tensor) -> Tensor:
        return block(x)

    def ended(self, first: Tensor, x: Tensor) -> Tensor:
        return x


class ModelOfPostNorm(Model):
    kind = PostNormBlock


class ModelBehind(Model):
    kind = NormsBehindTheSublayers


class ModelOfBothAround(Model):
    kind = BothAroundTheAttention


class ModelOfBoth(Model):
    kind = PreNormAndPostNorm


class ModelOfOneBehind(Model):
    kind = PreNormAndBehind


class ModelOfTheFirstNorm(Model):
    kind = NetworkOfTheFirstNorm


class ModelBesideEachOther(Model):
    kind = BesideEachOther


class AddedByTheModelAsWell(Model):
    def passed(self, block: nn.Module, x: Tensor) -> Tensor:
        return x + block(x)  # here


class AroundAll(Model):
    """One more connection leads around all blocks."""

    def ended(self, first: Tensor, x: Tensor) -> Tensor:
        return first + x


CASES = [
    Case("norms-alike", ModelOfBoth, Model, of_module, attentions=2),
    Case("norms-alike", ModelOfBoth, ModelOfPostNorm, of_module, attentions=2),
    Case("norms-alike", ModelOfBoth, ModelOfBothAround, of_module, attentions=2),
    Case("norms-alike", ModelOfOneBehind, ModelBehind, of_module, attentions=2),
    Case("norms-apart", ModelOfTheFirstNorm, ModelBesideEachOther, of_module, attentions=2),
    Case("residual-once", AddedByTheModelAsWell, AroundAll, of_module, attentions=2),
]
