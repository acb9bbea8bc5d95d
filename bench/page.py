"""The page: how large it is, how long it takes to write, to open, and to answer a reader's hand, in a real browser."""

from __future__ import annotations

import pydoc_data.topics
import shutil
import statistics
import tempfile
import time
from collections.abc import Callable, Iterator
from pathlib import Path

import torch
from torch import Tensor, nn
from torch.nn import functional

import regard
from bench.table import Row

BROWSER = "--no-sandbox --disable-gpu --disable-quic --no-first-run --disable-background-networking --disable-sync"

MEASURE_LATENCY = """
window.latencies = [];
for (const name of ["pointermove", "keydown"]) addEventListener(name, (event) => {
  requestAnimationFrame(() => setTimeout(() => latencies.push(performance.now() - event.timeStamp)));
}, { capture: true });
new MutationObserver((_, watcher) => {
  if (document.documentElement?.dataset.ready !== "yes") return;
  watcher.disconnect();
  requestAnimationFrame(() => setTimeout(() => (window.firstPicture = performance.now())));
}).observe(document, { attributes: true, subtree: true, childList: true });
"""
"""Milliseconds from an event to the next frame; from the start of the page to its first picture."""


class Attention(nn.Module):
    """One causal layer of two heads of 32, at any length."""

    def __init__(self) -> None:
        super().__init__()
        torch.manual_seed(0)
        self.projection = nn.Linear(64, 192)

    def forward(self, x: Tensor) -> Tensor:
        """(batch of one, tokens, 64) -> (1, heads, tokens, 32)."""
        q, k, v = self.projection(x).reshape(1, x.shape[1], 3, 2, 32).permute(2, 0, 3, 1, 4)
        return functional.scaled_dot_product_attention(2 * q, 2 * k, v, is_causal=True)


def pages() -> Iterator[Row]:
    """Pages of a sentence, of as much as MiniLM reads, and of 32,768 tokens."""
    folder = Path(tempfile.mkdtemp(prefix="regard-bench-"))
    try:
        prose = " ".join(" ".join(topic.split()) for topic in pydoc_data.topics.topics.values())
        sentence = "Write a poem about a man fishing on a river bank."
        for text, moves in ((sentence, {}), (prose, {"sentence": "hover", "map": "hover"})):
            recording, tokens = _minilm(text)
            bars = ("5 MB, 2 s at most", "1 s at most", "50 ms at most") if moves else ("", "", "")
            yield from _page(f"{tokens} tokens, 6 layers, 12 heads", recording, folder / f"{tokens}.html", moves, bars)
        yield from _page(
            "32,768 tokens, 2 heads", _long(), folder / "long.html", {"map": "zoom"}, ("5 MB, 8 s at most", "", "")
        )
    finally:
        shutil.rmtree(folder)


def _page(
    case: str, recording: regard.Recording, path: Path, moves: dict[str, str], bars: tuple[str, str, str]
) -> Iterator[Row]:
    times = []
    for _ in range(1 if "32,768" in case else 3):
        start = time.perf_counter()
        text = recording.to_html(path)
        times.append(time.perf_counter() - start)
    size = len(text.encode()) / 1e6
    yield Row(f"page of {case}: written", "", f"{size:.2f} MB, {statistics.median(times):.2f} s", bars[0])
    first_picture, latencies = _in_browser(path, moves)
    yield Row(f"page of {case}: first picture", "", f"{first_picture:.2f} s", bars[1])
    for (view, move), times in zip(moves.items(), latencies, strict=True):
        worst = f"median {statistics.median(times):.0f} ms, longest {max(times):.0f} ms"
        yield Row(f"page of {case}: {move} in the {view}", "", worst, bars[2])


def _in_browser(path: Path, moves: dict[str, str]) -> tuple[float, list[list[float]]]:
    """Seconds to the first picture, the median of five; and the milliseconds of each kind of move, move by move."""
    from playwright.sync_api import sync_playwright

    with sync_playwright() as playwright:
        browser = playwright.chromium.launch(executable_path=shutil.which("chromium"), args=BROWSER.split())
        first_pictures = []
        for _ in range(5):
            page = browser.new_page(viewport={"width": 1280, "height": 900})
            page.add_init_script(MEASURE_LATENCY)
            page.goto(path.as_uri())
            page.wait_for_function("() => window.firstPicture", timeout=60_000)
            first_pictures.append(page.evaluate("() => window.firstPicture") / 1000)
        latencies = []
        for view, move in moves.items():
            page.click(f"#tab-{view}")
            page.wait_for_timeout(1000)
            MOVES[move](page, view)
            page.wait_for_timeout(500)
            latencies.append(page.evaluate("() => window.latencies.splice(0)"))
        browser.close()
    return statistics.median(first_pictures), latencies


WHERE = {"sentence": ".sentence [role=listbox]", "map": ".map [role=application]"}


def _hover(page, view: str) -> None:
    box = page.locator(WHERE[view]).first.bounding_box()
    page.evaluate("() => window.latencies.splice(0)")
    for step in range(40):
        page.mouse.move(box["x"] + box["width"] / 2, box["y"] + box["height"] * (0.1 + 0.02 * step))
        page.wait_for_timeout(50)


def _zoom(page, view: str) -> None:
    page.locator(WHERE[view]).first.focus()
    page.evaluate("() => window.latencies.splice(0)")
    for key in "++++++++++++----":
        page.keyboard.press(key)
        page.wait_for_timeout(400)


MOVES: dict[str, Callable] = {"hover": _hover, "zoom": _zoom}


def _minilm(text: str) -> tuple[regard.Recording, int]:
    pretrained = regard.load()
    encoding = pretrained.tokenizer.encode(text)
    count = min(len(encoding.ids), 512)
    with torch.inference_mode(), regard.watch(pretrained.model) as recording:
        pretrained.model(torch.tensor([encoding.ids[:count]]))
    recording.label(encoding.tokens[:count])
    return recording, count


def _long() -> regard.Recording:
    tokens = 32_768
    waves = 3 * torch.sin(torch.arange(tokens)[:, None] / torch.linspace(5, 9000, 64))
    with torch.inference_mode(), regard.watch(model := Attention()) as recording:
        model((waves + torch.randn(tokens, 64, generator=torch.Generator().manual_seed(0)))[None])
    recording.label([f"word{position}" for position in range(tokens)])
    return recording
