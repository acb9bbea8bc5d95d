"""Issue 17, D8: the folder of the parts has regard's files and perhaps somebody else's, and one run works in it."""

import os
from contextlib import closing
from pathlib import Path

import pytest

from embedding.text_files import Stopped, stop_after, texts, write_lines
from regard import InputError
from regard.embedding import EmbeddingJob, Shard, TextSource
from regard.embedding.manifest import Manifest

PART = {"max_part_texts": 10}
HEADER = '{"program": "regard embed", "id": "%s", "settings": {}}'


@pytest.fixture
def source(tmp_path):
    return TextSource(str(write_lines(tmp_path / "texts.txt", texts(40))))


@pytest.fixture
def out(tmp_path):
    return tmp_path / "v.npy"


@pytest.fixture
def parts(tmp_path, encoder, source, out):
    """The parts of a job that was stopped when it had two of four, and what it would have written."""
    EmbeddingJob(source, tmp_path / "straight.npy", **PART).run(encoder)
    with pytest.raises(Stopped):
        EmbeddingJob(source, out, **PART).run(encoder, stop_after(25))
    return tmp_path / "v.npy.parts"


def content(folder):
    return {path.name: path.read_bytes() for path in folder.iterdir()}


@pytest.mark.parametrize(
    "files",
    [
        {"notes.txt": "mine"},
        {"000000000000-0123456789abcdef-0.part": "mine"},
        {"job.json": '{"pooling": "mean"}'},
        *({"job.jsonl": f"{line}\n", "notes.txt": "mine"} for line in ("", "{", "[]", "null", "[" * 100_000, "{}")),
        {"job.jsonl": HEADER % "../../notes"},
        {"job.jsonl": HEADER % ("0" * 32)},  # without a line break
        {"job.jsonl": HEADER.replace("{}", "[]") % ("0" * 32) + "\n"},
    ],
    ids=lambda files: " ".join(f"{name}={text[:70]}" for name, text in files.items()),
)
def test_a_folder_of_somebody_else_is_refused_and_stays(tmp_path, source, out, files):
    folder = tmp_path / "v.npy.parts"
    folder.mkdir()
    for name, text in files.items():
        (folder / name).write_text(text)
    before = content(folder)
    with pytest.raises(InputError, match=r"v.npy.parts .* was not made by regard embed: move it away, or name another"):
        EmbeddingJob(source, out)
    assert content(folder) == before


@pytest.mark.parametrize("make", [Path.touch, lambda path: path.symlink_to("."), lambda path: path.symlink_to("x")])
def test_what_is_no_folder_is_refused(tmp_path, source, out, make):
    make(tmp_path / "v.npy.parts")
    with pytest.raises(InputError, match=r"v.npy.parts .* was not made by regard embed"):
        EmbeddingJob(source, out)


def test_an_empty_folder_is_used(tmp_path, encoder, source, out):
    (tmp_path / "v.npy.parts").mkdir()
    assert EmbeddingJob(source, out).run(encoder).num_texts == 40
    assert not (tmp_path / "v.npy.parts").exists()


def test_files_that_somebody_puts_among_the_parts_are_neither_joined_nor_deleted(tmp_path, encoder, source, out, parts):
    part = next(parts.glob("*.part"))
    for name in ("000000000030-0123456789abcdef-0.part", f"000000000005{part.name[12:]}", "notes.txt", ".draft-mine"):
        (parts / name).write_bytes(part.read_bytes())
    mine = {name: data for name, data in content(parts).items() if name not in names_of_job(parts)}
    assert len(mine) == 4
    EmbeddingJob(source, out, **PART).run(encoder)
    assert out.read_bytes() == (tmp_path / "straight.npy").read_bytes()
    assert content(parts) == mine


def names_of_job(folder):
    with closing(Manifest.open(folder, {})) as manifest:
        return ["job.jsonl", *(manifest.file(part).name for part in manifest.parts.values())]


DAMAGES = {
    "shorter": lambda data: data[:-100],
    "altered": lambda data: data[:-8] + bytes(8),
}


@pytest.mark.parametrize("damage", DAMAGES.values(), ids=DAMAGES)
def test_a_damaged_part_is_computed_again(tmp_path, encoder, source, out, parts, damage):
    part = next(parts.glob("*.part"))
    part.write_bytes(damage(part.read_bytes()))
    assert EmbeddingJob(source, out, **PART).run(encoder).num_damaged == 1
    assert out.read_bytes() == (tmp_path / "straight.npy").read_bytes()


