"""`regard train`: its output, its files and what it refuses, in separate processes where that matters."""

import json
import os
import re
import shlex
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest
import typer

sys.path.append(str(Path(__file__).parent / "training"))

from data_files import tsv
from runs import (
    losses,
    metrics,
    options,
    run,
    same_weights,
    start_command,
    wait_for_exit,
    weights,
    write_pairs,
    write_texts,
)

import regard
from regard import InputError
from regard.training import checkpoint
from regard.training.callbacks import Callback
from terminals import on_a_terminal

RESUMED = {"max_steps": 40, "eval_steps": 20, "dropout": 0.0}
"""Long enough that a signal finds it at work."""


@pytest.fixture(scope="module")
def data(tmp_path_factory):
    return write_pairs(tmp_path_factory.mktemp("data") / "pairs.tsv")


@pytest.fixture(scope="module")
def reference_run(data, tmp_path_factory):
    """A run on one process without a stop."""
    out = tmp_path_factory.mktemp("reference") / "out"
    run("translate", data, out, **RESUMED)
    return out


@pytest.fixture(scope="module")
def command_run(data, tmp_path_factory):
    """A run of the command itself, with pipes as its output."""
    folder = tmp_path_factory.mktemp("command")
    call = [sys.executable, "-m", "regard", "train", "translate", data, "--out", "a run", *options()]
    environment = {**os.environ, "OMP_NUM_THREADS": "1", "HF_HUB_OFFLINE": "1"}
    return subprocess.run(
        [*map(str, call)], capture_output=True, text=True, cwd=folder, env=environment
    ), folder / "a run"


class TestARun:
    def test_output(self, command_run):
        process, _ = command_run
        assert process.returncode == 0, process.stderr
        assert re.fullmatch(
            r"eval loss \d\.\d{3}, exact match \d\.\d%; the best was update 10, with an eval loss of \d\.\d{3}\. The "
            r"model is in a run\n",
            process.stdout,
        )
        lines = process.stderr.splitlines()
        assert [line.split(":")[0] for line in lines if line.startswith("update")] == ["update 5", "update 10"]
        assert lines[0].endswith("the best so far")
        assert sum("→" in line and "(target: " in line for line in lines) == 6  # samples
        assert len(lines) == 8  # no progress bar in a pipe
        assert "\x1b" not in process.stderr

    def test_files(self, command_run, data):
        _, out = command_run
        facts = json.loads((out / "run.json").read_text())
        assert facts["command"][:3] == ["regard", "train", "translate"]
        assert facts["command"][-2:] == ["--eval-steps", "5"]
        assert (facts["paths"], facts["model"], facts["eval_file"]) == ([str(data)], None, None)
        assert facts["config"]["seed"] == 0
        assert facts["data"]["files"][0]["file"] == str(data)
        assert (facts["processes"], facts["precision"]) == (1, "32-true")
        names = {path.name for path in out.iterdir()}
        assert names == {
            *("run.json", "metrics.jsonl", "loss.png", "attention", "checkpoints"),
            *("config.json", "tokenizer.json", "model.safetensors"),
        }
        steps = [f"step-{step:06d}.{kind}" for step in (5, 10) for kind in ("png", "safetensors")]
        assert sorted(path.name for path in (out / "attention").iterdir()) == steps

    def test_other_commands_read_its_model(self, command_run, command, tmp_path):
        _, out = command_run
        code, _, err = command("translate", "abc", "--model", out, "--max-new-tokens", 4)
        assert (code, err) == (0, "")
        recording = out / "attention" / "step-000010.safetensors"
        code, _, _ = command("see", "--recording", recording, "--out", tmp_path / "page.html")
        assert code == 0
        assert "<html" in (tmp_path / "page.html").read_text()[:300]

    def test_the_same_run_in_another_process(self, command_run, data, tmp_path):
        run("translate", data, tmp_path / "out")
        theirs = weights(command_run[1])
        ours = weights(tmp_path / "out")
        assert all((ours[name] - theirs[name]).abs().max() < 1e-5 for name in theirs)

    def test_a_complete_run_is_refused_and_resume_does_nothing(self, command_run, command, data):
        _, out = command_run
        before = weights(out)
        code, _, err = command("train", "translate", data, "--out", out, *options())
        assert (code, "holds a run already. Continue it with --resume" in err) == (2, True)
        code, said, err = command("train", "translate", "--out", out, "--resume")
        assert (code, err) == (0, "")
        assert said.startswith("the run was complete already; the best was update 10")
        assert same_weights(weights(out), before)

    def test_on_a_terminal_there_is_a_bar(self, data, tmp_path):
        arguments = ("translate", data, "--out", tmp_path / "out", *options(max_steps=4, eval_steps=4))
        code, shown = on_a_terminal("train", *map(str, arguments))
        shown = shown.decode()
        assert code == 0
        assert "4 of 4" in shown
        assert re.search(r"loss \d\.\d{3} · [\d,]+ tokens/s", shown)


