"""``python -m regard`` is the command ``regard``."""

import sys

__all__ = ["main"]


def main() -> None:
    """Run the command. Ctrl-C ends it without a traceback from the first moment, when its parts are still imported."""
    try:
        from regard.cli import main

        main()
    except KeyboardInterrupt:
        sys.exit(130)


if __name__ == "__main__":
    main()
