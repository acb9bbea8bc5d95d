"""The page of `regard live` in Chromium, and its model behind a real server."""

import json
from dataclasses import replace
from urllib.parse import quote

import pytest
import torch

import regard
from regard.server import LiveServer
from views.html import browsing
from weights import smollm2

FRANCE = "The capital of France is"
RIVER = "the bank of a river"
MARY = "When Mary and John went to the store, John gave a drink to"


@pytest.fixture
def open_live(chromium):
    """A function that opens the page of a server in a tab of its own, in a state as a link to it says."""
    yield from browsing.sound_pages(lambda server, hash, **options: chromium.served(f"{server.url}#{hash}", **options))


@pytest.fixture(scope="module")
def river_server(small_decoder):
    """A small decoder, which answers at once."""
    with LiveServer(small_decoder, texts=[RIVER]) as server:
        yield server


@pytest.fixture(scope="module")
def france_server():
    """SmolLM2, and a page that opens with a text that it continues."""
    with LiveServer(smollm2(), texts=[FRANCE], allow_frames=True) as server:
        yield server


def wait_for_next(page, token):
    page.wait_for_selector(f"#view-next tbody tr:first-child:has-text('{token}')")


def start_writing(page, num_tokens):
    """Begin to write that many tokens, in the view Writing."""
    page.fill("#writing-max_new_tokens", str(num_tokens))
    page.click("#writing-generate")


def test_the_next_tokens_follow_while_one_types(open_live, france_server):
    page = open_live(france_server, {"view": "next"})
    wait_for_next(page, "Paris")
    page.fill("#text-1", "The capital of Ital")
    page.type("#text-1", "y is", delay=30)
    wait_for_next(page, "Rome")
    with torch.inference_mode():
        logits = smollm2().model(torch.tensor([smollm2().encode("The capital of Italy is").ids]))[0, -1]
    (rome,) = smollm2().encode(" Rome").ids
    expected = ["␣Rome", f"{logits[rome]:.2f}", f"{logits.softmax(-1)[rome]:.2%}".replace("%", ""), "%"]
    assert page.locator("#view-next tbody tr").first.inner_text().split() == expected


@pytest.mark.more
def test_a_click_on_a_next_token_writes_it(open_live, france_server):
    page = open_live(france_server, {"view": "next"})
    page.click("#view-next tbody tr:has-text('Paris') button")
    page.wait_for_selector("#view-next .end:has-text('is Paris')")
    assert page.input_value("#text-1") == f"{FRANCE} Paris"


@pytest.mark.more
def test_a_special_token_cannot_be_clicked_since_it_is_no_text(open_live, france_server):
    page = open_live(france_server, {"view": "next"})
    page.fill("#text-1", "The end.")
    page.wait_for_selector("#view-next .end:has-text('The end.')")
    special = page.locator("#view-next tbody tr:has-text('<|')")
    assert special.count() > 0
    assert special.locator("button").count() == 0


OBSERVED = """
window.seen = { rows: [], tokens: [] };
const note = () => {
  const label = document.querySelector("#view-writing canvas")?.getAttribute("aria-label");
  const rows = Number(label?.match(/(\\d+) rows/)?.[1] ?? 0);
  const tokens = document.querySelectorAll("#view-writing .written button").length;
  if (rows && seen.rows.at(-1) !== rows) seen.rows.push(rows);
  if (seen.tokens.at(-1) !== tokens) seen.tokens.push(tokens);
};
new MutationObserver(note).observe(document.body, { subtree: true, childList: true, attributes: true });
"""


@pytest.mark.more
def test_a_text_is_written_token_by_token_while_the_map_grows_and_then_all_views_show_it(open_live, france_server):
    page = open_live(france_server, {"view": "writing", "attention": 4, "head": 7})
    page.evaluate(OBSERVED)
    start_writing(page, 12)
    page.wait_for_selector("#view-writing .progress:has-text('Written: 12 tokens')")
    seen, prompt = page.evaluate("seen"), len(smollm2().encode(FRANCE).ids)
    assert seen["tokens"] == sorted(seen["tokens"])
    assert len(seen["tokens"]) > 6
    assert seen["tokens"][-1] == 12
    assert seen["rows"] == sorted(seen["rows"])
    assert len(seen["rows"]) > 6
    assert seen["rows"][-1] == prompt + 11  # the last token is written and not read
    assert page.input_value("#text-1") == FRANCE + regard.generate(smollm2(), FRANCE, max_new_tokens=12)
    page.click("#tab-map")
    assert page.locator("#view-map :text('answer')").count() > 0


