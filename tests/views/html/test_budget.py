"""How much a page carries: never more than its limit, and it says what it left out and how to get it."""

import math
import re

import pytest
import torch

from regard import InputError, mask
from regard.lens.maps.map import AttentionMap
from regard.views.html import build_page
from views.html.decoded import assert_rows_are_the_maps, decode
from views.recordings import recorded


def layers(tokens, heads, count=1, *, width=32, **options):
    """Causal layers of random numbers."""
    options = {"mask": mask.causal(), **options}
    tensors = ((torch.randn(1, heads, tokens, width) for _ in range(3)) for _ in range(count))
    return recorded(*(AttentionMap(*qkv, **options) for qkv in tensors))


def size(recording, **options):
    return len(recording.to_html(**options).encode())


def limits(recording, *parts):
    """The largest sizes that have room for a part of what the finest page of a recording carries."""
    smallest, largest = size(recording, heads=[]), size(recording)
    return [int(smallest + part * (largest - smallest)) for part in parts]


def test_a_page_is_never_larger_than_its_limit(node):
    recording = layers(60, 4, 3)
    counts, bounds = [], []
    for limit in (*limits(recording, 0.02, 0.2, 0.7, 1), math.inf):
        text = recording.to_html(max_size=limit)
        assert len(text.encode()) <= limit
        page = decode(node, text, stride=20)
        assert_rows_are_the_maps(page, recording)
        assert (page.facts["omitted"] == []) == (len(page.whole) == 12)
        counts.append(len(page.whole))
        bounds.append(max(facts["max_weight_error"] for facts in page.facts["attentions"]))
    assert counts == sorted(counts)
    assert 0 == counts[0] < counts[1] < 12 == counts[-1]
    assert bounds[-1] < 1e-4 < bounds[1]  # what has room is kept more finely


def test_a_page_may_be_exactly_as_large_as_its_limit():
    recording = layers(20, 2)
    limit = size(recording, max_size=size(recording))
    assert size(recording, max_size=limit) == limit > size(recording, heads=[]) + 500


def test_the_way_out_that_a_page_names_works(node):
    recording = layers(60, 4, 3)
    (limit,) = limits(recording, 0.2)
    small = decode(node, recording.to_html(max_size=limit), stride=50)
    (line,) = small.facts["omitted"]
    assert line.startswith(f"{12 - len(small.whole)} of 12 heads")
    larger = int(re.search(r"to_html\(max_size=([\d_]+)\)", line)[1])
    assert larger == 4 * limit
    assert f"regard see --max-size {larger / 1e6:g}" in line
    assert len(decode(node, recording.to_html(max_size=larger), stride=50).whole) == 12
    chosen = decode(node, recording.to_html(max_size=limit, heads=[(2, 3)]), stride=50)
    assert chosen.whole == [("layers.2", 3)]
    assert chosen.facts["initial"]["attention"] == 2
    assert "11 of 12 heads are in this page as pictures only: other heads were requested" in chosen.facts["omitted"][0]


def test_a_long_head_is_carried_without_its_values_and_a_longer_one_in_some_rows(node):
    recording = layers(400, 1)
    m, (some, all_rows) = recording["layers.0"], limits(recording, 0.4, 0.57)
    page = decode(node, recording.to_html(max_size=all_rows))
    ((head,),) = page.attentions.values()
    assert assert_rows_are_the_maps(page, recording) == 400
    assert head.outputs is None
    (omitted,) = page.facts["omitted"]
    assert "The values of the head, and so weights @ v, are not in this page. For a larger page: to_html(" in omitted
    text = recording.to_html(max_size=some)
    assert len(text.encode()) <= some
    page = decode(node, text)
    ((head,),) = page.attentions.values()
    assert assert_rows_are_the_maps(page, recording) == len(head.rows) < 400 == head.rows[-1] + 1
    torch.testing.assert_close(head.entropy.float(), m.entropy()[0, 0], atol=1e-5, rtol=1e-5)
    torch.testing.assert_close(head.received.float(), m.received()[0, 0], atol=1e-4, rtol=1e-5)
    torch.testing.assert_close(head.lse.float(), m.lse[0, 0, head.rows], atol=0.01, rtol=0)
    assert " of 400 rows of the head are in this page: those of the lowest entropy" in " ".join(page.facts["omitted"])
    assert float(m.entropy()[0, 0, head.rows[:-1]].max()) < float(m.entropy()[0, 0].max())
    assert page.facts["initial"]["query"] in head.rows
    query = next(row for row in range(400) if row not in head.rows)
    page = decode(node, build_page(recording, max_size=some, initial=("layers.0", 0, query)).text)
    ((head,),) = page.attentions.values()
    assert page.facts["initial"]["query"] == query
    assert query in head.rows


def test_a_limit_below_any_page_says_how_large_one_is():
    says = r"takes (\d+,)+\d+ bytes without any head .* the limit is 1,000: fewer"
    with pytest.raises(InputError, match=says) as told:
        layers(20, 2).to_html(max_size=1000)
    assert told.value.argument == "max_size"


def test_heads_that_have_masks_or_biases_of_their_own_have_room(node):
    """What a mask takes is counted before: as many heads are carried as fit, not none."""
    own = {"mask": mask.allowed(torch.rand(1, 4, 128, 128) < 0.5), "bias": torch.randn(4, 128, 128)}
    recording = layers(128, 4, 2, **own)
    smallest, limit = limits(recording, 0, 0.5)
    text = recording.to_html(max_size=limit)
    assert smallest + 0.6 * (limit - smallest) < len(text.encode()) <= limit
    page = decode(node, text, stride=40)
    assert 2 <= len(page.whole) < 8
    assert_rows_are_the_maps(page, recording)


def test_what_layers_share_is_carried_once():
    shared = {"mask": mask.allowed(torch.rand(128, 128) < 0.5), "bias": torch.randn(128, 128)}
    cases = ((1, {}), (1, shared), (4, shared))
    plain, one, four = (size(layers(128, 2, count, width=2, **options)) for count, options in cases)
    assert four - one < 0.6 * (one - plain)


def test_a_bias_of_the_distance_takes_a_number_for_each_distance():
    far = torch.arange(128)[None] - torch.arange(128)[:, None]
    bias = -far.abs().float() * 0.1
    for b in (bias, bias.masked_fill(far > 0, -torch.inf)):
        assert size(layers(128, 2, bias=b, width=2)) < size(layers(128, 2, width=2)) + 8_000


def test_attentions_that_no_page_can_compute_are_pictures(node):
    bias = torch.zeros(20, 20)
    bias[3] = torch.finfo(torch.float32).min
    page = decode(node, layers(20, 2, bias=bias).to_html())
    assert page.whole == []
    assert "layers.0: pictures only: a bias below -10,000 on all keys of a query" in page.facts["omitted"][0]


def test_values_that_are_not_finite_are_told(node):
    q, k = torch.randn(2, 1, 2, 8, 4)
    page = decode(node, recorded(AttentionMap(q, k, torch.full_like(k, torch.nan))).to_html())
    assert page.facts["omitted"] == ["layers.0: its values hold NaN or infinity, so weights @ v is not in this page."]


@pytest.mark.slow
def test_long_texts_fit(node):
    recording = layers(32_768, 1, mask=mask.causal() & mask.window(4000))
    text = recording.to_html()
    assert len(text.encode()) <= 5_000_000
    assert assert_rows_are_the_maps(decode(node, text, stride=4096), recording) >= 8
