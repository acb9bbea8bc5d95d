"""The module against the equation written out for each head, separate linear layers, and PyTorch's own module."""

import pytest
import torch
from torch import nn

import regard
from grids import grid
from models import assert_every_parameter_learns, randomized
from regard import MultiHeadAttention, cache, mask, positions
from regard.attention.bias import PositionBias

D_MODEL, HEADS = 12, 4
NEWER = {"scale": 0.7, "softcap": 2.0, "sinks": True, "qk_norm": 1e-3}
KINDS = {
    "plain": {},
    "bias": {"bias": True},
    "grouped heads": {"num_kv_heads": 2},
    "one key head": {"num_kv_heads": 1, "bias": True},
    "other widths": {"d_key": 5, "d_value": 2},
    "no projection": {"out_proj": False, "d_value": 4},
    "context": {"d_context": 7},
    "everything": {"num_kv_heads": 2, "d_key": 5, "d_value": 2, "d_context": 7, "bias": True},
    "newer": {**NEWER, "num_kv_heads": 2, "bias": True},
    "newer, context": {**NEWER, "d_context": 7},
}
MASKS = {"no mask": None, "causal": mask.causal(offset=1), "padding": mask.padding([5, 0])}
EITHER = {"forward": MultiHeadAttention.__call__, "steps": MultiHeadAttention.steps}

every_kind = pytest.mark.parametrize("kind", KINDS.values(), ids=KINDS)
either = pytest.mark.parametrize("call", EITHER.values(), ids=EITHER)


def make(kind, **more):
    return MultiHeadAttention(**{"d_model": D_MODEL, "num_heads": HEADS, **kind, **more})


def inputs(kind, batch=(2,), tokens=5, dtype=None):
    """x, and the context that this kind of module needs or None."""
    width = kind.get("d_context")
    context = None if width is None else torch.randn(*batch, 6, width, dtype=dtype)
    return torch.randn(*batch, tokens, D_MODEL, dtype=dtype), context


def randn(*shape, width=D_MODEL):
    return torch.randn(*shape, width, dtype=torch.float64)


def by_hand(module, x, context=None, who=None):
    """Concat(head_1, ..., head_h) W^O by the definition, head after head, its weights cut out of the packed ones."""
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

    def normed(t, norm):
        return t if norm is None else t / (t.square().mean(-1, keepdim=True) + norm.eps).sqrt() * norm.weight

    has_bias = module.get_submodule("qkv" if module.d_context is None else "kv").bias is not None
    weights, biases = by_head("weight"), by_head("bias") if has_bias else [torch.zeros(n, 1) for n in counts]
    outputs = []
    for head in range(HEADS):
        shared = head // (HEADS // module.num_kv_heads)
        sources, heads = (x, context, context), (head, shared, shared)
        q, k, v = (s @ w[h].T + b[h] for s, w, b, h in zip(sources, weights, biases, heads, strict=True))
        q, k = normed(q, module.q_norm), normed(k, module.k_norm)
        options = {"scale": module.scale, "softcap": module.softcap}
        if isinstance(module.positions, positions.Rotary):
            q, k = module.positions(q), module.positions(k)
        if isinstance(module.positions, PositionBias):
            options["bias"] = module.positions.dense(x.shape[-2], x.shape[-2])[head]
        if module.sinks is not None:
            options["sinks"] = module.sinks[head, None]
        one_head = (t.unsqueeze(-3) for t in (q, k, v))
        outputs.append(regard.steps(*one_head, who, **options).output.squeeze(-3))
    return module.out_proj(torch.cat(outputs, dim=-1))


@grid(
    kind=KINDS,
    who=MASKS,
    batch=[(), (2,), (2, 3)],
    reads=["itself", "a context"],
    where=lambda kind, who, batch, reads: (
        (reads == "a context" or "d_context" not in KINDS[kind])
        and (who != "padding" or (batch == (2,) and reads == "itself"))
    ),
)
def test_heads_by_hand(kind, who, batch, reads):
    """The definition by steps, too, ends in what the module returns (pytorch#99282)."""
    module, who, x = randomized(make(KINDS[kind])), MASKS[who], randn(*batch, 5)
    context = None if reads == "itself" else randn(*batch, 6, width=module.d_context or D_MODEL)
    expected = by_hand(module, x, context, who)
    torch.testing.assert_close(module(x, context, who), expected)
    torch.testing.assert_close(module.steps(x, context, who).projected, expected)


