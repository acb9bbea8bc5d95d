"""Steps of a decoder that are functions: they are handed a filled cache, and return the next one."""

from __future__ import annotations

import pytest
import torch
from target_calls import attention, axes, first
from torch import Tensor, nn

from regard.check import check

pytestmark = pytest.mark.more  # seconds a test: it is run by make test-more


def step(x_t: Tensor, weights: dict[str, Tensor], cache: Tensor, pos: int) -> tuple[Tensor, Tensor]:
    """x_t: (B, C), cache: (2, B, H, max_len, D)"""
    heads = cache.shape[2]
    cache = cache.clone()
    cache[0, :, :, pos] = (x_t @ weights["k"]).unflatten(-1, (heads, -1))
    cache[1, :, :, pos] = (x_t @ weights["v"]).unflatten(-1, (heads, -1))
    keys, values = cache[:, :, :, : pos + 1]
    return attention((x_t @ weights["q"]).unflatten(-1, (heads, 1, -1)), keys, values).flatten(1), cache


def step_without_itself(x_t: Tensor, weights: dict[str, Tensor], cache: Tensor, pos: int) -> tuple[Tensor, Tensor]:
    """x_t: (B, C), cache: (2, B, H, max_len, D)"""
    heads = cache.shape[2]
    cache = cache.clone()
    cache[0, :, :, pos] = (x_t @ weights["k"]).unflatten(-1, (heads, -1))
    cache[1, :, :, pos] = (x_t @ weights["v"]).unflatten(-1, (heads, -1))
    keys, values = cache[:, :, :, :pos]
    return attention((x_t @ weights["q"]).unflatten(-1, (heads, 1, -1)), keys, values).flatten(1), cache


def test_the_token_of_a_step_comes_after_those_of_its_cache() -> None:
    call = first(step)
    assert axes(call) == [("x", 0, (), None), ("context", 1, (3,), 2)]
    assert call.arguments["pos"] == call.arguments["cache"].shape[3] - 1
    assert check(step).verdict == "right"


def test_a_step_reads_what_it_writes() -> None:
    assert {each.id for each in check(step_without_itself).causes} == {"cache-places"}


def joined(x: Tensor, past_k: Tensor, past_v: Tensor, wq: Tensor, wk: Tensor, wv: Tensor) -> Tensor:
    """x, past_k, past_v: (B, T, C)"""
    return attention(x @ wq, torch.cat((past_k, x @ wk), 1), torch.cat((past_v, x @ wv), 1))


def joined_crosswise(x: Tensor, past_k: Tensor, past_v: Tensor, wq: Tensor, wk: Tensor, wv: Tensor) -> Tensor:
    """x, past_k, past_v: (B, T, C)"""
    return attention(x @ wq, torch.cat((past_k, x @ wk), 1), torch.cat((x @ wv, past_v), 1))


def test_cached_values_belong_to_the_cached_keys() -> None:
    assert check(joined).verdict == "right"
    assert {each.id for each in check(joined_crosswise).causes} == {"value-of-the-key"}


class OneAtATime(nn.Module):
    """It keeps the keys and values of the tokens before, and takes a single new one."""

    def __init__(self, d_model: int, heads: int, *, of_first: bool = False) -> None:
        super().__init__()
        self.heads, self.of_first = heads, of_first
        self.qkv, self.out = nn.Linear(d_model, 3 * d_model), nn.Linear(d_model, d_model)
        self.cache_k, self.cache_v = torch.zeros(8, 16, d_model), torch.zeros(8, 16, d_model)

    def forward(self, x: Tensor, start_pos: int) -> Tensor:
        batch, tokens, _ = x.shape
        assert tokens == 1
        q, k, v = self.qkv(x).chunk(3, -1)
        self.cache_k[:batch, start_pos : start_pos + 1] = k
        self.cache_v[:batch, 0 if self.of_first else start_pos] = v[:, 0]
        keys, values = (each[:batch, : start_pos + 1] for each in (self.cache_k, self.cache_v))
        q, keys, values = (each.unflatten(-1, (self.heads, -1)).transpose(1, 2) for each in (q, keys, values))
        return self.out(attention(q, keys, values).transpose(1, 2).flatten(2))


def test_what_takes_one_token_in_each_call_is_called_once_for_each() -> None:
    call = first(OneAtATime)
    assert (axes(call), call.steps_from) == ([("x", 0, (1,), None)], "start_pos")
    assert any("one token at a time" in each for each in call.assumptions)
    (output,) = call.outputs(call.run())
    assert output.shape == call.arguments["x"].shape
    report = check(OneAtATime)
    assert report.verdict == "right"
    assert any("causal" in each.text for each in report.steps)


class OfOneRow(OneAtATime):
    """It writes to the samples what it means to write to the places: a batch of one does not raise."""

    def forward(self, x: Tensor, start_pos: int) -> Tensor:
        batch, tokens, _ = x.shape
        assert tokens == 1, "one token at a time"
        q, k, v = self.qkv(x).chunk(3, -1)
        self.cache_k[start_pos : start_pos + 1], self.cache_v[start_pos : start_pos + 1] = k, v
        keys, values = (each[:batch, : start_pos + 1] for each in (self.cache_k, self.cache_v))
        return self.out(attention(q, keys, values))


