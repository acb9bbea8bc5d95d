"""Exercise 19: one step of beam search."""

from __future__ import annotations

import torch
from torch import Tensor

from regard.exercises.problems.numbers import course_call, draw, random_call
from regard.exercises.problems.problem import Call, OwnMistake, Problem, variants_of

__all__ = ["BEAM_STEP"]

Step = tuple[Tensor, Tensor, Tensor]


def _best(candidates: Tensor, count: int, *, largest: bool = True) -> Step:
    """The best of a matrix of candidates, by their rows and columns."""
    order = candidates.flatten().argsort(descending=largest)[:count]
    rows, columns = order // candidates.shape[1], order % candidates.shape[1]
    return rows, columns, candidates[rows, columns]


def _sums(scores: Tensor, log_probs: Tensor) -> Tensor:
    return scores.reshape(-1, 1) + log_probs


def _right(scores: Tensor, log_probs: Tensor) -> Step:
    return _best(_sums(scores, log_probs), len(scores))


def _each_beam(scores: Tensor, log_probs: Tensor) -> Step:
    best = log_probs.max(-1)
    return torch.arange(len(scores)), best.indices, scores + best.values


def _flat(scores: Tensor, log_probs: Tensor) -> Tensor:
    """The flat indices of the best candidates."""
    rows, columns, _ = _right(scores, log_probs)
    return rows * log_probs.shape[-1] + columns


def _divided_by_beams(scores: Tensor, log_probs: Tensor) -> Step:
    flat = _flat(scores, log_probs)
    return flat // len(scores), flat % len(scores), _right(scores, log_probs)[2]


def _reversed(scores: Tensor, log_probs: Tensor) -> Step:
    beams, tokens, best = _right(scores, log_probs)
    return beams.flip(0), tokens.flip(0), best.flip(0)


def _of_chosen(scores: Tensor, log_probs: Tensor) -> Step:
    beams, tokens, _ = _right(scores, log_probs)
    return beams, tokens, log_probs[beams, tokens]


def _old_scores(scores: Tensor, log_probs: Tensor) -> Step:
    beams, tokens, _ = _right(scores, log_probs)
    return beams, tokens, scores[beams]


def _exchanged(scores: Tensor, log_probs: Tensor) -> Step:
    beams, tokens, best = _right(scores, log_probs)
    return tokens, beams, best


def _flat_tokens(scores: Tensor, log_probs: Tensor) -> Step:
    beams, _, best = _right(scores, log_probs)
    return beams, _flat(scores, log_probs), best


def _calls() -> list[Call]:
    course = torch.tensor([[0.2, 0.3, 0.5], [0.1, 0.8, 0.1]], dtype=torch.float64).log()
    calls = [course_call(torch.tensor([-0.5, -1.0], dtype=torch.float64), course)]
    for seed, beams, vocabulary in ((141, 4, 9), (142, 3, 3), (143, 1, 5), (144, 5, 6)):
        scores, logits = draw(seed, [beams], [beams, vocabulary])
        calls.append(random_call("scores log_probs", -scores.abs(), logits.log_softmax(-1)))
    return calls


