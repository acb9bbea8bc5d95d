"""Calls with ids that a part of the code looks up, with several ids of each token, and with what may be left out."""

from __future__ import annotations

import torch
from target_calls import attention, axes, first
from torch import Tensor, nn

from regard.check import check


class Reader(nn.Module):
    def __init__(self, vocab: int, width: int) -> None:
        super().__init__()
        self.words = nn.Sequential(nn.Embedding(vocab, width), nn.LayerNorm(width))

    def forward(self, said: Tensor) -> Tensor:
        return self.words(said.long())


class ByAPart(nn.Module):
    """What is spoken is looked up step by step in a method, what is heard by a part."""

    def __init__(self, vocab: int = 30, width: int = 12) -> None:
        super().__init__()
        self.reader, self.table, self.query = Reader(vocab, width), nn.Embedding(vocab, width), nn.Linear(width, width)

    def step(self, one: Tensor, heard: Tensor) -> Tensor:
        return attention(self.query(self.table(one))[:, None], heard, heard)

    def forward(self, heard: Tensor, spoken: Tensor) -> Tensor:
        vectors = self.reader(heard)
        return torch.cat([self.step(spoken[:, at], vectors) for at in range(spoken.size(1))], 1)


def test_what_a_part_or_a_method_looks_up_is_ids() -> None:
    call = first(ByAPart)
    assert axes(call) == [("ids", 0, (1,), None)] * 2


class Recommender(nn.Module):
    """pos are the items that came next, and neg others; both are looked up in the table of the items."""

    def __init__(self, item_num: int = 30, width: int = 12, maxlen: int = 7) -> None:
        super().__init__()
        self.items, self.places = nn.Embedding(item_num, width), nn.Embedding(maxlen, width)
        self.qkv = nn.Linear(width, 3 * width)

    def of_items(self, ids: Tensor) -> Tensor:
        return self.items(ids)

    def forward(self, seq: Tensor, pos: Tensor, neg: Tensor) -> tuple[Tensor, Tensor, Tensor]:
        x = self.of_items(seq) + self.places(torch.arange(seq.shape[1]))
        read = attention(*self.qkv(x).chunk(3, -1))
        pos = pos.view(seq.shape)
        return read, (read * self.of_items(pos)).sum(-1), (read * self.of_items(neg.view(seq.shape))).sum(-1)


class Placed(Recommender):
    """Here pos are positions: they have a table of their own."""

    def forward(self, seq: Tensor, pos: Tensor) -> Tensor:
        return attention(*self.qkv(self.items(seq) + self.places(pos)).chunk(3, -1))


def test_pos_is_a_sequence_of_items_where_it_is_looked_up_in_their_table() -> None:
    call = first(Recommender)
    assert axes(call) == [("ids", 0, (1,), None)] * 3
    assert call.arguments["pos"].shape == call.arguments["seq"].shape
    assert [each.argument for each in first(Placed).streams] == ["seq"]


class Fields(nn.Module):
    def __init__(self, sizes: tuple[int, ...], width: int) -> None:
        super().__init__()
        self.tables = nn.ModuleList([nn.Embedding(each, width) for each in sizes])

    def forward(self, events: Tensor) -> Tensor:
        # events: [batch, seq_len, fields]
        return torch.stack([table(events[..., at]) for at, table in enumerate(self.tables)]).sum(0)


class OfEvents(nn.Module):
    """Each event has three ids."""

    def __init__(self, d_model: int = 12) -> None:
        super().__init__()
        self.fields, self.qkv = Fields((9, 5, 7), d_model), nn.Linear(d_model, 3 * d_model)

    def forward(self, events: Tensor) -> Tensor:
        return attention(*self.qkv(self.fields(events)).chunk(3, -1))


def test_a_token_may_have_an_id_of_each_field() -> None:
    call = first(OfEvents)
    assert axes(call) == [("ids", 0, (1,), None)]
    events = call.arguments["events"]
    assert events.shape[-1] == 3
    assert int(events.max()) < 5
    assert check(OfEvents).verdict == "right"


class OfATrajectory(nn.Module):
    """Beside states, each step has a reward and a place; both are read, though None by default."""

    def __init__(self, d_model: int = 12, state_size: int = 5) -> None:
        super().__init__()
        self.states, self.rewards = nn.Linear(state_size, d_model), nn.Linear(1, d_model)
        self.places, self.qkv = nn.Embedding(16, d_model), nn.Linear(d_model, 3 * d_model)

    def forward(
        self,
        states: Tensor,  # (B, T, state_size)
        returned: Tensor | None = None,  # (B, T, 1)
        when: Tensor | None = None,  # (B, T)
        note: Tensor | None = None,
    ) -> Tensor:
        x = self.states(states) + self.rewards(returned) + self.places(when)
        return attention(*self.qkv(x).chunk(3, -1))


def test_what_is_none_by_default_and_read_all_the_same_is_a_number_of_each_token() -> None:
    call = first(OfATrajectory)
    tokens = call.arguments["states"].shape[1]
    assert call.arguments["returned"].shape == (2, tokens, 1)
    assert call.arguments["when"].shape == (2, tokens)
    assert not call.arguments["when"].is_floating_point()
    assert "returned" not in call.guessed
    assert axes(call) == [("x", 0, (1,), None)]


class OfWordsAndPlaces(nn.Module):
    """Each token has an id of its word and one of its place; the vectors of both, of one table, are added."""

    def __init__(self, vocab: int = 30, width: int = 12) -> None:
        super().__init__()
        self.table, self.drop, self.qkv = nn.Embedding(vocab, width), nn.Dropout(0.1), nn.Linear(width, 3 * width)

    def forward(self, x: Tensor) -> Tensor:
        x = x.view(-1, x.size(-2), x.size(-1))
        vectors = self.drop(self.table(x))
        return attention(*self.qkv(vectors.sum(dim=2)).chunk(3, -1))


def test_tokens_are_of_two_ids_where_the_vectors_of_both_are_added() -> None:
    call = first(OfWordsAndPlaces)
    assert (call.arguments["x"].shape, axes(call)) == ((2, 5, 2), [("ids", 0, (1,), None)])
    assert check(OfWordsAndPlaces).verdict == "right"
