"""`Hypothesis`: a generated text with its score."""

from __future__ import annotations

from typing import NamedTuple


class Hypothesis(NamedTuple):
    """A finished text."""

    ids: list[int]
    """The new tokens, with the stop token if there is one."""
    score: float | None
    """Of a beam search: the sum of the log-probabilities over (number of tokens) ** length_penalty, which transformers
    calls ``sequences_scores``."""
    text: str | None = None
    """The new text, where the prompt was one."""
    stop_reason: str | None = None
    """``eos_token``, ``stop_string`` or ``max_new_tokens``."""