class TestHelp:
    def test_topics(self, command):
        code, said, _ = command("train", "--help")
        assert code == 0
        for word in ("translate: an encoder-decoder", "--resume", "--strategy", "--skip-long", "torchrun", "Babel"):
            assert word in said

    def test_the_examples_are_valid(self):
        from regard.cli import train as _  # noqa: F401
        from regard.cli.app import app

        known = typer.main.get_command(app).commands["train"]
        examples = [line.split("regard train ")[1] for line in known.epilog.split("\n\n") if "regard train " in line]
        assert len(examples) == 4
        for line in examples:
            context = known.make_context("train", shlex.split(line))
            assert context.params["task"] in ("translate", "lm")
        assert context.params["strategy"] == "fsdp"


class TestRefusals:
    def said(self, command, *arguments):
        code, out, err = command("train", *arguments)
        assert (code, out) == (2, ""), err
        assert err.startswith("regard: ")
        assert err.count("\n") == 1
        return err

    @pytest.mark.parametrize(
        ("content", "message"),
        [
            (b"", "bad.tsv is empty: leave it out, or fill it"),
            (b"a\tb\nc\n", "bad.tsv, line 2 has no tab: 'c'. A line is a source, one tab and a target"),
            (b"a\tb\nc\t\n", "bad.tsv, line 2 has no target, it is ''"),
            (b"a\tb\nc\xff\td\n", "bad.tsv, line 2: byte 0xff at position 5 of the file is not UTF-8"),
        ],
    )
    def test_data(self, content, message, command, tmp_path):
        (tmp_path / "bad.tsv").write_bytes(content)
        assert message in self.said(command, "translate", tmp_path / "bad.tsv", "--out", tmp_path / "out")
        assert not (tmp_path / "out").exists()

    def test_a_row_that_is_too_long(self, command, tmp_path):
        rows = [(f"{i} abc", "abc") for i in range(60)]
        rows[33] = ("1234567890" * 3, "abc")
        path = tsv(tmp_path / "long.tsv", rows)
        arguments = ("translate", path, "--out", tmp_path / "out", *options(max_steps=3))
        err = self.said(command, *arguments)
        assert (
            "long.tsv, line 34: the source has 31 tokens, and the model has positions for 16. Give --max-length 31"
            in err
        )
        code, out, err = command("train", *arguments, "--skip-long")
        assert code == 0, err
        assert "1 row skipped for their length" in out

    @pytest.mark.parametrize(
        ("arguments", "message"),
        [
            (["summarize"], "there is no task 'summarize'; there are translate, lm, mlm, caption"),
            (["translate", "--strategy", "magic"], "--strategy magic: it is one of auto, ddp, fsdp"),
            (["translate", "--precision", "8"], "--precision 8: it is one of 32-true, bf16-mixed, bf16-true"),
            (["translate", "--accelerator", "abacus"], "these processes are not available: "),
            (["translate", "--learning-rate", "-1"], "--learning-rate -1.0: it must be above 0"),
            (["translate", "--max-steps", "many"], "Invalid value for '--max-steps'"),
            (
                ["translate", "--batch-size", "9", "--gradient-accumulation-steps", "2"],
                "--batch-size 9 does not divide among",
            ),
            (
                ["translate", "--vocab-size", "100"],
                "is too small for 256 bytes and 2 special tokens: give at least 258",
            ),
            (["translate", "nothing.tsv"], "nothing.tsv: there is no such file"),
            (["translate", "--model", "no/such/folder/here"], "no/such/folder/here"),
        ],
    )
    def test_options(self, arguments, message, command, tmp_path):
        assert message in self.said(command, *arguments, "--out", tmp_path / "out")
        assert not (tmp_path / "out").exists() or not list((tmp_path / "out").iterdir())

    def test_folders(self, command, data, tmp_path):
        (tmp_path / "file").write_text("mine")
        (tmp_path / "full").mkdir()
        (tmp_path / "full" / "thesis.tex").write_text("mine")
        for name, message in (
            ("file", "file is a file: a run needs a folder"),
            ("full", "full is not empty: a run needs an empty folder, or one that does not exist yet"),
            ("file/run", "file/run cannot be made: Not a directory"),
        ):
            assert message in self.said(command, "translate", data, "--out", tmp_path / name, *options())
        assert (tmp_path / "full" / "thesis.tex").read_text() == "mine"

    @pytest.mark.parametrize("library", ["lightning_fabric", "datasets", "matplotlib", "babel"])
    def test_a_missing_library(self, library, tmp_path):
        process = start_command("train", "translate", "--out", tmp_path / "out", log=tmp_path / "log", missing=library)
        assert wait_for_exit(process) == 2
        wanted = f"regard: this needs {library}, which is not installed: pip install 'regard[train]'\n"
        assert (tmp_path / "log").read_text() == wanted
        assert not (tmp_path / "out").exists()


