"""Which number of which parameter stands where in a module's projections, read off what the module computes.

Neither names nor layouts are looked at. Every number of the parameters is set to a number of its own, its tag, and one
token has a single 1 among its channels. Then the operands of the scores' product are tags, each times a constant, and
the same call with 1 for every tag gives these constants. For the output projection the 1 is put into the weighted sum.
What is read is the first token: rotary positions leave it as it is.
"""

from __future__ import annotations

import itertools
from collections.abc import Callable
from dataclasses import dataclass, replace

import torch
from torch import Tensor, nn

from regard.check.equivalence.calls import CallPlan, CannotCompareError
from regard.check.equivalence.cores import AttentionCore, attention_cores
from regard.check.equivalence.tags import FIRST_TAG, Projections, ProjectionTags, flat_parameters
from regard.check.recipes.case import Case
from regard.check.target.preparation import copied

__all__ = ["read_projections"]

TOKENS = 3
TAG_TOLERANCE = 1e-4
READ_TOLERANCE = 1e-8
"""Of a linear map that was read from a few of its columns, against the module."""


def read_projections(plan: CallPlan) -> Projections:
    """The projections of a module.

    Raises:
        CannotCompareError: they cannot be read: no scores, or queries, keys or values that are no linear function of
            one token each.
    """
    assert plan.module is not None
    reader = _Reader(replace(plan, module=_without_norms(plan.module)))
    return reader.projections()


def _without_norms(module: nn.Module) -> nn.Module:
    """A copy that does not norm: what is then left is linear in the token."""
    module = copied(module)
    for name, part in list(module.named_modules()):
        if name and "norm" in type(part).__name__.lower():
            owner, _, last = name.rpartition(".")
            setattr(module.get_submodule(owner), last, nn.Identity())
    return module


OPERANDS = {"q": "left", "k": "right", "v": "values"}
"""Which operand each projection makes; q and k may stand the other way round, which only a proof can tell."""


@dataclass(frozen=True)
class _Row:
    """One head's row of an operand."""

    core: int
    slice: int
    row: int


@dataclass(frozen=True)
class _HeadRows:
    """The rows of one token, by head: of queries, keys and values, and of the weighted sum."""

    q: list[_Row]
    k: list[_Row]
    v: list[_Row]
    out: list[_Row]


