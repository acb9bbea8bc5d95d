"""The BERT family (Devlin et al. 2019): how its checkpoints name what `regard.transformer.Encoder` has."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from regard.errors import InputError
from regard.pretrained.checkpoint import Rename, fill
from regard.transformer import Config, Encoder

__all__ = ["config_of", "encoder_of"]

FIELDS = {
    "vocab_size": "vocab_size",
    "hidden_size": "d_model",
    "num_hidden_layers": "num_layers",
    "num_attention_heads": "num_heads",
    "intermediate_size": "d_ff",
    "max_position_embeddings": "max_positions",
    "type_vocab_size": "num_segments",
    "hidden_act": "activation",
    "layer_norm_eps": "norm_eps",
    "hidden_dropout_prob": "dropout",
    "attention_probs_dropout_prob": "attention_dropout",
}
"""config.json's names for the fields of `Config`."""

FIELD_DEFAULTS = {"layer_norm_eps": 1e-12}
"""What the first BERT's code had fixed, and its config files therefore do not say."""

ACTIVATIONS = {
    "gelu": "gelu",
    "gelu_new": "gelu_tanh",
    "gelu_pytorch_tanh": "gelu_tanh",
    "relu": "relu",
}
"""config.json's names for the activations."""

ONLY: dict[str, tuple[object, ...]] = {
    "model_type": ("bert",),
    "position_embedding_type": ("absolute",),
    "is_decoder": (False,),
    "add_cross_attention": (False,),
    "chunk_size_feed_forward": (0,),
    "pruned_heads": ({},),
}
"""Settings that would change the encoder's numbers: no other value is supported."""

WITHOUT_EFFECT = {
    "_name_or_path",
    "architectures",
    "bos_token_id",
    "classifier_dropout",
    "directionality",
    "dtype",
    "eos_token_id",
    "finetuning_task",
    "gradient_checkpointing",
    "id2label",
    "initializer_range",
    "label2id",
    "pad_token_id",
    "pooler_fc_size",
    "pooler_num_attention_heads",
    "pooler_num_fc_layers",
    "pooler_size_per_head",
    "pooler_type",
    "problem_type",
    "tie_word_embeddings",
    "torch_dtype",
    "transformers_version",
    "use_cache",
}
"""Settings that say where the weights come from, how they were trained, or what stands on top of the encoder."""

_LAYER = "encoder.layer.{n}."
_ATTENTION = _LAYER + "attention."
_QKV = tuple(f"{_ATTENTION}self.{part}" for part in ("query", "key", "value"))

RENAMES: tuple[Rename, ...] = (
    ("embeddings.token.weight", ("embeddings.word_embeddings.weight",)),
    ("embeddings.position.weight", ("embeddings.position_embeddings.weight",)),
    ("embeddings.segment.weight", ("embeddings.token_type_embeddings.weight",)),
    ("embeddings.norm.weight", ("embeddings.LayerNorm.weight",)),
    ("embeddings.norm.bias", ("embeddings.LayerNorm.bias",)),
    ("blocks.{n}.attention.qkv.weight", tuple(f"{part}.weight" for part in _QKV)),
    ("blocks.{n}.attention.qkv.bias", tuple(f"{part}.bias" for part in _QKV)),
    ("blocks.{n}.attention.out_proj.weight", (_ATTENTION + "output.dense.weight",)),
    ("blocks.{n}.attention.out_proj.bias", (_ATTENTION + "output.dense.bias",)),
    ("blocks.{n}.attention_norm.weight", (_ATTENTION + "output.LayerNorm.weight",)),
    ("blocks.{n}.attention_norm.bias", (_ATTENTION + "output.LayerNorm.bias",)),
    ("blocks.{n}.feed_forward.up.weight", (_LAYER + "intermediate.dense.weight",)),
    ("blocks.{n}.feed_forward.up.bias", (_LAYER + "intermediate.dense.bias",)),
    ("blocks.{n}.feed_forward.down.weight", (_LAYER + "output.dense.weight",)),
    ("blocks.{n}.feed_forward.down.bias", (_LAYER + "output.dense.bias",)),
    ("blocks.{n}.feed_forward_norm.weight", (_LAYER + "output.LayerNorm.weight",)),
    ("blocks.{n}.feed_forward_norm.bias", (_LAYER + "output.LayerNorm.bias",)),
)

