"""The module against the equation written out for each head, separate linear layers, and PyTorch's own module."""

import copy

import pytest
import torch
from torch import nn

import regard
from regard import cache, mask, positions
from regard.attention.bias import PositionBias

D_MODEL, HEADS = 12, 4

KINDS = {
    "plain": {},
    "bias": {"bias": True},
    "grouped heads": {"num_kv_heads": 2},
    "one key head": {"num_kv_heads": 1, "bias": True},
    "other widths": {"d_key": 5, "d_value": 2},
    "no projection": {"out_proj": False, "d_value": 4},
    "context": {"d_context": 7},
    "everything": {"num_kv_heads": 2, "d_key": 5, "d_value": 2, "d_context": 7, "bias": True},
}
SELF = {name: kind for name, kind in KINDS.items() if "d_context" not in kind}

every_kind = pytest.mark.parametrize("kind", KINDS.values(), ids=KINDS)
every_self = pytest.mark.parametrize("kind", SELF.values(), ids=SELF)


def make(kind, **more):
    return regard.MultiHeadAttention(D_MODEL, HEADS, **kind, **more)


def inputs(kind, batch=(2,), tokens=5, context_tokens=6):
    """x, and the context that this kind of module needs or None."""
    width = kind.get("d_context")
    return torch.randn(*batch, tokens, D_MODEL), None if width is None else torch.randn(*batch, context_tokens, width)


def by_hand(module, x, context=None, who=None):
    """Concat(head_1, ..., head_h) W^O, one head after another, its weights cut out of the packed ones."""
    context = x if context is None else context
    counts = (HEADS, module.num_kv_heads, module.num_kv_heads)
    widths = [n * width for n, width in zip(counts, (module.d_key, module.d_key, module.d_value), strict=True)]

    def by_head(name):
        """That parameter of the query, key and value projection, head by head."""
        if module.d_context is None:
            packed = getattr(module.qkv, name).split(widths)
        else:
            packed = (getattr(module.q, name), *getattr(module.kv, name).split(widths[1:]))
        return [part.unflatten(0, (n, -1)) for part, n in zip(packed, counts, strict=True)]

    has_bias = module.get_submodule("qkv" if module.d_context is None else "kv").bias is not None
    weights, biases = by_head("weight"), by_head("bias") if has_bias else [torch.zeros(n, 1) for n in counts]
    outputs = []
    for head in range(HEADS):
        shared = head // (HEADS // module.num_kv_heads)
        q, k, v = (
            source @ weight[which].T + bias[which]
            for source, weight, bias, which in zip(
                (x, context, context), weights, biases, (head, shared, shared), strict=True
            )
        )
        if isinstance(module.positions, positions.Rotary):
            q, k = module.positions(q), module.positions(k)
        scores = q @ k.transpose(-2, -1) / module.d_key**0.5
        if isinstance(module.positions, PositionBias):
            scores = scores + module.positions(torch.arange(x.shape[-2]), torch.arange(x.shape[-2]))[head]
        if who is not None:
            scores = scores.masked_fill(~who.dense(x.shape[-2], context.shape[-2]), -torch.inf)
        outputs.append(scores.softmax(dim=-1) @ v)
    return module.out_proj(torch.cat(outputs, dim=-1))


# The mathematics.


@every_kind
@pytest.mark.parametrize("batch", [(), (2,), (2, 3)])
@pytest.mark.parametrize("who", [None, mask.causal(offset=1)], ids=repr)
def test_heads_by_hand(kind, batch, who):
    module = make(kind).double()
    x, context = (None if t is None else t.double() for t in inputs(kind, batch))
    torch.testing.assert_close(module(x, context, who), by_hand(module, x, context, who))


INSIDE = {
    "rotary": lambda: positions.Rotary(4),
    "rotary, in part": lambda: positions.Rotary(4, rotary_dim=2, interleaved=True, scaling=positions.Linear(2.0)),
    "ALiBi": lambda: positions.ALiBi(HEADS),
    "T5": lambda: positions.T5Relative(HEADS),
}
inside = pytest.mark.parametrize("inside", INSIDE.values(), ids=INSIDE)


