"""Texts with some tokens masked: an encoder learns what they were."""

from __future__ import annotations

import random
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any, ClassVar

import torch
from torch import Tensor, nn

from regard.attention import mask
from regard.errors import InputError
from regard.lens import Recording
from regard.lens.text.run import run
from regard.pretrained import Pretrained
from regard.pretrained.initialize import initialize_model
from regard.training import data as kept
from regard.training.data import Data
from regard.training.packing import NOTHING
from regard.training.shuffling import Example
from regard.training.tasks.task import Batch, Sample, Task, beginning, in_one_row, tokens
from regard.training.tokenizers import trained
from regard.transformer import Encoder

__all__ = ["Masked"]

SPECIAL = PAD, UNKNOWN, FIRST, LAST, MASK = "[PAD]", "[UNK]", "[CLS]", "[SEP]", "[MASK]"
SHARE = 0.15
"""Of the tokens are to be guessed; of these 8 in 10 are masked, 1 is another token, and 1 stays (BERT, section 3.1)."""


class Masked(Task):
    """A masked language model in the format of BERT (Devlin et al. 2019)."""

    name = "mlm"
    kind = "encoder"
    defaults: ClassVar[Mapping[str, Any]] = {
        "layers": 4,
        "d_model": 256,
        "heads": 4,
        "d_ff": 1024,
        "context": 128,
        "vocab_size": 2_000,
        "dropout": 0.1,
        "steps": 2_000,
        "batch_size": 32,
        "lr": 5e-4,
        "warm_up": 200,
        "weight_decay": 0.01,
        "evaluate_every": 250,
    }

    @staticmethod
    def data(paths: Sequence[str | Path], held_out: str | Path | None) -> Data:
        """Texts."""
        return kept.texts(paths, held_out=held_out)

    def begin(self, folder: Path, data: Data) -> Pretrained:
        """A BERT."""
        wanted = self.settings
        texts = (row["text"] for row in data.train)
        tokenizer = trained(texts, vocab_size=wanted.vocab_size, special=SPECIAL, start=FIRST, stop=LAST)
        settings = {
            "model_type": "bert",
            "architectures": ["BertForMaskedLM"],
            "vocab_size": tokenizer.get_vocab_size(),
            "hidden_size": wanted.d_model,
            "num_hidden_layers": wanted.layers,
            "num_attention_heads": wanted.heads,
            "intermediate_size": wanted.d_ff,
            "max_position_embeddings": wanted.context,
            "type_vocab_size": 2,
            "hidden_act": "gelu",
            "layer_norm_eps": 1e-12,
            "hidden_dropout_prob": wanted.dropout,
            "attention_probs_dropout_prob": 0.0,
            "tie_word_embeddings": True,
            "pad_token_id": tokenizer.token_to_id(PAD),
        }
        return initialize_model(folder, settings, tokenizer, seed=wanted.seed)

    def unfit(self, model: Pretrained) -> str | None:
        """Also where it has no head to guess with."""
        has_head = isinstance(model.model, Encoder) and model.model.mlm_head is not None
        return super().unfit(model) or (None if has_head else "without a head that guesses masked tokens")

    def encode(self, row: Mapping[str, Any], epoch: int, model: Pretrained) -> Sequence[Example]:
        """A text in pieces, cut and masked in another way in each epoch."""
        chance = random.Random(f"{self.settings.seed} {epoch} {row['where']}")
        length = self.settings.context - 2
        return self._pieces(row, model, chance, chance.randrange(length))

    def held_out(self, row: Mapping[str, Any], model: Pretrained) -> Sequence[Example]:
        """Pieces, masked in the same way each time."""
        return self._pieces(row, model, random.Random(row["where"]), 0)

    def _pieces(self, row: Mapping[str, Any], model: Pretrained, chance: random.Random, first: int) -> list[Example]:
        start, *ids, stop = tokens(model, row["text"])
        length = self.settings.context - 2
        cuts = [0, *([first] if first else []), *range(first + length, len(ids), length)]
        found: list[Example] = []
        for begin, end in zip(cuts, [*cuts[1:], len(ids)], strict=True):
            if end > begin:
                masked, targets = self._masked(ids[begin:end], model, chance)
                around = {"ids": [start, *masked, stop], "targets": [NOTHING, *targets, NOTHING]}
                found.append({**around, "where": row["where"]})
        return found

    def _masked(self, ids: Sequence[int], model: Pretrained, chance: random.Random) -> tuple[list[int], list[int]]:
        """What the model reads in place of some tokens, and what it is to guess for each of them."""
        mask_id = _mask_id(model)
        read, targets = list(ids), [NOTHING] * len(ids)
        for place in chance.sample(range(len(ids)), max(1, round(SHARE * len(ids)))):
            targets[place] = ids[place]
            drawn = chance.random()
            if drawn < 0.8:
                read[place] = mask_id
            elif drawn < 0.9:
                read[place] = chance.randrange(model.config.vocab_size)
        return read, targets

    def batch(self, examples: Sequence[Example]) -> Batch:
        """Pieces as one packed row."""
        return in_one_row(examples)

    def predict(self, model: nn.Module, tensors: Mapping[str, Tensor]) -> tuple[Tensor, Tensor]:
        """What the encoder says of the tokens to guess, and of no others."""
        assert isinstance(model, Encoder)
        states = model(tensors["ids"], mask=mask.documents(tensors["documents"]), positions=tensors["positions"])
        chosen = tensors["targets"] != NOTHING
        return model.logits(states[:, chosen])[0], tensors["targets"][chosen]

    @torch.no_grad()
    def judge(self, model: Pretrained, rows: Sequence[Mapping[str, Any]], loss: float, most: int) -> dict[str, float]:
        """The share of masked tokens that are guessed."""
        right = count = 0
        for row in rows[:most]:
            examples = self.held_out(row, model)
            for start in range(0, len(examples), self.settings.batch_size):
                tensors = self.batch(examples[start : start + self.settings.batch_size]).tensors
                on_device = {name: tensor.to(model.device) for name, tensor in tensors.items()}
                logits, targets = self.predict(model.model, on_device)
                right += int((logits.argmax(-1) == targets).sum())
                count += len(targets)
        return {"accuracy": right / max(1, count)}

    @torch.no_grad()
    def samples(self, model: Pretrained, rows: Sequence[Mapping[str, Any]]) -> list[Sample]:
        """The beginning of a text with tokens masked, and with the guesses in their places."""
        found = []
        for row in rows:
            start, *ids, stop = tokens(model, row["text"])
            ids = ids[: min(24, self.settings.context - 2)]
            masked, targets = self._masked(ids, model, random.Random(row["where"]))
            read = torch.tensor([[start, *masked, stop]], device=model.device)
            assert isinstance(model.model, Encoder)
            guesses = model.model.logits(model.model(read))[0, 1:-1].argmax(-1).tolist()
            pairs = list(zip(masked, targets, guesses, strict=True))
            hidden = "".join(MASK if target != NOTHING else model.decode([token]) for token, target, _ in pairs)
            written = model.decode([guess if target != NOTHING else token for token, target, guess in pairs])
            found.append(Sample(hidden, model.decode(ids), written))
        return found

    def watched(self, model: Pretrained, row: Mapping[str, Any]) -> Recording:
        """The beginning of a text."""
        return run(beginning(row["text"], model, min(64, self.settings.context) - 2), model).recording


def _mask_id(model: Pretrained) -> int:
    tokenizer = model.tokenizer
    assert tokenizer is not None
    found = [tokenizer.token_to_id(name) for name in (MASK, "<mask>")]
    for token in found:
        if token is not None:
            return int(token)
    raise InputError(f"{model.name} has no token for what is masked, {MASK} or <mask>")