def test_what_runs_with_one_sample_alone_is_called_with_one() -> None:
    call = first(OfOneRow)
    assert (call.arguments["x"].shape[0], call.steps_from) == (1, "start_pos")
    assert any("one sample" in each for each in call.assumptions)
    assert {each.id for each in check(OfOneRow).causes} == {"cache-places"}


def test_values_that_are_written_over_one_another_are_found() -> None:
    assert check(OneAtATime, args={"of_first": True}).verdict == "wrong"


class AtAPlace(OneAtATime):
    """Its argument says where the token stands, and how many of the places are read hangs on that."""

    def forward(self, x: Tensor, pos: int) -> Tensor:
        batch, tokens, _ = x.shape
        assert tokens == 1
        q, k, v = self.qkv(x).chunk(3, -1)
        k = self.key_of(q, k)
        self.cache_k[:batch, pos : pos + 1], self.cache_v[:batch, pos : pos + 1] = k, v
        end = self.end(pos)
        keys, values = self.cache_k[:batch, :end], self.cache_v[:batch, :end]
        q, keys, values = (each.unflatten(-1, (self.heads, -1)).transpose(1, 2) for each in (q, keys, values))
        return self.out(attention(q, keys, values).transpose(1, 2).flatten(2))

    def end(self, pos: int) -> int:
        return pos + 1

    def key_of(self, q: Tensor, k: Tensor) -> Tensor:
        return k


class BeforeItself(AtAPlace):
    def end(self, pos: int) -> int:
        return max(pos, 1)


class QueriesAreKeys(BeforeItself):
    def key_of(self, q: Tensor, k: Tensor) -> Tensor:
        return nn.functional.normalize(q, dim=-1) * k.shape[-1]


class BesideItself(OneAtATime):
    """What was kept is read before the new token is, which stands beside it."""

    def forward(self, x: Tensor, i: int) -> Tensor:
        batch, tokens, _ = x.shape
        assert tokens == 1
        q, k, v = self.qkv(x).chunk(3, -1)
        keys = torch.cat((self.cache_k[:batch, :i], k), 1)
        values = torch.cat((self.cache_v[:batch, :i], v), 1)
        self.cache_k[:batch, i : i + 1], self.cache_v[:batch, i : i + 1] = k, v
        q, keys, values = (each.unflatten(-1, (self.heads, -1)).transpose(1, 2) for each in (q, keys, values))
        return self.out(attention(q, keys, values).transpose(1, 2).flatten(2))


class InARing(OneAtATime):
    """It reads the last three tokens."""

    def forward(self, x: Tensor, pos: int) -> Tensor:
        batch, tokens, _ = x.shape
        assert tokens == 1
        q, k, v = self.qkv(x).chunk(3, -1)
        self.cache_k[:batch, pos % 3], self.cache_v[:batch, pos % 3] = k[:, 0], v[:, 0]
        n = min(pos + 1, 3)
        keys, values = self.cache_k[:batch, :n], self.cache_v[:batch, :n]
        q, keys, values = (each.unflatten(-1, (self.heads, -1)).transpose(1, 2) for each in (q, keys, values))
        return self.out(attention(q, keys, values).transpose(1, 2).flatten(2))


def test_the_place_of_a_token_is_as_many_as_came_before() -> None:
    assert first(AtAPlace).steps_from == first(InARing).steps_from == "pos"
    assert check(AtAPlace).verdict == check(BesideItself).verdict == "right"
    assert not check(InARing).causes


def test_a_token_reads_itself_in_the_cache_that_it_is_written_to() -> None:
    assert {each.id for each in check(BeforeItself).causes} == {"cache-places"}
    assert not check(QueriesAreKeys).causes  # as in Reformer, where a token sees itself only where it sees no other


class KeptOfOneText(nn.Module):
    """Keys and values of the tokens before are kept, of one text; a token's place is its number."""

    def __init__(self, d_model: int, heads: int, *, anew: bool = False) -> None:
        super().__init__()
        self.heads, self.anew = heads, anew
        self.q, self.k, self.v, self.out = (nn.Linear(d_model, d_model) for _ in range(4))
        self.register_buffer("places", torch.randn(16, d_model))
        self.register_buffer("k_cache", torch.zeros(1, 16, d_model))
        self.register_buffer("v_cache", torch.zeros(1, 16, d_model))

    def forward(self, x: Tensor, start_pos: int = 0) -> Tensor:
        tokens = x.shape[1]
        first = 0 if self.anew else start_pos
        x = x + self.places[first : first + tokens]
        end = start_pos + tokens
        self.k_cache[:, start_pos:end], self.v_cache[:, start_pos:end] = self.k(x).detach(), self.v(x).detach()
        several = (self.q(x), self.k_cache[:, :end], self.v_cache[:, :end])
        q, k, v = (each.unflatten(-1, (self.heads, -1)).transpose(1, 2) for each in several)
        seen = torch.ones(tokens, end).tril(start_pos) == 1
        read = nn.functional.scaled_dot_product_attention(q, k, v, attn_mask=seen)
        return self.out(read.transpose(1, 2).flatten(2))


def test_what_keeps_one_text_is_judged_by_one() -> None:
    call = first(KeptOfOneText)
    assert call.arguments["x"].shape[0] == 1
    assert check(KeptOfOneText).verdict in ("right", "different by design")
    assert {each.id for each in check(KeptOfOneText, args={"anew": True}).causes} == {"cache-positions"}