@pytest.mark.more
def test_each_written_token_has_its_candidates_and_another_one_ends_the_text_there(open_live, river_server):
    page = open_live(river_server, {"view": "writing"})
    start_writing(page, 4)
    page.wait_for_selector("#view-writing .progress:has-text('Written')")
    written = page.locator("#view-writing .written button")
    names = written.all_inner_texts()
    written.first.click()
    chosen = page.locator("#view-writing .candidates tr.chosen th")
    assert chosen.inner_text() == names[0]
    page.keyboard.press("ArrowRight")
    assert chosen.inner_text() == names[1]
    other = page.locator("#view-writing .candidates tr:not(.chosen) button").first
    text = RIVER + (names[0] + other.inner_text()).replace("␣", " ")
    other.click()
    page.wait_for_selector(f"#view-writing .prompt:text-is({json.dumps(text)})")
    assert page.input_value("#text-1") == text


@pytest.mark.more
def test_stop_keeps_what_was_written(open_live, france_server):
    page = open_live(france_server, {"view": "writing"})
    start_writing(page, 200)
    page.wait_for_selector("#view-writing .written button:nth-of-type(3)")
    page.click("#writing-stop")
    page.wait_for_selector("#view-writing .progress:has-text('Stopped after')")
    page.wait_for_selector(".live-status .words:text-matches('^[0-9]+ tokens')")
    text = page.input_value("#text-1")
    assert text.startswith(f"{FRANCE} Paris.")
    assert len(text) < 300


@pytest.mark.more
def test_what_one_types_comes_before_what_is_being_written(open_live, france_server):
    page = open_live(france_server, {"view": "writing"})
    start_writing(page, 250)
    page.wait_for_selector("#view-writing .written button:nth-of-type(2)")
    page.fill("#text-1", "The capital of Italy is")
    page.click("#tab-next")
    wait_for_next(page, "Rome")
    assert page.input_value("#text-1") == "The capital of Italy is"


@pytest.mark.more
def test_the_same_seed_writes_the_same_text_and_a_temperature_another_one(open_live, river_server):
    page = open_live(river_server, {"view": "writing"})
    texts = []
    for temperature, seed in (("1.5", "3"), ("1.5", "3"), ("0", "3")):
        page.fill("#text-1", RIVER)
        page.fill("#writing-temperature", temperature)
        page.fill("#writing-seed", seed)
        start_writing(page, 6)
        page.wait_for_selector("#view-writing .progress:has-text('Written')")
        texts.append(page.input_value("#text-1"))
    assert texts[0] == texts[1] != texts[2]


def test_an_edge_that_is_cut_goes_through_the_model(open_live, france_server):
    """What the page says is what `regard.intervene` gives."""
    layer, head, query, key = 4, 7, 4, 0
    page = open_live(france_server, {"view": "whatif", "attention": layer, "head": head, "query": query})
    page.uncheck(f"#view-whatif tr[data-key='{key}'] input.may")
    page.wait_for_selector("#view-whatif .next-change tbody tr")
    page.click("#tab-next")
    page.wait_for_selector("#view-next .end:has-text('before the edits')")
    row = page.locator("#view-next tbody tr").first.inner_text().split()
    model, ids = smollm2().model, torch.tensor([smollm2().encode(FRANCE).ids])
    (paris,) = smollm2().encode(" Paris").ids
    with torch.inference_mode(), regard.intervene(model) as edit:
        edit[f"blocks.{layer}.attention"].heads[head].block(queries=[query], keys=[key])
        after = float(model(ids)[0, -1].softmax(-1)[paris])
    before, now = (float(row[at]) / 100 for at in (row.index("%") - 1, -2))
    assert before == pytest.approx(0.7725, abs=1e-4)
    assert now == pytest.approx(after, abs=1e-4)
    assert abs(now - before) > 1e-3


