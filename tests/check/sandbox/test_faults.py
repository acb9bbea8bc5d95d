"""An error of regard's own is a reason that says so; one of the user's code is not."""

import re
from functools import partial

import pytest
from torch import nn

import regard
from regard.check.report import FoundMistake, Report
from regard.check.sandbox.faults import fault_reason
from regard.check.search.layouts import to_layout
from regard.errors import InputError

pytestmark = pytest.mark.usefixtures("as_a_user_runs_it")


def caught(call):
    with pytest.raises(Exception) as error:  # noqa: PT011
        call()
    return error.value


def of_a_user():
    raise ValueError("theirs")


def test_an_error_in_our_code_is_ours_with_its_line_also_where_a_library_raises_it():
    says = fault_reason(caught(partial(to_layout, None, None)))
    place = r"regard/check/search/layouts.py:\d+"
    pattern = rf"a fault of regard's, not of your code: AttributeError: .*, at {place}; please report"
    assert re.match(pattern, says)


def test_an_error_in_the_users_code_is_theirs():
    assert fault_reason(caught(of_a_user)) is None


class Odd:
    """Its signature is no signature: nobody's code is prepared for it."""

    __signature__ = 3

    def __call__(self, q, k, v):
        return v


def test_a_check_that_fails_by_itself_is_undetermined_and_says_so():
    report = regard.check(Odd())
    assert report.verdict == "undetermined"
    assert report.reasons[0].startswith("a fault of regard's, not of your code: ")


class WithAView(nn.Module):
    """No copy can be made of it, and both the search and the properties need one."""

    def __init__(self):
        super().__init__()
        self.bytes = memoryview(b"")

    def forward(self, q, k, v):
        return v


class OneOfItsKind(WithAView):
    def __deepcopy__(self, memo):
        raise RuntimeError("one of its kind")


@pytest.mark.parametrize(
    ("kind", "says"),
    [(WithAView, "a fault of regard's, not of your code: "), (OneOfItsKind, "raised RuntimeError: one of its kind")],
)
def test_an_error_of_the_search_and_of_the_properties_is_told_once(kind, says):
    (reason,) = regard.check(kind()).reasons
    assert reason.startswith(says)


def tripled_scores(q, k, v):
    return (q @ k.mT * 3).softmax(-1) @ v


def test_a_fault_of_the_search_stands_beside_what_the_properties_found(monkeypatch):
    monkeypatch.setattr("regard.check.conclusion.judge", lambda *_, **__: to_layout(None, None))
    report = regard.check(tripled_scores)
    assert report.verdict == "wrong"
    assert any(note.startswith("a fault of regard's, not of your code: ") for note in report.notes)


def by_matrices(x, W_q, W_k, W_v):
    q, k, v = x @ W_q, x @ W_k, x @ W_v
    return (q @ k.mT / k.shape[-1] ** 0.5).softmax(-1) @ v


def test_projections_without_one_of_the_output_are_handed_over():
    """Issue 18: this gave 60 lines of traceback."""
    assert regard.check(by_matrices).ok


class Lazy(nn.Module):
    def __init__(self, d_model):
        super().__init__()
        self.q = nn.LazyLinear(d_model)

    def forward(self, x):
        return self.q(x)


class Forgetful(nn.Module):
    def __init__(self, d_model):
        pass

    def forward(self, x):
        return x


def test_a_module_that_is_not_ready_is_refused_in_one_line():
    with pytest.raises(InputError, match=r"the constructor of Forgetful does not call super\(\).__init__\(\)"):
        regard.check(Forgetful)


def test_a_lazy_module_is_called_before_it_is_judged():
    report = regard.check(Lazy)
    assert report.verdict == "undetermined"
    assert "no attention was found in it" in str(report)


@pytest.mark.parametrize(
    ("report", "shown"),
    [
        (Report("Mine", "right"), "<Report Mine: right>"),
        (Report("Mine", "wrong", (FoundMistake("a", "b", "c", "d"),)), "<Report Mine: wrong, 1 mistake>"),
        (Report("Mine", "wrong", (FoundMistake("a", "b", "c", "d"),) * 2), "<Report Mine: wrong, 2 mistakes>"),
    ],
)
def test_a_reports_repr_is_one_line(report, shown):
    assert repr(report) == shown
