"""What a file or a notebook has that can be checked: read from its text, without running it."""

from __future__ import annotations

import ast
import shlex
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Literal

from regard.check.names import INPUTS, SIZES, meaning
from regard.check.source.notebook import NOTEBOOK_SUFFIX, Notebook, read_notebook
from regard.errors import InputError

__all__ = ["candidates_of"]

Kind = Literal["attention", "contains", "module"]

CALL_METHODS = ("forward", "__call__", "attention", "attend", "call")
"""The methods of a class that may be its call."""
ATTENTION_NAMES = ("attention", "attn", "mha", "gqa", "mqa")
"""Parts of the names that people give to an attention."""
ATTENTION_CALLS = frozenset({"scaled_dot_product_attention", "multi_head_attention_forward", "flex_attention"})
SOFTMAXES = frozenset({"softmax", "Softmax", "log_softmax", "exp", "masked_softmax"})
PRODUCTS = frozenset({"matmul", "bmm", "einsum", "baddbmm", "dot", "mm"})
ATTENTION_CLASSES = frozenset({"MultiheadAttention", "MultiHeadAttention"})
CAUSAL_WORDS = frozenset({"tril", "triu", "causal", "is_causal", "tril_", "triu_"})


@dataclass(frozen=True)
class Candidate:
    """A function, a class or an object that can be checked."""

    name: str
    """Dotted where it stands in a class: Outer.Inner."""
    line: int
    """Counted from 1; in a notebook, in its cell."""
    cell: int | None
    """Of a notebook: which of its code cells, counted from 1."""
    kind: Kind
    """It seems to be an attention, it contains one, or it is a module in which none was seen."""
    description: str
    """What it seems to be."""
    command: str
    """How to check it."""


def candidates_of(path: str) -> list[Candidate]:
    """Every function, class and object of a file or a notebook that seems to be an attention, and every module.

    Args:
        path: of a Python file, or of a notebook.

    Raises:
        InputError: there is no such file, or it is not Python.
    """
    notebook = read_notebook(path) if path.endswith(NOTEBOOK_SUFFIX) else None
    found: dict[str, Candidate] = {}
    scope = _Scope(_statements(path, notebook))
    for definition in scope.definitions.values():
        kind, description = scope.judgement(definition)
        if kind is None:
            continue
        cell, line = None, definition.line
        if notebook is not None:
            at = notebook.cell_at(line)
            cell, line = at.number, line - at.first_line + 1
        command = " ".join(["regard check", shlex.quote(f"{path}:{definition.name}"), *scope.arguments(definition)])
        found[definition.name] = Candidate(definition.name, line, cell, kind, description, command)
    return list(found.values())


def _statements(path: str, notebook: Notebook | None) -> list[ast.stmt]:
    """The statements of a file; of a notebook, those of all cells that are Python, with lines of the whole."""
    if notebook is None:
        try:
            return ast.parse(Path(path).read_bytes()).body
        except OSError as error:
            reason = "no such file" if isinstance(error, FileNotFoundError) else error.strerror
            raise InputError(f"{path}: {reason}") from error
        except (SyntaxError, ValueError, RecursionError, MemoryError) as error:
            at = f":{error.lineno}" if isinstance(error, SyntaxError) and error.lineno else ""
            raise InputError(f"{path}{at}: not Python: {getattr(error, 'msg', error)}") from error
    statements: list[ast.stmt] = []
    for cell in notebook.cells:
        try:
            tree = ast.parse(cell.source)
        except (SyntaxError, ValueError, RecursionError, MemoryError):
            continue  # `Notebook.syntax_errors` tells it
        ast.increment_lineno(tree, cell.first_line - 1)
        statements += tree.body
    return statements


@dataclass(frozen=True)
class _Definition:
    """A function, a class, or a name that is given to an object of a class."""

    name: str
    line: int
    node: ast.FunctionDef | ast.AsyncFunctionDef | ast.ClassDef | None
    """None of an object."""
    made_by: str = ""
    """Of an object: the name of its class."""