def test_what_a_killed_process_did_not_finish_is_done_again(tmp_path, encoder, source, out, parts):
    """A part that is listed and not yet there; a line of the list that breaks off."""
    *lines, _ = (parts / "job.jsonl").read_bytes().splitlines(keepends=True)
    (parts / "job.jsonl").write_bytes(b"".join(lines) + b'{"first": 10, "te')
    next(parts.glob("000000000000-*.part")).unlink()
    with pytest.raises(Stopped):
        EmbeddingJob(source, out, **PART).run(encoder, stop_after(25))
    result = EmbeddingJob(source, out, **PART).run(encoder)
    assert (result.num_texts, result.num_damaged) == (40, 0)
    assert out.read_bytes() == (tmp_path / "straight.npy").read_bytes()
    assert not parts.exists()


@pytest.mark.parametrize(("pooling", "num_parts"), [("none", 3), ("mean", 1)])
def test_parts_are_smaller_where_every_token_has_a_vector(tmp_path, encoder, pooling, num_parts):
    """A part is in memory until it is finished, with its vectors."""
    source, finished = TextSource(str(write_lines(tmp_path / "texts.txt", ["w" * 150_000] * 3))), []
    job = EmbeddingJob(source, tmp_path / "v.parquet", pooling=pooling)
    job.run(encoder, lambda *_: finished.append(len(list(tmp_path.glob("v.parquet.parts/0*")))))
    assert max(finished) == num_parts


@pytest.mark.parametrize("line", ["", "[]", "[" * 100_000, '{"first": "0"}'])
def test_a_damaged_list_of_parts_is_refused(encoder, source, out, parts, line):
    header, first, second = (parts / "job.jsonl").read_text().splitlines()
    (parts / "job.jsonl").write_text(f"{header}\n{first}\n{line}\n{second}\n")
    before = content(parts)
    with pytest.raises(InputError, match=r"job.jsonl, line 3 is damaged: move .*v.npy.parts away"):
        EmbeddingJob(source, out, **PART).run(encoder)
    assert content(parts) == before


def test_a_job_that_finished_nothing_does_not_bind_the_next(tmp_path, encoder, source, out):
    Manifest.open(tmp_path / "v.npy.parts", {"pooling": "cls"}).close()  # and its process is killed
    assert EmbeddingJob(source, out).run(encoder).num_texts == 40
    assert not (tmp_path / "v.npy.parts").exists()


def test_a_second_run_is_refused_and_the_first_goes_on(encoder, source, out):
    refused = []

    def run_again(num_done, total, resumed):
        with pytest.raises(InputError, match=r"another run works in .*v.npy.parts now: wait for its end, or name"):
            EmbeddingJob(source, out, **PART).run(encoder)
        refused.append(num_done)

    assert EmbeddingJob(source, out, **PART).run(encoder, run_again).num_texts == 40
    assert {10, 20, 30, 40} <= set(refused)


def test_shards_run_at_the_same_time(encoder, source, out):
    results = []

    def run_the_other(num_done, total, resumed):
        if not results:
            results.append(EmbeddingJob(source, out, shard=Shard(1, 2)).run(encoder))

    results.append(EmbeddingJob(source, out, shard=Shard(0, 2)).run(encoder, run_the_other))
    assert [result.num_texts for result in results] == [20, 20]


def test_an_output_that_appears_meanwhile_is_not_overwritten(tmp_path, encoder, source, out, parts):
    with pytest.raises(InputError, match=r"another program has written .*v.npy, .* stays in .*v.npy.parts: move"):
        EmbeddingJob(source, out, **PART).run(encoder, lambda *_: out.write_text("mine"))
    assert out.read_text() == "mine"
    assert len(list(parts.iterdir())) == 5
    out.unlink()
    EmbeddingJob(source, out, **PART).run(encoder)
    assert out.read_bytes() == (tmp_path / "straight.npy").read_bytes()


def test_an_output_that_appears_while_the_model_is_loaded_stops_the_job(encoder, source, out):
    job = EmbeddingJob(source, out)
    out.symlink_to("a file that does not exist")
    with pytest.raises(InputError, match=r"v.npy exists already"):
        job.run(encoder)
    assert os.readlink(out) == "a file that does not exist"
