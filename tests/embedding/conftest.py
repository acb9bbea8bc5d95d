"""A small encoder."""

import pytest

import regard
from embedding.text_files import texts, write_lines
from regard.embedding import TextSource
from weights import random_bert


@pytest.fixture(scope="session")
def folder(tmp_path_factory):
    folder = tmp_path_factory.mktemp("encoder")
    random_bert(folder, max_position_embeddings=40)
    return folder


@pytest.fixture(scope="session")
def encoder(folder):
    return regard.load(folder)


@pytest.fixture
def source(tmp_path):
    return TextSource(str(write_lines(tmp_path / "texts.txt", texts(300))))
