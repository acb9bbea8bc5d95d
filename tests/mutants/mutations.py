"""Small faults of Python source: one operator, constant, condition, argument or statement is another."""

from __future__ import annotations

import ast
import random
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

SWAPPED: dict[type[ast.AST], type[ast.AST]] = {
    ast.Lt: ast.LtE,
    ast.LtE: ast.Lt,
    ast.Gt: ast.GtE,
    ast.GtE: ast.Gt,
    ast.Eq: ast.NotEq,
    ast.NotEq: ast.Eq,
    ast.Is: ast.IsNot,
    ast.IsNot: ast.Is,
    ast.In: ast.NotIn,
    ast.NotIn: ast.In,
    ast.And: ast.Or,
    ast.Or: ast.And,
    ast.Add: ast.Sub,
    ast.Sub: ast.Add,
    ast.Mult: ast.Div,
    ast.Div: ast.Mult,
    ast.FloorDiv: ast.Mult,
    ast.Mod: ast.FloorDiv,
    ast.Pow: ast.Mult,
    ast.BitAnd: ast.BitOr,
    ast.BitOr: ast.BitAnd,
}
OTHER_FUNCTION = {"min": "max", "max": "min", "any": "all", "all": "any"}


@dataclass(frozen=True)
class Mutation:
    """One fault: in `file` (a path below src), the characters from `start` to `end` become `text`."""

    file: str
    line: int
    start: int
    end: int
    text: str
    kind: str
    before: str

    def apply(self, source: str) -> str:
        """The file's text with the fault in it."""
        return source[: self.start] + self.text + source[self.end :]

    @property
    def package(self) -> str:
        """The package of regard that the file belongs to."""
        return package_of(self.file)

    def __str__(self) -> str:
        return f"{self.file}:{self.line} {self.kind}: {_one_line(self.before)} -> {_one_line(self.text)}"


def package_of(file: str) -> str:
    """The package of regard that a file below src belongs to; `root` for the modules beside the packages."""
    parts = Path(file).parts
    return parts[1] if len(parts) > 2 else "root"


def draw(src: Path, count: int, seed: int) -> list[Mutation]:
    """`count` mutations of the files below `src`: to each package its share by lines, and in it each place alike.

    Those of a package hang on its own files alone, and a larger share holds the smaller one.

    Raises:
        ValueError: a package has fewer places than its share.
    """
    places: dict[str, list[Mutation]] = {}
    lines: dict[str, int] = {}
    for path in sorted(src.rglob("*.py")):
        source, file = path.read_text(), path.relative_to(src).as_posix()
        package = package_of(file)
        places.setdefault(package, []).extend(mutations(source, file))
        lines[package] = lines.get(package, 0) + source.count("\n")
    total = sum(lines.values())
    shares = {package: count * lines[package] / total for package in places}
    counts = {package: int(share) for package, share in shares.items()}
    by_remainder = sorted(shares, key=lambda package: counts[package] - shares[package])
    for package in by_remainder[: count - sum(counts.values())]:
        counts[package] += 1
    drawn = []
    for package, several in sorted(places.items()):
        if counts[package] > len(several):
            raise ValueError(f"{package} has {len(several)} places for {counts[package]} mutations")
        random.Random(f"{seed} {package}").shuffle(several)
        drawn += several[: counts[package]]
    return drawn


def mutations(source: str, file: str) -> Iterator[Mutation]:
    """Every fault of this kind in a file. Left alone: strings, annotations, docstrings, imports, type-checking blocks.

    A changed text of a message is no fault in what is computed, and nobody runs an annotation.
    """
    starts = [0]
    for line in source.encode().splitlines(keepends=True):
        starts.append(starts[-1] + len(line))
    raw = source.encode()

    def offset(line: int, column: int) -> int:
        return len(raw[: starts[line - 1] + column].decode())

    for node, text, kind in _faults(ast.parse(source)):
        start, end = offset(node.lineno, node.col_offset), offset(node.end_lineno, node.end_col_offset)
        if source[start:end] != text:
            yield Mutation(file, node.lineno, start, end, text, kind, source[start:end])


def _faults(tree: ast.AST) -> Iterator[tuple[ast.AST, str, str]]:
    """Nodes that can be replaced, by what, and what kind of fault that is."""
    for node in _executed(tree):
        match node:
            case ast.Compare(left, [op], [right]) if type(op) in SWAPPED:
                yield node, _text(ast.Compare(left, [SWAPPED[type(op)]()], [right])), "comparison"
            case ast.BinOp(left, op, right) if type(op) in SWAPPED:
                yield node, _text(ast.BinOp(left, SWAPPED[type(op)](), right)), "operator"
            case ast.BoolOp(op, values):
                yield node, _text(ast.BoolOp(SWAPPED[type(op)](), values)), "and/or"
            case ast.UnaryOp(ast.Not() | ast.USub(), operand):
                yield node, _text(operand), "sign"
            case ast.If(test) | ast.IfExp(test) | ast.While(test) if not isinstance(test, ast.Constant):
                yield test, _text(ast.UnaryOp(ast.Not(), test)), "condition"
            case ast.Constant(bool() as value):
                yield node, str(not value), "constant"
            case ast.Constant(int() | float() as value):
                yield node, f"({value + 1!r})", "constant"
            case ast.Call(ast.Name(name) as function) if name in OTHER_FUNCTION:
                yield function, OTHER_FUNCTION[name], "function"
            case ast.Return(ast.AST() as value) if not isinstance(value, ast.Constant):
                yield value, "None", "return"
            case ast.Expr(ast.Call()) | ast.AugAssign() | ast.Raise():
                yield node, "pass", "statement"
            case ast.Break():
                yield node, "continue", "statement"
            case ast.Continue():
                yield node, "break", "statement"
            case ast.Slice(lower, upper, step) if lower or upper:
                yield node, ast.unparse(ast.Slice(None, lower if upper is None else upper, step)), "slice"
        if isinstance(node, ast.Call):
            for i, keyword in enumerate(node.keywords):
                if keyword.arg and ast.unparse(keyword) != "strict=False":  # the default of zip
                    fewer = [*node.keywords[:i], *node.keywords[i + 1 :]]
                    yield node, _text(ast.Call(node.func, node.args, fewer)), "argument"


def _executed(node: ast.AST) -> Iterator[ast.AST]:
    """The nodes that run and whose place in the text is known: f-strings hide theirs in Python 3.11."""
    for name, value in ast.iter_fields(node):
        if name in ("annotation", "returns", "decorator_list", "type_params"):
            continue
        for child in value if isinstance(value, list) else [value]:
            skip = not isinstance(child, ast.AST) or isinstance(child, ast.JoinedStr | ast.Import | ast.ImportFrom)
            if skip or (isinstance(child, ast.If) and "TYPE_CHECKING" in ast.unparse(child.test)):
                continue
            if isinstance(child, ast.Call) and ast.unparse(child.func) in ("TypeVar", "cast", "typer.Option"):
                continue
            if hasattr(child, "lineno"):
                yield child
            yield from _executed(child)


def _text(node: ast.AST) -> str:
    return f"({ast.unparse(node)})"


def _one_line(text: str) -> str:
    text = " ".join(text.split())
    return text if len(text) <= 100 else f"{text[:97]}..."
