"""Methods that write a text on: each new token is drawn from the logits behind the newest one, as they are told to."""

from __future__ import annotations

import inspect
import re
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from functools import partial
from typing import Any

import torch
from torch import Tensor, nn
from torch.overrides import TorchFunctionMode
from torch.utils._pytree import tree_leaves

from regard.check.properties.caches.generation import hides_later
from regard.check.properties.caches.written_texts import (
    FEWEST_STEPS,
    PROMPT,
    WRITES_THE_SAME,
    WrittenText,
    first_logits,
    prompt_of,
    ways_to_write,
    writing_methods,
    written_text,
)
from regard.check.properties.code import line_of
from regard.check.properties.finding import Finding
from regard.check.target import Invocation
from regard.check.target.double_precision import double_precision
from regard.check.target.preparation import copied, modules_in

__all__ = ["next_token_findings"]

_HEAT = re.compile(r"temp(?:erature)?|tau", re.I)
_FEW = re.compile(r"top_?k|k", re.I)
"""Names of what logits are divided by, and of how many of the best are drawn from."""
_SHARE = re.compile(r"(?:top_?|nucleus_?)p|nucleus", re.I)
"""Names of how likely those together are that are drawn from."""
_CONTEXT = re.compile(
    r"(?:max_?)?(?:block|context|ctx|window|seq)_?(?:size|len(?:gth)?)|(?:n_?)?ctx|block|context|n_positions"
    r"|max_(?:position_embeddings|positions|len(?:gth)?)",
    re.I,
)
"""Names of how many tokens a model reads at most."""
PEAK, LOW = 30.0, -40.0
"""The largest logit, and one that is never drawn."""
FEWEST_IDS = 6
"""That a model has beside those of the prompt."""
FEW = 3
"""Of the best logits those that are drawn from."""
SHARE = 0.5
"""Of all probability, what is drawn from: less than the best logit alone has."""
HEAT, STEP = 0.5, 1.0
"""A temperature, and how far two logits are apart."""
MAX_CONTEXT = 96
SAME = 1e-4
_MULTINOMIAL = (torch.multinomial, Tensor.multinomial)


@dataclass(frozen=True, eq=False)
class _Run:
    """What a method wrote where it was handed logits that were made up."""

    written: WrittenText
    chosen: list[Tensor]
    """(samples): the id whose logit was the largest behind the last token of each step."""
    elsewhere: list[Tensor]
    """(samples, tokens - 1): the same behind the tokens before it."""
    drawn: list[Tensor]
    """(samples, ids): the probabilities that ids were drawn from."""


def next_token_findings(invocation: Invocation) -> Iterator[Finding]:
    """A method that reads the logits behind another token, or draws from something else than their softmax.

    In the place of the model's own logits it is handed some of which one is by far the largest, so that what it writes
    says where it was read. What it writes beside that, as by a grammar of its own, is nothing that is told.

    Args:
        invocation: a call of a causal model of ids.
    """
    target, prompt = invocation.target, prompt_of(invocation)
    if prompt is None:
        return
    argument, given = prompt
    for name, method in inspect.getmembers(type(target), inspect.isfunction):
        for told in writing_methods(name, method, argument, given[:2]):
            if not _is_causal(target, given[:1]):
                return
            found = _judged(target, name, told) or _beyond_its_context(target, name, argument, given[:1])
            if found is not None:
                yield Finding("violation", "written-from-its-logits", "output", f"{name}() {found}", line_of(method))
                return


def _is_causal(target: nn.Module, given: Tensor) -> bool:
    """Whether a call gives each token the same logits, whatever comes behind it, or gives the last one alone some."""
    try:
        with torch.no_grad(), torch.random.fork_rng(devices=[]), double_precision():
            whole, part = (copied(target)(each.clone()) for each in (given, given[:, :-1]))
    except Exception:  # code of others may raise anything
        return False
    logits = first_logits(whole)
    is_of_the_last = logits is not None and logits.ndim in (2, 3) and logits[..., 0].numel() == 1 < given.shape[1]
    return is_of_the_last or hides_later(whole, part)


