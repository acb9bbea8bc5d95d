"""The page of `regard live` with a small random model of every family: each view opens, and answers what is typed."""

import pytest
from playwright.sync_api import expect

import regard
from regard.server import LiveServer
from weights import FAMILIES, random_checkpoint

SILENT = "a bank, the river"
"""For which the random T5 writes nothing."""
TEXT = "the river bank?"
TYPED = "the river bank"
CLICKS = ("#view-whatif .may >> nth=0", ".head-off")


@pytest.mark.more
@pytest.mark.parametrize("family", FAMILIES)
def test_every_view_of_every_family_answers(chromium, tmp_path, family):
    random_checkpoint(tmp_path / family, family)
    with LiveServer(regard.load(tmp_path / family), texts=[TEXT]) as server, chromium.served(server.url) as (page, log):
        page.wait_for_selector("html[data-ready]")
        count = page.locator(".live-status .words").inner_text().split(" · ")[0]
        page.fill("#text-1", TYPED)
        page.wait_for_selector(f".live-status .words:has-text(' tokens · '):not(:has-text('{count}'))")
        views = page.locator("[role=tab]").evaluate_all("all => all.map((each) => each.id.slice(4))")
        assert {"sentence", "heads", "map", "arithmetic", "whatif", "effect"} <= set(views)
        for view in views:
            page.click(f"#tab-{view}")
            expect(page.locator(f"#view-{view}")).to_be_visible()
        page.click("#tab-whatif")
        for click in CLICKS:
            page.click(click)
            page.wait_for_selector(".through-model:not(.pending) .cell")
        assert page.locator(".through-model .doubt").all_text_contents() == []
        page.click("#tab-effect")
        for over in page.locator(".effectOver option").evaluate_all("all => all.map((each) => each.value)"):
            page.select_option(".effectOver", over)
            page.click(".compute")
            page.wait_for_selector(f".effect-part[data-over={over}] tbody tr")
            page.wait_for_selector(".effect-controls .cancel", state="hidden")
            assert page.locator(".effect-controls .message").inner_text() == ""
        assert page.locator(".live-status .error").count() == 0
    assert log == []


@pytest.mark.more
def test_an_encoder_decoder_that_writes_nothing_says_so_and_no_change_waits_for_it(chromium, tmp_path):
    random_checkpoint(tmp_path / "t5", "t5")
    with LiveServer(regard.load(tmp_path / "t5"), texts=[TYPED]) as server, chromium.served(server.url) as (page, log):
        page.wait_for_selector("html[data-ready]")
        page.fill("#text-1", SILENT)
        page.wait_for_selector(".live-status .error:has-text('writes nothing for this text')")
        page.click("#tab-whatif")
        page.click(".head-off")
        page.wait_for_selector(".moved:has-text('The model gave no answer')")
    assert log == []
