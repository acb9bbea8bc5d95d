"""A folder of images and a CSV."""

import json

import numpy as np
import pytest
from PIL import Image

from regard import InputError
from regard.training.data import images

COUNT = 45


def pixels(i):
    return np.random.default_rng(i).integers(0, 256, (4, 5), dtype=np.uint8)


def name(i):
    return f"deep/{i}.png" if i % 2 else f"{i}.png"


@pytest.fixture
def folder(tmp_path):
    folder = tmp_path / "images"
    (folder / "deep").mkdir(parents=True)
    for i in range(COUNT):
        Image.fromarray(pixels(i)).save(folder / name(i))
    return folder


ALL_ROWS = tuple(f"{name(i)},picture {i}" for i in range(COUNT))


@pytest.fixture
def table(tmp_path):
    """A function that writes a table next to the folder and returns its path."""

    def write(*rows, header="file_name,text", path="captions.csv"):
        (tmp_path / path).write_text("\n".join([header, *rows]) + "\n", encoding="utf-8")
        return tmp_path / path

    return write


def texts(rows):
    return [row["text"] for row in rows]


class TestRows:
    def test_rows_are_images_with_their_texts(self, folder, table):
        path = table(*ALL_ROWS)
        data = images([folder, path])
        assert texts(data.eval_rows) == ["picture 0", "picture 20", "picture 40"]
        assert texts(data.train) == [f"picture {i}" for i in range(COUNT) if i % 20]
        assert (data.num_rows, data.train.num_shards) == (COUNT - 3, COUNT)  # each process reads its own pictures only
        for row in [*data.train, *data.eval_rows]:
            i = int(row["text"].split()[1])
            assert row["image"].dtype == np.uint8
            assert np.array_equal(row["image"], pixels(i))
            assert row["location"] == f"{path}, line {i + 2}"
        assert data.facts["num_files"] == COUNT + 1
        assert json.loads(json.dumps(data.facts)) == data.facts

    def test_paths_and_headers_of_other_kinds(self, folder, table):
        numbered = [f"{i},{row}" for i, row in enumerate(ALL_ROWS)]
        for paths in (
            [table(*ALL_ROWS, path="upper.CSV"), str(folder)],
            [folder, table(*numbered, header="id,file,text", path="other.csv")],
            [folder, table(*ALL_ROWS, header="\ufefffile_name,text", path="bom.csv")],
            [table(*ALL_ROWS, path="images/metadata.csv").parent],
        ):
            assert texts(images(paths).train) == [f"picture {i}" for i in range(COUNT) if i % 20]

    def test_a_text_with_commas_and_line_ends(self, folder, table):
        data = images([folder, table('0.png,"a, ""b""\nc"', "2.png,é", "4.png,x")])
        rows = [*data.eval_rows, *data.train]
        assert texts(rows) == ['a, "b"\nc', "é", "x"]
        assert [row["location"][-6:] for row in rows] == ["line 2", "line 4", "line 5"]

    def test_the_captions_of_one_image_are_on_one_side(self, folder, table):
        """An image of an eval row is not trained on, under another name neither."""
        (folder / "copy.png").write_bytes((folder / "0.png").read_bytes())
        data = images([folder, table(*(f"{name(i % 9)},caption {i}" for i in range(45)), "copy.png,copied")])
        assert texts(data.eval_rows) == ["caption 0", "caption 20", "caption 40"]
        assert texts(data.train) == [f"caption {i}" for i in range(45) if i % 9 not in (0, 2, 4)]
        assert data.num_rows == 30

    def test_an_eval_file_is_a_table_or_a_folder(self, folder, table, tmp_path):
        path, eval_file = table(*ALL_ROWS), table("0.png,zero", "deep/3.png,three", path="eval.csv")
        data = images([folder, path], eval_file=eval_file)
        assert texts(data.eval_rows) == ["zero", "three"]
        assert texts(data.train) == [f"picture {i}" for i in range(COUNT) if i not in (0, 3)]
        (tmp_path / "other").mkdir()
        Image.fromarray(pixels(99)).save(tmp_path / "other" / "x.png")
        data = images([folder, path], eval_file=table("x.png,new", path="other/metadata.csv").parent)
        assert (texts(data.eval_rows), data.num_rows) == (["new"], COUNT)

    @pytest.mark.parametrize("mode", ["1", "L", "LA", "I;16", "RGB", "P", "RGBA", "CMYK"])
    def test_images_of_any_mode(self, mode, folder, table):
        image = Image.fromarray(pixels(0)).convert("RGB").convert("L" if mode == "I;16" else mode)
        if mode == "I;16":
            image = Image.fromarray(pixels(0).astype(np.uint16) * 257)
        assert image.mode == mode
        image.save(folder / "x.tiff")
        found = images([folder, table("x.tiff,x", "2.png,b")]).eval_rows[0]["image"]
        assert (found.dtype, found.shape) == (np.uint8, (4, 5) if mode in ("1", "L", "LA", "I;16") else (4, 5, 3))
        if mode not in ("1", "P"):  # which dither
            assert np.array_equal(found if found.ndim == 2 else found[..., 1], pixels(0))
        if mode == "1":
            assert set(np.unique(found)) == {0, 255}

    def test_a_photograph_is_turned_upright(self, folder, table):
        turned = Image.Exif()
        turned[0x0112] = 6  # taken with the camera on its side
        Image.fromarray(pixels(0)).save(folder / "x.png", exif=turned)
        data = images([folder, table("x.png,x", "2.png,b")])
        assert np.array_equal(data.eval_rows[0]["image"], np.rot90(pixels(0), -1))


