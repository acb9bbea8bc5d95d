"""The attentions of a run: which products are scores, which are weighted sums, and what each of their numbers is of."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from functools import cached_property, partial

import torch
from torch import Tensor

from regard.check.location import CodeLocation
from regard.check.roles.additive import (
    additive_scores,
    concatenated_scores,
    concatenations,
    pairwise_products,
    pairwise_sums,
    scores_of_parts,
)
from regard.check.roles.contractions import Contraction, contractions, of_its_transpose, without_lengths
from regard.check.roles.head_mixing import mixed_heads, mixing_products
from regard.check.roles.influence import Influence
from regard.check.roles.recurrences import recurrent_outputs
from regard.check.roles.separate_calls import Reads, connected, repetitions, sequences_of, sources_of
from regard.check.roles.tags import SOFTMAXES, TaggedTrace, behind_others, moves_numbers, tagged
from regard.check.trace.operation import CHOICES, Operation, Trace

__all__ = ["SOFTMAXES", "AttentionInstance", "TaggedRun", "attentions_of", "completed", "tagged_run"]

BOUNDS_OF_SUMS = frozenset({"add", "clamp", "clamp_min"})  # by which a sum is kept from 0
PROJECTIONS = frozenset({"convolution"})


@dataclass(eq=False)
class TaggedRun:
    """A run with the products in it: each product's elements have tags of their own."""

    trace: Trace
    products: list[Contraction]
    tags: TaggedTrace
    first_tag: dict[int, int]
    """By the index of an operation, the tag of its first element."""
    bilinear: list[Contraction]
    """Products of two things that both depend on the inputs."""
    num_tags: int
    given: dict[str, Tensor]
    """By argument, the tags of its elements."""
    depends: set[tuple[int, int]]
    """The factors that depend on the inputs: the operation that takes it, and which of its tensors it is."""
    additive: bool = False
    """Whether its scores are products of a vector and f(q + k), and not q . k."""
    streams: dict[int, Reads] = field(default_factory=dict)
    """By the index of a product, the inputs that its factors are made of."""
    repetitions: dict[int, int] = field(default_factory=dict)
    """By the index of a product, how often its matrices had made scores before, where there are several sequences."""

    def owner_of(self, tags: Tensor) -> set[int]:
        """The indices of the operations that some tags are of."""
        starts, indices, end = self._starts
        found = tags[(tags > 0) & (tags < end)]
        if not len(found) or not len(starts):
            return set()
        places = torch.searchsorted(starts, found, right=True) - 1
        return {indices[place] for place in torch.unique(places).tolist()}

    @cached_property
    def _starts(self) -> tuple[Tensor, list[int], int]:
        """The first tags of the operations in their order, these, and the first tag of what was given."""
        ordered = sorted(self.first_tag, key=self.first_tag.__getitem__)
        end = min((int(each.min()) for each in self.given.values() if each.numel()), default=self.num_tags)
        return torch.tensor([self.first_tag[each] for each in ordered]), ordered, end

    @cached_property
    def taken(self) -> list[set[int]]:
        """For each operation, the indices of those whose elements it takes."""
        return [set().union(*map(self.owner_of, each)) for each in self.tags.inputs]


