"""Masks of which something is computed that nothing reads."""

from __future__ import annotations

import torch
from torch import Tensor, nn

from property_cases import joined, of_x, split
from regard.check.properties.analyze import analyze
from regard.check.properties.finding import Finding


def causal(x: Tensor, hidden: Tensor | None = None) -> Tensor:
    later = torch.ones(x.shape[1], x.shape[1]).triu(1) > 0
    scores = (split(x) @ split(x).mT / 2).masked_fill(later if hidden is None else later | hidden, -torch.inf)
    return joined(scores.softmax(-1) @ split(x))


def prepares_it_for_nothing(x: Tensor, padding_mask: Tensor | None = None) -> Tensor:
    if padding_mask is not None:
        torch.zeros(padding_mask.shape).masked_fill(padding_mask == 0, -torch.inf)
    return causal(x)


def joins_it(x: Tensor, padding_mask: Tensor | None = None) -> Tensor:
    return causal(x, None if padding_mask is None else (padding_mask == 0)[:, None, None])


def reads_it_as_a_number(x: Tensor, padding_mask: Tensor | None = None) -> Tensor:
    """How long the longest text is: what stands behind it is hidden from the others by the order of the tokens."""
    if padding_mask is not None and int(padding_mask.sum(-1).max()) > x.shape[1]:
        raise ValueError("longer than the text")
    return causal(x)


def does_not_read_it(x: Tensor, padding_mask: Tensor | None = None) -> Tensor:
    return causal(x)


def said_of(kind: object, mask: str = "padding_mask") -> list[Finding]:
    return [each for each in analyze(of_x(kind, masks=(mask,)), masks=True).findings if mask in each.message]


def test_what_is_computed_of_a_mask_and_read_by_nothing_is_wrong() -> None:
    (found,) = said_of(prepares_it_for_nothing)
    assert (found.kind, found.property) == ("violation", "mask-argument")
    assert found.message == "what is computed of padding_mask is used nowhere: what it blocks is seen"
    assert found.location is not None
    assert "masked_fill" in found.location.text


def test_what_is_joined_with_the_code_s_own_mask_is_right() -> None:
    assert {each.kind for each in said_of(joins_it)} == {"holds"}


def test_what_is_read_as_a_number_hides_nothing_and_is_told_so() -> None:
    for kind in (reads_it_as_a_number, does_not_read_it):
        (found,) = said_of(kind)
        assert (found.kind, found.property) == ("design", "mask-form"), kind
        assert "own mask stands in its place" in found.message


class OfKinds(nn.Module):
    """Relations are read where they are of one kind, and the tokens that are hidden in any."""

    def __init__(self, relations: str = "none") -> None:
        super().__init__()
        self.relations = relations

    def forward(self, x: Tensor, mask: Tensor | None = None, relation_mask: Tensor | None = None) -> Tensor:
        scores = split(x) @ split(x).mT / 2
        if self.relations == "added" and relation_mask is not None:
            scores = scores + relation_mask
        if self.relations == "added":
            scores = scores + relation_mask[:, None]  # type: ignore[index]
        if mask is not None:
            scores = scores.masked_fill(mask[:, None, None] == 0, -torch.inf)
        return joined(scores.softmax(-1) @ split(x))


class OfOneKind(nn.Module):
    """It hides padding where the relations are of a kind alone."""

    def __init__(self, relations: str = "none") -> None:
        super().__init__()
        self.relations = relations

    def forward(self, x: Tensor, mask: Tensor | None = None) -> Tensor:
        scores = split(x) @ split(x).mT / 2
        if self.relations == "added":
            scores = scores.masked_fill(mask[:, None, None] == 0, -torch.inf)  # type: ignore[index]
        return joined(scores.softmax(-1) @ split(x))


def test_a_mask_of_another_kind_is_not_exercised() -> None:
    (found,) = said_of(OfKinds(), "relation_mask")
    asked = "self.relations == 'added' and relation_mask is not None"
    assert (found.kind, found.message) == ("open", f"relation_mask is read where {asked} alone: not exercised")
    assert ("violation", "mask-argument") in {(each.kind, each.property) for each in said_of(OfOneKind(), "mask")}
