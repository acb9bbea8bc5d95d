"""Decision transformers: an action is predicted from what comes before it, and not from itself."""

from __future__ import annotations

import ast
import inspect
import re
import textwrap
from collections.abc import Iterator

import torch
from torch import Tensor, nn

from regard.check.properties.finding import Finding
from regard.check.roles.influence import differs, record_invocation
from regard.check.target import Invocation
from regard.check.target.argument import source_of
from regard.check.trace.operation import Trace

__all__ = ["known_action_findings"]

_GIVEN = {
    "returns": re.compile(r"(?:returns?|rewards?)(?:_to_go)?|rtgs?"),
    "states": re.compile(r"states?|obs|observations?"),
    "actions": re.compile(r"actions?"),
}
"""The sequences of a trajectory, by the names of arguments."""
_ORDER = re.compile(
    r"\(?\s*(?:r|R)\w*\s*,\s*(?:s|o)\w*\s*,\s*a\w*\s*,\s*(?:r|R)\w*\s*,\s*(?:s|o)\w*\s*,\s*a\w*"
    r"|\bactions?\s+given\s+(?:r\w*\s*,?\s*(?:and\s+)?)?s\w*\s*(?:$|[.)\n])",
    re.M,
)
"""Said in the code: the action of a step stands behind its state, or is predicted given that."""
MIN_STEPS = 3


def known_action_findings(invocation: Invocation, base: Trace) -> Iterator[Finding]:
    """Actions that are returned for each step, and that depend on the action that was handed over for it.

    Chen et al. 2021, "Decision Transformer", section 3: the prediction head corresponding to the state s_t is trained
    to predict a_t. A model that reads later actions as well, as one that fills in hidden ones, is none.

    Args:
        invocation: a call of a module.
        base: its run.
    """
    target = invocation.target
    named = {key: [each for each in invocation.arguments if name.fullmatch(each)] for key, name in _GIVEN.items()}
    if not isinstance(target, nn.Module) or any(len(each) != 1 for each in named.values()):
        return
    if not _ORDER.search(source_of(target)):
        return
    (name,) = named["actions"]
    actions = invocation.arguments[name]
    if not isinstance(actions, Tensor) or not actions.is_floating_point() or actions.ndim != 3:
        return
    steps = actions.shape[1]
    number = _returned_actions(target, len(base.outputs))
    if number is None or steps < MIN_STEPS or base.outputs[number].shape != tuple(actions.shape):
        return
    at, changed = steps // 2, actions.clone()
    changed[:, at] = torch.randn(changed[:, at].shape, generator=torch.Generator().manual_seed(3), dtype=actions.dtype)
    run = record_invocation(invocation, {**invocation.arguments, name: changed})
    if run.error or len(run.outputs) != len(base.outputs):
        return
    other = differs(base.outputs[number].data, run.outputs[number].data)
    if bool(other[:, at].any()) and not bool(other[:, :at].any()):
        message = (
            f"the action that is predicted for step {at} depends on {name}[:, {at}], the action that was taken there: "
            "in training it is copied, and when it is to be chosen it is not there"
        )
        yield Finding("violation", "action-to-come", "output", message)


def _name_of(returned: ast.AST) -> str:
    """What a returned value is called, or what makes it, as in self.predict_action(x)."""
    if isinstance(returned, ast.Call) and isinstance(returned.func, ast.Attribute):
        return returned.func.attr
    return returned.id if isinstance(returned, ast.Name) else ""


def _returned_actions(target: nn.Module, count: int) -> int | None:
    """Which of the outputs is called by the name of actions where it is returned; None where not exactly one is."""
    try:
        tree = ast.parse(textwrap.dedent(inspect.getsource(type(target).forward)))
    except (OSError, TypeError, SyntaxError):
        return None
    returned = [each.value for each in ast.walk(tree) if isinstance(each, ast.Return)]
    if len(returned) != 1 or returned[0] is None:
        return None
    values = returned[0].elts if isinstance(returned[0], ast.Tuple) else [returned[0]]
    names = [_name_of(each) for each in values]
    found = [number for number, name in enumerate(names) if re.search("action", name)]
    return found[0] if len(names) == count and len(found) == 1 else None
