"""Image captioning: an encoder reads an image, and a decoder generates its caption."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

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
from regard.training.data import TrainingData, images
from regard.training.loss import LinearLogits, decoder_logits
from regard.training.tasks.batch import Batch, Example, pack_examples
from regard.training.tasks.task import EvalSample, Task, exact_match
from regard.training.tokenizers import train_bpe
from regard.transformer import EncoderDecoder

END = "<|end|>"
MAX_IMAGE_SIZE, MAX_PATCH_SIZE = 224, 16
"""The largest defaults of the image size and the patch size (Dosovitskiy et al. 2021, table 1 and section 4.1)."""


class CaptioningTask(Task):
    """A Vision Transformer and a GPT-2 with cross-attention to it, in the format of ``vision-encoder-decoder``."""

    name = "caption"
    kind = "encoder-decoder"
    modality = "images"

    @staticmethod
    def load_data(paths: Sequence[str | Path], eval_file: str | Path | None) -> TrainingData:
        """Images with captions."""
        return images(paths, eval_file=eval_file)

    def init_model(self, folder: Path, data: TrainingData) -> Pretrained:
        """A ViT and a GPT-2 of one width."""
        config = self.config
        tokenizer = train_bpe((row["text"] for row in data.train), vocab_size=config.vocab_size, special_tokens=(END,))
        end, image = tokenizer.token_to_id(END), np.asarray(data.eval_rows[0]["image"])
        image_size = config.image_size or min(MAX_IMAGE_SIZE, max(image.shape[:2]))
        patch_size = config.patch_size or max(1, min(MAX_PATCH_SIZE, image_size // 4))
        if config.image_size is None:
            image_size = -(-image_size // patch_size) * patch_size
        if image_size % patch_size:
            raise InputError(f"image_size={image_size} does not divide into patches of patch_size={patch_size}")
        num_channels = 1 if image.ndim == 2 else 3
        encoder = {
            "model_type": "vit",
            "hidden_size": config.d_model,
            "num_hidden_layers": config.num_layers,
            "num_attention_heads": config.num_heads,
            "intermediate_size": config.d_ff,
            "image_size": image_size,
            "patch_size": patch_size,
            "num_channels": num_channels,
            "hidden_dropout_prob": config.dropout,
            "attention_probs_dropout_prob": 0.0,
        }
        decoder = {
            "model_type": "gpt2",
            "add_cross_attention": True,
            "is_decoder": True,
            "vocab_size": tokenizer.get_vocab_size(),
            "n_embd": config.d_model,
            "n_layer": config.num_layers,
            "n_head": config.num_heads,
            "n_inner": config.d_ff,
            "n_positions": config.max_length,
            "resid_pdrop": config.dropout,
            "attn_pdrop": 0.0,
            "bos_token_id": end,
            "eos_token_id": end,
        }
        hf_config = {
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
            "size": {"height": image_size, "width": image_size},
            "image_mean": [0.5] * num_channels,
            "image_std": [0.5] * num_channels,
        }
        return initialize_model(
            folder,
            hf_config,
            tokenizer,
            special_tokens={"bos_token": END, "eos_token": END, "pad_token": END},
            seed=config.seed,
            side_files={PREPROCESSOR_FILE: pixels},
        )

    def encode(self, row: Mapping[str, Any], epoch: int, pretrained: Pretrained) -> Sequence[Example]:
        """The one example of an image."""
        special = pretrained.config.special_tokens
        targets = [*pretrained.encode_continuation(row["text"]), special.eos[0]]
        if len(targets) > self.config.max_length:
            if self.config.skip_long:
                return []
            raise InputError(
                f"{row['location']}: the text has {len(targets)} tokens, and the model has positions for "
                f"{self.config.max_length}. Give max_length={len(targets)}, or skip such texts with skip_long=True"
            )
        pixels = pretrained.pixel_values(np.asarray(row["image"], dtype=np.uint8))[0].cpu().numpy()
        ids = [special.decoder_start, *targets[:-1]]
        return [{"pixels": pixels, "ids": ids, "targets": targets, "location": row["location"]}]

    def encode_eval(self, row: Mapping[str, Any], pretrained: Pretrained) -> Sequence[Example]:
        """The same."""
        return self.encode(row, 0, pretrained)

    def batch(self, examples: Sequence[Example]) -> Batch:
        """Images, which are all of one size, and their captions as one packed row."""
        examples = sorted(examples, key=lambda example: len(example["ids"]))
        pixels = torch.stack([torch.as_tensor(np.asarray(example["pixels"])) for example in examples])
        captions = pack_examples(examples)
        return replace(captions, tensors={"pixels": pixels, **captions.tensors})

    def predict(self, model: nn.Module, tensors: Mapping[str, Tensor]) -> tuple[LinearLogits | Tensor, Tensor]:
        """The decoder's logits of each token, which attends to its own image."""
        assert isinstance(model, EncoderDecoder)
        patches = model.encoder(tensors["pixels"])
        num_images, num_patches, _ = patches.shape
        documents = tensors["documents"]
        sources = torch.arange(num_images, device=patches.device).repeat_interleave(num_patches)[None]
        *_, hidden_states = model.decoder.hidden_states(
            tensors["ids"],
            None,
            mask.documents(documents),
            positions=tensors["positions"],
            context=patches.flatten(0, 1)[None],
            context_mask=mask.documents(documents, sources),
        )
        return decoder_logits(model.decoder, hidden_states[0]), tensors["targets"]

    def metrics(
        self, pretrained: Pretrained, rows: Sequence[Mapping[str, Any]], loss: float, max_samples: int
    ) -> dict[str, float]:
        """The share of images whose generated caption is that of the data."""
        return {"exact_match": exact_match(self.samples(pretrained, rows[:max_samples]))}

    def samples(self, pretrained: Pretrained, rows: Sequence[Mapping[str, Any]]) -> list[EvalSample]:
        """The captions that the model generates."""
        samples = []
        for start in range(0, len(rows), 64):
            chunk = rows[start : start + 64]
            longest = max(len(pretrained.encode_continuation(row["text"])) for row in chunk) + 1
            pixels = [np.asarray(row["image"], dtype=np.uint8) for row in chunk]
            max_new_tokens = min(longest + 4, self.config.max_length)
            captions = generate(pretrained, pixels, max_new_tokens=max_new_tokens, strategy=Greedy())
            samples += [
                EvalSample(row["location"], row["text"], caption) for row, caption in zip(chunk, captions, strict=True)
            ]
        return samples

    @torch.no_grad()
    def record_attention(self, pretrained: Pretrained, row: Mapping[str, Any]) -> Recording:
        """The attention of the image and the caption of the data."""
        (example,) = self.encode(row, 0, pretrained)
        pixels = torch.as_tensor(np.asarray(example["pixels"]), device=pretrained.device)[None]
        ids = torch.tensor([example["ids"]], device=pretrained.device)
        with watch(pretrained.model) as recording:
            pretrained.model(pixels, ids)
        assert pretrained.config.patches is not None
        inputs, targets = ([_token_text(pretrained, token) for token in example[key]] for key in ("ids", "targets"))
        patches = pretrained.config.patches.token_names
        for path in recording:
            entry = recording.entry(path)
            if entry.kind == "cross":
                entry.label((targets, patches))
            else:
                entry.label((inputs, inputs) if entry.stack.startswith("decoder") else (patches, patches))
        return recording


def _token_text(pretrained: Pretrained, token: int) -> str:
    assert pretrained.tokenizer is not None
    return pretrained.decode([token]) or str(pretrained.tokenizer.id_to_token(token))
