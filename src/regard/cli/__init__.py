"""The command line: parses, calls, prints."""

from regard.cli.checking import check
from regard.cli.door import app, main
from regard.cli.embedding import embed
from regard.cli.looking import explain, see, watch
from regard.cli.training import train
from regard.cli.writing import generate, translate

__all__ = ["app", "check", "embed", "explain", "generate", "main", "see", "train", "translate", "watch"]
