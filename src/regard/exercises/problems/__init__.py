"""What each exercise is held against: calls, the definition's result, and known mistakes, with PyTorch.

`problem` has the records, `bank` the mistakes of `regard.check` as variants of the definition, and `numbers` the
inputs; `catalog` finds the problem of an exercise. `vectors` has 01 to 03, `attention` 04 to 07 and 09, `softmax` 08,
`positions` 10 and 11, `masks` 12 and 13, `heads` 14, 15 and 17, `modules` 16 and 18, `beams` 19 and `decoder` 20.
"""
