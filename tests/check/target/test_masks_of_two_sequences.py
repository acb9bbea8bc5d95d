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


class Translates(nn.Module):
    """A layer of a decoder; the mask of the translation hides its later tokens."""

    def __init__(self, d_model: int = 24) -> None:
        super().__init__()
        self.own, self.read = (nn.Linear(d_model, 3 * d_model) for _ in range(2))

    def forward(self, trg: Tensor, trg_mask: Tensor, encoder_src: Tensor, src_mask: Tensor) -> Tensor:
        x = trg + self.attended(self.own, trg, trg, trg_mask)
        return x + self.attended(self.read, x, encoder_src, src_mask)

    def attended(self, made: nn.Linear, x: Tensor, context: Tensor, mask: Tensor | None) -> Tensor:
        q, k, v = (
            each.unflatten(-1, (HEADS, -1)).transpose(1, 2)
            for each in (made(x).chunk(3, -1)[0], *made(context).chunk(3, -1)[1:])
        )
        scores = q @ k.mT / q.shape[-1] ** 0.5
        scores = scores if mask is None else scores.masked_fill(mask == 0, -1e10)
        return (scores.softmax(-1) @ v).transpose(1, 2).flatten(2)


def test_the_mask_of_a_translation_is_none_of_its_padding_alone() -> None:
    call = first(Translates)
    assert axes(call) == [("x", 0, (1,), None), ("context", 0, (1,), None)]
    assert call.arguments["trg_mask"] is None or call.arguments["trg_mask"].ndim > 2
    assert not analyze(call, masks=True).violations
