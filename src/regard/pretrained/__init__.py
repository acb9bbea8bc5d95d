"""Loads pretrained models and their tokenizers by name, and saves them.

- `locate`: finds a model by its name; `hub`: its files in a folder or on the Hub; `offline`: copies for no network
- `checkpoint`: reads JSON files, tokenizers and weights
- `gguf/`: reads the files of llama.cpp
- `config_json`: the values of a config.json
- `rope_config`: rotary positions and windows of a config.json
- `special_tokens`: the special token ids
- `family`: what a family of checkpoints is, and how its config and its model are built
- `families/`: BERT, RoBERTa, GPT-2, Llama, Mistral, Qwen2, Qwen3, Gemma 2, Marian, BART, T5, ViT, as data
- `renames`: the table between a checkpoint's weights and a model's parameters
- `tokenizer`: the tokenizer of a checkpoint
- `marian_tokenizer`: Marian's tokenizer, through sentencepiece
- `chat`: messages to ids, by the chat template; `chat_sandbox`: renders it
- `image_processor`: images to pixel values
- `pooling`: one vector for a text; `embedder`: the vectors of many texts, without padding
- `beginnings`: the first tokens of a long text, without tokenizing all of it
- `load`: `load` and `Pretrained`, a model with its tokenizer
- `describe`: a `Pretrained` in one line and as a table
- `save`: writes a checkpoint in the format in which it was read
- `initialize`: writes a model with random weights, to train from scratch
"""

from regard.pretrained.load import Pretrained, load
from regard.pretrained.offline import DEFAULT_DECODER, DEFAULT_MODEL

__all__ = ["DEFAULT_DECODER", "DEFAULT_MODEL", "Pretrained", "load"]