class TestRefusals:
    @pytest.mark.parametrize(
        ("content", "message"),
        [
            ("image,caption\n0.png,a", r"csv lacks 'text'; found: 'image', 'caption'"),
            ("image,text\n0.png,a", r"csv lacks 'file_name'; found: 'image', 'text'"),
            ("file_name,text", r"csv has columns and no rows"),
            ("file_name,text\n0.png,a\nnine.png,b", r"csv, line 3: there is no image .*/nine\.png\. Its path starts"),
            ("file_name,text\n0.png,a\ndeep,b", r"csv, line 3: there is no image .*/deep"),
            ("file_name,text\n0.png,a\n2.png,", r"csv, line 3 has no text, it is ''"),
            ("file_name,text\n0.png,a\n,b", r"csv, line 3 has no file_name, it is ''"),
            ("file_name,text\n0.png,a", r"nothing is left to train on\. Of 1 row "),
        ],
    )
    def test_tables(self, content, message, folder, tmp_path):
        (tmp_path / "captions.csv").write_text(content)
        with pytest.raises(InputError, match=message):
            images([folder, tmp_path / "captions.csv"])

    @pytest.mark.parametrize("content", [b"", b"no picture", "half"])
    def test_an_image_that_cannot_be_read(self, content, folder, table):
        Image.fromarray(np.random.default_rng(0).integers(0, 256, (90, 90), dtype=np.uint8)).save(folder / "x.png")
        intact = (folder / "x.png").read_bytes()
        (folder / "x.png").write_bytes(intact[: len(intact) // 2] if content == "half" else content)
        with pytest.raises(InputError, match=r"captions\.csv, line 3: the image .*/x\.png cannot be read: "):
            images([folder, table("0.png,a", "x.png,b")])

    def test_pixels_of_32_bits(self, folder, table):
        Image.fromarray(np.ones((2, 2), dtype=np.float32)).save(folder / "x.tiff")
        with pytest.raises(InputError, match=r"x\.tiff has 32 bits for each pixel: save it with 8 or 16"):
            images([folder, table("x.tiff,a")])

    @pytest.mark.parametrize(
        ("paths", "message"),
        [
            (["captions.csv"], "captioning needs one folder of images and one CSV, in any order"),
            (["images", "captions.csv", "captions.csv"], "needs one folder of images and one CSV, in any order"),
            (["images"], r"has no metadata\.csv: name the folder and a CSV with the columns file_name"),
            (["missing", "captions.csv"], "missing: there is no such file or folder"),
            (["images", "captions.txt"], r"captions\.txt: captions are read from a \.csv"),
        ],
    )
    def test_paths(self, paths, message, folder, table, tmp_path, monkeypatch):
        monkeypatch.chdir(tmp_path)
        for path in ("captions.csv", "captions.txt"):
            table(*ALL_ROWS, path=path)
        with pytest.raises(InputError, match=message):
            images(paths)
