"""Tokens, slots or noise that are drawn at random at each call: an output that is random is meant so."""

from __future__ import annotations

import re
from typing import Any

import torch
from torch import Tensor
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils._pytree import tree_leaves

from regard.check.properties.analysis import Analysis
from regard.check.properties.code import code_of
from regard.check.properties.documentation import name_and_documentation
from regard.check.roles.instances import AttentionInstance
from regard.check.target import Invocation
from regard.check.target.errors import Failed
from regard.check.trace.operation import TensorRecord, Trace

__all__ = ["LEARNED_NOISE", "drawn_sample_design", "drawn_slot_design", "is_learned_noise"]

LEARNED_NOISE = "noise times a learned number is added to the tokens at each call: the output is random"
"""How a random output is meant whose random numbers are all of `is_learned_noise`."""

CHOOSING = re.compile(r"(?:randint|randperm|multinomial)(?:_like)?")
"""Functions that draw places, and no numbers to compute with."""
NUMBERS = re.compile(r"(?:randn|normal)(?:_like|_)?")
"""Functions that draw numbers of a normal distribution."""
SAYS_SAMPLES = re.compile(
    r"(?:\b|_)(?:sub)?sampl(?:e[sd]?|ing)(?:\b|_)"
    r"|\brandom(?:ly)?\s+(?:select|pick|choos|chos|draw|subset|key|quer|token|block|attention)",
    re.I,
)
PLACES = re.compile(
    r"^[^#\n]*(?:\b|_)(?:sub)?sampl(?:e[sd]?|ing)\w*\s*=[^=\n]*\b(?:randint|randperm|multinomial)\b", re.M | re.I
)
"""A line that draws places and names them samples."""
COMMENTS = re.compile(r"(?<!['\"])#+(.*)$", re.M)


def drawn_sample_design(invocation: Invocation) -> str | None:
    """How a random output is meant, in words; None where more than places is drawn, or nothing says that it samples.

    The documentation, a comment or the name of what is drawn may say so.

    Args:
        invocation: a call whose output is random, and not by dropout.
    """
    drawn = _DrawnFunctions()
    try:
        with drawn:
            invocation.run()
    except (Failed, RuntimeError):
        return None
    if not drawn.names or not all(map(CHOOSING.fullmatch, drawn.names)):
        return None
    code = code_of(invocation.target)
    said = [name_and_documentation(invocation.target), *COMMENTS.findall(code)]
    if not any(map(SAYS_SAMPLES.search, said)) and not PLACES.search(code):
        return None
    functions = " and ".join(sorted(drawn.names))
    return f"which tokens are looked at is drawn at random at each call ({functions}), as it says: the output is random"


def drawn_slot_design(analysis: Analysis) -> str | None:
    """How a random output of slot attention is meant, in words; None where its slots are not all that is drawn.

    Locatello et al. 2020, "Object-Centric Learning with Slot Attention", algorithm 1: slots begin as samples of a
    normal distribution, in evaluation as well. Noise of tokens, scores or weights has as many numbers as there are
    tokens; slots have not.

    Args:
        analysis: of a call whose output is random, and not by dropout.
    """
    call = analysis.invocation
    if len(call.streams) != 1 or len(call.streams[0].token_axes) != 1:
        return None
    if not any((each.kind, each.property) == ("design", "slot-attention") for each in analysis.findings):
        return None
    (stream,) = call.streams
    given, (axis,) = call.arguments[stream.argument], stream.token_axes
    several = []
    for count in (given.shape[axis], given.shape[axis] - 1):
        drawn = _DrawnFunctions()
        try:
            with drawn:
                call.run({**call.arguments, stream.argument: given.narrow(axis, 0, count)})
        except (Failed, RuntimeError):
            return None
        several.append(drawn)
    whole, fewer = several
    if not whole.names or not all(map(NUMBERS.fullmatch, whole.names)) or whole.shapes != fewer.shapes:
        return None
    return "slots are drawn at random at each call, as where slot attention begins: the output is random"


def is_learned_noise(instance: AttentionInstance) -> bool:
    """Whether tokens get noise times fewer learned numbers before their scores, and nothing else is drawn in the run.

    Karras et al. 2019, "A Style-Based Generator Architecture for Generative Adversarial Networks", section 3: learned
    factors of the noise, in evaluation as well. Where each number has a factor of its own, these are noisy weights,
    whose noise evaluation leaves out.

    Args:
        instance: an attention.
    """
    trace = instance.run.trace
    drawn = {
        each.index: each.outputs[0]
        for each in trace
        if torch.Tag.nondeterministic_seeded in getattr(each.function, "tags", ())
    }
    before, behind = (
        trace.computed_for(each, ()) & set(drawn)
        for each in ([one.operation.index for one in instance.scores], [one.index for one in instance.softmaxes])
    )
    return (
        bool(before)
        and behind <= before
        and all(NUMBERS.fullmatch(trace.operations[index].name) for index in drawn)
        and all(_is_times_fewer(trace, noise) for noise in drawn.values())
    )


def _is_times_fewer(trace: Trace, noise: TensorRecord) -> bool:
    """Whether every operation that computes with numbers multiplies them by learned ones, which are fewer."""
    readers = [each for each in trace if not each.is_view and any(one.storage == noise.storage for one in each.inputs)]
    return bool(readers) and all(
        each.name.rstrip("_") == "mul"
        and any(one.learned and one.data.numel() < noise.data.numel() for one in each.inputs)
        for each in readers
    )


class _DrawnFunctions(TorchDispatchMode):  # type: ignore[no-untyped-call]
    """Inside, the names of the functions that draw random numbers are kept, and the sizes of what they return."""

    def __init__(self) -> None:
        super().__init__()  # type: ignore[no-untyped-call]
        self.names: set[str] = set()
        self.shapes: list[tuple[int, ...]] = []

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        result = func(*args, **(kwargs or {}))
        if torch.Tag.nondeterministic_seeded in func.tags:
            self.names.add(func.overloadpacket.__name__)
            self.shapes += [tuple(each.shape) for each in tree_leaves(result) if isinstance(each, Tensor)]
        return result
