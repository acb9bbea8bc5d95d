"""Parameters, and tables of positions, that a constructor makes and that no line of the code reads."""

from __future__ import annotations

import ast
import inspect
import re
import sys
from collections.abc import Collection, Iterator, Mapping
from typing import Any

import torch
from torch import Tensor, nn
from torch.overrides import TorchFunctionMode

from regard.check.properties.attributes import SCALE_NAME, is_unread, tree_of
from regard.check.properties.code import code_of
from regard.check.properties.documentation import comment_blocks_of, comments_of
from regard.check.properties.finding import Finding
from regard.check.target import Invocation
from regard.check.target.argument import source_of
from regard.check.target.classes import own_classes
from regard.check.target.errors import Failed
from regard.check.target.preparation import copied, is_norm

__all__ = [
    "is_applied_by_the_caller",
    "unread_matrix_findings",
    "unread_scale_findings",
    "unread_table_findings",
    "unused_parameter_findings",
]

CONTAINERS = (nn.ModuleList, nn.ModuleDict, nn.Sequential, nn.ParameterList, nn.ParameterDict)
_TABLE = re.compile(r"(?:^|_)pos(?:[_s]|$)|posit|^w?pe$|^pos_?(?:emb|enc)|sinusoid|slope|alibi", re.I)
"""The name of a table of positions, or of the slopes that distances are multiplied by."""
_SCALES_ITSELF = re.compile(
    r"scaled_dot_product_attention|multi_?head_attention_forward|MultiheadAttention|memory_efficient_attention"
    r"|flash_attn|flex_attention"
)
"""Functions and modules that divide by the root of the width without being told."""
_FOR_OTHERS = re.compile(r"mask|expert|adapter|lora|classif|head$|logit|pool|null|empty|cache|buffer", re.I)
"""In the name of what only some calls read, or another module."""
_KEPT = re.compile(r"grad|^_?d_?[wqkvob]|moment|velocity|last|saved", re.I)
"""In the name of what an object without modules keeps of a call, or of its gradients."""
_BY_NAME = re.compile(r"\bgetattr\(|\bvars\(|__dict__|attrgetter")
"""What reads attributes whose names are put together."""
_ATTENDS = re.compile(r"att(?:entio)?n|mha|transformer|encoder_?layer|decoder_?layer", re.I)
"""In the name of a class that attends, or holds what does."""
_STACK = re.compile(r"layer|block|stack|(?:^|\.)h$", re.I)
"""In the path of a list of modules that run one after the other."""
_LEFT_OUT = re.compile(r"\bnot\b|n't\b|\bnever\b|\bno longer\b|\bunused\b", re.I)
"""In a comment on what is constructed and not called."""
_CHOOSES = re.compile(r"rout|gat(?:e|ing)|select|top_?k|codebook|quant|hash", re.I)
"""In the name of what chooses by its numbers, whose small changes change no choice."""


def unused_parameter_findings(
    invocation: Invocation, gradients: Mapping[str, Tensor | None], attending: Collection[str] = ()
) -> Iterator[Finding]:
    """A parameter, or a module with parameters, that no line reads but the one that makes it.

    Args:
        invocation: the call.
        gradients: of all parameters by their paths; None for what the output was not computed with.
        attending: the paths of the modules that attend.
    """
    target = invocation.target
    if not isinstance(target, nn.Module):
        return
    if gradients and all(each is None for each in gradients.values()) and _computes_with_others(invocation):
        message = (
            "none of its parameters has an effect, and what it returns is computed with others: it runs an object that "
            "is no part of it, as a method that was bound before it was copied"
        )
        yield Finding("violation", "parameters-used", "projections", message)
        return
    unused = _Unused(target, gradients, attending)
    for name, several in unused.layers():
        message = f"{name} is never run, one of {several} layers alike in a list: it has no effect and does not learn"
        yield Finding("violation", "parameters-used", "block", message)
        return
    for name in unused.names():
        if _is_replaced_norm(invocation, name) or is_applied_by_the_caller(invocation, name):
            continue
        if _is_said_to_be_left_out(invocation, name):
            continue
        if _is_used_by_itself(invocation, unused.parameters_of(name)):
            return  # a copy of it calls what it was copied from, as a lambda does
        message = f"{name} is constructed, and no line reads it: it has no effect and does not learn"
        yield Finding("violation", "parameters-used", "projections", message)
        return
    for name in unused.norms():
        message = f"{name} is constructed, and no line calls it: what follows is not normalized by it"
        yield Finding("violation", "norm-used", "projections", message)
        return
    for name in _computed_with(invocation, [name for name, each in gradients.items() if each is None]):
        message = f"{name} is computed with, and what is made of it is not used: it has no effect and does not learn"
        yield Finding("violation", "parameters-used", "projections", message)
        return


