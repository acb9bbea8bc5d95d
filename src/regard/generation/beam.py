"""Beam search, with groups and with constraints."""

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
from regard.decoding import Beam
from regard.generation.constraints import Constraints
from regard.generation.hypothesis import Hypothesis
from regard.generation.session import DecodeSession
from regard.generation.streaming import BannedWords
from regard.transformer import SpecialTokens

TOPK_GROUP = 32
"""The group size of the two-step top-k over a large vocabulary."""

CHUNK_LOGITS = 2**18
"""On a CPU log-probabilities are computed for the rows of at most this many logits (1 MB) at a time. Those of 64 rows
of a large vocabulary are 15 MB: memory that the system maps anew in each step, which takes as long as the logarithms.
"""

EXTRA_CANDIDATES = 16
"""More tokens of each beam are candidates where banned words will refuse some."""


class _Finished(NamedTuple):
    """A text that has ended."""

    score: float
    """The sum of the log-probabilities over (number of tokens) ** length_penalty."""
    ids: list[int]


class _Candidate(NamedTuple):
    """A beam and one more token."""

    rank: float
    """The score less the diversity penalty."""
    score: float
    """The sum of the log-probabilities."""
    beam: int
    token: int


@dataclass
class _PromptBeams:
    """The beams of one prompt."""

    prompt: int
    """The index of the prompt."""
    texts: list[list[int]]
    """The new tokens of each beam."""
    scores: list[float]
    finished: list[list[_Finished]]
    """For each group of beams the best finished texts so far, the best first."""
    is_done: list[bool]
    """Whether a group can find no better text."""


@dataclass(frozen=True)
class BeamRules:
    """The rules of a search, the same for all steps and prompts."""

    strategy: Beam
    max_new_tokens: int
    special_tokens: SpecialTokens
    """Stop tokens, and forced first and last tokens."""
    constraints: Constraints
    is_finished: Callable[[int, list[int]], bool]
    """Whether a text ends for another reason than a stop token, such as a stop string."""
    banned_words: BannedWords

    @property
    def group_size(self) -> int:
        """The number of beams in a group."""
        return self.strategy.num_beams // self.strategy.num_beam_groups

    @property
    def num_candidates(self) -> int:
        """The number of candidates of one group: enough are left if all the best ones end."""
        return max(2, 1 + len(self.special_tokens.eos)) * self.group_size

    @property
    def num_tokens(self) -> int:
        """The number of candidate tokens of one beam: the diversity penalty or banned words may refuse some."""
        extra = self.strategy.num_beams if self.strategy.num_beam_groups > 1 else 0
        return self.num_candidates + extra + (EXTRA_CANDIDATES if self.banned_words else 0)

    def can_meet_constraints(self, text: list[int], length: int) -> bool:
        """Whether the forced words that are missing still fit into the remaining tokens."""
        if text[-1] in self.special_tokens.eos:
            return not self.constraints.num_missing(text[:-1])
        remaining = self.max_new_tokens - length
        return self.constraints.num_missing(text) <= remaining - (
            self.special_tokens.forced_eos is not None and remaining > 0
        )


