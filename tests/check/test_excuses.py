"""What is wrong in one call, or by one recipe, and is excused by another one."""

from __future__ import annotations

import pytest
import torch
from torch import nn

from regard.check.conclusion import conclude
from regard.check.sandbox.torch_settings import UserSettings

pytestmark = pytest.mark.more  # seconds a test: it is run by make test-more


def concluded(what):
    return conclude(what, {}, UserSettings()).report()


def of_distances(q, keys, skipped):
    """Queries times as many vectors, and shifted by as many places, as for as many keys."""
    count, width = q.shape[-2:]
    vectors = torch.sin(torch.outer(torch.arange(1, 2 * count).double(), torch.arange(1, width + 1).double()))
    padded = torch.nn.functional.pad(q @ vectors.to(q).T, (1, 0)).reshape(*q.shape[:-2], -1, count)
    return padded[..., skipped, :].reshape(*q.shape[:-1], 2 * count - 1)[..., :keys]


def with_vectors_of_distances(q, k, v):
    logits = of_distances(q, k.size(-2), slice(1, None))
    return ((q @ k.mT + logits) / q.size(-1) ** 0.5).softmax(-1) @ v


def with_vectors_of_other_queries(q, k, v):
    logits = of_distances(q, k.size(-2), slice(None, -1))
    return ((q @ k.mT + logits) / q.size(-1) ** 0.5).softmax(-1) @ v


def test_vectors_of_distances_are_judged_with_as_many_keys_as_queries():
    report = concluded(with_vectors_of_distances)
    assert report.ok, str(report)
    assert any("another number of keys than queries a learned vector" in each for each in report.notes)
    assert concluded(with_vectors_of_other_queries).verdict == "wrong"


class OfOneSequenceUnlessTold(nn.Module):
    def __init__(self, dim, heads, dim_context=None):
        super().__init__()
        self.heads, self.is_crossed = heads, dim_context is not None
        self.norm, self.to_q = nn.LayerNorm(dim), nn.Linear(dim, dim)
        self.to_kv, self.to_out = nn.Linear(dim_context or dim, 2 * dim), nn.Linear(dim, dim)

    def forward(self, x, context=None):
        x = self.norm(x)
        return self.attend(x, context if self.is_crossed else x)

    def attend(self, x, read):
        q, k, v = (
            each.unflatten(-1, (self.heads, -1)).transpose(1, 2)
            for each in (self.to_q(x), *self.to_kv(read).chunk(2, -1))
        )
        return self.to_out(torch.nn.functional.scaled_dot_product_attention(q, k, v).transpose(1, 2).flatten(2))


class OfOneSequenceAlways(OfOneSequenceUnlessTold):
    def forward(self, x, context=None):
        x = self.norm(x)
        return self.attend(x, x)


def test_a_context_without_effect_is_none_where_a_width_of_it_has_to_be_told():
    report = concluded(OfOneSequenceUnlessTold)
    assert report.ok, str(report)
    assert any("unless dim_context is set" in each for each in report.notes)
    assert "context-ignored" in {each.id for each in concluded(OfOneSequenceAlways).causes}


def linear_attention_in_chunks(q, k, v, chunk_size=2):
    """Causal linear attention, the same for every chunk size. q, k, v: (batch, heads, tokens, width)."""
    state, read = q.new_zeros(*q.shape[:2], q.shape[-1], v.shape[-1]), []
    for start in range(0, q.shape[2], chunk_size):
        asking, keys, values = (each[:, :, start : start + chunk_size] for each in (q, k, v))
        read.append((asking @ keys.mT).tril() @ values + asking @ state)
        state = state + keys.mT @ values
    return torch.cat(read, 2)


def that_forgets_a_chunk(q, k, v, chunk_size=2):
    """Causal linear attention, the same for every chunk size. q, k, v: (batch, heads, tokens, width)."""
    state, read = q.new_zeros(*q.shape[:2], q.shape[-1], v.shape[-1]), []
    for start in range(0, q.shape[2], chunk_size):
        asking, keys, values = (each[:, :, start : start + chunk_size] for each in (q, k, v))
        read.append((asking @ keys.mT).tril() @ values + asking @ state)
        state = state / 2 + keys.mT @ values
    return torch.cat(read, 2)


def test_linear_attention_in_chunks_misses_no_softmax():
    report = concluded(linear_attention_in_chunks)
    assert report.ok, str(report)
    report = concluded(that_forgets_a_chunk)
    assert report.causes[0].id == "chunks-joined", str(report)


class WithBiasOfT5(nn.Module):
    def __init__(self, dim, heads, positions="absolute"):
        super().__init__()
        self.heads, self.positions = heads, positions
        self.of_q, self.of_k, self.of_v, self.out = (nn.Linear(dim, dim) for _ in range(4))

    def forward(self, query, key, value, relative_bias=None):
        q, k, v = (
            of(x).unflatten(-1, (self.heads, -1)).transpose(1, 2)
            for of, x in ((self.of_q, query), (self.of_k, key), (self.of_v, value))
        )
        scores = q @ k.mT / q.size(-1) ** 0.5
        scores = self.biased(scores, relative_bias)
        return self.out((scores.softmax(-1) @ v).transpose(1, 2).flatten(2))

    def biased(self, scores, relative_bias):
        return scores


