"""Servers of small random models, and of real ones; each test asks over HTTP."""

from contextlib import ExitStack

import pytest

import regard
from regard.server import LiveServer
from weights import minilm, random_bert, random_checkpoint, smollm2


@pytest.fixture(scope="session")
def small_decoder(tmp_path_factory):
    """A random Llama of three layers of six heads, two of which share keys; 61 tokens, 64 positions."""
    folder = tmp_path_factory.mktemp("decoder") / "llama"
    random_checkpoint(folder, "llama")
    return regard.load(folder)


@pytest.fixture(scope="session")
def small_encoder(tmp_path_factory):
    """A random BERT of two layers of three heads; 20 positions."""
    folder = tmp_path_factory.mktemp("encoder") / "bert"
    random_bert(folder)
    return regard.load(folder)


@pytest.fixture
def serve(as_a_user_runs_it):
    """A function that starts a server; all are closed after the test."""
    with ExitStack() as stack:
        yield lambda *model, **options: stack.enter_context(LiveServer(*model, **options))


@pytest.fixture(scope="module")
def decoder_server(small_decoder):
    with LiveServer(small_decoder) as server:
        yield server


@pytest.fixture(scope="module")
def encoder_server(small_encoder):
    with LiveServer(small_encoder) as server:
        yield server


@pytest.fixture(scope="module")
def minilm_server():
    with LiveServer(minilm()) as server:
        yield server


@pytest.fixture(scope="module")
def smollm2_server():
    with LiveServer(smollm2()) as server:
        yield server
