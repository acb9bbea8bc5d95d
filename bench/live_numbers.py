"""Numbers of live pages against Python: what Chromium shows, and what the library computes with the same weights."""

from __future__ import annotations

import pydoc_data.topics
import shutil
import tempfile
from base64 import b64decode
from collections import defaultdict
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import Tensor

import regard
from bench.page import BROWSER
from bench.table import Row
from regard.views.html.quantized_model import quantize_model

SECOND = "He put the money into the bank."
SHORT = (
    "Hello|a|I am.|No!|The bank of the river|He sat on the bank.|Time flies like an arrow.|What is attention?|"
    "1 + 1 = 2|She said yes.|e-mail me at a@b.org|don't|U.S.A.|$3.50 (net)|the the the the"
)
ODD = (
    "I ❤️ it 😀|👩‍👩‍👧 went home|🇩🇪 and 🇫🇷|ok 👍🏽!|😀😀😀|a 🦊 in the snow ❄|Éléphant à Paris|Zürich, Köln und Łódź|"
    "naïve façade|İstanbul'da çay|Ångström — “quotes”|El niño comió piña|Tiếng Việt có dấu|Привет, мир|Καλημέρα κόσμε|"
    "我爱北京|東京タワーは高い|한국어 문장|mixed 中文 and English|漢字、かな。|안녕 hello 你好|"
    "שלום עולם|مرحبا بالعالم|नमस्ते दुनिया|"
    "x\u200by\u00adz|tab\tand\nline|ﬁne ﬂow ①②|ＦＵＬＬ width|a\u0301 e\u0308|½ of 10⁻³"
)
EFFECT_TEXTS = ("He sat on the bank of the river.", "I ❤️ it 😀", "Zürich, Köln und Łódź")

KEEP_ANSWERS = """
window.Worker = class extends Worker {
  constructor(...options) {
    super(...options);
    this.addEventListener("message", ({ data }) => data.kind === "answer" && (window.lastAnswer = data.answer));
  }
};
"""
"""What the worker answers stays where it can be read; the page draws the same object."""

READ_ANSWER = """
async () => {
  const { texts, similarity, movement } = window.lastAnswer;
  const reader = new FileReader();
  const done = new Promise((resolve) => (reader.onload = resolve));
  reader.readAsDataURL(new Blob([texts[0].numbers]));
  await done;
  return { facts: texts[0].facts, numbers: reader.result.split(",")[1], similarity, movement };
}
"""


def model_page_numbers() -> Iterator[Row]:
    """The file with MiniLM in 8 bits, typed into, against regard with the same weights."""
    from playwright.sync_api import sync_playwright

    folder = Path(tempfile.mkdtemp(prefix="regard-bench-"))
    try:
        regard.see(SECOND, folder / "live.html", with_model=True, compare=SECOND)
        with sync_playwright() as playwright:
            browser = playwright.chromium.launch(executable_path=shutil.which("chromium"), args=BROWSER.split())
            tab = browser.new_page(viewport={"width": 1280, "height": 900})
            tab.set_default_timeout(60_000)
            tab.add_init_script(KEEP_ANSWERS)
            tab.goto((folder / "live.html").as_uri())
            tab.wait_for_selector("html[data-model=ready]")
            yield from _Comparison(tab).rows()
            browser.close()
    finally:
        shutil.rmtree(folder)


