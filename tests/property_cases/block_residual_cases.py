"""One block alone: a residual around each sublayer, once, and gates on what the sublayers return."""

from __future__ import annotations

import torch
from torch import Tensor, nn

from property_cases import WIDTH, Case, of_module
from property_cases.modulation_cases import Steered, of_x_and_condition
from property_cases.output_cases import attention
from property_cases.wiring_cases import NormsBehindTheSublayers, PostNormBlock, PreNormBlock


class BetweenTwoNetworks(nn.Module):
    """A network, the attention, and a network, as in Macaron nets."""

    def __init__(self) -> None:
        super().__init__()
        self.norms = nn.ModuleList(nn.LayerNorm(WIDTH) for _ in range(3))
        self.first, self.last = (
            nn.Sequential(nn.Linear(WIDTH, 2 * WIDTH), nn.SiLU(), nn.Linear(2 * WIDTH, WIDTH)) for _ in range(2)
        )
        self.inner = Reading()

    def forward(self, x: Tensor) -> Tensor:
        x = x + self.first(self.norms[0](x)) / 2
        x = self.attended(x)
        return x + self.last(self.norms[2](x)) / 2

    def attended(self, x: Tensor) -> Tensor:
        total: Tensor = x + self.inner(self.norms[1](x))
        return total


class Reading(nn.Module):
    def forward(self, x: Tensor) -> Tensor:
        return attention(x)


class BareBetweenTwoNetworks(BetweenTwoNetworks):
    def attended(self, x: Tensor) -> Tensor:
        read: Tensor = self.inner(self.norms[1](x))
        return read


class BareAttention(PreNormBlock):
    def forward(self, x: Tensor) -> Tensor:
        x = self.attended(self.norm1(x))
        return x + self.mlp(self.norm2(x))


class BareNetwork(PreNormBlock):
    def forward(self, x: Tensor) -> Tensor:
        x = x + self.attended(self.norm1(x))
        read: Tensor = self.mlp(self.norm2(x))
        return read


class EndsOtherwise(PreNormBlock):
    """What a network returns is of another width: it reads the answer out."""

    def __init__(self) -> None:
        super().__init__()
        self.mlp = nn.Sequential(nn.Linear(WIDTH, 3 * WIDTH), nn.GELU(), nn.Linear(3 * WIDTH, 3))

    def forward(self, x: Tensor) -> Tensor:
        x = x + self.attended(self.norm1(x))
        read: Tensor = self.mlp(self.norm2(x))
        return read


class NetworkNormedAlone(PreNormBlock):
    def forward(self, x: Tensor) -> Tensor:
        x = self.norm1(x + self.attended(x))
        normed: Tensor = self.norm2(self.mlp(x))
        return normed


class MAB(nn.Module):
    """A set asks another one; the queries are added as they are projected."""

    def __init__(self) -> None:
        super().__init__()
        self.q, self.k, self.v = (nn.Linear(WIDTH, WIDTH) for _ in range(3))
        self.norm, self.network = nn.LayerNorm(WIDTH), nn.Linear(WIDTH, WIDTH)

    def forward(self, x: Tensor) -> Tensor:
        q, k, v = self.of_queries(x), self.k(x), self.v(x)
        read = self.norm(q + ((q @ k.mT) / WIDTH**0.5).softmax(-1) @ v)
        return self.closed(read, self.network(read).relu())

    def of_queries(self, x: Tensor) -> Tensor:
        queries: Tensor = self.q(x)
        return queries

    def closed(self, read: Tensor, returned: Tensor) -> Tensor:
        return read + returned


def of_networks_alone(kind: type[MAB], name: str, says: str = "") -> type[MAB]:
    """The same with a network whose input is lost, by another name."""

    def closed(_: MAB, __: Tensor, returned: Tensor) -> Tensor:
        return returned

    return type(name, (kind,), {"closed": closed, "__doc__": says, "__module__": __name__})


class OfUnprojected(MAB):
    def forward(self, x: Tensor) -> Tensor:
        q, k, v = self.of_queries(x), self.k(x), self.v(x)
        read = self.norm(x + ((q @ k.mT) / WIDTH**0.5).softmax(-1) @ v)
        return self.closed(read, self.network(read).relu())


