"""Caches: what they return, what they cost, and cached equals uncached for one attention."""

from __future__ import annotations

import copy
import math
from contextlib import nullcontext
from dataclasses import dataclass

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import nn

import regard
from regard import mask, positions
from regard.attention import cache as caches
from regard.attention.cache import Cache, CrossAttentionCache, Dynamic, Sliding, Static

MODES = {"gradients": nullcontext, "no_grad": torch.no_grad, "inference_mode": torch.inference_mode}
LONGEST = 200

KINDS = {
    "Dynamic": Dynamic,
    "Static": lambda: Static(LONGEST),
    "Sliding": lambda: Sliding(5),
    "Sliding(1)": lambda: Sliding(1),
}
every_kind = pytest.mark.parametrize("make", KINDS.values(), ids=KINDS)
every_mode = pytest.mark.parametrize("mode", MODES.values(), ids=MODES)


def bytes_of(cache):
    """What a cache keeps in memory, in buffers of any name."""
    storages = {t.untyped_storage().data_ptr(): t.untyped_storage() for t in vars(cache).values() if torch.is_tensor(t)}
    return sum(storage.nbytes() for storage in storages.values())


def tokens(*shape):
    """Keys and values to append."""
    return torch.randn(*shape, 3), torch.randn(*shape, 2)


# What append returns: a list is the truth.


@dataclass
class Step:
    tokens: int
    mode: str
    rows: list[int] | None
    """Which row each row continues, after the tokens."""


@st.composite
def lives(draw):
    """How a cache is used: a batch, a window, steps."""
    batch = draw(st.integers(1, 3))
    one_mode = draw(st.sampled_from([*MODES, None]))
    steps, rows = [], batch
    for _ in range(draw(st.integers(1, 12))):
        order = None
        if draw(st.integers(0, 3)) == 0:
            # As many rows, as beams do, or another number of them.
            size = rows if draw(st.booleans()) else draw(st.integers(1, 4))
            order = draw(st.lists(st.integers(0, rows - 1), min_size=size, max_size=size))
            rows = size
        steps.append(Step(draw(st.integers(0, 14)), one_mode or draw(st.sampled_from([*MODES])), order))
    return batch, draw(st.integers(1, 9)), draw(st.sampled_from([1, 3, 64])), steps


@settings(deadline=None)
@given(lives(), st.sampled_from(["Dynamic", "Static", "Sliding"]))
def test_every_append_returns_what_a_list_would_hold(life, kind):
    batch, window, room, steps = life
    cache = {"Dynamic": Dynamic, "Static": lambda: Static(LONGEST), "Sliding": lambda: Sliding(window)}[kind]()
    k, v = tokens(batch, 2, 0)
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(caches, "GROWTH", room)  # buffers are full after a few tokens
        for step in steps:
            with MODES[step.mode]():
                new = tokens(k.shape[0], 2, step.tokens)
                untouched = [t.clone() for t in new]
                held = k.shape[-2] if kind != "Sliding" else min(k.shape[-2], window - 1)
                k, v = (torch.cat([old, t], dim=-2) for old, t in zip((k, v), new, strict=True))
                assert (cache.num_tokens, cache.num_cached) == (k.shape[-2] - step.tokens, held)
                expected = held + step.tokens
                assert cache.kv_length(step.tokens) == expected
                returned = cache.append(*new)
                for ours, truth in zip(returned, (k, v), strict=True):
                    assert torch.equal(ours, truth[..., truth.shape[-2] - expected :, :])
                if step.rows is not None:
                    rows = torch.tensor(step.rows)
                    cache.reorder(rows)
                    k, v = k[rows], v[rows]
                assert all(torch.equal(t, before) for t, before in zip(new, untouched, strict=True))


@every_kind
def test_what_is_appended_stays_the_callers(make):
    cache, (k, v) = make(), tokens(2, 1, 3)
    before = k.clone()
    returned, _ = cache.append(k, v)
    with torch.no_grad():
        cache.reorder(torch.tensor([1, 1]))
        cache.append(*tokens(2, 1, 1))
    assert torch.equal(k, before)
    assert torch.equal(returned, before)


