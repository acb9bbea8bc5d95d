"""Record the attention of a decoder while it continues a text."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from regard.errors import InputError
from regard.generation import Hypothesis, generate
from regard.lens.recording.recording import Recording
from regard.lens.text.run import require_layers
from regard.lens.text.words import Words
from regard.lens.watch import watch
from regard.pretrained import Pretrained
from regard.transformer import Decoder

REPLACEMENT = "\N{REPLACEMENT CHARACTER}"
"""What a tokenizer decodes a part of a character to."""

SPELLED_WHITESPACE = str.maketrans({"Ġ": " ", "Ċ": "\n", "ĉ": "\t", "▁": " "})
"""How tokenizers of bytes and SentencePiece spell whitespace."""


@dataclass(frozen=True)
class RecordedGeneration:
    """A text that a decoder continued, and its attention meanwhile."""

    text: str
    """The text that was given and what the model wrote after it."""
    recording: Recording
    """Labelled with the tokens. The last token that was written is none of them: the model never read it."""


def record_generation(
    text: str, pretrained: Pretrained, max_new_tokens: int, layers: Sequence[int] | None = None
) -> RecordedGeneration:
    """Continue a text by greedy decoding under `regard.watch`.

    Args:
        text: what the model reads first.
        pretrained: a decoder and its tokenizer.
        max_new_tokens: the most tokens that it writes.
        layers: the layers to record; all by default.

    Raises:
        InputError: a model that is no decoder, an empty or too long text, a number of tokens below 1 or beyond the
            positions of the model, no such layer.
    """
    if not isinstance(pretrained.model, Decoder):
        raise InputError(
            f"{pretrained.name} is of the kind {pretrained.kind}; it is a decoder that continues a text: leave the "
            "number of new tokens out",
            "max_new_tokens",
        )
    require_layers(layers, pretrained.config.num_layers)
    words = Words.of(text, pretrained)
    with watch(pretrained.model, layers=layers) as recording:
        written = generate(pretrained, text, max_new_tokens=max_new_tokens, return_hypotheses=True)
    assert isinstance(written, Hypothesis)  # one text, greedily
    tokens = [*words.display_tokens(), *(display_token(pretrained, id_) for id_ in written.ids[:-1])]
    recording.label(tokens)
    return RecordedGeneration(text + (written.text or ""), recording)


def display_token(pretrained: Pretrained, id_: int) -> str:
    """The characters of a token; where it is a part of one, as the tokenizer spells it, but for whitespace."""
    tokenizer = pretrained.tokenizer
    assert tokenizer is not None, "the text was tokenized"
    text: str = tokenizer.decode([id_], skip_special_tokens=False)
    if text and REPLACEMENT not in text:
        return text
    spelling: str = tokenizer.id_to_token(id_) or str(id_)
    return spelling.translate(SPELLED_WHITESPACE)
