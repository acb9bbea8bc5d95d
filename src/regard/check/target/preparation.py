"""A target made ready for measuring: float64, evaluation mode, every parameter with an effect."""

from __future__ import annotations

import copy
import math
import re
import threading
import types
from collections.abc import Mapping, Sequence
from typing import Any

import torch
from torch import Tensor, nn

from regard.check.target.argument import is_rooted, source_of
from regard.check.target.closures import ClosureCopies
from regard.check.target.first_numbers import FirstNumbers
from regard.check.target.module_copies import DICTS, SHARED, copy_modules
from regard.check.target.numpy_by_torch import kept_objects
from regard.errors import InputError

__all__ = [
    "are_written",
    "began_as_zeros",
    "began_in_half",
    "copied",
    "drawn_like",
    "embeds",
    "first_numbers",
    "in_float64",
    "in_mode",
    "is_norm",
    "keeps_a_table",
    "kept_tensors",
    "modules_in",
    "numbers_of",
    "prepare",
    "redraw",
    "repeats_as_often",
    "require_cpu",
    "width_of_scale",
]

WITHOUT_COPIES = (staticmethod, classmethod, types.ModuleType, types.GeneratorType, type(threading.Lock()))
"""Kinds of attributes that `copy.deepcopy` refuses: a copy shares them."""
ONES = ("norm", "ln", "scale", "temp", "gamma")
"""In the names of parameters that multiply: redrawn around one, others around zero."""
ENOUGH_TO_TELL = 8
"""Numbers of a parameter: fewer may all be positive by chance."""
_ZEROS = "_regard_began_as_zeros"
"""Where a prepared module keeps the names of its parameters that were zeros: copies have it as well."""
_FIRST = "_regard_first_numbers"
"""Where it keeps what its parameters began with, if some of its units began alike."""
_HALF = "_regard_began_in_half"
"""Where it keeps whether a parameter was of float16."""
SPREAD = 1.2
"""Of the scores, about: large enough that the weights of attention differ, small enough that none is zero."""


def drawn_like(tensor: Tensor, seed: int) -> Tensor:
    """Normal numbers in float64, as many as a tensor has; the same for the same seed."""
    return torch.randn(tensor.shape, generator=torch.Generator().manual_seed(seed), dtype=torch.float64)


def require_cpu(module: nn.Module) -> None:
    """Refuse a module whose parameters are elsewhere.

    Raises:
        InputError: one of them is not on the CPU.
    """
    for name, tensor in (*module.named_parameters(), *module.named_buffers()):
        if not nn.parameter.is_lazy(tensor) and tensor.device.type != "cpu":
            raise InputError(
                f"{type(module).__name__} has its {name} on {tensor.device}: give check a module on the CPU"
                + ("" if tensor.is_meta else ", such as module.cpu()")
            )


def prepare(target: Any, seed: int) -> None:
    """Bring the modules of a target into float64 and evaluation mode, and redraw their parameters.

    Args:
        target: a module, a function, or an object that holds modules.
        seed: of the parameters.

    Raises:
        InputError: a parameter is not on the CPU.
    """
    for module in modules_in(target):
        require_cpu(module)
        zeros = (name for name, each in module.named_parameters() if _is_zero(each))
        module.__dict__.setdefault(_ZEROS, frozenset(zeros))
        if _FIRST not in vars(module):
            module.__dict__[_FIRST] = FirstNumbers(module)
        module.__dict__.setdefault(_HALF, any(each.dtype == torch.float16 for each in module.parameters()))
        in_float64(module).eval()
        _keep_statistics(module)
        redraw(module, seed)
        for each in module.modules():
            _widen_attributes(each)
    if not isinstance(target, nn.Module) and hasattr(target, "__dict__") and not isinstance(target, type):
        _widen_attributes(target)
    for each in kept_objects(getattr(target, "__self__", target)):
        if not isinstance(each, nn.Module | dict | list) and vars(each).get("training") is True:
            each.training = False  # layers that are written without PyTorch drop numbers while they are trained


def began_as_zeros(module: Any) -> frozenset[str]:
    """The paths of the parameters that were all zeros before they were redrawn; none of what is no module."""
    found: frozenset[str] = getattr(module, "__dict__", {}).get(_ZEROS, frozenset())
    return found


def first_numbers(module: Any) -> FirstNumbers | None:
    """What the parameters of a prepared module began with; None of what is no module."""
    return getattr(module, "__dict__", {}).get(_FIRST)


def began_in_half(module: Any) -> bool:
    """Whether a parameter was of float16 before all were widened; not so of what is no module."""
    return bool(getattr(module, "__dict__", {}).get(_HALF, False))