NamedMAB = of_networks_alone(MAB, "InnerMAB")
OfASet = of_networks_alone(OfUnprojected, "OfASet", "A block of the Set Transformer.")
MixedMAB = of_networks_alone(OfUnprojected, "MixedMAB", "A mixed attention block, and a layer behind it.")
FusedQueries = of_networks_alone(MAB, "FusedQueries", "Attention, and a layer behind it.")


class NetworkOfTheAttention(PreNormBlock):
    def forward(self, x: Tensor) -> Tensor:
        read = self.attended(self.norm1(x))
        x = x + read
        return x + self.mlp(self.norm2(read))  # here


class NetworkInsideTheBranch(PreNormBlock):
    """The attention and the network are one branch, with a residual of its own."""

    def forward(self, x: Tensor) -> Tensor:
        read = self.attended(self.norm1(x))
        read = read + self.mlp(self.norm2(read))
        return x + read


class SumOfBothSums(PreNormBlock):
    def forward(self, x: Tensor) -> Tensor:
        one = x + self.attended(self.norm1(x))
        other = x + self.mlp(self.norm2(x))
        return one + other  # here


class MeanOfBothSums(PreNormBlock):
    def forward(self, x: Tensor) -> Tensor:
        one = x + self.attended(self.norm1(x))
        other = x + self.mlp(self.norm2(x))
        return (one + other) / 2


class NetworkThatAdds(PreNormBlock):
    def widened(self, x: Tensor) -> Tensor:
        total: Tensor = x + self.mlp(self.norm2(x))
        return total

    def forward(self, x: Tensor) -> Tensor:
        return self.widened(x + self.attended(self.norm1(x)))


class NetworkThatAddsTwice(NetworkThatAdds):
    def forward(self, x: Tensor) -> Tensor:
        x = x + self.attended(self.norm1(x))
        return x + self.widened(x)  # here


class GatedStream(Steered):
    def forward(self, x: Tensor, c: Tensor) -> Tensor:
        shift, scale, gate, *others = self.steer(c.sigmoid()).unsqueeze(1).chunk(6, -1)
        x = gate * x + attention(self.norm(x) * (1 + scale) + shift)  # here
        hidden = torch.relu(self.w_1(self.norm(x) * (1 + others[1]) + others[0]))
        return x + others[2] * self.w_2(hidden)


class GatedSum(Steered):
    def forward(self, x: Tensor, c: Tensor) -> Tensor:
        shift, scale, gate, *others = self.steer(c.sigmoid()).unsqueeze(1).chunk(6, -1)
        x = x + gate * attention(self.norm(x) * (1 + scale) + shift)
        hidden = torch.relu(self.w_1(self.norm(x) * (1 + others[1]) + others[0]))
        return others[2] * (x + self.w_2(hidden))  # here


class Highway(Steered):
    """What the gate leaves of the stream it lets through of the attention."""

    def forward(self, x: Tensor, c: Tensor) -> Tensor:
        shift, scale, gate, *others = self.steer(c.sigmoid()).unsqueeze(1).chunk(6, -1)
        x = gate * x + (1 - gate) * attention(self.norm(x) * (1 + scale) + shift)
        hidden = torch.relu(self.w_1(self.norm(x) * (1 + others[1]) + others[0]))
        return x + others[2] * self.w_2(hidden)


class Named(Steered):
    def forward(self, x: Tensor, c: Tensor) -> Tensor:
        parts = self.steer(c.sigmoid()).unsqueeze(1)
        shift_msa, scale_msa, gate_msa, shift_mlp, scale_mlp, gate_mlp = parts.chunk(6, -1)  # here
        x = x + self.gate(gate_msa, gate_mlp) * attention(self.norm(x) * (1 + scale_msa) + shift_msa)
        scale, shift = self.of_network(scale_mlp, shift_mlp)
        hidden = torch.relu(self.w_1(self.norm(x) * (1 + scale) + shift))
        return x + self.gate(gate_mlp, gate_msa) * self.w_2(hidden)

    def gate(self, own: Tensor, other: Tensor) -> Tensor:
        return own

    def of_network(self, scale: Tensor, shift: Tensor) -> tuple[Tensor, Tensor]:
        return scale, shift


