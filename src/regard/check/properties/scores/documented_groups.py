"""Heads that share keys, where the code says of which heads a group is: in words, or by the axes of its patterns."""

from __future__ import annotations

import inspect
import itertools
import re
from collections.abc import Iterator, Sequence

from regard.check.properties.code import code_of, documentation_of_functions, parts_of
from regard.check.properties.documentation import documentation_of, groups_are_consecutive
from regard.check.properties.finding import Evidence, Finding
from regard.check.properties.head_pairs import shared_heads
from regard.check.target.argument import source_of

__all__ = ["documented_group_findings"]

COMMENT = re.compile(r"#+[ \t]*(\w[^\n]*)")
OF_A_GROUP = re.compile(r"\b(?:groups?|grouped|gqa|(?:kv|keys?)[_ -]heads?)\b", re.I)
"""In a comment: that it is of heads that share keys, and not of how heads are split."""
PATTERN = re.compile(r"""(repeat\s*\([^'"\n]*)?(['"])([^'"\n]*->[^'"\n]*)\2""")
"""A pattern of einops, and whether something is repeated by it."""
JOINED = re.compile(r"\(\s*([A-Za-z_]\w*)\s+([A-Za-z_]\w*)\b[^()]*\)")
"""Axes of a pattern that are one: the first of them is the outer one."""
SHAPE = re.compile(
    r"#[^\n(]*\(([^()\n]+)\)[ \t]*\n[^#\n]*\.(?:expand|view|reshape)\(([^()\n]+)\)[ \t]*\n"
    r"(?!\s*\.(?:transpose|permute)\()"
)
"""A comment that is a shape, above a line that ends with axes, which nothing exchanges on the next line."""
REPEATS = "repeat_kv"
"""A function of LLaMA, and of what came after it: its documentation is torch.repeat_interleave(x, dim=2, repeats)."""
KEY_HEADS, TIMES = re.compile(r"kv|key"), re.compile(r"rep|times|copies|group")
"""In the names of axes: heads of the keys, and how often each is taken."""


def documented_group_findings(evidence: Evidence, target: object) -> Iterator[Finding]:
    """Groups of heads that share keys, and are not of consecutive heads as the code says of them.

    Args:
        evidence: of an attention.
        target: what is called.
    """
    shared = shared_heads(evidence.base)
    if not shared or (0, 1) in shared:
        return
    says = _who_says_so(target)
    if not says:
        return
    one, other = min(shared)
    message = f"heads {one} and {other} share their keys; by {says} consecutive heads do, as 0 and 1"
    yield Finding("violation", "heads-paired", "heads", message, evidence.base.instance.scores_location)


def _who_says_so(target: object) -> str:
    """What says that consecutive heads are of one group; empty where nothing does."""
    if groups_are_consecutive("\n\n".join((documentation_of(target), documentation_of_functions(target)))):
        return "the documentation"
    comments = COMMENT.findall(source_of(target))
    if any(OF_A_GROUP.search(each) and groups_are_consecutive(each) for each in comments):
        return "a comment"
    if any(map(_are_exchanged, SHAPE.findall(code_of(target)))):
        return "the order of the axes in a comment"
    if any(inspect.isfunction(each) and each.__name__ == REPEATS for each, _ in parts_of(target)):
        return f"the name of {REPEATS}, that of LLaMA's function,"
    found = PATTERN.findall(code_of(target))
    crossed = _crossed([(bool(repeats), pattern) for repeats, _, pattern in found])
    return f"the pattern of the queries, ({crossed[0]} {crossed[1]})," if crossed else ""


def _are_exchanged(shapes: tuple[str, str]) -> bool:
    """Whether a comment has the heads of the keys outside of how often each is taken, and the line below inside."""
    told, written = ([axis.strip().lower() for axis in each.split(",")] for each in shapes)
    return len(told) == len(written) and any(
        KEY_HEADS.search(heads) is not None
        and TIMES.search(times) is not None
        and {heads, times} <= {*written}
        and written.index(heads) == written.index(times) + 1
        for heads, times in itertools.pairwise(told)
    )


def _crossed(patterns: Sequence[tuple[bool, str]]) -> tuple[str, str] | None:
    """The group and the member, where queries have the group as the outer axis, and keys repeated for them the inner.

    Args:
        patterns: of einops; and of each whether something is repeated by it.
    """
    inner = set[tuple[str, str]]()
    for repeats, pattern in patterns:
        before, _, after = pattern.partition("->")
        known = set(re.findall(r"[A-Za-z_]\w*", before))
        if repeats:
            inner |= {(one, two) for one, two in JOINED.findall(after) if one not in known and two in known}
    outer = {pair for repeats, pattern in patterns if not repeats for pair in JOINED.findall(pattern)}
    return next(((group, member) for member, group in sorted(inner) if (group, member) in outer), None)
