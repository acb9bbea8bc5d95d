"""What is called: the thing itself, what a factory makes, or objects of a class of several sizes."""

from __future__ import annotations

import inspect
import itertools
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, replace
from functools import partial
from types import SimpleNamespace
from typing import Any

from torch import nn

from regard.check.sandbox.torch_settings import UserSettings
from regard.check.target.cache_objects import has_setup, set_up
from regard.check.target.classes import method_of
from regard.check.target.construction import Construction, constructions
from regard.check.target.errors import Failed, NotCallable, error_line
from regard.check.target.names import constructor_meaning
from regard.check.target.preparation import copied, numbers_of, prepare, width_of_scale
from regard.check.target.signature import readings
from regard.check.target.sizes import DISTINCT_SIZES, Sizes
from regard.errors import InputError

__all__ = ["MAX_CONSTRUCTIONS", "Target", "from_factory", "small_sizes", "targets_of"]

SMALL = {"layers": 2, "heads": 3, "d_model": 24, "d_ff": 48}
"""Of a module that a function makes."""
MAX_CONSTRUCTIONS = 3
"""Of each set of sizes, that can be made and are tried to be called."""


@dataclass(eq=False)
class Target:
    """What is called, of one set of sizes."""

    call: Any
    sizes: Sizes
    said: list[str]
    construction: Construction | None = None
    is_set_up: bool = False
    """Whether its method that puts caches into it was called, without which it does not run."""

    def with_caches(self) -> Target:
        """The same after its method that puts caches into it.

        Raises:
            Failed: it has none, or nothing tells what that takes.
        """
        if not has_setup(self.call):
            raise Failed("it has no method that puts a cache into it")
        call = copied(self.call)
        try:
            set_up(call, self.sizes)
        except Exception as error:
            raise Failed(error_line(error)) from error
        return replace(self, call=call, said=[*self.said, "its caches were set up before the call"], is_set_up=True)

    def resized(self, sizes: Sizes, seed: int) -> Target:
        """The same of other sizes.

        Raises:
            Failed: it cannot be constructed.
        """
        if self.construction is None:
            return replace(self, sizes=replace(sizes, given=self.sizes.given))
        built, said = self.construction.build(sizes)
        call = method_of(built)
        prepare(call, seed)
        made = Target(call, _told(sizes, call, self.construction.args, said), said, self.construction)
        return made.with_caches() if self.is_set_up else made


def targets_of(
    implementation: Any, args: Mapping[str, Any], settings: UserSettings, errors: list[Failed]
) -> Iterator[Target]:
    """What may be called: the thing itself, or objects of a class of several sizes."""
    if inspect.isfunction(implementation) and args and set(args) <= set(inspect.signature(implementation).parameters):
        given = partial(implementation, **args)
        given.__name__, given.__doc__ = implementation.__name__, implementation.__doc__  # type: ignore[attr-defined]
        yield Target(given, DISTINCT_SIZES[0].with_arguments(args), [])
        return
    if not inspect.isclass(implementation):
        if args:
            name = getattr(implementation, "__name__", type(implementation).__name__)
            raise InputError(f"{name} is already constructed and takes no arguments: {sorted(args)}")
        call = method_of(copied(implementation))
        prepare(call, seed=1)
        yield Target(call, DISTINCT_SIZES[0].with_arguments(numbers_of(call)), [])
        return
    refused: InputError | None = None
    several = [plain.with_arguments(args) for plain in DISTINCT_SIZES]
    ways = [(sizes, constructions(implementation, args, sizes, settings)) for sizes in several]
    for most in (1, MAX_CONSTRUCTIONS - 1):  # other ways to make one come after other sizes
        for sizes, made_so in list(ways):
            try:
                for construction, made, said in itertools.islice(made_so, most):
                    call = method_of(made)
                    prepare(call, seed=1)
                    yield Target(call, _told(sizes, call, args, said), said, construction)
            except InputError as error:
                ways.remove((sizes, made_so))
                refused = refused or error
                errors.append(Failed(str(error)))
        if refused is not None and not ways:
            raise refused


