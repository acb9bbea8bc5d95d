"""Masked language modeling: an encoder predicts the tokens that are masked in a text."""

from __future__ import annotations

import random
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn

from regard.attention import mask
from regard.errors import InputError
from regard.lens import Recording
from regard.lens.text.run import run
from regard.pretrained import Pretrained
from regard.pretrained.initialize import initialize_model
from regard.training.data import TrainingData, texts
from regard.training.loss import IGNORE_INDEX
from regard.training.tasks.batch import Batch, Example, pack_examples
from regard.training.tasks.task import EvalSample, Task, encode_text, text_prefix
from regard.training.tokenizers import train_bpe
from regard.transformer import Encoder

PAD, CLS, SEP, MASK = "[PAD]", "[CLS]", "[SEP]", "[MASK]"
SPECIAL_TOKENS = {"pad_token": PAD, "unk_token": "[UNK]", "cls_token": CLS, "sep_token": SEP, "mask_token": MASK}
"""By their names in transformers, in the order of their ids."""
MASKED_SHARE = 0.15
"""Share of the tokens to predict; of 10 of these, 8 are masked, 1 is replaced and 1 unchanged (BERT, section 3.1)."""


class MaskedLMTask(Task):
    """A masked language model in the format of BERT (Devlin et al. 2019)."""

    name = "mlm"
    kind = "encoder"

    @staticmethod
    def load_data(paths: Sequence[str | Path], eval_file: str | Path | None) -> TrainingData:
        """Texts."""
        return texts(paths, eval_file=eval_file)

    def init_model(self, folder: Path, data: TrainingData) -> Pretrained:
        """A BERT."""
        config = self.config
        corpus = (row["text"] for row in data.train)
        tokens = list(SPECIAL_TOKENS.values())
        tokenizer = train_bpe(corpus, vocab_size=config.vocab_size, special_tokens=tokens, bos_token=CLS, eos_token=SEP)
        hf_config = {
            "model_type": "bert",
            "architectures": ["BertForMaskedLM"],
            "vocab_size": tokenizer.get_vocab_size(),
            "hidden_size": config.d_model,
            "num_hidden_layers": config.num_layers,
            "num_attention_heads": config.num_heads,
            "intermediate_size": config.d_ff,
            "max_position_embeddings": config.max_length,
            "type_vocab_size": 2,
            "hidden_act": "gelu",
            "layer_norm_eps": 1e-12,
            "hidden_dropout_prob": config.dropout,
            "attention_probs_dropout_prob": 0.0,
            "tie_word_embeddings": True,
            "pad_token_id": tokenizer.token_to_id(PAD),
        }
        return initialize_model(folder, hf_config, tokenizer, special_tokens=SPECIAL_TOKENS, seed=config.seed)

    def incompatibility(self, pretrained: Pretrained) -> str | None:
        """Also a model without a head that predicts masked tokens."""
        has_head = isinstance(pretrained.model, Encoder) and pretrained.model.mlm_head is not None
        return super().incompatibility(pretrained) or (None if has_head else "has no head that predicts masked tokens")

    def encode(self, row: Mapping[str, Any], epoch: int, pretrained: Pretrained) -> Sequence[Example]:
        """The chunks of a text, split and masked in another way in each epoch."""
        rng = random.Random(f"{self.config.seed} {epoch} {row['text']}")
        return self._masked_chunks(row, pretrained, rng, rng.randrange(self.config.max_length - 2))

    def encode_eval(self, row: Mapping[str, Any], pretrained: Pretrained) -> Sequence[Example]:
        """The chunks of a text, masked in the same way each time."""
        return self._masked_chunks(row, pretrained, random.Random(row["text"]), 0)

    def _masked_chunks(
        self, row: Mapping[str, Any], pretrained: Pretrained, rng: random.Random, first_length: int
    ) -> list[Example]:
        cls, *ids, sep = encode_text(pretrained, row["text"])
        length = self.config.max_length - 2
        starts = [0, *([first_length] if first_length else []), *range(first_length + length, len(ids), length)]
        examples: list[Example] = []
        for start, stop in zip(starts, [*starts[1:], len(ids)], strict=True):
            if stop > start:
                masked, targets = self._mask_tokens(ids[start:stop], pretrained, rng)
                framed = {"ids": [cls, *masked, sep], "targets": [IGNORE_INDEX, *targets, IGNORE_INDEX]}
                examples.append({**framed, "location": row["location"]})
        return examples

    def _mask_tokens(
        self, ids: Sequence[int], pretrained: Pretrained, rng: random.Random
    ) -> tuple[list[int], list[int]]:
        """The tokens that the model reads, and the target of each of them."""
        mask_id = _mask_id(pretrained)
        masked, targets = list(ids), [IGNORE_INDEX] * len(ids)
        for position in rng.sample(range(len(ids)), max(1, round(MASKED_SHARE * len(ids)))):
            targets[position] = ids[position]
            draw = rng.random()
            if draw < 0.8:
                masked[position] = mask_id
            elif draw < 0.9:
                masked[position] = rng.randrange(pretrained.config.vocab_size)
        return masked, targets

    def batch(self, examples: Sequence[Example]) -> Batch:
        """Chunks as one packed row."""
        return pack_examples(examples)

    def predict(self, model: nn.Module, tensors: Mapping[str, Tensor]) -> tuple[Tensor, Tensor]:
        """The encoder's logits of the tokens to predict, and of no others."""
        assert isinstance(model, Encoder)
        hidden_states = model(tensors["ids"], mask=mask.documents(tensors["documents"]), positions=tensors["positions"])
        is_predicted = tensors["targets"] != IGNORE_INDEX
        return model.logits(hidden_states[:, is_predicted])[0], tensors["targets"][is_predicted]

    @torch.no_grad()
    def metrics(
        self, pretrained: Pretrained, rows: Sequence[Mapping[str, Any]], loss: float, max_samples: int
    ) -> dict[str, float]:
        """The share of masked tokens that are predicted."""
        num_correct = num_predicted = 0
        for row in rows[:max_samples]:
            examples = self.encode_eval(row, pretrained)
            for start in range(0, len(examples), self.config.batch_size):
                tensors = self.batch(examples[start : start + self.config.batch_size]).tensors
                on_device = {name: tensor.to(pretrained.device) for name, tensor in tensors.items()}
                logits, targets = self.predict(pretrained.model, on_device)
                num_correct += int((logits.argmax(-1) == targets).sum())
                num_predicted += len(targets)
        return {"accuracy": num_correct / max(1, num_predicted)}

    @torch.no_grad()
    def samples(self, pretrained: Pretrained, rows: Sequence[Mapping[str, Any]]) -> list[EvalSample]:
        """The first tokens of a text with some masked, and with the predictions in their places."""
        samples = []
        for row in rows:
            cls, *ids, sep = encode_text(pretrained, row["text"])
            ids = ids[: min(24, self.config.max_length - 2)]
            masked, targets = self._mask_tokens(ids, pretrained, random.Random(row["text"]))
            input_ids = torch.tensor([[cls, *masked, sep]], device=pretrained.device)
            assert isinstance(pretrained.model, Encoder)
            predicted = pretrained.model.logits(pretrained.model(input_ids))[0, 1:-1].argmax(-1).tolist()
            is_masked = [target != IGNORE_INDEX for target in targets]
            source = "".join(
                MASK if hidden else pretrained.decode([token]) for token, hidden in zip(masked, is_masked, strict=True)
            )
            filled = [new if hidden else old for old, new, hidden in zip(masked, predicted, is_masked, strict=True)]
            samples.append(EvalSample(source, pretrained.decode(ids), pretrained.decode(filled)))
        return samples

    def record_attention(self, pretrained: Pretrained, row: Mapping[str, Any]) -> Recording:
        """The attention of the first tokens of a text."""
        return run(text_prefix(pretrained, row["text"], min(64, self.config.max_length) - 2), pretrained).recording


def _mask_id(pretrained: Pretrained) -> int:
    tokenizer = pretrained.tokenizer
    assert tokenizer is not None
    for name in (MASK, "<mask>"):
        token = tokenizer.token_to_id(name)
        if token is not None:
            return int(token)
    raise InputError(f"{pretrained.name} has no mask token, {MASK} or <mask>")
