"""Rows of what linear attention hands to the next matrix: each holds the numbers of one token, and of no other."""

from __future__ import annotations

from collections.abc import Iterator

import torch
from torch import Tensor

from regard.check.properties.finding import Finding
from regard.check.roles.instances import AttentionInstance
from regard.check.roles.owners import SEVERAL

__all__ = ["row_findings"]


def row_findings(instance: AttentionInstance, tokens: dict[tuple[int, int], Tensor], samples: int) -> Iterator[Finding]:
    """Rows that a reshape put together from numbers of several tokens.

    There are as many rows as tokens, and as many numbers in each as a token has: what reads all tokens on purpose, as
    an MLP over them or a classifier, has other rows.

    Args:
        instance: an attention whose results are each of one token.
        tokens: the token of each number of a factor, SEVERAL where it is made of more, by the place of the factor.
        samples: how many there are.
    """
    run = instance.run
    token_of = torch.full((run.num_tags + 1,), SEVERAL)
    for total in instance.sums:
        results = torch.arange(total.output.data.numel()) + run.first_tag[total.operation.index]
        for place, terms in ((total.left_place, total.left_terms), (total.right_place, total.right_terms)):
            of_terms = tokens[place][terms]
            alone = (of_terms == of_terms[:, :1]).all(1) & (of_terms[:, 0] >= 0)
            token_of[results[alone]] = of_terms[alone, 0]
    sums = {each.operation.index for each in instance.sums}
    for product in run.products:
        for (index, number), terms in (
            (product.left_place, product.left_terms),
            (product.right_place, product.right_terms),
        ):
            tags = run.tags.inputs[index][number].flatten()
            if product.operation.index in sums or not run.owner_of(tags) & sums:
                continue
            rows = torch.unique(tags[terms], dim=0)
            found = token_of[rows]
            if bool((found < 0).any()) or len(torch.unique(rows)) != rows.numel():
                return
            numbers = torch.bincount(found.flatten())
            mixed = (found != found[:, :1]).any(1)
            is_of_tokens = len(rows) == samples * len(numbers) and bool((numbers == samples * rows.shape[1]).all())
            if is_of_tokens and bool(mixed.any()):
                listed = ", ".join(map(str, torch.unique(found[mixed][0]).tolist()))
                message = f"a row that the next matrix reads is made of numbers of tokens {listed}, and not of one"
                line = product.operation.location or instance.sums_location
                yield Finding("violation", "output-of-the-token", "heads joined", message, line)
            return
