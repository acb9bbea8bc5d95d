"""Figures for papers: what they show is the map, whatever the tokens are, and they are written as text and vectors."""

import gc
import io
import re
import struct
import sys
import weakref

import matplotlib
import pytest
import torch
from matplotlib.figure import Figure

from cases import OperatorTrace
from regard import mask
from regard.lens import AttentionMap, AttentionSummary, Recording
from regard.views.figures.cells import head_cells
from regard.views.figures.fonts import FontFallback
from regard.views.figures.maps import THUMBNAIL_FONT_SIZE
from views.recordings import random_map, recorded, river

HOSTILE = {
    "$x^2$": "$x^2$",
    "$": "$",
    r"\frac{": r"\frac{",
    "<script>alert(1)</script>": "<script>alert(1)</scr...",
    "&amp;": "&amp;",
    "a\nb": r"a\nb",
    "\x1b[31m": r"\x1b[31m",
    "\u202eabc": r"\u202eabc",
    **dict.fromkeys(["😀", "👩\u200d👩\u200d👧", "中文", "שלום", "مرحبا", "e\u0301", "\ud800", "\U000e0041"]),
    **dict.fromkeys(["", " ", "x" * 500]),
}
"""Tokens, and how some of them are written."""


def per_cent(figure, i=0):
    """What a picture holds."""
    return torch.from_numpy(figure.axes[0].images[i].get_array().filled(torch.nan))


def labels(axis):
    return [label.get_text() for label in axis.get_ticklabels()]


def written(figure, tmp_path, kind):
    path = tmp_path / f"figure.{kind}"
    figure.savefig(path)
    return path.read_bytes()


def test_the_picture_holds_the_weights_in_per_cent_and_the_tokens():
    m = river()["blocks.5.attention"]
    figure = m.plot(head=6)
    assert isinstance(figure, Figure)
    torch.testing.assert_close(per_cent(figure), 100 * m[0, 6].double())
    axes, bar = figure.axes
    assert labels(axes.xaxis) == labels(axes.yaxis) == m.tokens[0]
    assert (axes.get_xlabel(), axes.get_ylabel(), bar.get_ylabel()) == ("key", "query", "weight, %")
    assert axes.get_title() == f"head 6, entropy {float(m.entropy()[0, 6].mean()):.2f} nats"
    assert m.plot(head=6, title="layer 5").axes[0].get_title() == "layer 5"


def test_positions_are_whole_numbers():
    axes = random_map(3, 3).plot().axes[0]
    assert all(place == int(place) for axis in (axes.xaxis, axes.yaxis) for place in axis.get_ticklocs())


def test_what_is_masked_is_grey_and_said():
    figure = random_map(6, 6, mask=mask.causal()).plot()
    assert bool((per_cent(figure)[torch.ones(6, 6).triu(1) > 0] < 0).all())
    assert figure.axes[0].get_title().endswith("\ngrey: no weight, masked")
    assert "grey" not in random_map(6, 6).plot().axes[0].get_title()


def test_what_is_no_number_is_red_and_said():
    m = random_map(6, 6)
    m.q[0, 1, 2] = torch.nan
    figure = m.plot(head=1)
    assert per_cent(figure).isnan().any(1).tolist() == [False, False, True, False, False, False]
    assert figure.axes[0].get_title() == "head 1, entropy nan nats\nred: not a number"


@pytest.mark.parametrize("kind", ["svg", *(pytest.param(kind, marks=pytest.mark.more) for kind in ("pdf", "png"))])
def test_any_token_can_be_drawn(kind, tmp_path):
    """Warnings are errors here, and a token that were read as a formula would be one too."""
    m = random_map(7, len(HOSTILE), mask=mask.causal())
    m.label([*HOSTILE][-7:], [*HOSTILE])
    figure = m.plot(head=1, title="$x$ of \x1b <b>")
    assert written(figure, tmp_path, kind)
    assert written(recorded(m).plot_heads(), tmp_path, kind)
    assert labels(figure.axes[0].xaxis)[:8] == [text for text in HOSTILE.values() if text]


def test_tokens_are_no_latex_for_those_who_write_their_figures_with_it():
    with matplotlib.rc_context({"text.usetex": True}):
        m = random_map(2, 2)
        m.label([r"\input{/etc/passwd}", "$"])
        axes = m.plot().axes[0]
    texts = [*axes.get_xticklabels(), *axes.get_yticklabels(), axes.title]
    assert not any(text.get_usetex() or text.get_parse_math() for text in texts)