def tagged_run(
    influence: Influence, inputs: Sequence[str] = (), *, additive: bool = False, unsummed: bool = False
) -> TaggedRun:
    """Follow the elements of every product of a run, and of what it was given.

    Args:
        influence: the run, and how its samples change it.
        inputs: the arguments that hold the tokens: their elements are followed as well.
        additive: whether scores are of queries and keys that are added, not multiplied.
        unsummed: whether they are products of one number each.
    """
    trace = influence.base
    products = list(contractions(trace))
    factors = {place for each in products for place in each.places}
    depends = {place for place in factors if bool(influence.of(*place).any())}
    sources, first, next_tag = {}, {}, 1
    sums = list(pairwise_products(influence)) if unsummed else list(pairwise_sums(influence)) if additive else []
    indices = {each.operation.index for each in products} | {each.index for each in sums} | recurrent_outputs(trace)
    for operation in trace:
        if operation.index in indices or (operation.name in PROJECTIONS and not moves_numbers(operation)):
            count = operation.outputs[0].data.numel()
            sources[operation.index] = torch.arange(next_tag, next_tag + count)
            first[operation.index] = next_tag
            next_tag += count
    given = {}
    for name in inputs:
        if name in trace.arguments:
            record = trace.arguments[name]
            given[name] = torch.arange(next_tag, next_tag + record.data.numel()).reshape(record.shape)
            next_tag += record.data.numel()
    bilinear = without_lengths(
        [each for each in products if each.left_place in depends and each.right_place in depends]
    )
    passing = _mixing(trace, products, bilinear, depends, first)
    tags = tagged(trace, sources, given, passing)
    if behind := behind_others(trace, tags, {each.operation.index for each in bilinear}, first):
        tags = tagged(trace, sources, given, passing, behind)
    if unsummed:
        bilinear = list(scores_of_parts(sums, trace, tags, first))
    elif additive:
        bilinear = list(additive_scores(sums, products, tags, first, depends))
        bilinear += concatenated_scores(concatenations(influence, products), products, trace, tags, first)
        bilinear = bilinear or list(scores_of_parts(sums, trace, tags, first))
    run = TaggedRun(trace, products, tags, first, bilinear, next_tag, given, depends, additive or unsummed)
    sides = {each.operation.index: each.places for each in bilinear}
    run.streams = {
        index: frozenset((side, name) for side, place in enumerate(places) for name in sources_of(influence, place))
        for index, places in sides.items()
    }
    if len(given) > 1 and not run.additive:
        made_by = {
            index: (run.owner_of(tags.inputs[one][left]), run.owner_of(tags.inputs[other][right]))
            for index, ((one, left), (other, right)) in sides.items()
        }
        samples = {
            index: frozenset[str]().union(*(sources_of(influence, place, "sample") for place in places))
            for index, places in sides.items()
        }
        run.repetitions = repetitions(made_by, samples, influence)
    return run


def _mixing(
    trace: Trace,
    products: list[Contraction],
    bilinear: list[Contraction],
    depends: set[tuple[int, int]],
    first: dict[int, int],
) -> dict[int, Callable[[list[list[Tensor]]], Tensor | None]]:
    """For products that may mix heads: the tags of what they return, if it is scores, or was made of scores."""
    scores = {each.operation.index: each.operation.outputs[0] for each in bilinear if each.output.data.ndim > 2}

    def passed(product: Contraction, taken: list[list[Tensor]]) -> Tensor | None:
        operation, number = product.left_place
        tags = taken[operation][number]
        top = int(tags.max())
        for index, record in scores.items():
            if first[index] <= top < first[index] + record.data.numel():
                return mixed_heads(product, tags, first[index], record.shape)
        return None

    return {each.operation.index: partial(passed, each) for each in mixing_products(trace, products, depends)}


