"""From an implementation to a verdict: every way to call it, every way to read its parameters, one recipe for all.

First without a mask: which recipe returns what it returns? Then each of its masks, upon that recipe. Whatever no recipe
reproduces is shown by how it behaves, or stays undetermined.
"""

from __future__ import annotations

import inspect
import itertools
import re
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field, replace
from typing import Literal

import torch
from torch import Tensor, nn

from regard.check.causes import CAUSES, Asked, Known
from regard.check.names import INPUTS, SIZES, meaning
from regard.check.parameters import Structure, redraw, structures
from regard.check.probe import (
    CROSS,
    DIFFERENT,
    OTHER,
    WIDE,
    Call,
    Failed,
    calls_with,
    causal,
    drawn,
    function_case,
    module_case,
    padded,
    random_mask,
)
from regard.check.recipe import Case, Choices, Weights
from regard.check.search import Found, Observed, Search
from regard.check.subject import FORMS, FUNCTION_WAYS, MODULE_WAYS, Form, Sizes, Subject, Way
from regard.errors import InputError

__all__ = ["Diagnosis", "Stage", "diagnose", "whole"]

SAME = Sizes(batch=4, heads=4, queries=4, keys=4, d_key=4, d_value=4)
"""Sizes that coincide: what is right by accident is right here alone, and what is wrong by accident too."""
PATIENCE: dict[Literal["one", "one otherwise", "design", "number", "two", "one and number"], int] = {
    "one": 8,
    "design": 2,
    "number": 1,
    "two": 2,
    "one otherwise": 4,
    "one and number": 1,
}
"""How many ways to call it and to read its parameters are searched for mistakes, the likelier ones first."""
OTHERS = (
    DIFFERENT,
    replace(OTHER, d_value=7),
    Sizes(batch=2, heads=2, queries=6, keys=6, d_key=16, d_value=16),
    Sizes(batch=2, heads=8, queries=6, keys=6, d_key=8, d_value=8),
    Sizes(batch=2, heads=1, queries=6, keys=6, d_key=10, d_value=10),
)
"""Sizes to build modules of, until two could be built and called."""


@dataclass(eq=False)
class Stage:
    """What is known of one way to mask it: none, a flag, an argument, the code itself."""

    asked: Asked
    mask: str
    """How a sentence calls the mask."""
    observed: Sequence[Observed]
    found: Found | None = None
    says: str = ""
    """Of the form of the mask."""
    why: str = ""
    """Where nothing was found."""
    call: Call | None = None


@dataclass(eq=False)
class Setting:
    """One way to call it, and one to read its parameters."""

    way: Way
    pairs: list[tuple[Call, Case, Tensor]]
    functions: bool
    structure: Structure | None = None

    @property
    def packed(self) -> bool:
        return (
            self.structure is not None
            and not self.structure.label.startswith("named out-in heads")
            and (
                "thirds" in self.structure.label
                or "by head" in self.structure.label
                or "by channel" in self.structure.label
            )
        )

    @property
    def built_in(self) -> bool:
        """Whether no argument could have told it of a mask: those calls that have as many queries as keys."""
        return any(_square(case) for _, case, _ in self.pairs)

    def observed(self, built_in: bool) -> list[Observed]:
        """The calls, taken to have no mask or a causal one of their own."""
        if not built_in:
            return [Observed(case, output) for _, case, output in self.pairs]
        return [
            Observed(replace(case, may=causal(*_lengths(case))), output, "built-in")
            for _, case, output in self.pairs
            if _square(case)
        ]


@dataclass(eq=False)
class Diagnosis:
    """Everything that was found."""

    subject: Subject
    setting: Setting | None = None
    stages: list[Stage] = field(default_factory=list)
    behaviour: list[tuple[Known, dict[str, object]]] = field(default_factory=list)
    ways: list[str] = field(default_factory=list)
    design: list[str] = field(default_factory=list)
    notes: list[str] = field(default_factory=list)
    why: list[str] = field(default_factory=list)


