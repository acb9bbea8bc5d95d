"""The page's own model in a browser: in a worker, from a file on disk, under the policy of a page that has a model."""

import base64
import json
import re

import pytest
import torch

import regard
from regard.views.html.bundle import STATIC, bundle_modules, sha256_source
from regard.views.html.quantized_model import quantize_model
from views.html.page_encoders import minilm_8_bits
from weights import random_bert

WORKER = """
let parts = "";
let encoder = null;
const answer = async ({ part, open, ids, times }) => {
  if (part !== undefined) parts += part;
  else if (open) {
    const wasm = Uint8Array.from(atob(open.kernels), (each) => each.charCodeAt(0));
    encoder = await Encoder.create(open.config, await decodeWeights(parts, open.length), wasm);
    postMessage({ isOpen: true });
  } else {
    const milliseconds = [];
    for (let i = 0; i < times; i++) {
      const start = performance.now();
      await encoder.forward(ids);
      milliseconds.push(performance.now() - start);
    }
    const { vector } = await encoder.forward(ids);
    postMessage({ vector: [...vector], milliseconds: Math.min(...milliseconds) });
  }
};
onmessage = ({ data }) => answer(data).catch((error) => postMessage({ error: error.message }));
"""

PAGE = """
const text = (id) => document.getElementById(id).textContent;
const worker = new Worker(URL.createObjectURL(new Blob([text("worker")], { type: "text/javascript" })));
window.ask = (message) => new Promise((done) => {
  worker.onmessage = ({ data }) => done(data);
  worker.postMessage(message);
});
for (const { textContent } of document.getElementsByClassName("weights")) worker.postMessage({ part: textContent });
window.opened = ask({ open: JSON.parse(text("open")) });
document.documentElement.dataset.ready = "yes";
"""


def script(main, code, **modules):
    """A script of bundled modules and some code that uses their exports."""
    bundle = bundle_modules(main)
    for export, module in modules.items():
        bundle += f"const {{{export}}} = {re.search(rf'// {module}.js' + chr(10) + r'const (m[0-9]+)', bundle)[1]};\n"
    return bundle + code


def write_page(path, quantized):
    """A page with a model and without anything to see."""
    packed = quantized.pack()
    modules = {"Encoder": "model/encoder", "decodeWeights": "model/weights"}
    worker = script("model/encoder", WORKER, **modules)
    policy = f"default-src 'none'; script-src '{sha256_source(PAGE)}' 'wasm-unsafe-eval'; worker-src blob:"
    kernels = base64.b64encode((STATIC / "model/kernels.wasm").read_bytes()).decode()
    opened = json.dumps({"config": packed.config, "length": packed.length, "kernels": kernels})
    scripts = (
        f'<script type="text/plain" id="worker">{worker}</script><script type="text/plain" id="open">{opened}</script>'
    )
    scripts += "".join(f'<script type="text/plain" class="weights">{part}</script>' for part in packed.parts)
    head = f'<!doctype html><meta charset="utf-8"><meta http-equiv="Content-Security-Policy" content="{policy}">'
    page = f'{head}<title>A model</title>{scripts}<script type="module">{PAGE}</script>'
    path.write_text(page, encoding="utf-8", newline="")
    return path


def test_a_model_runs_in_a_worker_under_the_pages_policy(open_page, tmp_path):
    random_bert(tmp_path)
    quantized = quantize_model(regard.load(tmp_path))
    page = open_page(write_page(tmp_path / "page.html", quantized))
    assert page.evaluate("() => opened") == {"isOpen": True}
    found = torch.tensor(page.evaluate("(ids) => ask({ ids, times: 1 })", [5, 7, 3])["vector"])
    model = quantized.dequantize()
    with torch.no_grad():
        expected = model.pooling(model.model(torch.tensor([5, 7, 3])), torch.tensor([3]))[0]
    torch.testing.assert_close(found, expected, atol=1e-5, rtol=0)


@pytest.mark.more
@pytest.mark.parametrize(("tokens", "seconds"), [(20, 0.2), (128, 1.5)])
def test_minilm_reads_a_text_in_time(open_page, tmp_path, tokens, seconds):
    """On 2 cores of 2020 or later it takes a tenth of it."""
    page = open_page(write_page(tmp_path / "page.html", minilm_8_bits()))
    assert page.evaluate("() => opened") == {"isOpen": True}
    answer = page.evaluate("(ids) => ask({ ids, times: 5 })", [1000 + 7 * i for i in range(tokens)])
    assert answer["milliseconds"] < 1000 * seconds
