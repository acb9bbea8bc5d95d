"""Every task, on some rows: it learns, and its directory has a model like any other."""

import json
import math
from collections import Counter

import numpy as np
import pytest
import torch
import torch.nn.functional as F
from runs import Stop, build_task, losses, metrics, run, write

import regard
from regard import InputError
from regard.training.data import images
from regard.training.loss import IGNORE_INDEX, linear_cross_entropy
from regard.training.loss_module import LossModule
from regard.training.tasks import TASKS


class TestEveryTask:
    def test_it_learns(self, trained):
        run_losses = losses(trained.out)
        assert trained.result.stop_reason == "completed"
        assert run_losses[0] > 4
        assert np.mean(run_losses[-6:-1]) < run_losses[0] / 2
        assert trained.result.metrics["eval_loss"] == run_losses[-1] < run_losses[0] / 2

    def test_a_packed_batch_has_the_loss_of_each_example_alone(self, trained):
        examples = trained.encode_eval(trained.rows[:9])
        batch = trained.task.batch(examples)
        assert batch.num_predicted == sum(token != IGNORE_INDEX for one in examples for token in one["targets"])
        assert set(batch.locations) == {row["location"] for row in trained.rows[:9]}
        assert trained.summed_loss(examples) == pytest.approx(trained.losses_one_by_one(trained.rows[:9]), rel=1e-5)

    def test_the_eval_loss_is_the_mean_over_all_tokens(self, trained):
        loss, count = trained.losses_one_by_one(trained.data.eval_rows)
        assert trained.result.metrics["eval_loss"] == pytest.approx(loss / count, rel=1e-5)

    def test_the_other_files_of_the_run(self, trained):
        facts = json.loads((trained.out / "run.json").read_text())
        assert (facts["task"], facts["config"]) == (trained.task.name, trained.task.config.to_dict())
        assert (facts["data"]["num_rows"], len(facts["data"]["fingerprint"])) == (trained.data.num_rows, 32)
        assert {"regard", "python", "torch", "datasets", "lightning-fabric"} <= facts["versions"].keys()
        steps = trained.task.config.max_steps
        assert [line["step"] for line in metrics(trained.out)] == [*range(1, steps + 1), steps]
        for picture in ("loss.png", f"attention/step-{steps:06d}.png"):
            assert (trained.out / picture).read_bytes().startswith(b"\x89PNG")
        recording = regard.Recording.load(trained.out / "attention" / f"step-{steps:06d}.safetensors")
        entries = [recording.entry(path) for path in recording]
        wanted = {"self", "cross"} if trained.task.kind == "encoder-decoder" else {"self"}
        assert {entry.kind for entry in entries} == wanted
        assert all(tuple(map(len, entry.tokens)) == entry.shape[2:] for entry in entries)


class TestTranslation:
    def test_no_label_smoothing_in_evaluation(self, trained_tasks):
        trained = trained_tasks("translate")
        examples = trained.encode_eval(trained.rows[:3])
        loss_module = LossModule(trained.pretrained.model, trained.task, 0.3)
        with torch.no_grad():
            batch = trained.task.batch(examples).tensors
            plain, smooth = (float(loss_module.train(mode)(batch)) for mode in (False, True))
        assert smooth > plain * 1.05
        assert plain == trained.summed_loss(examples)[0]

    @pytest.mark.parametrize(
        ("task", "side", "rows"),
        [("translate", "source", "pairs"), ("translate", "target", "pairs"), ("caption", "text", "texts")],
    )
    def test_a_text_longer_than_the_context_is_refused_or_skipped(self, task, side, rows, trained_tasks):
        pretrained = trained_tasks(task).pretrained
        image = np.zeros((8, 8), dtype=np.uint8)
        row = {"source": "ab", "target": "AB", "image": image, "location": "line 3", side: "a b " * 9}
        count = len(pretrained.tokenizer.encode(row[side], add_special_tokens=False).ids) + 1
        message = f"^line 3: the {side} has {count} tokens, and the model has positions for 16. "
        message += f"Give max_length={count}, or skip such {rows} with skip_long=True$"
        with pytest.raises(InputError, match=message):
            trained_tasks(task).encode(row)
        assert build_task(task, skip_long=True).encode(row, 0, pretrained) == []


