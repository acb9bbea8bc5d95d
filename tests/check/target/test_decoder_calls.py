"""Calls of decoders, of their steps and of poolings: what asks is one vector of each sample, or nothing."""

from __future__ import annotations

import pytest
import torch
from target_calls import axes, first
from torch import Tensor, nn

from regard.check import check

pytestmark = pytest.mark.more  # seconds a test: it is run by make test-more

RIGHT = ("right", "different by design")


class Step(nn.Module):
    """What asks, as |decoder_hidden| = (batch, dec_hid), is added to the words of the source.

    encoder_outputs: [src_len, batch, 2 * enc_hid]
    src_mask: [src_len, batch], 1 for words
    """

    def __init__(self, enc_hid: int, dec_hid: int) -> None:
        super().__init__()
        self.attn, self.v = nn.Linear(2 * enc_hid + dec_hid, dec_hid), nn.Linear(dec_hid, 1, bias=False)

    def forward(self, decoder_hidden: Tensor, encoder_outputs: Tensor, src_mask: Tensor) -> Tensor:
        states = decoder_hidden[None].expand(len(encoder_outputs), -1, -1)
        scores = self.v(self.attn(torch.cat((states, encoder_outputs), 2)).tanh())[..., 0]
        return torch.einsum("sb,sbd->bd", self.weights(scores, src_mask), encoder_outputs)

    def weights(self, scores: Tensor, mask: Tensor) -> Tensor:
        return scores.masked_fill(mask == 0, -1e10).softmax(0)


class StepOverSamples(Step):
    def weights(self, scores: Tensor, mask: Tensor) -> Tensor:
        return scores.masked_fill(mask == 0, -1e10).softmax(1)


class StepOfPadding(Step):
    """src_mask: [src_len, batch], 1 for words, 0 for padding"""

    def weights(self, scores: Tensor, mask: Tensor) -> Tensor:
        return scores.masked_fill(mask == 1, -1e10).softmax(0)


def test_a_mask_stands_with_its_samples_last_as_the_sequences_do() -> None:
    call = first(Step)
    assert axes(call) == [("x", 0, (), None), ("context", 1, (0,), None)]
    assert call.arguments["src_mask"].shape == call.arguments["encoder_outputs"].shape[:2]
    assert check(Step).verdict in RIGHT


def test_mistakes_of_a_step_are_found() -> None:
    found = {kind: {each.id for each in check(kind).causes} for kind in (StepOverSamples, StepOfPadding)}
    assert found == {StepOverSamples: {"softmax-over-keys", "samples-apart"}, StepOfPadding: {"mask-as-documented"}}


class StepOfTwoLayers(nn.Module):
    """The last word, a state of each layer, and what the encoder returned, tokens first."""

    def __init__(self, embed_size: int, hidden_size: int, n_layers: int = 1) -> None:
        super().__init__()
        self.embed = nn.Embedding(20, embed_size)
        self.attn, self.v = nn.Linear(2 * hidden_size, hidden_size), nn.Linear(hidden_size, 1, bias=False)
        self.gru = nn.GRU(hidden_size + embed_size, hidden_size, n_layers)

    def forward(self, word: Tensor, last_hidden: Tensor, encoder_outputs: Tensor) -> Tensor:
        asks = last_hidden[-1].expand(len(encoder_outputs), -1, -1)
        weights = self.v(self.attn(torch.cat((asks, encoder_outputs), 2)).tanh()).softmax(0)
        read = (weights * encoder_outputs).sum(0, keepdim=True)
        return self.gru(torch.cat((self.embed(word).unsqueeze(0), read), 2), last_hidden)[0].squeeze(0)


def test_a_state_is_as_wide_as_its_recurrent_layer_and_has_as_many_layers() -> None:
    call = first(StepOfTwoLayers, embed_size=12, hidden_size=20, n_layers=2)
    assert call.arguments["word"].shape == (2,)
    assert call.arguments["last_hidden"].shape == (2, 2, 20)
    assert call.arguments["encoder_outputs"].shape == (7, 2, 20)
    assert check(StepOfTwoLayers, args={"embed_size": 12, "hidden_size": 20}).verdict in RIGHT


class Answered(nn.Module):
    """Keys are questions and whether they were answered, as one id each."""

    def __init__(self, questions: int, width: int) -> None:
        super().__init__()
        self.questions = questions
        self.both, self.asked = nn.Embedding(2 * questions, width), nn.Embedding(questions, width)

    def forward(self, q: Tensor, r: Tensor, qry: Tensor) -> Tensor:
        x = q + self.questions * r
        k, asks = self.both(x), self.asked(qry)
        later = torch.ones(asks.shape[1], k.shape[1]).triu(1) > 0
        return (asks @ k.mT / k.shape[-1] ** 0.5).masked_fill(later, -torch.inf).softmax(-1) @ k


