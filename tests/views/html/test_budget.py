"""How much a page carries: never more than its limit, and it says what it left out and how to get it."""

import math
import re

import pytest
import torch

from regard import mask
from regard.lens.maps.map import AttentionMap
from views.html.decoded import holds, opened, recorded


def layers(tokens, heads, count=1, *, width=32, **options):
    """Causal layers of random numbers."""
    options = {"mask": mask.causal(), **options}
    return recorded(
        *(AttentionMap(*(torch.randn(1, heads, tokens, width) for _ in range(3)), **options) for _ in range(count))
    )


def test_a_page_is_never_larger_than_its_limit(node):
    recording = layers(300, 4, 3)
    least = len(recording.to_html(heads=[]).encode())
    limits = [least + more for more in (5_000, 40_000, 80_000, 150_000, 400_000, 800_000)] + [5_000_000, math.inf]
    texts = [recording.to_html(max_size=limit) for limit in limits]
    assert all(len(text.encode()) <= limit for text, limit in zip(texts, limits, strict=True))
    pages = opened(node, *texts, every=20)
    whole = [len(page.whole) for page in pages]
    assert whole == sorted(whole)
    assert (whole[0], whole[-1]) == (0, 12)
    assert any(0 < count < 12 for count in whole)
    for page in pages:
        holds(page, recording)
        assert (page.facts["omitted"] == []) == (len(page.whole) == 12)
        first = page.facts["initial"]
        assert not page.whole or (f"layers.{first['attention']}", first["head"]) in page.whole
    within = [page.about("layers.0")["max_weight_error"] for page in pages]
    assert within[-1] < 2e-4 < 1e-3  # what has room is kept more finely


def test_the_way_out_that_a_page_names_works(node):
    recording = layers(300, 4, 3)
    (small,) = opened(node, recording.to_html(max_size=450_000), every=50)
    (line,) = small.facts["omitted"]
    missing, every = map(int, re.match(r"(\d+) of (\d+) heads", line).groups())
    assert (every - missing, every) == (len(small.whole), 12)
    limit = int(re.search(r"to_html\(max_size=([\d_]+)\)", line)[1])
    assert limit == 1_800_000
    assert "regard see --max-size 1.8." in line
    pages = opened(
        node, recording.to_html(max_size=limit), recording.to_html(max_size=450_000, heads=[(2, 3)]), every=50
    )
    assert len(pages[0].whole) > len(small.whole)
    assert pages[1].whole == [("layers.2", 3)]
    assert pages[1].facts["initial"]["attention"] == 2
    assert "other heads were requested" in pages[1].facts["omitted"][0]


@pytest.mark.parametrize("rows", ["values", "rows"])
def test_one_long_head_is_carried_in_part(node, rows):
    recording = layers(1200, 1)
    least = len(recording.to_html(heads=[]).encode())
    full = len(recording.to_html().encode())
    limit = least + int((full - least) * {"values": 0.5, "rows": 0.38}[rows])
    text = recording.to_html(max_size=limit)
    assert len(text.encode()) <= limit
    (page,) = opened(node, text, every=10)
    ((head,),) = page.attentions.values()
    holds(page, recording)
    assert head.outputs is None
    assert "The values" in " ".join(page.facts["omitted"])
    if rows == "rows":
        assert 0 < len(head.rows) < 120  # of every tenth
        assert head.rows[-1] == 1199
        m = recording["layers.0"]
        torch.testing.assert_close(head.entropy.float(), m.entropy()[0, 0], atol=1e-5, rtol=1e-5)
        torch.testing.assert_close(head.received.float(), m.received()[0, 0], atol=1e-4, rtol=1e-5)
        assert re.search(r"of 1,200 rows of the head are in this page", " ".join(page.facts["omitted"]))


def test_a_limit_below_any_page_says_how_large_one_is():
    recording = layers(20, 2)
    for limit in (0, -1, 1000):
        with pytest.raises(
            ValueError, match=rf"takes (\d+,)+\d+ bytes without any head .* max_size={limit:,}: watch fewer"
        ):
            recording.to_html(max_size=limit)


def test_no_heads_wanted_no_heads_carried(node):
    recording = layers(20, 2)
    (page,) = opened(node, recording.to_html(heads=[]))
    assert page.whole == []
    assert "2 of 2 heads are in this page as pictures only: other heads were requested" in page.facts["omitted"][0]
    pooled = recording["layers.0"].pooled(20, 20)[0]
    for head, exact in zip(page.attentions["layers.0"], pooled, strict=True):
        torch.testing.assert_close(head.picture.float(), exact, atol=0.01, rtol=0.02)


def test_heads_that_have_masks_or_biases_of_their_own_have_room(node):
    """What a mask takes is counted before: as many heads are carried as fit, not none."""
    own = mask.allowed(torch.rand(1, 8, 256, 256) < 0.5)
    bias = torch.randn(8, 256, 256)
    recording = layers(256, 8, 2, mask=own, bias=bias)
    text = recording.to_html(max_size=3_000_000)
    assert 2_400_000 < len(text.encode()) <= 3_000_000
    (page,) = opened(node, text, every=40)
    assert 4 <= len(page.whole) < 16
    holds(page, recording)


def test_what_layers_share_is_carried_once():
    shared, bias = mask.allowed(torch.rand(256, 256) < 0.5), torch.randn(256, 256)
    one, four = (len(layers(256, 2, count, mask=shared, bias=bias, width=2).to_html().encode()) for count in (1, 4))
    assert four - one < 120_000  # a bias of 256 x 256 numbers takes more than 200,000 bytes


def test_a_bias_of_the_distance_takes_a_number_for_each_distance():
    far = torch.arange(256)[None] - torch.arange(256)[:, None]
    bias = -far.abs().float() * 0.1
    sizes = [
        len(layers(256, 2, bias=b, width=2).to_html().encode()) for b in (bias, bias.masked_fill(far > 0, -torch.inf))
    ]
    assert max(sizes) < len(layers(256, 2, width=2).to_html().encode()) + 15_000


def test_attentions_that_no_page_can_compute_are_pictures(node):
    bias = torch.zeros(20, 20)
    bias[3] = torch.finfo(torch.float32).min
    drowned = layers(20, 2, bias=bias)
    (page,) = opened(node, drowned.to_html())
    assert page.whole == []
    assert "layers.0: pictures only: a bias below -10,000 on all keys of a query" in page.facts["omitted"][0]


@pytest.mark.slow
def test_long_texts_fit(node):
    for tokens, heads in ((8192, 2), (32768, 1)):
        recording = layers(tokens, heads, width=32, mask=mask.causal() & mask.window(4000))
        text = recording.to_html()
        assert len(text.encode()) <= 5_000_000
        (page,) = opened(node, text, every=tokens // 8)
        assert holds(page, recording) >= 8
