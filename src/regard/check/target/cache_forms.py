"""Which caches a call has, and the ways in which each may be handed over from one call to the next."""

from __future__ import annotations

import inspect
import re
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, field
from typing import Any

from torch import Tensor, nn

from regard.check.target.argument import source_of
from regard.check.target.cache_attributes import CacheOfAttributes, names_of_attributes
from regard.check.target.cache_buffers import buffers
from regard.check.target.cache_hooks import CacheOfHooks, names_of_hooked
from regard.check.target.cache_objects import cache_objects, installers, made_by_method, makes, sizes_of
from regard.check.target.classes import own_classes
from regard.check.target.names import call_meaning
from regard.check.target.preparation import modules_in
from regard.check.target.running import Invocation

__all__ = ["CacheForm", "CacheNames", "cache_forms", "cache_names"]

ARGUMENT = re.compile(r"cache|(^|_)(past|incremental|presents?|mems|xl_mem(ory|ories)?)(_|$)")
NOT_A_CACHE = re.compile(r"len|pos|rope|cos|sin|mask|freq|emb|causal|bias|attn|weights|scores|index|idx|size")
FLAG = re.compile(
    r"^(use|return|update|with|store|keep|output)_\w*(cache|past|kv|present)|^return_(states?|intermediates)$|^(kv_)?cached?$"
    r"|^(is_)?(incremental|decode|decoding|generate|streaming)$"
)
ATTRIBUTE = re.compile(r"cache|(^|_)(past|prev|mem)(_|$)|^_?(k|v|kv|keys|values)(_buf|_buffer|_mem)?$")
BEAMS = re.compile(r"(?:^|_)beams?(?:_?(?:idx|ids?|ind(?:ex|ices)|order|parents?))$")
"""Arguments that say of which beams what is kept goes on."""
RESET = re.compile(r"^_?(reset|clear|empty|flush|forget)(?!\w*(param|weight|grad))")
"""Methods that make a module forget."""


@dataclass(frozen=True)
class CacheNames:
    """What of a call looks like a cache."""

    arguments: tuple[str, ...] = ()
    flags: tuple[str, ...] = ()
    """Arguments that say whether there is one."""
    attributes: tuple[str, ...] = ()
    """Of the target and of its submodules."""
    is_reset: bool = False
    """Whether it has a method that clears what it keeps, or is a cache by its name: then it is made to keep."""
    beams: tuple[str, ...] = ()
    """Optional arguments that say which beams, or samples, of what is kept go on."""

    def __bool__(self) -> bool:
        return bool(self.arguments or self.flags or self.attributes)

    @property
    def is_certain(self) -> bool:
        """Whether it is a cache by more than the name of an attribute such as k."""
        return bool(self.arguments or self.flags or any("cache" in name for name in self.attributes))

    @property
    def text(self) -> str:
        """For a report."""
        return ", ".join(self.arguments or self.attributes or self.flags)


@dataclass(frozen=True, eq=False)
class CacheForm:
    """One way to hand a cache over."""

    name: str
    """For a report: "through past"."""
    arguments: tuple[str, ...] = ()
    """That take it: one, or one for keys and one for values; none where the target itself keeps it."""
    make: Callable[[], Any] = lambda: None
    """The empty cache."""
    flags: Mapping[str, Any] = field(default_factory=dict)
    install: Callable[[Any], None] | None = None
    """What puts an empty one into the target."""
    counted: tuple[str, ...] = ()
    """Under which names of a dict its caller says how many tokens it holds."""

    def given(self, state: Any) -> dict[str, Any]:
        """The arguments of a state."""
        if len(self.arguments) < 2:
            return dict.fromkeys(self.arguments, state)
        several = state if state is not None else [None] * len(self.arguments)
        return dict(zip(self.arguments, several, strict=True))


def cache_names(invocation: Invocation) -> CacheNames:
    """What of a call looks like a cache, by the names of its arguments and of the target's attributes."""
    parameters = parameters_of(invocation.target)
    flags = tuple(name for name, each in parameters.items() if _is_flag(name, each))
    streams = {each.argument for each in invocation.streams}
    arguments = tuple(
        name
        for name, each in parameters.items()
        if name not in flags
        and name not in streams
        and call_meaning(name) in (None, "absent")
        and (ARGUMENT.search(name.lower()) or (each.default is None and makes(invocation.target, name)))
        and not NOT_A_CACHE.search(name.lower())
    )
    attributes: dict[str, None] = {}
    is_reset = False
    for module in modules_in(invocation.target):
        is_reset = is_reset or type(module).__name__.lower().endswith("cache")
        for each in module.modules():
            attributes.update(dict.fromkeys(_attributes(each)))
            is_reset = is_reset or any(RESET.search(name) for kind in own_classes(type(each)) for name in vars(kind))
    beams = tuple(name for name, each in parameters.items() if BEAMS.search(name.lower()) and each.default is None)
    return CacheNames(arguments, flags, tuple(attributes), is_reset, beams)


