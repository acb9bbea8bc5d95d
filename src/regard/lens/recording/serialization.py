"""A recording as a file: safetensors, with everything that is no tensor as JSON in the header.

What several attentions share (the mask of every layer, a bias, keys and values) is stored once, and is shared again
after reading. Tensors are written bit for bit from any device, and read onto the CPU.
"""

from __future__ import annotations

import json
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import replace
from pathlib import Path
from types import NoneType

import torch
from safetensors import SafetensorError, safe_open
from safetensors.torch import save_file
from torch import Tensor

from regard.errors import InputError
from regard.files import atomic_path, ensure_writable, error_reason
from regard.lens.maps.inputs import OutputSample
from regard.lens.maps.map import AttentionMap
from regard.lens.maps.prepared import no_grad_no_autocast
from regard.lens.maps.summary import AttentionSummary
from regard.lens.maps.verify import max_error
from regard.lens.recording.tensors import JsonDict, RecordingReader, RecordingWriter

FORMAT = "regard recording"
VERSION = 1


def map_to_json(m: AttentionMap | AttentionSummary, writer: RecordingWriter) -> JsonDict:
    """A map or a summary as JSON; the writer collects its tensors.

    Raises:
        InputError: a mask or a bias that is too large as a tensor.
        RuntimeError: the map's tensors were changed in place.
    """
    if isinstance(m, AttentionSummary):
        return {
            "summary": {name: writer.tensor(answer) for name, answer in m.answers.items()},
            **{name: getattr(m, name) for name in _SUMMARY_FIELDS},
            "shape": list(m.shape),
            "dtype": str(m.dtype),
        }
    m.ensure_unchanged()
    queries, keys = m.shape[2:]
    tensors = {"q": m.q, "k": m.k, "v": m.v, "sinks": m.sinks, "lse": m.kernel_lse}
    return {
        "map": {name: writer.tensor(t) for name, t in tensors.items()},
        **{name: getattr(m, name) for name in _MAP_FIELDS},
        "mask": writer.mask(m.mask, queries, keys),
        "bias": writer.bias(m.bias, queries, keys, m.device),
        "sample": None if m.sample is None else _sample_to_json(m, m.sample, writer),
    }


_SUMMARY_FIELDS = ("mask", "kernel", "error", "verified", "head_type_names")
_MAP_FIELDS = ("scale", "softcap", "dropout", "kernel")


@no_grad_no_autocast
def _sample_to_json(m: AttentionMap, sample: OutputSample, writer: RecordingWriter) -> JsonDict:
    facts = {name: writer.tensor(getattr(sample, name)) for name in ("batch", "query", "output", "dropout_factor")}
    transform = sample.transform
    if transform is None:
        return facts
    # The rest of a layer, a function of weights @ v, cannot be written; its result for these rows can.
    transformed: list[Tensor] = []

    def record(rows: Tensor) -> Tensor:
        transformed.append(transform(rows))
        return transformed[-1]

    if m.v is not None and len(sample.batch):
        max_error(m, replace(sample, transform=record), m.v)
    return {**facts, "transformed": writer.tensor(transformed[-1] if transformed else None)}


def require_type(name: str, value: object, *types: type) -> None:
    """Refuse a value of a file that is of none of these types; True is no number.

    Raises:
        ValueError: it is of another type.
    """
    if not isinstance(value, types) or (isinstance(value, bool) and bool not in types):
        raise ValueError(f"{name} is {value!r}")


def validate_entry(fields: JsonDict, source: AttentionMap | AttentionSummary) -> None:
    """Refuse the fields of an attention that the recording's table cannot show, or that do not fit its map.

    Raises:
        ValueError: a field of another type or size.
    """
    for name in ("path", "mask", "kernel", "kind"):
        require_type(name, fields[name], str)
    require_type("layer", fields["layer"], int, NoneType)
    if fields["shape"] != tuple(source.shape):
        raise ValueError(f"shape is {fields['shape']!r}, and the map's is {tuple(source.shape)}")
    heads = fields["heads"]
    if heads is not None and (len(heads) != source.shape[1] or not all(type(head) is int for head in heads)):
        raise ValueError(f"heads is {heads!r}, and the map has {source.shape[1]} heads")


def _validate_sample(sample: OutputSample, m: AttentionMap) -> None:
    """Refuse sampled rows that do not fit the map."""
    count, (batch, heads, queries, _) = len(sample.output), m.shape
    for name, at, size in (("batch", sample.batch, batch), ("query", sample.query, queries)):
        if at.shape != (count,) or at.dtype != torch.int64 or bool(((at < 0) | (at >= size)).any()):
            raise ValueError(f"the sample's {name} of shape {tuple(at.shape)} does not fit {size}")
    width = m.v.shape[-1] if m.v is not None else 0
    if sample.transform is None and m.v is not None and sample.output.shape != (count, heads, width):
        raise ValueError(f"the sample's output has the shape {tuple(sample.output.shape)}")
    if not sample.output.is_floating_point():
        raise ValueError(f"the sample's output is {sample.output.dtype}")


