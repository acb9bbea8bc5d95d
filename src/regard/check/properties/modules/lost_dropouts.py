"""What dropout returns is what is read on: the numbers that it was given are dropped of nothing."""

from __future__ import annotations

import ast
import linecache
from collections.abc import Iterator
from typing import TypeGuard

import torch
from torch import Tensor, nn

from regard.check.location import CodeLocation
from regard.check.properties.finding import Finding
from regard.check.properties.modules.dropout_modes import drop_some
from regard.check.target import Invocation
from regard.check.target.preparation import copied, in_mode
from regard.check.trace.operation import Operation, Trace
from regard.check.trace.recorder import record

__all__ = ["lost_dropout_findings"]


def lost_dropout_findings(invocation: Invocation) -> Iterator[Finding]:
    """Dropout in training whose result no operation takes, and that is neither returned nor kept.

    As where it has a name of its own, and values are weighted by the weights as they were before. What a line further
    down reads on a condition is left alone, and so is what a function returns to a line that is not known.

    Args:
        invocation: a call of a module that is in eval().
    """
    if not isinstance(invocation.target, nn.Module) or invocation.arrays:
        return
    live = in_mode(copied(invocation.target), training=True)
    drop_some(live)
    trace = record(lambda watch: invocation.run(target=live, watch=watch), outputs=invocation.outputs, lines=True)
    if trace.error:
        return
    kept = [*_kept_in(live)]
    for dropped in _dropped(trace):
        (result, *_), line = dropped.outputs, dropped.location
        taken = {each.storage for one in trace.operations[dropped.index + 1 :] for each in one.inputs}
        if line is None or result.storage in taken | {each.storage for each in trace.outputs}:
            continue
        if any(each.shape == result.data.shape and torch.equal(each.to(result.data), result.data) for each in kept):
            continue
        if _is_lost(line):
            message = (
                "what dropout returns is read by nothing: in training, what it was given is read on as it was, and "
                "nothing of it is dropped"
            )
            yield Finding("violation", "dropout-applied", "call", message, line, dropped.module)
            return


def _dropped(trace: Trace) -> Iterator[Operation]:
    """The operations that return what dropout left, as a product with what it drew or at once."""
    drawn = set[int]()
    for each in trace:
        if each.name in ("bernoulli", "bernoulli_"):
            drawn.update(one.storage for one in (*each.outputs, *each.written))
        elif each.name == "native_dropout" or (
            each.name == "mul" and len(each.inputs) == 2 and each.inputs[1].storage in drawn
        ):
            yield each


def _kept_in(live: nn.Module) -> Iterator[Tensor]:
    """The tensors that modules keep in attributes, also in lists and dicts there."""
    for module in live.modules():
        for value in vars(module).values():
            several = value.values() if isinstance(value, dict) else value
            several = several if isinstance(value, dict | list | tuple) else [value]
            yield from (each.detach() for each in several if isinstance(each, Tensor))


def _is_lost(line: CodeLocation) -> bool:
    """Whether a line gives a result a name that no later line reads before it is given anew, or no name at all."""
    try:
        tree = ast.parse("".join(linecache.getlines(line.file)))
    except SyntaxError:
        return False
    functions = [each for each in ast.walk(tree) if isinstance(each, ast.FunctionDef) and _holds(each, line)]
    if not functions:
        return False
    function = max(functions, key=lambda each: each.lineno)
    blocks = [value for part in ast.walk(function) for value in vars(part).values() if isinstance(value, list)]
    for block in blocks:
        at = [number for number, each in enumerate(block) if _is_of_a_call(each) and _holds(each, line)]
        if len(at) == 1:
            statement, behind = block[at[0]], block[at[0] + 1 :]
            names = {ast.unparse(each) for each in getattr(statement, "targets", ())}
            anew = next((each.lineno for each in behind if names and names & _given(each)), None)
            last = (function.end_lineno or statement.lineno) if anew is None else anew
            return all(name.isidentifier() for name in names) and not any(
                isinstance(each, ast.Name)
                and each.id in names
                and isinstance(each.ctx, ast.Load)
                and (statement.end_lineno or statement.lineno) < each.lineno <= last
                for each in ast.walk(function)
            )
    return False


def _holds(node: ast.stmt, line: CodeLocation) -> bool:
    return node.lineno <= line.line <= (node.end_lineno or node.lineno)


def _is_of_a_call(node: object) -> TypeGuard[ast.Assign | ast.Expr]:
    """Whether a statement is a call, or gives names to what one returns."""
    return isinstance(node, ast.Assign | ast.Expr) and isinstance(node.value, ast.Call)


def _given(node: ast.AST) -> set[str]:
    """The names that an assignment gives."""
    return {ast.unparse(each) for each in node.targets} if isinstance(node, ast.Assign) else set()