def is_applied_by_the_caller(invocation: Invocation, name: str) -> bool:
    """Whether a layer is for its caller, which hands over what it made with it, as memory_layer processed_memory."""
    first = name.partition(".")[0].partition("_")[0]
    return any(
        re.fullmatch(rf"proc(?:essed)?_{first}\w*|proj(?:ected)?_{first}\w*", each) for each in invocation.arguments
    )


def _is_said_to_be_left_out(invocation: Invocation, path: str) -> bool:
    """Whether a comment says that it is not done what a part is called after, as "we do not predict states" of pred_s.

    One letter alone says nothing.
    """
    words = [each for each in re.findall("[a-z]+", path.rpartition(".")[2].lower()) if len(each) > 2]
    return bool(words) and any(
        _LEFT_OUT.search(said) is not None and all(re.search(rf"\b{each}", said, re.I) for each in words)
        for said in (*comments_of(invocation.target), *comment_blocks_of(invocation.target))
    )


def unread_matrix_findings(invocation: Invocation) -> Iterator[Finding]:
    """A matrix that an object without modules draws when it is made, or a part with such, and that no line reads.

    As of a class of numpy that makes its values with the matrix of the keys.

    Args:
        invocation: the call, of an object or of a method.
    """
    owner = getattr(invocation.target, "__self__", invocation.target)
    kinds = [] if isinstance(owner, nn.Module | type) or inspect.isroutine(owner) else own_classes(type(owner))
    if not kinds or any(_BY_NAME.search(source_of(each)) for each in kinds):
        return
    for name, value in getattr(owner, "__dict__", {}).items():
        is_own = type(value).__module__ == type(owner).__module__
        held = vars(value).values() if is_own and hasattr(value, "__dict__") else [value]
        if (
            _KEPT.search(name) is None
            and _FOR_OTHERS.search(name) is None
            and any(map(_is_drawn, held))
            and is_unread(type(owner), name)
        ):
            message = f"{name} is constructed, and no line reads it: it has no effect and does not learn"
            yield Finding("violation", "parameters-used", "projections", message)
            return


def _is_drawn(value: Any) -> bool:
    """Whether it is a matrix of numbers that are not all alike: sums of gradients begin as zeros."""
    if type(value).__name__ not in ("ndarray", "Tensor") or value.ndim < 2 or "float" not in str(value.dtype):
        return False
    numbers = torch.as_tensor(value)
    return numbers.numel() > 0 and bool((numbers != numbers.flatten()[0]).any())


def unread_table_findings(invocation: Invocation) -> Iterator[Finding]:
    """A table of positions that a module makes, or a part that has one, and that no line reads: its tokens have none.

    Parts with parameters are judged by these.

    Args:
        invocation: the call.
    """
    if not isinstance(invocation.target, nn.Module):
        return
    for path, owner in invocation.target.named_modules():
        if type(owner).__module__.partition(".")[0] == "torch":
            continue
        tables = {**dict(owner.named_buffers(recurse=False)), **vars(owner)}
        for name, table in tables.items():
            is_table = isinstance(table, Tensor) and table.is_floating_point() and max((*table.shape, 0)) > 1
            if is_table and _TABLE.search(name) and not _FOR_OTHERS.search(name) and is_unread(type(owner), name):
                whole = f"{path}.{name}" if path else name
                message = f"{whole} is made, and no line reads it: tokens get no positions from it"
                yield Finding("violation", "positions-without-effect", "positions", message)
                return
        for name, part in owner.named_children():
            is_of_positions = _TABLE.search(name) and not _FOR_OTHERS.search(name) and not list(part.parameters())
            is_made = type(part).__module__.partition(".")[0] != "torch" and name not in _given_to(type(owner))
            if is_of_positions and is_made and is_unread(type(owner), name):
                whole = f"{path}.{name}" if path else name
                message = f"{whole} is made, and no line calls it: tokens get no positions from it"
                yield Finding("violation", "positions-without-effect", "positions", message)
                return


