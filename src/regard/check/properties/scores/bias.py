"""What is added to the scores and depends on positions alone."""

from __future__ import annotations

import itertools
import re
from collections.abc import Iterator, Sequence

import torch
from torch import Tensor

from regard.check.location import CodeLocation
from regard.check.properties.finding import Evidence, Finding
from regard.check.properties.sums import query_numbers
from regard.check.roles.instances import SOFTMAXES
from regard.check.trace.operation import TensorRecord, Trace, axis_of

__all__ = ["added_to_scores", "bias_findings"]

SMALLEST = 1e-7
"""Of a bias that is one."""
MIN_STEPS = 3
"""Of a slope, from key to key: fewer show none."""
NO_SLOPE = 1e-9
"""What rounding leaves of a slope of 0, as of heads that have none beside heads with ALiBi."""
MOST = 1e3
"""Of a bias: larger numbers are masks."""
_ALIBI = re.compile(r"alibi|\bPress et al|\blinear bias", re.I)
_FROM_ONE = re.compile(
    r"\b(?:start(?:s|ing)?|begin(?:s|ning)?)\s+(?:at|with|from)\s+1(?![\d./])|\b1, 1/2\b|2\^?0\b", re.I
)
"""A sequence whose first slope is 1 on purpose."""
_AS_PUBLISHED = re.compile(
    r"\b(?:slopes?|alibi)\b[^.\n]*\b(?:reference|official|original|published)\s+(?:code|implementation|slopes)\b", re.I
)
_OF_POWERS = re.compile(r"\bpowers? of (?:two|2)\b", re.I)
"""What says that other numbers of heads are not meant."""
_EVERY_SECOND = re.compile(
    r"\bpowers? of (?:two|2)\b[^.]*\b(?:otherwise|else|other(?:s| numbers)?)\b[^.]*\bevery (?:other|second)\b", re.I
)
"""What says that they are meant, and are those of twice as many heads, every second one."""
_OTHERWISE = re.compile(r"\b(?:not|unlike|instead of|rather than|no)\b|n't", re.I)
"""In the same words: that it is not so here."""


def bias_findings(evidence: Evidence, bias: Tensor, scale: float) -> Iterator[Finding]:
    """A bias by positions: linear in the distance (ALiBi), or a table.

    Args:
        evidence: the attention.
        bias: (scores): what the weights show of it, less its mean over the keys of the query.
        scale: by which q . k becomes the score.
    """
    table = evidence.base
    dense = table.dense(bias)
    known = dense[~dense.isnan()]
    if not len(known) or float(known.abs().max()) < SMALLEST:
        yield from _vanishing(evidence) or _constant(evidence)
        return
    scaled = _scaled(evidence, bias, scale)
    if scaled is not None:
        yield scaled
        if scaled.kind == "violation":
            return
    line = table.instance.softmaxes[0].location if table.instance.softmaxes else table.instance.sums_location
    at_once = (each.operation for each in table.instance.scores if each.operation.name == "baddbmm")
    added = [*(record for _, record, _ in added_to_scores(evidence)), *(each.inputs[0] for each in at_once)]
    if any(map(_is_causal_mask, added)):
        message = "a causal mask of 0 and 1 is added to the scores as it is: it hides no key, but adds 1 to some scores"
        yield Finding("violation", "blocked-scores", "mask", message, line)
        return
    steps = dense[..., 1:] - dense[..., :-1]  # from key j to key j + 1
    queries, keys = steps.shape[-2], steps.shape[-1]
    before = torch.arange(keys)[None, :] + 1 <= torch.arange(queries)[:, None] + keys + 1 - queries
    slopes = []
    for head in range(dense.shape[1]):
        past = steps[:, head, before]
        past = past[~past.isnan()]
        if len(past) < MIN_STEPS or float(past.max() - past.min()) > 1e-6:
            break
        slope = float(past.mean())
        slopes.append(slope if abs(slope) > NO_SLOPE else 0.0)
    if len(slopes) == dense.shape[1] and any(slopes):
        listed = _listed(slopes)
        if all(each <= 0 for each in slopes):
            yield Finding(
                "violation",
                "alibi-sign",
                "bias",
                f"the bias grows with the distance (slopes {listed}): far keys are favored, not near ones",
                line,
            )
        elif _goes_on(evidence, steps, ~before) and min(slopes) > 0:
            message = (
                f"the bias goes on growing after the query (slopes {listed}): of the keys that come later, which are "
                "seen as well, far ones are favored, and of all keys the last"
            )
            yield Finding("violation", "alibi-sign", "bias", message, line)
        elif len(slopes) > 1 and any(
            len(each) > 1 and max(each) - min(each) < 1e-9 for each in _parts(evidence, slopes)
        ):
            yield Finding(
                "violation",
                "alibi-slopes",
                "bias",
                f"all heads have the same slope {slopes[0]:.3g} of the distance",
                line,
            )
        elif not _is_learned(evidence) and (
            said := next(filter(None, (_said_of_slopes(evidence, each) for each in _parts(evidence, slopes))), "")
        ):
            message = f"{said}: the published ones are {_listed(_published(len(_parts(evidence, slopes)[0])))}"
            yield Finding("violation", "alibi-slopes", "bias", message, line)
        else:
            yield Finding("design", "alibi", "bias", f"a bias linear in the distance (ALiBi), slopes {listed}", line)
        return
    if _by_sum(dense):
        message = "the bias depends on the sum of the two positions, not on their distance"
        yield Finding("violation", "bias-by-distance", "bias", message, line)
        return
    yield Finding("design", "relative-bias", "bias", "a bias by position is added to the scores", line)


