"""The output: each query's weighted sums, of all heads, reach the output of its token and no other."""

from __future__ import annotations

import itertools
import math
from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace

import torch
from torch import Tensor

from regard.check.properties.chunkwise import NON_LINEAR
from regard.check.properties.documentation import documentation_of
from regard.check.properties.finding import Evidence, Finding
from regard.check.properties.outputs.carried_by_states import read_by_states
from regard.check.properties.outputs.channel_gates import gated_by_all
from regard.check.properties.outputs.norms_by_hand import deviation_of_all
from regard.check.properties.outputs.returned_axes import exchanged_axes
from regard.check.roles.influence import differs, record_invocation
from regard.check.roles.instances import SOFTMAXES, AttentionInstance, TaggedRun
from regard.check.roles.local import NORMS_OF_MAPS
from regard.check.roles.owners import SEVERAL
from regard.check.roles.table import AttentionTable
from regard.check.target import Invocation, Stream
from regard.check.trace.operation import Operation, TensorRecord, Trace

__all__ = ["MovedSums", "output_findings", "positions_of", "projected_once", "weights_of"]


def output_findings(invocation: Invocation, evidence: Evidence, frozen: Mapping[int, Tensor]) -> Iterator[Finding]:
    """Violations shown by moving the weighted sums of one query, with all others held.

    Args:
        invocation: the call.
        evidence: of the attention.
        frozen: the weights and weighted sums of all attentions, by the index of their operation.
    """
    table = evidence.base
    trace = table.instance.run.trace
    if not trace.outputs or not table.whole or table.query.stream.numel() == 0:
        return
    if bool((table.query.sample == SEVERAL).any()):
        return  # samples are mixed before: what is whose is not known
    stream = invocation.streams[int(table.query.stream[0])]
    shape = invocation.arguments[stream.argument].shape
    sequence = len(stream.token_axes) == 1
    others = {size for axis, size in enumerate(shape[:-1] if sequence else shape) if axis not in stream.token_axes}
    if any(shape[axis] in others for axis in stream.token_axes):
        return  # an output with other axes could not be told from one that mixes its tokens
    exchanged = _exchanged(trace, stream, shape)
    axes, sizes = exchanged or _with_heads_elsewhere(trace, stream, shape) or (stream, shape)
    shown = MovedSums(invocation, evidence, axes, sizes, frozen)
    line = table.instance.sums_location
    tokens = int(table.query.token.max()) + 1
    dead: list[int] = []
    moved = 0
    tried = list(_places(table, tokens))
    for number, (sample, token, head) in enumerate(itertools.chain(tried, shown.exchanged(tokens))):
        rows = shown.rows(sample, [token], head)
        if not bool(rows.any()):
            continue
        given = shown.given(rows)
        places = shown.changed(given)
        if places is None:
            return
        wanted, heads, changed = {(sample, token)}, {each[2] for each in places}, {each[:2] for each in places}
        is_spread = changed > wanted and {each for each, _ in changed} == {sample}
        moved += 1
        if not changed:
            dead += [] if shown.reaches(given) else [head]
        elif changed == wanted and axes.head_axis is not None and heads != {head}:
            yield Finding(
                "violation",
                "output-of-the-head",
                "heads joined",
                f"what head {head} attended to is returned as that of head {min(heads - {head}, default=head)}",
                line,
            )
            return
        elif changed != wanted and number >= len(tried) and not sequence:
            columns = shape[stream.token_axes[1]]
            read, shown_at = (divmod(each, columns) for each in (token, min(each for _, each in changed)))
            message = "what row {}, column {} attended to is returned at row {}, column {}".format(*read, *shown_at)
            yield Finding("violation", "output-at-its-place", "output", message, line)
            return
        elif changed != wanted and _is_of_a_step(table) and _are_later(changed, sample, token):
            message = "what a token read goes to later ones, by the state of a recurrent layer"
            yield Finding("design", "output-of-the-token", "heads joined", message, line)
            return
        elif changed > wanted and _is_convolved(table):
            message = "a convolution mixes what neighbouring tokens attended to"
            yield Finding("design", "output-of-the-token", "heads joined", message, line)
            return
        elif is_spread and (
            shown.are_normed_over_tokens(given, token)
            or shown.moves_alone(given, (sample, token), deviation_of_all(table.instance, tokens))
        ):
            message = "a norm over all tokens of a sample carries what one of them attended to to the others"
            yield Finding("design", "output-of-the-token", "heads joined", message, line)
            return
        elif is_spread and shown.moves_alone(given, (sample, token), read_by_states(table.instance, sizes[:-1])):
            message = "the states of a recurrent layer carry what a token read to the others of its sample"
            yield Finding("design", "output-of-the-token", "heads joined", message, line)
            return
        elif is_spread and shown.moves_alone(given, (sample, token), gated_by_all(table.instance, tokens)):
            message = "a gate of each channel is made of what all tokens of a sample read (squeeze and excitation)"
            yield Finding("design", "output-of-the-token", "heads joined", message, line)
            return
        elif is_spread and _is_of_one_query(table):
            message = (
                "what a query of no token, or the only one of a sample, read goes to several tokens of that sample"
            )
            yield Finding("design", "output-of-the-token", "heads joined", message, line)
            return
        elif changed != wanted and table.of_no_token and {each for each, _ in changed} == {sample}:
            return  # its output is of no token either, though there may be as many
        elif changed != wanted:
            mixed = sorted(changed - wanted) or sorted(changed)
            yield Finding(
                "violation",
                "output-of-the-token",
                "heads joined",
                f"what token {token} of sample {sample} attended to changes the output of token {mixed[0][1]} of "
                f"sample {mixed[0][0]}",
                line,
            )
            return
    if exchanged is not None and moved:
        yield exchanged_axes(documentation_of(invocation.target), line)
        return
    dead = sorted(set(dead))
    if len(dead) < table.num_heads or not _keeps_its_axes(trace.outputs[0].shape, axes, sizes):
        # Heads may be for some tokens alone, as for global ones, and one token alone may be returned.
        dead = [head for head in dead if not shown.reaches(shown.given(shown.of_head(head, tokens)))]
    if len(dead) == table.num_heads and not bool(table.layout.used.all()):
        # Of all that was read, what a query of no token did may be the rest, as that of a class token.
        count = sum(each.output.data.numel() for each in table.instance.sums)
        dead = dead if not shown.reaches(shown.given(torch.ones(count, dtype=torch.bool))) else []
    if dead:
        listed = ", ".join(str(each) for each in dead)
        which = "nothing that is attended to" if len(dead) == table.num_heads else f"head {listed}"
        effect = "reaches the output" if len(dead) == table.num_heads else "does not reach the output"
        yield Finding("violation", "heads-in-output", "heads joined", f"{which} {effect}", line)
    elif moved:
        which = f"each of {table.num_heads} heads" if table.num_heads > 1 else "one head"
        message = f"{which}: what a query read reaches its token's output"
        yield Finding("holds", "output-of-the-token", "heads joined", message, line)


