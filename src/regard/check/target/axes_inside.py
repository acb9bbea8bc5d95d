"""What the code tells of the axes of an argument, also that of a part which it is handed on to."""

from __future__ import annotations

import ast
import inspect
import itertools
import re
from collections.abc import Callable, Iterator
from dataclasses import replace
from typing import Any

from torch import nn

from regard.check.target.argument import PLAIN, Argument, source_of, text_of
from regard.check.target.conditions import is_applied
from regard.check.target.documented_shapes import documented_letters, documented_shape, letters_of
from regard.check.target.kept_arguments import is_tested
from regard.check.target.looked_up import base_of, handed_on, part_of, readers
from regard.check.target.names import call_meaning
from regard.check.target.preparation import modules_in
from regard.check.target.usage import is_demanded
from regard.check.target.written_axes import are_sides_last

__all__ = [
    "OF_NO_SAMPLE",
    "OF_QUERIES",
    "axes_inside",
    "is_sequence_inside",
    "is_taken_by_a_norm",
    "is_turned",
    "map_inside",
    "no_sample_candidates",
    "told_inside",
]

OF_NO_SAMPLE = "vectors of no sample"
"""The role of a vector of each token that is the same for all samples, and has no axis for these."""
_TURNS = re.compile(r"\b(?:cat|stack|concat)\(\s*[\[(]\s*-|view_as_complex")
"""What turns pairs of channels: one of a pair is put in the other's place with its sign changed."""
_HEADS = re.compile(r"(?:n_?|num_?)?(?:attention_|attn_)?heads?|nh", re.I)
OF_QUERIES = ("quer", "dec", "tgt", "target")
"""How the names of what is added to the sequence that asks begin."""
_TAKES_A_PATTERN = re.compile(r"(?:\w+\.)*(?:rearrange|repeat|reduce|asnumpy)\w*")
"""Functions of einops, and those that do the same for several tensors, as rearrange_many."""


def axes_inside(target: Any, name: str) -> tuple[str, ...]:
    """The names of the axes of an argument, as einops takes them, or a line unpacks them; none where neither does.

    Args:
        target: what is called.
        name: of the argument, as media in rearrange(media, "b t n d -> b (t n) d").
    """
    several = ((*_taken(tree, names), *_unpacked(tree, names)) for _, tree, names in readers(target, name))
    return next((found for each in several for found in each), ())


def told_inside(target: Any, argument: Argument) -> Argument:
    """The argument with the role that the code gives it, where its name tells none.

    Marks of tokens, of which the code counts those so far, as the places of pictures in a text; or vectors of tokens
    that the code gives to all samples, as a model's learned queries.
    """
    may_be_vectors = argument.required and argument.role in (None, "rope", "positions", "added")
    if may_be_vectors and argument.annotation not in PLAIN and _is_repeated(target, argument.name):
        return replace(argument, role=OF_NO_SAMPLE)
    if may_be_vectors and argument.annotation not in PLAIN and _is_turned_by(target, argument.name):
        return replace(argument, role="rope")
    if argument.required and argument.role is None and _is_written_for_heads(source_of(target), argument.name):
        return replace(argument, role="bias")
    if argument.role == "absent" and not argument.required and argument.default is None:
        is_memory = _is_demanded_as_a_context(target, argument.name)
        return replace(argument, role="context", required=True) if is_memory else argument
    may_be_marks = argument.role is None and (argument.required or argument.default is None)
    return replace(argument, role="marks") if may_be_marks and _are_counted(target, argument.name) else argument


def no_sample_candidates(name: str) -> Iterator[tuple[str, Callable[[Any], Any]]]:
    """A vector for each token, or for each of as many queries as keys that another sequence has."""
    sides = {
        "of the tokens": lambda draft: draft.draw(draft.tokens, draft.width),
        "of the queries": lambda draft: draft.draw(draft.sizes.context, draft.width),
    }
    yield from (reversed(sides.items()) if name.lower().startswith(OF_QUERIES) else sides.items())


def is_sequence_inside(target: Any, source: str, name: str) -> bool:
    """Whether the code calls a module with an argument alone, or says that it has two axes of tokens."""
    is_of_a_number = re.search(r"\d", documented_letters(source, name)) is not None
    return is_applied(source, name) or (map_inside(target, name) and not is_of_a_number)


def map_inside(target: Any, name: str) -> bool:
    """Whether the code says that an argument has two axes of tokens: samples, those of several things, and channels."""
    axes = axes_inside(target, name)
    is_of_samples = len(axes) == len("byxd") and (axes[0].startswith("_") or letters_of(axes[:1]) == "b")
    return is_of_samples and not are_sides_last(axes)


def _taken(tree: ast.AST, names: set[str]) -> Iterator[tuple[str, ...]]:
    """The axes on the left of a pattern, where each is one name."""
    for each in ast.walk(tree):
        if not isinstance(each, ast.Call) or len(each.args) < 2 or not isinstance(each.args[0], ast.Name):
            continue
        pattern = each.args[1].value if isinstance(each.args[1], ast.Constant) else None
        if not isinstance(pattern, str) or "->" not in pattern:
            continue
        if each.args[0].id in names and _TAKES_A_PATTERN.fullmatch(ast.unparse(each.func)):
            axes = pattern.partition("->")[0].split()
            if all(axis.isidentifier() for axis in axes):
                yield tuple(axes)


