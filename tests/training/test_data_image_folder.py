"""A folder of images and a CSV."""

import json

import numpy as np
import pytest
from datasets.distributed import split_dataset_by_node
from PIL import Image

from regard import InputError
from regard.training.data import images

COUNT = 45


def pixels(i):
    return np.random.default_rng(i).integers(0, 256, (4, 5), dtype=np.uint8)


@pytest.fixture
def folder(tmp_path):
    folder = tmp_path / "images"
    (folder / "deep").mkdir(parents=True)
    for i in range(COUNT):
        Image.fromarray(pixels(i)).save(folder / name(i))
    return folder


def name(i):
    return f"deep/{i}.png" if i % 2 else f"{i}.png"


def table(path, rows=None, header="file_name,text"):
    rows = rows if rows is not None else [f"{name(i)},picture {i}" for i in range(COUNT)]
    path.write_text("\n".join([header, *rows]) + "\n", encoding="utf-8")
    return path


def texts(rows):
    return [row["text"] for row in rows]


def test_rows(folder, tmp_path):
    path = table(tmp_path / "captions.csv")
    data = images([folder, path])
    assert texts(data.eval_rows) == ["picture 0", "picture 20", "picture 40"]
    assert texts(data.train) == [f"picture {i}" for i in range(COUNT) if i % 20]
    assert data.num_rows == COUNT - 3
    for row in [*data.train, *data.eval_rows]:
        i = int(row["text"].split()[1])
        assert row["image"].dtype == np.uint8
        assert np.array_equal(row["image"], pixels(i))
        assert row["location"] == f"{path}, line {i + 2}"
    assert data.facts["num_files"] == COUNT + 1
    assert json.loads(json.dumps(data.facts)) == data.facts


@pytest.mark.parametrize("way", ["the other order", "metadata.csv", "another header", "bom"])
def test_other_arguments(way, folder, tmp_path):
    rows = [f"{i},{name(i)},picture {i}" for i in range(COUNT)]
    paths = {
        "the other order": lambda: [table(tmp_path / "captions.CSV"), str(folder)],
        "metadata.csv": lambda: table(folder / "metadata.csv") and [folder],
        "another header": lambda: [folder, table(tmp_path / "captions.csv", rows, header="id,file,text")],
        "bom": lambda: [folder, table(tmp_path / "captions.csv", header="\ufefffile_name,text")],
    }[way]()
    data = images(paths)
    assert texts(data.train) == [f"picture {i}" for i in range(COUNT) if i % 20]


def test_a_text_with_commas_and_line_ends(folder, tmp_path):
    path = table(tmp_path / "captions.csv", ['0.png,"a, ""b""\nc"', "2.png,é", "4.png,x"])
    data = images([folder, path])
    assert texts([*data.eval_rows, *data.train]) == ['a, "b"\nc', "é", "x"]
    assert [row["location"][-6:] for row in [*data.eval_rows, *data.train]] == ["line 2", "line 4", "line 5"]


def test_the_captions_of_one_image_are_on_one_side(folder, tmp_path):
    """An image of an eval row is not trained on, under another name neither."""
    (folder / "copy.png").write_bytes((folder / "0.png").read_bytes())
    rows = [f"{name(i % 9)},caption {i}" for i in range(45)] + ["copy.png,copied"]
    data = images([folder, table(tmp_path / "captions.csv", rows)])
    assert texts(data.eval_rows) == ["caption 0", "caption 20", "caption 40"]
    assert texts(data.train) == [f"caption {i}" for i in range(45) if i % 9 not in (0, 2, 4)]
    assert data.num_rows == 30


def test_two_processes_have_all_rows_once(folder, tmp_path):
    data = images([folder, table(tmp_path / "captions.csv")])
    shares = [texts(split_dataset_by_node(data.train, rank, 3)) for rank in range(3)]
    assert sorted(text for share in shares for text in share) == sorted(texts(data.train))
    assert list(map(len, shares)) == [14, 14, 14]
    assert data.train.num_shards == COUNT  # so that each reads its own pictures and no others


def test_an_eval_file(folder, tmp_path):
    path = table(tmp_path / "captions.csv")
    eval_file = table(tmp_path / "eval.csv", ["0.png,zero", "deep/3.png,three"])
    data = images([folder, path], eval_file=eval_file)
    assert texts(data.eval_rows) == ["zero", "three"]
    assert texts(data.train) == [f"picture {i}" for i in range(COUNT) if i not in (0, 3)]
    other = tmp_path / "other"
    other.mkdir()
    Image.fromarray(pixels(99)).save(other / "x.png")
    table(other / "metadata.csv", ["x.png,new"])
    data = images([folder, path], eval_file=other)
    assert (texts(data.eval_rows), data.num_rows) == (["new"], COUNT)


