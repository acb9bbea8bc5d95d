"""The routes of the server, as an ASGI application: the page, the model's facts, and what is asked of it."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from functools import partial
from typing import Any

from starlette.applications import Starlette
from starlette.requests import ClientDisconnect, Request
from starlette.responses import JSONResponse, Response
from starlette.routing import Route

from regard.errors import InputError
from regard.server.answers import answer_question
from regard.server.effect_answers import answer_effects
from regard.server.events import Application, EventResponse, EventStream, Receive, Scope, Send, send_error
from regard.server.fields import parse_object
from regard.server.generation_answers import answer_generation
from regard.server.limits import Limits
from regard.server.live_model import LiveModel
from regard.server.page import live_page
from regard.server.questions import read_effect_question, read_generate_question, read_question
from regard.server.queueing import ComputeQueue, QueueFullError, Task
from regard.server.security import AccessRules, SecureApplication

Read = Callable[[Any, Limits], Any]
"""Reads the JSON of a request."""

Compute = Callable[[LiveModel, Any, Limits, Task], Any]
"""Answers what was read, in the computing thread."""


class BodyTooLargeError(Exception):
    """A body has more bytes than the limits allow."""


class Asking:
    """The route of one kind of question: reads it, waits in the queue, and streams the events of its answer."""

    def __init__(self, model: LiveModel, queue: ComputeQueue, limits: Limits, read: Read, compute: Compute) -> None:
        self.model, self.queue, self.limits, self.read, self.compute = model, queue, limits, read, compute

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Answer one request."""
        request = Request(scope, receive)
        try:
            body = await asyncio.wait_for(read_body(request, self.limits.body_bytes), self.limits.receive_seconds)
            question = self.read(parse_object(body), self.limits)
        except InputError as error:
            return await send_error(send, 400, str(error), error.argument or "body")
        except BodyTooLargeError:
            message = f"the body of the request has more than {self.limits.body_bytes:,} bytes: ask with shorter texts"
            return await send_error(send, 413, message, "body")
        except TimeoutError:
            message = f"the body of the request did not arrive within {self.limits.receive_seconds:g} seconds"
            return await send_error(send, 408, message, "body")
        except ClientDisconnect:
            return None
        stream = EventStream(asyncio.get_running_loop())
        task = Task(partial(self.compute, self.model, question, self.limits), stream.put, stream.end)
        try:
            self.queue.submit(task)
        except QueueFullError as error:
            return await send_error(send, 503, str(error), "queue")
        response = EventResponse(stream, partial(self.queue.cancel, task), self.limits.send_seconds)
        return await response(scope, receive, send)


async def read_body(request: Request, most: int) -> bytes:
    """The body of a request, of which no more than the limit is ever in memory.

    Raises:
        BodyTooLargeError: it has more bytes.
    """
    announced = request.headers.get("content-length", "")
    if announced.isdecimal() and int(announced[:20]) > most:
        raise BodyTooLargeError
    body = bytearray()
    async for chunk in request.stream():
        body += chunk
        if len(body) > most:
            raise BodyTooLargeError
    return bytes(body)


def make_application(model: LiveModel, queue: ComputeQueue, rules: AccessRules, limits: Limits) -> Application:
    """The application of one model.

    Args:
        model: what is asked.
        queue: computes the answers.
        rules: who may ask.
        limits: of a request.
    """

    async def page(request: Request) -> Response:
        html, policy = live_page(model.facts()["name"], rules.frame_ancestors)
        return Response(html, media_type="text/html", headers={"content-security-policy": policy})

    async def facts(request: Request) -> Response:
        return JSONResponse(model.facts())

    asking = partial(Asking, model, queue, limits)
    routes = [
        Route("/", page),
        Route("/model", facts),
        Route("/ask", asking(read_question, answer_question), methods=["POST"]),
        Route("/effects", asking(read_effect_question, answer_effects), methods=["POST"]),
        Route("/generate", asking(read_generate_question, answer_generation), methods=["POST"]),
    ]
    application = Starlette(routes=routes)
    application.router.redirect_slashes = False  # the address it would lead to lacks the secret
    return SecureApplication(application, rules)
