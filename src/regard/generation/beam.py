"""Beam search: several texts are followed at once, and the best by their scores are kept."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable
from dataclasses import dataclass
from itertools import takewhile
from operator import itemgetter
from typing import NamedTuple

import torch
from torch import Tensor

from regard._shapes import Float
from regard.generation.constraints import Constraints
from regard.generation.session import Reader
from regard.generation.strategy import Beam
from regard.generation.streaming import Unwanted
from regard.transformer import SpecialTokens

__all__ = ["Hypothesis", "Rules", "search"]

GROUP = 32
"""Tokens of a large vocabulary are first looked at in groups of so many."""

SPARE = 16
"""So many tokens more are looked at where some will be refused for what they spell."""


class Hypothesis(NamedTuple):
    """A text that was found."""

    ids: list[int]
    """The new tokens, the stop token included where there is one."""
    score: float
    """Sum of the log-probabilities over (number of tokens) ** length_penalty."""


class Candidate(NamedTuple):
    """A text and one token more."""

    rank: float
    """The score, less what diversity takes off."""
    score: float
    """The sum of the log-probabilities."""
    beam: int
    token: int


@dataclass
class Row:
    """The search for one prompt."""

    prompt: int
    """Which one."""
    texts: list[list[int]]
    """What stands in each beam, of new tokens."""
    scores: list[float]
    found: list[list[Hypothesis]]
    """For each group of beams the best finished texts so far, the best first."""
    done: list[bool]
    """Whether a group can find nothing better."""


@dataclass(frozen=True)
class Rules:
    """What holds for every step and every prompt."""

    strategy: Beam
    limit: int
    special: SpecialTokens
    """Stop tokens, and tokens that stand first or last by force."""
    constraints: Constraints
    ended: Callable[[int, list[int]], bool]
    """Whether a text is finished for another reason than a stop token, such as a stop string."""
    unwanted: Unwanted

    @property
    def size(self) -> int:
        """Beams of one group."""
        return self.strategy.width // self.strategy.groups

    @property
    def most(self) -> int:
        """Candidates of one group: so many that enough are left if all the best ones end."""
        return max(2, 1 + len(self.special.eos)) * self.size

    @property
    def looked_at(self) -> int:
        """Tokens of one beam that may be candidates: some fall behind, that others took or that are unwanted."""
        return self.most + (self.strategy.width if self.strategy.groups > 1 else 0) + (SPARE if self.unwanted else 0)

    def can_end_well(self, text: list[int], length: int) -> bool:
        """Whether what must appear still can, in what is left of the limit."""
        if text[-1] in self.special.eos:
            return not self.constraints.missing(text[:-1])
        left = self.limit - length
        return self.constraints.missing(text) <= left - (self.special.forced_eos is not None and left > 0)


def search(reader: Reader, prompts: int, rules: Rules) -> list[list[Hypothesis]]:
    """The best texts of each prompt, at most ``width`` of each, the best first.

    Args:
        reader: at the beginning.
        prompts: how many there are.
        rules: what holds for every step.
    """
    width, groups, limit = rules.strategy.width, rules.strategy.groups, rules.limit
    rows = every = [
        Row(n, [[] for _ in range(width)], [0.0] * width, [[] for _ in range(groups)], [False] * groups)
        for n in range(prompts)
    ]
    logits = reader.begin()
    # The prompt was read once; from here each beam is a row.
    reader.reorder([n for n in range(prompts) for _ in range(width)])
    logits = logits.repeat_interleave(width, dim=0)
    for length in range(1, limit + 1):
        going_on = _likeliest(logits, rows, rules, length)
        before = [text for row in rows for text in row.texts]
        follow: list[int] = []
        same: list[int] = []
        for n, row in enumerate(rows):
            parents = _advance(row, going_on[n * width : (n + 1) * width], rules, length)
            if not all(row.done):
                same.append(n)
                follow += [n * width + parent for parent in parents]
        if not same or length == limit:
            break
        if len(same) < len(rows):
            reader.reorder(follow, same)
            rows = [rows[n] for n in same]
        else:
            reader.reorder(follow, alike=_alike(before, follow))
        logits = reader.step([text[-1] for row in rows for text in row.texts])
    return [sorted((h for group in row.found for h in group), key=lambda h: -h.score)[:width] for row in every]


def _alike(texts: list[list[int]], follow: list[int]) -> int:
    """How many first tokens each text has in common with the one that takes its place."""
    pairs = [zip(texts[row], texts[of], strict=True) for row, of in enumerate(follow) if row != of]
    return min((sum(1 for _ in takewhile(lambda tokens: tokens[0] == tokens[1], pair)) for pair in pairs), default=0)


def _likeliest(
    logits: Float[Tensor, "beams vocab_size"], rows: list[Row], rules: Rules, length: int
) -> list[dict[int, float]]:
    """For each beam the log-probabilities of the tokens that it may go on with: the likeliest, and those wanted."""
    special, constraints = rules.special, rules.constraints
    forced = special.forced_bos if length == 1 else special.forced_eos if length == rules.limit else None
    if forced is not None:
        return [{forced: 0.0} for _ in logits]
    log_probs = logits.log_softmax(dim=-1)
    texts = [text for row in rows for text in row.texts]
    wanted: list[list[int]] = [[] for _ in texts]
    if constraints:
        blocked = [constraints.blocked(text) for text in texts]
        for beam, never in zip(log_probs, blocked, strict=True):
            beam[never] = -torch.inf
        wanted = [constraints.wanted(text) for text in texts]
    top, tokens = _top(log_probs, rules.looked_at)
    found = [dict(zip(*pair, strict=True)) for pair in zip(tokens.tolist(), top.tolist(), strict=True)]
    for n, more in enumerate(wanted):
        found[n] |= {token: float(log_probs[n, token]) for token in more}
    return found


def _top(log_probs: Float[Tensor, "beams vocab_size"], most: int) -> tuple[Tensor, Tensor]:
    """The largest numbers of each row, and where they stand; over a large vocabulary faster than `torch.topk`.

    The largest ``most`` numbers stand in the ``most`` groups with the largest maxima.
    """
    size = log_probs.shape[-1]
    whole = size // GROUP * GROUP
    if whole // GROUP < 4 * most:
        return log_probs.topk(min(most, size), dim=-1)
    groups = log_probs[:, :whole].view(len(log_probs), -1, GROUP).amax(-1).topk(most, dim=-1).indices
    inside = torch.arange(GROUP, device=log_probs.device)
    rest = torch.arange(whole, size, device=log_probs.device).expand(len(log_probs), -1)
    tokens = torch.cat([(groups[..., None] * GROUP + inside).flatten(1), rest], dim=-1)
    top, at = log_probs.gather(-1, tokens).topk(most, dim=-1)
    return top, tokens.gather(-1, at)


def _advance(row: Row, likeliest: list[dict[int, float]], rules: Rules, length: int) -> list[int]:
    """Move a prompt's beams one token on; the beam that each of them continues."""
    size, penalty = rules.size, rules.strategy.length_penalty
    chosen: list[Candidate] = []
    for group in range(rules.strategy.groups):
        beams = range(group * size, (group + 1) * size)
        # At the beginning all beams are alike: what becomes of one of them is enough.
        candidates = _candidates(row, beams[:1] if length == 1 else beams, likeliest, chosen, rules, length)
        going_on: list[Candidate] = []
        for place, candidate in enumerate(candidates):
            text = [*row.texts[candidate.beam], candidate.token]
            if not (candidate.token in rules.special.eos or length == rules.limit or rules.ended(row.prompt, text)):
                going_on.append(candidate)
            elif place < size and not row.done[group]:
                found = Hypothesis(text, candidate.score / length**penalty)
                row.found[group] = sorted([*row.found[group], found], key=lambda h: -h.score)[:size]
        going_on = _shared_out(going_on, row, rules) if rules.constraints.must else going_on[:size]
        best = max((candidate.score for candidate in going_on), default=-torch.inf) / length**penalty
        full = len(row.found[group]) == size
        if not going_on or (full and best <= row.found[group][-1].score):
            row.done[group] = True
        # Where fewer texts than beams can go on, the others stay without hope.
        going_on += [Candidate(-torch.inf, -torch.inf, beams[0], 0)] * (size - len(going_on))
        chosen += going_on
    row.texts = [[*row.texts[candidate.beam], candidate.token] for candidate in chosen]
    row.scores = [candidate.score for candidate in chosen]
    return [candidate.beam for candidate in chosen]


