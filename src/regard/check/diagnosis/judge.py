"""What sort of thing was handed over, and who is to judge it."""

from __future__ import annotations

from regard.check.behaviour.dropout import without_dropout
from regard.check.behaviour.questions import examine
from regard.check.blocks.attentions import is_block
from regard.check.blocks.judgement import judge_block
from regard.check.search.budget import SearchBudget
from regard.check.search.diagnose import diagnose
from regard.check.search.grid_tables import judge_grid_table, looks_like_grid_table
from regard.check.search.modules import whole
from regard.check.search.stage import Diagnosis
from regard.check.search.subject import Subject
from regard.check.search.table_calls import looks_like_table
from regard.check.search.tables import judge_table

__all__ = ["judge"]


def judge(subject: Subject, *, budget: SearchBudget) -> Diagnosis:
    """Everything that can be found out: of a table of positions, a block or decoder, or an attention.

    Args:
        subject: the implementation.
        budget: how much the search may do.

    Raises:
        InputError: it cannot be made.
    """
    if looks_like_table(subject):
        return judge_table(subject)
    if looks_like_grid_table(subject):
        return judge_grid_table(subject)
    module = None if subject.function is not None else whole(subject)
    if module is not None and is_block(module):
        with without_dropout():
            return judge_block(subject, budget=budget, judge=attention)
    return attention(subject, budget=budget)


def attention(subject: Subject, *, budget: SearchBudget) -> Diagnosis:
    """An attention by itself: what it computes, and how it behaves."""
    with without_dropout():
        diagnosis = diagnose(subject, budget=budget)
    examine(diagnosis)
    return diagnosis
