"""`regard.explain`: what attention does with one word of a text, number by number, and the proof of it.

The model runs once under `regard.watch`, on its own kernels. Every number of the row is then computed in float64 by the
definition (`regard.steps`) from the queries, keys and values of that run, and its output is compared with the model's.
"""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

import torch

from regard.attention import Steps
from regard.attention.positions import Rotary
from regard.errors import InputError, errors_of_argument
from regard.lens.text.activations import ActivationCache, LayerActivations, run_with_cache
from regard.lens.text.explanation import (
    AttentionRow,
    Comparison,
    ExplainedModel,
    Explanation,
    InputVectors,
    NextToken,
    Proof,
    TokenizedText,
    Variant,
)
from regard.lens.text.head_survey import HeadSurvey, ensure_weights_fit
from regard.lens.text.hidden_states import cosine_similarities, text_hidden_states, word_hidden_states
from regard.lens.text.streams import Streams
from regard.lens.text.word_selection import select_word
from regard.lens.text.words import Words
from regard.pretrained import DEFAULT_MODEL, Pretrained, load
from regard.transformer import Decoder

TOLERANCE = 1e-4
"""The proof holds if the definition and the model differ by at most this share of the largest value. Rounding in
float32 makes about 1e-6; a wrong scale, mask or layout makes 1e-2 and more."""

NUM_NEXT_TOKENS = 5
"""How many of the likeliest next tokens an explanation has."""

HALF_TOLERANCE = {torch.float16: 1e-2, torch.bfloat16: 1e-1}
"""The same for models in half precision, whose own rounding is coarser: their proof shows less."""


@torch.no_grad()
def explain(
    text: str,
    token: str | int | None = None,
    model: str | Path | Pretrained = DEFAULT_MODEL,
    compare: str | Sequence[str] | None = None,
    *,
    layer: int | None = None,
    head: int | None = None,
    target: str | None = None,
    attention: str | None = None,
) -> Explanation:
    """What attention does with one word of a text, in a real model.

    In an encoder a word attends to all words of the text, in a decoder to itself and earlier words; of a decoder, the
    tokens that it expects after the word are listed as well. In an encoder-decoder the word is, by default, one of the
    target, and its cross-attention is explained: which words of the source it came from. A decoder writes each token at
    the position that reads the token before, so the row is that position's.

    Args:
        text: a sentence; for an encoder-decoder the source.
        token: the word to explain, or the position of a token. Of a word that occurs several times the first
            occurrence is explained. By default the last word that all texts share.
        model: a name for `regard.load`, or its result.
        compare: other texts with the same word, to see how context changes its hidden states.
        layer: which layer, from 0. By default layer and head are those in which one other token of the text gets its
            largest weight; in cross-attention, the word of the source with the largest mean weight. Heads in which
            nearly all tokens attend to the same place, whatever they mean, are left out.
        head: which head, from 0.
        target: the output of an encoder-decoder for the text. By default the model generates it with greedy decoding.
        attention: of an encoder-decoder, ``cross`` (the default: a word of the target attends to the source),
            ``decoder`` (a word of the target, as the decoder reads it, attends to itself and earlier words) or
            ``encoder`` (a word of the source attends to the source).

    Returns:
        `Explanation`; every number of its row by the definition in float64.

    Raises:
        InputError: an empty or too long text; a word that is not in it; no such layer, head, attention or model; a
            target or other texts for a model or attention that takes none.
    """
    pretrained = load(model) if isinstance(model, str | Path) else model
    if not isinstance(pretrained, Pretrained):
        raise TypeError(f"model must be a name or what regard.load returned; got {type(model).__name__}")
    other_texts = [compare] if isinstance(compare, str) else list(compare or [])
    streams = Streams.of(text, pretrained, attention, target)
    words, config = streams.query_words, streams.stack.config
    if other_texts and streams.source is not None:
        raise InputError(
            "other texts to compare with are for words of what a model reads; for those of an encoder-decoder's source "
            "choose the attention encoder",
            "compare",
        )
    with errors_of_argument("compare"):
        others = [Words.of(other, pretrained) for other in other_texts]
    word = select_word(token, streams, others)
    positions = word.token_index
    in_others = [other.find(word.text)[0] for other in others]
    _check_index("layer", layer, config.num_layers)
    _check_index("head", head, config.num_heads)

    ensure_weights_fit(streams)
    cache = run_with_cache(streams.stack, *streams.input_tensors, streams.encode_source(), cross=streams.cross)
    survey = HeadSurvey.of(cache, streams, positions)
    layer, head = survey.most_informative_head(layer, head)
    activations = cache.layers[layer]
    steps = activations.steps()
    row = _row(activations, steps, head, positions)
    halves = "encoder" if streams.target is None else "decoder"
    stack = halves if streams.kind == "encoder-decoder" else streams.kind
    return Explanation(
        model=ExplainedModel(pretrained.name, streams.kind, stack, config.num_layers, config.num_heads),
        text=text,
        target=streams.target,
        attention="cross" if streams.cross else "self",
        queries=_tokenized(words),
        keys=_tokenized(streams.key_words),
        decoder_inputs=streams.decoder_inputs,
        word=word,
        layer=layer,
        head=head,
        row=row,
        variant=_variant(streams, activations, steps, layer, head),
        input=_input_vectors(streams, positions),
        top_keys=survey.top_keys(),
        positional_pattern=survey.patterns[layer][head],
        content_head=survey.content_head(),
        proof=_proof(row, activations, head, positions),
        comparisons=[
            _compare(cache, positions, other, places, streams) for other, places in zip(others, in_others, strict=True)
        ],
        next_tokens=_next_tokens(pretrained, cache, positions[-1]),
    )


