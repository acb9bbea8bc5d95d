"""Run a call and keep every operation of it: the trace that roles and properties are read from."""

from __future__ import annotations

import inspect
import linecache
import os
import sys
import sysconfig
from collections.abc import Callable, Iterator, Mapping
from contextlib import AbstractContextManager, ExitStack, contextmanager
from functools import cache
from types import CodeType
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn.attention import SDPBackend, sdpa_kernel
from torch.utils._python_dispatch import TorchDispatchMode

from regard.check.location import CodeLocation
from regard.check.target.argument import is_output_gradient
from regard.check.trace.fused_attention import FUSED, attention_by_steps
from regard.check.trace.operation import CHOICES, Operation, TensorRecord, Trace, axis_of

__all__ = ["record"]

MAX_NUMBERS = 1 << 20
"""In one tensor of a trace; operations on larger ones are left out."""
MAX_OPERATIONS = 20_000
"""Of one run."""
LIBRARIES = tuple(
    os.path.join(os.path.realpath(folder), "")
    for folder in (
        os.path.dirname(torch.__file__),
        os.path.dirname(os.path.dirname(os.path.dirname(__file__))),
        sysconfig.get_path("stdlib"),
    )
)
"""Folders whose lines are nobody's attention: PyTorch's, this library's, Python's own."""
WRAPPERS = os.path.join("site-packages", "jaxtyping", "")
"""Its functions stand around ours where shapes are checked."""
PACKAGES = (os.path.join("site-packages", ""), os.path.join("dist-packages", ""))


class _RecordingMode(TorchDispatchMode):  # type: ignore[no-untyped-call]
    """Keeps the operations of a run; replaces the outputs of some."""

    def __init__(self, frozen: Mapping[int, Tensor], *, lines: bool) -> None:
        super().__init__()  # type: ignore[no-untyped-call]
        self.trace = Trace()
        self.frozen, self.lines = frozen, lines
        self.modules = _ModuleStack()
        self._storages: dict[int, int] = {}
        self._alive: list[Tensor] = []  # so that no two tensors of a run get the same address
        self._uncopied: dict[int, list[TensorRecord]] = {}  # by storage
        self._own: dict[str, bool] = {}
        self._unseen: set[int] = set()

    @classmethod
    def _should_skip_dynamo(cls) -> bool:
        """False keeps PyTorch from importing its compiler, which takes seconds, for a mode that compiles nothing."""
        return False

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        kwargs = kwargs or {}
        if func is FUSED:  # where the code itself chose a kernel
            with self:
                return attention_by_steps(*args, **kwargs)
        if torch.is_inference_mode_enabled():  # there an operation comes whole that is else made of others
            with self:
                made: Any = func.decompose(*args, **kwargs)
            if made is not NotImplemented:
                return made
        index, trace = len(self.trace.operations), self.trace
        given = [*_tensors(args), *_tensors(tuple(kwargs.values()))]
        overwritten = _written(func, args, kwargs)
        is_backward = self._unseen and any(self._storage(each) in self._unseen for each in given)
        skipped = index >= MAX_OPERATIONS or is_backward or any(_is_unreadable(each) for each in given)
        inputs = () if skipped else tuple(map(self.kept, given))
        for each in overwritten:
            self._copy(each)
        if skipped:
            result = func(*args, **kwargs)
            if is_backward:
                self.hide(*_tensors((result,)))
            return result
        result = func(*args, **kwargs)
        returned = _tensors((result,))
        if any(_is_unreadable(each) for each in returned):
            return result
        if returned and index in self.frozen:
            held = self.frozen[index]
            place = next((each for each in returned if each.dtype == held.dtype), returned[0])
            place.copy_(held)
            if place is not returned[0] and func._schema.name.partition("::")[2] in CHOICES:
                returned[0].copy_(args[0].gather(axis_of(func, args, kwargs), held))
        left = iter(inputs)
        trace.operations.append(
            Operation(
                index=index,
                name=func._schema.name.partition("::")[2],
                function=func,
                args=_replaced(args, left) if self.lines else (),
                kwargs={name: _replaced(value, left) for name, value in kwargs.items()} if self.lines else {},
                inputs=inputs,
                outputs=tuple(map(self.kept, returned)),
                written=tuple(map(self.kept, overwritten)) if self.lines else (),
                location=self._location() if self.lines else None,
                module=self.modules.path if self.lines else "",
            )
        )
        return result

    def hide(self, *values: Tensor) -> None:
        """Let no operation be kept that computes with some tensors, as a backward pass that is written out does."""
        self._unseen.update(map(self._storage, values))

    def kept(self, value: Tensor) -> TensorRecord:
        """The record of a tensor."""
        storage = self._storage(value)
        data = value.detach().resolve_conj().resolve_neg()
        made = TensorRecord(data, storage, tuple(value.stride()), int(value.storage_offset()), value.requires_grad)
        self._uncopied.setdefault(storage, []).append(made)
        return made

    def _storage(self, value: Tensor) -> int:
        """The number of the memory of a tensor."""
        address = value.untyped_storage()._cdata
        if address not in self._storages:
            self._storages[address] = len(self._storages)
            self._alive.append(value)
        return self._storages[address]

    def _copy(self, value: Tensor) -> None:
        """Copy what was kept of the memory of a tensor, before something is written into it."""
        if value.layout != torch.strided:
            return
        for each in self._uncopied.pop(self._storage(value), ()):
            each.data = each.data.clone(memory_format=torch.contiguous_format)

    def _location(self) -> CodeLocation | None:
        """The innermost line of code that is nobody's library; else the innermost one of a package."""
        frame: Any = sys._getframe(2)
        packaged = None
        while frame is not None and frame.f_code is not _recorders_code():  # what runs the call is no part of it
            name = frame.f_code.co_filename
            if name not in self._own:
                self._own[name] = _is_own(name)
            if self._own[name]:
                if not any(folder in name for folder in PACKAGES):
                    packaged = frame
                    break
                packaged = packaged or frame
            frame = frame.f_back
        if packaged is None:
            return None
        name, line = packaged.f_code.co_filename, packaged.f_lineno
        return CodeLocation(name, line, linecache.getline(name, line).strip())


