"""The training loop on one process: an update, when a run ends, what it refuses, how it is resumed."""

import json
import math

import numpy as np
import pytest
import torch
from data_files import tsv
from runs import TINY, Stop, losses, metrics, run, same_weights, weights, write, write_images, write_pairs, write_texts

import regard
from regard import InputError
from regard.pretrained.hub import DEFAULT_MODEL
from regard.training import checkpoint
from regard.training.callbacks import Callback
from regard.training.data import pairs
from regard.training.loss_module import parameter_groups
from regard.training.tasks import TASKS
from regard.training.train import build_config


@pytest.fixture(scope="module")
def data(tmp_path_factory):
    return write_pairs(tmp_path_factory.mktemp("data") / "pairs.tsv")


@pytest.fixture(scope="module")
def reference_run(data, tmp_path_factory):
    """A run from its beginning to its end, with dropout."""
    out = tmp_path_factory.mktemp("reference") / "out"
    return run("translate", data, out), out


def initial_weights(data, folder, **overrides):
    """The initial weights of such a run."""
    task = TASKS["translate"](build_config(TASKS["translate"], {**TINY, "patience": None, **overrides}))
    task.init_model(folder, pairs([data]))
    return weights(folder)


@pytest.mark.parametrize("task", TASKS)
def test_every_shape_is_what_its_annotation_says(task, tmp_path):
    """The other runs do not check shapes: that would take most of the time."""
    result = run(task, write(task, tmp_path), tmp_path / "out", checked=True, max_steps=3, eval_steps=2)
    assert result.stop_reason == "completed"


class TestUpdate:
    def test_a_repeated_run_has_the_same_bits(self, data, reference_run, tmp_path):
        result = run("translate", data, tmp_path / "out")
        assert result.metrics == reference_run[0].metrics
        assert same_weights(weights(tmp_path / "out"), weights(reference_run[1]))
        assert metrics(tmp_path / "out") == metrics(reference_run[1])
        run("translate", data, tmp_path / "other", seed=1, max_steps=3, eval_steps=3)
        assert not same_weights(weights(tmp_path / "other"), weights(reference_run[1]))

    def test_pytorchs_generator_is_unchanged(self, data, tmp_path):
        before = torch.random.get_rng_state()
        run("translate", data, tmp_path / "out", max_steps=3, eval_steps=3)
        assert torch.equal(torch.random.get_rng_state(), before)

    def test_micro_batches_add_up_to_the_batch(self, data, tmp_path):
        for parts in (1, 4):
            run(
                "translate",
                data,
                tmp_path / str(parts),
                gradient_accumulation_steps=parts,
                dropout=0.0,
                max_steps=4,
                eval_steps=4,
            )
        assert losses(tmp_path / "4") == pytest.approx(losses(tmp_path / "1"), abs=1e-5)

    def test_metrics_of_the_updates(self, data, reference_run):
        lines = [line for line in metrics(reference_run[1]) if "loss" in line]
        config = build_config(TASKS["translate"], {**TINY, "patience": None})
        assert [line["learning_rate"] for line in lines] == [config.learning_rate_at(step) for step in range(10)]
        assert sum(line["num_tokens"] for line in lines) == reference_run[0].progress.num_tokens
        assert all(math.isfinite(line["grad_norm"]) and line["grad_norm"] > 0 for line in lines)

    def test_weight_decay_is_for_matrices_and_a_gradient_is_clipped(self, data, tmp_path):
        """With a gradient clipped to almost 0, only the weight decay changes weights."""
        settings = {"max_steps": 1, "warmup_steps": 0, "learning_rate": 0.1, "weight_decay": 0.5}
        before = initial_weights(data, tmp_path / "before", **settings)
        run("translate", data, tmp_path / "out", max_grad_norm=1e-20, **settings)
        after = weights(tmp_path / "out")
        assert any(before[name].ndim == 1 and before[name].any() for name in before)
        for name, tensor in before.items():
            if tensor.numel() == after[name].numel() and name != "final_logits_bias":
                factor = 0.95 if tensor.ndim == 2 else 1.0
                assert torch.allclose(after[name], factor * tensor, atol=1e-6), name

    def test_every_parameter_is_in_one_group(self, reference_run):
        model = regard.load(reference_run[1]).model
        decayed, kept = parameter_groups(model, 0.3)
        assert (decayed["weight_decay"], kept["weight_decay"]) == (0.3, 0.0)
        assert {p.ndim for p in decayed["params"]} == {2}
        assert {p.ndim for p in kept["params"]} == {1}
        assert len(decayed["params"]) + len(kept["params"]) == len(list(model.parameters()))