def _candidates(
    row: Row,
    beams: range,
    likeliest: list[dict[int, float]],
    chosen: list[Candidate],
    rules: Rules,
    length: int,
) -> list[Candidate]:
    """What the beams of a group can become, the best first; as many as are looked at."""
    taken = Counter(candidate.token for candidate in chosen)
    diversity = rules.strategy.diversity
    found = []
    for beam in beams:
        before = row.scores[beam]
        for token, log_prob in likeliest[beam].items():
            score = before + log_prob
            if score == -torch.inf:
                continue
            if rules.unwanted and rules.unwanted(row.prompt, [*row.texts[beam], token]):
                continue
            if rules.constraints.must and not rules.can_end_well([*row.texts[beam], token], length):
                continue
            found.append((score - diversity * taken[token] if diversity else score, score, beam, token))
    found.sort(key=itemgetter(0), reverse=True)
    return [Candidate(*each) for each in (found if rules.constraints.must else found[: rules.most])]


def _shared_out(candidates: list[Candidate], row: Row, rules: Rules) -> list[Candidate]:
    """The beams, shared out among texts that have met the same number of tokens that must appear.

    Each number has a bank with an equal share of the width. What a bank cannot fill goes to the texts that have met
    most.
    """
    banks: dict[int, list[Candidate]] = {}
    for candidate in candidates:
        missing = rules.constraints.missing([*row.texts[candidate.beam], candidate.token])
        banks.setdefault(missing, []).append(candidate)
    order = sorted(banks)
    share = max(1, rules.size // max(1, len(order)))
    kept = [candidate for missing in order for candidate in banks[missing][:share]]
    kept += [candidate for missing in order for candidate in banks[missing][share:]]
    return kept[: rules.size]
