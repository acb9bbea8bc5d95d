"""One token at a time: what `Greedy` and `Sample` do."""

from __future__ import annotations

from collections.abc import Callable, Iterator

from regard.generation.sampling import Chooser
from regard.generation.session import Reader
from regard.transformer import SpecialTokens

__all__ = ["tokens"]


def tokens(
    reader: Reader,
    prompts: list[list[int]],
    choose: Chooser,
    limit: int,
    special: SpecialTokens,
    ended: Callable[[int, list[int]], bool],
) -> Iterator[dict[int, int]]:
    """The next token of each row that goes on, step by step: row number to token.

    Args:
        reader: at the beginning.
        prompts: what stands in each row so far.
        choose: makes tokens of logits.
        limit: the most new tokens.
        special: stop tokens, and tokens that stand first or last by force.
        ended: whether the new tokens of a row are finished for another reason than a stop token.
    """
    rows = list(range(len(prompts)))
    new: list[list[int]] = [[] for _ in prompts]
    logits = reader.begin()
    for length in range(1, limit + 1):
        forced = special.forced_bos if length == 1 else special.forced_eos if length == limit else None
        if forced is None:
            chosen = choose(logits, [prompts[row] + new[row] for row in rows], rows)
        else:
            chosen = [forced] * len(rows)
        for row, token in zip(rows, chosen, strict=True):
            new[row].append(token)
        yield dict(zip(rows, chosen, strict=True))
        going_on = [at for at, row in enumerate(rows) if new[row][-1] not in special.eos and not ended(row, new[row])]
        if not going_on or length == limit:
            return
        if len(going_on) < len(rows):
            # Rows that are finished are computed no more.
            reader.reorder(going_on, going_on)
            rows = [rows[at] for at in going_on]
        logits = reader.step([new[row][-1] for row in rows])
