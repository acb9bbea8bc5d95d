"""The model that a page carries, run by Python with the same 8-bit weights: the oracle of the page's numbers."""

from collections.abc import Callable
from functools import cache
from typing import Any

import torch
from torch import Tensor

import regard
from regard.lens.text.words import Words
from regard.pretrained import Pretrained
from regard.views.html.quantized_model import quantize_model
from weights import minilm

Edit = Callable[[Any], None]
"""Edits heads: a function of what `regard.intervene` gives."""


@cache
@torch.inference_mode(False)
def dequantized() -> Pretrained:
    """MiniLM with exactly the weights that the page computes with."""
    return quantize_model(minilm()).dequantize()


def tokens(text: str) -> list[str]:
    """As the page shows them."""
    return Words.of(text, dequantized()).display_tokens()


@torch.no_grad()
def read(text: str, edit: Edit = lambda _: None) -> tuple[Tensor, list[Tensor]]:
    """The vector of a text, and the weights of each layer (heads, queries, keys), with some heads edited."""
    model = dequantized()
    ids = torch.tensor(model.encode(text).ids)
    with regard.intervene(model.model) as editor:
        edit(editor)
        with regard.watch(model.model) as recording:
            states = model.model(ids[None])
        weights = [recording[path][0].double() for path in recording]
    assert model.pooling is not None
    return model.pooling(states[0], torch.tensor([len(ids)]))[0].double(), weights


def similarity(one: Tensor, other: Tensor) -> float:
    """Cosine."""
    return float(torch.cosine_similarity(one, other, dim=-1))


def head(layer: int, number: int, change: Callable[[Any], None]) -> Edit:
    """An edit of one head."""

    def edit(editor: Any) -> None:
        change(editor[list_paths()[layer]].heads[number])

    return edit


@cache
def list_paths() -> tuple[str, ...]:
    """The paths of the layers' attentions."""
    model = dequantized()
    with torch.no_grad(), regard.watch(model.model) as recording:
        model.model(torch.tensor([model.encode("a").ids]))
    return tuple(recording)
