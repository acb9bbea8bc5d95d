"""What sees attention while a model computes it.

Two eyes, because PyTorch has two places to look from. `functions` sees what a model's Python code calls, with the
caller's own arguments, and costs little. `kernels` sees every operation below that: PyTorch's fused layers, which turn
themselves off under the first eye, and FlexAttention, which the first eye cannot see into. Both only look, and both
belong to one thread. What they see is a `Seen`; `report` finds out whose it is.
"""