class TestCausalLM:
    def token_ids(self, trained, text):
        tokenizer = trained.pretrained.tokenizer
        end = tokenizer.token_to_id("<|end|>")
        return [end, *tokenizer.encode(text, add_special_tokens=False).ids, end]

    @pytest.mark.parametrize("letters", [1, 20, 24, 25, 60, 300])
    def test_every_token_is_predicted_once_from_what_is_before_it(self, letters, trained_tasks):
        trained = trained_tasks("lm")
        row = {"text": "".join(chr(97 + i * i % 26) for i in range(letters)), "location": "here"}
        ids = self.token_ids(trained, row["text"])
        predicted = Counter()
        for i, example in enumerate(trained.encode_eval([row])):
            start = 12 * i
            assert example["ids"] == ids[start : start + 24][: len(ids) - 1 - start]
            for place, token in enumerate(example["targets"], start + 1):
                if token != IGNORE_INDEX:
                    assert token == ids[place]
                    assert start == 0 or place - start > 12  # half the context before it, or all there is
                    predicted[place] += 1
        assert predicted == Counter(range(1, len(ids)))

    def test_in_training_a_text_is_split_elsewhere_in_each_epoch_and_some_tokens_are_noise(self, trained_tasks):
        trained = trained_tasks("lm")
        row = {"text": "".join(chr(97 + i * i % 26) for i in range(300)), "location": "here"}
        ids, first_lengths = self.token_ids(trained, row["text"]), set()
        for epoch in range(3):
            examples = trained.encode(row, epoch)
            assert [token for example in examples for token in example["targets"]] == ids[1:]
            read = [token for example in examples for token in example["ids"]]
            assert (len(read), read[0]) == (len(ids) - 1, ids[0])
            assert 0 < sum(a != b for a, b in zip(read, ids, strict=False)) / len(read) < 0.4  # twice --token-noise
            assert examples == trained.encode(row, epoch)
            first_lengths.add(len(examples[0]["ids"]))
        assert len(first_lengths) > 1
        assert max(first_lengths) <= 24

    def test_bits_per_byte_count_every_byte_and_token_once(self, trained_tasks):
        """Against single tokens, each predicted from the tokens before it in its chunk."""
        trained = trained_tasks("lm")
        texts = ("the día saw the мост, 3 times, and 4 and 5 and 6 times", "a")
        rows, nats = [{"text": text, "location": text} for text in texts], 0.0
        for text in texts:
            ids, half = self.token_ids(trained, text), 12
            for place in range(1, len(ids)):
                start = 0 if place <= 2 * half else (place - 1 - half) // half * half
                with torch.no_grad():
                    logits = trained.pretrained.model(torch.tensor([ids[start:place]]))[0, -1]
                nats -= float(F.log_softmax(logits, -1)[ids[place]])
        loss, count = trained.losses_one_by_one(rows)
        found = trained.task.metrics(trained.pretrained, rows, loss / count, 200)
        wanted = nats / len("".join(texts).encode()) / math.log(2)
        assert found == pytest.approx({"bits_per_byte": wanted, "perplexity": math.exp(loss / count)}, rel=1e-5)


