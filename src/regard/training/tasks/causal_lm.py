"""Texts: a decoder learns which token comes next."""

from __future__ import annotations

import math
import random
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any, ClassVar

from torch import Tensor, nn

from regard.attention import mask
from regard.generation import Sample as Draw
from regard.generation import generate
from regard.lens import Recording
from regard.lens.text.run import run
from regard.pretrained import Pretrained
from regard.pretrained.initialize import initialize_model
from regard.training import data as kept
from regard.training.data import Data
from regard.training.loss import Logits, logits_of
from regard.training.packing import NOTHING
from regard.training.shuffling import Example
from regard.training.tasks.task import Batch, Sample, Task, beginning, in_one_row
from regard.training.tokenizers import trained
from regard.transformer import Decoder

__all__ = ["END", "Language", "pieces"]

END = "<|end|>"
"""Stands before every text and behind it."""


class Language(Task):
    """A decoder-only transformer in the format of Llama (Touvron et al. 2023): rotary positions, RMSNorm, SwiGLU."""

    name = "lm"
    kind = "decoder"
    defaults: ClassVar[Mapping[str, Any]] = {
        "layers": 4,
        "d_model": 256,
        "heads": 4,
        "d_ff": 704,
        "context": 256,
        "vocab_size": 2_000,
        "dropout": 0.25,
        "noise": 0.2,
        "steps": 1_200,
        "batch_size": 16,
        "lr": 2e-3,
        "warm_up": 60,
        "weight_decay": 1.0,
        "evaluate_every": 100,
    }

    @staticmethod
    def data(paths: Sequence[str | Path], held_out: str | Path | None) -> Data:
        """Texts."""
        return kept.texts(paths, held_out=held_out)

    def begin(self, folder: Path, data: Data) -> Pretrained:
        """A Llama."""
        wanted = self.settings
        texts: Iterator[str] = (row["text"] for row in data.train)
        tokenizer = trained(texts, vocab_size=wanted.vocab_size, special=(END,))
        end = tokenizer.token_to_id(END)
        settings = {
            "model_type": "llama",
            "architectures": ["LlamaForCausalLM"],
            "vocab_size": tokenizer.get_vocab_size(),
            "hidden_size": wanted.d_model,
            "num_hidden_layers": wanted.layers,
            "num_attention_heads": wanted.heads,
            "num_key_value_heads": wanted.heads,
            "intermediate_size": wanted.d_ff,
            "max_position_embeddings": wanted.context,
            "hidden_act": "silu",
            "rms_norm_eps": 1e-5,
            "attention_dropout": 0.0,
            "tie_word_embeddings": True,
            "bos_token_id": end,
            "eos_token_id": end,
        }
        return initialize_model(folder, settings, tokenizer, seed=wanted.seed)

    def unfit(self, model: Pretrained) -> str | None:
        """Also where no token ends a text."""
        return super().unfit(model) or (None if model.config.special_tokens.eos else "without a token that ends a text")

    def encode(self, row: Mapping[str, Any], epoch: int, model: Pretrained) -> Sequence[Example]:
        """A text in pieces, cut in other places in each epoch, and some of its tokens read as others."""
        ids = self._framed(row["text"], model)
        drawn = random.Random(f"{self.settings.seed} {epoch} {row['where']}")
        found = pieces(ids, self.settings.context, drawn.randrange(self.settings.context))
        return [{**piece, "ids": self._noisy(piece["ids"], drawn, model), "where": row["where"]} for piece in found]

    def _noisy(self, ids: list[int], drawn: random.Random, model: Pretrained) -> list[int]:
        """Some tokens as others, more in one piece and fewer in another; what stands between texts stays.

        Xie et al. 2017, "Data Noising as Smoothing in Neural Network Language Models": what was read is not to be
        relied on to the letter, or few texts are learned by heart.
        """
        share = 2 * self.settings.noise * drawn.random()
        if not share:
            return ids
        end, size = model.config.special_tokens.eos[0], model.config.vocab_size
        return [one if one == end or drawn.random() >= share else drawn.randrange(size) for one in ids]

    def held_out(self, row: Mapping[str, Any], model: Pretrained) -> Sequence[Example]:
        """Pieces that overlap by half, so that what is predicted has half the context before it, where there is any."""
        ids, context = self._framed(row["text"], model), self.settings.context
        examples = []
        for start in range(0, max(1, len(ids) - 1 - context // 2), context - context // 2):
            (piece,) = pieces(ids[start : start + context + 1], context)
            known = 0 if start == 0 else context // 2
            examples.append({**piece, "targets": [NOTHING] * known + piece["targets"][known:], "where": row["where"]})
        return examples

    def batch(self, examples: Sequence[Example]) -> Batch:
        """Pieces as one packed row."""
        return in_one_row(examples)

    def predict(self, model: nn.Module, tensors: Mapping[str, Tensor]) -> tuple[Logits | Tensor, Tensor]:
        """What the decoder says of each next token."""
        assert isinstance(model, Decoder)
        *_, vectors = model.hidden_states(
            tensors["ids"], None, mask.documents(tensors["documents"]), positions=tensors["positions"]
        )
        return logits_of(model, vectors[0]), tensors["targets"]

    def judge(self, model: Pretrained, rows: Sequence[Mapping[str, Any]], loss: float, most: int) -> dict[str, float]:
        """Bits for each byte of the held-out texts, their ends included, and the perplexity of a token."""
        tokens = sum(len(self._framed(row["text"], model)) - 1 for row in rows)
        written = sum(len(row["text"].encode()) for row in rows)
        return {"bits_per_byte": loss * tokens / written / math.log(2), "perplexity": math.exp(min(loss, 700.0))}

    def samples(self, model: Pretrained, rows: Sequence[Mapping[str, Any]]) -> list[Sample]:
        """How the model goes on from the beginning of a text."""
        found = []
        for row in rows:
            tokens = model.encode_continuation(row["text"])[: min(16, self.settings.context // 2)]
            start = model.decode(tokens)
            room = min(48, self.settings.context - len(tokens) - 1)
            written = generate(model, start, max_new_tokens=room, strategy=Draw(temperature=0.8, seed=0))
            found.append(Sample(start, "", str(written)))
        return found

    def watched(self, model: Pretrained, row: Mapping[str, Any]) -> Recording:
        """The beginning of a text."""
        return run(beginning(row["text"], model, min(64, self.settings.context)), model).recording

    def _framed(self, text: str, model: Pretrained) -> list[int]:
        end = model.config.special_tokens.eos[0]
        return [end, *model.encode_continuation(text), end]


def pieces(ids: Sequence[int], context: int, first: int = 0) -> list[dict[str, list[int]]]:
    """A text as inputs of at most so many tokens, each with the token that follows it.

    Args:
        ids: of the text.
        context: the longest input.
        first: the length of the first piece, where it is not to be whole.
    """
    starts = [0, *range(first, len(ids) - 1, context)] if first else range(0, len(ids) - 1, context)
    stops = [*starts[1:], len(ids) - 1]
    found = []
    for start, stop in zip(starts, stops, strict=True):
        if stop > start:
            found.append({"ids": list(ids[start:stop]), "targets": list(ids[start + 1 : stop + 1])})
    return found
