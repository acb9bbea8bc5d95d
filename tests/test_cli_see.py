"""`regard see`: the page of a text, a file or a recording, and one clear line for what cannot be shown."""

import os
import re
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest
import torch
import typer
from safetensors.torch import save_file

import regard
from regard.cli.app import app
from regard.lens.maps.map import AttentionMap
from regard.lens.text import run
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


def test_a_recording_and_a_file_are_shown(command, tmp_path, kept, models):
    page, text = tmp_path / "page.html", tmp_path / "story.txt"
    assert command("see", "--recording", kept, "--out", page, "--heads", "0.3")[0] == 0
    assert "river.safetensors" in page.read_text(encoding="utf-8")
    text.write_text("the river bank")
    assert command("see", "--file", text, "--model", models["gpt2"], "--out", page, "--max-size", "0.6")[0] == 0
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


@pytest.mark.parametrize("query", ["bank", "11"])
def test_one_query_is_drawn_in_the_terminal(command, query):
    code, out, err = command("see", RIVER, "--terminal", "--heads", "0.4", "--query", query)
    assert (code, err) == (0, "")
    assert "What query 11 'bank' looks at" in out
    (row,) = [line for line in out.splitlines() if line.startswith("> ")]
    assert row.startswith("> 11 bank")


@pytest.mark.parametrize(
    ("arguments", "said"),
    [
        ([RIVER, "--out", "-"], "--out -: a page is a file; give it a name"),
        ([RIVER, "--terminal", "--open"], "--terminal draws here and writes no page"),
        (["--recording", "kept.safetensors", "--model", "other"], "--recording shows a file: --model"),
        ([], "give a TEXT, --file PATH or --recording PATH, one of them"),
        (["a", "--file", "b"], "one of them"),
        (["   "], "the text is empty"),
        (["the river", "--query", "river"], "--query belongs to --terminal"),
        (
            ["the river", "--terminal", "--query", "sea"],
            "no query 'sea': give a token, or a position from 0 to 3",
        ),
        (["the river", "--terminal", "--query", "4"], "there is no query '4'"),
        (["the river", "--heads", "9.0"], "there is no layer 9 here"),
        (["the river", "--heads", "0.99"], "has no head 99"),
        (["the river", "--heads", "0.99", "--terminal"], "has no head 99"),
        (["the river", "--heads", "3"], "LAYER.HEAD"),
        (["the river", "--layers", "9"], "there is no layer 9"),
        (["the river", "--target", "x"], "target"),
        (["the river", "--max-size", "0.1"], "--max-size"),
        (["the river", "--max-size", "nan"], "--max-size"),
        (["the river", "--max-size", "inf"], "--max-size inf: a number of megabytes"),
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
    for more, said in (
        (["--out", tmp_path / "page.html"], "nothing|no attention"),
        (["--terminal"], "no head to choose"),
    ):
        code, _, err = command("see", "--recording", path, *more)
        assert code == 2
        assert re.search(said, err)
        assert err.count("\n") == 1
    assert not (tmp_path / "page.html").exists()


def test_without_a_browser_the_page_is_there_all_the_same(command, tmp_path, monkeypatch, kept):
    monkeypatch.setenv("BROWSER", "/bin/false")
    monkeypatch.setattr("webbrowser._tryorder", [])
    code, _, err = command("see", "--recording", kept, "--out", tmp_path / "page.html", "--open")
    assert (code, err) == (0, "no browser could be opened: open the file yourself\n")
    assert (tmp_path / "page.html").is_file()


def test_help_names_every_option(command):
    code, out, _ = command("see", "--help")
    assert code == 0
    see = typer.main.get_command(app).commands["see"]
    options = [name for option in see.params for name in option.opts if name.startswith("--")]
    assert len(options) >= 11
    for option in options:
        assert re.search(rf"{option}\b", out), option
    assert 'Example: regard see "' in out
    assert "regard.html" in out


def test_an_interrupt_leaves_no_part_of_a_page(tmp_path):
    process = subprocess.Popen(
        [sys.executable, "-m", "regard", "see", RIVER * 40, "--out", str(tmp_path / "page.html")],
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        preexec_fn=lambda: signal.signal(signal.SIGINT, signal.SIG_DFL),  # a job in the background ignores it
    )
    while "_safetensors_rust" not in Path(f"/proc/{process.pid}/maps").read_text():
        assert process.poll() is None
        time.sleep(0.005)
    time.sleep(0.5)  # by now the model runs, or the page is put together
    process.send_signal(signal.SIGINT)
    said = process.communicate(timeout=60)
    assert (process.returncode, said) == (130, (b"", b""))
    assert list(tmp_path.iterdir()) == []


def test_a_device_takes_a_page_and_stays_a_device(command, kept):
    code, out, err = command("see", "--recording", kept, "--out", os.devnull)
    assert (code, err) == (0, "")
    assert out.startswith(f"{os.devnull}: ")
    assert Path(os.devnull).is_char_device()


def test_places_where_no_page_can_be_written_are_named(command, tmp_path, kept):
    for out, why in (
        ("/dev/full", "No space left on device"),
        ("/proc/page.html", "No such file or directory"),  # where not even root makes a file
        (tmp_path, "Is a directory"),
        (tmp_path / ("x" * 300), "File name too long"),
    ):
        code, shown, err = command("see", "--recording", kept, "--out", out)
        assert (code, shown) == (2, "")
        assert re.fullmatch(r"regard: cannot write '.*': .*\n", err)
        assert why in err
    assert list(tmp_path.iterdir()) == []


def test_a_page_takes_the_place_of_the_one_before_and_follows_links(command, tmp_path, kept):
    page, link = tmp_path / "page.html", tmp_path / "link.html"
    page.write_text("before")
    link.symlink_to(page)
    assert command("see", "--recording", kept, "--out", link)[0] == 0
    assert link.is_symlink()
    assert page.read_text(encoding="utf-8").startswith("<!doctype html>")
    assert command("see", "--recording", kept, "--out", page, "--max-size", "0.5", "--heads", "9.0")[0] == 2
    assert page.read_text(encoding="utf-8").startswith("<!doctype html>")
    assert len(list(tmp_path.iterdir())) == 2


@pytest.mark.parametrize("more", [[], ["--terminal"]])
def test_recordings_that_are_damaged_are_one_line(command, tmp_path, kept, more):
    data = kept.read_bytes()
    damaged = {
        "half": data[: len(data) // 2],
        "empty": b"",
        "begun": data[:5],
        "renamed": data.replace(b"attentions", b"attentionz"),
        "longer": data + b"more",
        "later": data.replace(b'"version":"1"', b'"version":"9"'),
    }
    for name, content in damaged.items():
        assert content != data
        (tmp_path / name).write_bytes(content)
    save_file({"weight": torch.ones(2)}, tmp_path / "weights")
    there = sorted(tmp_path.iterdir())
    for path in (*there, tmp_path, tmp_path / "missing"):
        code, out, err = command("see", "--recording", path, *(more or ["--out", tmp_path / "page.html"]))
        assert (code, out) == (2, "")
        assert str(path) in err
        assert err.count("\n") == 1
        assert sorted(tmp_path.iterdir()) == there


def test_what_nobody_can_compute_is_said_and_the_rest_is_shown(command, tmp_path):
    recording = regard.Recording()
    for layer, number in enumerate((torch.nan, 1.0)):
        q, k = torch.full((1, 2, 5, 4), number), torch.randn(1, 2, 5, 4)
        shape = (1, 2, 5, 5)
        m = AttentionMap(q, k)
        recording.add(f"layers.{layer}", m, shape=shape, mask="none", kernel="", kind="self", layer=layer)
    path, page = tmp_path / "kept", tmp_path / "page.html"
    recording.save(path)
    assert command("see", "--recording", path, "--out", page)[::2] == (0, "")
    assert command("see", "--recording", path, "--terminal")[0] == 0
    page.unlink()
    code, out, err = command("see", "--recording", path, "--terminal", "--heads", "0.0")
    assert (code, err) == (0, "")
    assert "DO NOT TRUST this map" in out
    assert list(tmp_path.iterdir()) == [path]


def test_what_could_steer_the_terminal_is_made_visible(command, tmp_path):
    hostile = "\x1b[31m\x07\u202e\r"
    recording = regard.Recording()
    m = AttentionMap(torch.randn(1, 1, 3, 4), torch.randn(1, 1, 3, 4))
    recording.add(f"layers.{hostile}", m, shape=(1, 1, 3, 3), mask=hostile, kernel=hostile, kind="self", layer=0)
    recording.label([hostile, "river", f"bank{hostile}"])
    path = tmp_path / f"kept{hostile}"
    recording.save(path)
    code, out, err = command("see", "--recording", path, "--terminal")
    assert (code, err) == (0, "")
    assert "\\x1b[31m\\x07\\u202e\\r" in out
    named = command("see", "--recording", path, "--out", tmp_path / f"{hostile}.html")
    asked = command("see", "--recording", path, "--heads", "7.0")
    missing = command("see", "--recording", tmp_path / f"no{hostile}")
    unknown = command("see", "the river", "--model", f"no{hostile}/model")
    assert [each[0] for each in (named, asked, missing, unknown)] == [0, 2, 2, 2]
    for shown in (out, *named[1:], *asked[1:], *missing[1:], *unknown[1:]):
        assert not set("\x1b\x07\u202e\r") & set(shown)


def test_a_fault_of_ours_is_not_said_to_be_the_users(command, tmp_path, monkeypatch, kept):
    monkeypatch.setattr("regard.views.html.quantization.VALUE_STEPS", {})
    with pytest.raises(KeyError):
        command("see", "--recording", kept, "--out", tmp_path / "page.html")
    assert list(tmp_path.iterdir()) == []
