"""Parameters: each has an effect on the output, and learns by its gradient."""

from __future__ import annotations

import inspect
import re
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import replace
from functools import partial

import torch
from torch import Tensor, nn

from regard.check.names import role
from regard.check.properties.attributes import is_one_of_steps, is_read_by_settings
from regard.check.properties.caches.promised_memory import is_made_for_generation
from regard.check.properties.finding import Finding
from regard.check.properties.modules.argument_matrices import argument_matrix_findings
from regard.check.properties.modules.backward import overwritten, training_findings
from regard.check.properties.modules.begun_alike import begun_alike_findings
from regard.check.properties.modules.begun_as_zeros import begun_as_zeros_findings
from regard.check.properties.modules.handed_out import handed_out_by
from regard.check.properties.modules.slopes import (
    computes_with_gradients,
    own_backward_findings,
    slope_findings,
)
from regard.check.properties.modules.unused_parameters import (
    is_applied_by_the_caller,
    unread_table_findings,
    unused_parameter_findings,
)
from regard.check.roles.instances import AttentionInstance
from regard.check.roles.local import projections_of
from regard.check.target import Invocation
from regard.check.target.argument import STREAMS
from regard.check.target.errors import Failed, error_line
from regard.check.target.preparation import are_written, copied, drawn_like, is_norm, kept_tensors
from regard.check.target.signature import readings
from regard.check.target.token_ids import special_ids
from regard.check.trace.operation import Operation, TensorRecord

__all__ = ["cut_off_findings", "parameter_findings"]

NO_GRADIENT_IN_CACHE = "a call writes into tensors that the module keeps, without gradients: it is meant for inference"

MAX_PARAMETERS = 60
"""Of a module whose parameters are tried one after the other."""
MOVED = 1e-9
"""The smallest change of an output that is one."""
ZERO = 1e-13
BIAS = re.compile(r"(?:^|[._])b_|bias")
"""In the path of a parameter that is added: that of the keys is the same for all keys of a query."""
OF_PROJECTIONS = ("q", "k", "v", "qkv", "kv")
"""What a parameter of queries, keys or values is by its name."""
FEWEST_ROWS = 4
"""Outputs of a matrix that are a part of it."""
POSITIONS = re.compile(r"(?:^|[._])(?:w?pos|wpe|position)")
"""In the path of a parameter that holds positions."""


def parameter_findings(invocation: Invocation, instances: Sequence[AttentionInstance]) -> Iterator[Finding]:
    """Parameters without an effect, and parameters that have one and no gradient.

    Keys and values that are returned for another call are no effect.
    """
    target, handed_out = invocation.target, handed_out_by(instances)
    if not isinstance(target, nn.Module):
        yield from argument_matrix_findings(invocation, handed_out)
        yield from slope_findings(invocation)
        yield from own_backward_findings(invocation)
        return
    live = copied(target)
    gradients = dict[str, Tensor | None]()
    found = list(_judged(invocation, instances, live, gradients, handed_out))
    yield from found
    if any(each.kind == "violation" for each in found):
        return
    unlearned = dict(live.named_parameters())
    for name in [each for each, gradient in gradients.items() if gradient is None]:
        if _only_chooses(unlearned[name], instances):
            del gradients[name]
    yield from training_findings(invocation)
    yield from slope_findings(invocation)
    yield from own_backward_findings(invocation)
    yield from unused_parameter_findings(invocation, gradients, [each.module for each in instances])
    yield from unread_table_findings(invocation)
    yield from begun_as_zeros_findings(invocation)
    yield from begun_alike_findings(invocation)


def cut_off_findings(invocation: Invocation) -> Iterator[Finding]:
    """Parameters that have an effect and no gradient, of a call in which no queries meet keys that are made of tokens.

    Args:
        invocation: as of one that asks a learned memory.
    """
    if isinstance(invocation.target, nn.Module):
        found = _judged(invocation, (), copied(invocation.target), {}, frozenset())
        yield from (each for each in found if each.property == "gradient" and each.kind == "violation")


