"""What an `Effects` says: the strongest, the table and its sentence, files, figures."""

import json
import math
from dataclasses import replace

import pytest
import torch

import regard
from regard import InputError
from regard.lens.effects.statistics import correlation, ranks
from regard.lens.effects.table import summary

NAN = math.nan


def make(over="heads", values=None, **options):
    """Effects of two layers with three heads, in one text."""
    values = torch.tensor([[[3.0, -0.3, 0.0], [0.5, -4.0, 1.0]]] if values is None else values, dtype=torch.float64)
    fields = {"metric": "logit_difference('a', 'b')", "ablation": "zero", "method": "exact"}
    fields |= {"paths": ("h.0.attn", "h.1.attn"), "tokens": (("When", " Mary", "\n"),)}
    return regard.Effects(over, **(fields | options), baseline=torch.full((len(values),), 6.0).double(), values=values)


LOOKED_AT = torch.tensor([[[0.05, 0.81, 0.1], [0.2, 0.0, 0.3]]], dtype=torch.float64)


class TestTop:
    def test_it_goes_by_size_whatever_the_sign(self):
        ranked = make(looked_at=LOOKED_AT).top(3)
        assert [row.name for row in ranked] == ["1.1", "0.0", "1.2"]
        assert [row.effect for row in ranked] == [-4.0, 3.0, 1.0]
        assert [row.looked_at for row in ranked] == [0.0, 0.05, 0.3]
        assert ranked[0].index == (0, 1, 1)
        assert math.isnan(ranked[0].estimate)

    def test_estimates_stand_in_where_nothing_is_exact(self):
        values = [[[NAN, 2.0, NAN], [NAN, NAN, NAN]]]
        estimates = torch.tensor([[[5.0, 9.0, 0.1], [NAN, 0.0, 0.0]]], dtype=torch.float64)
        effects = make(values=values, estimates=estimates, method="both")
        assert [(row.name, row.best) for row in effects.top(2)] == [("0.0", 5.0), ("0.1", 2.0)]
        assert len(effects.top(100)) == 5  # the head that an attention lacks is none

    def test_several_texts_are_their_mean_or_one_of_them(self):
        effects = make(values=[[[1.0, 0.0]], [[0.0, 3.0]]], paths=("attn",), tokens=((), ()))
        assert effects.top(1)[0].effect == 1.5
        assert effects.top(1, text=0)[0].effect == 1.0
        assert effects.top(1, text=1)[0].index == (1, 0, 1)

    @pytest.mark.parametrize(
        ("options", "error", "says"),
        [
            ({"k": 0}, ValueError, r"top\(0\): k is 1 or more"),
            ({"k": 1, "text": 1}, IndexError, "there is no text 1: there are 1"),
        ],
    )
    def test_what_is_not_there_is_refused(self, options, error, says):
        with pytest.raises(error, match=says):
            make().top(**options)


class TestNames:
    def test_layers_have_the_names_of_the_attentions(self):
        effects = make("layers", [[1.0, 2.0]], names=("encoder 0", "cross 0"))
        assert [row.name for row in effects.top()] == ["cross 0", "encoder 0"]

    def test_tokens_have_their_position(self):
        effects = make("tokens", [[1.0, 3.0, 2.0]], ablation="block")
        assert [row.name for row in effects.top()] == ["' Mary'@1", "'\\n'@2", "'When'@0"]

    def test_edges_name_both_ends_and_the_layers(self):
        edges = {"queries": (-1,), "keys": ((0,), (0, 1)), "windows": ((0,), (0, 1)), "ablation": "block"}
        effects = make("edges", [[[[1.0, 2.0]], [[3.0, 4.0]]]], **edges)
        names = ["'\\n'@2 to 'When'@0 ' Mary'@1, layers 0-1", "'\\n'@2 to 'When'@0, layers 0-1"]
        names += ["'\\n'@2 to 'When'@0 ' Mary'@1, layer 0", "'\\n'@2 to 'When'@0, layer 0"]
        assert [row.name for row in effects.top()] == names

    def test_positions_stand_for_tokens_that_nobody_knows(self):
        assert make("tokens", [[1.0]], tokens=((),)).top()[0].name == "@0"


