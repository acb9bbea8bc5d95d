"""`regard train`: its output, its files, what it refuses, signals, and several processes."""

import json
import os
import re
import resource
import shlex
import shutil
import signal
import subprocess
import sys

import jaxtyping
import matplotlib
import pytest
import typer
from runs import (
    SMALL_PLOTS,
    losses,
    metrics,
    options,
    run,
    same_weights,
    start_command,
    start_processes,
    upper_case_pairs,
    wait_for_exit,
    wait_for_lines,
    weights,
    write_texts,
    write_tsv,
)

from regard import InputError
from regard.cli import main
from regard.training import checkpoint
from regard.training.callbacks import Callback
from regard.training.console import ConsoleCallback
from regard.training.data import pairs
from regard.training.distributed import create_fabric
from terminals import Stream

LONGER = {"max_steps": 16, "eval_steps": 8, "dropout": 0.0}
"""A run of some seconds: a signal after its first updates finds it at work."""


@pytest.fixture(scope="module", autouse=True)
def _small_plots():
    with matplotlib.rc_context(SMALL_PLOTS):
        yield


@pytest.fixture(scope="module")
def longer_run(pairs_file, tmp_path_factory):
    """The folder of such a run on one process without a stop."""
    out = tmp_path_factory.mktemp("longer") / "out"
    run("translate", pairs_file, out, **LONGER)
    return out


@pytest.fixture
def long_pairs(tmp_path):
    """Pairs of which the 34th is too long."""
    rows = upper_case_pairs()
    rows[33] = ("1234567890" * 3, "abc")
    return write_tsv(tmp_path / "long.tsv", rows)


@pytest.fixture(scope="module")
def command_run(pairs_file, tmp_path_factory):
    """The folder of a run of the command in its own folder, and what it wrote to both streams."""
    folder, streams = tmp_path_factory.mktemp("command"), [Stream(terminal=False, encoding="utf-8") for _ in range(2)]
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(jaxtyping.config, "jaxtyping_disable", True)  # as a user runs it
        patch.chdir(folder)
        patch.setattr("sys.argv", ["regard", "train", "translate", str(pairs_file), "--out", "a run", *options()])
        patch.setattr("sys.stdout", streams[0])
        patch.setattr("sys.stderr", streams[1])
        with pytest.raises(SystemExit) as ended:
            main()
    out, err = (stream.buffer.getvalue().decode() for stream in streams)
    assert ended.value.code == 0, err
    return folder / "a run", out, err


