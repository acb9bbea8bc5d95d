"""The texts of a file: every kind, and what is refused."""

import io
import json
import sys

import pyarrow as pa
import pyarrow.parquet
import pytest

from regard import InputError
from regard.embedding import TextSource

SOME = ["the river", "", 'a "bank", a\tman', "größer 河", "  with spaces "]


def write(path, texts, column="text"):
    if path.suffix == ".txt":
        path.write_text("\n".join(texts), encoding="utf-8")  # the last line has no end
    elif path.suffix == ".jsonl":
        path.write_text("".join(json.dumps({"n": 1, column: text}) + "\n" for text in texts))
    elif path.suffix == ".tsv":
        path.write_text(f"n\t{column}\r\n" + "".join(f"1\t{text}\r\n" for text in texts), encoding="utf-8", newline="")
    elif path.suffix == ".csv":
        import csv

        with path.open("w", encoding="utf-8-sig", newline="") as stream:
            csv.writer(stream).writerows([["n", column], *([1, text] for text in texts)])
    else:
        pyarrow.parquet.write_table(pa.table({"n": [1] * len(texts), column: texts}), path, row_group_size=2)
    return path


@pytest.mark.parametrize("kind", ["txt", "jsonl", "csv", "tsv", "parquet"])
@pytest.mark.parametrize("column", [None, "spoken text"])
def test_every_text_is_read_and_counted(tmp_path, kind, column):
    if kind == "txt" and column:
        pytest.skip("lines have no columns")
    texts = [text for text in SOME if kind != "tsv" or "\t" not in text]
    path = write(tmp_path / f"x.{kind}", texts, column or "text")
    source = TextSource(str(path), column)
    assert list(source) == texts
    assert source.count() == len(texts)


def test_text_in_a_csv_may_have_several_lines(tmp_path):
    path = write(tmp_path / "x.csv", ["one\ntwo", "three"])
    assert list(TextSource(str(path))) == ["one\ntwo", "three"]
    assert TextSource(str(path)).count() == 2


def test_lines_end_where_files_say_so_and_nowhere_else(tmp_path):
    (tmp_path / "x.txt").write_bytes("\ufeffone\r\ntwo\u2028still two\x0cstill\n\nfour".encode())
    source = TextSource(str(tmp_path / "x.txt"))
    assert list(source) == ["one", "two\u2028still two\x0cstill", "", "four"]
    assert source.count() == 4


def test_standard_input_is_lines(monkeypatch):
    monkeypatch.setattr(sys, "stdin", io.TextIOWrapper(io.BytesIO("ä\nb".encode())))
    assert list(TextSource("-")) == ["ä", "b"]
    with pytest.raises(
        InputError, match="standard input can be read only once, and by one process: shards need a file"
    ):
        TextSource("-").count()


@pytest.mark.parametrize(
    ("name", "data", "message"),
    [
        ("x.txt", b"fine\nbad \xff\n", "x.txt, line 2: byte 0xff at position 9 of the file is not UTF-8"),
        ("x.jsonl", b'{"text": "a"}\n{"text": \n', "x.jsonl, line 2 is not JSON"),
        ("x.jsonl", b'{"text": "a"}\n\n', "x.jsonl, line 2 is not JSON"),
        ("x.jsonl", b"[1]\n", r"x.jsonl, line 1 is not a JSON object: '\[1\]'"),
        ("x.jsonl", b'{"words": "a"}\n', "x.jsonl, line 1 lacks 'text'; found: 'words'. Name .* with --column"),
        ("x.jsonl", b'{"text": 7}\n', "x.jsonl, line 1: 'text' is '7', which is not a text"),
        ("x.csv", b"n,words\n1,a\n", "x.csv lacks 'text'; found: 'n', 'words'. Name .* with --column"),
        ("x.csv", b"n,text\n1,a\n1\n", "x.csv, line 3 has 1 values for 2 columns: put a text with commas in"),
        ("x.csv", b'n,text\n1,"a\n', "x.csv, line 2 is not CSV: unexpected end of data"),
        ("x.csv", b"n,text\n1,\xff\n", "x.csv, line 2: byte 0xff at position 9 of the file is not UTF-8"),
        ("x.csv", b"", "x.csv is empty; it should begin with a header"),
        ("x.tsv", b"text\nfine\ntwo\tcells\n", "x.tsv, line 3 has 2 values for 1 columns"),
        ("x.parquet", b"PAR1", "x.parquet cannot be read as Parquet"),
    ],
)
def test_invalid_rows_are_refused_with_their_line(tmp_path, name, data, message):
    (tmp_path / name).write_bytes(data)
    with pytest.raises(InputError, match=message):
        list(TextSource(str(tmp_path / name)))


@pytest.mark.parametrize(
    ("column", "message"),
    [
        ({"text": ["a", None]}, "x.parquet, row 2: 'text' is 'None', which is not a text"),
        ({"text": [1, 2]}, "x.parquet, row 1: 'text' is '1', which is not a text"),
        ({"words": ["a"]}, "x.parquet lacks 'text'; found: 'words'"),
    ],
)
def test_a_column_that_holds_no_texts_is_refused(tmp_path, column, message):
    pyarrow.parquet.write_table(pa.table(column), tmp_path / "x.parquet")
    with pytest.raises(InputError, match=message):
        list(TextSource(str(tmp_path / "x.parquet")))


def test_a_damaged_parquet_file_is_refused(tmp_path):
    path = write(tmp_path / "x.parquet", [f"text {n}" * 50 for n in range(500)])
    data = bytearray(path.read_bytes())
    data[100:4000] = bytes(3900)
    path.write_bytes(data)
    with pytest.raises(InputError, match=r"x.parquet cannot be read"):
        list(TextSource(str(path)))


def test_other_files_are_refused(tmp_path):
    with pytest.raises(InputError, match=r"x.pdf: texts are read from .txt, .jsonl, .csv, .tsv, .parquet, or from -"):
        TextSource("x.pdf")
    with pytest.raises(InputError, match=r"--column name: x.txt has a text on each line, and no columns"):
        TextSource("x.txt", "name")
    for read in (list, TextSource.count):
        with pytest.raises(InputError, match=r"x.txt cannot be read: No such file"):
            read(TextSource(str(tmp_path / "x.txt")))