class RecordingCallback(Callback):
    """Records its calls."""

    def __init__(self):
        self.start, self.losses, self.evaluations = None, [], []

    def on_train_start(self, max_steps, progress):
        self.start = (max_steps, progress.step)

    def on_update_end(self, progress, loss):
        self.losses.append(loss)

    def on_evaluate(self, progress, metrics, samples):
        self.evaluations.append((progress.step, metrics, samples))


class TestEnd:
    def test_every_method_of_the_callback_is_called(self, data, tmp_path):
        callback = RecordingCallback()
        result = run("translate", data, tmp_path / "out", callback=callback)
        assert (result.stop_reason, result.progress.step, callback.start) == ("completed", 10, (10, 0))
        assert callback.losses == [line["loss"] for line in metrics(tmp_path / "out") if "loss" in line]
        assert [step for step, _, _ in callback.evaluations] == [5, 10]
        assert callback.evaluations[-1][1] == result.metrics
        eval_rows = pairs([data]).eval_rows[:3]
        assert [sample.source for sample in callback.evaluations[0][2]] == [row["source"] for row in eval_rows]
        assert [sample.target for sample in callback.evaluations[0][2]] == [row["target"] for row in eval_rows]

    def test_a_run_that_gets_no_better_is_stopped_and_its_best_model_kept(self, tmp_path):
        out, data = tmp_path / "out", write_pairs(tmp_path / "few.tsv", 40)
        settings = {"learning_rate": 3.0, "max_steps": 40, "eval_steps": 2, "warmup_steps": 1}
        result = run("translate", data, out, patience=2, **settings)
        evaluations = [line for line in metrics(out) if "eval_loss" in line]
        values = [line["eval_loss"] for line in evaluations]
        assert result.stop_reason == "patience"
        assert len(values) == values.index(min(values)) + 3 < 20
        assert result.progress.best_loss == min(values)
        assert result.progress.best_step == evaluations[values.index(min(values))]["step"]
        assert not same_weights(weights(out), weights(checkpoint.latest(out)))
        again = run("translate", data, out, resume=True, patience=2, **settings)
        assert (again.stop_reason, again.progress.step) == ("patience", result.progress.step)
        further = run("translate", data, out, resume=True, patience=3, **settings)
        assert further.progress.step > result.progress.step

    def test_interrupted_and_resumed(self, data, reference_run, tmp_path):
        out = tmp_path / "out"
        for step in (0, 3, 5, 9):
            result = run("translate", data, out, callback=Stop(step), resume=step > 0)
            assert (result.stop_reason, result.progress.step) == ("interrupted", step)
            assert checkpoint.latest(out).name == f"step-{step:06d}"
        assert run("translate", data, out, resume=True).stop_reason == "completed"
        assert same_weights(weights(out), weights(reference_run[1]))
        assert metrics(out) == metrics(reference_run[1])
        result = run("translate", data, out, resume=True)
        assert (result.stop_reason, result.metrics, result.progress.step) == ("completed", {}, 10)

    def test_beyond_one_epoch(self, tmp_path):
        """Stopped in the third epoch, and at the end of one; each epoch has its own order."""
        data = write_pairs(tmp_path / "few.tsv", 26)
        settings = {"max_steps": 11, "eval_steps": 11, "seed": 3}
        result = run("translate", data, tmp_path / "reference", **settings)
        assert (result.progress.epoch, result.progress.num_batches) == (3, 2)  # 24 rows are 3 batches
        for step in (7, 9):
            run("translate", data, tmp_path / "out", callback=Stop(step), resume=step > 7, **settings)
        run("translate", data, tmp_path / "out", resume=True, **settings)
        assert same_weights(weights(tmp_path / "out"), weights(tmp_path / "reference"))
        all_losses = losses(tmp_path / "out")
        assert len(set(all_losses)) == len(all_losses)

    def test_training_starts_from_a_given_model(self, data, reference_run, tmp_path):
        run(
            "translate",
            data,
            tmp_path / "out",
            model=reference_run[1],
            max_steps=1,
            warmup_steps=0,
            learning_rate=1e-9,
            weight_decay=0.0,
        )
        before, after = weights(reference_run[1]), weights(tmp_path / "out")
        assert not same_weights(before, after)
        assert all(torch.allclose(before[name], after[name], atol=1e-7) for name in before)


