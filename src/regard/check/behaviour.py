"""What is shown by how an implementation behaves: in a second call, in train(), in its gradients, in a batch.

None of it needs a recipe of the mistake: inputs are compared before and after, calls with one another, gradients with
the output's own slope. Nothing random is taken for a mistake of another kind.
"""

from __future__ import annotations

import copy
import inspect
import itertools
import math
import random
import sys
import warnings
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, replace
from typing import Any

import torch
from torch import Tensor, nn
from torch.overrides import TorchFunctionMode

from regard.check.answer import error_text
from regard.check.causes import MISTAKES
from regard.check.probe import Failed, ProbeCall, calls_with, drawn
from regard.check.recipe import Case, State
from regard.check.search import Deadline, Observed
from regard.check.stage import Diagnosis, Stage
from regard.check.subject import Sizes, Way, tensors_in
from regard.check.trace import same_numbers

__all__ = ["behave", "quiet"]

LOUD = 300.0, 1e3, 3e3, 1e4, 3e4, 1e5, 1e6
"""By so much are scores made larger, to be told apart from what blocked ones become."""
MAX_CPU_SECONDS, MAX_WALL_SECONDS = 1.5, 10.0
"""For all questions of this file; what is not asked by then is left out."""
MOVED = 1e-9
"""Relative to the largest number of an output: less is rounding."""
STEP = 1e-5
"""Of a slope that is measured."""
FLAT = 1e-6
"""A slope below this is none."""
WIDEST = 64
"""A batch of n x n x n is tried up to this n."""
FILLS = -1e3, -1e4, -9999.0, -32768.0, -32767.0, -65504.0, -65000.0, -1e5, -1e6
"""What blocked scores become in code that was written for float16, or long ago."""


# Without dropout. -----------------------------------------------------------------------------------------------------

DROPOUTS = frozenset(
    f"{kind}dropout{end}" for kind in ("", "alpha_", "feature_", "feature_alpha_", "native_") for end in ("", "_")
) | {"dropout1d", "dropout2d", "dropout3d"}


class _Quiet(TorchFunctionMode):
    """Dropout is the identity, whoever calls it, and keeps what it is given if somebody wants to know."""

    def __init__(self) -> None:
        super().__init__()
        self.dropped: list[Tensor] = []

    def __torch_function__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        kwargs = dict(kwargs or {})
        name = getattr(func, "__name__", "")
        if name in DROPOUTS:
            given = args[0] if args else kwargs["input"]
            self.dropped.append(given.detach().clone())
            return (given, torch.ones_like(given, dtype=torch.bool)) if name.startswith("native") else given
        if name == "scaled_dot_product_attention":
            if len(args) > 4:
                args = (*args[:4], 0.0, *args[5:])
            elif "dropout_p" in kwargs:
                kwargs["dropout_p"] = 0.0
        elif name == "multi_head_attention_forward":
            bound = inspect.signature(func).bind(*args, **kwargs)
            bound.arguments.update(dropout_p=0.0)
            args, kwargs = bound.args, bound.kwargs
        return func(*args, **kwargs)


@contextmanager
def quiet() -> Iterator[list[Tensor]]:
    """Inside, every dropout is the identity: what else is wrong can be found beneath one that is left on.

    Yields:
        What was given to each dropout, as it was then.
    """
    mode = _Quiet()
    with mode:
        yield mode.dropped


@contextmanager
def _seeded(seed: int = 0) -> Iterator[None]:
    """Inside, what is random begins anew; outside, nothing of it is felt."""
    numpy = sys.modules.get("numpy")
    python, arrays = random.getstate(), numpy.random.get_state() if numpy is not None else None
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(seed)
        random.seed(seed)
        if numpy is not None:
            numpy.random.seed(seed)
        try:
            yield
        finally:
            random.setstate(python)
            if numpy is not None:
                numpy.random.set_state(arrays)


# Calls. ---------------------------------------------------------------------------------------------------------------


def _result(call: ProbeCall, module: nn.Module | None, given: Mapping[str, Any]) -> Any:
    """Like `Call.result`, of the object itself: what one call leaves in it, the next one finds."""
    function: Any = module if module is not None else call.subject.function
    parameters = call.subject.called
    first = [name for name in given if parameters[name].kind is inspect.Parameter.POSITIONAL_ONLY]
    try:
        with call.subject.settings.on():
            return function(*(given[name] for name in first), **{n: v for n, v in given.items() if n not in first})
    except Exception as error:
        raise Failed(error_text(error)) from error


