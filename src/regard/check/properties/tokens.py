"""Whose queries, keys and values are multiplied: each of one token of one sample, and of the right ones."""

from __future__ import annotations

import re
from collections.abc import Iterator
from dataclasses import replace

import torch
from torch import Tensor

from regard.check.properties.code import is_commented_out
from regard.check.properties.finding import Evidence, Finding
from regard.check.properties.head_pairs import heads_alike, pairs_alike
from regard.check.roles.contractions import has_too_many_terms
from regard.check.roles.influence import is_chosen
from regard.check.roles.instances import SOFTMAXES
from regard.check.roles.owners import NONE, SEVERAL, Owners
from regard.check.roles.table import AttentionTable, ValueTable
from regard.check.target.names import call_meaning, first_word, is_encoded
from regard.check.target.token_ids import side_of

__all__ = [
    "samples_attend",
    "seen_from_both_sides",
    "token_findings",
    "with_samples_as_tokens",
]

NEGLIGIBLE_WEIGHT = 1e-12
"""A smaller weight is none."""
SIDE_BY_SIDE = frozenset({"y", "other"})
"""Names beside x that do not say which of the two is read."""
SHORTEST_WORD = 3
"""Letters of a name that says what is handed over."""
KEYS_AND_VALUES = re.compile("keys?_.*values?|kv", re.I)
"""A name that says that both are made of it."""


def token_findings(evidence: Evidence) -> Iterator[Finding]:
    """A score is of one query and one key token, of one sample and head; its value is the key's."""
    found = list(_violations(evidence))
    yield from found
    if not any(each.kind == "violation" for each in found) and evidence.base.whole:
        if all(each.kind == "note" for each in found):
            yield _projected(evidence.base)
        message = "the weight of a key goes to the value of the same token"
        yield Finding("holds", "value-of-the-key", "weighted sum", message, evidence.base.instance.sums_location)


def seen_from_both_sides(several: list[Evidence]) -> list[Evidence]:
    """The same; where x reads the context, and the context x as well, each is the other's context."""
    sides = [(_role(each, each.base.query.stream), _role(each, each.base.key.stream)) for each in several]
    if ("x", "context") not in sides:
        return several
    other = {"x": "context", "context": "x"}
    return [
        replace(each, roles={name: other.get(role, role) for name, role in each.roles.items()})
        if side == ("context", "x")
        else each
        for each, side in zip(several, sides, strict=True)
    ]


def _role(evidence: Evidence, stream: Tensor) -> str:
    """The role of what some numbers are of; empty where it is of several, or rows of projections inside of a model."""
    return evidence.roles.get(_name(evidence, stream), "")


def _name(evidence: Evidence, stream: Tensor) -> str:
    """The same of the argument."""
    names = evidence.base.streams
    known = set(stream[stream >= 0].tolist()) if names == tuple(evidence.roles) else set()
    return names[known.pop()] if len(known) == 1 else ""


def _is_told(name: str) -> bool:
    """Whether a name says that it is one of queries, keys and values, or no word that says anything else."""
    return len(name) < SHORTEST_WORD or _is_named(name)


def _is_named(name: str) -> bool:
    return {call_meaning(name), first_word(name)} & {"q", "k", "v"} != set()


def _are_translated(names: list[str]) -> bool:
    """Whether one of two sequences is a source and one a target: these do not stand beside each other, token by token.

    Of other ids they may, as exercises and what was answered (AKT, arXiv:2007.12324, whose keys are of the exercises).
    """
    return {*map(side_of, names)} == {1, -1}


def _projected(table: AttentionTable) -> Finding:
    line = table.instance.scores_location
    if table.instance.is_projected:
        message = "each query, key and value is made of one token"
        return Finding("holds", "query-of-one-token", "projections", message, line)
    before = table.instance.run.trace.operations[: table.instance.scores[0].operation.index]
    if any(map(has_too_many_terms, before)):
        message = "projections are not judged: a product of matrices has more terms than are followed"
        return Finding("note", "query-of-one-token", "projections", message, line)
    message = "none: queries, keys and values are multiplied as they are handed over"
    return Finding("absent", "query-of-one-token", "projections", message, line)


