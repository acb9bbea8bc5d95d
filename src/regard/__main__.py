"""``python -m regard`` is the command ``regard``."""

import gc
import sys

__all__ = ["main"]


def main() -> None:
    """Run the command. Ctrl-C ends it without a traceback from the first moment, when its parts are still imported."""
    try:
        from regard.cli import main

        main()
    except KeyboardInterrupt:
        sys.exit(130)
    finally:
        # Collecting all that torch made, while Python ends, takes a third of a second and frees nothing that the end
        # of the process does not free.
        gc.freeze()
        # `python -m` ends by SIGINT, without the exit code, if a KeyboardInterrupt was ever raised inside exec() of a
        # string, as while a dataclass is made, even one that was handled. The next exec() of a string resets this.
        exec("")


if __name__ == "__main__":
    main()
