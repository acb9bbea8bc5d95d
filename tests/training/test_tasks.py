"""Every task, on a handful of rows: it learns, and what it leaves is a model like any other."""

import json
import math
from collections import Counter

import jaxtyping
import numpy as np
import pytest
import torch
import torch.nn.functional as F
import transformers
from runs import TINY, losses, metrics, run, same, weights, write

import regard
from regard import InputError
from regard.training import checkpoint
from regard.training.config import Settings
from regard.training.loss import surprise
from regard.training.loss_module import Learner
from regard.training.packing import NOTHING
from regard.training.tasks import TASKS
from regard.training.train import settings_of

LEARNING = {
    "translate": {"steps": 40, "evaluate_every": 40, "batch_size": 16},
    "lm": {"steps": 40, "evaluate_every": 40, "context": 24},
    "mlm": {"steps": 200, "evaluate_every": 200, "context": 32, "batch_size": 16},
    "caption": {"steps": 40, "evaluate_every": 40, "batch_size": 16},
}


class Run:
    """A task that was trained, its folder and its data."""

    def __init__(self, task, folder):
        settings = {**LEARNING[task], "d_model": 32, "dropout": 0.0}
        path = write(task, folder)
        self.out = folder / "out"
        self.ended = run(task, path, self.out, **settings)
        self.pretrained = regard.load(self.out)
        self.task = TASKS[task](settings_of(TASKS[task], {**TINY, **settings}))
        self.data = self.task.data([path], None)
        self.rows = [*self.data.train.take(12), *self.data.held_out]


@pytest.fixture(scope="module")
def runs(tmp_path_factory):
    """A run by its task, made when it is asked for."""
    found = {}

    def of(task):
        if task not in found:
            # The runs of test_loop.py are checked for shapes; these are long.
            jaxtyping.config.update("jaxtyping_disable", True)
            found[task] = Run(task, tmp_path_factory.mktemp(task))
            jaxtyping.config.update("jaxtyping_disable", False)
        return found[task]

    return of


@pytest.fixture(params=TASKS)
def trained(request, runs):
    return runs(request.param)


def examples(trained, rows):
    return [example for row in rows for example in trained.task.held_out(row, trained.pretrained)]


class TestEveryTask:
    def test_it_learns(self, trained):
        said = losses(trained.out)
        print(trained.task.name, said[0], said[-2:])
        assert trained.ended.why == "done"
        assert said[0] > 4
        assert np.mean(said[-6:-1]) < said[0] / 2
        assert trained.ended.metrics["held_out_loss"] == said[-1] < said[0] / 2

    def test_its_folder_and_its_checkpoint_are_the_model(self, trained):
        last = checkpoint.latest(trained.out)
        assert last.name == f"step-{trained.task.settings.steps:06d}"
        assert same(weights(trained.out), weights(last))
        assert regard.load(last).kind == trained.pretrained.kind == trained.task.kind
        assert not list(trained.out.glob(".*"))

    def test_transformers_reads_the_same(self, trained):
        kind = {
            "translate": transformers.MarianMTModel,
            "lm": transformers.LlamaForCausalLM,
            "mlm": transformers.BertForMaskedLM,
            "caption": transformers.VisionEncoderDecoderModel,
        }[trained.task.name]
        theirs, told = kind.from_pretrained(trained.out, output_loading_info=True)
        assert not {key for key in told["missing_keys"] if "pooler" not in key}  # which nothing here reads
        assert not told["unexpected_keys"]
        ours = trained.pretrained.model
        with torch.inference_mode():
            if trained.task.name == "caption":
                images = [row["image"] for row in trained.data.held_out]
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
        learner = Learner(trained.pretrained.model, trained.task).eval()
        batch = examples(trained, trained.rows[:9])
        with torch.no_grad():
            alone = sum(float(learner(trained.task.batch([example]).tensors)) for example in batch)
            together = float(learner(trained.task.batch(batch).tensors))
        counted = trained.task.batch(batch)
        assert counted.predicted == sum(token != NOTHING for example in batch for token in example["targets"])
        assert set(counted.where) == {row["where"] for row in trained.rows[:9]}
        assert together == pytest.approx(alone, rel=1e-5)

    def test_the_held_out_loss_is_the_mean_over_all_their_tokens(self, trained):
        learner = Learner(trained.pretrained.model, trained.task).eval()
        summed, count = 0.0, 0
        with torch.no_grad():
            for example in examples(trained, trained.data.held_out):
                batch = trained.task.batch([example])
                summed, count = summed + float(learner(batch.tensors)), count + batch.predicted
        assert trained.ended.metrics["held_out_loss"] == pytest.approx(summed / count, rel=1e-5)

    def test_what_the_run_leaves_beside(self, trained):
        told = json.loads((trained.out / "run.json").read_text())
        assert told["task"] == trained.task.name
        assert told["settings"] == trained.task.settings.to_dict()
        assert told["data"]["rows"] == trained.data.rows
        assert len(told["data"]["fingerprint"]) >= 32
        assert {"regard", "python", "torch", "datasets", "lightning-fabric"} <= told["versions"].keys()
        steps = trained.task.settings.steps
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


