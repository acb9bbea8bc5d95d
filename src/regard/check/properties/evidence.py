"""The evidence of an attention: its table in three runs, and what its call says of it."""

from __future__ import annotations

import inspect
import re
from collections import Counter
from collections.abc import Callable, Sequence
from dataclasses import replace
from typing import Any

import torch
from torch import Tensor, nn

from regard.check.properties.code import code_of, numbers_in
from regard.check.properties.documentation import (
    comments_of,
    documentation_of,
    promises_causal_attention,
    promises_causality,
)
from regard.check.properties.finding import Evidence
from regard.check.roles.influence import Influence
from regard.check.roles.instances import AttentionInstance
from regard.check.roles.table import AttentionTable, table_of
from regard.check.target import Invocation
from regard.check.target.errors import Failed
from regard.check.target.preparation import copied, modules_in
from regard.check.trace.operation import Trace

__all__ = [
    "HIDDEN",
    "HIDING",
    "SET_CAUSAL",
    "evidence_of",
    "evidence_of_tables",
    "may_be_causal",
    "with_equal_tokens",
    "with_fresh_tokens",
]

FRESH_SEED = 77
HIDING = re.compile("causal|decoder|regressive|direction|mask", re.I)
"""Names of settings that say whether later keys are seen."""
SET_CAUSAL = re.compile(r"_?(?:is_|use_)?(?:auto_?regressive|causal(?:_mask)?)")
"""Names of settings that are True where no token sees a later one."""
HIDDEN = -50.0
"""A number of a mask from here down hides a key; Swin writes -100."""


def evidence_of(
    instance: AttentionInstance,
    influence: Influence,
    streams: Sequence[str],
    fresh: Trace,
    equal: Trace | None,
    invocation: Invocation,
) -> Evidence:
    """The evidence of one attention.

    Args:
        instance: the attention.
        influence: of its tokens; of its projections' rows inside a model.
        streams: the names of what these are of.
        fresh: a run with all tokens drawn anew.
        equal: one with the same token everywhere, where that can be made.
        invocation: the call.
    """
    base = table_of(instance, influence, streams)
    made = evidence_of_tables(invocation)(base, base.of_run(fresh))
    made = replace(made, num_tokens=_num_tokens(base, influence), num_keys=_num_keys(base, influence, invocation))
    is_same = equal is not None and not equal.error and equal.same_operations(influence.base)
    return replace(made, equal=base.of_run(equal)) if is_same and equal is not None else made


def evidence_of_tables(invocation: Invocation) -> Callable[[AttentionTable, AttentionTable], Evidence]:
    """What makes evidence of the tables of a call and of the same with all tokens drawn anew."""
    code = code_of(invocation.target)
    return lambda base, fresh: Evidence(
        base,
        fresh,
        None,
        any(
            _hides(value)
            for name, value in invocation.arguments.items()
            if name not in _streams(invocation) and not _is_one_sequence(invocation, name)
        ),
        {each.role: _may_be_none(invocation, each.argument) for each in invocation.streams},
        _says_causal(invocation.target),
        _promises_causal(invocation),
        {each.argument: each.role for each in invocation.streams},
        hides_on_demand=_hides_on_demand(invocation),
        names_causal=_names_causal(invocation),
        documents_causal=promises_causal_attention(documentation_of(invocation.target))
        and not may_be_causal(invocation),
        documents_causal_beside_memory=promises_causal_attention(
            documentation_of(invocation.target), beside_memory=True
        )
        and not may_be_causal(invocation),
        set_causal=_set_causal(invocation, base.instance.module),
        comments_causal=any(map(promises_causality, comments_of(invocation.target))) and not may_be_causal(invocation),
        code=code,
        numbers=numbers_in(code, invocation),
    )


def _is_one_sequence(invocation: Invocation, name: str) -> bool:
    """Whether an argument says where the sequences of a row begin, and that there is one: it hides nothing.

    By two boundaries, or by one length.
    """
    value = invocation.arguments[name]
    return name in invocation.boundaries and isinstance(value, Tensor) and value.numel() in (1, 2)


def _num_tokens(base: AttentionTable, influence: Influence) -> int:
    """How many tokens queries and keys are of; 0 where these are not as many."""
    counts = Counter(source.stream for source, _ in influence.runs if source.kind == "token")
    read = {*base.query.stream.tolist(), *base.key.stream.tolist()}
    several = {counts[base.streams[each]] for each in read if each >= 0}
    return several.pop() if len(several) == 1 else 0


def _num_keys(base: AttentionTable, influence: Influence, invocation: Invocation) -> int:
    """How many tokens the argument for the keys has; 0 where they are made of another one, or of several.

    Or where they are not as many as the queries: code that is meant for as many may cut them to these.
    """
    counts = Counter(source.stream for source, _ in influence.runs if source.kind == "token")
    names = {base.streams[each] for each in base.key.stream.tolist() if each >= 0}
    if len(names) != 1 or not any(each.role == "k" and each.argument in names for each in invocation.streams):
        return 0
    count = counts[names.pop()]
    return count if count == int(base.query.token.max()) + 1 else 0


