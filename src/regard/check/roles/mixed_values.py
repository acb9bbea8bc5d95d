"""Values of several tokens each, on purpose: of their score's two, or of the neighbours of their key's."""

from __future__ import annotations

import torch
from torch import Tensor

from regard.check.roles.influence import Influence
from regard.check.roles.instances import AttentionInstance
from regard.check.roles.owners import Owners
from regard.check.trace.operation import Operation

__all__ = ["are_of_neighbours", "are_of_pairs", "tokens_of_values"]


def tokens_of_values(instance: AttentionInstance, influence: Influence, width: int) -> Tensor:
    """(sums, terms, tokens): whether the value of each term depends on each token.

    Args:
        instance: an attention.
        influence: of its tokens.
        width: how many terms a sum has at most.
    """
    rows = influence.sources("token")
    tokens = torch.tensor([influence.runs[row][0].index for row in rows], dtype=torch.long)
    by_token = torch.arange(int(tokens.max()) + 1)[:, None] == tokens
    found = []
    for each in instance.sums:
        depends = influence.of(*instance.values_place(each)).flatten(1)[rows]
        terms = (by_token.float() @ depends.float() > 0)[:, instance.value_terms(each)].movedim(0, -1)
        found.append(torch.nn.functional.pad(terms, (0, 0, 0, width - terms.shape[1])))
    return torch.cat(found)


def are_of_pairs(depends: Tensor, score: Tensor, query: Owners, key: Owners) -> bool:
    """See `ValueTable.of_pairs`; of two tokens no value would depend on others than these.

    Args:
        depends: (sums, terms, tokens): on which tokens each value depends.
        score: (sums, terms): of which query and key its weight is; -1 of none.
        query: of the scores.
        key: of the scores.
    """
    if depends.shape[-1] < 3:
        return False
    scores, places = score.clamp(min=0), torch.arange(depends.shape[-1])
    pair = (places == query.token[scores][..., None]) | (places == key.token[scores][..., None])
    is_one = query.stream[scores] == key.stream[scores]
    return bool((is_one & ~(depends & ~pair).any(-1))[score >= 0].all())


def are_of_neighbours(instance: AttentionInstance, depends: Tensor, score: Tensor, key: Owners) -> bool:
    """See `ValueTable.of_neighbours`: each on its key's token, and on no other than a convolution reads around it.

    Ren et al. 2022, "Shunted Self-Attention" (arXiv:2111.15193, equation 4): a depthwise convolution of the values is
    added to them.

    Args:
        instance: an attention.
        depends: (sums, terms, tokens): on which tokens each value depends.
        score: (sums, terms): of which query and key its weight is; -1 of none.
        key: of the scores.
    """
    used = score >= 0
    own = key.token[score.clamp(min=0)]
    if not bool((own[used] >= 0).all()) or int(own[used].max()) >= depends.shape[-1]:
        return False
    values = {instance.run.trace.taken(instance.values_place(each)).storage for each in instance.sums}
    first = instance.sums[0].operation.index
    for each in instance.run.trace.operations[:first]:
        near = _reach(each) if each.name == "convolution" else None
        if near is None or len(near) <= int(own[used].max()) or len(near) > depends.shape[-1]:
            continue
        if not values & instance.run.trace.made_of([each.outputs[0].storage]):
            continue
        around = torch.nn.functional.pad(near, (0, depends.shape[-1] - len(near)))[own.clamp(min=0)]
        is_own = depends.gather(-1, own.clamp(min=0)[..., None])[..., 0]
        if bool((is_own & ~(depends & ~around).any(-1))[used].all()):
            return True
    return False


def _reach(convolution: Operation) -> Tensor | None:
    """(places, places): whether a convolution that keeps the sides of a map reads one for the other; None of others."""
    sides, kernel = convolution.inputs[0].shape[2:], convolution.inputs[1].shape[2:]
    is_transposed, dilation = bool(convolution.args[6]), convolution.args[5]
    if is_transposed or convolution.outputs[0].shape[2:] != sides or max(kernel, default=1) < 2:
        return None
    at = torch.cartesian_prod(*map(torch.arange, sides)).reshape(-1, len(sides))
    apart = (at[:, None] - at[None]).abs()
    reach = torch.tensor([step * (size // 2) for step, size in zip(dilation, kernel, strict=True)])
    return (apart <= reach).all(-1)
