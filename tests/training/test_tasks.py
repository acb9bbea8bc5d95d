"""Every task, on some rows: it learns, and its directory has a model like any other."""

import json
import math
from collections import Counter

import jaxtyping
import numpy as np
import pytest
import torch
import torch.nn.functional as F
import transformers
from runs import TINY, losses, metrics, run, same_weights, weights, write

import regard
from regard import InputError
from regard.training import checkpoint
from regard.training.config import TrainingConfig
from regard.training.loss import IGNORE_INDEX, linear_cross_entropy
from regard.training.loss_module import LossModule
from regard.training.tasks import TASKS
from regard.training.train import build_config

LEARNING = {
    "translate": {"max_steps": 40, "eval_steps": 40, "batch_size": 16},
    "lm": {"max_steps": 40, "eval_steps": 40, "max_length": 24},
    "mlm": {"max_steps": 250, "eval_steps": 250, "max_length": 32, "batch_size": 48},
    "caption": {"max_steps": 40, "eval_steps": 40, "batch_size": 16},
}


class Run:
    """A task that was trained, its folder and its data."""

    def __init__(self, task, folder):
        settings = {**LEARNING[task], "d_model": 32, "dropout": 0.0}
        path = write(task, folder)
        self.out = folder / "out"
        self.result = run(task, path, self.out, **settings)
        self.pretrained = regard.load(self.out)
        self.task = TASKS[task](build_config(TASKS[task], {**TINY, **settings}))
        self.data = self.task.load_data([path], None)
        self.rows = [*self.data.train.take(12), *self.data.eval_rows]


@pytest.fixture(scope="module")
def runs(tmp_path_factory):
    """A function that returns the run of a task, and trains it at the first call."""
    found = {}

    def get(task):
        if task not in found:
            # The runs of test_trainer.py are checked for shapes; these are long.
            jaxtyping.config.update("jaxtyping_disable", True)
            found[task] = Run(task, tmp_path_factory.mktemp(task))
            jaxtyping.config.update("jaxtyping_disable", False)
        return found[task]

    return get


@pytest.fixture(params=TASKS)
def trained(request, runs):
    return runs(request.param)


def examples(trained, rows):
    return [example for row in rows for example in trained.task.encode_eval(row, trained.pretrained)]