def _are_products_of_weights(table: AttentionTable) -> bool:
    """Whether two softmaxes are multiplied, as where BiDAF's context reads itself by way of the query's words."""
    instance = table.instance
    trace = instance.run.trace
    softmaxes = {one.storage for each in trace if each.name in SOFTMAXES for one in each.outputs}
    places = [trace.taken(place).storage for each in instance.scores for place in each.places]
    return not instance.softmaxes and bool(places) and {*places} <= softmaxes


def _violations(evidence: Evidence) -> Iterator[Finding]:
    table = evidence.base
    line, sums_line = table.instance.scores_location, table.instance.sums_location
    weighty = table.weight.abs() > NEGLIGIBLE_WEIGHT
    for name, owner in (("query", table.query), ("key", table.key)):
        is_mixed = bool(((owner.stream == SEVERAL) & weighty).any())
        if is_mixed and set(evidence.roles.values()) == {"q", "k", "v"}:
            wanted = next(each for each, role in evidence.roles.items() if role == name[0])
            told = f"{'keys' if name == 'key' else 'queries'} are made of several inputs, not of {wanted} alone"
            found = "keys-from-their-input" if name == "key" else "queries-from-their-input"
            yield Finding("violation", found, "projections", told, line)
            return
        several = (owner.token == SEVERAL) & weighty
        if bool(several.any()) and _are_products_of_weights(table):
            message = "its weights are products of those of two attentions"
            yield Finding("open", f"{name}-of-one-token", "projections", message, line)
        elif bool(several.any()):
            yield Finding(
                "violation",
                f"{name}-of-one-token",
                "projections",
                f"a {name} depends on more than one token ({int(several.sum())} of {len(several)} scores)",
                line,
            )
    if table.query.stream.numel() == 0:
        return
    yield from _samples(evidence)
    yield from _streams(evidence)
    yield from _heads(evidence, weighty)
    values = table.values
    used = (values.score >= 0) & (values.weight.abs() > NEGLIGIBLE_WEIGHT)
    key_token = table.key.token[values.score.clamp(min=0)]
    both = used & (key_token >= 0)
    if values.of_neighbours:
        message = "a convolution of the values is added to them: each holds its neighbours as well"
        yield Finding("design", "values-of-neighbours", "projections", message, sums_line)
    elif not values.of_pairs and bool((both & (values.token == SEVERAL)).any()):
        yield Finding(
            "violation", "value-of-one-token", "projections", "a value depends on more than one token", sums_line
        )
        return
    if values.of_pairs:
        message = "a value is of two tokens, its key's and the query's: a relation of the two (relational attention)"
        yield Finding("design", "values-of-pairs", "projections", message, sums_line)
    wrong = both & (values.token >= 0) & (values.token != key_token)
    if bool(wrong.any()) and _is_part_delayed(evidence, wrong, both, key_token - values.token):
        message = (
            "a part of each value is projected from the token before its key's, the rest from its key's (token shift)"
        )
        yield Finding("design", "delayed-values", "projections", message, sums_line)
    elif bool(wrong.any()) and not values.of_pairs:
        row, term = (int(each) for each in wrong.nonzero()[0])
        yield Finding(
            "violation",
            "value-of-the-key",
            "weighted sum",
            f"the weight of key {int(key_token[row, term])} is given to the value of token "
            f"{int(values.token[row, term])}",
            sums_line,
        )
    key_sample = table.key.sample[values.score.clamp(min=0)]
    mixed = both & (values.sample >= 0) & (key_sample >= 0) & (values.sample != key_sample)
    if bool(mixed.any()):
        yield Finding(
            "violation",
            "value-of-the-sample",
            "weighted sum",
            "weights are given to values of another sample",
            sums_line,
        )
    yield from _one_query(evidence, used)
    if bool((used & (values.head == SEVERAL)).any()) or _are_values_summed(table):
        message = "the weights of a head are given to the sum of the values of several heads"
        yield Finding("violation", "value-heads-paired", "heads", message, sums_line)
        return
    if table.whole and table.num_heads > 2 and not values.of_pairs:
        yield from _groups(evidence)


