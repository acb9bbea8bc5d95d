"""A comparison in a process of its own, with limits of time and memory."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

from regard.check.equivalence.comparison import compare
from regard.check.equivalence.record import Equivalence
from regard.check.sandbox.process import Stopped, isolated
from regard.check.sandbox.schema import from_builtins, to_builtins
from regard.check.sandbox.torch_settings import UserSettings
from regard.check.source.expressions import with_values
from regard.errors import InputError

__all__ = ["compare_isolated"]


def compare_isolated(
    names: tuple[str, str],
    load: tuple[Callable[[], Any], Callable[[], Any]],
    args: tuple[Mapping[str, Any], Mapping[str, Any]],
    *,
    timeout: float,
    memory: int | None,
    watch: Path | None = None,
) -> Equivalence:
    """`compare`, where the code of both runs in another process.

    Args:
        names: of both, for what is said if the process does not answer.
        load: what gives them, in the other process.
        args: for their constructors.
        timeout: seconds after which the comparison is stopped.
        memory: bytes that the process may allocate; None for no limit.
        watch: a file of which somebody wants to know in which line the process stopped.

    Raises:
        InputError: as `compare`, or as what loads them.
    """

    def examine() -> Any:
        settings = UserSettings()
        with settings.adopted():
            with settings.on():
                a, b = (each() for each in load)
                of_a, of_b = (with_values(given, each) for given, each in zip(args, (a, b), strict=True))
            return to_builtins(compare(a, b, of_a, of_b, settings))

    try:
        return from_builtins(Equivalence, isolated(examine, timeout=timeout, memory=memory, watch=watch))
    except Stopped as stopped:
        reason = stopped.reason
    except InputError:
        raise
    except ValueError as error:
        reason = f"what the comparison sent back cannot be read: {error}"
    return Equivalence(*names, "undetermined", reason=reason)