@dataclass(eq=False)
class AttentionInstance:
    """One attention of a run: every score that it computes, and the weighted sums that they go into.

    The vectors below have one entry for each score; scores that are computed but used nowhere are not among them.
    """

    run: TaggedRun
    scores: list[Contraction]
    """The products of queries and keys, of one line."""
    sums: list[Contraction]
    """The products of weights and values, of one line."""
    weights_left: bool
    """Whether the weights are the left factor of the sums."""
    softmaxes: list[Operation] = field(default_factory=list)
    added: list[Contraction] = field(default_factory=list)
    """Other products that are added to the scores: of a second query and key, or of one of them and learned vectors."""
    steps: set[str] = field(default_factory=set)
    """The names of the operations that take scores, or what was made of them number by number."""
    handed_on: set[int] = field(default_factory=set)
    """The operations of those that are the scores of another attention, whose own weights are made of them as well."""
    are_scores_mixed: bool = False
    """Whether the scores of all heads are mixed."""
    are_weights_mixed: bool = False
    """Whether the weights of all heads are mixed."""
    are_weights_subtracted: bool = False
    """Whether the weights of other scores are taken from its own."""

    @property
    def module(self) -> str:
        """The path of the module that computes it."""
        return self.sums[0].operation.module if self.sums else ""

    @property
    def scores_location(self) -> CodeLocation | None:
        """The line of the scores; None where they are not seen."""
        return self.scores[0].operation.location if self.scores else None

    @property
    def sums_location(self) -> CodeLocation | None:
        """The line of the weighted sums; None where they are not seen."""
        return self.sums[0].operation.location if self.sums else None

    @property
    def is_projected(self) -> bool:
        """Whether queries or keys are products themselves, as of a matrix of weights."""
        return any(
            self.run.owner_of(self.run.tags.inputs[operation][number])
            for each in self.scores
            for operation, number in each.places
        )

    @property
    def are_scores_chosen(self) -> bool:
        """Whether the softmaxes take the largest scores alone."""
        return any(each.name in CHOICES and self.takes_chosen(each.index) for each in self.run.trace)

    def takes_chosen(self, index: int) -> bool:
        """Whether the softmaxes take scores that an operation chose, and no others."""
        tags = self.run.tags
        taken = [tags.inputs[each.index][0].flatten() for each in self.softmaxes]
        return bool(taken) and bool(torch.isin(torch.cat(taken), tags.outputs[index][0]).all())

    @property
    def weights_of_softmaxes(self) -> list[Operation]:
        """The softmaxes that the weights are made of: one matrix of scores may have one over each of its axes."""
        trace = self.run.trace
        weights = {trace.taken(self.weights_place(each)).storage for each in self.sums}
        return [each for each in self.softmaxes if weights & trace.made_of([each.outputs[0].storage])]

    def weight_terms(self, product: Contraction) -> Tensor:
        """(elements, terms): which elements of the weights each weighted sum takes."""
        return product.left_terms if self.weights_left else product.right_terms

    def value_terms(self, product: Contraction) -> Tensor:
        """The same of the values."""
        return product.right_terms if self.weights_left else product.left_terms

    def weights_place(self, product: Contraction) -> tuple[int, int]:
        """Where the weights are taken."""
        return product.left_place if self.weights_left else product.right_place

    def values_place(self, product: Contraction) -> tuple[int, int]:
        """Where the values are taken."""
        return product.right_place if self.weights_left else product.left_place


def attentions_of(run: TaggedRun) -> list[AttentionInstance]:
    """The attentions of a run, in the order of their weighted sums.

    An attention is a product one factor of which was made, number by number, of another product: scores and then a
    weighted sum. Products of one line and module are one attention: loops over heads, samples or blocks of rows. Those
    of sequences that have nothing in common are several: an encoder and a decoder may call one function.
    """
    bilinear = {each.operation.index: each for each in run.bilinear}
    found = _weighted_sums(run, set(bilinear), set())
    taken = {product.operation.index for product, _, _ in found}.union(*(made_of for _, made_of, _ in found))
    learned = {each.operation.index: each for each in _of_learned_queries(run)}
    found += _weighted_sums(run, set(learned), taken)
    found.sort(key=lambda each: each[0].operation.index)
    bilinear |= learned
    depths = _depths(run.trace, {product.operation.index: group for product, _, group in found})
    grouped: dict[object, AttentionInstance] = {}
    read: dict[object, list[Reads]] = {}
    places, softmaxes = [], [run.taken[each.index] for each in run.trace if each.name in SOFTMAXES]
    for product, made_of, group in found:
        of_its_scores = _read_by(run, product, [bilinear[index] for index in sorted(made_of)], group[2])
        repetition = min((run.repetitions.get(index, 0) for index in made_of), default=0)
        sequences = sequences_of(run.streams, made_of, softmaxes)
        places.append((group, depths[product.operation.index], repetition, sequences))
        read.setdefault(places[-1], []).append(of_its_scores)
    apart = {key: connected(several) for key, several in read.items()}
    for (product, made_of, group), place in zip(found, places, strict=True):
        key = (place, apart[place].pop(0))
        instance = grouped.setdefault(key, AttentionInstance(run, [], [], group[2]))
        instance.sums.append(product)
        known = {each.operation.index for each in instance.scores}
        instance.scores += [bilinear[index] for index in sorted(made_of - known)]
    result = [
        each
        for each in grouped.values()
        if not run.trace.only_chooses(_results(each), after=each.sums[0].operation.index)
    ] or list(grouped.values())
    for instance in result:
        completed(instance, bilinear)
        others = {one.operation.index for each in result if each is not instance for one in each.scores}
        instance.handed_on = {each.operation.index for each in instance.added} & others
    return result