def _is_part_delayed(evidence: Evidence, wrong: Tensor, used: Tensor, delay: Tensor) -> bool:
    """Whether the values of one projection are all of the token before the key's, and those of another of the key's.

    Args:
        evidence: of the rows of projections, where what was mixed before tells them apart.
        wrong: (sums, terms): whether a value is not of the token of its key.
        used: whether it has a weight.
        delay: how many tokens it stands before its key.
    """
    stream = evidence.base.values.stream
    if evidence.base.streams == tuple(evidence.roles) or bool((delay[wrong] != 1).any()):
        return False
    own = used & (delay == 0) & ~wrong
    delayed, kept = set(stream[wrong].tolist()), set(stream[own].tolist())
    return bool(kept) and min(delayed) >= 0 and not delayed & kept


def samples_attend(table: AttentionTable) -> bool:
    """Whether queries of one sample give weight to keys of another."""
    mixed = (table.query.sample != table.key.sample) & (table.query.sample != NONE) & (table.key.sample != NONE)
    return bool((mixed & (table.weight.abs() > NEGLIGIBLE_WEIGHT)).any())


def with_samples_as_tokens(evidence: Evidence) -> Evidence:
    """The same of one sequence, in which the tokens of each sample follow on those of the one before.

    Samples that are a token each, whole, are the tokens.
    """

    def joined(table: AttentionTable) -> AttentionTable:
        query, key, values = table.query, table.key, table.values
        is_whole = all(bool((each.token == SEVERAL).all()) for each in (query, key))
        count = 1 if is_whole else 1 + max(int(each.token.max()) for each in (query, key, values))

        def token(owner: Owners | ValueTable) -> Tensor:
            is_one = (owner.sample >= 0) & ((owner.token >= 0) | is_whole)
            within = torch.zeros_like(owner.token) if is_whole else owner.token
            return torch.where(is_one, owner.sample * count + within, owner.token)

        return replace(
            table,
            query=replace(query, token=token(query), sample=query.sample.clamp(max=0)),
            key=replace(key, token=token(key), sample=key.sample.clamp(max=0)),
            values=replace(values, token=token(values), sample=values.sample.clamp(max=0)),
        )

    return replace(evidence, base=joined(evidence.base), fresh=joined(evidence.fresh), equal=None)


def _samples(evidence: Evidence) -> Iterator[Finding]:
    table = evidence.base
    if samples_attend(table):
        yield Finding(
            "violation",
            "samples-apart",
            "scores",
            "queries of one sample are multiplied by keys of another: the batch is mixed",
            table.instance.scores_location,
        )