@every_kind
def test_gradients_go_back_through_steps_that_were_not_the_last(make):
    """A reorder or a step without gradients must not write into what a graph has kept."""
    cache, (k, v) = make(), tokens(2, 1, 3)
    k.requires_grad_()
    returned, _ = cache.append(k * 2, v)
    loss = (returned * returned).sum()
    with torch.no_grad():
        cache.reorder(torch.tensor([1, 0]))
        cache.append(*tokens(2, 1, 2))
    loss.backward()
    torch.testing.assert_close(k.grad, 8 * k.detach())


@every_kind
@pytest.mark.parametrize("first", MODES.values(), ids=MODES)
@pytest.mark.parametrize("then", MODES.values(), ids=MODES)
def test_begun_in_one_mode_and_gone_on_in_another(make, first, then):
    cache = make()
    k, v = tokens(2, 1, 8)
    with first():
        cache.append(k[..., :3, :].clone(), v[..., :3, :].clone())
        cache.append(k[..., 3:4, :].clone(), v[..., 3:4, :].clone())
    with then():
        for i in range(4, 8):
            returned, _ = cache.append(k[..., i : i + 1, :], v[..., i : i + 1, :])
            assert torch.equal(returned, k[..., i + 1 - returned.shape[-2] : i + 1, :])
            cache.reorder(torch.tensor([1, 0]))
            k = k.flip(0)


@every_kind
def test_a_copy_goes_its_own_way(make):
    with torch.no_grad():
        cache, (k, v) = make(), tokens(1, 1, 3)
        cache.append(k, v)
        other = copy.deepcopy(cache)
        other.append(*tokens(1, 1, 1))
        returned, _ = cache.append(k[..., :1, :], v[..., :1, :])
    held = returned.shape[-2] - 1
    assert torch.equal(returned, torch.cat([k[..., 3 - held :, :], k[..., :1, :]], dim=-2))


# What they cost.


