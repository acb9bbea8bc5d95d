"""What sort of thing was handed over, and who is to judge it."""

from __future__ import annotations

from regard.check.behaviour import behave, quiet
from regard.check.blocks import is_block, judge_block
from regard.check.diagnose import diagnose
from regard.check.search import Deadline
from regard.check.settings import whole
from regard.check.stage import Diagnosis
from regard.check.subject import Subject
from regard.check.tables import judge_table, looks_like_table

__all__ = ["judge"]


def judge(subject: Subject, *, deadline: Deadline) -> Diagnosis:
    """Everything that can be found out: of a table of positions, a block or decoder, or an attention.

    Args:
        subject: the implementation.
        deadline: when the search gives up.

    Raises:
        InputError: it cannot be made.
    """
    if looks_like_table(subject):
        return judge_table(subject)
    module = None if subject.function is not None else whole(subject)
    if module is not None and is_block(module):
        with quiet():
            return judge_block(subject, deadline=deadline, judge=attention)
    return attention(subject, deadline=deadline)


def attention(subject: Subject, *, deadline: Deadline) -> Diagnosis:
    """An attention by itself: what it computes, and how it behaves."""
    with quiet():
        diagnosis = diagnose(subject, deadline=deadline)
    behave(diagnosis)
    return diagnosis
