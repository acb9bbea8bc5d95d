"""The loss of tokens, together with the product that makes their logits.

A logit for each token of a vocabulary of 50,000 and more is most of what a small language model writes, and a loss by
itself writes and reads so many numbers six times. Here some rows at a time are multiplied, become probabilities and
then the gradient in the same memory, and are multiplied back at once. What is kept for the backward pass are the
gradients of the vectors and of the weights.
"""

from __future__ import annotations

from typing import Any, NamedTuple

import torch
import torch.nn.functional as F
from torch import Tensor

from regard._shapes import Float, Int
from regard.training.packing import NOTHING
from regard.transformer import Decoder

__all__ = ["Logits", "logits_of", "surprise"]

AT_ONCE = 2**24, 2**27
"""So many logits stand in memory, at most, on the CPU and elsewhere."""
UNSURE = 60.0
"""Beyond so many nats a float32 probability is near the smallest there is, and its logarithm would be wrong."""


class Logits(NamedTuple):
    """Logits that are not multiplied out: vectors times one vector for each token of the vocabulary."""

    vectors: Float[Tensor, "predicted d_model"]
    weight: Float[Tensor, "vocab_size d_model"]
    bias: Float[Tensor, " vocab_size"] | None = None

    def whole(self) -> Float[Tensor, "predicted vocab_size"]:
        """All of them."""
        return F.linear(*self)


def logits_of(decoder: Decoder, vectors: Float[Tensor, "predicted d_model"]) -> Logits | Tensor:
    """What a decoder makes of its last vectors: whole where it does more than multiply."""
    config = decoder.config
    if config.logit_softcap is not None:
        return decoder.logits(vectors)
    weight = decoder.embeddings.token.weight if decoder.lm_head is None else decoder.lm_head.weight
    scaled = vectors if config.logit_scale is None else vectors * config.logit_scale
    return Logits(scaled, weight, decoder.lm_head_bias)


def surprise(
    logits: Logits | Float[Tensor, "predicted vocab_size"],
    targets: Int[Tensor, " predicted"],
    label_smoothing: float | int = 0.0,
    scale: float | int = 1.0,
) -> Float[Tensor, ""]:
    """-log of the probability of each target, summed, in nats; `NOTHING` counts nothing.

    With label smoothing e, a target has the probability 1 - e and all tokens share e (Szegedy et al. 2016, section 7).
    In float32, or wider where the logits are.

    Args:
        logits: by whose softmax.
        targets: the token that follows.
        label_smoothing: e.
        scale: what the sum is multiplied by.
    """
    if not isinstance(logits, Logits):
        wide = logits.to(torch.promote_types(logits.dtype, torch.float32))
        summed = F.cross_entropy(wide, targets, reduction="sum", ignore_index=NOTHING, label_smoothing=label_smoothing)
        return summed * scale
    vectors, weight, bias = logits
    predicted = targets != NOTHING
    if not bool(predicted.all()):
        vectors, targets = vectors[predicted], targets[predicted]
    if not torch.is_grad_enabled():  # which a Function does not see, and would compute gradients for nobody
        vectors, weight, bias = vectors.detach(), weight.detach(), None if bias is None else bias.detach()
    loss: Tensor = _Surprise.apply(vectors, weight, bias, targets, label_smoothing, scale)  # type: ignore[no-untyped-call]
    return loss


class _Surprise(torch.autograd.Function):
    @staticmethod
    def forward(
        ctx: Any,
        vectors: Tensor,
        weight: Tensor,
        bias: Tensor | None,
        targets: Tensor,
        smoothing: float,
        scale: float,
    ) -> Tensor:
        device = vectors.device.type
        dtypes = [tensor.dtype for tensor in (vectors, weight)]
        of_weight = None if bias is None else bias.dtype
        if torch.is_autocast_enabled(device) and torch.float64 not in dtypes:
            dtype = torch.get_autocast_dtype(device)
            vectors, weight = vectors.to(dtype), weight.to(dtype)
            bias = None if bias is None else bias.to(dtype)
        with torch.autocast(device, enabled=False):
            loss, found = _computed(vectors, weight, bias, targets, smoothing, scale, ctx.needs_input_grad[:3])
        wanted = (*dtypes, of_weight)
        found = [None if one is None else one.to(dtype) for one, dtype in zip(found, wanted, strict=True)]
        ctx.save_for_backward(*found)
        return loss

    @staticmethod
    def backward(ctx: Any, gradient: Tensor) -> tuple[Tensor | None, ...]:
        # Gradients are on inside a backward pass only if its own are asked for.
        if torch.is_grad_enabled():
            raise NotImplementedError("create_graph=True: this loss has no second derivative")
        found = ctx.saved_tensors
        if not bool(gradient == 1):  # which is a pass over all of the weights' gradient
            found = [None if one is None else one * gradient.to(one.dtype) for one in found]
        return (*found, None, None, None)


