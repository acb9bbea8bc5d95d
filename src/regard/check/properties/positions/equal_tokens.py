"""Positions: what queries, keys and values of the same content tell apart."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace

import torch
from torch import Tensor

from regard.check.location import CodeLocation
from regard.check.properties.documentation import keeps_positions_from_values, rotates_values
from regard.check.properties.drawn_samples import LEARNED_NOISE, is_learned_noise
from regard.check.properties.finding import Evidence, Finding
from regard.check.properties.lengths import are_keys_shortened_alike, length_ratios
from regard.check.properties.positions.frequencies import rotations, wrong_frequencies
from regard.check.properties.positions.grids import is_by_rows_and_columns, rotary_axes
from regard.check.properties.positions.ineffective_rotations import ineffective_rotation_findings
from regard.check.properties.positions.rotated_together import are_values_handed_over
from regard.check.roles.table import AttentionTable

__all__ = ["position_findings"]

SAME = 1e-8
NORMS = frozenset(
    {"rsqrt", "rms_norm", "_fused_rms_norm", "native_layer_norm", "linalg_vector_norm", "norm", "std", "sqrt"}
)
"""Operations that a norm is known by."""
SUMS = frozenset(
    {"add", "sub", "rsub", "neg", "cat", "stack", "clone", "_to_copy", "copy", "embedding", "roll", "flip"}
)
IDS_CHANGED = frozenset({"add", "sub", "rsub", "mul"})
"""Operations that make other ids of ids, as where each field of a table has rows of its own."""
PRODUCTS = frozenset({"mul", "mm", "bmm", "addmm", "baddbmm", "linear", "matmul", "convolution"})
"""Operations that are linear in one of their tensors."""


def position_findings(
    evidence: Evidence, text: str, grid: tuple[int, int] | None = None, kept: tuple[int, int] | None = None
) -> Iterator[Finding]:
    """What positions do, shown by tokens that are all alike.

    Args:
        evidence: an attention.
        text: the documentation.
        grid: how many rows and columns its tokens are of, row by row; None where they are of no grid.
        kept: the two numbers of a grid that the module was made for, in either order.
    """
    table = evidence.equal
    if table is None or not len(table.product) or not table.whole:
        return
    line = table.instance.scores_location
    if is_learned_noise(table.instance):
        yield Finding("design", "learned-noise", "positions", LEARNED_NOISE, line)
        return
    said, growth = _growth(table)
    if growth is not None:
        yield Finding("design", "scale-by-position", "scale", f"scores of a query are times a number {said}", line)
        table = replace(table, q=table.q / growth[:, None], product=table.product / growth)
    moves = {
        "query": _moves(table.q, torch.stack([table.query.stream, table.query.sample, table.head], -1)),
        "key": _moves(table.k, torch.stack([table.key.stream, table.key.sample, table.head], -1)),
    }
    value_moves = _values_move(table)
    scores = table.dense(table.product)
    if not any(moves.values()) and _is_split(evidence) and bool((_spread(scores) > SAME).any()):
        yield from _of_added_products(scores, line)
        return
    if not any(moves.values()):
        found = list(ineffective_rotation_findings(evidence, line))
        yield from found
        if not found:
            message = "none: the same token is the same everywhere"
            yield Finding("absent", "positions", "positions", message, line)
        return
    turned = table.q / table.q.norm(dim=-1, keepdim=True).clamp(min=1e-12)  # longer ones alone are a scale
    if (
        _moves(turned, torch.stack([table.query.stream, table.query.sample, table.head], -1))
        and not (moves["key"] or value_moves)
        and _are_keys_alike(table)
        and not _are_queries_of_no_token(evidence)
    ):
        message = "queries alone have positions: of tokens that are alike each has the same weight, wherever it stands"
        yield Finding("violation", "positions-without-effect", "positions", message, line)
        return
    relative = _toeplitz(scores)
    keeps_length = _same_length(table.q, table.query.token) and _same_length(table.k, table.key.token)
    if value_moves and relative and keeps_length and _values_keep_lengths(table):
        message = "values are rotated by their position, as queries and keys are"
        if rotates_values(f"{text}\n\n{evidence.code}") or are_values_handed_over(evidence.code):
            yield Finding("design", "rotary-values", "positions", f"{message}: what is read tells its position", line)
        else:
            message += ": rotary positions are of queries and keys alone"
            yield Finding("violation", "values-without-positions", "positions", message, line)
        return
    is_stretched = _differences_are_stretched(table) if evidence.base.normalized else _stretched(evidence)
    is_multiplied = _are_affine(evidence) and _differences_are_stretched(table, of_sources=False)
    if not value_moves and not keeps_length and not relative and is_stretched and _is_normalized_last(evidence):
        message = "queries and keys are normalized after positions, and times a number for each channel"
        yield Finding("design", "normalized-positions", "positions", message, line)
        return
    if not keeps_length and is_stretched and are_keys_shortened_alike(evidence):
        message = "rotary positions that lengthen a query as much as they shorten its token's key (xPos)"
        yield Finding("design", "rotary", "positions", message, line)
        return
    if not keeps_length and not relative and (is_stretched or is_multiplied):
        yield Finding(
            "violation",
            "rotation-keeps-lengths",
            "positions",
            "what positions do to queries and keys is no rotation: it changes their lengths",
            line,
        )
        return
    if value_moves and keeps_positions_from_values(text):
        message = "values hold positions; by the documentation these are added to queries and keys alone"
        yield Finding("violation", "values-without-positions", "positions", message, line)
        return
    if value_moves and keeps_length and moves["query"] != moves["key"] and _values_keep_lengths(table):
        turned, still = ("queries", "keys") if moves["query"] else ("keys", "queries")
        message = (
            f"{turned} and values are rotated by their position, {still} are not: the score of the same two tokens at "
            "the same distance is not the same"
        )
        yield Finding("violation", "positions-relative", "positions", message, line)
        return
    if value_moves or not keeps_length:
        yield Finding("holds", "absolute-positions", "positions", "positions are added to the tokens", line)
        return
    if not relative and is_by_rows_and_columns(scores):
        message = "rotary positions of a grid: scores depend on the distance in rows and in columns"
        design = Finding("design", "rotary", "positions", message, line)
        yield rotary_axes(scores, table.q.shape[-1], grid, kept, text, line, evidence.code) or design
        return
    if not relative:
        only = "queries" if not moves["key"] else "keys" if not moves["query"] else ""
        message = (
            f"only {only} are rotated by their position"
            if only
            else _turned_against(table)
            or _order_of_channels(table)
            or "queries and keys are rotated by angles that differ"
        ) + ": the score of the same two tokens at the same distance is not the same"
        yield Finding("violation", "positions-relative", "positions", message, line)
        return
    turned = _turned_apart(evidence, table)
    if turned:
        yield Finding("violation", "positions-relative", "positions", turned, line)
        return
    said, place = wrong_frequencies(evidence, table)
    if said:
        yield Finding("violation", "rotary-frequencies", "positions", said, place or line)
        return
    yield Finding(
        "design", "rotary", "positions", "rotary positions: scores depend on the distance of two tokens", line
    )


def _are_keys_alike(table: AttentionTable) -> bool:
    """Whether each query gives all tokens the same weight, where all are alike; its own tokens are the keys."""
    weights = table.dense(table.weight)
    is_one = torch.equal(table.query.stream, table.key.stream) and not bool(weights.isnan().any())
    return is_one and weights.shape[-1] > 1 and float((weights - weights[..., :1]).abs().max()) < SAME


def _turned_apart(evidence: Evidence, table: AttentionTable) -> str:
    """What is said where the first token is not turned as a key, and is as a query, or the other way round.

    Queries and keys that are handed over apart are of the same tokens where a mask of the code's own says so.
    """
    hides = not evidence.is_masked and bool((evidence.base.weight == 0).any())
    are_given_apart = hides and evidence.num_tokens > 0 and {"q", "k"} <= set(evidence.roles.values())
    if not torch.equal(table.query.stream, table.key.stream) and not are_given_apart:
        return ""
    still, turned = list[str](), list[str]()
    for name, vectors, source, owner in (
        ("query", table.q, table.q_source, table.query),
        ("key", table.k, table.k_source, table.key),
    ):
        ratios = length_ratios(vectors, source)
        if not len(ratios) or float(ratios.max() - ratios.min()) > 1e-6 * float(ratios.max()):
            return ""  # it is not known what they were before
        first = owner.token == 0
        gap = (vectors[first] - float(ratios.mean()) * source[first]).abs().max()
        (still if float(gap) <= 1e-6 * float(vectors.abs().max()) else turned).append(name)
    if not still or not turned:
        return ""
    return f"the {turned[0]} of the first token is rotated, its {still[0]} is not: a token is at a distance from itself"


def _turned_against(table: AttentionTable) -> str:
    """What is said where keys are turned to the other side than queries; empty where they are not."""
    turned = [turns for turns, _, _ in rotations(table)]
    if (
        len(turned) != 2
        or turned[0].shape != turned[1].shape
        or float((turned[0] - turned[1].conj()).abs().max()) > 1e-5
    ):
        return ""
    return "keys are rotated to the other side than queries, by the same angles"


def _order_of_channels(table: AttentionTable) -> str:
    """What is said where keys whose channels were moved along would do; empty where they would not."""
    for places in range(1, table.k.shape[-1]):
        if _toeplitz(table.dense((table.q * table.k.roll(places, -1)).sum(-1).double())):
            at = f"by {places} channels of {table.k.shape[-1]}"
            return f"channels that are rotated stand at other places in keys than in queries ({at})"
    return ""


def _growth(table: AttentionTable) -> tuple[str, Tensor | None]:
    """(scores): by which queries are longer than the first token's, and how that is said.

    It grows and hangs on the token alone, or it is learned by head. None where they are not longer, or not by one
    number for each token, as those that positions were added to.
    """
    samples = table.query.sample.clamp(min=0)
    lengths = torch.full((int(samples.max()) + 1, table.num_heads, int(table.query.token.max()) + 1), torch.nan)
    lengths = lengths.to(table.q.dtype).index_put_((samples, table.head, table.query.token), table.q.norm(dim=-1))
    growth = lengths / lengths[..., :1]
    of_token = growth[0, 0]
    if (
        len(of_token) < 2
        or table.instance.added
        or not _same_length(table.k, table.key.token)
        or not bool(growth.isfinite().all())
    ):
        return "", None
    is_one = float((growth - of_token).abs().max()) < 1e-6
    if not is_one or float(of_token.diff().min()) < -1e-9 or float(of_token[-1]) < 1 + 1e-6:
        of_heads = _affine_in_log(growth)
        grown = None if of_heads is None else of_heads[table.head, table.query.token]
        return "of the head that is affine in the logarithm of its position", grown
    return (
        f"that grows with its position, up to {float(of_token.max()):.4g} (log n)",
        of_token[table.query.token],
    )


def _affine_in_log(growth: Tensor) -> Tensor | None:
    """(heads, tokens): the numbers a * log(n) + 1 whose absolute values are those of the n-th tokens, by head.

    Learned scales of logarithms of positions, as in Nakanishi 2025, "Scalable-Softmax Is Superior for Attention"
    (arXiv:2501.19399), section 2. None where there are none.

    Args:
        growth: (samples, heads, tokens).
    """
    logs = torch.arange(1, growth.shape[-1] + 1, dtype=growth.dtype).log()
    squared = growth[0].T ** 2  # a polynomial of the second degree, whose roots are one
    powers = torch.stack([logs**2, logs], -1)
    if len(logs) < 4 or float((growth - growth[:1]).abs().max()) > 1e-6:
        return None
    _, of_logs = torch.linalg.lstsq(powers, squared - 1).solution
    numbers = of_logs[:, None] / 2 * logs + 1
    is_affine = float((numbers.abs() - growth[0]).abs().max()) < 1e-6 and float(of_logs.abs().max()) > 1e-6
    return numbers if is_affine and float(numbers.abs().min()) > 1e-6 else None


def _is_split(evidence: Evidence) -> bool:
    """Whether scores are sums of several products of queries and keys: a rotated part and another, as in MLA."""
    instance = evidence.base.instance
    return any(instance.run.depends >= {each.left_place, each.right_place} for each in instance.added)


def _spread(scores: Tensor) -> Tensor:
    known = scores.flatten(2).nan_to_num(nan=float(scores[~scores.isnan()].mean()))
    return (known.amax(-1) - known.amin(-1)) / known.abs().amax().clamp(min=1e-9)


def _of_added_products(scores: Tensor, line: CodeLocation | None) -> Iterator[Finding]:
    if _toeplitz(scores) or is_by_rows_and_columns(scores):
        message = "rotary positions in a part of the scores: they depend on the distance of two tokens"
        yield Finding("design", "rotary", "positions", message, line)
        return
    message = (
        "of the products that are summed to a score, one takes queries or keys that are rotated and others that are "
        "not: the score of the same two tokens at the same distance is not the same"
    )
    yield Finding("violation", "positions-relative", "positions", message, line)


def _values_move(table: AttentionTable) -> bool:
    """Whether the values of one sum differ that are of one stream; that of a sink, which is no token's, is left out."""
    used, values = table.values.score >= 0, table.values.value
    largest = max(1.0, float(values[used].abs().max()))
    for stream in set(table.values.stream[used].tolist()):
        mine = used & (table.values.stream == stream)
        first = values.gather(-1, mine.long().argmax(-1, keepdim=True))
        if bool(((values - first).abs()[mine] > SAME * largest).any()):
            return True
    return False


