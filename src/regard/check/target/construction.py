"""Modules made from classes: what their constructors take is guessed by name, by annotation and by trying."""

from __future__ import annotations

import dataclasses
import enum
import inspect
import linecache
import re
import traceback
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import partial
from typing import Any

import torch
from torch import nn

from regard.check.sandbox.torch_settings import UserSettings
from regard.check.target.argument import source_of
from regard.check.target.best_first import best_first
from regard.check.target.classes import are_alike, classes_beside, handed_on, parameters_of, takes
from regard.check.target.config_objects import config_object
from regard.check.target.configs import (
    CONFIG_NAMES,
    MAX_CLASSES,
    OF_POSITIONS,
    GuessedConfig,
    config_class,
    config_classes,
    number,
    reads_sizes,
)
from regard.check.target.constructor_values import (
    ALWAYS,
    DEFAULT,
    NEVER_NONE,
    annotated_values,
    feed_forward,
    known_values,
    looked_up,
    members,
    norm_values,
    number_values,
    optional_values,
)
from regard.check.target.double_precision import double_precision
from regard.check.target.errors import AlwaysFails, Failed, error_line, failed, named_in
from regard.check.target.kept_arguments import compared_with, is_tested
from regard.check.target.layouts import GRID
from regard.check.target.names import constructor_meaning, is_of_a_picture, last_words, side_names
from regard.check.target.picture_sides import with_sides
from regard.check.target.preparation import copied
from regard.check.target.sizes import Sizes
from regard.check.target.usage import (
    PARTS,
    called_with,
    has_fields,
    has_places,
    is_called_unasked,
    squared,
)
from regard.errors import InputError

__all__ = ["Construction", "constructions"]

MAX_TRIES = 60
"""Of one class and one set of sizes."""
LEAST_WIDTH = 32
"""Of a default that two arguments have in common because both are the width of the tokens."""
LARGE_PART = 16
"""Of a number of heads, or of a head's channels, that is not left as a config has it by default."""
OF_HEADS = ("heads", "d_head")
MAX_FIELDS = 5
"""That a config lacks and is given."""
REFUSED = re.compile(r"cannot be constructed: (?:AssertionError|ValueError)\b")
"""The error of a constructor that looks at what it was given."""