ON_TOP = ("pooler.", "cls.", "classifier.", "qa_outputs.")
"""Parts that read the encoder's result and do not change it: left out, and listed in `Pretrained.unused`."""

POSITION_IDS = "embeddings.position_ids"


def config_of(settings: Mapping[str, Any], source: Path) -> Config:
    """The settings of a ``config.json``.

    Raises:
        InputError: a setting that is unknown, missing, or has a value that is not supported.
    """
    for name, value in settings.items():
        if name in ONLY and value not in ONLY[name]:
            supported = " or ".join(repr(v) for v in ONLY[name])
            raise InputError(f"{source}: {name} is {value!r}; for BERT, regard supports {supported}")
        if name not in ONLY and name not in FIELDS and name not in WITHOUT_EFFECT:
            raise InputError(
                f"{source}: regard does not know the setting {name!r} (here {value!r}), so it cannot tell whether "
                "the model would be right without it. If it does not matter, take it out of the file"
            )
    fields: dict[str, Any] = {}
    for theirs, ours in FIELDS.items():
        if theirs not in settings and theirs not in FIELD_DEFAULTS:
            raise InputError(f"{source} lacks the setting {theirs!r}")
        fields[ours] = settings.get(theirs, FIELD_DEFAULTS.get(theirs))
    activation = fields["activation"]
    if not isinstance(activation, str) or activation not in ACTIVATIONS:
        raise InputError(f"{source}: hidden_act is {activation!r}; supported are {', '.join(ACTIVATIONS)}")
    fields["activation"] = ACTIVATIONS[activation]
    try:
        return Config(**fields)
    except (TypeError, ValueError) as error:
        renamed = [f"{ours} is {theirs} there" for theirs, ours in FIELDS.items() if f"{ours}=" in str(error)]
        raise InputError(f"{source}: {error} ({', '.join(renamed)})") from error


def encoder_of(config: Config, tensors: Mapping[str, Tensor], source: Path) -> tuple[Encoder, list[str]]:
    """The encoder with a checkpoint's weights, and the names of the weights that stand on top of it.

    Raises:
        InputError: a weight is missing, left over, or of another shape.
    """
    named: dict[str, Tensor] = {}
    for name, tensor in tensors.items():
        current = _current_name(name)
        if current in named:
            raise InputError(f"{source} holds two weights for {current}; one of them is named {name}")
        named[current] = tensor
    unused = sorted(name for name in named if name.startswith(ON_TOP))
    inside = {name: tensor for name, tensor in named.items() if name not in unused}
    _check_position_ids(inside.pop(POSITION_IDS, None), config, source)
    # Before anything is built: a wrong number of layers could be one that takes hours.
    last = f"{_LAYER}output.dense.weight".format(n=config.num_layers - 1)
    if last not in inside:
        raise InputError(f"{source} lacks {last}")
    try:
        with torch.device("meta"):
            encoder = Encoder(config)
    except RuntimeError as error:  # sizes whose product is no size any more
        raise InputError(f"the sizes of {config} make no model: {error}") from error
    fill(encoder, inside, RENAMES, layers=config.num_layers, source=source)
    return encoder.eval(), unused


def _current_name(name: str) -> str:
    """A weight's name without the wrapper's prefix, and with PyTorch's words for the first BERT's gamma and beta."""
    name = name.removeprefix("bert.")
    return name.replace("LayerNorm.gamma", "LayerNorm.weight").replace("LayerNorm.beta", "LayerNorm.bias")


def _check_position_ids(ids: Tensor | None, config: Config, source: Path) -> None:
    """Older files store the numbers 0, 1, 2, ... that the positions are looked up by. Nothing else will do."""
    if ids is not None and not torch.equal(ids.flatten(), torch.arange(config.max_positions)):
        raise InputError(f"{source}: {POSITION_IDS} is not 0, 1, 2, ...; regard supports no other positions")
