"""Tables of positions: the bank's, the documents', and modules that keep one; nothing is named without numbers."""

import math

import pytest
import torch
from torch import nn

import bank
from regard.check.subject import subject_of
from regard.check.tables import judge_table, looks_like_table

SPELLED = {"pe-angle": "pe-angle"}
"""Ids of the bank that are another in CAUSES."""
TABLES = [entry for entry in bank.entries() if entry.name.startswith(("functions_positions.", "right_positions."))]
OTHERS = [entry for entry in bank.entries() if entry not in TABLES]


def judged(what):
    """Verdict, causes, numbers and conventions."""
    subject = subject_of(what, {})
    assert looks_like_table(subject)
    diagnosis = judge_table(subject)
    [stage] = diagnosis.stages
    if stage.found is None:
        assert stage.why
        return "undetermined", {stage.why}, diagnosis
    causes = {known.id for known, _ in stage.found.causes}
    if causes:
        return "wrong", causes, diagnosis
    return ("convention" if stage.found.otherwise or diagnosis.conventions else "right"), causes, diagnosis


@pytest.mark.parametrize("entry", TABLES, ids=lambda entry: entry.name)
def test_bank(entry):
    verdict, causes, diagnosis = judged(entry.what)
    assert (verdict, causes) == (entry.verdict, {SPELLED.get(cause, cause) for cause in entry.causes})
    for known, _ in diagnosis.stages[0].found.causes:
        known.message.format(**diagnosis.numbers)


def test_nothing_else_is_a_table():
    assert [entry.name for entry in OTHERS if looks_like_table(subject_of(entry.what, entry.args))] == []


def made(exponent, base=10000.0, swapped=False, dtype=torch.float64, first=0):
    """A function of (length, d_model) by its exponents."""

    def table(length, d_model):
        channel = torch.arange(d_model)
        rates = torch.tensor([base ** -exponent(int(c), d_model) for c in channel], dtype=dtype)
        angles = (torch.arange(length, dtype=dtype) + first)[:, None] * rates
        return torch.where((channel % 2 == 0) != swapped, angles.sin(), angles.cos())

    return table


def test_seed_002():
    """Erratum E-16, as one number at a time: k=1, d=4 gives [0.841471, 0.99995, 0.0001, 1.0]."""

    def formula(k, i, d):
        angle = k / 10000 ** (2 * i / d)
        return math.sin(angle) if i % 2 == 0 else math.cos(angle)

    assert [formula(1, i, 4) for i in range(4)] == pytest.approx([0.841471, 0.99995, 0.0001, 1.0], abs=1e-6)
    assert judged(formula)[:2] == ("wrong", {"pe-exponent"})


def test_paper_one_number_at_a_time():
    def formula(pos, i, d_model):
        angle = pos / 10000 ** ((i - i % 2) / d_model)
        return math.sin(angle) if i % 2 == 0 else math.cos(angle)

    assert judged(formula)[0] == "right"


def pair(c, d):
    return (c - c % 2) / d


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
def test_two_at_once(dtype):
    assert judged(made(pair, dtype=dtype))[0] == "right"
    assert judged(made(pair, swapped=True, dtype=dtype))[1] == {"pe-swapped"}
    assert judged(made(lambda c, d: c / d, swapped=True, dtype=dtype))[1] == {"pe-swapped", "pe-angle"}
    assert judged(made(lambda c, d: 2 * c / d, swapped=True, dtype=dtype))[1] == {"pe-swapped", "pe-exponent"}
    assert judged(made(lambda c, d: 2 * pair(c, d), dtype=dtype))[1] == {"pe-exponent"}
    verdict = judged(made(pair, base=500.0, swapped=True, dtype=dtype))
    assert verdict[1] == {"pe-swapped", "pe-base"}
    assert verdict[2].numbers == {"number": 500.0}


@pytest.mark.parametrize("base", [100.0, 1000.0, 9000.0, 10001.0, 100000.0, 500000.0, 12345.0])
@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
def test_base_is_measured(base, dtype):
    verdict, causes, diagnosis = judged(made(pair, base=base, dtype=dtype))
    assert (verdict, causes) == ("wrong", {"pe-base"})
    assert diagnosis.numbers["number"] == pytest.approx(base, rel=1e-5)


