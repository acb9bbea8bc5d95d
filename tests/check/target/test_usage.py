"""What the code of a class does with an argument tells what it is, where its name does not."""

from __future__ import annotations

import copy

import pytest
import torch
from target_calls import attention, axes, first
from torch import Tensor, nn

from property_cases import joined, split
from regard.check import check
from regard.check.conclusion import analyses_of, conclude
from regard.check.sandbox.torch_settings import UserSettings
from regard.check.target.kept_arguments import compared_with, is_tested
from regard.check.target.names import call_meaning
from regard.check.target.usage import (
    called_with,
    divides,
    has_fields,
    is_called,
    is_demanded,
    is_given_anew,
    is_step,
)
from regard.errors import InputError

pytestmark = pytest.mark.more  # seconds a test: it is run by make test-more

# The text. ------------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("source", "name", "found"),
    [
        ("spec['width']", "spec", True),
        ('spec.get("width", 3)', "spec", True),
        ("spec[0]", "spec", False),
        ("spec.shape", "spec", False),
        ("my_spec['width']", "spec", False),
    ],
)
def test_what_is_read_by_names_is_a_config(source: str, name: str, found: bool) -> None:
    assert has_fields(source, name) is found


@pytest.mark.parametrize(
    ("source", "found"),
    [
        ("x = self.norm(x)", True),
        ("x, mask = self.padded(x)", True),
        ("x += 1", True),
        ("x = x[:, 0]", True),
        ("x = x[:, -self.max_length:]", False),
        ("y = x", False),
        ("x == y", False),
    ],
)
def test_the_last_tokens_of_a_sequence_are_no_other_value(source: str, found: bool) -> None:
    assert is_given_anew(source, "x") is found


@pytest.mark.parametrize(
    ("source", "found"),
    [
        ("kind == 'one' or kind == 'two'", ["one", "two"]),
        ("def __init__(self, kind):\n    self.k = kind\n    self.k in ('one', 'two')", ["one", "two"]),
        ("def __init__(self, c):\n    self.k = c.kind\n    self.k != 'one'", ["one"]),
        ("c['kind'] == 'one'", ["one"]),
        ("def __init__(self, c):\n    self.kind = c.other\n    self.kind == 'one'", []),
        ("other == 'one'", []),
        ("kind == 1", []),
    ],
)
def test_an_argument_is_one_of_the_texts_that_it_is_compared_with(source: str, found: list[str]) -> None:
    assert compared_with(source, "kind") == found


@pytest.mark.parametrize(
    ("source", "found"),
    [
        ("if c.on: pass", True),
        ("x = 1 if on else 2", True),
        ("y = not on", True),
        ("if on and other: pass", True),
        ("def __init__(self, on):\n    self.o = on\n    if self.o: pass", True),
        ("def __init__(self, c):\n    self.on = getattr(c, 'on', True)\n    if self.on: pass", False),
        ("if on is not None: pass", False),
        ("if on > 3: pass", False),
    ],
)
def test_what_is_done_or_not_by_an_argument_alone_is_told_by_a_flag(source: str, found: bool) -> None:
    assert is_tested(source, "on") is found


@pytest.mark.parametrize(("source", "found"), [("f(x)", 1), ("f(x, y)", 2), ("self.f(x)", None), ("g(f)", None)])
def test_an_argument_of_a_call_may_be_called(source: str, found: int | None) -> None:
    assert is_called(source, "f") == found


@pytest.mark.parametrize(
    ("source", "found"),
    [
        ("e // a", True),
        ("def __init__(self, e, a):\n    self.parts = a\n    y = e // self.parts", True),
        ("def __init__(self, e, a):\n    self.e, self.parts = e, a\n    y = e % self.parts", True),
        ("e // all_of_them", False),
        ("def __init__(self, e, a):\n    self.a = e\n    y = e // self.b", False),
    ],
)
def test_what_divides_a_width_into_whole_parts_counts_heads(source: str, found: bool) -> None:
    assert divides(source, "a") is found


