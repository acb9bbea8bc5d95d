"""regard embed, as a user types it."""

import io
import subprocess
import sys

import numpy as np
import pytest

from embedding.text_files import texts, vectors_of, write_lines
from weights import minilm, random_bert


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    folder = tmp_path_factory.mktemp("small")
    random_bert(folder, max_position_embeddings=40)
    return folder


def test_lines_to_vectors_of_the_default_model(tmp_path, command):
    source = write_lines(tmp_path / "t.txt", ["a river bank", "a bank of a river"])
    code, out, err = command("embed", source, "--out", tmp_path / "v.npy")
    assert (code, out, err) == (0, f"{tmp_path / 'v.npy'}: vectors of 2 texts, 384 numbers each\n", "")
    expected = minilm().embed(["a river bank", "a bank of a river"]).numpy()
    np.testing.assert_allclose(np.load(tmp_path / "v.npy"), expected, atol=1e-6)


def test_standard_input(tmp_path, command, folder, monkeypatch):
    monkeypatch.setattr(sys, "stdin", io.TextIOWrapper(io.BytesIO(b"a river\nthe bank\n")))
    assert command("embed", "-", "--model", folder, "--out", tmp_path / "v.parquet")[0] == 0
    assert vectors_of(tmp_path / "v.parquet").shape == (2, 24)


def test_truncated_texts_are_reported(tmp_path, command, folder):
    source = write_lines(tmp_path / "t.txt", ["man " * 50, "a", "man " * 60])
    words = ["embed", source, "--model", folder, "--out", tmp_path / "v.npy"]
    code, out, err = command(*words)
    assert (code, out) == (2, "")
    assert "t.txt, line 1: the text has 52 tokens" in err
    code, out, _ = command(*words, "--truncate")
    assert code == 0
    assert out.endswith(f"vectors of 3 texts, 24 numbers each; 2 texts were truncated to what {folder} reads\n")


@pytest.mark.parametrize(
    ("options", "message"),
    [
        (["--pooling", "max"], "regard: --pooling max: it is mean, cls or none"),
        (["--shard", "2/2"], "regard: --shard 2/2: it is I/N, share I of N, and I is 0 to N - 1"),
        (["--column", "x"], "--column x:"),
        (["--out", "v.pt"], "regard: v.pt: vectors are written to .parquet, .npy, .safetensors"),
        (["--out", "nowhere/v.npy"], "regard: nowhere is no folder: make it, or name another place"),
    ],
)
def test_invalid_options_are_refused(tmp_path, command, folder, monkeypatch, options, message):
    monkeypatch.chdir(tmp_path)
    write_lines(tmp_path / "t.txt", ["a"])
    code, out, err = command("embed", "t.txt", "--model", folder, "--out", "v.npy", *options)
    assert (code, out) == (2, "")
    assert message in err
    assert sorted(path.name for path in tmp_path.iterdir()) == ["t.txt"]


def test_pyarrow_is_asked_for_by_name(tmp_path, command, monkeypatch):
    monkeypatch.setitem(sys.modules, "pyarrow.parquet", None)
    source = write_lines(tmp_path / "t.txt", ["a"])
    code, _, err = command("embed", source, "--out", tmp_path / "v.parquet")
    assert code == 2
    assert "pip install 'regard[train]'" in err
    assert command("embed", source, "--out", tmp_path / "v.npy")[0] == 0


@pytest.mark.slow
def test_torchrun_gives_each_process_its_share(tmp_path, folder):
    source = write_lines(tmp_path / "t.txt", texts(500))
    words = ["-m", "regard", "embed", source, "--model", folder, "--out", tmp_path / "v.npy"]
    run = [sys.executable, "-m", "torch.distributed.run", "--standalone", "--nproc-per-node", "2", *words]
    subprocess.run([str(word) for word in run], check=True, capture_output=True)
    files = sorted(tmp_path.glob("v-*.npy"))
    assert [file.name for file in files] == ["v-00000-of-00002.npy", "v-00001-of-00002.npy"]
    import regard

    vectors = np.concatenate([np.load(file) for file in files])
    np.testing.assert_allclose(vectors, regard.load(folder).embed(texts(500)).numpy(), atol=1e-6)


@pytest.mark.slow
def test_memory_does_not_grow_with_the_number_of_texts(tmp_path):
    """Vectors of 78 and of 467 MiB; what grows is what malloc keeps between parts, and that ends somewhere."""
    random_bert(tmp_path / "wide", max_position_embeddings=40, hidden_size=384, num_hidden_layers=1)
    peaks = []
    for count in (5_000, 30_000):
        source = write_lines(tmp_path / f"{count}.txt", texts(count))
        out = tmp_path / f"{count}.safetensors"
        code = (
            "import sys; from regard.cli.app import _run; "
            f"sys.argv = ['regard', 'embed', {str(source)!r}, '--model', {str(tmp_path / 'wide')!r}, "
            f"'--pooling', 'none', '--out', {str(out)!r}]; assert _run()[0] == 0; "
            "print(open('/proc/self/status').read().split('VmHWM:')[1].split()[0])"
        )
        code = "import regard.cli; " + code
        ran = subprocess.run([sys.executable, "-c", code], check=True, capture_output=True, text=True)
        peaks.append(int(ran.stdout.split()[-1]) / 1024)
        assert out.stat().st_size > count * 15_000
    print(f"peaks: {peaks[0]:.0f} and {peaks[1]:.0f} MiB")
    assert peaks[1] < peaks[0] + 150
