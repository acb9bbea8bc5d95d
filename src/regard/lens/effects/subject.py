"""The model that `regard.effect` examines, and its texts: each can be run alone, or repeated along the batch."""

from __future__ import annotations

import inspect
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from functools import partial
from typing import Any

import torch
from torch import Tensor, nn

from regard.errors import InputError, short_repr
from regard.lens.effects.metrics import Encode, Metric, TextContext, map_tensors, tensors_of
from regard.lens.text.streams import Streams
from regard.lens.watch import watch
from regard.pretrained import Pretrained
from regard.transformer import Decoder, Encoder, EncoderDecoder

LOGITS_TO_KEEP = "logits_to_keep"
"""The argument of decoders, ours and those of transformers, by which they compute the last logits only."""


@dataclass(frozen=True)
class TextArguments:
    """One text as a model reads it: arguments with a batch axis of 1."""

    args: tuple[Any, ...]
    kwargs: dict[str, Any]
    ids: Tensor | None = None
    """``(tokens,)``: the ids at the positions of the output."""
    key_ids: Tensor | None = None
    """``(tokens,)``: the ids of the tokens that are looked at; the source's of an encoder-decoder."""
    tokens: tuple[str, ...] = ()
    """The tokens that are looked at, to be read by people."""
    query_tokens: tuple[str, ...] = ()
    """The tokens at the positions of the output, to be read by people."""
    valid: Tensor | None = None
    """The positions of the output that are not padding; None for all."""
    valid_keys: Tensor | None = None
    """The positions of the tokens that are not padding; None for all."""

    @property
    def num_tokens(self) -> int:
        """About how many tokens a forward pass computes."""
        sizes = [int(t.shape[1]) for t in tensors_of([self.args, self.kwargs]) if t.ndim > 1]
        return max([1, *sizes])

    def context(self, unedited: Any = None) -> TextContext:
        """What a metric may know of it."""
        return TextContext(self.ids, self.valid, unedited)


@dataclass(frozen=True)
class EffectSubject:
    """A model, its texts, and how it is called."""

    model: nn.Module
    texts: tuple[TextArguments, ...]
    metric: Metric
    """With ids in place of strings."""
    name: str
    batch_axis: int | None = 0
    """The axis of the inputs along which a text is repeated: 1 for PyTorch's layers with batch_first=False, None where
    there is none."""
    options: dict[str, Any] = field(default_factory=dict)
    """Keyword arguments for every call."""
    finish: Callable[[Tensor], Any] | None = None
    """What is computed of the model's output before the metric reads it."""

    def run(self, text: TextArguments, rows: int = 1) -> Any:
        """The model's output for a text that is repeated along the batch; the batch axis comes first."""
        args, kwargs = text.args, text.kwargs
        if rows > 1 and self.batch_axis is not None:
            args, kwargs = (
                map_tensors(value, partial(_repeated, rows=rows, axis=self.batch_axis)) for value in (args, kwargs)
            )
        output = self.model(*args, **kwargs, **self.options)
        if self.batch_axis is None:
            output = map_tensors(output, lambda t: t[None])
        elif self.batch_axis == 1:
            output = map_tensors(output, lambda t: t.transpose(0, 1) if t.ndim > 1 and t.shape[1] == rows else t)
        return output if self.finish is None else self.finish(output)


def _repeated(t: Tensor, *, rows: int, axis: int) -> Tensor:
    if t.ndim <= axis or t.shape[axis] != 1:
        return t
    return t.repeat_interleave(rows, axis)


# Models of regard.


