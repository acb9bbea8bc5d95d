"""What is called: the thing itself, or objects of a class of several sizes."""

from __future__ import annotations

import inspect
import itertools
import re
from collections.abc import Iterator, Mapping
from contextlib import suppress
from dataclasses import dataclass, replace
from typing import Any

from regard.check.sandbox.torch_settings import UserSettings
from regard.check.target.cache_objects import has_setup, set_up
from regard.check.target.classes import method_of
from regard.check.target.construction import Construction, constructions
from regard.check.target.errors import Failed, error_line, is_of_one_sample, summed_tokens
from regard.check.target.file_constants import with_constants
from regard.check.target.fixed_arguments import with_fixed, with_width_of
from regard.check.target.names import constructor_meaning
from regard.check.target.preparation import copied, modules_in, numbers_of, prepare, width_of_scale
from regard.check.target.sizes import DISTINCT_SIZES, SQUARE_SIZES, Sizes
from regard.errors import InputError

__all__ = ["MAX_CONSTRUCTIONS", "Target", "of_one_sample", "square_sizes", "targets_of"]

MAX_CONSTRUCTIONS = 3
"""Of each set of sizes, that can be made and are tried to be called."""
_SIDES = re.compile(r"[(\[](\d+), (\d+)[)\]]")
_OF_ROTATIONS = re.compile(r"(?!.*(?:att|block|layer|former|coder|model|head)).*(?:rope(?![a-z])|rotary)", re.I)
"""In the names of modules that rotate queries and keys, and do no more."""
ONE_SAMPLE = "it is called with one sample: it runs with no other number that was tried"


@dataclass(eq=False)
class Target:
    """What is called, of one set of sizes."""

    call: Any
    sizes: Sizes
    said: list[str]
    construction: Construction | None = None
    is_set_up: bool = False
    """Whether its method that puts caches into it was called, without which it does not run."""

    in_steps: bool = False
    """Whether it is called with one token at a time."""

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
        sizes = _told(sizes, call, self.construction.args, said)
        made = Target(call, sizes, said, self.construction, in_steps=self.in_steps)
        return made.with_caches() if self.is_set_up else made


def targets_of(
    implementation: Any, args: Mapping[str, Any], settings: UserSettings, errors: list[Failed]
) -> Iterator[Target]:
    """What may be called: the thing itself, or objects of a class of several sizes."""
    if inspect.isfunction(implementation) and args and set(args) <= set(inspect.signature(implementation).parameters):
        given = with_fixed(implementation, args)
        yield Target(given, with_width_of(DISTINCT_SIZES[0].with_arguments(args), given), [])
        return
    if not inspect.isclass(implementation):
        if args:
            name = getattr(implementation, "__name__", type(implementation).__name__)
            raise InputError(f"{name} is already constructed and takes no arguments: {sorted(args)}")
        call = method_of(copied(implementation))
        prepare(call, seed=1)
        yield Target(call, *with_constants(DISTINCT_SIZES[0].with_arguments(numbers_of(call)), call))
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


def of_one_sample(targets: list[Target], errors: list[Failed]) -> list[Target]:
    """The targets, made anew for a single sample, where a call of several failed by how many these are."""
    found = []
    for target in targets:
        if any(is_of_one_sample(each, target.sizes.batch) for each in errors):
            with suppress(Failed, InputError):
                one = target.resized(replace(target.sizes, batch=1), seed=1)
                found.append(replace(one, said=[*one.said, ONE_SAMPLE]))
    return found


def square_sizes(target: Target, last: Failed, args: Mapping[str, Any]) -> list[Sizes]:
    """Those that are tried, by the error of the call that came farthest."""
    if not any(True for module in modules_in(target.call) for _ in module.parameters()):
        return [each.with_arguments(args) for each in SQUARE_SIZES]
    tokens = summed_tokens(last, (target.sizes.tokens, target.sizes.context))
    return [replace(target.sizes, tokens=tokens, context=tokens)] if tokens else []


def _told(sizes: Sizes, call: Any, args: Mapping[str, Any], said: list[str]) -> Sizes:
    """The sizes of what a module is meant to be called with."""
    sizes, told = with_constants(sizes, call)
    said += told
    names = {*args, *(each.partition("=")[0] for each in said)}
    has_heads = any(constructor_meaning(each) == "heads" for each in names)
    if _OF_ROTATIONS.match(type(call).__name__) and not has_heads:  # its width is that of what it rotates, of a head
        sizes = replace(sizes, d_head=sizes.d_model)
    sizes = replace(sizes, grid=sizes.grid or _grid_of(said))
    width = width_of_scale(call, args, said)
    if width is None:
        return sizes
    if has_heads:
        return replace(sizes, d_head=width)
    return replace(sizes, d_head=width, given=(*sizes.given, ("d_model", width)))


def _grid_of(said: list[str]) -> tuple[int, int] | None:
    """Height and width of the map of features that a constructor was told, which a module may not keep."""
    told = (each.partition("=") for each in said)
    pairs = (_SIDES.fullmatch(value) for name, _, value in told if constructor_meaning(name) == "grid")
    return next(((int(each[1]), int(each[2])) for each in pairs if each is not None), None)