def search_beams(session: DecodeSession, num_prompts: int, rules: BeamRules) -> list[list[Hypothesis]]:
    """The best texts of each prompt, at most ``num_beams`` of each, the best first.

    Args:
        session: before its prefill.
        num_prompts: the number of prompts in it.
        rules: of the search.
    """
    num_beams, num_groups = rules.strategy.num_beams, rules.strategy.num_beam_groups
    active = prompts = [
        _PromptBeams(
            n, [[] for _ in range(num_beams)], [0.0] * num_beams, [[] for _ in range(num_groups)], [False] * num_groups
        )
        for n in range(num_prompts)
    ]
    logits = session.prefill()
    # The prefill has one row for each prompt; from here each beam is a row.
    session.reorder([n for n in range(num_prompts) for _ in range(num_beams)])
    continuations = _continuations(logits.repeat_interleave(num_beams, dim=0), active, rules, 1)
    for length in range(1, rules.max_new_tokens + 1):
        before = [text for prompt in active for text in prompt.texts]
        parents: list[int] = []
        remaining: list[int] = []
        for n, prompt in enumerate(active):
            first = n * num_beams
            beams = _advance(prompt, continuations[first : first + num_beams], rules, length)
            if not all(prompt.is_done):
                remaining.append(n)
                parents += [first + beam for beam in beams]
        if not remaining or length == rules.max_new_tokens:
            break
        if len(remaining) < len(active):
            session.reorder(parents, remaining)
            active = [active[n] for n in remaining]
        else:
            session.reorder(parents, common_prefix=_common_prefix(before, parents))
        # The logits have no name here: they are freed before the next step, which then uses their memory again.
        new = [text[-1] for prompt in active for text in prompt.texts]
        continuations = _continuations(session.decode(new), active, rules, length + 1)
    hypotheses = []
    for prompt in prompts:
        best = sorted((h for group in prompt.finished for h in group), key=lambda h: -h.score)[:num_beams]
        hypotheses.append([Hypothesis(ids, score) for score, ids in best])
    return hypotheses


def _common_prefix(texts: list[list[int]], parents: list[int]) -> int:
    """The number of first tokens that every text shares with its parent, which replaces it."""
    pairs = [zip(texts[row], texts[parent], strict=True) for row, parent in enumerate(parents) if row != parent]
    return min((sum(1 for _ in takewhile(lambda tokens: tokens[0] == tokens[1], pair)) for pair in pairs), default=0)


