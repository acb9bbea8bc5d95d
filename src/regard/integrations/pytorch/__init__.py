"""regard's attention in place of PyTorch's own modules: `regard.replace`.

- ``replace``: `regard.replace`, from a model to a `Replaced`
- ``candidates``: which modules of a model are replaced, and why others are not
- ``modules``: the classes that replace PyTorch's
- ``dense_masks``: the mask tensors of ``nn.MultiheadAttention``, read as a `Mask` and a bias
- ``proof``: equality of one call of a module, in float64 and in the module's own dtype
- ``samples``: random calls of a module, for a proof without example inputs
- ``replaced``: the result: what was replaced, how near it is, and the way back
"""
