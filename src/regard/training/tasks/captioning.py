"""Images and what is said of them: one kind of encoder for the image, a decoder for the words."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any, ClassVar

import numpy as np
import torch
from torch import Tensor, nn

from regard.attention import mask
from regard.errors import InputError
from regard.generation import Greedy, generate
from regard.lens import Recording
from regard.lens.watch import watch
from regard.pretrained import Pretrained
from regard.pretrained.image_processor import PREPROCESSOR_FILE
from regard.pretrained.initialize import initialize_model
from regard.training import data as kept
from regard.training.data import Data
from regard.training.loss import Logits, logits_of
from regard.training.shuffling import Example
from regard.training.tasks.task import Batch, Sample, Task, exact, in_one_row
from regard.training.tokenizers import trained
from regard.transformer import EncoderDecoder

__all__ = ["Caption"]

END = "<|end|>"
LARGEST, COARSEST = 224, 16
"""Sides of images and patches, at most, where nobody says them (Dosovitskiy et al. 2021, table 1 and section 4.1)."""


class Caption(Task):
    """A Vision Transformer that a GPT-2 attends to, in the format of ``vision-encoder-decoder``."""

    name = "caption"
    kind = "encoder-decoder"
    reads = "images"
    defaults: ClassVar[Mapping[str, Any]] = {
        "layers": 3,
        "d_model": 96,
        "heads": 4,
        "d_ff": 384,
        "context": 32,
        "vocab_size": 300,
        "dropout": 0.2,
        "steps": 1_000,
        "batch_size": 64,
        "lr": 1e-3,
        "warm_up": 50,
        "weight_decay": 0.05,
        "evaluate_every": 250,
    }

    @staticmethod
    def data(paths: Sequence[str | Path], held_out: str | Path | None) -> Data:
        """Images with texts."""
        return kept.images(paths, held_out=held_out)

    def begin(self, folder: Path, data: Data) -> Pretrained:
        """A ViT and a GPT-2 of one width."""
        wanted = self.settings
        tokenizer = trained((row["text"] for row in data.train), vocab_size=wanted.vocab_size, special=(END,))
        end, image = tokenizer.token_to_id(END), np.asarray(data.held_out[0]["image"])
        side = wanted.image_size or min(LARGEST, max(image.shape[:2]))
        patch = wanted.patch_size or max(1, min(COARSEST, side // 4))
        if wanted.image_size is None:
            side = -(-side // patch) * patch
        if side % patch:
            raise InputError(f"--image-size {side} does not divide into patches of --patch-size {patch}")
        channels = 1 if image.ndim == 2 else 3
        encoder = {
            "model_type": "vit",
            "hidden_size": wanted.d_model,
            "num_hidden_layers": wanted.layers,
            "num_attention_heads": wanted.heads,
            "intermediate_size": wanted.d_ff,
            "image_size": side,
            "patch_size": patch,
            "num_channels": channels,
            "hidden_dropout_prob": wanted.dropout,
            "attention_probs_dropout_prob": 0.0,
        }
        decoder = {
            "model_type": "gpt2",
            "add_cross_attention": True,
            "is_decoder": True,
            "vocab_size": tokenizer.get_vocab_size(),
            "n_embd": wanted.d_model,
            "n_layer": wanted.layers,
            "n_head": wanted.heads,
            "n_inner": wanted.d_ff,
            "n_positions": wanted.context,
            "resid_pdrop": wanted.dropout,
            "attn_pdrop": 0.0,
            "bos_token_id": end,
            "eos_token_id": end,
        }
        settings = {
            "model_type": "vision-encoder-decoder",
            "architectures": ["VisionEncoderDecoderModel"],
            "is_encoder_decoder": True,
            "encoder": encoder,
            "decoder": decoder,
            "decoder_start_token_id": end,
            "eos_token_id": end,
            "pad_token_id": end,
        }
        pixels = {
            "image_processor_type": "ViTImageProcessor",
            "size": {"height": side, "width": side},
            "image_mean": [0.5] * channels,
            "image_std": [0.5] * channels,
        }
        return initialize_model(folder, settings, tokenizer, seed=wanted.seed, side_files={PREPROCESSOR_FILE: pixels})

    def encode(self, row: Mapping[str, Any], epoch: int, model: Pretrained) -> Sequence[Example]:
        """The one example of an image."""
        special = model.config.special_tokens
        targets = [*model.encode_continuation(row["text"]), special.eos[0]]
        if len(targets) > self.settings.context:
            if self.settings.skip_long:
                return []
            raise InputError(
                f"{row['where']}: the text has {len(targets)} tokens, and the model has positions for "
                f"{self.settings.context}. Give --context {len(targets)}, or leave such texts out by --skip-long"
            )
        pixels = model.pixel_values(np.asarray(row["image"], dtype=np.uint8))[0].cpu().numpy()
        return [
            {"pixels": pixels, "ids": [special.decoder_start, *targets[:-1]], "targets": targets, "where": row["where"]}
        ]

    def held_out(self, row: Mapping[str, Any], model: Pretrained) -> Sequence[Example]:
        """The same."""
        return self.encode(row, 0, model)

    def batch(self, examples: Sequence[Example]) -> Batch:
        """Images, which are all of one size, and their texts as one packed row."""
        examples = sorted(examples, key=lambda example: len(example["ids"]))
        pixels = torch.stack([torch.as_tensor(np.asarray(example["pixels"])) for example in examples])
        texts = in_one_row(examples)
        return replace(texts, tensors={"pixels": pixels, **texts.tensors})

    def predict(self, model: nn.Module, tensors: Mapping[str, Tensor]) -> tuple[Logits | Tensor, Tensor]:
        """What the decoder says of each token, reading its own image."""
        assert isinstance(model, EncoderDecoder)
        patches = model.encoder(tensors["pixels"])
        images, each, _ = patches.shape
        documents = tensors["documents"]
        sources = torch.arange(images, device=patches.device).repeat_interleave(each)[None]
        *_, vectors = model.decoder.hidden_states(
            tensors["ids"],
            None,
            mask.documents(documents),
            positions=tensors["positions"],
            context=patches.flatten(0, 1)[None],
            context_mask=mask.documents(documents, sources),
        )
        return logits_of(model.decoder, vectors[0]), tensors["targets"]

    def judge(self, model: Pretrained, rows: Sequence[Mapping[str, Any]], loss: float, most: int) -> dict[str, float]:
        """The share of images of which exactly what stands in the data is said."""
        return {"exact": exact(self.samples(model, rows[:most]))}

    def samples(self, model: Pretrained, rows: Sequence[Mapping[str, Any]]) -> list[Sample]:
        """What is said of images."""
        found = []
        for start in range(0, len(rows), 64):
            some = rows[start : start + 64]
            longest = max(len(model.encode_continuation(row["text"])) for row in some) + 1
            images = [np.asarray(row["image"], dtype=np.uint8) for row in some]
            most = min(longest + 4, self.settings.context)
            written = generate(model, images, max_new_tokens=most, strategy=Greedy())
            found += [Sample(row["where"], row["text"], said) for row, said in zip(some, written, strict=True)]
        return found

    @torch.no_grad()
    def watched(self, model: Pretrained, row: Mapping[str, Any]) -> Recording:
        """What is said in the data, read with the image."""
        (example,) = self.encode(row, 0, model)
        pixels = torch.as_tensor(np.asarray(example["pixels"]), device=model.device)[None]
        ids = torch.tensor([example["ids"]], device=model.device)
        with watch(model.model) as recording:
            model.model(pixels, ids)
        assert model.tokenizer is not None
        assert model.config.patches is not None
        read, written = ([_shown(model, token) for token in example[side]] for side in ("ids", "targets"))
        patches = model.config.patches.names
        for path in recording:
            entry = recording.entry(path)
            if entry.kind == "cross":
                entry.label((written, patches))
            else:
                entry.label((read, read) if entry.stack.startswith("decoder") else (patches, patches))
        return recording


def _shown(model: Pretrained, token: int) -> str:
    assert model.tokenizer is not None
    return model.decode([token]) or str(model.tokenizer.id_to_token(token))