def _lengths(case: Case) -> tuple[int, int]:
    if case.q is not None and case.k is not None:
        return case.q.shape[-2], case.k.shape[-2]
    assert case.x is not None
    return case.x.shape[1], (case.x if case.context is None else case.context).shape[1]


def _square(case: Case) -> bool:
    queries, keys = _lengths(case)
    return queries == keys


def _samples(case: Case) -> int:
    return len(case.q if case.q is not None else case.x)  # type: ignore[arg-type]


def diagnose(subject: Subject, *, until: float) -> Diagnosis:
    """Find out what an implementation computes.

    Args:
        subject: the implementation.
        until: the moment, by `time.monotonic`, after which nothing more is tried.
    """
    diagnosis = Diagnosis(subject)
    settings, failed = _settings(subject)
    if not settings:
        diagnosis.why.append(failed or "it could not be called")
        return diagnosis
    plain = _plain(diagnosis, settings, until)
    diagnosis.stages.append(plain)
    if plain.found is not None:
        diagnosis.stages += [_passed_on(subject, stage) for stage in _masks(diagnosis, plain, until)]
    return diagnosis


# How it is called. --------------------------------------------------------------------------------------------------


def _settings(subject: Subject) -> tuple[list[Setting], str]:
    """Every setting in which it runs; or the error of the likeliest one."""
    if subject.function is not None:
        return _function_settings(subject)
    if {"q", "k", "v"} <= set(subject.roles().values()):
        modules, _ = _modules(subject)
        if all(parameter.ndim < 2 for parameter in modules[0][1].parameters()):
            subject.module = modules[0][1]
            return _function_settings(subject)
    return _module_settings(subject)


def _function_settings(subject: Subject) -> tuple[list[Setting], str]:
    roles = set(subject.roles().values())
    failed = ""
    settings = []
    if "w_q" in roles or ("x" in roles and "context" in roles):
        return _weighted_settings(subject)
    if not ({"q", "k", "v"} <= roles or "x" in roles):
        return [], f"its arguments ({', '.join(subject.called)}) are not q, k and v, nor x: name them so"
    same = "q" not in roles
    for way, (nothing, batched) in itertools.product(FUNCTION_WAYS, _nothings(subject)):
        call = Call(subject, way, subject.module, nothing=nothing, batched=batched)
        if way.flat:
            if "size heads" in roles and not same:
                settings += _flat(subject, call)
            continue
        pairs = []
        for number, sizes in enumerate((DIFFERENT, CROSS, WIDE, OTHER, SAME)):
            if same and sizes in (CROSS, WIDE):
                continue
            case = function_case(sizes, way, seed=10 * number, same=same)
            try:
                pairs.append((call, case, call(case)))
            except Failed as error:
                failed = failed or f"called with {_shapes(call, case)}, {error}"
                if sizes is DIFFERENT:
                    break
        if pairs and pairs[0][1].q is not None:
            settings.append(Setting(way, pairs, functions=True))
    return settings, failed


def _nothings(subject: Subject) -> list[tuple[Form | None, bool]]:
    """Ways to say that there is no mask, where one has to be given."""
    empty = inspect.Parameter.empty
    must = any(
        means in ("mask", "padding", "bias") and subject.called[name].default is empty
        for name, means in subject.roles().items()
    )
    forms = [(form, batched) for form in FORMS[:4] for batched in (False, True)] if must else []
    return [(None, False), *forms]


def _flat(subject: Subject, call: Call) -> list[Setting]:
    """A function that is given heads side by side: a module whose weights change nothing."""
    pairs = []
    for number, sizes in enumerate((DIFFERENT, CROSS, OTHER)):
        eye = torch.eye(sizes.d_model, dtype=torch.float64)
        weights = Weights(eye, eye, eye, sizes.heads, sizes.heads)
        case = replace(module_case(sizes, Way("btd", ""), sizes.d_model, 10 * number, inputs=3), weights=weights)
        flat = replace(call, way=Way("btd", ""))
        try:
            pairs.append((flat, case, flat(case)))
        except Failed:
            continue
    return [Setting(call.way, pairs, functions=False)] if pairs else []


