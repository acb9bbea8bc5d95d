"""Each mistake on the numbers of the course: what its recipe computes, beside the definition."""

from __future__ import annotations

from collections.abc import Iterator

import torch
from torch import Tensor

from regard.check.mistakes.course_numbers import ExampleSetting, example_settings
from regard.check.mistakes.mistake import Mistake
from regard.check.mistakes.worked_example import MatrixPair, RecipeExample, WorkedExample
from regard.check.recipes.case import Case
from regard.check.recipes.recipe import RecipeCache, definition, first_step
from regard.check.recipes.state import STEP_NAMES, Choices, State

__all__ = ["leak", "sentence_numbers", "worked_example"]

AXES = {
    **dict.fromkeys(("scores", "scaled", "biased", "masked", "weights"), ("query", "key")),
    **dict.fromkeys(("output", "heads", "projected"), ("query", "channel")),
}
"""What a row and a column of a step are, where they are not a token and a channel."""
MAX_PAIRS = 2
"""Matrices of a step that are shown."""


def worked_example(known: Mistake, chosen: Choices | None = None) -> WorkedExample:
    """A mistake on the course's numbers.

    Args:
        known: the mistake.
        chosen: in which way it is made; as in its line of code, by default.

    Raises:
        KeyError: no way to make it changes a number in any of the settings.
    """
    special = known.worked_example
    if not isinstance(special, RecipeExample):
        return special()
    settings = example_settings()
    several = known.recipe if special.recipe is None else (special.recipe,)
    for choices in (chosen, *several) if chosen else several:
        for name in (special.setting,) if special.setting else settings:
            setting = settings[name]
            if known.mask_sources and setting.mask_source not in known.mask_sources:
                continue
            found = _example(known, choices, setting)
            if found is not None:
                return found
    raise KeyError(known.id)


def _example(known: Mistake, choices: Choices, setting: ExampleSetting) -> WorkedExample | None:
    yours, right = RecipeCache(setting.case).state(choices), definition(setting.case)
    if yours is None:
        return None
    names = STEP_NAMES[STEP_NAMES.index(first_step(choices)) :]
    differing = [name for name in names if _differ(getattr(yours, name), getattr(right, name))]
    if not differing:
        return None
    last = "projected" if right.projected is not None else "output" if right.output.shape[1] == 1 else "heads"
    shown = dict.fromkeys((differing[0], last if last in differing else differing[-1]))
    pairs = [pair for name in shown for pair in _pairs(name, getattr(yours, name), getattr(right, name))]
    numbers = sentence_numbers(known, choices, setting.case, yours, right)
    return WorkedExample(setting.description, differing[0], tuple(pairs), numbers)


def _differ(yours: Tensor | None, right: Tensor | None) -> bool:
    if yours is None or right is None:
        return yours is not right
    return yours.shape != right.shape or not torch.allclose(yours, right, rtol=0, atol=1e-9, equal_nan=True)


def _pairs(name: str, yours: Tensor | None, right: Tensor | None) -> Iterator[MatrixPair]:
    """The matrices of a step that differ, two at most."""
    if yours is None or right is None:
        return
    rows, columns = AXES.get(name, ("token", "channel"))
    left, leading = yours.reshape(-1, *yours.shape[-2:]), right.shape[:-2]
    beside = right.reshape(-1, *right.shape[-2:])
    if left.shape != beside.shape:
        sizes = " and ".join(
            f"{len(each)} of {each.shape[1]} x {each.shape[2]} {word}"
            for each, word in ((left, "here"), (beside, "in the definition"))
        )
        yield MatrixPair(f"{name}: {sizes}; the first of them", left[0], beside[0], rows, columns)
        return
    for at in [n for n in range(len(left)) if _differ(left[n], beside[n])][:MAX_PAIRS]:
        sample, head = (at // leading[1], at % leading[1]) if len(leading) == 2 else (at, 0)
        of = [f"sample {sample}"] if leading[0] > 1 else []
        of += [f"head {head}"] if len(leading) == 2 and leading[1] > 1 else []
        yield MatrixPair(", ".join([name, *of]), left[at], beside[at], rows, columns)


def sentence_numbers(known: Mistake, choices: Choices, case: Case, yours: State, right: State) -> dict[str, object]:
    """What the sentences of a cause leave open, in one call.

    Args:
        known: the cause.
        choices: in which way it is made.
        case: the inputs.
        yours: the steps with the cause; those that were not computed are taken to be the definition's.
        right: the steps of the definition.
    """
    batch, heads, tokens, width = right.q.shape
    scaling, weights = getattr(yours, "scaling", right.scaling), getattr(yours, "weights", right.weights)
    number = 1 / scaling
    if "fill" in choices and isinstance(choices["fill"], float):
        number = choices["fill"]
    return {
        "batch": batch,
        "heads": heads,
        "tokens": tokens,
        "count": (right.q if choices.get("scale") == "queries" else right.k).shape[-2],
        "d": width,
        "d_value": right.v.shape[-1],
        "model": heads * width,
        "right": width**0.5,
        "number": number,
        "inverse": scaling,
        "known": "",
        "row": weights[0, 0, 0].sum().item(),
        "what": known.words(choices),
        "mask": "padding mask" if _is_padding(case) else "causal mask",
        "seen": "later positions only",
        "leak": leak(case, weights),
    }


def _is_padding(case: Case) -> bool:
    return case.may is not None and case.may.shape[-2] == 1


def leak(case: Case, weights: Tensor) -> str:
    """How much attention goes where it must not."""
    if case.may is None:
        return ""
    weights = weights.abs().nan_to_num(0.0)
    share = (weights * ~case.may).sum(-1) / weights.sum(-1).clamp(min=1e-12)
    most = share.max().item()
    if most == 0:
        return "Allowed keys are blocked as well."
    sample, _, query = (int(each) for each in (share == most).nonzero()[0])
    of = f"Query {query}" + (f" of sample {sample}" if len(share) > 1 else "")
    what = "padding" if _is_padding(case) else "blocked keys"
    return f"{of} gives {100 * most:.3g} % of its attention to {what}."
