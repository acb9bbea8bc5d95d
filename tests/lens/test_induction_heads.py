"""Induction heads of a real decoder, SmolLM2-135M ("In-context Learning and Induction Heads", Olsson et al. 2022)."""

from functools import cache

import pytest
import torch
from torch.nn.functional import cross_entropy

import regard
from weights import sentences, smollm2

PERIOD = 40
INDUCTION_HEADS = [(17, 3), (17, 4), (18, 6), (23, 2)]
"""(layer, head)"""


@cache
@torch.inference_mode()
def repeated():
    """Random tokens twice: what comes next in the second half can be known only by looking it up in the first."""
    ids = torch.randint(1000, 40_000, (PERIOD,), generator=torch.Generator().manual_seed(0)).repeat(2)
    with regard.watch(smollm2().model) as seen:
        logits = smollm2().model(ids[None])[0]
    seen.label([str(id_) for id_ in ids.tolist()])
    return seen, cross_entropy(logits[:-1], ids[1:], reduction="none")


def maps(seen):
    """(layer, head) to the weights of the head, for all heads."""
    for path in seen:
        for head, weights in enumerate(seen[path].dense()[0]):
            yield (seen.entry(path).layer, head), weights


def test_repeated_tokens_are_predicted_from_their_first_occurrence():
    _, loss = repeated()
    assert loss[: PERIOD - 1].mean() > 14  # worse than a guess among 49,152 tokens, 10.8
    assert loss[PERIOD:].mean() < 4


def test_the_heads_that_look_behind_the_earlier_occurrence_are_named_induction():
    """At position i the token to come stands at i - PERIOD + 1."""
    seen, _ = repeated()
    share = {head: weights.diagonal(1 - PERIOD)[1:].mean().item() for head, weights in maps(seen)}
    assert sorted(head for head, each in share.items() if each >= 0.5) == INDUCTION_HEADS
    assert max(share, key=share.__getitem__) == (18, 6)
    assert share[18, 6] > 0.85
    named = [
        (seen.entry(path).layer, head)
        for path, types in seen.head_types().items()
        for head, name in enumerate(types.names)
        if name == "induction"
    ]
    assert named == INDUCTION_HEADS


def test_in_other_random_tokens_they_are_the_same_heads():
    generator = torch.Generator().manual_seed(1)
    ids = torch.randint(1000, 40_000, (PERIOD,), generator=generator).repeat(2)
    with torch.inference_mode(), regard.watch(smollm2().model, layers=[17, 18]) as seen:
        smollm2().model(ids[None])
    share = {head: weights.diagonal(1 - PERIOD)[1:].mean().item() for head, weights in maps(seen)}
    assert sorted(share, key=share.__getitem__)[-3:] == [(17, 4), (17, 3), (18, 6)]


@pytest.mark.more
def test_in_real_prose_the_same_heads_have_the_largest_scores():
    """Far below a half: most words of prose occur once, or their second occurrence goes on differently."""
    scores = []
    prose = sentences(200)
    for start in (0, 15):
        encoding = smollm2().encode(" ".join(prose[start : start + 15]))
        with torch.inference_mode(), regard.watch(smollm2().model) as seen:
            smollm2().model(torch.tensor([encoding.ids]))
        seen.label(encoding.tokens)
        scores.append(torch.stack([types.scores["induction"] for types in seen.head_types().values()]))
    mean = torch.stack(scores).mean(0)
    strongest = [divmod(int(i), mean.shape[1]) for i in mean.flatten().topk(4).indices]
    assert {(17, 3), (17, 4), (18, 6)} < set(strongest)
    assert mean.max() < 0.5