def _live(call: ProbeCall) -> nn.Module | None:
    return None if call.module is None else copy.deepcopy(call.module).train(call.training)


def _again(call: ProbeCall, module: nn.Module | None, case: Case) -> Tensor:
    """The output of an object that was called before."""
    return call.output(case, _result(call, module, call.arguments(case)))


def _gap(one: Tensor, other: Tensor) -> float:
    """The largest difference of two outputs; 0 where it is rounding, inf where only one of them is a number."""
    if one.shape != other.shape:
        return math.inf
    if not torch.equal(one.isfinite(), other.isfinite()):
        return math.inf
    one, other = (each[one.isfinite()] for each in (one, other))
    if not one.numel():
        return 0.0
    gap = (one - other).abs().max().item()
    return gap if gap > MOVED * max(1.0, one.abs().max().item()) else 0.0


def _changed(case: Case, change: Callable[[Tensor], Tensor]) -> Case:
    """The same case with all its tensors changed, in the copies that it hands over."""
    names = ("q", "k", "v") if case.q is not None else ("x", "context", "values")
    held: dict[str, Any] = {name: getattr(case, name) for name in names}
    made: dict[int, Any] = {id(each): change(each.clone()) for each in held.values() if each is not None}
    return replace(case, **{name: made[id(each)] for name, each in held.items() if each is not None})


def _lengths(case: Case) -> tuple[int, int]:
    if case.q is not None and case.k is not None:
        return case.q.shape[-2], case.k.shape[-2]
    assert case.x is not None
    return case.x.shape[1], (case.x if case.context is None else case.context).shape[1]


@dataclass(frozen=True, eq=False)
class _Known:
    """A call whose recipe is known."""

    call: ProbeCall
    observed: Observed
    state: State
    stage: Stage


class _Room:
    """One diagnosis, and the questions that are put to it in turn."""

    def __init__(self, diagnosis: Diagnosis) -> None:
        self.diagnosis = diagnosis
        setting = diagnosis.setting
        self.pairs = [] if setting is None else setting.pairs
        self.random = False
        self.roles = diagnosis.subject.roles()

    def name(self, cause: str, **numbers: object) -> None:
        if all(known.id != cause for known, _ in self.diagnosis.behaviour):
            self.diagnosis.behaviour.append((MISTAKES[cause], numbers))

    def note(self, text: str) -> None:
        if text not in self.diagnosis.notes:
            self.diagnosis.notes.append(text)

    @property
    def plain(self) -> Stage | None:
        return next(iter(self.diagnosis.stages), None)

    @property
    def explained(self) -> bool:
        return self.plain is not None and self.plain.found is not None

    @property
    def blamed(self) -> bool:
        """Whether another cause was found."""
        found = [stage.found for stage in self.diagnosis.stages if stage.found is not None]
        return bool(self.diagnosis.behaviour) or any(each.causes for each in found)

    def known(self, *, masked: bool = False) -> Iterator[_Known]:
        """Calls that a recipe explains: without a mask of an argument, or with one."""
        for stage in self.diagnosis.stages[1:] if masked else self.diagnosis.stages[:1]:
            if stage.found is None:
                continue
            for observed in stage.observed:
                call = stage.call if masked else self._call(observed)
                state = observed.state(stage.found.choices)
                if call is not None and state is not None:
                    yield _Known(call, observed, state, stage)

    def _call(self, observed: Observed) -> ProbeCall | None:
        return next((call for call, _, output in self.pairs if output is observed.output), None)

    def matching(self, stage: Stage, observed: Observed) -> ProbeCall | None:
        """How a stage calls the module that an observation is of: it keeps one call, and modules come in sizes."""
        if stage.call is None:
            return None
        for call, case, _ in self.pairs:
            if case.weights is observed.case.weights and (case.x is observed.case.x and case.q is observed.case.q):
                return replace(stage.call, module=call.module, way=call.way)
        return stage.call


