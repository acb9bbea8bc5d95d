"""transformers reads what a run wrote, and gives what regard gives: logits, token ids, texts."""

import random
import shutil
from dataclasses import replace

import numpy as np
import torch
import transformers
from PIL import Image
from transformers import AutoTokenizer

import regard
from regard.generation.request import max_new_tokens_left

MODELS = {
    "translate": transformers.AutoModelForSeq2SeqLM,
    "lm": transformers.AutoModelForCausalLM,
    "mlm": transformers.AutoModelForMaskedLM,
    "caption": transformers.AutoModelForImageTextToText,
}
SPECIAL_TOKENS = {
    "translate": {"eos": "</s>", "pad": "<pad>"},
    "lm": dict.fromkeys(("bos", "eos", "pad"), "<|end|>"),
    "mlm": {"pad": "[PAD]", "unk": "[UNK]", "cls": "[CLS]", "sep": "[SEP]", "mask": "[MASK]"},
    "caption": dict.fromkeys(("bos", "eos", "pad"), "<|end|>"),
}
PIECES = [
    "the",
    "river",
    "Ufer",
    "día",
    "e\u0301",
    "мост",
    "日本",
    "😀",
    "42",
    "ABC",
    "n't",
    "[cls]",
    "<s>",
    ".",
    " ,",
    "!",
]
PIECES += [" ", "  ", "\n", "\t", "\u00a0", "\u200b", "\0"]


def varied_texts(special_tokens):
    """500 texts: empty, of spaces, long, in several scripts, and with the special tokens spelled out."""
    rng, pieces = random.Random(0), [*PIECES, *special_tokens]
    texts = ["", " ", "   ", "the river " * 200, *special_tokens]
    return texts + ["".join(rng.choices(pieces, k=rng.randint(1, 30))) for _ in range(500 - len(texts))]


def test_the_logits(trained):
    models = {"translate": "MarianMTModel", "lm": "LlamaForCausalLM", "mlm": "BertForMaskedLM"}
    kind = getattr(transformers, models.get(trained.task.name, "VisionEncoderDecoderModel"))
    reference, loading_info = kind.from_pretrained(trained.out, output_loading_info=True)
    assert not {key for key in loading_info["missing_keys"] if "pooler" not in key}  # which nothing here reads
    assert not loading_info["unexpected_keys"]
    model, ids = trained.pretrained.model, torch.randint(200, (3, 9))
    with torch.inference_mode():
        if trained.task.name == "caption":
            pixels = trained.pretrained.pixel_values([row["image"] for row in trained.data.eval_rows])
            inputs, found = {"pixel_values": pixels, "decoder_input_ids": ids}, model(pixels, ids)
        elif trained.task.name == "translate":
            inputs, found = {"input_ids": ids, "decoder_input_ids": ids}, model(ids, ids)
        else:
            inputs, found = {"input_ids": ids}, model(ids)
            if trained.task.name == "mlm":
                found = model.logits(found)
        expected = reference.eval()(**inputs).logits
    assert expected.std() > 0.1
    assert (found - expected).abs().max() < 2e-5


def test_the_token_ids_of_500_texts(trained):
    theirs, ours = AutoTokenizer.from_pretrained(trained.out), trained.pretrained.tokenizer
    special = {f"{name}_token": token for name, token in SPECIAL_TOKENS[trained.task.name].items()}
    assert theirs.special_tokens_map == special
    texts = varied_texts(special.values())
    ids = [each.ids for each in ours.encode_batch(texts)]
    assert theirs(texts).input_ids == ids
    assert theirs.batch_decode(ids) == ours.decode_batch(ids, skip_special_tokens=False)
    assert theirs.model_max_length == trained.task.config.max_length


def test_regard_does_without_the_files_that_are_for_transformers(trained, tmp_path):
    names = ("tokenizer_config.json", "generation_config.json", "checkpoints", "attention")
    shutil.copytree(trained.out, tmp_path, ignore=shutil.ignore_patterns(*names), dirs_exist_ok=True)
    old, ours = regard.load(tmp_path), trained.pretrained
    assert old.tokenizer.to_str() == ours.tokenizer.to_str()
    special, pad = ours.config.special_tokens, old.config.special_tokens.pad
    assert old.config.special_tokens == (replace(special, pad=pad) if trained.task.name == "lm" else special)


class TestTexts:
    """What transformers gives where nobody passes an option; the padding of a batch changes nothing."""

    def generated(self, trained, inputs):
        ids = MODELS[trained.task.name].from_pretrained(trained.out).generate(**inputs)
        return AutoTokenizer.from_pretrained(trained.out).batch_decode(ids, skip_special_tokens=True)

    def test_translations(self, trained_tasks):
        trained = trained_tasks("translate")
        sources = [row["source"] for row in trained.rows[:8]]
        targets = list(regard.translate(trained.pretrained, sources, strategy=regard.Greedy()))
        assert len({len(text) for text in targets}) > 1, "some end before the last position"
        inputs = AutoTokenizer.from_pretrained(trained.out)(sources, return_tensors="pt", padding=True)
        assert self.generated(trained, inputs) == targets

    def test_continuations(self, trained_tasks):
        trained, prompts = trained_tasks("lm"), ["the día saw", "Ufer"]
        pipeline = transformers.pipeline("text-generation", str(trained.out))
        for options in ({}, {"max_new_tokens": 12, "batch_size": 2}):
            limits = [max_new_tokens_left(trained.pretrained, prompt) for prompt in prompts]
            limits = [options.get("max_new_tokens", limit) for limit in limits]
            continued = [
                prompt + regard.generate(trained.pretrained, prompt, max_new_tokens=limit)
                for prompt, limit in zip(prompts, limits, strict=True)
            ]
            assert [text["generated_text"] for (text,) in pipeline(prompts, **options)] == continued

    def test_masks(self, trained_tasks):
        trained, texts = trained_tasks("mlm"), ["the [MASK] saw the Ufer, 12 times", "the river[MASK] the día, 7 times"]
        pipeline, filled = transformers.pipeline("fill-mask", str(trained.out)), []
        for text in texts:
            ids = trained.pretrained.encode(text).ids
            place = ids.index(trained.pretrained.tokenizer.token_to_id("[MASK]"))
            with torch.inference_mode():
                model = trained.pretrained.model
                ids[place] = int(model.logits(model(torch.tensor([ids])))[0, place].argmax())
            filled.append(trained.pretrained.decode(ids))
        assert [best["sequence"] for (best,) in pipeline(texts, batch_size=2, top_k=1)] == filled

    def test_captions(self, trained_tasks):
        trained = trained_tasks("caption")
        images = [Image.fromarray(np.asarray(row["image"], np.uint8)) for row in trained.rows]
        inputs = transformers.AutoImageProcessor.from_pretrained(trained.out)(images, return_tensors="pt")
        assert torch.equal(inputs.pixel_values, trained.pretrained.pixel_values(images))
        assert self.generated(trained, inputs) == [row["text"] for row in trained.rows]
