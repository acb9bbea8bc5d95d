"""Interventions: knockout at length, and the effects of all heads of SmolLM2 against other tools."""

from __future__ import annotations

import tempfile
import time
from collections.abc import Callable, Iterator
from importlib.util import find_spec
from pathlib import Path
from typing import Any

import torch
import transformers
from torch import Tensor, nn
from torch.nn.functional import scaled_dot_product_attention

import regard
from bench.table import Row
from bench.timing import medians, peak_mb
from regard import metrics

PROMPT = "When Mary and John went to the store, John gave a drink to"
LAYERS, HEADS, WIDTH = 30, 9, 64
SAMPLED_LAYERS = (0, 15, 29)
"""What other tools do head by head is timed for the heads of these layers, and multiplied."""

KNOCKOUT = """
import regard
class Attention(torch.nn.Module):
    def forward(self, q, k, v):
        return torch.nn.functional.scaled_dot_product_attention(q, k, v, is_causal=True)
model, qkv = Attention(), torch.randn(3, 1, 4, 32768, 64)
def run(edited):
    with torch.inference_mode(), regard.intervene(model) as edit:
        if edited:
            edit[""].block(queries=[-1, 20_000], keys=[3, 4, 5])
        return model(*qkv)
run(False)
run({edited})
"""


class _Attention(nn.Module):
    def forward(self, q: Tensor, k: Tensor, v: Tensor) -> Tensor:
        return scaled_dot_product_attention(q, k, v, is_causal=True)


def knockout() -> Iterator[Row]:
    """Two queries that may not see three keys, at 32,768 tokens: only their rows are computed again."""
    model, (q, k, v) = _Attention(), torch.randn(3, 1, 4, 32768, 64)

    def edited() -> Tensor:
        with torch.inference_mode(), regard.intervene(model) as edit:
            edit[""].block(queries=[-1, 20_000], keys=[3, 4, 5])
            return model(q, k, v)  # type: ignore[no-any-return]

    def plain() -> Tensor:
        with torch.inference_mode():
            return model(q, k, v)  # type: ignore[no-any-return]

    changed = (edited() != plain()).any(-1).any(1)[0].nonzero().flatten().tolist()
    if changed != [20_000, 32_767]:
        raise AssertionError(f"the rows {changed} changed, not 20,000 and the last one")
    before, after = medians(plain, edited, rounds=5, warm=False)
    case = "knockout of 2 queries, 32,768 tokens, 4 heads"
    yield Row(case, "attention alone", f"{after / before:.3f}x time", "1.05x at most")
    alone, more = (peak_mb(KNOCKOUT.format(edited=edited)) for edited in (False, True))
    yield Row(case, "attention alone", f"{more:.0f} MiB, alone {alone:.0f}")


def effects() -> Iterator[Row]:
    """The effect of each of 270 heads on one prompt, to the same numbers."""
    model = regard.load("smollm2")
    metric = metrics.logit_difference("Mary", "John")

    def ours() -> Tensor:
        return regard.effect(model, PROMPT, metric, method="exact", progress=False).values[0]

    def estimated() -> Tensor | None:
        return regard.effect(model, PROMPT, metric, method="gradient", progress=False).estimates

    values, seconds = _timed(ours)
    case = f"effects of {LAYERS * HEADS} heads, SmolLM2, {len(model.encode(PROMPT).ids)} tokens"
    yield Row(case, "", f"{seconds:.1f} s", "30 s on 2 cores")
    (rough,) = medians(estimated, rounds=3)
    yield Row("the same, estimated by one backward pass", "regard, exact", f"{seconds / rough:.0f}x")
    ids = torch.tensor([model.encode(PROMPT).ids])
    tokens = [model.encode(word).ids[0] for word in (" Mary", " John")]
    with tempfile.TemporaryDirectory() as folder:
        model.save(Path(folder))
        peers: dict[str, Callable[[], dict[tuple[int, int], float]]] = {
            "transformers, eager, with hooks": lambda: _with_hooks(folder, ids, tokens)
        }
        if find_spec("transformer_lens"):
            peers["TransformerLens"] = lambda: _with_transformer_lens(folder, ids, tokens)
        if find_spec("nnsight"):
            peers["nnsight"] = lambda: _with_nnsight(folder, ids, tokens)
        for name, peer in peers.items():
            theirs, taken = _timed(peer)
            for (layer, head), value in theirs.items():
                if abs(value - float(values[layer, head])) > 1e-3:
                    raise AssertionError(f"{name}: head {layer}.{head} has {value}, not {values[layer, head]}")
            share = len(theirs) / (LAYERS * HEADS)
            yield Row(case, f"{name}, head by head", f"{taken / share / seconds:.1f}x", "1x")


