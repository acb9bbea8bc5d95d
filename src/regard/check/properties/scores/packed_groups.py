"""One matrix that holds the queries of each group of heads beside the key that they share: they meet this one."""

from __future__ import annotations

from collections.abc import Iterator, Sequence

from regard.check.properties.finding import Evidence, Finding
from regard.check.roles.factors import factor_tags
from regard.check.roles.table import AttentionTable

__all__ = ["packed_group_findings"]


def packed_group_findings(evidence: Evidence) -> Iterator[Finding]:
    """Queries that meet the key of another group than the one beside which they are projected.

    As in the matrices of Falcon-40B and InternLM2, which hold the queries of a group, its key and its value, group by
    group; a matrix that holds all queries before all keys tells nothing of groups.
    """
    table = evidence.base
    if table.num_heads < 2 or not table.whole:
        return
    is_left = table.layout.queries_left
    (of_queries, queries), (of_keys, keys) = _channels(table, is_left), _channels(table, not is_left)
    if of_queries != of_keys or of_queries is None:
        return
    groups = sorted(set(keys))
    group_of = _groups(queries, groups)
    for head, (query, key) in enumerate(zip(queries, keys, strict=True)):
        if group_of and group_of[query] != groups.index(key):
            message = (
                f"query head {head} is projected beside key head {group_of[query]}, in one group, and is multiplied by "
                f"key head {groups.index(key)}"
            )
            yield Finding("violation", "heads-paired", "heads", message, table.instance.scores_location)
            return


def _channels(table: AttentionTable, is_left: bool) -> tuple[int | None, list[int]]:
    """The projection that the left, or right, factors of scores are made of, and each head's first channel of it.

    The projection is None where it is not one alone.
    """
    run, tags = table.instance.run, factor_tags(table.instance, is_left)[table.layout.used]
    owners = run.owner_of(tags)
    if len(owners) != 1 or bool((tags <= 0).any()):
        return None, []
    (owner,) = owners
    width = run.trace.operations[owner].outputs[0].data.shape[-1]
    channels = (tags - run.first_tag[owner]) % width
    return owner, [int(channels[table.head == head].min()) for head in range(table.num_heads)]


def _groups(queries: Sequence[int], keys: Sequence[int]) -> dict[int, int]:
    """The key beside each query, by their first channels; empty unless as many queries stand after, or before, each.

    Args:
        queries: of each head.
        keys: of each head of keys, in their order.
    """
    before = {query: sum(key < query for key in keys) for query in queries}
    if len(keys) < 2 or len(before) != len(queries) or len(queries) % len(keys):
        return {}
    first = min(before.values())
    found = {query: count - first for query, count in before.items()}
    sizes = [sum(group == each for each in found.values()) for group in range(len(keys))]
    return found if first in (0, 1) and set(sizes) == {len(queries) // len(keys)} else {}
