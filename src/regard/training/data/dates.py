"""Dates in twelve languages, as Babel writes them from the CLDR, and as ISO 8601 does."""

from __future__ import annotations

import datetime
import hashlib
import random
import re
from collections.abc import Iterator
from functools import cache
from typing import Any

from regard.errors import needed
from regard.training.data.readers import Row
from regard.training.data.split import Data, streamed

__all__ = ["LANGUAGES", "data"]

LANGUAGES = ("bn", "de", "el", "en", "es", "fa", "fr", "he", "hi", "hu", "pl", "ru")
"""Seven alphabets; Hungarian begins with the year, Bengali and Persian have digits of their own."""
STYLES = ("full", "long", "medium")
"""The CLDR's; where one writes the month as a number, it is left out."""
FIELD = re.compile(r"%\((\w+)\)s")
"""How Babel writes a place in a pattern."""
NUMBERS, NAMES, MONTHS = {"d", "dd", "y"}, {"EEEE", "cccc"}, {"MMMM", "MMM"}
"""The CLDR's places for day and year, for the day of the week, and for the month as a word."""
ZERO = {"latn": "0", "beng": "\N{BENGALI DIGIT ZERO}", "arabext": "\N{EXTENDED ARABIC-INDIC DIGIT ZERO}"}
"""The CLDR names the digits of a language, and Babel writes dates with the Latin ones."""

FIRST, LAST = datetime.date(1900, 1, 1), datetime.date(2100, 12, 31)
SEED = 1987
SHARDS, ROWS = 48, 1_250
HELD = 1_000


def data() -> Data:
    """60,000 dates to learn from and 1,000 held out, which are written in no language in training.

    Rows have, beside ``source``, ``target`` and ``where``: ``month``, the month's word as it stands in the source,
    ``month_at``, its first letter and the one behind its last, and ``language``.

    Raises:
        InputError: Babel is not installed.
    """
    babel = needed("babel", "train")
    held = _held()
    drawn = random.Random(f"{SEED} held out")
    held_out = [_row(day, drawn, f"dates held out, row {number}") for number, day in enumerate(held, 1)]
    train = streamed(_written, shards=range(SHARDS), held=frozenset(held))
    facts: dict[str, Any] = {
        "babel": babel.__version__,
        "languages": list(LANGUAGES),
        "seed": SEED,
        "fingerprint": _fingerprint(held_out),
        "split": f"held out: {HELD} days; none of them is written in any language in training",
    }
    return Data("dates", train, held_out, SHARDS * ROWS, facts)


def _held() -> list[datetime.date]:
    """The days that are held out, in an order by chance."""
    drawn = random.Random(SEED)
    days = [FIRST + datetime.timedelta(days=number) for number in range((LAST - FIRST).days + 1)]
    return sorted(days, key=lambda day: drawn.random())[:HELD]


def _written(shards: list[int], held: frozenset[datetime.date]) -> Iterator[Row]:
    for shard in shards:
        drawn = random.Random(f"{SEED} {shard}")
        for number in range(ROWS):
            day = _day(drawn)
            while day in held:
                day = _day(drawn)
            yield _row(day, drawn, f"dates, row {shard * ROWS + number + 1}")


def _day(drawn: random.Random) -> datetime.date:
    return FIRST + datetime.timedelta(days=_below((LAST - FIRST).days + 1, drawn))


def _below(number: int, drawn: random.Random) -> int:
    """Python promises the same numbers in later versions for `random()`, and for nothing that is made of it."""
    return int(drawn.random() * number)


def _row(day: datetime.date, drawn: random.Random, where: str) -> Row:
    language = LANGUAGES[_below(len(LANGUAGES), drawn)]
    styles = _styles(language)
    style = styles[_below(len(styles), drawn)]
    before, month, after = _around(language, style, day.month, day.weekday())
    numbers = {"d": day.day, "dd": f"{day.day:02}", "y": day.year}
    before, after = ((part % numbers).translate(_digits(language)) for part in (before, after))
    return {
        "source": before + month + after,
        "target": day.isoformat(),
        "where": where,
        "month": month,
        "month_at": [len(before), len(before) + len(month)],
        "language": language,
    }


@cache
def _pattern(language: str, style: str) -> str:
    dates = needed("babel.dates", "train")
    return str(dates.get_date_format(style, language).format)


@cache
def _styles(language: str) -> list[str]:
    """In which the month is a word."""
    places = {style: set(FIELD.findall(_pattern(language, style))) for style in STYLES}
    return [style for style in STYLES if places[style] & MONTHS and places[style] <= NUMBERS | NAMES | MONTHS]


@cache
def _around(language: str, style: str, month: int, weekday: int) -> tuple[str, str, str]:
    """What stands before the month's word, the word, and what stands behind it, with places for day and year.

    Babel takes 50 microseconds for a date, and 3,000 of these answer for all.
    """
    dates = needed("babel.dates", "train")
    like = next(day for day in (datetime.date(2024, month, 1 + n) for n in range(7)) if day.weekday() == weekday)
    fields = dates.DateTimeFormat(like, language)

    def named(place: re.Match[str]) -> str:
        return place[0] if place[1] in NUMBERS else str(fields[place[1]])

    pattern = _pattern(language, style)
    (name,) = set(FIELD.findall(pattern)) & MONTHS
    before, after = (FIELD.sub(named, part) for part in pattern.split(f"%({name})s"))
    return before, fields[name], after


@cache
def _digits(language: str) -> dict[int, str]:
    zero = ZERO[needed("babel", "train").Locale.parse(language).default_numbering_system]
    return {ord("0") + digit: chr(ord(zero) + digit) for digit in range(10)}


def _fingerprint(rows: list[Row]) -> str:
    """Of the held-out rows, in which every language, style and month stands."""
    every = hashlib.blake2b(digest_size=16)
    for row in rows:
        every.update(f"{row['source']}\t{row['target']}\n".encode())
    return every.hexdigest()