class TestFullDisk:
    """The size of every file that the process writes is limited: the write itself fails."""

    def test_a_checkpoint(self, data, tmp_path):
        out, log = tmp_path / "out", tmp_path / "log"
        run("translate", data, out, max_steps=10, callback=None)
        size = (checkpoint.latest(out) / "optimizer.safetensors").stat().st_size
        model = (out / "model.safetensors").stat().st_size
        assert model < size - 20_000
        arguments = ("train", "translate", data, "--out", tmp_path / "small", *options())
        assert wait_for_exit(start_command(*arguments, log=log, limit=size - 10_000)) == 2
        said = log.read_text()
        assert "regard: the checkpoint of step 5 cannot be written: " in said
        assert "there is no checkpoint yet; free some space, then continue with --resume" in said
        assert "Traceback" not in said
        assert not list((tmp_path / "small").rglob("*draft*"))
        assert wait_for_exit(start_command(*arguments, "--resume", log=log)) == 0
        assert metrics(tmp_path / "small") == metrics(out)

    def test_metrics(self, data, tmp_path):
        out = tmp_path / "out"

        class Fills(Callback):
            def on_update_end(self, progress, loss):
                if progress.step == 7:
                    (out / "metrics.jsonl").rename(tmp_path / "so far")
                    (out / "metrics.jsonl").symlink_to("/dev/full")

        with pytest.raises(InputError, match=r"metrics\.jsonl cannot be written: No space left on device"):
            run("translate", data, out, callback=Fills())
        assert checkpoint.latest(out).name == "step-000005"
        (tmp_path / "so far").replace(out / "metrics.jsonl")
        assert run("translate", data, out, resume=True).stop_reason == "completed"


def wait_for_updates(out, process, updates=3):
    """Wait until a run has done some updates."""
    path = out / "metrics.jsonl"
    begun = time.monotonic()
    while not path.exists() or path.read_text().count("\n") < updates:
        alive = process.poll() is None if isinstance(process, subprocess.Popen) else process.is_alive()
        assert alive, "the process ended too early"
        assert time.monotonic() - begun < 300
        time.sleep(0.01)


