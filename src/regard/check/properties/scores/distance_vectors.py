"""Learned vectors of distances that are added to the values as well as to the keys (Shaw et al. 2018)."""

from __future__ import annotations

from collections.abc import Iterator

import torch
from torch import Tensor

from regard.check.properties.finding import Evidence, Finding
from regard.check.properties.saturation import ZERO_WEIGHT
from regard.check.roles.contractions import Contraction
from regard.check.roles.factors import numbers_by_tag
from regard.check.roles.table import AttentionTable

__all__ = ["distance_vector_findings"]

SAME = 1e-6
"""Of a scale: tables may be computed in float32."""


def distance_vector_findings(evidence: Evidence) -> Iterator[Finding]:
    """Vectors of distances that the weights read beside the values: each distance has its own, as among the keys.

    Shaw et al. 2018, "Self-Attention with Relative Position Representations", equations 3 and 4: the output is the sum
    of w (v + a), and scores are q (k + b) / sqrt(d): what is added to a key is scaled as the key is.

    Args:
        evidence: of an attention whose weights belong to one query and one key each.
    """
    table = evidence.base
    for product in _read_beside_values(table):
        lost = _without_vector(table, product)
        if lost is not None:
            yield lost
            return
        unscaled = _scaled_apart(table)
        if unscaled is not None:
            yield unscaled
            return


def _read_beside_values(table: AttentionTable) -> Iterator[Contraction]:
    """Products of the attention's weights and what depends on no token."""
    instance = table.instance
    run, own = instance.run, {each.operation.index for each in instance.scores}
    last = max((each.index for each in instance.softmaxes), default=len(run.trace))
    for product in run.products:
        if product.operation.index < last:
            continue
        for weights, others in (product.places, product.places[::-1]):
            tags = run.tags.inputs[weights[0]][weights[1]]
            if others not in run.depends and run.owner_of(tags) and run.owner_of(tags) <= own:
                yield product
                break


def _weights_of(table: AttentionTable, product: Contraction) -> Tensor:
    """(elements, terms): the row of the score that each weight is of; -1 of what is none, as padding."""
    run, rows = table.instance.run, table.rows_of_tags()
    is_left = product.right_place not in run.depends
    place, terms = (product.left_place, product.left_terms) if is_left else (product.right_place, product.right_terms)
    return rows[run.tags.inputs[place[0]][place[1]].flatten()[terms]]


def _without_vector(table: AttentionTable, product: Contraction) -> Finding | None:
    """A distance whose weights meet no vector, while one of the vectors, as many as distances, meets no weight."""
    weights = _weights_of(table, product)
    live, distance = table.weight > ZERO_WEIGHT, table.query.token - table.key.token
    seen, met = torch.unique(distance[live]), weights >= 0
    if weights.shape[1] != len(seen) or not bool(met.any()) or bool(met.any(0).all()):
        return None
    of_terms = torch.where(met, distance[weights.clamp(min=0)], torch.iinfo(torch.long).min)
    for term in of_terms.unbind(1):
        if len(torch.unique(term[term > torch.iinfo(torch.long).min])) > 1:
            return None  # they are no vectors of distances
    reached = torch.zeros_like(live)
    reached[weights[met]] = True
    without = [each for each in seen.tolist() if not bool(reached[live & (distance == each)].any())]
    if not without or not all(bool(reached[live & (distance == each)].all()) for each in seen if each not in without):
        return None
    apart = f"{abs(without[0])} token{'s' * (abs(without[0]) > 1)} {'back' if without[0] > 0 else 'ahead'}"
    where = apart if without[0] else "of the query's own token"
    message = (
        f"the weight of a key {where} reads no learned vector, and one of the {len(seen)} vectors, as many as there "
        "are distances, is read by no weight: those of the others are of the distance beside theirs"
    )
    return Finding("violation", "vector-of-each-distance", "positions", message, product.operation.location)


def _scaled_apart(table: AttentionTable) -> Finding | None:
    """Queries times vectors of distances that have another scale than the same queries times keys."""
    instance = table.instance
    run = instance.run
    numbers = numbers_by_tag(run, run.trace)
    learned = [each for each in instance.added if not run.depends >= set(each.places)]
    of_keys = _total(table)
    if of_keys is None or len(learned) != 1:
        return None
    scale, after = of_keys
    (product,) = learned
    asks_left = product.left_place in run.depends
    asking, vectors = product.places[:: 1 if asks_left else -1]
    before = _ratio(run.trace.taken(asking).data.double(), numbers[run.tags.inputs[asking[0]][asking[1]]])
    if before is None or not _are_learned(table, vectors):
        return None
    found = before * after
    if abs(found - scale) <= SAME * max(abs(found), abs(scale)):
        return None
    message = (
        f"queries times learned vectors of distances are times {found:.4g} where the same queries times keys are times "
        f"{scale:.4g}: what is added to a key is scaled as the key is (Shaw et al. 2018, equation 4)"
    )
    return Finding("violation", "vectors-scaled-as-keys", "scale", message, product.operation.location)


def _total(table: AttentionTable) -> tuple[float, float] | None:
    """By what q . k are multiplied in the softmax, and what is added to them; None where they are not so simple."""
    known = torch.isfinite(table.masked) & (table.weight > ZERO_WEIGHT)
    of_queries = _ratio(table.q.double(), table.q_source)
    of_keys = _ratio(table.k.double(), table.k_source)
    if table.parts.shape[1] != 1 or of_queries is None or of_keys is None or int(known.sum()) < 8:
        return None
    added = table.parts.sum(-1)
    columns = torch.stack([table.product - added, added], -1)[known]
    factors = torch.linalg.lstsq(columns, table.masked[known][:, None]).solution[:, 0]
    gap = (columns @ factors - table.masked[known]).abs().max()
    if float(gap) > SAME * max(1.0, float(table.masked[known].abs().max())):
        return None
    return float(factors[0]) * of_queries * of_keys, float(factors[1])


def _ratio(numbers: Tensor, sources: Tensor) -> float | None:
    """By which one number they are multiplied; None where there is no such one."""
    if numbers.is_complex() or not bool(torch.isfinite(sources).all()):
        return None
    factor = float((numbers * sources).sum() / (sources * sources).sum().clamp(min=1e-300))
    gap = float((numbers - factor * sources).abs().max())
    return factor if gap <= SAME * float(numbers.abs().max()) else None


def _are_learned(table: AttentionTable, place: tuple[int, int]) -> bool:
    """Whether vectors are taken as they were learned, or as zeros: what was multiplied before may be scaled there."""
    trace = table.instance.run.trace
    data = trace.taken(place).data
    made = {each.storage for operation in trace if not operation.is_view for each in operation.outputs}
    taken = [each for operation in trace for each in operation.inputs if each.learned and each.storage not in made]
    parameters = [each.data.flatten() for each in taken if each.data.dtype == data.dtype]
    if not parameters:
        return False
    return bool((torch.isin(data, torch.cat(parameters)) | (data == 0)).all())
