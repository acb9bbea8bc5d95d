"""Softmaxes that are computed a chunk of keys at a time: the last chunk may hold a single key."""

from __future__ import annotations

import pytest
import torch
from torch import Tensor, nn

from property_cases import WIDTH, drawn, joined, of_x, split
from regard.check.properties.analysis import Analysis
from regard.check.properties.analyze import analyze
from regard.check.target.preparation import prepare

pytestmark = pytest.mark.more  # seconds a test: it is run by make test-more

W_Q, W_K, W_V = (drawn(WIDTH, WIDTH, seed=seed) / 3 for seed in (80, 81, 82))
CHUNK = 4


def one_chunk(q: Tensor, k: Tensor, v: Tensor, ahead: int) -> tuple[Tensor, Tensor, Tensor]:
    """The sum of its weights, the weighted sum, and the maximum; `ahead`: the first diagonal that is hidden."""
    scores = torch.einsum("bhid,bhjd->bhij", q, k) / 2
    scores = scores.masked_fill(torch.ones(scores.shape[-2:]).triu(ahead) > 0, -1e300)
    top = scores.amax(-1, keepdim=True)
    weights = (scores - top).exp()
    return weights.sum(-1), torch.einsum("bhij,bhjd->bhid", weights, v), top[..., 0]


def in_chunks(x: Tensor, *, ahead: int = 1, of_read: bool = True, of_sums: bool = True) -> Tensor:
    """Rabe and Staats 2021: what each chunk read is weighed by its maximum, and divided at the end."""
    q, k, v = (split(x @ each) for each in (W_Q, W_K, W_V))
    found = []
    for start in range(0, x.shape[1], CHUNK):
        asking, parts = q[:, :, start : start + CHUNK], list[tuple[Tensor, Tensor, Tensor]]()
        for other in range(0, start + 1, CHUNK):
            of_chunk = (each[:, :, other : other + CHUNK] for each in (k, v))
            parts.append(one_chunk(asking, *of_chunk, start - other + ahead))
        sums, read, tops = (torch.stack(each, -1) for each in zip(*parts, strict=True))
        factors = (tops - tops.amax(-1, keepdim=True)).exp()
        read = read * factors[..., None, :] if of_read else read
        found.append(read.sum(-1) / (sums * factors if of_sums else sums).sum(-1, keepdim=True))
    return joined(torch.cat(found, 2))


def violated(analysis: Analysis) -> list[str]:
    return [each.property for each in analysis.violations]


@pytest.mark.parametrize("tokens", [4, 5, 6, 8])
def test_a_chunk_of_one_key_has_a_weight_that_no_token_changes(tokens: int) -> None:
    assert violated(analyze(of_x(in_chunks, tokens=tokens))) == []


def test_the_mask_of_chunks_is_judged() -> None:
    ahead = analyze(of_x(lambda x: in_chunks(x, ahead=2), tokens=5))
    assert next(each.message for each in ahead.designs).endswith("query 0 sees a later position, 1")
    assert violated(analyze(of_x(lambda x: in_chunks(x, ahead=0), tokens=5))) == ["mask-pattern"]


@pytest.mark.parametrize("tokens", [5, 6, 8])
@pytest.mark.parametrize(("of_read", "of_sums"), [(True, True), (False, True), (True, False), (False, False)])
def test_each_chunk_is_weighed_by_its_own_maximum(tokens: int, of_read: bool, of_sums: bool) -> None:
    analysis = analyze(of_x(lambda x: in_chunks(x, of_read=of_read, of_sums=of_sums), tokens=tokens))
    # Of a chunk of one key nothing but the output tells, where all is right if neither of the two is weighed.
    is_told = of_read != of_sums or (tokens > CHUNK + 1 and not of_read)
    assert violated(analysis) == ["weights-sum-to-one"] * is_told
    if of_read and of_sums:
        holding = {each.property for each in analysis.findings if each.kind == "holds"}
        assert {"weights-sum-later", "scale"} <= holding


