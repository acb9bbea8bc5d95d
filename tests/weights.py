"""Real weights and real sentences for the tests: the default model, and small random checkpoints of every family."""

from __future__ import annotations

import pydoc_data.topics
import re
from functools import cache
from pathlib import Path
from typing import Any

import torch
import transformers
from tokenizers import Tokenizer, decoders, models, normalizers, pre_tokenizers, processors

import regard
from regard.pretrained import Pretrained
from regard.pretrained.hub import locate_files

DEFAULT_MODEL = "sentence-transformers/all-MiniLM-L6-v2"
RIVER = "Write a poem about a man fishing on a river bank."
LOAN = "Write a poem about a man applying for a loan in a bank."
PIZZA = "The pizza came out of the oven and it tasted good!"


@cache
def minilm() -> Pretrained:
    """The default model, loaded once."""
    return regard.load()


def minilm_folder() -> Path:
    """Where its files lie."""
    return locate_files(DEFAULT_MODEL).require("config.json").parent


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


LLAMA: dict[str, Any] = {
    "vocab_size": 61,
    "hidden_size": 36,
    "intermediate_size": 50,
    "num_hidden_layers": 3,
    "num_attention_heads": 6,
    "num_key_value_heads": 2,
    "max_position_embeddings": 64,
    "bos_token_id": 2,
    "eos_token_id": 1,
    "pad_token_id": 0,
}
BART: dict[str, Any] = {
    "vocab_size": 61,
    "d_model": 32,
    "encoder_layers": 3,
    "decoder_layers": 2,
    "encoder_attention_heads": 4,
    "decoder_attention_heads": 2,
    "encoder_ffn_dim": 50,
    "decoder_ffn_dim": 42,
    "max_position_embeddings": 64,
}

FAMILIES: dict[str, tuple[str, dict[str, Any]]] = {
    "bert": (
        "BertForMaskedLM",
        {
            "vocab_size": 61,
            "hidden_size": 36,
            "num_hidden_layers": 3,
            "num_attention_heads": 3,
            "intermediate_size": 50,
            "max_position_embeddings": 64,
            "pad_token_id": 0,
        },
    ),
    "roberta": (
        "RobertaForMaskedLM",
        {
            "vocab_size": 61,
            "hidden_size": 36,
            "num_hidden_layers": 3,
            "num_attention_heads": 3,
            "intermediate_size": 50,
            "max_position_embeddings": 66,
            "type_vocab_size": 1,
            "pad_token_id": 1,
            "bos_token_id": 0,
            "eos_token_id": 2,
        },
    ),
    "gpt2": (
        "GPT2LMHeadModel",
        {
            "vocab_size": 61,
            "n_positions": 64,
            "n_embd": 36,
            "n_layer": 3,
            "n_head": 3,
            "bos_token_id": 1,
            "eos_token_id": 1,
            "pad_token_id": None,
        },
    ),
    "llama": ("LlamaForCausalLM", LLAMA),
    "mistral": ("MistralForCausalLM", {**LLAMA, "sliding_window": 4, "head_dim": 8}),
    "qwen2": (
        "Qwen2ForCausalLM",
        {
            **LLAMA,
            "use_sliding_window": True,
            "sliding_window": 5,
            "max_window_layers": 1,
            "tie_word_embeddings": True,
            "bos_token_id": None,
        },
    ),
    "qwen3": ("Qwen3ForCausalLM", {**LLAMA, "head_dim": 10, "bos_token_id": None, "eos_token_id": [1, 2]}),
    "gemma2": (
        "Gemma2ForCausalLM",
        {**LLAMA, "head_dim": 10, "sliding_window": 4, "query_pre_attn_scalar": 7, "final_logit_softcapping": 9.0},
    ),
    "marian": (
        "MarianMTModel",
        {
            **BART,
            "activation_function": "swish",
            "scale_embedding": True,
            "pad_token_id": 60,
            "decoder_start_token_id": 60,
            "eos_token_id": 0,
            "bos_token_id": None,
            "forced_eos_token_id": 0,
        },
    ),
    "bart": (
        "BartForConditionalGeneration",
        {
            **BART,
            "activation_function": "gelu",
            "pad_token_id": 1,
            "bos_token_id": 0,
            "eos_token_id": 2,
            "decoder_start_token_id": 2,
            "forced_bos_token_id": 0,
            "forced_eos_token_id": 2,
        },
    ),
    "t5": (
        "T5ForConditionalGeneration",
        {
            "vocab_size": 61,
            "d_model": 32,
            "d_kv": 10,
            "d_ff": 50,
            "num_layers": 3,
            "num_decoder_layers": 2,
            "num_heads": 3,
            "relative_attention_num_buckets": 8,
            "relative_attention_max_distance": 12,
            "decoder_start_token_id": 0,
            "pad_token_id": 0,
            "eos_token_id": 1,
        },
    ),
}
"""For each family the model of transformers that is written, and settings small and odd enough to find a mix-up."""

