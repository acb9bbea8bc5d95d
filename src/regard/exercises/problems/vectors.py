"""Exercises 01 to 03: the dot product, the lookup and the cosine."""

from __future__ import annotations

import torch
from torch import Tensor

from regard.exercises.problems.numbers import X, course_call, draw, random_call
from regard.exercises.problems.problem import OwnMistake, Problem, no_trail, variants_of

__all__ = ["COSINE_SIMILARITY", "DOT_PRODUCT", "LOOKUP"]


# 01 -------------------------------------------------------------------------------------------------------------------


def _dot(a: Tensor, b: Tensor) -> Tensor:
    product: Tensor = torch.linalg.vecdot(a, b)
    return product


DOT_PRODUCT = Problem(
    calls=lambda: [
        course_call(X[0], X[2]),
        random_call("a b", *draw(1, [5], [5])),
        random_call("a b", *draw(2, [1], [1])),
    ],
    right=_dot,
    variants=variants_of(
        OwnMistake(
            "sum-missing",
            "sum",
            "the products are not summed: the result is a vector of products, a[i] b[i]",
            "One number is wanted for two vectors: a vector cannot say how alike they are.",
            lambda a, b: a * b,
        ),
        OwnMistake(
            "added-not-multiplied",
            "product",
            "the numbers of the two vectors are added; a dot product multiplies them",
            "The result grows with both vectors, whatever their directions are.",
            lambda a, b: (a + b).sum(),
            lambda a, b: [a + b, (a + b).sum()],
            r"\+",
        ),
        OwnMistake(
            "mean-of-products",
            "sum",
            "the products are averaged: the result is the dot product divided by the length of the vectors",
            "The same angle and lengths give another number for each width.",
            lambda a, b: (a * b).mean(),
            pattern=r"mean|/\s*len|/\s*\w+\.(shape|numel|size)",
        ),
        OwnMistake(
            "cosine-instead",
            "product",
            "the result is the cosine, the dot product divided by both lengths",
            "The length of a vector has no effect; in attention it has one.",
            lambda a, b: torch.nn.functional.cosine_similarity(a, b, dim=0),
            pattern=r"norm|cosine",
        ),
        OwnMistake(
            "sums-multiplied",
            "sum",
            "each vector is summed first and the sums are multiplied; products come first, the sum after",
            "Every number of a meets every number of b, not only the one at its own place.",
            lambda a, b: a.sum() * b.sum(),
            lambda a, b: [a.sum() * b.sum(), a.sum()],
            r"sum",
        ),
        OwnMistake(
            "absolute-values",
            "product",
            "the products lose their signs: the result is the sum of their absolute values",
            "Opposite vectors look as alike as equal ones.",
            lambda a, b: (a * b).abs().sum(),
            pattern=r"abs",
        ),
        OwnMistake(
            "outer-product",
            "product",
            "the result is the outer product, every number of a times every number of b",
            "It is a matrix; the dot product is the sum of its diagonal.",
            torch.outer,
        ),
        OwnMistake(
            "one-vector-twice",
            "product",
            "the product is of a with itself: b has no effect",
            "It is the squared length of a, and says nothing of the other vector.",
            lambda a, b: _dot(a, a),
        ),
        OwnMistake(
            "one-vector-twice",
            "product",
            "the product is of b with itself: a has no effect",
            "It is the squared length of b, and says nothing of the other vector.",
            lambda a, b: _dot(b, b),
        ),
        OwnMistake(
            "sum-overwritten",
            "sum",
            "the result is the last product alone: each product takes the place of the one before",
            "All channels but one have no effect.",
            lambda a, b: (a * b)[-1],
            no_trail,
            r"=",
        ),
        OwnMistake(
            "sum-ends-early",
            "sum",
            "the result is the first product alone: the loop ends with its first round",
            "All channels but one have no effect.",
            lambda a, b: (a * b)[0],
            no_trail,
            r"return",
        ),
        OwnMistake(
            "last-left-out",
            "sum",
            "the last number of the vectors is left out: range(n) already ends before n",
            "One channel never counts.",
            lambda a, b: _dot(a[:-1], b[:-1]),
            pattern=r"range|:-1",
        ),
        OwnMistake(
            "first-left-out",
            "sum",
            "the first number of the vectors is left out: indices count from 0",
            "One channel never counts.",
            lambda a, b: _dot(a[1:], b[1:]),
            pattern=r"range|1:",
        ),
        OwnMistake(
            "distance-instead",
            "product",
            "the result is the distance of the two vectors, not their dot product",
            "It is smallest where they are alike; a score is largest there.",
            lambda a, b: (a - b).norm(),
            pattern=r"norm|dist|-",
        ),
    ),
)


