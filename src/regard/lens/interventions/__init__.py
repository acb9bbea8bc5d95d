"""Interventions: attention that is changed while a model runs, and the report of what each edit changed.

- `selection`: the heads, batch rows, queries and keys that an edit names, found in a call.
- `placed_mask`: a mask of the whole sequence, for a call with a cache.
- `source`: what a recording gives an edit: outputs, weights, values, queries, keys.
- `edits`: the kinds of edit.
- `score_edits`: those that change scores by numbers.
- `editor`: `Editor`, which edits the output of each attention call.
- `definition`: the edited rows compared with the definition in float64.
- `function_mode`: `InterventionMode`, which sees the calls.
- `intervention`: `Intervention`, the object that a user writes edits to.
- `report`: what each edit changed, as a table.
"""
