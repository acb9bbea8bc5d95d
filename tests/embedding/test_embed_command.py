"""regard embed, as a user types it."""

import io
import json
import re
import subprocess
import sys
import time

import numpy as np
import pytest

import regard
from embedding.text_files import texts, vectors_of, write_lines
from regard.cli.embed import _progress_bar
from weights import minilm, random_bert


def test_lines_to_vectors_of_the_default_model(tmp_path, command):
    lines = ["a river bank", "a bank of a river", "", "word " * 600]
    source = write_lines(tmp_path / "t.txt", lines)
    code, out, err = command("embed", source, "--truncate", "--out", tmp_path / "v.npy")
    said = "vectors of 4 texts, 384 numbers each; 1 texts were cut to 256 tokens"
    assert (code, out, err) == (0, f"{tmp_path / 'v.npy'}: {said}\n", "")
    lines[-1] = "word " * 254
    np.testing.assert_allclose(np.load(tmp_path / "v.npy"), minilm().embed(lines).numpy(), atol=1e-6)


def test_the_progress_bar_tells_how_many_texts_a_second():
    bar = _progress_bar(disable=False)
    number, speed = bar.add_task("embedding", total=100), bar.columns[3]
    assert not str(speed.render(bar.tasks[0]))
    for _ in range(2):
        time.sleep(0.01)
        bar.advance(number, 10)
    assert re.fullmatch(r"[\d,]+ texts/s", str(speed.render(bar.tasks[0])))


def test_standard_input(tmp_path, command, folder, monkeypatch):
    monkeypatch.setattr(sys, "stdin", io.TextIOWrapper(io.BytesIO(b"a river\nthe bank\n")))
    code, out, _ = command("embed", "-", "--model", folder, "--out", tmp_path / "v.parquet", "--pooling", "cls")
    assert (code, out) == (0, f"{tmp_path / 'v.parquet'}: vectors of 2 texts, 24 numbers each\n")
    assert vectors_of(tmp_path / "v.parquet").shape == (2, 24)


def test_the_json_of_a_share_is_named_as_its_vectors_are(tmp_path, command, folder):
    source, out = write_lines(tmp_path / "t.txt", ["a", "b " * 50, "c"]), tmp_path / "v.npy"
    call = ["embed", source, "--model", folder, "--truncate", "--out", out]
    facts = {"path": str(out), "model": str(folder), "pooling": "mean", "num_texts": 3, "dim": 24}
    facts |= {"num_truncated": 1, "num_damaged": 0, "max_tokens": 40}
    assert json.loads(command(*call, "--json", "-")[1]) == facts
    code, said, _ = command(*call, "--shard", "1/2", "--json", tmp_path / "facts.json")
    share = json.loads((tmp_path / "facts-00001-of-00002.json").read_text())
    assert (code, share["num_texts"]) == (0, 2)
    assert said.startswith(f"{share['path']}: vectors of 2 texts")


def test_the_function_does_what_the_command_does(tmp_path, command, folder, encoder):
    source, texts = write_lines(tmp_path / "t.txt", ["a river", "b " * 50]), tmp_path / "f.npy"
    assert command("embed", source, "--model", folder, "--truncate", "--out", tmp_path / "c.npy")[0] == 0
    for model, out in ((folder, "one.npy"), (encoder, "two.npy")):
        result = regard.embed(source, tmp_path / out, model=model, truncate=True)
        assert (result.path, result.num_texts, result.num_truncated) == (tmp_path / out, 2, 1)
        assert np.array_equal(np.load(result.path), np.load(tmp_path / "c.npy"))
    with pytest.raises(regard.InputError, match=r"or cut it with truncate=True$"):
        regard.embed(source, texts, model=encoder)
    assert command("embed", source, "--model", folder, "--out", texts)[2].endswith("or cut it with --truncate\n")
    write_lines(source, ["the author's truncate=True and pooling=mean " + "b " * 50])
    assert (
        "it is \"the author's truncate=True and pooling=mean b"
        in command("embed", source, "--model", folder, "--out", texts)[2]
    )
    with pytest.raises(regard.InputError, match="pooling=max: it is one of mean, cls, none"):
        regard.embed(source, texts, pooling="max")


