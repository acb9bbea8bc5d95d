"""What each number depends on: found by changing one sample, token or head at a time."""

from __future__ import annotations

import torch
from torch import Tensor

from attention_styles import heads_call, tokens_call
from regard.check.roles.influence import Source, changed, differs, influence_of, record_invocation, stream_sizes
from regard.check.roles.owners import NONE, SEVERAL, owners
from regard.check.target import Invocation, Stream

X = torch.randn(2, 3, 4, generator=torch.Generator().manual_seed(0), dtype=torch.float64)


def returned(invocation: Invocation, **options: object) -> tuple[list[Source], Tensor]:
    influence = influence_of(invocation, record_invocation(invocation), **options)
    return [source for source, _ in influence.runs], influence.returned(0)


def test_one_number_depends_on_its_own_sample_and_token() -> None:
    sources, depends = returned(tokens_call(lambda x: 2 * x, X))
    assert sources == [Source("x", "sample", n) for n in range(2)] + [Source("x", "token", n) for n in range(3)]
    for source, mine in zip(sources, depends, strict=True):
        own = torch.zeros(X.shape, dtype=torch.bool)
        own.select(("sample", "token").index(source.kind), source.index).fill_(True)
        assert torch.equal(mine, own)


def test_owners_are_single_or_several_or_none() -> None:
    def function(x: Tensor) -> Tensor:
        return torch.stack([x[:, 0], x.sum(1), torch.ones_like(x[:, 0])], 1)

    call = tokens_call(function, X)
    influence = influence_of(call, record_invocation(call))
    found = owners(influence.returned(0).flatten(1), influence, ["x"])
    assert found.token.reshape(2, 3, 4)[..., 0].tolist() == [[0, SEVERAL, NONE]] * 2
    assert found.sample.reshape(2, 3, 4)[..., 0].tolist() == [[0, 0, NONE], [1, 1, NONE]]
    assert found.stream.reshape(2, 3, 4)[..., 0].tolist() == [[0, 0, NONE]] * 2


def test_numbers_of_two_streams_have_the_sample_of_both() -> None:
    call = heads_call(lambda q, k, v: v + k, *[X[:, None]] * 3)
    influence = influence_of(call, record_invocation(call))
    found = owners(influence.returned(0).flatten(1), influence, ["q", "k", "v"])
    assert found.sample.reshape(2, -1).tolist() == [[0] * 12, [1] * 12]
    assert found.stream.unique().tolist() == [SEVERAL]


def test_streams_are_told_apart_where_they_have_the_same_shape() -> None:
    call = heads_call(lambda q, k, v: torch.cat([v, q], -1), *[X[:, None]] * 3)
    influence = influence_of(call, record_invocation(call))
    found = owners(influence.returned(0).flatten(1), influence, ["q", "k", "v"])
    assert found.stream.reshape(2, 1, 3, 8)[0, 0, 0].tolist() == [2] * 4 + [0] * 4


def test_images_have_a_token_for_each_pixel() -> None:
    stream = Stream("x", "x", 0, (2, 3))
    call = Invocation(lambda x: x, {"x": torch.randn(2, 5, 3, 4).double()}, ["x"], [stream])
    assert stream_sizes(call, stream) == (2, 12, 1)
    other = changed(call, Source("x", "token", 6))["x"]
    assert set(differs(call.arguments["x"], other).nonzero()[:, 2:].unbind(1)[0].tolist()) == {1}
    assert set(differs(call.arguments["x"], other).nonzero()[:, 3].tolist()) == {2}


def test_token_ids_that_are_changed_stay_in_the_table() -> None:
    stream = Stream("ids", "ids", 0, (1,))
    ids = torch.tensor([[0, 3, 6], [5, 1, 2]])
    call = Invocation(lambda ids: ids, {"ids": ids}, ["ids"], [stream], sizes={"vocab": 7})
    for token in range(3):
        other = changed(call, Source("ids", "token", token))["ids"]
        assert bool((other[:, token] != ids[:, token]).all())
        assert int(other.min()) >= 0
        assert int(other.max()) < 7


def test_what_is_held_stays_as_it_is() -> None:
    call = tokens_call(lambda x: (2 * x).cumsum(1) + x, X)
    base = record_invocation(call)
    summed = next(each for each in base if each.name == "cumsum")
    free = influence_of(call, base).returned(0)
    held = influence_of(call, base, frozen={summed.index: summed.outputs[0].data}).returned(0)
    assert bool(free[2, :, 1:].any())
    assert not bool(held[2, :, 1:].any())
    assert bool(held[2, :, 0].all())


def test_a_run_that_takes_other_steps_is_left_out() -> None:
    sources, _ = returned(tokens_call(lambda x: x * 2 if torch.equal(x[:, 1], X[:, 1]) else x * 2 + 1, X))
    assert sources == [Source("x", "token", 0), Source("x", "token", 2)]


def test_rounding_is_no_influence() -> None:
    one = torch.tensor([1.0, torch.inf, torch.nan, -torch.inf, 0.0]).double()
    assert not bool(differs(one, one + torch.tensor([1e-13, 0, 0, 0, 1e-13])).any())
    other = torch.tensor([1.0 + 1e-9, 1, 2, torch.inf, 1e-9], dtype=torch.float64)
    assert differs(one, other).tolist() == [True, True, True, True, True]
    assert bool(differs(one, one[:3]).all())
