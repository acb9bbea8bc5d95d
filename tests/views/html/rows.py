"""Pages whose rows the tests of the arithmetic and of what-if look at."""

from pathlib import Path

import torch
from torch import Tensor, nn

import regard
from regard import mask
from regard.lens.maps.map import AttentionMap
from regard.lens.recording.recording import Recording

RIVER = "Write a poem about a man fishing on a river bank."


def minilm() -> Recording:
    """A real encoder and its tokens."""
    model = regard.load("sentence-transformers/all-MiniLM-L6-v2")
    with regard.watch(model.model) as seen:
        model.embed([RIVER])
    seen.label(model.tokenizer.encode(RIVER).tokens)
    return seen


class Everything(nn.Module):
    """Attention with every step that there is."""

    def __init__(self) -> None:
        super().__init__()
        self.projections = nn.ModuleList(nn.Linear(16, 32) for _ in range(3))
        self.sinks = nn.Parameter(torch.tensor([0.5, 2.0]))

    def forward(self, x: Tensor) -> Tensor:
        q, k, v = (each(x).view(1, -1, 2, 16).transpose(1, 2) for each in self.projections)
        bias = regard.positions.ALiBi(2)
        return regard.attend(q, k, v, mask.causal(), scale=0.5, softcap=3.0, bias=bias, sinks=self.sinks)


def everything(tokens: int) -> Recording:
    """One attention of two heads that has a scale of its own, a soft-cap, a bias, a mask and sinks."""
    torch.manual_seed(0)
    model = Everything()
    with torch.no_grad(), regard.watch(model) as seen:
        model(torch.randn(1, tokens, 16))
    seen.label([f"word{i}" for i in range(tokens)])
    return seen


def defined(m: AttentionMap) -> regard.Steps:
    """Every step of a map, in float64."""
    options = {"scale": m.scale, "softcap": m.softcap}
    bias = m.bias if m.bias is None or isinstance(m.bias, Tensor) else m.bias.dense(*m.shape[2:]).double()
    sinks = None if m.sinks is None else m.sinks.double()
    v = m.k if m.v is None else m.v
    return regard.steps(m.q.double(), m.k.double(), v.double(), m.mask, bias=bias, sinks=sinks, **options)


def read(page, where: str, name: str) -> list[float]:
    """A number that elements carry, in their order."""
    return [float(value) for value in page.locator(where).evaluate_all(f"all => all.map(each => each.dataset.{name})")]


def written(recording: Recording, folder: Path, **options) -> Path:
    """The page of a recording as a file."""
    path = folder / "page.html"
    recording.to_html(path, **options)
    return path