def weights_of(instances: Iterable[AttentionInstance]) -> dict[int, Tensor]:
    """What the softmaxes of some attentions return, by the index of their operation.

    They are held with the weighted sums: weights may also be multiplied by learned vectors of distances, which are
    added to the sums, and that part of a later attention would show what an earlier one read.
    """
    return {each.index: each.outputs[0].data for instance in instances for each in instance.softmaxes}


def _exchanged(trace: Trace, stream: Stream, shape: torch.Size) -> tuple[Stream, torch.Size] | None:
    """A stream and its shape with samples and tokens exchanged, where the output has them so; else None."""
    batch = stream.batch_axis
    if batch is None or len(stream.token_axes) != 1 or len(trace.outputs[0].shape) != len(shape):
        return None
    (token,) = stream.token_axes
    if shape[batch] == shape[token] or shape[token] == 1:
        return None
    sizes = list(shape)
    sizes[batch], sizes[token] = sizes[token], sizes[batch]
    if trace.outputs[0].shape[: max(batch, token) + 1] != tuple(sizes[: max(batch, token) + 1]):
        return None
    return replace(stream, batch_axis=token, token_axes=(batch,)), torch.Size(sizes)


def _with_heads_elsewhere(trace: Trace, stream: Stream, shape: torch.Size) -> tuple[Stream, torch.Size] | None:
    """A stream with heads and its shape, as the output has them that has heads after the tokens, or joined; else None.

    Of (batch, heads, tokens, width) it is (batch, tokens, heads, width), or (batch, tokens, heads * width).
    """
    head, batch, output = stream.head_axis, stream.batch_axis, trace.outputs[0].shape
    if head is None or batch is None or len(shape) != 4 or {batch, head, *stream.token_axes} != {0, 1, 2}:
        return None
    (token,), sizes = stream.token_axes, list(shape)
    if len(set(sizes[:3])) < 3:  # else it is not known which axis is which
        return None
    if len(output) == 3:
        order = sorted((batch, token))
        returned = torch.Size([*(shape[axis] for axis in order), shape[head] * shape[-1]])
        is_joined = output[:2] == tuple(returned[:2]) and output[2] % shape[head] == 0
        joined = replace(stream, batch_axis=order.index(batch), token_axes=(order.index(token),), head_axis=None)
        return (joined, returned) if is_joined else None
    sizes[head], sizes[token] = sizes[token], sizes[head]
    if len(output) != 4 or output[:3] != tuple(sizes[:3]):
        return None
    return replace(stream, head_axis=token, token_axes=(head,)), torch.Size(sizes)


