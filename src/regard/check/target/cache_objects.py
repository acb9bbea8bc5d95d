"""Caches that are objects of a class, or that a target keeps after one was put into it."""

from __future__ import annotations

import inspect
import re
import sys
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import suppress
from itertools import islice
from typing import Any

import torch
from torch import Tensor, nn

from regard.check.target.argument import source_of
from regard.check.target.construction import constructions
from regard.check.target.errors import Failed
from regard.check.target.names import constructor_meaning
from regard.check.target.preparation import in_float64, modules_in, numbers_of
from regard.check.target.running import Invocation
from regard.check.target.sizes import Sizes
from regard.errors import InputError

__all__ = ["cache_objects", "has_setup", "installers", "made_by_method", "makes", "set_up", "sizes_of"]

METHODS = ("update", "update_and_fetch", "append", "add", "put", "store", "write", "forward", "__call__", "get")
"""One of which the class of a cache has."""
KIND = re.compile(r"cache|keys?_?(?:and_?)?values?|past|^kvs?(?![a-z])", re.I)
"""Names of classes of caches."""
SETUP = re.compile(r"^(setup|set|build|init|allocate|alloc|make|create|enable)_\w*caches?$")
"""Methods that put a cache into a module, or make one for it."""
MAKES = r"_?(?:new|init|initial|make|build|empty|fresh|create|allocate|alloc|begin|start|zero|blank)_(?:\w+_)?"
"""How names of methods begin that return an empty one."""
SAMPLES = ("batch", "b", "bs", "bsz", "beams", "rows", "num_samples", "samples")
"""Names of how many samples there are, in a method that makes a cache."""
HOLDER = re.compile(r"cache")
NOT_A_CACHE = re.compile(r"attention|block|layer|model|transformer|config|error|gpt|decoder", re.IGNORECASE)
"""Classes that use a cache."""
SHORTEST = 3
"""Letters of a name that says what is made."""
MAX_DEPTH = 4
"""Of objects in objects."""
MAX_CLASSES = 3
MAX_WAYS = 2
"""To construct each."""


def sizes_of(invocation: Invocation) -> Sizes:
    """The sizes of a call, as a cache for it is told them."""
    stream = invocation.streams[0]
    shape = invocation.arguments[stream.argument].shape
    known = invocation.sizes
    tokens = shape[stream.token_axes[0]]
    heads, d_head = known.get("heads", 1), known.get("d_head", 1)
    sizes = Sizes(
        batch=shape[stream.batch_axis] if stream.batch_axis is not None else 1,
        tokens=tokens,
        context=tokens,
        heads=heads,
        kv_heads=known.get("kv_heads", heads),
        d_head=d_head,
    ).with_arguments(numbers_of(invocation.target))
    given = {**dict(sizes.given), "length": tokens, "batch": sizes.batch, "d_head": sizes.d_head}
    return Sizes(sizes.batch, tokens, tokens, sizes.heads, sizes.kv_heads, sizes.d_head, tuple(given.items()))


def cache_objects(invocation: Invocation, parameter: inspect.Parameter | None) -> list[Callable[[], Any]]:
    """Makers of empty caches of the classes that an argument is annotated with, or that stand beside the target."""
    annotated = [] if parameter is None else _classes_in(parameter.annotation, invocation.target)
    called = [] if parameter is None else _classes_called(invocation.target, parameter.name)
    kinds = dict.fromkeys((*annotated, *_classes_beside(invocation.target), *called))
    return [make for kind in islice(kinds, MAX_CLASSES) for make in _makers(kind, invocation)]


def installers(invocation: Invocation) -> Iterator[Callable[[Any], None]]:
    """What puts an empty cache into a target that has a place for it."""
    sizes = sizes_of(invocation)
    if has_setup(invocation.target):
        yield lambda target: set_up(target, sizes)
    holders = [
        name
        for module in modules_in(invocation.target)
        for each in module.modules()
        for name, value in vars(each).items()
        if HOLDER.search(name) and value is None
    ]
    if not holders:
        return
    for kind in islice(_classes_beside(invocation.target), MAX_CLASSES):
        for make in _makers(kind, invocation):
            yield lambda target, make=make: _put(target, holders[0], make)  # type: ignore[misc]


def _put(target: Any, name: str, make: Callable[[], Any]) -> None:
    for module in modules_in(target):
        for each in list(module.modules()):
            if name in vars(each) and vars(each)[name] is None:
                setattr(each, name, make())


def has_setup(target: Any) -> bool:
    """Whether a target has a method that puts a cache into it."""
    return any(_setup_methods(module) for module in modules_in(target))


def _setup_methods(module: nn.Module) -> list[str]:
    return [name for name in dir(type(module)) if SETUP.match(name) and callable(getattr(type(module), name))]


def set_up(target: Any, sizes: Sizes) -> None:
    """Call the method that makes a cache; what it returns is kept where a cache is missing."""
    for module in modules_in(target):
        for name in _setup_methods(module)[:1]:
            method = getattr(module, name)
            made = method(**_arguments(method, sizes))
            if made is not None and made is not module:
                holders = [each for each, value in vars(module).items() if HOLDER.search(each) and value is None]
                for each in holders[:1]:
                    setattr(module, each, made)
        in_float64(module)


def makes(target: Any, name: str) -> list[str]:
    """The methods of a target that by their names make what an argument is handed, as new_shelf() makes a shelf."""
    if not isinstance(target, nn.Module) or len(name) < SHORTEST:
        return []
    wanted = re.compile(rf"{MAKES}{re.escape(name.strip('_').lower())}s?")
    return [each for each in dir(type(target)) if wanted.fullmatch(each.lower())]


