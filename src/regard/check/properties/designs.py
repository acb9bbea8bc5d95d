"""Designs whose numbers would be wrong in any other attention, and what tells them apart from mistakes."""

from __future__ import annotations

import re

import torch
from torch import Tensor

from regard.check.properties.finding import Evidence, Finding
from regard.check.roles.contractions import Contraction
from regard.check.roles.influence import Influence
from regard.check.roles.instances import SOFTMAXES, AttentionInstance, TaggedRun
from regard.check.roles.owners import NONE
from regard.check.roles.table import AttentionTable
from regard.check.target import Invocation
from regard.check.trace.operation import TensorRecord

__all__ = [
    "averaged_heads",
    "channel_gate",
    "differential",
    "learned_keys",
    "learned_memory",
    "location_weights",
    "of_any_sum",
    "rectified",
    "retention",
    "subtracted_scores",
]


GATES = frozenset({"sigmoid", "hardsigmoid", *SOFTMAXES})
LENGTHS = frozenset({"linalg_vector_norm", "norm"})
RECTIFIERS = frozenset({"relu", "clamp", "clamp_min", "maximum", "threshold"})

SAME = 1e-8
DIFFERENTIAL = re.compile(r"\bdiff(?:erential)?[\s_-]*(?:attn|attention|transformer|head|mha)", re.I)
MANY = 8
"""Places at which weights rise with their scores by chance once in 256 times."""
NO_WEIGHT = 1e-30
SOME_PLACES = 3
"""Fewer may be anything."""
SUM_TOLERANCE = 1e-6


def retention(evidence: Evidence) -> Finding | None:
    """Q . k times a number that decays with the distance, without a softmax (RetNet); None of anything else."""
    base, fresh = evidence.base, evidence.fresh
    if base.instance.softmaxes or len(base.weight) != len(fresh.weight) or not base.whole:
        return None
    decay = base.dense(base.weight / base.product)
    other = fresh.dense(fresh.weight / fresh.product)
    if min(decay.shape[-2:]) < 3 or not bool(decay.isfinite().all()):
        return None
    if decay.shape != other.shape or float((decay - other).abs().max()) > SAME * float(decay.abs().max()):
        return None
    least = min(decay.shape[-2:])
    # With more keys than queries, the first query stands at the first key, or the last at the last.
    of_each = (_falling(decay, own, least) for own in sorted({0, max(0, decay.shape[-1] - decay.shape[-2])}))
    falling = next((each for each in of_each if each is not None), None)
    if falling is None:
        return None
    if not bool(falling[:, 0].any()):
        message = "a query does not see itself: q . k is times 0 at its own place, and times a number that falls before"
        return Finding("violation", "mask-pattern", "mask", message, base.instance.sums_location)
    if _is_of_what_is_lost(kept := falling[:, 1] / falling[:, 0]):
        message = (
            f"from token to token heads keep {', '.join(f'{each:.3g}' for each in kept.tolist())} of what was read: "
            "these are the shares that retention loses, and it keeps 1 less each of them"
        )
        return Finding("violation", "retention-decay", "weights", message, base.instance.sums_location)
    message = "q . k times a number that falls with the distance, without a softmax (retention)"
    return Finding("design", "retention", "weights", message, base.instance.sums_location)


def _falling(decay: Tensor, own: int, count: int) -> Tensor | None:
    """(heads, distances): numbers that fall with the distance, but for 0 at the own place; None where others stand.

    Args:
        decay: (samples, heads, queries, keys).
        own: the key that stands at the place of the first query.
        count: how many distances are looked at.
    """
    by_distance = [decay.diagonal(own - distance, -2, -1) for distance in range(count)]
    if any(float(each.amax() - each.amin()) > SAME and not _same_in_each_head(each) for each in by_distance):
        return None
    falling = torch.stack([each[0, :, 0] for each in by_distance], -1)
    first = int(not bool(falling[:, 0].any()))
    seen, is_later_seen = falling[:, first:], bool(decay.triu(own + 1).any())
    if is_later_seen and (first or decay.shape[-1] != decay.shape[-2]):
        return None
    if first and count < 4:
        return None
    return falling if bool((seen > 0).all() & (seen[:, 1:] < seen[:, :-1] * (1 - SAME)).all()) else None