def behave(diagnosis: Diagnosis, deadline: Deadline | None = None) -> None:
    """Add to a diagnosis what is shown by how its implementation behaves: causes, and what is merely to be noted.

    To be called outside of `quiet`, after the search for a recipe.

    Args:
        diagnosis: with a setting in which the implementation runs; without one nothing is asked.
        deadline: after which no further question is asked; by default `MAX_CPU_SECONDS` from now.
    """
    room = _Room(diagnosis)
    if not room.pairs:
        return
    deadline = deadline or Deadline(MAX_CPU_SECONDS, MAX_WALL_SECONDS)
    with warnings.catch_warnings(), _seeded():
        warnings.simplefilter("ignore")
        for question in (
            _random,
            _inputs_changed,
            _stateful,
            _dropout_before_softmax,
            _absolute_axes,
            _batch_mixed,
            _future_leak,
            _detached,
            _nothing_to_attend_to,
            _overflow,
            _weak_fill,
            _precisions,
            _float32,
        ):
            if deadline.passed:
                break
            try:
                question(room)
            except Exception:  # the user's code, or numbers that do not fit: nothing was shown
                continue


# Causes. --------------------------------------------------------------------------------------------------------------


def _random(room: _Room) -> None:
    """Two calls in eval(): do they differ, and is it dropout?"""
    call, case, _ = room.pairs[0]
    with _seeded(1):
        first = call(case)
    with _seeded(2):
        second = call(case)
    with _seeded(1):
        third = call(case)
    gap = _gap(first, second)
    if not gap or _gap(first, third):  # the same seed gives another output: it is no chance
        return
    with quiet():
        with _seeded(1):
            first = call(case)
        with _seeded(2):
            second = call(case)
    if not _gap(first, second):
        room.name("dropout-in-eval", number=gap)
        return
    room.random = True
    room.diagnosis.why.append(
        f"its output is random: two calls with the same input differ by up to {gap:.2g}, and dropout is not the cause"
    )


def _inputs_changed(room: _Room) -> None:
    """Every tensor that is handed over, before and after."""
    changed: dict[str, None] = {}
    for call, case in _every_call(room):
        given = call.arguments(case)
        before = {name: copy.deepcopy(value) for name, value in given.items()}
        try:
            with quiet():
                call.result(given)
        except Failed:
            continue
        for name, value in given.items():
            for old, new in zip(tensors_in(before[name]), tensors_in(value), strict=True):
                if old.shape != new.shape or not torch.equal(old, new):
                    changed[name] = None
    if changed:
        room.name("inputs-changed", what=_joined(list(changed)))


def _every_call(room: _Room) -> Iterator[tuple[ProbeCall, Case]]:
    """One call without a mask, and one with each mask that it takes."""
    call, case, _ = room.pairs[0]
    yield call, case
    for stage in room.diagnosis.stages[1:]:
        if stage.call is not None and stage.observed:
            yield room.matching(stage, stage.observed[0]) or stage.call, stage.observed[0].case
    asked = {stage.mask for stage in room.diagnosis.stages if stage.call is not None}
    queries, keys = _lengths(case)
    for name, means in room.roles.items():
        if f"argument {name}" in asked or means not in ("mask", "padding"):
            continue
        ran = 0
        for masked in calls_with(call, name, ("bhqk", "qk", "bqk") if means == "mask" else ("bk", "b1k", "b11k")):
            samples = len(case.q if case.q is not None else case.x)  # type: ignore[arg-type]
            may = torch.ones(samples, 1, queries if means == "mask" else 1, keys, dtype=torch.bool)
            may[..., -1] = False
            if ran < 4:
                try:
                    masked(replace(case, may=may))
                except Failed:
                    continue
                ran += 1
                yield masked, replace(case, may=may)


def _stateful(room: _Room) -> None:
    """The same input twice, and once more after another, of one object and with the same seed."""
    if room.random:
        return
    call, case, _ = room.pairs[0]
    with quiet():
        module = _live(call)
        other = _changed(case, lambda tensor: tensor.flip(-1) * 1.3 + 0.7)
        outputs: list[Tensor] = []
        for each in (case, case, other, case):
            try:
                with _seeded():
                    output = _again(call, module, each)
            except Failed as error:
                if outputs:
                    room.diagnosis.why.append(f"a second call with the same sizes raises {_short(error)}")
                    return
                raise
            if each is case:
                outputs.append(output)
    gap = max(_gap(outputs[0], output) for output in outputs[1:])
    if gap:
        room.name("stateful", number=gap)


