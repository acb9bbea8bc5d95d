"""Methods that write the likeliest tokens behind a source, which the decoder attends to."""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor, nn

from property_cases import WIDTH, Case, drawn
from property_cases.token_id_cases import VOCAB, ids_call
from regard.check.target import Invocation
from regard.check.target.preparation import prepare

PLACES = drawn(24, WIDTH, seed=46)


class Translates(nn.Module):
    """Each step reads the whole text so far."""

    def __init__(self) -> None:
        super().__init__()
        self.words, self.head = nn.Embedding(VOCAB, WIDTH), nn.Linear(WIDTH, VOCAB)
        self.own, self.across = (nn.Linear(WIDTH, 3 * WIDTH) for _ in range(2))

    def read(self, part: nn.Linear, x: Tensor, keys: Tensor, later: Tensor | None = None) -> Tensor:
        q, (_, k, v) = part(x)[..., :WIDTH], part(keys).chunk(3, -1)
        scores = q @ k.mT / WIDTH**0.5
        return x + (scores if later is None else scores.masked_fill(later, -torch.inf)).softmax(-1) @ v

    def decode(
        self, text: Tensor, memory: Tensor, start: int = 0, before: Tensor | None = None
    ) -> tuple[Tensor, Tensor]:
        x = self.words(text) + PLACES[start : start + text.shape[1]]
        keys = x if before is None else torch.cat([before, x], 1)
        later = torch.ones(x.shape[1], keys.shape[1]).triu(1 + keys.shape[1] - x.shape[1]) == 1
        return self.head(self.read(self.across, self.read(self.own, x, keys, later), memory)), keys

    def forward(self, source: Tensor, target: Tensor) -> Tensor:
        return self.decode(target, self.words(source))[0]

    def greedy(self, source: Tensor, steps: int) -> Tensor:
        text, memory, kept = source.new_ones(len(source), 1), self.words(source), None
        for _ in range(steps):
            logits, kept = self.step(text, memory, kept)
            text = torch.cat([text, logits[:, -1:].argmax(-1)], 1)
        return text

    def step(self, text: Tensor, memory: Tensor, kept: Tensor | None) -> tuple[Tensor, Tensor | None]:
        return self.decode(text, memory)


class KeepsTheText(Translates):
    """Each step reads the newest token, and what was kept of the others."""

    def step(self, text: Tensor, memory: Tensor, kept: Tensor | None) -> tuple[Tensor, Tensor | None]:
        return self.decode(text[:, -1:], memory, text.shape[1] - 1, kept)


class ForgetsTheText(Translates):
    def step(self, text: Tensor, memory: Tensor, kept: Tensor | None) -> tuple[Tensor, Tensor | None]:
        return self.decode(text[:, -1:], memory)


class StandsAtTheFirst(Translates):
    def step(self, text: Tensor, memory: Tensor, kept: Tensor | None) -> tuple[Tensor, Tensor | None]:
        return self.decode(text[:, -1:], memory, 0, kept)


class FillsWhatHasEnded(Translates):
    """Behind the id 2 a text is filled with the id 0."""

    def translate(self, source: Tensor, steps: int) -> Tensor:
        text, is_done = source.new_ones(len(source), 1), torch.zeros(len(source), dtype=torch.bool)
        for _ in range(steps):
            new = self.filled(self(source, text)[:, -1].argmax(-1), is_done)
            is_done = is_done | (new == 2)
            text = torch.cat([text, new[:, None]], 1)
        return text

    def filled(self, new: Tensor, is_done: Tensor) -> Tensor:
        return new.masked_fill(is_done, 0)


class FillsWhatGoesOn(FillsWhatHasEnded):
    def filled(self, new: Tensor, is_done: Tensor) -> Tensor:
        return new * is_done


class TheLeastLikely(FillsWhatHasEnded):
    def translate(self, source: Tensor, steps: int) -> Tensor:
        text = source.new_ones(len(source), 1)
        for _ in range(steps):
            text = torch.cat([text, self(source, text)[:, -1].argmin(-1, keepdim=True)], 1)
        return text


def of_source_and_target(kind: Any) -> Invocation:
    """A call of a module of two sequences of ids."""
    module = kind()
    prepare(module, 1)
    return ids_call(module, 5, 4)


CASES = [
    Case("cache-equals-whole", ForgetsTheText, Translates, of_source_and_target, has_line=False, attentions=2),
    Case("cache-equals-whole", StandsAtTheFirst, KeepsTheText, of_source_and_target, has_line=False, attentions=2),
    *(
        Case("written-from-its-logits", wrong, FillsWhatHasEnded, of_source_and_target, has_line=False, attentions=2)
        for wrong in (FillsWhatGoesOn, TheLeastLikely)
    ),
]