def _unpacked(tree: ast.AST, names: set[str]) -> Iterator[tuple[str, ...]]:
    """The names that a line gives to the sizes of all axes."""
    for each in ast.walk(tree):
        if not isinstance(each, ast.Assign) or len(each.targets) != 1 or not isinstance(each.targets[0], ast.Tuple):
            continue
        sizes = re.fullmatch(r"(\w+)\.(?:shape|size\(\))", ast.unparse(each.value))
        axes = [one.id if isinstance(one, ast.Name) else "" for one in each.targets[0].elts]
        if sizes is not None and sizes[1] in names and all(axes) and (len(axes) < 2 or axes[1] != "_"):
            yield tuple(axes)


def _are_counted(target: Any, name: str) -> bool:
    """Whether the code counts how many of the tokens so far are marked by an argument, as by places.cumsum(-1)."""
    for _, tree, names in readers(target, name):
        for each in ast.walk(tree):
            if not isinstance(each, ast.Call):
                continue
            function = ast.unparse(each.func).rpartition(".")[2]
            of_it = base_of(each.func.value) if isinstance(each.func, ast.Attribute) else ""
            first = base_of(each.args[0]) if each.args else ""
            if function in ("cumsum", "count_nonzero") and {of_it, first} & names:
                return True
    return False


def is_turned(target: Any, name: str) -> bool:
    """Whether a matrix takes an argument after its last two axes were exchanged: its tokens stand last.

    As by x = x.permute(0, 2, 1), and then self.embed(x).
    """
    for module, tree, names in readers(target, name):
        turned = {
            each.targets[0].id
            for each in ast.walk(tree)
            if isinstance(each, ast.Assign) and len(each.targets) == 1 and isinstance(each.targets[0], ast.Name)
            if _turned(each.value) in names
        }
        for each in ast.walk(tree):
            if not isinstance(each, ast.Call) or len(each.args) != 1:
                continue
            is_such = _turned(each.args[0]) in names
            is_such = is_such or (isinstance(each.args[0], ast.Name) and each.args[0].id in turned)
            if is_such and isinstance(part_of(module, each.func), nn.Linear):
                return True
    return False


def _turned(value: ast.expr) -> str:
    """The name of what an expression exchanges the last two of three axes of; empty of any other."""
    found = re.fullmatch(
        r"(\w+)\.(?:permute\(\(?0, 2, 1\)?\)|mT|(?:transpose|swapaxes)\((?:1, 2|2, 1|1, -1|-1, 1|-1, -2|-2, -1)\))",
        ast.unparse(value),
    )
    return "" if found is None else found[1]


def _is_written_for_heads(source: str, name: str) -> bool:
    """Whether an argument is documented to have a number for each two tokens and each head, as (heads, N, N)."""
    shape = documented_shape(source, name)
    return len(shape) == len("hqk") and _HEADS.fullmatch(shape[0]) is not None and shape[1] == shape[2]


def _is_demanded_as_a_context(target: Any, name: str) -> bool:
    """Whether the code hands an argument on, and asks nothing of it, to what takes it as memory and cannot do without.

    As of mems=None in self.mha(x, pos_embs, mems), of which the other one reads memory.shape.
    """
    source = source_of(target)
    if is_tested(source, name) or re.search(rf"\b{re.escape(name)} is (?:not )?None\b", source):
        return False
    inside = itertools.islice(readers(target, name), 1, None)
    return any(
        call_meaning(each) == "context" and is_demanded(text_of(type(module).forward), each)
        for module, _, names in inside
        for each in names
    )


def _is_turned_by(target: Any, name: str) -> bool:
    """Whether a function of the file that turns pairs of channels takes it beside other vectors, as turn(q, table)."""
    for module, tree, names in readers(target, name):
        known = getattr(type(module).forward, "__globals__", {})
        for called, _ in handed_on(tree, names):
            function = known.get(called.id) if isinstance(called, ast.Name) else None
            if inspect.isfunction(function) and _TURNS.search(text_of(function)) is not None:
                return True
    return False


def _is_repeated(target: Any, name: str) -> bool:
    """Whether the code gives it an axis of samples, and repeats it along this, as vectors.unsqueeze(1).repeat(...)."""
    for _, tree, names in readers(target, name):
        for each in ast.walk(tree):
            if not isinstance(each, ast.Call) or not isinstance(each.func, ast.Attribute):
                continue
            if each.func.attr not in ("repeat", "expand"):
                continue
            found = re.fullmatch(
                r"(\w+)(?:\.unsqueeze\((?:dim=)?[01]\)|\[(?:None|:, None)\])", ast.unparse(each.func.value)
            )
            if found is not None and found[1] in names:
                return True
    return False


def is_taken_by_a_norm(target: Any, name: str) -> bool:
    """Whether the code begins with a layer that takes its last axis, and nothing reads pictures: it is a sequence."""
    inner = [each for module in modules_in(target) for each in module.modules()]
    is_of_pictures = any(isinstance(each, nn.Conv2d | nn.Conv3d) for each in inner)
    return not is_of_pictures and isinstance(_first_taking(target, name), nn.Linear | nn.LayerNorm | nn.RMSNorm)


def _first_taking(target: Any, name: str) -> nn.Module | None:
    """The layer that an argument is handed to before anything else is done with it; None without one."""
    reader = next(readers(target, name), None)
    if reader is None:
        return None
    module, tree, names = reader
    reads = [each for each in ast.walk(tree) if isinstance(each, ast.Name) and each.id in names]
    reads = [each for each in reads if isinstance(each.ctx, ast.Load)]
    first = min(reads, key=lambda each: (each.lineno, each.col_offset), default=None)
    calls = (each for each in ast.walk(tree) if isinstance(each, ast.Call))
    call = next((each for each in calls if len(each.args) == 1 and each.args[0] is first), None)
    part = None if call is None or first is None else part_of(module, call.func)
    return part if isinstance(part, nn.Module) else None