# 02 -------------------------------------------------------------------------------------------------------------------


def _lookup(table: Tensor, ids: Tensor) -> Tensor:
    return torch.nn.functional.embedding(ids, table)


LOOKUP = Problem(
    calls=lambda: [
        course_call(X, torch.tensor([0, 1, 2, 1])),
        random_call("table ids", *draw(3, [6, 4]), torch.tensor([4, 0, 3, 3, 2])),
        random_call("table ids", *draw(4, [4, 4]), torch.tensor([3, 0, 2, 3])),
    ],
    right=_lookup,
    variants=variants_of(
        OwnMistake(
            "ids-from-one",
            "row",
            "ids are counted from 1: each token gets the row before its own, and id 0 the last one",
            "Every token has the vector of another token.",
            lambda table, ids: table[ids - 1],
            pattern=r"-\s*1",
        ),
        OwnMistake(
            "next-row",
            "row",
            "each token gets the row after its own",
            "Every token has the vector of another token, and the last id has none.",
            lambda table, ids: table[ids + 1],
            pattern=r"\+\s*1",
        ),
        OwnMistake(
            "columns-for-rows",
            "row",
            "the columns of the table are taken; a token's vector is a row",
            "A column holds one channel of all tokens.",
            lambda table, ids: table[:, ids],
        ),
        OwnMistake(
            "columns-for-rows",
            "row",
            "the columns of the table are taken, one for each id; a token's vector is a row",
            "A column holds one channel of all tokens.",
            lambda table, ids: table.T[ids],
        ),
        OwnMistake(
            "places-for-ids",
            "row",
            "the first rows are taken in their order: what the ids say has no effect",
            "Every text of the same length gets the same vectors.",
            lambda table, ids: table[: len(ids)],
        ),
        OwnMistake(
            "places-for-ids",
            "row",
            "each token gets the row of its place in the text: what the ids say has no effect",
            "Every text of the same length gets the same vectors.",
            lambda table, ids: table[torch.arange(len(ids))],
        ),
        OwnMistake(
            "each-id-once",
            "row",
            "each id is looked up once, and sorted: the second of two equal tokens is lost",
            "The result has no longer one row for each token of the text.",
            lambda table, ids: table[ids.unique()],
            pattern=r"unique|set\(|sorted",
        ),
        OwnMistake(
            "vectors-summed",
            "result",
            "the vectors of all tokens are added to one vector",
            "A text of many tokens becomes one vector, before any attention.",
            lambda table, ids: table[ids].sum(0),
            pattern=r"sum|@",
        ),
        OwnMistake(
            "vectors-averaged",
            "result",
            "the vectors of all tokens are averaged to one vector",
            "A text of many tokens becomes one vector, before any attention.",
            lambda table, ids: table[ids].mean(0),
            pattern=r"mean",
        ),
        OwnMistake(
            "id-times-vector",
            "row",
            "the ids are used as factors, not as the numbers of rows",
            "An id is a name: twice the id is not twice the token.",
            lambda table, ids: table[: len(ids)] * ids[:, None],
            pattern=r"\*",
        ),
        OwnMistake(
            "one-hot-returned",
            "row",
            "the result is the one-hot vectors themselves: they are not multiplied by the table",
            "Every two different tokens are equally far apart, and the vectors are as wide as the vocabulary.",
            lambda table, ids: torch.nn.functional.one_hot(ids, len(table)).double(),
            pattern=r"one_hot|eye|zeros",
        ),
        OwnMistake(
            "result-transposed",
            "result",
            "the result is transposed: (d_model, tokens); each row has to be a token",
            "What reads it takes channels for tokens.",
            lambda table, ids: table[ids].T,
            no_trail,
        ),
    ),
)


# 03 -------------------------------------------------------------------------------------------------------------------


def _unit(x: Tensor, dim: int = -1) -> Tensor:
    return torch.nn.functional.normalize(x, dim=dim, eps=0.0)


def _cosine(x: Tensor) -> Tensor:
    return torch.nn.functional.cosine_similarity(x[:, None], x[None], dim=-1)