def _continuations(
    logits: Float[Tensor, "beams vocab_size"], active: list[_PromptBeams], rules: BeamRules, length: int
) -> list[dict[int, float]]:
    """For each beam the log-probabilities of its candidate tokens: the likeliest, and those that constraints need."""
    special_tokens, constraints = rules.special_tokens, rules.constraints
    forced = (
        special_tokens.forced_bos
        if length == 1
        else special_tokens.forced_eos
        if length == rules.max_new_tokens
        else None
    )
    if forced is not None:
        return [{forced: 0.0} for _ in logits]
    texts = [text for prompt in active for text in prompt.texts]
    num_rows = max(1, CHUNK_LOGITS // logits.shape[-1]) if logits.is_cpu else len(logits)
    continuations: list[dict[int, float]] = []
    for first in range(0, len(logits), num_rows):
        log_probs = logits[first : first + num_rows].log_softmax(dim=-1)
        chunk = texts[first : first + num_rows]
        if constraints:
            for beam, text in zip(log_probs, chunk, strict=True):
                beam[constraints.banned_tokens(text)] = -torch.inf
        top, tokens = _topk(log_probs, rules.num_tokens)
        rows = [dict(zip(*pair, strict=True)) for pair in zip(tokens.tolist(), top.tolist(), strict=True)]
        if constraints:
            for row, beam, text in zip(rows, log_probs, chunk, strict=True):
                row |= {token: float(beam[token]) for token in constraints.forced_tokens(text)}
        continuations += rows
    return continuations


def _topk(log_probs: Float[Tensor, "beams vocab_size"], k: int) -> tuple[Tensor, Tensor]:
    """The k largest numbers of each row and their indices; over a large vocabulary faster than `torch.topk`.

    The k largest numbers are in the k groups with the largest maxima.
    """
    size = log_probs.shape[-1]
    grouped = size // TOPK_GROUP * TOPK_GROUP
    if grouped // TOPK_GROUP < 4 * k:
        return log_probs.topk(min(k, size))
    groups = log_probs[:, :grouped].view(len(log_probs), -1, TOPK_GROUP).amax(-1).topk(k).indices
    offsets = torch.arange(TOPK_GROUP, device=log_probs.device)
    rest = torch.arange(grouped, size, device=log_probs.device).expand(len(log_probs), -1)
    tokens = torch.cat([(groups[..., None] * TOPK_GROUP + offsets).flatten(1), rest], dim=-1)
    top, index = log_probs.gather(-1, tokens).topk(k)
    return top, tokens.gather(-1, index)


def _advance(prompt: _PromptBeams, continuations: list[dict[int, float]], rules: BeamRules, length: int) -> list[int]:
    """Add a token to each beam of a prompt; returns the beam that each new beam continues."""
    size, penalty = rules.group_size, rules.strategy.length_penalty
    selected: list[_Candidate] = []
    for group in range(rules.strategy.num_beam_groups):
        beams = range(group * size, (group + 1) * size)
        # In the first step all beams are equal, and one of them has all candidates.
        candidates = _candidates(prompt, beams[:1] if length == 1 else beams, continuations, selected, rules, length)
        unfinished: list[_Candidate] = []
        for place, candidate in enumerate(candidates):
            text = [*prompt.texts[candidate.beam], candidate.token]
            is_stop = candidate.token in rules.special_tokens.eos
            if not (is_stop or length == rules.max_new_tokens or rules.is_finished(prompt.prompt, text)):
                unfinished.append(candidate)
            elif place < size and not prompt.is_done[group]:
                finished = [*prompt.finished[group], _Finished(candidate.score / length**penalty, text)]
                prompt.finished[group] = sorted(finished, key=lambda h: -h.score)[:size]
        unfinished = _allocate_banks(unfinished, prompt, rules) if rules.constraints.force_words else unfinished[:size]
        best = max((candidate.score for candidate in unfinished), default=-torch.inf) / length**penalty
        is_full = len(prompt.finished[group]) == size
        if not unfinished or (is_full and best <= prompt.finished[group][-1].score):
            prompt.is_done[group] = True
        # Where fewer texts than beams are unfinished, the other beams have score -inf.
        unfinished += [_Candidate(-torch.inf, -torch.inf, beams[0], 0)] * (size - len(unfinished))
        selected += unfinished
    prompt.texts = [[*prompt.texts[candidate.beam], candidate.token] for candidate in selected]
    prompt.scores = [candidate.score for candidate in selected]
    return [candidate.beam for candidate in selected]


def _candidates(
    prompt: _PromptBeams,
    beams: range,
    continuations: list[dict[int, float]],
    selected: list[_Candidate],
    rules: BeamRules,
    length: int,
) -> list[_Candidate]:
    """The candidates of a group of beams, the best first."""
    counts = Counter(candidate.token for candidate in selected)
    penalty = rules.strategy.diversity_penalty
    candidates = []
    for beam in beams:
        beam_score = prompt.scores[beam]
        for token, log_prob in continuations[beam].items():
            score = beam_score + log_prob
            if score == -torch.inf:
                continue
            if rules.banned_words and rules.banned_words(prompt.prompt, [*prompt.texts[beam], token]):
                continue
            if rules.constraints.force_words and not rules.can_meet_constraints([*prompt.texts[beam], token], length):
                continue
            candidates.append((score - penalty * counts[token] if penalty else score, score, beam, token))
    candidates.sort(key=itemgetter(0), reverse=True)
    if not rules.constraints.force_words:
        candidates = candidates[: rules.num_candidates]
    return [_Candidate(*candidate) for candidate in candidates]


def _allocate_banks(candidates: list[_Candidate], prompt: _PromptBeams, rules: BeamRules) -> list[_Candidate]:
    """Divide the beams among candidates by the number of forced tokens that they still miss.

    Each number has a bank with an equal share of the beams. Beams that a bank cannot fill go to the candidates that
    miss the fewest tokens.
    """
    banks: dict[int, list[_Candidate]] = {}
    for candidate in candidates:
        num_missing = rules.constraints.num_missing([*prompt.texts[candidate.beam], candidate.token])
        banks.setdefault(num_missing, []).append(candidate)
    order = sorted(banks)
    share = max(1, rules.group_size // max(1, len(order)))
    allocated = [candidate for num_missing in order for candidate in banks[num_missing][:share]]
    allocated += [candidate for num_missing in order for candidate in banks[num_missing][share:]]
    return allocated[: rules.group_size]
