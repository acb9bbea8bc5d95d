"""Calls with a vector of each sample, with ids that are arrays, with a device, and with masks that are read always."""

from __future__ import annotations

import re
from typing import Any

import einops
import numpy as np
import pytest
import torch
from target_calls import attention, axes, first
from torch import Tensor, nn

from regard.check import check
from regard.check.target.errors import NotCallable
from regard.check.target.written_axes import is_projected_per_sample

pytestmark = pytest.mark.more  # seconds a test: it is run by make test-more


class OfATime(nn.Module):
    """A block of a diffusion model: each picture has a vector for how far it is."""

    def __init__(self, in_channels: int, out_channels: int, t_emb_dim: int) -> None:
        super().__init__()
        self.conv = nn.Conv2d(in_channels, out_channels, 3, padding=1)
        self.time = nn.Linear(t_emb_dim, out_channels)
        self.qkv = nn.Linear(out_channels, 3 * out_channels)

    def forward(self, x: Tensor, t_emb: Tensor) -> Tensor:
        x = self.conv(x) + self.time(t_emb)[:, :, None, None]
        q, k, v = self.qkv(x.flatten(2).mT).chunk(3, -1)
        return x + attention(q, k, v).mT.view(x.shape)


def test_a_condition_is_one_vector_of_each_sample() -> None:
    call = first(OfATime)
    assert axes(call) == [("x", 0, (2, 3), None)]
    assert call.arguments["t_emb"].ndim == 2
    told = first(OfATime, in_channels=8, out_channels=6, t_emb_dim=10)
    assert told.arguments["t_emb"].shape == (2, 10)


class Steered(nn.Module):
    """What it is called with by one letter shifts and scales a norm."""

    def __init__(self, hidden_size: int) -> None:
        super().__init__()
        self.modulation, self.norm = nn.Linear(hidden_size, 2 * hidden_size), nn.LayerNorm(hidden_size)
        self.qkv = nn.Linear(hidden_size, 3 * hidden_size)

    def forward(self, x: Tensor, c: Tensor) -> Tensor:
        shift, scale = self.modulation(c).chunk(2, dim=1)
        modulated = self.norm(x) * (1 + scale.unsqueeze(1)) + shift.unsqueeze(1)
        return x + attention(*self.qkv(modulated).chunk(3, -1))


class Written(Steered):
    """x is (B, T, D); c: (B, D)."""

    def forward(self, x: Tensor, c: Tensor) -> Tensor:
        steering = self.modulation(torch.relu(c)).unsqueeze(1)
        return x + attention(*self.qkv(self.norm(x) + sum(steering.chunk(2, -1))).chunk(3, -1))


@pytest.mark.parametrize("kind", [Steered, Written])
def test_what_steers_a_norm_is_a_vector_of_each_sample(kind: type[nn.Module]) -> None:
    call = first(kind, hidden_size=12)
    assert (call.arguments["x"].ndim, call.arguments["c"].shape) == (3, (2, 12))
    assert call.guessed == []


class OfItems(nn.Module):
    """A recommender: its sequences are arrays of ids, and it is told on which device it computes."""

    def __init__(self, d_model: int, vocab_size: int) -> None:
        super().__init__()
        self.items, self.qkv = nn.Embedding(vocab_size, d_model), nn.Linear(d_model, 3 * d_model)

    def forward(self, user_ids: Any, log_seqs: Any, device: Any) -> Tensor:
        places = np.tile(np.arange(1, log_seqs.shape[1] + 1), [len(log_seqs), 1])
        places *= log_seqs != 0
        x = self.items(torch.LongTensor(log_seqs).to(device)) + torch.from_numpy(places)[..., None]
        return attention(*self.qkv(x).chunk(3, -1))


def test_ids_may_be_arrays() -> None:
    call = first(OfItems)
    assert axes(call) == [("ids", 0, (1,), None)]
    assert call.arrays


def make_items() -> tuple[nn.Module, tuple[Any, ...]]:
    ids = np.random.RandomState(0).randint(1, 9, (2, 5))
    return OfItems(8, 11), (np.arange(2), ids, torch.device("cpu"))


def test_arrays_that_are_handed_over_are_handed_on_as_such() -> None:
    call = first(make_items)
    assert axes(call) == [("ids", 0, (1,), None)]
    assert call.outputs(call.run())[0].shape == (2, 5, 8)


class Masked(nn.Module):
    """Its mask has a default, and is read all the same."""

    def forward(self, query: Tensor, key: Tensor, value: Tensor, attn_mask: Tensor | None = None) -> Tensor:
        hidden = ~(attn_mask if attn_mask.ndim == 3 else attn_mask[:, None])  # type: ignore[union-attr]
        return (query @ key.mT / query.shape[-1] ** 0.5).masked_fill(hidden, -torch.inf).softmax(-1) @ value