@dataclass(eq=False)
class Construction:
    """How one object is made from a class."""

    kind: type
    args: Mapping[str, Any]
    settings: UserSettings
    choices: dict[str, int] = field(default_factory=dict)
    """For each argument, which of its candidates is taken."""
    wider: str = ""
    """An argument that is told twice the width that it would be."""
    switched: bool = False
    """Whether options that are off by default may be on: some classes refuse to be made with all of them off."""
    demanded: frozenset[str] = frozenset()
    """Arguments that have to be given, whatever their defaults: the error without them names them."""
    within: tuple[type, ...] = ()
    """The classes whose objects it is an argument of."""

    def build(self, sizes: Sizes, several: Sequence[tuple[str, list[Any]]] | None = None) -> tuple[Any, list[str]]:
        """The object of some sizes, and what was guessed for it; `several` are its `options`, where these are known.

        Raises:
            Failed: the constructor raises.
        """
        given: dict[str, Any] = {}
        said: list[str] = []
        options = dict(self.options(sizes) if several is None else several)
        for name, candidates in options.items():
            value = candidates[self.choices.get(name, 0) % len(candidates)]
            if value is DEFAULT:
                continue
            try:
                if value is self.args.get(name):  # a module that was made for it is called by its owner alone
                    given[name] = copied(value) if isinstance(value, nn.Module) else value
                else:
                    given[name] = value() if callable(value) and not isinstance(value, type) else value
            except Exception as error:
                raise Failed(f"{name} of {self.kind.__name__} cannot be made: {error_line(error)}") from error
            if name not in self.args and not _is_config(given[name]):
                said.append(f"{name}={given[name]}")
            elif name not in self.args and isinstance(given[name], nn.Module):
                said.append(f"{name}={type(given[name]).__name__}")
        positional = [given.pop(n) for n, p in parameters_of(self.kind).items() if p.kind is p.POSITIONAL_ONLY]
        try:
            made = self._made(positional, given, sizes)
        except Exception as error:
            what = ", ".join(f"{k}={v}" for k, v in given.items() if not _is_config(v))
            own = failed(error, 0).own
            line = _line_of(error, self.kind) if own is None else ""
            message = f"{self.kind.__name__}({what}) cannot be constructed: {error_line(error)}{line}"
            raise Failed(message, own=own, named=named_in(error, options)) from error
        for value in given.values():
            if isinstance(value, GuessedConfig):
                said += value.guessed
        return made, said

    def _made(self, positional: Sequence[Any], given: Mapping[str, Any], sizes: Sizes) -> Any:
        """The object; what it reads of a config and a larger model writes there is guessed by name."""
        for _ in range(MAX_FIELDS):
            torch.manual_seed(0)
            try:
                with self.settings.on(), double_precision():
                    return with_sides(self.kind(*positional, **given))
            except AttributeError as error:
                name = error.name or ""
                means = constructor_meaning(name)
                if not any(error.obj is each for each in given.values()) or means is None or means == "config":
                    raise
                setattr(error.obj, name, number(means, name, sizes))
        raise AttributeError(f"its config lacks more than {MAX_FIELDS} fields")

    def options(self, sizes: Sizes) -> Iterator[tuple[str, list[Any]]]:
        """For each argument of the constructor the values to try, the likeliest first."""
        fields = {name: value for name, value in self.args.items() if name not in parameters_of(self.kind)}
        for name, parameter in parameters_of(self.kind).items():
            given = self.args.get(name)  # of a config, what is not given is guessed; a dict of options is whole
            if name in self.args and not (isinstance(given, Mapping) and self._takes_config(name, parameter)):
                yield name, [given]
            elif parameter.kind in (parameter.VAR_KEYWORD, parameter.VAR_POSITIONAL):
                if parameter.kind is parameter.VAR_KEYWORD:
                    yield from ((name, [value]) for name, value in fields.items() if not self._has_config())
            else:
                yield name, self._candidates(name, parameter, sizes, {**fields, **self.args.get(name, {})})

    def widths(self) -> list[str]:
        """The arguments that are told the width of the tokens, by their names, and that nobody gave."""
        return [
            name
            for name in parameters_of(self.kind)
            if name not in self.args and constructor_meaning(name) == "d_model"
        ]

    def is_grouped(self, said: Iterable[str]) -> bool:
        """Whether its number of heads of keys and values can be chosen; `said` is what was guessed for it."""
        names = {*parameters_of(self.kind), *(each.partition("=")[0].rpartition(".")[2] for each in said)}
        for name, parameter in parameters_of(self.kind).items():
            if self._takes_config(name, parameter) and (kind := config_class(parameter, self.kind)) is not None:
                names |= {*parameters_of(kind), *vars(kind)}  # a field may be no more than an attribute of the class
        return any(constructor_meaning(name) == "kv_heads" for name in names)

    def _has_config(self) -> bool:
        several = (inspect.Parameter.VAR_POSITIONAL, inspect.Parameter.VAR_KEYWORD)
        parameters = parameters_of(self.kind).items()
        return any(each.kind not in several and self._takes_config(name, each) for name, each in parameters)

    def _takes_config(self, name: str, parameter: inspect.Parameter) -> bool:
        if constructor_meaning(name) == "config" or has_fields(source_of(self.kind), name):
            return True
        sources = [source_of(each) for each in (self.kind, *handed_on(self.kind, name))]
        if name not in self.args and reads_sizes(sources, name, self.args):
            return True
        kind = config_class(parameter, self.kind)
        return kind is not None and (dataclasses.is_dataclass(kind) or kind.__name__.endswith(CONFIG_NAMES))

    def _candidates(self, name: str, parameter: inspect.Parameter, sizes: Sizes, fields: Any) -> list[Any]:
        required = parameter.default is inspect.Parameter.empty
        means = "image" if is_of_a_picture(name, parameters_of(self.kind)) else constructor_meaning(name)
        if self._takes_config(name, parameter):
            kinds = [each for each in config_classes(parameter, self.kind) if not issubclass(each, dict)]
            made: list[Any] = []
            for tried in (sizes, replace(sizes, dropout=0.0)):  # some refuse any dropout
                made += [
                    self._config_of(kind, tried, fields, is_deep) for kind in kinds[:1] for is_deep in (False, True)
                ]
                made.append(partial(GuessedConfig, tried, fields, source_of(self.kind)))
            made += [self._config_of(kind, sizes, fields) for kind in kinds[1:]]
            made.append(partial(GuessedConfig, sizes, fields, source_of(self.kind), by_kind=True))
            return made if required or fields else [*made, DEFAULT]
        if sizes.positions and parameter.default is False and OF_POSITIONS.search(name.lower()):
            return [True]
        if self.switched and parameter.default is False:
            return [DEFAULT, True]
        if (side := self._side(name)) is not None:
            return [side, DEFAULT] if not required else [side]
        required = required or name in self.demanded
        if required and (objects := list(self._of_annotated(parameter, name, sizes))):
            count = called_with(source_of(self.kind), name)
            return [*objects, *([] if count is None else _called_modules(self.kind, count, sizes, self.settings))]
        if means is None:
            if not required and parameter.default is None and is_called_unasked(source_of(self.kind), name):
                return [*self._of_the_file(name, sizes), DEFAULT]
            if not required and self._is_as_wide(parameter):
                return [sizes.d_model, DEFAULT]
            if not required and self._is_of_many_heads(name, parameter):
                return [*self._of_last_words(name, parameter, sizes), DEFAULT]
            if not required:
                return optional_values(source_of(self.kind), name, parameter.default, sizes)
            return self._unknown(name, parameter, sizes)
        values = self._known(name, parameter, means, sizes)
        if required:
            return values
        if parameter.default is None and means == "heads":
            return values
        if parameter.default is None and means == "layer":  # some compute with it all the same
            return [DEFAULT, *values]
        if parameter.default is None or means not in ALWAYS:
            forced = means == "d_model" or (means == "kv_heads" and sizes.kv_heads != sizes.heads)
            return [*values, DEFAULT] if forced else [DEFAULT, *values] if means in ALWAYS else [DEFAULT]
        if isinstance(parameter.default, tuple | list):
            is_grid = means in ("image", "grid") and len(parameter.default) == len(GRID)
            return [type(parameter.default)(GRID), DEFAULT] if is_grid else [DEFAULT]
        if parameter.default == 0 and means not in NEVER_NONE:  # there is none
            return [DEFAULT, *values]
        if means == "length" and len(name) == 1:  # n may count the heads as well
            return [DEFAULT, *values]
        if means == "length" and type(parameter.default) is int and parameter.default < sizes.length:
            return [DEFAULT, *values]  # no largest length of a text is as small: it decides what is computed
        return [*values, DEFAULT]

    def _config_of(self, kind: type, sizes: Sizes, fields: Mapping[str, Any], is_deep: bool = False) -> partial[Any]:
        of_class = Construction(kind, dict(fields), self.settings)
        return partial(config_object, of_class, sizes, fields, is_deep=is_deep)

    def _side(self, name: str) -> int | None:
        """The size of a map of features along an axis, where both sides are told, or one; else None."""
        both = side_names(parameters_of(self.kind))
        if name in both:
            return GRID[both.index(name)]
        is_width_told = any(
            each != name and constructor_meaning(each) == "d_model" for each in parameters_of(self.kind)
        )
        is_place = constructor_meaning(name) is None and has_places(source_of(self.kind), name)
        is_side = is_width_told and (name in squared(source_of(self.kind)) or is_place)
        return GRID[0] if is_side else None

    def _is_as_wide(self, parameter: inspect.Parameter) -> bool:
        """Whether its default is that of the width of the tokens, which is told another number: else they differ."""
        defaults = [
            each.default for name, each in parameters_of(self.kind).items() if constructor_meaning(name) == "d_model"
        ]
        is_number = type(parameter.default) is int and parameter.default >= LEAST_WIDTH
        return is_number and parameter.default in defaults

    def _is_of_many_heads(self, name: str, parameter: inspect.Parameter) -> bool:
        """Whether it is the number or the width of a part's heads by a config, as linear_num_heads, and a large one."""
        told = last_words(name)
        is_large = type(parameter.default) is int and parameter.default >= LARGE_PART
        return is_large and told is not None and told[1] in OF_HEADS and self.kind.__name__.endswith(CONFIG_NAMES)

    def _known(self, name: str, parameter: inspect.Parameter, means: str, sizes: Sizes) -> list[Any]:
        if name == self.wider:
            return [2 * number(means, name, sizes)]
        values = known_values(means, name, str(parameter.annotation), source_of(self.kind), sizes)
        if means == "grid" and any(PARTS.search(each.lower()) for each in parameters_of(self.kind)):
            return sorted(values, key=lambda each: tuple(each) != GRID if isinstance(each, list | tuple) else True)
        return values

    def _unknown(self, name: str, parameter: inspect.Parameter, sizes: Sizes) -> list[Any]:
        """For an argument that has to be given and whose name says nothing."""
        annotation = str(parameter.annotation)
        sources = [source_of(each) for each in (self.kind, *handed_on(self.kind, name))]
        if texts := [text for each in sources for text in compared_with(each, name)]:
            return [*dict.fromkeys(texts)]
        if values := annotated_values(annotation):
            return [*self._of_last_words(name, parameter, sizes), *values] if "float" in annotation else values
        if choices := members(name, parameter, self.kind) or looked_up(name, self.kind, source_of(self.kind)):
            return choices
        if "str" in annotation:
            return ["", "gelu", "linear"]
        if re.search("norm", name.lower()):
            return norm_values(annotation, sizes)
        if re.search("feed_?forward|ffn?$|mlp", name.lower()):
            return [partial(feed_forward, sizes)]
        objects: list[Any] = list(self._of_the_file(name, sizes))
        count = called_with(source_of(self.kind), name)
        if count is not None:
            objects += _called_modules(self.kind, count, sizes, self.settings)
        if objects:
            return objects
        if any(is_tested(each, name) for each in sources):
            return [False, True]
        return [*self._of_last_words(name, parameter, sizes), *number_values(name, source_of(self.kind), sizes)]

    def _of_last_words(self, name: str, parameter: inspect.Parameter, sizes: Sizes) -> list[Any]:
        """The values for what the last words of a longer name mean."""
        told = last_words(name)
        return [] if told is None else self._known(name, parameter, told[1], sizes)

    def _of_the_file(self, name: str, sizes: Sizes) -> Iterator[Callable[[], Any]]:
        """Objects of the classes of its file whose names are like the argument's.

        What turns the channels of a head is told the width of a head first.
        """
        kinds = [each for each in classes_beside(self.kind) if each not in (*self.within, self.kind)]
        alike = [each for each in kinds if are_alike(name, each.__name__)]
        yield from self._objects(sorted(alike, key=lambda each: len(each.__name__)), name, sizes)

    def _of_annotated(self, parameter: inspect.Parameter, name: str, sizes: Sizes) -> Iterator[Callable[[], Any]]:
        """Objects of the class that the argument is annotated with: one of its file, or a module of any."""
        beside = [each for each in classes_beside(self.kind) if parameter.annotation in (each, each.__name__)]
        modules = [each for each in config_classes(parameter, self.kind)[:1] if issubclass(each, nn.Module)]
        own = (*self.within, self.kind)
        kinds = [each for each in beside or modules if each not in own and not issubclass(each, enum.Enum)]
        yield from self._objects(kinds, name, sizes)

    def _objects(self, kinds: Sequence[type], name: str, sizes: Sizes) -> Iterator[Callable[[], Any]]:
        """Objects of some classes, of the width of the tokens or of that of a head."""
        of_heads = replace(sizes, given=(*sizes.given, ("d_model", sizes.d_head)))
        for kind in kinds[:MAX_CLASSES]:
            both = (of_heads, sizes) if OF_POSITIONS.search(f"{name} {kind.__name__}".lower()) else (sizes, of_heads)
            for each in both:
                construction = Construction(kind, {}, self.settings, within=(*self.within, self.kind))
                yield lambda construction=construction, each=each: _built(construction, each)  # type: ignore[misc]