def _is_zero(parameter: nn.Parameter) -> bool:
    return not nn.parameter.is_lazy(parameter) and parameter.numel() > 0 and not bool(parameter.any())


def in_float64(module: nn.Module) -> nn.Module:
    """The module, its parameters and buffers in float64.

    As `module.double()`, also where a part of it has a method of its own by the name of `_apply`, which PyTorch's
    `double`, `to` and `cuda` call.
    """
    try:
        return module.double()
    except TypeError:  # how the call of such a method ends
        pass
    for part in module.modules():
        for parameter in part.parameters(recurse=False):
            if parameter.is_floating_point():
                parameter.data = parameter.data.double()
        for name, buffer in part.named_buffers(recurse=False):
            if buffer.is_floating_point():
                setattr(part, name, buffer.double())
    return module


def in_mode(module: nn.Module, *, training: bool) -> nn.Module:
    """The module in training or evaluation mode: its own `train` may return nothing, and so does `eval()` then."""
    module.train(training)
    return module


def redraw(module: nn.Module, seed: int) -> None:
    """New random parameters, so that each has an effect: also those that begin as zeros or ones.

    What never learns, beside parameters that do or as a single number, is what its constructor computed, as a scale, a
    table of sinusoids or the features of a kernel: it stays, but for zeros. So do the zeros of an embedding's padding.
    What began positive stays positive.
    """
    generator = torch.Generator().manual_seed(seed)
    learns = any(each.requires_grad for each in module.parameters())
    with torch.no_grad():
        for name, parameter in module.named_parameters():
            if not parameter.is_floating_point() or nn.parameter.is_lazy(parameter):
                continue
            is_fixed = not parameter.requires_grad and (learns or parameter.ndim == 0)
            if is_fixed and bool((parameter != 0).any()):
                continue
            drawn = torch.randn(parameter.shape, generator=generator, dtype=torch.float64)
            owner = module.get_submodule(name.rpartition(".")[0])
            if parameter.ndim >= 2:
                is_kernel = isinstance(owner, nn.modules.conv._ConvNd)
                terms = parameter[0].numel() if is_kernel and len(parameter) else parameter.shape[-1]
                drawn *= SPREAD * max(1, terms) ** -0.5
            else:
                kind = type(owner).__name__.lower()
                multiplies = any(word in name for word in ONES) or ("norm" in kind and name.endswith("weight"))
                drawn = drawn * 0.3 + (1.0 if multiplies else 0.0)
            if parameter.numel() >= ENOUGH_TO_TELL and bool((parameter > 0).all()):
                drawn = drawn.abs()  # as deviations, which a call may refuse with another sign
            padding = owner.padding_idx if isinstance(owner, nn.Embedding) else None
            if padding is not None and not bool(parameter[padding].any()):
                drawn[padding] = 0.0
            parameter.copy_(drawn)


def modules_in(target: Any) -> list[nn.Module]:
    """The modules of a target: itself, or the attributes of an object, or of the object that a method belongs to."""
    if isinstance(target, nn.Module):
        return [target]
    owner = target.__self__ if isinstance(target, types.MethodType) else target
    if isinstance(owner, nn.Module):
        return [owner]
    values = getattr(owner, "__dict__", {}).values() if not isinstance(owner, types.FunctionType | type) else ()
    return [value for value in values if isinstance(value, nn.Module)]


def embeds(target: Any) -> bool:
    """Whether it has a table of vectors that token ids, or positions, are looked up in."""
    return any(isinstance(each, nn.Embedding) for module in modules_in(target) for each in module.modules())


def numbers_of(call: Any) -> dict[str, int]:
    """The numbers that a module holds, and those of its config: they are its sizes."""
    found: dict[str, int] = {}
    for module in modules_in(call):
        for owner in (module, getattr(module, "config", None)):
            numbers = getattr(owner, "__dict__", {}).items()
            found.update({name: n for name, n in numbers if isinstance(n, int) and name not in found})
    return found


