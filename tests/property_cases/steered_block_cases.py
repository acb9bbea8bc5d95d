"""Blocks with norms that a condition scales and shifts, with norms of their networks, and behind their sums."""

from __future__ import annotations

from torch import Tensor, nn

from property_cases import WIDTH, Case, joined, of_module, of_x_and_context, split
from property_cases.modulation_cases import of_x_and_condition
from property_cases.output_cases import attention
from regard.check.target import Invocation


class SteeredApart(nn.Module):
    """Each sublayer has a norm of its own, without numbers to learn: a condition scales it, and gates the sublayer."""

    def __init__(self) -> None:
        super().__init__()
        self.first_norm = nn.LayerNorm(WIDTH, elementwise_affine=False)
        self.second_norm = nn.LayerNorm(WIDTH, elementwise_affine=False)
        self.steer = nn.Linear(WIDTH, 4 * WIDTH)
        self.inner = Inner()
        self.network = nn.Sequential(nn.Linear(WIDTH, 3 * WIDTH), nn.GELU(), nn.Linear(3 * WIDTH, WIDTH))

    def forward(self, x: Tensor, c: Tensor) -> Tensor:
        scale, gate, last_scale, last_gate = self.steer(c.sigmoid()).unsqueeze(1).chunk(4, -1)
        x = x + gate * self.inner(self.first_norm(x) * (1 + scale))
        return self.added(x, last_gate * self.network(self.normed(x) * (1 + last_scale)))

    def added(self, x: Tensor, read: Tensor) -> Tensor:
        return x + read

    def normed(self, x: Tensor) -> Tensor:
        normed: Tensor = self.second_norm(x)
        return normed


class Inner(nn.Module):
    def forward(self, x: Tensor) -> Tensor:
        return attention(x)


class SteeredNetworkAlone(SteeredApart):
    def added(self, x: Tensor, read: Tensor) -> Tensor:
        return read


class SteeredWithoutItsNorm(nn.Module):
    """The second norm is made, and what the network reads is scaled as it is."""

    def __init__(self) -> None:
        super().__init__()
        self.norm_before = nn.LayerNorm(WIDTH, elementwise_affine=False)
        self.norm_behind = nn.LayerNorm(WIDTH, elementwise_affine=False)
        self.steer = nn.Linear(WIDTH, 2 * WIDTH)
        self.network = nn.Sequential(nn.Linear(WIDTH, 3 * WIDTH), nn.GELU(), nn.Linear(3 * WIDTH, WIDTH))

    def forward(self, x: Tensor, c: Tensor) -> Tensor:
        scale, last_scale = self.steer(c.sigmoid()).unsqueeze(1).chunk(2, -1)
        x = x + attention(self.norm_before(x) * (1 + scale))
        return x + self.network(x * (1 + last_scale))


class OfTheAttentionBehindANorm(nn.Module):
    """Post-norm, whose network reads what the attention returned alone."""

    def __init__(self) -> None:
        super().__init__()
        self.inner = nn.MultiheadAttention(WIDTH, 2, batch_first=True)
        self.norm_1, self.norm_2 = nn.LayerNorm(WIDTH), nn.LayerNorm(WIDTH)
        self.network = nn.Sequential(nn.Linear(WIDTH, 2 * WIDTH), nn.ReLU(), nn.Linear(2 * WIDTH, WIDTH))

    def forward(self, x: Tensor) -> Tensor:
        read, _ = self.inner(x, x, x)
        x = self.norm_1(x + read)
        made: Tensor = self.network(self.taken(x, read))
        total: Tensor = self.norm_2(x + made)  # here
        return total

    def taken(self, x: Tensor, read: Tensor) -> Tensor:
        return read


class OfTheSumBehindANorm(OfTheAttentionBehindANorm):
    def taken(self, x: Tensor, read: Tensor) -> Tensor:
        return x


class ReadsAnother(nn.Module):
    """Post-norm: attention to itself, to another sequence, and a network, each added to what it reads."""

    def __init__(self) -> None:
        super().__init__()
        self.own, self.other = (nn.MultiheadAttention(WIDTH, 2, batch_first=True) for _ in range(2))
        self.norm_1, self.norm_2, self.norm_3 = (nn.LayerNorm(WIDTH) for _ in range(3))
        self.network = nn.Sequential(nn.Linear(WIDTH, 2 * WIDTH), nn.ReLU(), nn.Linear(2 * WIDTH, WIDTH))

    def forward(self, x: Tensor, context: Tensor) -> Tensor:
        read = self.norm_1(x + self.own(x, x, x)[0])
        read = self.norm_2(read + self.other(read, context, context)[0])
        total: Tensor = self.norm_3(self.carried(x, read) + self.network(read))  # here
        return total

    def carried(self, x: Tensor, read: Tensor) -> Tensor:
        return read


class AddsToItsInput(ReadsAnother):
    def carried(self, x: Tensor, read: Tensor) -> Tensor:
        return x


