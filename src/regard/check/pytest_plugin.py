"""A plugin of pytest: the fixture `regard_check`, with which a test asserts that an attention is right.

pytest loads it by its entry point where regard is installed. PyTorch is imported when the fixture is first called.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING, Any, Literal

import pytest

if TYPE_CHECKING:
    from regard.check.report import Report

__all__ = ["regard_check"]

ACTIONS = ("fail", "skip")


@pytest.fixture(scope="session")
def regard_check() -> Callable[..., Report]:
    """Assert that an attention is right: ``regard_check(MyAttention, d_model=64)``.

    Takes what `regard.check` takes, or the text FILE.py:NAME; further arguments are those of the constructor. The test
    fails with the report unless it is ``ok``; with ``undetermined="skip"`` it is skipped where the check cannot tell.
    Returns the report.
    """
    return _assert_ok


def _assert_ok(
    implementation: Any, *, undetermined: Literal["fail", "skip"] = "fail", timeout: float | None = None, **args: Any
) -> Report:
    """See `regard_check`.

    Args:
        implementation: see `regard.check`; or a text, FILE.py:NAME, LESSON.ipynb:NAME or module.path:NAME.
        undetermined: what becomes of the test where the check cannot tell: "fail" or "skip".
        timeout: seconds after which the check is stopped; None for the default of `regard.check`.
        args: for the constructor.

    Raises:
        InputError: `undetermined` is another one.
    """
    from regard.check import DEFAULT_TIMEOUT, check, check_file
    from regard.errors import InputError

    if undetermined not in ACTIONS:
        raise InputError(f"undetermined={undetermined!r}: it is {' or '.join(map(repr, ACTIONS))}")
    seconds = DEFAULT_TIMEOUT if timeout is None else timeout
    try:
        if isinstance(implementation, str):
            report = check_file(implementation, args, timeout=seconds)
        else:
            report = check(implementation, args=args, timeout=seconds)
    except InputError as error:
        raise pytest.fail.Exception(f"regard check: {error}", pytrace=False) from None
    if report.verdict == "undetermined" and undetermined == "skip":
        pytest.skip(str(report))
    if not report.ok:
        pytest.fail(str(report), pytrace=False)
    return report