FRAME = {
    "bert": "{bos} $A {eos}",
    "roberta": "{bos} $A {eos}",
    "bart": "{bos} $A {eos}",
    "marian": "$A {eos}",
    "t5": "$A {eos}",
    "llama": "{bos} $A",
    "mistral": "{bos} $A",
    "gemma2": "{bos} $A",
}
"""What a family's tokenizer puts around a text."""


def random_checkpoint(
    folder: Path, family: str, *, model: str | None = None, seed: int = 0, **changes: Any
) -> transformers.PreTrainedModel:
    """A small random checkpoint of a family, written by transformers itself, with a byte-level tokenizer.

    Every number is random, those of norms and biases too, so that nothing hides behind a one or a zero.

    Args:
        folder: where to.
        family: a key of `FAMILIES`.
        model: the class of transformers, where it is not the family's own in `FAMILIES`.
        seed: of the numbers.
        changes: settings other than the family's in `FAMILIES`.
    """
    name, settings = FAMILIES[family]
    kind = getattr(transformers, model or name)
    generator = torch.Generator().manual_seed(seed)
    theirs = kind(kind.config_class(**{**settings, **changes})).eval()
    if family == "t5" and changes.get("tie_word_embeddings") is False:  # transformers 5 ties by the file, not by this
        theirs.lm_head.weight = torch.nn.Parameter(theirs.lm_head.weight.detach().clone())
    with torch.no_grad():
        for where, parameter in theirs.named_parameters():
            if parameter.requires_grad:  # Marian's sinusoidal positions are parameters too
                drawn = torch.randn(parameter.shape, generator=generator)
                if any(name in where for name in ("embed", "shared", "wte", "wpe")):
                    drawn *= 0.4  # or a model with tied weights would say every token after itself
                if where.endswith(("SelfAttention.q.weight", "EncDecAttention.q.weight")):
                    drawn *= theirs.config.d_kv**-0.5  # T5 does not scale its scores, its queries are small instead
                is_gain = parameter.ndim == 1 and where.endswith("weight") and family != "gemma2"
                parameter.copy_(1 + 0.3 * drawn if is_gain else 0.3 * drawn)
        for where, buffer in theirs.named_buffers():
            if where == "final_logits_bias":
                buffer.normal_(std=0.2, generator=generator)
    theirs.save_pretrained(folder)
    write_byte_tokenizer(folder, theirs.config, FRAME.get(family, "$A"))
    return theirs


def write_byte_tokenizer(folder: Path, config: transformers.PreTrainedConfig, frame: str) -> None:
    """A byte-level tokenizer of 61 tokens, with a config's special ids: letters, the two bytes of é, a few words."""
    special = {
        token: ids[0] if isinstance(ids, list) else ids
        for token, name in (("<s>", "bos"), ("</s>", "eos"), ("<pad>", "pad"))
        if (ids := getattr(config, f"{name}_token_id", None)) is not None
    }
    if special.get("<s>") == special.get("</s>"):  # GPT-2 has one token for both
        special.pop("<s>", None)
    free = iter(i for i in range(61) if i not in special.values())
    special.setdefault("<s>", next(free))
    special.setdefault("</s>", next(free))
    special["<unk>"] = next(free)
    vocab = dict(special)
    letters = "Ġabcdefghijklmnopqrstuvwxyzé.,!?'".replace("é", "Ã©")
    merges = [
        "t h",
        "th e",
        "Ġ the",
        "i n",
        "e r",
        "Ġ a",
        "a n",
        "Ġ b",
        "r i",
        "an k",
        "Ã ©",
        "Ġb ank",
        "ri v",
        "riv er",
    ]
    words = [*letters, *(merge.replace(" ", "") for merge in merges)]
    for word, i in zip(words, free, strict=False):
        vocab[word] = i
    pairs = [tuple(merge.split()) for merge in merges]
    tokenizer = Tokenizer(models.BPE(vocab, pairs, unk_token="<unk>"))
    tokenizer.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    tokenizer.decoder = decoders.ByteLevel()
    tokenizer.post_processor = processors.TemplateProcessing(
        single=frame.format(bos="<s>", eos="</s>"), special_tokens=[("<s>", special["<s>"]), ("</s>", special["</s>"])]
    )
    names = {"bos_token": "<s>", "eos_token": "</s>", "unk_token": "<unk>"}
    if "<pad>" in special:
        names["pad_token"] = "<pad>"
    transformers.PreTrainedTokenizerFast(tokenizer_object=tokenizer, **names).save_pretrained(folder)
