"""The id of padding: where code says it, and that no token of a call has it."""

from __future__ import annotations

from types import SimpleNamespace

import pytest
import torch
from torch import nn

from regard.check.target.token_ids import drawn_ids, other_ids, padding_id, special_ids

PAD_IDX = 4
"""What `OfItsFile` finds beside it."""


class Saying(nn.Module):
    def __init__(self, **said: object) -> None:
        super().__init__()
        for name, value in said.items():
            setattr(self, name, value)

    forward = nn.Identity.forward


class OfItsFile(nn.Module):
    def forward(self, ids: torch.Tensor) -> torch.Tensor:
        return ids == PAD_IDX


@pytest.mark.parametrize("name", ["pad_idx", "src_pad_idx", "padding_id", "pad_token_id", "PAD_IDX"])
def test_an_attribute_says_which_id_is_padding(name: str) -> None:
    assert padding_id(Saying(**{name: 3})) == 3


def test_a_config_an_embedding_or_the_file_says_it_as_well() -> None:
    assert padding_id(Saying(config=SimpleNamespace(pad_token_id=2))) == 2
    assert padding_id(Saying(config={"pad_token_id": 2})) == 2
    assert padding_id(Saying(words=nn.Embedding(5, 2, padding_idx=1))) == 1
    assert padding_id(OfItsFile()) == PAD_IDX


def test_ids_that_close_or_begin_a_text_are_told_alike() -> None:
    assert special_ids(Saying(eos_token_id=3, bos_id=1), "end") == {3}
    assert special_ids(Saying(config={"eot_token": 3, "bos_token_id": 1}), "begin") == {1}
    assert special_ids(Saying(eos=True, end="eos", closing=2), "end") == set()


def test_it_is_0_where_nothing_or_not_one_id_is_said() -> None:
    assert padding_id(Saying(pad=3, padding=2, word="pad_idx")) == 0
    assert padding_id(Saying(src_pad_idx=1, tgt_pad_idx=2)) == 0
    assert padding_id(len) == 0


def test_of_two_ids_each_text_has_the_one_of_its_side() -> None:
    told = Saying(src_pad_idx=1, trg_pad_idx=2)
    assert [padding_id(told, each) for each in ("src", "tgt", "x")] == [1, 2, 0]


@pytest.mark.parametrize("padding", [0, 1, 5])
def test_no_token_is_padding_and_each_is_drawn_anew(padding: int) -> None:
    generator = torch.Generator().manual_seed(0)
    ids = drawn_ids((40, 5), 7, generator, padding)
    fresh = other_ids(ids, 7, generator, padding)
    for each in (ids, fresh):
        assert set(each.unique().tolist()) == set(range(7)) - {padding}
    assert bool((ids != fresh).all())
