"""The texts of a file: every kind, and what is refused."""

import csv
import io
import json
import sys

import pyarrow as pa
import pyarrow.parquet
import pytest

from grids import grid
from regard import InputError
from regard.embedding import TextSource

TEXTS = ["the river", "", 'a "bank", a\tman', "größer 河", "  with spaces ", "one\ntwo"]


def write(path, texts, column):
    """Texts in the second of two columns."""
    if path.suffix == ".txt":
        path.write_text("\n".join(texts), encoding="utf-8")  # the last line has no end
    elif path.suffix == ".jsonl":
        path.write_text("".join(json.dumps({"n": 1, column: text}) + "\n" for text in texts))
    elif path.suffix == ".tsv":
        path.write_text(f"n\t{column}\r\n" + "".join(f"1\t{text}\r\n" for text in texts), encoding="utf-8", newline="")
    elif path.suffix == ".csv":
        with path.open("w", encoding="utf-8-sig", newline="") as stream:
            csv.writer(stream).writerows([["n", column], *([1, text] for text in texts)])
    else:
        pyarrow.parquet.write_table(pa.table({"n": [1] * len(texts), column: texts}), path, row_group_size=2)
    return path


@grid(
    kind=["txt", "jsonl", "csv", "tsv", "parquet"],
    column=[None, "spoken text"],
    where=lambda kind, column: kind != "txt" or column is None,
)
def test_every_text_is_read_and_counted(tmp_path, kind, column):
    cannot_hold = {"tsv": "\t\n", "txt": "\n"}.get(kind, "")
    texts = [text for text in TEXTS if not set(text) & set(cannot_hold)]
    source = TextSource(str(write(tmp_path / f"x.{kind}", texts, column or "text")), column)
    assert list(source) == texts
    assert source.count() == len(texts)


def test_lines_end_where_files_say_so_and_nowhere_else(tmp_path):
    (tmp_path / "x.txt").write_bytes("\ufeffone\r\ntwo\u2028still two\x0cstill\n\nfour".encode())
    source = TextSource(str(tmp_path / "x.txt"))
    assert list(source) == ["one", "two\u2028still two\x0cstill", "", "four"]
    assert source.count() == 4


def test_standard_input_is_lines_that_are_read_once(monkeypatch):
    monkeypatch.setattr(sys, "stdin", io.TextIOWrapper(io.BytesIO("ä\nb".encode())))
    assert list(TextSource("-")) == ["ä", "b"]
    with pytest.raises(InputError, match="can be read only once, and by one process: shards need a file"):
        TextSource("-").count()


def damaged_parquet(path):
    write(path, [f"text {n}" * 50 for n in range(500)], "text")
    data = bytearray(path.read_bytes())
    data[100:4000] = bytes(3900)
    path.write_bytes(data)


@pytest.mark.parametrize(
    ("name", "content", "message"),
    [
        ("x.txt", b"fine\nbad \xff\n", "x.txt, line 2: byte 0xff at position 9 of the file is not UTF-8"),
        ("x.jsonl", b'{"text": "a"}\n{"text": \n', "x.jsonl, line 2 is not JSON"),
        ("x.jsonl", b"[" * 100_000, "x.jsonl, line 1 is nested too deeply"),
        ("x.jsonl", b"[1]\n", r"x.jsonl, line 1 is not a JSON object: '\[1\]'"),
        ("x.jsonl", b'{"words": "a"}\n', "x.jsonl, line 1 lacks 'text'; found: 'words'. Name .* with column=NAME"),
        ("x.jsonl", b'{"text": 7}\n', "x.jsonl, line 1: 'text' is '7', which is not a text"),
        ("x.csv", b"n,words\n1,a\n", "x.csv lacks 'text'; found: 'n', 'words'. Name .* with column=NAME"),
        ("x.csv", b"n,text\n1,a\n1\n", "x.csv, line 3 has 1 values for 2 columns: put a text with commas in"),
        ("x.csv", b'n,text\n1,"a\n', "x.csv, line 2 is not CSV: unexpected end of data"),
        ("x.csv", b"", "x.csv is empty; it should begin with a header"),
        ("x.tsv", b"text\nfine\ntwo\tcells\n", "x.tsv, line 3 has 2 values for 1 columns"),
        ("x.parquet", b"PAR1", "x.parquet cannot be read as Parquet"),
        ("x.parquet", {"text": ["a", None]}, "x.parquet, row 2: 'text' is 'None', which is not a text"),
        ("x.parquet", damaged_parquet, "x.parquet cannot be read"),
    ],
)
def test_invalid_rows_are_refused_with_their_line(tmp_path, name, content, message):
    if isinstance(content, dict):
        pyarrow.parquet.write_table(pa.table(content), tmp_path / name)
    elif isinstance(content, bytes):
        (tmp_path / name).write_bytes(content)
    else:
        content(tmp_path / name)
    with pytest.raises(InputError, match=message):
        list(TextSource(str(tmp_path / name)))


def test_other_files_are_refused(tmp_path):
    with pytest.raises(InputError, match=r"x.pdf: texts are read from .txt, .jsonl, .csv, .tsv, .parquet, or from -"):
        TextSource("x.pdf")
    with pytest.raises(InputError, match=r"column=name: x.txt has a text on each line, and no columns"):
        TextSource("x.txt", "name")
    for read in (list, TextSource.count):
        with pytest.raises(InputError, match=r"x.txt cannot be read: No such file"):
            read(TextSource(str(tmp_path / "x.txt")))