def test_a_mask_that_is_read_always_is_given() -> None:
    assert first(Masked).arguments["attn_mask"].dtype is torch.bool


class Refusing(nn.Module):
    def __init__(self, channels: int, size: int) -> None:
        super().__init__()
        self.conv, self.size, self.items = nn.Conv2d(channels, channels, 1), size, nn.Embedding(9, channels)

    def forward(self, x: Tensor, t_emb: Tensor, item_ids: Tensor) -> Tensor:
        raise ValueError("no")


def test_what_to_hand_over_is_written_in_its_own_shapes() -> None:
    with pytest.raises(NotCallable, match=re.escape("x=(B,D,4,6), t_emb=(B,D), item_ids=ids(B,T,V)")):
        first(Refusing)


class OfAdaptiveNorms(nn.Module):
    """A block whose scales and shifts are made of a condition (DiT)."""

    def __init__(self, d_model: int) -> None:
        super().__init__()
        self.norm = nn.LayerNorm(d_model, elementwise_affine=False)
        self.qkv, self.adaLN_modulation = nn.Linear(d_model, 3 * d_model), nn.Linear(d_model, 2 * d_model)

    def forward(self, x: Tensor, y: Tensor) -> Tensor:
        shift, scale = self.adaLN_modulation(y).chunk(2, 1)
        x = self.norm(x) * (1 + scale[:, None]) + shift[:, None]
        return attention(*self.qkv(x).chunk(3, -1))


def test_what_makes_scales_and_shifts_is_one_vector_of_each_sample() -> None:
    call = first(OfAdaptiveNorms)
    assert axes(call) == [("x", 0, (1,), None)]
    assert call.arguments["y"].shape == (2, 12)
    assert not call.guessed


class OfOneQuery(nn.Module):
    """What one vector of each sample asks of the tokens, in heads (ProteinBERT)."""

    def __init__(self, d_local: int, d_global: int, n_heads: int = 2) -> None:
        super().__init__()
        self.to_q, self.to_k, self.to_v = (nn.Linear(each, 12) for each in (d_global, d_local, d_local))
        self.heads = n_heads

    def forward(self, x_local: Tensor, x_global: Tensor) -> Tensor:
        q = self.to_q(x_global)
        q = einops.rearrange(q, "b (h d) -> b h d", h=self.heads)
        k, v = (
            einops.rearrange(each(x_local), "b l (h d) -> b h l d", h=self.heads) for each in (self.to_k, self.to_v)
        )
        weights = (torch.einsum("bhd,bhld->bhl", q, k) / q.shape[-1] ** 0.5).softmax(-1)
        return torch.einsum("bhl,bhld->bhd", weights, v).flatten(1)


def test_what_einops_takes_after_a_layer_as_one_row_of_each_sample_is_no_mask() -> None:
    told = first(OfOneQuery, d_local=8, d_global=10)
    assert told.arguments["x_local"].shape[-1] == 8
    assert told.arguments["x_global"].shape == (2, 10)


@pytest.mark.parametrize(("axes", "expected"), [("b (h d)", True), ("n (h d)", False), ("b t (h d)", False)])
def test_an_axis_of_tokens_is_none_of_samples(axes: str, expected: bool) -> None:
    source = f"def forward(self, x, s):\n    q = self.to_q(s)\n    q = rearrange(q, '{axes} -> b h t d', h=2)"
    assert is_projected_per_sample(source, "s") == expected


class OfAHistory(nn.Module):
    """A recommender that is told how many items each of its users has."""

    def __init__(self, d_model: int, item_num: int) -> None:
        super().__init__()
        self.items, self.qkv = nn.Embedding(item_num, d_model), nn.Linear(d_model, 3 * d_model)

    def forward(self, seq: Tensor, seq_len: Tensor) -> Tensor:
        places = torch.arange(seq.shape[1])
        keys = places < seq_len.unsqueeze(1)
        q, k, v = self.qkv(self.items(seq)).chunk(3, -1)
        scores = (q @ k.mT / q.shape[-1] ** 0.5).masked_fill(~keys[:, None], -torch.inf)
        return scores.softmax(-1) @ v


def test_a_length_that_is_read_as_a_tensor_is_one_of_each_sample() -> None:
    call = first(OfAHistory)
    assert call.lengths == ["seq_len"]
    assert call.arguments["seq_len"].tolist() == [5, 5]


def lengths_to_mask(lengths: Tensor, count: int) -> Tensor:
    return torch.arange(count) >= lengths[:, None]


