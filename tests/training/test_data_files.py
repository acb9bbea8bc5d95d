"""Rows of files: every format, and every error, with file, line and a remedy."""

import os

import pyarrow
import pytest
from data_files import PAIRS, jsonl, parquet, tsv, zipped

from regard import InputError
from regard.training.data import pairs, texts


def all_rows(data):
    return sorted([*data.train, *data.eval_rows], key=lambda row: int(row["location"].split()[-1]))


class TestFormats:
    def columns(self):
        return {"source": [a for a, _ in PAIRS], "target": [b for _, b in PAIRS], "id": list(range(30))}

    @pytest.mark.parametrize("kind", ["tsv", "windows", "bom", "tsv.gz", "jsonl", "jsonl.gz", "parquet"])
    def test_pairs(self, kind, tmp_path):
        objects = [{"target": b, "source": a, "id": 3} for a, b in PAIRS]
        path = {
            "tsv": lambda: tsv(tmp_path / "a.tsv"),
            "windows": lambda: tsv(tmp_path / "a.tsv", end="\r\n"),
            "bom": lambda: tsv(tmp_path / "a.tsv", [("\ufeffsource 0 é", "target 0"), *PAIRS[1:]]),
            "tsv.gz": lambda: zipped(tsv(tmp_path / "a.tsv")),
            "jsonl": lambda: jsonl(tmp_path / "a.jsonl", objects),
            "jsonl.gz": lambda: zipped(jsonl(tmp_path / "a.jsonl", objects)),
            "parquet": lambda: parquet(tmp_path / "A.PARQUET", self.columns()),
        }[kind]()
        data = pairs([path])
        place = "row" if kind == "parquet" else "line"
        wanted = [{"source": a, "target": b, "location": f"{path}, {place} {i}"} for i, (a, b) in enumerate(PAIRS, 1)]
        assert all_rows(data) == wanted
        assert data.num_rows == len(list(data.train)) == 28
        assert data.name == str(path)

    @pytest.mark.parametrize("kind", ["jsonl", "parquet"])
    def test_texts_in_a_column(self, kind, tmp_path):
        said = [f"text {i}\n and more" for i in range(30)]
        if kind == "jsonl":
            path = jsonl(tmp_path / "a.jsonl", [{"text": text} for text in said])
        else:
            path = parquet(tmp_path / "a.parquet", {"text": said})
        assert [row["text"] for row in all_rows(texts([path]))] == said

    @pytest.mark.parametrize("strings", [pyarrow.large_string(), pyarrow.dictionary(pyarrow.int32(), pyarrow.string())])
    def test_strings_of_other_kinds_in_parquet(self, strings, tmp_path):
        said = [f"text {i % 7}" for i in range(30)]
        path = parquet(tmp_path / "a.parquet", {"text": pyarrow.array(said).cast(strings)})
        data = texts([path])
        assert [row["text"] for row in data.train] == [text for text in said if text not in ("text 0", "text 6")]

    def test_files_that_are_one_text(self, tmp_path):
        for name, said in (("b.md", "# B\r\n\r\n"), ("a.txt", "\tA"), ("c", "C"), ("d.json", "[1]"), ("e.tsv", "e\tf")):
            (tmp_path / name).write_bytes(said.encode())
        data = texts([str(tmp_path / "*")])
        assert data.eval_rows == [{"text": "\tA", "location": f"{tmp_path}/a.txt"}]
        assert [row["text"] for row in data.train] == ["# B\r\n\r\n", "C", "[1]", "e\tf"]
        packed = texts([zipped(tmp_path / "a.txt"), tmp_path / "c"])
        assert packed.eval_rows[0]["text"] == "\tA"

    def test_a_pattern_through_folders(self, tmp_path):
        for name in ("z/b.txt", "z/deep/a.txt", "a.txt", "no.md"):
            (tmp_path / name).parent.mkdir(parents=True, exist_ok=True)
            (tmp_path / name).write_text(name)
        data = texts([f"{tmp_path}/**/*.txt"])
        assert [row["text"] for row in [*data.eval_rows, *data.train]] == ["a.txt", "z/b.txt", "z/deep/a.txt"]
        assert texts([f"{tmp_path}/**/*"]).num_rows == 3  # folders match, and are no files

    def test_a_file_whose_name_looks_like_a_pattern(self, tmp_path):
        path = tsv(tmp_path / "a[1].tsv")
        assert pairs([path]).num_rows == 28


