"""Attention that its authors left without a scale: of tokens as they are, and of the states of a decoder."""

from __future__ import annotations

import inspect
import re

from torch import Tensor, nn

from regard.check.properties.code import code_of
from regard.check.properties.documentation import name_and_documentation
from regard.check.properties.finding import Evidence
from regard.check.properties.scores.formula import SAME_NUMBER
from regard.check.roles.instances import TaggedRun
from regard.check.roles.recurrences import recurrent_outputs
from regard.check.target import Invocation
from regard.check.target.argument import source_of
from regard.check.target.names import call_meaning
from regard.check.target.preparation import modules_in

__all__ = [
    "LUONG",
    "chosen_temperature",
    "is_introductory",
    "is_of_one_state",
    "is_of_states",
    "is_of_tokens_alone",
    "is_read_by_one_token",
    "scale_left_out",
]

LUONG = re.compile(r"luong|multiplicative|bi-?linear[ _]?(?:att|scor|form|product)", re.I)
"""Says that scores are q W k as they are, a bilinear form (Luong et al. 2015, section 3.1)."""
INTRODUCTORY = re.compile(
    r"\b(?:basic|simple|simplified|simplest|introductory|toy|parameter[- ]free|without weights)\b", re.I
)
"""Of self-attention, as books explain it before its weights."""
OF_PRODUCTS = re.compile(r"\b(?:dot|inner)[- ]products?\b|\bx\s*@\s*x|\bx\s*x\^?T", re.I)
OF_A_SCALE = re.compile(r"\bscal(?:e[ds]?|ing)\b|sqrt|\u221a|\broots?\b|\bdivid|\bd_?k\b|\btemperature", re.I)
_ONE_DIGIT = re.compile(r"(?<=[*=(,\s])0?\.0*[1-9](?![\d.eE])")
"""A fraction of 1 with one digit that is not 0."""
SELF_ATTENTION = re.compile(r"self[\s_-]?att", re.I)
TRANSFORMER = re.compile(r"transformer|vaswani|all you need|1706\.03762|multi[\s_-]?head|\bmha\b", re.I)
"""Says that it is the attention that has a scale."""
TWO_SEQUENCES = ({"x", "context"}, {"q", "v"}, {"q", "k"})
"""Roles of what is handed over where keys and values are one."""


def chosen_temperature(invocation: Invocation, total: float) -> str:
    """The number in the code that scores are multiplied by, or divided by, and that is 1/sqrt(n) of no width n.

    As 0.06 of VASNet (Fajtl et al. 2018, section 3.1: "determined by experimentation"): whoever meant the root of a
    width that he had in mind writes 8, 0.125 or 0.0884. A number with one digit alone is no root of a width, rounded.

    Args:
        invocation: the call.
        total: what scores are times; above 0.
    """
    for text in dict.fromkeys(_ONE_DIGIT.findall(code_of(invocation.target))):
        number = float(text)
        is_root = abs(number**-2 - round(number**-2)) < SAME_NUMBER * number**-2
        if not is_root and abs(total - number) < SAME_NUMBER * number:
            return str(text)
    return ""


def scale_left_out(invocation: Invocation) -> str:
    """The name of a scale that a call may be given, and that is left out by its default, None; empty without.

    The code asks for it before it multiplies or divides by it: who calls it says by what.
    """
    target = invocation.target
    try:
        parameters = inspect.signature(target.forward if isinstance(target, nn.Module) else target).parameters
    except (ValueError, TypeError):
        return ""
    source = source_of(target)
    for name, each in parameters.items():
        if call_meaning(name) != "scale" or each.default is not None or invocation.arguments.get(name) is not None:
            continue
        named = re.escape(name)
        is_asked_for = re.search(rf"\bif\s+{named}(?:\s+is\s+not\s+None)?\s*(?::|else\b)", source)
        if is_asked_for and re.search(rf"[*/]=?\s*{named}\b", source):
            return name
    return ""


def is_introductory(invocation: Invocation, evidence: Evidence) -> bool:
    """Whether tokens are their own queries and keys, in what says softmax(x x^T) x by its name or step by step."""
    table = evidence.base
    if table.instance.is_projected or [each.role for each in invocation.streams] != ["x"]:
        return False
    text = name_and_documentation(invocation.target).replace("_", " ")
    told = INTRODUCTORY.search(text) or (OF_PRODUCTS.search(text) and re.search("softmax", text, re.I))
    return told is not None and OF_A_SCALE.search(text) is None