def _dropout_before_softmax(room: _Room) -> None:
    """What train() drops, beside the recipe's scores and its weights."""
    for known in itertools.islice(room.known(), 2):
        with quiet() as dropped:
            replace(known.call, training=True)(known.observed.case)
        steps = [known.state.scores, known.state.scaled, known.state.biased, known.state.masked]
        weights = known.state.weights
        for given in dropped:
            if weights is not None and same_numbers(given, weights):
                continue
            if any(step is not None and same_numbers(given, step) for step in steps):
                room.name("dropout-before-softmax")
                return


def _absolute_axes(room: _Room) -> None:
    """What is right without a batch, called with one whose sizes coincide."""
    call, case, _ = min(room.pairs, key=lambda pair: _width(pair[1]))
    if call.way.layout != "td" or room.random:
        return
    for module, size in _square_modules(room, call, case):
        if size > WIDEST:
            continue
        whole = _cube(case, size)
        alone = replace(call, module=module, which=[])
        together = replace(alone, way=Way("btd", ""), which=[])
        with quiet():
            try:
                with warnings.catch_warnings():
                    warnings.filterwarnings("error", message=".*deprecated.*")  # .T of three axes: torch itself objects
                    output = together(whole)
            except Failed:  # an error, or a shape that nobody takes for an output, is no silent mistake
                continue
            each = torch.cat([alone(_sample(whole, at)) for at in range(size)])
        if _gap(each, output):
            room.name("absolute-axes", named=_dims(room, call), batch=size)
        return


def _square_modules(room: _Room, call: ProbeCall, case: Case) -> Iterator[tuple[nn.Module | None, int]]:
    """The module as it was called, and one with a single head: several are laid side by side along a wrong axis."""
    yield call.module, 4 if case.q is not None else _width(case)
    build = room.diagnosis.subject.build
    if case.q is None and build is not None:
        module, _ = build(Sizes(batch=12, heads=1, queries=12, keys=12, d_key=12, d_value=12))
        yield module.double().eval(), 12


def _cube(case: Case, size: int) -> Case:
    """A case with as many samples as tokens and channels."""
    if case.q is not None:
        q, k, v = (drawn(size, 1, size, size, seed=70 + n) for n in range(3))
        return Case(q, q, q) if case.q is case.k else Case(q, k, v)
    names = [name for name in ("x", "context", "values") if getattr(case, name) is not None]
    made: dict[str, Any] = {name: drawn(size, size, size, seed=70 + n) for n, name in enumerate(names)}
    return replace(case, **made)


def _width(case: Case) -> int:
    tensor = case.q if case.q is not None else case.x
    assert tensor is not None
    return tensor.shape[-1]


def _sample(case: Case, at: int) -> Case:
    return _changed(case, lambda tensor: tensor[at : at + 1])


def _dims(room: _Room, call: ProbeCall) -> str:
    """The axes that it is told, by its attributes or its arguments."""
    named: dict[str, int] = {}
    for name in ("row_dim", "col_dim"):
        parameter = room.diagnosis.subject.called.get(name)
        value = parameter.default if parameter is not None else None
        for part in call.module.modules() if call.module is not None else ():
            value = getattr(part, name, value)
        if isinstance(value, int):
            named[name] = value
    return f" ({', '.join(f'{name}={value}' for name, value in named.items())})" if named else ""


def _batch_mixed(room: _Room) -> None:
    """Another second sample, and the first one's output."""
    if room.explained or room.random:
        return
    call, case, _ = room.pairs[0]
    if "b" not in (call.way.layout if not call.way.flat else "b"):
        return

    def change(tensor: Tensor) -> Tensor:
        tensor[1:] = tensor[1:].flip(-1) * 1.3 + 0.7
        return tensor

    with quiet(), _seeded():
        gap = _gap(call(case)[0], call(_changed(case, change))[0])
    if gap and not _restless(call, case):
        room.name("batch-mixed", number=gap)


def _restless(call: ProbeCall, case: Case) -> bool:
    """Whether the same input gives another output, so that no comparison of two calls shows anything."""
    outputs = []
    for _ in range(2):
        with quiet(), _seeded():
            outputs.append(call(case))
    return bool(_gap(*outputs))


