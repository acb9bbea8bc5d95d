"""A recording in a file: safetensors, with every fact that is no tensor as JSON in its header.

What several attentions share (the mask of every layer, a bias, keys and values) is stored once, and shared again when
it is read. Tensors are written as they are, bit for bit, wherever they were; they are read onto the CPU.
"""

from __future__ import annotations

import json
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import replace
from pathlib import Path

import torch
from safetensors import SafetensorError, safe_open
from safetensors.torch import save_file
from torch import Tensor

from regard.errors import InputError
from regard.files import atomic_path, ensure_writable, error_reason
from regard.lens.maps.map import AttentionMap, OutputSample
from regard.lens.maps.summary import AttentionSummary
from regard.lens.recording.tensors import JsonDict, RecordingReader, RecordingWriter

__all__ = ["damage_as_input_error", "map_from_json", "map_to_json", "read", "write"]

FORMAT = "regard recording"
VERSION = 1


def map_to_json(m: AttentionMap | AttentionSummary, writer: RecordingWriter) -> JsonDict:
    """A map or a summary as facts, its tensors handed to a writer.

    Raises:
        InputError: a mask or a bias that is too large to be written out.
        RuntimeError: the map's tensors were changed in place.
    """
    if isinstance(m, AttentionSummary):
        return {
            "summary": {name: writer.tensor(answer) for name, answer in m.answers.items()},
            **{name: getattr(m, name) for name in _SUMMARY},
            "shape": list(m.shape),
            "dtype": str(m.dtype),
        }
    if m._ensure_unchanged is not None:
        m._ensure_unchanged()
    queries, keys = m.shape[2:]
    tensors = {"q": m.q, "k": m.k, "v": m.v, "sinks": m.sinks, "lse": m.kernel_lse}
    return {
        "map": {name: writer.tensor(t) for name, t in tensors.items()},
        **{name: getattr(m, name) for name in _MAP},
        "mask": writer.mask(m.mask, queries, keys),
        "bias": writer.bias(m.bias, queries, keys, m.device),
        "sample": None if m.sample is None else _facts_of_sample(m, m.sample, writer),
    }


_SUMMARY = ("mask", "kernel", "error", "verified", "names")
_MAP = ("scale", "softcap", "dropout", "kernel")


def _facts_of_sample(m: AttentionMap, sample: OutputSample, writer: RecordingWriter) -> JsonDict:
    facts = {name: writer.tensor(getattr(sample, name)) for name in ("batch", "query", "output", "factor")}
    if sample.finish is None:
        return facts
    # What the rest of a layer does to weights @ v cannot be written down. What it came to for these rows can.
    finished: list[Tensor] = []
    finish = sample.finish

    def listen(rows: Tensor) -> Tensor:
        finished.append(finish(rows))
        return finished[-1]

    _ = _like(m, replace(sample, finish=listen)).error
    return {**facts, "finished": writer.tensor(finished[-1] if finished else None)}


def _like(m: AttentionMap, sample: OutputSample) -> AttentionMap:
    return AttentionMap(
        m.q,
        m.k,
        m.v,
        m.mask,
        **m.score_options,
        dropout=m.dropout,
        lse=m.kernel_lse,
        sample=sample,
        kernel=m.kernel,
    )


def map_from_json(facts: JsonDict, reader: RecordingReader) -> AttentionMap | AttentionSummary:
    """What `map_to_json` made facts of."""
    if "summary" in facts:
        answers = {name: reader.tensor(answer) for name, answer in facts["summary"].items()}
        dtype = getattr(torch, facts["dtype"].removeprefix("torch."))
        options = {name: facts[name] for name in _SUMMARY} | {"names": tuple(facts["names"])}
        return AttentionSummary(torch.Size(facts["shape"]), dtype, answers=answers, **options)  # type: ignore[arg-type]
    tensors = {name: reader.tensor(t) for name, t in facts["map"].items()}
    return AttentionMap(
        **tensors,  # type: ignore[arg-type]
        **{name: facts[name] for name in _MAP},
        mask=reader.mask(facts["mask"]),
        bias=reader.bias(facts["bias"]),
        sample=None if facts["sample"] is None else _sample_of(facts["sample"], reader),
    )


def _sample_of(facts: JsonDict, reader: RecordingReader) -> OutputSample:
    parts = {name: reader.tensor(t) for name, t in facts.items()}
    finished = parts.pop("finished", None)
    return OutputSample(**parts, finish=None if finished is None else lambda _: finished)  # type: ignore[arg-type]


def write(path: str | Path, facts: JsonDict, writer: RecordingWriter) -> None:
    """Write a recording: to a file beside at first, which then takes the place of what was there.

    Args:
        path: where to.
        facts: what is no tensor, mask or bias.
        writer: what is.

    Raises:
        InputError: the path cannot be written. What was there is then as before.
    """
    target = ensure_writable(path)
    header = json.dumps({**facts, "masks": writer.masks, "biases": writer.biases})
    try:
        with atomic_path(target) as draft:
            draft.touch()
            mode = draft.stat().st_mode  # of any new file; safetensors makes its own readable for the owner only
            save_file(writer.tensors, draft, {"format": FORMAT, "version": str(VERSION), "recording": header})
            draft.chmod(mode)
    except (OSError, SafetensorError) as error:
        raise InputError(f"cannot write {str(path)!r}: {error_reason(error)}") from error


def read(path: str | Path) -> tuple[JsonDict, RecordingReader]:
    """The facts of a recording that `write` wrote, and what finds its tensors.

    Raises:
        InputError: the file is missing, truncated, or something else than a recording; a newer regard wrote it.
    """
    try:
        with safe_open(path, "pt") as file:
            said = file.metadata() or {}
            if said.get("format") != FORMAT:
                raise InputError(
                    f"{path} is a safetensors file, but no recording: load what Recording.save or regard watch --save "
                    "wrote"
                )
            if said.get("version") != str(VERSION):
                raise InputError(
                    f"{path} is a recording of version {said.get('version')}, and this regard reads version {VERSION}: "
                    "upgrade regard, or save it again with this one"
                )
            # The file is mapped into memory; a copy is safe from whoever writes to it.
            tensors = {name: file.get_tensor(name).clone() for name in file.keys()}  # noqa: SIM118
    except SafetensorError as error:
        raise InputError(
            f"{path} is truncated or no safetensors file ({error}). Save the recording again, or copy it anew"
        ) from error
    except FileNotFoundError:
        raise InputError(f"{path} is missing") from None
    except OSError as error:
        raise InputError(f"{path} cannot be read: {error.strerror or error}") from error
    with damage_as_input_error(path):
        facts = json.loads(said["recording"])
        return facts, RecordingReader(tensors, facts["masks"], facts["biases"])


@contextmanager
def damage_as_input_error(path: str | Path) -> Iterator[None]:
    """Whatever does not fit while a recording is put together means that its file was changed.

    Raises:
        InputError: in place of what was raised.
    """
    try:
        yield
    except (KeyError, TypeError, ValueError, IndexError, AttributeError, RuntimeError) as error:
        if isinstance(error, InputError):
            raise
        raise InputError(
            f"{path} does not hold a recording as regard saved it ({error!r}). Save it again, or copy it anew"
        ) from error
