"""Two attentions held against each other: do they compute the same, and with which reordering of weights?

`compare_isolated` is what `regard.check(a, against=b)` runs; `convert` moves the weights of one module into another.
`construction` makes both of the same sizes, `call_search` finds their calls among those that `regard.check.target`
finds (`calls`), and `cores` are the attentions of the trace of such a call.
"""

from regard.check.equivalence.conversion import convert
from regard.check.equivalence.isolation import compare_isolated
from regard.check.equivalence.mapping import CopiedBlock, WeightMapping
from regard.check.equivalence.record import Equivalence

__all__ = ["CopiedBlock", "Equivalence", "WeightMapping", "compare_isolated", "convert"]