def test_what_an_embedding_looks_up_together_are_ids() -> None:
    call = first(Answered, questions=11, width=12)
    kinds = {name: (value.dtype, value.ndim) for name, value in call.arguments.items()}
    assert kinds == dict.fromkeys(("q", "r", "qry"), (torch.long, 2))
    assert check(Answered, args={"questions": 11, "width": 12}).verdict in RIGHT


class StepOfOtherWidths(nn.Module):
    """Tokens first; of several states, each would be added to a sample of its own as well, by broadcasting."""

    def __init__(self, enc_dim: int, dec_dim: int) -> None:
        super().__init__()
        self.state, self.states, self.v = nn.Linear(dec_dim, 6), nn.Linear(enc_dim, 6), nn.Linear(6, 1)

    def forward(self, dec_state: Tensor, enc_states: Tensor) -> tuple[Tensor, Tensor]:
        scores = self.v((self.states(enc_states) + self.state(dec_state)[None]).tanh())
        weights = scores.squeeze(2).softmax(0)
        return (weights.unsqueeze(2) * enc_states).sum(0), weights


def test_a_state_is_no_sequence_that_meets_samples_by_broadcasting() -> None:
    call = first(StepOfOtherWidths, enc_dim=12, dec_dim=8)
    assert axes(call) == [("x", 0, (), None), ("context", 1, (0,), None)]
    assert check(StepOfOtherWidths, args={"enc_dim": 12, "dec_dim": 8}).verdict in RIGHT


class OfTheLastLayer(nn.Module):
    """Without parameters: the width is known by its scale alone."""

    def __init__(self, hidden_dim: int) -> None:
        super().__init__()
        self.scale = hidden_dim**-0.5

    def forward(self, prev_hidden: Tensor, encoder_states: Tensor, src_lengths: Tensor) -> Tensor:
        scores = (prev_hidden[-1][:, None] * encoder_states).sum(-1) * self.scale
        hidden = torch.arange(scores.shape[1])[None] >= src_lengths[:, None]
        return (scores.masked_fill(hidden, -1e9).softmax(-1)[..., None] * encoder_states).sum(1)


def test_the_last_layer_of_a_state_is_taken_from_an_axis_of_layers() -> None:
    call = first(OfTheLastLayer)
    assert call.arguments["prev_hidden"].shape[:2] == (1, call.sizes["batch"])
    assert check(OfTheLastLayer).verdict in RIGHT


class Pooling(nn.Module):
    """x: (N, T, H), lengths: (N,)"""

    axis = 1

    def __init__(self, input_dim: int) -> None:
        super().__init__()
        self.score = nn.Linear(input_dim, 1)

    def forward(self, x: Tensor, lengths: Tensor) -> Tensor:
        hidden = torch.arange(x.shape[1])[None] >= lengths[:, None]
        weights = self.score(x).masked_fill(hidden[..., None], -1e9).softmax(self.axis)
        return (weights * x).sum(1)


class PoolingOverSamples(Pooling):
    axis = 0


def test_axes_that_are_documented_are_those_of_a_call_that_mixes_samples() -> None:
    assert axes(first(PoolingOverSamples)) == [("x", 0, (1,), None)]
    assert check(Pooling).verdict in RIGHT
    assert "samples-apart" in {each.id for each in check(PoolingOverSamples).causes}


class WithPositions(nn.Module):
    """tgt (queries, batch, width), memory (places, batch, width); positions have to be handed over."""

    def __init__(self, d_model: int) -> None:
        super().__init__()
        self.attn = nn.MultiheadAttention(d_model, 1)

    def forward(
        self, tgt: Tensor, memory: Tensor, pos: Tensor | None = None, query_pos: Tensor | None = None
    ) -> Tensor:
        return tgt + self.attn(tgt + query_pos, memory + pos, memory)[0]


class WithPositionsOrNone(WithPositions):
    """The same for who has none."""

    def forward(
        self, tgt: Tensor, memory: Tensor, pos: Tensor | None = None, query_pos: Tensor | None = None
    ) -> Tensor:
        query = tgt if query_pos is None else tgt + query_pos
        return tgt + self.attn(query, memory if pos is None else memory + pos, memory)[0]