@pytest.mark.parametrize(
    ("source", "found"),
    [
        ("k.split(size, 1)", True),
        ("torch.split(k, size, dim=1)", True),
        ("for at in range(0, k.shape[1], size): pass", True),
        ("def __init__(self, size):\n    self.n = size\n    k.unfold(1, self.n, self.n)", True),
        ("torch.ones(size, size).tril()", False),
        ("k.split(size, -1)", False),
        ("split(k, size)", False),
        ("k[:, :size]", False),
    ],
)
def test_what_a_sequence_is_split_by_is_no_largest_length(source: str, found: bool) -> None:
    assert is_step(source, "size") is found


# Constructors. --------------------------------------------------------------------------------------------------------


class OfASpec(nn.Module):
    """Reads fields by name, of which one is a width by its last word and one a count by its first."""

    def __init__(self, spec) -> None:  # type: ignore[no-untyped-def]
        super().__init__()
        self.slots = nn.Parameter(torch.randn(spec["num_slots"], spec["slot_dim"]))
        self.kv = nn.Linear(spec["slot_dim"], 2 * spec["slot_dim"])

    def forward(self, x: Tensor) -> Tensor:
        return attention(self.slots.expand(len(x), -1, -1), *self.kv(x).chunk(2, -1))


def test_fields_whose_names_are_not_known_are_widths_and_counts_by_their_words() -> None:
    call = first(OfASpec)
    assert tuple(call.target.slots.shape) == (6, 12)
    assert "config.num_slots=6" in " ".join(call.assumptions) or "spec.num_slots=6" in " ".join(call.assumptions)


class OfTwoLetters(nn.Module):
    def __init__(self, e: int, a: int) -> None:
        super().__init__()
        self.parts, self.qkv, self.each = a, nn.Linear(e, 3 * e), e // a

    def forward(self, x: Tensor) -> Tensor:
        return joined(attention(*(split(each, self.parts) for each in self.qkv(x).chunk(3, -1))))


def test_the_argument_that_the_width_is_divided_by_is_the_number_of_heads() -> None:
    target = first(OfTwoLetters).target
    assert (target.parts, target.each) == (3, 4)


class InParts(nn.Module):
    """An online softmax, a few keys at a time."""

    def __init__(self, d_model: int, block_size: int = 4) -> None:
        super().__init__()
        self.block_size, self.qkv = block_size, nn.Linear(d_model, 3 * d_model)

    def forward(self, x: Tensor) -> Tensor:
        q, k, v = self.qkv(x).chunk(3, -1)
        several = zip(k.split(self.block_size, 1), v.split(self.block_size, 1), strict=True)
        scores, values = zip(*((q @ k.mT / q.shape[-1] ** 0.5, v) for k, v in several), strict=True)
        total = torch.stack([each.logsumexp(-1) for each in scores]).logsumexp(0)
        return self.joined([(each - total[..., None]).exp() @ v for each, v in zip(scores, values, strict=True)])

    def joined(self, parts: list[Tensor]) -> Tensor:
        return torch.stack(parts).sum(0)


class InPartsOfTheirOwn(InParts):
    """Each part has a softmax of its own, and the results are averaged."""

    def forward(self, x: Tensor) -> Tensor:
        q, k, v = self.qkv(x).chunk(3, -1)
        parts = zip(k.split(self.block_size, 1), v.split(self.block_size, 1), strict=True)
        return torch.stack([attention(q, each, its) for each, its in parts]).mean(0)


class InLargeParts(InPartsOfTheirOwn):
    def __init__(self, d_model: int, block_size: int = 64) -> None:
        super().__init__(d_model, block_size)
        self.steps = range(0, 128, block_size)


class InPartsThatAreTold(InPartsOfTheirOwn):
    def __init__(self, d_model: int, block: int) -> None:
        super().__init__(d_model, block)


def test_a_small_default_is_kept_and_parts_are_so_small_that_there_are_several() -> None:
    sizes = [first(kind).target.block_size for kind in (InParts, InLargeParts, InPartsThatAreTold)]
    assert sizes == [4, 2, 2]


