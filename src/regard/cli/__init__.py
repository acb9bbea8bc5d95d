"""The command line: parses, calls, prints."""

from regard.cli.door import app, main
from regard.cli.looking import explain, see, watch
from regard.cli.writing import generate, translate

__all__ = ["app", "explain", "generate", "main", "see", "translate", "watch"]
