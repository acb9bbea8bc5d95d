"""Attention small enough to look at in a browser, and the numbers that elements of its page carry."""

import json
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor, nn

import regard
from regard import mask
from regard.lens import AttentionMap


class Attends(nn.Module):
    """Causal attention with some options, or attention of a text to another one."""

    def __init__(self, heads: int, width: int = 16, **options: Any) -> None:
        super().__init__()
        self.heads, self.options = heads, options
        self.q, self.k, self.v = (nn.Linear(24, heads * width, bias=False) for _ in range(3))
        nn.init.normal_(self.q.weight)  # so that weights differ clearly

    def forward(self, x: Tensor, context: Tensor | None = None) -> Tensor:
        source = x if context is None else context
        pairs = ((self.q, x), (self.k, source), (self.v, source))
        q, k, v = (linear(t).unflatten(-1, (self.heads, -1)).transpose(1, 2) for linear, t in pairs)
        return regard.attend(q, k, v, mask.causal() if context is None else None, **self.options)


def watched(path: Path, model: Attends, *tokens: int, **options: Any) -> AttentionMap:
    """The map of a model that was run on texts of so many tokens, called word0, word1, ...; its page is written."""
    with torch.no_grad(), regard.watch(model) as recording:
        model(*(torch.randn(1, count, 24) for count in tokens))
    recording.label(*([f"word{i}" for i in range(count)] for count in tokens))
    recording.to_html(path, **options)
    return recording[""]


def steps_of(m: AttentionMap) -> regard.Steps:
    """Every step of a map, in float64."""
    bias = m.bias if m.bias is None or isinstance(m.bias, Tensor) else m.bias.dense(*m.shape[2:]).double()
    sinks = None if m.sinks is None else m.sinks.double()
    q, k, v = m.q.double(), m.k.double(), m.v.double()
    return regard.steps(q, k, v, m.mask, bias=bias, sinks=sinks, scale=m.scale, softcap=m.softcap)


def read(page: Any, where: str, name: str) -> list[float]:
    """A number that elements carry, in their order."""
    return [float(value) for value in page.locator(where).evaluate_all(f"all => all.map(each => each.dataset.{name})")]


def weights_by(page: Any, selector: str, name: str) -> dict[int, float]:
    """The weights that elements carry, by another number that they carry."""
    items = f"{selector} [data-weight]"
    return dict(zip(map(int, read(page, items, name)), read(page, items, "weight"), strict=True))


def assert_weights(found: dict[int, float], exact: Tensor) -> None:
    """These weights are a row's, or a column's."""
    assert found
    assert found == pytest.approx({i: float(exact[i]) for i in found}, abs=1e-3)


PIXELS = """(canvas, [rows, columns]) => {
  const { data, width, height } = canvas.getContext("2d").getImageData(0, 0, canvas.width, canvas.height);
  return Array.from({ length: rows * columns }, (_, i) => {
    const x = Math.floor(((i % columns) + 0.5) * width / columns);
    const y = Math.floor((Math.floor(i / columns) + 0.5) * height / rows);
    return [...data.slice((y * width + x) * 4, (y * width + x) * 4 + 4)];
  });
}"""


def heat_is_there(page: Any) -> None:
    """Until an image and the heat over it are painted."""
    page.wait_for_function("() => document.querySelector('.patches img').naturalWidth > 0")
    page.wait_for_function("() => document.querySelector('.heat').height > 100")
    painted(page)


def assert_heat(page: Any, weights: Tensor, grid: tuple[int, int], *, dark: bool = False) -> None:
    """Light falls, or rises, with the square root of a patch's weight: no patch stands in another's place."""
    pixels = torch.tensor(page.locator(".heat").evaluate(PIXELS, grid), dtype=torch.float64)
    assert pixels[:, 3].min() > 0
    light = pixels[:, :3] @ torch.tensor([0.2126, 0.7152, 0.0722], dtype=torch.float64)
    heat, roots = light if dark else -light, (weights.double() / weights.max()).sqrt()
    assert int(heat.argmax()) == int(weights.argmax())
    assert torch.corrcoef(torch.stack([heat, roots]))[0, 1] > 0.97
    clear = roots[:, None] - roots[None] > 0.03
    assert clear.any()
    assert (heat[:, None] > heat[None])[clear].all()


def state_of(page: Any) -> dict[str, Any]:
    """What the page's link says."""
    return json.loads(page.evaluate("decodeURIComponent(location.hash.slice(1))"))


def painted(page: Any) -> None:
    page.evaluate("() => new Promise((done) => requestAnimationFrame(() => setTimeout(done)))")
