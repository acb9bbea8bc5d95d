"""Tables of positions: the bank's, the documents', and modules that keep one; nothing is named without numbers."""

import math

import pytest
import torch
from torch import nn

import bank
from regard.check.search.subject import subject_of
from regard.check.search.table_calls import looks_like_table
from regard.check.search.tables import judge_table

TABLES = [entry for entry in bank.entries() if entry.name.startswith(("functions_positions.", "right_positions."))]


def judged(what):
    """The verdict, the causes or the reason, and the diagnosis."""
    subject = subject_of(what, {})
    assert looks_like_table(subject)
    diagnosis = judge_table(subject)
    [stage] = diagnosis.stages
    if stage.found is None:
        assert stage.why
        return "undetermined", {stage.why}, diagnosis
    causes = {known.id for known, _ in stage.found.causes}
    otherwise = stage.found.otherwise or diagnosis.conventions
    return "wrong" if causes else "convention" if otherwise else "right", causes, diagnosis


def test_nothing_else_is_a_table():
    others = [entry for entry in bank.entries() if entry not in TABLES]
    assert [entry.name for entry in others if looks_like_table(subject_of(entry.what, entry.args))] == []


def pair(c, d):
    return (c - c % 2) / d


def made(exponent=pair, base=10000.0, swapped=False, dtype=torch.float64, first=0):
    """A function of (length, d_model) by its exponents."""

    def table(length, d_model):
        channel = torch.arange(d_model)
        rates = torch.tensor([base ** -exponent(int(c), d_model) for c in channel], dtype=dtype)
        angles = (torch.arange(length, dtype=dtype) + first)[:, None] * rates
        return torch.where((channel % 2 == 0) != swapped, angles.sin(), angles.cos())

    return table


@pytest.mark.parametrize(
    ("exponent", "causes"), [(pair, set()), (lambda i, d: 2 * i / d, {"pe-exponent"})], ids=["paper", "seed 002"]
)
def test_one_number_at_a_time(exponent, causes):
    def formula(k, i, d):
        angle = k / 10000 ** exponent(i, d)
        return math.sin(angle) if i % 2 == 0 else math.cos(angle)

    assert judged(formula)[:2] == ("wrong" if causes else "right", causes)


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
@pytest.mark.parametrize(
    ("options", "causes"),
    [
        ({}, set()),
        ({"swapped": True}, {"pe-swapped"}),
        ({"exponent": lambda c, d: c / d, "swapped": True}, {"pe-swapped", "pe-angle"}),
        ({"exponent": lambda c, d: 2 * c / d, "swapped": True}, {"pe-swapped", "pe-exponent"}),
        ({"exponent": lambda c, d: 2 * pair(c, d)}, {"pe-exponent"}),
        ({"exponent": lambda c, d: -pair(c, d)}, {"pe-multiplied"}),
        ({"exponent": lambda c, d: -pair(c, d), "swapped": True}, {"pe-multiplied", "pe-swapped"}),
        ({"exponent": lambda c, d: -c / d}, {"pe-multiplied", "pe-angle"}),
        ({"base": 500.0, "swapped": True}, {"pe-swapped", "pe-base"}),
        *(({"base": base}, {"pe-base"}) for base in (100.0, 1000.0, 9000.0, 10001.0, 100000.0, 500000.0, 12345.0)),
    ],
)
def test_mistakes_by_themselves_and_two_at_once_with_the_base_measured(options, causes, dtype):
    verdict, found, diagnosis = judged(made(**options, dtype=dtype))
    assert (verdict, found) == ("wrong" if causes else "right", causes)
    if "pe-base" in causes:
        assert diagnosis.numbers == {"number": pytest.approx(options["base"], rel=1e-5)}


@pytest.mark.parametrize(
    ("table", "why"),
    [
        (made(first=1), ""),
        (lambda length, d_model: made()(length, d_model) / 2, ""),
        (made(lambda c, d: (c + c % 2) / d), "channel 1 of 4"),
        (lambda length, d_model: torch.randn(length, d_model), ""),
        (lambda length, d_model: made()(length, d_model) + 1e-4 * (torch.arange(d_model) == d_model - 1), ""),
        (made(lambda c, d: c / d, base=1e6), ""),
        (lambda length, d_model: 1 / 0, "division by zero"),
        (lambda length, d_model: torch.zeros(3, 3), "(3, 3)"),
        (lambda length, d_model: torch.ones(length, d_model), ""),
        (lambda seq_len, dim: torch.ones(seq_len, dim, dtype=torch.complex64), "complex"),
    ],
)
def test_what_no_formula_shows_or_cannot_be_called_is_not_named(table, why):
    verdict, (reason,), _ = judged(table)
    assert verdict == "undetermined"
    assert why in reason


