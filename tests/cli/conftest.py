"""What the tests of several commands share."""

import pytest

from weights import random_checkpoint


@pytest.fixture(scope="session")
def models(tmp_path_factory):
    """A folder for each kind of model."""
    folders = {family: tmp_path_factory.mktemp(family) for family in ("bert", "gpt2", "mistral", "bart", "t5")}
    for family, folder in folders.items():
        random_checkpoint(folder, family)
    return folders


@pytest.fixture
def here(tmp_path, monkeypatch):
    """An empty folder, in which the command runs."""
    monkeypatch.chdir(tmp_path)
    return tmp_path