class WithBiasOfAnotherSetting(WithBiasOfT5):
    def forward(self, query, key, value, relative_bias=None):
        q, k, v = (
            of(x).unflatten(-1, (self.heads, -1)).transpose(1, 2)
            for of, x in ((self.of_q, query), (self.of_k, key), (self.of_v, value))
        )
        scores = q @ k.mT / q.size(-1) ** 0.5
        if self.positions == "t5":
            scores = scores + relative_bias
        return self.out((scores.softmax(-1) @ v).transpose(1, 2).flatten(2))


def test_a_bias_that_another_setting_reads_is_not_ignored():
    assert [each.id for each in concluded(WithBiasOfT5).causes] == ["bias-ignored"]
    assert concluded(WithBiasOfAnotherSetting).ok


class WithTheNameOfAMask(WithBiasOfT5):
    def forward(self, query, key, value, mask: str | None = None):
        q, k, v = (
            of(x).unflatten(-1, (self.heads, -1)).transpose(1, 2)
            for of, x in ((self.of_q, query), (self.of_k, key), (self.of_v, value))
        )
        scores = q @ k.mT / q.size(-1) ** 0.5
        if mask == "subsequent":
            scores = scores.masked_fill(torch.ones_like(scores).triu(1).bool(), -torch.inf)
        return self.out((scores.softmax(-1) @ v).transpose(1, 2).flatten(2))


def test_a_mask_that_is_annotated_as_a_text_is_no_tensor():
    report = concluded(WithTheNameOfAMask)
    assert report.ok, str(report)


def with_small_number(q, k, v):
    return (q @ k.mT / (q.size(-1) ** 0.5 + 1e-6)).softmax(-1) @ v


def with_large_number(q, k, v):
    return (q @ k.mT / (q.size(-1) ** 0.5 + 0.5)).softmax(-1) @ v


def with_infinity_hidden(q, k, v, mask=None):
    scores = q @ k.mT / q.size(-1) ** 0.5
    if mask is not None:
        scores = scores.masked_fill(mask == float("-inf"), -1e9)
    return scores.softmax(-1) @ v


def with_finite_numbers_lost(q, k, v, mask=None):
    scores = q @ k.mT / q.size(-1) ** 0.5
    if mask is not None:
        scores = scores.masked_fill(mask < -1e30, -1e9)
    return scores.softmax(-1) @ v


def test_a_scale_that_is_the_definitions_to_float32_is_no_other_ones():
    report = concluded(with_small_number)
    assert report.ok, str(report)
    assert any("the scale is the definition's to 1e-6" in each for each in report.notes)
    assert concluded(with_large_number).verdict == "wrong"


def test_a_mask_that_is_compared_with_infinity_is_no_bias():
    assert concluded(with_infinity_hidden).ok
    assert [each.id for each in concluded(with_finite_numbers_lost).causes] == ["bias-ignored"]


class AsPyTorchCallsIt(nn.Module):
    def __init__(self, dim=32, heads=4):
        super().__init__()
        self.heads, self.norm = heads, nn.LayerNorm(dim)
        self.qkv, self.out = nn.Linear(dim, 3 * dim), nn.Linear(dim, dim)

    def forward(self, tgt, memory=None, tgt_mask=None, tgt_key_padding_mask=None, memory_key_padding_mask=None):
        """Made to be a layer of nn.TransformerDecoder: memory and all parameters after tgt_mask are unused.

        Args:
            tgt: the tokens.
            tgt_mask: 1 where a key is hidden.
        """
        q, k, v = (
            each.unflatten(-1, (self.heads, -1)).transpose(1, 2) for each in self.qkv(self.norm(tgt)).chunk(3, -1)
        )
        scores = q @ k.mT / q.size(-1) ** 0.5
        if tgt_mask is not None:
            scores = scores + tgt_mask * -1e9
        return tgt + self.out((scores.softmax(-1) @ v).transpose(1, 2).flatten(2))


class AsPyTorchCallsItUnsaid(AsPyTorchCallsIt):
    def forward(self, tgt, memory=None, tgt_mask=None, tgt_key_padding_mask=None, memory_key_padding_mask=None):
        """A layer of a decoder: memory and all parameters after tgt_mask are optional."""
        return super().forward(tgt, tgt_mask=tgt_mask)


def test_arguments_after_one_may_be_said_to_be_unused():
    report = concluded(AsPyTorchCallsIt)
    assert report.ok, str(report)
    assert {each.id for each in concluded(AsPyTorchCallsItUnsaid).causes} & {"context-ignored", "mask-argument"}
