"""`PretrainedModel`: a model of `regard.load` as the server sees it."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import torch
from torch import Tensor

from regard._shapes import Float
from regard.errors import InputError, errors_of_argument
from regard.generation.request import build_request
from regard.generation.session import DecodeSession
from regard.lens.text.contextual import contextual_vectors
from regard.lens.text.generation import display_token
from regard.lens.text.run import run
from regard.lens.watch import watch
from regard.pretrained import Pretrained
from regard.server.limits import Limits
from regard.server.live_model import LOGIT_METRICS, LiveModel, TextReading, TextWriter, WriterStep, head_weights

TEXTS = {
    "encoder": (
        "Write a poem about a man fishing on a river bank.",
        "Write a poem about a man applying for a loan in a bank.",
    ),
    "decoder": ("When Mary and John went to the store, John gave a drink to",),
    "encoder-decoder": ("The house is small, but the garden is wonderful.",),
}
"""What a page opens with, for each kind of model."""


class PretrainedModel(LiveModel):
    """A `Pretrained` and its tokenizer.

    Args:
        pretrained: from `regard.load`.
        limits: of the server.
        texts: that the page opens with; by default one or two of ours.
        name: of the model; by default its own.

    Raises:
        InputError: a model without a tokenizer, or one that reads images; a text that it cannot read.
    """

    def __init__(self, pretrained: Pretrained, limits: Limits, texts: Sequence[str], name: str | None) -> None:
        if pretrained.modality == "images":
            raise InputError(f"{pretrained.name} reads images, and the live page takes texts", "model")
        if pretrained.tokenizer is None:
            raise InputError(
                f"{pretrained.name} has no tokenizer, and the live page takes texts: "
                f"{pretrained.checkpoint.tokenizer_error}",
                "model",
            )
        self.pretrained, self.module = pretrained, pretrained.model
        self.name, self.kind = name or pretrained.name, pretrained.kind
        config = pretrained.config
        self.description = _description(pretrained)
        self.max_tokens = min([limits.tokens, *([config.max_positions] if config.max_positions else [])])
        self.texts = tuple(texts) or TEXTS[pretrained.kind]
        for n, text in enumerate(texts):
            with errors_of_argument(f"texts[{n}]"):
                self.require_tokens(len(pretrained.encode(text).ids))
        self.has_vector = pretrained.kind == "encoder" and pretrained.pooling is not None
        self.generates = pretrained.kind == "decoder"
        self.metrics = LOGIT_METRICS
        if pretrained.kind == "encoder":
            self.metrics = ("cosine", "similarity") if self.has_vector else ("cosine",)

    @torch.no_grad()
    def read(self, text: str, target: str | None = None) -> TextReading:
        """See `LiveModel`."""
        self.require_tokens(len(self.pretrained.encode(text).ids))
        text_run = run(text, self.pretrained, target=target)
        text_run.label_surface_forms()
        is_decoder = self.kind == "decoder"
        return TextReading(
            text_run.recording,
            text_run.output[0, -1].float() if is_decoder else None,
            self.text_vector(text_run.output) if self.has_vector else None,
            text_run.streams.target,
        )

    def context(self, texts: Sequence[str]) -> dict[str, Any] | None:
        """See `LiveModel`."""
        try:
            return contextual_vectors(texts, self.pretrained).to_dict()
        except InputError:  # the texts share no word
            return None

    def token(self, id_: int) -> str:
        """See `LiveModel`."""
        text = self.added_text(id_)
        return display_token(self.pretrained, id_) if text is None else text

    def decode(self, ids: Sequence[int]) -> str:
        """See `LiveModel`."""
        assert self.pretrained.tokenizer is not None
        return str(self.pretrained.tokenizer.decode(list(ids)))

    def effect_arguments(self, text: str) -> tuple[Any, Any, Any]:
        """See `LiveModel`."""
        return self.pretrained, text, None

    def pooling(self) -> str:
        """See `LiveModel`."""
        pooling = self.pretrained.pooling
        return "first" if pooling is not None and pooling.mode == "cls" else "mean"

    def text_vector(self, output: Any) -> Float[Tensor, " d_model"]:
        """See `LiveModel`."""
        assert self.pretrained.pooling is not None
        lengths = torch.tensor([output.shape[1]], device=output.device)
        return self.pretrained.pooling(output[0], lengths)[0].float()

    def writer(self, text: str, max_new_tokens: int, attention: int, head: int) -> TextWriter:
        """See `LiveModel`."""
        if not self.generates:
            raise InputError(f"{self.name} is of the kind {self.kind}; it is a decoder that continues a text", "text")
        count = len(self.pretrained.encode(text).ids)
        self.require_tokens(count)
        if count + max_new_tokens > self.max_tokens:
            raise InputError(
                f"{count:,} tokens and {max_new_tokens:,} more are above the {self.max_tokens:,} of this page: shorten "
                "the text, or ask for fewer",
                "max_new_tokens",
            )
        layers = self.pretrained.config.num_layers
        if attention >= layers:
            raise InputError(f"there is no attention {attention}: the model has {layers}, from 0", "show.attention")
        return PretrainedWriter(self.pretrained, text, max_new_tokens, attention, head)


class PretrainedWriter(TextWriter):
    """A decoder with its cache; see `LiveModel.writer`."""

    def __init__(self, pretrained: Pretrained, text: str, max_new_tokens: int, layer: int, head: int) -> None:
        self._request = build_request(pretrained, text, max_new_tokens)
        self._session: DecodeSession = self._request.start_session()
        self._pretrained, self._layer, self._head = pretrained, layer, head
        self.stop_ids = frozenset(self._request.special_tokens.eos)
        self.last_token = display_token(pretrained, self._request.prompts[0][-1])

    def read_prompt(self) -> WriterStep:
        """See `TextWriter`."""
        with watch(self._pretrained.model, layers=[self._layer]) as recording:
            logits = self._session.prefill()
        return WriterStep(logits[0].float(), head_weights(recording, 0, self._head))

    def read_token(self, token: int) -> WriterStep:
        """See `TextWriter`."""
        with watch(self._pretrained.model, layers=[self._layer]) as recording:
            logits = self._session.decode([token])
        return WriterStep(logits[0].float(), head_weights(recording, 0, self._head))

    def decode(self, ids: Sequence[int]) -> str:
        """See `TextWriter`."""
        return self._request.decode(0, list(ids))


def _description(pretrained: Pretrained) -> str:
    config = pretrained.config
    parameters = list(pretrained.model.parameters())
    layers = f"{config.num_layers} layers of {config.num_heads} heads"
    if config.decoder is not None:
        layers += f", decoder {config.decoder.num_layers} of {config.decoder.num_heads}"
    stored = pretrained.checkpoint.quantization
    dtype = str(parameters[0].dtype).removeprefix("torch.")
    return (
        f"{layers}, {sum(p.numel() for p in parameters):,} parameters, {dtype}"
        f"{f', dequantised from {stored}' if stored else ''}"
    )