def _are_later(changed: Collection[tuple[int, int]], sample: int, token: int) -> bool:
    """Whether all places (sample, token) are of the token itself, or of later ones of its sample."""
    return all(each == sample and place >= token for each, place in changed)


def _is_of_a_step(table: AttentionTable) -> bool:
    """Whether it is the attention of one token, in a loop whose later attentions ask with what earlier ones read."""
    if len(torch.unique(table.query.token)) > 1:
        return False
    trace = table.instance.run.trace
    softmaxes = [each for each in trace if each.name in SOFTMAXES]
    return any(
        later.inputs[0].storage in trace.made_of([earlier.outputs[0].storage])
        for earlier, later in itertools.pairwise(softmaxes)
    )


def _is_of_one_query(table: AttentionTable) -> bool:
    """Whether a sample asks once, as by its class token (CaiT) or by a vector of no token."""
    return table.of_no_token or bool((table.query.token == 0).all())


def _is_convolved(table: AttentionTable) -> bool:
    """Whether the weighted sums go through a convolution that reads several places at once."""
    trace = table.instance.run.trace
    made = trace.made_of(each.output.storage for each in table.instance.sums)
    return any(
        each.name == "convolution"
        and each.inputs[0].storage in made
        and math.prod(each.inputs[1].data.shape[2:]) > 1  # (channels out, channels in, *kernel)
        for each in trace
    )