def _validate_summary(summary: AttentionSummary) -> None:
    """Refuse answers that are missing, or of another size than the map's."""
    require_type("error", summary.error, int, float)
    require_type("verified", summary.verified, bool)
    for name in ("mask", "kernel", *summary.head_type_names):
        require_type(name, getattr(summary, name, name), str)
    batch, heads, queries, keys = summary.shape
    rows = (batch, heads, queries)
    wanted: dict[str, tuple[int, ...]] = {"entropy": rows, "received": (batch, heads, keys)}
    wanted |= {"distance.mean": rows, "distance.spread": rows}
    for name, shape in wanted.items():
        if tuple(summary.answers[name].shape) != shape:
            raise ValueError(f"{name} has the shape {tuple(summary.answers[name].shape)}, not {shape}")
    weights, at, pooled = (summary.answers[name] for name in ("top.weights", "top.keys", "pooled"))
    if weights.shape != at.shape or weights.shape[:3] != rows or pooled.shape[:2] != rows[:2] or pooled.ndim != 4:
        raise ValueError("the answers have other shapes than the map")
    if len(summary.head_type_names) != heads:
        raise ValueError(f"head_type_names has {len(summary.head_type_names)} names, and the map {heads} heads")


def map_from_json(facts: JsonDict, reader: RecordingReader) -> AttentionMap | AttentionSummary:
    """The map or summary that `map_to_json` wrote."""
    if "summary" in facts:
        answers = {name: reader.tensor(answer) for name, answer in facts["summary"].items()}
        dtype = getattr(torch, facts["dtype"].removeprefix("torch."))
        options = {name: facts[name] for name in _SUMMARY_FIELDS}
        options["head_type_names"] = tuple(facts["head_type_names"])
        summary = AttentionSummary(torch.Size(facts["shape"]), dtype, answers=answers, **options)  # type: ignore[arg-type]
        _validate_summary(summary)
        return summary
    tensors = {name: reader.tensor(t) for name, t in facts["map"].items()}
    require_type("kernel", facts["kernel"], str)
    m = AttentionMap(
        **tensors,  # type: ignore[arg-type]
        **{name: facts[name] for name in _MAP_FIELDS},
        mask=reader.mask(facts["mask"]),
        bias=reader.bias(facts["bias"]),
        sample=None if facts["sample"] is None else _sample_from_json(facts["sample"], reader),
    )
    if m.sample is not None:
        _validate_sample(m.sample, m)
    return m


def _sample_from_json(facts: JsonDict, reader: RecordingReader) -> OutputSample:
    tensors = {name: reader.tensor(t) for name, t in facts.items()}
    transformed = tensors.pop("transformed", None)
    return OutputSample(**tensors, transform=None if transformed is None else lambda _: transformed)  # type: ignore[arg-type]


def write_recording(path: str | Path, header: JsonDict, writer: RecordingWriter) -> None:
    """Write a recording by an atomic write.

    Args:
        path: the file.
        header: everything but tensors, masks and biases.
        writer: the tensors, masks and biases.

    Raises:
        InputError: the path cannot be written. A file that was there is unchanged.
    """
    target = ensure_writable(path)
    text = json.dumps({**header, "masks": writer.masks, "biases": writer.biases})
    try:
        with atomic_path(target) as draft:
            draft.touch()
            mode = draft.stat().st_mode  # of any new file; safetensors makes its own readable for the owner only
            save_file(writer.tensors, draft, {"format": FORMAT, "version": str(VERSION), "recording": text})
            draft.chmod(mode)
    except (OSError, SafetensorError) as error:
        raise InputError(f"cannot write {str(path)!r}: {error_reason(error)}") from error


def read_recording(path: str | Path) -> tuple[JsonDict, RecordingReader]:
    """The header of a file that `write_recording` wrote, and a reader for its tensors, masks and biases.

    Raises:
        InputError: the file is missing, truncated, or something else than a recording; a newer regard wrote it.
    """
    try:
        with safe_open(path, "pt") as file:
            metadata = file.metadata() or {}
            if metadata.get("format") != FORMAT:
                raise InputError(
                    f"{path} is a safetensors file, but no recording: load what Recording.save or regard watch --save "
                    "wrote"
                )
            if metadata.get("version") != str(VERSION):
                raise InputError(
                    f"{path} is a recording of version {metadata.get('version')}, and this regard reads version "
                    f"{VERSION}: upgrade regard, or save it again with this one"
                )
            # The file is mapped into memory; a copy does not change if somebody writes to the file.
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
        header = json.loads(metadata["recording"])
        return header, RecordingReader(tensors, header["masks"], header["biases"])


@contextmanager
def damage_as_input_error(path: str | Path) -> Iterator[None]:
    """Report any error while a recording is built from its file as a damaged file.

    Raises:
        InputError: in place of the error.
    """
    try:
        yield
    except (KeyError, TypeError, ValueError, IndexError, AttributeError, RuntimeError) as error:
        raise InputError(
            f"{path} does not hold a recording as regard saved it ({error!r}). Save it again, or copy it anew"
        ) from error
