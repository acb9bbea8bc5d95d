"""Several statistics of a map in one pass over its weights.

Each statistic alone is one attention of its own. Together they need the scores and the exponentials only once: the
rows of a chunk come with all their keys, so that their sum, their largest and their products with several columns are
taken from the same numbers in memory.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor

from regard.attention.kernels.score_block import ScoreBlock
from regard.attention.steps import grouped_matmul
from regard.lens.maps.inputs import AttentionInputs
from regard.lens.maps.lse import cache_lse
from regard.lens.maps.moments import (
    MAX_CHUNK_CELL_KEYS,
    attended_position,
    cell_keys,
    distance_from_query,
    entropy_with_sinks,
    group_columns,
    pad_columns,
    parse_groups,
)
from regard.lens.maps.prepared import PreparedAttention, prepare
from regard.lens.maps.streaming import LargestScores, PooledCells, check_cells, check_k, score_chunks

MIN_SCORE = -1e4
"""A score that is lower than the highest of its row by so much has the weight 0 in every dtype."""

PLAIN_QUESTIONS = ("entropy", "received", "distance")
"""The statistics without arguments."""


@dataclass(frozen=True)
class Questions:
    """The statistics that are asked, and their arguments."""

    arguments: dict[str, tuple[Any, ...]]
    """By the names of the methods of a map."""
    groups: Tensor | None = None
    num_groups: int = 0
    """See `regard.lens.maps.moments.parse_groups`."""


def parse_questions(
    inputs: AttentionInputs,
    questions: Sequence[str],
    mass: Sequence[int] | Sequence[Sequence[int]] | Tensor | None,
    top: int | None,
    pooled: tuple[int, int] | None,
) -> Questions:
    """What `AttentionMap.ask` was asked.

    Raises:
        TypeError: as the methods of a map do.
        ValueError: an unknown question, or none; as the methods do.
    """
    for name in questions:
        if name not in PLAIN_QUESTIONS:
            raise ValueError(
                f"ask({name!r}): the questions are {', '.join(map(repr, PLAIN_QUESTIONS))}, and by keyword "
                "mass=groups, top=k, pooled=(rows, columns)"
            )
    arguments: dict[str, tuple[Any, ...]] = dict.fromkeys(questions, ())
    groups, count = None, 0
    if mass is not None:
        groups, count = parse_groups(mass, inputs.shape[0], inputs.shape[3])
        groups, arguments["mass"] = groups.to(inputs.device), (mass,)
    if top is not None:
        check_k(inputs.shape, top)
        arguments["top"] = (top,)
    if pooled is not None:
        check_cells(inputs.shape, *pooled)
        arguments["pooled"] = tuple(pooled)
    if not arguments:
        raise ValueError('ask() was asked nothing: ask("entropy", "received", top=8)')
    return Questions(arguments, groups, count)


class _Pass:
    """The sums and the largest scores of all rows, filled chunk by chunk."""

    def __init__(self, prepared: PreparedAttention, questions: Questions) -> None:
        self.prepared, asked = prepared, questions.arguments
        q = prepared.call.q
        shape = q.shape[:-1]
        self.lse, self.buffer = q.new_full(shape, -torch.inf), q.new_empty(0)
        self.sinks = None if prepared.sinks is None else prepared.sink_scores(q).expand(shape)
        self.entropy = q.new_zeros(shape) if "entropy" in asked else None
        keys = (*shape[:2], prepared.call.keys, 1)
        self.received = torch.zeros(keys, dtype=torch.float64, device=q.device) if "received" in asked else None
        self.largest = LargestScores(prepared, *asked["top"]) if "top" in asked else None
        self.pooled = PooledCells(prepared, *asked["pooled"]) if "pooled" in asked else None
        self.position = [q.new_zeros(shape, dtype=torch.float64) for _ in range(2)] if "distance" in asked else None
        """Mean and spread of the attended position."""
        self.cell_keys = min(MAX_CHUNK_CELL_KEYS, cell_keys(prepared.call))
        self.columns, self.masses = None, None
        if questions.groups is not None:
            columns = group_columns(questions.groups, 0, questions.num_groups).to(q.dtype)
            self.columns, self.masses = pad_columns(columns)[:, None], q.new_zeros(*shape, questions.num_groups)

    def add(self, block: ScoreBlock, scores: Tensor) -> None:
        """Take a chunk of scores, which become weights in their own memory."""
        if self.largest is None:
            highest, peak = scores.max(-1, keepdim=True)
        else:
            highest, peak = (t[..., :1] for t in self.largest.add(block, scores))
        weights = torch.softmax(scores, -1, out=self._buffer_for(scores))
        if block.allowed is not None:
            # A row in which every key is blocked.
            empty = highest == -torch.inf
            highest = highest.masked_fill(empty, 0.0)
            weights.masked_fill_(empty, 0.0)
        # The exponential of the highest score is 1, so its weight is 1 / the sum of the exponentials.
        log_sum = weights.gather(-1, peak).clamp_(min=torch.finfo(scores.dtype).tiny).log_().neg_()
        block.put_queries(self.lse, (highest + log_sum)[..., 0])
        if self.entropy is not None:
            # log(sum) - sum of weight * score.
            scores.sub_(highest)
            if self.prepared.call.mask is not None:
                # A score that low has weight 0, and the -inf of a blocked pair times 0 is not a number.
                scores.clamp_(min=MIN_SCORE)
            block.put_queries(self.entropy, (log_sum - scores.mul_(weights).sum(-1, keepdim=True))[..., 0])
        if self.columns is not None and self.masses is not None:
            # The same columns for every head: its rows stand below those of the others.
            products = grouped_matmul(weights, block.take_keys(self.columns))
            block.put_queries(self.masses, products[..., : self.masses.shape[-1]])
        if self.position is not None:
            for total, part in zip(self.position, attended_position(block.keys, weights, self.cell_keys), strict=True):
                block.put_queries(total, part)
        if self.sinks is not None:
            share = torch.sigmoid(block.take_queries(self.lse) - block.take_queries(self.sinks))
            weights.mul_(share[..., None])
        sums = weights if self.pooled is None else self.pooled.add(block, weights)
        if self.received is not None:
            block.add_to_keys(self.received, sums.sum(-2)[..., None].to(torch.float64))

    def _buffer_for(self, scores: Tensor) -> Tensor:
        """Memory for the weights of a chunk, used again for the next one."""
        if self.buffer.numel() < scores.numel():
            self.buffer = torch.empty_like(scores).flatten()
        return self.buffer[: scores.numel()].view(scores.shape)

    def answers(self, questions: Questions) -> dict[str, Any]:
        """The answers by the names of the questions, after the last chunk."""
        prepared = self.prepared
        found: dict[str, Any] = {}
        lse = prepared.fill_empty(self.lse, -torch.inf)
        if self.entropy is not None:
            found["entropy"] = entropy_with_sinks(prepared, prepared.fill_empty(self.entropy, 0.0).clamp_(min=0.0), lse)
        if self.received is not None:
            found["received"] = self.received[..., 0]
        if self.largest is not None:
            found["top"] = self.largest.weights(prepared.log_denominator(lse))
        if self.pooled is not None:
            found["pooled"] = self.pooled.picture()
        if questions.groups is not None:
            assert self.masses is not None
            share = prepared.row_sums(lse)
            found["mass"] = self.masses if share is None else self.masses * share[..., None]
        if self.position is not None:
            found["distance"] = distance_from_query(prepared, *self.position)
        return found


def ask(inputs: AttentionInputs, questions: Questions) -> dict[str, Any]:
    """The answers by the names of the questions; the lse of the rows is kept for other statistics.

    Args:
        inputs: of the attention; no axis is empty.
        questions: what is asked.
    """
    prepared = prepare(inputs)
    together = _Pass(prepared, questions)
    for block, scores in score_chunks(prepared):
        together.add(block, scores)
    cache_lse(inputs, prepared, together.lse)
    answers = together.answers(questions)
    answers = {name: _in_answer_dtype(answers[name], inputs.answer_dtype) for name in questions.arguments}
    inputs.answer_cache |= {name: answers[name].clone() for name in ("entropy", "received") if name in answers}
    return answers


def _in_answer_dtype(answer: Any, dtype: torch.dtype) -> Any:
    """The tensors of floating point in a dtype; an answer may be a tuple of several tensors."""
    if isinstance(answer, Tensor):
        return answer.to(dtype) if answer.is_floating_point() else answer
    return type(answer)(*(_in_answer_dtype(t, dtype) for t in answer))