def parameters_of(target: Any) -> Mapping[str, inspect.Parameter]:
    """The parameters of a call; none where nothing tells them."""
    try:
        return inspect.signature(target.forward if isinstance(target, nn.Module) else target).parameters
    except (ValueError, TypeError):
        return {}


def _is_flag(name: str, parameter: inspect.Parameter) -> bool:
    is_bool = isinstance(parameter.default, bool) or re.search(r"\bbool\b", str(parameter.annotation)) is not None
    known = call_meaning(name) == "off" and parameter.default in (None, parameter.empty)
    return FLAG.search(name.lower()) is not None and (is_bool or known)


def _attributes(module: nn.Module) -> Iterator[str]:
    """Attributes of a module that may be a cache: tensors that are no parameters, None, or a cache of a class."""
    parts = ((name, value) for name, value in module._modules.items())
    for name, value in (*vars(module).items(), *module._buffers.items(), *parts):
        if not ATTRIBUTE.search(name.lower()) or NOT_A_CACHE.search(name.lower()):
            continue
        if value is None or isinstance(value, Tensor | dict | list) or "cache" in type(value).__name__.lower():
            yield name


def cache_forms(invocation: Invocation, names: CacheNames) -> Iterator[CacheForm]:
    """Every way that is tried, the likeliest first."""
    parameters = parameters_of(invocation.target)
    on = dict.fromkeys(names.flags, True)
    flagged: list[dict[str, Any]] = [on, {}] if on else [{}]
    for arguments in _groups(names.arguments):
        name = f"through {' and '.join(arguments)}"
        handed_over = [invocation.arguments.get(each) for each in arguments]
        if all(_has_tensors(each) for each in handed_over):
            given = handed_over[0] if len(arguments) == 1 else tuple(handed_over)
            yield CacheForm(name, arguments, lambda given=given: invocation.handed_over(given), on)  # type: ignore[misc]
            continue
        if len(arguments) == 1 and (hooked := names_of_hooked(invocation.target, arguments[0])):
            of_hooks = CacheOfHooks(hooked, invocation.streams[0].token_axes[0])
            yield CacheForm(f"{name} and hooks", arguments, of_hooks.make, on, of_hooks.install)
        if len(arguments) == 1 and (kept := names_of_attributes(invocation.target, arguments[0])):
            of_attributes = CacheOfAttributes(kept)
            yield CacheForm(f"{name} and attributes", arguments, of_attributes.make, on, of_attributes.install)
        makers: list[Callable[[], Any]] = [lambda: None]
        if len(arguments) == 1:
            makers += made_by_method(invocation, arguments[0])
            makers += buffers(source_of(invocation.target), arguments[0], sizes_of(invocation))
            makers += cache_objects(invocation, parameters.get(arguments[0]))
            makers += [dict, list, *_of_layers(invocation)]
        for make in makers:
            yield from (CacheForm(name, arguments, make, flags) for flags in flagged)
        if len(arguments) == 1 and (counted := _counted(invocation.target, arguments[0])):
            yield from (CacheForm(name, arguments, dict, flags, counted=counted) for flags in flagged)
    if names.attributes or names.flags:
        name = f"with {names.flags[0]}=True" if names.flags else f"through its {names.attributes[0]}"
        if not names.arguments:
            yield from (CacheForm(name, flags=flags) for flags in flagged)
        for install in installers(invocation):
            yield CacheForm(name, flags=on, install=install)
        if names.arguments:
            yield CacheForm(name, flags=on)


def _counted(target: Any, name: str) -> tuple[str, ...]:
    """The names of lengths that the code reads of a dict and writes nowhere, as cache["slen"] + qlen."""
    found = re.findall(rf"\b{re.escape(name)}\[[\"'](\w*len\w*)[\"']\](\s*[-+]?=(?!=))?", source_of(target))
    written = {each for each, assigned in found if assigned}
    return tuple(dict.fromkeys(each for each, _ in found if each not in written))


def _groups(arguments: tuple[str, ...]) -> list[tuple[str, ...]]:
    """Arguments that are handed over together: one for keys and one for values."""
    pairs = [
        (one, other)
        for one in arguments
        for other in arguments
        if one != other
        and re.sub(r"(^|_)k(eys?)?(?=_|$)", r"\1v", one) == re.sub(r"(^|_)v(alues?)?(?=_|$)", r"\1v", other)
        and re.search(r"(^|_)k(eys?)?(_|$)", one)
    ]
    paired = {name for pair in pairs for name in pair}
    return [*pairs, *((name,) for name in arguments if name not in paired)]


def _of_layers(invocation: Invocation) -> Iterator[Callable[[], Any]]:
    """Lists with an empty cache for each layer."""
    lists = [
        each for module in modules_in(invocation.target) for each in module.modules() if isinstance(each, nn.ModuleList)
    ]
    if lists:
        count = len(lists[0])
        yield lambda: [None] * count
        yield lambda: [{} for _ in range(count)]


def _has_tensors(value: Any) -> bool:
    if isinstance(value, list | tuple):
        return any(_has_tensors(each) for each in value)
    return isinstance(value, Tensor)