class TestARun:
    def test_its_output(self, command_run, pairs_file):
        _, out, err = command_run
        number = r"\d\.\d{3}"
        assert re.fullmatch(
            rf"eval loss {number}, exact match \d\.\d%; the best was update 6, with an eval loss of {number}\. The "
            r"model is in a run\n",
            out,
        )
        lines = err.splitlines()
        assert [line.split(":")[0] for line in lines if line.startswith("update")] == ["update 3", "update 6"]
        assert lines[0].endswith("the best so far")
        samples = [line.split(" → ")[0].strip() for line in lines if "→" in line and "(target: " in line]
        assert samples == 2 * [row["source"] for row in pairs([pairs_file]).eval_rows[:3]]
        assert len(lines) == 8  # no progress bar in a pipe
        assert "\x1b" not in err

    def test_its_files(self, command_run, finished_run, pairs_file):
        out = command_run[0]
        assert same_weights(weights(out), weights(finished_run.out))
        facts = json.loads((out / "run.json").read_text())
        assert facts["command"][:3] == ["regard", "train", "translate"]
        assert facts["command"][-2:] == ["--eval-steps", "3"]
        assert (facts["paths"], facts["model"], facts["eval_file"]) == ([str(pairs_file)], None, None)
        assert facts["config"]["seed"] == 0
        assert facts["data"]["files"][0]["file"] == str(pairs_file)
        assert (facts["processes"], facts["precision"]) == (1, "32-true")
        names = {"run.json", "metrics.jsonl", "loss.png", "attention", "checkpoints"}
        names |= {"config.json", "tokenizer.json", "model.safetensors"}
        assert {path.name for path in out.iterdir()} == names
        steps = [f"step-{step:06d}.{kind}" for step in (3, 6) for kind in ("png", "safetensors")]
        assert sorted(path.name for path in (out / "attention").iterdir()) == steps

    def test_other_commands_read_its_model(self, finished_run, command, tmp_path):
        code, _, err = command("translate", "abc", "--model", finished_run.out, "--max-new-tokens", 4)
        assert (code, err) == (0, "")
        recording = finished_run.out / "attention" / "step-000006.safetensors"
        assert command("see", "--recording", recording, "--out", tmp_path / "page.html")[0] == 0
        assert "<html" in (tmp_path / "page.html").read_text()[:300]

    def test_a_complete_run_is_refused_and_resume_does_nothing(self, finished_run, command, pairs_file):
        out = finished_run.out
        before = {path: path.read_bytes() for path in out.rglob("*") if path.is_file()}
        code, _, err = command("train", "translate", pairs_file, "--out", out, *options())
        assert (code, "holds a run already. Continue it with --resume" in err) == (2, True)
        code, said, err = command("train", "translate", "--out", out, "--resume")
        assert (code, err) == (0, "")
        assert said.startswith("the run was complete already; the best was update 6")
        assert {path: path.read_bytes() for path in out.rglob("*") if path.is_file()} == before

    def test_on_a_terminal_there_is_a_bar_and_an_early_stop_is_reported(self, command, pairs_file, out, monkeypatch):
        stream = Stream(terminal=True, encoding="utf-8")
        monkeypatch.setattr("sys.stderr", stream)
        monkeypatch.setenv("TERM", "xterm-256color")
        settings = {"learning_rate": 3.0, "max_steps": 40, "eval_steps": 1, "warmup_steps": 0, "patience": 1}
        code, said, _ = command("train", "translate", pairs_file, "--out", out, *options(**settings))
        stream.flush()
        shown = stream.buffer.getvalue().decode()
        assert (code, ", stopped early; the best was update " in said) == (0, True), shown
        assert "2 of 40" in shown
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

    def test_a_row_that_is_too_long(self, command, long_pairs, out):
        arguments = ("translate", long_pairs, "--out", out, *options(max_steps=1, warmup_steps=0))
        err = self.said(command, *arguments)
        assert "long.tsv, line 34: the source has 31 tokens, and the model has positions for 16. Give --max-" in err
        code, said, err = command("train", *arguments, "--skip-long")
        assert code == 0, err
        assert "1 row skipped for their length" in said

    @pytest.mark.parametrize(
        ("arguments", "message"),
        [
            ("summarize", "there is no task 'summarize'; there are translate, lm, mlm, caption"),
            ("translate --strategy magic", "--strategy magic: it is one of auto, ddp, fsdp"),
            ("translate --precision 8", "--precision 8: it is one of 32-true, bf16-mixed, bf16-true"),
            ("translate --accelerator abacus", "these processes are not available: "),
            ("translate --learning-rate -1", "--learning-rate -1.0: it must be above 0"),
            ("translate --token-noise 0.1", "--token-noise 0.1 is an option of lm; translate has no token noise"),
            ("translate --max-steps many", "Invalid value for '--max-steps'"),
            ("translate --batch-size 9 --gradient-accumulation-steps 2", "--batch-size 9 does not divide among"),
            ("translate --vocab-size 100", "is too small for 256 bytes and 2 special tokens: give at least 258"),
            ("lm --d-model 12 --num-heads 4", "config.json: "),
            ("translate nothing.tsv", "nothing.tsv: there is no such file"),
            ("translate --model no/such/folder/here", "no/such/folder/here"),
            ("translate --model gpt2 --num-layers 3", "--num-layers is an option of a new model, and --model gpt2 can"),
        ],
    )
    def test_options(self, arguments, message, command, out):
        assert message in self.said(command, *arguments.split(), "--out", out)
        assert not out.exists() or not list(out.iterdir())

    @pytest.mark.parametrize("library", ["lightning_fabric", "datasets", "matplotlib", "babel"])
    def test_a_missing_library(self, library, command, out, monkeypatch):
        monkeypatch.setitem(sys.modules, library, None)
        err = self.said(command, "translate", "--out", out)
        assert err == f"regard: this needs {library}, which is not installed: pip install 'regard[train]'\n"
        assert not out.exists()


class TestFullDisk:
    def test_while_a_checkpoint_is_written(self, pairs_file, finished_run, command, out):
        """The size of every file that this process writes is limited: the write itself fails."""
        size = (checkpoint.latest(finished_run.out) / "optimizer.safetensors").stat().st_size
        assert (finished_run.out / "model.safetensors").stat().st_size < size - 20_000
        arguments = ("train", "translate", pairs_file, "--out", out, *options(max_steps=3))
        before = resource.getrlimit(resource.RLIMIT_FSIZE)
        resource.setrlimit(resource.RLIMIT_FSIZE, (size - 10_000, before[1]))
        try:
            code, _, err = command(*arguments)
        finally:
            resource.setrlimit(resource.RLIMIT_FSIZE, before)
        assert code == 2
        assert "regard: the checkpoint of step 3 cannot be written: " in err
        assert "there is no checkpoint yet; free some space, then continue with --resume" in err
        assert not list(out.rglob("*draft*"))
        assert command(*arguments, "--resume")[0] == 0
        assert losses(out)[:3] == losses(finished_run.out)[:3]

    def test_while_metrics_are_written(self, pairs_file, stopped_run, finished_run, tmp_path, out):
        shutil.copytree(stopped_run, out)

        class Fill(Callback):
            def on_update_end(self, progress, loss):
                if progress.step == 5:
                    (out / "metrics.jsonl").rename(tmp_path / "so far")
                    (out / "metrics.jsonl").symlink_to("/dev/full")

        with pytest.raises(InputError, match=r"metrics\.jsonl cannot be written: No space left on device"):
            run("translate", pairs_file, out, resume=True, callback=Fill())
        assert checkpoint.latest(out).name == "step-000004"
        (tmp_path / "so far").replace(out / "metrics.jsonl")
        run("translate", pairs_file, out, resume=True)
        assert metrics(out) == metrics(finished_run.out)


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
        said = "saving checkpoint, then stopping; press Ctrl-C again to end at once\n"
        assert capsys.readouterr().err == said

    def test_ctrl_c_saves_a_checkpoint_and_resume_continues(self, pairs_file, longer_run, command, tmp_path, out):
        log = tmp_path / "log"
        process = start_command("train", "translate", pairs_file, "--out", out, *options(**LONGER), log=log)
        wait_for_lines(out, 2, process.is_alive)
        os.kill(process.pid, signal.SIGINT)
        assert wait_for_exit(process) == 130
        step = checkpoint.read(checkpoint.latest(out))[1].step
        assert 2 <= step < 16
        said = log.read_text()
        assert "saving checkpoint, then stopping; press Ctrl-C again to end at once" in said
        assert f"saved a checkpoint after update {step}; continue with: regard train translate --out {out} --" in said
        code, _, err = command("train", "translate", "--out", out, "--resume")
        assert code == 0, err
        assert losses(out) == pytest.approx(losses(longer_run), abs=1e-5)