def _is_of_what_is_lost(kept: Tensor) -> bool:
    """Whether numbers, one a head, are 2^-5, 2^-6, ..., or stand between 1/32 and 1/512 as those of the paper's code.

    Sun et al. 2023, "Retentive Network", section 2.2: gamma = 1 - 2^(-5 - h).
    """
    powers = 2.0 ** (-5 - torch.arange(len(kept), dtype=kept.dtype))
    between = torch.logspace(-5, -9, len(kept), base=2.0, dtype=kept.dtype)
    return len(kept) > 1 and any(torch.allclose(kept, each, rtol=1e-4) for each in (powers, between))


def rectified(evidence: Evidence) -> Finding | None:
    """Weights that are what a rectifier leaves of each score, by itself (ReLU attention); None of anything else.

    Such weights promise no sum. Those that were divided by a sum, of whatever, do: they are no function of their score.
    """
    instance, tables = evidence.base.instance, (evidence.base, evidence.fresh)
    if instance.softmaxes or not instance.steps & RECTIFIERS:
        return None
    weight, product, head = (torch.cat([getattr(t, name) for t in tables]) for name in ("weight", "product", "head"))
    for number in range(evidence.base.num_heads):
        mine = (head == number) & (weight > NO_WEIGHT)
        by_score = weight[mine][product[mine].argsort()]
        if bool((by_score.diff() < -SAME * weight.max()).any()) and not _rises_at_each_place(evidence):
            return None
    message = "weights are rectified scores: they are not negative, and do not sum to 1 (ReLU attention)"
    return Finding("design", "rectified-weights", "weights", message, instance.sums_location)


def of_any_sum(evidence: Evidence) -> Finding | None:
    """Weights whose sum has no effect, as each query's weighted sum is divided by its length; None of anything else.

    Zeng et al. 2021, "You Only Sample (Almost) Once" (YOSO), section 3.3: an L2 norm stands for the sum of weights.
    """
    instance = evidence.base.instance
    trace = instance.run.trace
    if instance.softmaxes or not instance.sums:
        return None
    for each in instance.sums:
        read, width = {each.output.storage}, each.output.shape[-1]
        later = [one for one in trace.operations[each.operation.index + 1 :] if one.inputs and one.outputs]
        taken = [one for one in later if one.inputs[0].storage in read and not one.is_view]
        lengths = [one for one in taken if one.name in LENGTHS and _is_of_rows(one.inputs[0], one.outputs[0], width)]
        memory = {length.outputs[0].storage for length in lengths}
        if not lengths or not any(
            one.name in ("div", "clamp_min") and one.inputs[-1].storage in memory for one in later
        ):
            return None
    message = "weights do not sum to 1, and what a query read is divided by its length: no sum of them would change it"
    return Finding("design", "weights-of-any-sum", "weights", message, instance.sums_location)


def _is_of_rows(rows: TensorRecord, lengths: TensorRecord, width: int) -> bool:
    """Whether there is a length for each row of a width."""
    return rows.shape[-1] == width and lengths.data.numel() * width == rows.data.numel()


def _rises_at_each_place(evidence: Evidence) -> bool:
    """Whether weights of the same query and key rise with their score, where each place has a bias of its own."""
    base, fresh = evidence.base, evidence.fresh
    if len(base.weight) != len(fresh.weight):
        return False
    live = (base.weight > NO_WEIGHT) & (fresh.weight > NO_WEIGHT)
    rises = (fresh.weight - base.weight) * (fresh.product - base.product)
    return int(live.sum()) >= MANY and bool((rises[live] > 0).all())


def _same_in_each_head(diagonals: Tensor) -> bool:
    """(samples, heads, places): whether a distance has one number in each head."""
    return bool((diagonals - diagonals[:1, :, :1]).abs().amax() <= SAME)