def _weighted_settings(subject: Subject) -> tuple[list[Setting], str]:
    """A function of x and its weights."""
    failed, settings = "", []
    roles = set(subject.roles().values())
    for stored in ("in-out", "out-in"):
        for way in MODULE_WAYS:
            call = Call(subject, way, stored=stored)
            pairs = []
            for number, sizes in enumerate((DIFFERENT, OTHER)):
                width = sizes.d_model
                q, k, v, out = (drawn(width, width, seed=90 + n) * width**-0.5 for n in range(4))
                heads = sizes.heads if "size heads" in roles else 1
                weights = Weights(q, k, v, heads, heads, out if "w_o" in roles else None)
                inputs = 2 if "context" in roles else 1
                case = replace(module_case(sizes, way, width, 10 * number, inputs=inputs), weights=weights)
                try:
                    pairs.append((call, case, call(case)))
                except Failed as error:
                    failed = failed or str(error)
            if pairs:
                label = f"weights {stored}"
                settings.append(Setting(way, pairs, functions=False, structure=Structure(label, pairs[0][1].weights)))  # type: ignore[arg-type]
    return settings, failed


def _module_settings(subject: Subject) -> tuple[list[Setting], str]:
    modules, failed = _modules(subject)
    roles = set(subject.roles().values())
    if not roles & {"x", "q", "ids"}:
        return [], f"its arguments ({', '.join(subject.called)}) are not x, nor q, k and v: name them so"
    inputs = 3 if {"q", "k", "v"} <= roles else 2 if "context" in roles else 1
    context = subject.has("context")
    optional = context is not None and subject.called[context].default is not subject.called[context].empty
    settings: list[Setting] = []
    for way in MODULE_WAYS:
        found: dict[str, Setting] = {}
        for number, (sizes, module, width, other) in enumerate(modules):
            call = Call(subject, way, module)
            cases = [module_case(sizes, way, width, 20 * number, context=other, inputs=inputs)]
            crossed = replace_sizes(sizes)
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
                setting = found.setdefault(structure.label, Setting(way, [], functions=False, structure=structure))
                setting.pairs += pairs
        most = max((len(setting.pairs) for setting in found.values()), default=0)
        settings += [setting for setting in found.values() if len(setting.pairs) == most]
    if not settings and not failed:
        failed = "no parameters could be told to be those of queries, keys and values"
    return settings, failed


def _turned(module: nn.Module, case: Case, width: int) -> dict[str, Tensor]:
    """Cos and sin for each position and channel of a head, as Llama's in transformers takes them."""
    head = getattr(module, "head_dim", None) or width
    angles = torch.arange(_lengths(case)[0])[:, None] * 10_000.0 ** (-torch.arange(0, head, 2).double() / head)
    both = torch.cat((angles, angles), -1)
    return {"cos": both.cos(), "sin": both.sin()}


def replace_sizes(sizes: Sizes) -> Sizes:
    """Fewer queries than keys."""
    return replace(sizes, queries=sizes.queries - 2, keys=sizes.keys + 1)


def _modules(subject: Subject) -> tuple[list[tuple[Sizes, nn.Module, int, int | None]], str]:
    """Modules of two sizes, in float64, with parameters that all count."""
    failed = ""
    made: list[tuple[Sizes, nn.Module, int, int | None]] = []
    if subject.build is None:
        assert subject.module is not None
        module = subject.module.double().eval()
        redraw(module, 1)
        width, other = _width(module)
        return [(DIFFERENT, module, width, other)], ""
    grouped = any(
        meaning(name, SIZES) == "kv_heads" for name in inspect.signature(subject.kind or nn.Module).parameters
    )
    for sizes in OTHERS:
        if grouped and sizes.heads % 2:
            continue
        try:
            torch.manual_seed(0)
            module, said = subject.build(sizes)
        except InputError as error:
            failed = failed or str(error)
            continue
        module = module.double().eval()
        redraw(module, len(made) + 1)
        if not made:
            subject.taken += said
            subject.told = any(meaning(each.partition("=")[0].rpartition(".")[2], SIZES) == "heads" for each in said)
            subject.module = module
        made.append((sizes, module, _inferred(module, sizes.d_model), None))
        if len(made) == 2:
            break
    if not made:
        raise InputError(failed)
    return made, ""


