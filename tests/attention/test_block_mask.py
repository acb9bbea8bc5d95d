"""FlexAttention's block mask: every pair as the mask's own definition has it; in a table, equal tiles once."""

from inspect import unwrap

import pytest
import torch

from grids import grid
from regard import mask
from regard.attention.kernels import block_mask as module
from regard.attention.kernels.block_mask import BLOCK, block_mask, lookup_block_mask
from regard.attention.kernels.call import AttentionCall

SIZES = [(1, 1), (128, 128), (129, 300), (300, 129), (257, 640), (1, 513)]


def call_of(m, queries, keys, batch=2, heads=3):
    q, k = torch.randn(batch, heads, queries, 2), torch.randn(batch, heads, keys, 2)
    return AttentionCall.from_inputs(q, k, k, m, scale=1.0)


def masks(queries, keys):
    generator = torch.Generator().manual_seed(queries + keys)
    ids = torch.randint(3, (2, max(queries, keys)), generator=generator)
    return [
        mask.causal(),
        mask.causal(offset=-5),
        mask.window(9, 3),
        mask.window(200) & mask.causal(),
        mask.padding([keys, 1 + keys // 3]),
        mask.documents(ids[:, :queries], ids[:, :keys]),
        mask.documents(ids[:, :queries].sort().values, ids[:, :keys].sort().values) & mask.window(150),
        mask.prefix(keys // 2),
        mask.where(lambda i, j: (i - j) % 2 == 0),
        mask.where(lambda i, j: (i + j) % torch.tensor([1, 2, 3])[:, None, None] == 0),
        mask.allowed(torch.rand(2, 3, queries, keys, generator=generator) < 0.5),
        ~(mask.window(9) | mask.padding([keys, 1])),
        mask.window(3) & ~mask.window(9),  # nothing at all
    ]


@grid(n=range(13), size=range(6), make=[block_mask, lookup_block_mask])
def test_every_pair_is_as_the_mask_has_it(n, size, make):
    queries, keys = SIZES[size]
    m = masks(queries, keys)[n]
    made, expected = make(call_of(m, queries, keys)), m.dense(queries, keys)
    expected = expected[(None,) * (4 - expected.ndim)].expand(2, 3, queries, keys)
    b, h, i, j = torch.meshgrid(*map(torch.arange, expected.shape), indexing="ij")
    assert torch.equal(made.mask_mod(b, h, i, j), expected)
    # The lists of tiles leave no allowed pair out, and call a tile whole only where every pair of it is allowed.
    tiles = torch.nn.functional.pad(expected, (0, -keys % BLOCK, 0, -queries % BLOCK)).unflatten(3, (-1, BLOCK))
    tiles = tiles.unflatten(2, (-1, BLOCK)).transpose(3, 4).flatten(4)
    shape, every = tiles.shape[:4], tiles.all(-1)
    assert torch.equal(listed(made.full_kv_num_blocks, made.full_kv_indices).expand(shape), every)
    assert torch.equal(listed(made.kv_num_blocks, made.kv_indices).expand(shape), tiles.any(-1) & ~every)


def listed(counts, places):
    """Lists of columns as a boolean matrix."""
    among_first = torch.arange(places.shape[-1]) < counts[..., None]
    return torch.zeros(places.shape, dtype=torch.bool).scatter(-1, places.long(), among_first)


@pytest.mark.parametrize(
    ("m", "kinds"),
    [
        (mask.window(256), 2),
        (mask.causal(), 1),
        (mask.where(lambda i, j: (i - j) % 2 == 0), 1),
        (mask.where(lambda i, j: (j <= i) & ((i - j < 256) | (j % 64 == 0))), 3),
        (mask.documents(torch.arange(2048) // 64), 1),
    ],
    ids=["window", "causal", "every other", "strided", "documents"],
)
def test_equal_tiles_are_stored_once(m, kinds, monkeypatch):
    monkeypatch.setattr(module, "MAX_EVALUATED_PAIRS", 2**19)  # in several parts
    function = unwrap(lookup_block_mask(call_of(m, 2048, 2048, 1, 1)).mask_mod)  # of the shape checks
    tables = [cell.cell_contents for cell in function.__closure__]
    (table,) = (t for t in tables if isinstance(t, torch.Tensor) and t.ndim == 3)
    assert len(table) == 2 + kinds  # an empty one and a whole one for all


def test_the_mask_of_a_window_that_was_made_for_inference_can_be_trained_with():
    with torch.inference_mode():
        made = block_mask(call_of(mask.window(7), 300, 300))
    assert not made.kv_indices.is_inference()


def test_tiles_with_one_hash_are_told_apart(monkeypatch):
    monkeypatch.setattr(torch, "randint", lambda *args, **options: torch.zeros(module.WORDS, dtype=torch.int64))
    tiles = torch.eye(3, BLOCK * BLOCK).bool()
    table, place = module._distinct(tiles)
    assert torch.equal(table[place], tiles)