class OfAHelper(nn.Module):
    def __init__(self, d_model: int) -> None:
        super().__init__()
        self.qkv = nn.Linear(d_model, 3 * d_model)

    def forward(self, x: Tensor, seq_len: Tensor) -> Tensor:
        q, k, v = self.qkv(x).chunk(3, -1)
        padding = lengths_to_mask(seq_len, x.shape[1])
        scores = (q @ k.mT / q.shape[-1] ** 0.5).masked_fill(padding[:, None], -torch.inf)
        return scores.softmax(-1) @ v


def test_a_length_that_a_mask_is_made_of_is_one_of_each_sample() -> None:
    assert first(OfAHelper).lengths == ["seq_len"]


class ScoresItems(nn.Module):
    """The last state of each user meets the vectors of some items, the same for all."""

    def __init__(self, d_model: int, item_num: int) -> None:
        super().__init__()
        self.item_emb, self.qkv = nn.Embedding(item_num, d_model), nn.Linear(d_model, 3 * d_model)

    def forward(self, log_seqs: Tensor, item_indices: Tensor) -> Tensor:
        x = self.item_emb(log_seqs)
        return attention(*self.qkv(x).chunk(3, -1))[:, -1] @ self.item_emb(item_indices).t()


def test_items_that_are_scored_are_no_sequence() -> None:
    call = first(ScoresItems)
    assert axes(call) == [("ids", 0, (1,), None)]
    assert call.arguments["item_indices"].ndim == 1


class OfTrajectories(nn.Module):
    """States and actions have a width each, and stand beside each other (Chen et al. 2021)."""

    def __init__(self, state_dim: int, act_dim: int, h_dim: int = 12) -> None:
        super().__init__()
        self.embed_time, self.qkv = nn.Embedding(20, h_dim), nn.Linear(h_dim, 3 * h_dim)
        self.embed_state, self.embed_action = nn.Linear(state_dim, h_dim), nn.Linear(act_dim, h_dim)
        self.embed_return = nn.Linear(1, h_dim)

    def forward(self, timesteps: Tensor, states: Tensor, actions: Tensor, returns: Tensor) -> Tensor:
        """timesteps (B, T), states (B, T, state_dim), actions (B, T, act_dim), returns (B, T, 1)"""
        several = self.embed_return(returns), self.embed_state(states), self.embed_action(actions)
        x = (torch.stack(several, 2) + self.embed_time(timesteps)[:, :, None]).flatten(1, 2)
        hidden = torch.ones(x.shape[1], x.shape[1]).triu(1).bool()
        q, k, v = self.qkv(x).chunk(3, -1)
        return (q @ k.mT / q.shape[-1] ** 0.5).masked_fill(hidden, -torch.inf).softmax(-1) @ v


def test_sequences_have_the_widths_of_the_layers_that_take_them() -> None:
    call = first(OfTrajectories, state_dim=5, act_dim=3)
    assert [each.role for each in call.streams] == ["ids", "x", "x", "x"]
    assert [call.arguments[each].shape for each in ("states", "actions", "returns")] == [
        (2, 5, 5),
        (2, 5, 3),
        (2, 5, 1),
    ]


class Denoising(nn.Module):
    """Steps of a diffusion beside frames, and features of another width that stand beside these."""

    def __init__(self, motion_dim: int, audio_dim: int, width: int) -> None:
        super().__init__()
        self.of_frame, self.of_sound = nn.Linear(motion_dim, width), nn.Linear(audio_dim, width)
        self.of_step = nn.Sequential(nn.Embedding(50, width), nn.Linear(width, width))
        self.qkv = nn.Linear(width, 3 * width)

    def forward(self, frames: Tensor, step: Tensor, sound: Tensor) -> Tensor:
        x = self.of_frame(frames) + self.of_step(step).unsqueeze(1)
        q, k, v = self.qkv(x).chunk(3, -1)
        return attention(q, k + self.of_sound(sound), v)


def test_what_a_layer_takes_first_says_how_wide_it_is_or_that_it_is_an_id_of_each_sample() -> None:
    call = first(Denoising, motion_dim=10, audio_dim=12)
    assert [call.arguments[each].shape[-1] for each in ("frames", "sound")] == [10, 12]
    assert call.arguments["step"].tolist() == [1, 2]
    assert axes(call) == [("x", 0, (1,), None), ("context", 0, (1,), None)]


class Sounding(nn.Module):
    """Frames, and sounds of the same width that are added to them."""

    def __init__(self, width: int) -> None:
        super().__init__()
        self.of_frame, self.of_sound = nn.Linear(width, width), nn.Linear(width, width)
        self.qkv = nn.Linear(width, 3 * width)

    def forward(self, x: Tensor, sound: Tensor) -> Tensor:
        return attention(*self.qkv(self.of_frame(x) + self.of_sound(sound)).chunk(3, -1))


class SoundingAsWritten(Sounding):
    """Frames, and sounds that are added to them. sound: (B, T, width) of each frame."""