def width_of_scale(call: Any, args: Mapping[str, Any], said: Sequence[str]) -> int | None:
    """The width of a head, where a module without parameters keeps its root, or one over that, as a scale.

    Or the width itself, whose root its code takes.

    Args:
        call: the module, or a method of it.
        args: of its constructor, which was told the width.
        said: what was guessed for it, as "d_k=8".
    """
    modules = modules_in(call)
    if any(True for module in modules for _ in module.parameters()):
        return None
    kept = [value for module in modules for value in vars(module).values() if isinstance(value, float)]
    tensors = [each for module in modules for each in (*module.buffers(), *vars(module).values())]
    kept += [float(each) for each in tensors if isinstance(each, Tensor) and each.numel() == 1]
    named = [(source_of(module), name, value) for module in modules for name, value in vars(module).items()]
    told = [str(value) for value in args.values()] + [each.rpartition("=")[2] for each in said]
    for number in (int(each) for each in told if each.isdecimal() and int(each) > 1):
        if any(math.isclose(scale, number**power, rel_tol=1e-5) for scale in kept for power in (0.5, -0.5)):
            return number
        if any(value == number and is_rooted(source, f"self.{name}") for source, name, value in named):
            return number
    return None


def copied(target: Any) -> Any:
    """A deep copy; what a call left behind in it has no history, and configs are shared: they take long to copy."""
    known: dict[int, Any] = {}
    closures = ClosureCopies(known)
    several = [each for module in modules_in(target) for each in module.modules()]
    for module in several:
        for value in vars(module).values():
            if type(value) not in SHARED and not (type(value) in DICTS and not value):
                _remember(value, known, closures)
    copy_modules(several, known)
    other = copy.deepcopy(target, known)
    closures.fill()
    return other


def is_norm(module: nn.Module) -> bool:
    """Whether it has nothing but vectors to learn, as norms have."""
    return {each.ndim for each in module.parameters()} == {1} and not any(True for _ in module.children())


def kept_tensors(module: nn.Module) -> list[tuple[Tensor, Tensor]]:
    """The float tensors that a module keeps and does not learn, caches of keys and values among them; and copies."""
    found = [each for _, each in module.named_buffers()]
    for part in module.modules():
        found += [each for each in vars(part).values() if type(each) is Tensor]
    return [(each, each.detach().clone()) for each in found if each.is_floating_point() and each.ndim > 1]


def keeps_a_table(call: Any, tokens: int) -> bool:
    """Whether a module in what is called keeps a tensor with as many rows or columns; one of its file may be any."""
    for module in (each for root in modules_in(call) for each in root.modules()):
        kept = [*module.parameters(recurse=False), *module.buffers(recurse=False), *vars(module).values()]
        if any(isinstance(each, Tensor) and tokens in each.shape for each in kept):
            return True
    return False


def repeats_as_often(call: Any, tokens: int) -> bool:
    """Whether the code of a module repeats or expands something to as many as a number that the module keeps."""
    for module in (each for root in modules_in(call) for each in root.modules()):
        names = [name for name, value in vars(module).items() if type(value) is int and value == tokens]
        several = "|".join(map(re.escape, names))
        if names and re.search(rf"\.(?:repeat|expand)\([^()]*\bself\.(?:{several})\b", source_of(module)):
            return True
    return False


def are_written(kept: list[tuple[Tensor, Tensor]]) -> bool:
    """Whether a call has written into what a module keeps."""
    return any(not torch.equal(tensor, before) for tensor, before in kept)


def _remember(value: Any, known: dict[int, Any], closures: ClosureCopies) -> None:
    """What stands for a value in a copy, where a copy cannot or need not be made."""
    if isinstance(value, Tensor) and not value.is_leaf:
        known[id(value)] = value.detach().clone()
    elif type(value).__name__.endswith(("Config", "Args")) or isinstance(value, WITHOUT_COPIES):
        known[id(value)] = value
    elif type(value) is list and set(map(type, value)) <= {int, float, bool, str}:
        known[id(value)] = value.copy()  # it may be long, as the distances of all tokens
    elif isinstance(value, types.FunctionType):
        closures.remember(value)
    elif isinstance(value, list | tuple | dict):
        for each in value.values() if isinstance(value, dict) else value:
            _remember(each, known, closures)


def _keep_statistics(module: nn.Module) -> None:
    """Fixed statistics for batch norms that were made to keep none: they would mix samples in evaluation mode too.

    That a norm does so is its option, `track_running_stats`; whether anything else mixes samples is seen without it.
    """
    for norm in module.modules():
        if isinstance(norm, nn.modules.batchnorm._BatchNorm) and norm.running_mean is None and norm.num_features:
            norm.running_mean = torch.zeros(norm.num_features, dtype=torch.float64)
            norm.running_var = torch.ones(norm.num_features, dtype=torch.float64)


def _widen_attributes(owner: Any) -> None:
    """Float tensors that are plain attributes, which the conversion of a module does not reach."""
    for name, value in list(vars(owner).items()):
        if type(value) is Tensor and value.dtype in (torch.float32, torch.float16, torch.bfloat16):
            setattr(owner, name, value.double())
