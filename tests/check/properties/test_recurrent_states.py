"""States of a recurrent layer ask, or are read, as rows of their own."""

from __future__ import annotations

import pytest
import torch
from torch import Tensor, nn

from attention_styles import tokens_call
from property_cases import WIDTH, drawn, of_module, of_x_and_context
from regard.check.properties.analyze import analyze
from regard.check.target.preparation import prepare

pytestmark = pytest.mark.more  # seconds a test: it is run by make test-more


class StatesAsk(nn.Module):
    """The states of a decoder attend to those of an encoder (Luong et al. 2015, the dot score)."""

    layer: type[nn.RNNBase] = nn.GRU
    axis = -1

    def __init__(self) -> None:
        super().__init__()
        self.encoder, self.decoder = (self.layer(WIDTH, WIDTH, batch_first=True) for _ in range(2))
        self.out = nn.Linear(2 * WIDTH, WIDTH)

    def forward(self, x: Tensor, context: Tensor) -> Tensor:
        states, _ = self.encoder(context)
        asking, _ = self.decoder(x)
        weights = (asking @ states.mT).softmax(self.axis)
        return self.out(torch.cat([weights @ states, asking], -1)).tanh()


class OfLSTM(StatesAsk):
    layer = nn.LSTM


class OfCells(StatesAsk):
    """The same with a loop of one's own."""

    def __init__(self) -> None:
        super().__init__()
        del self.decoder
        self.cell = nn.GRUCell(WIDTH, WIDTH)

    def decoder(self, x: Tensor) -> tuple[Tensor, None]:
        state, states = torch.zeros_like(x[:, 0]), list[Tensor]()
        for token in x.unbind(1):
            state = self.cell(token, state)
            states.append(state)
        return torch.stack(states, 1), None


