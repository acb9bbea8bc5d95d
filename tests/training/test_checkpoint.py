"""A run that is killed at any moment, exactly and at random, ends as if nothing had been."""

import json
import random
import shutil
import time

import pytest
import torch
from runs import Stop, command, finished, metrics, options, run, same, weights, write_pairs
from safetensors.torch import load_file

import regard
from regard import InputError
from regard.training import checkpoint
from regard.training.checkpoint import Progress


@pytest.fixture(scope="module")
def data(tmp_path_factory):
    return write_pairs(tmp_path_factory.mktemp("data") / "pairs.tsv")


@pytest.fixture(scope="module")
def whole(data, tmp_path_factory):
    """A run that nobody disturbed."""
    out = tmp_path_factory.mktemp("whole") / "out"
    run("translate", data, out)
    return out


@pytest.fixture
def stopped(data, tmp_path):
    """A run that was stopped after update 7, two after its evaluation."""
    run("translate", data, tmp_path / "out", callback=Stop(7))
    return tmp_path / "out"


def ends_as(whole, out, data):
    run("translate", data, out, resume=True)
    assert same(weights(out), weights(whole))
    for name in ("model", "optimizer"):
        ours, theirs = (load_file(checkpoint.latest(folder) / f"{name}.safetensors") for folder in (out, whole))
        assert same(ours, theirs)
    assert metrics(out) == metrics(whole)
    assert not list(out.rglob(".draft*"))
    return True


class TestOnDisk:
    def test_what_a_checkpoint_is(self, whole):
        last = checkpoint.latest(whole)
        assert [path.name for path in sorted((whole / "checkpoints").iterdir())] == ["step-000005", "step-000010"]
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

    def test_one_that_is_damaged(self, data, stopped):
        last = checkpoint.latest(stopped)
        (last / "optimizer.safetensors").write_bytes(b"cut off")
        with pytest.raises(InputError, match=r"step-000007 is damaged: .*Delete it, and --resume continues from"):
            run("translate", data, stopped, resume=True)
        (last / "progress.json").write_text(json.dumps({"speed": 3}))
        with pytest.raises(InputError, match=r"step-000007 is damaged"):
            run("translate", data, stopped, resume=True)

    def test_a_folder_that_refuses(self, whole, tmp_path):
        (tmp_path / "checkpoints").write_text("in the way")
        with pytest.raises(InputError, match=r"the checkpoint of step 9 cannot be written: .*there is no checkpoint"):
            checkpoint.write(tmp_path, regard.load(whole), {}, Progress(step=9))
        with pytest.raises(InputError, match=r"model\.safetensors cannot be written: .*; the weights are in .*-000010"):
            checkpoint.promote(tmp_path / "checkpoints", checkpoint.latest(whole))


class TestKilledExactly:
    """What a killed process leaves, put there by hand."""

    def test_in_the_midst_of_a_checkpoint(self, data, whole, stopped):
        for name in (".draft-000010", ".draft-gone-step-000005"):
            shutil.copytree(checkpoint.latest(stopped), stopped / "checkpoints" / name)
            (stopped / "checkpoints" / name / "progress.json").unlink()
        file = stopped / "checkpoints" / ".draft-000010" / "model.safetensors"
        file.write_bytes(file.read_bytes()[:500])
        (stopped / ".draft-model.safetensors").write_bytes(b"half")
        assert ends_as(whole, stopped, data)

    def test_in_the_midst_of_a_line_of_the_metrics(self, data, whole, stopped):
        with (stopped / "metrics.jsonl").open("a") as file:
            file.write('{"step": 8, "loss": 3.1, "learning_rate": 0.01}\n{"step": 9, "lo')
        assert ends_as(whole, stopped, data)

    def test_between_the_checkpoint_and_its_becoming_the_model(self, data, whole, tmp_path):
        out = tmp_path / "out"
        shutil.copytree(whole, out)
        shutil.copy(out / "checkpoints" / "step-000005" / "model.safetensors", out)
        assert not same(weights(out), weights(whole))
        assert ends_as(whole, out, data)

    def test_between_the_evaluation_and_its_checkpoint(self, data, whole, tmp_path):
        out = tmp_path / "out"
        shutil.copytree(whole, out)
        shutil.rmtree(out / "checkpoints" / "step-000010")
        assert ends_as(whole, out, data)

    def test_before_the_first_checkpoint(self, data, whole, tmp_path):
        out = tmp_path / "out"
        run("translate", data, out, callback=Stop(2))
        shutil.rmtree(out / "checkpoints")
        (out / "model.safetensors").write_bytes(b"half")
        assert ends_as(whole, out, data)

    def test_while_it_wrote_what_it_is(self, data, whole, tmp_path):
        out = tmp_path / "out"
        out.mkdir()
        (out / ".draft-run.json").write_text('{"task": "tra')
        assert ends_as(whole, out, data)


def killed(data, folder, whole, times):
    """A run that is killed so many times at moments by chance, and one at last that is not."""
    chance = random.Random(time.time())
    out, log = folder / "out", folder / "log"
    arguments = ("train", "translate", data, "--resume", *options())
    for _ in range(2):  # the first process takes longer: nothing is imported yet
        shutil.rmtree(folder / "first", ignore_errors=True)
        begun = time.perf_counter()
        assert finished(command(*arguments, "--out", folder / "first", log=log)) == 0
    lasts = time.perf_counter() - begun
    moments = []
    while len(moments) < times:
        moment = chance.uniform(0, lasts)
        process = command(*arguments, "--out", out, log=log)
        time.sleep(moment)
        process.kill()
        process.join()
        if process.exitcode == 0:
            shutil.rmtree(out)  # it had ended: another run, for the kills that are still to come
            continue
        last = checkpoint.latest(out)
        moments.append((round(moment, 2), None if last is None else last.name))
        assert process.exitcode == -9
    print(f"a run lasts {lasts:.2f} s; killed after", moments)
    process = command("train", "translate", data, "--out", out, "--resume", *options(), log=log)
    assert finished(process) == 0, log.read_text()
    assert "Traceback" not in log.read_text()
    assert same(weights(out), weights(folder / "first"))
    assert metrics(out) == metrics(folder / "first")
    # A process of its own has the numbers of this one, too.
    assert all(
        torch.allclose(a, b, atol=1e-6) for a, b in zip(weights(out).values(), weights(whole).values(), strict=True)
    )


def test_killed_at_random_moments(data, whole, tmp_path):
    killed(data, tmp_path, whole, 3)


@pytest.mark.slow
@pytest.mark.parametrize("number", range(5))
def test_killed_at_20_random_moments(number, data, whole, tmp_path):
    killed(data, tmp_path, whole, 4)
