"""Everything that a watch or an intervention could leave behind: in a model, in PyTorch, in regard, in memory."""

from __future__ import annotations

import copy
import gc
import threading
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn import functional
from torch.utils._python_dispatch import _get_current_dispatch_mode_stack

from regard.attention.hooks import hook_state
from regard.lens.interventions import editor

PATCHABLE = functional, Tensor, torch._C._nn, nn.Module, nn.MultiheadAttention, nn.TransformerEncoderLayer
GLOBAL_HOOKS = [name for name in vars(nn.modules.module) if name.startswith("_global_") and name.endswith("_hooks")]


def state_of(model: nn.Module) -> dict[str, Any]:
    """What must be the same before and after."""
    held: dict[str, Any] = {
        "functions": [dict(vars(place)) for place in PATCHABLE] + [torch.softmax, torch.matmul, torch.einsum],
        "modes": (torch._C._len_torch_function_stack(), len(_get_current_dispatch_mode_stack())),
        "global hooks": [len(getattr(nn.modules.module, name)) for name in GLOBAL_HOOKS],
        "threads": threading.active_count(),
        "grad": (torch.is_grad_enabled(), torch.is_inference_mode_enabled()),
        "fast path": torch.backends.mha.get_fastpath_enabled(),
        "settings": (torch.get_num_threads(), torch.are_deterministic_algorithms_enabled(), torch.get_default_dtype()),
        "saved hooks": torch._C._autograd._top_saved_tensors_default_hooks(True),
        "random": torch.get_rng_state().tolist(),
        "regard": (copy.copy(vars(hook_state)), editor._active.editors),
    }
    for path, module in model.named_modules():
        attributes = {name: (id(value), _content(value)) for name, value in vars(module).items()}
        held[path] = type(module), module.training, attributes
    for path, p in model.named_parameters():
        held[f"{path} as tensor"] = (p.data_ptr(), p._version, p.requires_grad, id(p.grad), p._backward_hooks)
    return held


def _content(value: Any) -> Any:
    """Names and objects in a dictionary of a module, such as its hooks."""
    return {key: id(item) for key, item in value.items()} if isinstance(value, dict) else None


def live_tensors() -> list[torch.Size]:
    """The shapes of all tensors that Python holds."""
    gc.collect()
    return [t.shape for t in gc.get_objects() if issubclass(type(t), Tensor)]