def test_what_no_formula_shows():
    """Positions from 1, half the size, another exponent, one wrong number: said, and not named."""
    for table in (
        made(pair, first=1),
        lambda length, d_model: made(pair)(length, d_model) / 2,
        made(lambda c, d: (c + c % 2) / d),
        made(lambda c, d: (c - c % 2) / max(1, d - 2)),
        lambda length, d_model: torch.randn(length, d_model),
        lambda length, d_model: (
            made(pair)(length, d_model).masked_fill(torch.eye(length, d_model) > 2, 0.0)
            + 1e-4 * (torch.arange(d_model) == d_model - 1)
        ),
        made(lambda c, d: c / d, base=1e6),
    ):
        verdict, why, _ = judged(table)
        assert verdict == "undetermined", why
    assert "channel 1 of 4" in next(iter(judged(made(lambda c, d: (c + c % 2) / d))[1]))


def test_what_cannot_be_called():
    def table(length, d_model):
        raise RuntimeError("no such luck")

    verdict, why, _ = judged(table)
    assert verdict == "undetermined"
    assert "no such luck" in why.pop()
    verdict, why, _ = judged(lambda length, d_model: None)
    assert verdict == "undetermined"
    verdict, why, _ = judged(lambda length, d_model: torch.zeros(3, 3))
    assert verdict == "undetermined"
    assert "(3, 3)" in why.pop()
    verdict, why, _ = judged(lambda seq_len, dim: torch.ones(seq_len, dim, dtype=torch.complex64))
    assert verdict == "undetermined"
    assert "complex" in why.pop()


def test_shapes():
    paper = made(pair)
    assert judged(lambda max_len, d: paper(max_len, d)[None])[0] == "right"
    assert judged(lambda seq_len, dim: paper(seq_len, dim)[:, None])[0] == "convention"
    assert judged(lambda d_model, max_len: paper(max_len, d_model))[0] == "right"
    assert judged(lambda T, d: paper(T, d).numpy())[0] == "right"
    assert judged(lambda T, d: paper(T, d).tolist())[0] == "right"
    assert judged(lambda d_model, length: paper(length, d_model).t())[0] == "convention"
    assert judged(lambda positions, d_model: paper(len(positions), d_model))[0] == "right"
    assert judged(lambda seq_len, d, n=10000: made(pair, base=n)(seq_len, d))[0] == "right"


class Positions(nn.Module):
    """As in the tutorials: a buffer that is added."""

    def __init__(self, d_model, dropout=0.1, max_len=5000):
        super().__init__()
        self.dropout = nn.Dropout(dropout)
        self.register_buffer("pe", self.table(max_len, d_model).float()[None])

    table = staticmethod(made(pair))

    def forward(self, x):
        return self.dropout(x + self.pe[:, : x.size(1)])


class TokensFirst(Positions):
    """As PyTorch's own tutorial."""

    def __init__(self, d_model, max_len=5000):
        super().__init__(d_model, max_len=max_len)
        self.pe = self.pe.transpose(0, 1)

    def forward(self, x):
        return self.dropout(x * math.sqrt(x.size(-1)) + self.pe[: x.size(0)])


class Plain(nn.Module):
    """As in Dive into Deep Learning: no buffer."""

    def __init__(self, num_hiddens, dropout, max_len=1000):
        super().__init__()
        self.P = made(pair, base=100.0)(max_len, num_hiddens)[None].float()

    def forward(self, X):
        return X + self.P[:, : X.shape[1], :]


class Swapped(Positions):
    """Cosines first."""

    table = staticmethod(made(pair, swapped=True))


class Alone(Positions):
    """For the caller to add."""

    def forward(self, x):
        return self.pe[:, : x.size(1)]


class Grows(Positions):
    """What it adds depends on x."""

    def forward(self, x):
        return x + self.pe[:, : x.size(1)] * (1 + x.abs().mean())


def test_modules():
    assert judged(Positions)[0] == "right"
    assert judged(Positions(24))[0] == "right"
    assert judged(Alone)[0] == "right"
    assert judged(TokensFirst)[0] == "convention"
    assert judged(Swapped)[1] == {"pe-swapped"}
    assert judged(Swapped(24))[1] == {"pe-swapped"}
    assert judged(Grows)[0] == "undetermined"
    _, causes, diagnosis = judged(Plain)
    assert causes == {"pe-base"}
    assert diagnosis.numbers["number"] == pytest.approx(100, rel=1e-5)


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
    verdict, why, _ = judged(lambda length, d_model: table(length, d_model).roll(d_model // 2, 1))
    assert verdict == "undetermined", why