def pretrained_subject(pretrained: Pretrained, inputs: Any, metric: Metric) -> EffectSubject:
    """A `Pretrained` and texts.

    Args:
        pretrained: from `regard.load`.
        inputs: a text or a list of texts; of an encoder-decoder a text, whose target it generates, or a tuple
            (source, target).
        metric: the metric.

    Raises:
        InputError: a text that it cannot read; a metric of tokens that it does not have.
        TypeError: no texts.
    """
    model = pretrained.model
    is_pair = isinstance(inputs, tuple) and isinstance(model, EncoderDecoder)
    items = [inputs] if isinstance(inputs, str) or is_pair else list(inputs) if isinstance(inputs, Sequence) else []
    if not items:
        raise TypeError(
            f"inputs of {pretrained.name} are a text or a list of texts; got {short_repr(repr(inputs))}. For tensors "
            "give the module: regard.effect(pretrained.model, ids, metric)"
        )
    has_tokenizer = pretrained.tokenizer is not None
    metric = metric.with_ids(pretrained.encode_continuation if has_tokenizer else None)
    texts = tuple(_text(pretrained, item) for item in items)
    options: dict[str, Any] = {}
    if isinstance(model, Decoder):
        options = logits_option(model, metric)
    finish = None
    if isinstance(model, Encoder) and metric.reads == "logits":
        if model.mlm_head is None:
            raise InputError(
                f"{pretrained.name} is an encoder without a language-model head, so {metric.name} has no logits to "
                "read: use regard.metrics.cosine(), or a function of its vectors"
            )
        finish = model.logits
    return EffectSubject(model, texts, metric, pretrained.name, options=options, finish=finish)


def _text(pretrained: Pretrained, item: Any) -> TextArguments:
    source, target = item if isinstance(item, tuple) and len(item) == 2 else (item, None)
    if not isinstance(source, str):
        raise TypeError(f"a text must be a string; got {type(source).__name__}")
    streams = Streams.of(source, pretrained, target=target)
    ids, token_types = streams.input_tensors
    if isinstance(pretrained.model, EncoderDecoder):
        assert streams.source is not None
        source_ids = torch.tensor(streams.source.ids, device=ids.device)
        tokens = tuple(streams.source.display_tokens())
        query_tokens = (streams.start_token, *streams.query_words.display_tokens()[: len(ids) - 1])
        return TextArguments((source_ids[None], ids[None]), {}, ids, source_ids, tokens, query_tokens)
    tokens = tuple(streams.query_words.display_tokens())
    args = (ids[None],) if token_types is None else (ids[None], token_types[None])
    return TextArguments(args, {}, ids, ids, tokens, tokens)


def logits_option(model: nn.Module, metric: Metric) -> dict[str, Any]:
    """The argument that keeps the logits of the last positions only, where the metric reads no others."""
    if metric.reads != "logits" or metric.position is None or metric.position >= 0:
        return {}
    if LOGITS_TO_KEEP not in inspect.signature(model.forward).parameters:
        return {}
    return {LOGITS_TO_KEEP: -metric.position}


# Any module.


def module_subject(model: nn.Module, inputs: Any, metric: Metric, tokenizer: Any) -> EffectSubject:
    """Any module and its inputs.

    Args:
        model: the module.
        inputs: a tensor, a tuple of arguments or a dict of keyword arguments; each batch row is a text.
        metric: the metric.
        tokenizer: of transformers or of tokenizers, to look tokens up; None if there is none.

    Raises:
        TypeError: texts; inputs of another type.
        ValueError: no tensor with a batch axis.
    """
    args, kwargs = _arguments(inputs)
    encode, decode = tokenizer_functions(tokenizer)
    metric = metric.with_ids(encode)
    batch_axis = _batch_axis(model, args, kwargs)
    if batch_axis is None:
        return EffectSubject(model, (TextArguments(args, kwargs),), metric, type(model).__name__, None)
    count = _num_texts(args, kwargs, batch_axis)
    mask = kwargs.get("attention_mask")
    target_mask = kwargs.get("decoder_attention_mask")
    padded = any(isinstance(t, Tensor) and t.ndim == 2 and not bool(t.all()) for t in (mask, target_mask))
    options = {} if padded or LOGITS_TO_KEEP in kwargs else logits_option(model, metric)
    texts = []
    for n in range(count):
        part = partial(_one_text, n=n, count=count, axis=batch_axis)
        own_args, own_kwargs = map_tensors(args, part), map_tensors(kwargs, part)
        key_ids, ids = _token_ids(own_args, own_kwargs)
        valid_keys = _positions_of(own_kwargs.get("attention_mask"))
        valid = _positions_of(own_kwargs.get("decoder_attention_mask")) if ids is not key_ids else valid_keys
        texts.append(
            TextArguments(
                own_args,
                own_kwargs,
                ids,
                key_ids,
                _decoded(key_ids, decode),
                _decoded(ids, decode),
                valid,
                valid_keys,
            )
        )
    return EffectSubject(model, tuple(texts), metric, type(model).__name__, batch_axis, options)