@pytest.mark.more
def test_effects_are_computed_while_one_watches(open_live, france_server):
    page = open_live(france_server, {"view": "effect"})
    page.select_option(".effectOver", "layers")
    page.select_option(".effectMetric", "log_prob")
    page.click(".effect-controls .compute")
    page.wait_for_selector(".effect-controls .cancel", state="hidden", timeout=30_000)
    found = {}
    for row in page.locator("#view-effect .effects tbody tr").all():
        found[int(row.locator("th").inner_text())] = float(row.get_attribute("data-effect"))
    metric = regard.metrics.log_prob(" Paris")
    expected = regard.effect(smollm2(), FRANCE, metric, over="layers", progress=False).values.flatten()
    shown = torch.tensor([found[layer] for layer in range(30)])
    torch.testing.assert_close(shown, expected.float(), rtol=1e-3, atol=1e-4)


@pytest.mark.more
def test_an_effect_ends_when_another_text_is_typed(open_live, france_server):
    page = open_live(france_server, {"view": "effect"})
    page.fill("#text-1", MARY)
    page.wait_for_selector(".live-status .words:text-matches('^14 tokens')")
    page.select_option(".effectOver", "heads")
    page.click(".effect-controls .compute")
    page.wait_for_selector(".effect-controls .cancel:visible")
    page.fill("#text-1", "Rivers have banks")
    page.wait_for_selector(".live-status .words:text-matches('^4 tokens')")
    assert page.locator("#view-effect .effects").count() == 0
    assert page.locator(".effect-controls .cancel").is_hidden()


@pytest.mark.more
def test_a_hostile_text_stays_text(open_live, france_server):
    page = open_live(france_server, {"view": "next"})
    hostile = "</script><img src=x onerror=\"document.documentElement.dataset.hacked='yes'\">\u202e\x00<x-evil>"
    page.fill("#text-1", hostile)
    page.wait_for_selector("#view-next .end .token:has-text('hacked')")
    for view in ("sentence", "writing", "heads", "map", "whatif", "effect"):
        page.click(f"#tab-{view}")
        page.wait_for_selector(f"#view-{view}")
    assert page.locator("html").get_attribute("data-hacked") is None
    assert page.locator("main img[src=x], main x-evil, main script").count() == 0


@pytest.mark.more
def test_a_request_that_is_refused_says_why_and_the_last_answer_stays(chromium, serve, small_decoder):
    server = serve(small_decoder)
    with chromium.served(f"{server.url}#{quote(json.dumps({'view': 'sentence'}))}") as (page, _):
        page.wait_for_selector("html[data-ready]")
        before = page.locator("#view-sentence .tokenlist").first.inner_text()
        page.fill("#text-1", "a " * 200)
        page.wait_for_selector(".live-status .words.error:has-text('tokens')")
        assert page.locator("#view-sentence .tokenlist").first.inner_text() == before


@pytest.mark.more
def test_a_server_that_is_gone_is_said_and_asked_again(chromium, serve, small_decoder):
    server = serve(small_decoder)
    with chromium.served(f"{server.url}#{quote(json.dumps({'view': 'next'}))}") as (page, _):
        page.wait_for_selector("html[data-ready]")
        server.close()
        page.fill("#text-1", "a b")
        page.wait_for_selector(".live-status .words.error:has-text('does not answer')")
        again = LiveServer(small_decoder, port=server.port)
        again.rules = replace(again.rules, secret=server.rules.secret)
        with again:
            page.click(".live-status .again")
            page.wait_for_selector("#view-next .end .token:text-is('a b')")


@pytest.mark.more
@pytest.mark.parametrize("view", ["next", "writing"])
def test_nothing_is_wider_than_a_small_dark_screen(open_live, river_server, view):
    page = open_live(river_server, {"view": view}, width=360, dark=True)
    if view == "writing":
        start_writing(page, 12)
        page.wait_for_selector("#view-writing .progress:has-text('Written')")
        page.click("#view-writing .written button:nth-of-type(1)")
    page.wait_for_selector(f"#view-{view} .candidates")
    root = page.evaluate(
        "({ width: document.documentElement.scrollWidth, colour: getComputedStyle(document.body).backgroundColor })"
    )
    assert root == {"width": 360, "colour": "rgb(22, 25, 32)"}
