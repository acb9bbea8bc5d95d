"""The page's own model for the tests: an encoder in node, and the model of regard with the same weights."""

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import cache
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

import regard
from regard.lens import Recording
from regard.pretrained import Pretrained
from regard.views.html.quantized_model import QuantizedModel, quantize_model
from views.html.page_runs import packed, unpacked
from weights import minilm

Node = Callable[[str, Any], Any]


@cache
def minilm_8_bits() -> QuantizedModel:
    """The default model in 8 bits, made once."""
    return quantize_model(minilm())


@dataclass
class EncoderRun:
    """A run of the page's model, or of regard's."""

    hidden_states: list[Tensor]
    q: list[Tensor]
    k: list[Tensor]
    v: list[Tensor]
    output: list[Tensor]
    """Of each head, ``(heads, tokens, d_head)``."""
    vector: Tensor
    layers: int = 0
    """How many were computed."""


class PageEncoder:
    """A model in node, and regard's own model with the same 8-bit weights."""

    def __init__(self, node: Node, folder: Path, quantized: QuantizedModel, name: str) -> None:
        self.node, self.name, self.quantized = node, name, quantized
        self.model: Pretrained = quantized.dequantize()
        self.path = folder / f"{name}.weights"
        self.path.write_bytes(quantized.bytes())
        assert self.open(quantized.config) is None

    def open(self, config: dict[str, Any], path: Path | None = None, name: str | None = None) -> str | None:
        """Open it with a config, and with the weights of a file; why it is refused."""
        argument = {"name": name or self.name, "config": config, "path": str(path or self.path)}
        refusal: str | None = self.node("encoderOpen", argument)["refusal"]
        return refusal

    def ids(self, text: str) -> list[int]:
        return list(self.model.encode(text).ids)

    def run(self, ids: Sequence[int], edits: Sequence[dict] = (), hidden: Sequence[int] = (), *, begin=False):
        """What the page's model makes of ids."""
        argument = {"name": self.name, "ids": list(ids), "hiddenTokens": list(hidden), "begin": begin}
        found = self.node("encoderForward", {**argument, "edits": [edit_of(**edit) for edit in edits]})
        config, n = self.model.config, len(ids)
        shape = config.num_heads, n, config.head_dim
        names = ("q", "k", "v", "output")
        parts = {part: [unpacked(layer[part], *shape) for layer in found["attentions"]] for part in names}
        states = [unpacked(state, n, config.d_model) for state in found["hiddenStates"]]
        return EncoderRun(states, **parts, vector=unpacked(found["vector"], -1), layers=found["layers"])

    def expected(self, ids: Sequence[int]) -> tuple[EncoderRun, Recording]:
        """What regard's model makes of ids."""
        with torch.no_grad(), regard.watch(self.model.model) as recording:
            states = list(self.model.model.hidden_states(torch.tensor(list(ids))))
        maps = [recording[path] for path in recording]
        parts = {part: [getattr(m, part)[0] for m in maps] for part in ("q", "k", "v")}
        output = [m[0] @ m.v[0] for m in maps]
        return EncoderRun(states, **parts, output=output, vector=self.vector(states[-1])), recording

    def vector(self, hidden_states: Tensor) -> Tensor:
        """The text's vector, pooled as the checkpoint says."""
        assert self.model.pooling is not None
        return self.model.pooling(hidden_states, torch.tensor([len(hidden_states)]))[0]


def edit_of(attention=0, head=0, query=None, *, off=False, output=None, **edits: Any) -> dict[str, Any]:
    """A `HeadEdit` of static/model/encoder.js."""
    edit = {"attention": attention, "head": head, "query": query, "off": off, "edits": edits}
    return edit if output is None else {**edit, "output": packed(output)}