def _future_leak(room: _Room) -> None:
    """Another token, and the outputs at the positions before it."""
    flags = [name for name, means in room.roles.items() if means == "causal"]
    stages = {stage.mask: stage for stage in room.diagnosis.stages}
    flag = next((name for name in flags if (stage := stages.get(f"flag {name}")) is None or stage.found is None), None)
    by = f"its flag {flag}" if flag is not None else _causal_by(room)
    if not by or room.random or (room.explained and flag is None):
        return
    for call, case, _ in room.pairs:
        queries, keys = _lengths(case)
        if queries != keys or queries < 2 or case.context is not None:
            continue
        call = replace(call, flag=flag is not None)
        if _restless(call, case):
            return
        with quiet():
            before = call(case)
            for key in reversed(range(1, keys)):
                after = call(_token(case, key))
                gaps = [_gap(before[..., query, :], after[..., query, :]) for query in range(key)]
                query = next((query for query, gap in enumerate(gaps) if gap), None)
                if query is not None:
                    room.name("future-leak", named=by, query=query, key=key, number=gaps[query])
                    return
        return


def _causal_by(room: _Room) -> str:
    name = room.diagnosis.subject.name
    if set(room.roles.values()) & {"mask", "causal", "padding"}:
        return ""
    if any(word in name.lower() for word in ("causal", "masked", "decoder", "autoregress")):
        return f"its name, {name}"
    module = room.pairs[0][0].module
    for path, buffer in module.named_buffers() if module is not None else ():
        while buffer.ndim > 2 and len(buffer) == 1:
            buffer = buffer[0]
        if buffer.ndim == 2 and buffer.shape[0] == buffer.shape[1] > 2:
            marked = buffer != buffer[0, -1]
            lower = torch.ones_like(marked).tril()
            if torch.equal(marked, lower) or torch.equal(marked, lower.tril(-1)):
                return f"its buffer {path}"
    return ""


def _token(case: Case, at: int) -> Case:
    """Another token at one position; a function's queries stay."""

    def change(tensor: Tensor) -> Tensor:
        tensor[..., at, :] = tensor[..., at, :].flip(-1) * 1.3 + 0.7
        return tensor

    changed = _changed(case, change)
    return replace(changed, q=case.q) if case.q is not case.k else changed


# Gradients. -----------------------------------------------------------------------------------------------------------

IN_NUMPY = "it computes in numpy, which has no gradients: no model learns through it"
WORDS = {"q": "queries", "k": "keys", "v": "values", "context": "the context"}


def _detached(room: _Room) -> None:
    """Gradients that are zero where the output has a slope."""
    if not room.explained or room.blamed or room.random:
        return
    known = next(room.known(), None)
    if known is None:
        return
    call, case = known.call, known.observed.case
    module = _live(call)
    given = call.arguments(case)
    inputs = {
        name: value
        for name, value in given.items()
        if isinstance(value, Tensor) and value.is_floating_point() and room.roles.get(name) not in ("mask", "padding")
    }
    parameters = {} if module is None else {name: p for name, p in module.named_parameters() if p.requires_grad}
    leaves = {**inputs, **parameters}
    if set(inputs) & set(parameters):
        return
    for leaf in leaves.values():
        leaf.requires_grad_()

    def output() -> Tensor:  # a copy is handed over: what is written in place is another's fault
        result = _result(call, module, {n: v.clone() if n in inputs else v for n, v in given.items()})
        return _output_in(call, case, result)

    with quiet(), torch.enable_grad():
        try:
            first = output()
        except Failed as error:
            if "call numpy()" not in str(error):  # PyTorch refuses a tensor with a gradient
                raise
            room.note(IN_NUMPY)
            return
        toward = torch.randn(first.shape, generator=torch.Generator().manual_seed(3), dtype=torch.float64)
        gradients: dict[str, Tensor | None] = dict.fromkeys(leaves)
        if first.requires_grad:
            found = torch.autograd.grad((first * toward).sum(), list(leaves.values()), allow_unused=True)
            gradients = dict(zip(leaves, found, strict=True))
    missed = []
    for name, leaf in leaves.items():
        gradient = gradients[name]
        zero = torch.ones_like(leaf, dtype=torch.bool) if gradient is None else gradient.abs() < 1e-13
        if bool(zero.any()) and _slope(output, leaf, zero, toward):
            missed.append(WORDS.get(room.roles.get(name, ""), name) if name in inputs else f"{name}{_which(zero)}")
    if missed and module is None and _uses_numpy(output):
        room.note(IN_NUMPY)
    elif missed:
        room.name("detached", what=_joined(missed))