@pytest.mark.parametrize("mode", [torch.no_grad, torch.inference_mode])
@pytest.mark.parametrize("window", [1, 5, 1000])
def test_a_sliding_cache_does_not_grow_with_the_text(mode, window):
    with mode():
        most = (window + max(64, window // 4)) * (3 + 2) * 4
        cache = Sliding(window)
        for _ in range(3 * window + 300):
            cache.append(*tokens(1, 1, 1))
            assert bytes_of(cache) <= most
        cache.append(*tokens(1, 1, 20_000))
        assert bytes_of(cache) <= most
        cache.append(*tokens(1, 1, 7))
        assert bytes_of(cache) <= most


def test_a_sliding_cache_lets_go_of_a_long_text_read_with_gradients():
    cache = Sliding(5)
    cache.append(*tokens(1, 1, 20_000))
    with torch.no_grad():
        cache.append(*tokens(1, 1, 1))
    assert bytes_of(cache) <= 69 * 5 * 4


def test_a_static_buffer_never_moves():
    with torch.no_grad():
        cache = Static(100)
        places = set()
        for n in (7, 1, 1, 30, 1, 60):
            k, v = cache.append(*tokens(2, 3, n))
            places.add((k.data_ptr(), v.data_ptr()))
            cache.reorder(torch.tensor([1, 0]))
    assert len(places) == 1
    assert bytes_of(cache) == 100 * 2 * 3 * (3 + 2) * 4


def test_a_dynamic_buffer_doubles():
    """So that n tokens one by one copy a number of rows that grows with n, not with its square."""
    with torch.no_grad():
        cache, places = Dynamic(), []
        for _ in range(5000):
            k, _ = cache.append(*tokens(1, 1, 1))
            if not places or places[-1] != k.data_ptr():
                places.append(k.data_ptr())
    assert len(places) <= 1 + math.ceil(math.log2(5000 / 65))
    assert bytes_of(cache) <= 2 * 5000 * 5 * 4


def test_rows_that_stay_are_not_copied():
    with torch.no_grad():
        cache = Dynamic()
        before, _ = cache.append(*tokens(3, 1, 4))
        cache.reorder(torch.tensor([0, 1, 1]))
        after, _ = cache.append(*tokens(3, 1, 1))
    assert before.data_ptr() == after.data_ptr()


# One attention: cached equals the definition without a cache.


@dataclass
class Attention:
    module: dict
    inside: str | None
    window: int | None
    cuts: list[int]
    mode: str
    kind: str


@st.composite
def attentions(draw):
    heads = draw(st.sampled_from([1, 2, 4]))
    module = {
        "num_heads": heads,
        "num_kv_heads": draw(st.sampled_from([n for n in (1, 2, 4) if heads % n == 0])),
        "d_key": draw(st.sampled_from([2, 4, 6])),
        "d_value": draw(st.sampled_from([None, 3])),
        "bias": draw(st.booleans()),
        "softcap": draw(st.sampled_from([None, 3.0])),
        "scale": draw(st.sampled_from([None, 1, 0.3])),
        "sinks": draw(st.booleans()),
        "qk_norm": draw(st.sampled_from([None, 1e-6])),
        "out_bias": draw(st.sampled_from([None, True, False])),
    }
    inside = draw(st.sampled_from([None, "rotary", "alibi", "t5"]))
    kind = draw(st.sampled_from(["Dynamic", "Static", "Sliding"]))
    window = draw(st.integers(1, 6)) if kind == "Sliding" else draw(st.sampled_from([None, 1, 4]))
    cuts = draw(st.lists(st.integers(1, 9), min_size=1, max_size=6))
    return Attention(module, inside, window, cuts, draw(st.sampled_from([*MODES])), kind)


INSIDE = {
    "rotary": lambda m: positions.Rotary(m["d_key"], scaling=positions.Linear(2.0)),
    "alibi": lambda m: positions.ALiBi(m["num_heads"]),
    "t5": lambda m: positions.T5Relative(m["num_heads"], num_buckets=6, max_distance=9, bidirectional=False),
}


def built(case):
    torch.manual_seed(0)
    inside = None if case.inside is None else INSIDE[case.inside](case.module)
    module = regard.MultiHeadAttention(8, positions=inside, **case.module).double()
    for p in module.parameters():
        nn.init.normal_(p, std=0.7)
    return module


def cached(module, x, cuts, cache, who):
    return torch.cat([module(part, mask=who, cache=cache) for part in x.split(cuts, dim=-2)], dim=-2)


@settings(deadline=None)
@given(attentions())
def test_cached_equals_the_definition(case):
    module, who = built(case), mask.causal() if case.window is None else mask.window(case.window)
    x = torch.randn(2, sum(case.cuts), 8, dtype=torch.float64)
    cache = {"Dynamic": Dynamic, "Static": lambda: Static(x.shape[1]), "Sliding": lambda: Sliding(case.window)}
    with pytest.MonkeyPatch.context() as patch, MODES[case.mode]():
        patch.setattr(caches, "GROWTH", 3)
        ours = cached(module, x, case.cuts, cache[case.kind](), who)
    truth = module.steps(x, mask=who).projected
    torch.testing.assert_close(ours, truth, rtol=1e-9, atol=1e-9)
    if case.mode == "gradients":
        weights, parameters = torch.randn_like(truth), list(module.parameters())
        found, expected = (torch.autograd.grad((t * weights).sum(), parameters) for t in (ours, truth))
        for a, b in zip(found, expected, strict=True):
            torch.testing.assert_close(a, b, rtol=1e-9, atol=1e-9)


def test_one_sequence_without_a_batch_has_a_cache_too():
    module, x = regard.MultiHeadAttention(8, 2).double(), torch.randn(9, 8, dtype=torch.float64)
    with torch.no_grad():
        ours = cached(module, x, [4, 1, 1, 3], Dynamic(), mask.causal())
    torch.testing.assert_close(ours, module(x, mask=mask.causal()), rtol=1e-9, atol=1e-9)


# Bugs that shipped elsewhere.


@every_mode
@pytest.mark.parametrize("prompt", [3, 4, 5, 11, 90])
def test_a_prompt_longer_than_the_window_stays_causal__litgpt_2182(mode, prompt):
    module, x = regard.MultiHeadAttention(8, 2).double(), torch.randn(1, prompt + 6, 8, dtype=torch.float64)
    truth = module.steps(x, mask=mask.window(4)).projected
    with mode():
        cache = Sliding(4)
        torch.testing.assert_close(module(x[:, :prompt], mask=mask.window(4), cache=cache), truth[:, :prompt])
        torch.testing.assert_close(module(x[:, prompt:], mask=mask.window(4), cache=cache), truth[:, prompt:])


@every_mode
@pytest.mark.parametrize("window", range(1, 9))
def test_the_step_in_which_the_text_becomes_as_long_as_the_window__transformers_37574(mode, window):
    module, x = regard.MultiHeadAttention(8, 2).double(), torch.randn(1, 12, 8, dtype=torch.float64)
    truth = module.steps(x, mask=mask.window(window)).projected
    for prompt in range(1, 9):
        with mode():
            ours = cached(module, x, [prompt] + [1] * (12 - prompt), Sliding(window), mask.window(window))
        torch.testing.assert_close(ours, truth)


@every_kind
@every_mode
def test_every_kind_is_reordered__transformers_46612(make, mode):
    with mode():
        cache, (k, v) = make(), tokens(3, 1, 4)
        cache.append(k, v)
        rows = torch.tensor([2, 0, 0])
        cache.reorder(rows)
        new_k, new_v = tokens(3, 1, 1)
        found_k, found_v = cache.append(new_k, new_v)
    held = found_k.shape[-2] - 1
    assert torch.equal(found_k, torch.cat([k[rows][..., 4 - held :, :], new_k], dim=-2))
    assert torch.equal(found_v, torch.cat([v[rows][..., 4 - held :, :], new_v], dim=-2))


# The source of a cross-attention.


@pytest.fixture(params=[{}, {"d_context": 5}, {"num_kv_heads": 2, "bias": True, "qk_norm": 1e-6}], ids=str)
def cross(request):
    torch.manual_seed(0)
    module = regard.MultiHeadAttention(8, 4, **request.param).double().eval()
    for p in module.parameters():
        nn.init.normal_(p, std=0.7)
    return module


def context_for(module, rows=2, length=6):
    return torch.randn(rows, length, module.d_context or 8, dtype=torch.float64)


@every_mode
def test_a_source_is_read_once(cross, mode):
    x, context, who = torch.randn(2, 4, 8).double(), context_for(cross), mask.padding([6, 3])
    truth = cross.steps(x, context, who).projected
    with mode():
        source = CrossAttentionCache()
        torch.testing.assert_close(cross(x[:, :1], context.clone(), who, source), truth[:, :1])
        kept = source.k.data_ptr()
        torch.testing.assert_close(cross(x[:, 1:3], None, who, source), truth[:, 1:3])
        # What else is handed over is not read.
        torch.testing.assert_close(cross(x[:, 3:], torch.full_like(context, torch.nan), who, source), truth[:, 3:])
        assert source.k.data_ptr() == kept


def test_beams_share_a_source(cross):
    context, who = context_for(cross), mask.padding([6, 3])
    source = CrossAttentionCache()
    cross(torch.randn(2, 1, 8).double(), context, who, source)
    for beams, new in ((1, 1), (3, 1), (2, 4)):
        x = torch.randn(2 * beams, new, 8).double()
        lengths = torch.tensor([6, 3]).repeat_interleave(beams)
        truth = cross.steps(x, context.repeat_interleave(beams, 0), mask.padding(lengths)).projected
        torch.testing.assert_close(cross(x, None, who, source), truth)


def test_what_beams_that_share_a_source_may_see_of_it(cross):
    """Their queries stand side by side: a mask that tells queries apart would tell the wrong ones apart."""
    context, source, x = context_for(cross), CrossAttentionCache(), torch.randn(6, 1, 8).double()
    cross(x[:2], context, None, source)
    may = torch.rand(2, 1, 1, 6) < 0.7
    for who in (mask.allowed(may), ~mask.padding([2, 3]) & mask.allowed(may)):
        truth = cross(x, context.repeat_interleave(3, 0), mask.allowed(who.dense(1, 6).repeat_interleave(3, 0)))
        torch.testing.assert_close(cross(x, None, who, source), truth)
    for who in (mask.causal(), mask.window(2), mask.padding([2, 3]) & mask.causal()):
        with pytest.raises(ValueError, match=r"mask=.* differs by query, and 6 rows of queries share 2 sources"):
            cross(x, None, who, source)


def test_a_source_that_is_reordered(cross):
    context, source = context_for(cross, rows=3), CrossAttentionCache()
    x = torch.randn(3, 2, 8).double()
    cross(x, context, None, source)
    rows = torch.tensor([2, 0])
    source.reorder(rows)
    torch.testing.assert_close(cross(x[rows], None, None, source), cross(x[rows], context[rows]))


def test_an_empty_source_is_reordered_to_an_empty_one():
    source = CrossAttentionCache()
    source.reorder(torch.tensor([0, 0]))
    assert source.k is None
    assert repr(source) == "CrossAttentionCache(empty)"


@pytest.mark.usefixtures("as_a_user_runs_it")
def test_a_source_that_does_not_fit_is_named(cross):
    source, x = CrossAttentionCache(), torch.randn(3, 2, 8).double()
    with pytest.raises(ValueError, match=r"CrossAttentionCache\(\) is empty: its first call needs the context"):
        cross(x, None, None, source)
    cross(x[:2], context_for(cross), None, source)
    for rows in (x, x[:1], x[0]):
        with pytest.raises(ValueError, match=r"x \(.*\) does not share CrossAttentionCache\(\(2, \d, 6, 2\)\) evenly"):
            cross(rows, None, None, source)


# What is refused.


def appended(cache: Cache, *shape: int) -> Cache:
    cache.append(*tokens(*shape))
    return cache


@every_mode
@pytest.mark.usefixtures("as_a_user_runs_it")
@pytest.mark.parametrize(
    ("call", "message"),
    [
        (lambda: Static(0), r"Static\(length=0\): room for at least 1 token"),
        (lambda: Sliding(0), r"Sliding\(window=0\): the window counts the token itself, so it is at least 1"),
        (lambda: appended(Static(3), 1, 1, 4), r"Static\(length=3\) has room for 3 tokens more; got 4"),
        (lambda: appended(appended(Static(3), 1, 1, 2), 1, 1, 2), r"has room for 1 tokens more; got 2"),
        (lambda: appended(appended(Dynamic(), 2, 1, 3), 3, 1, 1), r"holds \(2, 1\) heads of width 3.*\(3, 1, 1, 3\)"),
        (lambda: appended(appended(Sliding(4), 2, 1, 3), 2, 2, 1), r"holds \(2, 1\) heads .*got \(2, 2, 1, 3\)"),
        (
            lambda: Dynamic().append(tokens(1, 1, 3)[0], tokens(1, 1, 1)[1]),
            r"one value for each key; got k \(1, 1, 3, 3\)",
        ),
        (
            lambda: Dynamic().append(tokens(2, 1, 3)[0], tokens(1, 1, 3)[1]),
            r"one value for each key.* v \(1, 1, 3, 2\)",
        ),
        (lambda: appended(Dynamic(), 3), r"keys and values are \(\.\.\., kv_heads, tokens, width\)"),
        (lambda: appended(Dynamic(), 2, 3).reorder(torch.tensor([0])), r"Dynamic holds one sequence"),
        (lambda: appended(Dynamic(), 2, 1, 3).append(*(t.double() for t in tokens(2, 1, 1))), "in torch.float32; got"),
    ],
)
def test_what_a_cache_cannot_take_is_named(call, message, mode):
    with mode(), pytest.raises(ValueError, match=message):
        call()


@pytest.mark.parametrize("make", [KINDS["Dynamic"], KINDS["Static"], KINDS["Sliding"]])
@every_mode
@pytest.mark.parametrize("rows", [[0, 2], [-1, 0], [5]])
def test_a_row_that_there_is_not(make, mode, rows):
    with mode():
        cache = appended(make(), 2, 1, 3)
        with pytest.raises(IndexError):
            cache.reorder(torch.tensor(rows))


@every_kind
@every_mode
def test_as_many_rows_as_before_a_reorder_that_made_more(make, mode):
    """One row would be broadcast over the two in silence."""
    with mode():
        cache = appended(make(), 1, 1, 3)
        cache.reorder(torch.tensor([0, 0]))
        with pytest.raises(ValueError, match=r"holds \(2, 1\) heads of width 3 .*got \(1, 1, 1, 3\)"):
            appended(cache, 1, 1, 1)


@pytest.mark.parametrize("mode", [torch.no_grad, nullcontext])
def test_a_call_that_is_refused_leaves_the_cache_as_it_was(mode):
    with mode():
        cache, (k, v) = Static(4), tokens(1, 1, 3)
        cache.append(k, v)
        with pytest.raises(ValueError, match="has room for 1 tokens more; got 2"):
            cache.append(*tokens(1, 1, 2))
        assert repr(cache) == "Static(num_tokens=3, num_cached=3)"
        returned, _ = cache.append(*tokens(1, 1, 1))
    assert torch.equal(returned[..., :3, :], k)
