"""Graphs (`torch.compile`) of what `regard.replace` replaced. No graph can hold shape checks, so `make test-more` runs
this file apart."""

import pytest
import torch
from torch import nn

import regard
from multihead_calls import MultiheadCall, replaced

pytestmark = [
    pytest.mark.more,
    pytest.mark.skipif(hasattr(regard.attend, "__wrapped__"), reason="no graph can hold shape checks"),
    pytest.mark.filterwarnings("ignore:enable_nested_tensor is True"),
]
X = torch.randn(2, 6, 8).double()
CAUSAL = torch.ones(6, 6).bool().triu(1)


@pytest.mark.parametrize("mask", ["none", "boolean", "hint"])
def test_it_runs_in_one_graph(mask):
    module = replaced(MultiheadCall({"batch_first": True}).module())
    arguments = {"none": {}, "boolean": {"attn_mask": CAUSAL}, "hint": {"attn_mask": CAUSAL, "is_causal": True}}[mask]

    def call(x):
        return module(x, x, x, need_weights=False, **arguments)[0]

    compiled = torch.compile(call, fullgraph=True, backend="aot_eager")
    torch.testing.assert_close(compiled(X), call(X))


def test_a_replaced_model_compiles_into_one_graph_and_back():
    layer = nn.TransformerEncoderLayer(8, 2, 16, batch_first=True, dropout=0.0)
    model = nn.TransformerEncoder(layer, 2).double().eval()
    expected = model(X, mask=CAUSAL)
    with regard.replace(model):
        compiled = torch.compile(model, fullgraph=True, backend="aot_eager")
        torch.testing.assert_close(compiled(X, mask=CAUSAL, is_causal=True), expected)
    torch.testing.assert_close(compiled(X, mask=CAUSAL, is_causal=True), expected)