def learned_memory(run: TaggedRun) -> Finding | None:
    """A softmax of tokens times learned keys, and a sum of learned values (external attention); None of others."""
    learned: dict[int, Contraction] = {
        each.operation.index: each
        for each in run.products
        if (each.left_place in run.depends) != (each.right_place in run.depends)
    }
    weighted: set[int] = set()
    for operation in run.trace:
        if operation.name in SOFTMAXES:
            weighted |= run.owner_of(run.tags.inputs[operation.index][0]) & set(learned)
    for each in learned.values():
        left = each.left_place in run.depends
        place, terms = (each.left_place, each.left_terms) if left else (each.right_place, each.right_terms)
        if not run.owner_of(run.tags.inputs[place[0]][place[1]]) & weighted:
            continue
        weights = run.trace.taken(place).data.flatten()[terms].double()
        if float((weights.sum(-1) - 1).abs().max()) <= SUM_TOLERANCE:
            message = "keys and values are learned: tokens attend to them, not to one another (external attention)"
            return Finding("design", "learned-memory", "scores", message, each.operation.location)
    return None


def learned_keys(evidence: Evidence) -> Finding | None:
    """Queries of tokens and learned keys, whose values were read from the tokens before; None of anything else.

    Wu et al. 2024, "Transolver", section 3.1: slices read the tokens, then each other, and tokens read the slices.
    """
    base, fresh = evidence.base, evidence.fresh
    if not bool((base.key.token == NONE).all()) or bool((base.query.token < 0).any()) or not base.instance.softmaxes:
        return None
    is_learned = base.k.shape == fresh.k.shape and torch.equal(base.k, fresh.k)
    is_read = not torch.equal(base.values.value, fresh.values.value)
    is_softmax = bool((base.group >= 0).all()) and not bool(((base.softmax - base.weight).abs() > SUM_TOLERANCE).any())
    if not is_learned or not is_read or not is_softmax:
        return None
    least, most = (
        torch.zeros(int(base.group.max()) + 1, dtype=torch.long).scatter_reduce(
            0, base.group, base.query.token, how, include_self=False
        )
        for how in ("amin", "amax")
    )
    if not torch.equal(least, most):
        return None  # the softmax runs over the queries
    message = "tokens attend to learned keys, whose values were read from the tokens before (slices, Transolver)"
    return Finding("design", "learned-keys", "scores", message, base.instance.scores_location)


def location_weights(evidence: Evidence) -> Finding | None:
    """A softmax of one query over places, each with learned numbers, that weighs what stands there; None of others.

    Luong et al. 2015, "Effective Approaches to Attention-based Neural Machine Translation", equation 8.
    """
    base, fresh = evidence.base, evidence.fresh
    places = base.values.token
    if not bool((base.key.token == NONE).all()) or bool((base.query.token == NONE).any()):
        return None
    is_learned = base.k.shape == fresh.k.shape and torch.equal(base.k, fresh.k)
    count = places.shape[-1]
    if not is_learned or count < SOME_PLACES or not bool((places == torch.arange(count)).all()):
        return None
    sums = base.weight[base.values.score].sum(-1)
    if bool((base.values.score < 0).any()) or float((sums - 1).abs().max()) > SUM_TOLERANCE:
        return None
    message = (
        "the weight of a place is made of what asks alone, not of what stands there: location-based attention "
        "(Luong et al. 2015, equation 8)"
    )
    return Finding("design", "location-weights", "scores", message, base.instance.scores_location)


def channel_gate(run: TaggedRun, influence: Influence, invocation: Invocation) -> Finding | None:
    """A share of each channel, of all tokens, that every token is multiplied by (squeeze-and-excitation), or alone.

    None of anything else, as where queries meet keys.

    Args:
        run: of the call.
        influence: of its tokens.
        invocation: the call.
    """
    if run.bilinear or not influence.runs:
        return None
    shapes = [(invocation.arguments[each.argument].shape, each.token_axes) for each in invocation.streams]
    # Where sizes coincide, a call with others has told whether a share is of a channel or of a token.
    sizes = {shape[axis] for shape, axes in shapes for axis in axes if [*shape].count(shape[axis]) == 1}
    for gate in run.trace:
        made = gate.outputs[0] if gate.name in GATES else None
        if made is None or sizes & {*made.shape}:
            continue
        depends = influence.of(gate.index, 0, output=True)
        if not bool(depends.any()) or bool((depends.any(0) & ~depends.all(0)).any()):
            continue
        is_used = any(
            operation.name == "mul"
            and {each.storage for each in operation.inputs} > {made.storage}
            and operation.outputs[0].data.numel() > made.data.numel()
            for operation in run.trace.operations[gate.index :]
        )
        if is_used or any(each.storage == made.storage for each in run.trace.outputs):
            message = (
                "each channel has a share, made of all tokens, and no token reads another one (channel attention, "
                "squeeze-and-excitation)"
            )
            return Finding("design", "channel-gate", "weights", message, gate.location)
    return None


