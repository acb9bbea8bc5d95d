"""The payload of a head: what a page computes its rows from. Queries, keys, values, mask, bias and sink."""

from __future__ import annotations

import torch
from torch import Tensor

from regard._shapes import Bool
from regard.attention.bias import PositionBias
from regard.attention.kernels.schedule import band_ranges
from regard.attention.mask import Mask
from regard.attention.mask.geometry import Tile
from regard.lens.maps.map import AttentionMap
from regard.views.html.codec import ArrayRef, BinaryPack, gzip_bytes
from regard.views.html.quantization import MapQuantization

MAX_EXACT_WEIGHTS = 2**22
"""A page computes all weights of a map up to this number (static/core/data.js); a larger map brings its margins."""

MAX_MASK_PAIRS = 2**24
"""A mask that is no range of keys takes a bit for each pair of query and key, up to this number of pairs."""

MAX_BIAS_PAIRS = 2**20
"""A bias that is no function of the distance takes a number for each pair, up to this number of pairs."""

BIAS_AS_MASK = -1e4
"""A bias at or below this number is a mask."""

PAIRS_PER_TILE = 2**24
"""The pairs of a mask that are in memory at a time."""


class PayloadWriter:
    """Writes the payload of one attention, head by head.

    Args:
        quantization: of its map.
        pack: the numbers of the page.
        bound: the bound on the error of the page's weights.
        rows: the queries to write; all if not given.
        values: whether to write the values.
    """

    def __init__(
        self,
        quantization: MapQuantization,
        pack: BinaryPack,
        bound: float,
        rows: Tensor | None = None,
        *,
        values: bool = True,
    ) -> None:
        self.m, self.quantization, self.pack, self.bound, self.rows = quantization.m, quantization, pack, bound, rows
        self.v = quantization.v if values else None
        self.kv_heads: list[dict[str, ArrayRef | None]] = []
        self._kv_index: dict[int, int] = {}
        self._steps = quantization.steps(bound).tolist()
        self._margin_tensors: tuple[Tensor, Tensor, Tensor] | None = None

    def head(self, head: int) -> dict[str, object]:
        """Write one head.

        Args:
            head: its index in the map.

        Returns:
            `Payload` in static/core/data.js.
        """
        m, pack, rows = self.m, self.pack, self.rows
        kv = head // self.quantization.group
        if kv not in self._kv_index:
            v = None if self.v is None else pack.int16(self.v[kv], self.quantization.value_step(kv, self.bound))
            self._kv_index[kv] = len(self.kv_heads)
            self.kv_heads.append({"k": pack.int16(m.k[0, kv], self._steps[kv]), "v": v})
        q = m.q[0, head]
        bias, allowed = head_bias(m, head), allowed_pairs(m, head)
        return {
            "q": pack.int16(q if rows is None else q[rows], self._steps[kv]),
            "kv_head": self._kv_index[kv],
            "rows": None if rows is None else pack.int32(rows),
            **self._margins(head),
            "sink": None if m.sinks is None else float(m.sinks[head]),
            "bias": None if bias is None else pack.int32_scaled(bias),
            "allowed": None if allowed is None else pack.bits(allowed),
        }

    def key_ranges(self) -> tuple[ArrayRef | None, ArrayRef | None]:
        """For each query the first allowed key and the key after the last, where the mask is a range of keys."""
        ranges = _key_ranges(self.m)
        return (None, None) if ranges is None else (self.pack.int32(ranges[0]), self.pack.int32(ranges[1]))

    def _margins(self, head: int) -> dict[str, ArrayRef | None]:
        """What the page does not compute of a large map: log-sum-exp and entropy of the rows, attention received."""
        m, rows = self.m, self.rows
        if rows is None and m.shape[2] * m.shape[3] <= MAX_EXACT_WEIGHTS:
            return dict.fromkeys(("lse", "entropy", "received"))
        if self._margin_tensors is None:
            self._margin_tensors = self.quantization.lse(self.bound), m.entropy()[0], m.received()[0]
        lse, entropy, received = (t[head] for t in self._margin_tensors)
        write = self.pack.int32_scaled
        return {
            "lse": write(lse if rows is None else lse[rows]),
            "entropy": write(entropy),
            "received": write(received),
        }


