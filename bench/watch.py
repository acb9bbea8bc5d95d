"""Watching against not watching, and against the maps that transformers gives out."""

from __future__ import annotations

import time
from collections.abc import Iterator

import torch
import transformers
from torch import Tensor, nn

import regard
from bench.table import Row
from bench.timing import medians, peak_mb
from regard.transformer import Config, Encoder

QUESTIONS = """
for m in seen.values():
    m.ask("entropy", "received", "distance", mass=torch.arange(m.shape[-1]) % 64, top=8, pooled=(512, 512))
"""
BERT = """
import transformers, regard
config = transformers.BertConfig(num_hidden_layers=2, max_position_embeddings={tokens})
model = transformers.BertModel(config, add_pooling_layer=False).eval()
ids = torch.randint(config.vocab_size, (1, {tokens}), generator=torch.Generator().manual_seed(0))
"""
OURS = """
def all_of_it():
    with torch.inference_mode():
        with regard.watch(model) as seen:
            model(ids)
{questions}
"""
THEIRS = """
model.set_attn_implementation("eager")
def all_of_it():
    with torch.inference_mode():
        return model(ids, output_attentions=True).attentions
"""


def _bert(layers: int, tokens: int, batch: int, **changes: int) -> tuple[nn.Module, Tensor]:
    config = transformers.BertConfig(num_hidden_layers=layers, max_position_embeddings=tokens, **changes)
    model = transformers.BertModel(config, add_pooling_layer=False).eval()
    return model, torch.randint(config.vocab_size, (batch, tokens), generator=torch.Generator().manual_seed(0))


def forward() -> Iterator[Row]:
    """A forward pass, watched and not, bit for bit the same."""
    small = {"hidden_size": 384, "num_attention_heads": 12, "intermediate_size": 1536}
    cases = [
        ("forward under watch: MiniLM, 8 texts of 256 tokens", _minilm(), 25),
        ("forward under watch: 12 layers of 768, 4,096 tokens", _encoder(), 5),
        ("the same, in transformers: MiniLM's shape", _bert(6, 256, 8, **small), 25),
        ("the same, in transformers: 12 layers of 768", _bert(12, 4096, 1), 5),
    ]
    for case, (model, ids), rounds in cases:

        def alone(model: nn.Module = model, ids: Tensor = ids) -> object:
            with torch.inference_mode():
                return model(ids)

        def watched(model: nn.Module = model, ids: Tensor = ids) -> object:
            with torch.inference_mode(), regard.watch(model):
                return model(ids)

        before, after = (getattr(out, "last_hidden_state", out) for out in (alone(), watched()))
        if not torch.equal(before, after):
            raise AssertionError(f"{case}: watching changed the output")
        plain, seen = medians(alone, watched, rounds=rounds)
        yield Row(case, "forward alone", f"{seen / plain:.3f}x time", "1.02x at most")


def _minilm() -> tuple[nn.Module, Tensor]:
    model = regard.load().model
    return model, torch.randint(30_000, (8, 256), generator=torch.Generator().manual_seed(0))  # type: ignore[return-value]


def _encoder() -> tuple[nn.Module, Tensor]:
    config = Config(vocab_size=1000, d_model=768, num_layers=12, num_heads=12, d_ff=3072)
    return Encoder(config).eval(), torch.randint(1000, (1, 4096), generator=torch.Generator().manual_seed(0))


def against_eager(tokens: int = 8192) -> Iterator[Row]:
    """A 2-layer BERT: forward and all questions, against the maps alone from the eager model."""
    setup = BERT.format(tokens=tokens)
    ours = setup + OURS.format(questions=QUESTIONS.replace("\n", "\n    "))
    theirs = setup + THEIRS
    rounds = 3
    spent: list[list[float]] = [[], []]
    for _ in range(rounds):
        for code, taken in zip((ours, theirs), spent, strict=True):
            space: dict[str, object] = {"torch": torch}
            exec(code, space)
            call = space["all_of_it"]
            start = time.perf_counter()
            call()  # type: ignore[operator]
            taken.append(time.perf_counter() - start)
    mine, other = (sorted(taken)[rounds // 2] for taken in spent)
    against = "eager with output_attentions, the maps only"
    case = f"2-layer BERT, {tokens:,} tokens: forward and every question"
    yield Row(case, against, f"{mine / other:.2f}x time", "0.7x at most")
    memory, others = (peak_mb(code + "\nall_of_it()") for code in (ours, theirs))
    yield Row(f"{case}, memory: {memory:,.0f} MiB", against, f"{memory / others:.3f}x memory", "1/8 (0.125x) at most")
