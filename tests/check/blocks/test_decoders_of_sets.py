"""Decoders of vectors that ask a context: by their name alone they are not causal, as those of a set of queries."""

from __future__ import annotations

import pytest
from torch import Tensor, nn

from regard.check.blocks.judgement import judge_block
from regard.check.search.budget import SearchBudget
from regard.check.search.stage import Diagnosis, Stage
from regard.check.search.subject import Subject, subject_of


class DecoderOfASet(nn.Module):
    """Queries see each other and a picture."""

    def __init__(self, d_model: int, num_heads: int) -> None:
        super().__init__()
        self.attn, self.cross = (nn.MultiheadAttention(d_model, num_heads, batch_first=True) for _ in range(2))
        self.norm = nn.LayerNorm(d_model)

    def forward(self, x: Tensor, memory: Tensor) -> Tensor:
        x = self.norm(x + self.attn(x, x, x)[0])
        return self.norm(x + self.cross(x, memory, memory)[0])


class DecoderOfATranslation(DecoderOfASet):
    """The words of a translation, written one after the other, see the text."""


class CausalDecoder(DecoderOfASet):
    """Sees the text."""


class DecoderAlone(DecoderOfASet):
    """Without anything to ask."""

    def forward(self, x: Tensor) -> Tensor:  # type: ignore[override]
        return self.norm(x + self.attn(x, x, x)[0])


def around(kind: type[nn.Module]) -> list[str]:
    """The mistakes that are found around the attentions, which stay unjudged."""

    def unjudged(subject: Subject, budget: SearchBudget) -> Diagnosis:
        return Diagnosis(subject, stages=[Stage("none", "", [])])

    found = judge_block(subject_of(kind, {}), budget=SearchBudget(), judge=unjudged)
    return [mistake.id for mistake, _ in found.behaviour]


@pytest.mark.parametrize(
    ("kind", "causes"),
    [
        (DecoderOfASet, []),
        (DecoderOfATranslation, ["future-leak"]),
        (CausalDecoder, ["future-leak"]),
        (DecoderAlone, ["future-leak"]),
    ],
)
def test_a_decoder_of_vectors_may_be_one_of_a_set_unless_something_tells_of_texts(
    kind: type[nn.Module], causes: list[str]
) -> None:
    assert around(kind) == causes