class TestTable:
    def test_looked_at_stands_beside_mattered(self):
        effects = make(looked_at=LOOKED_AT, looked_at_name="attention from the last token to ' Mary'")
        lines = str(effects).splitlines()
        assert lines[0].startswith("Effect of each head on logit_difference('a', 'b'): 6 as the model is")
        assert "Ablation: zero" in lines[1]
        assert "computed exactly" in lines[1]
        assert lines[2] == "Looked at: attention from the last token to ' Mary'."
        assert lines[3].split() == ["head", "looked", "at", "effect"]
        assert lines[5].split() == ["1.1", "0.000", "-4.00", "░" * 16]
        assert lines[6].split() == ["0.0", "0.050", "█", "+3.00", "█" * 12]
        assert lines[11] == (
            "Over 6 heads, attention from the last token to ' Mary' and effect correlate at 0.076; the head that looks "
            "hardest, 0.1 (0.81), adds -0.3 to the metric; the head that matters most, 1.1, adds -4 of 6 (it gives "
            "0.00)."
        )

    @pytest.mark.parametrize(("baseline", "part"), [(6.0, " of 6 ("), (-1e-7, "adds -4 (")])
    def test_an_effect_is_no_part_of_a_metric_that_is_0_but_for_rounding(self, baseline, part):
        effects = replace(make(looked_at=LOOKED_AT), baseline=torch.tensor([baseline], dtype=torch.float64))
        assert part in summary(effects)

    @pytest.mark.parametrize("ablation", ["zero", "mean", "resample"])
    def test_the_ablation_is_named(self, ablation):
        assert f"Ablation: {ablation}, " in str(make(ablation=ablation))

    def test_notes_stand_below(self):
        assert str(make(notes=("one thing",))).endswith("\nNote: one thing.")

    def test_estimates_have_a_column_and_are_said_to_be_some(self):
        values = torch.tensor([[[NAN, 2.0, 1.0], [NAN, NAN, NAN]]], dtype=torch.float64)
        estimates = torch.tensor([[[5.0, 9.0, 0.1], [0.0, 0.0, 0.0]]], dtype=torch.float64)
        text = str(make(values=values.tolist(), estimates=estimates, method="both", looked_at=LOOKED_AT))
        assert text.splitlines()[3].split() == ["head", "looked", "at", "effect", "estimate"]
        assert "0.0, adds about 5 of 6" in text
        assert "estimate and exact effect have the rank correlation 1." in text

    def test_of_several_texts_the_mean_is_said(self):
        effects = make(values=[[[1.0, 0.0]], [[0.0, 3.0]]], paths=("attn",), tokens=((), ()))
        assert "(mean of 2 texts)" in str(effects)
        assert "(text 1 of 2, counted from 0)" in effects.table(text=1)

    def test_nothing_known_is_said(self):
        assert "Nothing is known yet." in str(make("layers", [[NAN, NAN]]))

    def test_control_characters_never_reach_the_terminal(self):
        assert "\x1b" not in str(make("tokens", [[1.0]], tokens=(("\x1b[31m",),), metric="\x1b"))

    def test_wide_characters_keep_the_columns(self):
        lines = make("tokens", [[1.0, 2.0]], tokens=(("魚", "fish"),), looked_at=torch.ones(1, 2)).table().splitlines()
        assert lines[5].index("+2.00") == lines[6].index("+1.00") + 1  # one wide character is two columns


class TestCorrelation:
    def test_it_is_that_of_the_numbers_or_of_the_ranks(self):
        x = torch.tensor([1.0, 2.0, 3.0, 100.0])
        y = torch.tensor([1.0, 3.0, 2.0, 4.0])
        assert correlation(x, y) == pytest.approx(float(torch.corrcoef(torch.stack([x, y]))[0, 1]))
        assert correlation(x, y, rank=True) == pytest.approx(0.8)
        assert correlation(x, -x.exp().log1p(), rank=True) == pytest.approx(-1.0)

    def test_equal_numbers_share_a_rank(self):
        assert ranks(torch.tensor([5.0, 1.0, 5.0, 2.0])).tolist() == [2.5, 0.0, 2.5, 1.0]

    @pytest.mark.parametrize("y", [[1.0, 1.0, 1.0], [NAN, NAN, 1.0]])
    def test_what_is_undefined_is_nan(self, y):
        assert math.isnan(correlation(torch.tensor([1.0, 2.0, 3.0]), torch.tensor(y)))

    def test_a_column_that_was_not_computed_is_named(self):
        with pytest.raises(ValueError, match="estimates was not computed for these effects over heads, method 'exact'"):
            make().correlation("estimates")
        with pytest.raises(ValueError, match="there is no column 'weights': the columns are values, estimates"):
            make().correlation("weights")


class TestFiles:
    def test_what_is_loaded_is_what_was_saved(self, tmp_path):
        effects = make(values=[[[NAN, 1 / 3, -0.0], [1e-30, 2.0, 3.0]]], looked_at=LOOKED_AT, notes=("a", "b"))
        effects.save(tmp_path / "effects.json")
        loaded = regard.Effects.load(tmp_path / "effects.json")
        assert str(loaded) == str(effects)
        assert torch.equal(loaded.values.nan_to_num(9.0), effects.values.nan_to_num(9.0))
        assert loaded.estimates is None
        assert loaded.to_json() == effects.to_json()

    @pytest.mark.parametrize(
        ("change", "says"),
        [
            (lambda facts: facts.pop("values"), "it is damaged: KeyError"),
            (lambda facts: facts.update(values="x"), "damaged"),
            (lambda facts: facts.update(values=[[1.0]]), "have 3 axes"),
            (lambda facts: facts.update(over="words"), "over='words': it is one of"),
            (lambda facts: facts.update(version=2), "it has version 2, and this regard reads 1: update regard"),
            (lambda facts: facts.update(format="x"), "no file of Effects.save"),
            (lambda facts: facts.update(looked_at=[[[1.0]]]), "looked_at is (1, 1, 1), and values is (1, 2, 3)"),
        ],
    )
    @pytest.mark.usefixtures("as_a_user_runs_it")
    def test_a_damaged_file_is_refused(self, change, says, tmp_path):
        facts = make().to_json()
        change(facts)
        path = tmp_path / "effects.json"
        path.write_text(json.dumps(facts))
        with pytest.raises(InputError) as error:
            regard.Effects.load(path)
        assert says in str(error.value)
        assert str(path) in str(error.value)

    def test_no_json_is_refused(self, tmp_path):
        (tmp_path / "x.json").write_text("{")
        with pytest.raises(InputError, match="cannot be read as effects"):
            regard.Effects.load(tmp_path / "x.json")
