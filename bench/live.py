"""Live pages: the file in which a model runs, in a real browser, and the server of `regard live`, by real requests."""

from __future__ import annotations

import gc
import json
import pydoc_data.topics
import shutil
import tempfile
import threading
import time
from collections.abc import Iterator
from http.client import HTTPConnection
from pathlib import Path
from typing import Any
from urllib.parse import urlsplit

import regard
from bench.page import BROWSER
from bench.table import Row

SENTENCE = "Write a poem about a man fishing on a river bank."
CLIENTS = 20
REQUESTS = 1_000
ROUNDS = 5

TYPE = """
async ([text, tokens]) => {
  const field = document.querySelector("#text-1");
  const words = document.querySelector(".live-status .words");
  words.textContent = ""; // of the answer before, which may have as many tokens
  const start = performance.now();
  field.value = text;
  field.dispatchEvent(new Event("input", { bubbles: true }));
  while (!words.textContent.startsWith(`${tokens} tokens ·`)) await new Promise((done) => setTimeout(done, 1));
  await new Promise((done) => requestAnimationFrame(() => setTimeout(done)));
  return performance.now() - start;
}
"""
"""Milliseconds from a new text to the frame that shows its answer."""

WATCH_TASKS = """
window.longTasks = [];
new PerformanceObserver((list) => longTasks.push(...list.getEntries().map((entry) => entry.duration)))
  .observe({ type: "longtask" });
"""
"""The browser reports tasks of 50 milliseconds and more."""


def model_page() -> Iterator[Row]:
    """The file with MiniLM in 8 bits: written, opened, typed into."""
    from playwright.sync_api import sync_playwright

    case, folder = "MiniLM in one file", Path(tempfile.mkdtemp(prefix="regard-bench-"))
    try:
        model = regard.load()
        start = time.perf_counter()
        page = regard.see(SENTENCE, folder / "live.html", model=model, with_model=True)
        seconds = time.perf_counter() - start
        yield Row(f"{case}: written", "", f"{page.size / 1e6:.1f} MB, {seconds:.1f} s", "32 MB at most")
        with sync_playwright() as playwright:
            browser = playwright.chromium.launch(executable_path=shutil.which("chromium"), args=BROWSER.split())
            tab = browser.new_page(viewport={"width": 1280, "height": 900})
            tab.add_init_script(WATCH_TASKS)
            start = time.perf_counter()
            tab.goto((folder / "live.html").as_uri())
            tab.wait_for_selector("html[data-ready]", timeout=60_000)
            shown = time.perf_counter() - start
            tab.wait_for_selector("html[data-model=ready]", timeout=60_000)
            ready = time.perf_counter() - start
            yield Row(f"{case}: opened, views, then its model", "", f"{shown:.1f} s, {ready:.1f} s")
            for tokens, bar in ((20, "0.5 s at most"), (128, "3 s at most")):
                texts = [_text(model, tokens, start) for start in range(ROUNDS)]
                times = sorted(tab.evaluate(TYPE, [text, tokens]) / 1000 for text in texts)
                spread = f"median {times[ROUNDS // 2]:.2f} s, longest {times[-1]:.2f} s"
                yield Row(f"{case}: {tokens} tokens typed, to the frame that shows them", "", spread, bar)
            yield from _typing(case, tab)
            browser.close()
    finally:
        shutil.rmtree(folder)


def _typing(case: str, tab: Any) -> Iterator[Row]:
    """The longest task of the page's thread while somebody types, view by view."""
    for view in ("sentence", "heads", "map", "whatif"):
        tab.click(f"#tab-{view}")
        tab.fill("#text-1", "")
        tab.wait_for_timeout(500)
        tab.evaluate("() => longTasks.splice(0)")
        tab.locator("#text-1").press_sequentially(SENTENCE, delay=80)
        tab.wait_for_timeout(500)
        tasks = tab.evaluate("() => longTasks.splice(0)")
        longest = f"{max(tasks):.0f} ms" if tasks else "none of 50 ms"
        yield Row(f"{case}: longest task while a sentence is typed, {view}", "", longest, "50 ms at most")


def server() -> Iterator[Row]:
    """SmolLM2 behind real HTTP: the first answer, many clients at once, and memory over many requests."""
    model = regard.load("smollm2")
    text = _text(model, 20)
    with regard.live(model) as live:
        first = _ask(live.url, text)
        times = sorted(_ask(live.url, text) for _ in range(ROUNDS))
        result = f"first {first:.2f} s, then median {times[ROUNDS // 2]:.2f} s"
        yield Row("regard live, SmolLM2: 20 tokens answered", "", result, "1 s at most")
        waits: list[float] = []
        threads = [
            threading.Thread(target=lambda n=n: waits.append(_ask(live.url, f"{n} {text}"))) for n in range(CLIENTS)
        ]
        start = time.perf_counter()
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
        total = time.perf_counter() - start
        result = f"{len(waits)} answered, the last after {total:.1f} s"
        yield Row(f"regard live, SmolLM2: {CLIENTS} clients at once", "", result, "all")
        memory = []
        for done in range(REQUESTS + 1):
            if done in (REQUESTS // 10, REQUESTS):
                gc.collect()
                memory.append(_resident_bytes())
            _ask(live.url, "The capital of Italy is")
        grown = (memory[1] - memory[0]) / 1e6
        result = f"{grown:+.1f} MB from request {REQUESTS // 10} to {REQUESTS:,}"
        yield Row("regard live, SmolLM2: memory", "", result, "flat")


def _text(model: regard.Pretrained, tokens: int, start: int = 0) -> str:
    """Prose of exactly so many tokens; where a word has too many, "a" takes the place of the last ones."""
    words = " ".join(pydoc_data.topics.topics["assert"].split()).split(" ")[start:]
    text = ""
    while len(model.encode(longer := f"{text} {words.pop(0)}".strip()).ids) <= tokens:
        text = longer
    while len(model.encode(text).ids) < tokens:
        text += " a"
    return text


def _ask(url: str, text: str) -> float:
    """Seconds until the answer to a question is there."""
    start = time.perf_counter()
    address = urlsplit(url)
    connection = HTTPConnection(address.hostname or "", address.port, timeout=300)
    body = json.dumps({"texts": [text], "edits": []})
    connection.request("POST", f"{address.path}ask", body, {"content-type": "application/json"})
    answer = connection.getresponse().read()
    connection.close()
    if b"event: answer" not in answer:
        raise ValueError(answer.decode()[:500])
    return time.perf_counter() - start


def _resident_bytes() -> int:
    """The memory of this process, in which the server runs."""
    return int(Path("/proc/self/statm").read_text().split()[1]) * 4096
