"""Post-norm blocks: each norm takes a sum with what was there before, that of every attention as well."""

from __future__ import annotations

import itertools
import re
from collections.abc import Iterator, Sequence
from typing import Any

from regard.check.properties.documentation import documentation_of, name_and_documentation
from regard.check.properties.finding import Finding
from regard.check.properties.modules.norm_calls import norm_calls, norm_paths, parent_of
from regard.check.properties.modules.residuals import PRE_NORM, is_joined
from regard.check.roles.instances import AttentionInstance, TaggedRun
from regard.check.roles.table import NORMALIZATIONS
from regard.check.trace.operation import Operation, Trace, reached

__all__ = ["norm_of_sum_findings", "normed_alone_findings", "passed_norm_residual_findings", "passed_over_findings"]


_OF_SUMS = re.compile(r"norm\w*\(\s*x\s*\+", re.I)
"""In a documentation: each norm takes the sum, as in LayerNorm(x + Sublayer(x))."""
_POST_NORM = re.compile(rf"post[-_ ]?(?:layer[-_ ]?|rms[-_ ]?)?norm|post[-_ ]?ln|{_OF_SUMS.pattern}", re.I)
"""The same in a name, or by the name of the arrangement."""


def norm_of_sum_findings(target: Any, run: TaggedRun, instances: Sequence[AttentionInstance]) -> Iterator[Finding]:
    """An attention whose output is normalized before it is added, where the documentation says that the sum is.

    Args:
        target: what was called.
        run: the run.
        instances: its attentions.
    """
    if not _OF_SUMS.search(documentation_of(target)):
        return
    taken = dict(_taken_by_norms(target, run.trace))
    for instance in instances:
        sums = {each.operation.outputs[0].storage for each in instance.sums}
        attended, alone = run.trace.made_of(sums), set(sums)
        for operation in run.trace:
            if any(each.storage in alone for each in operation.inputs) and not is_joined(operation, attended):
                alone.update(each.storage for each in (*operation.outputs, *operation.written))
        for path, (norm, _) in taken.items():
            later = run.trace.operations[norm.index + 1 :]
            if norm.index < instance.sums[-1].operation.index or norm.inputs[0].storage not in alone:
                continue
            if any(is_joined(each, attended) for each in later):
                message = (
                    f"{path} normalizes what the attention returned, which is then added to its input: by the "
                    "documentation it normalizes the sum"
                )
                yield Finding("violation", "norm-as-documented", "block", message, norm.location)
                return


def passed_norm_residual_findings(
    target: Any, run: TaggedRun, instances: Sequence[AttentionInstance]
) -> Iterator[Finding]:
    """A sum that is added to what follows beside its norm, in what is said to be a post-norm block.

    There the norm stands on the way itself: what it returned is read, and added to what is made of it.

    Args:
        target: what was called.
        run: the run.
        instances: its attentions.
    """
    text = name_and_documentation(target)
    if not _POST_NORM.search(text) or PRE_NORM.search(text):
        return
    trace, calls = run.trace, list(norm_calls(target, run.trace))
    for instance in instances:
        attended = trace.made_of({each.operation.outputs[0].storage for each in instance.sums})
        total = next((each for each in trace if is_joined(each, attended)), None)
        norm = next((each for each in calls if total is not None and each.given == total.outputs[0].storage), None)
        if norm is None:
            continue
        made = trace.made_of([norm.returned])
        for operation in trace.operations[norm.last.index + 1 :]:
            if is_joined(operation, made) and norm.given in {each.storage for each in operation.inputs}:
                message = (
                    f"what the next sublayer returns is added to the sum that {norm.path} takes, and not to what it "
                    "returns, in what is said to be a post-norm block: the residual passes the norm by"
                )
                yield Finding("violation", "residual-behind-norm", "block", message, operation.location)
                return


def normed_alone_findings(target: Any, run: TaggedRun, instances: Sequence[AttentionInstance]) -> Iterator[Finding]:
    """An attention whose output goes through a norm alone, beside norms of the same block that take sums.

    Vaswani et al. 2017, "Attention Is All You Need", section 3.1: LayerNorm(x + Sublayer(x)) around each sublayer.

    Args:
        target: what was called.
        run: the run.
        instances: its attentions.
    """
    if len(instances) < 2:
        return
    taken = dict(_taken_by_norms(target, run.trace))
    reached = [run.trace.made_of({each.operation.outputs[0].storage for each in one.sums}) for one in instances]
    for instance, attended in zip(instances, reached, strict=True):
        if any(is_joined(operation, attended) for operation in run.trace):
            continue
        after = run.trace.operations[instance.sums[-1].operation.index + 1 :]
        first = next((path for path, (operation, _) in taken.items() if _takes(operation, after, attended)), None)
        others = [
            made for path, (_, made) in taken.items() if parent_of(path) == parent_of(first or "") and path != first
        ]
        if first is not None and any(is_joined(made, each) for made in others if made for each in reached):
            message = (
                f"{first} takes what an attention returned alone, and not its sum with what the attention read: the "
                "vector of the token itself is lost"
            )
            yield Finding("violation", "residual-of-the-input", "block", message, taken[first][0].location)
            return


def passed_over_findings(run: TaggedRun, instances: Sequence[AttentionInstance]) -> Iterator[Finding]:
    """An attention that reads nothing of the one before, and whose output is added to what a norm made of that one's.

    As a decoder's second attention that asks with what the layer was given. Attentions side by side are added first,
    and so is each of two streams to its own, before both become one.

    Args:
        run: the run.
        instances: its attentions.
    """
    trace = run.trace
    for first, second in itertools.pairwise(instances):
        attended = trace.made_of({each.operation.outputs[0].storage for each in first.sums})
        places = [place for each in second.scores for place in each.places]
        if any(trace.taken(each).storage in attended for each in places):
            continue
        read = trace.made_of({each.operation.outputs[0].storage for each in second.sums})
        normed = {
            each.outputs[0].storage
            for each in trace
            if each.name in NORMALIZATIONS and each.inputs[0].storage in attended - read
        }
        of_others = {
            each.operation.index for one in instances if one is not second for each in (*one.scores, *one.sums)
        }
        later = trace.operations[second.sums[-1].operation.index + 1 :]
        alone = reached(
            {each.operation.outputs[0].storage for each in second.sums},
            [each for each in later if each.index not in of_others],  # what another attention reads of it is that one's
        )
        joined = next((each for each in later if is_joined(each, alone)), None)
        if joined is not None and any(each.storage in normed for each in joined.inputs):
            message = (
                "what this attention read is added to what a norm made of the attention before, of which it reads "
                "nothing: it asks with what came before that one"
            )
            yield Finding("violation", "queries-from-their-input", "q", message, second.scores_location)
            return


def _taken_by_norms(target: Any, trace: Trace) -> Iterator[tuple[str, tuple[Operation, Operation | None]]]:
    """For each norm of the target its first operation, and what made the vectors that this takes."""
    paths = norm_paths(target)
    seen = set[str]()
    made: dict[int, Operation] = {}
    for operation in trace:
        if operation.module in paths - seen and operation.inputs:
            seen.add(operation.module)
            yield operation.module, (operation, made.get(operation.inputs[0].storage))
        if not operation.is_view or operation.written:
            made.update(dict.fromkeys([each.storage for each in operation.outputs], operation))


def _takes(operation: Operation, after: Sequence[Operation], attended: set[int]) -> bool:
    return operation in after and operation.inputs[0].storage in attended
