"""Calls of code that runs with one number of tokens alone, and widths that two arguments have in common."""

from __future__ import annotations

import pytest
import torch
from torch import Tensor, nn

from regard.check.analyses import analyzed
from regard.check.properties.analyze import TOO_LARGE, analyze
from regard.check.target import Invocation, invocations

pytestmark = pytest.mark.more  # seconds a test: it is run by make test-more

BATCH_SIZE, SEQ_LEN = 6, 30


def first_call(kind: type[nn.Module], **args: int) -> Invocation:
    return next(iter(invocations(kind, args=args)))


class OverItsPlaces(nn.Module):
    """Keys and values are projected from a number of places that the constructor is told (Linformer)."""

    def __init__(self, places: int, dim: int, few: int) -> None:
        super().__init__()
        self.q, self.k, self.v = (nn.Linear(dim, dim) for _ in range(3))
        self.of_keys, self.of_values = (nn.Linear(places, few, bias=False) for _ in range(2))

    def forward(self, x: Tensor) -> Tensor:
        q, k, v = self.q(x), self.of_keys(self.k(x).mT).mT, self.of_values(self.v(x).mT).mT
        return (q @ k.mT / q.shape[-1] ** 0.5).softmax(-1) @ v


def test_a_linear_layer_over_the_tokens_says_how_many_there_are() -> None:
    call = first_call(OverItsPlaces, places=27, dim=30, few=6)
    assert call.arguments["x"].shape == (2, 27, 30)
    assert "27 tokens: it runs with no other number that was tried" in call.assumptions


class OblongWindow(nn.Module):
    """A bias of 4 heads for each offset in a window of 2 x 4: of 16 tokens each head would take those of others."""

    def __init__(self, dim: int) -> None:
        super().__init__()
        places = torch.stack(torch.meshgrid(torch.arange(2), torch.arange(4), indexing="ij")).flatten(1)
        offsets = places[:, :, None] - places[:, None]
        self.register_buffer("offsets", (offsets[0] + 1) * 7 + offsets[1] + 3)
        self.table = nn.Parameter(torch.randn(21, 4))
        self.qkv = nn.Linear(dim, 3 * dim)

    def forward(self, x: Tensor) -> Tensor:
        count = x.shape[1]
        q, k, v = (each.unflatten(-1, (4, -1)).transpose(1, 2) for each in self.qkv(x).chunk(3, -1))
        bias = self.table[self.offsets.view(-1)].view(count, count, -1).permute(2, 0, 1)
        return ((q @ k.mT / q.shape[-1] ** 0.5 + bias).softmax(-1) @ v).transpose(1, 2).flatten(2)


def test_a_square_table_of_whole_numbers_says_how_many_tokens_there_are() -> None:
    call = first_call(OblongWindow, dim=32)
    assert call.arguments["x"].shape[1] == 8
    assert not analyze(call).violations


class OfPairsSideBySide(nn.Module):
    """Features are tokens, whose values over time are as wide as half of what a layer takes (GATv2)."""

    def __init__(self, num_nodes: int, times: int) -> None:
        super().__init__()
        self.num_nodes, self.of_both, self.score = num_nodes, nn.Linear(2 * times, times), nn.Linear(times, 1)

    def forward(self, x: Tensor) -> Tensor:
        x, count = x.transpose(1, 2), self.num_nodes
        one, other = x.repeat_interleave(count, 1), x.repeat(1, count, 1)
        both = torch.cat((one, other), 2).view(len(x), count, count, -1)
        return (self.score(nn.functional.leaky_relu(self.of_both(both)))[..., 0].softmax(-1) @ x).transpose(1, 2)


def test_two_tokens_side_by_side_are_what_a_layer_takes() -> None:
    call = first_call(OfPairsSideBySide, num_nodes=8, times=20)
    assert call.arguments["x"].shape[1:] == (20, 8)
    assert call.streams[0].token_axes == (2,)


class PairedWithChannels(OverItsPlaces):
    """Its queries and keys, normalized over the tokens, serve an attention among channels as well (UNETR++)."""

    def forward(self, x: Tensor) -> Tensor:
        q, k, v = (each(x).unflatten(-1, (3, -1)).permute(0, 2, 3, 1) for each in (self.q, self.k, self.v))
        few, read = self.of_keys(k), self.of_values(v)
        q, k = (nn.functional.normalize(each, dim=-1) for each in (q, k))
        channels = ((q @ k.mT).softmax(-1) @ v).mT
        read = (q.mT @ few).softmax(-1) @ read.mT
        return torch.cat([each.transpose(1, 2).flatten(2) for each in (channels, read)], -1)


def test_queries_that_an_attention_among_channels_has_as_well_are_not_judged() -> None:
    analysis = analyze(first_call(PairedWithChannels, places=9, dim=30, few=6))
    assert analysis.violations == []
    assert any(each.endswith("an attention among channels has the same queries and keys") for each in analysis.missing)