def _values_keep_lengths(table: AttentionTable) -> bool:
    """Whether the values of one query are as long as one another: rotated, and not padded."""
    values = table.values
    scores = values.score.clamp(min=0)
    rows = (values.score >= 0).all(-1) & (table.query.token == table.query.token.max())[scores].all(-1)
    lengths = values.value[rows].norm(dim=0)
    return not len(lengths) or float(lengths.max() - lengths.min()) < 1e-6 * float(lengths.max())


def _moves(vectors: Tensor, groups: Tensor) -> bool:
    """Whether vectors of the same content, those of one group, differ with the position."""
    inverse = torch.unique(groups, dim=0, return_inverse=True)[1]
    first = torch.zeros(int(inverse.max()) + 1, vectors.shape[-1], dtype=vectors.dtype)
    first[inverse.flip(0)] = vectors.flip(0)
    return bool(((vectors - first[inverse]).abs() > SAME * max(1e-9, float(vectors.abs().max()))).any())


def _stretched(evidence: Evidence) -> bool:
    """Whether changes of a vector are longer at one position than at another: positions multiply it."""
    for new, old, source, before in (
        (evidence.fresh.q, evidence.base.q, evidence.fresh.q_source, evidence.base.q_source),
        (evidence.fresh.k, evidence.base.k, evidence.fresh.k_source, evidence.base.k_source),
    ):
        ratio = length_ratios(new - old, source - before)
        if len(ratio) and float(ratio.max() - ratio.min()) > 1e-6 * float(ratio.max()):
            return True
    return False


