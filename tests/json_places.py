"""The places in a JSON value, and the value with one of them altered: for tests of files that somebody edited."""

from __future__ import annotations

import copy
from collections.abc import Iterator
from functools import reduce
from operator import getitem
from typing import Any

Place = tuple[Any, ...]


def json_places(facts: Any, at: Place = (), *, max_items: int | None = None) -> Iterator[Place]:
    """Each value of objects and lists, of long lists the first ``max_items``."""
    items = (
        facts.items() if isinstance(facts, dict) else enumerate(facts[:max_items]) if isinstance(facts, list) else ()
    )
    for key, value in items:
        yield (*at, key)
        yield from json_places(value, (*at, key), max_items=max_items)


def altered(facts: Any, place: Place, value: Any) -> Any:
    """A copy with another value at a place."""
    changed = copy.deepcopy(facts)
    reduce(getitem, place[:-1], changed)[place[-1]] = value
    return changed
