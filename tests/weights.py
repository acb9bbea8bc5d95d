"""Real weights and real sentences for the tests: the default model, and small random checkpoints of every family."""

from __future__ import annotations

import copy
import pydoc_data.topics
import re
from collections.abc import Callable
from functools import cache, wraps
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

import torch
import transformers
from safetensors.torch import load_file
from tokenizers import Tokenizer, decoders, models, normalizers, pre_tokenizers, processors

import regard
from regard.pretrained import Pretrained
from regard.pretrained.locate import locate_files

Writer = Callable[..., transformers.PreTrainedModel]

DEFAULT_MODEL = "sentence-transformers/all-MiniLM-L6-v2"
RIVER = "Write a poem about a man fishing on a river bank."
LOAN = "Write a poem about a man applying for a loan in a bank."
PIZZA = "The pizza came out of the oven and it tasted good!"


@cache
@torch.inference_mode(False)  # whatever the mode of the first test that asks for it
def minilm() -> Pretrained:
    """The default model, loaded once."""
    return regard.load()


@cache
@torch.inference_mode(False)
def smollm2() -> Pretrained:
    """The default decoder, loaded once."""
    return regard.load("smollm2")


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


def written_once(write: Writer) -> Writer:
    """A function that writes a checkpoint: the same arguments a second time copy its files and its model."""
    written: dict[str, tuple[transformers.PreTrainedModel, dict[str, bytes]]] = {}

    @wraps(write)
    def copied(folder: Path, *args: Any, **changes: Any) -> transformers.PreTrainedModel:
        key = repr((args, sorted(changes.items())))
        if key not in written:
            with TemporaryDirectory() as first, torch.random.fork_rng(devices=[]):
                model = write(Path(first), *args, **changes)
                written[key] = model, {path.name: path.read_bytes() for path in Path(first).iterdir()}
        model, files = written[key]
        folder.mkdir(parents=True, exist_ok=True)
        for name, content in files.items():
            (folder / name).write_bytes(content)
        return copy.deepcopy(model)

    return copied


@written_once
def random_bert(folder: Path, model: str = "BertModel", **changes: object) -> transformers.PreTrainedModel:
    """A small random checkpoint that transformers itself writes into a folder, with a WordPiece tokenizer."""
    sizes = {"vocab_size": 40, "hidden_size": 24, "num_hidden_layers": 2, "num_attention_heads": 3}
    sizes |= {"intermediate_size": 50, "max_position_embeddings": 20}
    torch.manual_seed(0)
    theirs = getattr(transformers, model)(transformers.BertConfig(**{**sizes, **changes})).eval()
    theirs.save_pretrained(folder)
    words = ["[PAD]", "[UNK]", "[CLS]", "[SEP]", "the", "river", "bank", "##s", "loan", "a", "in", "on", ".", "man"]
    vocab = {word: i for i, word in enumerate([*words, *(f"w{i}" for i in range(40 - len(words)))])}
    tokenizer = Tokenizer(models.WordPiece(vocab, unk_token="[UNK]"))
    tokenizer.normalizer = normalizers.BertNormalizer(lowercase=True)
    tokenizer.pre_tokenizer = pre_tokenizers.BertPreTokenizer()
    tokenizer.post_processor = processors.BertProcessing(("[SEP]", 3), ("[CLS]", 2))
    tokenizer.save(str(folder / "tokenizer.json"))
    return theirs


def weights_of(folder: Path, file: str = "model.safetensors") -> dict[str, torch.Tensor]:
    """Copies of the weights in a file: safetensors maps it, and tests write over it."""
    return {name: tensor.clone() for name, tensor in load_file(folder / file).items()}


def same_weights(one: Any, other: Any) -> bool:
    """Whether two models, or the weights of two files, hold the same numbers by the same names, bit for bit."""
    one, other = ({**(each if isinstance(each, dict) else each.model.state_dict())} for each in (one, other))
    return one.keys() == other.keys() and all(torch.equal(tensor, other[name]) for name, tensor in one.items())


def token_ids(**ids: int | list[int] | None) -> dict[str, Any]:
    """The settings of special tokens."""
    return {f"{name}_token_id": value for name, value in ids.items()}


SIZES = {"vocab_size": 61, "hidden_size": 36, "intermediate_size": 50, "num_hidden_layers": 3}
BERT = {**SIZES, "num_attention_heads": 3, "max_position_embeddings": 64, "pad_token_id": 0}
GPT2 = {"vocab_size": 61, "n_positions": 64, "n_embd": 36, "n_layer": 3, "n_head": 3}
GPT2 |= token_ids(bos=1, eos=1, pad=None)
ROBERTA = {"max_position_embeddings": 66, "type_vocab_size": 1}
LLAMA = {**SIZES, "num_attention_heads": 6, "num_key_value_heads": 2, "max_position_embeddings": 64}
LLAMA |= token_ids(bos=2, eos=1, pad=0)
BART = {"vocab_size": 61, "d_model": 32, "encoder_layers": 3, "decoder_layers": 2, "max_position_embeddings": 64}
BART |= {"encoder_attention_heads": 4, "decoder_attention_heads": 2, "encoder_ffn_dim": 50, "decoder_ffn_dim": 42}
BART_TOKENS = token_ids(pad=1, bos=0, eos=2, decoder_start=2, forced_bos=0, forced_eos=2)
MARIAN_TOKENS = token_ids(pad=60, decoder_start=60, eos=0, bos=None, forced_eos=0)
T5 = {"vocab_size": 61, "d_model": 32, "d_kv": 10, "d_ff": 50, "num_layers": 3, "num_decoder_layers": 2, "num_heads": 3}
T5 |= {"relative_attention_num_buckets": 8, "relative_attention_max_distance": 12}
QWEN2 = {"use_sliding_window": True, "sliding_window": 5, "max_window_layers": 1, "tie_word_embeddings": True}
GEMMA2 = {"head_dim": 10, "sliding_window": 4, "query_pre_attn_scalar": 7, "final_logit_softcapping": 9.0}