def constructions(
    kind: type, args: Mapping[str, Any], sizes: Sizes, settings: UserSettings
) -> Iterator[tuple[Construction, Any, list[str]]]:
    """Every way found to construct a class, the likeliest first, with the object and what was guessed for it.

    Raises:
        InputError: arguments that the constructor does not take, or none of the ways works.
    """
    first = Construction(kind, args, settings)
    parameters = parameters_of(kind)
    free = any(p.kind is p.VAR_KEYWORD for p in parameters.values()) or first._has_config()
    wrong = sorted(set(args) - set(parameters))
    if wrong and not free:
        names = ", ".join(parameters) or "none"
        raise InputError(f"{kind.__name__} takes no {', '.join(wrong)}; it takes {names}")
    failures: list[Failed] = []
    is_made = False
    for way in _ways(first, sizes, failures):
        is_made = True
        yield way
    if not is_made:
        failure = next(iter(failures), Failed(f"{kind.__name__} cannot be constructed"))
        raise InputError(str(failure)) if failure.own is None else AlwaysFails(f"{failure}, at {failure.own}")


def _ways(first: Construction, sizes: Sizes, failures: list[Failed]) -> Iterator[tuple[Construction, Any, list[str]]]:
    """Every way found to construct a class; `failures` is told why none was."""
    for each in _stages(first, failures):
        several = list(each.options(sizes))
        ordered = sorted(several, key=lambda one: not all(isinstance(value, str) for value in one[1]))  # named by code
        options = {name: len(candidates) for name, candidates in ordered}

        def build(
            choices: dict[str, int], first: Construction = each, several: list[tuple[str, list[Any]]] = several
        ) -> tuple[Construction, Any, list[str]]:
            construction = replace(first, choices=choices)
            made, said = construction.build(sizes, several)
            return construction, made, said

        search = best_first(options, build, MAX_TRIES)
        found = False
        for way in search.results():
            found = True
            yield way
        if found:
            return
        failures += [search.failure] if search.failure is not None else []


