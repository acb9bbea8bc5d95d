"""Joined heads that are added to the input: behind a matrix of their own, or as they are."""

from __future__ import annotations

from torch import Tensor, nn

from property_cases import HEADS, WIDTH, Case, drawn, joined, of_module, split


class MultiHead(nn.Module):
    """Multi-head attention (Vaswani et al., 2017), with the sum and the norm behind it."""

    def __init__(self) -> None:
        super().__init__()
        self.q, self.k, self.v, self.out = (nn.Linear(WIDTH, WIDTH) for _ in range(4))
        self.norm = nn.LayerNorm(WIDTH)

    def forward(self, x: Tensor) -> Tensor:
        return self.norm(x + self.out(self.read(x)))

    def read(self, x: Tensor) -> Tensor:
        q, k, v = (split(each(x)) for each in (self.q, self.k, self.v))
        return joined((q @ k.mT / q.shape[-1] ** 0.5).softmax(-1) @ v)  # here


class HeadsAddedAtOnce(MultiHead):
    """MultiHead(Q, K, V) = Concat(head_1, ..., head_h) W^O, added to x and normalized."""

    def __init__(self) -> None:
        super().__init__()
        del self.out

    def forward(self, x: Tensor) -> Tensor:
        return self.norm(x + self.read(x))


class HeadsAlone(HeadsAddedAtOnce):
    """Multi-head attention of "Attention Is All You Need": the heads, side by side."""

    def forward(self, x: Tensor) -> Tensor:
        return self.read(x)


class HeadsOfNoPaper(HeadsAddedAtOnce):
    """Multi-head attention."""


class HeadsWithoutIt(HeadsAddedAtOnce):
    """Multi-head attention as in section 3.2.2, without the output projection."""


class Inside(HeadsAlone):
    """Multi-head self-attention as in section 3.2.2 of the paper."""


class BlockOfHeads(nn.Module):
    """A block."""

    def __init__(self) -> None:
        super().__init__()
        self.attention, self.norm = Inside(), nn.LayerNorm(WIDTH)
        self.feed_forward = nn.Sequential(nn.Linear(WIDTH, 3 * WIDTH), nn.ReLU(), nn.Linear(3 * WIDTH, WIDTH))

    def forward(self, x: Tensor) -> Tensor:
        x = self.norm(self.attention(x) + x)
        return self.norm(x + self.feed_forward(x))


class BlockWithIt(BlockOfHeads):
    """A block; its matrix W_O stands beside the attention, as in BERT."""

    def __init__(self) -> None:
        super().__init__()
        self.out = nn.Linear(WIDTH, WIDTH)

    def forward(self, x: Tensor) -> Tensor:
        x = self.norm(self.out(self.attention(x)) + x)
        return self.norm(x + self.feed_forward(x))


class HeadsOfTheFormula(HeadsAddedAtOnce):
    """Instead of performing a single attention function, project h times with different, learned linear projections.

    MultiHead(Q, K, V) = Concat(head_1, ..., head_h) * W_o
    """

    def forward(self, x: Tensor) -> Tensor:
        return self.read(x)


class HeadsOfTheWords(HeadsOfTheFormula):
    """Multi-head attention: the outputs are concatenated and once again projected, resulting in the final values."""


class HeadsForACaller(HeadsOfTheFormula):
    """MultiHead(Q, K, V) = Concat(head_1, ..., head_h) W_O, without W_O: a caller applies it."""


class HeadsWithTheMatrix(MultiHead):
    """MultiHead(Q, K, V) = Concat(head_1, ..., head_h) W_O."""

    def forward(self, x: Tensor) -> Tensor:
        return self.out(self.read(x))