def _judged(target: nn.Module, name: str, told: dict[str, Any]) -> str | None:
    """What is wrong with how a method goes from logits to ids; None where nothing is, or where that is not known."""
    run = _run(target, name, told, PEAK)
    if run is None and any(isinstance(each, Tensor) for each in told.values()):
        told = {key: each[:1] if isinstance(each, Tensor) else each for key, each in told.items()}
        run = _run(target, name, told, PEAK)  # it writes one text at a time
    if run is None:
        return None
    found = _of_the_sums(run) or _of_the_text(run) or _of_the_place(run) or _of_the_best(run)
    found = found or _of_no_logits(target, name, told, run)
    parameters = inspect.signature(getattr(type(target), name)).parameters
    heats, fews, shares = ([key for key in parameters if each.fullmatch(key)] for each in (_HEAT, _FEW, _SHARE))
    if found is None and len(fews) == 1 and (few := _run(target, name, {**told, fews[0]: FEW}, PEAK)) is not None:
        found = _of_the_best(few) or _of_too_many(few, fews[0])
    if found is None and len(shares) == 1 and (share := _run(target, name, {**told, shares[0]: SHARE}, PEAK)):
        found = _of_nothing(share, shares[0])
    return found or (_of_the_heat(target, name, told, heats[0]) if len(heats) == 1 else None)


def _run(target: nn.Module, name: str, told: dict[str, Any], peak: float, first: int = 0) -> _Run | None:
    """A run of a method with logits that are made up; None where it raises, or does not take one step for a token.

    Args:
        target: a module.
        name: of the method.
        told: what this is given.
        peak: the largest logit.
        first: the number of the id that has it in the first step.
    """
    chosen, elsewhere, probabilities = list[Tensor](), list[Tensor](), _Drawn()
    prompt = next(each for each in told.values() if isinstance(each, Tensor))
    try:
        with probabilities:
            written = written_text(
                target,
                name,
                told,
                change=partial(_made_up, chosen, elsewhere, {*prompt.flatten().tolist()}, peak, first),
            )
    except Exception:  # code of others may raise anything
        return None
    if len(written.fed) < 2 or not written.returned or len(chosen) != len(written.fed):
        return None
    return _Run(written, chosen, elsewhere, probabilities.drawn)


