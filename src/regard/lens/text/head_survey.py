"""All heads of a model on one word: which tokens they attend to, which head is the most informative one.

Besides the word's own row, every head is checked for a positional pattern: nearly all tokens of the text attend to the
same place, whatever they mean.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass

import torch
from torch import Tensor

from regard._shapes import Bool
from regard.errors import InputError
from regard.lens.maps.map import AttentionMap
from regard.lens.text.activations import ActivationCache
from regard.lens.text.explanation import TopKey
from regard.lens.text.hidden_states import NOT_FINITE
from regard.lens.text.streams import Streams

PATTERN_SHARE = 0.8
"""A head has a positional pattern if at least this share of the tokens attends to the same place."""

MIN_PATTERN_TOKENS = 4
"""A shorter text shows no pattern."""

MAX_LAYER_WEIGHTS = 2**27
"""The most attention weights of a layer. In float64 they take 1 GiB, and every step of the definition as much again."""


def ensure_weights_fit(streams: Streams) -> None:
    """Raise if a layer has more attention weights than a survey can hold.

    Raises:
        InputError: a too long text.
    """
    queries, keys = len(streams.query_words.tokens), len(streams.key_words.tokens)
    num_weights = streams.stack.config.num_heads * queries * keys
    if num_weights > MAX_LAYER_WEIGHTS:
        raise InputError(
            f"the text is too long to explain: {queries} tokens make {num_weights:,} attention weights in each layer, "
            f"and the most are {MAX_LAYER_WEIGHTS:,}. Explain a part of it"
        )


@dataclass(frozen=True, eq=False)
class HeadSurvey:
    """The weights of a word in every layer and head, by the definition in float64."""

    streams: Streams
    positions: list[int]
    """The positions of the word."""
    weights: Tensor
    """(layers, heads, keys): the mean over the word's tokens."""
    visible: list[bool]
    """For each key whether the word may attend to it in any layer."""
    patterns: list[list[str | None]]
    """The positional pattern of each layer and head."""

    @classmethod
    def of(cls, cache: ActivationCache, streams: Streams, positions: list[int]) -> HeadSurvey:
        """Compute every layer.

        Raises:
            InputError: the model computes NaN or infinities.
        """
        if not all(state.isfinite().all() for state in cache.hidden_states):
            raise InputError(NOT_FINITE)
        weights, patterns = [], []
        visible = torch.zeros(len(streams.key_words.tokens), dtype=torch.bool)
        for layer in cache.layers:
            steps = layer.steps()
            if not steps.weights.isfinite().all():
                raise InputError(NOT_FINITE)
            weights.append(steps.weights[:, positions].mean(dim=1).cpu())
            visible |= (steps.masked[:, positions] > -torch.inf).any(dim=1).any(dim=0).cpu()
            patterns.append(
                [_positional_pattern(strongest, streams) for strongest in steps.weights.argmax(dim=-1).tolist()]
            )
        return cls(streams, positions, torch.stack(weights), visible.tolist(), patterns)

    @classmethod
    def of_maps(cls, maps: Sequence[AttentionMap], streams: Streams, positions: list[int]) -> HeadSurvey:
        """Compute the heads of recorded maps, exactly, in memory that is linear in the tokens.

        Each head counts as a layer of its own, since maps may have different numbers of heads: the survey has as many
        layers as the maps have heads, and each has head 0.

        Raises:
            InputError: the model computes NaN or infinities.
        """
        weights, patterns = [], []
        for m in maps:
            rows = m[0, :, positions[0] : positions[-1] + 1]
            if not rows.isfinite().all():
                raise InputError(NOT_FINITE)
            weights.append(rows.double().mean(dim=1).cpu())
            patterns += [[_positional_pattern(keys, streams)] for keys in m.top(1).keys[0, :, :, 0].tolist()]
        by_head = torch.cat(weights)[:, None]
        return cls(streams, positions, by_head, (by_head > 0).any(dim=0)[0].tolist(), patterns)

    def most_informative_head(self, layer: int | None, head: int | None) -> tuple[int, int]:
        """The layer and head in which one other token of the text gets its largest weight.

        Heads with a positional pattern are left out, unless all of them have one. In cross-attention this token is the
        word of the source with the largest mean weight, the most likely origin.

        Args:
            layer: look in this layer only.
            head: look at this head of each layer only.
        """
        candidates = self._candidates()
        if self.streams.cross:
            candidates = [max(candidates, key=lambda keys: self._weight_of(keys).mean().item())]
        if not candidates:
            others = [[i] for i, visible in enumerate(self.visible) if visible and i not in self.positions]
            candidates = others or [[i] for i in self.positions]
        best = torch.stack([self._weight_of(keys) for keys in candidates]).amax(dim=0)
        considered = torch.zeros_like(best, dtype=torch.bool)
        considered[slice(None) if layer is None else layer, slice(None) if head is None else head] = True
        if (considered & self._without_pattern()).any():
            considered &= self._without_pattern()
        return divmod(int(best.masked_fill(~considered, -1.0).argmax()), best.shape[1])

    def top_keys(self) -> list[TopKey]:
        """The tokens that the word may attend to, each with the head that gives it its largest weight.

        In cross-attention these are the words of the source, sorted by their mean weight.
        """
        top = [self._top_key(keys, self._weight_of(keys)) for keys in self._candidates()]
        return sorted(top, key=lambda key: -((key.mean or 0.0) if self.streams.cross else key.weight))

    def content_head(self) -> TopKey | None:
        """The largest weight among the heads without a positional pattern; None if every head has one."""
        without_pattern = self._without_pattern()
        if not without_pattern.any():
            return None
        top = [self._top_key(keys, self._weight_of(keys) * without_pattern) for keys in self._candidates()]
        return max(top, key=lambda key: key.weight, default=None)

    def _without_pattern(self) -> Bool[Tensor, "layers heads"]:
        return torch.tensor([[pattern is None for pattern in heads] for heads in self.patterns])

    def _candidates(self) -> list[list[int]]:
        """The positions of the other tokens that the word may attend to; in cross-attention of the source's words."""
        keys = self.streams.key_words
        if self.streams.cross:
            return keys.word_positions()
        others = [i for i in range(len(keys.tokens)) if keys.is_text(i) and i not in self.positions]
        return [[i] for i in others if self.visible[i]]

    def _weight_of(self, keys: list[int]) -> Tensor:
        """(layers, heads): the word's weight on some keys together."""
        return self.weights[:, :, keys].sum(dim=-1)

    def _top_key(self, keys: list[int], weights: Tensor) -> TopKey:
        words, cross = self.streams.key_words, self.streams.cross
        layer, head = divmod(int(weights.argmax()), weights.shape[1])
        name = words.surface_form(keys) if cross else words.tokens[keys[0]]
        return TopKey(name, keys[0], weights[layer, head].item(), layer, head, self._weight_of(keys).mean().item())


def _positional_pattern(strongest: list[int], streams: Streams) -> str | None:
    """What nearly all tokens do in a head, as a sentence; None if they differ.

    Args:
        strongest: for each query the key with the largest weight.
        streams: the queries and keys.
    """
    words = streams.query_words
    queries = [i for i in range(len(words.tokens)) if words.is_text(i)]
    places = Counter(place for query in queries for place in _places(query, strongest[query], streams))
    if len(queries) < MIN_PATTERN_TOKENS or not places:
        return None
    (place, count), *_ = places.most_common(1)
    if count < PATTERN_SHARE * len(queries):
        return None
    return (
        f"{count} of the {'text' if streams.target is None else 'target'}'s {len(queries)} tokens give most to {place}"
    )


def _places(query: int, key: int, streams: Streams) -> list[str]:
    """The names of the place where a query attends to: relative to the query, and in the text."""
    if not streams.key_words.is_text(key):
        return [streams.key_words.tokens[key]]
    if streams.cross:
        return ["the source's token at their own position"] if query == key else []
    relative = {-1: "the token just before them", 0: "themselves", 1: "the token just after them"}
    places = [relative[key - query]] if key - query in relative else []
    return [*places, "the first token"] if key == 0 and streams.stack.causal else places