def _streams(evidence: Evidence) -> Iterator[Finding]:
    table, roles = evidence.base, evidence.roles
    query, key = (_role(evidence, each.stream) for each in (table.query, table.key))
    value = _role(evidence, table.values.stream[table.values.score >= 0])
    line = table.instance.scores_location
    if "" in (query, key, value):
        return
    sources = [_name(evidence, each) for each in (table.key.stream, table.values.stream[table.values.score >= 0])]
    if key == value == "ids" and sources[0] != sources[1] and _are_translated(sources):
        message = f"keys are made of {sources[0]}, values of {sources[1]}"
        yield Finding("violation", "values-from-the-keys-input", "projections", message, line)
        return
    if {"q", "k", "v"} <= set(roles.values()):
        if table.of_no_token and key == value:  # learned queries that pool one sequence, handed over as all three
            return
        if key == value and not any(_is_told(name) for name, role in roles.items() if role in ("k", "v")):
            return  # two sequences to attend to, as a text and a picture
        for name, found, wanted in (("queries", query, "q"), ("keys", key, "k"), ("values", value, "v")):
            if found != wanted and found in ("q", "k", "v") and not evidence.is_optional[wanted]:
                if not any(_is_named(name) for name, role in roles.items() if role in (found, wanted)):
                    continue  # their order alone said which is which
                if {found, wanted} == {"k", "v"} and _are_set_equal(evidence, wanted, found):
                    yield Finding("note", f"{name}-from-their-input", "projections", f"{name} are {found}, on purpose")
                    continue
                yield Finding(
                    "violation", f"{name}-from-their-input", "projections", f"{name} are made of {found}", line
                )
    elif key != value and {"x", "context"} <= set(roles.values()):
        names = {role: name for name, role in roles.items()}
        is_of_both = KEYS_AND_VALUES.search(names["context"]) is not None
        if call_meaning(names["context"]) == "context" or is_of_both:
            told = names if is_of_both else {key: key, value: value}
            message = f"keys are made of {told[key]}, values of {told[value]}"
            yield Finding("violation", "values-from-the-keys-input", "projections", message, line)
        else:  # nothing says that it is a sequence to attend to
            message = (
                f"keys are made of {names[key]}, values of {names[value]}, one for each token (relational attention)"
            )
            yield Finding("design", "values-of-symbols", "projections", message, line)
    elif query == "context" and key == "x":
        names = {role: name for name, role in roles.items()}
        is_guessed = call_meaning(names["context"]) != "context" or names["context"] in SIDE_BY_SIDE
        if is_guessed or (call_meaning(names["x"]) is None and is_encoded(names["x"])):  # nothing says which asks
            message = (
                f"queries are made of {names['context']}, keys and values of {names['x']}: {names['x']} is the context"
            )
            yield Finding("note", "queries-from-x", "projections", message, line)
        else:
            message = "queries are made of the context, keys and values of x"
            yield Finding("violation", "queries-from-x", "projections", message, line)


def _are_set_equal(evidence: Evidence, wanted: str, found: str) -> bool:
    """Whether keys are the values, or values the keys, on purpose.

    A line of the code does nothing but set the one to the other, or what would be computed of it is commented out.
    """
    names = {role: re.escape(name) for name, role in evidence.roles.items()}
    if any(role == wanted and is_commented_out(evidence.code, name) for name, role in evidence.roles.items()):
        return True
    line = rf"^[ \t]*{names[wanted]}[ \t]*=[ \t]*{names[found]}[ \t]*(?:#.*|;.*|=[^=].*)?$"
    return re.search(line, evidence.code, re.M) is not None


