"""Numbers of the page of `regard live` with SmolLM2, read in Chromium, against the library."""

from __future__ import annotations

import json
import shutil
from base64 import b64decode
from collections import defaultdict
from collections.abc import Callable, Iterator
from typing import Any

import numpy as np
import torch
from torch import Tensor

import regard
from bench.page import BROWSER
from bench.table import Row

TEXTS = (
    "The capital of France is",
    "When Mary and John went to the store, John gave a drink to",
    "Zürich, Köln und",
    "I ❤️ it 😀 and",
    "我爱北京",
    "def f(x):\n    return",
    "one two three one two",
    "東京 is a city in",
)
SOURCE = "The capital of Italy is"

BOUNDS = {"its share of the error that the page states": "1 at most", "a logit that is drawn, with two digits": "0.005"}

KEEP_TEXTS = """
const parse = JSON.parse;
JSON.parse = (text, ...rest) => {
  const value = parse(text, ...rest);
  if (value?.texts?.[0]?.facts || value?.parts) window.lastText = text;
  return value;
};
"""
"""What the page parses of the server's last answer stays where it can be read."""


def server_numbers() -> Iterator[Row]:
    """A page of SmolLM2, typed into."""
    from playwright.sync_api import sync_playwright

    model = regard.load("smollm2")
    with regard.live(model) as server, sync_playwright() as playwright:
        browser = playwright.chromium.launch(executable_path=shutil.which("chromium"), args=BROWSER.split())
        tab = browser.new_page(viewport={"width": 1280, "height": 900})
        tab.set_default_timeout(60_000)
        tab.add_init_script(KEEP_TEXTS)
        tab.goto(server.url)
        tab.wait_for_selector("html[data-ready]")
        yield from _Comparison(tab, model).rows()
        browser.close()