INSIDE = {
    "rotary": lambda: positions.Rotary(4),
    "rotary, in part": lambda: positions.Rotary(4, rotary_dim=2, interleaved=True, scaling=positions.Linear(2.0)),
    "ALiBi": lambda: positions.ALiBi(HEADS),
    "T5": lambda: positions.T5Relative(HEADS),
}


@grid(
    inside=INSIDE,
    kind=[{}, {"num_kv_heads": 2, "qk_norm": 1e-3}, {"d_value": 7}, {"num_kv_heads": 1, "d_value": 2}],
    who=[None, mask.causal(), mask.window(2)],
)
def test_positions_inside_attention_by_hand(inside, kind, who):
    module, x = randomized(make({"d_key": 4, **kind}, positions=INSIDE[inside]())), randn(2, 5)
    torch.testing.assert_close(module(x, mask=who), by_hand(module, x, who=who))
    torch.testing.assert_close(module.steps(x, mask=who).projected, module(x, mask=who))


def test_rotation_by_other_positions():
    """Left padding: each row of a batch stands elsewhere."""
    module, x = make({"d_key": 4}, positions=positions.Rotary(4)).double(), randn(2, 5)

    def cos_sin(at):
        return module.positions.cos_sin(at, dtype=torch.float64)

    of_rows = cos_sin(torch.tensor([[0, 1, 2, 3, 4], [0, 0, 0, 1, 2]]))
    ours = module(x, mask=mask.padding([5, 5]), cos_sin=of_rows)
    torch.testing.assert_close(module.steps(x, cos_sin=of_rows).projected, ours)
    torch.testing.assert_close(ours[0], module(x[0]))
    torch.testing.assert_close(ours[1], module(x[1], cos_sin=tuple(t[1] for t in of_rows)))
    assert not torch.allclose(ours[1], module(x[1]))
    torch.testing.assert_close(module(x, cos_sin=cos_sin(torch.arange(5) + 9)), module(x))  # what is relative stays


@pytest.mark.parametrize("own", [None, positions.ALiBi(HEADS)], ids=["none of its own", "instead of its own"])
def test_a_bias_that_layers_share(own):
    shared, x = positions.T5Relative(HEADS).double(), randn(2, 5)
    module, with_bias = make({}, positions=own).double(), make({}, positions=shared).double()
    with_bias.load_state_dict(module.state_dict(), strict=False)
    for bias in (shared, shared.dense(5, 5)):
        torch.testing.assert_close(module(x, bias=bias), with_bias(x))
        torch.testing.assert_close(module.steps(x, bias=bias).projected, with_bias(x))


@pytest.mark.parametrize(("bias", "out_bias"), [(True, False), (False, True), (True, None), (False, None)])
def test_which_projections_have_a_bias(bias, out_bias):
    module = make({}, bias=bias, out_bias=out_bias)
    assert (module.qkv.bias is not None) is bias
    assert (module.out_proj.bias is not None) is (bias if out_bias is None else out_bias)


@every_kind
@pytest.mark.parametrize("batch", [(), (2,)])
def test_every_intermediate_by_head(kind, batch):
    module, (x, context) = make(kind), inputs(kind, batch)
    kept = module.steps(x, context)
    again = regard.steps(kept.q, kept.k, kept.v, scale=module.scale, softcap=module.softcap, sinks=module.sinks)
    assert all(torch.equal(getattr(kept, name), step) for name, step in vars(again).items() if step is not None)
    assert again.output.shape == (*batch, HEADS, 5, module.d_value)
    assert torch.equal(torch.cat(again.output.unbind(dim=-3), dim=-1), kept.heads)
    assert torch.equal(module.out_proj(kept.heads), kept.projected)


@grid(bias=[False, True], kv_heads=[4, 2, 1], d_context=[None, 7], out_proj=[False, True])
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
    widths = {"num_kv_heads": kv_heads, "d_key": 5, "d_value": 2, "d_context": d_context}
    module = make(widths, bias=bias, out_proj=out_proj, sinks=True, qk_norm=1e-6)
    assert torch.equal(torch.rand(3), afterwards)
    assert torch.equal(module.sinks, torch.zeros(HEADS))
    assert torch.equal(module.q_norm.weight, torch.ones(5))

    for name in ("weight", "bias") if bias else ("weight",):
        q, k, v = (torch.cat([getattr(layer, name) for layer in drawn[which]]) for which in "qkv")
        packed = {"qkv": (q, k, v)} if d_context is None else {"q": (q,), "kv": (k, v)}
        for part, expected in packed.items():
            assert torch.equal(getattr(module.get_submodule(part), name), torch.cat(expected))
        if out_proj:
            assert torch.equal(getattr(module.out_proj, name), getattr(output, name))


