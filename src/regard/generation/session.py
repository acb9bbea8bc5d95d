"""Running a model token by token: prompts in, then one token for each row at a time, with what was read kept."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import contextmanager

import torch
from torch import Tensor, nn
from torch.nn.utils.rnn import pad_sequence

from regard._shapes import Float, Int
from regard.attention import mask
from regard.attention.mask import Mask
from regard.transformer import Decoder, EncoderDecoder
from regard.transformer.decode_step import FastDecodeStep

__all__ = ["Reader"]


class Reader:
    """A batch of texts on their way through a model.

    Args:
        model: a decoder reads prompts; an encoder-decoder reads sources, and its decoder begins at the start token.
        prompts: token ids, of any lengths; the pixels of each image where the model reads images.
        start: the start token of an encoder-decoder.
        rows: how many rows there will be: those of the prompts, times the beams of each.
        steps: how many steps there will be at the most.
    """

    def __init__(
        self,
        model: Decoder | EncoderDecoder,
        prompts: Sequence[Sequence[int]] | Sequence[Tensor],
        start: int | None,
        *,
        rows: int,
        steps: int,
    ) -> None:
        self.model = model
        self.decoder = model.decoder if isinstance(model, EncoderDecoder) else model
        self.device = self.decoder.embeddings.token.weight.device
        self.caches = self.decoder.caches()
        self._lengths = torch.tensor([len(prompt) for prompt in prompts], device=self.device)
        self._ragged = len({len(prompt) for prompt in prompts}) > 1
        self._rows = [torch.as_tensor(prompt, device=self.device) for prompt in prompts]
        self._start = start
        self._read = 0
        self._context_mask: Mask | None = None
        self._step: FastDecodeStep | None = None
        self._size = rows, steps

    @torch.inference_mode()
    def begin(self) -> Float[Tensor, "rows vocab_size"]:
        """Read the prompts; logits of the first new token of each."""
        with _evaluating(self.model):
            if FastDecodeStep.supports(self.decoder):
                rows, steps = self._size
                self._step = FastDecodeStep(self.decoder, rows=rows, steps=steps)
            if isinstance(self.model, EncoderDecoder):
                self._read = 1
                ids = pad_sequence(self._rows, batch_first=True)  # images are of one size
                self._context_mask = mask.padding(self._lengths) if self._ragged else None
                context = self.model.encoder(ids, mask=self._context_mask)
                start = torch.full((len(ids), 1), self._start or 0, device=self.device)
                return self._logits(start, context=context)
            # On the left, so that the texts end, and go on, at the same place.
            ids = pad_sequence(self._rows, batch_first=True, padding_side="left")
            left_padding = ids.shape[1] - self._lengths if self._ragged else None
            self._read = ids.shape[1]
            return self._logits(ids, left_padding=left_padding)

    @torch.inference_mode()
    def step(self, ids: Sequence[int]) -> Float[Tensor, "rows vocab_size"]:
        """Read one token more of each row; logits of the one after it."""
        new = torch.tensor(ids, device=self.device)[:, None]
        if self._step is not None:
            return self._step(new, self.caches, self._context_mask).float()
        with _evaluating(self.model):
            return self._logits(new)

    @torch.inference_mode()
    def reorder(self, rows: Sequence[int], prompts: Sequence[int] | None = None, *, alike: int = 0) -> None:
        """Make row i what row ``rows[i]`` was.

        Args:
            rows: for each row that follows, the row it continues.
            prompts: the prompts whose rows are still there, where that changes.
            alike: so many tokens after the prompt are the same in a row and in the one it continues.
        """
        at = torch.tensor(rows, device=self.device)
        if prompts is None:
            self.caches.reorder(at, common_prefix=self._read + alike)
            return
        kept = torch.tensor(prompts, device=self.device)
        self.caches.reorder(at, kept)
        self._lengths = self._lengths[kept]
        if self._context_mask is not None:
            self._context_mask = mask.padding(self._lengths)

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
def _evaluating(model: nn.Module) -> Iterator[None]:
    """Without dropout; a model in training goes back to it."""
    training = [module for module in model.modules() if module.training] if model.training else []
    if training:
        model.eval()
    try:
        yield
    finally:
        for module in training:
            module.training = True
