"""Which products of a run are scores and weighted sums, and what else is known of each attention."""

from __future__ import annotations

import math

import pytest
import torch
import torch.nn.functional as F
from torch import Tensor, nn

from attention_styles import attentions, heads_call, tables, tokens_call
from property_cases import of_x_and_context
from regard.check.target import Invocation

X = torch.randn(2, 3, 8, generator=torch.Generator().manual_seed(0), dtype=torch.float64)
"""Samples, tokens, width."""


def heads(*sizes: int, seed: int = 0) -> Tensor:
    return torch.randn(sizes, generator=torch.Generator().manual_seed(seed), dtype=torch.float64)


Q, K, V = heads(2, 2, 3, 4), heads(2, 2, 5, 4, seed=1), heads(2, 2, 5, 3, seed=2)


class TwoLayers(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.first, self.second = (nn.TransformerEncoderLayer(8, 2, 16, batch_first=True) for _ in range(2))

    def forward(self, x: Tensor) -> Tensor:
        return self.second(self.first(x))


class PyTorchs(nn.Module):
    def __init__(self, *, need_weights: bool) -> None:
        super().__init__()
        self.attention, self.need_weights = nn.MultiheadAttention(8, 2, batch_first=True), need_weights

    def forward(self, x: Tensor) -> tuple[Tensor, Tensor | None]:
        return self.attention(x, x, x, need_weights=self.need_weights, average_attn_weights=False)


def torch_call(module: nn.Module) -> Invocation:
    return tokens_call(module.double().eval(), X)


@pytest.mark.parametrize("need_weights", [True, False])
def test_pytorch_s_module_holds_the_weights_that_it_returns(need_weights: bool) -> None:
    module = PyTorchs(need_weights=need_weights)
    (table,) = tables(torch_call(module))
    wanted = module.attention(X, X, X, average_attn_weights=False)[1]
    torch.testing.assert_close(table.dense(table.weight), wanted, rtol=1e-11, atol=1e-12)
    assert table.instance.module == "attention"


def test_attentions_of_layers_are_told_apart_by_their_modules() -> None:
    assert [each.module for each in attentions(torch_call(TwoLayers()))] == ["first.self_attn", "second.self_attn"]


def test_feed_forward_is_no_attention() -> None:
    gated = nn.Sequential(nn.Linear(8, 16), nn.GLU(), nn.Linear(8, 8))
    assert attentions(torch_call(gated)) == []


def test_a_squeeze_and_excitation_is_no_attention() -> None:
    assert attentions(tokens_call(lambda x: x * x.mean(1, keepdim=True).softmax(-1), X)) == []


def fused_with(**options: object) -> Invocation:
    return heads_call(lambda q, k, v: F.scaled_dot_product_attention(q, k, v, **options), Q, K, V)


def test_a_fused_kernel_is_seen_step_by_step() -> None:
    mask = torch.arange(5) != torch.arange(3)[:, None]
    for options, scale, allowed in (
        ({}, 0.5, torch.ones(3, 5, dtype=torch.bool)),
        ({"scale": 0.3}, 0.3, torch.ones(3, 5, dtype=torch.bool)),
        ({"is_causal": True}, 0.5, torch.ones(3, 5, dtype=torch.bool).tril()),
        ({"attn_mask": mask}, 0.5, mask),
        ({"attn_mask": torch.zeros(3, 5).double().masked_fill(~mask, -torch.inf)}, 0.5, mask),
    ):
        (table,) = tables(fused_with(**options))
        wanted = (Q @ K.mT * scale).masked_fill(~allowed, -torch.inf).softmax(-1)
        torch.testing.assert_close(table.dense(table.weight), wanted, rtol=1e-11, atol=1e-12, msg=str(options))


def test_grouped_heads_of_a_fused_kernel() -> None:
    grouped = lambda q, k, v: F.scaled_dot_product_attention(q, k, v, enable_gqa=True)  # noqa: E731
    (table,) = tables(heads_call(grouped, heads(2, 4, 3, 4), K, V))
    assert torch.equal(table.query.head, table.head)
    assert torch.equal(table.key.head, table.head // 2)


def test_products_that_are_added_are_one_score() -> None:
    """Transformer-XL and MLA: q . k + q' . k'."""
    extra = heads(5, 4, seed=3)

    def attend(q: Tensor, k: Tensor, v: Tensor) -> Tensor:
        content = q @ k.transpose(-2, -1)
        place = q.flip(-1) @ k.roll(1, -1).mul(2).add(extra).transpose(-2, -1)
        return ((content + place) / math.sqrt(8)).softmax(-1) @ v

    (table,) = tables(heads_call(attend, Q, K, V))
    wanted = Q @ K.mT + Q.flip(-1) @ (2 * K.roll(1, -1) + extra).mT
    torch.testing.assert_close(table.dense(table.product), wanted)
    assert table.width == 8
    assert [each.operation.location.text for each in table.instance.added] == [
        "place = q.flip(-1) @ k.roll(1, -1).mul(2).add(extra).transpose(-2, -1)"
    ]


def test_projections_by_convolution_are_projections() -> None:
    class Convolved(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.qkv = nn.Conv1d(8, 24, 1)

        def forward(self, x: Tensor) -> Tensor:
            q, k, v = self.qkv(x.mT).mT.chunk(3, -1)
            return (q @ k.mT / math.sqrt(8)).softmax(-1) @ v

    module = Convolved().double()
    (table,) = tables(tokens_call(module, X))
    q, k, _ = module.qkv(X.mT).mT.chunk(3, -1)
    torch.testing.assert_close(table.dense((table.q_source * table.k_source).sum(-1))[:, 0], q @ k.mT)
    assert table.whole


def test_rotated_queries_are_traced_back_to_their_projection() -> None:
    angles = torch.arange(5.0)[:, None] * torch.tensor([1.0, 0.1])
    turn = torch.polar(torch.ones(5, 2), angles).to(torch.complex128)

    def rotated(x: Tensor) -> Tensor:
        pairs = torch.view_as_complex(x.reshape(*x.shape[:-1], -1, 2))
        return torch.view_as_real(pairs * turn[: x.shape[2]]).flatten(3)

    def attend(q: Tensor, k: Tensor, v: Tensor) -> Tensor:
        return (rotated(q) @ rotated(k).mT / 2).softmax(-1) @ v

    (table,) = tables(heads_call(attend, Q, K, V))
    torch.testing.assert_close(table.q, rotated(Q)[table.query.sample, table.head, table.query.token])
    torch.testing.assert_close(table.q_source, Q[table.query.sample, table.head, table.query.token])
    torch.testing.assert_close(table.k_source, K[table.key.sample, table.head, table.key.token])


def test_a_sink_takes_part_in_the_softmax_and_is_no_score() -> None:
    def attend(q: Tensor, k: Tensor, v: Tensor) -> Tensor:
        scores = q @ k.mT / 2
        sink = torch.zeros(*scores.shape[:-1], 1, dtype=q.dtype)
        return torch.cat([scores, sink], -1).softmax(-1)[..., :-1] @ v

    (table,) = tables(heads_call(attend, Q, K, V))
    assert len(table.weight) == 2 * 2 * 3 * 5
    assert bool(table.with_sink.all())
    assert bool((table.dense(table.weight).sum(-1) < 1).all())


def test_scores_that_nothing_uses_are_left_out() -> None:
    def attend(q: Tensor, k: Tensor, v: Tensor) -> Tensor:
        scores = q @ k.mT / 2
        return scores[..., 1:].softmax(-1) @ v[..., 1:, :]

    (table,) = tables(heads_call(attend, Q, K, V))
    assert sorted(set(table.key.token.tolist())) == [1, 2, 3, 4]


def test_keys_of_two_sequences_are_numbered_one_sequence_after_the_other() -> None:
    def attend(x: Tensor, context: Tensor) -> Tensor:
        both = torch.cat([x, context], 1)
        return (x @ both.mT / math.sqrt(8)).softmax(-1) @ both

    call = of_x_and_context(attend)
    (table,) = tables(call)
    x, context = call.arguments["x"], call.arguments["context"]
    wanted = (x @ torch.cat([x, context], 1).mT / math.sqrt(8)).softmax(-1)
    torch.testing.assert_close(table.dense(table.weight)[:, 0], wanted)
    assert torch.equal(table.values.token, table.key.token[table.values.score])


def test_heads_that_are_flattened_with_the_batch_heads_first() -> None:
    def attend(q: Tensor, k: Tensor, v: Tensor) -> Tensor:
        flat = [torch.cat(each.unbind(1)) for each in (q, k, v)]
        out = torch.bmm((torch.bmm(flat[0], flat[1].mT) / 2).softmax(-1), flat[2])
        return torch.stack(out.chunk(2), 1)

    (table,) = tables(heads_call(attend, Q, K, V))
    assert torch.equal(table.query.head, table.head)
    torch.testing.assert_close(table.dense(table.weight), (Q @ K.mT / 2).softmax(-1))


def test_another_input_has_its_own_numbers_in_the_same_table() -> None:
    from regard.check.roles.influence import record_invocation

    call = heads_call(lambda q, k, v: (q @ k.mT / 2).softmax(-1) @ v, Q, K, V)
    (table,) = tables(call)
    other = table.of_run(record_invocation(call, {"q": 2 * Q, "k": K, "v": V}))
    torch.testing.assert_close(other.dense(other.weight), (Q @ K.mT).softmax(-1))
    with pytest.raises(ValueError, match="other operations"):
        table.of_run(record_invocation(heads_call(lambda q, k, v: q @ k.mT, Q, K, V)))


def test_chunks_that_are_added_are_one_attention() -> None:
    """Memory-efficient attention: each chunk's sums are scaled anew, and added."""

    def chunked(q: Tensor, k: Tensor, v: Tensor) -> Tensor:
        sums, totals, tops = [], [], []
        for keys, values in zip(k.split(2, -2), v.split(2, -2), strict=True):
            scores = torch.einsum("bhid,bhjd->bhij", q / 2, keys)
            tops.append(scores.amax(-1))
            weights = (scores - tops[-1][..., None]).exp()
            sums.append(torch.einsum("bhij,bhjd->bhid", weights, values))
            totals.append(weights.sum(-1))
        factors = (torch.stack(tops, -1) - torch.stack(tops, -1).amax(-1, keepdim=True)).exp()
        total = (torch.stack(totals, -1) * factors).sum(-1, keepdim=True)
        return (torch.stack(sums, -1) * factors[..., None, :]).sum(-1) / total

    call = heads_call(chunked, Q, K, V)
    torch.testing.assert_close(call.run(), (Q @ K.mT / 2).softmax(-1) @ V)
    (found,) = attentions(call)
    assert {len(each.output.shape) for each in found.scores} == {3}


def test_what_an_attention_returned_is_no_score_of_the_next_one() -> None:
    def twice(x: Tensor) -> Tensor:
        for _ in range(2):
            x = (x @ x.mT / math.sqrt(8)).softmax(-1) @ x
        return x

    assert [(len(each.scores), len(each.sums)) for each in attentions(tokens_call(twice, X))] == [(1, 1), (1, 1)]


def test_one_line_for_two_sequences_that_read_the_same_one_is_two_attentions() -> None:
    def read(x: Tensor, context: Tensor) -> Tensor:
        return (x @ context.mT / math.sqrt(8)).softmax(-1) @ (2 * context)

    def both(x: Tensor, context: Tensor) -> tuple[Tensor, Tensor]:
        return read(x, context), read(context, context)

    found = tables(of_x_and_context(both))
    assert [(set(each.query.stream.tolist()), set(each.key.stream.tolist())) for each in found] == [
        ({0}, {1}),
        ({1}, {1}),
    ]


def test_blocks_of_keys_of_two_sequences_are_one_attention() -> None:
    def read(x: Tensor, context: Tensor) -> Tensor:
        exponentials = [((x @ keys.mT) / math.sqrt(8)).exp() for keys in (x, context)]
        total = sum(each.sum(-1, keepdim=True) for each in exponentials)
        return sum(each @ values for each, values in zip(exponentials, (x, context), strict=True)) / total

    assert len(attentions(of_x_and_context(read))) == 1
