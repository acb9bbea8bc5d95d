"""Rows of files: every format, and every error, with file, line and a remedy."""

import gzip
import itertools
import os

import pytest
from runs import compress, write_jsonl, write_parquet, write_tsv

from regard import InputError, progress_bar
from regard.training.data import pairs, texts
from terminals import Stream

PAIRS = [(f"source {i} é", f"target {i}") for i in range(30)]
OBJECTS = [{"target": target, "source": source, "id": 3} for source, target in PAIRS]
COLUMNS = {"source": [a for a, _ in PAIRS], "target": [b for _, b in PAIRS], "id": list(range(30))}
TEXTS = [f"text {i}\n and more" for i in range(30)]


def all_rows(data):
    return sorted([*data.train, *data.eval_rows], key=lambda row: int(row["location"].split()[-1]))


class TestFormats:
    @pytest.mark.parametrize(
        "write",
        [
            lambda folder: write_tsv(folder / "a.tsv", PAIRS),
            lambda folder: write_tsv(folder / "windows.tsv", PAIRS, end="\r\n"),
            lambda folder: write_tsv(folder / "bom.tsv", [("\ufeffsource 0 é", "target 0"), *PAIRS[1:]]),
            lambda folder: compress(write_tsv(folder / "a.tsv", PAIRS)),
            lambda folder: write_jsonl(folder / "a.jsonl", OBJECTS),
            lambda folder: compress(write_jsonl(folder / "a.jsonl", OBJECTS)),
            lambda folder: write_parquet(folder / "A.PARQUET", COLUMNS),
        ],
        ids=["tsv", "windows", "bom", "tsv.gz", "jsonl", "jsonl.gz", "parquet"],
    )
    def test_pairs(self, write, tmp_path):
        path = write(tmp_path)
        data, place = pairs([path]), "row" if path.suffix == ".PARQUET" else "line"
        wanted = [{"source": a, "target": b, "location": f"{path}, {place} {i}"} for i, (a, b) in enumerate(PAIRS, 1)]
        assert all_rows(data) == wanted
        assert data.num_rows == len(list(data.train)) == 28
        assert data.name == str(path)

    def test_texts_in_a_column(self, tmp_path):
        for path in (
            write_jsonl(tmp_path / "a.jsonl", [{"text": text} for text in TEXTS]),
            write_parquet(tmp_path / "a.parquet", {"text": TEXTS}),
        ):
            assert [row["text"] for row in all_rows(texts([path]))] == TEXTS

    def test_files_that_are_one_text(self, tmp_path):
        for name, text in (("b.md", "# B\r\n\r\n"), ("a.txt", "\tA"), ("c", "C"), ("d.json", "[1]"), ("e.tsv", "e\tf")):
            (tmp_path / name).write_bytes(text.encode())
        data = texts([str(tmp_path / "*")])
        assert data.eval_rows == [{"text": "\tA", "location": f"{tmp_path}/a.txt"}]
        assert [row["text"] for row in data.train] == ["# B\r\n\r\n", "C", "[1]", "e\tf"]
        assert texts([compress(tmp_path / "a.txt"), tmp_path / "c"]).eval_rows[0]["text"] == "\tA"

    def test_a_pattern_through_folders(self, tmp_path):
        for name in ("z/b.txt", "z/deep/a.txt", "a.txt", "no.md"):
            (tmp_path / name).parent.mkdir(parents=True, exist_ok=True)
            (tmp_path / name).write_text(name)
        data = texts([f"{tmp_path}/**/*.txt"])
        assert [row["text"] for row in [*data.eval_rows, *data.train]] == ["a.txt", "z/b.txt", "z/deep/a.txt"]
        assert texts([f"{tmp_path}/**/*"]).num_rows == 3  # folders match, and are no files

    def test_a_file_whose_name_looks_like_a_pattern(self, tmp_path):
        assert pairs([write_tsv(tmp_path / "a[1].tsv", PAIRS)]).num_rows == 28


# The time stamp would stand in the tests' names, and workers that collect at different seconds would not agree.
GZIP = gzip.compress(b"a\tb\n", mtime=0)


