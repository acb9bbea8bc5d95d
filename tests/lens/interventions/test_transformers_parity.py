"""Every kind of edit in models of transformers and in layers: the numbers of the same model with attention by hand."""

import pytest
import torch

import regard
from lens.interventions.architectures import (
    ARCHITECTURES,
    CHEAP,
    EAGER,
    FUSED,
    LIMITS,
    Architecture,
    architecture,
    cheap_first,
    sites,
)
from lens.interventions.by_hand import Edit
from lens.interventions.comparing import assert_same, largest_difference
from lens.interventions.edits import KINDS, NEEDS_SCORES, Site
from lens.watching import output_tensors

pytestmark = pytest.mark.filterwarnings("ignore:flex_attention called without torch.compile")
MIN_EFFECT = 1e-4
"""By how much an edit has to change the output at least, so that it can be seen to be right."""


def assert_parity(this: Architecture, site: Site, kind: str, padding: str, limit: float) -> None:
    """A model under an edit gives the numbers of the model by hand under that edit, and its report says so."""
    inputs = this.inputs(padding)
    with torch.no_grad():
        with regard.intervene(this.model) as edit:
            edits = KINDS[kind](edit[site.path], site)
            got = this.model(**inputs)
        expected = this.by_hand(*edits, **inputs)
        assert largest_difference(this.model(**inputs), expected) > MIN_EFFECT
    assert_same(got, expected, limit)
    for report in edit.report().edits:
        assert (report.calls, report.largest_change > 0) == (1, True)
        assert report.error is None or report.error <= limit


@pytest.mark.parametrize(
    ("name", "kind"),
    [
        pytest.param(name, kind, id=f"{name}-{kind}", marks=() if name in CHEAP else pytest.mark.more)
        for name in ARCHITECTURES
        for kind in KINDS
        if not (name in EAGER and kind in NEEDS_SCORES)
    ],
)
def test_an_edited_model_gives_the_numbers_of_the_edited_model_by_hand(name, kind):
    padding = ARCHITECTURES[name].paddings[-1]
    for site in sites(name, padding):
        assert_parity(architecture(name), site, kind, padding, LIMITS[name])


@pytest.mark.more
@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("name", ["llama", "bert", "t5", "mistral"])
def test_in_float32_the_numbers_differ_by_rounding_only(name, kind):
    padding = ARCHITECTURES[name].paddings[-1]
    for site in sites(name, padding, torch.float32):
        assert_parity(architecture(name, torch.float32), site, kind, padding, 2e-5)


@pytest.mark.parametrize("name", EAGER)
@pytest.mark.parametrize("kind", sorted(NEEDS_SCORES))
def test_eager_attention_refuses_what_needs_its_scores(name, kind):
    this = architecture(name)
    (site,) = sites(name, "even")

    def run() -> None:
        with torch.no_grad(), regard.intervene(this.model) as edit:
            KINDS[kind](edit[site.path], site)
            this.model(**this.inputs("even"))

    with pytest.raises(ValueError, match=site.path):
        run()


@pytest.mark.parametrize("name", cheap_first(FUSED))
def test_edits_of_every_attention_of_a_model_at_once(name):
    this, padding = architecture(name), ARCHITECTURES[name].paddings[-1]
    inputs = this.inputs(padding)
    with torch.no_grad():
        calls = this.by_hand.attended(**inputs)
        with regard.intervene(this.model) as edit:
            edits = []
            for path, kind in zip(
                calls, ["scale of one head", "zero", "block", "bias", "mean", "mask"] * 2, strict=False
            ):
                edits += KINDS[kind](edit[path], Site(path, (*calls[path].weights.shape,)))
            got = this.model(**inputs)
        expected = this.by_hand(*edits, **inputs)
    assert_same(got, expected, LIMITS[name])
    assert len(edit.report().edits) == len(calls)


@pytest.mark.parametrize("name", cheap_first(ARCHITECTURES))
def test_without_edits_every_bit_is_kept(name):
    this, padding = architecture(name), ARCHITECTURES[name].paddings[-1]
    inputs = this.inputs(padding)
    with torch.no_grad():
        expected = this.model(**inputs)
        with regard.intervene(this.model):
            got = this.model(**inputs)
    assert all(map(torch.equal, output_tensors(got), output_tensors(expected)))


CAUSAL = ["llama", "gpt2", "mistral", "qwen3", "gpt_neox", "falcon", "gpt_oss", "bloom"]


@pytest.mark.parametrize("name", cheap_first(CAUSAL))
def test_rows_that_are_not_edited_keep_every_bit(name):
    """Tokens before the one whose query is edited do not see it."""
    this = architecture(name, torch.float32)
    path = sites(name, "even")[0].path
    inputs = this.inputs("even")
    with torch.no_grad():
        expected = this.model(**inputs).last_hidden_state
        with regard.intervene(this.model) as edit:
            edit[path].block(queries=[7], keys=[6])
            got = this.model(**inputs).last_hidden_state
    assert [torch.equal(got[:, i], expected[:, i]) for i in range(8)] == [True] * 7 + [False]


@pytest.mark.parametrize("name", ["bert", "gpt_neox", "llama"])
def test_a_resampled_head_is_that_of_one_of_the_texts_at_the_same_positions(name):
    this = architecture(name)
    inputs, (site, *_) = this.inputs("even"), sites(name, "even")
    with torch.no_grad():
        texts = torch.cat([attended.output for attended in site.attended])
        candidates = [next(output_tensors(this.by_hand(site.edit(heads=[1], output=text), **inputs))) for text in texts]
        drawn = []
        for seed in range(8):
            with regard.intervene(this.model) as edit:
                edit[site.path].heads[1].ablate("resample", list(site.recordings), seed=seed)
                got = next(output_tensors(this.model(**inputs)))
            scale = got.abs().max()
            same = [
                [n for n, c in enumerate(candidates) if (got[row] - c[row]).abs().max() < 1e-9 * scale]
                for row in range(len(got))
            ]
            drawn += same
    assert all(len(found) == 1 for found in drawn)
    assert len({found[0] for found in drawn}) == len(texts)


@pytest.mark.parametrize("part", ["output", "weights", "values", "queries", "keys"])
@pytest.mark.parametrize("name", ["llama", pytest.param("bert", marks=pytest.mark.more)])
def test_one_recorded_text_is_put_into_every_text(name, part):
    this = architecture(name)
    inputs, path = this.inputs("even"), sites(name, "even")[0].path
    one = {key: t[:1] for key, t in this.inputs("even", 3).items()}
    with torch.no_grad():
        with regard.watch(this.model) as recording:
            this.model(**one)
        attended = this.by_hand.attended(**one)[path]
        with regard.intervene(this.model) as edit:
            edit[path].heads[[0, 3]].patch(recording, part)
            got = this.model(**inputs)
        field = part if part in ("output", "weights") else part[0]
        expected = this.by_hand(Edit(path, heads=[0, 3], **{field: getattr(attended, field)}), **inputs)
        assert largest_difference(this.model(**inputs), expected) > MIN_EFFECT
    assert_same(got, expected, LIMITS[name])