def _says_causal(target: Any) -> bool:
    kind = type(target) if isinstance(target, nn.Module) else target
    return (
        re.search(
            "(?<!non)(?<!non[-_ ])causal|autoregress", f"{getattr(kind, '__name__', '')} {inspect.getdoc(kind)}", re.I
        )
        is not None
    )


def _promises_causal(invocation: Invocation) -> bool:
    """Whether it is causal by its documentation, and has no argument or setting that says whether it is."""
    return promises_causality(documentation_of(invocation.target)) and not may_be_causal(invocation)


def _names_causal(invocation: Invocation) -> bool:
    """The same of its name."""
    target = invocation.target
    kind = type(target) if isinstance(target, nn.Module) else target
    words = re.sub(r"(?<=[a-z0-9])(?=[A-Z])|_", " ", getattr(kind, "__name__", ""))
    return promises_causality(words) and not may_be_causal(invocation)


def _set_causal(invocation: Invocation, path: str) -> str:
    """The setting of an attention's module that says that it is causal, where no argument of the call hides keys.

    Where a mask may be handed over, and is not, one that the constructor of what is called takes: any other may say
    which mask its caller makes. So may one that changes something else, as which distances have vectors.
    """
    target = invocation.target
    if not isinstance(target, nn.Module) or invocation.causal_flags or invocation.lengths:
        return ""
    settings = {name for name, value in vars(target.get_submodule(path)).items() if value is True}
    if invocation.masks:
        is_open = path == "" and not any(each in invocation.arguments for each in invocation.masks)
        settings &= set(inspect.signature(type(target)).parameters) if is_open else set()
    name = next((each for each in sorted(settings) if SET_CAUSAL.fullmatch(each)), "")
    return f"{name}=True" if name and not (invocation.masks and _has_effect(invocation, name)) else ""


def _has_effect(invocation: Invocation, setting: str) -> bool:
    """Whether a module returns something else, or raises, where a setting is off in all its parts."""
    live = copied(invocation.target)
    for each in live.modules():
        if vars(each).get(setting) is True:
            setattr(each, setting, False)
    try:
        with_it, without = (invocation.outputs(run) for run in (invocation.run(), invocation.run(target=live)))
    except Failed:
        return True
    several = zip(with_it, without, strict=False)
    return len(with_it) != len(without) or any(not torch.equal(one, other) for one, other in several)


def may_be_causal(invocation: Invocation) -> bool:
    """Whether it has a mask, or an argument or setting that says whether it is causal."""
    target = invocation.target
    if invocation.masks:
        return True
    call = target.forward if isinstance(target, nn.Module) else target
    names = set(vars(target)) if isinstance(target, nn.Module) else set()
    try:
        names |= set(inspect.signature(call).parameters) | set(inspect.signature(type(target).__init__).parameters)
    except (ValueError, TypeError):
        return True
    return any(re.search("causal", name, re.I) for name in names)


def _hides_on_demand(invocation: Invocation) -> bool:
    target = invocation.target
    tensors = {name for name, value in invocation.arguments.items() if isinstance(value, Tensor)}
    others = tensors - _streams(invocation) - set(invocation.boundaries)  # which part sequences, and order no tokens
    if invocation.masks or invocation.causal_flags or invocation.lengths or others:
        return True
    names = {name for module in modules_in(target) for each in module.modules() for name in vars(each)}
    try:
        for call in (target.forward, type(target).__init__) if isinstance(target, nn.Module) else (target,):
            names |= set(inspect.signature(call).parameters)
    except (ValueError, TypeError):
        return True
    return any(HIDING.search(each) for each in names)


def _may_be_none(invocation: Invocation, name: str) -> bool:
    target = invocation.target
    call = target.forward if isinstance(target, nn.Module) else target
    try:
        parameter = inspect.signature(call).parameters[name]
    except (ValueError, TypeError, KeyError):
        return False
    return parameter.default is None or re.search("Optional|None", str(parameter.annotation)) is not None


def _hides(mask: Any) -> bool:
    """Whether it is a mask, or lengths, that are not the same for all."""
    if not isinstance(mask, Tensor) or mask.numel() < 2 or mask.is_complex():
        return False
    if not bool((mask != mask.flatten()[0]).any()):
        return False
    return not mask.is_floating_point() or not bool(((mask > HIDDEN) & (mask != 0) & (mask != 1)).any())


def _streams(invocation: Invocation) -> set[str]:
    return {each.argument for each in invocation.streams}


def with_fresh_tokens(invocation: Invocation) -> dict[str, Any]:
    """All tokens drawn anew."""
    arguments = dict(invocation.arguments)
    generator = torch.Generator().manual_seed(FRESH_SEED)
    for stream in invocation.streams:
        tensor = arguments[stream.argument]
        if tensor.is_floating_point():
            arguments[stream.argument] = torch.randn(tensor.shape, generator=generator, dtype=tensor.dtype)
        else:
            arguments[stream.argument] = invocation.other_ids(stream.argument, generator)
    return arguments


def with_equal_tokens(invocation: Invocation) -> dict[str, Any]:
    """The first token in the place of all tokens of its sample."""
    arguments = dict(invocation.arguments)
    for stream in invocation.streams:
        tensor = arguments[stream.argument]
        for axis in stream.token_axes:
            tensor = tensor.narrow(axis, 0, 1).expand(tensor.shape)
        arguments[stream.argument] = tensor.clone()
    return arguments