class _NumpyWatch(TorchFunctionMode):
    """Notices tensors that become arrays."""

    def __init__(self) -> None:
        super().__init__()
        self.used = False

    def __torch_function__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        self.used = self.used or getattr(func, "__name__", "") in ("numpy", "__array__")
        return func(*args, **(kwargs or {}))


def _uses_numpy(output: Callable[[], Tensor]) -> bool:
    watch = _NumpyWatch()
    with quiet(), watch:
        output()
    return watch.used


def _output_in(call: ProbeCall, case: Case, result: Any) -> Tensor:
    """The tensor that is the output, as it was returned: with its gradient, in its own precision."""
    found, call = list(tensors_in(result)), replace(call, which=[])
    call.output(case, result)
    return found[call.which[0][0]]


def _slope(output: Callable[[], Tensor], leaf: Tensor, where: Tensor, toward: Tensor) -> bool:
    """Whether the output moves with some numbers of a tensor, and smoothly: a tenth of the step has the same slope."""
    direction = torch.randn(leaf.shape, generator=torch.Generator().manual_seed(4), dtype=torch.float64).to(leaf.dtype)
    direction, before = direction * where, leaf.detach().clone()
    slopes = []
    with quiet(), torch.no_grad():
        for step in (STEP, STEP * 0.1):
            ends = []
            for sign in (1.0, -1.0):
                leaf.copy_(before + sign * step * direction)
                ends.append((output() * toward).sum().item())
                leaf.copy_(before)
            slopes.append((ends[0] - ends[1]) / (2 * step))
    far, near = slopes
    return abs(far) > FLAT * toward.numel() ** 0.5 and abs(far - near) < 1e-2 * abs(far)


def _which(where: Tensor) -> str:
    """The rows that are meant, if not all of them."""
    if bool(where.all()):
        return ""
    if where.ndim == 1:
        rows = where
    elif bool((where.flatten(1).all(1) == where.flatten(1).any(1)).all()):
        rows = where.flatten(1).all(1)
    else:
        return " (in part)"
    at = rows.nonzero().flatten()
    first, last = int(at[0]), int(at[-1])
    return f"[{first}:{last + 1}]" if len(at) == last + 1 - first else " (in part)"


def _joined(names: list[str]) -> str:
    return names[0] if len(names) == 1 else f"{', '.join(names[:-1])} and {names[-1]}"


# Notes. ---------------------------------------------------------------------------------------------------------------


def _masked(room: _Room) -> Iterator[tuple[Stage, ProbeCall, Observed]]:
    """One call with each mask whose recipe is known."""
    for stage in room.diagnosis.stages[1:]:
        if stage.found is None or not stage.observed or stage.asked not in ("mask", "padding"):
            continue
        call = room.matching(stage, stage.observed[0])
        if call is not None and not call.form.name.startswith("added"):
            yield stage, call, stage.observed[0]


def _nothing_to_attend_to(room: _Room) -> None:
    """A row that is blocked whole."""
    for stage, call, observed in _masked(room):
        may = observed.case.may
        if may is None or stage.found is None or {known.step for known, _ in stage.found.causes} & {"masked"}:
            continue
        may = may.clone()
        may[0, :, 0] = False  # of padding: the whole first sample
        case = replace(observed.case, may=may)
        try:
            with quiet():
                row = call(case)[0].select(-2, 0)
        except Failed as error:
            room.note(f"a query with nothing to attend to raises {_short(error)}")
            return
        if bool(row.isnan().any()):
            room.note("a query with nothing to attend to gets NaN; in regard it gets zeros")
            return
        for fill, says in (
            (None, "zeros, as in regard"),
            (-1e9, "the mean of all values; in regard it gets zeros"),
        ):
            choices = {**stage.found.choices, **({} if fill is None else {"fill": fill})}
            state = Observed(case, observed.output).state(choices)
            if state is not None and state.last is not None and not _gap(state.last[0].select(-2, 0), row):
                room.note(f"a query with nothing to attend to gets {says}")
                return
        return


def _louder(case: Case, times: float) -> Case:
    """Larger scores, and values as they were where they can be kept."""
    if case.q is not None:
        return replace(case, q=case.q * times)
    assert case.x is not None
    if case.context is not None:
        return replace(case, x=case.x * times)
    return replace(case, x=case.x * times**0.5)


