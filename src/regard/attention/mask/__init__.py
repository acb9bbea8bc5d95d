"""Masks: who MAY attend to whom.

A mask is a small value with one meaning, True = may attend, over absolute positions. It holds no queries x keys
tensor; `Mask.dense` makes one when somebody asks. Masks combine: ``a & b`` wants a key to be allowed by both,
``a | b`` by either, ``~a`` by what a does not allow.

With fewer queries than keys the queries are the LAST positions, which is what a cache needs; ``offset=0``, where a
kind of mask takes it, aligns them at the first.

A bare boolean tensor says nothing about its polarity: ``nn.MultiheadAttention`` reads True as blocked,
``F.scaled_dot_product_attention`` reads True as allowed. So bare tensors are refused everywhere, and
`allowed` and `blocked` are the two ways to say which is meant. For what other libraries call a mask, `from_sdpa`,
`from_multihead`, `from_huggingface` and `from_flex` know the polarity, and `Mask.to_sdpa` and its siblings go back.

`Mask.show` draws a mask in the terminal.
"""

from regard.attention.mask.base import Mask
from regard.attention.mask.documents import documents
from regard.attention.mask.interop import from_flex, from_huggingface, from_multihead, from_sdpa
from regard.attention.mask.kinds import allowed, blocked, causal, padding, prefix, where, window

__all__ = [
    "Mask",
    "allowed",
    "blocked",
    "causal",
    "documents",
    "from_flex",
    "from_huggingface",
    "from_multihead",
    "from_sdpa",
    "padding",
    "prefix",
    "where",
    "window",
]
