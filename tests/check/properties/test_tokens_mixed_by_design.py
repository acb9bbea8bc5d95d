"""Keys and values that are made of several tokens on purpose, and what is wrong with others."""

from __future__ import annotations

from functools import partial

import pytest
import torch
import torch.nn.functional as F
from torch import Tensor, nn

from property_cases import drawn, of_module, of_x
from regard.check.properties.analyze import analyze
from regard.check.target import Invocation, Stream
from regard.check.target.preparation import prepare

pytestmark = pytest.mark.more  # seconds a test: it is run by make test-more


def names(call: Invocation) -> list[tuple[str, str]]:
    analysis = analyze(call, masks=True)
    assert not analysis.missing
    return [(each.kind, each.property) for each in analysis.findings if each.kind in ("violation", "design")]


def delta_rule(x: Tensor, *, by_rows: bool = False, upper: bool = False) -> Tensor:
    """DeltaNet in one chunk, its keys of neighbours: values less what their keys read of earlier ones."""
    q, k, v = (x @ drawn(8, 24, seed=0)).chunk(3, -1)
    q, k = (F.conv1d(F.pad(each, (0, 0, 1, 0)).mT, drawn(8, 8, 2, seed=1) / 8).mT for each in (q, k))
    among = (k @ k.mT / 8).triu(1) if upper else (k @ k.mT / 8).tril(-1)
    system = among + torch.eye(x.shape[1], dtype=x.dtype)
    if by_rows:
        inverse = -among
        for row in range(1, x.shape[1]):
            mine, before = inverse[:, row, :row].clone(), inverse[:, :row, :row].clone()
            inverse[:, row, :row] = mine + (mine[..., None] * before).sum(-2)
        values = (inverse + torch.eye(x.shape[1], dtype=x.dtype)) @ v
    else:
        values = torch.linalg.solve_triangular(system, v, upper=upper, unitriangular=True)
    return (q @ k.mT / 8**0.5).tril() @ values


@pytest.mark.parametrize(("by_rows", "tokens"), [(False, 4), (True, 20)])
def test_the_delta_rule_is_a_design(by_rows: bool, tokens: int) -> None:
    assert names(of_x(partial(delta_rule, by_rows=by_rows), tokens=tokens)) == [("design", "delta-rule")]


def test_a_delta_rule_that_reads_later_values_is_wrong() -> None:
    assert "violation" in {kind for kind, _ in names(of_x(partial(delta_rule, upper=True)))}


def delayed_values(x: Tensor, *, whole: bool = False, later: bool = False, one_projection: bool = False) -> Tensor:
    """Queries and keys of neighbours; half of each value is of the token before (ZAYA)."""
    q, k = (x @ drawn(8, 16, seed=0)).chunk(2, -1)
    q, k = (F.conv1d(F.pad(each, (0, 0, 1, 0)).mT, drawn(8, 8, 2, seed=1) / 8).mT for each in (q, k))
    own, delayed = (x @ drawn(8, 4, seed=seed) for seed in (2, 3))
    if one_projection:
        own, delayed = (x @ drawn(8, 8, seed=2)).chunk(2, -1)
    own, delayed = (
        F.pad(each, (0, 0, 1, -1)) if is_late else each for each, is_late in ((own, whole), (delayed, True))
    )
    delayed = F.pad(delayed, (0, 0, -2, 2)) if later else delayed
    return (q @ k.mT / 8**0.5).softmax(-1) @ torch.cat([own, delayed], -1)


def test_half_of_each_value_may_be_of_the_token_before() -> None:
    assert ("design", "delayed-values") in names(of_x(delayed_values))


@pytest.mark.parametrize("wrong", ["whole", "later", "one_projection"])
def test_values_that_are_all_of_another_token_are_wrong(wrong: str) -> None:
    assert ("violation", "value-of-the-key") in names(of_x(partial(delayed_values, **{wrong: True})))


