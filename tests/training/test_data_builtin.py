"""The built-in data."""

import datetime
import json
import os
import subprocess
import sys
from collections import Counter, defaultdict
from pydoc_data.topics import topics

import datasets
import numpy as np
import pytest
from babel import Locale
from babel.dates import format_date
from sklearn.datasets import load_digits

from regard import InputError
from regard.training.data import images, pairs, texts
from regard.training.data.dates import LANGUAGES, ZERO_DIGITS
from regard.training.tokenizers import train_bpe


@pytest.fixture(scope="module")
def data():
    return pairs()


@pytest.fixture(scope="module")
def train(data):
    """A quarter of the training rows."""
    return list(data.train.take(15_000))


class TestDates:
    def test_sizes(self, data, train):
        assert (data.name, data.num_rows, len(data.eval_rows)) == ("dates", 60_000, 1_000)
        assert data.train.num_shards == 48
        assert [row["location"] for row in train] == [f"dates, row {number}" for number in range(1, 15_001)]

    def test_an_eval_day_is_written_in_no_language_in_training(self, data, train):
        eval_days = {row["target"] for row in data.eval_rows}
        assert len(eval_days) == 1_000
        assert not eval_days & {row["target"] for row in train}
        assert not {row["source"] for row in data.eval_rows} & {row["source"] for row in train}

    def test_dates_are_babels(self, data, train):
        """Every row is one of what Babel itself formats, but for the digits."""
        digits = {ord(zero) + n: str(n) for zero in ZERO_DIGITS.values() for n in range(10)}
        styles = set()
        for row in [*train[::10], *data.eval_rows[::4]]:
            day = datetime.date.fromisoformat(row["target"])
            assert datetime.date(1900, 1, 1) <= day <= datetime.date(2100, 12, 31)
            written = {style: format_date(day, style, row["language"]) for style in ("full", "long", "medium")}
            found = [style for style, text in written.items() if text == row["source"].translate(digits)]
            assert found
            styles |= {(row["language"], found[0])}
        assert {language for language, _ in styles} == set(LANGUAGES)
        assert {style for _, style in styles} == {"full", "long", "medium"}

    def test_digits_are_the_languages_own(self, data, train):
        systems = {language: Locale.parse(language).default_numbering_system for language in LANGUAGES}
        for row in [*train[:3_000], *data.eval_rows]:
            digits = [letter for letter in row["source"] if letter.isdecimal()]
            zero = ord(ZERO_DIGITS[systems[row["language"]]])
            assert 5 <= len(digits) <= 6
            assert all(zero <= ord(digit) < zero + 10 for digit in digits)
        assert set(systems.values()) == set(ZERO_DIGITS)

    def test_month_at_is_the_month(self, data, train):
        months = defaultdict(Counter)
        for row in [*train, *data.eval_rows]:
            start, stop = row["month_at"]
            assert row["source"][start:stop] == row["month"]
            assert not any(letter.isdecimal() or letter.isspace() for letter in row["month"])
            months[row["language"], row["month"]][row["target"][5:7]] += 1
        assert all(len(numbers) == 1 for numbers in months.values())  # a word says which month it is
        assert len(months) >= 12 * 12
        assert min(numbers.total() for numbers in months.values()) > 15  # and is there often enough to be learned

    def test_the_order_is_random_and_reproducible(self, data, train):
        assert list(pairs().train.take(1_300)) == train[:1_300]
        assert {row["language"] for row in train[:100]} == set(LANGUAGES)
        assert len({row["language"] for row in data.eval_rows[:100]}) == len(LANGUAGES)


@pytest.mark.more
def test_another_process_has_the_same_rows_and_tokenizer(data, train):
    code = "import json, sys; from regard.training.data import pairs; from regard.training.tokenizers import train_bpe;"
    code += "data = pairs(); rows = list(data.train.take(1500)); print(json.dumps([data.eval_rows[-3:], rows[1250:],"
    code += "data.facts, train_bpe([row['source'] for row in rows], vocab_size=600, special_tokens=['<s>']).to_str()]))"
    environment = {**os.environ, "RAYON_NUM_THREADS": "3", "PYTHONHASHSEED": "2"}
    found = subprocess.run([sys.executable, "-c", code], capture_output=True, check=True, env=environment).stdout
    tokenizer = train_bpe([row["source"] for row in train[:1500]], vocab_size=600, special_tokens=["<s>"])
    assert json.loads(found) == [data.eval_rows[-3:], train[1250:1500], data.facts, tokenizer.to_str()]
    assert data.facts["babel"] == __import__("babel").__version__


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
        data, reference = images(), load_digits()
        assert data.num_rows == len(list(data.train))
        spelled = np.array(["zero", "one", "two", "three", "four", "five", "six", "seven", "eight", "nine"])
        rows = {int(row["location"].split()[-1]) - 1: row for row in [*data.train, *data.eval_rows]}
        assert sorted(rows) == list(range(1797))
        for i, row in rows.items():
            assert (row["image"].shape, row["image"].dtype) == ((8, 8), np.uint8)
            assert np.abs(row["image"] / 255 * 16 - reference.images[i]).max() < 0.04
            assert row["text"] == spelled[reference.target[i]]
        counts = Counter(row["text"] for row in data.eval_rows)
        assert counts == {name: -(-n // 5) for name, n in Counter(spelled[reference.target]).items()}

    def test_no_eval_digit_is_trained_on(self):
        data = images()
        assert not {row["image"].tobytes() for row in data.eval_rows} & {row["image"].tobytes() for row in data.train}
        assert json.loads(json.dumps(data.facts)) == images().facts


def test_where_datasets_cannot_write(monkeypatch):
    monkeypatch.setattr(datasets.config, "HF_DATASETS_CACHE", "/proc/nothing/datasets")
    message = "datasets cannot write to its folder /proc/nothing/datasets: .*environment variable HF_DATASETS_CACHE"
    with pytest.raises(InputError, match=message):
        texts()
