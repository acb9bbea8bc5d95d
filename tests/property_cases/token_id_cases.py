"""Models of token ids: padding that the ids show, and a target that is predicted from its own past."""

from __future__ import annotations

import inspect
from dataclasses import replace
from typing import Any

import torch
from torch import Tensor

from property_cases import WIDTH, Case, drawn, joined, split
from regard.check.target import Invocation, Stream

VOCAB = 7
TABLE = drawn(VOCAB, WIDTH, seed=30)
MATRICES = [0.3 * drawn(WIDTH, WIDTH, seed=31 + number) for number in range(6)]


def attended(x: Tensor, context: Tensor, allowed: Tensor, layer: int = 0) -> Tensor:
    """With a residual."""
    w_q, w_k, w_v = MATRICES[layer * 3 :][:3]
    scores = split(x @ w_q) @ split(context @ w_k).mT / 2
    weights = scores.masked_fill(~allowed, -torch.inf).softmax(-1)
    return x + joined(weights @ split(context @ w_v))


def no_padding(ids: Tensor) -> Tensor:
    return (ids != 0)[:, None, None, :]


def encoded(ids: Tensor, *allowed: Tensor) -> Tensor:
    x = TABLE[ids]
    for layer, each in enumerate(allowed):
        x = attended(x, x, each, layer)
    return x


def padding_hidden_in_both(ids: Tensor) -> Tensor:
    return encoded(ids, no_padding(ids), no_padding(ids))


def padding_hidden_at_once(ids: Tensor) -> Tensor:
    return encoded(ids, no_padding(ids))


def padding_hidden_in_the_first_layer(ids: Tensor) -> Tensor:
    return encoded(ids, no_padding(ids), torch.ones_like(no_padding(ids)))


def of_each_head(ids: Tensor, keep: Tensor) -> Tensor:
    """The heads of all samples stand one after the other on one axis, and are told apart again afterwards."""
    x = TABLE[ids]
    q, k, v = (torch.cat((x @ each).chunk(2, -1)) for each in MATRICES[:3])
    weights = (q @ k.mT / 2).masked_fill(~keep[:, None], -torch.inf).softmax(-1)
    return x + torch.cat((weights @ v).chunk(2), -1)


def padding_of_the_head_of_another_sample(ids: Tensor) -> Tensor:
    return of_each_head(ids, (ids != 0).repeat_interleave(2, 0))


def padding_of_each_sample_in_both_heads(ids: Tensor) -> Tensor:
    return of_each_head(ids, (ids != 0).repeat(2, 1))


def padding_of_the_first_sample(ids: Tensor) -> Tensor:
    return encoded(ids, no_padding(ids)[:1])


def padding_of_any_sample(ids: Tensor) -> Tensor:
    return encoded(ids, no_padding(ids).all(0, keepdim=True))


def words_hidden(ids: Tensor) -> Tensor:
    """A query without any key reads nothing."""
    x = TABLE[ids]
    scores = (x @ x.mT / WIDTH**0.5).masked_fill(no_padding(ids)[:, 0], -torch.inf)
    return x + scores.softmax(-1).nan_to_num() @ x


def padding_alone_seen(ids: Tensor) -> Tensor:
    is_padding = ~no_padding(ids)
    return encoded(ids, is_padding | ~is_padding.any(-1, keepdim=True))


def said_to_be_hidden_and_seen(ids: Tensor) -> Tensor:
    """Id 0 is padding, whose keys are masked."""
    x = TABLE[ids] + PLACES[: ids.shape[1]]
    return attended(x, x, (x.abs().sum(-1) != 0)[:, None, None])


def said_to_be_seen(ids: Tensor) -> Tensor:
    """Id 0 is padding, whose keys are not masked: the loss leaves it out."""
    return said_to_be_hidden_and_seen(ids)


def padding_mask_thrown_away(ids: Tensor) -> Tensor:
    no_padding(ids)  # and not kept
    return padding_seen(ids)


def padding_mask_overwritten(ids: Tensor) -> Tensor:
    """Causal attention, which hides what is padded in at the end, and not what is at the begin."""
    allowed = no_padding(ids)
    allowed = torch.ones(ids.shape[1], ids.shape[1], dtype=torch.bool).tril()
    return encoded(ids, allowed)


def padding_mask_joined(ids: Tensor) -> Tensor:
    allowed = no_padding(ids)
    allowed = allowed & torch.ones(ids.shape[1], ids.shape[1], dtype=torch.bool).tril()
    return encoded(ids, allowed)


def padding_mask_filled_in_place(ids: Tensor) -> Tensor:
    """The same, as scores that are changed in place: the mask is read by an operation that returns what it changes."""
    hidden = (
        ~no_padding(ids).expand(-1, -1, ids.shape[1], -1) | torch.ones(ids.shape[1], ids.shape[1]).triu(1).bool()
    ).clone()
    scores = torch.zeros(hidden.shape)
    scores.masked_fill_(hidden, 1.0)
    return encoded(ids, scores == 0)


