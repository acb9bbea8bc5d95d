"""Queries and keys that are made of several tokens each, on purpose: summaries of the tokens."""

from __future__ import annotations

import torch
from torch import Tensor

from regard.check.properties.finding import Evidence, Finding
from regard.check.roles.influence import Influence
from regard.check.roles.instances import AttentionInstance
from regard.check.roles.owners import SEVERAL
from regard.check.roles.table import AttentionTable, table_of

__all__ = ["MIXED_TOKENS", "summary_of", "with_summaries"]

MIXED_TOKENS = frozenset({"key-of-one-token", "keys-from-their-input", "value-of-one-token"})
"""Violations that keys made of several tokens on purpose have as well."""
OF_ONE_TOKEN = frozenset({"query-of-one-token", "key-of-one-token", "value-of-one-token"})
"""Violations that lines of a map have as well, each of which holds several places."""
SUM_TOLERANCE = 1e-6


def summary_of(evidence: Evidence, influence: Influence, streams: list[str]) -> Finding | None:
    """That its keys summarize the tokens of the input, whatever rows the evidence is of."""
    if not _is_of_rows(evidence):
        return _summarized_keys(evidence.base)
    if not influence.sources("token"):
        return None
    table = table_of(evidence.base.instance, influence, streams)
    # Else the keys may be another model's tokens, and as many as these.
    is_one = torch.equal(table.query.stream, table.key.stream) and not table.of_no_token
    return _summarized_keys(table) if is_one else None


def _is_of_rows(evidence: Evidence) -> bool:
    """Whether it is of the rows of its projections: what comes before them mixes tokens."""
    return evidence.base.streams != tuple(evidence.roles)


def with_summaries(judged: list[Finding], evidence: Evidence, summary: Finding | None) -> list[Finding]:
    """The same of queries and keys that are made of several tokens each, some of them on purpose.

    Args:
        judged: what was found.
        evidence: the attention; of its projections' rows where its tokens are mixed before them.
        summary: that its keys summarize the tokens of the input.
    """
    if any(each.property in OF_ONE_TOKEN for each in judged) and _are_lines_of_maps(evidence.base.instance):
        message = "each query and key is a line of one channel of a map that a convolution made (2D attention)"
        line = evidence.base.instance.scores_location
        lines = Finding("design", "query-of-one-token", "projections", message, line)
        return [lines, *(each for each in judged if each.property not in OF_ONE_TOKEN)]
    if any(each.property in MIXED_TOKENS for each in judged):
        between = _through_summaries(evidence.base) or _beside_summaries(evidence.base)
        summary = between or (_summarized_rows(evidence) if _is_of_rows(evidence) else summary)
        return judged if summary is None else [summary]
    if summary is None or not _is_of_rows(evidence):
        return judged
    return [summary, *(each for each in judged if each.step != "projections" or each.kind == "violation")]


def _are_lines_of_maps(instance: AttentionInstance) -> bool:
    """Whether all queries and keys are whole rows, or whole columns, of one channel of a map that a convolution made.

    Dong et al. 2018, "Speech-Transformer", section 3.2: the rows of a map attend to one another, and its columns.
    """
    for score in instance.scores:
        lines = [
            _lines_of_a_map(instance, place, terms)
            for place, terms in ((score.left_place, score.left_terms), (score.right_place, score.right_terms))
        ]
        if lines[0] is None or lines[1] is None or lines[0][0] != lines[1][0]:
            return False
        if not torch.equal(lines[0][1], lines[1][1]):
            return False
    return True


