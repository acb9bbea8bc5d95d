"""An argument of a call, the roles that it may have, and the text of what is called."""

from __future__ import annotations

import ast
import inspect
import re
import textwrap
from collections.abc import Collection
from dataclasses import dataclass
from functools import cache
from typing import Any

from regard.check.target.class_texts import text_of_class

__all__ = [
    "ADDED",
    "BESIDE",
    "DISTANCES",
    "MATRICES",
    "OUTPUT_GRADIENT",
    "PLAIN",
    "STREAMS",
    "WEIGHTS",
    "Argument",
    "asks_for_none",
    "body_of",
    "is_output_gradient",
    "is_rooted",
    "nodes_of",
    "role_of_bias",
    "source_of",
    "taken_by",
    "text_of",
    "tree_of",
]

STREAMS = ("x", "q", "k", "v", "context", "ids", "image", "qkv")
"""The roles of arguments that hold sequences."""
WEIGHTS = ("w_q", "w_k", "w_v", "w_o")
MATRICES = frozenset({*WEIGHTS, "w_qkv"})
"""The roles of matrices that tokens are multiplied by."""
ADDED = "added to "
"""How the role of vectors begins that are added to those of a sequence; then comes its name."""
BESIDE = "beside tokens"
"""The role of a number of each token that nothing tells more of."""
DISTANCES = "distances"
"""The role of vectors, one for each distance from the farthest key to the query itself (Transformer-XL)."""
PLAIN = ("int", "bool", "float", "str")
"""Annotations of what is no sequence."""
OUTPUT_GRADIENT = "output gradient"
"""The role of what a function that returns gradients as well is given of its output."""
_OUTPUT_GRADIENT = re.compile(
    r"d_?(?:out(?:put)?s?|[yo])|(?:grad(?:ient)?s?|upstream|delta)_(?:of_)?(?:out(?:put)?s?|[yo]|grad(?:ient)?s?)"
    r"|(?:out(?:put)?|upstream)_(?:grad(?:ient)?s?|delta)|d_?l_?d_?(?:out(?:put)?|[yo])",
    re.I,
)
_VECTOR = re.compile(
    r"b_?([qkvo])|([qkvo])_bias|bias_([qkvo])|b_out|(?:out|output|[qkvo]|c)_?(?:proj)?_b(?:ias)?"
    r"|(?P<packed>(?:in|qkv|in_?proj|qkv_proj|c_attn)_b(?:ias)?|b_?(?:qkv|attn)|bias_qkv)"
)
"""Names of biases of projections."""


@dataclass(frozen=True)
class Argument:
    """Of a call."""

    name: str
    role: str | None
    """By its name or its place: one of `STREAMS`, "mask", "rope", "size heads", ...; None where nothing tells."""
    required: bool
    positional: bool = False
    """Whether it can be given by its place alone."""
    annotation: str = ""
    default: Any = None
    guessed: bool = False
    """Whether the role is a guess by what the code does with it."""
    within: str = ""
    """The argument that it is a part of, where the call takes several as one tuple."""

    @property
    def may_be_none(self) -> bool:
        """Whether it is a sequence or a mask that is None by default: some code reads it all the same."""
        return not self.required and self.default is None and self.role in ("mask", "padding", *STREAMS)

    @property
    def is_untold(self) -> bool:
        """Whether it is None by default, and nothing tells what it is: some code reads it all the same."""
        is_plain = self.annotation in PLAIN or self.annotation.startswith("<class")
        return not self.required and self.default is None and self.role is None and not is_plain


def is_output_gradient(name: str) -> bool:
    """Whether an argument is named as the gradient of an output, as dout."""
    return _OUTPUT_GRADIENT.fullmatch(name) is not None


def role_of_bias(name: str) -> str | None:
    """The role of the bias of a projection, or of several in one, by its name; None of anything else."""
    vector = _VECTOR.fullmatch(name.lower())
    if vector is None:
        return None
    return "packed vector" if vector["packed"] else "vector"


def source_of(target: Any) -> str:
    """The text of a function, or of the class of a module or an object; empty where there is none."""
    for each in (target, getattr(target, "func", None), getattr(target, "__func__", None), type(target)):
        if inspect.isfunction(each) or inspect.isclass(each):
            written: Any = each
            return text_of(written)
    return ""


@cache
def text_of(each: Any) -> str:
    """The text of a function or a class; empty where there is none."""
    try:
        return text_of_class(each) if inspect.isclass(each) else inspect.getsource(each)
    except (OSError, TypeError):
        return ""


@cache
def nodes_of(source: str, kind: type[ast.AST] = ast.AST) -> tuple[Any, ...]:
    """All that stands in the text of a function or a class, of one kind: walked once, however many names are asked."""
    if kind is ast.AST:
        return tuple(ast.walk(tree_of(source)))
    return tuple(each for each in nodes_of(source) if isinstance(each, kind))


@cache
def tree_of(source: str) -> ast.AST:
    """The text of a function or a class as Python reads it; of what is none, a module in which nothing stands."""
    try:
        return ast.parse(textwrap.dedent(source))
    except SyntaxError:
        return ast.Module([], [])


def body_of(source: str) -> list[ast.stmt]:
    """The statements of the function whose text it is; none of what is no function."""
    tree = tree_of(source)
    function = tree.body[0] if isinstance(tree, ast.Module) and tree.body else None
    return function.body if isinstance(function, ast.FunctionDef) else []


def is_rooted(source: str, name: str) -> bool:
    """Whether the code takes the root of an argument, as of the width by whose root scores are divided."""
    named = re.escape(name)
    roots = rf"sqrt\(\s*{named}\s*\)|\b{named}\s*\*\*\s*\(?-?\s*(?:0?\.5|1\s*/\s*2)"
    return re.search(roots, source) is not None


def taken_by(function: ast.FunctionDef) -> list[ast.arg]:
    """The arguments of a function in their order, without those of any number."""
    return [*function.args.posonlyargs, *function.args.args, *function.args.kwonlyargs]


def asks_for_none(test: ast.expr, names: Collection[str], *how: type[ast.cmpop]) -> bool:
    """Whether a condition asks of one of some names whether it is None, or is not None.

    Args:
        test: the condition.
        names: of variables.
        how: `ast.Is` or `ast.IsNot`, or both.
    """
    return (
        isinstance(test, ast.Compare)
        and isinstance(test.left, ast.Name)
        and test.left.id in names
        and isinstance(test.ops[0], how)
        and isinstance(test.comparators[0], ast.Constant)
        and test.comparators[0].value is None
    )
