"""Small random checkpoints of every family, explained: shared by the tests of `regard.explain` and its relatives."""

from __future__ import annotations

from functools import cache
from pathlib import Path
from tempfile import mkdtemp
from typing import Any

import torch
import transformers
from torch import Tensor

import regard
from regard.pretrained import Pretrained
from weights import random_checkpoint

TEXT = "the man is in the bank, and the river ran by."
TARGET = "the river is a bank, said the man."

DECODERS = ["gpt2", "llama", "mistral", "qwen2", "qwen3", "gemma2"]
ENCODER_DECODERS = ["marian", "bart", "t5"]
CASES = [("bert", "encoder"), *((family, "decoder") for family in DECODERS)] + [
    (family, attention) for family in ENCODER_DECODERS for attention in ("cross", "decoder", "encoder")
]
"""Every family and each attention that it has."""


@cache
@torch.inference_mode(False)  # whatever the mode of the first test that asks for it
def checkpoint(family: str) -> tuple[Path, transformers.PreTrainedModel]:
    """A folder, and its model as transformers loads it, eager."""
    folder = Path(mkdtemp())
    kind = type(random_checkpoint(folder, family))
    return folder, kind.from_pretrained(folder, attn_implementation="eager").eval()


@cache
@torch.inference_mode(False)  # whatever the mode of the first test that asks for it
def pretrained(family: str) -> Pretrained:
    """The same checkpoint as regard loads it."""
    return regard.load(checkpoint(family)[0])


def explain(family: str, token: str | int | None, attention: str | None = None, **options: Any) -> regard.Explanation:
    """A word of `TEXT` or, in an encoder-decoder, of `TARGET`."""
    reads_target = family in ENCODER_DECODERS and attention != "encoder"
    options = {"target": TARGET, **options} if reads_target else options
    return regard.explain(TEXT, token, pretrained(family), attention=attention, **options)


@cache
def transformers_maps(family: str, attention: str) -> tuple[list[Tensor], list[int], list[int]]:
    """What transformers says of every layer: a map (heads, rows, columns) each; and the ids of rows and columns."""
    model = checkpoint(family)[1]
    source, target = (pretrained(family).encode(text).ids for text in (TEXT, TARGET))
    with torch.no_grad():
        if family not in ENCODER_DECODERS:
            return [m[0] for m in model(torch.tensor([source]), output_attentions=True).attentions], source, source
        reads = [model.config.decoder_start_token_id, *target]
        if attention == "cross":
            reads = reads[:-1]
        output = model(torch.tensor([source]), decoder_input_ids=torch.tensor([reads]), output_attentions=True)
    maps, rows, columns = {
        "encoder": (output.encoder_attentions, source, source),
        "decoder": (output.decoder_attentions, reads, reads),
        "cross": (output.cross_attentions, target, source),
    }[attention]
    return [m[0] for m in maps], rows, columns
