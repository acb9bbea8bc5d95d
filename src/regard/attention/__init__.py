"""The mechanism: who may attend to whom, the definition, the same result fast, and the module around it."""

from regard.attention import cache, course, mask, positions
from regard.attention.attend import attend
from regard.attention.multihead import MultiHeadAttention
from regard.attention.plan import Plan, plan
from regard.attention.steps import Steps, steps

__all__ = ["MultiHeadAttention", "Plan", "Steps", "attend", "cache", "course", "mask", "plan", "positions", "steps"]