def _arguments(inputs: Any) -> tuple[tuple[Any, ...], dict[str, Any]]:
    if isinstance(inputs, Tensor):
        return (inputs[None] if inputs.ndim == 1 else inputs,), {}
    if isinstance(inputs, Mapping):
        return (), dict(inputs)
    if isinstance(inputs, tuple) and any(True for _ in tensors_of(inputs)):
        return inputs, {}
    raise TypeError(
        f"inputs={short_repr(repr(inputs))}: a torch.nn.Module reads a Tensor, a tuple of its arguments or a dict of "
        "its keyword arguments. For a text give a model of regard.load(NAME), or tokenizer(text, "
        "return_tensors='pt') and tokenizer=tokenizer"
    )


def _num_texts(args: tuple[Any, ...], kwargs: dict[str, Any], axis: int) -> int:
    sizes = [t.shape[axis] for t in tensors_of([args, kwargs]) if t.ndim > 1]
    if not sizes:
        raise ValueError("no tensor of the inputs has a batch axis: give (batch, tokens), or (1, tokens) for one text")
    return int(sizes[0])


def _batch_axis(model: nn.Module, args: tuple[Any, ...], kwargs: dict[str, Any]) -> int | None:
    """The axis of the inputs that counts the texts, by the batch that the attention has.

    Only vectors leave it open: those of PyTorch's own layers have the tokens first, unless batch_first says otherwise.
    """
    first = next(tensors_of([args, kwargs]), None)
    if first is None or not first.is_floating_point() or first.ndim not in (2, 3):
        return 0
    with torch.no_grad(), watch(model) as recording:
        model(*args, **kwargs)
    batch = recording.entry(recording.layers[0]).shape[0]
    if first.ndim == 2:
        return None if batch == 1 and len(first) > 1 else 0
    layers = [module for module in model.modules() if isinstance(module, nn.MultiheadAttention)]
    tokens_first = bool(layers) and not any(layer.batch_first for layer in layers)
    return 1 if batch == first.shape[1] and (batch != first.shape[0] or tokens_first) else 0


def _one_text(t: Tensor, *, n: int, count: int, axis: int) -> Tensor:
    return t.narrow(axis, n, 1) if t.ndim > axis and t.shape[axis] == count else t


def _token_ids(args: tuple[Any, ...], kwargs: dict[str, Any]) -> tuple[Tensor | None, Tensor | None]:
    """The ids of the tokens that are looked at, and of those at the positions of the output."""

    def ids_of(value: Any) -> Tensor | None:
        is_ids = isinstance(value, Tensor) and value.ndim == 2 and not value.is_floating_point()
        return value[0] if is_ids and value.dtype != torch.bool and len(value) == 1 else None

    named = [ids_of(kwargs.get(name)) for name in ("input_ids", "decoder_input_ids")]
    if named[0] is None and named[1] is None:
        given = [ids for value in [*args, *kwargs.values()] if (ids := ids_of(value)) is not None]
        named = [given[0], None] if given else [None, None]
    return named[0], named[0] if named[1] is None else named[1]


def _positions_of(mask: Any) -> Tensor | None:
    """The positions of the tokens of a mask (1, tokens); None where there is none, or all count."""
    if not isinstance(mask, Tensor) or mask.ndim != 2 or bool(mask.all()):
        return None
    return mask[0].nonzero()[:, 0]


def tokenizer_functions(tokenizer: Any) -> tuple[Encode | None, Callable[[int], str] | None]:
    """A text to ids, and an id to its text, by a tokenizer of transformers or of tokenizers.

    Raises:
        TypeError: no tokenizer.
    """
    if tokenizer is None:
        return None, None
    if not hasattr(tokenizer, "encode") or not hasattr(tokenizer, "decode"):
        raise TypeError(
            f"tokenizer={type(tokenizer).__name__}: a tokenizer of transformers or of tokenizers, with encode "
            "and decode"
        )

    def encode(text: str) -> list[int]:
        encoding = tokenizer.encode(text, add_special_tokens=False)
        return list(getattr(encoding, "ids", encoding))

    return encode, lambda id_: str(tokenizer.decode([id_], skip_special_tokens=False))


def _decoded(ids: Tensor | None, decode: Callable[[int], str] | None) -> tuple[str, ...]:
    if ids is None:
        return ()
    return tuple(str(id_) if decode is None else decode(id_) for id_ in ids.tolist())