def test_positions_that_are_added_to_a_sequence_have_its_shape() -> None:
    given = first(WithPositions).arguments
    assert given["pos"].shape == given["memory"].shape
    assert given["query_pos"].shape == given["tgt"].shape
    assert {"pos", "query_pos"}.isdisjoint(first(WithPositionsOrNone).arguments)
    assert check(WithPositions).verdict in RIGHT


class OfAPrefix(nn.Module):
    def __init__(self, width: int) -> None:
        super().__init__()
        self.qkv = nn.Linear(width, 3 * width)

    def forward(self, x: Tensor, prefix_len: Tensor) -> Tensor:
        q, k, v = self.qkv(x).chunk(3, -1)
        places = torch.arange(x.shape[1])
        visible = (places[:, None] >= places) | (places < prefix_len[:, None, None])
        return (q @ k.mT / q.shape[-1] ** 0.5).masked_fill(~visible, -torch.inf).softmax(-1) @ v


def test_each_sample_has_a_prefix() -> None:
    assert first(OfAPrefix).arguments["prefix_len"].tolist() == [2, 2]
    assert check(OfAPrefix).verdict in RIGHT


class OfProjectedFrames(nn.Module):
    """Weights of an encoder's frames, which were projected before, by one query of each sample (Tacotron)."""

    axis = 1

    def __init__(self, dims: int) -> None:
        super().__init__()
        self.of_query, self.score = nn.Linear(dims, dims, bias=False), nn.Linear(dims, 1, bias=False)

    def weights(self, keys: Tensor, query: Tensor) -> Tensor:
        return self.score(torch.tanh(keys + self.of_query(query)[:, None])).softmax(self.axis).mT

    def forward(self, encoder_frames_proj: Tensor, query: Tensor, t: int) -> Tensor:
        return self.weights(encoder_frames_proj, query)


class OfUntypedFrames(OfProjectedFrames):
    def forward(self, enc_keys, query, i):  # type: ignore[no-untyped-def, override]
        return self.weights(enc_keys, query)


class OfAnUnreadStep(OfProjectedFrames):
    """The query stands first."""

    def forward(self, query, src_feats, step_no):  # type: ignore[no-untyped-def, override]
        return self.weights(src_feats, query)


class OverTheSamples(OfUntypedFrames):
    axis = 0


def by_place(query, enc_words, third):  # type: ignore[no-untyped-def]
    """Three sequences in their order, all of which are read."""
    return (query @ enc_words.mT / query.shape[-1] ** 0.5).softmax(-1) @ third


def test_what_is_named_after_queries_is_not_what_it_asks() -> None:
    for kind in (OfProjectedFrames, OfUntypedFrames, OfAnUnreadStep):
        call = first(kind, dims=8)
        assert {each.argument: each.role for each in call.streams}["query"] == "x"
        assert {each.role for each in call.streams} == {"x", "context"}
        assert check(kind).verdict in RIGHT
    assert check(OverTheSamples).verdict not in RIGHT
    assert [each.role for each in first(by_place).streams] == ["q", "k", "v"]


class Attention(nn.Module):
    """Of eight heads, with a mask that nothing asks for, and a dict that keeps what it made of the source."""

    def __init__(self, width: int) -> None:
        super().__init__()
        self.w_q, self.w_k, self.w_v, self.out = (nn.Linear(width, width, bias=False) for _ in range(4))

    def forward(self, q: Tensor, k: Tensor, mask: Tensor, cache: dict[str, Tensor] | None = None) -> Tensor:
        q, k, v = self.w_q(q), self.w_k(k), self.w_v(k)
        if cache is not None:
            k, v = cache.setdefault("k", k), cache.setdefault("v", v)
        q, k, v = (each.unflatten(-1, (8, -1)).transpose(1, 2) for each in (q, k, v))
        scores = (q @ k.mT / q.shape[-1] ** 0.5).masked_fill_(mask.unsqueeze(1), -1e9)
        return self.out((scores.softmax(-1) @ v).transpose(1, 2).flatten(2))


class LayerWithMasks(nn.Module):
    is_cache_shared = False

    def __init__(self, hidden_size: int) -> None:
        super().__init__()
        self.first, self.second = Attention(hidden_size), Attention(hidden_size)
        self.norm1, self.norm2 = nn.LayerNorm(hidden_size), nn.LayerNorm(hidden_size)

    def forward(self, x: Tensor, enc_output: Tensor, self_mask: Tensor, i_mask: Tensor, cache: dict[str, Tensor]):  # type: ignore[no-untyped-def]
        y = self.norm1(x)
        x = x + self.first(y, y, self_mask, cache if self.is_cache_shared else None)
        return x + self.second(self.norm2(x), enc_output, i_mask, cache)


