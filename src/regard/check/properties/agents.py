"""Tokens that read a few learned agents, which have read the tokens: the weights are a product of two softmaxes."""

from __future__ import annotations

from torch import Tensor

from regard.check.properties.finding import Finding
from regard.check.roles.instances import SOFTMAXES, AttentionInstance
from regard.check.trace.operation import Operation

__all__ = ["learned_agents"]

SUM_TOLERANCE = 1e-6


def learned_agents(instances: list[AttentionInstance]) -> Finding | None:
    """The design, or what is wrong with it, where products of tokens with agents are softmaxes; None of all others.

    What looks like scores is what the agents have read: no softmax takes it, and it is weighted twice, by softmaxes
    over the tokens and over the agents.
    """
    softmaxes = [_softmaxes_of_agents(each) for each in instances]
    if not all(map(_is_read_twice, instances, softmaxes)):
        return None
    for instance, mine in zip(instances, softmaxes, strict=True):
        sums = [(instance.values_place(each), instance.value_terms(each)) for each in instance.sums]
        for each in instance.scores:
            sums += [(each.left_place, each.left_terms), (each.right_place, each.right_terms)]
        for factor in sums:
            found = _other_axis(instance, *factor, mine)
            if found is not None:
                return found
    message = "tokens read learned agents, which have read the tokens: the weights are a product of two softmaxes"
    return Finding("design", "agent-attention", "scores", message, instances[0].scores_location)


def _is_read_twice(instance: AttentionInstance, softmaxes: list[Operation]) -> bool:
    trace = instance.run.trace
    made_of = {each.index: trace.made_of([each.outputs[0].storage]) for each in softmaxes}

    def behind(place: tuple[int, int]) -> set[int]:
        storage = trace.taken(place).storage
        return {index for index, made in made_of.items() if storage in made}

    of_agents = [behind(place) for each in instance.scores for place in each.places]
    inner = set[int]().union(*of_agents)
    readers = [behind(instance.values_place(each)) for each in instance.sums]
    return not instance.softmaxes and bool(inner) and all(each and not each & inner for each in readers)


def _other_axis(
    instance: AttentionInstance, place: tuple[int, int], terms: Tensor, softmaxes: list[Operation]
) -> Finding | None:
    """Where a factor is a softmax as it is, with no heads mixed, and its terms do not sum to 1."""
    run = instance.run
    mine = run.owner_of(run.tags.inputs[place[0]][place[1]])
    for softmax in softmaxes:
        if not mine or mine != run.owner_of(run.tags.inputs[softmax.index][0]):
            continue
        sums = run.trace.taken(place).data.flatten()[terms].sum(-1)
        worst = float(sums[(sums - 1).abs().argmax()])
        if abs(worst - 1) > SUM_TOLERANCE:
            message = f"weights that are summed over sum to {worst:.4g}, not to 1: their softmax runs over another axis"
            return Finding("violation", "softmax-over-keys", "weights", message, softmax.location)
    return None


def _softmaxes_of_agents(instance: AttentionInstance) -> list[Operation]:
    """The softmaxes of products of projected tokens with what depends on no token: no projections themselves."""
    run = instance.run
    learned = set()
    for each in run.products:
        of_tokens = [place for place in each.places if place in run.depends]
        if len(of_tokens) == 1 and run.owner_of(run.tags.inputs[of_tokens[0][0]][of_tokens[0][1]]):
            learned.add(each.operation.index)
    return [
        each for each in run.trace if each.name in SOFTMAXES and run.owner_of(run.tags.inputs[each.index][0]) & learned
    ]
