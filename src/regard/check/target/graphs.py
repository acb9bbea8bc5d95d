"""What two tokens have in common, and hides nothing: distances in a graph, kinds of edges, edges that are counted."""

from __future__ import annotations

import ast
import re
from collections.abc import Iterable, Sequence
from dataclasses import replace
from typing import Any

from torch import nn

from regard.check.target.argument import Argument, nodes_of, tree_of
from regard.check.target.documented_shapes import axes_of, documented_shape

__all__ = ["are_links", "are_of_pairs", "hold_vectors_of_pairs", "with_nodes", "with_vectors_of_pairs"]

OF_PAIRS = re.compile(r"(?:^|_)(?:spd|sp|shortest_paths?|dist(?:ances?)?|hops?|rel(?:ative)?|edges?|spatial)(?:_|$)")
"""In names of what two tokens have in common."""
_LINKS = re.compile(r"adj(?:acency)?_")
"""How the name of a matrix of edges begins that has names for its parts behind."""
_TOKENS_FIRST = r"\.(?:permute\(\s*1,\s*0,\s*2\s*\)|transpose\(\s*(?:0,\s*1|1,\s*0)\s*\))(?:\.contiguous\(\))?"
_TURNED = r"(?:\.mT\b|\.transpose\(\s*(?:1,\s*2|2,\s*1|-1,\s*-2|-2,\s*-1)\s*\))?"
_OF_KEYS = re.compile(r"_k(?P<rest>ey)?(?P<several>s?)$")


def are_links(source: str, name: str, role: str | None) -> bool:
    """Whether it is a matrix of the edges of a graph that hides no key: it is counted, or its name says no more.

    As adj_block, which a graph convolution multiplies what its nodes are by.
    """
    return _are_counted(source, name) if role == "mask" else role is None and _LINKS.match(name.lower()) is not None


def _are_counted(source: str, name: str) -> bool:
    """Whether a matrix of the edges of a graph is summed and nothing else: as degrees of nodes, it hides no key."""
    if not name.lower().startswith("adj"):
        return False
    summed = rf"(?<![\w.])(?:{re.escape(name)}\.sum\(|torch\.sum\(\s*{re.escape(name)}\b)"
    told = [each for each in nodes_of(source, ast.Name) if each.id == name]
    return bool(told) and len(told) == len(re.findall(summed, ast.unparse(tree_of(source))))


def are_of_pairs(target: Any, source: str, name: str) -> bool:
    """Whether an embedding of a module is looked up by an argument that has a number for each two tokens.

    By its documentation, whose last two axes are the same, or by its name where nothing is written, or by a line that
    lays what was looked up out by two axes of tokens.
    """
    if not isinstance(target, nn.Module) or not (looked_up := _looked_up_by(target, source, name)):
        return False
    shape = documented_shape(source, name)
    if len(shape) > 1:
        return shape[-1] == shape[-2]
    return OF_PAIRS.search(name.lower()) is not None or _are_laid_out_by_two(source, looked_up)


def _are_laid_out_by_two(source: str, names: set[str]) -> bool:
    """Whether a line views one of some tensors as (samples, tokens, tokens, ...), as the vectors of intervals."""
    sizes = (re.findall(rf"\b{re.escape(name)}\.(?:view|reshape)\(([^()]*)\)", source) for name in names)
    told = ([each.strip() for each in one.split(",")] for several in sizes for one in several)
    return any(len(each) > len("btt") and each[1] == each[2] != each[0] for each in told)


def hold_vectors_of_pairs(target: Any, source: str, argument: Argument, others: Iterable[str]) -> bool:
    """Whether an argument has a vector for each query and key: as is written, or as a layer takes what is a bias.

    As self.to_bias(bias), whose result is added to the scores (RoseTTAFold, RFdiffusion).
    """
    if not argument.required or argument.role not in (None, "x", "bias"):
        return False
    if argument.role != "bias":
        return _are_vectors_of_pairs(source, argument.name, others)
    layers = re.findall(rf"\bself\.(\w+)\(\s*{re.escape(argument.name)}\s*\)", source)
    return any(isinstance(getattr(target, each, None), nn.Linear | nn.LayerNorm) for each in layers)


def _are_vectors_of_pairs(source: str, name: str, others: Iterable[str]) -> bool:
    """Whether the documentation writes (batch, queries, keys, width) for it, beside sequences that have these axes.

    Or (batch, tokens, tokens, width) beside one whose axes a line names so, as by B, N, _ = s.shape.
    """
    shape = documented_shape(source, name)
    if len(shape) != len("bqkd"):
        return False
    several = [*others]
    written = [documented_shape(source, each) for each in several]
    tokens = {each[1] for each in written if len(each) == len("btd") and each[::2] == shape[::3]}
    named = {names[1] for each in several for names in axes_of(source, each, len("btd"))}
    return {*shape[1:3]} <= tokens or (shape[1] == shape[2] and shape[1] in named)


def with_vectors_of_pairs(named: list[Argument], source: str) -> list[Argument]:
    """The arguments; vectors of each query and key, of all samples, meet what has its tokens before its samples.

    As torch.bmm(query.permute(1, 0, 2), a_key.transpose(1, 2)) of Shaw et al. (2018). The vectors for the values are
    named as those for the keys are, also where nothing reads them.
    """
    open_ones = [each.name for each in named if each.required and each.role is None]
    met = rf"{_TOKENS_FIRST}\s*(?:,|@)\s*({'|'.join(map(re.escape, open_ones))}){_TURNED}\s*[)\n]"
    found = {*re.findall(met, source)} if open_ones else set()
    found |= {
        _OF_KEYS.sub(lambda match: f"_v{'alue' if match['rest'] else ''}{match['several']}", each) for each in found
    }
    return [replace(each, role="pair vectors") if each.name in {*open_ones} & found else each for each in named]


def with_nodes(roles: Sequence[str | None]) -> list[str | None]:
    """The roles of the parts of one argument; what stands alone beside the edges of a graph are its nodes."""
    are_nodes = len(roles) == 2 and {*roles} == {None, "edge index"}
    return [(each or "x") if are_nodes else each for each in roles]


def _looked_up_by(target: nn.Module, source: str, name: str) -> set[str]:
    """The names of what embeddings of a module return for an argument, and its own; empty where none looks it up."""
    found = set[str]()
    for each in nodes_of(source):
        value = each.value if isinstance(each, ast.Assign) else each
        if isinstance(value, ast.Call) and len(value.args) == 1 and _is_it(value.args[0], name):
            table = value.func
            of_self = (
                isinstance(table, ast.Attribute) and isinstance(table.value, ast.Name) and table.value.id == "self"
            )
            if of_self and isinstance(getattr(target, table.attr, None), nn.Embedding):  # type: ignore[attr-defined]
                told = each.targets if isinstance(each, ast.Assign) else []
                found |= {name, *(one.id for one in told if isinstance(one, ast.Name))}
    return found


def _is_it(value: ast.expr, name: str) -> bool:
    """Whether an expression is a name, or what methods make of it, as name.clamp(max=6).long()."""
    while isinstance(value, ast.Call) and isinstance(value.func, ast.Attribute):
        is_torch = isinstance(value.func.value, ast.Name) and value.func.value.id == "torch"
        value = value.args[0] if is_torch and value.args else value.func.value
    return isinstance(value, ast.Name) and value.id == name
