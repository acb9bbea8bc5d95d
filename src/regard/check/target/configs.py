"""Objects that a constructor takes as its config: of the class in its signature, or one that answers by name."""

from __future__ import annotations

import inspect
import sys
import typing
from collections.abc import Mapping
from types import UnionType
from typing import Any

from regard.check.target.names import constructor_meaning
from regard.check.target.sizes import Sizes
from regard.errors import InputError

__all__ = ["GuessedConfig", "UnknownField", "config_class", "number"]

HEAD_DEFAULTS = ("_attn_implementation", "attn_implementation", "_attn_implementation_internal")
"""Where transformers' modules read which kernel to use; eager attention shows its steps."""
CONFIG_NAMES = ("Config", "Args", "Params", "Hparams")
"""How the names of classes end that hold the settings of a model."""
BASE_CONFIGS = ("PretrainedConfig", "PreTrainedConfig", "GenerationConfig")
TRUE_FLAGS = ("bias", "qkv_bias", "use_bias", "attention_bias", "batch_first")


class UnknownField(InputError, AttributeError, KeyError):
    """A field whose meaning no name tells: `getattr` with a default goes on without."""

    def __init__(self, name: str) -> None:
        InputError.__init__(
            self, f"its constructor reads config.{name}, whose meaning is unknown: give --arg {name}=VALUE"
        )

    def __str__(self) -> str:
        return str(self.args[0])


class GuessedConfig(dict[str, Any]):
    """A config that gives a value for every name whose meaning is known: as an attribute, and as a key of a dict."""

    def __init__(self, sizes: Sizes, args: Mapping[str, Any]) -> None:
        super().__init__(args)
        self.__dict__["_sizes"] = sizes
        self.__dict__["_read"] = {}

    def __missing__(self, name: str) -> Any:
        if name in HEAD_DEFAULTS:
            return "eager"
        means = constructor_meaning(name)
        if means is None or means == "config":
            raise UnknownField(name)
        self[name] = self.__dict__["_read"][name] = number(means, name, self.__dict__["_sizes"])
        return self[name]

    def __getattr__(self, name: str) -> Any:
        if name.startswith("__"):
            raise AttributeError(name)
        return self[name]

    def __setattr__(self, name: str, value: Any) -> None:
        self[name] = value

    def __deepcopy__(self, memo: dict[int, Any]) -> GuessedConfig:
        return self

    def get(self, name: str, default: Any = None) -> Any:
        """As of a dict; names whose meaning is known are always there."""
        try:
            return self[name]
        except UnknownField:
            return default

    def __contains__(self, name: object) -> bool:
        return self.get(str(name)) is not None

    @property
    def guessed(self) -> list[str]:
        """What was read and guessed, as NAME=VALUE."""
        return [f"config.{name}={value}" for name, value in self.__dict__["_read"].items()]


def config_class(parameter: inspect.Parameter, owner: Any) -> type | None:
    """The class that an argument is annotated with, where it is one that is constructed by keywords."""
    annotation = parameter.annotation
    if isinstance(annotation, str):
        names = vars(sys.modules.get(getattr(owner, "__module__", ""), typing))
        try:
            annotation = eval(annotation, dict(names))
        except Exception:  # a name that is imported for type checkers alone
            return None
    choices = typing.get_args(annotation) if typing.get_origin(annotation) in (typing.Union, UnionType) else ()
    for each in choices or (annotation,):
        plain = inspect.isclass(each) and each.__module__ not in ("builtins", "typing", "inspect")
        if plain and not each.__module__.startswith("torch"):
            kind: type = each
            return kind
    return _class_beside(owner) if constructor_meaning(parameter.name) == "config" else None


def _class_beside(owner: Any) -> type | None:
    """The config class in the module of another class: the only one, or the one with the most like name."""
    names = vars(sys.modules.get(getattr(owner, "__module__", ""), typing))
    found = [
        value
        for name, value in names.items()
        if inspect.isclass(value) and name.endswith(CONFIG_NAMES) and value is not owner and name not in BASE_CONFIGS
    ]
    return max(found, key=lambda each: _common_letters(each.__name__, owner.__name__), default=None)


def _common_letters(one: str, other: str) -> int:
    """How many letters two names begin with in common."""
    return next((n for n, (a, b) in enumerate(zip(one, other, strict=False)) if a != b), min(len(one), len(other)))


def number(means: str, name: str, sizes: Sizes) -> Any:
    """The value for an argument of a constructor, or a field of a config, by what it means."""
    short = name.lower()
    return {
        "d_model": sizes.d_model,
        "d_out": dict(sizes.given).get("d_out", sizes.d_model),
        "d_context": sizes.d_context,
        "heads": sizes.heads,
        "kv_heads": sizes.kv_heads,
        "groups": sizes.heads // sizes.kv_heads,
        "d_head": sizes.d_head,
        "length": sizes.length,
        "vocab": sizes.vocab,
        "layers": 2,
        "d_ff": 4 * sizes.d_model,
        "dropout": sizes.dropout,
        "flag": short in TRUE_FLAGS,
        "eps": 1e-5,
        "row_dim": -2,
        "col_dim": -1,
        "window": sizes.window,
        "image": sizes.image,
        "patch": sizes.patch,
        "grid": (3, 3),
        "classes": 5,
        "scale": sizes.d_head**-0.5,
        "temperature": sizes.d_head**0.5,
        "layer": 0,
        "device": "cpu",
        "dtype": None,
        "activation": "gelu",
        "base": 10_000.0,
        "batch": 16,
        "kernel": 3,
        "off": False,
        "pad": 0,
        "rotary": max(2, sizes.d_head // 2),
    }[means]
