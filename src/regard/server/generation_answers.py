"""`WrittenToken` for each token that a model writes, and at the end the `Answer` of the whole text."""

from __future__ import annotations

import time
from typing import Any

import torch

from regard.decoding import Greedy, Sample
from regard.errors import errors_of_argument
from regard.generation.sampling import token_selector
from regard.server.answers import text_answer
from regard.server.limits import Limits
from regard.server.live_model import LiveModel, TextWriter
from regard.server.questions import GenerateQuestion
from regard.server.queueing import Task
from regard.server.tokens import likeliest_ids, tokens_of

INCOMPLETE_BYTES = "\N{REPLACEMENT CHARACTER}"
"""What a tokenizer decodes the first bytes of a character to."""


@torch.no_grad()
def answer_generation(model: LiveModel, question: GenerateQuestion, limits: Limits, task: Task) -> dict[str, Any]:
    """Write a text, a ``token`` event for each token; then its `Answer`.

    Args:
        model: the model.
        question: what is asked.
        limits: of the server.
        task: is checked before each token, and told the tokens.

    Raises:
        InputError: a model that writes no text; a text that is too long with the new tokens; no such head.
    """
    started = time.perf_counter()
    with errors_of_argument("text"):
        model.read(question.text)
        writer = model.writer(question.text, question.max_new_tokens, question.attention, question.head)
    text = question.text + _write(model, question, writer, task)
    task.check()
    with errors_of_argument("text"):
        reading = model.read(text)
    answer = text_answer(model, text, reading, limits, task)
    seconds = round(time.perf_counter() - started, 4)
    return {"texts": [answer], "similarity": None, "movement": None, "seconds": seconds}


def _write(model: LiveModel, question: GenerateQuestion, writer: TextWriter, task: Task) -> str:
    """The new text; each token is told."""
    temperature = question.temperature
    strategy = Sample(temperature=temperature, seed=question.seed) if temperature > 0 else Greedy()
    select, ids, shown, query = token_selector(strategy, 1), list[int](), "", writer.last_token
    step = writer.read_prompt()
    for count in range(question.max_new_tokens):
        task.check()
        (token,) = select(step.logits[None], [ids], [0])
        likeliest = likeliest_ids(step.logits)
        tokens = tokens_of(model, step.logits, [*likeliest, *([] if token in likeliest else [token])])
        ended = token in writer.stop_ids
        ids.append(token)
        text = shown if ended else writer.decode(ids).rstrip(INCOMPLETE_BYTES)
        written = next(each for each in tokens if each["id"] == token)
        event = {"token": written, "candidates": tokens, "text": text[len(shown) :], "query": query}
        task.emit("token", event | {"weights": step.weights})
        shown, query = text, written["token"]
        if ended or count + 1 == question.max_new_tokens:
            break
        step = writer.read_token(token)
    return shown