@pytest.mark.parametrize(
    ("content", "message"),
    [
        (b"", "a.tsv is empty: leave it out, or fill it"),
        (b"a\tb\nno tab\n", "a.tsv, line 2 has no tab: 'no tab'. A line is a source, one tab and a target"),
        (b"a\tb\n\nc\td\n", "a.tsv, line 2 has no tab: ''"),
        (b"a\tb\nc\td\te\n", r"a.tsv, line 2 has 2 tabs: 'c\\td\\te'"),
        (b"a\tb\n\td\n", "a.tsv, line 2 has no source, it is '': leave it out, or write a source"),
        (b"a\tb\nc\t \n", "a.tsv, line 2 has no target, it is ' '"),
        (b"a\tb\nc\xe9\td\n", "a.tsv, line 2: byte 0xe9 at position 5 of the file is not UTF-8.*iconv"),
        ("a\tb\n".encode("utf-16"), "a.tsv, line 1: byte 0xff at position 0"),
        (b"a\tb\n", "nothing is left to train on. Of 1 row at least one is an eval row.*Give more"),
        (b"a\tb\na\tc\n", "Of 2 rows at least one is an eval row, and a row with the source"),
    ],
)
def test_pairs_that_are_none(content, message, tmp_path):
    (tmp_path / "a.tsv").write_bytes(content)
    with pytest.raises(InputError, match=message):
        pairs([tmp_path / "a.tsv"])


@pytest.mark.parametrize(
    ("line", "message"),
    [
        ('{"source": "c", "target": null}', r"line 2 has no target \(null\): leave the row out, or write a target"),
        ('{"source": "c"}', "line 2 lacks 'target'; found: 'source'"),
        ('{"src": "c", "tgt": "d"}', "line 2 lacks 'source', 'target'; found: 'src', 'tgt'"),
        ("{}", "line 2 lacks 'source', 'target'; found: nothing"),
        ('["c", "d"]', r"line 2 is not a JSON object: '\[\"c\", \"d\"\]'. Each line is one object"),
        ("", "line 2 is not JSON: .* Each line is one object with 'source', 'target'"),
        ('{"source": "c",', "line 2 is not JSON: "),
        ("[" * 100_000, "line 2 is nested too deeply"),
        ('{"source": 7, "target": "d"}', "line 2: its source is '7', where a text is wanted"),
        ('{"source": {"en": "c"}, "target": "d"}', "line 2: its source is .*, where a text is wanted"),
        (r'{"source": "\ud83d", "target": "d"}', r"line 2: its source holds half of a surrogate pair, '\\ud83d'"),
    ],
)
def test_lines_that_are_no_pair(line, message, tmp_path):
    path = tmp_path / "a.jsonl"
    path.write_text('{"source": "a", "target": "b"}\n' + line + "\n")
    with pytest.raises(InputError, match=f"a.jsonl, {message}"):
        pairs([path])


@pytest.mark.parametrize(
    ("columns", "message"),
    [
        ({"source": ["a"], "label": [1]}, "a.parquet lacks 'target'; found: 'source', 'label'"),
        ({"source": ["a", "b"], "target": ["c", None]}, r"a.parquet, row 2 has no target \(null\)"),
        ({"source": [1, 2], "target": ["c", "d"]}, "a.parquet, row 1: its source is '1', where a text is wanted"),
        ({"source": ["a", ""], "target": ["c", "d"]}, "a.parquet, row 2 has no source"),
        ({"source": pyarrow.array([], "string"), "target": pyarrow.array([], "string")}, "a.parquet has no rows"),
    ],
)
def test_tables_that_are_no_pairs(columns, message, tmp_path):
    with pytest.raises(InputError, match=message):
        pairs([parquet(tmp_path / "a.parquet", columns)])


