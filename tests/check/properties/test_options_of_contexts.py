"""Contexts and masks of another option of a constructor, and arguments that a comment says are not used."""

from __future__ import annotations

import pytest
import torch
from torch import Tensor, nn

from regard.check import check
from regard.check.properties.unused_arguments import is_said_unused

pytestmark = pytest.mark.more  # seconds a test: it is run by make test-more


class Reads(nn.Module):
    def __init__(self, dim: int, num_heads: int) -> None:
        super().__init__()
        self.num_heads = num_heads
        self.q, self.k, self.v, self.out = (nn.Linear(dim, dim) for _ in range(4))

    def read(self, x: Tensor, source: Tensor, mask: Tensor | None) -> Tensor:
        q, k, v = (
            each.unflatten(-1, (self.num_heads, -1)).transpose(1, 2)
            for each in (self.q(x), self.k(source), self.v(source))
        )
        scores = q @ k.mT * q.shape[-1] ** -0.5
        scores = scores if mask is None else scores + mask
        return self.out((scores.softmax(-1) @ v).transpose(1, 2).flatten(2))


class Own(Reads):
    def forward(self, x: Tensor, attention_mask: Tensor | None = None, **kwargs: object) -> Tensor:
        return self.read(x, x, attention_mask)


class Across(Reads):
    def forward(
        self, x: Tensor, encoder_hidden_states: Tensor, attention_mask: Tensor | None = None, **kwargs: object
    ) -> Tensor:
        return self.read(x, encoder_hidden_states, attention_mask)


class Chosen(nn.Module):
    """Attends to itself, or by an option to what an encoder returned, by the mask of that."""

    def __init__(self, dim: int, num_heads: int, is_cross_attention: bool = False) -> None:
        super().__init__()
        self.is_cross_attention = is_cross_attention
        self.inner = self.kind(is_cross_attention)(dim, num_heads)
        self.norm = nn.LayerNorm(dim)

    def kind(self, is_cross_attention: bool) -> type[Reads]:
        return Across if is_cross_attention else Own

    def forward(
        self,
        x: Tensor,
        attention_mask: Tensor | None = None,
        encoder_hidden_states: Tensor | None = None,
        encoder_attention_mask: Tensor | None = None,
    ) -> Tensor:
        attention_mask = attention_mask if not self.is_cross_attention else encoder_attention_mask
        read = self.inner(x, encoder_hidden_states=encoder_hidden_states, attention_mask=attention_mask)
        return self.norm(x + read)


class NeverAcross(Chosen):
    def kind(self, is_cross_attention: bool) -> type[Reads]:
        return Own


def test_a_context_is_not_ignored_that_an_option_of_the_constructor_opens() -> None:
    report = check(Chosen)
    assert report.verdict != "wrong", str(report)
    assert any("unless is_cross_attention is set" in each for each in report.notes)
    assert "context-ignored" in {each.id for each in check(NeverAcross).causes}


def test_a_mask_is_not_lost_in_whose_name_another_one_is_put_by_a_setting() -> None:
    assert check(Chosen, args={"is_cross_attention": True}).verdict != "wrong"


class Noted(Reads):
    def forward(
        self,
        x: Tensor,
        attention_mask: Tensor | None = None,  # Not used, kept for the signature of other layers
    ) -> Tensor:
        return self.read(x, x, None)


class NotedShortly(Reads):
    def forward(self, x: Tensor, mask: Tensor | None = None) -> Tensor:  # unused
        return self.read(x, x, None)


class NotedOtherwise(Reads):
    def forward(
        self,
        x: Tensor,  # not used by the cache
        attention_mask: Tensor | None = None,  # not used if it is None
    ) -> Tensor:
        return self.read(x, x, None)


class Unnoted(Reads):
    def forward(
        self,
        x: Tensor,
        attention_mask: Tensor | None = None,  # 0 and -inf
    ) -> Tensor:
        return self.read(x, x, None)


@pytest.mark.parametrize(
    ("kind", "name", "expected"),
    [
        (Noted, "attention_mask", True),
        (NotedShortly, "mask", True),
        (NotedShortly, "x", False),
        (NotedOtherwise, "attention_mask", False),
        (Unnoted, "attention_mask", False),
        (Noted, "x", False),
    ],
)
def test_a_comment_beside_an_argument_says_that_it_is_not_used(kind: type[Reads], name: str, expected: bool) -> None:
    assert is_said_unused(kind(8, 2), name) is expected


def test_a_mask_without_effect_is_wrong_unless_a_comment_says_so() -> None:
    assert check(Noted).verdict != "wrong"
    assert check(Unnoted).verdict == "wrong"


class SeveralScales(nn.Module):
    """Linear attention, also of tokens that a convolution mixed; a row of ones beside the values sums the keys."""

    def __init__(self, dim: int) -> None:
        super().__init__()
        self.width = dim
        self.qkv, self.out = nn.Linear(dim, 3 * dim), nn.Linear(2 * dim, dim)
        self.near = nn.Sequential(
            nn.Conv2d(3 * dim, 3 * dim, 3, padding=1, groups=3 * dim), nn.Conv2d(3 * dim, 3 * dim, 1, groups=3)
        )

    def forward(self, x: Tensor) -> Tensor:
        """x: (batch, height, width, dim)."""
        batch, height, width, _ = x.shape
        made = self.qkv(x).movedim(-1, 1)
        made = torch.cat([made, self.near(made)], 1).reshape(batch, 2, 3 * self.width, height * width)
        q, k, v = made.chunk(3, 2)
        q, k = q.relu(), k.relu()
        v = nn.functional.pad(v, (0, 0, 0, 1), value=1.0)
        read = (v @ k.mT) @ q
        read = read[:, :, :-1] / (read[:, :, -1:] + 1e-15)
        return self.out(read.reshape(batch, -1, height, width).movedim(1, -1))


def test_a_row_of_ones_beside_the_values_is_of_no_token() -> None:
    report = check(SeveralScales)
    assert report.verdict == "different by design", str(report)
