"""Calls whose inputs are told by comments behind arguments, by names of sizes, and by what the code takes out."""

from __future__ import annotations

import math
from types import SimpleNamespace
from typing import Any

import pytest
import torch
from target_calls import attention, axes, first
from torch import Tensor, nn

from regard.check import check
from regard.check.target import invocations
from regard.check.target.argument import source_of
from regard.check.target.documented_shapes import documented_letters, is_of_samples


class Labels(nn.Module):
    """An embedding, of its own class."""

    def __init__(self, d_model: int) -> None:
        super().__init__()
        self.table = nn.Embedding(5, d_model)

    def forward(self, labels: Tensor) -> Tensor:
        return self.table(labels)


class OfALabel(nn.Module):
    """Patches of a picture, for whose places there is a fixed table, and a label of each."""

    def __init__(self, d_model: int = 8) -> None:
        super().__init__()
        self.patches, self.labels = nn.Conv2d(3, d_model, 4, 4), Labels(d_model)
        self.register_buffer("positions", torch.linspace(0, 1, 16 * d_model).view(1, 16, d_model))
        self.qkv = nn.Linear(d_model, 3 * d_model)

    def forward(
        self,
        x: Tensor,  # (B, C, H, W)
        y: Tensor,  # (B,)
    ) -> Tensor:
        x = self.patches(x).flatten(2).mT + self.positions + self.labels(y)[:, None]
        return x + attention(*self.qkv(x).chunk(3, -1))


def test_a_comment_behind_an_argument_tells_of_it() -> None:
    source = source_of(OfALabel)
    assert documented_letters(source, "x") == "bddd"
    assert is_of_samples(source, "y")
    assert not is_of_samples(source, "x")


@pytest.mark.parametrize(
    ("said", "letters"),
    [("x[B, T, D]", "btd"), ("x[(Bs), B, D]", "bd"), ("x[0, 1]", ""), ("x[b, t]", ""), ("x[I]", "")],
)
def test_axes_may_be_written_right_behind_the_name(said: str, letters: str) -> None:
    assert documented_letters(f'def f(x):\n    """{said}"""', "x") == letters


def test_a_label_is_looked_up_for_each_sample_by_a_module_of_ones_own() -> None:
    call = first(OfALabel)
    assert call.arguments["y"].shape == (2,)
    assert call.arguments["x"].shape == (2, 3, 16, 16)


class Cutting(nn.Module):
    def __init__(self, img_size: int, patch_size: int, d_model: int) -> None:
        super().__init__()
        self.img_size, self.patch_size = img_size, patch_size
        self.project = nn.Linear(3 * patch_size**2, d_model)

    def forward(self, x: Tensor) -> Tensor:
        if x.shape[1:] != (3, self.img_size, self.img_size):
            raise ValueError
        size = self.patch_size
        windows = x.unfold(2, size, size).unfold(3, size, size).permute(0, 2, 3, 1, 4, 5)
        return self.project(windows.reshape(len(x), -1, self.project.in_features))


class OfPictures(nn.Module):
    """x: (B, C, H, W); the sides of patches and pictures are known to a part of it alone."""

    def __init__(self, settings: Any = None) -> None:
        super().__init__()
        self.cut, self.qkv = Cutting(16, 4, 8), nn.Linear(8, 24)

    def forward(self, x: Tensor) -> Tensor:
        return attention(*self.qkv(self.cut(x)).chunk(3, -1))


def test_a_part_knows_the_sides_of_its_pictures() -> None:
    assert first(OfPictures).arguments["x"].shape == (2, 3, 16, 16)


class OfVideos(nn.Module):
    """Each place of each frame is a token; the table of frames looks up no argument."""

    def __init__(self, d_model: int = 8) -> None:
        super().__init__()
        self.frames, self.qkv = nn.Embedding(8, d_model), nn.Linear(d_model, 3 * d_model)

    def forward(self, video: Tensor) -> Tensor:
        """video: (b, f, c, h, w)"""
        b, f, c, h, w, *_ = *video.shape, video.device
        x = (video.permute(0, 1, 3, 4, 2) + self.frames(torch.arange(f))[:, None, None]).reshape(b, f * h * w, c)
        return attention(*self.qkv(x).chunk(3, -1))


def test_a_video_is_no_sequence_of_ids() -> None:
    call = first(OfVideos)
    assert call.arguments["video"].ndim == 5
    assert axes(call) == [("x", 0, (1, 3, 4), None)]