def padding_mask_returned(ids: Tensor) -> tuple[Tensor, Tensor]:
    return padding_seen(ids), no_padding(ids)


def padding_seen(ids: Tensor) -> Tensor:
    return encoded(ids, torch.ones(1, dtype=torch.bool))


def translated(source: Tensor, target: Tensor, allowed: Tensor) -> Tensor:
    y = attended(TABLE[target], TABLE[target], allowed)
    return attended(y, TABLE[source], no_padding(source), 1)


def target_sees_all_of_itself(source: Tensor, target: Tensor) -> Tensor:
    return translated(source, target, no_padding(target))


def target_sees_its_past(source: Tensor, target: Tensor) -> Tensor:
    past = torch.ones(target.shape[1], target.shape[1], dtype=torch.bool).tril()
    return translated(source, target, no_padding(target) & past)


def attended_of(q: Tensor, k: Tensor, v: Tensor) -> Tensor:
    q, k, v = (split(each @ matrix) for each, matrix in zip((q, k, v), MATRICES, strict=False))
    return joined((q @ k.mT / 2).softmax(-1) @ v)


PLACES = drawn(9, WIDTH, seed=40)


def translated_with_places(source: Tensor, target: Tensor, *, asks: str = "target") -> Tensor:
    """An encoder and a decoder; the memory is read by the target."""
    open_to_all, past = torch.ones(1, dtype=torch.bool), torch.ones(target.shape[1], target.shape[1]).tril() == 1
    x, y = TABLE[source] + PLACES[: source.shape[1]], TABLE[target] + PLACES[: target.shape[1]]
    x, y = attended(x, x, open_to_all), attended(y, y, past)
    return attended(y, x, open_to_all, 1) if asks == "target" else y + attended(x, y, open_to_all, 1) - x


def places_of_the_target_alone(source: Tensor, target: Tensor) -> Tensor:
    open_to_all, past = torch.ones(1, dtype=torch.bool), torch.ones(target.shape[1], target.shape[1]).tril() == 1
    x, y = TABLE[source], TABLE[target] + PLACES[: target.shape[1]]
    return attended(attended(y, y, past), attended(x, x, open_to_all), open_to_all, 1)


def asked_by_the_source(source: Tensor, target: Tensor) -> Tensor:
    return translated_with_places(source, target, asks="source")


def values_of_another_text(source: Tensor, target: Tensor) -> Tensor:
    return attended_of(TABLE[target], TABLE[target], TABLE[source])


def values_of_the_keys_text(source: Tensor, target: Tensor) -> Tensor:
    return attended_of(TABLE[target], TABLE[source], TABLE[source])


def values_of_answers(exercises: Tensor, answers: Tensor) -> Tensor:
    return attended_of(TABLE[exercises], TABLE[exercises], TABLE[answers])


def ids_call(function: Any, *lengths: int) -> Invocation:
    names = ["source", "target"][-len(lengths) :]
    ids = [1 + drawn(2, length, seed=length).argsort(-1) % (VOCAB - 1) for length in lengths]
    given = dict(zip(names, ids, strict=False))
    streams = [Stream(name, "ids", 0, (1,)) for name in given]
    return Invocation(function, given, list(given), streams, sizes={"vocab": VOCAB})


def of_ids(function: Any) -> Invocation:
    """A call of a function of token ids."""
    return ids_call(function, 5)


def of_one_length(function: Any) -> Invocation:
    """A call of a function of two sequences of as many ids."""
    call = ids_call(function, 5, 5)
    names = [*inspect.signature(function).parameters]
    ids = dict(zip(names, (each.roll(number, 1) for number, each in enumerate(call.arguments.values())), strict=True))
    return replace(call, arguments=ids, positional=names, streams=[Stream(name, "ids", 0, (1,)) for name in names])


def of_one_length_of_texts(function: Any) -> Invocation:
    """The same of a source and a target of as many ids."""
    call = ids_call(function, 5, 5)
    first = next(iter(call.arguments.values()))
    given = {"source": first, "target": first.roll(2, 1)}
    streams = [Stream(name, "ids", 0, (1,)) for name in given]
    return replace(call, arguments=given, positional=[*given], streams=streams)


def of_two_texts(function: Any) -> Invocation:
    """A call of a function of source and target ids."""
    return ids_call(function, 5, 4)


def beside_ids(x: Tensor, ids: Tensor, allowed: Tensor) -> Tensor:
    scores = x @ x.mT / WIDTH**0.5
    return scores.masked_fill(~allowed, -1e4).softmax(-1) @ x + 0 * ids[..., None]


