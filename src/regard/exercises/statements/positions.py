"""Exercises 10 and 11: the order of the tokens."""

from __future__ import annotations

from regard.exercises.exercise import Exercise

__all__ = ["POSITIONS"]

POSITIONS = (
    Exercise(
        10,
        "sinusoidal-positions",
        "Sinusoidal positions",
        7,
        "sinusoidal_positions",
        "Return the table of positions of the paper, which is added to the embeddings. Channels come in pairs: an even "
        "channel is a sine and the odd one after it the cosine of the same angle. d_model is even.",
        ("tokens: how many positions", "d_model: how many channels, even", "result: (tokens, d_model)"),
        (
            "angle(pos, c) = pos / 10000^((c - c mod 2) / d_model)",
            "result[pos, c] = sin(angle) for even c, cos(angle) for odd c",
            "(Attention Is All You Need, section 3.5; positions and channels count from 0)",
        ),
        '''def sinusoidal_positions(tokens, d_model):
    """The table of sinusoidal positions: (tokens, d_model)."""
    raise NotImplementedError("your code here")''',
        "TOKENS, D_MODEL = 3, 4",
        "sinusoidal_positions(TOKENS, D_MODEL)",
        (
            "What are the first two numbers of each row of your table, and what should they be? The first pair turns "
            "by 1 "
            "radian for each token.",
            "A pair shares one angle. For d_model = 4 there are two pairs, with the exponents 0 and 1/2: not four "
            "exponents.",
            "Angles are a column of positions (tokens, 1) times a row of frequencies (d_model / 2,). Write their "
            "sines into "
            "every second channel from 0 on, and their cosines into every second one from 1 on.",
        ),
    ),
    Exercise(
        11,
        "rotary",
        "Rotary positions",
        7,
        "rotary",
        "Return queries (or keys) with rotary positions: each pair of neighbouring channels, 2i and 2i + 1, is "
        "turned by "
        "an angle that grows with the token's position. A score of a turned query and a turned key depends on their "
        "distance alone. Positions count from 0; d_k is even.",
        ("x: (tokens, d_k), queries or keys of one head", "result: (tokens, d_k)"),
        (
            "theta_i = 10000^(-2i / d_k)",
            "a = x[p, 2i], b = x[p, 2i+1]:",
            "result[p, 2i] = a cos(p theta_i) - b sin(p theta_i)",
            "result[p, 2i+1] = a sin(p theta_i) + b cos(p theta_i)",
            "(RoFormer, equation 34)",
        ),
        '''def rotary(x):
    """x with each pair of neighbouring channels turned by its position's angle: (tokens, d_k) gives (tokens, d_k)."""
    raise NotImplementedError("your code here")''',
        "X = torch.tensor([[1.16, 0.23, 0.57, 1.36], [1.16, 0.23, 0.57, 1.36], [4.41, -2.16, 1.16, 0.23]])  # "
        "(tokens, d_k)",
        "rotary(X)",
        (
            "What happens to the token at position 0? A turn keeps the length of each pair: compare x.norm() before "
            "and "
            "after.",
            "Take the even channels and the odd ones apart: two tensors (tokens, d_k / 2). Both parts of a pair need "
            "both "
            "numbers.",
            "The angles are positions (tokens, 1) times theta (d_k / 2,). Of the four products, one has a minus; "
            "write the "
            "two results back into the channels 0::2 and 1::2.",
        ),
    ),
)