class _Reader:
    def __init__(self, plan: CallPlan) -> None:
        self.plan = plan
        assert plan.module is not None
        self.parameters = flat_parameters(plan.module)
        self.total = sum(each.numel() for _, each in self.parameters)

    def projections(self) -> Projections:
        """Read all four maps."""
        self._draw()
        rows = self._rows(0)
        heads, name = len(rows.q), self.plan.name
        if len(rows.v) != heads:
            raise CannotCompareError(f"{name} has {heads} heads of scores and {len(rows.v)} of values")

        def operands(x: Tensor | None) -> Tensor:
            cores = self._call(self._tokens(x))[0]
            read = [_read(cores, which, getattr(rows, letter)) for letter, which in OPERANDS.items()]
            widths[:] = [each.shape[-1] for each in read]
            return torch.cat(read, -1)

        widths: list[int] = []
        whole = self._tagged(operands, self.plan.width, period=self.plan.width)
        ends = list(itertools.accumulate(widths))
        q, k, v = (
            ProjectionTags(whole.weight[:, end - width : end], whole.bias[:, end - width : end])
            for width, end in zip(widths, ends, strict=True)
        )
        return Projections(q, k, v, self._output_map(rows.out, widths[2]), self._turn(rows.q, widths[0]))

    # Calls. -----------------------------------------------------------------------------------------------------------

    def _draw(self) -> None:
        generator = torch.Generator().manual_seed(5)
        with torch.no_grad():
            for _, each in self.parameters:
                scale = each.shape[-1] ** -0.5 if each.ndim > 1 else 0.5
                drawn = torch.randn(each.shape, generator=generator, dtype=torch.float64) * scale
                each.copy_(torch.ones_like(each) if each.numel() == 1 else drawn)

    def _set(self, tags: bool) -> None:
        """Tags, or ones; a parameter of one number is a factor, and stays one."""
        at = FIRST_TAG
        with torch.no_grad():
            for _, each in self.parameters:
                each.fill_(1.0)
                if tags and each.numel() > 1:
                    each.copy_(torch.arange(at, at + each.numel(), dtype=torch.float64).view(each.shape))
                at += each.numel()

    def _call(self, x: Tensor, put: dict[int, Tensor] | None = None) -> tuple[list[AttentionCore], Tensor]:
        trace, output = self.plan.traced(Case(x=x), frozen=put)
        return attention_cores(trace), output

    def _tokens(self, first: Tensor | None = None) -> Tensor:
        x = torch.zeros(1, TOKENS, self.plan.width, dtype=torch.float64)
        if first is not None:
            x[0, 0] = first
        return x

    # Heads. -----------------------------------------------------------------------------------------------------------

    def _rows(self, token: int) -> _HeadRows:
        """Where one token is among the operands."""
        generator = torch.Generator().manual_seed(3)
        x = torch.randn(1, TOKENS, self.plan.width, generator=generator, dtype=torch.float64)
        changed = x.clone()
        changed[0, token] = torch.randn(self.plan.width, generator=generator, dtype=torch.float64)
        before, after = self._call(x)[0], self._call(changed)[0]
        name = self.plan.name
        if not before:
            raise CannotCompareError(f"no softmax between two products of matrices was found in {name}")
        q, k, v, out = [], [], [], []
        for number, (one, other) in enumerate(zip(before, after, strict=True)):
            left, right = _moved_rows(one.left, other.left), _moved_rows(one.right, other.right)
            for at in range(len(one.left)):
                queries, keys = left[at], right[at]
                if len(keys) == 1 or len(queries) == 1:
                    pairs = [(query, key) for query in queries for key in keys]
                else:
                    raise CannotCompareError(
                        f"in {name} the scores of one token are made of {len(queries)} queries and {len(keys)} keys at "
                        "once: it mixes heads or tokens"
                    )
                q += [_Row(number, at, query) for query, _ in pairs]
                k += [_Row(number, at, key) for _, key in pairs]
            values = _moved_rows(one.values, other.values)
            rows = self._summed_rows(before, number, token)
            for at in range(len(one.values)):
                if len(values[at]) != 1:
                    raise CannotCompareError(f"in {name} one token has {len(values[at])} values in a head")
                v += [_Row(number, at, values[at][0])] * len(rows)
                out += [_Row(number, at, row) for row in rows]
        return _HeadRows(q, k, v, out)

    def _summed_rows(self, cores: list[AttentionCore], number: int, token: int) -> list[int]:
        """Rows of the first slice of a weighted sum that reach the output of one token alone."""
        core = cores[number]
        rows = core.summed.shape[1]
        if rows == TOKENS:
            return [token]
        silent = self._call(self._tokens(), self._put(cores, {}))[1]
        found = []
        for row in range(rows):
            width = core.summed.shape[2]
            output = self._call(self._tokens(), self._put(cores, {_Row(number, 0, row): torch.ones(width)}))[1]
            if (output - silent)[0].abs().amax(-1).argmax() == token:
                found.append(row)
        return found

    def _put(self, cores: list[AttentionCore], rows: dict[_Row, Tensor]) -> dict[int, Tensor]:
        """What the weighted sums are to be: zero but for some rows."""
        put = {}
        for number, core in enumerate(cores):
            made = torch.zeros_like(core.summed)
            for row, values in rows.items():
                if row.core == number:
                    made[row.slice, row.row] = values.to(torch.float64)
            made = made.transpose(1, 2) if core.summed_transposed else made
            put[core.summed_at] = made.reshape(core.summed_shape)
        return put

    # Linear maps. -----------------------------------------------------------------------------------------------------

    def _output_map(self, rows: list[_Row], width: int) -> ProjectionTags:
        """The map of the joined heads, by tags."""
        cores = self._call(self._tokens())[0]

        def value(z: Tensor | None) -> Tensor:
            parts = {} if z is None else dict(zip(rows, z.view(len(rows), width), strict=True))
            return self._call(self._tokens(), self._put(cores, parts))[1][0, 0][None]

        return self._tagged(value, len(rows) * width, period=width)

    def _tagged(self, value: Callable[[Tensor | None], Tensor], inputs: int, *, period: int) -> ProjectionTags:
        """The tags of an affine map.

        Args:
            value: what it makes of an input; of zeros, for None.
            inputs: how many numbers an input has.
            period: after how many of them their places in the parameters may go on in another way.
        """

        def column(at: int) -> tuple[Tensor, Tensor]:
            one_hot = torch.zeros(inputs, dtype=torch.float64)
            one_hot[at] = 1.0
            self._set(tags=True)
            tags = value(one_hot) - zero_tags
            self._set(tags=False)
            ones = value(one_hot) - zero_ones
            return self._tags_of(tags, ones), ones

        self._set(tags=True)
        zero_tags = value(None)
        self._set(tags=False)
        zero_ones = value(None)
        bias = self._tags_of(zero_tags, zero_ones)
        columns: list[Tensor] = []
        scale = zero_ones
        for start in range(0, inputs, period):
            first, scale = column(start)
            second = column(start + 1)[0] if period > 1 else first
            columns += [first + at * (second - first) for at in range(period)]
        weight = torch.stack(columns, -1)
        scale = torch.where(scale.abs() > 0, scale, zero_ones)
        if not self._holds(value, weight, bias, scale, inputs):
            read = [column(at) for at in range(inputs)]
            weight = torch.stack([tags for tags, _ in read], -1)
            scales = torch.stack([ones for _, ones in read], -1)
            scale = torch.where(scales.abs().amax(-1) > 0, scales.abs().amax(-1) * scales.sum(-1).sign(), zero_ones)
            if not self._holds(value, weight, bias, scale, inputs):
                raise CannotCompareError(f"a projection of {self.plan.name} is no linear function of its token")
        return ProjectionTags(weight, bias)

    def _tags_of(self, tags: Tensor, ones: Tensor) -> Tensor:
        there = ones.abs() > 1e-12
        ratio = torch.where(there, tags / torch.where(there, ones, 1.0), 0.0)
        rounded = ratio.round()
        if bool(((ratio - rounded).abs() > TAG_TOLERANCE).any()) or bool((rounded < 0).any()):
            raise CannotCompareError(f"a projection of {self.plan.name} is no linear function of its parameters")
        if bool((rounded >= FIRST_TAG + self.total).any()):
            raise CannotCompareError(f"a projection of {self.plan.name} is no linear function of its parameters")
        return rounded.long()

    def _holds(
        self, value: Callable[[Tensor | None], Tensor], weight: Tensor, bias: Tensor, scale: Tensor, inputs: int
    ) -> bool:
        """Whether a map by tags is what the module computes, with numbers drawn at random."""
        if bool((weight < 0).any()) or bool((weight >= FIRST_TAG + self.total).any()):
            return False
        self._draw()
        flat = torch.cat([torch.tensor([0.0, 1.0]).double(), *(each.detach().flatten() for _, each in self.parameters)])
        given = torch.randn(inputs, generator=torch.Generator().manual_seed(9), dtype=torch.float64)
        found = value(given)
        expected = scale * (flat[weight] @ given + flat[bias])
        return bool((found - expected).abs().max() <= READ_TOLERANCE * max(1.0, float(expected.abs().max())))

    # Positions. -------------------------------------------------------------------------------------------------------

    def _turn(self, rows: list[_Row], width: int) -> Tensor | None:
        """What the position after the first makes of a query of the first head."""
        self._draw()
        later = self._rows(1).q
        generator = torch.Generator().manual_seed(11)
        before, after = [], []
        for _ in range(width + 2):
            x = torch.randn(self.plan.width, generator=generator, dtype=torch.float64)
            cores = self._call(x.expand(1, TOKENS, -1).clone())[0]
            before.append(_read(cores, "left", rows[:1])[0])
            after.append(_read(cores, "left", later[:1])[0])
        here, there = torch.stack(before), torch.stack(after)
        if bool((here - there).abs().max() <= READ_TOLERANCE):
            return None
        with_one = torch.cat((here, torch.ones(len(here), 1, dtype=torch.float64)), 1)
        turn: Tensor = torch.linalg.lstsq(with_one, there, driver="gelsd").solution[:-1].t()
        return turn


def _read(cores: list[AttentionCore], which: str, rows: list[_Row]) -> Tensor:
    """Rows of an operand, one for each head."""
    return torch.stack([getattr(cores[row.core], which)[row.slice, row.row] for row in rows])


def _moved_rows(before: Tensor, after: Tensor) -> list[list[int]]:
    """For each slice, the rows that differ."""
    moved = ((before - after).abs() > 1e-10).any(-1)
    return [each.nonzero().flatten().tolist() for each in moved]
