"""What is wrong with a block or a decoder, inside and around its attentions."""

from __future__ import annotations

from collections.abc import Callable

from regard.check.blocks.attentions import attentions_in
from regard.check.blocks.call import called_block
from regard.check.blocks.inner import judge_attentions
from regard.check.blocks.leaks import judge_leaks
from regard.check.blocks.masks import judge_masks
from regard.check.blocks.surroundings import judge_context, judge_inputs, judge_wiring
from regard.check.sandbox.answer import error_text
from regard.check.search.budget import SearchBudget
from regard.check.search.diagnose import diagnose
from regard.check.search.stage import Diagnosis
from regard.check.search.subject import Subject

__all__ = ["judge_block"]


def judge_block(subject: Subject, *, budget: SearchBudget, judge: Callable[..., Diagnosis] = diagnose) -> Diagnosis:
    """What is wrong with a block, inside and around its attention.

    Args:
        subject: a block, a layer or a whole model.
        budget: how much the search may do.
        judge: judges an attention that is by itself.
    """
    diagnosis = Diagnosis(subject)
    if not subject.roles() or not {"x", "ids", "q"} & set(subject.roles().values()):
        diagnosis.unexplained.append(f"its arguments ({', '.join(subject.called)}) are not named x or ids")
        return diagnosis
    outer, failed = called_block(subject)
    if outer is None:
        diagnosis.unexplained.append(failed or "it could not be called")
        return diagnosis
    if outer.layout == "tbd":
        diagnosis.conventions.append("tokens first: (tokens, batch, d_model)")
    attentions = list(attentions_in(outer.module))
    judge_attentions(diagnosis, outer, attentions, budget, judge)
    inner = any(stage.found is not None and stage.found.causes for stage in diagnosis.stages)
    for look in (judge_inputs, judge_wiring, judge_context, judge_masks):
        try:
            look(diagnosis, outer, attentions)
        except Exception as error:
            diagnosis.why.append(f"called as a whole, {error_text(error)}")
    if not inner and not diagnosis.behaviour:
        judge_leaks(diagnosis, outer)
    return diagnosis
