"""The training loop on one process: an update, when a run ends, what it refuses, how it is resumed, its values."""

import json
import math
import shutil

import pytest
import torch
from runs import TINY, Stop, build_task, losses, metrics, run, write, write_pairs, write_tsv

import regard
from regard import InputError
from regard.pretrained.offline import DEFAULT_MODEL
from regard.training import checkpoint
from regard.training.callbacks import Callback
from regard.training.config import TrainingConfig, build_config
from regard.training.defaults import TASK_DEFAULTS
from weights import same_weights, weights_of


def saved_weights(out):
    """Of the last checkpoint; those of the folder are the initial ones until an evaluation."""
    return weights_of(checkpoint.latest(out))


class TestUpdate:
    def test_the_seed_is_the_only_source_of_chance(self, pairs_file, finished_run, tmp_path):
        torch.manual_seed(5)
        before = torch.random.get_rng_state()
        run("translate", pairs_file, tmp_path / "same", callback=Stop(2))
        run("translate", pairs_file, tmp_path / "other", seed=1, max_steps=3)
        assert torch.equal(torch.random.get_rng_state(), before)
        assert losses(tmp_path / "same") == losses(finished_run.out)[:2]
        assert losses(tmp_path / "other")[0] != losses(finished_run.out)[0]

    def test_micro_batches_add_up_to_the_batch(self, pairs_file, tmp_path):
        for parts in (1, 4):
            settings = {"gradient_accumulation_steps": parts, "dropout": 0.0}
            run("translate", pairs_file, tmp_path / str(parts), callback=Stop(4), eval_steps=6, **settings)
        assert losses(tmp_path / "4") == pytest.approx(losses(tmp_path / "1"), abs=1e-5)

    def test_metrics_of_the_updates(self, finished_run):
        lines = [line for line in metrics(finished_run.out) if "loss" in line]
        config = build_task("translate").config
        assert [line["learning_rate"] for line in lines] == [config.learning_rate_at(step) for step in range(6)]
        assert sum(line["num_tokens"] for line in lines) == finished_run.result.progress.num_tokens
        assert all(math.isfinite(line["grad_norm"]) and line["grad_norm"] > 0 for line in lines)

    def test_weight_decay_is_for_matrices_and_a_gradient_is_clipped(self, pairs_file, out):
        """With a gradient clipped to almost 0, only the weight decay changes weights."""
        settings = {"warmup_steps": 0, "learning_rate": 0.1, "weight_decay": 0.5, "max_grad_norm": 1e-20}
        run("translate", pairs_file, out, callback=Stop(1), **settings)
        before, after = weights_of(out), saved_weights(out)
        assert any(before[name].ndim == 1 and before[name].any() for name in before)
        for name, tensor in before.items():
            if name != "final_logits_bias":
                factor = 0.95 if tensor.ndim == 2 else 1.0
                assert torch.allclose(after[name], factor * tensor, atol=1e-6), name


