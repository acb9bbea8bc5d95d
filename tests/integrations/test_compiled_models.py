"""`torch.compile(fullgraph=True)` of whole models on regard gives what they give without a graph."""

import pytest
import torch

import regard
from integrations.tiny_models import logits, of_type

SHAPES_ENFORCED = hasattr(regard.attend, "__wrapped__")
pytestmark = pytest.mark.skipif(SHAPES_ENFORCED, reason="no graph can hold shape checks: make test-more runs it apart")

CASES = [("mistral", ""), ("mistral", "padded"), ("llama", ""), ("bert", "padded"), ("t5", "padded"), ("vit", "")]
CASES += [("gemma2", ""), ("gpt_oss", "padded")]


@pytest.mark.parametrize(
    ("model_type", "padding"),
    # A causal mask and a window are known in the graph; every other mask is a tensor of it.
    [pytest.param(*case, marks=[] if case == ("mistral", "") else pytest.mark.more) for case in CASES],
)
def test_a_compiled_model_is_one_graph_with_the_same_logits(model_type, padding):
    case = of_type(model_type)
    model = case.build()
    inputs = case.inputs(padding and ("left" if case.kind == "causal" else "right"))
    expected = logits(model, "regard", inputs)
    torch._dynamo.reset()
    with torch.no_grad():
        # The graph is made as for any backend; no C++ compiler is needed.
        found = torch.compile(model, backend="aot_eager", fullgraph=True)(**inputs).logits
    torch.testing.assert_close(found, expected, atol=2e-5, rtol=0)