class PatchesOfChannels(nn.Module):
    """Each channel is a sequence of its own, of patches of two steps (PatchTST); a layer that takes tokens first."""

    def __init__(self, *, mixed: bool = False) -> None:
        super().__init__()
        self.mixed = mixed
        self.embed = nn.Linear(2, 8)
        self.attention = nn.MultiheadAttention(8, 2)

    def forward(self, x: Tensor) -> Tensor:
        patches = self.embed(x.mT.flatten(0, 1).unfold(-1, 2, 2)).transpose(0, 1)  # (patches, samples and channels, 8)
        read = self.attention(patches, patches.flip(1) if self.mixed else patches, patches, need_weights=False)[0]
        return (patches + read).mean(0).unflatten(0, (len(x), -1))


def patches(*, mixed: bool) -> list[tuple[str, str]]:
    module = PatchesOfChannels(mixed=mixed)
    prepare(module, 1)
    analysis = analyze(of_x(module, tokens=6))
    return [(each.kind, each.property) for each in analysis.findings if each.kind in ("violation", "design")]


def test_several_sequences_of_a_sample_may_stand_beside_each_other() -> None:
    assert patches(mixed=False) == [("design", "mask-pattern")]


def test_patches_that_ask_those_of_another_sample_are_wrong() -> None:
    assert "violation" in {kind for kind, _ in patches(mixed=True)}


class OfPictures(nn.Module):
    """Keys and values of a picture's 16 patches, summed over these with a matrix (Linformer)."""

    def __init__(self, summaries: int) -> None:
        super().__init__()
        self.patches = nn.Conv2d(3, 8, 4, 4)
        self.query, self.key, self.value = (nn.Linear(8, 8) for _ in range(3))
        self.of_keys, self.of_values = (nn.Parameter(torch.zeros(16, summaries)) for _ in range(2))

    def forward(self, x: Tensor) -> Tensor:
        x = self.patches(x).flatten(2).mT
        keys = self.key(x).mT @ self.of_keys
        values = self.value(x).mT @ self.of_values
        return (self.query(x) @ keys / 8**0.5).softmax(-1) @ values.mT


@pytest.mark.parametrize(
    ("summaries", "found"), [(6, ("design", "summarized-keys")), (16, ("violation", "key-of-one-token"))]
)
def test_patches_whose_keys_are_fewer_sums_of_them_are_summarized(summaries: int, found: tuple[str, str]) -> None:
    module = OfPictures(summaries)
    prepare(module, 1)
    picture = Invocation(module, {"x": drawn(2, 3, 16, 16, seed=0)}, ["x"], [Stream("x", "x", 0, (2, 3))])
    assert found in [(each.kind, each.property) for each in analyze(picture).findings]


class NormedOverNodes(nn.Module):
    """A norm of each channel over the nodes of a graph, behind heads that are joined."""

    def __init__(self, *, is_joined_wrongly: bool = False) -> None:
        super().__init__()
        self.qkv, self.norm, self.is_wrong = nn.Linear(8, 24), nn.InstanceNorm1d(8, affine=True), is_joined_wrongly

    def forward(self, x: Tensor) -> Tensor:
        q, k, v = (each.unflatten(-1, (2, 4)).transpose(1, 2) for each in self.qkv(x).chunk(3, -1))
        read = (q @ k.mT / 2).softmax(-1) @ v
        read = read.reshape(x.shape) if self.is_wrong else read.transpose(1, 2).flatten(2)
        return self.norm((x + read).mT).mT


@pytest.mark.parametrize("is_wrong", [False, True])
def test_a_norm_over_the_tokens_of_a_sample_is_a_design(is_wrong: bool) -> None:
    found = analyze(of_module(lambda: NormedOverNodes(is_joined_wrongly=is_wrong))).findings
    kinds = {each.kind for each in found if each.property == "output-of-the-token"}
    assert kinds == {"violation" if is_wrong else "design"}


