"""The share of dropout that a constructor takes, and the parts that it is handed on to."""

from __future__ import annotations

from typing import Any

import torch.nn.functional as F
from torch import Tensor, nn

from property_cases import WIDTH, Case, joined, of_module, split


class Weighted(nn.Module):
    """Attention to all tokens."""

    def __init__(self, width: int, dropout: float = 0.1) -> None:
        super().__init__()
        self.qkv, self.dropout = nn.Linear(width, 3 * width), nn.Dropout(dropout)

    def forward(self, x: Tensor) -> Tensor:
        q, k, v = map(split, self.qkv(x).chunk(3, -1))
        return joined(self.dropout((q @ k.mT / q.shape[-1] ** 0.5).softmax(-1)) @ v)


class HandsOn(nn.Module):
    def __init__(self, dropout: float = 0.2) -> None:
        super().__init__()
        self.inner = Weighted(WIDTH, dropout)
        self.dropout = nn.Dropout(dropout)

    def forward(self, x: Tensor) -> Tensor:
        read: Tensor = self.dropout(self.inner(x))
        return read


class HandsNothingOn(HandsOn):
    def __init__(self, dropout: float = 0.2) -> None:
        super(HandsOn, self).__init__()
        self.inner = Weighted(WIDTH)  # here
        self.dropout = nn.Dropout(dropout)


class DropsOutputsAlone(HandsOn):
    """The share of the outputs has a name of its own, and so has that of the hidden vectors."""

    def __init__(self, out_dropout: float = 0.2, hidden_dropout: float = 0.2) -> None:
        super(HandsOn, self).__init__()
        self.inner = Weighted(WIDTH)
        self.dropout = nn.Sequential(nn.Dropout(out_dropout), nn.Dropout(hidden_dropout))


class Documented(nn.Module):
    """Attention to all tokens.

    Args:
        drop: the share of the weights that are set to 0 in training
    """

    def __init__(self, drop: float = 0.1) -> None:
        super().__init__()
        self.qkv = nn.Linear(WIDTH, 3 * WIDTH)
        self.weight_drop = nn.Dropout(drop)

    def forward(self, x: Tensor) -> Tensor:
        q, k, v = map(split, self.qkv(x).chunk(3, -1))
        return joined(self.weight_drop((q @ k.mT / q.shape[-1] ** 0.5).softmax(-1)) @ v)


class NeverApplied(nn.Module):
    """Attention to all tokens.

    Args:
        drop: the share of the weights that are set to 0 in training
    """

    def __init__(self, drop: float = 0.1) -> None:
        super().__init__()
        self.qkv = nn.Linear(WIDTH, 3 * WIDTH)
        self.weight_drop = nn.Dropout(drop)  # here

    def forward(self, x: Tensor) -> Tensor:
        q, k, v = map(split, self.qkv(x).chunk(3, -1))
        return joined((q @ k.mT / q.shape[-1] ** 0.5).softmax(-1) @ v)


class ShareThatIsFused(nn.Module):
    """Attention to all tokens, by a fused kernel.

    Args:
        drop: the share of the weights that are set to 0 in training
    """

    def __init__(self, drop: float = 0.1) -> None:
        super().__init__()
        self.qkv = nn.Linear(WIDTH, 3 * WIDTH)
        self.weight_drop, self.drop = nn.Dropout(drop), drop

    def forward(self, x: Tensor) -> Tensor:
        q, k, v = map(split, self.qkv(x).chunk(3, -1))
        return joined(F.scaled_dot_product_attention(q, k, v, dropout_p=self.drop if self.training else 0.0))


class LeftFromBefore(nn.Module):
    """Attention to all tokens, of which nothing says what the share is of; nobody asked for one."""

    def __init__(self, drop: float = 0.1) -> None:
        super().__init__()
        self.qkv = nn.Linear(WIDTH, 3 * WIDTH)
        self.weight_drop = nn.Dropout(drop)

    def forward(self, x: Tensor) -> Tensor:
        q, k, v = map(split, self.qkv(x).chunk(3, -1))
        return joined((q @ k.mT / q.shape[-1] ** 0.5).softmax(-1) @ v)