class TestLongRow:
    @pytest.fixture
    def long_data(self, tmp_path):
        rows = [line.split("\t") for line in write_pairs(tmp_path / "a.tsv", 80).read_text().splitlines()]
        for i in (0, 7, 30, 31, 40):  # 0 and 40 are held out
            rows[i] = (rows[i][0], "xyz " * 20 + str(i))
        return tsv(tmp_path / "long.tsv", rows)

    def test_is_refused_and_the_directory_is_cleared(self, long_data, tmp_path):
        message = (
            r"long\.tsv, line 1: the target has \d+ tokens, and the model has positions for 16\. Give --max-length \d+"
        )
        with pytest.raises(InputError, match=message):
            run("translate", long_data, tmp_path / "out")
        assert not list((tmp_path / "out").iterdir())

    def test_after_some_updates_a_checkpoint_is_saved(self, long_data, tmp_path, monkeypatch):
        monkeypatch.setattr(
            "regard.training.shuffling.SHUFFLE_BUFFER", 8
        )  # so that the rows are not met before the first update
        rows = long_data.read_text().splitlines()
        rows[0], rows[40], rows[7], rows[30] = "a\tA", "b\tB", "c\tC", "d\tD"
        long_data.write_text("\n".join(rows) + "\n")
        with pytest.raises(InputError, match=r"long\.tsv, line 32: the target"):
            run("translate", long_data, tmp_path / "out", batch_size=4)
        last = checkpoint.latest(tmp_path / "out")
        assert checkpoint.read(last)[1].step > 0

    def test_is_skipped_and_counted(self, long_data, tmp_path):
        settings = {"skip_long": True, "max_steps": 20, "eval_steps": 20}
        result = run("translate", long_data, tmp_path / "out", **settings)
        assert result.progress.epoch == 2
        assert result.metrics["num_skipped"] == 5
        assert metrics(tmp_path / "out")[-1]["num_skipped"] == 5
        run("translate", long_data, tmp_path / "two", **settings, callback=Stop(12))
        assert run("translate", long_data, tmp_path / "two", **settings, resume=True).metrics == result.metrics

    def test_all_eval_rows_or_nearly_all_rows(self, data, tmp_path):
        rows = [(f"{i}", "xyz " * 20) for i in range(40)]
        with pytest.raises(InputError, match=r"all 2 eval rows of .*long\.tsv are longer than --max-length 16"):
            run("translate", tsv(tmp_path / "long.tsv", rows), tmp_path / "out", skip_long=True)
        with pytest.raises(InputError, match=r"fewer than the 8 examples of one batch \(40 rows are skipped for their"):
            run("translate", tmp_path / "long.tsv", tmp_path / "out", skip_long=True, eval_file=data)


class TestRefusals:
    def test_too_few_examples_for_a_batch(self, tmp_path):
        data = write_pairs(tmp_path / "few.tsv", 8)
        with pytest.raises(InputError, match=r"few\.tsv makes fewer than the 8 examples of one batch: give more data"):
            run("translate", data, tmp_path / "out")
        assert not list((tmp_path / "out").iterdir())
        run("translate", data, tmp_path / "out", batch_size=2, max_steps=3)  # the same folder, tried again

    def test_a_loss_that_runs_away(self, data, tmp_path):
        message = (
            r"in update [23] the loss is (nan|inf) and the norm of its gradient \S+: the weights were not changed\. "
        )
        message += (
            r"The rows were .*pairs\.tsv, line \d+, .*, \.\.\.\. There is no checkpoint yet\. If the training div"
        )
        with pytest.raises(InputError, match=message):
            run("translate", data, tmp_path / "out", learning_rate=1e30, warmup_steps=0)
        with pytest.raises(InputError, match=r"after update 1 (the eval loss is nan|weights)"):
            run("translate", data, tmp_path / "again", learning_rate=1e30, warmup_steps=0, eval_steps=1)

    def test_the_last_good_checkpoint_stays(self, data, tmp_path):
        out = tmp_path / "out"
        run("translate", data, out, callback=Stop(3))
        facts = json.loads((out / "run.json").read_text())
        facts["config"]["learning_rate"] = 1e30
        (out / "run.json").write_text(json.dumps(facts))
        with pytest.raises(InputError, match=r"in update \d the loss is .*The last good checkpoint is .*step-000003"):
            run("translate", data, out, resume=True, learning_rate=1e30)
        assert checkpoint.latest(out).name == "step-000003"
        assert regard.load(checkpoint.latest(out)).kind == "encoder-decoder"

    def test_weights_that_are_not_finite_are_not_saved(self, data, tmp_path):
        """Stopped right after the update that spoiled them."""
        with pytest.raises(InputError, match=r"after update 1 weights are no longer finite\. There is no check"):
            run(
                "translate",
                data,
                tmp_path / "out",
                learning_rate=1e38,
                weight_decay=10.0,
                warmup_steps=0,
                callback=Stop(1),
            )

    def test_a_model_that_does_not_fit(self, data, reference_run, tmp_path):
        texts = write_texts(tmp_path / "texts.jsonl")
        with pytest.raises(
            InputError, match=r"lm needs a model of the kind decoder that reads text, and .*out is of the kind enc"
        ):
            run("lm", texts, tmp_path / "out", model=reference_run[1])
        with pytest.raises(InputError, match=r"--max-length 17: .*out has positions for 16"):
            run("translate", data, tmp_path / "out", model=reference_run[1], max_length=17)
        regard.load(reference_run[1]).save(tmp_path / "mute")
        (tmp_path / "mute" / "tokenizer.json").unlink()
        with pytest.raises(InputError, match=r"mute has no tokenizer"):
            run("translate", data, tmp_path / "out", model=tmp_path / "mute")
        with pytest.raises(InputError, match=r"caption needs .* that reads images, and .*out reads text"):
            run("caption", write_images(tmp_path / "images"), tmp_path / "out", model=reference_run[1])
        with pytest.raises(InputError, match=r"mlm needs .*MiniLM-L6-v2 has no head that predicts masked tokens"):
            run("mlm", texts, tmp_path / "out", model=DEFAULT_MODEL)
        assert not list((tmp_path / "out").iterdir())

    def test_a_model_option_with_a_given_model(self, data, reference_run, tmp_path):
        from regard.training.distributed import create_fabric
        from regard.training.train import train

        with pytest.raises(
            InputError,
            match=r"--num-layers is an option of a new model, and --model .*out cannot be changed\. Leave one",
        ):
            train(
                "translate",
                [data],
                out=tmp_path / "o",
                fabric=create_fabric(),
                model=str(reference_run[1]),
                overrides={"num_layers": 3},
            )

    def test_no_such_task(self, data, tmp_path):
        with pytest.raises(InputError, match="there is no task 'summarize'; there are translate, lm, mlm, caption"):
            run("summarize", data, tmp_path / "out")


