"""`regard see`: the page of a text, a file or a recording, and one clear line for what cannot be shown."""

import os
import re
from pathlib import Path

import pytest
import torch

import regard
from captioners import image as noise
from regard.lens.text import run
from terminals import refusal
from views.recordings import random_map, recorded
from weights import RIVER, minilm


@pytest.fixture(scope="module")
def kept(tmp_path_factory):
    path = tmp_path_factory.mktemp("kept") / "river.safetensors"
    run.run(RIVER, minilm(), [0]).recording.save(path)
    return path


def test_a_page_is_written(command, tmp_path):
    page = tmp_path / "page.html"
    code, out, err = command("see", RIVER, "--layers", "0,5", "--out", page)
    assert (code, err) == (0, "")
    assert out.startswith(f"{page}: ")
    assert float(re.search(r"([\d.]+) MB$", out.strip())[1]) == round(page.stat().st_size / 1e6, 2)
    assert f"<title>{RIVER}</title>" in page.read_text(encoding="utf-8")
    assert list(tmp_path.iterdir()) == [page]


def test_a_recording_is_shown(command, tmp_path, kept):
    assert command("see", "--recording", kept, "--out", tmp_path / "page.html", "--heads", "0.3")[0] == 0
    assert "river.safetensors" in (tmp_path / "page.html").read_text(encoding="utf-8")


def test_an_image_lies_under_the_weights_of_a_recording(command, tmp_path):
    image, recording = tmp_path / "noise.png", tmp_path / "seen.safetensors"
    noise(size=(96, 96)).save(image)
    recorded(random_map(3, 3)).save(recording)
    sizes = []
    for options in ([], ["--image", image]):
        assert command("see", "--recording", recording, "--out", tmp_path / "page.html", *options)[::2] == (0, "")
        sizes.append((tmp_path / "page.html").stat().st_size)
    assert sizes[1] - sizes[0] > image.stat().st_size


@pytest.mark.parametrize(
    ("family", "arguments", "megabytes"),
    [("gpt2", ["--file", "story.txt"], 0.6), ("bart", ["the river", "--target", "a bank"], 5)],
)
def test_other_models_are_shown(command, models, tmp_path, monkeypatch, family, arguments, megabytes):
    """A file to a decoder, in a page of a size; a text and a target to an encoder-decoder."""
    monkeypatch.chdir(tmp_path)
    Path("story.txt").write_text("the river bank")
    code, _, err = command("see", *arguments, "--model", models[family], "--out", "x.html", "--max-size", megabytes)
    assert (code, err) == (0, "")
    assert 0 < Path("x.html").stat().st_size <= megabytes * 1e6


@pytest.mark.parametrize(("query", "says"), [((), "bank"), (("--query", "bank"), "What query 11 'bank' looks at")])
def test_a_head_is_drawn_in_the_terminal(command, tmp_path, monkeypatch, query, says):
    monkeypatch.chdir(tmp_path)
    code, out, err = command("see", RIVER, "--terminal", "--heads", "0.4", *query)
    assert (code, err) == (0, "")
    assert says in out
    assert list(tmp_path.iterdir()) == []


