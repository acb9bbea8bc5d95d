"""The fused kernel of PyTorch and its single operations give the same two results."""

from __future__ import annotations

import pytest
import torch

from regard.check.trace.fused_attention import FUSED, attention_by_steps


@pytest.mark.parametrize("num_kv_heads", [4, 2])
@pytest.mark.parametrize("options", [{}, {"is_causal": True}, {"scale": 0.3}, {"attn_mask": True}], ids=str)
def test_single_operations_give_the_output_and_lse_of_the_kernel(num_kv_heads, options):
    q, k, v = (
        torch.randn(2, heads, tokens, 6, dtype=torch.float64)
        for heads, tokens in ((4, 3), (num_kv_heads, 5), (num_kv_heads, 5))
    )
    if "attn_mask" in options:
        options = {"attn_mask": torch.randn(2, 1, 3, 5, dtype=torch.float64)}
    # As a module hands them over: heads side by side in memory, tokens after one another.
    q, k, v = (each.transpose(1, 2).contiguous().transpose(1, 2) for each in (q, k, v))
    for one, other in zip(attention_by_steps(q, k, v, **options), FUSED(q, k, v, **options), strict=True):
        torch.testing.assert_close(one, other, rtol=0, atol=1e-12)
