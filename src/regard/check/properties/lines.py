"""Lines that are wrong whatever a call is given, so that no call has to run."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

from regard.check.properties.caches.newest_alone import newest_alone_findings
from regard.check.properties.finding import Finding
from regard.check.properties.masks.lost_fills import faint_fill_line_findings, lost_fill_line_findings
from regard.check.properties.masks.multiplied_fills import multiplied_fill_line_findings
from regard.check.properties.modules.asked_contexts import asked_context_findings
from regard.check.properties.modules.constant_settings import constant_setting_findings
from regard.check.properties.modules.kept_shares import kept_share_findings
from regard.check.properties.modules.overwritten_results import overwritten_result_findings
from regard.check.properties.modules.unpacked_orders import unpacked_order_findings
from regard.check.properties.outputs.documented_mixes import documented_mix_findings
from regard.check.properties.scores.scaled_twice import scaled_twice_findings
from regard.check.properties.scores.told_heads import exchanged_head_number_findings
from regard.check.properties.weights.cumulated import cumulated_findings

__all__ = ["line_findings"]


def line_findings(target: Any) -> Iterator[Finding]:
    """Fills that hide nothing, queries scaled twice, a width for the number of heads, names taken apart crosswise.

    Shares that are dropped and were to be kept, gates that mix crosswise, sums that are replaced, caches of one token,
    contexts that are asked for and not read, settings that are one whatever is asked for, and results of layers that
    are thrown away, as well.

    Args:
        target: a class, a function, or a module.
    """
    yield from lost_fill_line_findings(target)
    yield from faint_fill_line_findings(target)
    yield from multiplied_fill_line_findings(target)
    yield from scaled_twice_findings(target)
    yield from exchanged_head_number_findings(target)
    yield from unpacked_order_findings(target)
    yield from kept_share_findings(target)
    yield from documented_mix_findings(target)
    yield from cumulated_findings(target)
    yield from newest_alone_findings(target)
    yield from asked_context_findings(target)
    yield from constant_setting_findings(target)
    yield from overwritten_result_findings(target)