def _are_affine(evidence: Evidence) -> bool:
    """Whether what stands in the scores is made of the tokens by sums, and products with what is of no token, alone.

    Vectors that are handed over beside these may be of each sample: then sums with them differ among the samples.
    """
    instance = evidence.base.instance
    trace = instance.run.trace
    of_tokens = trace.made_of(each.storage for each in trace.arguments.values())
    wanted = {each.storage for one in instance.scores for each in one.operation.inputs}
    if not wanted & of_tokens:  # ids that went through numpy: what is made of them is not known
        return False
    for operation in reversed(trace.operations[: min(each.operation.index for each in instance.scores)]):
        if not any(each.storage in wanted for each in (*operation.outputs, *operation.written)):
            continue
        wanted.update(each.storage for each in operation.inputs)
        moving = sum(each.storage in of_tokens for each in operation.inputs)
        name = operation.name.rstrip("_")
        if moving and name in IDS_CHANGED and not any(each.data.is_floating_point() for each in operation.outputs):
            return False  # other rows are looked up where the same ids stand elsewhere
        if moving and not (operation.is_view or name in SUMS) and (name not in PRODUCTS or moving > 1):
            return False
    given = [each.storage for name, each in trace.arguments.items() if name not in evidence.base.streams]
    return not any(each in wanted for each in given)