class InALoop(nn.Module):
    """The same with what was read so far, which is multiplied anew where a larger score comes."""

    of_read, of_sums = True, True

    def __init__(self) -> None:
        super().__init__()
        self.qkv, self.out = nn.Linear(WIDTH, 3 * WIDTH), nn.Linear(WIDTH, WIDTH)

    def gated(self, read: Tensor, x: Tensor) -> Tensor:
        return read

    def forward(self, x: Tensor) -> Tensor:
        q, k, v = map(split, self.qkv(x).chunk(3, -1))
        top, total = x.new_full((*q.shape[:3], 1), -torch.inf), x.new_zeros(*q.shape[:3], 1)
        read = x.new_zeros(*q.shape)
        for start in range(0, x.shape[1], CHUNK):
            scores = q @ k[:, :, start : start + CHUNK].mT / 2
            higher = torch.maximum(top, scores.amax(-1, keepdim=True))
            factor, weights = (top - higher).exp(), (scores - higher).exp()
            total = (total * factor if self.of_sums else total) + weights.sum(-1, keepdim=True)
            read = (read * factor if self.of_read else read) + weights @ v[:, :, start : start + CHUNK]
            top = higher
        return self.out(self.gated(joined(read / total), x))


class SumsAlone(InALoop):
    of_read = False


class ReadAlone(InALoop):
    of_sums = False


class ByEinsum(InALoop):
    """The new weights and the old ones stand side by side."""

    def factor(self, top: Tensor, higher: Tensor) -> Tensor:
        return (top - higher).exp()

    def forward(self, x: Tensor) -> Tensor:
        q, k, v = (each.unflatten(-1, (2, -1)) for each in self.qkv(x).chunk(3, -1))
        top = total = read = None
        for keys, values in zip(k.split(CHUNK, 1), v.split(CHUNK, 1), strict=True):
            scores = torch.einsum("bihd,bjhd->bhij", q, keys) / 2
            higher = scores.max(-1).values if top is None else torch.maximum(top, scores.max(-1).values)
            weights = (scores - higher[..., None]).exp()
            new, sums = torch.einsum("bhij,bjhd->bhid", weights, values), weights.sum(-1)
            if read is not None:
                new = new + read * self.factor(top, higher)[..., None]
                sums = sums + total * (top - higher).exp()
            top, total, read = higher, sums, new
        return self.out(joined(read / total[..., None]))


class ByEinsumTheOtherWay(ByEinsum):
    def factor(self, top: Tensor, higher: Tensor) -> Tensor:
        return torch.ones_like(top)


class Gated(InALoop):
    def gated(self, read: Tensor, x: Tensor) -> Tensor:
        return read * x.sigmoid()


class Chosen(InALoop):
    def gated(self, read: Tensor, x: Tensor) -> Tensor:
        return read * x.relu()


def of_loop(kind: type[nn.Module], tokens: int) -> Analysis:
    torch.manual_seed(0)
    call = of_x(kind(), tokens=tokens)
    prepare(call.target, 1)
    return analyze(call)


@pytest.mark.parametrize("tokens", [6, 8])
@pytest.mark.parametrize("kind", [InALoop, ByEinsum, Gated, Chosen])
def test_what_was_read_so_far_may_be_rescaled_in_a_loop(tokens: int, kind: type[nn.Module]) -> None:
    assert violated(of_loop(kind, tokens)) == []


@pytest.mark.parametrize("tokens", [6, 8])
@pytest.mark.parametrize("kind", [SumsAlone, ReadAlone, ByEinsumTheOtherWay])
def test_what_was_read_so_far_is_rescaled_as_its_sum_is(tokens: int, kind: type[nn.Module]) -> None:
    assert "weights-sum-to-one" in violated(of_loop(kind, tokens))


def running(x: Tensor, *, of_read: bool = True, of_sums: bool = True) -> Tensor:
    """Milakov and Gimelshein 2018: what was read and its sum, begun as zeros of the queries' axes, are rescaled."""
    q, k, v = (split(x @ each) for each in (W_Q, W_K, W_V))
    top = q.new_full((*q.shape[:-1], 1), -torch.inf)
    sums, read = torch.zeros_like(top), torch.zeros_like(q)
    for keys, values in zip(k.split(2, 2), v.split(2, 2), strict=True):
        scores = q @ keys.mT / 2
        larger = torch.maximum(top, scores.amax(-1, keepdim=True))
        factor, weights = (top - larger).exp(), (scores - larger).exp()
        sums = (sums * factor if of_sums else sums) + weights.sum(-1, keepdim=True)
        read = (read * factor if of_read else read) + weights @ values
        top = larger
    return joined(read / sums)


@pytest.mark.parametrize("tokens", [4, 5])
def test_a_running_softmax_rescales_what_was_read_and_its_sum(tokens: int) -> None:
    assert violated(analyze(of_x(running, tokens=tokens))) == []
    for wrong in ({"of_read": False}, {"of_sums": False}, {"of_read": False, "of_sums": False}):
        found = violated(analyze(of_x(lambda x, wrong=wrong: running(x, **wrong), tokens=tokens)))
        assert "weights-sum-to-one" in found, wrong
