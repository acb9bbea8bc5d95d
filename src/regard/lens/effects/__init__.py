"""From "looked at" to "mattered": the effect of each head, layer, token or edge of a model on a metric.

- `effect`: `regard.effect`; `effect_run`: one run of it.
- `effects`: `Effects`, its result; `columns`, `statistics`, `table`: what it holds and prints.
- `metrics`: `regard.metrics`, what is measured; `default_metric`: the one of a model, where none is named.
- `subject`: the model and its texts, repeated along the batch.
- `parts`: what is removed, one at a time; `edits`, `replacements`: how.
- `ablate`: exact effects; `gradient`: estimates to first order; `looked_at`: attention, to be held against them.
- `faithfulness`: `regard.faithfulness`, rankings held against one another.
"""

from regard.lens.effects import metrics
from regard.lens.effects.columns import RankedEffect
from regard.lens.effects.effects import Effects
from regard.lens.effects.faithfulness import Faithfulness

__all__ = ["Effects", "Faithfulness", "RankedEffect", "metrics"]