@pytest.mark.parametrize(
    ("mode", "shape"),
    [("1", (4, 5)), ("L", (4, 5)), ("LA", (4, 5)), ("I;16", (4, 5)), ("RGB", (4, 5, 3)), ("P", (4, 5, 3)),
     ("RGBA", (4, 5, 3)), ("CMYK", (4, 5, 3))],
)  # fmt: skip
def test_image_modes(mode, shape, folder, tmp_path):
    grey = Image.fromarray(pixels(0))
    if mode == "I;16":
        Image.fromarray(pixels(0).astype(np.uint16) * 257).save(folder / "x.tiff")
    else:
        grey.convert("RGB").convert(mode).save(folder / "x.tiff")
    with Image.open(folder / "x.tiff") as opened:
        assert opened.mode == mode
    data = images([folder, table(tmp_path / "captions.csv", ["x.tiff,x", "2.png,b"])])
    found = data.eval_rows[0]["image"]
    assert (found.shape, found.dtype) == (shape, np.uint8)
    wanted = np.where(pixels(0) > 127, 255, 0) if mode == "1" else pixels(0)
    if mode not in ("1", "P"):  # which dither
        assert np.array_equal(found if found.ndim == 2 else found[..., 1], wanted)


def test_a_photograph_is_turned_upright(folder, tmp_path):
    turned = Image.Exif()
    turned[0x0112] = 6  # taken with the camera on its side
    Image.fromarray(pixels(0)).save(folder / "x.png", exif=turned)
    data = images([folder, table(tmp_path / "captions.csv", ["x.png,x", "2.png,b"])])
    assert np.array_equal(data.eval_rows[0]["image"], np.rot90(pixels(0), -1))


class TestRefusals:
    @pytest.mark.parametrize(
        ("rows", "header", "message"),
        [
            (["0.png,a"], "image,caption", r"csv lacks 'text'; found: 'image', 'caption'"),
            ([], "file_name,text", r"csv has columns and no rows"),
            (["0.png,a", "nine.png,b"], None, r"csv, line 3: there is no image .*/nine\.png\. Its path starts at the"),
            (["0.png,a", "deep,b"], None, r"csv, line 3: there is no image .*/deep"),
            (["0.png,a", "2.png,"], None, r"csv, line 3 has no text, it is ''"),
            (["0.png,a", ",b"], None, r"csv, line 3 has no file_name, it is ''"),
            (["0.png,a", "2.png,b, c"], None, r"csv, line 3 has 3 values for 2 columns: put a text with commas in"),
            (["0.png,a", "2.png"], None, r"csv, line 3 has 1 values for 2 columns"),
            (["0.png,a", '2.png,"b" c'], None, r"csv, line 3 is not CSV"),
            (["0.png,a"], None, r"nothing is left to train on\. Of 1 row "),
        ],
    )
    def test_tables(self, rows, header, message, folder, tmp_path):
        path = table(tmp_path / "captions.csv", rows, header=header or "file_name,text")
        with pytest.raises(InputError, match=message):
            images([folder, path])

    def test_a_table_that_is_not_utf_8(self, folder, tmp_path):
        (tmp_path / "captions.csv").write_bytes(b"file_name,text\n0.png,caf\xe9\n")
        with pytest.raises(
            InputError, match=r"captions\.csv, line 2: byte 0xe9 at position 24 of the file is not UTF-8"
        ):
            images([folder, tmp_path / "captions.csv"])

    def test_an_empty_table(self, folder, tmp_path):
        (tmp_path / "captions.csv").touch()
        with pytest.raises(InputError, match=r"captions\.csv is empty"):
            images([folder, tmp_path / "captions.csv"])

    @pytest.mark.parametrize("content", [b"", b"no picture", "half"])
    def test_an_image_that_cannot_be_read(self, content, folder, tmp_path):
        Image.fromarray(np.random.default_rng(0).integers(0, 256, (90, 90), dtype=np.uint8)).save(folder / "x.png")
        whole = (folder / "x.png").read_bytes()
        (folder / "x.png").write_bytes(whole[: len(whole) // 2] if content == "half" else content)
        path = table(tmp_path / "captions.csv", ["0.png,a", "x.png,b"])
        with pytest.raises(InputError, match=r"captions\.csv, line 3: the image .*/x\.png cannot be read: "):
            images([folder, path])

    def test_pixels_of_32_bits(self, folder, tmp_path):
        Image.fromarray(np.ones((2, 2), dtype=np.float32)).save(folder / "x.tiff")
        with pytest.raises(InputError, match=r"x\.tiff has 32 bits for each pixel: save it with 8 or 16"):
            images([folder, table(tmp_path / "captions.csv", ["x.tiff,a"])])

    def test_paths(self, folder, tmp_path):
        path = table(tmp_path / "captions.csv")
        with pytest.raises(InputError, match=r"one folder of images and one CSV, in any order"):
            images([path])
        with pytest.raises(InputError, match=r"one folder of images and one CSV, in any order"):
            images([folder, path, path])
        with pytest.raises(
            InputError, match=r"has no metadata\.csv: name the folder and a CSV with the columns file_name"
        ):
            images([folder])
        with pytest.raises(InputError, match=r"missing: there is no such file or folder"):
            images([tmp_path / "missing", path])
        with pytest.raises(InputError, match=r"captions\.txt: captions are read from a \.csv"):
            images([folder, table(tmp_path / "captions.txt")])
