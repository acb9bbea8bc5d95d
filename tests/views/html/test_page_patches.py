"""Which tokens a page paints as image: what the caller says, what the recording knows, or none."""

import pytest
import torch
from PIL import Image

import regard
from regard import InputError
from regard.lens import AttentionMap
from regard.lens.maps.patches import AttentionPatches, ImagePatches
from regard.views.html.patches import PagePatches
from views.html.decoded import decode

PICTURE = Image.new("RGB", (8, 8), "teal")


def recording(**attentions):
    """Attentions by path, each of a kind, queries, keys, and maybe its patches and batch rows."""
    seen = regard.Recording()
    for path, (kind, queries, keys, patches, batch) in attentions.items():
        q, k = torch.randn(batch, 1, queries, 4), torch.randn(batch, 1, keys, 4)
        shape = (batch, 1, queries, keys)
        name = path.replace("_", ".")
        seen.add(name, AttentionMap(q, k, k), shape=shape, mask=None, kernel="", kind=kind, layer=0, patches=patches)
    return seen


def known(kind, num_queries, num_keys, *, batch=1, **sides):
    return kind, num_queries, num_keys, AttentionPatches(**sides), batch


def unknown(kind, queries, keys):
    return known(kind, queries, keys)


def grid(first, rows, columns, *, batch=0, image=0):
    return ImagePatches(batch, image, first, rows, columns, columns)


def placed(seen, **options):
    """(first, rows, columns) of the queries and of the keys, by path."""
    patches = PagePatches(seen, options.pop("batch", 0), **options)
    return {path: tuple(side and tuple(side.values())[:3] for side in patches.facts(path).values()) for path in seen}


TOWER = unknown("self", 17, 17)
UNET = recording(up_0_own=unknown("self", 24, 24), up_0_cross=unknown("cross", 24, 24))
TEXT = recording(text_0_own=unknown("self", 20, 20))
GRID_4 = (grid(1, 4, 4),)
KNOWN = recording(tower_0_own=known("self", 17, 17, queries=GRID_4, keys=GRID_4), text_0_own=unknown("self", 17, 17))


@pytest.mark.parametrize(
    ("seen", "patches", "expected"),
    [
        (recording(tower=TOWER), None, {"tower": (None, None)}),
        (recording(tower=TOWER), (4, 4), {"tower": ((1, 4, 4),) * 2}),
        (recording(tower=TOWER), (0, 4, 4), {"tower": ((0, 4, 4),) * 2}),
        (KNOWN, None, {"tower.0.own": ((1, 4, 4),) * 2, "text.0.own": (None, None)}),
        (KNOWN, (4, 4), {"tower.0.own": ((1, 4, 4),) * 2, "text.0.own": (None, None)}),
        (KNOWN, (2, 8), {"tower.0.own": ((1, 2, 8),) * 2, "text.0.own": (None, None)}),
        (KNOWN, {"tower": None}, {"tower.0.own": (None, None), "text.0.own": (None, None)}),
        (KNOWN, {"text": (2, 3, 5)}, {"tower.0.own": ((1, 4, 4),) * 2, "text.0.own": ((2, 3, 5),) * 2}),
        (UNET, {"self": (6, 4)}, {"up.0.own": ((0, 6, 4),) * 2, "up.0.cross": (None, None)}),
        (UNET, {"cross": {"queries": (6, 4)}}, {"up.0.own": (None, None), "up.0.cross": ((0, 6, 4), None)}),
        (recording(cross=unknown("cross", 5, 17)), (4, 4), {"cross": (None, (1, 4, 4))}),
        (recording(cross=unknown("cross", 16, 77)), {"cross": (4, 4)}, {"cross": ((0, 4, 4), None)}),
    ],
)
def test_what_the_caller_says_comes_before_what_the_recording_knows(seen, patches, expected):
    assert placed(seen, patches=patches) == expected


