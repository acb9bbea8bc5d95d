"""A run that is killed, at chosen and at random moments, ends with the same bits when it is resumed."""

import json
import random
import shutil
import time

import pytest
import torch
from runs import Stop, metrics, options, run, same_weights, start_command, wait_for_exit, weights, write_pairs
from safetensors.torch import load_file

import regard
from regard import InputError
from regard.training import checkpoint
from regard.training.checkpoint import Progress


@pytest.fixture(scope="module")
def data(tmp_path_factory):
    return write_pairs(tmp_path_factory.mktemp("data") / "pairs.tsv")


@pytest.fixture(scope="module")
def reference_run(data, tmp_path_factory):
    """A run without a stop."""
    out = tmp_path_factory.mktemp("reference") / "out"
    run("translate", data, out)
    return out


@pytest.fixture
def stopped_run(data, tmp_path):
    """A run that was stopped after update 7, two after its evaluation."""
    run("translate", data, tmp_path / "out", callback=Stop(7))
    return tmp_path / "out"


def ends_as_reference(reference_run, out, data):
    run("translate", data, out, resume=True)
    assert same_weights(weights(out), weights(reference_run))
    for name in ("model", "optimizer"):
        ours, theirs = (load_file(checkpoint.latest(folder) / f"{name}.safetensors") for folder in (out, reference_run))
        assert same_weights(ours, theirs)
    assert metrics(out) == metrics(reference_run)
    assert not list(out.rglob(".draft*"))
    return True


class TestOnDisk:
    def test_what_a_checkpoint_is(self, reference_run):
        last = checkpoint.latest(reference_run)
        assert [path.name for path in sorted((reference_run / "checkpoints").iterdir())] == [
            "step-000005",
            "step-000010",
        ]
        state, progress = checkpoint.read(last)
        assert (progress.step, progress.epoch, progress.num_batches) == (10, 0, 10)
        model = regard.load(last).model
        names = {f"model.{name}" for name, _ in model.named_parameters()}
        assert {key.rpartition("/")[0] for key in state} == names
        assert {key.rpartition("/")[2] for key in state} == {"step", "exp_avg", "exp_avg_sq"}
        assert all(state[f"{name}/step"] == 10 for name in names)

    def test_no_more_than_two_stay(self, data, tmp_path):
        run("translate", data, tmp_path / "out", max_steps=4, eval_steps=1)
        assert [path.name for path in sorted((tmp_path / "out" / "checkpoints").iterdir())] == [
            "step-000003",
            "step-000004",
        ]

    def test_one_that_is_damaged(self, data, stopped_run):
        last = checkpoint.latest(stopped_run)
        (last / "optimizer.safetensors").write_bytes(b"cut off")
        with pytest.raises(InputError, match=r"step-000007 is damaged: .*Delete it, and --resume continues from"):
            run("translate", data, stopped_run, resume=True)
        (last / "progress.json").write_text(json.dumps({"speed": 3}))
        with pytest.raises(InputError, match=r"step-000007 is damaged"):
            run("translate", data, stopped_run, resume=True)

    def test_a_folder_that_cannot_be_written(self, reference_run, tmp_path):
        (tmp_path / "checkpoints").write_text("in the way")
        with pytest.raises(InputError, match=r"the checkpoint of step 9 cannot be written: .*there is no checkpoint"):
            checkpoint.write(tmp_path, regard.load(reference_run), {}, Progress(step=9))
        with pytest.raises(InputError, match=r"model\.safetensors cannot be written: .*; the weights are in .*-000010"):
            checkpoint.promote(tmp_path / "checkpoints", checkpoint.latest(reference_run))


