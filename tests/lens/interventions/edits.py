"""Every kind of edit, twice: as `regard.intervene` takes it, and as the attention by hand does."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor

from lens.interventions.by_hand import Attended, Edit
from regard import mask
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


def _zero(at: Any, site: Site) -> list[Edit]:
    at.heads[1].ablate("zero")
    return [site.edit(heads=[1], zero=True)]


def _zero_of_some_heads(at: Any, site: Site) -> list[Edit]:
    at.heads[[0, 3]].ablate("zero")
    return [site.edit(heads=[0, 3], zero=True)]


def _zero_of_a_slice_in_the_last_row(at: Any, site: Site) -> list[Edit]:
    at.batch[-1].heads[:2].ablate("zero")
    return [site.edit(batch=[-1], heads=[0, 1], zero=True)]


def _zero_of_all_heads(at: Any, site: Site) -> list[Edit]:
    at.ablate("zero")
    return [site.edit(zero=True)]


def _mean(at: Any, site: Site) -> list[Edit]:
    at.heads[2].ablate("mean")
    return [site.edit(heads=[2], mean=True)]


def _mean_in_one_row(at: Any, site: Site) -> list[Edit]:
    at.batch[0].heads[1].ablate("mean")
    return [site.edit(batch=[0], heads=[1], mean=True)]


def _mean_of_a_recording(at: Any, site: Site) -> list[Edit]:
    at.heads[1].ablate("mean", site.recordings[0])
    return [site.edit(heads=[1], constant=site.attended[0].output.mean((0, 2)))]


def _mean_of_recordings(at: Any, site: Site) -> list[Edit]:
    at.heads[:2].ablate("mean", list(site.recordings))
    outputs = torch.cat([attended.output for attended in site.attended])
    return [site.edit(heads=[0, 1], constant=outputs.mean((0, 2)))]


def _block(at: Any, site: Site) -> list[Edit]:
    at.block(queries=[-1], keys=[-2, -3])
    return [site.edit(blocked=([-1], [-2, -3]))]


def _block_for_every_query(at: Any, site: Site) -> list[Edit]:
    """In a causal model the first query has no key left."""
    at.block(keys=[0])
    return [site.edit(blocked=(None, [0]))]


def _block_in_one_head_of_one_row(at: Any, site: Site) -> list[Edit]:
    at.batch[0].heads[2].block(queries=[5, -1], keys=[3, 4, -2])
    return [site.edit(batch=[0], heads=[2], blocked=([5, -1], [3, 4, -2]))]


def _block_every_key(at: Any, site: Site) -> list[Edit]:
    """No key is left to two queries."""
    at.heads[::2].block(queries=[-1, 3])
    return [site.edit(heads=[0, 2], blocked=([-1, 3], range(site.shape[3])))]


def _mask(at: Any, site: Site) -> list[Edit]:
    at.mask(mask.window(3))
    distance = torch.arange(site.shape[2])[:, None] + site.shape[3] - site.shape[2] - torch.arange(site.shape[3])
    return [site.edit(allowed=(distance >= 0) & (distance < 3))]


def _mask_of_one_head(at: Any, site: Site) -> list[Edit]:
    allowed = site.random(*site.shape[2:]) > -0.5
    at.heads[3].mask(mask.allowed(allowed))
    return [site.edit(heads=[3], allowed=allowed)]


def _mask_of_some_heads_in_some_rows(at: Any, site: Site) -> list[Edit]:
    """A mask for each head and row that is named."""
    allowed = site.random(2, 2, *site.shape[2:]) > -0.5
    at.batch[[0, 2]].heads[[1, 3]].mask(mask.allowed(allowed))
    return _each_of_two(site, [0, 2], [1, 3], allowed=allowed)


def _each_of_two(site: Site, batch: list[int], heads: list[int], **tensors: Tensor) -> list[Edit]:
    """Edits of two rows and two heads with a part of (2, 2, queries, keys) each."""
    return [
        site.edit(batch=[row], heads=[head], **{name: t[n, m] for name, t in tensors.items()})
        for n, row in enumerate(batch)
        for m, head in enumerate(heads)
    ]


def _scale(at: Any, site: Site) -> list[Edit]:
    at.scale(0.5)
    return [site.edit(factor=0.5)]


def _scale_of_one_head(at: Any, site: Site) -> list[Edit]:
    at.heads[0].scale(-1.5)
    return [site.edit(heads=[0], factor=-1.5)]


def _bias(at: Any, site: Site) -> list[Edit]:
    bias = site.random(*site.shape[2:])
    at.bias(bias)
    return [site.edit(bias=bias)]


def _bias_of_each_head_and_row(at: Any, site: Site) -> list[Edit]:
    bias = site.random(*site.shape)
    at.bias(bias)
    return [site.edit(bias=bias)]


def _bias_of_some_heads_in_some_rows(at: Any, site: Site) -> list[Edit]:
    bias = site.random(2, 2, *site.shape[2:])
    at.batch[1:].heads[[0, -1]].bias(bias)
    return _each_of_two(site, [1, 2], [0, 3], bias=bias)


def _patch_output(at: Any, site: Site) -> list[Edit]:
    at.heads[0].patch(site.recordings[0])
    return [site.edit(heads=[0], output=site.attended[0].output)]


def _patch_output_of_some_queries(at: Any, site: Site) -> list[Edit]:
    at.heads[[1, 2]].patch(site.recordings[0], "output", queries=[0, -1])
    return [site.edit(heads=[1, 2], output=site.attended[0].output, rows=[0, -1])]


def _patch_output_of_one_row(at: Any, site: Site) -> list[Edit]:
    at.batch[1].patch(site.recordings[0])
    return [site.edit(batch=[1], output=site.attended[0].output)]


def _patch_weights(at: Any, site: Site) -> list[Edit]:
    at.heads[0].patch(site.recordings[0], "weights")
    return [site.edit(heads=[0], weights=site.attended[0].weights)]


def _patch_values(at: Any, site: Site) -> list[Edit]:
    at.heads[1].patch(site.recordings[0], "values")
    return [site.edit(heads=[1], v=site.attended[0].v)]


def _patch_queries(at: Any, site: Site) -> list[Edit]:
    at.heads[1].patch(site.recordings[0], "queries")
    return [site.edit(heads=[1], q=site.attended[0].q)]


def _patch_keys(at: Any, site: Site) -> list[Edit]:
    at.heads[1].patch(site.recordings[0], "keys")
    return [site.edit(heads=[1], k=site.attended[0].k)]


def _patch_keys_and_values_of_all_heads(at: Any, site: Site) -> list[Edit]:
    at.patch(site.recordings[0], "keys")
    at.patch(site.recordings[0], "values")
    return [site.edit(k=site.attended[0].k, v=site.attended[0].v)]


def _many(at: Any, site: Site) -> list[Edit]:
    """Edits of different heads, and edits of scores one after another."""
    bias = site.random(*site.shape[2:])
    at.heads[3].ablate("zero")
    at.heads[0].patch(site.recordings[0], "values")
    at.scale(0.7)
    at.heads[:2].scale(1.6)
    at.heads[1].bias(bias)
    at.block(queries=[-1], keys=[-2])
    at.batch[0].heads[2].ablate("mean", site.recordings[0])
    constant = site.attended[0].output.mean((0, 2))
    return [
        site.edit(heads=[3], zero=True),
        site.edit(heads=[0], v=site.attended[0].v),
        site.edit(factor=0.7),
        site.edit(heads=[0, 1], factor=1.6),
        site.edit(heads=[1], bias=bias),
        site.edit(blocked=([-1], [-2])),
        site.edit(batch=[0], heads=[2], constant=constant),
    ]


KINDS: dict[str, Callable[[Any, Site], list[Edit]]] = {
    function.__name__.strip("_").replace("_", " "): function
    for function in (
        _zero,
        _zero_of_some_heads,
        _zero_of_a_slice_in_the_last_row,
        _zero_of_all_heads,
        _mean,
        _mean_in_one_row,
        _mean_of_a_recording,
        _mean_of_recordings,
        _block,
        _block_for_every_query,
        _block_in_one_head_of_one_row,
        _block_every_key,
        _mask,
        _mask_of_one_head,
        _mask_of_some_heads_in_some_rows,
        _scale,
        _scale_of_one_head,
        _bias,
        _bias_of_each_head_and_row,
        _bias_of_some_heads_in_some_rows,
        _patch_output,
        _patch_output_of_some_queries,
        _patch_output_of_one_row,
        _patch_weights,
        _patch_values,
        _patch_queries,
        _patch_keys,
        _patch_keys_and_values_of_all_heads,
        _many,
    )
}
"""What is done to one attention: of `regard.intervene` at its path, and by hand, which is returned."""
NEEDS_SCORES = {name for name in KINDS if name.startswith(("scale", "patch queries", "patch keys"))} | {"many"}
"""Those that a model must show its queries and keys for, which eager attention does not."""