COSINE_SIMILARITY = Problem(
    calls=lambda: [
        course_call(X),
        random_call("x", *draw(5, [4, 6])),
        random_call("x", *draw(6, [3, 3])),
    ],
    right=_cosine,
    variants=variants_of(
        OwnMistake(
            "not-normalized",
            "lengths",
            "these are the dot products: they are not divided by the lengths of the vectors",
            "A long vector seems alike to everything; the diagonal is not 1.",
            lambda x: x @ x.T,
        ),
        OwnMistake(
            "one-length-only",
            "lengths",
            "the dot products are divided by one of the two lengths only, that of the row's token",
            "The result is not symmetric, and the diagonal holds lengths.",
            lambda x: _unit(x) @ x.T,
            lambda x: [_unit(x) @ x.T],
            r"/",
        ),
        OwnMistake(
            "one-length-only",
            "lengths",
            "the dot products are divided by one of the two lengths only, that of the column's token",
            "The result is not symmetric, and the diagonal holds lengths.",
            lambda x: x @ _unit(x).T,
            lambda x: [x @ _unit(x).T],
            r"/",
        ),
        OwnMistake(
            "lengths-of-channels",
            "lengths",
            "the lengths are those of the columns: a channel over all tokens; a token is a row",
            "A token's cosine changes with the other tokens, and the diagonal is not 1.",
            lambda x: _unit(x, 0) @ _unit(x, 0).T,
            lambda x: [(x * x).sum(0), x.norm(dim=0), _unit(x, 0)],
            r"norm|sum",
        ),
        OwnMistake(
            "squared-lengths",
            "lengths",
            "the dot products are divided by the squared lengths: the root is missing",
            "Long vectors seem less alike than short ones of the same directions.",
            lambda x: x @ x.T / ((x * x).sum(-1)[:, None] * (x * x).sum(-1)),
            lambda x: [(x * x).sum(-1), x @ x.T / ((x * x).sum(-1)[:, None] * (x * x).sum(-1))],
            r"/|sum|norm",
        ),
        OwnMistake(
            "squared-lengths",
            "lengths",
            "the dot products are divided by the squared length of one of the two tokens",
            "The diagonal is 1, and the result is not symmetric.",
            lambda x: x @ x.T / (x * x).sum(-1),
            pattern=r"/|diag",
        ),
        OwnMistake(
            "sums-for-lengths",
            "lengths",
            "the vectors are divided by the sums of their numbers; the length is the root of the sum of the squares",
            "The diagonal is not 1, and a sum may be 0 or negative.",
            lambda x: (x / x.sum(-1, keepdim=True)) @ (x / x.sum(-1, keepdim=True)).T,
            lambda x: [x / x.sum(-1, keepdim=True)],
            r"sum",
        ),
        OwnMistake(
            "absolute-lengths",
            "lengths",
            "the lengths are sums of absolute values; the length of a vector is the root of the sum of its squares",
            "The diagonal is not 1.",
            lambda x: x @ x.T / (x.abs().sum(-1)[:, None] * x.abs().sum(-1)),
            lambda x: [x.abs().sum(-1)],
            r"abs|p=1|ord=1",
        ),
        OwnMistake(
            "one-length-for-all",
            "lengths",
            "everything is divided by one length, that of the whole matrix; every token has its own",
            "Long vectors still seem more alike than short ones.",
            lambda x: x @ x.T / x.norm() ** 2,
            lambda x: [x.norm(), x / x.norm()],
            r"norm",
        ),
        OwnMistake(
            "distance-of-cosine",
            "result",
            "the result is 1 - cosine, a distance; the cosine is wanted",
            "It is smallest where tokens are alike.",
            lambda x: 1 - _cosine(x),
            pattern=r"1\s*-|1\.0\s*-",
        ),
        OwnMistake(
            "distance-instead",
            "result",
            "the result is the distances of the tokens; the cosine of their angles is wanted",
            "It is smallest where tokens are alike, and lengths have an effect.",
            lambda x: (x[:, None] - x[None]).norm(dim=-1),
            pattern=r"cdist|norm|-",
        ),
        OwnMistake(
            "channels-compared",
            "dot products",
            "the channels are compared with one another, (d_model, d_model); tokens are rows",
            "The result says nothing of tokens.",
            lambda x: _cosine(x.T),
            lambda x: [_cosine(x.T), x.T @ x],
        ),
    ),
)
