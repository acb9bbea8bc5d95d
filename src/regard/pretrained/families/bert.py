"""The BERT family (Devlin et al. 2019) of encoders."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import replace

import torch
from torch import Tensor

from regard.pretrained.family import ConstantTensor, Family
from regard.pretrained.renames import Rename, Weight, linear, packed_qkv
from regard.transformer import Config

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

FIXED = {
    "positions": "learned",
    "scale_embedding": False,
    "embedding_norm": True,
    "attention_bias": True,
    "out_bias": True,
}

IGNORED_KEYS = frozenset(
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
    """All of the model but its head, also RoBERTa's."""
    layer, attention = "encoder.layer.{n}.", "encoder.layer.{n}.attention."
    return [
        Rename("embeddings.token.weight", ("embeddings.word_embeddings.weight",)),
        Rename("embeddings.position.weight", ("embeddings.position_embeddings.weight",)),
        Rename("embeddings.token_type.weight", ("embeddings.token_type_embeddings.weight",)),
        *linear("embeddings.norm", "embeddings.LayerNorm"),
        *packed_qkv(config, "blocks.{n}.attention", attention + "self", ("query", "key", "value"), bias=True),
        *linear("blocks.{n}.attention.out_proj", attention + "output.dense"),
        *linear("blocks.{n}.attention_norm", attention + "output.LayerNorm"),
        *linear("blocks.{n}.feed_forward.up", layer + "intermediate.dense"),
        *linear("blocks.{n}.feed_forward.down", layer + "output.dense"),
        *linear("blocks.{n}.feed_forward_norm", layer + "output.LayerNorm"),
    ]


def with_head(head: str, transform: str, norm: str) -> Callable[[Config], list[Rename]]:
    """The table of a model whose masked-language-model head has these names."""

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


def tied_weights(head: str) -> Callable[[Config], list[tuple[str, ...]]]:
    """The second names that a file may store a tied head's weights under."""

    def tied_names(config: Config) -> list[tuple[str, ...]]:
        if not (config.mlm_head and config.tie_word_embeddings):
            return []
        return [
            ("embeddings.word_embeddings.weight", head + "decoder.weight"),
            (head + "bias", head + "decoder.bias"),
        ]

    return tied_names


def _infer_config(config: Config, tensors: Mapping[str, Weight]) -> Config:
    """The model has a head if the file has its weights, whatever the architecture is called."""
    return replace(config, mlm_head=HEAD + "transform.dense.weight" in tensors)


def _rename_tensorflow(name: str) -> str:
    """PyTorch's weight and bias for the gamma and beta of the first BERT, which TensorFlow trained."""
    return name.replace("LayerNorm.gamma", "LayerNorm.weight").replace("LayerNorm.beta", "LayerNorm.bias")


def _is_arange(ids: Tensor, config: Config) -> bool:
    return torch.equal(ids.flatten(), torch.arange(config.first_position + (config.max_positions or 0)))


POSITION_IDS = ConstantTensor("embeddings.position_ids", _is_arange, "0, 1, 2, ...")
"""Older files store the indices of the learned positions."""

BERT = Family(
    name="BERT",
    kind="encoder",
    prefix="bert.",
    fields=FIELDS,
    # Constants in the code of the first BERT, which its config files therefore lack.
    defaults={"layer_norm_eps": 1e-12, "tie_word_embeddings": True, "pad_token_id": 0},
    fixed=FIXED,
    supported={"position_embedding_type": ("absolute",)},
    ignored_keys=IGNORED_KEYS,
    extra_config=lambda config_json: {"num_token_types": config_json.positive_int("type_vocab_size")},
    renames=with_head(HEAD, "transform.dense", "transform.LayerNorm"),
    rename_legacy=_rename_tensorflow,
    tied_weights=tied_weights(HEAD),
    infer_config=_infer_config,
    constants=(POSITION_IDS,),
    ignored_weights=("pooler.", "cls.", "classifier.", "qa_outputs."),
)