class TestTranslate:
    def test_it_translates(self, runs):
        said = regard.translate(runs("translate").pretrained, ["abc", "fed"], max_new_tokens=8)
        assert all(text and text == text.upper() for text in said)

    def test_label_smoothing_against_its_definition(self):
        logits, targets = torch.randn(7, 11, dtype=torch.float64).float(), torch.tensor([0, 3, NOTHING, 10, 2, 2, 5])
        log = F.log_softmax(logits.double(), dim=-1)
        for share in (0.0, 0.1, 0.5):
            expected = torch.zeros((), dtype=torch.float64)
            for row, target in zip(log, targets.tolist(), strict=True):
                if target != NOTHING:
                    wanted = torch.full((11,), share / 11, dtype=torch.float64)
                    wanted[target] += 1 - share
                    expected -= (wanted * row).sum()
            assert float(surprise(logits, targets, share)) == pytest.approx(float(expected), rel=1e-5)

    def test_smoothing_is_for_training_alone(self, runs):
        trained = runs("translate")
        batch = trained.task.batch(examples(trained, trained.rows[:3])).tensors
        learner = Learner(trained.pretrained.model, trained.task, 0.3)
        with torch.no_grad():
            plain, smooth = float(learner.eval()(batch)), float(learner.train()(batch))
        trained.pretrained.model.eval()
        assert smooth > plain * 1.05
        with torch.no_grad():
            assert plain == float(Learner(trained.pretrained.model, trained.task).eval()(batch))

    @pytest.mark.parametrize("side", ["source", "target"])
    def test_a_pair_longer_than_the_context(self, side, runs):
        trained = runs("translate")
        row = {"source": "ab", "target": "AB", "where": "line 3", side: "a b " * 9}
        count = len(trained.pretrained.tokenizer.encode(row[side]).ids)
        assert count > 16
        with pytest.raises(
            InputError,
            match=f"^line 3: the {side} has {count} tokens, and the model has positions for 16. "
            f"Give --context {count}, or leave such pairs out by --skip-long$",
        ):
            trained.task.encode(row, 0, trained.pretrained)
        skipping = TASKS["translate"](Settings(**{**trained.task.settings.to_dict(), "skip_long": True}))
        assert skipping.encode(row, 0, trained.pretrained) == []


def of_one(tokenizer, text):
    end = tokenizer.token_to_id("<|end|>")
    return [end, *tokenizer.encode(text, add_special_tokens=False).ids, end]


