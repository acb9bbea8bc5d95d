"""Every kind of edit, twice: as `regard.intervene` takes it, and as the attention by hand does."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor

from lens.interventions.by_hand import Attended, Edit
from regard import mask, positions
from regard.lens import Recording


@dataclass(frozen=True)
class Site:
    """One attention, and what it did in other passes of the model."""

    path: str
    shape: tuple[int, int, int, int]
    """Batch, heads, queries, keys."""
    recordings: Sequence[Recording] = ()
    attended: Sequence[Attended] = ()
    """The same passes by hand."""

    def edit(self, **fields: Any) -> Edit:
        """An edit of this attention by hand."""
        return Edit(self.path, **fields)

    def random(self, *shape: int) -> Tensor:
        """Random numbers, the same each time."""
        return torch.randn(shape, generator=torch.Generator().manual_seed(5), dtype=torch.float64)


def first_sites(recordings: Sequence[Recording], attended: Sequence[dict[str, Attended]]) -> list[Site]:
    """The first attention of each kind in each stack.

    Args:
        recordings: of some passes of a model.
        attended: the same passes by hand.
    """
    first: dict[tuple[str, str], Site] = {}
    for path in recordings[0]:
        entry = recordings[0].entry(path)
        batch, heads, queries, keys = entry.map().shape
        site = Site(path, (batch, heads, queries, keys), recordings, [calls[path] for calls in attended])
        first.setdefault((entry.kind, path.split(".")[0]), site)
    return list(first.values())


@dataclass(frozen=True)
class Kind:
    """What is done to one attention: of `regard.intervene` at its path, and by hand."""

    write: Callable[[Any, Site], Any]
    by_hand: Callable[[Site], Edit | list[Edit]]

    def __call__(self, at: Any, site: Site) -> list[Edit]:
        """Writes the edit; returns that by hand."""
        self.write(at, site)
        edits = self.by_hand(site)
        return edits if isinstance(edits, list) else [edits]


def each_of_two(site: Site, batch: list[int], heads: list[int], **tensors: Tensor) -> list[Edit]:
    """Edits of two rows and two heads with a part of (2, 2, queries, keys) each."""
    return [
        site.edit(batch=[row], heads=[head], **{name: t[n, m] for name, t in tensors.items()})
        for n, row in enumerate(batch)
        for m, head in enumerate(heads)
    ]


def some_pairs(s: Site, *lead: int) -> Tensor:
    """Pairs of queries and keys, most of them allowed, for each of some rows and heads."""
    return s.random(*lead, *s.shape[2:]) > -0.5


def distances(s: Site) -> Tensor:
    """How far each key stands before a query, where the last of both are the same token."""
    queries, keys = s.shape[2:]
    return torch.arange(queries)[:, None] + keys - queries - torch.arange(keys)


def last_three(s: Site) -> Tensor:
    """The key of each query's own place and the two before it."""
    return (distances(s) >= 0) & (distances(s) < 3)


def alibi(s: Site) -> Tensor:
    """Press et al. 2022, section 3."""
    slopes = torch.tensor([2.0 ** (-2 * (head + 1)) for head in range(4)], dtype=torch.float64)
    return -slopes[:, None, None] * distances(s).abs()


def write_many(at: Any, s: Site) -> None:
    at.heads[3].ablate("zero")
    at.heads[0].patch(s.recordings[0], "values")
    at.scale(0.7)
    at.heads[:2].scale(1.6)
    at.heads[1].bias(s.random(*s.shape[2:]))
    at.block(queries=[-1], keys=[-2])
    at.mask(mask.window(3))
    at.batch[0].heads[2].ablate("mean", s.recordings[0])


def many_by_hand(s: Site) -> list[Edit]:
    return [
        s.edit(heads=[3], zero=True),
        s.edit(heads=[0], v=s.attended[0].v),
        s.edit(factor=0.7),
        s.edit(heads=[0, 1], factor=1.6),
        s.edit(heads=[1], bias=s.random(*s.shape[2:])),
        s.edit(blocked=([-1], [-2])),
        s.edit(allowed=last_three(s)),
        s.edit(batch=[0], heads=[2], constant=s.attended[0].output.mean((0, 2))),
    ]


PARTS = {"weights": "weights", "values": "v", "queries": "q", "keys": "k"}
"""Parts of an attention that can be patched beside its output, and their names by hand."""


def patch(part: str, field: str) -> Kind:
    return Kind(
        lambda at, s: at.batch[1].heads[1].patch(s.recordings[0], part),
        lambda s: s.edit(batch=[1], heads=[1], **{field: getattr(s.attended[0], field)}),
    )