def _heads(evidence: Evidence, weighty: Tensor) -> Iterator[Finding]:
    """Functions of q, k and v with heads: query head h reads key head h // group, values likewise."""
    table = evidence.base
    query, key = table.query.head, table.key.head
    known = (query >= 0) & (key >= 0) & weighty
    if bool(((query == SEVERAL) | (key == SEVERAL)).any()) and bool((query != NONE).any()):
        yield Finding(
            "violation",
            "heads-apart",
            "heads",
            "queries or keys of several heads are mixed",
            table.instance.scores_location,
        )
        return
    if not bool(known.any()):
        return
    group = _group(int(query[known].max()) + 1, int(key[known].max()) + 1)
    wrong = known & (key != query // group)
    if bool(wrong.any()):
        at = int(wrong.nonzero()[0])
        yield Finding(
            "violation",
            "heads-paired",
            "heads",
            f"query head {int(query[at])} is multiplied by key head {int(key[at])}, not {int(query[at]) // group}",
            table.instance.scores_location,
        )
        return
    values = table.values
    used = (values.score >= 0) & (values.head >= 0) & (values.weight.abs() > NEGLIGIBLE_WEIGHT)
    of_query = query[values.score.clamp(min=0)]
    if bool(used.any()):
        heads = max(int(key.max()), int(values.head[used].max())) + 1  # as many of the values as of the keys
        group = _group(int(query.max()) + 1, heads)
        wrong = used & (of_query >= 0) & (values.head != of_query // group)
        if bool(wrong.any()):
            row, term = (int(each) for each in wrong.nonzero()[0])
            yield Finding(
                "violation",
                "value-heads-paired",
                "heads",
                f"weights of query head {int(of_query[row, term])} are given to values of head "
                f"{int(values.head[row, term])}",
                table.instance.sums_location,
            )


def _are_values_summed(table: AttentionTable) -> bool:
    """Whether all heads have the same values, sums of as many numbers of a projection as heads; not so keys."""
    instance, run, heads = table.instance, table.instance.run, table.num_heads
    if heads < 2 or not table.whole or len(pairs_alike(_values_by_head(table))) < heads * (heads - 1) // 2:
        return False
    places = [instance.values_place(each) for each in instance.sums]
    if any(run.owner_of(run.tags.inputs[index][number]) for index, number in places):
        return False
    factors = [place for each in instance.scores for place in each.places]
    values, others = ({run.trace.taken(place).storage for place in each} for each in (places, factors))
    for operation in run.trace.operations[: instance.sums[0].operation.index]:
        if operation.name not in ("sum", "mean") or not run.owner_of(run.tags.inputs[operation.index][0]):
            continue
        numbers = operation.inputs[0].data.numel() // max(1, operation.outputs[0].data.numel())
        made = run.trace.made_of([operation.outputs[0].storage])
        if numbers == heads and made & values and not made & others:
            return True
    return False


def _values_by_head(table: AttentionTable) -> list[Tensor]:
    """Of each head the values that the last query reads."""
    values, scores = table.values, table.values.score.clamp(min=0)
    mine = (values.score >= 0).any(-1) & (table.of_last_query[scores] | (values.score < 0)).all(-1)
    heads = table.head[scores]
    return [values.value[mine & ((heads == head) | (values.score < 0)).all(-1)] for head in range(table.num_heads)]


def _groups(evidence: Evidence) -> Iterator[Finding]:
    """Heads that share keys share values as well, and no others; none shares its queries too."""
    table = evidence.base
    shared = [pairs_alike(each) for each in (table.keys_by_head, _values_by_head(table))]
    of_queries = heads_alike(table)
    same = sorted(shared[0] & shared[1] & of_queries)
    if same:
        message = f"heads {same[0][0]} and {same[0][1]} have the same queries, keys and values: they compute the same"
        yield Finding("violation", "heads-differ", "heads", message, table.instance.scores_location)
        return
    if not all(shared) or shared[0] == shared[1]:
        return
    if shared[0] & of_queries:  # one head, whose values are summed in parts
        return
    one, other = sorted(shared[0] - shared[1] or shared[1] - shared[0])[0]
    of_both, of_none = ("keys", "values") if (one, other) in shared[0] else ("values", "keys")
    message = (
        f"heads {one} and {other} have the same {of_both} and not the same {of_none}: they are grouped in two ways"
    )
    yield Finding("violation", "value-heads-paired", "heads", message, table.instance.sums_location)


def _group(query_heads: int, key_heads: int) -> int:
    return max(1, query_heads // max(1, key_heads))


def _one_query(evidence: Evidence, used: Tensor) -> Iterator[Finding]:
    """The terms of a weighted sum are weights of one query of one head."""
    table, values = evidence.base, evidence.base.values
    scores = values.score.clamp(min=0)
    owners = {"queries": table.query.token[scores]}
    if table.whole and bool((table.query.token != table.key.token).any()):  # else heads cannot be counted
        owners["heads"] = table.head[scores]
    for name, owner in owners.items():
        top = torch.where(used, owner, -9).amax(-1)
        low = torch.where(used, owner, 1 << 30).amin(-1)
        if bool(((top != low) & used.any(-1)).any()):
            if name == "heads" and any(
                is_chosen(table.instance.run.trace, each.operation.index, 0) for each in table.instance.scores
            ):
                message = (
                    "keys are looked up by their numbers, some of them twice for one query: heads are not told apart"
                )
                yield Finding("open", "heads-unknown", "heads", message, table.instance.scores_location)
                return
            yield Finding(
                "violation",
                f"sum-of-one-of-{name}",
                "weighted sum",
                f"a weighted sum takes weights of several {name}",
                table.instance.sums_location,
            )
            return