class ByHand(nn.Module):
    """A norm over some axes of (samples, tokens, channels), turned as those of PyTorch are."""

    def __init__(self, axes: tuple[int, ...]) -> None:
        super().__init__()
        self.axes = axes

    def forward(self, turned: Tensor) -> Tensor:
        x = turned.mT
        return ((x - x.mean(self.axes, keepdim=True)) / (x.var(self.axes, keepdim=True) + 1e-5).sqrt()).mT


class NormedByHand(NormedOverNodes):
    """The same by one mean and one deviation of a sample, or by those of each channel."""

    def __init__(self, *, axes: tuple[int, ...] = (1, 2), is_joined_wrongly: bool = False) -> None:
        super().__init__(is_joined_wrongly=is_joined_wrongly)
        self.norm = ByHand(axes)  # type: ignore[assignment]


@pytest.mark.parametrize(
    ("axes", "is_wrong", "kind"), [((1, 2), False, "design"), ((1, 2), True, "violation"), ((1,), False, "violation")]
)
def test_a_norm_over_a_sample_that_is_written_by_hand_is_a_design(
    axes: tuple[int, ...], is_wrong: bool, kind: str
) -> None:
    found = analyze(of_module(lambda: NormedByHand(axes=axes, is_joined_wrongly=is_wrong))).findings
    assert {each.kind for each in found if each.property == "output-of-the-token"} == {kind}


def turned_as_told(x: Tensor) -> Tensor:
    """What a token read.

    Returns:
        Vectors `[tgt_len x batch x dim]`.
    """
    return turned_back_to_front(x)


def turned_back_to_front(x: Tensor) -> Tensor:
    """What a token read: [batch x tgt_len x dim]."""
    q, k, v = (x @ drawn(8, 24, seed=0)).chunk(3, -1)
    return ((q @ k.mT / 8**0.5).softmax(-1) @ v).transpose(0, 1)


def test_what_is_returned_may_have_its_tokens_first_where_that_is_written() -> None:
    for function, kind in ((turned_as_told, "design"), (turned_back_to_front, "violation")):
        found = analyze(of_x(function)).findings
        assert {each.kind for each in found if each.property == "output-of-the-token"} == {kind}


class GatedByChannel(nn.Module):
    """What was read is squeezed to one number for each channel, which gates it (squeeze and excitation)."""

    def __init__(self, *, is_joined_wrongly: bool = False) -> None:
        super().__init__()
        self.qkv, self.squeeze, self.is_wrong = nn.Linear(8, 24), nn.Linear(8, 8), is_joined_wrongly

    def forward(self, x: Tensor) -> Tensor:
        q, k, v = (each.unflatten(-1, (2, 4)).transpose(1, 2) for each in self.qkv(x).chunk(3, -1))
        read = (q @ k.mT / 2).softmax(-1) @ v
        read = read.reshape(x.shape) if self.is_wrong else read.transpose(1, 2).flatten(2)
        return read * torch.sigmoid(self.squeeze(read.mean(1, keepdim=True)))


@pytest.mark.parametrize("is_wrong", [False, True])
def test_a_gate_of_each_channel_that_all_tokens_make_is_a_design(is_wrong: bool) -> None:
    found = analyze(of_module(lambda: GatedByChannel(is_joined_wrongly=is_wrong))).findings
    kinds = {each.kind for each in found if each.property == "output-of-the-token"}
    assert kinds == {"violation" if is_wrong else "design"}


class ReadByStates(nn.Module):
    """A recurrent layer of both directions in place of a feed-forward network (DPTNet)."""

    def __init__(self, *, is_joined_wrongly: bool = False, of_samples: bool = False) -> None:
        super().__init__()
        self.qkv, self.states = nn.Linear(8, 24), nn.LSTM(8, 4, bidirectional=True, batch_first=not of_samples)
        self.is_wrong = is_joined_wrongly

    def forward(self, x: Tensor) -> Tensor:
        q, k, v = (each.unflatten(-1, (2, 4)).transpose(1, 2) for each in self.qkv(x).chunk(3, -1))
        read = (q @ k.mT / 2).softmax(-1) @ v
        x = x + (read.reshape(x.shape) if self.is_wrong else read.transpose(1, 2).flatten(2))
        return x + self.states(x)[0]


