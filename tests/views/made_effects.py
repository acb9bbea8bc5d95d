"""Effects whose numbers are made by hand, for the views: of the heads and tokens of the river's recording."""

import math
from dataclasses import replace

import torch
from torch import Tensor

from regard.lens.effects.effects import Effects
from views.recordings import river

LAYERS, HEADS, EXACT = 6, 12, 20


def scattered(*shape: int, seed: int = 0) -> Tensor:
    """Numbers of both signs, most of them small."""
    return torch.randn(1, *shape, generator=torch.Generator().manual_seed(seed), dtype=torch.float64) ** 3


def river_tokens() -> tuple[str, ...]:
    """The tokens of the river's recording."""
    tokens = river()["blocks.0.attention"].tokens
    assert tokens is not None
    return tuple(map(str, tokens[0]))


def head_effects(method: str = "exact") -> Effects:
    """Of every head; with "both" the strongest 20 by their estimates are exact."""
    estimates = scattered(LAYERS, HEADS)
    values = 1.25 * estimates + 0.01
    if method == "both":
        kept = estimates.abs() >= estimates.abs().flatten().sort(descending=True).values[EXACT - 1]
        values = values.where(kept, math.nan)
    if method == "gradient":
        values = values * math.nan
    return Effects(
        "heads",
        "cosine()",
        "zero",
        method,
        tuple(river().layers),
        (river_tokens(),),
        torch.tensor([0.5], dtype=torch.float64),
        values,
        None if method == "exact" else estimates,
        scattered(LAYERS, HEADS, seed=1).abs().clamp(max=1.0),
        ("a note",),
        "attention from the last token",
        names=tuple(map(str, range(LAYERS))),
    )


def token_effects() -> Effects:
    """Of every token."""
    values = scattered(len(river_tokens()), seed=2)
    return replace(
        head_effects(),
        over="tokens",
        metric="log_prob(' Paris')",
        ablation="block",
        values=values,
        looked_at=scattered(len(river_tokens()), seed=3).abs(),
        notes=(),
    )


def edge_effects() -> Effects:
    """Of two groups of keys, in windows of three layers."""
    windows = tuple(tuple(range(max(0, n - 1), min(LAYERS, n + 2))) for n in range(LAYERS))
    return replace(
        token_effects(),
        over="edges",
        values=scattered(LAYERS, 1, 2, seed=4),
        looked_at=scattered(LAYERS, 1, 2, seed=5).abs(),
        queries=(-1,),
        keys=((1, 2), (3,)),
        windows=windows,
    )


def layer_effects(method: str = "exact") -> Effects:
    """Of every layer."""
    heads = head_effects(method)
    columns = {name: None if (t := getattr(heads, name)) is None else t.sum(2) for name in ("values", "estimates")}
    return replace(heads, over="layers", looked_at=None, **columns)  # type: ignore[arg-type]
