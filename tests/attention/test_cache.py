"""Caches: what they return, what they cost, and cached equals uncached for one attention."""

import math

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

import regard
from grids import grid
from models import MODES, assert_same_gradients, cache_steps, every_mode, randomized
from regard import mask, positions
from regard.attention.cache import Cache, CrossAttentionCache, Dynamic, Sliding, Static

LONGEST = 12 * 66
KINDS = {
    "Dynamic": Dynamic,
    "Static": lambda: Static(LONGEST),
    "Sliding": lambda: Sliding(5),
    "Sliding(1)": lambda: Sliding(1),
}
every_kind = pytest.mark.parametrize("make", KINDS.values(), ids=KINDS)
each_mode = st.sampled_from([*MODES])
each_cache = st.sampled_from(["Dynamic", "Static", "Sliding"])


def make_cache(kind, window):
    return Sliding(window) if kind == "Sliding" else KINDS[kind]()


def bytes_of(cache):
    """What a cache keeps in memory, in buffers of any name."""
    storages = [t.untyped_storage() for t in vars(cache).values() if torch.is_tensor(t)]
    return sum({storage.data_ptr(): storage.nbytes() for storage in storages}.values())


def tokens(*shape):
    """Keys and values to append."""
    return torch.randn(*shape, 3), torch.randn(*shape, 2)


def appended(cache: Cache, *shape: int) -> Cache:
    cache.append(*tokens(*shape))
    return cache


def randn(*shape):
    return torch.randn(*shape, dtype=torch.float64)


@given(cache_steps(2, least=0, most=12), st.integers(1, 9), each_cache)
def test_every_append_returns_what_a_list_would_hold__transformers_46612(steps, window, kind):
    cache, (k, v) = make_cache(kind, window), tokens(2, 2, 0)
    for step in steps:
        with MODES[step.mode]():
            new = tokens(k.shape[0], 2, step.tokens)
            untouched = [t.clone() for t in new]
            held = k.shape[-2] if kind != "Sliding" else min(k.shape[-2], window - 1)
            k, v = (torch.cat([old, t], dim=-2) for old, t in zip((k, v), new, strict=True))
            assert (cache.num_tokens, cache.num_cached) == (k.shape[-2] - step.tokens, held)
            expected = held + step.tokens
            assert cache.kv_length(step.tokens) == expected
            for ours, truth in zip(cache.append(*new), (k, v), strict=True):
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
        appended(cache, 2, 1, 1)
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
        appended(cache, 2, 1, 2)
    loss.backward()
    torch.testing.assert_close(k.grad, 8 * k.detach())


