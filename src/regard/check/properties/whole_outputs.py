"""Functions of queries, keys and values whose output is that of attention, whatever steps it is made by."""

from __future__ import annotations

from regard.check.properties.analysis import Analysis
from regard.check.properties.evidence import evidence_of_tables, with_fresh_tokens
from regard.check.properties.finding import Finding
from regard.check.properties.read_weights import read_findings
from regard.check.roles.instances import TaggedRun

__all__ = ["judge_by_output"]

OF_STEPS = frozenset({"query-of-one-token", "key-of-one-token", "value-of-one-token", "keys-seen", "summarized-keys"})
"""What holds of the steps of attention as they are usually written, and need not where others give the same."""
HOLDING = frozenset({"weights-sum-to-one", "scores-of-two-tokens", "scale"})
"""What has to hold of weights that are read off an output: softmax(q . k / sqrt(d))."""


def judge_by_output(analysis: Analysis, run: TaggedRun) -> None:
    """Take what the output says in the place of what unusual steps say, where it is that of softmax(q . k / sqrt(d)) v.

    The mean of all keys may be taken from each (SageAttention, arXiv:2410.02367), and blocks of keys may be read by
    several lines: neither changes the output.

    Args:
        analysis: of a call that hides nothing on demand.
        run: the call's.
    """
    invocation = analysis.invocation
    unusual = {each.property for each in analysis.findings if each.kind in ("violation", "design")}
    is_unclear = bool(unusual) or bool(analysis.missing)
    if not is_unclear or not unusual <= OF_STEPS or invocation.masks or invocation.causal_flags or invocation.lengths:
        return
    read = read_findings(invocation, run, with_fresh_tokens(invocation), evidence_of_tables(invocation))
    kinds: dict[str, list[Finding]] = {}
    for each in read:
        kinds.setdefault(each.kind, []).append(each)
    holding = {each.property for each in kinds.get("holds", ())}
    if not holding >= HOLDING or {"violation", "open"} & set(kinds):
        return
    kept = [each for each in analysis.findings if each.kind == "open" and each.property == "no-mask-argument"]
    analysis.findings, analysis.missing = [*read, *kept], []
