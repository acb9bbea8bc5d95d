"""A job that was killed goes on, and ends with the same bytes; a job on other things is never mixed into it."""

import resource

import numpy as np
import pytest
import torch

import regard
from embedding.text_files import FORMATS, Stopped, stop_after, texts, vectors_of, write_lines
from regard import InputError
from regard.embedding import EmbeddingJob, Shard, TextSource

PART = {"max_part_texts": 50}


@pytest.mark.parametrize(
    ("kind", "after"), [*(("npy", after) for after in (49, 50, 75, 299)), ("parquet", 75), ("safetensors", 75)]
)
def test_a_job_that_was_stopped_ends_with_the_same_bytes(tmp_path, encoder, source, kind, after):
    EmbeddingJob(source, tmp_path / f"straight.{kind}", **PART).run(encoder)
    out, parts, calls = tmp_path / f"v.{kind}", tmp_path / f"v.{kind}.parts", []
    with pytest.raises(Stopped):
        EmbeddingJob(source, out, **PART).run(encoder, stop_after(after))
    assert not out.exists()
    num_parts = len(list(parts.glob("0*")))
    EmbeddingJob(source, out, **PART).run(encoder, lambda *facts: calls.append(facts))
    assert sum(resumed for _, _, resumed in calls) == num_parts == after // 50
    assert out.read_bytes() == (tmp_path / f"straight.{kind}").read_bytes()
    assert not parts.exists()


def test_what_is_not_the_same_job_is_refused(tmp_path, folder, encoder, source):
    lines, out = texts(300), tmp_path / "v.npy"
    with pytest.raises(Stopped):
        EmbeddingJob(source, out, **PART).run(encoder, stop_after(175))
    before = sorted((tmp_path / "v.npy.parts").iterdir())

    with pytest.raises(InputError, match=r"v.npy.parts holds parts of another job: pooling mean \(now cls\)"):
        EmbeddingJob(source, out, pooling="cls", **PART).run(encoder)
    other = regard.load(folder)
    with torch.no_grad():
        other.model.blocks[0].feed_forward.up.weight[0, 0] += 1
    with pytest.raises(InputError, match=r"holds parts of another job: weights .* \(now .*\)\. Finish it by its own"):
        EmbeddingJob(source, out, **PART).run(other)
    write_lines(tmp_path / "texts.txt", [*lines[:75], "another", *lines[76:]])
    with pytest.raises(InputError, match=r"the input is not the one of which .* texts from number 51 on are others"):
        EmbeddingJob(source, out, **PART).run(encoder)
    assert sorted((tmp_path / "v.npy.parts").iterdir()) == before

    write_lines(tmp_path / "texts.txt", [*lines[:275], "another", *lines[276:]])  # where nothing was done yet
    EmbeddingJob(source, out, **PART).run(encoder)
    np.testing.assert_allclose(vectors_of(out)[275], encoder.embed("another")[0].numpy(), atol=1e-6)


def test_parts_of_texts_that_the_input_has_no_more_are_not_joined(tmp_path, encoder, source):
    out = tmp_path / "v.npy"
    with pytest.raises(Stopped):
        EmbeddingJob(source, out, **PART).run(encoder, stop_after(175))
    write_lines(tmp_path / "texts.txt", texts(300)[:100])
    assert EmbeddingJob(source, out, **PART).run(encoder).num_texts == 100
    assert len(vectors_of(out)) == 100
    assert not (tmp_path / "v.npy.parts").exists()


def test_a_share_of_a_file_that_has_grown_is_refused(tmp_path, encoder, source):
    job = EmbeddingJob(source, tmp_path / "v.npy", shard=Shard(1, 2), **PART)
    with pytest.raises(Stopped):
        job.run(encoder, stop_after(60))
    write_lines(tmp_path / "texts.txt", texts(400))
    with pytest.raises(InputError, match=r"holds parts of another job: texts 150 to 300 \(now 200 to 400\)"):
        job.run(encoder)


@pytest.mark.parametrize("kind", FORMATS)
def test_a_file_that_cannot_be_written_leaves_what_is_finished(tmp_path, encoder, source, kind):
    """Files of this process may not grow beyond what a part needs: the joined file cannot be written."""
    out, calls = tmp_path / f"v.{kind}", []
    limits = resource.getrlimit(resource.RLIMIT_FSIZE)
    resource.setrlimit(resource.RLIMIT_FSIZE, (20_000, limits[1]))
    try:
        with pytest.raises(InputError, match=r"cannot write .*[Ff]ile too large.* What is finished stays in .*parts"):
            EmbeddingJob(source, out, **PART).run(encoder)
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, limits)
    parts = sorted(path.name for path in (tmp_path / f"v.{kind}.parts").iterdir())
    assert (len(parts), parts[-1]) == (7, "job.jsonl")
    EmbeddingJob(source, out, **PART).run(encoder, lambda *facts: calls.append(facts))
    assert all(resumed for _, _, resumed in calls)
    assert len(vectors_of(out)) == 300


def test_a_disk_that_is_full_at_once_leaves_nothing(tmp_path, encoder, source):
    limits = resource.getrlimit(resource.RLIMIT_FSIZE)
    for limit in (10, 1000):  # in the manifest's first line; in the first part
        resource.setrlimit(resource.RLIMIT_FSIZE, (limit, limits[1]))
        try:
            with pytest.raises(InputError, match=r"cannot write .*v.npy: File too large$"):
                EmbeddingJob(source, tmp_path / "v.npy").run(encoder)
        finally:
            resource.setrlimit(resource.RLIMIT_FSIZE, limits)
        assert [path.name for path in tmp_path.iterdir()] == ["texts.txt"]


def test_a_text_that_stopped_a_job_can_be_truncated_when_it_goes_on(tmp_path, encoder):
    lines = [*texts(175), "man " * 50, *texts(40)]
    source, out = TextSource(str(write_lines(tmp_path / "t.txt", lines))), tmp_path / "v.npy"
    with pytest.raises(InputError, match=r"t.txt, line 176: .*, or cut it with truncate=True"):
        EmbeddingJob(source, out, **PART).run(encoder)
    assert len(list((tmp_path / "v.npy.parts").glob("*.part"))) == 3
    with pytest.raises(Stopped):
        EmbeddingJob(source, out, truncate=True, **PART).run(encoder, stop_after(205))
    with pytest.raises(InputError, match=r"t.txt, line 176: .*truncate=True"):  # also where truncation finished
        EmbeddingJob(source, out, **PART).run(encoder)
    assert EmbeddingJob(source, out, truncate=True, **PART).run(encoder).num_truncated == 1
    np.testing.assert_allclose(vectors_of(out)[175], encoder.embed("man " * 38)[0].numpy(), atol=1e-6)