def _goes_on(evidence: Evidence, steps: Tensor, after: Tensor) -> bool:
    """Whether later keys, of the same tokens and hidden by nothing, have more the later they are, in several heads.

    One head, or a learned slope, may be meant to favor the end of a text; slopes of ALiBi, one for each head, are not.

    Args:
        evidence: the attention.
        steps: (samples, heads, queries, keys - 1): of the bias from each key to the next.
        after: (queries, keys - 1): whether the next key comes after the query.
    """
    if steps.shape[1] < 2 or steps.shape[-2] != steps.shape[-1] + 1 or _is_learned(evidence):
        return False
    if evidence.hides_on_demand or evidence.says_causal:
        return False
    future = steps[..., after]
    known = ~future.isnan()
    if bool((known.sum(-1) < MIN_STEPS).any()):
        return False
    low, high = future.nan_to_num(nan=torch.inf).amin(-1), future.nan_to_num(nan=-torch.inf).amax(-1)
    return float(low.min()) > SMALLEST and float((high - low).max()) < 1e-6


def _parts(evidence: Evidence, slopes: list[float]) -> list[list[float]]:
    """The slopes of each product of several heads; else of all heads together.

    One line may compute the attention of several branches, each with heads, slopes and projections of its own.
    """
    table = evidence.base
    rows, first = table.rows_of_tags(), table.instance.run.first_tag
    parts = []
    for product in table.instance.scores:
        start = first[product.operation.index]
        mine = rows[start : start + product.output.data.numel()]
        parts.append(sorted(set(table.head[mine[mine >= 0]].tolist())))
    apart = [[slopes[head] for head in part] for part in parts]
    is_whole = sorted(head for part in parts for head in part) == list(range(len(slopes)))
    return apart if is_whole and len(apart[0]) > 1 and len({*map(len, apart)}) == 1 else [slopes]


def _said_of_slopes(evidence: Evidence, slopes: Sequence[float]) -> str:
    """What is wrong with slopes, one for each head; empty where nothing is. Of some heads they may be 0."""
    several = [each for each in slopes if each > 0]
    twice = [(a, b) for a, b in _pairs(len(slopes)) if slopes[a] > 0 and _is_same(slopes[a], slopes[b])]
    if twice and not _are_by_group(evidence, slopes):
        a, b = twice[0]
        return f"heads {a} and {b} have the same slope {slopes[a]:.3g}"
    if len(several) == len(slopes) and not twice and not _is_geometric(slopes):
        return f"the slopes {_listed(slopes)} are no geometric sequence"
    ratio = 2 ** (-8 / max(1, len(slopes)))
    starts_at_one = _is_same(slopes[0], 1.0) and len(slopes) > 1 and _is_same(slopes[1], ratio)
    if starts_at_one and _is_geometric(slopes) and _ALIBI.search(evidence.code) and not _FROM_ONE.search(evidence.code):
        return f"the slopes {_listed(slopes)} begin with 1, the power 0 of 2^(-8/n), and not with its first power"
    powers = [ratio ** (head + 1) for head in range(len(slopes))]
    is_plain = all(map(_is_same, slopes, powers)) and not all(map(_is_same, slopes, _published(len(slopes))))
    if is_plain and _says_as_published(evidence.code):
        return f"the slopes {_listed(slopes)} are powers of 2^(-8/n), also for {len(slopes)} heads, no power of two"
    return ""


def _says_as_published(code: str) -> bool:
    """Whether its words say that slopes are those of the published code, for any number of heads."""
    told = _EVERY_SECOND.search(code)
    if told is not None and not _OTHERWISE.search(told[0]):
        return True
    return _AS_PUBLISHED.search(code) is not None and not _OF_POWERS.search(code)


def _is_same(one: float, other: float) -> bool:
    return abs(one - other) <= 1e-5 * max(abs(one), abs(other))


