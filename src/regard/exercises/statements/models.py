"""Exercises 18 to 20: a block, a step of beam search, a decoder that remembers."""

from __future__ import annotations

from regard.exercises.exercise import Exercise
from regard.exercises.statements.course import X

__all__ = ["MODELS"]

MODELS = (
    Exercise(
        18,
        "transformer-block",
        "A transformer block",
        12,
        "Block",
        "Write the forward of a pre-norm block from the parts that are there: attention and a feed-forward network, "
        "each "
        "with a norm before it and a residual around it. (The paper's block is post-norm: its norms come after the "
        "sums.)",
        ("x: (batch, tokens, d_model)", "result: (batch, tokens, d_model)"),
        (
            "y = x + attention(norm_1(x))",
            "result = y + feed_forward(norm_2(y))",
        ),
        '''class Block(nn.Module):
    """A pre-norm block of an encoder.

    Args:
        d_model: width of the tokens.
        num_heads: heads of the attention.
        d_ff: width inside the feed-forward network.
    """

    def __init__(self, d_model, num_heads, d_ff):
        super().__init__()
        self.norm_1 = nn.LayerNorm(d_model)
        self.attention = regard.MultiHeadAttention(d_model, num_heads)
        self.norm_2 = nn.LayerNorm(d_model)
        self.feed_forward = nn.Sequential(nn.Linear(d_model, d_ff), nn.ReLU(), nn.Linear(d_ff, d_model))

    def forward(self, x):
        """(batch, tokens, d_model) gives the same shape."""
        raise NotImplementedError("your code here")''',
        f"import regard\n\n{X}\nX = X[None]  # a batch of one text\ntorch.manual_seed(42)\nBLOCK = Block(2, 1, 8)",
        "BLOCK(X)",
        (
            "Which four parts has the block, and does each of them appear in your forward exactly once?",
            "A residual adds what a part computes to what went in before the norm, not to the normed tokens.",
            "Two lines of the same form. The second one reads only the result of the first: it stands there twice, "
            "once "
            "in the sum and once in the norm.",
        ),
    ),
    Exercise(
        19,
        "beam-step",
        "One step of beam search",
        14,
        "beam_step",
        "Return the best continuations of several beams. Every beam may go on with every token; the score of a "
        "continuation is the beam's score plus the token's log-probability, which is the logarithm of the product of "
        "all "
        "probabilities. Keep the best of all beams together, the highest scores, best first.",
        (
            "scores: (num_beams,), the log-probability of each beam so far",
            "log_probs: (num_beams, vocabulary), of the next token after each beam",
            "result: beams, tokens, new_scores, each (num_beams,): which beam goes on, with which token, its new score",
        ),
        (
            "new score of (beam b, token t) = scores[b] + log_probs[b, t]",
            "the num_beams largest of all b and t",
        ),
        '''def beam_step(scores, log_probs):
    """The best continuations of all beams, as a tuple (beams, tokens, new_scores), (num_beams,) each."""
    raise NotImplementedError("your code here")''',
        "SCORES = torch.tensor([-0.5, -1.0])  # two beams: Write a, Write the\n"
        "LOG_PROBS = torch.tensor([[0.2, 0.3, 0.5], [0.1, 0.8, 0.1]]).log()  # (num_beams, vocabulary)",
        "beam_step(SCORES, LOG_PROBS)",
        (
            "Can both of the best continuations come from the same beam? With the numbers of the course, look which "
            "do.",
            "All candidates are a matrix (num_beams, vocabulary): each row has its beam's score added to it. Log-"
            "probabilities are added, because probabilities are multiplied.",
            "topk on the flattened matrix gives scores and flat indices. A flat index counts row by row: the row is "
            "the "
            "whole number of rows that fit into it, the column is what is left over.",
        ),
    ),
    Exercise(
        20,
        "decoder-with-cache",
        "A decoder with a cache",
        15,
        "Decoder",
        "Write the forward of a small decoder that remembers keys and values. The first call gets the prompt and no "
        "cache; "
        "each later call gets only the new tokens, one or several, and the cache that the call before returned. The "
        "logits "
        "have to be those of one call with all tokens at once. Positions count from 0. What the cache is, is up to "
        "you.",
        (
            "ids: (new,), the new tokens' ids",
            "cache: None, or what your forward returned as the cache",
            "result: logits (new, vocabulary), and the cache for the next call",
        ),
        (
            "h = token_embedding(ids) + position_embedding(positions)",
            "y = h + W_o(causal attention of h over all tokens so far)",
            "logits = lm_head(y)",
            "one head, scaled by sqrt(d_model)",
        ),
        '''class Decoder(nn.Module):
    """A decoder of one layer, without norms and without a feed-forward network.

    Args:
        vocabulary: how many tokens there are.
        d_model: width of the tokens, and of queries, keys and values.
        max_tokens: how many positions there are.
    """

    def __init__(self, vocabulary, d_model, max_tokens):
        super().__init__()
        self.token_embedding = nn.Embedding(vocabulary, d_model)
        self.position_embedding = nn.Embedding(max_tokens, d_model)
        self.W_q = nn.Linear(d_model, d_model, bias=False)
        self.W_k = nn.Linear(d_model, d_model, bias=False)
        self.W_v = nn.Linear(d_model, d_model, bias=False)
        self.W_o = nn.Linear(d_model, d_model, bias=False)
        self.lm_head = nn.Linear(d_model, vocabulary, bias=False)

    def forward(self, ids, cache=None):
        """Logits of the new tokens, (new, vocabulary), and the cache for the next call, as a tuple."""
        raise NotImplementedError("your code here")''',
        "PROMPT, NEXT = torch.tensor([0, 1]), torch.tensor([2])  # Write a, poem\ntorch.manual_seed(42)\n"
        "DECODER = Decoder(3, 2, 8)\nLOGITS, CACHE = DECODER(PROMPT)",
        "torch.cat([LOGITS, DECODER(NEXT, CACHE)[0]])",
        (
            "Call it with three tokens at once, then one by one, and compare the logits of each position. At which "
            "position "
            "do they first differ?",
            "The cache tells how many tokens there were: positions of new tokens begin there. New keys and values go "
            "behind "
            "the old ones, and the cache that you return holds both.",
            "There are more keys than queries then. Query i of this call stands at the position past + i, and sees "
            "the keys "
            "up to there: the triangle of the mask is shifted to the right by the number of past tokens.",
        ),
    ),
)
