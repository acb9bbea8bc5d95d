"""Every exercise accepts right answers in several styles, and names the mistake of wrong ones, with its line."""

from pathlib import Path

import pytest
from answers import learner_of
from first_answers import FIRST
from last_answers import LAST
from middle_answers import MIDDLE

from regard.exercises import EXERCISES
from regard.exercises.checking.examination import examine_code

OTHERS = [
    pytest.param(
        path.stem,
        *part.split("\n", 1),
        id=f"{path.stem}-{number}",
        marks=[pytest.mark.more] if path.stem in ("attention", "multi-head") else [],
    )
    for path in sorted((Path(__file__).parent / "other_answers").glob("*.txt"))
    for number, part in enumerate(path.read_text().removeprefix("# causes: ").split("\n\n# causes: "))
]
"""Whole wrong answers in other styles: the exercise, the causes that have to be named, the code."""
ANSWERS = {each.slug: each for each in (*FIRST, *MIDDLE, *LAST)}
RIGHT = [(slug, number) for slug, each in ANSWERS.items() for number in range(len(each.right))]
WRONG = [
    pytest.param(slug, wrong, id=f"{slug}-{number}-{wrong.cause}")
    for slug, each in ANSWERS.items()
    for number, wrong in enumerate(each.wrong)
]


def test_every_exercise_has_right_answers_in_two_styles_and_five_wrong_ones():
    assert list(ANSWERS) == [each.slug for each in EXERCISES]
    for each in ANSWERS.values():
        assert len(each.right) >= 2
        assert len({(wrong.cause, wrong.new) for wrong in each.wrong}) >= 5


@pytest.mark.parametrize(("slug", "number"), RIGHT)
def test_a_right_answer_is_right_in_any_style(slug, number, tmp_path):
    answers = ANSWERS[slug]
    found = examine_code(*_with_file(answers, answers.right[number], tmp_path))
    assert (found.mistakes, found.reasons) == ((), ())
    assert 3 <= found.calls == found.right
    assert found.error < 1e-6


@pytest.mark.parametrize(("slug", "wrong"), WRONG)
def test_a_wrong_answer_is_told_with_its_cause_and_line(slug, wrong, tmp_path):
    answers = ANSWERS[slug]
    found = examine_code(*_with_file(answers, answers.mistaken(wrong), tmp_path))
    assert [each.id for each in found.mistakes] == [wrong.cause]
    (mistake,) = found.mistakes
    assert found.right < found.calls
    assert mistake.location is not None
    assert mistake.location.text in ([wrong.line] if wrong.line else answers.edited_lines(wrong))
    assert "{" not in mistake.message + mistake.impact


@pytest.mark.parametrize(("slug", "causes", "code"), OTHERS)
def test_a_wrong_answer_in_another_style_is_told_with_its_causes(slug, causes, code, tmp_path):
    found = examine_code(*_with_file(ANSWERS[slug], code, tmp_path))
    assert [each.id for each in found.mistakes] == causes.split()


def test_two_mistakes_at_once_are_both_told(tmp_path):
    code = "scores = q @ k.T\nweights = scores.softmax(dim=0)\nreturn weights @ v"
    found = examine_code(*_with_file(ANSWERS["attention"], code, tmp_path))
    assert [each.id for each in found.mistakes] == ["no-scale", "softmax-queries"]
    assert [each.location.text for each in found.mistakes] == code.split("\n")[:2]


def test_a_mistake_beside_a_float32_constant_is_still_told(tmp_path):
    """The tutorials write the scale as a tensor of float32, which rounds it."""
    code = "scaled = q @ k.T / torch.tensor(k.size(1) ** 0.5, dtype=torch.float32)\nreturn scaled.softmax(dim=0) @ v"
    found = examine_code(*_with_file(ANSWERS["attention"], code, tmp_path))
    assert [each.id for each in found.mistakes] == ["softmax-queries"]


@pytest.mark.more
def test_an_attention_with_a_mistake_of_its_own_is_handed_to_regard_check(tmp_path):
    """Values of other tokens: no variant of the exercise has it, and a property of the definition shows it."""
    code = "scores = q @ k.T / q.shape[-1] ** 0.5\nreturn scores.softmax(dim=-1) @ v.flip(0)"
    found = examine_code(*_with_file(ANSWERS["attention"], code, tmp_path))
    assert "value-of-the-key" in {each.id for each in found.mistakes}


