"""How a target is made ready: float64, also where a part of it cannot be moved in PyTorch's own way."""

from __future__ import annotations

import torch
from torch import nn

from regard.check.target.preparation import in_float64, prepare, redraw


class _Rotary(nn.Module):
    def __init__(self):
        super().__init__()
        self.register_buffer("frequencies", torch.ones(2))
        self.register_buffer("steps", torch.arange(3))
        self.gain = nn.Parameter(torch.ones(2))

    @staticmethod
    def _apply(x, cos, sin):
        return x * cos + x.flip(-1) * sin


def test_a_method_by_the_name_of_apply_hides_how_pytorch_moves_modules():
    module = nn.ModuleList([nn.Linear(2, 2), _Rotary()])
    assert in_float64(module) is module
    assert {each.dtype for each in module.parameters()} == {torch.float64}
    assert module[1].frequencies.dtype == torch.float64
    assert module[1].steps.dtype == torch.int64


class _RandomFeatures(nn.Module):
    def __init__(self):
        super().__init__()
        self.project = nn.Linear(2, 2)
        self.features = nn.Parameter(torch.tensor([[3.0, 0.0], [0.0, 3.0]]), requires_grad=False)
        self.zeros = nn.Parameter(torch.zeros(2, 2), requires_grad=False)


def test_what_never_learns_beside_what_does_is_what_the_constructor_computed():
    module = in_float64(_RandomFeatures())
    redraw(module, 0)
    assert module.features.tolist() == [[3, 0], [0, 3]]
    assert module.zeros.all()


def test_what_never_learns_and_has_two_numbers_is_a_mask_that_stays():
    module = nn.Linear(2, 2)
    module.mask = nn.Parameter(torch.tensor([[0.0, -torch.inf], [0.0, 0.0]]), requires_grad=False)
    module.table = nn.Parameter(torch.zeros(2, 2), requires_grad=False)
    redraw(module, 0)
    assert module.mask.tolist() == [[0.0, -torch.inf], [0.0, 0.0]]
    assert bool(module.table.any())


def test_the_vector_of_padding_stays_zero():
    words = in_float64(nn.Embedding(5, 3, padding_idx=2))
    redraw(words, 1)
    assert [each.any().item() for each in words.weight] == [True, True, False, True, True]


def test_what_began_positive_stays_positive():
    class Deviations(nn.Module):
        def __init__(self):
            super().__init__()
            self.mean = nn.Parameter(torch.randn(1, 1, 16))
            self.deviation = nn.Parameter(torch.rand(1, 1, 16) + 0.1)

        def forward(self, x):
            return torch.normal(self.mean, self.deviation) + x

    torch.manual_seed(0)
    module = Deviations()
    redraw(module, 0)
    assert (module.deviation > 0).all()
    assert len(module.deviation.unique()) == 16
    assert (module.mean < 0).any()
    assert module(torch.ones(16)).isfinite().all()


def test_a_batch_norm_that_keeps_no_statistics_mixes_no_samples_in_evaluation_mode():
    norm, tokens = nn.BatchNorm1d(4, track_running_stats=False), torch.randn(3, 4, dtype=torch.float64)
    prepare(norm, seed=0)
    torch.testing.assert_close(norm(tokens)[:1], norm(tokens[:1]))


def test_a_batch_norm_that_keeps_statistics_keeps_them():
    norm = nn.BatchNorm1d(4)
    norm.running_mean += 2
    prepare(norm, seed=0)
    assert norm.running_mean.tolist() == [2.0] * 4