def _are_by_group(evidence: Evidence, slopes: Sequence[float]) -> bool:
    """Whether heads with one slope are those that share their keys, as in grouped-query attention."""
    keys = evidence.base.keys_by_head
    shares = [(torch.equal(keys[a], keys[b]), _is_same(slopes[a], slopes[b])) for a, b in _pairs(len(slopes))]
    return all(of_keys == of_slopes for of_keys, of_slopes in shares) and not all(of_keys for of_keys, _ in shares)


def _pairs(count: int) -> Iterator[tuple[int, int]]:
    return itertools.combinations(range(count), 2)


def _is_geometric(slopes: Sequence[float]) -> bool:
    """Whether slopes are times the same number from head to head, or those of a power of two and every second one more.

    Press et al. 2022, "Train Short, Test Long", section 3 and its published code.
    """
    power = 1 << (len(slopes).bit_length() - 1)
    for parts in ((slopes,), (slopes[:power], slopes[power:])):
        steps = [torch.tensor(sorted(each), dtype=torch.float64).log().diff() for each in parts]
        if all(len(each) < 2 or float(each.max() - each.min()) < 1e-5 for each in steps):
            return True
    return False


def _is_causal_mask(record: TensorRecord) -> bool:
    """Whether a tensor that no parameter made is 1 on one side of a diagonal of queries and keys, and else 0."""
    numbers = record.data
    if not numbers.is_floating_point() or numbers.ndim < 2 or min(numbers.shape[-2:]) < 2 or record.learned:
        return False
    ones = torch.ones_like(numbers)
    patterns = [side(ones, diagonal) for side in (torch.tril, torch.triu) for diagonal in (-1, 0, 1)]
    return any(torch.equal(numbers, each) for each in patterns)


def _is_learned(evidence: Evidence) -> bool:
    """Whether something that is added to the scores is a parameter, or made of one."""
    return any(record.learned for _, record, _ in added_to_scores(evidence))


def _published(num_heads: int) -> list[float]:
    """Of a power of two heads, and those of more: every second one of twice as many."""
    power = 1 << (num_heads.bit_length() - 1)
    of_power = [2 ** (-8 * (head + 1) / power) for head in range(power)]
    return of_power + [2 ** (-4 * (2 * head + 1) / power) for head in range(num_heads - power)]


def _listed(slopes: Sequence[float]) -> str:
    return ", ".join(f"{each:.3g}" for each in slopes)


def _by_sum(dense: Tensor) -> bool:
    """Whether steps from key to key are the same along the diagonals on which i + j is, and not along the others."""
    steps = dense[..., 1:] - dense[..., :-1]
    if steps.shape[-2] < 2 or steps.shape[-1] < 2 or bool(steps.isnan().any()):
        return False
    by_sum = (steps[..., 1:, :-1] - steps[..., :-1, 1:]).abs().max()
    by_distance = (steps[..., 1:, 1:] - steps[..., :-1, :-1]).abs().max()
    return float(by_sum) < SMALLEST < float(by_distance)


def added_to_scores(evidence: Evidence) -> Iterator[tuple[Tensor, TensorRecord, CodeLocation | None]]:
    """(scores): what each operation adds to the scores, NaN where it adds nothing; as it is added; and its line."""
    table = evidence.base
    run = table.instance.run
    row_of = table.rows_of_tags()
    softmax = max((each.index for each in table.instance.softmaxes), default=len(run.trace))
    for operation in run.trace.operations[:softmax]:
        if operation.name.rstrip("_") not in ("add", "sub") or len(operation.inputs) != 2:
            continue
        rows = row_of[run.tags.outputs[operation.index][0]]
        known = rows >= 0
        if not bool(known.any()):
            continue
        result = operation.outputs[0].data
        is_score = [bool((table.layout.row_of[tags] >= 0).any()) for tags in run.tags.inputs[operation.index]]
        if sum(is_score) != 1 or not result.is_floating_point():
            continue
        if _is_of_the_softmax(operation.name, result, table.instance.steps):
            continue
        scores, other = (operation.inputs[is_score.index(one)] for one in (True, False))
        added = torch.full((len(table.weight),), float("nan"), dtype=torch.float64)
        added[rows[known]] = (result - scores.data.broadcast_to(result.shape))[known].double()
        yield added, other, operation.location


def _is_of_the_softmax(name: str, result: Tensor, steps: set[str]) -> bool:
    """Whether it subtracts the largest score, so that no exponential overflows, or the logarithm of a denominator."""
    return name.rstrip("_") == "sub" and (float(result.max()) == 0.0 or bool(steps & {"exp", "exp2"}))


