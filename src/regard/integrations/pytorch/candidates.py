"""Which modules of a model are replaced, and why others are not."""

from __future__ import annotations

from collections.abc import Collection
from dataclasses import dataclass

import torch
from torch import Tensor, nn
from torch.nn.utils import parametrize

from regard.integrations.pytorch.modules import Replacement

SCRIPTED = "MultiheadAttention", "TransformerEncoderLayer"
"""PyTorch's names of what TorchScript may have compiled."""


@dataclass(frozen=True)
class Candidate:
    """A module that can be replaced."""

    paths: tuple[str, ...]
    """Where it stands in the model; a shared module has several paths."""
    module: nn.Module


@dataclass(frozen=True)
class Candidates:
    """What was found in a model."""

    modules: list[Candidate]
    notes: list[str]
    """What a user might expect to be replaced, and is left on purpose."""


def find_candidates(model: nn.Module, skip: Collection[str]) -> Candidates:
    """The modules to replace, those outside before those inside.

    Args:
        model: the model.
        skip: paths to leave alone, with all below them.

    Raises:
        KeyError: a path to skip that is no module of the model.
        ValueError: a module cannot be replaced; the message names each, and why.
    """
    every_path = list(model.named_modules(remove_duplicate=False))
    for path in skip:
        if path not in dict(every_path):
            raise KeyError(f"skip={path!r} is no module of {type(model).__name__}")
    paths: dict[int, list[str]] = {}
    for path, module in every_path:
        paths.setdefault(id(module), []).append(path)
    found, refused, notes = [], [], []
    for path, module in model.named_modules():
        own_paths = paths[id(module)]
        if any(_is_below(own, skipped) for own in own_paths for skipped in skip):
            continue
        if _is_scripted(module):
            refused.append(f"{_name(path, module)} is compiled by TorchScript: replace the model before torch.jit")
        elif isinstance(module, nn.MultiheadAttention) and not isinstance(module, Replacement):
            reason = _why_not_attention(module)
            if reason is None:
                found.append(Candidate(tuple(own_paths), module))
            else:
                refused.append(f"{_name(path, module)} {reason}")
        elif isinstance(module, nn.TransformerEncoderLayer) and not isinstance(module, Replacement):
            reason = _why_not_layer(module)
            if reason is None:
                found.append(Candidate(tuple(own_paths), module))
            else:
                notes.append(f"{_name(path, module)} {reason}, so the layer is left; its attention is replaced")
    refused += _compiled(model, found)
    if refused:
        raise ValueError(
            f"cannot replace {'; '.join(refused)}. Nothing was replaced; skip=[PATH, ...] leaves modules as they are"
        )
    attentions = {id(c.module) for c in found}
    found = [c for c in found if _has_own_attention(c.module, attentions)]
    return Candidates(found, notes)


def _name(path: str, module: nn.Module) -> str:
    return f"{path or 'the model itself'} ({type(module).__name__})"


def _is_below(path: str, skipped: str) -> bool:
    return path == skipped or not skipped or path.startswith(f"{skipped}.")


def _is_scripted(module: nn.Module) -> bool:
    return isinstance(module, torch.jit.ScriptModule) and getattr(module, "original_name", None) in SCRIPTED


def _why_not_attention(module: nn.MultiheadAttention) -> str | None:
    """Why an attention cannot be replaced."""
    if parametrize.is_parametrized(module):
        return (
            "is parametrized (torch.nn.utils.parametrize), which gave it a class of its own: parametrize it afterwards"
        )
    if type(module).forward is not nn.MultiheadAttention.forward:
        return "has a forward of its own class"
    if "forward" in vars(module):
        return "has a forward that was set on this object, which would still run"
    projection = module.in_proj_weight if module.q_proj_weight is None else module.q_proj_weight
    if not (isinstance(projection, Tensor) and isinstance(getattr(module.out_proj, "weight", None), Tensor)):
        return "has a projection whose weight is no tensor (a quantized module?)"
    if any(p.is_meta for p in module.parameters()):
        return "is on the meta device, where weights have no numbers: nothing could be proved"
    return None


def _why_not_layer(module: nn.TransformerEncoderLayer) -> str | None:
    """Why an encoder layer keeps its class."""
    original = nn.TransformerEncoderLayer
    own = [
        name
        for name in ("forward", "_sa_block", "_ff_block")
        if getattr(type(module), name) is not vars(original)[name]
    ]
    if own:
        return f"has {' and '.join(own)} of its own class"
    return "has a forward that was set on this object" if "forward" in vars(module) else None


def _has_own_attention(module: nn.Module, attentions: Collection[int]) -> bool:
    """Whether a candidate is an attention, or a layer whose attention is replaced."""
    if not isinstance(module, nn.TransformerEncoderLayer):
        return True
    attention = module.self_attn
    return id(attention) in attentions or isinstance(attention, Replacement)


def _compiled(model: nn.Module, found: list[Candidate]) -> list[str]:
    """The compiled modules that hold a candidate, each as a part of the message."""
    inside = {id(c.module) for c in found}
    return [
        f"{_name(path, module)} is compiled: give the model as it was before torch.compile (its "
        "_orig_mod), and compile it afterwards"
        for path, module in model.named_modules()
        if (isinstance(module, torch._dynamo.eval_frame.OptimizedModule) or module._compiled_call_impl is not None)
        and any(id(part) in inside for part in module.modules())
    ]