def queries_of_padding_blocked(x: Tensor, ids: Tensor) -> Tensor:
    return beside_ids(x, ids, (ids != 0)[:, :, None])


def keys_of_padding_blocked(x: Tensor, ids: Tensor) -> Tensor:
    return beside_ids(x, ids, (ids != 0)[:, None, :])


def of_tokens_and_ids(function: Any) -> Invocation:
    """A call with a vector and an id for each token."""
    call = ids_call(function, 5)
    ids = call.arguments["target"]
    streams = [Stream("x", "x", 0, (1,)), Stream("ids", "ids", 0, (1,))]
    return Invocation(
        function, {"x": drawn(2, 5, WIDTH, seed=0), "ids": ids}, ["x", "ids"], streams, sizes={"vocab": VOCAB}
    )


def summed(ids: Tensor) -> tuple[Tensor, Tensor]:
    """The sum of the tokens that are no padding, and their number."""
    keep = no_padding(ids)[:, 0, 0, :, None]
    return (encoded(ids, no_padding(ids)) * keep).sum(1), keep.sum(1)


def mean_of_the_kept(ids: Tensor) -> Tensor:
    total, number = summed(ids)
    return total / number


def mean_of_all(ids: Tensor) -> Tensor:
    return encoded(ids, no_padding(ids)).mean(1)  # here


def mean_of_all_seen(ids: Tensor) -> Tensor:
    """Nothing is said of padding in it."""
    return encoded(ids, torch.ones(1, dtype=torch.bool)).mean(1)


def alike(source: Tensor, target: Tensor) -> Tensor:
    """A number for each two texts."""
    return (mean_of_the_kept(source) * mean_of_the_kept(target)).sum(-1)


def alike_with_padding(source: Tensor, target: Tensor) -> Tensor:
    one, other = (encoded(each, no_padding(each)).mean(1) for each in (source, target))
    return (one * other).sum(-1)


def kept_times_their_number(ids: Tensor) -> Tensor:
    total, number = summed(ids)
    return total * number  # here


def all_by_the_number_of_the_kept(ids: Tensor) -> Tensor:
    total = encoded(ids, no_padding(ids)).sum(1)  # here
    return total / (ids != 0).sum(1, keepdim=True)


def mean_of_the_marked(ids: Tensor, attention_mask: Tensor | None = None) -> Tensor:
    marked = torch.ones_like(ids) if attention_mask is None else attention_mask
    keep = marked[..., None]
    return (encoded(ids, keep.mT[:, None] != 0) * keep).sum(1) / keep.sum(1)


def mean_of_all_but_in_scores(ids: Tensor, attention_mask: Tensor | None = None) -> Tensor:
    marked = torch.ones_like(ids) if attention_mask is None else attention_mask
    return encoded(ids, marked[:, None, None] != 0).mean(1)  # here


def of_marked_ids(function: Any) -> Invocation:
    """A call of a function of token ids, to which a mask of these may be handed over."""
    return replace(of_ids(function), masks=["attention_mask"])


def translated_by_scales(source: Tensor, target: Tensor, *scales: float) -> Tensor:
    """The embeddings are the rows of tables, times a number, and positions are added."""
    open_to_all, past = torch.ones(1, dtype=torch.bool), torch.ones(target.shape[1], target.shape[1]).tril() == 1
    x, y = (
        torch.nn.functional.embedding(ids, TABLE) * scale + PLACES[: ids.shape[1]]  # here
        for ids, scale in zip((source, target), scales, strict=True)
    )
    return attended(attended(y, y, past), attended(x, x, open_to_all), open_to_all, 1)


def embeddings_of_one_text_scaled(source: Tensor, target: Tensor) -> Tensor:
    return translated_by_scales(source, target, WIDTH**0.5, 1.5)


def embeddings_divided(source: Tensor, target: Tensor) -> Tensor:
    return translated_by_scales(source, target, WIDTH**-0.5, WIDTH**-0.5)


def embeddings_of_both_scaled(source: Tensor, target: Tensor) -> Tensor:
    return translated_by_scales(source, target, WIDTH**0.5, WIDTH**0.5)


def source_hidden_by_the_target(source: Tensor, target: Tensor) -> Tensor:
    past = torch.ones(target.shape[1], target.shape[1], dtype=torch.bool).tril()
    y = attended(TABLE[target], TABLE[target], no_padding(target) & past)
    return attended(y, TABLE[source], no_padding(target), 1)