class BetweenNetworksWithNorms(nn.Module):
    """Two networks with a norm in each, an attention behind its own between them, and a norm of the whole."""

    def __init__(self) -> None:
        super().__init__()
        self.before, self.behind = (
            nn.Sequential(nn.LayerNorm(WIDTH), nn.Linear(WIDTH, 2 * WIDTH), nn.SiLU(), nn.Linear(2 * WIDTH, WIDTH))
            for _ in range(2)
        )
        self.own_norm, self.last_norm = nn.LayerNorm(WIDTH), nn.LayerNorm(WIDTH)
        self.inner = nn.MultiheadAttention(WIDTH, 2, batch_first=True)

    def forward(self, x: Tensor) -> Tensor:
        x = x + self.before(x) / 2
        normed = self.own_norm(x)
        x = x + self.inner(normed, normed, normed)[0]
        total: Tensor = self.last_norm(x + self.behind(x) / 2)
        return total


class NormsOfBothArrangements(nn.Module):
    """One network: the attention's norm stands before it, and the network's behind the sum."""

    def __init__(self) -> None:
        super().__init__()
        self.norm_1, self.norm_2 = nn.LayerNorm(WIDTH), nn.LayerNorm(WIDTH)
        self.inner = nn.MultiheadAttention(WIDTH, 2, batch_first=True)
        self.network = nn.Sequential(nn.Linear(WIDTH, 2 * WIDTH), nn.ReLU(), nn.Linear(2 * WIDTH, WIDTH))

    def forward(self, x: Tensor) -> Tensor:
        normed = self.norm_1(x)
        x = x + self.inner(normed, normed, normed)[0]
        total: Tensor = self.norm_2(x + self.network(x))
        return total


class DropsTheRest(nn.Module):
    """It drops what its share does not say."""

    def __init__(self, dropout: float = 0.1) -> None:
        super().__init__()
        self.qkv, self.dropout = nn.Linear(WIDTH, 3 * WIDTH), nn.Dropout(p=1 - dropout)  # here

    def forward(self, x: Tensor) -> Tensor:
        q, k, v = map(split, self.qkv(x).chunk(3, -1))
        return joined(self.dropout((q @ k.mT / q.shape[-1] ** 0.5).softmax(-1)) @ v)


class DropsTheRestOfWhatItKeeps(DropsTheRest):
    """The share is the one to keep, as in TensorFlow."""

    def __init__(self, dropout: float = 0.9) -> None:
        super(DropsTheRest, self).__init__()
        self.qkv, self.dropout = nn.Linear(WIDTH, 3 * WIDTH), nn.Dropout(p=1 - dropout)


class WithAVerdict(nn.Module):
    """Attention, and two numbers of each sample that are read at its first token."""

    def __init__(self) -> None:
        super().__init__()
        self.qkv, self.verdict = nn.Linear(WIDTH, 3 * WIDTH), nn.Linear(WIDTH, 2)

    def forward(self, x: Tensor) -> tuple[Tensor, Tensor]:
        q, k, v = map(split, self.qkv(x).chunk(3, -1))
        x = joined((q @ k.mT / q.shape[-1] ** 0.5).softmax(-1) @ v)
        return x, self.verdict(self.read(x))

    def read(self, x: Tensor) -> Tensor:
        return x[:, 0]


class WithAVerdictOfOneSample(WithAVerdict):
    def read(self, x: Tensor) -> Tensor:
        return x[0]


class CopiesItsTable(nn.Module):
    """A model of token vectors whose last matrix begins as a copy of the first one."""

    def __init__(self) -> None:
        super().__init__()
        self.table, self.qkv = nn.Linear(WIDTH, WIDTH, bias=False), nn.Linear(WIDTH, 3 * WIDTH)
        self.back = nn.Linear(WIDTH, WIDTH, bias=False)
        # the two matrices are tied
        self.back.weight = nn.Parameter(self.table.weight.detach().clone())

    def forward(self, x: Tensor) -> Tensor:
        q, k, v = map(split, self.qkv(self.table(x)).chunk(3, -1))
        read: Tensor = self.back(joined((q @ k.mT / q.shape[-1] ** 0.5).softmax(-1) @ v))
        return read


class BeginsAsACopy(CopiesItsTable):
    """The same without a word of it: it begins alike, and learns by itself."""

    def __init__(self) -> None:
        super(CopiesItsTable, self).__init__()
        self.table, self.qkv = nn.Linear(WIDTH, WIDTH, bias=False), nn.Linear(WIDTH, 3 * WIDTH)
        self.back = nn.Linear(WIDTH, WIDTH, bias=False)
        self.back.weight = nn.Parameter(self.table.weight.detach().clone())


def of_a_layer(kind: type[nn.Module]) -> Invocation:
    return of_x_and_context(of_module(kind).target)


CASES = [
    Case("residual-of-the-input", SteeredNetworkAlone, SteeredApart, of_x_and_condition, has_line=False),
    Case("norm-used", SteeredWithoutItsNorm, SteeredApart, of_x_and_condition, has_line=False),
    Case("residual-of-the-sum", OfTheAttentionBehindANorm, OfTheSumBehindANorm, of_module),
    Case("residual-of-the-sum", AddsToItsInput, ReadsAnother, of_a_layer, attentions=2),
    Case("norms-alike", NormsOfBothArrangements, BetweenNetworksWithNorms, of_module, has_line=False),
    Case("dropout-handed-on", DropsTheRest, DropsTheRestOfWhatItKeeps, of_module),
    Case("samples-apart", WithAVerdictOfOneSample, WithAVerdict, of_module, has_line=False),
    Case("weights-stay-tied", CopiesItsTable, BeginsAsACopy, of_module, has_line=False),
]