class KeptAsANumber(nn.Module):
    """Attention to all tokens.

    Args:
        drop: the share of the weights that are set to 0 in training
    """

    def __init__(self, drop: float = 0.1) -> None:
        super().__init__()
        self.qkv = nn.Linear(WIDTH, 3 * WIDTH)
        self.alpha_dropout = drop

    def forward(self, x: Tensor) -> Tensor:
        q, k, v = map(split, self.qkv(x).chunk(3, -1))
        weights = (q @ k.mT / q.shape[-1] ** 0.5).softmax(-1)
        return joined(F.dropout(weights, self.alpha_dropout, self.training) @ v)


class KeptInVain(KeptAsANumber):
    """Attention to all tokens.

    Args:
        drop: the share of the weights that are set to 0 in training
    """

    def __init__(self, drop: float = 0.1) -> None:
        super().__init__()
        self.feature_alpha_dropout = drop  # here

    def forward(self, x: Tensor) -> Tensor:
        q, k, v = map(split, self.qkv(x).chunk(3, -1))
        return joined(F.feature_alpha_dropout((q @ k.mT / q.shape[-1] ** 0.5).softmax(-1), 0.0, False) @ v)


class KeptForNobody(KeptAsANumber):
    """Attention to all tokens, of which nothing says what the share is of; nobody asked for one."""

    def __init__(self, drop: float = 0.1) -> None:
        super().__init__()
        self.feature_alpha_drop = drop

    def forward(self, x: Tensor) -> Tensor:
        return KeptInVain.forward(self, x)  # type: ignore[arg-type]


class KeptForAnother(KeptInVain):
    """Attention to all tokens.

    Args:
        drop: not used; weights of older versions have it
    """

    def __init__(self, drop: float = 0.1) -> None:
        super().__init__()
        self.older_drop = drop


class Unread(nn.Module):
    """Attention to all tokens."""

    def __init__(self) -> None:
        super().__init__()
        self.qkv, self.drop = nn.Linear(WIDTH, 3 * WIDTH), nn.Dropout(0.1)
        self.keeps = False

    def forward(self, x: Tensor) -> Tensor:
        q, k, v = map(split, self.qkv(x).chunk(3, -1))
        weights = (q @ k.mT / q.shape[-1] ** 0.5).softmax(-1)
        _dropped = self.drop(weights)  # here
        return joined(weights @ v)


class CalledAlone(Unread):
    def forward(self, x: Tensor) -> Tensor:
        q, k, v = map(split, self.qkv(x).chunk(3, -1))
        weights = (q @ k.mT / q.shape[-1] ** 0.5).softmax(-1)
        F.dropout(weights, 0.2, self.training)  # here
        return joined(weights @ v)


class GivenAnew(Unread):
    def forward(self, x: Tensor) -> Tensor:
        q, k, v = map(split, self.qkv(x).chunk(3, -1))
        scores = q @ k.mT / q.shape[-1] ** 0.5
        weights = scores.softmax(-1)
        weights = self.drop(weights)  # here
        weights = scores.softmax(-1)
        return joined(weights @ v)


class InItsPlace(Unread):
    """The dropout writes into what is returned."""

    def forward(self, x: Tensor) -> Tensor:
        q, k, v = map(split, self.qkv(x).chunk(3, -1))
        weights = (q @ k.mT / q.shape[-1] ** 0.5).softmax(-1)
        read = joined(weights @ v)
        F.dropout(read, 0.2, self.training, inplace=True)
        return read


class ReadOnACondition(Unread):
    """Values are weighted by what is left of the weights, where that is asked for."""

    def forward(self, x: Tensor) -> Tensor:
        q, k, v = map(split, self.qkv(x).chunk(3, -1))
        weights = (q @ k.mT / q.shape[-1] ** 0.5).softmax(-1)
        dropped = self.drop(weights)
        if self.keeps:
            weights = dropped
        return joined(weights @ v)