class LayerWithOneCache(LayerWithMasks):
    is_cache_shared = True


def test_a_mask_that_is_named_for_the_asking_tokens_has_as_many_keys() -> None:
    call = first(LayerWithMasks)
    asks, reads = call.tokens_of(call.streams[0]), call.tokens_of(call.streams[1])
    assert call.arguments["self_mask"].shape[-2:] == (asks, asks)
    assert call.arguments["i_mask"].shape[-1] == reads != asks
    assert check(LayerWithMasks).verdict in RIGHT


def test_keys_of_the_source_are_not_read_from_what_the_first_attention_kept() -> None:
    assert {each.id for each in check(LayerWithOneCache).causes} == {"cache-equals-whole"}


class SqueezedState(nn.Module):
    """Asked by what a recurrent layer returned as its state."""

    def __init__(self, units: int, hidden_size: int) -> None:
        super().__init__()
        self.keys, self.asking, self.v = (
            nn.Linear(hidden_size, units),
            nn.Linear(hidden_size, units),
            nn.Linear(units, 1),
        )

    def forward(self, query: Tensor, values: Tensor) -> tuple[Tensor, Tensor]:
        query = torch.squeeze(query, 0)
        weights = self.v(torch.tanh(self.keys(values) + self.asking(query.unsqueeze(1)))).softmax(1)
        return (weights * values).sum(1), weights


class SqueezedStateOverSamples(SqueezedState):
    def forward(self, query: Tensor, values: Tensor) -> tuple[Tensor, Tensor]:
        query = query.squeeze(dim=0)
        weights = self.v(torch.tanh(self.keys(values) + self.asking(query.unsqueeze(1)))).softmax(0)
        return (weights * values).sum(1), weights


def test_an_axis_that_is_squeezed_out_is_one_of_layers() -> None:
    assert check(SqueezedState, args={"units": 8, "hidden_size": 12}).verdict in RIGHT
    assert check(SqueezedStateOverSamples, args={"units": 8, "hidden_size": 12}).verdict == "wrong"


class Summed(nn.Module):
    """A weighted mean of the steps of a sequence; nothing says which axis is which."""

    axis = total = 1

    def __init__(self, dim: int, hidden: int = 16) -> None:
        super().__init__()
        self.layer, self.context = nn.Linear(dim, hidden), nn.Linear(hidden, 1, bias=False)

    def forward(self, steps):  # type: ignore[no-untyped-def]
        weights = self.context(self.layer(steps).tanh()).squeeze(-1).softmax(self.axis)
        return (weights[..., None] * steps).sum(dim=self.total)


class SummedWithStepsFirst(Summed):
    axis = total = 0


class WeighedOverSamples(Summed):
    """It runs with one sequence alone as well, whose channels it sums."""

    axis = 0


@pytest.mark.parametrize("right", [Summed, SummedWithStepsFirst])
def test_a_weighted_mean_over_either_axis_is_right(right: type[nn.Module]) -> None:
    assert check(right, args={"dim": 32}).verdict in RIGHT


def test_weights_over_the_samples_are_wrong_where_a_sequence_alone_is_not_judged() -> None:
    assert "samples-apart" in {each.id for each in check(WeighedOverSamples, args={"dim": 32}).causes}


class StateOfAnotherWidth(nn.Module):
    """e = v tanh(W h + U s), for a state that is narrower than what it asks."""

    def __init__(self, units: int, enc: int, dec: int, axis: int = 1) -> None:
        super().__init__()
        self.of_keys, self.of_state = nn.Linear(enc, units, bias=False), nn.Linear(dec, units, bias=False)
        self.v, self.axis = nn.Linear(units, 1, bias=False), axis

    def forward(self, state: Tensor, annotations: Tensor) -> Tensor:
        # state: (B, dec)      annotations: (B, S, enc)
        state = state.unsqueeze(1)
        scores = self.v(torch.tanh(self.of_keys(annotations) + self.of_state(state)))
        return (scores.softmax(self.axis) * annotations).sum(1)


def test_a_state_is_as_wide_as_the_layer_that_takes_it() -> None:
    given = {"units": 8, "enc": 12, "dec": 10}
    assert first(StateOfAnotherWidth, **given).arguments["state"].shape == (2, 10)
    assert check(StateOfAnotherWidth, args=given).verdict == "different by design"
    assert check(StateOfAnotherWidth, args={**given, "axis": 0}).verdict == "wrong"
