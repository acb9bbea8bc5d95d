"""Models whose batches are padded on the left, by a mask."""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor

from attention_styles import tokens_call
from property_cases import WIDTH, Case, drawn, joined, split
from property_cases.token_id_cases import TABLE, VOCAB
from regard.check.target import Invocation

PLACES = drawn(8, WIDTH, seed=40)
W_Q, W_K = (drawn(WIDTH, WIDTH, seed=seed) / 3 for seed in (80, 81))


def read(ids: Tensor, mask: Tensor | None, places: Tensor) -> Tensor:
    x = TABLE[ids] + PLACES[places]
    allowed = torch.ones(ids.shape[1], ids.shape[1]).tril().bool()
    if mask is not None:
        allowed = (allowed & (mask[:, None] > 0)) | torch.eye(ids.shape[1]).bool()
    scores = split(x @ W_Q) @ split(x @ W_K).mT / 2
    allowed = allowed if mask is None else allowed[:, None]
    return x + joined(scores.masked_fill(~allowed, -torch.inf).softmax(-1) @ split(x))


def counts_padding(ids: Tensor, mask: Tensor | None = None) -> Tensor:
    """Batches may be padded on the left: positions count real tokens only."""
    return read(ids, mask, torch.arange(ids.shape[1]).expand(ids.shape))


def counts_real_tokens(ids: Tensor, mask: Tensor | None = None) -> Tensor:
    """Batches may be padded on the left: positions count real tokens only."""
    places = torch.ones_like(ids) if mask is None else (mask > 0).long()
    return read(ids, mask, (places.cumsum(-1) - 1).clamp(min=0))


def counts_padding_in_other_words(ids: Tensor, mask: Tensor | None = None) -> Tensor:
    """Rows are padded on the LEFT. A row has the same outputs whether it is padded or not."""
    return read(ids, mask, torch.arange(ids.shape[1]).expand(ids.shape))


def counts_padding_among_real_tokens(ids: Tensor, mask: Tensor | None = None) -> Tensor:
    """For left padded batches. The position of a token is its index among the real tokens of its row."""
    return read(ids, mask, torch.arange(ids.shape[1]).expand(ids.shape))


def counts_padding_unlike_alone(ids: Tensor, mask: Tensor | None = None) -> Tensor:
    """The tokenizer pads on the left. A row is continued the same as when it is run alone."""
    return read(ids, mask, torch.arange(ids.shape[1]).expand(ids.shape))


def counts_padding_unlike_a_batch_of_one(ids: Tensor, mask: Tensor | None = None) -> Tensor:
    """Texts of a batch are padded on the left. The states of a text are equal alone and in a padded batch."""
    return read(ids, mask, torch.arange(ids.shape[1]).expand(ids.shape))


def counts_padding_that_changes_nothing(ids: Tensor, mask: Tensor | None = None) -> Tensor:
    """Texts of a batch are padded on the left; this padding never changes what comes out for a text."""
    return read(ids, mask, torch.arange(ids.shape[1]).expand(ids.shape))


def counts_padding_in_both(ids: Tensor, mask: Tensor | None = None) -> Tensor:
    """Texts may be padded on the left, a text gives the same with or without padding."""
    return read(ids, mask, torch.arange(ids.shape[1]).expand(ids.shape))


def counts_real_tokens_in_both(ids: Tensor, mask: Tensor | None = None) -> Tensor:
    """Texts may be padded on the left, a text gives the same with or without padding."""
    return counts_real_tokens(ids, mask)


def counts_to_the_end(ids: Tensor, mask: Tensor | None = None) -> Tensor:
    """What was bought, padded on the left up to one length: the last purchase has the last position."""
    return read(ids, mask, torch.arange(ids.shape[1]).expand(ids.shape))


def read_whole(ids: Tensor, mask: Tensor | None) -> Tensor:
    x, scores = TABLE[ids], split(TABLE[ids] @ W_Q) @ split(TABLE[ids] @ W_K).mT / 2
    scores = scores if mask is None else scores.masked_fill(mask[:, None, None] == 0, -torch.inf)
    return x + joined(scores.softmax(-1) @ split(x))


def reads_the_first(ids: Tensor, mask: Tensor | None = None) -> Tensor:
    """One vector of each text. Batches are padded on the left."""
    return read_whole(ids, mask)[:, 0]


def reads_the_first_of_the_text(ids: Tensor, mask: Tensor | None = None) -> Tensor:
    """One vector of each text. Batches are padded on the left."""
    first = torch.zeros(len(ids)).long() if mask is None else (mask > 0).long().argmax(1)
    return read_whole(ids, mask)[torch.arange(len(ids)), first]


def reads_by_the_number(ids: Tensor, mask: Tensor | None = None) -> Tensor:
    """The last state of each text. Batches may be padded on the left or on the right."""
    count = torch.full((len(ids),), ids.shape[1]) if mask is None else (mask > 0).long().sum(1)
    return read(ids, mask, torch.zeros_like(ids))[torch.arange(len(ids)), count - 1]


def reads_the_last(ids: Tensor, mask: Tensor | None = None) -> Tensor:
    """The last state of each text. Batches may be padded on the left or on the right."""
    real = torch.ones_like(ids) if mask is None else (mask > 0).long()
    last = (real * torch.arange(1, ids.shape[1] + 1)).argmax(1)
    return read(ids, mask, torch.zeros_like(ids))[torch.arange(len(ids)), last]


def reads_by_the_number_of_padding_behind(ids: Tensor, mask: Tensor | None = None) -> Tensor:
    """The last state of each text. Batches are padded on the right."""
    return reads_by_the_number(ids, mask)


def with_mask(function: Any) -> Invocation:
    """A call of ids that may be given a mask."""
    ids = torch.randint(1, VOCAB, (2, 5), generator=torch.Generator().manual_seed(0))
    call = tokens_call(function, ids)
    call.streams[0].role, call.masks, call.sizes = "ids", ["mask"], {"vocab": VOCAB}
    return call


CASES = [
    Case("positions-behind-padding", counts_padding, counts_real_tokens, with_mask, has_line=False),
    Case("positions-behind-padding", counts_padding_in_other_words, counts_real_tokens, with_mask, has_line=False),
    Case("positions-behind-padding", counts_padding_among_real_tokens, counts_real_tokens, with_mask, has_line=False),
    Case("positions-behind-padding", counts_padding_unlike_alone, counts_real_tokens, with_mask, has_line=False),
    Case(
        "positions-behind-padding", counts_padding_unlike_a_batch_of_one, counts_real_tokens, with_mask, has_line=False
    ),
    Case(
        "positions-behind-padding", counts_padding_that_changes_nothing, counts_real_tokens, with_mask, has_line=False
    ),
    Case("positions-behind-padding", counts_padding_in_both, counts_real_tokens_in_both, with_mask, has_line=False),
    Case("positions-behind-padding", counts_padding, counts_to_the_end, with_mask, has_line=False),
    Case("read-out-of-the-text", reads_the_first, reads_the_first_of_the_text, with_mask, has_line=False),
    Case("read-out-of-the-text", reads_by_the_number, reads_the_last, with_mask, has_line=False),
    Case(
        "read-out-of-the-text",
        reads_by_the_number,
        reads_by_the_number_of_padding_behind,
        with_mask,
        has_line=False,
    ),
]
