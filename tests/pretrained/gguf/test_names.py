"""Names of GGUF files and of folders that hold them; and the package that reads them."""

import sys

import pytest

import regard
from gguf_files import write_gguf
from regard import InputError
from weights import random_checkpoint, same_weights


@pytest.fixture
def checkpoint(tmp_path):
    """A small checkpoint to write files of."""
    random_checkpoint(tmp_path / "checkpoint", "llama")
    return tmp_path / "checkpoint"


@pytest.mark.parametrize("file", ["model.gguf", "Model.Q8_0.GGUF"])
def test_a_file_and_a_folder_that_holds_one_are_the_same_model(checkpoint, tmp_path, file):
    folder = tmp_path / "folder"
    folder.mkdir()
    (folder / "README.md").write_text("a model")
    original = regard.load(checkpoint)
    path = write_gguf(folder / file, checkpoint)
    for name in (path, str(path), folder):
        pretrained = regard.load(name)
        assert pretrained.name == str(name)
        assert same_weights(pretrained, original)


def test_of_several_files_in_a_folder_one_must_be_chosen(checkpoint, tmp_path):
    for name in ("b.gguf", "a.gguf"):
        write_gguf(tmp_path / name, checkpoint)
    with pytest.raises(InputError, match=rf"several GGUF files: choose one, such as {tmp_path}/a\.gguf, of a\.gguf, b"):
        regard.load(tmp_path)


def test_a_folder_with_safetensors_is_what_they_hold(checkpoint, tmp_path):
    random_checkpoint(tmp_path / "other", "gpt2")
    write_gguf(checkpoint / "model.gguf", tmp_path / "other")
    assert regard.load(checkpoint).config.positions == "rotary"


def test_a_folder_with_a_config_but_no_weights_is_what_its_gguf_file_holds(checkpoint):
    original = regard.load(checkpoint)
    write_gguf(checkpoint / "model.gguf", checkpoint)
    (checkpoint / "model.safetensors").unlink()
    assert same_weights(regard.load(checkpoint), original)


def test_a_link_out_of_a_folder_is_refused(checkpoint, tmp_path):
    folder = tmp_path / "folder"
    folder.mkdir()
    (folder / "model.gguf").symlink_to(write_gguf(tmp_path / "elsewhere.gguf", checkpoint))
    with pytest.raises(InputError, match=r"is a link out of its folder, to .*elsewhere"):
        regard.load(folder)


@pytest.mark.parametrize(
    ("name", "message"),
    [
        ("nowhere.gguf", r"'nowhere\.gguf' is not a file here, and not a Hub name such as 'OWNER/NAME/FILE\.gguf'"),
        ("/no/such/model.gguf", r"'/no/such/model\.gguf' is not a file here, and not a Hub name"),
        ("./model.gguf", r"'\./model\.gguf' is not a file here, and not a Hub name"),
    ],
)
def test_a_file_that_is_not_there_is_named(name, message):
    with pytest.raises(InputError, match=message):
        regard.load(name)


def test_a_folder_with_the_suffix_of_a_file_is_a_folder(tmp_path):
    (tmp_path / "model.gguf").mkdir()
    with pytest.raises(InputError, match=r"model\.gguf/config\.json is missing or not a file"):
        regard.load(tmp_path / "model.gguf")


def test_without_the_package_the_message_says_how_to_install_it(checkpoint, tmp_path, monkeypatch):
    path = write_gguf(tmp_path / "model.gguf", checkpoint)
    monkeypatch.setitem(sys.modules, "gguf", None)  # as if it were not there: an import fails
    with pytest.raises(
        InputError, match=r"is a GGUF file, and gguf, which reads it, is not installed: pip install '\.\[gguf\]'"
    ):
        regard.load(path)


def test_another_file_is_no_model(tmp_path):
    path = tmp_path / "model.bin"
    path.write_bytes(b"GGUF")
    with pytest.raises(InputError, match=r"is a file; hand over the folder that holds .*, or a file \.gguf"):
        regard.load(path)
