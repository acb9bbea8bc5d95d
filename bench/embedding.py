"""Embedding against sentence-transformers, at the batch size that suits it best."""

from __future__ import annotations

import pydoc_data.topics
import re
from collections.abc import Iterator
from functools import partial

import torch
from sentence_transformers import SentenceTransformer

import regard
from bench.table import Row
from bench.timing import medians
from regard.pretrained.locate import locate_files
from regard.pretrained.offline import DEFAULT_MODEL

BATCHES = (16, 32, 64, 128, 256)


def sentences(count: int) -> list[str]:
    """Different sentences and lines of Python's documentation, of 3 to 60 words, from all over it."""
    topics = pydoc_data.topics.topics
    paragraphs = (" ".join(p.split()) for name in sorted(topics) for p in re.split(r"\n\s*\n", topics[name]))
    every = (s for p in paragraphs for s in re.split(r"(?<=[.!?:;]) (?=[A-Z])", p) if 3 <= len(s.split()) <= 60)
    unique = list(dict.fromkeys(every))
    return [unique[n * len(unique) // count] for n in range(count)]


def embedding() -> Iterator[Row]:
    """2,000 sentences by the default model, and the same vectors."""
    texts = sentences(2000)
    pretrained = regard.load()
    theirs = SentenceTransformer(str(locate_files(DEFAULT_MODEL).require("config.json").parent), device="cpu")
    error = (pretrained.embed(texts) - torch.tensor(theirs.encode(texts))).abs().max().item()
    if error > 1e-5:
        raise AssertionError(f"vectors differ by {error:.1e}")
    once = medians(*(partial(theirs.encode, texts, batch_size=size) for size in BATCHES), rounds=1, warm=False)
    best = BATCHES[once.index(min(once))]
    calls = (partial(pretrained.embed, texts), partial(theirs.encode, texts, batch_size=best))
    our_time, their_time = medians(*calls, rounds=5, warm=False)
    against = f"sentence-transformers, batch {best}, its best of {BATCHES[0]} to {BATCHES[-1]}"
    yield Row(
        "embed 2,000 sentences of Python's documentation, MiniLM", against, f"{their_time / our_time:.2f}x", "1.5x"
    )
