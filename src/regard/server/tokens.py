"""`NextToken` of static/live/engine.js: tokens with their logits and probabilities."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import torch
from torch import Tensor

from regard._shapes import Float
from regard.errors import InputError
from regard.server.live_model import LiveModel

MAX_TOKENS = 20
"""The likeliest tokens of a list."""


def likeliest_tokens(model: LiveModel, logits: Float[Tensor, " vocab_size"]) -> list[dict[str, Any]]:
    """The likeliest next tokens, the likeliest first.

    Raises:
        InputError: the model computes NaN or infinities.
    """
    return tokens_of(model, logits, likeliest_ids(logits))


def likeliest_ids(logits: Float[Tensor, " vocab_size"]) -> list[int]:
    """The ids of the likeliest tokens, the likeliest first."""
    ids: list[int] = logits.topk(min(MAX_TOKENS, len(logits))).indices.tolist()
    return ids


def tokens_of(model: LiveModel, logits: Float[Tensor, " vocab_size"], ids: Sequence[int]) -> list[dict[str, Any]]:
    """Some tokens, the likeliest first.

    Raises:
        InputError: the model computes NaN or infinities.
    """
    probabilities = logits.double().softmax(-1)
    if not bool(torch.isfinite(logits[list(ids)]).all() & torch.isfinite(probabilities).all()):
        raise InputError("the model computes logits that are not finite: its weights are damaged or out of range")
    ordered = sorted(ids, key=lambda id_: -float(logits[id_]))
    return [
        {
            "id": id_,
            "token": model.token(id_),
            "text": model.added_text(id_),
            "logit": float(logits[id_]),
            "probability": float(probabilities[id_]),
        }
        for id_ in ordered
    ]
