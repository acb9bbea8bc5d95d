"""The page that carries its model: one file, what it may do, and that it is there before its model and without it."""

import html
import re

import pytest

import regard
from regard.errors import InputError
from regard.views.html.bundle import bundle_modules, sha256_source, styles
from terminals import printed, refusal
from views.html import browsing, in_page
from views.html.page_encoders import minilm_8_bits
from views.html.rows import weights_by
from views.recordings import random_map, recorded
from weights import LOAN, RIVER, minilm, smollm2


def status(page):
    return page.locator(".live-status .words").text_content()


def test_the_file_is_below_32_mb_and_may_do_what_its_model_needs_and_nothing_else(model_page):
    text = model_page.read_text(encoding="utf-8")
    assert 20_000_000 < model_page.stat().st_size < 32_000_000
    policy = html.unescape(re.search(r'Content-Security-Policy" content="([^"]*)"', text)[1])
    script, style = sha256_source(bundle_modules("live/model_page")), sha256_source(styles("live/model_page"))
    assert policy == (
        f"default-src 'none'; script-src '{script}' 'wasm-unsafe-eval'; worker-src blob:; style-src '{style}'; "
        "img-src data:; base-uri 'none'; form-action 'none'"
    )
    parts = text.count('<script type="text/plain" class="weights">')
    assert parts > 20  # so that none holds a frame up for long
    assert text.count("<script") == text.count("</script") == parts + 5
    assert "\r" not in text


def test_the_first_text_is_there_before_the_model_and_the_same_with_it(open_page, model_page):
    page = open_page(model_page, {"attention": 3, "head": 5, "query": 7})
    tokens, (_, weights) = in_page.tokens(RIVER), in_page.read(RIVER)
    for model in ("", "[data-model=ready]"):
        page.wait_for_selector(f"html{model}")
        page.wait_for_selector(".live-status:not(.computing)")
        assert page.locator(".sentence .queries .token").all_text_contents() == tokens
        found = weights_by(page, ".sentence .keys", "index")
        assert len(found) == len(tokens)
        assert found == pytest.approx(dict(enumerate(weights[3][5, 7].tolist())), abs=1e-3)


@pytest.mark.more
def test_the_precision_stands_in_the_page(open_live):
    shown = open_live().locator("footer").inner_text()
    notes = minilm_8_bits().compare([RIVER]).notes()
    assert [note for note in notes if note not in shown] == []


@pytest.mark.more
def test_two_texts_open_side_by_side(open_page, tmp_path):
    regard.see(RIVER, tmp_path / "page.html", with_model=True, compare=LOAN)
    page = open_page(tmp_path / "page.html", ready="html[data-model=ready]")
    page.wait_for_selector(".live-page.second")
    value = float(page.locator(".similarity").get_attribute("data-value"))
    assert value == pytest.approx(in_page.similarity(in_page.read(RIVER)[0], in_page.read(LOAN)[0]), abs=1e-3)
    assert [page.input_value(f"#text-{i}") for i in (1, 2)] == [RIVER, LOAN]


@pytest.mark.more
def test_texts_without_a_word_in_common_may_be_compared(open_page, tmp_path):
    regard.see("A river", tmp_path / "page.html", with_model=True, compare="No money!")
    page = open_page(tmp_path / "page.html", ready="html[data-model=ready]")
    page.wait_for_selector(".live-page.second")
    assert page.locator("#tab-context").count() == 0


@pytest.fixture
def altered(chromium, model_page, tmp_path):
    """A function that opens the page after a change of its text; whatever it then says on the console."""

    def call(change):
        (tmp_path / "altered.html").write_text(change(model_page.read_text(encoding="utf-8")), encoding="utf-8")
        return browsing.opened(chromium, tmp_path / "altered.html")

    return call


WORKER = '<script type="text/plain" id="worker">'


@pytest.mark.more
@pytest.mark.parametrize(
    ("old", "new", "reason"),
    [
        ("worker-src blob:", "worker-src 'none'", "no worker can be started, as in a frame that is closed to them"),
        ("'wasm-unsafe-eval'", "", "WebAssembly"),
        (WORKER, f"{WORKER}delete self.WebAssembly;", "It needs WebAssembly with SIMD"),
    ],
)
def test_where_no_model_can_run_the_page_says_so_and_shows_what_it_has(altered, old, new, reason):
    with altered(lambda text: text.replace(old, new, 1)) as (page, _):
        page.wait_for_selector("html[data-model=missing]")
        assert status(page).startswith("The model cannot run here: ")
        assert reason in status(page)
        assert status(page).endswith("The page shows the text that it was made with.")
        assert page.locator(".sentence .queries .token").all_text_contents() == in_page.tokens(RIVER)
        assert page.evaluate("document.querySelector('#text-1').readOnly")
        page.click("#tab-map")
        assert page.locator("#view-map canvas").first.is_visible()


