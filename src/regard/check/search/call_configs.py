"""Every way in which an implementation runs: how it is called, and how its parameters are read."""

from __future__ import annotations

import inspect
import itertools
from dataclasses import dataclass, replace

import torch
from torch import Tensor, nn

from regard.check.recipes.case import Case, ProjectionWeights, causal
from regard.check.search.calls import Failed, ProbeCall
from regard.check.search.cases import (
    CROSS,
    DIFFERENT,
    OTHER,
    SAME,
    WIDE,
    drawn,
    function_case,
    lengths,
    module_case,
    square,
)
from regard.check.search.layouts import FUNCTION_WAYS, MODULE_WAYS, Sizes, Way
from regard.check.search.mask_formats import FORMS, MaskFormat
from regard.check.search.modules import modules_of
from regard.check.search.observed import Observed
from regard.check.search.parameters import Structure, structures
from regard.check.search.subject import Subject

__all__ = ["CallConfig", "call_configs"]


@dataclass(eq=False)
class CallConfig:
    """One way to call it, and one to read its parameters."""

    way: Way
    pairs: list[tuple[ProbeCall, Case, Tensor]]
    structure: Structure | None = None

    @property
    def packed(self) -> bool:
        """Whether its weights stand in one matrix."""
        return self.structure is not None and self.structure.packed

    @property
    def square(self) -> bool:
        """Whether some calls have as many queries as keys, as those of a mask of its own."""
        return any(square(case) for _, case, _ in self.pairs)

    def observed(self, built_in: bool) -> list[Observed]:
        """The calls, taken to have no mask or a causal one of their own."""
        if not built_in:
            return [Observed(case, output) for _, case, output in self.pairs]
        return [
            Observed(replace(case, may=causal(*lengths(case))), output, "built-in")
            for _, case, output in self.pairs
            if square(case)
        ]


def call_configs(subject: Subject) -> tuple[list[CallConfig], str]:
    """Every setting in which it runs; or the error of the likeliest one."""
    if subject.function is not None:
        return _function_settings(subject)
    if {"q", "k", "v"} <= set(subject.roles().values()):
        modules, _ = modules_of(subject)
        if all(parameter.ndim < 2 for parameter in modules[0][1].parameters()):
            subject.module = modules[0][1]
            return _function_settings(subject)
    return _module_settings(subject)


def _function_settings(subject: Subject) -> tuple[list[CallConfig], str]:
    roles = set(subject.roles().values())
    failed = ""
    settings = []
    if "w_q" in roles or ("x" in roles and "context" in roles):
        return _weighted_settings(subject)
    if not ({"q", "k", "v"} <= roles or "x" in roles):
        return [], f"its arguments ({', '.join(subject.called)}) are not named q, k, v or x"
    same = "q" not in roles
    for way, (nothing, batched) in itertools.product(FUNCTION_WAYS, _nothings(subject)):
        call = ProbeCall(subject, way, subject.module, nothing=nothing, batched=batched)
        if way.flat:
            if "size heads" in _required(subject) and not same:
                settings += _flat(call)
            continue
        pairs = []
        for number, sizes in enumerate((DIFFERENT, CROSS, WIDE, OTHER, SAME)):
            if same and sizes in (CROSS, WIDE):
                continue
            if (width := subject.told_width) is not None:  # of no other width is it meant to be called
                sizes = replace(sizes, d_key=width, d_value=width)
            case = function_case(sizes, way, seed=10 * number, same=same)
            try:
                pairs.append((call, case, call(case)))
            except Failed as error:
                failed = failed or f"called with {_shapes(call, case)}, {error}"
                if number == 0:
                    break
        if pairs and pairs[0][1].q is not None:
            settings.append(CallConfig(way, pairs))
    if any(setting.way.flat for setting in settings):  # one head alone would say nothing of how they are split
        settings = [setting for setting in settings if setting.way.layout != "btd"]
    return settings, failed


def _nothings(subject: Subject) -> list[tuple[MaskFormat | None, bool]]:
    """Ways to say that there is no mask, where one has to be given."""
    must = _required(subject) & {"mask", "padding", "bias"}
    forms = [(form, batched) for form in FORMS[:4] for batched in (False, True)] if must else []
    return [(None, False), *forms]


def _required(subject: Subject) -> set[str]:
    """What the arguments mean that have no default."""
    empty = inspect.Parameter.empty
    return {means for name, means in subject.roles().items() if subject.called[name].default is empty}