def _built(construction: Construction, sizes: Sizes) -> Any:
    """An object that is an argument of another: made in the likeliest way, or in one that its error tells.

    Raises:
        Failed: none works.
    """
    try:
        return construction.build(sizes)[0]
    except Failed as failed:
        made = next(_ways(construction, sizes, []), None) if failed.named else None
        if made is None:
            raise
        return made[1]


def _stages(first: Construction, failures: Sequence[Failed]) -> Iterator[Construction]:
    """The construction, and what else is tried where all of its ways fail, by how they failed.

    With what an error names and is left out by default, then with options on that are off by default.
    """
    yield first
    named = frozenset().union(*(each.named for each in failures))
    left_out = {name for name, each in parameters_of(first.kind).items() if each.default is None}
    if demanded := {name for name in named & left_out - set(first.args) if constructor_meaning(name) is None}:
        yield replace(first, demanded=frozenset(demanded))
    if any(REFUSED.search(str(each)) for each in failures):
        yield replace(first, switched=True)


def _line_of(error: BaseException, kind: type) -> str:
    """The line of a class's file at which its constructor stopped; empty where it refuses its arguments there."""
    try:
        file = inspect.getsourcefile(kind)
    except (OSError, TypeError):
        return ""
    lines = [number for frame, number in traceback.walk_tb(error.__traceback__) if frame.f_code.co_filename == file]
    text = linecache.getline(file, lines[-1]).strip() if file is not None and lines else ""
    return f" in line {lines[-1]}, {text}" if text and not text.startswith(("raise", "assert")) else ""


def _called_modules(owner: type, count: int, sizes: Sizes, settings: UserSettings) -> Iterator[Callable[[], nn.Module]]:
    """Modules that are called with so many arguments: of classes of the owner's file, attentions first; or a matrix."""
    kinds = [each for each in classes_beside(owner) if issubclass(each, nn.Module) and takes(each.forward, count + 1)]
    if count == 1:
        yield partial(nn.Linear, sizes.d_model, sizes.d_model)
    for kind in sorted(kinds, key=lambda each: "attention" not in each.__name__.lower())[:MAX_CLASSES]:
        yield lambda kind=kind: Construction(kind, {}, settings).build(sizes)[0]  # type: ignore[misc]


def _is_config(value: Any) -> bool:
    return not isinstance(value, bool | int | float | str | tuple | list | type(None)) or isinstance(value, Mapping)