def damaged(text, start, offset):
    """A text some of whose characters, so far behind a tag that has some text, stand in reverse."""
    at = text.index(">", text.index(start)) + offset
    return text[:at] + text[at : at + 40][::-1] + text[at + 40 :]


@pytest.mark.more
def test_damaged_weights_are_named(altered):
    with altered(lambda text: damaged(text, 'class="weights">', 500_000)) as (page, _):
        page.wait_for_selector("html[data-model=missing]")
        assert "the model's weights are damaged" in status(page)
        assert "fetch" not in status(page)  # what browsers say of it; there is no network to blame


@pytest.mark.more
@pytest.mark.parametrize("part", ["facts", "numbers", "settings"])
def test_damaged_data_is_named_and_no_network_blamed(altered, part):
    with altered(lambda text: damaged(text, f'id="{part}"', 200)) as (page, _):
        words = page.locator(".broken").text_content()
    assert "the data in this file is damaged" in words
    assert words.endswith("It needs a browser of 2023 or later, and the whole file.")


@pytest.mark.more
def test_a_file_that_is_cut_off_asks_for_the_whole_one(altered):
    with altered(lambda text: text[: len(text) // 2]) as (page, _):
        assert "the whole file" in page.locator("#page").text_content()


@pytest.mark.more
def test_a_frame_of_a_site_can_run_it(open_page, model_page, tmp_path):
    path = tmp_path / "site.html"
    frame = html.escape(model_page.read_text(encoding="utf-8"))
    path.write_text(f"<!doctype html><meta charset=utf-8><iframe sandbox='allow-scripts' srcdoc=\"{frame}\"></iframe>")
    page = open_page(path, ready="iframe")
    (frame,) = page.frames[1:]
    frame.wait_for_selector("html[data-model=ready]", state="attached")


@pytest.mark.usefixtures("as_a_user_runs_it")
@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"layer": 3}, "leave layer out"),
        ({"head": (0, 1)}, "leave head out"),
        ({"target": "a bank"}, "leave target out"),
        ({"max_new_tokens": 3}, "leave max_new_tokens out"),
        ({"image": "river.png"}, "leave image out"),
        ({"compare": [LOAN, "a bank"]}, "compares two texts, and compare has 2"),
        pytest.param({"max_size": 5_000_000}, "the limit is 5,000,000", marks=pytest.mark.more),
        ({"compare": "bank " * 600}, "602 tokens"),
    ],
)
def test_what_does_not_go_with_the_model_is_refused_by_name(tmp_path, options, message):
    with pytest.raises(InputError, match=message):
        regard.see(RIVER, tmp_path / "page.html", model=minilm(), with_model=True, **options)
    assert list(tmp_path.iterdir()) == []


def test_a_recording_and_a_decoder_are_refused(tmp_path):
    with pytest.raises(InputError, match="this is a recording: give a text"):
        regard.see(recorded(random_map(3, 3)), tmp_path / "page.html", with_model=True)
    with pytest.raises(InputError, match="encoders of the BERT family only; for other models there is `regard live`"):
        regard.see(RIVER, tmp_path / "page.html", model=smollm2(), with_model=True)


@pytest.mark.more
def test_the_command_writes_it(command, tmp_path):
    out = printed(command, "see", RIVER, "--with-model", "--out", tmp_path / "live.html")
    assert 20 < float(re.search(r"([\d.]+) MB$", out.strip())[1]) < 32


@pytest.mark.parametrize(
    ("arguments", "option"),
    [
        (["--recording", "seen.safetensors"], "--recording"),
        ([RIVER, "--max-new-tokens", "3"], "--max-new-tokens"),
        ([RIVER, "--terminal"], "--terminal"),
        ([RIVER, "--layer", "0"], "--layer"),
        ([RIVER, "--head", "0.1"], "--head"),
        ([RIVER, "--effects", "effects.json"], "--effects"),
    ],
)
def test_the_command_refuses_what_belongs_to_other_pages(command, arguments, option):
    message = refusal(command, "see", *arguments, "--with-model")
    assert message.startswith("regard: --with-model puts the model into the page of a TEXT")
    assert message.endswith(f"leave {option} out\n")