def _differences_are_stretched(table: AttentionTable, *, of_sources: bool = True) -> bool:
    """The same of what is normalized, whose changes are not those of its projection: by two samples of other tokens.

    Their projections are the same at every position; their queries, or keys, lie farther apart at one than at another.

    Args:
        table: of tokens that are all alike.
        of_sources: whether projections are asked that are known to be the same at every position.
    """
    for vectors, source, owner in ((table.q, table.q_source, table.query), (table.k, table.k_source, table.key)):
        groups = torch.stack([owner.stream, owner.sample, table.head], -1)
        is_known = not of_sources or not (bool(source.isnan().any()) or _moves(source, groups))
        if not is_known or not bool((owner.sample == 1).any()):
            continue
        tokens, heads = int(owner.token.max()) + 1, int(table.head.max()) + 1
        for stream in set(owner.stream.tolist()):  # tokens of two sequences are no others of one another
            found = torch.full((2, tokens, heads, vectors.shape[-1]), torch.nan, dtype=torch.float64)
            for sample in (0, 1):
                mine = (owner.sample == sample) & (owner.stream == stream)
                found[sample, owner.token[mine], table.head[mine]] = vectors[mine].double()
            apart = (found[0] - found[1]).norm(dim=-1)
            rounding = SAME * float(vectors.abs().max())  # both samples may begin with the same token
            if bool(((apart - apart[:1]).abs() > 1e-6 * apart[:1] + rounding).any()):
                return True
    return False


