"""The cross-entropy of tokens, computed together with the matrix product that makes their logits.

The logits of a vocabulary of 50,000 tokens and more are most of the memory of a small language model, and a separate
loss writes and reads them six times. Here a chunk of rows is multiplied, turned into probabilities and
then into the gradient in the same memory, and multiplied back at once. The backward pass only needs the gradients of
the hidden states and of the weights.

`torch.nn.functional.linear_cross_entropy`, which torch 2.13 added, takes 1.2 times as long and 1.8 times the memory
(forward and backward of 1,024 tokens, 50,257 x 768 weights, two CPU threads; in chunks of 256 tokens).
"""

from __future__ import annotations

from typing import Any, NamedTuple

import torch
import torch.nn.functional as F
from torch import Tensor

from regard._shapes import Float, Int
from regard.training.linear import is_supported, multiply
from regard.transformer import Decoder

IGNORE_INDEX = -100
"""The target where nothing is predicted, as in PyTorch's cross-entropy."""
MAX_CHUNK_LOGITS = 2**24, 2**27
"""Logits that are in memory at once, at most, on the CPU and elsewhere."""
FLOATS_PER_CACHE_LINE = 16
"""Of float32."""
MAX_SAFE_NATS = 60.0
"""Above this loss a float32 probability is close to the smallest float32, and its logarithm would be wrong."""


class LinearLogits(NamedTuple):
    """Logits before their matrix product: hidden states times one weight vector for each token of the vocabulary."""

    hidden_states: Float[Tensor, "predicted d_model"]
    weight: Float[Tensor, "vocab_size d_model"]
    bias: Float[Tensor, " vocab_size"] | None = None


def decoder_logits(decoder: Decoder, hidden_states: Float[Tensor, "predicted d_model"]) -> LinearLogits | Tensor:
    """The logits of a decoder's last hidden states: a tensor where the decoder does more than multiply."""
    config = decoder.config
    if config.logit_softcap is not None:
        return decoder.logits(hidden_states)
    weight = decoder.embeddings.token.weight if decoder.lm_head is None else decoder.lm_head.weight
    scaled = hidden_states if config.logit_scale is None else hidden_states * config.logit_scale
    return LinearLogits(scaled, weight, decoder.lm_head_bias)


def linear_cross_entropy(
    logits: LinearLogits | Float[Tensor, "predicted vocab_size"],
    targets: Int[Tensor, " predicted"],
    label_smoothing: float | int = 0.0,
    scale: float | int = 1.0,
    *,
    max_chunk_logits: int | None = None,
) -> Float[Tensor, ""]:
    """The summed cross-entropy in nats, without the targets that are `IGNORE_INDEX`.

    With label smoothing e, a target has the probability 1 - e, and e is spread over all tokens (Szegedy et al. 2016,
    section 7). In float32, or wider where the logits are.

    Args:
        logits: one row for each target.
        targets: the ids of the tokens to predict.
        label_smoothing: e.
        scale: a factor of the sum.
        max_chunk_logits: the most logits that are in memory at once; by default `MAX_CHUNK_LOGITS` of the device.
    """
    if not isinstance(logits, LinearLogits):
        wide = logits.to(torch.promote_types(logits.dtype, torch.float32))
        summed = F.cross_entropy(
            wide, targets, reduction="sum", ignore_index=IGNORE_INDEX, label_smoothing=label_smoothing
        )
        return summed * scale
    hidden_states, weight, bias = logits
    is_predicted = targets != IGNORE_INDEX
    if not bool(is_predicted.all()):
        hidden_states, targets = hidden_states[is_predicted], targets[is_predicted]
    if not torch.is_grad_enabled():  # a Function cannot know, and would compute gradients that nobody needs
        hidden_states, weight = hidden_states.detach(), weight.detach()
        bias = None if bias is None else bias.detach()
    chunk_logits = max_chunk_logits or MAX_CHUNK_LOGITS[not hidden_states.is_cpu]
    loss: Tensor = _LinearCrossEntropy.apply(  # type: ignore[no-untyped-call]
        hidden_states, weight, bias, targets, label_smoothing, scale, chunk_logits
    )
    return loss


class _LinearCrossEntropy(torch.autograd.Function):
    @staticmethod
    def forward(
        ctx: Any,
        hidden_states: Tensor,
        weight: Tensor,
        bias: Tensor | None,
        targets: Tensor,
        label_smoothing: float,
        scale: float,
        max_chunk_logits: int,
    ) -> Tensor:
        device = hidden_states.device.type
        dtypes = (hidden_states.dtype, weight.dtype, None if bias is None else bias.dtype)
        if torch.is_autocast_enabled(device) and torch.float64 not in dtypes[:2]:
            dtype = torch.get_autocast_dtype(device)
            hidden_states, weight = hidden_states.to(dtype), weight.to(dtype)
            bias = None if bias is None else bias.to(dtype)
        needs_grad = ctx.needs_input_grad[:3]
        with torch.autocast(device, enabled=False):
            loss, grads = _loss_and_grads(
                hidden_states, weight, bias, targets, label_smoothing, scale, max_chunk_logits, needs_grad
            )
        grads = [None if grad is None else grad.to(dtype) for grad, dtype in zip(grads, dtypes, strict=True)]
        ctx.save_for_backward(*grads)
        return loss

    @staticmethod
    def backward(ctx: Any, grad_output: Tensor) -> tuple[Tensor | None, ...]:
        # Gradients are enabled in a backward pass only with create_graph=True.
        if torch.is_grad_enabled():
            raise NotImplementedError("create_graph=True: this loss has no second derivative")
        grads = ctx.saved_tensors
        if not bool(grad_output == 1):  # a product would be one more pass over the gradient of all weights
            grads = [None if grad is None else grad * grad_output.to(grad.dtype) for grad in grads]
        return (*grads, None, None, None, None)