class TestResume:
    @pytest.fixture
    def started_run(self, data, tmp_path):
        run("translate", data, tmp_path / "out", callback=Stop(3))
        return tmp_path / "out"

    @pytest.mark.parametrize(
        ("changed", "message"),
        [
            (
                {"learning_rate": 0.5},
                r"has --learning-rate 0\.01, not 0\.5: a resumed run ends as it would have ended without the stop",
            ),
            ({"max_steps": 20}, "has --max-steps 10, not 20"),
            ({"batch_size": 4}, "has --batch-size 8, not 4"),
            ({"skip_long": True}, "has --skip-long False, not True"),
            ({"model": "gpt2"}, "has --model by default, not gpt2"),
        ],
    )
    def test_with_other_options(self, changed, message, data, started_run):
        with pytest.raises(InputError, match=message):
            run("translate", data, started_run, resume=True, **changed)

    def test_with_another_task_or_other_data(self, data, started_run, tmp_path):
        with pytest.raises(InputError, match="holds a run of translate, not of lm"):
            run("lm", data, started_run, resume=True)
        other = write_pairs(tmp_path / "other.tsv")
        with pytest.raises(InputError, match=r"has the data .*pairs\.tsv, not .*other\.tsv"):
            run("translate", other, started_run, resume=True)
        with pytest.raises(InputError, match=r"has --eval-file .*, not .*other\.tsv"):
            run("translate", data, started_run, resume=True, eval_file=other)

    def test_with_data_that_has_changed(self, tmp_path):
        data = write_pairs(tmp_path / "pairs.tsv")
        run("translate", data, tmp_path / "out", callback=Stop(3))
        data.write_text(data.read_text().replace("a", "f"))
        with pytest.raises(InputError, match=r"the data of the run in .*out has changed since \(.*fingerprint.*\)"):
            run("translate", data, tmp_path / "out", resume=True)

    def test_without_any_option(self, data, reference_run, started_run):
        from regard.training.distributed import create_fabric
        from regard.training.train import train

        assert (
            train("translate", out=started_run, fabric=create_fabric(accelerator="cpu"), resume=True).stop_reason
            == "completed"
        )
        assert same_weights(weights(started_run), weights(reference_run[1]))

    def test_with_other_micro_batches(self, data, started_run, tmp_path):
        result = run("translate", data, started_run, resume=True, gradient_accumulation_steps=2)
        assert result.stop_reason == "completed"
        assert np.isfinite(losses(started_run)).all()

    def test_without_resume_nothing_is_overwritten(self, data, started_run):
        before = {path: path.read_bytes() for path in started_run.rglob("*") if path.is_file()}
        with pytest.raises(InputError, match=r"holds a run already\. Continue it with --resume"):
            run("translate", data, started_run)
        assert {path: path.read_bytes() for path in started_run.rglob("*") if path.is_file()} == before

    def test_without_a_run_one_starts(self, data, reference_run, tmp_path):
        assert run("translate", data, tmp_path / "new", resume=True).stop_reason == "completed"
        assert same_weights(weights(tmp_path / "new"), weights(reference_run[1]))
