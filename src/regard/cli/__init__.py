"""The command line.

- `app`: the application, its errors and exit codes
- `options`: options, model loading and progress, shared by the commands
- `decoding`: the decoding options of `generate` and `translate`
- `check_lists`: the lists of `check`, and tables
- `check`, `effect`, `embed`, `exercise`, `explain`, `generate`, `live`, `see`, `train`, `translate`, `watch`:
  one command each
"""

from regard.cli import check, effect, embed, exercise, explain, generate, live, see, train, translate, watch
from regard.cli.app import main

__all__ = [
    "check",
    "effect",
    "embed",
    "exercise",
    "explain",
    "generate",
    "live",
    "main",
    "see",
    "train",
    "translate",
    "watch",
]
