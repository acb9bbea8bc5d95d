"""The page that carries its model: `build_model_page` writes it, static/live/model_page.js opens it.

The facts of its first text are in the file, so that its views are there at once. The model itself, in 8 bits, waits as
text for the worker that runs it (static/model/worker.js), whose script is text in the file, too.
"""

from __future__ import annotations

from base64 import b64encode
from collections.abc import Sequence
from importlib.metadata import version
from typing import Any

from regard.errors import InputError
from regard.lens.recording.recording import Recording
from regard.views.html.bundle import STATIC, assemble, bundle_modules, data_elements, styles
from regard.views.html.codec import encode_json
from regard.views.html.draft import RenderedPage
from regard.views.html.page import DEFAULT_MAX_SIZE, build_contents
from regard.views.html.quantized_model import PackedModel, QuantizedModel
from regard.views.html.wordpiece import wordpiece_settings

ENTRY = "live/model_page"
"""The module that opens the page."""

WORKER = "model/worker"
"""The module that the worker runs."""

MODEL_PAGE_MAX_SIZE = 32_000_000
"""The largest size of a page with its model in bytes, unless the caller gives another."""

MAX_TEXTS = 2
"""The texts that a page compares."""


def build_model_page(
    recording: Recording,
    quantized: QuantizedModel,
    texts: Sequence[str],
    *,
    max_size: float | int = MODEL_PAGE_MAX_SIZE,
    **options: Any,
) -> RenderedPage:
    """The page of a text, with the model that read it.

    Args:
        recording: of the first text, read by ``quantized.dequantize()``.
        quantized: the model.
        texts: that the page opens with, one or two.
        max_size: the largest size of the page in bytes.
        options: of the views, those of `build_page`.

    Raises:
        InputError: no text or more than two; a model or tokenizer that a page cannot compute; a model that is larger
            than the limit.
    """
    if not 1 <= len(texts) <= MAX_TEXTS:
        raise InputError(f"a page with its model opens with one text or two, and there are {len(texts)}", "compare")
    packed = quantized.pack()
    rest = _size(packed)
    contents = build_contents(recording, max_size=min(max_size - rest, DEFAULT_MAX_SIZE), **options)
    facts = {**contents.facts, "omitted": []}  # the model computes every head anew
    page = RenderedPage(_write(facts, contents.numbers, _settings(recording, quantized, packed, texts), packed), facts)
    if page.size > max_size:
        raise InputError(
            f"a page with {quantized.full.name} in 8 bits takes {page.size:,} bytes, and the limit is {max_size:,}: "
            "give a smaller model, or a larger limit",
            "max_size",
        )
    return page


def _settings(
    recording: Recording, quantized: QuantizedModel, packed: PackedModel, texts: Sequence[str]
) -> dict[str, Any]:
    """What the page knows of its model besides the weights: `readSettings` in static/live/model_page.js reads it."""
    full = quantized.full
    return {
        "model": model_facts(quantized, texts),
        "settings": {
            "name": full.name,
            "generator": f"regard {version('regard')}",
            "config": packed.config,
            "weights_length": packed.length,
            "tokenizer": wordpiece_settings(full),
            "kernels": b64encode((STATIC / "model" / "kernels.wasm").read_bytes()).decode(),
            "paths": list(recording),
        },
    }


def model_facts(quantized: QuantizedModel, texts: Sequence[str]) -> dict[str, Any]:
    """What the page says of its model: `ModelFacts` in static/live/engine.js."""
    config = quantized.full.config
    return {
        "name": quantized.full.name,
        "kind": "encoder",
        "description": f"encoder, {config.num_layers} layers of {config.num_heads} heads, in this page in 8 bits",
        "max_tokens": config.max_positions,
        "texts": list(texts),
        "notes": quantized.compare(texts).notes(),
        "has_vector": True,
        "generates": False,
        "effects": ["heads", "layers", "tokens"],
        "metrics": ["cosine", "similarity"],
        "ablations": ["zero", "mean", "resample"],
        "edits": ["mask", "removedKeys", "temperature", "scale", "scores", "off"],
    }


def _size(packed: PackedModel) -> int:
    """About the bytes of a page without its facts and numbers."""
    scripts = sum(len(text.encode()) for text in (bundle_modules(ENTRY), bundle_modules(WORKER), styles(ENTRY)))
    return len(packed.text.encode()) + scripts


def _write(facts: dict[str, Any], numbers: bytes, settings: dict[str, Any], packed: PackedModel) -> str:
    """The file."""
    elements = data_elements(facts=encode_json(facts), numbers=numbers, settings=encode_json(settings))
    elements += [f'<script type="text/plain" class="weights">{part}</script>' for part in packed.parts]
    elements.append(f'<script type="text/plain" id="worker">{bundle_modules(WORKER)}</script>')
    page, _ = assemble(ENTRY, facts["title"], elements, scripts=" 'wasm-unsafe-eval'; worker-src blob:")
    return page
