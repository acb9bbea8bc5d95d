"""The RoBERTa family (Liu et al. 2019): BERT whose positions are counted from ``pad_token_id + 1``."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from typing import Any

from regard.errors import InputError
from regard.pretrained.config_json import ConfigJSON
from regard.pretrained.families import bert
from regard.pretrained.family import Family
from regard.pretrained.renames import Weight
from regard.transformer import Config

HEAD = "lm_head."


def _extra_config(config_json: ConfigJSON) -> dict[str, Any]:
    """The first token's position is ``pad_token_id + 1``, and the table of positions counts those before it too.

    The reference also gives no position to padding inside a text; here padding stands only at the ends of a text.
    """
    first = config_json.get("pad_token_id")
    if type(first) is not int or first < 0:
        config_json.refuse("pad_token_id", "RoBERTa's positions are counted from it, so it must be 0 or more")
    rows = config_json.positive_int("max_position_embeddings")
    if rows < first + 2:
        config_json.refuse("max_position_embeddings", f"with pad_token_id {first} the first {first + 1} are not used")
    token_types = config_json.positive_int("type_vocab_size")
    return {"first_position": first + 1, "max_positions": rows - first - 1, "num_token_types": token_types}


def _infer_config(config: Config, tensors: Mapping[str, Weight]) -> Config:
    head = HEAD + "dense.weight" in tensors
    if head and config.activation != "gelu":
        raise InputError(
            f"hidden_act is {config.activation!r}, and RoBERTa's head is always gelu: regard has one activation for "
            "both. Take the head's weights (lm_head) out of the file"
        )
    return replace(config, mlm_head=head)


ROBERTA = Family(
    name="RoBERTa",
    kind="encoder",
    prefix="roberta.",
    fields={key: name for key, name in bert.FIELDS.items() if key != "max_position_embeddings"},
    defaults={"layer_norm_eps": 1e-12, "tie_word_embeddings": True, "pad_token_id": 1},
    fixed=bert.FIXED,
    extra_config=_extra_config,
    extra_keys=frozenset({"max_position_embeddings"}),
    supported={"position_embedding_type": ("absolute",)},
    ignored_keys=bert.IGNORED_KEYS,
    renames=bert.with_head(HEAD, "dense", "layer_norm"),
    tied_weights=bert.tied_weights(HEAD),
    infer_config=_infer_config,
    constants=(bert.POSITION_IDS,),
    ignored_weights=("pooler.", "lm_head.", "classifier.", "qa_outputs."),
)