KINDS: dict[str, Kind] = {
    "zero": Kind(lambda at, s: at.heads[1].ablate("zero"), lambda s: s.edit(heads=[1], zero=True)),
    "zero of some heads": Kind(
        lambda at, s: at.heads[[0, 3]].ablate("zero"),
        lambda s: s.edit(heads=[0, 3], zero=True),
    ),
    "zero of a slice in the last row": Kind(
        lambda at, s: at.batch[-1].heads[:2].ablate("zero"),
        lambda s: s.edit(batch=[-1], heads=[0, 1], zero=True),
    ),
    "zero of all heads": Kind(lambda at, s: at.ablate("zero"), lambda s: s.edit(zero=True)),
    "mean": Kind(lambda at, s: at.heads[2].ablate("mean"), lambda s: s.edit(heads=[2], mean=True)),
    "mean in one row": Kind(
        lambda at, s: at.batch[0].heads[1].ablate("mean"),
        lambda s: s.edit(batch=[0], heads=[1], mean=True),
    ),
    "mean of a recording": Kind(
        lambda at, s: at.heads[1].ablate("mean", s.recordings[0]),
        lambda s: s.edit(heads=[1], constant=s.attended[0].output.mean((0, 2))),
    ),
    "mean of recordings": Kind(
        lambda at, s: at.heads[:2].ablate("mean", list(s.recordings)),
        lambda s: s.edit(heads=[0, 1], constant=torch.cat([a.output for a in s.attended]).mean((0, 2))),
    ),
    "block": Kind(lambda at, s: at.block([-1], [-2, -3]), lambda s: s.edit(blocked=([-1], [-2, -3]))),
    # In a causal model the first query has no key left.
    "block for every query": Kind(lambda at, s: at.block(keys=[0]), lambda s: s.edit(blocked=(None, [0]))),
    "block in one head of one row": Kind(
        lambda at, s: at.batch[0].heads[2].block([5, -1], [3, 4, -2]),
        lambda s: s.edit(batch=[0], heads=[2], blocked=([5, -1], [3, 4, -2])),
    ),
    "block every key": Kind(
        lambda at, s: at.heads[::2].block([-1, 3]),
        lambda s: s.edit(heads=[0, 2], blocked=([-1, 3], range(s.shape[3]))),
    ),
    "mask": Kind(lambda at, s: at.mask(mask.window(3)), lambda s: s.edit(allowed=last_three(s))),
    "mask of one head": Kind(
        lambda at, s: at.heads[3].mask(mask.allowed(some_pairs(s))),
        lambda s: s.edit(heads=[3], allowed=some_pairs(s)),
    ),
    "mask of some heads in some rows": Kind(
        lambda at, s: at.batch[[0, 2]].heads[[1, 3]].mask(mask.allowed(some_pairs(s, 2, 2))),
        lambda s: each_of_two(s, [0, 2], [1, 3], allowed=some_pairs(s, 2, 2)),
    ),
    "scale": Kind(lambda at, s: at.scale(0.5), lambda s: s.edit(factor=0.5)),
    "scale of 0": Kind(lambda at, s: at.heads[2].scale(0), lambda s: s.edit(heads=[2], factor=0.0)),
    "scale of one head": Kind(lambda at, s: at.heads[0].scale(-1.5), lambda s: s.edit(heads=[0], factor=-1.5)),
    "bias": Kind(lambda at, s: at.bias(s.random(*s.shape[2:])), lambda s: s.edit(bias=s.random(*s.shape[2:]))),
    "position bias": Kind(lambda at, s: at.bias(positions.ALiBi(4)), lambda s: s.edit(bias=alibi(s))),
    "bias of each head and row": Kind(
        lambda at, s: at.bias(s.random(*s.shape)),
        lambda s: s.edit(bias=s.random(*s.shape)),
    ),
    "bias of some heads in some rows": Kind(
        lambda at, s: at.batch[1:].heads[[0, -1]].bias(s.random(2, 2, *s.shape[2:])),
        lambda s: each_of_two(s, [1, 2], [0, 3], bias=s.random(2, 2, *s.shape[2:])),
    ),
    "patch output": Kind(
        lambda at, s: at.heads[0].patch(s.recordings[0]),
        lambda s: s.edit(heads=[0], output=s.attended[0].output),
    ),
    "patch output of some queries": Kind(
        lambda at, s: at.heads[[1, 2]].patch(s.recordings[0], "output", queries=[0, -1]),
        lambda s: s.edit(heads=[1, 2], output=s.attended[0].output, rows=[0, -1]),
    ),
    "patch output of one row": Kind(
        lambda at, s: at.batch[1].patch(s.recordings[0]),
        lambda s: s.edit(batch=[1], output=s.attended[0].output),
    ),
    **{f"patch {part}": patch(part, field) for part, field in PARTS.items()},
    "patch keys and values of all heads": Kind(
        lambda at, s: [at.patch(s.recordings[0], part) for part in ("keys", "values")],
        lambda s: s.edit(k=s.attended[0].k, v=s.attended[0].v),
    ),
    # Of different heads, and of scores one after another.
    "many": Kind(write_many, many_by_hand),
}
NEEDS_SCORES = {name for name in KINDS if name.startswith(("scale", "patch queries", "patch keys"))} | {"many"}
"""Those that a model must show its queries and keys for, which eager attention does not."""
