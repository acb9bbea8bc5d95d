"""`regard see`: the page of a text, a file or a recording, and one clear line for what cannot be shown."""

import re

import pytest

import regard
from regard.lens import look
from weights import RIVER, minilm, random_checkpoint


@pytest.fixture(scope="module")
def models(tmp_path_factory):
    folders = {}
    for family in ("gpt2", "bart"):
        folders[family] = tmp_path_factory.mktemp(family)
        random_checkpoint(folders[family], family)
    return folders


@pytest.fixture(scope="module")
def kept(tmp_path_factory):
    path = tmp_path_factory.mktemp("kept") / "river.safetensors"
    look.run(RIVER, minilm(), [0]).recording.save(path)
    return path


def test_a_page_is_written(command, tmp_path):
    page = tmp_path / "page.html"
    code, out, err = command("see", RIVER, "--layers", "0,5", "--out", page)
    assert (code, err) == (0, "")
    assert out.startswith(f"{page}: ")
    assert float(re.search(r"([\d.]+) MB$", out.strip())[1]) == round(page.stat().st_size / 1e6, 2)
    assert f"<title>{RIVER}</title>" in page.read_text(encoding="utf-8")
    assert list(tmp_path.iterdir()) == [page]


def test_a_recording_and_a_file_are_shown(command, tmp_path, kept, models):
    page, text = tmp_path / "page.html", tmp_path / "story.txt"
    assert command("see", "--recording", kept, "--out", page, "--heads", "0.3")[0] == 0
    assert "river.safetensors" in page.read_text(encoding="utf-8")
    text.write_text("the river bank")
    assert command("see", "--file", text, "--model", models["gpt2"], "--out", page, "--limit", "0.6")[0] == 0
    assert page.stat().st_size <= 600_000


def test_an_encoder_decoder_and_its_target(command, tmp_path, models):
    page = tmp_path / "page.html"
    code, _, err = command("see", "the river", "--target", "a bank", "--model", models["bart"], "--out", page)
    assert (code, err) == (0, "")
    assert page.is_file()


def test_a_head_is_drawn_in_the_terminal(command, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    code, out, err = command("see", RIVER, "--terminal", "--heads", "0.4")
    assert (code, err) == (0, "")
    assert "bank" in out
    assert list(tmp_path.iterdir()) == []


@pytest.mark.parametrize(
    ("arguments", "said"),
    [
        ([], "give a TEXT, --file PATH or --recording PATH, one of them"),
        (["a", "--file", "b"], "one of them"),
        (["   "], "the text is empty"),
        (["the river", "--heads", "9.0"], "there is no layer 9 here"),
        (["the river", "--heads", "0.99"], "has no head 99"),
        (["the river", "--heads", "0.99", "--terminal"], "has no head 99"),
        (["the river", "--heads", "3"], "LAYER.HEAD"),
        (["the river", "--layers", "9"], "there is no layer 9"),
        (["the river", "--target", "x"], "target"),
        (["the river", "--limit", "0.1"], "--limit"),
        (["the river", "--limit", "nan"], "--limit"),
        (["the river", "--limit", "inf"], "--limit inf: a number of megabytes"),
        (["the river", "--model", "/no/such/model"], "/no/such/model"),
        (["the river", "--out", "/no/such/folder/page.html"], "cannot write '/no/such/folder/page.html'"),
        (["river " * 600], "positions for 512"),
        (["--file", "missing.txt"], "missing.txt cannot be read"),
        (["--file", "latin.txt"], "latin.txt is no UTF-8 text"),
        (["--recording", "latin.txt"], "latin.txt"),
        (["--recording", "missing.safetensors"], "missing.safetensors"),
        (["--recording", "latin.txt", "--compare", "x"], "belong to a TEXT"),
    ],
)
def test_what_cannot_be_shown_is_one_line(command, tmp_path, monkeypatch, arguments, said):
    monkeypatch.chdir(tmp_path)
    (tmp_path / "latin.txt").write_bytes(b"caf\xe9 river")
    code, out, err = command("see", *arguments)
    assert (code, out) == (2, "")
    assert said in err
    assert err.count("\n") == 1
    assert "Traceback" not in err
    assert [path.name for path in tmp_path.iterdir()] == ["latin.txt"]


def test_a_recording_with_nothing_in_it_is_one_line(command, tmp_path):
    path = tmp_path / "empty.safetensors"
    regard.Recording().save(path)
    for more in ([], ["--terminal"]):
        code, _, err = command("see", "--recording", path, "--out", tmp_path / "page.html", *more)
        assert code == 2
        assert err.count("\n") == 1
    assert not (tmp_path / "page.html").exists()


def test_without_a_browser_the_page_is_there_all_the_same(command, tmp_path, monkeypatch, kept):
    monkeypatch.setenv("BROWSER", "/bin/false")
    monkeypatch.setattr("webbrowser._tryorder", [])
    code, _, err = command("see", "--recording", kept, "--out", tmp_path / "page.html", "--open")
    assert (code, err) == (0, "no browser could be opened: open the file yourself\n")
    assert (tmp_path / "page.html").is_file()
