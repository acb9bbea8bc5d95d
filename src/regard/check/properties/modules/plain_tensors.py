"""Tensors that are made as parameters are, change the output, and are plain attributes: nothing trains them."""

from __future__ import annotations

import ast
import inspect
import re
from collections.abc import Iterator

import torch
from torch import Tensor, nn

from regard.check.properties.finding import Finding
from regard.check.properties.modules.unregistered_parameters import MOVED, is_attribute, is_meant, kept_as
from regard.check.target import Invocation
from regard.check.target.argument import source_of, tree_of
from regard.check.target.classes import own_classes
from regard.check.target.errors import Failed
from regard.check.target.preparation import copied, drawn_like

__all__ = ["plain_tensor_findings"]

DRAWN = frozenset({"randn", "rand", "zeros", "ones", "empty", "full", "normal", "Tensor", "FloatTensor", "tensor"})
"""Functions of PyTorch that parameters are made by."""
IN_PLACE = re.compile(
    r"(?:xavier|kaiming|glorot|he)_(?:uniform|normal)_|(?:trunc_|truncated_)?normal_|uniform_|orthogonal_|sparse_"
)
"""Functions that draw the first numbers of what is learned."""
RANDOM = frozenset({"randn", "rand", "normal"})
"""Those that draw them."""
EMBEDDING = re.compile(r"emb(?:s|ed|edding)?s?(?![a-z])", re.I)
"""In a name: vectors that are learned, or follow from a formula, and are in no case drawn and lost."""
SEEDED = re.compile(r"seed|generator")
"""In the text of a class: the same numbers are drawn each time."""
TO_LEARN = re.compile(r"(?<!pre-)(?<!un-)\b(?:learn(?:ed|t|able|s)?|train(?:ed|able))\b", re.I)
"""In a comment beside a tensor: it is learned."""
OTHERWISE = re.compile(r"\b(?:no|not|non|never|without|before|after|instead|than|if)\b|n't\b", re.I)
"""In such a comment: it is not, or something else is."""
STAYS = re.compile(
    r"\bfix(?:ed)?\b(?![\s-]*(?:length|size|window|context|number|by))|\b(?:frozen|freez\w*|untrain\w*|static|constant)\b"
    r"|non-?[\s_]?(?:train|learn)\w*|\brandom(?:ized)?[\s_-]*(?:features?|proj\w*|matri\w*|rotat\w*|hyper\w*|weights?"
    r"|synth\w*|fourier)|performer|favor\b|fourier|\blsh\b|\bhash|reservoir",
    re.I,
)
"""In the text of a class: some of what is drawn stays as it is."""


def plain_tensor_findings(invocation: Invocation) -> Iterator[Finding]:
    """The first tensor of a module that is made to be learned, as by nn.init, and is no parameter.

    Not of numbers that are drawn and stay, as those of random features, where the class says so; nor of what is only
    drawn, of which nothing says that it learns, unless it is an embedding: a model that is loaded would have another.

    Args:
        invocation: a call of a module.
    """
    target = invocation.target
    if not isinstance(target, nn.Module) or not any(each.requires_grad for each in target.parameters()):
        return
    for path, owner in target.named_modules():
        for name in _plain(owner):
            made = _made_to_learn(type(owner), name)
            place = f"{path}.{name}" if path else name
            if made and not is_meant(type(owner)) and _has_effect(invocation, path, name):
                message = (
                    f"{place} is a plain tensor, {made}: it changes the output, and neither parameters() nor "
                    "state_dict() has it: no optimizer trains it"
                )
                yield Finding("violation", "parameters-registered", "projections", message)
                return


def _plain(owner: nn.Module) -> list[str]:
    """The attributes of a module that are tensors of numbers, and neither parameters nor buffers."""
    return [name for name, each in vars(owner).items() if type(each) is Tensor and each.is_floating_point()]


def _made_to_learn(kind: type, name: str) -> str:
    """How the constructor makes a tensor that is to be learned, in words; empty where nothing says that it is."""
    several = own_classes(kind)
    says_it_stays = any(STAYS.search(source_of(each)) for each in several)
    is_seeded = any(SEEDED.search(source_of(each)) for each in several)
    for each in several:
        constructor = vars(each).get("__init__")
        if not inspect.isfunction(constructor):
            continue
        source = source_of(constructor)
        made = [value for value in kept_as(tree_of(source), name) if _is_drawn(value)]
        if not made:
            continue
        if any(_asks_for_gradients(value) for value in made) or _is_asked_for_gradients(tree_of(source_of(each)), name):
            return "made with gradients"
        if says_it_stays:
            return ""
        if _is_initialized(tree_of(source_of(each)), name):
            return "which is given its first numbers as parameters are"
        if _is_said_to_learn(source, name):
            return "of which it is said that it learns"
        if _is_embedding(each, name) and all(map(_is_random, _set(tree_of(source), name))) and not is_seeded:
            return "an embedding that each new module draws anew"
    return ""