def is_of_tokens_alone(invocation: Invocation, evidence: Evidence) -> bool:
    """Whether it is called self-attention, learns nothing, and neither speaks of a scale nor of the transformer.

    softmax(x x^T) x, as the Gaussian non-local operation (Wang et al. 2018, equation 2): no projection is there whose
    width a scale would make up for.
    """
    if evidence.base.instance.is_projected or [each.role for each in invocation.streams] != ["x"]:
        return False
    learns = any(True for module in modules_in(invocation.target) for _ in module.parameters())
    is_named = SELF_ATTENTION.search(name_and_documentation(invocation.target)) is not None
    return is_named and not learns and not _speaks_of_a_scale(invocation)


def is_of_one_state(invocation: Invocation, evidence: Evidence) -> bool:
    """Whether one vector of each sample asks, with one head and without matrices, and nothing speaks of a scale.

    A step of a decoder whose state meets those of an encoder by the dot score (Luong et al. 2015, section 3.1). A
    decoder of the transformer asks with several heads.
    """
    table = evidence.base
    streams = {each.argument: each for each in invocation.streams}
    asking = {table.streams[number] for number in table.query.stream.tolist() if number >= 0}
    is_vector = bool(asking) and all(each in streams and not streams[each].token_axes for each in asking)
    return is_vector and table.num_heads == 1 and not table.instance.is_projected and not _speaks_of_a_scale(invocation)


def is_read_by_one_token(invocation: Invocation, evidence: Evidence) -> bool:
    """Whether one token of a sequence asks the others, with one head, for what they are, and nothing speaks of a scale.

    As the last state of an encoder, which pools all of them by general scores (Luong et al. 2015, section 3.1). A head
    of the transformer has values that are projected.
    """
    table, instance = evidence.base, evidence.base.instance
    asking = set(table.query.token.tolist())
    first = _first_given(instance.run)

    def is_as_given(place: tuple[int, int]) -> bool:
        return bool((instance.run.tags.inputs[place[0]][place[1]] >= first).all())

    return (
        len(asking) == 1 < len(set(table.key.token.tolist()))
        and not table.of_no_token
        and table.num_heads == 1
        and len(invocation.streams) == 1
        and all(is_as_given(instance.values_place(each)) for each in instance.sums)
        and not _speaks_of_a_scale(invocation)
    )


def _speaks_of_a_scale(invocation: Invocation) -> bool:
    """Whether a name, a documentation or the code says that scores are scaled, or that this is the transformer's."""
    told = f"{name_and_documentation(invocation.target)}\n{code_of(invocation.target)}"
    return OF_A_SCALE.search(told) is not None or TRANSFORMER.search(told) is not None


def _first_given(run: TaggedRun) -> int:
    """The first tag of what was handed over; the number of all where nothing was, which no number has."""
    return min((int(each.min()) for each in run.given.values() if each.numel()), default=run.num_tags + 1)


def is_of_states(evidence: Evidence) -> bool:
    """Whether one head reads another sequence's vectors as they are, by scores with at most one matrix.

    Of one that is handed over, or that a recurrent layer returned, or of what an encoder makes of its states for all
    that reads them: keys and values are the same numbers then.
    """
    table, instance = evidence.base, evidence.base.instance
    first = _first_given(instance.run)

    states = recurrent_outputs(instance.run.trace)

    def tags_of(place: tuple[int, int]) -> Tensor:
        return instance.run.tags.inputs[place[0]][place[1]]

    def is_of(place: tuple[int, int], indices: set[int]) -> bool:
        made = instance.run.owner_of(tags_of(place))
        return bool(made) and made <= indices

    products = [each for each in instance.run.products if each.left.learned or each.right.learned]
    handed_on = {
        each.operation.index for each in products if is_of(each.left_place, states) or is_of(each.right_place, states)
    }
    values = {one for each in instance.sums for one in tags_of(instance.values_place(each)).flatten().tolist()}

    def is_given(place: tuple[int, int]) -> bool:
        tags = tags_of(place)
        is_read_as_it_is = is_of(place, handed_on) and values.issuperset(tags.flatten().tolist())
        return bool((tags >= first).all()) or is_of(place, states) or is_read_as_it_is

    return (
        table.num_heads == 1
        and (set(evidence.roles.values()) in TWO_SEQUENCES or bool(states))
        and bool((table.query.stream != table.key.stream).all())
        and all(is_given(instance.values_place(each)) for each in instance.sums)
        and all(is_given(each.left_place) or is_given(each.right_place) for each in instance.scores)
    )
