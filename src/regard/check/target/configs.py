"""Objects that a constructor takes as its config: of the class in its signature, or one that answers by name."""

from __future__ import annotations

import enum
import inspect
import re
import sys
import typing
from collections.abc import Callable, Collection, Mapping, Sequence
from functools import cache
from types import UnionType
from typing import Any

import torch

from regard.check.target.kept_arguments import compared_with, is_tested
from regard.check.target.names import constructor_meaning, last_words
from regard.check.target.sizes import Sizes
from regard.check.target.usage import called_with
from regard.errors import InputError

__all__ = [
    "OF_POSITIONS",
    "GuessedConfig",
    "call_configs",
    "config_class",
    "config_classes",
    "is_config",
    "number",
    "reads_sizes",
]

HEAD_DEFAULTS = ("_attn_implementation", "attn_implementation", "_attn_implementation_internal")
"""Where transformers' modules read which kernel to use; eager attention shows its steps."""
CONFIG_NAMES = ("Config", "Args", "Params", "Hparams")
"""How the names of classes end that hold the settings of a model."""
BASE_CONFIGS = ("PretrainedConfig", "PreTrainedConfig", "GenerationConfig")
MAX_CLASSES = 6
"""Of one argument that are tried."""
TRUE_FLAGS = ("bias", "qkv_bias", "use_bias", "attention_bias", "batch_first")

OF_POSITIONS = re.compile(r"rope|rotary|alibi")
"""In the names of options that ask for positions."""

WIDTH_WORDS = ("dim", "dims", "width", "channels", "features", "hidden", "size", "units")
COUNT_WORDS = ("num", "n", "number", "nb")
COUNT = 6
"""Of things such as latents: as many as nothing else is."""


SEVERAL = 2
"""Sizes that are read of one object."""
TWO_PAIRS = 4
"""Channels."""


class UnknownField(InputError, AttributeError, KeyError):
    """A field whose meaning no name tells: `getattr` with a default goes on without."""

    def __init__(self, name: str) -> None:
        InputError.__init__(
            self, f"its constructor reads config.{name}, whose meaning is unknown: give --arg {name}=VALUE"
        )

    def __str__(self) -> str:
        return str(self.args[0])


class OptionOff:
    """The value of a field whose meaning is unknown, where the code only asks whether it is on: it is off.

    What fields are read from by their names, as in config.transformer["num_heads"], is a config within the config.
    Whatever else is done with it needs to know its value.
    """

    def __init__(self, name: str, within: GuessedConfig) -> None:
        self._name, self._within = name, within

    def __getattr__(self, name: str) -> Any:
        return getattr(self._within, name)

    def __getitem__(self, name: object) -> Any:
        return self._within[name] if isinstance(name, str) else self._refuse()

    def __bool__(self) -> bool:
        return False

    def __repr__(self) -> str:
        return "False"

    def _refuse(self, *_: object, **__: object) -> Any:
        raise UnknownField(self._name)

    __eq__ = __ne__ = __lt__ = __le__ = __gt__ = __ge__ = _refuse
    __add__ = __radd__ = __sub__ = __rsub__ = __mul__ = __rmul__ = __floordiv__ = __rfloordiv__ = _refuse
    __truediv__ = __rtruediv__ = __mod__ = __rmod__ = __pow__ = __rpow__ = __neg__ = _refuse
    __index__ = __int__ = __float__ = __len__ = __iter__ = __call__ = _refuse
    __hash__ = object.__hash__


