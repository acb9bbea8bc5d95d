"""Masks: who MAY attend to whom.

A mask is a small value with one meaning, True = may attend, over absolute positions. It holds no queries x keys
tensor; `Mask.dense` makes one. Masks combine: ``a & b`` allows what both allow, ``a | b`` what either allows, ``~a``
what a does not allow.

With fewer queries than keys the queries are the LAST positions, as a cache needs. Some masks take ``offset=0``, which
aligns the queries at the first position.

A boolean tensor alone does not say what True means: ``nn.MultiheadAttention`` reads True as blocked,
``F.scaled_dot_product_attention`` reads True as allowed. So a boolean tensor is refused where a mask is expected;
`allowed` and `blocked` make a mask of it and say which is meant. `from_sdpa`, `from_multihead`, `from_huggingface` and
`from_flex` read the masks of other libraries, and `Mask.to_sdpa` and its siblings write them.

Files:

- ``geometry``: tiles of the queries x keys square, their bounds, and what every mask answers
- ``base``: `Mask`, and the masks that ``&``, ``|`` and ``~`` make
- ``kinds``: `causal`, `window`, `padding`, `prefix`, `first`, `where`, `allowed`, `blocked`
- ``documents``: packed documents
- ``interop``: masks of other libraries, read
- ``export``: masks of other libraries, written
- ``show``: a mask as a picture for the terminal
"""

from regard.attention.mask.base import Mask
from regard.attention.mask.documents import documents
from regard.attention.mask.interop import from_flex, from_huggingface, from_multihead, from_sdpa
from regard.attention.mask.kinds import allowed, blocked, causal, first, padding, prefix, where, window

__all__ = [
    "Mask",
    "allowed",
    "blocked",
    "causal",
    "documents",
    "first",
    "from_flex",
    "from_huggingface",
    "from_multihead",
    "from_sdpa",
    "padding",
    "prefix",
    "where",
    "window",
]
