"""Modules of the sizes that are wanted: their classes' arguments are guessed by name."""

from __future__ import annotations

import inspect
import linecache
import traceback
from collections.abc import Callable, Mapping
from typing import Any

from torch import nn

from regard.check.names import SIZES, meaning
from regard.check.sandbox.answer import error_text
from regard.check.sandbox.torch_settings import UserSettings
from regard.check.search.layouts import Sizes
from regard.check.target.preparation import require_cpu
from regard.errors import InputError

__all__ = ["UnknownArgument", "constructed"]


MAX_LENGTH = 16
"""Of a text, where a constructor asks for one."""


class UnknownArgument(InputError):
    """An argument of a constructor, or a field of its config, whose meaning no name tells here."""

    def __init__(self, name: str, message: str) -> None:
        super().__init__(f"{message}: give --arg {name}=VALUE")
        self.name = name


class Guessed:
    """A config that gives a number for every name whose meaning is known."""

    def __init__(self, sizes: Sizes, args: Mapping[str, Any]) -> None:
        self._sizes, self._args, self._asked = sizes, dict(args), dict[str, Any]()

    def __getitem__(self, name: str) -> Any:
        return getattr(self, str(name))

    def __getattr__(self, name: str) -> Any:
        if name.startswith("_"):
            raise AttributeError(name)
        if name in self._args:
            return self._args[name]
        means = meaning(name, SIZES)
        if means is None or means == "config":
            raise UnknownArgument(name, f"its constructor reads config.{name}, whose meaning is unknown")
        self._asked[name] = _number(means, name, self._sizes)
        return self._asked[name]


def _number(means: str, name: str, sizes: Sizes) -> Any:
    if means == "d_head" and "v" in name.lower():
        return sizes.d_value
    return {
        "d_model": sizes.d_model,
        "d_out": sizes.d_model,
        "d_context": sizes.d_model,
        "heads": sizes.heads,
        "kv_heads": sizes.heads // 2 if sizes.heads % 2 == 0 else sizes.heads,
        "groups": 1,
        "d_head": sizes.d_key,
        "length": MAX_LENGTH,
        "vocab": 11,
        "layers": 2,
        "d_ff": 4 * sizes.d_model,
        "dropout": 0.1,
        "flag": name in ("bias", "qkv_bias", "use_bias", "attention_bias", "batch_first"),
        "eps": 1e-5,
        "row_dim": -2,
        "col_dim": -1,
    }[means]


def constructed(
    implementation: type,
    sizes: Sizes,
    args: Mapping[str, Any],
    settings: UserSettings,
    as_module: Callable[[Any], nn.Module | None] = lambda made: made,
) -> tuple[nn.Module, list[str]]:
    """A module of the sizes that are wanted, and what was guessed for it.

    Args:
        implementation: its class.
        sizes: of the module.
        args: for its constructor; what they leave open is guessed by name.
        settings: PyTorch's settings while it is constructed.
        as_module: makes a module of what is constructed; None where it cannot.

    Raises:
        InputError: an argument without a known meaning, a constructor that raises, or nothing that is a module.
    """
    given, said = dict(args), []
    for name, parameter in inspect.signature(implementation).parameters.items():
        fields = args.get(name)
        if isinstance(fields, Mapping) and meaning(name, SIZES) == "config":
            given[name] = Guessed(sizes, fields)  # it may be read as an object, or as a dict
            continue
        if name in given or parameter.kind in (parameter.VAR_KEYWORD, parameter.VAR_POSITIONAL):
            continue
        means = meaning(name, SIZES)
        required = parameter.default is inspect.Parameter.empty
        if means == "config":
            config = Guessed(sizes, args)
            given = {key: value for key, value in given.items() if key not in args or key == name}
            given[name] = config
            continue
        if means is None or (
            not required and means in ("dropout", "flag", "eps", "row_dim", "col_dim", "groups", "vocab", "layers")
        ):
            if required:
                raise UnknownArgument(name, f"{implementation.__name__} takes {name}, which has no known meaning")
            continue
        if not required and parameter.default is None and means not in ("d_model", "heads", "kv_heads"):
            continue
        if not required and means == "kv_heads" and parameter.default is None:
            continue
        if means == "length" and type(parameter.default) is int and parameter.default < MAX_LENGTH:
            continue  # no largest length of a text is as small: it decides what is computed
        given[name] = _number(means, name, sizes)
        said.append(f"{name}={given[name]}")
    try:
        with settings.on():
            module = as_module(implementation(**given))
    except InputError:
        raise
    except Exception as error:
        with_what = ", ".join(f"{key}={value}" for key, value in given.items() if not isinstance(value, Guessed))
        raise InputError(
            f"{implementation.__name__}({with_what}) cannot be constructed: {error_text(error)}"
            + _line_of(error, implementation)
        ) from error
    if module is None:
        raise InputError(f"{implementation.__name__} is not a torch.nn.Module, and keeps no arrays")
    if "_parameters" not in vars(module):
        raise InputError(f"the constructor of {implementation.__name__} does not call super().__init__()")
    require_cpu(module)
    for value in given.values():
        if isinstance(value, Guessed):
            said += [f"config.{name}={number}" for name, number in value._asked.items()]
    return module, said


def _line_of(error: BaseException, implementation: type) -> str:
    """The line of a class's file at which its constructor stopped; empty where it refuses its arguments there."""
    try:
        file = inspect.getsourcefile(implementation)
    except (OSError, TypeError):
        return ""
    lines = [number for frame, number in traceback.walk_tb(error.__traceback__) if frame.f_code.co_filename == file]
    text = linecache.getline(file, lines[-1]).strip() if file is not None and lines else ""
    return f" in line {lines[-1]}, {text}" if text and not text.startswith(("raise", "assert")) else ""
