"""`UserModule`: a module of a user and its tokenizer, read by `regard.watch`."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import torch
from torch import Tensor, nn

from regard._shapes import Float
from regard.errors import InputError
from regard.lens.effects.metrics import read_tensor
from regard.lens.effects.subject import tokenizer_functions
from regard.lens.watch import watch
from regard.server.limits import Limits
from regard.server.live_model import LOGIT_METRICS, LiveModel, TextReading, TextWriter, WriterStep, head_weights

TEXT = "When Mary and John went to the store, John gave a drink to"
"""What a page opens with."""


class UserModule(LiveModel):
    """A module that is called as ``module(ids)``, ids of (1, tokens), and a tokenizer of transformers or tokenizers.

    It is run once on the first text, to see what it gives: logits or vectors, and whether a token changes what comes
    before it.

    Args:
        module: in evaluation mode.
        tokenizer: text to ids.
        limits: of the server.
        texts: that the page opens with; by default one of ours.
        name: by default that of its class.

    Raises:
        InputError: no tokenizer; a module in training mode; a text that it cannot read.
        TypeError: no tokenizer of these libraries; an output without a tensor.
        ValueError: no attention was seen.
    """

    def __init__(
        self, module: nn.Module, tokenizer: Any, limits: Limits, texts: Sequence[str], name: str | None
    ) -> None:
        if tokenizer is None:
            raise InputError(
                "a torch.nn.Module needs its tokenizer, of transformers or of tokenizers: live(model, tokenizer)",
                "tokenizer",
            )
        _, decode = tokenizer_functions(tokenizer)
        assert decode is not None
        self.module, self.tokenizer, self._decode = module, tokenizer, decode
        self.name, self.kind = name or type(module).__name__, "module"
        self.description = f"{type(module).__name__}, {sum(p.numel() for p in module.parameters()):,} parameters"
        positions = getattr(getattr(module, "config", None), "max_position_embeddings", None)
        self.max_tokens = min([limits.tokens, *([positions] if isinstance(positions, int) else [])])
        self.texts = tuple(texts) or (TEXT,)
        self.has_logits = False
        ids, *_ = [self.encode(text) for text in self.texts]
        with watch(module):
            output = self._run(ids)
        self.has_logits = self._has_logits(output)
        self.generates = self.has_logits and self._is_causal(ids, output)
        self.metrics = LOGIT_METRICS if self.has_logits else ("cosine",)

    def encode(self, text: str) -> list[int]:
        """The ids of a text.

        Raises:
            InputError: a module in training mode; a text without tokens, or of too many.
        """
        if self.module.training:
            raise InputError(f"{self.name} is in training mode, where dropout changes every answer: call .eval() first")
        try:
            encoding = self.tokenizer.encode(text)
        except Exception as error:  # tokenizers raises bare Exception
            raise InputError(f"the tokenizer cannot read this text: {error}") from error
        ids = list(getattr(encoding, "ids", encoding))
        if not ids:
            raise InputError("the text has no tokens: write a sentence")
        self.require_tokens(len(ids))
        return ids

    def read(self, text: str, target: str | None = None) -> TextReading:
        """See `LiveModel`."""
        ids = self.encode(text)
        with watch(self.module) as recording:
            output = self._run(ids)
        self._label(recording, ids)
        logits = read_tensor(output, "logits")[0, -1].float() if self.generates else None
        return TextReading(recording, logits, None)

    def context(self, texts: Sequence[str]) -> dict[str, Any] | None:
        """See `LiveModel`."""
        return None

    def token(self, id_: int) -> str:
        """See `LiveModel`."""
        return self._decode(id_)

    def effect_arguments(self, text: str) -> tuple[Any, Any, Any]:
        """See `LiveModel`."""
        return self.module, self._tensor(self.encode(text)), self.tokenizer

    def pooling(self) -> str:
        """See `LiveModel`."""
        return "mean"

    def text_vector(self, output: Any) -> Float[Tensor, " d_model"]:
        """See `LiveModel`."""
        raise InputError(f"how {self.name} makes one vector of a text is not known", "metric")

    def writer(self, text: str, max_new_tokens: int, attention: int, head: int) -> TextWriter:
        """See `LiveModel`."""
        if not self.generates:
            raise InputError(f"{self.name} predicts no next token", "text")
        ids = self.encode(text)
        if len(ids) + max_new_tokens > self.max_tokens:
            raise InputError(
                f"{len(ids):,} tokens and {max_new_tokens:,} more are above the {self.max_tokens:,} of this page: "
                "shorten the text, or ask for fewer",
                "max_new_tokens",
            )
        return ModuleWriter(self, ids, attention, head)

    def step(self, ids: list[int], attention: int, head: int) -> WriterStep:
        """Read a text of ids, for `ModuleWriter`."""
        with watch(self.module) as recording:
            output = self._run(ids)
        logits = read_tensor(output, "logits")[0, -1].float()
        return WriterStep(logits, head_weights(recording, attention, head))

    def decode(self, ids: Sequence[int]) -> str:
        """See `LiveModel`."""
        return str(self.tokenizer.decode(list(ids), skip_special_tokens=True))

    def _label(self, recording: Any, ids: list[int]) -> None:
        """Name the tokens of every attention over them."""
        tokens = [self._decode(id_) for id_ in ids]
        for path in recording:
            entry = recording.entry(path)
            if tuple(entry.shape[2:]) == (len(ids), len(ids)):
                entry.label((tokens, tokens))

    def _tensor(self, ids: list[int]) -> Tensor:
        parameter = next(self.module.parameters(), None)
        return torch.tensor([ids], device=None if parameter is None else parameter.device)

    @torch.no_grad()
    def _run(self, ids: list[int]) -> Any:
        return self.module(self._tensor(ids))

    def _has_logits(self, output: Any) -> bool:
        """Whether the output has a number for each token of the vocabulary."""
        if isinstance(getattr(output, "logits", None), Tensor):
            return True
        size = getattr(self.tokenizer, "vocab_size", None)
        size = self.tokenizer.get_vocab_size() if hasattr(self.tokenizer, "get_vocab_size") else size
        tensor = read_tensor(output, "logits")
        return tensor.ndim == 3 and size is not None and tensor.shape[-1] >= size

    def _is_causal(self, ids: list[int], output: Any) -> bool:
        """Whether another last token leaves the logits at the first position as they are."""
        if len(ids) < 2:
            return True
        other = [*ids[:-1], ids[0] if ids[-1] != ids[0] else ids[0] + (1 if ids[0] == 0 else -1)]
        before, after = (read_tensor(each, "logits")[0, 0].float() for each in (output, self._run(other)))
        return bool(torch.allclose(before, after, rtol=1e-4, atol=1e-4))


class ModuleWriter(TextWriter):
    """Reads the whole text again for each token: a module of a user has a cache of its own, or none."""

    def __init__(self, model: UserModule, ids: list[int], attention: int, head: int) -> None:
        self._model, self._ids, self._place, self._prompt = model, list(ids), (attention, head), list(ids)
        stop = getattr(model.tokenizer, "eos_token_id", None)
        self.stop_ids = frozenset([stop] if isinstance(stop, int) else [])
        self.last_token = model.token(ids[-1])

    def read_prompt(self) -> WriterStep:
        """See `TextWriter`."""
        return self._model.step(self._ids, *self._place)

    def read_token(self, token: int) -> WriterStep:
        """See `TextWriter`."""
        self._ids.append(token)
        return self._model.step(self._ids, *self._place)

    def decode(self, ids: Sequence[int]) -> str:
        """See `TextWriter`."""
        before = self._model.decode(self._prompt)
        return self._model.decode([*self._prompt, *ids])[len(before) :]
