"""A job that was killed goes on, and ends with the same bytes; a job on other things is never mixed into it."""

import json
import resource
import signal
import subprocess
import sys
import time

import numpy as np
import pytest
import torch

import regard
from embedding.text_files import texts, vectors_of, write_lines
from regard import InputError
from regard.embedding import EmbeddingJob, Shard, TextSource
from regard.embedding import job as jobs
from weights import random_bert

FORMATS = ["parquet", "npy", "safetensors"]


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    folder = tmp_path_factory.mktemp("encoder")
    random_bert(folder, max_position_embeddings=40)
    return folder


@pytest.fixture
def short_parts(monkeypatch):
    monkeypatch.setattr(jobs, "MAX_PART_TEXTS", 100)


class Stopped(Exception):
    pass


def stop_after(count):
    def on_progress(num_done, total, resumed):
        if num_done > count:
            raise Stopped

    return on_progress


@pytest.mark.parametrize("kind", FORMATS)
@pytest.mark.parametrize("after", [0, 99, 100, 150, 699])
def test_a_job_that_was_stopped_ends_with_the_same_bytes(tmp_path, folder, short_parts, kind, after):
    encoder = regard.load(folder)
    source = TextSource(str(write_lines(tmp_path / "t.txt", texts(700))))
    EmbeddingJob(source, tmp_path / f"whole.{kind}").run(encoder)
    out = tmp_path / f"v.{kind}"
    with pytest.raises(Stopped):
        EmbeddingJob(source, out).run(encoder, stop_after(after))
    parts = tmp_path / f"{out.name}.parts"
    assert not out.exists()
    finished_parts = {path: path.stat().st_mtime_ns for path in parts.glob("0*")}
    calls = []
    EmbeddingJob(source, out).run(encoder, lambda *facts: calls.append(facts))
    assert sum(resumed for _, _, resumed in calls) == len(finished_parts) == after // 100
    assert out.read_bytes() == (tmp_path / f"whole.{kind}").read_bytes()
    assert not parts.exists()


def test_kill_9_and_the_same_command_again(tmp_path, folder, command):
    """In a real process, as soon as it has finished a part."""
    source, out = write_lines(tmp_path / "t.txt", texts(16_000)), tmp_path / "v.parquet"
    words = ["embed", str(source), "--model", str(folder), "--out"]
    job = subprocess.Popen([sys.executable, "-m", "regard", *words, str(out)])
    parts = tmp_path / "v.parquet.parts"
    deadline = time.monotonic() + 120
    while len(list(parts.glob("0*.part"))) < 1:
        assert job.poll() is None
        assert time.monotonic() < deadline
        time.sleep(0.01)
    job.kill()
    assert job.wait() == -signal.SIGKILL
    assert not out.exists()
    assert len(list(parts.glob("0*.part"))) < 4
    assert command(*words, out)[0] == 0
    code, out_text, _ = command(*words, tmp_path / "full.parquet")
    assert (code, out_text) == (0, f"{tmp_path / 'full.parquet'}: vectors of 16,000 texts, 24 numbers each\n")
    assert out.read_bytes() == (tmp_path / "full.parquet").read_bytes()


def test_what_is_not_the_same_job_is_refused(tmp_path, folder, short_parts):
    encoder = regard.load(folder)
    lines = texts(700)
    source, out = TextSource(str(write_lines(tmp_path / "t.txt", lines))), tmp_path / "v.npy"
    with pytest.raises(Stopped):
        EmbeddingJob(source, out).run(encoder, stop_after(350))
    before = sorted((tmp_path / "v.npy.parts").iterdir())

    with pytest.raises(InputError, match=r"v.npy.parts holds parts of another job: pooling mean \(now cls\)"):
        EmbeddingJob(source, out, pooling="cls").run(encoder)
    other = regard.load(folder)
    with torch.no_grad():
        other.model.blocks[0].feed_forward.up.weight[0, 0] += 1
    with pytest.raises(InputError, match=r"holds parts of another job: weights .* \(now .*\)\. Finish it by its own"):
        EmbeddingJob(source, out).run(other)
    write_lines(tmp_path / "t.txt", [*lines[:150], "another", *lines[151:]])
    with pytest.raises(InputError, match=r"the input is not the one of which .* texts from number 101 on are others"):
        EmbeddingJob(source, out).run(encoder)
    assert sorted((tmp_path / "v.npy.parts").iterdir()) == before

    write_lines(tmp_path / "t.txt", [*lines[:650], "another", *lines[651:]])  # where nothing was done yet
    EmbeddingJob(source, out).run(encoder)
    np.testing.assert_allclose(vectors_of(out)[650], encoder.embed("another")[0].numpy(), atol=1e-6)


