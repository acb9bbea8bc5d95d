"""The decoding loop of `Greedy` and `Sample`: one token per step and row."""

from __future__ import annotations

from collections.abc import Callable, Iterator

from regard.generation.sampling import TokenSelector
from regard.generation.session import DecodeSession
from regard.transformer import SpecialTokens


def decode_tokens(
    session: DecodeSession,
    prompts: list[list[int]],
    select_tokens: TokenSelector,
    max_new_tokens: int,
    special_tokens: SpecialTokens,
    is_finished: Callable[[int, list[int]], bool],
) -> Iterator[dict[int, int]]:
    """The next token of each unfinished row, step by step, as ``{row: token}``.

    Args:
        session: before its prefill.
        prompts: the tokens that each row begins with.
        select_tokens: chooses tokens from logits.
        max_new_tokens: the most new tokens of a row.
        special_tokens: stop tokens, and forced first and last tokens.
        is_finished: whether the new tokens of a row end it for another reason than a stop token.
    """
    rows = list(range(len(prompts)))
    new: list[list[int]] = [[] for _ in prompts]
    logits = session.prefill()
    for length in range(1, max_new_tokens + 1):
        forced = (
            special_tokens.forced_bos
            if length == 1
            else special_tokens.forced_eos
            if length == max_new_tokens
            else None
        )
        if forced is None:
            next_tokens = select_tokens(logits, [prompts[row] + new[row] for row in rows], rows)
        else:
            next_tokens = [forced] * len(rows)
        for row, token in zip(rows, next_tokens, strict=True):
            new[row].append(token)
        yield dict(zip(rows, next_tokens, strict=True))
        unfinished = [
            n for n, row in enumerate(rows) if new[row][-1] not in special_tokens.eos and not is_finished(row, new[row])
        ]
        if not unfinished or length == max_new_tokens:
            return
        if len(unfinished) < len(rows):
            # Finished rows leave the batch.
            session.reorder(unfinished, unfinished)
            rows = [rows[n] for n in unfinished]
        logits = session.decode([new[row][-1] for row in rows])
