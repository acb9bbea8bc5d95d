"""Norms and feed-forward networks that are written by hand, and numbers that are made and not used."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial

import torch
from torch import Tensor, nn

from property_cases import WIDTH, Case, drawn, of_module
from property_cases.surrounding_cases import Attention
from regard.check.target import Invocation, Stream


class WidthAsEps(nn.RMSNorm):
    """Its second argument is the number that is added to the variance."""

    def __init__(self) -> None:
        super().__init__(WIDTH, WIDTH)


class OfItsWidth(nn.RMSNorm):
    def __init__(self) -> None:
        super().__init__(WIDTH)


class MeanAdded(nn.Module):
    """Called a norm: so it is held against what norms do."""

    def __init__(self) -> None:
        super().__init__()
        self.gain, self.bias = nn.Parameter(torch.ones(WIDTH)), nn.Parameter(torch.zeros(WIDTH))

    def forward(self, x: Tensor) -> Tensor:
        return self.gain * self.centred(x) / self.divisor(x) + self.bias

    def centred(self, x: Tensor) -> Tensor:
        return x + x.mean(-1, keepdim=True)

    def divisor(self, x: Tensor) -> Tensor:
        return x.std(-1, keepdim=True) + 1e-6


class LayerNormOfTheSum(MeanAdded):
    pass


class LayerNormByHand(MeanAdded):
    def centred(self, x: Tensor) -> Tensor:
        return x - x.mean(-1, keepdim=True)


class LayerNormOverTheVariance(LayerNormByHand):
    def divisor(self, x: Tensor) -> Tensor:
        return x.var(-1, keepdim=True, unbiased=False) + 1e-6


class RMSNormByHand(MeanAdded):
    def centred(self, x: Tensor) -> Tensor:
        return x

    def divisor(self, x: Tensor) -> Tensor:
        return (x.square().mean(-1, keepdim=True) + 1e-6).sqrt()


class Block(Attention):
    norm_of: type[nn.Module] = LayerNormByHand

    def __init__(self) -> None:
        super().__init__()
        self.before, self.w_1, self.w_2 = self.norm_of(), nn.Linear(WIDTH, 3 * WIDTH), nn.Linear(3 * WIDTH, WIDTH)

    def forward(self, x: Tensor) -> Tensor:
        x = x + super().forward(self.before(x))
        hidden = self.w_1(self.before(x))
        return x + self.w_2(self.bent(hidden))  # here

    def bent(self, hidden: Tensor) -> Tensor:
        return hidden * hidden.sigmoid()


class BlockOfMeanAdded(Block):
    norm_of = MeanAdded


class BlockOfAWideEps(Block):
    norm_of = WidthAsEps


class BlockOfItsWidth(Block):
    norm_of = OfItsWidth


class BlockOfTheSum(Block):
    norm_of = LayerNormOfTheSum


class BlockOverTheVariance(Block):
    norm_of = LayerNormOverTheVariance


class BlockOfRMSNorm(Block):
    norm_of = RMSNormByHand


class BlockWithoutAnActivation(Block):
    def bent(self, hidden: Tensor) -> Tensor:
        return 0.5 * hidden


class BlockWithoutAnActivationInPlace(Block):
    def bent(self, hidden: Tensor) -> Tensor:
        return hidden.mul_(0.5).add_(1.0)


class BlockOfLowRank(Block):
    """Two matrices make the scores of its channels, for which one of less rank would do; then comes a softmax."""

    def __init__(self) -> None:
        super().__init__()
        self.narrow, self.wide = nn.Linear(WIDTH, 2 * WIDTH), nn.Linear(2 * WIDTH, WIDTH)

    def forward(self, x: Tensor) -> Tensor:
        x = super().forward(x)
        return x + x * self.wide(self.narrow(x)).softmax(-1)


class GatedByAWideState(Block):
    """Of a wide state is made what is added, and a gate of it: without an activation before the first."""

    def bent(self, hidden: Tensor) -> Tensor:
        return hidden

    def forward(self, x: Tensor) -> Tensor:
        x = x + Attention.forward(self, self.before(x))
        state = self.w_1(x)
        return x + self.w_2(state) * state.mean(-1, keepdim=True).sigmoid()


class ReadOutAtOnce(Block):
    """Attention's output matrix is followed by one that reads out, and no residual stands between the two."""

    def __init__(self) -> None:
        super().__init__()
        self.out, self.w_1 = self.w_1, nn.Identity()

    def forward(self, x: Tensor) -> Tensor:
        return self.w_2(Attention.forward(self, self.before(x)))


class BlockBentInPlace(Block):
    def bent(self, hidden: Tensor) -> Tensor:
        return hidden.relu_()