def _judged(
    invocation: Invocation,
    instances: Sequence[AttentionInstance],
    live: nn.Module,
    gradients: dict[str, Tensor | None],
    handed_out: frozenset[int],
) -> Iterator[Finding]:
    """What is found of the parameters of a copy of the target, one after the other; `gradients` is filled."""
    parameters = {
        name: each
        for name, each in live.named_parameters()
        if each.requires_grad and each.ndim > 1 and not BIAS.search(name)
    }
    if not parameters:
        return
    kept, norms = kept_tensors(live), _norms(live)
    counts = _counted(norms)
    try:
        with torch.enable_grad():
            returned = dict(enumerate(invocation.outputs(invocation.run(target=live))))
            outputs = {at: each for at, each in returned.items() if each.requires_grad and at not in handed_out}
        if not outputs:  # it was computed with none of them
            if not are_written(kept) and computes_with_gradients(invocation, handed_out):
                others = {at: each.detach() for at, each in returned.items() if at not in handed_out}
                yield from _cut_off(invocation, instances, live, others)
            gradients |= {name: None for name, each in live.named_parameters() if each.requires_grad}
            return
        if any(bool(each.isnan().any()) for each in outputs.values()):
            return
        before = {at: each.detach().clone() for at, each in outputs.items()}
        total = sum((each * drawn_like(each, seed=3)).sum() for each in outputs.values())
        assert isinstance(total, Tensor)
        weights = {name: next(each.parameters()) for name, each in norms.items()}
        learned = {name: each for name, each in live.named_parameters() if each.requires_grad}
    except (Failed, RuntimeError):
        return
    try:
        found = torch.autograd.grad(total, [*learned.values()], allow_unused=True)
    except Exception as error:  # a backward pass of the code's own may raise anything
        message = f"its backward pass raises {error_line(error)}: no gradient was exercised"
        wrong = None if are_written(kept) or is_made_for_generation(live) else overwritten(error)
        yield wrong or Finding("open", "gradient", "output", message)
        return
    gradients.update(zip(learned, found, strict=True))
    if len(parameters) > MAX_PARAMETERS:
        return
    yield from _in_the_place_of(norms, dict(counts))
    of_tensor = {id(each): name for name, each in learned.items()}
    moving = {name for name, each in weights.items() if _moves(gradients.get(of_tensor.get(id(each), "")))}
    for name, other in _thrown_away(norms, dict(counts), moving):
        if not _has_effect(invocation, live, weights[name], before):
            message = f"{name} has no effect: what it returns is not used, and what {other} returns is"
            yield Finding("violation", "norm-used", "projections", message)
    has_cache = are_written(kept)
    made_with = [one for each in instances for one in projections_of(each)]
    is_of_one_key = _has_one_key(instances)
    used = {tuple(one.shape) for name, one in parameters.items() if _moves(gradients[name])}
    for name, parameter in parameters.items():
        gradient = gradients[name]
        if gradient is not None and _moves(gradient):
            is_part = not isinstance(live.get_submodule(name.rpartition(".")[0]), nn.Embedding)
            if is_of_one_key:
                continue  # whose weight is 1, whatever asks: as where a picture comes to one place
            if is_part and role(name) in OF_PROJECTIONS and parameter.ndim == 2:
                yield from _rows(invocation, live, name, parameter, gradient, before)
            elif is_part and any(_is_matrix_of(parameter, each) for each in made_with):
                yield from _rows(invocation, live, name, parameter, gradient, before, fewest=FEWEST_ROWS)
            elif is_part and any(each.run.additive for each in instances) and _is_half_unread(gradient):
                message = f"half of {name} has no effect: queries and keys are multiplied by the other half"
                yield Finding("violation", "projection-used", "projections", message)
        elif gradient is None and (
            is_applied_by_the_caller(invocation, name)
            or _is_left_by_a_setting(live, name)
            or _is_of_another_step(live, name, gradients)
        ):
            continue
        elif _only_chooses(parameter, instances):
            continue  # tokens, or experts: it learns by a loss of its own
        elif (learns := _rows_that_learn(live, name)) is not None and not _has_effect(
            invocation, live, parameter, before, learns
        ):
            continue  # the call reads the row for padding alone
        elif has_cache and _has_effect(invocation, live, parameter, before):
            yield Finding("note", "no-gradient-in-cache", "output", NO_GRADIENT_IN_CACHE)
        elif _has_effect(invocation, live, parameter, before):
            message = f"{name} changes the output and gets no gradient: it does not learn"
            yield Finding("violation", "gradient", "output", message)
        elif POSITIONS.search(name) and gradient is not None:
            message = f"{name} is computed with and has no effect on the output"
            yield Finding("violation", "positions-without-effect", "positions", message)
        elif _belongs(name, invocation, instances) and (role(name) is not None or tuple(parameter.shape) in used):
            message = f"{name} has no effect: it is constructed and not used"
            yield Finding("violation", "projection-used", "projections", message)
    if has_cache:
        return
    for name, parameter in learned.items():
        is_other = parameter.ndim < 2 or BIAS.search(name) is not None
        is_free = is_other and gradients[name] is None and not _only_chooses(parameter, instances)
        if is_free and _has_effect(invocation, live, parameter, before):
            message = f"{name} changes the output and gets no gradient: what is computed is not computed with itself"
            yield Finding("violation", "gradient", "output", message)


