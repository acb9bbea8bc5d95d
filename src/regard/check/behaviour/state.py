"""State that is kept: a call that changes what the next one gives."""

from __future__ import annotations

from torch import Tensor

from regard.check.behaviour.calls import (
    copied_module,
    first_line_of,
    output_gap,
    output_of_object,
    with_other_numbers,
    with_tensors,
)
from regard.check.behaviour.dropout import seeded, without_dropout
from regard.check.behaviour.examination import Examination
from regard.check.search.calls import Failed

__all__ = ["state_kept"]


def state_kept(examination: Examination) -> None:
    """The same input twice, and once more after another, of one object and with the same seed."""
    if examination.diagnosis.is_random:
        return
    call, case, _ = examination.pairs[0]
    with without_dropout():
        module = copied_module(call)
        other = with_tensors(case, with_other_numbers)
        outputs: list[Tensor] = []
        for each in (case, case, other, case):
            try:
                with seeded():
                    output = output_of_object(call, module, each)
            except Failed as error:
                if outputs:
                    examination.diagnosis.why.append(f"a second call with the same sizes raises {first_line_of(error)}")
                    return
                raise
            if each is case:
                outputs.append(output)
    gap = max(output_gap(outputs[0], output) for output in outputs[1:])
    if gap:
        examination.add_mistake("stateful", number=gap)
