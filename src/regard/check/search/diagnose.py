"""From an implementation to a verdict: every way to call it, every way to read its parameters, one recipe for all.

First without a mask: which recipe returns what it returns? Then each of its masks, upon that recipe. Whatever no recipe
reproduces is shown by how it behaves, or stays undetermined.
"""

from __future__ import annotations

import inspect
import re
from dataclasses import replace
from typing import Literal

import torch
from torch import Tensor, nn

from regard.check.mistakes.catalog import MISTAKES
from regard.check.recipes.case import Case
from regard.check.recipes.state import Choices
from regard.check.search.arrays import on_arrays
from regard.check.search.budget import SearchBudget
from regard.check.search.call_configs import CallConfig, call_configs
from regard.check.search.calls import Failed
from regard.check.search.cases import square
from regard.check.search.masks import drops, masks_of
from regard.check.search.recipe_search import Level, Match, RecipeSearch
from regard.check.search.stage import Diagnosis, Stage
from regard.check.search.subject import Subject
from regard.check.target.subclasses import is_read_by_a_subclass

__all__ = ["diagnose", "is_switched_off", "triangular"]

SEARCH_ORDER: dict[Level | Literal["design"], int] = {
    "one": 8,
    "design": 2,
    "number": 1,
    "two": 2,
    "one otherwise": 4,
    "one and number": 1,
}
"""How many ways to call it and to read its parameters are searched for mistakes, the likelier ones first."""
CAUSAL_SETTINGS = ("causal", "is_causal", "masked")
"""Settings that say whether something masks later tokens."""


def diagnose(subject: Subject, *, budget: SearchBudget) -> Diagnosis:
    """Find out what an implementation computes.

    Args:
        subject: the implementation.
        budget: how much the search may do.
    """
    diagnosis = Diagnosis(subject)
    settings, failed = call_configs(subject)
    if not settings and subject.function is not None:
        subject.function = on_arrays(subject.function)
        settings, _ = call_configs(subject)
        subject.takes_arrays = bool(settings)
        diagnosis.conventions += ["it takes numpy arrays"] if settings else []
    if not settings:
        diagnosis.unexplained.append(failed or "it could not be called")
        return diagnosis
    plain = _plain(diagnosis, settings, budget)
    diagnosis.stages.append(plain)
    if plain.found is not None:
        diagnosis.stages += masks_of(diagnosis, plain, budget)
    return diagnosis