class TestProcesses:
    @pytest.mark.parametrize(
        ("strategy", "parts", "resumed_by"),
        [
            ("fsdp", 2, 1),
            pytest.param("ddp", 2, 1, marks=pytest.mark.more),
            pytest.param("fsdp", 2, 2, marks=pytest.mark.more),
            pytest.param("ddp", 1, 2, marks=pytest.mark.more),
            pytest.param("fsdp", 1, 1, marks=pytest.mark.more),
        ],
    )
    def test_two_have_the_losses_of_one(self, strategy, parts, resumed_by, pairs_file, longer_run, tmp_path, out):
        """Also when one of them receives a signal, upon which all stop, and one or two continue."""
        settings = options(**LONGER, gradient_accumulation_steps=parts)
        arguments = ("train", "translate", pairs_file, "--out", out, "--strategy", strategy, "--resume", *settings)
        processes = start_processes(*arguments, folder=tmp_path)
        wait_for_lines(out, 9, processes[0].is_alive)  # the line of an evaluation
        os.kill(processes[1].pid, signal.SIGTERM)
        assert [wait_for_exit(process) for process in processes] == [143, 0], (tmp_path / "log0").read_text()
        assert "update" not in (tmp_path / "log1").read_text()  # one of them speaks
        assert json.loads((out / "run.json").read_text())["processes"] == 2
        if resumed_by == 2:
            processes = start_processes(*arguments, folder=tmp_path)
            assert [wait_for_exit(process) for process in processes] == [0, 0], (tmp_path / "log0").read_text()
        else:
            run("translate", pairs_file, out, resume=True, **LONGER)
        assert losses(out) == pytest.approx(losses(longer_run), abs=1e-4)

    @pytest.mark.parametrize(
        ("data", "more", "message"),
        [
            ("long.tsv", {}, "line 34: the source has 31 tokens"),
            pytest.param("missing.tsv", {}, "missing.tsv: there is no such file", marks=pytest.mark.more),
            pytest.param(
                "long.tsv", {"batch_size": 9}, "--batch-size 9 does not divide among 2", marks=pytest.mark.more
            ),
        ],
    )
    def test_bad_input_ends_all_of_them(self, data, more, message, long_pairs, tmp_path, out):
        """The message is said once, and no process waits."""
        arguments = ("train", "translate", tmp_path / data, "--out", out, *options(**more))
        processes = start_processes(*arguments, folder=tmp_path)
        assert [wait_for_exit(process) for process in processes] == [2, 0]
        assert message in (tmp_path / "log0").read_text()
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

    @pytest.mark.slow
    @pytest.mark.parametrize("strategy", ["ddp", "fsdp"])
    def test_torchrun(self, strategy, pairs_file, longer_run, out):
        call = ["-m", "torch.distributed.run", "--standalone", "--nproc-per-node", 2, "-m", "regard", "train"]
        call += ["translate", pairs_file, "--out", out, "--strategy", strategy, *options(**LONGER)]
        environment = {**os.environ, "OMP_NUM_THREADS": "1", "HF_HUB_OFFLINE": "1"}
        process = subprocess.run([sys.executable, *map(str, call)], capture_output=True, text=True, env=environment)
        assert process.returncode == 0, process.stderr
        assert losses(out) == pytest.approx(losses(longer_run), abs=1e-4)

    @pytest.mark.more
    def test_texts_whose_rows_make_many_examples(self, tmp_path):
        data, settings = write_texts(tmp_path / "texts.jsonl"), {"max_steps": 12, "dropout": 0.0, "eval_steps": 6}
        run("lm", data, tmp_path / "one", **settings)
        arguments = ("train", "lm", data, "--out", tmp_path / "two", *options(**settings))
        processes = start_processes(*arguments, folder=tmp_path)
        assert [wait_for_exit(process) for process in processes] == [0, 0]
        assert losses(tmp_path / "two") == pytest.approx(losses(tmp_path / "one"), abs=1e-4)