class MadeAndThrownAway(Block):
    """What is made with a vector is not used."""

    def __init__(self) -> None:
        super().__init__()
        self.by_channel = nn.Parameter(torch.ones(WIDTH))

    def placed(self, x: Tensor) -> Tensor:
        made = super().placed(x)
        self.changed(made)
        return made

    def changed(self, made: Tensor) -> Tensor:
        return made * self.by_channel


class MadeAndKept(MadeAndThrownAway):
    def placed(self, x: Tensor) -> Tensor:
        return self.changed(Block.placed(self, x))


class MadeAndReturnedWhereAsked(MadeAndThrownAway):
    """What is made with the vector is a second result."""

    def forward(self, x: Tensor, returns_both: bool = False) -> Tensor | tuple[Tensor, Tensor]:
        made = super().forward(x)
        if not returns_both:
            return made
        return made, self.changed(made)


class NormedAndThrownAway(MadeAndKept):
    """What a norm makes is not used."""

    def __init__(self) -> None:
        super().__init__()
        self.normed_last = nn.LayerNorm(WIDTH)

    def changed(self, made: Tensor) -> Tensor:
        self.normed(made)
        return super().changed(made)

    def normed(self, made: Tensor) -> Tensor:
        return self.normed_last(made)


class NormedAndRead(NormedAndThrownAway):
    def normed(self, made: Tensor) -> Tensor:
        return made

    def changed(self, made: Tensor) -> Tensor:
        return super().changed(NormedAndThrownAway.normed(self, made))


class LayerNormOverTheTokens(LayerNormByHand):
    def centred(self, x: Tensor) -> Tensor:
        return x - x.mean((1, 2), keepdim=True)

    def divisor(self, x: Tensor) -> Tensor:
        return x.std((1, 2), keepdim=True) + 1e-6


class BlockOverTheTokens(Block):
    norm_of = LayerNormOverTheTokens


class Norm(LayerNormByHand):
    """The only norm of its file: it needs no other name."""

    axis = -1

    def centred(self, x: Tensor) -> Tensor:
        return x - x.mean(self.axis, keepdim=True)

    def divisor(self, x: Tensor) -> Tensor:
        return x.std(self.axis, keepdim=True) + 1e-6


class BlockOfANorm(Block):
    norm_of = Norm


class Normalization(Norm):
    axis = 1  # here


class BlockOfNormalization(Block):
    norm_of = Normalization


class NormLayer(Norm):
    """Each channel of a sample is normalized over its tokens, as InstanceNorm1d does."""

    axis = 1


class BlockOfInstances(Block):
    norm_of = NormLayer


class LayerNormBesideOne(LayerNormByHand):
    """Its small number and its factors are exchanged."""

    def divisor(self, x: Tensor) -> Tensor:
        return (x.var(-1, keepdim=True) + self.gain.square()).sqrt()


class BlockBesideOne(Block):
    norm_of = LayerNormBesideOne


class RMSNormOverRows(RMSNormByHand):
    def divisor(self, x: Tensor) -> Tensor:
        return (x.square().mean(-2, keepdim=True) + 1e-6).sqrt()


class BlockOfOneSequence(Block):
    """Of (tokens, width), without a batch."""

    norm_of = RMSNormByHand

    def forward(self, x: Tensor) -> Tensor:
        x = x + Attention.forward(self, self.before(x)[None])[0]
        return x + self.w_2(self.bent(self.w_1(self.before(x))))


class BlockOverRows(BlockOfOneSequence):
    norm_of = RMSNormOverRows


def of_one_sequence(kind: type[nn.Module]) -> Invocation:
    call = of_module(kind)
    call.arguments = {"x": drawn(4, WIDTH, seed=0)}
    call.streams = [Stream("x", "x", None, (0,))]
    return call


class Stack(nn.Module):
    """Layers one after the other."""

    def __init__(self) -> None:
        super().__init__()
        self.layers = nn.ModuleList([Block(), Block()])

    def forward(self, x: Tensor) -> Tensor:
        for layer in self.layers:
            x = layer(x)
        return x


class StackOfOne(Stack):
    def __init__(self) -> None:
        super().__init__()
        self.layers = nn.ModuleList([Block()] * 2)


class CallsOneForEach(nn.Module):
    """An encoder of two layers."""

    def __init__(self) -> None:
        super().__init__()
        self.num_layers, self.layer = 2, Block()

    def forward(self, x: Tensor) -> Tensor:
        for _ in range(self.num_layers):
            x = self.layer(x)
        return x


class CallsOneAgain(CallsOneForEach):
    """A Universal Transformer: one layer, applied again and again."""


