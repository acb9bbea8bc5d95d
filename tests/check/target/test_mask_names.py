"""Masks by their names, which are words of several languages."""

from __future__ import annotations

import pytest

from regard.check.target.names import call_meaning


@pytest.mark.parametrize("name", ["maske", "quell_maske", "masken", "masque", "mascara_fuente", "maschera"])
def test_a_mask_is_known_in_other_languages(name: str) -> None:
    assert call_meaning(name) == "mask"


@pytest.mark.parametrize("name", ["masker", "unmasked", "conv_mask", "damask"])
def test_what_merely_sounds_like_a_mask_is_none(name: str) -> None:
    assert call_meaning(name) != "mask"
