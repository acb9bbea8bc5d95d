"""From "looked at" to "mattered": the effect of each head, layer, token or edge of a model on a metric.

- `effect`: `regard.effect`.
- `effects`: `Effects`, its result.
- `table`, `statistics`: what it prints.
"""
