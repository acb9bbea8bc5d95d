"""Rows of what attention hands to the next matrix: each holds the numbers of one query, and of no other."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass

import torch
from torch import Tensor

from regard.check.location import CodeLocation
from regard.check.properties.finding import Evidence, Finding
from regard.check.roles.contractions import Contraction
from regard.check.roles.instances import AttentionInstance, TaggedRun
from regard.check.roles.local import projections_of
from regard.check.roles.owners import NONE, SEVERAL
from regard.check.roles.table import AttentionTable

__all__ = ["query_row_findings", "row_findings", "rows_of_queries"]


@dataclass(frozen=True, eq=False)
class _Rows:
    """What the next matrix reads, or what is returned."""

    tags: Tensor
    """(rows, width)."""
    location: CodeLocation | None
    name: str = "a row that the next matrix reads"


def row_findings(instance: AttentionInstance, tokens: dict[tuple[int, int], Tensor], samples: int) -> Iterator[Finding]:
    """Rows that a reshape put together from numbers of several tokens, of linear attention.

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
    rows = _next_rows(run, instance.sums)
    found = None if rows is None else _owned(rows, token_of, samples)
    mixed = None if found is None else _mixed(found)
    if rows is not None and mixed is not None:
        listed = ", ".join(map(str, torch.unique(mixed).tolist()))
        message = f"{rows.name} is made of numbers of tokens {listed}, and not of one"
        line = rows.location or instance.sums_location
        yield Finding("violation", "output-of-the-token", "heads joined", message, line)


def query_row_findings(evidence: Evidence) -> Iterator[Finding]:
    """The same of queries and weighted sums, where the output does not tell whose token is whose.

    As where queries are learned, and there are as many outputs as queries, or where what comes before the projections
    has mixed the tokens of the input.
    """
    table = evidence.base
    instance = table.instance
    run, rows = instance.run, _next_rows(instance.run, instance.sums)
    query = _query_of_scores(table)
    if rows is None or query is None:
        return
    scores = table.values.score
    of_sums = torch.where((scores >= 0).any(-1), query[scores.amax(-1).clamp(min=0)], SEVERAL)
    query_of = torch.full((run.num_tags + 1,), SEVERAL)
    numbers = [torch.arange(each.output.data.numel()) + run.first_tag[each.operation.index] for each in instance.sums]
    query_of[torch.cat(numbers)] = of_sums
    found = _owned(rows, query_of, 1)
    if found is None or bool((query < 0).any()):
        return
    line = rows.location or instance.sums_location
    mixed = _mixed(found)
    if mixed is not None:
        message = (
            f"{rows.name} is made of what {len(torch.unique(mixed))} queries read, and not one: heads are joined in "
            "another order than they were split"
        )
        yield Finding("violation", "output-of-the-token", "heads joined", message, line)
    elif len(torch.unique(rows.tags)) == len(torch.unique(torch.cat(numbers))):
        message = f"{rows.name} holds what one query read, of all heads"
        yield Finding("holds", "output-of-the-token", "heads joined", message, line)


def _query_of_scores(table: AttentionTable) -> Tensor | None:
    """(scores): a number for the query of each, the same for all of its heads; None where that is not known."""
    sample = table.query.sample.clamp(min=0)
    token = table.query.token
    if table.of_no_token and table.num_heads > 1:  # else there is one for each sample
        token = rows_of_queries(table)
    if not len(token) or bool((token < 0).any()) or bool((table.query.sample == SEVERAL).any()):
        return None
    return sample * (int(token.max()) + 1) + token


def rows_of_queries(table: AttentionTable) -> Tensor:
    """(scores): which row of its projection each query is; SEVERAL where it is of more than one, or not known."""
    instance, run = table.instance, table.instance.run
    row_of, start = torch.full((run.num_tags + 1,), NONE), 0
    for operation in projections_of(instance):
        shape = operation.outputs[0].shape
        axis = 1 if operation.name == "convolution" else len(shape) - 1
        count = operation.outputs[0].data.numel()
        of_rows = [1 if at == axis else size for at, size in enumerate(shape)]
        rows = torch.arange(count // shape[axis]).reshape(of_rows).expand(shape).flatten()
        first = run.first_tag[operation.index]
        row_of[first : first + count] = rows + start
        start += count // shape[axis]
    found = []
    for each in instance.scores:
        left = table.layout.queries_left
        place, terms = (each.left_place, each.left_terms) if left else (each.right_place, each.right_terms)
        rows = row_of[run.tags.inputs[place[0]][place[1]].flatten()[terms]]
        is_one = (rows == rows[:, :1]).all(1) & (rows[:, 0] >= 0)
        found.append(torch.where(is_one, rows[:, 0], SEVERAL))
    return torch.cat(found)[table.layout.used]


def _next_rows(run: TaggedRun, sums: Sequence[Contraction]) -> _Rows | None:
    """The rows that the first matrix after some weighted sums multiplies, or a convolution of one place at a time.

    Of what is returned without a further matrix, the rows that are returned.
    """
    indices = {each.operation.index for each in sums}
    products = {each.operation.index: each for each in run.products if each.operation.index not in indices}
    for operation in run.trace.operations[min(indices) + 1 :]:
        if operation.name == "convolution" and run.owner_of(run.tags.inputs[operation.index][0]) & indices:
            weight = operation.inputs[1].shape  # (channels out, channels in, *kernel)
            tags = run.tags.inputs[operation.index][0]
            is_by_place = max(weight[2:]) == 1 and weight[1] == tags.shape[1]
            return _Rows(tags.movedim(1, -1).flatten(0, -2), operation.location) if is_by_place else None
        product = products.get(operation.index)
        if product is None:
            continue
        for (index, number), terms in (
            (product.left_place, product.left_terms),
            (product.right_place, product.right_terms),
        ):
            tags = run.tags.inputs[index][number].flatten()
            if run.owner_of(tags) & indices:
                return _Rows(torch.unique(tags[terms], dim=0), operation.location)
    returned = run.tags.returned[0] if run.tags.returned else None
    if returned is None or returned.ndim < 2 or returned.shape[-1] in returned.shape[:-1]:
        return None  # as many: its last axis may be another than that of the channels
    return _Rows(returned.flatten(0, -2), None, "a row of the output")


def _owned(rows: _Rows, owner_of: Tensor, samples: int) -> Tensor | None:
    """(rows, width): whose each number is; None where the rows are not as many, or not as wide, as whose they are."""
    found = owner_of[rows.tags]
    if bool((found < 0).any()) or len(torch.unique(rows.tags)) != rows.tags.numel():
        return None
    numbers = torch.bincount(found.flatten())
    numbers = numbers[numbers > 0]
    is_of_owners = len(found) == samples * len(numbers) and bool((numbers == samples * found.shape[1]).all())
    return found if is_of_owners else None


def _mixed(found: Tensor) -> Tensor | None:
    """Whose the numbers of the first row are that is not of one alone; None where each is."""
    mixed = (found != found[:, :1]).any(1)
    return found[mixed][0] if bool(mixed.any()) else None