@pytest.mark.parametrize(
    ("arguments", "said"),
    [
        ([RIVER, "--out", "-"], "--out -: a page is a file; give it a name"),
        ([RIVER, "--terminal", "--open"], "--terminal draws here and writes no page"),
        (["--recording", "kept.safetensors", "--model", "other"], "--recording shows a file: --model"),
        ([RIVER, "--image", "cat.png"], "--image belongs to the page of a --recording"),
        (["--recording", "empty", "--image", "missing.png"], "missing.png cannot be read"),
        ([], "give a TEXT, --file PATH or --recording PATH, one of them"),
        (["a", "--file", "b"], "one of them"),
        (["the river", "--query", "river"], "--query belongs to --terminal"),
        (["the river", "--terminal", "--query", "4"], "no query '4': give a token, or a position from 0 to 3"),
        (["the river", "--heads", "9.0"], "there is no layer 9 here"),
        (["the river", "--heads", "0.99"], "has no head 99"),
        (["the river", "--heads", "0.99", "--terminal"], "has no head 99"),
        (["the river", "--heads", "3"], "LAYER.HEAD"),
        (["the river", "--target", "x"], "target"),
        (["the river", "--max-size", "0.1"], "--max-size"),
        (["the river", "--max-size", "inf"], "--max-size inf: a number of megabytes"),
        (["the river", "--out", "/no/such/folder/page.html"], "cannot write '/no/such/folder/page.html'"),
        (["--file", "missing.txt"], "missing.txt cannot be read"),
        (["--file", "latin.txt"], "latin.txt is no UTF-8 text"),
        (["--recording", "latin.txt"], "latin.txt"),
        (["--recording", "missing.safetensors"], "missing.safetensors"),
        (["--recording", "latin.txt", "--compare", "x"], "belong to a TEXT"),
        (["--recording", "empty"], "no attention"),
        (["--recording", "empty", "--terminal"], "no head to choose"),
    ],
)
def test_what_cannot_be_shown_is_one_line(command, tmp_path, monkeypatch, arguments, said):
    monkeypatch.chdir(tmp_path)
    Path("latin.txt").write_bytes(b"caf\xe9 river")
    regard.Recording().save("empty")
    assert said in refusal(command, "see", *arguments)
    assert sorted(os.listdir()) == ["empty", "latin.txt"]


def test_without_a_browser_the_page_is_there_all_the_same(command, tmp_path, monkeypatch, kept):
    monkeypatch.setenv("BROWSER", "/bin/false")
    monkeypatch.setattr("webbrowser._tryorder", [])
    code, _, err = command("see", "--recording", kept, "--out", tmp_path / "page.html", "--open")
    assert (code, err) == (0, "no browser could be opened: open the file yourself\n")
    assert (tmp_path / "page.html").is_file()


def test_what_nobody_can_compute_is_said_and_the_rest_is_shown(command, tmp_path):
    path, maps = tmp_path / "nan.safetensors", (random_map(3, 3), random_map(3, 3))
    maps[0].q.fill_(torch.nan)
    recorded(*maps).save(path)
    assert command("see", "--recording", path, "--out", tmp_path / "page.html")[::2] == (0, "")
    assert command("see", "--recording", path, "--terminal")[0] == 0
    code, out, err = command("see", "--recording", path, "--terminal", "--heads", "0.0")
    assert (code, err) == (0, "")
    assert "DO NOT TRUST this map" in out


def test_what_could_steer_the_terminal_is_made_visible(command, tmp_path):
    hostile = "\x1b[31m\x07\u202e\r"
    path = tmp_path / f"kept{hostile}"
    recording = recorded(random_map(3, 3), path=f"layers.0{hostile}", mask=hostile)
    recording.label([hostile, "river", f"bank{hostile}"])
    recording.save(path)
    for code, arguments in (
        (0, ["--recording", path, "--terminal"]),
        (0, ["--recording", path, "--out", tmp_path / f"{hostile}.html"]),
        (2, ["--recording", path, "--heads", "7.0"]),
        (2, ["--recording", tmp_path / f"no{hostile}"]),
        (2, ["the river", "--model", f"no{hostile}/model"]),
    ):
        ended, out, err = command("see", *arguments)
        assert (ended, set("\x1b\x07\u202e\r") & set(out + err)) == (code, set())
        assert "7.0" in arguments or "\\x1b[31m\\x07\\u202e\\r" in out + err


def test_a_fault_of_ours_is_not_said_to_be_the_users(command, tmp_path, monkeypatch, kept):
    def fault(*_, **__):
        raise KeyError("ours")

    monkeypatch.setattr("json.dumps", fault)
    with pytest.raises(KeyError, match="ours"):
        command("see", "--recording", kept, "--out", tmp_path / "page.html")
    assert list(tmp_path.iterdir()) == []
