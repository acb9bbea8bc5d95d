"""Explaining a sentence: what attention does with one of its words, number by number, and the proof of it.

The model runs once, untouched, on its own kernels; the inputs of its attentions and the outputs that it computed are
kept on the way. Every number shown is then computed anew from a layer's input by the definition (`regard.steps`) in
float64, and its result is held against what the model had computed.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

import torch
from torch import Tensor

from regard.attention import Steps
from regard.attention.positions import Rotary
from regard.errors import InputError
from regard.lens.text.activations import Layer, Pass, projected
from regard.lens.text.explanation import Comparison, Explanation, How, Input, Partner, Proof
from regard.lens.text.hidden_states import cosines, states_of, vectors
from regard.lens.text.streams import Sides
from regard.lens.text.words import Words
from regard.pretrained import DEFAULT, Pretrained, load

__all__ = ["explain"]

HABIT = 0.8
"""A head is said to have a habit when at least this share of the tokens looks in the same direction."""

TOLERANCE = 1e-4
"""The proof holds when the definition and the model differ by at most this share of the largest value. Rounding in
float32 makes about 1e-6; a wrong scale, mask or layout makes 1e-2 and more."""

HALF_TOLERANCE = {torch.float16: 1e-2, torch.bfloat16: 1e-1}
"""The same for models in half precision, whose own rounding is that much coarser: their proof shows less."""

LARGEST = 2**27
"""The most weights of a layer that are looked at; in float64 they take 1 GiB, and every step of them as much again."""


@torch.no_grad()
def explain(
    text: str,
    token: str | int | None = None,
    model: str | Path | Pretrained = DEFAULT,
    compare: str | Sequence[str] | None = None,
    *,
    layer: int | None = None,
    head: int | None = None,
    target: str | None = None,
    attention: str | None = None,
) -> Explanation:
    """What attention does with one word of a text, in a real model.

    In an encoder a word looks at all words of the text, in a decoder at itself and those before it. In an
    encoder-decoder the word is, by default, one of the target, and what is explained is its cross-attention: which
    words of the source it came from. A decoder writes each token at the position that reads the one before, so the row
    shown is that position's.

    Args:
        text: a sentence; for an encoder-decoder the source.
        token: the word to explain, or the position of a token. A word that stands there several times is explained
            at its first place. By default the last word that all texts share.
        model: a name for `regard.load`, or what it returned.
        compare: other texts with the same word, to see how context changes its vector.
        layer: which layer, from 0. By default, layer and head are those in which one other token of the text gets its
            largest share; in cross-attention, the word of the source with the largest mean share.
        head: which head, from 0.
        target: what an encoder-decoder writes for the text. By default what it writes by itself, the likeliest token
            each time.
        attention: of an encoder-decoder, ``cross`` (the default: a word of the target looks at the source), ``decoder``
            (a word of the target, as it is read, looks at those before it) or ``encoder`` (a word of the source looks
            at the source).

    Returns:
        `Explanation`; every number by the definition in float64.

    Raises:
        InputError: an empty or too long text; a word that is not in it; no such layer, head, attention or model; a
            target or other texts where they have no meaning.
    """
    pretrained = load(model) if isinstance(model, str | Path) else model
    if not isinstance(pretrained, Pretrained):
        raise TypeError(f"model must be a name or what regard.load returned; got {type(model).__name__}")
    compared = [compare] if isinstance(compare, str) else list(compare or [])
    sides = Sides.of(text, pretrained, attention, target)
    words, keys, config = sides.words, sides.keys, sides.stack.config
    if compared and sides.source is not None:
        raise InputError(
            "other texts to compare with are for words of what a model reads; for an encoder-decoder's source: "
            "attention='encoder'"
        )
    others = [Words.of(other, pretrained) for other in compared]
    token = _last_shared_word([words, *others]) if token is None else token
    occurrences = _occurrences(token, sides)
    pieces = occurrences[0]
    word = words.written(pieces)
    elsewhere = [other.find(word)[0] for other in others]
    _in_range("layer", layer, config.num_layers)
    _in_range("head", head, config.num_heads)

    seen = sides.run()
    survey = _survey(seen, sides, pieces)
    layer, head = _where_to_look(survey, sides, pieces, layer, head)
    kept = seen.layers[layer]
    steps = kept.steps()
    q, k, v = _of_head(steps, head)
    output = steps.output[head, pieces]
    restless = torch.tensor([[habit is None for habit in row] for row in survey.habits])
    without_habit = _partners(survey, sides, pieces, restless) if restless.any() else []
    may = steps.masked[head, pieces] > -torch.inf
    return Explanation(
        model=pretrained.name,
        text=text,
        tokens=words.tokens,
        ids=words.ids,
        written=_as_written(words),
        token=word,
        token_index=pieces,
        occurrences=occurrences,
        num_layers=config.num_layers,
        num_heads=config.num_heads,
        layer=layer,
        head=head,
        input=_input(sides, pieces),
        scale=float(kept.attention.d_key**-0.5 if kept.attention.scale is None else kept.attention.scale),
        q=q[pieces],
        k=k,
        v=v,
        scores=steps.scores[head, pieces],
        scaled=steps.scaled[head, pieces],
        weights=steps.weights[head, pieces],
        output=output,
        partners=_partners(survey, sides, pieces),
        habit=survey.habits[layer][head],
        without_habit=without_habit[0] if without_habit else None,
        proof=_proof(output, v, kept, head, pieces),
        compare=[
            _comparison(seen, pieces, other, there, sides) for other, there in zip(others, elsewhere, strict=True)
        ],
        kind=sides.kind,
        attention="cross" if sides.cross else "self",
        target=sides.target,
        reads=sides.reads,
        key_tokens=keys.tokens if sides.cross else None,
        key_ids=keys.ids if sides.cross else None,
        key_written=_as_written(keys) if sides.cross else None,
        capped=None if steps.capped is steps.scaled else steps.capped[head, pieces],
        biased=None if steps.biased is steps.capped else steps.biased[head, pieces],
        may=None if may.all() else may,
        how=_how(sides, kept, steps, layer, head),
    )


def _last_shared_word(texts: list[Words]) -> str:
    """The last word of the first text that stands in all of them; a mark such as "." only if there is nothing else."""
    first, *others = texts
    shared = [word for word in first.all() if all(other.has(word) for other in others)]
    if not shared:
        raise InputError(f"the texts share no word; the first one's are: {first.listed()}")
    return ([word for word in shared if any(c.isalnum() for c in word)] or shared)[-1]


def _occurrences(token: str | int, sides: Sides) -> list[list[int]]:
    """Where the word stands. One that stands in the source alone is not one that the target's words can be."""
    try:
        return sides.words.choose(token)
    except InputError as error:
        if sides.source is not None and isinstance(token, str) and sides.source.has(token):
            raise InputError(
                f"{error}. It is a word of the source; the word explained is one of the target. For the source's own: "
                "attention='encoder'"
            ) from None
        raise


