"""What was handed over: a function or a module, how it is built, and the ways in which it may be meant to be called."""

from __future__ import annotations

import copy
import inspect
import itertools
import sys
from collections.abc import Callable, Iterator, Mapping
from contextlib import suppress
from dataclasses import dataclass, field
from functools import cached_property
from typing import Any

import torch
from torch import Tensor, nn

from regard.attention import mask
from regard.check.answer import error_text
from regard.check.names import INPUTS, SIZES, meaning
from regard.check.recipe import Case
from regard.check.torch_settings import UserSettings
from regard.errors import InputError

__all__ = ["FORMS", "MaskFormat", "Sizes", "Subject", "Way", "source", "subject_of"]


FUSED = torch._C._nn.scaled_dot_product_attention
"""PyTorch's own, whatever a file puts in its place in `torch.nn.functional`."""


@dataclass(frozen=True)
class Sizes:
    """Of one call; all different, or all the same, on purpose."""

    batch: int
    heads: int
    queries: int
    keys: int
    d_key: int
    d_value: int

    @property
    def d_model(self) -> int:
        """Of modules."""
        return self.heads * self.d_key


@dataclass(frozen=True)
class MaskFormat:
    """How a mask is written."""

    name: str
    says: str
    write: Callable[[Tensor], Any]


def _additive(may: Tensor) -> Tensor:
    return torch.zeros(may.shape, dtype=torch.float64).masked_fill(~may, -torch.inf)


def _least(may: Tensor) -> Tensor:
    return torch.zeros(may.shape, dtype=torch.float64).masked_fill(~may, -1e9)


FORMS = (
    MaskFormat("may", "", lambda may: may),
    MaskFormat("blocked", "True in its mask means blocked", lambda may: ~may),
    MaskFormat("added", "its mask is added to the scores: 0 and -inf", _additive),
    MaskFormat("keep", "1 in its mask means allowed, 0 means blocked", lambda may: may.to(torch.float64)),
    MaskFormat("keep, whole", "1 in its mask means allowed, 0 means blocked", lambda may: may.long()),
    MaskFormat("block", "1 in its mask means blocked, 0 means allowed", lambda may: (~may).to(torch.float64)),
    MaskFormat("regard", "", mask.allowed),
    MaskFormat("added, finite", "its mask is added to the scores: 0 and a large negative number", _least),
)


@dataclass(frozen=True)
class Way:
    """One way to call the implementation."""

    layout: str
    says: str
    """What is unusual about the layout; empty for PyTorch's own."""
    flat: bool = False
    """Whether a function takes heads side by side, (batch, tokens, heads * width), and splits them itself."""


FUNCTION_WAYS = (
    Way("bhtd", ""),
    Way("btd", "no heads: (batch, tokens, width)"),
    Way("td", "no batch and no heads: (tokens, width)"),
    Way("bthd", "(batch, tokens, heads, width)"),
    Way("tbhd", "tokens first: (tokens, batch, heads, width)"),
    Way("htd", "no batch: (heads, tokens, width)"),
    Way("bt(hd)", "heads side by side: (batch, tokens, heads * width)", flat=True),
    Way("tbd", "tokens first: (tokens, batch, width)"),
    Way("bdt", "channels first: (batch, width, tokens)"),
    Way("bhdt", "channels first: (batch, heads, width, tokens)"),
)
MODULE_WAYS = (
    Way("btd", ""),
    Way("tbd", "tokens first: (tokens, batch, d_model)"),
    Way("td", "no batch: (tokens, d_model)"),
)


@dataclass
class Subject:
    """A function, or a module, and what can be told of it before it is called."""

    name: str
    function: Callable[..., Any] | None = None
    module: nn.Module | None = None
    kind: type[nn.Module] | None = None
    """The class of the module."""
    build: Callable[[Sizes], tuple[nn.Module, list[str]]] | None = None
    """Makes a module of other sizes; None where one was handed over that is made already."""
    file: str | None = None
    assumptions: list[str] = field(default_factory=list)
    told: bool = False
    """Whether its constructor was told how many heads to have."""
    settings: UserSettings = field(default_factory=UserSettings)
    """PyTorch's settings during its calls."""

    @cached_property
    def called(self) -> Mapping[str, inspect.Parameter]:
        """The arguments of a call."""
        call = self.function if self.function is not None else self.kind.forward  # type: ignore[union-attr]
        found = dict(inspect.signature(call).parameters)
        if self.function is None:
            found.pop(next(iter(found)))
        return found

    def roles(self) -> dict[str, str]:
        """The meaning of each argument that has one, in their order: {name: meaning}."""
        plain = [
            name
            for name, each in self.called.items()
            if each.kind in (each.POSITIONAL_ONLY, each.POSITIONAL_OR_KEYWORD, each.KEYWORD_ONLY)
        ]
        found = {name: means for name in plain if (means := meaning(name, INPUTS)) is not None}
        for name in plain:
            if name not in found and (means := meaning(name, SIZES)) is not None:
                found[name] = f"size {means}"
        if {"q", "k", "v"} <= set(found.values()):
            found = {n: m for n, m in found.items() if m not in ("x", "context")}
            return found
        required = [name for name in plain if self.called[name].default is inspect.Parameter.empty]
        told = [name for name in required if found.get(name) in ("q", "k", "v", "x", "context", "ids")]
        others = [name for name in required if name not in found]
        if len(others) + len(told) == 3 and len(others) >= 2:
            for name, means in zip([n for n in required if n in told or n in others], "qkv", strict=True):
                found[name] = means
        elif not told and len(others) in (1, 2):
            for name, means in zip(others, ("x", "context"), strict=False):
                found[name] = means
        elif {found[n] for n in told} == {"q", "context"} or ({found[n] for n in told} == {"q"} and not others):
            found = {n: "x" if m == "q" else m for n, m in found.items()}
        return found

    def has(self, means: str) -> str | None:
        """The name of the argument with a meaning."""
        return next((name for name, found in self.roles().items() if found == means), None)


