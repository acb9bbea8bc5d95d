"""Recipes: attention with a choice at every step, what the definition does or what it is mistaken for.

`case` is the input of a call, `state` what is computed of it, `projections`, `scores`, `weights` and `output` what each
choice does, `recipe` the order of the steps and the definition.
"""