def _lines_of_a_map(instance: AttentionInstance, place: tuple[int, int], terms: Tensor) -> tuple[int, Tensor] | None:
    """Along which axis of a map a factor of each score is a whole line, and of which sample and channel.

    Args:
        instance: the attention.
        place: of the factor.
        terms: a row for each score: which numbers of it are multiplied.
    """
    run = instance.run
    tags = run.tags.inputs[place[0]][place[1]]
    made = run.owner_of(tags)
    source = run.trace.operations[next(iter(made))] if len(made) == 1 else None
    if source is None or source.name != "convolution" or source.outputs[0].data.ndim != len("bcyx"):
        return None
    shape = source.outputs[0].shape
    at = torch.stack(torch.unravel_index(tags.flatten()[terms] - run.first_tag[source.index], shape))
    moving = [axis for axis, one in enumerate(at) if bool((one != one[:, :1]).any())]
    if len(moving) != 1 or moving[0] < len("bc"):
        return None
    whole = torch.arange(shape[moving[0]])
    is_whole = terms.shape[-1] == len(whole) and bool((at[moving[0]] == whole).all())
    return (moving[0], at[: len("bc"), :, 0]) if is_whole else None


def _summarized_keys(table: AttentionTable) -> Finding | None:
    """Another number of keys than of tokens, each of several of them, and queries of one token each (Linformer)."""
    if not bool((table.key.token == SEVERAL).all()) or bool((table.query.token < 0).any()):
        return None
    apart = {name: len(torch.unique(rows, dim=0)) for name, rows in (("keys", table.k), ("queries", table.q))}
    if apart["keys"] == apart["queries"]:
        return None
    if _is_over_queries(table):
        message = (
            "the softmax sums to one over the queries, not over the keys of each query, which summarize the tokens"
        )
        return Finding("violation", "softmax-over-keys", "weights", message, table.instance.softmaxes[0].location)
    message = "keys and values summarize the tokens: each is made of several, so that a mask would not hide them"
    return Finding("design", "summarized-keys", "projections", message, table.instance.scores_location)


def _summarized_rows(evidence: Evidence) -> Finding | None:
    """The same of rows of projections, of which there are as many for queries as for keys: fewer keys than queries.

    Rows that are cut wrongly make keys of several tokens as well, and as many keys as there were.
    """
    table = evidence.base
    if not evidence.num_tokens or len(torch.unique(table.k, dim=0)) >= len(torch.unique(table.q, dim=0)):
        return None
    return _summarized_keys(table)


def _is_over_queries(table: AttentionTable) -> bool:
    """Whether every row of the softmax, whose results are the weights, has scores of several queries."""
    if not bool((table.group >= 0).all()) or bool(((table.softmax - table.weight).abs() > SUM_TOLERANCE).any()):
        return False
    first = torch.full((int(table.group.max()) + 1,), -1).scatter_reduce(
        0, table.group, table.query.token, "amin", include_self=False
    )
    others = table.query.token != first[table.group]
    return len(torch.unique(table.group[others])) == len(first)


def _through_summaries(table: AttentionTable) -> Finding | None:
    """Two stages, of tokens that ask summaries and of fewer summaries that ask tokens (Nystrom, agent attention)."""
    asked, asking = table.key.token == SEVERAL, table.query.token == SEVERAL
    if not bool((asked ^ asking).all()) or not bool(asked.any()) or not bool(asking.any()):
        return None
    summaries, tokens = (len(torch.unique(rows[asking], dim=0)) for rows in (table.q, table.k))
    if summaries >= tokens:
        return None
    message = "tokens attend to summaries, and these to tokens: no scores of two tokens (Nystrom, agent attention)"
    return Finding("design", "summarized-keys", "projections", message, table.instance.scores_location)


def _beside_summaries(table: AttentionTable) -> Finding | None:
    """Keys of all tokens, and more that are of several tokens each, as of the blocks before; None of anything else."""
    alone, tokens = table.key.token >= 0, torch.unique(table.query.token)
    if bool((table.query.token < 0).any()) or bool(alone.all()) or not bool((table.key.token[~alone] == SEVERAL).all()):
        return None
    if not torch.equal(torch.unique(table.key.token[alone]), tokens):
        return None
    others = len(torch.unique(table.k[~alone], dim=0))
    if not 0 < others < len(torch.unique(table.k[alone], dim=0)):
        return None
    message = "beside the keys of all tokens there are summaries of several tokens each"
    return Finding("design", "summarized-keys", "projections", message, table.instance.scores_location)