@dataclass(frozen=True, eq=False)
class MovedSums:
    """What becomes of the weighted sums of some queries, with all others held."""

    invocation: Invocation
    evidence: Evidence
    stream: Stream
    """Of the queries; its axes are those of the output."""
    shape: torch.Size
    """Of the argument, with its axes where the output has them."""
    frozen: Mapping[int, Tensor]

    def rows(self, sample: int, tokens: Sequence[int], head: int) -> Tensor:
        """(sums): which are of some tokens of a sample and a head."""
        table = self.evidence.base
        scores = table.values.score
        owner = scores.amax(-1).clamp(min=0)
        return (
            (table.query.sample[owner].clamp(min=0) == sample)
            & torch.isin(table.query.token[owner], torch.tensor(tokens))
            & (table.head[owner] == head)
            & (scores >= 0).any(-1)
        )

    def given(self, rows: Tensor) -> dict[int, Tensor]:
        """The weighted sums with others in some rows, by the index of their operation."""
        given, start = {}, 0
        for each in self.evidence.base.instance.sums:
            count = each.output.data.numel()
            mine = rows[start : start + count].reshape(each.output.shape)
            base = self.frozen[each.operation.index]
            noise = torch.linspace(0.5, 1.5, count, dtype=base.dtype).reshape(base.shape)
            given[each.operation.index] = torch.where(mine, base + noise, base)
            start += count
        return given

    def changed(self, given: Mapping[int, Tensor]) -> set[tuple[int, int, int]] | None:
        """The samples, tokens and heads of the output that change with weighted sums; None where that is not known."""
        changes = self.changes(given)
        if changes is None:
            return None
        first = next((each for each in changes if bool(each.any())), None)
        return set() if first is None else positions_of(first, self.stream, self.shape)

    def changes(self, given: Mapping[int, Tensor]) -> list[Tensor] | None:
        """Which numbers of each output change with weighted sums; None where that is not known."""
        run = record_invocation(self.invocation, frozen={**self.frozen, **given})
        trace = self.evidence.base.instance.run.trace
        if run.error or not run.same_operations(trace):
            return None
        return [differs(mine.data, other.data) for mine, other in zip(trace.outputs, run.outputs, strict=True)]

    def are_normed_over_tokens(self, given: Mapping[int, Tensor], token: int) -> bool:
        """Whether weighted sums go through a norm of instances, or of groups, whose places are the tokens, one by one.

        These are of the last axis, or of all axes behind the channels, as of a map.
        """
        run = record_invocation(self.invocation, frozen={**self.frozen, **given})
        trace = self.evidence.base.instance.run.trace
        made = trace.made_of(each.output.storage for each in self.evidence.base.instance.sums)
        norms = [each for each in trace if each.name in NORMS_OF_MAPS and each.inputs[0].storage in made]
        if not norms or run.error or not run.same_operations(trace):
            return False
        moved = differs(norms[0].inputs[0].data, run.operations[norms[0].index].inputs[0].data)
        by_place = [moved.flatten(0, -2), moved.flatten(2).flatten(0, 1)] if moved.ndim > 2 else [moved]
        return moved.ndim > 1 and any(each.any(0).nonzero().flatten().tolist() == [token] for each in by_place)

    def moves_alone(
        self, given: Mapping[int, Tensor], place: tuple[int, int], taken: tuple[Operation, int] | None
    ) -> bool:
        """Whether an input of an operation changes at a (sample, token) alone, or has no such axes; False of none."""
        trace = self.evidence.base.instance.run.trace
        if taken is None:
            return False
        run = record_invocation(self.invocation, frozen={**self.frozen, **given})
        if run.error or not run.same_operations(trace):
            return False
        operation, number = taken
        moved = differs(operation.inputs[number].data, run.operations[operation.index].inputs[number].data)
        places = positions_of(moved, self.stream, self.shape)
        return places is None or {each[:2] for each in places} == {place}

    def of_head(self, head: int, tokens: int) -> Tensor:
        """(sums): which are of a head, of all tokens and samples."""
        samples = int(self.evidence.base.query.sample.max().clamp(min=0)) + 1
        return torch.stack([self.rows(sample, range(tokens), head) for sample in range(samples)]).any(0)

    def reaches(self, given: Mapping[int, Tensor]) -> bool:
        """Whether weighted sums change the output, also through the attentions that follow."""
        table = self.evidence.base
        last = max(each.operation.index for each in table.instance.sums)
        others_free = {index: held for index, held in self.frozen.items() if index <= last}
        run = record_invocation(self.invocation, frozen={**others_free, **given})
        pairs = zip(table.instance.run.trace.outputs, run.outputs, strict=True)
        return any(bool(differs(mine.data, other.data).any()) for mine, other in pairs)

    def exchanged(self, tokens: int) -> Iterator[tuple[int, int, int]]:
        """A token whose output does not show what it read, while another token's does.

        Windows that are put back wrongly leave some tokens at their places, those that `_places` has among them. For
        each binary digit of the tokens' numbers those that have it are changed at once: any two tokens differ in one.
        """
        for digit in range((tokens - 1).bit_length()):
            of_digit = [each for each in range(tokens) if each >> digit & 1]
            rows = self.rows(0, of_digit, 0)
            changed = self.changed(self.given(rows)) if bool(rows.any()) else None
            if changed is None:
                return
            stray = {token for _, token, _ in changed} - {*of_digit}
            lost = {*of_digit} - {token for _, token, _ in changed}
            if stray and lost:
                yield 0, min(lost), 0
                return


