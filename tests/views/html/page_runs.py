"""Runs of a model as the page's own model gives them: queries, keys and values of each layer, and the text's vector."""

from base64 import b64decode, b64encode
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch
from torch import Tensor

import regard
from regard.lens import AttentionMap, Recording
from regard.pretrained import Pretrained
from weights import minilm

Edit = Callable[[Any], None]
"""Edits heads: a function of what `regard.intervene` gives."""


@dataclass
class PageRun:
    """What a model did with the ids of one text."""

    recording: Recording
    ids: list[int]
    tokens: list[str]
    vector: Tensor
    """The mean of the last hidden states, of length 1."""

    def to_json(self) -> dict[str, Any]:
        """`Run` of static/model/encoder.js for the bridge."""
        maps = [self.recording[path] for path in self.recording]
        attentions = [{name: packed(t) for name, t in tensors(m).items()} for m in maps]
        return {"n": len(self.tokens), "attentions": attentions, "vector": packed(self.vector)}

    def options(self) -> dict[str, Any]:
        """The options of `answerFacts`."""
        named = {"title": "a title", "model": "MiniLM", "generator": "regard 1", "paths": list(self.recording)}
        return {"tokens": self.tokens, **named, **shape_of(self.recording), "context": None}


def tensors(m: AttentionMap) -> dict[str, Tensor]:
    """`RunAttention` of static/model/encoder.js; without values the keys take their place."""
    q, k, v = m.q, m.k, m.k if m.v is None else m.v
    return {"q": q[0], "k": k[0], "v": v[0], "output": regard.attend(q, k, v, scale=m.scale)[0]}


def shape_of(recording: Recording) -> dict[str, Any]:
    """How many heads there are, and how long a query is."""
    m = recording[next(iter(recording))]
    return {"numHeads": m.shape[1], "dHead": m.q.shape[-1], "scale": m.scale}


def no_edit(editor: Any) -> None:
    """The model as it is."""


def head(layer: int, number: int | slice, change: Callable[[Any], None]) -> Edit:
    """An edit of one head, or of some."""
    return lambda editor: change(editor[f"blocks.{layer}.attention"].heads[number])


def page_run(text: str | Sequence[int], model: Pretrained | None = None, edit: Edit = no_edit) -> PageRun:
    """The run of a text, or of ids as they are, with some heads edited."""
    model = model or minilm()
    ids = model.tokenizer.encode(text).ids if isinstance(text, str) else list(text)
    with torch.no_grad(), regard.intervene(model.model, verify=False) as editor:
        edit(editor)
        with regard.watch(model.model) as recording:
            states = model.model(torch.tensor([ids]))
    tokens = [model.tokenizer.id_to_token(i) for i in ids]
    recording.label(tokens)
    return PageRun(recording, ids, tokens, torch.nn.functional.normalize(states[0].mean(0), dim=0))


def packed(t: Tensor) -> str:
    """32-bit numbers for the bridge."""
    return b64encode(t.detach().float().contiguous().numpy().tobytes()).decode()


def unpacked(text: str, *shape: int) -> Tensor:
    """32-bit numbers of the bridge."""
    return torch.from_numpy(np.frombuffer(b64decode(text), np.float32).copy()).reshape(shape)