@grid(mode=[torch.no_grad, torch.inference_mode], window=[1, 5, 300])
def test_a_sliding_cache_does_not_grow_with_the_text(mode, window):
    with mode():
        most = (window + max(64, window // 4)) * (3 + 2) * 4
        cache = Sliding(window)
        for new in (*[1] * (window + 150), 20_000, 7):
            assert bytes_of(appended(cache, 1, 1, new)) <= most


def test_a_sliding_cache_lets_go_of_a_long_text_read_with_gradients():
    cache = appended(Sliding(5), 1, 1, 20_000)
    with torch.no_grad():
        assert bytes_of(appended(cache, 1, 1, 1)) <= 69 * 5 * 4


def test_a_static_buffer_never_moves():
    with torch.no_grad():
        cache, places = Static(100), set()
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
        for _ in range(600):
            k, _ = cache.append(*tokens(1, 1, 1))
            if not places or places[-1] != k.data_ptr():
                places.append(k.data_ptr())
    assert len(places) <= 1 + math.ceil(math.log2(600 / 65))
    assert bytes_of(cache) <= 2 * 600 * 5 * 4


def test_rows_that_stay_are_not_copied():
    with torch.no_grad():
        cache = Dynamic()
        before, _ = cache.append(*tokens(3, 1, 4))
        cache.reorder(torch.tensor([0, 1, 1]))
        after, _ = cache.append(*tokens(3, 1, 1))
    assert before.data_ptr() == after.data_ptr()


def test_beams_with_a_common_prefix_move_only_what_follows_it():
    with torch.no_grad():
        cache, (k, v) = Dynamic(), tokens(2, 1, 4)
        k[:, :, :3] = k[0, :, :3]
        cache.append(k, v)
        cache.reorder(torch.tensor([1, 1]), common_prefix=3)
        returned, values = cache.append(*tokens(2, 1, 1))
    assert torch.equal(returned[..., :4, :], k[[1, 1]])
    assert torch.equal(values[0, :, :4], torch.cat([v[0, :, :3], v[1, :, 3:]], dim=1))


INSIDE = {
    None: lambda heads, d_key: None,
    "rotary": lambda heads, d_key: positions.Rotary(d_key, scaling=positions.Linear(2.0)),
    "alibi": lambda heads, d_key: positions.ALiBi(heads),
    "t5": lambda heads, d_key: positions.T5Relative(heads, num_buckets=6, max_distance=9, bidirectional=False),
}
modules = st.fixed_dictionaries(
    {
        "heads": st.sampled_from([(1, 1), (2, 1), (2, 2), (4, 1), (4, 2), (4, 4)]),
        "d_key": st.sampled_from([2, 4, 6]),
        "d_value": st.sampled_from([None, 3]),
        "bias": st.booleans(),
        "softcap": st.sampled_from([None, 3.0]),
        "scale": st.sampled_from([None, 1, 0.3]),
        "sinks": st.booleans(),
        "qk_norm": st.sampled_from([None, 1e-6]),
    }
)


@given(
    module=modules,
    inside=st.sampled_from([*INSIDE]),
    window=st.integers(1, 6),
    cuts=st.lists(st.sampled_from([1, 1, 2, 5, 9, 40]), min_size=1, max_size=6),
    mode=each_mode,
    kind=each_cache,
    batch=st.sampled_from([(2,), (2,), ()]),
)
def test_cached_equals_the_definition__litgpt_2182__transformers_37574(module, inside, window, cuts, mode, kind, batch):
    heads, kv_heads = module.pop("heads")
    inside = INSIDE[inside](heads, module["d_key"])
    module = randomized(regard.MultiHeadAttention(8, heads, num_kv_heads=kv_heads, positions=inside, **module))
    who = mask.window(window) if kind == "Sliding" or window < 4 else mask.causal()
    x = randn(*batch, sum(cuts), 8)
    with MODES[mode]():
        cache = make_cache(kind, window)
        ours = torch.cat([module(part, mask=who, cache=cache) for part in x.split(cuts, dim=-2)], dim=-2)
    truth = module.steps(x, mask=who).projected
    torch.testing.assert_close(ours, truth, rtol=1e-9, atol=1e-9)
    if mode == "gradients":
        assert_same_gradients(module, ours, truth)


@pytest.fixture(params=[{}, {"d_context": 5}, {"num_kv_heads": 2, "bias": True, "qk_norm": 1e-6}], ids=str)
def cross(request):
    return randomized(regard.MultiHeadAttention(8, 4, **request.param))


def context_for(module, rows=2):
    return randn(rows, 6, module.d_context or 8)


def source_of(module, context, who=None):
    """A cache that has read this context."""
    source = CrossAttentionCache()
    module(randn(len(context), 1, 8), context, who, source)
    return source


@every_mode
def test_a_source_is_read_once(cross, mode):
    x, context, who = randn(2, 4, 8), context_for(cross), mask.padding([6, 3])
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
    context = context_for(cross)
    source = source_of(cross, context, mask.padding([6, 3]))
    for beams, new in ((1, 1), (3, 1), (2, 4)):
        x = randn(2 * beams, new, 8)
        of_beams = mask.padding(torch.tensor([6, 3]).repeat_interleave(beams))
        truth = cross.steps(x, context.repeat_interleave(beams, 0), of_beams).projected
        torch.testing.assert_close(cross(x, None, mask.padding([6, 3]), source), truth)


def test_what_beams_that_share_a_source_may_see_of_it(cross):
    """Their queries stand side by side: a mask that tells queries apart would tell the wrong ones apart."""
    context, x = context_for(cross), randn(6, 1, 8)
    source = source_of(cross, context)
    may = torch.rand(2, 1, 1, 6) < 0.7
    for who in (mask.allowed(may), ~mask.padding([2, 3]) & mask.allowed(may)):
        truth = cross(x, context.repeat_interleave(3, 0), mask.allowed(who.dense(1, 6).repeat_interleave(3, 0)))
        torch.testing.assert_close(cross(x, None, who, source), truth)
    for who in (mask.causal(), mask.window(2), mask.padding([2, 3]) & mask.causal()):
        with pytest.raises(ValueError, match=r"mask=.* differs by query, and 6 rows of queries share 2 sources"):
            cross(x, None, who, source)


def test_a_source_that_is_reordered(cross):
    context, x, rows = context_for(cross, rows=3), randn(2, 2, 8), torch.tensor([2, 0])
    source = source_of(cross, context)
    source.reorder(rows)
    torch.testing.assert_close(cross(x, None, None, source), cross(x, context[rows]))


def test_what_is_empty_is_reordered_to_what_is_empty():
    empty = [CrossAttentionCache(), Dynamic()]
    for cache in empty:
        cache.reorder(torch.tensor([0, 0]))
    assert repr(empty) == "[CrossAttentionCache(empty), Dynamic(num_tokens=0, num_cached=0)]"


@pytest.mark.usefixtures("as_a_user_runs_it")
def test_a_source_that_does_not_fit_is_named(cross):
    x, source = randn(3, 2, 8), source_of(cross, context_for(cross))
    for rows in (x, x[:1], x[0]):
        with pytest.raises(ValueError, match=r"x \(.*\) does not share CrossAttentionCache\(\(2, \d, 6, 2\)\) evenly"):
            cross(rows, None, None, source)


HELD = r"holds \(2, 1\) heads of width 3.*got "


@every_mode
@pytest.mark.usefixtures("as_a_user_runs_it")
@pytest.mark.parametrize(
    ("call", "message"),
    [
        (lambda: Static(0), r"Static\(length=0\): room for at least 1 token"),
        (lambda: Sliding(0), r"Sliding\(window=0\): the window counts the token itself, so it is at least 1"),
        (lambda: appended(Static(3), 1, 1, 4), r"Static\(length=3\) has room for 3 tokens more; got 4"),
        (lambda: appended(appended(Dynamic(), 2, 1, 3), 3, 1, 1), HELD + r"\(3, 1, 1, 3\)"),
        (lambda: appended(appended(Sliding(4), 2, 1, 3), 2, 2, 1), HELD + r"\(2, 2, 1, 3\)"),
        (lambda: Dynamic().append(tokens(1, 1, 3)[0], tokens(1, 1, 1)[1]), r"one value for each key.*k \(1, 1, 3, 3\)"),
        (lambda: Dynamic().append(tokens(2, 1, 3)[0], tokens(1, 1, 3)[1]), r"one value for each key.*v \(1, 1, 3, 2\)"),
        (lambda: appended(Dynamic(), 3), r"keys and values are \(\.\.\., kv_heads, tokens, width\)"),
        (lambda: appended(Dynamic(), 2, 3).reorder(torch.tensor([0])), r"Dynamic holds one sequence"),
        (lambda: appended(Dynamic(), 2, 1, 3).append(*(t.double() for t in tokens(2, 1, 1))), "in torch.float32; got"),
    ],
)
def test_what_a_cache_cannot_take_is_named(call, message, mode):
    with mode(), pytest.raises(ValueError, match=message):
        call()


@grid(make=["Dynamic", "Static", "Sliding"], mode=MODES, rows=[[0, 2], [-1, 0], [5]])
def test_a_row_that_does_not_exist(make, mode, rows):
    with MODES[mode](), pytest.raises(IndexError):
        appended(KINDS[make](), 2, 1, 3).reorder(torch.tensor(rows))


@grid(make=KINDS, mode=MODES)
def test_as_many_rows_as_before_a_reorder_that_made_more(make, mode):
    """One row would be broadcast over the two in silence."""
    with MODES[mode]():
        cache = appended(KINDS[make](), 1, 1, 3)
        cache.reorder(torch.tensor([0, 0]))
        with pytest.raises(ValueError, match=HELD + r"\(1, 1, 1, 3\)"):
            appended(cache, 1, 1, 1)


@every_mode
def test_a_call_that_is_refused_leaves_the_cache_as_it_was(mode):
    with mode():
        cache, (k, v) = Static(4), tokens(1, 1, 3)
        cache.append(k, v)
        with pytest.raises(ValueError, match="has room for 1 tokens more; got 2"):
            appended(cache, 1, 1, 2)
        assert repr(cache) == "Static(num_tokens=3, num_cached=3)"
        returned, _ = cache.append(*tokens(1, 1, 1))
    assert torch.equal(returned[..., :3, :], k)
