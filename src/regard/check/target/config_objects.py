"""Objects of the classes of configs, with the sizes and the fields that are wanted."""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping
from contextlib import suppress
from typing import Any, Protocol, runtime_checkable

from regard.check.target.classes import parameters_of
from regard.check.target.configs import CONFIG_NAMES, HEAD_DEFAULTS, number
from regard.check.target.constructor_values import ALWAYS, DEFAULT, NEVER_NONE
from regard.check.target.names import constructor_meaning
from regard.check.target.sizes import Sizes

__all__ = ["config_object"]


@runtime_checkable
class Options(Protocol):
    """A class, and what its constructor may be told."""

    kind: type

    def options(self, sizes: Sizes) -> Iterator[tuple[str, list[Any]]]:
        """For each argument the values to try, the likeliest first."""


def config_object(construction: Options, sizes: Sizes, fields: Mapping[str, Any], *, is_deep: bool = False) -> Any:
    """An object of a config class: its own defaults, with sizes and the user's fields set by name.

    Args:
        construction: of the class.
        sizes: of what it is the config of.
        fields: that the user gave.
        is_deep: whether it has as many layers as by default: other fields may count some of them.
    """
    kind = construction.kind
    options = dict(construction.options(sizes))
    given = {n: c[0]() if callable(c[0]) and not isinstance(c[0], type) else c[0] for n, c in options.items()}
    given = {name: value for name, value in given.items() if value is not DEFAULT}
    of_keys = [n for n in options if constructor_meaning(n) == "kv_heads" and n not in fields]
    named = [n for n in of_keys if re.search("kv|key", n)]  # beside these, n_group is of experts
    of_kv_heads = dict.fromkeys(named or of_keys, sizes.kv_heads)
    of_layers = {n for n in given if constructor_meaning(n) == "layers" and n not in fields}
    defaults = {name: each.default for name, each in parameters_of(kind).items()}
    if sizes.kv_heads != sizes.heads or any(
        type(defaults.get(name)) is int and sizes.heads % defaults[name] for name in of_kv_heads
    ):  # else as many as by default, where the heads can share so many
        given.update(of_kv_heads)
    of_parts = {n for n, value in given.items() if n in defaults and n not in fields and _is_of_a_part(value)}
    made = _first_made(
        kind,
        *(
            {name: value for name, value in several.items() if name not in left_out}
            for left_out in dict.fromkeys((frozenset(), frozenset(of_parts)))
            for several in (
                given,
                {**given, **of_kv_heads},
                {name: value for name, value in given.items() if name not in of_layers},
                {name: value for name, value in {**given, **of_kv_heads}.items() if name not in of_layers},
            )[2 * is_deep :]
        ),
    )
    for name, value in vars(kind).items():
        if name not in given and not name.startswith("_") and isinstance(value, int | float):
            means = constructor_meaning(name)
            is_none = value == 0 and means not in NEVER_NONE
            if means in ALWAYS | {"kv_heads"} and not isinstance(value, bool) and not is_none:
                with suppress(AttributeError, TypeError):
                    setattr(made, name, fields.get(name, number(str(means), name, sizes)))
    for name, value in fields.items():
        if name not in given and getattr(made, name, DEFAULT) is not value:
            with suppress(AttributeError, TypeError):
                setattr(made, name, value)
    if hasattr(made, HEAD_DEFAULTS[0]):
        setattr(made, HEAD_DEFAULTS[0], "eager")
    return made


def _is_of_a_part(value: Any) -> bool:
    """Whether it is the config of a part of the model, which its own config may make by itself."""
    return type(value).__name__.endswith(CONFIG_NAMES)


def _first_made(kind: type, *several: dict[str, Any]) -> Any:
    """What the first of several sets of arguments gives that the class does not refuse.

    Configs may ask for as many heads of keys as of queries, or for as many layers as a list of their kinds has, or read
    what is not known of the config of a part.

    Raises:
        Exception: what the first set raised, where none works.
    """
    first: Exception | None = None
    for given in several:
        try:
            return kind(**given)
        except Exception as error:
            first = first or error
    assert first is not None
    raise first
