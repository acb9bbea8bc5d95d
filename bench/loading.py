"""Loading the default decoder from its GGUF file, against its weights as safetensors and against transformers."""

from __future__ import annotations

from collections.abc import Iterator
from functools import partial
from pathlib import Path
from tempfile import TemporaryDirectory

import torch
import transformers

import regard
from bench.table import Row
from bench.timing import medians, peak_mb
from regard.pretrained.offline import SMOLLM2, SMOLLM2_FILE

DTYPES = ("float32", "bfloat16")


def loading() -> Iterator[Row]:
    """SmolLM2-135M: 4-bit weights dequantised, the same weights in safetensors, and transformers on the same file."""
    transformers.utils.logging.disable_progress_bar()
    theirs = partial(transformers.AutoModelForCausalLM.from_pretrained, SMOLLM2.path, gguf_file=SMOLLM2_FILE)
    with TemporaryDirectory() as folder:
        pretrained = regard.load("smollm2")
        pretrained.save(folder)
        state, reference = pretrained.model.state_dict(), theirs(dtype=torch.float32).state_dict()
        if not torch.equal(state["norm.weight"], reference["model.norm.weight"]):
            raise AssertionError("the two libraries read other weights")
        parameters = sum(parameter.numel() for parameter in pretrained.model.parameters())
        del pretrained, state, reference
        for name in DTYPES:
            dtype = getattr(torch, name)
            calls = (
                partial(regard.load, "smollm2", dtype=dtype),
                partial(regard.load, folder, dtype=dtype),
                partial(theirs, dtype=dtype),
            )
            ours, from_safetensors, by_transformers = medians(*calls, rounds=5, warm=False)
            case = f"smollm2 from GGUF, {name}"
            yield Row(
                case, "the same weights from safetensors, regard", f"{from_safetensors / ours:.2f}x", "1/3 (0.33x)"
            )
            yield Row(case, "transformers, from_pretrained(gguf_file=...)", f"{by_transformers / ours:.1f}x")
            size = parameters * dtype.itemsize / 2**20
            for source, place in (("GGUF", "smollm2"), ("safetensors", folder)):
                peak = _peak(place, name)
                against = f"the model: {size:.0f} MiB"
                yield Row(f"smollm2 from {source}, {name}: peak memory", against, f"{peak / size:.2f}x")


def _peak(place: str | Path, dtype: str) -> float:
    """MiB by which loading makes a process grow that has imported all that it needs."""
    return peak_mb(f"import gguf, regard\nregard.load\nkept = regard.load({str(place)!r}, dtype=torch.{dtype})")
