"""`PartEmbedder`: the texts of one part of a job to their vectors."""

from __future__ import annotations

import hashlib
from collections.abc import Callable, Sequence
from dataclasses import replace

import torch

from regard.embedding.readers import TextSource
from regard.embedding.writers import VectorPart
from regard.errors import InputError
from regard.pretrained import Pretrained
from regard.pretrained.embedder import TextError
from regard.pretrained.pooling import Pooling


class PartEmbedder:
    """An encoder with the settings of a job.

    Args:
        pretrained: the encoder.
        source: of the texts, for messages.
        pooling: how the vectors of a text's tokens become one vector: ``mean``, ``cls``, None for the model's own, or
            ``none`` for a vector of each token.
        truncate: whether texts that are too long are truncated.

    Raises:
        InputError: a model that is no encoder, or whose own pooling is not known.
    """

    def __init__(self, pretrained: Pretrained, source: TextSource, pooling: str | None, *, truncate: bool) -> None:
        self._embedder, self._source, self._truncate = pretrained.embedder(), source, truncate
        self._pooling: Pooling | None = None
        if pooling != "none":
            own = self._embedder.pooling()
            self._pooling = own if pooling is None else replace(own, mode=pooling)  # type: ignore[arg-type]
        self.max_tokens = self._embedder.max_tokens
        """The most tokens of a text."""
        mode = "none" if self._pooling is None else self._pooling.mode
        normalized = self._pooling is not None and self._pooling.normalize
        self.settings = {
            "weights": _fingerprint(pretrained),
            "pooling": f"{mode}{', length 1' if normalized else ''}",
            "max_tokens": str(self.max_tokens),
        }
        """What the vectors of a text depend on."""

    def embed(self, first: int, texts: Sequence[str], report: Callable[[int], None]) -> tuple[VectorPart, int]:
        """The vectors of some texts, and the number of truncated ones. Equal texts are embedded once.

        Args:
            first: the index of the first text in the input.
            texts: of the part.
            report: is called with the index of the next text, as often as some are done.

        Raises:
            InputError: a text that the model cannot read.
        """
        pooling, embedder = self._pooling, self._embedder
        unique = {text: n for n, text in enumerate(dict.fromkeys(texts))}
        order = [unique[text] for text in texts]
        try:
            encodings, truncated = embedder.tokenize(list(unique), truncate=self._truncate)
        except TextError as error:
            raise InputError(f"{self._source.location(first + order.index(error.index))}: {error}") from error
        num_truncated = sum(map(order.count, truncated))
        vectors = torch.empty(len(unique), embedder.model.config.d_model)
        token_vectors: list[torch.Tensor] = [vectors] * len(unique)
        num_done = 0
        for indices, hidden_states, lengths in embedder.hidden_states(encodings):
            if pooling is None:
                split = torch.split(hidden_states.float().cpu(), lengths.tolist())
                for index, states in zip(indices, split, strict=True):
                    token_vectors[index] = states
            else:
                vectors[indices] = pooling(hidden_states, lengths).float().cpu()
            num_done += len(indices)
            report(first + num_done)
        if pooling is not None:
            return VectorPart(first, texts, vectors[order].numpy()), num_truncated
        joined = torch.cat([token_vectors[n] for n in order]) if order else vectors
        ids, tokens = [encodings[n].ids for n in order], [encodings[n].tokens for n in order]
        return VectorPart(first, texts, joined.numpy(), ids, tokens), num_truncated


def _fingerprint(pretrained: Pretrained) -> str:
    """A hash of a model's weights, its config and its tokenizer."""
    digest = hashlib.sha256(repr(pretrained.config).encode())
    if pretrained.tokenizer is not None:
        digest.update(str(pretrained.tokenizer.to_str()).encode())  # type: ignore[union-attr]
    for name, tensor in pretrained.model.state_dict().items():
        digest.update(name.encode())
        digest.update(tensor.detach().cpu().contiguous().view(torch.uint8).numpy().data)
    return digest.hexdigest()[:16]
