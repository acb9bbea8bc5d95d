"""What was handed over: a function or a module, and what can be told of it before it is called."""

from __future__ import annotations

import inspect
import re
from collections.abc import Callable, Mapping
from contextlib import suppress
from dataclasses import dataclass, field
from functools import cached_property
from typing import Any

import torch
from torch import Tensor, nn

from regard.check.names import INPUTS, SIZES, is_plain, meaning
from regard.check.sandbox.torch_settings import UserSettings
from regard.check.search.arrays import module_of_arrays
from regard.check.search.cases import DIFFERENT
from regard.check.search.construction import constructed
from regard.check.search.layouts import Sizes
from regard.check.target.argument import source_of
from regard.check.target.classes import method_of
from regard.check.target.documented_shapes import begins_with_tokens, documented_shape
from regard.check.target.preparation import copied, require_cpu, width_of_scale
from regard.errors import InputError

__all__ = ["Subject", "source", "subject_of", "with_signature"]


FUSED = torch._C._nn.scaled_dot_product_attention
"""PyTorch's own, whatever a file puts in its place in `torch.nn.functional`."""
OF_QUERIES = re.compile(r"object_queries|quer(?:y|ies)_(?:sine_)?(?:pos|embed)(?!\w*(?:_ids|bias|mask))\w*")
"""Arguments that are the positions of object queries."""


@dataclass
class Subject:
    """A function, or a module, and what can be told of it before it is called."""

    name: str
    function: Callable[..., Any] | None = None
    takes_arrays: bool = False
    """Whether the function was written for numpy's arrays."""
    module: nn.Module | None = None
    kind: type[nn.Module] | None = None
    """The class of the module."""
    block: type[nn.Module] | None = None
    """The class of the block that it is run by, whose text is its own."""
    build: Callable[[Sizes], tuple[nn.Module, list[str]]] | None = None
    """Makes a module of other sizes; None where one was handed over that is made already."""
    args: Mapping[str, Any] = field(default_factory=dict)
    """That the user gave for the constructor."""
    file: str | None = None
    assumptions: list[str] = field(default_factory=list)
    told: bool = False
    """Whether its constructor was told how many heads to have."""
    settings: UserSettings = field(default_factory=UserSettings)
    """PyTorch's settings during its calls."""

    @cached_property
    def text(self) -> str:
        """Of its class, or of the block's that it is run by, or of the function."""
        return source_of(self.block or self.kind or self.function)

    @cached_property
    def takes_one_token(self) -> bool:
        """Whether its tokens are written to be one, as in "x: (beams, 1, width)": none is later."""
        tokens = [name for name, role in self.roles().items() if role == "x"]
        return any(documented_shape(self.text, name)[1:2] == ("1",) for name in tokens)

    @cached_property
    def has_no_batch(self) -> bool:
        """Whether it says that the first axis of its only sequence is that of the tokens."""
        tokens = [name for name, role in self.roles().items() if role == "x"]
        return len(tokens) == 1 and begins_with_tokens(self.text, tokens[0])

    @cached_property
    def says_two_ways(self) -> bool:
        """Whether it says that some tokens see later ones.

        Its name, its documentation or its settings speak of a prefix; or its call takes vectors of positions of the
        queries, as query_pos: object queries all see one another (Carion et al. 2020, DETR, section 3.2).
        """
        if any(map(OF_QUERIES.fullmatch, self.called)):
            return True
        kind = self.block or self.kind
        written = (self.function,) if kind is None else (kind, kind.forward)
        settings = () if kind is None else inspect.signature(kind).parameters
        texts = (self.name, *(each.__doc__ or "" for each in written), *settings)
        return any("prefix" in each.lower() for each in texts)

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
        found = {name: means for name, means in found.items() if means != "mask" or not is_plain(self.called[name])}
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

    @property
    def told_width(self) -> int | None:
        """The width of a head that the constructor was told, by the user or by what was assumed."""
        told = {**dict(each.split("=", 1) for each in self.assumptions if "=" in each), **self.args}
        sizes = {meaning(name, SIZES): str(value) for name, value in told.items()}
        width = sizes.get("d_head") or (None if "heads" in sizes else sizes.get("d_model"))
        if width is not None and width.isdecimal():
            return int(width)
        return None if self.module is None else width_of_scale(self.module, self.args, self.assumptions)

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
        require_cpu(implementation)
        module = copied(implementation)
        kind = type(module)
        return Subject(kind.__name__, module=module, kind=kind, file=source(kind), settings=settings)
    if inspect.isclass(implementation) and issubclass(implementation, nn.Module):
        name = implementation.__name__
        subject = Subject(name, kind=implementation, args=args, file=source(implementation), settings=settings)
        _refuse_unknown(name, implementation, args)
        subject.build = lambda sizes: constructed(implementation, sizes, args, settings)
        return subject
    if inspect.isclass(implementation):
        return _of_plain_class(implementation, args, settings)
    if not callable(implementation):
        raise InputError(f"{implementation!r} is not a function, class or module")
    name = getattr(implementation, "__name__", type(implementation).__name__)
    implementation = with_signature(implementation)
    try:
        inspect.signature(implementation)
    except ValueError as error:
        raise InputError(f"{name} has no signature: wrap it in a function of (q, k, v)") from error
    _refuse_unknown(name, implementation, args)
    return Subject(name, function=implementation, file=source(implementation), settings=settings)


def _refuse_unknown(name: str, implementation: Any, args: Mapping[str, Any]) -> None:
    parameters = inspect.signature(implementation).parameters
    wrong = set(args) - set(parameters)
    if wrong and not _any_names(implementation):
        names = ", ".join(parameters) or "none"
        raise InputError(f"{name} takes no {', '.join(sorted(wrong))}; it takes {names}")


def with_signature(function: Any) -> Any:
    """A function, or for PyTorch's fused attention, which is built in, one with its arguments."""
    return _fused if function is FUSED else function


def _fused(
    query: Tensor, key: Tensor, value: Tensor, attn_mask: Tensor | None = None, is_causal: bool = False
) -> Tensor:
    output: Tensor = FUSED(query, key, value, attn_mask, is_causal=is_causal)
    return output


def _of_plain_class(implementation: type, args: Mapping[str, Any], settings: UserSettings) -> Subject:
    """What is known of a class that is no module: as of a module where it keeps its weights as arrays of numpy."""
    name, file = implementation.__name__, source(implementation)

    def build(sizes: Sizes) -> tuple[nn.Module, list[str]]:
        return constructed(implementation, sizes, args, settings, lambda made: module_of_arrays(made, method_of(made)))

    with suppress(InputError):
        module, _ = build(DIFFERENT)
        return Subject(name, kind=type(module), build=build, args=args, file=file, settings=settings)
    try:
        with settings.on():
            made = implementation(**args)
    except TypeError as error:
        raise InputError(f"{name} cannot be constructed: {error}; give arguments with --arg") from error
    return Subject(name, function=method_of(made), file=file, settings=settings)


def _any_names(implementation: Any) -> bool:
    return any(p.kind is p.VAR_KEYWORD for p in inspect.signature(implementation).parameters.values())


def source(implementation: Any) -> str | None:
    """The file that an implementation is written in, where there is one.

    The module of a class from a notebook's cell has no file; its methods name the cell.
    """
    kind = inspect.unwrap(implementation)
    methods = filter(inspect.isfunction, vars(kind).values()) if inspect.isclass(kind) else ()
    for written in (kind, *methods):
        try:
            return inspect.getsourcefile(written)
        except (TypeError, OSError):
            continue
    return None
