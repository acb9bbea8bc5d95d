"""The same call in another way: while it trains, with a log asked for, with gradients, and after other calls."""

from __future__ import annotations

from collections.abc import Iterator

from regard.check.properties.caches.reorder_methods import reorder_method_findings
from regard.check.properties.caches.reorder_objects import kept_order_findings, reorder_object_findings
from regard.check.properties.finding import Finding
from regard.check.properties.masks.read_out_tokens import read_out_token_findings
from regard.check.properties.masks.trained import trained_mask_findings
from regard.check.properties.modules.drop_paths import drop_path_findings
from regard.check.properties.modules.dropout_modes import dropout_mode_findings
from regard.check.properties.modules.dropout_settings import dropout_setting_findings
from regard.check.properties.modules.dropped_shares import dropped_share_findings
from regard.check.properties.modules.lost_dropouts import lost_dropout_findings
from regard.check.properties.modules.modes import mode_findings
from regard.check.properties.modules.read_outs import read_out_findings
from regard.check.properties.weights.detached_normalizers import detached_normalizer_findings
from regard.check.properties.weights.detached_sums import detached_sum_findings
from regard.check.target import Invocation

__all__ = ["other_mode_findings"]


def other_mode_findings(invocation: Invocation) -> Iterator[Finding]:
    """What is wrong with a call in another mode, or with what it does beside its output.

    Args:
        invocation: a call.
    """
    yield from drop_path_findings(invocation)
    yield from dropout_mode_findings(invocation)
    yield from dropout_setting_findings(invocation)
    yield from lost_dropout_findings(invocation)
    yield from dropped_share_findings(invocation)
    yield from trained_mask_findings(invocation)
    yield from list(detached_sum_findings(invocation)) or detached_normalizer_findings(invocation)
    yield from mode_findings(invocation)
    yield from read_out_findings(invocation)
    yield from read_out_token_findings(invocation)
    yield from reorder_method_findings(invocation)
    yield from reorder_object_findings(invocation)
    yield from kept_order_findings(invocation)