class InChunksOfHeads(InPartsOfTheirOwn):
    """It splits the third of four axes, which are the tokens."""

    def __init__(self, d_model: int, chunk: int = 8) -> None:
        super().__init__(d_model, chunk)


def in_blocks(q: Tensor, k: Tensor, v: Tensor, block: int = 16) -> Tensor:
    starts = range(0, q.shape[-2], block)
    return torch.cat([attention(q[..., at : at + block, :], k, v) for at in starts], -2)


def test_there_are_several_parts_also_where_a_default_is_larger_than_the_sequence() -> None:
    assert first(InChunksOfHeads).target.block_size == 2
    assert first(in_blocks).arguments["block"] == 2


class Limited(nn.Module):
    """A largest length."""

    def __init__(self, d_model: int, block_size: int = 1024) -> None:
        super().__init__()
        self.block_size, self.qkv = block_size, nn.Linear(d_model, 3 * d_model)

    def forward(self, x: Tensor) -> Tensor:
        return attention(*self.qkv(x).chunk(3, -1))


def test_a_largest_length_is_still_replaced() -> None:
    assert first(Limited).target.block_size == 16


@pytest.mark.parametrize(
    ("kind", "verdict"), [(InParts, "right"), pytest.param(InPartsOfTheirOwn, "wrong", marks=pytest.mark.more)]
)
def test_softmaxes_of_parts_that_are_averaged_are_wrong(kind: type, verdict: str) -> None:
    report = conclude(kind, {}, UserSettings()).report()
    assert (report.verdict == "wrong") == (verdict == "wrong"), str(report)
    assert report.verdict != "undetermined", str(report)


# Calls. ---------------------------------------------------------------------------------------------------------------


def test_names_of_padding() -> None:
    assert [call_meaning(each) for each in ("src_pad", "key_padding", "tgt_pads", "pad_id", "left_pad")] == [
        "padding",
        "padding",
        "padding",
        None,
        None,
    ]


def of_a_state(s: Tensor, enc: Tensor, lengths: Tensor) -> Tensor:
    """One query of each sample: what nothing tells the name of, beside an encoder's output."""
    hidden = torch.arange(enc.shape[1])[None] >= lengths[:, None]
    scores = torch.einsum("bd,btd->bt", s, enc).masked_fill(hidden, -torch.inf)
    return torch.einsum("bt,btd->bd", scores.softmax(-1), enc)


def of_y_and_memory(y: Tensor, memory: Tensor, memory_lengths: Tensor) -> Tensor:
    hidden = torch.arange(memory.shape[1])[None] >= memory_lengths[:, None]
    return (y @ memory.mT).masked_fill(hidden[:, None], -torch.inf).softmax(-1) @ memory


def of_memory_and_target(memory: Tensor, y: Tensor, y_lengths: Tensor) -> Tensor:
    told = torch.arange(y.shape[1])[None] < y_lengths[:, None]
    return attention(y, memory, memory) * told[..., None]


def of_source_and_bank(source: Tensor, memory_bank: Tensor) -> Tensor:
    """As in OpenNMT, whose source is what asks: a decoder's states."""
    return attention(source, memory_bank, memory_bank)


def of_source_and_another_memory(source: Tensor, memory_of_words: Tensor) -> Tensor:
    return attention(source, memory_of_words, memory_of_words)


class BesideAMemory(nn.Module):
    def __init__(self, dim: int) -> None:
        super().__init__()
        self.q, self.k = nn.Linear(dim, dim), nn.Linear(dim, dim)

    def forward(self, X: Tensor, M: Tensor) -> Tensor:
        return torch.einsum("bqk,bkd->bqd", (self.q(X) @ self.k(M).mT).softmax(-1), M)


def test_what_asks_beside_a_memory_is_known_whatever_its_name_is() -> None:
    assert axes(first(of_a_state)) == [("x", 0, (), None), ("context", 0, (1,), None)]
    assert axes(first(of_y_and_memory)) == [("x", 0, (1,), None), ("context", 0, (1,), None)]
    assert [each.role for each in first(of_memory_and_target).streams] == ["context", "x"]
    assert [each.role for each in first(BesideAMemory).streams] == ["x", "context"]
    assert [each.role for each in first(of_source_and_bank).streams] == ["x", "context"]
    assert check(of_source_and_bank).verdict == check(of_source_and_another_memory).verdict == "right"


