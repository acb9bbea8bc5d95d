"""The decoder-only transformer; with a context to attend to, the decoder of an encoder-decoder."""

from __future__ import annotations

from collections.abc import Callable

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from regard._shapes import Float, Int
from regard.attention.mask import Mask
from regard.transformer.config import Config
from regard.transformer.kv_caches import KVCaches
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
        if config.decoder is not None or config.mlm_head:
            raise ValueError(
                "a Decoder has no second stack and guesses no masked tokens: config.decoder belongs to an "
                "EncoderDecoder, config.mlm_head to an Encoder"
            )
        if config.patches is not None:
            raise ValueError(
                "a Decoder reads texts: config.patches belongs to an encoder, and its decoder's sizes to config.decoder"
            )
        super().__init__(config, causal=True, d_context=d_context, token=token)
        self.d_context = d_context
        self.lm_head = None if config.tie_word_embeddings else nn.Linear(config.d_model, config.vocab_size, bias=False)
        self.lm_head_bias = nn.Parameter(torch.zeros(config.vocab_size)) if config.lm_head_bias else None

    def forward(
        self,
        ids: Int[Tensor, "*batch tokens"],
        mask: Mask | None = None,
        *,
        positions: Int[Tensor, "*positions_batch tokens"] | None = None,
        left_padding: Int[Tensor, " batch"] | None = None,
        caches: KVCaches | None = None,
        context: Float[Tensor, "*sources context_tokens d_context"] | None = None,
        context_mask: Mask | None = None,
        logits_to_keep: int | None = None,
    ) -> Float[Tensor, "*batch predicted vocab_size"]:
        """For each token, the logits of the one that follows it.

        Args:
            ids: token ids ``(batch, tokens)`` or ``(tokens,)``.
            mask: who may attend to whom, beside what a decoder hides anyway: `regard.mask.documents` for packed texts,
                `padding` on the right.
            positions: where each token stands; 0, 1, 2, ... by default. Packed documents begin anew at 0, each.
            left_padding: how many tokens at the left of each row are padding.
            caches: from `caches()`; keys and values of the tokens before, which the new ones join.
            context: an encoder's output ``(batch, context_tokens, d_context)``. With filled caches it may be left out,
                and several rows of ids may share a source, those of one source side by side.
            context_mask: which of its tokens may be attended to.
            logits_to_keep: how many of the last tokens get logits; by default all.

        Raises:
            ValueError: more tokens than the model has positions; no context where there must be one.
            IndexError: an id outside the vocabulary.
        """
        if (context is not None or context_mask is not None) and self.d_context is None:
            raise ValueError("a context was given, but this decoder has no cross-attention (d_context=None)")
        if self.d_context is not None and context is None and (caches is None or not caches.has_context):
            raise ValueError(f"this decoder attends to a context of width d_context={self.d_context}; none was given")
        if logits_to_keep is not None and logits_to_keep < 1:
            raise ValueError(f"logits_to_keep={logits_to_keep}: logits of at least 1 token")
        hidden_states = self.hidden_states(
            ids,
            None,
            mask,
            positions=positions,
            left_padding=left_padding,
            caches=caches,
            context=context,
            context_mask=context_mask,
        )
        for x in hidden_states:
            final = x
        return self.logits(final if logits_to_keep is None else final[..., -logits_to_keep:, :])

    def logits(
        self, hidden_states: Float[Tensor, "*batch tokens d_model"]
    ) -> Float[Tensor, "*batch tokens vocab_size"]:
        """What follows each token, as scores for every token of the vocabulary (paper, section 3.4)."""
        weight = self.embeddings.token.weight if self.lm_head is None else self.lm_head.weight
        return self.logits_with(lambda x: F.linear(x, weight, self.lm_head_bias), hidden_states)

    def logits_with(
        self, product: Callable[[Tensor], Tensor], hidden_states: Float[Tensor, "*batch d_model"]
    ) -> Float[Tensor, "*batch vocab_size"]:
        """`logits`, where the caller multiplies by the output's weights in a way of its own."""
        config = self.config
        logits = product(hidden_states if config.logit_scale is None else hidden_states * config.logit_scale)
        if config.logit_softcap is not None:
            logits = config.logit_softcap * torch.tanh(logits / config.logit_softcap)
        return logits

    def caches(self, *, length: int | None = None) -> KVCaches:
        """Empty caches for one batch of texts.

        Args:
            length: the most tokens there will be, if that is known: buffers are then made once.
        """
        return KVCaches(self.config, length=length)
