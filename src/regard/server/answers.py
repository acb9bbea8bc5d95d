"""`Answer` of static/live/engine.js: the facts of each text, next tokens, similarity, and what edits changed."""

from __future__ import annotations

import time
from base64 import b64encode
from collections.abc import Iterable, Iterator, Mapping
from typing import Any

from regard.errors import InputError, errors_of_argument
from regard.server.limits import Limits
from regard.server.live_model import LiveModel, TextReading
from regard.server.movement import cosine, movement
from regard.server.questions import Question
from regard.server.queueing import Task
from regard.server.tokens import likeliest_tokens
from regard.views.html.page import build_contents

MAX_TITLE = 120
"""The characters of a text that are its title."""


def answer_question(model: LiveModel, question: Question, limits: Limits, task: Task) -> dict[str, Any]:
    """An `Answer`.

    Args:
        model: the model.
        question: what is asked.
        limits: of the server.
        task: is checked between the steps.

    Raises:
        InputError: a text that the model cannot read; an edit of a head or a token that is not there.
    """
    started = time.perf_counter()
    readings = []
    for n, text in enumerate(question.texts):
        task.check()
        with errors_of_argument(f"texts[{n}]"):
            readings.append(model.read(text))
    task.check()
    context = model.context(question.texts) if len(readings) == 2 else None
    answers = [
        text_answer(model, text, reading, limits, task, None if n else context)
        for n, (text, reading) in enumerate(zip(question.texts, readings, strict=True))
    ]
    vectors = [reading.vector for reading in readings]
    moved = None
    if question.edits:
        paths = [attention["path"] for attention in answers[0]["facts"]["attentions"]]
        moved = movement(model, question, readings, paths, task)
    return {
        "texts": answers,
        "similarity": cosine(vectors[0], vectors[1]) if len(vectors) == 2 else None,
        "movement": moved,
        "seconds": round(time.perf_counter() - started, 4),
    }


def text_answer(
    model: LiveModel,
    text: str,
    reading: TextReading,
    limits: Limits,
    task: Task,
    context: Mapping[str, Any] | None = None,
) -> dict[str, Any]:
    """A `TextAnswer`.

    Args:
        model: the model.
        text: as it was asked about.
        reading: of the text, without edits.
        limits: of the server.
        task: is checked between the attentions.
        context: of two texts, for the facts of the first.

    Raises:
        InputError: the model computes NaN or infinities.
    """

    def checked(paths: Iterable[str]) -> Iterator[str]:
        for path in paths:
            task.check()
            yield path

    try:
        facts, numbers = build_contents(
            reading.recording,
            title=text[:MAX_TITLE],
            model=model.name,
            max_size=limits.answer_bytes,
            context=context,
            progress=checked,
        )
    except ValueError as error:
        raise InputError(str(error), "texts") from error
    following = None if reading.logits is None else likeliest_tokens(model, reading.logits)
    return {"facts": facts, "numbers": b64encode(numbers).decode("ascii"), "next": following}