def test_what_is_written_as_a_sequence_of_vectors_is_no_guess() -> None:
    assert first(Sounding).guessed == ["sound"]
    assert first(SoundingAsWritten).guessed == []


class Timed(nn.Module):
    """The sines of how far each sample is."""

    def __init__(self, width: int) -> None:
        super().__init__()
        self.layer = nn.Linear(2, width)

    def forward(self, t: Tensor) -> Tensor:
        return self.layer(torch.stack([t.double().sin(), t.double().cos()], -1))


class OfAStepAndAClass(nn.Module):
    """Patches of a picture, how far each is, and what it is of."""

    def __init__(self, hidden_size: int, num_classes: int = 10) -> None:
        super().__init__()
        self.patches, self.qkv = nn.Conv2d(3, hidden_size, 2, 2), nn.Linear(hidden_size, 3 * hidden_size)
        self.of_step, self.of_class = Timed(hidden_size), nn.Embedding(num_classes, hidden_size)

    def forward(self, x: Tensor, t: Tensor, y: Tensor) -> Tensor:
        steering = self.of_step(t) + self.of_class(y)
        return attention(*self.qkv(self.patches(x).flatten(2).mT + steering.unsqueeze(1)).chunk(3, -1))


def test_a_step_and_a_class_are_a_number_of_each_sample() -> None:
    call = first(OfAStepAndAClass)
    assert [call.arguments[each].shape for each in "ty"] == [(2,), (2,)]
    assert axes(call) == [("x", 0, (2, 3), None)]


class Scored(nn.Module):
    """A loss that all samples make comes first."""

    def __init__(self, vocab_size: int, d_model: int) -> None:
        super().__init__()
        self.words, self.head = nn.Embedding(vocab_size, d_model), nn.Linear(d_model, vocab_size)

    def forward(self, idx: Tensor, targets: Tensor) -> tuple[Tensor, Tensor]:
        x = self.words(idx)
        logits = self.head(attention(x, x, x))
        return nn.functional.cross_entropy(logits.flatten(0, 1), targets.flatten()), logits


def test_labels_that_have_to_be_given_are_ids_and_the_loss_is_no_output_of_the_tokens() -> None:
    call = first(Scored)
    assert call.arguments["targets"].shape == call.arguments["idx"].shape
    assert [each.ndim for each in call.outputs(call.run())] == [3, 0]
    assert check(Scored).verdict in ("right", "different by design")


class OfSegments(nn.Module):
    """A language model that is given a text in segments: one at a time."""

    def __init__(self, vocab: int = 50, width: int = 12) -> None:
        super().__init__()
        self.embed, self.qkv = nn.Embedding(vocab, width), nn.Linear(width, 3 * width)

    def forward(self, segment: Tensor) -> Tensor:
        return attention(*self.qkv(self.embed(segment)).chunk(3, -1))


def test_segments_that_come_without_tokens_are_the_tokens() -> None:
    assert axes(first(OfSegments)) == [("ids", 0, (1,), None)]


BOD = 1


def in_documents(q: Tensor, k: Tensor, v: Tensor, input_ids: Tensor) -> Tensor:
    """q, k, v: (batch, tokens, heads, width)"""
    document = (input_ids == BOD).cumsum(-1)
    q, k, v = (each.transpose(1, 2) for each in (q, k, v))
    other = (document[:, :, None] != document[:, None])[:, None]
    return ((q @ k.mT / q.shape[-1] ** 0.5).masked_fill(other, -torch.inf).softmax(-1) @ v).transpose(1, 2)


def test_ids_that_are_held_against_the_first_of_a_text_are_no_mask() -> None:
    call = first(in_documents)
    ids = call.arguments["input_ids"]
    assert ids.shape == call.arguments["q"].shape[:2]
    assert ids.dtype == torch.long
    assert BOD not in ids
    assert call.masks == []


class ChannelsOfTwoMaps(nn.Module):
    """The channels of a map attend to those of another one of the same size (DANet's decoder)."""

    def __init__(self) -> None:
        super().__init__()
        self.scale = nn.Parameter(torch.zeros(1))

    def forward(self, x: Tensor, y: Tensor) -> Tensor:
        """x: input feature (N, C, H, W), y: gathering centers (N, K, H, W)."""
        batch, count, w, h = y.size()  # noqa: RUF059
        y = y.view(batch, count, -1)
        energy = x.flatten(2) @ y.mT
        weights = (energy.amax(-1, keepdim=True) - energy).softmax(-1)
        return x + self.scale * (weights @ y).view(x.shape)


def test_a_map_whose_sides_are_written_last_has_its_channels_second() -> None:
    call = first(ChannelsOfTwoMaps)
    assert axes(call) == [("x", 0, (2, 3), None), ("context", 0, (2, 3), None)]
    assert check(ChannelsOfTwoMaps).verdict == "different by design"
