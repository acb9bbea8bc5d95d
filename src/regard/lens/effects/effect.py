"""`regard.effect`: what each head, layer, token or edge of a model matters, not only where it looks."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from contextlib import nullcontext
from typing import Any

from torch import Tensor, nn

from regard.errors import short_repr
from regard.lens.effects.columns import OVER
from regard.lens.effects.effect_run import EffectRequest, EffectRun
from regard.lens.effects.effects import Effects
from regard.lens.effects.metrics import Metric, as_metric
from regard.lens.effects.replacements import HeadReplacements
from regard.lens.effects.subject import EffectSubject, module_subject, pretrained_subject
from regard.lens.recording.recording import Recording
from regard.pretrained import Pretrained
from regard.progress_bar import progress_bar

METHODS = ("exact", "gradient", "both")
PROGRESS_STEPS = 1000


def effect(
    model: Pretrained | nn.Module,
    inputs: Any,
    metric: Metric | Callable[[Any], Any],
    over: str = "heads",
    *,
    ablation: str = "zero",
    source: Any = None,
    method: str | None = None,
    queries: Sequence[int] | int | None = None,
    keys: Sequence[int] | Sequence[Sequence[int]] | None = None,
    window: int | None = 1,
    top: int = 20,
    tokenizer: Any = None,
    seed: int = 0,
    progress: bool = True,
) -> Effects:
    """The effect of each head, layer, token or edge on a metric: the metric of the model, minus that without it.

    ::

        model = regard.load("smollm2")
        text = "When Mary and John went to the store, John gave a drink to"
        print(regard.effect(model, text, regard.metrics.logit_difference("Mary", "John")))

    An attention map says where a head looks, not whether that mattered. Here each part is removed, the others run as
    ever, and the metric is computed again: for heads the activation is replaced as in Michel et al. 2019 ("Are Sixteen
    Heads Really Better than One?") and Wang et al. 2022, for tokens and edges attention is knocked out as in Geva et
    al. 2023, section 5. Several parts share a forward pass, each in a batch row; a first row without any edit must be
    the model as it is, or each part takes a pass of its own, and a note tells so. Nothing of the model is changed.

    On a terminal a bar shows the progress. Ctrl-C stops, and returns what is known so far.

    Args:
        model: from `regard.load`, or any module that `regard.watch` sees, in evaluation mode.
        inputs: a text or several, for a model of `regard.load` (for an encoder-decoder also a tuple of source and
            target); for a module a tensor, a tuple of its arguments or a dict of its keyword arguments, in which each
            batch row is a text.
        metric: from `regard.metrics`, or a function of the model's output for one text that returns a number.
        over: ``heads``, ``layers`` (all heads of an attention at once), ``tokens`` (each token hidden from all others
            in every layer; it still attends to itself), or ``edges`` (some queries may not look at some keys).
        ablation: what an ablated head gives: ``zero``; ``mean``, its mean over all texts and positions of the source;
            ``resample``, its output for another text of the source, at the same positions (Chan et al. 2022).
        source: for "mean" and "resample", other texts in the form of `inputs`, or recordings of them by
            `regard.watch`; by default the texts themselves.
        method: ``exact``; ``gradient``, one forward and one backward pass estimate every effect to first order;
            ``both``, all are estimated and the strongest computed exactly. By default ``exact`` for up to 300 parts
            of all texts, and ``both`` for more.
        queries: of edges, positions; the last one by default. Below 0 they count from the end.
        keys: of edges, positions, or lists of positions that are blocked together; each token by default.
        window: of edges, how many layers are blocked at once, around each layer; None for all layers.
        top: for ``both`` how many are computed exactly, of each text; heads and layers by their mean over the texts.
        tokenizer: of a module, to look up the metric's tokens; of transformers or of tokenizers.
        seed: of the draws of "resample".
        progress: whether to show a bar where standard error is a terminal.

    Returns:
        `Effects`; ``print(effects)`` is a table of what was looked at beside what mattered.

    Raises:
        InputError: a text that the model cannot read; a token that is none of its vocabulary.
        TypeError: a text for a module; inputs or a metric of another type; a metric without gradient and a method that
            needs one.
        ValueError: an unknown over, ablation or method; a metric that is NaN or several numbers; a source that does
            not fit; a model in training mode.
        IndexError: queries or keys that are not there.
    """
    request = _request(over, method, queries, keys, window, top)
    run = prepare_run(model, inputs, metric, request, ablation=ablation, source=source, tokenizer=tokenizer, seed=seed)
    show = progress_bar(f"effects over {over}", PROGRESS_STEPS) if progress else nullcontext(_ignore)
    with show as on_progress:
        run.on_progress = lambda share: on_progress(int(share * PROGRESS_STEPS))
        stopped = False
        try:
            run.run()
        except KeyboardInterrupt:
            if not run.states:
                raise
            stopped = True
        return run.result(stopped=stopped)


def prepare_run(
    model: Pretrained | nn.Module,
    inputs: Any,
    metric: Metric | Callable[[Any], Any],
    request: EffectRequest,
    *,
    ablation: str = "zero",
    source: Any = None,
    tokenizer: Any = None,
    seed: int = 0,
) -> EffectRun:
    """The run of a request before it begins; `effect` describes the other arguments and the errors."""
    metric = as_metric(metric)
    replacements = HeadReplacements(ablation, _source_of(model, source, metric, tokenizer), seed)
    if request.over in ("tokens", "edges") and (ablation != "zero" or source is not None):
        raise ValueError(
            f"over={request.over!r} blocks attention and replaces nothing: "
            'ablation and source are for "heads" and "layers"'
        )
    return EffectRun(_subject_of(model, inputs, metric, tokenizer), request, replacements)


def _source_of(model: Any, source: Any, metric: Metric, tokenizer: Any) -> list[Recording] | EffectSubject | None:
    """The recordings of a source, or the model with its texts.

    Raises:
        TypeError: neither; so are the errors of `_subject_of`.
    """
    if source is None or isinstance(source, Recording):
        return None if source is None else [source]
    if isinstance(source, list | tuple) and all(isinstance(item, Recording) for item in source):
        return list(source)
    return _subject_of(model, source, metric, tokenizer)


def _ignore(done: int) -> None:
    """Show nothing."""


def _request(
    over: str,
    method: str | None,
    queries: Sequence[int] | int | None,
    keys: Sequence[int] | Sequence[Sequence[int]] | None,
    window: int | None,
    top: int,
) -> EffectRequest:
    if over not in OVER:
        raise ValueError(f"over={over!r}: it is one of {', '.join(map(repr, OVER))}")
    if method is not None and method not in METHODS:
        raise ValueError(f"method={method!r}: it is one of {', '.join(map(repr, METHODS))}, or None to choose by size")
    if over != "edges" and (queries is not None or keys is not None or window != 1):
        raise ValueError(f'over={over!r} takes no queries, keys and window: they name edges, over="edges"')
    if isinstance(top, bool) or not isinstance(top, int) or top < 1:
        raise ValueError(f"top={top!r}: how many are computed exactly, from 1 on")
    groups = None if keys is None else tuple(_numbers("keys", [key] if isinstance(key, int) else key) for key in keys)
    if groups == ():
        raise ValueError("keys=[]: name one position at least, or None for each token")
    wanted = (-1,) if queries is None else _numbers("queries", [queries] if isinstance(queries, int) else queries)
    return EffectRequest(over, method, wanted, groups, window, top)


def _numbers(name: str, positions: Any) -> tuple[int, ...]:
    numbers = tuple(positions.tolist() if isinstance(positions, Tensor) else positions)
    if not numbers or any(isinstance(n, bool) or not isinstance(n, int) for n in numbers):
        raise ValueError(f"{name}: {short_repr(repr(positions))} is no list of positions, such as [0, 3]")
    return numbers


def _subject_of(model: Any, inputs: Any, metric: Metric, tokenizer: Any) -> EffectSubject:
    """A model and its texts.

    Raises:
        TypeError: no model, no texts.
        ValueError: a model in training mode; a tokenizer for a model that has its own.
    """
    if isinstance(model, Pretrained):
        if tokenizer is not None:
            raise ValueError(f"tokenizer is for modules: {model.name} has its own")
        subject = pretrained_subject(model, inputs, metric)
    elif isinstance(model, nn.Module):
        subject = module_subject(model, inputs, metric, tokenizer)
    else:
        raise TypeError(
            f"effect(model, ...) wants a model of regard.load or a torch.nn.Module; got {type(model).__name__}"
            + (f": write regard.effect(regard.load({model!r}), ...)" if isinstance(model, str) else "")
        )
    if subject.model.training:
        raise ValueError(f"{subject.name} is in training mode, where dropout changes every answer: call .eval() first")
    return subject
