"""Two sequences of which one has a name that says nothing, each with a mask of its tokens by its name."""

from __future__ import annotations

import pytest
from target_calls import axes, first
from torch import Tensor, nn

from regard.check.properties.analyze import analyze

HEADS = 3


class ReadsWords(nn.Module):
    """The masks of both make one of pairs, which stands once for each head."""

    def __init__(self, d_model: int = 24) -> None:
        super().__init__()
        self.q, self.kv, self.out = nn.Linear(d_model, d_model), nn.Linear(d_model, 2 * d_model), nn.Linear(d_model, 24)

    def forward(self, video: Tensor, text: Tensor, video_mask: Tensor, text_mask: Tensor) -> Tensor:
        q, k, v = (
            each.unflatten(-1, (HEADS, -1)).transpose(1, 2) for each in (self.q(video), *self.kv(text).chunk(2, -1))
        )
        pairs = video_mask[:, :, None].float() @ text_mask[:, None, :].float()
        hidden = self.repeated(pairs == 0).unflatten(0, (len(video), HEADS))
        scores = (q @ k.mT / q.shape[-1] ** 0.5).masked_fill(hidden, -1e9)
        return self.out((scores.softmax(-1) @ v).transpose(1, 2).flatten(2))

    def repeated(self, mask: Tensor) -> Tensor:
        return mask.repeat_interleave(HEADS, 0)


class Tiles(ReadsWords):
    """Each head has the mask of another sample."""

    def repeated(self, mask: Tensor) -> Tensor:
        return mask.repeat(HEADS, 1, 1)


def test_the_masks_tell_that_both_are_sequences() -> None:
    call = first(ReadsWords)
    assert axes(call) == [("x", 0, (1,), None), ("context", 0, (1,), None)]
    assert call.arguments["text_mask"].shape == call.arguments["text"].shape[:2]


@pytest.mark.parametrize(("kind", "is_right"), [(ReadsWords, True), (Tiles, False)])
def test_a_mask_of_pairs_has_an_order_of_samples_and_heads(kind: type, is_right: bool) -> None:
    assert ({each.property for each in analyze(first(kind), masks=True).violations} == set()) is is_right
