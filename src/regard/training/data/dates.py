"""Built-in pairs: dates in twelve languages, as Babel writes them from the CLDR, and in ISO 8601."""

from __future__ import annotations

import datetime
import hashlib
import random
import re
from collections.abc import Iterator
from functools import cache
from typing import Any

from regard.errors import import_optional
from regard.table_readers import Row
from regard.training.data.split import TrainingData, iterable_dataset

LANGUAGES = ("bn", "de", "el", "en", "es", "fa", "fr", "he", "hi", "hu", "pl", "ru")
"""Seven alphabets; Hungarian starts with the year, Bengali and Persian have their own digits."""
STYLES = ("full", "long", "medium")
"""Of the CLDR. A style of a language that writes the month as a number is not used."""
PLACEHOLDER = re.compile(r"%\((\w+)\)s")
"""How Babel writes a field in a pattern."""
NUMBER_FIELDS, WEEKDAY_FIELDS, MONTH_FIELDS = {"d", "dd", "y"}, {"EEEE", "cccc"}, {"MMMM", "MMM"}
"""The CLDR's fields of day and year, of the weekday, and of the month as a word."""
ZERO_DIGITS = {"latn": "0", "beng": "\N{BENGALI DIGIT ZERO}", "arabext": "\N{EXTENDED ARABIC-INDIC DIGIT ZERO}"}
"""The CLDR names the numbering system of a language; Babel writes dates with Latin digits."""

FIRST_DAY, LAST_DAY = datetime.date(1900, 1, 1), datetime.date(2100, 12, 31)
NUM_DAYS = (LAST_DAY - FIRST_DAY).days + 1
SEED = 1987
NUM_SHARDS, ROWS_PER_SHARD = 48, 1_250
NUM_EVAL_DAYS = 1_000


def dates() -> TrainingData:
    """60,000 dates to train on and 1,000 eval rows, whose days are in no language among the training rows.

    In addition to ``source``, ``target`` and ``location``, rows have ``month``, the month's word as the source has it,
    ``month_at``, its start and its end in the source, and ``language``.

    Raises:
        InputError: Babel is not installed.
    """
    babel = import_optional("babel", "train")
    eval_days = _eval_days()
    rng = random.Random(f"{SEED} held out")
    eval_rows = [_row(day, rng, f"dates, eval row {number}") for number, day in enumerate(eval_days, 1)]
    train = iterable_dataset(_train_rows, shards=range(NUM_SHARDS), eval_days=frozenset(eval_days))
    facts: dict[str, Any] = {
        "babel": babel.__version__,
        "languages": list(LANGUAGES),
        "seed": SEED,
        "fingerprint": _fingerprint(eval_rows),
        "split": f"eval rows: {NUM_EVAL_DAYS} days; none of them is written in any language in training",
    }
    return TrainingData("dates", train, eval_rows, NUM_SHARDS * ROWS_PER_SHARD, facts)


def _eval_days() -> list[datetime.date]:
    """The days of the eval rows, in random order."""
    rng = random.Random(SEED)
    days = [FIRST_DAY + datetime.timedelta(days=offset) for offset in range(NUM_DAYS)]
    return sorted(days, key=lambda day: rng.random())[:NUM_EVAL_DAYS]


def _train_rows(shards: list[int], eval_days: frozenset[datetime.date]) -> Iterator[Row]:
    for shard in shards:
        rng = random.Random(f"{SEED} {shard}")
        for index in range(ROWS_PER_SHARD):
            day = _random_day(rng)
            while day in eval_days:
                day = _random_day(rng)
            yield _row(day, rng, f"dates, row {shard * ROWS_PER_SHARD + index + 1}")


def _random_day(rng: random.Random) -> datetime.date:
    return FIRST_DAY + datetime.timedelta(days=_random_below(NUM_DAYS, rng))


def _random_below(stop: int, rng: random.Random) -> int:
    """Later versions of Python give the same numbers for `random()`; for its other methods nothing is promised."""
    return int(rng.random() * stop)


def _row(day: datetime.date, rng: random.Random, location: str) -> Row:
    language = LANGUAGES[_random_below(len(LANGUAGES), rng)]
    styles = _styles(language)
    style = styles[_random_below(len(styles), rng)]
    before, month, after = _around_month(language, style, day.month, day.weekday())
    numbers = {"d": day.day, "dd": f"{day.day:02}", "y": day.year}
    before, after = ((part % numbers).translate(_native_digits(language)) for part in (before, after))
    return {
        "source": before + month + after,
        "target": day.isoformat(),
        "location": location,
        "month": month,
        "month_at": [len(before), len(before) + len(month)],
        "language": language,
    }


@cache
def _pattern(language: str, style: str) -> str:
    babel_dates = import_optional("babel.dates", "train")
    return str(babel_dates.get_date_format(style, language).format)


@cache
def _styles(language: str) -> list[str]:
    """The styles in which the month is a word."""
    fields = {style: set(PLACEHOLDER.findall(_pattern(language, style))) for style in STYLES}
    known = NUMBER_FIELDS | WEEKDAY_FIELDS | MONTH_FIELDS
    return [style for style in STYLES if fields[style] & MONTH_FIELDS and fields[style] <= known]


@cache
def _around_month(language: str, style: str, month: int, weekday: int) -> tuple[str, str, str]:
    """The text before the month's word, the word, and the text after it, with placeholders of day and year.

    Babel takes 50 microseconds for a date, and 3,000 of these results are enough for all dates.
    """
    babel_dates = import_optional("babel.dates", "train")
    days = (datetime.date(2024, month, 1 + n) for n in range(7))
    fields = babel_dates.DateTimeFormat(next(day for day in days if day.weekday() == weekday), language)

    def fill(placeholder: re.Match[str]) -> str:
        field = placeholder[1]
        return placeholder[0] if field in NUMBER_FIELDS else str(fields[field])

    pattern = _pattern(language, style)
    (month_field,) = set(PLACEHOLDER.findall(pattern)) & MONTH_FIELDS
    before, after = (PLACEHOLDER.sub(fill, part) for part in pattern.split(f"%({month_field})s"))
    return before, fields[month_field], after


@cache
def _native_digits(language: str) -> dict[int, str]:
    zero = ZERO_DIGITS[import_optional("babel", "train").Locale.parse(language).default_numbering_system]
    return {ord("0") + digit: chr(ord(zero) + digit) for digit in range(10)}


def _fingerprint(rows: list[Row]) -> str:
    """A hash of the eval rows, which have every language, style and month."""
    fingerprint = hashlib.blake2b(digest_size=16)
    for row in rows:
        fingerprint.update(f"{row['source']}\t{row['target']}\n".encode())
    return fingerprint.hexdigest()