@inside
@pytest.mark.parametrize("kind", [{}, {"num_kv_heads": 2}, {"d_value": 7}], ids=repr)
@pytest.mark.parametrize("who", [None, mask.causal(), mask.window(2)], ids=repr)
def test_positions_inside_attention_by_hand(inside, kind, who):
    module = make({"d_key": 4, **kind}, positions=inside()).double()
    x = torch.randn(2, 5, D_MODEL).double()
    torch.testing.assert_close(module(x, mask=who), by_hand(module, x, who=who))
    torch.testing.assert_close(module.steps(x, mask=who).projected, module(x, mask=who))


@pytest.mark.parametrize("d_value", [2, 3, 6])
@pytest.mark.parametrize("tokens", [2, 5])
@pytest.mark.parametrize("interleaved", [False, True])
def test_rotary_heads_narrower_than_their_values(d_value, tokens, interleaved):
    """Rotation leaves the numbers of a head apart in memory, and the kernel wants q, k and v of one width."""
    rotary = positions.Rotary(2, interleaved=interleaved)
    module = make({"num_kv_heads": 1, "d_key": 2, "d_value": d_value}, positions=rotary).double()
    x = torch.randn(2, tokens, D_MODEL).double()
    for who in (None, mask.causal()):
        torch.testing.assert_close(module(x, mask=who), module.steps(x, mask=who).projected)


@inside
def test_positions_tell_the_order_of_the_tokens(inside):
    module, x = make({"d_key": 4}, positions=inside()), torch.randn(5, D_MODEL)
    order = torch.randperm(5).roll(1)
    assert not torch.allclose(module(x[order]), module(x)[order], atol=1e-4)


def test_the_learned_bias_learns():
    module = make({}, positions=positions.T5Relative(HEADS))
    module(torch.randn(2, 5, D_MODEL)).sum().backward()
    assert module.positions.weight.grad.abs().sum() > 0


@inside
def test_positions_compare_the_tokens_of_one_sequence(inside):
    x = torch.randn(5, D_MODEL)
    for call in both_ways({"d_key": 4, "positions": inside()}, x, x):
        with pytest.raises(ValueError, match=r"positions=.* compare tokens of one sequence"):
            call()
    with pytest.raises(ValueError, match=r"compare tokens of one sequence; d_context=7"):
        make({"d_key": 4, "d_context": 7}, positions=inside())


@pytest.mark.usefixtures("as_a_user_runs_it")
@pytest.mark.parametrize(
    ("given", "error", "message"),
    [
        ("rotary", TypeError, r"positions='rotary': inside attention they are a Rotary, ALiBi or T5Relative"),
        (positions.Sinusoidal(D_MODEL), TypeError, r"Sinusoidal and Learned positions are added to x"),
        (positions.Rotary(8), ValueError, r"rotate heads of width 8; here d_key=3"),
        (positions.ALiBi(3), ValueError, r"have 3 heads; here num_heads=4"),
    ],
)
def test_positions_that_do_not_fit(given, error, message):
    with pytest.raises(error, match=message):
        make({}, positions=given)


@every_self
def test_a_context_as_wide_as_the_model(kind):
    module = make(kind)
    x, context = torch.randn(2, 5, D_MODEL), torch.randn(2, 3, D_MODEL)
    torch.testing.assert_close(module(x, context), by_hand(module, x, context))
    torch.testing.assert_close(module(x, x), module(x))


@every_kind
def test_one_sequence_is_a_batch_of_one(kind):
    module = make(kind)
    x, context = inputs(kind)
    batched = module(x, context)
    for row in range(2):
        torch.testing.assert_close(module(x[row], None if context is None else context[row]), batched[row])