BEAM_STEP = Problem(
    calls=_calls,
    right=_right,
    variants=variants_of(
        OwnMistake(
            "beam-score-forgotten",
            "candidates",
            "the score that a beam has so far is not added: only the next token counts",
            "A likely token after an unlikely text beats everything else.",
            lambda scores, log_probs: _best(log_probs, len(scores)),
            lambda scores, log_probs: [_best(log_probs, len(scores))[2]],
            r"topk|sort|max",
        ),
        OwnMistake(
            "scores-multiplied",
            "candidates",
            "scores and log-probabilities are multiplied; logarithms are added",
            "Two negative numbers become a positive one: unlikely continuations win.",
            lambda scores, log_probs: _best(scores[:, None] * log_probs, len(scores)),
            lambda scores, log_probs: [scores[:, None] * log_probs],
            r"\*",
        ),
        OwnMistake(
            "probabilities-added",
            "candidates",
            "probabilities are added to the scores, which are logarithms",
            "A token of probability 0 costs a beam nothing.",
            lambda scores, log_probs: _best(scores[:, None] + log_probs.exp(), len(scores)),
            lambda scores, log_probs: [scores[:, None] + log_probs.exp(), log_probs.exp()],
            r"exp",
        ),
        OwnMistake(
            "scores-subtracted",
            "candidates",
            "the log-probabilities are subtracted from the scores; they are added",
            "The least likely token of each beam wins.",
            lambda scores, log_probs: _best(scores[:, None] - log_probs, len(scores)),
            lambda scores, log_probs: [scores[:, None] - log_probs],
            r"-",
        ),
        OwnMistake(
            "probabilities-returned",
            "new scores",
            "beams and tokens are right, and the new scores are probabilities; they have to be their logarithms",
            "The next step adds logarithms to probabilities, and a long text has the probability 0.",
            lambda scores, log_probs: (*_right(scores, log_probs)[:2], _right(scores, log_probs)[2].exp()),
            lambda scores, log_probs: [_sums(scores, log_probs).exp()],
            r"exp",
        ),
        OwnMistake(
            "columns-for-beams",
            "candidates",
            "the score of beam i is added to column i, the token i; it belongs to row i",
            "It runs where there are as many beams as tokens, or fails.",
            lambda scores, log_probs: _best(scores + log_probs, len(scores)),
            lambda scores, log_probs: [scores + log_probs],
            r"\+",
        ),
        OwnMistake(
            "best-of-each-beam",
            "best",
            "each beam goes on with its own best token; the best of all beams together are wanted",
            "That is greedy search, several times: a beam that is bad already is never given up.",
            _each_beam,
            lambda scores, log_probs: [_each_beam(scores, log_probs)[2], log_probs.max(-1).values],
            r"argmax|max|topk",
        ),
        OwnMistake(
            "lowest-kept",
            "best",
            "the lowest scores are kept; a beam keeps the highest log-probabilities",
            "The least likely text is written.",
            lambda scores, log_probs: _best(_sums(scores, log_probs), len(scores), largest=False),
            lambda scores, log_probs: [_best(_sums(scores, log_probs), len(scores), largest=False)[2]],
            r"largest|argsort|sort|min|-",
        ),
        OwnMistake(
            "worst-first",
            "best",
            "the best continuations come last; they have to come first",
            "What takes the first beam as the result gets the last one.",
            _reversed,
            pattern=r"flip|sort|\[-|::-1",
        ),
        OwnMistake(
            "flat-index-divided",
            "index",
            "the flat index is divided by the number of beams; a row of the candidates is as long as the vocabulary",
            "Scores are right, and belong to other texts.",
            _divided_by_beams,
            lambda *args: list(_divided_by_beams(*args)[:2]),
            r"//|%|div|mod",
        ),
        OwnMistake(
            "flat-index-exchanged",
            "index",
            "beams and tokens are exchanged: the rows of the candidates are beams",
            "Scores are right, and belong to other texts.",
            _exchanged,
            pattern=r"return|//|%|div|mod",
        ),
        OwnMistake(
            "flat-index-kept",
            "index",
            "the tokens are flat indices, which count on through all beams",
            "A token id may be larger than the vocabulary.",
            _flat_tokens,
            pattern=r"return|topk|sort",
        ),
        OwnMistake(
            "score-not-added",
            "new scores",
            "the new scores are those of the last token alone; they have to be those of the whole text",
            "The next step forgets everything before.",
            _of_chosen,
            pattern=r"return|log_probs\[",
        ),
        OwnMistake(
            "score-not-added",
            "new scores",
            "the new scores are the old ones of the beams: the last token is not counted",
            "No token has any effect on which text wins.",
            _old_scores,
            pattern=r"return|scores\[",
        ),
    ),
    names=("beams", "tokens", "new_scores"),
)
