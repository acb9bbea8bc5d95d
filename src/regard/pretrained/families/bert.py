"""The BERT family (Devlin et al. 2019): how its checkpoints name what `regard.transformer.Encoder` has."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import replace

import torch
from torch import Tensor

from regard.pretrained.family import Constant, Family
from regard.pretrained.renames import Rename, linear, packed
from regard.transformer import Config

__all__ = ["ALWAYS", "BERT", "FIELDS", "POSITION_IDS", "WITHOUT_EFFECT", "tied", "with_head"]

FIELDS = {
    "vocab_size": "vocab_size",
    "hidden_size": "d_model",
    "num_hidden_layers": "num_layers",
    "num_attention_heads": "num_heads",
    "intermediate_size": "d_ff",
    "max_position_embeddings": "max_positions",
    "type_vocab_size": "num_token_types",
    "hidden_act": "activation",
    "layer_norm_eps": "norm_eps",
    "hidden_dropout_prob": "dropout",
    "attention_probs_dropout_prob": "attention_dropout",
    "tie_word_embeddings": "tie_word_embeddings",
}

ALWAYS = {
    "positions": "learned",
    "scale_embedding": False,
    "embedding_norm": True,
    "attention_bias": True,
    "out_bias": True,
}

WITHOUT_EFFECT = frozenset(
    {
        "directionality",
        "pooler_fc_size",
        "pooler_num_attention_heads",
        "pooler_num_fc_layers",
        "pooler_size_per_head",
        "pooler_type",
    }
)

HEAD = "cls.predictions."


def layers(config: Config) -> list[Rename]:
    """Everything below the head; RoBERTa's is the same."""
    layer, attention = "encoder.layer.{n}.", "encoder.layer.{n}.attention."
    return [
        Rename("embeddings.token.weight", ("embeddings.word_embeddings.weight",)),
        Rename("embeddings.position.weight", ("embeddings.position_embeddings.weight",)),
        Rename("embeddings.token_type.weight", ("embeddings.token_type_embeddings.weight",)),
        *linear("embeddings.norm", "embeddings.LayerNorm"),
        *packed(config, "blocks.{n}.attention", attention + "self", ("query", "key", "value"), bias=True),
        *linear("blocks.{n}.attention.out_proj", attention + "output.dense"),
        *linear("blocks.{n}.attention_norm", attention + "output.LayerNorm"),
        *linear("blocks.{n}.feed_forward.up", layer + "intermediate.dense"),
        *linear("blocks.{n}.feed_forward.down", layer + "output.dense"),
        *linear("blocks.{n}.feed_forward_norm", layer + "output.LayerNorm"),
    ]


def with_head(head: str, transform: str, norm: str) -> Callable[[Config], list[Rename]]:
    """The whole table, where the head that guesses masked tokens has these names."""

    def renames(config: Config) -> list[Rename]:
        if not config.mlm_head:
            return layers(config)
        return [
            *layers(config),
            *linear("mlm_head.transform", head + transform),
            *linear("mlm_head.norm", head + norm),
            Rename("mlm_head.bias", (head + "bias" if config.tie_word_embeddings else head + "decoder.bias",)),
            *([] if config.tie_word_embeddings else [Rename("mlm_head.weight", (head + "decoder.weight",))]),
        ]

    return renames


def tied(head: str) -> Callable[[Config], list[tuple[str, ...]]]:
    """The names under which a tied head may stand in the file a second time."""

    def one(config: Config) -> list[tuple[str, ...]]:
        if not (config.mlm_head and config.tie_word_embeddings):
            return []
        return [
            ("embeddings.word_embeddings.weight", head + "decoder.weight"),
            (head + "bias", head + "decoder.bias"),
        ]

    return one


def _settle(config: Config, tensors: Mapping[str, Tensor]) -> Config:
    """A head is there where the file has one, whatever the architecture is called."""
    return replace(config, mlm_head=HEAD + "transform.dense.weight" in tensors)


def _of_pytorch(name: str) -> str:
    """PyTorch's words for the first BERT's gamma and beta."""
    return name.replace("LayerNorm.gamma", "LayerNorm.weight").replace("LayerNorm.beta", "LayerNorm.bias")


def _counts(ids: Tensor, config: Config) -> bool:
    return torch.equal(ids.flatten(), torch.arange(config.first_position + (config.max_positions or 0)))


POSITION_IDS = Constant("embeddings.position_ids", _counts, "0, 1, 2, ...")
"""Older files store the numbers that the positions are looked up by."""

BERT = Family(
    name="BERT",
    kind="encoder",
    prefix="bert.",
    fields=FIELDS,
    # What the first BERT's code had fixed, and its config files therefore do not say.
    defaults={"layer_norm_eps": 1e-12, "tie_word_embeddings": True, "pad_token_id": 0},
    always=ALWAYS,
    only={"position_embedding_type": ("absolute",)},
    without_effect=WITHOUT_EFFECT,
    renames=with_head(HEAD, "transform.dense", "transform.LayerNorm"),
    respell=_of_pytorch,
    one=tied(HEAD),
    settle=_settle,
    constants=(POSITION_IDS,),
    on_top=("pooler.", "cls.", "classifier.", "qa_outputs."),
)