def subject_of(implementation: Any, args: Mapping[str, Any], settings: UserSettings | None = None) -> Subject:
    """What is known of an implementation before it is called.

    Args:
        implementation: a function, a class of `torch.nn.Module` or one that is made.
        args: for the constructor; what they leave open is guessed by name.
        settings: PyTorch's settings during its calls; by default PyTorch's own.

    Raises:
        InputError: neither, or arguments that it does not take.
    """
    settings = settings or UserSettings()
    if isinstance(implementation, nn.Module):
        if args:
            raise InputError(
                f"{type(implementation).__name__} is already constructed and takes no arguments: {sorted(args)}"
            )
        _require_cpu(implementation)
        module = copy.deepcopy(implementation)
        kind = type(module)
        return Subject(kind.__name__, module=module, kind=kind, file=source(kind), settings=settings)
    if inspect.isclass(implementation) and issubclass(implementation, nn.Module):
        subject = Subject(implementation.__name__, kind=implementation, file=source(implementation), settings=settings)
        wrong = set(args) - set(inspect.signature(implementation).parameters)
        if wrong and not _any_names(implementation):
            names = ", ".join(inspect.signature(implementation).parameters) or "none"
            raise InputError(f"{implementation.__name__} takes no {', '.join(sorted(wrong))}; it takes {names}")
        subject.build = lambda sizes: _constructed(implementation, sizes, args, settings)
        return subject
    if inspect.isclass(implementation):
        with settings.on():
            made = _plain_class(implementation, args)
        return Subject(implementation.__name__, function=made, file=source(implementation), settings=settings)
    if not callable(implementation):
        raise InputError(f"{implementation!r} is not a function, class or module")
    name = getattr(implementation, "__name__", type(implementation).__name__)
    if implementation is FUSED:
        implementation = _fused
    try:
        inspect.signature(implementation)
    except ValueError as error:
        raise InputError(f"{name} has no signature: wrap it in a function of (q, k, v)") from error
    return Subject(name, function=implementation, file=source(implementation), settings=settings)


def _require_cpu(module: nn.Module) -> None:
    for name, tensor in itertools.chain(module.named_parameters(), module.named_buffers()):
        if tensor.device.type != "cpu":
            raise InputError(
                f"{type(module).__name__} has its {name} on {tensor.device}: give check a module on the CPU"
                + ("" if tensor.is_meta else ", such as module.cpu()")
            )


def _fused(
    query: Tensor, key: Tensor, value: Tensor, attn_mask: Tensor | None = None, is_causal: bool = False
) -> Tensor:
    """PyTorch's own, which is built in and has no signature."""
    output: Tensor = FUSED(query, key, value, attn_mask, is_causal=is_causal)
    return output


def _plain_class(implementation: type, args: Mapping[str, Any]) -> Callable[..., Any]:
    try:
        made = implementation(**args)
    except TypeError as error:
        raise InputError(
            f"{implementation.__name__} cannot be constructed: {error}; give arguments with --arg"
        ) from error
    for name in ("forward", "attention", "attend", "call"):
        if callable(getattr(made, name, None)):
            found: Callable[..., Any] = getattr(made, name)
            return found
    if callable(made):
        called: Callable[..., Any] = made
        return called
    raise InputError(f"{implementation.__name__} is not a torch.nn.Module and has no forward method")


def _any_names(implementation: Any) -> bool:
    return any(p.kind is p.VAR_KEYWORD for p in inspect.signature(implementation).parameters.values())


def source(implementation: Any) -> str | None:
    """The file that an implementation is written in, where there is one."""
    try:
        return inspect.getsourcefile(inspect.unwrap(implementation))
    except (TypeError, OSError):
        return None


