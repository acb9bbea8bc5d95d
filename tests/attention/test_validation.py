"""What the definition and the kernel refuse alike: tensors that do not fit one another."""

import math

import pytest
import torch

import regard
from regard import mask
from regard.attention.positions import ALiBi

pytestmark = [
    pytest.mark.usefixtures("as_a_user_runs_it"),
    pytest.mark.parametrize("compute", [regard.attend, regard.steps, regard.plan]),
]

Q, K, V = torch.zeros(2, 4, 3, 8), torch.zeros(2, 2, 5, 8), torch.zeros(2, 2, 5, 6)


ALL_OR_NONE = r"\(\.\.\., heads, tokens, width\), or all \(tokens, width\)"


@pytest.mark.parametrize(
    ("q", "k", "v", "message"),
    [
        (Q[..., :7], K, V, "one width d_key"),
        (Q[..., :0], K[..., :0], V, "at least 1"),
        (Q, K, V[:, :, :4], "every key needs one value"),
        (Q, K, V[:, :1], "every key needs one value"),
        (Q[:1], K, V, "same batch dimensions"),
        (Q[:, :3], K, V, "3 query heads cannot share 2 key heads"),
        (Q[:, :1], K, V, "1 query heads cannot share 2 key heads"),
        (Q, K[:, :0], V[:, :0], "4 query heads cannot share 0 key heads"),
        (Q[0], K, V, ALL_OR_NONE),
        (Q[0, 0, 0], K[0, 0, 0], V[0, 0, 0], ALL_OR_NONE),
    ],
)
def test_shapes_that_do_not_fit_are_named(compute, q, k, v, message):
    with pytest.raises(ValueError, match=message) as refusal:
        compute(q, k, v)
    for name, t in (("q", q), ("k", k), ("v", v)):
        assert f"{name} {tuple(t.shape)}" in str(refusal.value)


@pytest.mark.parametrize(
    ("q", "k", "v", "error", "message"),
    [
        (Q.half(), K, V, TypeError, "float16, torch.float32, torch.float32"),
        (Q, K, V.double(), TypeError, "float32, torch.float32, torch.float64"),
        (Q.long(), K.long(), V.long(), TypeError, "int64"),
        (Q, K.to("meta"), V, ValueError, "cpu, meta, cpu"),
    ],
)
def test_dtypes_and_devices_that_do_not_fit_are_named(compute, q, k, v, error, message):
    with pytest.raises(error, match=message):
        compute(q, k, v)


HINT = r"mask\.allowed\(t\) where True = may attend.*mask\.blocked\(t\)"
SCORES = r" does not broadcast to the scores, shape \(2, 4, 3, 5\)"


NO_BIAS = r"A mask is not a bias.*mask\.allowed.*mask\.blocked"
ROWS = r"batch rows, but q of shape \(2, 4, 3, 8\)"


def allowed(*shape):
    return mask.allowed(torch.ones(shape).bool())


@pytest.mark.parametrize(
    ("name", "given", "error", "message"),
    [
        ("mask", torch.ones(3, 5).bool(), TypeError, HINT),  # rasbt/LLMs-from-scratch#1061
        ("mask", torch.ones(3, 5), TypeError, HINT),
        ("mask", "causal", TypeError, r"mask must be made by regard\.mask, or None"),
        ("mask", mask.causal, TypeError, r"mask must be made by regard\.mask, or None"),
        ("mask", allowed(2, 3, 3, 5), ValueError, r"allowed.* of shape \(2, 3, 3, 5\)" + SCORES),
        ("mask", allowed(2, 2, 4, 3, 5), ValueError, r"allowed.* of shape \(2, 2, 4, 3, 5\)" + SCORES),
        ("mask", allowed(3, 4), ValueError, "allowed"),
        ("mask", ~allowed(2, 5), ValueError, "allowed"),
        ("mask", mask.padding([6, 1]), ValueError, r"padding.* is for 6 keys.*q \(2, 4, 3, 8\), k \(2, 2, 5, 8\)"),
        ("mask", mask.padding([5]), ValueError, r"padding.* is for 1 " + ROWS),
        ("mask", mask.causal() & mask.padding([5] * 3), ValueError, r"padding.* is for 3 " + ROWS),
        *(("bias", torch.zeros(shape), ValueError, "bias of shape .*" + SCORES)
          for shape in ((3, 4), (3, 1, 1), (3, 1, 1, 1), (1, 2, 4, 3, 5))),
        *(("bias", torch.ones(3, 5, dtype=dtype), TypeError, NO_BIAS)  # pytorch#21518
          for dtype in (torch.bool, torch.int64, torch.float64)),
        ("bias", torch.zeros(3, 5, device="meta"), ValueError, "meta"),
        ("bias", ALiBi(3), ValueError, r"ALiBi\(3\) has 3 heads; q of shape \(2, 4, 3, 8\) does not"),
        *(("sinks", torch.zeros(shape), ValueError, r"sinks must hold one score per head, shape \(4,\)")
          for shape in ((), (1,), (2,), (4, 1))),
        ("sinks", torch.zeros(4).half(), TypeError, "sinks"),
        ("scale", "1", TypeError, "scale is a number; got str"),
        ("scale", 10**30, ValueError, "scale=10+ is a whole number beyond int64: write it as a float"),
        ("softcap", 2**63, ValueError, "softcap=9223372036854775808 is a whole number beyond int64"),
        ("scale", -math.inf, ValueError, "scale=-inf must be finite, and a number of float32"),
        ("softcap", 0.0, ValueError, r"softcap=0\.0 must be above 0, and a number of float32"),
        ("softcap", 1e39, ValueError, r"softcap=1e\+39 must be above 0, and a number of float32"),
        *((name, [[1.0]], TypeError, f"{name} must be a tensor; got list") for name in (*"qkv", "bias", "sinks")),
    ],
    ids=lambda value: type(value).__name__,
)  # fmt: skip
def test_an_argument_that_does_not_fit_is_named(compute, name, given, error, message):
    with pytest.raises(error, match=message):
        compute(**{"q": Q, "k": K, "v": V, name: given})
