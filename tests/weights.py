"""Real weights and real sentences for the tests: the default model, and small random checkpoints in BERT's format."""

from __future__ import annotations

import pydoc_data.topics
import re
from functools import cache
from pathlib import Path

import torch
import transformers
from tokenizers import Tokenizer, models, normalizers, pre_tokenizers, processors

import regard
from regard.pretrained import Pretrained
from regard.pretrained.locate import locate

DEFAULT = "sentence-transformers/all-MiniLM-L6-v2"
RIVER = "Write a poem about a man fishing on a river bank."
LOAN = "Write a poem about a man applying for a loan in a bank."
PIZZA = "The pizza came out of the oven and it tasted good!"


@cache
def minilm() -> Pretrained:
    """The default model, loaded once."""
    return regard.load()


def minilm_folder() -> Path:
    """Where its files lie."""
    return locate(DEFAULT).need("config.json").parent


@cache
def sentences(count: int) -> list[str]:
    """Sentences of Python's own documentation: real prose that is on every machine, of 5 to 60 words."""
    prose = " ".join(" ".join(pydoc_data.topics.topics[name].split()) for name in sorted(pydoc_data.topics.topics))
    found = list(dict.fromkeys(s for s in re.split(r"(?<=[.!?]) (?=[A-Z])", prose) if 5 <= len(s.split()) <= 60))
    step = len(found) // count
    return found[: step * count : step]


def random_bert(folder: Path, model: str = "BertModel", **changes: object) -> transformers.PreTrainedModel:
    """A small random checkpoint that transformers itself writes into a folder, with a tokenizer."""
    settings = {
        "vocab_size": 40,
        "hidden_size": 24,
        "num_hidden_layers": 2,
        "num_attention_heads": 3,
        "intermediate_size": 50,
        "max_position_embeddings": 20,
    }
    config = transformers.BertConfig(**{**settings, **changes})
    torch.manual_seed(0)
    theirs = getattr(transformers, model)(config).eval()
    theirs.save_pretrained(folder)
    write_tokenizer(folder)
    return theirs


def write_tokenizer(folder: Path) -> None:
    """A WordPiece tokenizer of 40 tokens."""
    words = ["[PAD]", "[UNK]", "[CLS]", "[SEP]", "the", "river", "bank", "##s", "loan", "a", "in", "on", ".", "man"]
    vocab = {word: i for i, word in enumerate([*words, *(f"w{i}" for i in range(40 - len(words)))])}
    tokenizer = Tokenizer(models.WordPiece(vocab, unk_token="[UNK]"))
    tokenizer.normalizer = normalizers.BertNormalizer(lowercase=True)
    tokenizer.pre_tokenizer = pre_tokenizers.BertPreTokenizer()
    tokenizer.post_processor = processors.BertProcessing(("[SEP]", 3), ("[CLS]", 2))
    tokenizer.save(str(folder / "tokenizer.json"))
