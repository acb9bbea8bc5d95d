"""The facts of effects in a page: of the text that it shows, and of the heads that it has."""

import re
from dataclasses import replace

import pytest
import torch

from regard.views.html.effects import MAX_PARTS, effect_facts, effects_of_page
from regard.views.html.facts import PageTexts
from regard.views.html.page import build_page, render_page
from views.made_effects import edge_effects, head_effects, layer_effects, token_effects
from views.recordings import random_map, recorded, river


def page_facts(recording, *effects):
    return build_page(recording, effects=list(effects)).facts


def test_each_head_has_its_place_in_the_page():
    (facts,) = page_facts(river(), head_effects())["effects"]
    assert [(part["attention"], part["head"]) for part in facts["parts"]] == [(n // 12, n % 12) for n in range(72)]
    assert facts["parts"][13] == {
        "name": "1.1",
        "attention": 1,
        "head": 1,
        "token": None,
        "effect": pytest.approx(float(head_effects().values[0, 1, 1]), rel=1e-5),
        "estimate": None,
        "looked_at": pytest.approx(float(head_effects().looked_at[0, 1, 1]), rel=1e-5),
    }


def test_a_head_that_the_page_does_not_have_leads_nowhere():
    part = river().select(heads=[("blocks.1.attention", 3)])
    (facts,) = page_facts(part, head_effects())["effects"]
    places = {part["name"]: (part["attention"], part["head"]) for part in facts["parts"]}
    assert places["1.3"] == (0, 0)
    assert places["1.2"] == (0, None)
    assert places["0.3"] == (None, None)


def test_effects_of_another_model_are_refused():
    with pytest.raises(ValueError, match=r"these effects are of blocks\.0\.attention, .* the recording has layers\.0"):
        build_page(recorded(random_map(4, 4)), effects=head_effects())


@pytest.mark.usefixtures("as_a_user_runs_it")
def test_something_else_than_effects_is_refused():
    with pytest.raises(TypeError, match=re.escape("effects are results of regard.effect, one or a list; got str")):
        build_page(river(), effects=["x"])


def test_a_page_of_one_text_of_several_shows_the_effects_of_this_text():
    one = layer_effects()
    two = replace(one, values=torch.cat([one.values, -one.values]), baseline=torch.tensor([0.5, 2.0]), tokens=((), ()))
    texts, heads = PageTexts(), {path: (n, [0]) for n, path in enumerate(one.paths)}
    second = effect_facts(effects_of_page(two, 1, 2), heads, texts)
    assert (second["num_texts"], second["baseline"]) == (1, 2.0)
    assert [part["effect"] for part in second["parts"]] == pytest.approx((-one.values[0]).tolist(), rel=1e-5)
    mean = effect_facts(effects_of_page(two, 0, 1), heads, texts)
    assert (mean["num_texts"], mean["baseline"]) == (2, 1.25)
    assert [part["effect"] for part in mean["parts"]] == [0.0] * 6


def test_what_is_not_a_number_is_null_and_counts_not():
    (facts,) = page_facts(river(), head_effects("both"))["effects"]
    assert sum(part["effect"] is None for part in facts["parts"]) == 72 - 20
    assert facts["num_parts"] == len(facts["parts"]) == 72
    assert (facts["has_exact"], facts["has_estimates"]) == (True, True)


def test_of_many_tokens_the_strongest_are_in_the_page():
    values = torch.linspace(-1, 2, MAX_PARTS + 500, dtype=torch.float64)[None]
    effects = replace(token_effects(), values=values, looked_at=None, tokens=())
    facts = effect_facts(effects, {}, texts := PageTexts())
    assert (len(facts["parts"]), facts["num_parts"]) == (MAX_PARTS, MAX_PARTS + 500)
    strongest = values[0].abs().topk(MAX_PARTS).indices.sort().values.tolist()
    assert [part["token"] for part in facts["parts"]] == strongest
    assert len(texts.tokens(facts["text"])) == MAX_PARTS + 500


def test_an_edge_leads_to_the_first_layer_of_its_window():
    (facts,) = page_facts(river(), edge_effects())["effects"]
    assert [part["attention"] for part in facts["parts"]] == [0, 0, 0, 0, 1, 1, 2, 2, 3, 3, 4, 4]


def test_the_page_of_effects_is_that_of_their_recording_and_opens_with_them(tmp_path):
    text = replace(head_effects(), recording=river()).to_html(tmp_path / "page.html", model="minilm")
    assert (tmp_path / "page.html").read_text(encoding="utf-8") == text
    assert text == render_page(river(), effects=head_effects(), view="effect", model="minilm")


def test_a_file_of_effects_has_no_recording(tmp_path):
    effects = replace(head_effects(), recording=river())
    effects.save(tmp_path / "effects.json")
    assert type(effects).load(tmp_path / "effects.json").recording is None


def test_there_is_no_page_of_a_text_that_is_not_there():
    with pytest.raises(IndexError, match="there is no text 1: there are 1"):
        head_effects().to_html(text=1)