def _told(sizes: Sizes, call: Any, args: Mapping[str, Any], said: list[str]) -> Sizes:
    """The sizes of what a module is meant to be called with."""
    width = width_of_scale(call, args, said)
    if width is None:
        return sizes
    names = {*args, *(each.partition("=")[0] for each in said)}
    if any(constructor_meaning(each) == "heads" for each in names):
        return replace(sizes, d_head=width)
    return replace(sizes, d_head=width, given=(*sizes.given, ("d_model", width)))


def from_factory(
    implementation: Any, args: Mapping[str, Any], settings: UserSettings
) -> tuple[Any, dict[str, Any], Mapping[str, Any]]:
    """What a function makes that needs nothing else: a module, or a module and its inputs; anything else is itself.

    Args:
        implementation: the function.
        args: of it, or the fields of the config that it takes.
        settings: PyTorch's settings meanwhile.

    Returns:
        What is made, its inputs, and the arguments that are left.
    """
    if inspect.isclass(implementation) or not inspect.isfunction(implementation):
        return implementation, {}, args
    if inspect.signature(implementation).parameters:
        made = _made_with(implementation, args, settings)
        return (implementation, {}, args) if made is None else (made, {}, {})
    with settings.on():
        made = implementation()
    if isinstance(made, tuple) and len(made) == 2 and callable(made[0]):
        target, inputs = made
        if isinstance(inputs, Mapping):
            return target, dict(inputs), args
        values = inputs if isinstance(inputs, tuple | list) else (inputs,)
        names = list(dict.fromkeys(each.within or each.name for each in readings(target)[0]))
        return target, dict(zip(names, values, strict=False)), args
    if callable(made):
        return made, {}, args
    raise NotCallable(
        f"{implementation.__name__}() returned a {type(made).__name__}: a factory returns a module, or (module, inputs)"
    )


def small_sizes(function: Any, args: Mapping[str, Any], settings: UserSettings) -> dict[str, int]:
    """For the sizes of a module that a function makes and that are left to its defaults: small ones, which it takes.

    Args:
        function: which may be no such function: then there are none.
        args: what it is given.
        settings: PyTorch's settings meanwhile.
    """
    if inspect.isclass(function) or not inspect.isfunction(function) or not args:
        return {}
    found = {}
    for name, parameter in inspect.signature(function).parameters.items():
        default = parameter.default
        means = "layers" if name == "N" else constructor_meaning(name)
        if name not in args and type(default) is int and default > SMALL.get(means or "", default):
            found[name] = SMALL[str(means)]
    if {constructor_meaning(name) for name in args} & {"d_model", "heads"}:
        found = {name: size for name, size in found.items() if size == SMALL["layers"]}  # others may not fit
    try:
        made = from_factory(function, {**args, **found}, settings)[0] if found else function
    except NotCallable:
        return {}
    return {} if made is function else found


def _made_with(function: Any, args: Mapping[str, Any], settings: UserSettings) -> Any:
    """The module, or the object of a class that can be called, that a function makes of arguments alone; else None."""
    parameters = inspect.signature(function).parameters
    required = [
        each.name
        for each in parameters.values()
        if each.default is each.empty and each.kind not in (each.VAR_POSITIONAL, each.VAR_KEYWORD)
    ]
    if not args:
        return None
    if set(required) <= set(args) <= set(parameters):
        given: Mapping[str, Any] = args
    elif len(required) == 1 and constructor_meaning(required[0]) == "config" and not set(args) & set(parameters):
        given = {required[0]: SimpleNamespace(**args)}
    else:
        return None
    try:
        with settings.on():
            made = function(**given)
    except Exception as error:
        raise NotCallable(
            f"{function.__name__} raises {error_line(error)} with the arguments that it is given"
        ) from error
    is_own = type(made).__module__.partition(".")[0] not in ("builtins", "numpy", "torch")
    return made if isinstance(made, nn.Module) or (callable(made) and is_own) else None
