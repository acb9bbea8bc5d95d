"""The decoder-only transformer; with a context to attend to, the decoder of an encoder-decoder."""

from __future__ import annotations

from collections.abc import Callable

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from regard._shapes import Float, Int
from regard.attention.mask import Mask
from regard.transformer.caches import Caches
from regard.transformer.config import Config
from regard.transformer.stack import Stack

__all__ = ["Decoder"]


class Decoder(Stack):
    """A stack of blocks in which a token may attend to those before it and itself (paper, section 3.1; GPT).

    Each token's vector after the last block says which token comes next: ``decoder(ids)`` are the logits. To go on
    token by token, hand over the caches of the call before:

        caches = decoder.caches()
        logits = decoder(prompt, caches=caches)[:, -1]
        logits = decoder(next_token, caches=caches)[:, -1]

    Args:
        config: sizes and choices.
        d_context: width of an encoder's output that every block attends to; None for a decoder-only transformer.
        token: the encoder's token vectors, where both share them.
    """

    def __init__(self, config: Config, *, d_context: int | None = None, token: nn.Embedding | None = None) -> None:
        if config.decoder is not None or config.masked_head:
            raise ValueError(
                "a Decoder has no second stack and guesses no masked tokens: config.decoder belongs to an "
                "EncoderDecoder, config.masked_head to an Encoder"
            )
        if config.patches is not None:
            raise ValueError(
                "a Decoder reads texts: config.patches belongs to an encoder, and its decoder's sizes to config.decoder"
            )
        super().__init__(config, causal=True, d_context=d_context, token=token)
        self.d_context = d_context
        self.head = None if config.tied else nn.Linear(config.d_model, config.vocab_size, bias=False)
        self.logit_bias = nn.Parameter(torch.zeros(config.vocab_size)) if config.logit_bias else None

    def forward(
        self,
        ids: Int[Tensor, "*batch tokens"],
        mask: Mask | None = None,
        *,
        positions: Int[Tensor, "*positions_batch tokens"] | None = None,
        pads: Int[Tensor, " batch"] | None = None,
        caches: Caches | None = None,
        context: Float[Tensor, "*sources context_tokens d_context"] | None = None,
        context_mask: Mask | None = None,
        last: int | None = None,
    ) -> Float[Tensor, "*batch predicted vocab_size"]:
        """For each token, the logits of the one that follows it.

        Args:
            ids: token ids ``(batch, tokens)`` or ``(tokens,)``.
            mask: who may attend to whom, beside what a decoder hides anyway: `regard.mask.documents` for packed texts,
                `padding` on the right.
            positions: where each token stands; 0, 1, 2, ... by default. Packed documents begin anew at 0, each.
            pads: how many tokens at the left of each row are padding.
            caches: from `caches()`; keys and values of the tokens before, which the new ones join.
            context: an encoder's output ``(batch, context_tokens, d_context)``. With filled caches it may be left out,
                and several rows of ids may share a source, those of one source side by side.
            context_mask: which of its tokens may be attended to.
            last: logits of so many last tokens only; of all by default.

        Raises:
            ValueError: more tokens than the model has positions; no context where there must be one.
            IndexError: an id outside the vocabulary.
        """
        if (context is not None or context_mask is not None) and self.d_context is None:
            raise ValueError("a context was given, but this decoder has no cross-attention (d_context=None)")
        if self.d_context is not None and context is None and (caches is None or not caches.filled):
            raise ValueError(f"this decoder attends to a context of width d_context={self.d_context}; none was given")
        if last is not None and last < 1:
            raise ValueError(f"last={last}: logits of at least 1 token")
        states = self.states(
            ids,
            None,
            mask,
            positions=positions,
            pads=pads,
            caches=caches,
            context=context,
            context_mask=context_mask,
        )
        for x in states:
            final = x
        return self.logits(final if last is None else final[..., -last:, :])

    def logits(self, states: Float[Tensor, "*batch tokens d_model"]) -> Float[Tensor, "*batch tokens vocab_size"]:
        """What follows each token, as scores for every token of the vocabulary (paper, section 3.4)."""
        weight = self.embeddings.token.weight if self.head is None else self.head.weight
        return self.logits_by(lambda x: F.linear(x, weight, self.logit_bias), states)

    def logits_by(
        self, product: Callable[[Tensor], Tensor], states: Float[Tensor, "*batch d_model"]
    ) -> Float[Tensor, "*batch vocab_size"]:
        """`logits`, where the caller multiplies by the output's weights in a way of its own."""
        config = self.config
        logits = product(states if config.logit_scale is None else states * config.logit_scale)
        if config.logit_softcap is not None:
            logits = config.logit_softcap * torch.tanh(logits / config.logit_softcap)
        return logits

    def caches(self, *, length: int | None = None) -> Caches:
        """Empty caches for one batch of texts.

        Args:
            length: the most tokens there will be, if that is known: buffers are then made once.
        """
        return Caches(self.config, length=length)