class OfBothWays(StatesAsk):
    """An encoder that reads its tokens from the end as well, and a decoder's cell that starts with what it made.

    In each step its state asks by a sum (Bahdanau et al. 2015). The state is made of the tokens that it asks.
    """

    def __init__(self) -> None:
        super().__init__()
        del self.decoder
        self.encoder = nn.GRU(WIDTH, WIDTH // 2, batch_first=True, bidirectional=True)
        self.cell = nn.GRUCell(2 * WIDTH, WIDTH)
        self.of_query, self.of_key = nn.Linear(WIDTH, WIDTH, bias=False), nn.Linear(WIDTH, WIDTH)
        self.score, self.first = nn.Linear(WIDTH, 1, bias=False), nn.Linear(WIDTH, WIDTH)

    def forward(self, x: Tensor, context: Tensor) -> Tensor:
        states, last = self.encoder(context)
        state, outputs = self.first(last.transpose(0, 1).flatten(1)).tanh(), list[Tensor]()
        for token in x.unbind(1):
            scores = self.score(torch.tanh(self.of_query(state)[:, None] + self.of_key(states)))
            read = (scores.softmax(1).mT @ states).squeeze(1)
            state = self.cell(torch.cat([token, read], -1), state)
            outputs.append(self.out(torch.cat([read, state], -1)))
        return torch.stack(outputs, 1)


class StepByStep(OfBothWays):
    """In each step a matrix makes keys of the same encoded tokens again (Luong et al. 2015, the general score)."""

    def __init__(self) -> None:
        super().__init__()
        del self.of_query, self.score
        self.cell = nn.GRUCell(WIDTH, WIDTH)

    def read(self, asking: Tensor, states: Tensor) -> Tensor:
        keys = self.of_key(states)
        weights = (keys @ asking[..., None]).squeeze(-1).softmax(-1)
        return (weights[:, None] @ states).squeeze(1)

    def forward(self, x: Tensor, context: Tensor) -> Tensor:
        states, last = self.encoder(context)
        state, outputs = self.first(last.transpose(0, 1).flatten(1)).tanh(), list[Tensor]()
        for token in x.unbind(1):
            state = self.cell(token, state)
            read = self.read(state, states)
            outputs.append(self.out(torch.cat([read, state], -1)))
        return torch.stack(outputs, 1)


class OfTheNextToken(StepByStep):
    def read(self, asking: Tensor, states: Tensor) -> Tensor:
        keys = self.of_key(states)
        weights = (keys @ asking[..., None]).squeeze(-1).softmax(-1)
        return (weights[:, None] @ states.roll(1, 1)).squeeze(1)


class OfIds(nn.Module):
    """Its states ask those of ids, whose padding is 0."""

    def __init__(self) -> None:
        super().__init__()
        self.embedding, self.asking = (nn.Embedding(12, WIDTH) for _ in range(2))
        self.encoder, self.decoder = (nn.GRU(WIDTH, WIDTH, batch_first=True) for _ in range(2))

    def forward(self, x: Tensor, context: Tensor) -> Tensor:
        states, _ = self.encoder(self.embedding(context))
        asking, _ = self.decoder(self.asking(x))
        return self.hidden(asking @ states.mT, context[:, None] == 0).softmax(-1) @ states + asking

    def hidden(self, scores: Tensor, is_padding: Tensor) -> Tensor:
        return scores.masked_fill(is_padding, -torch.inf)


class NotKept(OfIds):
    def hidden(self, scores: Tensor, is_padding: Tensor) -> Tensor:
        scores.masked_fill(is_padding, -torch.inf)
        return scores


class OverTheQueries(StatesAsk):
    axis = -2


class OfABridge(StatesAsk):
    """An encoder hands on what a matrix makes of its states; asked through a matrix, they are keys and values."""

    def __init__(self) -> None:
        super().__init__()
        self.bridge, self.asks = (nn.Linear(WIDTH, WIDTH) for _ in range(2))

    def keys(self, states: Tensor, memory: Tensor) -> Tensor:
        return memory

    def forward(self, x: Tensor, context: Tensor) -> Tensor:
        states, _ = self.encoder(context)
        asking, _ = self.decoder(x)
        memory = self.bridge(states)
        weights = (self.asks(asking) @ self.keys(states, memory).mT).softmax(-1)
        return self.out(torch.cat([weights @ memory, asking], -1)).tanh()


class OfTwoBridges(OfABridge):
    def __init__(self) -> None:
        super().__init__()
        self.of_key = nn.Linear(WIDTH, WIDTH)

    def keys(self, states: Tensor, memory: Tensor) -> Tensor:
        return self.of_key(states)


class FromBothEnds(nn.Module):
    """Pooling of the states of a layer that reads from both ends, by a learned query (Yang et al. 2016)."""

    layer: type[nn.RNNBase] = nn.LSTM
    layers = 1

    def __init__(self) -> None:
        super().__init__()
        self.encoder = self.layer(WIDTH, WIDTH, self.layers, batch_first=True, bidirectional=True)
        self.score, self.out = nn.Linear(2 * WIDTH, 1), nn.Linear(2 * WIDTH, WIDTH)

    def read(self, x: Tensor) -> tuple[Tensor, Tensor]:
        """What is asked, and what is read."""
        states, _ = self.encoder(x)
        return states, states

    def forward(self, x: Tensor) -> Tensor:
        keys, values = self.read(x)
        return self.out((self.score(keys).softmax(1) * values).sum(1))


class OfTwoLayers(FromBothEnds):
    layer, layers = nn.GRU, 2


class OfOneLayerEach(FromBothEnds):
    """A layer of its own is handed the tokens from the end, and what it returns is turned around."""

    def __init__(self) -> None:
        super().__init__()
        self.encoder, self.other = (nn.GRU(WIDTH, WIDTH, batch_first=True) for _ in range(2))

    def turned(self, states: Tensor) -> Tensor:
        return states.flip(1)

    def read(self, x: Tensor) -> tuple[Tensor, Tensor]:
        states = torch.cat([self.encoder(x)[0], self.turned(self.other(x.flip(1))[0])], -1)
        return states, states


class NotTurned(OfOneLayerEach):
    def turned(self, states: Tensor) -> Tensor:
        return states


class ReadsTheNext(FromBothEnds):
    def read(self, x: Tensor) -> tuple[Tensor, Tensor]:
        states, _ = self.encoder(x)
        return states, states.roll(-1, 1)


class MixedBehind(FromBothEnds):
    """The keys are means of several states."""

    def read(self, x: Tensor) -> tuple[Tensor, Tensor]:
        states, _ = self.encoder(x)
        return states.cumsum(1), states


class DotsOfBothEnds(StatesAsk):
    """A decoder's states ask those of an encoder that reads from both ends, without a matrix between."""

    def __init__(self) -> None:
        super().__init__()
        self.encoder = nn.GRU(WIDTH, WIDTH // 2, batch_first=True, bidirectional=True)


class DotsOverTheQueries(DotsOfBothEnds):
    axis = -2


def violated(kind: type[nn.Module], attentions: int = 1) -> set[str]:
    module = kind()
    prepare(module, 1)
    analysis = analyze(of_x_and_context(module))
    assert analysis.num_attentions == attentions
    return {each.property for each in analysis.violations}


@pytest.mark.parametrize("kind", [StatesAsk, OfLSTM, OfCells])
def test_states_of_recurrent_layers_are_rows_of_their_own(kind: type[nn.Module]) -> None:
    assert violated(kind) == set()


@pytest.mark.parametrize(
    ("kind", "found"),
    [
        (FromBothEnds, set()),
        (OfTwoLayers, set()),
        (OfOneLayerEach, set()),
        (NotTurned, {"query-of-one-token"}),
        (ReadsTheNext, {"value-of-the-key"}),
        (MixedBehind, {"key-of-one-token"}),
    ],
)
def test_states_of_both_ends_that_are_joined_are_one_row(kind: type[nn.Module], found: set[str]) -> None:
    assert {each.property for each in analyze(of_module(kind)).violations} == found


def test_states_ask_joined_states_of_both_ends() -> None:
    assert violated(DotsOfBothEnds) == set()
    assert "softmax-over-keys" in violated(DotsOverTheQueries)


def test_a_state_that_is_made_of_the_tokens_that_it_asks_is_a_row_of_its_own() -> None:
    assert violated(OfBothWays, attentions=3) == set()


def test_keys_that_are_projected_again_in_each_step_are_the_same_keys() -> None:
    assert violated(StepByStep, attentions=1) == set()
    assert "value-of-the-key" in violated(OfTheNextToken, attentions=1)


@pytest.mark.parametrize(("kind", "found"), [(OfIds, set()), (NotKept, {"mask-read"})])
def test_masked_scores_that_are_thrown_away_leave_padding_in(kind: type[nn.Module], found: set[str]) -> None:
    module = kind()
    prepare(module, 1)
    call = of_x_and_context(module)
    call.arguments |= {"x": torch.arange(1, 9).view(2, 4), "context": torch.arange(1, 11).view(2, 5)}
    assert {each.property for each in analyze(call).violations} == found


def test_a_mistake_beside_them_is_found() -> None:
    assert "softmax-over-keys" in violated(OverTheQueries)


def test_what_an_encoder_makes_of_its_states_is_asked_without_a_scale_where_it_is_keys_and_values() -> None:
    assert violated(OfABridge) == set()
    assert violated(OfTwoBridges) == {"scale"}


class AskedByTheEnds(nn.Module):
    """What both directions have come to asks the states of all tokens (Zhou et al. 2016, with a dot product)."""

    def __init__(self) -> None:
        super().__init__()
        self.encoder = nn.LSTM(WIDTH, WIDTH, batch_first=True, bidirectional=True)
        self.out = nn.Linear(2 * WIDTH, WIDTH)

    def asking(self, states: Tensor, ends: Tensor) -> Tensor:
        return ends.transpose(0, 1).reshape(len(states), -1)

    def forward(self, x: Tensor) -> Tensor:
        states, (ends, _) = self.encoder(x)
        weights = (states @ self.asking(states, ends)[..., None]).squeeze(-1).softmax(-1)
        return self.out((weights[:, None] @ states).squeeze(1))


class AskedByBothJoined(AskedByTheEnds):
    def asking(self, states: Tensor, ends: Tensor) -> Tensor:
        return torch.cat([ends[0], ends[1]], -1)


class AskedByOtherSamples(AskedByTheEnds):
    def asking(self, states: Tensor, ends: Tensor) -> Tensor:
        return ends.reshape(len(states), -1)


class AskedByTheMean(AskedByTheEnds):
    def asking(self, states: Tensor, ends: Tensor) -> Tensor:
        return states.mean(1)


@pytest.mark.parametrize(
    ("kind", "found"),
    [
        (AskedByTheEnds, set()),
        (AskedByBothJoined, set()),
        (AskedByOtherSamples, {"samples-apart"}),
        (AskedByTheMean, {"query-of-one-token"}),
    ],
)
def test_the_last_states_of_both_directions_are_one_row_that_asks(kind: type[nn.Module], found: set[str]) -> None:
    assert {each.property for each in analyze(of_module(kind)).violations} & {*found, "query-of-one-token"} == found


class BehindAnLSTM(nn.Module):
    """Two tokens go through an LSTM first: its matrix is applied to what it returned for the first one."""

    def __init__(self) -> None:
        super().__init__()
        self.lstm, self.qkv, self.out = nn.LSTM(8, 8, batch_first=True), nn.Linear(8, 24), nn.Linear(8, 8)

    def forward(self, x: Tensor) -> Tensor:
        q, k, v = self.qkv(self.lstm(x)[0]).chunk(3, -1)
        return self.out((q @ k.mT / 8**0.5).softmax(-1) @ v)  # type: ignore[no-any-return]


class ProjectedTwice(BehindAnLSTM):
    def forward(self, x: Tensor) -> Tensor:
        return self.out(super().forward(x))  # type: ignore[no-any-return]


@pytest.mark.parametrize(("kind", "found"), [(BehindAnLSTM, []), (ProjectedTwice, ["projected-once"])])
def test_the_matrix_of_a_recurrent_layer_is_applied_to_its_own_states(kind: type[nn.Module], found: list[str]) -> None:
    violations = analyze(tokens_call(kind().double(), drawn(2, 2, 8, seed=3))).violations
    assert [each.property for each in violations] == found


class PooledByAVector(nn.Module):
    """Words and then sentences go through recurrent layers, and are read by a vector (Yang et al. 2016)."""

    def __init__(self) -> None:
        super().__init__()
        self.words, self.sentences = (nn.GRU(WIDTH, WIDTH // 2, bidirectional=True, batch_first=True) for _ in range(2))
        self.asks, self.out = nn.Parameter(torch.randn(WIDTH)), nn.Linear(WIDTH, WIDTH)

    def forward(self, x: Tensor) -> Tensor:
        states = x
        for layer in (self.words, self.sentences):
            states, _ = layer(states)
        weights = (self.out(states).tanh() @ self.asks).softmax(1)
        return (weights[..., None] * states).sum(1)


def test_a_vector_that_asks_is_no_matrix_of_a_recurrent_layer() -> None:
    analysis = analyze(of_module(PooledByAVector))
    assert analysis.num_attentions == 1
    assert not analysis.violations