def test_lengths_are_of_the_sequence_that_their_name_begins_with() -> None:
    assert first(of_y_and_memory).lengths == ["memory_lengths"]
    call = first(of_memory_and_target)
    assert call.lengths == []
    assert set(call.arguments["y_lengths"].tolist()) == {call.arguments["y"].shape[1]}


@pytest.mark.parametrize(
    ("name", "means"),
    [
        ("mem_lengths", "lengths"),
        ("audio_lens", "lengths"),
        ("max_lengths", None),
        ("mem_length", None),
        ("token_mask", "mask"),
        ("position_mask", None),
    ],
)
def test_names_of_lengths_are_not_those_of_a_largest_one(name: str, means: str | None) -> None:
    assert call_meaning(name) == means


# What is called is a module. ------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("source", "found"),
    [
        ("self.f = part\ny = self.f(x)", 1),
        ("self.f, self.g = part, other\ny = self.f(q, k, v, mask)", 4),
        ("self.f = copy.deepcopy(part)\ny = self.f(x)", 1),
        ("self.f = other(part)\ny = self.f(x)", None),
        ("self.f = part\ny = self.g(x)", None),
        ("self.f = part\ny = self.f(*x)", None),
    ],
)
def test_what_is_called_is_called_with_so_many_arguments(source: str, found: int | None) -> None:
    assert called_with(source, "part") == found


class InnerAttention(nn.Module):
    def forward(self, q: Tensor, k: Tensor, v: Tensor) -> Tensor:
        return attention(q, k, v)


class Outer(nn.Module):
    """Whose projections and attention are handed over."""

    def __init__(self, into_q, into_kv, inner) -> None:
        super().__init__()
        self.q, self.k, self.v = copy.deepcopy(into_q), copy.deepcopy(into_kv), copy.deepcopy(into_kv)
        self.inner = inner

    def forward(self, x: Tensor) -> Tensor:
        return self.inner(self.q(x), self.k(x), self.v(x))


def test_modules_that_are_called_are_made_by_the_number_of_their_arguments() -> None:
    call = first(Outer)
    assert isinstance(call.target.q, nn.Linear)
    assert isinstance(call.target.inner, InnerAttention)
    assert {"into_q=Linear", "inner=InnerAttention"} <= set(call.assumptions)


class OfCapitals(nn.Module):
    """Its sequences have names of one letter, one of which could be a width."""

    def __init__(self, d_model) -> None:
        super().__init__()
        self.q, self.kv = nn.Linear(d_model, d_model), nn.Linear(d_model, 2 * d_model)

    def forward(self, X, C):
        return attention(self.q(X), *self.kv(C).chunk(2, -1))


class OfAWidth(OfCapitals):
    """C is how many channels X has."""

    def forward(self, X, C):
        return attention(self.q(X), *self.kv(X).chunk(2, -1)) / C


def test_what_a_module_is_called_with_is_no_size() -> None:
    assert [each[0] for each in axes(first(OfCapitals))] == ["x", "context"]
    assert [each[0] for each in axes(first(OfAWidth))] == ["x"]


class OfOneQuery(nn.Module):
    """A step of a decoder: its query has a token, and no more."""

    def __init__(self, d_model, num_heads, by_a_view=False) -> None:
        super().__init__()
        self.heads, self.by_a_view = num_heads, by_a_view
        self.q, self.k, self.v = (nn.Linear(d_model, d_model) for _ in range(3))

    def forward(self, query, key, value):
        q = self.q(query).view(len(query), self.heads, 1, -1)
        k, v = self.k(key), self.v(value)
        if self.by_a_view:
            k, v = (each.view(len(key), self.heads, key.shape[1], -1) for each in (k, v))
        else:
            k, v = (split(each, self.heads) for each in (k, v))
        return attention(q, k, v).view(len(query), 1, -1)


