"""The command line: `app` runs it, `options` holds what the commands share, and each command has a file of its own."""

from regard.cli import check, embed, explain, generate, see, train, translate, watch
from regard.cli.app import main

__all__ = ["check", "embed", "explain", "generate", "main", "see", "train", "translate", "watch"]
