"""Attention: masks, the definition, fast kernels and the module.

- ``mask``: who may attend to whom
- ``positions``: rotary, sinusoidal, learned and relative positions
- ``bias``: the base class of biases by position
- ``steps``: the definition, one named step at a time
- ``attend``: the same output, by a fast kernel
- ``plan``: the choice of the kernel
- ``kernels``: the kernels, and the schedules of blocks that they compute
- ``validation``: the checks on arguments
- ``hooks``: functions that are called after every call of `attend`
- ``cache``: keys and values of earlier tokens
- ``multihead``: the module
- ``course``: the classes of the source documents
"""

from regard.attention import cache, course, mask, positions
from regard.attention.attend import attend
from regard.attention.multihead import MultiHeadAttention
from regard.attention.plan import Plan, plan
from regard.attention.steps import Steps, steps

__all__ = ["MultiHeadAttention", "Plan", "Steps", "attend", "cache", "course", "mask", "plan", "positions", "steps"]