def unsupported_reason(m: AttentionMap) -> str | None:
    """Why a page can have no payload for a map; None where it can."""
    queries, keys = m.shape[2:]
    if queries * keys > MAX_MASK_PAIRS and m.mask is not None and _key_ranges(m) is None:
        return f"a mask that is no range of keys, {queries:,} x {keys:,} bits"
    if m.bias is None or _bias_by_distance(m) is not None:
        return None
    reason = f"a bias of its own for each of {queries:,} x {keys:,} pairs"
    if queries * keys > MAX_MASK_PAIRS or (bias := _bias_table(m)) is None:
        return reason
    if queries * keys > MAX_BIAS_PAIRS:
        biases = (head_bias(m, head) for head in range(m.shape[1]))
        if any(bias is not None and bias.ndim > 1 for bias in biases):
            return reason
    masked = bias <= BIAS_AS_MASK
    if bool((masked & (bias > -torch.inf)).any()) and bool(masked.expand(*masked.shape[:-1], keys).all(-1).any()):
        return f"a bias below {BIAS_AS_MASK:,.0f} on all keys of a query, in which its scores are lost"
    return None


def mask_and_bias_size(m: AttentionMap) -> float:
    """Estimated bytes of the mask and the bias of one head."""
    pack, table = BinaryPack(), _bias_table(m)
    bias_per_head = table is not None and table.ndim > 2 and table.shape[-3] > 1
    allowed, bias = allowed_pairs(m, 0), head_bias(m, 0)
    size = 0.0
    if allowed is not None:
        pack.bits(allowed)
        mask_per_head = bias_per_head or (m.mask is not None and m.mask.batch_heads(*m.shape[2:])[1] is not None)
        size += len(gzip_bytes(pack.bytes())) / (1 if mask_per_head else m.shape[1])
    if bias is not None:
        pack = BinaryPack()
        pack.int32_scaled(bias)
        size += len(gzip_bytes(pack.bytes())) / (1 if bias_per_head or table is None else m.shape[1])
    return size


def allowed_pairs(m: AttentionMap, head: int) -> Bool[Tensor, "queries keys"] | None:
    """Which keys each query of a head may attend to; None where they are a range, or all keys.

    A bias far below all scores is a mask.
    """
    table, masked = _bias_table(m), None
    if table is not None:
        masked = _of_head(table, head) <= BIAS_AS_MASK
        masked = masked if bool(masked.any()) else None
    if masked is None and (m.mask is None or _key_ranges(m) is not None):
        return None
    allowed = torch.ones(m.shape[2:], dtype=torch.bool, device=m.device)
    if m.mask is not None:
        allowed = allowed & _of_head(m.mask.broadcastable(*m.shape[2:], device=m.device), head)
    return allowed if masked is None else allowed & ~masked


def head_bias(m: AttentionMap, head: int) -> Tensor | None:
    """The bias of a head by key - query, from -(queries - 1) on; for a bias of another form, (queries, keys)."""
    if (by_distance := _bias_by_distance(m)) is not None:
        return by_distance[head]
    if (table := _bias_table(m)) is None:
        return None
    queries, keys = m.shape[2:]
    bias = _of_head(table, head).double().expand(queries, keys)
    masked = bias <= BIAS_AS_MASK
    at = torch.arange(keys, device=m.device) - torch.arange(queries, device=m.device)[:, None] + queries - 1
    by_distance = bias.new_full((queries + keys - 1,), -torch.inf)
    by_distance.scatter_reduce_(0, at.flatten(), bias.flatten(), "amax")
    if bool(((by_distance[at] == bias) | masked).all()):
        bias = by_distance
    bias = bias.masked_fill(bias <= BIAS_AS_MASK, 0.0)
    return bias if bool(bias.any()) else None


