"""Questions about an attention map, each answered exactly, in memory that grows with the tokens, not their square.

Most are linear in the weights, and so they are attention with other values: the fused kernel answers them (`linear`).
`received` turns queries and keys around. The others look at every weight once, some rows at a time (`tiles`), and
so does any question about scores that the fused kernel cannot make: with a soft-cap, or on a GPU.
"""