class TestLanguage:
    def test_it_goes_on(self, runs):
        said = regard.generate(runs("lm").pretrained, "the river", max_new_tokens=6)
        assert "saw" in said or "the" in said

    @pytest.mark.parametrize("letters", [1, 20, 24, 25, 60, 300])
    def test_every_token_is_predicted_once_from_what_is_before_it(self, letters, runs):
        trained = runs("lm")
        row = {"text": "".join(chr(97 + i * i % 26) for i in range(letters)), "where": "here"}
        ids = of_one(trained.pretrained.tokenizer, row["text"])
        predicted = Counter()
        for i, example in enumerate(trained.task.held_out(row, trained.pretrained)):
            start = 12 * i
            assert example["ids"] == ids[start : start + 24][: len(ids) - 1 - start]
            for place, token in enumerate(example["targets"], start + 1):
                if token != NOTHING:
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
                assert 0 < share < 2 * trained.task.settings.noise
                assert found == trained.task.encode(row, epoch, trained.pretrained)

    def test_bits_per_byte_count_every_byte_and_token_once(self, runs):
        """Against token by token, each with the tokens before it that its piece has."""
        trained = runs("lm")
        rows = [
            {"text": text, "where": text} for text in ("the día saw the мост, 3 times, and 4 and 5 and 6 times", "a")
        ]
        model, nats, written = trained.pretrained.model, 0.0, 0
        for row in rows:
            ids, context = of_one(trained.pretrained.tokenizer, row["text"]), trained.task.settings.context
            written += len(row["text"].encode())
            for place in range(1, len(ids)):
                piece = 0 if place <= context else (place - 1 - context // 2) // (context // 2) * (context // 2)
                with torch.no_grad():
                    nats -= float(F.log_softmax(model(torch.tensor([ids[piece:place]]))[0, -1], -1)[ids[place]])
        learner, summed, count = Learner(model, trained.task).eval(), 0.0, 0
        with torch.no_grad():
            for example in examples(trained, rows):
                batch = trained.task.batch([example])
                summed, count = summed + float(learner(batch.tensors)), count + batch.predicted
        told = trained.task.judge(trained.pretrained, rows, summed / count, 200)
        assert told["bits_per_byte"] == pytest.approx(nats / written / math.log(2), rel=1e-5)
        assert told["perplexity"] == pytest.approx(math.exp(summed / count))


class TestMasked:
    def test_it_guesses(self, runs):
        trained = runs("mlm")
        model, tokenizer = trained.pretrained.model, trained.pretrained.tokenizer
        ids = tokenizer.encode("the river saw the bank, 3 times").ids
        hidden = ids.index(tokenizer.encode(" saw", add_special_tokens=False).ids[0])
        ids[hidden : hidden + 1], wanted = [tokenizer.token_to_id("[MASK]")], ids[hidden]
        with torch.no_grad():
            assert int(model.logits(model(torch.tensor([ids])))[0, hidden].argmax()) == wanted
        assert trained.ended.metrics["accuracy"] > 0.2

    def test_the_shares(self, runs):
        """15 % to be guessed; of these 80 % masked, 10 % another token, 10 % as they are."""
        trained = runs("mlm")
        tokenizer, settings = trained.pretrained.tokenizer, trained.task.settings
        row = {"text": "the river saw " * 2_000, "where": "long"}
        ids = tokenizer.encode(row["text"], add_special_tokens=False).ids
        first, last, mask = (tokenizer.token_to_id(name) for name in ("[CLS]", "[SEP]", "[MASK]"))
        found = trained.task.held_out(row, trained.pretrained)
        read, targets = [], []
        for example in found:
            assert len(example["ids"]) == len(example["targets"]) <= settings.context
            assert (example["ids"][0], example["ids"][-1]) == (first, last)
            assert example["targets"][0] == example["targets"][-1] == NOTHING
            read += example["ids"][1:-1]
            targets += example["targets"][1:-1]
        assert len(read) == len(ids)
        chosen = [i for i, target in enumerate(targets) if target != NOTHING]
        assert [targets[i] for i in chosen] == [ids[i] for i in chosen]
        assert all(read[i] == ids[i] for i in range(len(ids)) if targets[i] == NOTHING)
        kept = sum(read[i] == ids[i] for i in chosen) / len(chosen)
        masked = sum(read[i] == mask for i in chosen) / len(chosen)
        print(len(ids), len(chosen) / len(ids), masked, kept)
        assert len(chosen) / len(ids) == pytest.approx(0.15, abs=0.02)  # of 30 tokens 4 or 5
        assert masked == pytest.approx(0.8, abs=0.04)
        assert kept == pytest.approx(0.1, abs=0.03)

    def test_masked_anew_in_each_epoch_and_the_same_where_judged(self, runs):
        trained = runs("mlm")
        row = trained.data.held_out[0]
        assert trained.task.encode(row, 0, trained.pretrained) == trained.task.encode(row, 0, trained.pretrained)
        assert trained.task.encode(row, 0, trained.pretrained) != trained.task.encode(row, 1, trained.pretrained)
        assert trained.task.held_out(row, trained.pretrained) == trained.task.held_out(row, trained.pretrained)


class TestCaption:
    def test_it_says_which_half_is_bright(self, runs):
        trained = runs("caption")
        assert trained.ended.metrics["exact"] == 1.0
        image = np.zeros((6, 8), dtype=np.uint8)
        image[:, 4:] = 200
        images = [image, image[:, ::-1].copy()]
        assert regard.generate(trained.pretrained, images, max_new_tokens=6) == ["right", "left"]

    def test_sizes_that_do_not_fit(self, tmp_path):
        data = write("caption", tmp_path)
        with pytest.raises(InputError, match=r"--image-size 9 does not divide into patches of --patch-size 2"):
            run("caption", data, tmp_path / "out", image_size=9, patch_size=2)
        run("caption", data, tmp_path / "out", image_size=4, patch_size=2, steps=3, evaluate_every=3)
        assert regard.load(tmp_path / "out").config.patches.image_size == (4, 4)

    def test_a_text_longer_than_the_context(self, runs):
        trained = runs("caption")
        row = {"image": np.zeros((8, 8), dtype=np.uint8), "text": "q" * 40, "where": "line 9"}
        with pytest.raises(InputError, match=r"^line 9: the text has 41 tokens, and the model has positions for 16"):
            trained.task.encode(row, 0, trained.pretrained)
