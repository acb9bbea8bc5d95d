"""Translation: an encoder-decoder reads the source of a pair of texts and generates the target."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn

from regard.attention import mask
from regard.errors import InputError
from regard.generation import Greedy, translate
from regard.lens import Recording
from regard.lens.text.run import run
from regard.pretrained import Pretrained
from regard.pretrained.initialize import initialize_model
from regard.training.data import TrainingData, pairs
from regard.training.loss import LinearLogits, decoder_logits
from regard.training.tasks.batch import Batch, Example, pack
from regard.training.tasks.task import EvalSample, Task, encode_text, exact_match
from regard.training.tokenizers import train_bpe
from regard.transformer import EncoderDecoder

EOS, PAD = "</s>", "<pad>"


class TranslationTask(Task):
    """The model and the task of the paper (Vaswani et al. 2017, figure 1 and section 5), in the format of Marian."""

    name = "translate"
    kind = "encoder-decoder"

    @staticmethod
    def load_data(paths: Sequence[str | Path], eval_file: str | Path | None) -> TrainingData:
        """Pairs of texts."""
        return pairs(paths, eval_file=eval_file)

    def init_model(self, folder: Path, data: TrainingData) -> Pretrained:
        """One vocabulary for both sides, so that they share their token vectors (paper, section 3.4)."""
        config = self.config

        def texts() -> Iterator[str]:
            for row in data.train:
                yield from (row["source"], row["target"])

        tokenizer = train_bpe(texts(), vocab_size=config.vocab_size, special_tokens=(EOS, PAD), eos_token=EOS)
        vocab_size = tokenizer.get_vocab_size()
        eos, pad = tokenizer.token_to_id(EOS), tokenizer.token_to_id(PAD)
        hf_config = {
            "model_type": "marian",
            "architectures": ["MarianMTModel"],
            "vocab_size": vocab_size,
            "decoder_vocab_size": vocab_size,
            "d_model": config.d_model,
            "encoder_layers": config.num_layers,
            "decoder_layers": config.num_layers,
            "encoder_attention_heads": config.num_heads,
            "decoder_attention_heads": config.num_heads,
            "encoder_ffn_dim": config.d_ff,
            "decoder_ffn_dim": config.d_ff,
            "max_position_embeddings": config.max_length,
            "activation_function": "relu",
            "scale_embedding": True,
            "static_position_embeddings": True,
            "normalize_embedding": False,
            "share_encoder_decoder_embeddings": True,
            "tie_word_embeddings": True,
            "dropout": config.dropout,
            "eos_token_id": eos,
            "pad_token_id": pad,
            "decoder_start_token_id": pad,
            "forced_eos_token_id": eos,
        }
        special_tokens = {"eos_token": EOS, "pad_token": PAD}
        return initialize_model(folder, hf_config, tokenizer, special_tokens=special_tokens, seed=config.seed)

    def encode(self, row: Mapping[str, Any], epoch: int, pretrained: Pretrained) -> Sequence[Example]:
        """The one example of a pair."""
        source, target = encode_text(pretrained, row["source"]), encode_text(pretrained, row["target"], target=True)
        for side, ids in (("source", source), ("target", target)):
            if len(ids) > self.config.max_length:
                if self.config.skip_long:
                    return []
                raise InputError(
                    f"{row['location']}: the {side} has {len(ids)} tokens, and the model has positions for "
                    f"{self.config.max_length}. Give max_length={len(ids)}, or skip such pairs with skip_long=True"
                )
        start = pretrained.config.special_tokens.decoder_start
        assert start is not None
        return [{"source": source, "ids": [start, *target[:-1]], "targets": target, "location": row["location"]}]

    def encode_eval(self, row: Mapping[str, Any], pretrained: Pretrained) -> Sequence[Example]:
        """The same."""
        return self.encode(row, 0, pretrained)

    def batch(self, examples: Sequence[Example]) -> Batch:
        """Pairs as two packed rows."""
        examples = sorted(examples, key=lambda example: (len(example["source"]), len(example["ids"])))
        source = pack([example["source"] for example in examples])
        target = pack([example["ids"] for example in examples])
        targets = torch.tensor([token for example in examples for token in example["targets"]])
        tensors = {f"source_{name}": tensor for name, tensor in source._asdict().items()}
        tensors |= {**target._asdict(), "targets": targets}
        num_tokens = source.ids.numel() + target.ids.numel()
        return Batch(tensors, len(targets), num_tokens, tuple(example["location"] for example in examples))

    def predict(self, model: nn.Module, tensors: Mapping[str, Tensor]) -> tuple[LinearLogits | Tensor, Tensor]:
        """The decoder's logits of each token of the targets."""
        assert isinstance(model, EncoderDecoder)
        sources, documents = tensors["source_documents"], tensors["documents"]
        context = model.encoder(
            tensors["source_ids"], mask=mask.documents(sources), positions=tensors["source_positions"]
        )
        *_, hidden_states = model.decoder.hidden_states(
            tensors["ids"],
            None,
            mask.documents(documents),
            positions=tensors["positions"],
            context=context,
            context_mask=mask.documents(documents, sources),
        )
        return decoder_logits(model.decoder, hidden_states[0]), tensors["targets"]

    def metrics(
        self, pretrained: Pretrained, rows: Sequence[Mapping[str, Any]], loss: float, max_samples: int
    ) -> dict[str, float]:
        """The share of rows whose translation is the target."""
        return {"exact_match": exact_match(self.samples(pretrained, rows[:max_samples]))}

    def samples(self, pretrained: Pretrained, rows: Sequence[Mapping[str, Any]]) -> list[EvalSample]:
        """Translations, cut off where they are much longer than the longest target."""
        rows = [row for row in rows if len(encode_text(pretrained, row["source"])) <= self.config.max_length]
        longest = max((len(encode_text(pretrained, row["target"], target=True)) for row in rows), default=1)
        max_new_tokens = min(longest + 8, self.config.max_length)
        sources = [row["source"] for row in rows]
        texts = translate(pretrained, sources, strategy=Greedy(), max_new_tokens=max_new_tokens, batch_size=64)
        return [EvalSample(row["source"], row["target"], text) for row, text in zip(rows, texts, strict=True)]

    def record_attention(self, pretrained: Pretrained, row: Mapping[str, Any]) -> Recording:
        """The attention of the source and the target of the data."""
        return run(row["source"], pretrained, target=row["target"]).recording