class _ModuleStack:
    """Which module of the one that was called first is running."""

    def __init__(self) -> None:
        self._paths: dict[int, str] = {}
        self._stack: list[str] = []

    @property
    def path(self) -> str:
        return self._stack[-1] if self._stack else ""

    def enter(self, module: nn.Module, args: Any) -> None:
        if not self._stack:
            self._paths = {id(each): name for name, each in module.named_modules()}
        self._stack.append(self._paths.get(id(module), self.path))

    def leave(self, module: nn.Module, args: Any, output: Any) -> None:
        if self._stack:
            self._stack.pop()


def _is_own(name: str) -> bool:
    if name.startswith("<"):
        return name.startswith("<ipython") or "cell" in name
    real = os.path.realpath(name)
    site = any(folder in real for folder in PACKAGES)
    if WRAPPERS in real:
        return False
    return not real.startswith(LIBRARIES) or (site and not real.startswith(LIBRARIES[:2]))


def _tensors(values: Any) -> list[Tensor]:
    """The tensors among the arguments of an operation, in their order."""
    found = []
    for each in values:
        if isinstance(each, Tensor):
            found.append(each)
        elif isinstance(each, list | tuple):
            found += _tensors(each)
    return found


def _replaced(value: Any, records: Iterator[TensorRecord]) -> Any:
    """Arguments with a record in the place of each tensor."""
    if isinstance(value, Tensor):
        return next(records)
    if isinstance(value, list | tuple):
        return type(value)(_replaced(each, records) for each in value)
    return value


def _is_unreadable(tensor: Tensor) -> bool:
    return tensor.numel() > MAX_NUMBERS or tensor.layout != torch.strided or tensor.is_quantized or tensor.is_meta


def _written(func: Any, args: Any, kwargs: Any) -> list[Tensor]:
    """The arguments into whose memory an operation writes: transpose_ and its like write into none."""
    if not func._schema.is_mutable or torch.Tag.inplace_view in func.tags:
        return []
    found = []
    for number, argument in enumerate(func._schema.arguments):
        if argument.alias_info is not None and argument.alias_info.is_write:
            found += _tensors([args[number] if number < len(args) else kwargs.get(argument.name)])
    return found


@contextmanager
def _running(mode: _RecordingMode) -> Iterator[None]:
    """Inside, fused attention is computed step by step, and its steps are kept."""
    with ExitStack() as stack:
        stack.enter_context(sdpa_kernel(SDPBackend.MATH))
        for handle in (
            nn.modules.module.register_module_forward_pre_hook(mode.modules.enter),
            nn.modules.module.register_module_forward_hook(mode.modules.leave, always_call=True),
        ):
            stack.callback(handle.remove)
        stack.enter_context(mode)
        yield


def record(
    call: Callable[[Callable[[Mapping[str, Any]], AbstractContextManager[object]]], Any],
    *,
    outputs: Callable[[Any], list[Tensor]],
    frozen: Mapping[int, Tensor] | None = None,
    lines: bool = True,
) -> Trace:
    """Run a call; every operation of it is kept.

    Args:
        call: what to run; it is given a context manager to surround the call with, which takes the arguments by name.
        outputs: the tensors of what it returns.
        frozen: by the index of an operation, what it returns instead of its result; of the places that it chooses,
            the numbers that stand there are returned as well.
        lines: whether the arguments, the line and the module of each operation are kept, not its tensors alone.
    """
    mode = _RecordingMode(frozen or {}, lines=lines)

    def watch(arguments: Mapping[str, Any]) -> AbstractContextManager[object]:
        for name, value in arguments.items():
            if isinstance(value, Tensor):
                mode.trace.arguments[name] = mode.kept(value)
                if is_output_gradient(name):
                    mode.hide(value)
            elif isinstance(value, tuple):
                parts = ((number, each) for number, each in enumerate(value) if isinstance(each, Tensor))
                mode.trace.arguments |= {f"{name}[{number}]": mode.kept(each) for number, each in parts}
        return _running(mode)

    try:
        result = call(watch)
    except Exception as error:
        mode.trace.error = str(error) if type(error).__name__ == "Failed" else f"{type(error).__name__}: {error}"
        return mode.trace
    mode.trace.outputs = [mode.kept(each) for each in outputs(result)]
    return mode.trace


@cache
def _recorders_code() -> CodeType:
    """Of `record` itself, whatever a test run has put around it."""
    written: Any = inspect.unwrap(record)
    code: CodeType = written.__code__
    return code
