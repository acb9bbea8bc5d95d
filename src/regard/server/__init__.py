"""The server of `regard live`: a page whose model runs on this machine.

It listens on 127.0.0.1, behind a secret in the address. It is stateless: a request carries its texts, and nothing of
it is kept, written to disk or logged. One thread computes, first come first served.

- `live`: `regard.live`: a model's page, served from this process
- `live_server`: `LiveServer`: the server in the foreground, or in a thread of its own
- `http_server`: uvicorn with the limits of a request
- `http_protocol`: connections that send no request in time are closed
- `application`: the routes
- `security`: the secret, `Host` and `Origin`, and the headers of every response
- `page`: the page and its policy
- `frame`: the page in the output of a notebook's cell
- `limits`: the sizes, counts and times that a request may take
- `fields`: a JSON object, read field by field
- `questions`: what requests ask
- `queueing`: the computing thread, and the place of each request in its queue
- `events`: server-sent events, and the stream of one request
- `live_model`: a model as the server sees it; `pretrained_model` is one of `regard.load`, `user_module` one of a user
- `tokens`: tokens with their logits and probabilities
- `answers`: a question's `Answer`
- `movement`: what the edits of a question changed
- `effect_answers`: effects, and those that are known so far
- `generation_answers`: a text, token by token

The objects of requests and answers are those of ``views/html/static/live/engine.js``.
"""

from regard.server.limits import Limits
from regard.server.live_server import LiveServer

__all__ = ["Limits", "LiveServer"]