def _is_normalized_last(evidence: Evidence) -> bool:
    """Whether a norm stands between the last product with a table of positions and the scores."""
    instance, tokens = evidence.base.instance, evidence.num_tokens
    tables = norms = -1
    for operation in instance.run.trace.operations[: min(each.operation.index for each in instance.scores)]:
        if operation.name in NORMS:
            norms = operation.index
        if operation.name.rstrip("_") != "mul":
            continue
        for factor, tags in zip(operation.inputs, instance.run.tags.inputs[operation.index], strict=True):
            if factor.learned or bool((tags > 0).any()) or not factor.data.is_floating_point():
                continue
            axes = [axis for axis, size in enumerate(factor.shape) if size == tokens > 1]
            if any(bool((factor.data != factor.data.narrow(axis, 0, 1)).any()) for axis in axes):
                tables = operation.index
    return norms > tables >= 0


def _same_length(vectors: Tensor, tokens: Tensor) -> bool:
    lengths = vectors.norm(dim=-1)
    by_token = torch.zeros(int(tokens.max()) + 1, dtype=torch.float64)
    count = torch.zeros_like(by_token)
    by_token.index_add_(0, tokens, lengths.double())
    count.index_add_(0, tokens, torch.ones_like(lengths).double())
    mean = by_token / count.clamp(min=1)
    return bool(mean.max() - mean.min() < 1e-6 * mean.max())


def _toeplitz(scores: Tensor) -> bool:
    """Whether scores of tokens of the same content depend on their distance alone; unknown ones are left out."""
    if scores.shape[-1] < 2 or scores.shape[-2] < 2:
        return True
    gap = (scores[..., 1:, 1:] - scores[..., :-1, :-1]).abs()
    known = gap[~gap.isnan()]
    return not len(known) or float(known.max()) < 1e-7 * max(1e-9, float(scores[~scores.isnan()].abs().max()))


def _are_queries_of_no_token(evidence: Evidence) -> bool:
    """Whether the queries are the same with all tokens drawn anew: learned ones differ, and that is no position."""
    mine, other = evidence.base.q, evidence.fresh.q
    return mine.shape == other.shape and torch.allclose(mine, other, rtol=1e-9, atol=1e-12)