def _constant(evidence: Evidence) -> Iterator[Finding]:
    """What is added to all keys of a query alike: the softmax takes no notice of it."""
    table, rows = evidence.base, query_numbers(evidence)
    if table.dense(table.weight).shape[-2] < 2:
        return  # a table for as many positions as there are queries: one entry, which is broadcast over the keys
    for added, record, line in added_to_scores(evidence):
        if _is_of_both_axes(evidence, record):
            continue
        seen = table.weight > 0
        usual = added.isfinite() & (added.abs() < MOST)
        if not bool(usual[seen].all()) or float(added[seen].abs().max()) < SMALLEST:
            continue
        count = int(rows.max()) + 1
        most = torch.full((count,), -torch.inf, dtype=torch.float64).scatter_reduce(0, rows[seen], added[seen], "amax")
        least = torch.full((count,), torch.inf, dtype=torch.float64).scatter_reduce(0, rows[seen], added[seen], "amin")
        if float((most - least).max()) < SMALLEST and not _is_dead(table.instance.run.trace, record):
            yield Finding(
                "violation",
                "bias-by-key",
                "bias",
                f"the same number is added to the scores of all keys of a query (as {float(added[0]):.4g}): "
                "the softmax takes it away again",
                line,
            )
            return


def _is_dead(trace: Trace, bias: TensorRecord) -> bool:
    """Whether a network makes it that returns the same for everything at the sizes that it has here.

    As one with a norm over two numbers, which are 1 and -1 whatever they were, or a layer whose neurons are all zero.
    """
    for each in trace:
        dead = each.name.rstrip("_") == "relu" and not bool(each.outputs[0].data.any())
        dead |= each.name == "native_layer_norm" and each.outputs[0].shape[-1] <= 2
        if dead and bias.storage in trace.made_of([each.outputs[0].storage]):
            return True
    return False


def _is_of_both_axes(evidence: Evidence, record: TensorRecord) -> bool:
    """Whether scores that something is added to have a softmax over their rows as well: there it counts.

    As in BiDAF (Seo et al. 2017), where two texts attend to each other by one matrix of scores.
    """
    trace, axes = evidence.base.instance.run.trace, dict[tuple[int, ...], set[int]]()
    made = trace.made_of([record.storage])
    for each in trace:
        if each.name in SOFTMAXES and each.args and each.inputs[0].storage in made:
            axis = axis_of(each.function, each.args, each.kwargs)
            axes.setdefault(each.inputs[0].shape, set()).add((axis or 0) % each.inputs[0].data.ndim)
    return any(len(each) > 1 for each in axes.values())


def _vanishing(evidence: Evidence) -> list[Finding]:
    """What is added to the scores and differs among keys by less than float32 holds; not parameters, which may grow."""
    for _, record, line in added_to_scores(evidence):
        if record.learned or not record.data.is_floating_point() or record.data.ndim < 2:
            continue
        hidden = record.data.abs() >= MOST  # by a mask that was joined with it
        numbers = record.data.double().masked_fill(hidden | record.data.isnan(), 0.0)
        steps = numbers.diff(dim=-1)[~(hidden[..., 1:] | hidden[..., :-1])]
        largest = float(steps.abs().max()) if len(steps) else 0.0
        if largest > 0.0 and float(numbers.abs().max()) < SMALLEST:
            message = (
                f"what is added to the scores differs by {largest:.2g} at most from key to key: less than float32 "
                "holds beside them"
            )
            return [Finding("violation", "bias-by-key", "bias", message, line)]
    return []


def _scaled(evidence: Evidence, bias: Tensor, scale: float) -> Finding | None:
    """A bias that is added before the scores are scaled, and so is scaled with them.

    One that is learned is learned with the scale in it; one of chosen numbers, as of distances, is another one.
    """
    rows = query_numbers(evidence)
    live = ~bias.isnan()
    for added, record, line in added_to_scores(evidence):
        usual = added.isfinite() & (added.abs() < MOST) & live
        if not bool(usual.any()):
            continue
        count = torch.zeros(int(rows.max()) + 1, dtype=torch.float64).index_add_(0, rows[usual], usual[usual].double())
        total = torch.zeros_like(count).index_add_(0, rows[usual], added[usual])
        centered = (added - (total / count.clamp(min=1))[rows])[usual]
        if float(centered.abs().max()) < SMALLEST:
            continue
        ratio = float((bias[usual] @ centered) / (centered @ centered))
        explained = float((bias[usual] - ratio * centered).abs().max()) < 1e-6 * float(bias[usual].abs().max())
        if explained and abs(ratio - 1) > 1e-6 and abs(ratio - scale) < 1e-6 * abs(scale):
            if record.learned:
                message = (
                    f"a learned bias is added before the scores are scaled: it learns {1 / ratio:.4g} times as much"
                )
                return Finding("design", "bias-after-scale", "bias", message, line)
            message = f"the bias is added before the scores are scaled: it is multiplied by {ratio:.4g} as well"
            return Finding("violation", "bias-after-scale", "bias", message, line)
    return None