def _in_range(name: str, value: int | None, count: int) -> None:
    if value is not None and type(value) is not int:
        raise TypeError(f"{name} must be a whole number; got {value!r}")
    if value is not None and not 0 <= value < count:
        raise InputError(f"there is no {name} {value}: this model has {name}s 0 to {count - 1}")


@dataclass(frozen=True, eq=False)
class _Survey:
    """What the definition says of every layer and head."""

    shares: Tensor
    """(layers, heads, keys): the shares that the word gives."""
    seen: list[bool]
    """For each key, whether the word can see it in any layer."""
    habits: list[list[str | None]]
    """What nearly all tokens do in each head."""


def _survey(seen: Pass, sides: Sides, pieces: list[int]) -> _Survey:
    weights_of_a_layer = sides.stack.config.num_heads * len(sides.words.tokens) * len(sides.keys.tokens)
    if weights_of_a_layer > LARGEST:
        raise InputError(
            f"the text is too long to explain: {len(sides.words.tokens)} tokens make {weights_of_a_layer:,} attention "
            f"weights in each layer, and up to {LARGEST:,} are looked at. Explain a part of it"
        )
    if not all(state.isfinite().all() for state in seen.states):
        raise InputError("the model computes numbers that are not finite: its weights are damaged or out of range")
    shares, habits = [], []
    can = torch.zeros(len(sides.keys.tokens), dtype=torch.bool)
    for layer in seen.layers:
        steps = layer.steps()
        if not steps.weights.isfinite().all():
            raise InputError("the model computes numbers that are not finite: its weights are damaged or out of range")
        shares.append(steps.weights[:, pieces].mean(dim=1).cpu())
        can |= (steps.masked[:, pieces] > -torch.inf).any(dim=1).any(dim=0).cpu()
        habits.append([_habit(rows, sides) for rows in steps.weights.argmax(dim=-1).tolist()])
    return _Survey(torch.stack(shares), can.tolist(), habits)


def _where_to_look(
    survey: _Survey, sides: Sides, pieces: list[int], layer: int | None, head: int | None
) -> tuple[int, int]:
    """Among the layers and heads asked for, the one in which one other token of the text gets its largest share.

    In cross-attention it is the word of the source with the largest mean share, the likeliest origin.
    """
    others = _others(survey, sides, pieces)
    if sides.cross:
        others = [max(others, key=lambda tokens: survey.shares[:, :, tokens].sum(dim=-1).mean().item())]
    if not others:
        others = [[i] for i, can in enumerate(survey.seen) if can and i not in pieces] or [[i] for i in pieces]
    best = torch.stack([survey.shares[:, :, tokens].sum(dim=-1) for tokens in others]).amax(dim=0)
    wanted = torch.zeros_like(best, dtype=torch.bool)
    wanted[slice(None) if layer is None else layer, slice(None) if head is None else head] = True
    chosen = int(best.masked_fill(~wanted, -1.0).argmax())
    return divmod(chosen, best.shape[1])


