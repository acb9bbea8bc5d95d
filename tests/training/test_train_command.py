"""`regard train`: its output, its files, what it refuses, signals, and several processes."""

import json
import os
import re
import resource
import shlex
import signal
import subprocess
import sys
from contextlib import contextmanager

import pytest
import typer
from runs import losses, metrics, options, run, start_processes, wait_for_exit, wait_for_lines

import regard
from regard.errors import install_hint
from regard.training import checkpoint
from regard.training.console import ConsoleCallback
from regard.training.data import pairs
from regard.training.distributed import create_fabric
from terminals import Stream

LONGER = {"max_steps": 16, "eval_steps": 8, "dropout": 0.0}
"""A run of some seconds: a signal after its first updates finds it at work."""


@pytest.fixture(scope="module")
def longer_run(pairs_file, tmp_path_factory):
    """The folder of such a run on one process without a stop."""
    out = tmp_path_factory.mktemp("longer") / "out"
    run("translate", pairs_file, out, **LONGER)
    return out


class TestARun:
    def test_its_output(self, command, finished_run, pairs_file, tmp_path, monkeypatch):
        monkeypatch.chdir(tmp_path)
        code, out, err = command("train", "translate", pairs_file, "--out", "a run", *options())
        said = r"eval loss N, exact match \d.\d%; the best was update 6, with an eval loss of N\. The model is in a run"
        assert re.fullmatch(said.replace("N", r"\d\.\d{3}"), out.strip()), err
        lines = err.splitlines()
        assert [line.split(":")[0] for line in lines if line.startswith("update")] == ["update 3", "update 6"]
        assert lines[0].endswith("the best so far")
        samples = [line.split(" → ")[0].strip() for line in lines if "→" in line and "(target: " in line]
        assert samples == 2 * [row["source"] for row in pairs([pairs_file]).eval_rows[:3]]
        assert (code, len(lines), "\x1b" in err) == (0, 8, False)  # no progress bar in a pipe
        assert metrics(tmp_path / "a run") == metrics(finished_run.out)
        facts = json.loads((tmp_path / "a run" / "run.json").read_text())
        assert facts["command"][:3] + facts["command"][-2:] == ["regard", "train", "translate", "--eval-steps", "3"]

    def test_its_files(self, finished_run, pairs_file):
        facts = json.loads((finished_run.out / "run.json").read_text())
        found = [facts[name] for name in ("paths", "model", "eval_file", "processes", "precision")]
        assert found == [[str(pairs_file)], None, None, 1, "32-true"]
        assert (facts["config"]["seed"], facts["data"]["files"][0]["file"]) == (0, str(pairs_file))
        names = {"run.json", "metrics.jsonl", "loss.png", "attention", "checkpoints"}
        names |= {"config.json", "model.safetensors", "tokenizer.json"}
        names |= {"generation_config.json", "tokenizer_config.json"}
        assert {path.name for path in finished_run.out.iterdir()} == names
        steps = [f"step-{step:06d}.{kind}" for step in (3, 6) for kind in ("png", "safetensors")]
        assert sorted(path.name for path in (finished_run.out / "attention").iterdir()) == steps

    def test_a_complete_run_is_refused_and_resume_does_nothing(self, finished_run, command, pairs_file):
        out = finished_run.out
        before = {path: path.read_bytes() for path in out.rglob("*") if path.is_file()}
        code, _, err = command("train", "translate", pairs_file, "--out", out, *options())
        assert (code, "holds a run already. Continue it with --resume" in err) == (2, True)
        code, said, err = command("train", "translate", "--out", out, "--resume")
        assert (code, err) == (0, "")
        assert said.startswith("the run was complete already; the best was update 6")
        best = regard.train("translate", out=out, resume=True, accelerator="cpu").progress.best_loss
        facts = {"task": "translate", "out": str(out), "stop_reason": "completed", "step": 6, "metrics": {}}
        code, said, err = command("train", "translate", "--out", out, "--resume", "--json", "-")
        assert (code, json.loads(said), err) == (0, {**facts, "best_step": 6, "best_loss": best}, "")
        assert {path: path.read_bytes() for path in out.rglob("*") if path.is_file()} == before

    def test_on_a_terminal_there_is_a_bar_and_an_early_stop_is_reported(self, command, pairs_file, out, monkeypatch):
        stream = Stream(terminal=True, encoding="utf-8")
        monkeypatch.setattr("sys.stderr", stream)
        monkeypatch.setenv("TERM", "xterm-256color")
        settings = {"learning_rate": 3.0, "max_steps": 40, "eval_steps": 1, "warmup_steps": 0, "patience": 1}
        code, said, _ = command("train", "translate", pairs_file, "--out", out, *options(**settings))
        shown = stream.buffer.getvalue().decode()
        assert (code, ", stopped early; the best was update " in said) == (0, True), shown
        assert "2 of 40" in shown
        assert re.search(r"loss \d\.\d{3} · [\d,]+ tokens/s", shown)