def _set(tree: ast.AST, name: str) -> list[ast.expr]:
    """What is assigned to an attribute, but for None."""
    return [each for each in kept_as(tree, name) if not (isinstance(each, ast.Constant) and each.value is None)]


def _is_random(value: ast.expr) -> bool:
    """Whether an expression draws numbers."""
    return any(isinstance(each, ast.Call) and _called(each) in RANDOM for each in ast.walk(value))


def _is_embedding(kind: type, name: str) -> bool:
    """Whether an attribute is named after embeddings, or a method that is reads it."""
    readers = [each for method, each in vars(kind).items() if EMBEDDING.search(method) and inspect.isfunction(each)]
    reads = re.compile(rf"\bself\.{re.escape(name)}\b")
    return EMBEDDING.search(name) is not None or any(reads.search(source_of(each)) for each in readers)


def _is_drawn(value: ast.expr) -> bool:
    """Whether an expression makes a tensor of new numbers, and no parameter."""
    called = [_called(each) for each in ast.walk(value) if isinstance(each, ast.Call)]
    return bool(DRAWN & {*called}) and not {"Parameter", "Variable", "Buffer"} & {*called}


def _called(node: ast.Call) -> str:
    return node.func.attr if isinstance(node.func, ast.Attribute) else getattr(node.func, "id", "")


def _asks_for_gradients(value: ast.expr) -> bool:
    """Whether it is made with requires_grad=True, or by requires_grad_()."""
    return any(
        (isinstance(each, ast.keyword) and each.arg == "requires_grad" and _is_true(each.value))
        or (isinstance(each, ast.Call) and _called(each) == "requires_grad_" and all(map(_is_true, each.args)))
        for each in ast.walk(value)
    )


def _is_asked_for_gradients(tree: ast.AST, name: str) -> bool:
    """The same of what is written of the attribute elsewhere: self.NAME.requires_grad = True."""
    return any(
        (
            isinstance(each, ast.Assign)
            and _is_true(each.value)
            and any(
                isinstance(one, ast.Attribute) and one.attr == "requires_grad" and _is_of(one.value, name)
                for one in each.targets
            )
        )
        or (
            isinstance(each, ast.Call)
            and isinstance(each.func, ast.Attribute)
            and _is_of(each.func.value, name)
            and _asks_for_gradients(each)
        )
        for each in ast.walk(tree)
    )


def _is_true(node: ast.expr) -> bool:
    return isinstance(node, ast.Constant) and node.value is True


def _is_initialized(tree: ast.AST, name: str) -> bool:
    """Whether a function that draws the first numbers of parameters is called with an attribute, or as its method."""
    return any(
        isinstance(each, ast.Call)
        and IN_PLACE.fullmatch(_called(each)) is not None
        and (
            any(_is_of(one, name) for one in each.args[:1])
            or (isinstance(each.func, ast.Attribute) and _is_of(each.func.value, name))
        )
        for each in ast.walk(tree)
    )


def _is_of(node: ast.expr, name: str) -> bool:
    """Whether an expression is self.NAME, or its data."""
    return is_attribute(node.value if isinstance(node, ast.Attribute) and node.attr == "data" else node, name)


def _is_said_to_learn(source: str, name: str) -> bool:
    """Whether a comment in or above the line that makes an attribute says that it learns."""
    assigned = re.compile(rf"^\s*self\.{re.escape(name)}\s*(?::[^=\n]*)?=", re.M)
    lines = source.splitlines()
    for number, line in enumerate(lines):
        above = lines[number - 1].strip() if number else ""
        said = f"{above if above.startswith('#') else ''} {line.partition('#')[2]}"
        if assigned.match(line) and TO_LEARN.search(said) and not OTHERWISE.search(said):
            return True
    return False


def _has_effect(invocation: Invocation, path: str, name: str) -> bool:
    """Whether an output changes with a tensor that a module keeps."""
    live = copied(invocation.target)
    tensor = getattr(live.get_submodule(path), name)
    try:
        with torch.no_grad():
            before = [each for each in invocation.outputs(invocation.run(target=live)) if isinstance(each, Tensor)]
            before = [each.clone() for each in before]
            tensor.copy_(drawn_like(tensor, seed=3))
            after = invocation.outputs(invocation.run(target=live))
    except (Failed, RuntimeError):
        return False
    pairs = zip(before, after, strict=False)
    return any(one.shape == two.shape and bool(((one - two).abs() > MOVED).any()) for one, two in pairs)
