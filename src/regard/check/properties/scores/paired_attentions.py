"""Queries and keys that an attention among channels reads as well: normalized over the tokens, for that one."""

from __future__ import annotations

from collections.abc import Sequence

from regard.check.properties.analysis import Analysis
from regard.check.properties.finding import Finding
from regard.check.roles.instances import AttentionInstance
from regard.check.roles.local import projections_of

__all__ = ["open_paired_queries"]

OF_TOKENS = frozenset({"query-of-one-token", "key-of-one-token"})


def open_paired_queries(
    analysis: Analysis, instances: Sequence[AttentionInstance], of_channels: Sequence[AttentionInstance]
) -> None:
    """Leave open what queries of several tokens are, where an attention among channels beside it has the same.

    Efficient paired attention (UNETR++, arXiv:2212.04497) shares queries and keys between both, and these are
    normalized over the tokens, as is usual among channels (XCiT, arXiv:2106.09681).

    Args:
        analysis: of a call.
        instances: its attentions among tokens.
        of_channels: those among channels.
    """
    shared = {each.index for instance in of_channels for each in projections_of(instance)}
    paired = {each.module for each in instances if shared & {one.index for one in projections_of(each)}}
    for number, each in enumerate(analysis.findings):
        if each.kind == "violation" and each.property in OF_TOKENS and each.module in paired:
            message = f"{each.message}: an attention among channels has the same queries and keys"
            analysis.missing.append(message)
            analysis.findings[number] = Finding("open", "not-seen", "scores", message, each.location, each.module)
