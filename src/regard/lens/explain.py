"""Explaining a sentence: what attention does with one of its words, number by number, and the proof of it.

The model runs once, untouched, on its fused kernel; the inputs of its attentions and the outputs that it computed are
kept on the way. Every number shown is then computed anew from a layer's input by the definition (`regard.steps`) in
float64, and its result is held against what the model had computed.
"""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Sequence
from pathlib import Path

import torch
from torch import Tensor

from regard.errors import InputError
from regard.lens.explanation import Comparison, Explanation, Input, Partner, Proof
from regard.lens.forward import Pass, forward
from regard.lens.words import Words
from regard.pretrained import DEFAULT, Pretrained, load

__all__ = ["explain"]

HABIT = 0.8
"""A head is said to have a habit when at least this share of the tokens looks in the same direction."""

TOLERANCE = 1e-4
"""The proof holds when the definition and the model differ by at most this share of the largest value. Rounding in
float32 makes about 1e-6; a wrong scale, mask or layout makes 1e-2 and more."""


@torch.no_grad()
def explain(
    text: str,
    token: str | int | None = None,
    model: str | Path | Pretrained = DEFAULT,
    compare: str | Sequence[str] | None = None,
    *,
    layer: int | None = None,
    head: int | None = None,
) -> Explanation:
    """What attention does with one word of a text, on a real encoder.

    Args:
        text: a sentence.
        token: the word to explain, or the position of a token. A word that stands there several times is explained
            at its first place. By default the last word that all texts share.
        model: a name for `regard.load`, or what it returned.
        compare: other texts with the same word, to see how context changes its vector.
        layer: which layer, from 0. By default, layer and head are those in which one other token of the text gets its
            largest share.
        head: which head, from 0.

    Returns:
        `Explanation`; every number by the definition in float64.

    Raises:
        InputError: an empty or too long text; a word that is not in it; no such layer, head or model.
    """
    pretrained = load(model) if isinstance(model, str | Path) else model
    if not isinstance(pretrained, Pretrained):
        raise TypeError(f"model must be a name or what regard.load returned; got {type(model).__name__}")
    words = Words.of(text, pretrained)
    others = [Words.of(other, pretrained) for other in ([compare] if isinstance(compare, str) else compare or [])]
    token = _last_shared_word([words, *others]) if token is None else token
    occurrences = words.choose(token)
    pieces = occurrences[0]
    word = words.written(pieces)
    elsewhere = [other.find(word)[0] for other in others]
    _in_range("layer", layer, pretrained.config.num_layers)
    _in_range("head", head, pretrained.config.num_heads)

    seen = forward(pretrained.model, *_ids(pretrained, words))
    shares, habits = _survey(seen, words, pieces)
    layer, head = _where_to_look(shares, words, pieces, layer, head)
    steps = seen.layers[layer].steps()
    q, k, v = (t[head] for t in (steps.q, steps.k, steps.v) if t is not None)
    output = steps.output[head, pieces]
    restless = torch.tensor([[habit is None for habit in row] for row in habits])
    return Explanation(
        model=pretrained.name,
        text=text,
        tokens=words.tokens,
        ids=words.ids,
        written=[words.written([i]) if words.ordinary(i) else "" for i in range(len(words.tokens))],
        token=word,
        token_index=pieces,
        occurrences=occurrences,
        num_layers=pretrained.config.num_layers,
        num_heads=pretrained.config.num_heads,
        layer=layer,
        head=head,
        input=_input(pretrained, words, pieces),
        scale=seen.layers[layer].attention.d_key ** -0.5,
        q=q[pieces],
        k=k,
        v=v,
        scores=steps.scores[head, pieces],
        scaled=steps.scaled[head, pieces],
        weights=steps.weights[head, pieces],
        output=output,
        partners=_partners(shares, words, pieces),
        habit=habits[layer][head],
        without_habit=next(iter(_partners(shares * restless[:, :, None], words, pieces)), None)
        if restless.any()
        else None,
        proof=_proof(output, v, seen, layer, head, pieces),
        compare=[
            _comparison(seen, pieces, other, there, pretrained) for other, there in zip(others, elsewhere, strict=True)
        ],
    )


def _ids(pretrained: Pretrained, words: Words) -> tuple[Tensor, Tensor]:
    return torch.tensor(words.ids, device=pretrained.device), torch.tensor(words.segments, device=pretrained.device)


def _last_shared_word(texts: list[Words]) -> str:
    """The last word of the first text that stands in all of them; a mark such as "." only if there is nothing else."""
    first, *others = texts
    shared = [word for word in first.all() if all(other.has(word) for other in others)]
    if not shared:
        raise InputError(f"the texts share no word; the first one's are: {first.listed()}")
    return ([word for word in shared if any(c.isalnum() for c in word)] or shared)[-1]