class OfSteps(nn.Module):
    """R: (N, L, 1), t: (N, L)"""

    def __init__(self, d_model: int = 8) -> None:
        super().__init__()
        self.rewards, self.times, self.qkv = nn.Linear(1, d_model), nn.Embedding(20, d_model), nn.Linear(d_model, 24)

    def forward(self, R: Tensor, t: Tensor) -> Tensor:
        assert len(t.size()) == 2
        return attention(*self.qkv(self.rewards(R) + self.times(t)).chunk(3, -1))


def test_t_is_a_time_of_each_token_where_it_is_written_so() -> None:
    assert first(OfSteps).arguments["t"].shape == (2, 5)


class WithoutEnds(nn.Module):
    """The ids that close a text are taken out of it."""

    def __init__(self, d_model: int = 8, vocab_size: int = 7, eos_id: int = 2) -> None:
        super().__init__()
        self.eos_id, self.words, self.qkv = eos_id, nn.Embedding(vocab_size, d_model), nn.Linear(d_model, 3 * d_model)

    def forward(self, ids: Tensor) -> Tensor:
        ids = ids[ids != self.eos_id].view(len(ids), -1)
        return attention(*self.qkv(self.words(ids)).chunk(3, -1))


def test_ids_that_are_taken_out_are_not_drawn() -> None:
    call = first(WithoutEnds)
    assert not bool((call.arguments["ids"] == 2).any())
    others = [call.other_ids("ids", torch.Generator().manual_seed(seed)) for seed in range(20)]
    assert not any(bool((each == 2).any()) or bool((each == call.arguments["ids"]).all()) for each in others)


class OfAGraph(nn.Module):
    """Attention over all nodes, and a sum over their neighbours."""

    def __init__(self, d_model: int = 8) -> None:
        super().__init__()
        self.qkv = nn.Linear(d_model, 3 * d_model)

    def forward(self, adj_block: Tensor, node_features: Tensor) -> Tensor:
        return torch.mm(adj_block, attention(*self.qkv(node_features).chunk(3, -1)))


def test_what_sums_neighbours_is_no_mask() -> None:
    call = first(OfAGraph)
    assert call.arguments["adj_block"].is_floating_point()
    assert call.arguments["adj_block"].shape[0] == call.arguments["node_features"].shape[0]
    assert not call.masks


class OfEpochs(nn.Module):
    """Attention over the frames of each epoch; the vectors of these have two axes."""

    def __init__(self, config: Any) -> None:
        super().__init__()
        self.config = config
        self.of_channels = nn.Linear(config.num_freqs * config.num_sensors, 8)
        self.qkv = nn.Linear(8, 24)

    def forward(self, x: Tensor) -> Tensor:
        # x: (batch_size, epoch_seq_len, frame_seq_len, num_freqs, num_sensors)
        batch, epochs, frames, _, _ = x.shape
        x = self.of_channels(x.flatten(3)).view(batch * epochs, frames, 8)
        # x: (batch_size * epoch_seq_len, frame_seq_len, d_model)
        return attention(*self.qkv(x).chunk(3, -1)).view(batch, epochs, frames, 8)


def test_vectors_of_two_axes_are_as_long_as_the_fields_that_they_are_named_after() -> None:
    call = first(OfEpochs(SimpleNamespace(num_freqs=9, num_sensors=4)).double())
    assert call.arguments["x"].shape[3:] == (9, 4)
    assert axes(call) == [("x", 0, (1, 2), None)]


class OfARootedWidth(nn.Module):
    """Scaled dot-product attention that was told the width whose root it takes, by a name that says nothing."""

    def __init__(self, num_hidden_k: int, factor: int = 1) -> None:
        super().__init__()
        self.num_hidden_k, self.factor = num_hidden_k, factor

    def forward(self, key: Tensor, value: Tensor, query: Tensor) -> Tensor:
        scores = torch.bmm(query, key.transpose(1, 2)) / (self.factor * math.sqrt(self.num_hidden_k))
        return torch.bmm(scores.softmax(-1), value)


@pytest.mark.more
def test_a_width_whose_root_is_taken_is_that_of_queries_and_keys() -> None:
    assert next(invocations(OfARootedWidth, args={"num_hidden_k": 8})).arguments["query"].shape[-1] == 8
    assert check(OfARootedWidth, args={"num_hidden_k": 8}).verdict.startswith("right")
    report = check(OfARootedWidth, args={"num_hidden_k": 8, "factor": 3})
    assert (report.verdict, report.step) == ("wrong", "scaled")
