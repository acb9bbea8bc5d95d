"""Each mask that an implementation takes, upon the recipe that explains it without one."""

from __future__ import annotations

import inspect
import re
from collections.abc import Iterator
from dataclasses import replace

import torch
from torch import Tensor, nn

from regard.check.mistakes.catalog import MISTAKES
from regard.check.mistakes.mistake import MaskSource
from regard.check.names import INPUTS, meaning
from regard.check.properties.masks.graph_edges import GRAPH
from regard.check.properties.unused_arguments import is_said_unused
from regard.check.recipes.case import Case, causal
from regard.check.search.budget import SearchBudget
from regard.check.search.calls import Failed, ProbeCall, calls_with
from regard.check.search.cases import drawn, lengths, padded, random_mask, square
from regard.check.search.mask_formats import FORMS, MaskFormat
from regard.check.search.observed import Observed
from regard.check.search.recipe_search import Level, Match, RecipeSearch
from regard.check.search.stage import Diagnosis, Stage
from regard.check.search.subject import Subject
from regard.check.target.argument import source_of
from regard.check.target.usage import is_where_infinite

__all__ = ["drops", "masks_of"]

LEVELS: tuple[Level, ...] = ("number", "two", "one and number")
SHAPES = {"mask": ("bhqk", "qk", "bqk", "hqk", "qkb1", "qk11"), "padding": ("bk", "b11k", "b1k", "kb", "k")}


def masks_of(diagnosis: Diagnosis, plain: Stage, budget: SearchBudget) -> Iterator[Stage]:
    """A stage for each mask that it takes."""
    for stage in _each(diagnosis, plain, budget):
        yield _passed_on(diagnosis.subject, stage)


def _each(diagnosis: Diagnosis, plain: Stage, budget: SearchBudget) -> Iterator[Stage]:
    subject = diagnosis.subject
    assert diagnosis.setting is not None
    crossed = any(case.context is not None or case.q is not None for _, case, _ in diagnosis.setting.pairs)
    target = subject.function or diagnosis.setting.pairs[0][0].module
    for name, means in subject.roles().items():
        if is_said_unused(target, name):
            continue
        if re.search("enc|memory|context|cross", name) and not crossed:
            continue  # of a sequence that there is none of
        if means == "causal":
            stage = _flagged(diagnosis, plain, name, budget)
            if stage.observed or subject.has("mask") is None:  # else it is a hint, and needs the mask that it hints at
                yield stage
        elif means in ("mask", "padding"):
            stage = _argued(diagnosis, plain, name, means, budget)
            yield stage
            if stage.call is not None and means == "mask":
                yield from _finite(diagnosis, plain, stage, name, budget)
        elif means == "bias":
            yield _biased(diagnosis, plain, name, budget)


def _passed_on(subject: Subject, stage: Stage) -> Stage:
    """Where the attentions inside take a mask, a mask without effect was not handed on to them."""
    found, module = stage.found, subject.module
    if found is None or module is None or not drops(found):
        return stage
    inside = {type(part) for part in module.modules() if part is not module and len(list(part.parameters()))}
    takers = [kind for kind in inside if set(_takes(kind)) & {"mask", "padding", "causal"}]
    if not takers:
        return stage
    passed = [
        (MISTAKES["mask-not-passed"], {}) if known.id == "mask-dropped" else (known, choices)
        for known, choices in found.causes
    ]
    return replace(stage, found=replace(found, causes=tuple(passed)))


def _takes(kind: type[nn.Module]) -> Iterator[str]:
    for name in inspect.signature(kind.forward).parameters:
        means = meaning(name, INPUTS)
        if means is not None:
            yield means


def _bases(plain: Stage) -> Match:
    assert plain.found is not None
    return plain.found


Tried = list[tuple[ProbeCall, list[Observed]]]


