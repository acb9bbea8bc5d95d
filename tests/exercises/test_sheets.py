"""What a learner gets: the list, the files with their numbers, the hints; and that none of them has the solution."""

import subprocess
import sys

import pytest
import torch
from first_answers import FIRST
from last_answers import LAST
from middle_answers import MIDDLE
from torch import nn

import regard
from regard import exercises
from regard.errors import InputError
from regard.exercises import EXERCISES, find
from regard.exercises.checking.examination import course_result
from regard.exercises.exercise import PAGES
from regard.exercises.sheet import exercise_in, is_stub, sheet_text

ANSWERS = {each.slug: each for each in (*FIRST, *MIDDLE, *LAST)}
SLUGS = [
    "dot-product",
    "lookup",
    "cosine-similarity",
    "attention-without-weights",
    "projections",
    "scores",
    "scale",
    "softmax",
    "attention",
    "sinusoidal-positions",
    "rotary",
    "causal-mask",
    "padding-mask",
    "split-heads",
    "multi-head",
    "self-attention",
    "cross-attention",
    "transformer-block",
    "beam-step",
    "decoder-with-cache",
]
BY_SLUG = pytest.mark.parametrize("exercise", EXERCISES, ids=lambda each: each.slug)


def test_the_numbers_and_names_are_those_of_the_courses_pages():
    assert [(each.number, each.slug) for each in EXERCISES] == list(enumerate(SLUGS, 1))
    assert {each.page for each in EXERCISES} == set(PAGES)


@pytest.mark.parametrize("name", [5, "5", "05", "projections", "05 projections", "05_projections.py", "Projections"])
def test_an_exercise_is_found_by_its_number_and_its_name(name):
    assert find(name).slug == "projections"


@pytest.mark.parametrize(
    ("name", "message"), [("21", "they are 01 to 20"), ("0", "01 to 20"), ("projektion", "do you mean projections")]
)
def test_what_is_no_exercise_is_refused_with_the_way_out(name, message):
    with pytest.raises(InputError, match=message):
        find(name)


@BY_SLUG
def test_a_file_is_recognized_and_not_filled_in(exercise, tmp_path):
    path = exercises.write(exercise.number, tmp_path)
    assert path.name == exercise.file_name
    assert exercise_in(path) is exercise
    assert is_stub(path, exercise)
    assert all(len(line) <= 120 for line in path.read_text().splitlines())


@BY_SLUG
def test_the_code_of_a_file_gives_the_numbers_that_its_statement_shows(exercise):
    """What the check takes for the course's numbers is what the learner's file computes with."""
    names = {"torch": torch, "nn": nn, "regard": regard, "F": nn.functional, "math": __import__("math")}
    indent = "        " if exercise.stub.startswith("class ") else "    "
    body = "\n".join(f"{indent}{line}" for line in ANSWERS[exercise.slug].right[0].split("\n"))
    exec(exercise.stub.replace(f'{indent}raise NotImplementedError("your code here")', body), names)
    exec(exercise.numbers, names)
    with torch.no_grad():
        returned = eval(exercise.call, names)
    _, expected = course_result(exercise)
    for one, other in zip(returned if isinstance(returned, tuple) else [returned], expected, strict=True):
        torch.testing.assert_close(one.double(), other.double(), atol=2e-5, rtol=1e-5)


SEEDS = {  # as the tutorials print them (documents 001 and 000)
    "projections": [[0.7621, -0.0428], [1.1063, 0.7890], [1.1164, -2.1336]],
    "scores": [[-0.0990, 0.0648, -0.6523], [-0.4022, 0.4078, -3.0024], [0.4842, -0.6683, 4.0461]],
    "scale": [[-0.0700, 0.0458, -0.4612], [-0.2844, 0.2883, -2.1230], [0.3424, -0.4725, 2.8610]],
    "softmax": [[0.3573, 0.4011, 0.2416], [0.3410, 0.6047, 0.0542], [0.0722, 0.0320, 0.8959]],
    "attention": [[1.0100, 1.0641], [0.2040, 0.7057], [3.4989, 2.2427]],
    "causal-mask": [[0.6038, 0.7434], [-0.0062, 0.6072], [3.4989, 2.2427]],
    "self-attention": [[[0.6038, 0.7434], [-0.0062, 0.6072], [3.4989, 2.2427]]],
}


@pytest.mark.parametrize("slug", SEEDS)
def test_the_courses_numbers_come_out_digit_for_digit(slug):
    _, (first, *_) = course_result(find(slug))
    torch.testing.assert_close(first, torch.tensor(SEEDS[slug], dtype=torch.float64), atol=5e-5, rtol=0)


@BY_SLUG
def test_neither_the_file_nor_a_hint_has_the_solution(exercise):
    told = "".join((sheet_text(exercise) + " ".join(exercise.hints)).split())
    for answer in ANSWERS[exercise.slug].right:
        lines = ["".join(line.split()).removeprefix("return") for line in answer.split("\n")]
        assert not [line for line in lines if len(line) > 12 and line in told]


@BY_SLUG
def test_there_are_three_hints_and_the_statement_names_shapes_and_page(exercise):
    hints = [exercises.hint(exercise.slug, step) for step in (1, 2, 3)]
    assert len(set(hints)) == 3
    text = exercises.statement(exercise.number)
    assert f"page {exercise.page} of the course" in text
    assert "result: " in text
    with pytest.raises(InputError, match="1 to 3"):
        exercises.hint(exercise.slug, 4)


def test_a_file_that_is_there_is_not_overwritten(tmp_path):
    path = tmp_path / "mine.py"
    path.write_text("precious")
    with pytest.raises(InputError, match="not overwritten"):
        exercises.write("05", path)
    assert path.read_text() == "precious"


@pytest.mark.parametrize("body", ["...", "pass", "raise NotImplementedError", '"""Mine."""\n    ...'])
def test_a_stub_is_known_in_any_form(body, tmp_path):
    path = tmp_path / "mine.py"
    path.write_text(f"def scores(q, k):\n    {body}\n")
    assert is_stub(path, find("scores"))


@pytest.mark.parametrize("body", ["return q @ k.T", "print(q)", "raise ValueError(q)", "x = 1"])
def test_code_is_no_stub(body, tmp_path):
    path = tmp_path / "mine.py"
    path.write_text(f"def scores(q, k):\n    {body}\n")
    assert not is_stub(path, find("scores"))


def test_the_list_does_without_pytorch():
    code = "import sys, regard.exercises as e; print(len(e.EXERCISES), e.hint(5), 'torch' in sys.modules)"
    run = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert run.stdout.startswith("20 Write the shapes")
    assert run.stdout.endswith("False\n")