def _key_ranges(m: AttentionMap) -> tuple[Tensor, Tensor] | None:
    """The first allowed key and the key after the last of each query, the same for all heads; None for other masks."""
    if m.mask is None:
        return None
    if "ranges" not in m.answer_cache:
        sizes = m.shape[2], m.shape[3], m.device
        ranges = band_ranges(m.mask, *sizes)
        m.answer_cache["ranges"] = _compute_key_ranges(m.mask, *sizes) if ranges is None else ranges
    return m.answer_cache["ranges"]  # type: ignore[no-any-return]


def _compute_key_ranges(mask: Mask, queries: int, keys: int, device: torch.device) -> tuple[Tensor, Tensor] | None:
    first_keys, end_keys = [], []
    rows = max(1, PAIRS_PER_TILE // max(1, keys))
    for start in range(0, queries, rows):
        end = min(start + rows, queries)
        allowed = mask.evaluate(Tile(queries, keys, (start, end), (0, keys), device))
        if any(size > 1 for size in allowed.shape[:-2]):
            return None
        allowed = allowed.reshape(allowed.shape[-2:]).expand(end - start, keys)
        count = allowed.sum(-1)
        first_key = allowed.to(torch.uint8).argmax(-1)
        end_key = keys - allowed.flip(-1).to(torch.uint8).argmax(-1)
        if bool(((end_key - first_key != count) & (count > 0)).any()):
            return None
        first_keys.append(first_key.masked_fill(count == 0, 0))
        end_keys.append(end_key.masked_fill(count == 0, 0))
    return torch.cat(first_keys), torch.cat(end_keys)


def _bias_table(m: AttentionMap) -> Tensor | None:
    """The bias of each pair, broadcastable to (batch, heads, queries, keys); None for a function of the distance."""
    if not isinstance(m.bias, PositionBias):
        return m.bias
    if _bias_by_distance(m) is not None:
        return None
    if "table" not in m.answer_cache:
        m.answer_cache["table"] = m.bias.dense(*m.shape[2:], device=m.device).to(m.dtype)
    return m.answer_cache["table"]  # type: ignore[no-any-return]


def _bias_by_distance(m: AttentionMap) -> Tensor | None:
    """The bias by key - query, (heads, queries + keys - 1), from -(queries - 1) on; None for a bias of another form."""
    if not isinstance(m.bias, PositionBias):
        return None
    if "by distance" not in m.answer_cache:
        bias = _compute_bias_by_distance(m.bias, m.shape[2], m.shape[3], m.device)
        m.answer_cache["by distance"] = None if bias is None else bias.to(m.dtype)  # the dtype in which scores get it
    return m.answer_cache["by distance"]  # type: ignore[no-any-return]


def _compute_bias_by_distance(bias: PositionBias, queries: int, keys: int, device: torch.device) -> Tensor | None:
    key = torch.arange(keys, device=device)

    def row(query: int) -> Tensor:
        return bias(torch.tensor([query + keys - queries], device=device), key)[:, 0]  # type: ignore[no-any-return]

    out: Tensor = row(0).new_zeros(bias.num_heads, queries + keys - 1)
    for query in [*range(0, queries, keys), queries - 1]:
        out[:, queries - 1 - query :][:, :keys] = row(query)
    # A bias that is no function of the distance differs in other rows.
    sample = {queries // 3, queries // 2, 2 * queries // 3, queries - 1}
    same = all(torch.allclose(out[:, queries - 1 - query :][:, :keys], row(query)) for query in sample)
    return out if same and bool(out.isfinite().all()) else None


def _of_head(t: Tensor, head: int) -> Tensor:
    """The (queries, keys) of a head, of a tensor that broadcasts over batch rows and heads."""
    t = t.reshape((1,) * (4 - t.ndim) + tuple(t.shape))
    return t[0, head if t.shape[1] > 1 else 0]
