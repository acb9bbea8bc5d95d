"""The model that a page carries, run by Python with the same 8-bit weights: the oracle of the page's numbers."""

from functools import cache

import torch
from torch import Tensor

from regard.lens.text.words import Words
from regard.pretrained import Pretrained
from views.html.page_encoders import minilm_8_bits
from views.html.page_runs import Edit, no_edit, page_run


@cache
@torch.inference_mode(False)
def dequantized() -> Pretrained:
    """MiniLM with exactly the weights that the page computes with."""
    return minilm_8_bits().dequantize()


def tokens(text: str) -> list[str]:
    """As the page shows them."""
    return Words.of(text, dequantized()).display_tokens()


def read(text: str, edit: Edit = no_edit) -> tuple[Tensor, list[Tensor]]:
    """The vector of a text, and the weights of each layer (heads, queries, keys), with some heads edited."""
    run = page_run(text, dequantized(), edit)
    return run.vector.double(), [m[0].double() for m in run.recording.values()]


def similarity(one: Tensor, other: Tensor) -> float:
    """Cosine."""
    return float(torch.cosine_similarity(one, other, dim=-1))