def whole(subject: Subject) -> nn.Module:
    """The module itself, of any size that can be built.

    Raises:
        InputError: none can.
    """
    return _modules(subject)[0][0][1] if subject.module is None else subject.module


def _inferred(module: nn.Module, guess: int) -> int:
    """The width of its input: what was asked for, unless its parameters say otherwise."""
    widths = [each.in_features for each in module.modules() if isinstance(each, nn.Linear)]
    if guess in widths or not widths:
        return guess
    for name in ("d_model", "embed_dim", "dim", "hidden_size"):
        if isinstance(getattr(module, name, None), int):
            return int(getattr(module, name))
    return widths[0] if widths else guess


def _width(module: nn.Module) -> tuple[int, int | None]:
    for name in ("d_model", "embed_dim", "hidden_size", "dim", "n_embd"):
        for owner in (module, getattr(module, "config", None)):
            value = getattr(owner, name, None)
            if isinstance(value, int):
                other = getattr(module, "kdim", None)
                return value, other if isinstance(other, int) and other != value else None
    from regard.check.names import role

    for path, parameter in module.named_parameters():
        if parameter.ndim == 2 and role(path) in ("q", "qkv"):
            owner = module.get_submodule(path.rpartition(".")[0])
            stored = isinstance(owner, nn.Linear | nn.MultiheadAttention)
            return parameter.shape[1 if stored else 0], None
    raise InputError(f"the width of {type(module).__name__}'s input could not be told: give it an attribute d_model")


def _shapes(call: Call, case: Case) -> str:
    given = call.arguments(case)
    return ", ".join(f"{name} {tuple(value.shape)}" for name, value in given.items() if isinstance(value, Tensor))


# Without a mask. ------------------------------------------------------------------------------------------------------


