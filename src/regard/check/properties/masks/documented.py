"""What the documentation says that 1 in a mask means, and what the code takes it for."""

from __future__ import annotations

import ast
import re
from collections.abc import Iterable, Iterator, Sequence

import torch

from regard.check.properties.documentation import boolean_meaning, comments_of, documentation_of, mask_meaning
from regard.check.properties.finding import Evidence, Finding
from regard.check.properties.masks.outcome import MaskOutcome
from regard.check.roles.influence import record_invocation
from regard.check.target import Invocation
from regard.check.target.argument import nodes_of, source_of
from regard.check.target.documented_shapes import documented_letters, documented_shape
from regard.check.target.mask_values import MASK_FORMS, write_mask

__all__ = ["documented_forms", "documented_mask_findings", "documented_shape_findings", "takes_causal_masks_alone"]

OF_ALLOWED, OF_BLOCKED = ("allowed", "keep", "keep, whole"), ("blocked", "block", "block, whole")
"""Forms in which True or 1 means one or the other."""
_NAMES = {
    "allowed": re.compile(r"(?:^|_)(?:present|presence|exists?|valid|keep|kept|visible|allowed|permitted)(?:_|$)"),
    "blocked": re.compile(r"(?:^|_)(?:is_pad|is_padding|padded|blocked|hidden|ignored)(?:_|$)"),
}
"""Names that say themselves what True means. That of a padding mask does not: it is written in either way."""
_CAUSAL_ALONE = re.compile(
    r"\bonly (?:works|defined|valid|correct|supported|meant)?\s*(?:with|for|takes)?\s*(?:a )?causal masks?\b", re.I
)
_NEGATED = re.compile(r"(?:^|_)(?:not|non|no|un)_")


def _asks_for_axes(invocation: Invocation, name: str) -> bool:
    """Whether the code tells masks apart by their number of axes."""
    asked = rf"\b{re.escape(name)}\.(?:ndim|dim\(\))|len\({re.escape(name)}\.(?:shape|size\(\))\)"
    return re.search(asked, source_of(invocation.target)) is not None


def takes_causal_masks_alone(invocation: Invocation) -> bool:
    """Whether the documentation or a comment says that the code is meant for causal masks and for no others."""
    target = invocation.target
    return any(_CAUSAL_ALONE.search(each) for each in (documentation_of(target), *comments_of(target)))


def documented_forms(invocation: Invocation, name: str) -> tuple[str, ...]:
    """The forms of a mask that the documentation means; empty where it says nothing."""
    return {"allowed": OF_ALLOWED, "blocked": OF_BLOCKED}.get(_meaning(invocation, name) or "", ())


def documented_mask_findings(
    invocation: Invocation, evidence: Evidence, outcome: MaskOutcome, outcomes: Sequence[MaskOutcome], name: str
) -> Iterator[Finding]:
    """A mask that is read in another way than the documentation says.

    Args:
        invocation: the call.
        evidence: its attention.
        outcome: of the mask that hides what it blocks.
        outcomes: of all masks that were tried: those that the documentation means were tried first.
        name: the argument.
    """
    yield from _unlike_booleans(invocation, evidence, outcome, outcomes, name)
    meaning = _meaning(invocation, name)
    if meaning is None:
        return
    of_name = _documented(invocation, name) is None
    meant, others = (OF_ALLOWED, OF_BLOCKED) if meaning == "allowed" else (OF_BLOCKED, OF_ALLOWED)
    said = f"its {'name' if of_name else 'documentation'} says that 1 in {name} means {meaning}"
    if outcome.form in others:
        message = f"{said}; the code takes it for {'blocked' if meaning == 'allowed' else 'allowed'}"
    elif (
        outcome.form == "added"
        and _documented(invocation, name, of_one=True) == meaning
        and not _asks_for_axes(invocation, name)
        and any(each.form in meant and bool(each.leaks.any()) for each in outcomes)
    ):
        message = f"{said}; the code adds it to the scores: it hides no key"
    else:
        return
    yield Finding("violation", "mask-as-documented", "mask", message, evidence.base.instance.scores_location)


def _unlike_booleans(
    invocation: Invocation, evidence: Evidence, outcome: MaskOutcome, outcomes: Sequence[MaskOutcome], name: str
) -> Iterator[Finding]:
    """A mask that may be added, or boolean, by its documentation, and whose booleans are added too, or mean else."""
    is_only = len(invocation.masks) == 1
    meaning = boolean_meaning(documentation_of(invocation.target), name, is_only=is_only)
    if meaning is None:
        return
    said = f"its documentation says that {name} may be boolean, and that True means {meaning}"
    tried = [each for each in outcomes if each.form == meaning and each.shape == outcome.shape]
    if outcome.form == "added" and tried and all(bool(each.leaks.any()) for each in tried):
        message = f"{said}; the code adds it to the scores: as 0 and 1, it hides no key"
    elif outcome.form in ("allowed", "blocked") and outcome.form != meaning:
        message = f"{said}; the code takes it for {outcome.form}"
    else:
        return
    yield Finding("violation", "mask-as-documented", "mask", message, evidence.base.instance.scores_location)