def _searched(
    diagnosis: Diagnosis, plain: Stage, tried: Tried, budget: SearchBudget
) -> tuple[Match | None, ProbeCall | None, list[Observed]]:
    """The first call, in the order of likelihood, that the recipe explains: as it is, or with mistakes of its mask."""
    setting, base = diagnosis.setting, _bases(plain)
    assert setting is not None
    search = RecipeSearch(budget, packed=setting.packed)
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
            shared = _shared(base, tried, call)
            return shared or (base, call, observed)
        kind = [(call, observed) for call, observed in tried if observed[0].asked == asked]
        for call, observed in kind:
            first = {**base.choices, "seen": "first-aligned"}
            if "seen" not in base.choices and asked == "flag" and all(each.fits(first) for each in observed):
                return search.match_convention(observed, base.choices, most=1), call, observed
        for call, observed in kind:
            found = search.match_mistakes(observed, base, "one", masks=True)
            if found is not None and any(known.id == "mask-dropped" for known, _ in found.causes):
                dropped = dropped or (found, call, observed)
            elif found is not None:
                return found, call, observed
    if dropped is not None:
        return dropped
    for level in LEVELS:
        for call, observed in tried:
            found = search.match_mistakes(observed, base, level, masks=True)
            if found is not None:
                return found, call, observed
            if search.budget.spent:
                return None, None, tried[0][1]
    return None, None, tried[0][1] if tried else []


def _by_chance(call: ProbeCall, search: RecipeSearch, base: Match) -> bool:
    """Whether a mask that seems to be added is not: a finite one, added, would do something else than it does."""
    if not call.form.name.startswith("added") or call.case is None:
        return False
    may = call.case.may
    assert may is not None
    finite = drawn(*may.shape, seed=77)
    handed = replace(call, form=MaskFormat("finite", "", lambda table: table))
    try:
        output = handed(replace(call.case, may=finite))
    except Failed:
        return False
    observed = [Observed(replace(call.case, may=None, bias=finite), output)]
    if observed[0].fits(base.choices):
        return False
    # Whatever is done to a bias, it must be a mistake of the bias.
    return search.match_mistakes(observed, base, "one", masks=True) is None


def _shared(base: Match, tried: Tried, right: ProbeCall) -> tuple[Match, ProbeCall, list[Observed]] | None:
    """The mistake of taking one sample's mask for all, where a mask of one sample is right and of several runs."""
    for call, observed in tried:
        if call.form is right.form and "b" in call.shape and "b" not in right.shape:
            for choices in MISTAKES["mask-first-only"].recipe:
                merged = {**base.choices, **choices}
                if "seen" in base.choices or all(each.fits(base.choices) for each in observed):
                    continue
                if all(each.fits(merged) for each in observed):
                    known = MISTAKES["mask-first-only"]
                    return replace(base, choices=merged, causes=(*base.causes, (known, choices))), call, observed
    return None


def _flagged(diagnosis: Diagnosis, plain: Stage, name: str, budget: SearchBudget) -> Stage:
    setting = diagnosis.setting
    assert setting is not None
    observed: list[Observed] = []
    crossed: list[Observed] = []
    why = ""
    for call, case, _ in setting.pairs:
        flagged = replace(call, flag=True)
        masked = replace(case, may=causal(*lengths(case)))
        try:
            each = Observed(masked, flagged(masked), "flag")
        except Failed as error:
            why = why or str(error)
            continue
        (observed if square(case) else crossed).append(each)
    if not observed:
        return Stage("flag", f"flag {name}", [], None, why=f"with {name}=True, {why}")
    call = replace(setting.pairs[0][0], flag=True)
    found, _, _ = _searched(diagnosis, plain, [(call, observed)], budget)
    says = ""
    if found is not None and not {known.id for known, _ in found.causes} - {k.id for k, _ in _bases(plain).causes}:
        first = {**found.choices, "seen": "first-aligned"}
        if (
            crossed
            and not all(each.fits(found.choices) for each in crossed)
            and all(each.fits(first) for each in crossed)
        ):
            says = f"{name} counts from the first position: query i attends to keys 0 to i, also if there are more keys"
    why = "" if found is not None else f"no known mistake explains its output with {name}=True"
    return Stage("flag", f"flag {name}", observed, found, says=says, why=why, call=call)