@every_kind
def test_made_on_the_meta_device_and_drawn_later(kind):
    with torch.device("meta"):
        module = make(kind)
    assert {parameter.device.type for parameter in module.parameters()} == {"meta"}
    x, context = inputs(kind)
    if "softcap" not in kind:  # its kernel has no meta device
        assert module(*(None if t is None else t.to("meta") for t in (x, context))).shape[:-1] == x.shape[:-1]

    module.to_empty(device="cpu")
    for parameter in module.parameters():
        nn.init.constant_(parameter, torch.nan)
    torch.manual_seed(5)
    module.reset_parameters()
    torch.manual_seed(5)
    other = make(kind)
    assert all(torch.equal(value, other.state_dict()[name]) for name, value in module.state_dict().items())
    assert torch.equal(module(x, context), other(x, context))


@every_kind
def test_a_gradient_reaches_every_parameter_and_input(kind):
    module, given = make(kind), [t.requires_grad_() for t in inputs(kind) if t is not None]
    assert_every_parameter_learns(module, module(*given))
    assert all(t.grad.abs().sum() > 0 for t in given)


def test_dropout_in_training_only():
    module, without, x = make({}, dropout=0.5), make({}), torch.randn(2, 5, D_MODEL)
    without.load_state_dict(module.state_dict())
    assert not torch.equal(module(x), module(x))
    assert not torch.allclose(module(x), without(x))
    assert torch.equal(module.steps(x).projected, without.steps(x).projected)
    assert torch.equal(module.eval()(x), without(x))
    assert (make({}, dropout=1.0)(x) == 0).all()


@pytest.mark.parametrize("grad", [True, False])
def test_hooks_are_called_on_every_path__pytorch_128413(grad):
    module, called = make({}).eval(), []
    for name, part in module.named_modules():
        part.register_forward_hook(lambda *_, name=name: called.append(name))
    with torch.set_grad_enabled(grad):
        module(torch.randn(2, 5, D_MODEL))
    assert called == ["qkv", "out_proj", ""]


@grid(kind=KINDS, dtype=[torch.float64, torch.bfloat16, torch.float16])
def test_dtype_of_the_weights_is_the_dtype_of_the_result(kind, dtype):
    x, context = inputs(KINDS[kind], dtype=dtype)
    assert make(KINDS[kind]).to(dtype)(x, context).dtype == dtype


@grid(kind=KINDS, shape=[((0,), 5), ((2,), 0), ((), 0), ((2,), 1)])
def test_no_batch_no_tokens_one_token(kind, shape):
    module, (batch, tokens) = make(KINDS[kind]), shape
    x, context = inputs(KINDS[kind], batch, tokens)
    assert module(x, context).shape == (*batch, tokens, module.steps(x, context).projected.shape[-1])


def test_an_empty_context_gives_zeros():
    assert (make({})(torch.randn(2, 5, D_MODEL), zeros(2, 0)) == 0).all()


@every_kind
def test_rows_of_a_batch_are_independent_bit_for_bit(kind):
    module, (x, context) = make(kind), inputs(kind, batch=(5,), tokens=33)
    together = module(x, context)
    for rows in (slice(0, 1), slice(1, 3), slice(0, 4)):
        assert torch.equal(module(x[rows], None if context is None else context[rows]), together[rows])


def test_print_tells_the_sizes():
    assert "num_heads=4, num_kv_heads=2, d_key=5, d_value=2" in repr(make(KINDS["everything"]))


ROTARY, ALIBI = positions.Rotary(4), positions.ALiBi(HEADS)
ONE_SEQUENCE = r"positions=.* compare tokens of one sequence"
ADDED_TO_X = r"inside attention they are .*\. Sinusoidal and Learned .* are added to x"


