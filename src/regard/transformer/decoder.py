"""The decoder-only transformer; with cross-attention, the decoder of an encoder-decoder."""

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


class Decoder(Stack):
    """A stack of blocks in which a token may attend to those before it and itself (paper, section 3.1; GPT).

    ``decoder(ids)`` are the logits of the token after each token. To continue token by token, pass the caches on:

        caches = decoder.caches()
        logits = decoder(prompt, caches=caches)[:, -1]
        logits = decoder(next_token, caches=caches)[:, -1]

    Args:
        config: sizes and choices.
        d_context: width of the encoder's output that every block attends to; None for a decoder-only transformer.
        token: the encoder's token embedding, if both share it.
    """

    def __init__(self, config: Config, *, d_context: int | None = None, token: nn.Embedding | None = None) -> None:
        if config.decoder is not None or config.mlm_head:
            raise ValueError(
                "a Decoder has no second stack and no masked-language-model head: config.decoder belongs to an "
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
        """For each token, the logits of the next token.

        Args:
            ids: token ids ``(batch, tokens)`` or ``(tokens,)``.
            mask: who may attend to whom, in addition to the causal mask: `regard.mask.documents` for packed texts,
                `padding` on the right.
            positions: the position of each token; 0, 1, 2, ... by default. Each packed document starts at 0.
            left_padding: how many tokens at the left of each row are padding.
            caches: from `caches()`; keys and values of the previous tokens, to which the new ones are added.
            context: the encoder's output ``(batch, context_tokens, d_context)``. With caches that hold it, it may be
                left out, and several neighbouring rows of ids may share a row of the context.
            context_mask: which tokens of the context may be attended to.
            logits_to_keep: how many of the last tokens get logits; by default all.

        Raises:
            ValueError: more tokens than the model has positions; a missing context.
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
        """The scores of every token of the vocabulary as the next token (paper, section 3.4)."""
        weight = self.embeddings.token.weight if self.lm_head is None else self.lm_head.weight
        return self.logits_with(lambda x: F.linear(x, weight, self.lm_head_bias), hidden_states)

    def logits_with(
        self, output_projection: Callable[[Tensor], Tensor], hidden_states: Float[Tensor, "*batch d_model"]
    ) -> Float[Tensor, "*batch vocab_size"]:
        """`logits` with the caller's own output projection."""
        config = self.config
        logits = output_projection(hidden_states if config.logit_scale is None else hidden_states * config.logit_scale)
        if config.logit_softcap is not None:
            logits = config.logit_softcap * torch.tanh(logits / config.logit_softcap)
        return logits

    def caches(self, *, length: int | None = None) -> KVCaches:
        """Empty caches for one batch of texts.

        Args:
            length: the most tokens that will follow, if that is known: buffers are then made once.
        """
        return KVCaches(self.config, length=length)
