"""The ways to compute attention fast. `regard.attention.plan` chooses among them.

A *schedule* says which rows are computed against which keys. `flash` and `rows` are the two engines that run one:
the first on PyTorch's fused kernel, the second by the definition, which honours every option. `fused`, `band` and
`flex` need no schedule.
"""