def _read_by(run: TaggedRun, total: Contraction, scores: list[Contraction], weights_left: bool) -> Reads:
    """What the queries of a weighted sum are made of, and its keys as well where these two are not told apart.

    Of a picture that reads a text beside the text itself, by one line, the queries are of different sequences.

    Args:
        run: the run.
        total: the weighted sum.
        scores: the products that its weights were made of.
        weights_left: whether the weights are its left factor.
    """
    whole = Reads().union(*(run.streams.get(each.operation.index, Reads()) for each in scores))
    if len({name for _, name in whole}) < 2:
        return whole
    place, terms = (total.left_place, total.left_terms) if weights_left else (total.right_place, total.right_terms)
    tags, found = run.tags.inputs[place[0]][place[1]].flatten()[terms], Reads()
    for each in scores:
        read, first = run.streams.get(each.operation.index, Reads()), run.first_tag.get(each.operation.index, 0)
        rows = tags - first
        rows = rows[((rows >= 0) & (rows < each.output.data.numel())).all(-1)]
        of_one = [
            bool((side[rows] == side[rows[:, :1]]).all()) if rows.numel() else False
            for side in (each.left_terms, each.right_terms)
        ]
        sides = {0, 1} if of_one.count(True) != 1 else {of_one.index(True)}
        found |= {(side, name) for side, name in read if side in sides}
    return found


def _results(instance: AttentionInstance) -> set[int]:
    """Where its weighted sums lie."""
    return {record.storage for each in instance.sums for record in each.operation.outputs}


_Place = tuple[str, tuple[str, int] | None, bool]
"""The module and the line of a weighted sum, and whether its weights are the left factor."""


def _weighted_sums(run: TaggedRun, scores: set[int], taken: set[int]) -> list[tuple[Contraction, set[int], _Place]]:
    """The products of weights and values, the scores that the weights were made of, and where each stands.

    Args:
        run: the run.
        scores: the products that may be scores.
        taken: products that are scores or weighted sums already: keys times values may be scores, in linear attention.
    """
    found: list[tuple[Contraction, set[int], _Place]] = []
    known_sums = set(taken)  # of chunks, that are added later; or values of another attention
    for product in run.products:
        if product.operation.index in taken or of_its_transpose(product, run.tags.inputs):
            continue
        for weights_left, place, values in (
            (True, product.left_place, product.right_place),
            (False, product.right_place, product.left_place),
        ):
            if values not in run.depends:
                continue  # a projection
            owned = run.owner_of(run.tags.inputs[place[0]][place[1]])
            made_of = owned & scores
            if not made_of or owned & known_sums:
                continue
            known_sums.add(product.operation.index)
            line = product.operation.location
            written = (line.file, line.line) if line is not None else None
            found.append((product, made_of, (product.operation.module, written, weights_left)))
            break
    return found


