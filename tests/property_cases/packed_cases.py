"""Sequences that are packed one after the other."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import torch
from torch import Tensor, nn

from attention_styles import tokens_call
from property_cases import HEADS, WIDTH, Case, drawn, joined, of_module, of_x
from regard.check.target import Invocation, Stream
from regard.check.target.preparation import prepare


def packed_call(function: Any) -> Invocation:
    """Of six tokens, two heads, with the boundaries of one sequence."""
    given = {name: drawn(6, 2, 4, seed=seed) for seed, name in enumerate("qkv")}
    streams = [Stream(name, name, None, (0,), 1) for name in given]
    names = [*given, "cu_seqlens"]
    given["cu_seqlens"] = torch.tensor([0, 6])
    return Invocation(function, given, names, streams, boundaries=["cu_seqlens"])


def _packed(q: Tensor, k: Tensor, v: Tensor, sequence: Tensor) -> Tensor:
    q, k, v = (each.transpose(0, 1) for each in (q, k, v))
    scores = q @ k.mT / 2  # here
    weights = scores.masked_fill(sequence[:, None] != sequence, -torch.inf).softmax(-1)
    return (weights @ v).transpose(0, 1)


def begins_with_the_second_token(q: Tensor, k: Tensor, v: Tensor, cu_seqlens: Tensor) -> Tensor:
    return _packed(q, k, v, torch.searchsorted(cu_seqlens, torch.arange(len(q))))


def begins_with_the_first_token(q: Tensor, k: Tensor, v: Tensor, cu_seqlens: Tensor) -> Tensor:
    return _packed(q, k, v, torch.searchsorted(cu_seqlens, torch.arange(len(q)), right=True))


def each_by_itself(q: Tensor, k: Tensor, v: Tensor, cu_seqlens: Tensor) -> Tensor:
    """Its steps are others for two sequences than for one."""
    out = torch.empty_like(q)
    for start, end in zip(cu_seqlens[:-1].tolist(), cu_seqlens[1:].tolist(), strict=True):
        weights = (torch.einsum("qhd,khd->hqk", q[start:end], k[start:end]) / 2).softmax(-1)
        out[start:end] = torch.einsum("hqk,khd->qhd", weights, v[start:end])
    return out


def apart_without_the_mask(
    q: Tensor, k: Tensor, v: Tensor, cu_seqlens: Tensor, attention_mask: Tensor | None = None
) -> Tensor:
    return each_by_itself(q, k, v, cu_seqlens)


def together_without_the_mask(
    q: Tensor, k: Tensor, v: Tensor, cu_seqlens: Tensor, attention_mask: Tensor | None = None
) -> Tensor:
    return sees_both_sequences(q, k, v, cu_seqlens)


def packed_call_with_a_mask(function: Any) -> Invocation:
    """That may be handed over."""
    return replace(packed_call(function), masks=["attention_mask"])


def sees_both_sequences(q: Tensor, k: Tensor, v: Tensor, cu_seqlens: Tensor) -> Tensor:
    return _packed(q, k, v, torch.zeros(len(q), dtype=torch.long))


def one_text_in_all(q: Tensor, k: Tensor, v: Tensor, docs: Tensor) -> Tensor:
    scores = q @ k.mT / 2 + (docs[:, None] - docs).clamp(min=0) * -1e9  # here
    return scores.softmax(-1) @ v


def texts_in_pieces(q: Tensor, k: Tensor, v: Tensor, docs: Tensor) -> Tensor:
    """Two queries at a time."""
    pieces = []
    for start in range(0, q.shape[1], 2):
        same = docs[start : start + 2, None] == docs
        scores = q[:, start : start + 2] @ k.mT / 2
        pieces.append(scores.masked_fill(~same, -torch.inf).softmax(-1) @ v)
    return torch.cat(pieces, 1)


def with_texts_in_a_row(function: Any) -> Invocation:
    """A call of one sequence with heads, and the number of the text of each token."""
    streams = [Stream(name, name, None, (1,), 0) for name in "qkv"]
    given = {name: drawn(2, 4, 4, seed=seed) for seed, name in enumerate("qkv")}
    given["docs"] = torch.zeros(4, dtype=torch.long)
    return Invocation(function, given, [*given], streams, documents=["docs"])


def as_told(x: Tensor, w_qkv: Tensor) -> Tensor:
    """w_qkv: the weights of queries, keys and values."""
    q, k, v = (x @ w_qkv).chunk(3, -1)
    return (q @ k.mT / 8**0.5).softmax(-1) @ v  # here


def values_first(x: Tensor, w_qkv: Tensor) -> Tensor:
    """w_qkv: the weights of queries, keys and values."""
    v, q, k = (x @ w_qkv).chunk(3, -1)
    return (q @ k.mT / 8**0.5).softmax(-1) @ v  # here


def made_by_their_names(x: Tensor, w_q: Tensor, w_k: Tensor, w_v: Tensor) -> Tensor:
    return (x @ w_q @ (x @ w_k).mT / 8**0.5).softmax(-1) @ (x @ w_v)


def made_by_others(x: Tensor, w_q: Tensor, w_k: Tensor, w_v: Tensor) -> Tensor:
    return (x @ w_k @ (x @ w_q).mT / 8**0.5).softmax(-1) @ (x @ w_v)  # here


def with_three_matrices(function: Any) -> Invocation:
    call = of_x(function)
    call.arguments |= {f"w_{letter}": drawn(8, 8, seed=seed) / 8**0.5 for seed, letter in enumerate("qkv")}
    return call


def with_a_matrix(function: Any) -> Invocation:
    call = of_x(function)
    call.arguments["w_qkv"] = drawn(8, 24, seed=3)
    return call


def _of_documents(x: Tensor, documents: Tensor) -> Tensor:
    scores = x @ x.mT / x.shape[-1] ** 0.5  # here
    later = torch.ones(x.shape[1], x.shape[1]).triu(1) == 1
    other = documents[:, :, None] != documents[:, None]
    return scores.masked_fill(later | other, -torch.inf).softmax(-1) @ x


def end_in_the_next_document(x: Tensor, input_ids: Tensor, eos_id: int = 3) -> Tensor:
    """Every document ends with an end-of-text token, and no token sees another document."""
    return _of_documents(x, (input_ids == eos_id).cumsum(1))


def end_in_its_document(x: Tensor, input_ids: Tensor, eos_id: int = 3) -> Tensor:
    """Every document ends with an end-of-text token, and no token sees another document."""
    is_end = (input_ids == eos_id).long()
    return _of_documents(x, is_end.cumsum(1) - is_end)


def end_before_the_next_document(x: Tensor, input_ids: Tensor, eos_id: int = 3) -> Tensor:
    """Documents are set apart by an end-of-text token, which the next one begins with."""
    return end_in_the_next_document(x, input_ids, eos_id)


def begin_in_the_document_before(x: Tensor, input_ids: Tensor, bos_id: int = 3) -> Tensor:
    """Each document is preceded by a BOS of its own."""
    is_first = (input_ids == bos_id).long()
    return _of_documents(x, is_first.cumsum(1) - is_first)


def begin_in_its_document(x: Tensor, input_ids: Tensor, bos_id: int = 3) -> Tensor:
    """Each document is preceded by a BOS of its own."""
    return _of_documents(x, (input_ids == bos_id).cumsum(1))


def _numbers_with_the_end(input_ids: Tensor, end_id: int) -> Tensor:
    """Each end-of-text token is part of the text that it finishes."""
    return (input_ids == end_id).cumsum(1)


def end_in_the_next_by_a_function(x: Tensor, input_ids: Tensor, end_id: int = 3) -> Tensor:
    """Causal attention in each text of a row."""
    return _of_documents(x, _numbers_with_the_end(input_ids, end_id))


def with_ids(function: Any) -> Invocation:
    call = of_x(function)
    return replace(call, arguments={**call.arguments, "input_ids": torch.ones(2, 4, dtype=torch.long)})


class OfPackedTexts(nn.Module):
    """Several texts are packed into a row, each of which begins with BOS. Attention stays in its text."""

    def __init__(self) -> None:
        super().__init__()
        self.bos_id, self.table = 1, nn.Embedding(9, 8)

    def forward(self, ids: Tensor) -> Tensor:
        x, text = self.table(ids), (ids == self.bos_id).cumsum(-1)
        scores = x @ x.mT / x.shape[-1] ** 0.5  # here
        later = torch.ones(ids.shape[1], ids.shape[1]).triu(1) == 1
        return scores.masked_fill(later | self.is_other(text), -torch.inf).softmax(-1) @ x

    def is_other(self, text: Tensor) -> Tensor:
        return text[:, None] != text[:, :, None]


class SeeingEarlierTexts(OfPackedTexts):
    """Several texts are packed into a row, each of which begins with BOS. Attention stays in its text."""

    def is_other(self, text: Tensor) -> Tensor:
        return text[:, None] > text[:, :, None]


def texts_of(ids: Tensor) -> Tensor:
    """Of texts that are packed into one row: no token sees anything across an EOS."""
    is_end = (ids == 2).long()
    return is_end.cumsum(-1) - is_end


class OfTextsByAFunction(OfPackedTexts):
    """A language model."""

    def __init__(self) -> None:
        super().__init__()
        self.eos_id, self.bos_id = self.bos_id + 1, None

    def forward(self, ids: Tensor) -> Tensor:
        x, text = self.table(ids), texts_of(ids)
        scores = x @ x.mT / x.shape[-1] ** 0.5  # here
        later = torch.ones(ids.shape[1], ids.shape[1]).triu(1) == 1
        return scores.masked_fill(self.hidden(later, text), -torch.inf).softmax(-1) @ x

    def hidden(self, later: Tensor, text: Tensor) -> Tensor:
        return later | self.is_other(text)


class OfTextsSeenInPart(OfTextsByAFunction):
    """A language model."""

    def hidden(self, later: Tensor, text: Tensor) -> Tensor:
        return later & self.is_other(text)


class InTwoLayers(nn.Module):
    """The layers read the words of a row, which some token closes."""

    of_layers = 2

    def __init__(self) -> None:
        super().__init__()
        self.eos_id, self.table = 2, nn.Embedding(9, 8)

    def forward(self, ids: Tensor) -> Tensor:
        x, is_end = self.table(ids), (ids == self.eos_id).long()
        text = is_end.cumsum(-1) - is_end
        other = text[:, None] != text[:, :, None]
        later = torch.ones(ids.shape[1], ids.shape[1]).triu(1) == 1
        for layer in range(2):
            hidden = later | other if layer < self.of_layers else later.expand_as(other)
            x = x + (x @ x.mT / x.shape[-1] ** 0.5).masked_fill(hidden, -torch.inf).softmax(-1) @ x  # here
        return x


class InOneLayer(InTwoLayers):
    of_layers = 1


class InNoLayer(InTwoLayers):
    of_layers = 0


class OfOneTextAfterAnother(SeeingEarlierTexts):
    """Several texts are packed into a row, each of which begins with BOS, and are read as one."""


def of_words(kind: type[OfPackedTexts]) -> Invocation:
    module = kind()
    prepare(module, 1)
    call = tokens_call(module, torch.tensor([[2, 3, 4, 5, 6], [7, 8, 2, 4, 3]]))
    call.streams[0].role = "ids"
    return call


class OneHeadAfterTheOther(nn.Module):
    """The rows of the matrix are head 0: q k v, head 1: q k v, ..."""

    def __init__(self) -> None:
        super().__init__()
        self.qkv = nn.Linear(WIDTH, 3 * WIDTH)

    def parts(self, x: Tensor) -> list[Tensor]:
        return [*self.qkv(x).unflatten(-1, (HEADS, 3, -1)).permute(3, 0, 2, 1, 4)]

    def forward(self, x: Tensor) -> Tensor:
        q, k, v = self.parts(x)
        return joined((q @ k.mT / q.shape[-1] ** 0.5).softmax(-1) @ v)  # here


class InThirds(OneHeadAfterTheOther):
    """The rows of the matrix are head 0: q k v, head 1: q k v, ..."""

    def parts(self, x: Tensor) -> list[Tensor]:
        return [*self.qkv(x).unflatten(-1, (3, HEADS, -1)).permute(2, 0, 3, 1, 4)]


class InThirdsAsNothingIsTold(InThirds):
    """One matrix for all three."""


CASES = [
    Case("opening-token", begin_in_the_document_before, begin_in_its_document, with_ids),
    Case("sequences-apart", SeeingEarlierTexts, OfPackedTexts, of_words),
    Case("sequences-apart", SeeingEarlierTexts, OfOneTextAfterAnother, of_words),
    Case("sequences-apart", OfTextsSeenInPart, OfTextsByAFunction, of_words),
    Case("sequences-apart", InOneLayer, InTwoLayers, of_words, attentions=2),
    Case("sequences-apart", InOneLayer, InNoLayer, of_words, attentions=2),
    Case("closing-token", end_in_the_next_document, end_in_its_document, with_ids),
    Case("closing-token", end_in_the_next_by_a_function, end_in_its_document, with_ids),
    Case("closing-token", end_in_the_next_document, end_before_the_next_document, with_ids),
    Case("matrix-as-named", made_by_others, made_by_their_names, with_three_matrices),
    Case("packed-as-documented", InThirds, OneHeadAfterTheOther, of_module),
    Case("packed-as-documented", InThirds, InThirdsAsNothingIsTold, of_module),
    Case("packed-as-documented", values_first, as_told, with_a_matrix),
    Case("sequences-apart", begins_with_the_second_token, begins_with_the_first_token, packed_call),
    Case("sequences-apart", sees_both_sequences, each_by_itself, packed_call),
    Case("sequences-apart", together_without_the_mask, apart_without_the_mask, packed_call_with_a_mask),
    Case("mask-argument", one_text_in_all, texts_in_pieces, with_texts_in_a_row),
]
