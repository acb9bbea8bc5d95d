"""How a learner's file is checked.

`examination` is what the process of the learner's code does: `results` runs the calls and holds them against the
definition, `diagnosis` finds the mistake, `places` its line, and `unexplained` says what can be said where no known
mistake explains it. `findings` crosses to the process that started it, which makes the `report`.
"""