class TestEveryTask:
    def test_it_learns(self, trained):
        run_losses = losses(trained.out)
        print(trained.task.name, run_losses[0], run_losses[-2:])
        assert trained.result.stop_reason == "completed"
        assert run_losses[0] > 4
        assert np.mean(run_losses[-6:-1]) < run_losses[0] / 2
        assert trained.result.metrics["eval_loss"] == run_losses[-1] < run_losses[0] / 2

    def test_the_directory_and_the_checkpoint_have_the_model(self, trained):
        last = checkpoint.latest(trained.out)
        assert last.name == f"step-{trained.task.config.max_steps:06d}"
        assert same_weights(weights(trained.out), weights(last))
        assert regard.load(last).kind == trained.pretrained.kind == trained.task.kind
        assert not list(trained.out.glob(".*"))

    def test_transformers_has_the_same_logits(self, trained):
        kind = {
            "translate": transformers.MarianMTModel,
            "lm": transformers.LlamaForCausalLM,
            "mlm": transformers.BertForMaskedLM,
            "caption": transformers.VisionEncoderDecoderModel,
        }[trained.task.name]
        theirs, loading_info = kind.from_pretrained(trained.out, output_loading_info=True)
        assert not {key for key in loading_info["missing_keys"] if "pooler" not in key}  # which nothing here reads
        assert not loading_info["unexpected_keys"]
        ours = trained.pretrained.model
        with torch.inference_mode():
            if trained.task.name == "caption":
                images = [row["image"] for row in trained.data.eval_rows]
                pixels, ids = trained.pretrained.pixel_values(images), torch.randint(200, (len(images), 5))
                expected = theirs.eval()(pixel_values=pixels, decoder_input_ids=ids).logits
                found = ours(pixels, ids)
            else:
                ids = torch.randint(200, (3, 9))
                if trained.task.name == "translate":
                    expected, found = theirs.eval()(input_ids=ids, decoder_input_ids=ids).logits, ours(ids, ids)
                else:
                    found = ours.logits(ours(ids)) if trained.task.name == "mlm" else ours(ids)
                    expected = theirs.eval()(input_ids=ids).logits
        assert expected.std() > 0.1
        assert (found - expected).abs().max() < 2e-5

    def test_a_packed_batch_has_the_loss_of_each_example_alone(self, trained):
        loss_module = LossModule(trained.pretrained.model, trained.task).eval()
        batch = examples(trained, trained.rows[:9])
        with torch.no_grad():
            alone = sum(float(loss_module(trained.task.batch([example]).tensors)) for example in batch)
            together = float(loss_module(trained.task.batch(batch).tensors))
        counted = trained.task.batch(batch)
        assert counted.num_predicted == sum(token != IGNORE_INDEX for example in batch for token in example["targets"])
        assert set(counted.locations) == {row["location"] for row in trained.rows[:9]}
        assert together == pytest.approx(alone, rel=1e-5)

    def test_the_eval_loss_is_the_mean_over_all_tokens(self, trained):
        loss_module = LossModule(trained.pretrained.model, trained.task).eval()
        summed, count = 0.0, 0
        with torch.no_grad():
            for example in examples(trained, trained.data.eval_rows):
                batch = trained.task.batch([example])
                summed, count = summed + float(loss_module(batch.tensors)), count + batch.num_predicted
        assert trained.result.metrics["eval_loss"] == pytest.approx(summed / count, rel=1e-5)

    def test_the_other_files_of_the_run(self, trained):
        facts = json.loads((trained.out / "run.json").read_text())
        assert facts["task"] == trained.task.name
        assert facts["config"] == trained.task.config.to_dict()
        assert facts["data"]["num_rows"] == trained.data.num_rows
        assert len(facts["data"]["fingerprint"]) >= 32
        assert {"regard", "python", "torch", "datasets", "lightning-fabric"} <= facts["versions"].keys()
        steps = trained.task.config.max_steps
        assert [line["step"] for line in metrics(trained.out)] == [*range(1, steps + 1), steps]
        for picture in ("loss.png", f"attention/step-{steps:06d}.png"):
            assert (trained.out / picture).read_bytes().startswith(b"\x89PNG")
        recording = regard.Recording.load(trained.out / "attention" / f"step-{steps:06d}.safetensors")
        kinds = {recording.entry(path).kind for path in recording}
        assert kinds == ({"self", "cross"} if trained.task.kind == "encoder-decoder" else {"self"})
        for path in recording:
            assert all(
                len(names) == size
                for names, size in zip(recording.entry(path).tokens, recording[path].shape[2:], strict=True)
            )


class TestTranslation:
    def test_it_translates(self, runs):
        texts = regard.translate(runs("translate").pretrained, ["abc", "fed"], max_new_tokens=8)
        assert all(text and text == text.upper() for text in texts)

    def test_label_smoothing_against_its_definition(self):
        logits, targets = (
            torch.randn(7, 11, dtype=torch.float64).float(),
            torch.tensor([0, 3, IGNORE_INDEX, 10, 2, 2, 5]),
        )
        log = F.log_softmax(logits.double(), dim=-1)
        for share in (0.0, 0.1, 0.5):
            expected = torch.zeros((), dtype=torch.float64)
            for row, target in zip(log, targets.tolist(), strict=True):
                if target != IGNORE_INDEX:
                    wanted = torch.full((11,), share / 11, dtype=torch.float64)
                    wanted[target] += 1 - share
                    expected -= (wanted * row).sum()
            assert float(linear_cross_entropy(logits, targets, share)) == pytest.approx(float(expected), rel=1e-5)

    def test_no_label_smoothing_in_evaluation(self, runs):
        trained = runs("translate")
        batch = trained.task.batch(examples(trained, trained.rows[:3])).tensors
        loss_module = LossModule(trained.pretrained.model, trained.task, 0.3)
        with torch.no_grad():
            plain, smooth = float(loss_module.eval()(batch)), float(loss_module.train()(batch))
        trained.pretrained.model.eval()
        assert smooth > plain * 1.05
        with torch.no_grad():
            assert plain == float(LossModule(trained.pretrained.model, trained.task).eval()(batch))

    @pytest.mark.parametrize("side", ["source", "target"])
    def test_a_pair_longer_than_the_context(self, side, runs):
        trained = runs("translate")
        row = {"source": "ab", "target": "AB", "location": "line 3", side: "a b " * 9}
        count = len(trained.pretrained.tokenizer.encode(row[side]).ids)
        assert count > 16
        with pytest.raises(
            InputError,
            match=f"^line 3: the {side} has {count} tokens, and the model has positions for 16. "
            f"Give --max-length {count}, or skip such pairs with --skip-long$",
        ):
            trained.task.encode(row, 0, trained.pretrained)
        skipping = TASKS["translate"](TrainingConfig(**{**trained.task.config.to_dict(), "skip_long": True}))
        assert skipping.encode(row, 0, trained.pretrained) == []