def _flat(call: ProbeCall) -> list[CallConfig]:
    """A function that is given heads side by side: a module whose weights change nothing."""
    pairs = []
    for number, sizes in enumerate((DIFFERENT, CROSS, OTHER)):
        eye = torch.eye(sizes.d_model, dtype=torch.float64)
        weights = ProjectionWeights(eye, eye, eye, sizes.heads, sizes.heads)
        case = replace(module_case(sizes, Way("btd", ""), sizes.d_model, 10 * number, inputs=3), weights=weights)
        flat = replace(call, way=Way("btd", ""))
        try:
            pairs.append((flat, case, flat(case)))
        except Failed:
            continue
    return [CallConfig(call.way, pairs)] if pairs else []


def _weighted_settings(subject: Subject) -> tuple[list[CallConfig], str]:
    """A function of x and its weights."""
    failed, settings = "", []
    roles = set(subject.roles().values())
    for stored in ("in-out", "out-in"):
        for way in MODULE_WAYS:
            call = ProbeCall(subject, way, stored=stored)
            pairs = []
            for number, sizes in enumerate((DIFFERENT, OTHER)):
                width = sizes.d_model
                q, k, v, out = (drawn(width, width, seed=90 + n) * width**-0.5 for n in range(4))
                heads = sizes.heads if "size heads" in roles else 1
                weights = ProjectionWeights(q, k, v, heads, heads, out if "w_o" in roles else None)
                inputs = 2 if "context" in roles else 1
                case = replace(module_case(sizes, way, width, 10 * number, inputs=inputs), weights=weights)
                try:
                    pairs.append((call, case, call(case)))
                except Failed as error:
                    failed = failed or str(error)
            if pairs:
                label = f"weights {stored}"
                structure = Structure(label, pairs[0][1].weights)  # type: ignore[arg-type]
                settings.append(CallConfig(way, pairs, structure=structure))
    return settings, failed


def _module_settings(subject: Subject) -> tuple[list[CallConfig], str]:
    modules, failed = modules_of(subject)
    roles = set(subject.roles().values())
    if not roles & {"x", "q", "ids"}:
        return [], f"its arguments ({', '.join(subject.called)}) are not named x, q, k or v"
    inputs = 3 if {"q", "k", "v"} <= roles else 2 if "context" in roles else 1
    context = subject.has("context")
    optional = context is not None and subject.called[context].default is not subject.called[context].empty
    settings: list[CallConfig] = []
    for way in MODULE_WAYS:
        found: dict[str, CallConfig] = {}
        for number, (sizes, module, width, other) in enumerate(modules):
            call = ProbeCall(subject, way, module)
            cases = [module_case(sizes, way, width, 20 * number, context=other, inputs=inputs)]
            crossed = _crossed(sizes)
            if inputs > 1:
                cases.append(module_case(crossed, way, width, 20 * number + 5, context=other, inputs=inputs))
            if optional:
                cases = [module_case(sizes, way, width, 20 * number), cases[-1]]
            called = []
            for case in cases:
                if "rope" in roles:
                    case = replace(case, extra=_turned(module, case, width))
                try:
                    called.append((case, call(case)))
                except Failed as error:
                    failed = failed or f"called with {_shapes(call, case)}, {error}"
                    if case is cases[0] and inputs == 1:
                        break
            if not called:
                continue
            for structure in structures(module, width, sizes.heads if subject.told else None, other):
                pairs = [(call, replace(case, weights=structure.weights), output) for case, output in called]
                setting = found.setdefault(structure.label, CallConfig(way, [], structure=structure))
                setting.pairs += pairs
        most = max((len(setting.pairs) for setting in found.values()), default=0)
        settings += [setting for setting in found.values() if len(setting.pairs) == most]
    if not settings and not failed:
        failed = "no parameters were recognized as the projections of queries, keys and values"
    return settings, failed


def _turned(module: nn.Module, case: Case, width: int) -> dict[str, Tensor]:
    """Cos and sin for each position and channel of a head, as Llama's in transformers takes them."""
    head = getattr(module, "head_dim", None) or width
    angles = torch.arange(lengths(case)[0])[:, None] * 10_000.0 ** (-torch.arange(0, head, 2).double() / head)
    both = torch.cat((angles, angles), -1)
    return {"cos": both.cos(), "sin": both.sin()}


def _crossed(sizes: Sizes) -> Sizes:
    """Fewer queries than keys."""
    return replace(sizes, queries=sizes.queries - 2, keys=sizes.keys + 1)


def _shapes(call: ProbeCall, case: Case) -> str:
    try:
        given = call.arguments(case)
    except Failed:
        return "what it takes"
    return ", ".join(f"{name} {tuple(value.shape)}" for name, value in given.items() if isinstance(value, Tensor))