def made_by_method(invocation: Invocation, name: str) -> Iterator[Callable[[], Any]]:
    """Makers of what an argument is handed, by a method of the target that is called after it."""
    for each in makes(invocation.target, name):
        method = getattr(invocation.target, each)
        with suppress(Failed, TypeError, ValueError):
            given = _arguments(method, sizes_of(invocation))
            yield lambda method=method, given=given: _in_float64(method(**given))  # type: ignore[misc]


def _in_float64(value: Any, depth: int = MAX_DEPTH) -> Any:
    """A value with its float tensors in float64, also those in the attributes of objects."""
    if isinstance(value, Tensor):
        return value.double() if value.is_floating_point() else value
    if not depth:
        return value
    if type(value) in (list, tuple):
        return type(value)(_in_float64(each, depth - 1) for each in value)
    if isinstance(value, dict):
        return {key: _in_float64(each, depth - 1) for key, each in value.items()}
    for key, each in vars(value).items() if hasattr(value, "__dict__") and not isinstance(value, type) else ():
        if isinstance(each, Tensor | list | dict):
            setattr(value, key, _in_float64(each, depth - 1))
    return value


def _arguments(method: Callable[..., Any], sizes: Sizes) -> dict[str, Any]:
    values: Mapping[str, Any] = {
        "batch": sizes.batch,
        "length": sizes.length,
        "heads": sizes.heads,
        "kv_heads": sizes.kv_heads,
        "d_head": sizes.d_head,
        "d_model": sizes.d_model,
        "dtype": torch.float64,
        "device": "cpu",
    }
    given = {}
    for name, parameter in inspect.signature(method).parameters.items():
        means = "batch" if name in SAMPLES else constructor_meaning(name)
        required = parameter.default is parameter.empty
        if means in values and (required or means not in ("device", "dtype")):
            given[name] = values[str(means)]
        elif required:
            raise Failed(f"{name} of {method.__name__} is not known")
    return given


def _classes_in(annotation: Any, target: Any) -> list[type]:
    """The classes that an annotation names, which may be a text."""
    parts = getattr(annotation, "__args__", (annotation,))
    if isinstance(annotation, str):
        names = vars(sys.modules.get(_owner(target).__module__, object))
        parts = [names.get(each) for each in re.findall(r"\w+", annotation)]
    return [each for each in parts if inspect.isclass(each) and KIND.search(each.__name__)]


def _owner(target: Any) -> Any:
    """The function, or the class of the module, that is called."""
    return target if inspect.isfunction(target) else type(modules_in(target)[0] if modules_in(target) else target)


def _classes_beside(target: Any) -> Iterator[type]:
    """Classes of caches in the class of a target, or in its file."""
    owner = _owner(target)
    for name, kind in [*vars(owner).items(), *vars(sys.modules.get(owner.__module__, object)).items()]:
        if not inspect.isclass(kind) or "cache" not in name.lower() or NOT_A_CACHE.search(name):
            continue
        if name == "Cache" and kind.__module__.startswith("transformers"):
            yield sys.modules[kind.__module__].DynamicCache
        elif any(callable(getattr(kind, method, None)) for method in METHODS if method != "__call__"):
            yield kind


def _classes_called(target: Any, name: str) -> list[type]:
    """Classes of the file of a target that have all that its code asks of an argument, and a method that it calls."""
    asked = set(re.findall(rf"\b{re.escape(name)}\.(\w+)", source_of(target)))
    called = {each for each in asked if re.search(rf"\b{re.escape(name)}\.{each}\(", source_of(target))}
    file = _owner(target).__module__
    kinds = [each for each in vars(sys.modules.get(file, object)).values() if inspect.isclass(each)]
    return [
        each
        for each in kinds
        if called & set(METHODS)
        and each.__module__ == file
        and not issubclass(each, nn.Module)
        and all(hasattr(each, method) for method in called)
        and all(re.search(rf"\b{one}\b", source_of(each)) for one in asked)
    ]


def _meanings(names: Sequence[str]) -> dict[str, str]:
    """What the sizes of a cache mean; n, beside another name for the number of tokens, is that of samples."""
    found = {name: str(constructor_meaning(name)) for name in names}
    lengths = [name for name, means in found.items() if means == "length"]
    return found | ({"n": "batch"} if "n" in lengths and len(lengths) > 1 else {})


def _makers(kind: type, invocation: Invocation) -> Iterator[Callable[[], Any]]:
    """Makers of the objects of a class, by what its constructor takes."""
    try:
        names = [*inspect.signature(kind).parameters]
    except (ValueError, TypeError):
        names = []
    if kind.__module__.startswith("transformers") or not names:
        yield kind
        return
    sizes = sizes_of(invocation)
    for heads in dict.fromkeys((sizes.kv_heads, sizes.heads, max(1, sizes.heads // 2), 1)):  # those of keys are meant
        each = Sizes(sizes.batch, sizes.tokens, sizes.context, heads, heads, sizes.d_head, sizes.given)
        known = {"batch": each.batch, "length": each.length}
        args = {name: known[means] for name, means in _meanings(names).items() if means in known}
        with suppress(InputError, Failed):
            for construction, _, _ in islice(constructions(kind, args, each, invocation.settings), MAX_WAYS):
                yield lambda made=construction, size=each: made.build(size)[0]  # type: ignore[misc]
