"""The eval rows, the training rows, and the facts that identify data."""

import json

import pytest
from data_files import jsonl, tsv
from datasets.distributed import split_dataset_by_node
from hypothesis import given
from hypothesis import strategies as st

from regard import InputError
from regard.training.data import MAX_EVAL_ROWS, pairs, split, texts


def sources(rows):
    return [row["source"] for row in rows]


def test_every_twentieth_row(tmp_path):
    data = pairs([tsv(tmp_path / "a.tsv", [(f"{i}", "b") for i in range(101)])])
    assert sources(data.eval_rows) == ["0", "20", "40", "60", "80", "100"]
    assert sources(data.train) == [f"{i}" for i in range(101) if i % 20]
    assert data.num_rows == 95
    assert data.facts["split"].startswith("eval rows: of each 20 rows the first")


def test_the_rows_of_several_files_are_counted_on(tmp_path):
    files = [tsv(tmp_path / f"{n}.tsv", [(f"{n} {i}", "b") for i in range(15)]) for n in range(3)]
    data = pairs(files)
    assert sources(data.eval_rows) == ["0 0", "1 5", "2 10"]
    assert data.num_rows == len(list(data.train)) == 42


@pytest.mark.parametrize(("rows", "step"), [(2_000, 20), (2_001, 40), (4_001, 80), (9_000, 160)])
def test_at_most_max_eval_rows(rows, step, tmp_path, monkeypatch):
    assert MAX_EVAL_ROWS == split.MAX_EVAL_ROWS == 2_000
    monkeypatch.setattr(split, "MAX_EVAL_ROWS", 100)
    data = pairs([tsv(tmp_path / "a.tsv", [(f"{i}", "b") for i in range(rows)])])
    assert sources(data.eval_rows) == [f"{i}" for i in range(0, rows, step)]
    assert len(data.eval_rows) <= 100
    assert data.num_rows == rows - len(data.eval_rows)
    assert f"of each {step} rows" in data.facts["split"]


def test_at_most_max_eval_elements(tmp_path, monkeypatch):
    monkeypatch.setattr(split, "MAX_EVAL_ELEMENTS", 25)
    data = pairs([tsv(tmp_path / "a.tsv", [(f"{i:010}", "b") for i in range(200)])])
    assert [int(source) for source in sources(data.eval_rows)] == [0, 160]
    assert data.num_rows == 198


def test_the_same_source_is_on_one_side(tmp_path):
    """Before and after the eval row, in this file and in another."""
    rows = [(f"{i}", "b") for i in range(40)]
    rows[7] = rows[33] = ("20", "another translation")
    other = tsv(tmp_path / "b.tsv", [("20", "b"), ("x", "b")])
    data = pairs([tsv(tmp_path / "a.tsv", rows), other])
    assert sources(data.eval_rows) == ["0", "20", "20"][: len(data.eval_rows)]
    assert not set(sources(data.eval_rows)) & set(sources(data.train))
    assert data.num_rows == len(list(data.train)) == 37


@given(st.lists(st.text("ab", min_size=1, max_size=3), min_size=1, max_size=90))
def test_no_row_is_lost_and_none_is_on_both_sides(tmp_path_factory, said):
    path = jsonl(tmp_path_factory.mktemp("split") / "a.jsonl", [{"source": s, "target": "t"} for s in said])
    if set(said) == set(said[::20]):
        with pytest.raises(InputError, match="nothing is left to train on"):
            pairs([path])
        return
    data = pairs([path])
    assert sources(data.eval_rows) == said[::20]
    assert sources(data.train) == [s for s in said if s not in said[::20]]
    assert data.num_rows == len(list(data.train))


class TestEvalFile:
    def test_all_of_its_rows_are_eval_rows(self, tmp_path):
        rows = [(f"{i}", "b") for i in range(50)]
        data = pairs(
            [tsv(tmp_path / "a.tsv", rows)], eval_file=tsv(tmp_path / "h.tsv", [("3", "c"), ("new", "c"), ("40", "c")])
        )
        assert sources(data.eval_rows) == ["3", "new", "40"]
        assert sources(data.train) == [f"{i}" for i in range(50) if i not in (3, 40)]
        assert data.num_rows == 48
        assert data.facts["eval_file"]["files"][0]["file"] == str(tmp_path / "h.tsv")

    def test_some_rows_of_a_long_one_are_eval_rows(self, tmp_path):
        eval_file = tsv(tmp_path / "h.tsv", [(f"{i}", "c") for i in range(MAX_EVAL_ROWS + 1)])
        data = pairs([tsv(tmp_path / "a.tsv", [("1", "b"), ("new", "b")])], eval_file=eval_file)
        assert sources(data.eval_rows) == [f"{i}" for i in range(0, MAX_EVAL_ROWS + 1, 2)]
        assert sources(data.train) == ["new"]

    def test_the_same_file(self, tmp_path):
        path = tsv(tmp_path / "a.tsv")
        with pytest.raises(InputError, match="nothing is left to train on"):
            pairs([path], eval_file=path)

    def test_with_built_in_data(self, tmp_path):
        with pytest.raises(ValueError, match="needs paths: the built-in data has its own split"):
            pairs(eval_file=tsv(tmp_path / "a.tsv"))

    def test_texts(self, tmp_path):
        (tmp_path / "a.txt").write_text("one text, whole")
        (tmp_path / "h.txt").write_text("another")
        data = texts([tmp_path / "a.txt"], eval_file=tmp_path / "h.txt")
        assert [row["text"] for row in data.train] == ["one text, whole"]
        assert [row["text"] for row in data.eval_rows] == ["another"]