@pytest.mark.usefixtures("as_a_user_runs_it")
@pytest.mark.parametrize(
    ("wrong", "error", "message"),
    [
        ({"num_heads": 5}, ValueError, "d_model=12 does not divide into num_heads=5"),
        *(({name: 0}, ValueError, f"{name}=0")
          for name in ("num_heads", "d_model", "num_kv_heads", "d_key", "d_value", "d_context")),
        ({"num_kv_heads": 3}, ValueError, "num_heads=4 cannot share num_kv_heads=3 evenly"),
        ({"num_kv_heads": 8}, ValueError, "num_heads=4 cannot share num_kv_heads=8 evenly"),
        ({"dropout": -0.1}, ValueError, "dropout=-0.1"),
        ({"dropout": 1.5}, ValueError, "dropout=1.5"),
        ({"positions": positions.Rotary(8)}, ValueError, "rotate heads of width 8; here d_key=3"),
        ({"positions": positions.ALiBi(3)}, ValueError, "have 3 heads; here num_heads=4"),
        ({"positions": ROTARY, "d_key": 4, "d_context": 7}, ValueError, f"{ONE_SEQUENCE}; d_context=7"),
        ({"positions": ALIBI, "d_context": 7}, ValueError, f"{ONE_SEQUENCE}; d_context=7"),
        ({"positions": positions.Sinusoidal(D_MODEL)}, TypeError, ADDED_TO_X),
    ],
)  # fmt: skip
def test_sizes_and_positions_that_do_not_fit(wrong, error, message):
    with pytest.raises(error, match=message):
        make(wrong)


NO_CONTEXT = "needs a context of width d_context=7; none was given"


def zeros(*shape):
    return torch.zeros(*shape, D_MODEL)


@pytest.mark.usefixtures("as_a_user_runs_it")
@either
@pytest.mark.parametrize(
    ("kind", "given", "error", "message"),
    [
        ({}, [torch.zeros(2, 5, 11)], ValueError, r"x must be \(\.\.\., tokens, d_model=12\); got \(2, 5, 11\)"),
        ({}, [zeros()], ValueError, "x must be"),
        ({}, [[[1.0] * D_MODEL]], TypeError, r"x must be a tensor \(\.\.\., tokens, d_model=12\); got list"),
        ({}, [zeros(2, 5), torch.zeros(2, 6, 7)], ValueError, r"context must be .*, tokens, 12\).* got \(2, 6, 7\)"),
        ({}, [zeros(2, 5), zeros(3, 6)], ValueError, r"batch of x \(2, 5, 12\); got \(3, 6, 12\)"),
        ({}, [zeros(2, 5), zeros(6)], ValueError, r"batch of x \(2, 5, 12\); got \(6, 12\)"),
        ({"d_context": 7}, [zeros(2, 5), zeros(2, 6)], ValueError, r"context must be .*, tokens, 7\).* got \(2, 6, 12"),
        ({"d_context": 7}, [zeros(2, 5)], ValueError, NO_CONTEXT),
        ({}, [zeros(2, 5), None, torch.ones(5, 5).bool()], TypeError, r"mask\.allowed.*mask\.blocked"),
        ({}, [zeros(2, 5), mask.causal()], TypeError, "context must be a tensor; got .*mask="),
        ({"d_key": 4, "positions": ROTARY}, [zeros(5), zeros(5)], ValueError, ONE_SEQUENCE),
        ({"positions": ALIBI}, [zeros(5), zeros(5)], ValueError, ONE_SEQUENCE),
    ],
)
def test_inputs_that_do_not_fit_are_named__transformers_38094(kind, given, error, message, call):
    with pytest.raises(error, match=message):
        call(make(kind), *given)


@pytest.mark.usefixtures("as_a_user_runs_it")
@pytest.mark.parametrize(
    ("kind", "has_context", "given", "error", "message"),
    [
        ({}, False, {}, TypeError, "cache=dict: it must be a Dynamic, Static or Sliding .* a CrossAttentionCache"),
        ({}, True, cache.Dynamic(), ValueError, r"cache=Dynamic\(.*\) holds tokens of x; .*\.CrossAttentionCache"),
        ({"d_context": 7}, False, cache.Dynamic(), ValueError, NO_CONTEXT),
        ({}, False, cache.CrossAttentionCache(), ValueError, r"CrossAttentionCache\(\) is empty: its first call needs"),
    ],
)
def test_a_cache_that_does_not_fit_is_named(kind, has_context, given, error, message):
    with pytest.raises(error, match=message):
        make(kind)(zeros(2, 5), zeros(2, 5) if has_context else None, cache=given)


@pytest.mark.usefixtures("as_a_user_runs_it")
def test_a_rotation_needs_rotary_positions():
    x, cos_sin = zeros(2, 5), ROTARY.cos_sin(torch.arange(5))
    for module, context in ((make({}), None), (make({}, positions=ALIBI), None), (make({}), x)):
        with pytest.raises(ValueError, match="cos_sin rotates queries and keys of rotary positions; here positions="):
            module(x, context, cos_sin=cos_sin)
    with pytest.raises(ValueError, match=r"positions of shape \(5,\) do not fit x of shape \(2, 4, 3, 4\)"):
        make({"d_key": 4}, positions=ROTARY)(x[:, :3], cos_sin=cos_sin)