class TestHelp:
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

    def test_a_row_that_is_too_long(self, command, long_pairs, out):
        arguments = ("translate", long_pairs, "--out", out, *options(max_steps=1, warmup_steps=0))
        err = self.said(command, *arguments)
        assert "long.tsv, line 1: the target has 23 tokens, and the model has positions for 16. Give --max-" in err
        code, said, err = command("train", *arguments, "--skip-long")
        assert (code, " rows skipped for their length" in said) == (0, True), err

    @pytest.mark.parametrize(
        ("arguments", "message"),
        [
            ("summarize", "'summarize' is not one of 'translate', 'lm', 'mlm', 'caption'"),
            ("translate --strategy magic", "'magic' is not one of 'auto', 'ddp', 'fsdp'"),
            ("translate --precision 8", "'8' is not one of '32-true', 'bf16-mixed', 'bf16-true'"),
            ("translate --accelerator abacus", "these processes are not available: "),
            ("translate --token-noise 0.1", "--token-noise 0.1 is an option of lm; translate has no token noise"),
            ("translate --dropout 1", "regard: --dropout 1.0: it must be at least 0 and below 1"),
            ("translate --json /no/such/x", "cannot write '/no/such/x': there is no folder"),
            ("translate --max-steps many", "Invalid value for '--max-steps'"),
            ("lm --d-model 12 --num-heads 4", "config.json: "),
            ("translate nothing.tsv", "nothing.tsv: there is no such file"),
            ("translate --model no/such/folder/here", "no/such/folder/here"),
            (
                "translate --model gpt2 --num-layers 3",
                "--num-layers 3 is an option of a new model, and --model gpt2",
            ),
        ],
    )
    def test_options(self, arguments, message, command, out):
        assert message in self.said(command, *arguments.split(), "--out", out)
        assert not out.exists() or not list(out.iterdir())

    @pytest.mark.parametrize("library", ["lightning_fabric", "datasets", "matplotlib", "babel", "sklearn"])
    def test_a_missing_library(self, library, command, out, monkeypatch):
        monkeypatch.setitem(sys.modules, library, None)
        err = self.said(command, "caption" if library == "sklearn" else "translate", "--out", out)
        assert err == f"regard: this needs {library}, which is not installed: {install_hint('train')}\n"
        assert not out.exists()


class TestSignals:
    @pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGINT, signal.SIGUSR1])
    def test_the_first_stops_the_run_and_a_second_ctrl_c_ends_it(self, number, capsys):
        before, console = signal.getsignal(number), ConsoleCallback()
        with console.handle_signals():
            assert not console.should_stop()
            signal.raise_signal(number)
            assert (console.should_stop(), console.signal_number) == (True, number)
            with pytest.raises(KeyboardInterrupt):
                signal.raise_signal(signal.SIGINT)
        assert signal.getsignal(number) == before
        assert capsys.readouterr().err == "saving checkpoint, then stopping; press Ctrl-C again to end at once\n"


@contextmanager
def largest_file(size):
    """Limits the size of every file that this process writes: the write itself fails, as on a full disk."""
    before = resource.getrlimit(resource.RLIMIT_FSIZE)
    resource.setrlimit(resource.RLIMIT_FSIZE, (size, before[1]))
    try:
        yield
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, before)


def test_the_disk_is_full_when_a_run_begins(pairs_file, finished_run, command, out):
    arguments = ("train", "translate", pairs_file, "--out", out, *options(max_steps=3))
    with largest_file((finished_run.out / "model.safetensors").stat().st_size - 1000):
        code, _, err = command(*arguments)
    assert code == 2
    assert f"regard: {out} cannot be written: " in err
    assert list(out.iterdir()) == []


