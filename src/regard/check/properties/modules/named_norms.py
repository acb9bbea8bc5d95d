"""Norms that are named after queries, keys or values: each is applied to what its name says."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace

import torch
from torch import nn

from regard.check.names import role
from regard.check.properties.finding import Evidence, Finding
from regard.check.properties.modules.named_matrices import WORDS, operands
from regard.check.roles.influence import differs, record_invocation
from regard.check.target import Invocation
from regard.check.target.errors import Failed
from regard.check.target.preparation import copied, is_norm

__all__ = ["named_norm_findings"]

_NAMES_OF_NORMS = ("layer_norm", "layernorm", "rmsnorm", "rms_norm", "norm", "ln")


def named_norm_findings(invocation: Invocation, evidence: Evidence) -> Iterator[Finding]:
    """A norm that is named after queries or keys and reaches other parts of the attention alone.

    Args:
        invocation: the call.
        evidence: its only attention.
    """
    target = invocation.target
    if not isinstance(target, nn.Module) or invocation.arrays:
        return
    named = {path: _named_after(path) for path, each in target.named_modules() if is_norm(each)}
    if not any(named.values()):
        return
    base = operands(evidence, evidence.base.instance.run.trace)
    for path, word in named.items():
        if word is None:
            continue
        try:
            other = operands(evidence, record_invocation(_with_noise(invocation, path)))
        except (Failed, RuntimeError):
            continue
        moved = [each for each in base if each in other and bool(differs(base[each], other[each]).any())]
        if len(moved) == 1 and moved[0] != word:
            message = f"{path} is applied to the {WORDS[moved[0]]}, and not to the {WORDS[word]} that it is named after"
            yield Finding("violation", "norm-used", "projections", message, evidence.base.instance.scores_location)
            return


def _named_after(path: str) -> str | None:
    """The role in the name of a norm: q of "norm_q", "q_norm" and "ln_query"; None where there is none."""
    name = path.rpartition(".")[2].lower()
    rest = next((name.replace(each, "").strip("_") for each in _NAMES_OF_NORMS if each in name), "")
    return found if rest and (found := role(rest)) in WORDS else None


def _with_noise(invocation: Invocation, path: str) -> Invocation:
    """The call of a module in which one part has learned something else."""
    live = copied(invocation.target)
    for each in live.get_submodule(path).parameters():
        with torch.no_grad():
            each.add_(torch.randn(each.shape, generator=torch.Generator().manual_seed(5), dtype=each.dtype))
    return replace(invocation, target=live)
