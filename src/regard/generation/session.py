"""`DecodeSession`: a batch of prompts in a model, decoded token by token with a cache."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import contextmanager

import torch
from torch import Tensor, nn
from torch.nn.utils.rnn import pad_sequence

from regard._shapes import Float, Int
from regard.attention import mask
from regard.attention.hooks import hook_state
from regard.attention.mask import Mask
from regard.transformer import Decoder, Encoder, EncoderDecoder, ImageEncoder
from regard.transformer.decode_step import FastDecodeStep, is_unmodified

MIN_PADDED_SHARE = 1.1
"""Prompts of an encoder are packed into one row where padding them would make this many times as many tokens."""


class DecodeSession:
    """One generation of a batch: the prefill, then one new token per row in each step.

    Args:
        model: a decoder reads the prompts; an encoder-decoder encodes them, and its decoder begins at the start token.
        prompts: token ids of any lengths; the pixels of each image where the model reads images.
        decoder_start: the start token of an encoder-decoder.
        batch_size: the number of rows: the prompts, times the beams of each.
        max_steps: the most decoding steps.
    """

    def __init__(
        self,
        model: Decoder | EncoderDecoder,
        prompts: Sequence[Sequence[int]] | Sequence[Tensor],
        decoder_start: int | None,
        *,
        batch_size: int,
        max_steps: int,
    ) -> None:
        self.model = model
        self.decoder = model.decoder if isinstance(model, EncoderDecoder) else model
        self.device = self.decoder.embeddings.token.weight.device
        self.caches = self.decoder.caches()
        self._lengths = torch.tensor([len(prompt) for prompt in prompts], device=self.device)
        self._ragged = len({len(prompt) for prompt in prompts}) > 1
        self._prompts = [torch.as_tensor(prompt, device=self.device) for prompt in prompts]
        self._decoder_start = decoder_start
        self._prompt_tokens = 0
        self._context_mask: Mask | None = None
        self._fast_step: FastDecodeStep | None = None
        self._size = batch_size, max_steps

    @torch.inference_mode()
    def prefill(self) -> Float[Tensor, "rows vocab_size"]:
        """Process the prompts; the logits of each row's first new token."""
        with _evaluation_mode(self.model):
            if FastDecodeStep.supports(self.decoder):
                batch_size, max_steps = self._size
                self._fast_step = FastDecodeStep(self.decoder, batch_size=batch_size, max_steps=max_steps)
            if isinstance(self.model, EncoderDecoder):
                self._prompt_tokens = 1
                self._context_mask = mask.padding(self._lengths) if self._ragged else None
                context = self._encode(self.model.encoder)
                start = torch.full((len(context), 1), self._decoder_start or 0, device=self.device)
                return self._logits(start, context=context)
            # Left padding, so that all prompts end at the same position.
            ids = pad_sequence(self._prompts, batch_first=True, padding_side="left")
            left_padding = ids.shape[1] - self._lengths if self._ragged else None
            self._prompt_tokens = ids.shape[1]
            return self._logits(ids, left_padding=left_padding)

    @torch.inference_mode()
    def decode(self, ids: Sequence[int]) -> Float[Tensor, "rows vocab_size"]:
        """Process one more token of each row; the logits of the next one."""
        new = torch.tensor(ids, device=self.device)[:, None]
        if self._fast_step is not None and not hook_state.hooks:  # who watches gets the calls of `attend`
            return self._fast_step(new, self.caches, self._context_mask).float()
        with _evaluation_mode(self.model):
            return self._logits(new)

    @torch.inference_mode()
    def reorder(self, rows: Sequence[int], prompts: Sequence[int] | None = None, *, common_prefix: int = 0) -> None:
        """Replace row i by row ``rows[i]``.

        Args:
            rows: for each new row, the row that it continues.
            prompts: the prompts that still have rows, where some have none any more.
            common_prefix: the number of new tokens that each row shares with the row it continues.
        """
        index = torch.tensor(rows, device=self.device)
        if prompts is None:
            self.caches.reorder(index, common_prefix=self._prompt_tokens + common_prefix)
            return
        remaining = torch.tensor(prompts, device=self.device)
        self.caches.reorder(index, remaining)
        self._lengths = self._lengths[remaining]
        if self._context_mask is not None:
            self._context_mask = mask.padding(self._lengths)

    def _encode(self, encoder: Encoder | ImageEncoder) -> Float[Tensor, "prompts tokens d_model"]:
        """The encoder's output, with any numbers behind the tokens of a shorter prompt."""
        lengths = self._lengths.tolist()
        num_padded = len(lengths) * max(lengths)
        packs = self.device.type == "cpu" and num_padded > MIN_PADDED_SHARE * sum(lengths)
        if not packs or isinstance(encoder, ImageEncoder) or hook_state.hooks or not is_unmodified(encoder):
            ids = pad_sequence(self._prompts, batch_first=True)  # images are of one size
            padded: Tensor = encoder(ids, mask=self._context_mask)
            return padded
        # As documents in one row, without padding; sorted, because neighbours of one length are computed together.
        order = sorted(range(len(lengths)), key=lengths.__getitem__)
        sizes = [lengths[n] for n in order]
        documents = torch.arange(len(sizes)).repeat_interleave(torch.tensor(sizes))
        positions = torch.cat([torch.arange(size) for size in sizes])
        ids = torch.cat([self._prompts[n] for n in order])
        context: Tensor = encoder(ids[None], mask=mask.documents(documents), positions=positions)
        rows = dict(zip(order, context[0].split_with_sizes(sizes), strict=True))
        return pad_sequence([rows[n] for n in range(len(rows))], batch_first=True)

    def _logits(
        self, ids: Int[Tensor, "rows tokens"], *, left_padding: Tensor | None = None, context: Tensor | None = None
    ) -> Tensor:
        logits: Tensor = self.decoder(
            ids,
            left_padding=left_padding,
            caches=self.caches,
            context=context,
            context_mask=self._context_mask,
            logits_to_keep=1,
        )
        return logits[:, -1].float()


@contextmanager
def _evaluation_mode(model: nn.Module) -> Iterator[None]:
    """Turn dropout off; modules in training mode return to it."""
    training = [module for module in model.modules() if module.training]
    if training:
        model.eval()
    try:
        yield
    finally:
        for module in training:
            module.training = True