class _Comparison:
    """A page, and the model in Python; the largest difference of each kind of number."""

    def __init__(self, tab: Any) -> None:
        self.tab, self.model = tab, quantize_model(regard.load()).dequantize()
        self.largest: dict[str, list[float]] = defaultdict(list)
        self.second, self.paths = self._read(SECOND)[0], self._paths()

    def rows(self) -> Iterator[Row]:
        texts = [*SHORT.split("|"), *_long(15), *ODD.split("|")]
        for text in texts:
            self.text(text)
        for n, text in enumerate(texts[::3]):
            self.edits(text, n)
        for text in EFFECT_TEXTS:
            self.effects(text)
        for name, differences in self.largest.items():
            yield Row(
                f"MiniLM in one file: {name}", "", f"{max(differences):.1e}, of {len(differences):,}", "1e-3 at most"
            )

    def text(self, text: str) -> None:
        """Weights of all heads, those of a row that is drawn, and the similarity with the second text."""
        answer = self._ask(text)
        vector, weights = self._read(text)
        for layer, found in enumerate(_weights(answer)):
            self._note("a weight, 72 heads of each text", found - weights[layer])
        self._note("similarity of two texts", answer["similarity"] - _cosine(vector, self.second))
        self.tab.click("#tab-whatif")
        state = {name: int(self.tab.input_value(f"#{name}")) for name in ("layer", "head")}
        query = int(self.tab.input_value("#view-whatif select.query"))
        drawn = self.tab.locator(".edited tbody tr").evaluate_all("all => all.map(({dataset: d}) => [d.key, d.weight])")
        row = weights[state["layer"]][state["head"], query]
        for key, weight in drawn:
            self._note("a weight that is drawn", float(weight) - float(row[int(key)]))

    def edits(self, text: str, n: int) -> None:
        """A masked edge, a temperature and a head switched off: how far the vector moves, and the later heads."""
        self._ask(text)
        layer, head = n % 5, (5 * n) % 12
        tokens = len(self.model.encode(text).ids)
        query, key = n % tokens, (n + 1) % tokens
        tab = self.tab
        tab.click("#tab-whatif")
        tab.select_option("#layer", str(layer))
        tab.select_option("#head", str(head))
        tab.select_option("#view-whatif select.query", str(query))
        more = tab.locator("#view-whatif .edited button:has-text('more')")
        if more.count():
            more.first.click()

        def block() -> None:
            tab.click(f'.edited tr[data-key="{key}"] .may')

        def heat() -> None:
            tab.fill("#view-whatif .whole-row input.temperature", "4")
            tab.keyboard.press("Tab")

        def off() -> None:
            tab.click(".head-off")

        for name, act, change in (
            ("a masked edge", block, lambda edited: edited.block(queries=query, keys=key)),
            ("a temperature", heat, lambda edited: edited.temperature(4, queries=query)),
            ("a head off", off, lambda edited: edited.ablate()),
        ):
            if name == "a masked edge" and not tab.locator(f'.edited tr[data-key="{key}"]').count():
                continue
            act()
            tab.wait_for_selector(".through-model:not(.pending) .moved [data-fact=cosine]", state="attached")
            self._movement(name, text, layer, head, change)
            tab.click(".clear-changes")
            tab.wait_for_selector(".live-status:not(.computing)")

    def _movement(self, name: str, text: str, layer: int, head: int, change: Callable[[Any], Any]) -> None:
        found = self.tab.evaluate("() => window.lastAnswer.movement")
        before, old = self._read(text)
        after, new = self._read(text, lambda editor: change(editor[self.paths[layer]].heads[head]))
        self._note(f"{name}: cosine of the vector", found["cosine"] - _cosine(before, after))
        self._note(f"{name}: distance", found["distance"] - float((before - after).norm()))
        self._note(f"{name}: similarity after", found["similarity"] - _cosine(after, self.second))
        for each in found["heads"]:
            if each["attention"] == layer:
                continue  # of the edited head the weights before are those that are edited
            exact = (new[each["attention"]] - old[each["attention"]])[each["head"]]
            largest = abs(each["after"] - each["before"]) - float(exact.abs().max())
            self._note(f"{name}: largest change of a later head", largest)

    def effects(self, text: str) -> None:
        """Heads, layers and tokens removed, by both metrics."""
        self._ask(text)
        second = self.second.float()

        def similarity(output: Tensor) -> Tensor:
            assert self.model.pooling is not None
            vector = self.model.pooling(output[0], torch.tensor([output.shape[1]]))[0]
            return torch.cosine_similarity(vector, second, dim=0)

        for over in ("heads", "layers", "tokens"):
            for name, metric in (("cosine", regard.metrics.cosine()), ("similarity", similarity)):
                found = self._effects(over, name)
                expected = regard.effect(self.model, text, metric, over=over, method="exact", progress=False)
                exact = sorted(expected.values.flatten().tolist())
                ours = sorted(part["effect"] for part in found["parts"])
                if len(ours) != len(exact):
                    raise ValueError(f"{len(ours)} effects over {over} of {text!r}, and Python has {len(exact)}")
                for one, other in zip(ours, exact, strict=True):
                    self._note(f"effect over {over}, {name}", one - other)

    def _effects(self, over: str, metric: str) -> Any:
        tab = self.tab
        tab.click("#tab-effect")
        tab.select_option(".effectOver", over)
        tab.select_option(".effectMetric", metric)
        tab.evaluate("() => (window.lastAnswer = null)")
        tab.click(".compute")
        tab.wait_for_function("() => window.lastAnswer?.parts")
        return tab.evaluate("() => window.lastAnswer")

    def _ask(self, text: str) -> Any:
        self.tab.evaluate("() => (window.lastAnswer = null)")
        self.tab.fill("#text-1", f"{text} ")  # so that the same text a second time is asked, too
        self.tab.fill("#text-1", text)
        title = text[:40]
        self.tab.wait_for_function(
            "title => window.lastAnswer?.texts?.[0].facts.title.startsWith(title)"
            " && !document.querySelector('.live-status.computing')",
            arg=title,
        )
        answer = self.tab.evaluate(READ_ANSWER)
        if len(answer["facts"]["texts"][0]["tokens"]) != len(self.model.encode(text).ids):
            raise ValueError(f"the page reads {answer['facts']['texts'][0]['tokens']} of {text!r}")
        return answer

    @torch.no_grad()
    def _read(self, text: str, edit: Callable[[Any], Any] = lambda _: None) -> tuple[Tensor, list[Tensor]]:
        """The vector and the weights of each layer (heads, queries, keys)."""
        ids = torch.tensor(self.model.encode(text).ids)
        with regard.intervene(self.model.model) as editor:
            edit(editor)
            with regard.watch(self.model.model) as recording:
                states = self.model.model(ids[None])
            weights = [recording[path][0].double() for path in recording]
        assert self.model.pooling is not None
        return self.model.pooling(states[0], torch.tensor([len(ids)]))[0].double(), weights

    @torch.no_grad()
    def _paths(self) -> list[str]:
        with regard.watch(self.model.model) as recording:
            self.model.model(torch.tensor([self.model.encode("a").ids]))
        return list(recording)

    def _note(self, name: str, difference: Tensor | float) -> None:
        self.largest[name].append(float(torch.as_tensor(difference).abs().max()))


def _weights(answer: Any) -> Iterator[Tensor]:
    """The weights of each layer (heads, queries, keys), from queries and keys as the page has them."""
    numbers = b64decode(answer["numbers"])

    def read(ref: dict[str, Any]) -> Tensor:
        rows, columns = ref["shape"]
        found = np.frombuffer(numbers, np.float32, rows * columns, ref["at"]).reshape(rows, columns)
        return torch.from_numpy(found.copy()).double()

    for attention in answer["facts"]["attentions"]:
        keys = attention["kv_heads"]
        heads = [(head["payload"]["q"], keys[head["payload"]["kv_head"]]["k"]) for head in attention["heads"]]
        yield torch.stack([(read(q) @ read(k).T * attention["scale"]).softmax(-1) for q, k in heads])


def _cosine(a: Tensor, b: Tensor) -> float:
    return float(torch.cosine_similarity(a.double(), b.double(), dim=0))


def _long(count: int) -> list[str]:
    """Prose of 20 to 100 words."""
    words = " ".join(" ".join(topic.split()) for topic in pydoc_data.topics.topics.values()).split(" ")
    return [" ".join(words[n * 400 :][: 20 + 80 * n // count]) for n in range(count)]
