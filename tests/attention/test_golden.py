"""All that the five source documents print (golden.json), by `regard.course`, by the definition and by the module."""

from dataclasses import replace
from functools import partial

import pytest
import torch
from torch import nn

import regard
from golden import BLOCKED, FACTS, X, assert_as_printed, assert_prints
from regard import course, mask
from regard.attention import Steps

PRINTED = FACTS["printed"]
SIZES = {"d_model": 2, "row_dim": 0, "col_dim": 1}

# Four ways to the first head drawn after seed 42: its weights and every intermediate, by the names in golden.json.


def named(weights, kept):
    return {**dict(zip(("W_q.T", "W_k.T", "W_v.T"), (w.T for w in weights), strict=True)), **vars(kept)}


def by_course(cls, masked):
    head = cls(**SIZES)
    encodings = (X, X, X) if cls is course.Attention else (X,)
    kept = head.steps(*encodings, BLOCKED) if masked else head.steps(*encodings)
    return named((head.W_q.weight, head.W_k.weight, head.W_v.weight), kept)


def by_definition(masked):
    projections = [nn.Linear(2, 2, bias=False) for _ in "qkv"]
    q, k, v = (project(X) for project in projections)
    kept = regard.steps(q, k, v, mask.causal() if masked else None)
    return named([project.weight for project in projections], replace(kept, q=q, k=k, v=v))


def by_module(masked):
    module = joined_module(8)
    kept = module.steps(X, mask=mask.causal() if masked else None)
    first = {name: value[0] for name, value in vars(kept).items() if name not in ("heads", "projected")}
    return named([rows[:2] for rows in module.qkv.weight.split(16)], Steps(**first))


def joined_module(heads):
    return regard.MultiHeadAttention(d_model=2, num_heads=heads, d_key=2, out_proj=False)


ONE_HEAD = course.SelfAttention, course.MaskedSelfAttention, course.Attention
ROUTES = {
    **{cls.__name__: partial(by_course, cls) for cls in ONE_HEAD},
    "steps": by_definition,
    "module": by_module,
}
TAKE_A_MASK = [name for name in ROUTES if name != "SelfAttention"]

FIELDS = ["W_q.T", "W_k.T", "W_v.T", "q", "k", "v", "scores", "scaled", "weights", "output"]
OF_HEAD = [name for name, fact in PRINTED.items() if fact["seed"] == 42 and fact["of"] in FIELDS]
MASKED = ["000.masked_self_attention", "004.masked"]
JOINED = {"000.multi_head_8": 8, "004.multi_head_2": 2}
PROSE = ["000.prose.weights_T_rounded"]
OF_003 = ["003.softmax_weights", "003.softmax_row_sums"]


def test_no_printed_tensor_is_without_a_test():
    assert sorted([*OF_HEAD, *MASKED, *JOINED, *PROSE, *OF_003]) == sorted(PRINTED)


def first_head(route, *, masked=False):
    torch.manual_seed(42)
    return ROUTES[route](masked)


@pytest.mark.parametrize("route", ROUTES)
@pytest.mark.parametrize("name", OF_HEAD)
def test_printed_weights_and_intermediates(name, route):
    assert_as_printed(first_head(route)[PRINTED[name]["of"]], name)


@pytest.mark.parametrize("route", TAKE_A_MASK)
@pytest.mark.parametrize("name", MASKED)
def test_printed_masked_outputs(name, route):
    assert_as_printed(first_head(route, masked=True)["output"], name)


JOIN = {
    "000": lambda heads: course.MultiHeadAttention(**SIZES, num_heads=heads)(X, X, X),
    "004": lambda heads: course.MultiHeadedAttention(**SIZES, num_heads=heads)(X, X, X),
    "module": lambda heads: joined_module(heads)(X),
    "steps": lambda heads: joined_module(heads).steps(X).heads,
}


@pytest.mark.parametrize("join", JOIN)
@pytest.mark.parametrize("name", JOINED)
def test_printed_heads_joined(name, join):
    """The first two of eight heads are those of two, and the first is self-attention (relations 1 and 2)."""
    torch.manual_seed(42)
    joined = JOIN[join](JOINED[name])
    assert_as_printed(joined, name)
    torch.manual_seed(42)
    torch.testing.assert_close(joined[:, :4], JOIN[join](2))
    torch.testing.assert_close(joined[:, :2], first_head("SelfAttention")["output"])


def head_of_003(weights_of):
    torch.manual_seed(89)
    return weights_of(torch.randn(1, 3, 5))


def steps_of_003(x, scale=None):
    q, k, v = (nn.Linear(5, 16, bias=False)(x)[:, None] for _ in "qkv")
    return regard.steps(q, k, v, scale=scale).weights[:, 0]


@pytest.mark.parametrize(
    "weights_of",
    [
        steps_of_003,
        lambda x: course.AttentionHead(embed_dim=5, head_size=16).steps(x).weights,
        lambda x: regard.MultiHeadAttention(5, 1, d_key=16, out_proj=False).steps(x).weights[:, 0],
    ],
    ids=["steps", "course", "module"],
)
def test_printed_weights_of_003(weights_of):
    weights = head_of_003(weights_of)
    assert_as_printed(weights, "003.softmax_weights")
    assert_as_printed(weights.sum(dim=-1), "003.softmax_row_sums")


def test_printed_shapes_of_003():
    x, shapes = torch.randn(1, 3, 32), FACTS["shapes"]
    assert list(course.AttentionHead(embed_dim=32, head_size=8)(x).shape) == shapes["003.attention_head_shape"]
    assert list(course.MultiHeadAttention(embed_dim=32, num_heads=4)(x).shape) == shapes["003.multi_head_shape"]