class KeptToBeSeen(Unread):
    """What is left of the weights is kept for whoever asks for it."""

    def forward(self, x: Tensor) -> Tensor:
        q, k, v = map(split, self.qkv(x).chunk(3, -1))
        weights = (q @ k.mT / q.shape[-1] ** 0.5).softmax(-1)
        self.weights = [self.drop(weights)]
        return joined(weights @ v)


class ReadByAnother(Unread):
    """The values are weighted by what is left of the weights, in another function."""

    def forward(self, x: Tensor) -> Tensor:
        q, k, v = map(split, self.qkv(x).chunk(3, -1))
        weights = (q @ k.mT / q.shape[-1] ** 0.5).softmax(-1)
        dropped = self.drop(weights)
        return self.read(dropped, v)

    def read(self, weights: Tensor, v: Tensor) -> Tensor:
        return joined(weights @ v)


class OfTwoSettings(nn.Module):
    """A block with a share for its weights, and one for what is added to the stream."""

    def __init__(self, dropout: float = 0.1, attention_dropout: float = 0.1) -> None:
        super().__init__()
        self.attention, self.dropout = Weighted(WIDTH, attention_dropout), nn.Dropout(dropout)

    def forward(self, x: Tensor) -> Tensor:
        out: Tensor = x + self.dropout(self.attention(x))
        return out


class AttentionThatForgets(nn.Module):
    def __init__(self, width: int, dropout: float = 0.1) -> None:
        super().__init__()
        self.qkv = nn.Linear(width, 3 * width)
        if dropout > 0:
            self.dropout = nn.Dropout(dropout)  # here

    def forward(self, x: Tensor) -> Tensor:
        q, k, v = map(split, self.qkv(x).chunk(3, -1))
        return joined((q @ k.mT / q.shape[-1] ** 0.5).softmax(-1) @ v)


class BlockThatForgets(OfTwoSettings):
    def __init__(self, dropout: float = 0.1, attention_dropout: float = 0.1) -> None:
        nn.Module.__init__(self)
        self.attention, self.dropout = AttentionThatForgets(WIDTH, attention_dropout), nn.Dropout(dropout)


class BlockThatForgetsByName(OfTwoSettings):
    def __init__(self, dropout: float = 0.1, attention_dropout: float = 0.1) -> None:
        nn.Module.__init__(self)
        self.attention = AttentionThatForgets(WIDTH, dropout=attention_dropout)
        self.dropout = nn.Dropout(dropout)


class BlockOfOneSetting(OfTwoSettings):
    """A block of one share, which it drops itself."""

    def __init__(self, dropout: float = 0.1) -> None:
        nn.Module.__init__(self)
        self.attention, self.dropout = AttentionThatForgets(WIDTH, dropout), nn.Dropout(dropout)


def told_nothing(kind: Any) -> Any:
    return of_module(lambda: kind(0.0) if kind is not DropsOutputsAlone else kind(0.0, 0.0))


CASES = [
    *(Case("dropout-handed-on", HandsNothingOn, right, told_nothing) for right in (HandsOn, DropsOutputsAlone)),
    *(
        Case("dropout-applied", NeverApplied, right, of_module)
        for right in (Documented, ShareThatIsFused, LeftFromBefore)
    ),
    *(
        Case("dropout-applied", wrong, right, of_module)
        for wrong in (BlockThatForgets, BlockThatForgetsByName)
        for right in (OfTwoSettings, BlockOfOneSetting)
    ),
    *(
        Case("dropout-applied", KeptInVain, right, of_module)
        for right in (KeptAsANumber, KeptForNobody, KeptForAnother)
    ),
    *(
        Case("dropout-applied", wrong, right, of_module)
        for wrong, right in (
            (Unread, ReadByAnother),
            (CalledAlone, InItsPlace),
            (GivenAnew, ReadOnACondition),
            (GivenAnew, KeptToBeSeen),
        )
    ),
]
