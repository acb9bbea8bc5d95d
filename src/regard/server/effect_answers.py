"""`EffectFacts` of an `EffectQuestion`: exact effects, those known so far told while they are computed."""

from __future__ import annotations

import time
from collections.abc import Callable
from typing import Any

import torch
import torch.nn.functional as F

from regard.errors import InputError, errors_of_argument
from regard.lens.effects import metrics
from regard.lens.effects.effect import prepare_run
from regard.lens.effects.effect_run import EffectRequest, EffectRun
from regard.lens.effects.metrics import Metric
from regard.server.limits import Limits
from regard.server.live_model import LiveModel
from regard.server.questions import EffectQuestion
from regard.server.queueing import Task
from regard.views.html.effects import HeadsOfPaths, effect_facts
from regard.views.html.facts import PageTexts

PROGRESS_SECONDS = 0.3
"""From one event of progress to the next."""

TOKENS_PER_FORWARD = 128
"""Of repeated texts: fewer than `regard.effect` takes, so that a run soon sees that nobody waits for it any more."""


def answer_effects(model: LiveModel, question: EffectQuestion, limits: Limits, task: Task) -> dict[str, Any]:
    """`EffectFacts`, each effect computed exactly.

    Args:
        model: the model.
        question: what is asked.
        limits: of the server.
        task: is checked after each forward pass, and told the progress.

    Raises:
        InputError: a metric, tokens, a source or a text with which this model has no effects.
    """
    _check(model, question)
    with errors_of_argument("texts[0]"):
        reading = model.read(question.texts[0])
    heads = {path: (n, list(reading.recording.entry(path).head_numbers)) for n, path in enumerate(reading.recording)}
    task.check()
    metric = _metric(model, question)
    del reading
    examined, inputs, tokenizer = model.effect_arguments(question.texts[0])
    source = None if question.source is None else _source(model, question.source)
    try:
        run = prepare_run(
            examined,
            inputs,
            metric,
            EffectRequest(question.over, "exact"),
            ablation=question.ablation,
            source=source,
            tokenizer=tokenizer,
        )
        progress = _Progress(run, heads, task)
        run.on_progress, run.tokens_per_forward = progress, TOKENS_PER_FORWARD
        run.run()
    except InputError as error:
        error.argument = error.argument or ("tokens" if question.tokens else "texts")
        raise
    except (ValueError, TypeError, IndexError) as error:
        raise InputError(str(error), "source" if question.source is not None else "texts") from error
    return effect_facts(run.result(stopped=False), heads, PageTexts())


class _Progress:
    """Tells how many effects are known, and which; stops the run where nobody waits for it."""

    def __init__(self, run: EffectRun, heads: HeadsOfPaths, task: Task) -> None:
        self.run, self.heads, self.task, self._last = run, heads, task, time.monotonic()

    def __call__(self, share: float) -> None:
        """A forward pass is done."""
        self.task.check()
        run, now = self.run, time.monotonic()
        if not run.num_done or run.num_done == run.num_exact or now - self._last < PROGRESS_SECONDS:
            return
        self._last = now
        sofar = effect_facts(run.result(stopped=False), self.heads, PageTexts())
        self.task.emit("progress", {"done": run.num_done, "total": run.num_exact, "sofar": sofar})


def _check(model: LiveModel, question: EffectQuestion) -> None:
    """Refuse what does not belong together.

    Raises:
        InputError: a metric that the model does not have; an ablation of tokens or edges; a source too many or few.
    """
    if question.metric not in model.metrics:
        names = ", ".join(map(repr, model.metrics))
        raise InputError(f"metric: {model.name} has {names}; got {question.metric!r}", "metric")
    is_ablation = question.over in ("heads", "layers")
    if not is_ablation and (question.ablation != "zero" or question.source is not None):
        raise InputError(
            f"ablation: over {question.over} attention is blocked and nothing replaced: zero, without a source",
            "ablation",
        )
    if question.ablation == "zero" and question.source is not None:
        raise InputError("source: zeros need none; it belongs to the ablations mean and resample", "source")
    if question.ablation == "resample" and question.source is None:
        raise InputError("source: resample takes the heads' outputs of another text: name it", "source")
    if question.metric == "similarity" and len(question.texts) < 2:
        raise InputError("texts: the metric similarity compares two texts; got one", "texts")


def _metric(model: LiveModel, question: EffectQuestion) -> Metric | Callable[[Any], Any]:
    """The metric of a question.

    Raises:
        InputError: a second text that the model cannot read.
    """
    if question.metric == "cosine":
        return metrics.cosine(model.pooling())
    if question.metric == "kl":
        return metrics.kl()
    if question.metric == "log_prob":
        return metrics.log_prob(question.tokens[0])
    if question.metric == "logit_difference":
        return metrics.logit_difference(question.tokens[0], question.tokens[1])
    with errors_of_argument("texts[1]"):
        other = model.read(question.texts[1]).vector
    assert other is not None, "a model with this metric has a vector"

    def similarity(output: Any) -> torch.Tensor:
        return F.cosine_similarity(model.text_vector(output).double(), other.double(), dim=0)

    return similarity


def _source(model: LiveModel, text: str) -> Any:
    """Another text, as `regard.effect` takes it.

    Raises:
        InputError: the model cannot read it.
    """
    with errors_of_argument("source"):
        model.read(text)
    _, inputs, _ = model.effect_arguments(text)
    return [inputs] if isinstance(inputs, str) else inputs
