"""Issue 17, D8: a job whose process is killed, at whatever moment, continues and ends with the same bytes."""

import subprocess
import sys

import pytest

from embedding.text_files import texts, write_lines

KILLED_AT_EACH_FILE_OPERATION = """
import os, shutil, signal, sys
from itertools import count
from pathlib import Path
import regard
from regard import InputError
from regard.embedding import EmbeddingJob, TextSource

folder, out = Path(sys.argv[1]), Path(sys.argv[2])
encoder, source, parts = regard.load(folder), TextSource(str(out.with_name("texts.txt"))), Path(f"{out}.parts")
straight = out.with_name(f"straight{out.suffix}")
EmbeddingJob(source, straight, max_part_texts=10).run(encoder)

def run():
    EmbeddingJob(source, out, max_part_texts=10).run(encoder)
    assert out.read_bytes() == straight.read_bytes(), "other bytes"
    assert not parts.exists(), "parts are left"

def killed_at(number):
    numbers = count()

    def hook(event, arguments):
        path = str(arguments[0]) if arguments else ""
        if event in EVENTS and path.startswith(str(out.parent)) and next(numbers) == number:
            os.kill(os.getpid(), signal.SIGKILL)

    sys.addaudithook(hook)
    run()
    os._exit(0)

EVENTS = {"open", "os.mkdir", "os.rename", "os.link", "os.remove", "os.rmdir", "os.truncate", "os.listdir"}
kept = set()
for number in count():
    if (process := os.fork()) == 0:
        killed_at(number)
    status = os.waitpid(process, 0)[1]
    assert status in (0, signal.SIGKILL), status
    kept.add(len(list(parts.glob("*.part"))))
    if out.exists():
        assert out.read_bytes() == straight.read_bytes(), "other bytes"
        out.unlink()
    run()
    out.unlink()
    if status == 0:
        break
print(number, sorted(kept))
"""
TIERS = [("npy", "more"), ("parquet", "slow"), ("safetensors", "slow")]


@pytest.mark.parametrize("kind", [pytest.param(kind, marks=getattr(pytest.mark, tier)) for kind, tier in TIERS])
def test_a_job_that_is_killed_at_any_moment_ends_with_the_same_bytes(tmp_path, folder, kind):
    write_lines(tmp_path / "texts.txt", texts(40))
    call = [sys.executable, "-c", KILLED_AT_EACH_FILE_OPERATION, folder, tmp_path / f"v.{kind}"]
    ran = subprocess.run([*map(str, call)], capture_output=True, text=True)
    assert ran.returncode == 0, ran.stderr
    number, kept = ran.stdout.split(maxsplit=1)
    assert int(number) > 25
    assert kept == "[0, 1, 2, 3, 4]\n"