def _argued(diagnosis: Diagnosis, plain: Stage, name: str, means: str, budget: SearchBudget) -> Stage:
    setting = diagnosis.setting
    assert setting is not None
    built_in = plain.asked == "built-in"
    kinds: tuple[MaskSource, ...] = ("mask", "padding") if means == "mask" else ("padding", "mask")
    if GRAPH.fullmatch(name.lower()):  # an edge is of two nodes
        kinds = ("mask",)
    tried: list[tuple[ProbeCall, list[Observed]]] = []
    why = ""
    for asked in kinds:
        for pattern in calls_with(setting.pairs[0][0], name, SHAPES[asked]):
            observed = []
            for call, case, _ in setting.pairs[:3]:
                mine = replace(call, form=pattern.form, shape=pattern.shape, to=name)
                handed = _mask_for(asked, pattern.shape, case)
                masked = replace(case, may=handed)
                if pattern.shape == "hqk" and case.q is None:
                    continue
                try:
                    output = mine(masked)
                except Failed as error:
                    why = why or str(error)
                    continue
                if built_in:
                    masked = replace(masked, may=handed & causal(*lengths(case)))
                observed.append(_of_real_queries(Observed(masked, output, asked), handed, _bases(plain)))
            if observed:
                tried.append((replace(pattern, case=observed[0].case), observed))
    if not tried:
        return Stage(kinds[0], f"argument {name}", [], None, why=f"with {name}, {why}")
    found, used, observed = _searched(diagnosis, plain, tried, budget)
    why = "" if found is not None else f"no known mistake explains its output with {name}"
    says = used.form.says if used is not None and found is not None else ""
    if used is not None and observed[0].asked == "padding" and used.shape in ("bk", "k", "kb") and means == "mask":
        shape = {"bk": "(batch, keys)", "kb": "(keys, batch)", "k": "(keys,)"}[used.shape]
        says = f"{says + '; ' if says else ''}its {name} has the shape {shape}"
    return Stage(observed[0].asked, f"argument {name}", observed, found, says=says, why=why, call=used)


def _finite(diagnosis: Diagnosis, plain: Stage, stage: Stage, name: str, budget: SearchBudget) -> Iterator[Stage]:
    """What becomes of finite numbers in a mask that is added; and of any float mask, where it seems to be ignored."""
    call = stage.call
    assert call is not None
    assert diagnosis.setting is not None
    if call.form.name.startswith("added"):
        if is_where_infinite(source_of(diagnosis.subject.kind or diagnosis.subject.function), name):
            return
        yield _biased(diagnosis, plain, name, budget)
    elif call.form.name == "may" and stage.found is not None and not stage.found.causes:
        added = next(form for form in FORMS if form.name == "added")
        for first, case, output in diagnosis.setting.pairs[:1]:
            masked = replace(case, may=_mask_for("mask", call.shape, case))
            try:
                ignored = replace(first, form=added, shape=call.shape, to=name)(masked)
            except Failed:
                return
            if torch.equal(ignored, output):
                yield _biased(diagnosis, plain, name, budget)


def _of_real_queries(observed: Observed, may: Tensor, base: Match) -> Observed:
    """Without the rows of padding, where these alone are zero, or else than the recipe says: they are of no use."""
    padding, output = ~may[:, 0, 0], observed.output
    if may.shape[-2] != 1 or padding.shape != (len(output), output.shape[-2]):
        return observed
    rows = output.transpose(1, 2).flatten(2) if output.ndim == 4 else output
    others = replace(observed, ignored=padding)
    is_zero = not bool(rows[padding].any())
    return others if is_zero or (others.fits(base.choices) and not observed.fits(base.choices)) else observed


def _mask_for(asked: MaskSource, shape: str, case: Case) -> Tensor:
    queries, keys = lengths(case)
    batch = case.batch_size
    if asked == "padding":
        may = padded(batch, keys)
        return may[:1] if shape == "k" else may
    return random_mask(batch if "b" in shape else 1, queries, keys)


def _biased(diagnosis: Diagnosis, plain: Stage, name: str, budget: SearchBudget) -> Stage:
    setting = diagnosis.setting
    assert setting is not None
    observed = []
    why = ""
    for call, case, _ in setting.pairs[:3]:
        queries, keys = lengths(case)
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
    found, call_, _ = _searched(diagnosis, plain, [(setting.pairs[0][0], observed)], budget)
    why = "" if found is not None else f"no known mistake explains its output with {name}"
    return Stage("none", f"argument {name}", observed, found, why=why, call=call_)


def drops(found: Match) -> bool:
    """Whether a mask is among what has no effect."""
    return any(known.id == "mask-dropped" for known, _ in found.causes)