def projected_once(evidence: Evidence) -> Iterator[Finding]:
    """Whether one matrix is applied to what it returned itself."""
    run = evidence.base.instance.run
    by_index = {each.operation.index: each for each in run.products}
    bilinear = {each.operation.index for each in run.bilinear}
    for product in run.products:
        if product.operation.index in bilinear:
            continue
        for place, matrix, side in (
            (product.left_place, product.right, "right"),
            (product.right_place, product.left, "left"),
        ):
            for index in run.owner_of(run.tags.inputs[place[0]][place[1]]):
                other = by_index.get(index)
                if other is None or index in bilinear:
                    continue
                before = other.right if side == "right" else other.left
                if before.storage != matrix.storage or before.offset != matrix.offset or not _is_weight(matrix, run):
                    continue
                if _times_applied(matrix, run) <= 2 and not _bends_between(index, product.operation.index, run):
                    yield Finding(
                        "violation",
                        "projected-once",
                        "projections",
                        "one matrix is applied twice in a row, to what it returned itself",
                        product.operation.location,
                    )
                    return
    yield _projection(evidence)


def _times_applied(matrix: TensorRecord, run: TaggedRun) -> int:
    sides = [(each.left, each.right) for each in run.products]
    return sum(any((one.storage, one.offset) == (matrix.storage, matrix.offset) for one in both) for both in sides)


def _bends_between(before: int, after: int, run: TaggedRun) -> bool:
    """Whether what an operation returned goes through a nonlinearity before another one takes it.

    As a state of a recurrent layer, which goes from token to token by one matrix.
    """
    made = run.trace.computed_of([before], {after}) & run.trace.computed_for([after], {before})
    return any(run.trace.operations[each].name.rstrip("_") in NON_LINEAR for each in made)


def _projection(evidence: Evidence) -> Finding:
    """Whether a matrix is applied to the weighted sums, or a convolution."""
    instance = evidence.base.instance
    run, sums = instance.run, {each.operation.index for each in instance.sums}
    factors = [place for each in run.products for place in each.places]
    factors += [(each.index, 0) for each in run.trace if each.name == "convolution"]
    for operation, number in sorted(factors):
        if operation not in sums and run.owner_of(run.tags.inputs[operation][number]) & sums:
            applied = run.trace.operations[operation]
            what = "convolution" if applied.name == "convolution" else "matrix"
            message = f"one {what} is applied to the joined heads, once"
            return Finding("holds", "projected-once", "projected", message, applied.location)
    return Finding("absent", "projected-once", "projected", "none: the heads are returned without a further matrix")


def _is_weight(record: TensorRecord, run: TaggedRun) -> bool:
    """Whether a tensor was there before the run, and not made in it."""
    return not any(
        output.storage == record.storage
        for operation in run.trace
        if not operation.is_view
        for output in operation.outputs
    )


def _places(table: AttentionTable, tokens: int) -> Iterator[tuple[int, int, int]]:
    """Some queries: each head of a middle token, and two other tokens."""
    heads, samples = table.num_heads, int(table.query.sample.max().clamp(min=0)) + 1
    for head in range(heads):
        yield samples - 1, tokens // 2, head
    yield 0, tokens - 1, 0
    yield samples - 1, 0, heads - 1


def _keeps_its_axes(output: Sequence[int], stream: Stream, shape: torch.Size) -> bool:
    """Whether an output has the samples and the tokens of the input where this has them, and a width."""
    kept = stream.token_axes if stream.batch_axis is None else (stream.batch_axis, *stream.token_axes)
    axes = len(shape) + (stream.role == "ids")
    return len(output) >= axes and all(output[axis] == shape[axis] for axis in kept)


def positions_of(changed: Tensor, stream: Stream, shape: torch.Size) -> set[tuple[int, int, int]] | None:
    """The samples, tokens and heads whose outputs changed; None where the output has other axes than the input."""
    batch_axis, token_axes = stream.batch_axis, stream.token_axes
    if changed.ndim != len(shape) or stream.role == "ids" or not _keeps_its_axes(changed.shape, stream, shape):
        return None
    found: set[tuple[int, int, int]] = set()
    for place in changed.nonzero().tolist():
        head = place[stream.head_axis] if stream.head_axis is not None else 0
        token = 0
        for axis in token_axes:
            token = token * shape[axis] + place[axis]
        found.add((place[batch_axis] if batch_axis is not None else 0, token, head))
    return found
