"""What examples compute with: three tokens of two numbers, and the weights that the course draws with seed 42."""

from __future__ import annotations

from dataclasses import dataclass, replace
from functools import cache

import torch
from torch import Tensor, nn

from regard.attention.course import SelfAttention
from regard.check.mistakes.mistake import MaskSource
from regard.check.recipes.case import Case, ProjectionWeights, causal

__all__ = [
    "SECOND",
    "ExampleSetting",
    "X",
    "attend",
    "attention",
    "attention_weights",
    "course_weights",
    "example_settings",
    "in_brackets",
    "projected",
]

X = torch.tensor([[1.16, 0.23], [0.57, 1.36], [4.41, -2.16]], dtype=torch.float64, device="cpu")
SECOND = torch.tensor([[-0.40, 1.10], [2.00, 0.30], [0.70, -1.50]], dtype=torch.float64, device="cpu")
CONTEXT = torch.tensor([[0.50, -1.00], [1.50, 0.80], [-0.70, 0.40]], dtype=torch.float64, device="cpu")
MASK = torch.tensor([[True, False, True], [True, True, False], [False, True, True]], device="cpu")
BIAS = torch.tensor([[0.0, -1.0, -2.0], [-1.0, 0.0, -1.0], [-2.0, -1.0, 0.0]], dtype=torch.float64, device="cpu")
BIASES = torch.tensor([[0.50, -0.50], [1.00, 0.25], [-0.30, 0.80]], dtype=torch.float64, device="cpu")


def course_weights() -> tuple[Tensor, Tensor, Tensor, Tensor]:
    """W_q, W_k and W_v as the documents draw them, and a fourth from the same stream, W_o."""
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(42)
        course = SelfAttention(2)
        out = nn.Linear(2, 2, bias=False)
    q, k, v, o = (each.weight.detach().double() for each in (course.W_q, course.W_k, course.W_v, out))
    return q, k, v, o


@dataclass(frozen=True)
class ExampleSetting:
    """Inputs of an example."""

    description: str
    case: Case
    mask_source: MaskSource = "none"


@cache
def example_settings() -> dict[str, ExampleSetting]:
    """The inputs of examples by their names."""
    w_q, w_k, w_v, w_o = course_weights()
    one, two = ProjectionWeights(w_q, w_k, w_v, 1, 1), ProjectionWeights(w_q, w_k, w_v, 2, 2)
    x, both = X[None], torch.stack((X, SECOND))
    given = f"the second sample is {in_brackets(SECOND)}"
    padding = torch.tensor([[True, True, True], [True, True, False]])[:, None, None]
    return {
        "one": ExampleSetting("one head of width 2, no mask", Case(x=x, weights=one)),
        "causal": ExampleSetting(
            "one head of width 2, a causal mask", Case(x=x, weights=one, may=causal(3, 3)), "flag"
        ),
        "padding": ExampleSetting(
            "one head of width 2; token 2 is padding", Case(x=x, weights=one, may=padding[1:]), "padding"
        ),
        "mask": ExampleSetting(
            "one head of width 2; query 0 may attend to keys 0 and 2, query 1 to keys 0 and 1, query 2 to keys 1 and 2",
            Case(x=x, weights=one, may=MASK[None, None]),
            "mask",
        ),
        "heads": ExampleSetting("two heads of width 1, no mask", Case(x=x, weights=two)),
        "heads, causal": ExampleSetting(
            "two heads of width 1, a causal mask", Case(x=x, weights=two, may=causal(3, 3)), "flag"
        ),
        "out": ExampleSetting(
            f"two heads of width 1 and an output projection, W_o = {in_brackets(w_o)}",
            Case(x=x, weights=replace(two, out=w_o)),
        ),
        "context": ExampleSetting(
            f"one head of width 2; the context is {in_brackets(CONTEXT)}", Case(x=x, context=CONTEXT[None], weights=one)
        ),
        "batch": ExampleSetting(f"one head of width 2, a batch of two; {given}", Case(x=both, weights=one)),
        "heads, batch": ExampleSetting(f"two heads of width 1, a batch of two; {given}", Case(x=both, weights=two)),
        "padding, batch": ExampleSetting(
            f"one head of width 2, a batch of two; {given}, and its token 2 is padding",
            Case(x=both, weights=one, may=padding),
            "padding",
        ),
        "bias": ExampleSetting(
            "one head of width 2; a bias of -1 for each token of distance",
            Case(x=x, weights=one, bias=BIAS[None, None]),
        ),
        "biased": ExampleSetting(
            "one head of width 2; projections with biases "
            + ", ".join(f"b_{name} = {in_brackets(bias)}" for name, bias in zip("qkv", BIASES, strict=True)),
            Case(x=x, weights=replace(one, bias_q=BIASES[0], bias_k=BIASES[1], bias_v=BIASES[2])),
        ),
        "narrow": ExampleSetting(
            "one head with keys of width 2 and values of width 1 (the first row of W_v)",
            Case(x=x, weights=replace(one, v=w_v[:1])),
        ),
        "groups": ExampleSetting(
            f"four query heads of width 1 (W_q and below it {in_brackets(w_o)}), two key and value heads",
            Case(x=x, weights=ProjectionWeights(torch.cat((w_q, w_o)), w_k, w_v, 4, 2)),
        ),
    }


def in_brackets(tensor: Tensor) -> str:
    """Its numbers in brackets, each row in its own."""
    if tensor.ndim == 1:
        return f"[{' '.join(f'{number:.4f}'.rstrip('0').rstrip('.') for number in tensor.tolist())}]"
    return ", ".join(in_brackets(row) for row in tensor)


def projected() -> tuple[Tensor, Tensor, Tensor]:
    """q, k and v of one head of width 2."""
    q, k, v, _ = course_weights()
    return X @ q.t(), X @ k.t(), X @ v.t()


def attention(x: Tensor, may: Tensor | None = None) -> Tensor:
    """The course's, one head of width 2."""
    q, k, v, _ = course_weights()
    return attend(x @ q.t(), x @ k.t(), x @ v.t(), may)


def attend(q: Tensor, k: Tensor, v: Tensor, may: Tensor | None = None) -> Tensor:
    """The definition's output."""
    return attention_weights(q, k, may) @ v


def attention_weights(q: Tensor, k: Tensor, may: Tensor | None = None) -> Tensor:
    """The definition's weights."""
    scores: Tensor = q @ k.transpose(-2, -1) / q.shape[-1] ** 0.5
    return (scores if may is None else scores.masked_fill(~may, -torch.inf)).softmax(-1)
