"""Exercises 01 to 03: numbers, vectors, and how alike two of them are."""

from __future__ import annotations

from regard.exercises.exercise import Exercise
from regard.exercises.statements.course import X

__all__ = ["VECTORS"]

VECTORS = (
    Exercise(
        1,
        "dot-product",
        "One dot product",
        3,
        "dot_product",
        "Return the dot product of two vectors of the same length: one number. It is large where both vectors are long "
        "and point the same way, 0 where they are perpendicular, and negative where they point apart.",
        ("a: (d,)", "b: (d,)", "result: one number"),
        ("a . b = a[0] b[0] + a[1] b[1] + ... + a[d-1] b[d-1]",),
        '''def dot_product(a, b):
    """The dot product of two vectors, (d,) and (d,): one number."""
    raise NotImplementedError("your code here")''',
        f"{X}\nA, B = X[0], X[2]",
        "dot_product(A, B)",
        (
            "How many numbers go in, and how many come out? Say what happens to each pair of numbers, and then to all "
            "of these results together.",
            "First multiply the vectors element by element, which gives d numbers. Then make one number of them.",
            "Two operations are enough: one of `*` on the vectors, and one method of the product that takes all of its "
            "elements together. With a loop: begin at 0 and add one product for each index of the vectors.",
        ),
    ),
    Exercise(
        2,
        "lookup",
        "From token ids to vectors",
        2,
        "lookup",
        "Return the vector of each token. The table has a row for every token of the vocabulary, and a token's id is "
        "the "
        "number of its row, counted from 0. Multiplying a one-hot vector by the table gives the same row; models "
        "look it "
        "up instead (torch.nn.Embedding).",
        ("table: (vocabulary, d_model)", "ids: (tokens,), whole numbers", "result: (tokens, d_model)"),
        ("result[i] = table[ids[i]]",),
        '''def lookup(table, ids):
    """The rows of the table that the ids name: (vocabulary, d_model) and (tokens,) give (tokens, d_model)."""
    raise NotImplementedError("your code here")''',
        f"{X}\nTABLE = X\nIDS = torch.tensor([0, 1, 2, 1])  # Write a poem a",
        "lookup(TABLE, IDS)",
        (
            "Take one id, such as 2. Which numbers of the table belong to this token: a row or a column?",
            "The result has one row for each id, in the order of the ids. An id that comes twice gives the same row "
            "twice.",
            "A tensor of whole numbers may stand in the brackets behind a tensor: it selects along the first axis. "
            "With "
            "one-hot vectors, each is (vocabulary,), and all of them are a matrix (tokens, vocabulary).",
        ),
    ),
    Exercise(
        3,
        "cosine-similarity",
        "Cosine similarity of every pair",
        3,
        "cosine_similarity",
        "Return the cosine of the angle between every two tokens: the dot product of the two vectors, each divided "
        "by its "
        "length. Lengths do not matter then: the cosine is 1 for the same direction and -1 for the opposite one.",
        ("x: (tokens, d_model)", "result: (tokens, tokens)"),
        (
            "result[i, j] = x[i] . x[j] / (|x[i]| |x[j]|)",
            "|x| = sqrt(x[0]^2 + ... + x[d-1]^2)",
        ),
        '''def cosine_similarity(x):
    """The cosine of every two rows of x: (tokens, d_model) gives (tokens, tokens)."""
    raise NotImplementedError("your code here")''',
        X,
        "cosine_similarity(X)",
        (
            "What must stand on the diagonal of the result? Compare it with the diagonal of your own.",
            "Make every row of x a vector of length 1 first. Then the cosines are the dot products of every two rows.",
            "The lengths are one number for each token: keep them as (tokens, 1), so that a division by them is one of "
            "rows. All dot products of rows are one matrix product of a matrix and its transpose.",
        ),
    ),
)