def printed_mask(name):
    return torch.tensor([[float(entry) for entry in row] for row in FACTS["causal_masks"][name]["is"]])


@pytest.mark.parametrize("name", FACTS["causal_masks"])
def test_printed_masks_are_causal(name):
    may_attend = 1 if FACTS["causal_masks"][name]["says"] == "1 = may attend" else 0
    assert torch.equal(mask.causal().dense(3, 3), printed_mask(name) == may_attend)


def test_additive_mask_of_the_prose_as_a_bias():
    additive = printed_mask("000.prose.additive_mask")
    torch.manual_seed(42)
    q, k, v = (nn.Linear(2, 2, bias=False)(X) for _ in "qkv")
    assert_as_printed(regard.steps(q, k, v, bias=additive).output, "000.masked_self_attention")
    assert_as_printed(regard.attend(q, k, v, bias=additive), "000.masked_self_attention")


@pytest.mark.parametrize(
    ("name", "cls"),
    [("000.projections_equal", course.SelfAttention), ("000.masked_projections_equal", course.MaskedSelfAttention)],
)
def test_projection_is_a_product_with_the_transposed_weight(name, cls):
    """The documents compare with ==, which nothing guarantees (E-07): here within one rounding of float32."""
    torch.manual_seed(42)
    head, fact = cls(**SIZES), FACTS["projections_equal"][name]
    for project in map(head.get_submodule, fact["for"]):
        equal = torch.isclose(project(X), X @ project.weight.T, rtol=torch.finfo(torch.float32).eps, atol=0)
        assert (list(equal.shape), equal.all().item()) == (fact["shape"], fact["all"])


@pytest.mark.parametrize("route", TAKE_A_MASK)
def test_a_causal_mask_and_the_first_and_the_last_token__rel_3_rel_4(route):
    masked, unmasked = first_head(route, masked=True), first_head(route)
    torch.testing.assert_close(masked["output"][0], masked["v"][0], rtol=0, atol=0)
    torch.testing.assert_close(masked["output"][-1], unmasked["output"][-1], rtol=0, atol=0)


def test_prose_rounds_the_weights_to_two_decimals__rel_5():
    head = first_head("steps")
    assert_as_printed(torch.stack([head[name] for name in FIELDS[:3]]), *PROSE)


def test_printed_rows_sum_to_one_but_for_rounding__rel_6():
    sums = [sum(float(f"{weight:.4f}") for weight in row) for row in first_head("steps")["weights"].tolist()]
    assert [f"{total:.4f}" for total in sums] == ["1.0000", "0.9999", "1.0001"]


def test_sinusoidal_exponent__E_16():
    fact = FACTS["errata"]["E-16"]
    positions = regard.positions.sinusoidal(fact["position"] + 1, fact["d_model"])
    assert_prints(positions[-1], fact["sinusoidal"], fact["digits"])


def test_zero_rows_take_mass_without_a_padding_mask__E_19():
    padded = torch.cat([X, torch.zeros(5, 2)])[None, None]
    a, b, c = regard.steps(padded, padded, padded).weights[0, 0, :3, 3:].sum(dim=-1).tolist()
    assert [f"{a:.1%}", f"{b:.1%}", f"{c:.5%}"] == FACTS["errata"]["E-19"]["mass on 5 zero rows"]
    assert (regard.steps(padded, padded, padded, mask.padding([3])).weights[..., 3:] == 0).all()


def test_scale_comes_before_the_bias__E_23():
    fact = FACTS["errata"]["E-23"]
    first = torch.eye(1, fact["d_key"])
    q, k, bias = first, torch.tensor([[4.0], [2.4], [0.0]]) * first, torch.tensor([fact["bias"]], dtype=torch.float32)
    kept = regard.steps(q, k, torch.eye(3), bias=bias)
    assert_prints(kept.weights[0], fact["weights"], fact["digits"])
    # One-hot values: the output is the weights, also where no weights are kept.
    assert_prints(regard.attend(q, k, torch.eye(3), bias=bias)[0], fact["weights"], fact["digits"])
    wrong = ((kept.scores + bias) / fact["d_key"] ** 0.5).softmax(dim=-1)
    assert_prints(wrong[0], fact["biased before scaling"], fact["digits"])


def test_number_of_parameters_of_a_head__E_25():
    head, fact = course.AttentionHead(embed_dim=5, head_size=16), FACTS["errata"]["E-25"]
    assert head.query.weight.numel() == fact["one projection"]
    assert sum(p.numel() for p in head.parameters()) == fact["one head"]


@pytest.mark.parametrize(("scale", "name"), [(1.0, "unscaled"), (12 * 16**-0.5, "scaled x 12")])
def test_saturation_without_the_scale__E_27(scale, name):
    expected = FACTS["errata"]["E-27"][name]
    assert_prints(head_of_003(lambda x: steps_of_003(x, scale=scale))[0, : len(expected)], expected)


@pytest.mark.parametrize(
    "make",
    [
        lambda: course.MultiHeadedAttention(**SIZES, num_heads=2)(X, X, X, mask=BLOCKED),
        lambda: course.MultiHeadAttention(**SIZES, num_heads=2)(X, X, X, mask=BLOCKED),
        lambda: joined_module(2)(X, mask=mask.causal()),
    ],
    ids=["004", "000", "module"],
)
def test_masked_heads_joined__E_36(make):
    torch.manual_seed(42)
    assert_prints(make(), FACTS["errata"]["E-36"]["two heads, masked"])