def _check_index(name: str, value: int | None, count: int) -> None:
    if value is not None and type(value) is not int:
        raise TypeError(f"{name} must be a whole number; got {value!r}")
    if value is not None and not 0 <= value < count:
        raise InputError(f"there is no {name} {value}: this model has {name}s 0 to {count - 1}", name)


def _tokenized(words: Words) -> TokenizedText:
    return TokenizedText(words.tokens, words.ids, words.surface_forms())


def _row(activations: LayerActivations, steps: Steps, head: int, positions: list[int]) -> AttentionRow:
    q, k, v = (t.double() for t in activations.qkv())
    kv_head = head // (len(q) // len(k))

    allowed = steps.masked[head, positions] > -torch.inf
    return AttentionRow(
        scale=float(activations.map.scale),
        q=q[head, positions],
        k=k[kv_head],
        v=v[kv_head],
        scores=steps.scores[head, positions],
        scaled=steps.scaled[head, positions],
        weights=steps.weights[head, positions],
        output=steps.output[head, positions],
        capped=None if steps.capped is steps.scaled else steps.capped[head, positions],
        biased=None if steps.biased is steps.capped else steps.biased[head, positions],
        allowed=None if allowed.all() else allowed,
    )


def _variant(streams: Streams, activations: LayerActivations, steps: Steps, layer: int, head: int) -> Variant:
    attention, config = activations.attention, streams.stack.config
    group = attention.num_heads // attention.num_kv_heads
    return Variant(
        pre_norm=config.norm_position != "post",
        kv_head=head // group if group > 1 else None,
        qk_norm=attention.q_norm is not None,
        rotary=isinstance(attention.positions, Rotary),
        softcap=None if attention.softcap is None else float(attention.softcap),
        bias=None if steps.biased is steps.capped else type(streams.stack.bias).__name__,
        causal=streams.stack.causal and not streams.cross,
        window=None if streams.cross else config.window(layer),
        sink=None if attention.sinks is None else attention.sinks[head].item(),
        kernel=activations.plan().kernel,
    )


def _input_vectors(streams: Streams, positions: list[int]) -> InputVectors:
    embeddings = streams.stack.embeddings
    parts = embeddings.components(*streams.input_tensors)
    token, position, token_type = (None if part is None else part[positions] for part in parts)
    assert token is not None
    total = token
    for part in (position, token_type):
        total = total if part is None else total + part
    shape = [len(streams.input_ids), streams.stack.config.d_model]
    normed = None if embeddings.norm is None else embeddings.norm(total)
    return InputVectors(shape, token, position, token_type, total, normed)


def _proof(row: AttentionRow, activations: LayerActivations, head: int, positions: list[int]) -> Proof:
    width = row.output.shape[-1]
    of_model = activations.output[positions, head * width : (head + 1) * width].double()
    error = (row.output - of_model).abs().max().item()
    tolerance = HALF_TOLERANCE.get(activations.output.dtype, TOLERANCE) * row.v.abs().max().item()
    return Proof(error, tolerance, error <= tolerance, of_model.numel(), of_model.tolist())


def _next_tokens(pretrained: Pretrained, cache: ActivationCache, position: int) -> list[NextToken]:
    """The likeliest tokens behind a position of a decoder; none of other models."""
    model, tokenizer = pretrained.model, pretrained.tokenizer
    if not isinstance(model, Decoder) or tokenizer is None:
        return []
    logits = model.logits(cache.hidden_states[-1][position : position + 1])[0].double()
    likeliest = logits.softmax(-1).topk(min(NUM_NEXT_TOKENS, len(logits)))
    return [
        NextToken(
            tokenizer.id_to_token(id_) or "", id_, tokenizer.decode([id_], skip_special_tokens=False), probability
        )
        for probability, id_ in zip(likeliest.values.tolist(), likeliest.indices.tolist(), strict=True)
    ]


def _compare(
    cache: ActivationCache, positions: list[int], other: Words, in_other: list[int], streams: Streams
) -> Comparison:
    ours = word_hidden_states(cache.hidden_states, positions)
    theirs = word_hidden_states(text_hidden_states(streams.stack, other), in_other)
    return Comparison(other.text, in_other, cosine_similarities(ours, theirs))