class TestEnd:
    @pytest.mark.more
    def test_a_run_that_gets_no_better_is_stopped_and_its_best_model_kept(self, pairs_file, out):
        settings = {"learning_rate": 3.0, "max_steps": 40, "eval_steps": 1, "warmup_steps": 0}
        result = run("translate", pairs_file, out, patience=1, **settings)
        values = [line["eval_loss"] for line in metrics(out) if "eval_loss" in line]
        best = values.index(min(values)) + 1
        assert result.stop_reason == "patience"
        assert len(values) == best + 1 < 20
        assert (result.progress.best_loss, result.progress.best_step) == (min(values), best)
        assert same_weights(weights_of(out), weights_of(out / "checkpoints" / f"step-{best:06}"))
        assert not same_weights(weights_of(out), saved_weights(out))
        again = run("translate", pairs_file, out, resume=True, patience=1, **settings)
        assert (again.stop_reason, again.progress.step) == ("patience", result.progress.step)
        further = run("translate", pairs_file, out, resume=True, patience=2, **settings)
        assert further.progress.step > result.progress.step

    def test_interrupted_and_resumed(self, pairs_file, finished_run, out):
        for step in (0, 2, 5):
            result = run("translate", pairs_file, out, callback=Stop(step), resume=step > 0)
            assert (result.stop_reason, result.progress.step) == ("interrupted", step)
            assert checkpoint.latest(out).name == f"step-{step:06d}"
        assert run("translate", pairs_file, out, resume=True).stop_reason == "completed"
        assert same_weights(weights_of(out), weights_of(finished_run.out))
        assert metrics(out) == metrics(finished_run.out)
        result = run("translate", pairs_file, out, resume=True)
        assert (result.stop_reason, result.metrics, result.progress.step) == ("completed", {}, 6)

    @pytest.mark.more
    def test_beyond_one_epoch(self, tmp_path):
        """Stopped in the third epoch, and at the end of one; each epoch has its own order."""
        data = write_pairs(tmp_path / "few.tsv", 26)  # 24 training rows are 3 batches

        def train_until(step, out, **more):
            return run("translate", data, out, max_steps=20, eval_steps=20, callback=Stop(step), **more)

        progress = train_until(11, tmp_path / "straight").progress
        assert (progress.epoch, progress.num_batches) == (3, 2)
        for step in (9, 11):
            train_until(step, tmp_path / "stopped", resume=step > 7)
        assert same_weights(saved_weights(tmp_path / "stopped"), saved_weights(tmp_path / "straight"))
        assert losses(tmp_path / "stopped") == losses(tmp_path / "straight")
        assert len(set(losses(tmp_path / "stopped"))) == 11

    def test_training_starts_from_a_given_model(self, pairs_file, finished_run, out):
        settings = {"warmup_steps": 0, "learning_rate": 1e-9, "weight_decay": 0.0}
        run("translate", pairs_file, out, model=finished_run.out, callback=Stop(1), **settings)
        before, after = weights_of(finished_run.out), saved_weights(out)
        assert not same_weights(before, after)
        assert all(torch.allclose(before[name], after[name], atol=1e-7) for name in before)


class TestBadRow:
    def test_after_some_updates_a_checkpoint_is_saved(self, tmp_path, out):
        data = write_pairs(tmp_path / "few.tsv", 26)

        class Append(Callback):
            def on_update_end(self, progress, loss):
                data.write_bytes(data.read_bytes() + b"more\tmore\n")

        with pytest.raises(InputError, match=r"few\.tsv has changed since it was first read"):  # in the next epoch
            run("translate", data, out, callback=Append(), eval_steps=6)
        assert checkpoint.read(checkpoint.latest(out))[1].step == 3

    def test_a_long_one_is_skipped_and_counted(self, long_pairs, out):
        settings = {"skip_long": True, "max_steps": 10, "eval_steps": 10}
        run("translate", long_pairs, out, **settings, callback=Stop(9))
        result = run("translate", long_pairs, out, **settings, resume=True)
        assert result.progress.epoch == 1
        assert metrics(out)[-1]["num_skipped"] == result.metrics["num_skipped"] == 5

    def test_too_many_long_ones_are_refused(self, pairs_file, tmp_path, out):
        data = write_tsv(tmp_path / "long.tsv", [(f"{i}", "xyz " * 20) for i in range(40)])
        with pytest.raises(InputError, match=r"all 2 eval rows of .*long\.tsv are longer than max_length=16"):
            run("translate", data, out, skip_long=True)
        with pytest.raises(InputError, match=r"fewer than the 8 examples of one batch \(40 rows are skipped for their"):
            run("translate", data, out, skip_long=True, eval_file=pairs_file)


