"""`Limits`: the sizes, counts and times that a request may take."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True)
class Limits:
    """What a request may take of the server. What exceeds a limit is refused by name."""

    body_bytes: int = 2**18
    """Of the JSON of a request."""
    characters: int = 20_000
    """Of one text."""
    tokens: int = 1_024
    """Of one text, if the model does not read fewer."""
    edits: int = 64
    """Of one question."""
    new_tokens: int = 256
    """That one request writes."""
    waiting: int = 64
    """The most requests that wait while one is computed."""
    connections: int = 256
    """The most open connections."""
    header_bytes: int = 2**14
    """Of the headers of a request."""
    answer_bytes: int = 8_000_000
    """About how large a text's queries, keys and values may be. Of heads beyond it, an answer has pictures."""
    compute_seconds: float = 300.0
    """Of computing one answer."""
    receive_seconds: float = 10.0
    """In which the headers, and then the body, of a request must arrive. A connection may be idle as long."""
    send_seconds: float = 30.0
    """In which the client must read each 64 KiB of an answer."""
