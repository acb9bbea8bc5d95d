"""Weights that are returned beside the output: which of their axes are heads, queries and keys."""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping, Sequence

from torch import Tensor

from regard.check.properties.documentation import documentation_of
from regard.check.properties.finding import Evidence, Finding
from regard.check.roles.table import AttentionTable
from regard.check.target import Invocation
from regard.check.target.argument import source_of
from regard.check.target.documented_shapes import documented_shape, letters_of

__all__ = ["returned_weight_findings"]

_SHAPE = re.compile(r"[(\[]\s*((?:[\w.]+\s*(?:,|x|\u00d7|\*)\s*){2,4}[\w.]+)\s*[)\]]")
_BETWEEN = re.compile(r"\s*(?:,|\u00d7|\*|\bx\b)\s*")
_OF_WEIGHTS = re.compile(
    r"\b(?:att(?:entio)?n|softmax)[\s_-]*(?:weights?|maps?|prob\w*|matri\w+|scores?|distributions?)"
    r"|\b(?:weights?|alignments?|attn|attention|attns)\b",
    re.I,
)
_OTHERS = re.compile(r"\b(?:mask\w*|bias\w*|hidden|cache\w*|input\w*)\b", re.I)
"""Of something else, in the words before a shape."""
_CALLED = re.compile(r"(?:=\s*[\w.]+|\}|\bAttention)\Z")
"""Before the arguments of a call, as in output, weights = attn(q, kv, kv), and of a formula, Attention(Q, K, V)."""
_COUNTED = ("ijk", "ijkl")
"""Names of axes by their order, of which i may be the sample."""
_AXES = {
    "head": re.compile(r"\w*heads?|n?h", re.I),
    "query": re.compile(r"(?:[ltns]|len|seq|num)?_?q\w*|tgt\w*|target\w*|\w+_(?:q|query|tgt|out)|t_?out|i", re.I),
    "key": re.compile(
        r"(?:[ltns]|len|seq|num)?_?k(?:v|eys?|_len)?|src\w*|source\w*|\w+_(?:k|kv|key|src|in)|t_?in|j", re.I
    ),
}
_AVERAGED = re.compile(r"\b(?:average[ds]?|mean)\b[^.;]{0,30}\bheads\b", re.I)
_SMALL = 1e-9


def returned_weight_findings(invocation: Invocation, evidence: Evidence) -> Iterator[Finding]:
    """What the axes of returned weights are, where the documentation names others, or where no order has them so.

    Args:
        invocation: the call.
        evidence: of its one attention.
    """
    table = evidence.base
    run, text = table.instance.run, documentation_of(invocation.target)
    if not table.whole or table.of_no_token:
        return
    rows_of_tags, named = table.rows_of_tags(), _named(invocation, table)
    for record, tags in list(zip(run.trace.outputs, run.tags.returned, strict=True))[1:]:
        rows = rows_of_tags[tags]
        if rows.ndim < 2 or not rows.numel() or bool((rows < 0).any()):
            continue
        axes = _axes(table, rows)
        line = table.instance.scores_location
        if table.num_heads > 1 and "head" not in axes and _is_one_head(table, rows, record.data):
            if _AVERAGED.search(text):
                head = int(table.head[rows].flatten()[0])
                message = f"the returned weights are those of head {head}; by the documentation, the mean of all heads"
                yield Finding("violation", "weights-returned-as-told", "weights", message, line)
                return
            continue
        listed = f"({', '.join(each or '?' for each in axes)})"
        told = next((each for each in _told(text, len(axes)) if _differ(each, axes, named)), None)
        if told is not None:
            message = f"the weights that are returned have the axes {listed}; by the documentation ({', '.join(told)})"
            yield Finding("violation", "weights-returned-as-told", "weights", message, line)
            return
        if {"head", "query", "key"} <= set(axes) and axes.index("key") < axes.index("head") < axes.index("query"):
            message = (
                f"the weights that are returned have the axes {listed}: keys, heads and queries have changed places"
            )
            yield Finding("violation", "weights-returned-as-told", "weights", message, line)
            return


def _axes(table: AttentionTable, rows: Tensor) -> list[str]:
    """What changes along each axis of returned weights; empty where several things do, or nothing."""
    parts = {
        "sample": table.query.sample.clamp(min=0),
        "head": table.head,
        "query": table.query.token,
        "key": table.key.token,
    }
    found = []
    for axis in range(rows.ndim):
        moved = rows.movedim(axis, 0)
        names = [name for name, each in parts.items() if bool((each[moved] != each[moved[:1]]).any())]
        found.append(names[0] if len(names) == 1 else "")
    return found


def _is_one_head(table: AttentionTable, rows: Tensor, returned: Tensor) -> bool:
    heads, weights = table.head[rows], table.weight[rows]
    is_one = bool((heads == heads.flatten()[0]).all())
    return is_one and bool(((weights - returned.double()).abs() < _SMALL).all())


def _told(text: str, count: int) -> Iterator[list[str]]:
    """The axes of each shape that a documentation gives to weights, as many as there are."""
    for found in _SHAPE.finditer(text):
        names = [each for each in _BETWEEN.split(found[1]) if each]
        words = re.split(r"[.;,\n)]", text[: found.start()])[-1]
        words = words if re.search(r"\w", words) else text[max(0, found.start() - 40) : found.start()]
        is_counted = "".join(names).lower() in _COUNTED
        if (
            not is_counted
            and not _CALLED.search(text, 0, found.start())
            and len(names) == count
            and _OF_WEIGHTS.search(words)
            and not _OTHERS.search(words)
        ):
            yield names


def _named(invocation: Invocation, table: AttentionTable) -> dict[str, str]:
    """The axes of tokens by the names that the documentation gives them in the shapes of the sequences.

    As in "query (batch, output_len, dim), context (batch, query_len, dim)", where query_len counts the keys. What one
    sequence has of both is left out.
    """
    found: dict[str, set[str]] = {}
    for stream in invocation.streams:
        shape = documented_shape(source_of(invocation.target), stream.argument)
        if stream.argument not in table.streams or len(stream.token_axes) != 1:
            continue
        if len(shape) != invocation.arguments[stream.argument].ndim or letters_of(shape)[stream.token_axes[0]] == "b":
            continue
        number = table.streams.index(stream.argument)
        sides = {"query": table.query, "key": table.key}
        found.setdefault(shape[stream.token_axes[0]], set()).update(
            side for side, owners in sides.items() if bool((owners.stream == number).any())
        )
    return {name: next(iter(sides)) for name, sides in found.items() if len(sides) == 1}


def _differ(told: Sequence[str], axes: Sequence[str], named: Mapping[str, str]) -> bool:
    """Whether an axis that is named as one thing is another; names that say nothing are right.

    Args:
        told: the names of the axes.
        axes: what they are.
        named: what the documentation calls by such a name elsewhere.
    """
    for name, axis in zip(told, axes, strict=True):
        meant = [named[name]] if name in named else [each for each, one in _AXES.items() if one.fullmatch(name)]
        if len(meant) == 1 and axis and axis != meant[0] and meant[0] in axes:
            return True
    return False