def _cut_off(
    invocation: Invocation, instances: Sequence[AttentionInstance], live: nn.Module, before: Mapping[int, Tensor]
) -> Iterator[Finding]:
    """Parameters with an effect, where none of them has a gradient and the sequences that are read have one."""
    for name, parameter in live.named_parameters():
        if not parameter.requires_grad or is_applied_by_the_caller(invocation, name):
            continue
        if not _only_chooses(parameter, instances) and _has_effect(invocation, live, parameter, before):
            message = f"{name} changes the output and gets no gradient: it does not learn"
            yield Finding("violation", "gradient", "output", message)


def _only_chooses(parameter: Tensor, instances: Sequence[AttentionInstance]) -> bool:
    """Whether a run computes with a parameter, and uses of the result where its largest numbers stand alone."""
    if not instances:
        return False
    trace = instances[0].run.trace
    taken = (record for operation in trace for record in operation.inputs)
    return trace.only_chooses({record.storage for record in taken if _is_among(parameter, [record])})


def _rows_that_learn(live: nn.Module, name: str) -> Tensor | None:
    """1 for each row of a table of vectors but that for padding, which gets no gradient on purpose; None of others."""
    module = live.get_submodule(name.rpartition(".")[0])
    if not isinstance(module, nn.Embedding) or module.padding_idx is None:
        return None
    learns = torch.ones(module.num_embeddings, 1, dtype=torch.float64)
    learns[module.padding_idx] = 0.0
    return learns


def _is_among(parameter: Tensor, several: Sequence[TensorRecord]) -> bool:
    """Whether a parameter, or its transpose, is one of the tensors that a run computes with."""
    stored = (parameter, parameter.transpose(0, -1))
    return any(
        record.learned and record.shape == each.shape and torch.equal(record.data, each)
        for record in several
        for each in stored
    )


def _is_matrix_of(parameter: Tensor, operation: Operation) -> bool:
    """Whether a projection, or a convolution, has an output for each row of a parameter: it is no table of vectors."""
    shape = operation.outputs[0].shape
    return (
        _is_among(parameter, operation.inputs) and len(parameter) == shape[1 if operation.name == "convolution" else -1]
    )


def _norms(live: nn.Module) -> dict[str, nn.Module]:
    """The modules that have nothing but vectors to learn, as norms have."""
    return {name: module for name, module in live.named_modules() if name and is_norm(module)}


def _counted(modules: dict[str, nn.Module]) -> Counter[str]:
    """How often each is called from now on."""
    counts: Counter[str] = Counter()

    def count(name: str, *_: object) -> None:
        counts[name] += 1

    for name, module in modules.items():
        module.register_forward_pre_hook(partial(count, name))
    return counts


