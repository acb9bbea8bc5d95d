"""What the text of code says of the axes of a mask."""

from __future__ import annotations

import ast
import inspect
import re
from functools import cache
from typing import Any

from regard.check.target.argument import nodes_of, text_of
from regard.check.target.classes import own_classes
from regard.check.target.documented_shapes import documented_letters
from regard.check.target.looked_up import readers
from regard.check.target.mask_values import HEADS_LAST, OF_EACH_TOKEN, PADDING_SHAPES, SCORE_SHAPES
from regard.check.target.names import call_meaning
from regard.check.target.preparation import modules_in
from regard.check.target.usage import has_heads_last

__all__ = [
    "axes_repeated",
    "axes_subscripted",
    "bias_shapes",
    "is_read_unasked",
    "mask_shapes",
    "zeroes_tokens",
]


def mask_shapes(role: str, name: str, target: Any, source: str) -> tuple[list[str], bool]:
    """The axes that a mask may have, the likeliest first, and whether it is read without being asked for.

    A mask with more axes than scores runs by accident, and mixes what it reads; of several, each has to run.

    Args:
        role: "mask" or "padding".
        name: of the argument.
        target: what is called.
        source: its text.
    """
    added, taken = axes_added(name, target, source), axes_subscripted(source, name)
    (repeated, is_needed), zeroes = axes_repeated(target, name), zeroes_tokens(source, name)
    least, most = len("bqk") if lacks_heads_alone(target, name) else 0, len("bhqk") - added

    def unlike(each: str) -> tuple[bool, ...]:
        is_other = len(each) != repeated if repeated else zeroes and each != OF_EACH_TOKEN
        return is_other, len(each) < taken, not is_as_documented(each, name, source), not least <= len(each) <= most

    shapes = sorted(SCORE_SHAPES if role == "mask" else PADDING_SHAPES, key=unlike)
    is_read = is_needed or is_read_unasked(source, name)  # numpy compares None as well, with nothing
    return [each for each in shapes if may_have_shape(each, name, source)], is_read


def may_have_shape(shape: str, name: str, source: str) -> bool:
    """Whether nothing speaks against the axes of a mask: some have to be told, by its name or its documentation.

    Queries and keys come first in that of a graph. What has one number for each token may be anything but a mask, so
    that its name has to say that it is one.
    """
    if shape == HEADS_LAST:
        return name.lower().startswith("adj") or re.fullmatch("tt.", documented_letters(source, name)) is not None
    if shape == OF_EACH_TOKEN:
        return call_meaning(name) in ("mask", "padding") or is_as_documented(shape, name, source)
    return True


def is_as_documented(shape: str, name: str, source: str) -> bool:
    """Whether a mask of some axes is as the documentation writes it: as many, and its samples as late."""
    told = documented_letters(source, name)
    last = ("b", "1") if told.endswith(("b", "1")) else ("q", "k", "h")
    return len(told) == len(shape) and shape.endswith(last)


def bias_shapes(source: str, name: str) -> list[str]:
    """The axes that what is added to scores may have, the likeliest first."""
    if has_heads_last(source, name):
        return ["qkh", HEADS_LAST]
    told = len(documented_letters(source, name))
    return sorted(("1hqk", "hqk", "qk", "bhqk"), key=lambda each: len(each) != told)


def axes_added(name: str, target: Any, source: str) -> int:
    """How many axes the code adds to an argument, as two in mask[:, None, None] or mask.unsqueeze(1).unsqueeze(2).

    Or modules inside, whose call has an argument of the same name, where the code hands it on as it was given; or takes
    it under another name.
    """
    texts = [source]
    if "." in name:  # a part of another argument, by the name of a variable
        owner, _, field = (re.escape(each) for each in name.partition("."))
        part = rf"{owner}(?:\.{field}\b|\[['\"]{field}['\"]\])"
        variables = re.findall(rf"^\s*(\w+)\s*=\s*{part}\s*(?:#.*)?$", source, re.M)
        chain = re.compile(rf"\b(?:{'|'.join([part, *map(re.escape, variables)])})((?:\.\w+\([^()]*\)|\[[^\]]*\])+)")
        return max((each.count("None") + each.count(".unsqueeze(") for each in chain.findall(source)), default=0)
    if re.search(rf"\b{re.escape(name)}\s*=(?!=|\s*(?:{re.escape(name)}|None)\b)", source) is None:
        kinds = {kind for owner in modules_in(target) for each in owner.modules() for kind in own_classes(type(each))}
        texts += [text for text in map(text_of, kinds) if _takes(text, name)]
    several = [(text, name) for text in texts]
    several += [(ast.unparse(tree), each) for _, tree, names in readers(target, name) for each in names - {name}]
    return max((_axes_added(text, each) for text, each in several), default=0)


