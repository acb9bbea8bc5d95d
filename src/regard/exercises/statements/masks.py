"""Exercises 12 and 13: who may attend."""

from __future__ import annotations

from regard.exercises.exercise import Exercise
from regard.exercises.statements.course import QKV

__all__ = ["MASKS"]

MASKS = (
    Exercise(
        12,
        "causal-mask",
        "Causal attention",
        8,
        "causal_attention",
        "Return the attention of exercise 09 with a causal mask: a query sees the keys up to and including its own "
        "position. A blocked score becomes minus infinity before the softmax, so that its weight is exactly 0.",
        ("q: (tokens, d_k)", "k: (tokens, d_k)", "v: (tokens, d_v)", "result: (tokens, d_v)"),
        (
            "result = softmax(q k^T / sqrt(d_k) + M) v",
            "M[i, j] = 0 for j <= i, -inf for j > i",
        ),
        '''def causal_attention(q, k, v):
    """Attention in which no token sees a later one: the result is (tokens, d_v)."""
    raise NotImplementedError("your code here")''',
        QKV,
        "causal_attention(Q, K, V)",
        (
            "Which values may the first token read? Compare the first row of your result with the first row of v.",
            "The mask goes between the scale and the softmax. A score of 0 is not blocked: exp(0) is 1.",
            "torch.ones(...).tril() is the lower triangle with the diagonal; masked_fill needs True where a score is "
            "replaced, so mind which of the two your mask says.",
        ),
    ),
    Exercise(
        13,
        "padding-mask",
        "A padding mask",
        8,
        "padded_attention",
        "Return attention for a batch of texts of different lengths, filled up with padding. No query may see a key "
        "that "
        "is padding, in its own text. Queries that are padding still get a result, which nobody reads.",
        (
            "q, k: (batch, tokens, d_k)",
            "v: (batch, tokens, d_v)",
            "keep: (batch, tokens), True = a real token, False = padding",
            "result: (batch, tokens, d_v)",
        ),
        (
            "result = softmax(q k^T / sqrt(d_k) + M) v",
            "M[b, i, j] = 0 where keep[b, j], else -inf",
        ),
        '''def padded_attention(q, k, v, keep):
    """Attention that reads no padding; keep is True for real tokens: the result is (batch, tokens, d_v)."""
    raise NotImplementedError("your code here")''',
        f"{QKV}\nQ, K, V = Q[None], K[None], V[None]  # a batch of one text\n"
        "KEEP = torch.tensor([[True, True, False]])",
        "padded_attention(Q, K, V, KEEP)",
        (
            "Padding is a property of keys: is that a row or a column of the scores?",
            "Scores are (batch, queries, keys). The mask is (batch, keys): where does the missing axis go?",
            "Give the mask an axis of size 1 for the queries, and replace the scores where it is False by minus "
            "infinity, "
            "before the softmax. Zeros in k or v do not hide a token: a score of 0 has the weight exp(0).",
        ),
    ),
)