def _has_one_key(instances: Sequence[AttentionInstance]) -> bool:
    """Whether the softmax of an attention is over one number."""
    return any(softmax.inputs[0].shape[-1] == 1 for each in instances for softmax in each.softmaxes)


def _in_the_place_of(norms: dict[str, nn.Module], counts: dict[str, int]) -> Iterator[Finding]:
    """Norms that are never called, beside others of the same kind and size that are called several times."""
    for name in norms:
        other = next((each for each in _siblings(norms, name) if counts.get(each, 0) > 1), None)
        if name not in counts and other is not None:
            message = f"{name} has no effect: it is constructed and not used, and {other} is used {counts[other]} times"
            yield Finding("violation", "norm-used", "projections", message)


def _thrown_away(norms: dict[str, nn.Module], counts: dict[str, int], moving: set[str]) -> Iterator[tuple[str, str]]:
    """Norms that are called and have no gradient, each with one of the same kind and size that has one."""
    for name, module in norms.items():
        other = next((each for each in _siblings(norms, name) if each in moving), None)
        weight = next(module.parameters())
        if name in counts and name not in moving and weight.requires_grad and other is not None:
            yield name, other


def _siblings(norms: dict[str, nn.Module], name: str) -> Iterator[str]:
    """The other norms of a module that are of the same kind and size; of lists of norms, those of the same layer."""
    module, place = norms[name], name.rpartition(".")[0]
    for other, sibling in norms.items():
        is_beside = other.rpartition(".")[0] == place or _layer_of(other) == _layer_of(name) is not None
        same = type(sibling) is type(module) and is_beside and other != name
        if same and next(sibling.parameters()).shape == next(module.parameters()).shape:
            yield other


def _layer_of(path: str) -> tuple[str, str] | None:
    """The module that has a list, and the place in the list; None of what is in none, as by its path."""
    rest, _, number = path.rpartition(".")
    return (rest.rpartition(".")[0], number) if number.isdigit() and rest else None


def _moves(gradient: Tensor | None) -> bool:
    return gradient is not None and float(gradient.abs().max()) > ZERO


def _rows(
    invocation: Invocation,
    live: nn.Module,
    name: str,
    parameter: nn.Parameter,
    gradient: Tensor,
    before: Mapping[int, Tensor],
    fewest: int = 1,
) -> Iterator[Finding]:
    """Of a matrix, or a convolution, for queries, keys or values: outputs that nothing uses.

    Args:
        invocation: the call.
        live: a copy of the target.
        name: the path of the parameter.
        parameter: (outputs, inputs), of a convolution (outputs, inputs, kernel...).
        gradient: of it.
        before: the outputs of the call, by their numbers.
        fewest: how many outputs, one after the other, are a part: a third of them may be for the keys. Some alone may
            be those of an activation that cuts off what is negative, in a matrix that makes a hidden layer as well.
    """
    unused = (gradient == 0).flatten(1).all(1)
    rows = unused.nonzero().flatten().tolist()
    if len(rows) < fewest or (fewest > 1 and not _is_one_part(unused)):
        return
    streams, used = invocation.streams, int((~unused).sum())
    tokens = {invocation.arguments[each.argument].shape[axis] for each in streams for axis in each.token_axes}
    if used in tokens and bool(unused[used:].all()):
        return  # a row for each token, of which a longer text has more
    part = unused.reshape(-1, *(1 for _ in parameter.shape[1:]))
    if (
        rows
        and not _has_effect(invocation, live, parameter, before, part)
        and not any(_has_effect_there(each, live, parameter, part) for each in _closed_texts(invocation))
    ):
        message = f"{len(rows)} of {len(unused)} rows of {name} have no effect, the first of them row {rows[0]}"
        yield Finding("violation", "projection-used", "projections", message)


def _is_half_unread(gradient: Tensor) -> bool:
    """Whether the first or last half of a tensor has no gradient anywhere, along one axis, and the other one has.

    As of the vector of a graph attention, which multiplies a query and a key that stand side by side.
    """
    for axis in [each for each, size in enumerate(gradient.shape) if size % 2 == 0]:
        one, other = ((each.abs() > ZERO) for each in gradient.chunk(2, axis))
        if (bool(one.all()) and not bool(other.any())) or (bool(other.all()) and not bool(one.any())):
            return True
    return False