class _Scope:
    """The definitions of a file, and what they say about each other."""

    def __init__(self, statements: Sequence[ast.stmt]) -> None:
        self.definitions: dict[str, _Definition] = {}
        for definition in _definitions(statements, ""):
            self.definitions.pop(definition.name, None)  # the last one counts, where it stands
            self.definitions[definition.name] = definition

    def judgement(self, definition: _Definition) -> tuple[Kind | None, str]:
        """What a definition seems to be, in a word and in words; None where it cannot be checked."""
        node = definition.node
        if node is None:
            made = self._class(definition.made_by)
            kind, description = self.judgement(made) if made is not None else (None, "")
            return (kind, f"an object: {description}") if kind in ("attention", "contains") else (None, "")
        if isinstance(node, ast.ClassDef):
            return self._class_judgement(definition.name, node)
        roles = _roles(node)
        if (
            {"q", "k", "v"} <= roles
            or (_computes_attention(node) and roles)
            or (_has_attention_name(node.name) and roles & {"q", "x"})
        ):
            return "attention", f"a function: {_described(node, node)}"
        return None, ""

    def _class_judgement(self, name: str, node: ast.ClassDef) -> tuple[Kind | None, str]:
        call = self._call_method(node)
        is_module = self._is_module(node)
        if call is None and not is_module:
            return None, ""
        if call is not None and self._is_attention(node):
            return "attention", _described(call, node)
        inside = self._contents(name, node)
        if inside:
            return "contains", f"contains {', '.join(inside)}"
        return ("module", "a module; no attention was seen in it") if is_module else (None, "")

    def _contents(self, name: str, node: ast.ClassDef) -> list[str]:
        """The attentions that a class makes, itself or through the classes of its parts."""
        found: dict[str, None] = {}
        reached, open_ = {name}, [node]
        while open_:
            for called in _calls(open_.pop()):
                if called in ATTENTION_CLASSES and self._class(called) is None:
                    found[called] = None
                made = self._class(called)
                if made is None or made.name in reached or not isinstance(made.node, ast.ClassDef):
                    continue
                reached.add(made.name)
                if self._is_attention(made.node):
                    found[made.name] = None
                else:
                    open_.append(made.node)
        return list(found)

    def _is_attention(self, node: ast.ClassDef) -> bool:
        chain = self._chain(node)
        return any(map(_computes_attention, chain)) or any(_has_attention_name(each.name) for each in chain)

    def _class(self, name: str) -> _Definition | None:
        found = self.definitions.get(name)
        return found if found is not None and isinstance(found.node, ast.ClassDef) else None

    def _chain(self, node: ast.ClassDef) -> list[ast.ClassDef]:
        """A class and those of this file that it inherits from."""
        chain = [node]
        for each in chain:
            for base in each.bases:
                found = self._class(_last_name(base))
                if found is not None and isinstance(found.node, ast.ClassDef) and found.node not in chain:
                    chain.append(found.node)
        return chain

    def _is_module(self, node: ast.ClassDef) -> bool:
        return any(_last_name(base).endswith("Module") for each in self._chain(node) for base in each.bases)

    def _call_method(self, node: ast.ClassDef) -> ast.FunctionDef | None:
        for each in self._chain(node):
            methods = {part.name: part for part in each.body if isinstance(part, ast.FunctionDef)}
            for name in CALL_METHODS:
                if name in methods:
                    return methods[name]
        return None

    def arguments(self, definition: _Definition) -> list[str]:
        """The options `--arg` that a constructor needs: its arguments whose meaning no name tells."""
        if not isinstance(definition.node, ast.ClassDef):
            return []
        for each in self._chain(definition.node):
            for part in each.body:
                if isinstance(part, ast.FunctionDef) and part.name == "__init__":
                    return [f"--arg {name}=..." for name in _required(part) if meaning(name, SIZES) is None]
        return []


