"""The attention to groups of keys, against the definition with all other keys blocked, and its merge."""

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from grids import some_examples
from lens.map_cases import KERNEL_LIMITS, Definition, assert_near, map_cases
from lens.recordings import random_map
from regard import mask
from regard.lens import AttentionMap, GroupOutputs


@pytest.mark.more
@pytest.mark.usefixtures("as_a_user_runs_it")
@some_examples(2)
@given(case=map_cases(max_tokens=20), of_texts=st.booleans(), count=st.integers(1, 3))
def test_each_group_has_the_attention_to_its_keys_alone_and_they_merge_to_the_output(case, of_texts, count):
    m = case.make()
    batch, _, _, keys = m.shape
    ids = (torch.arange(batch if of_texts else 1)[:, None] + torch.arange(keys) ** 2) % count
    with KERNEL_LIMITS[case.limits].apply():
        parts = m.group_outputs(ids if of_texts else ids[0])
    alone = AttentionMap(m.q, m.k, m.v, m.mask, **m.score_options | {"sinks": None})
    for n in range(parts.lse.shape[-1]):
        exact = Definition(alone, mask.allowed((ids == n)[:, None, None]))
        assert_near(parts.output[..., n, :], exact.output)
        assert_near(parts.lse[..., n], exact.steps.masked.detach().logsumexp(-1))
    exact = Definition(m)
    assert_near(parts.merge(m.sinks), exact.output)
    for n, part in enumerate(parts.contributions(m.sinks).unbind(-2)):
        assert_near(part, (exact.weights * (ids == n)[:, None, None]) @ exact.v.detach())


def test_groups_of_a_bool_tensor_merge_to_the_attention_to_their_keys():
    m = random_map(6, 9, dtype=torch.float64, mask=mask.causal())
    key = torch.arange(9)
    inside = torch.stack([key % 3 == 0, key == 4, key % 3 == 2])  # keys 1 and 7 are in none
    expected = Definition(m, mask.allowed(inside.any(0)[None])).output
    assert_near(m.group_outputs(inside).merge(), expected)


def test_groups_merge_in_any_order():
    m = random_map(6, 9, dtype=torch.float64, sinks=torch.randn(2).double())
    parts = m.group_outputs([0, 1, 2] * 3)
    two = GroupOutputs(*(t[:, :, :, :2] for t in parts))
    both = GroupOutputs(two.merge()[..., None, :], two.lse.logsumexp(-1, keepdim=True))
    rest = GroupOutputs(*(t[:, :, :, 2:] for t in parts))
    again = GroupOutputs(*(torch.cat(t, 3) for t in zip(rest, both, strict=True)))
    assert_near(again.merge(m.sinks), m.output())


def test_a_group_far_below_the_others_keeps_its_own_output():
    """Its weights in the whole map are exp(-2000), which is 0."""
    k = torch.tensor([0.0, -2000.0, -2001.0]).double().view(1, 1, 3, 1)
    v = torch.tensor([1.0, 2.0, 4.0]).double().view(1, 1, 3, 1)
    parts = AttentionMap(torch.ones(1, 1, 1, 1).double(), k, v, scale=1.0).group_outputs([0, 1, 1])
    expected = torch.tensor([0.0, -1.0]).double()
    assert_near(parts.output[0, 0, 0, 1, 0], expected.softmax(0) @ torch.tensor([2.0, 4.0]).double())
    assert_near(parts.lse[0, 0, 0, 1], expected.logsumexp(0) - 2000)
    assert_near(parts.merge()[0, 0, 0], torch.ones(1).double())


def test_a_group_without_keys_is_empty():
    parts = random_map(4, 6).group_outputs([0, 0, 2, 2, 2, 0])
    assert not parts.output[..., 1, :].any()
    assert (parts.lse[..., 1] == -torch.inf).all()


def test_rows_that_may_attend_to_nothing_merge_to_zero():
    m = random_map(4, 4, mask=mask.causal(offset=-2))
    assert not m.group_outputs([0, 1, 0, 1]).merge()[:, :, :2].any()


@pytest.mark.usefixtures("as_a_user_runs_it")
@pytest.mark.parametrize(("groups", "error"), [([0, 1], ValueError), ([0.5] * 6, TypeError)])
def test_groups_that_do_not_fit_are_refused(groups, error):
    with pytest.raises(error, match="groups"):
        random_map().group_outputs(groups)