class TestRefusals:
    def test_too_few_examples_for_a_batch(self, tmp_path, out):
        data = write_pairs(tmp_path / "few.tsv", 8)
        with pytest.raises(InputError, match=r"few\.tsv makes fewer than the 8 examples of one batch: give more data"):
            run("translate", data, out)
        assert not list(out.iterdir())
        run("translate", data, out, batch_size=2, callback=Stop(1))  # the same folder, tried again

    def test_a_loss_that_runs_away(self, pairs_file, tmp_path):
        message = r"in update [23] the loss is (nan|inf) and the norm of its gradient \S+: the weights were not changed"
        message += r"\. The rows were .*pairs\.tsv, line \d+, .*, \.\.\.\. There is no checkpoint yet\. If the training"
        with pytest.raises(InputError, match=message):
            run("translate", pairs_file, tmp_path / "out", learning_rate=1e30, warmup_steps=0, eval_steps=6)
        with pytest.raises(InputError, match=r"after update 1 (the eval loss is nan|weights)"):
            run("translate", pairs_file, tmp_path / "again", learning_rate=1e30, warmup_steps=0, eval_steps=1)

    def test_the_last_good_checkpoint_stays(self, pairs_file, stopped_run, out):
        shutil.copytree(stopped_run, out)
        facts = json.loads((out / "run.json").read_text())
        facts["config"] |= {"learning_rate": 1e30, "max_steps": 20, "eval_steps": 20}
        (out / "run.json").write_text(json.dumps(facts))
        with pytest.raises(InputError, match=r"in update \d the loss is .*The last good checkpoint is .*step-000004"):
            run("translate", pairs_file, out, resume=True, learning_rate=1e30, max_steps=20, eval_steps=20)
        assert regard.load(checkpoint.latest(out)).kind == "encoder-decoder"

    def test_weights_that_are_not_finite_are_not_saved(self, pairs_file, out):
        """Stopped right after the update that spoiled them."""
        settings = {"learning_rate": 1e38, "weight_decay": 10.0, "warmup_steps": 0}
        with pytest.raises(InputError, match=r"after update 1 weights are no longer finite\. There is no check"):
            run("translate", pairs_file, out, callback=Stop(1), **settings)

    def test_a_model_that_does_not_fit(self, pairs_file, finished_run, tmp_path, out):
        texts, pictures, trained = write("lm", tmp_path), write("caption", tmp_path), finished_run.out
        regard.load(trained).save(tmp_path / "mute")
        (tmp_path / "mute" / "tokenizer.json").unlink()
        for task, data, model, message in (
            ("lm", texts, trained, "lm needs a model of the kind decoder that reads text, .* of the kind enc"),
            ("translate", pairs_file, tmp_path / "mute", "mute has no tokenizer"),
            ("caption", pictures, trained, "caption needs .* that reads images, and .*out reads text"),
            ("mlm", texts, DEFAULT_MODEL, "mlm needs .*MiniLM-L6-v2 has no head that predicts masked tokens"),
        ):
            with pytest.raises(InputError, match=message):
                run(task, data, out, model=model)
        with pytest.raises(InputError, match=r"max_length=17: .*out has positions for 16"):
            run("translate", pairs_file, out, model=trained, max_length=17)
        assert not list(out.iterdir())


class TestResume:
    @pytest.mark.parametrize(
        ("changed", "message"),
        [
            ({"learning_rate": 0.5}, r"has learning_rate=0\.01, not 0\.5: a resumed run ends as it would have ended"),
            ({"max_steps": 20}, "has max_steps=6, not 20"),
            ({"model": "gpt2"}, "began with no model, not with model=gpt2"),
            ({"eval_file": "other.tsv"}, r"began with no eval_file, not with eval_file=.*other\.tsv"),
            ({"path": "other.tsv"}, r"began with the data .*pairs\.tsv, not with the data .*other\.tsv"),
            ({"task": "lm"}, "holds a run of translate, not of lm"),
        ],
    )
    def test_with_other_options(self, changed, message, pairs_file, stopped_run):
        arguments = {"task": "translate", "path": pairs_file, **changed}
        with pytest.raises(InputError, match=message):
            run(out=stopped_run, resume=True, **arguments)

    def test_while_it_is_trained(self, pairs_file, stopped_run, out):
        shutil.copytree(stopped_run, out)

        class Other(Callback):
            """Would continue the same run, once."""

            def on_update_end(self, progress, loss):
                if progress.step == 5:
                    with pytest.raises(InputError, match=r"another process trains in .* now: wait for its end"):
                        run("translate", pairs_file, out, resume=True)

        run("translate", pairs_file, out, resume=True, callback=Other())
        assert [line["step"] for line in metrics(out) if "loss" in line] == [1, 2, 3, 4, 5, 6]
        run("translate", pairs_file, out, resume=True)  # the lock has gone

    def test_with_data_that_has_changed(self, tmp_path, out):
        data = write_pairs(tmp_path / "pairs.tsv")
        run("translate", data, out, callback=Stop(1))
        data.write_text(data.read_text().replace("a", "f"))
        with pytest.raises(InputError, match=r"the data of the run in .*out has changed since \(.*fingerprint.*\)"):
            run("translate", data, out, resume=True)


FULL = {**TINY, "dropout": 0.1}