class OfTwoPaddings(torch.nn.Module):
    """Each of two texts has an id of padding of its own."""

    def __init__(self) -> None:
        super().__init__()
        self.source_pad_id, self.target_pad_id = 1, 2

    def forward(self, source: Tensor, target: Tensor) -> Tensor:
        past = torch.ones(target.shape[1], target.shape[1], dtype=torch.bool).tril()
        is_source, is_target = (
            (ids != each)[:, None, None] for ids, each in zip((source, target), self.ids(), strict=True)
        )
        y = attended(TABLE[target], TABLE[target], is_target & past)
        return attended(y, TABLE[source], is_source, 1)

    def ids(self) -> tuple[int, int]:
        return self.source_pad_id, self.target_pad_id


class OfOnePadding(OfTwoPaddings):
    def ids(self) -> tuple[int, int]:
        return self.source_pad_id, self.source_pad_id


def with_paddings(kind: type[OfTwoPaddings]) -> Invocation:
    """A call of texts that have neither id of padding."""
    call = ids_call(kind(), 5, 4)
    return replace(call, arguments={name: each.clamp(min=3) for name, each in call.arguments.items()})


def chosen_over_the_words(source: Tensor, target: Tensor) -> Tensor:
    return (target_sees_its_past(source, target) @ TABLE.mT).softmax(-1)


def chosen_over_the_tokens(source: Tensor, target: Tensor) -> Tensor:
    return (target_sees_its_past(source, target) @ TABLE.mT).softmax(1)


def counted_from_the_first(ids: Tensor) -> Tensor:
    return causal_of(TABLE[ids] + PLACES[: ids.shape[1]])


def counted_from_the_last(ids: Tensor) -> Tensor:
    return causal_of(TABLE[ids] + PLACES[: ids.shape[1]].flip(0))


def causal_of(x: Tensor) -> Tensor:
    return attended(x, x, torch.ones(x.shape[1], x.shape[1], dtype=torch.bool).tril())


CASES = [
    Case("positions-without-effect", places_of_the_target_alone, translated_with_places, of_two_texts, False, 3),
    Case("queries-from-x", asked_by_the_source, translated_with_places, of_one_length_of_texts, False, 3),
    Case("padding-by-ids", queries_of_padding_blocked, keys_of_padding_blocked, of_tokens_and_ids, has_line=False),
    Case("padding-by-ids", said_to_be_hidden_and_seen, said_to_be_seen, of_ids, has_line=False),
    *(
        Case("padding-by-ids", wrong, right, of_ids, has_line=False)
        for wrong, right in (
            (padding_of_the_head_of_another_sample, padding_of_each_sample_in_both_heads),
            (padding_of_the_first_sample, padding_hidden_at_once),
            (padding_of_any_sample, padding_hidden_at_once),
            (words_hidden, padding_hidden_at_once),
        )
    ),
    Case("padding-by-ids", padding_alone_seen, padding_hidden_at_once, of_ids, has_line=False),
    Case("padding-by-ids", padding_hidden_in_the_first_layer, padding_hidden_in_both, of_ids, False, attentions=2),
    *(
        Case("mask-read", padding_mask_overwritten, right, of_ids, has_line=False)
        for right in (padding_mask_joined, padding_mask_filled_in_place)
    ),
    Case("mask-read", padding_mask_thrown_away, padding_seen, of_ids, has_line=False),
    Case("mask-read", padding_mask_thrown_away, padding_mask_returned, of_ids, has_line=False),
    Case("values-from-the-keys-input", values_of_another_text, values_of_the_keys_text, of_one_length, False),
    Case("values-from-the-keys-input", values_of_another_text, values_of_answers, of_one_length, False),
    Case("mean-of-the-kept", kept_times_their_number, mean_of_the_kept, of_ids),
    Case("mean-of-the-kept", all_by_the_number_of_the_kept, mean_of_all_seen, of_ids),
    Case("mean-of-the-kept", mean_of_all, mean_of_the_kept, of_ids),
    Case("mean-of-the-kept", alike_with_padding, alike, of_two_texts, has_line=False, attentions=2),
    Case("mean-of-the-kept", mean_of_all_but_in_scores, mean_of_the_marked, of_marked_ids),
    Case("embeddings-scaled", embeddings_of_one_text_scaled, embeddings_of_both_scaled, of_two_texts, attentions=3),
    Case("embeddings-scaled", embeddings_divided, embeddings_of_both_scaled, of_two_texts, attentions=3),
    Case("padding-by-ids", source_hidden_by_the_target, target_sees_its_past, of_one_length_of_texts, False, 2),
    Case("padding-by-ids", OfOnePadding, OfTwoPaddings, with_paddings, has_line=False, attentions=2),
    Case("later-tokens-hidden", chosen_over_the_tokens, chosen_over_the_words, of_two_texts, False, 2),
    Case("positions-from-the-start", counted_from_the_last, counted_from_the_first, of_ids, False),
    Case("target-causal", target_sees_all_of_itself, target_sees_its_past, of_two_texts, False, attentions=2),
]