def test_the_disk_is_full_while_a_checkpoint_is_written(pairs_file, finished_run, command, out):
    size = (checkpoint.latest(finished_run.out) / "optimizer.safetensors").stat().st_size
    assert (finished_run.out / "model.safetensors").stat().st_size < size - 20_000
    arguments = ("train", "translate", pairs_file, "--out", out, *options(max_steps=3))
    with largest_file(size - 10_000):
        code, _, err = command(*arguments)
    assert code == 2
    assert "regard: the checkpoint of step 3 cannot be written: " in err
    assert "there is no checkpoint yet; free some space, then continue with --resume" in err
    assert not list(out.rglob("*draft*"))
    assert command(*arguments, "--resume")[0] == 0
    assert losses(out)[:3] == losses(finished_run.out)[:3]


class TestProcesses:
    @pytest.mark.more
    @pytest.mark.parametrize(("strategy", "resumed_by"), [("fsdp", 1), ("fsdp", 2), ("ddp", 1)])
    def test_two_have_the_losses_of_one(self, strategy, resumed_by, pairs_file, longer_run, tmp_path, out):
        """Also when one of them receives a signal, upon which all stop, and one or two continue."""
        settings = options(**LONGER, gradient_accumulation_steps=2)
        arguments = ("train", "translate", pairs_file, "--out", out, "--strategy", strategy, "--resume", *settings)
        processes = start_processes(*arguments, folder=tmp_path)
        wait_for_lines(out, 9, processes[0].is_alive)  # the line of an evaluation
        os.kill(processes[1].pid, signal.SIGTERM)
        assert [wait_for_exit(process) for process in processes] == [143, 0], (tmp_path / "log0").read_text()
        step = checkpoint.read(checkpoint.latest(out))[1].step
        said = f"saved a checkpoint after update {step}; continue with: regard train translate --out {out} --resume"
        assert said in (tmp_path / "log0").read_text()
        assert "update" not in (tmp_path / "log1").read_text()  # one of them speaks
        assert json.loads((out / "run.json").read_text())["processes"] == 2
        if resumed_by == 2:
            processes = start_processes(*arguments, folder=tmp_path)
            assert [wait_for_exit(process) for process in processes] == [0, 0], (tmp_path / "log0").read_text()
        else:
            run("translate", pairs_file, out, resume=True, **LONGER)
        assert losses(out) == pytest.approx(losses(longer_run), abs=1e-4)

    @pytest.mark.more
    def test_bad_input_ends_both_of_them(self, long_pairs, tmp_path, out):
        """The message is said once, and no process waits."""
        processes = start_processes("train", "translate", long_pairs, "--out", out, *options(), folder=tmp_path)
        assert [wait_for_exit(process) for process in processes] == [2, 0]
        assert "line 1: the target has 23 tokens" in (tmp_path / "log0").read_text()
        assert (tmp_path / "log1").read_text() == ""

    def test_devices_are_processes_and_a_launcher_has_its_own(self, monkeypatch):
        assert create_fabric(accelerator="cpu").world_size == 1
        assert create_fabric(accelerator="cpu", devices=2, nodes=3).world_size == 6
        monkeypatch.setenv("LOCAL_WORLD_SIZE", "4")
        monkeypatch.setenv("WORLD_SIZE", "8")
        assert create_fabric(accelerator="cpu").world_size == 8

    @pytest.mark.more
    def test_a_signal_to_the_parent_of_devices(self, pairs_file, longer_run, tmp_path, out):
        """The command itself, which starts the other process."""
        call = ["-m", "regard", "train", "translate", pairs_file, "--out", out, *options(**LONGER), "--devices", "2"]
        environment = {**os.environ, "OMP_NUM_THREADS": "1", "HF_HUB_OFFLINE": "1"}
        with (tmp_path / "log").open("w") as log:
            process = subprocess.Popen([sys.executable, *map(str, call)], stdout=log, stderr=log, env=environment)
            wait_for_lines(out, 9, lambda: process.poll() is None)
            process.send_signal(signal.SIGTERM)
            assert process.wait(300) == 143, (tmp_path / "log").read_text()
        assert "Traceback" not in (tmp_path / "log").read_text()
        run("translate", pairs_file, out, resume=True, **LONGER)
        assert losses(out) == pytest.approx(losses(longer_run), abs=1e-4)