class EachHeadByItself(MultiHead):
    """MultiHead(Q, K, V) = Concat(head_1, ..., head_h) W_O."""

    def __init__(self) -> None:
        super().__init__()
        self.out = nn.Linear(WIDTH // HEADS, WIDTH // HEADS, bias=False)

    def forward(self, x: Tensor) -> Tensor:
        return joined(self.out(split(self.read(x))))  # here


class EachHeadByNoFormula(EachHeadByItself):
    """Multi-head attention, with one matrix that is applied to what each head has read."""


class EachPartOfTheMatrix(EachHeadByItself):
    """MultiHead(Q, K, V) = Concat(head_1, ..., head_h) W_O, as the sum of what each head adds."""

    def __init__(self) -> None:
        super().__init__()
        del self.out
        self.parts = nn.Parameter(drawn(HEADS, WIDTH // HEADS, WIDTH, seed=5))

    def forward(self, x: Tensor) -> Tensor:
        return (split(self.read(x)) @ self.parts).sum(1)


class OneTooFew(nn.Module):
    """Attention of several heads by a list of matrices, the last of which is that of the output."""

    number = 3

    def __init__(self) -> None:
        super().__init__()
        self.parts = nn.ModuleList(nn.Linear(WIDTH, WIDTH) for _ in range(self.number))

    def forward(self, x: Tensor) -> Tensor:
        q, k, v = (split(part(x)) for part in self.parts[:3])
        read = (q @ k.mT / q.shape[-1] ** 0.5).softmax(-1) @ v
        return self.parts[-1](joined(read))  # here


class OneForEach(OneTooFew):
    number = 4


class OfOnePlain(nn.Module):
    """Attention by matrices that are parameters."""

    def __init__(self) -> None:
        super().__init__()
        self.wq, self.wk, self.wv = (nn.Parameter(drawn(WIDTH, WIDTH, seed=each)) for each in range(3))

    def forward(self, x: Tensor) -> Tensor:
        return self.read(x) @ self.wq  # here

    def read(self, x: Tensor) -> Tensor:
        q, k, v = (split(x @ each) for each in (self.wq, self.wk, self.wv))
        return joined((q @ k.mT / q.shape[-1] ** 0.5).softmax(-1) @ v)


class BackByTheTranspose(OfOnePlain):
    """Values are put back to where they came from, as in a dictionary of features."""

    def forward(self, x: Tensor) -> Tensor:
        return self.read(x) @ self.wv.mT


class FewerOnPurpose(OfOnePlain):
    """Attention whose matrices of values and of the output are tied, to save memory."""

    def forward(self, x: Tensor) -> Tensor:
        return self.read(x) @ self.wv


class OneLayerTwice(OfOnePlain):
    """A layer without a matrix W_O, applied twice: the matrices behind the first are those of the second."""

    def forward(self, x: Tensor) -> Tensor:
        return self.read(self.read(x))


class OneLayerAndItsValues(OfOnePlain):
    def forward(self, x: Tensor) -> Tensor:
        return self.read(self.read(x)) @ self.wv  # here


CASES = [
    Case("output-matrix", OneLayerAndItsValues, OneLayerTwice, of_module, attentions=2),
    Case("output-matrix", OneTooFew, OneForEach, of_module),
    *(Case("output-matrix", OfOnePlain, right, of_module) for right in (BackByTheTranspose, FewerOnPurpose)),
    *(
        Case("heads-projected", HeadsAddedAtOnce, right, of_module)
        for right in (MultiHead, HeadsAlone, HeadsOfNoPaper, HeadsWithoutIt)
    ),
    *(
        Case("heads-projected", wrong, right, of_module)
        for wrong in (HeadsOfTheFormula, HeadsOfTheWords)
        for right in (HeadsForACaller, HeadsWithTheMatrix)
    ),
    *(
        Case("heads-projected", EachHeadByItself, right, of_module)
        for right in (EachHeadByNoFormula, EachPartOfTheMatrix, HeadsWithTheMatrix)
    ),
    Case("heads-projected", BlockOfHeads, BlockWithIt, of_module),
]