def encode_one(tokenizer, text):
    end = tokenizer.token_to_id("<|end|>")
    return [end, *tokenizer.encode(text, add_special_tokens=False).ids, end]


class TestCausalLM:
    def test_it_continues_a_text(self, runs):
        run_losses = regard.generate(runs("lm").pretrained, "the river", max_new_tokens=6)
        assert "saw" in run_losses or "the" in run_losses

    @pytest.mark.parametrize("letters", [1, 20, 24, 25, 60, 300])
    def test_every_token_is_predicted_once_from_what_is_before_it(self, letters, runs):
        trained = runs("lm")
        row = {"text": "".join(chr(97 + i * i % 26) for i in range(letters)), "location": "here"}
        ids = encode_one(trained.pretrained.tokenizer, row["text"])
        predicted = Counter()
        for i, example in enumerate(trained.task.encode_eval(row, trained.pretrained)):
            start = 12 * i
            assert example["ids"] == ids[start : start + 24][: len(ids) - 1 - start]
            for place, token in enumerate(example["targets"], start + 1):
                if token != IGNORE_INDEX:
                    assert token == ids[place]
                    assert start == 0 or place - start > 12  # half the context before it, or all there is
                    predicted[place] += 1
        assert predicted == Counter(range(1, len(ids)))
        for epoch in range(3):  # in training, in pieces that are cut in another place each time
            found = trained.task.encode(row, epoch, trained.pretrained)
            assert [token for example in found for token in example["targets"]] == ids[1:]
            read = [token for example in found for token in example["ids"]]
            assert len(read) == len(ids) - 1
            assert read[0] == ids[0]
            if letters == 300:  # some are read as others, the same ones whenever the epoch is read
                share = sum(a != b for a, b in zip(read, ids, strict=False)) / len(read)
                assert 0 < share < 2 * trained.task.config.token_noise
                assert found == trained.task.encode(row, epoch, trained.pretrained)

    def test_bits_per_byte_count_every_byte_and_token_once(self, runs):
        """Against single tokens, each predicted from the tokens before it in its chunk."""
        trained = runs("lm")
        rows = [
            {"text": text, "location": text} for text in ("the día saw the мост, 3 times, and 4 and 5 and 6 times", "a")
        ]
        model, nats, written = trained.pretrained.model, 0.0, 0
        for row in rows:
            ids, context = encode_one(trained.pretrained.tokenizer, row["text"]), trained.task.config.max_length
            written += len(row["text"].encode())
            for place in range(1, len(ids)):
                piece = 0 if place <= context else (place - 1 - context // 2) // (context // 2) * (context // 2)
                with torch.no_grad():
                    nats -= float(F.log_softmax(model(torch.tensor([ids[piece:place]]))[0, -1], -1)[ids[place]])
        loss_module, summed, count = LossModule(model, trained.task).eval(), 0.0, 0
        with torch.no_grad():
            for example in examples(trained, rows):
                batch = trained.task.batch([example])
                summed, count = summed + float(loss_module(batch.tensors)), count + batch.num_predicted
        task_metrics = trained.task.metrics(trained.pretrained, rows, summed / count, 200)
        assert task_metrics["bits_per_byte"] == pytest.approx(nats / written / math.log(2), rel=1e-5)
        assert task_metrics["perplexity"] == pytest.approx(math.exp(summed / count))


class TestMaskedLM:
    def test_it_predicts_a_masked_token(self, runs):
        trained = runs("mlm")
        model, tokenizer = trained.pretrained.model, trained.pretrained.tokenizer
        ids = tokenizer.encode("the river saw the bank, 3 times").ids
        hidden = ids.index(tokenizer.encode(" saw", add_special_tokens=False).ids[0])
        ids[hidden : hidden + 1], wanted = [tokenizer.token_to_id("[MASK]")], ids[hidden]
        with torch.no_grad():
            assert int(model.logits(model(torch.tensor([ids])))[0, hidden].argmax()) == wanted
        assert trained.result.metrics["accuracy"] > 0.2

    def test_the_shares_of_masked_tokens(self, runs):
        """15 % are predicted; of these 80 % are masked, 10 % replaced, 10 % unchanged."""
        trained = runs("mlm")
        tokenizer, settings = trained.pretrained.tokenizer, trained.task.config
        row = {"text": "the river saw " * 2_000, "location": "long"}
        ids = tokenizer.encode(row["text"], add_special_tokens=False).ids
        first, last, mask = (tokenizer.token_to_id(name) for name in ("[CLS]", "[SEP]", "[MASK]"))
        found = trained.task.encode_eval(row, trained.pretrained)
        read, targets = [], []
        for example in found:
            assert len(example["ids"]) == len(example["targets"]) <= settings.max_length
            assert (example["ids"][0], example["ids"][-1]) == (first, last)
            assert example["targets"][0] == example["targets"][-1] == IGNORE_INDEX
            read += example["ids"][1:-1]
            targets += example["targets"][1:-1]
        assert len(read) == len(ids)
        chosen = [i for i, target in enumerate(targets) if target != IGNORE_INDEX]
        assert [targets[i] for i in chosen] == [ids[i] for i in chosen]
        assert all(read[i] == ids[i] for i in range(len(ids)) if targets[i] == IGNORE_INDEX)
        kept = sum(read[i] == ids[i] for i in chosen) / len(chosen)
        masked = sum(read[i] == mask for i in chosen) / len(chosen)
        print(len(ids), len(chosen) / len(ids), masked, kept)
        assert len(chosen) / len(ids) == pytest.approx(0.15, abs=0.02)  # of 30 tokens 4 or 5
        assert masked == pytest.approx(0.8, abs=0.04)
        assert kept == pytest.approx(0.1, abs=0.03)

    def test_each_epoch_has_other_masks_and_evaluation_the_same(self, runs):
        trained = runs("mlm")
        row = trained.data.eval_rows[0]
        assert trained.task.encode(row, 0, trained.pretrained) == trained.task.encode(row, 0, trained.pretrained)
        assert trained.task.encode(row, 0, trained.pretrained) != trained.task.encode(row, 1, trained.pretrained)
        assert trained.task.encode_eval(row, trained.pretrained) == trained.task.encode_eval(row, trained.pretrained)


class TestCaptioning:
    def test_it_captions_images(self, runs):
        trained = runs("caption")
        assert trained.result.metrics["exact_match"] == 1.0
        image = np.zeros((6, 8), dtype=np.uint8)
        image[:, 4:] = 200
        images = [image, image[:, ::-1].copy()]
        assert regard.generate(trained.pretrained, images, max_new_tokens=6) == ["right", "left"]

    def test_sizes_that_do_not_fit(self, tmp_path):
        data = write("caption", tmp_path)
        with pytest.raises(InputError, match=r"--image-size 9 does not divide into patches of --patch-size 2"):
            run("caption", data, tmp_path / "out", image_size=9, patch_size=2)
        run("caption", data, tmp_path / "out", image_size=4, patch_size=2, max_steps=3, eval_steps=3)
        assert regard.load(tmp_path / "out").config.patches.image_size == (4, 4)

    def test_a_text_longer_than_the_context(self, runs):
        trained = runs("caption")
        row = {"image": np.zeros((8, 8), dtype=np.uint8), "text": "q" * 40, "location": "line 9"}
        with pytest.raises(InputError, match=r"^line 9: the text has 41 tokens, and the model has positions for 16"):
            trained.task.encode(row, 0, trained.pretrained)