def unread_scale_findings(invocation: Invocation, found: Collection[Finding]) -> Iterator[Finding]:
    """A scale that a module makes, and that no line reads, where it is not known that scores have one.

    Beside a function that scales by itself it may be left of another time.

    Args:
        invocation: the call.
        found: what is known of its steps.
    """
    of_scale = [each for each in found if each.step == "scale"]
    is_known = any(each.kind != "open" and each.property != "no-scale" for each in of_scale)
    if not isinstance(invocation.target, nn.Module) or not of_scale or is_known:
        return
    if _SCALES_ITSELF.search(code_of(invocation.target)):
        return
    for path, owner in invocation.target.named_modules():
        for name, value in vars(owner).items():
            is_scale = isinstance(value, float) and value != 1 and SCALE_NAME.fullmatch(name)
            if is_scale and is_unread(type(owner), name):
                whole = f"{path}.{name}" if path else name
                message = f"{whole} = {value:.4g} is made, and no line reads it: scores are not times it"
                yield Finding("violation", "scale", "scale", message, module=path)
                return


def _computed_with(invocation: Invocation, names: list[str]) -> Iterator[str]:
    """Of parameters that nothing returned was computed with, those that something else was, and that change nothing."""
    live = copied(invocation.target)
    parameters = dict(live.named_parameters())
    mode = _Reading({id(parameters[name]): name for name in names})
    try:
        with mode:
            before = invocation.outputs(invocation.run(target=live))
    except Failed:
        return
    for name in names:
        if (
            _is_in_another_return(invocation.target, name)
            or name not in mode.read
            or _FOR_OTHERS.search(name)
            or _CHOOSES.search(name)
        ):
            continue
        with torch.no_grad():
            parameters[name].add_(torch.linspace(0.5, 1.5, parameters[name].numel()).view_as(parameters[name]))
        try:
            after = invocation.outputs(invocation.run(target=live))
        except Failed:
            return
        if len(after) == len(before) and all(map(torch.equal, before, after)):
            yield name


def _is_in_another_return(target: nn.Module, path: str) -> bool:
    """Whether a module on the path returns several things under a condition: what is made may be one of these."""
    parts = path.split(".")
    for number in range(len(parts)):
        kind = type(target.get_submodule(".".join(parts[:number])))
        file = sys.modules.get(kind.__module__)
        tree = None if file is None or kind.__module__.partition(".")[0] == "torch" else tree_of(file)
        for part in tree.body if tree is not None else ():
            if not isinstance(part, ast.ClassDef) or part.name != kind.__name__:
                continue
            for function in (each for each in part.body if isinstance(each, ast.FunctionDef)):
                returned = [each.value for each in ast.walk(function) if isinstance(each, ast.Return)]
                if len(returned) > 1 and any(isinstance(each, ast.Tuple) for each in returned):
                    return True
    return False


class _Reading(TorchFunctionMode):
    """Which of some parameters a function of PyTorch takes; what asks for a shape or a type alone is none."""

    def __init__(self, names: Mapping[int, str]) -> None:
        super().__init__()
        self.names, self.read = names, set[str]()

    def __torch_function__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        found = func(*args, **(kwargs or {}))
        if isinstance(found, Tensor):
            given = (*args, *(kwargs or {}).values())
            self.read.update(self.names[id(each)] for each in given if id(each) in self.names)
        return found


