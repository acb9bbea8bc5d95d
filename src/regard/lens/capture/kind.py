"""The kind of an attention: "self" or "cross", by where its queries and keys come from."""

from __future__ import annotations

import inspect
import re
from collections.abc import Iterator, Mapping
from functools import lru_cache
from inspect import Parameter
from types import FrameType
from typing import Any

import torch
from torch import Tensor, nn

from regard.lens.capture.call import CapturedCall, memory_address

MAX_SIGNATURES = 256
"""How many signatures of functions are remembered."""

CALL_CODE = nn.Module._call_impl.__code__
"""The code that runs while a module is called."""

CROSS_ATTENTION_PATH = re.compile(r"cross|enc_?dec|encoder_attn|context_att|\bmultihead_attn$", re.IGNORECASE)
"""What models call a cross-attention."""

KEY_SOURCES = re.compile(
    r"(x_)?(k|kv|keys?|key_value)(_states|_inputs?|_x)?|context|ctx|memory|source|y|inputs(_kv)?|cond(ition)?"
    r"|enc|(enc|encoder|cross|image|vision|text)_(hidden|output|state|feature|embed).*|cross_states",
    re.IGNORECASE,
)
"""What modules call the argument from which keys are computed."""

QUERY_SOURCES = re.compile(r"x|q|query|queries|hidden_states|latents|tgt|target", re.IGNORECASE)
"""What modules call the argument from which queries are computed, where it stands behind that of the keys."""


def attention_kind(path: str, module: nn.Module, call: CapturedCall, frame: FrameType | None) -> str:
    """Whether an attention is "self" or "cross".

    What the module declares comes first, then the arguments that it was called with; names and sizes only where these
    say nothing.

    Args:
        path: of the module.
        module: the module that computes it.
        call: its first call.
        frame: the frame of the code that computed it.
    """
    declared = getattr(module, "is_cross_attention", None)
    if isinstance(declared, bool):
        return "cross" if declared else "self"
    if call.cross is not None:
        return "cross" if call.cross else "self"
    # A module that gets queries and keys already projected says nothing, and the one that called it may.
    calls = (arguments for _, arguments in enclosing_calls(frame, module) if not _are_projected(arguments, call))
    if (cross := _reads_another_sequence(next(calls, {}), call)) is not None:
        return "cross" if cross else "self"
    queries, keys = call.shape[2:]
    # Fewer queries than keys, or a mask, may come from a cache.
    other_sequence = queries > keys or (1 < queries < keys and not call.is_causal and not call.has_mask)
    by_shape = other_sequence and "self" not in path.lower()
    return "cross" if CROSS_ATTENTION_PATH.search(path) or by_shape else "self"


def enclosing_calls(frame: FrameType | None, module: nn.Module) -> Iterator[tuple[nn.Module, Mapping[str, Any]]]:
    """The call of a module and the calls around it: each module that is called, and its arguments by name."""
    inside = False
    while frame is not None:
        if frame.f_code is CALL_CODE:
            called = frame.f_locals["self"]
            inside = inside or called is module
            if inside:
                yield called, _by_name(called, frame.f_locals["args"], frame.f_locals["kwargs"])
        frame = frame.f_back


_signature = lru_cache(maxsize=MAX_SIGNATURES)(inspect.signature)
"""The signature of a function. Most of the time goes into it, and the layers of a model share theirs."""

BINDABLE_KINDS = (Parameter.POSITIONAL_OR_KEYWORD, Parameter.KEYWORD_ONLY, Parameter.VAR_KEYWORD)
"""The kinds of parameters that `_bind` knows, those of nearly every ``forward``."""


@lru_cache(maxsize=MAX_SIGNATURES)
def _parameters(function: Any) -> tuple[list[str], dict[str, Any], str] | None:
    """The positional names, every name with its default, and the name of ``**kwargs``; None for other kinds."""
    parameters = _signature(function).parameters.values()
    if any(p.kind not in BINDABLE_KINDS for p in parameters):
        return None
    positional = [p.name for p in parameters if p.kind is Parameter.POSITIONAL_OR_KEYWORD]
    more = next((p.name for p in parameters if p.kind is Parameter.VAR_KEYWORD), "")
    return positional, {p.name: p.default for p in parameters if p.name != more}, more


def _by_name(module: nn.Module, args: tuple[Any, ...], kwargs: Mapping[str, Any]) -> Mapping[str, Any]:
    function = getattr(module.forward, "__func__", None)
    try:
        if function is None:  # somebody gave this module a function of its own
            bound = inspect.signature(module.forward).bind(*args, **kwargs)
        elif (parameters := _parameters(function)) is not None:
            return _bind(*parameters, (module, *args), kwargs)
        else:
            bound = _signature(function).bind(module, *args, **kwargs)
    except (TypeError, ValueError):  # hooks changed the arguments
        return {}
    bound.apply_defaults()
    return {**bound.arguments, **kwargs}


def _bind(
    positional: list[str], defaults: dict[str, Any], more: str, args: tuple[Any, ...], kwargs: Mapping[str, Any]
) -> dict[str, Any]:
    """What `inspect.Signature.bind` and its defaults give, in a tenth of the time; it runs for every enclosing call.

    Raises:
        TypeError: the arguments do not fit.
    """
    given = dict(zip(positional, args, strict=False))
    arguments = {**defaults, **given}
    unknown = {name: value for name, value in kwargs.items() if name not in defaults}
    if len(args) > len(positional) or not given.keys().isdisjoint(kwargs) or (unknown and not more):
        raise TypeError("arguments that do not fit the signature")
    if more:
        arguments[more] = unknown
    arguments |= kwargs
    if any(value is Parameter.empty for value in arguments.values()):
        raise TypeError("an argument is missing")
    return arguments


def _are_projected(arguments: Mapping[str, Any], call: CapturedCall) -> bool:
    """Whether a module got the queries and keys of the attention itself, and not what they are computed from."""
    own = {memory_address(t) for t in (call.q, call.k, call.v)} - {0}
    return any(
        isinstance(t, Tensor) and (memory_address(t) in own or (t.ndim > 3 and KEY_SOURCES.fullmatch(name)))
        for name, t in arguments.items()
    )


def _reads_another_sequence(arguments: Mapping[str, Any], call: CapturedCall) -> bool | None:
    """Whether a module got a sequence for its keys that is not that of its queries; None if no argument tells."""
    sequences = {name: t for name, t in arguments.items() if isinstance(t, Tensor) and t.is_floating_point()}
    names = [name for name in sequences if 1 < sequences[name].ndim < 4]
    key_name = next((name for name in names if KEY_SOURCES.fullmatch(name)), "")
    before = names[: names.index(key_name)] if key_name else []
    query_name = next((name for name in (*before, *names) if name in before or QUERY_SOURCES.fullmatch(name)), "")
    if not (key_name and query_name) or call.shape[3] not in sequences[key_name].shape[:-1]:
        return None
    q, k = sequences[query_name], sequences[key_name]
    return not (q is k or (q.shape == k.shape and q.device == k.device and torch.equal(q, k)))