def _plain(diagnosis: Diagnosis, settings: list[Setting], until: float) -> Stage:
    """The recipe of calls without a mask."""
    subject = diagnosis.subject
    named, hint = _causal_by(subject, settings)
    guesses = [(setting, built_in) for setting in settings for built_in in (False, True)]
    guesses = [(setting, built_in) for setting, built_in in guesses if not built_in or setting.built_in]
    batched = any("b" in setting.way.layout for setting in settings)
    for most in (0, 1, 2):
        for setting, built_in in guesses:
            if batched and "b" not in setting.way.layout:
                continue  # what runs with a batch has to be right with one
            observed = setting.observed(built_in)
            search = Search(until, functions=setting.functions, packed=setting.packed)
            found = search.right(observed, most=most)
            if found is not None:
                diagnosis.setting = setting
                if named and not built_in:
                    dropped = Found(found.choices, ((CAUSES["mask-dropped"], {"seen": "none"}),), found.otherwise)
                    masked = setting.observed(True)
                    return Stage("built-in", f"mask of its own ({named})", masked, _with(dropped, {"seen": "none"}))
                mask = "mask of its own" if built_in else ""
                return Stage("built-in" if built_in else "none", mask, observed, found)
    guesses.sort(key=lambda guess: (guess[1] != hint, settings.index(guess[0])))
    hinted = [guess for guess in guesses if guess[1] == hint]
    others = [guess for guess in guesses if guess[1] != hint]
    for level, most in PATIENCE.items():
        for setting, built_in in (*hinted[:most], *others[: (most + 1) // 2]):
            observed = setting.observed(built_in)
            search = Search(until, functions=setting.functions, packed=setting.packed)
            found = search.measured(observed, {}) if level == "design" else search.wrong(observed, Found({}), level)
            if found is not None and built_in and not hint and _drops(found):
                found = None  # nothing speaks of a mask: none can have been dropped
            if found is not None:
                diagnosis.setting = setting
                if named and not built_in:
                    found = replace(found, causes=(*found.causes, (CAUSES["mask-dropped"], {"seen": "none"})))
                mask = f"mask of its own{f' ({named})' if named else ''}" if built_in or named else ""
                return Stage("built-in" if built_in else "none", mask, observed, found)
            if search.late:
                break
    diagnosis.setting = settings[0]
    why = "no known mistake, alone or with another, gives its output"
    return Stage("built-in" if hint else "none", "mask of its own", settings[0].observed(hint), None, why=why)


def _drops(found: Found) -> bool:
    return any(known.id == "mask-dropped" for known, _ in found.causes)


def _with(found: Found, choices: Choices) -> Found:
    return replace(found, choices={**found.choices, **choices})


def _causal_by(subject: Subject, settings: list[Setting]) -> tuple[str, bool]:
    """What says that it has a causal mask of its own, if nothing could tell it of one; and whether it looks so."""
    roles = set(subject.roles().values())
    told = bool(roles & {"mask", "causal", "padding"})
    name = subject.name.lower()
    by = _flag_of(subject.module) if subject.module is not None and "causal" not in roles else ""
    if not told:
        alone = roles & {"x", "q", "k", "v", "context"} == {"x"}
        words = ("causal", "masked", "autoregress", *(["decoder"] if alone and "encoder" not in name else []))
        if any(word in name for word in words):
            by = f"its name, {subject.name}"
        elif subject.module is not None:
            for path, buffer in subject.module.named_buffers():
                if _triangular(buffer):
                    by = f"its buffer {path}"
    return by, bool(by) or _looks_causal(settings[0])


def _flag_of(module: nn.Module) -> str:
    asked = inspect.signature(type(module)).parameters
    for name in ("causal", "is_causal", "masked"):
        if name in asked and getattr(module, name, None) is True:
            return f"its attribute {name}=True"
    return ""


def _triangular(buffer: Tensor) -> bool:
    while buffer.ndim > 2 and len(buffer) == 1:
        buffer = buffer[0]
    if buffer.ndim != 2 or buffer.shape[0] != buffer.shape[1] or len(buffer) < 3:
        return False
    seen = buffer if buffer.dtype == torch.bool else buffer != buffer[0, -1]
    lower = torch.ones(buffer.shape, dtype=torch.bool).tril()
    return any(bool((seen == each).all()) for each in (lower, ~lower, lower.t(), ~lower.t(), lower.tril(-1)))


def _looks_causal(setting: Setting) -> bool:
    """Whether outputs depend on tokens as under a causal mask, or one that is turned about or off by one."""
    for call, case, output in setting.pairs:
        if not _square(case):
            continue
        tokens = output.shape[-2]
        depends = torch.zeros(tokens, tokens, dtype=torch.bool)
        for at in range(tokens):
            try:
                moved = call(_moved(case, at))
            except Failed:
                return False
            if moved.shape != output.shape:
                return False
            gap = (moved.nan_to_num(0.0) - output.nan_to_num(0.0)).abs().transpose(-2, -1).flatten(0, -2).amax(0)
            depends[:, at] = gap > 0
        past = bool(depends[-1, 0]) and not bool(depends.triu(2).any())
        future = bool(depends[0, -1]) and not bool(depends.tril(-1).any())
        return past or future
    return False


def _moved(case: Case, at: int) -> Case:
    """The same case with another token at a position."""

    def change(tensor: Tensor | None) -> Tensor | None:
        if tensor is None:
            return None
        other = tensor.clone()
        other[..., at, :] = other[..., at, :].flip(-1) * 1.3 + 0.7
        return other

    if case.q is not None:
        return replace(case, k=change(case.k), v=change(case.v))
    return replace(case, x=change(case.x), context=change(case.context), values=change(case.values))


# With each of its masks. ---------------------------------------------------------------------------------------------

LEVELS: tuple[Literal["number", "two", "one and number"], ...] = ("number", "two", "one and number")
SHAPES = {"mask": ("bhqk", "qk", "bqk", "hqk", "qkb1", "qk11"), "padding": ("bk", "b11k", "b1k", "kb", "k")}


def _masks(diagnosis: Diagnosis, plain: Stage, until: float) -> Iterator[Stage]:
    """A stage for each mask that it takes."""
    subject = diagnosis.subject
    assert diagnosis.setting is not None
    crossed = any(case.context is not None or case.q is not None for _, case, _ in diagnosis.setting.pairs)
    for name, means in subject.roles().items():
        if re.search("enc|memory|context|cross", name) and not crossed:
            continue  # of a sequence that there is none of
        if means == "causal":
            stage = _flagged(diagnosis, plain, name, until)
            if stage.observed or subject.has("mask") is None:  # else it is a hint, and needs the mask that it hints at
                yield stage
        elif means in ("mask", "padding"):
            stage = _argued(diagnosis, plain, name, means, until)
            yield stage
            if stage.call is not None and means == "mask":
                yield from _finite(diagnosis, plain, stage, name, until)
        elif means == "bias":
            yield _biased(diagnosis, plain, name, until)


def _passed_on(subject: Subject, stage: Stage) -> Stage:
    """Where the attentions inside take a mask, a mask without effect was not handed on to them."""
    found, module = stage.found, subject.module
    if found is None or module is None or not _drops(found):
        return stage
    inside = {type(part) for part in module.modules() if part is not module and len(list(part.parameters()))}
    takers = [kind for kind in inside if set(_takes(kind)) & {"mask", "padding", "causal"}]
    if not takers:
        return stage
    passed = [
        (CAUSES["mask-not-passed"], {}) if known.id == "mask-dropped" else (known, choices)
        for known, choices in found.causes
    ]
    return replace(stage, found=replace(found, causes=tuple(passed)))


def _takes(kind: type[nn.Module]) -> Iterator[str]:
    for name in inspect.signature(kind.forward).parameters:
        means = meaning(name, INPUTS)
        if means is not None:
            yield means


def _bases(plain: Stage) -> Found:
    assert plain.found is not None
    return plain.found


Tried = list[tuple[Call, list[Observed]]]


def _searched(
    diagnosis: Diagnosis, plain: Stage, tried: Tried, until: float
) -> tuple[Found | None, Call | None, list[Observed]]:
    """The first call, in the order of likelihood, that the recipe explains: as it is, or with mistakes of its mask."""
    setting, base = diagnosis.setting, _bases(plain)
    assert setting is not None
    search = Search(until, functions=setting.functions, packed=setting.packed)
    dropped = None
    for asked in dict.fromkeys(observed[0].asked for _, observed in tried):
        kind = [(call, observed) for call, observed in tried if observed[0].asked == asked]
        for call, observed in kind:
            filled = {"fill": -1e9, **base.choices}  # a column of which all is blocked shows which number it was
            if not all(each.fits(base.choices) or each.fits(filled) for each in observed):
                continue
            if _by_chance(call, search, base):
                tried = [each for each in tried if each[0] is not call]
                continue
            shared = _shared(search, base, tried, call)
            return shared or (base, call, observed)
        kind = [(call, observed) for call, observed in tried if observed[0].asked == asked]
        for call, observed in kind:
            first = {**base.choices, "seen": "first-aligned"}
            if "seen" not in base.choices and asked == "flag" and all(each.fits(first) for each in observed):
                return search.right(observed, base.choices, most=1), call, observed
        for call, observed in kind:
            found = search.wrong(observed, base, "one", masks=True)
            if found is not None and any(known.id == "mask-dropped" for known, _ in found.causes):
                dropped = dropped or (found, call, observed)
            elif found is not None:
                return found, call, observed
    if dropped is not None:
        return dropped
    for level in LEVELS:
        for call, observed in tried:
            found = search.wrong(observed, base, level, masks=True)
            if found is not None:
                return found, call, observed
            if search.late:
                return None, None, tried[0][1]
    return None, None, tried[0][1] if tried else []


def _by_chance(call: Call, search: Search, base: Found) -> bool:
    """Whether a mask that seems to be added is not: a finite one, added, would do something else than it does."""
    if not call.form.name.startswith("added") or call.case is None:
        return False
    may = call.case.may
    assert may is not None
    finite = drawn(*may.shape, seed=77)
    handed = replace(call, form=Form("finite", "", lambda table: table))
    try:
        output = handed(replace(call.case, may=finite))
    except Failed:
        return False
    observed = [Observed(replace(call.case, may=None, bias=finite), output)]
    if observed[0].fits(base.choices):
        return False
    # Whatever is done to a bias, it must be a mistake of the bias.
    return search.wrong(observed, base, "one", masks=True) is None


def _shared(search: Search, base: Found, tried: Tried, right: Call) -> tuple[Found, Call, list[Observed]] | None:
    """The mistake of taking one sample's mask for all, where a mask of one sample is right and of several runs."""
    for call, observed in tried:
        if call.form is right.form and "b" in call.shape and "b" not in right.shape:
            for choices in CAUSES["mask-first-only"].choices:
                merged = {**base.choices, **choices}
                if "seen" in base.choices or all(each.fits(base.choices) for each in observed):
                    continue
                if all(each.fits(merged) for each in observed):
                    known = CAUSES["mask-first-only"]
                    return replace(base, choices=merged, causes=(*base.causes, (known, choices))), call, observed
    return None


def _flagged(diagnosis: Diagnosis, plain: Stage, name: str, until: float) -> Stage:
    setting = diagnosis.setting
    assert setting is not None
    observed: list[Observed] = []
    crossed: list[Observed] = []
    why = ""
    for call, case, _ in setting.pairs:
        flagged = replace(call, flag=True)
        masked = replace(case, may=causal(*_lengths(case)))
        try:
            each = Observed(masked, flagged(masked), "flag")
        except Failed as error:
            why = why or str(error)
            continue
        (observed if _square(case) else crossed).append(each)
    if not observed:
        return Stage("flag", f"flag {name}", [], None, why=f"with {name}=True, {why}")
    call = replace(setting.pairs[0][0], flag=True)
    found, _, _ = _searched(diagnosis, plain, [(call, observed)], until)
    says = ""
    if found is not None and not {known.id for known, _ in found.causes} - {k.id for k, _ in _bases(plain).causes}:
        first = {**found.choices, "seen": "first-aligned"}
        if (
            crossed
            and not all(each.fits(found.choices) for each in crossed)
            and all(each.fits(first) for each in crossed)
        ):
            says = f"{name} counts from the first position: with fewer queries than keys, query i sees keys 0 to i"
    why = "" if found is not None else f"no known mistake explains its output with {name}=True"
    return Stage("flag", f"flag {name}", observed, found, says=says, why=why, call=call)


def _argued(diagnosis: Diagnosis, plain: Stage, name: str, means: str, until: float) -> Stage:
    setting = diagnosis.setting
    assert setting is not None
    built_in = plain.asked == "built-in"
    kinds: tuple[Asked, ...] = ("mask", "padding") if means == "mask" else ("padding", "mask")
    tried: list[tuple[Call, list[Observed]]] = []
    why = ""
    for asked in kinds:
        for pattern in calls_with(setting.pairs[0][0], name, SHAPES[asked]):
            observed = []
            for call, case, _ in setting.pairs[:3]:
                mine = replace(call, form=pattern.form, shape=pattern.shape, to=name)
                masked = replace(case, may=_mask_for(asked, pattern.shape, case, built_in))
                if pattern.shape == "hqk" and case.q is None:
                    continue
                try:
                    output = mine(masked)
                except Failed as error:
                    why = why or str(error)
                    continue
                handed = _mask_for(asked, pattern.shape, case, False)
                assert handed is not None
                if built_in:
                    masked = replace(masked, may=handed & causal(*_lengths(case)))
                observed.append(Observed(masked, output, asked, _zeroed(handed, output)))
            if observed:
                tried.append((replace(pattern, case=observed[0].case), observed))
    if not tried:
        return Stage(kinds[0], f"argument {name}", [], None, why=f"with {name}, {why}")
    found, used, observed = _searched(diagnosis, plain, tried, until)
    why = "" if found is not None else f"no known mistake explains its output with {name}"
    says = used.form.says if used is not None and found is not None else ""
    if used is not None and observed[0].asked == "padding" and used.shape in ("bk", "k", "kb") and means == "mask":
        of = "(batch, keys)" if used.shape == "bk" else used.shape
        says = f"{says + '; ' if says else ''}its {name} is of keys: {of}"
    return Stage(observed[0].asked, f"argument {name}", observed, found, says=says, why=why, call=used)


def _finite(diagnosis: Diagnosis, plain: Stage, stage: Stage, name: str, until: float) -> Iterator[Stage]:
    """What becomes of finite numbers in a mask that is added; and of any float mask, where it seems to be ignored."""
    call = stage.call
    assert call is not None
    assert diagnosis.setting is not None
    if call.form.name.startswith("added"):
        yield _biased(diagnosis, plain, name, until)
    elif call.form.name == "may" and stage.found is not None and not stage.found.causes:
        added = next(form for form in FORMS if form.name == "added")
        for first, case, output in diagnosis.setting.pairs[:1]:
            masked = replace(case, may=_mask_for("mask", call.shape, case, False))
            try:
                ignored = replace(first, form=added, shape=call.shape, to=name)(masked)
            except Failed:
                return
            if torch.equal(ignored, output):
                yield _biased(diagnosis, plain, name, until)


def _zeroed(may: Tensor, output: Tensor) -> Tensor | None:
    """The rows of padding, where an implementation sets their output to zero."""
    padding = ~may[:, 0, 0]
    if may.shape[-2] != 1 or padding.shape != (len(output), output.shape[-2]):
        return None
    rows = output.transpose(1, 2).flatten(2) if output.ndim == 4 else output
    return padding if not bool(rows[padding].any()) else None


def _mask_for(asked: Asked, shape: str, case: Case, built_in: bool) -> Tensor:
    queries, keys = _lengths(case)
    batch = _samples(case)
    if asked == "padding":
        may = padded(batch, keys)
        return may[:1] if shape == "k" else may
    return random_mask(batch if "b" in shape else 1, queries, keys)


def _biased(diagnosis: Diagnosis, plain: Stage, name: str, until: float) -> Stage:
    setting = diagnosis.setting
    assert setting is not None
    observed = []
    why = ""
    for call, case, _ in setting.pairs[:3]:
        queries, keys = _lengths(case)
        heads = case.q.shape[1] if case.q is not None else 1
        for shape in ((1, heads, queries, keys), (1, 1, queries, keys)):
            biased = replace(case, bias=drawn(*shape, seed=55))
            try:
                observed.append(Observed(biased, replace(call, bias=name)(biased), plain.asked))
                break
            except Failed as error:
                why = why or str(error)
    if not observed:
        return Stage("none", f"argument {name}", [], None, why=f"with {name}, {why}")
    found, call_, _ = _searched(diagnosis, plain, [(setting.pairs[0][0], observed)], until)
    why = "" if found is not None else f"no known mistake explains its output with {name}"
    return Stage("none", f"argument {name}", observed, found, why=why, call=call_)
