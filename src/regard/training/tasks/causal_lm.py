"""Causal language modeling: a decoder predicts the next token of a text."""

from __future__ import annotations

import math
import random
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

from torch import Tensor, nn

from regard.attention import mask
from regard.generation import Sample, generate
from regard.lens import Recording
from regard.lens.text.run import run
from regard.pretrained import Pretrained
from regard.pretrained.initialize import initialize_model
from regard.training.data import TrainingData, texts
from regard.training.loss import IGNORE_INDEX, LinearLogits, decoder_logits
from regard.training.tasks.batch import Batch, Example, pack_examples
from regard.training.tasks.task import EvalSample, Task, text_prefix
from regard.training.tokenizers import train_bpe
from regard.transformer import Decoder

END = "<|end|>"
"""The token before and after every text."""


class CausalLMTask(Task):
    """A decoder-only transformer in the format of Llama (Touvron et al. 2023): rotary positions, RMSNorm, SwiGLU."""

    name = "lm"
    kind = "decoder"

    @staticmethod
    def load_data(paths: Sequence[str | Path], eval_file: str | Path | None) -> TrainingData:
        """Texts."""
        return texts(paths, eval_file=eval_file)

    def init_model(self, folder: Path, data: TrainingData) -> Pretrained:
        """A Llama."""
        config = self.config
        corpus: Iterator[str] = (row["text"] for row in data.train)
        tokenizer = train_bpe(corpus, vocab_size=config.vocab_size, special_tokens=(END,))
        end = tokenizer.token_to_id(END)
        hf_config = {
            "model_type": "llama",
            "architectures": ["LlamaForCausalLM"],
            "vocab_size": tokenizer.get_vocab_size(),
            "hidden_size": config.d_model,
            "num_hidden_layers": config.num_layers,
            "num_attention_heads": config.num_heads,
            "num_key_value_heads": config.num_heads,
            "intermediate_size": config.d_ff,
            "max_position_embeddings": config.max_length,
            "hidden_act": "silu",
            "rms_norm_eps": 1e-5,
            "attention_dropout": 0.0,
            "tie_word_embeddings": True,
            "bos_token_id": end,
            "eos_token_id": end,
        }
        special_tokens = {"bos_token": END, "eos_token": END, "pad_token": END}
        return initialize_model(folder, hf_config, tokenizer, special_tokens=special_tokens, seed=config.seed)

    def incompatibility(self, pretrained: Pretrained) -> str | None:
        """Also a model without a token that ends a text."""
        has_end = pretrained.config.special_tokens.eos
        return super().incompatibility(pretrained) or (None if has_end else "has no token that ends a text")

    def encode(self, row: Mapping[str, Any], epoch: int, pretrained: Pretrained) -> Sequence[Example]:
        """The chunks of a text, split at other positions in each epoch, with token noise."""
        ids = self._encode_text(row["text"], pretrained)
        rng = random.Random(f"{self.config.seed} {epoch} {row['text']}")
        chunks = split_into_chunks(ids, self.config.max_length, rng.randrange(self.config.max_length))
        return [
            {**chunk, "ids": self._add_token_noise(chunk["ids"], rng, pretrained), "location": row["location"]}
            for chunk in chunks
        ]

    def _add_token_noise(self, ids: list[int], rng: random.Random, pretrained: Pretrained) -> list[int]:
        """Replace some tokens at random, more in one chunk and fewer in another; the end token stays.

        Xie et al. 2017, "Data Noising as Smoothing in Neural Network Language Models": without noise a model learns
        a small data set by heart.
        """
        share = 2 * self.config.token_noise * rng.random()
        if not share:
            return ids
        end, vocab_size = pretrained.config.special_tokens.eos[0], pretrained.config.vocab_size
        return [token if token == end or rng.random() >= share else rng.randrange(vocab_size) for token in ids]

    def encode_eval(self, row: Mapping[str, Any], pretrained: Pretrained) -> Sequence[Example]:
        """Chunks that overlap by half: every predicted token has half of ``max_length`` before it, if the text has."""
        ids, max_length = self._encode_text(row["text"], pretrained), self.config.max_length
        examples = []
        for start in range(0, max(1, len(ids) - 1 - max_length // 2), max_length - max_length // 2):
            (chunk,) = split_into_chunks(ids[start : start + max_length + 1], max_length)
            overlap = 0 if start == 0 else max_length // 2
            targets = [IGNORE_INDEX] * overlap + chunk["targets"][overlap:]
            examples.append({**chunk, "targets": targets, "location": row["location"]})
        return examples

    def batch(self, examples: Sequence[Example]) -> Batch:
        """Chunks as one packed row."""
        return pack_examples(examples)

    def predict(self, model: nn.Module, tensors: Mapping[str, Tensor]) -> tuple[LinearLogits | Tensor, Tensor]:
        """The decoder's logits of each next token."""
        assert isinstance(model, Decoder)
        *_, hidden_states = model.hidden_states(
            tensors["ids"], None, mask.documents(tensors["documents"]), positions=tensors["positions"]
        )
        return decoder_logits(model, hidden_states[0]), tensors["targets"]

    def metrics(
        self, pretrained: Pretrained, rows: Sequence[Mapping[str, Any]], loss: float, max_samples: int
    ) -> dict[str, float]:
        """Bits for each byte of the eval texts, their end tokens included, and the perplexity of a token."""
        num_tokens = sum(len(self._encode_text(row["text"], pretrained)) - 1 for row in rows)
        num_bytes = sum(len(row["text"].encode()) for row in rows)
        bits_per_byte = loss * num_tokens / num_bytes / math.log(2)
        return {"bits_per_byte": bits_per_byte, "perplexity": math.exp(min(loss, 700.0))}

    def samples(self, pretrained: Pretrained, rows: Sequence[Mapping[str, Any]]) -> list[EvalSample]:
        """The model's continuation of the first tokens of each text."""
        samples = []
        for row in rows:
            ids = pretrained.encode_continuation(row["text"])[: min(16, self.config.max_length // 2)]
            prompt = pretrained.decode(ids)
            max_new_tokens = min(48, self.config.max_length - len(ids) - 1)
            strategy = Sample(temperature=0.8, seed=0)
            continuation = generate(pretrained, prompt, max_new_tokens=max_new_tokens, strategy=strategy)
            samples.append(EvalSample(prompt, "", str(continuation)))
        return samples

    def record_attention(self, pretrained: Pretrained, row: Mapping[str, Any]) -> Recording:
        """The attention of the first tokens of a text."""
        return run(text_prefix(pretrained, row["text"], min(64, self.config.max_length)), pretrained).recording

    def _encode_text(self, text: str, pretrained: Pretrained) -> list[int]:
        end = pretrained.config.special_tokens.eos[0]
        return [end, *pretrained.encode_continuation(text), end]


def split_into_chunks(ids: Sequence[int], max_length: int, first_length: int = 0) -> list[dict[str, list[int]]]:
    """A text as inputs of ``max_length`` tokens at most, each with the token that follows it.

    Args:
        ids: of the text.
        max_length: of an input.
        first_length: of the first chunk; 0: ``max_length``.
    """
    starts = [0, *range(first_length, len(ids) - 1, max_length)] if first_length else range(0, len(ids) - 1, max_length)
    stops = [*starts[1:], len(ids) - 1]
    chunks = []
    for start, stop in zip(starts, stops, strict=True):
        if stop > start:
            chunks.append({"ids": list(ids[start:stop]), "targets": list(ids[start + 1 : stop + 1])})
    return chunks
