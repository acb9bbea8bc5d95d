"""Pairs of texts: an encoder-decoder reads one and writes the other."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any, ClassVar

import torch
from torch import Tensor, nn

from regard.attention import mask
from regard.errors import InputError
from regard.generation import Greedy, translate
from regard.lens import Recording
from regard.lens.text.run import run
from regard.pretrained import Pretrained
from regard.pretrained.initialize import initialize_model
from regard.training import data as kept
from regard.training.data import Data
from regard.training.loss import Logits, logits_of
from regard.training.packing import packed
from regard.training.shuffling import Example
from regard.training.tasks.task import Batch, Sample, Task, exact, tokens
from regard.training.tokenizers import trained
from regard.transformer import EncoderDecoder

__all__ = ["Translate"]

STOP, PAD = "</s>", "<pad>"


class Translate(Task):
    """The paper's own model and task (Vaswani et al. 2017, figure 1 and section 5), in the format of Marian."""

    name = "translate"
    kind = "encoder-decoder"
    defaults: ClassVar[Mapping[str, Any]] = {
        "layers": 2,
        "d_model": 128,
        "heads": 4,
        "d_ff": 512,
        "context": 128,
        "vocab_size": 2_000,
        "dropout": 0.1,
        "steps": 1_000,
        "batch_size": 128,
        "lr": 2e-3,
        "warm_up": 100,
        "weight_decay": 0.01,
        "label_smoothing": 0.1,
        "evaluate_every": 250,
    }

    @staticmethod
    def data(paths: Sequence[str | Path], held_out: str | Path | None) -> Data:
        """Pairs."""
        return kept.pairs(paths, held_out=held_out)

    def begin(self, folder: Path, data: Data) -> Pretrained:
        """One vocabulary for both sides, so that they share their token vectors (paper, section 3.4)."""
        wanted = self.settings

        def texts() -> Iterator[str]:
            for row in data.train:
                yield from (row["source"], row["target"])

        tokenizer = trained(texts(), vocab_size=wanted.vocab_size, special=(STOP, PAD), stop=STOP)
        size = tokenizer.get_vocab_size()
        stop, pad = tokenizer.token_to_id(STOP), tokenizer.token_to_id(PAD)
        settings = {
            "model_type": "marian",
            "architectures": ["MarianMTModel"],
            "vocab_size": size,
            "decoder_vocab_size": size,
            "d_model": wanted.d_model,
            "encoder_layers": wanted.layers,
            "decoder_layers": wanted.layers,
            "encoder_attention_heads": wanted.heads,
            "decoder_attention_heads": wanted.heads,
            "encoder_ffn_dim": wanted.d_ff,
            "decoder_ffn_dim": wanted.d_ff,
            "max_position_embeddings": wanted.context,
            "activation_function": "relu",
            "scale_embedding": True,
            "static_position_embeddings": True,
            "normalize_embedding": False,
            "share_encoder_decoder_embeddings": True,
            "tie_word_embeddings": True,
            "dropout": wanted.dropout,
            "eos_token_id": stop,
            "pad_token_id": pad,
            "decoder_start_token_id": pad,
            "forced_eos_token_id": stop,
        }
        return initialize_model(folder, settings, tokenizer, seed=wanted.seed)

    def encode(self, row: Mapping[str, Any], epoch: int, model: Pretrained) -> Sequence[Example]:
        """The one example of a pair."""
        sides = [tokens(model, row["source"]), tokens(model, row["target"], target=True)]
        for side, ids in zip(("source", "target"), sides, strict=True):
            if len(ids) > self.settings.context:
                if self.settings.skip_long:
                    return []
                raise InputError(
                    f"{row['where']}: the {side} has {len(ids)} tokens, and the model has positions for "
                    f"{self.settings.context}. Give --context {len(ids)}, or leave such pairs out by --skip-long"
                )
        source, target = sides
        start = model.config.special_tokens.decoder_start
        assert start is not None
        return [{"source": source, "ids": [start, *target[:-1]], "targets": target, "where": row["where"]}]

    def held_out(self, row: Mapping[str, Any], model: Pretrained) -> Sequence[Example]:
        """The same."""
        return self.encode(row, 0, model)

    def batch(self, examples: Sequence[Example]) -> Batch:
        """Pairs as two packed rows."""
        examples = sorted(examples, key=lambda example: (len(example["source"]), len(example["ids"])))
        source = packed([example["source"] for example in examples])
        target = packed([example["ids"] for example in examples])
        targets = torch.tensor([token for example in examples for token in example["targets"]])
        tensors = {f"source_{name}": tensor for name, tensor in source._asdict().items()}
        tensors |= {**target._asdict(), "targets": targets}
        read = source.ids.numel() + target.ids.numel()
        return Batch(tensors, len(targets), read, tuple(example["where"] for example in examples))

    def predict(self, model: nn.Module, tensors: Mapping[str, Tensor]) -> tuple[Logits | Tensor, Tensor]:
        """What the decoder says of each token of the targets."""
        assert isinstance(model, EncoderDecoder)
        sources, documents = tensors["source_documents"], tensors["documents"]
        context = model.encoder(
            tensors["source_ids"], mask=mask.documents(sources), positions=tensors["source_positions"]
        )
        *_, vectors = model.decoder.hidden_states(
            tensors["ids"],
            None,
            mask.documents(documents),
            positions=tensors["positions"],
            context=context,
            context_mask=mask.documents(documents, sources),
        )
        return logits_of(model.decoder, vectors[0]), tensors["targets"]

    def judge(self, model: Pretrained, rows: Sequence[Mapping[str, Any]], loss: float, most: int) -> dict[str, float]:
        """The share of rows that are written as they stand in the data."""
        return {"exact": exact(self.samples(model, rows[:most]))}

    def samples(self, model: Pretrained, rows: Sequence[Mapping[str, Any]]) -> list[Sample]:
        """Translations, cut off where they are much longer than any that is wanted."""
        rows = [row for row in rows if len(tokens(model, row["source"])) <= self.settings.context]
        longest = max((len(tokens(model, row["target"], target=True)) for row in rows), default=1)
        most = min(longest + 8, self.settings.context)
        sources = [row["source"] for row in rows]
        written = translate(model, sources, strategy=Greedy(), max_new_tokens=most, batch_size=64)
        return [Sample(row["source"], row["target"], said) for row, said in zip(rows, written, strict=True)]

    def watched(self, model: Pretrained, row: Mapping[str, Any]) -> Recording:
        """The translation that stands in the data, read with the source."""
        return run(row["source"], model, target=row["target"]).recording