def _in_range(name: str, value: int | None, count: int) -> None:
    if value is not None and type(value) is not int:
        raise TypeError(f"{name} must be a whole number; got {value!r}")
    if value is not None and not 0 <= value < count:
        raise InputError(f"there is no {name} {value}: this model has {name}s 0 to {count - 1}")


def _where_to_look(
    shares: Tensor, words: Words, pieces: list[int], layer: int | None, head: int | None
) -> tuple[int, int]:
    """The layer and head, among those asked for, in which one other token of the text gets its largest share."""
    others = _others(words, pieces) or [i for i in range(len(words.tokens)) if i not in pieces] or pieces
    best = shares[:, :, others].amax(dim=-1)
    wanted = torch.zeros_like(best, dtype=torch.bool)
    wanted[slice(None) if layer is None else layer, slice(None) if head is None else head] = True
    chosen = int(best.masked_fill(~wanted, -1.0).argmax())
    return divmod(chosen, best.shape[1])


def _others(words: Words, pieces: list[int]) -> list[int]:
    return [i for i in range(len(words.tokens)) if words.ordinary(i) and i not in pieces]


def _partners(shares: Tensor, words: Words, pieces: list[int]) -> list[Partner]:
    partners = []
    for i in _others(words, pieces):
        layer, head = divmod(int(shares[:, :, i].argmax()), shares.shape[1])
        partners.append(Partner(words.tokens[i], i, shares[layer, head, i].item(), layer, head))
    return sorted(partners, key=lambda partner: -partner.weight)


def _survey(seen: Pass, words: Words, pieces: list[int]) -> tuple[Tensor, list[list[str | None]]]:
    """For every layer and head, by the definition: the shares that the word gives, and the habit of the head."""
    if not all(state.isfinite().all() for state in seen.states):
        raise InputError("the model computes numbers that are not finite: its weights are damaged or out of range")
    shares, habits = [], []
    for layer in seen.layers:
        weights = layer.steps().weights
        if not weights.isfinite().all():
            raise InputError("the model computes numbers that are not finite: its weights are damaged or out of range")
        shares.append(weights[:, pieces].mean(dim=1))
        habits.append([_habit(rows, words) for rows in weights.argmax(dim=-1).tolist()])
    return torch.stack(shares), habits


def _habit(strongest: list[int], words: Words) -> str | None:
    """What nearly all tokens of the text do in a head: then it looks at places, or rests, rather than at meaning."""
    tokens = [i for i in range(len(words.tokens)) if words.ordinary(i)]
    habits = Counter(_direction(i, strongest[i], words) for i in tokens)
    habits.pop(None, None)
    if len(tokens) < 4 or not habits:
        return None
    (direction, count), *_ = habits.most_common(1)
    return (
        f"{count} of the text's {len(tokens)} tokens give most to {direction}" if count >= HABIT * len(tokens) else None
    )


def _direction(row: int, column: int, words: Words) -> str | None:
    if not words.ordinary(column):
        return words.tokens[column]
    return {-1: "the token just before them", 0: "themselves", 1: "the token just after them"}.get(column - row)


def _input(pretrained: Pretrained, words: Words, pieces: list[int]) -> Input:
    embeddings = pretrained.model.embeddings
    token, position, segment = (part[pieces] for part in embeddings.parts(*_ids(pretrained, words)))
    total = token + position + segment
    shape = [len(words.tokens), pretrained.config.d_model]
    return Input(shape, token, position, segment, total, embeddings.norm(total))


def _proof(output: Tensor, v: Tensor, seen: Pass, layer: int, head: int, pieces: list[int]) -> Proof:
    width = output.shape[-1]
    of_model = seen.layers[layer].output[pieces, head * width : (head + 1) * width].double()
    difference = (output - of_model).abs().max().item()
    tolerance = TOLERANCE * v.abs().max().item()
    return Proof(difference, tolerance, difference <= tolerance, of_model.numel(), of_model.tolist())


def _comparison(seen: Pass, pieces: list[int], other: Words, there: list[int], pretrained: Pretrained) -> Comparison:
    states = pretrained.model.states(*_ids(pretrained, other))
    cosine = [
        torch.cosine_similarity(here[pieces].double().mean(0), elsewhere[there].double().mean(0), dim=0).item()
        for here, elsewhere in zip(seen.states, states, strict=True)
    ]
    if not all(map(math.isfinite, cosine)):
        raise InputError("the model computes numbers that are not finite: its weights are damaged or out of range")
    return Comparison(other.text, there, cosine)