class AttentionLayers(nn.Module):
    """A list of layers, each of which runs."""

    def __init__(self) -> None:
        super().__init__()
        self.layers = nn.ModuleList(nn.MultiheadAttention(WIDTH, 2, batch_first=True) for _ in range(3))

    def forward(self, x: Tensor) -> Tensor:
        for number, _ in enumerate(self.layers):
            layer = self.layers[self.place(number)]
            x = x + layer(x, x, x, need_weights=False)[0]
        return x

    def place(self, number: int) -> int:
        return number


class FirstOfTheLayers(AttentionLayers):
    def place(self, number: int) -> int:
        return 0


class Steps(nn.Module):
    """Layers that run as functions, so that a caller may wrap each of them."""

    def __init__(self) -> None:
        super().__init__()
        self.layers = nn.ModuleList(Block() for _ in range(3))

    def steps(self) -> list[Callable[[Tensor], Tensor]]:
        return [partial(layer) for layer in self.layers]

    def forward(self, x: Tensor) -> Tensor:
        for step in self.steps():
            x = step(x)
        return x


class StepsOfTheLast(Steps):
    """The same, whose functions all look the last layer up."""

    def steps(self) -> list[Callable[[Tensor], Tensor]]:
        found: list[Callable[[Tensor], Tensor]] = []
        for layer in self.layers:
            found.append(lambda x: layer(x))  # noqa: B023
        return found


class GatedBlock(Block):
    """Its feed-forward network is SwiGLU."""

    def __init__(self) -> None:
        super().__init__()
        self.w_3 = nn.Linear(WIDTH, self.w_1.out_features)

    def forward(self, x: Tensor) -> Tensor:
        x = x + Attention.forward(self, self.before(x))
        hidden = self.before(x)
        return x + self.w_2(self.gated(self.w_1(hidden), self.w_3(hidden)))

    def gated(self, one: Tensor, other: Tensor) -> Tensor:
        return nn.functional.silu(one) * other


class BentAsAWhole(GatedBlock):
    """Its feed-forward network is SwiGLU."""

    def gated(self, one: Tensor, other: Tensor) -> Tensor:
        return nn.functional.silu(one * other)


class GatedByHand(GatedBlock):
    """Its feed-forward network is SwiGLU, written by hand."""

    def gated(self, one: Tensor, other: Tensor) -> Tensor:
        return one * one.sigmoid() * other


CASES = [
    Case("norm-normalizes", BlockOfAWideEps, BlockOfItsWidth, of_module, has_line=False),
    Case("norm-normalizes", BlockOfTheSum, BlockOfMeanAdded, of_module, has_line=False),
    Case("norm-normalizes", BlockOverTheVariance, Block, of_module, has_line=False),
    Case("norm-normalizes", BlockOfTheSum, BlockOfRMSNorm, of_module, has_line=False),
    Case("gate-as-documented", BentAsAWhole, GatedBlock, of_module, has_line=False),
    Case("gate-as-documented", BentAsAWhole, GatedByHand, of_module, has_line=False),
    Case("feed-forward-bends", BlockWithoutAnActivation, Block, of_module),
    Case("feed-forward-bends", BlockWithoutAnActivation, BlockOfLowRank, of_module),
    Case("feed-forward-bends", BlockWithoutAnActivation, GatedByAWideState, of_module),
    Case("feed-forward-bends", BlockWithoutAnActivation, ReadOutAtOnce, of_module),
    Case("norm-of-one-token", BlockOverTheTokens, Block, of_module, has_line=False),
    Case("norm-of-one-token", BlockOfNormalization, BlockOfANorm, of_module, has_line=False),
    Case("norm-of-one-token", BlockOfNormalization, BlockOfInstances, of_module, has_line=False),
    Case("norm-normalizes", BlockBesideOne, Block, of_module, has_line=False),
    Case("norm-of-one-token", BlockOverRows, BlockOfOneSequence, of_one_sequence, has_line=False),
    Case("layers-apart", StackOfOne, Stack, of_module, has_line=False, attentions=2),
    Case("layers-apart", CallsOneForEach, CallsOneAgain, of_module, has_line=False, attentions=2),
    Case("feed-forward-bends", BlockWithoutAnActivationInPlace, BlockBentInPlace, of_module),
    Case("parameters-used", NormedAndThrownAway, NormedAndRead, of_module, has_line=False),
    Case("parameters-used", FirstOfTheLayers, AttentionLayers, of_module, has_line=False, attentions=3),
    Case("parameters-used", StepsOfTheLast, Steps, of_module, has_line=False, attentions=3),
    Case("parameters-used", MadeAndThrownAway, MadeAndKept, of_module, has_line=False),
    Case("parameters-used", MadeAndThrownAway, MadeAndReturnedWhereAsked, of_module, has_line=False),
]