def _made_up(
    chosen: list[Tensor], elsewhere: list[Tensor], prompt: set[int], peak: float, first: int, logits: Tensor
) -> Tensor:
    """Logits of which one is the largest behind each token: another id each time, and in each sample.

    An id of the prompt is never the largest: what is written twice may be punished. The second largest is lower by one.
    """
    size = logits.shape[-1]
    free = [each for each in range(2, size) if each not in prompt]
    step, samples = len(chosen), len(logits)
    if len(free) < FEWEST_IDS:
        raise RuntimeError("too few ids")
    # No two are alike, so that it is known which are the best few.
    base = torch.linspace(0.0, 1.0, size, dtype=logits.dtype) + (LOW if peak < PEAK else 0.0)
    made = base.expand(logits.shape).clone()
    rows = made if made.ndim == 3 else made[:, None]
    begun = [first + 2 * step + sample for sample in range(samples)]
    each = torch.tensor([free[at % len(free)] for at in begun])
    other = torch.tensor([free[(at + len(free) // 2) % len(free)] for at in begun])
    for sample in range(samples):
        rows[sample, :, int(other[sample])] = peak
        rows[sample, -1] = base
        rows[sample, -1, int(each[sample])] = peak
        if peak < PEAK:
            rows[sample, -1, int(other[sample])] = peak - STEP
    chosen.append(each)
    elsewhere.append(other)
    return made


class _Drawn(TorchFunctionMode):
    """Inside, the probabilities that ids are drawn from are kept."""

    def __init__(self) -> None:
        super().__init__()
        self.drawn: list[Tensor] = []

    def __torch_function__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        kwargs = kwargs or {}
        if func in _MULTINOMIAL:
            given = args[0] if args else kwargs.get("input")
            if isinstance(given, Tensor) and given.ndim in (1, 2):
                self.drawn.append(given.detach().reshape(-1, given.shape[-1]).double().clone())
                if bool(_are_none(self.drawn[-1]).any()):  # so that the method goes on to its end
                    evenly = torch.ones_like(given)
                    args, kwargs = (evenly, *args[1:]), {key: kwargs[key] for key in kwargs if key != "input"}
        return func(*args, **kwargs)


def _of_the_sums(run: _Run) -> str | None:
    """Probabilities that add up over the samples, and not over the ids."""
    for each in run.drawn:
        rows, columns = each.sum(1), each.sum(0)
        if bool(((columns - 1).abs() < SAME).all()) and bool(((rows - 1).abs() > SAME).all()):
            return (
                "draws the next token from probabilities that add up to 1 over the texts of a batch, and not over the "
                "ids: what one text goes on with hangs on the others"
            )
    return None


def _of_the_text(run: _Run) -> str | None:
    """New ids that stand in front of the prompt."""
    prompt, text = run.written.fed[0], run.written.returned[0]
    size = prompt.shape[1]
    if len(text) != len(prompt) or text.shape[1] <= size or torch.equal(text[:, :size], prompt):
        return None
    if torch.equal(text[:, -size:], prompt):
        return "puts each new token in front of the text: what it reads last is always the end of the prompt"
    return None


def _new(run: _Run) -> tuple[Tensor, list[int]] | None:
    """(samples, new tokens): what was written; and the step that each was read from. None where that is not known."""
    text, prompt = run.written.text(), run.written.fed[0]
    if text is None:
        return None
    new, steps = text[:, prompt.shape[1] :], len(run.chosen)
    if new.shape[1] == 0 or new.shape[1] not in (steps, steps - 1):
        return None
    return new, list(range(new.shape[1]))


def _of_the_place(run: _Run) -> str | None:
    """Ids that are those of the logits behind another token than the last."""
    found = _new(run)
    if found is None:
        return None
    new, steps = found
    end, text = run.written.fed[0].shape[1], torch.cat([run.written.fed[0], new], 1)
    if not all(torch.equal(each, text[:, : end + at][:, -each.shape[1] :]) for at, each in enumerate(run.written.fed)):
        return None  # what is read last is not the newest token, but padding
    behind = [at for at in steps if run.written.fed[at].shape[1] > 1]
    if behind and all(torch.equal(new[:, at], run.elsewhere[at]) for at in behind):
        return (
            f"writes the token that is read behind another than the last of the {run.written.fed[behind[0]].shape[1]} "
            "tokens that a step has read: the logits behind the last token are those of the next one"
        )
    return None


def _of_the_best(run: _Run) -> str | None:
    """Probabilities of 0 for the largest logit of each step, and for hardly another one."""
    pairs = [(each, best) for each, best in zip(run.drawn, run.chosen, strict=False) if len(each) == len(best)]
    if len(pairs) < len(run.chosen) - 1 or len(pairs) < 2:
        return None
    lost = [bool((each.gather(1, best[:, None]) == 0).all()) for each, best in pairs]
    kept = [bool(((each > 0).sum(1) >= each.shape[1] // 2).all()) for each, _ in pairs]
    if all(lost) and all(kept):
        return "never draws the token with the largest logit: of the best ones it keeps none, and all the others"
    return None


def _of_too_many(run: _Run, argument: str) -> str | None:
    """Probabilities of one id more than a method is told, as where ranks are counted from 0; or of that many in order.

    No two logits are alike, so that it is not that some are as large as the last one.
    """
    pairs = [
        (row, int(best))
        for each, chosen in zip(run.drawn, run.chosen, strict=False)
        if len(each) == len(chosen)
        for row, best in zip(each, chosen, strict=True)
    ]
    for row, best in pairs:
        ordered = [best, *(each for each in reversed(range(len(row))) if each != best)]
        several = {*row.nonzero().flatten().tolist()}
        if several not in ({*ordered[: FEW + 1]}, {*range(FEW + 1)}) or len(several) == len(row):
            return None
    if len(pairs) < 2:
        return None
    return f"draws from the best {FEW + 1} tokens where {argument}={FEW}: so it is not greedy where it is 1"


def _of_nothing(run: _Run, argument: str) -> str | None:
    """Probabilities of no id at all where the best is likelier than a method is told that all are together."""
    if len(run.drawn) < 2 or not all(bool(_are_none(each).all()) for each in run.drawn):
        return None
    return (
        f"draws from no token where {argument}={SHARE} and the likeliest token has more than that: the one with which "
        "the sum goes beyond it is to be kept"
    )


def _are_none(probabilities: Tensor) -> Tensor:
    """(samples): whether there is nothing to draw from."""
    return ~probabilities.isfinite().all(1) | (probabilities.sum(1) == 0)


def _of_no_logits(target: nn.Module, name: str, told: dict[str, Any], run: _Run) -> str | None:
    """A text that is the same where other ids have the largest logits, of a call that returns nothing beside these.

    As where what is written takes the place of texts that go on, and not of those that have ended.
    """
    again = _run(target, name, told, PEAK, 1)
    texts = [] if again is None else [run.written.text(), again.written.text()]
    if len(run.chosen) < FEWEST_STEPS or not texts or any(each is None for each in texts):
        return None
    one, other = (each for each in texts if each is not None)
    if not torch.equal(one, other) or one.shape[1] < run.written.fed[0].shape[1] + FEWEST_STEPS:
        return None
    try:
        with torch.no_grad(), torch.random.fork_rng(devices=[]), double_precision():
            outputs = [copied(target)(*args, **kwargs) for args, kwargs in run.written.begun[:1]]
    except Exception:  # code of others may raise anything
        return None
    if sum(isinstance(each, Tensor) and each.ndim > 1 for each in tree_leaves(outputs)) > 1:
        return None
    return WRITES_THE_SAME


def _of_the_heat(target: nn.Module, name: str, told: dict[str, Any], argument: str) -> str | None:
    """A temperature that logits are multiplied by."""
    run = _run(target, name, {**told, argument: HEAT}, 0.0)
    if run is None or not run.drawn or len(run.drawn[0]) != len(run.chosen[0]):
        return None
    best, other = (run.drawn[0].gather(1, each[:, None]).flatten() for each in (run.chosen[0], run.elsewhere[0]))
    if not bool((other > 0).all()):
        return None
    ratio = (best / other).log()
    if bool(((ratio - STEP * HEAT).abs() < SAME).all()):
        return (
            f"multiplies the logits by {argument}={HEAT}: they are to be divided by it, so that a low one draws the "
            "likeliest tokens more often"
        )
    return None


def _beyond_its_context(target: nn.Module, name: str, argument: str, prompt: Tensor) -> str | None:
    """A text longer than the model reads at once, of which each step reads the beginning, and so the same."""
    method = getattr(type(target), name)
    named = [
        each.name
        for each in inspect.signature(method).parameters.values()
        if _CONTEXT.fullmatch(each.name) and type(each.default) is int
    ]
    sizes = [PROMPT + 2] if named else [each for each in _contexts(target) if PROMPT < each <= MAX_CONTEXT]
    if not sizes:
        return None
    size = min(sizes)
    for told in ways_to_write(method, argument, prompt[:, :PROMPT], size - PROMPT + 3):
        few = next(ways_to_write(method, argument, prompt[:, :PROMPT], 2))
        try:
            if any(each.shape[1] == 1 for each in written_text(target, name, few).fed[1:]):
                return None  # what is cached is not read again
            written = written_text(target, name, told | dict.fromkeys(named, size))
        except Exception:  # code of others may raise anything
            return None
        text = written.text()
        late = [(each, at) for at, each in enumerate(written.fed) if each.shape[1] < PROMPT + at]
        if text is None or len(late) < 2 or text.shape[1] - PROMPT not in (len(written.fed), len(written.fed) - 1):
            return None
        if all(each.shape[1] > 1 and torch.equal(each, text[:, : each.shape[1]]) for each, _ in late):
            return (
                f"reads the first {late[0][0].shape[1]} tokens of a longer text in each step, and not the last ones: "
                "what it has written since then changes nothing"
            )
    return None


def _contexts(target: nn.Module) -> Sequence[int]:
    """The numbers that a model keeps, itself or in its settings, under names of how many tokens it reads."""
    found = []
    for module in modules_in(target):
        settings = [vars(module)]
        for each in list(vars(module).values()):
            settings += [each] if isinstance(each, dict) else [vars(each)] if _is_settings(each) else []
        found += [
            value
            for several in settings
            for key, value in several.items()
            if isinstance(key, str) and _CONTEXT.fullmatch(key) and type(value) is int
        ]
    return found


def _is_settings(value: Any) -> bool:
    return hasattr(value, "__dict__") and not isinstance(value, nn.Module | Tensor | type) and not callable(value)