class TestConfig:
    @pytest.mark.parametrize(
        ("name", "value", "message"),
        [
            ("max_steps", 0, "max_steps=0: it must be at least 1"),
            ("patience", 0, "patience=0: it must be at least 1"),
            ("image_size", 0, "image_size=0: it must be at least 1"),
            ("learning_rate", 0.0, "learning_rate=0.0: it must be above 0"),
            ("learning_rate", math.nan, "learning_rate=nan: it must be above 0"),
            ("max_grad_norm", math.inf, "max_grad_norm=inf: it must be above 0"),
            ("weight_decay", math.inf, "weight_decay=inf: it must be at least 0"),
            ("dropout", 1.0, "dropout=1.0: it must be at least 0 and below 1"),
            ("label_smoothing", -0.1, "label_smoothing=-0.1: it must be at least 0 and below 1"),
            ("num_heads", 3, "d_model=16: it must be a multiple of num_heads=3"),
            ("max_length", 3, "max_length=3: it must be at least 4"),
            ("warmup_steps", 6, "warmup_steps=6: it must be below max_steps=6"),
            ("seed", 2**63, f"seed={2**63}: it must be at least 0 and below 2\\*\\*63"),
        ],
    )
    def test_values_out_of_range(self, name, value, message):
        with pytest.raises(InputError, match=f"^{message}$"):
            TrainingConfig(**{**FULL, name: value})

    def test_a_task_or_a_field_that_there_is_not(self, out):
        with pytest.raises(InputError, match="there is no task 'summarize'; there are translate, lm, mlm, caption"):
            regard.train("summarize", out=out)
        with pytest.raises(TypeError, match="max_step: training has no such option; it has num_layers, d_model, num"):
            regard.train("lm", out=out, max_step=3)

    def test_a_short_run_warms_up_for_less_than_half_of_it(self):
        counts = [build_config("lm", {"max_steps": n}).warmup_steps for n in (1, 5, 10_000)]
        assert counts == [0, 2, TASK_DEFAULTS["lm"]["warmup_steps"]]
        with pytest.raises(InputError, match="warmup_steps=5: it must be below max_steps=5"):
            build_config("lm", {"max_steps": 5, "warmup_steps": 5})

    def test_a_batch_divides_among_processes_and_micro_batches(self):
        assert TrainingConfig(**FULL, gradient_accumulation_steps=2).micro_batch_size(2) == 2
        with pytest.raises(InputError, match=r"batch_size=8 does not divide among 3 processes with .*_steps=1; 9 "):
            TrainingConfig(**FULL).micro_batch_size(3)
        with pytest.raises(InputError, match=r"among 2 processes with gradient_accumulation_steps=3; 12 would"):
            TrainingConfig(**FULL, gradient_accumulation_steps=3).micro_batch_size(2)

    @pytest.mark.parametrize("task", TASK_DEFAULTS)
    def test_the_batch_of_a_task_divides_among_a_machine_s_processes(self, task):
        config = build_config(task, {})
        assert [n * config.micro_batch_size(n) for n in (1, 2, 4, 8)] == [config.batch_size] * 4

    def test_warm_up_and_cosine(self):
        config = TrainingConfig(**{**FULL, "max_steps": 104, "warmup_steps": 4, "learning_rate": 0.8})
        rates = [config.learning_rate_at(step) for step in range(104)]
        assert rates[:5] == pytest.approx([0.2, 0.4, 0.6, 0.8, 0.8])
        assert rates[54] == pytest.approx(0.8 * 0.55)  # half way between all and a tenth
        assert rates[29] == pytest.approx(0.8 * (0.1 + 0.9 * (1 + math.sqrt(0.5)) / 2))
        assert rates[4:] == sorted(rates[4:], reverse=True)
        assert 0.08 < rates[-1] < 0.0803
        assert TrainingConfig(**{**FULL, "warmup_steps": 0}).learning_rate_at(0) == 1e-2

    def test_a_cosine_ends_where_it_is_told(self):
        sizes = {**FULL, "max_steps": 104, "warmup_steps": 4, "learning_rate": 0.8}
        to_nothing, level = (TrainingConfig(**sizes, min_learning_rate=lowest) for lowest in (0.0, 0.8))
        assert to_nothing.learning_rate_at(54) == pytest.approx(0.4)
        assert 0 < to_nothing.learning_rate_at(103) < 0.0003
        assert [level.learning_rate_at(step) for step in range(3, 104)] == pytest.approx([0.8] * 101)
        with pytest.raises(
            InputError, match=r"min_learning_rate=0.9: it must be at least 0, at most learning_rate=0.8"
        ):
            TrainingConfig(**sizes, min_learning_rate=0.9)