Q_AND_K_EXCHANGED = """q, k, v = context @ w_q.T, x @ w_k.T, context @ w_v.T
return (q @ k.T / math.sqrt(q.shape[-1])).softmax(-1) @ v"""


@pytest.mark.parametrize(
    ("slug", "code", "cause", "message"),
    [
        ("dot-product", "return a.norm() ** 3", "wrong-numbers", "the first wrong number"),
        ("dot-product", "return 'a'", "wrong-result", "it returned a str"),
        ("dot-product", "return a @ c", "raises", "NameError"),
        ("dot-product", "return torch.tensor(4.6188)", "constant-result", "it gives the course's numbers"),
        ("scores", "return (q @ k.T)[:, :-1]", "wrong-shape", "(3, 2); of shape (3, 3) is wanted"),
        ("attention-without-weights", "return x / torch.zeros(1)", "not-a-number", "inf at"),
        ("cross-attention", Q_AND_K_EXCHANGED, "raises", "RuntimeError"),  # no mistake of the bank, and not one twice
        ("projections", "return x @ w_q.T, x @ w_k.T", "wrong-result", "2 results; 3 are wanted"),
        ("decoder-with-cache", "return self.lm_head(self.token_embedding(ids))", "wrong-result", "two things"),
        ("decoder-with-cache", "return self.lm_head(self.token_embedding(ids)), None", "wrong-result", "is None"),
    ],
)
def test_what_no_known_mistake_explains_is_described(slug, code, cause, message, tmp_path):
    found = examine_code(*_with_file(ANSWERS[slug], code, tmp_path))
    assert [each.id for each in found.mistakes] == [cause]
    assert message in found.mistakes[0].message


def test_the_courses_numbers_stand_beside_what_should_have_come_out(tmp_path):
    answers = ANSWERS["attention"]
    found = examine_code(*_with_file(answers, answers.right[0].replace(" / math.sqrt(q.shape[-1])", ""), tmp_path))
    assert found.example.setting == "the course's numbers"
    assert [round(number, 4) for number in found.example.definition[0]] == [1.01, 1.0641]
    assert found.example.yours != found.example.definition


def test_a_mistake_that_the_courses_numbers_hide_is_shown_on_others(tmp_path):
    answers = ANSWERS["scale"]
    found = examine_code(*_with_file(answers, "return q @ k.T / 2**0.5", tmp_path))
    assert [each.id for each in found.mistakes] == ["scale-constant"]
    assert found.example.setting.startswith("other numbers")
    assert "on the course's numbers it is right" in found.notes[0]


def test_a_right_answer_in_float32_is_right_with_a_note(tmp_path):
    found = examine_code(*_with_file(ANSWERS["scores"], "return q.float() @ k.float().T", tmp_path))
    assert (found.right, found.mistakes) == (found.calls, ())
    assert "float32" in found.notes[0]


def test_code_that_changes_its_inputs_is_told(tmp_path):
    found = examine_code(*_with_file(ANSWERS["scores"], "q *= 2\nreturn q @ k.T / 2", tmp_path))
    assert [each.id for each in found.mistakes] == ["inputs-changed"]
    assert found.mistakes[0].location.text == "q *= 2"


def test_a_class_without_the_parts_of_the_stub_is_undetermined(tmp_path):
    answers = ANSWERS["self-attention"]
    learner, path = learner_of(answers.exercise, answers.right[0].replace("self.W_q", "self.query"), tmp_path)
    names = {"torch": learner.__init__.__globals__["torch"], "nn": learner.__init__.__globals__["nn"]}
    exec("class Bare(nn.Module):\n    def __init__(self, d_model):\n        super().__init__()", names)
    found = examine_code(names["Bare"], answers.exercise, path)
    assert found.mistakes == ()
    assert "its W_q is no Linear" in found.reasons[0]


def _with_file(answers, code, folder):
    learner, path = learner_of(answers.exercise, code, folder)
    return learner, answers.exercise, path