class TestKilledExactly:
    """The files that a killed process leaves, made by hand."""

    def test_while_a_checkpoint_is_written(self, data, reference_run, stopped_run):
        for name in (".draft-000010", ".draft-gone-step-000005"):
            shutil.copytree(checkpoint.latest(stopped_run), stopped_run / "checkpoints" / name)
            (stopped_run / "checkpoints" / name / "progress.json").unlink()
        file = stopped_run / "checkpoints" / ".draft-000010" / "model.safetensors"
        file.write_bytes(file.read_bytes()[:500])
        (stopped_run / ".draft-model.safetensors").write_bytes(b"half")
        assert ends_as_reference(reference_run, stopped_run, data)

    def test_while_a_line_of_the_metrics_is_written(self, data, reference_run, stopped_run):
        with (stopped_run / "metrics.jsonl").open("a") as file:
            file.write('{"step": 8, "loss": 3.1, "learning_rate": 0.01}\n{"step": 9, "lo')
        assert ends_as_reference(reference_run, stopped_run, data)

    def test_between_a_checkpoint_and_its_promotion(self, data, reference_run, tmp_path):
        out = tmp_path / "out"
        shutil.copytree(reference_run, out)
        shutil.copy(out / "checkpoints" / "step-000005" / "model.safetensors", out)
        assert not same_weights(weights(out), weights(reference_run))
        assert ends_as_reference(reference_run, out, data)

    def test_between_the_evaluation_and_its_checkpoint(self, data, reference_run, tmp_path):
        out = tmp_path / "out"
        shutil.copytree(reference_run, out)
        shutil.rmtree(out / "checkpoints" / "step-000010")
        assert ends_as_reference(reference_run, out, data)

    def test_before_the_first_checkpoint(self, data, reference_run, tmp_path):
        out = tmp_path / "out"
        run("translate", data, out, callback=Stop(2))
        shutil.rmtree(out / "checkpoints")
        (out / "model.safetensors").write_bytes(b"half")
        assert ends_as_reference(reference_run, out, data)

    def test_while_run_json_is_written(self, data, reference_run, tmp_path):
        out = tmp_path / "out"
        out.mkdir()
        (out / ".draft-run.json").write_text('{"task": "tra')
        assert ends_as_reference(reference_run, out, data)


def kill_at_random_moments(data, folder, reference_run, times):
    """Kill a run some times at random moments, then let it end."""
    rng = random.Random(time.time())
    out, log = folder / "out", folder / "log"
    arguments = ("train", "translate", data, "--resume", *options())
    for _ in range(2):  # the first process takes longer: nothing is imported yet
        shutil.rmtree(folder / "first", ignore_errors=True)
        begun = time.perf_counter()
        assert wait_for_exit(start_command(*arguments, "--out", folder / "first", log=log)) == 0
    duration = time.perf_counter() - begun
    moments = []
    while len(moments) < times:
        moment = rng.uniform(0, duration)
        process = start_command(*arguments, "--out", out, log=log)
        time.sleep(moment)
        process.kill()
        process.join()
        if process.exitcode == 0:
            shutil.rmtree(out)  # it had ended: another run, for the kills that are still to come
            continue
        last = checkpoint.latest(out)
        moments.append((round(moment, 2), None if last is None else last.name))
        assert process.exitcode == -9
    print(f"a run lasts {duration:.2f} s; killed after", moments)
    process = start_command("train", "translate", data, "--out", out, "--resume", *options(), log=log)
    assert wait_for_exit(process) == 0, log.read_text()
    assert "Traceback" not in log.read_text()
    assert same_weights(weights(out), weights(folder / "first"))
    assert metrics(out) == metrics(folder / "first")
    # A process of its own has the numbers of this one, too.
    assert all(
        torch.allclose(a, b, atol=1e-6)
        for a, b in zip(weights(out).values(), weights(reference_run).values(), strict=True)
    )


def test_killed_at_random_moments(data, reference_run, tmp_path):
    kill_at_random_moments(data, tmp_path, reference_run, 3)


@pytest.mark.slow
@pytest.mark.parametrize("number", range(5))
def test_killed_at_20_random_moments(number, data, reference_run, tmp_path):
    kill_at_random_moments(data, tmp_path, reference_run, 4)
