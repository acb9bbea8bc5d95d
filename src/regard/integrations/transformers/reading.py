"""A mask function of transformers, read as a `regard.mask.Mask`.

transformers composes the mask of a model from functions of (batch row, head, query position, key position) that it
makes itself, such as ``sliding_window_overlay(4096)``. Their code says which they are, and their closures hold the
numbers. A function from elsewhere becomes `regard.mask.where`, and what it is joined with is still read.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from functools import cache, reduce
from operator import and_, or_
from types import CodeType
from typing import Any

import torch
from torch import Tensor
from transformers import masking_utils

from regard.attention.kernels.schedule import conjuncts
from regard.attention.mask import Mask, causal, documents, where, window
from regard.attention.mask.documents import Documents
from regard.attention.mask.kinds import Band
from regard.attention.plan import MAX_DENSE_PAIRS

MaskFunction = Callable[..., Any]
"""(batch row, head, query position, key position) -> may attend; tensors that broadcast."""


@dataclass(frozen=True)
class Frame:
    """The sizes of a call, and where its queries and keys stand in the sequence."""

    batch: int
    queries: int
    keys: int
    query_start: int
    """The position of the first query in the sequence."""
    key_start: int
    """The position of the first key in the sequence."""
    device: torch.device
    use_vmap: bool = False
    """Whether a function may only be called for one pair, under ``torch.vmap``."""
    packed_ids: Tensor | None = None
    """``(batch, tokens)``: the document of each token, where a function is joined with the mask of documents."""
    position_ids: Tensor | None = None
    """``(batch, tokens)``: the position in its own document that a function sees in place of each position."""

    @property
    def offset(self) -> int | None:
        """The position of the first query among the keys; None if the queries are the last ones."""
        first = self.query_start - self.key_start
        return None if first == self.keys - self.queries else first

    def query_positions(self) -> Tensor:
        """The positions of the queries in the sequence."""
        return torch.arange(self.query_start, self.query_start + self.queries, device=self.device)

    def key_positions(self) -> Tensor:
        """The positions of the keys in the sequence."""
        return torch.arange(self.key_start, self.key_start + self.keys, device=self.device)


Reader = Callable[[dict[str, Any], Frame], "Mask | None"]
"""(the closure of a mask function, the sizes) -> the mask; None blocks nothing."""


class UnreadableError(Exception):
    """A function of transformers with numbers that no mask of regard stands for."""


def read(function: MaskFunction, frame: Frame) -> Mask | None:
    """A mask function of transformers as a mask of regard; None if it blocks nothing.

    A function that is not one of transformers' own becomes a `where` of itself, for these sizes.
    """
    code = getattr(function, "__code__", None)
    reader = _readers().get(code) if isinstance(code, CodeType) else None
    if reader is not None:
        try:
            return reader(_closure(function), frame)
        except (KeyError, UnreadableError):
            pass  # KeyError: another version of transformers has other names in the closure
    return _unread(function, frame)


@cache
def _readers() -> dict[CodeType | None, Reader]:
    """The reader of each function that transformers makes, by the code of the function.

    What this version of transformers does not have, or computes otherwise than the reader expects, is left out: its
    functions become `where`.
    """
    zeros = torch.zeros(1, 8, dtype=torch.int64)
    plain = masking_utils.causal_mask_function
    readers: list[tuple[str, tuple[Any, ...], Reader]] = [
        ("and_masks", (plain, plain), _read_and),
        ("or_masks", (plain, plain), _read_or),
        ("sliding_window_overlay", (3,), _read_window),
        ("sliding_window_bidirectional_overlay", (2,), _read_two_sided_window),
        ("chunked_overlay", (3, torch.tensor([1])), _read_chunks),
        ("blockwise_overlay", (torch.tensor([[0, 0, -1, -1, 1, 1, 1, -1]]),), _read_blocks),
        ("packed_sequence_mask_function", (torch.tensor([[0, 0, 0, 1, 1, 1, 2, 2]]),), _read_documents),
        ("remap_positions_for_packed_sequence", (plain, zeros + torch.arange(8)), _read_remapped),
    ]
    found: list[tuple[MaskFunction, Reader]] = []
    for name, arguments, reader in readers:
        factory = getattr(masking_utils, name, None)
        if factory is not None:
            found.append((factory(*arguments), reader))
    found.append((plain, _read_causal))
    if hasattr(masking_utils, "bidirectional_mask_function"):
        found.append((masking_utils.bidirectional_mask_function, _read_full))
    # The operators first: a check of and_masks reads the function within it.
    return {function.__code__: reader for function, reader in found if _agrees(function, reader)}


def _agrees(function: MaskFunction, reader: Reader) -> bool:
    """Whether a reader gives the mask that its function computes, for a few queries and keys."""
    frame = Frame(1, 8, 8, 0, 0, torch.device("cpu"))
    positions = torch.arange(8)
    if reader in (_read_and, _read_or, _read_remapped):
        return True  # they hold no number themselves, and what they join is checked
    expected = function(torch.zeros(1, 1, dtype=torch.int64), 0, positions[:, None], positions[None, :])
    try:
        mask = reader(_closure(function), frame)
    except (KeyError, TypeError, UnreadableError):
        return False
    dense = torch.ones(8, 8, dtype=torch.bool) if mask is None else mask.dense(8, 8)
    return bool((dense == expected).all())


def dense_mask(
    function: MaskFunction,
    batch: int,
    sizes: tuple[int, int],
    starts: tuple[int | Tensor, int],
    *,
    attention_mask: Tensor | None = None,
    use_vmap: bool,
    device: torch.device | str,
) -> Tensor:
    """A mask function as transformers itself evaluates it, ``(batch, 1, queries, keys)``.

    Args:
        function: the mask function.
        batch: number of batch rows.
        sizes: the numbers of queries and keys.
        starts: the position of the first query and of the first key.
        attention_mask: ``(batch, tokens)``, True = a real token.
        use_vmap: whether the function may only be called for one pair.
        device: the device of the result.
    """
    t = masking_utils.sdpa_mask(
        batch_size=batch,
        q_length=sizes[0],
        kv_length=sizes[1],
        q_offset=starts[0],  # type: ignore[arg-type]  # a static cache counts its tokens in a tensor
        kv_offset=starts[1],
        mask_function=function,
        attention_mask=attention_mask,
        allow_is_causal_skip=False,
        use_vmap=use_vmap,
        device=device,
    )
    assert t is not None  # as None stands for a mask that may be skipped
    return t


def _closure(function: MaskFunction) -> dict[str, Any]:
    """The variables that a function has from the one that made it, by name."""
    cells = function.__closure__ or ()
    return dict(zip(function.__code__.co_freevars, (cell.cell_contents for cell in cells), strict=True))


def _read_causal(_: dict[str, Any], frame: Frame) -> Mask | None:
    return _simplified(causal(frame.offset), frame)


def _read_full(_: dict[str, Any], frame: Frame) -> Mask | None:
    return None


def _read_window(closure: dict[str, Any], frame: Frame) -> Mask | None:
    first, width = frame.query_start - frame.key_start, _whole(closure["sliding_window"])
    if width < 1:
        raise UnreadableError  # it blocks every key; some models make such a mask and use it in no layer
    # It blocks no later key: the causal mask beside it does.
    return _simplified(window(width, max(0, frame.keys - first), offset=frame.offset), frame)


def _read_two_sided_window(closure: dict[str, Any], frame: Frame) -> Mask | None:
    distance = _whole(closure["sliding_window"])
    return _simplified(window(distance + 1, distance, offset=frame.offset), frame)


def _read_chunks(closure: dict[str, Any], frame: Frame) -> Mask | None:
    size, padded = _whole(closure["chunk_size"]), closure["left_padding"][:, None]
    if frame.position_ids is None:
        return _same_id((frame.query_positions() - padded) // size, (frame.key_positions() - padded) // size, frame)
    ids = (frame.position_ids - padded) // size
    return _same_id(ids, ids, frame)


def _read_blocks(closure: dict[str, Any], frame: Frame) -> Mask | None:
    if frame.position_ids is not None:
        raise UnreadableError
    ids = closure["block_sequence_ids"]
    queries, keys = ids[:, _within(frame.query_positions(), ids)], ids[:, _within(frame.key_positions(), ids)]
    # Tokens outside of every block see nothing: they get two ids that no other token has.
    return _same_id(queries.masked_fill(queries < 0, -1), keys.masked_fill(keys < 0, -2), frame)


def _read_documents(closure: dict[str, Any], frame: Frame) -> Mask | None:
    ids = closure["packed_sequence_mask"]
    return _same_id(ids[:, _within(frame.query_positions(), ids)], ids[:, _within(frame.key_positions(), ids)], frame)


def _read_remapped(closure: dict[str, Any], frame: Frame) -> Mask | None:
    position_ids, ids = closure["position_ids"], frame.packed_ids
    tokens = position_ids.shape[-1]
    square = (frame.queries, frame.keys, frame.query_start, frame.key_start) == (tokens, tokens, 0, 0)
    if frame.position_ids is not None or ids is None or not square:
        raise UnreadableError
    # Within a document, two positions are as far apart as their tokens: a window of the one is a window of the other.
    new_document = ids.diff(dim=-1)
    if not bool((((position_ids.diff(dim=-1) == 1) | (new_document != 0)) & (new_document >= 0)).all()):
        raise UnreadableError
    return read(closure["mask_function"], replace(frame, position_ids=position_ids))


def _read_and(closure: dict[str, Any], frame: Frame) -> Mask | None:
    functions = closure["mask_functions"]
    for function in functions:
        if _readers().get(getattr(function, "__code__", None)) is _read_documents:
            frame = replace(frame, packed_ids=_closure(function)["packed_sequence_mask"])
    parts = [part for function in functions for part in conjuncts(read(function, frame))]
    if not parts:
        return None
    bands = [part for part in parts if isinstance(part, Band)]
    packed = [part for part in parts if isinstance(part, Documents)]
    others = [part for part in parts if not isinstance(part, Band | Documents)]
    merged = [_merged_bands(bands)] if bands else []
    return reduce(and_, [*([_merged_documents(packed)] if packed else []), *merged, *others])


def _read_or(closure: dict[str, Any], frame: Frame) -> Mask | None:
    parts = [read(function, frame) for function in closure["mask_functions"]]
    return None if any(part is None for part in parts) else reduce(or_, [part for part in parts if part is not None])


def _merged_bands(bands: Sequence[Band]) -> Band:
    """Windows and causal masks of one frame as one: ``causal() & window(4, 9)`` is ``window(4)``."""
    widths = [band.before for band in bands if band.before is not None]
    return Band(min(widths) if widths else None, min(band.after for band in bands), bands[0].offset)


def _merged_documents(packed: Sequence[Documents]) -> Documents:
    """Documents and chunks as one: each chunk of a document is a document of its own."""
    merged = packed[0]
    for other in packed[1:]:
        merged = _pairs(merged, other)
    return merged


def _pairs(a: Documents, b: Documents) -> Documents:
    """Documents whose tokens share both ids."""
    if a.keys is None and b.keys is None:
        both = torch.broadcast_tensors(a.ids, b.ids)  # type: ignore[no-untyped-call]
        return Documents(_numbered(*both))
    sides = ((t.ids, t.ids if t.keys is None else t.keys) for t in (a, b))
    (a_queries, a_keys), (b_queries, b_keys) = sides
    queries = torch.broadcast_tensors(a_queries, b_queries)  # type: ignore[no-untyped-call]
    keys = torch.broadcast_tensors(a_keys, b_keys)  # type: ignore[no-untyped-call]
    if queries[0].ndim != keys[0].ndim:
        raise UnreadableError
    ids = _numbered(*(torch.cat(pair, -1) for pair in zip(queries, keys, strict=True)))
    count = queries[0].shape[-1]
    return Documents(ids[..., :count], ids[..., count:])


def _numbered(a: Tensor, b: Tensor) -> Tensor:
    """One id for each pair of ids."""
    low, high = int(b.min()), int(b.max())
    return a * (high - low + 1) + (b - low)


def _same_id(queries: Tensor, keys: Tensor, frame: Frame) -> Mask | None:
    """The mask under which tokens with the same id see one another."""
    # One row of ids serves all batch rows that have the same.
    queries, keys = (t.to(device=frame.device, dtype=torch.int64) for t in (queries, keys))
    if len(queries) and bool((queries == queries[0]).all()) and bool((keys == keys[0]).all()):
        queries, keys = queries[0], keys[0]
    if bool((queries == keys[..., :1]).all()) and bool((keys == keys[..., :1]).all()):
        return None
    same_tokens = (frame.queries, frame.query_start) == (frame.keys, frame.key_start)
    return documents(queries) if same_tokens and torch.equal(queries, keys) else documents(queries, keys)


def _within(positions: Tensor, ids: Tensor) -> Tensor:
    """Positions that have an id; a function that has none for a position cannot be read there."""
    if len(positions) and int(positions[-1]) >= ids.shape[-1]:
        raise UnreadableError
    return positions.to(ids.device)


def _simplified(band: Mask, frame: Frame) -> Mask | None:
    """A window without the sides that block nothing; None if it blocks nothing at all."""
    assert isinstance(band, Band)
    first = frame.query_start - frame.key_start
    before = None if band.before is not None and band.before >= first + frame.queries else band.before
    if before is None and band.after >= frame.keys - 1 - first:
        return None
    return replace(band, before=before)


def _whole(number: Any) -> int:
    """A window or chunk as a whole number."""
    if isinstance(number, bool) or not isinstance(number, int):
        raise UnreadableError
    return number


def _unread(function: MaskFunction, frame: Frame) -> Mask:
    """`where` of a mask function: it is called as transformers calls it, for the positions of a tile."""
    if frame.position_ids is not None:
        inner, ids = function, frame.position_ids
        function = masking_utils.remap_positions_for_packed_sequence(inner, ids)
    evaluated: dict[tuple[int, ...], Tensor] = {}

    def tile(query: Tensor, key: Tensor) -> Tensor:
        if query.ndim < 2:
            raise TypeError("a mask function of transformers is called for a tile")
        place = int(query[0, 0]), len(query), int(key[0, 0]), key.shape[-1]
        if place not in evaluated:
            starts = place[0] + frame.key_start, place[2] + frame.key_start
            mask = dense_mask(
                function, frame.batch, (place[1], place[3]), starts, use_vmap=frame.use_vmap, device=frame.device
            )
            if mask.numel() > MAX_DENSE_PAIRS or evaluated:
                return mask.to(query.device)
            evaluated[place] = mask  # once for all layers of the model
        return evaluated[place].to(query.device)

    tile.__name__ = getattr(function, "__qualname__", type(function).__name__).split(".<locals>")[0]
    return where(tile, offset=frame.offset)
