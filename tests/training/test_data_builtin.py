"""The built-in data."""

import datetime
import json
import os
import subprocess
import sys
from collections import Counter
from pydoc_data.topics import topics

import jaxtyping
import numpy as np
import pytest
from babel import Locale
from babel.dates import format_date
from datasets.distributed import split_dataset_by_node
from sklearn.datasets import load_digits

from regard.training.data import MAX_EVAL_ROWS, images, pairs, texts
from regard.training.data.dates import LANGUAGES, ZERO_DIGITS


@pytest.fixture(scope="module")
def data():
    return pairs()


@pytest.fixture(scope="module")
def train(data):
    jaxtyping.config.update("jaxtyping_disable", True)  # 60,000 rows
    rows = list(data.train)
    jaxtyping.config.update("jaxtyping_disable", False)
    return rows


class TestDates:
    def test_sizes(self, data, train):
        assert (data.name, data.num_rows, len(data.eval_rows)) == ("dates", 60_000, 1_000)
        assert len(train) == data.num_rows
        assert len(data.eval_rows) <= MAX_EVAL_ROWS

    def test_an_eval_day_is_written_in_no_language_in_training(self, data, train):
        eval_days = {row["target"] for row in data.eval_rows}
        assert len(eval_days) == 1_000
        assert not eval_days & {row["target"] for row in train}
        assert not {row["source"] for row in data.eval_rows} & {row["source"] for row in train}

    def test_dates_are_babels(self, data, train):
        """Every row is one of what Babel itself formats, but for the digits."""
        digits = {ord(zero) + n: str(n) for zero in ZERO_DIGITS.values() for n in range(10)}
        styles = set()
        for row in [*train[::40], *data.eval_rows]:
            day = datetime.date.fromisoformat(row["target"])
            assert datetime.date(1900, 1, 1) <= day <= datetime.date(2100, 12, 31)
            written = {style: format_date(day, style, row["language"]) for style in ("full", "long", "medium")}
            found = [style for style, text in written.items() if text == row["source"].translate(digits)]
            assert found
            styles |= {(row["language"], found[0])}
        assert {language for language, _ in styles} == set(LANGUAGES)
        assert {style for _, style in styles} == {"full", "long", "medium"}

    def test_digits_are_the_languages_own(self, data, train):
        for row in [*train[:3_000], *data.eval_rows]:
            digits = [letter for letter in row["source"] if letter.isdecimal()]
            zero = ZERO_DIGITS[Locale.parse(row["language"]).default_numbering_system]
            assert 5 <= len(digits) <= 6
            assert all(ord(zero) <= ord(digit) < ord(zero) + 10 for digit in digits)
        assert {Locale.parse(language).default_numbering_system for language in LANGUAGES} == set(ZERO_DIGITS)

    def test_month_at_is_the_month(self, data, train):
        for row in [*train, *data.eval_rows]:
            start, stop = row["month_at"]
            assert row["source"][start:stop] == row["month"]
            assert not any(letter.isdecimal() or letter.isspace() for letter in row["month"])
        words = Counter((row["language"], row["month"]) for row in train)
        months = {}
        for row in train:
            months.setdefault((row["language"], row["month"]), set()).add(row["target"][5:7])
        assert all(len(numbers) == 1 for numbers in months.values())  # a word says which month it is
        assert len(words) >= 12 * 12
        assert min(words.values()) > 100  # and is there often enough to be learned

    def test_the_order_is_random_and_reproducible(self, data, train):
        assert list(pairs().train.take(1_300)) == train[:1_300]
        assert {row["language"] for row in train[:100]} == set(LANGUAGES)

    def test_another_process_writes_the_same(self, data):
        code = "from regard.training.data import pairs; import json; d = pairs(); print(json.dumps(d.eval_rows[-3:]), "
        code += "json.dumps(list(d.train.skip(1300).take(3))), json.dumps(d.facts), sep='\\n')"
        lines = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True).stdout
        eval_rows, train, facts = map(json.loads, lines.splitlines())
        assert eval_rows == data.eval_rows[-3:]
        assert train == list(data.train.skip(1300).take(3))
        assert facts == data.facts
        assert facts["babel"] == __import__("babel").__version__

    def test_two_processes_share_them(self, data, train):
        """Each process makes its own shards only."""
        assert data.train.num_shards == 48
        for rank in range(2):
            share = list(split_dataset_by_node(data.train, rank, 2).take(2_000))
            assert share == [*train[1_250 * rank :][:1_250], *train[1_250 * (rank + 2) :][:750]]


class TestTopics:
    def test_every_tenth_is_an_eval_row(self):
        data = texts()
        names = sorted(topics)
        assert [row["text"] for row in data.eval_rows] == [topics[name] for name in names[::10]]
        assert [row["text"] for row in data.train] == [topics[name] for i, name in enumerate(names) if i % 10]
        assert data.num_rows == len(names) - len(data.eval_rows)
        assert data.eval_rows[0]["location"] == f"topic {names[0]!r} of Python's documentation"
        assert data.facts["python"] == sys.version.split()[0]
        assert json.loads(json.dumps(data.facts)) == texts().facts


class TestDigits:
    def test_every_fifth_of_each_is_an_eval_row(self):
        data, theirs = images(), load_digits()
        assert data.num_rows == len(list(data.train))
        spelled = np.array(["zero", "one", "two", "three", "four", "five", "six", "seven", "eight", "nine"])
        rows = {int(row["location"].split()[-1]) - 1: row for row in [*data.train, *data.eval_rows]}
        assert sorted(rows) == list(range(1797))
        for i, row in rows.items():
            assert (row["image"].shape, row["image"].dtype) == ((8, 8), np.uint8)
            assert np.abs(row["image"] / 255 * 16 - theirs.images[i]).max() < 0.04
            assert row["text"] == spelled[theirs.target[i]]
        counts = Counter(row["text"] for row in data.eval_rows)
        assert counts == {name: -(-n // 5) for name, n in Counter(spelled[theirs.target]).items()}

    def test_no_eval_digit_is_trained_on(self):
        data = images()
        assert not {row["image"].tobytes() for row in data.eval_rows} & {row["image"].tobytes() for row in data.train}
        shares = [[row["location"] for row in split_dataset_by_node(data.train, rank, 2)] for rank in range(2)]
        assert sorted([*shares[0], *shares[1]]) == sorted(row["location"] for row in data.train)
        assert json.loads(json.dumps(data.facts)) == images().facts


@pytest.mark.parametrize(
    ("call", "library"), [("pairs", "babel"), ("images", "sklearn"), ("texts", "datasets"), ("pairs", "datasets")]
)
def test_without_a_library(call, library):
    code = f"import sys; sys.modules[{library!r}] = None; from regard.training import data; data.{call}()"
    ended = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True)
    assert f"InputError: this needs {library}, which is not installed: pip install 'regard[train]'" in ended.stderr


def test_where_datasets_cannot_write():
    code = "from regard.training import data; data.texts()"
    environment = {**os.environ, "HF_HOME": "/proc/nothing"}
    ended = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, env=environment)
    assert "InputError: the library datasets cannot write to its folder /proc/nothing/datasets: " in ended.stderr
    assert "Name another in the environment variable HF_DATASETS_CACHE" in ended.stderr