class _Unused:
    """What the output of a call was not computed with."""

    def __init__(
        self, target: nn.Module, gradients: Mapping[str, Tensor | None], attending: Collection[str] = ()
    ) -> None:
        self.target, self.gradients, self.attending = target, gradients, attending

    def names(self) -> Iterator[str]:
        """The paths of parameters and modules that belong to a module of the user's own code, which reads none."""
        for path, owner in self.target.named_modules():
            if isinstance(owner, CONTAINERS) or type(owner).__module__.partition(".")[0] == "torch":
                continue
            parts = [*owner.named_children(), *owner.named_parameters(recurse=False)]
            for name, _ in parts:
                whole = f"{path}.{name}" if path else name
                is_unused = self.parameters_of(whole) and not any(True for _ in self._used_within(whole))
                is_handed_in = isinstance(getattr(owner, name), nn.Module) and name in _given_to(type(owner))
                is_for_others = _FOR_OTHERS.search(name) or _is_left_out(type(owner), name)
                if is_unused and not is_handed_in and not is_for_others and is_unread(type(owner), name):
                    yield whole

    def norms(self) -> Iterator[str]:
        """The paths of norms without parameters that no line of their owner's class reads, as one beside them is read.

        As those of adaLN, whose scale and shift are made of a condition.
        """
        for path, owner in self.target.named_modules():
            norms = [name for name, each in owner.named_children() if isinstance(each, nn.LayerNorm | nn.RMSNorm)]
            bare = [name for name in norms if not any(True for _ in getattr(owner, name).parameters())]
            if isinstance(owner, CONTAINERS) or type(owner).__module__.partition(".")[0] == "torch":
                continue
            unread = [name for name in bare if is_unread(type(owner), name) and name not in _given_to(type(owner))]
            if unread and len(unread) < len(bare):
                yield from (f"{path}.{name}" if path else name for name in unread)

    def layers(self) -> Iterator[tuple[str, int]]:
        """The paths of layers with an attention that no output is computed with, beside others of their list that are.

        And how many there are. Experts, and layers for other tasks, run where they are chosen.
        """
        for path, stack in self.target.named_modules():
            layers = [*stack.named_children()] if isinstance(stack, nn.ModuleList) else []
            if len({type(layer) for _, layer in layers}) != 1 or _FOR_OTHERS.search(path) or _CHOOSES.search(path):
                continue
            of_layers = [f"{path}.{name}" if path else name for name, _ in layers]
            is_seen = _STACK.search(path) is not None and any(
                f"{one}.".startswith(f"{each}.") for one in self.attending for each in of_layers
            )
            if not is_seen and not any(_ATTENDS.search(type(each).__name__) for each in layers[0][1].modules()):
                continue
            are_run = [any(self._used_within(f"{path}.{name}")) for name, _ in layers]
            if any(are_run) and not all(are_run) and self.parameters_of(f"{path}.{layers[are_run.index(False)][0]}"):
                yield f"{path}.{layers[are_run.index(False)][0]}", len(layers)

    def parameters_of(self, path: str) -> list[nn.Parameter]:
        """Those of a path that have a place in the gradients."""
        parameters = dict(self.target.named_parameters())
        return [parameters[name] for name in self.gradients if name == path or name.startswith(f"{path}.")]

    def _used_within(self, path: str) -> Iterator[str]:
        for name, gradient in self.gradients.items():
            if gradient is not None and (name == path or name.startswith(f"{path}.")):
                yield name


def _is_left_out(kind: type, name: str) -> bool:
    """Whether a class says by its name that it does without a part, as one without memory of its memory's layer."""
    left_out = re.findall(r"(?:No|Without)_?([A-Z][a-z]+)", kind.__name__)
    return any(each.lower() in name.lower().split("_") for each in left_out)


def _given_to(kind: type) -> Collection[str]:
    """What a constructor is given: a module that it keeps under its name is there for others, as a generator is."""
    return inspect.signature(kind).parameters


def _is_replaced_norm(invocation: Invocation, path: str) -> bool:
    """Whether it is a norm of a part that is called with what another norm has just returned: that one stands for it.

    As in an attention that normalized what it reads until its block did.
    """
    live = copied(invocation.target)
    norm, (owner, _, _) = live.get_submodule(path) if path in dict(live.named_modules()) else None, path.rpartition(".")
    if not isinstance(norm, nn.Module) or not is_norm(norm) or not owner:
        return False
    returned, given = list[Tensor](), list[Tensor]()
    for each in live.modules():
        if is_norm(each):
            each.register_forward_hook(lambda _, __, result: returned.append(result))
    live.get_submodule(owner).register_forward_pre_hook(lambda _, args: given.extend(args[:1]))
    try:
        invocation.run(target=live)
    except Failed:
        return False
    return bool(given) and all(any(one is other for other in returned) for one in given)


def _is_used_by_itself(invocation: Invocation, parameters: list[nn.Parameter]) -> bool:
    """Whether the target computes with some parameters, where a copy of it computed without its own."""
    try:
        with torch.enable_grad():
            outputs = invocation.outputs(invocation.run(target=invocation.target))
            total = sum(each.sum() for each in outputs if each.requires_grad)
            if not isinstance(total, Tensor):  # it computes with none
                return False
            found = torch.autograd.grad(total, parameters, allow_unused=True)
    except (Failed, RuntimeError):
        return True
    return any(each is not None for each in found)


def _computes_with_others(invocation: Invocation) -> bool:
    """Whether the target itself, and not a copy of it, returns something that can learn by none of its parameters."""
    learned = [each for each in invocation.target.parameters() if each.requires_grad]
    try:
        with torch.enable_grad():
            outputs = invocation.outputs(invocation.run(target=invocation.target))
            several = [each for each in outputs if each.requires_grad]
            found = torch.autograd.grad([each.sum() for each in several], learned, allow_unused=True) if several else ()
    except (Failed, RuntimeError):
        return False
    return bool(found) and all(each is None for each in found)
