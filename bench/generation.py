"""Generation against transformers' own, on the same random weights: tokens per second, and how far from the floor."""

from __future__ import annotations

import tempfile
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import torch
import transformers
from torch import Tensor, nn

import regard
from bench.table import Row
from bench.timing import medians
from regard.pretrained import Pretrained
from regard.transformer import Decoder, EncoderDecoder

NEW = 64
SMALL = {"n_layer": 6, "n_head": 6, "n_embd": 384}


def _gpt2(dtype: torch.dtype = torch.float32, **changes: Any) -> tuple[Pretrained, transformers.PreTrainedModel]:
    # Without a stop token every run has the same length.
    config = transformers.GPT2Config(**{"bos_token_id": None, "eos_token_id": None, **changes})
    return _both(transformers.GPT2LMHeadModel(config), dtype)


def _both(
    theirs: transformers.PreTrainedModel, dtype: torch.dtype = torch.float32
) -> tuple[Pretrained, transformers.PreTrainedModel]:
    """The same weights in both libraries."""
    theirs = theirs.to(dtype).eval()
    with tempfile.TemporaryDirectory() as folder:
        theirs.save_pretrained(folder)
        return regard.load(Path(folder), dtype=dtype), theirs


def bandwidth() -> tuple[Callable[[], object], int]:
    """Reading memory that no cache holds; and how many bytes it reads."""
    numbers = torch.ones(128 * 2**20)
    return numbers.sum, numbers.numel() * 4


def read_per_step(model: Decoder | EncoderDecoder) -> int:
    """Bytes of weights that one more token needs: all but the rows that are looked up, and no encoder."""
    decoder = model.decoder if isinstance(model, EncoderDecoder) else model
    looked_up = sum(p.numel() for p in decoder.embeddings.parameters()) if decoder.lm_head is not None else 0
    if decoder.lm_head is None and decoder.embeddings.position is not None:
        looked_up = decoder.embeddings.position.weight.numel()
    size = next(decoder.parameters()).element_size()
    return (sum(p.numel() for p in decoder.parameters()) - looked_up) * size


def _row(
    case: str, bar: str, model: Pretrained, ours: Callable[[], object], theirs: Callable[[], object], rounds: int = 5
) -> Row:
    read, size = bandwidth()
    mine, other, reading = medians(ours, theirs, read, rounds=rounds)
    floor = read_per_step(model.model) / (size / reading) * NEW  # type: ignore[arg-type]
    return Row(case, "transformers generate", f"{other / mine:.2f}x", bar, f"{floor / mine:.0%}")


def _prompt(tokens: int, batch: int = 1, vocab_size: int = 65) -> Tensor:
    return torch.randint(vocab_size, (batch, tokens), generator=torch.Generator().manual_seed(0))


@torch.inference_mode()
def _same(ours: Tensor, theirs: Tensor, case: str) -> None:
    if ours.shape != theirs.shape or not torch.equal(ours, theirs):
        raise AssertionError(f"{case}: not the same tokens as transformers")


def greedy() -> Iterator[Row]:
    """One prompt of 32 tokens, 64 new ones."""
    cases: list[tuple[str, str, dict[str, Any], torch.dtype]] = [
        ("greedy, GPT-2 124M shape, float32", "1.2x", {}, torch.float32),
        ("greedy, GPT-2 124M shape, bfloat16", "1.3x", {}, torch.bfloat16),
        (
            "greedy, 6 layers, d_model 384, 65 tokens (nanoGPT's characters)",
            "3x",
            {**SMALL, "vocab_size": 65},
            torch.float32,
        ),
        ("greedy, 6 layers, d_model 384, 50,257 tokens", "3x", SMALL, torch.float32),
    ]
    for case, bar, changes, dtype in cases:
        pretrained, theirs = _gpt2(dtype, **changes)
        yield _against(case, bar, pretrained, theirs, _prompt(32), regard.Greedy(), {}, exact=dtype == torch.float32)


def beams() -> Iterator[Row]:
    """Beam search."""
    pretrained, theirs = _gpt2()
    yield _against(
        "beam 4, GPT-2 124M shape",
        "1.5x",
        pretrained,
        theirs,
        _prompt(32),
        regard.Beam(num_beams=4),
        {"num_beams": 4},
        rounds=3,
    )
    yield _marian()


def _against(
    case: str,
    bar: str,
    pretrained: Pretrained,
    theirs: Any,
    ids: Tensor,
    strategy: Any,
    options: dict[str, Any],
    *,
    exact: bool = True,
    rounds: int = 5,
) -> Row:
    def ours() -> Tensor:
        return regard.generate(pretrained, ids, max_new_tokens=NEW, strategy=strategy)  # type: ignore[return-value]

    def other() -> Tensor:
        with torch.inference_mode():
            return theirs.generate(  # type: ignore[no-any-return]
                ids,
                attention_mask=torch.ones_like(ids),
                max_new_tokens=NEW,
                do_sample=False,
                pad_token_id=0,
                **options,
            )

    if exact:
        _same(ours(), other(), case)
    return _row(case, bar, pretrained, ours, other, rounds)


def _marian() -> Row:
    """16 sources of 8 to 64 tokens."""
    config = transformers.MarianConfig(
        vocab_size=58_101,
        d_model=512,
        encoder_layers=6,
        decoder_layers=6,
        encoder_attention_heads=8,
        decoder_attention_heads=8,
        encoder_ffn_dim=2048,
        decoder_ffn_dim=2048,
        activation_function="swish",
        scale_embedding=True,
        forced_eos_token_id=None,
    )
    pretrained, theirs = _both(transformers.MarianMTModel(config))
    lengths = torch.linspace(8, 64, 16).long()
    sources = [_prompt(int(n), vocab_size=58_000)[0] + 1 for n in lengths]
    padded = nn.utils.rnn.pad_sequence(sources, batch_first=True, padding_value=58_100)
    real = (torch.arange(64) < lengths[:, None]).long()
    listed = [source.tolist() for source in sources]

    def ours() -> object:
        return regard.generate(pretrained, listed, max_new_tokens=NEW, strategy=regard.Beam(num_beams=4))

    def other() -> object:
        with torch.inference_mode():
            return theirs.generate(
                padded, attention_mask=real, max_new_tokens=NEW, num_beams=4, do_sample=False, bad_words_ids=None
            )

    return _row(
        "beam 4, Marian shape (6+6 layers of 512), 16 sources of 8 to 64 tokens", "2x", pretrained, ours, other, 3
    )


def prefill() -> Iterator[Row]:
    """A prompt of 4,096 tokens, until its first new token is known."""
    pretrained, theirs = _gpt2(n_positions=8192)
    ids = _prompt(4096)

    def other() -> object:
        with torch.inference_mode():
            return theirs.generate(
                ids, attention_mask=torch.ones_like(ids), max_new_tokens=1, do_sample=False, pad_token_id=0
            )

    mine, its = medians(lambda: regard.generate(pretrained, ids, max_new_tokens=1), other, rounds=5)
    yield Row("prompt of 4,096 tokens, GPT-2 124M shape", "transformers, sdpa", f"{its / mine:.2f}x", "1.0x")
