"""Recordings: the attention maps of a model by module path, and their files.

- `entry`: one attention of a recording.
- `recording`: `Recording`, with its table, rollout, pages and figures.
- `serialization`: a recording as a safetensors file.
- `tensors`: tensors, masks and biases in that file.
- `head_selection`: the head that is shown first, and heads by name.
"""
