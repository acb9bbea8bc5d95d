"""Calls whose shapes nothing tells but the errors of other calls."""

from __future__ import annotations

import math
from typing import Any

import pytest
import torch
from torch import Tensor, nn

from regard.check import check
from regard.check.target import invocations
from regard.check.target.parse import parse_inputs
from regard.check.target.shape_errors import LastOperation, repairs_of
from regard.check.target.shape_guess import ShapeGuess
from regard.check.target.sizes import Sizes

pytestmark = pytest.mark.more  # seconds a test: it is run by make test-more


class Stacked(nn.Module):
    """Queries, keys and values in front of the samples, as windows of 3 x 3 are handed on."""

    def __init__(self, dim: int = 32, heads: int = 4) -> None:
        super().__init__()
        self.heads, self.out = heads, nn.Linear(dim, dim)

    def forward(self, packed: Tensor) -> Tensor:
        first, second, third = packed[0], packed[1], packed[2]
        samples, places, _ = first.shape
        assert places == 9
        first, second, third = (
            each.view(samples, places, self.heads, -1).transpose(1, 2) for each in (first, second, third)
        )
        weights = (first @ second.mT / math.sqrt(first.shape[-1])).softmax(-1)
        return self.out((weights @ third).transpose(1, 2).reshape(samples, places, -1))


class OfRows(nn.Module):
    """A state that asks, beside what was made of all tokens of all samples as rows."""

    def __init__(self, dim: int = 32) -> None:
        super().__init__()
        self.of_state, self.score = nn.Linear(dim, dim), nn.Linear(dim, 1)

    def forward(self, now: Tensor, kept: Tensor, made: Tensor) -> Tensor:
        samples, steps, width = kept.shape
        asked = self.of_state(now)[:, None].expand(samples, steps, width).reshape(-1, width)
        weights = self.score((asked + made).tanh()).view(samples, steps).softmax(-1)
        return torch.bmm(weights[:, None], kept)[:, 0]


class OfPairs(nn.Module):
    """A vector of each two tokens gives a bias of each head, and of each token a frame of three axes."""

    def __init__(self, dim: int = 32, heads: int = 4, factor: float = 1.0, axis: int = -1) -> None:
        super().__init__()
        self.heads, self.factor, self.axis = heads, factor, axis
        self.qkv, self.bias, self.out = nn.Linear(dim, 3 * dim), nn.Linear(dim, heads), nn.Linear(dim, dim)

    def forward(self, one: Tensor, two: Tensor, frames: Tensor) -> Tensor:
        if frames.shape[-1] != 3:
            raise ValueError(f"frames have 3 axes, got {frames.shape[-1]}")
        q, k, v = self.qkv(one + frames.sum(-1, keepdim=True)).unflatten(-1, (3, self.heads, -1)).permute(2, 0, 3, 1, 4)
        scores = self.factor * q @ k.mT / math.sqrt(q.shape[-1]) + self.bias(two).permute(0, 3, 1, 2)
        return self.out((scores.softmax(self.axis) @ v).transpose(1, 2).flatten(2))


@pytest.mark.parametrize(
    ("target", "shapes"),
    [
        (Stacked, {"packed": (3, 5, 9, 32)}),
        (OfRows, {"now": (2, 32), "kept": (2, 5, 32), "made": (2, 5, 32)}),
        (OfPairs, {"one": (2, 5, 32), "two": (2, 5, 5, 32), "frames": (2, 5, 3)}),
    ],
)
def test_errors_tell_the_shapes(target: type[nn.Module], shapes: dict[str, tuple[int, ...]]) -> None:
    call = next(invocations(target, args={"dim": 32}))
    assert call.by_errors
    assert {name: tuple(each.shape) for name, each in call.arguments.items()} == shapes


class OfEncodedRows(OfRows):
    """The same by other names."""

    def forward(self, state_hat: Tensor, encoder_outputs: Tensor, encoder_feature: Tensor) -> Tensor:
        samples, steps, width = encoder_outputs.shape
        asked = self.of_state(state_hat).unsqueeze(1).expand(samples, steps, width).reshape(-1, width)
        weights = self.score((asked + encoder_feature).tanh()).view(samples, steps).softmax(-1)
        return torch.bmm(weights[:, None], encoder_outputs)[:, 0]


class OfOtherRows(OfRows):
    """What is read is of another token."""

    def forward(self, state_hat: Tensor, encoder_outputs: Tensor, encoder_feature: Tensor) -> Tensor:
        samples, steps, width = encoder_outputs.shape
        asked = self.of_state(state_hat).unsqueeze(1).expand(samples, steps, width).reshape(-1, width)
        weights = self.score((asked + encoder_feature).tanh()).view(samples, steps).softmax(-1)
        return torch.bmm(weights[:, None], encoder_outputs.roll(1, 1))[:, 0]


