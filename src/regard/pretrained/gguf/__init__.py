"""Reads GGUF files, the format of llama.cpp, with the package `gguf` (``pip install '.[gguf]'`` in a clone).

- `header`: the metadata, and where the tensors lie
- `tensors`: the values, dequantised when they are copied into a model
- `rope`: rotary positions as keys of a config.json
- `architectures`: settings as a config.json, tensors under the names of a checkpoint of transformers
- `tokenizer`: the tokenizer of the metadata
- `checkpoint`: `read_gguf`, a checkpoint that `regard.load` reads like any other
"""

from regard.pretrained.gguf.checkpoint import GGUFCheckpoint, read_gguf

__all__ = ["GGUFCheckpoint", "read_gguf"]
