"""The tokens at the queries and the keys of a map: those of one text, or a list for each text of a batch."""

from __future__ import annotations

from collections.abc import Sequence

Tokens = list[str] | list[list[str]]


def is_single_text(tokens: Tokens) -> bool:
    """Whether these are the tokens of one text."""
    return not tokens or isinstance(tokens[0], str)


def token_lists(tokens: Tokens) -> list[list[str]]:
    """The tokens of each text; one list if there is one text."""
    return [tokens] if is_single_text(tokens) else tokens  # type: ignore[list-item, return-value]


def text_tokens(tokens: Tokens, batch: int) -> list[str]:
    """The tokens of one text of the batch."""
    return tokens if is_single_text(tokens) else tokens[batch]  # type: ignore[return-value]


def check_tokens(shape: Sequence[int], queries: Tokens, keys: Tokens | None) -> tuple[Tokens, Tokens]:
    """The tokens of the queries and of the keys of a map of this shape; the keys' are the queries' if not given.

    Raises:
        ValueError: lists of another length than the map.
    """
    keys = queries if keys is None else keys
    for name, tokens, size in (("queries", queries, shape[2]), ("keys", keys, shape[3])):
        lists = token_lists(tokens)
        if len(lists) != shape[0]:
            raise ValueError(f"label({name}=) holds {len(lists)} lists of tokens; the map has {shape[0]} batch rows")
        for row, text in enumerate(lists):
            if len(text) != size:
                raise ValueError(f"label({name}=): {len(text)} tokens of batch row {row}; the map has {size} {name}")
    return queries, keys


def token_counts(queries: Tokens, keys: Tokens | None) -> str:
    """The numbers of tokens, for a message."""
    texts = []
    for tokens in [queries] if keys is None else [queries, keys]:
        counts = [len(text) for text in token_lists(tokens)]
        texts.append(f"{counts[0]} tokens" if is_single_text(tokens) else f"{counts} tokens of {len(tokens)} texts")
    return " and ".join(texts)
