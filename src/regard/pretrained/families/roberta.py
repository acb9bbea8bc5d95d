"""The RoBERTa family (Liu et al. 2019): BERT whose positions begin after the padding's id."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from typing import Any

from torch import Tensor

from regard.errors import InputError
from regard.pretrained.config_json import Settings
from regard.pretrained.families import bert
from regard.pretrained.family import Family
from regard.transformer import Config

__all__ = ["ROBERTA"]

HEAD = "lm_head."


def _more(settings: Settings) -> dict[str, Any]:
    """The first token's position is ``pad_token_id + 1``, and the table of positions counts those before it too.

    The reference gives padding inside a text no position; here padding stands at the text's ends alone.
    """
    first = settings.get("pad_token_id")
    if type(first) is not int or first < 0:
        settings.refuse("pad_token_id", "RoBERTa's positions are counted from it, so it must be 0 or more")
    rows = settings.whole("max_position_embeddings")
    if rows < first + 2:
        settings.refuse("max_position_embeddings", f"with pad_token_id {first} the first {first + 1} are not used")
    return {"first_position": first + 1, "max_positions": rows - first - 1}


def _settle(config: Config, tensors: Mapping[str, Tensor]) -> Config:
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
    fields={theirs: ours for theirs, ours in bert.FIELDS.items() if theirs != "max_position_embeddings"},
    defaults={"layer_norm_eps": 1e-12, "tie_word_embeddings": True, "pad_token_id": 1},
    always=bert.ALWAYS,
    more=_more,
    reads=frozenset({"max_position_embeddings"}),
    only={"position_embedding_type": ("absolute",)},
    without_effect=bert.WITHOUT_EFFECT,
    renames=bert.with_head(HEAD, "dense", "layer_norm"),
    one=bert.tied(HEAD),
    settle=_settle,
    constants=(bert.POSITION_IDS,),
    on_top=("pooler.", "lm_head.", "classifier.", "qa_outputs."),
)