class TestMaskedLM:
    @pytest.mark.more
    def test_accuracy_is_the_share_of_predicted_tokens(self, trained_tasks):
        trained = trained_tasks("mlm")
        model, is_right = trained.pretrained.model, []
        for example in trained.encode_eval(trained.data.eval_rows):
            with torch.no_grad():
                predicted = model.logits(model(torch.tensor([example["ids"]])))[0].argmax(-1).tolist()
            pairs = zip(predicted, example["targets"], strict=True)
            is_right += [one == target for one, target in pairs if target != IGNORE_INDEX]
        assert trained.result.metrics["accuracy"] == pytest.approx(np.mean(is_right))

    def test_the_shares_of_masked_tokens(self, trained_tasks):
        """15 % are predicted; of these 80 % are masked, 10 % replaced, 10 % unchanged."""
        trained = trained_tasks("mlm")
        tokenizer = trained.pretrained.tokenizer
        row = {"text": "the river saw " * 2_000, "location": "long"}
        ids = tokenizer.encode(row["text"], add_special_tokens=False).ids
        first, last, mask = (tokenizer.token_to_id(name) for name in ("[CLS]", "[SEP]", "[MASK]"))
        read = []
        for example in trained.encode_eval([row]):
            start, *inner, end = zip(example["ids"], example["targets"], strict=True)
            assert (start, end) == ((first, IGNORE_INDEX), (last, IGNORE_INDEX))
            assert len(inner) + 2 <= trained.task.config.max_length
            read += inner
        assert ids == [token if target == IGNORE_INDEX else target for token, target in read]
        chosen = [(i, token) for i, (token, target) in zip(ids, read, strict=True) if target != IGNORE_INDEX]
        assert len(chosen) / len(ids) == pytest.approx(0.15, abs=0.02)  # of 30 tokens 4 or 5
        assert sum(token == mask for _, token in chosen) / len(chosen) == pytest.approx(0.8, abs=0.04)
        assert sum(token == i for i, token in chosen) / len(chosen) == pytest.approx(0.1, abs=0.03)

    def test_a_sample_of_a_long_text_is_as_long_as_the_model_reads(self, tmp_path):
        task = build_task("mlm", d_model=16, num_layers=1, max_length=10)
        data = task.load_data([write("mlm", tmp_path)], None)
        pretrained = task.init_model(tmp_path / "model", data)
        row = {"text": "the river saw " * 20, "location": "long"}
        (sample,) = task.samples(pretrained, [row])
        ids = pretrained.tokenizer.encode(row["text"], add_special_tokens=False).ids
        assert sample.target == pretrained.decode(ids[:8])

    def test_each_epoch_has_other_masks_and_evaluation_the_same(self, trained_tasks):
        trained = trained_tasks("mlm")
        row = trained.data.eval_rows[0]
        assert trained.encode(row, 0) == trained.encode(row, 0) != trained.encode(row, 1)
        assert trained.encode_eval([row]) == trained.encode_eval([row])


class TestCaptioning:
    @pytest.mark.more
    def test_it_captions_images(self, trained_tasks):
        trained = trained_tasks("caption")
        assert trained.result.metrics["exact_match"] == 1.0
        image = np.zeros((6, 8), dtype=np.uint8)
        image[:, 4:] = 200
        images = [image, image[:, ::-1].copy()]
        assert regard.generate(trained.pretrained, images, max_new_tokens=6) == ["right", "left"]

    def test_sizes_that_do_not_divide_are_refused(self, tmp_path):
        data = write("caption", tmp_path)
        with pytest.raises(InputError, match=r"image_size=9 does not divide into patches of patch_size=2"):
            run("caption", data, tmp_path / "out", image_size=9, patch_size=2)
        run("caption", data, tmp_path / "out", image_size=4, patch_size=2, callback=Stop(1))
        assert regard.load(tmp_path / "out").config.patches.image_size == (4, 4)


class TestInitModel:
    @pytest.mark.parametrize("name", TASKS)
    def test_the_first_loss_is_that_of_a_guess(self, name, tmp_path):
        """It is at most a little more: no initial weight is too large."""
        task, path = build_task(name, d_model=64, num_layers=2), write(name, tmp_path)
        data = images([path]) if name == "caption" else task.load_data([path], None)
        pretrained = task.init_model(tmp_path / "model", data)
        assert (pretrained.kind, pretrained.ignored_weights) == (task.kind, [])
        examples = [example for row in data.eval_rows for example in task.encode_eval(row, pretrained)]
        with torch.inference_mode():
            logits, targets = task.predict(pretrained.model, task.batch(examples).tensors)
            loss = float(linear_cross_entropy(logits, targets)) / int((targets != IGNORE_INDEX).sum())
        size = (pretrained.config.decoder or pretrained.config).vocab_size
        assert math.log(size) - 0.3 < loss < math.log(size) + 1.5

    def test_dropout_of_a_format_without_a_field_for_it(self, tmp_path):
        task = build_task("lm", dropout=0.3, vocab_size=300)
        model = task.init_model(tmp_path, task.load_data([], None)).model

        def shares(module):
            return {part.p for part in module.modules() if isinstance(part, torch.nn.Dropout)}

        assert shares(model) == {0.0}, "Llama's"
        assert shares(LossModule(model, task, dropout=task.config.dropout)) == {0.3}


@pytest.mark.parametrize("name", ["lm", "mlm"])
def test_where_a_text_is_kept_is_no_source_of_chance(name, trained_tasks):
    trained = trained_tasks(name)
    row = trained.rows[0]
    moved = {**row, "location": "another/folder.jsonl, line 9"}
    for encode in (trained.encode, lambda r: trained.encode_eval([r])):
        ours, others = ([{**each, "location": ""} for each in encode(r)] for r in (row, moved))
        assert ours == others