class GuessedConfig(dict[str, Any]):
    """A config that gives a value for every name whose meaning is known: as an attribute, and as a key of a dict."""

    def __init__(self, sizes: Sizes, args: Mapping[str, Any], source: str = "", *, by_kind: bool = False) -> None:
        """A config of some sizes.

        Args:
            sizes: of what is made.
            args: the fields that the user gave.
            source: the text of what reads it, which may tell what a field is.
            by_kind: whether a name that is not known may say by its parts that it is a width, or that it counts things;
                one that says nothing is an option, and off.
        """
        super().__init__(args)
        self.__dict__["_sizes"], self.__dict__["_by_kind"] = sizes, by_kind
        self.__dict__["_read"], self.__dict__["_source"] = {}, source
        self.__dict__["_begins"] = set()

    def __missing__(self, name: str) -> Any:
        if name in HEAD_DEFAULTS:
            return "eager"
        means = constructor_meaning(name)
        if self.__dict__["_by_kind"] and means is None:
            means = self._of_its_words(name)
        if self.__dict__["_by_kind"] and means is None and (counted := _by_kind(name, self.__dict__["_sizes"])):
            self[name] = self.__dict__["_read"][name] = counted
            return counted
        if means is None and (used := self._by_use(name)) is not None:
            self[name] = self.__dict__["_read"][name] = used
            return used
        if means is None and self.__dict__["_by_kind"]:
            within = GuessedConfig(self.__dict__["_sizes"], {}, self.__dict__["_source"], by_kind=True)
            return self.__dict__["_read"].setdefault(name, OptionOff(name, within))
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
            value = self[name]
        except UnknownField:
            return default
        return default if isinstance(value, OptionOff) else value

    def __contains__(self, name: object) -> bool:
        return self.get(str(name)) is not None

    def _of_its_words(self, name: str) -> str | None:
        """What the last words of a field mean, or what is left where it begins as such a field did, as enc_h."""
        if (told := last_words(name)) is not None:
            self.__dict__["_begins"].add(f"{told[0]}_")
            return told[1]
        rest = (name.removeprefix(each) for each in self.__dict__["_begins"] if name.startswith(each))
        return next((means for each in rest if (means := constructor_meaning(each)) is not None), None)

    def _by_use(self, name: str) -> Any:
        """The first text that a field is compared with, or whether a flag is on; None where it is neither."""
        source, sizes = self.__dict__["_source"], self.__dict__["_sizes"]
        if texts := compared_with(source, name):
            return texts[0]
        return number("off", name, sizes) if is_tested(source, name) else None

    @property
    def guessed(self) -> list[str]:
        """What was read and guessed, as NAME=VALUE."""
        found = []
        for name, value in self.__dict__["_read"].items():
            inner = value.guessed if isinstance(value, OptionOff) else []
            found += [each.replace("config.", f"config.{name}.", 1) for each in inner] or [f"config.{name}={value}"]
        return found


def _by_kind(name: str, sizes: Sizes) -> int | None:
    """The value for a field whose name is not known but ends as widths do, or begins as counts do."""
    words = name.lower().split("_")
    if words[-1] in WIDTH_WORDS or words[0] in ("d", "dim"):
        return sizes.d_model
    return COUNT if len(words) > 1 and words[0] in COUNT_WORDS else None


def config_classes(parameter: inspect.Parameter, owner: Any) -> list[type]:
    """The classes that an argument may be an object of, the likeliest first.

    The one that it is annotated with, where that is one that is constructed by keywords. A class that holds a model's
    settings in parts has none of its own, so the config classes in the owner's module come after it. Where the
    constructor is inherited, maybe from another model, those come first whose names begin as the owner's.
    """
    annotation = parameter.annotation
    beside = _classes_beside(owner)
    if isinstance(annotation, str):
        names = vars(sys.modules.get(getattr(owner, "__module__", ""), typing))
        try:
            annotation = eval(annotation, dict(names))
        except Exception:  # a name that is imported for type checkers alone
            return []
    choices = typing.get_args(annotation) if typing.get_origin(annotation) in (typing.Union, UnionType) else ()
    for each in choices or (annotation,):
        plain = inspect.isclass(each) and each.__module__ not in ("builtins", "typing", "inspect")
        if plain and each.__module__.partition(".")[0] != "torch":
            others = beside if each.__name__.endswith(CONFIG_NAMES) else []
            found = [each, *(other for other in others if other is not each)]
            is_inherited = inspect.isclass(owner) and "__init__" not in vars(owner)
            return _most_alike(found, owner) if is_inherited else found
    return beside if constructor_meaning(parameter.name) == "config" else []


def config_class(parameter: inspect.Parameter, owner: Any) -> type | None:
    """The likeliest of them."""
    return next(iter(config_classes(parameter, owner)), None)


def call_configs(call: Any, name: str) -> list[type]:
    """The classes that an argument of a call may be an object of, as `config_classes`; or that of its default."""
    call = call.forward if isinstance(call, torch.nn.Module) else call
    parameter = _parameters_of_call(call).get(name)
    if parameter is None:
        return []
    if parameter.default is not parameter.empty:
        return [type(parameter.default)] if is_config(parameter.default) else []
    return config_classes(parameter, inspect.unwrap(getattr(call, "__func__", call)))