class TestSignals:
    @pytest.mark.parametrize(
        ("number", "code"),
        [(signal.SIGTERM, 143), (signal.SIGINT, 130), pytest.param(signal.SIGUSR1, 138, marks=pytest.mark.slow)],
    )
    def test_a_signal_saves_a_checkpoint_and_resume_continues(self, number, code, data, reference_run, tmp_path):
        out, log = tmp_path / "out", tmp_path / "log"
        process = start_command("train", "translate", data, "--out", out, *options(**RESUMED), log=log)
        wait_for_updates(out, process)
        os.kill(process.pid, number)
        assert wait_for_exit(process) == code
        said = log.read_text()
        assert "saving checkpoint, then stopping; press Ctrl-C again to end at once" in said
        step = checkpoint.read(checkpoint.latest(out))[1].step
        assert 3 <= step < 40
        assert (
            f"saved a checkpoint after update {step}; continue with: regard train translate --out {out} --resume"
            in said
        )
        assert wait_for_exit(start_command("train", "translate", "--out", out, "--resume", log=log)) == 0
        assert losses(out) == pytest.approx(losses(reference_run), abs=1e-5)
        assert len(losses(out)) == len(losses(reference_run))

    def test_a_second_ctrl_c_ends_it(self, data, tmp_path):
        out, log = tmp_path / "out", tmp_path / "log"
        process = start_command(
            "train", "translate", data, "--out", out, *options(max_steps=2000, eval_steps=2000), log=log
        )
        wait_for_updates(out, process)
        os.kill(process.pid, signal.SIGINT)
        time.sleep(0.004)
        os.kill(process.pid, signal.SIGINT)
        assert wait_for_exit(process) == 130
        assert "Traceback" not in log.read_text()


def free_port():
    import socket

    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        return str(free.getsockname()[1])


def start_processes(*arguments, folder, world=2):
    """Processes as torchrun starts them, without its startup time."""
    shared = {
        "MASTER_ADDR": "127.0.0.1",
        "MASTER_PORT": free_port(),
        "WORLD_SIZE": str(world),
        "LOCAL_WORLD_SIZE": str(world),
    }
    shared |= {"TORCHELASTIC_RUN_ID": "test", "GROUP_RANK": "0"}
    return [
        start_command(*arguments, log=folder / f"log{rank}", **shared, RANK=str(rank), LOCAL_RANK=str(rank))
        for rank in range(world)
    ]


