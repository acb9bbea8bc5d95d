"""The eval rows, the training rows, and the facts that identify data."""

import json

import pytest
from hypothesis import given
from hypothesis import strategies as st
from runs import upper_case_pairs, write_jsonl, write_tsv

from regard import InputError
from regard.training.data import MAX_EVAL_ROWS, pairs, texts
from regard.training.data.split import scan
from regard.training.shuffling import epoch_examples


def sources(rows):
    return [row["source"] for row in rows]


def numbered(stop, start=0):
    return [(f"{i}", "b") for i in range(start, stop)]


@pytest.fixture
def file(tmp_path):
    return write_tsv(tmp_path / "a.tsv", numbered(101))


@pytest.mark.parametrize(
    ("rows", "limits", "stride"),
    [
        (2_000, {"max_rows": 100}, 20),
        (2_001, {"max_rows": 100}, 40),
        (4_001, {"max_rows": 100}, 80),
        (9_000, {"max_rows": 100}, 160),
        (200, {"max_elements": 25}, 160),  # each has 10
        (200, {"max_elements": 30}, 80),
        (200, {"max_elements": 5}, 320),  # one is kept of any size
    ],
)
def test_the_stride_doubles_until_the_sampled_rows_are_few_enough(rows, limits, stride):
    found = scan(({"source": f"{i:010}"} for i in range(rows)), "source", 20, **limits)
    assert found.stride == stride
    assert [int(source) for source in sources(found.rows)] == list(range(0, rows, stride))
    assert len(set(found.keys)) == rows


@given(st.lists(st.text("ab", min_size=1, max_size=3), min_size=1, max_size=90))
def test_no_row_is_lost_and_none_is_on_both_sides(tmp_path_factory, keys):
    folder = tmp_path_factory.mktemp("split")
    parts = [[(key, "t") for key in part] for part in (keys[:50], keys[50:]) if part]
    paths = [write_tsv(folder / f"{i}.tsv", part) for i, part in enumerate(parts)]
    if set(keys) == set(keys[::20]):
        with pytest.raises(InputError, match="nothing is left to train on"):
            pairs(paths)
        return
    data = pairs(paths)
    assert sources(data.eval_rows) == keys[::20]
    assert sources(data.train) == [key for key in keys if key not in keys[::20]]
    assert data.num_rows == len(list(data.train))


class TestEvalFile:
    def test_all_of_its_rows_are_eval_rows(self, file, tmp_path):
        eval_file = write_tsv(tmp_path / "h.tsv", [("3", "c"), ("new", "c"), ("40", "c")])
        data = pairs([file], eval_file=eval_file)
        assert sources(data.eval_rows) == ["3", "new", "40"]
        assert sources(data.train) == [f"{i}" for i in range(101) if i not in (3, 40)]
        assert data.num_rows == 99
        assert data.facts["eval_file"]["files"][0]["file"] == str(eval_file)

    def test_some_rows_of_a_long_one_are_eval_rows(self, file, tmp_path):
        eval_file = write_tsv(tmp_path / "h.tsv", numbered(MAX_EVAL_ROWS + 100, start=99))
        data = pairs([file], eval_file=eval_file)
        assert sources(data.eval_rows) == [f"{i}" for i in range(99, MAX_EVAL_ROWS + 100, 2)]
        assert sources(data.train) == [f"{i}" for i in range(99)]

    def test_the_same_file_is_refused(self, file):
        with pytest.raises(InputError, match="nothing is left to train on"):
            pairs([file], eval_file=file)

    def test_with_built_in_data_it_is_refused(self, file):
        with pytest.raises(ValueError, match="needs paths: the built-in data has its own split"):
            pairs(eval_file=file)

    def test_a_single_text_is_trained_on_as_a_whole(self, tmp_path):
        for name in ("train", "eval"):
            (tmp_path / f"{name}.txt").write_text(f"the {name} text")
        data = texts([tmp_path / "train.txt"], eval_file=tmp_path / "eval.txt")
        assert [row["text"] for row in [*data.train, *data.eval_rows]] == ["the train text", "the eval text"]


