"""`scale`, `temperature` and `set_scores` of some queries: the rows are those of the definition, the others stay."""

from collections.abc import Sequence
from functools import partial
from typing import Any

import pytest
import torch
from torch import Tensor

import regard
from lens.interventions.by_hand import Edit, attention
from lens.watching import FunctionModel
from regard import mask
from regard.attention.mask import Mask
from regard.attention.positions import ALiBi

CASES: dict[str, dict[str, Any]] = {
    "plain": {},
    "causal": {"mask": mask.causal()},
    "softcap": {"softcap": 1.5},
    "sinks": {"sinks": torch.tensor([0.5, -1.0, 2.0, 0.0], dtype=torch.float64)},
    "bias": {"bias": torch.linspace(-2, 2, 100, dtype=torch.float64).reshape(4, 5, 5)},
    "all": {"mask": mask.causal(), "softcap": 1.5, "sinks": torch.ones(4).double(), "bias": torch.ones(5).double()},
    "alibi": {"bias": ALiBi(4), "mask": mask.causal()},
}


def attending(**options: Any) -> FunctionModel:
    """A model that calls `regard.attend`, with two key heads for four query heads."""
    return FunctionModel(partial(regard.attend, **options))


def inputs() -> tuple[Tensor, Tensor, Tensor]:
    shapes = (1, 4, 5, 6), (1, 2, 5, 6), (1, 2, 5, 3)
    q, k, v = (torch.randn(shape, dtype=torch.float64) for shape in shapes)
    return q, k, v


def by_hand(tensors: Sequence[Tensor], edits: Sequence[Edit], options: dict[str, Any]) -> Tensor:
    """The output of every row with the edits."""
    options = {name: t.dense(5, 5) if isinstance(t, Mask | ALiBi) else t for name, t in options.items()}
    return attention(*tensors, edits, **options).output


@pytest.mark.parametrize("case", CASES)
@pytest.mark.parametrize("queries", [[2], [1, 4], None])
@pytest.mark.parametrize(
    "edits",
    [
        {"factor": 0.3},
        {"temperature": 2.5},
        {"scores": {0: 3.0, 2: -4.0}},
        {"factor": -1.5, "scores": {1: 2.0}, "temperature": 0.4},
    ],
)
def test_edited_rows_are_those_of_the_definition(case, queries, edits):
    options, tensors = CASES[case], inputs()
    model = attending(**options)
    before = model(*tensors)
    with regard.intervene(model) as edit:
        head = edit["attn"].heads[1]
        if "factor" in edits:
            head.scale(edits["factor"], queries)
        if "scores" in edits:
            head.set_scores(edits["scores"], queries)
        if "temperature" in edits:
            head.temperature(edits["temperature"], queries)
        after = model(*tensors)
    expected = by_hand(tensors, [Edit("attn", heads=[1], rows=queries, **edits)], options)
    torch.testing.assert_close(after, expected, rtol=1e-9, atol=1e-9)
    others = [0, 2, 3]
    assert torch.equal(after[:, others], before[:, others])
    assert max(row.error for row in edit.report().edits) < 1e-9


def test_edits_of_different_rows_of_one_head_do_not_meet():
    tensors, model = inputs(), attending()
    with regard.intervene(model) as edit:
        edit["attn"].heads[0].scale(0.5, 1)
        edit["attn"].heads[0].temperature(3, [2, 3])
        edit["attn"].heads[0].set_scores({4: 7.0}, -1)
        after = model(*tensors)
    edits = {1: {"factor": 0.5}, 2: {"temperature": 3}, 3: {"temperature": 3}, 4: {"scores": {4: 7.0}}}
    expected = by_hand(tensors, [Edit("attn", heads=[0], rows=[row], **of_row) for row, of_row in edits.items()], {})
    torch.testing.assert_close(after, expected, rtol=1e-9, atol=1e-9)


def test_a_scale_of_one_row_and_a_block_of_another_count_for_their_rows_alone():
    tensors, model = inputs(), attending(mask=mask.causal())
    with regard.intervene(model) as edit:
        edit["attn"].block(queries=[4], keys=[0])
        edit["attn"].scale(2.0, [3])
        both = model(*tensors)
    with regard.intervene(model) as edit:
        edit["attn"].block(queries=[4], keys=[0])
        blocked = model(*tensors)
    assert torch.equal(both[:, :, [0, 1, 2, 4]], blocked[:, :, [0, 1, 2, 4]])
    assert not torch.allclose(both[:, :, 3], blocked[:, :, 3])


def test_gradients_flow_through_edited_scores():
    tensors = [t.requires_grad_() for t in inputs()]
    model = attending(softcap=2.0)

    def edited(*tensors: Tensor) -> Tensor:
        with regard.intervene(model, verify=False) as edit:
            head = edit["attn"].heads[2]
            head.scale(0.7, [1])
            head.set_scores({0: 1.0}, [1])
            head.temperature(1.4, [1, 2])
            return model(*tensors)

    assert torch.autograd.gradcheck(edited, tensors, fast_mode=True)


def test_the_report_names_the_edits_as_they_were_written():
    model = attending()
    with regard.intervene(model) as edit:
        edit["attn"].scale(0.5, [1])
        edit["attn"].temperature(2)
        edit["attn"].set_scores({3: 1.5}, 2)
        model(*inputs())
    text = str(edit.report())
    for written in ("scale(0.5, queries=[1])", "temperature(2)", "set_scores({3: 1.5}, queries=[2])"):
        assert written in text


def test_a_key_that_no_call_has_is_an_error():
    model = attending()

    def edited() -> None:
        with regard.intervene(model) as edit:
            edit["attn"].set_scores({7: 1.0}, 2)
            model(*inputs())

    with pytest.raises(IndexError, match="no call had the keys"):
        edited()


@pytest.mark.parametrize("value", [0, -1, float("inf"), float("nan"), "2", True])
def test_a_temperature_that_is_no_number_above_0_is_refused(as_a_user_runs_it, value):
    with pytest.raises(ValueError, match="a finite number above 0"), regard.intervene(attending()) as edit:
        edit["attn"].temperature(value)


@pytest.mark.parametrize("scores", [{}, {0: float("nan")}, {0: "1"}])
def test_scores_that_are_no_numbers_are_refused(as_a_user_runs_it, scores):
    with pytest.raises(ValueError, match="a finite number for each key"), regard.intervene(attending()) as edit:
        edit["attn"].set_scores(scores)


def test_positions_that_are_no_numbers_are_refused(as_a_user_runs_it):
    with regard.intervene(attending()) as edit:
        for write in (
            lambda: edit["attn"].scale(2, "1"),
            lambda: edit["attn"].temperature(2, [1.5]),
            lambda: edit["attn"].set_scores({"0": 1.0}),
        ):
            with pytest.raises(TypeError):
                write()
