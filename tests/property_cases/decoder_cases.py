"""Layers of a decoder: two attentions, each of whose norms takes a sum, and positions that values are kept from."""

from __future__ import annotations

import torch
from torch import Tensor, nn

from property_cases import WIDTH, Case, joined, of_module, of_x_and_context, split
from property_cases.output_cases import attention
from regard.check.target import Invocation


class Twice(nn.Module):
    """Two attentions, each followed by its norm. Positions are added to queries and keys, never to the values."""

    def __init__(self) -> None:
        super().__init__()
        self.norm1, self.norm2 = nn.LayerNorm(WIDTH), nn.LayerNorm(WIDTH)

    def forward(self, x: Tensor) -> Tensor:
        x = self.norm1(x + self.attended(x))
        return self.norm2(self.summed(x, self.attended(x)))  # here

    def attended(self, x: Tensor) -> Tensor:
        return attention(x)

    def summed(self, x: Tensor, attended: Tensor) -> Tensor:
        return x + attended


class SecondAlone(Twice):
    def summed(self, x: Tensor, attended: Tensor) -> Tensor:
        return attended


class Read(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.q, self.k, self.v = (nn.Linear(WIDTH, WIDTH) for _ in range(3))

    def forward(self, x: Tensor) -> Tensor:
        q, k, v = (split(each(x)) for each in (self.q, self.k, self.v))
        return joined((q @ k.mT / 2).softmax(-1) @ v)


class ReadAndFeed(nn.Module):
    """Attention to another sequence, and a feed-forward network."""

    is_added = True

    def __init__(self) -> None:
        super().__init__()
        self.q, self.k, self.v = (nn.Linear(WIDTH, WIDTH) for _ in range(3))
        self.feed = nn.Sequential(nn.Linear(WIDTH, 11), nn.ReLU(), nn.Linear(11, WIDTH))

    def forward(self, x: Tensor, y: Tensor) -> Tensor:
        q, k, v = split(self.q(x)), split(self.k(y)), split(self.v(y))
        read = joined((q @ k.mT / 2).softmax(-1) @ v)
        x = x + read if self.is_added else read
        return x + self.feed(x)


class SecondAsksWithTheInput(nn.Module):
    """Post-norm: LayerNorm(x + Sublayer(x))."""

    def __init__(self) -> None:
        super().__init__()
        self.first, self.second = Read(), Read()
        self.norm1, self.norm2 = nn.LayerNorm(WIDTH), nn.LayerNorm(WIDTH)

    def forward(self, x: Tensor) -> Tensor:
        made = self.norm1(x + self.first(x))
        return self.norm2(made + self.second(self.asked(x, made)))

    def asked(self, x: Tensor, made: Tensor) -> Tensor:
        return x


class SecondAsksWithTheSum(SecondAsksWithTheInput):
    def asked(self, x: Tensor, made: Tensor) -> Tensor:
        return made


class SideBySide(SecondAsksWithTheInput):
    def forward(self, x: Tensor) -> Tensor:
        return self.norm2(self.norm1(x) + self.first(x) + self.second(x))


class OfAMemory(nn.Module):
    """A layer of a decoder: attention of its own, then one to a memory."""

    def __init__(self) -> None:
        super().__init__()
        self.own, self.w_q, self.w_k, self.w_v = Read(), *(nn.Linear(WIDTH, WIDTH) for _ in range(3))

    def forward(self, x: Tensor, context: Tensor) -> Tensor:
        y = x + self.own(x)
        return self.stays(x, y) + self.read(y, context)  # here

    def read(self, y: Tensor, context: Tensor) -> Tensor:
        q, k, v = (split(made) for made in (self.w_q(y), self.w_k(context), self.w_v(context)))
        return joined((q @ k.mT / 2).softmax(-1) @ v)

    def stays(self, x: Tensor, y: Tensor) -> Tensor:
        return y


class ForgetsTheFirst(OfAMemory):
    def stays(self, x: Tensor, y: Tensor) -> Tensor:
        return x


class ReturnsBoth(OfAMemory):
    """Two streams, one of which reads the other: what the first attention added is returned as well."""

    def forward(self, x: Tensor, context: Tensor) -> Tensor:
        y = x + self.own(x)
        return torch.cat([x + self.read(y, context), y], -1)


def of_layer_and_memory(kind: type[OfAMemory]) -> Invocation:
    return of_x_and_context(of_module(kind).target)


class ValuesPastTheNorm(nn.Module):
    """A pre-norm layer."""

    def __init__(self) -> None:
        super().__init__()
        self.norm, self.q, self.k, self.v = nn.LayerNorm(WIDTH), *(nn.Linear(WIDTH, WIDTH) for _ in range(3))

    def forward(self, x: Tensor) -> Tensor:
        normed = self.norm(x)
        q, k = split(self.q(normed)), split(self.k(normed))
        v = split(self.v(self.read(x, normed)))  # here
        return x + joined((q @ k.mT / 2).softmax(-1) @ v)

    def read(self, x: Tensor, normed: Tensor) -> Tensor:
        return x


class AllBehindTheNorm(ValuesPastTheNorm):
    def read(self, x: Tensor, normed: Tensor) -> Tensor:
        return normed


class AloneBehindTheNorm(ValuesPastTheNorm):
    """A layer whose queries are normed."""

    def forward(self, x: Tensor) -> Tensor:
        normed = self.norm(x)
        q, k, v = split(self.q(normed)), split(self.k(x)), split(self.v(x))  # here
        return self.read(x, normed) + joined((q @ k.mT / 2).softmax(-1) @ v)


class CarriesTheNormOn(AloneBehindTheNorm):
    """A layer whose queries are normed, and carried on, as in SASRec."""

    def read(self, x: Tensor, normed: Tensor) -> Tensor:
        return normed


class NormedAfterwards(Twice):
    """Both kinds of norm: that of the output comes before the sum."""

    def forward(self, x: Tensor) -> Tensor:
        x = self.norm1(x + attention(x))
        return x + self.norm2(attention(x))


class TwoLayers(nn.Module):
    """Two layers of an attention and a feed-forward network, each added to what it reads."""

    def __init__(self) -> None:
        super().__init__()
        self.hidden, self.out = nn.Linear(WIDTH, 16), nn.Linear(16, WIDTH)

    def forward(self, x: Tensor) -> Tensor:
        for _ in range(2):
            x = self.attended(x)
            x = self.fed_forward(x)
        return x

    def fed_forward(self, x: Tensor) -> Tensor:
        return x + self.out(self.hidden(x).relu())

    def attended(self, x: Tensor) -> Tensor:
        return x + attention(x)


class TwoLayersOfAttentionAlone(TwoLayers):
    def attended(self, x: Tensor) -> Tensor:
        return attention(x)


class TwoLayersOfFeedForwardAlone(TwoLayers):
    def fed_forward(self, x: Tensor) -> Tensor:
        return self.out(self.hidden(x).relu())


class Reader(nn.Module):
    """With a bias of positions that is as large as the scores."""

    def __init__(self) -> None:
        super().__init__()
        self.q, self.k, self.v = (nn.Linear(WIDTH, WIDTH) for _ in range(3))

    def forward(self, x: Tensor, context: Tensor) -> Tensor:
        scores = split(self.q(x)) @ split(self.k(context)).mT / 2
        return x + joined((scores + torch.zeros_like(scores)).softmax(-1) @ split(self.v(context)))


class EncodedAndDecoded(TwoLayers):
    """Two layers of an encoder, and two of a decoder, which has a cross-attention as well."""

    def __init__(self) -> None:
        super().__init__()
        self.encoder, self.decoder = (nn.ModuleList(Reader() for _ in range(count)) for count in (2, 4))

    def forward(self, x: Tensor) -> Tensor:
        y = 0.5 * x
        for reader in self.encoder:
            x = self.fed_forward(reader(x, x))
        for number, reader in enumerate(self.decoder):
            y = self.fed_forward(reader(y, x)) if number % 2 else reader(y, y)
        return y


class EncodedAndDecodedByAttentionAlone(EncodedAndDecoded):
    def fed_forward(self, x: Tensor) -> Tensor:
        return self.out(self.hidden(x).relu())


class TwoLayersBentInBetween(TwoLayers):
    """Without a feed-forward network, as layers of a graph."""

    def fed_forward(self, x: Tensor) -> Tensor:
        return x.relu()


class NormsOfSums(nn.Module):
    """Post-norm: LayerNorm(x + Sublayer(x))."""

    def __init__(self) -> None:
        super().__init__()
        self.norm1, self.norm2 = nn.LayerNorm(WIDTH), nn.LayerNorm(WIDTH)
        self.hidden, self.out = nn.Linear(WIDTH, 16), nn.Linear(16, WIDTH)

    def forward(self, x: Tensor) -> Tensor:
        x = self.added(x, attention(x))
        return self.norm2(x + self.out(self.hidden(x).relu()))

    def added(self, x: Tensor, attended: Tensor) -> Tensor:
        return self.norm1(x + attended)


class NormsOfBoth(NormsOfSums):
    """Post-norm: LayerNorm(x + Sublayer(x))."""

    def added(self, x: Tensor, attended: Tensor) -> Tensor:
        return x + self.norm1(attended)  # here


class NormsOfOutputs(NormsOfBoth):
    """What a sublayer returns is normalized, as in Swin v2."""


class Handing(nn.Module):
    """Two attentions with the biases of one table of positions."""

    def __init__(self) -> None:
        super().__init__()
        self.table = nn.Parameter(torch.zeros(4, 4))

    def forward(self, x: Tensor) -> Tensor:
        y, weights = self.attended(x, self.table)
        return self.attended(x + y, self.next_bias(weights))[0]

    def attended(self, x: Tensor, bias: Tensor) -> tuple[Tensor, Tensor]:
        weights = (x @ x.mT / WIDTH**0.5 + bias).softmax(-1)  # here
        return weights @ x, weights

    def next_bias(self, weights: Tensor) -> Tensor:
        return self.table


class HandsWeightsOn(Handing):
    def next_bias(self, weights: Tensor) -> Tensor:
        return weights


class Biased(nn.Module):
    """It returns the bias that it was given, or that of its own table."""

    def __init__(self, has_table: bool) -> None:
        super().__init__()
        self.table = nn.Parameter(torch.zeros(7)) if has_table else None

    def forward(self, x: Tensor, context: Tensor, position_bias: Tensor | None = None) -> tuple[Tensor, Tensor]:
        scores, places = x @ context.mT / WIDTH**0.5, torch.arange(x.shape[1])
        if position_bias is None:
            position_bias = torch.zeros_like(scores)
            if self.table is not None:
                position_bias = self.table[places[:, None] - places + 3]
        return (scores + position_bias).softmax(-1) @ context, position_bias  # here


class BiasedLayer(nn.Module):
    def __init__(self, is_first: bool) -> None:
        super().__init__()
        self.attention, self.linear = Biased(is_first), nn.Linear(WIDTH, WIDTH)

    def forward(self, x: Tensor, position_bias: Tensor | None = None) -> tuple[Tensor, Tensor]:
        read, bias = self.attention(x, x, position_bias)
        return x + self.linear(read), bias


class HandingItsBias(nn.Module):
    """The first of three layers has a table, and the others add its bias."""

    def __init__(self) -> None:
        super().__init__()
        self.layers = nn.ModuleList([BiasedLayer(number == 0) for number in range(3)])

    def forward(self, x: Tensor) -> Tensor:
        bias = None
        for layer in self.layers:
            x, bias = self.next(*layer(x, bias))
        return x

    def next(self, x: Tensor, bias: Tensor) -> tuple[Tensor, Tensor | None]:
        return x, bias


class DroppingItsBias(HandingItsBias):
    def next(self, x: Tensor, bias: Tensor) -> tuple[Tensor, Tensor | None]:
        return x, None


class LayerThatReadsTwice(BiasedLayer):
    """Its second attention is of the same class, and has no positions."""

    def __init__(self) -> None:
        super().__init__(True)
        self.second = Biased(False)

    def forward(self, x: Tensor, context: Tensor) -> Tensor:  # type: ignore[override]
        x, _ = super().forward(x)
        return x + self.second(x, context)[0]


class OfPlaces(nn.Module):
    """Positions are added to queries and keys, never to the values."""

    def __init__(self) -> None:
        super().__init__()
        self.q, self.k, self.v = (nn.Linear(WIDTH, WIDTH) for _ in range(3))
        self.places = nn.Parameter(torch.zeros(4, WIDTH))

    def forward(self, x: Tensor) -> Tensor:
        y = x + self.places
        weights = (self.q(y) @ self.k(y).mT / WIDTH**0.5).softmax(-1)  # here
        return weights @ self.v(self.of_values(x, y))

    def of_values(self, x: Tensor, y: Tensor) -> Tensor:
        return x


class ValuesOfPlaces(OfPlaces):
    """Positions are added to queries and keys, never to the values."""

    def of_values(self, x: Tensor, y: Tensor) -> Tensor:
        return y


class FedByConvolutions(TwoLayers):
    """Two layers of an attention and a feed-forward network of convolutions, each added to what it reads."""

    def __init__(self) -> None:
        super().__init__()
        self.hidden, self.out = nn.Conv1d(WIDTH, 16, 1), nn.Conv1d(16, WIDTH, 1)

    def fed_forward(self, x: Tensor) -> Tensor:
        return self.summed(x, self.out(self.bent(self.hidden(x.mT))).mT)  # here

    def summed(self, x: Tensor, added: Tensor) -> Tensor:
        return x + added

    def bent(self, hidden: Tensor) -> Tensor:
        return hidden.relu()


class FedByConvolutionsAlone(FedByConvolutions):
    def summed(self, x: Tensor, added: Tensor) -> Tensor:
        return added


class FedByStraightConvolutions(FedByConvolutions):
    def bent(self, hidden: Tensor) -> Tensor:
        return hidden


class Induced(nn.Module):
    """Learned points read a set, and the set reads them (Lee et al. 2019, "Set Transformer")."""

    def __init__(self) -> None:
        super().__init__()
        self.points = nn.Parameter(torch.randn(1, 2, WIDTH))
        self.read = nn.ModuleList(ReadAndFeed() for _ in range(2))

    def forward(self, x: Tensor) -> Tensor:
        first, second = self.read
        return second(x, first(self.points.expand(len(x), -1, -1), x))


class InducedByAttentionAlone(Induced):
    """The same without a sum around its attentions."""

    def __init__(self) -> None:
        super().__init__()
        for each in self.read:
            each.is_added = False


CASES = [
    Case("residual-of-the-input", InducedByAttentionAlone, Induced, of_module, has_line=False, attentions=2),
    Case("norm-used", ValuesPastTheNorm, AllBehindTheNorm, of_module),
    Case("norm-used", AloneBehindTheNorm, CarriesTheNormOn, of_module),
    Case("residual-of-the-sum", ForgetsTheFirst, OfAMemory, of_layer_and_memory, attentions=2),
    Case("residual-of-the-input", TwoLayersOfAttentionAlone, TwoLayers, of_module, has_line=False, attentions=2),
    Case("residual-of-the-input", TwoLayersOfFeedForwardAlone, TwoLayersBentInBetween, of_module, False, attentions=2),
    *(
        Case("queries-from-their-input", SecondAsksWithTheInput, right, of_module, has_line=False, attentions=2)
        for right in (SecondAsksWithTheSum, SideBySide)
    ),
    Case("residual-of-the-input", EncodedAndDecodedByAttentionAlone, EncodedAndDecoded, of_module, False, attentions=6),
    Case("residual-of-the-input", SecondAlone, Twice, of_module, attentions=2),
    Case("residual-of-the-input", SecondAlone, NormedAfterwards, of_module, attentions=2),
    Case("residual-of-the-input", FedByConvolutionsAlone, FedByConvolutions, of_module, has_line=False, attentions=2),
    Case("feed-forward-bends", FedByStraightConvolutions, FedByConvolutions, of_module, attentions=2),
    Case("norm-as-documented", NormsOfBoth, NormsOfSums, of_module),
    Case("norm-as-documented", NormsOfBoth, NormsOfOutputs, of_module),
    Case("bias-handed-on", HandsWeightsOn, Handing, of_module, attentions=2),
    Case("bias-handed-on", DroppingItsBias, HandingItsBias, of_module, attentions=3),
    Case("values-without-positions", ValuesOfPlaces, OfPlaces, of_module),
]