def test_tokens_stay_text_in_svg_and_pdf_and_settings_of_matplotlib_as_they_were(tmp_path):
    before = dict(matplotlib.rcParams)
    m = random_map(3, 3)
    m.label(["<script>x</script>", "$x$", "river"])
    figure = m.plot()
    svg, pdf = written(figure, tmp_path, "svg").decode(), written(figure, tmp_path, "pdf")
    assert "<script" not in svg
    for token in ("&lt;script&gt;x&lt;/script&gt;", "$x$", "river", "weight, %"):
        assert re.search(rf"<text[^>]*>{re.escape(token)}</text>", svg)
    assert b"/CIDFontType2" in pdf or b"/TrueType" in pdf
    assert b"/Type3" not in pdf
    assert dict(matplotlib.rcParams) == before


@pytest.mark.more
def test_no_window_and_nothing_kept(monkeypatch):
    """Neither pyplot nor a figure that somebody would have to close."""
    monkeypatch.setitem(sys.modules, "matplotlib.pyplot", None)
    figure = random_map(4, 4).plot()
    figure.savefig(io.BytesIO(), format="png")
    gone = weakref.ref(figure)
    del figure
    gc.collect()
    assert gone() is None


def test_without_matplotlib_the_way_out_is_said(monkeypatch):
    monkeypatch.delitem(sys.modules, "regard.views.figures.maps", raising=False)
    monkeypatch.setitem(sys.modules, "matplotlib", None)
    with pytest.raises(ImportError, match=r"matplotlib, which is not installed: pip install '\.\[plot\]'"):
        random_map(4, 4).plot()


def test_a_notebook_shows_it_at_120_dots_an_inch():
    figure = random_map(3, 3).plot()
    png = figure._repr_png_()
    assert png.startswith(b"\x89PNG")
    sides = struct.unpack(">2I", png[16:24])
    assert sides == tuple((120 * figure.get_size_inches()).astype(int))


@pytest.mark.parametrize(
    ("queries", "keys", "high", "wide"),
    [(20, 10, 4.8, 2.4), (10, 20, 2.4, 4.8), (50, 100, 3.0, 6.0), (1, 25, 0.8, 6.0), (25, 1, 6.0, 0.8)],
)
def test_cells_are_squares_of_a_size_that_fits_and_no_side_is_too_small_to_see(queries, keys, high, wide):
    """In inches, beside which there is room for the labels and the bar."""
    figure = random_map(queries, keys).plot()
    assert figure.axes[0].get_box_aspect() == pytest.approx(high / wide)
    width, height = figure.get_size_inches()
    assert wide < width <= max(wide + 2.5, 3.5)
    assert high < height <= high + 2


def test_at_length_cells_are_pooled():
    m = random_map(600, 700, mask=mask.causal())
    figure = m.plot(head=1)
    expected = 100 * m.pooled(512, 512)[0, 1].double()
    shown = per_cent(figure)
    assert shown.shape == (512, 512)
    torch.testing.assert_close(shown.where(expected > 0, 0.0), expected, atol=1e-4, rtol=1e-5)
    axes, bar = figure.axes
    assert (axes.get_xlabel(), axes.get_ylabel()) == ("key (position)", "query (position)")
    assert bar.get_ylabel() == "weight of a query on the keys of a cell, %"
    assert axes.images[0].get_extent() == [-0.5, 699.5, 599.5, -0.5]


@pytest.mark.parametrize(("queries", "keys"), [(1, 1), (1, 600), (600, 3)])
def test_any_shape_can_be_drawn(queries, keys, tmp_path):
    figure = random_map(queries, keys).plot()
    assert per_cent(figure).shape == (min(queries, 512), min(keys, 512))
    assert written(figure, tmp_path, "png")


@pytest.mark.parametrize(
    ("draw", "error", "says"),
    [
        (lambda m: m.plot(head=2), IndexError, "no head 2: there are 2"),
        (lambda m: m.plot(head=-1), IndexError, "no head -1"),
        (lambda m: m.plot(batch=1), IndexError, "row 1"),
        (lambda m: recorded(m).plot_heads(batch=1), IndexError, "no batch row 1"),
        (lambda m: recorded(m, m).plot_heads("vision"), KeyError, "no stack 'vision' here; there is 'layers'"),
        (lambda m: Recording().plot_heads(), ValueError, "nothing to draw"),
        (lambda m: random_map(0, 3).plot(), ValueError, "0 queries and 3 keys shows nothing"),
    ],
)
def test_what_is_not_there_is_refused(draw, error, says):
    with pytest.raises(error, match=says):
        draw(random_map(3, 3))


def test_another_font_has_the_characters_that_a_font_lacks():
    fonts = FontFallback()
    assert fonts.escape("aĠ▁é") == "aĠ▁é"
    assert fonts.escape("\U000f0000") == r"\U000f0000"
    with matplotlib.rc_context({"font.family": ["STIXGeneral"]}):
        fallback = FontFallback()
        assert fallback.escape("😀") == "😀"
        assert fallback.style["family"] == ["STIXGeneral", "DejaVu Sans"]