def _depths(trace: Trace, sums: Mapping[int, _Place]) -> dict[int, int]:
    """For each weighted sum, how many of the same line stand before it in one another's results.

    One line may compute several attentions: those of a loop over heads know nothing of each other, and those of a loop
    over layers, or of rows and then columns, stand on one another.
    """
    behind: dict[int, dict[_Place, int]] = {}  # by storage
    found: dict[int, int] = {}
    for operation in trace:
        mine: dict[_Place, int] = {}
        for record in operation.inputs:
            for place, depth in behind.get(record.storage, {}).items():
                mine[place] = max(mine.get(place, 0), depth)
        if operation.index in sums:
            place = sums[operation.index]
            found[operation.index] = mine.get(place, 0)
            mine[place] = found[operation.index] + 1
        if not mine:
            continue
        for record in (*operation.outputs, *operation.written):
            held = behind.setdefault(record.storage, {})
            for place, depth in mine.items():
                held[place] = max(held.get(place, 0), depth)
    return found


def _of_learned_queries(run: TaggedRun) -> list[Contraction]:
    """Products of keys and learned queries: those that a softmax takes, also one that is written by hand."""
    taken, exponentials, sums = set[int](), set[int](), set[int]()
    for operation in run.trace:
        name, made = operation.name.rstrip("_"), {each.storage for each in operation.outputs}
        first = operation.inputs[0].storage if operation.inputs else None
        is_bounded = name in BOUNDS_OF_SUMS and len(operation.inputs) == 1
        if operation.name in SOFTMAXES:
            taken |= run.owner_of(run.tags.inputs[operation.index][0])
        elif name == "exp" or (name == "mul" and first in exponentials):  # times a mask
            exponentials |= made
        elif (name == "sum" and first in exponentials) or (is_bounded and first in sums):
            sums |= made
        elif name == "div" and operation.inputs[-1].storage in sums:
            taken |= run.owner_of(run.tags.inputs[operation.index][0])
    known = {each.operation.index for each in run.bilinear}
    return [each for each in run.products if each.operation.index in taken - known]


def completed(instance: AttentionInstance, bilinear: dict[int, Contraction] | None = None) -> AttentionInstance:
    """The same, with the softmaxes between scores and sums, and products that are added to the scores.

    Args:
        instance: an attention.
        bilinear: by the index of a product, what may be scores as well; by default those of two things of the inputs.
    """
    run = instance.run
    bilinear = {each.operation.index: each for each in run.bilinear} if bilinear is None else bilinear
    own = {each.operation.index for each in instance.scores}
    for operation in run.trace:
        if run.taken[operation.index] & own:
            instance.steps.add(operation.name)
            if operation.name in SOFTMAXES:
                instance.softmaxes.append(operation)
    instance.softmaxes = instance.weights_of_softmaxes or instance.softmaxes
    subtracted: set[int] = set()
    first_softmax = min((each.index for each in instance.softmaxes), default=len(run.trace))
    for operation in run.trace.operations[first_softmax:]:
        if operation.name.rstrip("_") == "sub" and len(operation.inputs) == 2:
            weights = run.tags.inputs[operation.index]
            whole, part = (run.owner_of(tags) for tags in weights)
            if whole & own and not torch.equal(*weights):  # else of the same scores, as what they are rounded to
                subtracted |= part & set(bilinear)
    instance.are_weights_subtracted = bool(subtracted)
    for index in run.tags.through:
        if run.owner_of(run.tags.outputs[index][0]) & own:
            if any(each.index < index for each in instance.softmaxes):
                instance.are_weights_mixed = True
            else:
                instance.are_scores_mixed = True
    others = {
        each.operation.index: each
        for each in run.products
        if each.operation.index not in own | subtracted and run.depends & {each.left_place, each.right_place}
    }
    for kept, lost in run.tags.sums:
        if run.owner_of(kept) & own:
            instance.added += [
                others[index] for index in run.owner_of(lost) if index in others and others[index] not in instance.added
            ]
    return instance
