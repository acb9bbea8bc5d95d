"""Somebody's code, kept apart from the process that checks it.

`process` runs some work in a fork, which `worker` limits; `answer` is what the fork says at the end, by the `schema`
of JSON. `torch_settings` gives the code its own settings of PyTorch, `monkeypatches` notices functions that it
replaced, and `faults` tells its errors from regard's own.
"""
