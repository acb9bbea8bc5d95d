"""What the properties say of one call: findings, and what is missing to judge it whole."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field

from regard.check.properties.finding import Finding
from regard.check.target import Invocation

__all__ = ["BY_HAND", "OPEN_QUESTIONS", "Analysis", "said_by"]

BY_HAND = frozenset({"weights-by-hand", "weights-divided-later"})
"""Notes of weights that are not known to sum to 1."""
OPEN_QUESTIONS = frozenset({"mask-unknown", "scores-bilinear", "heads-unknown"}) | BY_HAND
"""Notes that leave open whether it is attention."""
OF_SCORES = frozenset({"additive-scores", "scores-of-two-tokens", "weights-alone"})


@dataclass(eq=False)
class Analysis:
    """What the properties say of one call."""

    invocation: Invocation
    findings: list[Finding] = field(default_factory=list)
    num_attentions: int = 0
    has_feed_forward: bool = False
    """Whether it is more than an attention: an activation stands in it."""
    has_batch: bool = False
    """Whether it was called with several samples."""
    has_context: bool = False
    """Whether it had to be given a sequence of its own for keys and values."""
    reads_context: bool = False
    """Whether keys are made of it."""
    modules: list[str] = field(default_factory=list)
    """The path of each attention, in the order of the run; empty for what was handed over itself."""
    guessed: list[str] = field(default_factory=list)
    """Arguments of the call that may mean anything."""
    assumptions: list[str] = field(default_factory=list)
    """What was assumed in order to call it."""
    asked_masks: bool = False
    """Whether its masks and flags were judged as well."""
    is_first: bool = True
    """Whether it was the first call of its target."""
    is_relaid: bool = False
    """Whether it is of a call in another order of the axes than the likeliest, in which it would be wrong."""
    missing: list[str] = field(default_factory=list)
    """What could not be looked at, and why."""
    with_other_axes: list[Analysis] = field(default_factory=list)
    """Those of calls with its axes in another order, where nothing but a mask is wrong, if it is wrong with these."""

    @property
    def complete(self) -> bool:
        """Whether every attention in it was held against every property."""
        return self.num_attentions > 0 and not self.missing

    @property
    def is_kind_alone(self) -> bool:
        """Whether it is known of which kind it is, as linear attention, and nothing else.

        That a softmax runs over what is read holds of channels that are taken for tokens as well.
        """
        others = {each.kind for each in self.findings if (each.kind, each.property) != ("holds", "softmax-over-keys")}
        return others == {"design"} and not self.modules

    @property
    def is_in_chunks(self) -> bool:
        """Whether it is linear attention in several chunks; with few tokens there may be one alone."""
        return any(each.property == "chunkwise" for each in self.findings)

    @property
    def has_scores(self) -> bool:
        """Whether scores of one query and one key were seen in it."""
        return any((each.kind, each.property) == ("holds", "scores-of-two-tokens") for each in self.findings)

    @property
    def is_of_scores(self) -> bool:
        """Whether what was found in it are scores of a query and a key, and no kind of attention without them."""
        return any(each.property in OF_SCORES and each.kind != "violation" for each in self.findings)

    @property
    def refuses_masks(self) -> bool:
        """Whether a mask was tried in no form that it takes, as one that runs only with as many keys as queries."""
        return any(each.property == "mask-refused" for each in self.findings)

    @property
    def violations(self) -> list[Finding]:
        """What is wrong."""
        return [each for each in self.findings if each.kind == "violation"]

    @property
    def holding(self) -> set[str]:
        """The properties that hold."""
        return {each.property for each in self.findings if each.kind == "holds"}

    @property
    def designs(self) -> list[Finding]:
        """What is different by design."""
        return [each for each in self.findings if each.kind == "design"]


def said_by(analyses: Sequence[Analysis]) -> str:
    """What they say together: wrong, right, or unknown where something was not judged."""
    if any(each.violations for each in analyses):
        return "wrong"
    return "right" if analyses and all(each.complete for each in analyses) else "unknown"