class BesideAWidth(nn.Module):
    """Its last layer has the width of the tokens under another name."""

    def __init__(self, embed_dim: int = 256, mlp_out: int = 256) -> None:
        super().__init__()
        self.qkv, self.out = nn.Linear(embed_dim, 3 * embed_dim), nn.Linear(embed_dim, mlp_out)

    def forward(self, x: Tensor) -> Tensor:
        q, k, v = self.qkv(x).chunk(3, -1)
        return x + self.out((q @ k.mT / q.shape[-1] ** 0.5).softmax(-1) @ v)


def test_two_arguments_with_the_default_of_the_width_are_told_the_same() -> None:
    call = first_call(BesideAWidth)
    assert "mlp_out=12" in call.assumptions
    assert call.arguments["x"].shape[-1] == 12


class OfManyPatches(nn.Module):
    """Its tokens are patches of two steps, so that each is made of several."""

    def __init__(self, dim: int) -> None:
        super().__init__()
        self.patch = nn.Conv1d(dim, dim, 2, stride=2)
        self.q, self.k, self.v = (nn.Linear(dim, dim) for _ in range(3))

    def forward(self, x: Tensor) -> Tensor:
        x = self.patch(x.mT).mT
        q, k, v = self.q(x), self.k(x), self.v(x)
        return (q @ k.mT / q.shape[-1] ** 0.5).softmax(-1) @ v


def test_of_too_many_rows_nothing_is_said() -> None:
    call = next(iter(invocations(OfManyPatches, args={"dim": 12}, inputs={"x": torch.randn(2, 160, 12).double()})))
    analysis = analyze(call)
    assert analysis.violations == []
    assert any("too many" in each for each in analysis.missing)


class OfWidePlaces(nn.Module):
    """Of so many places, and so wide, that no more than two samples can be followed."""

    def __init__(self, dim: int, num_heads: int, d_head: int) -> None:
        super().__init__()
        self.num_heads, self.out = num_heads, nn.Linear(num_heads * d_head, dim)
        self.q, self.k, self.v = (nn.Linear(dim, num_heads * d_head) for _ in range(3))
        self.register_buffer("places", torch.arange(64)[:, None] - torch.arange(64) + 63)
        self.bias = nn.Parameter(torch.randn(127))

    def forward(self, x: Tensor) -> Tensor:
        q, k, v = (each(x).unflatten(-1, (self.num_heads, -1)).transpose(1, 2) for each in (self.q, self.k, self.v))
        weights = (q @ k.mT / q.shape[-1] ** 0.5 + self.bias[self.places]).softmax(-1)
        return self.out((weights @ v).transpose(1, 2).flatten(2))


class AllInOneMatrix(OfWidePlaces):
    """The matrix of all three is too wide to be followed."""

    def __init__(self, dim: int, num_heads: int, d_head: int) -> None:
        super().__init__(dim, num_heads, d_head)
        self.qkv = nn.Linear(dim, 3 * num_heads * d_head)
        del self.q, self.k, self.v

    def forward(self, x: Tensor) -> Tensor:
        q, k, v = self.qkv(x).unflatten(-1, (3, self.num_heads, -1)).permute(2, 0, 3, 1, 4)
        weights = (q @ k.mT / q.shape[-1] ** 0.5 + self.bias[self.places]).softmax(-1)
        return self.out((weights @ v).transpose(1, 2).flatten(2))


WIDE = {"dim": 64, "num_heads": 8, "d_head": 24}


def test_what_is_too_large_to_be_followed_is_said_and_no_other_call_is_lost() -> None:
    large = analyze(next(invocations(OfWidePlaces, args=WIDE, inputs={"x": torch.randn(8, 64, 64)})))
    assert large.missing == [TOO_LARGE]
    several, error = analyzed(invocations(OfWidePlaces, args=WIDE))
    assert error is None
    assert [each.missing for each in several] == [[]]
    assert ("note", "other-sizes") in [(each.kind, each.property) for each in several[0].findings]


def test_projections_that_cannot_be_followed_are_not_said_to_be_none() -> None:
    for kind, wanted in ((OfWidePlaces, "holds"), (AllInOneMatrix, "note")):
        found = analyze(next(invocations(kind, args=WIDE))).findings
        assert [each.kind for each in found if each.property == "query-of-one-token"] == [wanted]


class OfAudio(nn.Module):
    """Convolutions, one of which halves the frames, make as many tokens as there are positions."""

    def __init__(self, n_mels: int, n_ctx: int, n_state: int) -> None:
        super().__init__()
        self.conv_1 = nn.Conv1d(n_mels, n_state, 3, padding=1)
        self.conv_2 = nn.Conv1d(n_state, n_state, 3, stride=2, padding=1)
        self.register_buffer("positions", torch.randn(n_ctx, n_state))
        self.q, self.k, self.v = (nn.Linear(n_state, n_state) for _ in range(3))

    def forward(self, x: Tensor) -> Tensor:
        x = self.conv_2(self.conv_1(x).relu()).relu().mT
        assert x.shape[1:] == self.positions.shape, "not of this length"
        x = x + self.positions
        return (self.q(x) @ self.k(x).mT / x.shape[-1] ** 0.5).softmax(-1) @ self.v(x)