@pytest.mark.usefixtures("as_a_user_runs_it")
@pytest.mark.parametrize(
    ("seen", "patches", "error", "message"),
    [
        (TEXT, (3, 3), ValueError, r"patches=\(3, 3\) fit no attention without doubt: text.0.own has 20 queries x 20"),
        (UNET, (6, 4), ValueError, "fit no attention without doubt"),
        (UNET, {"cross": (6, 4)}, ValueError, r'fits the queries and the keys .* say which by \{.cross.: \{"keys"'),
        (UNET, {"down": (6, 4)}, ValueError, "no attention has that path or a part of that name"),
        (TEXT, {"text": (3, 3)}, ValueError, "text.0.own has 20 queries x 20 keys"),
        (TEXT, {"text": (9, 3, 4)}, ValueError, "text.0.own has 20 queries x 20 keys"),
        (TEXT, {"text": {"rows": 3}}, TypeError, '"queries" and "keys" may be told apart'),
        (TEXT, (3, 0), ValueError, "at least one row and one column"),
        (TEXT, 4, TypeError, r"patches=4: \(rows, columns\), \(first token, rows, columns\)"),
        (TEXT, (2.0, 2), TypeError, r"patches=\(2.0, 2\)"),
    ],
)
def test_patches_that_no_attention_has_are_refused(seen, patches, error, message):
    with pytest.raises(error, match=message):
        seen.to_html(image=PICTURE, patches=patches)


def two_texts():
    """The first text has two images, the second one; a tower has a row for each."""
    rows = ((0, 0, 1), (0, 1, 6), (1, 2, 3))
    text = tuple(grid(first, 2, 2, batch=row, image=image) for row, image, first in rows)
    tower = tuple(grid(0, 2, 2, batch=image, image=image) for image in range(3))
    return recording(
        tower=known("self", 4, 4, batch=3, queries=tower, keys=tower),
        text=known("self", 12, 12, batch=2, queries=text, keys=text),
    )


@pytest.mark.parametrize(("batch", "image", "first", "row"), [(0, 0, 1, 0), (0, 1, 6, 1), (1, 0, 3, 2)])
def test_of_several_images_one_is_painted_everywhere(batch, image, first, row):
    seen = two_texts()
    assert placed(seen, batch=batch, image_index=image)["text"] == ((first, 2, 2),) * 2
    patches = PagePatches(seen, batch, image)
    assert (patches.row("tower"), patches.row("text")) == (row, batch)


def test_a_page_says_which_of_several_images_it_shows(node):
    notes = decode(node, two_texts().to_html(image=PICTURE, image_index=1)).facts["notes"]
    assert "This is image 1 of the 2 of text 0: to_html(image=..., image_index=...) shows another." in notes


@pytest.mark.parametrize(
    ("labels", "named"),
    [
        (["<s>", "<i>", "<i>", "<i>", "<i>", "hi"], ["<s>", "<i> 0,0", "<i> 0,1", "<i> 1,0", "<i> 1,1", "hi"]),
        (["<s>", "a", "b", "c", "d", "hi"], ["<s>", "a", "b", "c", "d", "hi"]),
    ],
)
def test_image_tokens_of_one_label_say_which_patch_they_are(node, labels, named):
    patches = (grid(1, 2, 2),)
    seen = recording(text=known("self", 6, 6, queries=patches, keys=patches))
    seen.label(labels)
    assert [text["tokens"] for text in decode(node, seen.to_html()).facts["texts"]] == [named]


def test_a_file_that_is_no_image_is_named(tmp_path):
    (tmp_path / "notes.txt").write_text("no image")
    with pytest.raises(InputError, match=r"notes\.txt': no PNG, JPEG, GIF or WebP image"):
        two_texts().to_html(image=tmp_path / "notes.txt")


def test_an_image_that_the_text_has_not_is_refused():
    with pytest.raises(IndexError, match="image_index=2: text 0 has 2 images, counted from 0"):
        two_texts().to_html(image=PICTURE, image_index=2)
