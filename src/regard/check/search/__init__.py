"""The search for a recipe that returns what code returns.

`subject` is what was handed over; `construction` and `modules` make modules of the sizes that are wanted, by the
constructions of `regard.check.target`, `arrays` modules of objects that keep arrays of numpy. `layouts`,
`mask_formats`, `cases` and `calls` say how it may be called, `parameters` and `matrices` how its weights may be read,
`call_configs` which of these run. `observed` holds a call beside recipes, `fitting` and `designs` find numbers,
`recipe_search` finds recipes until its `budget` is spent. `diagnose` asks it without a mask, `masks` with each mask,
`tables` and `table_calls` do the same for tables of positions, and `stage` is what they find; `lines` is where the
user's file computes a step.
"""
