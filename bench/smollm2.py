"""SmolLM2-135M's greedy decoding: against transformers, against llama.cpp where it is installed, and its dtypes."""

from __future__ import annotations

import tempfile
from collections.abc import Callable, Iterator
from functools import partial
from importlib.util import find_spec
from pathlib import Path
from typing import Any

import torch
import transformers
from torch import Tensor

import regard
from bench.embedding import sentences
from bench.generation import NEW, bandwidth, read_per_step
from bench.table import Row
from bench.timing import medians
from regard.pretrained import Pretrained
from regard.pretrained.offline import SMOLLM2, SMOLLM2_FILE

MODEL = "SmolLM2-135M"
PROMPT = "The capital of France is Paris, a city on the Seine. Two thousand years ago, when the Romans came there,"
DTYPES = (torch.float32, torch.bfloat16, torch.float16)
PROMPTS, AGREEMENT_TOKENS = 100, 20


def decoding() -> Iterator[Row]:
    """One prompt, 64 new tokens, the prompt's own time included; in turn, so that all have the same spells."""
    models = {dtype: regard.load("smollm2", dtype=dtype) for dtype in DTYPES}
    ids = torch.tensor(models[torch.float32].encode(PROMPT).ids)
    ours = [partial(_write, model, ids) for model in models.values()]
    theirs = [_transformers(model, dtype, ids) for dtype, model in models.items()]
    if ours[0]().tolist() != theirs[0]().tolist():
        raise AssertionError("not the same tokens as transformers")
    calls: list[Callable[[], object]] = [*ours, *theirs, *([_llama_cpp(ids)] if find_spec("llama_cpp") else [])]
    read, size = bandwidth()
    *times, reading = medians(*calls, read, rounds=7)
    bars = ("1.5x", "1.5x", "")
    for dtype, mine, its, bar in zip(DTYPES, times, times[len(ours) :], bars, strict=False):
        floor = read_per_step(models[dtype].model) / (size / reading) * NEW  # type: ignore[arg-type]
        yield Row(f"{MODEL}, {_name(dtype)}", "transformers, sdpa", f"{its / mine:.2f}x", bar, f"{floor / mine:.0%}")
    for dtype, mine in zip(DTYPES[1:], times[1:], strict=False):
        yield Row(f"{MODEL}, {_name(dtype)}", "regard, float32", f"{times[0] / mine:.2f}x")
    if len(times) > 2 * len(DTYPES):
        for dtype, mine in zip(DTYPES, times, strict=False):
            yield Row(f"{MODEL}, {_name(dtype)}", "llama.cpp, 4 bits", f"{times[-1] / mine:.2f}x")


def agreement() -> Iterator[Row]:
    """How many of 100 prompts half precision continues with the same 20 tokens as float32."""
    expected: list[list[int]] = []
    for dtype in DTYPES:
        model = regard.load("smollm2", dtype=dtype)
        texts = [_continuation(model, sentence) for sentence in sentences(PROMPTS)]
        expected = expected or texts
        same = sum(text == other for text, other in zip(texts, expected, strict=True))
        if dtype != torch.float32:
            case = f"{MODEL}, {_name(dtype)}: the same {AGREEMENT_TOKENS} tokens"
            yield Row(case, "regard, float32", f"{same} of {len(texts)} prompts")


def _write(model: Pretrained, ids: Tensor, *, max_new_tokens: int = NEW) -> Tensor:
    return regard.generate(model, ids, max_new_tokens=max_new_tokens, stop=())  # type: ignore[return-value]


def _continuation(model: Pretrained, sentence: str) -> list[int]:
    ids = model.encode(sentence).ids
    return _write(model, torch.tensor(ids), max_new_tokens=AGREEMENT_TOKENS).tolist()[len(ids) :]


def _transformers(model: Pretrained, dtype: torch.dtype, ids: Tensor) -> Callable[[], Tensor]:
    """The same weights in transformers. Its dynamic cache, the default, is as fast as its static one."""
    with tempfile.TemporaryDirectory() as folder:
        model.save(Path(folder))
        theirs: Any = transformers.AutoModelForCausalLM.from_pretrained(folder, dtype=dtype, attn_implementation="sdpa")
    options = {"max_new_tokens": NEW, "min_new_tokens": NEW, "do_sample": False, "pad_token_id": 0}

    @torch.inference_mode()
    def write() -> Tensor:
        return theirs.generate(ids[None], attention_mask=torch.ones_like(ids)[None], **options)[0]  # type: ignore[no-any-return]

    return write


def _llama_cpp(ids: Tensor) -> Callable[[], object]:
    """llama.cpp on the file itself, with as many threads."""
    from llama_cpp import Llama  # type: ignore[import-not-found]

    threads = torch.get_num_threads()
    path = str(SMOLLM2.path / SMOLLM2_FILE)
    theirs = Llama(path, n_ctx=512, n_threads=threads, n_threads_batch=threads, verbose=False)

    def write() -> object:
        theirs.reset()
        return [token for _, token in zip(range(NEW), theirs.generate(ids.tolist(), temp=0.0), strict=False)]

    return write


def _name(dtype: torch.dtype) -> str:
    return str(dtype).removeprefix("torch.")