class _Comparison:
    """A page, and the model; the largest difference of each kind of number."""

    def __init__(self, tab: Any, model: regard.Pretrained) -> None:
        self.tab, self.model = tab, model
        self.largest: dict[str, list[float]] = defaultdict(list)

    def rows(self) -> Iterator[Row]:
        for n, text in enumerate(TEXTS):
            self.text(text)
            self.edits(text, 7 + 2 * n, n % 9)
        self.patches(TEXTS[0])
        for name, differences in self.largest.items():
            bound = BOUNDS.get(name, "1e-3 at most")
            yield Row(f"regard live, SmolLM2: {name}", "", f"{max(differences):.3g}, of {len(differences):,}", bound)

    @torch.no_grad()
    def _read(self, text: str, edit: Callable[[Any, list[str]], Any] | None = None) -> tuple[Tensor, list[Tensor]]:
        """The logits of the next token, and the weights of each layer (heads, queries, keys)."""
        ids = torch.tensor(self.model.encode(text).ids)
        with regard.watch(self.model.model) as recording:
            logits = self.model.model(ids[None])[0, -1]
        paths = list(recording)
        weights = [recording[path][0].double() for path in paths]
        if edit is not None:
            with regard.intervene(self.model.model) as editor:
                edit(editor, paths)
                logits = self.model.model(ids[None])[0, -1]
        return logits, weights

    def text(self, text: str) -> None:
        """Weights of all heads as a share of the error that the page states, and the next tokens."""
        answer = self._ask(text)
        logits, weights = self._read(text)
        facts, numbers = answer["texts"][0]["facts"], b64decode(answer["texts"][0]["numbers"])
        for n, attention in enumerate(facts["attentions"]):
            found = _weights(attention, numbers, facts["num_int16"])
            self._note("a weight, 270 heads of each text", found - weights[n])
            share = float((found - weights[n]).abs().max()) / attention["max_weight_error"]
            self._note("its share of the error that the page states", share)
        self._next("next tokens", answer["texts"][0]["next"], logits)
        self.tab.click("#tab-next")
        rows = self.tab.locator("#view-next tbody tr")
        for row in (rows.nth(i) for i in range(rows.count())):
            logit = float(row.locator("td").first.inner_text().replace("−", "-"))
            exact = float(logits[int(row.get_attribute("data-id"))])
            self._note("a logit that is drawn, with two digits", logit - exact)

    def edits(self, text: str, layer: int, head: int) -> None:
        """An edge, a temperature and a head, each alone, through the model."""
        tab, query = self.tab, len(self.model.encode(text).ids) - 1
        tab.click("#tab-whatif")
        tab.select_option("#layer", str(layer))
        tab.select_option("#head", str(head))
        tab.select_option("#view-whatif select.query", str(query))

        def cut() -> None:
            tab.click('.edited tr[data-key="1"] .may')

        def heat() -> None:
            tab.fill("#view-whatif .whole-row input.temperature", "4")
            tab.keyboard.press("Tab")

        for name, act, change in (
            ("an edge cut", cut, lambda h: h.block(queries=query, keys=1)),
            ("a temperature", heat, lambda h: h.temperature(4, queries=query)),
            ("a head off", lambda: tab.click(".head-off"), lambda h: h.ablate()),
        ):
            act()
            tab.wait_for_selector(".through-model:not(.pending) .next-change")
            after = json.loads(tab.evaluate("window.lastText"))["movement"]["next"]["after"]
            logits, _ = self._read(text, lambda e, paths, change=change: change(e[paths[layer]].heads[head]))
            self._next(name, after, logits)
            tab.click(".clear-changes")
            tab.wait_for_selector(".live-status:not(.computing)")

    def patches(self, text: str) -> None:
        """Every head, every layer, replaced by what it gives in another sentence."""
        self._ask(text)
        tab = self.tab
        tab.click("#tab-effect")
        for over in ("layers", "heads"):
            tab.select_option(".effectOver", over)
            tab.select_option(".effectMetric", "log_prob")
            tab.fill(".effectToken0", " Paris")
            tab.select_option(".effectAblation", "resample")
            tab.fill(".effectSource", SOURCE)
            tab.evaluate("() => (window.lastText = null)")
            tab.click(".compute")
            tab.wait_for_selector(".effect-controls .cancel", state="hidden", timeout=240_000)
            found = json.loads(tab.evaluate("window.lastText"))
            metric = regard.metrics.log_prob(" Paris")
            options = {"ablation": "resample", "source": [SOURCE], "method": "exact", "progress": False}
            expected = regard.effect(self.model, text, metric, over, **options).values.flatten()
            if found["num_parts"] != len(expected):
                raise ValueError(f"{found['num_parts']} effects over {over}, and the library has {len(expected)}")
            strongest = sorted(expected.tolist(), key=abs)[-len(found["parts"]) :]
            ours = sorted(part["effect"] for part in found["parts"])
            self._note(f"{over} patched from another sentence", torch.tensor(ours) - torch.tensor(sorted(strongest)))

    def _next(self, name: str, tokens: list[dict[str, Any]], logits: Tensor) -> None:
        shares = logits.double().softmax(-1)
        for token in tokens:
            self._note(f"{name}: logit", token["logit"] - float(logits[token["id"]]))
            self._note(f"{name}: probability", token["probability"] - float(shares[token["id"]]))

    def _ask(self, text: str) -> Any:
        self.tab.evaluate("() => (window.lastText = null)")
        self.tab.fill("#text-1", f"{text} ")
        self.tab.fill("#text-1", text)
        self.tab.wait_for_function(
            "text => window.lastText?.includes(JSON.stringify(text).slice(1, -1))"
            " || (window.lastText && JSON.parse(window.lastText).texts[0].facts.title === text)",
            arg=text,
        )
        self.tab.wait_for_selector(".live-status:not(.computing)")
        answer = json.loads(self.tab.evaluate("window.lastText"))
        if answer["texts"][0]["facts"]["title"] != text:
            raise ValueError(f"the page shows {answer['texts'][0]['facts']['title']!r} and not {text!r}")
        return answer

    def _note(self, name: str, difference: Tensor | float) -> None:
        self.largest[name].append(float(torch.as_tensor(difference).abs().max()))


def _weights(attention: dict[str, Any], numbers: bytes, count: int) -> Tensor:
    """The causal weights (heads, queries, keys), from queries and keys as the page has them."""
    low, high = (np.frombuffer(numbers, np.int8, count, at).astype(int) for at in (0, count))
    integers = low + 256 * high

    def read(ref: dict[str, Any]) -> Tensor:
        rows, columns = ref["shape"]
        if ref["type"] == "i32":
            found = np.frombuffer(numbers, np.int32, rows * columns, 2 * count + ref["at"]).reshape(rows, columns)
            return torch.from_numpy(found * ref["step"]).double()
        found = integers[ref["at"] : ref["at"] + rows * columns].reshape(columns, rows).T * ref["step"]
        return torch.from_numpy(found).double()

    keys = attention["kv_heads"]
    heads = [(head["payload"]["q"], keys[head["payload"]["kv_head"]]["k"]) for head in attention["heads"]]
    scores = torch.stack([read(q) @ read(k).T * attention["scale"] for q, k in heads])
    return scores.masked_fill(torch.ones_like(scores, dtype=torch.bool).triu(1), -torch.inf).softmax(-1)
