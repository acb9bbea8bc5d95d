"""Stacks of layers in which one and the same module stands several times, is called for each, or is a part of each."""

from __future__ import annotations

import ast
import re
import textwrap
from collections.abc import Iterator, Sequence

from torch import nn

from regard.check.properties.code import code_of, documentation_of_file
from regard.check.properties.finding import Finding
from regard.check.target.argument import source_of
from regard.check.target.names import constructor_meaning
from regard.check.target.preparation import modules_in

__all__ = ["repeated_layer_findings"]

SHARED = re.compile(
    r"shar(?:e[ds]?|ing)(?![a-z])|(?<![a-z])tied?(?![a-z])|weight[- _]?tying|universal|albert|recurren|recursi|\bloop"
    r"|reus",
    re.I,
)
"""In the code of a stack: its layers are meant to be one."""
_OF_CONDITIONS = re.compile(r"time|step|cond|pos|emb|style|noise", re.I)
"""In the path of what makes vectors that all layers are given, as those of a diffusion's step."""


def repeated_layer_findings(target: object) -> Iterator[Finding]:
    """One layer with matrices that stands twice or more in a list of modules, which nothing says is meant.

    ALBERT (Lan et al. 2020, section 3.1) and Universal Transformers apply one layer several times on purpose.
    """
    for outer in modules_in(target):
        if SHARED.search(source_of(outer)):
            continue
        for name, stack in outer.named_modules():
            layers = [*stack._modules.values()] if isinstance(stack, nn.ModuleList | nn.Sequential) else []
            first = layers[0] if len(layers) > 1 else None
            if first is None or not _has_matrices(first):
                continue
            if all(each is first for each in layers):
                message = f"the {len(layers)} layers of {name} are one and the same module: they share their parameters"
                yield Finding("violation", "layers-apart", "block", message)
                return
            if _are_shallow_copies(layers) and not SHARED.search(code_of(outer)):
                message = (
                    f"the {len(layers)} layers of {name} are copies that hold the very same parameters, as copy.copy() "
                    "makes them: each has none of its own"
                )
                yield Finding("violation", "layers-apart", "block", message)
                return
        if (found := _of_shared_parts(outer)) is not None:
            yield found
            return
        for path, module in outer.named_modules():
            for layer, number in _called_for_each(module):
                message = (
                    f"{f'{path}.' if path else ''}{layer} is called {number} times, as the {number} layers: they share "
                    "their parameters"
                )
                yield Finding("violation", "layers-apart", "block", message)
                return


def _are_shallow_copies(layers: Sequence[nn.Module | None]) -> bool:
    """Whether layers are several modules whose collections of parameters and of parts are one and the same.

    Parameters that a constructor ties stand in collections of each layer's own.
    """
    several = [each for each in layers if each is not None]
    if len(several) != len(layers) or len({id(each) for each in several}) != len(layers):
        return False
    held = {(id(each._parameters), id(each._modules)) for each in several}
    return len(held) == 1


def _of_shared_parts(outer: nn.Module) -> Finding | None:
    """Layers of one kind with matrices of their own that have one and the same feed-forward network, or attention.

    Nothing in the code, or in the first words of its file, speaks of sharing: as by Pires et al. 2023, who share one
    feed-forward network among all layers.
    """
    kinds = dict.fromkeys(type(each) for each in outer.modules() if not type(each).__module__.startswith("torch."))
    if SHARED.search("\n".join([documentation_of_file(outer), *map(source_of, kinds)])):
        return None
    for name, stack in outer.named_modules():
        layers = [*stack._modules.values()] if isinstance(stack, nn.ModuleList | nn.Sequential) else []
        several = [each for each in layers if each is not None]
        if len({id(each) for each in several}) < max(2, len(layers)) or len({type(each) for each in several}) > 1:
            continue
        parts = [dict(each.named_modules()) for each in several]
        for path, part in parts[0].items():
            is_one = all(each.get(path) is part for each in parts) and not _OF_CONDITIONS.search(path)
            if (
                path
                and is_one
                and (_is_feed_forward(part) or _is_attention(part))
                and _has_other_matrices(several[0], part)
            ):
                message = (
                    f"the {len(several)} layers of {name} have one and the same {path}: they share its parameters, and "
                    "each has its own of the others"
                )
                return Finding("violation", "layers-apart", "block", message)
    return None


def _is_feed_forward(module: nn.Module) -> bool:
    """Whether it has two linear layers or more, and returns what is as wide as it takes: so that layers may add it."""
    linear = [each for each in module.modules() if isinstance(each, nn.Linear)]
    return len(linear) > 1 and linear[0].in_features in (each.out_features for each in linear[1:])


def _is_attention(module: nn.Module) -> bool:
    """Whether it projects queries, keys or values; a table of biases that layers share, as T5's do, is none."""
    if isinstance(module, nn.MultiheadAttention):
        return True
    projections = sum(isinstance(each, nn.Linear) for each in module.modules())
    return projections > 1 and re.search("attention|attn", type(module).__name__, re.I) is not None


def _has_other_matrices(layer: nn.Module, part: nn.Module) -> bool:
    """Whether a layer has matrices besides those of a part of it."""
    mine = {id(each) for each in part.parameters()}
    return any(each.ndim > 1 and id(each) not in mine for each in layer.parameters())


def _called_for_each(module: nn.Module) -> Iterator[tuple[str, int]]:
    """The module, by its name, that a call goes through as many times as layers are asked for, and this number.

    As in `for _ in range(self.num_layers): x = self.layer(x)`.
    """
    source = source_of(type(module).forward)
    if "range(" not in source or SHARED.search(source_of(module)):
        return
    try:
        tree = ast.parse(textwrap.dedent(source))
    except SyntaxError:
        return
    for each in ast.walk(tree):
        if not isinstance(each, ast.For) or len(each.body) != 1 or not isinstance(each.body[0], ast.Assign):
            continue
        counts = [name for name in _of_self(each.iter) if constructor_meaning(name) == "layers"]
        number = getattr(module, counts[0], None) if len(counts) == 1 else None
        called = each.body[0].value
        if type(number) is int and number > 1 and isinstance(called, ast.Call) and _goes_on(each.body[0], called):
            name = next(_of_self(called.func), "") if isinstance(called.func, ast.Attribute) else ""
            layer = getattr(module, name, None)
            if isinstance(layer, nn.Module) and not isinstance(layer, nn.ModuleList) and _has_matrices(layer):
                yield name, number


def _goes_on(assigned: ast.Assign, called: ast.Call) -> bool:
    """Whether what a call returns is what the next one is given first."""
    target, first = assigned.targets[0], next(iter(called.args), None)
    return isinstance(target, ast.Name) and isinstance(first, ast.Name) and target.id == first.id


def _of_self(tree: ast.AST) -> Iterator[str]:
    """The names of the attributes of self that are read."""
    for each in ast.walk(tree):
        if isinstance(each, ast.Attribute) and isinstance(each.value, ast.Name) and each.value.id == "self":
            yield each.attr


def _has_matrices(module: nn.Module) -> bool:
    return any(each.ndim > 1 for each in module.parameters())