def test_a_share_of_a_file_that_has_grown_is_refused(tmp_path, folder, short_parts):
    encoder = regard.load(folder)
    source = TextSource(str(write_lines(tmp_path / "t.txt", texts(700))))
    job = EmbeddingJob(source, tmp_path / "v.npy", shard=Shard(1, 2))
    with pytest.raises(Stopped):
        job.run(encoder, stop_after(120))
    write_lines(tmp_path / "t.txt", texts(800))
    with pytest.raises(InputError, match=r"holds parts of another job: texts 350 to 700 \(now 400 to 800\)"):
        job.run(encoder)


def test_parts_without_their_facts_are_refused(tmp_path, folder):
    (tmp_path / "v.npy.parts").mkdir()
    (tmp_path / "v.npy.parts" / "000000000000-0123456789abcdef-0.part").touch()
    (tmp_path / "v.npy.parts" / "job.json").write_text("{")
    with pytest.raises(InputError, match="holds parts of another job"):
        EmbeddingJob(TextSource(str(write_lines(tmp_path / "t.txt", ["a"]))), tmp_path / "v.npy").run(
            regard.load(folder)
        )


@pytest.mark.parametrize("kind", FORMATS)
def test_a_file_that_cannot_be_written_leaves_what_is_finished(tmp_path, folder, short_parts, kind):
    """Files of this process may not grow beyond what a part needs: the joined file cannot be written."""
    encoder = regard.load(folder)
    source, out = TextSource(str(write_lines(tmp_path / "t.txt", texts(700)))), tmp_path / f"v.{kind}"
    before = resource.getrlimit(resource.RLIMIT_FSIZE)
    resource.setrlimit(resource.RLIMIT_FSIZE, (24_000, before[1]))
    try:
        with pytest.raises(InputError, match=r"cannot write .*[Ff]ile too large.* What is finished stays in .*parts"):
            EmbeddingJob(source, out).run(encoder)
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, before)
    parts = sorted(path.name for path in (tmp_path / f"v.{kind}.parts").iterdir())
    assert len(parts) == 8
    assert parts[-1] == "job.json"
    assert json.loads((tmp_path / f"v.{kind}.parts" / "job.json").read_text())["pooling"] == "mean"
    calls = []
    EmbeddingJob(source, out).run(encoder, lambda *facts: calls.append(facts))
    assert all(resumed for _, _, resumed in calls)
    assert len(vectors_of(out)) == 700


def test_a_text_that_stopped_a_job_can_be_cut_when_it_goes_on(tmp_path, folder, short_parts):
    encoder = regard.load(folder)
    lines = [*texts(350), "man " * 50, *texts(40)]
    source, out = TextSource(str(write_lines(tmp_path / "t.txt", lines))), tmp_path / "v.npy"
    with pytest.raises(InputError, match=r"t.txt, line 351: .*, or give --truncate"):
        EmbeddingJob(source, out).run(encoder)
    assert len(list((tmp_path / "v.npy.parts").glob("*.part"))) == 3
    with pytest.raises(Stopped):
        EmbeddingJob(source, out, truncate=True).run(encoder, stop_after(390))
    with pytest.raises(InputError, match=r"t.txt, line 351: .*, or give --truncate"):  # also where truncation finished
        EmbeddingJob(source, out).run(encoder)
    assert EmbeddingJob(source, out, truncate=True).run(encoder).num_truncated == 1
    np.testing.assert_allclose(vectors_of(out)[350], encoder.embed("man " * 38)[0].numpy(), atol=1e-6)