@pytest.mark.parametrize("by_a_view", [False, True])
def test_one_query_is_tried_where_several_do_not_run(by_a_view: bool) -> None:
    found, _ = analyses_of(OfOneQuery, {"by_a_view": by_a_view}, {}, UserSettings())
    assert found[0].num_attentions == 1
    assert found[0].invocation.arguments["query"].shape[1] == 1
    assert bool([each for one in found for each in one.violations]) is by_a_view


class OfProfiles(nn.Module):
    """What asks has a name that says nothing."""

    def __init__(self, d_model, hidden: bool = False) -> None:
        super().__init__()
        self.q, self.hidden = nn.Linear(d_model, d_model), hidden

    def forward(self, inputs, profiles, input_lengths):
        scores = self.q(profiles) @ inputs.mT
        if self.hidden:
            padding = torch.arange(inputs.shape[1]) >= input_lengths[:, None]
            scores = scores.masked_fill(padding[:, None], -torch.inf)
        return scores.softmax(-1) @ inputs


@pytest.mark.parametrize("hidden", [False, True])
def test_what_a_module_is_called_with_asks_where_its_name_says_nothing(hidden: bool) -> None:
    found, _ = analyses_of(OfProfiles, {"hidden": hidden}, {}, UserSettings())
    assert [each.property for one in found for each in one.violations] == ["mask-argument"] * (not hidden)
    assert all(not one.guessed for one in found)
    assert "queries are made of profiles" in " ".join(each.message for each in found[0].findings)


class WithEdges(OfCapitals):
    """It is neither query nor key: what it is stays a guess."""

    def forward(self, x, edges):
        return attention(self.q(x), *self.kv(x).chunk(2, -1)) + self.q(edges).mean(1, keepdim=True)


def test_what_is_neither_query_nor_key_stays_a_guess() -> None:
    assert analyses_of(WithEdges, {}, {}, UserSettings())[0][0].guessed == ["edges"]


class OfAnUnknownNumber(nn.Module):
    def __init__(self, args, embed_dim) -> None:
        super().__init__()
        self.qkv = nn.Linear(embed_dim, 3 * embed_dim)
        self.shift = 2.0 * args.flavour

    def forward(self, x: Tensor) -> Tensor:
        q, k, v = self.qkv(x + self.shift).chunk(3, -1)
        return attention(q, k, v)


def test_a_field_that_is_more_than_an_option_is_asked_for() -> None:
    with pytest.raises(InputError, match=r"reads config.flavour, whose meaning is unknown: give --arg flavour=VALUE"):
        first(OfAnUnknownNumber)


class OfMaskedTokens(nn.Module):
    """Tells the tokens at some places, by whose numbers their vectors are gathered."""

    def __init__(self) -> None:
        super().__init__()
        self.words, self.places, self.qkv = nn.Embedding(20, 12), nn.Embedding(16, 12), nn.Linear(12, 36)

    def forward(self, input_ids: Tensor, masked_pos: Tensor) -> Tensor:
        x = self.words(input_ids) + self.places(torch.arange(input_ids.shape[1]))
        x = attention(*self.qkv(x).chunk(3, -1))
        masked_pos = masked_pos[:, :, None].expand(-1, -1, x.size(-1))
        return torch.gather(x, 1, masked_pos) @ self.words.weight.T


def test_what_tokens_are_gathered_by_are_their_places() -> None:
    call = first(OfMaskedTokens)
    assert call.arguments["masked_pos"].dtype == torch.long
    assert conclude(OfMaskedTokens, {}, UserSettings()).report().ok


def test_what_is_asked_for_by_a_helper_is_not_demanded() -> None:
    asked = (
        "def forward(self, x, cond=None):\n    assert exists(cond) == self.has_cond\n"
        "    n = cond.shape[-1] if self.has_cond else 0\n"
    )
    read = "def forward(self, x, cond=None):\n    n = cond.shape[-1]\n    return x * n\n"
    assert not is_demanded(asked, "cond")
    assert is_demanded(read, "cond")