@pytest.mark.parametrize(
    ("options", "message"),
    [
        (["--pooling", "max"], "regard: Invalid value for '--pooling': 'max' is not one of 'mean', 'cls', 'none'"),
        (["--shard", "2/2"], "regard: --shard 2/2: it is I/N, share I of N"),
        (["--column", "x"], "--column x:"),
        (["--json", "v.npy"], "regard: --out and --json both name v.npy: give two different files"),
        (["--out", "v.safetensors", "--json", "/no/such/x"], "regard: cannot write '/no/such/x': there is no folder"),
        (["--out", "v.pt"], "regard: v.pt: vectors are written to .parquet, .npy, .safetensors"),
    ],
)
def test_invalid_options_are_refused(tmp_path, command, folder, monkeypatch, options, message):
    monkeypatch.chdir(tmp_path)
    write_lines(tmp_path / "t.txt", ["a"])
    code, out, err = command("embed", "t.txt", "--model", folder, "--out", "v.npy", *options)
    assert (code, out) == (2, "")
    assert message in err
    assert [path.name for path in tmp_path.iterdir()] == ["t.txt"]


def test_pyarrow_is_asked_for_by_name(tmp_path, command, folder, monkeypatch):
    monkeypatch.setitem(sys.modules, "pyarrow.parquet", None)
    source = write_lines(tmp_path / "t.txt", ["a"])
    code, _, err = command("embed", source, "--model", folder, "--out", tmp_path / "v.parquet")
    assert (code, "pip install '.[train]'" in err) == (2, True)
    assert command("embed", source, "--model", folder, "--out", tmp_path / "v.npy")[0] == 0


PEAK_MEMORY = """
import sys; from regard.cli import main
sys.argv[0] = "regard"
try:
    main()
except SystemExit as ended:
    assert not ended.code
print(open("/proc/self/status").read().split("VmHWM:")[1].split()[0])
"""


def peak_memory(*arguments):
    """Of a process that runs the command, in MiB."""
    ran = subprocess.run(
        [sys.executable, "-c", PEAK_MEMORY, "embed", *map(str, arguments)], check=True, capture_output=True, text=True
    )
    return int(ran.stdout.split()[-1]) / 1024


@pytest.mark.slow
def test_memory_does_not_grow_with_the_number_of_texts(tmp_path):
    """Vectors of 78 and of 467 MiB; what grows is what malloc keeps between parts, and that ends somewhere."""
    random_bert(tmp_path / "wide", max_position_embeddings=40, hidden_size=384, num_hidden_layers=1)
    peaks = []
    for count in (5_000, 30_000):
        source, out = write_lines(tmp_path / f"{count}.txt", texts(count)), tmp_path / f"{count}.safetensors"
        peaks.append(peak_memory(source, "--model", tmp_path / "wide", "--pooling", "none", "--out", out))
        assert out.stat().st_size > count * 15_000
    assert peaks[1] < peaks[0] + 150


@pytest.mark.slow
def test_memory_does_not_grow_with_a_long_line(tmp_path, folder):
    """Issue 17, D8: one line of 8 MB took 1.2 GiB."""
    peaks = []
    for count in (1, 1_600_000):
        source = write_lines(tmp_path / f"{count}.txt", ["a river", "bank " * count])
        peaks.append(peak_memory(source, "--model", folder, "--truncate", "--out", tmp_path / f"{count}.npy"))
    assert peaks[1] < peaks[0] + 100


def test_a_damaged_part_is_told(tmp_path, command, folder):
    source, out = write_lines(tmp_path / "t.txt", ["a", "b " * 2**20]), tmp_path / "v.npy"
    assert command("embed", source, "--model", folder, "--out", out)[0] == 2
    (part,) = (tmp_path / "v.npy.parts").glob("*.part")
    part.write_bytes(b"")
    code, said, _ = command("embed", source, "--model", folder, "--out", out, "--truncate")
    assert (code, said.endswith("; 1 damaged parts of an earlier run were computed again\n")) == (0, True)
