"""Decoding: from a model and a prompt to new tokens or text.

Files, each standing on those above it:

- `hypothesis`: a generated text with its score.
- `session`: a batch of prompts in a model, decoded token by token with a cache.
- `sampling`: the next token from logits.
- `streaming`: text from token ids: pieces that are final, stop strings, banned words.
- `constraints`: phrases that a text must, and must not, contain.
- `request`: the arguments of `generate`, validated and in one form.
- `loop`: the decoding loop of `Greedy` and `Sample`.
- `beam`: beam search.
- `generate`: `generate`, `stream` and `beam_search`.
- `translate`: many texts through an encoder-decoder.
"""

from regard.decoding import Beam, Greedy, Sample
from regard.generation.generate import beam_search, generate, stream
from regard.generation.hypothesis import Hypothesis
from regard.generation.request import max_new_tokens_left
from regard.generation.streaming import TextStream
from regard.generation.translate import translate

__all__ = [
    "Beam",
    "Greedy",
    "Hypothesis",
    "Sample",
    "TextStream",
    "beam_search",
    "generate",
    "max_new_tokens_left",
    "stream",
    "translate",
]
