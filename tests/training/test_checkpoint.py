"""A run that is killed ends with the same bits when it is resumed."""

import json
import math
import shutil

import pytest
import torch
from runs import Kill, Stop, losses, metrics, run, start_process, wait_for_exit
from safetensors.torch import load_file

import regard
from regard import InputError
from regard.training import checkpoint
from regard.training.checkpoint import Progress
from weights import random_checkpoint, same_weights, weights_of


class TestOnDisk:
    def test_a_checkpoint_has_the_model_the_optimizer_and_the_progress(self, finished_run):
        names = [path.name for path in sorted((finished_run.out / "checkpoints").iterdir())]
        assert names == ["step-000003", "step-000006"]
        state, progress = checkpoint.read(checkpoint.latest(finished_run.out))
        assert progress == finished_run.result.progress
        assert (progress.step, progress.epoch, progress.num_batches) == (6, 0, 6)
        model = regard.load(checkpoint.latest(finished_run.out)).model
        names = [f"model.{name}" for name, _ in model.named_parameters()]
        assert state.keys() == {f"{name}/{key}" for name in names for key in ("step", "exp_avg", "exp_avg_sq")}
        assert all(state[f"{name}/step"] == 6 for name in names)

    def test_no_more_than_two_stay(self, finished_run, tmp_path):
        model = regard.load(finished_run.out)
        for step in (8, 9, 10, 11, 11):
            checkpoint.write(tmp_path, model, {"a/step": torch.tensor(step)}, Progress(step=step))
        assert {path.name for path in (tmp_path / "checkpoints").iterdir()} == {"step-000010", "step-000011"}

    @pytest.mark.usefixtures("as_a_user_runs_it")
    def test_a_damaged_one_is_named(self, pairs_file, stopped_run, out):
        shutil.copytree(stopped_run, out)
        last = checkpoint.latest(out)
        facts = json.loads((last / "progress.json").read_text())
        progress = ({"speed": 3}, {**facts, "step": "4"}, {**facts, "best_loss": math.nan}, {**facts, "num_tokens": -1})
        damages = [*(("progress.json", json.dumps(each)) for each in progress), ("optimizer.safetensors", "cut off")]
        for name, content in damages:
            (last / name).write_text(content)
            with pytest.raises(InputError, match=r"step-000004 is damaged: .*Delete it, and resume=True continues"):
                run("translate", pairs_file, out, resume=True)

    def test_other_folders_beside_them_stay_and_are_no_checkpoints(self, stopped_run, out):
        shutil.copytree(stopped_run, out)
        for name in ("step-abc", "step-\u0663", "step-000009.old"):
            (out / "checkpoints" / name).mkdir()
        assert checkpoint.latest(out).name == "step-000004"

    def test_the_best_model_may_be_in_several_files(self, tmp_path):
        random_checkpoint(tmp_path / "one", "gpt2").save_pretrained(tmp_path / "shards", max_shard_size="40KB")
        model, out = regard.load(tmp_path / "shards"), tmp_path / "out"
        model.save(out)
        with torch.no_grad():
            for parameter in model.model.parameters():
                parameter.mul_(2)
        path = checkpoint.write(out, model, {"a/step": torch.tensor(1)}, Progress(step=1))
        checkpoint.promote(out, path)
        assert same_weights(regard.load(out), model)
        assert not list(out.glob("optimizer*"))

    def test_a_folder_that_cannot_be_written(self, finished_run, tmp_path):
        (tmp_path / "checkpoints").write_text("in the way")
        with pytest.raises(InputError, match=r"the checkpoint of step 9 cannot be written: .*there is no checkpoint"):
            checkpoint.write(tmp_path, regard.load(finished_run.out), {}, Progress(step=9))
        last = checkpoint.latest(finished_run.out)
        with pytest.raises(
            InputError, match=r"model\.safetensors cannot be written in .*; the weights are in .*-000006"
        ):
            checkpoint.promote(tmp_path / "checkpoints", last)


def in_a_checkpoint(stopped, finished, out):
    shutil.copytree(stopped, out)
    for name in (".draft-000006", ".draft-gone-step-000003"):
        shutil.copytree(checkpoint.latest(stopped), out / "checkpoints" / name)
        (out / "checkpoints" / name / "progress.json").unlink()
    file = out / "checkpoints" / ".draft-000006" / "model.safetensors"
    file.write_bytes(file.read_bytes()[:500])
    (out / ".draft-model.safetensors").write_bytes(b"half")


def in_a_line_of_metrics(stopped, finished, out):
    shutil.copytree(stopped, out)
    with (out / "metrics.jsonl").open("a") as file:
        file.write('{"step": 5, "loss": 3.1, "learning_rate": 0.01}\n{"step": 6, "lo')


def before_a_promotion(stopped, finished, out):
    shutil.copytree(finished, out)
    shutil.copy(out / "checkpoints" / "step-000003" / "model.safetensors", out)
    assert not same_weights(weights_of(out), weights_of(finished))


def before_a_checkpoint(stopped, finished, out):
    shutil.copytree(finished, out)
    shutil.rmtree(out / "checkpoints" / "step-000006")


@pytest.mark.parametrize("killed", [in_a_checkpoint, in_a_line_of_metrics, before_a_promotion, before_a_checkpoint])
def test_a_run_killed(killed, pairs_file, stopped_run, finished_run, out):
    """From the files that a process leaves which is killed at that moment."""
    killed(stopped_run, finished_run.out, out)
    run("translate", pairs_file, out, resume=True)
    assert same_weights(weights_of(out), weights_of(finished_run.out))
    ours, wanted = (checkpoint.latest(folder) for folder in (out, finished_run.out))
    for name in ("model.safetensors", "optimizer.safetensors"):
        assert same_weights(load_file(ours / name), load_file(wanted / name))
    assert metrics(out) == metrics(finished_run.out)
    assert not list(out.rglob(".draft*"))


def test_a_run_killed_before_its_first_checkpoint(pairs_file, stopped_run, finished_run, tmp_path):
    """After its first updates, and while run.json was written."""
    shutil.copytree(stopped_run, tmp_path / "updated")
    shutil.rmtree(tmp_path / "updated" / "checkpoints")
    (tmp_path / "updated" / "model.safetensors").write_bytes(b"half")
    (tmp_path / "begun").mkdir()
    (tmp_path / "begun" / ".draft-run.json").write_text('{"task": "tra')
    for out in (tmp_path / "updated", tmp_path / "begun"):
        run("translate", pairs_file, out, resume=True, callback=Stop(2))
        assert losses(out) == losses(finished_run.out)[:2]


@pytest.mark.more
def test_a_run_killed_by_kill_9(pairs_file, finished_run, out):
    """A process of its own, killed after an update and started again."""
    process = start_process(run, "translate", pairs_file, out, resume=True, callback=Kill(4))
    assert wait_for_exit(process) == -9
    run("translate", pairs_file, out, resume=True)
    assert [line["step"] for line in metrics(out)] == [line["step"] for line in metrics(finished_run.out)]
    torch.testing.assert_close(weights_of(out), weights_of(finished_run.out), atol=1e-6, rtol=1e-5)
