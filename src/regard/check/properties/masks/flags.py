"""Flags that say whether an attention is causal."""

from __future__ import annotations

import ast
import inspect
import re
from collections.abc import Iterator

import torch
from torch import Tensor, nn

from regard.check.properties.finding import Evidence, Finding
from regard.check.properties.masks.arguments import mask_outcomes
from regard.check.properties.masks.flag_influence import flag_by_influence
from regard.check.properties.masks.masked_weights import masked_weights
from regard.check.properties.masks.memory import mask_memory_findings
from regard.check.properties.masks.patterns import are_of_others, built_in_pattern, own_keys, square
from regard.check.properties.masks.settings import NOT_OF_KEYS
from regard.check.properties.saturation import ZERO_WEIGHT
from regard.check.properties.sums import query_numbers
from regard.check.roles.influence import record_invocation
from regard.check.target import Invocation
from regard.check.target.argument import source_of, tree_of

__all__ = ["flag_findings"]

CAUSAL_NAME = re.compile(r"causal|subsequent|auto[-_ ]?regressive", re.I)
OF_MASKS = re.compile(r"future|look[-_ ]?ahead|(?:lower[-_ ]?)?triangular", re.I)
"""Names of the mask that hides later keys: those that say so wherever they stand, and those that do of a mask."""


def flag_findings(invocation: Invocation, evidence: Evidence) -> Iterator[Finding]:
    """A flag that says causal makes it causal: it is asked of the keys of the sequence that asks."""
    is_of_others = are_of_others(evidence.base)
    for name in invocation.causal_flags[:1]:
        if is_of_others:
            message = f"{name}=True was not exercised: the keys are of several sequences, none of which asks"
            yield Finding("open", "mask-flag", "mask", message)
            continue
        weight = masked_weights(evidence, record_invocation(invocation, {**invocation.arguments, name: True}))
        if weight is None:
            yield from flag_by_influence(invocation, name, evidence.base.instance.scores_location)
            continue
        found = list(_by_weights(evidence, weight, f"{name}=True"))
        yield from found
        if [each.kind for each in found] == ["holds"]:
            yield from mask_memory_findings(invocation, name, True, False)
            yield from _flag_lost(invocation, evidence, name, weight.abs() <= ZERO_WEIGHT)
    if invocation.causal_flags or is_of_others:
        return
    for name, value in list(_named_masks(invocation))[:1]:
        weight = masked_weights(evidence, record_invocation(invocation, {**invocation.arguments, name: value}))
        yield from _by_weights(evidence, weight, f"{name}={value}") if weight is not None else ()


def _by_weights(evidence: Evidence, weight: Tensor, said: str) -> Iterator[Finding]:
    """Whether weights are those of a causal mask, where the call was told to have one.

    Args:
        evidence: of the attention.
        weight: (scores): with the mask.
        said: how the call was told, as "causal=True".
    """
    rows, line = own_keys(evidence.base), evidence.base.instance.scores_location
    allowed = square(evidence, evidence.base.dense((weight > ZERO_WEIGHT).double(), 0.0, rows)[0, 0] > 0)
    pattern, wrong = built_in_pattern(allowed)
    if pattern == "full":
        wrong = f"{said} changes nothing: a query sees later keys"
    if wrong:
        yield Finding("violation", "mask-pattern", "mask", wrong, line)
    elif pattern == "causal":
        yield Finding("holds", "mask-flag", "mask", f"{said}: a query sees keys up to its own position", line)


def _named_masks(invocation: Invocation) -> Iterator[tuple[str, str]]:
    """The optional arguments that the code compares with the name of a causal mask, and these names.

    As in `if mask == "subsequent":`.

    Args:
        invocation: the call.
    """
    target = invocation.target
    called = target.forward if isinstance(target, nn.Module) else target
    try:
        parameters = inspect.signature(called).parameters
    except (ValueError, TypeError):
        return
    for node in ast.walk(tree_of(source_of(called))):
        match node:
            case ast.Compare(left=ast.Name(id=name), ops=[ast.Eq()], comparators=[ast.Constant(value=str(value))]):
                parameter = parameters.get(name)
                is_told = CAUSAL_NAME.fullmatch(value) or ("mask" in name.lower() and OF_MASKS.fullmatch(value))
                is_optional = parameter is not None and (
                    parameter.default is None or (isinstance(parameter.default, str) and parameter.default != value)
                )
                if is_optional and is_told:
                    yield name, value


def _flag_lost(invocation: Invocation, evidence: Evidence, flag: str, later: Tensor) -> Iterator[Finding]:
    """A mask that hides keys for all queries alike, and beside which the flag hides nothing any more.

    Args:
        invocation: the call.
        evidence: its attention.
        flag: the argument that makes it causal.
        later: (scores): what the flag hides alone.
    """
    table, rows = evidence.base, query_numbers(evidence)
    for name in [each for each in invocation.masks if not NOT_OF_KEYS.search(each)][:2]:
        outcomes = (each for each in mask_outcomes(invocation, evidence, name) if each.exact and "q" not in each.shape)
        if (outcome := next(outcomes, None)) is None:
            continue
        run = record_invocation(invocation, {**invocation.arguments, name: outcome.value, flag: True})
        if (weight := masked_weights(evidence, run)) is None:
            continue
        left = torch.zeros(int(rows.max()) + 1).index_add_(0, rows, (~outcome.blocked & ~later).float())
        seen = outcome.judged & ~outcome.blocked & later & (left[rows] > 0) & (weight.abs() > ZERO_WEIGHT)
        if bool(seen.any()):
            at = int(seen.nonzero()[0])
            message = (
                f"with {name}, {flag}=True hides nothing: query {int(table.query.token[at])} sees key "
                f"{int(table.key.token[at])} with weight {float(weight[at]):.3g}"
            )
            yield Finding("violation", "masks-joined", "mask", message, table.instance.scores_location)
            return