def documented_shape_findings(
    invocation: Invocation, evidence: Evidence, outcome: MaskOutcome, taken: Iterable[MaskOutcome], name: str
) -> Iterator[Finding]:
    """A mask of samples and keys, by its documentation or by its name and axes, that is taken in other shapes alone.

    Args:
        invocation: the call, of more heads than samples or fewer.
        evidence: its attention.
        outcome: of a mask that hides what it blocks.
        taken: of the masks of every shape that the call takes, drawn only where the documentation asks for it.
        name: the argument.
    """
    source = source_of(invocation.target)
    samples, heads = evidence.base.dense(evidence.base.product).shape[:2]
    if documented_letters(source, name) == "tb" and outcome.shape != "kb":
        turned = [each for each in taken if each.shape == "kb"]
        if turned and not any(each.exact for each in turned):
            message = (
                f"{name} is ({', '.join(documented_shape(source, name))}) by its documentation: such a mask hides keys "
                "of other tokens and samples, as its axes are taken for those of samples and tokens"
            )
            yield Finding(
                "violation", "mask-shape-as-documented", "mask", message, evidence.base.instance.scores_location
            )
        return
    if samples == heads or outcome.shape not in ("bqk", "bhqk", "b1k"):
        return
    if documented_letters(source, name) == "bt" and outcome.shape != "b1k":
        said = f"({', '.join(documented_shape(source, name))}) by its documentation"
    elif not documented_shape(source, name) and _takes_two_axes(source, name) and _is_of_a_sequence(invocation, name):
        keys = outcome.value.shape[-1]
        tried = (write_mask(torch.ones(samples, keys, dtype=torch.bool), form) for form in MASK_FORMS)
        if any(not record_invocation(invocation, {**invocation.arguments, name: each}).error for each in tried):
            return
        said = "of samples and tokens, by its name and by the two axes that its line of code names"
    else:
        return
    if any(each.shape == "bk" for each in taken):
        return
    message = f"{name} is {said}: of {samples} samples and {heads} heads such a mask does not "
    message += "run, as its samples meet the heads; it has to have an axis of queries as well"
    yield Finding("violation", "mask-shape-as-documented", "mask", message, evidence.base.instance.scores_location)


def _takes_two_axes(source: str, name: str) -> bool:
    """Whether each place that reads a mask, but to ask whether it is there, takes two whole axes of it, and a new one.

    As in mask[:, None, :]: a mask of three axes is written mask[:, None], and its last ones are not told apart.
    """
    reads = [each for each in nodes_of(source, ast.Name) if each.id == name and isinstance(each.ctx, ast.Load)]
    asked = {id(each.left) for each in nodes_of(source, ast.Compare) if isinstance(each.ops[0], ast.Is | ast.IsNot)}
    tests = [each.test for kind in (ast.If, ast.IfExp) for each in nodes_of(source, kind)]
    asked |= {id(one) for each in tests for one in ast.walk(each)}
    indexed = {
        id(each.value)
        for each in nodes_of(source, ast.Subscript)
        if isinstance(each.slice, ast.Tuple)
        and sum(isinstance(one, ast.Slice) for one in each.slice.elts) == 2
        and all(ast.unparse(one) in (":", "None") for one in each.slice.elts)
        and [ast.unparse(each.slice.elts[place]) for place in (0, -1)] == [":", ":"]
    }
    places = {id(each) for each in reads} - asked
    return bool(places) and places <= indexed


def _is_of_a_sequence(invocation: Invocation, name: str) -> bool:
    """Whether a mask is named after one of the sequences of a call, as context_mask beside context.

    Not src_mask, tgt_mask and memory_mask, which are of queries and keys in PyTorch's own layers.
    """
    if name in ("src_mask", "tgt_mask", "memory_mask"):
        return False
    told = re.fullmatch(r"(?:(\w+?)_(?:key_)?(?:padding_|pad_)?mask|mask_(\w+))", name)
    return told is not None and any(each.argument in told.groups() for each in invocation.streams)


def _meaning(invocation: Invocation, name: str) -> str | None:
    """What 1 means by the documentation; where that says nothing, by the name."""
    documented = _documented(invocation, name)
    if documented is not None or _NEGATED.search(name.lower()):
        return documented
    meant = [meaning for meaning, names in _NAMES.items() if names.search(name.lower())]
    return meant[0] if len(meant) == 1 else None


def _documented(invocation: Invocation, name: str, *, of_one: bool = False) -> str | None:
    for text in (documentation_of(invocation.target), _commented(invocation, name)):
        meaning = mask_meaning(text, name, is_only=len(invocation.masks) == 1, of_one=of_one)
        if meaning is not None:
            return meaning
    return None


def _commented(invocation: Invocation, name: str) -> str:
    """The comments that begin with the name of an argument and a colon, where no line gives it another value."""
    if re.search(rf"^\s*{re.escape(name)}\s*(?::[^=\n]+)?=(?!=)[^,\n]*$", source_of(invocation.target), re.M):
        return ""
    said = (each for each in comments_of(invocation.target) if re.match(rf"{re.escape(name)}\s*:", each))
    return "\n\n".join(said)