def averaged_heads(table: AttentionTable) -> Finding | None:
    """Heads whose results are averaged, not joined (temporal fusion transformer); None of all others."""
    run, scores = table.instance.run, table.values.score
    owner = scores.amax(-1).clamp(min=0)
    head, token = (torch.full((run.num_tags + 1,), -1) for _ in range(2))
    tags = [torch.arange(e.output.data.numel()) + run.first_tag[e.operation.index] for e in table.instance.sums]
    head[torch.cat(tags)], token[torch.cat(tags)] = table.head[owner], table.query.token[owner]
    for operation in run.trace.operations[table.instance.sums[0].operation.index :]:
        axes = operation.args[1] if operation.name in ("mean", "sum") and len(operation.args) > 1 else None
        if not isinstance(axes, list | tuple) or len(axes) != 1:
            continue
        heads, tokens = (each[run.tags.inputs[operation.index][0]].movedim(axes[0], -1) for each in (head, token))
        is_of_all = heads.shape[-1] == table.num_heads > 1 and bool((heads >= 0).all() & (heads.diff() != 0).all())
        if is_of_all and bool((tokens == tokens[..., :1]).all()):
            message = "the heads' results are averaged, not joined (interpretable multi-head attention)"
            return Finding("design", "heads-averaged", "heads joined", message, operation.location)
    return None


def subtracted_scores(instance: AttentionInstance, text: str) -> Finding | None:
    """Scores less other scores before the one softmax there is, in what says that it is differential attention.

    Args:
        instance: the attention.
        text: its name and its documentation.
    """
    if not DIFFERENTIAL.search(text) or not instance.softmaxes:
        return None
    run, own = instance.run, {each.operation.index for each in instance.scores}
    for operation in run.trace.operations[: min(each.index for each in instance.softmaxes)]:
        if operation.name.rstrip("_") != "sub" or len(operation.inputs) != 2:
            continue
        whole, part = (run.owner_of(tags) for tags in run.tags.inputs[operation.index])
        if whole & own and part & {each.operation.index for each in run.bilinear}:
            message = (
                "scores are subtracted from one another and go through one softmax; of two softmaxes, the weights are"
            )
            return Finding("violation", "softmaxes-subtracted", "weights", message, operation.location)
    return None


def differential(instance: AttentionInstance) -> Finding:
    """Weights less those of another softmax: where the one blocks keys, the other blocks some as well."""
    run, own = instance.run, {each.operation.index for each in instance.scores}
    first = min(each.index for each in instance.softmaxes)
    for operation in run.trace.operations[first:]:
        if operation.name.rstrip("_") != "sub" or len(operation.inputs) != 2:
            continue
        whole, part = (each.data for each in operation.inputs)
        if whole.shape != part.shape or not run.owner_of(run.tags.inputs[operation.index][0]) & own:
            continue
        hidden = [int((each.abs() <= NO_WEIGHT).sum()) for each in (whole, part)]
        if max(hidden) and not min(hidden):
            message = (
                f"one of the two softmaxes gives no weight to {max(hidden)} of {whole.numel()} keys, the other blocks "
                "none of them: what is hidden is read all the same"
            )
            return Finding("violation", "masks-of-both-softmaxes", "mask", message, operation.location)
    message = "the weights of other scores are taken from its own (differential attention)"
    return Finding("design", "differential", "weights", message, instance.sums_location)
