"""Small checkpoints of models that answer messages, and chats for them."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import transformers
from tokenizers import AddedToken, Tokenizer, decoders, models, pre_tokenizers

from regard.pretrained.gguf import read_gguf
from regard.pretrained.locate import locate_files
from weights import random_checkpoint

CHATML = (
    "{% for message in messages %}{{ '<|im_start|>' + message['role'] + '\n' + message['content'] + '<|im_end|>\n' }}"
    "{% endfor %}{% if add_generation_prompt %}{{ '<|im_start|>assistant\n' }}{% endif %}"
)
SPECIAL = ("<|im_start|>", "<|im_end|>", "<s>")


def turns(*contents: str, system: str | None = None) -> list[dict[str, str]]:
    """Messages of a user and a model by turns."""
    before = [] if system is None else [{"role": "system", "content": system}]
    roles = ("user", "assistant") * len(contents)
    return [*before, *({"role": role, "content": text} for role, text in zip(roles, contents, strict=False))]


CHATS = {
    "question": turns("What is the capital of France?"),
    "system": turns("Hi", system="Be brief."),
    "turns": turns("Hi there ", "Hello!\n", " and\tnow?\n\n"),
    "answered": turns("Hi", "Hello!"),
    "empty": turns("", system=""),
    "unicode": turns("crème 日本語 🙂 e\u0301 \u202eab\u0000", "\u00a0ß"),
    "code": turns("```python\nprint('{% x %} {{ y }} {# z #}')\n```\r\n<b>&amp;</b> <| im_end |>"),
}


def byte_tokenizer(added: tuple[AddedToken, ...] = ()) -> Tokenizer:
    """A tokenizer with a token for each byte, `SPECIAL` and further added tokens."""
    alphabet = sorted(pre_tokenizers.ByteLevel.alphabet())
    tokenizer = Tokenizer(models.BPE({letter: i for i, letter in enumerate(alphabet)}, []))
    tokenizer.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    tokenizer.decoder = decoders.ByteLevel()
    tokenizer.add_special_tokens(list(SPECIAL))
    tokenizer.add_tokens(list(added))
    return tokenizer


def smollm2_tokenizer() -> tuple[Tokenizer, str]:
    """SmolLM2's own tokenizer and chat template."""
    checkpoint = read_gguf(locate_files("smollm2").path)
    return checkpoint.tokenizer, checkpoint.chat_template


def chat_checkpoint(
    folder: Path, template: str | None = CHATML, tokenizer: Tokenizer | None = None, **changes: Any
) -> Path:
    """A small random Llama with a chat template, which transformers can read too; `changes` are settings of it."""
    tokenizer = tokenizer or byte_tokenizer()
    ends = tokenizer.token_to_id("<|im_end|>")
    settings = {"vocab_size": tokenizer.get_vocab_size(), "max_position_embeddings": 512, "eos_token_id": ends}
    random_checkpoint(folder, "llama", **{**settings, **changes})
    tokenizer.save(str(folder / "tokenizer.json"))
    names = {"bos_token": "<s>", "eos_token": "<|im_end|>"} if tokenizer.token_to_id("<s>") is not None else {}
    config = {"tokenizer_class": "PreTrainedTokenizerFast", **names, "chat_template": template}
    (folder / "tokenizer_config.json").write_text(json.dumps(config), encoding="utf-8")
    return folder


def tokenizer_of_transformers(folder: Path) -> transformers.PreTrainedTokenizerBase:
    """The tokenizer that transformers reads of a checkpoint."""
    return transformers.AutoTokenizer.from_pretrained(folder)


def ids_of_transformers(
    tokenizer: transformers.PreTrainedTokenizerBase, messages: list[dict[str, str]], **options: Any
) -> list[int]:
    """What transformers makes of messages."""
    options = {"add_generation_prompt": True, **options}
    return tokenizer.apply_chat_template(messages, tokenize=True, return_dict=False, **options)