@every_kind
def test_no_position_is_known_without_positions(kind):
    module = make(kind)
    x, context = inputs(kind)
    order = torch.randperm(5)
    torch.testing.assert_close(module(x[:, order], context), module(x, context)[:, order])


def test_width_per_head_is_the_papers__E_10_E_20():
    module = regard.MultiHeadAttention(512, 8)
    assert (module.d_key, module.d_value) == (64, 64)
    x = torch.randn(3, 512)
    kept = module.steps(x)
    assert kept.heads.shape == kept.projected.shape == (3, 512)
    torch.testing.assert_close(kept.scaled, kept.scores / 8)


# What newer models add to the paper's attention.


@pytest.mark.parametrize("kind", [{}, {"num_kv_heads": 2, "bias": True}, {"d_context": 7}], ids=str)
def test_scale_cap_sinks_and_norms_by_hand(kind):
    more = {"scale": 0.7, "softcap": 2.0, "sinks": True, "qk_norm": 1e-3}
    module, who = make(kind, **more).double(), mask.causal(offset=0)
    for p in module.parameters():
        nn.init.normal_(p)
    x, context = (None if t is None else t.double() for t in inputs(kind))
    kept = module.steps(x, context, who)
    source = x if context is None else context
    q_weight, k_weight, v_weight = (weight for weight, _ in module._projection_weights())
    q_bias, k_bias, v_bias = (0 if bias is None else bias for _, bias in module._projection_weights())

    def normed(t, norm):
        t = t.unflatten(-1, (-1, module.d_key)).transpose(1, 2)
        return t / (t.square().mean(-1, keepdim=True) + 1e-3).sqrt() * norm.weight

    q, k = normed(x @ q_weight.T + q_bias, module.q_norm), normed(source @ k_weight.T + k_bias, module.k_norm)
    v = (source @ v_weight.T + v_bias).unflatten(-1, (-1, module.d_value)).transpose(1, 2)
    torch.testing.assert_close((kept.q, kept.k, kept.v), (q, k, v))
    k, v = (t.repeat_interleave(HEADS // module.num_kv_heads, dim=1) for t in (k, v))
    scores = 2.0 * torch.tanh(q @ k.mT * 0.7 / 2.0)
    numbers = scores.exp() * who.dense(5, source.shape[1])
    weights = numbers / (numbers.sum(-1, keepdim=True) + module.sinks.exp()[:, None, None])
    torch.testing.assert_close(kept.weights, weights)
    torch.testing.assert_close(kept.heads, (weights @ v).transpose(1, 2).flatten(2))
    torch.testing.assert_close(module(x, context, who), kept.projected)


def test_a_table_of_other_positions():
    """Left padding: each row of a batch stands elsewhere."""
    module, x = make({"d_key": 4}, positions=positions.Rotary(4)).double(), torch.randn(2, 5, D_MODEL).double()
    at = torch.tensor([[0, 1, 2, 3, 4], [0, 0, 0, 1, 2]])
    cos_sin = module.positions.cos_sin(at, dtype=torch.float64)
    ours = module(x, mask=mask.padding([5, 5]), cos_sin=cos_sin)
    torch.testing.assert_close(module.steps(x, cos_sin=cos_sin).projected, ours)
    torch.testing.assert_close(ours[0], module(x[0]))
    torch.testing.assert_close(ours[1], module(x[1], cos_sin=tuple(t[1] for t in cos_sin)))
    assert not torch.allclose(ours[1], module(x[1]))
    # Further along, and all alike: what is relative does not change.
    torch.testing.assert_close(
        module(x, cos_sin=module.positions.cos_sin(torch.arange(5) + 9, dtype=torch.float64)), module(x)
    )


@pytest.mark.parametrize("own", [None, positions.ALiBi(HEADS)], ids=["none of its own", "instead of its own"])
def test_a_bias_that_layers_share(own):
    module, x = make({}, positions=own).double(), torch.randn(2, 5, D_MODEL).double()
    shared, plain = positions.T5Relative(HEADS).double(), make({}).double()
    plain.load_state_dict(module.state_dict())
    dense = shared.dense(5, 5)
    for bias in (shared, dense):
        ours = module(x, bias=bias)
        torch.testing.assert_close(module.steps(x, bias=bias).projected, ours)
        q, k, v = (getattr(plain.steps(x), name) for name in "qkv")
        heads = ((q @ k.mT / module.d_key**0.5 + dense).softmax(-1) @ v).transpose(1, 2).flatten(2)
        torch.testing.assert_close(ours, module.out_proj(heads))


@pytest.mark.parametrize(("bias", "out_bias"), [(True, False), (False, True), (True, None), (False, None)])
def test_which_projections_have_a_bias(bias, out_bias):
    module = make({}, bias=bias, out_bias=out_bias)
    assert (module.qkv.bias is not None) is bias
    assert (module.out_proj.bias is not None) is (bias if out_bias is None else out_bias)


def test_what_newer_models_add_begins_as_if_it_were_not_there():
    torch.manual_seed(5)
    plain = make({})
    torch.manual_seed(5)
    module = make({}, qk_norm=1e-6, sinks=True)
    assert torch.equal(module.qkv.weight, plain.qkv.weight)
    assert torch.equal(module.sinks, torch.zeros(HEADS))
    assert torch.equal(module.q_norm.weight, torch.ones(3))
    assert set(module.state_dict()) - set(plain.state_dict()) == {"sinks", "q_norm.weight", "k_norm.weight"}


# Steps.


@every_kind
@pytest.mark.parametrize("who", [None, mask.causal(offset=1), mask.padding([5, 0])], ids=repr)
def test_steps_end_in_what_the_module_returns__pytorch_99282(kind, who):
    module = make(kind)
    x, context = inputs(kind, context_tokens=5)
    torch.testing.assert_close(module.steps(x, context, who).projected, module(x, context, who))


@every_kind
@pytest.mark.parametrize("batch", [(), (2,), (2, 3)])
def test_every_intermediate_by_head(kind, batch):
    module = make(kind)
    x, context = inputs(kind, batch)
    keys = 5 if context is None else 6
    kept = module.steps(x, context)
    shapes = {name: tuple(value.shape) for name, value in vars(kept).items()}
    scores = dict.fromkeys(("scores", "scaled", "capped", "biased", "masked", "weights"), (*batch, HEADS, 5, keys))
    assert shapes == {
        **scores,
        "q": (*batch, HEADS, 5, module.d_key),
        "k": (*batch, module.num_kv_heads, keys, module.d_key),
        "v": (*batch, module.num_kv_heads, keys, module.d_value),
        "output": (*batch, HEADS, 5, module.d_value),
        "heads": (*batch, 5, HEADS * module.d_value),
        "projected": (*batch, 5, HEADS * module.d_value if kind.get("out_proj") is False else D_MODEL),
    }
    again = regard.steps(kept.q, kept.k, kept.v)
    assert torch.equal(again.weights, kept.weights)
    assert torch.equal(torch.cat(again.output.unbind(dim=-3), dim=-1), kept.heads)


def test_a_fully_masked_head_is_no_reason_for_nan__pytorch_160064():
    module = regard.MultiHeadAttention(3, 3)
    x = torch.randn(1, 5, 3, requires_grad=True)
    third_head_blocked = mask.blocked(torch.tensor([False, False, True])[:, None, None])
    kept = module.steps(x, mask=third_head_blocked)
    assert (kept.weights[:, 2] == 0).all()
    assert (kept.heads[..., 2] == 0).all()
    output = module(x, mask=third_head_blocked)
    torch.testing.assert_close(output, kept.projected)
    output.sum().backward()
    for t in (x, *module.parameters()):
        assert t.grad.isfinite().all()


# Weights as tutorials draw them.


@pytest.mark.parametrize("bias", [False, True])
@pytest.mark.parametrize("kv_heads", [4, 2, 1])
@pytest.mark.parametrize("d_context", [None, 7])
@pytest.mark.parametrize("out_proj", [False, True])
def test_a_seed_draws_what_separate_layers_would_draw(bias, kv_heads, d_context, out_proj):
    torch.manual_seed(11)
    drawn = {"q": [], "k": [], "v": []}
    for head in range(HEADS):
        drawn["q"].append(nn.Linear(D_MODEL, 5, bias=bias))
        if head % (HEADS // kv_heads) == 0:
            drawn["k"].append(nn.Linear(d_context or D_MODEL, 5, bias=bias))
            drawn["v"].append(nn.Linear(d_context or D_MODEL, 2, bias=bias))
    output = nn.Linear(HEADS * 2, D_MODEL, bias=bias) if out_proj else None
    afterwards = torch.rand(3)

    torch.manual_seed(11)
    module = regard.MultiHeadAttention(
        D_MODEL, HEADS, num_kv_heads=kv_heads, d_key=5, d_value=2, d_context=d_context, bias=bias, out_proj=out_proj
    )
    assert torch.equal(torch.rand(3), afterwards)

    for name in ("weight", "bias") if bias else ("weight",):
        q, k, v = (torch.cat([getattr(layer, name) for layer in drawn[which]]) for which in "qkv")
        if d_context is None:
            assert torch.equal(getattr(module.qkv, name), torch.cat([q, k, v]))
        else:
            assert torch.equal(getattr(module.q, name), q)
            assert torch.equal(getattr(module.kv, name), torch.cat([k, v]))
        if out_proj:
            assert torch.equal(getattr(module.out_proj, name), getattr(output, name))


@every_kind
def test_reset_parameters_draws_the_same_again(kind):
    torch.manual_seed(5)
    module = make(kind)
    before = copy.deepcopy(module.state_dict())
    with torch.no_grad():
        for parameter in module.parameters():
            parameter.fill_(torch.nan)
    torch.manual_seed(5)
    module.reset_parameters()
    assert all(torch.equal(value, before[name]) for name, value in module.state_dict().items())


@every_kind
def test_made_on_the_meta_device_and_drawn_later(kind):
    with torch.device("meta"):
        module = make(kind)
    assert {parameter.device.type for parameter in module.parameters()} == {"meta"}
    x, context = inputs(kind)
    to_meta = (None if t is None else t.to("meta") for t in (x, context))
    shape = module(*to_meta).shape

    module.to_empty(device="cpu")
    torch.manual_seed(5)
    module.reset_parameters()
    torch.manual_seed(5)
    expected = make(kind)(x, context)
    assert torch.equal(module(x, context), expected)
    assert expected.shape == shape


@every_kind
def test_state_dict_round_trip(kind):
    module, other = make(kind), make(kind)
    x, context = inputs(kind)
    assert not torch.equal(module(x, context), other(x, context))
    other.load_state_dict(module.state_dict())
    assert torch.equal(module(x, context), other(x, context))


def test_one_packed_projection():
    assert {name: tuple(p.shape) for name, p in make(KINDS["other widths"]).named_parameters()} == {
        "qkv.weight": (HEADS * (5 + 5 + 2), D_MODEL),
        "out_proj.weight": (D_MODEL, HEADS * 2),
    }
    assert {name: tuple(p.shape) for name, p in make(KINDS["everything"]).named_parameters()} == {
        "q.weight": (HEADS * 5, D_MODEL),
        "q.bias": (HEADS * 5,),
        "kv.weight": (2 * (5 + 2), 7),
        "kv.bias": (2 * (5 + 2),),
        "out_proj.weight": (D_MODEL, HEADS * 2),
        "out_proj.bias": (D_MODEL,),
    }


# Beside PyTorch's module.


def beside_pytorchs(kind):
    """PyTorch's module and ours with the same weights."""
    bias, width = kind.get("bias", False), kind.get("d_context")
    theirs = nn.MultiheadAttention(D_MODEL, HEADS, bias=bias, kdim=width, vdim=width, batch_first=True)
    weights = theirs.state_dict()
    if bias:
        weights = {name: nn.init.normal_(t) if "bias" in name else t for name, t in weights.items()}
    if width is None:
        renamed = {"qkv.weight": weights["in_proj_weight"], "qkv.bias": weights.get("in_proj_bias")}
    else:
        q_bias, k_bias, v_bias = weights["in_proj_bias"].chunk(3) if bias else (None, None, None)
        renamed = {
            "q.weight": weights["q_proj_weight"],
            "q.bias": q_bias,
            "kv.weight": torch.cat([weights["k_proj_weight"], weights["v_proj_weight"]]),
            "kv.bias": torch.cat([k_bias, v_bias]) if bias else None,
        }
    renamed |= {name: t for name, t in weights.items() if name.startswith("out_proj")}
    ours = make(kind)
    ours.load_state_dict({name: t for name, t in renamed.items() if t is not None})
    return theirs, ours


@pytest.mark.parametrize("kind", [{}, {"bias": True}, {"d_context": 7}, {"d_context": 7, "bias": True}], ids=str)
@pytest.mark.parametrize("training", [True, False])
def test_the_same_numbers_as_pytorchs_module(kind, training):
    theirs, ours = (module.train(training) for module in beside_pytorchs(kind))
    x, context = inputs(kind, context_tokens=5)
    source = x if context is None else context
    t = torch.rand(5, 5) < 0.4
    t.fill_diagonal_(False)
    lengths = torch.tensor([5, 3])
    padded = torch.arange(5) >= lengths[:, None]

    for theirs_says, ours_says in [
        ({}, None),
        ({"attn_mask": t}, mask.blocked(t)),
        ({"key_padding_mask": padded}, mask.padding(lengths)),
        ({"key_padding_mask": padded}, mask.blocked(padded[:, None, None, :])),
    ]:
        output, weights = theirs(x, source, source, average_attn_weights=False, **theirs_says)
        torch.testing.assert_close(ours(x, context, ours_says), output)
        torch.testing.assert_close(ours.steps(x, context, ours_says).weights, weights)


# Training and evaluation.


@every_kind
def test_a_gradient_reaches_every_parameter_and_input(kind):
    module = make(kind)
    given = [t.requires_grad_() for t in inputs(kind) if t is not None]
    module(*given).square().sum().backward()
    for t in (*given, *module.parameters()):
        assert t.grad.abs().sum() > 0


def test_dropout_in_training_only():
    module, x = make({}, dropout=0.5), torch.randn(2, 5, D_MODEL)
    without = make({})
    without.load_state_dict(module.state_dict())
    assert not torch.equal(module(x), module(x))
    assert not torch.allclose(module(x), without(x))
    assert torch.equal(module.steps(x).projected, without.steps(x).projected)
    module.eval()
    assert torch.equal(module(x), without(x))


def test_everything_dropped_leaves_nothing():
    assert (make({}, dropout=1.0)(torch.randn(2, 5, D_MODEL)) == 0).all()


@pytest.mark.parametrize("grad", [True, False])
def test_hooks_are_called_on_every_path__pytorch_128413(grad):
    module = make({}).eval()
    called = []
    for name, part in module.named_modules():
        part.register_forward_hook(lambda *_, name=name: called.append(name))
    with torch.set_grad_enabled(grad):
        module(torch.randn(2, 5, D_MODEL))
    assert called == ["qkv", "out_proj", ""]


@pytest.mark.parametrize("who", [None, mask.causal(), mask.padding([4, 2])], ids=repr)
def test_evaluation_gives_the_numbers_of_training__pytorch_86120(who):
    module, x = make({"bias": True}), torch.randn(2, 5, D_MODEL)
    training = module.train()(x, mask=who)
    with torch.inference_mode():
        assert torch.equal(module.eval()(x, mask=who), training)


def test_padding_keeps_the_shape_of_the_batch__pytorch_97111():
    x = torch.randn(2, 5, D_MODEL)
    assert make({}).eval()(x, mask=mask.padding([3, 1])).shape == x.shape


@pytest.mark.parametrize("dtype", [torch.float64, torch.bfloat16, torch.float16])
@every_kind
def test_dtype_of_the_weights_is_the_dtype_of_the_result(kind, dtype):
    x, context = (None if t is None else t.to(dtype) for t in inputs(kind))
    assert make(kind).to(dtype)(x, context).dtype == dtype


@every_kind
@pytest.mark.parametrize(("batch", "tokens"), [((0,), 5), ((2,), 0), ((), 0), ((2,), 1)])
def test_no_batch_no_tokens_one_token(kind, batch, tokens):
    module = make(kind)
    x, context = inputs(kind, batch, tokens)
    assert module(x, context).shape == (*batch, tokens, module.steps(x, context).projected.shape[-1])


def test_an_empty_context_gives_zeros():
    assert (make({})(torch.randn(2, 5, D_MODEL), torch.randn(2, 0, D_MODEL)) == 0).all()


def test_memory_layout_of_the_input_does_not_matter():
    module = make({"bias": True})
    x = torch.randn(5, 2, D_MODEL).transpose(0, 1)
    torch.testing.assert_close(module(x), module(x.contiguous()))


@every_kind
def test_rows_of_a_batch_are_independent_bit_for_bit(kind):
    module = make(kind)
    x, context = inputs(kind, batch=(5,), tokens=33)
    together = module(x, context)
    for rows in (slice(0, 1), slice(1, 3), slice(0, 4)):
        assert torch.equal(module(x[rows], None if context is None else context[rows]), together[rows])


def test_a_causal_output_knows_nothing_of_later_tokens__pytorch_108108():
    module = make({"bias": True})
    x = torch.randn(1, 6, D_MODEL)
    before = module(x, mask=mask.causal())
    for i in range(6):
        changed = x.clone()
        changed[:, i] = torch.randn(D_MODEL)
        differs = (module(changed, mask=mask.causal()) != before).any(dim=-1)[0]
        assert differs.tolist() == [j >= i for j in range(6)]


def test_print_tells_the_sizes():
    text = repr(make(KINDS["everything"]))
    assert "num_heads=4, num_kv_heads=2, d_key=5, d_value=2" in text


# What is refused.


@pytest.mark.parametrize(
    ("wrong", "message"),
    [
        ({"num_heads": 5}, "d_model=12 does not divide into num_heads=5"),
        ({"num_heads": 0}, "num_heads=0"),
        ({"num_heads": -4}, "num_heads=-4"),
        ({"d_model": 0}, "d_model=0"),
        ({"num_kv_heads": 3}, "num_heads=4 cannot share num_kv_heads=3 evenly"),
        ({"num_kv_heads": 8}, "num_heads=4 cannot share num_kv_heads=8 evenly"),
        ({"num_kv_heads": 0}, "num_kv_heads=0"),
        ({"d_key": 0}, "d_key=0"),
        ({"d_value": 0}, "d_value=0"),
        ({"d_key": -3}, "d_key=-3"),
        ({"dropout": -0.1}, "dropout=-0.1"),
        ({"dropout": 1.5}, "dropout=1.5"),
        ({"d_context": 0}, "d_context=0"),
        ({"d_context": -1}, "d_context=-1"),
    ],
)
def test_sizes_that_do_not_fit(wrong, message):
    with pytest.raises(ValueError, match=message):
        regard.MultiHeadAttention(**{"d_model": D_MODEL, "num_heads": HEADS, **wrong})


@pytest.mark.usefixtures("as_a_user_runs_it")
def test_a_cache_that_does_not_fit_is_named():
    x = torch.randn(2, 5, D_MODEL)
    with pytest.raises(
        TypeError,
        match=r"cache=dict: it must be a Dynamic, Static or Sliding of regard.cache, .* a CrossAttentionCache",
    ):
        make({})(x, cache={})
    with pytest.raises(
        ValueError,
        match=r"cache=Dynamic\(num_tokens=0, num_cached=0\) holds tokens of x; .* regard.cache.CrossAttentionCache",
    ):
        make({})(x, x, cache=cache.Dynamic())
    with pytest.raises(ValueError, match=r"needs a context of width d_context=7; none was given"):
        make({"d_context": 7})(x, cache=cache.Dynamic())
    with pytest.raises(ValueError, match=r"cache=CrossAttentionCache\(\) is empty: its first call needs the context"):
        make({})(x, cache=cache.CrossAttentionCache())


@pytest.mark.usefixtures("as_a_user_runs_it")
def test_a_table_needs_rotary_positions():
    x, rotary = torch.randn(2, 5, D_MODEL), positions.Rotary(4)
    cos_sin = rotary.cos_sin(torch.arange(5))
    for module, context in (
        (make({}), None),
        (make({"d_key": 4}, positions=positions.ALiBi(HEADS)), None),
        (make({}), x),
    ):
        with pytest.raises(ValueError, match="cos_sin rotates queries and keys of rotary positions; here positions="):
            module(x, context, cos_sin=cos_sin)
    with pytest.raises(ValueError, match=r"positions of shape \(5,\) do not fit x of shape \(2, 4, 3, 4\)"):
        make({"d_key": 4}, positions=rotary)(x[:, :3], cos_sin=cos_sin)


def both_ways(kind, *given):
    """The call of the module, and the call of its steps."""
    module = make(kind)
    return [lambda: module(*given), lambda: module.steps(*given)]


@pytest.mark.usefixtures("as_a_user_runs_it")
@pytest.mark.parametrize("way", [0, 1], ids=["forward", "steps"])
@pytest.mark.parametrize(
    ("kind", "x", "context", "message"),
    [
        ({}, (2, 5, 11), None, r"x must be \(\.\.\., tokens, d_model=12\); got \(2, 5, 11\)"),
        ({}, (2, 5, 12), (2, 6, 7), r"context must be \(\.\.\., tokens, 12\).* got \(2, 6, 7\)"),
        ({}, (2, 5, 12), (3, 6, 12), r"batch of x \(2, 5, 12\); got \(3, 6, 12\)"),
        ({}, (2, 5, 12), (6, 12), r"batch of x \(2, 5, 12\); got \(6, 12\)"),
        ({"d_context": 7}, (2, 5, 12), (2, 6, 12), r"context must be \(\.\.\., tokens, 7\).* got \(2, 6, 12\)"),
        ({"d_context": 7}, (2, 5, 12), None, "needs a context of width d_context=7; none was given"),
        ({}, (12,), None, r"x must be"),
    ],
)
def test_inputs_that_do_not_fit_are_named(kind, x, context, message, way):
    x, context = torch.randn(x), None if context is None else torch.randn(context)
    with pytest.raises(ValueError, match=message):
        both_ways(kind, x, context)[way]()


@pytest.mark.usefixtures("as_a_user_runs_it")
@pytest.mark.parametrize("way", [0, 1], ids=["forward", "steps"])
@pytest.mark.parametrize("t", [torch.ones(5, 5).bool(), torch.ones(5, 5)], ids=["bool", "float"])
def test_a_bare_tensor_is_no_mask__transformers_38094(t, way):
    with pytest.raises(TypeError, match=r"mask\.allowed.*mask\.blocked"):
        both_ways({}, torch.randn(2, 5, D_MODEL), None, t)[way]()


@pytest.mark.usefixtures("as_a_user_runs_it")
@pytest.mark.parametrize("way", [0, 1], ids=["forward", "steps"])
def test_a_mask_in_the_place_of_the_context(way):
    with pytest.raises(TypeError, match="mask="):
        both_ways({}, torch.randn(2, 5, D_MODEL), mask.causal())[way]()
