"""An attention inside a model that was handed queries, keys and values, and that does not read one of them."""

from __future__ import annotations

import ast
import inspect
import textwrap
from collections.abc import Iterator, Sequence
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn.functional import cosine_similarity

from regard.check.properties.catalog import PROPERTIES
from regard.check.properties.finding import Evidence, Finding
from regard.check.properties.modules.unread_sequences import READ, is_meant
from regard.check.roles.influence import is_changed
from regard.check.target import Invocation
from regard.check.target.argument import source_of
from regard.check.target.errors import Failed
from regard.check.target.names import call_meaning
from regard.check.target.preparation import copied

__all__ = ["inner_sequence_findings"]

SEED = 91
MOST = 4
"""Classes of one model that are asked."""
ALIKE = 1 - 1e-9


def inner_sequence_findings(invocation: Invocation, several: Sequence[Evidence]) -> Iterator[Finding]:
    """A module of a model whose call takes queries, keys and values, one of which changes nothing that it returns.

    The model may hand it the same sequence three times, or two as long as one another: then no influence of its own
    inputs tells. Each is replaced by other numbers where the module is called.

    Args:
        invocation: a call of the model.
        several: the evidence of its attentions.
    """
    target = invocation.target
    if not isinstance(target, nn.Module):
        return
    asked = set[type]()
    for evidence in several:
        if _are_queries_keys(evidence):
            continue
        meant = set[str]()
        for path in _with_parents(evidence.base.instance.module):
            module = target.get_submodule(path)
            names = _arguments(module)
            if type(module) in asked or names is None or len(asked) == MOST:
                continue
            asked.add(type(module))
            if evidence.base.of_no_token and _are_one_tensor(invocation, path, [*names.values()]):
                continue  # learned queries that pool one sequence, handed over as all three
            for role, name in names.items():
                if role in meant or not _is_unread(invocation, path, name):
                    continue
                if _is_chosen(module, name):
                    meant.add(role)  # what stands around it hands it on
                else:
                    read, line = READ[role], evidence.base.instance.scores_location
                    kind = type(module).__name__
                    message = f"{name} has no influence on what {kind} returns: it is handed over and not read"
                    inner = evidence.base.instance.module
                    yield Finding("violation", read, PROPERTIES[read].step, message, line, inner)
                    return


def _with_parents(path: str) -> list[str]:
    """The path of a module and those of what it stands in, but the whole."""
    parts = path.split(".") if path else []
    return [".".join(parts[:end]) for end in range(len(parts), 0, -1)]


def _arguments(module: nn.Module) -> dict[str, str] | None:
    """Its arguments that are queries, keys and values; None where it has not one of each."""
    if type(module).__module__.partition(".")[0] == "torch":
        return None
    names = {call_meaning(name): name for name in inspect.signature(module.forward).parameters}
    found: dict[str, str] = {role: names[role] for role in ("q", "k", "v") if role in names}
    return found if len(found) == 3 else None


def _is_unread(invocation: Invocation, path: str, name: str) -> bool:
    """Whether every call of a module, without its gradients, returns the same with another argument of this name."""
    before, after = _returned(invocation, path, None), _returned(invocation, path, name)
    if not before or len(before) != len(after):
        return False
    pairs = list(zip(before, after, strict=True))
    return all(not is_changed(one, two) for one, two in pairs)


def _are_one_tensor(invocation: Invocation, path: str, names: Sequence[str]) -> bool:
    """Whether each call of a module is handed one tensor for some of its arguments."""
    target = copied(invocation.target)
    module = target.get_submodule(path)
    signature = inspect.signature(module.forward)
    same: list[bool] = []

    def note(called: nn.Module, args: tuple[Any, ...], kwargs: dict[str, Any]) -> None:
        given = signature.bind(*args, **kwargs).arguments
        same.append(len({id(given.get(name)) for name in names}) == 1)

    hook = module.register_forward_pre_hook(note, with_kwargs=True)
    try:
        invocation.run(target=target)
    except Failed:
        return False
    finally:
        hook.remove()
    return bool(same) and all(same)


def _returned(invocation: Invocation, path: str, name: str | None) -> list[Tensor]:
    """What the first call of a module returns, where one of its arguments has other numbers; nothing if it raised."""
    target = copied(invocation.target)
    module = target.get_submodule(path)
    signature = inspect.signature(module.forward)
    found: list[Tensor] = []

    def replace(called: nn.Module, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
        bound = signature.bind(*args, **kwargs)
        value = bound.arguments.get(name or "")
        if name is None or found or not isinstance(value, Tensor) or not value.is_floating_point():
            return None
        generator = torch.Generator().manual_seed(SEED)
        bound.arguments[name] = torch.randn(value.shape, generator=generator, dtype=value.dtype)
        return bound.args, bound.kwargs

    def note(called: nn.Module, args: Any, result: Any) -> None:
        if not found:
            found.extend(each.detach().clone() for each in invocation.outputs(result))

    hooks = [module.register_forward_pre_hook(replace, with_kwargs=True), module.register_forward_hook(note)]
    try:
        invocation.run(target=target)
    except Failed:
        return []
    finally:
        for hook in hooks:
            hook.remove()
    return found


def _is_chosen(module: nn.Module, name: str) -> bool:
    """Whether it is there on purpose, or read under a condition, as one that says that all three are the same."""
    function = type(module).forward
    if is_meant(module, function, name):
        return True
    try:
        tree = ast.parse(textwrap.dedent(source_of(module)))
    except SyntaxError:
        return True
    call = next((each for each in ast.walk(tree) if isinstance(each, ast.FunctionDef) and each.name == "forward"), None)
    if call is None:
        return True
    always = [each for each in call.body if not isinstance(each, ast.If)]
    first = min(
        (each.lineno for line in always for each in _names(line, name, ast.Store)), default=call.end_lineno or 0
    )
    conditions = [each for each in ast.walk(call) if isinstance(each, ast.If | ast.IfExp)]
    return any(read.lineno < first for condition in conditions for read in _names(condition, name, ast.Load))


def _names(tree: ast.AST, name: str, use: type) -> Iterator[ast.Name]:
    return (
        each for each in ast.walk(tree) if isinstance(each, ast.Name) and each.id == name and isinstance(each.ctx, use)
    )


def _are_queries_keys(evidence: Evidence) -> bool:
    """Whether each token's key is its query, of any length, as where both are one projection on purpose (Reformer)."""
    table = evidence.base
    own = (table.query.token == table.key.token) & (table.query.token >= 0)
    if table.q.shape != table.k.shape or not bool(own.any()):
        return False
    return bool((cosine_similarity(table.q[own], table.k[own], dim=-1) > ALIKE).all())
