"""Norms of a block that a setting moves before its parts or after them: none is left out on either side."""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Iterator

from torch import nn

from regard.check.properties.finding import Finding
from regard.check.target import Failed, Invocation
from regard.check.target.preparation import copied, is_norm

__all__ = ["norm_setting_findings"]

WHERE = re.compile(r"_?(?:is_|use_)?(?:norm(?:ali[sz]e)?_?(?:before|first|prev)|pre_?(?:layer_?)?(?:norm|ln)\w*)", re.I)
"""Names of settings that say where norms stand, not how many there are."""


def norm_setting_findings(invocation: Invocation) -> Iterator[Finding]:
    """A norm that is called on one side of such a setting alone, where that side calls more norms than the other.

    Two that stand for each other, one before and one after, are called as often. A stack of blocks may have one norm
    more, at its end, where blocks have theirs in front. What does not run with the setting turned over is not judged.

    Args:
        invocation: a call of a module.
    """
    if not isinstance(invocation.target, nn.Module):
        return
    for path, owner in invocation.target.named_modules():
        if any(isinstance(each, nn.ModuleList) for each in owner.children()):
            continue
        for name in [each for each, value in vars(owner).items() if isinstance(value, bool) and WHERE.fullmatch(each)]:
            norms = [each for each, part in owner.named_children() if is_norm(part)]
            counts = [_counted(invocation, path, name, norms, value) for value in (False, True)]
            for value, (mine, other) in zip((False, True), (counts, counts[::-1]), strict=True):
                if mine is None or other is None or mine.total() >= other.total():
                    continue
                lost = [each for each in norms if other[each] and not mine[each]]
                used = [each for each in norms if mine[each] and other[each]]
                if lost and used:
                    message = (
                        f"{lost[0]} is not called with {name}={value}, and is with {name}={not value}, where {used[0]} "
                        "is called with both: the setting says where norms stand, not whether there is one"
                    )
                    yield Finding("violation", "norm-used", "projections", message, module=path)
                    return


def _counted(invocation: Invocation, path: str, name: str, norms: list[str], value: bool) -> Counter[str] | None:
    """How often each norm of a module is called where a setting of it has a value; None where the call fails."""
    live, counts = copied(invocation.target), Counter[str]()
    owner = live.get_submodule(path)
    setattr(owner, name, value)
    for norm in norms:
        owner.get_submodule(norm).register_forward_pre_hook(lambda *_, norm=norm: counts.update([norm]))
    try:
        invocation.run(target=live)
    except Failed:
        return None
    return counts