def lacks_heads_alone(target: Any, name: str) -> bool:
    """Whether it is one of two masks or more that a call has to be given, and gets an axis of heads by unsqueeze(1)."""
    call = getattr(target, "forward", None)
    given = inspect.signature(call).parameters.values() if call is not None else ()
    count = sum(each.default is each.empty and call_meaning(each.name) in ("mask", "padding") for each in given)
    return count > 1 and any(
        re.search(rf"\b(?:{'|'.join(map(re.escape, names))})\.unsqueeze\((?:dim=)?1\)", ast.unparse(tree))
        for _, tree, names in readers(target, name)
    )


@cache
def axes_subscripted(source: str, name: str) -> int:
    """How many axes an argument has at least where its elements are taken, as four in mask[:, 0, :, :]; 0 elsewhere."""
    taken = [each.slice for each in nodes_of(source, ast.Subscript) if _is_name(each.value, name)]
    several = [each.elts for each in taken if isinstance(each, ast.Tuple)]
    return max((sum(map(_takes_an_axis, each)) for each in several), default=0)


def _takes_an_axis(index: ast.expr) -> bool:
    """Whether it is neither None, which adds an axis, nor an ellipsis."""
    return not (isinstance(index, ast.Constant) and index.value in (None, ...))


def _is_name(value: ast.expr, name: str) -> bool:
    return isinstance(value, ast.Name) and value.id == name


def axes_repeated(target: Any, name: str) -> tuple[int, bool]:
    """How many axes an argument has where it is repeated along them, as three in mask.repeat(heads, 1, 1); 0 elsewhere.

    Also in a part of the target that it is handed on to.

    Returns:
        Their number, and whether that part never asks if it is there.
    """
    for _, tree, names in readers(target, name):
        for each in ast.walk(tree):
            match each:
                case ast.Call(func=ast.Attribute(value=ast.Name(id=repeated), attr="repeat"), args=[_, _, *_]) if (
                    repeated in names
                ):
                    return len(each.args), not _is_asked_for(ast.unparse(tree), repeated)
                case _:
                    pass
    return 0, False


@cache
def zeroes_tokens(source: str, name: str) -> bool:
    """Whether what a layer returned is multiplied by it in place, or filled with 0 where it is, and never with more.

    As by x *= non_pad_mask, or x.masked_fill_(mask, 0): it is of tokens, and as wide as one number.
    """
    named = re.escape(name)
    fills = re.findall(rf"\.masked_fill_?\(\s*{named}\s*,\s*(?:value\s*=\s*)?([^()\n]*)", source)
    if fills:
        return all(re.fullmatch(r"0(?:\.0*)?\s*", each) for each in fills)
    return re.search(rf"^\s*\w+\s*\*=\s*{named}\s*(?:#.*)?$", source, re.M) is not None


@cache
def is_read_unasked(source: str, name: str) -> bool:
    """Whether an argument is compared, its elements are taken or tokens are zeroed by it, and nothing asks for it."""
    is_compared = re.search(rf"\b{re.escape(name)}\s*[!=]=", source) is not None
    is_read = is_compared or axes_subscripted(source, name) > 0 or zeroes_tokens(source, name)
    return is_read and not _is_asked_for(source, name)


def _is_asked_for(source: str, name: str) -> bool:
    """Whether a text asks if an argument is there."""
    asked = rf"\b{re.escape(name)}\s+is\b|\b(?:if|not|and|or)\s+{re.escape(name)}\b(?!\.)"
    return re.search(asked, source) is not None


@cache
def _takes(source: str, name: str) -> bool:
    """Whether the call of a module has an argument of this name."""
    return re.search(rf"def forward\([^()]*\b{re.escape(name)}\b", source) is not None


@cache
def _axes_added(source: str, name: str) -> int:
    """How many axes a text adds to an argument in one place, or to a sum in brackets that has it, as (1 - mask)."""
    named = re.escape(name)
    of_it = rf"(?:\b{named}|(?<![\w\])])\((?:[^()]*[^\w.()])?{named}\b[^(),]*\))"
    chains = re.findall(rf"{of_it}((?:\.\w+\([^()]*\)|\[[^\]]*\])+)", source)
    return max((each.count("None") + each.count(".unsqueeze(") for each in chains), default=0)