@pytest.mark.parametrize(
    ("name", "content", "message"),
    [
        ("a.tsv", b"", "a.tsv is empty: leave it out, or fill it"),
        ("a.tsv", b"a\tb\nno tab\n", "a.tsv, line 2 has no tab: 'no tab'. A line is a source, one tab and a target"),
        ("a.tsv", b"a\tb\nc\td\te\n", r"a.tsv, line 2 has 2 tabs: 'c\\td\\te'"),
        ("a.tsv", b"a\tb\n\td\n", "a.tsv, line 2 has no source, it is '': leave it out, or write a source"),
        ("a.tsv", b"a\tb\nc\t \n", "a.tsv, line 2 has no target, it is ' '"),
        ("a.tsv", b"a\tb\nc\xe9\td\n", "a.tsv, line 2: byte 0xe9 at position 5 of the file is not UTF-8.*iconv"),
        ("a.tsv", b"a\tb\n", "nothing is left to train on. Of 1 row at least one is an eval row.*Give more"),
        ("a.tsv", b"a\tb\na\tc\n", "Of 2 rows at least one is an eval row, and a row with the source"),
        ("a.tsv.gz", GZIP[:18], r"a\.tsv\.gz cannot be read: "),
        ("a.tsv.gz", GZIP[3:], r"a\.tsv\.gz cannot be read: "),
        ("a.jsonl", b'{"source": "c", "target": null}', r"line 1 has no target \(null\): leave the row out, or "),
        ("a.jsonl", b'{"src": "c", "tgt": "d"}', "line 1 lacks 'source', 'target'; found: 'src', 'tgt'"),
        ("a.jsonl", b"{}", "line 1 lacks 'source', 'target'; found: nothing"),
        ("a.jsonl", b'{"source": 7, "target": "d"}', "line 1: its source is '7', where a text is wanted"),
        ("a.jsonl", rb'{"source": "\ud83d", "target": ""}', r"its source holds half of a surrogate pair, '\\ud83d'"),
        ("a.parquet", {"source": ["a", "b"], "target": ["c", None]}, r"a.parquet, row 2 has no target \(null\)"),
        ("a.parquet", {"source": [], "target": []}, "a.parquet has no rows"),
        ("a.csv", b"a\tb\n", "a.csv: pairs are read from .tsv, .tsv.gz, .jsonl, .jsonl.gz, .parquet"),
        ("a.parquet.gz", b"a\tb\n", "a.parquet.gz: pairs are read from .tsv"),
    ],
)
def test_files_that_are_no_pairs(name, content, message, tmp_path):
    if isinstance(content, dict):
        write_parquet(tmp_path / name, content)
    else:
        (tmp_path / name).write_bytes(content)
    with pytest.raises(InputError, match=message):
        pairs([tmp_path / name])


class TestPaths:
    @pytest.mark.parametrize(
        ("paths", "message"),
        [
            (["missing.tsv"], r"missing\.tsv: there is no such file"),
            (["a" * 300 + ".tsv"], "cannot be read: File name too long"),
            (["*.tsv.gz"], r"\*\.tsv\.gz' matches no file \(from /"),
            (["folder"], r"is a folder where files are wanted: name them, as in 'folder/\*\*/\*\.txt'"),
            (["fifo.tsv"], "is no file that can be read more than once"),
            (["a.tsv", "a*.tsv"], r"a\.tsv is given twice \(as .*a\.tsv\)"),
        ],
    )
    def test_paths_that_are_no_files(self, paths, message, tmp_path, monkeypatch):
        monkeypatch.chdir(tmp_path)
        write_tsv(tmp_path / "a.tsv", PAIRS)
        (tmp_path / "folder").mkdir()
        os.mkfifo(tmp_path / "fifo.tsv")
        with pytest.raises(InputError, match=message):
            pairs(paths)

    def test_one_path_instead_of_a_list(self):
        with pytest.raises(TypeError, match=r"paths is a list of paths, not the one 'a\.tsv'"):
            pairs("a.tsv")

    @pytest.mark.parametrize(
        ("content", "message"),
        [
            (b" \n", r"a\.txt has no text, it is ' \\n'"),
            (b"ab\ncd\xff", r"a\.txt: byte 0xff at position 5 of the file is not UTF-8"),
            (b"A", r"a\.txt is plain text and .*b\.jsonl is of the format jsonl: give files of one"),
        ],
    )
    def test_texts_that_are_none(self, content, message, tmp_path):
        (tmp_path / "a.txt").write_bytes(content)
        paths = [tmp_path / "a.txt", write_jsonl(tmp_path / "b.jsonl", [{"text": "B"}])]
        with pytest.raises(InputError, match=message):
            texts(paths if content == b"A" else paths[:1])


class TestProgressBar:
    """Of the first pass over the data: it appears after a second, on a terminal."""

    @pytest.mark.parametrize(
        ("terminal", "seconds", "is_drawn"), [(True, 2, True), (True, 0, False), (False, 2, False)]
    )
    def test_when_it_appears(self, terminal, seconds, is_drawn, tmp_path, monkeypatch):
        """By a clock that moves on by some seconds whenever somebody looks at it."""
        stream = Stream(terminal=terminal, encoding="utf-8")
        monkeypatch.setattr("sys.stderr", stream)
        monkeypatch.setenv("TERM", "xterm")
        monkeypatch.setattr("time.monotonic", itertools.count(0.0, seconds).__next__)
        pairs([write_tsv(tmp_path / "a.tsv", PAIRS)])
        stream.flush()
        drawn = stream.buffer.getvalue().decode()
        assert ("reading the data" in drawn) == ("hashing the files" in drawn) == ("100%" in drawn) == is_drawn
        assert bool(drawn) == is_drawn

    def test_an_error_ends_it(self, monkeypatch):
        stream = Stream(terminal=True, encoding="utf-8")
        monkeypatch.setattr("sys.stderr", stream)
        monkeypatch.setattr("time.monotonic", itertools.count(0.0, 2).__next__)
        with pytest.raises(RuntimeError), progress_bar.progress_bar("going on", 3) as on_progress:  # noqa: PT012
            on_progress(1)
            raise RuntimeError
        stream.flush()
        assert b"\x1b[?25h" in stream.buffer.getvalue()  # the cursor is there again