def _overflow(room: _Room) -> None:
    """Scores in the thousands."""
    for known in itertools.islice(room.known(), 1):
        if {each.step for each, _ in known.stage.found.causes if known.stage.found} & {"weights"}:  # type: ignore[union-attr]
            continue
        loud = _louder(known.observed.case, 3000.0)
        with quiet():
            output = known.call(loud)
        assert known.stage.found is not None
        state = Observed(loud, output).state(known.stage.found.choices)
        if state is None or state.last is None or not bool(state.last.isfinite().all()):
            continue
        if bool((~output.isfinite()).any()):
            room.note("scores in the thousands overflow to NaN: it computes exp without subtracting the largest score")


def _weak_fill(room: _Room) -> None:
    """Scores that are larger than what blocked ones become."""
    asked = list(_masked(room))
    for known in room.known():
        if known.stage.asked == "built-in":
            asked.append((known.stage, known.call, known.observed))
            break
    for stage, call, observed in asked:
        if stage.found is None or "fill" in stage.found.choices or stage.found.choices.get("seen") == "none":
            continue
        every = []
        for times in LOUD:
            louder = Observed(_louder(observed.case, times), observed.output)
            with quiet():
                louder.output = call(louder.case)
            every.append(louder)
        if all(each.fits(stage.found.choices) for each in every):
            continue
        for fill in FILLS:
            for choice in (fill, ("add", fill)):
                if all(each.fits({**stage.found.choices, "fill": choice}) for each in every):
                    room.note(f"blocked scores become about {fill:g}, not -inf: they leak if allowed scores are as low")
                    return


OWN_LIMITS = ("not implemented for", "unsupported ScalarType")
"""What PyTorch says where it is PyTorch that cannot, on this machine or in numpy."""


def _precisions(room: _Room) -> None:
    """In float16 and in bfloat16."""
    call, case, _ = room.pairs[0]
    asked = [(call, case)] + [(each, observed.case) for _, each, observed in _masked(room)]
    for dtype in (torch.float16, torch.bfloat16):
        name = str(dtype).removeprefix("torch.")
        for call, case in asked:
            given = {n: _cast(value, dtype) for n, value in call.arguments(case).items()}
            with quiet():
                try:
                    module = None if call.module is None else copy.deepcopy(call.module).to(dtype)
                    result = call.output(case, _result(call, module, given))
                except Failed as error:
                    if not any(limit in str(error) for limit in OWN_LIMITS):
                        room.note(f"in {name} it raises {_short(error)}")
                        break
                    continue
            rows = call(case).isnan()
            if bool((result.isnan() & ~rows).any()):
                room.note(f"in {name} its output is NaN")
                break


def _cast(value: Any, dtype: torch.dtype) -> Any:
    if isinstance(value, Tensor):
        return value.to(dtype) if value.is_floating_point() else value
    return tuple(_cast(each, dtype) for each in value) if isinstance(value, tuple) else value


PRODUCTS = frozenset(
    {
        "softmax",
        "_softmax",
        "matmul",
        "__matmul__",
        "bmm",
        "einsum",
        "baddbmm",
        "scaled_dot_product_attention",
        "linear",
        "exp",
    }
)


class _Watch(TorchFunctionMode):
    """Which products and softmaxes are computed in float32."""

    def __init__(self) -> None:
        super().__init__()
        self.single: dict[str, None] = {}

    def __torch_function__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        result = func(*args, **(kwargs or {}))
        name = getattr(func, "__name__", "")
        if name in PRODUCTS and isinstance(result, Tensor) and result.dtype == torch.float32:
            self.single[name.strip("_")] = None
        return result


def _float32(room: _Room) -> None:
    """Given float64, what does it compute in?"""
    found = [stage.found for stage in room.diagnosis.stages if stage.found is not None]
    if any(each.kind == "precision" for one in found for each in one.otherwise):  # said already
        return
    call, case, _ = room.pairs[0]
    watch = _Watch()
    with quiet(), watch:
        result = call.result(call.arguments(case))
    if watch.single:
        room.note(f"given float64, it computes in float32: {_joined(list(watch.single))}")
    elif _output_in(call, case, result).dtype == torch.float32:
        room.note("given float64, it returns float32")


def _short(error: Failed) -> str:
    """The first line of what was raised."""
    text = str(error).strip().splitlines()[0]
    return text if len(text) <= 120 else f"{text[:117]}..."
