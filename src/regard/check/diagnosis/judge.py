"""What sort of thing was handed over, and who is to judge it."""

from __future__ import annotations

import torch
from torch import Tensor

from regard.check.behaviour.dropout import without_dropout
from regard.check.behaviour.questions import examine
from regard.check.blocks.attentions import is_block
from regard.check.blocks.call import called_block
from regard.check.blocks.judgement import judge_block
from regard.check.blocks.mistakes import add_mistake
from regard.check.sandbox.answer import error_text
from regard.check.search.budget import SearchBudget
from regard.check.search.diagnose import diagnose
from regard.check.search.modules import whole
from regard.check.search.stage import Diagnosis
from regard.check.search.subject import Subject
from regard.check.search.table_calls import looks_like_table
from regard.check.search.tables import judge_table

__all__ = ["judge"]

NEGLIGIBLE = 1e-9
"""A smaller change of an output is rounding."""


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
    module = None if subject.function is not None else whole(subject)
    if module is not None and is_block(module):
        with without_dropout():
            diagnosis = judge_block(subject, budget=budget, judge=attention)
        _judge_dropout(diagnosis)
        return diagnosis
    return attention(subject, budget=budget)


def attention(subject: Subject, *, budget: SearchBudget) -> Diagnosis:
    """An attention by itself: what it computes, and how it behaves."""
    with without_dropout():
        diagnosis = diagnose(subject, budget=budget)
    examine(diagnosis)
    return diagnosis


def _judge_dropout(diagnosis: Diagnosis) -> None:
    """Whether dropout in any part of it makes two calls in eval() differ; to be asked while dropout is on."""
    outer, _ = called_block(diagnosis.subject)
    if outer is None:
        return
    outputs: list[Tensor] = []
    try:
        for outer.seed in (0, 1, 0):
            outputs.append(outer(outer.x()))
        with without_dropout():
            for outer.seed in (0, 1):
                outputs.append(outer(outer.x()))
    except Exception as error:
        diagnosis.why.append(f"called as a whole, {error_text(error)}")
        return
    one, other, again, still, moved = outputs
    gap = float((one - other).abs().max())
    if gap > NEGLIGIBLE and torch.equal(one, again) and torch.equal(still, moved):
        add_mistake(diagnosis, "dropout-in-eval", number=gap)
