"""The attentions of a long loop, as of a decoder that attends once for each token it makes."""

from __future__ import annotations

from collections.abc import Sequence

from regard.check.properties.finding import Finding
from regard.check.roles.instances import AttentionInstance

__all__ = ["judged_of_loops", "loop_findings"]

MOST_STEPS = 8
"""Steps of a loop that are all judged."""
FIRST_STEPS = 3
LAST_STEPS = 1
"""Those of a longer loop that are: what a loop begins with, what goes on, and its end."""


def judged_of_loops(instances: Sequence[AttentionInstance]) -> list[AttentionInstance]:
    """The attentions of a run without those in the middle of a long loop: one line of one module, run over and over."""
    steps: dict[tuple[str, str], list[AttentionInstance]] = {}
    for each in instances:
        steps.setdefault((each.module, str(each.scores_location)), []).append(each)
    left = {
        id(each)
        for of_line in steps.values()
        if len(of_line) > MOST_STEPS
        for each in of_line[FIRST_STEPS : len(of_line) - LAST_STEPS]
    }
    return [each for each in instances if id(each) not in left]


def loop_findings(instances: Sequence[AttentionInstance], judged: Sequence[AttentionInstance]) -> list[Finding]:
    """A note of how many were not judged."""
    if len(judged) == len(instances):
        return []
    told = (
        f"{len(instances)} attentions were run, most of them in a loop; "
        f"of a loop the first {FIRST_STEPS} steps and the last are judged"
    )
    return [Finding("note", "steps-of-a-loop", "scores", told)]
