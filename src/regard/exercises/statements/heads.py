"""Exercises 14 to 17: several heads, a module, and attention to another sequence."""

from __future__ import annotations

from regard.exercises.exercise import Exercise
from regard.exercises.statements.course import WEIGHTS, X

__all__ = ["HEADS"]

HEADS = (
    Exercise(
        14,
        "split-heads",
        "Split into heads",
        9,
        "split_heads",
        "Return x split into heads: head h gets the channels from h * d_head to (h + 1) * d_head of every token. The "
        "heads "
        "come before the tokens, so that a matrix product works on each head by itself.",
        (
            "x: (batch, tokens, d_model)",
            "num_heads: a number that divides d_model; d_head = d_model / num_heads",
            "result: (batch, num_heads, tokens, d_head)",
        ),
        ("result[b, h, t, c] = x[b, t, h * d_head + c]",),
        '''def split_heads(x, num_heads):
    """x in heads: (batch, tokens, d_model) gives (batch, num_heads, tokens, d_head)."""
    raise NotImplementedError("your code here")''',
        "# (batch, tokens, d_model): the course's numbers, two tokens of four\n"
        "X = torch.tensor([[[1.16, 0.23, 0.57, 1.36], [4.41, -2.16, 1.16, 0.23]]])\nNUM_HEADS = 2",
        "split_heads(X, NUM_HEADS)",
        (
            "Look at one row of one head of your result: are all of its numbers of the same token?",
            "A view cuts numbers in the order in which they lie in memory: token by token. Which axis can be cut in "
            "two "
            "without mixing tokens?",
            "Two steps: cut the last axis into (num_heads, d_head), then let the tokens and the heads change places.",
        ),
    ),
    Exercise(
        15,
        "multi-head",
        "Multi-head attention",
        9,
        "multi_head_attention",
        "Return multi-head attention: project x to queries, keys and values, split each into heads, attend in every "
        "head by "
        "itself, join the heads' results beside one another, and apply the output projection. Weights are stored as "
        "torch.nn.Linear stores them, (out, in).",
        (
            "x: (batch, tokens, d_model)",
            "w_q, w_k, w_v, w_o: (d_model, d_model) each",
            "num_heads: a number that divides d_model; d_head = d_model / num_heads",
            "result: (batch, tokens, d_model)",
        ),
        (
            "head_h = attention of the h-th d_head channels of q, k, v, scaled by sqrt(d_head)",
            "result = [head_0 | head_1 | ...] w_o^T",
            "(Attention Is All You Need, section 3.2.2)",
        ),
        '''def multi_head_attention(x, w_q, w_k, w_v, w_o, num_heads):
    """Multi-head attention with an output projection: (batch, tokens, d_model) gives the same shape."""
    raise NotImplementedError("your code here")''',
        f"{X}\nX = X[None]  # a batch of one text\n{WEIGHTS}\nNUM_HEADS = 2",
        "multi_head_attention(X, W_q, W_k, W_v, W_o, NUM_HEADS)",
        (
            "Write the shape behind every line. Which of them have an axis of heads?",
            "Exercises 05, 14 and 09 are the first three parts. Each head is as wide as d_head: that is the width "
            "for the "
            "scale.",
            "To join the heads, first bring the tokens back before the heads, then make (num_heads, d_head) one axis "
            "again. "
            "The output projection comes last, once.",
        ),
    ),
    Exercise(
        16,
        "self-attention",
        "A module for self-attention",
        10,
        "SelfAttention",
        "Write the forward of a module for self-attention with one head. It takes a batch of texts and a mask, or "
        "none. "
        "The mask says True where a query may attend, as torch's scaled_dot_product_attention has it; the tutorials' "
        "masks "
        "say True where it may not. Count axes from the end, so that the batch changes nothing.",
        (
            "x: (batch, tokens, d_model)",
            "mask: (tokens, tokens) of booleans, rows are queries, True = may attend; or None",
            "result: (batch, tokens, d_model)",
        ),
        (
            "q, k, v = W_q(x), W_k(x), W_v(x)",
            "result = softmax(q k^T / sqrt(d_model) + M) v",
            "M = 0 where mask is True, else -inf",
        ),
        '''class SelfAttention(nn.Module):
    """Self-attention with one head.

    Args:
        d_model: width of the tokens, and of queries, keys and values.
    """

    def __init__(self, d_model):
        super().__init__()
        self.W_q = nn.Linear(d_model, d_model, bias=False)
        self.W_k = nn.Linear(d_model, d_model, bias=False)
        self.W_v = nn.Linear(d_model, d_model, bias=False)

    def forward(self, x, mask=None):
        """(batch, tokens, d_model) gives the same shape; mask (tokens, tokens): True = may attend."""
        raise NotImplementedError("your code here")''',
        f"{X}\nX = X[None]  # a batch of one text\nMASK = torch.ones(3, 3, dtype=torch.bool).tril()\n"
        "torch.manual_seed(42)\nATTENTION = SelfAttention(2)",
        "ATTENTION(X, MASK)",
        (
            "Try a batch of two different texts, and each of them alone. Are the results the same?",
            "transpose(0, 1) and softmax(dim=1) mean other axes as soon as there is a batch. masked_fill replaces "
            "scores "
            "where its mask is True: yours says True where nothing is to be replaced.",
            "Count axes from the end: -2 are the queries, -1 the keys. Without a mask skip that step; with one, fill "
            "where "
            "it is not True, before the softmax.",
        ),
    ),
    Exercise(
        17,
        "cross-attention",
        "Cross-attention",
        11,
        "cross_attention",
        "Return cross-attention of one head, as in the decoder of a translator: queries come from the decoder's "
        "tokens x, "
        "keys and values from the encoder's output, the context. The two have different lengths.",
        (
            "x: (tokens, d_model)",
            "context: (context_tokens, d_model)",
            "w_q, w_k, w_v: (d_k, d_model) each, as torch.nn.Linear stores them",
            "result: (tokens, d_k)",
        ),
        (
            "q = x w_q^T",
            "k = context w_k^T",
            "v = context w_v^T",
            "result = softmax(q k^T / sqrt(d_k)) v",
        ),
        '''def cross_attention(x, context, w_q, w_k, w_v):
    """Attention of x to the context: the result is (tokens, d_k)."""
    raise NotImplementedError("your code here")''',
        f"{X}\nCONTEXT = torch.tensor([[0.50, -1.00], [1.50, 0.80]])  # (context_tokens, d_model)\n{WEIGHTS}",
        "cross_attention(X, CONTEXT, W_q, W_k, W_v)",
        (
            "Who asks, and who is read? The result has one row for each token that asks.",
            "The scores are (tokens, context_tokens). Keys and values always come from the same sequence, since a "
            "weight "
            "belongs to both.",
            "Project x with one weight and the context with two; everything after that is exercise 09.",
        ),
    ),
)