def _plain(diagnosis: Diagnosis, settings: list[CallConfig], budget: SearchBudget) -> Stage:
    """The recipe of calls without a mask."""
    subject = diagnosis.subject
    named, hint = _causal_by(subject, settings)
    guesses = [(setting, built_in) for setting in settings for built_in in (False, True)]
    guesses = [(setting, built_in) for setting, built_in in guesses if not built_in or setting.square]
    batched = any("b" in setting.way.layout for setting in settings)
    for most in (0, 1, 2):
        for setting, built_in in guesses:
            if most and budget.spent:
                break  # as where layers of a list may stand in any order, each of which is a setting
            if batched and "b" not in setting.way.layout:
                continue  # what runs with a batch has to be right with one
            observed = setting.observed(built_in)
            search = RecipeSearch(budget, packed=setting.packed)
            found = search.match_convention(observed, most=most)
            if found is not None:
                diagnosis.setting = setting
                if named and not built_in:
                    dropped = Match(found.choices, ((MISTAKES["mask-dropped"], {"seen": "none"}),), found.otherwise)
                    masked = setting.observed(True)
                    return Stage(
                        "built-in", f"built-in causal mask ({named})", masked, _with(dropped, {"seen": "none"})
                    )
                mask = "built-in causal mask" if built_in else ""
                return Stage("built-in" if built_in else "none", mask, observed, found)
    guesses.sort(key=lambda guess: (guess[1] != hint, settings.index(guess[0])))
    hinted = [guess for guess in guesses if guess[1] == hint]
    others = [guess for guess in guesses if guess[1] != hint]
    searched = 0
    for level, most in SEARCH_ORDER.items():
        if budget.spent:
            break
        for setting, built_in in (*hinted[:most], *others[: (most + 1) // 2]):
            observed = setting.observed(built_in)
            search = RecipeSearch(budget, packed=setting.packed)
            found = (
                search.match_design(observed, {})
                if level == "design"
                else search.match_mistakes(observed, Match({}), level)
            )
            if found is not None and built_in and not hint and drops(found):
                found = None  # nothing speaks of a mask: none can have been dropped
            if found is not None:
                diagnosis.setting = setting
                if named and not built_in:
                    found = replace(found, causes=(*found.causes, (MISTAKES["mask-dropped"], {"seen": "none"})))
                mask = f"built-in causal mask{f' ({named})' if named else ''}" if built_in or named else ""
                return Stage("built-in" if built_in else "none", mask, observed, found)
            if search.budget.spent:
                break
        searched += not budget.spent
    diagnosis.setting = settings[0]
    why = "no known mistake, and no pair of known mistakes, explains its output"
    if searched < len(SEARCH_ORDER):
        done = f"{searched} of {len(SEARCH_ORDER)} parts done"
        why = f"no known mistake was found; the search for one ended after {budget.num_searched:,} recipes: {done}"
    return Stage("built-in" if hint else "none", "built-in causal mask", settings[0].observed(hint), None, why=why)


def _with(found: Match, choices: Choices) -> Match:
    return replace(found, choices={**found.choices, **choices})


def _causal_by(subject: Subject, settings: list[CallConfig]) -> tuple[str, bool]:
    """What says that it has a causal mask of its own, if nothing could tell it of one; and whether it looks so."""
    roles = set(subject.roles().values())
    told = bool(roles & {"mask", "causal", "padding"})
    name = subject.name.lower()
    by = _flag_of(subject.module, True) if subject.module is not None and "causal" not in roles else ""
    off = subject.module is not None and _flag_of(subject.module, False)  # then nothing says that it is causal
    if not told and not off:
        alone = roles & {"x", "q", "k", "v", "context"} == {"x"}
        decodes = alone and "encoder" not in name and not subject.takes_one_token
        words = ("causal", "masked", "autoregress", *(["decoder"] if decodes else []))
        if re.search(rf"(?<!non)(?<!non_)(?<!un)(?:{'|'.join(words)})", name):
            by = f"its name, {subject.name}"
        elif subject.module is not None:
            for path, buffer in subject.module.named_buffers():
                owner, _, name = path.rpartition(".")
                kind = type(subject.module.get_submodule(owner))
                is_off = is_switched_off(subject.module, path)
                if triangular(buffer) and not is_off and not is_read_by_a_subclass(kind, name):
                    by = f"its buffer {path}"
    return by, bool(by) or _looks_causal(settings[0])


def _flag_of(module: nn.Module, value: bool) -> str:
    asked = inspect.signature(type(module)).parameters
    for name in CAUSAL_SETTINGS:
        if name in asked and getattr(module, name, None) is value:
            return f"its attribute {name}={value}"
    return ""


def is_switched_off(module: nn.Module, path: str) -> bool:
    """Whether what holds a causal mask was told not to use it, by a setting that is kept beside it.

    Args:
        module: it, or what it is a part of.
        path: of the buffer.
    """
    owner = module.get_submodule(path.rpartition(".")[0])
    return any(getattr(owner, name, None) is False for name in CAUSAL_SETTINGS)


def triangular(buffer: Tensor) -> bool:
    """Whether a buffer holds a causal mask, however it is written."""
    while buffer.ndim > 2 and len(buffer) == 1:
        buffer = buffer[0]
    if buffer.ndim != 2 or buffer.shape[0] != buffer.shape[1] or len(buffer) < 3:
        return False
    seen = buffer if buffer.dtype == torch.bool else buffer != buffer[0, -1]
    lower = torch.ones(buffer.shape, dtype=torch.bool).tril()
    return any(bool((seen == each).all()) for each in (lower, ~lower, lower.t(), ~lower.t(), lower.tril(-1)))


def _looks_causal(setting: CallConfig) -> bool:
    """Whether outputs depend on tokens as under a causal mask, or one that is turned about or off by one."""
    for call, case, output in setting.pairs:
        if not square(case):
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