def _computed(
    vectors: Tensor,
    weight: Tensor,
    bias: Tensor | None,
    targets: Tensor,
    smoothing: float,
    scale: float,
    needed: tuple[bool, ...],
) -> tuple[Tensor, list[Tensor | None]]:
    """The loss, and the gradients that are needed, some rows at a time."""
    wide = torch.promote_types(vectors.dtype, torch.float32)
    vocabulary, together = len(weight), AT_ONCE[vectors.device.type != "cpu"]
    parts = max(1, -(-len(vectors) * vocabulary // together))
    rows = max(1, -(-len(vectors) // parts))
    room = torch.empty(min(rows, len(vectors)), vocabulary, dtype=wide, device=vectors.device)
    losses = torch.empty(len(vectors), dtype=wide, device=vectors.device)
    of_vectors = torch.empty_like(vectors) if needed[0] else None
    of_weight = torch.empty_like(weight, dtype=wide) if needed[1] else None
    if of_weight is not None and not len(vectors):
        of_weight.zero_()
    of_bias = torch.zeros_like(weight[:, 0], dtype=wide) if needed[2] else None
    for start in range(0, len(vectors), rows):
        some, target = vectors[start : start + rows], targets[start : start + rows]
        at = torch.arange(len(some), device=vectors.device), target
        logits = _product(some, weight, bias, room[: len(some)])
        more = None
        if smoothing:
            # The mean surprise of all tokens, less that of the target.
            more = smoothing * (logits[at] - logits.mean(-1))
        likely = _softmax(logits)
        each = -likely[at].log()
        unsure = ~(each < UNSURE)
        if bool(unsure.any()):
            each[unsure] = _exactly(some[unsure], weight, bias, target[unsure])
        losses[start : start + rows] = each if more is None else each + more
        if not any(needed):
            continue
        # The gradient of each logit: its probability less the one wanted.
        likely[at] -= 1.0 - smoothing
        if smoothing:
            likely -= smoothing / vocabulary
        by = likely.to(vectors.dtype)
        if of_vectors is not None:
            torch.mm(by, weight, out=of_vectors[start : start + rows]).mul_(scale)
        if of_weight is not None:
            _add_product(of_weight, by, some * scale, first=start == 0)
        if of_bias is not None:
            of_bias.add_(likely.sum(0), alpha=scale)
    return losses.sum() * scale, [of_vectors, of_weight, of_bias]


def _product(vectors: Tensor, weight: Tensor, bias: Tensor | None, room: Tensor) -> Tensor:
    """Logits of some vectors, in memory that is there already."""
    if vectors.dtype != room.dtype:
        return room.copy_(F.linear(vectors, weight, bias))
    if bias is None:
        return torch.mm(vectors, weight.t(), out=room)
    return torch.addmm(bias, vectors, weight.t(), out=room)


def _add_product(total: Tensor, by: Tensor, vectors: Tensor, *, first: bool) -> None:
    """What some rows say of the weights."""
    if total.dtype == by.dtype:
        torch.addmm(total, by.t(), vectors, beta=0 if first else 1, out=total)  # beta=0 does not look at what was there
    elif first:
        total.copy_(by.t() @ vectors)
    else:
        total += by.t() @ vectors


def _softmax(logits: Tensor) -> Tensor:
    """Probabilities, on the CPU in the memory of the logits: its kernel writes a number after the last look at it."""
    return torch.softmax(logits, -1, out=logits) if logits.is_cpu else torch.softmax(logits, -1)


def _exactly(vectors: Tensor, weight: Tensor, bias: Tensor | None, targets: Tensor) -> Tensor:
    """The surprise of targets that are next to impossible, or no number."""
    logits = F.linear(vectors, weight, bias)
    wide = logits.to(torch.promote_types(logits.dtype, torch.float32))
    return F.cross_entropy(wide, targets, reduction="none")