def _parameters_of_call(call: Any) -> Mapping[str, inspect.Parameter]:
    """By their names; those of a function, or of a method's, are read once."""
    function = getattr(call, "__func__", call)
    if inspect.isfunction(function):
        return _parameters_of_function(function)
    try:
        return inspect.signature(call).parameters
    except (ValueError, TypeError):
        return {}


@cache
def _parameters_of_function(function: Callable[..., Any]) -> Mapping[str, inspect.Parameter]:
    try:
        return inspect.signature(function).parameters
    except (ValueError, TypeError):
        return {}


def reads_sizes(sources: Sequence[str], name: str, given: Collection[str]) -> bool:
    """Whether an argument of a constructor is read by names of sizes alone, as dims.n_head, whatever its own name says.

    Args:
        sources: the text of the class, and of those of its file that it hands the argument on to.
        name: of the argument. What is called, or keeps what is called, is a module.
        given: names that the user gave values for.
    """
    named = rf"(?<![\w.]){re.escape(name)}"
    if any(re.search(rf"{named}(?:\.\w+)?\(", each) or called_with(each, name) is not None for each in sources):
        return False
    read = {field for each in sources for field in re.findall(rf"{named}\.(\w+)", each)}
    told = [
        each for each in read if each in given or constructor_meaning(each) is not None or last_words(each) is not None
    ]
    return len(told) >= SEVERAL


def is_config(value: Any) -> bool:
    """Whether it is an object of the user's own that is no module and nothing to call: it holds settings."""
    kind = type(value)
    is_own = kind.__module__.partition(".")[0] not in (*sys.stdlib_module_names, "torch", "numpy", "regard")
    return is_own and not callable(value) and not isinstance(value, enum.Enum) and hasattr(value, "__dict__")


def _classes_beside(owner: Any) -> list[type]:
    """The config classes in the module of another class; first those whose names begin most alike."""
    names = vars(sys.modules.get(getattr(owner, "__module__", ""), typing))
    found = [
        value
        for name, value in names.items()
        if inspect.isclass(value) and name.endswith(CONFIG_NAMES) and value is not owner and name not in BASE_CONFIGS
        if value is not Any
    ]
    return _most_alike(found, owner)[:MAX_CLASSES]


def _most_alike(kinds: Sequence[type], owner: Any) -> list[type]:
    """Classes in an order of their names: first those that begin most alike another's."""
    own = getattr(owner, "__name__", type(owner).__name__)
    return sorted(kinds, key=lambda each: -_common_letters(each.__name__, own))


def _common_letters(one: str, other: str) -> int:
    """How many letters two names begin with in common."""
    return [*map(str.__eq__, one, other), False].index(False)


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
        "frames": sizes.frames,
        "grid": (3, 3),
        "classes": 13,
        "scale": sizes.d_head**-0.5,
        "temperature": sizes.d_head**0.5,
        "layer": 0,
        "ratio": 4,
        "shift": 0,
        "device": "cpu",
        "dtype": None,
        "activation": "gelu",
        "base": 10_000.0,
        "batch": 16,
        "rank": max(2, sizes.d_model // 2),
        "landmarks": 4,
        "latents": COUNT,
        "d_latent": 2 * sizes.d_model,
        "kernel": 3,
        "stride": 1,
        "off": sizes.positions and OF_POSITIONS.search(short) is not None,
        "pad": 0,
        "buckets": 8,
        "distance": 16,
        "rotary": _rotated_channels(short, sizes),
        "edges": torch.ones(sizes.length, sizes.length),
    }[means]


def _rotated_channels(name: str, sizes: Sizes) -> int:
    """How many channels of a head are rotated: of a single pair any order of the channels is a rotation.

    Two pairs are all of a narrow head; where sizes coincide, it is a part of every head.
    """
    half = max(2, sizes.d_head // 2)
    if half >= TWO_PAIRS or sizes.heads == sizes.d_head or sizes.d_head < TWO_PAIRS:
        return half
    return sizes.d_head + 2 if "head" in name else TWO_PAIRS  # beside the others it has a width of its own, as in MLA