def _definitions(statements: Sequence[ast.stmt], outer: str) -> Iterator[_Definition]:
    """Functions, classes and objects, also inside of ``if`` and ``try``; classes inside of classes."""
    for node in statements:
        if isinstance(node, ast.ClassDef):
            yield _Definition(outer + node.name, node.lineno, node)
            yield from _definitions(
                [part for part in node.body if isinstance(part, ast.ClassDef)], f"{outer}{node.name}."
            )
        elif isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef):
            yield _Definition(outer + node.name, node.lineno, node)
        elif isinstance(node, ast.Assign) and isinstance(node.value, ast.Call):
            for target in node.targets:
                if isinstance(target, ast.Name):
                    yield _Definition(target.id, node.lineno, None, made_by=_last_name(node.value.func))
        elif isinstance(node, ast.If | ast.Try | ast.With):
            inner = [*node.body, *getattr(node, "orelse", ())]
            for handler in getattr(node, "handlers", ()):
                inner += handler.body
            yield from _definitions(inner, outer)


def _last_name(node: ast.expr) -> str:
    """``Module`` of ``torch.nn.Module``."""
    return node.attr if isinstance(node, ast.Attribute) else node.id if isinstance(node, ast.Name) else ""


def _calls(node: ast.AST) -> Iterator[str]:
    for each in ast.walk(node):
        if isinstance(each, ast.Call):
            yield _last_name(each.func)


def _computes_attention(node: ast.AST) -> bool:
    """Whether its text has a kernel of attention, or a softmax and a product."""
    called = set(_calls(node))
    multiplied = bool(called & PRODUCTS) or any(
        isinstance(each, ast.BinOp) and isinstance(each.op, ast.MatMult) for each in ast.walk(node)
    )
    return bool(called & ATTENTION_CALLS) or (bool(called & SOFTMAXES) and multiplied)


def _has_attention_name(name: str) -> bool:
    return any(word in name.lower() for word in ATTENTION_NAMES)


def _arguments(node: ast.FunctionDef | ast.AsyncFunctionDef) -> list[str]:
    return [each.arg for each in (*node.args.posonlyargs, *node.args.args, *node.args.kwonlyargs)]


def _required(node: ast.FunctionDef) -> list[str]:
    """The arguments without a default, but for self."""
    plain = [each.arg for each in (*node.args.posonlyargs, *node.args.args)]
    plain = plain[1 : len(plain) - len(node.args.defaults)]
    named = [each.arg for each, given in zip(node.args.kwonlyargs, node.args.kw_defaults, strict=True) if given is None]
    return plain + named


def _roles(node: ast.FunctionDef | ast.AsyncFunctionDef) -> set[str]:
    return {means for name in _arguments(node) if (means := meaning(name, INPUTS)) is not None}


def _described(call: ast.FunctionDef | ast.AsyncFunctionDef, whole: ast.AST) -> str:
    """Self-attention, cross-attention or attention of q, k and v, and whether it is causal, by its words."""
    roles = _roles(call)
    words = {each.attr for each in ast.walk(whole) if isinstance(each, ast.Attribute)}
    words |= {each.arg for each in ast.walk(whole) if isinstance(each, ast.arg | ast.keyword) and each.arg is not None}
    causal = "causal " if words & CAUSAL_WORDS or "causal" in getattr(whole, "name", "").lower() else ""
    if {"k", "v"} <= roles:
        kind = f"{causal}attention of q, k and v"
    elif "context" in roles:
        kind = f"{causal}cross-attention"
    elif roles & {"x", "ids"} or {"w_q", "w_k"} <= roles:
        kind = f"{causal}self-attention"
    else:
        kind = f"{causal}attention"
    return f"{kind} ({', '.join(name for name in _arguments(call) if name != 'self')})"