def test_rows_of_all_samples_are_tokens_of_each() -> None:
    call = next(invocations(OfEncodedRows, args={"dim": 32}))
    assert call.rows == {"encoder_feature"}
    assert [(each.argument, each.role, each.token_axes) for each in call.streams] == [
        ("state_hat", "x", ()),
        ("encoder_outputs", "context", (1,)),
        ("encoder_feature", "context", (1,)),
    ]
    assert check(OfEncodedRows, args={"dim": 32}).verdict == "different by design"
    report = check(OfOtherRows, args={"dim": 32})
    assert report.verdict == "undetermined"
    assert any("is given to the value of token" in each for each in report.reasons)


def test_of_a_call_that_is_found_so_the_scale_is_told_and_what_may_be_a_wrong_call_is_not() -> None:
    report = check(OfPairs, args={"dim": 32, "factor": 0.5})
    assert report.verdict == "wrong"
    assert report.step == "scaled"
    assert check(OfPairs, args={"dim": 32}).verdict != "wrong"


def test_what_hangs_on_the_shapes_of_such_a_call_is_asked_about() -> None:
    report = check(OfPairs, args={"dim": 32, "axis": -2})
    assert report.verdict == "undetermined"
    (asked,) = [each for each in report.reasons if "as its errors tell" in each]
    shapes = asked.partition('--args "')[2].partition('"')[0]
    assert set(parse_inputs(shapes).values) == {"one", "two", "frames"}
    assert check(OfPairs, args={"dim": 32, "axis": -2}, inputs=shapes).verdict == "wrong"


def test_sizes_that_coincide_are_one_axis_and_the_later_one_follows() -> None:
    guess = ShapeGuess({"x": [5, 7, 11], "y": [5, 13, 17]}, {"x": "numbers", "y": "numbers"}, taken=frozenset({32}))
    equal, _ = guess.with_equal(13, 7)
    assert equal.axes == {"x": [5, 7, 11], "y": [5, 7, 17]}
    (wide,) = guess.with_equal(11, 32)
    assert wide.axes["x"] == [5, 7, 32]
    assert [each.axes["y"] for each in guess.with_equal(5, 3)] == [[5, 13, 17], [3, 13, 17]]


@pytest.mark.parametrize("width", [7, 11])
def test_vectors_of_two_arguments_that_are_joined_are_half_as_wide_as_what_takes_them(width: int) -> None:
    kinds = {"x": "numbers", "y": "numbers"}
    guess = ShapeGuess({"x": [5, 13, 17, 7], "y": [5, 13, 17, width]}, kinds, taken=frozenset({32, 64}))
    error = RuntimeError(f"to have 64 channels, but got {7 + width} channels instead")
    found = [each.axes for each in repairs_of(error, guess, LastOperation())]
    assert {"x": [5, 13, 17, 32], "y": [5, 13, 17, 32]} in found
    alone = ShapeGuess({"x": [5, 13, 17, 7]}, {"x": "numbers"}, taken=frozenset({32, 64}))
    assert not list(repairs_of(RuntimeError("to have 64 channels, but got 14 channels"), alone, LastOperation()))


def test_rows_of_all_samples_follow_the_number_of_samples() -> None:
    guess = ShapeGuess({"x": [5, 7, 32], "rows": [35, 32]}, {"x": "numbers", "rows": "numbers"}, taken=frozenset({32}))
    assert guess.of_samples(2).axes == {"x": [2, 7, 32], "rows": [14, 32]}


def test_ids_of_any_shape_are_handed_over() -> None:
    (ids,) = parse_inputs("near=ids(4, T, 6)")(Sizes(2, 5, 7, 3, 3, 4)).values()
    assert ids.shape == (4, 5)
    assert int(ids.max()) < 6


class OfAnyWidth(nn.Module):
    """It keeps the root of the width that it was told, and nothing but that says how wide its queries are."""

    def __init__(self, emb_dim: int) -> None:
        super().__init__()
        self.root = torch.sqrt(torch.tensor(emb_dim))

    def forward(self, query: Tensor, key: Tensor, value: Tensor, extra: Tensor) -> Tensor:
        scores = torch.bmm(query, key.mT) / self.root + extra.permute(2, 1, 0).mT
        return torch.bmm(scores.softmax(-1), value)


def test_the_scale_of_queries_of_any_width_is_asked_about() -> None:
    report = check(OfAnyWidth, args={"emb_dim": 32})
    assert report.verdict == "undetermined"
    assert any("as its errors tell" in each for each in report.reasons)


