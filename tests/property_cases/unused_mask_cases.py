"""Masks of the loss, which hide no key, and masks that a documentation leaves no work to."""

from __future__ import annotations

import torch
from einops import rearrange
from torch import Tensor, nn
from torch.nn.functional import mse_loss

from property_cases import Case, drawn, joined, of_x, split
from regard.check.target import Invocation

W_Q, W_K = (drawn(8, 8, seed=seed) / 3 for seed in (80, 81))


def attended(x: Tensor) -> Tensor:
    return x + joined((split(x @ W_Q) @ split(x @ W_K).mT / 2).softmax(-1) @ split(x)) / 3  # here


class MaskOfItsLoss(nn.Module):
    def forward(self, x: Tensor, targets: Tensor | None = None, mask: Tensor | None = None) -> Tensor:
        x = attended(attended(x))
        if targets is not None:
            loss = mse_loss(x, targets, reduction="none")
            return (loss * mask).sum() if mask is not None else loss.sum()
        return x


class MaskAfterAReturn(nn.Module):
    def forward(self, x: Tensor, targets: Tensor | None = None, mask: Tensor | None = None) -> Tensor:
        x = attended(x)
        if targets is None:
            return x
        loss = mse_loss(x, targets, reduction="none")
        return (loss * mask).sum() if mask is not None else loss.sum()


class AttentionMaskInTheLoss(nn.Module):
    """What the mask of attention hides counts in no loss, and every query sees it."""

    def forward(self, x: Tensor, targets: Tensor | None = None, attention_mask: Tensor | None = None) -> Tensor:
        x = attended(attended(x))
        if targets is not None:
            loss = mse_loss(x, targets, reduction="none")
            return (loss * attention_mask).sum() if attention_mask is not None else loss.sum()
        return x


class MaskThatNothingReads(nn.Module):
    """Attention over patches."""

    def forward(self, x: Tensor, mask: Tensor | None = None) -> Tensor:
        return attended(x)


class MaskThatHasNoWork(nn.Module):
    """Attention over patches: all patches see each other."""

    def forward(self, x: Tensor, mask: Tensor | None = None) -> Tensor:
        return attended(x)


class PaddingThatHasNoWork(nn.Module):
    """Attention over patches: all patches see each other."""

    def forward(self, x: Tensor, padding_mask: Tensor | None = None) -> Tensor:
        return attended(x)


def summed_first(x: Tensor) -> Tensor:
    """Keys are multiplied by values before a query asks."""
    q, k = split(x @ W_Q).softmax(-1), split(x @ W_K).softmax(-2)
    return joined(q @ (k.mT @ split(x)))


class DocumentedMaskOfLinearAttention(nn.Module):
    """Linear attention.

    Args:
        x: (batch, tokens, width).
        mask: (batch, tokens), True for tokens, False for padding.
    """

    def forward(self, x: Tensor, mask: Tensor | None = None) -> Tensor:  # here
        return summed_first(x)


class MaskOfOthersThatAreCalledAlike(nn.Module):
    """Linear attention, without a mask."""

    def forward(self, x: Tensor, mask: Tensor | None = None) -> Tensor:
        return summed_first(x)


class MaskThatLinearAttentionLeaves(nn.Module):
    """Linear attention.

    Args:
        x: (batch, tokens, width).
        mask: not used.
    """

    def forward(self, x: Tensor, mask: Tensor | None = None) -> Tensor:
        return summed_first(x)


class MaskForTheInterface(nn.Module):
    """Linear attention.

    Args:
        x: (batch, tokens, width).
        mask: (batch, tokens), for compatibility with softmax attention.
    """

    def forward(self, x: Tensor, mask: Tensor | None = None) -> Tensor:
        return summed_first(x)


class MaskOfWholeSamples(nn.Module):
    """All queries of some samples see themselves alone."""

    def forward(self, x: Tensor, focus_mask: Tensor | None = None) -> Tensor:
        if focus_mask is not None and x.ndim > 3:  # as of the frames of a video
            alone = rearrange(focus_mask, "b -> b 1 1 1")
            x = torch.where(alone, x, attended(x))
        return attended(x)


class DocumentedMaskOfSamples(nn.Module):
    """Attention of a batch.

    Args:
        x: (batch, tokens, width).
        drop_mask: (batch,), True where the condition is dropped.
    """

    def forward(self, x: Tensor, drop_mask: Tensor | None = None) -> Tensor:
        return attended(x)


def with_its_mask(kind: type[nn.Module]) -> Invocation:
    """A call of a module that may be given a mask, and is not."""
    (name,) = (each for each in kind.forward.__annotations__ if each.endswith("mask"))
    return of_x(kind(), masks=(name,))


CASES = [
    Case("mask-argument", AttentionMaskInTheLoss, MaskOfItsLoss, with_its_mask, attentions=2),
    Case("mask-argument", MaskThatNothingReads, MaskAfterAReturn, with_its_mask),
    Case("mask-argument", MaskThatNothingReads, MaskThatHasNoWork, with_its_mask),
    Case("mask-argument", PaddingThatHasNoWork, MaskThatHasNoWork, with_its_mask),
    Case("mask-argument", PaddingThatHasNoWork, MaskOfWholeSamples, with_its_mask),
    Case("mask-argument", PaddingThatHasNoWork, DocumentedMaskOfSamples, with_its_mask),
    Case("mask-argument", DocumentedMaskOfLinearAttention, MaskOfOthersThatAreCalledAlike, with_its_mask),
    Case("mask-argument", DocumentedMaskOfLinearAttention, MaskThatLinearAttentionLeaves, with_its_mask),
    Case("mask-argument", DocumentedMaskOfLinearAttention, MaskForTheInterface, with_its_mask),
]