def _others(survey: _Survey, sides: Sides, pieces: list[int]) -> list[list[int]]:
    """What the word could look at: the other tokens of its text that it can see; across texts, the source's words."""
    if sides.cross:
        return sides.keys.groups()
    return [[i] for i, can in enumerate(survey.seen) if can and sides.keys.ordinary(i) and i not in pieces]


def _partners(survey: _Survey, sides: Sides, pieces: list[int], heads: Tensor | None = None) -> list[Partner]:
    """What the word could look at, and where it does so most, among the heads that count (layers, heads)."""
    partners = []
    for tokens in _others(survey, sides, pieces):
        shares = survey.shares[:, :, tokens].sum(dim=-1)
        mean = shares.mean().item()
        shares = shares if heads is None else shares * heads
        layer, head = divmod(int(shares.argmax()), shares.shape[1])
        name = sides.keys.written(tokens) if sides.cross else sides.keys.tokens[tokens[0]]
        partners.append(Partner(name, tokens[0], shares[layer, head].item(), layer, head, mean))
    if sides.cross and heads is None:
        return sorted(partners, key=lambda partner: -(partner.mean or 0.0))
    return sorted(partners, key=lambda partner: -partner.weight)


def _habit(strongest: list[int], sides: Sides) -> str | None:
    """What nearly all tokens of the text do in a head: then it looks at places, or rests, rather than at meaning."""
    tokens = [i for i in range(len(sides.words.tokens)) if sides.words.ordinary(i)]
    habits = Counter(direction for i in tokens for direction in _directions(i, strongest[i], sides))
    if len(tokens) < 4 or not habits:
        return None
    (direction, count), *_ = habits.most_common(1)
    whose = "target" if sides.target is not None else "text"
    return (
        f"{count} of the {whose}'s {len(tokens)} tokens give most to {direction}"
        if count >= HABIT * len(tokens)
        else None
    )


def _directions(row: int, column: int, sides: Sides) -> list[str]:
    """In how many ways a habit could say where a token looks."""
    if not sides.keys.ordinary(column):
        return [sides.keys.tokens[column]]
    if sides.cross:
        return ["the source's token at their own position"] if row == column else []
    by_distance = {-1: "the token just before them", 0: "themselves", 1: "the token just after them"}
    found = [by_distance[column - row]] if column - row in by_distance else []
    return [*found, "the first token"] if column == 0 and sides.stack.causal else found


def _as_written(words: Words) -> list[str]:
    """What stands in the text where each token stands, be it space; empty for what the tokenizer put around it."""
    return [
        (words.written([i]) or words.text[slice(*words.spans[i])] or words.tokens[i]) if words.ordinary(i) else ""
        for i in range(len(words.tokens))
    ]


def _of_head(steps: Steps, head: int) -> tuple[Tensor, Tensor, Tensor]:
    """q, k and v of a head; a head of keys may serve several of queries."""
    q, k, v = projected(steps)
    shared = len(q) // len(k)
    return q[head], k[head // shared], v[head // shared]


def _how(sides: Sides, layer: Layer, steps: Steps, number: int, head: int) -> How:
    attention, config = layer.attention, sides.stack.config
    shared = attention.num_heads // attention.num_kv_heads
    return How(
        normed_first=config.norm_position != "post",
        kv_head=head // shared if shared > 1 else None,
        qk_norm=attention.q_norm is not None,
        rotary=isinstance(attention.positions, Rotary),
        softcap=None if attention.softcap is None else float(attention.softcap),
        bias=None if steps.biased is steps.capped else type(sides.stack.bias).__name__,
        causal=sides.stack.causal and not sides.cross,
        window=None if sides.cross else config.window(number),
        sink=None if attention.sinks is None else attention.sinks[head].item(),
        kernel=layer.plan(steps).kernel,
    )


def _input(sides: Sides, pieces: list[int]) -> Input:
    token, position, segment = (None if part is None else part[pieces] for part in sides.parts())
    assert token is not None
    total = token
    for part in (position, segment):
        total = total if part is None else total + part
    norm = sides.stack.embeddings.norm
    shape = [len(sides.ids), sides.stack.config.d_model]
    return Input(shape, token, position, segment, total, None if norm is None else norm(total))


def _proof(output: Tensor, v: Tensor, layer: Layer, head: int, pieces: list[int]) -> Proof:
    width = output.shape[-1]
    of_model = layer.output[pieces, head * width : (head + 1) * width].double()
    difference = (output - of_model).abs().max().item()
    tolerance = HALF_TOLERANCE.get(layer.output.dtype, TOLERANCE) * v.abs().max().item()
    return Proof(difference, tolerance, difference <= tolerance, of_model.numel(), of_model.tolist())


def _comparison(seen: Pass, pieces: list[int], other: Words, there: list[int], sides: Sides) -> Comparison:
    elsewhere = vectors(states_of(sides.stack, other), there)
    return Comparison(other.text, there, cosines(vectors(seen.states, pieces), elsewhere))
