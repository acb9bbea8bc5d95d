"""Two implementations held against each other: mappings of the weights are proposed, and each is proved or refuted."""

from __future__ import annotations

import itertools
import math
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

import torch
from torch import Tensor, nn

from regard.check.equivalence.call_search import call_plan
from regard.check.equivalence.calls import CallPlan, CannotCompareError
from regard.check.equivalence.code import code_of
from regard.check.equivalence.construction import Compared, constructed
from regard.check.equivalence.head_order import in_head_order, matching_heads
from regard.check.equivalence.mapping import (
    TagPlan,
    WeightMapping,
    mapping_of,
    matched,
    same_shapes,
    used_tags,
)
from regard.check.equivalence.parting import STEPS, Parting, first_parting
from regard.check.equivalence.projections import read_projections
from regard.check.equivalence.proof import TOLERANCE, is_comparable, largest_difference, modes
from regard.check.equivalence.record import Equivalence
from regard.check.equivalence.rotation import rotary_order
from regard.check.equivalence.tags import Projections, flat_parameters, tagged_parameters
from regard.check.sandbox.torch_settings import UserSettings
from regard.check.target.preparation import redraw

__all__ = ["compare"]

FLOAT32_TOLERANCE = 1e-5
MAX_PARTINGS = 8
"""Mappings that do not hold for which the step is looked for."""
MAX_PAIRINGS = 24
"""Ways to pair up the parameters that are no projections."""


def compare(
    a: Any, b: Any, args: Mapping[str, Any], against_args: Mapping[str, Any], settings: UserSettings
) -> Equivalence:
    """Whether two implementations compute the same, and with which reordering of weights.

    Neither is changed.

    Args:
        a: a function, a class or a module.
        b: another one, of the same kind and size.
        args: for a's constructor.
        against_args: for b's.
        settings: PyTorch's settings during the calls.

    Raises:
        InputError: one of them is none of these, or cannot be constructed.
    """
    sides = constructed((a, b), (args, against_args), settings)
    try:
        plans = [call_plan(each.name, each.made, each.sizes, settings) for each in sides]
        is_comparable(*plans)
        return _Comparison(plans[0], plans[1], _assumptions(sides)).outcome()
    except CannotCompareError as error:
        names = sides[0].name, sides[1].name
        return Equivalence(*names, "undetermined", reason=str(error), notes=_assumptions(sides))


def _assumptions(sides: Sequence[Compared]) -> tuple[str, ...]:
    return tuple(
        f"{which} was constructed with {', '.join(each.assumptions)}"
        for which, each in zip("AB", sides, strict=True)
        if each.assumptions
    )


@dataclass(frozen=True, eq=False)
class _Candidate:
    """A mapping that may be right."""

    mapping: WeightMapping
    conflicts: tuple[str, ...] = ()