@pytest.mark.parametrize(
    ("table", "verdict"),
    [
        (lambda max_len, d: made()(max_len, d)[None], "right"),
        (lambda seq_len, dim: made()(seq_len, dim)[:, None], "convention"),
        (lambda d_model, max_len: made()(max_len, d_model), "right"),
        (lambda T, d: made()(T, d).numpy(), "right"),
        (lambda T, d: made()(T, d).tolist(), "right"),
        (lambda d_model, length: made()(length, d_model).t(), "convention"),
        (lambda positions, d_model: made()(len(positions), d_model), "right"),
        (lambda seq_len, d, n=10000: made(base=n)(seq_len, d), "right"),
    ],
)
def test_shapes(table, verdict):
    assert judged(table)[0] == verdict


@pytest.mark.parametrize("is_divided", [True, False])
def test_positions_of_halves_that_are_divided_by_rates_turn_too_fast(is_divided):
    def table(length, d_model):
        rates = 10000.0 ** (-2 * torch.arange(d_model // 2) / d_model)
        places = torch.arange(length)[:, None]
        angles = places / rates if is_divided else places * rates
        return torch.cat((angles.sin(), angles.cos()), 1)

    assert judged(table)[:2] == (("wrong", {"pe-multiplied"}) if is_divided else ("convention", set()))


class Positions(nn.Module):
    """As in the tutorials: a buffer that is added."""

    def __init__(self, d_model, dropout=0.1, max_len=5000):
        super().__init__()
        self.dropout = nn.Dropout(dropout)
        self.register_buffer("pe", self.table(max_len, d_model).float()[None])

    table = staticmethod(made())

    def forward(self, x):
        return self.dropout(x + self.pe[:, : x.size(1)])


class TokensFirst(Positions):
    """As PyTorch's own tutorial."""

    def forward(self, x):
        return self.dropout(x * math.sqrt(x.size(-1)) + self.pe.transpose(0, 1)[: x.size(0)])


class Swapped(Positions):
    table = staticmethod(made(swapped=True))


class OtherBase(Positions):
    table = staticmethod(made(base=100.0))


class OddBase(Positions):
    """Of one width alone, another exponent would do as well."""

    table = staticmethod(made(base=12345.0))


class Alone(Positions):
    """For the caller to add."""

    def forward(self, x):
        return self.pe[:, : x.size(1)]


class OneRow(Positions):
    def forward(self, x):
        return x + self.pe[:, x.size(1)]


class Nothing(Positions):
    """A table that is yet to be filled."""

    table = staticmethod(torch.zeros)


class OfIds(Positions):
    """The same of ids, of which nothing but their number is read."""

    def forward(self, x):
        _, length = x.size()
        return self.pe[0, :length]


class SwappedOfIds(OfIds):
    table = staticmethod(made(swapped=True))


class Grows(Positions):
    """What it adds depends on x."""

    def forward(self, x):
        return x + self.pe[:, : x.size(1)] * (1 + x.abs().mean())


@pytest.mark.parametrize(
    ("module", "verdict", "causes", "base"),
    [
        (lambda: Positions, "right", set(), None),
        (lambda: Alone, "right", set(), None),
        (lambda: OfIds, "right", set(), None),
        (lambda: SwappedOfIds, "wrong", {"pe-swapped"}, None),
        (lambda: TokensFirst, "convention", set(), None),
        (lambda: Swapped, "wrong", {"pe-swapped"}, None),
        (lambda: Swapped(24), "wrong", {"pe-swapped"}, None),
        (lambda: OtherBase, "wrong", {"pe-base"}, 100),
        (lambda: OddBase, "wrong", {"pe-base"}, 12345),
        (lambda: OddBase(24), "undetermined", None, None),
        (lambda: OneRow, "wrong", {"pe-one-row"}, None),
        (lambda: Nothing, "undetermined", None, None),
        (lambda: Grows, "undetermined", None, None),
    ],
)
def test_modules(module, verdict, causes, base):
    ended, found, diagnosis = judged(module())
    assert ended == verdict
    assert causes in (None, found)
    assert diagnosis.numbers == ({} if base is None else {"number": pytest.approx(base, rel=1e-5)})


def test_learned_positions_are_no_table():
    class Learned(nn.Module):
        def __init__(self, d_model, max_len=50):
            super().__init__()
            self.pos_embedding = nn.Parameter(torch.randn(1, max_len, d_model))

        def forward(self, x):
            return x + self.pos_embedding[:, : x.size(1)]

    assert not looks_like_table(subject_of(Learned, {}))


@pytest.mark.parametrize("last", [0, 1])
def test_tensor2tensor(last):
    """Halves side by side; its rates reach 1 / 10000 at the last pair (last=1), others' one later."""

    def table(length, d_model):
        pairs = d_model // 2
        rates = torch.exp(torch.arange(pairs) * -(math.log(10000.0) / (pairs - last)))
        angles = torch.arange(length)[:, None] * rates
        return torch.cat((angles.sin(), angles.cos()), 1)

    verdict, _, diagnosis = judged(table)
    assert verdict == "convention"
    assert "tensor2tensor" in diagnosis.stages[0].found.otherwise[0].message
    assert judged(lambda length, d_model: table(length, d_model).roll(d_model // 2, 1))[0] == "undetermined"
