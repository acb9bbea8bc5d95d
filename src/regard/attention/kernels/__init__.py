"""The kernels of `attend`, among which `regard.attention.plan` chooses.

- ``call``: the checked arguments, in the form that every kernel takes
- ``score_block``: one block of a schedule, some queries against some keys
- ``schedule``: the blocks of a call, so that what the mask blocks is not computed
- ``row_groups``: rows of a tile in an order of their own, where neighbours attend to other keys
- ``flash``: runs a schedule on PyTorch's fused CPU kernel, with gradients and sinks
- ``chunked``: runs a schedule by the definition, some rows at a time, with every option
- ``grad_accumulator``: the gradient of keys and values, summed over blocks
- ``fused``: one call of the fused kernel for all pairs
- ``band``: a window as one call of the fused kernel, for graphs
- ``flex``: FlexAttention and variable-length attention, for GPUs
"""
