"""Exercises 04 to 09: attention of one head, step by step."""

from __future__ import annotations

from regard.exercises.exercise import Exercise
from regard.exercises.statements.course import QKV, WEIGHTS, X

__all__ = ["ATTENTION"]

ATTENTION = (
    Exercise(
        4,
        "attention-without-weights",
        "Attention without weights",
        4,
        "simple_attention",
        "Return attention in which the tokens themselves are queries, keys and values (Q = K = V = X): every token "
        "becomes "
        "a weighted mean of all tokens, with more weight on those that are like it. Nothing is learned here.",
        ("x: (tokens, d_model)", "result: (tokens, d_model)"),
        (
            "result = softmax(x x^T / sqrt(d_model)) x",
            "the softmax over each row",
        ),
        '''def simple_attention(x):
    """Attention with Q = K = V = x: (tokens, d_model) gives (tokens, d_model)."""
    raise NotImplementedError("your code here")''',
        X,
        "simple_attention(X)",
        (
            "Three steps: how alike are two tokens, which share does each get, and what comes out. Print the shape "
            "after "
            "each of them: the first two are (tokens, tokens).",
            "Each row of the weights belongs to one token that looks, and has to sum to 1. Print weights.sum(-1).",
            "Scores are the dot products of all pairs, divided by the root of the width; weights are their softmax "
            "along "
            "the last axis; the result is one more matrix product, weights on the left.",
        ),
    ),
    Exercise(
        5,
        "projections",
        "Queries, keys and values",
        5,
        "projections",
        "Return queries, keys and values of every token, in this order: three linear maps of the same vectors. The "
        "weights are stored as torch.nn.Linear stores them, (d_k, d_model): one row for each number of the result.",
        ("x: (tokens, d_model)", "w_q, w_k, w_v: (d_k, d_model) each", "result: q, k, v, each (tokens, d_k)"),
        (
            "q = x w_q^T",
            "k = x w_k^T",
            "v = x w_v^T",
        ),
        '''def projections(x, w_q, w_k, w_v):
    """Queries, keys and values of x, (tokens, d_k) each, as a tuple (q, k, v)."""
    raise NotImplementedError("your code here")''',
        f"{X}\n{WEIGHTS}",
        "projections(X, W_q, W_k, W_v)",
        (
            "Write the shapes beside each other: (tokens, d_model) and (d_k, d_model). Which axis do both share?",
            "A matrix product sums over the last axis of the left matrix and the first of the right one. One of the "
            "two "
            "has to be turned round. With a square weight both ways run, and only one of them is right.",
            "Each of the three results is x times the transpose of one weight; return them as `q, k, v`.",
        ),
    ),
    Exercise(
        6,
        "scores",
        "Scores: every query with every key",
        5,
        "scores",
        "Return the dot product of every query with every key, not scaled yet. Row i belongs to query i, column j to "
        "key "
        "j. There may be more keys than queries.",
        ("q: (queries, d_k)", "k: (keys, d_k)", "result: (queries, keys)"),
        ("result[i, j] = q[i] . k[j]",),
        '''def scores(q, k):
    """The dot product of every query with every key: (queries, d_k) and (keys, d_k) give (queries, keys)."""
    raise NotImplementedError("your code here")''',
        QKV,
        "scores(Q, K)",
        (
            "How many numbers has the result? Each of them is one dot product, as in exercise 01.",
            "It is one matrix product. Queries are the rows of the result, so they stand on the left.",
            "The axis that is summed over is d_k, the last one of both. For a matrix product it has to be the first "
            "one of "
            "the right matrix: transpose it. A view or reshape would mix the keys.",
        ),
    ),
    Exercise(
        7,
        "scale",
        "Scaled scores",
        6,
        "scaled_scores",
        "Return the scores of exercise 06, scaled. If the numbers of q and k are independent, with mean 0 and "
        "variance 1, "
        "their dot product has the variance d_k; the scale brings it back to 1, whatever the width. Read the width off "
        "the tensors.",
        ("q: (queries, d_k)", "k: (keys, d_k)", "result: (queries, keys)"),
        (
            "result = q k^T / sqrt(d_k)",
            "(Attention Is All You Need, section 3.2.1)",
        ),
        '''def scaled_scores(q, k):
    """Scores divided by the root of the width: (queries, d_k) and (keys, d_k) give (queries, keys)."""
    raise NotImplementedError("your code here")''',
        QKV,
        "scaled_scores(Q, K)",
        (
            "Which number of the shapes is d_k? It is not the number of tokens.",
            "The variance of a sum of d_k products is d_k. By what do you divide so that a standard deviation "
            "becomes 1?",
            "Divide q k^T by the square root of the size of the last axis of q (or of k, they are equal).",
        ),
    ),
    Exercise(
        8,
        "softmax",
        "Softmax, by hand",
        6,
        "softmax",
        "Return the softmax of every row, without the softmax of PyTorch: weights that are positive and sum to 1 for "
        "each "
        "query. It has to work for scores of 1000 as well, where exp is infinite in floating point.",
        ("scores: (queries, keys)", "result: (queries, keys)"),
        ("result[i, j] = exp(s[i, j]) / (exp(s[i, 0]) + ... + exp(s[i, keys-1]))",),
        '''def softmax(scores):
    """The weights of each query, which sum to 1: (queries, keys) gives (queries, keys)."""
    raise NotImplementedError("your code here")''',
        f"{QKV}\nSCORES = Q @ K.T / 2**0.5  # (queries, keys)",
        "softmax(SCORES)",
        (
            "Sum your result along the last axis: each sum has to be 1. Which axis did you sum over?",
            "exp(a - c) / (exp(b - c) + ...) is the same number for every c: choose a c for each row so that no "
            "exponent "
            "is above 0.",
            "Per row: subtract the largest score, take exp, divide by the row's sum. keepdim=True keeps maximum and "
            "sum "
            "as (queries, 1), so that they are applied to rows.",
        ),
    ),
    Exercise(
        9,
        "attention",
        "Scaled dot-product attention",
        6,
        "attention",
        "Return attention: put scores, scale and softmax together, and read the values with the weights. There may be "
        "more keys than queries, and values may have another width than keys.",
        ("q: (queries, d_k)", "k: (keys, d_k)", "v: (keys, d_v)", "result: (queries, d_v)"),
        (
            "result = softmax(q k^T / sqrt(d_k)) v",
            "(Attention Is All You Need, equation 1)",
        ),
        '''def attention(q, k, v):
    """Scaled dot-product attention of one head: the result is (queries, d_v)."""
    raise NotImplementedError("your code here")''',
        QKV,
        "attention(Q, K, V)",
        (
            "Name every step on a line of its own: scores, scaled, weights, output. Exercises 06 to 08 are the first "
            "three.",
            "Rows of the weights are queries and sum to 1. Row i of the output is a mean of the rows of v, with the "
            "weights "
            "of row i.",
            "softmax(dim=-1) goes over the keys. The last step is a matrix product with the weights on the left and "
            "v, not "
            "transposed, on the right.",
        ),
    ),
)