FAMILIES: dict[str, tuple[str, dict[str, Any]]] = {
    "bert": ("BertForMaskedLM", BERT),
    "roberta": ("RobertaForMaskedLM", {**BERT, **ROBERTA, **token_ids(pad=1, bos=0, eos=2)}),
    "gpt2": ("GPT2LMHeadModel", GPT2),
    "llama": ("LlamaForCausalLM", LLAMA),
    "mistral": ("MistralForCausalLM", {**LLAMA, "sliding_window": 4, "head_dim": 8}),
    "qwen2": ("Qwen2ForCausalLM", {**LLAMA, **QWEN2, "bos_token_id": None}),
    "qwen3": ("Qwen3ForCausalLM", {**LLAMA, "head_dim": 10, **token_ids(bos=None, eos=[1, 2])}),
    "gemma2": ("Gemma2ForCausalLM", {**LLAMA, **GEMMA2}),
    "marian": ("MarianMTModel", {**BART, "activation_function": "swish", "scale_embedding": True, **MARIAN_TOKENS}),
    "bart": ("BartForConditionalGeneration", {**BART, "activation_function": "gelu", **BART_TOKENS}),
    "t5": ("T5ForConditionalGeneration", {**T5, **token_ids(decoder_start=0, pad=0, eos=1)}),
}
"""For each family the model of transformers that is written, and settings small and odd enough to find a mix-up."""

FRAME = {
    **dict.fromkeys(("bert", "roberta", "bart"), "{bos} $A {eos}"),
    **dict.fromkeys(("marian", "t5"), "$A {eos}"),
    **dict.fromkeys(("llama", "mistral", "gemma2"), "{bos} $A"),
}
"""What a family's tokenizer puts around a text."""


@written_once
def random_checkpoint(
    folder: Path, family: str, *, model: str | None = None, seed: int = 0, **changes: Any
) -> transformers.PreTrainedModel:
    """A small random checkpoint of a family in `FAMILIES`, written by transformers, with a byte-level tokenizer.

    `model` is another class of transformers, `changes` are settings other than the family's.
    """
    name, settings = FAMILIES[family]
    kind = getattr(transformers, model or name)
    theirs = kind(kind.config_class(**{**settings, **changes})).eval()
    if family == "t5" and changes.get("tie_word_embeddings") is False:  # transformers 5 ties by the file, not by this
        theirs.lm_head.weight = torch.nn.Parameter(theirs.lm_head.weight.detach().clone())

    def scale(where: str) -> float:
        if any(name in where for name in ("embed", "shared", "wte", "wpe")):
            return 0.4  # or a model with tied weights would say every token after itself
        if where.endswith(("SelfAttention.q.weight", "EncDecAttention.q.weight")):
            return float(theirs.config.d_kv) ** -0.5  # T5 does not scale its scores, its queries are small instead
        return 1.0

    randomize(theirs, seed, scale, gains=family != "gemma2")
    theirs.save_pretrained(folder)
    write_byte_tokenizer(folder, theirs.config, FRAME.get(family, "$A"))
    return theirs


@torch.no_grad()
def randomize(
    model: torch.nn.Module, seed: int, scale: Callable[[str], float] = lambda name: 1.0, *, gains: bool = True
) -> None:
    """Make every number random, those of norms and biases too, so that nothing hides behind a one or a zero.

    `scale` says how large a parameter's numbers are. `gains`: norms multiply by their weights, not by 1 + weight.
    """
    generator = torch.Generator().manual_seed(seed)
    for name, parameter in model.named_parameters():
        if parameter.requires_grad:  # Marian's sinusoidal positions are parameters too
            drawn = 0.3 * scale(name) * torch.randn(parameter.shape, generator=generator)
            is_gain = gains and parameter.ndim == 1 and name.endswith("weight")
            parameter.copy_(1 + drawn if is_gain else drawn)
    for name, buffer in model.named_buffers():
        if name == "final_logits_bias":
            buffer.normal_(std=0.2, generator=generator)


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
    merges = ["t h", "th e", "Ġ the", "i n", "e r", "Ġ a", "a n", "Ġ b", "r i", "an k"]
    merges += ["Ã ©", "Ġb ank", "ri v", "riv er"]
    words = [*"ĠabcdefghijklmnopqrstuvwxyzÃ©.,!?'", *(merge.replace(" ", "") for merge in merges)]
    vocab = special | dict(zip(words, free, strict=False))
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
