"""Exact attention maps, in memory that grows with the tokens, not with their square.

Most statistics of a map are linear in its weights. So they are attention with other values, which the fused kernel
computes (`moments`). Attention received by the keys is computed from the transposed attention (`received`). The other
statistics need every weight and are computed a few rows at a time (`streaming`), as is everything about scores that
the fused kernel does not support: with a soft-cap, or on a GPU.

- `inputs`: q, k, v, mask and the other inputs of one attention call; every statistic takes these.
- `tokens`: the tokens at the queries and keys.
- `patches`: which queries and keys are patches of an image.
- `paths`: the stack of layers that a module belongs to.
- `prepared`: the inputs in the dtype to compute in, with the empty rows.
- `streaming`: scores a few rows at a time; the largest weights, pooled maps.
- `moments`: entropy, mass on groups of keys, distance.
- `lse`: the log-sum-exp of the rows, computed once.
- `received`: the attention received by each key, and other sums over the queries.
- `attribution`: the output, and what a metric owes to each key.
- `indexing`: single weights, rows and tiles in float64.
- `edges`: rows without one of their keys.
- `groups`: the attention to groups of keys, and its merge.
- `several`: several statistics in one pass over the weights.
- `verify`: whether a map is the model's own.
- `select`: one text of a batch, some heads.
- `output_statistics`: the methods that need the values; `map`: `AttentionMap`, with all of these as methods.
- `head_types`: previous token, attention sink, induction and others.
- `summary`: the usual answers, without the map.
- `rollout`: attention rollout through the layers.
"""