def _is_one_part(unused: Tensor) -> bool:
    """Whether some outputs stand one after the other, or are the same third of those of every head."""
    rows = unused.nonzero().flatten().tolist()
    heads = [each for each in range(2, len(unused) // 3 + 1) if len(unused) % (3 * each) == 0]
    thirds = [unused.view(each, 3, -1) for each in heads]
    return rows[-1] - rows[0] < len(rows) or any(
        bool((each == each[:1]).all()) and bool((each == each[..., :1]).all()) and int(each[0, :, 0].sum()) == 1
        for each in thirds
    )


def _has_effect(
    invocation: Invocation,
    live: nn.Module,
    parameter: nn.Parameter,
    before: Mapping[int, Tensor],
    part: Tensor | float = 1.0,
) -> bool:
    kept = parameter.detach().clone()
    with torch.no_grad():
        parameter.add_(0.3 * part * drawn_like(parameter, seed=3))
        try:
            after = invocation.outputs(invocation.run(target=live))
        except Failed:
            return False
        finally:
            parameter.copy_(kept)
    pairs = [(one, after[at]) for at, one in before.items() if at < len(after)]
    return any(one.shape != two.shape or bool(((one - two).abs() > MOVED).any()) for one, two in pairs)


def _closed_texts(invocation: Invocation) -> Iterator[Invocation]:
    """The call with the token that closes a text at its end, by each id that is told for it.

    As where the state at that token alone is returned: without one, it is that of some token or other.
    """
    for stream in invocation.streams:
        ids = invocation.arguments[stream.argument]
        if ids.is_floating_point() or len(stream.token_axes) != 1:
            continue
        for number in sorted(special_ids(invocation.target, "end")):
            closed = ids.clone()
            closed.select(stream.token_axes[0], -1).fill_(number)
            yield replace(invocation, arguments={**invocation.arguments, stream.argument: closed})


def _has_effect_there(invocation: Invocation, live: nn.Module, parameter: nn.Parameter, part: Tensor) -> bool:
    """Whether it has an effect on what another call returns."""
    try:
        before = {at: each.detach() for at, each in enumerate(invocation.outputs(invocation.run(target=live)))}
    except Failed:
        return False
    return _has_effect(invocation, live, parameter, before, part)


def _is_left_by_a_setting(live: nn.Module, name: str) -> bool:
    """Whether the layer of a parameter is read where a setting asks for it alone, and that setting is off."""
    owner, _, layer = name.rpartition(".")[0].rpartition(".")
    kind: type = type(live.get_submodule(owner))
    return is_read_by_settings(kind, layer)


def _is_of_another_step(live: nn.Module, name: str, gradients: Mapping[str, Tensor | None]) -> bool:
    """Whether a parameter is of a list of which a call takes one member by a number, and another one was taken."""
    of_list = re.match(r"((?:.*\.)?[^.]+)\.\d+\.", name)
    if of_list is None:
        return False
    is_taken = any(each is not None and other.startswith(f"{of_list[1]}.") for other, each in gradients.items())
    owner, _, attribute = of_list[1].rpartition(".")
    kind: type = type(live.get_submodule(owner))
    return is_taken and is_one_of_steps(kind, attribute)


def _belongs(name: str, invocation: Invocation, instances: Sequence[AttentionInstance]) -> bool:
    """Whether a parameter is by its name a projection of the one attention there is, and nothing can call for it."""
    if len(instances) != 1:
        return False
    module = instances[0].module
    beside = not module or name.startswith(f"{module}.")
    optional = [each for each in readings(invocation.target)[0] if each.role in (*STREAMS, "added")]
    forward = inspect.signature(invocation.target.forward).parameters
    left_out = any(each.name in forward and each.name not in invocation.arguments for each in optional)
    return beside and not left_out
