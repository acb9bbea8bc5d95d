"""Atomic writes: a file or a folder is complete or as it was before, and nothing else is left behind."""

import os
import threading
from io import FileIO

import pytest

from regard import InputError
from regard.files import atomic_path, ensure_writable, fsync, publish, remove_drafts, try_lock, write_json, write_text


def names(folder):
    return sorted(path.name for path in folder.iterdir())


@pytest.mark.parametrize("error", [OSError, KeyboardInterrupt])
def test_an_error_leaves_the_file_as_it_was(tmp_path, error):
    def write_half(path, is_folder=False):
        with atomic_path(path) as draft:
            (draft / "sub").mkdir(parents=True) if is_folder else draft.write_text("half")
            raise error

    path = tmp_path / "a.txt"
    path.write_text("before")
    with pytest.raises(error):
        write_half(path)
    assert (names(tmp_path), path.read_text()) == (["a.txt"], "before")
    with pytest.raises(error):
        write_half(tmp_path / "folder", is_folder=True)
    assert names(tmp_path) == ["a.txt"]


def test_the_file_appears_at_the_end(tmp_path):
    with atomic_path(tmp_path / "folder") as draft:
        draft.mkdir()
        (draft / "a.txt").write_text("new")
        assert not (tmp_path / "folder").exists()
    assert (tmp_path / "folder" / "a.txt").read_text() == "new"
    assert names(tmp_path) == ["folder"]


def no_links(*_):
    raise PermissionError(1, "Operation not permitted")  # as exFAT says it


@pytest.mark.parametrize("link", [os.link, no_links])
def test_a_published_file_never_replaces_another(tmp_path, monkeypatch, link):
    monkeypatch.setattr(os, "link", link)
    draft, target = tmp_path / "draft", tmp_path / "a.txt"
    draft.write_text("new")
    publish(draft, target)
    assert (names(tmp_path), target.read_text()) == (["a.txt"], "new")
    draft.write_text("newer")
    with pytest.raises(FileExistsError):
        publish(draft, target)
    assert (names(tmp_path), target.read_text()) == (["a.txt", "draft"], "new")


def test_a_lock_ends_with_the_open_file(tmp_path):
    with FileIO(tmp_path / "a", "w") as first, FileIO(tmp_path / "a") as second:
        assert try_lock(first)
        assert not try_lock(second)
        first.close()
        assert try_lock(second)


def test_a_file_that_cannot_be_locked_is_named(tmp_path):
    (tmp_path / "a").touch()
    message = r"cannot be locked: Bad file descriptor\. Without a lock two runs could"
    with FileIO(os.open(tmp_path / "a", os.O_PATH)) as stream, pytest.raises(InputError, match=message):
        try_lock(stream)


def test_a_link_stays_a_link_and_a_pipe_a_pipe(tmp_path):
    (tmp_path / "real.txt").write_text("before")
    (tmp_path / "link.txt").symlink_to(tmp_path / "real.txt")
    write_text("new", tmp_path / "link.txt")
    assert (tmp_path / "link.txt").is_symlink()
    assert (tmp_path / "real.txt").read_text() == "new"
    os.mkfifo(tmp_path / "pipe")
    received = []
    reader = threading.Thread(target=lambda: received.append((tmp_path / "pipe").read_text()))
    reader.start()
    write_json({"a": 1}, tmp_path / "pipe")
    reader.join()
    assert received == ['{\n "a": 1\n}\n']
    assert (tmp_path / "pipe").is_fifo()


def test_names_of_any_length_and_names_that_no_file_can_have(tmp_path):
    write_text("long", tmp_path / ("a" * 255))
    assert names(tmp_path) == ["a" * 255]
    for name, message in (("a" * 256, "File name too long"), ("missing/a", "No such file"), ("", "Is a directory")):
        with pytest.raises(InputError, match=f"cannot write .*{message}"):
            write_text("text", tmp_path / name)
    with pytest.raises(InputError, match="cannot write '/dev/full': No space left on device"):
        write_text("text", "/dev/full")
    with pytest.raises(InputError, match=r"cannot write .*null"):
        write_text("text", f"{tmp_path}/\0")
    with pytest.raises(ValueError, match="JSON"):
        write_json({"a": float("nan")}, tmp_path / "a.json")
    assert names(tmp_path) == ["a" * 255]


def test_drafts_of_a_killed_process_are_removed(tmp_path):
    (tmp_path / ".draft-1").write_text("half")
    (tmp_path / ".draft-2").mkdir()
    (tmp_path / "a.txt").write_text("mine")
    remove_drafts(tmp_path)
    assert names(tmp_path) == ["a.txt"]
    remove_drafts(tmp_path / "missing")


def test_whether_a_file_can_be_written_is_known_before(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    assert ensure_writable("a.txt") == tmp_path / "a.txt"
    assert names(tmp_path) == []
    (tmp_path / "circle").symlink_to(tmp_path / "circle")
    for name, message in (("missing/a", "there is no folder"), (".", "it is no file"), ("circle", ""), ("\0", "null")):
        with pytest.raises(InputError, match=f"cannot write .*{message}"):
            ensure_writable(name)


def test_every_file_of_a_folder_is_brought_to_the_disk(tmp_path, monkeypatch):
    (tmp_path / "sub").mkdir()
    for name in ("a", "sub/b"):
        (tmp_path / name).touch()
    synced = []
    monkeypatch.setattr(os, "fsync", lambda file: synced.append(os.readlink(f"/proc/self/fd/{file}")))
    fsync(tmp_path)
    fsync(tmp_path / "a")
    assert sorted(synced) == [str(tmp_path / "a"), str(tmp_path / "a"), str(tmp_path / "sub" / "b")]