class TestOneText:
    @pytest.mark.parametrize("length", [20, 21, 399, 400, 1000])
    def test_its_last_twentieth_is_the_eval_row(self, length, tmp_path):
        text = ("abcdefé" * 143)[:length]
        (tmp_path / "a.txt").write_text(text)
        data = texts([tmp_path / "a.txt"])
        (train,), (eval_row,) = list(data.train), data.eval_rows
        assert train["text"] + eval_row["text"] == text
        assert len(train["text"]) == length * 19 // 20
        assert data.num_rows == 1

    def test_as_the_one_row_of_a_table(self, tmp_path):
        data = texts([write_jsonl(tmp_path / "a.jsonl", [{"text": "0123456789" * 4}])])
        assert data.eval_rows[0]["text"] == "89"

    def test_a_short_one_is_refused(self, tmp_path):
        (tmp_path / "a.txt").write_text("nineteen letters...")
        with pytest.raises(InputError, match=r"a\.txt is one text of 19 characters: an eval row needs at least 20"):
            texts([tmp_path / "a.txt"])


class TestFacts:
    def test_they_are_json_and_the_same_again(self, file):
        facts = pairs([file]).facts
        assert json.loads(json.dumps(facts)) == facts == pairs([file]).facts
        fingerprint = facts["files"][0]["blake2b"]
        assert facts["files"] == [{"file": str(file), "bytes": file.stat().st_size, "blake2b": fingerprint}]
        assert (facts["num_files"], facts["rows_read"]) == (1, 101)
        assert facts["split"].startswith("eval rows: of each 20 rows the first")

    def test_the_fingerprint_is_of_the_bytes_and_the_order(self, file, tmp_path):
        other = write_tsv(tmp_path / "b.tsv", [("x", "y")])
        found = {pairs(paths).facts["fingerprint"] for paths in ([file], [file, other], [other, file])}
        file.write_bytes(file.read_bytes().replace(b"77\tb", b"77\tc"))
        found.add(pairs([file]).facts["fingerprint"])
        assert len(found) == 4

    def test_of_many_files_a_hundred_are_named(self, tmp_path):
        for i in range(130):
            (tmp_path / f"{i:03}.txt").write_text(f"text {i}")
        facts = texts([tmp_path / "*.txt"]).facts
        assert facts["num_files"] == 130
        assert [file["file"] for file in facts["files"]] == [str(tmp_path / f"{i:03}.txt") for i in range(100)]
        (tmp_path / "129.txt").write_text("text !!!")
        assert texts([tmp_path / "*.txt"]).facts["fingerprint"] != facts["fingerprint"]


@pytest.fixture(scope="module")
def data(tmp_path_factory):
    folder = tmp_path_factory.mktemp("data")
    rows = upper_case_pairs(200)
    # Files of very different lengths, whose number divides among 2 and 4 processes.
    cuts = [0, 5, 30, 60, len(rows)]
    paths = [write_tsv(folder / f"{i}.tsv", rows[cuts[i] : cuts[i + 1]]) for i in range(4)]
    return pairs(paths)


def encode(row, epoch):
    """No example of a row, one, or two."""
    return [{"location": row["location"], "part": part, "epoch": epoch} for part in range(len(row["source"]) % 3)]


def order(data, epoch=0, *, seed=0, rank=0, world_size=1, skip=0):
    return list(epoch_examples(data, encode, epoch, seed=seed, rank=rank, world_size=world_size, skip=skip))


class TestOrder:
    """Of examples: one for any number of processes, and the same from any point on."""

    @pytest.mark.parametrize("world_size", [1, 2, 3, 4, 7])
    def test_any_number_of_processes_has_the_order_of_one(self, data, world_size):
        single = order(data)
        for rank in range(world_size):
            assert order(data, rank=rank, world_size=world_size) == single[rank::world_size]

    def test_every_row_once_in_random_order(self, data):
        found = [(one["location"], one["part"]) for one in order(data)]
        wanted = [(one["location"], one["part"]) for row in data.train for one in encode(row, 0)]
        assert len(wanted) > 150
        assert sorted(found) == sorted(wanted)
        assert sum(a == b for a, b in zip(found, wanted, strict=True)) < 10

    def test_every_epoch_and_seed_has_its_own_order(self, data):
        first = order(data)
        assert order(data) == first
        assert {one["epoch"] for one in order(data, 1)} == {1}
        orders = [
            [one["location"] for one in each] for each in (first, order(data, 1), order(data, 2), order(data, seed=1))
        ]
        assert all(sorted(each) == sorted(orders[0]) for each in orders)
        assert len({tuple(each) for each in orders}) == 4

    @pytest.mark.parametrize("world_size", [1, 2])
    def test_skipping_leaves_the_rest(self, data, world_size):
        for skip in (1, 17, 70, 10_000):
            assert (
                order(data, 3, rank=world_size - 1, world_size=world_size, skip=skip)
                == order(data, 3, rank=world_size - 1, world_size=world_size)[skip:]
            )
