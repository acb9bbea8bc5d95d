"""A `Pretrained`, which imports this file, in one line and as a table for notebooks."""

from __future__ import annotations

from typing import Any

from regard.notebook import html_table


def one_line(pretrained: Any) -> str:
    """The name, the kind and the sizes that matter most."""
    sizes = f"{_layers(pretrained)}, d_model {pretrained.config.d_model}"
    return f"Pretrained({pretrained.name!r}, {pretrained.kind}, {sizes}{remarks(pretrained)})"


def remarks(pretrained: Any) -> str:
    """What of the checkpoint is not in the model, and in which format it was stored; each after a comma."""
    ignored = f", {len(pretrained.ignored_weights)} ignored weights" if pretrained.ignored_weights else ""
    return ignored + _stored(pretrained)


def as_table(pretrained: Any) -> str:
    """The facts that one wants to see before a model is used, as HTML."""
    config, parameters = pretrained.config, list(pretrained.model.parameters())
    kv_heads, longest = config.num_kv_heads, config.max_positions
    rows = [
        ("kind", f"{pretrained.kind}, reads {pretrained.modality}"),
        ("layers", _layers(pretrained)),
        ("d_model", f"{config.d_model:,}; d_ff {config.d_ff:,}"),
        ("key heads", "" if kv_heads in (None, config.num_heads) else str(kv_heads)),
        ("positions", config.positions + ("" if longest is None else f", at most {longest:,}")),
        ("vocabulary", f"{config.vocab_size:,}{'' if pretrained.tokenizer is not None else ', no tokenizer'}"),
        ("parameters", f"{sum(p.numel() for p in parameters):,}"),
        ("weights", f"{str(parameters[0].dtype).removeprefix('torch.')} on {pretrained.device}{_stored(pretrained)}"),
        ("pooling", _pooling(pretrained)),
    ]
    return html_table(pretrained.name, [row for row in rows if row[1]])


def _layers(pretrained: Any) -> str:
    config = pretrained.config
    layers = f"{config.num_layers} layers of {config.num_heads} heads"
    if config.decoder is not None:
        layers += f", decoder {config.decoder.num_layers} of {config.decoder.num_heads}"
    return layers


def _pooling(pretrained: Any) -> str:
    pooling = pretrained.pooling
    return "" if pooling is None else f"{pooling.mode}{', to length 1' if pooling.normalize else ''}"


def _stored(pretrained: Any) -> str:
    quantization = pretrained.checkpoint.quantization
    return f", dequantised from {quantization}" if quantization else ""
