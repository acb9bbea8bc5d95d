"""The options `--layer` and `--head`: lists of layers and heads, spelled alike in every command."""

from __future__ import annotations

from regard.errors import InputError

MAX_INDEX_DIGITS = 4
"""The most digits in the number of a layer or head."""

Heads = list[int] | list[tuple[int, int]]
"""Numbers of heads in each layer, or (layer, head)."""


def parse_layers_and_heads(layer: str | None, head: str | None) -> tuple[list[int] | None, Heads | None]:
    """The layers and heads that a user names; None for an option that was not given.

    Args:
        layer: of ``--layer``.
        head: of ``--head``.

    Raises:
        InputError: no such lists; a head of a layer that is not among the layers.
    """
    layers = None if layer is None else _parse_layers(layer)
    heads = None if head is None else _parse_heads(head)
    for each in heads or ():
        if layers is not None and isinstance(each, tuple) and each[0] not in layers:
            raise InputError(f"--head {head}: layer {each[0]} is not among those of --layer {layer}")
    return layers, heads


def parse_one_head(layer: str | None, head: str | None) -> tuple[int | None, int | None]:
    """One layer and one head, either of them or none.

    Raises:
        InputError: no such lists; several layers or heads.
    """
    layers, heads = parse_layers_and_heads(layer, head)
    if layers is not None and len(layers) > 1:
        raise InputError(f"--layer {layer}: one head is shown, so give one layer, such as {layers[0]}")
    if heads is not None and len(heads) > 1:
        raise InputError(f"--head {head}: one head is shown, so give one, such as --layer 3 --head 1 or --head 3.1")
    one_layer = None if layers is None else layers[0]
    if heads is None:
        return one_layer, None
    (one_head,) = heads
    return one_head if isinstance(one_head, tuple) else (one_layer, one_head)


def _parse_layers(text: str) -> list[int]:
    numbers = _parse_numbers(text)
    if numbers is None:
        raise InputError(f"--layer {text}: numbers from 0 and ranges of them, such as 0,3-5")
    return numbers


def _parse_heads(text: str) -> Heads:
    if "." not in text:
        numbers = _parse_numbers(text)
    else:
        pairs = [part.strip().partition(".") for part in text.split(",")]
        if all(_is_index(layer) and _is_index(head) for layer, _, head in pairs):
            return [(int(layer), int(head)) for layer, _, head in pairs]
        numbers = None
    if numbers is None:
        raise InputError(
            f"--head {text}: LAYER.HEAD, such as 3.1,4.0, or numbers and ranges of them for each layer, such as 0-3"
        )
    return numbers


def _parse_numbers(text: str) -> list[int] | None:
    """The numbers of a list such as "0,3-5", sorted; None if it is no such list."""
    numbers: set[int] = set()
    for part in text.split(","):
        first, dash, last = part.strip().partition("-")
        last = last if dash else first
        if not (_is_index(first) and _is_index(last)) or int(first) > int(last):
            return None
        numbers.update(range(int(first), int(last) + 1))
    return sorted(numbers)


def _is_index(text: str) -> bool:
    return text.isascii() and text.isdecimal() and len(text) <= MAX_INDEX_DIGITS
