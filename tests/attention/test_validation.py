"""What the definition and the kernel refuse alike: tensors that do not fit one another."""

import math

import pytest
import torch

import regard
from regard import mask
from regard.attention.positions import ALiBi

pytestmark = [
    pytest.mark.usefixtures("as_a_user_runs_it"),
    pytest.mark.parametrize("compute", [regard.attend, regard.steps]),
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
    ids=lambda value: str(getattr(value, "dtype", "")),
)
def test_dtypes_and_devices_that_do_not_fit_are_named(compute, q, k, v, error, message):
    with pytest.raises(error, match=message):
        compute(q, k, v)


HINT = r"mask\.allowed\(t\) where True = may attend.*mask\.blocked\(t\)"
SCORES = r" does not broadcast to the scores, shape \(2, 4, 3, 5\)"


@pytest.mark.parametrize(
    ("who", "error", "message"),
    [
        (torch.ones(3, 5).bool(), TypeError, HINT),  # rasbt/LLMs-from-scratch#1061
        (torch.ones(3, 5), TypeError, HINT),
        (torch.ones(3, 5).long(), TypeError, HINT),
        ("causal", TypeError, r"mask must be made by regard\.mask, or None"),
        (mask.causal, TypeError, r"mask must be made by regard\.mask, or None"),
        (mask.allowed(torch.ones(2, 3, 3, 5).bool()), ValueError, r"allowed.* of shape \(2, 3, 3, 5\)" + SCORES),
        (mask.allowed(torch.ones(2, 2, 4, 3, 5).bool()), ValueError, r"allowed.* of shape \(2, 2, 4, 3, 5\)" + SCORES),
        (mask.allowed(torch.ones(3, 4).bool()), ValueError, "allowed"),
        (mask.blocked(torch.ones(2, 5).bool()), ValueError, "blocked"),
        (mask.padding([6, 1]), ValueError, "padding"),
        (mask.padding([5]), ValueError, r"padding.* is for 1 batch rows, but q of shape \(2, 4, 3, 8\)"),
        (
            mask.causal() & mask.padding([5] * 3),
            ValueError,
            r"padding.* is for 3 batch rows, but q of shape \(2, 4, 3, 8\)",
        ),
        (mask.padding([5]) & mask.causal(), ValueError, r"padding.* is for 1 batch rows"),
    ],
    ids=lambda value: type(value).__name__,
)
def test_what_is_no_mask_for_these_scores(compute, who, error, message):
    with pytest.raises(error, match=message):
        compute(Q, K, V, who)


@pytest.mark.parametrize(
    ("options", "error", "message"),
    [
        *(
            ({"bias": torch.zeros(shape)}, ValueError, "bias of shape .*" + SCORES)
            for shape in ((3, 4), (3, 1, 1), (3, 1, 1, 1), (1, 2, 4, 3, 5))
        ),
        *(  # pytorch#21518
            ({"bias": torch.ones(3, 5, dtype=dtype)}, TypeError, r"A mask is not a bias.*mask\.allowed.*mask\.blocked")
            for dtype in (torch.bool, torch.int64, torch.float64)
        ),
        ({"bias": torch.zeros(3, 5, device="meta")}, ValueError, "meta"),
        *(
            ({"sinks": torch.zeros(shape)}, ValueError, r"sinks must hold one score per head, shape \(4,\)")
            for shape in ((), (1,), (2,), (4, 1))
        ),
        ({"sinks": torch.zeros(4).half()}, TypeError, "sinks"),
        ({"bias": ALiBi(3)}, ValueError, r"ALiBi\(3\) has 3 heads; q of shape \(2, 4, 3, 8\) does not"),
        ({"scale": "1"}, TypeError, "scale is a number; got str"),
        ({"scale": -math.inf}, ValueError, "scale=-inf must be finite, and a number of float32"),
        ({"softcap": 0.0}, ValueError, r"softcap=0\.0 must be above 0, and a number of float32"),
        ({"softcap": 1e39}, ValueError, r"softcap=1e\+39 must be above 0, and a number of float32"),
    ],
    ids=lambda value: type(value).__name__,
)
def test_options_that_do_not_fit(compute, options, error, message):
    with pytest.raises(error, match=message):
        compute(Q, K, V, **options)


@pytest.mark.parametrize("name", ["q", "k", "v", "bias", "sinks"])
def test_what_is_no_tensor(compute, name):
    given = {"q": Q, "k": K, "v": V, name: [[1.0]]}
    with pytest.raises(TypeError, match=f"{name} must be a tensor; got list"):
        compute(**given)


def test_a_mask_for_a_batch_of_one_fits_input_without_a_batch(compute):
    def output(*qkv):
        result = compute(*qkv, mask.padding([3]))
        return getattr(result, "output", result)

    q, k, v = torch.randn(3, 4, 5, 8)
    torch.testing.assert_close(output(q, k, v), output(q[None], k[None], v[None])[0])