class TestProcesses:
    @pytest.mark.parametrize(("strategy", "parts"), [("ddp", 1), ("fsdp", 2)])
    def test_two_have_the_losses_of_one(self, strategy, parts, data, reference_run, tmp_path):
        out = tmp_path / "out"
        asked = options(**RESUMED, gradient_accumulation_steps=parts)
        processes = start_processes(
            "train", "translate", data, "--out", out, "--strategy", strategy, *asked, folder=tmp_path
        )
        assert [wait_for_exit(process) for process in processes] == [0, 0], (tmp_path / "log0").read_text()
        assert losses(out) == pytest.approx(losses(reference_run), abs=1e-4)
        assert json.loads((out / "run.json").read_text())["processes"] == 2
        assert (tmp_path / "log1").read_text() == ""  # one of them speaks
        assert regard.load(out).kind == "encoder-decoder"

    @pytest.mark.parametrize("strategy", [pytest.param("ddp", marks=pytest.mark.slow), "fsdp"])
    def test_stopped_with_two_and_resumed_with_one(self, strategy, data, reference_run, tmp_path):
        out = tmp_path / "out"
        arguments = ("train", "translate", data, "--out", out, "--strategy", strategy, *options(**RESUMED))
        processes = start_processes(*arguments, folder=tmp_path)
        wait_for_updates(out, processes[0])
        os.kill(processes[1].pid, signal.SIGTERM)  # whichever hears it: all leave together
        assert [wait_for_exit(process) for process in processes] == [143, 0]
        assert run("translate", data, out, resume=True, **RESUMED).stop_reason == "completed"
        assert losses(out) == pytest.approx(losses(reference_run), abs=1e-4)

    def test_bad_input_ends_all_of_them(self, tmp_path):
        """A row that is too long, behind others; the message is said once, and nobody waits."""
        rows = [(f"{i} abc", "abc") for i in range(60)]
        rows[33] = ("1234567890" * 3, "abc")
        data = tsv(tmp_path / "long.tsv", rows)
        for index, path in enumerate((data, tmp_path / "missing.tsv")):
            folder = tmp_path / str(index)
            folder.mkdir()
            processes = start_processes("train", "translate", path, "--out", folder / "out", *options(), folder=folder)
            assert [wait_for_exit(process) for process in processes] == [2, 0]
            assert ("line 34: the source has 31 tokens", "missing.tsv: there is no such file")[index] in (
                folder / "log0"
            ).read_text()
            assert (folder / "log1").read_text() == ""

    def test_a_batch_that_does_not_divide(self, data, tmp_path):
        arguments = ("train", "translate", data, "--out", tmp_path / "out", *options(batch_size=9))
        processes = start_processes(*arguments, folder=tmp_path)
        assert wait_for_exit(processes[0]) == 2
        assert (
            "--batch-size 9 does not divide among 2 processes with --gradient-accumulation-steps 1; 10 would"
            in (tmp_path / "log0").read_text()
        )
        wait_for_exit(processes[1])
        assert not (tmp_path / "out").exists()

    def test_devices_of_this_machine_and_a_signal_to_their_parent(self, data, reference_run, tmp_path):
        """The command itself, which starts the other process."""
        out = tmp_path / "out"
        call = [sys.executable, "-m", "regard", "train", "translate", data, "--out", out, *options(**RESUMED)]
        environment = {**os.environ, "OMP_NUM_THREADS": "1", "HF_HUB_OFFLINE": "1"}
        with (tmp_path / "log").open("w") as log:
            call = [*map(str, call), "--devices", "2", "--gradient-accumulation-steps", "2"]
            process = subprocess.Popen(call, stdout=log, stderr=log, env=environment)
            wait_for_updates(out, process)
            process.send_signal(signal.SIGTERM)
            assert process.wait(300) == 143, (tmp_path / "log").read_text()
        assert "Traceback" not in (tmp_path / "log").read_text()
        assert run("translate", data, out, resume=True, **RESUMED).stop_reason == "completed"
        assert losses(out) == pytest.approx(losses(reference_run), abs=1e-4)

    @pytest.mark.slow
    @pytest.mark.parametrize("strategy", ["ddp", "fsdp"])
    def test_torchrun(self, strategy, data, reference_run, tmp_path):
        out = tmp_path / "out"
        call = [
            "-m",
            "torch.distributed.run",
            "--standalone",
            "--nproc-per-node",
            2,
            "-m",
            "regard",
            "train",
            "translate",
        ]
        call += [data, "--out", out, "--strategy", strategy, *options(**RESUMED)]
        environment = {**os.environ, "OMP_NUM_THREADS": "1", "HF_HUB_OFFLINE": "1"}
        process = subprocess.run(
            [sys.executable, *map(str, call)], capture_output=True, text=True, env=environment, timeout=600
        )
        assert process.returncode == 0, process.stderr
        assert losses(out) == pytest.approx(losses(reference_run), abs=1e-4)

    @pytest.mark.slow
    def test_texts_whose_rows_make_many_examples(self, tmp_path):
        data = write_texts(tmp_path / "texts.jsonl")
        settings = {"max_steps": 12, "dropout": 0.0}
        run("lm", data, tmp_path / "one", **settings)
        processes = start_processes(
            "train", "lm", data, "--out", tmp_path / "two", *options(**settings), folder=tmp_path
        )
        assert [wait_for_exit(process) for process in processes] == [0, 0]
        assert losses(tmp_path / "two") == pytest.approx(losses(tmp_path / "one"), abs=1e-4)
