"""The properties that define attention: what each says, the step that it is of, and what its violation does."""

from __future__ import annotations

from regard.check.properties.catalog.blocks import BLOCKS
from regard.check.properties.catalog.caches import CACHES
from regard.check.properties.catalog.calls import CALLS
from regard.check.properties.catalog.masks import MASKS
from regard.check.properties.catalog.outputs import OUTPUTS
from regard.check.properties.catalog.positions import POSITIONS
from regard.check.properties.catalog.projections import PROJECTIONS
from regard.check.properties.catalog.scores import SCORES
from regard.check.properties.catalog.weights import WEIGHTS

__all__ = ["PROPERTIES"]

PROPERTIES = {
    each.id: each
    for each in (
        *PROJECTIONS,
        *BLOCKS,
        *SCORES,
        *MASKS,
        *CALLS,
        *WEIGHTS,
        *POSITIONS,
        *OUTPUTS,
        *CACHES,
    )
}