class TestDamage:
    def test_parquet(self, tmp_path):
        path = tmp_path / "a.parquet"
        path.write_text("no Parquet")
        with pytest.raises(InputError, match=r"a\.parquet cannot be read as Parquet: "):
            pairs([path])

    def test_parquet_in_the_middle(self, tmp_path):
        path = parquet(tmp_path / "a.parquet", {"source": [f"{i}" * 90 for i in range(900)], "target": ["b"] * 900})
        content = bytearray(path.read_bytes())
        content[len(content) // 8 : len(content) // 2] = bytes(len(content) // 2 - len(content) // 8)
        path.write_bytes(content)
        with pytest.raises(InputError, match=r"a\.parquet"):
            pairs([path])

    @pytest.mark.parametrize("kept", [slice(0, 40), slice(3, None)])
    def test_gzip(self, kept, tmp_path):
        path = zipped(tsv(tmp_path / "a.tsv"))
        path.write_bytes(path.read_bytes()[kept])
        with pytest.raises(InputError, match=r"a\.tsv\.gz cannot be read: "):
            pairs([path])

    @pytest.mark.skipif(os.geteuid() == 0, reason="root may read everything")
    def test_a_file_that_may_not_be_read(self, tmp_path):
        path = tsv(tmp_path / "a.tsv")
        path.chmod(0)
        with pytest.raises(InputError, match=r"a\.tsv cannot be read: Permission denied"):
            pairs([path])


class TestPaths:
    def test_nothing_there(self, tmp_path):
        with pytest.raises(InputError, match=r"missing\.tsv: there is no such file"):
            pairs([tmp_path / "missing.tsv"])
        with pytest.raises(InputError, match="cannot be read: File name too long"):
            pairs(["a" * 300 + ".tsv"])

    def test_a_pattern_that_matches_nothing(self, tmp_path):
        with pytest.raises(InputError, match=r"\*\.tsv' matches no file \(from /"):
            pairs([tmp_path / "*.tsv"])

    def test_a_folder(self, tmp_path):
        with pytest.raises(InputError, match=r"is a folder where files are wanted: name them, as in '.*/\*\*/\*\.txt'"):
            texts([tmp_path])

    def test_what_can_be_read_only_once(self, tmp_path):
        os.mkfifo(tmp_path / "a.tsv")
        with pytest.raises(InputError, match="is no file that can be read more than once"):
            pairs([tmp_path / "a.tsv"])

    @pytest.mark.parametrize("name", ["a.csv", "a.json", "a", "a.parquet.gz"])
    def test_an_unknown_ending(self, name, tmp_path):
        with pytest.raises(
            InputError, match=rf"{name}: pairs are read from .tsv, .tsv.gz, .jsonl, .jsonl.gz, .parquet"
        ):
            pairs([tsv(tmp_path / name)])

    def test_files_of_two_kinds(self, tmp_path):
        (tmp_path / "a.txt").write_text("A")
        paths = [tmp_path / "a.txt", jsonl(tmp_path / "b.jsonl", [{"text": "B"}])]
        with pytest.raises(
            InputError, match=r"a\.txt is plain text and .*b\.jsonl is of the format jsonl: give files of one"
        ):
            texts(paths)

    def test_a_file_given_twice(self, tmp_path):
        path = tsv(tmp_path / "a.tsv")
        with pytest.raises(InputError, match=r"a\.tsv is given twice \(as .*a\.tsv\)"):
            pairs([path, tmp_path / "*.tsv"])

    def test_one_path_instead_of_a_list(self, tmp_path):
        with pytest.raises(TypeError, match=r"paths is a list of paths, not the one '.*a\.tsv'"):
            pairs(str(tsv(tmp_path / "a.tsv")))

    def test_a_text_of_white_space(self, tmp_path):
        (tmp_path / "a.txt").write_text(" \n")
        with pytest.raises(InputError, match=r"a\.txt has no text, it is ' \\n'"):
            texts([tmp_path / "a.txt"])

    def test_a_text_that_is_not_utf_8(self, tmp_path):
        (tmp_path / "a.txt").write_bytes(b"ab\ncd\xff")
        with pytest.raises(InputError, match=r"a\.txt: byte 0xff at position 5 of the file is not UTF-8"):
            texts([tmp_path / "a.txt"])