class HeadsLast(nn.Module):
    """A bias as a table of distances returns it: queries, keys, and then heads."""

    def __init__(self, emb_dim: int, factor: float = 1.0) -> None:
        super().__init__()
        self.root, self.factor = torch.sqrt(torch.tensor(emb_dim)), factor

    def forward(self, query: Tensor, key: Tensor, value: Tensor, relative_bias: Tensor) -> Tensor:
        scores = self.factor * torch.bmm(query, key.mT) / self.root + relative_bias.permute(2, 0, 1)
        return torch.bmm(scores.softmax(-1), value)


def test_a_bias_whose_heads_are_put_in_front_has_them_last() -> None:
    call = next(invocations(HeadsLast, args={"emb_dim": 32}))
    assert not call.by_errors
    assert (call.arguments["query"].shape, call.arguments["relative_bias"].shape) == ((2, 5, 32), (5, 7, 1))
    assert check(HeadsLast, args={"emb_dim": 32}).verdict == "right"
    assert check(HeadsLast, args={"emb_dim": 32, "factor": 0.5}).step == "scaled"


class OfFeatures(nn.Module):
    """What a recurrent layer has come to asks features that are handed over in two parts, each with its tokens last."""

    axis = 2

    def __init__(self, dim: int = 32) -> None:
        super().__init__()
        self.step = nn.GRU(dim, dim, batch_first=True)
        self.of_all, self.score = nn.Linear(3 * dim, dim), nn.Linear(dim, 1, bias=False)

    def forward(self, fixed_part: Tensor, moving_part: Tensor, decoder_hidden: Tensor, last_hh: Tensor) -> Any:
        out, last_hh = self.step(decoder_hidden.transpose(2, 1), last_hh)
        asked = out.squeeze(1).unsqueeze(2).expand_as(fixed_part)
        joined = torch.cat((fixed_part, moving_part, asked), 1)
        scores = self.score(torch.tanh(self.of_all(joined.mT))).mT
        return scores.softmax(self.axis) @ fixed_part.mT, last_hh


class OverTheChannels(OfFeatures):
    axis = 1


def test_errors_tell_what_a_recurrent_layer_asks_for() -> None:
    call = next(invocations(OfFeatures, args={"dim": 32}))
    assert {name: tuple(each.shape) for name, each in call.arguments.items()} == {
        "fixed_part": (2, 32, 5),
        "moving_part": (2, 32, 5),
        "decoder_hidden": (2, 32, 1),
        "last_hh": (1, 2, 32),
    }
    assert [(each.argument, each.role, each.token_axes) for each in call.streams] == [
        ("fixed_part", "context", (2,)),
        ("decoder_hidden", "x", ()),
    ]
    assert check(OfFeatures, args={"dim": 32}).verdict in ("right", "different by design")
    report = check(OverTheChannels, args={"dim": 32})
    assert report.verdict == "undetermined"
    assert any("an axis of one number" in each for each in report.reasons)


class OneTokenAfterAnother(nn.Module):
    """A decoder's step, of one token of one sample: a weight for each place is made of its state and the last token."""

    def __init__(self, hidden_size: int = 8, output_size: int = 12, max_length: int = 10, axis: int = 1) -> None:
        super().__init__()
        self.axis = axis
        self.table = nn.Embedding(output_size, hidden_size)
        self.of_places = nn.Linear(2 * hidden_size, max_length)
        self.joined, self.step = nn.Linear(2 * hidden_size, hidden_size), nn.GRU(hidden_size, hidden_size)
        self.out = nn.Linear(hidden_size, output_size)

    def forward(self, last: Tensor, hidden: Tensor, encoder_outputs: Tensor) -> tuple[Tensor, Tensor, Tensor]:
        found = self.table(last).view(1, 1, -1)
        weights = self.of_places(torch.cat((found[0], hidden[0]), 1)).softmax(self.axis)
        read = torch.bmm(weights.unsqueeze(0), encoder_outputs.unsqueeze(0))
        asked = self.joined(torch.cat((found[0], read[0]), 1)).unsqueeze(0).relu()
        output, hidden = self.step(asked, hidden)
        return self.out(output[0]).log_softmax(1), hidden, weights


def test_a_step_of_one_sample_is_found_and_its_weights_are_of_places() -> None:
    given = {"hidden_size": 8, "output_size": 12}
    call = next(invocations(OneTokenAfterAnother, args=given))
    shapes = {name: tuple(each.shape) for name, each in call.arguments.items()}
    assert shapes == {"last": (1, 1), "hidden": (1, 1, 8), "encoder_outputs": (10, 8)}
    report = check(OneTokenAfterAnother, args=given)
    assert report.verdict == "different by design"
    assert any("location-based attention" in each for each in report.conventions)
    assert check(OneTokenAfterAnother, args={**given, "axis": 0}).verdict == "undetermined"