class Guessed:
    """A config that gives a number for every name whose meaning is known."""

    def __init__(self, sizes: Sizes, args: Mapping[str, Any]) -> None:
        self._sizes, self._args, self._asked = sizes, dict(args), dict[str, Any]()

    def __getattr__(self, name: str) -> Any:
        if name.startswith("_"):
            raise AttributeError(name)
        if name in self._args:
            return self._args[name]
        means = meaning(name, SIZES)
        if means is None or means == "config":
            raise InputError(f"its constructor reads config.{name}, whose meaning is unknown: give --arg {name}=VALUE")
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
        "length": 16,
        "vocab": 11,
        "layers": 2,
        "d_ff": 4 * sizes.d_model,
        "dropout": 0.1,
        "flag": name in ("bias", "qkv_bias", "use_bias", "attention_bias", "batch_first"),
        "eps": 1e-5,
        "row_dim": -2,
        "col_dim": -1,
    }[means]


def _constructed(
    implementation: type[nn.Module], sizes: Sizes, args: Mapping[str, Any], settings: UserSettings
) -> tuple[nn.Module, list[str]]:
    """A module of the sizes that are wanted, and what was guessed for it."""
    given, said = dict(args), []
    for name, parameter in inspect.signature(implementation).parameters.items():
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
                raise InputError(
                    f"{implementation.__name__} takes {name}, which has no known meaning: give --arg {name}=VALUE"
                )
            continue
        if not required and parameter.default is None and means not in ("d_model", "heads", "kv_heads"):
            continue
        if not required and means == "kv_heads" and parameter.default is None:
            continue
        given[name] = _number(means, name, sizes)
        said.append(f"{name}={given[name]}")
    try:
        with settings.on():
            module = implementation(**given)
    except InputError:
        raise
    except Exception as error:
        with_what = ", ".join(f"{key}={value}" for key, value in given.items() if not isinstance(value, Guessed))
        raise InputError(
            f"{implementation.__name__}({with_what}) cannot be constructed: {error_text(error)}"
        ) from error
    _require_cpu(module)
    for value in given.values():
        if isinstance(value, Guessed):
            said += [f"config.{name}={number}" for name, number in value._asked.items()]
    return module, said


ORDER = {"b": 0, "h": 1, "t": 2, "d": 3}


def to_layout(tensor: Tensor, way: Way) -> Tensor:
    """A tensor (batch, heads, tokens, width) as the way wants it."""
    if way.flat:
        return tensor.transpose(1, 2).flatten(-2).clone()
    kept = tensor.permute([ORDER[letter] for letter in _padded(way.layout)])
    for _at in range(4 - len(way.layout)):
        kept = kept.squeeze(0)
    return kept.clone()


def _padded(layout: str) -> str:
    return "".join(letter for letter in "bhtd" if letter not in layout) + layout


def from_layout(tensor: Tensor, way: Way, heads: int) -> Tensor:
    """The inverse of `to_layout`.

    Raises:
        RuntimeError: another number of axes.
    """
    if way.flat:
        return tensor.reshape(*tensor.shape[:-1], heads, -1).transpose(1, 2)
    if tensor.ndim != len(way.layout):
        raise RuntimeError(f"{tensor.ndim} axes")
    padded = _padded(way.layout)
    for _ in range(4 - len(way.layout)):
        tensor = tensor.unsqueeze(0)
    return tensor.permute([padded.index(letter) for letter in "bhtd"])


def tensors_in(result: Any) -> Iterator[Tensor]:
    """Every tensor that a call returned, the first one first; numpy's arrays too."""
    if isinstance(result, Tensor):
        yield _plain(result)
    elif _is_array(result):
        with suppress(TypeError):  # of texts or objects
            yield torch.tensor(result)
    elif isinstance(result, Mapping):
        yield from itertools.chain.from_iterable(map(tensors_in, result.values()))
    elif isinstance(result, list | tuple):
        yield from itertools.chain.from_iterable(map(tensors_in, result))


def _plain(tensor: Tensor) -> Tensor:
    """The numbers of a tensor: what a class of the user's own makes of an operation is not what it returned."""
    if type(tensor) is Tensor:
        return tensor
    with torch._C.DisableTorchFunctionSubclass():
        return tensor.as_subclass(Tensor)


def _is_array(value: object) -> bool:
    """Whether it is an array of numpy, which is imported where there is one."""
    numpy = sys.modules.get("numpy")
    return numpy is not None and isinstance(value, numpy.ndarray)


def on_arrays(function: Callable[..., Any]) -> Callable[..., Any]:
    """A function of numpy's arrays as one of tensors."""

    def array(value: Any) -> Any:
        return value.detach().numpy() if isinstance(value, Tensor) else value

    def called(*args: Any, **named: Any) -> Any:
        return function(*map(array, args), **{name: array(value) for name, value in named.items()})

    called.__signature__ = inspect.signature(function)  # type: ignore[attr-defined]
    return called


def shown(case: Case) -> str:
    """The sizes of a case, for a message."""
    if case.q is not None and case.k is not None:
        return f"q {tuple(case.q.shape)}, k {tuple(case.k.shape)}"
    assert case.x is not None
    return f"x {tuple(case.x.shape)}"