# Every head.


def titles(figure):
    return [text.get_text() for text in figure.axes[0].texts]


def test_every_head_has_its_picture_and_its_kind():
    figure, kinds = river().plot_heads(), river().head_types()["blocks.5.attention"].names
    assert len(figure.axes[0].images) == 72
    assert titles(figure)[2] == "layer 0 head 2:\nprevious token"
    assert titles(figure)[-1] == f"layer 5 head 11:\n{kinds[11]}"
    torch.testing.assert_close(per_cent(figure, 5 * 12 + 6), 100 * river()["blocks.5.attention"][0, 6].double())
    assert "blocks: self-attention, 14 queries from top to bottom, 14 keys" in figure.texts[0].get_text()


def test_the_pictures_of_heads_stand_in_rows_that_do_not_overlap():
    axes = river().plot_heads().axes[0]
    extents = torch.tensor([image.get_extent() for image in axes.images]).view(6, 12, 4)
    (left, right), (high, low) = extents[..., :2].unbind(-1), extents[..., 2:].unbind(-1)
    assert torch.equal(low, low[:, :1].expand(6, 12)), "one row is one layer"
    assert (left[:, 1:] > right[:, :-1]).all()
    assert (low[1:] > high[:-1] + 0.1).all()
    assert {text.get_fontsize() for text in axes.texts} == {THUMBNAIL_FONT_SIZE}


def test_summaries_have_pictures_too():
    m = random_map(100, 100, mask=mask.causal())
    shown = per_cent(recorded(AttentionSummary.from_map(m)).plot_heads(), 1)
    assert shown.shape == (48, 48)
    # Each of the 48 is made of one or two of the 64 cells that were kept.
    cells, dense = head_cells(AttentionSummary.from_map(m), 0, 1, 48, 48), m[0, 1].double()
    for row, column in ((0, 0), (30, 7), (47, 47)):
        (top, bottom), (left, right) = cells.queries[row : row + 2], cells.keys[column : column + 2]
        expected = 100 * dense[top:bottom, left:right].sum() / (bottom - top)
        torch.testing.assert_close(shown[row, column].clamp(min=0), expected, atol=1e-4, rtol=1e-4)


def test_each_stack_by_its_name():
    recording = Recording()
    for path, kind, shape in (("encoder", "self", (5, 5)), ("decoder", "self", (3, 3)), ("decoder", "cross", (3, 5))):
        facts = {"shape": (1, 2, *shape), "mask": None, "kernel": "", "kind": kind, "layer": 0}
        recording.add(f"{path}.blocks.0.{kind}", random_map(*shape), **facts)
    shapes = {None: (5, 5), "encoder": (5, 5), "encoder.blocks": (5, 5), "decoder": (3, 3), "cross": (3, 5)}
    assert {part: per_cent(recording.plot_heads(part)).shape for part in shapes} == shapes


def test_heads_have_the_model_s_own_numbers():
    figure = recorded(random_map(5, 5), layer=2, heads=[3, 6]).plot_heads()
    assert [title.split(":")[0] for title in titles(figure)] == ["layer 2 head 3", "layer 2 head 6"]


def test_the_row_of_a_batch():
    m = random_map(60, 60, batch=2)
    torch.testing.assert_close(per_cent(recorded(m).plot_heads(batch=1)), 100 * m.pooled(48, 48)[1, 0].double())
    assert m.plot(batch=1).axes[0].get_title().startswith("text 1, head 0, ")


# One head alone.


def test_the_picture_of_one_head_reads_no_other():
    q, k = torch.randn(2, 2, 16, 256, 8)
    with OperatorTrace() as trace:
        head_cells(AttentionMap(q, k, None), 0, 3, 64, 64)
    assert trace.max_bytes <= 256 * 256 * 8


def test_one_head_alone_is_what_it_is_among_the_others():
    for options in (
        {},
        {"mask": mask.causal(), "sinks": torch.tensor([0.5, 2.0, -1.0, 0.0]), "softcap": 3.0, "scale": 0.2},
        {"mask": mask.padding([20, 33]), "bias": torch.randn(4, 33, 33)},
        {"mask": mask.allowed(torch.rand(2, 4, 33, 33) < 0.7)},
    ):
        m = AttentionMap(torch.randn(2, 4, 33, 8), torch.randn(2, 2, 33, 8), None, **options)
        for batch, head in ((0, 0), (1, 3), (1, 1)):
            cells = head_cells(m, batch, head, 10, 20)
            torch.testing.assert_close(cells.weights, m.pooled(10, 20)[batch, head].double(), atol=1e-6, rtol=1e-5)