def _timed(call: Callable[[], Any]) -> tuple[Any, float]:
    start = time.perf_counter()
    result = call()
    return result, getattr(result, "seconds", time.perf_counter() - start)


class _Effects(dict[tuple[int, int], float]):
    """Effects by layer and head, and the time that they took without loading the model."""

    seconds = 0.0


def _head_by_head(run: Callable[[int | None, int], Tensor], tokens: list[int]) -> _Effects:
    """The effects of the heads of some layers; `run(layer, head)` gives the logits without a head."""

    def metric(logits: Tensor) -> float:
        return float(logits[0, -1, tokens[0]] - logits[0, -1, tokens[1]])

    found = _Effects()
    with torch.inference_mode():
        run(None, 0)
        start = time.perf_counter()
        baseline = metric(run(None, 0))
        for layer in SAMPLED_LAYERS:
            for head in range(HEADS):
                found[layer, head] = baseline - metric(run(layer, head))
        found.seconds = time.perf_counter() - start
    return found


def _load(folder: str) -> Any:
    return transformers.AutoModelForCausalLM.from_pretrained(
        folder, dtype=torch.float32, attn_implementation="eager"
    ).eval()


def _without(heads: Tensor, head: int) -> Tensor:
    """The heads' outputs, side by side or on an axis of their own, one of them zero."""
    without = heads.clone()
    without.view(*heads.shape[:2], HEADS, WIDTH)[:, :, head] = 0
    return without


def _with_hooks(folder: str, ids: Tensor, tokens: list[int]) -> _Effects:
    model = _load(folder)

    def run(layer: int | None, head: int) -> Tensor:
        if layer is None:
            return model(ids).logits  # type: ignore[no-any-return]
        projection = model.model.layers[layer].self_attn.o_proj
        handle = projection.register_forward_pre_hook(lambda _, args: (_without(args[0], head),))
        try:
            return model(ids).logits  # type: ignore[no-any-return]
        finally:
            handle.remove()

    return _head_by_head(run, tokens)


def _with_transformer_lens(folder: str, ids: Tensor, tokens: list[int]) -> _Effects:
    from transformer_lens.model_bridge import TransformerBridge

    tokenizer = transformers.AutoTokenizer.from_pretrained(folder)
    model = TransformerBridge.boot_transformers(
        folder, hf_model=_load(folder), tokenizer=tokenizer, dtype=torch.float32
    )

    def run(layer: int | None, head: int) -> Tensor:
        hooks = [] if layer is None else [(f"blocks.{layer}.attn.o.hook_in", lambda t, hook: _without(t, head))]
        return model.run_with_hooks(ids, fwd_hooks=hooks)  # type: ignore[no-any-return]

    return _head_by_head(run, tokens)


def _with_nnsight(folder: str, ids: Tensor, tokens: list[int]) -> _Effects:
    from nnsight import NNsight

    plain = _load(folder)
    model = NNsight(plain)

    def run(layer: int | None, head: int) -> Tensor:
        if layer is None:
            return plain(ids).logits  # type: ignore[no-any-return]
        with model.trace(ids):
            projection = model.model.layers[layer].self_attn.o_proj
            projection.input = _without(projection.input, head)
            logits = model.output.logits.save()
        return logits  # type: ignore[no-any-return]

    return _head_by_head(run, tokens)