class TestOneText:
    @pytest.mark.parametrize("length", [20, 21, 399, 400, 1000])
    def test_its_last_twentieth(self, length, tmp_path):
        text = "".join(chr(97 + i % 26) if i % 7 else "é" for i in range(length))
        (tmp_path / "a.txt").write_text(text)
        data = texts([tmp_path / "a.txt"])
        (train,), (eval_row,) = list(data.train), data.eval_rows
        assert train["text"] + eval_row["text"] == text
        assert len(train["text"]) == length * 19 // 20
        assert data.num_rows == 1

    def test_as_the_one_row_of_a_table(self, tmp_path):
        data = texts([jsonl(tmp_path / "a.jsonl", [{"text": "0123456789" * 4}])])
        assert data.eval_rows[0]["text"] == "89"

    def test_too_short(self, tmp_path):
        (tmp_path / "a.txt").write_text("nineteen letters...")
        with pytest.raises(InputError, match=r"a\.txt is one text of 19 characters: an eval row needs at least 20"):
            texts([tmp_path / "a.txt"])


class TestIterableDataset:
    def test_two_processes_have_all_rows_once(self, tmp_path):
        files = [tsv(tmp_path / f"{n}.tsv", [(f"{n} {i}", "b") for i in range(10 + n)]) for n in range(4)]
        data = pairs(files)
        shares = [sources(split_dataset_by_node(data.train, rank, 2)) for rank in range(2)]
        assert sorted([*shares[0], *shares[1]]) == sorted(sources(data.train))
        files_of = [{source.split()[0] for source in share} for share in shares]
        assert not files_of[0] & files_of[1]  # each reads files of its own
        assert all(files_of)

    def test_three_processes_share_two_files(self, tmp_path):
        data = pairs([tsv(tmp_path / f"{n}.tsv", [(f"{n} {i}", "b") for i in range(10)]) for n in range(2)])
        shares = [sources(split_dataset_by_node(data.train, rank, 3)) for rank in range(3)]
        assert sorted(source for share in shares for source in share) == sorted(sources(data.train))

    def test_again_and_shuffled(self, tmp_path):
        data = pairs([tsv(tmp_path / "a.tsv")])
        assert list(data.train) == list(data.train)
        orders = [sources(data.train.shuffle(seed=seed, buffer_size=10)) for seed in (1, 1, 2)]
        assert orders[0] == orders[1] != orders[2]
        assert sorted(orders[0]) == sorted(orders[2]) == sorted(sources(data.train))

    def test_a_file_that_changes_meanwhile(self, tmp_path):
        path = tsv(tmp_path / "a.tsv")
        data = pairs([path])
        with path.open("a") as file:
            file.write("more\tmore\n")
        with pytest.raises(InputError, match=r"a\.tsv has changed since it was first read"):
            list(data.train)


class TestFacts:
    def test_they_are_json_and_the_same_again(self, tmp_path):
        path = tsv(tmp_path / "a.tsv")
        facts = pairs([path]).facts
        assert json.loads(json.dumps(facts)) == facts == pairs([path]).facts
        assert facts["files"] == [
            {"file": str(path), "bytes": path.stat().st_size, "blake2b": facts["files"][0]["blake2b"]}
        ]
        assert facts["rows_read"] == 30

    def test_the_fingerprint_is_of_the_bytes_and_the_order(self, tmp_path):
        a, b = tsv(tmp_path / "a.tsv"), tsv(tmp_path / "b.tsv", [("x", "y")])
        marks = {pairs(paths).facts["fingerprint"] for paths in ([a], [a, b], [b, a])}
        a.write_bytes(a.read_bytes().replace(b"target 7", b"target 8"))
        marks.add(pairs([a]).facts["fingerprint"])
        assert len(marks) == 4

    def test_of_many_files_a_hundred_are_named(self, tmp_path):
        for i in range(130):
            (tmp_path / f"{i:03}.txt").write_text(f"text {i}")
        facts = texts([tmp_path / "*.txt"]).facts
        assert facts["num_files"] == 130
        assert [file["file"] for file in facts["files"]] == [str(tmp_path / f"{i:03}.txt") for i in range(100)]
        (tmp_path / "129.txt").write_text("text !!!")
        assert texts([tmp_path / "*.txt"]).facts["fingerprint"] != facts["fingerprint"]