def _loss_and_grads(
    hidden_states: Tensor,
    weight: Tensor,
    bias: Tensor | None,
    targets: Tensor,
    label_smoothing: float,
    scale: float,
    max_chunk_logits: int,
    needs_grad: tuple[bool, ...],
) -> tuple[Tensor, list[Tensor | None]]:
    """The loss, and the gradients that are needed, chunk by chunk of the rows."""
    wide = torch.promote_types(hidden_states.dtype, torch.float32)
    num_rows, vocab_size = len(hidden_states), len(weight)
    num_chunks = max(1, -(-num_rows * vocab_size // max_chunk_logits))
    chunk_size = max(1, -(-num_rows // num_chunks))
    # MKL writes rows slowly that do not begin on a cache line; there the product by oneDNN pays its new memory.
    by_onednn = vocab_size % FLOATS_PER_CACHE_LINE != 0 and is_supported(hidden_states[:chunk_size], weight)
    buffer = hidden_states.new_empty(0 if by_onednn else min(chunk_size, num_rows), vocab_size, dtype=wide)
    losses = torch.empty(num_rows, dtype=wide, device=hidden_states.device)
    hidden_grad = torch.empty_like(hidden_states) if needs_grad[0] else None
    weight_grad = torch.empty_like(weight, dtype=wide) if needs_grad[1] else None
    if weight_grad is not None and not num_rows:
        weight_grad.zero_()
    bias_grad = torch.zeros_like(weight[:, 0], dtype=wide) if needs_grad[2] else None
    for start in range(0, num_rows, chunk_size):
        rows = slice(start, start + chunk_size)
        chunk, target = hidden_states[rows], targets[rows]
        at_target = torch.arange(len(chunk), device=hidden_states.device), target
        logits = (
            multiply(chunk, weight, bias) if by_onednn else _multiply_into(buffer[: len(chunk)], chunk, weight, bias)
        )
        smoothing_loss = None
        if label_smoothing:
            # The mean loss of all tokens, less that of the target.
            smoothing_loss = label_smoothing * (logits[at_target] - logits.mean(-1))
        probabilities = _softmax(logits)
        loss = -probabilities[at_target].log()
        is_unsafe = ~(loss < MAX_SAFE_NATS)
        if bool(is_unsafe.any()):
            loss[is_unsafe] = _exact_loss(chunk[is_unsafe], weight, bias, target[is_unsafe])
        losses[rows] = loss if smoothing_loss is None else loss + smoothing_loss
        if not any(needs_grad):
            continue
        # The gradient of a logit is its probability less that of the target distribution.
        logits_grad = probabilities
        logits_grad[at_target] -= 1.0 - label_smoothing
        if label_smoothing:
            logits_grad -= label_smoothing / vocab_size
        narrow_grad = logits_grad.to(hidden_states.dtype)
        if hidden_grad is not None:
            torch.mm(narrow_grad, weight, out=hidden_grad[rows]).mul_(scale)
        if weight_grad is not None:
            _add_weight_grad(weight_grad, narrow_grad, chunk * scale, is_first=start == 0)
        if bias_grad is not None:
            bias_grad.add_(logits_grad.sum(0), alpha=scale)
        del logits, probabilities, logits_grad, narrow_grad  # the next chunk takes their memory
    return losses.sum() * scale, [hidden_grad, weight_grad, bias_grad]


def _multiply_into(buffer: Tensor, hidden_states: Tensor, weight: Tensor, bias: Tensor | None) -> Tensor:
    """The logits of some hidden states, written to a buffer."""
    if hidden_states.dtype != buffer.dtype:
        return buffer.copy_(F.linear(hidden_states, weight, bias))
    if bias is None:
        return torch.mm(hidden_states, weight.t(), out=buffer)
    return torch.addmm(bias, hidden_states, weight.t(), out=buffer)


def _add_weight_grad(total: Tensor, logits_grad: Tensor, hidden_states: Tensor, *, is_first: bool) -> None:
    """Add the weights' gradient of a chunk."""
    if total.dtype == logits_grad.dtype:  # beta=0 does not read the total
        torch.addmm(total, logits_grad.t(), hidden_states, beta=0 if is_first else 1, out=total)
    elif is_first:
        total.copy_(logits_grad.t() @ hidden_states)
    else:
        total += logits_grad.t() @ hidden_states


def _softmax(logits: Tensor) -> Tensor:
    """Probabilities, on the CPU in the memory of the logits: its kernel writes a number after the last read of it."""
    return torch.softmax(logits, -1, out=logits) if logits.is_cpu else torch.softmax(logits, -1)


def _exact_loss(hidden_states: Tensor, weight: Tensor, bias: Tensor | None, targets: Tensor) -> Tensor:
    """The loss of targets whose probability is close to 0, or is NaN."""
    logits = F.linear(hidden_states, weight, bias)
    wide = logits.to(torch.promote_types(logits.dtype, torch.float32))
    return F.cross_entropy(wide, targets, reduction="none")