class _Comparison:
    """Both, as they are called; B's parameters are set again and again."""

    def __init__(self, a: CallPlan, b: CallPlan, assumptions: tuple[str, ...]) -> None:
        self.a, self.b, self.assumptions = a, b, assumptions
        self.unread: list[str] = []

    def outcome(self) -> Equivalence:
        """Which of the proposals holds; else where the best of them parts."""
        refuted: list[tuple[_Candidate | None, float]] = []
        for candidate in self._candidates():
            self._fill(candidate)
            difference, calls = largest_difference(self.a, self.b)
            if difference <= TOLERANCE:
                return self._same(candidate, difference, calls)
            refuted.append((candidate, difference))
        if not refuted:
            raise CannotCompareError("; ".join(self.unread) or "no mapping of the weights could be proposed")
        partings = [(self._parting(*each), each[0]) for each in refuted[:MAX_PARTINGS]]
        return self._different(*max(partings, key=lambda each: STEPS.index(each[0].step)))

    def _parting(self, candidate: _Candidate | None, difference: float) -> Parting:
        """Where they part with a mapping that does not hold."""
        self._fill(candidate)
        found = first_parting(self.a, self.b)
        # They may be told apart only with several samples or in other lengths.
        return found or Parting("output", f"their outputs differ by {difference:.2g} of the largest", difference)

    def _fill(self, candidate: _Candidate | None) -> None:
        """Set B's parameters; what the candidate leaves out is drawn at random."""
        if candidate is not None and self.a.module is not None and self.b.module is not None:
            redraw(self.b.module, 2)
            candidate.mapping.apply(self.a.module, self.b.module)

    def _same(self, candidate: _Candidate | None, difference: float, calls: int) -> Equivalence:
        verdict = "same after reordering" if candidate is not None and candidate.mapping.reordered else "same"
        mapping = None if candidate is None else candidate.mapping
        code = None
        if mapping is not None:
            code = code_of(mapping, _shapes(self.a.module), _shapes(self.b.module))
        notes = []
        if mapping is not None and mapping.unused:
            notes.append(f"parameters of A without effect on the output: {', '.join(mapping.unused)}")
        if mapping is not None and mapping.unset:
            notes.append(f"parameters of B without effect on the output, left as they are: {', '.join(mapping.unset)}")
        return self._record(verdict, difference=difference, calls=calls, mapping=mapping, code=code, notes=tuple(notes))

    def _different(self, parting: Parting, candidate: _Candidate | None) -> Equivalence:
        notes = []
        notes += self.unread
        if candidate is not None:
            notes += candidate.conflicts
        if len(modes(self.a, self.b)) == 1 and self.a.is_causal != self.b.is_causal:
            causal, other = ("A", "B") if self.a.is_causal else ("B", "A")
            notes.append(f"{causal} is causal, and no way to make {other} so was found")
        if parting.difference <= FLOAT32_TOLERANCE:
            notes.append("the difference is of float32's size: a constant of one of them may be made in float32")
        number = f"; difference {parting.difference:.2g}" if math.isfinite(parting.difference) else ""
        reason = parting.says + number
        return self._record(
            "different", step=parting.step, reason=reason, difference=parting.difference, notes=tuple(notes)
        )

    def _record(self, verdict: Any, *, notes: tuple[str, ...], **found: Any) -> Equivalence:
        are_causal = [causal or self.a.is_causal for causal in modes(self.a, self.b)]
        compared = tuple("with a causal mask" if each else "without a mask" for each in are_causal)
        notes = (*notes, *self.assumptions)
        return Equivalence(self.a.name, self.b.name, verdict, compared=compared, notes=notes, **found)

    # Proposals. -------------------------------------------------------------------------------------------------------

    def _candidates(self) -> Iterator[_Candidate | None]:
        a, b = self.a.module, self.b.module
        if a is None or b is None or not (flat_parameters(a) or flat_parameters(b)):
            yield None
            return
        for by_name in (True, False):
            mapping = same_shapes(a, b, by_name=by_name)
            if mapping is not None:
                yield _Candidate(mapping)
        read = []
        for which, plan in (("A", self.a), ("B", self.b)):
            try:
                read.append(read_projections(plan))
            except CannotCompareError as error:
                self.unread.append(f"the projections of {which} were not read: {error}")
        if len(read) == 2:
            yield from self._by_projections(*read)

    def _by_projections(self, one: Projections, other: Projections) -> Iterator[_Candidate]:
        a, b = self.a.module, self.b.module
        assert a is not None
        assert b is not None
        for name in ("q", "k", "v", "out"):
            of_a, of_b = getattr(one, name).weight.shape, getattr(other, name).weight.shape
            if of_a != of_b:
                self.unread.append(
                    f"heads, width of a head and d_model are {tuple(of_a)} in A's {name}, {tuple(of_b)} in B's"
                )
                return
        total = sum(each.numel() for _, each in flat_parameters(b))
        other = in_head_order(other, matching_heads(self.a, self.b))
        orders = rotary_order(one.turn), rotary_order(other.turn)
        for swapped in (False, True):
            taken = replace(one, q=one.k, k=one.q) if swapped else one
            pairs = list(_tag_pairs(taken, other, *orders))
            plan = matched(pairs, total)
            for rest in self._rest(plan, orders):
                whole = TagPlan(plan.sources.clone(), plan.groups, plan.conflicts)
                for at, source in rest:
                    whole.sources[at : at + len(source)] = source
                yield _Candidate(mapping_of(whole, a, b), tuple(plan.conflicts))

    def _rest(
        self, plan: TagPlan, orders: tuple[list[int] | None, list[int] | None]
    ) -> Iterator[list[tuple[int, Tensor]]]:
        """Ways to pair up the parameters that are no projections: norms, tables of positions, sinks."""
        assert self.a.module is not None
        assert self.b.module is not None
        tagged_a = tagged_parameters(self.a.module)
        used = used_tags(plan, tagged_a[-1][2] if tagged_a else 0)
        left_a = [each for each in tagged_a if not bool(used[each[1] : each[2]].any())]
        left_b = [
            each for each in tagged_parameters(self.b.module) if bool((plan.sources[each[1] : each[2]] < 0).all())
        ]
        choices = []
        for name, first, last in left_b:
            same = [each for each in left_a if each[2] - each[1] == last - first]
            same.sort(key=lambda each: (each[0] != name, each[0].rpartition(".")[2] != name.rpartition(".")[2]))
            nothing = [(first, torch.full((last - first,), -1))]
            choices.append([(first, _reordered(each, orders)) for each in same] or nothing)
        tried = set()
        for pairing in itertools.islice(itertools.product(*choices), 4 * MAX_PAIRINGS):
            sources = tuple(int(source[0]) for _, source in pairing)
            known = [each for each in sources if each >= 0]
            if len(set(known)) < len(known) or sources in tried:
                continue
            tried.add(sources)
            yield list(pairing)
            if len(tried) == MAX_PAIRINGS:
                return


def _reordered(parameter: tuple[str, int, int], orders: tuple[list[int] | None, list[int] | None]) -> Tensor:
    """Its tags; one number for each channel of a head goes with the order of the channels."""
    _, first, last = parameter
    tags = torch.arange(first, last)
    one, other = orders
    if one is None or other is None or len(tags) % len(one):
        return tags
    made = tags.view(-1, len(one)).clone()
    made[:, other] = tags.view(-1, len(one))[:, one]
    return made.flatten() if one != other else tags


def _tag_pairs(
    one: Projections, other: Projections, order_a: list[int] | None, order_b: list[int] | None
) -> Iterator[tuple[str, Tensor, Tensor]]:
    """Tags of A and of B that have to hold the same numbers."""
    for name, says in (("q", "queries"), ("k", "keys"), ("v", "values"), ("out", "output projection")):
        of_a, of_b = getattr(one, name), getattr(other, name)
        weights, biases = [of_a.weight, of_b.weight], [of_a.bias, of_b.bias]
        if name in ("q", "k") and order_a is not None and order_b is not None:
            weights = [each[:, order] for each, order in zip(weights, (order_a, order_b), strict=True)]
            biases = [each[:, order] for each, order in zip(biases, (order_a, order_b), strict=True)]
        yield f"weights of the {says}", weights[0], weights[1]
        yield f"biases of the {says}", biases[0], biases[1]


def _shapes(module: nn.Module | None) -> dict[str, tuple[int, ...]]:
    return {} if module is None else {name: tuple(each.shape) for name, each in module.named_parameters()}