class ShiftedByAScale(Named):
    def of_network(self, scale: Tensor, shift: Tensor) -> tuple[Tensor, Tensor]:
        return shift, scale


class GatesExchanged(Named):
    def gate(self, own: Tensor, other: Tensor) -> Tensor:
        return other


class InAnotherOrder(Steered):
    """The parts have other names in this file: scale and shift stand the other way round in both halves."""

    def forward(self, x: Tensor, c: Tensor) -> Tensor:
        shift_1, scale_1, gate_1, shift_2, scale_2, gate_2 = self.steer(c.sigmoid()).unsqueeze(1).chunk(6, -1)
        x = x + gate_1 * attention(self.norm(x) * (1 + shift_1) + scale_1)
        return x + gate_2 * self.w_2(torch.relu(self.w_1(self.norm(x) * (1 + shift_2) + scale_2)))


class NormsTheSumOnce(nn.Module):
    """A layer whose attention adds what it was given, and norms it."""

    def __init__(self) -> None:
        super().__init__()
        self.norms = nn.ModuleList(nn.LayerNorm(WIDTH) for _ in range(3))
        self.mlp = nn.Sequential(nn.Linear(WIDTH, 2 * WIDTH), nn.GELU(), nn.Linear(2 * WIDTH, WIDTH))

    def forward(self, x: Tensor) -> Tensor:
        x = self.joined(x, self.norms[0](x + attention(x)))
        return self.last(x + self.mlp(x))

    def joined(self, x: Tensor, read: Tensor) -> Tensor:
        return read

    def last(self, x: Tensor) -> Tensor:
        normed: Tensor = self.norms[2](x)
        return normed


class NormsTheSumTwice(NormsTheSumOnce):
    def joined(self, x: Tensor, read: Tensor) -> Tensor:
        normed: Tensor = self.norms[1](x + read)  # here
        return normed


class PastTheWholeLayer(NormsTheSumOnce):
    """Its input is added to what all of it returned as well."""

    def forward(self, x: Tensor) -> Tensor:
        total: Tensor = self.norms[1](x + super().forward(x))
        return total


CASES = [
    Case("residual-of-the-input", BareBetweenTwoNetworks, BetweenTwoNetworks, of_module, has_line=False),
    Case("residual-of-the-input", BareAttention, PreNormBlock, of_module, has_line=False),
    Case("residual-of-the-input", BareNetwork, EndsOtherwise, of_module, has_line=False),
    Case("residual-of-the-input", NetworkNormedAlone, PostNormBlock, of_module, has_line=False),
    Case("residual-of-the-input", NetworkNormedAlone, NormsBehindTheSublayers, of_module, has_line=False),
    Case("residual-of-the-sum", NamedMAB, MAB, of_module, has_line=False),
    Case("residual-of-the-sum", NamedMAB, FusedQueries, of_module, has_line=False),
    Case("residual-of-the-sum", OfASet, MixedMAB, of_module, has_line=False),
    Case("residual-of-the-sum", NetworkOfTheAttention, NetworkInsideTheBranch, of_module),
    Case("residual-once", SumOfBothSums, MeanOfBothSums, of_module),
    Case("residual-once", NormsTheSumTwice, NormsTheSumOnce, of_module),
    Case("residual-once", NormsTheSumTwice, PastTheWholeLayer, of_module),
    Case("residual-once", NetworkThatAddsTwice, NetworkThatAdds, of_module),
    Case("gate-of-the-branch", GatedStream, Steered, of_x_and_condition),
    Case("gate-of-the-branch", GatedSum, Highway, of_x_and_condition),
    Case("modulations-used", ShiftedByAScale, Named, of_x_and_condition),
    Case("modulations-used", GatesExchanged, InAnotherOrder, of_x_and_condition),
]
