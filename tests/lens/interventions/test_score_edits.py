"""`scale`, `temperature` and `set_scores` of some queries: the rows are those of the definition, the others stay."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from torch import Tensor, nn

import regard
from regard import mask
from regard.attention.steps import steps

CASES: dict[str, dict[str, Any]] = {
    "plain": {},
    "causal": {"mask": mask.causal()},
    "softcap": {"softcap": 1.5},
    "sinks": {"sinks": torch.tensor([0.5, -1.0, 2.0, 0.0], dtype=torch.float64)},
    "bias": {"bias": torch.linspace(-2, 2, 100, dtype=torch.float64).reshape(4, 5, 5)},
    "all": {"mask": mask.causal(), "softcap": 1.5, "sinks": torch.ones(4).double(), "bias": torch.ones(5).double()},
    "alibi": {"bias": regard.positions.ALiBi(4), "mask": mask.causal()},
}


class Attending(nn.Module):
    """A module that calls `regard.attend` on its input, two key heads for four query heads."""

    def __init__(self, **options: Any) -> None:
        super().__init__()
        self.options = options

    def forward(self, q: Tensor, k: Tensor, v: Tensor) -> Tensor:
        options = {**self.options}
        return regard.attend(q, k, v, options.pop("mask", None), **options)


class Model(nn.Module):
    def __init__(self, **options: Any) -> None:
        super().__init__()
        self.attention = Attending(**options)

    def forward(self, *inputs: Tensor) -> Tensor:
        return self.attention(*inputs)


def inputs() -> tuple[Tensor, Tensor, Tensor]:
    shapes = (1, 4, 5, 6), (1, 2, 5, 6), (1, 2, 5, 3)
    q, k, v = (torch.randn(shape, dtype=torch.float64) for shape in shapes)
    return q, k, v


def by_hand(q: Tensor, k: Tensor, v: Tensor, options: dict[str, Any], **edits: Any) -> Tensor:
    """The output of every row with the edits, from the scores on."""
    exact = steps(q, k, v, options.get("mask"), **{name: value for name, value in options.items() if name != "mask"})
    scores = exact.scores.clone()
    for key, score in edits.get("scores", {}).items():
        scores[..., key] = score
    scaled = scores * 6**-0.5 * edits.get("factor", 1.0)
    softcap = options.get("softcap")
    capped = scaled if softcap is None else softcap * torch.tanh(scaled / softcap)
    logits = capped + (exact.biased - exact.capped)
    logits = logits.masked_fill(exact.masked == -torch.inf, -torch.inf) / edits.get("temperature", 1.0)
    sinks = options.get("sinks")
    if sinks is not None:
        sink = (sinks / edits.get("temperature", 1.0))[None, :, None, None].expand(*logits.shape[:3], 1)
        logits = torch.cat([logits, sink], -1)
    weights = logits.softmax(-1)[..., : k.shape[2]]
    return weights @ v.repeat_interleave(2, 1)


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
    model = Model(**options)
    before = model(*tensors)
    with regard.intervene(model) as edit:
        head = edit["attention"].heads[1]
        if "factor" in edits:
            head.scale(edits["factor"], queries)
        if "scores" in edits:
            head.set_scores(edits["scores"], queries)
        if "temperature" in edits:
            head.temperature(edits["temperature"], queries)
        after = model(*tensors)
    rows = slice(None) if queries is None else queries
    expected = before.clone()
    expected[:, 1, rows] = by_hand(*tensors, options, **edits)[:, 1, rows]
    torch.testing.assert_close(after, expected, rtol=1e-9, atol=1e-9)
    others = [0, 2, 3]
    assert torch.equal(after[:, others], before[:, others])
    assert max(row.error for row in edit.report().edits) < 1e-9


def test_edits_of_different_rows_of_one_head_do_not_meet():
    tensors, model = inputs(), Model()
    with regard.intervene(model) as edit:
        edit["attention"].heads[0].scale(0.5, 1)
        edit["attention"].heads[0].temperature(3, [2, 3])
        edit["attention"].heads[0].set_scores({4: 7.0}, -1)
        after = model(*tensors)
    expected = model(*tensors)
    for rows, edits in (([1], {"factor": 0.5}), ([2, 3], {"temperature": 3}), ([4], {"scores": {4: 7.0}})):
        expected[:, 0, rows] = by_hand(*tensors, {}, **edits)[:, 0, rows]
    torch.testing.assert_close(after, expected, rtol=1e-9, atol=1e-9)


def test_a_scale_of_one_row_and_a_block_of_another_count_for_their_rows_alone():
    tensors, model = inputs(), Model(mask=mask.causal())
    with regard.intervene(model) as edit:
        edit["attention"].block(queries=[4], keys=[0])
        edit["attention"].scale(2.0, [3])
        both = model(*tensors)
    with regard.intervene(model) as edit:
        edit["attention"].block(queries=[4], keys=[0])
        blocked = model(*tensors)
    assert torch.equal(both[:, :, [0, 1, 2, 4]], blocked[:, :, [0, 1, 2, 4]])
    assert not torch.allclose(both[:, :, 3], blocked[:, :, 3])


def test_gradients_flow_through_edited_scores():
    tensors = [t.requires_grad_() for t in inputs()]
    model = Model(softcap=2.0)

    def edited(*tensors: Tensor) -> Tensor:
        with regard.intervene(model, verify=False) as edit:
            head = edit["attention"].heads[2]
            head.scale(0.7, [1])
            head.set_scores({0: 1.0}, [1])
            head.temperature(1.4, [1, 2])
            return model(*tensors)

    assert torch.autograd.gradcheck(edited, tensors)


def test_the_report_names_the_edits_as_they_were_written():
    model = Model()
    with regard.intervene(model) as edit:
        edit["attention"].scale(0.5, [1])
        edit["attention"].temperature(2)
        edit["attention"].set_scores({3: 1.5}, 2)
        model(*inputs())
    text = str(edit.report())
    for written in ("scale(0.5, queries=[1])", "temperature(2)", "set_scores({3: 1.5}, queries=[2])"):
        assert written in text


def test_a_key_that_no_call_has_is_an_error():
    model = Model()

    def edited() -> None:
        with regard.intervene(model) as edit:
            edit["attention"].set_scores({7: 1.0}, 2)
            model(*inputs())

    with pytest.raises(IndexError, match="no call had the keys"):
        edited()


@pytest.mark.parametrize("value", [0, -1, float("inf"), float("nan"), "2", True])
def test_a_temperature_that_is_no_number_above_0_is_refused(as_a_user_runs_it, value):
    with pytest.raises(ValueError, match="a finite number above 0"), regard.intervene(Model()) as edit:
        edit["attention"].temperature(value)


@pytest.mark.parametrize("scores", [{}, {0: float("nan")}, {0: "1"}])
def test_scores_that_are_no_numbers_are_refused(as_a_user_runs_it, scores):
    with pytest.raises(ValueError, match="a finite number for each key"), regard.intervene(Model()) as edit:
        edit["attention"].set_scores(scores)


def test_positions_that_are_no_numbers_are_refused(as_a_user_runs_it):
    with regard.intervene(Model()) as edit:
        for write in (
            lambda: edit["attention"].scale(2, "1"),
            lambda: edit["attention"].temperature(2, [1.5]),
            lambda: edit["attention"].set_scores({"0": 1.0}),
        ):
            with pytest.raises(TypeError):
                write()
