"""Masks of one sequence, beside which other keys stand: the code makes them longer at one side or the other."""

from __future__ import annotations

import pytest
import torch
from torch import Tensor, nn
from torch.nn.functional import layer_norm, pad

from property_cases import WIDTH, joined, of_module, split
from regard.check.properties.analyze import analyze
from regard.check.properties.finding import Finding

pytestmark = pytest.mark.more  # seconds a test: it is run by make test-more

LATENTS = 3


class Resampler(nn.Module):
    """Latents read the tokens and themselves: mask is True for tokens that are there."""

    sides = (0, LATENTS)
    is_first = False

    def __init__(self) -> None:
        super().__init__()
        self.latents = nn.Parameter(torch.randn(LATENTS, WIDTH))
        self.q = nn.Linear(WIDTH, WIDTH, bias=False)
        self.kv = nn.Linear(WIDTH, 2 * WIDTH, bias=False)

    def forward(self, x: Tensor, mask: Tensor | None = None) -> Tensor:
        latents = self.latents.expand(len(x), -1, -1)
        both = (latents, x) if self.is_first else (x, latents)
        q, (k, v) = split(self.q(latents)), (split(each) for each in self.kv(torch.cat(both, 1)).chunk(2, -1))
        mask = None if mask is None else pad(mask, self.sides, value=True)[:, None, None]
        return joined(nn.functional.scaled_dot_product_attention(q, k, v, mask))


class LatentsFirst(Resampler):
    """The same with the latents in front, where the mask is made longer."""

    sides, is_first = (LATENTS, 0), True


class OnTheWrongSide(Resampler):
    """The same whose mask is made longer in front."""

    sides = (LATENTS, 0)


class OnTheWrongSideOfLatents(Resampler):
    """The same with the latents in front, and its mask made longer behind."""

    is_first = True


class OfPaddedQueries(Resampler):
    """The same whose mask hides no key."""

    def forward(self, x: Tensor, mask: Tensor | None = None) -> Tensor:
        x = x if mask is None else x * mask[..., None]
        return super().forward(x)


def about_the_mask(kind: type[nn.Module]) -> Finding:
    call = of_module(kind)
    call.masks = ["mask"]
    named = ("mask-form", "mask-argument", "mask-refused")
    (found,) = [each for each in analyze(call, masks=True).findings if each.property in named]
    return found


def test_other_keys_are_seen_beside_those_that_a_mask_hides() -> None:
    for kind in (Resampler, LatentsFirst):
        found = about_the_mask(kind)
        assert (found.kind, found.property) == ("holds", "mask-form"), found
        assert found.message.endswith("other keys are seen by all")


def test_a_mask_that_is_made_longer_at_the_other_side_hides_other_keys() -> None:
    for kind, where in ((OnTheWrongSide, "after"), (OnTheWrongSideOfLatents, "before")):
        found = about_the_mask(kind)
        assert (found.kind, found.property) == ("violation", "mask-argument"), found
        assert f"it hides the key 3 places {where} the one that it blocks" in found.message


def test_a_mask_that_hides_no_key_is_left_open() -> None:
    assert about_the_mask(OfPaddedQueries).kind == "open"


class NormedLatents(Resampler):
    """The same, scaled by itself; what is kept as a scale may be left of another time."""

    def __init__(self) -> None:
        super().__init__()
        self.scale = 0.5

    def forward(self, x: Tensor, mask: Tensor | None = None) -> Tensor:
        return super().forward(layer_norm(x, x.shape[-1:]), mask)


class ScaledTwice(NormedLatents):
    """The same whose queries are scaled before the function scales them."""

    def forward(self, x: Tensor, mask: Tensor | None = None) -> Tensor:
        latents = self.latents.expand(len(x), -1, -1)
        q, (k, v) = split(self.q(latents)), (split(each) for each in self.kv(torch.cat((x, latents), 1)).chunk(2, -1))
        return joined(nn.functional.scaled_dot_product_attention(q * self.scale, k, v))


def test_the_scale_of_learned_queries_that_are_keys_as_well_is_known() -> None:
    (found,) = [each for each in analyze(of_module(NormedLatents)).findings if each.step == "scale"]
    assert (found.kind, found.message) == ("holds", "1/sqrt(4) = 0.5")
    (found,) = analyze(of_module(ScaledTwice)).violations
    assert found.message.startswith("q . k is multiplied by 0.25")