def test_there_are_as_many_frames_as_strides_make_positions_of() -> None:
    call = first_call(OfAudio, n_mels=20, n_ctx=24, n_state=32)
    assert call.arguments["x"].shape == (2, 20, 48)
    assert analyze(call).complete


class OfSeries(nn.Module):
    """Each series is cut into patches, and its mean is taken off; with as many series as channels others are mixed."""

    def __init__(self, seq_len: int, enc_in: int, d_model: int) -> None:
        super().__init__()
        self.patch = nn.Linear(8, d_model)
        self.q, self.k, self.v = (nn.Linear(d_model, d_model) for _ in range(3))

    def forward(self, x_enc: Tensor) -> Tensor:
        # x_enc: [B, seq_len, D]
        x = (x_enc - x_enc.mean(1, keepdim=True)).mT.unfold(-1, 8, 8)
        x = self.patch(x.flatten(0, 1))
        return (self.q(x) @ self.k(x).mT / x.shape[-1] ** 0.5).softmax(-1) @ self.v(x)


def test_an_axis_that_is_documented_by_the_name_of_a_constructors_argument_is_as_long_as_that_says() -> None:
    call = first_call(OfSeries, seq_len=48, enc_in=3, d_model=48)
    assert call.arguments["x_enc"].shape == (2, 48, 3)
    assert not analyze(call).violations


class OfItsFile(nn.Module):
    """How many samples and tokens there are stands in the file."""

    def __init__(self, d_model: int, heads: int) -> None:
        super().__init__()
        self.heads, self.qkv = heads, nn.Linear(d_model, 3 * d_model)

    def forward(self, x: Tensor, mask: Tensor) -> Tensor:
        q, k, v = self.qkv(x).view(BATCH_SIZE, SEQ_LEN, 3, self.heads, -1).permute(2, 0, 3, 1, 4)
        hidden = mask.unsqueeze(1).expand(BATCH_SIZE, self.heads, SEQ_LEN, SEQ_LEN)
        weights = (q @ k.mT / q.shape[-1] ** 0.5).masked_fill(hidden, -1e9).softmax(-1)
        return (weights @ v).transpose(1, 2).reshape(BATCH_SIZE, SEQ_LEN, -1)


def test_constants_of_the_file_say_how_many_samples_and_tokens_there_are_and_are_made_small() -> None:
    call = first_call(OfItsFile)
    assert call.arguments["x"].shape[:2] == (2, 5)
    assert (BATCH_SIZE, SEQ_LEN) == (2, 5)
    assert "BATCH_SIZE of its file is 2" in call.assumptions


class AlongTheRows(nn.Module):
    """Along one side of a map, as long as its table of distances is made for."""

    def __init__(self, dim: int, length: int = 20) -> None:
        super().__init__()
        self.qkv, self.length = nn.Conv1d(dim, 3 * dim, 1), length
        self.table = nn.Parameter(torch.randn(dim, 2 * length - 1))

    def forward(self, x: Tensor) -> Tensor:
        batch, channels, height, width = x.shape
        q, k, v = self.qkv(x.permute(0, 3, 1, 2).reshape(-1, channels, height)).mT.chunk(3, -1)
        places = torch.arange(self.length)
        table = self.table[:, places[:, None] - places + self.length - 1]
        scores = q @ k.mT + torch.einsum("bic,cij->bij", q, table)
        return ((scores / channels**0.5).softmax(-1) @ v).view(batch, width, height, channels).permute(0, 3, 2, 1)


def test_a_side_of_a_map_is_as_long_as_a_table_of_distances_says() -> None:
    call = first_call(AlongTheRows)
    assert call.arguments["x"].shape[2:] == (20, 1)
    assert "20 tokens: it runs with no other number that was tried" in call.assumptions


class HidesItsDiagonal(nn.Module):
    """Keeps the places of the pairs that it hides, of all its tokens (locality self-attention)."""

    def __init__(self, places: int, dim: int) -> None:
        super().__init__()
        self.qkv, self.hidden = nn.Linear(dim, 3 * dim), torch.eye(places + 1).nonzero()

    def forward(self, x: Tensor) -> Tensor:
        q, k, v = self.qkv(x).chunk(3, -1)
        scores = q @ k.mT / q.shape[-1] ** 0.5
        scores[:, self.hidden[:, 0], self.hidden[:, 1]] = -987654321
        return scores.softmax(-1) @ v


def test_pairs_that_are_kept_tell_the_number_of_tokens() -> None:
    call = first_call(HidesItsDiagonal, places=12, dim=8)
    assert call.arguments["x"].shape == (2, 13, 8)
    assert "every key but the query's own" in {
        each.message.partition(": ")[2] for each in analyze(call, masks=True).designs
    }