@pytest.mark.parametrize("wrong", ["", "is_joined_wrongly", "of_samples"])
def test_states_of_a_recurrent_layer_behind_an_attention_are_a_design(wrong: str) -> None:
    found = analyze(of_module(lambda: ReadByStates(**{wrong: True} if wrong else {}))).findings
    kinds = {each.kind for each in found if each.property in ("output-of-the-token", "samples-apart")}
    assert ("violation" in kinds) == bool(wrong)
    assert wrong or kinds == {"design"}


class LinesOfMaps(nn.Module):
    """The rows of each channel attend to one another, and so do its columns (Speech-Transformer)."""

    def __init__(self) -> None:
        super().__init__()
        self.convolutions = nn.ModuleList(nn.Conv2d(4, 4, 3, padding=1) for _ in range(3))
        self.out = nn.Conv2d(8, 4, 3, padding=1)

    def forward(self, x: Tensor) -> Tensor:
        q, k, v = (each(x) for each in self.convolutions)
        rows = self.read(q, k, v)
        columns = self.read(q.mT, self.columns(k), v.mT).mT
        return self.out(torch.cat([rows, columns], 1))

    def columns(self, k: Tensor) -> Tensor:
        return k.mT

    def read(self, q: Tensor, k: Tensor, v: Tensor) -> Tensor:
        return (q @ k.mT / q.shape[-1] ** 0.5).softmax(-1) @ v


class LinesOfOtherChannels(LinesOfMaps):
    """The columns of a channel are asked by those of another one."""

    def columns(self, k: Tensor) -> Tensor:
        return k.mT.roll(1, 1)


@pytest.mark.parametrize(("kind", "is_right"), [(LinesOfMaps, True), (LinesOfOtherChannels, False)])
def test_lines_of_a_map_that_a_convolution_made_may_attend_to_one_another(
    kind: type[nn.Module], is_right: bool
) -> None:
    call = of_module(kind)
    call.arguments, call.streams = {"x": drawn(2, 4, 3, 5, seed=0)}, [Stream("x", "x", 0, (2, 3))]
    found = names(call)
    assert (("design", "query-of-one-token") in found) == is_right
    assert (("violation", "query-of-one-token") in found) == (not is_right)


class NormedOverBatches(nn.Module):
    """A batch norm behind the residual, which keeps statistics or not (Kool et al. 2019)."""

    def __init__(self, *, keeps: bool = False, mixes: bool = False) -> None:
        super().__init__()
        self.qkv, self.norm, self.mixes = nn.Linear(8, 24), nn.BatchNorm1d(8, track_running_stats=keeps), mixes

    def forward(self, x: Tensor) -> Tensor:
        q, k, v = self.qkv(x).chunk(3, -1)
        x = x + (q @ k.mT / 8**0.5).softmax(-1) @ v
        x = x - x.mean((0, 1)) if self.mixes else x
        return self.norm(x.flatten(0, 1)).view(x.shape)


def test_a_batch_norm_without_statistics_is_noted_and_what_else_mixes_samples_is_wrong() -> None:
    found = analyze(of_module(NormedOverBatches))
    assert not found.violations
    assert [each.kind for each in found.findings if each.property == "samples-apart"] == ["note"]
    assert not [
        each for each in analyze(of_module(lambda: NormedOverBatches(keeps=True))).findings if each.kind == "note"
    ]
    assert "samples-apart" in {
        each.property for each in analyze(of_module(lambda: NormedOverBatches(mixes=True))).violations
    }
